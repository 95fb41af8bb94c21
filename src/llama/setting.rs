//! The settings that a backend is made for, and the memory that it takes with them.

use super::BuildOptions;
use crate::Dtype;
use crate::backend::cpu::Cpu;
use crate::backend::{Backend, Limits, Shape};
use crate::checkpoint::Plan;
use crate::model::{Config, Runner, rope};

/// The settings that a backend is made for.
pub(super) struct Setting<'a> {
    pub config: &'a Config,
    pub limits: Limits,
    /// The types of the layers' matrices. The type of most weights comes first.
    pub weights_dtypes: Vec<Dtype>,
    pub kv_dtype: Dtype,
}

/// The settings that follow from these options and this plan, with a cache of `kv_dtype` (`None`:
/// the type that suits the weights).
pub(super) fn setting<'c, B: Backend>(
    options: &BuildOptions,
    config: &'c Config,
    plan: &Plan<'_>,
    kv_dtype: Option<Dtype>,
) -> Setting<'c> {
    let weights_dtypes = plan.layer_dtypes();
    let weights_dtype = weights_dtypes[0];
    let default = match weights_dtype.is_float() {
        true => weights_dtype,
        false => Dtype::Bf16,
    };
    Setting {
        limits: limits::<B>(options, config.shape.vocab_size),
        config,
        weights_dtypes,
        kv_dtype: kv_dtype.unwrap_or(default),
    }
}

/// What a handle takes, in bytes: the weights, the KV pool, and small things. `shape` is the shape
/// that the backend is made for: that of the model, or of a rank.
pub(super) fn memory<B: Backend>(
    shape: &Shape,
    plan: &Plan<'_>,
    setting: &Setting<'_>,
    options: &BuildOptions,
) -> [(&'static str, u64); 4] {
    let (limits, kv_dtype) = (&setting.limits, setting.kv_dtype);
    let page = B::page_bytes(shape, kv_dtype);
    let scratch = Runner::<B>::scratch_bytes(shape, limits, kv_dtype, options.n_threads);
    [
        ("the weights", plan.weight_bytes::<B>()),
        (
            "the KV pool (max_batch_size x max_seq_len)",
            (limits.n_pages as u64).saturating_mul(page),
        ),
        (
            "the RoPE table (max_seq_len)",
            rope::table_bytes(setting.config, options.max_seq_len),
        ),
        // What loading holds is dropped before the scratch buffers are made.
        ("scratch buffers", scratch.max(plan.held_bytes())),
    ]
}

/// What a handle on the CPU would take, in bytes.
pub(super) fn cpu_memory(options: &BuildOptions, config: &Config, plan: &Plan<'_>) -> u64 {
    let setting = setting::<Cpu>(options, config, plan, options.kv_dtype);
    let items = memory::<Cpu>(&config.shape, plan, &setting, options);
    items.iter().fold(0, |sum, item| sum.saturating_add(item.1))
}

fn limits<B: Backend>(options: &BuildOptions, vocab_size: usize) -> Limits {
    let pages = options.max_seq_len.div_ceil(B::PAGE_SIZE);
    let chunk = options
        .prefill_chunk
        .unwrap_or(B::PREFILL_CHUNK)
        .min(options.max_seq_len);
    Limits {
        page_size: B::PAGE_SIZE,
        n_pages: pages.saturating_mul(options.max_batch_size),
        max_positions: options.max_seq_len,
        max_rows: chunk.saturating_add(options.max_batch_size),
        // Prompt rows need logits, too, if the prompt is echoed with logprobs.
        max_wanted: options.max_batch_size.max(32),
        vocab_size,
    }
}
