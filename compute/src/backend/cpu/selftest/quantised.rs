//! Quantised weights, on every tier.

use super::encoded::{Encoded, activations, to_mat, top};
use super::*;
use crate::backend::{QuantBlock, QuantData};
use crate::quant::Quant;
use half::f16;

/// Random weights with numbers among them that are hard to quantise.
pub(super) fn hard_weights(rng: &mut Rng, n: usize, k: usize) -> Dense {
    let mut dense = Dense {
        weights: rng.vector(n * k, 1.0),
        cols: k,
        bias: rng.vector(n, 1.0),
    };
    dense.weights[n * k / 2] = 300.0;
    let row = n / 3 * k;
    for (i, w) in dense.weights[row..row + k].iter_mut().enumerate() {
        // A row of zeros, subnormals and numbers that a scale in f16 hardly holds.
        *w *= [0.0, 1e-41, 1e-7][i / 32 % 3];
    }
    dense
}

const SHAPES: [(usize, usize); 10] = [
    (1, 1),
    (15, 2),
    (16, 31),
    (17, 32),
    (40, 33),
    (33, 64),
    (130, 192),
    (20, 700),
    (200, 320),
    (200, 704),
];

/// More shapes, for formats that only files have. In most of these formats, rows are whole blocks
/// of 256.
const SHAPES_OF_FILES: [(usize, usize); 6] = [
    (1, 256),
    (15, 256),
    (16, 512),
    (17, 768),
    (130, 256),
    (130, 768),
];

/// Every format with every shape that it takes.
pub(super) fn cases() -> impl Iterator<Item = (usize, usize, Quant)> {
    all().flat_map(|quant| {
        let more = SHAPES_OF_FILES.iter().filter(move |_| quant.is_of_files());
        let shapes = SHAPES.iter().chain(more);
        let taken = shapes.filter(move |(_, k)| quant.takes(*k));
        taken.map(move |&(n, k)| (n, k, quant))
    })
}

/// Every format that this backend has.
pub fn all() -> impl Iterator<Item = Quant> {
    Quant::ALL.into_iter().filter(|&quant| Cpu::keeps(quant))
}

pub fn quantised_strips_hold_what_the_format_says(tier: Tier) {
    let mut rng = Rng(21);
    let s = shape(8, [2, 2], 4, 8, 8);
    let cpu = Cpu::with_tier(&s, rope(4, 16), 3, 4, tier).unwrap();
    for (n, k, quant) in cases() {
        let dense = hard_weights(&mut rng, n, k);
        let parts = [n - n / 3, n / 3];
        let encoded = Encoded::new(&dense, &parts, quant);
        let want = encoded.decode(&dense.bias);
        let mat = to_mat(&cpu, &dense, &parts, quant);
        for row in 0..n {
            let first = row < parts[0];
            let strip_row = match first {
                true => row,
                false => mat.runs[0].parts[1].first * LANES + row - parts[0],
            };
            for col in 0..k {
                let got = mat.runs[0].quantised_weight(quant, strip_row, col);
                assert_eq!(
                    got,
                    want.row(row)[col],
                    "{quant:?} {n} x {k}: [{row}, {col}]"
                );
            }
        }
        if quant.is_of_files() {
            continue;
        }
        // The host's quantiser gives the same bits on every tier.
        let mut codes = vec![0; n * quant.code_bytes(k)];
        let mut scales = vec![0.0; n * quant.scales(k)];
        cpu.quantise(quant, k, &dense.weights, &mut codes, &mut scales);
        let encoded = Encoded::made(&dense, &parts, quant);
        assert!(codes == encoded.codes, "{quant:?} {n} x {k}");
        if quant != Quant::Nf4 {
            let bits: Vec<u16> = scales.iter().map(|&s| f16::from_f32(s).to_bits()).collect();
            assert!(bits == encoded.scales, "{quant:?} {n} x {k}");
        }
    }
}

pub fn quantised_products_of_bad_numbers(tier: Tier) {
    let mut rng = Rng(5);
    for quant in all() {
        let (n, k) = (40, if quant.takes(192) { 192 } else { 256 });
        let mut dense = Dense {
            weights: rng.vector(n * k, 1.0),
            cols: k,
            bias: Vec::new(),
        };
        // NF4's scales are quantised together, so a NaN among them would show everywhere.
        if quant != Quant::Nf4 {
            dense.weights[7 * k + 100] = f32::NAN;
        }
        let s = Shape {
            ffn_dim: k,
            ..shape(8, [2, 2], 4, k, n)
        };
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 8, tier).unwrap();
        let mut mat = to_mat(&cpu, &dense, &[n], quant);
        if quant != Quant::Nf4 {
            // A NaN whose bits are all ones: a number that is added to them must not overflow.
            let block = QuantBlock {
                part: 0,
                row: 8,
                order: RowOrder::AsStored,
                data: QuantData::Scales(&vec![u16::MAX; quant.scales(k)]),
            };
            cpu.pack_quantised(&mut mat, &block);
        }
        for (kind, precision) in KINDS {
            cpu.precision = precision;
            let mut x = cpu.new_buf(4, k).unwrap();
            x.data.copy_from_slice(&rng.vector(4 * k, 1.0));
            x.data[k + 33] = f32::NAN;
            x.data[2 * k + 191] = f32::INFINITY;
            x.data[3 * k..].fill(0.0);
            let mut y = cpu.new_buf(4, n).unwrap();
            load_rows(&mut cpu, 4, kind);
            cpu.matmul_add(&mut y, &mat, &x);
            for i in 0..n {
                let at = |row: usize| y.data[row * n + i];
                let broken = quant != Quant::Nf4 && (i == 7 || i == 8);
                assert_eq!(at(0).is_nan(), broken, "{quant:?} {kind:?} {i}: {}", at(0));
                assert!(at(1).is_nan(), "{quant:?} {kind:?} {i}: {}", at(1));
                assert!(!at(2).is_finite(), "{quant:?} {kind:?} {i}: {}", at(2));
                assert!(broken || at(3) == 0.0, "{quant:?} {kind:?} {i}: {}", at(3));
            }
        }
    }
}

/// The model that a quantised machine computes with: in float32, or in integers.
fn dequantised(model: &scalar::Model, quant: Quant, integers: bool) -> scalar::Model {
    let shape = &model.shape;
    let of = |d: &Dense, parts: &[usize], quant| {
        let encoded = Encoded::new(d, parts, quant);
        match integers {
            true => encoded.multiples(&d.bias),
            false => encoded.decode(&d.bias),
        }
    };
    let mut out = model.clone();
    for layer in &mut out.layers {
        let (q, kv) = (shape.q_dim(), shape.kv_dim());
        layer.wqkv = of(&layer.wqkv, &[q, kv, kv], quant);
        layer.wo = of(&layer.wo, &[shape.dim], quant);
        layer.w13 = of(&layer.w13, &[shape.ffn_dim; 2], quant);
        layer.w2 = of(&layer.w2, &[shape.dim], quant);
    }
    match &mut out.head {
        Some(head) => *head = of(head, &[shape.vocab_size], Quant::Int8),
        None => out.embedding = of(&out.embedding, &[shape.vocab_size], Quant::Int8),
    }
    out
}

pub fn quantised_forward_matches(tier: Tier) {
    for quant in all() {
        let shapes = match quant {
            Quant::Nf4 => [
                shape(64, [4, 2], 16, 128, 61),
                shape(128, [2, 2], 32, 64, 45),
            ],
            _ if quant.block() == 256 => [
                shape(256, [8, 2], 32, 512, 61),
                shape(256, [4, 1], 64, 256, 45),
            ],
            _ => [shape(40, [8, 2], 16, 50, 61), shape(64, [8, 1], 32, 90, 45)],
        };
        for (i, shape) in shapes.iter().enumerate() {
            let model = random_model(shape, Dtype::Bf16, i == 0, i == 1, 11);
            let tiles = tier.has_tiles();
            let tops = [quant, Quant::Int8]
                .map(|quant| top(tier, RowKind::Prefill, Precision::Full, quant));
            let want_of = dequantised(&model, quant, tops[0].is_some());
            for kv in [Dtype::F32, Dtype::Bf16] {
                let mut machine = Machine::new(&model, tier, 2, quant.dtype(), kv);
                let tokens = random_tokens(45, shape.vocab_size, 3);
                let (mut sequence, mut got) = machine.prefill(&tokens[..40], 23);
                for t in 40..45 {
                    let token = &tokens[t..t + 1];
                    got.extend(machine.step(&mut [(&mut sequence, token, RowKind::Decode)]));
                }
                let want =
                    want_of.logits_rounding(&tokens, kv, |head, x| match tops[usize::from(head)] {
                        None => x,
                        Some(top) => activations(top, x),
                    });
                let what = format!("{quant:?} {kv}");
                let cache = if kv == Dtype::F32 { 0.0 } else { 2e-3 };
                let [prefill, decode] = match tops {
                    _ if tiles => [0.03; 2],
                    [None, _] => [1e-5 + cache, 1e-3 + cache],
                    // Sums in float32 put a few activations on the other side of a half.
                    tops if tops.contains(&Some(127.0)) => [0.05; 2],
                    _ => [2e-4 + cache; 2],
                };
                assert_close(&got[..40], &want[..40], prefill, &what);
                assert_close(&got[40..], &want[40..], decode, &what);
            }
        }
    }
}

/// Law four where the two kinds of row may have arithmetic of their own: other sequences, threads
/// and chunks change no bit of either.
pub fn quantised_company_changes_nothing(tier: Tier) {
    let all = all().flat_map(|quant| {
        [Precision::Full, Precision::AsPrompts, Precision::Fast(16)]
            .map(|precision| (quant, precision))
    });
    for (quant, precision) in all {
        let shape = match quant.takes(64) {
            true => shape(64, [4, 2], 32, 128, 70),
            false => shape(256, [2, 1], 128, 256, 70),
        };
        let model = random_model(&shape, Dtype::Bf16, true, false, 5);
        let tokens = random_tokens(272, 70, 21);
        let mut alone = Machine::new(&model, tier, 1, quant.dtype(), Dtype::Bf16);
        alone.cpu.precision = precision;
        let (mut sequence, want) = alone.prefill(&tokens[..260], 260);
        let generate = |machine: &mut Machine, sequence: &mut Sequence, t: usize| {
            let token = &tokens[t..=t];
            machine
                .step(&mut [(sequence, token, RowKind::Decode)])
                .remove(0)
        };
        let generated: Vec<Vec<f32>> = (260..264)
            .map(|t| generate(&mut alone, &mut sequence, t))
            .collect();
        let threads: &[usize] = match precision {
            Precision::Full => &[1, 2, 3],
            _ => &[2],
        };
        for &threads in threads {
            let mut machine = Machine::new(&model, tier, threads, quant.dtype(), Dtype::Bf16);
            machine.cpu.precision = precision;
            for chunk in [1, 7, 100] {
                let (mut sequence, got) = machine.prefill(&tokens[..260], chunk);
                assert!(
                    got == want,
                    "{quant:?}: {threads} threads, chunks of {chunk}"
                );
                let got = generate(&mut machine, &mut sequence, 260);
                assert!(got == generated[0], "{quant:?}: {threads} threads");
                machine.release(sequence);
            }
            let others: Vec<Sequence> = (0..20)
                .map(|i| {
                    machine
                        .prefill(&random_tokens(1 + i, 70, 70 + i as u64), 100)
                        .0
                })
                .collect();
            for (n, rows) in [(1, 33), (5, 33), (8, 140), (20, 33)] {
                let (mut sequence, _) = machine.prefill(&tokens[..260], 260);
                let mut company = others[..n].to_vec();
                let mut second = Sequence::default();
                let mut work: Vec<(&mut Sequence, &[Token], RowKind)> = company
                    .iter_mut()
                    .map(|s| (s, &tokens[..1], RowKind::Decode))
                    .collect();
                // Both kinds, among others.
                work.insert(n / 2, (&mut sequence, &tokens[260..261], RowKind::Decode));
                work.insert(n / 2, (&mut second, &tokens[..rows], RowKind::Prefill));
                let got = machine.step(&mut work);
                assert!(
                    got[n / 2..n / 2 + rows] == want[..rows],
                    "{quant:?}: {n} others, prompt"
                );
                assert!(
                    got[n / 2 + rows] == generated[0],
                    "{quant:?}: {n} others, generated"
                );
                for s in company.into_iter().zip(&others) {
                    let new = s.0.pages.len() - s.1.pages.len();
                    assert!(new <= 1);
                    machine.free.extend(&s.0.pages[s.1.pages.len()..]);
                }
                machine.release(sequence);
                machine.release(second);
            }
        }
    }
}
