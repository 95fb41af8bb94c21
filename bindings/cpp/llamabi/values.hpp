// Part of llamabi.hpp: what goes into calls and comes out of them: tokens, messages, events,
// completions.
#ifndef LLAMABI_VALUES_HPP
#define LLAMABI_VALUES_HPP

#include <llamabi.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace llamabi {

using Token = std::int32_t;
using Alternative = llama_alternative;
using Info = llama_info;
using Timings = llama_timings;
using Rank = llama_rank;
using Stats = llama_request_stats;

/// Tokens that lie together: a vector, an array or a span of them. Borrowed for the call.
class Tokens {
public:
  template <class C, class = std::enable_if_t<std::is_convertible_v<
                         decltype(std::data(std::declval<const C &>())), const Token *>>>
  Tokens(const C &tokens) // NOLINT(google-explicit-constructor)
      : data_(std::data(tokens)), size_(std::size(tokens)) {}
  // The pointer is deduced, for {0} must not become one: it is the prompt of token 0.
  template <class T, class = std::enable_if_t<std::is_same_v<T, Token>>>
  explicit Tokens(const T *data, std::size_t size) : data_(data), size_(size) {}
  const Token *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

private:
  const Token *data_;
  std::size_t size_;
};

namespace detail {

/// For overloads that a list in braces must not be turned into: T is not deduced of one. Of braces
/// too many, {{"a", "b"}}, a vector of strings would make one string, of what lies in memory
/// between the two literals.
template <class T> using IfText = std::enable_if_t<std::is_convertible_v<T, std::string_view>, int>;
/// For a list in braces that is one prompt: of braces in braces T is not deduced.
template <class T> using IfToken = std::enable_if_t<std::is_same_v<T, Token>, int>;

/// One of a list of texts in braces; borrowed. A std::string_view would, since C++20, take two
/// literals in braces for the ends of one text.
struct Text : std::string_view {
  template <class T, IfText<const T &> = 0> Text(const T &text)
      : std::string_view(text) {} // NOLINT(google-explicit-constructor)
};

} // namespace detail

/// See `llama_bias`.
using Bias = llama_bias;
/// See `llama_logits`: `row.logits[t]` may be changed, for `t` below `row.n_logits`.
using Logits = llama_logits;

struct Message {
  /// "system", "user" or "assistant"; with a chat template any role that it takes.
  std::string role;
  std::string content;
  Message() = default;
  // With a constructor, braces too many are an error, not a string from two iterators.
  Message(std::string from, std::string text) : role(std::move(from)), content(std::move(text)) {}
};
using Dialog = std::vector<Message>;

/// Something that happened to one sequence of a call; see `llama_event`. Its own copy of
/// everything.
struct Event {
  /// `LLAMA_EVENT_TOKEN`, `LLAMA_EVENT_FINISH` or `LLAMA_EVENT_BEAM`
  std::int32_t kind = 0;
  std::uint32_t index = 0;
  Token token = 0;
  float logprob = 0;
  /// `LLAMA_FINISH_*` where `kind` is `LLAMA_EVENT_FINISH`, or of a beam that has finished.
  std::int32_t finish_reason = 0;
  std::string text{};
  std::vector<Alternative> top{};
  /// Of a beam: its place, and that of the beam that it goes on from.
  std::uint32_t beam = 0, parent = 0;
  /// Of a beam or of a sequence that has ended; see `llama_result_score`.
  float sum_logprob = 0, score = 0;
  /// Of a token: `LLAMA_DRAFT_*`.
  std::int32_t draft = LLAMA_DRAFT_NONE;
  /// Of a beam: the step of the search, from 1.
  std::uint32_t step = 0;

  void assign(const llama_event &ev) {
    kind = ev.kind;
    index = ev.index;
    token = ev.token;
    logprob = ev.logprob;
    finish_reason = ev.finish_reason;
    text.assign(ev.text, ev.text_len);
    top.assign(ev.top, ev.top + ev.n_top);
    beam = ev.beam;
    parent = ev.parent;
    sum_logprob = ev.sum_logprob;
    score = ev.score;
    draft = ev.draft;
    step = ev.step;
  }
};

/// What became of one sequence.
struct Completion {
  std::string text;
  std::vector<Token> tokens;
  /// One per token if `logprobs` was set, else none.
  std::vector<float> logprobs;
  /// Most likely tokens at each token, best first, if `top_logprobs` was set, else empty.
  std::vector<std::vector<Alternative>> top_logprobs;
  /// `LLAMA_FINISH_*`
  std::int32_t finish_reason = 0;
  /// See `llama_result_score`.
  float sum_logprob = 0, score = 0;
  Stats stats{};
};

} // namespace llamabi

#endif // LLAMABI_VALUES_HPP
