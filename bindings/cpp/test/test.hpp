// What the tests share: checks, and a list of named tests that main() runs.
#ifndef LLAMABI_TEST_HPP
#define LLAMABI_TEST_HPP

#include <llamabi.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using Ids = std::vector<llamabi::Token>;

namespace test {

struct Case {
  const char *name;
  void (*run)();
  bool behaviour; // of bindings/behaviours.txt, rather than C++'s own
};

inline std::vector<Case> &cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char *name, void (*run)(), bool behaviour) {
    cases().push_back({name, run, behaviour});
  }
};

inline std::atomic<int> failed{0};

inline std::string &root() {
  static std::string path;
  return path;
}
inline std::string demo() { return root() + "/demo/meta"; }
inline std::string reference(const std::string &name) {
  return root() + "/tests/data/reference/" + name;
}

/// The demo model, with room for `max_batch_size` sequences.
inline llamabi::Model demo_model(
    std::uint32_t max_batch_size = 8, std::uint32_t max_seq_len = 512) {
  llamabi::Options o;
  o.max_batch_size = max_batch_size;
  o.max_seq_len = max_seq_len;
  return llamabi::Model(demo(), o);
}

inline llamabi::GenerateOptions greedy(std::uint32_t max_gen_len) {
  llamabi::GenerateOptions o;
  o.temperature = 0;
  o.max_gen_len = max_gen_len;
  return o;
}

/// Room that `endless()` takes many seconds to fill, however busy the machine is.
constexpr std::uint32_t roomy = 32768;

/// Runs as long as there is room for tokens.
inline llamabi::GenerateOptions endless() {
  llamabi::GenerateOptions o;
  o.ignore_eos = true;
  return o;
}

/// For what hangs; far more than a busy machine needs.
template <class F> bool soon(F &&condition) {
  for (int i = 0; i < 24000; i++) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

/// Prompts of the demo model.
inline const std::vector<std::string> openings = {
    "Once upon a time", "The little dog", "Anna", "One day"};

inline bool contains(const std::string &text, const std::string &part) {
  return text.find(part) != std::string::npos;
}

} // namespace test

#define CHECK(...)                                                                                 \
  do {                                                                                             \
    if (!(__VA_ARGS__)) {                                                                          \
      test::failed++;                                                                              \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__);               \
    }                                                                                              \
  } while (0)

/// The expression throws llamabi::error of that status, with a sentence that has the words.
#define THROWS(expected, words, ...)                                                               \
  do {                                                                                             \
    try {                                                                                          \
      static_cast<void>(__VA_ARGS__);                                                              \
      test::failed++;                                                                              \
      std::fprintf(stderr, "%s:%d: did not throw: %s\n", __FILE__, __LINE__, #__VA_ARGS__);        \
    } catch (const llamabi::error &e) {                                                            \
      if (e.status() != (expected) || !test::contains(e.what(), words)) {                          \
        test::failed++;                                                                            \
        std::fprintf(stderr, "%s:%d: %s threw %d: %s\n", __FILE__, __LINE__, #__VA_ARGS__,         \
            e.status(), e.what());                                                                 \
      }                                                                                            \
    }                                                                                              \
  } while (0)

namespace test {

/// What a stream's events amount to, one completion a sequence.
inline std::vector<llamabi::Completion> collect(llamabi::Stream stream, std::size_t n) {
  std::vector<llamabi::Completion> all(n);
  for (const llamabi::Event &ev : stream) {
    llamabi::Completion &c = all.at(ev.index);
    CHECK(c.finish_reason == 0);
    c.text += ev.text;
    if (ev.kind == LLAMA_EVENT_FINISH) {
      c.finish_reason = ev.finish_reason;
      c.stats = stream.stats(ev.index);
      continue;
    }
    c.tokens.push_back(ev.token);
    c.logprobs.push_back(ev.logprob);
    c.top_logprobs.push_back(ev.top);
  }
  return all;
}

} // namespace test

#define TEST_OF(name, behaviour)                                                                   \
  static void name();                                                                              \
  static const test::Register register_##name(#name, name, behaviour);                             \
  static void name()
#define BEHAVIOUR(name) TEST_OF(name, true)
#define TEST(name)      TEST_OF(name, false)

#endif
