//! How a sequence gives its slot up, and how it comes back: see [`Parked`](crate::engine::parked).

use super::Scheduler;
use crate::backend::Run;
use crate::backend::cpu::available_bytes;
use crate::engine::branch::Branch;
use crate::engine::event::FinishReason;
use crate::engine::lock::lock;
use crate::engine::parked::Stored;
use crate::engine::sequence::Sequence;
use crate::log::Level;
use crate::{Result, reserve};

impl Scheduler {
    pub(super) fn end_parked(&self, mut sequence: Sequence, reason: FinishReason) {
        lock(&self.shared.totals).cached_tokens += sequence.all_cached() as u64;
        sequence.finish(reason);
    }

    /// Parks the sequence whose reader has been behind for the longest time, if that time is too
    /// long. Returns whether there is more room now.
    pub(super) fn park(&mut self, run: &mut dyn Run) -> Result<bool> {
        // A sequence that pauses has no rows in a step that is under way.
        let time = |s: &Sequence| s.held_for().filter(|_| s.sits_out && s.end.is_none());
        let longest = (0..self.running.len()).max_by_key(|at| time(&self.running[*at]));
        let Some(at) = longest.filter(|at| time(&self.running[*at]) >= Some(self.bounds.stall))
        else {
            return Ok(false);
        };
        let sequence = &self.running[at];
        let size = self.pool.page_size();
        let used = |branch: &Branch| branch.computed.div_ceil(size);
        let mut bytes = Vec::new();
        let pages: usize = sequence.branches().map(used).sum();
        let n = pages.saturating_mul(run.page_bytes());
        // The memory is checked first, because the system may promise memory and then kill the
        // process that uses it.
        if !self.parked.has_room(n)
            || available_bytes() / 2 < n as u64
            || reserve::vec("pages of a sequence", &mut bytes, n).is_err()
            || self.parked.reserve_one().is_err()
        {
            let call = self.parked.longest_unread(sequence.call());
            self.end_as_unread(&call);
            self.retire();
            return Ok(true);
        }
        bytes.resize(n, 0);
        let mut rest = &mut bytes[..];
        for branch in sequence.branches() {
            let pages = &branch.pages[..used(branch)];
            let (to, behind) = rest.split_at_mut(pages.len() * run.page_bytes());
            run.save_pages(pages, to)?;
            rest = behind;
        }
        let mut sequence = self.running.remove(at);
        sequence.release(&mut self.pool);
        sequence.last_row = None;
        self.shared.log.write(Level::Debug, || {
            format!(
                "sequence {} of a call gives its slot up, its reader is behind: {n} bytes of \
                 {pages} pages are kept",
                sequence.output.index
            )
        });
        self.parked.push(sequence, bytes);
        Ok(true)
    }

    /// Gives a slot and pages to the parked sequence whose turn it is. Returns whether there were
    /// enough.
    pub(super) fn resume(&mut self, id: u64, run: &mut dyn Run) -> Result<bool> {
        let size = self.pool.page_size();
        let Some(sequence) = self.parked.get(id) else {
            return Ok(true);
        };
        let width = sequence.width();
        if !self.has_slots(width) {
            return Ok(false);
        }
        let Some(branch) = sequence.branches().next() else {
            return Ok(true);
        };
        let root = sequence.call().options.root();
        let text = &branch.tokens[..branch.known.pages * size];
        let total = sequence.extent.most_positions().div_ceil(size);
        let found = self.pool.find_all(root, text).and_then(|hits| {
            let tables = self.pool.reserve_all(width, &hits, total)?;
            Ok((hits, tables))
        });
        let (hits, tables) = match found {
            Ok((hits, Some(tables))) => (hits, tables),
            Ok((_, None)) => return Ok(false),
            Err(error) => {
                // The sequence stays parked; `Parked::look` takes it out before the next step.
                sequence.call().fail(error);
                self.line.has_begun();
                return Ok(true);
            }
        };
        self.line.has_begun();
        let Some(Stored {
            mut sequence,
            pages: bytes,
            ..
        }) = self.parked.take(id)
        else {
            return Ok(true);
        };
        let mut rest = &bytes[..];
        sequence.restore(tables, &hits, root, &mut self.pool);
        for branch in sequence.branches() {
            let (found, used) = (hits.len(), branch.computed.div_ceil(size));
            let (own, behind) = rest.split_at(used * run.page_bytes());
            run.load_pages(&branch.pages[found..used], &own[found * run.page_bytes()..])?;
            rest = behind;
        }
        self.admitted += 1;
        (sequence.id, sequence.sits_out) = (self.admitted, false);
        self.running.push(sequence);
        Ok(true)
    }
}
