//! The outcome of a call, put together from its events.

use crate::engine::{Alternative, Event, FinishReason, Next, RequestStats, Stream};
use crate::{Result, Token};

/// The outcome of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Generated tokens, after the prompt's if echoed; without the EOS.
    pub tokens: Vec<Token>,
    /// One per token if asked for, else empty.
    pub logprobs: Vec<f32>,
    /// The tokens' text, cut before a stop string.
    pub text: String,
    /// Alternatives per token if asked for, else empty.
    pub top: Vec<Vec<Alternative>>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Its figures.
    pub stats: RequestStats,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// In the order of the prompts.
    pub sequences: Vec<Sequence>,
    /// Whether the call was cancelled; the sequences hold what there was by then.
    pub cancelled: bool,
}

impl Completion {
    /// That of a call of `n` prompts which was cancelled before it began.
    pub fn cancelled(n: usize) -> Completion {
        let sequence = Sequence {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            top: Vec::new(),
            finish: FinishReason::Cancelled,
            stats: RequestStats::default(),
        };
        Completion {
            sequences: vec![sequence; n],
            cancelled: true,
        }
    }
}

/// Pull a stream dry into a [`Completion`].
pub(super) fn collect(
    stream: &Stream,
    n: usize,
    logprobs: bool,
    top: bool,
    on_event: &mut dyn FnMut(&Event) -> bool,
) -> Result<Completion> {
    let Completion { mut sequences, .. } = Completion::cancelled(n);
    let mut stopped = false;
    loop {
        let event = match stream.next(None)? {
            Next::Event(event) => event,
            Next::Timeout => continue,
            Next::Done => {
                return Ok(Completion {
                    sequences,
                    cancelled: stopped,
                });
            }
            Next::Cancelled => {
                return Ok(Completion {
                    sequences,
                    cancelled: true,
                });
            }
        };
        // After the callback has said stop it is not called again, but what was generated is kept.
        if !stopped && !on_event(&event) {
            stopped = true;
            stream.cancel();
        }
        match event {
            Event::Token(e) => {
                let s = &mut sequences[e.index as usize];
                s.tokens.push(e.token);
                s.text.push_str(&e.text);
                if logprobs {
                    s.logprobs.push(e.logprob);
                }
                if top {
                    s.top.push(e.top);
                }
            }
            Event::Finish(e) => {
                let s = &mut sequences[e.index as usize];
                s.text.push_str(&e.text);
                s.finish = e.reason;
                s.stats = e.stats;
            }
        }
    }
}
