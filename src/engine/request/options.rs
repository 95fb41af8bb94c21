//! The options of a request, and their defaults.

use super::checks::Range;
use crate::grammar::Grammar;
use crate::kv::Root;
use crate::{Cancel, Token};
use std::sync::Arc;
use std::time::Instant;

/// The most bytes of a stop string. Nothing that is searched for is nearly so long, and the tables
/// of all stop strings stay small.
pub const MAX_STOP_BYTES: usize = 4096;

/// The most elements of a list of tokens. For bad words, this bounds the number of all their
/// tokens.
pub const MAX_LIST: usize = 65_536;

/// The most drafts of a sequence in a step.
pub const MAX_DRAFTS: usize = 16;

/// A number that is added to a token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Bias {
    /// The token.
    pub token: Token,
    /// A finite number, or -inf, which makes the token impossible.
    pub bias: f32,
}

/// The most alternatives per token of a beam search, which keeps those of all its beams to its end.
pub const MAX_BEAM_TOP: usize = 128;

/// When a beam search ends that has as many finished beams as it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyStopping {
    /// It ends when the best running beam, if it ended here, would not be among the finished beams.
    #[default]
    False,
    /// It ends at once.
    True,
    /// It ends when no running beam can get among the finished beams any more.
    Never,
}

/// What guesses at the tokens that come, so that a step may compute several. Results do not depend
/// on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// Nothing.
    Off,
    /// Whatever there is.
    Auto,
    /// Texts: what followed the last tokens before, in prompt and output and in
    /// [`GenerateOptions::predicted`].
    NGram,
    /// The draft model: what it would choose.
    Draft,
    /// Medusa heads: what they would choose.
    Medusa,
}

/// Contrastive decoding (Li et al. 2022, <https://arxiv.org/abs/2210.15097>; in logits, as O'Brien
/// and Lewis 2023 have it, <https://arxiv.org/abs/2309.09117>).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contrast {
    /// How much the draft model's logits count.
    pub beta: f32,
    /// The logarithm of the least share of the most likely token's probability that a token must
    /// have.
    pub log_alpha: f32,
}

/// [`GenerateOptions::contrast_alpha`] where it is 0.
const DEFAULT_ALPHA: f32 = 0.1;

/// Options of one call, as a caller gives them. The defaults are the reference's.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Put the prompt's tokens in front of the result.
    pub echo: bool,
    /// Report the log probability of each token.
    pub logprobs: bool,
    /// Fail with [`crate::Error::Busy`] rather than wait for a slot.
    pub no_wait: bool,
    /// Continue after an end-of-sequence token, which then is part of the result.
    pub ignore_eos: bool,
    /// Show special tokens in texts, except the token that ends a sequence.
    pub special: bool,
    /// Somebody follows the call's tokens as they come. If nobody does, only its end counts, and
    /// prompts of any call are computed at full speed beside it, not in chunks of `max_step_ms`.
    pub streaming: bool,
    /// The most tokens to generate; `None` means as many as `max_seq_len` leaves room for.
    pub max_gen_len: Option<usize>,
    /// The temperature; 0 is greedy.
    pub temperature: f32,
    /// The probability of the nucleus; 1 is off.
    pub top_p: f32,
    /// How many of the most likely tokens to keep; 0 is off.
    pub top_k: i32,
    /// Keep tokens with at least this share of the most likely token's probability; 0 is off.
    pub min_p: f32,
    /// Typical sampling: keep the tokens whose surprise is nearest to the expected one, until they
    /// have this probability together; 0 and 1 are off.
    pub typical_p: f32,
    /// Drop tokens less probable than this; 0 is off.
    pub epsilon_cutoff: f32,
    /// Drop tokens less probable than `min(eta, sqrt(eta) exp(-entropy))`; 0 is off.
    pub eta_cutoff: f32,
    /// The penalty is applied once for each distinct token of prompt and output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token of the output.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as the output has it.
    pub frequency_penalty: f32,
    /// Biases that are added to logits after the penalties. A token may have several.
    pub logit_bias: Vec<Bias>,
    /// How many tokens are generated before an EOS or a stop token is possible.
    pub min_gen_len: usize,
    /// No run of so many tokens may be in prompt and output twice; 0 is off.
    pub no_repeat_ngram_size: usize,
    /// Sequences of tokens that the output must not complete.
    pub bad_words: Vec<Vec<Token>>,
    /// Tokens that end a sequence as EOS does, also if EOS is ignored.
    pub stop_tokens: Vec<Token>,
    /// The call's sequences end with [`crate::engine::FinishReason::Time`] so many milliseconds
    /// after the call; 0 means never.
    pub max_time_ms: u32,
    /// The seed; 0 means the next draw of the handle's generator.
    pub seed: u64,
    /// How many sequences continue each prompt, as if the prompt stood that often in the call. They
    /// share one prefill. Sequence `i * num_return_sequences + j` of the call is the j-th of prompt
    /// i.
    pub num_return_sequences: usize,
    /// A number above 1 asks for a beam search with so many beams for each prompt.
    pub num_beams: usize,
    /// The score of a beam is its sum of log probabilities over its length to this power.
    pub length_penalty: f32,
    /// When a beam search ends.
    pub early_stopping: EarlyStopping,
    /// Report the beams of every step.
    pub beam_events: bool,
    /// What a beam search must write: of each group one of its alternatives.
    pub force_words: Vec<Vec<Vec<Token>>>,
    /// A grammar: the returned text is of its language, unless something else ends the text early.
    pub grammar: Option<Arc<Grammar>>,
    /// Texts that end the generation and are cut off.
    pub stop: Vec<String>,
    /// How many alternatives are reported for each token; at most the vocabulary.
    pub top_logprobs: usize,
    /// A prompt finds cached prefixes only of calls with the same salt. Results do not depend on
    /// it.
    pub cache_salt: u64,
    /// Whether other calls may find the prompt in the prefix cache.
    pub publishes: bool,
    /// The number of the adapter to run with ([`crate::Llama::add_adapter`]); 0: none.
    pub adapter: u32,
    /// Ask the reader about the logits of every token before it is drawn:
    /// [`crate::engine::Question`].
    pub ask_logits: bool,
    /// What guesses at the tokens that come.
    pub speculation: Speculation,
    /// So many guesses in a step wherever there are some and there is room, at most
    /// [`MAX_DRAFTS`]; 0: as many as pay.
    pub draft_len: usize,
    /// A text that the output may repeat in parts.
    pub predicted: Vec<Token>,
    /// Contrastive decoding: a token's logit becomes `(1 + beta)` times the model's minus `beta`
    /// times the draft model's; 0 is off.
    pub contrast_beta: f32,
    /// Tokens with less than this share of the most likely possible token's probability, as the
    /// model has it, are impossible then; 0 is 0.1.
    pub contrast_alpha: f32,
    /// When the caller asked; `None`: when the call is queued. Its figures and `max_time_ms` count
    /// from then, so that they include how long its texts took to become tokens.
    pub asked_at: Option<Instant>,
    /// Stops the call.
    pub cancel: Option<Cancel>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            echo: false,
            logprobs: false,
            no_wait: false,
            ignore_eos: false,
            special: false,
            streaming: true,
            max_gen_len: None,
            temperature: 0.6,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.0,
            typical_p: 0.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            min_gen_len: 0,
            no_repeat_ngram_size: 0,
            bad_words: Vec::new(),
            stop_tokens: Vec::new(),
            max_time_ms: 0,
            seed: 0,
            num_return_sequences: 1,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::False,
            beam_events: false,
            force_words: Vec::new(),
            grammar: None,
            stop: Vec::new(),
            top_logprobs: 0,
            cache_salt: 0,
            publishes: true,
            adapter: 0,
            ask_logits: false,
            speculation: Speculation::Off,
            draft_len: 0,
            predicted: Vec::new(),
            contrast_beta: 0.0,
            contrast_alpha: 0.0,
            asked_at: None,
            cancel: None,
        }
    }
}

impl GenerateOptions {
    /// Every float by its name, with its value and its range.
    pub(super) fn floats(&self) -> [(&'static str, f32, Range); 12] {
        [
            ("temperature", self.temperature, Range::AtLeast0),
            ("top_p", self.top_p, Range::To1),
            ("min_p", self.min_p, Range::To1),
            ("typical_p", self.typical_p, Range::To1),
            ("epsilon_cutoff", self.epsilon_cutoff, Range::ToBelow1),
            ("eta_cutoff", self.eta_cutoff, Range::ToBelow1),
            ("repetition_penalty", self.repetition_penalty, Range::Above0),
            ("presence_penalty", self.presence_penalty, Range::Finite),
            ("frequency_penalty", self.frequency_penalty, Range::Finite),
            ("length_penalty", self.length_penalty, Range::Finite),
            ("contrast_beta", self.contrast_beta, Range::AtLeast0),
            ("contrast_alpha", self.contrast_alpha, Range::To1),
        ]
    }

    /// Whether each prompt is searched with beams.
    pub(in crate::engine) fn has_beams(&self) -> bool {
        self.num_beams > 1
    }

    /// The number of slots that a prompt takes.
    pub(in crate::engine) fn width(&self) -> usize {
        self.num_beams.max(self.num_return_sequences)
    }

    /// Whose pages of the prefix cache the request's prompts may take.
    pub(in crate::engine) fn root(&self) -> Root {
        Root {
            salt: self.cache_salt,
            adapter: self.adapter,
        }
    }

    /// Whether there are drafts. Of beams, the token before says who goes on; where the reader is
    /// asked, one token is asked about.
    pub(in crate::engine) fn searches_drafts(&self) -> bool {
        let plain = !self.has_beams() && !self.ask_logits;
        self.speculation != Speculation::Off && plain
    }

    /// Whether what a grammar leaves no choice about is drafted.
    pub(in crate::engine) fn drafts_forced_tokens(&self) -> bool {
        self.speculation == Speculation::Auto && self.grammar.is_some()
    }

    /// Whether they are looked up in texts.
    pub(in crate::engine) fn looks_drafts_up(&self) -> bool {
        matches!(self.speculation, Speculation::Auto | Speculation::NGram)
    }

    /// Whether the draft model is asked for them, where there is one. In contrastive decoding it
    /// has another task: its own choices are what the text shall not be like.
    pub(in crate::engine) fn asks_draft_model(&self) -> bool {
        matches!(self.speculation, Speculation::Auto | Speculation::Draft) && !self.contrasts()
    }

    /// Whether Medusa heads are asked for them, where there are some.
    pub(in crate::engine) fn asks_heads(&self) -> bool {
        matches!(self.speculation, Speculation::Auto | Speculation::Medusa)
    }

    /// Whether the model's logits are contrasted with those of the draft model.
    pub(in crate::engine) fn contrasts(&self) -> bool {
        self.contrast_beta > 0.0
    }

    /// Contrastive decoding as the sampler needs it: beta, and alpha's logarithm.
    pub(in crate::engine) fn contrast(&self) -> Contrast {
        let alpha = match self.contrast_alpha {
            0.0 => DEFAULT_ALPHA,
            alpha => alpha,
        };
        Contrast {
            beta: self.contrast_beta,
            log_alpha: f64::from(alpha).ln() as f32,
        }
    }
}
