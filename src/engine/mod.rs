//! The engine: one thread per handle that owns the model, the KV pool and the scheduler.
//!
//! Callers talk to it through a queue, so nothing below needs a lock:
//!
//! - [`request`]: raw options -> a checked [`Request`]
//! - `shared`: the queue, and whether the handle is open, closed or poisoned
//! - `worker`: the thread: admit, plan, run, absorb; catches its own panics
//! - `scheduler`: which rows go into the next step; admits, reserves pages, retires (`pace`: how
//!   many prompt rows)
//! - `guide`: the masks of sequences that follow a grammar, on a thread of their own
//! - `line`: who waits for a slot
//! - `samples`: sequences that share the computation of one prompt
//! - `parked`: sequences that gave their slots up, because their readers are behind
//! - `sequence`: one prompt on its way through the model, in three parts: `branch`, its tokens and
//!   pages; `policy`, what chooses its tokens; `output`, what its reader is told
//! - [`sampler`]: logits -> token, where the backend gives no tokens
//! - `text`: tokens -> whole UTF-8, cut before a stop string
//! - `call`, [`stream`]: events -> the caller
//! - `os`: eventfd

mod branch;
mod call;
mod edits;
mod guide;
mod line;
mod os;
mod output;
mod pace;
mod parked;
mod policy;
pub mod request;
pub mod sampler;
mod samples;
mod scheduler;
mod sequence;
mod shared;
pub mod stream;
mod text;
mod worker;

pub use request::{GenerateOptions, Prompt, Request};
pub use stream::{
    Alternative, Event, Finish, FinishReason, Next, RequestStats, Stream, TokenEvent,
};

use crate::backend::{Limits, Run, Step};
use crate::log::Log;
use crate::process::Process;
use crate::thread::without_signals;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use call::{Call, Waiting};
use request::RequestLimits;
use scheduler::Scheduler;
use shared::{Shared, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most sequences that run at the same time.
    pub max_batch_size: usize,
    /// Seed of the handle's generator, which gives a seed to requests that bring none.
    pub seed: u64,
    /// Most prompt rows of a step. `None`: chosen from measured speed, so that running streams are
    /// not held up. Results do not depend on it.
    pub prefill_chunk: Option<usize>,
    /// Most calls that wait: none of their sequences has begun, because every slot is taken.
    pub max_waiting: u32,
    /// How long, in milliseconds, a sequence whose reader is behind keeps its slot while others
    /// wait.
    pub max_stall_ms: u32,
    /// After so many milliseconds a call that is behind, and of which nothing was read in that
    /// time, ends with [`FinishReason::Unread`]; `u32::MAX`: never.
    pub max_unread_ms: u32,
    /// Most bytes of host memory for the pages of sequences that have given their slot up.
    pub stall_memory_bytes: u64,
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
    /// Sequences that have given their slot up now, because their reader is behind.
    pub parked: u32,
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
    /// Masks of grammars computed.
    pub masks: u64,
    /// Time spent computing them, mostly while the model computed the rows that needed them.
    pub mask_ms: f64,
    /// Of that, time that the engine waited for them.
    pub mask_wait_ms: f64,
    /// Pages that sequences hold now (pages only the prefix cache remembers count as free).
    pub pages_used: u64,
    /// Pages of the pool.
    pub pages_total: u64,
}

/// A running engine. Dropping it cancels what runs, joins the thread and drops the model.
pub struct Engine {
    shared: Arc<Shared>,
    limits: RequestLimits,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl Engine {
    /// Start the thread.
    ///
    /// Fails with [`Error::InvalidArgument`] where the model's limits are too small: a sequence of
    /// [`Limits::max_positions`] must fit into the pool, and a step must have a row of logits for
    /// every sequence of `max_batch_size` and one more row, for a prompt.
    pub fn new(
        run: Box<dyn Run>,
        tokenizer: Arc<dyn Tokenizer>,
        options: EngineOptions,
        log: Arc<Log>,
    ) -> Result<Engine> {
        let limits = run.limits();
        check(&limits, &options)?;
        let n_pages = limits.n_pages as u64;
        let request_limits = RequestLimits {
            max_seq_len: limits.max_positions,
            max_samples: options
                .max_batch_size
                .min(limits.n_pages / limits.max_positions.div_ceil(limits.page_size)),
            vocab_size: limits.vocab_size,
        };
        let shared = Shared::new(&options, n_pages, log);
        let scheduler = Scheduler::new(limits, tokenizer, &options, shared.clone())?;
        let plans = scheduler.plans()?;
        let thread_shared = shared.clone();
        let thread = without_signals(|| {
            std::thread::Builder::new()
                .name("llamabi-engine".into())
                .spawn(move || worker::work(run, scheduler, plans, &thread_shared))
        })
        .map_err(|e| Error::thread("the engine thread", &e))?;
        Ok(Engine {
            shared,
            limits: request_limits,
            thread: Some(thread),
            process: Process::current(),
        })
    }

    /// What requests are checked against.
    pub fn request_limits(&self) -> RequestLimits {
        self.limits
    }

    /// Queue a request. Fails at once with [`Error::Busy`] if it must not wait and cannot start,
    /// with [`Error::Waiting`] if as many calls wait as may, with [`Error::Refused`] if there is no
    /// memory for it; a stream gives that error too, later. After [`Engine::shutdown`] the stream
    /// only says that everything was cancelled.
    /// In a child after `fork` there is [`Error::Forked`].
    pub fn submit(&self, request: Request) -> Result<Stream> {
        if !self.process.is_current() {
            return Err(Error::Forked { what: "the handle" });
        }
        let Request {
            prompts,
            options,
            adapter,
        } = request;
        let width = options.num_return_sequences;
        let call = Call::new(options, adapter, prompts.len() * width, self.shared.clone())?;
        let mut waiting = VecDeque::from(reserve::room("the prompts", prompts.len())?);
        let mut prompt_tokens = 0;
        for (index, prompt) in (0..).step_by(width).zip(prompts) {
            match prompt {
                Prompt::Refused(sentence) => {
                    for index in (index..).take(width) {
                        let mut text = String::new();
                        reserve::string("the text of a sequence", &mut text, sentence.len())?;
                        text.push_str(sentence);
                        call.finish(Finish {
                            index,
                            reason: FinishReason::Unsafe,
                            text,
                            stats: RequestStats::default(),
                        });
                    }
                }
                Prompt::Tokens(tokens) => {
                    prompt_tokens += (tokens.len() * width) as u64;
                    waiting.push_back(Waiting { index, tokens });
                }
            }
        }
        self.shared.submit(&call, waiting)?;
        lock(&self.shared.totals).prompt_tokens += prompt_tokens;
        Ok(Stream::new(call))
    }

    /// The totals now.
    pub fn timings(&self) -> Timings {
        let totals = *lock(&self.shared.totals);
        let occupied = self.shared.occupied.load(Relaxed) as u32;
        Timings {
            waiting: occupied.saturating_sub(totals.running),
            ..totals
        }
    }

    /// Cancel everything that runs or waits and refuse what comes; streams drain as cancelled.
    pub fn shutdown(&self) {
        self.shared.close();
    }

    /// Make every later call fail with [`Error::Poisoned`], as after a panic, and what runs or
    /// waits with [`Error::Internal`].
    pub fn poison(&self, reason: &str) {
        self.shared.poison(reason, &Error::Internal(reason.into()));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.process.is_current() {
            self.shutdown();
            // It catches its panics itself.
            let _ = thread.join();
        } else {
            // A child has no such thread: to wait for it is to wait for ever.
            std::mem::forget(thread);
        }
    }
}

fn check(limits: &Limits, options: &EngineOptions) -> Result<()> {
    let size = limits.page_size;
    if !size.is_power_of_two() || size > 256 {
        return Err(Error::invalid(
            "page_size",
            "a power of two, at most 256",
            size,
        ));
    }
    let at_least = |name: &str, value: usize, least: usize| match value >= least {
        true => Ok(()),
        false => Err(Error::invalid(name, format!("at least {least}"), value)),
    };
    at_least("max_seq_len", limits.max_positions, 1)?;
    at_least("max_batch_size", options.max_batch_size, 1)?;
    at_least("prefill_chunk", options.prefill_chunk.unwrap_or(1), 1)?;
    at_least(
        "n_pages",
        limits.n_pages,
        limits.max_positions.div_ceil(size),
    )?;
    at_least(
        "max_rows",
        limits.max_rows,
        options.max_batch_size.saturating_add(1),
    )?;
    at_least("max_wanted", limits.max_wanted, options.max_batch_size)?;
    at_least("vocab_size", limits.vocab_size, 1)?;
    if limits
        .n_pages
        .checked_mul(size)
        .is_none_or(|slots| slots >= Step::NO_SLOT as usize)
    {
        let most = format!("less than {} slots", Step::NO_SLOT);
        return Err(Error::invalid("n_pages", most, limits.n_pages));
    }
    Ok(())
}
