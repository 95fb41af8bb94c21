//! Sequences whose reader changes their logits: after the row of a token was computed, it goes to
//! the reader as a question, and the sequence sits out until the answer is back.
//!
//! What the reader sees is what the token would be drawn from: after penalties, edits and mask. It
//! may write anything. Numbers that are not finite are impossible tokens, and so stays what the
//! grammar forbids and what the tokenizer has not.

use super::event::Row;
use super::sampler::Sampler;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::shared::lock;
use crate::backend::Step;
use crate::backend::choice::{Changes, Choice, Strategy};
use crate::{Error, Result, Token, reserve};
use std::time::{Duration, Instant};

/// The engine's side of a sequence's questions.
pub(super) struct Inquiry {
    /// Unless it is with the reader.
    row: Option<Box<Row>>,
    /// The row as the model gave it, for what is reported of the token.
    raw: Vec<f32>,
    open: Option<Open>,
}

/// What was asked and is not answered.
struct Open {
    choice: Choice,
    position: usize,
    since: Instant,
}

impl Inquiry {
    /// For a sequence of at most so many tokens.
    pub fn new(index: u32, n_prompt: usize, most: usize, vocab_size: usize) -> Result<Box<Self>> {
        let what = "the logits that a caller changes (on_logits)";
        reserve::headroom(what, size_of::<Self>() + size_of::<Row>())?;
        Ok(Box::new(Self {
            row: Some(Box::new(Row {
                index,
                tokens: reserve::room(what, most)?,
                n_prompt,
                logits: reserve::room(what, vocab_size)?,
            })),
            raw: reserve::room(what, vocab_size)?,
            open: None,
        }))
    }
}

impl Sequence {
    /// Whether it waits for its reader, who is behind or has a question of it.
    pub fn is_held(&self) -> bool {
        self.asked().is_some() || self.call().is_behind()
    }

    /// For how long.
    pub fn held_for(&self) -> Option<Duration> {
        let asked = self.asked().map(|open| open.since.elapsed());
        asked.max(self.call().behind_for())
    }

    fn asked(&self) -> Option<&Open> {
        self.inquiry.as_ref()?.open.as_ref()
    }

    /// Whether a reader who was behind, or had a question of it, is so no longer.
    pub fn could_go_on(&self) -> bool {
        let answered = self.asked().is_none() || self.call().has_answered(self.output.index);
        answered && !self.call().is_behind()
    }

    /// Ask the reader about the loaded row at `position`, if it is to be asked and if its answer
    /// can change anything. Whether it is asked.
    pub fn ask(
        &mut self,
        position: usize,
        choice: &Choice,
        step: &Step,
        sampler: &mut Sampler,
    ) -> Result<bool> {
        let Some(inquiry) = self.inquiry.as_mut().filter(|_| choice.given.is_none()) else {
            return Ok(false);
        };
        let forbidden = |mask: &[u32]| mask.iter().all(|word| *word == 0);
        if !sampler.has_possible() || step.changes(choice).mask.is_some_and(forbidden) {
            return Ok(false);
        }
        let Some(mut row) = inquiry.row.take() else {
            return Err(Error::Internal("a row is asked about twice".into()));
        };
        row.tokens.clear();
        row.tokens.extend_from_slice(&self.branch.tokens);
        row.logits.clear();
        let changed = sampler.changed(&choice.strategy, step.changes(choice));
        row.logits.extend_from_slice(changed);
        inquiry.raw.clear();
        inquiry.raw.extend_from_slice(sampler.loaded());
        row.logits.resize(inquiry.raw.len(), f32::NEG_INFINITY);
        inquiry.open = Some(Open {
            choice: choice.clone(),
            position,
            since: Instant::now(),
        });
        // The reader hears of the prompt before it is asked what follows.
        self.echo(self.branch.prompt_len)?;
        self.call().ask(row);
        Ok(true)
    }

    /// Take the token that is drawn from the reader's answer, if there is one. Returns whether
    /// there was.
    fn take_answer(&mut self, sampler: &mut Sampler, eos_ids: &[Token]) -> Result<bool> {
        if self.asked().is_none() {
            return Ok(false);
        }
        let Some(row) = self.call().take_answer(self.output.index) else {
            return Ok(false);
        };
        let Some(inquiry) = &mut self.inquiry else {
            return Ok(false);
        };
        let Some(Open {
            choice, position, ..
        }) = inquiry.open.take()
        else {
            return Ok(false);
        };
        sampler.load(&row.logits);
        inquiry.row = Some(row);
        // Penalties and edits are in the row already.
        let strategy = Strategy {
            penalty: 1.0,
            ..choice.strategy
        };
        let changes = Changes {
            mask: self.guide.as_ref().map(|guide| guide.mask()),
            ..Changes::default()
        };
        let got = match sampler.draw(&strategy, changes, choice.draw) {
            Some(token) => {
                sampler.load(&inquiry.raw);
                sampler.scored(&choice, token)?
            }
            None if self.may_end() => None,
            None => {
                return Err(Error::NoToken {
                    index: self.output.index,
                    position: position + 1,
                });
            }
        };
        self.take(position, got, eos_ids)?;
        Ok(true)
    }
}

impl Scheduler {
    /// Let the sequences go on whose readers have answered.
    pub(super) fn take_answers(&mut self) {
        let mut generated = 0;
        for sequence in self.running.iter_mut().filter(|s| s.end.is_none()) {
            let before = sequence.branch.generated();
            match sequence.take_answer(&mut self.sampler, &self.eos_ids) {
                Ok(true) => generated += (sequence.branch.generated() - before) as u64,
                Ok(false) => {}
                Err(error) => sequence.end = Some(Err(error)),
            }
        }
        if generated > 0 {
            lock(&self.shared.totals).generated_tokens += generated;
        }
    }
}
