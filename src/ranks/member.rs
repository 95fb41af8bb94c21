//! A rank on a thread of its own: what it is told, and doing it.

use super::board::Board;
use super::{Rank, bytes, nodes, of_rank};
use crate::backend::{Run, Step};
use crate::error::panic_text;
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

/// What a rank is told to do.
pub(super) enum Task {
    Step(Arc<Step>),
    Copy(Arc<[(u32, u32)]>),
    Save(Arc<[u32]>, Sender<Result<Vec<u8>>>),
    Load(Arc<[u32]>, Vec<u8>, Sender<Result<()>>),
}

/// A rank on its thread.
pub(super) struct Member {
    pub number: usize,
    pub rank: Rank,
    pub board: Arc<Board>,
}

impl Member {
    /// Does what it is told until nobody can tell it anything. A failure ends the exchanges of all.
    pub fn serve(mut self, tasks: &Receiver<Task>) {
        self.rank.processors.as_deref().map(nodes::stay_on);
        while let Ok(task) = tasks.recv() {
            if self.board.failure().is_some() {
                // Whoever waits for an answer gets none, and looks at the board.
                continue;
            }
            let (run, number) = (&mut *self.rank.run, self.number);
            let done = catch_unwind(AssertUnwindSafe(|| perform(run, number, task)));
            let failed = |error| self.board.fail(of_rank(error, number));
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

fn perform(run: &mut dyn Run, number: usize, task: Task) -> Result<()> {
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
            let _ = answer.send(saved.map_err(|error| of_rank(error, number)));
            Ok(())
        }
        Task::Load(pages, from, answer) => {
            let loaded = run.load_pages(&pages, &from);
            let _ = answer.send(loaded.map_err(|error| of_rank(error, number)));
            Ok(())
        }
    }
}
