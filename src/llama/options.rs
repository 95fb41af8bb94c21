//! The options that a handle is built with, and what the handle then reports of itself.

use crate::backend::gpu::device::GroupId;
use crate::log::Log;
use crate::model::Config;
use crate::ranks::processes::handshake::Hello;
use crate::{Cancel, Dtype, Precision, Token};
use std::path::PathBuf;
use std::sync::Arc;

/// The device that the model runs on. Numbered as `LLAMA_DEVICE_*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(i32)]
pub enum Device {
    /// The best device that is usable.
    #[default]
    Auto = 0,
    /// The CPU; no other device is looked for.
    Cpu = 1,
    /// An NVIDIA GPU.
    Cuda = 2,
}

/// Options of [`Llama::build`](crate::Llama::build).
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// The most tokens of a sequence, including the prompt.
    pub max_seq_len: usize,
    /// The most sequences that run at the same time.
    pub max_batch_size: usize,
    /// Without `devices`: the number of shards that the checkpoint must have; 0: as many as it has.
    /// All shards are merged onto one device. With `devices`: their number, or 0.
    pub model_parallel_size: usize,
    /// The kind of device to run on.
    pub device: Device,
    /// The number of the device, if there are several; the CPU is 0.
    pub device_index: usize,
    /// One rank runs on each of these ([`crate::ranks`]). With [`Device::Cuda`] they are GPUs, each
    /// named once; otherwise NUMA nodes, which may be named more than once. Empty: one rank, on
    /// [`BuildOptions::device_index`].
    pub devices: Vec<usize>,
    /// How long a rank may be silent, in milliseconds, while others wait for it.
    pub rank_timeout_ms: u32,
    /// The name of the group in which the GPUs of several ranks exchange numbers by themselves, as
    /// `ncclGetUniqueId` makes it; `None`: rank 0 makes one.
    pub group: Option<GroupId>,
    /// The most bytes of GPU memory to allocate; 0: as much as is free. What the driver takes for
    /// itself (its context, the kernels, CUDA graphs) does not count.
    pub gpu_memory_bytes: u64,
    /// The number of threads of each rank. 0: as many as affinity and cgroup allow, shared among
    /// the ranks.
    pub n_threads: usize,
    /// `None`: as stored.
    pub weights_dtype: Option<Dtype>,
    /// `None`: f32 for f32 weights, f16 for f16, else bf16. [`Dtype::Int8`] and [`Dtype::Fp8`] have
    /// a scale per vector.
    pub kv_dtype: Option<Dtype>,
    /// How exactly the CPU multiplies.
    pub precision: Precision,
    /// Seed of the handle's generator.
    pub seed: u64,
    /// The most prompt rows of a step; `None`: chosen while running. Results do not depend on it.
    pub prefill_chunk: Option<usize>,
    /// How long a step should take at most, in milliseconds, if it computes a chunk of a prompt
    /// beside running streams. This is about the longest time between two tokens of a stream.
    pub max_step_ms: u32,
    /// The most calls that wait for a slot. One more fails with [`crate::Error::Waiting`].
    pub max_waiting: u32,
    /// How long, in milliseconds, a sequence whose reader is behind keeps its slot while others
    /// wait.
    pub max_stall_ms: u32,
    /// A stream that is behind, and of which nothing was read for this many milliseconds, ends with
    /// [`crate::engine::FinishReason::Unread`]; `u32::MAX`: never.
    pub max_unread_ms: u32,
    /// The most bytes of host memory for the pages of sequences that have given up their slot;
    /// `None`: as many as the KV pool has.
    pub stall_memory_bytes: Option<u64>,
    /// Directories of LoRA adapters, which are merged into the weights in this order, and the
    /// weight of each adapter.
    pub adapters: Vec<(PathBuf, f32)>,
    /// The checkpoint of a draft model: a smaller model with the same tokens. It guesses the next
    /// tokens, or the model is contrasted with it.
    pub draft_dir: Option<PathBuf>,
    /// As [`BuildOptions::weights_dtype`], but for the draft model.
    pub draft_weights_dtype: Option<Dtype>,
    /// As [`BuildOptions::kv_dtype`], but for the draft model.
    pub draft_kv_dtype: Option<Dtype>,
    /// The directory of Medusa heads that were trained for this checkpoint and guess the next
    /// tokens.
    pub medusa_dir: Option<PathBuf>,
    /// A chat template instead of the model's.
    pub chat_template: Option<String>,
    /// The time that `strftime_now` of a chat template sees, in seconds since 1970; `None`: that of
    /// the clock.
    pub chat_now: Option<i64>,
    /// Stops the loading.
    pub cancel: Option<Cancel>,
    /// Log lines go here, beginning with the first line of the build. [`Log::drain`] takes them
    /// out. The default is silent.
    pub log: Arc<Log>,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            max_seq_len: 512,
            max_batch_size: 8,
            model_parallel_size: 0,
            device: Device::Auto,
            device_index: 0,
            devices: Vec::new(),
            rank_timeout_ms: 60_000,
            group: None,
            gpu_memory_bytes: 0,
            n_threads: 0,
            weights_dtype: None,
            kv_dtype: None,
            precision: Precision::Auto,
            seed: 1,
            prefill_chunk: None,
            // Ten tokens a second are pleasant to read.
            max_step_ms: 100,
            max_waiting: 1024,
            max_stall_ms: 1000,
            max_unread_ms: 60_000,
            stall_memory_bytes: None,
            adapters: Vec::new(),
            draft_dir: None,
            draft_weights_dtype: None,
            draft_kv_dtype: None,
            medusa_dir: None,
            chat_template: None,
            chat_now: None,
            cancel: None,
            log: Arc::default(),
        }
    }
}

/// What was loaded.
#[derive(Clone, Debug)]
pub struct Info {
    /// The model.
    pub config: Config,
    /// Tokens that end a sequence; may be empty.
    pub eos_ids: Vec<Token>,
    /// As built.
    pub max_seq_len: usize,
    /// As built.
    pub max_batch_size: usize,
    /// As chosen; never [`Device::Auto`].
    pub device: Device,
    /// As chosen.
    pub weights_dtype: Dtype,
    /// As chosen.
    pub kv_dtype: Dtype,
    /// Whether the handle has a draft model.
    pub has_draft: bool,
    /// How many Medusa heads guess at tokens.
    pub medusa_heads: usize,
    /// The ranks that compute the model, in order.
    pub ranks: Vec<RankInfo>,
    /// Bytes of the weights in memory: those of all ranks, of the draft model and of the Medusa
    /// heads.
    pub weight_bytes: u64,
    /// Bytes of the KV pool: those of all ranks and of the draft model.
    pub kv_bytes: u64,
    /// The form in which most of the weights are stored:
    /// [`stored_format`](crate::checkpoint::stored_format).
    pub stored_format: String,
    /// The device in words.
    pub device_name: String,
    /// Whether this library was built with GPU kernels.
    pub gpu_kernels: bool,
    /// Time [`Llama::build`](crate::Llama::build) took.
    pub load_ms: f64,
}

/// A rank of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RankInfo {
    /// Where it runs.
    pub device: Device,
    /// Its process, on [`RankInfo::host`].
    pub pid: u32,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Bytes of its part of the KV pool.
    pub kv_bytes: u64,
    /// The name of its machine.
    pub host: String,
    /// The device in words.
    pub device_name: String,
}

impl RankInfo {
    /// A rank of this process with this many bytes of weights and of KV pool.
    pub(super) fn here(
        device: Device,
        [weight_bytes, kv_bytes]: [u64; 2],
        device_name: String,
    ) -> Self {
        let hello = Hello::own();
        RankInfo {
            device,
            pid: hello.pid,
            weight_bytes,
            kv_bytes,
            host: hello.host,
            device_name,
        }
    }
}
