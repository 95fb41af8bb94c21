//! The block formats with four bits that occur only in files, except the K types.

use super::super::simd::{LANES, Lookahead, Simd};
use super::parts::{
    four_bits, in_lines, in_pairs, minima, multiples, pairs_of_bytes, scaled, shaped, sum,
    times_scale, values_of_bytes,
};
use super::{Blocks, Bytes, GROUP_K, LINE, Offsets, WORDS, block_len, codes_len, pair_words};
use crate::quant::{Quant, iq4};

/// [`Quant::Iq4`].
pub struct Iq4;
/// [`Quant::Uint4`].
pub struct Uint4;

/// Few rows are multiplied as int16: products of values with both bytes of an activation would
/// overflow the sums of 16 bits that AVX2 has.
impl Blocks for Iq4 {
    type Planed = Self;
    type ForMany = Self;
    four_bits!(Iq4);
    scaled!(Quant::Iq4);
    const UNIT: f32 = 1.0;
    const AHEAD: usize = 2;
    in_pairs!();
}

impl Bytes for Iq4 {
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        const TABLE: [u8; 16] = {
            let (mut table, mut i) = ([0; 16], 0);
            while i < 16 {
                table[i] = iq4::VALUES[i] as u8 ^ 0x80;
                i += 1;
            }
            table
        };
        let [a, b] = s.nibbles(s.load_i16(line));
        [s.look_up_bytes(&TABLE, a), s.look_up_bytes(&TABLE, b)]
    }
}

impl Uint4 {
    /// The line with the scales and zero points of group `i`.
    #[inline(always)]
    fn scales(block: &<Self as Blocks>::Block, i: usize) -> &[u16; LINE] {
        &block.as_chunks().0[codes_len(Quant::Uint4) / LINE + i]
    }
}

/// Few rows are multiplied as int16, too. With activations of two bytes, as in int4, sums take
/// twice as many registers, and eight streams of a Zen 4 were 0.85 times as fast as with int8.
impl Blocks for Uint4 {
    type Planed = Self;
    type ForMany = Self;
    shaped!(Quant::Uint4);
    in_lines!();
    in_pairs!();
    minima!();
    const UNIT: f32 = 1.0;
    type Pairs<S: Simd> = ();
    type Values<S: Simd> = ();

    #[inline(always)]
    fn table_of_pairs<S: Simd>(_: S) {}
    #[inline(always)]
    fn int_pairs<S: Simd>(s: S, (): (), line: &[u16; LINE]) -> [S::I; 4] {
        pairs_of_bytes(s, s.nibbles(s.load_i16(line)))
    }
    #[inline(always)]
    fn table_of_values<S: Simd>(_: S) {}
    #[inline(always)]
    fn weights<S: Simd>(s: S, (): (), line: &[u16; LINE], scale: [S::F; 2]) -> [S::F; 8] {
        let values = values_of_bytes(s, s.nibbles(s.load_i16(line)));
        times_scale::<Self, S>(s, scale, values)
    }
    const AHEAD: usize = 2;
    type Common<S: Simd> = ();

    #[inline(always)]
    fn common<S: Simd>(_: S, _: &Self::Block) {}
    #[inline(always)]
    fn scale<S: Simd>(s: S, block: &Self::Block, (): (), i: usize) -> [S::F; 2] {
        let [scale, zero] = Self::scales(block, i).as_chunks::<LANES>().0 else {
            unreachable!()
        };
        let scale = s.widen_f16(scale);
        [scale, s.mul(scale, s.widen_f16(zero))]
    }
    #[inline(always)]
    fn prefetch_scale<S: Simd>(s: S, block: &Self::Block, i: usize, ahead: Lookahead) {
        s.prefetch_far(Self::scales(block, i), ahead);
    }
}

impl Bytes for Uint4 {
    const NIBBLES: bool = true;
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}
