//! The K types of GGUF files, as they are stored: scales of two levels, and planes of high bits.
//! Groups have small integers, and blocks of 256 weights have f16 scales of these.
//!
//! | | codes | a group | a weight is |
//! |---|---|---|---|
//! | [`Quant::K4`] | 0..=15 | 32 weights: scale s and minimum m, 0..=127 each | `d s q - dmin m` |
//! | [`Quant::K5`] | 0..=31 | as K4 | as K4 |
//! | [`Quant::K6`] | 0..=63 | 16 weights: scale s, -128..=127 | `d s (q - 32)` |
//! | [`Quant::K8`] | -128..=127 | as K6 | `d s q` |
//!
//! The scales of a block are words of 16 bits. The first [`GROUP_WORDS`] hold the small integers:
//! word i has, in its lower and upper byte, scale and minimum of group i of K4 and K5, or the
//! scales of the groups 2i and 2i + 1 of K6 and K8. Then comes `d`, and in K4 and K5 `dmin`, as
//! bits of f16.
//!
//! The codes of a block of K5 and K6 are their lower four bits, as those of K4, and then a plane of
//! the bits above: 1 or 2 of each code. A word of 32 bits of the plane belongs to 32 or 16 weights.
//! Of these, byte i has the bits of the weights i, i + 4, i + 8 and so on, the first in the lowest
//! bits. So one shift and one mask bring the bits of four neighbouring weights into four bytes.
//!
//! `d s` and `d s q` are exact in float32. So a weight of K4 and K5 is rounded once, and one of K6
//! and K8 never.

use super::Quant;
use half::f16;

/// Weights of a block.
pub const BLOCK: usize = 256;
/// Words of the small integers of a block.
pub const GROUP_WORDS: usize = 8;
/// Words of the scales of a block of K4 and K5.
pub const K4_WORDS: usize = GROUP_WORDS + 2;
/// Words of the scales of a block of K6 and K8.
pub const K8_WORDS: usize = GROUP_WORDS + 1;
/// Bytes of the lower four bits of the codes of a block of K4, K5 and K6.
pub const NIBBLES: usize = BLOCK / 2;

/// Bits of a code that lie in the plane of its block.
pub const fn plane_bits(quant: Quant) -> usize {
    match quant {
        Quant::K5 => 1,
        Quant::K6 => 2,
        _ => 0,
    }
}

/// Words of the scales of a block; `None` for formats with scales of one level.
pub const fn words(quant: Quant) -> Option<usize> {
    match quant {
        Quant::K4 | Quant::K5 => Some(K4_WORDS),
        Quant::K6 | Quant::K8 => Some(K8_WORDS),
        _ => None,
    }
}

/// Scale and minimum of the weights of group `group` of a block of K4 or K5.
pub fn k4_scale(words: &[u16; K4_WORDS], group: usize) -> [f32; 2] {
    let [scale, minimum] = words[group].to_le_bytes();
    let half = |i: usize| f16::from_bits(words[GROUP_WORDS + i]).to_f32();
    [half(0) * f32::from(scale), half(1) * f32::from(minimum)]
}

/// Scale of the weights of group `group` of a block of K6 or K8.
pub fn k8_scale(words: &[u16; K8_WORDS], group: usize) -> f32 {
    let scale = words[group / 2].to_le_bytes()[group % 2] as i8;
    f16::from_bits(words[GROUP_WORDS]).to_f32() * f32::from(scale)
}

/// The bits that the plane of a block, of so many bits for each code, has of code `i`.
pub fn high_bits(plane: &[u8], bits: usize, i: usize) -> u8 {
    let each = 32 / bits;
    let shift = i % each / 4 * bits;
    plane[i / each * 4 + i % 4] >> shift & ((1 << bits) - 1)
}
