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
use crate::backend::Adapter;
use crate::log::Level;
use crate::{Error, Result, Token, reserve};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A reader is behind when more than this is queued. Its call then sits out the steps, because
/// alternatives for a whole vocabulary are 256 KiB per token and would otherwise fill the memory.
/// A reader has caught up when half of this is left. With one bound for both, a reader that takes
/// an event now and then would never be behind for long.
const MAX_QUEUED_EVENTS: usize = 1024;
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// How often a waiting thread looks at a cancel flag. Triggering a flag is a bare store, which
/// wakes nobody.
pub(super) const FLAG_POLL: Duration = Duration::from_millis(4);

/// Bytes that an `Arc` needs beside its value.
const COUNTS: usize = 2 * size_of::<usize>();

/// One call of [`super::Engine::submit`].
pub(super) struct Call {
    pub options: GenerateOptions,
    pub stops: Stops,
    pub submitted: Instant,
    /// When its sequences end, whatever they have.
    deadline: Option<Instant>,
    cancelled: AtomicBool,
    state: Mutex<State>,
    ready: Condvar,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not begun. Those that wait for their turn are in [`State::prompts`].
    New,
    /// It has a slot, or waits to get one back. It counts in [`Shared::occupied`].
    Running,
    /// It has given its slot up.
    Parked,
    Ended,
}

/// A prompt that has not begun.
pub(super) struct Waiting {
    /// The number of its first sequence in the call; it has [`Call::width`] of them.
    pub index: u32,
    pub tokens: Vec<Token>,
}

/// Whether a prompt of a call begins.
pub(super) enum Beginning<R> {
    /// All its sequences do, with what was reserved for them.
    Begun(R),
    /// All have begun, or the call has ended.
    NothingLeft,
    /// What it needs is not there.
    NoRoom,
}

/// Whether a call in the line for slots may begin another prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Ready,
    /// Its reader is behind: a prompt that began now would sit out.
    Behind,
    /// None of its prompts waits any more.
    Gone,
}

/// Since when the reader is behind, and when it last took an event: at first the same time.
#[derive(Clone, Copy)]
struct Behind {
    since: Instant,
    read: Instant,
}

struct State {
    queue: VecDeque<Event>,
    queued_bytes: usize,
    /// Set while the reader is too far behind.
    behind: Option<Behind>,
    /// The prompts that wait, in order. Their sequences count in [`Shared::occupied`] unless the
    /// call stands aside. Cancelling the call drops them at once, whatever the engine does
    /// meanwhile.
    prompts: VecDeque<Waiting>,
    aside: bool,
    /// Whether the call counts in [`Shared::waiting_calls`].
    counts: bool,
    /// Whether the call counts in [`Shared::flagged`].
    flagged: bool,
    seed: u64,
    /// What its sequences run with; none once all have ended.
    adapter: Option<Arc<Adapter>>,
    phases: Vec<Phase>,
    /// Sequences that have not ended.
    unended: usize,
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
        self.unended == 0
    }

    /// Whether more is queued than one `part`th of what may be.
    fn holds_over(&self, part: usize) -> bool {
        self.queue.len() > MAX_QUEUED_EVENTS / part || self.queued_bytes > MAX_QUEUED_BYTES / part
    }

    fn push(&mut self, event: Event) -> Result<()> {
        // A step that was under way when the call failed still gives its events; nobody wants them.
        if !self.closed && self.error.is_none() {
            reserve::queue("the events of a call", &mut self.queue, 1)?;
            self.queued_bytes += bytes(&event);
            self.queue.push_back(event);
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
    /// A call of `n` sequences, none of which is queued yet.
    pub fn new(
        options: GenerateOptions,
        adapter: Option<Arc<Adapter>>,
        n: usize,
        shared: Arc<Shared>,
    ) -> Result<Arc<Self>> {
        let mut phases = reserve::room("the sequences of a call", n)?;
        phases.resize(n, Phase::New);
        let stops = Stops::new(&options.stop)?;
        reserve::headroom("a call", size_of::<Self>() + COUNTS)?;
        let submitted = Instant::now();
        let time = Duration::from_millis(options.max_time_ms.into());
        // A deadline that the clock cannot express is no deadline.
        let deadline = submitted.checked_add(time).filter(|_| !time.is_zero());
        Ok(Arc::new(Self {
            stops,
            options,
            submitted,
            deadline,
            cancelled: AtomicBool::new(false),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queued_bytes: 0,
                behind: None,
                prompts: VecDeque::new(),
                aside: false,
                counts: false,
                flagged: false,
                seed: 0,
                adapter,
                phases,
                unended: n,
                cut_short: false,
                error: None,
                closed: false,
                fd: None,
                fd_is_set: false,
            }),
            ready: Condvar::new(),
            shared,
        }))
    }

    /// Sequences of each prompt.
    pub fn width(&self) -> usize {
        self.options.num_return_sequences
    }

    // ---- the engine's side ----

    /// From now on these prompts need slots. `counts` says whether the call counts as waiting. The
    /// caller holds the inbox's lock.
    pub fn enqueue(&self, prompts: VecDeque<Waiting>, seed: u64, counts: bool) {
        let mut state = lock(&self.state);
        if state.error.is_some() {
            return;
        }
        let needed = prompts.len() * self.width();
        self.shared.occupied.fetch_add(needed, Relaxed);
        self.shared
            .waiting_calls
            .fetch_add(usize::from(counts), Relaxed);
        let flagged = !state.ended() && self.options.cancel.is_some();
        self.shared.flagged.fetch_add(usize::from(flagged), Relaxed);
        (state.prompts, state.seed) = (prompts, seed);
        (state.counts, state.flagged) = (counts, flagged);
    }

    /// Whether another prompt may begin.
    pub fn standing(&self) -> Standing {
        let state = lock(&self.state);
        match (state.prompts.is_empty(), state.behind.is_some()) {
            (true, _) => Standing::Gone,
            (_, true) => Standing::Behind,
            _ => Standing::Ready,
        }
    }

    /// The same, of a call that has not had all its time; else its prompts end here.
    pub fn standing_now(&self) -> Standing {
        if self.is_out_of_time() {
            self.withdraw(FinishReason::Time);
        }
        self.standing()
    }

    /// Begin the first prompt that waits if `reserve` gives what it needs. That is told the prompt
    /// and the call's seed and adapter.
    pub fn begin<R>(
        &self,
        reserve: impl FnOnce(&Waiting, u64, Option<Arc<Adapter>>) -> Result<Option<R>>,
    ) -> Result<Beginning<R>> {
        let mut state = lock(&self.state);
        let Some(first) = state.prompts.front() else {
            return Ok(Beginning::NothingLeft);
        };
        let Some(reserved) = reserve(first, state.seed, state.adapter.clone())? else {
            return Ok(Beginning::NoRoom);
        };
        let index = first.index as usize;
        state.prompts.pop_front();
        state.phases[index..index + self.width()].fill(Phase::Running);
        self.waits_no_longer(&mut state);
        Ok(Beginning::Begun(reserved))
    }

    /// The prompts that wait need no slots until [`Call::line_up`].
    pub fn stand_aside(&self) {
        let mut state = lock(&self.state);
        self.free_the_waiting(&mut state);
        state.aside = true;
    }

    /// The prompts that wait need slots again.
    pub fn line_up(&self) {
        self.shared.claiming(|| {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.aside) {
                let needed = state.prompts.len() * self.width();
                self.shared.occupied.fetch_add(needed, Relaxed);
            }
        });
    }

    /// Whether the call was cancelled, by its reader or by its flag.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
            || self
                .options
                .cancel
                .as_ref()
                .is_some_and(|flag| flag.is_triggered())
    }

    /// For how long its sequences may go on, if that is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether it has had all its time.
    pub fn is_out_of_time(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// End the prompts that wait if the call was cancelled or has had its time.
    pub fn look(&self) {
        if self.is_cancelled() {
            self.withdraw(FinishReason::Cancelled);
        } else if self.is_out_of_time() {
            self.withdraw(FinishReason::Time);
        }
    }

    /// A sequence that has begun gives its slot up.
    pub fn park(&self, index: u32) {
        let phase = &mut lock(&self.state).phases[index as usize];
        if *phase == Phase::Running {
            *phase = Phase::Parked;
            self.shared.occupied.fetch_sub(1, Relaxed);
        }
    }

    /// A parked sequence needs a slot again.
    pub fn line_up_again(&self, index: u32) {
        self.shared.claiming(|| {
            let phase = &mut lock(&self.state).phases[index as usize];
            if *phase == Phase::Parked {
                *phase = Phase::Running;
                self.shared.occupied.fetch_add(1, Relaxed);
            }
        });
    }

    /// Whether the sequence has ended, perhaps with its call and without the engine's doing.
    pub fn has_ended(&self, index: u32) -> bool {
        lock(&self.state).phases[index as usize] == Phase::Ended
    }

    /// Whether the reader is too far behind.
    pub fn is_behind(&self) -> bool {
        lock(&self.state).behind.is_some()
    }

    /// For how long the reader has been behind.
    pub fn behind_for(&self) -> Option<Duration> {
        let behind = lock(&self.state).behind?;
        Some(behind.since.elapsed())
    }

    /// For how long nothing was read of a call whose reader is behind.
    pub fn unread_for(&self) -> Option<Duration> {
        let behind = lock(&self.state).behind?;
        Some(behind.read.elapsed())
    }

    pub fn push(&self, event: Event) {
        self.update(|state| self.give(state, event));
    }

    /// Queue an event. Without memory for it the call fails: a reader must not miss one and believe
    /// that all is well.
    fn give(&self, state: &mut State, event: Event) {
        if let Err(error) = state.push(event) {
            self.fail_with(state, error);
        }
    }

    /// End a sequence. The slot is free before a reader can see it.
    pub fn finish(&self, finish: Finish) {
        self.update(|state| self.end(state, finish));
    }

    /// End every sequence that has not, and give `error` once what is queued has been read.
    pub fn fail(&self, error: Error) {
        self.update(|state| {
            if !state.ended() {
                self.fail_with(state, error);
            }
        });
    }

    fn fail_with(&self, state: &mut State, error: Error) {
        self.free_the_waiting(state);
        state.prompts = VecDeque::new();
        for index in 0..state.phases.len() {
            self.set_ended(state, index);
        }
        state.error = Some(error);
    }

    /// End the sequences that have not begun.
    pub fn withdraw(&self, reason: FinishReason) {
        self.update(|state| self.withdraw_from(state, reason));
    }

    fn withdraw_from(&self, state: &mut State, reason: FinishReason) {
        let total_ms = self.age_ms();
        self.free_the_waiting(state);
        for Waiting { index, tokens } in std::mem::take(&mut state.prompts) {
            let stats = RequestStats {
                prompt_tokens: tokens.len() as u32,
                queue_ms: total_ms,
                total_ms,
                ..Default::default()
            };
            for index in (index..).take(self.width()) {
                let finish = Finish {
                    index,
                    reason,
                    text: String::new(),
                    stats,
                };
                self.end(state, finish);
            }
        }
    }

    fn end(&self, state: &mut State, finish: Finish) {
        if self.set_ended(state, finish.index as usize) {
            state.cut_short |= finish.reason == FinishReason::Cancelled;
            self.shared.log.write(Level::Debug, || finish.to_string());
            self.give(state, Event::Finish(finish));
        }
    }

    /// Returns whether the sequence had not ended before.
    fn set_ended(&self, state: &mut State, index: usize) -> bool {
        let before = std::mem::replace(&mut state.phases[index], Phase::Ended);
        if before == Phase::Ended {
            return false;
        }
        if before == Phase::Running {
            self.shared.occupied.fetch_sub(1, Relaxed);
        }
        state.unended -= 1;
        if state.ended() {
            state.adapter = None;
            self.waits_no_longer(state);
            if std::mem::take(&mut state.flagged) {
                self.shared.flagged.fetch_sub(1, Relaxed);
            }
        }
        true
    }

    /// The prompts that wait no longer count as needing slots.
    fn free_the_waiting(&self, state: &mut State) {
        if !state.aside {
            let needed = state.prompts.len() * self.width();
            self.shared.occupied.fetch_sub(needed, Relaxed);
        }
    }

    fn waits_no_longer(&self, state: &mut State) {
        if std::mem::take(&mut state.counts) {
            self.shared.waiting_calls.fetch_sub(1, Relaxed);
        }
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
        // A deadline that the clock cannot express is no deadline.
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Ok(Next::Cancelled);
            }
            if state.queue.is_empty() && !state.ended() && self.is_cancelled() {
                self.withdraw_from(&mut state, FinishReason::Cancelled);
                self.ready.notify_all();
            }
            if let Some(event) = state.queue.pop_front() {
                state.queued_bytes -= bytes(&event);
                let caught_up = state.behind.is_some() && !state.holds_over(2);
                match &mut state.behind {
                    behind if caught_up => *behind = None,
                    Some(behind) => behind.read = Instant::now(),
                    None => {}
                }
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
