//! Blocks of 32 weights with one scale, some with a minimum. Of the 16 bytes that hold 4 bits of
//! each weight, the lower halves are the first 16 weights.
//!
//! Differences of codes are wrapping ones, here and in `k.rs`. No code is near the bounds, and
//! checks for overflow keep loops from being vectorised: Q5_0 takes 2.6 times as long with them.

use super::half;
use crate::quant::iq4;

/// The 4-bit codes of a block, as the array of its weights.
#[inline(always)]
pub(super) fn nibbles(packed: &[u8; 16]) -> [u8; 32] {
    let mut codes = [0; 32];
    for (i, &byte) in packed.iter().enumerate() {
        codes[i] = byte & 15;
        codes[i + 16] = byte >> 4;
    }
    codes
}

/// Adds the fifth bits: bit i of `high` belongs to weight i.
#[inline(always)]
pub(super) fn with_fifth(mut codes: [u8; 32], high: [u8; 4]) -> [u8; 32] {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    codes
}

pub(super) fn q4_0(b: &[u8; 18], to: &mut [f32; 32]) {
    let (d, codes) = (half(b[0], b[1]), nibbles(b[2..].as_array().expect("16")));
    for (to, q) in to.iter_mut().zip(codes) {
        *to = f32::from((q as i8).wrapping_sub(8)) * d;
    }
}

pub(super) fn q4_1(b: &[u8; 20], to: &mut [f32; 32]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    for (to, q) in to.iter_mut().zip(nibbles(b[4..].as_array().expect("16"))) {
        *to = f32::from(q) * d + m;
    }
}

pub(super) fn q5_0(b: &[u8; 22], to: &mut [f32; 32]) {
    let d = half(b[0], b[1]);
    let codes = with_fifth(
        nibbles(b[6..].as_array().expect("16")),
        [b[2], b[3], b[4], b[5]],
    );
    for (to, q) in to.iter_mut().zip(codes) {
        *to = f32::from((q as i8).wrapping_sub(16)) * d;
    }
}

pub(super) fn q5_1(b: &[u8; 24], to: &mut [f32; 32]) {
    let (d, m) = (half(b[0], b[1]), half(b[2], b[3]));
    let codes = with_fifth(
        nibbles(b[8..].as_array().expect("16")),
        [b[4], b[5], b[6], b[7]],
    );
    for (to, q) in to.iter_mut().zip(codes) {
        *to = f32::from(q) * d + m;
    }
}

pub(super) fn q8_0(b: &[u8; 34], to: &mut [f32; 32]) {
    let d = half(b[0], b[1]);
    for (to, &q) in to.iter_mut().zip(&b[2..]) {
        *to = f32::from(q as i8) * d;
    }
}

pub(super) fn iq4_nl(b: &[u8; 18], to: &mut [f32; 32]) {
    let (d, codes) = (half(b[0], b[1]), nibbles(b[2..].as_array().expect("16")));
    for (to, q) in to.iter_mut().zip(codes) {
        *to = d * f32::from(iq4::VALUES[usize::from(q)]);
    }
}
