//! [`super::Quant::K4`] and [`super::Quant::K8`]: scales of two levels, as the K types of GGUF
//! files have them. Groups have small integers, and blocks of 256 weights have f16 scales of these.
//!
//! | | codes | a group | a weight is |
//! |---|---|---|---|
//! | K4 | 0..=15 | 32 weights: scale s and minimum m, 0..=127 each | `d s q - dmin m` |
//! | K8 | -128..=127 | 16 weights: scale s, -128..=127 | `d s q` |
//!
//! The scales of a block are words of 16 bits. The first [`GROUP_WORDS`] hold the small integers:
//! word i has, in its lower and upper byte, scale and minimum of group i of K4, or the scales of
//! the groups 2i and 2i + 1 of K8. Then comes `d`, and in K4 `dmin`, as bits of f16.
//!
//! `d s` and `d s q` are exact in float32. So a weight of K4 is rounded once, and one of K8 never.

use half::f16;

/// Weights of a block.
pub const BLOCK: usize = 256;
/// Words of the small integers of a block.
pub const GROUP_WORDS: usize = 8;
/// Words of the scales of a block of K4.
pub const K4_WORDS: usize = GROUP_WORDS + 2;
/// Words of the scales of a block of K8.
pub const K8_WORDS: usize = GROUP_WORDS + 1;

/// Scale and minimum of the weights of group `group` of a block of K4.
pub fn k4_scale(words: &[u16; K4_WORDS], group: usize) -> [f32; 2] {
    let [scale, minimum] = words[group].to_le_bytes();
    let half = |i: usize| f16::from_bits(words[GROUP_WORDS + i]).to_f32();
    [half(0) * f32::from(scale), half(1) * f32::from(minimum)]
}

/// Scale of the weights of group `group` of a block of K8.
pub fn k8_scale(words: &[u16; K8_WORDS], group: usize) -> f32 {
    let scale = words[group / 2].to_le_bytes()[group % 2] as i8;
    f16::from_bits(words[GROUP_WORDS]).to_f32() * f32::from(scale)
}
