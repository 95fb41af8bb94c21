//! How long readers may be behind, and how long an idle engine may wait.

use super::Scheduler;
use crate::engine::call::{Call, FLAG_POLL};
use crate::engine::event::FinishReason;
use crate::engine::options::EngineOptions;
use crate::engine::sequence::Sequence;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The time that readers may take.
pub(super) struct Bounds {
    /// The time for which a sequence whose reader is behind keeps its slot while others wait.
    pub(super) stall: Duration,
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
    pub(super) fn end_as_unread(&mut self, call: &Arc<Call>) {
        let its = |sequence: &Sequence| Arc::ptr_eq(sequence.call(), call);
        for sequence in self.running.iter_mut().filter(|s| its(s)) {
            sequence.end = Some(Ok(FinishReason::Unread));
        }
        for sequence in self.parked.take_all(its) {
            self.end_parked(sequence, FinishReason::Unread);
        }
        call.withdraw(FinishReason::Unread);
    }
}
