//! The queue of a call's events, and what its reader has taken of them.

use super::{Asked, Behind, Item, State};
use crate::engine::event::{Event, Finish, FinishReason};
use crate::{Error, Result, reserve};
use std::time::Instant;

/// A reader is behind when more than this is queued. Its call then sits out the steps. Otherwise
/// the queue would fill the memory, because alternatives for a whole vocabulary are 256 KiB per
/// token. A reader has caught up when half of this is left. If both bounds were equal, a reader
/// that takes an event now and then would never be behind for long.
const MAX_QUEUED_EVENTS: usize = 1024;
const MAX_QUEUED_BYTES: usize = 4 << 20;

impl State {
    pub(super) fn ended(&self) -> bool {
        self.unended == 0
    }

    /// Whether a failure of the call has ended this sequence.
    pub(super) fn has_failed(&self, index: u32) -> bool {
        matches!(self.failed, Some((first, _)) if first <= index)
    }

    /// Why the call has failed, once all its sequences have ended.
    pub(super) fn error(&self) -> Option<&Error> {
        let failed = self.failed.as_ref().filter(|_| self.ended());
        failed.map(|(_, error)| error)
    }

    /// Whether more is queued than the bounds divided by `part`.
    pub(super) fn holds_over(&self, part: usize) -> bool {
        self.queue.len() > MAX_QUEUED_EVENTS / part || self.queued_bytes > MAX_QUEUED_BYTES / part
    }

    pub(super) fn push(&mut self, event: Event) -> Result<()> {
        // A step that was under way when the call failed still gives its events, but no reader
        // wants them.
        if !self.closed && !self.has_failed(event.index()) {
            reserve::queue("the events of a call", &mut self.queue, 1)?;
            if let Event::Token(token) = &event {
                // A sequence may be stopped, and its end may be queued, before its prompt begins.
                if !self.told.goes_on(token.index) {
                    return Ok(());
                }
                self.told.queued(token.index, token.token)?;
            }
            self.queued_bytes += bytes(&event);
            self.queue.push_back(Item::Event(event));
            if self.behind.is_none() && self.holds_over(1) {
                let now = Instant::now();
                self.behind = Some(Behind {
                    since: now,
                    read: now,
                });
            }
        }
        Ok(())
    }

    /// Changes whether the reader has a question of a sequence. Returns the previous state.
    pub(super) fn set_asked(&mut self, index: u32, new: Asked) -> Asked {
        let Some(asked) = self.asked.get_mut(index as usize) else {
            return Asked::Nothing;
        };
        let opens = matches!(new, Asked::Open);
        let old = std::mem::replace(asked, new);
        self.open += usize::from(opens);
        self.open -= usize::from(matches!(old, Asked::Open));
        if opens && self.open == 1 {
            self.heard = Instant::now();
        }
        old
    }

    /// Notes that the reader has taken an event. Returns whether the reader was behind and has now
    /// caught up.
    pub(super) fn taken(&mut self, event: &Event) -> bool {
        match event {
            Event::Token(e) => self.told.took_token(e.index, e.logprob, e.draft),
            Event::Finish(e) => self.told.took_end(e.index),
            Event::Beam(_) => {}
        }
        self.queued_bytes -= bytes(event);
        self.heard();
        self.has_caught_up()
    }

    pub(super) fn heard(&mut self) {
        if self.open > 0 || self.behind.is_some() {
            self.heard = Instant::now();
        }
        if let Some(behind) = &mut self.behind {
            behind.read = self.heard;
        }
    }

    fn has_caught_up(&mut self) -> bool {
        let caught_up = self.behind.is_some() && !self.holds_over(2);
        if caught_up {
            self.behind = None;
        }
        caught_up
    }

    /// Drops everything that is queued of a sequence but its end.
    pub(super) fn forget(&mut self, of: u32) {
        let Self {
            queue,
            queued_bytes,
            ..
        } = self;
        queue.retain(|item| match item {
            Item::Event(event @ Event::Token(e)) if e.index == of => {
                *queued_bytes -= bytes(event);
                false
            }
            Item::Question(row) => row.index != of,
            _ => true,
        });
        self.has_caught_up();
    }

    /// Replaces the end of a stopped sequence, or its failure, if that is queued already.
    pub(super) fn tell_end_anew(&mut self, of: u32) {
        let Self {
            queue,
            queued_bytes,
            told,
            ..
        } = self;
        for item in queue {
            let before = match item {
                Item::Event(event) => bytes(event),
                _ => 0,
            };
            let end = match item {
                Item::Event(Event::Finish(end)) if end.reason != FinishReason::Caller => end,
                Item::Failure(failure) => &mut failure.0,
                _ => continue,
            };
            if end.index != of {
                continue;
            }
            *queued_bytes -= before;
            let end = std::mem::replace(end, Finish::cancelled(of));
            let event = Event::Finish(told.end(end));
            *queued_bytes += bytes(&event);
            *item = Item::Event(event);
        }
    }

    /// Makes the descriptor readable if `next` would give something, and unreadable otherwise.
    pub(super) fn signal(&mut self) {
        let ready = !self.queue.is_empty() || self.ended();
        if let Some(fd) = &self.fd
            && ready != self.fd_is_set
        {
            if ready {
                fd.set()
            } else {
                fd.clear()
            }
            self.fd_is_set = ready;
        }
    }
}

fn bytes(event: &Event) -> usize {
    let owned = match event {
        Event::Token(e) => e.text.capacity() + size_of_val(&e.top[..]),
        Event::Finish(e) => e.text.capacity(),
        Event::Beam(_) => 0,
    };
    size_of::<Event>() + owned
}
