//! Softmax weights that are computed directly in bfloat16.
//!
//! The bits of a bfloat16, read as an integer, are roughly a logarithm: the upper bits are the
//! exponent, the lower seven bits are the mantissa. Scores here are to base 2, in units of 1/128.
//! So for each unit that a score is smaller, the bits of its weight are one less. Only the mantissa
//! has to be looked up, since 2^f is not quite 1 + f. This takes less than half of the instructions
//! of a float32 polynomial that is rounded afterwards. (The idea is from Schraudolph 1999, who
//! approximates the mantissa by a line.)
//!
//! Precision: the rounding of the score changes a weight by a factor of at most 2^(1/256), and the
//! mantissa is off by half of its last place. Together this is 0.7 % at most; rounding alone would
//! leave 0.4 %. The errors of a query's weights are independent of each other, and the divisor is
//! the sum of the rounded weights.
//!
//! A small weight is as precise as a large one. So weights need not be relative to the largest
//! score of a chunk, which is known only when all scores are. If the largest score is
//! [usual](USUAL), weights are relative to a number that is known beforehand, and a score becomes a
//! weight as soon as the score is computed. The number that a chunk's weights are relative to
//! depends on its largest score alone, so every order of computing them gives the same bits.
//! (Products of weights and V below 2^-126 count as zero. In a chunk whose largest score is the
//! least usual, this happens for V below 2^-62.)

use crate::backend::cpu::simd::{LANES, Simd};
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// Units in a score of 1, to base 2.
const UNIT: f32 = 128.0;
/// The bits of 1 as bfloat16.
const ONE: u16 = 0x3f80;
/// 1.5 * 2^23. At this size, the last place of a float32 is 1: if a whole number is added, the
/// lowest word of the sum is that number.
const ZERO: f32 = 12_582_912.0;
/// [`ZERO`] plus the bits of the weight 1.
const TOP: f32 = ZERO + ONE as f32;
/// The score that has the weight 1 in most chunks. It is large, because a score that is larger by
/// more than 1 (to base 2) cannot be represented. It is not larger still, because ordinary weights
/// would become very small.
const REFERENCE: f32 = REFERENCE_LOG2 as f32 * UNIT;
const REFERENCE_LOG2: i32 = 40;
/// The bits of the weight 2. Weights from here on have a bit that smaller weights do not have.
const LIMIT: u16 = 0x4000;
/// If a chunk's largest score is in this range, its weights are relative to [`REFERENCE`]. Scores
/// in the range are so large that all other weights that count are normal numbers, and so small
/// that no weight becomes [`LIMIT`]. (A score that is half a unit below the limit would be rounded
/// up to it, because the limit is the even number.
/// benches/record/2026-12-01-weights-beside-products.txt says how often a real model has scores
/// outside the range.)
const USUAL: Range<f32> = LEAST_LOG2 as f32 * UNIT..REFERENCE + (LIMIT - ONE) as f32 - 0.5;
const LEAST_LOG2: i32 = -24;
/// If the sum of a chunk's weights, relative to [`REFERENCE`], is at least this, its largest score
/// is not below [`USUAL`]: this is 2^10 times the weight of the smallest usual score, and a chunk
/// has fewer keys than that.
pub(super) const ENOUGH: f32 = pow2(LEAST_LOG2 - REFERENCE_LOG2 + 10);
/// [`Weights::usualness`] is not above this if the weights are not usual.
pub(super) const NOT_USUAL: f32 = -0.5;
/// Below this, the word of every score is exact.
const MAX: f32 = 2_097_152.0;

const fn pow2(n: i32) -> f32 {
    f32::from_bits(((127 + n) as u32) << 23)
}

/// The mantissa of 2^(i / 128), rounded to nearest.
static MANTISSAS: [u8; 128] = {
    // 2^(1 / 128)
    const STEP: f64 = 1.005_429_901_112_802_7;
    let mut table = [0; 128];
    let (mut i, mut x) = (0, 1.0);
    while i < 128 {
        table[i] = ((x - 1.0) * 128.0 + 0.5) as u8;
        x *= STEP;
        i += 1;
    }
    table
};

/// The factor for a query, which gives scores in these units.
pub(super) fn scale(head_dim: usize) -> f32 {
    LOG2_E / (head_dim as f32).sqrt() * UNIT
}

/// The weights of a chunk's scores. Either each lane is another query, or all lanes are one query.
#[derive(Clone, Copy)]
pub struct Weights<F> {
    /// [`TOP`] minus the score that has the weight 1, rounded to a whole number.
    top: F,
}

impl<F: Copy> Weights<F> {
    /// Weights for a chunk whose largest score is usual, or not known yet.
    #[inline(always)]
    pub(super) fn usual<S: Simd<F = F>>(s: S) -> Self {
        let top = s.splat(TOP - REFERENCE);
        Self { top }
    }

    /// Weights for a chunk whose largest score is `max`.
    #[inline(always)]
    pub fn for_largest<S: Simd<F = F>>(s: S, max: F) -> Self {
        let own = s.sub(s.splat(TOP), max);
        let top = s.select_lt(max, s.splat(USUAL.end), Self::usual(s).top, own);
        let top = s.select_lt(max, s.splat(USUAL.start), own, top);
        // A score that is too large for these units becomes NaN, which `OredBits::checked` finds.
        let size = s.max(max, s.sub(s.splat(0.0), max));
        let top = s.select_lt(size, s.splat(MAX), top, s.splat(f32::NAN));
        Self { top }
    }

    /// 0 in lanes with the usual weights. In other lanes, at most -1, or NaN: not more than
    /// [`NOT_USUAL`].
    #[inline(always)]
    pub(super) fn usualness<S: Simd<F = F>>(self, s: S) -> F {
        let by = s.sub(self.top, Self::usual(s).top);
        s.sub(s.splat(0.0), s.mul(by, by))
    }

    /// A number whose lowest word is the weight's logarithm.
    #[inline(always)]
    pub fn word<S: Simd<F = F>>(self, s: S, score: F) -> F {
        // This order of the arguments lets NaN through.
        s.max(s.splat(ZERO), s.add(self.top, score))
    }

    /// The score that has the weight 1, to base e.
    #[inline(always)]
    pub fn one<S: Simd<F = F>>(self, s: S) -> F {
        s.mul(s.sub(s.splat(TOP), self.top), s.splat(LN_2 / UNIT))
    }
}

/// The bitwise or of some weights' words.
#[derive(Clone, Copy)]
pub struct OredBits<F>(F);

impl<F: Copy> OredBits<F> {
    #[inline(always)]
    pub fn new<S: Simd<F = F>>(s: S) -> Self {
        Self(s.splat(ZERO))
    }

    /// Takes two words.
    #[inline(always)]
    pub fn or<S: Simd<F = F>>(&mut self, s: S, words: [F; 2]) {
        self.0 = s.or_bits(self.0, words[0], words[1]);
    }

    /// Returns `sum`, the sum of the weights that have these words; NaN if a word is NaN or too
    /// large. (Numbers from `ZERO + LIMIT` on, and NaN, have a bit that no number from `ZERO` to
    /// there has.)
    #[inline(always)]
    pub fn checked<S: Simd<F = F>>(self, s: S, sum: F) -> F {
        let limit = s.splat(ZERO + f32::from(LIMIT));
        s.select_lt(self.0, limit, sum, s.splat(f32::NAN))
    }
}

/// The weights with the logarithms `words`: sixteen pairs, or 32 numbers, of bfloat16.
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

/// Adds sixteen vectors in the order in which [`Simd::sum`] adds lanes.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, mut of: [S::F; LANES]) -> S::F {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            of[i] = s.add(of[i], of[i + width]);
        }
        width /= 2;
    }
    of[0]
}
