//! Formats whose weights, apart from scales, are bytes: `vpdpbusd` multiplies four of them with
//! four signed bytes of activations.
//!
//! The instruction takes unsigned bytes of weights, which therefore have a constant too much: 128
//! in formats with eight bits, 8 in int4. Sums begin with what that adds, negated.

use super::super::simd::Simd;
use super::{Blocks, Int4, Int8, K4, K8, LINE};
use crate::quant::Quant;

/// The number of words in the activations of [`super::GROUP_K`] columns.
pub const BYTE_WORDS: usize = super::GROUP_K / 4;

/// Whether a format is one of [`Bytes`]. Values of nf4 are no multiples of a unit that bytes hold.
pub fn in_bytes(quant: Quant) -> bool {
    match quant {
        Quant::Int8 | Quant::Int4 | Quant::K4 | Quant::K8 => true,
        Quant::Nf4 | Quant::Fp8 => false,
    }
}

/// A block format with weights in bytes.
pub trait Bytes: Blocks {
    /// The unsigned bytes of a line, four columns of every output at a time: the first, or both.
    fn quads<S: Simd>(s: S, line: &[u16; LINE]) -> [S::I; 2];

    /// What the sum of a span begins with, from the [`bytes_offset`] of its group.
    #[inline(always)]
    fn start(offset: i32, _span: usize) -> i32 {
        offset
    }
}

/// The offset of a group of activations: what [`Bytes::start`] and minima need of their sums, which
/// are given by halves.
#[inline(always)]
pub fn bytes_offset(quant: Quant, [a, b]: [i32; 2], unit: f32) -> i32 {
    // If a number is not finite, the sums may be anything; the scale is NaN then.
    let all = a.wrapping_add(b);
    match quant {
        Quant::Int4 => all.wrapping_mul(-8),
        Quant::K4 => (-(unit * all as f32)).to_bits() as i32,
        // At most 16 * 127 each, for spans of sixteen.
        Quant::K8 => (a & 0xffff) | b << 16,
        _ => all.wrapping_mul(-128),
    }
}

impl Bytes for Int8 {
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: &[u16; LINE]) -> [S::I; 2] {
        [s.unsigned_bytes(s.load_i16(line)); 2]
    }
}

impl Bytes for K8 {
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: &[u16; LINE]) -> [S::I; 2] {
        Int8::quads(s, line)
    }
    #[inline(always)]
    fn start(offset: i32, span: usize) -> i32 {
        i32::from((offset >> (16 * span)) as i16) * -128
    }
}

impl Bytes for Int4 {
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: &[u16; LINE]) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}

/// Codes of k4 are not signed. The offset is what minima are multiplied by.
impl Bytes for K4 {
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: &[u16; LINE]) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
    #[inline(always)]
    fn start(_: i32, _span: usize) -> i32 {
        0
    }
}
