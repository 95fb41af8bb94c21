//! Sequences that have given their slots up: their readers were behind for too long while others
//! waited.
//!
//! A parked sequence holds no page of the pool. Its keys and values are in host memory, in the form
//! in which the backend gave them. When the reader has caught up and there is a slot again, they
//! are copied back into pages. Nothing is computed twice, so the sequence goes on with the same
//! bits. Prompt pages that are still cached, or that others have published since, are shared again
//! instead.

use super::EngineOptions;
use super::branch::Branch;
use super::call::{Call, FLAG_POLL};
use super::event::FinishReason;
use super::line::Line;
use super::output::Output;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::shared::lock;
use crate::backend::Run;
use crate::backend::cpu::available_bytes;
use crate::log::Level;
use crate::{Result, reserve};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The time that readers may take.
pub(super) struct Bounds {
    /// The time for which a sequence whose reader is behind keeps its slot while others wait.
    stall: Duration,
    /// The time for which a call goes on whose reader is behind and reads nothing.
    unread: Option<Duration>,
}

impl Bounds {
    pub fn new(options: &EngineOptions) -> Self {
        let time = |ms: u32| Duration::from_millis(ms.into());
        Self {
            stall: time(options.max_stall_ms),
            unread: (options.max_unread_ms != u32::MAX).then(|| time(options.max_unread_ms)),
        }
    }
}

/// The shortest wait. Times are measured again after a wait, and a wait that ends a moment early
/// would only be followed by another.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// A sequence without a slot.
pub(super) struct Stored {
    pub sequence: Sequence,
    /// The contents of its pages that are not empty, end to end.
    pub pages: Vec<u8>,
    /// Whether it stands in the line, because the reader has caught up.
    in_line: bool,
}

/// All parked sequences, and the memory that they take.
pub(super) struct Parked {
    /// In the order in which they gave their slots up.
    stored: Vec<Stored>,
    bytes: u64,
    most_bytes: u64,
}

impl Parked {
    pub fn new(most_bytes: u64) -> Self {
        Self {
            stored: Vec::new(),
            bytes: 0,
            most_bytes,
        }
    }

    /// Whether there is memory for so many more bytes.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes as u64) <= self.most_bytes
    }

    pub fn push(&mut self, sequence: Sequence, pages: Vec<u8>) {
        sequence.call().park(sequence.output.index);
        self.bytes += pages.len() as u64;
        self.stored.push(Stored {
            sequence,
            pages,
            in_line: false,
        });
    }

    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.stored.iter().map(|stored| &stored.sequence)
    }

    pub fn get(&self, id: u64) -> Option<&Sequence> {
        let stored = self.stored.iter().find(|s| s.sequence.id == id)?;
        Some(&stored.sequence)
    }

    /// Takes out the sequence with this id.
    pub fn take(&mut self, id: u64) -> Option<Stored> {
        let at = self.stored.iter().position(|s| s.sequence.id == id)?;
        let stored = self.stored.remove(at);
        self.bytes -= stored.pages.len() as u64;
        Some(stored)
    }

    /// Takes out the sequences that `which` selects.
    pub fn take_all(&mut self, which: impl Fn(&Sequence) -> bool) -> Vec<Sequence> {
        let taken = self.stored.extract_if(.., |s| which(&s.sequence));
        let taken = taken.inspect(|stored| self.bytes -= stored.pages.len() as u64);
        taken.map(|stored| stored.sequence).collect()
    }

    /// Takes out the sequences that are to end or have ended, and lines up the sequences whose
    /// readers have caught up or answered.
    pub fn look(&mut self, line: &mut Line) -> Vec<Sequence> {
        let ended = self.take_all(|s| s.ends().is_some());
        for stored in &mut self.stored {
            let Output { call, index, .. } = &stored.sequence.output;
            if !stored.in_line && stored.sequence.could_go_on() {
                call.line_up_again(*index);
                line.join_again(stored.sequence.id, call);
                stored.in_line = true;
            }
        }
        ended
    }

    /// Whether the sequence may come back, now that it is its turn. It may have ended, or its
    /// reader may be behind again because of the call's other sequences.
    pub fn may_return(&mut self, id: u64) -> bool {
        let Some(stored) = self.stored.iter_mut().find(|s| s.sequence.id == id) else {
            return false;
        };
        let Output { call, index, .. } = &stored.sequence.output;
        if !stored.sequence.could_go_on() {
            call.park(*index);
            stored.in_line = false;
        }
        stored.in_line
    }

    /// The calls of the sequences that do not stand in the line.
    pub fn behind(&self) -> impl Iterator<Item = &Arc<Call>> {
        let behind = self.stored.iter().filter(|stored| !stored.in_line);
        behind.map(|stored| stored.sequence.call())
    }

    /// Of `other` and the calls of the parked sequences, the call that has not been read for the
    /// longest time.
    pub fn longest_unread(&self, other: &Arc<Call>) -> Arc<Call> {
        let time = |call: &&Arc<Call>| call.unread_for().unwrap_or(Duration::ZERO);
        let longest = self.behind().max_by_key(time);
        let longest = longest.filter(|call| time(call) > time(&other));
        longest.unwrap_or(other).clone()
    }
}

impl Scheduler {
    /// The longest time that an idle engine may wait without being woken by a caller; `None`: for
    /// ever.
    pub fn patience(&self) -> Option<Duration> {
        // Setting a cancel flag wakes nobody.
        if self.shared.flagged.load(Relaxed) > 0 {
            return Some(FLAG_POLL);
        }
        let unread = self.unread_calls().filter_map(|call| {
            let left = self.bounds.unread?.saturating_sub(call.unread_for()?);
            Some(left)
        });
        let stalled = self.running.iter().filter_map(|sequence| {
            let left = self.bounds.stall.saturating_sub(sequence.held_for()?);
            Some(left)
        });
        let stalled = stalled.filter(|_| self.line.has_waiters());
        let running = self.running.iter().chain(self.parked.sequences());
        let timed = running.filter_map(|sequence| sequence.call().time_left());
        let all = unread
            .chain(stalled)
            .chain(timed)
            .chain(self.line.time_left());
        all.min().map(|left| left.max(LEAST_WAIT))
    }

    /// The calls that stand aside, and the calls of sequences that pause or are parked.
    fn unread_calls(&self) -> impl Iterator<Item = &Arc<Call>> {
        let sitting_out = self.running.iter().filter(|s| s.sits_out);
        let running = sitting_out.map(Sequence::call);
        running.chain(self.parked.behind()).chain(self.line.aside())
    }

    /// Ends calls of which nobody has read anything for too long.
    pub(super) fn end_unread(&mut self) {
        let Some(most) = self.bounds.unread else {
            return;
        };
        let over = |call: &&Arc<Call>| call.unread_for().is_some_and(|time| time >= most);
        let calls: Vec<Arc<Call>> = self.unread_calls().filter(over).cloned().collect();
        for call in calls {
            self.end_as_unread(&call);
        }
    }

    /// Ends all sequences of a call. Running ones end at the next [`Scheduler::retire`].
    fn end_as_unread(&mut self, call: &Arc<Call>) {
        let its = |sequence: &Sequence| Arc::ptr_eq(sequence.call(), call);
        for sequence in self.running.iter_mut().filter(|s| its(s)) {
            sequence.end = Some(Ok(FinishReason::Unread));
        }
        for sequence in self.parked.take_all(its) {
            self.end_parked(sequence, FinishReason::Unread);
        }
        call.withdraw(FinishReason::Unread);
    }

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
            || reserve::vec("the parked sequences", &mut self.parked.stored, 1).is_err()
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
                // The sequence stays parked; [`Parked::look`] takes it out before the next step.
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
