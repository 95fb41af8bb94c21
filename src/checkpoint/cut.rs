//! A plan for one rank of several: [`Plan::cut`] leaves what the rank holds ([`Cuts`]).
//!
//! Rows that a rank does not hold are not read. Of rows that are cut, all is read and the rest is
//! dropped. Weights do not depend on the number of ranks: rows are cut between the blocks in which
//! formats scale their weights. The exception is [`Quant::Nf4`], whose scales are quantised all
//! together. A float tensor that becomes nf4 is read and quantised as a whole by every rank, which
//! keeps its part ([`Uncut`]).

use super::columns::{code_columns, cut_rows, scale_columns};
use super::files::Source;
use super::plan::{MatPlan, PartPlan, Plan, Uncut};
use super::stored::{Coded, OnThreads, Piece, Rows, Stored};
use crate::model::Cuts;
use crate::model::matrices::{self, Matrix, Width};
use crate::quant::Quant;
use crate::{Result, reserve};
use std::ops::Range;

impl<'a> Plan<'a> {
    /// Leaves what `rank` holds.
    pub fn cut(self, cuts: &Cuts, rank: usize) -> Plan<'a> {
        let matrix = |plan, matrix| cut_matrix(plan, matrix, cuts, rank);
        let layers = self.layers.into_iter().map(|mut layer| {
            let of_layer = layer.matrices.into_iter().zip(&matrices::LAYER);
            let mut cut = of_layer.map(|(plan, of)| matrix(plan, of));
            layer.matrices = std::array::from_fn(|_| cut.next().expect("as many as before"));
            layer
        });
        Plan {
            embedding: matrix(self.embedding, &matrices::EMBEDDING),
            layers: layers.collect(),
            norm: self.norm,
            head: self.head.map(|head| matrix(head, &matrices::HEAD)),
            // One rank compares them for all.
            twins: self.twins.filter(|_| rank == 0),
        }
    }
}

fn cut_matrix<'a>(plan: MatPlan<'a>, matrix: &Matrix, cuts: &Cuts, rank: usize) -> MatPlan<'a> {
    let MatPlan { mut spec, parts } = plan;
    let whole_cols = spec.cols;
    let cols = cuts.cols(matrix, rank);
    // The products of ranks that hold columns are added, so one of them adds the bias.
    let has_bias = rank == 0 || matrix.cols == Width::Dim;
    spec.cols = cols.len();
    spec.bias &= has_bias;
    let mut cut = Vec::with_capacity(parts.len());
    for ((part, mut plan), spec) in matrix.parts.iter().zip(parts).zip(&mut spec.parts) {
        let size = [spec.rows, whole_cols];
        let rows = cuts.rows(*part, rank);
        spec.rows = rows.len();
        plan.bias = plan.bias.filter(|_| has_bias);
        plan.rows = rows.clone();
        let quant = spec.dtype.quant();
        cut.push(cut_part(plan, quant, size, [rows, cols.clone()]));
    }
    MatPlan { spec, parts: cut }
}

/// Whether every rank reads all of a part that is kept as `quant`.
pub(super) fn read_as_a_whole(plan: &PartPlan<'_>, quant: Option<Quant>) -> bool {
    let native = match &plan.stored {
        Stored::Codes(coded) => coded.natives().contains(&Quant::Nf4),
        Stored::Floats(_) => false,
    };
    quant == Some(Quant::Nf4) && !native
}

fn cut_part<'a>(
    plan: PartPlan<'a>,
    quant: Option<Quant>,
    [all_rows, all_cols]: [usize; 2],
    [rows, cols]: [Range<usize>; 2],
) -> PartPlan<'a> {
    if rows == (0..all_rows) && cols == (0..all_cols) {
        return plan;
    }
    if read_as_a_whole(&plan, quant) {
        let uncut = Uncut {
            rows: all_rows,
            cols: all_cols,
            kept: [rows, cols],
        };
        return PartPlan {
            uncut: Some(uncut),
            ..plan
        };
    }
    let stored = match plan.stored {
        Stored::Floats(pieces) => Stored::Floats(
            pieces
                .into_iter()
                .filter_map(|piece| cut_piece(piece, &rows, &cols))
                .collect(),
        ),
        Stored::Codes(whole) => Stored::Codes(Box::new(CutCodes {
            whole,
            all_cols,
            rows,
            cols,
        })),
    };
    PartPlan { stored, ..plan }
}

/// The rectangle of a piece that lies within `rows` and `cols` of its part, if there is one.
fn cut_piece<'a>(piece: Piece<'a>, rows: &Range<usize>, cols: &Range<usize>) -> Option<Piece<'a>> {
    /// The part of `own`, which begins at `at`, that lies in `kept`; and where it begins there.
    fn within(own: &Range<usize>, at: usize, kept: &Range<usize>) -> (Range<usize>, usize) {
        let start = at.max(kept.start);
        let end = (at + own.len()).min(kept.end).max(start);
        let shift = own.start;
        (start - at + shift..end - at + shift, start - kept.start)
    }
    let (in_rows, row) = within(&piece.rows, piece.row, rows);
    let (in_cols, col) = within(&piece.cols, piece.col, cols);
    if in_rows.is_empty() || in_cols.is_empty() {
        return None;
    }
    Some(Piece {
        rows: in_rows,
        cols: in_cols,
        row,
        col,
        ..piece
    })
}

/// Some rows of a matrix that is stored in codes. They begin and end between the words of its
/// packing.
pub(super) fn rows_of<'a>(
    whole: Box<dyn Coded + 'a>,
    rows: Range<usize>,
    cols: usize,
) -> Box<dyn Coded + 'a> {
    Box::new(CutCodes {
        whole,
        all_cols: cols,
        rows,
        cols: 0..cols,
    })
}

/// Some rows and columns of a part that is stored in codes.
struct CutCodes<'a> {
    whole: Box<dyn Coded + 'a>,
    all_cols: usize,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Coded for CutCodes<'_> {
    fn source(&self) -> &Source<'_> {
        self.whole.source()
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn bytes(&self) -> u64 {
        let (own, all) = (self.rows.len() as u128, self.whole.rows() as u128);
        (u128::from(self.whole.bytes()) * own / all) as u64
    }

    fn rows_of_word(&self) -> usize {
        self.whole.rows_of_word()
    }

    fn natives(&self) -> &[Quant] {
        self.whole.natives()
    }

    fn otherwise(&self) -> Option<Quant> {
        self.whole.otherwise()
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        Ok(Box::new(CutRows {
            of: self,
            whole: self.whole.reader()?,
        }))
    }

    fn held_bytes(&self) -> u64 {
        self.whole.held_bytes()
    }
}

struct CutRows<'a> {
    of: &'a CutCodes<'a>,
    whole: Box<dyn Rows + 'a>,
}

impl Rows for CutRows<'_> {
    fn together(&self) -> Option<usize> {
        self.whole.together()
    }

    /// Rows of the whole that begin at another place than a multiple of `together`: readers need
    /// only that they begin and end between the words of their packing, as cuts do.
    fn prepare(&mut self, rows: Range<usize>, on_threads: &OnThreads<'_>) -> Result<()> {
        let first = self.of.rows.start;
        self.whole
            .prepare(first + rows.start..first + rows.end, on_threads)
    }

    fn native(&self, quant: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let CutCodes {
            all_cols,
            rows,
            cols,
            ..
        } = self.of;
        if cols.len() == *all_cols {
            return self.whole.native(quant, rows.start + row, codes, scales);
        }
        let n = codes.len() / quant.code_bytes(cols.len());
        let mut all_codes =
            reserve::filled("codes of whole rows", n * quant.code_bytes(*all_cols), 0)?;
        let mut all_scales =
            reserve::filled("scales of whole rows", n * quant.scales(*all_cols), 0)?;
        self.whole
            .native(quant, rows.start + row, &mut all_codes, &mut all_scales)?;
        cut_rows(&all_codes, n, code_columns(quant, cols), codes);
        cut_rows(&all_scales, n, scale_columns(quant, cols), scales);
        Ok(())
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let CutCodes {
            all_cols,
            rows,
            cols,
            ..
        } = self.of;
        if cols.len() == *all_cols {
            return self.whole.floats(rows.start + row, to);
        }
        let n = to.len() / cols.len();
        let mut all = reserve::filled("whole rows", n * all_cols, 0.0)?;
        self.whole.floats(rows.start + row, &mut all)?;
        cut_rows(&all, n, cols.clone(), to);
        Ok(())
    }
}
