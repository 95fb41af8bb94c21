//! A matrix with what an adapter adds to it, computed in float32 as its rows are read.

use crate::backend::RowOrder;
use crate::checkpoint::files::Source;
use crate::checkpoint::stored::{Coded, OnThreads, Piece, Rows, Stored};
use crate::checkpoint::{finite, slabs};
use crate::file::zeros;
use crate::quant::Quant;
use crate::{Dtype, Error, Result, reserve};
use std::ops::Range;

/// The thin matrices of a module, `scale * B A`.
pub(super) struct Pair<'a> {
    /// `[rank, cols]`.
    pub a: Source<'a>,
    /// `[rows of the module, rank]`.
    pub b: Source<'a>,
    /// Those rows of B that are the part's.
    pub rows: Range<usize>,
    pub rank: usize,
    pub scale: f32,
}

impl Pair<'_> {
    /// Reads A. Its numbers become `to`.
    pub fn a(&self, to: Dtype) -> Result<Vec<f32>> {
        rows_of(&self.a, 0..self.rank, to)
    }

    /// Reads the part's rows of B, in another order. Their numbers become `to`.
    pub fn ordered_b(&self, order: RowOrder, to: Dtype) -> Result<Vec<f32>> {
        let b = rows_of(&self.b, self.rows.clone(), to)?;
        if order == RowOrder::AsStored {
            return Ok(b);
        }
        let mut ours = reserve::filled("an adapter's rows", b.len(), 0.0)?;
        for (row, from) in b.chunks_exact(self.rank).enumerate() {
            ours[order.destination(row) * self.rank..][..self.rank].copy_from_slice(from);
        }
        Ok(ours)
    }

    /// Bytes that are read of both.
    fn bytes(&self) -> u64 {
        self.a.info.len + (self.rows.len() * self.b.row_bytes()) as u64
    }
}

/// A part to which an adapter adds something.
pub(super) struct Merged<'a> {
    pub stored: Stored<'a>,
    pub rows: usize,
    pub cols: usize,
    pub pair: Pair<'a>,
    /// How the rows of B are put into the order of the stored part's rows, if the two differ.
    pub paired: Option<RowOrder>,
}

impl Coded for Merged<'_> {
    fn source(&self) -> &Source<'_> {
        self.stored.source()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn bytes(&self) -> u64 {
        self.stored.bytes() + self.pair.bytes()
    }

    fn rows_of_word(&self) -> usize {
        match &self.stored {
            Stored::Codes(coded) => coded.rows_of_word(),
            Stored::Floats(_) => 1,
        }
    }

    fn natives(&self) -> &[Quant] {
        &[]
    }

    fn otherwise(&self) -> Option<Quant> {
        match &self.stored {
            Stored::Floats(_) => None,
            Stored::Codes(coded) => coded.otherwise(),
        }
    }

    fn held_bytes(&self) -> u64 {
        match &self.stored {
            Stored::Codes(coded) => coded.held_bytes(),
            Stored::Floats(_) => 0,
        }
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        let base = match &self.stored {
            Stored::Floats(pieces) => Base::Floats(pieces),
            Stored::Codes(coded) => Base::Codes(coded.reader()?),
        };
        Ok(Box::new(Reader {
            merged: self,
            base,
            a: self.pair.a(Dtype::F32)?,
            b: self
                .pair
                .ordered_b(self.paired.unwrap_or(RowOrder::AsStored), Dtype::F32)?,
        }))
    }
}

/// Reads rows of a tensor of floats, which become `to`.
fn rows_of(source: &Source<'_>, rows: Range<usize>, to: Dtype) -> Result<Vec<f32>> {
    let width = source.row_bytes();
    let mut bytes = zeros("an adapter's matrix", (rows.len() * width) as u64)?;
    finite::read(source, to, (rows.start * width) as u64, &mut bytes)?;
    let mut values = Vec::new();
    slabs::to_f32(source.info.encoding, &bytes, &mut values)?;
    Ok(values)
}

enum Base<'b> {
    Floats(&'b [Piece<'b>]),
    Codes(Box<dyn Rows + 'b>),
}

struct Reader<'a, 'b> {
    merged: &'b Merged<'a>,
    base: Base<'b>,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Rows for Reader<'_, '_> {
    fn together(&self) -> Option<usize> {
        match &self.base {
            Base::Codes(rows) => rows.together(),
            Base::Floats(_) => None,
        }
    }

    fn prepare(&mut self, rows: Range<usize>, on_threads: &OnThreads<'_>) -> Result<()> {
        match &mut self.base {
            Base::Codes(base) => base.prepare(rows, on_threads),
            Base::Floats(_) => Ok(()),
        }
    }

    fn native(&self, _: Quant, _: usize, _: &mut [u8], _: &mut [u16]) -> Result<()> {
        Err(Error::Internal("merged weights have no codes".into()))
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let (cols, pair) = (self.merged.cols, &self.merged.pair);
        let rank = pair.rank;
        match &self.base {
            Base::Codes(rows) => rows.floats(row, to)?,
            Base::Floats(pieces) => read_pieces(pieces, row, cols, to)?,
        }
        let mut sums = zeros_f32(cols)?;
        for (to, b) in to
            .chunks_exact_mut(cols)
            .zip(self.b[row * rank..].chunks(rank))
        {
            sums.fill(0.0);
            for (b, a) in b.iter().zip(self.a.chunks_exact(cols)) {
                for (sum, a) in sums.iter_mut().zip(a) {
                    *sum += b * a;
                }
            }
            for (to, sum) in to.iter_mut().zip(&sums) {
                *to += pair.scale * sum;
            }
        }
        Ok(())
    }
}

fn zeros_f32(n: usize) -> Result<Vec<f32>> {
    let mut values = reserve::room("a row of an adapter", n)?;
    values.resize(n, 0.0);
    Ok(values)
}

/// Reads rows of a part that is stored as floats.
fn read_pieces(pieces: &[Piece<'_>], row: usize, cols: usize, to: &mut [f32]) -> Result<()> {
    let end = row + to.len() / cols;
    let mut values = Vec::new();
    for piece in pieces {
        let (source, info) = (&piece.source, piece.source.info);
        let (first, last) = (row.max(piece.row), end.min(piece.row + piece.rows.len()));
        if first >= last {
            continue;
        }
        let width = source.row_bytes();
        let mut bytes = zeros("rows of a tensor", ((last - first) * width) as u64)?;
        finite::read(
            source,
            Dtype::F32,
            ((piece.rows.start + first - piece.row) * width) as u64,
            &mut bytes,
        )?;
        values.clear();
        slabs::to_f32(info.encoding, &bytes, &mut values)?;
        let rows = values.chunks_exact(info.shape[1]);
        for (from, to) in rows.zip(to[(first - row) * cols..].chunks_exact_mut(cols)) {
            to[piece.col..piece.col + info.shape[1]].copy_from_slice(from);
        }
    }
    Ok(())
}
