//! What the threads of a call's readers do with it: take events, answer questions, stop, cancel.

use super::{Asked, Call, FLAG_POLL, Item, Phase, State, Taken, Waiting};
use crate::engine::event::{FinishReason, Row};
use crate::engine::lock::lock;
use crate::engine::os::EventFd;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

impl Call {
    pub fn next(&self, timeout: Option<Duration>) -> Result<Taken> {
        // A deadline that the clock cannot express is no deadline.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Ok(Taken::Cancelled);
            }
            if state.queue.is_empty() && !state.ended() && self.is_cancelled() {
                self.withdraw_from(&mut state, FinishReason::Cancelled);
                self.ready.notify_all();
            }
            match state.queue.pop_front() {
                Some(Item::Event(event)) => {
                    let caught_up = state.taken(&event);
                    state.signal();
                    drop(state);
                    if caught_up {
                        self.shared.nudge();
                    }
                    return Ok(Taken::Event(event));
                }
                Some(Item::Question(row)) => {
                    state.heard();
                    state.signal();
                    let asked = state.asked.get(row.index as usize);
                    let is_open = matches!(asked, Some(Asked::Open));
                    if is_open && !state.has_failed(row.index) && !self.is_cancelled() {
                        return Ok(Taken::Question(row));
                    }
                    // The sequence has ended since, or will end.
                    continue;
                }
                Some(Item::Failure(failure)) => {
                    let (end, error) = *failure;
                    self.fail_behind(&mut state, end.index, error);
                    state.signal();
                    drop(state);
                    self.ready.notify_all();
                    self.shared.nudge();
                    state = lock(&self.state);
                    continue;
                }
                None => {}
            }
            if let Some(error) = state.error() {
                return Err(error.clone());
            }
            if state.ended() {
                return Ok(if state.cut_short {
                    Taken::Cancelled
                } else {
                    Taken::Done
                });
            }
            let mut wait = self.options.cancel.as_ref().map(|_| FLAG_POLL);
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Taken::Timeout);
                }
                wait = Some(wait.map_or(left, |poll| poll.min(left)));
            }
            state = match wait {
                Some(time) => match self.ready.wait_timeout(state, time) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
                None => self.ready.wait(state).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }

    pub fn fd(&self) -> Option<i32> {
        let mut state = lock(&self.state);
        if state.fd.is_none() && !state.closed {
            state.fd = EventFd::new();
            state.signal();
        }
        state.fd.as_ref().map(EventFd::raw)
    }

    /// Takes the reader's answer to a question.
    pub fn answer(&self, row: Box<Row>) {
        {
            let mut state = lock(&self.state);
            state.heard();
            let index = row.index;
            if matches!(state.asked.get(index as usize), Some(Asked::Open)) {
                state.set_asked(index, Asked::Answered(row));
            }
        }
        self.shared.nudge();
    }

    /// Ends a sequence behind the events that the reader has taken of it.
    pub fn stop(&self, index: usize) -> Result<()> {
        let mut state = lock(&self.state);
        let n = state.phases.len();
        if index >= n {
            let expected = format!("below {n}, the number of sequences");
            return Err(Error::invalid("i", expected, index));
        }
        let index = match self.options.has_beams() {
            // The sequences of a search end together.
            true => index - index % self.samples(),
            false => index,
        } as u32;
        let (special, stops) = (self.options.special, &self.stops);
        if state.closed || state.has_failed(index) {
            return Ok(());
        }
        let phase = state.phases[index as usize];
        if self.options.has_beams() && phase != Phase::New {
            // The engine ends the search and then tells what the search has found.
            state.told.end_search(index);
            drop(state);
            self.shared.nudge();
            return Ok(());
        }
        if !state.told.stop(index, &self.tokenizer, special, stops)? {
            return Ok(());
        }
        state.forget(index);
        if phase == Phase::New {
            let n = self.together(index).len();
            for index in (index..).take(n) {
                self.stop_unbegun(&mut state, index);
            }
        }
        state.tell_end_anew(index);
        state.signal();
        drop(state);
        self.ready.notify_all();
        self.shared.nudge();
        Ok(())
    }

    /// Ends a sequence whose prompt waits. The prompt continues to wait for its other sequences.
    pub(super) fn stop_unbegun(&self, state: &mut State, index: u32) {
        let samples = self.samples();
        let its = |prompt: &Waiting| (prompt.index..).take(samples).any(|i| i == index);
        let Some(at) = state.prompts.iter().position(its) else {
            return;
        };
        let Waiting {
            index: first,
            ref tokens,
        } = state.prompts[at];
        let n_prompt = tokens.len();
        self.end_unbegun(state, index, n_prompt, FinishReason::Caller);
        let all = &state.phases[first as usize..][..samples];
        if all.iter().all(|phase| *phase == Phase::Ended) {
            state.prompts.remove(at);
            if !state.aside {
                self.shared.occupied.fetch_sub(self.width(), Relaxed);
            }
        }
    }

    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        self.withdraw(FinishReason::Cancelled);
        self.shared.nudge();
    }

    pub fn close(&self) {
        self.cancelled.store(true, Relaxed);
        self.update(|state| {
            state.closed = true;
            state.queue = VecDeque::new();
            state.queued_bytes = 0;
            state.behind = None;
            self.withdraw_from(state, FinishReason::Cancelled);
            state.fd = None;
        });
        self.shared.nudge();
    }
}
