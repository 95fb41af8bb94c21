//! Several ranks of this process that compute one model (tensor parallelism), as one
//! [`Run`]. [`crate::backend::exchange`] says what they exchange, [`crate::model::cut`] which part
//! of the weights each has.
//!
//! - [`board`]: how they exchange numbers
//! - [`nodes`]: the NUMA nodes that they stay on
//!
//! Rank 0 runs on the engine's thread, every other rank on a thread of its own. The engine knows
//! nothing of them: the others are told of each step, and of pages that are copied, in the order in
//! which rank 0 hears of them.

pub mod board;
pub mod nodes;

use crate::backend::{Answer, Limits, Run, Step};
use crate::error::panic_text;
use crate::process::Process;
use crate::thread::without_signals;
use crate::{Error, Result, reserve};
use board::Board;
use nodes::Processors;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A rank that is ready to run.
pub struct Rank {
    /// Its share of the model.
    pub run: Box<dyn Run>,
    /// Where its threads stay.
    pub processors: Processors,
}

/// All ranks of a model.
pub struct Ranks {
    own: Rank,
    /// Whether the engine's thread was told where to stay.
    stays: bool,
    others: Vec<Other>,
    board: Arc<Board>,
    process: Process,
}

struct Other {
    /// `None` when it shall end.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    page_bytes: usize,
}

/// What a rank is told to do.
enum Task {
    Step(Arc<Step>),
    Copy(Arc<[(u32, u32)]>),
    Save(Arc<[u32]>, Sender<Result<Vec<u8>>>),
    Load(Arc<[u32]>, Vec<u8>, Sender<Result<()>>),
}

impl Ranks {
    /// Starts the threads of all ranks but the first. `board` is the one of their wires.
    ///
    /// # Errors
    /// [`Error::Thread`] if the system starts no thread.
    pub fn new(ranks: Vec<Rank>, board: Arc<Board>) -> Result<Ranks> {
        let mut ranks = ranks.into_iter();
        let mut all = Ranks {
            own: ranks.next().expect("at least one rank"),
            stays: false,
            others: Vec::new(),
            board: board.clone(),
            process: Process::current(),
        };
        for (i, rank) in ranks.enumerate() {
            let (page_bytes, number) = (rank.run.page_bytes(), i + 1);
            let (tasks, received) = channel();
            let board = board.clone();
            let name = format!("llamabi-rank-{number}");
            let builder = std::thread::Builder::new().name(name);
            let thread = without_signals(|| {
                builder.spawn(move || {
                    Member {
                        number,
                        rank,
                        board,
                    }
                    .serve(&received)
                })
            });
            let thread = thread.map_err(|e| Error::thread(format!("rank {number}"), &e))?;
            all.others.push(Other {
                tasks: Some(tasks),
                thread: Some(thread),
                page_bytes,
            });
        }
        Ok(all)
    }

    /// Tells a rank. One that has ended is noticed in the next exchange.
    fn tell(&self, task: impl Fn() -> Task) {
        for tasks in self.others.iter().filter_map(|other| other.tasks.as_ref()) {
            let _ = tasks.send(task());
        }
    }

    /// The failure of a rank that gave no answer.
    fn lost(&self) -> Error {
        let lost = || Error::Peer("a rank has ended".into());
        self.board.failure().unwrap_or_else(lost)
    }
}

impl Run for Ranks {
    fn submit(&mut self, step: &Step) -> Result<()> {
        if !self.stays {
            self.stays = true;
            nodes::stay_on(&self.own.processors);
        }
        if !self.others.is_empty() {
            let step = Arc::new(step.clone());
            self.tell(|| Task::Step(step.clone()));
        }
        self.own.run.submit(step)
    }

    fn collect(&mut self) -> Result<Answer<'_>> {
        self.own.run.collect()
    }

    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        let shared: Arc<[(u32, u32)]> = pairs.into();
        self.tell(|| Task::Copy(shared.clone()));
        self.own.run.copy_pages(pairs)
    }

    /// A page lies in the ranks' caches in parts.
    fn page_bytes(&self) -> usize {
        let others = self.others.iter().map(|other| other.page_bytes);
        self.own.run.page_bytes() + others.sum::<usize>()
    }

    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        let shared: Arc<[u32]> = pages.into();
        let mut answers = Vec::new();
        self.tell_each(|_, _| {
            let (answer, received) = channel();
            answers.push(received);
            Ok(Task::Save(shared.clone(), answer))
        })?;
        let (own, whole) = (self.own.run.page_bytes(), self.page_bytes());
        let mut part = bytes(pages.len() * own)?;
        self.own.run.save_pages(pages, &mut part)?;
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
        let shared: Arc<[u32]> = pages.into();
        let (own, whole) = (self.own.run.page_bytes(), self.page_bytes());
        let mut answers = Vec::new();
        self.tell_each(|other, at| {
            let (answer, received) = channel();
            answers.push(received);
            let part = gather(from, whole, own + at, other.page_bytes)?;
            Ok(Task::Load(shared.clone(), part, answer))
        })?;
        let part = gather(from, whole, 0, own)?;
        self.own.run.load_pages(pages, &part)?;
        for answer in answers {
            answer.recv().map_err(|_| self.lost())??;
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        self.own.run.limits()
    }
}

impl Ranks {
    /// Tells each rank something of its own; the function gets the bytes of a page that lie with
    /// the other ranks before it, rank 0 left out.
    fn tell_each(&self, mut task: impl FnMut(&Other, usize) -> Result<Task>) -> Result<()> {
        let mut at = 0;
        for other in &self.others {
            let task = task(other, at)?;
            at += other.page_bytes;
            if let Some(tasks) = &other.tasks {
                let _ = tasks.send(task);
            }
        }
        Ok(())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // Ranks that wait for rank 0 wait no longer.
        self.board.fail(Error::Peer("rank 0 has ended".into()));
        for other in &mut self.others {
            drop(other.tasks.take());
            match other.thread.take() {
                // Panics were caught in the thread.
                Some(thread) if self.process.is_current() => drop(thread.join()),
                // A forked child does not have the thread.
                thread => std::mem::forget(thread),
            }
        }
    }
}

/// A rank on its thread.
struct Member {
    number: usize,
    rank: Rank,
    board: Arc<Board>,
}

impl Member {
    /// Does what it is told until nobody can tell it anything. A failure ends the exchanges of all.
    fn serve(mut self, tasks: &Receiver<Task>) {
        nodes::stay_on(&self.rank.processors);
        while let Ok(task) = tasks.recv() {
            if self.board.failure().is_some() {
                // Whoever waits for an answer gets none, and looks at the board.
                continue;
            }
            let run = &mut *self.rank.run;
            let done = catch_unwind(AssertUnwindSafe(|| perform(run, task)));
            let (number, failed) = (self.number, |error| self.board.fail(error));
            match done {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed(error),
                Err(panic) => {
                    let text = panic_text(&*panic);
                    failed(Error::Internal(format!("rank {number}: {text}")));
                }
            }
        }
    }
}

fn perform(run: &mut dyn Run, task: Task) -> Result<()> {
    match task {
        Task::Step(step) => {
            run.submit(&step)?;
            run.collect().map(drop)
        }
        Task::Copy(pairs) => run.copy_pages(&pairs),
        Task::Save(pages, answer) => {
            let saved = bytes(pages.len() * run.page_bytes())
                .and_then(|mut to| run.save_pages(&pages, &mut to).map(|()| to));
            // Nobody waits where rank 0 has failed meanwhile.
            let _ = answer.send(saved);
            Ok(())
        }
        Task::Load(pages, from, answer) => {
            let _ = answer.send(run.load_pages(&pages, &from));
            Ok(())
        }
    }
}

/// Places a rank's parts of pages into whole pages, `at` bytes from the beginning of each.
fn spread(parts: &[u8], part: usize, to: &mut [u8], whole: usize, at: usize) {
    for (from, to) in parts.chunks_exact(part).zip(to.chunks_exact_mut(whole)) {
        to[at..at + part].copy_from_slice(from);
    }
}

/// A rank's parts of whole pages.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Wire;
    use board::Posts;
    use std::time::Duration;

    /// A rank whose pages have so many bytes, and which exchanges the numbers of its steps' tokens.
    struct Fake {
        page: Vec<u8>,
        n_pages: usize,
        wire: Posts,
        sum: Vec<f32>,
        fails_at: Option<i32>,
    }

    impl Run for Fake {
        fn submit(&mut self, step: &Step) -> Result<()> {
            if self.wire.rank() == 1 && self.fails_at == Some(step.tokens[0]) {
                return Err(Error::Device("rank 1: out of order".into()));
            }
            if self.wire.rank() == 1 && self.fails_at == Some(-step.tokens[0]) {
                panic!("out of its mind");
            }
            let mine = vec![step.tokens[0] as f32; self.wire.rank() + 1];
            let sum = &mut self.sum;
            self.wire.all_gather(&mine, &mut |parts| {
                *sum = vec![parts.iter().flat_map(|part| part.iter()).sum()];
            })
        }

        fn collect(&mut self) -> Result<Answer<'_>> {
            Ok(Answer::Logits(&self.sum))
        }

        fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
            let width = self.page.len() / self.n_pages;
            for &(from, to) in pairs {
                let from = from as usize * width;
                self.page
                    .copy_within(from..from + width, to as usize * width);
            }
            Ok(())
        }

        fn page_bytes(&self) -> usize {
            self.page.len() / self.n_pages
        }

        fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
            let width = self.page_bytes();
            for (&page, to) in pages.iter().zip(to.chunks_exact_mut(width)) {
                to.copy_from_slice(&self.page[page as usize * width..][..width]);
            }
            Ok(())
        }

        fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
            let width = self.page_bytes();
            for (&page, from) in pages.iter().zip(from.chunks_exact(width)) {
                self.page[page as usize * width..][..width].copy_from_slice(from);
            }
            Ok(())
        }

        fn limits(&self) -> Limits {
            unreachable!("nobody asks")
        }
    }

    /// Ranks whose pages have `widths` bytes; all bytes of all pages differ.
    fn ranks(widths: &[usize], fails_at: Option<i32>) -> Ranks {
        const PAGES: usize = 4;
        let board = Board::new(widths.len(), 4, Duration::from_secs(60)).unwrap();
        let mut next = 0;
        let fakes = widths.iter().enumerate().map(|(number, &width)| {
            let page = (0..PAGES * width).map(|i| next + i as u8).collect();
            next += (PAGES * width) as u8;
            let fake = Fake {
                page,
                n_pages: PAGES,
                wire: board.wire(number),
                sum: Vec::new(),
                fails_at,
            };
            Rank {
                run: Box::new(fake),
                processors: Vec::new(),
            }
        });
        let fakes = fakes.collect();
        Ranks::new(fakes, board).unwrap()
    }

    fn step(token: i32) -> Step {
        Step {
            tokens: vec![token],
            ..Step::default()
        }
    }

    fn sum(ranks: &mut Ranks, token: i32) -> Result<f32> {
        match ranks.run(&step(token))? {
            Answer::Logits(sum) => Ok(sum[0]),
            Answer::Picks { .. } => unreachable!(),
        }
    }

    #[test]
    fn all_ranks_take_every_step() {
        for n in 1..=4 {
            let mut ranks = ranks(&vec![3; n], None);
            let shares: usize = (1..=n).sum();
            for token in 1..100 {
                let want = (token as usize * shares) as f32;
                assert_eq!(sum(&mut ranks, token).unwrap(), want);
            }
        }
    }

    #[test]
    fn pages_lie_in_parts() {
        let mut ranks = ranks(&[3, 5, 2], None);
        assert_eq!(ranks.page_bytes(), 10);
        let mut saved = vec![0; 20];
        ranks.save_pages(&[2, 0], &mut saved).unwrap();
        let page = |page: u8| -> Vec<u8> {
            let parts = [(0, 3), (12, 5), (32, 2)];
            let part = |(first, width): (u8, u8)| (first + page * width..).take(width.into());
            parts.into_iter().flat_map(part).collect()
        };
        assert_eq!(saved, [page(2), page(0)].concat());
        // Page 1 becomes what page 2 was, by two ways.
        ranks.load_pages(&[1], &saved[..10]).unwrap();
        ranks.copy_pages(&[(1, 3)]).unwrap();
        let mut again = vec![0; 20];
        ranks.save_pages(&[3, 0], &mut again).unwrap();
        assert_eq!(again, saved);
    }

    #[test]
    fn a_failure_of_a_rank_is_everybodys() {
        for fails_at in [7, -7] {
            let mut ranks = ranks(&[3, 3], Some(fails_at));
            for token in 1..7 {
                assert_eq!(sum(&mut ranks, token).unwrap(), 3.0 * token as f32);
            }
            let sentence = sum(&mut ranks, 7).unwrap_err().to_string();
            let want = match fails_at {
                7 => "rank 1: out of order",
                _ => "internal error: rank 1: out of its mind",
            };
            assert_eq!(sentence, want);
            // And so it stays, for whatever is asked.
            assert_eq!(sum(&mut ranks, 8).unwrap_err().to_string(), want);
            let saved = ranks.save_pages(&[0], &mut [0; 6]);
            assert_eq!(saved.unwrap_err().to_string(), want);
            let loaded = ranks.load_pages(&[0], &[0; 6]);
            assert_eq!(loaded.unwrap_err().to_string(), want);
        }
    }

    /// Rank 1 waits for rank 0, which goes away instead.
    #[test]
    fn nobody_waits_for_a_rank_that_has_gone() {
        let ranks = ranks(&[3, 3, 3], None);
        let waits = Arc::new(step(1));
        ranks.tell(|| Task::Step(waits.clone()));
        std::thread::sleep(Duration::from_millis(10));
        drop(ranks);
    }
}
