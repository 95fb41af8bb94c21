//! How a call fails: at once, or where its reader comes to what one of its sequences has failed by.

use super::{Call, Item, Phase, State};
use crate::engine::event::Finish;
use crate::error::Kind;
use crate::{Error, reserve};
use std::collections::VecDeque;

impl Call {
    /// Ends every sequence that has not ended. The reader gets `error` once it has read what is
    /// queued.
    pub fn fail(&self, error: Error) {
        self.update(|state| {
            if !state.ended() {
                self.fail_with(state, error);
            }
        });
    }

    /// Whether a sequence fails by what was asked of it; see [`Call::fail_at`].
    pub fn fails_in_order(error: &Error) -> bool {
        error.kind() == Kind::InvalidArgument
    }

    /// Fails because a sequence did, when the reader has taken all that the sequence has generated.
    /// If the reader stops it before that, `end` is its end, and nothing has failed.
    ///
    /// Several sequences may fail by what was asked of them. Which of them does so first in time
    /// depends on drafts and on the company. The reader is told of the first in order, so those
    /// before the one that has failed go on; those behind it do so until the reader comes to it.
    pub fn fail_at(&self, end: Finish, error: Error) {
        self.update(|state| {
            if !state.told.goes_on(end.index) {
                return self.end(state, end);
            }
            let mut is_news = false;
            for index in self.together(end.index) {
                is_news |= self.set_ended(state, index);
            }
            if is_news && !state.closed {
                let room = reserve::queue("the events of a call", &mut state.queue, 1);
                let boxed = reserve::headroom("the events of a call", size_of::<(Finish, Error)>());
                match room.and(boxed) {
                    Ok(()) => state.queue.push_back(Item::Failure(Box::new((end, error)))),
                    Err(error) => self.fail_with(state, error),
                }
            }
        });
    }

    pub(super) fn fail_with(&self, state: &mut State, error: Error) {
        self.fail_behind(state, 0, error);
        for index in 0..state.phases.len() {
            self.set_ended(state, index);
        }
    }

    /// The sequence `first` and all behind it end, unless they have failed already. Prompts begin
    /// in order, so those that wait are behind it, if it has begun or is 0. The engine ends those
    /// that have begun: their slots are free before the reader gets the error.
    pub(super) fn fail_behind(&self, state: &mut State, first: u32, error: Error) {
        if state.has_failed(first) {
            return;
        }
        state.failed = Some((first, error));
        self.free_the_waiting(state);
        state.prompts = VecDeque::new();
        for index in first as usize..state.phases.len() {
            if state.phases[index] == Phase::New {
                self.set_ended(state, index);
            }
        }
    }
}
