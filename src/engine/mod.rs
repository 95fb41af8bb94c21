//! The engine: one thread per handle that owns the model, the KV pool and the scheduler.
//!
//! Callers talk to it through a queue, so nothing below needs a lock:
//!
//! - [`request`]: raw options -> a checked [`Request`]
//! - `options`: how an engine is set up, and what it counts
//! - `shared`: the queue, and whether the handle is open, closed or poisoned
//! - `worker`: the thread: admit, plan, run, absorb; catches its own panics
//! - `scheduler`: which rows go into the next step (`plan`: that step); admits, reserves pages,
//!   retires, a file for each of its decisions (`pace`: how many prompt rows)
//! - `sequence`: one prompt on its way through the model, in three parts: `branch`, its tokens and
//!   pages; `policy`, what chooses its tokens; `output`, what its reader is told. `extent`: how far
//!   it goes
//! - `guide`: the mask of a sequence that follows a grammar; `guides`: the thread that computes
//!   them
//! - `draft`: guesses at tokens, which a step computes along (`ngram`: those that are looked up;
//!   `draft_model`: a smaller model's; `medusa`: those of Medusa heads)
//! - `line`: who waits for a slot
//! - `group`: a beam search, which is a sequence with several branches; `beam`: which of them go
//!   on; `phrases`: what they must write
//! - `parked`: sequences that gave their slots up, because their readers are behind
//! - `inquiry`: rows of logits that the reader changes before a token is drawn from them;
//!   [`question`]: what the reader sees of them
//! - [`sampler`]: logits -> token, where the backend gives no tokens
//! - `text`: tokens -> whole UTF-8, cut before a stop string
//! - `call`, [`stream`]: [`event`]s -> the caller; `told`: what of them the caller has taken
//! - [`decide`]: functions of the caller's that end sequences and change logits
//! - `os`: eventfd; `lock`: a lock that a panic does not take with it
//!
//! `worker` knows the scheduler, the scheduler knows sequences, and a sequence knows what it has
//! beside its tokens; none of these knows what is above it.

mod beam;
mod branch;
mod call;
pub mod decide;
mod draft;
mod draft_model;
mod edits;
pub mod event;
mod extent;
mod group;
mod guide;
mod guides;
mod inquiry;
mod line;
mod lock;
mod medusa;
mod ngram;
mod options;
mod os;
mod output;
mod pace;
mod parked;
mod phrases;
mod plan;
mod policy;
pub mod question;
pub mod request;
pub mod sampler;
mod scheduler;
mod sequence;
mod shared;
pub mod stream;
mod text;
mod told;
mod worker;

pub use decide::{Decider, Deciders};
pub use event::{
    Alternative, BeamEvent, Drafted, Event, Finish, FinishReason, RequestStats, TokenEvent,
};
pub use options::{EngineOptions, Timings};
pub use question::Question;
pub use request::{GenerateOptions, MAX_DRAFTS, Prompt, Request, Speculation};
pub use stream::{Next, Stream};

use crate::backend::{Limits, Run, Step};
use crate::log::Log;
use crate::process::Process;
use crate::thread;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, reserve};
use call::{Call, Waiting};
use lock::lock;
use request::RequestLimits;
use scheduler::Scheduler;
use shared::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

/// A running engine. Dropping it cancels what runs, joins the thread and drops the model.
pub struct Engine {
    shared: Arc<Shared>,
    tokenizer: Arc<dyn Tokenizer>,
    limits: RequestLimits,
    thread: Option<JoinHandle<()>>,
    process: Process,
}

impl Engine {
    /// Starts the engine's thread.
    ///
    /// Fails with [`Error::InvalidArgument`] if the model's limits are too small: a sequence of
    /// [`Limits::max_positions`] must fit into the pool, and a step must have a row of logits for
    /// every sequence of `max_batch_size` and one more row, for a prompt.
    pub fn new(
        run: Box<dyn Run>,
        tokenizer: Arc<dyn Tokenizer>,
        options: EngineOptions,
        log: Arc<Log>,
    ) -> Result<Engine> {
        Self::with_draft(run, None, tokenizer, options, log)
    }

    /// As [`Engine::new`], with a draft model, which has the same tokens and, but for the size of
    /// its vocabulary, the same limits.
    ///
    /// Fails also with [`Error::InvalidArgument`] if it has fewer tokens than the tokenizer.
    pub fn with_draft(
        run: Box<dyn Run>,
        draft: Option<Box<dyn Run>>,
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
            has_draft: draft.is_some(),
            has_heads: run.medusa_heads() > 0,
        };
        let shared = Shared::new(&options, n_pages, log);
        let models = (&*run, draft);
        let scheduler = Scheduler::new(models, tokenizer.clone(), &options, shared.clone())?;
        let plans = scheduler.plans()?;
        let thread_shared = shared.clone();
        let thread = thread::start(
            std::thread::Builder::new().name("llamabi-engine".into()),
            move || worker::work(run, scheduler, plans, &thread_shared),
        )
        .map_err(|e| Error::thread("the engine thread", &e))?;
        Ok(Engine {
            shared,
            tokenizer,
            limits: request_limits,
            thread: Some(thread),
            process: Process::current(),
        })
    }

    /// The limits against which requests are checked.
    pub fn request_limits(&self) -> RequestLimits {
        self.limits
    }

    /// Queues a request. Fails at once with [`Error::Busy`] if the request must not wait and cannot
    /// start, with [`Error::Waiting`] if too many calls wait already, with [`Error::Refused`] if
    /// there is no memory for it (a stream may return this error later, too), and with
    /// [`Error::Forked`] in a child after `fork`. After [`Engine::shutdown`], the stream only says
    /// that everything was cancelled.
    pub fn submit(&self, request: Request) -> Result<Stream> {
        if !self.process.is_current() {
            return Err(Error::Forked { what: "the handle" });
        }
        let Request {
            prompts,
            options,
            adapter,
        } = request;
        let samples = options.num_return_sequences;
        let (n, tokenizer) = (prompts.len() * samples, self.tokenizer.clone());
        let call = Call::new(options, adapter, n, tokenizer, self.shared.clone())?;
        let mut waiting = VecDeque::from(reserve::room("the prompts", prompts.len())?);
        let mut prompt_tokens = 0;
        for (index, prompt) in (0..).step_by(samples).zip(prompts) {
            match prompt {
                Prompt::Refused(sentence) => {
                    for index in (index..).take(samples) {
                        let mut text = String::new();
                        reserve::string("the text of a sequence", &mut text, sentence.len())?;
                        text.push_str(sentence);
                        call.finish(Finish {
                            index,
                            reason: FinishReason::Unsafe,
                            text,
                            sum_logprob: 0.0,
                            score: 0.0,
                            stats: RequestStats::default(),
                        });
                    }
                }
                Prompt::Tokens(tokens) => {
                    prompt_tokens += (tokens.len() * samples) as u64;
                    waiting.push_back(Waiting { index, tokens });
                }
            }
        }
        self.shared.submit(&call, waiting)?;
        lock(&self.shared.totals).prompt_tokens += prompt_tokens;
        Ok(Stream::new(call))
    }

    /// Whether calls can still be run: [`Error::Poisoned`] with the reason if not.
    pub fn health(&self) -> Result<()> {
        match self.shared.verdict() {
            Err(Error::Internal(reason)) => Err(Error::Poisoned(reason)),
            verdict => verdict,
        }
    }

    /// The current totals.
    pub fn timings(&self) -> Timings {
        let totals = *lock(&self.shared.totals);
        let occupied = self.shared.occupied.load(Relaxed) as u32;
        Timings {
            waiting: occupied.saturating_sub(totals.running),
            ..totals
        }
    }

    /// Has the engine's thread call [`Run::beat`], soon and between two steps.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child after `fork`.
    pub fn nudge(&self) -> Result<()> {
        match self.process.is_current() {
            true => {
                self.shared.nudge();
                Ok(())
            }
            false => Err(Error::Forked { what: "the handle" }),
        }
    }

    /// Cancels everything that runs or waits, and refuses new requests. Streams end as cancelled.
    pub fn shutdown(&self) {
        self.shared.close();
    }

    /// Makes every later call fail with [`Error::Poisoned`], as after a panic, and every call that
    /// runs or waits with [`Error::Internal`].
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
            // The thread catches its panics itself.
            let _ = thread.join();
        } else {
            // A forked child does not have this thread, so waiting for it would never end.
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
