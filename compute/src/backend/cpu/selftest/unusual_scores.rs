//! Attention of prompt rows whose scores are far from zero, on every tier.

use super::attention::{PAGES, attend_as, check, columns, lost, pool};
use super::*;
use crate::backend::cpu::attention::InBf16;
use std::ops::Range;

/// Scores of a query that are all larger or smaller by the same, to base 2: around all ends of what
/// `attention::weights` takes as usual, where some queries of a group are and others are not.
const SHIFTS: [f32; 14] = [
    0.0, -100.0, 100.0, -23.0, -25.0, -27.0, 32.0, 37.0, 39.0, 40.5, 42.0, -80.0, 20.0, -16.0,
];

/// The same for all scores of a query changes no result: against float64, without it. In any
/// company, and as generated rows, the rows have the same bits.
pub fn prompt_rows_of_unusual_scores(tier: Tier) {
    let mut rng = Rng(41);
    for (heads, head_dim) in [([8, 1], 64), ([3, 3], 48), ([4, 2], 96)] {
        let mut shape = shape(32, heads, head_dim, 32, 40);
        shape.n_layers = 1;
        let (group, width) = (heads[0] / heads[1], shape.q_dim());
        let len = PAGES * PAGE - 60;
        let mut k = rng.vector(len * shape.kv_dim(), 1.0);
        let mut v = rng.vector(len * shape.kv_dim(), 1.0);
        // Each key is multiplied by what shifts a query's scores, and by nothing else.
        k.chunks_mut(head_dim).for_each(|k| k[0] = 1.0);
        let (kv, pages) = pool(&shape, Dtype::Bf16, &mut k, &mut v, &mut rng);
        k.chunks_mut(head_dim).for_each(|k| k[0] = 0.0);
        let mut cpus = [1, 3].map(|threads| {
            let rope = rope(head_dim, PAGES * PAGE);
            Cpu::with_tier(&shape, rope, threads, 400, tier).unwrap()
        });
        for (position, rows) in [(0, 150), (230, 60), (500, 40)] {
            let mut q = rng.vector(rows * width, 2.0);
            let mut shifted = 0;
            for q in q.chunks_mut(head_dim) {
                q[0] = SHIFTS[shifted] * (head_dim as f32).sqrt() / std::f32::consts::LOG2_E;
                // Many are usual.
                shifted = [rng.below(SHIFTS.len()), 0][usize::from(rng.below(3) > 0)];
            }
            let mut attend = |thread: usize, kind, in_bf16, rows: Range<usize>| {
                let q = &q[rows.start * width..rows.end * width];
                let span = (&pages[..], position + rows.start, rows.len());
                let cpu = &mut cpus[thread];
                attend_as(cpu, &kv, kind, &[span], usize::MAX, in_bf16, q)
            };
            let got = attend(0, RowKind::Prefill, InBf16::Prompts, 0..rows);
            let what = format!("{heads:?} {head_dim}, {rows} rows at {position}");
            for row in 0..rows {
                let alone = attend(1, RowKind::Prefill, InBf16::Prompts, row..row + 1);
                let together = &got[row * width..][..width];
                assert!(alone == together, "{what}, row {row} alone");
            }
            if tier.has_bf16() || tier.has_tiles() {
                // None had to be computed again.
                let in_float32 = attend(0, RowKind::Prefill, InBf16::Nothing, 0..rows);
                // What is computed again is a row with the queries of a KV head.
                let queries = group * head_dim;
                let parts = got.chunks(queries).zip(in_float32.chunks(queries));
                let mut again = parts.skip(heads[1]).filter(|(got, again)| got == again);
                assert!(again.next().is_none(), "{what}");
            }
            if tier.has_bf16() && !tier.has_tiles() {
                let generated = attend(1, RowKind::Decode, InBf16::All, 0..rows);
                assert!(got == generated, "{what}, generated");
            }
            // A score of float32 is rounded where it is large.
            let [score, weight] = lost(tier);
            let lost = [score, weight.max(1e-4)];
            for (i, q) in q.chunks(head_dim).enumerate() {
                let (row, head) = (i / heads[0], i % heads[0]);
                let mut unshifted = q.to_vec();
                unshifted[0] = 0.0;
                let keys = 0..position + row + 1;
                let of = |x: &[f32]| columns(x, keys.clone(), heads[1], head / group, head_dim);
                let got = &got[i * head_dim..][..head_dim];
                let what = format!("{what}, row {row}, head {head}, {}", q[0]);
                check(&unshifted, got, &of(&k), &of(&v), lost, &what);
            }
        }
    }
}
