//! Products of generated rows with quantised weights: activations in int16, sums in int32 within
//! each group of 32 k and in float32 over the groups.
//!
//! Formats with a scale for each 16 k have two sums in a group. Minima of weights are multiplied with
//! the sum of a group's activations.
//!
//! Each group of activations has a scale: its greatest magnitude over about 32767. So an activation
//! is off by at most 1.6e-5 of the greatest in its group, and the sum of a group is exact. Every
//! output is one chain of multiply-adds over ascending groups from zero. So neither the number of
//! rows, nor the way rows and strips are cut, nor the number of threads changes a bit of it.
//! Because integers are exact, AVX2 and AVX-512 agree too.
//!
//! The products are bound by memory: a thread reads all strips of a task side by side, as
//! [`super::product`] does for few rows.

use super::Workers;
use super::blocks::{Blocks, GROUP_K, PADDED_K, WORDS, with_blocks};
use super::buf::Mem;
use super::detect::Tier;
use super::element::Weights;
use super::mat::Run;
use super::pool::{Grid, Pool, Rect};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::strips::{Ending, Strips, TASK_STRIPS, Target, WriteOut, tasks};
use crate::Result;
use crate::quant::Quant;

/// Most rows side by side.
const MAX_SIDE: usize = 8;
/// Rows that a task takes at a time: their sums stay in scratch.
const BAND: usize = 64;
/// Groups of k that a task quantises.
const FILL_GROUPS: usize = 32;
/// Words of a group and row: activations, and the offset that is added to sums.
const GROUP: usize = WORDS + 1;

/// Numbers of scratch that a thread needs.
pub(super) fn scratch_len() -> usize {
    TASK_STRIPS * BAND * LANES
}

/// Groups of k, including padding.
fn groups(cols: usize) -> usize {
    cols.div_ceil(PADDED_K).saturating_mul(PADDED_K / GROUP_K)
}

/// Numbers in [`IntRows`] of `rows` rows, codes and scales.
pub(super) fn rows_len(rows: usize, cols: usize) -> (usize, usize) {
    let rows = rows.div_ceil(MAX_SIDE).saturating_mul(MAX_SIDE);
    let groups = groups(cols).saturating_mul(rows);
    (groups.saturating_mul(GROUP), groups)
}

/// Activations as int16: `[row / side][k / 32][17][side]`, which are the words that a format's
/// kernel multiplies with and the offset that it adds; and their scales, `[row / side][k /
/// 32][side]`. k is padded to whole blocks with zeros. The last rows are padded to `side` with
/// whatever lies there.
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

    /// Fills it with the rows `row(0) .. row(rows - 1)` (all equally long), normalised if `norm` is
    /// given, for weights of this format.
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
        let each = FILL_GROUPS * side;
        let parts = (
            Grid::columns(
                &mut self.codes[..panels * len * GROUP],
                len * GROUP,
                each * GROUP,
            ),
            Grid::columns(&mut self.scales[..panels * len], len, each),
        );
        let work = |task: usize, _: usize, parts: (Rect<'_, i32>, Rect<'_, f32>)| {
            let (mut codes, mut scales) = parts;
            for i in 0..rows {
                tier.run(Fill {
                    from: row(i),
                    first: task * FILL_GROUPS,
                    norm,
                    quant,
                    side,
                    at: i % side,
                    codes: codes.row(i / side),
                    scales: scales.row(i / side),
                });
            }
        };
        if groups * rows < 4 * FILL_GROUPS {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }
}

/// Puts some groups of one row into its lane of a panel.
struct Fill<'a> {
    from: &'a [f32],
    /// The first group.
    first: usize,
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
        with_blocks!(self.quant, Q => self.words::<S, Q>(s));
    }
}

impl Fill<'_> {
    #[inline(always)]
    fn words<S: Simd, Q: Blocks>(self, s: S) {
        let scale = self
            .norm
            .map_or(1.0, |norm| inverse_rms(s, self.from, norm.eps));
        let side = self.side;
        let codes = self.codes.chunks_exact_mut(GROUP * side);
        let groups = codes.zip(self.scales.chunks_exact_mut(side));
        for (g, (codes, scales)) in (self.first..).zip(groups) {
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
            let (whole, unit) = quantise(s, &x, Q::TOP);
            scales[self.at] = unit;
            let (words, offset) = Q::words(&whole);
            for (word, to) in words.iter().zip(codes.chunks_exact_mut(side)) {
                to[self.at] = *word;
            }
            codes[WORDS * side + self.at] = offset;
        }
    }
}

/// A group of activations as integers up to `top` in magnitude, and their scale. The scale is NaN
/// if a number is not finite.
#[inline(always)]
fn quantise<S: Simd>(s: S, x: &[f32; GROUP_K], top: f32) -> ([i32; GROUP_K], f32) {
    let mut halves = [s.splat(0.0); 2];
    for (half, x) in halves.iter_mut().zip(x.as_chunks::<LANES>().0) {
        *half = s.load(x);
    }
    let zero = s.splat(0.0);
    let magnitude = halves.map(|v| s.max(v, s.sub(zero, v)));
    let max = s.greatest(s.max(magnitude[0], magnitude[1]));
    // Zero, or NaN.
    let odd = s.sum(s.fma(halves[0], zero, s.mul(halves[1], zero)));
    // Groups with smaller numbers count as zero, because the reciprocal would overflow.
    let (inverse, unit) = match max > 1e-30 {
        true => (top / max, max / top),
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

/// Computes `weights * x`, combined as `ending` says.
pub(super) fn product(
    workers: Workers<'_>,
    weights: &Run,
    quant: Quant,
    x: &IntRows,
    target: Target<'_>,
    ending: Ending<'_>,
) {
    debug_assert_eq!(x.groups, groups(weights.cols));
    let tier = workers.tier;
    let run = |cut, scratch: &mut [f32], write: WriteOut<'_>| {
        with_blocks!(quant, Q => tier.run_integers(Task::<Q> {
            weights: Strips::cut(weights, cut),
            x,
            scratch,
            write,
        }));
    };
    tasks(workers, weights, target, ending, run);
}

struct Task<'a, Q: Weights> {
    weights: Strips<'a, Q>,
    x: &'a IntRows,
    scratch: &'a mut [f32],
    write: WriteOut<'a>,
}

impl<Q: Blocks + Weights<Bits = u16>> Kernel for Task<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // (rows side by side, strips side by side): as many sums as registers allow.
        match (S::REGISTERS / Q::PARTS, self.x.side) {
            (32, 1) => self.tiles::<S, 1, 8>(s),
            (32, 2) => self.tiles::<S, 2, 8>(s),
            (32, 3) => self.tiles::<S, 3, 4>(s),
            (32, 4) => self.tiles::<S, 4, 4>(s),
            (32, 5) => self.tiles::<S, 5, 2>(s),
            (32, 6) => self.tiles::<S, 6, 2>(s),
            (32, 7) => self.tiles::<S, 7, 2>(s),
            (32, 8) => self.tiles::<S, 8, 2>(s),
            (16, 1) => self.tiles::<S, 1, 8>(s),
            (16, 2) => self.tiles::<S, 2, 4>(s),
            (16, 3) => self.tiles::<S, 3, 2>(s),
            (16, 4) => self.tiles::<S, 4, 2>(s),
            (8, 1) => self.tiles::<S, 1, 4>(s),
            (8, 2) => self.tiles::<S, 2, 2>(s),
            (4, 1) => self.tiles::<S, 1, 2>(s),
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
    /// Takes one block of every strip in turn; all rows of a band pass over it while it is in the
    /// near caches.
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let table = Q::table(s);
        let panels = self.x.rows.div_ceil(SIDE);
        let band = BAND / SIDE;
        let tiles = self.weights.total().div_ceil(WIDE);
        let mut strips: [&[Q::Block]; TASK_STRIPS] = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = Q::blocks(self.weights.get(i));
        }
        let strips = strips.as_chunks::<WIDE>().0;
        let blocks = strips[0][0].len();
        for first in (0..panels).step_by(band) {
            let count = band.min(panels - first);
            let sums = self.scratch.as_chunks_mut::<LANES>().0;
            let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
            let sums = &mut sums[..tiles * count];
            sums.as_flattened_mut()
                .as_flattened_mut()
                .fill([0.0; LANES]);
            for k in 0..blocks {
                let bytes = Q::AHEAD * size_of::<Q::Block>();
                let ahead = self.weights.ahead(bytes, k + Q::AHEAD >= blocks);
                // With many rows, activations come from L2 and would wait behind the weights.
                for panel in first..first + count {
                    let len = Q::GROUPS * SIDE * GROUP;
                    let x = &self.x.codes[panel * self.x.groups * SIDE * GROUP..];
                    for line in x[k * len..][..len].chunks(LANES) {
                        s.prefetch(&line[0], len * size_of::<i32>());
                    }
                }
                for (strips, sums) in strips.iter().zip(sums.chunks_exact_mut(count)) {
                    let w = strips.map(|strip| &strip[k]);
                    for (panel, sums) in sums.iter_mut().enumerate() {
                        let at = ((first + panel) * self.x.groups + k * Q::GROUPS) * SIDE;
                        let x = &self.x.codes[at * GROUP..][..Q::GROUPS * SIDE * GROUP];
                        let x = x.as_chunks::<SIDE>().0.as_chunks::<GROUP>().0;
                        let scales = &self.x.scales[at..][..Q::GROUPS * SIDE];
                        let scales = scales.as_chunks::<SIDE>().0;
                        multiply::<Q, S, SIDE, WIDE>(s, table, w, ahead, x, scales, sums);
                    }
                }
            }
            self.finish::<S, SIDE, WIDE>(s, first, count);
        }
    }

    /// Writes the sums, `[tile][panel][wide][side][16]`, of the `count` panels from `first` on.
    #[inline(always)]
    fn finish<S: Simd, const SIDE: usize, const WIDE: usize>(
        &mut self,
        s: S,
        first: usize,
        count: usize,
    ) {
        let sums = self.scratch.as_chunks::<LANES>().0;
        for row in first * SIDE..((first + count) * SIDE).min(self.x.rows) {
            let (panel, r) = (row / SIDE - first, row % SIDE);
            self.write.row(s, &self.weights, row, |i| {
                &sums[((i / WIDE * count + panel) * WIDE + i % WIDE) * SIDE + r]
            });
        }
    }
}

/// `$body` for `$b` from 0 to `$n`, at most 8, without a loop. Arrays stay in registers only if all
/// indices are constants, and the compiler does not unroll a loop of this length (int4, one row: 30
/// instead of 41 GB/s).
macro_rules! unrolled {
    ($n:ident, $b:ident => $body:block) => {
        unrolled!($n, $b => $body, 0 1 2 3 4 5 6 7)
    };
    ($n:ident, $b:ident => $body:block, $($i:literal)*) => {
        $(if $i < $n {
            let $b: usize = $i;
            $body
        })*
    };
}

/// `sums += w x`, one block of each strip.
#[inline(always)]
fn multiply<Q: Blocks, S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    table: Q::Table<S>,
    w: [&Q::Block; WIDE],
    ahead: usize,
    x: &[[[i32; SIDE]; GROUP]],
    scales: &[[f32; SIDE]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
) {
    // Words of a line.
    let each = WORDS / Q::LINES;
    // Lines of a span.
    let lines = Q::LINES / Q::SPANS;
    for i in 0..Q::GROUPS * Q::SPANS {
        let (g, span) = (i / Q::SPANS, i % Q::SPANS);
        let (x, units) = (&x[g], &scales[g]);
        let mut dots = [[Q::zero(s); SIDE]; WIDE];
        for j in 0..lines {
            let words = &x[(span * lines + j) * each..][..each];
            unrolled!(WIDE, b => {
                let line = Q::line(w[b], i * lines + j);
                s.prefetch(line, ahead);
                Q::add(s, table, line, words, &mut dots[b]);
            });
        }
        unrolled!(WIDE, b => {
            Q::prefetch_scale(s, w[b], i, ahead);
            let scale = Q::scale(s, w[b], i);
            for r in 0..SIDE {
                let sum = s.load(&sums[b][r]);
                let sum = Q::accumulate(s, scale, dots[b][r], x[WORDS][r], units[r], sum);
                s.store(sum, &mut sums[b][r]);
            }
        });
    }
}
