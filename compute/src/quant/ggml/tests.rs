use super::*;
use crate::quant::Quant;
use half::f16;

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    let pairs = hex.as_bytes().as_chunks::<2>().0.iter();
    pairs.map(|c| digit(c[0]) << 4 | digit(c[1])).collect()
}

/// Type, bytes of blocks, and what ggml makes of them.
fn vectors() -> Vec<(Type, Vec<u8>, Vec<f32>)> {
    let json = include_str!("../../../../tests/data/gguf/blocks.json");
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).unwrap();
    let vectors = json.iter().map(|(name, case)| {
        let kind = Type::all().find(|kind| kind.name() == name).unwrap();
        let size = |key: &str| case[key].as_u64().unwrap() as usize;
        assert_eq!(
            (kind.block(), kind.block_bytes()),
            (size("block"), size("bytes"))
        );
        let field = |key: &str| bytes(case[key].as_str().unwrap());
        let numbers = field("f32");
        let numbers = numbers.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
        (kind, field("data"), numbers.collect())
    });
    vectors.collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn blocks_are_what_ggml_makes_of_them() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 12);
    for (kind, data, numbers) in vectors {
        let blocks = data.len() / kind.block_bytes();
        assert!(blocks >= 4 && numbers.len() == blocks * kind.block());
        let mut decoded = vec![f32::NAN; numbers.len()];
        kind.decode(&data, &mut decoded);
        assert_eq!(bits(&decoded), bits(&numbers), "{kind}");
    }
}

#[test]
fn floats_are_themselves() {
    for (kind, data, value) in [
        (Type::F32, &1.25f32.to_le_bytes()[..], 1.25),
        (Type::F16, &f16::from_f32(-0.5).to_le_bytes(), -0.5),
        (Type::Bf16, &bf16::from_f32(3.0).to_le_bytes(), 3.0),
    ] {
        let mut decoded = [0.0];
        kind.decode(data, &mut decoded);
        assert_eq!(decoded, [value], "{kind}");
    }
}

/// Numbers of our own format, whatever the scales are: also those of codes of -128.
#[test]
fn kept_codes_are_the_same_numbers() {
    let mut seen = 0;
    for (kind, mut data, mut numbers) in vectors() {
        if kind == Type::Q8_0 {
            let mut block = [0x80; 34];
            block[..2].copy_from_slice(&f16::from_f32(0.1).to_le_bytes());
            data.extend(block);
            numbers.extend([f16::from_f32(0.1).to_f32() * -128.0; 32]);
        }
        for &quant in kind.kept() {
            let cols = numbers.len();
            let mut codes = vec![0xee; quant.code_bytes(cols)];
            let mut scales = vec![0xeeee; quant.scales(cols)];
            kind.codes(quant, &data, &mut codes, &mut scales);
            let mut decoded = vec![f32::NAN; cols];
            quant.decode(&codes, &scales, &mut decoded);
            seen += 1;
            // What is rounded: the scale of a group, or its minimum.
            let rounded = match kind {
                Type::Iq4Xs => |y: f32, _: [f32; 2]| y.abs() * 4.9e-4 + 127.0 * 3e-8,
                Type::Q4_1 => |_: f32, [d, m]: [f32; 2]| m.abs() * 4.9e-4 + d.abs() * 1e-6,
                _ => {
                    assert_eq!(bits(&decoded), bits(&numbers), "{kind} as {quant:?}");
                    continue;
                }
            };
            for (i, (x, y)) in decoded.iter().zip(&numbers).enumerate() {
                assert!(
                    (x - y).abs() <= rounded(*y, quant.scale(&scales, i)),
                    "{kind} as {quant:?}: {x} {y}"
                );
            }
        }
    }
    assert_eq!(seen, 12);
    assert_eq!(
        [Type::Q2K, Type::Q5K, Type::Q6K, Type::Q3K].map(Type::kept),
        [&[], &[Quant::K5][..], &[Quant::K6], &[Quant::K8]]
    );
}

#[test]
fn broken_scales_show() {
    for kind in Type::all().filter(|kind| kind.block() > 1) {
        let (n, block) = (kind.block_bytes(), kind.block());
        let mut decoded = vec![0.0; 2 * block];
        // Every code and scale is at its greatest, so no infinity is hidden by a zero.
        let mut data = vec![0x77; 2 * n];
        data[n..].fill(0xff);
        kind.decode(&data, &mut decoded);
        assert!(decoded[..block].iter().all(|x| x.is_finite()), "{kind}");
        assert!(decoded[block..].iter().all(|x| x.is_nan()), "{kind}");
    }
}

#[test]
fn types_have_numbers_and_names() {
    assert_eq!(Type::of_number(12), Ok(Type::Q4K));
    assert_eq!(Type::of_number(31), Err("Q4_0_4_4".into()));
    assert_eq!(Type::of_number(77), Err("ggml's type 77".into()));
    assert_eq!(
        Type::of_number(u32::MAX),
        Err("ggml's type 4294967295".into())
    );
    let mut numbers: Vec<u32> = TYPES
        .iter()
        .map(|t| t.0)
        .chain(OTHERS.iter().map(|o| o.0))
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=40).collect::<Vec<_>>());
    assert_eq!(Type::Q4K.row_bytes(512), Some(288));
    assert_eq!(Type::Q4K.row_bytes(4000), None);
    assert_eq!(Type::F32.row_bytes(usize::MAX), None);
}
