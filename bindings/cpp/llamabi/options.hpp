// Part of llamabi.hpp: how to load a model, to generate, to chat and to compress. The fields are
// those of the C structs, with their defaults as the library that was loaded gives them.
#ifndef LLAMABI_OPTIONS_HPP
#define LLAMABI_OPTIONS_HPP

#include <llamabi.h>

#include "cancel.hpp"
#include "error.hpp"
#include "grammar.hpp"
#include "values.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamabi {

namespace detail {

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

} // namespace detail

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
  /// With the device CUDA GPUs, otherwise NUMA nodes, each of which gets a rank with its share of
  /// the model; empty: one rank.
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
  /// What `ncclGetUniqueId` gave, 128 bytes, for ranks on GPUs; not owned, copied by the call.
  /// Null: the library makes one.
  const void *nccl_unique_id = nullptr;
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
  // For a literal in a list of segments, which would have to become a string first.
  template <class T, detail::IfText<const T &> = 0>
  Segment(const T &of, std::int32_t as = LLAMA_SEGMENT_COMPRESS)
      : text(std::string_view(of)), kind(as) {}
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

/// How to generate; see `llama_generate_options`. Defaults are the library's.
struct GenerateOptions {
  // Numbers of llamabi.h, which has their documentation (`make header`).
  std::uint32_t max_gen_len = detail::generate_defaults().max_gen_len;
  float temperature = detail::generate_defaults().temperature;
  float top_p = detail::generate_defaults().top_p;
  std::int32_t top_k = detail::generate_defaults().top_k;
  float min_p = detail::generate_defaults().min_p;
  float repetition_penalty = detail::generate_defaults().repetition_penalty;
  std::uint64_t seed = detail::generate_defaults().seed;
  std::uint32_t top_logprobs = detail::generate_defaults().top_logprobs;
  std::uint64_t cache_salt = detail::generate_defaults().cache_salt;
  std::uint32_t num_return_sequences = detail::generate_defaults().num_return_sequences;
  std::uint32_t num_beams = detail::generate_defaults().num_beams;
  std::uint32_t min_gen_len = detail::generate_defaults().min_gen_len;
  std::uint32_t no_repeat_ngram_size = detail::generate_defaults().no_repeat_ngram_size;
  float presence_penalty = detail::generate_defaults().presence_penalty;
  float frequency_penalty = detail::generate_defaults().frequency_penalty;
  float typical_p = detail::generate_defaults().typical_p;
  float epsilon_cutoff = detail::generate_defaults().epsilon_cutoff;
  float eta_cutoff = detail::generate_defaults().eta_cutoff;
  std::uint32_t max_time_ms = detail::generate_defaults().max_time_ms;
  std::uint32_t adapter = detail::generate_defaults().adapter;
  float length_penalty = detail::generate_defaults().length_penalty;
  std::uint32_t draft_len = detail::generate_defaults().draft_len;
  float contrast_beta = detail::generate_defaults().contrast_beta;
  float contrast_alpha = detail::generate_defaults().contrast_alpha;
  // End of numbers.
  std::vector<std::string> stop{};
  /// `LLAMA_EARLY_*`
  std::int32_t early_stopping = detail::generate_defaults().early_stopping;
  /// Groups of phrases, of each of which every result of a search has one.
  std::vector<std::vector<std::vector<Token>>> force_words{};
  /// The text is of this language; made for the model that is called.
  std::optional<Grammar> grammar{};
  std::vector<Bias> logit_bias{};
  std::vector<Token> stop_tokens{};
  std::vector<std::vector<Token>> bad_words{};
  /// `LLAMA_SPEC_*`
  std::int32_t speculation = detail::generate_defaults().speculation;
  std::vector<Token> predicted{};
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

} // namespace llamabi

#endif // LLAMABI_OPTIONS_HPP
