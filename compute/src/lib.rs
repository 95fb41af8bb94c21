//! What **llamabi** computes with: formats of weights, the seam to a device, and the CPU behind it.
//!
//! This is the part of llamabi that takes longest to compile, because every kernel is compiled for
//! every instruction set and every format. It is a crate of its own so that a change above it
//! compiles none of that again. Nobody else is meant to depend on it: the API of llamabi names
//! these modules where they belong to it.
//!
//! | module | what it knows |
//! |---|---|
//! | [`backend`] | **the seam**: what a device must be able to do; the transformer; the CPU |
//! | [`quant`] | block formats of weights: INT8, INT4, NF4, and what other programs store |
//! | [`dtype`] | the formats of numbers by name |
//! | [`error`] | every way in which something can fail, with its sentence |
//! | [`reserve`], [`rlimit`] | memory whose lack is an error; the limits of the process (U) |
//! | [`process`], [`sentence`] | `fork` noticed; names and paths as part of a sentence |

pub mod backend;
pub mod dtype;
pub mod error;
pub mod process;
pub mod quant;
pub mod reserve;
pub mod rlimit;
pub mod sentence;

pub use dtype::Dtype;
pub use error::{Error, Result};

/// A token id. The C API's `int32_t`; ids are never negative inside the crate.
pub type Token = i32;
