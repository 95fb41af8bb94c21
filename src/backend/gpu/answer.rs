//! The answers of steps on their way to the host. There are at most two: the answer of a step that
//! has ended, and the answer of the next step, which may run while the first answer is read.

use super::device::Device;
use super::memory::{Landing, Memory};
use super::sample::{self, Asked};
use crate::backend::Limits;
use crate::{Error, Result, reserve};
use std::sync::Arc;

/// The answer of one step.
pub(super) struct Outcome<D: Device> {
    pub landing: Landing<D>,
    /// Number of words from one row to the next if tokens were chosen; 0 if the answer is logits.
    pub stride: usize,
    /// For each row with a choice, what it asked for.
    pub asked: Vec<Asked>,
}

/// The logits of a step on the device.
pub(super) struct LogitRows<'a, D: Device> {
    pub memory: &'a Memory<D>,
    /// Floats from one row to the next.
    pub stride: usize,
    /// Floats of a row.
    pub width: usize,
}

/// The answers that have been fetched but not read yet: at most two.
pub(super) struct Answers<D: Device> {
    /// Only the first has room for logits. The second is for a step that follows another, and such
    /// steps always choose tokens.
    outcomes: [Outcome<D>; 2],
    /// Index of the answer that is read next.
    oldest: usize,
    under_way: usize,
}

impl<D: Device> Answers<D> {
    pub fn new(device: &Arc<D>, limits: &Limits) -> Result<Self> {
        let outcome = |row: usize| -> Result<Outcome<D>> {
            let n = limits.max_wanted;
            let mut asked = Vec::new();
            reserve::vec("the rows of a step", &mut asked, n)?;
            Ok(Outcome {
                landing: Landing::new(device, n.saturating_mul(row))?,
                stride: 0,
                asked,
            })
        };
        let chosen = sample::out_len();
        // Rows of one step may be chosen on the device and on the host.
        let mixed = limits.vocab_size.saturating_add(chosen);
        Ok(Answers {
            outcomes: [outcome(mixed)?, outcome(chosen)?],
            oldest: 0,
            under_way: 0,
        })
    }

    /// Whether there is room for one more answer.
    pub fn has_room(&self) -> bool {
        self.under_way < 2
    }

    /// Begins to fetch `n` floats. Takes the list `asked` and leaves in its place one that is no
    /// longer needed, so that nothing is allocated. `logits` has the rows that are left to the
    /// host; they come behind the `n` floats.
    pub fn fetch(
        &mut self,
        from: &Memory<D>,
        n: usize,
        stride: usize,
        asked: &mut Vec<Asked>,
        logits: Option<LogitRows<'_, D>>,
    ) -> Result<()> {
        let at = match self.under_way {
            0 => 0,
            1 => 1 - self.oldest,
            n => return Err(Error::Internal(format!("a step, and {n} that nobody read"))),
        };
        let outcome = &mut self.outcomes[at];
        outcome.landing.fetch(from, n)?;
        if let Some(logits) = logits {
            for (row, _) in (asked.iter().enumerate()).filter(|(_, asked)| **asked == Asked::Logits)
            {
                let first = row * logits.stride;
                outcome
                    .landing
                    .fetch_more(logits.memory, first, logits.width)?;
            }
        }
        outcome.stride = stride;
        std::mem::swap(&mut outcome.asked, asked);
        if self.under_way == 0 {
            self.oldest = at;
        }
        self.under_way += 1;
        Ok(())
    }

    /// The oldest answer.
    pub fn take(&mut self) -> Result<&mut Outcome<D>> {
        if self.under_way == 0 {
            return Err(Error::Internal("there is no step to read".into()));
        }
        let at = self.oldest;
        (self.oldest, self.under_way) = (1 - at, self.under_way - 1);
        Ok(&mut self.outcomes[at])
    }
}
