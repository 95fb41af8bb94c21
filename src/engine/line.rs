//! Who waits for a slot: calls with prompts that have not begun.
//!
//! Calls begin in the order in which they came. A call with many prompts begins `max_batch_size` of them
//! and then goes to the end of the line, so that nobody waits for all of a long call. A call whose reader
//! is behind stands aside until the reader has caught up: what it began would only sit out.

use super::call::{Call, Standing};
use super::shared::LEAST_SWEPT;
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls whose cancel flag is looked at in one go. A step must not cost more because many wait.
const FLAGS_AT_A_TIME: usize = 256;

pub(super) struct Line {
    /// In order.
    waiting: VecDeque<Turn>,
    /// Those whose readers are behind.
    aside: Vec<Turn>,
    /// Prompts that a call begins before it is another's turn.
    turn: usize,
    /// Calls that are gone are swept out when there are so many: twice those that the last time left.
    sweep_at: usize,
    /// The first whose flag is looked at next.
    next_flag: usize,
}

struct Turn {
    call: Arc<Call>,
    /// Prompts that it may begin before it goes to the end.
    left: usize,
}

impl Line {
    pub fn new(turn: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            aside: Vec::new(),
            turn,
            sweep_at: LEAST_SWEPT,
            next_flag: 0,
        }
    }

    /// Whether nobody waits, aside or not.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.aside.is_empty()
    }

    /// Calls that have just come.
    pub fn join(&mut self, new: Vec<Arc<Call>>) {
        for call in new {
            if self.waiting.len() >= self.sweep_at {
                let waits = |turn: &Turn| turn.call.standing() != Standing::Gone;
                self.waiting.retain(waits);
                self.sweep_at = LEAST_SWEPT.max(2 * self.waiting.len());
            }
            self.to_the_end(call);
        }
    }

    fn to_the_end(&mut self, call: Arc<Call>) {
        let left = self.turn;
        self.waiting.push_back(Turn { call, left });
    }

    /// End what was cancelled, and line up again those whose readers have caught up.
    pub fn look(&mut self) {
        let n = self.waiting.len();
        for _ in 0..n.min(FLAGS_AT_A_TIME) {
            self.next_flag = (self.next_flag + 1) % n;
            let call = &self.waiting[self.next_flag].call;
            if call.is_cancelled() {
                call.withdraw();
            }
        }
        for turn in std::mem::take(&mut self.aside) {
            if turn.call.is_cancelled() {
                turn.call.withdraw();
            }
            match turn.call.standing() {
                Standing::Gone => {}
                Standing::Behind => self.aside.push(turn),
                Standing::Ready => {
                    turn.call.line_up();
                    self.to_the_end(turn.call);
                }
            }
        }
    }

    /// Whose turn it is.
    pub fn first(&mut self) -> Option<Arc<Call>> {
        loop {
            let first = self.waiting.front()?;
            match first.call.standing() {
                Standing::Ready => return Some(first.call.clone()),
                Standing::Gone => drop(self.waiting.pop_front()),
                Standing::Behind => {
                    first.call.stand_aside();
                    self.aside.extend(self.waiting.pop_front());
                }
            }
        }
    }

    /// The first has begun a prompt.
    pub fn has_begun(&mut self) {
        if let Some(first) = self.waiting.front_mut() {
            first.left -= 1;
            if first.left == 0
                && let Some(Turn { call, .. }) = self.waiting.pop_front()
            {
                self.to_the_end(call);
            }
        }
    }

    /// Cancel everything.
    pub fn cancel_all(&mut self) {
        for turn in self.waiting.drain(..).chain(self.aside.drain(..)) {
            turn.call.withdraw();
        }
    }
}
