//! How an engine is set up, and what it counts.

use crate::Token;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most sequences that run at the same time.
    pub max_batch_size: usize,
    /// Seed of the handle's generator, which makes the seeds of requests that have none.
    pub seed: u64,
    /// The largest number of prompt rows of a step. If `None`, it is chosen from measured speed, so
    /// that running streams are not held up. Results do not depend on it.
    pub prefill_chunk: Option<usize>,
    /// How long a step should take at most, in milliseconds, that has prompt rows beside running
    /// streams.
    pub max_step_ms: u32,
    /// The largest number of waiting calls, of which no sequence has begun because every slot is
    /// taken.
    pub max_waiting: u32,
    /// The time in milliseconds for which a sequence whose reader is behind keeps its slot while
    /// others wait.
    pub max_stall_ms: u32,
    /// The time in milliseconds after which a call ends with
    /// [`FinishReason::Unread`](super::FinishReason::Unread) if its reader is behind and has read
    /// nothing in that time; `u32::MAX`: never.
    pub max_unread_ms: u32,
    /// The largest number of bytes of host memory for the pages of parked sequences.
    pub stall_memory_bytes: u64,
    /// About how long a step of the draft model takes, as a share of one of the model's, if it
    /// computes as fast; 0 where nothing is known of that. It settles whether the draft model is
    /// tried at all.
    pub draft_share: f64,
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
    /// Sequences that are parked now: they have given their slot up, because their reader is
    /// behind.
    pub parked: u32,
    /// Time spent in steps that had prompt rows.
    pub prefill_ms: f64,
    /// Time spent in steps that had none.
    pub decode_ms: f64,
    /// Prompt tokens of all requests so far.
    pub prompt_tokens: u64,
    /// Prompt tokens that were taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Steps run.
    pub steps: u64,
    /// Number of drafts that were computed.
    pub drafted_tokens: u64,
    /// How many of them were taken.
    pub accepted_tokens: u64,
    /// Number of masks of grammars that were computed.
    pub masks: u64,
    /// Time spent computing them, mostly while the model computed the rows that needed them.
    pub mask_ms: f64,
    /// The part of this time in which the engine waited for masks. Where a GPU chooses the tokens
    /// this counts from when a step is launched, so the GPU computes meanwhile, and what lies
    /// beyond that is time of the step, too.
    pub mask_wait_ms: f64,
    /// Pages that sequences hold now, with those that they may still write to (pages that only the
    /// prefix cache remembers count as free).
    pub pages_used: u64,
    /// Pages of the pool.
    pub pages_total: u64,
}
