/*
 * llamabi for C++17 and later: values, exceptions and ownership around llamabi.h. Header only; link
 * libllamabi.
 *
 *   llamabi::Model model("demo/meta");
 *   for (auto &ev : model.stream("Once upon a time")) std::cout << ev.text << std::flush;
 *
 * Numbers keep the names that llamabi.h documents: LLAMA_DTYPE_F32, LLAMA_FINISH_STOP,
 * LLAMA_E_BUSY.
 *
 * Failures are llamabi::error, with the library's status and sentence. Being cancelled is no
 * failure: what was generated until then is returned. An exception thrown in a callback stops the
 * call and comes out of it.
 *
 * Threads: const functions of Model, and Model::close, may be called from any thread, any number at
 * a time; calls on one model share batches. Inside a callback only encode, decode, token_bytes,
 * info, timings, close and Cancel::trigger.
 */
#ifndef LLAMABI_HPP
#define LLAMABI_HPP

#include <llamabi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>
#if __cplusplus >= 202002L
#include <version>
#endif
#if defined(__cpp_lib_jthread)
#include <stop_token>
#endif

namespace llamabi {

/// What every function throws where the library reports a failure.
class error : public std::runtime_error {
public:
  error(llama_status status, const std::string &message)
      : std::runtime_error(message), status_(status) {}
  /// `LLAMA_E_*`; `LLAMA_CANCELLED` where loading or encoding was stopped.
  llama_status status() const noexcept { return status_; }

private:
  llama_status status_;
};

using Token = std::int32_t;
using Alternative = llama_alternative;
using Info = llama_info;
using Timings = llama_timings;
using Rank = llama_rank;
using Stats = llama_request_stats;

/// Version of the library that was loaded.
inline std::string version() { return llama_version(); }

namespace detail {

/// Throws unless the library that was loaded has the ABI this was compiled for.
inline void check_abi() {
  constexpr std::uint32_t ours = LLAMABI_ABI_VERSION;
  if (const std::uint32_t theirs = llama_abi_version(); theirs != ours)
    throw error(LLAMA_E_ABI, "libllamabi " + version() + " was loaded, of ABI version " +
                                 std::to_string(theirs) +
                                 "; this program was compiled for ABI version " +
                                 std::to_string(ours) + " (llamabi.h of " LLAMABI_VERSION ")");
}

inline llama_build_options build_defaults() {
  check_abi();
  llama_build_options o{};
  llama_build_options_init(&o, sizeof o, LLAMABI_ABI_VERSION);
  return o;
}

inline llama_generate_options generate_defaults() {
  check_abi();
  llama_generate_options o{};
  llama_generate_options_init(&o, sizeof o);
  return o;
}

/// One call into the library: where its error goes, and what a callback of it threw.
class Call {
public:
  Call() : outer_(std::exchange(current(), this)) { error_.struct_size = sizeof error_; }
  ~Call() { current() = outer_; }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;

  /// The innermost one on this thread. Log lines come on any thread that is inside a call.
  static Call *&current() noexcept {
    thread_local Call *call = nullptr;
    return call;
  }

  llama_error *err() noexcept { return &error_; }

  /// Runs a callback; false once one has thrown: nothing may unwind into the library.
  template <class F> bool guard(F &&callback) noexcept {
    if (thrown_) return false;
    try {
      return callback();
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
  }

  /// Rethrows what a callback threw, then throws if `status` is a failure.
  llama_status finish(llama_status status) {
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    if (status < 0) throw error(status, error_.message);
    return status;
  }

private:
  Call *outer_;
  llama_error error_{};
  std::exception_ptr thrown_;
};

template <auto free> struct Free {
  template <class T> void operator()(T *object) const noexcept { free(object); }
};

/// Text that C takes as NUL-terminated; a NUL inside would silently cut it.
inline const char *c_string(const std::string &text, const char *name) {
  if (text.find('\0') != std::string::npos)
    throw error(LLAMA_E_INVALID_ARGUMENT, std::string(name) + " contains a NUL byte");
  return text.c_str();
}

inline const char *data(std::string_view text) noexcept {
  return text.data() != nullptr ? text.data() : "";
}

} // namespace detail

/// A flag that stops the calls it is given to. Copies are the same flag; default-made ones are new.
class Cancel {
public:
  Cancel() : flag_(create(), llama_cancel_free) {}
#if defined(__cpp_lib_jthread)
  /// Triggered when a stop is requested, for as long as a copy lives.
  Cancel(const std::stop_token &token) { // NOLINT(google-explicit-constructor)
    auto linked = std::make_shared<Linked>(token);
    llama_cancel_t *flag = linked->flag.get();
    flag_ = std::shared_ptr<llama_cancel_t>(std::move(linked), flag);
  }
#endif
  /// From any thread, signal handler or callback; it stays triggered.
  void trigger() const noexcept { llama_cancel_trigger(flag_.get()); }
  llama_cancel_t *get() const noexcept { return flag_.get(); }

private:
  static llama_cancel_t *create() {
    detail::check_abi();
    llama_cancel_t *flag = llama_cancel_new();
    if (flag == nullptr) throw error(LLAMA_E_NO_MEMORY, "there are too many cancel flags");
    return flag;
  }
#if defined(__cpp_lib_jthread)
  struct Linked {
    struct Trigger {
      llama_cancel_t *flag;
      void operator()() const noexcept { llama_cancel_trigger(flag); }
    };
    std::unique_ptr<llama_cancel_t, detail::Free<llama_cancel_free>> flag{create()};
    std::stop_callback<Trigger> callback;
    explicit Linked(const std::stop_token &token) : callback(token, Trigger{flag.get()}) {}
  };
#endif
  std::shared_ptr<llama_cancel_t> flag_;
};

/// How to load a model; see `llama_build_options`. Defaults are the library's.
struct Options {
  /// Empty: the model's own.
  std::string tokenizer_path{};
  std::uint32_t max_seq_len = detail::build_defaults().max_seq_len;
  std::uint32_t max_batch_size = detail::build_defaults().max_batch_size;
  std::int32_t model_parallel_size = detail::build_defaults().model_parallel_size;
  /// `LLAMA_DEVICE_*`
  std::int32_t device = detail::build_defaults().device;
  std::int32_t device_index = detail::build_defaults().device_index;
  std::uint32_t n_threads = detail::build_defaults().n_threads;
  /// `LLAMA_DTYPE_*`
  std::int32_t weights_dtype = detail::build_defaults().weights_dtype;
  std::int32_t kv_dtype = detail::build_defaults().kv_dtype;
  std::uint64_t seed = detail::build_defaults().seed;
  std::optional<Cancel> cancel{};
  /// Hears the fraction that has been read; false stops the loading.
  std::function<bool(float fraction)> progress{};
  /// Hears the model's log lines, on any thread that is inside a call, perhaps several at once.
  std::function<void(std::int32_t level, std::string_view line)> log{};
  /// `LLAMA_LOG_*`
  std::int32_t log_level = detail::build_defaults().log_level;
  std::uint64_t gpu_memory_bytes = detail::build_defaults().gpu_memory_bytes;
  std::uint32_t max_waiting = detail::build_defaults().max_waiting;
  std::uint32_t max_stall_ms = detail::build_defaults().max_stall_ms;
  std::uint32_t max_unread_ms = detail::build_defaults().max_unread_ms;
  /// `LLAMA_PRECISION_*`
  std::int32_t precision = detail::build_defaults().precision;
  std::uint64_t stall_memory_bytes = detail::build_defaults().stall_memory_bytes;
  /// Text of a Jinja template for chats, instead of the model's; empty: the model's.
  std::string chat_template{};
  /// What `strftime_now` of a template sees, in seconds since 1970; 0: the clock.
  std::int64_t chat_now = detail::build_defaults().chat_now;
  /// Directories of LoRA adapters, merged into the weights in this order, and by how much each is
  /// weighted.
  std::vector<std::pair<std::string, float>> adapters{};
  /// NUMA nodes, each of which gets a rank with its share of the model; empty: one rank.
  std::vector<std::int32_t> devices{};
  /// How long a rank may be silent while others wait for it.
  std::uint32_t rank_timeout_ms = detail::build_defaults().rank_timeout_ms;
  /// How the ranks of several processes reach each other, as `llamabi_mpi.h` fills it in; not
  /// owned, copied by the call. This process is rank 0; the others call `llama_worker_run`.
  const llama_comm *comm = nullptr;
  /// A draft model: a smaller checkpoint with the same tokens, loaded beside; empty: none.
  std::string draft_dir{};
  /// `LLAMA_DTYPE_*`
  std::int32_t draft_weights_dtype = detail::build_defaults().draft_weights_dtype;
  std::int32_t draft_kv_dtype = detail::build_defaults().draft_kv_dtype;
  /// A directory of Medusa heads that were trained for the checkpoint; empty: none.
  std::string medusa_dir{};
  /// How long a step with a chunk of a prompt should take beside running streams.
  std::uint32_t max_step_ms = detail::build_defaults().max_step_ms;
};

/// What surrounds the messages of `Model::chat`; see `llama_chat_options`. Empty: not given.
struct ChatOptions {
  /// A JSON array.
  std::string tools{};
  /// A JSON object.
  std::string variables{};
  /// Text of a Jinja template, instead of the model's.
  std::string chat_template{};
  /// `LLAMA_CHAT_*`
  std::uint32_t flags = 0;
};

/// A part of a prompt to be compressed; see `llama_segment`.
struct Segment {
  std::string text;
  /// `LLAMA_SEGMENT_*`
  std::int32_t kind = LLAMA_SEGMENT_COMPRESS;
  Segment() = default;
  Segment(std::string of, std::int32_t as = LLAMA_SEGMENT_COMPRESS)
      : text(std::move(of)), kind(as) {}
};

/// How much is left of a prompt; see `llama_compress_options`.
struct CompressOptions {
  /// 0: `rate`.
  std::uint32_t target_tokens = 0;
  float rate = 0.5F;
  std::uint32_t window = 100;
  float coarse = 2;
  /// `LLAMA_COMPRESS_*`
  std::uint32_t flags = 0;
  std::optional<Cancel> cancel{};
};

class Model;

/// A language that generated text is kept in; see `llama_grammar_new`. For the model that it was
/// made for, and any number of its calls at a time.
class Grammar {
public:
  /// The JSON values of a JSON Schema, which is a text.
  static Grammar json_schema(const Model &model, std::string_view schema) {
    return Grammar(model, LLAMA_GRAMMAR_JSON_SCHEMA, schema);
  }
  /// Any JSON object.
  static Grammar json(const Model &model) { return Grammar(model, LLAMA_GRAMMAR_JSON, {}); }
  /// The texts that a regular expression matches as a whole.
  static Grammar regex(const Model &model, std::string_view expression) {
    return Grammar(model, LLAMA_GRAMMAR_REGEX, expression);
  }
  /// A grammar in llguidance's dialect of Lark.
  static Grammar lark(const Model &model, std::string_view grammar) {
    return Grammar(model, LLAMA_GRAMMAR_LARK, grammar);
  }
  /// The strings of a JSON array.
  static Grammar choice(const Model &model, std::string_view strings) {
    return Grammar(model, LLAMA_GRAMMAR_CHOICE, strings);
  }

  /// Which tokens may follow: bit `t % 32` of word `t / 32`; see `llama_grammar_mask`.
  std::vector<std::uint32_t> mask(const std::vector<Token> &tokens = {}) const;

  llama_grammar_t *get() const noexcept { return grammar_.get(); }

private:
  Grammar(const Model &model, std::int32_t kind, std::string_view source);
  std::shared_ptr<llama_grammar_t> grammar_;
};

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

/// Tokens that lie together: a vector, an array or a span of them. Borrowed for the call.
class Tokens {
public:
  template <class C, class = std::enable_if_t<std::is_convertible_v<
                         decltype(std::data(std::declval<const C &>())), const Token *>>>
  Tokens(const C &tokens) // NOLINT(google-explicit-constructor)
      : data_(std::data(tokens)), size_(std::size(tokens)) {}
  explicit Tokens(const Token *data, std::size_t size) : data_(data), size_(size) {}
  const Token *data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

private:
  const Token *data_;
  std::size_t size_;
};

/// See `llama_bias`.
using Bias = llama_bias;
/// See `llama_logits`: `row.logits[t]` may be changed, for `t` below `row.n_logits`.
using Logits = llama_logits;

/// How to generate; see `llama_generate_options`. Defaults are the library's.
struct GenerateOptions {
  std::uint32_t max_gen_len = detail::generate_defaults().max_gen_len;
  float temperature = detail::generate_defaults().temperature;
  float top_p = detail::generate_defaults().top_p;
  std::int32_t top_k = detail::generate_defaults().top_k;
  float min_p = detail::generate_defaults().min_p;
  float repetition_penalty = detail::generate_defaults().repetition_penalty;
  std::uint64_t seed = detail::generate_defaults().seed;
  std::vector<std::string> stop{};
  std::uint32_t top_logprobs = detail::generate_defaults().top_logprobs;
  std::uint64_t cache_salt = detail::generate_defaults().cache_salt;
  /// Completions of each prompt, which share its computation; for calls with a list of prompts.
  std::uint32_t num_return_sequences = detail::generate_defaults().num_return_sequences;
  /// Above 1: a beam search, whose best results come instead of samples.
  std::uint32_t num_beams = detail::generate_defaults().num_beams;
  float length_penalty = detail::generate_defaults().length_penalty;
  /// `LLAMA_EARLY_*`
  std::int32_t early_stopping = detail::generate_defaults().early_stopping;
  /// Groups of phrases, of each of which every result of a search has one.
  std::vector<std::vector<std::vector<Token>>> force_words{};
  /// The text is of this language; made for the model that is called.
  std::optional<Grammar> grammar{};
  std::uint32_t min_gen_len = detail::generate_defaults().min_gen_len;
  std::uint32_t no_repeat_ngram_size = detail::generate_defaults().no_repeat_ngram_size;
  float presence_penalty = detail::generate_defaults().presence_penalty;
  float frequency_penalty = detail::generate_defaults().frequency_penalty;
  float typical_p = detail::generate_defaults().typical_p;
  float epsilon_cutoff = detail::generate_defaults().epsilon_cutoff;
  float eta_cutoff = detail::generate_defaults().eta_cutoff;
  std::uint32_t max_time_ms = detail::generate_defaults().max_time_ms;
  std::vector<Bias> logit_bias{};
  std::vector<Token> stop_tokens{};
  std::vector<std::vector<Token>> bad_words{};
  /// An id of `Model::add_adapter`; 0: none.
  std::uint32_t adapter = detail::generate_defaults().adapter;
  /// `LLAMA_SPEC_*`
  std::int32_t speculation = detail::generate_defaults().speculation;
  std::uint32_t draft_len = detail::generate_defaults().draft_len;
  std::vector<Token> predicted{};
  /// Contrastive decoding with the draft model; 0: off.
  float contrast_beta = detail::generate_defaults().contrast_beta;
  float contrast_alpha = detail::generate_defaults().contrast_alpha;
  /// `LLAMA_GEN_*`
  bool echo = false, logprobs = false, no_wait = false, ignore_eos = false, special = false,
       beam_events = false;
  std::optional<Cancel> cancel{};
  /// Hears every event, on the calling thread; false stops the call. Not for streams.
  std::function<bool(const Event &)> on_event{};
  /// May change the logits that a token is drawn from, on the thread that is inside the call or
  /// `Stream::next`; false stops the call. See `llama_logits_fn`.
  std::function<bool(const Logits &row)> on_logits{};
  /// Whether the last of a sequence's tokens, of which `n_prompt` are the prompt's, ends it; as
  /// `on_logits`. See `llama_stop_fn`.
  std::function<bool(std::uint32_t index, const Tokens &tokens, std::size_t n_prompt)> on_stop{};
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

struct Message {
  /// "system", "user" or "assistant"
  std::string role;
  std::string content;
  Message() = default;
  // With a constructor, braces too many are an error, not a string from two iterators.
  Message(std::string from, std::string text) : role(std::move(from)), content(std::move(text)) {}
};
using Dialog = std::vector<Message>;

namespace detail {

using Log = std::function<void(std::int32_t, std::string_view)>;

/// Frees a model, and only then lets go of what its log lines are given to.
struct Destroy {
  std::shared_ptr<const Log> log;
  /// Set by `close`, which may run beside other calls.
  std::unique_ptr<std::atomic<bool>> closed = std::make_unique<std::atomic<bool>>(false);
  void operator()(llama_t *model) const noexcept { llama_destroy(model); }
};

inline void on_log(void *user_data, std::int32_t level, const char *msg, std::size_t len) noexcept {
  const auto hear = [&] {
    (*static_cast<const Log *>(user_data))(level, std::string_view(msg, len));
    return true;
  };
  if (Call *call = Call::current()) {
    call->guard(hear);
  } else { // from a destructor, where an exception has nowhere to go
    Call nobody;
    nobody.guard(hear);
  }
}

inline std::int32_t on_progress(void *user_data, float fraction) noexcept {
  const auto *o = static_cast<const Options *>(user_data);
  return Call::current()->guard([&] { return o->progress(fraction); });
}

/// What the callbacks of a call get as their data. An exception of one stops the call, or ends the
/// sequence and is thrown by the function that is under way.
class Callbacks {
public:
  /// `kept`: for longer than the options.
  Callbacks(const GenerateOptions &o, bool kept) : options_(kept ? &own_ : &o) {
    if (!kept) return;
    own_.on_logits = o.on_logits;
    own_.on_stop = o.on_stop;
  }
  Callbacks(const Callbacks &) = delete;
  Callbacks &operator=(const Callbacks &) = delete;

  static std::int32_t on_event(void *user_data, const llama_event *ev) noexcept {
    auto *self = static_cast<Callbacks *>(user_data);
    return Call::current()->guard([&] {
      if (!self->options_->on_event) return true;
      self->event_.assign(*ev);
      return self->options_->on_event(self->event_);
    });
  }

  static std::int32_t on_logits(void *user_data, const llama_logits *row) noexcept {
    const auto *self = static_cast<const Callbacks *>(user_data);
    return Call::current()->guard([&] { return self->options_->on_logits(*row); });
  }

  static std::int32_t on_stop(void *user_data, std::uint32_t index, const Token *tokens,
      std::size_t n, std::size_t n_prompt) noexcept {
    const auto *self = static_cast<const Callbacks *>(user_data);
    return !Call::current()->guard(
        [&] { return !self->options_->on_stop(index, Tokens(tokens, n), n_prompt); });
  }

private:
  GenerateOptions own_;
  const GenerateOptions *options_;
  Event event_;
};

/// A `llama_generate_options` and what its pointers point to.
class GenerateArguments {
public:
  GenerateArguments(const GenerateOptions &o, bool pulled)
      : callbacks_(std::make_unique<Callbacks>(o, pulled)), c_(generate_defaults()) {
    c_.flags = (o.echo ? LLAMA_GEN_ECHO : 0U) | (o.logprobs ? LLAMA_GEN_LOGPROBS : 0U) |
               (o.no_wait ? LLAMA_GEN_NO_WAIT : 0U) | (o.ignore_eos ? LLAMA_GEN_IGNORE_EOS : 0U) |
               (o.special ? LLAMA_GEN_SPECIAL : 0U) | (o.beam_events ? LLAMA_GEN_BEAM_EVENTS : 0U);
    c_.max_gen_len = o.max_gen_len;
    c_.temperature = o.temperature;
    c_.top_p = o.top_p;
    c_.top_k = o.top_k;
    c_.min_p = o.min_p;
    c_.repetition_penalty = o.repetition_penalty;
    c_.seed = o.seed;
    c_.top_logprobs = o.top_logprobs;
    c_.cache_salt = o.cache_salt;
    c_.adapter = o.adapter;
    c_.speculation = o.speculation;
    c_.draft_len = o.draft_len;
    c_.predicted = o.predicted.data();
    c_.n_predicted = o.predicted.size();
    c_.contrast_beta = o.contrast_beta;
    c_.contrast_alpha = o.contrast_alpha;
    c_.num_return_sequences = o.num_return_sequences;
    c_.num_beams = o.num_beams;
    c_.length_penalty = o.length_penalty;
    c_.early_stopping = o.early_stopping;
    for (const auto &group : o.force_words) {
      for (const std::vector<Token> &word : group) {
        force_words_.insert(force_words_.end(), word.begin(), word.end());
        force_word_lens_.push_back(word.size());
      }
      force_group_lens_.push_back(group.size());
    }
    c_.force_words = force_words_.data();
    c_.force_word_lens = force_word_lens_.data();
    c_.force_group_lens = force_group_lens_.data();
    c_.n_force_groups = force_group_lens_.size();
    if (o.grammar) c_.grammar = o.grammar->get();
    c_.min_gen_len = o.min_gen_len;
    c_.no_repeat_ngram_size = o.no_repeat_ngram_size;
    c_.presence_penalty = o.presence_penalty;
    c_.frequency_penalty = o.frequency_penalty;
    c_.typical_p = o.typical_p;
    c_.epsilon_cutoff = o.epsilon_cutoff;
    c_.eta_cutoff = o.eta_cutoff;
    c_.max_time_ms = o.max_time_ms;
    c_.logit_bias = o.logit_bias.data();
    c_.n_logit_bias = o.logit_bias.size();
    c_.stop_tokens = o.stop_tokens.data();
    c_.n_stop_tokens = o.stop_tokens.size();
    for (const std::vector<Token> &word : o.bad_words) {
      bad_words_.insert(bad_words_.end(), word.begin(), word.end());
      bad_word_lens_.push_back(word.size());
    }
    c_.bad_words = bad_words_.data();
    c_.bad_word_lens = bad_word_lens_.data();
    c_.n_bad_words = bad_word_lens_.size();
    for (const std::string &text : o.stop) stop_.push_back(c_string(text, "a stop string"));
    c_.stop = stop_.data();
    c_.n_stop = stop_.size();
    if (o.cancel) c_.cancel = o.cancel->get();
    // Without a listener too, for an exception in `log` to stop the call; streams refuse one.
    if (o.on_event || !pulled) c_.on_event = Callbacks::on_event;
    if (o.on_logits) c_.on_logits = Callbacks::on_logits;
    if (o.on_stop) c_.on_stop = Callbacks::on_stop;
    c_.user_data = callbacks_.get();
  }
  GenerateArguments(const GenerateArguments &) = delete;
  GenerateArguments &operator=(const GenerateArguments &) = delete;
  const llama_generate_options *get() const noexcept { return &c_; }
  /// For a stream, which calls them later.
  std::unique_ptr<Callbacks> take_callbacks() noexcept { return std::move(callbacks_); }

private:
  std::unique_ptr<Callbacks> callbacks_;
  llama_generate_options c_;
  std::vector<const char *> stop_;
  std::vector<Token> bad_words_;
  std::vector<std::size_t> bad_word_lens_;
  std::vector<Token> force_words_;
  std::vector<std::size_t> force_word_lens_, force_group_lens_;
};

/// Prompts of tokens, end to end, as C takes them.
struct TokenPrompts {
  std::vector<Token> tokens;
  std::vector<std::size_t> lens;
  explicit TokenPrompts(const std::vector<std::vector<Token>> &prompts) {
    for (const auto &p : prompts) {
      tokens.insert(tokens.end(), p.begin(), p.end());
      lens.push_back(p.size());
    }
  }
};

/// Texts as C takes them; borrowed.
struct Texts {
  std::vector<const char *> prompts;
  std::vector<std::size_t> lens;
  template <class Strings> explicit Texts(const Strings &texts) {
    for (const std::string_view text : texts) {
      prompts.push_back(detail::data(text));
      lens.push_back(text.size());
    }
  }
  explicit Texts(std::string_view text) : prompts{detail::data(text)}, lens{text.size()} {}
};

/// What surrounds messages, as C takes it; borrowed.
inline llama_chat_options chat_options(const ChatOptions &chat) {
  llama_chat_options c;
  llama_chat_options_init(&c, sizeof c);
  c.flags = chat.flags;
  const auto set = [](const std::string &text, const char *&p, std::size_t &len) {
    if (!text.empty()) p = text.data(), len = text.size();
  };
  set(chat.tools, c.tools, c.tools_len);
  set(chat.variables, c.variables, c.variables_len);
  set(chat.chat_template, c.chat_template, c.chat_template_len);
  return c;
}

/// Dialogs end to end, as C takes them; borrowed.
struct Dialogs {
  std::vector<llama_message> messages;
  std::vector<std::size_t> lens;
  Dialogs(const Dialog *dialogs, std::size_t n) {
    for (std::size_t i = 0; i < n; i++) {
      for (const Message &m : dialogs[i])
        messages.push_back({m.role.c_str(), m.content.c_str(), m.role.size(), m.content.size()});
      lens.push_back(dialogs[i].size());
    }
  }
};

using Result = std::unique_ptr<llama_result_t, Free<llama_result_free>>;

inline void check(llama_status status) {
  if (status < 0) throw error(status, llama_status_string(status));
}

inline std::vector<Completion> completions(const llama_result_t *r, bool with_alternatives) {
  std::vector<Completion> all(llama_result_count(r));
  for (std::size_t i = 0; i < all.size(); i++) {
    Completion &c = all[i];
    const Token *tokens = nullptr;
    const float *logprobs = nullptr;
    const char *text = nullptr;
    std::size_t n = 0;
    check(llama_result_tokens(r, i, &tokens, &n));
    c.tokens.assign(tokens, tokens + n);
    check(llama_result_logprobs(r, i, &logprobs, &n));
    c.logprobs.assign(logprobs, logprobs + n);
    check(llama_result_text(r, i, &text, &n));
    c.text.assign(text, n);
    if (with_alternatives) c.top_logprobs.resize(c.tokens.size());
    for (std::size_t at = 0; at < c.top_logprobs.size(); at++) {
      const Alternative *top = nullptr;
      check(llama_result_top_logprobs(r, i, at, &top, &n));
      c.top_logprobs[at].assign(top, top + n);
    }
    c.finish_reason = llama_result_finish_reason(r, i);
    check(llama_result_score(r, i, &c.sum_logprob, &c.score));
    c.stats.struct_size = sizeof c.stats;
    check(llama_result_stats(r, i, &c.stats));
  }
  return all;
}

/// Fills a buffer that is grown once if `guess` elements are too few.
template <class Buffer, class F> Buffer filled(std::size_t guess, F &&call) {
  Buffer buffer(guess, typename Buffer::value_type());
  std::size_t n = 0;
  Call c;
  llama_status status = call(buffer.data(), buffer.size(), &n, c.err());
  if (status == LLAMA_E_INVALID_ARGUMENT && n > buffer.size()) {
    buffer.resize(n);
    status = call(buffer.data(), buffer.size(), &n, c.err());
  }
  if (c.finish(status) == LLAMA_CANCELLED) throw error(LLAMA_CANCELLED, "encoding was cancelled");
  buffer.resize(n);
  return buffer;
}

} // namespace detail

/// Events of a call, pulled: `for (auto &ev : stream)`. Use it from one thread at a time. It may
/// outlive its model, and then ends as cancelled; destroying it cancels what still runs.
class Stream {
public:
  class iterator {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Event;
    using difference_type = std::ptrdiff_t;
    using pointer = Event *;
    using reference = Event &;
    iterator() = default;
    reference operator*() const noexcept { return stream_->event_; }
    pointer operator->() const noexcept { return &stream_->event_; }
    iterator &operator++() {
      if (stream_->next(stream_->event_) != LLAMA_OK) stream_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator &a, const iterator &b) noexcept {
      return a.stream_ == b.stream_;
    }
    friend bool operator!=(const iterator &a, const iterator &b) noexcept { return !(a == b); }

  private:
    friend class Stream;
    explicit iterator(Stream *stream) noexcept : stream_(stream) {}
    Stream *stream_ = nullptr;
  };

  /// Waits for the first event. The event is overwritten by the next one.
  iterator begin() { return ++iterator(this); }
  iterator end() noexcept { return {}; }

  /// Takes the next event. `LLAMA_OK`; `LLAMA_TIMEOUT`; for ever `LLAMA_DONE`, or
  /// `LLAMA_CANCELLED`, once the stream has ended. A negative timeout waits as long as it takes.
  llama_status next(Event &ev, std::chrono::milliseconds timeout = std::chrono::milliseconds(-1)) {
    if (unopened_) return status_;
    llama_event c{};
    c.struct_size = sizeof c;
    const auto ms = std::clamp<std::chrono::milliseconds::rep>(timeout.count(), -1, INT32_MAX);
    detail::Call call;
    status_ = llama_stream_next(stream_.get(), &c, static_cast<std::int32_t>(ms), call.err());
    if (status_ == LLAMA_OK) ev.assign(c);
    return call.finish(status_);
  }

  /// Figures of a sequence whose `LLAMA_EVENT_FINISH` has been taken, until `close`; any thread.
  Stats stats(std::size_t index = 0) const {
    Stats stats{};
    stats.struct_size = sizeof stats;
    if (const llama_status status = llama_stream_stats(stream_.get(), index, &stats); status < 0)
      throw error(status, "sequence " + std::to_string(index) +
                              " of the stream has not ended, or there is none, or it is closed");
    return stats;
  }
  /// What `next` returned last: after a loop, whether the stream is done or was cancelled.
  llama_status status() const noexcept { return status_; }
  /// Readable while `next` would not wait, for poll and epoll. Not to be read, written or closed.
  int fd() const noexcept { return llama_stream_fd(stream_.get()); }
  /// Ends a sequence behind the events that were taken of it, from any thread; see
  /// `llama_stream_stop`.
  void stop(std::size_t index) const { detail::check(llama_stream_stop(stream_.get(), index)); }
  /// Cancels what still runs; from any thread. A `next` that waits returns `LLAMA_CANCELLED`.
  void close() noexcept { llama_stream_free(stream_.get()); }
  llama_stream_t *get() const noexcept { return stream_.get(); }

private:
  friend class Model;
  template <class F>
  Stream(const GenerateOptions &o, std::shared_ptr<const detail::Log> log, F &&open)
      : log_(std::move(log)), cancel_(o.cancel) {
    detail::GenerateArguments arguments(o, true);
    detail::Call call;
    llama_stream_t *out = nullptr;
    status_ = open(arguments.get(), &out, call.err());
    stream_.reset(out);
    callbacks_ = arguments.take_callbacks();
    call.finish(status_);
    unopened_ = out == nullptr; // the model was closed meanwhile: cancelled
  }

  std::shared_ptr<const detail::Log> log_;
  std::optional<Cancel> cancel_;
  std::unique_ptr<detail::Callbacks> callbacks_;
  std::unique_ptr<llama_stream_t, detail::Free<llama_stream_free>> stream_;
  Event event_;
  llama_status status_ = LLAMA_OK;
  bool unopened_ = false;
};

/// A loaded model. Move-only; on a closed or moved-from one every call throws, and says so.
class Model {
public:
  /// Loads a checkpoint, see `llama_build`.
  explicit Model(const std::string &ckpt_dir, const Options &options = {}) {
    llama_build_options o = detail::build_defaults();
    o.max_seq_len = options.max_seq_len;
    o.max_batch_size = options.max_batch_size;
    o.model_parallel_size = options.model_parallel_size;
    o.device = options.device;
    o.device_index = options.device_index;
    o.n_threads = options.n_threads;
    o.weights_dtype = options.weights_dtype;
    o.kv_dtype = options.kv_dtype;
    o.seed = options.seed;
    o.log_level = options.log_level;
    o.gpu_memory_bytes = options.gpu_memory_bytes;
    o.max_waiting = options.max_waiting;
    o.max_stall_ms = options.max_stall_ms;
    o.max_unread_ms = options.max_unread_ms;
    o.precision = options.precision;
    o.stall_memory_bytes = options.stall_memory_bytes;
    if (!options.chat_template.empty()) o.chat_template = options.chat_template.c_str();
    o.chat_now = options.chat_now;
    std::vector<const char *> adapters;
    std::vector<float> scales;
    for (const auto &[dir, scale] : options.adapters) {
      adapters.push_back(detail::c_string(dir, "adapters"));
      scales.push_back(scale);
    }
    o.adapters = adapters.data();
    o.adapter_scales = scales.data();
    o.n_adapters = adapters.size();
    o.devices = options.devices.data();
    o.n_devices = static_cast<std::uint32_t>(options.devices.size());
    o.rank_timeout_ms = options.rank_timeout_ms;
    o.comm = options.comm;
    if (!options.draft_dir.empty()) o.draft_dir = detail::c_string(options.draft_dir, "draft_dir");
    o.draft_weights_dtype = options.draft_weights_dtype;
    o.draft_kv_dtype = options.draft_kv_dtype;
    if (!options.medusa_dir.empty())
      o.medusa_dir = detail::c_string(options.medusa_dir, "medusa_dir");
    o.max_step_ms = options.max_step_ms;
    if (options.cancel) o.cancel = options.cancel->get();
    if (options.progress) {
      o.progress = detail::on_progress;
      o.progress_user_data = const_cast<Options *>(&options);
    }
    if (options.log) {
      auto log = std::make_shared<detail::Log>(options.log);
      o.log = detail::on_log;
      o.log_user_data = log.get();
      handle_.get_deleter().log = std::move(log);
    }
    const char *tokenizer = options.tokenizer_path.empty()
                                ? nullptr
                                : detail::c_string(options.tokenizer_path, "tokenizer_path");
    detail::Call call;
    llama_t *out = nullptr;
    const llama_status status =
        llama_build(detail::c_string(ckpt_dir, "ckpt_dir"), tokenizer, &o, &out, call.err());
    handle_.reset(out);
    if (call.finish(status) == LLAMA_CANCELLED)
      throw error(LLAMA_CANCELLED, "loading " + ckpt_dir + " was cancelled");
  }

  /// Cancels what runs and unloads; again does nothing. Calls and streams that run end as
  /// cancelled.
  void close() {
    if (!handle_) return;
    handle_.get_deleter().closed->store(true);
    detail::Call call;
    llama_destroy(handle_.get());
    call.finish(LLAMA_OK);
  }

  /// Loads a LoRA adapter for calls to choose (`GenerateOptions::adapter`), and gives its id; see
  /// `llama_adapter_add`.
  std::uint32_t add_adapter(const std::string &dir, float scale = 1) const {
    std::uint32_t id = 0;
    detail::Call call;
    call.finish(llama_adapter_add(live(), detail::c_string(dir, "dir"), scale, &id, call.err()));
    return id;
  }
  /// No new call may name the adapter; see `llama_adapter_drop`.
  void drop_adapter(std::uint32_t id) const {
    detail::Call call;
    call.finish(llama_adapter_drop(live(), id, call.err()));
  }

  /// Continue tokens; see `llama_generate`.
  Completion generate(Tokens prompt, const GenerateOptions &options = {}) const {
    const std::size_t len = prompt.size();
    return std::move(run_tokens(prompt.data(), &len, 1, options).at(0));
  }
  std::vector<Completion> generate(
      const std::vector<std::vector<Token>> &prompts, const GenerateOptions &options = {}) const {
    const detail::TokenPrompts p(prompts);
    return run_tokens(p.tokens.data(), p.lens.data(), p.lens.size(), options);
  }

  /// Continue texts; see `llama_text_completion`.
  Completion text_completion(std::string_view prompt, const GenerateOptions &options = {}) const {
    return std::move(run_texts(detail::Texts(prompt), options).at(0));
  }
  std::vector<Completion> text_completion(
      const std::vector<std::string> &prompts, const GenerateOptions &options = {}) const {
    return run_texts(detail::Texts(prompts), options);
  }
  std::vector<Completion> text_completion(
      std::initializer_list<std::string_view> prompts, const GenerateOptions &options = {}) const {
    return run_texts(detail::Texts(prompts), options);
  }

  /// Answer dialogs; see `llama_chat_completion`.
  Completion chat_completion(const Dialog &dialog, const GenerateOptions &options = {}) const {
    return std::move(run_dialogs({&dialog, 1}, options).at(0));
  }
  Completion chat_completion(
      std::initializer_list<Message> dialog, const GenerateOptions &options = {}) const {
    return chat_completion(Dialog(dialog), options);
  }
  std::vector<Completion> chat_completion(
      const std::vector<Dialog> &dialogs, const GenerateOptions &options = {}) const {
    return run_dialogs({dialogs.data(), dialogs.size()}, options);
  }

  /// Answer messages, a JSON array in OpenAI's shape, by the chat template; see `llama_chat`.
  Completion chat(std::string_view messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    return std::move(run_messages(detail::Texts(messages), chat, options).at(0));
  }
  std::vector<Completion> chat(const std::vector<std::string> &messages,
      const ChatOptions &chat = {}, const GenerateOptions &options = {}) const {
    return run_messages(detail::Texts(messages), chat, options);
  }
  /// The same as events; see `llama_stream_open_messages`.
  Stream stream_chat(std::string_view messages, const ChatOptions &chat = {},
      const GenerateOptions &options = {}) const {
    const detail::Texts p(messages);
    const llama_chat_options c = detail::chat_options(chat);
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_messages(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), &c, o, out, err);
    });
  }
  /// The text that the template makes of messages; see `llama_render_chat`.
  std::string render_chat(std::string_view messages, const ChatOptions &chat = {}) const {
    const llama_chat_options c = detail::chat_options(chat);
    return detail::filled<std::string>(
        messages.size() + 1024, [&](char *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_render_chat(
              live(), detail::data(messages), messages.size(), &c, buf, cap, n, err);
        });
  }
  /// The tokens of that text; see `llama_encode_chat`.
  std::vector<Token> encode_chat(std::string_view messages, const ChatOptions &chat = {}) const {
    const llama_chat_options c = detail::chat_options(chat);
    return detail::filled<std::vector<Token>>(
        messages.size() + 256, [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_chat(
              live(), detail::data(messages), messages.size(), &c, buf, cap, n, err);
        });
  }

  /// Shortens a prompt: what is left of each segment; see `llama_compress`.
  std::vector<Completion> compress(
      const std::vector<Segment> &segments, const CompressOptions &options = {}) const {
    std::vector<llama_segment> borrowed;
    for (const Segment &s : segments) borrowed.push_back({s.text.data(), s.text.size(), s.kind, 0});
    llama_compress_options o;
    llama_compress_options_init(&o, sizeof o);
    o.target_tokens = options.target_tokens;
    o.rate = options.rate;
    o.window = options.window;
    o.coarse = options.coarse;
    o.flags = options.flags;
    if (options.cancel) o.cancel = options.cancel->get();
    detail::Call call;
    llama_result_t *out = nullptr;
    const llama_status status =
        llama_compress(live(), borrowed.data(), borrowed.size(), &o, &out, call.err());
    const detail::Result result(out);
    call.finish(status);
    return detail::completions(out, false);
  }

  /// Start a call on tokens and pull its events; see `llama_stream_open`.
  Stream stream(Tokens prompt, const GenerateOptions &options = {}) const {
    const std::size_t len = prompt.size();
    return stream_tokens(prompt.data(), &len, 1, options);
  }
  Stream stream(
      const std::vector<std::vector<Token>> &prompts, const GenerateOptions &options = {}) const {
    const detail::TokenPrompts p(prompts);
    return stream_tokens(p.tokens.data(), p.lens.data(), p.lens.size(), options);
  }
  /// The same on texts; see `llama_stream_open_text`.
  Stream stream(std::string_view prompt, const GenerateOptions &options = {}) const {
    return stream_texts(detail::Texts(prompt), options);
  }
  Stream stream(
      const std::vector<std::string> &prompts, const GenerateOptions &options = {}) const {
    return stream_texts(detail::Texts(prompts), options);
  }
  /// The same on dialogs; see `llama_stream_open_chat`.
  Stream stream(const Dialog &dialog, const GenerateOptions &options = {}) const {
    return stream_dialogs({&dialog, 1}, options);
  }
  Stream stream(std::initializer_list<Message> dialog, const GenerateOptions &options = {}) const {
    return stream(Dialog(dialog), options);
  }
  Stream stream(const std::vector<Dialog> &dialogs, const GenerateOptions &options = {}) const {
    return stream_dialogs({dialogs.data(), dialogs.size()}, options);
  }

  /// Tokens of a text; see `llama_encode_text`.
  std::vector<Token> encode(std::string_view text, bool bos = false, bool eos = false) const {
    return encode_up_to(SIZE_MAX, nullptr, text, bos, eos, false);
  }
  /// Tokens of a text, `max_tokens` at most (else LLAMA_E_TOO_LONG), unless `cancel` is triggered
  /// (LLAMA_CANCELLED); see `llama_encode_text_bounded`.
  std::vector<Token> encode(std::string_view text, bool bos, bool eos, std::size_t max_tokens,
      const std::optional<Cancel> &cancel = {}) const {
    return encode_up_to(max_tokens, cancel ? cancel->get() : nullptr, text, bos, eos, false);
  }
  /// The same two with `LLAMA_ENC_SPECIAL`: for texts that may spell special tokens.
  std::vector<Token> encode_special(std::string_view text, bool bos = false, bool eos = false,
      std::size_t max_tokens = SIZE_MAX, const std::optional<Cancel> &cancel = {}) const {
    return encode_up_to(max_tokens, cancel ? cancel->get() : nullptr, text, bos, eos, true);
  }
  /// Tokens of a dialog; see `llama_encode_dialog`.
  std::vector<Token> encode(const Dialog &dialog) const {
    const std::vector<llama_message> m = detail::Dialogs(&dialog, 1).messages;
    return detail::filled<std::vector<Token>>(
        256, [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_dialog(live(), m.data(), m.size(), buf, cap, n, err);
        });
  }
  /// Text of tokens; see `llama_decode_tokens`.
  std::string decode(Tokens tokens) const {
    return detail::filled<std::string>(
        8 * tokens.size() + 8, [&](char *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_decode_tokens(live(), tokens.data(), tokens.size(), buf, cap, n, err);
        });
  }
  /// What a token contributes in the middle of a text, perhaps part of a code point.
  std::string token_bytes(Token token) const {
    const char *p = nullptr;
    std::size_t n = 0;
    detail::Call call;
    call.finish(llama_token_bytes(live(), token, &p, &n, call.err()));
    return {p, n};
  }

  Info info() const {
    Info info{};
    info.struct_size = sizeof info;
    detail::Call call;
    call.finish(llama_get_info(live(), &info, call.err()));
    return info;
  }
  Timings timings() const {
    Timings timings{};
    timings.struct_size = sizeof timings;
    detail::Call call;
    call.finish(llama_get_timings(live(), &timings, call.err()));
    return timings;
  }

  /// What is known of a rank; see `llama_get_rank`.
  Rank rank(std::uint32_t number) const {
    Rank rank{};
    rank.struct_size = sizeof rank;
    detail::Call call;
    call.finish(llama_get_rank(live(), number, &rank, call.err()));
    return rank;
  }
  /// Throws what has made the model unusable, if anything has; see `llama_health`.
  void check_health() const {
    detail::Call call;
    call.finish(llama_health(live(), call.err()));
  }

  /// For llamabi.h itself.
  llama_t *get() const noexcept { return handle_.get(); }

private:
  friend class Grammar;

  /// The handle, for calls. One that is closed during a call ends it as cancelled, or the library
  /// refuses it.
  llama_t *live() const {
    if (!handle_) throw error(LLAMA_E_INVALID_ARGUMENT, "the model was moved from");
    if (*handle_.get_deleter().closed) throw error(LLAMA_E_INVALID_ARGUMENT, "the model is closed");
    return handle_.get();
  }

  template <class F>
  std::vector<Completion> run(const GenerateOptions &options, F &&function) const {
    detail::GenerateArguments arguments(options, false);
    detail::Call call;
    llama_result_t *out = nullptr;
    const llama_status status = function(arguments.get(), &out, call.err());
    const detail::Result result(out);
    call.finish(status);
    return detail::completions(out, options.top_logprobs != 0);
  }
  std::vector<Completion> run_tokens(const Token *tokens, const std::size_t *lens, std::size_t n,
      const GenerateOptions &options) const {
    return run(options, [&](auto *o, auto *out, auto *err) {
      return llama_generate(live(), tokens, lens, n, o, out, err);
    });
  }
  std::vector<Completion> run_texts(const detail::Texts &p, const GenerateOptions &options) const {
    return run(options, [&](auto *o, auto *out, auto *err) {
      return llama_text_completion(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }
  std::vector<Completion> run_dialogs(
      const detail::Dialogs &p, const GenerateOptions &options) const {
    return run(options, [&](auto *o, auto *out, auto *err) {
      return llama_chat_completion(
          live(), p.messages.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }

  std::vector<Completion> run_messages(
      const detail::Texts &p, const ChatOptions &chat, const GenerateOptions &options) const {
    const llama_chat_options c = detail::chat_options(chat);
    return run(options, [&](auto *o, auto *out, auto *err) {
      return llama_chat(live(), p.prompts.data(), p.lens.data(), p.lens.size(), &c, o, out, err);
    });
  }

  template <class F> Stream open(const GenerateOptions &options, F &&function) const {
    return Stream(options, handle_.get_deleter().log, std::forward<F>(function));
  }
  Stream stream_tokens(const Token *tokens, const std::size_t *lens, std::size_t n,
      const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open(live(), tokens, lens, n, o, out, err);
    });
  }
  Stream stream_texts(const detail::Texts &p, const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_text(
          live(), p.prompts.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }
  Stream stream_dialogs(const detail::Dialogs &p, const GenerateOptions &options) const {
    return open(options, [&](auto *o, auto *out, auto *err) {
      return llama_stream_open_chat(
          live(), p.messages.data(), p.lens.data(), p.lens.size(), o, out, err);
    });
  }

  std::vector<Token> encode_up_to(std::size_t max_tokens, const llama_cancel_t *cancel,
      std::string_view text, bool bos, bool eos, bool special) const {
    const std::uint32_t flags = (bos ? LLAMA_ENC_BOS : 0U) | (eos ? LLAMA_ENC_EOS : 0U) |
                                (special ? LLAMA_ENC_SPECIAL : 0U);
    return detail::filled<std::vector<Token>>((std::min)(text.size() + 8, max_tokens),
        [&](Token *buf, std::size_t cap, std::size_t *n, llama_error *err) {
          return llama_encode_text_bounded(
              live(), detail::data(text), text.size(), flags, max_tokens, cancel, buf, cap, n, err);
        });
  }

  std::unique_ptr<llama_t, detail::Destroy> handle_;
};

inline Grammar::Grammar(const Model &model, std::int32_t kind, std::string_view source) {
  const bool none = kind == LLAMA_GRAMMAR_JSON;
  const char *text = none ? nullptr : source.data() == nullptr ? "" : source.data();
  llama_grammar_t *grammar = nullptr;
  detail::Call call;
  call.finish(llama_grammar_new(model.live(), kind, text, source.size(), &grammar, call.err()));
  grammar_.reset(grammar, llama_grammar_free);
}

inline std::vector<std::uint32_t> Grammar::mask(const std::vector<Token> &tokens) const {
  return detail::filled<std::vector<std::uint32_t>>(
      4096, [&](std::uint32_t *buf, std::size_t cap, std::size_t *n, llama_error *err) {
        return llama_grammar_mask(get(), tokens.data(), tokens.size(), buf, cap, n, err);
      });
}

} // namespace llamabi

#endif // LLAMABI_HPP
