//! Matrices that have a number of 8 bits for each weight, and scales for rows, groups or blocks:
//! bitsandbytes' int8, compressed-tensors' int and float, and fp8 checkpoints.

use super::{check_finite, floats};
use crate::checkpoint::files::Source;
use crate::checkpoint::finite;
use crate::checkpoint::stored::{Coded, Rows};
use crate::file::zeros;
use crate::format::Encoding;
use crate::quant::{Quant, fp8};
use crate::{Dtype, Result};
use half::f16;

/// A matrix of [`Encoding::I8`] or [`Encoding::F8E4m3`], `[rows, cols]`.
pub(super) struct Scaled<'a> {
    pub codes: Source<'a>,
    /// One scale for each block, row by row.
    pub scales: Source<'a>,
    /// The number by which every scale is divided.
    pub divisor: f32,
    /// Rows and columns of a block; the last blocks may be smaller.
    pub block: [usize; 2],
}

impl Scaled<'_> {
    fn cols(&self) -> usize {
        self.codes.info.shape[1]
    }
}

impl Coded for Scaled<'_> {
    fn source(&self) -> &Source<'_> {
        &self.codes
    }

    fn rows(&self) -> usize {
        self.codes.info.shape[0]
    }

    fn bytes(&self) -> u64 {
        self.codes.info.len + self.scales.info.len
    }

    fn natives(&self) -> &[Quant] {
        let (width, native): (_, &[Quant]) = match self.codes.info.encoding {
            Encoding::I8 => (self.block[1], &[Quant::Int8]),
            _ => (self.block[1], &[Quant::Fp8]),
        };
        let group = native[0].group();
        match width.is_multiple_of(group) || width >= self.cols() {
            true => native,
            false => &[],
        }
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        let mut scales = floats(&self.scales)?;
        scales.iter_mut().for_each(|scale| *scale /= self.divisor);
        check_finite(&self.scales, &scales)?;
        let mut values = [0.0; 256];
        for (code, value) in (0..=255).zip(&mut values) {
            *value = match self.codes.info.encoding {
                Encoding::I8 => f32::from(code as i8),
                _ => fp8::value(code),
            };
        }
        let stored = self;
        Ok(Box::new(Reader {
            stored,
            scales,
            values,
        }))
    }
}

struct Reader<'a, 'b> {
    stored: &'b Scaled<'a>,
    scales: Vec<f32>,
    /// The number that each code stands for.
    values: [f32; 256],
}

impl Reader<'_, '_> {
    /// The scales of a row, one for each block.
    fn of_row(&self, row: usize) -> &[f32] {
        let [rows, cols] = self.stored.block;
        let blocks = self.stored.cols().div_ceil(cols);
        &self.scales[row / rows * blocks..][..blocks]
    }

    fn read(&self, row: usize, codes: &mut [u8]) -> Result<()> {
        let source = &self.stored.codes;
        source
            .file
            .read(source.info, (row * self.stored.cols()) as u64, codes)
    }
}

impl Rows for Reader<'_, '_> {
    fn native(&self, quant: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        self.read(row, codes)?;
        if let Some(at) = codes
            .iter()
            .position(|&code| self.values[usize::from(code)].is_nan())
        {
            let at = row * self.stored.cols() + at;
            return Err(finite::refused(
                &self.stored.codes,
                Dtype::F32,
                at,
                f32::NAN,
            ));
        }
        let n_scales = quant.scales(self.stored.cols());
        for (i, scales) in scales.chunks_exact_mut(n_scales).enumerate() {
            let of_row = self.of_row(row + i);
            for (group, scale) in scales.iter_mut().enumerate() {
                *scale =
                    f16::from_f32(of_row[quant.group() * group / self.stored.block[1]]).to_bits();
            }
        }
        let of = |row: usize, col: usize| self.of_row(row)[col / self.stored.block[1]];
        finite::check_words(
            &self.stored.scales,
            quant,
            [row, self.stored.cols()],
            scales,
            Some(&of),
        )
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let (cols, width) = (self.stored.cols(), self.stored.block[1]);
        let mut codes = zeros("codes of rows", to.len() as u64)?;
        self.read(row, &mut codes)?;
        let rows = codes.chunks_exact(cols).zip(to.chunks_exact_mut(cols));
        for (i, (codes, to)) in rows.enumerate() {
            let blocks = codes.chunks(width).zip(to.chunks_mut(width));
            for ((codes, to), scale) in blocks.zip(self.of_row(row + i)) {
                for (&code, to) in codes.iter().zip(to) {
                    *to = self.values[usize::from(code)] * scale;
                }
            }
        }
        Ok(())
    }
}
