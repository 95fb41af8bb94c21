// probe CKPT_DIR: what a program says that meets another library than it was compiled for.
#include <llamabi.hpp>

#include <cstdio>

template <class F> static int refused(F &&f) {
  try {
    f();
  } catch (const llamabi::error &e) {
    std::printf("%d %s\n", e.status(), e.what());
    return e.status() == LLAMA_E_ABI;
  }
  return 0;
}

int main(int, char **argv) {
  const int refusals =
      refused([] { llamabi::Options o; }) + refused([] { llamabi::GenerateOptions o; }) +
      refused([] { llamabi::Cancel c; }) + refused([&] { llamabi::Model m(argv[1]); });
  return refusals == 4 ? 0 : refusals == 0 ? 3 : 4;
}
