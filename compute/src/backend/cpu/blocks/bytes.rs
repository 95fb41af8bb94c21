//! Formats whose weights, apart from scales, are bytes: `vpdpbusd` multiplies four of them with
//! four signed bytes of activations.
//!
//! The instruction takes unsigned bytes of weights, which therefore have a constant too much: 128
//! in formats with eight bits and in iq4, 8 in int4. Sums begin with what that adds, negated.
//!
//! Without VNNI there is an instruction that adds two such products in 16 bits. They suffice for a
//! whole group of codes up to 15, which then takes half of the instructions that pairs of int16
//! take. (Weights up to 255 would need what pairs need.)

use super::super::element::Weights;
use super::super::simd::Simd;
use super::{Blocks, Int4, Int8, Iq4, K4, K5, K6, K8, Offsets, Uint4};
use crate::quant::{Quant, iq4};

/// The number of words in the activations of [`super::GROUP_K`] columns.
pub const BYTE_WORDS: usize = super::GROUP_K / 4;

/// Whether a format is one of [`Bytes`]. Values of nf4 are no multiples of a unit that bytes hold.
pub fn in_bytes(quant: Quant) -> bool {
    !matches!(quant, Quant::Nf4 | Quant::Fp8)
}

/// Whether a format is one of [`Bytes`] with [`Bytes::NIBBLES`].
pub fn in_nibbles(quant: Quant) -> bool {
    matches!(quant, Quant::Int4 | Quant::Uint4 | Quant::K4)
}

/// A block format with weights in bytes.
pub trait Bytes: Blocks {
    /// Whether bytes are from 0 to 15, so that a group can be summed in 16 bits
    /// ([`Simd::dot_nibbles`]).
    const NIBBLES: bool = false;
    /// Whether lines are signed bytes already: the weights, apart from their scale.
    const SIGNED: bool = false;
    /// What unsigned bytes have too much, modulo 256.
    const EXCESS: i8 = if Self::MINIMA { 0 } else { -128 };
    /// [`Blocks::Planed`], which has bytes too.
    type PlanedBytes: Bytes + Weights<Bits = u16>;
    /// The unsigned bytes of a line, four columns of every output at a time: the first, or both.
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2];
    /// The same as signed bytes, which have nothing too much.
    #[inline(always)]
    fn signed<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        let [a, b] = Self::quads(s, line);
        match Self::EXCESS {
            0 => [a, b],
            excess => [s.sub_bytes(a, excess), s.sub_bytes(b, excess)],
        }
    }

    /// Whether sums of a span are [`Simd::dot_nibbles`]'s, to which [`Bytes::whole`] adds what they
    /// would begin with.
    #[inline(always)]
    fn sums_nibbles<S: Simd>() -> bool {
        const { Self::NIBBLES && !S::BYTES }
    }
    /// What the sum of a span begins with.
    #[inline(always)]
    fn begin<S: Simd>(s: S, offsets: Offsets, span: usize) -> S::I {
        s.splat_i32(match Self::sums_nibbles::<S>() {
            true => 0,
            false => Self::start(offsets, span),
        })
    }
    /// Adds the products of a word of activations.
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

    /// What the sum of a span is more than that of its products, from the [`bytes_offsets`] of its
    /// group.
    #[inline(always)]
    fn start(offsets: Offsets, span: usize) -> i32 {
        match Self::MINIMA {
            true => 0,
            false => offsets[span],
        }
    }
}

/// The offsets of a group of activations: what [`Bytes::start`] and minima need of their sums,
/// which are given by halves.
#[inline(always)]
pub fn bytes_offsets(quant: Quant, [a, b]: [i32; 2], unit: f32) -> Offsets {
    // If a number is not finite, the sums may be anything; the scale is NaN then.
    let all = a.wrapping_add(b);
    match quant {
        Quant::Int4 => [all.wrapping_mul(-8), 0],
        _ if quant.has_minima() => [(-(unit * all as f32)).to_bits() as i32, 0],
        Quant::K6 | Quant::K8 => [a.wrapping_mul(-128), b.wrapping_mul(-128)],
        _ => [all.wrapping_mul(-128), 0],
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

impl Bytes for K8 {
    const SIGNED: bool = true;
    type PlanedBytes = K6;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        Int8::quads(s, line)
    }
}

/// 128 more than the weight, as with k8: the code has 32 too much, so 96 are added.
impl Bytes for K6 {
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        let [a, b] = line.quads::<2, S>(s);
        [s.sub_bytes(a, -96), s.sub_bytes(b, -96)]
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

impl Bytes for Uint4 {
    const NIBBLES: bool = true;
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}

impl Bytes for K4 {
    const NIBBLES: bool = true;
    type PlanedBytes = K5;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}

impl Bytes for K5 {
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        line.quads::<1, S>(s)
    }
}
