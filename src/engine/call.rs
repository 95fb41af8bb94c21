//! What the engine thread and the readers of one call share: its flags and its queue of events.
//!
//! Every sequence of the call ends exactly once, in here: finished by the engine, withdrawn by a
//! reader before it began, or failed with the whole call. Locks: never take the inbox's lock
//! ([`Shared::nudge`]) while holding a call's.

use super::os::EventFd;
use super::request::GenerateOptions;
use super::shared::{Shared, lock};
use super::stream::{Event, Finish, FinishReason, Next, RequestStats};
use super::text::Stops;
use crate::log::Level;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A call whose reader is further behind than this sits out the steps: alternatives for a whole
/// vocabulary are 256 KiB per token and would otherwise fill the memory.
const MAX_QUEUED_EVENTS: usize = 1024;
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// A cancel flag is a bare store that wakes nobody, so who waits looks at it this often.
pub(super) const FLAG_POLL: Duration = Duration::from_millis(4);

/// One call of [`super::Engine::submit`].
pub(super) struct Call {
    pub options: GenerateOptions,
    pub stops: Stops,
    pub submitted: Instant,
    cancelled: AtomicBool,
    state: Mutex<State>,
    ready: Condvar,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not queued: refused, or answered without the model.
    New,
    /// From here until it has ended it counts in [`Shared::occupied`].
    Waiting,
    Running,
    Ended,
}

struct State {
    queue: VecDeque<Event>,
    queued_bytes: usize,
    /// Per sequence: its phase, and the length of its prompt.
    sequences: Vec<(Phase, u32)>,
    /// Whether a cancellation ended a sequence.
    cut_short: bool,
    error: Option<Error>,
    closed: bool,
    /// Made when it is first asked for.
    fd: Option<EventFd>,
    fd_is_set: bool,
}

impl State {
    fn ended(&self) -> bool {
        self.sequences
            .iter()
            .all(|(phase, _)| *phase == Phase::Ended)
    }

    fn is_full(&self) -> bool {
        self.queue.len() > MAX_QUEUED_EVENTS || self.queued_bytes > MAX_QUEUED_BYTES
    }

    fn push(&mut self, event: Event) {
        // A step that was under way when the call failed still has its events.
        if !self.closed && self.error.is_none() {
            self.queued_bytes += bytes(&event);
            self.queue.push_back(event);
        }
    }

    /// Bring the descriptor in line with whether `next` would give something.
    fn signal(&mut self) {
        let ready = !self.queue.is_empty() || self.error.is_some() || self.ended();
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
    };
    size_of::<Event>() + owned
}

impl Call {
    /// A call with nothing queued yet; the length of each prompt.
    pub fn new(options: GenerateOptions, prompt_lens: Vec<u32>, shared: Arc<Shared>) -> Arc<Self> {
        let sequences = prompt_lens
            .into_iter()
            .map(|len| (Phase::New, len))
            .collect();
        Arc::new(Self {
            stops: Stops::new(&options.stop),
            options,
            submitted: Instant::now(),
            cancelled: AtomicBool::new(false),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queued_bytes: 0,
                sequences,
                cut_short: false,
                error: None,
                closed: false,
                fd: None,
                fd_is_set: false,
            }),
            ready: Condvar::new(),
            shared,
        })
    }

    // ---- the engine's side ----

    /// From now on the sequence needs a slot.
    pub fn enqueue(&self, index: u32) {
        lock(&self.state).sequences[index as usize].0 = Phase::Waiting;
        self.shared.occupied.fetch_add(1, Relaxed);
    }

    /// Whether the sequence may begin; not if it was withdrawn or the call has failed.
    pub fn start(&self, index: u32) -> bool {
        let phase = &mut lock(&self.state).sequences[index as usize].0;
        let waiting = *phase == Phase::Waiting;
        if waiting {
            *phase = Phase::Running;
        }
        waiting
    }

    /// Whether someone has asked for an end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
            || self
                .options
                .cancel
                .as_ref()
                .is_some_and(|flag| flag.is_triggered())
    }

    /// Whether the sequence has ended, perhaps with its call and without the engine's doing.
    pub fn has_ended(&self, index: u32) -> bool {
        lock(&self.state).sequences[index as usize].0 == Phase::Ended
    }

    /// Whether the reader is too far behind.
    pub fn is_full(&self) -> bool {
        lock(&self.state).is_full()
    }

    pub fn push(&self, event: Event) {
        self.update(|state| state.push(event));
    }

    /// End a sequence. The slot is free before a reader can see it.
    pub fn finish(&self, finish: Finish) {
        self.update(|state| self.end(state, finish));
    }

    /// End every sequence that has not, and give `error` once what is queued has been read.
    pub fn fail(&self, error: Error) {
        self.update(|state| {
            if state.ended() {
                return;
            }
            for (phase, _) in &mut state.sequences {
                self.set_ended(phase);
            }
            state.error = Some(error);
        });
    }

    /// Cancel the sequences that have not begun.
    pub fn withdraw(&self) {
        self.update(|state| self.withdraw_from(state));
    }

    fn withdraw_from(&self, state: &mut State) {
        let total_ms = self.age_ms();
        for index in 0..state.sequences.len() {
            let (phase, prompt_tokens) = state.sequences[index];
            if phase == Phase::Waiting {
                let stats = RequestStats {
                    prompt_tokens,
                    queue_ms: total_ms,
                    total_ms,
                    ..Default::default()
                };
                self.end(
                    state,
                    Finish {
                        stats,
                        ..Finish::cancelled(index as u32)
                    },
                );
            }
        }
    }

    fn end(&self, state: &mut State, finish: Finish) {
        let phase = &mut state.sequences[finish.index as usize].0;
        if *phase != Phase::Ended {
            self.set_ended(phase);
            state.cut_short |= finish.reason == FinishReason::Cancelled;
            self.shared.log.write(Level::Debug, || finish.to_string());
            state.push(Event::Finish(finish));
        }
    }

    fn set_ended(&self, phase: &mut Phase) {
        if matches!(phase, Phase::Waiting | Phase::Running) {
            self.shared.occupied.fetch_sub(1, Relaxed);
        }
        *phase = Phase::Ended;
    }

    /// Milliseconds since the call was submitted.
    pub fn age_ms(&self) -> f64 {
        self.submitted.elapsed().as_secs_f64() * 1e3
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        state.signal();
        self.ready.notify_all();
    }

    // ---- the reader's side ----

    pub fn next(&self, timeout: Option<Duration>) -> Result<Next> {
        // A deadline beyond what the clock can say is none.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Ok(Next::Cancelled);
            }
            if state.queue.is_empty() && !state.ended() && self.is_cancelled() {
                self.withdraw_from(&mut state);
                self.ready.notify_all();
            }
            let was_full = state.is_full();
            if let Some(event) = state.queue.pop_front() {
                state.queued_bytes -= bytes(&event);
                let caught_up = was_full && !state.is_full();
                state.signal();
                drop(state);
                if caught_up {
                    self.shared.nudge();
                }
                return Ok(Next::Event(event));
            }
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            if state.ended() {
                return Ok(if state.cut_short {
                    Next::Cancelled
                } else {
                    Next::Done
                });
            }
            let mut wait = self.options.cancel.as_ref().map(|_| FLAG_POLL);
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Next::Timeout);
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

    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
        self.withdraw();
        self.shared.nudge();
    }

    pub fn close(&self) {
        self.cancelled.store(true, Relaxed);
        self.update(|state| {
            state.closed = true;
            state.queue = VecDeque::new();
            state.queued_bytes = 0;
            self.withdraw_from(state);
            state.fd = None;
        });
        self.shared.nudge();
    }
}
