//! Checks that weights are finite numbers in the format in which they are kept.
//!
//! A single NaN or infinity among the weights makes every logit NaN, or only those of some prompts,
//! and nobody notices it before they read an answer. So such a checkpoint is refused. The check
//! costs a mask and a maximum for each number. It runs on the thread that has just read the bytes,
//! while they are in that thread's cache.

use super::files::Source;
use crate::format::Encoding;
use crate::quant::{Quant, k};
use crate::{Dtype, Error, Result};
use half::{bf16, f16};

/// The smallest magnitude that rounds to infinity.
fn overflow(to: Dtype) -> f32 {
    match to {
        // This is halfway between the greatest number and the next power of two, and ties round to
        // the latter.
        Dtype::F16 => 65_520.0,
        Dtype::Bf16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    }
}

/// Fills `bytes` from byte `offset` of a tensor's data on. Its floats will be converted to `to`; a
/// number that would not be finite in that format is refused.
pub(super) fn read(source: &Source, to: Dtype, offset: u64, bytes: &mut [u8]) -> Result<()> {
    source.file.read(source.info, offset, bytes)?;
    check(source, to, offset, bytes)
}

/// Checks numbers of a tensor, from byte `offset` of its data on, that will be converted to `to`.
/// Codes of a quantised tensor are always finite.
fn check(source: &Source, to: Dtype, offset: u64, bytes: &[u8]) -> Result<()> {
    let limit = overflow(to).to_bits();
    let stored = source.info.encoding;
    let beyond = match stored {
        Encoding::F32 => first_beyond_32(bytes, limit),
        // Every f16 is finite in every other format.
        Encoding::F16 => first_beyond_16(bytes, f16::INFINITY.to_bits()),
        // A bf16 is the upper half of an f32.
        Encoding::Bf16 => first_beyond_16(bytes, limit.div_ceil(1 << 16) as u16),
        _ => None,
    };
    let Some(at) = beyond else { return Ok(()) };
    let size = stored.size();
    let number = &bytes[at * size..][..size];
    let value = match *number {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        [a, b] if stored == Encoding::F16 => f16::from_le_bytes([a, b]).to_f32(),
        [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("a float of {size} bytes"),
    };
    Err(refused(source, to, offset as usize / size + at, value))
}

pub(super) fn refused(source: &Source, to: Dtype, index: usize, value: f32) -> Error {
    let mut at = format!("index {index}");
    if let [_, cols] = source.info.shape[..] {
        at += &format!(" (row {}, column {})", index / cols, index % cols);
    }
    let expected = match value.is_finite() {
        true => format!("numbers that are finite as {to}"),
        false => "finite numbers".into(),
    };
    source.wrong(expected, format!("{value} at {at}"))
}

/// The index of the first number whose magnitude has at least the bits `limit`. The bits of
/// magnitudes are ordered as the magnitudes are; infinity and then NaN come last.
fn first_beyond_32(bytes: &[u8], limit: u32) -> Option<usize> {
    let magnitudes = || {
        let numbers = bytes.as_chunks().0.iter();
        numbers.map(|&b| (u32::from_le_bytes(b) & 0x7fff_ffff) as i32)
    };
    // The compiler vectorises a maximum, but not a search. A maximum of signed integers is cheaper,
    // and the sign bits are masked off.
    let most = magnitudes().fold(0, i32::max);
    let beyond = |x| x >= limit as i32;
    beyond(most).then(|| magnitudes().position(beyond))?
}

/// The same as [`first_beyond_32`] for numbers of 16 bits.
fn first_beyond_16(bytes: &[u8], limit: u16) -> Option<usize> {
    let magnitudes = || {
        let numbers = bytes.as_chunks().0.iter();
        numbers.map(|&b| (u16::from_le_bytes(b) & 0x7fff) as i16)
    };
    let most = magnitudes().fold(0, i16::max);
    let beyond = |x| x >= limit as i16;
    beyond(most).then(|| magnitudes().position(beyond))?
}

/// Checks the scales of blocks, which will be converted to f16. The first one belongs to block
/// `first` of the tensor. (In all formats but NF4, scales are limited to the greatest f16.)
pub(super) fn check_scales(source: &Source, first: usize, scales: &[f32]) -> Result<()> {
    let fits = |scale: &f32| scale.abs() < overflow(Dtype::F16);
    if fits(&greatest_magnitude(scales)) {
        return Ok(());
    }
    match scales.iter().position(|scale| !fits(scale)) {
        Some(at) => Err(scale_refused(source, first + at, scales[at])),
        None => Ok(()),
    }
}

/// Checks scales, given as bits of f16. The first one belongs to block `first` of the tensor.
pub(super) fn check_halves(source: &Source, first: usize, scales: &[u16]) -> Result<()> {
    let scale = |&bits: &u16| f16::from_bits(bits);
    match scales.iter().map(scale).position(|s| !s.is_finite()) {
        Some(at) => Err(scale_refused(
            source,
            first + at,
            scale(&scales[at]).to_f32(),
        )),
        None => Ok(()),
    }
}

/// Checks the scales of rows of `cols` columns, from `row` on, in the words of `quant`. `stored` is
/// the scale of a row and column as the tensor has it, if it has another format.
pub(super) fn check_words(
    source: &Source,
    quant: Quant,
    [row, cols]: [usize; 2],
    scales: &[u16],
    stored: Option<&dyn Fn(usize, usize) -> f32>,
) -> Result<()> {
    // Words of a block, and which of them are the first bits of f16.
    let (words, halves) = match k::words(quant) {
        Some(words) => (words, k::GROUP_WORDS),
        None => (quant.scales(quant.group()), 0),
    };
    let of_row = quant.scales(cols) / words;
    for (i, words) in scales.chunks_exact(words).enumerate() {
        let mut halves = words[halves..].iter().map(|&bits| f16::from_bits(bits));
        if let Some(scale) = halves.find(|scale| !scale.is_finite()) {
            let (row, block) = (row + i / of_row, i % of_row);
            let stored = stored.map(|stored| stored(row, block * cols / of_row));
            let scale = stored.unwrap_or(scale.to_f32());
            return Err(scale_refused(source, row * of_row + block, scale));
        }
    }
    Ok(())
}

/// The greatest magnitude; NaN if there is one. The compiler vectorises a maximum of bits, and the
/// bits of NaN are greater than those of infinity.
fn greatest_magnitude(x: &[f32]) -> f32 {
    let magnitudes = x.iter().map(|x| x.to_bits() & 0x7fff_ffff);
    f32::from_bits(magnitudes.fold(0, u32::max))
}

/// Checks decoded numbers, which will be converted to `to`. The first one is number `first` of its
/// tensor.
pub(super) fn check_decoded(source: &Source, to: Dtype, first: usize, x: &[f32]) -> Result<()> {
    let limit = overflow(to);
    if greatest_magnitude(x) < limit {
        return Ok(());
    }
    let beyond = |x: &f32| x.is_nan() || x.abs() >= limit;
    let at = x.iter().position(beyond).expect("the greatest is beyond");
    Err(refused(source, to, first + at, x[at]))
}

fn scale_refused(source: &Source, block: usize, scale: f32) -> Error {
    let expected = format!("scales of blocks below {}", overflow(Dtype::F16));
    source.wrong(expected, format!("{scale} for block {block}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits are where `half` rounds to infinity.
    #[test]
    fn what_overflows_is_not_finite() {
        let below = |x: f32| f32::from_bits(x.to_bits() - 1);
        let f16_limit = overflow(Dtype::F16);
        assert!(f16::from_f32(f16_limit).is_infinite());
        assert!(f16::from_f32(below(f16_limit)).is_finite());
        let bf16_limit = overflow(Dtype::Bf16);
        assert!(bf16::from_f32(bf16_limit).is_infinite());
        assert!(bf16::from_f32(below(bf16_limit)).is_finite());
    }

    #[test]
    fn every_number_is_looked_at() {
        for n in [1, 7, 8, 64, 1000] {
            for at in (0..n).step_by(3) {
                for bits in [0x7f80_0000u32, 0xff80_0000, 0x7fc0_0000, 0xff80_0001] {
                    let mut x = vec![f32::MIN.to_bits(); n];
                    let bytes =
                        |x: &[u32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
                    assert_eq!(first_beyond_32(&bytes(&x), 0x7f80_0000), None);
                    x[at] = bits;
                    assert_eq!(first_beyond_32(&bytes(&x), 0x7f80_0000), Some(at));
                }
                for (finite, limit, bits) in [(0xfbff, 0x7c00, 0xfc00), (0xff7f, 0x7f80, 0x7fff)] {
                    let mut x = vec![finite; n];
                    let bytes =
                        |x: &[u16]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
                    assert_eq!(first_beyond_16(&bytes(&x), limit), None);
                    x[at] = bits;
                    assert_eq!(first_beyond_16(&bytes(&x), limit), Some(at));
                }
            }
        }
    }
}
