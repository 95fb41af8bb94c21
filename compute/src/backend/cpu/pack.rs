//! How blocks of stored tensors become a part of a run. Numbers are converted and transposed; codes
//! and scales are moved to their places.

use super::blocks::{PlaceCodes, PlaceScales};
use super::detect::Tier;
use super::element::{Bf16, Element, F16, F32, with_element};
use super::pool::{Grid, Pool};
use super::run::Run;
use super::simd::{Kernel, LANES, Simd};
use crate::Dtype;
use crate::backend::{Block, MatUse, QuantBlock, QuantData};
use std::marker::PhantomData;
use std::ops::Range;

impl Run {
    /// Converts and places a rectangle of a stored tensor.
    pub(super) fn pack(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        with_element!(self.dtype, E => match block.dtype {
            Dtype::F32 => self.pack_as::<E, F32>(pool, tier, block),
            Dtype::F16 => self.pack_as::<E, F16>(pool, tier, block),
            Dtype::Bf16 => self.pack_as::<E, Bf16>(pool, tier, block),
            other => unreachable!("a block of {other} for a matrix of floats"),
        });
    }

    fn pack_as<E: Element, Src: Source>(&mut self, pool: &Pool, tier: Tier, block: &Block<'_>) {
        let &Block {
            row,
            col,
            cols,
            order,
            bytes,
            ..
        } = block;
        let row_bytes = cols * Src::SIZE;
        let rows = bytes.len().checked_div(row_bytes).unwrap_or(0);
        let part = &self.parts[block.part];
        assert!(
            row + rows <= part.rows && col + cols <= self.cols,
            "a block outside its matrix"
        );
        if rows == 0 {
            return;
        }
        // Destination rows that the block can touch.
        let (low, high) = order.touched(row, rows, part.rows);
        let from = |destination: usize| {
            let at = order
                .source(destination)
                .checked_sub(row)
                .filter(|&i| i < rows)?;
            Some(&bytes[at * row_bytes..][..row_bytes])
        };
        let len = self.strip_len();
        let data = E::bits_mut(&mut self.data);
        match self.usage {
            MatUse::Lookup => {
                let all =
                    &mut data[(part.first + low) * self.cols..(part.first + high) * self.cols];
                pool.run(Grid::pieces(all, self.cols), |task, _, mut out| {
                    if let Some(from) = from(low + task) {
                        let to = &mut out.row(0)[col..col + cols];
                        tier.run(Convert::<E, Src> {
                            from,
                            to,
                            types: PhantomData,
                        });
                    }
                });
            }
            MatUse::Product => {
                let (first, last) = (low / LANES, high.div_ceil(LANES));
                let all = &mut data[(part.first + first) * len..(part.first + last) * len];
                pool.run(Grid::pieces(all, len), |task, _, mut strip| {
                    let mut lanes = [Lane::Outside; LANES];
                    for (i, lane) in lanes.iter_mut().enumerate() {
                        let destination = (first + task) * LANES + i;
                        *lane = if destination >= part.rows {
                            Lane::Padding
                        } else {
                            from(destination).map_or(Lane::Outside, Lane::Bytes)
                        };
                    }
                    tier.run(PackStrip::<E, Src> {
                        strip: strip.row(0),
                        lanes,
                        col,
                        cols,
                        types: PhantomData,
                    });
                });
            }
        }
    }

    /// Places rows of codes or scales.
    pub(super) fn pack_quantised(&mut self, pool: &Pool, tier: Tier, block: &QuantBlock<'_>) {
        let Some(quant) = self.dtype.quant() else {
            unreachable!("codes for a matrix of {}", self.dtype)
        };
        let QuantBlock { row, order, .. } = *block;
        let width = match block.data {
            QuantData::Codes(_) => quant.code_bytes(self.cols),
            QuantData::Scales(_) => quant.scales(self.cols),
        };
        let len = match block.data {
            QuantData::Codes(codes) => codes.len(),
            QuantData::Scales(scales) => scales.len(),
        };
        let rows = len / width;
        if rows == 0 {
            return;
        }
        let part = &self.parts[block.part];
        assert!(row + rows <= part.rows, "rows outside their part");
        let (low, high) = order.touched(row, rows, part.rows);
        let (first, last) = (low / LANES, high.div_ceil(LANES));
        let (begin, rows_end, strip_len) = (part.first, part.rows, self.strip_len());
        let all = &mut self.words_mut()[(begin + first) * strip_len..(begin + last) * strip_len];
        pool.run(Grid::pieces(all, strip_len), |task, _, mut strip| {
            let strip = strip.row(0);
            // Where the row of each lane lies in the data; an empty range where it does not.
            let ranges: [Range<usize>; LANES] = std::array::from_fn(|lane| {
                let destination = (first + task) * LANES + lane;
                let from = order.source(destination).checked_sub(row);
                match from.filter(|&i| i < rows && destination < rows_end) {
                    Some(from) => from * width..(from + 1) * width,
                    None => 0..0,
                }
            });
            match block.data {
                QuantData::Codes(codes) => tier.run(PlaceCodes {
                    quant,
                    strip,
                    rows: ranges.map(|range| &codes[range]),
                }),
                QuantData::Scales(scales) => tier.run(PlaceScales {
                    quant,
                    strip,
                    rows: ranges.map(|range| &scales[range]),
                }),
            }
        });
    }
}

/// A format that stored tensors come in: little-endian bytes of any alignment.
trait Source: Element {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self::Bits;

    /// Sixteen numbers; `bytes` has `16 * SIZE`.
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        let mut bits = [Self::Bits::default(); LANES];
        for (x, b) in bits.iter_mut().zip(bytes.chunks_exact(Self::SIZE)) {
            *x = Self::read(b);
        }
        Self::widen(s, &bits)
    }

    /// Number `i` of a row.
    #[inline(always)]
    fn get(bytes: &[u8], i: usize) -> f32 {
        Self::to_f32(Self::read(&bytes[i * Self::SIZE..][..Self::SIZE]))
    }
}

impl Source for F32 {
    const SIZE: usize = 4;
    #[inline(always)]
    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Source for F16 {
    const SIZE: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl Source for Bf16 {
    const SIZE: usize = 2;
    #[inline(always)]
    fn read(bytes: &[u8]) -> u16 {
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

/// What a lane of a strip gets from a block.
#[derive(Clone, Copy)]
enum Lane<'a> {
    /// This row of the block.
    Bytes(&'a [u8]),
    /// It gets nothing and stays zero. The lane is behind the last row of the part.
    Padding,
    /// It gets nothing and keeps its content. The lane is a row of another block.
    Outside,
}

/// Columns `col .. col + cols` of one strip.
struct PackStrip<'a, E: Element, Src> {
    strip: &'a mut [E::Bits],
    lanes: [Lane<'a>; LANES],
    col: usize,
    cols: usize,
    types: PhantomData<Src>,
}

impl<E: Element, Src: Source> Kernel for PackStrip<'_, E, Src> {
    type Output = ();

    /// Where whole lanes are written, squares of 16 x 16 are transposed in registers; the rest is
    /// written number by number.
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            strip,
            lanes,
            col,
            cols,
            ..
        } = self;
        let whole = col % 2 == 0 && !lanes.iter().any(|l| matches!(l, Lane::Outside));
        let squares = if whole { cols / LANES } else { 0 };
        let rows = strip[col / 2 * (2 * LANES)..]
            .as_chunks_mut::<{ 2 * LANES }>()
            .0;
        for i in 0..squares {
            let mut square = [s.splat(0.0); LANES];
            for (lane, x) in lanes.iter().zip(&mut square) {
                if let Lane::Bytes(bytes) = lane {
                    *x = Src::load(s, &bytes[i * LANES * Src::SIZE..][..LANES * Src::SIZE]);
                }
            }
            let square = s.transpose(square);
            let to = &mut rows[i * LANES / 2..][..LANES / 2];
            for j in 0..LANES / 2 {
                E::narrow_pair(s, [square[2 * j], square[2 * j + 1]], &mut to[j]);
            }
        }
        for (i, lane) in lanes.iter().enumerate() {
            if let Lane::Bytes(bytes) = lane {
                for j in squares * LANES..cols {
                    strip[E::index(col + j, i)] = E::from_f32(Src::get(bytes, j));
                }
            }
        }
    }
}

/// Converts a run of numbers from one format to another.
struct Convert<'a, E: Element, Src> {
    from: &'a [u8],
    to: &'a mut [E::Bits],
    types: PhantomData<Src>,
}

impl<E: Element, Src: Source> Kernel for Convert<'_, E, Src> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (to, rest) = self.to.as_chunks_mut::<LANES>();
        let (from, tail) = self.from.split_at(to.len() * LANES * Src::SIZE);
        for (x, b) in to.iter_mut().zip(from.chunks_exact(LANES * Src::SIZE)) {
            E::narrow(s, Src::load(s, b), x);
        }
        for (i, x) in rest.iter_mut().enumerate() {
            *x = E::from_f32(Src::get(tail, i));
        }
    }
}
