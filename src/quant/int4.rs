//! [`super::Quant::Int4`].

use super::{greatest, nearest};
use half::f16;

/// What the codes stand for.
pub(super) const CODEBOOK: [f32; 16] = [
    -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
];

/// Where the weight of greatest magnitude is put: at or a little beyond -8, or around 7.
const DIVISORS: [f32; 18] = [
    -7.0, -7.25, -7.5, -7.75, -8.0, -8.25, -8.5, -8.75, -9.0, //
    6.25, 6.5, 6.75, 7.0, 7.25, 7.5, 7.75, 8.0, 8.25,
];

/// Codes and scale of a group, by error search: every candidate scale gives codes, the codes give
/// their least-squares scale, and the candidate that leaves the least squared error wins. The error
/// is `sum x^2 - (sum x q)^2 / sum q^2`, so the second term is compared. The winner's scale is rounded
/// to f16, and the codes are taken anew with that.
#[inline(always)]
pub(super) fn encode(x: &[f32; 32]) -> ([u8; 32], f32) {
    let max = greatest(x);
    if max.is_nan() {
        return ([8; 32], f32::NAN);
    }
    // Products of squares of weights outside this range would over- or underflow; neither occurs in a
    // model.
    let max = max.min(1e15);
    if max < 1e-15 {
        return ([8; 32], 0.0);
    }
    let mut top = x[0];
    for &x in x {
        top = if x.abs() > top.abs() { x } else { top };
    }
    let max = max.copysign(top);
    let (mut best, mut scale) = (-1.0, 0.0);
    for divisor in DIVISORS {
        let inverse = divisor / max;
        let (mut products, mut squares) = ([0.0f32; 16], [0.0f32; 16]);
        for half in x.as_chunks::<16>().0 {
            for i in 0..16 {
                let q = code(half[i], inverse) as f32;
                products[i] += half[i] * q;
                squares[i] += q * q;
            }
        }
        let (product, square) = (sum(products), sum(squares));
        // The greatest weight has a code that is not zero.
        let gain = product * product / square;
        if gain > best {
            (best, scale) = (gain, product / square);
        }
    }
    let limit = f16::MAX.to_f32();
    let scale = f16::from_f32(scale.clamp(-limit, limit)).to_f32();
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut codes = [0; 32];
    for i in 0..32 {
        codes[i] = code(x[i], inverse).wrapping_add(8) as u8;
    }
    (codes, scale)
}

#[inline(always)]
fn code(x: f32, inverse: f32) -> i32 {
    nearest((x * inverse).clamp(-8.0, 7.0))
}

/// Halves, quarters, eighths, sixteenths.
#[inline(always)]
fn sum(mut x: [f32; 16]) -> f32 {
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            x[i] += x[i + width];
        }
        width /= 2;
    }
    x[0]
}
