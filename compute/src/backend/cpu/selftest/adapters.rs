//! What adapters add to products: against its scalar twin, and against itself in other company.

use super::*;
use crate::backend::Adapter;
use crate::backend::adapter::LowRank;
use std::sync::Arc;

/// The two thin matrices of a part, as they are kept: `a: [rank, cols]`, `b: [rows, rank]`.
struct Thin {
    rank: usize,
    scale: f32,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Thin {
    fn new(rng: &mut Rng, kept: Dtype, [rows, rank, cols]: [usize; 3]) -> Thin {
        let mut numbers = |n: usize| -> Vec<f32> {
            let mut numbers = rng.vector(n, 1.0);
            numbers[n / 2] = 30.0;
            numbers.iter().map(|&x| rounded(kept, x)).collect()
        };
        Thin {
            rank,
            scale: 0.37,
            a: numbers(rank * cols),
            b: numbers(rows * rank),
        }
    }
}

/// One adapter of the first matrix of a model of one layer.
fn adapter(id: u32, kept: Dtype, cols: usize, parts: &[usize], thin: &[Option<Thin>]) -> Adapter {
    let shape = Shape {
        n_layers: 1,
        ..shape(8, [2, 2], 4, 8, 8)
    };
    let mut adapter = Adapter::new(&shape).unwrap();
    adapter.id = id;
    for (part, thin) in thin.iter().enumerate() {
        if let Some(Thin { rank, scale, a, b }) = thin {
            let sizes = [parts[part], *rank, cols];
            let low = LowRank::new(kept, sizes, *scale, a, b).unwrap();
            adapter.matrices[0][part] = Some(low);
        }
    }
    adapter
}

/// Rows of one kind, each a span of its own with an adapter of its own.
fn load(cpu: &mut Cpu, kind: RowKind, adapters: &[Option<Arc<Adapter>>]) {
    let span = |row| Span {
        rows: row..row + 1,
        kind,
        position: 0,
        pages: 0..0,
    };
    cpu.step.load(&Step {
        tokens: vec![0; adapters.len()],
        spans: (0..adapters.len()).map(span).collect(),
        // None is said of the last spans where they have none.
        adapters: match adapters.iter().rposition(Option::is_some) {
            Some(last) => adapters[..=last].to_vec(),
            None => Vec::new(),
        },
        ..Step::default()
    });
}

pub fn adapters_match(tier: Tier) {
    let mut rng = Rng(29);
    for (parts, cols, ranks) in [
        (vec![1], 1, [1, 0, 0]),
        (vec![15], 17, [3, 0, 0]),
        (vec![16], 16, [4, 0, 0]),
        (vec![17], 31, [5, 0, 0]),
        (vec![40, 24, 24], 70, [8, 0, 17]),
        (vec![160, 160], 100, [16, 1, 0]),
        (vec![33], 257, [256, 0, 0]),
        (vec![48, 48], 64, [16, 1, 0]),
        (vec![33, 16, 16], 96, [8, 5, 4]),
    ] {
        for (dtype, kept) in [
            (Dtype::F32, Dtype::F32),
            (Dtype::Bf16, Dtype::Bf16),
            (Dtype::Int8, Dtype::Bf16),
        ] {
            if !dtype.quant().is_none_or(|quant| quant.takes(cols)) {
                continue;
            }
            for kind in [RowKind::Prefill, RowKind::Decode] {
                check(tier, &mut rng, &parts, cols, ranks, (dtype, kept), kind);
            }
        }
    }
}

fn check(
    tier: Tier,
    rng: &mut Rng,
    parts: &[usize],
    cols: usize,
    ranks: [usize; 3],
    (dtype, kept): (Dtype, Dtype),
    kind: RowKind,
) {
    const ROWS: usize = 7;
    let s = Shape {
        ffn_dim: cols,
        ..shape(8, [2, 2], 4, cols, 8)
    };
    let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, ROWS, tier).unwrap();
    let total: usize = parts.iter().sum();
    let dense = Dense {
        weights: rng
            .vector(total * cols, 1.0)
            .iter()
            .map(|&x| rounded(Dtype::Bf16, x))
            .collect(),
        cols,
        bias: rng.vector(total, 1.0),
    };
    let mut mat = to_mat(&cpu, &dense, parts, dtype, MatUse::Product);
    mat.adapter_index = Some(0);
    let mut thins = Vec::new();
    let mut adapters = vec![None];
    for id in 1..3 {
        let thin: Vec<Option<Thin>> = parts
            .iter()
            .zip(ranks)
            // The second adapter has other ranks.
            .map(|(&rows, rank)| match rank {
                0 => None,
                rank => {
                    let rank = if id == 1 { rank } else { 1 + rank / 2 };
                    Some(Thin::new(rng, kept, [rows, rank, cols]))
                }
            })
            .collect();
        adapters.push(Some(Arc::new(adapter(id, kept, cols, parts, &thin))));
        thins.push(thin);
    }
    let which: [usize; ROWS] = [1, 0, 2, 1, 1, 2, 0];
    let mut x = cpu.new_buf(ROWS, cols).unwrap();
    x.data.copy_from_slice(&rng.vector(ROWS * cols, 1.0));
    let weight = rng.vector(cols, 1.0);
    let norm = Norm {
        weight: &weight,
        eps: 1e-5,
    };
    let width: usize = parts.iter().map(|n| n.next_multiple_of(LANES)).sum();
    let mut run = |x: &CpuBuf, which: &[usize], finish: Finish, width: usize| {
        let of_rows: Vec<_> = which.iter().map(|&i| adapters[i].clone()).collect();
        load(&mut cpu, kind, &of_rows);
        let mut out = cpu.new_buf(which.len(), width).unwrap();
        let rows = Rows {
            buf: x,
            wanted: false,
        };
        cpu.multiply(&mut out, &mat, rows, Some(norm), finish);
        cpu.step.release_adapters();
        out.data.to_vec()
    };
    let without = run(&x, &[0; ROWS], Finish::Store, width);
    let with = run(&x, &which, Finish::Store, width);
    for row in 0..ROWS {
        let what = format!("{parts:?} x {cols} {dtype} {kind:?}, row {row}");
        let alone = {
            let mut one = CpuBuf::new("a row", 1, cols).unwrap();
            one.data.copy_from_slice(&x.data[row * cols..][..cols]);
            run(&one, &which[row..=row], Finish::Store, width)
        };
        let got = &with[row * width..][..width];
        let plain = &without[row * width..][..width];
        assert!(got == alone, "{what}: alone it is another");
        if which[row] == 0 {
            assert!(got == plain, "{what}: it has no adapter");
            continue;
        }
        let x = &x.data[row * cols..][..cols];
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let x = scalar::rms_norm(&x, &weight, 1e-5);
        let mut at = 0;
        for (part, &rows) in parts.iter().enumerate() {
            let Some(thin) = &thins[which[row] - 1][part] else {
                assert!(got[at..at + rows] == plain[at..at + rows], "{what}");
                at += rows.next_multiple_of(LANES);
                continue;
            };
            for i in 0..rows {
                let b = &thin.b[i * thin.rank..][..thin.rank];
                let (delta, size) = scalar::low_rank(&x, &thin.a, b, thin.scale);
                let (got, plain) = (f64::from(got[at + i]), f64::from(plain[at + i]));
                // Each sum rounds once for each of its terms at most.
                let terms = (cols + thin.rank + 8) as f64;
                let bound = terms * (size + plain.abs()) / f64::from(1 << 24);
                let error = (got - plain - delta).abs();
                assert!(
                    error <= bound,
                    "{what}, {i}: {got}, {plain} + {delta}: {error}"
                );
            }
            at += rows.next_multiple_of(LANES);
        }
    }
    if let [rows, _] = *parts {
        let gated = run(&x, &which, Finish::SwiGlu, rows);
        for row in 0..ROWS {
            let half = width / 2;
            for i in 0..rows {
                let [gate, up] = [0, half].map(|at| f64::from(with[row * width + at + i]));
                let want = gate / (1.0 + (-gate).exp()) * up;
                let got = f64::from(gated[row * rows + i]);
                assert!(
                    (got - want).abs() <= 1e-5 * (1.0 + want.abs()),
                    "{got} for {want}"
                );
            }
        }
    }
}
