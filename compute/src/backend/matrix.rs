//! What a backend makes matrices of: their parts and formats, and the pieces of stored tensors that
//! go into them.

use crate::Dtype;
#[cfg(doc)]
use crate::{
    backend::{Backend, Layer},
    quant::Quant,
};

/// How the rows of a source tensor become rows of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Row `i` is row `i`.
    AsStored,
    /// Hugging Face stores each q and k head so that RoPE rotates the halves `(i, i + rotated/2)`
    /// of its first `rotated` rows; we rotate neighbours: stored row `i + b * rotated/2` of a head
    /// becomes row `2i + b`. The rows behind them stay where they are.
    HalvesToPairs {
        /// Rows of one head.
        head_dim: usize,
        /// Rows of a head that are rotated; even.
        rotated: usize,
    },
}

impl RowOrder {
    /// The stored row that belongs at `destination`: the inverse of [`RowOrder::destination`].
    pub fn source(self, destination: usize) -> usize {
        match self {
            RowOrder::AsStored => destination,
            RowOrder::HalvesToPairs { head_dim, rotated } => match destination % head_dim {
                j if j < rotated => destination - j + j / 2 + j % 2 * (rotated / 2),
                _ => destination,
            },
        }
    }

    /// Bounds on the destinations of `rows` stored rows from `row` on, in a part of `all` rows.
    pub fn touched(self, row: usize, rows: usize, all: usize) -> (usize, usize) {
        match self {
            RowOrder::AsStored => (row, row + rows),
            RowOrder::HalvesToPairs { head_dim, .. } => (
                row / head_dim * head_dim,
                (row + rows).next_multiple_of(head_dim).min(all),
            ),
        }
    }

    /// The row at which stored row `row` belongs.
    pub fn destination(self, row: usize) -> usize {
        match self {
            RowOrder::AsStored => row,
            RowOrder::HalvesToPairs { head_dim, rotated } => match row % head_dim {
                j if j < rotated => row - j + 2 * (j % (rotated / 2)) + j / (rotated / 2),
                _ => row,
            },
        }
    }
}

/// The use of a matrix, by which a backend chooses its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatUse {
    /// Multiplied with activations (and, for tied embeddings, looked up too).
    Product,
    /// Rows are looked up, nothing else.
    Lookup,
}

/// A matrix to be made: `[sum(parts), cols]`. Parts are stacked by rows (q|k|v, gate|up). They stay
/// distinguishable, because a backend may interleave or pad them.
#[derive(Clone, Debug)]
pub struct MatSpec {
    /// The parts that are stacked.
    pub parts: Vec<PartSpec>,
    /// Columns, the dimension that is summed over.
    pub cols: usize,
    /// Whether each row has a bias (float32).
    pub bias: bool,
    /// The factor by which [`Backend::matmul_add`] multiplies the product and its bias; 1
    /// elsewhere.
    pub scale: f32,
    /// The use of the matrix.
    pub usage: MatUse,
    /// The number by which adapters know the matrix: `4 n + i` for matrix `i` of layer `n`, in the
    /// order of [`Layer`]'s fields. `None` for the embedding and the head, which have no adapters.
    pub adapter_index: Option<usize>,
}

/// A part of a matrix to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpec {
    /// Its rows.
    pub rows: usize,
    /// How its weights are kept.
    pub dtype: Dtype,
}

impl PartSpec {
    /// Parts of so many rows, all kept in one format.
    pub fn all(rows: &[usize], dtype: Dtype) -> Vec<PartSpec> {
        rows.iter().map(|&rows| PartSpec { rows, dtype }).collect()
    }
}

impl MatSpec {
    /// The number of rows of all parts; the greatest `usize` if the sum overflows.
    pub fn rows(&self) -> usize {
        let rows = self.parts.iter().map(|part| part.rows);
        rows.fold(0, usize::saturating_add)
    }

    /// The format of all parts, if they have one.
    pub fn dtype(&self) -> Option<Dtype> {
        let first = self.parts[0].dtype;
        let same = self.parts.iter().all(|part| part.dtype == first);
        same.then_some(first)
    }
}

/// A rectangle of a stored tensor on its way into a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Which part of the matrix.
    pub part: usize,
    /// First row within the part, in stored order.
    pub row: usize,
    /// First column.
    pub col: usize,
    /// Columns of the rectangle. Its rows are `bytes.len() / (cols * dtype.size())`.
    pub cols: usize,
    /// Stored row -> row of the part.
    pub order: RowOrder,
    /// Format of `bytes`.
    pub dtype: Dtype,
    /// Little-endian elements, row-major, of any alignment.
    pub bytes: &'a [u8],
}

/// All columns of some rows of a quantised tensor, on their way into a matrix of the same format.
#[derive(Clone, Copy, Debug)]
pub struct QuantBlock<'a> {
    /// Which part of the matrix.
    pub part: usize,
    /// First row within the part, in stored order.
    pub row: usize,
    /// Stored row -> row of the part.
    pub order: RowOrder,
    /// Their codes or their scales.
    pub data: QuantData<'a>,
}

/// Either the codes or the scales of rows. They come separately, because the scales of a whole
/// tensor may be quantised together.
#[derive(Clone, Copy, Debug)]
pub enum QuantData<'a> {
    /// [`Quant::code_bytes`] bytes for each row.
    Codes(&'a [u8]),
    /// [`Quant::scales`] words for each row: f16 bits, or the words of [`crate::quant::k`].
    Scales(&'a [u16]),
}
