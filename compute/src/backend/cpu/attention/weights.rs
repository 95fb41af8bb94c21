//! Weights of the softmax that go straight to bfloat16.
//!
//! A bfloat16, taken as an integer, is a logarithm: its upper bits are the exponent, its lower
//! seven bits the mantissa. So with scores to base 2 and in units of 1/128, a weight's bits are one
//! less for each unit that its score is smaller; only the mantissa has to be looked up,
//! since 2^f is not quite 1 + f. That takes less than half of the instructions of a polynomial in
//! float32 that is rounded afterwards. (Schraudolph 1999 has the idea, with a line for the
//! mantissa.)
//!
//! A weight is off by at most 2^(1/256) for its rounded score, and by half of the mantissa's last
//! place: 0.7 % at most, where rounding alone would leave 0.4 %. The errors of a query's weights
//! are independent of each other, and what is divided by is the sum of the rounded weights.
//!
//! A weight is as precise when it is small as when it is large. So weights need not be relative to
//! the largest score of a chunk, which is known only when all scores are. Where that one is
//! [usual](USUAL), they are relative to a number that is known before: a score becomes a weight as
//! soon as there is one. What a chunk's weights are relative to depends on its largest score alone,
//! so that every order of computing them gives the same bits. (Products of weights and V below
//! 2^-126 count as zero. That is V below 2^-62, in a chunk whose largest score is the least usual.)

use crate::backend::cpu::simd::{LANES, Simd};
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// Units of a score of 1, to base 2.
const UNIT: f32 = 128.0;
/// The bits of 1 as bfloat16.
const ONE: u16 = 0x3f80;
/// 1.5 * 2^23, where the last place of a float32 is 1: the lowest word of this plus a whole number
/// is that number.
const ZERO: f32 = 12_582_912.0;
/// [`ZERO`] plus the bits of the weight 1.
const TOP: f32 = ZERO + ONE as f32;
/// The score that has the weight 1 in most chunks: large, because a score that is larger by more
/// than 1, to base 2, has no room; but not so large that ordinary weights become very small.
const REFERENCE: f32 = REFERENCE_LOG2 as f32 * UNIT;
const REFERENCE_LOG2: i32 = 40;
/// A weight of this, which is 2, or more has a bit that smaller ones have not.
const LIMIT: u16 = 0x4000;
/// The largest scores of chunks whose weights are relative to [`REFERENCE`]: so large that all
/// other weights that count are normal numbers, and so small that none becomes [`LIMIT`]. (A score
/// that is half a unit below it would be rounded up to it, to the even number. How often a real
/// model has others: benches/record/2026-12-01-weights-beside-products.txt.)
const USUAL: Range<f32> = LEAST_LOG2 as f32 * UNIT..REFERENCE + (LIMIT - ONE) as f32 - 0.5;
const LEAST_LOG2: i32 = -24;
/// If so much is the sum of a chunk's weights, which are relative to [`REFERENCE`], its largest
/// score is not below [`USUAL`]: this is 2^10 times the weight of the smallest usual score, and a
/// chunk has fewer keys.
pub(super) const ENOUGH: f32 = pow2(LEAST_LOG2 - REFERENCE_LOG2 + 10);
/// What [`Weights::usualness`] is not above if they are not usual.
pub(super) const NOT_USUAL: f32 = -0.5;
/// Below this, the word of every score is exact.
const MAX: f32 = 2_097_152.0;

const fn pow2(n: i32) -> f32 {
    f32::from_bits(((127 + n) as u32) << 23)
}

/// The mantissa of 2^(i / 128), to nearest.
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

/// What a query is multiplied by, for scores in these units.
pub(super) fn scale(head_dim: usize) -> f32 {
    LOG2_E / (head_dim as f32).sqrt() * UNIT
}

/// The weights of a chunk's scores, one query a lane or all lanes one query.
#[derive(Clone, Copy)]
pub struct Weights<F> {
    /// [`TOP`] less the score that has the weight 1, rounded to a whole number.
    top: F,
}

impl<F: Copy> Weights<F> {
    /// Of a chunk whose largest score is usual, or not known yet.
    #[inline(always)]
    pub(super) fn usual<S: Simd<F = F>>(s: S) -> Self {
        let top = s.splat(TOP - REFERENCE);
        Self { top }
    }

    /// Of a chunk whose largest score is `max`.
    #[inline(always)]
    pub fn for_largest<S: Simd<F = F>>(s: S, max: F) -> Self {
        let own = s.sub(s.splat(TOP), max);
        let top = s.select_lt(max, s.splat(USUAL.end), Self::usual(s).top, own);
        let top = s.select_lt(max, s.splat(USUAL.start), own, top);
        // What is too large for these units becomes NaN, which `OredBits::checked` finds.
        let size = s.max(max, s.sub(s.splat(0.0), max));
        let top = s.select_lt(size, s.splat(MAX), top, s.splat(f32::NAN));
        Self { top }
    }

    /// 0 where these are the usual ones; at most -1, or NaN, where they are not: not more than
    /// [`NOT_USUAL`].
    #[inline(always)]
    pub(super) fn usualness<S: Simd<F = F>>(self, s: S) -> F {
        let by = s.sub(self.top, Self::usual(s).top);
        s.sub(s.splat(0.0), s.mul(by, by))
    }

    /// A number whose lowest word has the weight's logarithm.
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

/// The bits of some weights' words, ored.
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

    /// `sum`, of the weights that have these words; NaN if one is NaN, or too large. (Numbers from
    /// `ZERO + LIMIT` on, and NaN, have a bit that no number from `ZERO` to there has.)
    #[inline(always)]
    pub fn checked<S: Simd<F = F>>(self, s: S, sum: F) -> F {
        let limit = s.splat(ZERO + f32::from(LIMIT));
        s.select_lt(self.0, limit, sum, s.splat(f32::NAN))
    }
}

/// The weights that have the logarithms `words`: sixteen pairs, or 32 numbers, of bfloat16.
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
