//! What ranks load of an adapter: every number of A and of B is on the ranks to which it belongs.

use crate::checkpoints::lora::{self, ALL};
use crate::checkpoints::{Opened, reference};
use llamabi::Dtype;
use llamabi::backend::adapter::{Adapter, LANES, LowRank, Numbers};
use llamabi::checkpoint;
use llamabi::model::Cuts;
use std::ops::Range;

/// Number `at` of a thin matrix.
fn number(numbers: &Numbers, at: usize) -> f32 {
    match numbers {
        Numbers::F32(numbers) => numbers[at],
        Numbers::Bf16(bits) => half::bf16::from_bits(bits[at]).to_f32(),
    }
}

/// A, `[rank, cols]`, of which the padding must be zeros.
fn a(low: &LowRank, cols: usize) -> Vec<Vec<f32>> {
    let width = cols.next_multiple_of(LANES);
    let row = |j: usize| (0..width).map(move |k| number(&low.a, j * width + k));
    (0..low.rank)
        .map(|j| {
            assert!(row(j).skip(cols).all(|x| x == 0.0));
            row(j).take(cols).collect()
        })
        .collect()
}

/// B, `[rows, rank]`, likewise.
fn b(low: &LowRank, rows: usize) -> Vec<Vec<f32>> {
    let at = |row: usize, j: usize| (row / LANES * low.rank + j) * LANES + row % LANES;
    let row = |row: usize| (0..low.rank).map(move |j| number(&low.b, at(row, j)));
    assert!((rows..rows.next_multiple_of(LANES)).all(|i| row(i).all(|x| x == 0.0)));
    (0..rows).map(|i| row(i).collect()).collect()
}

fn load(dir: &std::path::Path, opened: &Opened, dtype: Dtype, of: (&Cuts, Range<usize>)) -> Loaded {
    let adapter = checkpoint::Adapter::open(dir, 0.5, None).unwrap();
    adapter.load(&opened.config, dtype, of, u64::MAX).unwrap()
}

type Loaded = (Vec<Adapter>, u64);

/// Which rows and columns of a matrix's part a rank has: this test's own statement. `ffn` has where
/// each rank's share of the feed-forward ends.
fn own(
    opened: &Opened,
    (rank, ranks): (usize, usize),
    ffn: &[usize],
    (matrix, part): (usize, usize),
) -> [Range<usize>; 2] {
    let shape = &opened.config.shape;
    let (head, heads, kv) = (shape.head_dim, shape.n_heads, shape.n_kv_heads);
    let q = rank * heads / ranks * head..(rank + 1) * heads / ranks * head;
    // With fewer KV heads than ranks, neighbours have the same one.
    let first = rank * kv / ranks;
    let kv = first * head..(first + (kv / ranks).max(1)) * head;
    let start = if rank == 0 { 0 } else { ffn[rank - 1] };
    let ffn = start..ffn[rank];
    let dim = 0..shape.dim;
    match (matrix, part) {
        (0, 0) => [q, dim],
        (0, _) => [kv, dim],
        (1, _) => [dim, q],
        (2, _) => [ffn, dim],
        _ => [dim, ffn],
    }
}

#[test]
fn every_number_of_an_adapter_is_on_the_ranks_it_belongs_to() {
    // The widths are 48 and 160: blocks of sixteen, of which the first ranks get one more.
    for (model, ranks, ffn) in [
        ("../adapters/base", 2, vec![32, 48]),
        ("../families/qwen3", 2, vec![32, 48]),
        ("gqa-f16-mp2/hf", 2, vec![]),
        ("gqa-f16-mp2/hf", 4, vec![]),
    ] {
        let opened = Opened::new(&reference(model), 300).unwrap();
        let shape = &opened.config.shape;
        let even = (1..=ranks).map(|rank| rank * shape.ffn_dim / ranks);
        let ffn = if ffn.is_empty() { even.collect() } else { ffn };
        let dir = lora::adapter(&reference(model), 5, 1, &ALL);
        let cuts = Cuts::new(shape, ranks, [1, 16, 1]).unwrap();
        for dtype in [Dtype::F32, Dtype::Int8] {
            let (whole, none) = load(dir.path(), &opened, dtype, (&Cuts::one(shape), 0..1));
            let (all, _) = load(dir.path(), &opened, dtype, (&cuts, 0..ranks));
            assert_eq!((whole.len(), all.len()), (1, ranks));
            let mut prints = Vec::new();
            for (rank, of_rank) in all.iter().enumerate() {
                let (alone, print) = load(dir.path(), &opened, dtype, (&cuts, rank..rank + 1));
                assert_eq!(alone[0].matrices, of_rank.matrices, "alone or together");
                prints.push(print);
                for (place, whole) in whole[0].matrices.iter().enumerate() {
                    let parts = [3, 1, 2, 1][place % 4];
                    for part in 0..parts {
                        let what = format!("{model}, {rank} of {ranks}, {place}, {part}");
                        let whole = whole[part].as_ref().unwrap();
                        let low = of_rank.matrices[place][part].as_ref().unwrap();
                        assert_eq!((low.rank, low.scale), (5, whole.scale), "{what}");
                        let [rows, cols] = own(&opened, (rank, ranks), &ffn, (place % 4, part));
                        let [all_rows, all_cols] =
                            own(&opened, (0, 1), &[shape.ffn_dim], (place % 4, part));
                        let want = a(whole, all_cols.len()).into_iter();
                        let want: Vec<_> = want.map(|row| row[cols.clone()].to_vec()).collect();
                        assert_eq!(a(low, cols.len()), want, "{what}: A");
                        let want = b(whole, all_rows.len())[rows.clone()].to_vec();
                        assert_eq!(b(low, rows.len()), want, "{what}: B");
                    }
                }
            }
            // Ranks of other processes compare these.
            assert!(prints.iter().all(|print| *print == prints[0]));
            let other = lora::adapter(&reference(model), 5, 2, &ALL);
            let (_, other) = load(other.path(), &opened, dtype, (&cuts, 0..1));
            assert_ne!(other, prints[0]);
            assert_ne!(none, prints[0]);
        }
    }
}
