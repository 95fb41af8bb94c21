//! [`super::Quant::Int8`]: symmetric.

use super::{greatest, nearest};
use half::f16;

/// Codes and scale of a group. The scale is rounded up, so that no code is cut off and every weight
/// changes by at most half a scale.
pub(super) fn encode(x: &[f32; 32]) -> ([u8; 32], f32) {
    let max = greatest(x);
    if max.is_nan() {
        return ([0; 32], f32::NAN);
    }
    let scale = at_least(max / 127.0);
    let inverse = super::int4::inverse(scale);
    let mut codes = [0; 32];
    for i in 0..32 {
        // Only weights beyond 127 times the greatest f16 are cut.
        let x = (x[i] * inverse).clamp(-127.0, 127.0);
        codes[i] = nearest(x) as u8;
    }
    (codes, scale)
}

/// The least f16 that is not below `x`, or the greatest f16.
pub fn at_least(x: f32) -> f32 {
    let near = f16::from_f32(x.min(f16::MAX.to_f32()));
    let up = near.to_f32() < x && near < f16::MAX;
    f16::from_bits(near.to_bits() + u16::from(up)).to_f32()
}
