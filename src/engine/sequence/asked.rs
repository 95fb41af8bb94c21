//! What a sequence asks its reader, see [`Inquiry`](crate::engine::inquiry::Inquiry), and whether
//! it waits for the reader.

use super::Sequence;
use crate::backend::choice::{Changes, Choice, Choices, Strategy};
use crate::engine::inquiry::Open;
use crate::engine::sampler::Sampler;
use crate::{Error, Result, Token};
use std::time::{Duration, Instant};

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
        choices: &Choices,
        sampler: &mut Sampler,
    ) -> Result<bool> {
        let Some(inquiry) = self.inquiry.as_mut().filter(|_| choice.given.is_none()) else {
            return Ok(false);
        };
        let forbidden = |mask: &[u32]| mask.iter().all(|word| *word == 0);
        if !sampler.has_possible() || choices.changes(choice).mask.is_some_and(forbidden) {
            return Ok(false);
        }
        let Some(mut row) = inquiry.row.take() else {
            return Err(Error::Internal("a row is asked about twice".into()));
        };
        row.tokens.clear();
        row.tokens.extend_from_slice(&self.branch.tokens);
        row.logits.clear();
        let changed = sampler.changed(&choice.strategy, choices.changes(choice));
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
    pub fn take_answer(&mut self, sampler: &mut Sampler, eos_ids: &[Token]) -> Result<bool> {
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
        self.take(position, got, None, eos_ids)?;
        Ok(true)
    }
}
