//! Matrix products of prompt rows on AMX: activations and weights as bfloat16, sums in float32.
//!
//! Every output is one chain over ascending k from zero, a tile of 32 k at a time ([`super::amx`] says in
//! which order within it); so neither the number of rows, nor how k, rows and strips are cut, nor the
//! number of threads changes a bit of it.
//!
//! A block of 256 k of all rows (256 KiB at 512 rows) stays in L2, where two strips of weights after the
//! other pass over it; partial sums wait in scratch, also in L2, between blocks of k. Sixteen rows or
//! fewer are bound by memory: all of k at once, [`MAX_ROW`] strips side by side.

use super::amx::{Amx, Half, MAX_ROW, SIDE, TILE, TILE_K};
use super::blocks::{Int4, Int8, Nf4};
use super::buf::{Mem, as_u16};
use super::detect::Tier;
use super::element::{Bf16, F16, Weights};
use super::mat::CpuMat;
use super::pool::{Grid, Pool, Rect};
use super::product::{Finish, Strips};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::{Workers, lock};
use crate::{Dtype, Result};
use std::ops::Range;

/// Tiles of k in a block.
const BLOCK: usize = 8;
/// Columns k in a block.
const BLOCK_K: usize = BLOCK * TILE_K;
/// Rows in a group: two tiles.
const GROUP: usize = 2 * SIDE;
/// Groups that pass over a block of k before the next block.
const BAND: usize = 16;
/// Most strips that a task computes, those of SwiGLU's second part included.
const TASK_STRIPS: usize = 16;
/// Tiles between a load and its prefetch when there are few rows.
const AHEAD: usize = 2;

/// Float32 numbers that take as much room as a block of k of two strips of bfloat16.
const UNPACKED: usize = BLOCK * TILE;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    let groups = max_rows.div_ceil(GROUP).clamp(1, BAND);
    UNPACKED + TASK_STRIPS / 2 * groups * 4 * SIDE * SIDE
}

/// Numbers of [`TilePanels`].
pub(super) fn panels_len(rows: usize, cols: usize) -> usize {
    let groups = rows.div_ceil(GROUP);
    cols.div_ceil(BLOCK_K)
        .saturating_mul(groups.saturating_mul(BLOCK * 2 * TILE))
}

/// Activations as tiles of bfloat16: `[k / 256][row / 32][k % 256 / 32][row % 32 / 16][16 rows][32 k]`. All
/// of one row's k together would put the tiles that are used together at a distance that is often a power
/// of two, where they compete for the same lines of L2 (half the speed). Columns are padded with zeros,
/// rows with whatever lies there.
#[derive(Debug)]
pub(super) struct TilePanels {
    data: Mem<u16>,
    rows: usize,
    cols: usize,
}

impl TilePanels {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let data = Mem::zeroed("packed activations", panels_len(rows, cols))?;
        Ok(Self {
            data,
            rows: 0,
            cols: 0,
        })
    }

    /// Fill with the rows `row(0) .. row(rows - 1)` (all equally long), normalised if asked.
    pub fn fill<'r>(
        &mut self,
        pool: &Pool,
        tier: Tier,
        rows: usize,
        row: impl Fn(usize) -> &'r [f32] + Sync,
        norm: Option<Norm<'_>>,
    ) {
        self.rows = rows;
        self.cols = if rows == 0 { 0 } else { row(0).len() };
        let groups = self.groups();
        let len = BLOCK * 2 * TILE;
        let all = &mut self.data[..self.cols.div_ceil(BLOCK_K) * groups * len];
        let small = rows * self.cols < 1 << 15;
        let parts = Grid::columns(all, groups * len, len);
        let work = |group: usize, _: usize, mut part: Rect<'_, u16>| {
            for i in group * GROUP..rows.min((group + 1) * GROUP) {
                tier.run(Fill {
                    from: row(i),
                    norm,
                    at: i % GROUP,
                    to: &mut part,
                });
            }
        };
        if small {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }

    fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK_K)
    }

    /// Tiles of a group in a block of k.
    #[inline(always)]
    fn block(&self, group: usize, block: usize) -> &[[Half; 2]] {
        let n = BLOCK.min((self.cols - block * BLOCK_K).div_ceil(TILE_K));
        let at = (block * self.groups() + group) * BLOCK * 2 * TILE;
        let tiles = self.data[at..][..n * 2 * TILE].as_chunks::<TILE>().0;
        tiles.as_chunks().0
    }
}

/// One row into its tiles.
struct Fill<'a, 'r> {
    from: &'a [f32],
    norm: Option<Norm<'a>>,
    /// Row of the group.
    at: usize,
    /// A block of k in each row.
    to: &'a mut Rect<'r, u16>,
}

impl Kernel for Fill<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { from, norm, at, to } = self;
        let at = at / SIDE * TILE + at % SIDE * TILE_K;
        let (scale, weight) = match norm {
            Some(norm) => (inverse_rms(s, from, norm.eps), norm.weight),
            None => (1.0, &[][..]),
        };
        let scale = s.splat(scale);
        for (block, from) in from.chunks(BLOCK_K).enumerate() {
            let to = &mut to.row(block)[at..];
            if norm.is_some() {
                fill_block::<S, true>(s, from, scale, &weight[block * BLOCK_K..], to);
            } else {
                fill_block::<S, false>(s, from, scale, &[], to);
            }
        }
    }
}

/// A block of a row into tiles that are two tiles apart. (No closures here: the compiler would leave them
/// without the instructions.)
#[inline(always)]
fn fill_block<S: Simd, const NORM: bool>(
    s: S,
    from: &[f32],
    scale: S::F,
    weight: &[f32],
    to: &mut [u16],
) {
    for (t, from) in from.chunks(TILE_K).enumerate() {
        let to = to[t * 2 * TILE..].first_chunk_mut::<TILE_K>();
        let to = to.expect("whole tiles").as_chunks_mut::<LANES>().0;
        for (h, to) in to.iter_mut().enumerate() {
            let k = h * LANES;
            let from = &from[k.min(from.len())..];
            let mut x = s.load_partial(&from[..from.len().min(LANES)]);
            if NORM {
                let weight = &weight[(t * TILE_K + k).min(weight.len())..];
                let w = s.load_partial(&weight[..weight.len().min(LANES)]);
                x = s.mul(s.mul(x, scale), w);
            }
            s.narrow_bf16(x, to);
        }
    }
}

/// A storage format that is multiplied as tiles of bfloat16.
trait AsTiles: Weights {
    /// Whether its strips are tiles already.
    const TILES: bool = false;
    /// The tiles of a strip, if they are.
    fn tiles(_: &[Self::Bits]) -> &[Half] {
        unreachable!("no tiles")
    }
}

impl AsTiles for Bf16 {
    const TILES: bool = true;
    #[inline(always)]
    fn tiles(strip: &[u16]) -> &[Half] {
        strip.as_chunks().0
    }
}

impl AsTiles for F16 {}
impl AsTiles for Int8 {}
impl AsTiles for Int4 {}
impl AsTiles for Nf4 {}

/// Whether prompt rows are multiplied here where the processor has AMX.
pub(super) fn takes(dtype: Dtype) -> bool {
    dtype != Dtype::F32
}

/// `mat * panels`, row `i` into row `to[i]` of `out`, put together as `finish` says; rows of `out` are
/// `stride` long.
#[allow(clippy::too_many_arguments)] // what a product is made of
pub(super) fn product(
    workers: Workers<'_>,
    amx: Amx,
    mat: &CpuMat,
    panels: &TilePanels,
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
    debug_assert_eq!(panels.cols, mat.cols);
    let strips = stride.div_ceil(LANES);
    let most = match finish {
        Finish::SwiGlu => TASK_STRIPS / 2,
        _ => TASK_STRIPS,
    };
    // As many tasks as threads can share evenly, each an even number of strips.
    let tasks = strips.div_ceil(most).next_multiple_of(pool.n_threads());
    let task_strips = strips.div_ceil(tasks).next_multiple_of(2);
    let second = (finish == Finish::SwiGlu).then(|| mat.parts[1].first);
    let grid = Grid::columns(out, stride, task_strips * LANES);
    pool.run(grid, |task, thread, out| {
        let mut scratch = lock(scratch, thread);
        let first = task * task_strips;
        let count = task_strips.min(strips - first);
        macro_rules! run {
            ($E:ty) => {
                tier.run_conversions(Task::<$E> {
                    amx,
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
        match mat.dtype {
            Dtype::Bf16 => run!(Bf16),
            Dtype::F16 => run!(F16),
            Dtype::Int8 => run!(Int8),
            Dtype::Int4 => run!(Int4),
            Dtype::Nf4 => run!(Nf4),
            Dtype::F32 | Dtype::U8 => unreachable!("{} weights as tiles", mat.dtype),
        }
    });
}

struct Task<'a, E: AsTiles> {
    amx: Amx,
    weights: Strips<'a, E>,
    panels: &'a TilePanels,
    bias: &'a [f32],
    finish: Finish,
    scratch: &'a mut [f32],
    to: &'a [u32],
    out: Rect<'a, f32>,
}

impl<E: AsTiles> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if E::TILES && self.panels.rows <= SIDE {
            self.few(s);
        } else {
            self.many(s);
        }
    }
}

impl<'a, E: AsTiles> Task<'a, E> {
    /// Strips that lie side by side: neighbours, or one of each part. The last again behind the end.
    #[inline(always)]
    fn strip(&self, pair: usize, half: usize) -> &'a [E::Bits] {
        match self.finish {
            Finish::SwiGlu => self.weights.get(pair + half * self.weights.count),
            _ => self.weights.get(2 * pair + half),
        }
    }

    fn pairs(&self) -> usize {
        self.weights.total().div_ceil(2)
    }

    /// Sixteen rows at most: all of k at once, weights straight from memory.
    #[inline(always)]
    fn few<S: Simd>(mut self, s: S) {
        let count = (2 * self.pairs()).div_ceil(MAX_ROW);
        for i in 0..count {
            let mut strips: [&[Half]; MAX_ROW] = [&[]; MAX_ROW];
            for (j, strip) in strips.iter_mut().enumerate() {
                let j = i * MAX_ROW + j;
                *strip = E::tiles(self.strip(j / 2, j % 2));
            }
            let sums = self.scratch[UNPACKED..]
                .as_chunks_mut::<{ SIDE * SIDE }>()
                .0;
            let sums = &mut sums.as_chunks_mut::<MAX_ROW>().0[i];
            let tiles = self.amx.tiles();
            for block in 0..self.panels.blocks() {
                let a = self.panels.block(0, block);
                let b = strips.map(|strip| &strip[block * BLOCK..]);
                tiles.row::<AHEAD>(a, b, sums, block == 0);
            }
        }
        let place = Place {
            pair: 2 * SIDE * SIDE,
            half: SIDE * SIDE,
            group: 0,
            row_half: 0,
        };
        self.finish(s, 0..1, place);
    }

    /// Block of k by block of k.
    #[inline(always)]
    fn many<S: Simd>(mut self, s: S) {
        let groups = self.panels.groups();
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        for first in (0..groups).step_by(BAND) {
            let count = BAND.min(groups - first);
            for block in 0..blocks {
                for pair in 0..pairs {
                    let next = match pair + 1 < pairs {
                        true => (pair + 1, block),
                        false => (0, block + 1),
                    };
                    let next =
                        [0, 1].map(|half| Strips::<E>::block(self.strip(next.0, half), next.1));
                    self.pair(s, first..first + count, block, pair, next);
                }
            }
            let place = Place {
                pair: count * 4 * SIDE * SIDE,
                half: SIDE * SIDE,
                group: 4 * SIDE * SIDE,
                row_half: 2 * SIDE * SIDE,
            };
            self.finish(s, first..first + count, place);
        }
    }

    /// A block of k of a pair of strips with `groups` of rows, while the strips of `next` are asked for.
    #[inline(always)]
    fn pair<S: Simd>(
        &mut self,
        s: S,
        groups: Range<usize>,
        block: usize,
        pair: usize,
        next: [&[E::Bits]; 2],
    ) {
        let pairs = self.pairs();
        let stored = [0, 1].map(|half| Strips::<E>::block(self.strip(pair, half), block));
        let (unpacked, sums) = self.scratch.split_at_mut(UNPACKED);
        let b = if E::TILES {
            stored.map(E::tiles)
        } else {
            let unpacked = as_u16(unpacked).as_chunks_mut::<TILE>().0;
            let (b0, b1) = unpacked.split_at_mut(BLOCK);
            unpack::<E, S>(s, stored[0], b0);
            unpack::<E, S>(s, stored[1], b1);
            [&*b0, &*b1]
        };
        let sums = sums.as_chunks_mut::<{ SIDE * SIDE }>().0;
        let sums = &mut sums.as_chunks_mut::<4>().0[pair * groups.len()..][..groups.len()];
        // One strip of the next pair in the first half of the groups, the other in the second.
        let turns = groups.len().div_ceil(2);
        let share = next[0].len().div_ceil(turns);
        let tiles = self.amx.tiles();
        for (i, sums) in sums.iter_mut().enumerate() {
            let group = groups.start + i;
            let a = self.panels.block(group, block);
            let strip = next[i / turns];
            let from = (i % turns * share).min(strip.len());
            let next_b = &strip[from..strip.len().min(from + share)];
            // And the pair's share of the group's next block.
            let next_a = match block + 1 < self.panels.blocks() {
                true => self.panels.block(group, block + 1).as_flattened(),
                false => &[],
            };
            let share = next_a.len().div_ceil(pairs);
            let from = (pair * share).min(next_a.len());
            let ahead = (next_b, &next_a[from..next_a.len().min(from + share)]);
            if self.panels.rows - group * GROUP > SIDE {
                tiles.square(a, b, sums, block == 0, ahead);
            } else {
                tiles.half_square(a, b, sums, block == 0, ahead);
            }
        }
    }

    /// Write out the sums of `groups`.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, groups: Range<usize>, place: Place) {
        let sums = self.scratch[UNPACKED..].as_chunks::<LANES>().0;
        let bias = self.bias.as_chunks::<LANES>().0;
        let Strips { first, second, .. } = self.weights;
        for row in groups.start * GROUP..self.panels.rows.min(groups.end * GROUP) {
            let (group, half, r) = (row / GROUP - groups.start, row % GROUP / SIDE, row % SIDE);
            let at = group * place.group + half * place.row_half + r * LANES;
            let out = self.out.row(self.to[row] as usize);
            for (i, out) in out.chunks_mut(LANES).enumerate() {
                let at = match second {
                    Some(_) => at + i * place.pair,
                    None => at + i / 2 * place.pair + i % 2 * place.half,
                };
                let mut y = s.load(&sums[at / LANES]);
                let mut other = y;
                if let Some(b) = bias.get(first + i) {
                    y = s.add(y, s.load(b));
                }
                if let Some(second) = second {
                    other = s.load(&sums[(at + place.half) / LANES]);
                    if let Some(b) = bias.get(second + first + i) {
                        other = s.add(other, s.load(b));
                    }
                }
                self.finish.write(s, out, y, other);
            }
        }
    }
}

/// Where sums lie in scratch, in numbers.
#[derive(Clone, Copy)]
struct Place {
    /// From a pair of strips to the next.
    pair: usize,
    /// From a strip to the one beside it.
    half: usize,
    /// From 32 rows to the next.
    group: usize,
    /// From 16 rows to the others of their group.
    row_half: usize,
}

/// A block of k of a strip as tiles, the last filled up with zeros.
#[inline(always)]
fn unpack<E: AsTiles, S: Simd>(s: S, from: &[E::Bits], to: &mut [Half]) {
    let to = to.as_flattened_mut().as_chunks_mut::<{ 2 * LANES }>().0;
    let mut end = 0;
    E::unpack(s, from, |pair, both| {
        s.tile_pairs(both, &mut to[pair]);
        end = pair + 1;
    });
    to[end..end.next_multiple_of(SIDE)]
        .as_flattened_mut()
        .fill(0);
}
