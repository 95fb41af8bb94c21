//! What the reader of a call was told of each sequence, and how one ends that the reader stops.
//!
//! The engine is ahead of the reader. A stopped sequence is what the reader has of it: what the
//! engine made since is dropped, and the text that was held back is made anew from the tokens that
//! stay. So the outcome does not hang on how far the engine was.

use super::event::{Drafted, Finish, FinishReason, RequestStats};
use super::text::{Stops, TextStream};
use crate::tokenizer::Tokenizer;
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// All sequences of a call.
pub(super) struct Told(Vec<One>);

#[derive(Clone, Default)]
struct One {
    /// Tokens that were queued.
    tokens: Vec<Token>,
    /// So many of them the reader has taken.
    taken: usize,
    /// So many of them are the prompt's.
    echoed: usize,
    /// So many of the others were drafts.
    accepted: u32,
    /// The sum of the log probabilities of the others that were taken.
    sum_logprob: f64,
    /// Of a search, whose tokens come at its end: the reader wants that end.
    search_ends: bool,
    state: State,
}

#[derive(Clone, Default, PartialEq)]
enum State {
    #[default]
    Running,
    /// The reader has stopped it; the text of its end.
    Stopped(String),
    /// The reader has taken its end.
    Ended,
}

const WHAT: &str = "the sequences of a call";

impl Told {
    pub fn new(n: usize) -> Result<Self> {
        Ok(Self(reserve::filled(WHAT, n, One::default())?))
    }

    /// So many tokens of its prompt come first.
    pub fn echoes(&mut self, index: u32, tokens: usize) {
        self.0[index as usize].echoed = tokens;
    }

    /// A token was queued. Fails where there is no memory to remember it.
    pub fn queued(&mut self, index: u32, token: Token) -> Result<()> {
        reserve::push(WHAT, &mut self.0[index as usize].tokens, token)
    }

    /// The reader has taken a token.
    pub fn took_token(&mut self, index: u32, logprob: f32, draft: Drafted) {
        let one = &mut self.0[index as usize];
        one.taken += 1;
        if one.taken > one.echoed {
            one.sum_logprob += f64::from(logprob);
            one.accepted += u32::from(draft == Drafted::Accepted);
        }
    }

    /// The reader has taken the end.
    pub fn took_end(&mut self, index: u32) {
        let one = &mut self.0[index as usize];
        (one.tokens, one.state) = (Vec::new(), State::Ended);
    }

    /// Whether the reader wants its end, and has not taken it yet.
    pub fn is_to_end(&self, index: u32) -> bool {
        let one = &self.0[index as usize];
        one.search_ends || matches!(one.state, State::Stopped(_))
    }

    /// The reader wants the end of the search whose first result this is.
    pub fn end_search(&mut self, index: u32) {
        self.0[index as usize].search_ends = true;
    }

    /// Whether the reader is to hear more of it than its end.
    pub fn goes_on(&self, index: u32) -> bool {
        self.0[index as usize].state == State::Running
    }

    /// The reader stops it behind what it has taken. Whether that is news.
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

    /// The end of a sequence, as the reader is to see it.
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
