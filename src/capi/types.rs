//! The constants and structs of the header. Fields are only ever appended, and numbers are never
//! reused. A line `// Section: ...` names the heading of the header under which the items below it
//! stand.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

// Section: First things

/// Version of the binary interface: the number in `libllamabi.so.<N>`.
pub const LLAMABI_ABI_VERSION: u32 = 0;

/// What a function returns: 0 is success, a positive number is an outcome, a negative number is a
/// failure.
pub type llama_status = i32;

/// Success.
pub const LLAMA_OK: llama_status = 0;
/// `llama_stream_next`: the stream has ended, and no event was written.
pub const LLAMA_DONE: llama_status = 1;
/// A cancel flag, a callback or `llama_free` has stopped the call. This is no error: what was
/// generated so far is valid.
pub const LLAMA_CANCELLED: llama_status = 2;
/// `llama_stream_next`: nothing happened within `timeout_ms`.
pub const LLAMA_TIMEOUT: llama_status = 3;
/// An argument is NULL, misaligned, out of range, or no live object. The message names the
/// argument.
pub const LLAMA_E_INVALID_ARGUMENT: llama_status = -1;
/// This library does not know a `struct_size`, an `abi_version`, a reserved field, or something
/// behind the fields that it knows.
pub const LLAMA_E_ABI: llama_status = -2;
/// A path is missing or unreadable, or a file ended early.
pub const LLAMA_E_IO: llama_status = -3;
/// A file can be read, but it is of the wrong kind or contradicts itself.
pub const LLAMA_E_FORMAT: llama_status = -4;
/// This build or machine does not offer something that the library knows. The message says why.
pub const LLAMA_E_UNSUPPORTED: llama_status = -5;
/// The machine, its cgroup or a limit of this process (`RLIMIT_AS`, `RLIMIT_DATA`) does not give
/// the memory or the thread that is needed. The message has both numbers and names the limit.
pub const LLAMA_E_NO_MEMORY: llama_status = -6;
/// A device failed.
pub const LLAMA_E_DEVICE: llama_status = -7;
/// The device does not give the memory that is needed.
pub const LLAMA_E_DEVICE_MEMORY: llama_status = -8;
/// A prompt is longer than `max_seq_len`.
pub const LLAMA_E_TOO_LONG: llama_status = -9;
/// There are no prompts, more than 65,536 sequences, or more sequences or beams of a prompt than
/// `max_batch_size`.
pub const LLAMA_E_BATCH: llama_status = -10;
/// A text is not UTF-8. The message names the argument and the byte.
pub const LLAMA_E_UTF8: llama_status = -11;
/// Slots are missing for a call with `LLAMA_GEN_NO_WAIT`, or as many calls wait as `max_waiting`
/// allows.
pub const LLAMA_E_BUSY: llama_status = -12;
/// An earlier panic or device failure has left the handle unusable. Free it.
pub const LLAMA_E_POISONED: llama_status = -13;
/// A bug in this library, which was caught.
pub const LLAMA_E_INTERNAL: llama_status = -99;

/// The place where a function says what went wrong. It belongs to the caller, and there is nothing
/// to free.
///
/// Set `struct_size` before the first use. Every call that is given a `llama_error` writes `status`
/// and `message` (`LLAMA_OK` and "" on success). A smaller `struct_size` gets a shorter message; a
/// `struct_size` below 9 gets nothing at all.
#[repr(C)]
pub struct llama_error {
    /// `sizeof(llama_error)`, set by the caller.
    pub struct_size: u32,
    /// What the function returned.
    pub status: llama_status,
    /// A sentence, in NUL-terminated UTF-8. It names the file, tensor or argument, and both values.
    /// In names, control characters are escaped (`\n`, `\u{1b}`); a long name is shortened in its
    /// middle.
    pub message: [c_char; 1016],
}

// Section: Models

/// A model: weights, tokenizer, KV cache and engine thread.
pub struct llama {
    _opaque: [u8; 0],
}
/// The handle.
pub type llama_t = llama;

/// `device`: the best device that is usable.
pub const LLAMA_DEVICE_AUTO: i32 = 0;
/// `device`: the CPU. CUDA is never touched.
pub const LLAMA_DEVICE_CPU: i32 = 1;
/// `device`: an NVIDIA GPU. Without one the build fails.
pub const LLAMA_DEVICE_CUDA: i32 = 2;

/// `weights_dtype`: the type in which the weights are stored (for a checkpoint of
/// `examples/quantize.rs`, the type to which it was quantised). `kv_dtype`: F32 for f32 weights,
/// F16 for f16 weights, otherwise BF16.
pub const LLAMA_DTYPE_AUTO: i32 = 0;
/// IEEE binary32.
pub const LLAMA_DTYPE_F32: i32 = 1;
/// IEEE binary16.
pub const LLAMA_DTYPE_F16: i32 = 2;
/// bfloat16.
pub const LLAMA_DTYPE_BF16: i32 = 3;
/// 8-bit integers. Weights have an f16 scale for each group of 32 along a row; a checkpoint of
/// floats is quantised while it is loaded. With `kv_dtype`, the vector of each head has a scale.
///
/// With INT8 and with the 4-bit formats, the head is INT8, too, and the embedding stays in 16 bits;
/// an embedding that also serves as the head is INT8. Activations of generated tokens are rounded
/// to 16-bit integers.
pub const LLAMA_DTYPE_INT8: i32 = 4;
/// 4-bit integers, for weights only: symmetric, with an f16 scale for each group of 32 along a row.
/// The scales are found by a search for the smallest error.
pub const LLAMA_DTYPE_INT4: i32 = 5;
/// 4-bit normal float with double quantisation, as QLoRA and bitsandbytes define it, for weights
/// only. A block is 64 numbers along a row; 64 must divide the length of a row.
pub const LLAMA_DTYPE_NF4: i32 = 6;
/// 8-bit floats (e4m3), on GPUs; on the CPU this is `LLAMA_E_UNSUPPORTED`. Weights have an f16
/// scale for each group of 128 along a row; a checkpoint of floats is quantised while it is loaded,
/// with the head and the embedding as with INT8. With `kv_dtype`, the vector of each head has a
/// scale.
pub const LLAMA_DTYPE_FP8: i32 = 7;
/// 4-bit integers with minima and with scales of two levels. Q4_K of GGUF files is kept in this
/// form, exactly. `llama_info` reports it. As an option it is `LLAMA_E_UNSUPPORTED`, because
/// AUTO keeps weights that are stored so.
pub const LLAMA_DTYPE_K4: i32 = 8;
/// 8-bit integers with scales of two levels. Q6_K and Q3_K are kept in this form, exactly. The rest
/// is as with K4.
pub const LLAMA_DTYPE_K8: i32 = 9;

/// Something failed.
pub const LLAMA_LOG_ERROR: i32 = 1;
/// The library made a choice that one may not expect.
pub const LLAMA_LOG_WARN: i32 = 2;
/// What was loaded and chosen.
pub const LLAMA_LOG_INFO: i32 = 3;
/// Details of every request.
pub const LLAMA_LOG_DEBUG: i32 = 4;

/// Receives the fraction of the checkpoint that has been read. The fraction is 0 to 1 and never
/// falls. A return value of 0 stops the loading.
pub type llama_progress_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, fraction: f32) -> i32>;

/// Receives a log line of `len` bytes, NUL-terminated and without a line feed. It runs on a thread
/// that is inside a call on the handle, so it may run on several threads at once if several use the
/// handle.
pub type llama_log_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: i32, msg: *const c_char, len: usize),
>;

/// Options of `llama_build`. Fill with `llama_build_options_init`, then change what you like.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_build_options {
    /// `sizeof(llama_build_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMABI_ABI_VERSION` of that header.
    pub abi_version: u32,
    /// The most tokens of a sequence, with its prompt. Default: 512.
    pub max_seq_len: u32,
    /// The most sequences that run at the same time. More sequences wait, be they of one call or of
    /// several. Default: 8.
    pub max_batch_size: u32,
    /// The number of shards of the checkpoint (1 for Hugging Face's form), or 0 for as many as it
    /// has. Another number is refused.
    pub model_parallel_size: i32,
    /// `LLAMA_DEVICE_*`.
    pub device: i32,
    /// Which device, if there are several. It must be 0 on the CPU.
    pub device_index: i32,
    /// Threads of the CPU backend, at most 1024. 0 means as many as the affinity mask and the
    /// cgroup allow.
    pub n_threads: u32,
    /// `LLAMA_DTYPE_*` of the weights, which are converted while they are read.
    pub weights_dtype: i32,
    /// `LLAMA_DTYPE_*` of the KV cache.
    pub kv_dtype: i32,
    /// Seeds the generator that gives a seed to calls whose own seed is 0. Default: 1.
    pub seed: u64,
    /// A flag that stops the loading. It is borrowed for the call.
    pub cancel: *mut llama_cancel_t,
    /// Called on the calling thread during the loading. NULL means never.
    pub progress: llama_progress_fn,
    /// Passed to `progress`.
    pub progress_user_data: *mut c_void,
    /// Receives the log lines of this handle. NULL means that nothing is logged.
    pub log: llama_log_fn,
    /// Passed to `log`. It must live until `llama_free` has returned and no call on the handle
    /// runs.
    pub log_user_data: *mut c_void,
    /// The least severe lines that `log` receives, `LLAMA_LOG_*`. 0 means none. Default:
    /// `LLAMA_LOG_INFO`.
    pub log_level: i32,
    /// Must be 0.
    pub reserved0: u32,
    /// The most bytes of GPU memory that the handle allocates. A model that needs more is
    /// `LLAMA_E_DEVICE_MEMORY`. 0 means as many bytes as are free. Memory that the driver takes for
    /// itself (its context, the kernels, CUDA graphs) does not count.
    pub gpu_memory_bytes: u64,
    /// The most calls that may wait. A call waits while none of its sequences has begun because
    /// every slot is taken. One call more is `LLAMA_E_BUSY`. 0 means 1024.
    pub max_waiting: u32,
    /// How long, in milliseconds, a sequence keeps its slot while other sequences wait and its own
    /// reader is behind. A reader is behind from when more than 1,024 events or 4 MiB are queued
    /// until half of that is left. After this time the sequence's part of the KV cache is copied
    /// out of the cache. It is copied back when the reader has caught up and it is the sequence's
    /// turn, and the text continues with the same bytes. 0 means 1000.
    pub max_stall_ms: u32,
    /// A stream ends with `LLAMA_FINISH_UNREAD` when its reader is behind and has taken no event
    /// for so many milliseconds, whether others wait or not. 0 means 60000. UINT32_MAX means that
    /// no stream ends for this reason.
    pub max_unread_ms: u32,
    /// Must be 0.
    pub reserved2: u32,
    /// The most host memory for what is copied out of the KV cache because of `max_stall_ms`. When
    /// this is used up, or half of the memory that the process can still have, the stream that has
    /// gone unread the longest ends with `LLAMA_FINISH_UNREAD`. So no reader keeps a slot idle for
    /// longer than `max_stall_ms` while others wait. 0 means as many bytes as the KV cache has.
    pub stall_memory_bytes: u64,
    /// A Jinja template for chats, in NUL-terminated UTF-8, which replaces the model's. NULL means
    /// the model's template.
    pub chat_template: *const c_char,
    /// The time that `strftime_now` of a template uses, in seconds since 1970. 0 means the clock.
    pub chat_now: i64,
    /// Directories of LoRA adapters as peft writes them, NUL-terminated. The adapters are merged
    /// into the weights in this order while the weights are read. NULL if there are none.
    pub adapters: *const *const c_char,
    /// The weight of each adapter, a finite number. NULL means 1 for all.
    pub adapter_scales: *const f32,
    /// Number of adapters, at most 256.
    pub n_adapters: usize,
}

// Section: Generating

/// `max_gen_len`: as many tokens as `max_seq_len` has room for.
pub const LLAMABI_MAX_GEN_LEN_DEFAULT: u32 = u32::MAX;

/// Put the prompt's tokens in front of the result, and report them as events.
pub const LLAMA_GEN_ECHO: u32 = 1;
/// Report the log probability of each token.
pub const LLAMA_GEN_LOGPROBS: u32 = 2;
/// Fail with `LLAMA_E_BUSY` unless there is a free slot for every prompt now.
pub const LLAMA_GEN_NO_WAIT: u32 = 4;
/// Go on after an end-of-sequence token, which then is part of the result.
pub const LLAMA_GEN_IGNORE_EOS: u32 = 8;
/// Report every step of a beam search as `LLAMA_EVENT_BEAM`. Only with `num_beams` above 1.
pub const LLAMA_GEN_BEAM_EVENTS: u32 = 16;
/// Show special tokens (`<|python_tag|>`) in texts, where they are left out otherwise. The
/// end-of-sequence token that ends a sequence is never shown.
pub const LLAMA_GEN_SPECIAL: u32 = 32;

/// A token, generated or echoed.
pub const LLAMA_EVENT_TOKEN: i32 = 1;
/// A sequence has ended; nothing with its index follows.
pub const LLAMA_EVENT_FINISH: i32 = 2;

/// A beam continued with a token, or finished with it (`LLAMA_GEN_BEAM_EVENTS`).
pub const LLAMA_EVENT_BEAM: i32 = 3;

/// `early_stopping`: a search ends when there are num_beams finished beams and the best running
/// beam, if it ended here, would not be one of the best num_beams.
pub const LLAMA_EARLY_FALSE: i32 = 0;
/// `early_stopping`: a search ends when there are num_beams finished beams.
pub const LLAMA_EARLY_TRUE: i32 = 1;
/// `early_stopping`: a search ends when no running beam can become one of the best num_beams any
/// more, however long it becomes.
pub const LLAMA_EARLY_NEVER: i32 = 2;

/// An end-of-sequence token ended the sequence.
pub const LLAMA_FINISH_STOP: i32 = 1;
/// `max_gen_len` or `max_seq_len` ended the sequence.
pub const LLAMA_FINISH_LENGTH: i32 = 2;
/// A cancel flag, a callback or `llama_free` ended the sequence.
pub const LLAMA_FINISH_CANCELLED: i32 = 3;
/// A stop string ended the sequence.
pub const LLAMA_FINISH_STOP_STRING: i32 = 4;
/// The dialog contained a special tag of the chat format, so it was not given to the model.
pub const LLAMA_FINISH_UNSAFE: i32 = 5;
/// `max_time_ms` ended the sequence. The status of the call is `LLAMA_OK`.
pub const LLAMA_FINISH_TIME: i32 = 6;
/// `on_stop` or `llama_stream_stop` ended the sequence. The status of the call is `LLAMA_OK`.
pub const LLAMA_FINISH_CALLER: i32 = 7;
/// Nobody read the stream for too long (`max_unread_ms`, `stall_memory_bytes`). The status of the
/// call is `LLAMA_OK`, and what was generated until then can still be read.
pub const LLAMA_FINISH_UNREAD: i32 = 8;
/// No logit of the next position was finite, so no token was possible. The weights are finite, but
/// the arithmetic could not hold the numbers that they gave. This ends this sequence alone.
pub const LLAMA_FINISH_NOT_FINITE: i32 = 9;

/// Every token has a step of its own.
pub const LLAMA_SPEC_OFF: i32 = 0;
/// Whatever guesses at tokens there are.
pub const LLAMA_SPEC_AUTO: i32 = 1;
/// What followed the last two to four tokens before: in `predicted`, in the prompt, in the output.
pub const LLAMA_SPEC_NGRAM: i32 = 2;

/// A token and its log probability. This layout is frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_alternative {
    /// Token id.
    pub token: i32,
    /// Natural log of the token's probability under the model, before penalty and temperature. It
    /// is <= 0 and never NaN. It is minus infinity for a token that is impossible because its logit
    /// is not finite or because the difference is beyond float32.
    pub logprob: f32,
}

/// Something that happened to one sequence of a call. The pointers are valid until the callback
/// returns, or until the next `llama_stream_next` or `llama_stream_free` on the stream.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_event {
    /// `sizeof(llama_event)`, set by the caller of `llama_stream_next`.
    pub struct_size: u32,
    /// `LLAMA_EVENT_*`.
    pub kind: i32,
    /// Which sequence of the call. BEAM: the first sequence of the prompt.
    pub index: u32,
    /// TOKEN: its id. FINISH: -1. BEAM: the beam's last token.
    pub token: i32,
    /// TOKEN: its log probability, as in `llama_alternative`; 0 unless `LLAMA_GEN_LOGPROBS` was
    /// given.
    pub logprob: f32,
    /// FINISH: `LLAMA_FINISH_*`. TOKEN: 0. BEAM: 0, or why the beam has finished.
    pub finish_reason: i32,
    /// The text that became certain: whole UTF-8 code points, NUL-terminated. It is often empty.
    pub text: *const c_char,
    /// Bytes of `text`, without the NUL.
    pub text_len: usize,
    /// The most likely tokens at this position, best first. NULL if there are none.
    pub top: *const llama_alternative,
    /// Number of these tokens.
    pub n_top: usize,
    /// BEAM: the beam's place. Running beams have the places from 0 on, best first; finished beams
    /// have those from num_beams on. Otherwise 0.
    pub beam: u32,
    /// BEAM: the place of the beam that this beam continues, in the step before. Otherwise 0.
    pub parent: u32,
    /// The sum that `llama_result_score` gives. BEAM: of the beam. FINISH: of the sequence.
    /// Otherwise 0.
    pub sum_logprob: f32,
    /// The score that `llama_result_score` gives, of the same. A running beam has the score that it
    /// would have if it ended here.
    pub score: f32,
}

/// Receives every event of a call, on the thread that made the call. A return value of 0 stops the
/// whole call.
///
/// Inside it, as inside every callback, only `llama_cancel_trigger`, `llama_stream_stop` and
/// functions that take a `const llama_t *` may be called. Those that would run a model return
/// `LLAMA_E_INVALID_ARGUMENT`. A callback must return: no exception may leave it, and no longjmp. A
/// callback that blocks is a reader that is behind (`max_stall_ms`, `max_unread_ms`).
pub type llama_event_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, ev: *const llama_event) -> i32>;

/// A number that is added to the logit of a token. This layout is frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_bias {
    /// Token id.
    pub token: i32,
    /// A finite number, or minus infinity, which makes the token impossible.
    pub bias: f32,
}

/// A row of logits before a token is drawn from it, and the tokens that it follows. The pointers
/// are valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_logits {
    /// `sizeof(llama_logits)` of the library.
    pub struct_size: u32,
    /// Which sequence of the call.
    pub index: u32,
    /// The sequence's prompt, followed by its output so far.
    pub tokens: *const i32,
    /// Number of these tokens.
    pub n_tokens: usize,
    /// How many of them belong to the prompt.
    pub n_prompt: usize,
    /// The logit of each token of the vocabulary, after penalties, biases, bans and grammar. The
    /// callback may change them. A number that is not finite makes the token impossible.
    pub logits: *mut f32,
    /// Number of logits: the size of the vocabulary.
    pub n_logits: usize,
}

/// Called before every token of a call's sequences is drawn, on the thread that is inside
/// `llama_generate` or `llama_stream_next`, under the rules of `llama_event_fn`. The logits that it
/// leaves in `row->logits` go on to temperature and to everything that follows temperature. What
/// the grammar forbids stays impossible, and so do tokens that the tokenizer does not have. Log
/// probabilities stay those of the model. A return value of 0 stops the whole call, which ends as
/// cancelled.
///
/// The sequence waits for its callback; the others continue.
pub type llama_logits_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, row: *const llama_logits) -> i32>;

/// Called for every generated token of a call, before `on_event` receives it. It is given the
/// sequence's prompt and output so far: `n` tokens, of which `n_prompt` belong to the prompt. A
/// return value other than 0 ends this sequence with this token and `LLAMA_FINISH_CALLER`; the
/// others continue. The outcome is the beginning of what the sequence would be without this
/// callback, to the bit. It is called under the rules of `llama_event_fn`.
pub type llama_stop_fn = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        index: u32,
        tokens: *const i32,
        n: usize,
        n_prompt: usize,
    ) -> i32,
>;

/// Options of a generation. Fill with `llama_generate_options_init`, then change what you like.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_generate_options {
    /// `sizeof(llama_generate_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_GEN_*`, or-ed.
    pub flags: u32,
    /// The most tokens to generate for each sequence. 0 generates none and scores the prompt.
    /// Default: `LLAMABI_MAX_GEN_LEN_DEFAULT`.
    pub max_gen_len: u32,
    /// Temperature: finite and >= 0. 0 takes the most likely token. Default: 0.6.
    pub temperature: f32,
    /// Nucleus sampling keeps the most likely tokens until their probabilities exceed this; 0 to 1.
    /// Default: 0.9.
    pub top_p: f32,
    /// Keep so many of the most likely tokens. 0: off.
    pub top_k: i32,
    /// Keep tokens with at least this share of the most likely token's probability, 0 to 1. 0: off.
    pub min_p: f32,
    /// A finite number > 0. It is applied once for each distinct token of prompt and output. 1:
    /// off.
    pub repetition_penalty: f32,
    /// The same seed gives the same text. 0 means the next number of the handle's generator.
    pub seed: u64,
    /// Texts that end a sequence and are cut off, in NUL-terminated UTF-8, borrowed for the call.
    /// They are looked for in what the model writes after its prompt. This includes the space with
    /// which a first token may begin and which the returned text does not have; but a stop string
    /// of spaces alone is looked for only in the returned text.
    pub stop: *const *const c_char,
    /// Number of stop strings, at most 1024.
    pub n_stop: usize,
    /// A flag that stops the call. It is borrowed for the call, or until the stream is freed.
    pub cancel: *mut llama_cancel_t,
    /// Receives every event. NULL means none. It must be NULL for `llama_stream_open`.
    pub on_event: llama_event_fn,
    /// Passed to `on_event`, `on_logits` and `on_stop`.
    pub user_data: *mut c_void,
    /// How many of the most likely tokens to report for each token, up to the vocabulary. 0: none.
    pub top_logprobs: u32,
    /// Must be 0.
    pub reserved1: u32,
    /// A prompt takes pages from the prefix cache only if they are of calls with the same salt. So
    /// neither `cached_tokens` nor the time to the first token tells what callers with another salt
    /// have sent. Any number will do, and results do not depend on it. All callers that give 0
    /// share their pages.
    pub cache_salt: u64,
    /// Sequences that continue each prompt, 1 to max_batch_size; 0 means 1. Sequence `i *
    /// num_return_sequences + j` is the j-th of prompt i, in results, events and random draws. The
    /// outcome is, to the bit, that of a call that has each prompt so many times in a row. But the
    /// prompt is computed once, and all of its sequences begin together if there are slots for all.
    pub num_return_sequences: u32,
    /// A number above 1 asks for a beam search with so many beams for each prompt, up to
    /// max_batch_size; 0 and 1 ask for none. The sequences of a prompt are then its best
    /// num_return_sequences results, best first; there are at most num_beams. A search takes the
    /// likeliest continuations by their sums of log probabilities, after penalties, biases, bans
    /// and grammar. Temperature and the filters of draws have no effect. Its TOKEN events come at
    /// its end, and top_logprobs is at most 128.
    pub num_beams: u32,
    /// A grammar of `llama_grammar_new` with this handle: the returned text is of its language.
    /// NULL means none. A text ends with `LLAMA_FINISH_STOP` if the model ends it or if nothing can
    /// follow. A text that something else ends (`max_gen_len`, a stop string) may not be of the
    /// language. It cannot be given together with `LLAMA_GEN_IGNORE_EOS`. A text that is too
    /// complex for the parser ends the call with `LLAMA_E_INVALID_ARGUMENT`.
    pub grammar: *const llama_grammar_t,
    /// So many tokens are generated before an end-of-sequence token or one of `stop_tokens` is
    /// possible; at most `max_gen_len`. A stop string ends a sequence at any length. Default: 0.
    pub min_gen_len: u32,
    /// Prompt and output together have no run of so many tokens twice: a token that would complete
    /// such a run is impossible. 0: off.
    pub no_repeat_ngram_size: u32,
    /// OpenAI's presence penalty: subtracted from the logit of every token that the output has.
    /// Finite. Default: 0.
    pub presence_penalty: f32,
    /// OpenAI's frequency penalty: subtracted from the logit of a token as often as the output has
    /// the token. Finite. Default: 0.
    pub frequency_penalty: f32,
    /// Typical sampling: of the tokens that the filters above leave, keep those whose surprise -ln
    /// p is nearest to the entropy, until their probabilities reach this; 0 to 1. 0: off.
    pub typical_p: f32,
    /// After that, drop tokens less probable than this; 0 to below 1. The most likely token stays.
    /// 0: off.
    pub epsilon_cutoff: f32,
    /// After that, drop tokens that are less probable than this and less probable than its square
    /// root times exp(-entropy); 0 to below 1. The most likely token stays. 0: off.
    pub eta_cutoff: f32,
    /// So many milliseconds after the call, each of its sequences ends with `LLAMA_FINISH_TIME`,
    /// when the step that is under way has ended. This includes a sequence that still waits for a
    /// slot. 0: never.
    pub max_time_ms: u32,
    /// Biases that are added to logits after the penalties. A token may stand here several times.
    /// They are borrowed for the call.
    pub logit_bias: *const llama_bias,
    /// Number of biases, at most 65536.
    pub n_logit_bias: usize,
    /// Tokens that end a sequence as an end-of-sequence token does and are no part of the result.
    /// They do so with `LLAMA_GEN_IGNORE_EOS`, too. They are borrowed for the call.
    pub stop_tokens: *const i32,
    /// Number of stop tokens, at most 65536.
    pub n_stop_tokens: usize,
    /// Sequences of tokens, end to end. When prompt and output end with all tokens of a sequence
    /// but its last, the last token is impossible. They are borrowed for the call.
    pub bad_words: *const i32,
    /// The number of tokens of each, at least 1. Together they are at most 65536.
    pub bad_word_lens: *const usize,
    /// Number of bad words.
    pub n_bad_words: usize,
    /// The LoRA adapter with which the sequences are computed: an id of `llama_adapter_add`. 0:
    /// none.
    pub adapter: u32,
    /// Must be 0.
    pub reserved_adapter: u32,
    /// The score of a beam is its sum of log probabilities, divided by its length to this power.
    /// Above 0, long beams gain. Finite, and only with num_beams. Default: 1.
    pub length_penalty: f32,
    /// When a beam search ends: `LLAMA_EARLY_*`, only with num_beams. Default: `LLAMA_EARLY_FALSE`.
    pub early_stopping: i32,
    /// Changes the logits of every token. NULL means that nothing does. For a stream,
    /// `llama_stream_next` calls it, until the stream is freed.
    pub on_logits: llama_logits_fn,
    /// Says which token is a sequence's last; NULL: not. Of a stream as `on_logits`.
    pub on_stop: llama_stop_fn,
    /// `LLAMA_SPEC_*`: whether tokens that come are guessed at, so that one step computes several.
    /// Tokens, log probabilities and texts are to the bit what they are without, at any
    /// temperature; the time is not. Texts that follow a grammar, beam searches and calls with
    /// `on_logits` go without. OFF.
    pub speculation: i32,
    /// 0: as many guesses in a step as measurements say that pay, often none. 1 to 16: always so
    /// many, wherever something is found and the step has room.
    pub draft_len: u32,
    /// Tokens of a text that the output may repeat in parts, as an edited file repeats the old one.
    /// Borrowed for the call.
    pub predicted: *const i32,
    /// How many, at most 65536.
    pub n_predicted: usize,
    /// Phrases that every result of a beam search has, unless `max_gen_len` comes first: groups,
    /// each satisfied by one of its alternatives (one: a phrase). The tokens of all alternatives,
    /// end to end. Borrowed for the call. Only with num_beams above 1, and without a grammar.
    pub force_words: *const i32,
    /// Tokens of each alternative, at least 1; together at most 65536. None may begin with another
    /// of its group. The shortest of each group, together, must fit into `max_gen_len`.
    pub force_word_lens: *const usize,
    /// Alternatives of each group, at least 1.
    pub force_group_lens: *const usize,
    /// How many groups.
    pub n_force_groups: usize,
}

// Section: Results

/// The outcome of one call.
pub struct llama_result {
    _opaque: [u8; 0],
}
/// The outcome of one call.
pub type llama_result_t = llama_result;

/// Figures of one sequence.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_request_stats {
    /// `sizeof(llama_request_stats)`, set by the caller.
    pub struct_size: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated, those cut off by a stop string included, the EOS not.
    pub generated_tokens: u32,
    /// From the call to the first step.
    pub queue_ms: f64,
    /// From the call to the first generated token; 0: there was none.
    pub first_token_ms: f64,
    /// From the call to the end of the sequence.
    pub total_ms: f64,
    /// Guesses at its tokens that were computed (`speculation`).
    pub drafted_tokens: u32,
    /// Of those, right: tokens of it that needed no step of their own.
    pub accepted_tokens: u32,
}

// Section: Chat

/// One message of a dialog.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_message {
    /// "system", "user" or "assistant"; with a chat template any role that it takes.
    pub role: *const c_char,
    /// UTF-8.
    pub content: *const c_char,
    /// Bytes of `role`; SIZE_MAX: NUL-terminated.
    pub role_len: usize,
    /// Bytes of `content`; SIZE_MAX: NUL-terminated.
    pub content_len: usize,
}

// Section: Cancel flags

/// A cancel flag.
pub struct llama_cancel {
    _opaque: [u8; 0],
}
/// A cancel flag.
pub type llama_cancel_t = llama_cancel;

// Section: Streams

/// A call's events, which the caller pulls.
pub struct llama_stream {
    _opaque: [u8; 0],
}
/// A call's events, which the caller pulls.
pub type llama_stream_t = llama_stream;

// Section: Tokens

/// `llama_encode_text`: begin with the BOS token.
pub const LLAMA_ENC_BOS: u32 = 1;
/// `llama_encode_text`: end with the EOS token.
pub const LLAMA_ENC_EOS: u32 = 2;
/// `llama_encode_text`: read the texts of special and added tokens (`<|eot_id|>`) as these tokens.
/// Without this flag they are ordinary text, whoever wrote them.
pub const LLAMA_ENC_SPECIAL: u32 = 4;

// Section: Chat templates

/// `llama_chat_options.flags`: do not begin the answer.
pub const LLAMA_CHAT_NO_GENERATION_PROMPT: u32 = 1;
/// End the prompt behind the last message's content, so that the model continues this message.
pub const LLAMA_CHAT_CONTINUE_FINAL: u32 = 2;
/// Texts of special tokens in messages become these tokens. Without this flag only texts that the
/// template itself writes do, and a message cannot end its own turn.
pub const LLAMA_CHAT_PARSE_SPECIAL: u32 = 4;

/// What surrounds the messages of `llama_chat`. Fill with `llama_chat_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_chat_options {
    /// `sizeof(llama_chat_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_CHAT_*`.
    pub flags: u32,
    /// A JSON array of tools, `{"type": "function", "function": {...}}`. NULL: none.
    pub tools: *const c_char,
    /// Bytes of `tools`. SIZE_MAX means that it is NUL-terminated.
    pub tools_len: usize,
    /// A JSON object of variables for the template (`enable_thinking`, `date_string`). NULL: none.
    pub variables: *const c_char,
    /// Bytes of `variables`. SIZE_MAX means that it is NUL-terminated.
    pub variables_len: usize,
    /// A Jinja template. NULL means the handle's.
    pub chat_template: *const c_char,
    /// Bytes of `chat_template`. SIZE_MAX means that it is NUL-terminated.
    pub chat_template_len: usize,
}

// Section: Grammars

/// A compiled grammar.
pub struct llama_grammar {
    _opaque: [u8; 0],
}
/// A compiled grammar.
pub type llama_grammar_t = llama_grammar;

/// The language of the JSON values that a JSON Schema allows.
pub const LLAMA_GRAMMAR_JSON_SCHEMA: i32 = 1;
/// The language of all JSON objects. It takes no source.
pub const LLAMA_GRAMMAR_JSON: i32 = 2;
/// The language of the texts that a regular expression matches as a whole. The syntax is that of
/// Rust's regex crate.
pub const LLAMA_GRAMMAR_REGEX: i32 = 3;
/// A grammar in llguidance's dialect of Lark.
pub const LLAMA_GRAMMAR_LARK: i32 = 4;
/// The language of the strings of a JSON array. They are distinct, and none is empty.
pub const LLAMA_GRAMMAR_CHOICE: i32 = 5;

// Section: Figures

/// `llama_info.chat_format`: the model has no chat format, and chat calls are
/// `LLAMA_E_UNSUPPORTED`.
pub const LLAMA_CHAT_NONE: u32 = 0;
/// Meta's Llama 2 format.
pub const LLAMA_CHAT_LLAMA2: u32 = 1;
/// Meta's Llama 3 format.
pub const LLAMA_CHAT_LLAMA3: u32 = 2;
/// The model's own template.
pub const LLAMA_CHAT_TEMPLATE: u32 = 3;

/// What was loaded.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_info {
    /// `sizeof(llama_info)`, set by the caller.
    pub struct_size: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub dim: u32,
    /// Number of layers.
    pub n_layers: u32,
    /// Number of query heads.
    pub n_heads: u32,
    /// Number of key and value heads.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub ffn_dim: u32,
    /// As given to `llama_build`.
    pub max_seq_len: u32,
    /// As given to `llama_build`.
    pub max_batch_size: u32,
    /// Id of the begin-of-sequence token. -1: none.
    pub bos_id: i32,
    /// The first of `eos_ids`. -1: none.
    pub eos_id: i32,
    /// Id of the padding token. -1: none.
    pub pad_id: i32,
    /// The device that was chosen: `LLAMA_DEVICE_CPU` or `_CUDA`.
    pub device: i32,
    /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub weights_dtype: i32,
    /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub kv_dtype: i32,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// The device in words, NUL-terminated.
    pub device_name: [c_char; 128],
    /// 1 if the library was built with GPU kernels, otherwise 0. `LLAMABI_KERNELS` may name other
    /// kernels at run time.
    pub gpu_kernels: u32,
    /// Always 0.
    pub reserved0: u32,
    /// The `n_eos` tokens that end a sequence: those of `generation_config.json`, `config.json` and
    /// the tokenizer.
    pub eos_ids: [i32; 16],
    /// Number of these tokens.
    pub n_eos: u32,
    /// How chat calls make a prompt of messages: `LLAMA_CHAT_*`.
    pub chat_format: u32,
    /// The model's family, as in Hugging Face's `model_type` ("llama", "qwen2"), NUL-terminated.
    pub model_type: [c_char; 32],
    /// The format in which most of the weights are stored ("bf16", "GGUF Q4_K", "gptq 4 bits"),
    /// whatever `weights_dtype` they are kept in. NUL-terminated.
    pub stored_format: [c_char; 32],
}

/// Totals of a handle since it was built.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_timings {
    /// `sizeof(llama_timings)`, set by the caller.
    pub struct_size: u32,
    /// Sequences that run now.
    pub running: u32,
    /// Sequences that wait for a slot now.
    pub waiting: u32,
    /// Sequences that now are without their slot because their reader is behind.
    pub parked: u32,
    /// The time that `llama_build` took.
    pub load_ms: f64,
    /// The time of steps that had prompt tokens.
    pub prefill_ms: f64,
    /// The time of steps that had no prompt tokens.
    pub decode_ms: f64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// How many of these were taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Steps that were run. A step is one pass through the model, for all running sequences
    /// together.
    pub steps: u64,
    /// Pages of the KV cache that sequences hold now.
    pub pages_used: u64,
    /// Pages that the KV cache has.
    pub pages_total: u64,
    /// Masks of grammars that were computed.
    pub masks: u64,
    /// The time of computing these masks, on a thread of its own.
    pub mask_ms: f64,
    /// Of that, time that generation waited for.
    pub mask_wait_ms: f64,
    /// Guesses at tokens that were computed (`speculation`).
    pub drafted_tokens: u64,
    /// Of those, right.
    pub accepted_tokens: u64,
}
