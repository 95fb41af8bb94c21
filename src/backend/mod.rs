//! Beside the seam and the CPU, which are in a crate of their own: how tokens are chosen from
//! logits, by the host or by a device, and the GPU.
//!
//! | module | what it knows |
//! |---|---|
//! | [`choice`] | what a step asks for a row, and the arithmetic of probabilities |
//! | [`answer`] | what it gets |
//! | [`run`] | a model on a backend, as the engine sees it; how a backend begins and ends a step |
//! | [`gpu`] | the GPU |

pub mod answer;
pub mod choice;
pub mod gpu;
pub mod run;

pub use answer::{Answer, Pick, RowAnswer};
pub use choice::{Changes, Choice, Choices, Edit};
pub use llamabi_compute::backend::*;
pub use run::{Run, Steps};
