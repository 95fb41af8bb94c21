//! Attention over a cache of planted numbers, on every tier.

use super::*;
use crate::backend::cpu::attention::InBf16;
use element::{Element, with_cache_element};
use std::ops::Range;

pub(super) const PAGES: usize = 40;

/// A pool of one layer whose pages, in some order, hold `k` and `v`, `[position][kv
/// head][head_dim]`, with NaN after them. Returns the pool and the order; `k` and `v` become what
/// they are after rounding.
pub(super) fn pool(
    shape: &Shape,
    dtype: Dtype,
    k: &mut [f32],
    v: &mut [f32],
    rng: &mut Rng,
) -> (CpuKv, Vec<u32>) {
    let (heads, head_dim) = (shape.n_kv_heads, shape.head_dim);
    let padded = head_dim.next_multiple_of(LANES);
    let mut kv = CpuKv::new(shape, PAGES, dtype).unwrap();
    let mut pages: Vec<u32> = (0..PAGES as u32).collect();
    for i in (1..PAGES).rev() {
        pages.swap(i, rng.below(i + 1));
    }
    let (page_len, tile_len) = (kv.page_len(), kv::tile_len(dtype, head_dim));
    with_cache_element!(dtype, E => {
        let bits = <E as Element>::bits_mut(&mut kv.data);
        if !E::SCALED {
            bits.fill(E::from_f32(f32::NAN));
        } else {
            // NaN as the bytes of a scale.
            bits.fill(-1i8 as _);
        }
        let rows = k.chunks_mut(head_dim).zip(v.chunks_mut(head_dim));
        for (i, (k, v)) in rows.enumerate() {
            let (position, head) = (i / heads, i % heads);
            let (page, slot) = (pages[position / PAGE] as usize, position % PAGE);
            let at = &mut bits[page * page_len + head * tile_len..][..tile_len];
            let (tiles, units) = at.split_at_mut(PAGE * (head_dim + padded));
            for (part, x) in [k, v].into_iter().enumerate() {
                let unit = E::unit(|take| x.iter().for_each(|&x| take(x)));
                E::put_unit(units, part * PAGE + slot, unit);
                for (d, x) in x.iter_mut().enumerate() {
                    let bits = E::from_f32(*x * E::inverse(unit));
                    let at = match part {
                        0 => E::index(d, slot),
                        _ => {
                            let pair = slot / 2 * (padded / LANES) + d / LANES;
                            PAGE * head_dim + pair * 2 * LANES + E::index(slot % 2, d % LANES)
                        }
                    };
                    tiles[at] = bits;
                    *x = E::to_f32(bits) * unit;
                }
            }
        }
    });
    (kv, pages)
}

/// Rows from `position` on attend to what is before them, as generated rows.
fn attend(cpu: &mut Cpu, kv: &CpuKv, pages: &[u32], position: usize, q: &[f32]) -> Vec<f32> {
    let rows = q.len() / cpu.shape.q_dim();
    let span = (pages, position, rows);
    attend_all(cpu, kv, &[span], usize::MAX, InBf16::Prompts, q)
}

/// The same for some sequences: pages, the first row's position, and how many rows.
fn attend_all(
    cpu: &mut Cpu,
    kv: &CpuKv,
    sequences: &[(&[u32], usize, usize)],
    window: usize,
    in_bf16: InBf16,
    q: &[f32],
) -> Vec<f32> {
    attend_as(cpu, kv, RowKind::Decode, sequences, window, in_bf16, q)
}

/// The same for rows of any kind.
pub(super) fn attend_as(
    cpu: &mut Cpu,
    kv: &CpuKv,
    kind: RowKind,
    sequences: &[(&[u32], usize, usize)],
    window: usize,
    in_bf16: InBf16,
    q: &[f32],
) -> Vec<f32> {
    let mut step = Step::default();
    for &(table, position, rows) in sequences {
        let (first, page) = (step.tokens.len(), step.pages.len());
        step.tokens.extend(vec![0; rows]);
        step.slots.extend(vec![Step::NO_SLOT; rows]);
        let n = (position + rows).div_ceil(PAGE);
        step.pages.extend(&table[..n]);
        step.spans.push(Span {
            rows: first..first + rows,
            kind,
            position,
            pages: page..page + n,
        });
    }
    cpu.load_step(&step);
    let mut y = vec![f32::NAN; q.len()];
    let workers = Workers {
        pool: &cpu.pool,
        tier: cpu.tier,
        scratch: &cpu.scratch,
    };
    cpu.plan
        .attend(workers, in_bf16, &cpu.step.pages, kv, 0, window, q, &mut y);
    y
}

/// Against float64, at edges of pages and chunks: as exact as float32 needs to be with a 16-bit
/// cache. Rows together and alone, on one thread and three, give the same bits.
pub fn generated_rows_attend(tier: Tier) {
    let mut rng = Rng(17);
    for (heads, head_dim) in [
        ([8, 1], 64),
        ([8, 4], 16),
        ([3, 3], 42),
        ([20, 2], 80),
        ([4, 2], 96),
    ] {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
            let mut shape = shape(32, heads, head_dim, 32, 40);
            shape.n_layers = 1;
            let (group, width) = (heads[0] / heads[1], shape.q_dim());
            let len = PAGES * PAGE - 60;
            let (mut k, mut v) = (
                rng.vector(len * shape.kv_dim(), 1.0),
                rng.vector(len * shape.kv_dim(), 1.0),
            );
            // One key beside which some queries see nothing else, one large value, and a subnormal
            // number.
            k[7 * shape.kv_dim()..][..head_dim].fill(6.0);
            v[300 * shape.kv_dim()..][..2].fill(1000.0);
            v[3] = 1e-39;
            let (kv, pages) = pool(&shape, dtype, &mut k, &mut v, &mut rng);
            let mut cpus = [1, 3].map(|threads| {
                Cpu::with_tier(&shape, rope(head_dim, PAGES * PAGE), threads, 64, tier).unwrap()
            });
            // The last span has NaN after it on its page.
            let end = (len - 3, 3);
            for (position, rows) in [(0, 1), (14, 3), (30, 2), (254, 4), (256, 1), (520, 13), end] {
                let q = rng.vector(rows * width, 2.0);
                let got = attend(&mut cpus[0], &kv, &pages, position, &q);
                let what = format!("{heads:?} {head_dim} {dtype}, {rows} rows at {position}");
                assert!(
                    got == attend(&mut cpus[1], &kv, &pages, position, &q),
                    "{what}"
                );
                for (row, q) in q.chunks(width).enumerate() {
                    let alone = attend(&mut cpus[1], &kv, &pages, position + row, q);
                    assert!(
                        alone == got[row * width..][..width],
                        "{what}, row {row} alone"
                    );
                    for head in 0..heads[0] {
                        let q = &q[head * head_dim..][..head_dim];
                        let got = &got[row * width + head * head_dim..][..head_dim];
                        let of = |x: &[f32]| {
                            columns(x, 0..position + row + 1, heads[1], head / group, head_dim)
                        };
                        let what = format!("{what}, row {row}, head {head}");
                        check(q, got, &of(&k), &of(&v), [2f64.powi(-17), 2e-5], &what);
                    }
                }
            }
        }
    }
}

/// What some keys have of one of several heads.
pub(super) fn columns(
    x: &[f32],
    keys: Range<usize>,
    heads: usize,
    head: usize,
    head_dim: usize,
) -> Vec<Vec<f32>> {
    keys.map(|key| x[(key * heads + head) * head_dim..][..head_dim].to_vec())
        .collect()
}

/// What prompt rows may lose of a score and of a weight. In bfloat16, Q, K and V are rounded to
/// eight bits, and weights as `attention::weights` says; these count above and below the fraction.
pub(super) fn lost(tier: Tier) -> [f64; 2] {
    match tier.has_bf16() || tier.has_tiles() {
        true => [2.5 * 2f64.powi(-8), 2.0 * 0.0067 + 2f64.powi(-8)],
        false => [2f64.powi(-17), 2e-5],
    }
}

/// Checks the error against what may be lost: of a score, a part of its products' sizes, and a part
/// of a weight.
pub(super) fn check(
    q: &[f32],
    got: &[f32],
    k: &[Vec<f32>],
    v: &[Vec<f32>],
    [score, weight]: [f64; 2],
    what: &str,
) {
    let q64: Vec<f64> = q.iter().map(|&x| f64::from(x)).collect();
    let magnitudes: Vec<Vec<f32>> = v
        .iter()
        .map(|v| v.iter().map(|x| x.abs()).collect())
        .collect();
    let [k, v, magnitudes] = [k, v, &magnitudes[..]].map(slices);
    let want = scalar::attention(&q64, &k, &v);
    let magnitude = scalar::attention(&q64, &k, &magnitudes);
    let products = |k: &&[f32]| -> f32 { k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum() };
    let greatest = k.iter().map(products).fold(0.0, f32::max) / (q.len() as f32).sqrt();
    // The error of a score, and of a weight of the softmax.
    let part = f64::from(greatest) * score + weight;
    for (d, (got, want)) in got.iter().zip(&want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(
            error <= part * magnitude[d] + 1e-30,
            "{what}, {d}: {got} for {want}"
        );
    }
}

fn slices(x: &[Vec<f32>]) -> Vec<&[f32]> {
    x.iter().map(Vec::as_slice).collect()
}

/// Prompt rows against float64, at edges of pages, chunks and windows: as exact as bfloat16 is,
/// where the tier has it for prompts. Cut into several steps, on one thread and three, they have
/// the same bits; and generated rows that have the arithmetic of prompts have them, too.
pub fn prompt_rows_attend(tier: Tier) {
    let mut rng = Rng(29);
    for (heads, head_dim) in [([8, 1], 64), ([3, 3], 42), ([20, 2], 80), ([4, 2], 96)] {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
            let mut shape = shape(32, heads, head_dim, 32, 40);
            shape.n_layers = 1;
            let (group, width) = (heads[0] / heads[1], shape.q_dim());
            let len = PAGES * PAGE - 60;
            let mut k = rng.vector(len * shape.kv_dim(), 1.0);
            let mut v = rng.vector(len * shape.kv_dim(), 1.0);
            k[7 * shape.kv_dim()..][..head_dim].fill(6.0);
            let (kv, pages) = pool(&shape, dtype, &mut k, &mut v, &mut rng);
            let mut cpus = [1, 3].map(|threads| {
                let rope = rope(head_dim, PAGES * PAGE);
                Cpu::with_tier(&shape, rope, threads, 400, tier).unwrap()
            });
            let end = (len - 3, 3);
            let spans = [(0, 1), (0, 301), (14, 3), (250, 40), (505, 70), end];
            for ((position, rows), window) in spans.into_iter().zip([0, 0, 0, 0, 100, 300]) {
                let window = if window == 0 { usize::MAX } else { window };
                let q = rng.vector(rows * width, 2.0);
                let mut attend = |thread: usize, kind, in_bf16, rows: Range<usize>| {
                    let q = &q[rows.start * width..rows.end * width];
                    let span = (&pages[..], position + rows.start, rows.len());
                    attend_as(&mut cpus[thread], &kv, kind, &[span], window, in_bf16, q)
                };
                let what = format!("{heads:?} {head_dim} {dtype}, {rows} rows at {position}");
                let prompts = (RowKind::Prefill, InBf16::Prompts);
                let got = attend(0, prompts.0, prompts.1, 0..rows);
                assert!(got == attend(1, prompts.0, prompts.1, 0..rows), "{what}");
                for cut in [1, 2, rows / 2, rows - 1]
                    .into_iter()
                    .filter(|&cut| cut < rows)
                {
                    let mut parts = attend(1, prompts.0, prompts.1, 0..cut);
                    parts.extend(attend(0, prompts.0, prompts.1, cut..rows));
                    assert!(got == parts, "{what}, cut at {cut}");
                }
                if tier.has_bf16() && !tier.has_tiles() {
                    let generated = attend(1, RowKind::Decode, InBf16::All, 0..rows);
                    assert!(got == generated, "{what}, generated");
                }
                let lost = lost(tier);
                for row in [0, 1, rows / 3, rows - 1]
                    .into_iter()
                    .filter(|&row| row < rows)
                {
                    for head in 0..heads[0] {
                        let at = row * width + head * head_dim;
                        let (q, got) = (&q[at..][..head_dim], &got[at..][..head_dim]);
                        let end = position + row + 1;
                        let keys = end.saturating_sub(window)..end;
                        let of =
                            |x: &[f32]| columns(x, keys.clone(), heads[1], head / group, head_dim);
                        let what = format!("{what}, row {row}, head {head}");
                        check(q, got, &of(&k), &of(&v), lost, &what);
                    }
                }
            }
        }
    }
}

/// Prompt rows that see infinite values, NaN among the keys, or scores that bfloat16's arithmetic
/// has no room for are computed as in float32. Rows before such keys do not notice them.
pub fn prompt_rows_of_bad_numbers(tier: Tier) {
    let mut rng = Rng(31);
    let (heads, head_dim, rows) = ([4, 2], 64, 60);
    let mut shape = shape(32, heads, head_dim, 32, 40);
    shape.n_layers = 1;
    let (width, kv_dim) = (shape.q_dim(), shape.kv_dim());
    let len = PAGES * PAGE - 60;
    for (bad_k, bad_v, size) in [
        (f32::NAN, 0.0, 1.0),
        (f32::INFINITY, 0.0, 1.0),
        (0.0, f32::INFINITY, 1.0),
        (0.0, f32::NAN, 1.0),
        (0.0, 0.0, 1e6),
        (0.0, 0.0, f32::INFINITY),
    ] {
        let mut k = rng.vector(len * kv_dim, 1.0);
        let mut v = rng.vector(len * kv_dim, 1.0);
        (k[290 * kv_dim + 3], v[290 * kv_dim + 3]) = (bad_k, bad_v);
        let (kv, pages) = pool(&shape, Dtype::Bf16, &mut k, &mut v, &mut rng);
        let rope = rope(head_dim, PAGES * PAGE);
        let mut cpu = Cpu::with_tier(&shape, rope, 2, 64, tier).unwrap();
        let mut q = rng.vector(rows * width, 2.0);
        // From the row at position 290 on.
        q[30 * width..].iter_mut().for_each(|x| *x *= size);
        let mut attend = |kind, in_bf16, rows: Range<usize>| {
            let span = (&pages[..], 260 + rows.start, rows.len());
            let q = &q[rows.start * width..rows.end * width];
            attend_as(&mut cpu, &kv, kind, &[span], usize::MAX, in_bf16, q)
        };
        // Rows before such keys have the bits that they have without rows that see them. (24 rows
        // are as many as one block of generated rows.)
        let prompts = (RowKind::Prefill, InBf16::Prompts, 0..rows);
        let generated = [InBf16::Prompts, InBf16::All].map(|all| (RowKind::Decode, all, 10..34));
        let some = if tier.has_bf16() { 2 } else { 1 };
        for (kind, in_bf16, rows) in generated.into_iter().take(some).chain([prompts]) {
            let together = attend(kind, in_bf16, rows.clone());
            for (together, row) in together.chunks(width).zip(rows) {
                let alone = attend(kind, in_bf16, row..row + 1);
                for (a, b) in together.iter().zip(&alone) {
                    let what = format!("{bad_k} {bad_v} {size}, row {row}: {a} for {b} alone");
                    assert!(
                        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                        "{what}"
                    );
                }
            }
        }
        let mut attend = |in_bf16| attend(RowKind::Prefill, in_bf16, 0..rows);
        let (got, want) = (attend(InBf16::Prompts), attend(InBf16::Nothing));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let what = format!("{bad_k} {bad_v} {size}, {i}: {got} for {want}");
            let sees = i / width >= 30;
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            let close = (got - want).abs() < 0.1;
            assert!(sees || close, "{what}");
            assert!(same || close && (size == 1.0 || !sees), "{what}");
        }
    }
}

/// A generated row has the bits that it has where its chunks are tasks of their own, too where
/// bfloat16's arithmetic has no room for the scores of one chunk and just enough for those of
/// another, which count nearly as much.
pub fn generated_rows_of_bad_numbers(tier: Tier) {
    let mut rng = Rng(37);
    let (heads, head_dim) = ([4, 2], 64);
    let mut shape = shape(32, heads, head_dim, 32, 40);
    shape.n_layers = 1;
    let (width, kv_dim) = (shape.q_dim(), shape.kv_dim());
    let len = PAGES * PAGE - 60;
    let q = rng.vector(width, 2.0);
    let mut cpus = [1, 3].map(|threads| {
        let rope = rope(head_dim, PAGES * PAGE);
        Cpu::with_tier(&shape, rope, threads, 64, tier).unwrap()
    });
    // The greatest score that there is room for is 2^14, to base 2 (`attention::weights`).
    let greatest = 16384.0 * std::f32::consts::LN_2;
    for i in 0..40 {
        let mut k = rng.vector(len * kv_dim, 1.0);
        let mut v = rng.vector(len * kv_dim, 1.0);
        for (key, score) in [(7, i as f32 - 20.0), (300, i as f32 - 22.0)] {
            let heads = k[key * kv_dim..][..kv_dim].chunks_mut(head_dim);
            for (k, q) in heads.zip(q.chunks(2 * head_dim)) {
                let q = &q[..head_dim];
                let square: f32 = q.iter().map(|q| q * q).sum();
                let factor = (greatest + score) * (head_dim as f32).sqrt() / square;
                k.iter_mut().zip(q).for_each(|(k, q)| *k = factor * q);
            }
        }
        let (kv, pages) = pool(&shape, Dtype::Bf16, &mut k, &mut v, &mut rng);
        let all = tier.has_bf16().then_some(InBf16::All);
        for in_bf16 in [InBf16::Prompts].into_iter().chain(all) {
            let [whole, cut] = cpus.each_mut().map(|cpu| {
                let span = (&pages[..], 570, 1);
                attend_all(cpu, &kv, &[span], usize::MAX, in_bf16, &q)
            });
            assert!(whole == cut, "step {i}");
            assert!(whole.iter().all(|y| y.is_finite()), "step {i}");
        }
    }
}

/// Generated rows of sequences that begin with the same pages have the bits that they have alone,
/// with and without a window, whatever lies in the cache.
pub fn shared_pages_change_nothing(tier: Tier) {
    let mut rng = Rng(23);
    for (heads, head_dim) in [([8, 8], 48), ([16, 2], 64), ([6, 2], 40)] {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8] {
            let mut shape = shape(32, heads, head_dim, 32, 40);
            shape.n_layers = 1;
            let width = shape.q_dim();
            let len = PAGES * PAGE;
            let (mut k, mut v) = (
                rng.vector(len * shape.kv_dim(), 1.0),
                rng.vector(len * shape.kv_dim(), 1.0),
            );
            // What only the second half of the first chunk has.
            v[200 * shape.kv_dim()] = f32::INFINITY;
            let (kv, pages) = pool(&shape, dtype, &mut k, &mut v, &mut rng);
            // The pages of a sequence: so many of the first, then some of the others.
            let table = |first: usize, then: usize| -> Vec<u32> {
                let rest = pages[first..].iter().cycle().skip(then);
                pages[..first]
                    .iter()
                    .chain(rest)
                    .take(PAGES)
                    .copied()
                    .collect()
            };
            // Pages in common, position of the first row, rows.
            let of = [
                (32, 520, 1),
                (0, 300, 1),
                (16, 256, 1),
                (32, 511, 1),
                (32, 600, 3),
                (32, 512, 2),
                (0, 5, 1),
                (24, 510, 1),
                (32, 520, 1),
                (32, 510, 1),
            ];
            let spans: Vec<_> = of
                .iter()
                .enumerate()
                .map(|(i, &(first, position, rows))| {
                    let q = rng.vector(rows * width, 2.0);
                    (table(first, i), position, q)
                })
                .collect();
            let total: usize = of.iter().map(|(_, _, rows)| rows).sum();
            let new = |threads| {
                let rope = rope(head_dim, PAGES * PAGE);
                Cpu::with_tier(&shape, rope, threads, 64, tier).unwrap()
            };
            let mut cpus = [new(1), new(2)];
            let windows = [usize::MAX, 700, 530, 100].map(|window| (window, InBf16::Prompts));
            let all = [usize::MAX, 530].map(|window| (window, InBf16::All));
            let all = all.into_iter().filter(|_| tier.has_bf16());
            for (window, in_bf16) in windows.into_iter().chain(all) {
                let mut alone = Vec::new();
                for (table, position, q) in &spans {
                    let span = (&table[..], *position, q.len() / width);
                    alone.extend(attend_all(&mut cpus[0], &kv, &[span], window, in_bf16, q));
                }
                let all: Vec<_> = spans
                    .iter()
                    .map(|(table, position, q)| (&table[..], *position, q.len() / width))
                    .collect();
                let q: Vec<f32> = spans.iter().flat_map(|(_, _, q)| q.clone()).collect();
                for cpu in &mut cpus {
                    let got = attend_all(cpu, &kv, &all, window, in_bf16, &q);
                    assert_eq!(got.len(), total * width);
                    for (i, (a, b)) in got.iter().zip(&alone).enumerate() {
                        let what = || format!("{heads:?} {head_dim} {dtype}, window {window}, {i}");
                        assert!(
                            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                            "{}: {a} {b}",
                            what()
                        );
                    }
                    assert!(cpu.plan.shares(), "no pages were shared");
                }
            }
        }
    }
}
