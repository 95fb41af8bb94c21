//! How a link ends: rank 0 finds out why and tells all others; they ask rank 0.

use super::Link;
use super::ears::{LOOK, Stop};
use crate::Error;
use crate::error::Kind as ErrorKind;
use crate::ranks::processes::comm::Moved;
use crate::ranks::processes::message::Kind;
use std::time::{Duration, Instant};

/// How long a message takes at most that is sent to a rank which may be gone.
const BRIEF: Duration = Duration::from_millis(200);

/// How long rank 0 waits for answers when it asks who is there.
const ANSWER: Duration = Duration::from_secs(1);

/// How long other ranks wait for rank 0's verdict: it asks all ranks first.
const VERDICT: Duration = Duration::from_secs(3);

impl Link {
    /// Ends with a failure of this rank's own, of which the others are told. What a forked child
    /// fails with is none of theirs.
    pub fn fail(&mut self, error: &Error) {
        if self.ended.is_none() && !self.closed {
            self.say_failure(error);
            self.ended = Some(error.clone());
        }
    }

    /// Says farewell, and waits for the others to do so. Nothing is sent or received afterwards.
    pub fn close(&mut self) {
        if self.ended.is_some() || std::mem::replace(&mut self.closed, true) {
            return;
        }
        let _ = self.tell_all(Kind::Bye, |m| m);
        if self.rank() == 0 {
            for rank in self.ears.speakers() {
                let bye = self.await_kind(rank, Kind::Bye, &mut |_| Ok(()));
                if bye.is_err() {
                    return;
                }
            }
        }
    }

    /// Says nothing in a forked child. All that is said without a [`Link::check`] is said here or
    /// by [`Link::settle`].
    fn say_failure(&mut self, error: &Error) {
        if !self.process.is_current() {
            return;
        }
        for rank in self.ears.speakers() {
            self.writer.begin(Kind::Failed).error(error);
            // Whoever does not hear it in this time is gone.
            let _ = self.send_last(rank);
        }
    }

    /// Sends what the writer has to a rank that may be gone, whatever comes meanwhile.
    fn send_last(&mut self, to: usize) -> Moved {
        if self.writer.check().is_err() {
            return Moved::GivenUp;
        }
        let (comm, ears) = (&*self.comm, &mut self.ears);
        let number = ears.others[to].sent;
        ears.others[to].sent += 1;
        let start = Instant::now();
        let moved = comm.send(to, self.writer.end(number), &mut || start.elapsed() < BRIEF);
        if moved != Moved::Done {
            std::mem::forget(std::mem::take(&mut self.writer));
        }
        moved
    }

    /// Finds out why, tells the others, and ends.
    pub(super) fn settle(&mut self, stop: Stop) -> Error {
        if let Err(error) = self.check() {
            return error;
        }
        let error = match self.rank() {
            0 => {
                let error = self.reason(stop);
                self.say_failure(&error);
                error
            }
            _ => self.verdict(stop),
        };
        self.ended = Some(error.clone());
        error
    }

    /// Rank 0: why it ends.
    fn reason(&mut self, stop: Stop) -> Error {
        match stop {
            Stop::Failed(rank, ErrorKind::Cancelled, _) => {
                Error::Peer(format!("{} left: cancelled", self.name(rank)))
            }
            Stop::Failed(rank, kind, sentence) => Error::Told {
                kind,
                sentence: format!("{}: {sentence}", self.name(rank)),
            },
            Stop::Broken(rank, code) => self.gone(rank, code),
            Stop::Nonsense(rank, error) => Error::Peer(format!("{}: {error}", self.name(rank))),
            Stop::Cancelled => Error::Cancelled,
            Stop::Silent | Stop::Asked => {
                let ms = self.timeout.as_millis();
                self.ask(format!("an exchange took more than {ms} ms"))
            }
            Stop::Quiet => {
                let ms = self.timeout.as_millis();
                self.ask(format!("a rank was silent for more than {ms} ms"))
            }
            Stop::Exchange(code) => self.ask(format!("an exchange failed ({code})")),
        }
    }

    fn gone(&self, rank: usize, code: i32) -> Error {
        let name = self.name(rank);
        Error::Peer(format!("{name} is gone: its connection failed ({code})"))
    }

    /// Asks all ranks that have not said farewell whether they are there. Returns the failure that
    /// one of them tells of, or who does not answer; `otherwise` is what has happened if all do.
    fn ask(&mut self, otherwise: String) -> Error {
        let size = self.size();
        let before: Vec<u64> = self
            .ears
            .others
            .iter()
            .map(|other| other.received)
            .collect();
        let mut gone = Vec::new();
        let has_left = |link: &Link, rank: usize| link.ears.others[rank].has_left;
        for rank in 1..size {
            if has_left(self, rank) {
                continue;
            }
            self.writer.begin(Kind::Ask);
            if let Moved::Failed(code) = self.send_last(rank) {
                gone.push((rank, code));
            }
        }
        let start = Instant::now();
        let silent = |link: &Link, rank: &usize| {
            let other = &link.ears.others[*rank];
            other.received == before[*rank]
                && !other.has_left
                && !gone.iter().any(|(gone, _)| gone == rank)
        };
        // At least once, for what a rank that is gone said before.
        loop {
            match self.ears.look(&*self.comm, None) {
                Ok(()) | Err(Stop::Silent | Stop::Asked | Stop::Broken(..)) => {}
                Err(stop) => return self.reason(stop),
            }
            if start.elapsed() >= ANSWER || !(1..size).any(|rank| silent(self, &rank)) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        if let Some(&(rank, code)) = gone.first() {
            return self.gone(rank, code);
        }
        let silent: Vec<usize> = (1..size).filter(|rank| silent(self, rank)).collect();
        let names: Vec<String> = silent.iter().map(|&rank| self.name(rank)).collect();
        let ms = self.timeout.as_millis();
        Error::Peer(match &*names {
            [] => format!("{otherwise}, though every rank answers"),
            [name] => format!("{name} has not been heard of for {ms} ms"),
            names => format!("{} have not been heard of for {ms} ms", names.join(" and ")),
        })
    }

    /// Another rank: why it ends, which rank 0 knows best.
    fn verdict(&mut self, stop: Stop) -> Error {
        let told = |link: &Link, kind, sentence| match kind {
            ErrorKind::Cancelled => Error::Cancelled,
            _ => Error::Peer(format!("{}: {sentence}", link.name(0))),
        };
        let own = match stop {
            Stop::Failed(_, kind, sentence) => return told(self, kind, sentence),
            Stop::Cancelled => {
                self.say_failure(&Error::Cancelled);
                return Error::Cancelled;
            }
            Stop::Broken(_, code) => return self.gone(0, code),
            Stop::Nonsense(_, error) => {
                let error = Error::Peer(format!("{}: {error}", self.name(0)));
                self.say_failure(&error);
                return error;
            }
            Stop::Asked => {
                self.writer.begin(Kind::Pong).u64(0);
                self.send_last(0);
                format!("{} has given up an exchange", self.name(0))
            }
            Stop::Silent | Stop::Quiet => {
                self.writer.begin(Kind::Stuck);
                self.send_last(0);
                let ms = self.timeout.as_millis();
                format!("{} has not been heard of for {ms} ms", self.name(0))
            }
            Stop::Exchange(code) => {
                self.writer.begin(Kind::Stuck);
                self.send_last(0);
                format!("an exchange failed ({code})")
            }
        };
        let start = Instant::now();
        while start.elapsed() < VERDICT {
            match self.ears.look(&*self.comm, None) {
                Err(Stop::Failed(_, kind, sentence)) => return told(self, kind, sentence),
                Err(Stop::Asked) => {
                    self.writer.begin(Kind::Pong).u64(0);
                    self.send_last(0);
                }
                Err(Stop::Broken(_, code)) => return self.gone(0, code),
                Ok(()) | Err(_) => {}
            }
            std::thread::sleep(LOOK);
        }
        Error::Peer(own)
    }
}
