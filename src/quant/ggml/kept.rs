//! Formats of GGUF files whose weights are also a code times a scale for each 32: as the codes and
//! scales of [`Quant`], without a second rounding.

use super::simple::{nibbles, with_fifth};
use super::{IQ4, Type, k};
use crate::quant::{Quant, join};
use half::f16;

impl Type {
    /// The format of ours that holds the weights' codes, `None` where there is none.
    ///
    /// The numbers are exactly those of [`Type::decode`], except [`Type::Iq4Xs`]: its scales, a
    /// float16 times an integer, are rounded to float16.
    pub fn kept(self) -> Option<Quant> {
        match self {
            Type::Q4_0 => Some(Quant::Int4),
            Type::Q8_0 | Type::Q5_0 | Type::Iq4Nl | Type::Iq4Xs => Some(Quant::Int8),
            _ => None,
        }
    }

    /// Whole blocks as codes and float16 scales of [`Type::kept`].
    ///
    /// Scales that are infinite or NaN stay so: the caller refuses them, as everywhere.
    ///
    /// # Panics
    /// Where the type has no such format.
    pub fn codes(self, from: &[u8], codes: &mut [u8], scales: &mut [u16]) {
        match self {
            Type::Q4_0 => {
                let blocks = from.as_chunks::<18>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(16)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    join(&nibbles(b[2..].as_array().expect("16")), codes);
                }
            }
            Type::Q8_0 => {
                let blocks = from.as_chunks::<34>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(32)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    codes.copy_from_slice(&b[2..]);
                }
            }
            Type::Q5_0 => {
                let blocks = from.as_chunks::<22>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(32)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    let low = nibbles(b[6..].as_array().expect("16"));
                    let wide = with_fifth(low, [b[2], b[3], b[4], b[5]]);
                    codes.copy_from_slice(&wide.map(|q| q.wrapping_sub(16)));
                }
            }
            Type::Iq4Nl => {
                let blocks = from.as_chunks::<18>().0.iter().zip(scales);
                for ((b, scale), codes) in blocks.zip(codes.chunks_exact_mut(32)) {
                    *scale = u16::from_le_bytes([b[0], b[1]]);
                    codes.copy_from_slice(&values(b[2..].as_array().expect("16")));
                }
            }
            Type::Iq4Xs => {
                let scales = scales.as_chunks_mut::<8>().0.iter_mut();
                let blocks = from.as_chunks::<136>().0.iter().zip(scales);
                for ((b, scales), codes) in blocks.zip(codes.chunks_exact_mut(256)) {
                    let d = super::half(b[0], b[1]);
                    *scales = k::iq4_scales(b).map(|s| f16::from_f32(d * f32::from(s)).to_bits());
                    for (i, codes) in codes.chunks_exact_mut(32).enumerate() {
                        let packed = b[8 + 16 * i..].first_chunk().expect("16");
                        codes.copy_from_slice(&values(packed));
                    }
                }
            }
            _ => panic!("{self} has no codes of ours"),
        }
    }
}

/// The values of [`IQ4`] that 32 codes stand for.
#[inline(always)]
fn values(packed: &[u8; 16]) -> [u8; 32] {
    nibbles(packed).map(|q| IQ4[usize::from(q)] as u8)
}
