//! The GPU backend, on the CPU: kernels run in the emulator, driver calls go to a stand-in. With
//! `LLAMABI_TEST_DEVICE=cuda` most tests run on a real device. The scripts beside this file do so
//! on a machine that has one.

#[path = "../support/adapted.rs"]
mod adapted;
mod adapters;
#[path = "../support/checkpoints/mod.rs"]
mod checkpoints;
#[path = "../support/common.rs"]
mod common;
mod cuda;
mod cuda_graphs;
mod cuda_launches;
mod cuda_library;
mod cuda_ranks;
mod day;
mod drafts;
#[path = "../support/emu/mod.rs"]
mod emu;
mod features;
mod gguf;
mod medusa;
#[path = "../support/medusa_cases.rs"]
mod medusa_cases;
mod mixed;
mod models;
mod pages;
mod quantised;
#[path = "../support/reference_cases/mod.rs"]
mod reference_cases;
mod sampling;
#[path = "../support/small_model.rs"]
mod small_model;
#[path = "../support/span_cases.rs"]
mod span_cases;
mod spans;
