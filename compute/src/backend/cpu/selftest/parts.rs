//! Matrices whose parts have formats of their own, on every tier.

use super::quantised::all;
use super::*;
use crate::backend::cpu::multiply::Rows;
use crate::quant::Quant;

/// A product of all rows of `x`, `[rows, width]`.
fn multiply(cpu: &mut Cpu, mat: &CpuMat, x: &CpuBuf, width: usize, finish: Finish) -> Vec<f32> {
    let rows = x.data.len() / x.width;
    let mut out = cpu.new_buf(rows, width).unwrap();
    let x = Rows {
        buf: x,
        wanted: false,
    };
    cpu.multiply(&mut out, mat, x, None, finish);
    out.data.to_vec()
}

/// One matrix of the runs of several.
fn stacked(mats: Vec<CpuMat>) -> CpuMat {
    let (mut runs, mut first) = (Vec::new(), 0);
    for mut run in mats.into_iter().flat_map(|mat| mat.runs) {
        run.first = first;
        first += run.strips();
        runs.push(run);
    }
    CpuMat {
        runs,
        scale: 1.0,
        adapter_index: None,
    }
}

fn random(rng: &mut Rng, rows: usize, cols: usize) -> Dense {
    Dense {
        weights: rng.vector(rows * cols, 1.0),
        cols,
        bias: rng.vector(rows, 1.0),
    }
}

/// Every part of a mixed matrix gives the bits that it gives as a matrix of its own.
pub fn parts_keep_their_own_formats(tier: Tier) {
    use Dtype::{Bf16, F16, F32, Int4, Int8, K4, K8, Nf4};
    let mut rng = Rng(17);
    let cases = [
        ([16, 16, 16], 64, [Int4, Int4, Int8]),
        ([1, 15, 17], 64, [Int8, Int4, Int8]),
        ([48, 17, 33], 128, [Nf4, Bf16, Int4]),
        ([130, 5, 1], 33, [F32, Bf16, Bf16]),
        ([31, 200, 16], 320, [F16, Int8, F32]),
        ([48, 17, 16], 256, [K4, K4, K8]),
        ([16, 33, 1], 512, [Int4, K4, Bf16]),
    ];
    // And every format beside the next one.
    let quants: Vec<Dtype> = all().map(Quant::dtype).collect();
    let next = quants.iter().cycle().skip(1);
    let pairs = quants.iter().zip(next);
    let pairs = pairs.map(|(&a, &b)| ([16, 17, 33], 768, [a, b, a]));
    for (sizes, cols, dtypes) in cases.into_iter().chain(pairs) {
        let s = shape(8, [2, 2], 4, cols, 8);
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 40, tier).unwrap();
        let parts: Vec<Dense> = sizes.map(|n| random(&mut rng, n, cols)).into();
        let mats = || parts.iter().zip(sizes).zip(dtypes);
        let make = |((dense, rows), dtype): ((&Dense, usize), Dtype)| {
            to_mat(&cpu, dense, &[rows], dtype, MatUse::Product)
        };
        let alone: Vec<CpuMat> = mats().map(make).collect();
        let mixed = stacked(mats().map(make).collect());
        let spec = MatSpec {
            parts: sizes
                .iter()
                .zip(dtypes)
                .map(|(&rows, dtype)| PartSpec { rows, dtype })
                .collect(),
            cols,
            bias: true,
            scale: 1.0,
            usage: MatUse::Product,
            adapter_index: None,
        };
        let made = cpu.new_mat(&spec).unwrap();
        assert!(made.parts().eq(mixed.parts()), "{sizes:?} {dtypes:?}");
        let width = 16 * sizes.iter().map(|n| n.div_ceil(16)).sum::<usize>();
        for (rows, kind) in [1, 2, 7, 8, 33]
            .into_iter()
            .flat_map(|n| [RowKind::Prefill, RowKind::Decode].map(|kind| (n, kind)))
        {
            let mut x = cpu.new_buf(rows, cols).unwrap();
            x.data.copy_from_slice(&rng.vector(rows * cols, 1.0));
            load_rows(&mut cpu, rows, kind);
            let got = multiply(&mut cpu, &mixed, &x, width, Finish::Store);
            for ((alone, &n), (_, first)) in alone.iter().zip(&sizes).zip(mixed.parts()) {
                let want = multiply(&mut cpu, alone, &x, n, Finish::Store);
                for row in 0..rows {
                    let got = &got[row * width + first * LANES..][..n];
                    let want = &want[row * n..][..n];
                    assert!(got == want, "{sizes:?} {dtypes:?} {rows} {kind:?}");
                }
            }
        }
    }
}

/// SwiGLU in two products gives the bits that one product gives; and the bits of the parts where
/// their formats differ.
pub fn gate_and_up_of_two_formats(tier: Tier) {
    let mut rng = Rng(19);
    for (n, cols) in [(1, 64), (16, 64), (33, 128), (200, 320)] {
        let s = Shape {
            ffn_dim: n.max(cols),
            ..shape(cols, [2, 2], 4, cols, 8)
        };
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 40, tier).unwrap();
        let (gate, up) = (random(&mut rng, n, cols), random(&mut rng, n, cols));
        let both = Dense {
            weights: [&gate.weights[..], &up.weights].concat(),
            cols,
            bias: [&gate.bias[..], &up.bias].concat(),
        };
        for dtype in [Dtype::Int4, Dtype::Int8, Dtype::Bf16, Dtype::F32] {
            let part = |dense, dtype| to_mat(&cpu, dense, &[n], dtype, MatUse::Product);
            let one = to_mat(&cpu, &both, &[n, n], dtype, MatUse::Product);
            let two = stacked(vec![part(&gate, dtype), part(&up, dtype)]);
            let mixed = stacked(vec![part(&gate, Dtype::Bf16), part(&up, dtype)]);
            let (gate, up) = (part(&gate, Dtype::Bf16), part(&up, dtype));
            for (rows, kind) in [1, 3, 33]
                .into_iter()
                .flat_map(|n| [RowKind::Prefill, RowKind::Decode].map(|kind| (n, kind)))
            {
                let mut x = cpu.new_buf(rows, cols).unwrap();
                x.data.copy_from_slice(&rng.vector(rows * cols, 1.0));
                load_rows(&mut cpu, rows, kind);
                let want = multiply(&mut cpu, &one, &x, n, Finish::SwiGlu);
                let got = multiply(&mut cpu, &two, &x, n, Finish::SwiGlu);
                assert!(got == want, "{n} x {cols} {dtype}, {rows} {kind:?}");
                let got = multiply(&mut cpu, &mixed, &x, n, Finish::SwiGlu);
                let mut gate = multiply(&mut cpu, &gate, &x, n, Finish::Store);
                let up = multiply(&mut cpu, &up, &x, n, Finish::Store);
                for (gate, up) in gate.iter_mut().zip(up) {
                    *gate = scalar::silu((*gate).into()) as f32 * up;
                }
                for (got, want) in got.iter().zip(gate) {
                    let bound = 1e-6 * (1.0 + want.abs());
                    assert!(
                        (got - want).abs() <= bound,
                        "{n} x {cols} {dtype}: {got} {want}"
                    );
                }
            }
        }
    }
}
