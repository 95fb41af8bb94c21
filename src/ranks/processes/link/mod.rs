//! A rank's connection to the other ranks: messages, exchanges of numbers, and an end that all of
//! them hear of, whatever its reason is.
//!
//! Rank 0 talks with every rank, every other rank with rank 0 alone. A rank that waits for a
//! message or for an exchange looks for messages meanwhile. So the failure of one rank ends the
//! waiting of all within milliseconds. Nobody waits longer than the timeout for a rank that gives
//! no sign of life. An exchange does not tell which rank is missing. So rank 0 then asks all ranks,
//! and names those that do not answer.

mod ears;
mod end;

use super::adapters::Answer;
use super::comm::{Comm, Moved};
use super::message::{HEADER, Kind, LONGEST_EARLY, Message, Writer};
use crate::process::Process;
use crate::ranks::board::MAX_RANKS;
use crate::ranks::figures::Figures;
use crate::{Cancel, Error, Result, reserve};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ears::{Ears, Heard, LOOK, Other, Stop, Wait};

/// How often rank 0 gives a sign of life when it has nothing to do, if ranks may be silent for at
/// least [`BEATS`] times as long.
const BEAT: Duration = Duration::from_secs(1);

/// How many signs of life rank 0 gives at least in the time for which a rank may be silent.
const BEATS: u32 = 4;

/// The most numbers of a rank in one exchange: 2^30 bytes.
pub const MOST: usize = 1 << 28;

/// From this many numbers on, every rank adds one slice of a sum, if there are more than two ranks.
/// Below, the second exchange takes longer than the time that the saved bytes would take. This is a
/// guess: it was not measured with more ranks than this project's machines have processors.
const SLICES_FROM: usize = 64 * 1024;

/// A rank's connection to the others.
pub struct Link {
    comm: Box<dyn Comm>,
    ears: Ears,
    timeout: Duration,
    writer: Writer,
    incoming: Vec<u8>,
    mine: Vec<f32>,
    all: Vec<f32>,
    beat: Instant,
    /// Why the link has ended.
    ended: Option<Error>,
    /// Whether the link has ended as it should.
    closed: bool,
    process: Process,
}

impl Link {
    /// A connection over the host's functions. If a rank is silent for longer than `timeout`, it is
    /// lost, and all others with it. `cancel` ends all waiting.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an impossible rank or number of ranks.
    pub fn new(
        comm: Box<dyn Comm>,
        timeout: Duration,
        cancel: Option<Cancel>,
        figures: Arc<Figures>,
    ) -> Result<Link> {
        let (rank, size) = (comm.rank(), comm.size());
        let other = |_| Other {
            host: String::new(),
            messages: VecDeque::new(),
            answers: VecDeque::new(),
            received: 0,
            sent: 0,
            silent: Duration::ZERO,
            progress: 0.0,
            has_left: false,
            has_ended: false,
        };
        Ok(Link {
            comm,
            ears: Ears {
                rank,
                others: (0..size).map(other).collect(),
                buffer: reserve::filled("messages of other ranks", LONGEST_EARLY, 0)?,
                cancel,
                figures,
            },
            timeout,
            writer: Writer::default(),
            incoming: reserve::filled("messages of other ranks", LONGEST_EARLY, 0)?,
            mine: Vec::new(),
            all: Vec::new(),
            beat: Instant::now(),
            ended: None,
            closed: false,
            process: Process::current(),
        })
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.ears.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.ears.others.len()
    }

    /// A rank in words.
    pub fn name(&self, rank: usize) -> String {
        let n = self.size();
        match &*self.ears.others[rank].host {
            "" => format!("rank {rank} of {n}"),
            host => format!("rank {rank} of {n} ({host})"),
        }
    }

    /// Where a rank runs, for [`Link::name`].
    pub fn set_host(&mut self, rank: usize, host: String) {
        self.ears.others[rank].host = host;
    }

    /// How long a rank may be silent.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// From now on, nothing cancels the link.
    pub fn forget_cancel(&mut self) {
        self.ears.cancel = None;
    }

    /// Makes room for messages of `message` bytes, and for exchanges of `numbers` numbers per rank.
    pub fn make_room(&mut self, message: usize, numbers: usize) -> Result<()> {
        for buffer in [&mut self.ears.buffer, &mut self.incoming] {
            let more = message.saturating_add(HEADER).saturating_sub(buffer.len());
            reserve::vec("messages of other ranks", buffer, more)?;
            buffer.resize(buffer.len() + more, 0);
        }
        self.writer.make_room(message)?;
        let all = numbers.saturating_mul(self.size());
        for (buffer, len) in [(&mut self.mine, numbers), (&mut self.all, all)] {
            *buffer = reserve::filled("numbers that ranks exchange", len, 0.0)?;
        }
        Ok(())
    }

    /// Bytes that [`Link::make_room`] allocates.
    pub fn bytes(ranks: usize, message: usize, numbers: usize) -> u64 {
        let floats = (numbers as u64).saturating_mul(4 * (ranks as u64 + 1));
        floats.saturating_add((message as u64).saturating_mul(3))
    }

    /// For how long nothing has come from a rank while this rank listened.
    pub fn silent(&self, rank: usize) -> Duration {
        self.ears.others[rank].silent
    }

    /// The smallest share of the weights that another rank has read.
    pub fn progress(&self) -> f32 {
        let speakers = self.ears.speakers();
        let shares = speakers.map(|rank| self.ears.others[rank].progress);
        shares.fold(1.0, f32::min)
    }

    /// Fails if the link has ended. Also fails in a forked child, which must not speak or listen
    /// for its parent.
    pub fn check(&self) -> Result<()> {
        if !self.process.is_current() {
            return Err(Error::Forked { what: "this rank" });
        }
        match &self.ended {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Sends a message, which `write` writes, to rank `to`.
    pub fn tell(
        &mut self,
        to: usize,
        kind: Kind,
        write: impl FnOnce(&mut Writer) -> &mut Writer,
    ) -> Result<()> {
        self.check()?;
        write(self.writer.begin(kind)).check()?;
        let timeout = self.timeout;
        self.send(to, timeout).map_err(|stop| self.settle(stop))
    }

    /// Sends the same message to all ranks that this one talks with.
    pub fn tell_all(
        &mut self,
        kind: Kind,
        write: impl FnOnce(&mut Writer) -> &mut Writer,
    ) -> Result<()> {
        self.check()?;
        write(self.writer.begin(kind)).check()?;
        let timeout = self.timeout;
        for rank in self.ears.speakers() {
            self.send(rank, timeout).map_err(|stop| self.settle(stop))?;
        }
        Ok(())
    }

    /// Sends the message that the writer has.
    fn send(&mut self, to: usize, limit: Duration) -> Heard<()> {
        let (comm, ears) = (&*self.comm, &mut self.ears);
        let number = ears.others[to].sent;
        ears.others[to].sent += 1;
        let mut wait = Wait::new(limit, None);
        let bytes = self.writer.end(number);
        let stop = match comm.send(to, bytes, &mut || ears.go_on(comm, &mut wait)) {
            Moved::Done => return Ok(()),
            Moved::GivenUp => wait.stop.unwrap_or(Stop::Silent),
            // A rank that has left sent the reason before its connection failed.
            Moved::Failed(code) => match ears.look(comm, None) {
                Err(left @ Stop::Failed(..)) => left,
                _ => Stop::Broken(to, code),
            },
        };
        // The host may still read the message, so it is not freed.
        std::mem::forget(std::mem::take(&mut self.writer));
        Err(stop)
    }

    /// The next message of a rank. `None` if none came within `limit`, or if only a sign of life
    /// came.
    pub fn hear(&mut self, from: usize, limit: Duration) -> Result<Option<Message>> {
        self.check()?;
        self.listen(from, limit).map_err(|stop| self.settle(stop))
    }

    fn listen(&mut self, from: usize, limit: Duration) -> Heard<Option<Message>> {
        if let Some(message) = self.ears.others[from].messages.pop_front() {
            return Ok(Some(message));
        }
        let (comm, ears) = (&*self.comm, &mut self.ears);
        let mut wait = Wait::new(limit, Some(from));
        let mut n = 0;
        let incoming = &mut self.incoming;
        match comm.receive(from, incoming, &mut n, &mut || ears.go_on(comm, &mut wait)) {
            Moved::Done => {
                ears.take(from, self.incoming.get(..n).unwrap_or(&[]))?;
                Ok(ears.others[from].messages.pop_front())
            }
            Moved::Failed(code) => {
                std::mem::forget(std::mem::take(&mut self.incoming));
                Err(Stop::Broken(from, code))
            }
            Moved::GivenUp => match wait.stop {
                Some(Stop::Silent) | None if ears.others[from].silent <= self.timeout => Ok(None),
                Some(Stop::Silent) | None => Err(Stop::Quiet),
                Some(stop) => Err(stop),
            },
        }
    }

    /// Waits for a message of this kind from a rank. The rank may be silent for as long as the
    /// timeout says. `meanwhile` is called now and then.
    pub fn await_kind(
        &mut self,
        from: usize,
        kind: Kind,
        meanwhile: &mut dyn FnMut(&mut Link) -> Result<()>,
    ) -> Result<Message> {
        loop {
            match self.hear(from, self.patience())? {
                Some(message) if message.kind == kind => return Ok(message),
                Some(message) if message.kind == Kind::Ping => self.pong()?,
                Some(message) => return Err(self.unexpected(from, &message, kind)),
                None => {}
            }
            meanwhile(self)?;
        }
    }

    /// Ends the link because of a message that should not have come.
    pub fn unexpected(&mut self, from: usize, message: &Message, expected: Kind) -> Error {
        let kind = message.kind;
        self.nonsense(from, format!("a message {kind:?}, expected {expected:?}"))
    }

    /// Ends the link because of something else that makes no sense.
    pub fn nonsense(&mut self, from: usize, what: String) -> Error {
        self.settle(Stop::Nonsense(from, Error::Peer(what)))
    }

    /// The next answer of a rank about an adapter, if one has come.
    pub(in crate::ranks) fn answer(&mut self, from: usize) -> Option<Answer> {
        self.ears.others[from].answers.pop_front()
    }

    /// Answers rank 0's [`Kind::Ping`].
    pub fn pong(&mut self) -> Result<()> {
        let nanos = self.ears.figures.exchange(self.rank()).as_nanos() as u64;
        self.tell(0, Kind::Pong, |m| m.u64(nanos))
    }

    /// Takes the messages that have come.
    pub fn look(&mut self) -> Result<()> {
        self.check()?;
        let looked = self.ears.look(&*self.comm, None);
        looked.map_err(|stop| self.settle(stop))
    }

    /// How often rank 0 gives a sign of life.
    pub fn beats(&self) -> Duration {
        BEAT.min(self.timeout / BEATS).max(LOOK)
    }

    /// How often a waiting rank looks for something else to do, and a loading rank says how far it
    /// is.
    pub fn patience(&self) -> Duration {
        (self.beats() / 4).max(LOOK)
    }

    /// How long another rank may be silent.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Takes the messages that have come, while this rank waits for its device. Fails if it has
    /// `waited` for longer than the timeout.
    pub fn watch(&mut self, waited: Duration) -> Result<()> {
        if !self.closed {
            self.look()?;
        }
        match waited > self.timeout {
            true => Err(self.settle(Stop::Silent)),
            false => Ok(()),
        }
    }

    /// Whether the next beat is due. If so, it begins.
    pub fn is_time(&mut self, every: Duration) -> bool {
        let elapsed = self.beat.elapsed();
        if elapsed < every {
            return false;
        }
        self.beat += elapsed;
        true
    }

    /// Rank 0 calls this between two steps. Now and then it gives a sign of life, and looks which
    /// other ranks give one.
    pub fn beat(&mut self) -> Result<()> {
        let every = self.beats();
        if !self.is_time(every) {
            return Ok(());
        }
        self.look()?;
        // No more than `every` is counted: of a longer time, this process has seen nothing.
        self.ears.grow_old(every);
        let timeout = self.timeout;
        if (1..self.size()).any(|rank| self.ears.others[rank].silent > timeout) {
            return Err(self.settle(Stop::Quiet));
        }
        self.tell_all(Kind::Ping, |m| m)
    }

    /// Counts no rank as silent until now: the other ranks had nothing to say.
    pub fn forget_silence(&mut self) {
        let speakers = self.ears.speakers();
        speakers.for_each(|rank| self.ears.heard(rank));
    }

    /// As [`crate::backend::Wire::all_gather`].
    pub fn all_gather(
        &mut self,
        mine: &[f32],
        len: &dyn Fn(usize) -> usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        let size = self.size();
        let longest = (0..size).map(len).max().unwrap_or(0);
        self.fill(mine, longest, size * longest)?;
        self.exchange(|comm, mine, all, go_on| {
            comm.all_gather(&mine[..longest], &mut all[..size * longest], go_on)
        })?;
        let all = &self.all;
        let part = |rank: usize| match rank < size {
            true => &all[rank * longest..][..len(rank)],
            false => &[],
        };
        let parts: [&[f32]; MAX_RANKS] = std::array::from_fn(part);
        take(&parts[..size]);
        Ok(())
    }

    /// As [`crate::backend::Wire::prefers_slices`].
    pub fn prefers_slices(&self, numbers: usize) -> bool {
        self.size() > 2 && numbers >= SLICES_FROM
    }

    /// As [`crate::backend::Wire::all_to_all`].
    pub fn all_to_all(
        &mut self,
        numbers: &[f32],
        slice: usize,
        take: &mut dyn FnMut(&[&[f32]]),
    ) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        self.fill(numbers, size * slice, size * slice)?;
        self.exchange(|comm, mine, all, go_on| {
            comm.all_to_all(&mine[..size * slice], &mut all[..size * slice], go_on)
        })?;
        let own = numbers.len().saturating_sub(rank * slice).min(slice);
        let all = &self.all;
        let part = |from: usize| match from < size {
            true => &all[from * slice..][..own],
            false => &[],
        };
        let parts: [&[f32]; MAX_RANKS] = std::array::from_fn(part);
        take(&parts[..size]);
        Ok(())
    }

    /// Copies numbers to buffers that can stay if the host's function does not end.
    fn fill(&mut self, numbers: &[f32], mine: usize, all: usize) -> Result<()> {
        self.check()?;
        for (buffer, len) in [(&mut self.mine, mine), (&mut self.all, all)] {
            if buffer.len() < len {
                *buffer = reserve::filled("numbers that ranks exchange", len, 0.0)?;
            }
        }
        self.mine[..numbers.len()].copy_from_slice(numbers);
        Ok(())
    }

    fn exchange(
        &mut self,
        call: impl FnOnce(&dyn Comm, &[f32], &mut [f32], &mut dyn FnMut() -> bool) -> Moved,
    ) -> Result<()> {
        let (comm, ears) = (&*self.comm, &mut self.ears);
        let (mine, all) = (&self.mine, &mut self.all);
        let mut wait = Wait::new(self.timeout, None);
        let start = Instant::now();
        let moved = call(comm, mine, all, &mut || ears.go_on(comm, &mut wait));
        ears.figures.add_exchange(ears.rank, start.elapsed());
        let stop = match moved {
            Moved::Done => {
                self.forget_silence();
                return Ok(());
            }
            Moved::GivenUp => wait.stop.unwrap_or(Stop::Silent),
            Moved::Failed(code) => Stop::Exchange(code),
        };
        std::mem::forget(std::mem::take(&mut self.mine));
        std::mem::forget(std::mem::take(&mut self.all));
        Err(self.settle(stop))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let error = Error::Internal(format!("rank {} has ended", self.rank()));
        self.fail(&error);
    }
}
