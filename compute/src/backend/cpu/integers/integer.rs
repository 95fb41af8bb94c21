//! The trait for what products of pairs (int16) and of bytes (int8) do differently.

use super::super::blocks::{Blocks, LINE, MAX_SPANS, Offsets, WORDS};
use super::super::buf::as_u16;
use super::super::element::Weights;
use super::super::simd::{LANES, Lookahead, Simd};
use super::super::words::{MAX_SIDE, Words};

/// The largest number of groups of k that are decoded together. Two strips of them take 8 KiB as
/// bytes and 16 KiB as pairs.
pub const K_GROUPS: usize = 8;
/// The largest number of strips side by side when there are many rows.
pub const MAX_WIDE: usize = 2;
/// How many float32 of scratch memory decoded strips take: codes (each has half the size of a
/// float32), scales, and minima.
pub const DECODED: usize = K_GROUPS * MAX_WIDE * (WORDS + MAX_SPANS + 1) * LANES;

/// The sums of SIDE rows and WIDE strips.
pub type Sums<const SIDE: usize, const WIDE: usize> = [[[f32; LANES]; SIDE]; WIDE];

/// The activations of some groups of k, for the rows of a panel.
#[derive(Clone, Copy)]
pub struct Groups<'a> {
    pub x: &'a Words,
    pub panel: usize,
    pub first: usize,
    pub count: usize,
}

/// What a product of integers does with weights of one format.
pub trait Integers {
    /// The format.
    type Q: Blocks + Weights<Bits = u16>;
    /// The lookup table for few rows.
    type Table<S: Simd>: Copy;
    /// Builds the table.
    fn table<S: Simd>(s: S) -> Self::Table<S>;
    /// The number of registers that the sum of a group takes when there are few rows.
    const PARTS: usize;
    /// Prefetches the activations of the block after these groups.
    fn prefetch<S: Simd, const SIDE: usize>(s: S, x: Groups<'_>);
    /// Computes `sums += w x` for one block of each strip. Prefetches what lies `ahead` of the
    /// block.
    fn few<S: Simd, const SIDE: usize, const WIDE: usize>(
        s: S,
        table: Self::Table<S>,
        w: [&<Self::Q as Blocks>::Block; WIDE],
        ahead: Lookahead,
        x: Groups<'_>,
        sums: &mut Sums<SIDE, WIDE>,
    );

    /// The lookup table for many rows.
    type Codes<S: Simd>: Copy;
    /// Builds the table.
    fn codes<S: Simd>(s: S) -> Self::Codes<S>;
    /// Lines per decoded group.
    const LINES: usize;
    /// Decodes `line` to one line for every word of activations that the line is multiplied with.
    fn decode<S: Simd>(
        s: S,
        codes: Self::Codes<S>,
        line: <Self::Q as Blocks>::Line<'_>,
    ) -> [S::I; 4];
    /// The same trait for the format [`Blocks::Planed`]. Its decoded lines are multiplied in the
    /// same way.
    type Planed: Integers;
    /// Computes `sums += w x`, for the groups of the first ROWS rows of `x`.
    fn many<S: Simd, const ROWS: usize, const SIDE: usize, const WIDE: usize>(
        s: S,
        w: &Decoded<'_, WIDE>,
        x: Groups<'_>,
        sums: &mut Sums<SIDE, WIDE>,
    );
}

/// A decoded block of k of WIDE strips.
pub struct Decoded<'a, const WIDE: usize> {
    /// `[word of activations]`.
    pub lines: &'a mut [[[u16; LINE]; WIDE]],
    /// `[k / 32][span]`.
    pub scales: &'a mut [[[f32; LANES]; WIDE]],
    /// `[k / 32]`.
    pub minima: &'a mut [[[f32; LANES]; WIDE]],
}

impl<'a, const WIDE: usize> Decoded<'a, WIDE> {
    pub fn new(scratch: &'a mut [f32]) -> Self {
        let (lines, rest) = scratch.split_at_mut(K_GROUPS * WORDS * WIDE * LANES);
        let (scales, minima) = rest.split_at_mut(K_GROUPS * MAX_SPANS * WIDE * LANES);
        Self {
            lines: as_u16(lines).as_chunks_mut().0.as_chunks_mut().0,
            scales: scales.as_chunks_mut().0.as_chunks_mut().0,
            minima: minima.as_chunks_mut().0.as_chunks_mut().0,
        }
    }
}

/// Adds the scaled sums of span `span` of group `i` of a decoded block to `sums`. The order of
/// operations is the same as for few rows.
#[inline(always)]
pub fn accumulate<Q: Blocks, S: Simd, const ROWS: usize, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: &Decoded<'_, WIDE>,
    (i, span): (usize, usize),
    dots: [[S::I; ROWS]; WIDE],
    (units, offsets): (&[f32; SIDE], &[Offsets; SIDE]),
    sums: &mut Sums<SIDE, WIDE>,
) {
    const { assert!(!Q::MINIMA || Q::SPANS == 1, "minima are added once") };
    const { assert!(ROWS <= SIDE && SIDE <= MAX_SIDE) };
    let scales = &w.scales[i * Q::SPANS + span];
    for b in 0..WIDE {
        let scale = s.load(&scales[b]);
        for r in 0..ROWS {
            let mut sum = s.load(&sums[b][r]);
            let scale = s.mul(scale, s.splat(units[r]));
            sum = s.fma(s.to_f32(dots[b][r]), scale, sum);
            if Q::MINIMA {
                let offset = s.splat(f32::from_bits(offsets[r][0] as u32));
                sum = s.fma(s.load(&w.minima[i][b]), offset, sum);
            }
            s.store(sum, &mut sums[b][r]);
        }
    }
}

/// Repeats `$body` for `$b` = 0, 1, ... below `$n`, which is at most 8, without a loop. Arrays stay
/// in registers only if all indices are constants, and the compiler does not unroll a loop of this
/// length (int4, one row: 30 GB/s with the loop, 41 GB/s without).
macro_rules! unrolled {
    ($n:ident, $b:ident => $body:block) => {
        unrolled!($n, $b => $body, 0 1 2 3 4 5 6 7)
    };
    ($n:ident, $b:ident => $body:block, $($i:literal)*) => {
        $(if $i < $n {
            let $b: usize = $i;
            $body
        })*
    };
}
pub(super) use unrolled;
