//! A call as its readers see it: they pull its events, and answer its questions.

use super::call::{Call, Taken};
use super::event::Event;
use super::question::Question;
use crate::process::Process;
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The outcome of waiting for an event.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// An event.
    Event(Event),
    /// A question about logits, if [`super::GenerateOptions::ask_logits`] is set.
    Question(Question),
    /// Nothing came within the time.
    Timeout,
    /// All sequences have ended and all events were given. Every later call gives this, too.
    Done,
    /// The same, after a cancellation.
    Cancelled,
}

/// A pull iterator over the events of one call. It is independent of the handle's life: when the
/// handle ends, the stream gives what is queued and then ends as cancelled. Dropping it cancels the
/// call.
///
/// Any number of threads may use it at the same time. Each event goes to one of them.
pub struct Stream {
    call: Arc<Call>,
    process: Process,
}

impl Stream {
    pub(super) fn new(call: Arc<Call>) -> Self {
        let process = Process::current();
        Self { call, process }
    }

    /// [`Error::Forked`] in a child after `fork`.
    pub(super) fn check_process(&self) -> Result<()> {
        match self.process.is_current() {
            true => Ok(()),
            false => Err(Error::Forked { what: "the stream" }),
        }
    }

    /// Takes the next event. It waits at most `timeout`, or as long as it takes if that is `None`.
    /// An error ends the stream, and every later call returns it again.
    ///
    /// After the last event of every sequence this is [`Next::Done`], or [`Next::Cancelled`] if a
    /// cancellation has ended one of them. In a child after `fork` it is [`Error::Forked`].
    pub fn next(&self, timeout: Option<Duration>) -> Result<Next> {
        self.check_process()?;
        Ok(match self.call.next(timeout)? {
            Taken::Event(event) => Next::Event(event),
            Taken::Question(row) => Next::Question(Question::new(row, self.call.clone())),
            Taken::Timeout => Next::Timeout,
            Taken::Done => Next::Done,
            Taken::Cancelled => Next::Cancelled,
        })
    }

    /// A descriptor that is readable while an event or the end is ready; `None` if the system has
    /// none. It belongs to the stream: poll it, but do not read or close it.
    pub fn fd(&self) -> Option<i32> {
        let current = self.process.is_current();
        current.then(|| self.call.fd()).flatten()
    }

    /// Ends one sequence behind the events that this stream has given of it. Its later events are
    /// dropped. Its end follows, with [`super::FinishReason::Caller`] and the text of its remaining
    /// tokens that was held back. The outcome is, to the bit, that of a call with so many tokens
    /// less. If the sequence's end was given already, nothing happens.
    ///
    /// Fails with [`Error::InvalidArgument`] if the call has no such sequence. Fails with
    /// [`Error::Refused`] if there is no memory for the text; the sequence then continues.
    pub fn stop(&self, index: usize) -> Result<()> {
        self.check_process()?;
        self.call.stop(index)
    }

    /// Stops the call. What is queued is still given, then `Cancelled`. Sequences that have not
    /// begun end at once. Sequences that run end after the step they are in.
    pub fn cancel(&self) {
        if self.process.is_current() {
            self.call.cancel();
        }
    }

    /// Cancels the call and drops what is queued. Every [`Stream::next`] gives [`Next::Cancelled`]
    /// at once, also if it waits on another thread now. The descriptor is closed.
    pub fn close(&self) {
        if self.process.is_current() {
            self.call.close();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}
