//! The line for slots: calls with prompts that have not begun, and parked sequences that want to
//! return.
//!
//! Turns are in the order of arrival. A call with many prompts begins `max_batch_size` sequences
//! and then goes to the end of the line, so that nobody waits for all prompts of a long call. A
//! call whose reader is behind stands aside until the reader has caught up, because a sequence that
//! it began now would have to pause at once.

use super::call::{Call, Standing};
use super::event::FinishReason;
use super::shared::LEAST_SWEPT;
use crate::reserve;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The number of calls whose cancel flags and clocks are checked before a step. It is limited,
/// because a step must not cost more when many calls wait.
const FLAGS_AT_A_TIME: usize = 256;

pub(super) struct Line {
    /// In order.
    waiting: VecDeque<Waiter>,
    /// Calls with prompts whose readers are behind.
    aside: Vec<Arc<Call>>,
    /// The number of sequences that a call begins before it is another call's turn.
    turn: usize,
    /// When the line has this length, calls that are gone are swept out of it. Each sweep sets it
    /// to twice the number that is left.
    sweep_at: usize,
    /// The place in the line whose flag was checked last.
    next_flag: usize,
}

enum Waiter {
    /// A call with prompts, which may begin `left` sequences before it goes to the end.
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

    /// Whether somebody may be waiting for a slot. Some of those in the line may be gone or behind;
    /// this is found out when it is their turn.
    pub fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Adds new calls to the line.
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

    /// Adds a parked sequence of `call`, which could go on.
    pub fn join_again(&mut self, id: u64, call: &Call) {
        self.push(Waiter::Parked(id), call);
    }

    fn queue_up(&mut self, call: Arc<Call>) {
        let left = self.turn;
        let of = call.clone();
        self.push(Waiter::Call { call, left }, &of);
    }

    /// Appends to the line. If there is no memory, the call fails.
    fn push(&mut self, waiter: Waiter, of: &Call) {
        match reserve::queue("the line for slots", &mut self.waiting, 1) {
            Ok(()) => self.waiting.push_back(waiter),
            Err(error) => of.fail(error),
        }
    }

    /// Ends calls that were cancelled or whose time is over, and lines up again those whose readers
    /// have caught up.
    pub fn look(&mut self) {
        let n = self.waiting.len();
        for _ in 0..n.min(FLAGS_AT_A_TIME) {
            self.next_flag = (self.next_flag + 1) % n;
            if let Waiter::Call { call, .. } = &self.waiting[self.next_flag] {
                call.look();
            }
        }
        let mut aside = std::mem::take(&mut self.aside);
        for call in aside.extract_if(.., |call| {
            call.look();
            call.standing() != Standing::Behind
        }) {
            if call.standing() != Standing::Gone {
                call.line_up();
                self.queue_up(call);
            }
        }
        self.aside = aside;
    }

    /// The time until the first deadline of the calls that wait for a slot or stand aside.
    pub fn time_left(&self) -> Option<Duration> {
        let waiting = self.waiting.iter().filter_map(|waiter| match waiter {
            Waiter::Call { call, .. } => Some(call),
            Waiter::Parked(_) => None,
        });
        let calls = waiting.chain(&self.aside);
        calls.filter_map(|call| call.time_left()).min()
    }

    /// The calls that stand aside.
    pub fn aside(&self) -> &[Arc<Call>] {
        &self.aside
    }

    /// Whose turn it is. `may_return`: whether the parked sequence with this id may come back.
    pub fn first(&mut self, mut may_return: impl FnMut(u64) -> bool) -> Option<Next> {
        loop {
            match self.waiting.front()? {
                Waiter::Parked(id) if may_return(*id) => return Some(Next::Parked(*id)),
                Waiter::Parked(_) => {}
                Waiter::Call { call, .. } => match call.standing_now() {
                    Standing::Ready => return Some(Next::Call(call.clone())),
                    Standing::Gone => {}
                    Standing::Behind => {
                        call.stand_aside();
                        let aside = reserve::push("the calls aside", &mut self.aside, call.clone());
                        if let Err(error) = aside {
                            call.fail(error);
                        }
                    }
                },
            }
            self.waiting.pop_front();
        }
    }

    /// Notes that the first in the line has begun a prompt, or has come back.
    pub fn has_begun(&mut self) {
        match self.waiting.pop_front() {
            Some(Waiter::Call { call, left }) if left <= call.width() => self.queue_up(call),
            Some(Waiter::Call { call, left }) => {
                let left = left - call.width();
                self.waiting.push_front(Waiter::Call { call, left });
            }
            Some(Waiter::Parked(_)) | None => {}
        }
    }

    /// Cancels everything in the line.
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
