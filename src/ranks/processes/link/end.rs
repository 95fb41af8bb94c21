//! How a link ends: rank 0 finds out the reason and tells all other ranks; the others ask rank 0.

use super::Link;
use super::ears::{LOOK, Stop};
use crate::Error;
use crate::error::Kind as ErrorKind;
use crate::ranks::processes::comm::Moved;
use crate::ranks::processes::message::Kind;
use std::time::{Duration, Instant};

/// The longest time for sending a message to a rank that may be gone.
const BRIEF: Duration = Duration::from_millis(200);

/// How long rank 0 waits for answers when it asks who is there.
const ANSWER: Duration = Duration::from_secs(1);

/// How long other ranks wait for rank 0's verdict. Rank 0 asks all ranks first.
const VERDICT: Duration = Duration::from_secs(3);

impl Link {
    /// Ends the link with a failure of this rank, and tells the other ranks. A failure of a forked
    /// child does not concern them.
    pub fn fail(&mut self, error: &Error) {
        if self.ended.is_none() && !self.closed {
            self.say_failure(error);
            self.ended = Some(error.clone());
        }
    }

    /// Says farewell. Rank 0 then waits for the farewells of the others. Nothing is sent or
    /// received afterwards.
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

    /// Tells the other ranks of a failure, unless this is a forked child. Only this function and
    /// [`Link::settle`] send anything without a [`Link::check`].
    fn say_failure(&mut self, error: &Error) {
        if !self.process.is_current() {
            return;
        }
        for rank in self.ears.speakers() {
            self.writer.begin(Kind::Failed).error(error);
            // A rank that does not hear it in this time is gone.
            let _ = self.send_last(rank);
        }
    }

    /// Sends the writer's message to a rank that may be gone, whatever comes meanwhile.
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

    /// Finds out why the link ends, tells the other ranks, and ends it.
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

    /// At rank 0: why the link ends.
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
    /// one of them reports, or which ranks do not answer. If all answer, `otherwise` is what has
    /// happened.
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
        // Looks at least once: a rank that is gone may have said something before.
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

    /// At another rank: why the link ends. Rank 0 knows this best.
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
