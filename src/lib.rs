//! **llamabi**: Llama-family inference as one shared library.
//!
//! The crate is what `libllamabi.so` is made of; [`Llama`] is the same handle for Rust callers that
//! `llama_t` is for C callers. This is a map, in the direction in which text travels:
//!
//! | module | what it knows |
//! |---|---|
//! | [`capi`] | the C API: conventions, guards, handles; no logic |
//! | [`mod@llama`] | the handle: a checkpoint, its tokenizer and its engine, put together |
//! | [`chat`] | messages -> prompt, by a Jinja template or in a format of Meta's |
//! | [`tokenizer`] | text <-> token ids, and the streaming detokeniser |
//! | [`grammar`] | which tokens keep a text in a language: llguidance with our tokenizers |
//! | [`engine`] | requests, continuous batching, sampling, streams; one thread per handle |
//! | [`kv`] | pages, their reference counts, and the prefix cache: host bookkeeping, no tensors |
//! | [`checkpoint`] | what was downloaded, a file for each form: to configuration and weights |
//! | [`model`] | configuration, matrices, RoPE |
//! | [`mod@format`] | files of tensors: safetensors, `.pth`, GGUF |
//! | [`ranks`] | several ranks of a process that compute one model, each with its share |
//! | [`quant`] | block formats of weights: INT8, INT4, NF4, and what other programs store |
//! | [`backend`] | **the seam** to a device, the transformer over it, how tokens are chosen, CPU, GPU |
//!
//! `quant`, `dtype`, `error` and `backend`, but for the GPU, the choice of tokens and `Run`, come
//! from `compute/`, a crate of its own, because the kernels take longest to compile.
//!
//! Dependencies point one way: `capi -> llama -> engine -> {kv, grammar -> tokenizer}`, `llama ->
//! chat -> tokenizer`, `llama -> ranks -> backend` and `llama -> checkpoint -> {format -> quant,
//! model -> backend -> quant}`. A backend knows nothing above [`backend::Step`] and
//! [`backend::Choices`]; the engine knows a model only as [`backend::Run`].
//!
//! `docs/glossary.md` defines the words that recur: row, slot, span, page, chunk, tile, strip, ...
//!
//! The four laws, which most of the tests are about:
//! 1. operations of a backend write into buffers that their caller owns,
//! 2. they never allocate,
//! 3. they never wait (except to load a step and to read its answer), and
//! 4. **batch invariance**: what is computed for one row does not depend on the other rows of the
//!    step, on the number of threads, or on how a prompt was cut into chunks.
//!
//! ```
//! use llamabi::engine::GenerateOptions;
//! use llamabi::{BuildOptions, Llama};
//!
//! let llama = Llama::build("demo/meta".as_ref(), None, &BuildOptions::default(), &mut |_| true)?;
//! let prompts = llama.text_prompts(&["Once upon a time"], None)?;
//! let story = llama.generate(prompts, GenerateOptions::default(), &mut |_event| true)?;
//! println!("{}", story.sequences[0].text);
//! # Ok::<(), llamabi::Error>(())
//! ```
//!
//! `unsafe` is denied here and allowed again only in files that say so at their head. Lists of
//! files mark these with (U); a folder in a list may have such files, and its own list marks them.

#![deny(unsafe_code, missing_docs)]

pub mod backend;
pub mod cancel;
pub mod capi;
pub mod chat;
pub mod checkpoint;
pub mod engine;
mod file;
pub mod format;
pub mod grammar;
pub mod kv;
pub mod llama;
pub mod log;
pub mod model;
mod per_process;
#[cfg(llamabi_planted)]
#[path = "../tests/sanitizers/planted.rs"]
pub mod planted;
mod precision;
pub mod ranks;
mod thread;
pub mod tokenizer;

pub use cancel::Cancel;
pub use llama::{BuildOptions, Device, Llama};
pub use llamabi_compute::{Dtype, Error, Result, Token, dtype, error, quant};
use llamabi_compute::{process, reserve, sentence};
pub use precision::Precision;
