//! A real GPU in place of the emulated one, if `LLAMABI_TEST_DEVICE=cuda` asks for it. Nothing is
//! compiled then, and a test that only the emulated device can run says so and passes.
#![allow(dead_code)] // each test binary uses its part

use super::Emu;
use llamabi::backend::gpu::cuda::Cuda;
use llamabi::backend::gpu::driver::LIBRARIES;
use llamabi::backend::gpu::images::Images;
use llamabi::{BuildOptions, Llama, Result};
use std::path::Path;
use std::sync::Arc;

/// Whether a real GPU is asked for.
pub fn real() -> bool {
    match std::env::var("LLAMABI_TEST_DEVICE").as_deref() {
        Ok("cuda") => true,
        Ok(other) => panic!("LLAMABI_TEST_DEVICE is {other}, must be cuda or nothing"),
        Err(_) => false,
    }
}

/// The GPU, if it is asked for.
pub fn cuda() -> Option<Arc<Cuda>> {
    real().then(|| {
        let images = Images::choose().unwrap_or_else(|reason| panic!("{reason}"));
        Arc::new(Cuda::open(&LIBRARIES, &images, 0).unwrap_or_else(|error| panic!("{error}")))
    })
}

/// A handle on the GPU if it is asked for, otherwise on `device`.
pub fn built(
    device: Arc<Emu>,
    dir: &Path,
    tokenizer: Option<&Path>,
    options: &BuildOptions,
) -> Result<Llama> {
    match cuda() {
        Some(cuda) => Llama::build_on(cuda, dir, tokenizer, options, &mut |_| true),
        None => Llama::build_on(device, dir, tokenizer, options, &mut |_| true),
    }
}
