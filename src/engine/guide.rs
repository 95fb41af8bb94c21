//! Sequences that follow a grammar: their masks are computed by a thread of their own while the
//! model computes the rows that need them.
//!
//! A step's masks hang on the tokens of the step before, and the model's pass does not. So the step
//! is submitted first, with rows of masks that are still empty; [`Guides::collect`] fills them before
//! tokens are chosen.

use super::sequence::Sequence;
use super::shared::lock;
use crate::backend::Step;
use crate::backend::choice::mask_words;
use crate::error::panic_text;
use crate::grammar::{Cursor, Grammar, STACK_BYTES};
use crate::thread::without_signals;
use crate::{Error, Result, Token, reserve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// How far a sequence has come in its grammar.
pub(super) struct Guide {
    cursor: Cursor,
    /// Which tokens may come next; filled by the thread.
    mask: Vec<u32>,
    /// Whether the sequence may end here, by the mask's state.
    accepts: bool,
    /// Whether the text that is returned begins with what is generated.
    begins_text: bool,
    error: Option<Error>,
    ms: f64,
}

impl Guide {
    /// At the beginning. `begins_text`: whether the returned text has nothing in front.
    pub fn new(grammar: &Arc<Grammar>, n_tokens: usize, begins_text: bool) -> Result<Box<Self>> {
        Ok(Box::new(Self {
            cursor: Cursor::new(grammar),
            mask: reserve::filled("a grammar's mask", mask_words(n_tokens), 0)?,
            accepts: false,
            begins_text,
            error: None,
            ms: 0.0,
        }))
    }

    /// Whether the text may end where the last mask was computed.
    pub fn accepts(&self) -> bool {
        self.accepts
    }

    /// Go on behind a token that the mask allowed. Whether nothing can follow it.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        match self.cursor.take(token)? {
            true => self.cursor.is_complete(),
            false => Err(Error::Grammar(format!(
                "its mask allowed token {token}, which it does not take"
            ))),
        }
    }

    /// On the thread.
    fn compute(&mut self) {
        let start = Instant::now();
        let Self { cursor, mask, .. } = self;
        let begins_text = self.begins_text;
        let computed = catch_unwind(AssertUnwindSafe(|| {
            match begins_text {
                true => cursor.mask_to_generate(mask)?,
                false => cursor.mask(mask)?,
            }
            cursor.accepts()
        }));
        match computed {
            Ok(Ok(accepts)) => self.accepts = accepts,
            Ok(Err(error)) => self.error = Some(error),
            Err(panic) => {
                let why = panic_text(&*panic);
                self.error = Some(Error::Grammar(format!("the parser failed: {why}")));
            }
        }
        self.ms = start.elapsed().as_secs_f64() * 1e3;
    }
}

/// A guide on its way to the thread and back.
struct Job {
    /// The sequence's [`Sequence::id`].
    id: u64,
    /// The row of [`Step::masks`].
    row: usize,
    guide: Box<Guide>,
}

/// What the engine's thread and that of the masks share.
struct Desk {
    jobs: Mutex<Jobs>,
    /// Something is to be done, or the thread is to end.
    to_do: Condvar,
    /// All is done.
    done: Condvar,
}

#[derive(Default)]
struct Jobs {
    to_do: Vec<Job>,
    under_way: bool,
    done: Vec<Job>,
    ends: bool,
}

/// The guides that are asked for masks, and the thread that computes these.
pub(super) struct Guides {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    asked: usize,
}

/// What computing the masks of a step took.
#[derive(Default)]
pub(super) struct MaskTimes {
    pub masks: u64,
    /// Computing them.
    pub ms: f64,
    /// Of that, what the engine waited for after the model was done.
    pub wait_ms: f64,
}

impl Guides {
    /// Room for a guide of each slot.
    pub fn new(max_batch_size: usize) -> Result<Self> {
        let room = || reserve::room("the masks of a step", max_batch_size);
        Ok(Self {
            desk: Arc::new(Desk {
                jobs: Mutex::new(Jobs {
                    to_do: room()?,
                    done: room()?,
                    ..Jobs::default()
                }),
                to_do: Condvar::new(),
                done: Condvar::new(),
            }),
            thread: None,
            asked: 0,
        })
    }

    /// Start the thread, unless there is one.
    pub fn start(&mut self) -> Result<()> {
        if self.thread.is_none() {
            let desk = self.desk.clone();
            let thread = without_signals(|| {
                std::thread::Builder::new()
                    .name("llamabi-masks".into())
                    .stack_size(STACK_BYTES)
                    .spawn(move || desk.work())
            });
            self.thread = Some(thread.map_err(|e| Error::thread("the thread of masks", &e))?);
        }
        Ok(())
    }

    /// Have the mask of a sequence's next token computed, as a row of `step`'s masks.
    pub fn ask(&mut self, sequence: &mut Sequence, row: usize) {
        let Some(guide) = sequence.guide.take() else {
            return;
        };
        let id = sequence.id;
        lock(&self.desk.jobs).to_do.push(Job { id, row, guide });
        self.desk.to_do.notify_one();
        self.asked += 1;
    }

    /// Wait for the masks that were asked for, put them into `step`, and give the guides back.
    pub fn collect(&mut self, step: &mut Step, running: &mut [Sequence]) -> MaskTimes {
        let mut times = MaskTimes::default();
        if self.asked == 0 {
            return times;
        }
        let start = Instant::now();
        let jobs = lock(&self.desk.jobs);
        let busy = |jobs: &mut Jobs| jobs.under_way || !jobs.to_do.is_empty();
        let jobs = self.desk.done.wait_while(jobs, busy);
        let mut jobs = jobs.unwrap_or_else(|e| e.into_inner());
        times.wait_ms = start.elapsed().as_secs_f64() * 1e3;
        for Job { id, row, mut guide } in jobs.done.drain(..) {
            times.masks += 1;
            times.ms += guide.ms;
            let Some(sequence) = running.iter_mut().find(|s| s.id == id) else {
                continue;
            };
            let words = guide.mask.len();
            step.masks[row * words..][..words].copy_from_slice(&guide.mask);
            if let Some(error) = guide.error.take() {
                sequence.end = Some(Err(error));
            }
            sequence.guide = Some(guide);
        }
        self.asked = 0;
        times
    }
}

impl Desk {
    fn work(&self) {
        loop {
            let jobs = lock(&self.jobs);
            let idle = |jobs: &mut Jobs| jobs.to_do.is_empty() && !jobs.ends;
            let jobs = self.to_do.wait_while(jobs, idle);
            let mut jobs = jobs.unwrap_or_else(|e| e.into_inner());
            let Some(mut job) = jobs.to_do.pop() else {
                return;
            };
            jobs.under_way = true;
            drop(jobs);
            job.guide.compute();
            let mut jobs = lock(&self.jobs);
            jobs.done.push(job);
            jobs.under_way = false;
            if jobs.to_do.is_empty() {
                self.done.notify_one();
            }
        }
    }
}

impl Drop for Guides {
    fn drop(&mut self) {
        lock(&self.desk.jobs).ends = true;
        self.desk.to_do.notify_one();
        if let Some(thread) = self.thread.take() {
            // It catches its panics itself.
            let _ = thread.join();
        }
    }
}
