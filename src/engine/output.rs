//! The events that a sequence sends to its reader: tokens with their text, then its end.

use super::call::Call;
use super::event::{Drafted, Event, Finish, FinishReason, RequestStats, TokenEvent};
use super::sampler::Score;
use super::text::TextStream;
use crate::tokenizer::Tokenizer;
use crate::{Result, Token};
use std::sync::Arc;

/// Makes the events of one sequence. If there is no memory for a text, it fails with
/// [`Error::Refused`](crate::Error::Refused).
pub(super) struct Output {
    pub call: Arc<Call>,
    /// The sequence's number in the call.
    pub index: u32,
    /// The number of prompt tokens that the reader has got.
    echoed: usize,
    text: TextStream,
    /// From the call to the first step that has a row of it; `None`: there was none yet.
    queue_ms: Option<f64>,
    first_token_ms: f64,
}

/// What the log probabilities of a sequence add up to.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub logprob: f64,
    pub score: f64,
}

impl Output {
    pub fn new(call: Arc<Call>, index: u32, tokenizer: Arc<dyn Tokenizer>) -> Result<Self> {
        Ok(Self {
            index,
            echoed: 0,
            text: TextStream::new(tokenizer, &call.stops, call.options.special)?,
            queue_ms: None,
            first_token_ms: 0.0,
            call,
        })
    }

    /// A step has a row of it. Only the first one counts.
    pub fn begins(&mut self) {
        if self.queue_ms.is_none() {
            self.queue_ms = Some(self.call.age_ms());
        }
    }

    /// It began when the other one did, whose prompt is also its own.
    pub fn begins_with(&mut self, other: &Output) {
        self.queue_ms = other.queue_ms;
    }

    /// The text of what was told so far.
    pub fn text(&self) -> &TextStream {
        &self.text
    }

    /// Sends the prompt tokens before `end`, unscored, if they are asked for.
    pub fn echo(&mut self, prompt: &[Token], end: usize) -> Result<()> {
        if self.call.options.echo {
            for at in self.echoed..end.min(prompt.len()) {
                self.echo_token(prompt, at, Score::default())?;
            }
        }
        Ok(())
    }

    /// Sends the prompt token at `at`, unless the reader has got it.
    pub fn echo_token(&mut self, prompt: &[Token], at: usize, score: Score) -> Result<()> {
        if at < self.echoed {
            return Ok(());
        }
        let text = self.text.echo(prompt[at])?;
        self.emit(prompt[at], score, text, Drafted::None);
        self.echoed = at + 1;
        Ok(())
    }

    /// Sends a generated token. Returns whether a stop string ends the sequence.
    pub fn generated(&mut self, token: Token, score: Score, draft: Drafted) -> Result<bool> {
        if self.first_token_ms == 0.0 {
            self.first_token_ms = self.call.age_ms();
        }
        let (text, stopped) = self.text.push(token, &self.call.stops)?;
        self.emit(token, score, text, draft);
        Ok(stopped)
    }

    fn emit(&self, token: Token, Score { logprob, top }: Score, text: String, draft: Drafted) {
        self.call.push(Event::Token(TokenEvent {
            index: self.index,
            token,
            logprob,
            text,
            top,
            draft,
        }));
    }

    /// Sends the end, see [`Output::end`].
    pub fn finish(&mut self, reason: FinishReason, sums: Sums, stats: RequestStats) -> Result<()> {
        let end = self.end(reason, sums, stats)?;
        self.call.finish(end);
        Ok(())
    }

    /// The end, with the text that was held back. `stats` has the numbers of tokens.
    pub fn end(
        &mut self,
        mut reason: FinishReason,
        sums: Sums,
        stats: RequestStats,
    ) -> Result<Finish> {
        let (text, stopped) = self.text.finish(&self.call.stops)?;
        if stopped && !matches!(reason, FinishReason::Cancelled | FinishReason::NotFinite) {
            reason = FinishReason::StopString;
        }
        let total_ms = self.call.age_ms();
        let stats = RequestStats {
            queue_ms: self.queue_ms.unwrap_or(total_ms),
            first_token_ms: self.first_token_ms,
            total_ms,
            ..stats
        };
        Ok(Finish {
            index: self.index,
            reason,
            text,
            sum_logprob: sums.logprob as f32,
            score: sums.score as f32,
            stats,
        })
    }
}
