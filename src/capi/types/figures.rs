//! What a handle says of itself.

#![allow(non_camel_case_types)]

use std::ffi::c_char;

// Section: Figures

/// `llama_info.chat_format`: the model has no chat format, and chat calls are
/// `LLAMA_E_UNSUPPORTED`.
pub const LLAMA_CHAT_NONE: u32 = 0;
/// Meta's Llama 2 format.
pub const LLAMA_CHAT_LLAMA2: u32 = 1;
/// Meta's Llama 3 format.
pub const LLAMA_CHAT_LLAMA3: u32 = 2;
/// The model's own template.
pub const LLAMA_CHAT_TEMPLATE: u32 = 3;

/// What was loaded.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_info {
    /// `sizeof(llama_info)`, set by the caller.
    pub struct_size: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Width of the residual stream.
    pub dim: u32,
    /// Number of layers.
    pub n_layers: u32,
    /// Number of query heads.
    pub n_heads: u32,
    /// Number of key and value heads.
    pub n_kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub ffn_dim: u32,
    /// As given to `llama_build`.
    pub max_seq_len: u32,
    /// As given to `llama_build`.
    pub max_batch_size: u32,
    /// Id of the begin-of-sequence token. -1: none.
    pub bos_id: i32,
    /// The first of `eos_ids`. -1: none.
    pub eos_id: i32,
    /// Id of the padding token. -1: none.
    pub pad_id: i32,
    /// The device that was chosen: `LLAMA_DEVICE_CPU` or `_CUDA`.
    pub device: i32,
    /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub weights_dtype: i32,
    /// The type that was chosen: `LLAMA_DTYPE_*`, never AUTO.
    pub kv_dtype: i32,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Bytes of the KV cache.
    pub kv_bytes: u64,
    /// The device in words, NUL-terminated.
    pub device_name: [c_char; 128],
    /// 1 if the library was built with GPU kernels, otherwise 0. `LLAMABI_KERNELS` may name other
    /// kernels at run time.
    pub gpu_kernels: u32,
    /// Always 0.
    pub reserved0: u32,
    /// The `n_eos` tokens that end a sequence: those of `generation_config.json`, `config.json` and
    /// the tokenizer.
    pub eos_ids: [i32; 16],
    /// Number of these tokens.
    pub n_eos: u32,
    /// How chat calls make a prompt of messages: `LLAMA_CHAT_*`.
    pub chat_format: u32,
    /// The model's family, as in Hugging Face's `model_type` ("llama", "qwen2"), NUL-terminated.
    pub model_type: [c_char; 32],
    /// The format in which most of the weights are stored ("bf16", "GGUF Q4_K", "gptq 4 bits"),
    /// whatever `weights_dtype` they are kept in. NUL-terminated.
    pub stored_format: [c_char; 32],
    /// Ranks that compute the model: the number of `devices` in the options, or 1. `weight_bytes`
    /// and `kv_bytes` are those of all ranks.
    pub model_parallel_size: u32,
    /// 1 if there is a draft model (`draft_dir`), whose bytes are in `weight_bytes` and `kv_bytes`
    /// too. Otherwise 0.
    pub has_draft: u32,
    /// Number of Medusa heads (`medusa_dir`), whose bytes are in `weight_bytes` too.
    pub medusa_heads: u32,
    /// Always 0.
    pub reserved1: u32,
}

/// Totals of a handle since it was built.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_timings {
    /// `sizeof(llama_timings)`, set by the caller.
    pub struct_size: u32,
    /// Sequences that run now.
    pub running: u32,
    /// Sequences that wait for a slot now.
    pub waiting: u32,
    /// Sequences that now are without their slot because their reader is behind.
    pub parked: u32,
    /// The time that `llama_build` took.
    pub load_ms: f64,
    /// The time of steps that had prompt tokens.
    pub prefill_ms: f64,
    /// The time of steps that had no prompt tokens.
    pub decode_ms: f64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// How many of these were taken from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// Steps that were run. A step is one pass through the model, for all running sequences
    /// together.
    pub steps: u64,
    /// Pages of the KV cache that sequences hold now, with those that they may still write to.
    pub pages_used: u64,
    /// Pages that the KV cache has.
    pub pages_total: u64,
    /// Masks of grammars that were computed.
    pub masks: u64,
    /// The time of computing these masks, on a thread of its own.
    pub mask_ms: f64,
    /// Of that, time that generation waited for. On a GPU this counts from when a step is launched:
    /// the GPU may be computing meanwhile.
    pub mask_wait_ms: f64,
    /// Guesses at tokens that were computed (`speculation`).
    pub drafted_tokens: u64,
    /// Of those, right.
    pub accepted_tokens: u64,
}
