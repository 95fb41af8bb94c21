//! Attention of generated rows over a cache of planted numbers, on every tier.

use super::*;
use crate::backend::cpu::attention::InBf16;
use element::{Element, with_cache_element};

const PAGES: usize = 40;

/// A pool of one layer whose pages, in some order, hold `k` and `v`, `[position][kv
/// head][head_dim]`, with NaN after them. Returns the pool and the order; `k` and `v` become what
/// they are after rounding.
fn pool(
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
    attend_all(
        cpu,
        kv,
        &[(pages, position, rows)],
        usize::MAX,
        InBf16::Prompts,
        q,
    )
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
    let mut step = Step::default();
    for &(table, position, rows) in sequences {
        let (first, page) = (step.tokens.len(), step.pages.len());
        step.tokens.extend(vec![0; rows]);
        step.slots.extend(vec![Step::NO_SLOT; rows]);
        let n = (position + rows).div_ceil(PAGE);
        step.pages.extend(&table[..n]);
        step.spans.push(Span {
            rows: first..first + rows,
            kind: RowKind::Decode,
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
                        let at = |x: &'_ [f32], key: usize| {
                            let at = (key * heads[1] + head / group) * head_dim;
                            x[at..at + head_dim].to_vec()
                        };
                        let keys = || 0..=position + row;
                        let k: Vec<Vec<f32>> = keys().map(|key| at(&k, key)).collect();
                        let v: Vec<Vec<f32>> = keys().map(|key| at(&v, key)).collect();
                        check(q, got, &k, &v, &format!("{what}, row {row}, head {head}"));
                    }
                }
            }
        }
    }
}

/// Checks the error against what q and weights of sixteen bits allow.
fn check(q: &[f32], got: &[f32], k: &[Vec<f32>], v: &[Vec<f32>], what: &str) {
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
    let part = f64::from(greatest) * 2f64.powi(-17) + 2e-5;
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
