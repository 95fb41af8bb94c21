//! Adapters: `y += B (scale * A x)` for the rows that have one.
//!
//! Before a product, [`shrink`] computes `scale * A x` for every such row: a few numbers. When the
//! product writes its sums, [`OfRow::add`] first adds B times these numbers. Both use the row's own
//! adapter, and add in an order that depends on the adapter's sizes only. So the other rows of a
//! step do not change a bit. A step without adapters does none of this.

use super::Workers;
use super::element::{Bf16, Element, F32};
use super::mat::{CpuMat, Run};
use super::pool::{Grid, Rect};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::step::Loaded;
use crate::backend::adapter::{LowRank, MAX_PARTS, MAX_RANK, Numbers};

/// The largest number of numbers between A and B in a row.
pub(super) const WIDTH: usize = MAX_PARTS * MAX_RANK;

/// The number of a matrix among the matrices of adapters, and the beginning of each of its parts.
#[derive(Clone, Copy)]
pub(super) struct AdapterParts {
    index: usize,
    /// The first strip of each part.
    firsts: [usize; MAX_PARTS],
}

impl AdapterParts {
    /// `None` for a matrix to which adapters add nothing.
    pub fn of(mat: &CpuMat) -> Option<AdapterParts> {
        let index = mat.adapter_index?;
        let mut firsts = [usize::MAX; MAX_PARTS];
        for (to, (_, first)) in firsts.iter_mut().zip(mat.parts()) {
            *to = first;
        }
        Some(AdapterParts { index, firsts })
    }
}

/// The adapters of a step, for the product of a run of weights.
#[derive(Clone, Copy)]
pub(super) struct Low<'a> {
    step: &'a Loaded,
    adapted: AdapterParts,
    /// The number of strips of the matrix before the run.
    before: usize,
    /// `scale * A x`, `[rows of the step, WIDTH]`. The numbers of part `i` begin at `i * MAX_RANK`.
    thin: &'a [f32],
}

/// The adapter of one row, for the same product.
#[derive(Clone, Copy)]
pub(super) struct OfRow<'a> {
    matrix: &'a [Option<LowRank>; MAX_PARTS],
    adapted: AdapterParts,
    before: usize,
    thin: &'a [f32],
}

impl<'a> Low<'a> {
    /// After [`shrink`] has filled `thin`.
    pub fn new(step: &'a Loaded, adapted: AdapterParts, run: &Run, thin: &'a [f32]) -> Low<'a> {
        Low {
            step,
            adapted,
            before: run.first,
            thin,
        }
    }

    /// The adapter of a row of the step; `None` if the row has none.
    #[inline(always)]
    pub fn of_row(&self, row: u32) -> Option<OfRow<'a>> {
        let row = row as usize;
        Some(OfRow {
            matrix: &self.step.adapter(row)?.matrices[self.adapted.index],
            adapted: self.adapted,
            before: self.before,
            thin: &self.thin[row * WIDTH..][..WIDTH],
        })
    }
}

impl OfRow<'_> {
    /// Adds the adapter's part to `y`, the sixteen sums of a strip of the run.
    #[inline(always)]
    pub fn add<S: Simd>(&self, s: S, strip: usize, y: S::F) -> S::F {
        let (strip, firsts) = (self.before + strip, &self.adapted.firsts);
        let part = firsts.iter().rposition(|&first| first <= strip);
        let part = part.expect("the first part begins at 0");
        let Some(low) = &self.matrix[part] else {
            return y;
        };
        let thin = &self.thin[part * MAX_RANK..][..low.rank];
        let at = (strip - firsts[part]) * low.rank * LANES;
        match &low.b {
            Numbers::F32(b) => expand::<F32, S>(s, &b[at..], thin, y),
            Numbers::Bf16(b) => expand::<Bf16, S>(s, &b[at..], thin, y),
        }
    }
}

#[inline(always)]
fn expand<E: Element, S: Simd>(s: S, b: &[E::Bits], thin: &[f32], mut y: S::F) -> S::F {
    for (&x, b) in thin.iter().zip(b.as_chunks::<LANES>().0) {
        y = s.fma(s.splat(x), E::widen(s, b), y);
    }
    y
}

/// Computes `scale * A x` for the step's rows that have an adapter. `row(i)` is the input of row
/// `i`; it is normalised if `norm` is given.
pub(super) fn shrink<'r>(
    workers: Workers<'_>,
    step: &Loaded,
    adapted: AdapterParts,
    row: impl Fn(usize) -> &'r [f32] + Sync,
    norm: Option<Norm<'_>>,
    thin: &mut [f32],
) {
    let Workers { pool, tier, .. } = workers;
    let rows = step.positions.len();
    let work = |i: usize, _: usize, mut thin: Rect<'_, f32>| {
        let Some(adapter) = step.adapter(i) else {
            return;
        };
        for (part, low) in adapter.matrices[adapted.index].iter().enumerate() {
            if let Some(low) = low {
                tier.run(Shrink {
                    low,
                    x: row(i),
                    norm,
                    to: &mut thin.row(0)[part * MAX_RANK..][..low.rank],
                });
            }
        }
    };
    let grid = Grid::pieces(&mut thin[..rows * WIDTH], WIDTH);
    if rows == 1 {
        pool.here(grid, work)
    } else {
        pool.run(grid, work)
    }
}

struct Shrink<'a> {
    low: &'a LowRank,
    x: &'a [f32],
    norm: Option<Norm<'a>>,
    to: &'a mut [f32],
}

/// Rows of A that pass over the input together.
const SIDE: usize = 4;

impl Kernel for Shrink<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match &self.low.a {
            Numbers::F32(a) => self.rows::<F32, S>(s, a),
            Numbers::Bf16(a) => self.rows::<Bf16, S>(s, a),
        }
    }
}

impl Shrink<'_> {
    #[inline(always)]
    fn rows<E: Element, S: Simd>(self, s: S, a: &[E::Bits]) {
        let inverse = match self.norm {
            Some(norm) => inverse_rms(s, self.x, norm.eps),
            None => 1.0,
        };
        let inverse = s.splat(inverse);
        let width = self.x.len().next_multiple_of(LANES);
        let rows = a.chunks_exact(width * SIDE);
        let last = rows.remainder();
        let mut to = self.to.chunks_exact_mut(SIDE);
        for (a, to) in rows.zip(&mut to) {
            let mut sums = [s.splat(0.0); SIDE];
            for (k, x) in self.x.chunks(LANES).enumerate() {
                let x = normalised(s, x, k, inverse, self.norm);
                for (j, sum) in sums.iter_mut().enumerate() {
                    let a = &a[j * width..].as_chunks::<LANES>().0[k];
                    *sum = s.fma(x, E::widen(s, a), *sum);
                }
            }
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = s.sum(sum) * self.low.scale;
            }
        }
        for (a, to) in last.chunks_exact(width).zip(to.into_remainder()) {
            let mut sum = s.splat(0.0);
            for (k, x) in self.x.chunks(LANES).enumerate() {
                let x = normalised(s, x, k, inverse, self.norm);
                sum = s.fma(x, E::widen(s, &a.as_chunks::<LANES>().0[k]), sum);
            }
            *to = s.sum(sum) * self.low.scale;
        }
    }
}

/// Sixteen numbers of the input, from number `k * LANES` on.
#[inline(always)]
fn normalised<S: Simd>(s: S, x: &[f32], k: usize, inverse: S::F, norm: Option<Norm<'_>>) -> S::F {
    let v = s.load_partial(x);
    match norm {
        None => v,
        Some(norm) => {
            let weight = &norm.weight[k * LANES..][..x.len()];
            s.mul(s.mul(v, inverse), s.load_partial(weight))
        }
    }
}
