//! Matrix products: `y = W x` for the rows of a step, with what follows fused into the write-out.
//!
//! Every output is one chain of multiply-adds over ascending k from zero, so neither the number of
//! rows, nor how k, rows and strips are cut, nor the number of threads changes a bit of it.
//!
//! Few rows (decode) are bound by memory: a thread reads several strips at once, each a stream of its
//! own, and prefetches 1 KiB ahead, because one stream alone reaches half of a core's bandwidth.
//! Many rows (prefill) are bound by arithmetic: a block of k of a few strips becomes f32 once, stays
//! in the near caches, and all rows pass over it; partial sums wait in scratch between blocks of k.

use super::blocks::with_blocks;
use super::detect::Tier;
use super::element::{Weights, with_element};
use super::exp::silu;
use super::mat::CpuMat;
use super::pool::{Grid, Rect};
use super::rows::{K_BLOCK, Panels};
use super::simd::{Kernel, LANES, Simd};
use super::{Workers, lock};

/// What is done with the products.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Finish {
    /// `out = y + bias`.
    Store,
    /// `out += y + bias`.
    Add,
    /// `out = silu(first part) * second part`.
    SwiGlu,
}

/// Pairs of k in a block when there are many rows.
const K_PAIRS: usize = K_BLOCK / 2;
/// Bytes between loads and their prefetches when there are few, on all strips side by side together.
const AHEAD: usize = 8192;
/// Strips of output that one task computes.
pub(super) const TASK_STRIPS: usize = 8;
/// Most groups of rows that each take all of k at once.
const FEW_GROUPS: usize = 4;
/// Rows that pass over a block of k before the next block: their activations stay in L2.
const BAND_ROWS: usize = 512;
/// Most strips side by side in a register tile.
const MAX_WIDE: usize = 8;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    let rows = max_rows.min(BAND_ROWS) + super::rows::MAX_SIDE;
    let strips = 2 * TASK_STRIPS + MAX_WIDE;
    rows * strips * LANES + 2 * K_PAIRS * MAX_WIDE * LANES
}

/// How many rows lie side by side in the panels for a product of `rows` rows. Quantised weights always
/// go through [`Task::many`].
pub(super) fn side(tier: Tier, mat: &CpuMat, rows: usize) -> usize {
    let (few, many) = match tier.registers() {
        32 => (8, 8),
        8 => (6, 6),
        _ => (3, 3),
    };
    if rows <= few && mat.dtype.is_float() {
        rows.max(1)
    } else {
        many
    }
}

/// `mat * panels`, row `i` into row `to[i]` of `out`, put together as `finish` says; rows of `out` are
/// `stride` long.
pub(super) fn product(
    workers: Workers<'_>,
    mat: &CpuMat,
    panels: &Panels,
    to: &[u32],
    finish: Finish,
    out: &mut [f32],
    stride: usize,
) {
    let Workers {
        pool,
        tier,
        scratch,
    } = workers;
    debug_assert_eq!(panels.cols, mat.cols.next_multiple_of(2));
    debug_assert_eq!(panels.rows, to.len());
    let strips = stride.div_ceil(LANES);
    let task_strips = if finish == Finish::SwiGlu {
        TASK_STRIPS / 2
    } else {
        TASK_STRIPS
    };
    let second = (finish == Finish::SwiGlu).then(|| mat.parts[1].first);
    pool.run(
        Grid::columns(out, stride, task_strips * LANES),
        |task, thread, out| {
            let mut scratch = lock(scratch, thread);
            let first = task * task_strips;
            let count = task_strips.min(strips - first);
            macro_rules! run {
                ($W:ty) => {
                    tier.run(Task::<$W> {
                        weights: Strips::new(mat, first, count, second),
                        panels,
                        bias: &mat.bias,
                        finish,
                        scratch: &mut scratch,
                        to,
                        out,
                    })
                };
            }
            match mat.dtype.quant() {
                None => with_element!(mat.dtype, E => run!(E)),
                Some(quant) => with_blocks!(quant, Q => run!(Q)),
            }
        },
    );
}

/// The strips of weights that a task multiplies with: `count` from `first` on, and in SwiGLU as many
/// of the second part.
pub(super) struct Strips<'a, W: Weights> {
    bits: &'a [W::Bits],
    len: usize,
    pub first: usize,
    pub count: usize,
    /// First strip of the second part.
    pub second: Option<usize>,
}

impl<'a, W: Weights> Strips<'a, W> {
    pub fn new(mat: &'a CpuMat, first: usize, count: usize, second: Option<usize>) -> Self {
        Self {
            bits: W::array(&mat.data),
            len: mat.strip_len(),
            first,
            count,
            second,
        }
    }

    pub fn total(&self) -> usize {
        if self.second.is_some() {
            2 * self.count
        } else {
            self.count
        }
    }

    /// Strip `i`; the last strip again behind the end, so that tiles are always whole.
    #[inline(always)]
    pub fn get(&self, i: usize) -> &'a [W::Bits] {
        let i = i.min(self.total() - 1);
        let strip = match self.second {
            Some(second) if i >= self.count => second + self.first + i - self.count,
            _ => self.first + i,
        };
        &self.bits[strip * self.len..][..self.len]
    }

    /// Block `block` of [`K_BLOCK`] columns of a strip; less at its end, nothing behind it.
    #[inline(always)]
    pub fn block(strip: &'a [W::Bits], block: usize) -> &'a [W::Bits] {
        &strip[strip.len().min(block * W::BLOCK)..strip.len().min((block + 1) * W::BLOCK)]
    }
}

impl Finish {
    /// `out` of one strip of a row, from its sum and, in SwiGLU, that of the second part.
    #[inline(always)]
    pub fn write<S: Simd>(self, s: S, out: &mut [f32], y: S::F, second: S::F) {
        let y = match self {
            Finish::Store => y,
            Finish::Add => s.add(s.load_partial(out), y),
            Finish::SwiGlu => s.mul(silu(s, y), second),
        };
        s.store_partial(y, out);
    }
}

struct Task<'a, W: Weights> {
    weights: Strips<'a, W>,
    panels: &'a Panels,
    bias: &'a [f32],
    finish: Finish,
    scratch: &'a mut [f32],
    to: &'a [u32],
    out: Rect<'a, f32>,
}

impl<W: Weights> Kernel for Task<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let many = !W::DIRECT || self.panels.groups() > FEW_GROUPS;
        // (rows side by side, strips side by side): as many accumulators as registers allow.
        match (S::REGISTERS, self.panels.side, many) {
            (32, 8, true) => self.many::<S, 8, 3>(s),
            (32, 1, _) => self.few::<S, 1, 8>(s),
            (32, 2, _) => self.few::<S, 2, 8>(s),
            (32, 3, _) => self.few::<S, 3, 4>(s),
            (32, 4, _) => self.few::<S, 4, 4>(s),
            (32, 5, _) => self.few::<S, 5, 4>(s),
            (32, 6, _) => self.few::<S, 6, 4>(s),
            (32, 7, _) => self.few::<S, 7, 2>(s),
            (32, 8, _) => self.few::<S, 8, 2>(s),
            (8, 6, true) => self.many::<S, 6, 1>(s),
            (8, 1, _) => self.few::<S, 1, 4>(s),
            (8, 2, _) => self.few::<S, 2, 2>(s),
            (8, 3, _) => self.few::<S, 3, 2>(s),
            (8, 4, _) => self.few::<S, 4, 1>(s),
            (8, 5, _) => self.few::<S, 5, 1>(s),
            (8, 6, _) => self.few::<S, 6, 1>(s),
            (4, 3, true) => self.many::<S, 3, 1>(s),
            (4, 1, _) => self.few::<S, 1, 2>(s),
            (4, 2, _) => self.few::<S, 2, 1>(s),
            (4, 3, _) => self.few::<S, 3, 1>(s),
            (registers, side, _) => unreachable!("{side} rows with {registers} registers"),
        }
    }
}

impl<W: Weights> Task<'_, E> {
    /// A few groups of rows, all of k at once for each, weights straight from memory: after the first
    /// group they are in L2.
    #[inline(always)]
    fn few<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let groups = self.panels.groups();
        let pairs = self.panels.cols / 2;
        let tiles = self.weights.total().div_ceil(WIDE);
        let sums = &mut self.scratch[2 * K_PAIRS * MAX_WIDE * LANES..];
        let sums = sums.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0;
        let sums = sums.as_chunks_mut::<WIDE>().0;
        for tile in 0..tiles {
            let mut w: [&[[W::Bits; 2 * LANES]]; WIDE] = [&[]; WIDE];
            for (b, w) in w.iter_mut().enumerate() {
                *w = &W::pairs(self.weights.get(tile * WIDE + b))[..pairs];
            }
            for group in 0..groups {
                let mut acc = [[s.splat(0.0); SIDE]; WIDE];
                for first in (0..pairs).step_by(K_PAIRS) {
                    let x = self.panels.block(group, first / K_PAIRS);
                    let x = x.as_chunks::<SIDE>().0.as_chunks::<2>().0;
                    let mut v: [&[[W::Bits; 2 * LANES]]; WIDE] = [&[]; WIDE];
                    for (w, v) in w.iter().zip(&mut v) {
                        *v = &w[first..first + x.len()];
                    }
                    for k in 0..x.len() {
                        let [x0, x1] = &x[k];
                        for b in 0..WIDE {
                            s.prefetch(&v[b][k], AHEAD / WIDE);
                            let [w0, w1] = W::widen(s, &v[b][k]);
                            for r in 0..SIDE {
                                acc[b][r] = s.fma(w0, s.splat(x0[r]), acc[b][r]);
                            }
                            for r in 0..SIDE {
                                acc[b][r] = s.fma(w1, s.splat(x1[r]), acc[b][r]);
                            }
                        }
                    }
                }
                let sums = &mut sums[tile * groups + group];
                for b in 0..WIDE {
                    for r in 0..SIDE {
                        s.store(acc[b][r], &mut sums[b][r]);
                    }
                }
            }
        }
        self.finish::<S, SIDE, WIDE>(s, 0, groups);
    }

    /// Many groups of rows: block of k by block of k.
    #[inline(always)]
    fn many<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let pairs = self.panels.cols / 2;
        let groups = self.panels.groups();
        let band = BAND_ROWS / SIDE;
        let tiles = self.weights.total().div_ceil(WIDE);
        for first in (0..groups).step_by(band) {
            let count = band.min(groups - first);
            let (block, sums) = self.scratch.split_at_mut(2 * K_PAIRS * MAX_WIDE * LANES);
            let block = block.as_chunks_mut::<LANES>().0.as_chunks_mut::<WIDE>().0;
            let sums = sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<SIDE>().0;
            let sums = sums.as_chunks_mut::<WIDE>().0;
            for k in (0..pairs).step_by(K_PAIRS) {
                let n = K_PAIRS.min(pairs - k);
                let block = &mut block.as_chunks_mut::<2>().0[..n];
                for tile in 0..tiles {
                    for b in 0..WIDE {
                        let strip = self.weights.get(tile * WIDE + b);
                        W::unpack(
                            s,
                            Strips::<W>::block(strip, k / K_PAIRS),
                            |pair, [w0, w1]| {
                                // Quantised strips are padded to more columns.
                                if let Some(to) = block.get_mut(pair) {
                                    s.store(w0, &mut to[0][b]);
                                    s.store(w1, &mut to[1][b]);
                                }
                            },
                        );
                    }
                    for group in 0..count {
                        let x = self.panels.block(first + group, k / K_PAIRS);
                        let x = x.as_chunks::<SIDE>().0;
                        let sums = &mut sums[tile * count + group];
                        multiply(s, block.as_flattened(), x, sums, k == 0);
                    }
                }
            }
            self.finish::<S, SIDE, WIDE>(s, first, count);
        }
    }

    /// Write out the sums, `[tile][group][wide][side][16]`, of the `count` groups from `first` on.
    #[inline(always)]
    fn finish<S: Simd, const SIDE: usize, const WIDE: usize>(
        &mut self,
        s: S,
        first: usize,
        count: usize,
    ) {
        let Self {
            weights,
            panels,
            bias,
            finish,
            scratch,
            to,
            out,
            ..
        } = self;
        let sums = scratch[2 * K_PAIRS * MAX_WIDE * LANES..]
            .as_chunks::<LANES>()
            .0;
        let rows = (first * SIDE)..((first + count) * SIDE).min(panels.rows);
        for row in rows {
            let (group, r) = ((row / SIDE) - first, row % SIDE);
            let get = |i: usize, strip: usize| {
                let at = ((i / WIDE * count + group) * WIDE + i % WIDE) * SIDE + r;
                let y = s.load(&sums[at]);
                match bias.as_chunks::<LANES>().0.get(strip) {
                    Some(b) => s.add(y, s.load(b)),
                    None => y,
                }
            };
            for (i, out) in out.row(to[row] as usize).chunks_mut(LANES).enumerate() {
                let strip = weights.first + i;
                let y = get(i, strip);
                let other = match weights.second {
                    Some(second) => get(weights.count + i, second + strip),
                    None => y,
                };
                finish.write(s, out, y, other);
            }
        }
    }
}

/// `sums += w x`, or `sums = w x` at first: a register tile of WIDE strips by SIDE rows.
#[inline(always)]
fn multiply<S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: &[[[f32; LANES]; WIDE]],
    x: &[[f32; SIDE]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
    first: bool,
) {
    let mut acc = [[s.splat(0.0); SIDE]; WIDE];
    if !first {
        for b in 0..WIDE {
            for r in 0..SIDE {
                acc[b][r] = s.load(&sums[b][r]);
            }
        }
    }
    for (w, x) in w.iter().zip(x) {
        let mut v = [s.splat(0.0); WIDE];
        for b in 0..WIDE {
            v[b] = s.load(&w[b]);
        }
        for r in 0..SIDE {
            let x = s.splat(x[r]);
            for b in 0..WIDE {
                acc[b][r] = s.fma(v[b], x, acc[b][r]);
            }
        }
    }
    for b in 0..WIDE {
        for r in 0..SIDE {
            s.store(acc[b][r], &mut sums[b][r]);
        }
    }
}
