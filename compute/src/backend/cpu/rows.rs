//! The activations of a product: normalised, and packed so that rows that share a register tile lie
//! side by side.

use super::buf::Mem;
use super::detect::Tier;
use super::pool::{Grid, Pool, Rect};
use super::simd::{Kernel, LANES, Simd};
use crate::Result;

/// The largest number of rows side by side, on any tier.
pub(super) const MAX_SIDE: usize = 8;

/// The number of columns in a block. Panels have a block of columns for all groups of rows, then
/// the next block. If each group had all its columns together, blocks that are used together would
/// often be a power of two apart, and would compete for the same lines of L2. (That took the tile
/// kernel from 84 to 68 % of the peak.)
pub(super) const K_BLOCK: usize = 256;

/// Rows as `[k / 256][group][k % 256][side]`. The last group is padded to `side` rows, and k to an
/// even number, with zeros.
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

/// Room for the panels of up to `rows` rows, in numbers.
pub(super) fn panels_len(rows: usize, cols: usize) -> usize {
    let padded = |n: usize, to: usize| n.div_ceil(to).saturating_mul(to);
    // If a tier's side does not divide MAX_SIDE, there are up to MAX_SIDE - 1 more rows.
    padded(rows.saturating_add(MAX_SIDE), MAX_SIDE).saturating_mul(padded(cols, K_BLOCK))
}

/// Parameters of RMSNorm (Zhang & Sennrich 2019; Meta's `RMSNorm` in llama/model.py).
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
}

impl Panels {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let data = Mem::zeroed("packed activations", panels_len(rows, cols))?;
        Ok(Self {
            data,
            side: 1,
            rows: 0,
            cols: 0,
        })
    }

    /// Fills the panels with the rows `row(0) .. row(rows - 1)`, all of one length, which are
    /// normalised if `norm` is given.
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
        let groups = rows.div_ceil(side);
        let len = K_BLOCK * side;
        let all = &mut self.data[..groups * len * self.cols.div_ceil(K_BLOCK)];
        let small = all.len() < 1 << 15;
        let parts = Grid::columns(all, groups * len, len);
        let work = |group: usize, _: usize, part: Rect<'_, f32>| {
            let mut from: [&[f32]; MAX_SIDE] = [&[]; MAX_SIDE];
            let n = side.min(rows - group * side);
            for (i, from) in from[..n].iter_mut().enumerate() {
                *from = row(group * side + i);
            }
            tier.run(Fill {
                from: &from[..n],
                norm,
                side,
                to: part,
            });
        };
        if small {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }

    /// Number of groups of rows.
    pub fn groups(&self) -> usize {
        self.rows.div_ceil(self.side)
    }

    /// Columns `K_BLOCK * block ..` of a group, `[k][side]`.
    #[inline(always)]
    pub fn block(&self, group: usize, block: usize) -> &[f32] {
        let len = K_BLOCK.min(self.cols - block * K_BLOCK) * self.side;
        &self.data[(block * self.groups() + group) * K_BLOCK * self.side..][..len]
    }
}

struct Fill<'a> {
    from: &'a [&'a [f32]],
    norm: Option<Norm<'a>>,
    side: usize,
    /// A block of columns in each row.
    to: Rect<'a, f32>,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            from,
            norm,
            side,
            mut to,
        } = self;
        let width = from[0].len();
        let mut scales = [1.0; MAX_SIDE];
        if let Some(norm) = norm {
            for (scale, from) in scales.iter_mut().zip(from) {
                *scale = inverse_rms(s, from, norm.eps);
            }
        }
        for block in 0..to.rows() {
            let columns = block * K_BLOCK..width.min((block + 1) * K_BLOCK);
            let to = &mut to.row(block)[..columns.len().next_multiple_of(2) * side];
            if from.len() < side || columns.len() % 2 == 1 {
                to.fill(0.0);
            }
            for (r, from) in from.iter().enumerate() {
                let (from, to) = (&from[columns.clone()], to[r..].iter_mut().step_by(side));
                match norm {
                    None => from.iter().zip(to).for_each(|(x, y)| *y = *x),
                    Some(norm) => {
                        let weight = &norm.weight[columns.clone()];
                        for ((x, w), y) in from.iter().zip(weight).zip(to) {
                            *y = x * scales[r] * w;
                        }
                    }
                }
            }
        }
    }
}

/// RMSNorm of vectors that are as wide as its weight, in their place.
pub(super) struct Normalise<'a> {
    pub vectors: &'a mut [f32],
    pub norm: Norm<'a>,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { weight, eps } = self.norm;
        for vector in self.vectors.chunks_exact_mut(weight.len()) {
            let scale = inverse_rms(s, vector, eps);
            for (x, w) in vector.iter_mut().zip(weight) {
                *x = *x * scale * w;
            }
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`, summed in an order that depends on `x.len()` only.
#[inline(always)]
pub(super) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
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
