//! Reads a checkpoint's tensors straight into a backend's matrices.

use super::Config;
use crate::backend::{Backend, Weights};
use crate::format::Checkpoint;
use crate::{Cancel, Dtype, Result};

/// What loading tells its caller, and how it is told to stop.
pub struct LoadControl<'a> {
    /// Looked at before every tensor.
    pub cancel: Option<&'a Cancel>,
    /// Called with the share of bytes read, ascending, 1.0 last; `false` stops.
    pub progress: &'a mut dyn FnMut(f32) -> bool,
}

/// Bytes the packed weights will take on `B`, before anything is allocated.
pub fn weight_bytes<B: Backend>(config: &Config, dtype: Dtype) -> u64 {
    let _ = (config, dtype);
    todo!()
}

/// Read every tensor once, in slabs, into matrices of `dtype`.
///
/// Every name, shape and dtype is checked before the first byte of data is read; surplus tensors
/// are an error (except `rope.freqs` and `rotary_emb.inv_freq`).
pub fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &Config,
    dtype: Dtype,
    control: &mut LoadControl<'_>,
) -> Result<Weights<B>> {
    let _ = (backend, checkpoint, config, dtype, control);
    todo!()
}
