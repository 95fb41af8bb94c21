//! The seam and the CPU, which are in a crate of their own, and the GPU.

pub mod gpu;

pub use llamabi_compute::backend::*;
