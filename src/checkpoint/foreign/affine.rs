//! Matrices of codes with scales and zero points for groups, as GPTQ, AWQ and compressed-tensors
//! store them.
//!
//! GPTQ and AWQ store matrices by columns (in our terms): a line of the file has a few bits of
//! every row. So some hundred rows are read together: from every line, the run of words that
//! contains these rows.

use super::{bytes_to_words, check_finite, floats, words};
use crate::checkpoint::files::Source;
use crate::checkpoint::finite;
use crate::checkpoint::slabs::PIECES;
use crate::checkpoint::stored::{Coded, OnThreads, Rows};
use crate::file::zeros;
use crate::quant::affine::{Format, Groups, Row};
use crate::quant::{Quant, packed};
use crate::{Result, reserve};
use std::ops::Range;

/// How codes and zero points are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// As GPTQ does it. If `less` is `None`, the data show it.
    Gptq { less: Option<Less> },
    /// As AWQ does it.
    Awq,
    /// As compressed-tensors does it.
    Compressed,
}

/// What GPTQ's writers have subtracted from zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Less {
    /// Version 2: nothing.
    Nothing,
    /// Version 1: 1.
    One,
    /// Version 1 as GPTQModel writes it. It is the same but for 3 bits, where the words from which
    /// it subtracts [`OF_3_BITS`] are not 1 in each code; its reader adds them again.
    OfGptqModel,
}

/// By the number of a word in its line, divided by 3.
const OF_3_BITS: [u32; 3] = [0x2492_4924, 0x9249_2492, 0x4924_9249];

impl Less {
    /// What is to be added to words, by their number divided by 3, and then to codes.
    ///
    /// To whole words, because writers subtract from these, and a zero point of 0 borrows from its
    /// neighbour. Codes of 3 bits lie across words; AutoGPTQ subtracted from them before it packed
    /// them.
    fn missing(self, bits: u32) -> ([u32; 3], u8) {
        match (self, bits) {
            (Less::Nothing, _) => ([0; 3], 0),
            (Less::One, 3) => ([0; 3], 1),
            (Less::OfGptqModel, 3) => (OF_3_BITS, 0),
            // 1 in each code.
            (_, bits) => ([u32::MAX / ((1 << bits) - 1); 3], 0),
        }
    }
}

/// A matrix of `[rows, cols]`.
pub(super) struct Affine<'a> {
    pub packing: Packing,
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    pub codes: Source<'a>,
    /// `[groups, rows]` in GPTQ and AWQ, `[rows, groups]` in compressed-tensors.
    pub scales: Source<'a>,
    pub zeros: Option<Source<'a>>,
    /// The group of each column, if it is not the column divided by the size of a group.
    pub index: Option<Vec<u32>>,
    /// The number of groups of a row.
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

    fn rows_of_word(&self) -> usize {
        match self.packing {
            Packing::Awq => 8,
            _ => 1,
        }
    }

    fn natives(&self) -> &[Quant] {
        self.format.kept(self.cols)
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        let scales = floats(&self.scales)?;
        check_finite(&self.scales, &scales)?;
        let scales = match self.packing {
            Packing::Compressed => scales,
            _ => self.transposed(&scales)?,
        };
        Ok(Box::new(Reader {
            words: Vec::new(),
            prepared: 0..0,
            scales,
            zeros: self.zero_points()?,
            stored: self,
        }))
    }

    /// The reader holds the scales twice, as they are stored and in the order of rows; the zero
    /// points in the same two ways; the words of a slab; and the codes unpacked from these.
    fn held_bytes(&self) -> u64 {
        let of_groups = (self.rows * self.groups) as u64;
        let zeros = self.zeros.as_ref().map_or(0, |zeros| zeros.info.len);
        let rows = self.together().unwrap_or(0).min(self.rows) as u64;
        let words = self.codes.info.len / self.rows as u64 * rows;
        self.scales.info.len + 8 * of_groups + zeros + of_groups + words + rows * self.cols as u64
    }
}

impl Affine<'_> {
    /// [`Rows::together`]. It is so many rows that reading a run of words takes longer than the
    /// call, and so few that a slab is a small part of the matrix. A run has 2 KiB for GPTQ and 512
    /// bytes for AWQ.
    fn together(&self) -> Option<usize> {
        match self.packing {
            Packing::Gptq { .. } => Some(512),
            Packing::Awq => Some(1024),
            Packing::Compressed => None,
        }
    }

    /// Transposes `[groups, rows]` to `[rows, groups]`.
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
                // Each group has a stream of bits along the rows; the streams of the groups lie
                // side by side.
                for (at, zero) in unpacked.iter_mut().enumerate() {
                    let (row, group) = (at / groups, at % groups);
                    *zero = packed::code(bits, |word| words[word * groups + group], row);
                }
            }
            Packing::Gptq { less: Some(less) } => self.restored(&words, less, &mut unpacked),
            Packing::Gptq { less: None } => self.symmetric(source, &words, &mut unpacked)?,
        }
        Ok(unpacked)
    }

    /// Unpacks GPTQ's zero points, from which `less` was subtracted.
    fn restored(&self, words: &[u32], less: Less, zeros: &mut [u8]) {
        let (groups, bits) = (self.groups, self.format.bits);
        let (width, (of_word, of_code)) = (words.len() / groups, less.missing(bits));
        let greatest = ((1u16 << bits) - 1) as u8;
        for (at, zero) in zeros.iter_mut().enumerate() {
            let (row, group) = (at / groups, at % groups);
            let word = |word: usize| words[group * width + word].wrapping_add(of_word[word % 3]);
            *zero = packed::code(bits, word, row).wrapping_add(of_code) & greatest;
        }
    }

    /// Unpacks GPTQ's zero points of a symmetric quantisation, which are all in the middle. They
    /// show what was subtracted from them: some files claim version 1 but are of version 2.
    fn symmetric(&self, source: &Source<'_>, words: &[u32], zeros: &mut [u8]) -> Result<()> {
        let middle = self.format.middle();
        for less in [Less::One, Less::OfGptqModel, Less::Nothing] {
            self.restored(words, less, zeros);
            if zeros.iter().all(|&zero| zero == middle) {
                return Ok(());
            }
        }
        let known = [middle - 1, middle].contains(&zeros[0]);
        let other = zeros.iter().position(|&zero| !known || zero != zeros[0]);
        let (row, group) = match other {
            Some(at) => (at / self.groups, at % self.groups),
            None => (0, 0),
        };
        let expected = format!(
            "zero points that are all {} or all {middle}, as `sym` is true",
            middle - 1
        );
        let got = zeros[row * self.groups + group];
        Err(source.wrong(expected, format!("{got} in row {row}, group {group}")))
    }
}

struct Reader<'a, 'b> {
    stored: &'b Affine<'a>,
    /// The words of the prepared rows, line by line.
    words: Vec<u32>,
    prepared: Range<usize>,
    /// `[rows, groups]`.
    scales: Vec<f32>,
    zeros: Vec<u8>,
}

impl Reader<'_, '_> {
    /// The codes of rows from `row` on, `[rows, cols]`.
    fn codes(&self, row: usize, rows: usize) -> Result<Vec<u8>> {
        let (stored, cols, bits) = (self.stored, self.stored.cols, self.stored.format.bits);
        let mut codes = zeros("codes of rows", (rows * cols) as u64)?;
        let (from, n) = (row.wrapping_sub(self.prepared.start), self.prepared.len());
        match stored.packing {
            Packing::Gptq { .. } => {
                packed::gptq(bits, &self.words, n, from..from + rows, &mut codes);
            }
            Packing::Awq => packed::awq(&self.words, n, from..from + rows, &mut codes),
            Packing::Compressed => {
                let width = stored.codes.row_bytes();
                let mut bytes = zeros("words of rows", (rows * width) as u64)?;
                let source = &stored.codes;
                source
                    .file
                    .read(source.info, (row * width) as u64, &mut bytes)?;
                let mut words = reserve::room("words of a row", width / 4)?;
                words.resize(width / 4, 0);
                for (bytes, to) in bytes.chunks_exact(width).zip(codes.chunks_exact_mut(cols)) {
                    bytes_to_words(bytes, &mut words);
                    packed::row(bits, &words, to);
                }
            }
        }
        Ok(codes)
    }

    /// Unpacks rows from `row` on, and calls `take` for each.
    fn each(&self, row: usize, rows: usize, mut take: impl FnMut(usize, Row<'_>)) -> Result<()> {
        let (stored, cols, groups) = (self.stored, self.stored.cols, self.stored.groups);
        // Rows that share words are unpacked together.
        let of_word = stored.rows_of_word();
        let first = row / of_word * of_word;
        let end = (row + rows).next_multiple_of(of_word);
        let codes = self.codes(first, end - first)?;
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
    fn together(&self) -> Option<usize> {
        self.stored.together()
    }

    fn prepare(&mut self, rows: Range<usize>, on_threads: &OnThreads<'_>) -> Result<()> {
        if self.together().is_none() {
            return Ok(());
        }
        let (source, of_word) = (&self.stored.codes, self.stored.rows_of_word());
        let (lines, run) = (source.info.shape[0], rows.len() / of_word);
        self.words.clear();
        reserve::vec("words of rows", &mut self.words, lines * run)?;
        self.words.resize(lines * run, 0);
        self.prepared = rows.clone();
        let of_piece = lines.div_ceil(PIECES);
        let first = rows.start / of_word;
        on_threads(&mut self.words, of_piece * run, &|piece, words| {
            let mut bytes = zeros("words of rows", 4 * run as u64)?;
            for (i, words) in words.chunks_exact_mut(run).enumerate() {
                let line = piece * of_piece + i;
                let at = line * source.row_bytes() + 4 * first;
                source.file.read(source.info, at as u64, &mut bytes)?;
                bytes_to_words(&bytes, words);
            }
            Ok(())
        })
    }

    fn native(&self, quant: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let (stored, cols) = (self.stored, self.stored.cols);
        let (width, n_scales) = (quant.code_bytes(cols), quant.scales(cols));
        self.each(row, codes.len() / width, |i, unpacked| {
            unpacked.codes(quant, &mut codes[i * width..][..width]);
            unpacked.kept_scales(quant, &mut scales[i * n_scales..][..n_scales]);
        })?;
        let groups = stored.groups;
        let of = |row: usize, col: usize| self.scales[row * groups + col * groups / cols];
        finite::check_words(&stored.scales, quant, [row, cols], scales, Some(&of))
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let cols = self.stored.cols;
        self.each(row, to.len() / cols, |i, unpacked| {
            unpacked.decode(&mut to[i * cols..][..cols]);
        })
    }
}
