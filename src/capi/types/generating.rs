//! What a call is given, and what it says while it runs.

#![allow(non_camel_case_types)]

use super::results::llama_cancel_t;
use super::texts::llama_grammar_t;
use std::ffi::{c_char, c_void};

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
/// Whatever guesses at tokens there are; first of all, what the grammar leaves no choice about.
pub const LLAMA_SPEC_AUTO: i32 = 1;
/// What followed the last two to four tokens before: in `predicted`, in the prompt, in the output.
pub const LLAMA_SPEC_NGRAM: i32 = 2;
/// What the draft model (`draft_dir`) would choose. An argument error on a handle without one.
pub const LLAMA_SPEC_DRAFT: i32 = 3;
/// What Medusa heads (`medusa_dir`) would choose. An argument error on a handle without any.
pub const LLAMA_SPEC_MEDUSA: i32 = 4;

/// The step that made the token had no guess at it.
pub const LLAMA_DRAFT_NONE: i32 = 0;
/// The guess at the token was right, so the token needed no step of its own.
pub const LLAMA_DRAFT_ACCEPTED: i32 = 1;
/// The guess was another token. Guesses behind it came to nothing.
pub const LLAMA_DRAFT_REJECTED: i32 = 2;

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
    /// TOKEN: what became of the guess at it, `LLAMA_DRAFT_*`. Otherwise 0.
    pub draft: i32,
    /// BEAM: the step of the search, from 1: as many tokens has the beam generated. Otherwise 0.
    pub step: u32,
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
    /// Receives every event. NULL means none. Without it, a call of many prompts ends sooner: see
    /// `max_step_ms`. It must be NULL for `llama_stream_open`.
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
    /// slot. A text that is being encoded is encoded first; that time counts. 0: never.
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
    /// Above 0, long beams gain. Finite. Without num_beams it has no effect. Default: 1.
    pub length_penalty: f32,
    /// When a beam search ends: `LLAMA_EARLY_*`. Default: `LLAMA_EARLY_FALSE`.
    pub early_stopping: i32,
    /// Changes the logits of every token. NULL means that nothing does. Not with beams. For a
    /// stream, `llama_stream_next` calls it, until the stream is freed.
    pub on_logits: llama_logits_fn,
    /// Says which token is a sequence's last; NULL: not. Not with beams. Of a stream as
    /// `on_logits`.
    pub on_stop: llama_stop_fn,
    /// `LLAMA_SPEC_*`: whether tokens that come are guessed at, so that one step computes several.
    /// Tokens, log probabilities and texts are to the bit what they are without, at any
    /// temperature; the time is not. Beam searches and calls with `on_logits` go without. OFF.
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
    /// Contrastive decoding with the draft model (`draft_dir`): a token is chosen from
    /// `(1 + contrast_beta) * logit - contrast_beta * logit of the draft model`, in float32, before
    /// penalties, filters and draw. So what both models say counts less, and what only the larger
    /// one knows counts more; 0.5 is usual. Log probabilities stay the model's. The draft model
    /// drafts nothing then. Finite, at least 0, and 0 with beams. Default: 0, off.
    pub contrast_beta: f32,
    /// Only tokens count that have, in the model, at least this share of the probability of the
    /// most likely token that nothing forbids: 0 to 1; 0 means 0.1. It has no effect without
    /// contrast_beta.
    pub contrast_alpha: f32,
}
