// What only C++ has: exceptions out of callbacks, moves, overloads, stop tokens; and prefixes
// apart.
#include "test.hpp"

#include <array>
#include <mutex>
#include <poll.h>
#if __cplusplus >= 202002L
#include <iterator>
#include <span>
#endif

using llamabi::Event;

static_assert(!std::is_copy_constructible_v<llamabi::Model> &&
              std::is_nothrow_move_constructible_v<llamabi::Model>);
static_assert(
    !std::is_copy_constructible_v<llamabi::Stream> && std::is_move_assignable_v<llamabi::Stream>);
static_assert(std::is_base_of_v<std::runtime_error, llamabi::error>);

struct Mine {
  int number;
};

/// Calls `f`, which must throw `Mine`; its number.
template <class F> static int thrown(F &&f) {
  try {
    f();
  } catch (const Mine &mine) {
    return mine.number;
  }
  return -1;
}

TEST(exception_in_event) {
  const auto model = test::demo_model();
  auto o = test::endless();
  int heard = 0;
  o.on_event = [&](const Event &) -> bool {
    if (++heard == 3) throw Mine{1};
    return true;
  };
  CHECK(thrown([&] { model.text_completion("Once", o); }) == 1);
  CHECK(heard == 3);
  CHECK(test::soon([&] { return model.timings().running == 0; }));
  CHECK(model.text_completion("Once", test::greedy(3)).tokens.size() == 3);
  // Calls that are allowed in a callback may throw in it, and be caught there.
  o.on_event = [&](const Event &) {
    THROWS(LLAMA_E_INVALID_ARGUMENT, "", model.decode(Ids{-1}));
    THROWS(LLAMA_E_INVALID_ARGUMENT, "callback", model.generate(Ids{1}));
    return model.encode("a").size() == 0;
  };
  CHECK(model.text_completion("Once", o).finish_reason == LLAMA_FINISH_CANCELLED);
}

TEST(exception_in_progress) {
  for (const int at : {1, 3}) {
    llamabi::Options o;
    int heard = 0;
    o.progress = [&](float fraction) -> bool {
      CHECK(fraction >= 0 && fraction <= 1);
      if (++heard == at) throw Mine{2};
      return true;
    };
    CHECK(thrown([&] { llamabi::Model model(test::demo(), o); }) == 2);
    CHECK(heard == at);
  }
}

TEST(exception_in_log) {
  llamabi::Options o;
  o.log_level = LLAMA_LOG_DEBUG;
  o.log = [](std::int32_t, std::string_view) { throw Mine{3}; };
  CHECK(thrown([&] { llamabi::Model model(test::demo(), o); }) == 3);

  std::atomic<int> lines{0};
  o.log = [&](std::int32_t level, std::string_view line) {
    CHECK(level >= LLAMA_LOG_ERROR && level <= LLAMA_LOG_DEBUG && !line.empty());
    lines++;
  };
  const llamabi::Model model(test::demo(), o);
  CHECK(lines > 0);
}

/// Lines of LLAMA_LOG_DEBUG tell of each sequence's end, in whichever call on the model comes
/// first.
TEST(log_while_generating) {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<bool> throws{false};
  llamabi::Options build;
  build.max_seq_len = test::roomy;
  build.log_level = LLAMA_LOG_DEBUG;
  build.log = [&](std::int32_t level, std::string_view line) {
    if (level != LLAMA_LOG_DEBUG) return;
    const std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
    if (throws) throw Mine{4};
  };
  const llamabi::Model model(test::demo(), build);
  const auto three = test::greedy(3);
  model.text_completion({"Once", "Anna"}, three);
  CHECK(lines.size() == 2 && test::contains(lines[0], "3 generated"));
  for (const Event &ev : model.stream("Once", three)) CHECK(ev.index == 0);
  CHECK(lines.size() == 3);

  // Out of the call that heard the line; the next one is none the worse.
  throws = true;
  CHECK(thrown([&] { model.text_completion("Once", three); }) == 4);
  throws = false;
  CHECK(model.text_completion("Once", three).tokens.size() == 3 && lines.size() == 5);

  // Out of next(), with the event that it took; the stream goes on. No token is drawn outside
  // next(), so that the call which opens the stream hears no line, however long it takes.
  auto waiting = three;
  waiting.on_logits = [](const llamabi::Logits &) { return true; };
  auto stream = model.stream("Once", waiting);
  throws = true;
  int tokens = 0, ends = 0, caught = 0;
  for (llama_status status = LLAMA_OK; status == LLAMA_OK;) {
    Event ev;
    caught += thrown([&] { status = stream.next(ev); }) == 4;
    tokens += ev.kind == LLAMA_EVENT_TOKEN;
    ends += ev.kind == LLAMA_EVENT_FINISH;
  }
  CHECK(tokens == 3 && ends == 1 && caught == 1);
  CHECK(stream.status() == LLAMA_DONE && stream.stats().generated_tokens == 3);

  // A line about another sequence stops a call in its middle, also one that hears no events.
  auto o = test::endless();
  o.cancel.emplace();
  const auto other = model.stream("Anna", o);
  std::thread trigger([&] {
    CHECK(test::soon([&] { return model.timings().running == 2; }));
    o.cancel->trigger();
  });
  const auto before = model.timings().generated_tokens;
  CHECK(thrown([&] { model.text_completion("Once", test::endless()); }) == 4);
  trigger.join();
  throws = false;
  CHECK(model.timings().generated_tokens - before < test::roomy / 2);
  CHECK(test::soon([&] { return model.timings().running == 0; }));
}

TEST(loading_is_cancelled) {
  llamabi::Options o;
  o.progress = [](float) { return false; };
  THROWS(LLAMA_CANCELLED, test::demo(), llamabi::Model(test::demo(), o));
  o.progress = nullptr;
  o.cancel.emplace();
  o.cancel->trigger();
  THROWS(LLAMA_CANCELLED, test::demo(), llamabi::Model(test::demo(), o));
}

TEST(moves) {
  auto a = test::demo_model();
  llamabi::Model b = std::move(a);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model was moved from",
      a.info()); // NOLINT(bugprone-use-after-move)
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model was moved from", a.stream("x"));
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model was moved from", a.encode("x"));
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model was moved from", llamabi::Grammar::json(a));
  a.close();
  CHECK(b.info().vocab_size == 1024);
  auto closed = test::demo_model();
  closed.close();
  const auto moved = std::move(closed);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model is closed", moved.info());
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model is closed", llamabi::Grammar::json(moved));

  // What is assigned over is freed with its log still there.
  llamabi::Options o;
  o.log_level = LLAMA_LOG_DEBUG;
  o.max_seq_len = test::roomy;
  auto lines = std::make_shared<std::atomic<int>>(0);
  o.log = [lines](std::int32_t, std::string_view) { ++*lines; };
  llamabi::Model logging(test::demo(), o);
  o.log = nullptr;
  auto stream = logging.stream("Once", test::endless());
  CHECK(stream.begin() != stream.end());
  logging = std::move(b);
  CHECK(lines.use_count() > 1); // the stream may still hear lines
  for (const Event &ev : stream) CHECK(ev.index == 0);
  CHECK(stream.status() == LLAMA_CANCELLED);
  auto other = logging.stream("Once", test::greedy(2));
  stream = std::move(other);
  CHECK(lines.use_count() == 1);
  Event ev;
  THROWS(LLAMA_E_INVALID_ARGUMENT, "", other.next(ev)); // NOLINT(bugprone-use-after-move)
  THROWS(LLAMA_E_INVALID_ARGUMENT, "", other.stats());
  CHECK(other.fd() == -1);
  CHECK(stream.next(ev) == LLAMA_OK);
}

TEST(spellings) {
  const auto m = test::demo_model();
  const auto o = test::greedy(4);
  const std::vector<llamabi::Token> prompt = {1, 5, 9};
  const auto want = m.generate(prompt, o).text;
  CHECK(m.generate(Ids{1, 5, 9}, o).text == want);
  CHECK(m.generate(std::array<llamabi::Token, 3>{1, 5, 9}, o).text == want);
  CHECK(m.generate(llamabi::Tokens(prompt.data(), 3), o).text == want);
  CHECK(m.generate({1, 5, 9}, o).text == want);
  CHECK(m.generate({{1, 5, 9}, {1, 5}}, o).at(0).text == want);
  CHECK(m.generate({{1}, {5}}, o).size() == 2);
  CHECK(m.generate({{0}, {5}}, o).at(1).text == m.generate({5}, o).text);
  CHECK(m.decode({1, 5, 9}) == m.decode(prompt));
  CHECK(
      m.text_completion(std::string("Once"), o).text == m.text_completion({"Once"}, o).at(0).text);
  CHECK(m.text_completion({"a", "b"}, o).size() == 2);
  CHECK(m.text_completion(std::string_view(), o).tokens.size() == 4);
  const llamabi::Dialog dialog = {{"system", "Be kind."}, {"user", "hi"}};
  const std::string answer = m.chat_completion(dialog, o).text;
  CHECK(m.chat_completion({{"system", "Be kind."}, {"user", "hi"}}, o).text == answer);
  CHECK(m.chat_completion({dialog, {{"user", "hi"}}}, o).at(0).text == answer);
  CHECK(m.chat_completion({{{"user", "hi"}}, {{"user", "ho"}}}, o).size() == 2);
  std::string streamed;
  for (auto &ev : m.stream(dialog, o)) streamed += ev.text;
  for (auto &ev : m.stream({{"system", "Be kind."}, {"user", "hi"}}, o)) streamed += ev.text;
  CHECK(streamed == answer + answer);
  std::uint32_t most = 0;
  for (auto &ev : m.stream({dialog, {{"user", "hi"}}}, o)) most = std::max(most, ev.index);
  CHECK(most == 1);
  const std::string a = m.text_completion("a", o).text, b = m.text_completion("b", o).text;
  const std::vector<std::string> ab = {"a", "b"};
  const auto sequences = [&](llamabi::Stream stream) {
    std::string texts[3];
    for (auto &ev : stream) texts[ev.index] += ev.text;
    return texts[0] + '|' + texts[1] + '|' + texts[2];
  };
  CHECK(sequences(m.stream({1, 5, 9}, o)) == want + "||");
  CHECK(sequences(m.stream({{1, 5, 9}, {1, 5, 9}}, o)) == want + '|' + want + '|');
  CHECK(sequences(m.stream(ab, o)) == a + '|' + b + '|');
  CHECK(sequences(m.stream({{1}, {5, 9}}, o)) ==
        m.generate({1}, o).text + '|' + m.generate({5, 9}, o).text + '|');
  CHECK(sequences(m.stream({"a"}, o)) == a + "||");
  CHECK(sequences(m.stream({"a", "b"}, o)) == a + '|' + b + '|');
  CHECK(sequences(m.stream({"a", "b", "a"}, o)) == a + '|' + b + '|' + a);
  CHECK(sequences(m.stream({std::string("a"), std::string("b")}, o)) == a + '|' + b + '|');
  CHECK(
      sequences(m.stream({std::string_view("a"), std::string_view("b")}, o)) == a + '|' + b + '|');
  CHECK(sequences(m.stream({"a", std::string("b")}, o)) == a + '|' + b + '|');
  CHECK(m.decode(m.encode("The sun, the moon; \xc3\xa9\xe2\x9c\x93")) ==
        "The sun, the moon; \xc3\xa9\xe2\x9c\x93");
  CHECK(m.encode("a", true, true).front() == m.info().bos_id &&
        m.encode("a", true, true).back() == m.info().eos_id);
  // More than the first guess of a buffer: U+FFFD is three bytes for one, a dialog over 256 tokens.
  CHECK(m.encode(llamabi::Dialog{{"user", std::string(600, '#')}}).size() > 256);
  CHECK(m.encode(std::string(5000, '#')).size() > 2);
  std::string long_text;
  for (int i = 0; i < 300; i++) long_text += " Anna";
  CHECK(m.decode(m.encode(long_text)) == long_text);
  CHECK(llamabi::version() == LLAMABI_VERSION);
  CHECK(m.get() != nullptr && m.token_bytes(m.encode("dog").back()).back() == 'g');
#if __cplusplus >= 202002L
  static_assert(std::input_iterator<llamabi::Stream::iterator>);
  const std::span<const llamabi::Token> span(prompt);
  CHECK(m.generate(span, o).text == want);
  CHECK(m.decode(span.first(1)).empty());
  CHECK(m.generate(prompt, {.max_gen_len = 4, .temperature = 0}).text == want);
#endif
}

/// Whether braces too many compile: {{"a", "b"}} is no list of texts, and must not become one of a
/// string that begins at one literal and ends at the other.
template <class M> auto takes_two_braces(const M &m)
    -> decltype(m.text_completion({{"a", "b"}}), std::true_type());
template <class M> auto takes_two_braces(const M &m)
    -> decltype(m.chat({{"a", "b"}}), std::true_type());
template <class M> auto takes_two_braces(const M &m)
    -> decltype(m.stream_chat({{"a", "b"}}), std::true_type());
template <class M> auto takes_two_braces(const M &m)
    -> decltype(llamabi::Grammar::choice(m, {{"a", "b"}}), std::true_type());
std::false_type takes_two_braces(...);

/// Lists of texts in braces, which C++20 takes for the two ends of one text where it may.
TEST(lists_of_texts) {
  const auto m = test::demo_model();
  const auto o = test::greedy(20);
  llamabi::GenerateOptions chosen = o;
  const auto choose = [&](const llamabi::Grammar &grammar) {
    chosen.grammar = grammar;
    return m.text_completion("Once", chosen).text;
  };
  using llamabi::Grammar;
  const std::vector<std::string> colours = {"red", "green"};
  const std::string colour = choose(Grammar::choice(m, "[\"red\", \"green\"]"));
  CHECK(colour == "red" || colour == "green");
  CHECK(choose(Grammar::choice(m, {"red", "green"})) == colour);
  CHECK(choose(Grammar::choice(m, {"red", colours[1]})) == colour);
  CHECK(choose(Grammar::choice(m, colours)) == colour);
  const std::string hard = "\"\\/\n\t\x01\x7f \xc3\xa9";
  CHECK(choose(Grammar::choice(m, {hard})) == hard);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "", Grammar::choice(m, std::vector<std::string>{}));

  llamabi::ChatOptions chat;
  chat.chat_template = "{{ messages[0].content }}";
  const std::string once = "[{\"role\": \"user\", \"content\": \"Once\"}]",
                    anna = "[{\"role\": \"user\", \"content\": \"Anna\"}]";
  const std::vector<std::string> both = {once, anna};
  const std::string first = m.chat(once, chat, o).text, second = m.chat(anna, chat, o).text;
  const auto same = [&](const std::vector<llamabi::Completion> &all) {
    return all.size() == 2 && all[0].text == first && all[1].text == second;
  };
  CHECK(first != second);
  CHECK(same(m.chat(both, chat, o)));
  CHECK(same(m.chat({once, anna}, chat, o)));
  CHECK(same(m.chat({once.c_str(), anna.c_str()}, chat, o)));
  CHECK(same(test::collect(m.stream_chat(both, chat, o), 2)));
  CHECK(same(test::collect(m.stream_chat({once.c_str(), anna.c_str()}, chat, o), 2)));

  static_assert(!decltype(takes_two_braces(m))::value, "one brace too many");
  // Vectors of all that is a text.
  const std::vector<std::string_view> views = {once, anna};
  const std::vector<const char *> literals = {"red", "green"};
  CHECK(same(m.chat(views, chat, o)));
  CHECK(same(test::collect(m.stream_chat(views, chat, o), 2)));
  CHECK(choose(Grammar::choice(m, literals)) == colour);
  CHECK(m.text_completion(literals, o).at(0).text == m.text_completion("red", o).text);

  llamabi::CompressOptions all;
  all.rate = 1;
  const auto left = m.compress({"One day", once, {"Who?", LLAMA_SEGMENT_QUESTION}}, all);
  CHECK(left.size() == 3 && left[0].text == "One day" && left[2].text == "Who?");
}

TEST(descriptor) {
  const auto m = test::demo_model();
  auto stream = m.stream("Once", test::greedy(20));
  Event ev;
  int tokens = 0;
  for (;;) {
    const llama_status status = stream.next(ev, std::chrono::milliseconds(0));
    if (status == LLAMA_TIMEOUT) {
      pollfd p = {stream.fd(), POLLIN, 0};
      CHECK(poll(&p, 1, 120000) == 1);
    } else if (status == LLAMA_OK) {
      tokens += ev.kind == LLAMA_EVENT_TOKEN;
    } else {
      CHECK(status == LLAMA_DONE);
      break;
    }
  }
  CHECK(tokens == 20);
  CHECK(stream.next(ev, std::chrono::hours(24 * 365)) == LLAMA_DONE);
}

TEST(timeouts) {
  llamabi::Options build;
  build.max_batch_size = 1;
  build.max_seq_len = test::roomy;
  build.max_stall_ms = 600000; // `running`, which nobody reads, keeps its slot
  const llamabi::Model m(test::demo(), build);
  auto running = m.stream("Once", test::endless());
  CHECK(running.begin() != running.end());
  auto waiting = m.stream("Once", test::greedy(1));
  Event ev;
  const auto start = std::chrono::steady_clock::now();
  CHECK(waiting.next(ev, std::chrono::milliseconds(0)) == LLAMA_TIMEOUT);
  CHECK(waiting.next(ev, std::chrono::milliseconds(20)) == LLAMA_TIMEOUT);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
  running.close();
  CHECK(waiting.next(ev) == LLAMA_OK && waiting.status() == LLAMA_OK);
}

TEST(cache_salt) {
  const auto m = test::demo_model();
  std::string prompt;
  for (int i = 0; i < 10; i++) prompt += "Once upon a time there was a fox. ";
  const auto run = [&](std::uint64_t salt) {
    auto o = test::greedy(20);
    o.cache_salt = salt;
    return m.text_completion(prompt, o);
  };
  const auto first = m.text_completion(prompt, test::greedy(20)), again = run(0);
  CHECK(first.stats.cached_tokens == 0 && again.stats.cached_tokens > 0);
  for (const std::uint64_t salt : {std::uint64_t{7}, UINT64_MAX}) {
    const auto alone = run(salt), twice = run(salt);
    CHECK(alone.stats.cached_tokens == 0);
    CHECK(twice.stats.cached_tokens == again.stats.cached_tokens);
    CHECK(alone.text == first.text && twice.text == first.text);
  }
}

#if __cplusplus >= 202002L
TEST(stop_token) {
  const auto m = test::demo_model(8, test::roomy);
  auto o = test::endless();
  {
    std::stop_source source;
    o.cancel = source.get_token();
    int heard = 0;
    o.on_event = [&](const Event &) {
      if (++heard == 4) source.request_stop();
      return true;
    };
    const auto c = m.text_completion("Once", o);
    CHECK(c.finish_reason == LLAMA_FINISH_CANCELLED && c.tokens.size() >= 4);
    CHECK(m.text_completion("Once", o).tokens.empty()); // stopped before
  }
  o.on_event = nullptr;
  std::jthread worker([&](std::stop_token token) {
    auto mine = o;
    mine.cancel = token;
    auto stream = m.stream("Once", mine);
    mine.cancel.reset(); // the stream has a copy
    for (auto &ev : stream) CHECK(ev.index == 0);
    CHECK(stream.status() == LLAMA_CANCELLED);
  });
  CHECK(test::soon([&] { return m.timings().generated_tokens > 20; }));
  worker.request_stop();
  worker.join();
}
#endif
