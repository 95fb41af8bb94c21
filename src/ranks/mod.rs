//! Several ranks compute one model (tensor parallelism) and act as one [`Run`]. This module has the
//! ranks of one process. [`crate::backend::exchange`] says what they exchange, and
//! [`crate::model::cut`] which part of the weights each rank has.
//!
//! - [`adapters`]: each rank's part of the adapters that requests choose
//! - [`board`]: how ranks exchange numbers
//! - `member`: a rank on a thread of its own
//! - [`nodes`]: the NUMA nodes that ranks stay on
//! - [`figures`]: figures about running ranks
//! - `told`: a step, as the other ranks are told of it
//! - [`processes`]: ranks in separate processes
//!
//! Rank 0 runs on the engine's thread, every other rank on a thread of its own. The engine does not
//! know of the other ranks. They are told of each step, and of each copy of pages, in the order in
//! which rank 0 gets them.

pub mod adapters;
pub mod board;
pub mod figures;
mod member;
pub mod nodes;
pub mod processes;
#[cfg(test)]
mod tests;
mod told;

use crate::backend::{Answer, Choices, Limits, Run, Step};
use crate::process::Process;
use crate::thread;
use crate::{Error, Result, reserve};
use board::Board;
use member::{Member, Task};
use nodes::Processors;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use told::{Chosen, Spares};

/// The most tasks that can wait for a rank. Their places are allocated with the rank. Fewer tasks
/// than this ever wait: the steps and copies that [`told`] counts, and one task of saving or
/// loading. Rank 0 could also wait here without a deadlock, because a rank that waits for rank 0
/// waits for something that rank 0 has already submitted.
const TASKS: usize = 16;

/// A channel for an answer takes at least this many bytes. Whether they are available is checked
/// first, because a channel of stable Rust cannot report that there is no room for it.
const CHANNEL_BYTES: usize = 4096;

const ANSWERS: &str = "the answers of other ranks";
const PAGES: &str = "pages of a sequence on several ranks";

/// A rank that is ready to run.
pub struct Rank {
    /// Its share of the model.
    pub run: Box<dyn Run>,
    /// The processors that its threads stay on, if they stay on any.
    pub processors: Option<Processors>,
}

/// Names the rank in an error's message, unless the message names it already.
pub fn of_rank(error: Error, rank: usize) -> Error {
    let named = |what: String| format!("rank {rank}: {what}");
    match error {
        Error::NoMemory {
            what,
            needed,
            available,
            limit,
        } => Error::NoMemory {
            what: named(what),
            needed,
            available,
            limit,
        },
        Error::Refused {
            what,
            needed,
            limit,
        } => Error::Refused {
            what: named(what),
            needed,
            limit,
        },
        Error::DeviceMemory {
            what,
            needed,
            available,
        } => Error::DeviceMemory {
            what: named(what),
            needed,
            available,
        },
        Error::Device(what) => Error::Device(named(what)),
        error => error,
    }
}

/// All ranks of a model. Devices end their exchanges together. So rank 0 ends (`own` is dropped)
/// while the other ranks end, and waits for their threads only afterwards.
pub struct Ranks {
    own: Rank,
    /// Whether the engine's thread was told where to stay.
    stays: bool,
    /// How many steps were submitted but not collected.
    under_way: usize,
    others: Vec<Other>,
    chosen: Chosen,
    board: Arc<Board>,
}

struct Other {
    /// `None` if the rank is to end.
    tasks: Option<SyncSender<Task>>,
    spares: Spares,
    thread: Option<JoinHandle<()>>,
    page_bytes: usize,
    process: Process,
}

impl Ranks {
    /// Starts the threads of all ranks except the first. `board` is the board that their wires use.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system starts no thread, [`Error::Refused`].
    pub fn new(ranks: Vec<Rank>, board: Arc<Board>) -> Result<Ranks> {
        let mut ranks = ranks.into_iter();
        let own = ranks.next().expect("at least one rank");
        let limits = own.run.limits();
        let mut all = Ranks {
            own,
            stays: false,
            under_way: 0,
            others: Vec::new(),
            chosen: Chosen::new(&limits)?,
            board: board.clone(),
        };
        for (i, rank) in ranks.enumerate() {
            let (page_bytes, number) = (rank.run.page_bytes(), i + 1);
            let (tasks, received) = sync_channel(TASKS);
            let spares = Spares::new(&limits)?;
            let (board, mine) = (board.clone(), spares.clone());
            let name = format!("llamabi-rank-{number}");
            let builder = std::thread::Builder::new().name(name);
            let thread = thread::start(builder, move || {
                Member {
                    number,
                    rank,
                    board,
                    spares: mine,
                    under_way: 0,
                }
                .serve(&received)
            });
            let thread = thread.map_err(|e| Error::thread(format!("rank {number}"), &e))?;
            all.others.push(Other {
                tasks: Some(tasks),
                spares,
                thread: Some(thread),
                page_bytes,
                process: Process::current(),
            });
        }
        Ok(all)
    }

    /// Tells the other ranks to begin a step, in which they will wait for rank 0. Each rank gets
    /// only its own parts of adapters. Reason: whoever drops a part last waits for the part's
    /// device. A rank that waited for another rank's device would wait for a rank that waits for
    /// it.
    fn begin(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        // The step is counted first: if the rest fails, `drop` releases the ranks that were told
        // already.
        self.under_way += 1;
        if self.others.is_empty() {
            return Ok(());
        }
        let choices = self.chosen.set(choices)?;
        for (i, other) in self.others.iter().enumerate() {
            let mut told = other.spares.take();
            told.set_step(step)?;
            adapters::put_parts(&step.adapters, i + 1, &mut told.step.adapters)?;
            other.tell(Task::Step(told, choices.clone()));
        }
        Ok(())
    }

    /// The failure of a rank that gave no answer.
    fn lost(&self) -> Error {
        let lost = || Error::Peer("a rank has ended".into());
        self.board.failure().unwrap_or_else(lost)
    }
}

impl Run for Ranks {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        if !self.stays {
            self.stays = true;
            self.own.processors.as_deref().map(nodes::stay_on);
        }
        self.begin(step, choices)?;
        self.own.run.submit(step, choices)
    }

    fn awaits_masks(&self) -> bool {
        self.own.run.awaits_masks()
    }

    /// There are masks to give only if there is just one rank ([`crate::backend::gpu`]).
    fn give_masks(&mut self, masks: &[u32]) {
        self.own.run.give_masks(masks);
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        let (others, board) = (&self.others, &self.board);
        let outcome = self.own.run.collect();
        self.under_way = self.under_way.saturating_sub(1);
        outcome.map_err(|error| failed(others, board, error))
    }

    fn can_follow(&self) -> bool {
        self.own.run.can_follow()
    }

    fn reserve_history(&mut self, n: usize) -> Result<()> {
        match self.others.is_empty() {
            true => Ok(()),
            false => self.chosen.reserve_history(n),
        }
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        for other in &self.others {
            let mut told = other.spares.take();
            told.set_pairs(pairs)?;
            other.tell(Task::Copy(told));
        }
        let outcome = self.own.run.copy_pages(pairs);
        outcome.map_err(|error| failed(&self.others, &self.board, error))
    }

    /// Each rank's cache has a part of a page.
    fn page_bytes(&self) -> usize {
        let others = self.others.iter().map(|other| other.page_bytes);
        self.own.run.page_bytes() + others.sum::<usize>()
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        let mut answers = reserve::room(ANSWERS, self.others.len())?;
        self.tell_each(|_, _| {
            let pages = reserve::copy(PAGES, pages)?;
            reserve::headroom(ANSWERS, CHANNEL_BYTES)?;
            let (answer, received) = channel();
            answers.push(received);
            Ok(Task::Save(pages, answer))
        })?;
        let (own, whole) = (self.own.run.page_bytes(), self.page_bytes());
        let mut part = bytes(pages.len() * own)?;
        let saved = self.own.run.save_pages(pages, &mut part);
        saved.map_err(|error| failed(&self.others, &self.board, error))?;
        let mut at = 0;
        spread(&part, own, to, whole, at);
        at += own;
        for (other, answer) in self.others.iter().zip(answers) {
            let part = answer.recv().map_err(|_| self.lost())??;
            spread(&part, other.page_bytes, to, whole, at);
            at += other.page_bytes;
        }
        Ok(())
    }

    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        let (own, whole) = (self.own.run.page_bytes(), self.page_bytes());
        let mut answers = reserve::room(ANSWERS, self.others.len())?;
        self.tell_each(|other, at| {
            let pages = reserve::copy(PAGES, pages)?;
            let part = gather(from, whole, own + at, other.page_bytes)?;
            reserve::headroom(ANSWERS, CHANNEL_BYTES)?;
            let (answer, received) = channel();
            answers.push(received);
            Ok(Task::Load(pages, part, answer))
        })?;
        let part = gather(from, whole, 0, own)?;
        let loaded = self.own.run.load_pages(pages, &part);
        loaded.map_err(|error| failed(&self.others, &self.board, error))?;
        for answer in answers {
            answer.recv().map_err(|_| self.lost())??;
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.own.run.limits()
    }

    /// The threads of rank 0, because the answer is rank 0's.
    fn n_threads(&self) -> usize {
        self.own.run.n_threads()
    }

    fn least_prompt_rows(&self) -> usize {
        self.own.run.least_prompt_rows()
    }
}

impl Ranks {
    /// Gives each other rank a task of its own. The function gets the rank, and the number of bytes
    /// of a page that the other ranks before it have, without rank 0.
    fn tell_each(&self, mut task: impl FnMut(&Other, usize) -> Result<Task>) -> Result<()> {
        let mut at = 0;
        for other in &self.others {
            let task = task(other, at)?;
            at += other.page_bytes;
            other.tell(task);
        }
        Ok(())
    }
}

impl Other {
    /// Gives the rank a task. If the rank has ended, the next exchange notices it.
    fn tell(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if self.under_way > 0 {
            // This ends the waiting of ranks that wait for rank 0.
            self.board.fail(Error::Peer("rank 0 has ended".into()));
        }
        self.others
            .iter_mut()
            .for_each(|other| drop(other.tasks.take()));
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        match self.thread.take() {
            // Panics were caught in the thread.
            Some(thread) if self.process.is_current() => drop(thread.join()),
            // A forked child does not have the thread.
            thread => std::mem::forget(thread),
        }
    }
}

/// The error of a step in which rank 0 has failed with `error`: the failure of whichever rank
/// failed first. This also ends the other ranks' waiting for rank 0.
fn failed(others: &[Other], board: &Board, error: Error) -> Error {
    if others.is_empty() {
        return error;
    }
    board.fail(of_rank(error.clone(), 0));
    board.failure().unwrap_or(error)
}

/// Copies a rank's parts of pages into whole pages, `at` bytes from the beginning of each page.
fn spread(parts: &[u8], part: usize, to: &mut [u8], whole: usize, at: usize) {
    for (from, to) in parts.chunks_exact(part).zip(to.chunks_exact_mut(whole)) {
        to[at..at + part].copy_from_slice(from);
    }
}

/// Copies a rank's parts out of whole pages.
fn gather(from: &[u8], whole: usize, at: usize, part: usize) -> Result<Vec<u8>> {
    let mut parts = Vec::new();
    let pages = from.chunks_exact(whole);
    reserve::vec("a rank's parts of pages", &mut parts, pages.len() * part)?;
    pages.for_each(|page| parts.extend_from_slice(&page[at..at + part]));
    Ok(parts)
}

fn bytes(len: usize) -> Result<Vec<u8>> {
    reserve::filled("a rank's parts of pages", len, 0)
}
