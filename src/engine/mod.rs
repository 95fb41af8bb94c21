//! The engine: one thread per handle that owns the model, the KV pool and the scheduler.
//!
//! Callers talk to it through a queue, so nothing below needs a lock:
//!
//! - [`request`]: raw options -> a checked [`Request`]
//! - `sequence`: one prompt on its way through the model
//! - `scheduler`: which rows go into the next step; admits, reserves pages, retires
//! - [`sampler`]: logits -> token
//! - [`stream`]: tokens -> whole UTF-8 and stop strings -> events -> the caller

pub mod request;
pub mod sampler;
pub mod stream;

pub use request::{GenerateOptions, Prompt, Request};
pub use stream::{Alternative, Event, Finish, FinishReason, Next, RequestStats, Stream, TokenEvent};

use crate::backend::Run;
use crate::log::Log;
use crate::tokenizer::Tokenizer;
use crate::{Result, Token};
use std::sync::Arc;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most tokens of a sequence, prompt included.
    pub max_seq_len: usize,
    /// Most sequences that run at the same time.
    pub max_batch_size: usize,
    /// Seed of the handle's generator, which gives a seed to requests that bring none.
    pub seed: u64,
    /// Most prompt rows of a step. `None`: chosen from measured speed, so that running streams are
    /// not held up. Results do not depend on it.
    pub prefill_chunk: Option<usize>,
    /// Tokens that end a sequence.
    pub eos_ids: Vec<Token>,
}

/// Totals of a handle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Sequences running now.
    pub running: u32,
    /// Sequences waiting now.
    pub waiting: u32,
    /// Time spent in steps that had prompt rows.
    pub prefill_ms: f64,
    /// Time spent in steps that had none.
    pub decode_ms: f64,
    /// Prompt tokens of all requests so far.
    pub prompt_tokens: u64,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Pages that sequences hold now (pages only the prefix cache remembers count as free).
    pub pages_used: u64,
    /// Pages of the pool.
    pub pages_total: u64,
}

/// A running engine. Dropping it cancels what runs, joins the thread and drops the model.
pub struct Engine {}

impl Engine {
    /// Start the thread.
    pub fn new(
        run: Box<dyn Run>,
        tokenizer: Arc<dyn Tokenizer>,
        options: EngineOptions,
        log: Arc<Log>,
    ) -> Result<Engine> {
        let _ = (run, tokenizer, options, log);
        todo!()
    }

    /// Queue a request. Fails at once with [`crate::Error::Busy`] if it must not wait and cannot start.
    pub fn submit(&self, request: Request) -> Result<Stream> {
        let _ = request;
        todo!()
    }

    /// The totals now.
    pub fn timings(&self) -> Timings {
        todo!()
    }

    /// Cancel everything that runs or waits and refuse what comes; streams drain as cancelled.
    pub fn shutdown(&self) {
        todo!()
    }

    /// Make every later call fail with [`crate::Error::Poisoned`], as after a panic.
    pub fn poison(&self, reason: &str) {
        let _ = reason;
        todo!()
    }
}
