//! The model: its configuration, its matrices, and the transformer.
//!
//! - [`config`]: everything about a model that its weights do not show
//! - [`family`]: what each family of models has, as a table
//! - [`matrices`]: which matrices and vectors it has
//! - [`rope`]: the table of cosines and sines
//! - [`forward`](mod@forward): what a Llama computes, once, over any backend
//! - [`runner`]: weights, KV pool and scratch buffers on one backend, as the engine's
//!   [`crate::backend::Run`]

pub mod config;
pub mod family;
pub mod forward;
pub mod matrices;
pub mod rope;
pub mod runner;

pub use config::Config;
pub use forward::forward;
pub use runner::Runner;
