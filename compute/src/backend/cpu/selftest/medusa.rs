//! What Medusa heads need beside the operations of a layer, on every tier.

use super::*;
use crate::backend::Backend;
use scalar::{rms_norm, silu};

/// Rows of a product, `[rows, n]`, as [`Finish::Store`] leaves them.
fn stored(cpu: &mut Cpu, mat: &CpuMat, x: &CpuBuf, n: usize) -> Vec<f32> {
    let rows = x.data.len() / x.width;
    let mut out = cpu.new_buf(rows, n).unwrap();
    cpu.logits(&mut out, x, None, mat);
    out.data.to_vec()
}

fn load(cpu: &mut Cpu, tokens: Vec<crate::Token>) {
    let rows = tokens.len();
    cpu.step.load(&Step {
        tokens,
        wanted: (0..rows as u32).collect(),
        spans: vec![Span {
            rows: 0..rows,
            kind: RowKind::Decode,
            position: 0,
            pages: 0..0,
        }],
        ..Step::default()
    });
}

/// The block adds SiLU of its product to its input. The product equals the product of the other
/// operations bit for bit. A row by itself has the same bits as together with other rows, and a row
/// that is not finite does not affect other rows.
pub fn residual_blocks_match(tier: Tier) {
    use Dtype::{Bf16, F16, F32, Int4, Int8};
    let mut rng = Rng(23);
    for (dim, dtypes) in [1, 2, 15, 16, 17, 31, 33, 130]
        .map(|dim| (dim, &[F32, F16, Bf16][..]))
        .into_iter()
        .chain([32, 64, 160].map(|dim| (dim, &[Int8, Int4][..])))
    {
        for (&dtype, precision) in dtypes
            .iter()
            .flat_map(|dtype| [Precision::Full, Precision::AsPrompts].map(|p| (dtype, p)))
        {
            for rows in [1, 2, 7, 8, 9, 33] {
                let s = shape(dim, [2, 2], 4, dim, dim);
                let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, rows, tier).unwrap();
                cpu.precision = precision;
                let dense = Dense {
                    weights: rng.vector(dim * dim, 1.0),
                    cols: dim,
                    bias: rng.vector(dim, 9.0),
                };
                let mat = to_mat(&cpu, &dense, &[dim], dtype, MatUse::Product);
                let mut h = cpu.new_buf(rows, dim).unwrap();
                h.data.copy_from_slice(&rng.vector(rows * dim, 1.0));
                // Beside the others, so that they would see it.
                let bad = (rows > 7).then_some(3);
                if let Some(row) = bad {
                    h.data[row * dim] = f32::NAN;
                }
                load(&mut cpu, vec![0; rows]);
                let sums = stored(&mut cpu, &mat, &h, dim);
                let mut out = cpu.new_buf(rows, dim).unwrap();
                // What an earlier step has left there is not added to.
                out.data.fill(7.0);
                cpu.residual_block(&mut out, &mat, &h);
                for (i, (&got, &sum)) in out.data.iter().zip(&sums).enumerate() {
                    if Some(i / dim) == bad {
                        assert!(got.is_nan(), "{dim} {dtype} [{i}] {got}");
                        continue;
                    }
                    let want = f64::from(h.data[i]) + silu(sum.into());
                    let bound = 1e-6 * (1.0 + want.abs() + f64::from(sum.abs()));
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= bound, "{dim} {dtype} {rows} [{i}] {got} {want}");
                }
                for row in (0..rows).filter(|row| Some(*row) != bad) {
                    let mut alone = cpu.new_buf(1, dim).unwrap();
                    alone.data.copy_from_slice(&h.data[row * dim..][..dim]);
                    load(&mut cpu, vec![0]);
                    let mut got = cpu.new_buf(1, dim).unwrap();
                    cpu.residual_block(&mut got, &mat, &alone);
                    assert!(
                        got.data[..] == out.data[row * dim..][..dim],
                        "{dim} {dtype} {row}"
                    );
                }
            }
        }
    }
}

/// Rows of an earlier step are found by their numbers, in any order and more than once.
pub fn hidden_rows_match(tier: Tier) {
    let mut rng = Rng(29);
    for dim in [1, 15, 16, 17, 63, 64, 65, 130] {
        let s = shape(dim, [2, 2], 4, dim, dim);
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 9, tier).unwrap();
        let norm = cpu.new_vector(&rng.vector(dim, 2.0)).unwrap();
        let mut x = cpu.new_buf(9, dim).unwrap();
        x.data.copy_from_slice(&rng.vector(9 * dim, 1.0));
        x.data[4 * dim] = 1000.0;
        x.data[7 * dim] = f32::NAN;
        for rows in [vec![0], vec![8, 0], vec![5, 4, 4, 7, 1, 0, 8, 2, 3]] {
            load(&mut cpu, rows.clone());
            let mut out = cpu.new_buf(rows.len(), dim).unwrap();
            cpu.hidden(&mut out, &x, &norm);
            for (got, &row) in out.data.chunks(dim).zip(&rows) {
                let from = &x.data[row as usize * dim..][..dim];
                let from: Vec<f64> = from.iter().map(|&x| x.into()).collect();
                let want = rms_norm(&from, &norm.data, s.norm_eps);
                for (got, want) in got.iter().zip(want) {
                    let near = (f64::from(*got) - want).abs() <= 1e-5 * (1.0 + want.abs());
                    assert!(
                        near || row == 7 && got.is_nan(),
                        "{dim} {row}: {got} {want}"
                    );
                }
            }
        }
    }
}

/// Guesses have positions, and no pages: nothing attends. Two of them share no prefix, however long
/// their texts are; nor do they where all chunks would be tasks of their own.
pub fn guesses_of_long_texts_are_loaded(tier: Tier) {
    let s = shape(32, [4, 2], 8, 32, 32);
    for (threads, position) in [(1, 300), (2, 300), (1, 255), (2, 255), (8, 1000)] {
        let mut cpu = Cpu::with_tier(&s, rope(8, 1024), threads, 8, tier).unwrap();
        let span = |row: usize| Span {
            rows: row..row + 1,
            kind: RowKind::Decode,
            position,
            pages: 0..0,
        };
        cpu.load_step(&Step {
            tokens: vec![0, 1, 2],
            wanted: vec![0, 1, 2],
            spans: (0..3).map(span).collect(),
            ..Step::default()
        });
        assert!(!cpu.plan.shares(), "{threads} threads, position {position}");
    }
}
