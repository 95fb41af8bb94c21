//! What the reader of a call was told about each sequence, and how a sequence ends that the reader
//! stops.
//!
//! The engine is ahead of the reader. If the reader stops a sequence, the sequence consists of what
//! the reader has of it. What the engine has made since then is dropped, and the text that was held
//! back is made again from the tokens that stay. So the result does not depend on how far ahead the
//! engine was.

use super::event::{Drafted, Finish, FinishReason, RequestStats};
use super::text::{Stops, TextStream};
use crate::tokenizer::Tokenizer;
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// All sequences of a call.
pub(super) struct Told(Vec<One>);

#[derive(Clone, Default)]
struct One {
    /// The tokens that were queued for the reader.
    tokens: Vec<Token>,
    /// How many of `tokens` the reader has taken.
    taken: usize,
    /// How many tokens, counted from the first, are the prompt's.
    echoed: usize,
    /// How many of the taken tokens behind the prompt's were drafts.
    accepted: u32,
    /// Sum of the log probabilities of the taken tokens behind the prompt's.
    sum_logprob: f64,
    /// Only for a search, whose tokens come at its end: whether the reader wants that end.
    search_ends: bool,
    state: State,
}

#[derive(Clone, Default, PartialEq)]
enum State {
    #[default]
    Running,
    /// The reader has stopped the sequence. The string is the text of its end.
    Stopped(String),
    /// The reader has taken the end of the sequence.
    Ended,
}

const WHAT: &str = "the sequences of a call";

impl Told {
    pub fn new(n: usize) -> Result<Self> {
        Ok(Self(reserve::filled(WHAT, n, One::default())?))
    }

    /// Says that `tokens` tokens of the prompt come first.
    pub fn echoes(&mut self, index: u32, tokens: usize) {
        self.0[index as usize].echoed = tokens;
    }

    /// Records that a token was queued. Fails if there is no memory to remember it.
    pub fn queued(&mut self, index: u32, token: Token) -> Result<()> {
        reserve::push(WHAT, &mut self.0[index as usize].tokens, token)
    }

    /// Records that the reader has taken a token.
    pub fn took_token(&mut self, index: u32, logprob: f32, draft: Drafted) {
        let one = &mut self.0[index as usize];
        one.taken += 1;
        if one.taken > one.echoed {
            one.sum_logprob += f64::from(logprob);
            one.accepted += u32::from(draft == Drafted::Accepted);
        }
    }

    /// Records that the reader has taken the end of the sequence.
    pub fn took_end(&mut self, index: u32) {
        let one = &mut self.0[index as usize];
        (one.tokens, one.state) = (Vec::new(), State::Ended);
    }

    /// Whether the reader wants the end of the sequence and has not taken it yet.
    pub fn is_to_end(&self, index: u32) -> bool {
        let one = &self.0[index as usize];
        one.search_ends || matches!(one.state, State::Stopped(_))
    }

    /// Records that the reader wants the end of the search whose first result has this index.
    pub fn end_search(&mut self, index: u32) {
        self.0[index as usize].search_ends = true;
    }

    /// Whether the reader is to hear more of the sequence than its end.
    pub fn goes_on(&self, index: u32) -> bool {
        self.0[index as usize].state == State::Running
    }

    /// Stops the sequence behind the last token that the reader has taken. Returns whether the
    /// sequence was still running.
    pub fn stop(
        &mut self,
        index: u32,
        tokenizer: &Arc<dyn Tokenizer>,
        special: bool,
        stops: &Stops,
    ) -> Result<bool> {
        let one = &mut self.0[index as usize];
        if one.state != State::Running {
            return Ok(false);
        }
        let mut text = TextStream::new(tokenizer.clone(), stops, special)?;
        for (at, token) in one.tokens[..one.taken].iter().enumerate() {
            if at < one.echoed {
                text.echo(*token)?;
            } else {
                text.push(*token, stops)?;
            }
        }
        let (rest, _) = text.finish(stops)?;
        one.state = State::Stopped(rest);
        Ok(true)
    }

    /// The end of a sequence as the reader is to see it. If the reader has stopped the sequence,
    /// its end is made from what the reader has taken.
    pub fn end(&mut self, finish: Finish) -> Finish {
        let one = &mut self.0[finish.index as usize];
        let State::Stopped(text) = &mut one.state else {
            return finish;
        };
        let generated = one.taken.saturating_sub(one.echoed);
        let first_token_ms = match generated {
            0 => 0.0,
            _ => finish.stats.first_token_ms,
        };
        Finish {
            reason: FinishReason::Caller,
            text: std::mem::take(text),
            sum_logprob: one.sum_logprob as f32,
            score: one.sum_logprob as f32,
            stats: RequestStats {
                generated_tokens: generated as u32,
                accepted_tokens: one.accepted,
                first_token_ms,
                ..finish.stats
            },
            ..finish
        }
    }
}
