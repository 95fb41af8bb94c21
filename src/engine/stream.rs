//! Events of one call, from the engine thread to whoever pulls them.

use super::call::Call;
use crate::process::Process;
use crate::{Error, Result, Token};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A likely token and its log probability.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Alternative {
    /// Token id.
    pub token: Token,
    /// Natural log of its probability under the raw logits.
    pub logprob: f32,
}

/// Why a sequence ended. Numbered as `LLAMA_FINISH_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FinishReason {
    /// An end-of-sequence token.
    Stop = 1,
    /// `max_gen_len` or `max_seq_len`.
    Length = 2,
    /// A cancel flag, a callback, or the handle was freed.
    Cancelled = 3,
    /// A stop string.
    StopString = 4,
    /// The dialog contained a special tag.
    Unsafe = 5,
    /// `max_time_ms`.
    Time = 6,
    /// Nobody has read the stream for too long.
    Unread = 8,
    /// No logit was finite, so no token was possible.
    NotFinite = 9,
}

/// Figures of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestStats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated, including those cut by a stop string; without the EOS.
    pub generated_tokens: u32,
    /// From submission to admission.
    pub queue_ms: f64,
    /// From submission to the first generated token; 0 if there was none.
    pub first_token_ms: f64,
    /// From submission to the end.
    pub total_ms: f64,
}

/// A token of a sequence: generated, or echoed from the prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Which sequence of the call.
    pub index: u32,
    /// Its id.
    pub token: Token,
    /// Its log probability; 0 unless asked for.
    pub logprob: f32,
    /// Text that became certain: whole code points, may be empty.
    pub text: String,
    /// Most likely tokens at this position, best first, if asked for.
    pub top: Vec<Alternative>,
}

/// The end of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Which sequence of the call.
    pub index: u32,
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until now.
    pub text: String,
    /// Its figures.
    pub stats: RequestStats,
}

impl Finish {
    /// The end of a sequence that was cancelled before it began.
    pub fn cancelled(index: u32) -> Finish {
        Finish {
            index,
            reason: FinishReason::Cancelled,
            text: String::new(),
            stats: RequestStats::default(),
        }
    }
}

/// For the log.
impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestStats {
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            queue_ms,
            first_token_ms,
            total_ms,
        } = self.stats;
        write!(
            f,
            "sequence {} of a call ended ({:?}): {prompt_tokens} prompt tokens, {cached_tokens} of \
             them cached, {generated_tokens} generated; waited {queue_ms:.1} ms, first token after \
             {first_token_ms:.1} ms, end after {total_ms:.1} ms",
            self.index, self.reason
        )
    }
}

/// What a stream gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token.
    Token(TokenEvent),
    /// A sequence has ended; nothing with its index follows.
    Finish(Finish),
}

/// Outcome of waiting for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// An event.
    Event(Event),
    /// Nothing within the time.
    Timeout,
    /// All sequences have ended and all events were given; for ever.
    Done,
    /// The same, after a cancellation; for ever.
    Cancelled,
}

/// A pull iterator over the events of one call. Independent of the handle's life: when the handle
/// goes, it drains as cancelled. Dropping it cancels the call.
///
/// Any number of threads may use it at the same time; each event goes to one of them.
pub struct Stream {
    call: Arc<Call>,
    process: Process,
}

impl Stream {
    pub(super) fn new(call: Arc<Call>) -> Self {
        let process = Process::current();
        Self { call, process }
    }

    /// The next event; waits at most `timeout` (`None`: as long as it takes). An error ends the
    /// stream: it is given again on every later call.
    ///
    /// After the last event of every sequence it is [`Next::Done`], or [`Next::Cancelled`] if a
    /// cancellation has ended one of them. In a child after `fork` it is [`Error::Forked`].
    pub fn next(&self, timeout: Option<Duration>) -> Result<Next> {
        match self.process.is_current() {
            true => self.call.next(timeout),
            false => Err(Error::Forked { what: "the stream" }),
        }
    }

    /// A descriptor that is readable while an event or the end is ready; `None` where the system
    /// has none. The stream keeps it; poll it, do not read or close it.
    pub fn fd(&self) -> Option<i32> {
        let current = self.process.is_current();
        current.then(|| self.call.fd()).flatten()
    }

    /// Stop the call: what is queued is still given, then `Cancelled`. Sequences that have not
    /// begun end at once, those that run after the step they are in.
    pub fn cancel(&self) {
        if self.process.is_current() {
            self.call.cancel();
        }
    }

    /// Cancel, and drop what is queued: every [`Stream::next`], also one that waits on another
    /// thread now, gives [`Next::Cancelled`] at once. Closes the descriptor.
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
