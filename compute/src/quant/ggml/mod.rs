//! The number formats of GGUF files, as scalar code: what a block of each means.
//!
//! Layouts are those of `ggml-common.h`, the arithmetic and its order those of `dequantize_row_*`
//! in `ggml-quants.c`, so float32 results are equal to the bit. A row of a matrix is a whole number
//! of blocks, and blocks do not cross rows.
//!
//! | | weights | bytes | a weight is |
//! |---|---:|---:|---|
//! | F32, F16, BF16 | 1 | 4, 2, 2 | itself |
//! | Q8_0 | 32 | 34 | d q |
//! | Q4_0, Q5_0 | 32 | 18, 22 | d (q - 8), d (q - 16) |
//! | Q4_1, Q5_1 | 32 | 20, 24 | d q + m |
//! | IQ4_NL | 32 | 18 | d times a value of [`super::iq4`] |
//! | Q2_K, Q4_K, Q5_K | 256 | 84, 144, 176 | d s q - dmin m; s, m for each 16 or 32 |
//! | Q3_K, Q6_K | 256 | 110, 210 | d s q; s for each 16 |
//! | IQ4_XS | 256 | 136 | d s times a value of [`super::iq4`]; s for each 32 |

mod k;
mod kept;
mod simple;

use half::{bf16, f16};

/// How a tensor of a GGUF file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are ggml's own
pub enum Type {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

/// Number in a file, name, weights and bytes of a block.
const TYPES: [(u32, Type, &str, usize, usize); 15] = [
    (0, Type::F32, "F32", 1, 4),
    (1, Type::F16, "F16", 1, 2),
    (2, Type::Q4_0, "Q4_0", 32, 18),
    (3, Type::Q4_1, "Q4_1", 32, 20),
    (6, Type::Q5_0, "Q5_0", 32, 22),
    (7, Type::Q5_1, "Q5_1", 32, 24),
    (8, Type::Q8_0, "Q8_0", 32, 34),
    (10, Type::Q2K, "Q2_K", 256, 84),
    (11, Type::Q3K, "Q3_K", 256, 110),
    (12, Type::Q4K, "Q4_K", 256, 144),
    (13, Type::Q5K, "Q5_K", 256, 176),
    (14, Type::Q6K, "Q6_K", 256, 210),
    (20, Type::Iq4Nl, "IQ4_NL", 32, 18),
    (23, Type::Iq4Xs, "IQ4_XS", 256, 136),
    (30, Type::Bf16, "BF16", 1, 2),
];

/// Types that ggml has or had, and that are not read.
const OTHERS: [(u32, &str); 26] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Type {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Type> {
        TYPES.iter().map(|entry| entry.1)
    }

    /// The type of this number (`enum ggml_type`). An error is its name as far as there is one.
    pub fn of_number(number: u32) -> Result<Type, String> {
        if let Some(entry) = TYPES.iter().find(|entry| entry.0 == number) {
            return Ok(entry.1);
        }
        let other = OTHERS.iter().find(|other| other.0 == number);
        Err(other.map_or_else(
            || format!("ggml's type {number}"),
            |other| other.1.to_owned(),
        ))
    }

    fn entry(self) -> &'static (u32, Type, &'static str, usize, usize) {
        let entry = TYPES.iter().find(|entry| entry.1 == self);
        entry.expect("the table has every type")
    }

    /// ggml's name: `Q4_K`.
    pub fn name(self) -> &'static str {
        self.entry().2
    }

    /// Weights of a block.
    pub fn block(self) -> usize {
        self.entry().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.entry().4
    }

    /// Bytes of a row of `cols` weights; `None` where blocks do not divide it, or it is too long.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let (block, bytes) = (self.block(), self.block_bytes());
        let whole = cols.is_multiple_of(block);
        (cols / block).checked_mul(bytes).filter(|_| whole)
    }

    /// The weights of whole blocks as float32.
    ///
    /// `to` has [`Type::block`] numbers for each [`Type::block_bytes`] of `from`.
    pub fn decode(self, from: &[u8], to: &mut [f32]) {
        debug_assert_eq!(from.len() / self.block_bytes(), to.len() / self.block());
        match self {
            Type::F32 => each(from, to, |b: &[u8; 4], to: &mut [f32; 1]| {
                to[0] = f32::from_le_bytes(*b);
            }),
            Type::F16 => each(from, to, |b: &[u8; 2], to: &mut [f32; 1]| {
                to[0] = f16::from_le_bytes(*b).to_f32();
            }),
            Type::Bf16 => each(from, to, |b: &[u8; 2], to: &mut [f32; 1]| {
                to[0] = bf16::from_le_bytes(*b).to_f32();
            }),
            Type::Q4_0 => each(from, to, simple::q4_0),
            Type::Q4_1 => each(from, to, simple::q4_1),
            Type::Q5_0 => each(from, to, simple::q5_0),
            Type::Q5_1 => each(from, to, simple::q5_1),
            Type::Q8_0 => each(from, to, simple::q8_0),
            Type::Iq4Nl => each(from, to, simple::iq4_nl),
            Type::Q2K => each(from, to, k::q2),
            Type::Q3K => each(from, to, k::q3),
            Type::Q4K => each(from, to, k::q4),
            Type::Q5K => each(from, to, k::q5),
            Type::Q6K => each(from, to, k::q6),
            Type::Iq4Xs => each(from, to, k::iq4_xs),
        }
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs `one` on every block.
#[inline(always)]
fn each<const B: usize, const N: usize>(
    from: &[u8],
    to: &mut [f32],
    one: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let to = to.as_chunks_mut().0;
    for (from, to) in from.as_chunks().0.iter().zip(to) {
        one(from, to);
    }
}

/// The float16 at the head of these two bytes.
#[inline(always)]
fn half(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

#[cfg(test)]
mod tests;
