//! The block formats with four bits that only files have, apart from the K types.

use super::super::simd::{LANES, Lookahead, Simd};
use super::formats::{
    byte_words, four_bits, in_lines, in_nibbles, in_pairs, minima, multiples, scaled, shaped, sum,
    times_scale,
};
use super::{Blocks, GROUP_K, LINE, Offsets, WORDS, block_len, codes_len, pair_words};
use crate::quant::Quant;

/// [`Quant::Iq4`].
pub struct Iq4;
/// [`Quant::Uint4`].
pub struct Uint4;

/// Products of values with both bytes of an activation would overflow the sums of 16 bits that
/// AVX2 has, so few rows are multiplied as int16.
impl Blocks for Iq4 {
    type Planed = Self;
    four_bits!(Iq4);
    scaled!(Quant::Iq4);
    const UNIT: f32 = 1.0;
    const AHEAD: usize = 2;
    in_pairs!();
}

impl Uint4 {
    /// The line with scales and zero points of group `i`.
    #[inline(always)]
    fn scales(block: &<Self as Blocks>::Block, i: usize) -> &[u16; LINE] {
        &block.as_chunks().0[codes_len(Quant::Uint4) / LINE + i]
    }
}

impl Blocks for Uint4 {
    type Planed = Self;
    four_bits!(Uint4);
    in_nibbles!();
    minima!();
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
