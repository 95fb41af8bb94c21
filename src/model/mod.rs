//! The model: its configuration and its matrices. The transformer is [`crate::backend::forward()`].
//!
//! - [`config`]: everything about a model that its weights do not show
//! - [`cut`]: which part of every matrix belongs to which rank
//! - [`family`]: what each family of models has, as a table
//! - [`matrices`]: which matrices and vectors it has
//! - [`medusa`]: Medusa heads, which guess at the tokens that come
//! - [`rope`]: the table of cosines and sines
//! - [`runner`]: weights, KV pool and scratch buffers on one backend, as the engine's
//!   [`crate::backend::Run`]

pub mod config;
pub mod cut;
pub mod family;
pub mod matrices;
pub mod medusa;
pub mod rope;
pub mod runner;

pub use config::Config;
pub use cut::Cuts;
pub use runner::Runner;
