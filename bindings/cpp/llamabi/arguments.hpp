// Part of llamabi.hpp: values of C++ as the C API takes them, and its results as values.
#ifndef LLAMABI_ARGUMENTS_HPP
#define LLAMABI_ARGUMENTS_HPP

#include <llamabi.h>

#include "call.hpp"
#include "callbacks.hpp"
#include "options.hpp"
#include "values.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamabi::detail {

/// A `llama_build_options` and what its pointers point to, but for what lies in the options.
class BuildArguments {
public:
  explicit BuildArguments(const Options &o) : c_(build_defaults()) {
    c_.max_seq_len = o.max_seq_len;
    c_.max_batch_size = o.max_batch_size;
    c_.model_parallel_size = o.model_parallel_size;
    c_.device = o.device;
    c_.device_index = o.device_index;
    c_.n_threads = o.n_threads;
    c_.weights_dtype = o.weights_dtype;
    c_.kv_dtype = o.kv_dtype;
    c_.seed = o.seed;
    c_.log_level = o.log_level;
    c_.gpu_memory_bytes = o.gpu_memory_bytes;
    c_.max_waiting = o.max_waiting;
    c_.max_stall_ms = o.max_stall_ms;
    c_.max_unread_ms = o.max_unread_ms;
    c_.precision = o.precision;
    c_.stall_memory_bytes = o.stall_memory_bytes;
    if (!o.chat_template.empty()) c_.chat_template = c_string(o.chat_template, "chat_template");
    c_.chat_now = o.chat_now;
    for (const auto &[dir, scale] : o.adapters) {
      adapters_.push_back(c_string(dir, "adapters"));
      scales_.push_back(scale);
    }
    c_.adapters = adapters_.data();
    c_.adapter_scales = scales_.data();
    c_.n_adapters = adapters_.size();
    c_.devices = o.devices.data();
    c_.n_devices = static_cast<std::uint32_t>(o.devices.size());
    c_.rank_timeout_ms = o.rank_timeout_ms;
    c_.comm = o.comm;
    if (!o.draft_dir.empty()) c_.draft_dir = c_string(o.draft_dir, "draft_dir");
    c_.draft_weights_dtype = o.draft_weights_dtype;
    c_.draft_kv_dtype = o.draft_kv_dtype;
    if (!o.medusa_dir.empty()) c_.medusa_dir = c_string(o.medusa_dir, "medusa_dir");
    c_.max_step_ms = o.max_step_ms;
    c_.nccl_unique_id = o.nccl_unique_id;
    if (o.cancel) c_.cancel = o.cancel->get();
    if (o.progress) {
      c_.progress = on_progress;
      c_.progress_user_data = const_cast<Options *>(&o);
    }
    if (o.log) {
      log_ = std::make_shared<Log>(o.log);
      c_.log = on_log;
      c_.log_user_data = log_.get();
    }
  }
  BuildArguments(const BuildArguments &) = delete;
  BuildArguments &operator=(const BuildArguments &) = delete;
  const llama_build_options *get() const noexcept { return &c_; }
  /// Where log lines go, for as long as the model lives; null if they go nowhere.
  std::shared_ptr<const Log> log() const noexcept { return log_; }

private:
  llama_build_options c_;
  std::vector<const char *> adapters_;
  std::vector<float> scales_;
  std::shared_ptr<Log> log_;
};

/// A `llama_generate_options` and what its pointers point to.
class GenerateArguments {
public:
  /// `logs`: while the call waits, the model's `log` may throw.
  GenerateArguments(const GenerateOptions &o, bool pulled, bool logs = false)
      : callbacks_(std::make_unique<Callbacks>(o, pulled)), c_(generate_defaults()) {
    c_.flags = (o.echo ? LLAMA_GEN_ECHO : 0U) | (o.logprobs ? LLAMA_GEN_LOGPROBS : 0U) |
               (o.no_wait ? LLAMA_GEN_NO_WAIT : 0U) | (o.ignore_eos ? LLAMA_GEN_IGNORE_EOS : 0U) |
               (o.special ? LLAMA_GEN_SPECIAL : 0U) | (o.beam_events ? LLAMA_GEN_BEAM_EVENTS : 0U);
    // Numbers of llamabi.h.
    c_.max_gen_len = o.max_gen_len;
    c_.temperature = o.temperature;
    c_.top_p = o.top_p;
    c_.top_k = o.top_k;
    c_.min_p = o.min_p;
    c_.repetition_penalty = o.repetition_penalty;
    c_.seed = o.seed;
    c_.top_logprobs = o.top_logprobs;
    c_.cache_salt = o.cache_salt;
    c_.num_return_sequences = o.num_return_sequences;
    c_.num_beams = o.num_beams;
    c_.min_gen_len = o.min_gen_len;
    c_.no_repeat_ngram_size = o.no_repeat_ngram_size;
    c_.presence_penalty = o.presence_penalty;
    c_.frequency_penalty = o.frequency_penalty;
    c_.typical_p = o.typical_p;
    c_.epsilon_cutoff = o.epsilon_cutoff;
    c_.eta_cutoff = o.eta_cutoff;
    c_.max_time_ms = o.max_time_ms;
    c_.adapter = o.adapter;
    c_.length_penalty = o.length_penalty;
    c_.draft_len = o.draft_len;
    c_.contrast_beta = o.contrast_beta;
    c_.contrast_alpha = o.contrast_alpha;
    // End of numbers.
    c_.speculation = o.speculation;
    c_.predicted = o.predicted.data();
    c_.n_predicted = o.predicted.size();
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
    // Without a listener too, for an exception in `log` to stop the call.
    if (o.on_event || logs) c_.on_event = Callbacks::on_event;
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

/// The ends of `n` sequences of a call that was cancelled before the library saw it.
inline std::vector<Completion> never_begun(std::size_t n) {
  constexpr std::size_t most = 65536; // as many can a call have
  std::vector<Completion> all((std::min)(n, most));
  for (Completion &c : all) {
    c.finish_reason = LLAMA_FINISH_CANCELLED;
    c.stats.struct_size = sizeof c.stats;
  }
  return all;
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

} // namespace llamabi::detail

#endif // LLAMABI_ARGUMENTS_HPP
