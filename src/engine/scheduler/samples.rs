//! Several sequences of one prompt. The first one computes the prompt. Then the others are forked
//! from it: they share its full pages, and the last page is copied. From then on they are sequences
//! like any other.
//!
//! The last row of the prompt is computed once more for each sequence, because every sequence draws
//! from a row of its own. The row's keys and values are in the cache already and are not written
//! again.

use super::Scheduler;
use crate::Result;
use crate::backend::Run;

impl Scheduler {
    /// Whether another sequence is computing the prompt for this one as well. If the other is
    /// parked, or finished the prompt while this one was parked, this one computes the prompt
    /// itself.
    pub(super) fn waits_for_first(&mut self, at: usize) -> bool {
        let first = self.running[at].first;
        let waits = first.is_some_and(|id| {
            let mut running = self.running.iter();
            running.any(|s| s.id == id && !s.has_computed_prompt())
        });
        if !waits {
            self.running[at].first = None;
        }
        waits
    }

    /// If this sequence has computed its prompt, forks the sequences for which it did so as well.
    /// [`Scheduler::copy_pages`] must be called before the next step.
    pub(super) fn fork_samples(&mut self, at: usize) {
        if !self.running[at].has_computed_prompt() {
            return;
        }
        for sample in 0..self.running.len() {
            if self.running[sample].first != Some(self.running[at].id) {
                continue;
            }
            let Ok([first, sample]) = self.running.get_disjoint_mut([at, sample]) else {
                continue;
            };
            sample.cached = sample.branch.prompt_len;
            sample.output.begins_with(&first.output);
            self.copies
                .extend(sample.branch.fork(&first.branch, &mut self.pool));
        }
    }

    /// Copies the pages that forks have asked for. It is called after a step was absorbed.
    pub fn copy_pages(&mut self, run: &mut dyn Run) -> Result<()> {
        if !self.copies.is_empty() {
            run.copy_pages(&self.copies)?;
            if let Some(model) = &mut self.draft_model {
                model.run.copy_pages(&self.copies)?;
            }
            self.copies.clear();
        }
        Ok(())
    }
}
