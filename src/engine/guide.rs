//! Sequences that follow a grammar: their masks are computed by a thread of their own while the
//! model computes the rows that need them.
//!
//! The masks of a step depend on the tokens of the step before, but only the choice of tokens needs
//! them; the pass through the model does not. So the step is submitted first, with masks that are
//! still empty, and [`Guides::collect`] fills them before tokens are chosen.

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
    /// The tokens that may come next. The thread fills it.
    mask: Vec<u32>,
    /// Whether the sequence may end in the state of the mask.
    accepts: bool,
    /// Tokens that end the sequence beside EOS.
    stop_tokens: Vec<Token>,
    /// Whether the returned text begins with the generated text.
    begins_text: bool,
    error: Option<Error>,
    ms: f64,
}

impl Guide {
    /// A guide at the beginning of its grammar. `begins_text`: whether nothing precedes the
    /// generated text in the returned text.
    pub fn new(
        grammar: &Arc<Grammar>,
        n_tokens: usize,
        stop_tokens: &[Token],
        begins_text: bool,
    ) -> Result<Box<Self>> {
        let mut mine = reserve::copy("the stop tokens of a sequence", stop_tokens)?;
        mine.retain(|token| (*token as usize) < n_tokens);
        Ok(Box::new(Self {
            cursor: Cursor::new(grammar),
            mask: reserve::filled("a grammar's mask", mask_words(n_tokens), 0)?,
            accepts: false,
            stop_tokens: mine,
            begins_text,
            error: None,
            ms: 0.0,
        }))
    }

    /// The tokens that may come next, by the last mask.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Whether the text may end in the state for which the last mask was computed.
    pub fn accepts(&self) -> bool {
        self.accepts
    }

    /// Advances by a token that the mask allowed. Returns whether nothing can follow it.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        match self.cursor.take(token)? {
            true => self.cursor.is_complete(),
            false => Err(Error::Grammar(format!(
                "its mask allowed token {token}, which it does not take"
            ))),
        }
    }

    /// The same place once more, for a sequence that goes on apart from here.
    pub fn fork(&self) -> Result<Box<Self>> {
        Ok(Box::new(Self {
            cursor: self.cursor.clone(),
            mask: reserve::copy("a grammar's mask", &self.mask)?,
            stop_tokens: reserve::copy("the stop tokens of a sequence", &self.stop_tokens)?,
            error: None,
            ..*self
        }))
    }

    /// Whether nothing can follow this token, which the mask allows.
    pub fn ends_with(&self, token: Token) -> Result<bool> {
        self.fork()?.take(token)
    }

    /// Computes the mask; runs on the thread.
    fn compute(&mut self) {
        let start = Instant::now();
        let Self {
            cursor,
            mask,
            stop_tokens,
            begins_text,
            ..
        } = self;
        let computed = catch_unwind(AssertUnwindSafe(|| {
            match *begins_text {
                true => cursor.mask_to_generate(mask)?,
                false => cursor.mask(mask)?,
            }
            let accepts = cursor.accepts()?;
            // A stop token is no part of the text, and the text is of the language where it ends.
            for token in &*stop_tokens {
                let (word, bit) = (*token as usize / 32, 1 << (*token % 32));
                match accepts {
                    true => mask[word] |= bit,
                    false => mask[word] &= !bit,
                }
            }
            Ok(accepts)
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
    /// Which of its branches; see [`Sequence::guide_mut`].
    branch: usize,
    /// The row of [`Step::masks`].
    row: usize,
    guide: Box<Guide>,
}

/// The state that the engine's thread shares with the thread that computes masks.
struct Desk {
    jobs: Mutex<Jobs>,
    /// Signalled when there is a job, or when the thread is to end.
    to_do: Condvar,
    /// Signalled when all jobs are done.
    done: Condvar,
}

#[derive(Default)]
struct Jobs {
    to_do: Vec<Job>,
    under_way: bool,
    done: Vec<Job>,
    ends: bool,
}

/// The guides that are asked for masks, and the thread that computes the masks.
pub(super) struct Guides {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    asked: usize,
}

/// The time that the masks of a step took.
#[derive(Default)]
pub(super) struct MaskTimes {
    pub masks: u64,
    /// Time spent computing them.
    pub ms: f64,
    /// The part of it for which the engine waited after the model had ended.
    pub wait_ms: f64,
}

impl Guides {
    /// Allocates room for the guide of each slot.
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

    /// Starts the thread, unless it is running.
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

    /// Asks for the mask of a sequence's next token, which becomes a row of the step's masks.
    pub fn ask(&mut self, sequence: &mut Sequence, branch: usize, row: usize) {
        let Some(guide) = sequence.guide_mut(branch).take() else {
            return;
        };
        let job = Job {
            id: sequence.id,
            branch,
            row,
            guide,
        };
        lock(&self.desk.jobs).to_do.push(job);
        self.desk.to_do.notify_one();
        self.asked += 1;
    }

    /// Waits for the masks that were asked for, puts them into `step`, and gives the guides back.
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
        for job in jobs.done.drain(..) {
            let Job {
                id,
                branch,
                row,
                mut guide,
            } = job;
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
            *sequence.guide_mut(branch) = Some(guide);
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
            // The thread catches its panics itself.
            let _ = thread.join();
        }
    }
}
