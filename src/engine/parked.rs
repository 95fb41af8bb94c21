//! Sequences that have given their slots up: their readers were behind for too long while others
//! waited.
//!
//! A parked sequence holds no page of the pool. Its keys and values are in host memory, in the form
//! in which the backend gave them. When the reader has caught up and there is a slot again, they
//! are copied back into pages. Nothing is computed twice, so the sequence goes on with the same
//! bits. Prompt pages that are still cached, or that others have published since, are shared again
//! instead.

use super::call::Call;
use super::line::Line;
use super::output::Output;
use super::sequence::Sequence;
use crate::{Result, reserve};
use std::sync::Arc;
use std::time::Duration;

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

    /// Takes memory for one more.
    pub fn reserve_one(&mut self) -> Result<()> {
        reserve::vec("the parked sequences", &mut self.stored, 1)
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
