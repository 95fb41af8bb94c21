//! What the engine thread and the readers of one call share: its flags and its queue of events.
//!
//! Every sequence of the call ends exactly once, in this module: the engine finishes it, a reader
//! withdraws it before it begins, or it fails with the call. A thread that holds a call's
//! lock must never take the inbox's lock ([`Shared::nudge`]).

mod failing;
mod reader;
mod state;
mod turn;

use super::event::{Event, Finish, FinishReason, RequestStats, Row};
use super::lock::lock;
use super::ngram::Predicted;
use super::os::EventFd;
use super::request::GenerateOptions;
use super::shared::Shared;
use super::text::Stops;
use super::told::Told;
use crate::backend::Adapter;
use crate::log::Level;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How often a waiting thread reads its cancel flag. Triggering a flag is a bare store, which wakes
/// no thread.
pub(super) const FLAG_POLL: Duration = Duration::from_millis(4);

/// Bytes that an `Arc` needs beside its value.
const COUNTS: usize = 2 * size_of::<usize>();

/// One call of [`super::Engine::submit`].
pub(super) struct Call {
    pub options: GenerateOptions,
    pub stops: Stops,
    /// [`GenerateOptions::predicted`], ready to be searched.
    pub predicted: Predicted,
    /// Its figures count from then.
    asked_at: Instant,
    /// When its sequences end, whatever they have.
    deadline: Option<Instant>,
    cancelled: AtomicBool,
    state: Mutex<State>,
    ready: Condvar,
    tokenizer: Arc<dyn Tokenizer>,
    shared: Arc<Shared>,
}

/// What a reader takes from the queue.
enum Item {
    Event(Event),
    Question(Box<Row>),
    /// A sequence has failed, and the end that it has if the reader stops it before it comes here.
    Failure(Box<(Finish, Error)>),
}

/// What a reader gets: an item of the queue, or why there is none.
pub(super) enum Taken {
    Event(Event),
    Question(Box<Row>),
    Timeout,
    Done,
    Cancelled,
}

/// Whether the reader has a question of a sequence.
enum Asked {
    Nothing,
    Open,
    Answered(Box<Row>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The sequence has not begun. If it waits for its turn, its prompt is in [`State::prompts`].
    New,
    /// The sequence has a slot, or waits to get one back. It counts in [`Shared::occupied`].
    Running,
    /// The sequence has given up its slot.
    Parked,
    Ended,
}

/// A prompt that has not begun.
pub(super) struct Waiting {
    /// The number of the prompt's first sequence in the call. The prompt has [`Call::samples`] of
    /// them.
    pub index: u32,
    pub tokens: Vec<Token>,
}

/// Whether a prompt of a call begins.
pub(super) enum Beginning<R> {
    /// All sequences of the prompt begin, with what was reserved for them.
    Begun(R),
    /// No prompt waits: all have begun, or the call has ended.
    NothingLeft,
    /// There is no room for what the prompt needs.
    NoRoom,
}

/// Whether a call in the line for slots may begin another prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Ready,
    /// The call's reader is behind. A prompt that began now would sit out the steps.
    Behind,
    /// No prompt of the call waits any more.
    Gone,
}

/// Since when the reader is behind, and when it last took an event. At first both are the same
/// time.
#[derive(Clone, Copy)]
struct Behind {
    since: Instant,
    read: Instant,
}

struct State {
    queue: VecDeque<Item>,
    queued_bytes: usize,
    /// Set while the reader is too far behind.
    behind: Option<Behind>,
    told: Told,
    /// The question of each sequence. It is empty if the call's sequences are not asked about.
    asked: Vec<Asked>,
    /// How many questions are open.
    open: usize,
    /// When the first open question came, or when the reader last took something if that was later.
    heard: Instant,
    /// The prompts that wait, in order. Their sequences count in [`Shared::occupied`] unless the
    /// call stands aside. A cancellation of the call drops the prompts at once, whatever the engine
    /// does meanwhile.
    prompts: VecDeque<Waiting>,
    aside: bool,
    /// Whether the call counts in [`Shared::waiting_calls`].
    counts: bool,
    /// Whether the call counts in [`Shared::flagged`].
    flagged: bool,
    seed: u64,
    /// The adapter of the sequences. There is none once all sequences have ended.
    adapter: Option<Arc<Adapter>>,
    phases: Vec<Phase>,
    /// The number of sequences that have not ended.
    unended: usize,
    /// Whether a cancellation ended a sequence.
    cut_short: bool,
    /// From which sequence on the call has failed, and why. The reader gets the error when the
    /// sequences before that one have ended, too.
    failed: Option<(u32, Error)>,
    closed: bool,
    /// The descriptor, which is made when a caller first asks for it.
    fd: Option<EventFd>,
    fd_is_set: bool,
}

impl Call {
    /// Makes a call of `n` sequences. None of them is queued yet.
    pub fn new(
        options: GenerateOptions,
        adapter: Option<Arc<Adapter>>,
        n: usize,
        tokenizer: Arc<dyn Tokenizer>,
        shared: Arc<Shared>,
    ) -> Result<Arc<Self>> {
        let told = Told::new(n)?;
        let n_asked = if options.ask_logits { n } else { 0 };
        let mut asked = reserve::room("the sequences of a call", n_asked)?;
        asked.resize_with(n_asked, || Asked::Nothing);
        let mut phases = reserve::room("the sequences of a call", n)?;
        phases.resize(n, Phase::New);
        let stops = Stops::new(&options.stop)?;
        let predicted = Predicted::new(match options.searches_drafts() {
            true => &options.predicted,
            false => &[],
        })?;
        reserve::headroom("a call", size_of::<Self>() + COUNTS)?;
        let now = Instant::now();
        let asked_at = options.asked_at.unwrap_or(now);
        let time = Duration::from_millis(options.max_time_ms.into());
        // A deadline that the clock cannot express is no deadline.
        let deadline = asked_at.checked_add(time).filter(|_| !time.is_zero());
        Ok(Arc::new(Self {
            stops,
            predicted,
            options,
            asked_at,
            deadline,
            cancelled: AtomicBool::new(false),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                queued_bytes: 0,
                behind: None,
                told,
                asked,
                open: 0,
                heard: now,
                prompts: VecDeque::new(),
                aside: false,
                counts: false,
                flagged: false,
                seed: 0,
                adapter,
                phases,
                unended: n,
                cut_short: false,
                failed: None,
                closed: false,
                fd: None,
                fd_is_set: false,
            }),
            ready: Condvar::new(),
            tokenizer,
            shared,
        }))
    }

    /// The number of sequences of each prompt.
    pub fn samples(&self) -> usize {
        self.options.num_return_sequences
    }

    /// The number of slots that each prompt takes: one for each of its sequences, or for each of
    /// its beams if these are more.
    pub fn width(&self) -> usize {
        self.options.width()
    }

    /// The number of slots that a sequence accounts for. The first sequence of a prompt accounts
    /// for those that the others leave over.
    fn slots_of(&self, index: usize) -> usize {
        match index % self.samples() {
            0 => self.width() + 1 - self.samples(),
            _ => 1,
        }
    }

    // ---- the engine's side ----

    /// Whether the call was cancelled by its reader or by its flag.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
            || self
                .options
                .cancel
                .as_ref()
                .is_some_and(|flag| flag.is_triggered())
    }

    /// How much time the call's sequences have left, if their time is bounded.
    pub fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the call has had all its time.
    pub fn is_out_of_time(&self) -> bool {
        self.time_left().is_some_and(|left| left.is_zero())
    }

    /// Ends the prompts that wait if the call was cancelled or has had all its time.
    pub fn look(&self) {
        if self.is_cancelled() {
            self.withdraw(FinishReason::Cancelled);
        } else if self.is_out_of_time() {
            self.withdraw(FinishReason::Time);
        }
    }

    /// The sequences that have slots together with this one. That is the sequence alone or, in a
    /// beam search, all results of the search; `index` is then the first of them.
    fn together(&self, index: u32) -> Range<usize> {
        let n = match self.options.has_beams() {
            true => self.samples(),
            false => 1,
        };
        index as usize..index as usize + n
    }

    /// Notes that a cancellation ended a sequence early, whatever the sequence's own end says.
    pub fn cut_short(&self) {
        self.update(|state| state.cut_short = true);
    }

    /// Why a sequence that has begun must end now; `None` if it need not. It may have ended
    /// already, if its call ended and the engine did not end it, or have failed with its call.
    pub fn ends(&self, index: u32) -> Option<FinishReason> {
        let state = lock(&self.state);
        let has_ended = state.phases[index as usize] == Phase::Ended || state.has_failed(index);
        if self.is_cancelled() || has_ended {
            Some(FinishReason::Cancelled)
        } else if state.told.is_to_end(index) {
            Some(FinishReason::Caller)
        } else {
            self.is_out_of_time().then_some(FinishReason::Time)
        }
    }

    /// Asks the reader about a row of logits.
    pub fn ask(&self, row: Box<Row>) {
        self.update(|state| {
            let index = row.index;
            if state.closed || state.has_failed(index) || !state.told.goes_on(index) {
                return;
            }
            match reserve::queue("the events of a call", &mut state.queue, 1) {
                Ok(()) => {
                    state.queue.push_back(Item::Question(row));
                    state.set_asked(index, Asked::Open);
                }
                Err(error) => self.fail_with(state, error),
            }
        });
    }

    /// Whether the reader has answered the question of a sequence.
    pub fn has_answered(&self, index: u32) -> bool {
        let state = lock(&self.state);
        matches!(state.asked.get(index as usize), Some(Asked::Answered(_)))
    }

    /// Takes the reader's answer if it has come.
    pub fn take_answer(&self, index: u32) -> Option<Box<Row>> {
        let mut state = lock(&self.state);
        if !matches!(state.asked.get(index as usize), Some(Asked::Answered(_))) {
            return None;
        }
        match state.set_asked(index, Asked::Nothing) {
            Asked::Answered(row) => Some(row),
            Asked::Nothing | Asked::Open => None,
        }
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

    /// How long nothing was read, if the reader is behind or has questions.
    pub fn unread_for(&self) -> Option<Duration> {
        let state = lock(&self.state);
        let asked = (state.open > 0).then_some(state.heard);
        let since = state.behind.map(|behind| behind.read).or(asked)?;
        Some(since.elapsed())
    }

    pub fn push(&self, event: Event) {
        self.update(|state| self.give(state, event));
    }

    /// Queues an event. If there is no memory for it, the call fails: a reader must not miss an
    /// event and believe that it has all of them.
    fn give(&self, state: &mut State, event: Event) {
        if let Err(error) = state.push(event) {
            self.fail_with(state, error);
        }
    }

    /// Ends a sequence. Its slot is free before a reader can see the end.
    pub fn finish(&self, finish: Finish) {
        self.update(|state| self.end(state, finish));
    }

    /// Ends the sequences that have not begun.
    pub fn withdraw(&self, reason: FinishReason) {
        self.update(|state| self.withdraw_from(state, reason));
    }

    fn withdraw_from(&self, state: &mut State, reason: FinishReason) {
        self.free_the_waiting(state);
        for Waiting { index, tokens } in std::mem::take(&mut state.prompts) {
            for index in (index..).take(self.samples()) {
                self.end_unbegun(state, index, tokens.len(), reason);
            }
        }
    }

    /// Ends a sequence that has not begun.
    fn end_unbegun(&self, state: &mut State, index: u32, n_prompt: usize, reason: FinishReason) {
        let total_ms = self.age_ms();
        let finish = Finish {
            index,
            reason,
            text: String::new(),
            sum_logprob: 0.0,
            score: 0.0,
            stats: RequestStats {
                prompt_tokens: n_prompt as u32,
                queue_ms: total_ms,
                total_ms,
                ..Default::default()
            },
        };
        self.end(state, finish);
    }

    fn end(&self, state: &mut State, finish: Finish) {
        if self.set_ended(state, finish.index as usize) {
            state.cut_short |= finish.reason == FinishReason::Cancelled;
            let finish = state.told.end(finish);
            self.shared.log.write(Level::Debug, || finish.to_string());
            self.give(state, Event::Finish(finish));
        }
    }

    /// Marks a sequence as ended. Returns whether it had not ended before.
    fn set_ended(&self, state: &mut State, index: usize) -> bool {
        let before = std::mem::replace(&mut state.phases[index], Phase::Ended);
        if before == Phase::Ended {
            return false;
        }
        if before == Phase::Running {
            let slots = self.slots_of(index);
            self.shared.occupied.fetch_sub(slots, Relaxed);
        }
        state.set_asked(index as u32, Asked::Nothing);
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

    /// Milliseconds since the caller asked.
    pub fn age_ms(&self) -> f64 {
        self.asked_at.elapsed().as_secs_f64() * 1e3
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        state.signal();
        self.ready.notify_all();
    }
}
