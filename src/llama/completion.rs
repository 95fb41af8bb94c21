//! The outcome of a call, collected from its events.

use crate::engine::{
    Alternative, Decider, Deciders, Event, FinishReason, Next, RequestStats, Stream,
};
use crate::{Result, Token, reserve};

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
    /// The sum of its tokens' log probabilities; see [`crate::engine::Finish`].
    pub sum_logprob: f32,
    /// The number by which the results of a beam search are ranked.
    pub score: f32,
    /// Its figures.
    pub stats: RequestStats,
}

/// The outcome of one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// In the order of the prompts.
    pub sequences: Vec<Sequence>,
    /// Whether the call was cancelled. The sequences then have what there was until then.
    pub cancelled: bool,
}

impl Completion {
    /// The outcome of a call of `n` prompts that was cancelled before it began.
    pub fn cancelled(n: usize) -> Result<Completion> {
        let mut sequences = reserve::room("the outcome of a call", n)?;
        sequences.resize_with(n, || Sequence {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            top: Vec::new(),
            finish: FinishReason::Cancelled,
            sum_logprob: 0.0,
            score: 0.0,
            stats: RequestStats::default(),
        });
        Ok(Completion {
            sequences,
            cancelled: true,
        })
    }
}

fn push<T>(values: &mut Vec<T>, value: T) -> Result<()> {
    reserve::vec("the outcome of a call", values, 1)?;
    values.push(value);
    Ok(())
}

fn push_str(text: &mut String, more: &str) -> Result<()> {
    reserve::string("the outcome of a call", text, more.len())?;
    text.push_str(more);
    Ok(())
}

/// Pull all events of a stream into a [`Completion`].
pub(super) fn collect(
    stream: &Stream,
    n: usize,
    logprobs: bool,
    top: bool,
    mut decider: Decider,
    mut deciders: Deciders<'_>,
    on_event: &mut dyn FnMut(&Event) -> bool,
) -> Result<Completion> {
    let Completion { mut sequences, .. } = Completion::cancelled(n)?;
    let mut stopped = false;
    loop {
        let event = match decider.next(stream, None, &mut deciders)? {
            Next::Event(event) => event,
            Next::Timeout | Next::Question(_) => continue,
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
        // After the callback has said stop, no callback is called again, but what was generated is
        // kept.
        if !stopped && !on_event(&event) {
            stopped = true;
            deciders = Deciders::default();
            stream.cancel();
        }
        match event {
            Event::Token(e) => {
                let s = &mut sequences[e.index as usize];
                push(&mut s.tokens, e.token)?;
                push_str(&mut s.text, &e.text)?;
                if logprobs {
                    push(&mut s.logprobs, e.logprob)?;
                }
                if top {
                    push(&mut s.top, e.top)?;
                }
            }
            Event::Finish(e) => {
                let s = &mut sequences[e.index as usize];
                push_str(&mut s.text, &e.text)?;
                s.finish = e.reason;
                (s.sum_logprob, s.score) = (e.sum_logprob, e.score);
                s.stats = e.stats;
            }
            Event::Beam(_) => {}
        }
    }
}
