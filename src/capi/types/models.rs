//! What a model is built with.

#![allow(non_camel_case_types)]

use super::ranks::llama_comm;
use super::results::llama_cancel_t;
use std::ffi::{c_char, c_void};

// Section: Models

/// A model: weights, tokenizer, KV cache and engine thread.
pub struct llama {
    _opaque: [u8; 0],
}
/// The handle.
pub type llama_t = llama;

/// `device`: the best device that is usable.
pub const LLAMA_DEVICE_AUTO: i32 = 0;
/// `device`: the CPU. CUDA is never touched.
pub const LLAMA_DEVICE_CPU: i32 = 1;
/// `device`: an NVIDIA GPU. Without one the build fails.
pub const LLAMA_DEVICE_CUDA: i32 = 2;

/// `weights_dtype`: the type in which the weights are stored (for a checkpoint of
/// `llamabi-quantize`, the type to which it was quantised). `kv_dtype`: F32 for f32 weights,
/// F16 for f16 weights, otherwise BF16.
pub const LLAMA_DTYPE_AUTO: i32 = 0;
/// IEEE binary32.
pub const LLAMA_DTYPE_F32: i32 = 1;
/// IEEE binary16.
pub const LLAMA_DTYPE_F16: i32 = 2;
/// bfloat16.
pub const LLAMA_DTYPE_BF16: i32 = 3;
/// 8-bit integers. Weights have an f16 scale for each group of 32 along a row; a checkpoint of
/// floats is quantised while it is loaded. With `kv_dtype`, the vector of each head has a scale.
///
/// With INT8 and with the 4-bit formats, the head is INT8, too, and the embedding stays in 16 bits;
/// an embedding that also serves as the head is INT8. Activations of generated tokens are rounded
/// to 16-bit integers.
pub const LLAMA_DTYPE_INT8: i32 = 4;
/// 4-bit integers, for weights only: symmetric, with an f16 scale for each group of 32 along a row.
/// The scales are found by a search for the smallest error.
pub const LLAMA_DTYPE_INT4: i32 = 5;
/// 4-bit normal float with double quantisation, as QLoRA and bitsandbytes define it, for weights
/// only. A block is 64 numbers along a row; 64 must divide the length of a row.
pub const LLAMA_DTYPE_NF4: i32 = 6;
/// 8-bit floats (e4m3), on GPUs; on the CPU this is `LLAMA_E_UNSUPPORTED`. Weights have an f16
/// scale for each group of 128 along a row; a checkpoint of floats is quantised while it is loaded,
/// with the head and the embedding as with INT8. With `kv_dtype`, the vector of each head has a
/// scale.
pub const LLAMA_DTYPE_FP8: i32 = 7;
/// 4-bit integers with minima and with scales of two levels. Q4_K of GGUF files is kept in this
/// form, exactly. `llama_info` reports it. As an option it is `LLAMA_E_UNSUPPORTED`, because
/// AUTO keeps weights that are stored so.
pub const LLAMA_DTYPE_K4: i32 = 8;
/// 8-bit integers with scales of two levels. Q3_K of GGUF files is kept in this form, exactly. The
/// rest is as with K4.
pub const LLAMA_DTYPE_K8: i32 = 9;
/// 5-bit integers, otherwise as K4. Q5_K of GGUF files is kept in this form, exactly. The rest is
/// as with K4.
pub const LLAMA_DTYPE_K5: i32 = 10;
/// 6-bit integers with scales of two levels. Q6_K of GGUF files is kept in this form, exactly. The
/// rest is as with K4.
pub const LLAMA_DTYPE_K6: i32 = 11;
/// 4-bit codes for a table of 16 integers, with an f16 scale for each group of 32 along a row.
/// IQ4_NL of GGUF files is kept in this form, exactly, and IQ4_XS with its scales rounded to f16.
/// The rest is as with K4.
pub const LLAMA_DTYPE_IQ4: i32 = 12;
/// 4-bit integers with a scale and a zero point, both f16, for each group of 32 along a row. AWQ,
/// asymmetric GPTQ and compressed-tensors, and Q4_1 of GGUF files are kept in this form. The rest
/// is as with K4.
pub const LLAMA_DTYPE_UINT4: i32 = 13;

/// Something failed.
pub const LLAMA_LOG_ERROR: i32 = 1;
/// The library made a choice that one may not expect.
pub const LLAMA_LOG_WARN: i32 = 2;
/// What was loaded and chosen.
pub const LLAMA_LOG_INFO: i32 = 3;
/// Details of every request.
pub const LLAMA_LOG_DEBUG: i32 = 4;

/// Receives the fraction of the checkpoint that has been read. The fraction is 0 to 1 and never
/// falls. A return value of 0 stops the loading.
pub type llama_progress_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, fraction: f32) -> i32>;

/// Receives a log line of `len` bytes, NUL-terminated and without a line feed. It runs on a thread
/// that is inside a call on the handle, so it may run on several threads at once if several use the
/// handle.
pub type llama_log_fn = Option<
    unsafe extern "C" fn(user_data: *mut c_void, level: i32, msg: *const c_char, len: usize),
>;

/// `LLAMA_PRECISION_FULL`; but if `max_batch_size` is above 8, or above 12 for most quantised
/// weights on a processor with AMX, generated rows are multiplied as those of prompts are, which is
/// faster for many sequences. (With int4 and Q4_K, and up to 16 sequences on such a processor, they
/// have the 8-bit activations of `LLAMA_PRECISION_FAST`.)
pub const LLAMA_PRECISION_AUTO: i32 = 0;
/// Activations are rounded so little that it does not show beside the rounding of the weights, and
/// those of generated rows less. For few sequences this costs no time, because the processor waits
/// for weights.
pub const LLAMA_PRECISION_FULL: i32 = 1;
/// The fastest arithmetic that the processor has: activations in bfloat16 with weights of 16 bits,
/// in 8 bits with quantised weights. For many sequences. A GPU has one arithmetic, which this does
/// not change.
pub const LLAMA_PRECISION_FAST: i32 = 2;

/// Options of `llama_build`. Fill with `llama_build_options_init`, then change what you like.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_build_options {
    /// `sizeof(llama_build_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMABI_ABI_VERSION` of that header.
    pub abi_version: u32,
    /// The most tokens of a sequence, with its prompt. Default: 512.
    pub max_seq_len: u32,
    /// The most sequences that run at the same time. More sequences wait, be they of one call or of
    /// several. Default: 8.
    pub max_batch_size: u32,
    /// The number of shards of the checkpoint (1 for Hugging Face's form), or 0 for as many as it
    /// has. Another number is refused. With `devices`, it is their number, or 0, and the checkpoint
    /// may have any number of shards.
    pub model_parallel_size: i32,
    /// `LLAMA_DEVICE_*`.
    pub device: i32,
    /// Which device, if there are several. It must be 0 on the CPU.
    pub device_index: i32,
    /// Threads of the CPU backend, at most 1024; with `devices`, those of each rank. 0 means as
    /// many as the affinity mask and the cgroup allow, shared among the ranks.
    pub n_threads: u32,
    /// `LLAMA_DTYPE_*` of the weights, which are converted while they are read.
    pub weights_dtype: i32,
    /// `LLAMA_DTYPE_*` of the KV cache.
    pub kv_dtype: i32,
    /// Seeds the generator that gives a seed to calls whose own seed is 0. Default: 1.
    pub seed: u64,
    /// A flag that stops the loading. It is borrowed for the call.
    pub cancel: *mut llama_cancel_t,
    /// Called on the calling thread during the loading. NULL means never.
    pub progress: llama_progress_fn,
    /// Passed to `progress`.
    pub progress_user_data: *mut c_void,
    /// Receives the log lines of this handle. NULL means that nothing is logged.
    pub log: llama_log_fn,
    /// Passed to `log`. It must live until `llama_free` has returned and no call on the handle
    /// runs.
    pub log_user_data: *mut c_void,
    /// The least severe lines that `log` receives, `LLAMA_LOG_*`. 0 means none. Default:
    /// `LLAMA_LOG_INFO`.
    pub log_level: i32,
    /// Must be 0.
    pub reserved0: u32,
    /// The most bytes of GPU memory that the handle allocates. A model that needs more is
    /// `LLAMA_E_DEVICE_MEMORY`. 0 means as many bytes as are free. Memory that the driver takes for
    /// itself (its context, the kernels, CUDA graphs) does not count.
    pub gpu_memory_bytes: u64,
    /// The most calls that may wait. A call waits while none of its sequences has begun because
    /// every slot is taken. One call more is `LLAMA_E_BUSY`. 0 means 1024.
    pub max_waiting: u32,
    /// How long, in milliseconds, a sequence keeps its slot while other sequences wait and its own
    /// reader is behind. A reader is behind from when more than 1,024 events or 4 MiB are queued
    /// until half of that is left. After this time the sequence's part of the KV cache is copied
    /// out of the cache. It is copied back when the reader has caught up and it is the sequence's
    /// turn, and the text continues with the same bytes. 0 means 1000.
    pub max_stall_ms: u32,
    /// A stream ends with `LLAMA_FINISH_UNREAD` when its reader is behind and has taken no event
    /// for so many milliseconds, whether others wait or not. 0 means 60000. UINT32_MAX means that
    /// no stream ends for this reason.
    pub max_unread_ms: u32,
    /// `LLAMA_PRECISION_*`: how exactly the CPU multiplies. It decides the results of a handle, and
    /// they depend on nothing that runs beside them.
    pub precision: i32,
    /// The most host memory for what is copied out of the KV cache because of `max_stall_ms`. When
    /// this is used up, or half of the memory that the process can still have, the stream that has
    /// gone unread the longest ends with `LLAMA_FINISH_UNREAD`. So no reader keeps a slot idle for
    /// longer than `max_stall_ms` while others wait. 0 means as many bytes as the KV cache has.
    pub stall_memory_bytes: u64,
    /// A Jinja template for chats, in NUL-terminated UTF-8, which replaces the model's. NULL means
    /// the model's template.
    pub chat_template: *const c_char,
    /// The time that `strftime_now` of a template uses, in seconds since 1970. 0 means the clock.
    pub chat_now: i64,
    /// Directories of LoRA adapters as peft writes them, NUL-terminated. The adapters are merged
    /// into the weights in this order while the weights are read. NULL if there are none.
    pub adapters: *const *const c_char,
    /// The weight of each adapter, a finite number. NULL means 1 for all.
    pub adapter_scales: *const f32,
    /// Number of adapters, at most 256.
    pub n_adapters: usize,
    /// Where the ranks of this process are, each with its share of every matrix and of the KV cache
    /// (tensor parallelism). With `device` CUDA: GPUs, by the numbers of `device_index`, each named
    /// once; `gpu_memory_bytes` is that of each GPU. They exchange numbers by NCCL where it can be
    /// opened (`libnccl.so.2`), otherwise through the memory of the host, which is slow. This has
    /// not been run on real GPUs yet. With other devices: NUMA nodes of this machine, by the
    /// numbers of `lscpu`, on which the ranks' threads stay; a node may be named more than once.
    /// The number of ranks must divide the heads. It changes the bits of results, as another
    /// instruction set does. NULL if there are none: one rank, on `device_index`.
    pub devices: *const i32,
    /// Number of devices, at most 64.
    pub n_devices: u32,
    /// How long a rank may be silent, in milliseconds, while others wait for it. After that, calls
    /// fail with `LLAMA_E_PEER`. 0 means 60000.
    pub rank_timeout_ms: u32,
    /// Ranks in several processes, on one machine or several: this one must be rank 0, and the
    /// others call `llama_worker_run`. The struct is copied. NULL means that there are none. Not
    /// together with `devices`: a process is one rank, with `device` CUDA on the GPU
    /// `device_index`. `device` is the same on all ranks; AUTO means the CPU.
    pub comm: *const llama_comm,
    /// The checkpoint of a draft model, with its tokenizer, in any form that `llama_build` takes: a
    /// smaller model with the same tokens. It guesses at tokens (`speculation`), or it is the model
    /// whose preferences `contrast_beta` takes away. It is loaded beside the model, onto the same
    /// device, and is freed with it. NULL means that there is none. Not with `devices` or `comm`.
    pub draft_dir: *const c_char,
    /// As `weights_dtype`, for the draft model. AUTO: as its checkpoint has them.
    pub draft_weights_dtype: i32,
    /// As `kv_dtype`, for the draft model. AUTO: what goes with its weights.
    pub draft_kv_dtype: i32,
    /// A directory of Medusa heads that were trained for this checkpoint
    /// (`medusa_lm_head.safetensors` or `.pt`, and `config.json`). They guess at tokens
    /// (`speculation`), each one token further ahead. At most 16 are used. They are kept in the
    /// format of the model's head. NULL means that there are none. Not with `devices` or `comm`.
    pub medusa_dir: *const c_char,
    /// How long a step should take at most, in milliseconds, that computes a chunk of a prompt
    /// beside running streams. It is about the longest time between two tokens of a stream while
    /// prompts arrive; with less of it, prompts take longer. Prompts get a third of a step's time
    /// at least, and 16 tokens (32 on a processor with AMX), whatever that takes. Sequences of
    /// calls without `on_event` are not waited for token by token, and hold no prompt back. 0 means
    /// 100. Results do not depend on it.
    pub max_step_ms: u32,
    /// Must be 0.
    pub reserved1: u32,
    /// With `device` CUDA and `devices` or `comm`: the 128 bytes that `ncclGetUniqueId` has given,
    /// if the caller wants to say which communicator of NCCL the ranks' GPUs make. It must be of no
    /// other communicator. With `comm`, rank 0 sends it to the others. NULL: the library makes one.
    pub nccl_unique_id: *const c_void,
}
