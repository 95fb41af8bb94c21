//! What passes from the engine to the reader of a call: events of its sequences, and rows of
//! logits.

use crate::Token;
use std::fmt;

/// A likely token and its log probability.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Alternative {
    /// Token id.
    pub token: Token,
    /// Natural log of its probability under the raw logits.
    pub logprob: f32,
}

/// Why a sequence ended. Numbered as `LLAMA_FINISH_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FinishReason {
    /// An end-of-sequence token.
    Stop = 1,
    /// `max_gen_len` or `max_seq_len`.
    Length = 2,
    /// A cancel flag, a callback, or the end of the handle.
    Cancelled = 3,
    /// A stop string.
    StopString = 4,
    /// The dialog contained a special tag.
    Unsafe = 5,
    /// `max_time_ms`.
    Time = 6,
    /// [`super::Stream::stop`].
    Caller = 7,
    /// Nobody has read the stream for too long.
    Unread = 8,
    /// No logit was finite, so no token was possible.
    NotFinite = 9,
}

/// What became of the guess at a token, if the step that made the token had one. Numbered as
/// `LLAMA_DRAFT_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Drafted {
    /// There was no guess.
    #[default]
    None = 0,
    /// The guess was this token.
    Accepted = 1,
    /// The guess was another token.
    Rejected = 2,
}

impl Drafted {
    /// Of `token`, where the guess at it was `draft`.
    pub(super) fn of(draft: Option<Token>, token: Token) -> Drafted {
        match draft {
            None => Drafted::None,
            Some(draft) if draft == token => Drafted::Accepted,
            Some(_) => Drafted::Rejected,
        }
    }
}

/// Figures of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestStats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated, including those cut by a stop string; without the EOS.
    pub generated_tokens: u32,
    /// Drafts that were computed along with its tokens.
    pub drafted_tokens: u32,
    /// Of those, taken: tokens that needed no step of their own.
    pub accepted_tokens: u32,
    /// From the call to the first step that has a row of the sequence.
    pub queue_ms: f64,
    /// From the call to the first generated token; 0 if there was none.
    pub first_token_ms: f64,
    /// From the call to the end.
    pub total_ms: f64,
}

/// A token of a sequence: generated, or echoed from the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The sequence's number in the call.
    pub index: u32,
    /// The token's id.
    pub token: Token,
    /// The token's log probability; 0 if none was asked for.
    pub logprob: f32,
    /// The text that became certain: whole code points, often none.
    pub text: String,
    /// The most likely tokens at this position, best first, if they were asked for.
    pub top: Vec<Alternative>,
    /// What became of the guess at it.
    pub draft: Drafted,
}

/// The end of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The sequence's number in the call.
    pub index: u32,
    /// Why the sequence ended.
    pub reason: FinishReason,
    /// The text that was held back until now.
    pub text: String,
    /// The sum of the log probabilities of the sequence's tokens and of the token that ended it. It
    /// is 0 if log probabilities were not asked for.
    pub sum_logprob: f32,
    /// The score by which the sequences of a beam search are ranked. For other sequences it is the
    /// sum.
    pub score: f32,
    /// The sequence's figures.
    pub stats: RequestStats,
}

impl Finish {
    /// The end of a sequence that was cancelled before it began.
    pub fn cancelled(index: u32) -> Finish {
        Finish {
            index,
            reason: FinishReason::Cancelled,
            text: String::new(),
            sum_logprob: 0.0,
            score: 0.0,
            stats: RequestStats::default(),
        }
    }
}

/// What happened to a beam in a step of its search.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamEvent {
    /// The number of the prompt's first sequence in the call.
    pub index: u32,
    /// The beam's place. Running beams have the places from 0 on, best first; finished beams have
    /// those from [`GenerateOptions::num_beams`](super::GenerateOptions::num_beams) on.
    pub beam: u32,
    /// The place of the beam that this beam continues, in the step before.
    pub parent: u32,
    /// The number of the beam's generated tokens: which step of the search this was, from 1.
    pub step: u32,
    /// The beam's last token.
    pub token: Token,
    /// The sum of the beam's log probabilities.
    pub sum_logprob: f32,
    /// This sum over the beam's length to the power of the length penalty.
    pub score: f32,
    /// Why the beam has finished, if it has.
    pub reason: Option<FinishReason>,
}

/// For the log.
impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestStats {
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            drafted_tokens,
            accepted_tokens,
            queue_ms,
            first_token_ms,
            total_ms,
        } = self.stats;
        write!(
            f,
            "sequence {} of a call ended ({:?}): {prompt_tokens} prompt tokens, {cached_tokens} of \
             them cached, {generated_tokens} generated ({drafted_tokens} drafted, \
             {accepted_tokens} accepted); waited {queue_ms:.1} ms, first token after \
             {first_token_ms:.1} ms, end after {total_ms:.1} ms",
            self.index, self.reason
        )
    }
}

/// What a stream gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token.
    Token(TokenEvent),
    /// A beam continued or has finished. The tokens of a search are told at its end.
    Beam(BeamEvent),
    /// A sequence has ended. No event of this sequence follows.
    Finish(Finish),
}

impl Event {
    /// The number of its sequence in the call.
    pub fn index(&self) -> u32 {
        match self {
            Event::Token(e) => e.index,
            Event::Beam(e) => e.index,
            Event::Finish(e) => e.index,
        }
    }
}

/// A row of logits, which goes to the reader and back. Its room is taken once for all questions of
/// a sequence.
pub(super) struct Row {
    /// The sequence's number in its call.
    pub index: u32,
    /// Prompt and output so far.
    pub tokens: Vec<Token>,
    pub n_prompt: usize,
    /// `[vocab_size]`.
    pub logits: Vec<f32>,
}
