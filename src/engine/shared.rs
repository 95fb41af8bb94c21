//! The state that a handle's callers share with its engine thread.

use super::call::{Call, Waiting};
use super::event::FinishReason;
use super::lock::lock;
use super::options::{EngineOptions, Timings};
use crate::log::Log;
use crate::{Error, Result, reserve};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    wake: Condvar,
    /// Number of sequences that hold a slot or wait for one. It grows only under the inbox's lock,
    /// so a call that must not wait sees a number that cannot grow before the call is queued.
    pub occupied: AtomicUsize,
    /// Number of calls that had to wait and of which nothing has begun. It grows only under the
    /// inbox's lock.
    pub waiting_calls: AtomicUsize,
    /// Number of calls with a cancel flag that have not ended.
    pub flagged: AtomicUsize,
    pub totals: Mutex<Timings>,
    pub log: Arc<Log>,
    max_batch_size: usize,
    max_waiting: usize,
}

struct Inbox {
    /// Calls with waiting prompts that the engine thread has not received yet.
    new: Vec<Arc<Call>>,
    /// All calls that may have unfinished sequences, wherever these are.
    calls: Vec<Weak<Call>>,
    /// When the list has this length, calls that are gone are swept out. Each sweep sets it to
    /// twice the number that is left, so that the cost of a call does not grow with the number of
    /// calls.
    sweep_at: usize,
    state: State,
    seeds: ChaCha8Rng,
    nudged: bool,
}

enum State {
    Open,
    Closed,
    Poisoned(String),
}

impl Shared {
    pub fn new(options: &EngineOptions, pages_total: u64, log: Arc<Log>) -> Arc<Self> {
        Arc::new(Self {
            inbox: Mutex::new(Inbox {
                new: Vec::new(),
                calls: Vec::new(),
                sweep_at: LEAST_SWEPT,
                state: State::Open,
                seeds: ChaCha8Rng::seed_from_u64(options.seed),
                nudged: false,
            }),
            wake: Condvar::new(),
            occupied: AtomicUsize::new(0),
            waiting_calls: AtomicUsize::new(0),
            flagged: AtomicUsize::new(0),
            totals: Mutex::new(Timings {
                pages_total,
                ..Timings::default()
            }),
            log,
            max_batch_size: options.max_batch_size,
            max_waiting: options.max_waiting as usize,
        })
    }

    /// Queues the prompts of a call, or refuses them.
    pub fn submit(&self, call: &Arc<Call>, prompts: VecDeque<Waiting>) -> Result<()> {
        let mut inbox = lock(&self.inbox);
        if let State::Poisoned(reason) = &inbox.state {
            return Err(Error::Poisoned(reason.clone()));
        }
        let cancelled = call.is_cancelled() || matches!(inbox.state, State::Closed);
        let (needed, occupied) = (prompts.len() * call.width(), self.occupied.load(Relaxed));
        let free = self.max_batch_size.saturating_sub(occupied);
        if call.options.no_wait && needed > free && !cancelled {
            return Err(Error::Busy { needed, free });
        }
        // A call waits if there are not enough slots for even its first prompt.
        let waits = needed > 0 && free < call.width() && !cancelled;
        let waiting = self.waiting_calls.load(Relaxed);
        if waits && waiting >= self.max_waiting {
            let max = self.max_waiting;
            return Err(Error::Waiting { waiting, max });
        }
        if !cancelled {
            inbox.remember(call)?;
            if needed > 0 {
                reserve::push("the calls that wait", &mut inbox.new, call.clone())?;
            }
        }
        // From here on nothing fails.
        let seed = match call.options.seed {
            0 => inbox.seeds.next_u64(),
            seed => seed,
        };
        call.enqueue(prompts, seed, waits);
        if cancelled {
            call.withdraw(FinishReason::Cancelled);
            return Ok(());
        }
        self.wake.notify_one();
        Ok(())
    }

    /// Returns the calls that were queued since the last time; `None` when the engine thread must
    /// end. If there is nothing to do, waits for `patience` (`None`: for ever).
    pub fn receive(&self, patience: Option<Duration>) -> Option<Vec<Arc<Call>>> {
        let inbox = lock(&self.inbox);
        let nothing =
            |i: &mut Inbox| i.new.is_empty() && !i.nudged && matches!(i.state, State::Open);
        let mut inbox = match patience {
            None => {
                let waited = self.wake.wait_while(inbox, nothing);
                waited.unwrap_or_else(|e| e.into_inner())
            }
            Some(Duration::ZERO) => inbox,
            Some(time) => match self.wake.wait_timeout_while(inbox, time, nothing) {
                Ok((inbox, _)) => inbox,
                Err(poisoned) => poisoned.into_inner().0,
            },
        };
        inbox.nudged = false;
        matches!(inbox.state, State::Open).then(|| std::mem::take(&mut inbox.new))
    }

    /// Why the engine thread must end: nothing, or the error that calls fail with. Who poisons a
    /// handle wakes that thread before the calls have failed, so it must not cancel them.
    pub fn verdict(&self) -> Result<()> {
        match &lock(&self.inbox).state {
            State::Poisoned(reason) => Err(Error::Internal(reason.clone())),
            State::Open | State::Closed => Ok(()),
        }
    }

    /// Makes the engine thread check cancel flags and full queues again.
    pub fn nudge(&self) {
        lock(&self.inbox).nudged = true;
        self.wake.notify_one();
    }

    /// Refuses new calls and cancels waiting ones. The engine thread cancels running ones and ends.
    pub fn close(&self) {
        let calls = {
            let mut inbox = lock(&self.inbox);
            if matches!(inbox.state, State::Open) {
                inbox.state = State::Closed;
            }
            inbox.calls()
        };
        self.wake.notify_one();
        for call in calls {
            call.withdraw(FinishReason::Cancelled);
        }
    }

    /// Makes every call fail with `error`, and later ones with [`Error::Poisoned`]. The thread
    /// ends.
    pub fn poison(&self, reason: &str, error: &Error) {
        let calls = {
            let mut inbox = lock(&self.inbox);
            if !matches!(inbox.state, State::Poisoned(_)) {
                inbox.state = State::Poisoned(reason.into());
            }
            inbox.calls()
        };
        self.wake.notify_one();
        for call in calls {
            call.fail(error.clone());
        }
    }

    /// Runs `claim`, which may add to [`Shared::occupied`] and may take a call's lock.
    pub fn claiming(&self, claim: impl FnOnce()) {
        let _inbox = lock(&self.inbox);
        claim();
    }

    /// Takes the calls that were queued but not received, after the engine thread has ended.
    pub fn abandon(&self) -> Vec<Arc<Call>> {
        std::mem::take(&mut lock(&self.inbox).new)
    }
}

/// Lists that are shorter than this are never swept.
pub(super) const LEAST_SWEPT: usize = 64;

impl Inbox {
    fn remember(&mut self, call: &Arc<Call>) -> Result<()> {
        if self.calls.len() >= self.sweep_at {
            self.calls.retain(|call| call.strong_count() > 0);
            self.sweep_at = LEAST_SWEPT.max(2 * self.calls.len());
        }
        reserve::push("the list of calls", &mut self.calls, Arc::downgrade(call))
    }

    fn calls(&self) -> Vec<Arc<Call>> {
        self.calls.iter().filter_map(Weak::upgrade).collect()
    }
}
