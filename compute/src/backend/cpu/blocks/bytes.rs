//! Formats whose weights, apart from scales, are bytes: `vpdpbusd` multiplies four of them with
//! four signed bytes of activations.
//!
//! The instruction takes unsigned bytes of weights. So these exceed the weights by a constant: 128
//! in formats with eight bits and in iq4, 8 in int4. A sum begins with the negated contribution of
//! the constant.
//!
//! Without VNNI, there is an instruction that adds two such products in 16 bits. Sixteen bits
//! suffice for a whole group of codes up to 15. Such a group takes half of the instructions that
//! pairs of int16 take. (Weights up to 255 would need as many as pairs.)

use super::super::element::Weights;
use super::super::simd::Simd;
use super::{Blocks, Offsets};

/// The number of words in the activations of [`super::GROUP_K`] columns.
pub const BYTE_WORDS: usize = super::GROUP_K / 4;

/// A block format with weights in bytes.
pub trait Bytes: Blocks {
    /// Whether bytes are from 0 to 15, so that a group can be summed in 16 bits
    /// ([`Simd::dot_nibbles`]).
    const NIBBLES: bool = false;
    /// Whether lines are signed bytes already: the weights, apart from their scale.
    const SIGNED: bool = false;
    /// The constant by which unsigned bytes exceed the weights, modulo 256.
    const EXCESS: i8 = if Self::MINIMA { 0 } else { -128 };
    /// [`Blocks::Planed`], which has bytes too.
    type PlanedBytes: Bytes + Weights<Bits = u16>;
    /// The unsigned bytes of a line, four columns of every output at a time: the first, or both.
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2];
    /// The line as signed bytes, without the excess.
    #[inline(always)]
    fn signed<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        let [a, b] = Self::quads(s, line);
        match Self::EXCESS {
            0 => [a, b],
            excess => [s.sub_bytes(a, excess), s.sub_bytes(b, excess)],
        }
    }

    /// Whether spans are summed by [`Simd::dot_nibbles`]. If so, [`Bytes::whole`] adds at the end
    /// what other sums begin with.
    #[inline(always)]
    fn sums_nibbles<S: Simd>() -> bool {
        const { Self::NIBBLES && !S::BYTES }
    }
    /// The value that the sum of a span begins with.
    #[inline(always)]
    fn begin<S: Simd>(s: S, offsets: Offsets, span: usize) -> S::I {
        s.splat_i32(match Self::sums_nibbles::<S>() {
            true => 0,
            false => Self::start(offsets, span),
        })
    }
    /// Adds the products of a word of activations to a sum.
    #[inline(always)]
    fn dot<S: Simd>(s: S, sum: S::I, codes: S::I, x: S::I) -> S::I {
        match Self::sums_nibbles::<S>() {
            true => s.dot_nibbles_in_order(sum, codes, x),
            false => s.dot_bytes(sum, codes, x),
        }
    }
    /// The sum of a span, exactly.
    #[inline(always)]
    fn whole<S: Simd>(s: S, sum: S::I, offsets: Offsets, span: usize) -> S::I {
        match Self::sums_nibbles::<S>() {
            true => s.sum_nibbles(s.splat_i32(0), sum, Self::start(offsets, span)),
            false => sum,
        }
    }

    /// The offsets of a group of activations: the corrections that [`Bytes::start`] and minima
    /// need, computed from the sums of the two halves of the group.
    #[inline(always)]
    fn bytes_offsets([a, b]: [i32; 2], unit: f32) -> Offsets {
        // If a number is not finite, the sums may be anything; the scale is NaN then.
        let all = a.wrapping_add(b);
        let excess = -i32::from(Self::EXCESS as u8);
        match (Self::MINIMA, Self::SPANS) {
            (true, _) => [(-(unit * all as f32)).to_bits() as i32, 0],
            (false, 2) => [a.wrapping_mul(excess), b.wrapping_mul(excess)],
            (false, _) => [all.wrapping_mul(excess), 0],
        }
    }

    /// The correction that a span's sum has in addition to its products, from the
    /// [`Bytes::bytes_offsets`] of its group.
    #[inline(always)]
    fn start(offsets: Offsets, span: usize) -> i32 {
        match Self::MINIMA {
            true => 0,
            false => offsets[span],
        }
    }
}
