//! Activations on their way into a product: normalised, and packed so that the rows which share a
//! register tile lie side by side.

use super::buf::Mem;
use super::detect::Tier;
use super::pool::{Grid, Pool};
use super::simd::{Kernel, LANES, Simd};
use crate::Result;

/// Most rows side by side, on any tier.
pub(super) const MAX_SIDE: usize = 8;

/// Rows `[group][k][side]`: k padded to an even number and the last group to `side`, with zeros.
#[derive(Debug)]
pub(super) struct Panels {
    data: Mem<f32>,
    /// Rows side by side.
    pub side: usize,
    /// Rows.
    pub rows: usize,
    /// Columns, padded.
    pub cols: usize,
}

/// Numbers in panels of `rows` rows.
pub(super) fn panels_len(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(MAX_SIDE)
        .saturating_mul(cols.next_multiple_of(2))
}

/// RMSNorm's parameters (Zhang & Sennrich 2019; Meta's `RMSNorm` in llama/model.py).
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

impl Panels {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        // Up to MAX_SIDE - 1 more rows where a tier's side does not divide MAX_SIDE.
        let len = panels_len(rows.saturating_add(MAX_SIDE), cols);
        let data = Mem::zeroed("packed activations", len)?;
        Ok(Self {
            data,
            side: 1,
            rows: 0,
            cols: 0,
        })
    }

    /// Fill with the rows `row(0) .. row(rows - 1)` (all equally long), normalised if asked.
    pub fn fill<'r>(
        &mut self,
        pool: &Pool,
        tier: Tier,
        side: usize,
        rows: usize,
        row: impl Fn(usize) -> &'r [f32] + Sync,
        norm: Option<Norm<'_>>,
    ) {
        let width = if rows == 0 { 0 } else { row(0).len() };
        self.side = side;
        self.rows = rows;
        self.cols = width.next_multiple_of(2);
        let len = self.cols * side;
        let all = &mut self.data[..rows.div_ceil(side) * len];
        let small = all.len() < 1 << 15;
        let work = |group: usize, _: usize, mut part: super::pool::Rect<'_, f32>| {
            let mut from: [&[f32]; MAX_SIDE] = [&[]; MAX_SIDE];
            let n = side.min(rows - group * side);
            for (i, from) in from[..n].iter_mut().enumerate() {
                *from = row(group * side + i);
            }
            tier.run(Fill {
                from: &from[..n],
                norm,
                side,
                to: part.row(0),
            });
        };
        let parts = Grid::pieces(all, len.max(1));
        if small {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }

    /// Groups of rows.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(self.side)
    }

    /// All groups, each `cols * side` numbers.
    pub fn data(&self) -> &[f32] {
        &self.data[..self.groups() * self.cols * self.side]
    }
}

struct Fill<'a> {
    from: &'a [&'a [f32]],
    norm: Option<Norm<'a>>,
    side: usize,
    to: &'a mut [f32],
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            from,
            norm,
            side,
            to,
        } = self;
        let width = from[0].len();
        if from.len() < side || width % 2 == 1 {
            to.fill(0.0);
        }
        for (r, from) in from.iter().enumerate() {
            let (scale, weight) = match norm {
                Some(norm) => (inverse_rms(s, from, norm.eps), norm.weight),
                None => (1.0, [].as_slice()),
            };
            if weight.is_empty() {
                for (x, y) in from.iter().zip(to[r..].iter_mut().step_by(side)) {
                    *y = *x;
                }
            } else if side == 1 {
                for ((x, w), y) in from.iter().zip(weight).zip(to.iter_mut()) {
                    *y = x * scale * w;
                }
            } else {
                for ((x, w), y) in from
                    .iter()
                    .zip(weight)
                    .zip(to[r..].iter_mut().step_by(side))
                {
                    *y = x * scale * w;
                }
            }
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`, summed in an order that `x.len()` alone decides.
#[inline(always)]
fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (quads, rest) = x.as_chunks::<{ 4 * LANES }>();
    for quad in quads {
        let vectors = quad.as_chunks::<LANES>().0;
        for i in 0..4 {
            let v = s.load(&vectors[i]);
            sums[i] = s.fma(v, v, sums[i]);
        }
    }
    for (i, chunk) in rest.chunks(LANES).enumerate() {
        let v = s.load_partial(chunk);
        sums[i] = s.fma(v, v, sums[i]);
    }
    let sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    1.0 / (sum / x.len() as f32 + eps).sqrt()
}
