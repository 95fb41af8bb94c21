//! How the ranks of one process exchange numbers: each rank posts its own on a board that all can
//! read.
//!
//! A rank has two slots and uses them in turn, so an exchange needs one wait and no barrier. When a
//! rank posts for the third time, it has read what all ranks posted for the second time. They had
//! read all first posts before that. So nobody still reads the slot that is written again, and the
//! locks of the slots are always free. The locks exist so that memory safety does not depend on
//! this argument.

use super::figures::Figures;
use crate::backend::{Waited, Watch, Wire};
use crate::{Error, Result, reserve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The most ranks of a process.
pub const MAX_RANKS: usize = 64;

/// How long a rank that waits for another rank spins before it yields its processor: longer than
/// the other rank usually takes, but short, because ranks may share processors.
const SPIN: Duration = Duration::from_micros(100);

/// A rank that has waited for this long sleeps between two looks.
const YIELD: Duration = Duration::from_millis(5);

/// A number with cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

/// The board on which the ranks of a process post numbers for one another.
pub struct Board {
    slots: Vec<[RwLock<Vec<f32>>; 2]>,
    /// How often each rank has posted.
    posted: Vec<Line<AtomicU64>>,
    has_failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    timeout: Duration,
    figures: Arc<Figures>,
}

impl Board {
    /// A board for `ranks` ranks, which post at most `most` numbers at a time. A rank that waits
    /// for another rank for longer than `timeout` fails, and all others with it.
    pub fn new(
        ranks: usize,
        most: usize,
        timeout: Duration,
        figures: Arc<Figures>,
    ) -> Result<Arc<Board>> {
        let slot = || -> Result<RwLock<Vec<f32>>> {
            let mut numbers = Vec::new();
            reserve::vec("numbers that ranks exchange", &mut numbers, most)?;
            Ok(RwLock::new(numbers))
        };
        let slots = (0..ranks).map(|_| Ok([slot()?, slot()?]));
        Ok(Arc::new(Board {
            slots: slots.collect::<Result<_>>()?,
            posted: (0..ranks).map(|_| Line(AtomicU64::new(0))).collect(),
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            timeout,
            figures,
        }))
    }

    /// Bytes that [`Board::new`] allocates.
    pub fn bytes(ranks: usize, most: usize) -> u64 {
        (2 * 4 * ranks as u64).saturating_mul(most as u64)
    }

    /// The wire of a rank. Each rank takes it once.
    pub fn wire(self: &Arc<Self>, rank: usize) -> Posts {
        Posts {
            board: self.clone(),
            rank,
            turn: 0,
        }
    }

    /// Makes all exchanges fail with `error` from now on, including those that wait. The first
    /// failure counts.
    pub fn fail(&self, error: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.get_or_insert(error);
        self.has_failed.store(true, Ordering::Release);
    }

    /// The failure that ended the exchanges.
    pub fn failure(&self) -> Option<Error> {
        let failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.clone()
    }

    fn check(&self) -> Result<()> {
        match self.has_failed.load(Ordering::Acquire) {
            true => Err(self.failure().expect("there is one")),
            false => Ok(()),
        }
    }

    /// Waits until `rank` has posted for the `turn`th time.
    fn wait(&self, rank: usize, turn: u64) -> Result<()> {
        let mut clock = Waited::default();
        loop {
            for _ in 0..64 {
                if self.posted[rank].0.load(Ordering::Acquire) >= turn {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            self.check()?;
            let waited = clock.look();
            if waited > self.timeout {
                let (n, ms) = (self.posted.len(), self.timeout.as_millis());
                let silent = format!("rank {rank} of {n} has not been heard of for {ms} ms");
                self.fail(Error::Peer(silent));
            } else if waited > YIELD {
                std::thread::sleep(SPIN);
            } else if waited > SPIN {
                std::thread::yield_now();
            }
        }
    }
}

/// A rank's wire to the others of its process.
pub struct Posts {
    board: Arc<Board>,
    rank: usize,
    turn: u64,
}

/// A rank that waits for its device.
struct Watched {
    board: Arc<Board>,
    rank: usize,
}

impl Watch for Watched {
    /// An exchange of devices does not tell which rank is missing, so no rank is blamed.
    fn look(&self, waited: Duration) -> Result<()> {
        let Watched { board, rank } = self;
        if waited > board.timeout {
            let (n, ms) = (board.posted.len(), board.timeout.as_millis());
            board.fail(Error::Peer(format!(
                "rank {rank} of {n} has waited for its device, and so perhaps for another rank, \
                 for {ms} ms"
            )));
        }
        board.check()
    }

    fn timeout(&self) -> Duration {
        self.board.timeout
    }
}

impl Wire for Posts {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.board.posted.len()
    }

    fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(Watched {
            board: self.board.clone(),
            rank: self.rank,
        })
    }

    fn all_gather(
        &mut self,
        mine: &[f32],
        _len: &dyn Fn(usize) -> usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        let board = &*self.board;
        board.check()?;
        let start = Instant::now();
        self.turn += 1;
        let side = (self.turn % 2) as usize;
        {
            let slot = &board.slots[self.rank][side];
            let mut slot = slot.write().unwrap_or_else(|e| e.into_inner());
            slot.clear();
            reserve::vec("numbers that ranks exchange", &mut slot, mine.len())?;
            slot.extend_from_slice(mine);
        }
        let posted = &board.posted[self.rank].0;
        posted.store(self.turn, Ordering::Release);
        let size = self.size();
        (0..size).try_for_each(|rank| board.wait(rank, self.turn))?;
        board.figures.add_exchange(self.rank, start.elapsed());
        let read = |rank: usize| {
            let slot = board.slots.get(rank)?[side].read();
            Some(slot.unwrap_or_else(|e| e.into_inner()))
        };
        let posts: [Option<RwLockReadGuard<'_, Vec<f32>>>; MAX_RANKS] = std::array::from_fn(read);
        let parts: [&[f32]; MAX_RANKS] =
            std::array::from_fn(|rank| posts[rank].as_ref().map_or(&[][..], |post| &post[..]));
        take(&parts[..size]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn board(ranks: usize, timeout: Duration) -> Arc<Board> {
        Board::new(ranks, 4, timeout, Arc::new(Figures::new(ranks))).unwrap()
    }

    #[test]
    fn all_ranks_get_all_numbers_in_order() {
        for ranks in [1, 2, 3, 5] {
            let board = board(ranks, LONG);
            std::thread::scope(|scope| {
                for rank in 0..ranks {
                    let mut wire = board.wire(rank);
                    scope.spawn(move || {
                        for turn in 0..200u32 {
                            // Ranks give different amounts of numbers: sometimes none, and
                            // sometimes more than the board was made for.
                            let len = |rank: usize| (turn as usize * 7 + rank) % 9;
                            let number = |rank: usize| (turn * 64) as f32 + rank as f32;
                            let mine = vec![number(rank); len(rank)];
                            let mut seen = 0;
                            wire.all_gather(&mine, &len, &mut |parts| {
                                for (rank, part) in parts.iter().enumerate() {
                                    assert_eq!(*part, vec![number(rank); len(rank)]);
                                    seen += 1;
                                }
                            })
                            .unwrap();
                            assert_eq!(seen, ranks);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_silent_rank_is_named_within_the_time() {
        let board = board(2, Duration::from_millis(30));
        let start = Instant::now();
        let error = board
            .wire(0)
            .all_gather(&[1.0], &|_| 1, &mut |_| panic!("nothing came"));
        assert!(start.elapsed() < LONG);
        let sentence = error.unwrap_err().to_string();
        assert_eq!(sentence, "rank 1 of 2 has not been heard of for 30 ms");
        // The other rank gets the failure too, although no rank is silent for it.
        let error = board
            .wire(1)
            .all_gather(&[1.0], &|_| 1, &mut |_| panic!("it failed"));
        assert_eq!(error.unwrap_err().to_string(), sentence);
    }

    #[test]
    fn a_failure_ends_a_wait() {
        let board = board(2, LONG);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| board.wire(0).all_gather(&[1.0], &|_| 1, &mut |_| {}));
            std::thread::sleep(Duration::from_millis(20));
            board.fail(Error::Device("rank 1: out of luck".into()));
            board.fail(Error::Device("later".into()));
            let error = waits.join().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "rank 1: out of luck");
        });
    }
}
