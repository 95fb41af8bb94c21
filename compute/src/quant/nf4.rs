//! [`super::Quant::Nf4`]: the 4-bit normal float of QLoRA (Dettmers et al. 2023) with double
//! quantisation, as bitsandbytes defines both (`quantize_4bit`, `compress_statistics`).
//!
//! Blocks of 64 weights are divided by their greatest magnitude (absmax) and become the nearest
//! values of a table. The absmaxes of a tensor, less their mean, are quantised in turn: blocks of
//! 256 are divided by their own greatest magnitude and become the nearest values of the dynamic
//! 8-bit code (Dettmers 2016).

use super::greatest;
use crate::{Result, reserve};

/// `create_normal_map(offset=0.9677083)`: quantiles of the normal distribution.
pub const CODEBOOK: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// How many absmaxes share a nested absmax.
pub const NESTED: usize = 256;

/// Codes and absmax of a block.
pub(super) fn encode(x: &[f32; 64]) -> ([u8; 64], f32) {
    let absmax = greatest(x);
    let inverse = inverse(absmax);
    let codes = x.map(|x| {
        let x = (x * inverse).clamp(-1.0, 1.0);
        MIDDLES.iter().map(|&middle| u8::from(x > middle)).sum()
    });
    (codes, absmax)
}

/// The factor by which the weights of a block are multiplied.
pub fn inverse(absmax: f32) -> f32 {
    1.0 / if absmax < 1e-38 { 1e-38 } else { absmax }
}

/// The middles between the values of [`CODEBOOK`].
pub const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (CODEBOOK[i] + CODEBOOK[i + 1]) / 2.0;
        i += 1;
    }
    middles
};

/// The scales of a tensor, double-quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct DoubleQuant {
    /// One code for each block of weights, in the order of the tensor.
    pub codes: Vec<u8>,
    /// One nested absmax for each [`NESTED`] codes.
    pub nested: Vec<f32>,
    /// The mean of the absmaxes.
    pub offset: f32,
}

impl DoubleQuant {
    /// Quantise the absmaxes of a tensor.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] where the system has no room for them.
    pub fn new(absmax: &[f32]) -> Result<DoubleQuant> {
        // PyTorch's float32 sum has an order of its own; the mean may differ in its last bit.
        let sum: f64 = absmax.iter().map(|&x| f64::from(x)).sum();
        let offset = (sum / absmax.len().max(1) as f64) as f32;
        let (mut codes, mut nested) = (Vec::new(), Vec::new());
        reserve::vec("scales of a tensor", &mut codes, absmax.len())?;
        let blocks = absmax.len().div_ceil(NESTED);
        reserve::vec("scales of a tensor's scales", &mut nested, blocks)?;
        for block in absmax.chunks(NESTED) {
            let most = block.iter().fold(0.0f32, |most, &x| {
                let x = (x - offset).abs();
                // NaN stays.
                if x > most || x.is_nan() { x } else { most }
            });
            let inverse = 1.0 / most.max(1e-38);
            codes.extend(block.iter().map(|&x| nearest((x - offset) * inverse)));
            nested.push(most);
        }
        Ok(DoubleQuant {
            codes,
            nested,
            offset,
        })
    }

    /// The scales, as f16 bits.
    ///
    /// # Errors
    /// As for [`DoubleQuant::new`].
    pub fn scales(&self) -> Result<Vec<u16>> {
        let blocks = self.codes.chunks(NESTED).zip(&self.nested);
        let offset = self.offset;
        let scales = blocks.flat_map(|(codes, &nested)| {
            codes
                .iter()
                .map(move |&code| dynamic(code) * nested + offset)
        });
        let mut all = Vec::new();
        reserve::vec("scales of a tensor", &mut all, self.codes.len())?;
        all.extend(scales.map(|x| half::f16::from_f32(x).to_bits()));
        Ok(all)
    }
}

/// The code of the nearest value; the lower one in the middle.
fn nearest(x: f32) -> u8 {
    // The first code whose value is not under x.
    let (mut low, mut high) = (0u8, 255u8);
    while low < high {
        let middle = low + (high - low) / 2;
        if dynamic(middle) < x {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low > 0 && x - dynamic(low - 1) <= dynamic(low) - x {
        low - 1
    } else {
        low
    }
}

/// The value of a code: ascending, 127 is zero.
pub fn dynamic(code: u8) -> f32 {
    match code {
        255 => 1.0,
        128.. => f32::from_bits(DYNAMIC[usize::from(code) - 128]),
        127 => 0.0,
        _ => -f32::from_bits(DYNAMIC[126 - usize::from(code)]),
    }
}

/// The positive values of bitsandbytes' `create_dynamic_map()` below 1, as bits: for every power of
/// ten from 1e-6 to 1 twice as many, in the middle of equal parts of 0.1 .. 1 of it. Formulas
/// differ from PyTorch's float32 `linspace` in last bits.
const DYNAMIC: [u32; 127] = [
    0x3513_a3b7,
    0x365a_1a94,
    0x3702_05ff,
    0x37b2_4206,
    0x3837_8034,
    0x388a_efb3,
    0x38ba_1f4b,
    0x3923_d70b,
    0x398c_e705,
    0x39c7_e283,
    0x3a01_6f01,
    0x3a1e_ecc1,
    0x3a3c_6a80,
    0x3a59_e83e,
    0x3a77_65ff,
    0x3aa7_ef9d,
    0x3af1_a9fc,
    0x3b1d_b22d,
    0x3b42_8f5c,
    0x3b67_6c8a,
    0x3b86_24dd,
    0x3b98_9374,
    0x3bab_020d,
    0x3bbd_70a4,
    0x3bcf_df3b,
    0x3be2_4dd3,
    0x3bf4_bc6a,
    0x3c03_9581,
    0x3c0c_cccd,
    0x3c16_0418,
    0x3c1f_3b64,
    0x3c3a_e148,
    0x3c68_f5c3,
    0x3c8b_851f,
    0x3ca2_8f5d,
    0x3cb9_999a,
    0x3cd0_a3d7,
    0x3ce7_ae15,
    0x3cfe_b852,
    0x3d0a_e148,
    0x3d16_6667,
    0x3d21_eb85,
    0x3d2d_70a3,
    0x3d38_f5c3,
    0x3d44_7ae1,
    0x3d50_0000,
    0x3d5b_851f,
    0x3d67_0a3d,
    0x3d72_8f5d,
    0x3d7e_147b,
    0x3d84_cccd,
    0x3d8a_8f5d,
    0x3d90_51eb,
    0x3d96_147b,
    0x3d9b_d70a,
    0x3da1_999a,
    0x3da7_5c2a,
    0x3dad_1eb8,
    0x3db2_e148,
    0x3db8_a3d7,
    0x3dbe_6667,
    0x3dc4_28f7,
    0x3dc9_eb85,
    0x3ddb_3334,
    0x3df8_0000,
    0x3e0a_6666,
    0x3e18_cccd,
    0x3e27_3333,
    0x3e35_999a,
    0x3e44_0000,
    0x3e52_6666,
    0x3e60_cccd,
    0x3e6f_3333,
    0x3e7d_9999,
    0x3e86_0000,
    0x3e8d_3334,
    0x3e94_6666,
    0x3e9b_999a,
    0x3ea2_cccc,
    0x3eaa_0000,
    0x3eb1_3333,
    0x3eb8_6666,
    0x3ebf_999a,
    0x3ec6_cccc,
    0x3ece_0000,
    0x3ed5_3333,
    0x3edc_6666,
    0x3ee3_999a,
    0x3eea_cccc,
    0x3ef2_0000,
    0x3ef9_3332,
    0x3f00_3333,
    0x3f03_cccc,
    0x3f07_6666,
    0x3f0b_0000,
    0x3f0e_999a,
    0x3f12_3334,
    0x3f15_cccd,
    0x3f19_6666,
    0x3f1d_0000,
    0x3f20_999a,
    0x3f24_3334,
    0x3f27_cccd,
    0x3f2b_6666,
    0x3f2f_0000,
    0x3f32_999a,
    0x3f36_3334,
    0x3f39_cccd,
    0x3f3d_6666,
    0x3f41_0000,
    0x3f44_999a,
    0x3f48_3333,
    0x3f4b_cccd,
    0x3f4f_6666,
    0x3f53_0000,
    0x3f56_999a,
    0x3f5a_3333,
    0x3f5d_cccd,
    0x3f61_6666,
    0x3f65_0000,
    0x3f68_999a,
    0x3f6c_3333,
    0x3f6f_cccd,
    0x3f73_6666,
    0x3f77_0000,
    0x3f7a_999a,
    0x3f7e_3333,
];
