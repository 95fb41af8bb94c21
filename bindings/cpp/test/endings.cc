// Behaviours of what does not go through: calls, streams and models that end before they are done,
// and what is refused.
#include "test.hpp"

#include <algorithm>
#include <cmath>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>
#include <utility>

using llamabi::Completion;
using llamabi::Event;
using llamabi::Token;
using test::collect;
using test::openings;

// Some functions of the library's, with a moment in front of them: by then a call of the binding's
// has begun, and has not got there.
static std::function<void()> before_the_library; // once

template <class F> static F *library(const char *name, F *) {
  if (before_the_library) std::exchange(before_the_library, nullptr)();
  return reinterpret_cast<F *>(dlsym(RTLD_NEXT, name));
}
#define LIBRARY(name) library(#name, name)

extern "C" {
llama_status llama_text_completion(llama_t *l, const char *const *prompts, const size_t *lens,
    size_t n, const llama_generate_options *o, llama_result_t **out, llama_error *err) {
  return LIBRARY(llama_text_completion)(l, prompts, lens, n, o, out, err);
}
llama_status llama_compress(llama_t *l, const llama_segment *segments, size_t n,
    const llama_compress_options *o, llama_result_t **out, llama_error *err) {
  return LIBRARY(llama_compress)(l, segments, n, o, out, err);
}
llama_status llama_stream_open_text(llama_t *l, const char *const *prompts, const size_t *lens,
    size_t n, const llama_generate_options *o, llama_stream_t **out, llama_error *err) {
  return LIBRARY(llama_stream_open_text)(l, prompts, lens, n, o, out, err);
}
llama_status llama_encode_text_bounded(const llama_t *l, const char *s, size_t len, uint32_t flags,
    size_t max_tokens, const llama_cancel_t *cancel, int32_t *buf, size_t cap, size_t *n,
    llama_error *err) {
  return LIBRARY(llama_encode_text_bounded)(l, s, len, flags, max_tokens, cancel, buf, cap, n, err);
}
llama_status llama_grammar_new(const llama_t *l, int32_t kind, const char *source, size_t len,
    llama_grammar_t **out, llama_error *err) {
  return LIBRARY(llama_grammar_new)(l, kind, source, len, out, err);
}
llama_status llama_get_timings(const llama_t *l, llama_timings *t, llama_error *err) {
  return LIBRARY(llama_get_timings)(l, t, err);
}
// This one's moment comes behind it.
llama_status llama_token_bytes(
    const llama_t *l, int32_t token, const char **p, size_t *n, llama_error *err) {
  const auto moment = std::exchange(before_the_library, nullptr);
  const llama_status status = LIBRARY(llama_token_bytes)(l, token, p, n, err);
  if (moment) moment();
  return status;
}
// As if it had waited for other ranks when the model was closed.
llama_status llama_adapter_add(
    llama_t *l, const char *dir, float scale, uint32_t *id, llama_error *err) {
  const bool waits = before_the_library != nullptr;
  const auto add = LIBRARY(llama_adapter_add);
  return waits ? LLAMA_CANCELLED : add(l, dir, scale, id, err);
}
}

BEHAVIOUR(cancel_mid_prefill) {
  // Whole, it would take many seconds: `other` sees it under way, however late it gets a processor.
  constexpr std::size_t length = 60000;
  const auto model = test::demo_model(1, length + 1);
  std::vector<Token> prompt(length);
  for (std::size_t i = 0; i < length; i++) prompt[i] = static_cast<Token>(3 + i * i % 1000);
  const auto steps = model.timings().steps;
  llamabi::GenerateOptions o;
  o.cancel.emplace();
  std::uint64_t triggered = 0;
  std::thread other([&] {
    while (model.timings().steps == steps) std::this_thread::yield();
    o.cancel->trigger();
    triggered = model.timings().steps;
  });
  const auto got = model.generate(prompt, o);
  other.join();
  CHECK(got.finish_reason == LLAMA_FINISH_CANCELLED);
  CHECK(got.tokens.empty());
  CHECK(triggered > steps && model.timings().steps <= triggered + 2); // and the one under way
  CHECK(model.generate(llamabi::Tokens(prompt.data(), 8), test::greedy(3)).finish_reason !=
        LLAMA_FINISH_CANCELLED);
}

BEHAVIOUR(cancel_mid_decode) {
  const auto model = test::demo_model(1, test::roomy);
  auto o = test::greedy(100);
  o.ignore_eos = true;
  const auto want = model.text_completion(openings[0], o);
  o.max_gen_len = LLAMABI_MAX_GEN_LEN_DEFAULT;
  const auto is_beginning = [&](const Completion &c, std::size_t at_least) {
    const auto n = static_cast<std::ptrdiff_t>(std::min(c.tokens.size(), want.tokens.size()));
    return c.finish_reason == LLAMA_FINISH_CANCELLED && c.tokens.size() >= at_least &&
           c.tokens.size() < test::roomy / 2 &&
           std::equal(c.tokens.begin(), c.tokens.begin() + n, want.tokens.begin());
  };
  // by flag
  int heard = 0;
  o.cancel.emplace();
  o.on_event = [&](const Event &) {
    if (++heard == 5) o.cancel->trigger();
    return true;
  };
  CHECK(is_beginning(model.text_completion(openings[0], o), 5));
  // by the callback
  heard = 0;
  o.cancel.reset();
  o.on_event = [&](const Event &) { return ++heard < 5; };
  CHECK(is_beginning(model.text_completion(openings[0], o), 5));
  CHECK(heard == 5);
  // a stream, by flag
  o.on_event = nullptr;
  o.cancel.emplace();
  auto stream = model.stream(openings[0], o);
  Completion c;
  for (const Event &ev : stream) {
    if (ev.kind == LLAMA_EVENT_FINISH)
      c.finish_reason = ev.finish_reason;
    else
      c.tokens.push_back(ev.token);
    if (c.tokens.size() == 5) o.cancel->trigger();
  }
  CHECK(is_beginning(c, 5));
  CHECK(stream.status() == LLAMA_CANCELLED);
}

BEHAVIOUR(abandon_stream) {
  const auto model = test::demo_model(1, test::roomy);
  for (int round = 0; round < 3; round++) {
    int n = 0;
    for (const Event &ev : model.stream(openings[0], test::endless())) {
      CHECK(ev.kind == LLAMA_EVENT_TOKEN);
      if (++n == 3) break;
    }
    CHECK(test::soon([&] {
      const auto t = model.timings();
      return t.running == 0 && t.waiting == 0 && t.pages_used == 0;
    }));
    auto o = test::greedy(2);
    o.no_wait = true;
    CHECK(model.text_completion(openings[1], o).tokens.size() == 2);
  }
}

BEHAVIOUR(deciding) {
  const auto model = test::demo_model();
  const std::vector<std::string> prompts = {openings[0], openings[3]};
  llamabi::GenerateOptions o;
  o.seed = 3;
  o.max_gen_len = 30;
  o.ignore_eos = true;
  o.logprobs = true;
  const auto whole = model.text_completion(prompts, o);
  const auto prefix = [](const auto &all, std::size_t n) {
    return std::decay_t<decltype(all)>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n));
  };
  std::size_t asked = 0;
  llamabi::GenerateOptions stopping = o;
  stopping.on_stop = [&](std::uint32_t index, const llamabi::Tokens &tokens, std::size_t n_prompt) {
    asked++;
    const Ids prompt(tokens.data(), tokens.data() + n_prompt);
    CHECK(prompt == model.encode(prompts.at(index), true));
    const Ids output(tokens.data() + n_prompt, tokens.data() + tokens.size());
    CHECK(output == prefix(whole.at(index).tokens, output.size()));
    return output.size() == 7 + index;
  };
  const auto cut = model.text_completion(prompts, stopping);
  // The stream has functions of its own.
  auto opened = [&] {
    const llamabi::GenerateOptions gone = stopping;
    return model.stream(prompts, gone);
  }();
  const auto streamed = collect(std::move(opened), 2);
  for (std::size_t i = 0; i < 2; i++) {
    CHECK(cut[i].finish_reason == LLAMA_FINISH_CALLER);
    CHECK(cut[i].tokens == prefix(whole[i].tokens, 7 + i));
    CHECK(cut[i].logprobs == prefix(whole[i].logprobs, 7 + i));
    CHECK(cut[i].stats.generated_tokens == 7 + i);
    CHECK(streamed[i].tokens == cut[i].tokens && streamed[i].text == cut[i].text);
    CHECK(streamed[i].finish_reason == LLAMA_FINISH_CALLER);
  }
  CHECK(asked == 2 * (7 + 8));

  // Logits: seen, and changed as a bias changes them.
  const Token never = whole[0].tokens[3];
  int rows = 0;
  llamabi::GenerateOptions seeing = o;
  seeing.on_logits = [&](const llamabi::Logits &row) {
    rows++;
    return row.n_logits == model.info().vocab_size;
  };
  llamabi::GenerateOptions banning = o;
  banning.on_logits = [&](const llamabi::Logits &row) {
    row.logits[never] = -HUGE_VALF;
    return true;
  };
  llamabi::GenerateOptions biased = o;
  biased.logit_bias = {{never, -HUGE_VALF}};
  const auto seen = model.text_completion(prompts, seeing);
  const auto banned = model.text_completion(prompts, banning);
  const auto want = model.text_completion(prompts, biased);
  for (std::size_t i = 0; i < 2; i++) {
    CHECK(seen[i].tokens == whole[i].tokens && seen[i].logprobs == whole[i].logprobs);
    CHECK(banned[i].tokens == want[i].tokens && banned[i].logprobs == want[i].logprobs);
  }
  CHECK(rows == 60);
  seeing.on_logits = [](const llamabi::Logits &) { return false; };
  for (const Completion &c : model.text_completion(prompts, seeing))
    CHECK(c.finish_reason == LLAMA_FINISH_CANCELLED);

  // What they throw comes out of the call, or of the stream.
  llamabi::GenerateOptions throwing = o;
  throwing.on_stop = [](auto &&...) -> bool { throw std::range_error("why"); };
  for (int i = 0; i < 2; i++) {
    for (const bool pulled : {false, true}) {
      std::string what;
      try {
        if (pulled)
          collect(model.stream(prompts, throwing), 2);
        else
          model.text_completion(prompts, throwing);
      } catch (const std::range_error &e) {
        what = e.what();
      }
      CHECK(what == "why");
    }
    throwing.on_stop = nullptr;
    throwing.on_logits = [](const llamabi::Logits &) -> bool { throw std::range_error("why"); };
  }

  // One sequence of a stream.
  auto stream = model.stream(prompts, o);
  int tokens[2] = {0, 0};
  for (const Event &ev : stream) {
    if (ev.kind == LLAMA_EVENT_TOKEN) tokens[ev.index]++;
    if (tokens[1] == 4) stream.stop(1);
  }
  CHECK(tokens[0] == 30 && tokens[1] == 4);
  stream.stop(0);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the stream has no sequence 2", stream.stop(2));
}

BEHAVIOUR(use_after_close) {
  auto model = test::demo_model();
  model.close();
  model.close();
  const auto invalid = LLAMA_E_INVALID_ARGUMENT;
  THROWS(invalid, "the model is closed", model.generate(Ids{1}));
  THROWS(invalid, "the model is closed", model.text_completion("a"));
  THROWS(invalid, "the model is closed", model.chat_completion({{"user", "hi"}}));
  THROWS(invalid, "the model is closed", model.stream(Ids{1}));
  THROWS(invalid, "the model is closed", model.stream("a"));
  THROWS(invalid, "the model is closed", model.stream({{"user", "hi"}}));
  THROWS(invalid, "the model is closed", model.encode("a"));
  THROWS(invalid, "the model is closed", model.decode(Ids{1}));
  THROWS(invalid, "the model is closed", model.token_bytes(1));
  THROWS(invalid, "the model is closed", model.info());
  THROWS(invalid, "the model is closed", model.timings());

  const auto other = test::demo_model();
  auto stream = other.stream("Once", test::endless());
  stream.close();
  stream.close();
  Event ev;
  THROWS(invalid, "", stream.next(ev));
  THROWS(invalid, "", stream.stats());
  CHECK(stream.fd() == -1);
}

BEHAVIOUR(close_while_running) {
  auto model = test::demo_model(4, test::roomy);
  std::vector<std::thread> threads;
  std::atomic<int> started{0}, cancelled{0};
  for (int i = 0; i < 2; i++)
    threads.emplace_back([&] {
      auto o = test::endless();
      bool first = true;
      o.on_event = [&](const Event &) {
        if (std::exchange(first, false)) started++;
        return true;
      };
      cancelled += model.text_completion("Once", o).finish_reason == LLAMA_FINISH_CANCELLED;
    });
  for (int i = 0; i < 2; i++)
    threads.emplace_back([&] {
      auto stream = model.stream("Once", test::endless());
      bool first = true;
      for (const Event &ev : stream) {
        CHECK(ev.index == 0);
        if (std::exchange(first, false)) started++;
      }
      cancelled += stream.status() == LLAMA_CANCELLED;
    });
  CHECK(test::soon([&] { return started == 4; }));
  model.close();
  for (auto &t : threads) t.join();
  CHECK(cancelled == 4);
}

// What has only just begun ends as cancelled, too; what begins later is refused.
TEST(close_before_the_library) {
  const auto closing = [] {
    auto model = std::make_unique<llamabi::Model>(test::demo_model());
    before_the_library = [model = model.get()] { model->close(); };
    return model;
  };
  const auto o = test::endless();
  CHECK(closing()->text_completion("Once", o).finish_reason == LLAMA_FINISH_CANCELLED);
  auto several = o;
  several.num_return_sequences = 2;
  const auto all = closing()->text_completion(std::vector<std::string>{"Once", "Twice"}, several);
  CHECK(all.size() == 4);
  for (const Completion &c : all)
    CHECK(c.finish_reason == LLAMA_FINISH_CANCELLED && c.tokens.empty() && c.text.empty());
  const auto left = closing()->compress({{"Once"}, {"Twice"}});
  CHECK(left.size() == 2 && left.at(1).finish_reason == LLAMA_FINISH_CANCELLED);
  const auto opened = closing();
  auto stream = opened->stream("Once", o);
  CHECK(stream.begin() == stream.end() && stream.status() == LLAMA_CANCELLED);
  stream.stop(0);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model is closed", opened->stream("Once", o));
  // What has nothing to return says so.
  THROWS(LLAMA_CANCELLED, "the model was closed meanwhile", closing()->encode("Once"));
  THROWS(LLAMA_CANCELLED, "the model was closed meanwhile", closing()->timings());
  THROWS(LLAMA_CANCELLED, "the model was closed meanwhile", llamabi::Grammar::json(*closing()));
  THROWS(LLAMA_CANCELLED, "the model was closed meanwhile", closing()->add_adapter("somewhere"));
  // What is read of the model's memory is there until it has been read.
  const auto read = closing();
  const auto close = std::exchange(before_the_library, nullptr);
  const std::string bytes = read->token_bytes(300);
  before_the_library = [&] {
    close();
    CHECK(llama_health(read->get(), nullptr) == LLAMA_OK);
  };
  CHECK(read->token_bytes(300) == bytes && !bytes.empty());
  CHECK(llama_health(read->get(), nullptr) == LLAMA_E_INVALID_ARGUMENT);
  THROWS(LLAMA_E_INVALID_ARGUMENT, "the model is closed", read->token_bytes(300));
}

BEHAVIOUR(busy) {
  const auto model = test::demo_model(2, test::roomy);
  auto a = model.stream(openings[0], test::endless());
  auto b = model.stream(openings[1], test::endless());
  CHECK(a.begin() != a.end() && b.begin() != b.end());
  auto o = test::greedy(1);
  o.no_wait = true;
  THROWS(LLAMA_E_BUSY, "slot", model.text_completion(openings[0], o));
  THROWS(LLAMA_E_BUSY, "slot", model.stream(openings[0], o));
}

BEHAVIOUR(bad_arguments) {
  const auto model = test::demo_model(2);
  const auto with = [](auto change) {
    llamabi::GenerateOptions o;
    o.max_gen_len = 1;
    change(o);
    return o;
  };
  const auto invalid = LLAMA_E_INVALID_ARGUMENT;
  THROWS(invalid, "temperature", model.generate(Ids{1}, with([](auto &o) { o.temperature = -1; })));
  THROWS(invalid, "top_p", model.generate(Ids{1}, with([](auto &o) { o.top_p = 1.5; })));
  THROWS(invalid, "top_k", model.generate(Ids{1}, with([](auto &o) { o.top_k = -3; })));
  THROWS(invalid, "min_p", model.generate(Ids{1}, with([](auto &o) { o.min_p = 2; })));
  THROWS(invalid, "repetition_penalty",
      model.generate(Ids{1}, with([](auto &o) { o.repetition_penalty = 0; })));
  THROWS(invalid, "top_logprobs",
      model.generate(Ids{1}, with([](auto &o) { o.top_logprobs = 5000; })));
  // Of one prompt one result is given: nothing is computed and lost.
  const auto two = with([](auto &o) { o.num_return_sequences = 2; });
  const char *const list = "num_return_sequences is 2, must be 1 for one prompt";
  THROWS(invalid, list, model.generate(Ids{1}, two));
  THROWS(invalid, list, model.text_completion("a", two));
  THROWS(invalid, list, model.chat_completion({{"user", "a"}}, two));
  THROWS(invalid, list, model.chat("[]", {}, two));
  CHECK(model.text_completion({"a"}, two).size() == 2);
  THROWS(invalid, "NUL",
      model.generate(Ids{1}, with([](auto &o) { o.stop = {std::string("a\0b", 3)}; })));
  THROWS(invalid, "on_event",
      model.stream(Ids{1}, with([](auto &o) { o.on_event = [](auto &) { return true; }; })));
  THROWS(invalid, "on_event",
      model.stream("a", with([](auto &o) { o.on_event = [](auto &) { return true; }; })));
  THROWS(invalid, "1024", model.generate(Ids{1, 1024}));
  THROWS(invalid, "-1", model.stream(Ids{-1}));
  THROWS(invalid, "at least 1", model.generate(Ids{}));
  THROWS(invalid, "1024", model.decode(Ids{5, 1024}));
  THROWS(invalid, "-7", model.token_bytes(-7));
  THROWS(invalid, "role", model.chat_completion({{"robot", "hi"}}));
  THROWS(invalid, "role", model.stream({{"robot", "hi"}}));
  THROWS(invalid, "message", model.chat_completion(llamabi::Dialog{}));
  THROWS(invalid, "message", model.stream(llamabi::Dialog{}));
  THROWS(LLAMA_E_BATCH, "0", model.generate(std::vector<std::vector<Token>>{}));
  THROWS(LLAMA_E_BATCH, "0", model.text_completion(std::vector<std::string>{}));
  THROWS(LLAMA_E_BATCH, "0", model.chat_completion(std::vector<llamabi::Dialog>{}));
  THROWS(LLAMA_E_BATCH, "0", model.stream(std::vector<std::string>{}));
  THROWS(LLAMA_E_BATCH, "0", model.stream(std::vector<llamabi::Dialog>{}));
  THROWS(LLAMA_E_BATCH, "65537", model.text_completion(std::vector<std::string>(65537, "a")));
  THROWS(LLAMA_E_BATCH, "65537", model.stream(std::vector<std::string>(65537, "a")));
  THROWS(LLAMA_E_TOO_LONG, "513", model.generate(std::vector<Token>(513, 5)));
  THROWS(LLAMA_E_TOO_LONG, "512", model.stream(std::string(5000, '#')));
  THROWS(LLAMA_E_UTF8, "1", model.text_completion("a\xff"));
  THROWS(LLAMA_E_UTF8, "1", model.stream("a\xff"));
  THROWS(LLAMA_E_UTF8, "1", model.encode("a\xff"));
  THROWS(LLAMA_E_UTF8, "stop", model.generate(Ids{1}, with([](auto &o) { o.stop = {"\xc3"}; })));
  THROWS(LLAMA_E_UTF8, "content", model.chat_completion({{"user", "\xff"}}));
  THROWS(LLAMA_E_UTF8, "content", model.stream({{"user", "\xff"}}));
  auto stream = model.stream(std::vector<std::string>{"Anna", "Once"}, with([](auto &) {}));
  THROWS(invalid, "sequence 0 of the stream has not ended", stream.stats());
  for (const Event &ev : stream) CHECK(ev.index < 2);
  CHECK(stream.stats(1).generated_tokens == 1);
  THROWS(invalid, "sequence 2 of the stream", stream.stats(2));

  const auto open = [](const std::string &dir, auto change) {
    llamabi::Options o;
    change(o);
    return llamabi::Model(dir, o);
  };
  THROWS(invalid, "max_seq_len", open(test::demo(), [](auto &o) { o.max_seq_len = 0; }));
  THROWS(invalid, "max_batch_size", open(test::demo(), [](auto &o) { o.max_batch_size = 0; }));
  THROWS(invalid, "weights_dtype", open(test::demo(), [](auto &o) { o.weights_dtype = 77; }));
  THROWS(invalid, "model_parallel_size",
      open(test::demo(), [](auto &o) { o.model_parallel_size = 3; }));
  THROWS(invalid, "NUL", llamabi::Model(std::string("demo\0x", 6)));
  THROWS(invalid, "chat_template contains a NUL",
      open(test::demo(), [](auto &o) { o.chat_template = std::string("a\0b", 3); }));
  THROWS(LLAMA_E_UNSUPPORTED, "", open(test::demo(), [](auto &o) {
    o.device = LLAMA_DEVICE_CPU, o.weights_dtype = LLAMA_DTYPE_FP8;
  }));
  THROWS(LLAMA_E_NO_MEMORY, "", open(test::demo(), [](auto &o) { o.max_seq_len = 1U << 30; }));
  THROWS(LLAMA_E_FORMAT, "consolidated", open(test::demo(), [](auto &o) {
    o.tokenizer_path = test::demo() + "/consolidated.00.pth";
  }));
}

BEHAVIOUR(bounded_encode) {
  const auto model = test::demo_model(1);
  const std::string text = "Once upon a time";
  const auto whole = model.encode(text, true, true);
  CHECK(model.encode(text, true, true, whole.size()) == whole);
  CHECK(model.encode(text, true, true, SIZE_MAX, llamabi::Cancel()) == whole);
  THROWS(LLAMA_E_TOO_LONG, "max_tokens", model.encode(text, true, true, whole.size() - 1));
  llamabi::Cancel cancel;
  cancel.trigger();
  THROWS(LLAMA_CANCELLED, "", model.encode(text, true, true, SIZE_MAX, cancel));
}

BEHAVIOUR(missing_checkpoint) {
  THROWS(LLAMA_E_IO, "/nowhere/at-all", llamabi::Model("/nowhere/at-all"));
  llamabi::Options o;
  o.tokenizer_path = "/nowhere/tokenizer.model";
  THROWS(LLAMA_E_IO, "/nowhere/tokenizer.model", llamabi::Model(test::demo(), o));
}
