//! Weights on the device: `[N, K]` as stored, with each row padded with zeros to 32 numbers;
//! quantised weights lie as `kernels/quant.h` says.

use super::device::{BOX, Device, Memory, TensorMap};
use super::pad32;
use super::quantised;
use crate::backend::{Block, MatSpec, PartSpec, QuantBlock, QuantData, RowOrder};
use crate::{Dtype, Error, Result};
use half::{bf16, f16};
use std::sync::Arc;

/// A weight matrix.
pub struct GpuMat<D: Device> {
    pub(super) weights: Memory<D>,
    pub(super) bias: Option<Memory<D>>,
    /// First row of each part, and the number of all rows.
    firsts: Vec<usize>,
    pub(super) cols: usize,
    /// Distance between rows, in numbers; for quantised weights, in [`quantised::UNIT`]s.
    pub(super) stride: usize,
    /// Bytes of one unit of `stride`.
    unit: usize,
    pub(super) dtype: Dtype,
    /// Set where the device has kernels that take a tensor map.
    pub(super) map: Option<TensorMap>,
}

/// The stride, and the bytes of one unit of it.
fn stride(dtype: Dtype, cols: usize) -> (usize, usize) {
    match dtype.quant() {
        Some(quant) => (quantised::stride(quant, cols), quantised::UNIT),
        None => (pad32(cols), dtype.size()),
    }
}

/// Bytes of weights and bias.
pub(super) fn bytes(spec: &MatSpec) -> u64 {
    let part = |part: &PartSpec| {
        let (stride, unit) = stride(part.dtype, spec.cols);
        let row = (stride as u64).saturating_mul(unit as u64);
        let bias = if spec.bias { 4 } else { 0 };
        (part.rows as u64).saturating_mul(row.saturating_add(bias))
    };
    spec.parts.iter().map(part).fold(0, u64::saturating_add)
}

impl<D: Device> GpuMat<D> {
    pub(super) fn new(device: &Arc<D>, spec: &MatSpec) -> Result<Self> {
        let (rows, dtype) = (spec.rows(), spec.dtype()?);
        let (stride, unit) = stride(dtype, spec.cols);
        let bytes = rows.saturating_mul(stride).saturating_mul(unit);
        let mut firsts = vec![0];
        for part in &spec.parts {
            firsts.push(firsts[firsts.len() - 1] + part.rows);
        }
        let bias = |_| Memory::zeroed(device, "a bias", rows.saturating_mul(4));
        let weights = Memory::zeroed(device, "a weight matrix", bytes)?;
        let mapped = matches!(dtype, Dtype::F16 | Dtype::Bf16) && bytes > 0;
        Ok(GpuMat {
            map: match mapped {
                true => weights.tensor_map(stride * unit, rows, BOX[0])?,
                false => None,
            },
            weights,
            bias: spec.bias.then_some(()).map(bias).transpose()?,
            firsts,
            cols: spec.cols,
            stride,
            unit,
            dtype,
        })
    }

    /// The number of all rows.
    pub(super) fn rows(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    /// The address of the bias, 0 where there is none.
    pub(super) fn bias(&self) -> u64 {
        self.bias.as_ref().map_or(0, Memory::at)
    }

    /// Places a rectangle of a stored tensor of floats.
    pub(super) fn pack(&self, block: &Block<'_>) -> Result<()> {
        let converted;
        let bytes = if block.dtype == self.dtype {
            block.bytes
        } else {
            converted = convert(block.dtype, self.dtype, block.bytes);
            &converted[..]
        };
        let size = self.dtype.size();
        let (offset, width) = (block.col * size, block.cols * size);
        self.rows_to(block.part, block.row, block.order, offset, width, bytes)
    }

    /// Places codes or scales of rows.
    pub(super) fn pack_quantised(&self, block: &QuantBlock<'_>) -> Result<()> {
        let (Some(quant), cols) = (self.dtype.quant(), self.cols) else {
            let dtype = self.dtype;
            return Err(Error::Internal(format!("codes for a matrix of {dtype}")));
        };
        let (offset, width, bytes) = match block.data {
            QuantData::Codes(codes) => {
                let bytes = quantised::codes(quant, cols, codes)?;
                (0, quantised::code_bytes(quant, cols), bytes)
            }
            QuantData::Scales(scales) => {
                let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
                let offset = quantised::code_bytes(quant, cols);
                (offset, 2 * quant.scales(cols), bytes)
            }
        };
        self.rows_to(block.part, block.row, block.order, offset, width, &bytes)
    }

    /// Places rows of `width` bytes, which lie end to end in `bytes`, at `offset` in their rows on
    /// the device. They are copied in runs: neighbours in the file are a fixed number of rows apart
    /// on the device, so one run is one copy.
    fn rows_to(
        &self,
        part: usize,
        row: usize,
        order: RowOrder,
        offset: usize,
        width: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let (rows, pitch) = (bytes.len() / width, self.stride * self.unit);
        let place = |i: usize| self.firsts[part] + order.destination(row + i);
        let mut from = 0;
        while from < rows {
            let first = place(from);
            let apart = if from + 1 < rows {
                place(from + 1).wrapping_sub(first)
            } else {
                1
            };
            let mut to = from + 1;
            while to < rows && apart.checked_mul(to - from) == place(to).checked_sub(first) {
                to += 1;
            }
            if to == from + 1 || apart == 0 {
                // A row by itself, because the next row lies before it.
                to = from + 1;
            }
            let apart = apart.clamp(1, self.rows());
            self.weights.write(
                first * pitch + offset,
                width,
                apart * pitch,
                &bytes[from * width..to * width],
            )?;
            from = to;
        }
        Ok(())
    }

    pub(super) fn set_bias(&self, part: usize, values: &[f32]) -> Result<()> {
        let Some(bias) = &self.bias else {
            return Err(Error::Internal("a bias for a matrix without one".into()));
        };
        bias.write_floats(4 * self.firsts[part], values)
    }
}

/// Converts elements to another floating-point format (`Gpu::new` refuses others), rounding to
/// nearest even.
fn convert(from: Dtype, to: Dtype, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / from.size() * to.size());
    let mut put = |x: f32| match to {
        Dtype::F32 => out.extend_from_slice(&x.to_le_bytes()),
        Dtype::F16 => out.extend_from_slice(&f16::from_f32(x).to_le_bytes()),
        _ => out.extend_from_slice(&bf16::from_f32(x).to_le_bytes()),
    };
    match from {
        Dtype::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .for_each(|&b| put(f32::from_le_bytes(b))),
        Dtype::F16 => bytes
            .as_chunks()
            .0
            .iter()
            .for_each(|&b| put(f16::from_le_bytes(b).to_f32())),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .for_each(|&b| put(bf16::from_le_bytes(b).to_f32())),
    }
    out
}
