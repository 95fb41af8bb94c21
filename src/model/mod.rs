//! The model: what a checkpoint's configuration means, where its tensors go, and the transformer.
//!
//! - [`config`]: `params.json` and `config.json` -> [`Config`], nothing guessed
//! - [`names`]: which stored tensors make up which matrix, sharded or not
//! - [`quantised`]: how quantised checkpoints store their tensors
//! - [`weights`]: reads them, tensor by tensor, into a backend's matrices
//! - `finite`: refuses numbers that are none
//! - [`rope`]: the table of cosines and sines
//! - [`forward`](mod@forward): what a Llama computes, once, over any backend
//! - [`runner`]: weights, KV pool and scratch buffers on one backend, as the engine's
//!   [`crate::backend::Run`]

pub mod config;
mod finite;
pub mod forward;
mod keys;
pub mod names;
mod plan;
pub mod quantised;
pub mod rope;
pub mod runner;
pub mod weights;

pub use config::Config;
pub use forward::forward;
pub use runner::Runner;
