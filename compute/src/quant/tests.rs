use super::nf4::{self, DoubleQuant};
use super::*;

/// As in tests/data/quant/nf4.py.
fn weights(rows: usize, cols: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut one = || {
        let mut total = 0i32;
        for _ in 0..4 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            total += (state >> 16) as i32 - 32768;
        }
        total as f32 / (1 << 19) as f32
    };
    let mut out: Vec<f32> = (0..rows * cols).map(|_| one()).collect();
    let n = out.len();
    (out[5], out[490 % n]) = (7.0, -9.5);
    out[64..128].fill(0.0);
    out
}

fn encode(quant: Quant, cols: usize, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let rows = values.len() / cols;
    let mut codes = vec![0xee; rows * quant.code_bytes(cols)];
    let mut scales = vec![f32::NAN; rows * quant.scales(cols)];
    quant.encode(cols, values, &mut codes, &mut scales);
    (codes, scales)
}

fn decode(quant: Quant, cols: usize, codes: &[u8], scales: &[f32]) -> Vec<f32> {
    let scales: Vec<u16> = scales.iter().map(|&s| f16::from_f32(s).to_bits()).collect();
    let mut out = vec![0.0; codes.len() / quant.code_bytes(cols) * cols];
    let rows = out
        .chunks_mut(cols)
        .zip(codes.chunks(quant.code_bytes(cols)));
    for ((to, codes), scales) in rows.zip(scales.chunks(quant.scales(cols))) {
        quant.decode(codes, scales, to);
    }
    out
}

#[test]
fn nf4_is_what_bitsandbytes_makes() {
    let json: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/data/quant/nf4.json")).unwrap();
    let bits = |v: &serde_json::Value| f32::from_bits(v.as_u64().unwrap() as u32);
    let list = |v: &serde_json::Value| v.as_array().unwrap().iter().map(bits).collect::<Vec<_>>();
    let hex = |v: &serde_json::Value| -> Vec<u8> {
        let text = v.as_str().unwrap().as_bytes();
        let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
        text.chunks(2)
            .map(|c| digit(c[0]) << 4 | digit(c[1]))
            .collect()
    };
    assert_eq!(list(&json["codebook_bits"]), nf4::CODEBOOK);
    let dynamic: Vec<f32> = (0..=255).map(nf4::dynamic).collect();
    assert_eq!(list(&json["dynamic_bits"]), dynamic);
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let get = |key: &str| case[key].as_u64().unwrap() as usize;
        let (rows, cols) = (get("rows"), get("cols"));
        let values = weights(rows, cols, get("seed") as u32);
        let (codes, absmax) = encode(Quant::Nf4, cols, &values);
        assert!(codes == hex(&case["codes"]), "{rows} x {cols}: codes");
        let double = DoubleQuant::new(&absmax).unwrap();
        assert_eq!(
            double.codes,
            hex(&case["absmax"]),
            "{rows} x {cols}: scales"
        );
        let ulps = |a: f32, b: f32| a.to_bits().abs_diff(b.to_bits());
        let offset = bits(&case["offset_bits"]);
        assert!(
            ulps(double.offset, offset) <= 1,
            "{} {offset}",
            double.offset
        );
        let nested = list(&case["nested_absmax_bits"]);
        assert_eq!(double.nested.len(), nested.len());
        for (a, b) in double.nested.iter().zip(nested) {
            assert!(ulps(*a, b) <= 1, "{a} {b}");
        }
    }
}

#[test]
fn double_quantised_scales_are_near() {
    let absmax: Vec<f32> = (0..1000)
        .map(|i| 1.0 + (i * 37 % 101) as f32 / 50.0)
        .collect();
    let double = DoubleQuant::new(&absmax).unwrap();
    for (scale, absmax) in double.scales().unwrap().into_iter().zip(&absmax) {
        let error = f16::from_bits(scale).to_f32() - absmax;
        // The widest step of the dynamic code is 0.9 / 64 of the greatest magnitude.
        assert!(
            error.abs() <= 0.5 * 0.9 / 64.0 * 1.0 + 0.002,
            "{absmax} {error}"
        );
    }
    assert!(DoubleQuant::new(&[]).unwrap().scales().unwrap().is_empty());
}

/// Greatest errors: half a step of the code, times the scale.
#[test]
fn every_weight_is_near_its_code() {
    for (quant, step) in [(Quant::Int8, 1.0), (Quant::Int4, 1.0), (Quant::Nf4, 0.304)] {
        for cols in [1, 2, 31, 32, 33, 63, 64, 65, 192] {
            if !quant.takes(cols) {
                continue;
            }
            let mut values = weights(5, 192, 9)[..5 * cols].to_vec();
            values[cols] *= 1000.0;
            let (codes, scales) = encode(quant, cols, &values);
            let back = decode(quant, cols, &codes, &scales);
            for (i, (x, y)) in values.iter().zip(&back).enumerate() {
                let scale = scales[i / cols * quant.scales(cols) + i % cols / quant.group()].abs();
                // The search of INT4 may cut the greatest weight a little.
                let slack = if quant == Quant::Int4 { 2.2 } else { 1.0 };
                // Scales of NF4 become f16 here.
                let bound = scale * (0.5 * step * slack + 6e-4);
                assert!(
                    (x - y).abs() <= bound,
                    "{quant:?} {cols} {i}: {x} {y} {scale}"
                );
            }
        }
    }
}

fn squared_error(x: &[f32], y: &[f32]) -> f64 {
    let square = |(x, y): (&f32, &f32)| f64::from(x - y).powi(2);
    x.iter().zip(y).map(square).sum()
}

#[test]
fn the_search_beats_the_plain_scale() {
    let values = weights(64, 512, 77);
    let (codes, scales) = encode(Quant::Int4, 512, &values);
    let searched = squared_error(&values, &decode(Quant::Int4, 512, &codes, &scales));
    let mut plain = 0.0;
    for group in values.chunks(32) {
        // llama.cpp's Q4_0: the greatest weight is -8 times the scale.
        let top = group
            .iter()
            .fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m });
        let scale = f16::from_f32(top / -8.0).to_f32();
        let near = |&x: &f32| {
            if scale == 0.0 {
                0.0
            } else {
                (x / scale).round().clamp(-8.0, 7.0)
            }
        };
        let back: Vec<f32> = group.iter().map(|x| near(x) * scale).collect();
        let error = squared_error(group, &back);
        plain += error;
    }
    // Measured: 0.906.
    assert!(searched < 0.92 * plain, "{searched} {plain}");
}

#[test]
fn extreme_groups_are_finite_and_broken_ones_show() {
    for quant in Quant::OURS {
        for x in [0.0, -0.0, 1e-45, 1e-38, 1e-10, 1e-6, 6e4, 1e10, 3e38] {
            let mut values = vec![x; 64];
            values[3] = -x;
            let (codes, scales) = encode(quant, 64, &values);
            let back = decode(quant, 64, &codes, &scales);
            if x <= 6e4 {
                for (x, y) in values.iter().zip(&back) {
                    // Scales are f16: an absolute error of half its least number, times the code.
                    let bound = 0.04 * x.abs() + 127.0 * 3e-8;
                    assert!((x - y).abs() <= bound, "{quant:?} {x} {y}");
                }
            } else if quant != Quant::Nf4 {
                assert!(back.iter().all(|y| y.is_finite()), "{quant:?} {x}");
            }
        }
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 128];
            values[70] = broken;
            let (codes, scales) = encode(quant, 128, &values);
            let back = decode(quant, 128, &codes, &scales);
            assert!(
                back[..64].iter().all(|y| (y - 1.0).abs() < 0.01),
                "{quant:?}"
            );
            let group = 64..64 + quant.group();
            assert!(back[group].iter().all(|y| y.is_nan()), "{quant:?} {broken}");
        }
    }
    assert!(Quant::Int8.takes(33) && Quant::Int4.takes(1) && !Quant::Nf4.takes(96));
}
