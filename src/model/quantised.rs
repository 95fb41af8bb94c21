//! Quantised checkpoints: how their tensors are called and shaped.
//!
//! A matrix `NAME.weight`, `[rows, cols]`, of a float checkpoint is stored as
//!
//! | format | tensor | dtype | shape |
//! |---|---|---|---|
//! | int8 | `NAME.weight` | I8 | `[rows, cols]` |
//! | | `NAME.weight.scale` | F16 | `[rows, cols / 32, rounded up]` |
//! | int4 | `NAME.weight` | U8 | `[rows, cols / 2, rounded up]`, the first code in the upper half |
//! | | `NAME.weight.scale` | F16 | `[rows, cols / 32, rounded up]` |
//! | nf4 | `NAME.weight` | U8 | `[rows, cols / 2]`, the first code in the upper half |
//! | | `NAME.weight.absmax` | U8 | `[rows, cols / 64]`, codes of the dynamic 8-bit map |
//! | | `NAME.weight.nested_absmax` | F32 | `[rows * cols / 64 / 256, rounded up]` |
//! | | `NAME.weight.nested_offset` | F32 | `[1]` |
//!
//! [`crate::quant`] says what the codes mean. Names and the order of rows are those of the source (Meta's
//! or Hugging Face's), shards merged. `params.json` or `config.json` has
//! `"quantization_config": {"quant_method": "llamabi", "format": "int8" | "int4" | "nf4"}`: the format of the
//! layers' matrices. The head is int8 ([`super::names::Dtypes`]); a looked-up embedding, norms and biases are
//! floats. All lie in `model.safetensors`, beside Meta's `params.json` too.

use crate::Dtype;
use crate::quant::{Quant, nf4};

/// A tensor that a quantised matrix is stored in.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Behind `NAME.weight`.
    pub suffix: &'static str,
    /// Its format.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// The tensors of a matrix, codes first.
pub fn stored(quant: Quant, rows: usize, cols: usize) -> Vec<Stored> {
    let tensor = |suffix, dtype, shape| Stored {
        suffix,
        dtype,
        shape,
    };
    let codes = |dtype| tensor("", dtype, vec![rows, quant.code_bytes(cols)]);
    let scales = |suffix, dtype| tensor(suffix, dtype, vec![rows, quant.scales(cols)]);
    match quant {
        Quant::Int8 => vec![codes(Dtype::Int8), scales(".scale", Dtype::F16)],
        Quant::Int4 => vec![codes(Dtype::U8), scales(".scale", Dtype::F16)],
        Quant::Nf4 => {
            let nested = (rows * quant.scales(cols)).div_ceil(nf4::NESTED);
            vec![
                codes(Dtype::U8),
                scales(".absmax", Dtype::U8),
                tensor(".nested_absmax", Dtype::F32, vec![nested]),
                tensor(".nested_offset", Dtype::F32, vec![1]),
            ]
        }
    }
}
