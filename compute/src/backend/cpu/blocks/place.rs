//! Writes the codes and scales of rows into strips.

use super::super::simd::{Kernel, LANES, Simd};
use super::{Blocks, LINE, block_k, block_len, codes_len, lines_len, scale_at, with_blocks};
use crate::quant::Quant;
use crate::quant::k::{NIBBLES, plane_bits};

/// Places the codes of one row in its lane. This defines, row by row, the result of [`PlaceCodes`].
fn place_codes(quant: Quant, strip: &mut [u16], lane: usize, codes: &[u8]) {
    let (blocks, len) = (strip.chunks_exact_mut(block_len(quant)), codes_len(quant));
    // Bytes of one row per block.
    let bytes = quant.code_bytes(block_k(quant));
    for (block, codes) in blocks.zip(codes.chunks(bytes)) {
        let (lines, plane) = block[..len].split_at_mut(lines_len(quant));
        let (codes, high) = match plane_bits(quant) {
            0 => (codes, &[][..]),
            _ => codes.split_at(NIBBLES),
        };
        for (line, word) in plane.chunks_exact_mut(LINE).zip(high.as_chunks::<4>().0) {
            line[2 * lane] = u16::from_le_bytes([word[0], word[1]]);
            line[2 * lane + 1] = u16::from_le_bytes([word[2], word[3]]);
        }
        let lines = lines.as_chunks_mut::<LINE>().0;
        for (line, codes) in lines.iter_mut().zip(codes.chunks(4)) {
            let mut c = [0; 4];
            c[..codes.len()].copy_from_slice(codes);
            let mut word = u32::from_le_bytes(c);
            if !quant.has_bytes() {
                word = apart(word);
            }
            (line[2 * lane], line[2 * lane + 1]) = (word as u16, (word >> 16) as u16);
        }
    }
}

/// Rearranges eight codes of four bits. In the input, neighbouring codes share a byte, and the
/// first of them is in the upper half. In the output, codes 0 to 3 are in the lower halves of the
/// bytes, and codes 4 to 7 in the upper halves.
#[inline(always)]
fn apart(word: u32) -> u32 {
    // The codes of two bytes move from bits 4, 0, 12 and 8 to bits 0, 8, 16 and 24.
    let spread = |two: u32| {
        (two >> 4 & 0xf) | (two & 0xf) << 8 | (two >> 12 & 0xf) << 16 | (two >> 8 & 0xf) << 24
    };
    spread(word & 0xffff) | spread(word >> 16) << 4
}

/// Places the codes of rows in their lanes.
///
/// Sixteen lines at a time are transposed in registers. So there is only one pass over a strip,
/// which is larger than L1 (benches/record/2026-11-27-unpacking.txt).
pub struct PlaceCodes<'a> {
    pub quant: Quant,
    pub strip: &'a mut [u16],
    /// The row of each lane. A lane without a row has an empty slice, and keeps its content.
    pub rows: [&'a [u8]; LANES],
}

impl Kernel for PlaceCodes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        with_blocks!(self.quant, Q => place_strip::<S, Q>(s, self.strip, &self.rows));
    }
}

#[inline(always)]
fn place_strip<S: Simd, Q: Blocks>(s: S, strip: &mut [u16], rows: &[&[u8]; LANES]) {
    let bytes = const { Q::QUANT.code_bytes(block_k(Q::QUANT)) };
    // The number of bytes of a row that belong to lines. The bytes of a plane come after them.
    let of_lines = const { lines_len(Q::QUANT) / LINE * 4 };
    let shortest = rows.iter().map(|row| row.len()).min().unwrap_or(0);
    for (i, block) in strip.chunks_exact_mut(Q::LEN).enumerate() {
        let at = i * bytes;
        if at + bytes > shortest {
            for (lane, row) in rows.iter().enumerate() {
                place_codes(Q::QUANT, block, lane, &row[at.min(row.len())..]);
            }
            continue;
        }
        let (mut lower, mut upper) = ([&[][..]; LANES], [&[][..]; LANES]);
        for (lane, row) in rows.iter().enumerate() {
            (lower[lane], upper[lane]) = row[at..at + bytes].split_at(of_lines);
        }
        let (lines, planes) = block[..codes_len(Q::QUANT)].split_at_mut(lines_len(Q::QUANT));
        match Q::QUANT.has_bytes() {
            true => place_lines(s, lines, &lower, |word| word),
            false => place_lines(s, lines, &lower, apart),
        }
        place_lines(s, planes, &upper, |word| word);
    }
}

/// Writes lines: word i of a row, converted by `f`, goes to line i.
#[inline(always)]
fn place_lines<S: Simd>(
    s: S,
    lines: &mut [u16],
    rows: &[&[u8]; LANES],
    f: impl Fn(u32) -> u32 + Copy,
) {
    let lines = lines.as_chunks_mut::<LINE>().0;
    // Blocks of int4 and planes of k5 have eight lines. All others have a multiple of sixteen.
    assert!(lines.len() == LANES / 2 || lines.len().is_multiple_of(LANES));
    if let Some(half) = lines.as_mut_array::<{ LANES / 2 }>() {
        return place_square(s, half, rows, 0, f);
    }
    for (i, square) in lines.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        place_square(s, square, rows, i * LANES * 4, f);
    }
}

/// Writes up to sixteen lines from the words of rows that begin at byte `at`.
#[inline(always)]
fn place_square<S: Simd, const N: usize>(
    s: S,
    lines: &mut [[u16; LINE]; N],
    rows: &[&[u8]; LANES],
    at: usize,
    f: impl Fn(u32) -> u32,
) {
    // A loop, because `map` of arrays is a separate function that is compiled without the tier's
    // instructions.
    let mut square = [s.splat(0.0); LANES];
    for (to, row) in square.iter_mut().zip(rows) {
        let mut words = [0.0; LANES];
        let from = row[at..at + 4 * N].as_chunks::<4>().0;
        for (word, from) in words.iter_mut().zip(from) {
            *word = f32::from_bits(u32::from_le_bytes(*from));
        }
        *to = s.load(&words);
    }
    for (line, words) in lines.iter_mut().zip(s.transpose(square)) {
        let mut column = [0.0; LANES];
        s.store(words, &mut column);
        for (to, word) in line.as_chunks_mut::<2>().0.iter_mut().zip(column) {
            let word = f(word.to_bits());
            *to = [word as u16, (word >> 16) as u16];
        }
    }
}

/// Places the scales of rows in their lanes.
pub struct PlaceScales<'a> {
    pub quant: Quant,
    pub strip: &'a mut [u16],
    /// As [`PlaceCodes::rows`].
    pub rows: [&'a [u16]; LANES],
}

impl Kernel for PlaceScales<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        with_blocks!(self.quant, Q => place_scales::<Q>(self.strip, &self.rows));
    }
}

#[inline(always)]
fn place_scales<Q: Blocks>(strip: &mut [u16], rows: &[&[u16]; LANES]) {
    let each = const { Q::QUANT.scales(block_k(Q::QUANT)) };
    for (i, block) in strip.chunks_exact_mut(Q::LEN).enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let of_block = &row[(i * each).min(row.len())..];
            for (i, &scale) in of_block.iter().take(each).enumerate() {
                block[scale_at(Q::QUANT, i, lane)] = scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::backend::cpu::blocks::strip_len;
    use crate::backend::cpu::{Cpu, Tier};
    use crate::quant::k::BLOCK;

    #[test]
    fn a_strip_is_placed_as_its_rows() {
        for quant in Quant::ALL.into_iter().filter(|&quant| Cpu::keeps(quant)) {
            let k = block_k(quant);
            // K types have whole blocks; others have blocks that end early, or none.
            let odd = [8, k - 8, k + 8, 2 * k - 32];
            let widths = match quant.block() == BLOCK {
                true => vec![0, k, 3 * k],
                false => [&odd[..], &[0, k, 3 * k]].concat(),
            };
            for cols in widths {
                let width = quant.code_bytes(cols);
                let codes: Vec<u8> = (0..LANES * width)
                    .map(|i| (i * 37 + i / 251) as u8)
                    .collect();
                let whole: [&[u8]; LANES] =
                    std::array::from_fn(|lane| &codes[lane * width..(lane + 1) * width]);
                let mut some = whole;
                (some[0], some[9]) = (&[], &[]);
                for rows in [whole, some] {
                    let mut one_by_one = vec![0xa5a5; strip_len(quant, cols).unwrap()];
                    let untouched = one_by_one.clone();
                    for (lane, row) in rows.iter().enumerate() {
                        place_codes(quant, &mut one_by_one, lane, row);
                    }
                    for tier in ["portable", "avx2", "avx512"] {
                        let Ok(tier) = Tier::named(tier) else {
                            continue;
                        };
                        let mut strip = untouched.clone();
                        tier.run(PlaceCodes {
                            quant,
                            strip: &mut strip,
                            rows,
                        });
                        let tier = tier.name();
                        assert_eq!(strip, one_by_one, "{quant:?}, {cols} columns, {tier}");
                    }
                }
            }
        }
    }

    #[test]
    fn scales_are_where_weights_look_for_them() {
        for quant in Quant::ALL.into_iter().filter(|&quant| Cpu::keeps(quant)) {
            let (k, each) = (block_k(quant), quant.scales(block_k(quant)));
            // The last block of formats other than the K types may end early.
            let short = match quant.block() == BLOCK {
                true => 0,
                false => quant.scales(k - quant.group()),
            };
            let n = 2 * each + short;
            let scales: Vec<u16> = (0..LANES * n).map(|i| (i * 37 + 1) as u16).collect();
            let mut rows: [&[u16]; LANES] =
                std::array::from_fn(|lane| &scales[lane * n..(lane + 1) * n]);
            rows[3] = &[];
            let mut strip = vec![0; 3 * block_len(quant)];
            Tier::best().run(PlaceScales {
                quant,
                strip: &mut strip,
                rows,
            });
            let mut placed = vec![0; strip.len()];
            for (lane, row) in rows.iter().enumerate() {
                for (i, scale) in row.iter().enumerate() {
                    placed[i / each * block_len(quant) + scale_at(quant, i % each, lane)] = *scale;
                }
            }
            assert_eq!(strip, placed, "{quant:?}");
        }
    }
}
