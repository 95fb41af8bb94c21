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
 *   11. Compression     prompts that become shorter
 *   12. Adapters        LoRA adapters that calls choose
 *   13. Several ranks   one model in several processes
 *   14. Figures         what was loaded, and totals since then
 *
 * All of it is in 0.1, the first release. What a later release adds says so: "Since 0.2."
 *
 * Status and error: every function that can fail returns a llama_status and takes a llama_error of
 * the caller's, or NULL. Out-parameters are written on success only, with three exceptions:
 * LLAMA_CANCELLED gives the partial result, a buffer that is too small gets the size needed, and a
 * llama_build that fails sets *out to NULL.
 *
 * Structs with a struct_size: set it to the sizeof of this header (the *_init functions do). Fields
 * are only ever appended, and a zero in a new field means the old behaviour, so programs and
 * library may be of different versions. Reserved fields are 0.
 *
 * Threads: every function may be called from any thread. Calls on one handle run concurrently and
 * share batches. Callbacks run on the calling thread, never after the call has returned. Inside a
 * callback, call nothing but llama_cancel_trigger, llama_stream_stop and functions that take a
 * const llama_t *.
 *
 * Handles, results, streams, grammars and cancel flags are opaque numbers, which are never
 * dereferenced. A number that is NULL, that was freed, that is from before a fork, or that is not
 * of this copy of the library is refused (LLAMA_E_INVALID_ARGUMENT); the *_free functions ignore
 * it. A child after fork may build handles of its own. A call whose callback forked ends in the
 * child with LLAMA_E_INVALID_ARGUMENT.
 *
 * Text is UTF-8. A length of SIZE_MAX means that a text is NUL-terminated. Text that is returned
 * has a length and a NUL. Arrays and texts have at most INT32_MAX elements.
 *
 * A lack of memory is LLAMA_E_NO_MEMORY, whether a call needs the memory on its own thread or on
 * the engine's, and the handle stays usable. The exceptions:
 *   - A call's few records of fixed size (of the call, its stream, its result). They are tried
 *     before they are taken, so only another thread can take the memory in between.
 *   - The values of a chat template. Two MiB are tried before every MiB of them.
 *   - What the parser of a grammar takes. 64 MiB are tried before a grammar is compiled, when a
 *     text begins, after every 256 KiB that its parser has grown by, and every 10 ms.
 *   - The words of an error or of the log.
 *   - The start of a thread, and the parts of llama_build that parse a checkpoint's tables.
 *   - SentencePiece, for a vocabulary that is not encoded word by word: std::bad_alloc may come
 *     while it unwinds.
 * If malloc refuses one of these, Rust ends the process: it writes "memory allocation of N bytes
 * failed" to standard error and calls abort(). At the start of a thread glibc may do so, and in
 * SentencePiece the C++ runtime.
 *
 * Nothing is global: there is no initialisation, no signal handler and no output. (After a bug in
 * the library, LLAMA_E_INTERNAL, Rust's panic hook prints a line to standard error.)
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

struct llama_comm; /* how ranks in several processes reach each other */

#ifdef __cplusplus
extern "C" {
#endif

/* ==== 1. First things: versions, status and errors ==== */

/// Version of the binary interface: the number in `libllamabi.so.<N>`.
#define LLAMABI_ABI_VERSION 0

/// What a function returns: 0 is success, a positive number is an outcome, a negative number is a
/// failure.
typedef int32_t llama_status;

/// The place where a function says what went wrong. It belongs to the caller, and there is nothing
/// to free.
///
/// Set `struct_size` before the first use. Every call that is given a `llama_error` writes `status`
/// and `message` (`LLAMA_OK` and "" on success). A smaller `struct_size` gets a shorter message; a
/// `struct_size` below 9 gets nothing at all.
typedef struct llama_error {
  /// `sizeof(llama_error)`, set by the caller.
  uint32_t struct_size;
  /// What the function returned.
  llama_status status;
  /// A sentence, in NUL-terminated UTF-8. It names the file, tensor or argument, and both values.
  /// In names, control characters are escaped (`\n`, `\u{1b}`); a long name is shortened in its
  /// middle.
  char message[1016];
} llama_error;

/// Success.
#define LLAMA_OK 0

/// `llama_stream_next`: the stream has ended, and no event was written.
#define LLAMA_DONE 1

/// A cancel flag, a callback or `llama_free` has stopped the call. This is no error: what was
/// generated so far is valid.
#define LLAMA_CANCELLED 2

/// `llama_stream_next`: nothing happened within `timeout_ms`.
#define LLAMA_TIMEOUT 3

/// An argument is NULL, misaligned, out of range, or no live object. The message names the
/// argument.
#define LLAMA_E_INVALID_ARGUMENT -1

/// This library does not know a `struct_size`, an `abi_version`, a reserved field, or something
/// behind the fields that it knows.
#define LLAMA_E_ABI -2

/// A path is missing or unreadable, or a file ended early.
#define LLAMA_E_IO -3

/// A file can be read, but it is of the wrong kind or contradicts itself.
#define LLAMA_E_FORMAT -4

/// This build or machine does not offer something that the library knows. The message says why.
#define LLAMA_E_UNSUPPORTED -5

/// The machine, its cgroup or a limit of this process (`RLIMIT_AS`, `RLIMIT_DATA`) does not give
/// the memory or the thread that is needed. The message has both numbers and names the limit.
#define LLAMA_E_NO_MEMORY -6

/// A device failed.
#define LLAMA_E_DEVICE -7

/// The device does not give the memory that is needed.
#define LLAMA_E_DEVICE_MEMORY -8

/// A prompt is longer than `max_seq_len`.
#define LLAMA_E_TOO_LONG -9

/// There are no prompts, more than 65,536 sequences, or more sequences or beams of a prompt than
/// `max_batch_size`.
#define LLAMA_E_BATCH -10

/// A text is not UTF-8. The message names the argument and the byte.
#define LLAMA_E_UTF8 -11

/// Slots are missing for a call with `LLAMA_GEN_NO_WAIT`, or as many calls wait as `max_waiting`
/// allows. `llama_compress` has another reason. Try again later.
#define LLAMA_E_BUSY -12

/// An earlier panic or device failure has left the handle unusable. Free it.
#define LLAMA_E_POISONED -13

/// Another rank of the model failed, or was silent for longer than `rank_timeout_ms`.
#define LLAMA_E_PEER -14

/// A bug in this library, which was caught.
#define LLAMA_E_INTERNAL -99

/// Returns the version of the library that was loaded, in the form of `LLAMABI_VERSION`. The text
/// is never freed. Any thread may call this.
const char *llama_version(void);

/// Returns the `LLAMABI_ABI_VERSION` of the library that was loaded. Any thread may call this.
uint32_t llama_abi_version(void);

/// Describes a status in a few words. The text is never NULL and never freed. Any thread may call
/// this.
const char *llama_status_string(llama_status s);

/* ==== 2. Models: load one, free it ==== */

/// `device`: the best device that is usable.
#define LLAMA_DEVICE_AUTO 0

/// `device`: the CPU. CUDA is never touched.
#define LLAMA_DEVICE_CPU 1

/// `device`: an NVIDIA GPU. Without one the build fails.
#define LLAMA_DEVICE_CUDA 2

/// `weights_dtype`: the type in which the weights are stored (for a checkpoint of
/// `llamabi-quantize`, the type to which it was quantised). `kv_dtype`: F32 for f32 weights,
/// F16 for f16 weights, otherwise BF16.
#define LLAMA_DTYPE_AUTO 0

/// IEEE binary32.
#define LLAMA_DTYPE_F32 1

/// IEEE binary16.
#define LLAMA_DTYPE_F16 2

/// bfloat16.
#define LLAMA_DTYPE_BF16 3

/// 8-bit integers. Weights have an f16 scale for each group of 32 along a row; a checkpoint of
/// floats is quantised while it is loaded. With `kv_dtype`, the vector of each head has a scale.
///
/// With INT8 and with the 4-bit formats, the head is INT8, too, and the embedding stays in 16 bits;
/// an embedding that also serves as the head is INT8. Activations of generated tokens are rounded
/// to 16-bit integers.
#define LLAMA_DTYPE_INT8 4

/// 4-bit integers, for weights only: symmetric, with an f16 scale for each group of 32 along a row.
/// The scales are found by a search for the smallest error.
#define LLAMA_DTYPE_INT4 5

/// 4-bit normal float with double quantisation, as QLoRA and bitsandbytes define it, for weights
/// only. A block is 64 numbers along a row; 64 must divide the length of a row.
#define LLAMA_DTYPE_NF4 6

/// 8-bit floats (e4m3), on GPUs; on the CPU this is `LLAMA_E_UNSUPPORTED`. Weights have an f16
/// scale for each group of 128 along a row; a checkpoint of floats is quantised while it is loaded,
/// with the head and the embedding as with INT8. With `kv_dtype`, the vector of each head has a
/// scale.
#define LLAMA_DTYPE_FP8 7

/// 4-bit integers with minima and with scales of two levels. Q4_K of GGUF files is kept in this
/// form, exactly. `llama_info` reports it. As an option it is `LLAMA_E_UNSUPPORTED`, because
/// AUTO keeps weights that are stored so.
#define LLAMA_DTYPE_K4 8

/// 8-bit integers with scales of two levels. Q3_K of GGUF files is kept in this form, exactly. The
/// rest is as with K4.
#define LLAMA_DTYPE_K8 9

/// 5-bit integers, otherwise as K4. Q5_K of GGUF files is kept in this form, exactly. The rest is
/// as with K4.
#define LLAMA_DTYPE_K5 10

/// 6-bit integers with scales of two levels. Q6_K of GGUF files is kept in this form, exactly. The
/// rest is as with K4.
#define LLAMA_DTYPE_K6 11

/// 4-bit codes for a table of 16 integers, with an f16 scale for each group of 32 along a row.
/// IQ4_NL of GGUF files is kept in this form, exactly, and IQ4_XS with its scales rounded to f16.
/// The rest is as with K4.
#define LLAMA_DTYPE_IQ4 12

/// 4-bit integers with a scale and a zero point, both f16, for each group of 32 along a row. AWQ,
/// asymmetric GPTQ and compressed-tensors, and Q4_1 of GGUF files are kept in this form. The rest
/// is as with K4.
#define LLAMA_DTYPE_UINT4 13

/// Something failed.
#define LLAMA_LOG_ERROR 1

/// The library made a choice that one may not expect.
#define LLAMA_LOG_WARN 2

/// What was loaded and chosen.
#define LLAMA_LOG_INFO 3

/// Details of every request.
#define LLAMA_LOG_DEBUG 4

/// `LLAMA_PRECISION_FULL`; but if `max_batch_size` is above 8, or above 12 for most quantised
/// weights on a processor with AMX, generated rows are multiplied as those of prompts are, which is
/// faster for many sequences. (With int4 and Q4_K, and up to 16 sequences on such a processor, they
/// have the 8-bit activations of `LLAMA_PRECISION_FAST`.)
#define LLAMA_PRECISION_AUTO 0

/// Activations are rounded so little that it does not show beside the rounding of the weights, and
/// those of generated rows less. For few sequences this costs no time, because the processor waits
/// for weights.
#define LLAMA_PRECISION_FULL 1

/// The fastest arithmetic that the processor has: activations in bfloat16 with weights of 16 bits,
/// in 8 bits with quantised weights. For many sequences. A GPU has one arithmetic, which this does
/// not change.
#define LLAMA_PRECISION_FAST 2

/// Receives the fraction of the checkpoint that has been read. The fraction is 0 to 1 and never
/// falls. A return value of 0 stops the loading.
typedef int32_t (*llama_progress_fn)(void *user_data, float fraction);

/// Receives a log line of `len` bytes, NUL-terminated and without a line feed. It runs on a thread
/// that is inside a call on the handle, so it may run on several threads at once if several use the
/// handle.
typedef void (*llama_log_fn)(void *user_data, int32_t level, const char *msg, size_t len);

/// Options of `llama_build`. Fill with `llama_build_options_init`, then change what you like.
typedef struct llama_build_options {
  /// `sizeof(llama_build_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMABI_ABI_VERSION` of that header.
  uint32_t abi_version;
  /// The most tokens of a sequence, with its prompt. Default: 512.
  uint32_t max_seq_len;
  /// The most sequences that run at the same time. More sequences wait, be they of one call or of
  /// several. Default: 8.
  uint32_t max_batch_size;
  /// The number of shards of the checkpoint (1 for Hugging Face's form), or 0 for as many as it
  /// has. Another number is refused. With `devices`, it is their number, or 0, and the checkpoint
  /// may have any number of shards.
  int32_t model_parallel_size;
  /// `LLAMA_DEVICE_*`.
  int32_t device;
  /// Which device, if there are several. It must be 0 on the CPU.
  int32_t device_index;
  /// Threads of the CPU backend, at most 1024; with `devices`, those of each rank. 0 means as
  /// many as the affinity mask and the cgroup allow, shared among the ranks.
  uint32_t n_threads;
  /// `LLAMA_DTYPE_*` of the weights, which are converted while they are read.
  int32_t weights_dtype;
  /// `LLAMA_DTYPE_*` of the KV cache.
  int32_t kv_dtype;
  /// Seeds the generator that gives a seed to calls whose own seed is 0. Default: 1.
  uint64_t seed;
  /// A flag that stops the loading. It is borrowed for the call.
  llama_cancel_t *cancel;
  /// Called on the calling thread during the loading. NULL means never.
  llama_progress_fn progress;
  /// Passed to `progress`.
  void *progress_user_data;
  /// Receives the log lines of this handle. NULL means that nothing is logged.
  llama_log_fn log;
  /// Passed to `log`. It must live until `llama_free` has returned and no call on the handle
  /// runs.
  void *log_user_data;
  /// The least severe lines that `log` receives, `LLAMA_LOG_*`. 0 means none. Default:
  /// `LLAMA_LOG_INFO`.
  int32_t log_level;
  /// Must be 0.
  uint32_t reserved0;
  /// The most bytes of GPU memory that the handle allocates. A model that needs more is
  /// `LLAMA_E_DEVICE_MEMORY`. 0 means as many bytes as are free. Memory that the driver takes for
  /// itself (its context, the kernels, CUDA graphs) does not count.
  uint64_t gpu_memory_bytes;
  /// The most calls that may wait. A call waits while none of its sequences has begun because
  /// every slot is taken. One call more is `LLAMA_E_BUSY`. 0 means 1024.
  uint32_t max_waiting;
  /// How long, in milliseconds, a sequence keeps its slot while other sequences wait and its own
  /// reader is behind. A reader is behind from when more than 1,024 events or 4 MiB are queued
  /// until half of that is left. After this time the sequence's part of the KV cache is copied
  /// out of the cache. It is copied back when the reader has caught up and it is the sequence's
  /// turn, and the text continues with the same bytes. 0 means 1000.
  uint32_t max_stall_ms;
  /// A stream ends with `LLAMA_FINISH_UNREAD` when its reader is behind and has taken no event
  /// for so many milliseconds, whether others wait or not. 0 means 60000. UINT32_MAX means that
  /// no stream ends for this reason.
  uint32_t max_unread_ms;
  /// `LLAMA_PRECISION_*`: how exactly the CPU multiplies. It decides the results of a handle, and
  /// they depend on nothing that runs beside them.
  int32_t precision;
  /// The most host memory for what is copied out of the KV cache because of `max_stall_ms`. When
  /// this is used up, or half of the memory that the process can still have, the stream that has
  /// gone unread the longest ends with `LLAMA_FINISH_UNREAD`. So no reader keeps a slot idle for
  /// longer than `max_stall_ms` while others wait. 0 means as many bytes as the KV cache has.
  uint64_t stall_memory_bytes;
  /// A Jinja template for chats, in NUL-terminated UTF-8, which replaces the model's. NULL means
  /// the model's template.
  const char *chat_template;
  /// The time that `strftime_now` of a template uses, in seconds since 1970. 0 means the clock.
  int64_t chat_now;
  /// Directories of LoRA adapters as peft writes them, NUL-terminated. The adapters are merged
  /// into the weights in this order while the weights are read. NULL if there are none.
  const char *const *adapters;
  /// The weight of each adapter, a finite number. NULL means 1 for all.
  const float *adapter_scales;
  /// Number of adapters, at most 256.
  size_t n_adapters;
  /// Where the ranks of this process are, each with its share of every matrix and of the KV cache
  /// (tensor parallelism). With `device` CUDA: GPUs, by the numbers of `device_index`, each named
  /// once; `gpu_memory_bytes` is that of each GPU. They exchange numbers by NCCL where it can be
  /// opened (`libnccl.so.2`), otherwise through the memory of the host, which is slow. This has
  /// not been run on real GPUs yet. With other devices: NUMA nodes of this machine, by the
  /// numbers of `lscpu`, on which the ranks' threads stay; a node may be named more than once.
  /// The number of ranks must divide the heads. It changes the bits of results, as another
  /// instruction set does. NULL if there are none: one rank, on `device_index`.
  const int32_t *devices;
  /// Number of devices, at most 64.
  uint32_t n_devices;
  /// How long a rank may be silent, in milliseconds, while others wait for it. After that, calls
  /// fail with `LLAMA_E_PEER`. 0 means 60000.
  uint32_t rank_timeout_ms;
  /// Ranks in several processes, on one machine or several: this one must be rank 0, and the
  /// others call `llama_worker_run`. The struct is copied. NULL means that there are none. Not
  /// together with `devices`: a process is one rank, with `device` CUDA on the GPU
  /// `device_index`. `device` is the same on all ranks; AUTO means the CPU.
  const struct llama_comm *comm;
  /// The checkpoint of a draft model, with its tokenizer, in any form that `llama_build` takes: a
  /// smaller model with the same tokens. It guesses at tokens (`speculation`), or it is the model
  /// whose preferences `contrast_beta` takes away. It is loaded beside the model, onto the same
  /// device, and is freed with it. NULL means that there is none. Not with `devices` or `comm`.
  const char *draft_dir;
  /// As `weights_dtype`, for the draft model. AUTO: as its checkpoint has them.
  int32_t draft_weights_dtype;
  /// As `kv_dtype`, for the draft model. AUTO: what goes with its weights.
  int32_t draft_kv_dtype;
  /// A directory of Medusa heads that were trained for this checkpoint
  /// (`medusa_lm_head.safetensors` or `.pt`, and `config.json`). They guess at tokens
  /// (`speculation`), each one token further ahead. At most 16 are used. They are kept in the
  /// format of the model's head. NULL means that there are none. Not with `devices` or `comm`.
  const char *medusa_dir;
  /// How long a step should take at most, in milliseconds, that computes a chunk of a prompt
  /// beside running streams. It is about the longest time between two tokens of a stream while
  /// prompts arrive; with less of it, prompts take longer. Prompts get a third of a step's time
  /// at least, and 16 tokens (32 on a processor with AMX), whatever that takes. Sequences of
  /// calls without `on_event` are not waited for token by token, and hold no prompt back. 0 means
  /// 100. Results do not depend on it.
  uint32_t max_step_ms;
  /// Must be 0.
  uint32_t reserved1;
  /// With `device` CUDA and `devices` or `comm`: the 128 bytes that `ncclGetUniqueId` has given,
  /// if the caller wants to say which communicator of NCCL the ranks' GPUs make. It must be of no
  /// other communicator. With `comm`, rank 0 sends it to the others. NULL: the library makes one.
  const void *nccl_unique_id;
} llama_build_options;

/// Fill `o` with defaults. Pass `sizeof(llama_build_options)` and `LLAMABI_ABI_VERSION`. Both are
/// kept in `o`, so that `llama_build` knows which header the caller was compiled with.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
void llama_build_options_init(struct llama_build_options *o,
                              size_t struct_size,
                              uint32_t abi_version);

/// Load a model.
///
/// `ckpt_dir` holds Meta's form (`params.json`, `consolidated.NN.pth`) or Hugging Face's
/// (`config.json`, `*.safetensors` or `pytorch_model.bin`), or is a GGUF file (the first of a split
/// set), or a directory with one. `tokenizer_path` may be NULL, which means the model's own
/// (`tokenizer.model`, `tokenizer.json`, `tekken.json`, or the GGUF file's). `o` may be NULL, which
/// means defaults. On success `*out` is the handle; free it with `llama_free`. Otherwise `*out` is
/// NULL and nothing is left behind. Any thread may call this, but not from inside a callback.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, `_IO` (a path is missing or unreadable),
/// `_FORMAT` (a file is of the wrong kind), `_UNSUPPORTED`, `_NO_MEMORY`, `_DEVICE`,
/// `_DEVICE_MEMORY`. Returns `LLAMA_CANCELLED` if `o->cancel` or `o->progress` stopped it.
llama_status llama_build(const char *ckpt_dir,
                         const char *tokenizer_path,
                         const struct llama_build_options *o,
                         llama_t **out,
                         struct llama_error *err);

/// Free a handle. Calls that run on it are cancelled: they return `LLAMA_CANCELLED` with what they
/// have, and the last of them drops the weights. Results and streams stay valid; streams end as
/// cancelled. The bytes that `llama_token_bytes` gave do not stay valid.
///
/// NULL, a handle that was freed already, a handle from before a fork, and a pointer that is not
/// this library's are ignored and not read. Any thread may call this. It also works from inside a
/// callback; the call that the callback belongs to then ends as cancelled.
void llama_free(llama_t *l);

/// Does the same as `llama_free`, under a name that no other library has.
void llama_destroy(llama_t *l);

/* ==== 3. Generating: continue texts or tokens: options, events ==== */

/// `max_gen_len`: as many tokens as `max_seq_len` has room for.
#define LLAMABI_MAX_GEN_LEN_DEFAULT UINT32_MAX

/// Put the prompt's tokens in front of the result, and report them as events.
#define LLAMA_GEN_ECHO 1

/// Report the log probability of each token.
#define LLAMA_GEN_LOGPROBS 2

/// Fail with `LLAMA_E_BUSY` unless there is a free slot for every prompt now.
#define LLAMA_GEN_NO_WAIT 4

/// Go on after an end-of-sequence token, which then is part of the result.
#define LLAMA_GEN_IGNORE_EOS 8

/// Report every step of a beam search as `LLAMA_EVENT_BEAM`. Only with `num_beams` above 1.
#define LLAMA_GEN_BEAM_EVENTS 16

/// Show special tokens (`<|python_tag|>`) in texts, where they are left out otherwise. The
/// end-of-sequence token that ends a sequence is never shown.
#define LLAMA_GEN_SPECIAL 32

/// A token, generated or echoed.
#define LLAMA_EVENT_TOKEN 1

/// A sequence has ended; nothing with its index follows.
#define LLAMA_EVENT_FINISH 2

/// A beam continued with a token, or finished with it (`LLAMA_GEN_BEAM_EVENTS`).
#define LLAMA_EVENT_BEAM 3

/// `early_stopping`: a search ends when there are num_beams finished beams and the best running
/// beam, if it ended here, would not be one of the best num_beams.
#define LLAMA_EARLY_FALSE 0

/// `early_stopping`: a search ends when there are num_beams finished beams.
#define LLAMA_EARLY_TRUE 1

/// `early_stopping`: a search ends when no running beam can become one of the best num_beams any
/// more, however long it becomes.
#define LLAMA_EARLY_NEVER 2

/// An end-of-sequence token ended the sequence.
#define LLAMA_FINISH_STOP 1

/// `max_gen_len` or `max_seq_len` ended the sequence.
#define LLAMA_FINISH_LENGTH 2

/// A cancel flag, a callback or `llama_free` ended the sequence.
#define LLAMA_FINISH_CANCELLED 3

/// A stop string ended the sequence.
#define LLAMA_FINISH_STOP_STRING 4

/// The dialog contained a special tag of the chat format, so it was not given to the model.
#define LLAMA_FINISH_UNSAFE 5

/// `max_time_ms` ended the sequence. The status of the call is `LLAMA_OK`.
#define LLAMA_FINISH_TIME 6

/// `on_stop` or `llama_stream_stop` ended the sequence. The status of the call is `LLAMA_OK`.
#define LLAMA_FINISH_CALLER 7

/// Nobody read the stream for too long (`max_unread_ms`, `stall_memory_bytes`). The status of the
/// call is `LLAMA_OK`, and what was generated until then can still be read.
#define LLAMA_FINISH_UNREAD 8

/// No logit of the next position was finite, so no token was possible. The weights are finite, but
/// the arithmetic could not hold the numbers that they gave. This ends this sequence alone.
#define LLAMA_FINISH_NOT_FINITE 9

/// Every token has a step of its own.
#define LLAMA_SPEC_OFF 0

/// Whatever guesses at tokens there are; first of all, what the grammar leaves no choice about.
#define LLAMA_SPEC_AUTO 1

/// What followed the last two to four tokens before: in `predicted`, in the prompt, in the output.
#define LLAMA_SPEC_NGRAM 2

/// What the draft model (`draft_dir`) would choose. An argument error on a handle without one.
#define LLAMA_SPEC_DRAFT 3

/// What Medusa heads (`medusa_dir`) would choose. An argument error on a handle without any.
#define LLAMA_SPEC_MEDUSA 4

/// The step that made the token had no guess at it.
#define LLAMA_DRAFT_NONE 0

/// The guess at the token was right, so the token needed no step of its own.
#define LLAMA_DRAFT_ACCEPTED 1

/// The guess was another token. Guesses behind it came to nothing.
#define LLAMA_DRAFT_REJECTED 2

/// A token and its log probability. This layout is frozen.
typedef struct llama_alternative {
  /// Token id.
  int32_t token;
  /// Natural log of the token's probability under the model, before penalty and temperature. It
  /// is <= 0 and never NaN. It is minus infinity for a token that is impossible because its logit
  /// is not finite or because the difference is beyond float32.
  float logprob;
} llama_alternative;

/// Something that happened to one sequence of a call. The pointers are valid until the callback
/// returns, or until the next `llama_stream_next` or `llama_stream_free` on the stream.
typedef struct llama_event {
  /// `sizeof(llama_event)`, set by the caller of `llama_stream_next`.
  uint32_t struct_size;
  /// `LLAMA_EVENT_*`.
  int32_t kind;
  /// Which sequence of the call. BEAM: the first sequence of the prompt.
  uint32_t index;
  /// TOKEN: its id. FINISH: -1. BEAM: the beam's last token.
  int32_t token;
  /// TOKEN: its log probability, as in `llama_alternative`; 0 unless `LLAMA_GEN_LOGPROBS` was
  /// given.
  float logprob;
  /// FINISH: `LLAMA_FINISH_*`. TOKEN: 0. BEAM: 0, or why the beam has finished.
  int32_t finish_reason;
  /// The text that became certain: whole UTF-8 code points, NUL-terminated. It is often empty.
  const char *text;
  /// Bytes of `text`, without the NUL.
  size_t text_len;
  /// The most likely tokens at this position, best first. NULL if there are none.
  const struct llama_alternative *top;
  /// Number of these tokens.
  size_t n_top;
  /// BEAM: the beam's place. Running beams have the places from 0 on, best first; finished beams
  /// have those from num_beams on. Otherwise 0.
  uint32_t beam;
  /// BEAM: the place of the beam that this beam continues, in the step before. Otherwise 0.
  uint32_t parent;
  /// The sum that `llama_result_score` gives. BEAM: of the beam. FINISH: of the sequence.
  /// Otherwise 0.
  float sum_logprob;
  /// The score that `llama_result_score` gives, of the same. A running beam has the score that it
  /// would have if it ended here.
  float score;
  /// TOKEN: what became of the guess at it, `LLAMA_DRAFT_*`. Otherwise 0.
  int32_t draft;
  /// BEAM: the step of the search, from 1: as many tokens has the beam generated. Otherwise 0.
  uint32_t step;
} llama_event;

/// Receives every event of a call, on the thread that made the call. A return value of 0 stops the
/// whole call.
///
/// Inside it, as inside every callback, only `llama_cancel_trigger`, `llama_stream_stop` and
/// functions that take a `const llama_t *` may be called. Those that would run a model return
/// `LLAMA_E_INVALID_ARGUMENT`. A callback must return: no exception may leave it, and no longjmp. A
/// callback that blocks is a reader that is behind (`max_stall_ms`, `max_unread_ms`).
typedef int32_t (*llama_event_fn)(void *user_data, const struct llama_event *ev);

/// A number that is added to the logit of a token. This layout is frozen.
typedef struct llama_bias {
  /// Token id.
  int32_t token;
  /// A finite number, or minus infinity, which makes the token impossible.
  float bias;
} llama_bias;

/// A row of logits before a token is drawn from it, and the tokens that it follows. The pointers
/// are valid until the callback returns.
typedef struct llama_logits {
  /// `sizeof(llama_logits)` of the library.
  uint32_t struct_size;
  /// Which sequence of the call.
  uint32_t index;
  /// The sequence's prompt, followed by its output so far.
  const int32_t *tokens;
  /// Number of these tokens.
  size_t n_tokens;
  /// How many of them belong to the prompt.
  size_t n_prompt;
  /// The logit of each token of the vocabulary, after penalties, biases, bans and grammar. The
  /// callback may change them. A number that is not finite makes the token impossible.
  float *logits;
  /// Number of logits: the size of the vocabulary.
  size_t n_logits;
} llama_logits;

/// Called before every token of a call's sequences is drawn, on the thread that is inside
/// `llama_generate` or `llama_stream_next`, under the rules of `llama_event_fn`. The logits that it
/// leaves in `row->logits` go on to temperature and to everything that follows temperature. What
/// the grammar forbids stays impossible, and so do tokens that the tokenizer does not have. Log
/// probabilities stay those of the model. A return value of 0 stops the whole call, which ends as
/// cancelled.
///
/// The sequence waits for its callback; the others continue.
typedef int32_t (*llama_logits_fn)(void *user_data, const struct llama_logits *row);

/// Called for every generated token of a call, before `on_event` receives it. It is given the
/// sequence's prompt and output so far: `n` tokens, of which `n_prompt` belong to the prompt. A
/// return value other than 0 ends this sequence with this token and `LLAMA_FINISH_CALLER`; the
/// others continue. The outcome is the beginning of what the sequence would be without this
/// callback, to the bit. It is called under the rules of `llama_event_fn`.
typedef int32_t (*llama_stop_fn)(void *user_data,
                                 uint32_t index,
                                 const int32_t *tokens,
                                 size_t n,
                                 size_t n_prompt);

/// Options of a generation. Fill with `llama_generate_options_init`, then change what you like.
typedef struct llama_generate_options {
  /// `sizeof(llama_generate_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMA_GEN_*`, or-ed.
  uint32_t flags;
  /// The most tokens to generate for each sequence. 0 generates none and scores the prompt.
  /// Default: `LLAMABI_MAX_GEN_LEN_DEFAULT`.
  uint32_t max_gen_len;
  /// Temperature: finite and >= 0. 0 takes the most likely token. Default: 0.6.
  float temperature;
  /// Nucleus sampling keeps the most likely tokens until their probabilities exceed this; 0 to 1.
  /// Default: 0.9.
  float top_p;
  /// Keep so many of the most likely tokens. 0: off.
  int32_t top_k;
  /// Keep tokens with at least this share of the most likely token's probability, 0 to 1. 0: off.
  float min_p;
  /// A finite number > 0. It is applied once for each distinct token of prompt and output. 1:
  /// off.
  float repetition_penalty;
  /// The same seed gives the same text. 0 means the next number of the handle's generator.
  uint64_t seed;
  /// Texts that end a sequence and are cut off, in NUL-terminated UTF-8, borrowed for the call.
  /// They are looked for in what the model writes after its prompt. This includes the space with
  /// which a first token may begin and which the returned text does not have; but a stop string
  /// of spaces alone is looked for only in the returned text.
  const char *const *stop;
  /// Number of stop strings, at most 1024.
  size_t n_stop;
  /// A flag that stops the call. It is borrowed for the call, or until the stream is freed.
  llama_cancel_t *cancel;
  /// Receives every event. NULL means none. Without it, a call of many prompts ends sooner: see
  /// `max_step_ms`. It must be NULL for `llama_stream_open`.
  llama_event_fn on_event;
  /// Passed to `on_event`, `on_logits` and `on_stop`.
  void *user_data;
  /// How many of the most likely tokens to report for each token, up to the vocabulary. 0: none.
  uint32_t top_logprobs;
  /// Must be 0.
  uint32_t reserved1;
  /// A prompt takes pages from the prefix cache only if they are of calls with the same salt. So
  /// neither `cached_tokens` nor the time to the first token tells what callers with another salt
  /// have sent. Any number will do, and results do not depend on it. All callers that give 0
  /// share their pages.
  uint64_t cache_salt;
  /// Sequences that continue each prompt, 1 to max_batch_size; 0 means 1. Sequence `i *
  /// num_return_sequences + j` is the j-th of prompt i, in results, events and random draws. The
  /// outcome is, to the bit, that of a call that has each prompt so many times in a row. But the
  /// prompt is computed once, and all of its sequences begin together if there are slots for all.
  uint32_t num_return_sequences;
  /// A number above 1 asks for a beam search with so many beams for each prompt, up to
  /// max_batch_size; 0 and 1 ask for none. The sequences of a prompt are then its best
  /// num_return_sequences results, best first; there are at most num_beams. A search takes the
  /// likeliest continuations by their sums of log probabilities, after penalties, biases, bans
  /// and grammar. Temperature and the filters of draws have no effect. Its TOKEN events come at
  /// its end, and top_logprobs is at most 128.
  uint32_t num_beams;
  /// A grammar of `llama_grammar_new` with this handle: the returned text is of its language.
  /// NULL means none. A text ends with `LLAMA_FINISH_STOP` if the model ends it or if nothing can
  /// follow. A text that something else ends (`max_gen_len`, a stop string) may not be of the
  /// language. It cannot be given together with `LLAMA_GEN_IGNORE_EOS`. A text that is too
  /// complex for the parser ends the call with `LLAMA_E_INVALID_ARGUMENT`.
  const llama_grammar_t *grammar;
  /// So many tokens are generated before an end-of-sequence token or one of `stop_tokens` is
  /// possible; at most `max_gen_len`. A stop string ends a sequence at any length. Default: 0.
  uint32_t min_gen_len;
  /// Prompt and output together have no run of so many tokens twice: a token that would complete
  /// such a run is impossible. 0: off.
  uint32_t no_repeat_ngram_size;
  /// OpenAI's presence penalty: subtracted from the logit of every token that the output has.
  /// Finite. Default: 0.
  float presence_penalty;
  /// OpenAI's frequency penalty: subtracted from the logit of a token as often as the output has
  /// the token. Finite. Default: 0.
  float frequency_penalty;
  /// Typical sampling: of the tokens that the filters above leave, keep those whose surprise -ln
  /// p is nearest to the entropy, until their probabilities reach this; 0 to 1. 0: off.
  float typical_p;
  /// After that, drop tokens less probable than this; 0 to below 1. The most likely token stays.
  /// 0: off.
  float epsilon_cutoff;
  /// After that, drop tokens that are less probable than this and less probable than its square
  /// root times exp(-entropy); 0 to below 1. The most likely token stays. 0: off.
  float eta_cutoff;
  /// So many milliseconds after the call, each of its sequences ends with `LLAMA_FINISH_TIME`,
  /// when the step that is under way has ended. This includes a sequence that still waits for a
  /// slot. A text that is being encoded is encoded first; that time counts. 0: never.
  uint32_t max_time_ms;
  /// Biases that are added to logits after the penalties. A token may stand here several times.
  /// They are borrowed for the call.
  const struct llama_bias *logit_bias;
  /// Number of biases, at most 65536.
  size_t n_logit_bias;
  /// Tokens that end a sequence as an end-of-sequence token does and are no part of the result.
  /// They do so with `LLAMA_GEN_IGNORE_EOS`, too. They are borrowed for the call.
  const int32_t *stop_tokens;
  /// Number of stop tokens, at most 65536.
  size_t n_stop_tokens;
  /// Sequences of tokens, end to end. When prompt and output end with all tokens of a sequence
  /// but its last, the last token is impossible. They are borrowed for the call.
  const int32_t *bad_words;
  /// The number of tokens of each, at least 1. Together they are at most 65536.
  const size_t *bad_word_lens;
  /// Number of bad words.
  size_t n_bad_words;
  /// The LoRA adapter with which the sequences are computed: an id of `llama_adapter_add`. 0:
  /// none.
  uint32_t adapter;
  /// Must be 0.
  uint32_t reserved_adapter;
  /// The score of a beam is its sum of log probabilities, divided by its length to this power.
  /// Above 0, long beams gain. Finite. Without num_beams it has no effect. Default: 1.
  float length_penalty;
  /// When a beam search ends: `LLAMA_EARLY_*`. Default: `LLAMA_EARLY_FALSE`.
  int32_t early_stopping;
  /// Changes the logits of every token. NULL means that nothing does. Not with beams. For a
  /// stream, `llama_stream_next` calls it, until the stream is freed.
  llama_logits_fn on_logits;
  /// Says which token is a sequence's last; NULL: not. Not with beams. Of a stream as
  /// `on_logits`.
  llama_stop_fn on_stop;
  /// `LLAMA_SPEC_*`: whether tokens that come are guessed at, so that one step computes several.
  /// Tokens, log probabilities and texts are to the bit what they are without, at any
  /// temperature; the time is not. Beam searches and calls with `on_logits` go without. OFF.
  int32_t speculation;
  /// 0: as many guesses in a step as measurements say that pay, often none. 1 to 16: always so
  /// many, wherever something is found and the step has room.
  uint32_t draft_len;
  /// Tokens of a text that the output may repeat in parts, as an edited file repeats the old one.
  /// Borrowed for the call.
  const int32_t *predicted;
  /// How many, at most 65536.
  size_t n_predicted;
  /// Phrases that every result of a beam search has, unless `max_gen_len` comes first: groups,
  /// each satisfied by one of its alternatives (one: a phrase). The tokens of all alternatives,
  /// end to end. Borrowed for the call. Only with num_beams above 1, and without a grammar.
  const int32_t *force_words;
  /// Tokens of each alternative, at least 1; together at most 65536. None may begin with another
  /// of its group. The shortest of each group, together, must fit into `max_gen_len`.
  const size_t *force_word_lens;
  /// Alternatives of each group, at least 1.
  const size_t *force_group_lens;
  /// How many groups.
  size_t n_force_groups;
  /// Contrastive decoding with the draft model (`draft_dir`): a token is chosen from
  /// `(1 + contrast_beta) * logit - contrast_beta * logit of the draft model`, in float32, before
  /// penalties, filters and draw. So what both models say counts less, and what only the larger
  /// one knows counts more; 0.5 is usual. Log probabilities stay the model's. The draft model
  /// drafts nothing then. Finite, at least 0, and 0 with beams. Default: 0, off.
  float contrast_beta;
  /// Only tokens count that have, in the model, at least this share of the probability of the
  /// most likely token that nothing forbids: 0 to 1; 0 means 0.1. It has no effect without
  /// contrast_beta.
  float contrast_alpha;
} llama_generate_options;

/// Fill `o` with defaults. Pass `sizeof(llama_generate_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
void llama_generate_options_init(struct llama_generate_options *o, size_t struct_size);

/// Continue `n` prompts of tokens and wait for the end.
///
/// `tokens` has all prompts end to end, and `lens[i]` is the length of prompt `i`, at least 1. `o`
/// may be NULL, which means defaults. `*out` is the result; free it with `llama_result_free`. `out`
/// may be NULL if `o->on_event` is given. Everything that is given is borrowed for the call. Any
/// number of threads may call this at a time: calls on one handle share batches and do not change
/// each other's results. Callbacks run on the calling thread. Do not call this from inside a
/// callback.
///
/// More prompts than max_batch_size run in order as slots become free, and each gives what it would
/// give if all ran at once. Calls begin in the order in which they came. Each begins up to
/// max_batch_size prompts before it is the next call's turn, so that no call keeps the others out.
///
/// Returns `LLAMA_CANCELLED`, with what was generated so far in `*out`, if `o->cancel`,
/// `o->on_event`, `o->on_logits` or `llama_free` stopped it. Fails with `LLAMA_E_INVALID_ARGUMENT`,
/// `_ABI`, `_BATCH` (see there), `_TOO_LONG` (a prompt is longer than max_seq_len), `_UTF8` (a stop
/// string), `_BUSY` (with `LLAMA_GEN_NO_WAIT`, or if as many calls wait as `max_waiting` allows),
/// `_NO_MEMORY`, `_DEVICE`, `_POISONED`, `_INTERNAL`. `*out` is not written then.
llama_status llama_generate(llama_t *l,
                            const int32_t *tokens,
                            const size_t *lens,
                            size_t n,
                            const struct llama_generate_options *o,
                            llama_result_t **out,
                            struct llama_error *err);

/// Continue `n` texts. The prompts are BOS and the text's tokens. Everything else is as in
/// `llama_generate`.
///
/// `prompts[i]` is UTF-8 of `lens[i]` bytes. A text is NUL-terminated if `lens` is NULL or its
/// length is SIZE_MAX. Fails with `LLAMA_E_UTF8` as well, and the message names prompt and byte.
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
  /// Guesses at its tokens that were computed (`speculation`).
  uint32_t drafted_tokens;
  /// Of those, right: tokens of it that needed no step of their own.
  uint32_t accepted_tokens;
} llama_request_stats;

/// Number of sequences of the result, which are in the order of the prompts. 0 if `r` is not a live
/// result.
///
/// Any number of threads may call `llama_result_*` functions at a time. The pointers that these
/// give belong to the result and are valid until `llama_result_free`.
size_t llama_result_count(const llama_result_t *r);

/// Get the tokens of sequence `i`: those of the prompt if it is echoed, then the generated tokens
/// without the EOS. `*p` is NULL if there are none.
llama_status llama_result_tokens(const llama_result_t *r, size_t i, const int32_t **p, size_t *n);

/// Get the log probabilities of sequence `i`, one for each token, if `LLAMA_GEN_LOGPROBS` was
/// given; otherwise there are none. `llama_alternative` says which values they can have.
llama_status llama_result_logprobs(const llama_result_t *r, size_t i, const float **p, size_t *n);

/// Get the text of sequence `i`: valid UTF-8, `*n` bytes and a NUL, never NULL. It equals the texts
/// of the sequence's events put together, and it is cut before a stop string.
llama_status llama_result_text(const llama_result_t *r, size_t i, const char **p, size_t *n);

/// Get the most likely tokens at token `position` of sequence `i`, best first, if `top_logprobs`
/// was not 0; otherwise there are none. The first token of an echoed prompt has none either.
llama_status llama_result_top_logprobs(const llama_result_t *r,
                                       size_t i,
                                       size_t position,
                                       const struct llama_alternative **p,
                                       size_t *n);

/// Say why sequence `i` ended, as `LLAMA_FINISH_*`. 0 if there is no such sequence or result.
int32_t llama_result_finish_reason(const llama_result_t *r, size_t i);

/// Get the score of sequence `i`.
///
/// After a beam search, `*sum_logprob` is its sum of log probabilities, after penalties and biases
/// and with the token that ended it; `*score` is this sum divided by the length to the power of
/// `length_penalty`. Results are ranked by the score. Both are minus infinity for a result that the
/// search did not have.
///
/// Without beams, both are the sum of the log probabilities of the generated tokens, with the token
/// that ended the sequence, if `LLAMA_GEN_LOGPROBS` was given; otherwise they are 0.
llama_status llama_result_score(const llama_result_t *r,
                                size_t i,
                                float *sum_logprob,
                                float *score);

/// Get the figures of sequence `i`. Set `s->struct_size` first; no more than that is written.
llama_status llama_result_stats(const llama_result_t *r, size_t i, struct llama_request_stats *s);

/// Free a result and everything that points into it. NULL, a stale pointer and a pointer of another
/// library are ignored. A result may outlive the handle from which it came.
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

/// Answer `n_dialogs` dialogs. The prompts are made by the model's chat template if it has one (see
/// `llama_chat`, which takes tools too), otherwise in Meta's format for its tokenizer. Everything
/// else is as in `llama_generate`.
///
/// `msgs` are the messages of all dialogs end to end, and dialog `i` has `dialog_lens[i]` of them.
/// A template decides which roles there may be, and in which order. In the Llama 2 format there may
/// be a system message, then user and assistant alternate, and the last message is the user's;
/// anything else is `LLAMA_E_INVALID_ARGUMENT`. A dialog with one of this format's own tags in a
/// message is not given to the model: its text is a sentence that says so, and its finish reason is
/// `LLAMA_FINISH_UNSAFE`. Fails with `LLAMA_E_UTF8` as well, and the message names message and
/// byte.
llama_status llama_chat_completion(llama_t *l,
                                   const struct llama_message *msgs,
                                   const size_t *dialog_lens,
                                   size_t n_dialogs,
                                   const struct llama_generate_options *o,
                                   llama_result_t **out,
                                   struct llama_error *err);

/* ==== 6. Cancel flags: stop a call from elsewhere ==== */

/// Make a flag that can stop calls of any handle. It is not triggered. Returns NULL if there are a
/// million flags already.
///
/// Free it with `llama_cancel_free`, after the calls and streams to which it was given.
llama_cancel_t *llama_cancel_new(void);

/// Stop everything that was given this flag: a load stops within one tensor, a generation within
/// one step (`LLAMA_CANCELLED`, with what there is by then). The flag stays triggered.
///
/// This is one atomic operation. It may be called from any thread, from a signal handler and from
/// inside a callback, again and again. NULL, a freed flag and a foreign pointer are ignored.
void llama_cancel_trigger(llama_cancel_t *c);

/// Free a flag. NULL, a stale pointer and a pointer of another library are ignored. The flag can no
/// longer stop a call that still has it.
void llama_cancel_free(llama_cancel_t *c);

/* ==== 7. Streams: pull a call's events instead of waiting for its end ==== */

/// Start a call whose events are pulled, instead of passed to a callback. Everything else is as in
/// `llama_generate`, with its arguments and errors. `o->on_event` must be NULL
/// (`LLAMA_E_INVALID_ARGUMENT`).
///
/// Keep reading a stream. While more than 1,024 events (or 4 MiB) are queued, its sequences pause.
/// If others wait, the paused sequences give up their slots for that time (`max_stall_ms`). A
/// stream that is not read at all ends with `LLAMA_FINISH_UNREAD` (`max_unread_ms`).
///
/// `*out` is the stream; free it with `llama_stream_free`. A stream may outlive the handle, and
/// then ends as cancelled. Any thread may call this, but not from inside a callback.
llama_status llama_stream_open(llama_t *l,
                               const int32_t *tokens,
                               const size_t *lens,
                               size_t n,
                               const struct llama_generate_options *o,
                               llama_stream_t **out,
                               struct llama_error *err);

/// Start a call on texts and pull its events. The prompts are as in `llama_text_completion`,
/// everything else is as in `llama_stream_open`.
llama_status llama_stream_open_text(llama_t *l,
                                    const char *const *prompts,
                                    const size_t *lens,
                                    size_t n,
                                    const struct llama_generate_options *o,
                                    llama_stream_t **out,
                                    struct llama_error *err);

/// Start a call on dialogs and pull its events. The dialogs are as in `llama_chat_completion`: one
/// with a special tag ends with `LLAMA_FINISH_UNSAFE`. Everything else is as in
/// `llama_stream_open`.
llama_status llama_stream_open_chat(llama_t *l,
                                    const struct llama_message *msgs,
                                    const size_t *dialog_lens,
                                    size_t n_dialogs,
                                    const struct llama_generate_options *o,
                                    llama_stream_t **out,
                                    struct llama_error *err);

/// Get the next event. Set `ev->struct_size` before the first call; no more than that is written.
///
/// A `timeout_ms` of -1 waits as long as it takes, 0 does not wait, and any greater number is how
/// long to wait. Returns `LLAMA_OK` with `*ev` written, or `LLAMA_TIMEOUT`. After all events it
/// returns `LLAMA_DONE` for ever; or `LLAMA_CANCELLED` for ever if the call was cancelled, after
/// the events that were generated before. An error of the engine (`_DEVICE`, `_POISONED`,
/// `_INTERNAL`, and `_NO_MEMORY` if it could not queue an event) ends the stream, and every later
/// call returns it again. `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, and `_NO_MEMORY` for the text of an
/// event take no event: the next call gives that event.
///
/// If the call has `on_logits` or `on_stop`, this function calls them. It answers a question about
/// logits and then continues to wait for an event, as long as `timeout_ms` says. So their
/// `user_data` must live until the stream is freed and no call of this function runs.
///
/// The pointers in `*ev` are valid until the next call on this stream, so use a stream from one
/// thread at a time. Another thread may call `llama_stream_free`; a call that waits then returns
/// `LLAMA_CANCELLED`. Do not call this from inside a callback.
llama_status llama_stream_next(llama_stream_t *s,
                               struct llama_event *ev,
                               int32_t timeout_ms,
                               struct llama_error *err);

/// Get the figures of sequence `i`, after `llama_stream_next` has given its `LLAMA_EVENT_FINISH`.
/// Before that, this is `LLAMA_E_INVALID_ARGUMENT`. Set `st->struct_size` first; no more than that
/// is written. Any thread may call this.
llama_status llama_stream_stats(const llama_stream_t *s, size_t i, struct llama_request_stats *st);

/// End sequence `i` of a stream after the events that `llama_stream_next` has given of it. Later
/// events of the sequence are dropped, whatever the model has computed since. Its
/// `LLAMA_EVENT_FINISH` follows, with `LLAMA_FINISH_CALLER` and the text of its remaining tokens
/// that was held back. The other sequences of the call continue.
///
/// Any thread may call this, also from inside a callback. Returns `LLAMA_OK`, also if the sequence
/// has ended already. An `i` that the call does not have is `LLAMA_E_INVALID_ARGUMENT`. After
/// `LLAMA_E_NO_MEMORY` the sequence continues.
llama_status llama_stream_stop(llama_stream_t *s, size_t i);

/// Get a descriptor for poll, select and epoll. It is readable while `llama_stream_next` would not
/// wait, because there is an event, a question of `on_logits` or the end. Returns -1 if there is no
/// descriptor or `s` is not a live stream.
///
/// The descriptor belongs to the stream: do not read, write or close it. Any thread may call this.
int llama_stream_fd(const llama_stream_t *s);

/// Free a stream. This cancels what still runs of it. Any thread may call this at any time. NULL, a
/// stale pointer and a pointer of another library are ignored.
void llama_stream_free(llama_stream_t *s);

/* ==== 8. Tokens: encode and decode ==== */

/// `llama_encode_text`: begin with the BOS token.
#define LLAMA_ENC_BOS 1

/// `llama_encode_text`: end with the EOS token.
#define LLAMA_ENC_EOS 2

/// `llama_encode_text`: read the texts of special and added tokens (`<|eot_id|>`) as these tokens.
/// Without this flag they are ordinary text, whoever wrote them.
#define LLAMA_ENC_SPECIAL 4

/// Get the tokens of a text.
///
/// `s` is UTF-8 of `len` bytes, or NUL-terminated if `len` is SIZE_MAX. `flags` are `LLAMA_ENC_*`.
/// `buf` has room for `cap` tokens, and `*n` is the number of tokens. If they do not fit, this
/// returns `LLAMA_E_INVALID_ARGUMENT`, sets `*n` to the number needed, and leaves `buf` untouched.
/// A NULL `buf` with a `cap` of 0 asks for the number and succeeds.
///
/// Fails with `LLAMA_E_UTF8` too, and the message names the byte. Fails with
/// `LLAMA_E_INVALID_ARGUMENT` if more than 1 MiB of the text has no place at which a token must end
/// (with SentencePiece models: no space or line feed). `LLAMA_ENC_BOS` and `_EOS` add nothing if
/// the model has no such token. With `LLAMA_ENC_SPECIAL`, `LLAMA_ENC_BOS` adds nothing to a text
/// that begins with the spelling of BOS.
///
/// The time grows with the length of the text and no faster, unless the model's `tokenizer.json`
/// has an expression that reads far ahead of its matches, as none of the usual ones does. This call
/// cannot be cancelled (`llama_encode_text_bounded` can). Any thread may call it, also from inside
/// a callback.
llama_status llama_encode_text(const llama_t *l,
                               const char *s,
                               size_t len,
                               uint32_t flags,
                               int32_t *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/// Get the tokens of a text that anybody may have sent. This does what `llama_encode_text` does,
/// but may end early for two reasons.
///
/// It returns `LLAMA_E_TOO_LONG` as soon as it is certain that there are more than `max_tokens`
/// tokens, with those of `flags`; SIZE_MAX means no bound. It returns `LLAMA_CANCELLED` once
/// `cancel` is triggered, which it checks every few kilobytes; NULL means that there is no flag. In
/// both cases `*n` and `buf` stay untouched, and the call needs no more time and memory than the
/// text up to there does.
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

/// Get the text of `n` tokens, as the tokenizer decodes a whole sequence. The text is valid UTF-8:
/// a byte that is not becomes U+FFFD. Control tokens become nothing.
///
/// `buf` has room for `cap` bytes, and `*len` is the length of the text. A NUL follows the text if
/// `cap` is larger. If `cap` is too small, this does as `llama_encode_text` does. Tokens must be
/// below the model's vocabulary size (`LLAMA_E_INVALID_ARGUMENT`). Any thread may call this, also
/// from inside a callback.
llama_status llama_decode_tokens(const llama_t *l,
                                 const int32_t *t,
                                 size_t n,
                                 char *buf,
                                 size_t cap,
                                 size_t *len,
                                 struct llama_error *err);

/// Get what `token` contributes in the middle of a text. That is its text, with spaces as spaces;
/// or its one byte if it stands for a byte, which need not be UTF-8 on its own; or nothing if it is
/// a control token.
///
/// `*p` is `*n` bytes and a NUL. They belong to the handle and are valid until `llama_free`. Fails
/// with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, also from inside a callback.
llama_status llama_token_bytes(const llama_t *l,
                               int32_t token,
                               const char **p,
                               size_t *n,
                               struct llama_error *err);

/// Get the tokens of one dialog, as `llama_chat_completion` gives them to the model.
///
/// The messages are as there. In the Llama 2 format, a dialog with one of the format's own tags in
/// a message is `LLAMA_E_INVALID_ARGUMENT` here. `buf`, `cap`, `len` (in tokens) and the other
/// errors are as in `llama_encode_text`. Any thread may call this, also from inside a callback.
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

/// End the prompt behind the last message's content, so that the model continues this message.
#define LLAMA_CHAT_CONTINUE_FINAL 2

/// Texts of special tokens in messages become these tokens. Without this flag only texts that the
/// template itself writes do, and a message cannot end its own turn.
#define LLAMA_CHAT_PARSE_SPECIAL 4

/// What surrounds the messages of `llama_chat`. Fill with `llama_chat_options_init`.
typedef struct llama_chat_options {
  /// `sizeof(llama_chat_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMA_CHAT_*`.
  uint32_t flags;
  /// A JSON array of tools, `{"type": "function", "function": {...}}`. NULL: none.
  const char *tools;
  /// Bytes of `tools`. SIZE_MAX means that it is NUL-terminated.
  size_t tools_len;
  /// A JSON object of variables for the template (`enable_thinking`, `date_string`). NULL: none.
  const char *variables;
  /// Bytes of `variables`. SIZE_MAX means that it is NUL-terminated.
  size_t variables_len;
  /// A Jinja template. NULL means the handle's.
  const char *chat_template;
  /// Bytes of `chat_template`. SIZE_MAX means that it is NUL-terminated.
  size_t chat_template_len;
} llama_chat_options;

/// Fill `o` with defaults: no tools, no variables, the handle's template, and SIZE_MAX for lengths.
/// Pass `sizeof(llama_chat_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
void llama_chat_options_init(struct llama_chat_options *o, size_t struct_size);

/// Answer `n` dialogs, whose messages are JSON. The prompts are made by the chat template of `c`,
/// or else of the handle, or else in Meta's format for its tokenizer. Everything else is as in
/// `llama_generate`.
///
/// `messages[i]` is a JSON array in OpenAI's shape, UTF-8 of `lens[i]` bytes. It is NUL-terminated
/// if `lens` is NULL or its length is SIZE_MAX. A message has `role`, `content` (a string, null, or
/// an array of `{"type": "text", "text": ...}`), and perhaps `tool_calls` (whose `arguments` may be
/// a string of JSON), `tool_call_id`, `name` and `reasoning_content`. Other keys are given to the
/// template as they are. `c` holds for all dialogs; it may be NULL, which means no tools and no
/// variables.
///
/// Text that a template writes may become special tokens. Text in messages never does, unless
/// `LLAMA_CHAT_PARSE_SPECIAL` is given. A prompt has a BOS only if the template writes it. A
/// template ends within 5 million steps and within 64 MiB + 16 bytes for each byte of messages,
/// tools and variables.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` also if JSON cannot be read (the message names line and
/// column), if a template refuses the dialog (the message has its sentence), or if a template has
/// no value for the dialog. Fails with `LLAMA_E_UNSUPPORTED` if there is no template or if it asks
/// for something that does not exist, and with `LLAMA_E_FORMAT` if a template cannot be read or
/// exceeds a limit.
llama_status llama_chat(llama_t *l,
                        const char *const *messages,
                        const size_t *lens,
                        size_t n,
                        const struct llama_chat_options *c,
                        const struct llama_generate_options *o,
                        llama_result_t **out,
                        struct llama_error *err);

/// Start a call on messages as JSON and pull its events. The prompts are as in `llama_chat`,
/// everything else is as in `llama_stream_open`.
llama_status llama_stream_open_messages(llama_t *l,
                                        const char *const *messages,
                                        const size_t *lens,
                                        size_t n,
                                        const struct llama_chat_options *c,
                                        const struct llama_generate_options *o,
                                        llama_stream_t **out,
                                        struct llama_error *err);

/// Give the text that the template makes of one dialog. Arguments and errors are as in
/// `llama_chat`. A model in the Llama 2 format has no such text (`LLAMA_E_UNSUPPORTED`).
///
/// `buf` has room for `cap` bytes, and `*n` is the length of the text. A NUL follows the text if
/// `cap` is larger. If `cap` is too small, this does as `llama_encode_text` does. Any thread may
/// call this, also from inside a callback.
llama_status llama_render_chat(const llama_t *l,
                               const char *messages,
                               size_t len,
                               const struct llama_chat_options *c,
                               char *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/// Give the tokens of one dialog, as `llama_chat` gives them to the model. Arguments and errors are
/// as there.
///
/// `buf`, `cap` and `*n` (in tokens) are as in `llama_encode_text`. Any thread may call this, also
/// from inside a callback.
llama_status llama_encode_chat(const llama_t *l,
                               const char *messages,
                               size_t len,
                               const struct llama_chat_options *c,
                               int32_t *buf,
                               size_t cap,
                               size_t *n,
                               struct llama_error *err);

/* ==== 10. Grammars: languages that generated text is kept in ==== */

/// The language of the JSON values that a JSON Schema allows.
/// Between the parts of a value there is at most one space; `whitespace_pattern` or
/// `whitespace_flexible` of the schema's `x-guidance` says something else.
#define LLAMA_GRAMMAR_JSON_SCHEMA 1

/// The language of all JSON objects, with at most one space between their parts. It takes no
/// source.
#define LLAMA_GRAMMAR_JSON 2

/// The language of the texts that a regular expression matches as a whole. The syntax is that of
/// Rust's regex crate.
#define LLAMA_GRAMMAR_REGEX 3

/// A grammar in llguidance's dialect of Lark.
#define LLAMA_GRAMMAR_LARK 4

/// The language of the strings of a JSON array. They are distinct, and none is empty.
#define LLAMA_GRAMMAR_CHOICE 5

/// Compile a grammar for a handle's tokenizer.
///
/// `kind` is a `LLAMA_GRAMMAR_*`. `source` is UTF-8 of `len` bytes, at most 1 MiB, or
/// NUL-terminated if `len` is SIZE_MAX; it is NULL for `LLAMA_GRAMMAR_JSON`. A schema has at most
/// 16,384 objects and arrays, and a Lark grammar 4,096 opening brackets and colons. `*out` is
/// the grammar. It never changes, and any number of calls on this handle may use it at a time. Free
/// it with `llama_grammar_free`; this may be done while calls run, because they keep what they were
/// given. A grammar may outlive its handle, and then no handle accepts it.
///
/// The first grammar of a handle takes up to a second for a large vocabulary, later ones take
/// milliseconds; those with thousands of properties or literals take seconds. A thread of the
/// library with a stack of its own does the work. Any thread may call this, also from inside a
/// callback.
///
/// All grammars of a handle and all texts that follow them have 1 GiB together, by the parser's
/// estimates. Beyond that a grammar, or a call with a text, that has more than 16 MiB of its own
/// fails with `LLAMA_E_NO_MEMORY`.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, and with the parser's sentence, if the parser refuses the
/// source or if the source is too complex. Fails with `_UTF8`, `_NO_MEMORY`, `_UNSUPPORTED`, too.
/// `*out` is not written then.
llama_status llama_grammar_new(const llama_t *l,
                               int32_t kind,
                               const char *source,
                               size_t len,
                               llama_grammar_t **out,
                               struct llama_error *err);

/// Free a grammar. NULL, a stale pointer and a pointer of another library are ignored. Calls and
/// streams that were given the grammar keep it.
void llama_grammar_free(llama_grammar_t *g);

/// Say which tokens may follow `n` generated tokens: bit `t % 32` of `mask[t / 32]` is set if token
/// `t` may follow. A token that ends a sequence may follow if the text is of the language.
///
/// `mask` has room for `words` words, and `*needed` is the number of words: one for every 32 ids of
/// the model's vocabulary. If they do not fit, this returns `LLAMA_E_INVALID_ARGUMENT`, sets
/// `*needed`, and leaves `mask` untouched. A NULL `mask` with 0 `words` asks for the number and
/// succeeds. A token that the grammar does not allow in its place is `LLAMA_E_INVALID_ARGUMENT`,
/// too, and so is a text that is too complex for the parser. Any thread may call this, also from
/// inside a callback.
llama_status llama_grammar_mask(const llama_grammar_t *g,
                                const int32_t *tokens,
                                size_t n,
                                uint32_t *mask,
                                size_t words,
                                size_t *needed,
                                struct llama_error *err);

/* ==== 11. Compression: prompts that become shorter ==== */

/// `llama_segment.kind`: the segment stays as it is.
#define LLAMA_SEGMENT_KEEP 0

/// The segment is shortened.
#define LLAMA_SEGMENT_COMPRESS 1

/// The segment stays as it is. Segments that are shortened are ranked by how much each of them
/// helps the model to expect this one.
#define LLAMA_SEGMENT_QUESTION 2

/// `llama_compress_options.flags`: keep tokens that contain a newline first, then the others.
#define LLAMA_COMPRESS_KEEP_NEWLINES 1

/// Keep tokens that contain a digit (0 to 9) first, then the others.
#define LLAMA_COMPRESS_KEEP_DIGITS 2

/// How much `llama_compress` leaves. Fill with `llama_compress_options_init`.
typedef struct llama_compress_options {
  /// `sizeof(llama_compress_options)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// `LLAMA_COMPRESS_*`.
  uint32_t flags;
  /// How many tokens all segments have together afterwards, including those that stay. 0: `rate`
  /// decides.
  uint32_t target_tokens;
  /// The share of all tokens that is left if `target_tokens` is 0, above 0 and at most 1. The
  /// number of tokens is rounded up. Default: 0.5.
  float rate;
  /// How many tokens of a segment form a window, at least 1. Each window is scored after the
  /// tokens kept so far; its least expected tokens are kept. Default: 100.
  uint32_t window;
  /// With several segments to shorten, a first pass selects segments until they hold `coarse`
  /// times the tokens that may be left. Finite, at least 1. Default: 2.
  float coarse;
  /// Stops the call. NULL: nothing does.
  llama_cancel_t *cancel;
} llama_compress_options;

/// A part of a prompt, for `llama_compress`.
typedef struct llama_segment {
  /// UTF-8.
  const char *text;
  /// Bytes of `text`. SIZE_MAX means that it is NUL-terminated.
  size_t len;
  /// A `LLAMA_SEGMENT_*`.
  int32_t kind;
  /// Must be 0.
  uint32_t reserved0;
} llama_segment;

/// Fill `o` with defaults. Pass `sizeof(llama_compress_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
void llama_compress_options_init(struct llama_compress_options *o, size_t struct_size);

/// Shorten a prompt: of the segments of kind `LLAMA_SEGMENT_COMPRESS`, the tokens go that the model
/// expects most, as in LLMLingua (<https://arxiv.org/abs/2310.05736>).
///
/// All segments together then have exactly as many tokens as `o` asks for; or more if those that
/// stay have more, and then the others are empty; or fewer if there are no more. `o` may be NULL,
/// which means defaults. `*out` is a result with a sequence for each segment, in order; free it
/// with `llama_result_free`. Its tokens are what is left. Its text is the segment's own text if all
/// is left; otherwise it is the text of these tokens without a space at its beginning and without
/// characters of which only a part is left. Encoding the text again may give another number of
/// tokens. Its log probabilities are those by which the tokens stayed, or 0 where nothing was to be
/// decided. In `llama_result_stats`, `prompt_tokens` says how many tokens the segment had, and
/// `generated_tokens` how many are left.
///
/// If several segments are shortened that have more than `coarse` times the tokens that may be
/// left, a first pass ranks them: with segments of kind `LLAMA_SEGMENT_QUESTION` by the mean log
/// probability of these segments' tokens behind the one segment, otherwise by the negative mean log
/// probability of its own tokens. `llama_result_score` has this number, otherwise 0. The best go on
/// to the second pass. One is cut at its end, and the others become empty. So segments may be
/// passages that were retrieved, in any number.
///
/// The second pass goes through the segments in their order, `window` tokens at a time. A token is
/// judged by its probability after the segments and tokens that stay in front of it. If that is
/// longer than max_seq_len, the beginning is left out. The context is computed again for each
/// window, so a small window costs more.
///
/// Texts may be longer than max_seq_len. Scores are computed in batches with whatever runs and do
/// not depend on it. Everything that is given is borrowed for the call. Any number of threads may
/// call this at a time. Do not call this from inside a callback.
///
/// Returns `LLAMA_CANCELLED`, with empty sequences in `*out`, if `o->cancel` or `llama_free`
/// stopped it. Fails with `LLAMA_E_INVALID_ARGUMENT`, `_ABI`, `_BATCH` (0 segments or more than
/// 65,536), `_UTF8`, `_BUSY` (if as many calls wait as `max_waiting` allows; or if this thread was
/// held up so often that scores ended as unread), `_UNSUPPORTED` (a tokenizer with neither BOS nor
/// EOS, or logits that are not finite), `_NO_MEMORY`, `_DEVICE`, `_POISONED`, `_INTERNAL`. `*out`
/// is not written then.
llama_status llama_compress(llama_t *l,
                            const struct llama_segment *segments,
                            size_t n,
                            const struct llama_compress_options *o,
                            llama_result_t **out,
                            struct llama_error *err);

/* ==== 12. Adapters: LoRA adapters that calls choose ==== */

/// Load a LoRA adapter from a directory as peft writes it, so that calls can choose it. `*id` is
/// the number for `llama_generate_options.adapter`; ids begin at 1 and are never given again.
/// `scale` is the adapter's weight. Calls that run on the handle continue. The adapter is kept in
/// memory beside the weights (16 bits a number; 32 if the weights are float32), so that rows of
/// different adapters share steps. On a GPU, it and the buffers that all adapters share, which the
/// first one brings, count towards `gpu_memory_bytes`.
///
/// On several ranks each has its part of the adapter. A rank in another process loads it from the
/// same path there, beside the steps that it computes. If one refuses, no rank keeps anything, and
/// its sentence is the message, with its number and machine before it.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`, `_IO`, `_FORMAT`, `_NO_MEMORY`, `_DEVICE_MEMORY`,
/// `_DEVICE`; with `_UNSUPPORTED` on several GPUs of one process that exchange by NCCL, and for
/// what only merging can do (`modules_to_save`, a rank of the adapter over 256); and with `_PEER`
/// if a rank in another process is gone or finds another adapter there, and `LLAMA_CANCELLED` if
/// the handle is freed meanwhile. Any thread may call this, but not from inside a callback.
llama_status llama_adapter_add(llama_t *l,
                               const char *dir,
                               float scale,
                               uint32_t *id,
                               struct llama_error *err);

/// Drop an adapter: no new call may name it. Its memory is freed when the last call that runs with
/// it has ended, on ranks in other processes within a second after that.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, but not from inside a callback.
llama_status llama_adapter_drop(llama_t *l, uint32_t id, struct llama_error *err);

/* ==== 13. Several ranks: one model in several processes ==== */

/// How long a function of `llama_comm` may go on. It belongs to the library and lives for the time
/// of one call.
typedef struct llama_wait {
  /// To be asked at least every millisecond while the function waits, with `context`, on the same
  /// thread. 0 means that the function must give up. Inside, the library may call `receive`.
  int32_t (*go_on)(const void *context);
  /// Passed to `go_on`.
  const void *context;
} llama_wait;

/// How the ranks of a model in several processes reach each other. `llamabi_mpi.h` fills one with
/// any MPI.
///
/// Every function returns 0 when it is done, 1 when it gave up because `go_on` said so, and a
/// negative number of the host's when it failed. One thread at a time calls them: the one that
/// called `llama_build`, then the thread of the handle's engine; or the one that called
/// `llama_worker_run`. They call nothing of this library.
///
/// After `all_gather` or `all_to_all` returned anything but 0, neither is called again. `send` and
/// `receive` are, briefly, to find out which ranks are left and to tell them. Memory of a call that
/// gave up or failed is never freed, so the host's library may still write to it.
typedef struct llama_comm {
  /// `sizeof(llama_comm)` of the header the caller was compiled with.
  uint32_t struct_size;
  /// The number of this rank.
  uint32_t rank;
  /// The number of ranks, 2 to 64.
  uint32_t size;
  /// Must be 0.
  uint32_t reserved0;
  /// Passed to the functions. It must live until `llama_free` has returned and no call on the
  /// handle runs, or until `llama_worker_run` has returned.
  void *user_data;
  /// Sends a message of `n` bytes. Messages between two ranks keep their order. It returns when
  /// `bytes` may be overwritten.
  int32_t (*send)(void *user_data,
                  uint32_t to,
                  const void *bytes,
                  size_t n,
                  const struct llama_wait *wait);
  /// Receives a whole message of a rank and writes its length to `n`, or receives nothing. A
  /// message that is longer than `capacity` is a failure, with its length in `n`.
  int32_t (*receive)(void *user_data,
                     uint32_t from,
                     void *bytes,
                     size_t capacity,
                     size_t *n,
                     const struct llama_wait *wait);
  /// Gives `n` bytes to every rank. `all` gets `n` bytes of each, by rank. All ranks call it with
  /// the same `n`, at most 2^30.
  int32_t (*all_gather)(void *user_data,
                        const void *mine,
                        void *all,
                        size_t n,
                        const struct llama_wait *wait);
  /// Gives `n` bytes of `to` to each rank, by rank. `from` gets `n` bytes of each.
  int32_t (*all_to_all)(void *user_data,
                        const void *to,
                        void *from,
                        size_t n,
                        const struct llama_wait *wait);
} llama_comm;

/// What is known of a rank. Of a handle without ranks, number 0 is the handle.
typedef struct llama_rank {
  /// `sizeof(llama_rank)`, set by the caller.
  uint32_t struct_size;
  /// Its number.
  uint32_t rank;
  /// `LLAMA_DEVICE_*`.
  int32_t device;
  /// Its process, on `host`.
  uint32_t pid;
  /// Bytes of its weights.
  uint64_t weight_bytes;
  /// Bytes of its part of the KV cache.
  uint64_t kv_bytes;
  /// The time that it has spent in exchanges, the waiting for other ranks included. Of a rank in
  /// another process, as it said last, within about a second. Exchanges by NCCL are not counted:
  /// they are part of the GPU's work.
  double exchange_ms;
  /// The time since a rank in another process gave a sign of life. While it is well, at most
  /// about a second.
  double silent_ms;
  /// The name of its machine.
  char host[64];
  /// Its device in words.
  char device_name[128];
} llama_rank;

/// Take part in a model as a rank other than 0, until rank 0's handle is freed.
///
/// Of `o`, `comm` says which rank this is; `device`, `device_index`, `gpu_memory_bytes`,
/// `n_threads`, `rank_timeout_ms`, `cancel`, `progress` and `log` concern this process. Everything
/// else comes from rank 0. `ckpt_dir` may be another path to the same files; no tokenizer is
/// needed. Any thread may call this, but not from inside a callback.
///
/// Returns `LLAMA_OK` after rank 0's `llama_free`. Fails with a failure of its own, of which rank 0
/// hears, and with `LLAMA_E_PEER` if another rank failed, in its words, or is gone. Returns
/// `LLAMA_CANCELLED` if `o->cancel` or `o->progress` stopped it, or if rank 0 was cancelled while
/// it loaded.
llama_status llama_worker_run(const char *ckpt_dir,
                              const struct llama_build_options *o,
                              struct llama_error *err);

/// Say what is known of a rank of the model. `llama_info` has their number. Set `r->struct_size`
/// first; no more than that is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
llama_status llama_get_rank(const llama_t *l,
                            uint32_t rank,
                            struct llama_rank *r,
                            struct llama_error *err);

/// Say whether the handle can still run calls, without making one.
///
/// Returns `LLAMA_OK`, or `LLAMA_E_POISONED` with what has made the handle unusable: a rank that is
/// gone, for example. Fails with `LLAMA_E_INVALID_ARGUMENT`. Any thread may call this, also from
/// inside a callback.
llama_status llama_health(const llama_t *l, struct llama_error *err);

/* ==== 14. Figures: what was loaded, and totals since then ==== */

/// `llama_info.chat_format`: the model has no chat format, and chat calls are
/// `LLAMA_E_UNSUPPORTED`.
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
  /// Number of layers.
  uint32_t n_layers;
  /// Number of query heads.
  uint32_t n_heads;
  /// Number of key and value heads.
  uint32_t n_kv_heads;
  /// Width of one head.
  uint32_t head_dim;
  /// Width of the feed-forward layer.
  uint32_t ffn_dim;
  /// As given to `llama_build`.
  uint32_t max_seq_len;
  /// As given to `llama_build`.
  uint32_t max_batch_size;
  /// Id of the begin-of-sequence token. -1: none.
  int32_t bos_id;
  /// The first of `eos_ids`. -1: none.
  int32_t eos_id;
  /// Id of the padding token. -1: none.
  int32_t pad_id;
  /// The device that was chosen: `LLAMA_DEVICE_CPU` or `_CUDA`.
  int32_t device;
  /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
  int32_t weights_dtype;
  /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
  int32_t kv_dtype;
  /// Bytes of the weights in memory.
  uint64_t weight_bytes;
  /// Bytes of the KV cache.
  uint64_t kv_bytes;
  /// The device in words, NUL-terminated.
  char device_name[128];
  /// 1 if the library was built with GPU kernels, otherwise 0. `LLAMABI_KERNELS` may name other
  /// kernels at run time.
  uint32_t gpu_kernels;
  /// Always 0.
  uint32_t reserved0;
  /// The `n_eos` tokens that end a sequence: those of `generation_config.json`, `config.json` and
  /// the tokenizer.
  int32_t eos_ids[16];
  /// Number of these tokens.
  uint32_t n_eos;
  /// How chat calls make a prompt of messages: `LLAMA_CHAT_*`.
  uint32_t chat_format;
  /// The model's family, as in Hugging Face's `model_type` ("llama", "qwen2"), NUL-terminated.
  char model_type[32];
  /// The format in which most of the weights are stored ("bf16", "GGUF Q4_K", "gptq 4 bits"),
  /// whatever `weights_dtype` they are kept in. NUL-terminated.
  char stored_format[32];
  /// Ranks that compute the model: the number of `devices` in the options, or 1. `weight_bytes`
  /// and `kv_bytes` are those of all ranks.
  uint32_t model_parallel_size;
  /// 1 if there is a draft model (`draft_dir`), whose bytes are in `weight_bytes` and `kv_bytes`
  /// too. Otherwise 0.
  uint32_t has_draft;
  /// Number of Medusa heads (`medusa_dir`), whose bytes are in `weight_bytes` too.
  uint32_t medusa_heads;
  /// Always 0.
  uint32_t reserved1;
} llama_info;

/// Totals of a handle since it was built.
typedef struct llama_timings {
  /// `sizeof(llama_timings)`, set by the caller.
  uint32_t struct_size;
  /// Sequences that run now.
  uint32_t running;
  /// Sequences that wait for a slot now.
  uint32_t waiting;
  /// Sequences that now are without their slot because their reader is behind.
  uint32_t parked;
  /// The time that `llama_build` took.
  double load_ms;
  /// The time of steps that had prompt tokens.
  double prefill_ms;
  /// The time of steps that had no prompt tokens.
  double decode_ms;
  /// Prompt tokens of all requests.
  uint64_t prompt_tokens;
  /// How many of these were taken from the prefix cache.
  uint64_t cached_tokens;
  /// Tokens that were generated.
  uint64_t generated_tokens;
  /// Steps that were run. A step is one pass through the model, for all running sequences
  /// together.
  uint64_t steps;
  /// Pages of the KV cache that sequences hold now, with those that they may still write to.
  uint64_t pages_used;
  /// Pages that the KV cache has.
  uint64_t pages_total;
  /// Masks of grammars that were computed.
  uint64_t masks;
  /// The time of computing these masks, on a thread of its own.
  double mask_ms;
  /// Of that, time that generation waited for. On a GPU this counts from when a step is launched:
  /// the GPU may be computing meanwhile.
  double mask_wait_ms;
  /// Guesses at tokens that were computed (`speculation`).
  uint64_t drafted_tokens;
  /// Of those, right.
  uint64_t accepted_tokens;
} llama_timings;

/// Say what was loaded. Set `info->struct_size` first; no more than that is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
llama_status llama_get_info(const llama_t *l, struct llama_info *info, struct llama_error *err);

/// Get the totals of the handle since it was built. Set `t->struct_size` first; no more than that
/// is written.
///
/// Fails with `LLAMA_E_INVALID_ARGUMENT` and `_ABI`. Any thread may call this, also from inside a
/// callback.
llama_status llama_get_timings(const llama_t *l, struct llama_timings *t, struct llama_error *err);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif  /* LLAMABI_H */
