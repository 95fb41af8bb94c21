//! Products of generated rows with quantised weights: int16 activations, sums in int32 for each group of
//! 32 k and in float32 over the groups.
//!
//! A group of activations has a scale: its greatest magnitude over 32767. So an activation is off by at
//! most 1.6e-5 of the greatest in its group, and the sum of a group is exact. Every output is one chain
//! of multiply-adds over ascending groups from zero, so neither the number of rows, nor how rows and
//! strips are cut, nor the number of threads changes a bit of it; as integers are exact, AVX2 and AVX-512
//! agree too.
//!
//! Bound by memory: a thread reads several strips at once, as [`super::product`] does for few rows.

use super::blocks::{Blocks, GROUP_K, PADDED_K, WORDS, pairs, with_blocks};
use super::buf::Mem;
use super::detect::Tier;
use super::element::Weights;
use super::mat::CpuMat;
use super::pool::{Grid, Pool, Rect};
use super::product::{Finish, Strips, TASK_STRIPS};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::{Workers, lock};
use crate::Result;
use crate::quant::Quant;

/// Most rows side by side.
const MAX_SIDE: usize = 8;
/// Most strips side by side.
const MAX_WIDE: usize = 8;
/// Rows that a task takes at a time: their sums stay in scratch.
const BAND: usize = 64;
/// Bytes between loads and their prefetches, on all strips side by side together.
const AHEAD: usize = 8192;

/// Numbers of scratch that a thread needs.
pub(super) fn scratch_len() -> usize {
    (2 * TASK_STRIPS + MAX_WIDE) * BAND * LANES
}

/// Groups of k, padding included.
fn groups(cols: usize) -> usize {
    cols.div_ceil(PADDED_K).saturating_mul(PADDED_K / GROUP_K)
}

/// Numbers in [`IntRows`] of `rows` rows, codes and scales.
pub(super) fn rows_len(rows: usize, cols: usize) -> (usize, usize) {
    let rows = rows.div_ceil(MAX_SIDE).saturating_mul(MAX_SIDE);
    let groups = groups(cols).saturating_mul(rows);
    (groups.saturating_mul(WORDS), groups)
}

/// Activations as int16: `[row / side][k / 32][16 pairs][side]`, in the order in which a format's kernel
/// meets pairs of k, and scales `[row / side][k / 32][side]`. k is padded to whole blocks with zeros, the
/// last rows to `side` with whatever lies there.
#[derive(Debug)]
pub(super) struct IntRows {
    codes: Mem<i32>,
    scales: Mem<f32>,
    side: usize,
    rows: usize,
    /// Groups of k.
    groups: usize,
}

impl IntRows {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let (codes, scales) = rows_len(rows, cols);
        Ok(Self {
            codes: Mem::zeroed("packed activations", codes)?,
            scales: Mem::zeroed("packed activations", scales)?,
            side: 1,
            rows: 0,
            groups: 0,
        })
    }

    /// Fill with the rows `row(0) .. row(rows - 1)` (all equally long), normalised if asked, for weights
    /// of this format.
    pub fn fill<'r>(
        &mut self,
        pool: &Pool,
        tier: Tier,
        quant: Quant,
        rows: usize,
        row: impl Fn(usize) -> &'r [f32] + Sync,
        norm: Option<Norm<'_>>,
    ) {
        let cols = row(0).len();
        self.rows = rows;
        self.side = rows.min(MAX_SIDE);
        self.groups = groups(cols);
        let (side, groups) = (self.side, self.groups);
        let panels = rows.div_ceil(side);
        let len = groups * side;
        let parts = (
            Grid::pieces(&mut self.codes[..panels * len * WORDS], len * WORDS),
            Grid::pieces(&mut self.scales[..panels * len], len),
        );
        let work = |panel: usize, _: usize, parts: (Rect<'_, i32>, Rect<'_, f32>)| {
            let (mut codes, mut scales) = parts;
            for r in 0..side.min(rows - panel * side) {
                tier.run(Fill {
                    from: row(panel * side + r),
                    norm,
                    quant,
                    side,
                    at: r,
                    codes: codes.row(0),
                    scales: scales.row(0),
                });
            }
        };
        if panels == 1 {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }
}

/// One row into its lane of a panel.
struct Fill<'a> {
    from: &'a [f32],
    norm: Option<Norm<'a>>,
    quant: Quant,
    side: usize,
    at: usize,
    codes: &'a mut [i32],
    scales: &'a mut [f32],
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.quant {
            Quant::Int8 => self.ordered(s, const { &pairs(Quant::Int8) }),
            Quant::Int4 | Quant::Nf4 => self.ordered(s, const { &pairs(Quant::Int4) }),
        }
    }
}

impl Fill<'_> {
    #[inline(always)]
    fn ordered<S: Simd>(self, s: S, order: &[[usize; 2]; WORDS]) {
        let scale = self
            .norm
            .map_or(1.0, |norm| inverse_rms(s, self.from, norm.eps));
        let side = self.side;
        let codes = self.codes.chunks_exact_mut(WORDS * side);
        let groups = codes.zip(self.scales.chunks_exact_mut(side));
        for (g, (codes, scales)) in groups.enumerate() {
            let mut x = [0.0f32; GROUP_K];
            let from = self.from.get(g * GROUP_K..).unwrap_or(&[]);
            let n = from.len().min(GROUP_K);
            x[..n].copy_from_slice(&from[..n]);
            if let Some(norm) = self.norm {
                let mut w = [0.0f32; GROUP_K];
                w[..n].copy_from_slice(norm.weight.get(g * GROUP_K..).map_or(&[], |w| &w[..n]));
                for i in 0..GROUP_K {
                    x[i] = x[i] * scale * w[i];
                }
            }
            let (whole, unit) = quantise(s, &x);
            scales[self.at] = unit;
            for (pair, to) in order.iter().zip(codes.chunks_exact_mut(side)) {
                let [low, high] = [whole[pair[0]], whole[pair[1]]];
                to[self.at] = (low & 0xffff) | high << 16;
            }
        }
    }
}

/// A group of activations as integers up to 32767 in magnitude, and their scale. A scale is NaN where a
/// number is not finite.
#[inline(always)]
fn quantise<S: Simd>(s: S, x: &[f32; GROUP_K]) -> ([i32; GROUP_K], f32) {
    let mut halves = [s.splat(0.0); 2];
    for (half, x) in halves.iter_mut().zip(x.as_chunks::<LANES>().0) {
        *half = s.load(x);
    }
    let zero = s.splat(0.0);
    let magnitude = halves.map(|v| s.max(v, s.sub(zero, v)));
    let max = s.greatest(s.max(magnitude[0], magnitude[1]));
    // Zero, or NaN.
    let odd = s.sum(s.fma(halves[0], zero, s.mul(halves[1], zero)));
    // Smaller groups count as zero: the reciprocal would overflow.
    let (inverse, unit) = match max > 1e-30 {
        true => (32767.0 / max, max / 32767.0),
        false => (0.0, 0.0),
    };
    let mut whole = [0; GROUP_K];
    // Adding 1.5 * 2^23 leaves no fraction, and the integer in the low bits.
    let magic = s.splat(12_582_912.0);
    for (v, to) in halves.into_iter().zip(whole.as_chunks_mut::<LANES>().0) {
        let mut bits = [0.0f32; LANES];
        s.store(s.add(s.mul(v, s.splat(inverse)), magic), &mut bits);
        for (x, to) in bits.iter().zip(to) {
            *to = x.to_bits().wrapping_sub(0x4b40_0000) as i32;
        }
    }
    (whole, unit + odd)
}

/// `mat * x`, row `i` into row `to[i]` of `out`, put together as `finish` says; rows of `out` are
/// `stride` long.
#[expect(clippy::too_many_arguments)]
pub(super) fn product(
    workers: Workers<'_>,
    mat: &CpuMat,
    quant: Quant,
    x: &IntRows,
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
    debug_assert_eq!(x.groups, groups(mat.cols));
    let strips = stride.div_ceil(LANES);
    let task_strips = match finish {
        Finish::SwiGlu => TASK_STRIPS / 2,
        _ => TASK_STRIPS,
    };
    let second = (finish == Finish::SwiGlu).then(|| mat.parts[1].first);
    let grid = Grid::columns(out, stride, task_strips * LANES);
    pool.run(grid, |task, thread, out| {
        let mut scratch = lock(scratch, thread);
        let first = task * task_strips;
        let count = task_strips.min(strips - first);
        with_blocks!(quant, Q => tier.run_integers(Task::<Q> {
            weights: Strips::new(mat, first, count, second),
            x,
            bias: &mat.bias,
            finish,
            scratch: &mut scratch,
            to,
            out,
        }));
    });
}

struct Task<'a, Q: Weights> {
    weights: Strips<'a, Q>,
    x: &'a IntRows,
    bias: &'a [f32],
    finish: Finish,
    scratch: &'a mut [f32],
    to: &'a [u32],
    out: Rect<'a, f32>,
}

impl<Q: Blocks + Weights<Bits = u16>> Kernel for Task<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // (rows side by side, strips side by side): as many sums as registers allow.
        match (S::REGISTERS, self.x.side) {
            (32, 1) => self.tiles::<S, 1, 8>(s),
            (32, 2) => self.tiles::<S, 2, 4>(s),
            (32, 3) => self.tiles::<S, 3, 2>(s),
            (32, 4) => self.tiles::<S, 4, 2>(s),
            (32, 5) => self.tiles::<S, 5, 2>(s),
            (32, 6) => self.tiles::<S, 6, 2>(s),
            (32, 7) => self.tiles::<S, 7, 2>(s),
            (32, 8) => self.tiles::<S, 8, 2>(s),
            (8, 1) => self.tiles::<S, 1, 2>(s),
            (_, 1) => self.tiles::<S, 1, 1>(s),
            (_, 2) => self.tiles::<S, 2, 1>(s),
            (_, 3) => self.tiles::<S, 3, 1>(s),
            (_, 4) => self.tiles::<S, 4, 1>(s),
            (_, 5) => self.tiles::<S, 5, 1>(s),
            (_, 6) => self.tiles::<S, 6, 1>(s),
            (_, 7) => self.tiles::<S, 7, 1>(s),
            (_, 8) => self.tiles::<S, 8, 1>(s),
            (registers, side) => unreachable!("{side} rows with {registers} registers"),
        }
    }
}

impl<Q: Blocks + Weights<Bits = u16>> Task<'_, Q> {
    /// Strip after strip, all rows of a band over each while it is in the near caches.
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let panels = self.x.rows.div_ceil(SIDE);
        let band = BAND / SIDE;
        let total = self.weights.total();
        for first in (0..panels).step_by(band) {
            let count = band.min(panels - first);
            let sums = self.scratch.as_chunks_mut::<LANES>().0;
            let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
            for tile in 0..total.div_ceil(WIDE) {
                let mut w: [&[u16]; WIDE] = [&[]; WIDE];
                for (b, w) in w.iter_mut().enumerate() {
                    *w = self.weights.get(tile * WIDE + b);
                }
                for panel in 0..count {
                    let sums = &mut sums[tile * count + panel];
                    let len = self.x.groups * SIDE;
                    let at = (first + panel) * len;
                    let x = &self.x.codes[at * WORDS..][..len * WORDS];
                    let scales = &self.x.scales[at..][..len];
                    let x = x.as_chunks::<SIDE>().0.as_chunks::<WORDS>().0;
                    multiply::<Q, S, SIDE, WIDE>(s, w, x, scales.as_chunks().0, sums);
                }
            }
            self.finish::<S, SIDE, WIDE>(s, first, count);
        }
    }

    /// Write out the sums, `[tile][panel][wide][side][16]`, of the `count` panels from `first` on.
    #[inline(always)]
    fn finish<S: Simd, const SIDE: usize, const WIDE: usize>(
        &mut self,
        s: S,
        first: usize,
        count: usize,
    ) {
        let Self {
            weights,
            x,
            bias,
            finish,
            scratch,
            to,
            out,
        } = self;
        let sums = scratch.as_chunks::<LANES>().0;
        for row in first * SIDE..((first + count) * SIDE).min(x.rows) {
            let (panel, r) = (row / SIDE - first, row % SIDE);
            let get = |i: usize, strip: usize| {
                let at = ((i / WIDE * count + panel) * WIDE + i % WIDE) * SIDE + r;
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

/// `sums = w x`, all of k.
#[inline(always)]
fn multiply<Q: Blocks, S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: [&[u16]; WIDE],
    x: &[[[i32; SIDE]; WORDS]],
    scales: &[[f32; SIDE]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
) {
    let table = Q::table(s);
    // Pairs of k in a line.
    let each = WORDS / Q::LINES;
    let mut acc = [[s.splat(0.0); SIDE]; WIDE];
    let w = w.map(Q::blocks);
    let n = w[0].len();
    let w = w.map(|w| &w[..n]);
    let (x, scales) = (&x[..n * Q::GROUPS], &scales[..n * Q::GROUPS]);
    for k in 0..n {
        for g in 0..Q::GROUPS {
            let (x, scales) = (&x[k * Q::GROUPS + g], &scales[k * Q::GROUPS + g]);
            let mut dots = [[s.splat_i32(0); SIDE]; WIDE];
            for j in 0..Q::LINES {
                for b in 0..WIDE {
                    let line = Q::line(&w[b][k], g * Q::LINES + j);
                    s.prefetch(line, AHEAD / WIDE);
                    let pairs = Q::pairs(s, table, line);
                    for i in 0..each {
                        let x = &x[j * each + i];
                        for r in 0..SIDE {
                            dots[b][r] = s.dot_i16(dots[b][r], pairs[i], s.splat_i32(x[r]));
                        }
                    }
                }
            }
            for b in 0..WIDE {
                let unit = s.widen_f16(Q::scales(&w[b][k], g));
                for r in 0..SIDE {
                    let scale = s.mul(unit, s.splat(scales[r] * Q::UNIT));
                    acc[b][r] = s.fma(s.to_f32(dots[b][r]), scale, acc[b][r]);
                }
            }
        }
    }
    for b in 0..WIDE {
        for r in 0..SIDE {
            s.store(acc[b][r], &mut sums[b][r]);
        }
    }
}
