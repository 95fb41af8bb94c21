//! What a sequence tells its reader: tokens with their text, then its end.

use super::call::Call;
use super::sampler::Score;
use super::stream::{Event, Finish, FinishReason, RequestStats, TokenEvent};
use super::text::TextStream;
use crate::tokenizer::Tokenizer;
use crate::{Result, Token};
use std::sync::Arc;

/// The events of one sequence. Where there is no memory for a text, it fails with
/// [`Error::Refused`](crate::Error::Refused).
pub(super) struct Output {
    pub call: Arc<Call>,
    /// The sequence's number in the call.
    pub index: u32,
    /// Prompt tokens that the reader has been told.
    echoed: usize,
    text: TextStream,
    queue_ms: f64,
    first_token_ms: f64,
}

impl Output {
    pub fn new(call: Arc<Call>, index: u32, tokenizer: Arc<dyn Tokenizer>) -> Result<Self> {
        Ok(Self {
            index,
            echoed: 0,
            text: TextStream::new(tokenizer, &call.stops, call.options.special)?,
            queue_ms: call.age_ms(),
            first_token_ms: 0.0,
            call,
        })
    }

    /// Tell the prompt tokens before `end`, unscored, if they are asked for.
    pub fn echo(&mut self, prompt: &[Token], end: usize) -> Result<()> {
        if self.call.options.echo {
            for at in self.echoed..end.min(prompt.len()) {
                self.echo_token(prompt, at, Score::default())?;
            }
        }
        Ok(())
    }

    /// Tell the prompt token at `at`, unless the reader has been told.
    pub fn echo_token(&mut self, prompt: &[Token], at: usize, score: Score) -> Result<()> {
        if at < self.echoed {
            return Ok(());
        }
        let text = self.text.echo(prompt[at])?;
        self.emit(prompt[at], score, text);
        self.echoed = at + 1;
        Ok(())
    }

    /// Tell a generated token. Whether a stop string ends the sequence.
    pub fn generated(&mut self, token: Token, score: Score) -> Result<bool> {
        if self.first_token_ms == 0.0 {
            self.first_token_ms = self.call.age_ms();
        }
        let (text, stopped) = self.text.push(token, &self.call.stops)?;
        self.emit(token, score, text);
        Ok(stopped)
    }

    fn emit(&self, token: Token, Score { logprob, top }: Score, text: String) {
        self.call.push(Event::Token(TokenEvent {
            index: self.index,
            token,
            logprob,
            text,
            top,
        }));
    }

    /// Tell that it is over, with the text that was held back. `stats` has the numbers of tokens.
    pub fn finish(&mut self, mut reason: FinishReason, stats: RequestStats) -> Result<()> {
        let (text, stopped) = self.text.finish(&self.call.stops)?;
        if stopped && !matches!(reason, FinishReason::Cancelled | FinishReason::NotFinite) {
            reason = FinishReason::StopString;
        }
        let stats = RequestStats {
            queue_ms: self.queue_ms,
            first_token_ms: self.first_token_ms,
            total_ms: self.call.age_ms(),
            ..stats
        };
        self.call.finish(Finish {
            index: self.index,
            reason,
            text,
            stats,
        });
        Ok(())
    }
}
