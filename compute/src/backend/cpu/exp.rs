//! `exp` and `silu` of sixteen lanes, the same arithmetic on every tier.

use super::simd::Simd;

/// Below this the result is flushed to zero: the smallest result is about 2^-125, so no result is
/// subnormal (subnormal arithmetic is a hundred times slower).
pub const EXP_LOWEST: f32 = -86.9;
/// Above this the result is infinite.
const EXP_HIGHEST: f32 = 88.722_84;

/// `e^x`; within 2 ulp; 0 under [`EXP_LOWEST`], 1 at 0 exactly, NaN for NaN.
///
/// `x = n ln 2 + r`, |r| <= ln 2 / 2, with ln 2 in two parts; the polynomial is Cephes' `expf`
/// (Moshier), which is also what SLEEF's and Eigen's fast variants use.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The order of the arguments of max and min lets NaN through.
    let clamped = s.min(s.splat(EXP_HIGHEST), s.max(s.splat(EXP_LOWEST), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-355.0 / 512.0), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_66,
        0.5,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let p = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    // 2^128 is not representable, so it is scaled by 2 and by 2^(n - 1).
    let y = s.mul(s.add(p, p), s.pow2(s.sub(n, s.splat(1.0))));
    let y = s.select_lt(x, s.splat(EXP_LOWEST), s.splat(0.0), y);
    s.select_lt(s.splat(EXP_HIGHEST), x, s.splat(f32::INFINITY), y)
}

/// `2^x` for `x <= 0`, within 8e-6 of it, and exactly 1 at 0: for weights that become sums of two
/// bfloat16 afterwards. 0 below -126, NaN for NaN. `1 + f p(f)` interpolates 2^f at the Chebyshev
/// nodes.
#[inline(always)]
pub fn exp2_weight<S: Simd>(s: S, x: S::F) -> S::F {
    let clamped = s.max(s.splat(-126.0), x);
    let n = s.round(clamped);
    let f = s.sub(clamped, n);
    let mut p = s.splat(9.656_71e-3);
    for c in [5.583_828_3e-2, 0.240_225_3, 0.693_136_73, 1.0] {
        p = s.fma(p, f, s.splat(c));
    }
    let y = s.mul(p, s.pow2(n));
    s.select_lt(x, s.splat(-126.0), s.splat(0.0), y)
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}
