//! Weights on the device: `[N, K]`, each row padded with zeros to a multiple of 32 numbers. For
//! quantised weights, `kernels/quant.h` describes the layout.

use super::device::{BOX, Device, TensorMap};
use super::memory::Memory;
use super::pad32;
use super::quantised::{self, Each};
use crate::backend::{Block, MatSpec, PartSpec, QuantBlock, QuantData, RowOrder};
use crate::{Dtype, Error, Result};
use half::{bf16, f16};
use std::sync::Arc;

/// A weight matrix: runs of neighbouring parts that have one dtype. Only q | k | v may have several
/// runs.
pub struct GpuMat<D: Device> {
    runs: Vec<WeightRows<D>>,
    bias: Option<Memory<D>>,
    /// [`MatSpec::scale`].
    pub(super) scale: f32,
    /// [`MatSpec::adapter_index`].
    pub(super) adapter_index: Option<usize>,
    /// For each part, where its rows begin.
    parts: Vec<Part>,
}

/// Weight rows of one dtype, in one allocation.
pub(super) struct WeightRows<D: Device> {
    memory: Memory<D>,
    /// The number of its first row in the matrix.
    pub first: usize,
    /// The number of its rows.
    pub rows: usize,
    pub cols: usize,
    /// The distance from row to row in numbers; for quantised weights, in units of
    /// [`quantised::UNIT`] bytes.
    pub stride: usize,
    /// Bytes of one unit of `stride`.
    unit: usize,
    pub dtype: Dtype,
    /// The map of the rows, if the device has kernels that take one.
    pub map: Option<TensorMap>,
}

/// Where the rows of a part begin.
struct Part {
    /// The run to which the rows belong.
    run: usize,
    /// The number of the part's first row in the run.
    in_run: usize,
    /// The number of the part's first row in the matrix.
    in_matrix: usize,
}

/// The stride of a matrix, and the bytes of one unit of the stride.
fn stride(dtype: Dtype, cols: usize) -> (usize, usize) {
    match dtype.quant() {
        Some(quant) => (quantised::stride(quant, cols), quantised::UNIT),
        None => (pad32(cols), dtype.size()),
    }
}

/// [`crate::backend::Backend::settle`]. q, k and v may keep different formats if all of them are
/// quantised. If the parts of any other matrix differ, all become int8; they become float32 if one
/// of them is a float.
pub(super) fn settle(parts: &mut [PartSpec]) {
    let one = parts.iter().all(|part| part.dtype == parts[0].dtype);
    let quantised = parts.iter().all(|part| part.dtype.quant().is_some());
    if one || quantised && parts.len() == 3 {
        return;
    }
    let dtype = if quantised { Dtype::Int8 } else { Dtype::F32 };
    parts.iter_mut().for_each(|part| part.dtype = dtype);
}

/// The number of rows and the dtype of each part.
fn parts(spec: &MatSpec) -> impl Iterator<Item = (usize, Dtype)> {
    spec.parts.iter().map(|part| (part.rows, part.dtype))
}

/// Bytes of the weights and the bias.
pub(super) fn bytes(spec: &MatSpec) -> u64 {
    let bias = if spec.bias { 4 } else { 0 };
    parts(spec).fold(0, |sum: u64, (rows, dtype)| {
        let (stride, unit) = stride(dtype, spec.cols);
        let row = (stride as u64).saturating_mul(unit as u64);
        sum.saturating_add((rows as u64).saturating_mul(row.saturating_add(bias)))
    })
}

impl<D: Device> WeightRows<D> {
    fn new(device: &Arc<D>, first: usize, rows: usize, cols: usize, dtype: Dtype) -> Result<Self> {
        let (stride, unit) = stride(dtype, cols);
        let bytes = rows.saturating_mul(stride).saturating_mul(unit);
        let memory = Memory::zeroed(device, "a weight matrix", bytes)?;
        let mapped = matches!(dtype, Dtype::F16 | Dtype::Bf16) && bytes > 0;
        Ok(WeightRows {
            map: match mapped {
                true => memory.tensor_map(stride * unit, rows, BOX[0])?,
                false => None,
            },
            memory,
            first,
            rows,
            cols,
            stride,
            unit,
            dtype,
        })
    }

    pub fn at(&self) -> u64 {
        self.memory.at()
    }

    /// Whether the kernels that read a prompt's activations through a map take them in permuted
    /// order. This order permutes each 16 columns, so the number of columns must be a multiple of
    /// 16. There are no such kernels for formats that only files have.
    pub fn permutes(&self) -> bool {
        let dtype = self.dtype;
        !dtype.is_float() && !dtype.is_of_files() && self.cols.is_multiple_of(16)
    }
}

impl<D: Device> GpuMat<D> {
    pub(super) fn new(device: &Arc<D>, spec: &MatSpec) -> Result<Self> {
        // The number of rows and the dtype of each run.
        let mut runs: Vec<(usize, Dtype)> = Vec::new();
        let (mut all, mut in_matrix) = (Vec::new(), 0usize);
        for (rows, dtype) in parts(spec) {
            if runs.last().is_none_or(|last| last.1 != dtype) {
                runs.push((0, dtype));
            }
            let run = runs.len() - 1;
            all.push(Part {
                run,
                in_run: runs[run].0,
                in_matrix,
            });
            in_matrix = in_matrix.saturating_add(rows);
            runs[run].0 = runs[run].0.saturating_add(rows);
        }
        if runs.len() > 1 && all.len() != 3 {
            let (one, other) = (runs[0].1, runs[1].1);
            return Err(Error::Unsupported(format!(
                "a matrix that is {one} and {other}: on a GPU, only q, k and v may differ in dtype"
            )));
        }
        let mut first = 0;
        let make = |(rows, dtype): (usize, Dtype)| {
            let run = WeightRows::new(device, first, rows, spec.cols, dtype);
            first = first.saturating_add(rows);
            run
        };
        let runs = runs.into_iter().map(make).collect::<Result<Vec<_>>>()?;
        let bias = |_| Memory::zeroed(device, "a bias", in_matrix.saturating_mul(4));
        Ok(GpuMat {
            runs,
            bias: spec.bias.then_some(()).map(bias).transpose()?,
            scale: spec.scale,
            adapter_index: spec.adapter_index,
            parts: all,
        })
    }

    /// The runs of neighbouring parts with one dtype.
    pub(super) fn runs(&self) -> &[WeightRows<D>] {
        &self.runs
    }

    /// All rows of a matrix that is not q | k | v.
    pub(super) fn whole(&self) -> &WeightRows<D> {
        &self.runs[0]
    }

    /// The address of the bias; 0 if there is none.
    pub(super) fn bias(&self) -> u64 {
        self.bias.as_ref().map_or(0, Memory::at)
    }

    /// Stores a rectangle of a stored tensor of floats.
    pub(super) fn pack(&self, block: &Block<'_>) -> Result<()> {
        let run = &self.runs[self.parts[block.part].run];
        let converted;
        let bytes = if block.dtype == run.dtype {
            block.bytes
        } else {
            converted = convert(block.dtype, run.dtype, block.bytes);
            &converted[..]
        };
        let size = run.dtype.size();
        let (offset, width) = (block.col * size, block.cols * size);
        self.rows_to(block.part, block.row, block.order, offset, width, bytes)
    }

    /// Stores the codes or the scales of some rows. `each` is [`crate::backend::Backend::each`].
    pub(super) fn pack_quantised(&self, block: &QuantBlock<'_>, each: &Each<'_>) -> Result<()> {
        let run = &self.runs[self.parts[block.part].run];
        let (Some(quant), cols) = (run.dtype.quant(), run.cols) else {
            let dtype = run.dtype;
            return Err(Error::Internal(format!("codes for a matrix of {dtype}")));
        };
        let (offset, width, bytes) = match block.data {
            QuantData::Codes(codes) => {
                let bytes = quantised::codes(quant, cols, codes, each)?;
                (0, quantised::code_bytes(quant, cols), bytes)
            }
            QuantData::Scales(scales) => {
                let bytes = quantised::scales(quant, cols, scales)?;
                let offset = quantised::code_bytes(quant, cols);
                (offset, 2 * quant.scales(cols), bytes)
            }
        };
        self.rows_to(block.part, block.row, block.order, offset, width, &bytes)
    }

    /// Stores rows of `width` bytes, which lie end to end in `bytes`, at `offset` in their rows on
    /// the device. Neighbouring rows of a file are often a fixed number of rows apart on the
    /// device. One copy stores all rows of such a series.
    fn rows_to(
        &self,
        part: usize,
        row: usize,
        order: RowOrder,
        offset: usize,
        width: usize,
        bytes: &[u8],
    ) -> Result<()> {
        let Part { run, in_run, .. } = self.parts[part];
        let run = &self.runs[run];
        let (rows, pitch) = (bytes.len() / width, run.stride * run.unit);
        let destination = |i: usize| in_run + order.destination(row + i);
        let mut from = 0;
        while from < rows {
            let first = destination(from);
            let apart = if from + 1 < rows {
                destination(from + 1).wrapping_sub(first)
            } else {
                1
            };
            let mut to = from + 1;
            while to < rows && apart.checked_mul(to - from) == destination(to).checked_sub(first) {
                to += 1;
            }
            if to == from + 1 || apart == 0 {
                // This row is copied alone: on the device, the next row lies before it.
                to = from + 1;
            }
            let apart = apart.clamp(1, run.rows);
            run.memory.write(
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
        bias.write_floats(4 * self.parts[part].in_matrix, values)
    }
}

/// Converts elements to another floating-point format, rounding to nearest even. There are no other
/// formats here: `Gpu::new` refuses them.
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
