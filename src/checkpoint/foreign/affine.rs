//! Matrices of codes with scales and zero points for groups: those of GPTQ, AWQ and
//! compressed-tensors.
//!
//! GPTQ and AWQ lie by columns of ours, so the words of a matrix are read whole before its rows are
//! unpacked. That is half a byte for each weight of one matrix, for as long as it is loaded.

use super::{check_finite, floats, words};
use crate::checkpoint::files::Source;
use crate::checkpoint::finite;
use crate::checkpoint::stored::{Coded, Rows};
use crate::file::zeros;
use crate::quant::affine::{Format, Groups, Row};
use crate::quant::{Quant, packed};
use crate::{Result, reserve};

/// How codes and zero points are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// GPTQ's. `more` is what a stored zero point is short of; `None`: the data tell.
    Gptq { more: Option<u8> },
    /// AWQ's.
    Awq,
    /// compressed-tensors'.
    Compressed,
}

/// A matrix of `[rows, cols]`.
pub(super) struct Affine<'a> {
    pub packing: Packing,
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    pub codes: Source<'a>,
    /// GPTQ's and AWQ's are `[groups, rows]`, compressed-tensors' `[rows, groups]`.
    pub scales: Source<'a>,
    pub zeros: Option<Source<'a>>,
    /// The group of each column, where that is not the column by the size of a group.
    pub index: Option<Vec<u32>>,
    /// Groups of a row.
    pub groups: usize,
}

impl Coded for Affine<'_> {
    fn source(&self) -> &Source<'_> {
        &self.codes
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn bytes(&self) -> u64 {
        let zeros = self.zeros.as_ref().map_or(0, |zeros| zeros.info.len);
        self.codes.info.len + self.scales.info.len + zeros
    }

    fn native(&self) -> Option<Quant> {
        self.format.kept(self.cols)
    }

    fn kept(&self) -> Option<Quant> {
        self.native().or(Some(Quant::Int8))
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        let scales = floats(&self.scales)?;
        check_finite(&self.scales, &scales)?;
        let scales = match self.packing {
            Packing::Compressed => scales,
            _ => self.transposed(&scales)?,
        };
        Ok(Box::new(Reader {
            words: words(&self.codes)?,
            scales,
            zeros: self.zero_points()?,
            stored: self,
        }))
    }
}

impl Affine<'_> {
    /// `[groups, rows]` as `[rows, groups]`.
    fn transposed<T: Copy>(&self, from: &[T]) -> Result<Vec<T>> {
        let mut to = reserve::room("scales of a tensor", from.len())?;
        for row in 0..self.rows {
            to.extend((0..self.groups).map(|group| from[group * self.rows + row]));
        }
        Ok(to)
    }

    /// `[rows, groups]`.
    fn zero_points(&self) -> Result<Vec<u8>> {
        let (rows, groups, bits) = (self.rows, self.groups, self.format.bits);
        let mut unpacked = zeros("zero points of a tensor", (rows * groups) as u64)?;
        let Some(source) = &self.zeros else {
            unpacked.fill(self.format.middle());
            return Ok(unpacked);
        };
        let words = words(source)?;
        match self.packing {
            Packing::Awq => {
                packed::awq(&words, rows, 0..rows, &mut unpacked);
            }
            Packing::Compressed => {
                // A stream along the rows for each group, the groups side by side.
                for (at, zero) in unpacked.iter_mut().enumerate() {
                    let (row, group) = (at / groups, at % groups);
                    *zero = packed::code(bits, |word| words[word * groups + group], row);
                }
            }
            Packing::Gptq { more } => {
                let width = words.len() / groups;
                for (at, zero) in unpacked.iter_mut().enumerate() {
                    let (row, group) = (at / groups, at % groups);
                    *zero = packed::code(bits, |word| words[group * width + word], row);
                }
                self.complete(source, more, &mut unpacked)?;
            }
        }
        Ok(unpacked)
    }

    /// GPTQ's zero points as they are meant. Files of version 1 store them less 1. Some files say
    /// that they are of version 1 and are of version 2, which symmetric ones show.
    fn complete(&self, source: &Source<'_>, more: Option<u8>, zeros: &mut [u8]) -> Result<()> {
        let middle = self.format.middle();
        let stored = zeros[0];
        let more = more.unwrap_or(middle.wrapping_sub(stored));
        let greatest = ((1u16 << self.format.bits) - 1) as u8;
        for zero in zeros.iter_mut() {
            *zero = zero.wrapping_add(more) & greatest;
        }
        if !self.format.symmetric {
            return Ok(());
        }
        let odd = match more {
            0 | 1 => zeros.iter().position(|&zero| zero != middle),
            _ => Some(0),
        };
        let Some(at) = odd else { return Ok(()) };
        let (row, group) = (at / self.groups, at % self.groups);
        let expected = format!(
            "zero points that are all {} or all {middle}, as `sym` is true",
            middle - 1
        );
        let got = zeros[at].wrapping_sub(more) & greatest;
        Err(source.wrong(expected, format!("{got} in row {row}, group {group}")))
    }
}

struct Reader<'a, 'b> {
    stored: &'b Affine<'a>,
    words: Vec<u32>,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Reader<'_, '_> {
    /// Unpacks rows from `row` on.
    fn each(&self, row: usize, rows: usize, mut take: impl FnMut(usize, Row<'_>)) -> Result<()> {
        let (stored, cols) = (self.stored, self.stored.cols);
        let (bits, groups) = (stored.format.bits, stored.groups);
        // AWQ's columns come in eights.
        let (first, end) = match stored.packing {
            Packing::Awq => (row / 8 * 8, (row + rows).next_multiple_of(8)),
            _ => (row, row + rows),
        };
        let mut codes = zeros("codes of rows", ((end - first) * cols) as u64)?;
        match stored.packing {
            Packing::Gptq { .. } => {
                packed::gptq(bits, &self.words, stored.rows, first..end, &mut codes);
            }
            Packing::Awq => packed::awq(&self.words, stored.rows, first..end, &mut codes),
            Packing::Compressed => {
                let width = self.words.len() / stored.rows;
                let words = self.words[first * width..].chunks_exact(width);
                for (words, to) in words.zip(codes.chunks_exact_mut(cols)) {
                    packed::row(bits, words, to);
                }
            }
        }
        for i in 0..rows {
            let of_row = (row + i) * groups..(row + i + 1) * groups;
            let unpacked = Row {
                codes: &codes[(row + i - first) * cols..][..cols],
                zeros: &self.zeros[of_row.clone()],
                scales: &self.scales[of_row],
                groups: match &stored.index {
                    Some(index) => Groups::Index(index),
                    None => Groups::Of(stored.format.group.unwrap_or(cols)),
                },
            };
            take(i, unpacked);
        }
        Ok(())
    }
}

impl Rows for Reader<'_, '_> {
    fn native(&self, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let (stored, cols) = (self.stored, self.stored.cols);
        let kept = stored.native().expect("only then rows are asked for codes");
        let (width, n_scales) = (kept.code_bytes(cols), kept.scales(cols));
        self.each(row, codes.len() / width, |i, unpacked| {
            unpacked.codes(kept, &mut codes[i * width..][..width]);
            unpacked.kept_scales(&mut scales[i * n_scales..][..n_scales]);
        })?;
        finite::check_halves(&stored.scales, row * n_scales, scales)
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let cols = self.stored.cols;
        self.each(row, to.len() / cols, |i, unpacked| {
            unpacked.decode(&mut to[i * cols..][..cols]);
        })
    }
}
