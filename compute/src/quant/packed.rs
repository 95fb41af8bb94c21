//! Codes of 2, 3, 4 and 8 bits in words of 32: how GPTQ, AWQ and compressed-tensors pack them.
//!
//! | | words of | a code lies |
//! |---|---|---|
//! | GPTQ `qweight` | `[k * bits / 32, n]` | in a stream of bits along k, the lowest first |
//! | GPTQ `qzeros` | `[groups, n * bits / 32]` | in a stream of bits along n |
//! | AWQ `qweight`, `qzeros` | `[k, n / 8]`, `[groups, n / 8]` | nibble i: column [`AWQ`]`[i]` |
//! | compressed `weight_packed` | `[n, k * bits / 32]` | in a stream of bits along k |
//!
//! k counts inputs (our columns) and n outputs (our rows). What is unpacked lies in rows: `[n, k]`.

use std::ops::Range;

/// The column, of 8, whose code is nibble i of a word of AWQ's.
pub const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// The code of `bits` bits at place `i` of a stream.
pub fn code(bits: u32, stream: impl Fn(usize) -> u32, i: usize) -> u8 {
    let (word, bit) = (i * bits as usize / 32, (i * bits as usize % 32) as u32);
    let mut code = stream(word) >> bit;
    if bit + bits > 32 {
        code |= stream(word + 1) << (32 - bit);
    }
    (code & ((1 << bits) - 1)) as u8
}

/// All codes of a stream that fills its words: `to` has as many as there are.
pub fn row(bits: u32, words: &[u32], to: &mut [u8]) {
    match bits {
        4 => {
            let (whole, last) = to.as_chunks_mut::<8>();
            for (&word, to) in words.iter().zip(whole) {
                *to = nibbles(word).to_le_bytes();
            }
            let codes = words
                .last()
                .map_or([0; 8], |&word| nibbles(word).to_le_bytes());
            last.copy_from_slice(&codes[..last.len()]);
        }
        8 => {
            for (&word, to) in words.iter().zip(to.chunks_mut(4)) {
                to.copy_from_slice(&word.to_le_bytes()[..to.len()]);
            }
        }
        _ => {
            for (i, to) in to.iter_mut().enumerate() {
                *to = code(bits, |word| words[word], i);
            }
        }
    }
}

/// Columns of GPTQ's `qweight`, all of k: `words` is `[k * bits / 32, n]`, `to` is `[columns, k]`.
pub fn gptq(bits: u32, words: &[u32], n: usize, columns: Range<usize>, to: &mut [u8]) {
    let k = to.len() / columns.len();
    if bits != 4 {
        for (column, to) in columns.zip(to.chunks_exact_mut(k)) {
            for (i, to) in to.iter_mut().enumerate() {
                *to = code(bits, |word| words[word * n + column], i);
            }
        }
        return;
    }
    for (i, words) in words.chunks_exact(n).enumerate() {
        for (column, &word) in words[columns.clone()].iter().enumerate() {
            to[column * k + 8 * i..][..8].copy_from_slice(&nibbles(word).to_le_bytes());
        }
    }
}

/// Columns of AWQ's `qweight`, all of k: `words` is `[k, n / 8]`, `to` is `[columns, k]`, and 8
/// divides both ends of `columns`. Of a `qzeros` with groups in place of k likewise.
pub fn awq(words: &[u32], n: usize, columns: Range<usize>, to: &mut [u8]) {
    let (k, width) = (to.len() / columns.len(), n / 8);
    let first = columns.start / 8;
    for from in (0..k).step_by(8) {
        let rows = 8.min(k - from);
        for of_8 in 0..columns.len() / 8 {
            let mut block = [0; 8];
            for (i, row) in block[..rows].iter_mut().enumerate() {
                *row = nibbles(words[(from + i) * width + first + of_8]);
            }
            for (codes, column) in transposed(block).iter().zip(AWQ) {
                let to = &mut to[(8 * of_8 + column) * k + from..][..rows];
                to.copy_from_slice(&codes.to_le_bytes()[..rows]);
            }
        }
    }
}

/// The 8 nibbles of a word as bytes, the lowest first.
fn nibbles(word: u32) -> u64 {
    let x = u64::from(word);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// 8 rows of 8 bytes as columns: three rounds that swap blocks of 4, 2 and 1 bytes.
fn transposed(mut rows: [u64; 8]) -> [u64; 8] {
    const MASKS: [u64; 3] = [
        0x0000_0000_ffff_ffff,
        0x0000_ffff_0000_ffff,
        0x00ff_00ff_00ff_00ff,
    ];
    for (mask, distance) in MASKS.into_iter().zip([4, 2, 1]) {
        let shift = 8 * distance as u32;
        for i in (0..8).filter(|i| i & distance == 0) {
            let (a, b) = (rows[i], rows[i + distance]);
            rows[i] = a & mask | (b & mask) << shift;
            rows[i + distance] = a >> shift & mask | b & !mask;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes that differ everywhere.
    fn codes(n: usize, bits: u32) -> Vec<u8> {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16 & ((1 << bits) - 1)) as u8
        };
        (0..n).map(next).collect()
    }

    /// A stream of bits, bit by bit.
    fn stream(bits: u32, codes: &[u8]) -> Vec<u32> {
        let mut words = vec![0; (codes.len() * bits as usize).div_ceil(32)];
        for (i, &code) in codes.iter().enumerate() {
            for bit in 0..bits as usize {
                let at = i * bits as usize + bit;
                words[at / 32] |= u32::from(code >> bit & 1) << (at % 32);
            }
        }
        words
    }

    #[test]
    fn rows_are_streams_of_bits() {
        for bits in [2, 3, 4, 8] {
            for n in [0, 1, 7, 8, 9, 31, 32, 64, 96] {
                let codes = codes(n, bits);
                let mut unpacked = vec![0xee; n];
                row(bits, &stream(bits, &codes), &mut unpacked);
                assert_eq!(unpacked, codes, "{bits} {n}");
            }
        }
    }

    #[test]
    fn gptq_runs_along_the_inputs() {
        for bits in [2, 3, 4, 8] {
            for (n, k) in [(1, 32), (5, 64), (8, 96)] {
                let codes = codes(n * k, bits);
                let rows: Vec<Vec<u32>> = codes.chunks(k).map(|row| stream(bits, row)).collect();
                let words: Vec<u32> = (0..rows[0].len())
                    .flat_map(|i| rows.iter().map(move |row| row[i]))
                    .collect();
                let mut unpacked = vec![0xee; n * k];
                gptq(bits, &words, n, 0..n, &mut unpacked);
                assert_eq!(unpacked, codes, "{bits} {n} {k}");
                let some = n / 3..n;
                gptq(
                    bits,
                    &words,
                    n,
                    some.clone(),
                    &mut unpacked[..some.len() * k],
                );
                assert_eq!(unpacked[..some.len() * k], codes[some.start * k..]);
            }
        }
    }

    #[test]
    fn awq_interleaves_the_outputs() {
        for (n, k) in [(8, 1), (16, 7), (24, 8), (8, 33)] {
            let codes = codes(n * k, 4);
            let mut words = vec![0u32; k * n / 8];
            for (i, word) in words.iter_mut().enumerate() {
                let (row, of_8) = (i / (n / 8), i % (n / 8));
                for (nibble, column) in AWQ.into_iter().enumerate() {
                    let code = codes[(8 * of_8 + column) * k + row];
                    *word |= u32::from(code) << (4 * nibble);
                }
            }
            let mut unpacked = vec![0xee; n * k];
            awq(&words, n, 0..n, &mut unpacked);
            assert_eq!(unpacked, codes, "{n} {k}");
            awq(&words, n, n - 8..n, &mut unpacked[..8 * k]);
            assert_eq!(unpacked[..8 * k], codes[(n - 8) * k..]);
        }
    }
}
