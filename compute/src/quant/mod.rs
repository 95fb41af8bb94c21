//! Block formats of weights: their definition, as scalar code.
//!
//! A row of a matrix is cut into groups along K. A group has a scale, and every weight has a small
//! code: `weight = value(code) * scale`. Backends choose how codes and scales are laid out and how
//! they compute with them; this module alone says what the numbers are.
//!
//! | | group | code | scale | bits per weight |
//! |---|---:|---|---|---:|
//! | [`Quant::Int8`] | 32 | -127..=127 | f16 | 8.5 |
//! | [`Quant::Int4`] | 32 | 0..=15 for -8..=7 | f16, by error search | 4.5 |
//! | [`Quant::Fp8`] | 128 | e4m3 ([`fp8`]) | f16 | 8.125 |
//! | [`Quant::K4`] | 32 | 0..=15 | of two levels, and a minimum ([`k`]) | 4.625 |
//! | [`Quant::K5`] | 32 | 0..=31 | as K4 | 5.625 |
//! | [`Quant::K6`] | 16 | 0..=63 for -32..=31 | as K8 | 6.5625, 6.625 in memory |
//! | [`Quant::K8`] | 16 | -128..=127 | of two levels ([`k`]) | 8.5625, 8.625 in memory |
//! | [`Quant::Nf4`] | 64 | table index | double-quantised ([`nf4`]), then f16 | 4.127, kept 4.25 |
//! | [`Quant::Iq4`] | 32 | table index ([`iq4`]) | f16 | 4.5 |
//! | [`Quant::Uint4`] | 32 | 0..=15, less a zero point ([`uint4`]) | f16 | 5 |
//!
//! Codes lie in rows: one byte each, or two in a byte with the first in the upper half, as in
//! bitsandbytes; or they lie in blocks of their own ([`k`]). A weight that is not finite makes its
//! group NaN (and with it a whole [`Quant::Nf4`] tensor, whose scales share a mean). The loader
//! passes no such weight.
//!
//! What other programs store is defined here too, as scalar code that decodes it, and gives it as
//! one of the formats above where codes and scales fit:
//!
//! | | of |
//! |---|---|
//! | [`ggml`] | GGUF files |
//! | [`affine`], [`packed`] | GPTQ, AWQ, compressed-tensors |
//! | [`bnb`] | bitsandbytes |

pub mod affine;
pub mod bnb;
pub mod fp8;
pub mod ggml;
pub mod int4;
pub mod int8;
pub mod iq4;
pub mod k;
pub mod nf4;
pub mod packed;
pub mod uint4;

use crate::Dtype;
use half::f16;

/// Gives the one list of block formats, with their names, to a macro. A new format is the last one,
/// because the C API numbers them in this order.
macro_rules! all_quants {
    ($make:ident) => {
        $make! {
            /// Symmetric, 8 bits.
            Int8 "int8",
            /// Symmetric, 4 bits.
            Int4 "int4",
            /// 4-bit normal float with double quantisation (Dettmers et al. 2023, QLoRA).
            Nf4 "nf4",
            /// 8-bit floats, e4m3. Made while a checkpoint is loaded, for a GPU only.
            Fp8 "fp8",
            /// 4 bits with scales of two levels and minima: Q4_K of GGUF files. Never made here.
            K4 "k4",
            /// 8 bits, otherwise as K6: holds Q3_K of GGUF files. Never made here.
            K8 "k8",
            /// 5 bits, otherwise as K4: Q5_K of GGUF files. Never made here.
            K5 "k5",
            /// 6 bits with scales of two levels: Q6_K of GGUF files. Never made here.
            K6 "k6",
            /// 4 bits that index a table of integers: IQ4_NL of GGUF files. Never made here.
            Iq4 "iq4",
            /// 4 bits with a scale and a zero point for each group: holds AWQ, asymmetric GPTQ, and
            /// Q4_1 of GGUF files. Never made here.
            Uint4 "uint4",
        }
    };
}
pub(crate) use all_quants;

macro_rules! quants {
    ($($(#[$doc:meta])* $quant:ident $name:literal,)*) => {
        /// A block format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Quant {
            $($(#[$doc])* $quant,)*
        }

        impl Quant {
            /// All formats.
            pub const ALL: [Quant; [$($name,)*].len()] = [$(Quant::$quant,)*];

            /// The format as a [`Dtype`].
            pub const fn dtype(self) -> Dtype {
                match self {
                    $(Quant::$quant => Dtype::$quant,)*
                }
            }
        }
    };
}

all_quants!(quants);

impl Quant {
    /// The formats that our own checkpoints can have. Every backend takes them.
    pub const OURS: [Quant; 3] = [Quant::Int8, Quant::Int4, Quant::Nf4];

    /// The format of [`Quant::OURS`] that has this name.
    pub fn named(name: &str) -> Option<Quant> {
        Self::OURS.into_iter().find(|q| q.dtype().name() == name)
    }

    /// Whether only files of other programs have it. Not every backend has kernels for it, and
    /// [`Quant::encode`] does not make it.
    pub const fn is_of_files(self) -> bool {
        !matches!(self, Quant::Int8 | Quant::Int4 | Quant::Nf4 | Quant::Fp8)
    }

    /// Whether it is one of the K types, whose scales have two levels ([`k`]).
    pub const fn is_k(self) -> bool {
        k::words(self).is_some()
    }

    /// Whether a code has a byte. Other codes have four bits of one, and maybe more in a plane.
    pub const fn has_bytes(self) -> bool {
        matches!(self, Quant::Int8 | Quant::Fp8 | Quant::K8)
    }

    /// Whether a group has a minimum, or a zero point, beside its scale.
    pub const fn has_minima(self) -> bool {
        matches!(self, Quant::K4 | Quant::K5 | Quant::Uint4)
    }

    /// Weights that share a scale.
    pub const fn group(self) -> usize {
        match self {
            Quant::K6 | Quant::K8 => 16,
            Quant::Nf4 => 64,
            Quant::Fp8 => 128,
            _ => 32,
        }
    }

    /// Weights of a row that are stored together. A row can be cut only between such blocks.
    pub const fn block(self) -> usize {
        match self.is_k() {
            true => k::BLOCK,
            false => self.group(),
        }
    }

    /// Bytes of the codes of one row.
    pub const fn code_bytes(self, cols: usize) -> usize {
        match k::plane_bits(self) {
            _ if self.has_bytes() => cols,
            0 => cols.div_ceil(2),
            bits => cols
                .div_ceil(k::BLOCK)
                .saturating_mul(k::NIBBLES + k::BLOCK / 8 * bits),
        }
    }

    /// Scales of one row, in words of 16 bits.
    pub const fn scales(self, cols: usize) -> usize {
        match k::words(self) {
            Some(words) => cols.div_ceil(k::BLOCK) * words,
            None if self.has_minima() => 2 * cols.div_ceil(self.group()),
            None => cols.div_ceil(self.group()),
        }
    }

    /// Whether rows of this length can have the format: some need whole blocks.
    pub const fn takes(self, cols: usize) -> bool {
        let whole = self.is_k() || matches!(self, Quant::Nf4);
        !whole || cols.is_multiple_of(self.block())
    }

    /// The number that every code stands for before scaling; for 4-bit formats.
    pub const fn codebook(self) -> [f32; 16] {
        match self {
            Quant::Nf4 => nf4::CODEBOOK,
            Quant::Iq4 => iq4::CODEBOOK,
            Quant::K4 | Quant::Uint4 => [
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0,
                15.0,
            ],
            _ => int4::CODEBOOK,
        }
    }

    /// Quantises rows of `cols` weights, one after another, into codes and float32 scales.
    ///
    /// Scales of [`Quant::Int8`], [`Quant::Int4`] and [`Quant::Fp8`] are f16 values. Those of
    /// [`Quant::Nf4`] are the greatest magnitude of each block; they are still to be quantised, all
    /// of a tensor together: [`nf4::DoubleQuant`].
    ///
    /// Formats that only files have are not made here: nobody may ask for them.
    ///
    /// Backends may be faster ([`crate::backend::Backend::quantise`]) but give the same bits:
    /// products are rounded before they are added, and sums run from the first weight of a group to
    /// the last.
    pub fn encode(self, cols: usize, values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        let rows = values.chunks_exact(cols);
        let outs = codes.chunks_exact_mut(self.code_bytes(cols));
        let scales = scales.chunks_exact_mut(self.scales(cols));
        for ((row, codes), scales) in rows.zip(outs).zip(scales) {
            match self {
                Quant::Int8 => {
                    for ((x, codes), scale) in row.chunks(32).zip(codes.chunks_mut(32)).zip(scales)
                    {
                        let (wide, s) = int8::encode(&padded(x));
                        *scale = s;
                        codes.copy_from_slice(&wide[..codes.len()]);
                    }
                }
                Quant::Int4 => {
                    for ((x, codes), scale) in row.chunks(32).zip(codes.chunks_mut(16)).zip(scales)
                    {
                        let (wide, s) = int4::encode(&padded(x));
                        *scale = s;
                        join(&wide, codes);
                    }
                }
                Quant::Nf4 => {
                    for ((x, codes), scale) in row.chunks(64).zip(codes.chunks_mut(32)).zip(scales)
                    {
                        let (wide, s) = nf4::encode(&padded(x));
                        *scale = s;
                        join(&wide, codes);
                    }
                }
                Quant::Fp8 => {
                    let groups = row.chunks(128).zip(codes.chunks_mut(128)).zip(scales);
                    for ((x, codes), scale) in groups {
                        let (wide, s) = fp8::encode(&padded(x));
                        *scale = s;
                        codes.copy_from_slice(&wide[..codes.len()]);
                    }
                }
                _ => unreachable!("{self:?} is read, not made"),
            }
        }
    }

    /// The code of column `col`; `row` are the codes of its row.
    pub fn code(self, row: &[u8], col: usize) -> u8 {
        match k::plane_bits(self) {
            _ if self.has_bytes() => row[col],
            0 if col.is_multiple_of(2) => row[col / 2] >> 4,
            0 => row[col / 2] & 15,
            bits => {
                let block = &row[col / k::BLOCK * self.code_bytes(k::BLOCK)..];
                let (nibbles, plane) = block.split_at(k::NIBBLES);
                let col = col % k::BLOCK;
                Quant::K4.code(nibbles, col) | k::high_bits(plane, bits, col) << 4
            }
        }
    }

    /// The number that a code stands for before scaling.
    pub fn value(self, code: u8) -> f32 {
        match self {
            Quant::Int8 | Quant::K8 => f32::from(code as i8),
            Quant::Fp8 => fp8::value(code),
            Quant::K5 => f32::from(code),
            Quant::K6 => f32::from(code as i8 - 32),
            _ => self.codebook()[usize::from(code)],
        }
    }

    /// Weights of one row; `scales` are f16 bits, or words of [`k`] or [`uint4`]. This defines what
    /// a quantised matrix holds.
    pub fn decode(self, codes: &[u8], scales: &[u16], to: &mut [f32]) {
        for (col, x) in to.iter_mut().enumerate() {
            let [scale, minimum] = self.scale(scales, col);
            *x = scale * self.value(self.code(codes, col)) - minimum;
        }
    }

    /// Scale and minimum of column `col`; `row` are the scales of its row.
    pub fn scale(self, row: &[u16], col: usize) -> [f32; 2] {
        let (block, group) = (col / k::BLOCK, col % k::BLOCK / self.group());
        match self {
            Quant::K4 | Quant::K5 => k::k4_scale(&row.as_chunks().0[block], group),
            Quant::K6 | Quant::K8 => [k::k8_scale(&row.as_chunks().0[block], group), 0.0],
            Quant::Uint4 => uint4::scale(&row.as_chunks().0[col / self.group()]),
            _ => [f16::from_bits(row[col / self.group()]).to_f32(), 0.0],
        }
    }
}

/// A group, padded with zeros.
fn padded<const N: usize>(x: &[f32]) -> [f32; N] {
    let mut group = [0.0; N];
    group[..x.len()].copy_from_slice(x);
    group
}

/// Codes of 4 bits, two in a byte, the first in the upper half; as many as `to` holds.
fn join(codes: &[u8], to: &mut [u8]) {
    for (pair, to) in codes.as_chunks::<2>().0.iter().zip(to) {
        *to = pair[0] << 4 | pair[1];
    }
}

/// The greatest magnitude; NaN if a number is not finite.
fn greatest<const N: usize>(x: &[f32; N]) -> f32 {
    let finite = x.iter().all(|x| x.is_finite());
    let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    if finite { max } else { f32::NAN }
}

/// The nearest integer to a number below 2^22, ties to even: adding 1.5 * 2^23 leaves no fraction,
/// and the integer in the low bits.
fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4b40_0000)
}

#[cfg(test)]
mod tests;
