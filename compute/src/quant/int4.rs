//! [`super::Quant::Int4`]: symmetric, the scale by error search.

use super::{greatest, nearest};
use half::f16;

/// The numbers that the codes stand for.
pub(super) const CODEBOOK: [f32; 16] = [
    -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
];

/// Candidates for the code of the weight of greatest magnitude: around -8, or around 7. More
/// candidates find little: 18 of them gain another 0.3 % of the squared error of normal weights.
pub const DIVISORS: [f32; 10] = [-7.2, -7.6, -8.0, -8.4, -8.8, 6.4, 6.8, 7.2, 7.6, 8.0];

/// Weights are searched within these magnitudes, because squares of others over- or underflow.
/// Neither occurs in a model.
pub const RANGE: [f32; 2] = [1e-15, 1e15];

/// Codes and scale of a group, by error search: every candidate scale gives codes, the codes give
/// their least-squares scale, and the candidate that leaves the least squared error wins. The error
/// is `sum x^2 - (sum x q)^2 / sum q^2`, so the second term is compared. The winner's scale is
/// rounded to f16, and the codes are taken anew with that.
pub(super) fn encode(x: &[f32; 32]) -> ([u8; 32], f32) {
    let max = greatest(x);
    if max.is_nan() {
        return ([0; 32], f32::NAN);
    }
    if max < RANGE[0] {
        return ([8; 32], 0.0);
    }
    let mut top = x[0];
    for &x in x {
        top = if x.abs() > top.abs() { x } else { top };
    }
    let max = max.min(RANGE[1]).copysign(top);
    let (mut best, mut scale) = (-1.0, 0.0);
    for divisor in DIVISORS {
        let inverse = divisor / max;
        let (mut product, mut square) = (0.0f32, 0.0f32);
        for &x in x {
            let q = code(x, inverse) as f32;
            product += x * q;
            square += q * q;
        }
        // The greatest weight has a code that is not zero.
        let gain = product * product / square;
        if gain > best {
            (best, scale) = (gain, product / square);
        }
    }
    let scale = rounded(scale);
    let inverse = inverse(scale);
    let mut codes = [0; 32];
    for i in 0..32 {
        codes[i] = (code(x[i], inverse) + 8) as u8;
    }
    (codes, scale)
}

/// The nearest f16.
pub fn rounded(scale: f32) -> f32 {
    let limit = f16::MAX.to_f32();
    f16::from_f32(scale.clamp(-limit, limit)).to_f32()
}

/// The factor that turns weights into codes.
pub fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn code(x: f32, inverse: f32) -> i32 {
    nearest((x * inverse).clamp(-8.0, 7.0))
}
