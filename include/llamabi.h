/*
 * llamabi: Llama-family inference behind opaque handles. Generated, do not edit.
 *
 * From the simple to the advanced:
 *
 *    1. First things    versions, status and errors
 *    2. Models          load one, free it
 *    3. Generating      continue texts or tokens: options, events
 *    4. Results         what a call that has ended gives
 *    5. Chat            answer dialogs
 *    6. Cancel flags    stop a call from elsewhere
 *    7. Streams         pull a call's events instead of waiting for its end
 *    8. Tokens          encode and decode
 *    9. Chat templates  messages and tools as JSON, and the text made of them
 *   10. Grammars        languages that generated text is kept in
 *   11. Adapters        LoRA adapters that calls choose
 *   12. Figures         what was loaded, and totals since then
 *
 * All of it is in 0.1, the first release. What a later release adds says so: "Since 0.2."
 *
 * Status and error: every fallible function returns a llama_status and takes a llama_error of the
 * caller's (or NULL). Out-parameters are written on success only, except: LLAMA_CANCELLED gives the
 * partial result, a buffer that is too small gives the size needed, and a llama_build that fails
 * sets *out to NULL.
 *
 * Structs with a struct_size: set it (the *_init functions do) to the sizeof of this header. Fields
 * are only ever appended, and a zero in a new one means the old behaviour, so programs and library
 * may be of different versions. Reserved fields are 0.
 *
 * Threads: every function may be called from any thread. Calls on one handle run concurrently and
 * share batches. Callbacks run on the calling thread, never after the call has returned; inside
 * one, call nothing but llama_cancel_trigger and functions that take a const llama_t *.
 *
 * Handles, results, streams, grammars and cancel flags: opaque numbers. One that is NULL, freed, from
 * before a fork, or not this copy of the library's is refused (LLAMA_E_INVALID_ARGUMENT) or, in *_free,
 * ignored; it is never dereferenced. A child after fork may build handles of its own; a call whose
 * callback forked ends in the child with LLAMA_E_INVALID_ARGUMENT.
 *
 * Text is UTF-8. A length of SIZE_MAX means NUL-terminated; text that is returned is counted and
 * NUL-terminated. Arrays and texts have at most INT32_MAX elements.
 *
 * Memory that is not there is LLAMA_E_NO_MEMORY, whether a call needs it on its own thread or on
 * the engine's; the handle stays usable. Three things remain:
 *   - A call's few records of fixed size (of the call, its stream, its result). They are tried
 *     before they are taken, so only another thread can take the memory in between.
 *   - The words of an error or of the log.
 *   - The start of a thread.
 * Where malloc refuses one of these, Rust ends the process: "memory allocation of N bytes failed"
 * on standard error, and abort(). At the start of a thread glibc may do so.
 *
 * Nothing is global: no initialisation, no signal handlers, no output. (After a bug in the library,
 * LLAMA_E_INTERNAL, Rust's panic hook prints a line to standard error.)
 */


#ifndef LLAMABI_H
#define LLAMABI_H

#include <stddef.h>
#include <stdint.h>

/* Version of this header; llama_version() is the library's. */
#define LLAMABI_VERSION "0.1.0"
#define LLAMABI_VERSION_MAJOR 0
#define LLAMABI_VERSION_MINOR 1
#define LLAMABI_VERSION_PATCH 0

typedef struct llama llama_t;               /* weights, tokenizer, KV cache, engine thread */
typedef struct llama_result llama_result_t; /* immutable outcome of one call */
typedef struct llama_stream llama_stream_t; /* events to be pulled */
typedef struct llama_cancel llama_cancel_t; /* thread-safe flag */
typedef struct llama_grammar llama_grammar_t; /* a compiled language, immutable */

#ifdef __cplusplus
extern "C" {
#endif

/* ==== 1. First things: versions, status and errors ==== */

/// Version of the binary interface, the number in `libllamabi.so.<N>`.
#define LLAMABI_ABI_VERSION 0

/// What a function returns: 0 is success, positive is an outcome, negative a failure.
typedef int32_t llama_status;

/// Where a function says what went wrong. The caller's own; there is nothing to free.
///
/// Set `struct_size` before the first use. Every call that is given one writes `status` and
/// `message` (`LLAMA_OK` and "" on success). A smaller `struct_size` gets a shorter message, one
/// below 9 nothing at all.
typedef struct llama_error {
  /// `sizeof(llama_error)`, set by the caller.
  uint32_t struct_size;
  /// What the function returned.
  llama_status status;
  /// A sentence, NUL-terminated UTF-8; names the file, tensor or argument and both values. In
  /// names control characters are escaped (`\n`, `\u{1b}`), and long ones are shortened in their
  /// middle.
  char message[1016];
} llama_error;

/// Success.
#define LLAMA_OK 0

/// `llama_stream_next`: the stream has ended; no event was written.
#define LLAMA_DONE 1

/// Stopped by a cancel flag, a callback, or `llama_free`. Not an error: what was generated so far
/// is valid.
#define LLAMA_CANCELLED 2

/// `llama_stream_next`: nothing happened within `timeout_ms`.
#define LLAMA_TIMEOUT 3

/// An argument is NULL, misaligned, out of range, or not a live object; the message names it.
#define LLAMA_E_INVALID_ARGUMENT -1

/// A `struct_size`, an `abi_version`, a reserved field or an unknown tail is not what this library
/// knows.
#define LLAMA_E_ABI -2

/// A path is missing or unreadable, or a file ended early.
#define LLAMA_E_IO -3

/// A readable file of the wrong kind, or with contradictory contents.
#define LLAMA_E_FORMAT -4

/// Known, but not offered by this build or machine; the message says why.
#define LLAMA_E_UNSUPPORTED -5

/// Memory or a thread that the machine, its cgroup or a limit of this process (`RLIMIT_AS`,
/// `RLIMIT_DATA`) does not give; the message has both numbers, and names the limit.
#define LLAMA_E_NO_MEMORY -6

/// A device failed.
#define LLAMA_E_DEVICE -7

/// Memory that the device cannot give.
#define LLAMA_E_DEVICE_MEMORY -8

/// A prompt longer than `max_seq_len`.
#define LLAMA_E_TOO_LONG -9

/// No prompts, more than 65,536 sequences, or more sequences of a prompt than max_batch_size.
#define LLAMA_E_BATCH -10

/// Text that is not UTF-8; the message names the argument and the byte.
#define LLAMA_E_UTF8 -11

/// `LLAMA_GEN_NO_WAIT` and not enough free slots, or as many calls wait as `max_waiting` allows.
#define LLAMA_E_BUSY -12

/// An earlier panic or device failure has left the handle unusable; free it.
#define LLAMA_E_POISONED -13

/// A bug in this library, caught.
#define LLAMA_E_INTERNAL -99

/// Version of the library that was loaded, as in `LLAMABI_VERSION`. Never freed. Any thread.
const char *llama_version(void);

/// `LLAMABI_ABI_VERSION` of the library that was loaded. Any thread.
uint32_t llama_abi_version(void);

/// A status in a few words; never NULL, never freed. Any thread.
const char *llama_status_string(llama_status s);

/* ==== 2. Models: load one, free it ==== */

/// `device`: the best that is usable.
#define LLAMA_DEVICE_AUTO 0

/// `device`: the CPU; CUDA is never touched.
#define LLAMA_DEVICE_CPU 1

/// `device`: an NVIDIA GPU, or the build fails.
#define LLAMA_DEVICE_CUDA 2

/// `weights_dtype`: as stored (a checkpoint of `examples/quantize.rs` as quantised); `kv_dtype`:
/// F32 for f32 weights, F16 for f16, else BF16.
#define LLAMA_DTYPE_AUTO 0

/// IEEE binary32.
#define LLAMA_DTYPE_F32 1

/// IEEE binary16.
#define LLAMA_DTYPE_F16 2

/// bfloat16.
#define LLAMA_DTYPE_BF16 3

/// 8-bit integers. Weights: groups of 32 along a row, f16 scales; quantised while a checkpoint of
/// floats is loaded. `kv_dtype`: a scale for each head's vector.
///
/// With this and the 4-bit formats the head is INT8, too, and the embedding stays in 16 bits (one
/// that serves as the head is INT8). Activations of generated tokens are rounded to 16-bit
/// integers.
#define LLAMA_DTYPE_INT8 4

/// 4-bit integers: groups of 32 along a row, symmetric, f16 scales found by error search. Weights
/// only.
#define LLAMA_DTYPE_INT4 5

/// 4-bit normal float with double quantisation, as QLoRA and bitsandbytes define it: blocks of 64
/// along a row, whose length 64 must divide. Weights only.
#define LLAMA_DTYPE_NF4 6

/// 8-bit floats, e4m3: on GPUs, `LLAMA_E_UNSUPPORTED` on the CPU. Weights: groups of 128 along a
/// row, f16 scales; quantised while a checkpoint of floats is loaded, head and embedding as with
/// INT8. `kv_dtype`: a scale for each head's vector.
#define LLAMA_DTYPE_FP8 7

/// 4-bit integers with scales of two levels and minima: how Q4_K of GGUF files is kept on the CPU, exactly.
/// `llama_info` says it; as an option it is `LLAMA_E_UNSUPPORTED`, for AUTO keeps what is stored so.
#define LLAMA_DTYPE_K4 8

/// 8-bit integers with scales of two levels: how Q6_K and Q3_K are kept on the CPU, exactly; as K4.
#define LLAMA_DTYPE_K8 9

/// Something failed.
#define LLAMA_LOG_ERROR 1

/// Something was chosen that one may not expect.
#define LLAMA_LOG_WARN 2

/// What was loaded and chosen.
#define LLAMA_LOG_INFO 3

/// Details of every request.
#define LLAMA_LOG_DEBUG 4

/// Hears the fraction of the checkpoint that has been read, 0 to 1, never falling. 0 stops the
/// loading.
typedef int32_t (*llama_progress_fn)(void *user_data, float fraction);

/// Hears a log line of `len` bytes, NUL-terminated, without a line feed. Runs on a thread that is
/// inside a call on the handle, so on several at once if the handle is used by several.
typedef void (*llama_log_fn)(void *user_data, int32_t level, const char *msg, size_t len);

/// Options of `llama_build`. Fill with `llama_build_options_init`, then change what you like.
typedef struct llama_build_options {
  /// `sizeof(llama_build_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMABI_ABI_VERSION` of that header.
  uint32_t abi_version;
  /// Most tokens of a sequence, prompt included. 512.
  uint32_t max_seq_len;
  /// Most sequences that run at the same time; more wait, of one call or of several. 8.
  uint32_t max_batch_size;
  /// 0: as many shards as the checkpoint has. Any other number must be that number (Hugging Face:
  /// 1).
  int32_t model_parallel_size;
  /// `LLAMA_DEVICE_*`.
  int32_t device;
  /// Which one of several; 0 on the CPU.
  int32_t device_index;
  /// Threads of the CPU backend, at most 1024. 0: as many as affinity mask and cgroup allow.
  uint32_t n_threads;
  /// `LLAMA_DTYPE_*`; the weights are converted as they are read.
  int32_t weights_dtype;
  /// `LLAMA_DTYPE_*` of the KV cache.
  int32_t kv_dtype;
  /// Seeds the generator that gives a seed to calls whose own is 0. 1.
  uint64_t seed;
  /// Stops the loading; borrowed for the call.
  llama_cancel_t *cancel;
  /// Called on the calling thread while loading; NULL: not.
  llama_progress_fn progress;
  /// Given to `progress`.
  void *progress_user_data;
  /// Log lines of this handle; NULL: silent.
  llama_log_fn log;
  /// Given to `log`. Must live until `llama_free` has returned and no call on the handle runs.
  void *log_user_data;
  /// `LLAMA_LOG_*`, the least severe lines to hear; 0: none. `LLAMA_LOG_INFO`.
  int32_t log_level;
  /// 0.
  uint32_t reserved0;
  /// Most bytes of GPU memory that the handle allocates; what does not fit is
  /// `LLAMA_E_DEVICE_MEMORY`. 0: as many as are free. What the driver takes for itself (its
  /// context, the kernels, CUDA graphs) is not among them.
  uint64_t gpu_memory_bytes;
  /// Most calls that wait: none of their sequences has begun, because every slot is taken. One
  /// more is `LLAMA_E_BUSY`. 0: 1024.
  uint32_t max_waiting;
  /// How long, in milliseconds, a sequence keeps its slot while others wait and its own reader is
  /// behind: from when more than 1,024 events or 4 MiB are queued until half of that is left.
  /// Then its part of the KV cache is copied out, and back when the reader has caught up and it
  /// is its turn: it goes on to the same bytes. 0: 1000.
  uint32_t max_stall_ms;
  /// A stream whose reader is behind and takes no event for so many milliseconds ends with
  /// `LLAMA_FINISH_UNREAD`, whether others wait or not. 0: 60000. UINT32_MAX: never for that
  /// reason.
  uint32_t max_unread_ms;
  /// 0.
  uint32_t reserved2;
  /// Most host memory for what `max_stall_ms` copies out of the KV cache. Where that is not
  /// enough, or half of what the process can still have, the stream that has gone unread the
  /// longest ends with `LLAMA_FINISH_UNREAD`: no reader keeps a slot idle for longer than
  /// `max_stall_ms` while others wait. 0: as many bytes as the KV cache has.
  uint64_t stall_memory_bytes;
  /// Text of a Jinja template for chats, NUL-terminated UTF-8, instead of the model's; NULL: the
  /// model's.
  const char *chat_template;
  /// What `strftime_now` of a template sees, in seconds since 1970; 0: the clock.
  int64_t chat_now;
  /// Directories of LoRA adapters as peft writes them, NUL-terminated, merged into the weights in
  /// this order while they are read; NULL where there are none.
  const char *const *adapters;
  /// By how much each is weighted, finite; NULL: 1 for all.
  const float *adapter_scales;
  /// How many, at most 256.
  size_t n_adapters;
} llama_build_options;

/// Fill `o` with defaults. Pass `sizeof(llama_build_options)` and `LLAMABI_ABI_VERSION`: both are
/// kept in it, so that `llama_build` knows which header the caller was compiled with.
///
/// Writes nothing if `o` is NULL or `struct_size` above 4096. Any thread.
void llama_build_options_init(struct llama_build_options *o,
                              size_t struct_size,
                              uint32_t abi_version);

/// Load a model.
///
/// `ckpt_dir` holds Meta's form (`params.json`, `consolidated.NN.pth`) or Hugging Face's
/// (`config.json`, `*.safetensors`). `tokenizer_path` NULL: `ckpt_dir/tokenizer.model`. `o` NULL:
/// defaults. On success `*out` is the handle, to be freed with `llama_free`; otherwise `*out` is
/// NULL and nothing is left behind. Any thread; not from inside a callback.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, `_IO` (missing or unreadable path), `_FORMAT` (a
/// file of the wrong kind), `_UNSUPPORTED`, `_NO_MEMORY`, `_DEVICE`, `_DEVICE_MEMORY`; returns
/// `LLAMA_CANCELLED` if `o->cancel` or `o->progress` stopped it.
llama_status llama_build(const char *ckpt_dir,
                         const char *tokenizer_path,
                         const struct llama_build_options *o,
                         llama_t **out,
                         struct llama_error *err);

/// Free a handle: cancels the calls that run on it, which return `LLAMA_CANCELLED` with what they
/// have; the last of them drops the weights. Results and streams stay good (streams end as
/// cancelled); what `llama_token_bytes` gave does not.
///
/// NULL, a handle that was freed already, a handle from before a fork, or a pointer that is not
/// this library's does nothing and is not read. Any thread; from inside a callback it takes effect
/// too, and the call that the callback belongs to ends as cancelled.
void llama_free(llama_t *l);

/// The same as `llama_free`, under a name that no other library has.
void llama_destroy(llama_t *l);

/* ==== 3. Generating: continue texts or tokens: options, events ==== */

/// `max_gen_len`: as many tokens as `max_seq_len` has room for.
#define LLAMABI_MAX_GEN_LEN_DEFAULT UINT32_MAX

/// Put the prompt's tokens in front of the result (and report them as events).
#define LLAMA_GEN_ECHO 1

/// Report the log probability of each token.
#define LLAMA_GEN_LOGPROBS 2

/// Fail with `LLAMA_E_BUSY` unless there is a free slot for every prompt now.
#define LLAMA_GEN_NO_WAIT 4

/// Go on after an end-of-sequence token, which then is part of the result.
#define LLAMA_GEN_IGNORE_EOS 8

/// Show special tokens (`<|python_tag|>`) in texts, where they are left out otherwise. The
/// end-of-sequence token that ends a sequence is never shown.
#define LLAMA_GEN_SPECIAL 32

/// A token, generated or echoed.
#define LLAMA_EVENT_TOKEN 1

/// A sequence has ended; nothing with its index follows.
#define LLAMA_EVENT_FINISH 2

/// Ended by an end-of-sequence token.
#define LLAMA_FINISH_STOP 1

/// Ended by `max_gen_len` or `max_seq_len`.
#define LLAMA_FINISH_LENGTH 2

/// Ended by a cancel flag, a callback, or `llama_free`.
#define LLAMA_FINISH_CANCELLED 3

/// Ended by a stop string.
#define LLAMA_FINISH_STOP_STRING 4

/// The dialog contained one of the chat format's special tags and was not given to the model.
#define LLAMA_FINISH_UNSAFE 5

/// Ended by `max_time_ms`. The status of the call is `LLAMA_OK`.
#define LLAMA_FINISH_TIME 6

/// Nobody has read the stream for too long (`max_unread_ms`, `stall_memory_bytes`). The status of
/// the call is `LLAMA_OK`, and what was generated until then can still be read.
#define LLAMA_FINISH_UNREAD 8

/// No logit of the next position was finite, so no token was possible: the weights, all of them
/// finite, made numbers that the arithmetic cannot hold. It ends this sequence alone.
#define LLAMA_FINISH_NOT_FINITE 9

/// A token and its log probability. This layout is frozen.
typedef struct llama_alternative {
  /// Token id.
  int32_t token;
  /// Natural log of its probability under the model (before penalty and temperature), <= 0. Minus
  /// infinity for a token that is impossible, because its logit is not finite or because the
  /// difference is beyond float32; never NaN.
  float logprob;
} llama_alternative;

/// Something that happened to one sequence of a call. The pointers are valid until the callback
/// returns, or until the next `llama_stream_next` or `llama_stream_free` on the stream.
typedef struct llama_event {
  /// `sizeof(llama_event)`, set by the caller of `llama_stream_next`.
  uint32_t struct_size;
  /// `LLAMA_EVENT_*`.
  int32_t kind;
  /// Which sequence of the call.
  uint32_t index;
  /// TOKEN: its id. FINISH: -1.
  int32_t token;
  /// TOKEN: its log probability, as in `llama_alternative`; 0 unless `LLAMA_GEN_LOGPROBS` was
  /// given.
  float logprob;
  /// FINISH: `LLAMA_FINISH_*`. TOKEN: 0.
  int32_t finish_reason;
  /// Text that became certain: whole UTF-8 code points, NUL-terminated, often empty.
  const char *text;
  /// Bytes of `text`, without the NUL.
  size_t text_len;
  /// Most likely tokens at this position, best first; NULL where there are none.
  const struct llama_alternative *top;
  /// How many.
  size_t n_top;
} llama_event;

/// Hears every event of a call, on the thread that made the call. 0 stops the whole call.
///
/// Inside it (as inside every callback) only `llama_cancel_trigger` and functions that take a
/// `const llama_t *` may be called; those that would run a model return `LLAMA_E_INVALID_ARGUMENT`.
/// It must return: no exception, no longjmp. One that blocks is a reader who is behind
/// (`max_stall_ms`, `max_unread_ms`).
typedef int32_t (*llama_event_fn)(void *user_data, const struct llama_event *ev);

/// A number that is added to a token's logit. This layout is frozen.
typedef struct llama_bias {
  /// Token id.
  int32_t token;
  /// Finite; or minus infinity, which makes the token impossible.
  float bias;
} llama_bias;

/// Options of a generation. Fill with `llama_generate_options_init`, then change what you like.
typedef struct llama_generate_options {
  /// `sizeof(llama_generate_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMA_GEN_*`, or-ed.
  uint32_t flags;
  /// Most tokens to generate per sequence; 0: none (scores the prompt).
  /// `LLAMABI_MAX_GEN_LEN_DEFAULT`.
  uint32_t max_gen_len;
  /// Finite, >= 0; 0 takes the most likely token. 0.6.
  float temperature;
  /// Nucleus: keep the most likely tokens until their probabilities exceed this; 0 to 1. 0.9.
  float top_p;
  /// Keep this many of the most likely tokens; 0: off.
  int32_t top_k;
  /// Keep tokens with at least this share of the most likely token's probability, 0 to 1; 0: off.
  float min_p;
  /// Finite, > 0; applied once per distinct token of prompt and output; 1: off.
  float repetition_penalty;
  /// Same seed, same text. 0: the next draw of the handle's generator.
  uint64_t seed;
  /// Texts that end a sequence and are cut off: NUL-terminated UTF-8, borrowed for the call. They
  /// are looked for in what the model writes behind its prompt, and so with the space that a
  /// first token may begin with and that the text comes without; spaces alone only in the text.
  const char *const *stop;
  /// How many, at most 1024.
  size_t n_stop;
  /// Stops the call; borrowed for the call, or until the stream is freed.
  llama_cancel_t *cancel;
  /// Hears every event; NULL: not. Must be NULL for `llama_stream_open`.
  llama_event_fn on_event;
  /// Given to `on_event`.
  void *user_data;
  /// Most likely tokens to report per token, up to the vocabulary; 0: none.
  uint32_t top_logprobs;
  /// 0.
  uint32_t reserved1;
  /// Whose prefixes are found: a prompt takes pages from the prefix cache only of calls with the
  /// same salt, so that neither `cached_tokens` nor the time to the first token tells what others
  /// have sent. Any number; results do not depend on it. 0: those of all who give 0.
  uint64_t cache_salt;
  /// Sequences that continue each prompt, 1 to max_batch_size; 0 is 1. Sequence
  /// `i * num_return_sequences + j` is the j-th of prompt i, in results, events and draws: the
  /// call in which each prompt stands so many times in a row, to the bit. But the prompt is
  /// computed once, and all begin together when there are slots for all.
  uint32_t num_return_sequences;
  /// 0.
  uint32_t reserved2;
  /// The returned text is of this language: of `llama_grammar_new` with this handle; NULL: none.
  /// A text ends with `LLAMA_FINISH_STOP` where the model ends it or where nothing can follow; one
  /// that something else ends (`max_gen_len`, a stop string) may not be of the language.
  /// Not with `LLAMA_GEN_IGNORE_EOS`. A text that is too complex for the parser ends the call
  /// with `LLAMA_E_INVALID_ARGUMENT`.
  const llama_grammar_t *grammar;
  /// So many tokens are generated before an end-of-sequence token or one of `stop_tokens` is
  /// possible; at most `max_gen_len`. A stop string ends a sequence at any length. 0.
  uint32_t min_gen_len;
  /// No run of so many tokens is in prompt and output twice: the token that would complete it is
  /// impossible. 0: off.
  uint32_t no_repeat_ngram_size;
  /// Subtracted from the logit of every token that the output has; OpenAI's. Finite. 0.
  float presence_penalty;
  /// Subtracted as often as the output has the token; OpenAI's. Finite. 0.
  float frequency_penalty;
  /// Typical sampling: of what the filters before leave, keep the tokens whose surprise -ln p is
  /// nearest to the entropy, until their probabilities reach this; 0 to 1. 0: off.
  float typical_p;
  /// After that, drop tokens less probable than this; 0 to below 1. The most likely stays. 0: off.
  float epsilon_cutoff;
  /// After that, drop tokens less probable than this and than its square root times
  /// exp(-entropy); 0 to below 1. The most likely stays. 0: off.
  float eta_cutoff;
  /// So many milliseconds after the call every sequence of it ends with `LLAMA_FINISH_TIME`, when
  /// the step that is under way has ended; one that still waits for a slot, too. 0: never.
  uint32_t max_time_ms;
  /// Added to logits after the penalties; a token may stand here several times. Borrowed for the
  /// call.
  const struct llama_bias *logit_bias;
  /// How many, at most 65536.
  size_t n_logit_bias;
  /// Tokens that end a sequence as an end-of-sequence token does, and are no part of the result;
  /// with `LLAMA_GEN_IGNORE_EOS` too. Borrowed for the call.
  const int32_t *stop_tokens;
  /// How many, at most 65536.
  size_t n_stop_tokens;
  /// Sequences of tokens, end to end. Where prompt and output end with all but the last token of
  /// one, its last token is impossible. Borrowed for the call.
  const int32_t *bad_words;
  /// Tokens of each, at least 1; together at most 65536.
  const size_t *bad_word_lens;
  /// How many.
  size_t n_bad_words;
  /// An id of `llama_adapter_add`: the LoRA adapter that the sequences are computed with. 0: none.
  uint32_t adapter;
  /// 0.
  uint32_t reserved_adapter;
} llama_generate_options;

/// Fill `o` with defaults. Pass `sizeof(llama_generate_options)`, which is kept in it.
///
/// Writes nothing if `o` is NULL or `struct_size` above 4096. Any thread.
void llama_generate_options_init(struct llama_generate_options *o, size_t struct_size);

/// Continue `n` prompts of tokens and wait for the end.
///
/// `tokens` are all prompts end to end, `lens[i]` is the length of prompt `i`, at least 1. `o`
/// NULL: defaults. `*out` is the result, to be freed with `llama_result_free`; `out` may be NULL
/// where `o->on_event` is given. Everything given is borrowed for the call. Any thread, any number
/// at a time: calls on one handle share batches, and do not change each other's results. Callbacks
/// run on this thread. Not from inside a callback.
///
/// More prompts than max_batch_size run as slots come free, in order; each gives what it would give
/// if all ran at once. Calls begin in the order in which they came, each with up to max_batch_size
/// prompts before it is the next one's turn, so that no call keeps the others out.
///
/// Returns `LLAMA_CANCELLED`, with what was generated so far in `*out`, if `o->cancel`,
/// `o->on_event` or `llama_free` stopped it. Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`,
/// `_BATCH` (see there), `_TOO_LONG` (a prompt is longer than max_seq_len), `_UTF8` (a
/// stop string), `_BUSY` (with `LLAMA_GEN_NO_WAIT`, or where as many calls wait as `max_waiting`
/// says), `_NO_MEMORY`, `_DEVICE`, `_POISONED`, `_INTERNAL`; `*out` is not written then.
llama_status llama_generate(llama_t *l,
                            const int32_t *tokens,
                            const size_t *lens,
                            size_t n,
                            const struct llama_generate_options *o,
                            llama_result_t **out,
                            struct llama_error *err);

/// Continue `n` texts: BOS and the text's tokens, given to `llama_generate`, of which everything
/// else holds here too.
///
/// `prompts[i]` is UTF-8 of `lens[i]` bytes; `lens` NULL, or a length of SIZE_MAX, means
/// NUL-terminated. Fails with `LLAMA_E_UTF8` as well, naming prompt and byte.
llama_status llama_text_completion(llama_t *l,
                                   const char *const *prompts,
                                   const size_t *lens,
                                   size_t n,
                                   const struct llama_generate_options *o,
                                   llama_result_t **out,
                                   struct llama_error *err);

/* ==== 4. Results: what a call that has ended gives ==== */

/// Figures of one sequence.
typedef struct llama_request_stats {
  /// `sizeof(llama_request_stats)`, set by the caller.
  uint32_t struct_size;
  /// Tokens of the prompt.
  uint32_t prompt_tokens;
  /// Of those, taken from the prefix cache.
  uint32_t cached_tokens;
  /// Tokens generated, those cut off by a stop string included, the EOS not.
  uint32_t generated_tokens;
  /// From the call to the first step.
  double queue_ms;
  /// From the call to the first generated token; 0: there was none.
  double first_token_ms;
  /// From the call to the end of the sequence.
  double total_ms;
} llama_request_stats;

/// Sequences of the result, in the order of the prompts. 0 if `r` is not a live result.
///
/// All `llama_result_*` functions may be called from any thread, any number at a time. The
/// pointers they give belong to the result and are good until `llama_result_free`.
size_t llama_result_count(const llama_result_t *r);

/// Tokens of sequence `i`: generated, after the prompt's if echoed, without the EOS. `*p` is NULL
/// where there are none.
llama_status llama_result_tokens(const llama_result_t *r, size_t i, const int32_t **p, size_t *n);

/// Log probabilities of sequence `i`, one per token, if `LLAMA_GEN_LOGPROBS` was given; else none.
/// What they can be: as in `llama_alternative`.
llama_status llama_result_logprobs(const llama_result_t *r, size_t i, const float **p, size_t *n);

/// Text of sequence `i`: valid UTF-8, `*n` bytes and a NUL, never NULL. It equals the texts of the
/// sequence's events put together, and is cut before a stop string.
llama_status llama_result_text(const llama_result_t *r, size_t i, const char **p, size_t *n);

/// Most likely tokens at token `position` of sequence `i`, best first, if `top_logprobs` was not 0;
/// else none. The first token of an echoed prompt has none either.
llama_status llama_result_top_logprobs(const llama_result_t *r,
                                       size_t i,
                                       size_t position,
                                       const struct llama_alternative **p,
                                       size_t *n);

/// Why sequence `i` ended, `LLAMA_FINISH_*`. 0 if there is no such sequence or result.
int32_t llama_result_finish_reason(const llama_result_t *r, size_t i);

/// Figures of sequence `i`. Set `s->struct_size` first; no more than that is written.
llama_status llama_result_stats(const llama_result_t *r, size_t i, struct llama_request_stats *s);

/// Free a result and everything that points into it. NULL, a stale pointer or one of another
/// library's does nothing. Results outlive the handle they came from.
void llama_result_free(llama_result_t *r);

/* ==== 5. Chat: answer dialogs ==== */

/// One message of a dialog.
typedef struct llama_message {
  /// "system", "user" or "assistant"; with a chat template any role that it takes.
  const char *role;
  /// UTF-8.
  const char *content;
  /// Bytes of `role`; SIZE_MAX: NUL-terminated.
  size_t role_len;
  /// Bytes of `content`; SIZE_MAX: NUL-terminated.
  size_t content_len;
} llama_message;

/// Answer `n_dialogs` dialogs, given to `llama_generate`, of which everything else holds here too.
/// By the model's chat template where there is one (see `llama_chat`, which takes tools too), else
/// in Meta's format for its tokenizer.
///
/// `msgs` are the messages of all dialogs end to end, `dialog_lens[i]` is how many dialog `i` has.
/// Which roles there may be in which order is the template's to say. In the Llama 2 format: perhaps
/// a system message, then user and assistant in turn, ending with user (`LLAMA_E_INVALID_ARGUMENT`
/// otherwise); a dialog with one of the format's own tags in a message is not given to the model:
/// its text is a sentence that says so, its finish reason `LLAMA_FINISH_UNSAFE`. Fails with
/// `LLAMA_E_UTF8` as well, naming message and byte.
llama_status llama_chat_completion(llama_t *l,
                                   const struct llama_message *msgs,
                                   const size_t *dialog_lens,
                                   size_t n_dialogs,
                                   const struct llama_generate_options *o,
                                   llama_result_t **out,
                                   struct llama_error *err);

/* ==== 6. Cancel flags: stop a call from elsewhere ==== */

/// A flag that can stop calls of any handle, not triggered. NULL if there are a million already.
///
/// Free it with `llama_cancel_free`, after the calls and streams that were given it.
llama_cancel_t *llama_cancel_new(void);

/// Stop whatever was given this flag: a load within one tensor, a generation within one step
/// (`LLAMA_CANCELLED`, with what there is by then). It stays triggered.
///
/// One atomic operation: may be called from any thread, from a signal handler and from inside a
/// callback, again and again. NULL, a freed flag or a foreign pointer does nothing.
void llama_cancel_trigger(llama_cancel_t *c);

/// Free a flag. NULL, a stale pointer or one of another library's does nothing. A call that still
/// has the flag can no longer be stopped with it.
void llama_cancel_free(llama_cancel_t *c);

/* ==== 7. Streams: pull a call's events instead of waiting for its end ==== */

/// Start a call and pull its events, instead of being called for each: `llama_generate` in all
/// else, so see there for the arguments and errors. `o->on_event` must be NULL
/// (`LLAMA_E_INVALID_ARGUMENT`).
///
/// Read it: while more than 1,024 events (or 4 MiB) wait to be taken, its sequences pause. If
/// others wait they give their slots up for that time (`max_stall_ms`), and a stream that is not
/// read at all ends with `LLAMA_FINISH_UNREAD` (`max_unread_ms`).
///
/// `*out` is the stream, to be freed with `llama_stream_free`. It outlives the handle, and then
/// ends as cancelled. Any thread; not from inside a callback.
llama_status llama_stream_open(llama_t *l,
                               const int32_t *tokens,
                               const size_t *lens,
                               size_t n,
                               const struct llama_generate_options *o,
                               llama_stream_t **out,
                               struct llama_error *err);

/// Start a call on texts and pull its events: the prompts of `llama_text_completion`, and
/// `llama_stream_open` in all else.
llama_status llama_stream_open_text(llama_t *l,
                                    const char *const *prompts,
                                    const size_t *lens,
                                    size_t n,
                                    const struct llama_generate_options *o,
                                    llama_stream_t **out,
                                    struct llama_error *err);

/// Start a call on dialogs and pull its events: the dialogs of `llama_chat_completion`, those with
/// a special tag included, which end as `LLAMA_FINISH_UNSAFE`; and `llama_stream_open` in all else.
llama_status llama_stream_open_chat(llama_t *l,
                                    const struct llama_message *msgs,
                                    const size_t *dialog_lens,
                                    size_t n_dialogs,
                                    const struct llama_generate_options *o,
                                    llama_stream_t **out,
                                    struct llama_error *err);

/// Get the next event. Set `ev->struct_size` before the first call; no more than that is written.
///
/// `timeout_ms`: -1 waits as long as it takes, 0 does not wait, else how long to wait. Returns
/// `LLAMA_OK` with `*ev` written; `LLAMA_TIMEOUT`; after all events `LLAMA_DONE` for ever, or
/// `LLAMA_CANCELLED` for ever if the call was cancelled (what was generated before comes first).
/// An error of the engine (`_DEVICE`, `_POISONED`, `_INTERNAL`, and `_NO_MEMORY` where it could not
/// queue an event) ends the stream and is given again on every later call.
/// `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, and `_NO_MEMORY` for the text of an event take no event: the
/// next call gives it.
///
/// The pointers in `*ev` are good until the next call on this stream, so use a stream from one
/// thread at a time; `llama_stream_free` from another is fine, a call that waits then returns
/// `LLAMA_CANCELLED`. Not from inside a callback.
llama_status llama_stream_next(llama_stream_t *s,
                               struct llama_event *ev,
                               int32_t timeout_ms,
                               struct llama_error *err);

/// Figures of sequence `i`, once `llama_stream_next` has given its `LLAMA_EVENT_FINISH`; before
/// that `LLAMA_E_INVALID_ARGUMENT`. Set `st->struct_size` first; no more than that is written. Any
/// thread.
llama_status llama_stream_stats(const llama_stream_t *s, size_t i, struct llama_request_stats *st);

/// A descriptor that is readable while `llama_stream_next` would not wait (an event or the end is
/// there), for poll, select and epoll. -1 if there is none, or `s` is not a live stream.
///
/// It belongs to the stream: do not read, write or close it. Any thread.
int llama_stream_fd(const llama_stream_t *s);

/// Free a stream, at any time, from any thread: cancels what is still running of it. NULL, a stale
/// pointer or one of another library's does nothing.
void llama_stream_free(llama_stream_t *s);

/* ==== 8. Tokens: encode and decode ==== */

/// `llama_encode_text`: begin with the BOS token.
#define LLAMA_ENC_BOS 1

/// `llama_encode_text`: end with the EOS token.
#define LLAMA_ENC_EOS 2

/// `llama_encode_text`: read the texts of special and added tokens (`<|eot_id|>`) as these tokens.
/// Without it they are words like others, whoever wrote them.
#define LLAMA_ENC_SPECIAL 4

/// Tokens of a text.
///
/// `s` is UTF-8 of `len` bytes; SIZE_MAX: NUL-terminated. `flags`: `LLAMA_ENC_*`. `buf` has room
/// for `cap` tokens, `*n` is how many there are. Where they do not fit, `LLAMA_E_INVALID_ARGUMENT`
/// is returned with the number needed in `*n` and `buf` untouched; `buf` NULL with a `cap` of 0
/// asks for it and succeeds. Fails with `LLAMA_E_UTF8` too, naming the byte, and with
/// `LLAMA_E_INVALID_ARGUMENT` where more than 1 MiB of the text has no place at which a token must
/// end (SentencePiece models: no space or line feed). `LLAMA_ENC_BOS` and `_EOS` add nothing where
/// the model has no such token, and the former nothing to a text that spells it, with
/// `LLAMA_ENC_SPECIAL`. Time grows with the length of the text and no faster;
/// it cannot be cancelled (`llama_encode_text_bounded`). Any thread, also from inside a callback.
llama_status llama_encode_text(const llama_t *l,
                               const char *s,
                               size_t len,
                               uint32_t flags,
                               int32_t *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/// Tokens of a text that anybody may have sent: as `llama_encode_text`, with two ways to end early.
///
/// `LLAMA_E_TOO_LONG` as soon as it is certain that there are more than `max_tokens` tokens, those
/// of `flags` included (SIZE_MAX: no bound). `LLAMA_CANCELLED` once `cancel` is triggered, which is
/// looked at every few kilobytes (NULL: there is none). Either leaves `*n` and `buf` untouched, and
/// needs no more time and memory than the text up to there does.
llama_status llama_encode_text_bounded(const llama_t *l,
                                       const char *s,
                                       size_t len,
                                       uint32_t flags,
                                       size_t max_tokens,
                                       const llama_cancel_t *cancel,
                                       int32_t *buf,
                                       size_t cap,
                                       size_t *n,
                                       struct llama_error *err);

/// Text of `n` tokens, as the tokenizer decodes a whole sequence: valid UTF-8, a byte that is none
/// becomes U+FFFD, control tokens become nothing.
///
/// `buf` has room for `cap` bytes, `*len` is how many there are, without the NUL that follows them
/// where `cap` is larger. A `cap` that is too small: as in `llama_encode_text`. Tokens must be
/// below the model's vocabulary size (`LLAMA_E_INVALID_ARGUMENT`). Any thread, also from inside a
/// callback.
llama_status llama_decode_tokens(const llama_t *l,
                                 const int32_t *t,
                                 size_t n,
                                 char *buf,
                                 size_t cap,
                                 size_t *len,
                                 struct llama_error *err);

/// What `token` contributes in the middle of a text: its text with spaces as spaces, its one byte
/// if it stands for a byte (which need not be UTF-8 on its own), nothing if it is a control token.
///
/// `*p` is `*n` bytes and a NUL that belong to the handle and are good until `llama_free`. Fails
/// with `LLAMA_E_INVALID_ARGUMENT`. Any thread, also from inside a callback.
llama_status llama_token_bytes(const llama_t *l,
                               int32_t token,
                               const char **p,
                               size_t *n,
                               struct llama_error *err);

/// Tokens of one dialog, as `llama_chat_completion` gives them to the model.
///
/// The messages are as there; in the Llama 2 format a dialog with one of the format's own tags in a
/// message is `LLAMA_E_INVALID_ARGUMENT` here. `buf`, `cap`, `len` (in tokens) and the other
/// errors: as in `llama_encode_text`. Any thread, also from inside a callback.
llama_status llama_encode_dialog(const llama_t *l,
                                 const struct llama_message *msgs,
                                 size_t n,
                                 int32_t *buf,
                                 size_t cap,
                                 size_t *len,
                                 struct llama_error *err);

/* ==== 9. Chat templates: messages and tools as JSON, and the text made of them ==== */

/// `llama_chat_options.flags`: do not begin the answer.
#define LLAMA_CHAT_NO_GENERATION_PROMPT 1

/// Cut behind the last message's content, for the model to go on with it.
#define LLAMA_CHAT_CONTINUE_FINAL 2

/// Texts of special tokens in messages become these tokens. Without it only those that the template
/// itself writes do, and a message cannot end its own turn.
#define LLAMA_CHAT_PARSE_SPECIAL 4

/// What surrounds the messages of `llama_chat`. Fill with `llama_chat_options_init`.
typedef struct llama_chat_options {
  /// `sizeof(llama_chat_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMA_CHAT_*`.
  uint32_t flags;
  /// A JSON array of tools, `{"type": "function", "function": {...}}`; NULL: none.
  const char *tools;
  /// Bytes of `tools`; SIZE_MAX: NUL-terminated.
  size_t tools_len;
  /// A JSON object of variables for the template (`enable_thinking`, `date_string`); NULL: none.
  const char *variables;
  /// Bytes of `variables`; SIZE_MAX: NUL-terminated.
  size_t variables_len;
  /// A Jinja template instead of the handle's; NULL: the handle's.
  const char *chat_template;
  /// Bytes of `chat_template`; SIZE_MAX: NUL-terminated.
  size_t chat_template_len;
} llama_chat_options;

/// Fill `o` with defaults: no tools, no variables, the handle's template; lengths are SIZE_MAX.
/// Pass `sizeof(llama_chat_options)`, which is kept in it.
///
/// Writes nothing if `o` is NULL or `struct_size` above 4096. Any thread.
void llama_chat_options_init(struct llama_chat_options *o, size_t struct_size);

/// Answer `n` dialogs of messages as JSON, by the chat template of `c`, else of the handle, else in
/// Meta's format for its tokenizer. Given to `llama_generate`, of which everything else holds here
/// too.
///
/// `messages[i]` is a JSON array in OpenAI's shape, UTF-8 of `lens[i]` bytes; `lens` NULL, or a
/// length of SIZE_MAX, means NUL-terminated. A message has `role`, `content` (a string, null, or an
/// array of `{"type": "text", "text": ...}`), and perhaps `tool_calls` (whose `arguments` may be a
/// string of JSON), `tool_call_id`, `name`, `reasoning_content`; other keys are given to the
/// template as they are. `c` NULL: no tools, no variables. It is one for all dialogs.
///
/// What a template writes may be special tokens, what messages hold never is (unless
/// `LLAMA_CHAT_PARSE_SPECIAL`); no BOS is added but what the template writes. A template ends
/// within 5 million steps and 64 MiB + 16 bytes for each byte of messages, tools and variables.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` also where JSON cannot be read (naming line and column),
/// where a template refuses the dialog (with its sentence) or has no value for it; with
/// `LLAMA_E_UNSUPPORTED` where there is no template, or it asks for what is not there; with
/// `LLAMA_E_FORMAT` where a template cannot be read or passes a limit.
llama_status llama_chat(llama_t *l,
                        const char *const *messages,
                        const size_t *lens,
                        size_t n,
                        const struct llama_chat_options *c,
                        const struct llama_generate_options *o,
                        llama_result_t **out,
                        struct llama_error *err);

/// Start a call on messages as JSON and pull its events: the prompts of `llama_chat`, and
/// `llama_stream_open` in all else.
llama_status llama_stream_open_messages(llama_t *l,
                                        const char *const *messages,
                                        const size_t *lens,
                                        size_t n,
                                        const struct llama_chat_options *c,
                                        const struct llama_generate_options *o,
                                        llama_stream_t **out,
                                        struct llama_error *err);

/// One dialog as the text that the template makes of it. Arguments and errors as in `llama_chat`; a
/// model in the Llama 2 format has no such text (`LLAMA_E_UNSUPPORTED`).
///
/// `buf` has room for `cap` bytes, `*n` is how many there are, without the NUL that follows them
/// where `cap` is larger. A `cap` that is too small: as in `llama_encode_text`. Any thread, also
/// from inside a callback.
llama_status llama_render_chat(const llama_t *l,
                               const char *messages,
                               size_t len,
                               const struct llama_chat_options *c,
                               char *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/// Tokens of one dialog, as `llama_chat` gives them to the model. Arguments and errors as there.
///
/// `buf`, `cap`, `*n` (in tokens): as in `llama_encode_text`. Any thread, also from inside a
/// callback.
llama_status llama_encode_chat(const llama_t *l,
                               const char *messages,
                               size_t len,
                               const struct llama_chat_options *c,
                               int32_t *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/* ==== 10. Grammars: languages that generated text is kept in ==== */

/// The JSON values of a JSON Schema.
#define LLAMA_GRAMMAR_JSON_SCHEMA 1

/// Any JSON object; without a source.
#define LLAMA_GRAMMAR_JSON 2

/// A regular expression, in the syntax of Rust's regex crate, that matches the whole text.
#define LLAMA_GRAMMAR_REGEX 3

/// A grammar in llguidance's dialect of Lark.
#define LLAMA_GRAMMAR_LARK 4

/// One of the strings of a JSON array: distinct, none empty.
#define LLAMA_GRAMMAR_CHOICE 5

/// Compile a grammar for a handle's tokenizer.
///
/// `kind` is a `LLAMA_GRAMMAR_*`; `source` is UTF-8 of `len` bytes, at most 1 MiB; SIZE_MAX:
/// NUL-terminated. NULL for `LLAMA_GRAMMAR_JSON`. `*out` is the grammar, immutable, for any number
/// of calls on this handle at a time; free it with `llama_grammar_free`. A grammar may outlive its
/// handle, and then fits none. Calls keep what they were given: it may be freed while they run.
///
/// The first grammar of a handle takes up to a second for a large vocabulary, later ones
/// milliseconds. The work is done on a thread of the library's with a stack of its own. Any thread,
/// also from inside a callback.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, with the parser's sentence where it refuses the source or
/// where that is too complex; `_UTF8`, `_NO_MEMORY`, `_UNSUPPORTED`; `*out` is not written then.
llama_status llama_grammar_new(const llama_t *l,
                               int32_t kind,
                               const char *source,
                               size_t len,
                               llama_grammar_t **out,
                               struct llama_error *err);

/// Free a grammar. NULL, a stale pointer or one of another library's does nothing. Calls and streams
/// that were given it go on with it.
void llama_grammar_free(llama_grammar_t *g);

/// Which tokens may follow `n` generated tokens: bit `t % 32` of `mask[t / 32]` for id `t`. A token
/// that ends a sequence may follow where the text is of the language.
///
/// `mask` has room for `words` words, `*needed` is how many there are: one for every 32 ids of the
/// model's vocabulary. Where they do not fit, `LLAMA_E_INVALID_ARGUMENT` is returned with the number
/// needed in `*needed` and `mask` untouched; `mask` NULL with 0 `words` asks for it and succeeds.
/// A token that the grammar does not allow where it stands is `LLAMA_E_INVALID_ARGUMENT` too, and so
/// is a text that is too complex for the parser. Any thread, also from inside a callback.
llama_status llama_grammar_mask(const llama_grammar_t *g,
                                const int32_t *tokens,
                                size_t n,
                                uint32_t *mask,
                                size_t words,
                                size_t *needed,
                                struct llama_error *err);

/* ==== 11. Adapters: LoRA adapters that calls choose ==== */

/// Load a LoRA adapter, a directory as peft writes it, for calls to choose: `*id` is what
/// `llama_generate_options.adapter` names it by, from 1 on and never given again. `scale` weights it.
/// What runs on the handle runs on. The adapter is kept in memory beside the weights (16 bits a number;
/// 32 where the weights are float32), so that rows of different adapters share steps.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_IO`, `_FORMAT`, `_NO_MEMORY`, and `_UNSUPPORTED` for what
/// only merging can do (`modules_to_save`, a rank over 256) and on a GPU. Any thread; not from inside
/// a callback.
llama_status llama_adapter_add(llama_t *l,
                               const char *dir,
                               float scale,
                               uint32_t *id,
                               struct llama_error *err);

/// No new call may name this adapter. Its memory is free when the last call that runs with it has
/// ended.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`. Any thread; not from inside a callback.
llama_status llama_adapter_drop(llama_t *l, uint32_t id, struct llama_error *err);

/* ==== 12. Figures: what was loaded, and totals since then ==== */

/// `llama_info.chat_format`: there is none; chat calls are `LLAMA_E_UNSUPPORTED`.
#define LLAMA_CHAT_NONE 0

/// Meta's Llama 2 format.
#define LLAMA_CHAT_LLAMA2 1

/// Meta's Llama 3 format.
#define LLAMA_CHAT_LLAMA3 2

/// The model's own template.
#define LLAMA_CHAT_TEMPLATE 3

/// What was loaded.
typedef struct llama_info {
  /// `sizeof(llama_info)`, set by the caller.
  uint32_t struct_size;
  /// Token ids are below this.
  uint32_t vocab_size;
  /// Width of the residual stream.
  uint32_t dim;
  /// Layers.
  uint32_t n_layers;
  /// Query heads.
  uint32_t n_heads;
  /// Key and value heads.
  uint32_t n_kv_heads;
  /// Width of one head.
  uint32_t head_dim;
  /// Width of the feed-forward layer.
  uint32_t ffn_dim;
  /// As built.
  uint32_t max_seq_len;
  /// As built.
  uint32_t max_batch_size;
  /// Begin-of-sequence id, -1: none.
  int32_t bos_id;
  /// The first of `eos_ids`, -1: none.
  int32_t eos_id;
  /// Padding id, -1: none.
  int32_t pad_id;
  /// As chosen: `LLAMA_DEVICE_CPU` or `_CUDA`.
  int32_t device;
  /// As chosen: `LLAMA_DTYPE_*`, never AUTO.
  int32_t weights_dtype;
  /// As chosen: `LLAMA_DTYPE_*`, never AUTO.
  int32_t kv_dtype;
  /// Bytes of the weights in memory.
  uint64_t weight_bytes;
  /// Bytes of the KV cache.
  uint64_t kv_bytes;
  /// The device in words, NUL-terminated.
  char device_name[128];
  /// 1 if the library was built with GPU kernels, else 0. `LLAMABI_KERNELS` may name others at
  /// run time.
  uint32_t gpu_kernels;
  /// 0.
  uint32_t reserved0;
  /// `n_eos` tokens, any of which ends a sequence: those of `generation_config.json`,
  /// `config.json` and the tokenizer.
  int32_t eos_ids[16];
  /// How many there are.
  uint32_t n_eos;
  /// What chat calls make of messages: `LLAMA_CHAT_*`.
  uint32_t chat_format;
  /// The model's family, as Hugging Face's `model_type` has it ("llama", "qwen2"); NUL-terminated.
  char model_type[32];
  /// What most of the weights are stored as ("bf16", "GGUF Q4_K", "gptq 4 bits"), whatever
  /// `weights_dtype` they are kept in; NUL-terminated.
  char stored_format[32];
} llama_info;

/// Totals of a handle since it was built.
typedef struct llama_timings {
  /// `sizeof(llama_timings)`, set by the caller.
  uint32_t struct_size;
  /// Sequences running now.
  uint32_t running;
  /// Sequences waiting for a slot now.
  uint32_t waiting;
  /// Sequences that have given their slot up now, because their reader is behind.
  uint32_t parked;
  /// Time `llama_build` took.
  double load_ms;
  /// Time in steps that had prompt tokens.
  double prefill_ms;
  /// Time in steps that had none.
  double decode_ms;
  /// Prompt tokens of all requests.
  uint64_t prompt_tokens;
  /// Of those, taken from the prefix cache.
  uint64_t cached_tokens;
  /// Tokens generated.
  uint64_t generated_tokens;
  /// Steps run: passes through the model, each for all running sequences together.
  uint64_t steps;
  /// Pages of the KV cache that sequences hold now.
  uint64_t pages_used;
  /// Pages of the KV cache.
  uint64_t pages_total;
  /// Masks of grammars that were computed.
  uint64_t masks;
  /// Time that computing them took, on a thread of its own.
  double mask_ms;
  /// Of that, time that generation waited for.
  double mask_wait_ms;
} llama_timings;

/// What was loaded. Set `info->struct_size` first; no more than that is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread, also from inside a callback.
llama_status llama_get_info(const llama_t *l, struct llama_info *info, struct llama_error *err);

/// Totals of the handle since it was built. Set `t->struct_size` first; no more than that is
/// written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread, also from inside a callback.
llama_status llama_get_timings(const llama_t *l, struct llama_timings *t, struct llama_error *err);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  /* LLAMABI_H */
