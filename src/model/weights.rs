//! Reads a checkpoint's tensors straight into a backend's matrices.
//!
//! In two passes: a `Plan` finds and checks every tensor and refuses what is left over; then a
//! `Loader` reads each tensor once, front to back, through one slab, and checks its numbers on the way
//! ([`super::finite`]).

use super::Config;
use super::finite;
use super::names::{self, Dtypes, Matrix};
use super::plan::{MatPlan, Placed, Plan, Source};
use crate::backend::{Backend, Block, Layer, MatUse, QuantBlock, QuantData, RowOrder, Weights};
use crate::file::zeros;
use crate::format::Checkpoint;
use crate::quant::{Quant, nf4::DoubleQuant};
use crate::{Cancel, Dtype, Error, Result, reserve};
use half::{bf16, f16};
use std::sync::Mutex;

/// How loading reports progress, and how it is told to stop.
pub struct LoadControl<'a> {
    /// Checked before every tensor.
    pub cancel: Option<&'a Cancel>,
    /// Called with the share of bytes that has been read, ascending, 1.0 last; `false` stops.
    pub progress: &'a mut dyn FnMut(f32) -> bool,
}

/// The slab: so large that a read costs more than its call, so small that it fits in L2.
const SLAB: usize = 2 << 20;

/// Slabs begin at multiples of this many rows, so that backends that pack rows in strips mostly get
/// whole strips.
const SLAB_ROWS: usize = 64;

/// Bytes that the packed weights will take on `B`, before anything is allocated.
pub fn weight_bytes<B: Backend>(config: &Config, dtypes: Dtypes) -> u64 {
    let bytes = |matrix: &Matrix, dtype, usage| B::mat_bytes(&matrix.spec(config, dtype, usage));
    let norm = 4 * config.shape.dim as u64;
    let layer = [names::WQKV, names::WO, names::W13, names::W2]
        .iter()
        .fold(2 * norm, |sum, matrix| {
            sum.saturating_add(bytes(matrix, dtypes.layers, MatUse::Product))
        });
    let head = if config.tied_embeddings {
        0
    } else {
        bytes(&names::HEAD, dtypes.head, MatUse::Product)
    };
    layer
        .saturating_mul(config.shape.n_layers as u64)
        .saturating_add(bytes(
            &names::EMBEDDING,
            dtypes.of_embedding(config),
            names::embedding_usage(config),
        ))
        .saturating_add(head)
        .saturating_add(norm)
}

/// Reads every tensor once, in slabs, into matrices of these formats. Quantises on the way if the
/// formats are quantised and the checkpoint has floats.
///
/// Every name, shape and dtype is checked before the first byte of data is read; surplus tensors
/// are an error (except `rope.freqs` and `rotary_emb.inv_freq`).
///
/// A tied Hugging Face checkpoint may still store `lm_head.weight`. If it equals the embedding bit
/// by bit, it is not kept, as in transformers. If it differs, transformers 4 ignores it and
/// transformers 5 uses it; here that is an error.
///
/// # Errors
/// [`Error::Tensor`] for a tensor that is missing, misshapen or surplus, or has a number that is not
/// finite in the format that it is kept in; [`Error::Io`] if a file ends too soon;
/// [`Error::Cancelled`]; and the backend's error if memory is lacking.
pub fn load<B: Backend>(
    backend: &B,
    checkpoint: &Checkpoint,
    config: &Config,
    dtypes: Dtypes,
    control: &mut LoadControl<'_>,
) -> Result<Weights<B>> {
    let plan = Plan::new(checkpoint, config, dtypes)?;
    let mut loader = Loader::new(backend, control, plan.bytes());
    if let Some((embedding, head)) = &plan.twins {
        loader.check_twins(embedding, head)?;
    }
    let embedding = loader.matrix(&plan.embedding)?;
    let mut layers = Vec::with_capacity(plan.layers.len());
    for (index, layer) in plan.layers.iter().enumerate() {
        layers.push(Layer {
            index,
            attention_norm: loader.norm(&layer.attention_norm)?,
            wqkv: loader.matrix(&layer.wqkv)?,
            wo: loader.matrix(&layer.wo)?,
            ffn_norm: loader.norm(&layer.ffn_norm)?,
            w13: loader.matrix(&layer.w13)?,
            w2: loader.matrix(&layer.w2)?,
        });
    }
    let norm = loader.norm(&plan.norm)?;
    let head = plan
        .head
        .as_ref()
        .map(|head| loader.matrix(head))
        .transpose()?;
    Ok(Weights {
        embedding,
        layers,
        norm,
        head,
    })
}

pub(super) struct Loader<'a, 'c, B: Backend> {
    backend: &'a B,
    control: &'a mut LoadControl<'c>,
    /// The slab.
    buf: Vec<u8>,
    progress: Progress,
}

impl<'a, 'c, B: Backend> Loader<'a, 'c, B> {
    /// `total` bytes will be read.
    pub fn new(backend: &'a B, control: &'a mut LoadControl<'c>, total: u64) -> Self {
        let progress = Progress {
            done: 0,
            total,
            share: 0.0,
        };
        Loader {
            backend,
            control,
            buf: Vec::new(),
            progress,
        }
    }

    fn matrix(&mut self, plan: &MatPlan) -> Result<B::Mat> {
        self.check_cancel()?;
        let mut mat = self.backend.new_mat(&plan.spec)?;
        let backend = self.backend;
        if let Some(quant) = plan.spec.dtype.quant() {
            self.quantised(quant, plan, |part, order, row, data| {
                let block = QuantBlock {
                    part,
                    row,
                    order,
                    data,
                };
                backend.pack_quantised(&mut mat, &block);
            })?;
        }
        let floats = plan.spec.dtype.is_float();
        for placed in plan.weights.iter().filter(|_| floats) {
            let info = placed.source.info;
            let cols = info.shape[1];
            self.slabs(&placed.source, plan.spec.dtype, |first_row, bytes| {
                let row = placed.row + first_row;
                let (part, col, order) = (placed.part, placed.col, placed.order);
                let block = Block {
                    part,
                    row,
                    col,
                    cols,
                    order,
                    dtype: info.dtype,
                    bytes,
                };
                backend.pack(&mut mat, &block);
                Ok(())
            })?;
        }
        for placed in &plan.biases {
            let stored = self.vector(&placed.source)?;
            let mut values = vec![0.0; stored.len()];
            for (row, value) in stored.into_iter().enumerate() {
                values[placed.order.destination(row)] = value;
            }
            backend.set_bias(&mut mat, placed.part, &values);
        }
        Ok(mat)
    }

    /// Hands a matrix to the backend as codes and scales, part by part: as stored, or quantised
    /// here.
    fn quantised(
        &mut self,
        quant: Quant,
        plan: &MatPlan,
        mut take: impl FnMut(usize, RowOrder, usize, QuantData<'_>),
    ) -> Result<()> {
        let cols = plan.spec.cols;
        for tensors in &plan.quantised {
            let (part, order) = (tensors[0].part, tensors[0].order);
            self.stored_part(quant, tensors, |row, data| take(part, order, row, data))?;
        }
        for pieces in plan.weights.chunk_by(|a, b| a.part == b.part) {
            let (part, order) = (pieces[0].part, pieces[0].order);
            let (mut absmax, mut halves) = (Vec::new(), Vec::new());
            if quant == Quant::Nf4 {
                let n = plan.spec.parts[part] * quant.scales(cols);
                reserve::vec("scales of a tensor", &mut absmax, n)?;
            }
            self.quantise_part(quant, cols, pieces, |row, codes, scales| {
                take(part, order, row, QuantData::Codes(codes));
                match quant {
                    Quant::Nf4 => absmax.extend_from_slice(scales),
                    Quant::Int8 | Quant::Int4 | Quant::Fp8 => {
                        halves.clear();
                        reserve::vec("scales of rows", &mut halves, scales.len())?;
                        halves.extend(scales.iter().map(|&s| to_f16(s)));
                        take(part, order, row, QuantData::Scales(&halves));
                    }
                }
                Ok(())
            })?;
            if quant == Quant::Nf4 {
                let scales = DoubleQuant::new(&absmax)?.scales()?;
                finite::check_halves(&pieces[0].source, &scales)?;
                take(part, order, 0, QuantData::Scales(&scales));
            }
        }
        Ok(())
    }

    /// Reads a part of a quantised checkpoint.
    fn stored_part(
        &mut self,
        quant: Quant,
        tensors: &[Placed],
        mut take: impl FnMut(usize, QuantData<'_>),
    ) -> Result<()> {
        self.slabs(&tensors[0].source, Dtype::F32, |row, codes| {
            take(row, QuantData::Codes(codes));
            Ok(())
        })?;
        if quant != Quant::Nf4 {
            let mut scales = Vec::new();
            return self.slabs(&tensors[1].source, Dtype::F32, |row, bytes| {
                let halves = bytes.as_chunks().0;
                scales.clear();
                reserve::vec("scales of rows", &mut scales, halves.len())?;
                scales.extend(halves.iter().map(|&b| u16::from_le_bytes(b)));
                take(row, QuantData::Scales(&scales));
                Ok(())
            });
        }
        let mut codes = Vec::new();
        let n = tensors[1].source.info.len as usize;
        reserve::vec("scales of a tensor", &mut codes, n)?;
        self.slabs(&tensors[1].source, Dtype::F32, |_, bytes| {
            codes.extend_from_slice(bytes);
            Ok(())
        })?;
        let nested = self.vector(&tensors[2].source)?;
        let offset = self.vector(&tensors[3].source)?[0];
        let double = DoubleQuant {
            codes,
            nested,
            offset,
        };
        let scales = double.scales()?;
        finite::check_halves(&tensors[0].source, &scales)?;
        take(0, QuantData::Scales(&scales));
        Ok(())
    }

    /// Quantises a part that is stored as floats in these pieces, whole rows at a time. Passes on
    /// the number of the first row, codes, and float32 scales.
    pub fn quantise_part(
        &mut self,
        quant: Quant,
        cols: usize,
        pieces: &[Placed],
        mut take: impl FnMut(usize, &[u8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let (backend, mut row) = (self.backend, 0);
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        self.float_rows(cols, pieces, Dtype::F32, |values| {
            let rows = values.len() / cols;
            // Later slabs never need more than the first.
            let (n_codes, n_scales) = (rows * quant.code_bytes(cols), rows * quant.scales(cols));
            codes.clear();
            reserve::vec("codes of rows", &mut codes, n_codes)?;
            codes.resize(n_codes, 0);
            scales.clear();
            reserve::vec("scales of rows", &mut scales, n_scales)?;
            scales.resize(n_scales, 0.0);
            backend.quantise(quant, cols, values, &mut codes, &mut scales);
            finite::check_scales(&pieces[0].source, row * quant.scales(cols), &scales)?;
            take(row, &codes, &scales)?;
            row += rows;
            Ok(())
        })
    }

    /// Reads the rows of a part that is stored in these pieces, in order, as float32 that become `to`.
    /// Pieces of the same rows lie side by side.
    pub fn float_rows(
        &mut self,
        cols: usize,
        pieces: &[Placed],
        to: Dtype,
        mut take: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let (backend, mut piece) = (self.backend, Vec::new());
        for side_by_side in pieces.chunk_by(|a, b| a.row == b.row) {
            self.check_cancel()?;
            let rows = side_by_side[0].source.info.shape[0];
            let step = slab_rows(rows, 4 * cols);
            let mut values = zeros_f32("rows that are quantised", step * cols)?;
            for row in (0..rows).step_by(step) {
                let n = step.min(rows - row);
                for placed in side_by_side {
                    let info = placed.source.info;
                    let row_bytes = (info.len / rows as u64) as usize;
                    let needed = step * row_bytes;
                    if self.buf.len() < needed {
                        self.buf =
                            zeros("the buffer that tensors are read through", needed as u64)?;
                    }
                    let bytes = &mut self.buf[..n * row_bytes];
                    read(backend, &placed.source, to, (row * row_bytes) as u64, bytes)?;
                    piece.clear();
                    to_f32(info.dtype, bytes, &mut piece)?;
                    let width = info.shape[1];
                    let rows = piece.chunks_exact(width).zip(values.chunks_exact_mut(cols));
                    for (from, to) in rows {
                        to[placed.col..placed.col + width].copy_from_slice(from);
                    }
                    let read = bytes.len();
                    self.advance(read)?;
                }
                take(&values[..n * cols])?;
            }
        }
        Ok(())
    }

    fn norm(&mut self, source: &Source) -> Result<B::Buf> {
        let values = self.vector(source)?;
        self.backend.new_vector(&values)
    }

    fn vector(&mut self, source: &Source) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let dtype = source.info.dtype;
        self.slabs(source, Dtype::F32, |_, bytes| {
            to_f32(dtype, bytes, &mut values)
        })?;
        Ok(values)
    }

    /// Passes a tensor, whose floats become `to`, to `take` in whole rows: the number of the first row,
    /// and the bytes of the rows.
    pub fn slabs(
        &mut self,
        source: &Source,
        to: Dtype,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check_cancel()?;
        let info = source.info;
        let rows = info.shape[0];
        let row_bytes = (info.len / rows as u64) as usize;
        let step = slab_rows(rows, row_bytes);
        let needed = step * row_bytes;
        if self.buf.len() < needed {
            self.buf = zeros("the buffer that tensors are read through", needed as u64)?;
        }
        for row in (0..rows).step_by(step) {
            let bytes = &mut self.buf[..step.min(rows - row) * row_bytes];
            read(self.backend, source, to, (row * row_bytes) as u64, bytes)?;
            take(row, bytes)?;
            let read = bytes.len();
            self.advance(read)?;
        }
        Ok(())
    }

    /// Checks that the head of a tied checkpoint is its embedding.
    fn check_twins(&mut self, embedding: &Source, head: &Source) -> Result<()> {
        let mut equal = embedding.info.dtype == head.info.dtype;
        if equal {
            let mut twin = Vec::new();
            self.slabs(embedding, Dtype::F32, |row, bytes| {
                // Both have the same shape and dtype, so the same offsets.
                let offset = row as u64 * (embedding.info.len / embedding.info.shape[0] as u64);
                twin.resize(bytes.len(), 0);
                head.file.read(head.info, offset, &mut twin)?;
                equal &= twin == bytes;
                Ok(())
            })?;
            self.advance(head.info.len as usize)?;
        }
        if equal {
            return Ok(());
        }
        Err(Error::Tensor {
            path: head.file.path.clone(),
            tensor: head.name.into(),
            expected: format!(
                "the same numbers as in `{}` (tie_word_embeddings)",
                embedding.name
            ),
            got: "others".into(),
        })
    }

    fn check_cancel(&self) -> Result<()> {
        match self.control.cancel {
            Some(cancel) if cancel.is_triggered() => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    fn advance(&mut self, bytes: usize) -> Result<()> {
        match self.progress.advance(bytes as u64) {
            Some(share) if !(self.control.progress)(share) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }
}

/// Reads bytes from `offset` of a tensor on, with all threads. Two threads copy 2.2 GB from the
/// page cache in 0.14 s; one thread takes 0.27 s, while the other waits for it. Floats become `to`:
/// the thread that has read them checks them while they are in its cache.
fn read<B: Backend>(
    backend: &B,
    source: &Source,
    to: Dtype,
    offset: u64,
    bytes: &mut [u8],
) -> Result<()> {
    /// With eight pieces in a slab, the last piece to be ready does not keep the others waiting for
    /// long.
    const PIECE: usize = SLAB / 8;
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    backend.fill(bytes, PIECE, &|at, piece| {
        let from = offset + at as u64;
        let result = source.file.read(source.info, from, piece);
        if let Err(error) = result.and_then(|()| finite::check(source, to, from, piece)) {
            let mut first = failed.lock().unwrap_or_else(|e| e.into_inner());
            if first.as_ref().is_none_or(|&(before, _)| at < before) {
                *first = Some((at, error));
            }
        }
    });
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

/// How much has been read of how much there is to read.
struct Progress {
    done: u64,
    total: u64,
    /// The share that was reported last.
    share: f32,
}

impl Progress {
    /// The share to report, if it differs from the last one. It is 1.0 at the end and never before,
    /// whatever rounding gives.
    fn advance(&mut self, bytes: u64) -> Option<f32> {
        self.done += bytes;
        let share = if self.done == self.total {
            1.0
        } else {
            ((self.done as f64 / self.total as f64) as f32).min(1.0 - f32::EPSILON)
        };
        let news = share > self.share;
        self.share = share;
        news.then_some(share)
    }
}

/// Number of rows in a slab of a tensor with `rows` rows.
fn slab_rows(rows: usize, row_bytes: usize) -> usize {
    let step = (SLAB / row_bytes).clamp(1, rows);
    match step > SLAB_ROWS {
        true => step - step % SLAB_ROWS,
        false => step,
    }
}

fn zeros_f32(what: &str, len: usize) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    let refused = |_| Error::refused(what, 4 * len as u64);
    values.try_reserve_exact(len).map_err(refused)?;
    values.resize(len, 0.0);
    Ok(values)
}

fn to_f16(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// Little-endian elements of any alignment, appended as float32. Only floats get here
/// (`Finder::tensor`).
fn to_f32(dtype: Dtype, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
    let n = bytes.len() / dtype.size();
    reserve::vec("rows as float32", values, n)?;
    match dtype {
        Dtype::Int8 | Dtype::Int4 | Dtype::Nf4 | Dtype::Fp8 | Dtype::U8 => {
            unreachable!("{dtype} is no format of a float")
        }
        Dtype::F32 => {
            values.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)));
        }
        Dtype::F16 => {
            values.extend(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f16::from_le_bytes(b).to_f32()),
            );
        }
        Dtype::Bf16 => {
            values.extend(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| bf16::from_le_bytes(b).to_f32()),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn progress_is_news_and_ends_once() {
        // The total is a billion times larger than its parts, so most steps change nothing that a
        // float32 shows.
        let total = 1 << 40;
        let mut progress = Progress {
            done: 0,
            total,
            share: 0.0,
        };
        let mut shares: Vec<f32> = (0..10_000)
            .filter_map(|_| progress.advance(1 << 10))
            .collect();
        shares.extend(progress.advance(total - progress.done - 2));
        assert_eq!(
            progress.advance(1),
            None,
            "rounds to 1.0, but is not the end"
        );
        assert!(shares.last().is_some_and(|&share| share < 1.0));
        shares.extend(progress.advance(1));
        assert_eq!(shares.last(), Some(&1.0));
        assert!(shares.is_sorted_by(|a, b| a < b));
    }
}
