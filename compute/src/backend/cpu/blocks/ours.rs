//! The block formats that our own checkpoints have, as types.

use super::super::simd::{LANES, Lookahead, Simd};
use super::parts::{
    byte_words, eight_bits, four_bits, in_lines, in_nibbles, in_pairs, multiples, scaled, shaped,
    sum, times_scale,
};
use super::{Blocks, Bytes, GROUP_K, LINE, Offsets, WORDS, block_len, codes_len, pair_words};
use crate::quant::Quant;

/// [`Quant::Int8`].
pub struct Int8;
/// [`Quant::Int4`].
pub struct Int4;
/// [`Quant::Nf4`].
pub struct Nf4;

impl Blocks for Int8 {
    type Planed = Self;
    type ForMany = Self;
    shaped!(Quant::Int8);
    scaled!(Quant::Int8);
    eight_bits!();
    #[inline(always)]
    fn weights<S: Simd>(s: S, (): (), line: &[u16; LINE], scale: S::F) -> [S::F; 8] {
        let v = s.load_i16(line);
        let all = [
            s.scaled_byte::<0>(v, scale),
            s.scaled_byte::<1>(v, scale),
            s.scaled_byte::<2>(v, scale),
            s.scaled_byte::<3>(v, scale),
        ];
        [
            all[0], all[1], all[2], all[3], all[0], all[1], all[2], all[3],
        ]
    }
}

impl Bytes for Int8 {
    const SIGNED: bool = true;
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        [s.unsigned_bytes(s.load_i16(line)); 2]
    }
}

/// A code is the weight plus 8. The offset subtracts these 8.
impl Blocks for Int4 {
    type Planed = Self;
    type ForMany = Self;
    four_bits!(Int4);
    scaled!(Quant::Int4);
    in_nibbles!();
    const AHEAD: usize = 2;
    #[inline(always)]
    fn offsets(x: &[i32; GROUP_K], _: f32) -> Offsets {
        [sum(x).wrapping_mul(-8), 0]
    }
}

impl Bytes for Int4 {
    const NIBBLES: bool = true;
    const EXCESS: i8 = 8;
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}

impl Blocks for Nf4 {
    type Planed = Self;
    type ForMany = Self;
    four_bits!(Nf4);
    scaled!(Quant::Nf4);
    // A sum of 32 products with int16 must stay below 2^31, so the magnitude of multiples is at
    // most 2047. Of the units that satisfy this, this one fits the table best (every value within
    // 1.3e-4).
    const UNIT: f32 = 1.0 / 1722.0;
    in_pairs!();
}
