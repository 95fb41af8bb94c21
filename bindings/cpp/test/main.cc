// main ROOT [NAME]: every test, or the one of that name; ROOT is the source tree, for its data.
#include "test.hpp"

#include <cstring>

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  test::root() = argv[1];
  int ran = 0;
  for (const test::Case &c : test::cases()) {
    if (argc > 2 && std::strcmp(argv[2], c.name) != 0) continue;
    const int before = test::failed;
    try {
      c.run();
    } catch (const std::exception &e) {
      test::failed++;
      std::fprintf(stderr, "%s: threw: %s\n", c.name, e.what());
    }
    ran++;
    std::printf("%s %s %s\n", c.behaviour ? "behaviour" : "test", c.name,
        test::failed == before ? "ok" : "FAILED");
    std::fflush(stdout);
  }
  return ran == 0 || test::failed != 0;
}
