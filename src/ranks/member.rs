//! A rank on a thread of its own: its tasks, and how it performs them.

use super::board::Board;
use super::told::{Spares, Told};
use super::{Rank, bytes, nodes, of_rank};
use crate::backend::Choices;
use crate::error::panic_text;
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long a rank that has begun a step waits for a step that follows it. Only then does it wait
/// for the answer of the begun step, which it needs just to notice a failure. Rank 0 announces a
/// step that follows at once.
const AHEAD: Duration = Duration::from_millis(1);

/// A task that a rank is told to perform.
pub(super) enum Task {
    Step(Told, Arc<Choices>),
    Copy(Told),
    Save(Vec<u32>, Sender<Result<Vec<u8>>>),
    Load(Vec<u32>, Vec<u8>, Sender<Result<()>>),
}

/// A rank on its thread.
pub(super) struct Member {
    pub number: usize,
    pub rank: Rank,
    pub board: Arc<Board>,
    /// Where it gives back the memory of what it was told.
    pub spares: Spares,
    /// How many steps were begun whose answers were not read.
    pub under_way: usize,
}

impl Member {
    /// Performs tasks until nobody can send any more. A failure ends the exchanges of all ranks.
    pub fn serve(mut self, tasks: &Receiver<Task>) {
        self.rank.processors.as_deref().map(nodes::stay_on);
        loop {
            let told = match self.under_way {
                0 => tasks.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => tasks.recv_timeout(AHEAD),
            };
            if self.board.failure().is_some() {
                // A thread that waits for an answer gets none, and looks at the board.
                self.under_way = 0;
                match told {
                    Err(RecvTimeoutError::Disconnected) => return,
                    _ => continue,
                }
            }
            let number = self.number;
            let done = catch_unwind(AssertUnwindSafe(|| match told {
                Ok(task) => self.perform(task).map(|()| true),
                Err(RecvTimeoutError::Timeout) => self.collect().map(|()| true),
                Err(RecvTimeoutError::Disconnected) => self.finish().map(|()| false),
            }));
            let failed = |error| self.board.fail(of_rank(error, number));
            match done {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => failed(error),
                Err(panic) => {
                    let text = panic_text(&*panic);
                    failed(Error::Internal(format!("rank {number}: {text}")));
                }
            }
        }
    }

    fn perform(&mut self, task: Task) -> Result<()> {
        let number = self.number;
        match task {
            Task::Step(told, choices) => {
                if !told.step.follows {
                    self.finish()?;
                }
                while self.under_way > 1 {
                    self.collect()?;
                }
                self.rank.run.submit(&told.step, &choices)?;
                drop(choices);
                self.spares.give_back(told);
                self.under_way += 1;
                match self.rank.run.can_follow() {
                    true => Ok(()),
                    false => self.finish(),
                }
            }
            Task::Copy(told) => {
                self.rank.run.copy_pages(&told.pairs)?;
                self.spares.give_back(told);
                Ok(())
            }
            Task::Save(pages, answer) => {
                let run = &mut self.rank.run;
                let saved = bytes(pages.len() * run.page_bytes())
                    .and_then(|mut to| run.save_pages(&pages, &mut to).map(|()| to));
                // Nobody waits for the answer if rank 0 has failed meanwhile.
                let _ = answer.send(saved.map_err(|error| of_rank(error, number)));
                Ok(())
            }
            Task::Load(pages, from, answer) => {
                let loaded = self.rank.run.load_pages(&pages, &from);
                let _ = answer.send(loaded.map_err(|error| of_rank(error, number)));
                Ok(())
            }
        }
    }

    /// Waits for the oldest step that is under way.
    fn collect(&mut self) -> Result<()> {
        self.under_way -= 1;
        self.rank.run.collect().map(drop)
    }

    /// Waits for all steps that are under way.
    fn finish(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.collect()?;
        }
        Ok(())
    }
}
