//! Reads a checkpoint's tensors straight into a backend's matrices.
//!
//! There are two passes. First a [`Plan`] finds and checks every tensor, and refuses surplus ones.
//! Then a `Loader` reads each tensor once, front to back, slab by slab, and checks its numbers on
//! the way (`finite.rs`).

use super::columns::cut_rows;
use super::files::Source;
use super::finite;
use super::plan::{MatPlan, NormPlan, PartPlan, Plan};
use super::slabs::{
    Progress, as_f32, by_rows, float, on_threads, read, slab_rows, to_f32, zeros_f32,
};
use super::stored::{Coded, Piece, Rows, Stored};
use crate::backend::{Backend, Block, Layer, MatSpec, Weights};
use crate::file::zeros;
use crate::{Cancel, Dtype, Error, Result, reserve};
use std::ops::Range;

/// How loading reports progress and how it is stopped.
pub struct LoadControl<'a> {
    /// Checked before every tensor.
    pub cancel: Option<&'a Cancel>,
    /// Called with the share of bytes that has been read. The share ascends, and 1.0 comes last. If
    /// it returns `false`, loading stops.
    pub progress: &'a mut dyn FnMut(f32) -> bool,
}

/// Reads every tensor once, in slabs, into matrices of the planned formats. If the format is
/// quantised and the checkpoint has floats, it quantises them on the way.
///
/// A tied Hugging Face checkpoint may store `lm_head.weight` all the same. If all its bits equal
/// the embedding's, it is dropped, as in transformers. If it differs, transformers 4 ignores it and
/// transformers 5 uses it; here it is an error.
///
/// # Errors
/// [`Error::Tensor`] for a number that is not finite in the format in which it is kept;
/// [`Error::Io`] if a file ends too soon; [`Error::Cancelled`]; the backend's error if there is not
/// enough memory.
pub fn load<B: Backend>(
    backend: &B,
    plan: &Plan<'_>,
    control: &mut LoadControl<'_>,
) -> Result<Weights<B>> {
    let mut loader = Loader::new(backend, control, plan.read_bytes());
    if let Some((embedding, head)) = &plan.twins {
        loader.check_twins(embedding, head)?;
    }
    let embedding = loader.matrix(&plan.embedding)?;
    let mut layers = Vec::with_capacity(plan.layers.len());
    for (index, layer) in plan.layers.iter().enumerate() {
        let [attention_norm, ffn_norm] = &layer.norms;
        let [wqkv, wo, w13, w2] = &layer.matrices;
        layers.push(Layer {
            index,
            attention_norm: loader.norm(attention_norm)?,
            wqkv: loader.matrix(wqkv)?,
            head_norms: match &layer.head_norms {
                Some([q, k]) => Some([loader.norm(q)?, loader.norm(k)?]),
                None => None,
            },
            rotation: layer.rotation,
            window: layer.window,
            wo: loader.matrix(wo)?,
            ffn_norm: loader.norm(ffn_norm)?,
            w13: loader.matrix(w13)?,
            w2: loader.matrix(w2)?,
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

pub(crate) struct Loader<'a, 'c, B: Backend> {
    pub(super) backend: &'a B,
    control: &'a mut LoadControl<'c>,
    /// The slab.
    buf: Vec<u8>,
    progress: Progress,
}

impl<'a, 'c, B: Backend> Loader<'a, 'c, B> {
    /// A loader that will read `total` bytes.
    pub fn new(backend: &'a B, control: &'a mut LoadControl<'c>, total: u64) -> Self {
        Loader {
            backend,
            control,
            buf: Vec::new(),
            progress: Progress::new(total),
        }
    }

    pub fn matrix(&mut self, plan: &MatPlan) -> Result<B::Mat> {
        self.check_cancel()?;
        let mut mat = self.backend.new_mat(&plan.spec)?;
        for (index, part) in plan.parts.iter().enumerate() {
            let dtype = plan.spec.parts[index].dtype;
            match (dtype.quant(), &part.stored) {
                (None, Stored::Floats(pieces)) => {
                    self.floats(&mut mat, index, part, pieces, dtype)?;
                }
                (None, Stored::Codes(_)) => self.decoded(&mut mat, index, part, &plan.spec)?,
                (Some(quant), Stored::Codes(coded)) if coded.natives().contains(&quant) => {
                    let size = [plan.spec.parts[index].rows, plan.spec.cols];
                    self.native(&mut mat, index, part, (&**coded, quant), size)?;
                }
                (Some(quant), _) => {
                    let size = [plan.spec.parts[index].rows, plan.spec.cols];
                    self.quantised(&mut mat, index, part, quant, size)?;
                }
            }
            if let Some(bias) = &part.bias {
                let stored = self.vector(bias)?;
                let mut values = reserve::filled("biases", stored.len(), 0.0)?;
                for (row, value) in stored.into_iter().enumerate() {
                    values[part.bias_order.destination(row)] = value;
                }
                let values = &values[part.rows.clone()];
                self.backend.set_bias(&mut mat, index, values);
            }
        }
        Ok(mat)
    }

    /// Loads a part that is stored and kept as floats.
    fn floats(
        &mut self,
        mat: &mut B::Mat,
        index: usize,
        part: &PartPlan,
        pieces: &[Piece],
        dtype: Dtype,
    ) -> Result<()> {
        let backend = self.backend;
        for piece in pieces {
            let stored = float(piece.source.info.encoding);
            let width = piece.cols.len();
            let cut = width < piece.source.info.shape[1];
            let mut kept = Vec::new();
            self.slabs(&piece.source, piece.rows.clone(), dtype, |row, bytes| {
                let mut bytes = bytes;
                if cut {
                    let (n, size) = (bytes.len() / piece.source.row_bytes(), stored.size());
                    kept.clear();
                    reserve::vec("columns of rows", &mut kept, n * width * size)?;
                    kept.resize(n * width * size, 0);
                    let cols = piece.cols.start * size..piece.cols.end * size;
                    cut_rows(bytes, n, cols, &mut kept);
                    bytes = &kept;
                }
                let block = Block {
                    part: index,
                    row: piece.row + row,
                    col: piece.col,
                    cols: width,
                    order: part.order,
                    dtype: stored,
                    bytes,
                };
                backend.pack(mat, &block);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Loads a part that is stored as codes and kept as floats.
    fn decoded(
        &mut self,
        mat: &mut B::Mat,
        index: usize,
        part: &PartPlan,
        spec: &MatSpec,
    ) -> Result<()> {
        let (backend, mut row, mut bytes) = (self.backend, 0, Vec::new());
        let (cols, kept) = (spec.cols, spec.parts[index].dtype);
        self.float_rows(cols, &part.stored, kept, |values| {
            bytes.clear();
            reserve::vec("rows as float32", &mut bytes, 4 * values.len())?;
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let block = Block {
                part: index,
                row,
                col: 0,
                cols,
                order: part.order,
                dtype: Dtype::F32,
                bytes: &bytes,
            };
            backend.pack(mat, &block);
            row += values.len() / cols;
            Ok(())
        })
    }

    /// Reads the rows of a part in order, as float32. They will be converted to `to`.
    pub fn float_rows(
        &mut self,
        cols: usize,
        stored: &Stored,
        to: Dtype,
        mut take: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let pieces = match stored {
            Stored::Floats(pieces) => pieces,
            Stored::Codes(coded) => return self.decoded_rows(cols, &**coded, to, take),
        };
        let backend = self.backend;
        // Pieces of the same rows lie side by side.
        for side_by_side in pieces.chunk_by(|a, b| a.row == b.row) {
            self.check_cancel()?;
            let rows = side_by_side[0].rows.len();
            let step = slab_rows(rows, 4 * cols);
            let mut values = zeros_f32("rows that are quantised", step * cols)?;
            for row in (0..rows).step_by(step) {
                let n = step.min(rows - row);
                for piece in side_by_side {
                    let info = piece.source.info;
                    let row_bytes = piece.source.row_bytes();
                    let needed = step * row_bytes;
                    if self.buf.len() < needed {
                        self.buf =
                            zeros("the buffer that tensors are read through", needed as u64)?;
                    }
                    let bytes = &mut self.buf[..n * row_bytes];
                    let offset = (piece.rows.start + row) * row_bytes;
                    read(backend, &piece.source, to, offset as u64, bytes)?;
                    let (bytes, size) = (&*bytes, info.encoding.size());
                    let kept = piece.cols.start * size..piece.cols.end * size;
                    by_rows(backend, &mut values[..n * cols], cols, n, |at, values| {
                        let rows = bytes[at * row_bytes..].chunks_exact(row_bytes);
                        for (from, to) in rows.zip(values.chunks_exact_mut(cols)) {
                            let to = &mut to[piece.col..piece.col + piece.cols.len()];
                            as_f32(info.encoding, &from[kept.clone()], to);
                        }
                        Ok(())
                    })?;
                    let read = bytes.len();
                    self.advance(read as u64)?;
                }
                take(&values[..n * cols])?;
            }
        }
        Ok(())
    }

    /// The same as [`Self::float_rows`], for a part that is stored as codes.
    fn decoded_rows(
        &mut self,
        cols: usize,
        coded: &dyn Coded,
        to: Dtype,
        mut take: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.check_cancel()?;
        let rows = coded.rows();
        let (backend, mut stored) = (self.backend, coded.reader()?);
        let step = slab_rows(rows, 4 * cols);
        let mut values = zeros_f32("decoded rows", step * cols)?;
        let together = stored.together().unwrap_or(rows);
        for first in (0..rows).step_by(together) {
            let end = rows.min(first + together);
            prepare(backend, &mut *stored, first..end)?;
            for row in (first..end).step_by(step) {
                let n = step.min(end - row);
                let values = &mut values[..n * cols];
                by_rows(backend, values, cols, n, |at, values| {
                    stored.floats(row + at, values)?;
                    finite::check_decoded(coded.source(), to, (row + at) * cols, values)
                })?;
                take(values)?;
                self.advance_rows(coded.bytes(), row..row + n, rows)?;
            }
        }
        Ok(())
    }

    fn norm(&mut self, norm: &NormPlan) -> Result<B::Buf> {
        let values = self.norm_values(norm)?;
        self.backend.new_vector(&values)
    }

    /// The weights of a norm in our order.
    pub fn norm_values(&mut self, norm: &NormPlan) -> Result<Vec<f32>> {
        let stored = self.vector(&norm.source)?;
        let mut values = reserve::filled("biases", stored.len(), 0.0)?;
        for (i, value) in stored.into_iter().enumerate() {
            values[norm.order.destination(i)] = value * norm.scale;
        }
        Ok(values)
    }

    fn vector(&mut self, source: &Source) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let encoding = source.info.encoding;
        let all = 0..source.info.shape[0];
        self.slabs(source, all, Dtype::F32, |_, bytes| {
            to_f32(encoding, bytes, &mut values)
        })?;
        Ok(values)
    }

    /// Reads rows of a tensor, whose floats will be converted to `to`. Calls `take` with the number
    /// of rows that came before, and the bytes of whole rows.
    pub fn slabs(
        &mut self,
        source: &Source,
        rows: Range<usize>,
        to: Dtype,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check_cancel()?;
        let row_bytes = source.row_bytes();
        let step = slab_rows(rows.len(), row_bytes);
        let needed = step * row_bytes;
        if self.buf.len() < needed {
            self.buf = zeros("the buffer that tensors are read through", needed as u64)?;
        }
        for row in rows.clone().step_by(step) {
            let bytes = &mut self.buf[..step.min(rows.end - row) * row_bytes];
            read(self.backend, source, to, (row * row_bytes) as u64, bytes)?;
            take(row - rows.start, bytes)?;
            let read = bytes.len();
            self.advance(read as u64)?;
        }
        Ok(())
    }

    /// Checks that the head of a tied checkpoint is its embedding.
    fn check_twins(&mut self, embedding: &Source, head: &Source) -> Result<()> {
        let mut equal = embedding.info.encoding == head.info.encoding;
        if equal {
            let mut twin = Vec::new();
            let all = 0..embedding.info.shape[0];
            self.slabs(embedding, all, Dtype::F32, |row, bytes| {
                // Both have the same shape and encoding, so their offsets are equal.
                let offset = (row * embedding.row_bytes()) as u64;
                twin.resize(bytes.len(), 0);
                head.file.read(head.info, offset, &mut twin)?;
                equal &= twin == bytes;
                Ok(())
            })?;
            self.advance(head.info.len)?;
        }
        if equal {
            return Ok(());
        }
        let expected = format!(
            "the same numbers as in `{}` (tie_word_embeddings)",
            embedding.name
        );
        Err(head.wrong(expected, "others".into()))
    }

    pub(super) fn check_cancel(&self) -> Result<()> {
        match self.control.cancel {
            Some(cancel) if cancel.is_triggered() => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    fn advance(&mut self, bytes: u64) -> Result<()> {
        match self.progress.advance(bytes) {
            Some(share) if !(self.control.progress)(share) => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    /// Reports that `rows`, out of `all` rows of tensors with `bytes` bytes, have been read.
    pub(super) fn advance_rows(
        &mut self,
        bytes: u64,
        rows: Range<usize>,
        all: usize,
    ) -> Result<()> {
        let before = |row: usize| (u128::from(bytes) * row as u128 / all as u128) as u64;
        self.advance(before(rows.end) - before(rows.start))
    }
}

/// Calls [`Rows::prepare`] with the backend's threads.
pub(super) fn prepare<B: Backend>(
    backend: &B,
    stored: &mut dyn Rows,
    rows: Range<usize>,
) -> Result<()> {
    stored.prepare(rows, &|words, n, fill| {
        on_threads(backend, words.chunks_mut(n), |i, words| fill(i, words))
    })
}
