//! Sequences that follow a grammar: their masks are computed by a thread of their own while the
//! model computes the rows that need them.
//!
//! The masks of a step depend on the tokens of the step before, but only the choice of tokens needs
//! them; the pass through the model does not. So the step is submitted first, with masks that are
//! still empty, and [`Guides::collect`] fills them before tokens are chosen.
//!
//! What a grammar says of drafts is needed before the step is planned. The engine waits for that, a
//! few microseconds: the thread has room for a parser that recurses, and the engine's has not.

use super::guide::{Guide, Work};
use super::lock::lock;
use super::sequence::Sequence;
use crate::backend::Choices;
use crate::grammar::STACK_BYTES;
use crate::thread;
use crate::{Error, Result, Token, reserve};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// A guide on its way to the thread and back.
struct Job {
    /// The sequence's [`Sequence::id`].
    id: u64,
    /// Which of its branches; see [`Sequence::guide_mut`].
    branch: usize,
    /// The first of its rows of [`Choices::masks`].
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
    /// The part of it for which the engine waited, after the model had ended or, if the model
    /// chooses the tokens, while it computed.
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
            let builder = std::thread::Builder::new().name("llamabi-masks".into());
            let thread = thread::start(builder.stack_size(STACK_BYTES), move || desk.work());
            self.thread = Some(thread.map_err(|e| Error::thread("the thread of masks", &e))?);
        }
        Ok(())
    }

    /// Asks for the mask of a sequence's next token and those behind its drafts. They become the
    /// rows of [`Choices::masks`] from `row` on.
    pub fn ask(&mut self, sequence: &mut Sequence, branch: usize, row: usize, drafts: &[Token]) {
        let (id, guide) = (sequence.id, sequence.guide_mut(branch).take());
        if let Some(mut guide) = guide {
            guide.want(Work::Masks, drafts);
            self.send(Job {
                id,
                branch,
                row,
                guide,
            });
        }
    }

    /// Asks about the drafts of the next step of the sequence `id`, before it is planned.
    pub fn scout(&mut self, id: u64, guide: &mut Option<Box<Guide>>, work: Work, drafts: &[Token]) {
        if let Some(mut guide) = guide.take() {
            guide.want(work, drafts);
            let (branch, row) = (0, 0);
            self.send(Job {
                id,
                branch,
                row,
                guide,
            });
        }
    }

    fn send(&mut self, job: Job) {
        lock(&self.desk.jobs).to_do.push(job);
        self.desk.to_do.notify_one();
        self.asked += 1;
    }

    /// Waits for the masks that were asked for, puts them into `choices`, and gives the guides
    /// back.
    pub fn collect(&mut self, choices: &mut Choices, running: &mut [Sequence]) -> MaskTimes {
        let mut times = MaskTimes::default();
        let start = Instant::now();
        self.wait(running, |row, guide, sequence| {
            // The first is given back when all are done.
            if times.masks == 0 {
                times.wait_ms = start.elapsed().as_secs_f64() * 1e3;
            }
            times.masks += guide.n_masks() as u64;
            times.ms += guide.ms();
            if let Some(sequence) = sequence {
                // A row without one allows nothing, and nobody asks what it gives.
                let masks = guide.masks();
                choices.masks[row * guide.words()..][..masks.len()].copy_from_slice(masks);
                if let Some(error) = guide.take_error() {
                    sequence.end = Some(Err(error));
                }
            }
        });
        times
    }

    /// Waits for what was asked about drafts, and gives the guides back.
    pub fn collect_drafts(&mut self, running: &mut [Sequence]) {
        self.wait(running, |_, _, _| ());
    }

    /// Waits until all is done that was asked for, and gives the guides back, each after its `done`
    /// was called with the row and the sequence, if that is still there.
    fn wait(
        &mut self,
        running: &mut [Sequence],
        mut done: impl FnMut(usize, &mut Guide, Option<&mut Sequence>),
    ) {
        if self.asked == 0 {
            return;
        }
        let jobs = lock(&self.desk.jobs);
        let busy = |jobs: &mut Jobs| jobs.under_way || !jobs.to_do.is_empty();
        let jobs = self.desk.done.wait_while(jobs, busy);
        let mut jobs = jobs.unwrap_or_else(|e| e.into_inner());
        for job in jobs.done.drain(..) {
            let Job {
                id,
                branch,
                row,
                mut guide,
            } = job;
            let sequence = running.iter_mut().find(|s| s.id == id);
            match sequence {
                Some(sequence) => {
                    done(row, &mut guide, Some(&mut *sequence));
                    *sequence.guide_mut(branch) = Some(guide);
                }
                None => done(row, &mut guide, None),
            }
        }
        self.asked = 0;
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
