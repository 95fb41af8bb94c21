//! Constants and structs of the header. Fields are only ever appended; numbers are never reused.
//! A line `// Section: ...` says under which heading of the header the items below it stand.

#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_void};

// Section: First things

/// Version of the binary interface, the number in `libllamabi.so.<N>`.
pub const LLAMABI_ABI_VERSION: u32 = 0;

/// What a function returns: 0 is success, positive is an outcome, negative a failure.
pub type llama_status = i32;

/// Success.
pub const LLAMA_OK: llama_status = 0;
/// `llama_stream_next`: the stream has ended; no event was written.
pub const LLAMA_DONE: llama_status = 1;
/// Stopped by a cancel flag, a callback, or `llama_free`. Not an error: what was generated so far
/// is valid.
pub const LLAMA_CANCELLED: llama_status = 2;
/// `llama_stream_next`: nothing happened within `timeout_ms`.
pub const LLAMA_TIMEOUT: llama_status = 3;
/// An argument is NULL, misaligned, out of range, or not a live object; the message names it.
pub const LLAMA_E_INVALID_ARGUMENT: llama_status = -1;
/// A `struct_size`, an `abi_version`, a reserved field or an unknown tail is not what this library
/// knows.
pub const LLAMA_E_ABI: llama_status = -2;
/// A path is missing or unreadable, or a file ended early.
pub const LLAMA_E_IO: llama_status = -3;
/// A readable file of the wrong kind, or with contradictory contents.
pub const LLAMA_E_FORMAT: llama_status = -4;
/// Known, but not offered by this build or machine; the message says why.
pub const LLAMA_E_UNSUPPORTED: llama_status = -5;
/// Memory or a thread that the machine, its cgroup or a limit of this process (`RLIMIT_AS`,
/// `RLIMIT_DATA`) does not give; the message has both numbers, and names the limit.
pub const LLAMA_E_NO_MEMORY: llama_status = -6;
/// A device failed.
pub const LLAMA_E_DEVICE: llama_status = -7;
/// Memory that the device cannot give.
pub const LLAMA_E_DEVICE_MEMORY: llama_status = -8;
/// A prompt longer than `max_seq_len`.
pub const LLAMA_E_TOO_LONG: llama_status = -9;
/// No prompts, more than 65,536 sequences, or more sequences of a prompt than max_batch_size.
pub const LLAMA_E_BATCH: llama_status = -10;
/// Text that is not UTF-8; the message names the argument and the byte.
pub const LLAMA_E_UTF8: llama_status = -11;
/// `LLAMA_GEN_NO_WAIT` and not enough free slots, or as many calls wait as `max_waiting` allows.
pub const LLAMA_E_BUSY: llama_status = -12;
/// An earlier panic or device failure has left the handle unusable; free it.
pub const LLAMA_E_POISONED: llama_status = -13;
/// A bug in this library, caught.
pub const LLAMA_E_INTERNAL: llama_status = -99;

/// Where a function says what went wrong. The caller's own; there is nothing to free.
///
/// Set `struct_size` before the first use. Every call that is given one writes `status` and
/// `message` (`LLAMA_OK` and "" on success). A smaller `struct_size` gets a shorter message, one
/// below 9 nothing at all.
#[repr(C)]
pub struct llama_error {
    /// `sizeof(llama_error)`, set by the caller.
    pub struct_size: u32,
    /// What the function returned.
    pub status: llama_status,
    /// A sentence, NUL-terminated UTF-8; names the file, tensor or argument and both values. In
    /// names control characters are escaped (`\n`, `\u{1b}`), and long ones are shortened in their
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

/// `device`: the best that is usable.
pub const LLAMA_DEVICE_AUTO: i32 = 0;
/// `device`: the CPU; CUDA is never touched.
pub const LLAMA_DEVICE_CPU: i32 = 1;
/// `device`: an NVIDIA GPU, or the build fails.
pub const LLAMA_DEVICE_CUDA: i32 = 2;

/// `weights_dtype`: as stored (a checkpoint of `examples/quantize.rs` as quantised); `kv_dtype`:
/// F32 for f32 weights, F16 for f16, else BF16.
pub const LLAMA_DTYPE_AUTO: i32 = 0;
/// IEEE binary32.
pub const LLAMA_DTYPE_F32: i32 = 1;
/// IEEE binary16.
pub const LLAMA_DTYPE_F16: i32 = 2;
/// bfloat16.
pub const LLAMA_DTYPE_BF16: i32 = 3;
/// 8-bit integers. Weights: groups of 32 along a row, f16 scales; quantised while a checkpoint of
/// floats is loaded. `kv_dtype`: a scale for each head's vector.
///
/// With this and the 4-bit formats the head is INT8, too, and the embedding stays in 16 bits (one
/// that serves as the head is INT8). Activations of generated tokens are rounded to 16-bit
/// integers.
pub const LLAMA_DTYPE_INT8: i32 = 4;
/// 4-bit integers: groups of 32 along a row, symmetric, f16 scales found by error search. Weights
/// only.
pub const LLAMA_DTYPE_INT4: i32 = 5;
/// 4-bit normal float with double quantisation, as QLoRA and bitsandbytes define it: blocks of 64
/// along a row, whose length 64 must divide. Weights only.
pub const LLAMA_DTYPE_NF4: i32 = 6;
/// 8-bit floats, e4m3: on GPUs, `LLAMA_E_UNSUPPORTED` on the CPU. Weights: groups of 128 along a
/// row, f16 scales; quantised while a checkpoint of floats is loaded, head and embedding as with
/// INT8. `kv_dtype`: a scale for each head's vector.
pub const LLAMA_DTYPE_FP8: i32 = 7;
/// 4-bit integers with scales of two levels and minima: how Q4_K of GGUF files is kept on the CPU, exactly.
/// `llama_info` says it; as an option it is `LLAMA_E_UNSUPPORTED`, for AUTO keeps what is stored so.
pub const LLAMA_DTYPE_K4: i32 = 8;
/// 8-bit integers with scales of two levels: how Q6_K and Q3_K are kept on the CPU, exactly; as K4.
pub const LLAMA_DTYPE_K8: i32 = 9;

/// Something failed.
pub const LLAMA_LOG_ERROR: i32 = 1;
/// Something was chosen that one may not expect.
pub const LLAMA_LOG_WARN: i32 = 2;
/// What was loaded and chosen.
pub const LLAMA_LOG_INFO: i32 = 3;
/// Details of every request.
pub const LLAMA_LOG_DEBUG: i32 = 4;

/// Hears the fraction of the checkpoint that has been read, 0 to 1, never falling. 0 stops the
/// loading.
pub type llama_progress_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, fraction: f32) -> i32>;

/// Hears a log line of `len` bytes, NUL-terminated, without a line feed. Runs on a thread that is
/// inside a call on the handle, so on several at once if the handle is used by several.
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
    /// Most tokens of a sequence, prompt included. 512.
    pub max_seq_len: u32,
    /// Most sequences that run at the same time; more wait, of one call or of several. 8.
    pub max_batch_size: u32,
    /// 0: as many shards as the checkpoint has. Any other number must be that number (Hugging Face:
    /// 1).
    pub model_parallel_size: i32,
    /// `LLAMA_DEVICE_*`.
    pub device: i32,
    /// Which one of several; 0 on the CPU.
    pub device_index: i32,
    /// Threads of the CPU backend, at most 1024. 0: as many as affinity mask and cgroup allow.
    pub n_threads: u32,
    /// `LLAMA_DTYPE_*`; the weights are converted as they are read.
    pub weights_dtype: i32,
    /// `LLAMA_DTYPE_*` of the KV cache.
    pub kv_dtype: i32,
    /// Seeds the generator that gives a seed to calls whose own is 0. 1.
    pub seed: u64,
    /// Stops the loading; borrowed for the call.
    pub cancel: *mut llama_cancel_t,
    /// Called on the calling thread while loading; NULL: not.
    pub progress: llama_progress_fn,
    /// Given to `progress`.
    pub progress_user_data: *mut c_void,
    /// Log lines of this handle; NULL: silent.
    pub log: llama_log_fn,
    /// Given to `log`. Must live until `llama_free` has returned and no call on the handle runs.
    pub log_user_data: *mut c_void,
    /// `LLAMA_LOG_*`, the least severe lines to hear; 0: none. `LLAMA_LOG_INFO`.
    pub log_level: i32,
    /// 0.
    pub reserved0: u32,
    /// Most bytes of GPU memory that the handle allocates; what does not fit is
    /// `LLAMA_E_DEVICE_MEMORY`. 0: as many as are free. What the driver takes for itself (its
    /// context, the kernels, CUDA graphs) is not among them.
    pub gpu_memory_bytes: u64,
    /// Most calls that wait: none of their sequences has begun, because every slot is taken. One
    /// more is `LLAMA_E_BUSY`. 0: 1024.
    pub max_waiting: u32,
    /// How long, in milliseconds, a sequence keeps its slot while others wait and its own reader is
    /// behind: from when more than 1,024 events or 4 MiB are queued until half of that is left.
    /// Then its part of the KV cache is copied out, and back when the reader has caught up and it
    /// is its turn: it goes on to the same bytes. 0: 1000.
    pub max_stall_ms: u32,
    /// A stream whose reader is behind and takes no event for so many milliseconds ends with
    /// `LLAMA_FINISH_UNREAD`, whether others wait or not. 0: 60000. UINT32_MAX: never for that
    /// reason.
    pub max_unread_ms: u32,
    /// 0.
    pub reserved2: u32,
    /// Most host memory for what `max_stall_ms` copies out of the KV cache. Where that is not
    /// enough, or half of what the process can still have, the stream that has gone unread the
    /// longest ends with `LLAMA_FINISH_UNREAD`: no reader keeps a slot idle for longer than
    /// `max_stall_ms` while others wait. 0: as many bytes as the KV cache has.
    pub stall_memory_bytes: u64,
    /// Text of a Jinja template for chats, NUL-terminated UTF-8, instead of the model's; NULL: the
    /// model's.
    pub chat_template: *const c_char,
    /// What `strftime_now` of a template sees, in seconds since 1970; 0: the clock.
    pub chat_now: i64,
    /// Directories of LoRA adapters as peft writes them, NUL-terminated, merged into the weights in
    /// this order while they are read; NULL where there are none.
    pub adapters: *const *const c_char,
    /// By how much each is weighted, finite; NULL: 1 for all.
    pub adapter_scales: *const f32,
    /// How many, at most 256.
    pub n_adapters: usize,
}

// Section: Generating

/// `max_gen_len`: as many tokens as `max_seq_len` has room for.
pub const LLAMABI_MAX_GEN_LEN_DEFAULT: u32 = u32::MAX;

/// Put the prompt's tokens in front of the result (and report them as events).
pub const LLAMA_GEN_ECHO: u32 = 1;
/// Report the log probability of each token.
pub const LLAMA_GEN_LOGPROBS: u32 = 2;
/// Fail with `LLAMA_E_BUSY` unless there is a free slot for every prompt now.
pub const LLAMA_GEN_NO_WAIT: u32 = 4;
/// Go on after an end-of-sequence token, which then is part of the result.
pub const LLAMA_GEN_IGNORE_EOS: u32 = 8;
/// Show special tokens (`<|python_tag|>`) in texts, where they are left out otherwise. The
/// end-of-sequence token that ends a sequence is never shown.
pub const LLAMA_GEN_SPECIAL: u32 = 32;

/// A token, generated or echoed.
pub const LLAMA_EVENT_TOKEN: i32 = 1;
/// A sequence has ended; nothing with its index follows.
pub const LLAMA_EVENT_FINISH: i32 = 2;

/// Ended by an end-of-sequence token.
pub const LLAMA_FINISH_STOP: i32 = 1;
/// Ended by `max_gen_len` or `max_seq_len`.
pub const LLAMA_FINISH_LENGTH: i32 = 2;
/// Ended by a cancel flag, a callback, or `llama_free`.
pub const LLAMA_FINISH_CANCELLED: i32 = 3;
/// Ended by a stop string.
pub const LLAMA_FINISH_STOP_STRING: i32 = 4;
/// The dialog contained one of the chat format's special tags and was not given to the model.
pub const LLAMA_FINISH_UNSAFE: i32 = 5;
/// Ended by `max_time_ms`. The status of the call is `LLAMA_OK`.
pub const LLAMA_FINISH_TIME: i32 = 6;
/// Nobody has read the stream for too long (`max_unread_ms`, `stall_memory_bytes`). The status of
/// the call is `LLAMA_OK`, and what was generated until then can still be read.
pub const LLAMA_FINISH_UNREAD: i32 = 8;
/// No logit of the next position was finite, so no token was possible: the weights, all of them
/// finite, made numbers that the arithmetic cannot hold. It ends this sequence alone.
pub const LLAMA_FINISH_NOT_FINITE: i32 = 9;

/// A token and its log probability. This layout is frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_alternative {
    /// Token id.
    pub token: i32,
    /// Natural log of its probability under the model (before penalty and temperature), <= 0. Minus
    /// infinity for a token that is impossible, because its logit is not finite or because the
    /// difference is beyond float32; never NaN.
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
    /// Which sequence of the call.
    pub index: u32,
    /// TOKEN: its id. FINISH: -1.
    pub token: i32,
    /// TOKEN: its log probability, as in `llama_alternative`; 0 unless `LLAMA_GEN_LOGPROBS` was
    /// given.
    pub logprob: f32,
    /// FINISH: `LLAMA_FINISH_*`. TOKEN: 0.
    pub finish_reason: i32,
    /// Text that became certain: whole UTF-8 code points, NUL-terminated, often empty.
    pub text: *const c_char,
    /// Bytes of `text`, without the NUL.
    pub text_len: usize,
    /// Most likely tokens at this position, best first; NULL where there are none.
    pub top: *const llama_alternative,
    /// How many.
    pub n_top: usize,
}

/// Hears every event of a call, on the thread that made the call. 0 stops the whole call.
///
/// Inside it (as inside every callback) only `llama_cancel_trigger` and functions that take a
/// `const llama_t *` may be called; those that would run a model return `LLAMA_E_INVALID_ARGUMENT`.
/// It must return: no exception, no longjmp. One that blocks is a reader who is behind
/// (`max_stall_ms`, `max_unread_ms`).
pub type llama_event_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, ev: *const llama_event) -> i32>;

/// A number that is added to a token's logit. This layout is frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_bias {
    /// Token id.
    pub token: i32,
    /// Finite; or minus infinity, which makes the token impossible.
    pub bias: f32,
}

/// Options of a generation. Fill with `llama_generate_options_init`, then change what you like.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_generate_options {
    /// `sizeof(llama_generate_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_GEN_*`, or-ed.
    pub flags: u32,
    /// Most tokens to generate per sequence; 0: none (scores the prompt).
    /// `LLAMABI_MAX_GEN_LEN_DEFAULT`.
    pub max_gen_len: u32,
    /// Finite, >= 0; 0 takes the most likely token. 0.6.
    pub temperature: f32,
    /// Nucleus: keep the most likely tokens until their probabilities exceed this; 0 to 1. 0.9.
    pub top_p: f32,
    /// Keep this many of the most likely tokens; 0: off.
    pub top_k: i32,
    /// Keep tokens with at least this share of the most likely token's probability, 0 to 1; 0: off.
    pub min_p: f32,
    /// Finite, > 0; applied once per distinct token of prompt and output; 1: off.
    pub repetition_penalty: f32,
    /// Same seed, same text. 0: the next draw of the handle's generator.
    pub seed: u64,
    /// Texts that end a sequence and are cut off: NUL-terminated UTF-8, borrowed for the call. They
    /// are looked for in what the model writes behind its prompt, and so with the space that a
    /// first token may begin with and that the text comes without; spaces alone only in the text.
    pub stop: *const *const c_char,
    /// How many, at most 1024.
    pub n_stop: usize,
    /// Stops the call; borrowed for the call, or until the stream is freed.
    pub cancel: *mut llama_cancel_t,
    /// Hears every event; NULL: not. Must be NULL for `llama_stream_open`.
    pub on_event: llama_event_fn,
    /// Given to `on_event`.
    pub user_data: *mut c_void,
    /// Most likely tokens to report per token, up to the vocabulary; 0: none.
    pub top_logprobs: u32,
    /// 0.
    pub reserved1: u32,
    /// Whose prefixes are found: a prompt takes pages from the prefix cache only of calls with the
    /// same salt, so that neither `cached_tokens` nor the time to the first token tells what others
    /// have sent. Any number; results do not depend on it. 0: those of all who give 0.
    pub cache_salt: u64,
    /// Sequences that continue each prompt, 1 to max_batch_size; 0 is 1. Sequence
    /// `i * num_return_sequences + j` is the j-th of prompt i, in results, events and draws: the
    /// call in which each prompt stands so many times in a row, to the bit. But the prompt is
    /// computed once, and all begin together when there are slots for all.
    pub num_return_sequences: u32,
    /// 0.
    pub reserved2: u32,
    /// The returned text is of this language: of `llama_grammar_new` with this handle; NULL: none.
    /// A text ends with `LLAMA_FINISH_STOP` where the model ends it or where nothing can follow; one
    /// that something else ends (`max_gen_len`, a stop string) may not be of the language.
    /// Not with `LLAMA_GEN_IGNORE_EOS`. A text that is too complex for the parser ends the call
    /// with `LLAMA_E_INVALID_ARGUMENT`.
    pub grammar: *const llama_grammar_t,
    /// So many tokens are generated before an end-of-sequence token or one of `stop_tokens` is
    /// possible; at most `max_gen_len`. A stop string ends a sequence at any length. 0.
    pub min_gen_len: u32,
    /// No run of so many tokens is in prompt and output twice: the token that would complete it is
    /// impossible. 0: off.
    pub no_repeat_ngram_size: u32,
    /// Subtracted from the logit of every token that the output has; OpenAI's. Finite. 0.
    pub presence_penalty: f32,
    /// Subtracted as often as the output has the token; OpenAI's. Finite. 0.
    pub frequency_penalty: f32,
    /// Typical sampling: of what the filters before leave, keep the tokens whose surprise -ln p is
    /// nearest to the entropy, until their probabilities reach this; 0 to 1. 0: off.
    pub typical_p: f32,
    /// After that, drop tokens less probable than this; 0 to below 1. The most likely stays. 0: off.
    pub epsilon_cutoff: f32,
    /// After that, drop tokens less probable than this and than its square root times
    /// exp(-entropy); 0 to below 1. The most likely stays. 0: off.
    pub eta_cutoff: f32,
    /// So many milliseconds after the call every sequence of it ends with `LLAMA_FINISH_TIME`, when
    /// the step that is under way has ended; one that still waits for a slot, too. 0: never.
    pub max_time_ms: u32,
    /// Added to logits after the penalties; a token may stand here several times. Borrowed for the
    /// call.
    pub logit_bias: *const llama_bias,
    /// How many, at most 65536.
    pub n_logit_bias: usize,
    /// Tokens that end a sequence as an end-of-sequence token does, and are no part of the result;
    /// with `LLAMA_GEN_IGNORE_EOS` too. Borrowed for the call.
    pub stop_tokens: *const i32,
    /// How many, at most 65536.
    pub n_stop_tokens: usize,
    /// Sequences of tokens, end to end. Where prompt and output end with all but the last token of
    /// one, its last token is impossible. Borrowed for the call.
    pub bad_words: *const i32,
    /// Tokens of each, at least 1; together at most 65536.
    pub bad_word_lens: *const usize,
    /// How many.
    pub n_bad_words: usize,
    /// An id of `llama_adapter_add`: the LoRA adapter that the sequences are computed with. 0: none.
    pub adapter: u32,
    /// 0.
    pub reserved_adapter: u32,
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

/// Events to be pulled.
pub struct llama_stream {
    _opaque: [u8; 0],
}
/// Events to be pulled.
pub type llama_stream_t = llama_stream;

// Section: Tokens

/// `llama_encode_text`: begin with the BOS token.
pub const LLAMA_ENC_BOS: u32 = 1;
/// `llama_encode_text`: end with the EOS token.
pub const LLAMA_ENC_EOS: u32 = 2;
/// `llama_encode_text`: read the texts of special and added tokens (`<|eot_id|>`) as these tokens.
/// Without it they are words like others, whoever wrote them.
pub const LLAMA_ENC_SPECIAL: u32 = 4;

// Section: Chat templates

/// `llama_chat_options.flags`: do not begin the answer.
pub const LLAMA_CHAT_NO_GENERATION_PROMPT: u32 = 1;
/// Cut behind the last message's content, for the model to go on with it.
pub const LLAMA_CHAT_CONTINUE_FINAL: u32 = 2;
/// Texts of special tokens in messages become these tokens. Without it only those that the template
/// itself writes do, and a message cannot end its own turn.
pub const LLAMA_CHAT_PARSE_SPECIAL: u32 = 4;

/// What surrounds the messages of `llama_chat`. Fill with `llama_chat_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_chat_options {
    /// `sizeof(llama_chat_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_CHAT_*`.
    pub flags: u32,
    /// A JSON array of tools, `{"type": "function", "function": {...}}`; NULL: none.
    pub tools: *const c_char,
    /// Bytes of `tools`; SIZE_MAX: NUL-terminated.
    pub tools_len: usize,
    /// A JSON object of variables for the template (`enable_thinking`, `date_string`); NULL: none.
    pub variables: *const c_char,
    /// Bytes of `variables`; SIZE_MAX: NUL-terminated.
    pub variables_len: usize,
    /// A Jinja template instead of the handle's; NULL: the handle's.
    pub chat_template: *const c_char,
    /// Bytes of `chat_template`; SIZE_MAX: NUL-terminated.
    pub chat_template_len: usize,
}

// Section: Grammars

/// A compiled grammar.
pub struct llama_grammar {
    _opaque: [u8; 0],
}
/// A compiled grammar.
pub type llama_grammar_t = llama_grammar;

/// The JSON values of a JSON Schema.
pub const LLAMA_GRAMMAR_JSON_SCHEMA: i32 = 1;
/// Any JSON object; without a source.
pub const LLAMA_GRAMMAR_JSON: i32 = 2;
/// A regular expression, in the syntax of Rust's regex crate, that matches the whole text.
pub const LLAMA_GRAMMAR_REGEX: i32 = 3;
/// A grammar in llguidance's dialect of Lark.
pub const LLAMA_GRAMMAR_LARK: i32 = 4;
/// One of the strings of a JSON array: distinct, none empty.
pub const LLAMA_GRAMMAR_CHOICE: i32 = 5;

// Section: Figures

/// `llama_info.chat_format`: there is none; chat calls are `LLAMA_E_UNSUPPORTED`.
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
    /// Layers.
    pub n_layers: u32,
    /// Query heads.
    pub n_heads: u32,
    /// Key and value heads.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub ffn_dim: u32,
    /// As built.
    pub max_seq_len: u32,
    /// As built.
    pub max_batch_size: u32,
    /// Begin-of-sequence id, -1: none.
    pub bos_id: i32,
    /// The first of `eos_ids`, -1: none.
    pub eos_id: i32,
    /// Padding id, -1: none.
    pub pad_id: i32,
    /// As chosen: `LLAMA_DEVICE_CPU` or `_CUDA`.
    pub device: i32,
    /// As chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub weights_dtype: i32,
    /// As chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub kv_dtype: i32,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// The device in words, NUL-terminated.
    pub device_name: [c_char; 128],
    /// 1 if the library was built with GPU kernels, else 0. `LLAMABI_KERNELS` may name others at
    /// run time.
    pub gpu_kernels: u32,
    /// 0.
    pub reserved0: u32,
    /// `n_eos` tokens, any of which ends a sequence: those of `generation_config.json`,
    /// `config.json` and the tokenizer.
    pub eos_ids: [i32; 16],
    /// How many there are.
    pub n_eos: u32,
    /// What chat calls make of messages: `LLAMA_CHAT_*`.
    pub chat_format: u32,
    /// The model's family, as Hugging Face's `model_type` has it ("llama", "qwen2"); NUL-terminated.
    pub model_type: [c_char; 32],
    /// What most of the weights are stored as ("bf16", "GGUF Q4_K", "gptq 4 bits"), whatever
    /// `weights_dtype` they are kept in; NUL-terminated.
    pub stored_format: [c_char; 32],
}

/// Totals of a handle since it was built.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_timings {
    /// `sizeof(llama_timings)`, set by the caller.
    pub struct_size: u32,
    /// Sequences running now.
    pub running: u32,
    /// Sequences waiting for a slot now.
    pub waiting: u32,
    /// Sequences that have given their slot up now, because their reader is behind.
    pub parked: u32,
    /// Time `llama_build` took.
    pub load_ms: f64,
    /// Time in steps that had prompt tokens.
    pub prefill_ms: f64,
    /// Time in steps that had none.
    pub decode_ms: f64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps run: passes through the model, each for all running sequences together.
    pub steps: u64,
    /// Pages of the KV cache that sequences hold now.
    pub pages_used: u64,
    /// Pages of the KV cache.
    pub pages_total: u64,
    /// Masks of grammars that were computed.
    pub masks: u64,
    /// Time that computing them took, on a thread of its own.
    pub mask_ms: f64,
    /// Of that, time that generation waited for.
    pub mask_wait_ms: f64,
}
