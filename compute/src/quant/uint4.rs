//! [`super::Quant::Uint4`]: codes of 4 bits without a sign, from which a zero point is subtracted.
//!
//! The scales of a row are two f16 for each 32 weights: the scale `s` and the zero point `z`. A
//! weight is `s q - s z`. AWQ and GPTQ have integers from 0 to 15 as zero points, so `s (q - z)` is
//! exact in float32. Q4_1 of GGUF files has a minimum `m` instead, which `z = -m / s` stands for.

use half::f16;

/// Scale and minimum of the weights of a group, from its words.
pub fn scale(words: &[u16; 2]) -> [f32; 2] {
    let [scale, zero] = words.map(|bits| f16::from_bits(bits).to_f32());
    [scale, scale * zero]
}

/// The words of a group whose weights are `scale q + minimum`, both f16 bits, as Q4_1 has them.
///
/// The zero point is rounded, by half a unit in the last of its 11 bits. That moves the weights of
/// a group by at most 4.9e-4 of its minimum, which is as much as the file itself rounds a minimum
/// by. Where the zero point would be beyond f16, no code changes a weight by more than that; so
/// codes count for nothing. The same holds for a scale of zero. `codes` are those of the group:
/// they are zeroed then, and the minimum becomes the scale.
pub fn from_minimum(scale: u16, minimum: u16, codes: &mut [u8]) -> [u16; 2] {
    let [d, m] = [scale, minimum].map(|bits| f16::from_bits(bits).to_f32());
    let zero = f16::from_f32(-m / d);
    if zero.is_finite() || !(d.is_finite() && m.is_finite()) {
        return [scale, zero.to_bits()];
    }
    codes.fill(0);
    [minimum, f16::NEG_ONE.to_bits()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Quant;

    /// Groups with `scale q + minimum`, also where the zero point cannot be told.
    #[test]
    fn minima_are_rounded_no_more_than_files_round_them() {
        for (d, m) in [
            (0.01, -0.08),
            (0.01, 0.3),
            (-0.02, 0.1),
            (0.5, 0.0),
            (0.0, 0.0),
            (0.0, -0.25),
            (6e-8, 1.5),
            (1e-4, -60000.0),
            (1.0, 6e-8),
        ] {
            let [d, m] = [d, m].map(f16::from_f32);
            let mut codes = std::array::from_fn::<u8, 16, _>(|i| (i * 37) as u8);
            let row: Vec<f32> = (0..32)
                .map(|i| {
                    let q = Quant::Uint4.code(&codes, i);
                    d.to_f32() * f32::from(q) + m.to_f32()
                })
                .collect();
            let words = from_minimum(d.to_bits(), m.to_bits(), &mut codes);
            let mut decoded = [f32::NAN; 32];
            Quant::Uint4.decode(&codes, &words, &mut decoded);
            for (x, y) in decoded.into_iter().zip(row) {
                let most = m.to_f32().abs() * 4.9e-4 + d.to_f32().abs() * 3e-8;
                assert!((x - y).abs() <= most, "{d} {m}: {x} {y}");
            }
        }
    }

    #[test]
    fn broken_scales_show() {
        let (one, nan, infinite) = (
            f16::ONE.to_bits(),
            f16::NAN.to_bits(),
            f16::INFINITY.to_bits(),
        );
        for (d, m) in [
            (nan, one),
            (infinite, one),
            (one, nan),
            (one, infinite),
            (0, nan),
        ] {
            let words = from_minimum(d, m, &mut [0; 16]);
            let finite = words.map(|bits| f16::from_bits(bits).is_finite());
            assert!(finite.contains(&false), "{d:x} {m:x}: {words:x?}");
        }
    }
}
