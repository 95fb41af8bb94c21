//! Converts rows of quantised weights to the layout that the kernels read. `kernels/quant.h`
//! describes this layout and its reasons.

use super::params::GPU_BLOCK_K;
use crate::quant::{Quant, k};
use crate::{Result, reserve};
use std::sync::Mutex;

/// Strides of quantised weights are counted in units of this many bytes.
pub(super) const UNIT: usize = 16;
/// Columns of a block. K is padded to a multiple of it.
const BLOCK_K: usize = GPU_BLOCK_K as usize;
/// Each row begins at a multiple of this many bytes.
const ROW_BYTES: usize = 64;
/// Bytes of a line, which eight lanes read together.
const LINE: usize = 128;

/// Bytes of the codes of a row. The row's scales follow them.
pub(super) fn code_bytes(quant: Quant, cols: usize) -> usize {
    quant.code_bytes(padded(cols))
}

fn padded(cols: usize) -> usize {
    // Saturates instead of failing: no machine has room for such rows.
    cols.checked_next_multiple_of(BLOCK_K).unwrap_or(usize::MAX)
}

/// The distance from row to row, in units of [`UNIT`] bytes.
pub(super) fn stride(quant: Quant, cols: usize) -> usize {
    let scales = quant.scales(padded(cols)).saturating_mul(2);
    code_bytes(quant, cols)
        .saturating_add(scales)
        .div_ceil(ROW_BYTES)
        * (ROW_BYTES / UNIT)
}

/// [`crate::backend::Backend::each`].
pub(super) type Each<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// The number of pieces in which threads share the rows of [`codes`].
const PIECES: usize = 16;

/// Converts rows of codes from their stored form to rows of [`code_bytes`], with all threads.
pub(super) fn codes(quant: Quant, cols: usize, stored: &[u8], each: &Each<'_>) -> Result<Vec<u8>> {
    let (from, to) = (quant.code_bytes(cols), code_bytes(quant, cols));
    let rows = stored.len() / from;
    let mut out = reserve::filled("codes on their way to the device", rows * to, 0)?;
    let step = rows.div_ceil(PIECES).max(1);
    let pieces = stored.chunks(step * from).zip(out.chunks_mut(step * to));
    let pieces: Vec<_> = pieces.map(Mutex::new).collect();
    each(pieces.len(), &|i| {
        let (stored, out) = &mut *pieces[i].lock().unwrap_or_else(|e| e.into_inner());
        let rows = stored.chunks_exact(from).zip(out.chunks_exact_mut(to));
        rows.for_each(|(stored, out)| row_of_codes(quant, stored, out));
    });
    drop(pieces);
    Ok(out)
}

/// Converts a row of codes. Padding gets the code that means zero in the format.
fn row_of_codes(quant: Quant, stored: &[u8], out: &mut [u8]) {
    let plane = k::plane_bits(quant);
    if plane > 0 {
        let blocks = stored.chunks_exact(quant.code_bytes(k::BLOCK));
        let (lines, planes) = out.split_at_mut(blocks.len() * LINE);
        for (block, line) in blocks.clone().zip(lines.as_chunks_mut().0) {
            *line = line_of_nibbles(block.first_chunk().expect("a line"));
        }
        let planes = planes.chunks_exact_mut(LINE / 4 * plane);
        for (block, plane_of_block) in blocks.zip(planes) {
            words_of_plane(plane, &block[k::NIBBLES..], plane_of_block);
        }
        return;
    }
    // The stored code of zero. (Rows of the device's memory that are never written hold byte 0,
    // which is code -128 of int8; but their scales are zero as well.)
    let zero = match quant {
        Quant::Int4 => 0x88,
        Quant::Nf4 => 0x77,
        _ => 0,
    };
    let arranged: fn(&[u8; LINE]) -> [u8; LINE] = match quant {
        Quant::Int8 | Quant::K8 => line_of_integers,
        Quant::Fp8 => line_of_bytes,
        _ => line_of_nibbles,
    };
    // 8-bit formats have two lines in a block, so one may consist of padding alone.
    let mut lines = stored.chunks(LINE);
    for to in out.as_chunks_mut().0 {
        let line = lines.next().unwrap_or_default();
        *to = match line.first_chunk() {
            Some(whole) => arranged(whole),
            None => {
                let mut whole = [zero; LINE];
                whole[..line.len()].copy_from_slice(line);
                arranged(&whole)
            }
        };
    }
}

/// Converts the scales of rows from their stored form to the bytes that follow the rows' codes.
pub(super) fn scales(quant: Quant, cols: usize, stored: &[u16]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    reserve::vec(
        "scales on their way to the device",
        &mut out,
        2 * stored.len(),
    )?;
    let Some(words_of_block) = k::words(quant) else {
        out.extend(stored.iter().flat_map(|s| s.to_le_bytes()));
        return Ok(out);
    };
    // The small integers of all blocks of a row come first. In k6 and k8 these integers have a
    // sign, so 128 is added to them, as it is added to the codes of k8.
    let flip = if quant.group() == 16 { 0x80 } else { 0 };
    for row in stored.chunks_exact(quant.scales(cols)) {
        let blocks = row.chunks_exact(words_of_block);
        let small = blocks.clone().flat_map(|block| &block[..k::GROUP_WORDS]);
        out.extend(small.flat_map(|s| s.to_le_bytes()).map(|s| s ^ flip));
        let large = blocks.flat_map(|block| &block[k::GROUP_WORDS..]);
        out.extend(large.flat_map(|s| s.to_le_bytes()));
    }
    Ok(out)
}

/// A line of int8 codes: like `line_of_bytes`, with 128 added to each code.
fn line_of_integers(stored: &[u8; LINE]) -> [u8; LINE] {
    line_of_bytes(stored).map(|code| code ^ 0x80)
}

/// A line of 8-bit codes. Word j of piece o has columns 32j + 4o to 32j + 4o + 3, one byte each.
fn line_of_bytes(stored: &[u8; LINE]) -> [u8; LINE] {
    let mut out = [0; LINE];
    let words = stored.as_chunks::<4>().0;
    for (at, to) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (o, j) = (at / 4, at % 4);
        *to = words[8 * j + o];
    }
    out
}

/// A line of 4-bit codes. Word q of piece o has columns 4o to 4o + 3 of steps 2q and 2q + 1. Codes
/// that are stored in the upper halves of bytes go into the lower half of the word; the other codes
/// go into its upper half.
fn line_of_nibbles(stored: &[u8; LINE]) -> [u8; LINE] {
    let mut out = [0; LINE];
    let pairs = stored.as_chunks::<2>().0;
    for (at, to) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (o, q) = (at / 4, at % 4);
        let ([a, b], [c, d]) = (pairs[16 * q + o], pairs[16 * q + 8 + o]);
        *to = [
            a >> 4 | (b & 0xf0),
            c >> 4 | (d & 0xf0),
            a & 15 | b << 4,
            c & 15 | d << 4,
        ];
    }
    out
}

/// The plane of a block of codes, in `out`. It has `bits` bits of each code. It holds the words of
/// each piece in turn; pieces lie in such an order that the words of a lane are neighbours. A piece
/// has four columns of every step of 32 columns. The bits of the first and third column share one
/// half of a word; the bits of the second and fourth column share the other half.
fn words_of_plane(bits: usize, stored: &[u8], out: &mut [u8]) {
    let each = 8 / bits;
    let word = |piece: usize, first: usize| {
        let mut word = 0u32;
        for step in 0..each {
            for e in 0..4 {
                let column = 32 * (first + step) + 4 * piece + e;
                let at = 2 * bits * step + e / 2 * bits + e % 2 * 16;
                word |= u32::from(k::high_bits(stored, bits, column)) << at;
            }
        }
        word.to_le_bytes()
    };
    let pieces = [0, 4, 1, 5, 2, 6, 3, 7].into_iter();
    let words = pieces.flat_map(|piece| (0..bits).map(move |i| (piece, i * each)));
    for ((piece, first), to) in words.zip(out.as_chunks_mut().0) {
        *to = word(piece, first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of a plane, by the description in quant.h.
    fn high_of(quant: Quant, cols: usize, row: &[u8], col: usize) -> u8 {
        let bits = match quant {
            Quant::K5 => 1,
            Quant::K6 => 2,
            _ => return 0,
        };
        let (piece, step, e) = (col % 32 / 4, col % 256 / 32, col % 4);
        let place = [0, 2, 4, 6, 1, 3, 5, 7][piece] * bits + step / (8 / bits);
        let word = row[padded(cols) / 2 + col / 256 * 32 * bits + 4 * place..].first_chunk();
        let at = step % (8 / bits) * 2 * bits + e / 2 * bits + e % 2 * 16;
        (u32::from_le_bytes(*word.unwrap()) >> at) as u8 & ((1 << bits) - 1)
    }

    /// Checks every column against the description in quant.h.
    #[test]
    fn every_code_is_where_the_kernels_look() {
        for quant in Quant::ALL {
            let bytes = quant.has_bytes();
            for cols in [1, 2, 31, 33, 64, 128, 129, 256, 257, 640] {
                if !quant.takes(cols) {
                    continue;
                }
                let (from, to) = (quant.code_bytes(cols), code_bytes(quant, cols));
                let stored: Vec<u8> = (0..35 * from).map(|i| (i * 37 + i / 7) as u8).collect();
                // In no order that a loop would have.
                let each: &Each<'_> = &|tasks, task| (0..tasks).rev().for_each(task);
                let out = codes(quant, cols, &stored, each).unwrap();
                assert_eq!(out.len(), 35 * to);
                assert!(to % 32 == 0 && stride(quant, cols) * UNIT >= to + 2 * quant.scales(cols));
                for (row, out) in stored.chunks(from).zip(out.chunks(to)) {
                    for col in 0..padded(cols) {
                        let piece = col % 32 / 4;
                        let got = match bytes {
                            true => {
                                let word = col / 128 * 32 + piece * 4 + col % 128 / 32;
                                let sign = if quant == Quant::Fp8 { 0 } else { 0x80 };
                                out[4 * word + col % 4] ^ sign
                            }
                            false => {
                                let step = col % 256 / 32;
                                let word = col / 256 * 32 + piece * 4 + step / 2;
                                let nibble = [[0, 4, 1, 5], [2, 6, 3, 7]][step % 2][col % 4];
                                let low = out[4 * word + nibble / 2] >> (nibble % 2 * 4) & 15;
                                low | high_of(quant, cols, out, col) << 4
                            }
                        };
                        let want = match quant {
                            _ if col < cols => quant.code(row, col),
                            Quant::Int4 => 8,
                            Quant::Nf4 => 7,
                            _ => 0,
                        };
                        // If the number of columns is odd, the spare half byte at the end keeps
                        // what the file has there.
                        let spare = !bytes && cols % 2 == 1 && col == cols;
                        assert!(
                            got == want || spare,
                            "{quant:?} {cols} columns, {col}: {got} {want}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn scales_and_zero_points_are_where_the_kernels_look() {
        let words = [0x3c00, 0x4880, 0x2e66, 0x4700u16];
        // A word of 32 bits has the scale in its lower half, the zero point in its upper one.
        let both = [0x4880_3c00, 0x4700_2e66u32];
        for (quant, want) in [
            (Quant::Uint4, both.map(u32::to_le_bytes).concat()),
            (Quant::Iq4, words.map(u16::to_le_bytes).concat()),
        ] {
            assert_eq!(scales(quant, 40, &words).unwrap(), want, "{quant:?}");
        }
    }

    #[test]
    fn scales_of_two_levels_are_where_the_kernels_look() {
        for quant in Quant::ALL.into_iter().filter(|quant| quant.is_k()) {
            let (cols, blocks) = (768, 3);
            let words = quant.scales(cols) / blocks;
            let stored: Vec<u16> = (0..2 * quant.scales(cols))
                .map(|i| (i * 4099 + 77) as u16)
                .collect();
            let out = scales(quant, cols, &stored).unwrap();
            assert_eq!(out.len(), 2 * stored.len());
            for (row, out) in stored
                .chunks(blocks * words)
                .zip(out.chunks(2 * blocks * words))
            {
                let signed = matches!(quant, Quant::K6 | Quant::K8);
                let flip = if signed { 0x80 } else { 0 };
                for (b, block) in row.chunks(words).enumerate() {
                    for i in 0..16 {
                        let want = block[i / 2].to_le_bytes()[i % 2] ^ flip;
                        assert_eq!(out[16 * b + i], want, "{quant:?} {b} {i}");
                    }
                    for (i, large) in block[k::GROUP_WORDS..].iter().enumerate() {
                        let at = 16 * blocks + 2 * (b * (words - k::GROUP_WORDS) + i);
                        assert_eq!(out[at..at + 2], large.to_le_bytes(), "{quant:?} {b} {i}");
                    }
                }
            }
        }
    }
}
