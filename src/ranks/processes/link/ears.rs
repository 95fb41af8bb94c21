//! How a rank listens while it waits: the messages of the other ranks, and how long these have been
//! silent.

use crate::error::Kind as ErrorKind;
use crate::ranks::figures::Figures;
use crate::ranks::processes::adapters::Answer;
use crate::ranks::processes::comm::{Comm, Moved};
use crate::ranks::processes::message::{Kind, Message};
use crate::{Cancel, Error, reserve};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a rank that waits looks for messages.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// The longest time between two looks that counts as another rank's silence. If this process was
/// stopped for longer, the others were not silent.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// What came, or why nothing more will come.
pub(super) type Heard<T> = Result<T, Stop>;

/// Why a rank no longer waits.
#[derive(Debug)]
pub(super) enum Stop {
    /// Another rank has said that it failed.
    Failed(usize, ErrorKind, String),
    /// Rank 0 has given up an exchange and asks who is there.
    Asked,
    /// Nothing came in time, or another rank says that nothing came.
    Silent,
    /// Nothing was heard of a rank for too long, outside of an exchange.
    Quiet,
    /// The host's function for exchanges failed, with its number.
    Exchange(i32),
    /// The connection to a rank failed, with the host's number.
    Broken(usize, i32),
    /// A rank has sent something that makes no sense.
    Nonsense(usize, Error),
    Cancelled,
}

/// What this rank knows of another rank.
pub(super) struct Other {
    /// Where it runs, once it has said so.
    pub host: String,
    /// Messages that have come, but were not yet asked for.
    pub messages: VecDeque<Message>,
    /// What it has answered about adapters.
    pub answers: VecDeque<Answer>,
    pub received: u64,
    pub sent: u64,
    /// For how long nothing has come from it while somebody looked.
    pub silent: Duration,
    /// The share of the weights that it has read.
    pub progress: f32,
    /// Whether it has said farewell. Its process may end before those of the others.
    pub has_left: bool,
    /// Whether its connection has ended after its farewell. Rank 0 may see this while it waits for
    /// the farewells of the others.
    pub has_ended: bool,
}

/// Listens while one of the host's functions waits.
pub(super) struct Ears {
    pub rank: usize,
    pub others: Vec<Other>,
    pub buffer: Vec<u8>,
    pub cancel: Option<Cancel>,
    pub figures: Arc<Figures>,
}

/// The state of one wait.
pub(super) struct Wait {
    waited: Duration,
    last: Instant,
    limit: Duration,
    /// The rank whose message is waited for. A look must not take that message.
    from: Option<usize>,
    pub stop: Option<Stop>,
}

impl Wait {
    pub fn new(limit: Duration, from: Option<usize>) -> Self {
        Wait {
            waited: Duration::ZERO,
            last: Instant::now(),
            limit,
            from,
            stop: None,
        }
    }
}

impl Ears {
    /// What `go_on` answers the host: whether to go on waiting.
    pub fn go_on(&mut self, comm: &dyn Comm, wait: &mut Wait) -> bool {
        let elapsed = wait.last.elapsed();
        if elapsed < LOOK {
            return true;
        }
        wait.last += elapsed;
        let elapsed = elapsed.min(LONGEST_LOOK);
        wait.waited += elapsed;
        self.grow_old(elapsed);
        let cancelled = self.cancel.as_ref().is_some_and(Cancel::is_triggered);
        wait.stop = match self.look(comm, wait.from) {
            Err(stop) => Some(stop),
            Ok(()) if cancelled => Some(Stop::Cancelled),
            Ok(()) if wait.waited > wait.limit => Some(Stop::Silent),
            Ok(()) => None,
        };
        wait.stop.is_none()
    }

    pub fn grow_old(&mut self, elapsed: Duration) {
        let figures = &self.figures;
        for (rank, other) in self.others.iter_mut().enumerate() {
            other.silent += elapsed;
            figures.set_silent(rank, other.silent);
        }
    }

    pub fn heard(&mut self, rank: usize) {
        self.others[rank].silent = Duration::ZERO;
        self.figures.set_silent(rank, Duration::ZERO);
    }

    /// The ranks that talk to this one.
    pub fn speakers(&self) -> impl Iterator<Item = usize> + use<> {
        match self.rank {
            0 => 1..self.others.len(),
            _ => 0..1,
        }
    }

    /// Takes all messages that have come, except those of rank `except`.
    pub fn look(&mut self, comm: &dyn Comm, except: Option<usize>) -> Heard<()> {
        for rank in self.speakers().filter(|&rank| Some(rank) != except) {
            while !self.others[rank].has_ended {
                let mut n = 0;
                let mut buffer = std::mem::take(&mut self.buffer);
                let moved = comm.receive(rank, &mut buffer, &mut n, &mut || false);
                let taken = match moved {
                    Moved::Done => self.take(rank, buffer.get(..n).unwrap_or(&[])),
                    Moved::GivenUp => Ok(()),
                    Moved::Failed(code) => {
                        // Somebody may still write to this buffer, so it is not freed.
                        let new = reserve::filled("messages", buffer.len(), 0);
                        std::mem::forget(std::mem::replace(&mut buffer, new.unwrap_or_default()));
                        // Rank 0 leaves last. So a rank that loses rank 0 before it has left itself
                        // is alone.
                        let other = &mut self.others[rank];
                        other.has_ended = other.has_left && self.rank == 0;
                        match other.has_ended {
                            true => Ok(()),
                            false => Err(Stop::Broken(rank, code)),
                        }
                    }
                };
                self.buffer = buffer;
                taken?;
                if moved == Moved::GivenUp {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Keeps a message, or does at once what the message asks for.
    pub fn take(&mut self, rank: usize, bytes: &[u8]) -> Heard<()> {
        let nonsense = |error| Stop::Nonsense(rank, error);
        let number = self.others[rank].received;
        let message = Message::read(bytes, number).map_err(nonsense)?;
        self.heard(rank);
        let other = &mut self.others[rank];
        other.received += 1;
        other.has_left |= message.kind == Kind::Bye;
        let mut reader = message.reader();
        match message.kind {
            Kind::Failed => {
                let (kind, sentence) = reader.error().map_err(nonsense)?;
                Err(Stop::Failed(rank, kind, sentence))
            }
            Kind::Ask => Err(Stop::Asked),
            Kind::Stuck => Err(Stop::Silent),
            Kind::Progress => {
                other.progress = reader.f32().map_err(nonsense)?;
                Ok(())
            }
            Kind::Pong => {
                let nanos = reader.u64().map_err(nonsense)?;
                self.figures.set_exchange(rank, Duration::from_nanos(nanos));
                Ok(())
            }
            Kind::Adapted => {
                let answer = Answer::read(&mut reader).map_err(nonsense)?;
                let kept = reserve::queue("answers of other ranks", &mut other.answers, 1);
                kept.map_err(nonsense)?;
                other.answers.push_back(answer);
                Ok(())
            }
            _ => {
                let kept = reserve::queue("messages of other ranks", &mut other.messages, 1);
                kept.map_err(nonsense)?;
                other.messages.push_back(message);
                Ok(())
            }
        }
    }
}
