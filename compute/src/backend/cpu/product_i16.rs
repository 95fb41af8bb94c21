//! Products with quantised weights, without tiles: activations in int16, sums in int32 within each
//! group of 32 k and in float32 over the groups. Generated rows go here, and prompt rows where
//! there are no tiles.
//!
//! Formats with a scale for each 16 k have two sums in a group. Minima of weights are multiplied
//! with the sum of a group's activations.
//!
//! Each group of activations has a scale: its greatest magnitude over about 32767. So an activation
//! is off by at most 1.6e-5 of the greatest in its group, and the sum of a group is exact. Every
//! output is one chain of multiply-adds over ascending groups from zero. So neither the number of
//! rows, nor the way rows and strips are cut, nor the number of threads changes a bit of it.
//! Because integers are exact, AVX2 and AVX-512 agree too.
//!
//! Few rows are bound by memory: a thread reads all strips of a task side by side, as
//! [`super::product`] does for few rows, and unpacks codes for every eight rows. Many rows are
//! bound by arithmetic: [`super::many_i16`]. Which way rows go is a matter of speed alone.

use super::Workers;
use super::blocks::{Blocks, GROUP_K, PADDED_K, WORDS, pair_words, with_blocks};
use super::buf::Mem;
use super::detect::Tier;
use super::element::Weights;
use super::many_i16;
use super::mat::Run;
use super::pool::{Grid, Pool, Rect};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::strips::{Ending, Strips, TASK_STRIPS, Target, WriteOut, tasks};
use crate::Result;
use crate::quant::Quant;

/// Most rows side by side.
pub(super) const MAX_SIDE: usize = 8;
/// Most rows that count as few, in any format.
const MAX_FEW: usize = 24;
/// Groups of k that a task quantises.
const FILL_GROUPS: usize = 32;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    many_i16::scratch_len(max_rows).max(TASK_STRIPS * MAX_FEW * LANES)
}

/// Most rows that count as few. To unpack eight bits up to three times costs less than to write
/// what was unpacked and to read it again.
fn few(quant: Quant) -> usize {
    match quant {
        Quant::Int8 | Quant::K8 => MAX_FEW,
        _ => MAX_SIDE,
    }
}

/// Most rows side by side of few rows. To emulate the products of pairs takes the portable tier so
/// long that what more rows would save does not show, and each number of rows is compiled anew.
fn most_side(tier: Tier) -> usize {
    match tier.has_pairs() {
        true => MAX_SIDE,
        false => 2,
    }
}

/// Groups of k, including padding.
fn groups(cols: usize) -> usize {
    cols.div_ceil(PADDED_K).saturating_mul(PADDED_K / GROUP_K)
}

/// Groups of [`IntRows`] of `rows` rows.
fn groups_of_rows(rows: usize, cols: usize) -> usize {
    // Up to `MAX_SIDE - 1` rows more, which fill the last panel.
    groups(cols).saturating_mul(rows.saturating_add(MAX_SIDE))
}

/// 32-bit numbers in [`IntRows`] of `rows` rows.
pub(super) fn rows_len(rows: usize, cols: usize) -> usize {
    groups_of_rows(rows, cols).saturating_mul(WORDS + 2)
}

/// Activations as int16: `[row / side][k / 32][side]` of the sixteen words that a format's kernel
/// multiplies with, and in the same order their scales and the formats' offsets. k is padded to
/// whole blocks with zeros. The last rows are padded to `side` with whatever lies there.
#[derive(Debug)]
pub(super) struct IntRows {
    words: Mem<i32>,
    offsets: Mem<i32>,
    scales: Mem<f32>,
    side: usize,
    rows: usize,
    /// Whether these are words for many rows.
    many: bool,
    /// Groups of k.
    groups: usize,
}

/// Some groups of one panel: words, scales and offsets of SIDE rows.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a, const SIDE: usize> {
    pub words: &'a [[[i32; WORDS]; SIDE]],
    pub scales: &'a [[f32; SIDE]],
    pub offsets: &'a [[i32; SIDE]],
}

impl IntRows {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let groups = groups_of_rows(rows, cols);
        let what = "packed activations";
        Ok(Self {
            words: Mem::zeroed(what, groups.saturating_mul(WORDS))?,
            offsets: Mem::zeroed(what, groups)?,
            scales: Mem::zeroed(what, groups)?,
            side: 1,
            rows: 0,
            many: false,
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
        self.many = rows > few(quant);
        self.side = match self.many {
            true => many_i16::side(tier),
            false => rows.min(most_side(tier)),
        };
        self.groups = groups(cols);
        let (many, side, groups) = (self.many, self.side, self.groups);
        let panels = rows.div_ceil(side);
        let len = groups * side;
        let each = FILL_GROUPS * side;
        let words = &mut self.words[..panels * len * WORDS];
        let parts = (
            Grid::columns(words, len * WORDS, each * WORDS),
            (
                Grid::columns(&mut self.offsets[..panels * len], len, each),
                Grid::columns(&mut self.scales[..panels * len], len, each),
            ),
        );
        type Parts<'a> = (Rect<'a, i32>, (Rect<'a, i32>, Rect<'a, f32>));
        let work = |task: usize, _: usize, parts: Parts<'_>| {
            let (mut words, (mut offsets, mut scales)) = parts;
            for i in 0..rows {
                tier.run(Fill {
                    from: row(i),
                    first: task * FILL_GROUPS,
                    norm,
                    quant,
                    many,
                    side,
                    at: i % side,
                    words: words.row(i / side),
                    offsets: offsets.row(i / side),
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

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of a panel.
    pub fn side(&self) -> usize {
        self.side
    }

    /// `count` groups of a panel from `first` on.
    #[inline(always)]
    pub fn panel<const SIDE: usize>(
        &self,
        panel: usize,
        first: usize,
        count: usize,
    ) -> Panel<'_, SIDE> {
        let (at, len) = ((panel * self.groups + first) * SIDE, count * SIDE);
        let words = self.words[at * WORDS..][..len * WORDS].as_chunks().0;
        Panel {
            words: words.as_chunks().0,
            scales: self.scales[at..][..len].as_chunks().0,
            offsets: self.offsets[at..][..len].as_chunks().0,
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
    /// Whether these are words for many rows.
    many: bool,
    side: usize,
    at: usize,
    words: &'a mut [i32],
    offsets: &'a mut [i32],
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
        let (side, at) = (self.side, self.at);
        let words = self.words.as_chunks_mut::<WORDS>().0.chunks_exact_mut(side);
        let offsets = self.offsets.chunks_exact_mut(side);
        let groups = words.zip(offsets).zip(self.scales.chunks_exact_mut(side));
        for (g, ((words, offsets), scales)) in (self.first..).zip(groups) {
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
            scales[at] = unit * Q::UNIT;
            offsets[at] = Q::offset(&whole, unit);
            words[at] = match self.many {
                true => pair_words(&whole),
                false => Q::words(&whole),
            };
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
    let [a, b] = halves;
    let magnitude = [s.max(a, s.sub(zero, a)), s.max(b, s.sub(zero, b))];
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
        with_blocks!(quant, Q => {
            let task = Task::<Q> {
                weights: Strips::cut(weights, cut),
                x,
                scratch,
                write,
            };
            match x.many {
                true => tier.run_integers(many_i16::Many(task)),
                false => tier.run_integers(task),
            }
        });
    };
    tasks(workers, weights, target, ending, run);
}

/// Some strips times all rows.
pub(super) struct Task<'a, Q: Weights> {
    pub weights: Strips<'a, Q>,
    pub x: &'a IntRows,
    pub scratch: &'a mut [f32],
    pub write: WriteOut<'a>,
}

impl<Q: Blocks + Weights<Bits = u16>> Kernel for Task<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // The registers are matched alone, because only an arm that a constant rules out is not
        // compiled. In the portable tier all the others took a tenth of the time of the crate.
        match S::REGISTERS {
            4 => match self.x.side {
                1 => self.tiles::<S, 1, 1>(s),
                2 => self.tiles::<S, 2, 1>(s),
                side => unreachable!("{side} rows"),
            },
            _ => self.many_registers(s),
        }
    }
}

impl<Q: Blocks + Weights<Bits = u16>> Task<'_, Q> {
    /// (rows side by side, strips side by side): as many sums as registers allow.
    #[inline(always)]
    fn many_registers<S: Simd>(self, s: S) {
        let side = self.x.side;
        match const { S::REGISTERS / Q::PARTS } {
            32 => match side {
                1 => self.tiles::<S, 1, 8>(s),
                2 => self.tiles::<S, 2, 8>(s),
                3 => self.tiles::<S, 3, 4>(s),
                4 => self.tiles::<S, 4, 4>(s),
                5 => self.tiles::<S, 5, 2>(s),
                6 => self.tiles::<S, 6, 2>(s),
                7 => self.tiles::<S, 7, 2>(s),
                8 => self.tiles::<S, 8, 2>(s),
                _ => unreachable!("{side} rows"),
            },
            16 => match side {
                1 => self.tiles::<S, 1, 8>(s),
                2 => self.tiles::<S, 2, 4>(s),
                3 => self.tiles::<S, 3, 2>(s),
                4 => self.tiles::<S, 4, 2>(s),
                _ => self.one_strip(s),
            },
            8 => match side {
                1 => self.tiles::<S, 1, 4>(s),
                2 => self.tiles::<S, 2, 2>(s),
                _ => self.one_strip(s),
            },
            4 => match side {
                1 => self.tiles::<S, 1, 2>(s),
                _ => self.one_strip(s),
            },
            _ => self.one_strip(s),
        }
    }

    #[inline(always)]
    fn one_strip<S: Simd>(self, s: S) {
        match self.x.side {
            1 => self.tiles::<S, 1, 1>(s),
            2 => self.tiles::<S, 2, 1>(s),
            3 => self.tiles::<S, 3, 1>(s),
            4 => self.tiles::<S, 4, 1>(s),
            5 => self.tiles::<S, 5, 1>(s),
            6 => self.tiles::<S, 6, 1>(s),
            7 => self.tiles::<S, 7, 1>(s),
            8 => self.tiles::<S, 8, 1>(s),
            side => unreachable!("{side} rows"),
        }
    }

    /// Few rows: takes one block of every strip in turn; all rows pass over it while it is in the
    /// near caches.
    #[inline(always)]
    fn tiles<S: Simd, const SIDE: usize, const WIDE: usize>(self, s: S) {
        let Self {
            weights,
            x,
            scratch,
            mut write,
        } = self;
        let table = Q::table(s);
        let mut strips: [&[Q::Block]; TASK_STRIPS] = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = Q::blocks(weights.get(i));
        }
        let strips = strips.as_chunks::<WIDE>().0;
        let blocks = strips[0][0].len();
        let sums = scratch.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
        let panels = x.rows.div_ceil(SIDE);
        let sums = &mut sums[..weights.total().div_ceil(WIDE) * panels];
        sums.as_flattened_mut()
            .as_flattened_mut()
            .fill([0.0; LANES]);
        for k in 0..blocks {
            let bytes = Q::AHEAD * size_of::<Q::Block>();
            let ahead = weights.ahead(bytes, k + Q::AHEAD >= blocks);
            let panel = |i| x.panel::<SIDE>(i, k * Q::GROUPS, Q::GROUPS);
            // Activations of several rows come from L2 and would wait behind the weights.
            for x in (0..panels).map(panel) {
                for line in x.words.as_flattened() {
                    s.prefetch(line, size_of_val(x.words));
                }
            }
            for (strips, sums) in strips.iter().zip(sums.chunks_exact_mut(panels)) {
                let w = strips.map(|strip| &strip[k]);
                for (i, sums) in sums.iter_mut().enumerate() {
                    multiply::<Q, S, SIDE, WIDE>(s, table, w, ahead, panel(i), sums);
                }
            }
        }
        let sums = &*sums;
        for row in 0..x.rows {
            let (panel, r) = (row / SIDE, row % SIDE);
            write.row(s, &weights, row, |i| {
                &sums[i / WIDE * panels + panel][i % WIDE][r]
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
    x: Panel<'_, SIDE>,
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
) {
    // Words of a line.
    let each = WORDS / Q::LINES;
    // Lines of a span.
    let lines = Q::LINES / Q::SPANS;
    for i in 0..Q::GROUPS * Q::SPANS {
        let (g, span) = (i / Q::SPANS, i % Q::SPANS);
        let (words, units, offsets) = (&x.words[g], &x.scales[g], &x.offsets[g]);
        let mut dots = [[Q::zero(s); SIDE]; WIDE];
        for j in 0..lines {
            let first = (span * lines + j) * each;
            unrolled!(WIDE, b => {
                let line = Q::line(w[b], i * lines + j);
                s.prefetch(line, ahead);
                Q::add(s, table, line, words, first, &mut dots[b]);
            });
        }
        unrolled!(WIDE, b => {
            Q::prefetch_scale(s, w[b], i, ahead);
            let scale = Q::scale(s, w[b], i);
            for r in 0..SIDE {
                let sum = s.load(&sums[b][r]);
                let sum = Q::accumulate(s, scale, dots[b][r], offsets[r], units[r], sum);
                s.store(sum, &mut sums[b][r]);
            }
        });
    }
}
