//! Weights as GPTQ, AWQ and compressed-tensors store them: `weight = scale * (code - zero)`, where
//! a group of columns of a row shares a scale and a zero point.

use super::{Quant, join};
use half::f16;

/// Which columns of a row belong to which group.
#[derive(Clone, Copy, Debug)]
pub enum Groups<'a> {
    /// So many in turn; the last group may have fewer.
    Of(usize),
    /// The group of each column: GPTQ's `g_idx`.
    Index(&'a [u32]),
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// One for each column.
    pub codes: &'a [u8],
    /// One for each group.
    pub zeros: &'a [u8],
    /// One for each group.
    pub scales: &'a [f32],
    /// Which group a column belongs to.
    pub groups: Groups<'a>,
}

/// How all rows of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of a code: 2, 3, 4 or 8.
    pub bits: u32,
    /// Whether every zero point is the middle, `2^(bits - 1)`.
    pub symmetric: bool,
    /// Columns of a group, of a row of `cols`; `None` where an index says it.
    pub group: Option<usize>,
}

impl Format {
    /// The zero point of symmetric formats.
    pub const fn middle(self) -> u8 {
        1 << (self.bits - 1)
    }

    /// The formats of ours that hold codes and zero points, with the scales as float16; the best
    /// first. None: the groups are not made of ours, or codes less zero points do not fit into a
    /// byte. Those of 2 and 3 bits fit into four.
    pub fn kept(self, cols: usize) -> &'static [Quant] {
        let ours = |group: usize| group.is_multiple_of(32) || group >= cols;
        if !self.group.is_some_and(ours) {
            return &[];
        }
        match (self.bits, self.symmetric) {
            (..=3, _) | (4, true) => &[Quant::Int4, Quant::Int8],
            (4, false) => &[Quant::Uint4, Quant::Int8],
            (8, true) => &[Quant::Int8],
            _ => &[],
        }
    }
}

impl Row<'_> {
    /// The weights: the definition.
    pub fn decode(&self, to: &mut [f32]) {
        match self.groups {
            Groups::Of(group) => {
                let columns = self.codes.chunks(group).zip(to.chunks_mut(group));
                let of_group = self.zeros.iter().zip(self.scales);
                for ((codes, to), (&zero, &scale)) in columns.zip(of_group) {
                    for (&code, to) in codes.iter().zip(to) {
                        *to = f32::from(i16::from(code) - i16::from(zero)) * scale;
                    }
                }
            }
            Groups::Index(index) => {
                for ((&code, &group), to) in self.codes.iter().zip(index).zip(to) {
                    let (zero, scale) = (self.zeros[group as usize], self.scales[group as usize]);
                    *to = f32::from(i16::from(code) - i16::from(zero)) * scale;
                }
            }
        }
    }

    /// The codes in a format of [`Format::kept`]. Only rows with groups in turn have them.
    pub fn codes(&self, kept: Quant, to: &mut [u8]) {
        let Groups::Of(group) = self.groups else {
            panic!("an index of groups has no codes of ours");
        };
        // The code that stands for zero. Uint4 has the file's own codes.
        let zero = if kept == Quant::Int4 { 8 } else { 0 };
        let columns = self.codes.chunks(group).zip(self.zeros);
        for ((codes, &own), to) in columns.zip(to.chunks_mut(kept.code_bytes(group))) {
            let by = match kept {
                Quant::Uint4 => 0,
                _ => own.wrapping_sub(zero),
            };
            for (codes, to) in codes.chunks(32).zip(to.chunks_mut(kept.code_bytes(32))) {
                let mut shifted = [zero; 32];
                for (to, code) in shifted.iter_mut().zip(codes) {
                    *to = code.wrapping_sub(by);
                }
                match kept {
                    Quant::Int8 => to.copy_from_slice(&shifted[..to.len()]),
                    _ => join(&shifted, to),
                }
            }
        }
    }

    /// The scales of a format of [`Format::kept`], rounded to float16: bits. A scale beyond float16
    /// becomes infinite, which the caller refuses.
    pub fn kept_scales(&self, kept: Quant, to: &mut [u16]) {
        let Groups::Of(group) = self.groups else {
            panic!("an index of groups has no scales of ours");
        };
        let each = kept.scales(32);
        for (i, to) in to.chunks_exact_mut(each).enumerate() {
            let of = 32 * i / group;
            to[0] = f16::from_f32(self.scales[of]).to_bits();
            if let [_, zero] = to {
                *zero = f16::from(self.zeros[of]).to_bits();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row whose codes, zeros and scales all differ.
    fn check(format: Format, cols: usize, zero: impl Fn(usize) -> u8) {
        let group = format.group.unwrap();
        let n = cols.div_ceil(group);
        let codes: Vec<u8> = (0..cols)
            .map(|i| (i * 7 % (1 << format.bits)) as u8)
            .collect();
        let zeros: Vec<u8> = (0..n).map(zero).collect();
        let scales: Vec<f32> = (0..n)
            .map(|i| f16::from_f32(0.01 * (i + 1) as f32).to_f32())
            .collect();
        let groups = Groups::Of(group);
        let row = Row {
            codes: &codes,
            zeros: &zeros,
            scales: &scales,
            groups,
        };
        let mut decoded = vec![f32::NAN; cols];
        row.decode(&mut decoded);
        for (i, &x) in decoded.iter().enumerate() {
            let q = i32::from(codes[i]) - i32::from(zeros[i / group]);
            assert_eq!(x, q as f32 * scales[i / group], "{format:?} {i}");
        }
        let index: Vec<u32> = (0..cols).map(|i| (i / group) as u32).collect();
        let mut by_index = vec![f32::NAN; cols];
        Row {
            groups: Groups::Index(&index),
            ..row
        }
        .decode(&mut by_index);
        assert_eq!(by_index, decoded);
        for &kept in format.kept(cols) {
            let mut codes = vec![0xee; kept.code_bytes(cols)];
            let mut halves = vec![0xeeee; kept.scales(cols)];
            row.codes(kept, &mut codes);
            row.kept_scales(kept, &mut halves);
            let mut back = vec![f32::NAN; cols];
            kept.decode(&codes, &halves, &mut back);
            assert_eq!(back, decoded, "{format:?} {cols} {kept:?}");
        }
    }

    #[test]
    fn kept_rows_are_the_same_numbers() {
        for bits in [2, 3, 4, 8] {
            for symmetric in [true, false] {
                for (group, cols) in [(32, 96), (128, 256), (64, 96), (96, 96), (33, 33), (24, 96)]
                {
                    let format = Format {
                        bits,
                        symmetric,
                        group: Some(group),
                    };
                    let zero = |i| {
                        if symmetric {
                            format.middle()
                        } else {
                            (i * 5 % (1 << bits)) as u8
                        }
                    };
                    check(format, cols, zero);
                }
            }
        }
    }

    #[test]
    fn groups_that_are_not_ours_are_not_kept() {
        let format = |bits, symmetric, group| Format {
            bits,
            symmetric,
            group,
        };
        for (format, kept) in [
            (format(4, true, Some(128)), &[Quant::Int4, Quant::Int8][..]),
            (format(4, false, Some(128)), &[Quant::Uint4, Quant::Int8]),
            (format(3, true, Some(32)), &[Quant::Int4, Quant::Int8]),
            (format(2, false, Some(64)), &[Quant::Int4, Quant::Int8]),
            (format(8, true, Some(32)), &[Quant::Int8]),
            (format(8, false, Some(32)), &[]),
            (format(4, true, Some(48)), &[]),
            (format(4, true, None), &[]),
            (format(4, true, Some(100)), &[Quant::Int4, Quant::Int8]),
        ] {
            assert_eq!(format.kept(100), kept, "{format:?}");
        }
    }
}
