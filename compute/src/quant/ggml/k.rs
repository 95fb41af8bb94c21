//! Blocks of 256 weights: scales of 16 or 32 weights are small integers, and a float16 scales them.

use super::half;
use super::simple::nibbles;
use crate::quant::iq4;

pub(super) fn q2(b: &[u8; 84], to: &mut [f32; 256]) {
    let (scales, codes) = (&b[..16], &b[16..80]);
    let (d, dmin) = (half(b[80], b[81]), half(b[82], b[83]));
    // 64 bytes are two halves of 32, each with 4 codes a byte: 32 weights apart.
    for (group, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (part, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let (scale, min) = (scales[group] & 15, scales[group] >> 4);
        let (dl, ml) = (d * f32::from(scale), dmin * f32::from(min));
        let from = &codes[32 * part + 16 * side..][..16];
        for (to, &q) in to.iter_mut().zip(from) {
            *to = dl * f32::from(q >> shift & 3) - ml;
        }
    }
}

/// The 16 scales of 6 bits of a Q3_K block, less their middle.
#[inline(always)]
fn q3_scales(packed: &[u8; 12]) -> [i8; 16] {
    let mut scales = [0; 16];
    for (i, scale) in scales.iter_mut().enumerate() {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    scales
}

pub(super) fn q3(b: &[u8; 110], to: &mut [f32; 256]) {
    let mut codes = [0; 256];
    let scales = q3_codes(b, &mut codes);
    scaled(half(b[108], b[109]), &scales, &codes, to);
}

/// d s q, with a scale for each 16 codes.
#[inline(always)]
fn scaled(d: f32, scales: &[i8; 16], codes: &[u8; 256], to: &mut [f32; 256]) {
    let groups = codes.as_chunks::<16>().0.iter().zip(scales);
    for ((codes, &scale), to) in groups.zip(to.as_chunks_mut::<16>().0) {
        let dl = d * f32::from(scale);
        for (to, &q) in to.iter_mut().zip(codes) {
            *to = dl * f32::from(q as i8);
        }
    }
}

/// The signed codes of a Q3_K block; its scales are the answer.
#[inline(always)]
pub(super) fn q3_codes(b: &[u8; 110], to: &mut [u8; 256]) -> [i8; 16] {
    let (mask, codes) = (&b[..32], &b[32..96]);
    for (group, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (part, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let from = &codes[32 * part + 16 * side..][..16];
        let high = &mask[16 * side..][..16];
        for ((to, &q), &high) in to.iter_mut().zip(from).zip(high) {
            // A third bit that is missing takes 4 away.
            let third = high >> (group / 2) & 1;
            *to = (q >> shift & 3 | third << 2).wrapping_sub(4);
        }
    }
    q3_scales(b[96..108].as_array().expect("12"))
}

/// The 8 scales and the 8 minima of Q4_K and Q5_K, of 6 bits each.
#[inline(always)]
pub(super) fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        minima[i] = packed[i + 4] & 63;
        scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
        minima[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
    (scales, minima)
}

pub(super) fn q4(b: &[u8; 144], to: &mut [f32; 256]) {
    let (d, dmin) = (half(b[0], b[1]), half(b[2], b[3]));
    let (scales, minima) = scales_and_minima(b[4..16].as_array().expect("12"));
    for (group, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (dl, ml) = (
            d * f32::from(scales[group]),
            dmin * f32::from(minima[group]),
        );
        let (from, shift) = (&b[16 + 32 * (group / 2)..][..32], group % 2 * 4);
        for (to, &q) in to.iter_mut().zip(from) {
            *to = dl * f32::from(q >> shift & 15) - ml;
        }
    }
}

pub(super) fn q5(b: &[u8; 176], to: &mut [f32; 256]) {
    let (d, dmin) = (half(b[0], b[1]), half(b[2], b[3]));
    let (scales, minima) = scales_and_minima(b[4..16].as_array().expect("12"));
    let mut codes = [0; 256];
    q5_codes(b, &mut codes);
    let groups = to.as_chunks_mut::<32>().0.iter_mut();
    for (group, (to, codes)) in groups.zip(codes.as_chunks::<32>().0).enumerate() {
        let (dl, ml) = (
            d * f32::from(scales[group]),
            dmin * f32::from(minima[group]),
        );
        for (to, &q) in to.iter_mut().zip(codes) {
            *to = dl * f32::from(q) - ml;
        }
    }
}

/// The codes of a Q5_K block.
#[inline(always)]
fn q5_codes(b: &[u8; 176], to: &mut [u8; 256]) {
    let fifth = &b[16..48];
    for (group, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (from, shift) = (&b[48 + 32 * (group / 2)..][..32], group % 2 * 4);
        for ((to, &q), &fifth) in to.iter_mut().zip(from).zip(fifth) {
            *to = q >> shift & 15 | (fifth >> group & 1) << 4;
        }
    }
}

pub(super) fn q6(b: &[u8; 210], to: &mut [f32; 256]) {
    let mut codes = [0; 256];
    let scales = q6_codes(b, &mut codes);
    scaled(half(b[208], b[209]), &scales, &codes, to);
}

/// As [`q3_codes`], of Q6_K.
#[inline(always)]
fn q6_codes(b: &[u8; 210], to: &mut [u8; 256]) -> [i8; 16] {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    for (group, to) in to.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        // In each half of the block, the quarters are of 32 weights: the lower 4 bits of 64 bytes,
        // then the upper 4 bits of the same.
        let (part, quarter, side) = (group / 8, group % 8 / 2, group % 2);
        let low = &low[64 * part + 32 * (quarter % 2) + 16 * side..][..16];
        let high = &high[32 * part + 16 * side..][..16];
        for ((to, &low), &high) in to.iter_mut().zip(low).zip(high) {
            let q = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            *to = q.wrapping_sub(32);
        }
    }
    std::array::from_fn(|i| scales[i] as i8)
}

/// The 8 scales of 6 bits of an IQ4_XS block, less their middle.
#[inline(always)]
pub(super) fn iq4_scales(b: &[u8; 136]) -> [i8; 8] {
    let high = u16::from_le_bytes([b[2], b[3]]);
    let mut scales = [0; 8];
    for (i, scale) in scales.iter_mut().enumerate() {
        let low = b[4 + i / 2] >> (i % 2 * 4) & 15;
        *scale = (low | ((high >> (2 * i) & 3) as u8) << 4) as i8 - 32;
    }
    scales
}

pub(super) fn iq4_xs(b: &[u8; 136], to: &mut [f32; 256]) {
    let (d, scales) = (half(b[0], b[1]), iq4_scales(b));
    for (group, to) in to.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let dl = d * f32::from(scales[group]);
        let codes = nibbles(b[8 + 16 * group..].first_chunk().expect("16"));
        for (to, q) in to.iter_mut().zip(codes) {
            *to = dl * f32::from(iq4::VALUES[usize::from(q)]);
        }
    }
}
