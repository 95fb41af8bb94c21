//! Who waits for a slot: calls with prompts that have not begun, and sequences that come back.
//!
//! All get their turns in the order in which they came. A call with many prompts begins
//! `max_batch_size` of them and then goes to the end of the line, so that nobody waits for all of a
//! long call. A call whose reader is behind stands aside until the reader has caught up: what it
//! began would only sit out.

use super::call::{Call, Standing};
use super::parked::Parked;
use super::shared::LEAST_SWEPT;
use super::stream::FinishReason;
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls whose cancel flag is looked at in one go. A step must not cost more because many wait.
const FLAGS_AT_A_TIME: usize = 256;

pub(super) struct Line {
    /// In order.
    waiting: VecDeque<Waiter>,
    /// Calls with prompts whose readers are behind.
    aside: Vec<Arc<Call>>,
    /// Prompts that a call begins before it is another's turn.
    turn: usize,
    /// Calls that are gone are swept out when there are so many: twice those that the last time
    /// left.
    sweep_at: usize,
    /// The first whose flag is looked at next.
    next_flag: usize,
}

enum Waiter {
    /// A call with prompts, of which it may begin `left` before it goes to the end.
    Call { call: Arc<Call>, left: usize },
    /// A parked sequence, by its id.
    Parked(u64),
}

/// Whose turn it is.
pub(super) enum Next {
    /// A prompt of this call begins.
    Call(Arc<Call>),
    /// The parked sequence with this id comes back.
    Parked(u64),
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

    /// Whether somebody may wait for a slot. Some may be gone or behind, which only their turn
    /// shows.
    pub fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Calls that have just come.
    pub fn join(&mut self, new: Vec<Arc<Call>>) {
        for call in new {
            if self.waiting.len() >= self.sweep_at {
                self.waiting.retain(|waiter| match waiter {
                    Waiter::Call { call, .. } => call.standing() != Standing::Gone,
                    Waiter::Parked(_) => true,
                });
                self.sweep_at = LEAST_SWEPT.max(2 * self.waiting.len());
            }
            self.queue_up(call);
        }
    }

    /// A parked sequence that could go on.
    pub fn join_again(&mut self, id: u64) {
        self.waiting.push_back(Waiter::Parked(id));
    }

    fn queue_up(&mut self, call: Arc<Call>) {
        let left = self.turn;
        self.waiting.push_back(Waiter::Call { call, left });
    }

    /// End what was cancelled, and line up again those whose readers have caught up.
    pub fn look(&mut self) {
        let n = self.waiting.len();
        for _ in 0..n.min(FLAGS_AT_A_TIME) {
            self.next_flag = (self.next_flag + 1) % n;
            if let Waiter::Call { call, .. } = &self.waiting[self.next_flag]
                && call.is_cancelled()
            {
                call.withdraw(FinishReason::Cancelled);
            }
        }
        for call in std::mem::take(&mut self.aside) {
            if call.is_cancelled() {
                call.withdraw(FinishReason::Cancelled);
            }
            match call.standing() {
                Standing::Gone => {}
                Standing::Behind => self.aside.push(call),
                Standing::Ready => {
                    call.line_up();
                    self.queue_up(call);
                }
            }
        }
    }

    /// Calls that stand aside.
    pub fn aside(&self) -> &[Arc<Call>] {
        &self.aside
    }

    /// Whose turn it is.
    pub fn first(&mut self, parked: &mut Parked) -> Option<Next> {
        loop {
            match self.waiting.front()? {
                Waiter::Parked(id) if parked.may_return(*id) => return Some(Next::Parked(*id)),
                Waiter::Parked(_) => {}
                Waiter::Call { call, .. } => match call.standing() {
                    Standing::Ready => return Some(Next::Call(call.clone())),
                    Standing::Gone => {}
                    Standing::Behind => {
                        call.stand_aside();
                        self.aside.push(call.clone());
                    }
                },
            }
            self.waiting.pop_front();
        }
    }

    /// The first has begun a prompt, or has come back.
    pub fn has_begun(&mut self) {
        match self.waiting.pop_front() {
            Some(Waiter::Call { call, left: 1 }) => self.queue_up(call),
            Some(Waiter::Call { call, left }) => {
                let left = left - 1;
                self.waiting.push_front(Waiter::Call { call, left });
            }
            Some(Waiter::Parked(_)) | None => {}
        }
    }

    /// Cancel everything.
    pub fn cancel_all(&mut self) {
        for waiter in self.waiting.drain(..) {
            if let Waiter::Call { call, .. } = waiter {
                call.withdraw(FinishReason::Cancelled);
            }
        }
        for call in self.aside.drain(..) {
            call.withdraw(FinishReason::Cancelled);
        }
    }
}
