//! [`super::Quant::Fp8`]: e4m3 of the OCP 8-bit Floating Point Specification (2023): a sign, 4 bits
//! of exponent counted from -7, 3 of mantissa, subnormal numbers in units of 2^-9, no infinities.
//!
//! A number has 4 significant bits from a 28,000th of the greatest number on, so a scale only has
//! to place that range. There is one scale for 128 weights, which are what the GPU's kernels read
//! of a row at a time. Finer scales would cost bytes and gain nothing.

use super::{greatest, int4, int8};

/// The greatest number.
pub const MAX: f32 = 448.0;

/// The code of the nearest number, ties to even; numbers greater than [`MAX`] become [`MAX`].
pub fn nearest(x: f32) -> u8 {
    let magnitude = x.abs().min(MAX);
    let bits = magnitude.to_bits();
    let code = if magnitude < 0.015625 {
        // Units of 2^-9 are the last bit of 2^14.
        (magnitude + 16384.0).to_bits() - 16384f32.to_bits()
    } else {
        ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)
    };
    code as u8 | (x.to_bits() >> 24 & 0x80) as u8
}

/// The number that a code stands for. 0x7f and 0xff, which nothing here makes, are NaN.
pub fn value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        _ if code & 0x7f == 0x7f => f32::NAN,
        0 => mantissa / 512.0,
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Codes and scale of a group. The scale is rounded up, so that no code is cut off.
pub(super) fn encode(x: &[f32; 128]) -> ([u8; 128], f32) {
    let max = greatest(x);
    if max.is_nan() {
        return ([0; 128], f32::NAN);
    }
    let scale = int8::at_least(max / MAX);
    let inverse = int4::inverse(scale);
    (x.map(|x| nearest(x * inverse)), scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        for (code, number) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x07, 7.0 / 512.0),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0xb9, -1.125),
            (0x7e, MAX),
            (0xfe, -MAX),
        ] {
            assert_eq!(value(code), number, "{code:#x}");
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
    }

    /// Tests every number, and numbers around the middle between two.
    #[test]
    fn codes_are_the_nearest() {
        for code in 0..0x7e_u8 {
            let (low, high) = (value(code), value(code + 1));
            assert!(low < high);
            let middle = (low + high) / 2.0;
            let even = code + code % 2;
            for (x, want) in [
                (low, code),
                (middle.next_down(), code),
                (middle, even),
                (middle.next_up(), code + 1),
            ] {
                assert_eq!(nearest(x), want, "{x}");
                assert_eq!(nearest(-x), want | 0x80, "-{x}");
            }
        }
        assert_eq!(nearest(448.0), 0x7e);
        assert_eq!(nearest(f32::INFINITY), 0x7e);
        assert_eq!(nearest(-1e30), 0xfe);
    }

    #[test]
    fn groups_come_back_within_a_sixteenth() {
        let x: [f32; 128] = std::array::from_fn(|i| (i as f32 - 50.5) * 1.7e-3);
        let (codes, scale) = encode(&x);
        for (x, code) in x.iter().zip(codes) {
            let back = value(code) * scale;
            assert!(
                (back - x).abs() <= x.abs() / 16.0 + scale / 1024.0,
                "{x}: {back}"
            );
        }
        assert!(codes.contains(&0x7e) || codes.contains(&0x7d));
        assert_eq!(encode(&[0.0; 128]), ([0; 128], 0.0));
        let mut broken = x;
        broken[3] = f32::INFINITY;
        assert!(encode(&broken).1.is_nan());
    }
}
