//! Parts of matrices that are kept as codes: stored so, or quantised on the way.

use super::columns::{code_columns, cut_rows, scale_columns};
use super::finite;
use super::plan::PartPlan;
use super::slabs::{PIECES, on_threads, slab_rows};
use super::stored::{Coded, Stored};
use super::weights::{Loader, prepare};
use crate::backend::{Backend, QuantBlock, QuantData};
use crate::file::zeros;
use crate::quant::{Quant, nf4::DoubleQuant};
use crate::{Dtype, Result, reserve};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Makes codes and scales of rows: from their float32 weights, into the codes, into the scales.
pub type Encoder<'a> = dyn Fn(&[f32], &mut [u8], &mut [f32]) + 'a;

/// Packs rows of a part, from `row` on.
fn pack<B: Backend>(
    backend: &B,
    mat: &mut B::Mat,
    (index, part): (usize, &PartPlan),
    row: usize,
    codes: &[u8],
    scales: &[u16],
) {
    for data in [QuantData::Codes(codes), QuantData::Scales(scales)] {
        let block = QuantBlock {
            part: index,
            row,
            order: part.order,
            data,
        };
        backend.pack_quantised(mat, &block);
    }
}

impl<B: Backend> Loader<'_, '_, B> {
    /// Loads a part of `[rows, cols]` whose codes are kept as they are stored, in `quant`.
    pub(super) fn native(
        &mut self,
        mat: &mut B::Mat,
        index: usize,
        part: &PartPlan,
        (coded, quant): (&dyn Coded, Quant),
        [rows, cols]: [usize; 2],
    ) -> Result<()> {
        let backend = self.backend;
        debug_assert_eq!(rows, coded.rows());
        self.native_rows(coded, quant, cols, |row, codes, scales| {
            pack(backend, mat, (index, part), row, codes, scales);
            Ok(())
        })
    }

    /// Reads the stored codes of a part in `quant`, whole rows at a time. Calls the function with
    /// the number of the first row, the codes and the scales.
    pub fn native_rows(
        &mut self,
        coded: &dyn Coded,
        quant: Quant,
        cols: usize,
        mut take: impl FnMut(usize, &[u8], &[u16]) -> Result<()>,
    ) -> Result<()> {
        let rows = coded.rows();
        self.check_cancel()?;
        let (backend, mut stored) = (self.backend, coded.reader()?);
        let (width, n_scales) = (quant.code_bytes(cols), quant.scales(cols));
        let step = slab_rows(rows, width);
        let mut codes = zeros("codes of rows", (step * width) as u64)?;
        let mut scales = Vec::new();
        reserve::vec("scales of rows", &mut scales, step * n_scales)?;
        scales.resize(step * n_scales, 0);
        let together = stored.together().unwrap_or(rows);
        for first in (0..rows).step_by(together) {
            let end = rows.min(first + together);
            prepare(backend, &mut *stored, first..end)?;
            for row in (first..end).step_by(step) {
                let n = step.min(end - row);
                let (codes, scales) = (&mut codes[..n * width], &mut scales[..n * n_scales]);
                let step = n.div_ceil(PIECES);
                let pieces = codes.chunks_mut(step * width);
                let pieces = pieces.zip(scales.chunks_mut(step * n_scales));
                on_threads(backend, pieces, |i, (codes, scales)| {
                    stored.native(quant, row + i * step, codes, scales)
                })?;
                take(row, codes, scales)?;
                self.advance_rows(coded.bytes(), row..row + n, rows)?;
            }
        }
        Ok(())
    }

    /// Loads and quantises a part of `[rows, cols]`.
    pub(super) fn quantised(
        &mut self,
        mat: &mut B::Mat,
        index: usize,
        part: &PartPlan,
        quant: Quant,
        [rows, cols]: [usize; 2],
    ) -> Result<()> {
        if quant == Quant::Nf4 {
            return self.nf4(mat, index, part, [rows, cols]);
        }
        let (backend, mut halves) = (self.backend, Vec::new());
        self.quantise_part(quant, cols, &part.stored, |row, codes, scales| {
            halves.clear();
            reserve::vec("scales of rows", &mut halves, scales.len())?;
            halves.resize(scales.len(), 0);
            let numbers: &mut [f16] = halves.reinterpret_cast_mut();
            numbers.convert_from_f32_slice(scales);
            pack(backend, mat, (index, part), row, codes, &halves);
            Ok(())
        })
    }

    /// Loads a part of `[rows, cols]` and quantises it to nf4. The scales of a tensor are quantised
    /// together, so a rank that keeps a part of it quantises it as a whole.
    fn nf4(
        &mut self,
        mat: &mut B::Mat,
        index: usize,
        part: &PartPlan,
        [rows, cols]: [usize; 2],
    ) -> Result<()> {
        let (backend, quant) = (self.backend, Quant::Nf4);
        let mut take = |row, data: QuantData<'_>| {
            let block = QuantBlock {
                part: index,
                row,
                order: part.order,
                data,
            };
            backend.pack_quantised(mat, &block);
        };
        let (all_rows, all_cols, [kept_rows, kept_cols]) = match &part.uncut {
            None => (rows, cols, [0..rows, 0..cols]),
            Some(uncut) => (uncut.rows, uncut.cols, uncut.kept.clone()),
        };
        let (mut absmax, mut cut) = (Vec::new(), Vec::new());
        reserve::vec(
            "scales of a tensor",
            &mut absmax,
            all_rows * quant.scales(all_cols),
        )?;
        self.quantise_part(quant, all_cols, &part.stored, |row, codes, scales| {
            absmax.extend_from_slice(scales);
            let width = quant.code_bytes(all_cols);
            let end = row + codes.len() / width;
            let own = row.max(kept_rows.start)..end.min(kept_rows.end);
            if part.uncut.is_none() {
                take(row, QuantData::Codes(codes));
            } else if !own.is_empty() {
                let codes = &codes[(own.start - row) * width..(own.end - row) * width];
                cut.clear();
                reserve::vec(
                    "codes of rows",
                    &mut cut,
                    own.len() * quant.code_bytes(cols),
                )?;
                cut.resize(own.len() * quant.code_bytes(cols), 0);
                cut_rows(codes, own.len(), code_columns(quant, &kept_cols), &mut cut);
                take(own.start - kept_rows.start, QuantData::Codes(&cut));
            }
            Ok(())
        })?;
        let scales = DoubleQuant::new(&absmax)?.scales()?;
        finite::check_halves(part.stored.source(), 0, &scales)?;
        if part.uncut.is_none() {
            take(0, QuantData::Scales(&scales));
            return Ok(());
        }
        let width = quant.scales(all_cols);
        let whole = &scales[kept_rows.start * width..kept_rows.end * width];
        let mut own = reserve::filled("scales of a part", rows * quant.scales(cols), 0)?;
        cut_rows(whole, rows, scale_columns(quant, &kept_cols), &mut own);
        take(0, QuantData::Scales(&own));
        Ok(())
    }

    /// Quantises a part, whole rows at a time. Calls the function with the number of the first row,
    /// the codes, and the scales in float32.
    pub fn quantise_part(
        &mut self,
        quant: Quant,
        cols: usize,
        stored: &Stored,
        take: impl FnMut(usize, &[u8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let backend = self.backend;
        let encode = |values: &[f32], codes: &mut [u8], scales: &mut [f32]| {
            backend.quantise(quant, cols, values, codes, scales);
        };
        self.encode_part(quant, cols, stored, &encode, take)
    }

    /// The same as [`Self::quantise_part`], with codes and scales that `encode` makes.
    pub fn encode_part(
        &mut self,
        quant: Quant,
        cols: usize,
        stored: &Stored,
        encode: &Encoder<'_>,
        mut take: impl FnMut(usize, &[u8], &[f32]) -> Result<()>,
    ) -> Result<()> {
        let mut row = 0;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        self.float_rows(cols, stored, Dtype::F32, |values| {
            let rows = values.len() / cols;
            // Later slabs never need more room than the first one.
            let (n_codes, n_scales) = (rows * quant.code_bytes(cols), rows * quant.scales(cols));
            codes.clear();
            reserve::vec("codes of rows", &mut codes, n_codes)?;
            codes.resize(n_codes, 0);
            scales.clear();
            reserve::vec("scales of rows", &mut scales, n_scales)?;
            scales.resize(n_scales, 0.0);
            encode(values, &mut codes, &mut scales);
            finite::check_scales(stored.source(), row * quant.scales(cols), &scales)?;
            take(row, &codes, &scales)?;
            row += rows;
            Ok(())
        })
    }
}
