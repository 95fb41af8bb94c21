//! Weights of the softmax that go straight to bfloat16.
//!
//! A bfloat16, taken as an integer, is a logarithm: its upper bits are the exponent, its lower
//! seven bits the mantissa. So with scores to base 2 and in units of 1/128, a weight's bits are a
//! whole number less for each unit below the largest score; only the mantissa has to be looked up,
//! since 2^f is not quite 1 + f. That takes less than half of the instructions of a polynomial in
//! float32 that is rounded afterwards. (Schraudolph 1999 has the idea, with a line for the
//! mantissa.)
//!
//! A weight is off by at most 2^(1/256) for its rounded score, and by half of the mantissa's last
//! place: 0.7 % at most, where rounding alone would leave 0.4 %. The errors of a query's weights
//! are independent of each other, and what is divided by is the sum of the rounded weights.

use crate::backend::cpu::simd::{LANES, Simd};
use std::f32::consts::{LN_2, LOG2_E};

/// Units of a score of 1, to base 2.
const UNIT: f32 = 128.0;
/// The bits of 1 as bfloat16.
const ONE: u16 = 0x3f80;
/// 1.5 * 2^23, where the last place of a float32 is 1, plus what the lowest word has for a weight
/// of 1. It is the complement of the weight's bits: so the word of NaN, 0, becomes NaN again.
const TOP: f32 = 12_582_912.0 + !ONE as f32;
/// The same for a weight of 0.
const LAST: f32 = TOP + ONE as f32;
/// Below this, the word of every score is exact.
const MAX: f32 = 2_097_152.0;

/// The mantissa of 2^(1 - (i + 1) / 128), to nearest: the lower seven bits of a complement are
/// those of the weight's logarithm, backwards.
static MANTISSAS: [u8; 128] = {
    // 2^(1 / 128)
    const STEP: f64 = 1.005_429_901_112_802_7;
    let mut table = [0; 128];
    let (mut i, mut x) = (128, 1.0);
    while i > 0 {
        i -= 1;
        table[i] = ((x - 1.0) * 128.0 + 0.5) as u8;
        x *= STEP;
    }
    table
};

/// What a query is multiplied by, for scores in these units.
pub fn scale(head_dim: usize) -> f32 {
    LOG2_E / (head_dim as f32).sqrt() * UNIT
}

/// The weights of some scores, one query a lane or all lanes one query.
#[derive(Clone, Copy)]
pub struct Weights<F> {
    max: F,
    /// [`TOP`] plus the maximum, rounded to a whole number.
    top: F,
}

impl<F: Copy> Weights<F> {
    /// `max` is the largest score.
    #[inline(always)]
    pub fn new<S: Simd<F = F>>(s: S, max: F) -> Self {
        let top = s.add(s.splat(TOP), max);
        Self { max, top }
    }

    /// A number whose lowest word is the complement of the weight's bits.
    #[inline(always)]
    pub fn word<S: Simd<F = F>>(self, s: S, score: F) -> F {
        // This order of the arguments lets NaN through.
        s.min(s.splat(LAST), s.sub(self.top, score))
    }

    /// The score that has the weight 1, to base e.
    #[inline(always)]
    pub fn max<S: Simd<F = F>>(self, s: S) -> F {
        s.mul(s.sub(self.top, s.splat(TOP)), s.splat(LN_2 / UNIT))
    }

    /// The weights' sum; NaN if the scores are too large for these units.
    #[inline(always)]
    pub fn checked<S: Simd<F = F>>(self, s: S, sum: F) -> F {
        let size = s.max(self.max, s.sub(s.splat(0.0), self.max));
        s.select_lt(size, s.splat(MAX), sum, s.splat(f32::NAN))
    }
}

/// The weights whose complements are `words`: sixteen pairs, or 32 numbers, of bfloat16.
#[inline(always)]
pub fn from_words<S: Simd>(s: S, words: S::I) -> S::I {
    s.look_up_low_bits(&MANTISSAS, words)
}

/// Adds both weights of every pair to `sum`.
#[inline(always)]
pub fn add<S: Simd>(s: S, sum: S::F, weights: S::I) -> S::F {
    let ones = u32::from(ONE);
    s.dot_bf16(sum, weights, s.splat_i32((ones << 16 | ones) as i32))
}

/// Sums of sixteen vectors, in the order in which [`Simd::sum`] adds lanes.
#[inline(always)]
pub fn sum<S: Simd>(s: S, mut of: [S::F; LANES]) -> S::F {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            of[i] = s.add(of[i], of[i + width]);
        }
        width /= 2;
    }
    of[0]
}
