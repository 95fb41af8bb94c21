//! What differs where a sequence is a beam search.

use super::Sequence;
use crate::Result;
use crate::backend::{Choice, Choices};
use crate::engine::branch::Branch;
use crate::engine::event::FinishReason;
use crate::engine::group::Row;
use crate::engine::guide::Guide;
use crate::kv::{Hit, Pool, Root, Table};
use std::iter::once;

impl Sequence {
    /// Slots that it takes.
    pub fn width(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.width())
    }

    /// What takes part in a step, a span each: the beams, best first; or the only branch.
    pub fn branches(&self) -> impl Iterator<Item = &Branch> {
        let slots = self.group.as_ref().map_or(&[0][..], |group| group.beams());
        slots.iter().map(|slot| match (&self.group, slot) {
            (Some(group), 1..) => &group.others()[slot - 1],
            _ => &self.branch,
        })
    }

    /// The one of these with this number.
    pub fn branch_mut(&mut self, at: usize) -> &mut Branch {
        match &mut self.group {
            Some(group) if group.beams()[at] > 0 => {
                let (beams, others) = group.parts();
                &mut others[beams[at] - 1]
            }
            _ => &mut self.branch,
        }
    }

    /// Where its text is in its grammar.
    pub fn guide_mut(&mut self, at: usize) -> &mut Option<Box<Guide>> {
        match &mut self.group {
            Some(group) => group.guide_mut(at),
            None => &mut self.guide,
        }
    }

    /// Take the row behind the running beam `at`; with the last of a step the search goes on. Sets
    /// [`Sequence::end`] if it is over.
    pub fn take_beam(
        &mut self,
        at: usize,
        choice: &Choice,
        choices: &Choices,
        row: Row<'_>,
        pool: &mut Pool,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<()> {
        self.echo(self.branch.prompt_len)?;
        let (Some(group), branch, output) = (&mut self.group, &mut self.branch, &self.output)
        else {
            return Ok(());
        };
        group.take_row(at, choice, choices, row, output)?;
        if group.has_all_rows() {
            self.end = group.advance(branch, output, pool, copies)?.map(Ok);
        }
        Ok(())
    }

    /// Tell the results of a search.
    pub fn finish_beams(&mut self, reason: FinishReason) -> Result<()> {
        match &mut self.group {
            Some(group) => group.finish(&self.branch, &mut self.output, self.cached, reason),
            None => Ok(()),
        }
    }

    /// Pages for the slots but the first.
    pub fn give_pages(&mut self, tables: impl Iterator<Item = Table>) {
        let others = self.group.iter_mut().flat_map(|group| group.parts().1);
        for (branch, pages) in others.zip(tables) {
            branch.pages = pages;
        }
    }

    /// Before its pages, which were copied out, are copied back: a page table for each slot. See
    /// [`Branch::restore`].
    pub fn restore(&mut self, tables: Vec<Table>, hits: &[Hit], root: Root, pool: &mut Pool) {
        let Self { branch, group, .. } = self;
        let (beams, others) = match group {
            Some(group) => group.parts(),
            None => (&[0][..], &mut [][..]),
        };
        for ((slot, pages), branch) in tables
            .into_iter()
            .enumerate()
            .zip(once(branch).chain(others))
        {
            match beams.contains(&slot) {
                true => branch.restore(pages, hits, root, pool),
                false => branch.reset(pages, root),
            }
        }
    }

    /// Takes the pages that the rows of a step of decode write to: one row of each branch, and so
    /// many drafts.
    pub fn grow(&mut self, drafts: usize, pool: &mut Pool) {
        for at in 0..self.branches().count() {
            let branch = self.branch_mut(at);
            branch.grow(branch.computed + 1 + drafts, pool);
        }
    }

    /// Let all pages go.
    pub fn release(&mut self, pool: &mut Pool) {
        self.branch.release(pool);
        for branch in self.group.iter_mut().flat_map(|group| group.parts().1) {
            branch.release(pool);
        }
    }
}
