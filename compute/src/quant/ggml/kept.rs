//! Formats of GGUF files that are also formats of [`Quant`]: as codes and scales of these, without
//! a second rounding.

use super::simple::{nibbles, with_fifth};
use super::{Type, k};
use crate::quant::k::{GROUP_WORDS, K4_WORDS, K8_WORDS, NIBBLES};
use crate::quant::{Quant, iq4, uint4};
use half::f16;

impl Type {
    /// The formats of ours that hold the weights' codes, the best first; none for other types.
    ///
    /// The numbers are exactly those of [`Type::decode`], except [`Type::Iq4Xs`], whose scales, a
    /// float16 times an integer, are rounded to float16, and [`Type::Q4_1`]
    /// ([`uint4::from_minimum`]).
    pub fn kept(self) -> &'static [Quant] {
        match self {
            Type::Q4_0 => &[Quant::Int4],
            Type::Q4_1 => &[Quant::Uint4],
            Type::Iq4Nl | Type::Iq4Xs => &[Quant::Iq4, Quant::Int8],
            Type::Q8_0 | Type::Q5_0 => &[Quant::Int8],
            Type::Q4K => &[Quant::K4],
            Type::Q5K => &[Quant::K5],
            Type::Q6K => &[Quant::K6],
            Type::Q3K => &[Quant::K8],
            _ => &[],
        }
    }

    /// Whole blocks as codes and scales of `quant`, one of [`Type::kept`].
    ///
    /// Scales that are infinite or NaN stay so: the caller refuses them, as everywhere.
    ///
    /// # Panics
    /// Where the type has no such format.
    pub fn codes(self, quant: Quant, from: &[u8], codes: &mut [u8], scales: &mut [u16]) {
        match self {
            Type::Q4_0 => {
                let blocks = from.as_chunks::<18>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(16)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    join_halves(&b[2..], codes);
                }
            }
            Type::Q8_0 => {
                let blocks = from.as_chunks::<34>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(32)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    codes.copy_from_slice(&b[2..]);
                }
            }
            Type::Q5_0 => {
                let blocks = from.as_chunks::<22>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(32)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    let low = nibbles(b[6..].as_array().expect("16"));
                    let wide = with_fifth(low, [b[2], b[3], b[4], b[5]]);
                    codes.copy_from_slice(&wide.map(|q| q.wrapping_sub(16)));
                }
            }
            Type::Q4_1 => {
                let scales = scales.as_chunks_mut::<2>().0.iter_mut();
                let blocks = from.as_chunks::<20>().0.iter().zip(scales);
                for ((b, words), codes) in blocks.zip(codes.chunks_exact_mut(16)) {
                    join_halves(&b[4..], codes);
                    let [d, m] = [0, 2].map(|i| u16::from_le_bytes([b[i], b[i + 1]]));
                    *words = uint4::from_minimum(d, m, codes);
                }
            }
            Type::Iq4Nl => {
                let blocks = from.as_chunks::<18>().0.iter().zip(scales);
                let codes = codes.chunks_exact_mut(quant.code_bytes(32));
                for ((b, scale), codes) in blocks.zip(codes) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    table_codes(quant, &b[2..], codes);
                }
            }
            Type::Iq4Xs => {
                let scales = scales.as_chunks_mut::<8>().0.iter_mut();
                let blocks = from.as_chunks::<136>().0.iter().zip(scales);
                let codes = codes.chunks_exact_mut(quant.code_bytes(256));
                for ((b, scales), codes) in blocks.zip(codes) {
                    let d = super::half(b[0], b[1]);
                    *scales = k::iq4_scales(b).map(|s| f16::from_f32(d * f32::from(s)).to_bits());
                    let groups = codes.chunks_exact_mut(quant.code_bytes(32));
                    for (from, codes) in b[8..].chunks_exact(16).zip(groups) {
                        table_codes(quant, from, codes);
                    }
                }
            }
            Type::Q4K => {
                let scales = scales.as_chunks_mut::<{ K4_WORDS }>().0.iter_mut();
                let blocks = from.as_chunks::<144>().0.iter().zip(scales);
                for ((b, words), codes) in blocks.zip(codes.chunks_exact_mut(128)) {
                    *words = k4_words(b.first_chunk().expect("16"));
                    for (from, codes) in b[16..].chunks_exact(32).zip(codes.chunks_exact_mut(32)) {
                        join_halves(from, codes);
                    }
                }
            }
            Type::Q5K => {
                let scales = scales.as_chunks_mut::<{ K4_WORDS }>().0.iter_mut();
                let blocks = from.as_chunks::<176>().0.iter().zip(scales);
                for ((b, words), to) in blocks.zip(codes.chunks_exact_mut(160)) {
                    *words = k4_words(b.first_chunk().expect("16"));
                    let (codes, plane) = to.split_at_mut(NIBBLES);
                    for (from, codes) in b[48..].chunks_exact(32).zip(codes.chunks_exact_mut(32)) {
                        join_halves(from, codes);
                    }
                    for (group, word) in plane.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *word = gather::<1, 8>(b[16..].as_chunks().0, group);
                    }
                }
            }
            Type::Q6K => {
                let scales = scales.as_chunks_mut::<{ K8_WORDS }>().0.iter_mut();
                let blocks = from.as_chunks::<210>().0.iter().zip(scales);
                for ((b, words), to) in blocks.zip(codes.chunks_exact_mut(192)) {
                    let scales = b[192..208].as_array().expect("16");
                    *words = k8_words(scales.map(|s| s as i8), [b[208], b[209]]);
                    let (codes, plane) = to.split_at_mut(NIBBLES);
                    for (from, codes) in b[..128].chunks_exact(64).zip(codes.chunks_exact_mut(64)) {
                        // The lower halves are 64 weights, and so are the upper ones.
                        let (low, high) = codes.split_at_mut(32);
                        split_halves(from, low, high);
                    }
                    for (group, word) in plane.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        let from = &b[128 + 32 * (group / 8) + 16 * (group % 2)..];
                        *word = gather::<2, 4>(from.as_chunks().0, group % 8 / 2 * 2);
                    }
                }
            }
            Type::Q3K => {
                let scales = scales.as_chunks_mut::<{ K8_WORDS }>().0.iter_mut();
                let codes = codes.as_chunks_mut::<256>().0.iter_mut();
                for ((b, words), codes) in from.as_chunks::<110>().0.iter().zip(scales).zip(codes) {
                    *words = k8_words(k::q3_codes(b, codes), [b[108], b[109]]);
                }
            }
            _ => panic!("{self} has no codes of ours"),
        }
    }
}

/// Bytes whose lower halves are codes of neighbouring weights, as nibbles of ours in `low`; the
/// codes of their upper halves in `high`. In pairs of bytes, not code by code: that is vectorised
/// with any instructions.
#[inline(always)]
fn split_halves(from: &[u8], low: &mut [u8], high: &mut [u8]) {
    for ((two, low), high) in from.as_chunks::<2>().0.iter().zip(low).zip(high) {
        let two = u16::from_le_bytes(*two);
        *low = ((two & 15) << 4 | two >> 8 & 15) as u8;
        *high = (two & 0xf0 | two >> 12) as u8;
    }
}

/// [`split_halves`], one after the other.
#[inline(always)]
fn join_halves(from: &[u8], to: &mut [u8]) {
    let (low, high) = to.split_at_mut(from.len() / 2);
    split_halves(from, low, high);
}

/// A word of a plane, as [`crate::quant::k`] has it: of every byte of `N` words of the file, the
/// `BITS` bits that begin at bit `shift`.
#[inline(always)]
fn gather<const BITS: usize, const N: usize>(from: &[[u8; 4]], shift: usize) -> [u8; 4] {
    let mask = const { 0x0101_0101 * ((1 << BITS) - 1) };
    let mut word = 0;
    for (i, four) in from[..N].iter().enumerate() {
        word |= (u32::from_le_bytes(*four) >> shift & mask) << (i * BITS);
    }
    word.to_le_bytes()
}

/// The scales of a block of [`Quant::K4`] or [`Quant::K5`], from the head of a block of the file.
fn k4_words(head: &[u8; 16]) -> [u16; K4_WORDS] {
    let mut words = [0; K4_WORDS];
    let (s, m) = k::scales_and_minima(head[4..].as_array().expect("12"));
    for (i, word) in words[..GROUP_WORDS].iter_mut().enumerate() {
        *word = u16::from_le_bytes([s[i], m[i]]);
    }
    words[GROUP_WORDS] = u16::from_le_bytes([head[0], head[1]]);
    words[GROUP_WORDS + 1] = u16::from_le_bytes([head[2], head[3]]);
    words
}

/// The scales of a block of [`Quant::K6`] or [`Quant::K8`].
fn k8_words(scales: [i8; 16], d: [u8; 2]) -> [u16; K8_WORDS] {
    let mut words = [0; K8_WORDS];
    for (pair, word) in scales.as_chunks::<2>().0.iter().zip(&mut words) {
        *word = u16::from_le_bytes(pair.map(|s| s as u8));
    }
    words[GROUP_WORDS] = u16::from_le_bytes(d);
    words
}

/// 32 codes of the table [`iq4`]: as they are, or as [`Quant::Int8`] the values that they stand
/// for.
#[inline(always)]
fn table_codes(quant: Quant, packed: &[u8], to: &mut [u8]) {
    if quant == Quant::Iq4 {
        return join_halves(packed, to);
    }
    let codes = nibbles(packed.as_array().expect("16"));
    to.copy_from_slice(&codes.map(|q| iq4::VALUES[usize::from(q)] as u8));
}
