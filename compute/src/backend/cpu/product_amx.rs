//! Matrix products on AMX, of prompt rows and, where the handle's precision says so, of generated
//! ones: activations and weights as bfloat16, sums in float32.
//!
//! Every output is one chain over ascending k from zero, one tile of 32 k at a time ([`super::amx`]
//! says in which order within a tile). So neither the number of rows, nor the way k, rows and
//! strips are cut, nor the number of threads changes a bit of it.
//!
//! A block of 512 k of all rows (512 KiB at 512 rows) stays in L2 while one pair of weight strips
//! after another passes over it. Between blocks of k, partial sums wait in scratch, also in L2.
//! After the last block the sums are written at once, square by square, while the next square is
//! multiplied. A separate pass over all sums cost 15 % at K = 2048, most of it waiting for the
//! lines that it wrote to. Weights that are tiles already are read from memory once for sixteen
//! rows or fewer: all of k at once, [`MAX_ROW`] strips side by side. Others are unpacked while the
//! first rows are multiplied, which takes longer than to read them.
//!
//! Measured with 512 rows, N = 11264 and K = 2048 on two cores of a Sapphire Rapids, in TFLOP/s:
//! - blocks of 256 k, sums written in a separate pass: 2.11
//! - the same, sums written at once: 2.53 (bypassing the caches is no better; prefetching the
//!   output gives 2.3)
//! - A tiles that do not displace B in L1 ([`super::amx`]), blocks of 512 k: 2.61 (blocks of 1024
//!   k: 2.3; blocks of 512 k without this way of loading A: 2.2)
//! - without prefetching weights: 2.4
//! - register tiles of 16 rows by 64 columns, or 32 by 48: no better than 32 by 32

use super::amx::{Amx, Half, MAX_ROW, Prefetch, SIDE, Sums, TILE, TILE_K, Tiles};
use super::blocks::with_blocks;
use super::buf::as_u16;
use super::element::{Bf16, F16};
use super::exp::silu;
use super::mat::Run;
use super::panels_amx::{BLOCK, BLOCK_K, GROUP, TilePanels};
use super::pool::{Grid, Rect};
use super::product::{Ending, Finish, Strips, Target};
use super::rows::K_BLOCK;
use super::simd::{Kernel, LANES, Simd};
use super::weights_amx::{AsTiles, unpack};
use super::{Workers, lock};
use crate::Dtype;
use std::ops::Range;

/// Groups that pass over a block of k before the next block.
const BAND: usize = 16;
/// Most strips that a task computes, including those of SwiGLU's second part.
const TASK_STRIPS: usize = 16;
/// How many tiles ahead to prefetch when there are few rows.
const AHEAD: usize = 2;

/// Float32 numbers that take as much memory as a block of k of two strips of bfloat16.
const UNPACKED: usize = BLOCK * TILE;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    let groups = max_rows.div_ceil(GROUP).clamp(1, BAND);
    UNPACKED + TASK_STRIPS / 2 * groups * 4 * SIDE * SIDE
}

/// Whether prompt rows are multiplied here if the processor has AMX.
pub(super) fn takes(dtype: Dtype) -> bool {
    dtype != Dtype::F32
}

/// Where the results of a product go.
pub(super) enum Destination<'a> {
    /// Into rows of float32.
    Rows(Target<'a>),
    /// Into tiles for the next product, which has `cols` columns.
    Panels {
        out: &'a mut TilePanels,
        cols: usize,
    },
}

/// Computes `weights * panels`, combined as `ending` says. Adapters are for rows, not for tiles.
pub(super) fn product(
    workers: Workers<'_>,
    amx: Amx,
    weights: &Run,
    panels: &TilePanels,
    ending: Ending<'_>,
    into: Destination<'_>,
) {
    let Workers {
        pool,
        tier,
        scratch,
    } = workers;
    debug_assert_eq!(panels.cols, weights.cols);
    let cols = match &into {
        Destination::Rows(target) => target.columns.len(),
        Destination::Panels { cols, .. } => *cols,
    };
    let strips = cols.div_ceil(LANES);
    let second = (ending.finish == Finish::SwiGlu).then(|| weights.parts[1].first);
    let most = match second {
        Some(_) => TASK_STRIPS / 2,
        None => TASK_STRIPS,
    };
    let run = |task_strips: usize, task: usize, thread: usize, out: Out<'_>| {
        let first = task * task_strips;
        if first >= strips {
            return;
        }
        let mut scratch = lock(scratch, thread);
        let count = task_strips.min(strips - first);
        macro_rules! run {
            ($E:ty) => {{
                tier.run_with_tiles(Task::<$E> {
                    amx,
                    panels,
                    scratch: &mut scratch,
                    write: Write {
                        ending,
                        bias: weights.bias.as_chunks().0,
                        first,
                        second,
                        cols: cols - first * LANES,
                        out,
                    },
                    weights: Strips::new(weights, first, count, second),
                })
            }};
        }
        match weights.dtype {
            Dtype::Bf16 => run!(Bf16),
            Dtype::F16 => run!(F16),
            dtype => match dtype.quant() {
                Some(quant) => with_blocks!(quant, Q => run!(Q)),
                None => unreachable!("{dtype} weights as tiles"),
            },
        }
    };
    match into {
        Destination::Rows(target) => {
            let Target {
                to,
                out,
                stride,
                columns,
            } = target;
            // So many tasks that threads share them evenly, each with an even number of strips.
            let tasks = strips.div_ceil(most).next_multiple_of(pool.n_threads());
            let task_strips = strips.div_ceil(tasks).next_multiple_of(2);
            let grid = Grid::some_columns(out, stride, columns, task_strips * LANES);
            pool.run(grid, |task, thread, out| {
                run(task_strips, task, thread, Out::Rows { out, to });
            });
        }
        Destination::Panels { out, .. } => {
            let mut tiles = most * LANES / TILE_K;
            while tiles > 1 && strips.div_ceil(2 * tiles) < 2 * pool.n_threads() {
                tiles /= 2;
            }
            let grid = out.parts(panels.rows, cols, tiles);
            pool.run(grid, |task, thread, out| {
                run(2 * tiles, task, thread, Out::Panels(out));
            });
        }
    }
}

struct Task<'a, E: AsTiles> {
    amx: Amx,
    weights: Strips<'a, E>,
    panels: &'a TilePanels,
    scratch: &'a mut [f32],
    write: Write<'a>,
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
    /// One of the two strips of a pair: neighbours, or one of each part. Beyond the end it is the
    /// last strip again.
    #[inline(always)]
    fn strip(&self, pair: usize, half: usize) -> &'a [E::Bits] {
        match self.weights.second {
            Some(_) => self.weights.get(pair + half * self.weights.count),
            None => self.weights.get(2 * pair + half),
        }
    }

    /// A block of k of both strips of a pair; shorter at their end, empty beyond it.
    #[inline(always)]
    fn block(&self, pair: usize, block: usize) -> [&'a [E::Bits]; 2] {
        let len = E::BLOCK * (BLOCK_K / K_BLOCK);
        [0, 1].map(|half| {
            let strip = self.strip(pair, half);
            &strip[strip.len().min(block * len)..strip.len().min((block + 1) * len)]
        })
    }

    fn pairs(&self) -> usize {
        self.weights.total().div_ceil(2)
    }

    /// At most sixteen rows: all of k at once, with weights straight from memory.
    #[inline(always)]
    fn few<S: Simd>(mut self, s: S) {
        let pairs = self.pairs();
        let count = (2 * pairs).div_ceil(MAX_ROW);
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
        let sums = self.scratch[UNPACKED..].as_chunks().0;
        for (pair, sums) in sums.as_chunks::<2>().0[..pairs].iter().enumerate() {
            self.write
                .half(s, 0..self.panels.rows, pair, [&sums[0], &sums[1]]);
        }
    }

    /// Many rows, one block of k after another.
    #[inline(always)]
    fn many<S: Simd>(mut self, s: S) {
        let groups = self.panels.groups();
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        for first in (0..groups).step_by(BAND) {
            let count = BAND.min(groups - first);
            for block in 0..blocks {
                for pair in 0..pairs {
                    let next = match pair + 1 < pairs {
                        true => self.block(pair + 1, block),
                        false => self.block(0, block + 1),
                    };
                    self.pair(s, first..first + count, block, pair, next);
                }
            }
        }
    }

    /// Multiplies a block of k of a pair of strips by `groups` of rows, while the strips of `next`
    /// are prefetched.
    #[inline(always)]
    fn pair<S: Simd>(
        &mut self,
        s: S,
        groups: Range<usize>,
        block: usize,
        pair: usize,
        next: [&[E::Bits]; 2],
    ) {
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        let stored = self.block(pair, block);
        let (unpacked, sums) = self.scratch.split_at_mut(UNPACKED);
        let unpacked = as_u16(unpacked).as_chunks_mut::<TILE>().0;
        let [b0, b1] = unpacked.as_chunks_mut::<BLOCK>().0 else {
            unreachable!("two strips")
        };
        let sums = sums.as_chunks_mut::<{ SIDE * SIDE }>().0;
        let sums = &mut sums.as_chunks_mut::<4>().0[pair * groups.len()..][..groups.len()];
        let tiles = self.amx.tiles();
        for (i, sums) in sums.iter_mut().enumerate() {
            let group = groups.start + i;
            let a = self.panels.block(group, block);
            // This group's share of the next strips.
            let next_b = next.map(|strip| {
                let share = strip.len().div_ceil(groups.len());
                &strip[strip.len().min(i * share)..strip.len().min((i + 1) * share)]
            });
            // Also this pair's share of the group's next block.
            let next_a = match block + 1 < blocks {
                true => self.panels.block(group, block + 1).as_flattened(),
                false => &[],
            };
            let share = next_a.len().div_ceil(pairs);
            let from = (pair * share).min(next_a.len());
            let ahead = (next_b, &next_a[from..next_a.len().min(from + share)]);
            let rows = group * GROUP..self.panels.rows.min((group + 1) * GROUP);
            let whole = rows.len() > SIDE;
            let first = block == 0;
            if !E::TILES && i == 0 {
                let mut ahead = Prefetch::new(ahead, a.len());
                let unpacked = [&mut *b0, &mut *b1];
                match whole {
                    true => first_square::<E, S, true>(
                        s, &tiles, a, stored, unpacked, sums, first, &mut ahead,
                    ),
                    false => first_square::<E, S, false>(
                        s, &tiles, a, stored, unpacked, sums, first, &mut ahead,
                    ),
                }
            } else {
                let b = match E::TILES {
                    true => stored.map(E::tiles),
                    false => [&b0[..], &b1[..]],
                };
                match whole {
                    true => tiles.square::<_, true>(a, b, sums, first, ahead),
                    false => tiles.square::<_, false>(a, b, sums, first, ahead),
                }
            }
            if block + 1 == blocks {
                let middle = rows.end.min(rows.start + SIDE);
                let [a, b, c, d] = &*sums;
                self.write.half(s, rows.start..middle, pair, [a, b]);
                if whole {
                    self.write.half(s, middle..rows.end, pair, [c, d]);
                }
            }
        }
    }
}

/// How sums become results, and where these go.
struct Write<'a> {
    ending: Ending<'a>,
    bias: &'a [[f32; LANES]],
    /// First of the task's strips.
    first: usize,
    /// First strip of the second part.
    second: Option<usize>,
    /// Columns of the product, counted from the task's first.
    cols: usize,
    out: Out<'a>,
}

enum Out<'a> {
    /// Row `i` into row `to[i]`.
    Rows { out: Rect<'a, f32>, to: &'a [u32] },
    /// `[group][tiles]`, in the layout of [`TilePanels`].
    Panels(Rect<'a, u16>),
}

impl Write<'_> {
    /// Writes at most sixteen rows of a pair of strips.
    #[inline(always)]
    fn half<S: Simd>(&mut self, s: S, rows: Range<usize>, pair: usize, sums: [&Sums; 2]) {
        let sums: [&[[f32; LANES]]; 2] = [sums[0].as_chunks().0, sums[1].as_chunks().0];
        // (No closure: see `fill_block`.)
        macro_rules! bias {
            ($strip:expr) => {
                match self.bias.get($strip) {
                    Some(b) => s.load(b),
                    // Adding this changes no number, not even -0.
                    None => s.splat(-0.0),
                }
            };
        }
        // What the adapter of a row adds.
        macro_rules! low {
            ($row:expr, $strip:expr, $y:expr) => {
                match (&self.ending.low, &self.out) {
                    (Some(low), Out::Rows { to, .. }) => match low.of_row(to[$row]) {
                        Some(low) => low.add(s, $strip, $y),
                        None => $y,
                    },
                    _ => $y,
                }
            };
        }
        if let Some(second) = self.second {
            let strip = self.first + pair;
            let (b0, b1) = (bias!(strip), bias!(second + strip));
            for (i, row) in rows.enumerate() {
                let (gate, up) = (s.load(&sums[0][i]), s.load(&sums[1][i]));
                let (gate, up) = (s.add(gate, b0), s.add(up, b1));
                let (gate, up) = (low!(row, strip, gate), low!(row, second + strip, up));
                let y = s.mul(silu(s, gate), up);
                self.one(s, row, pair, y);
            }
            return;
        }
        for (half, sums) in sums.into_iter().enumerate() {
            let strip = 2 * pair + half;
            if strip * LANES >= self.cols {
                return;
            }
            let b = bias!(self.first + strip);
            for (i, row) in rows.clone().enumerate() {
                let y = s.add(s.load(&sums[i]), b);
                let y = low!(row, self.first + strip, y);
                self.one(s, row, strip, y);
            }
        }
    }

    /// Writes one row of strip `strip` of the task.
    #[inline(always)]
    fn one<S: Simd>(&mut self, s: S, row: usize, strip: usize, y: S::F) {
        let column = strip * LANES;
        match &mut self.out {
            Out::Rows { out, to } => {
                let out = &mut out.row(to[row] as usize)[column..];
                let y = match self.ending.finish {
                    Finish::Add { scale } => s.add(s.load_partial(out), s.mul(y, s.splat(scale))),
                    Finish::AddSilu => s.add(s.load_partial(out), silu(s, y)),
                    Finish::Gated => s.mul(silu(s, s.load_partial(out)), y),
                    Finish::Store | Finish::SwiGlu => y,
                };
                s.store_partial(y, out);
            }
            Out::Panels(out) => {
                let to = &mut out.row(row / GROUP)[column / TILE_K * 2 * TILE..];
                let at = row % GROUP / SIDE * TILE + row % SIDE * TILE_K;
                let to = to[at..].first_chunk_mut::<TILE_K>().expect("a tile");
                let [to, beside] = to.as_chunks_mut::<LANES>().0 else {
                    unreachable!()
                };
                let left = self.cols - column;
                let to = if column.is_multiple_of(TILE_K) {
                    if left <= LANES {
                        beside.fill(0);
                    }
                    to
                } else {
                    beside
                };
                s.tile_half(y, to);
                // Columns after the last are multiplied with weights that are zero, so they must
                // hold numbers.
                if left < LANES {
                    to[left..].fill(0);
                }
            }
        }
    }
}

/// Unpacks a block of k of both strips of a pair while they are multiplied by the first group: the
/// tiles of a unit are multiplied after the next unit has been unpacked. Where all were unpacked
/// first, nothing overlapped, and 16 rows of int8 took 1.4 times as long (Emerald Rapids, in L2).
/// Units of eight tiles, which the K types need, gain less than units of two.
#[allow(clippy::too_many_arguments)] // one caller has them all
#[inline(always)]
fn first_square<E: AsTiles, S: Simd, const WHOLE: bool>(
    s: S,
    tiles: &Tiles,
    a: &[[Half; 2]],
    stored: [&[E::Bits]; 2],
    [b0, b1]: [&mut [Half; BLOCK]; 2],
    sums: &mut [Sums; 4],
    first: bool,
    ahead: &mut Prefetch<'_, E::Bits>,
) {
    const { assert!(BLOCK.is_multiple_of(E::UNIT_TILES), "units of a block") };
    tiles.begin_square::<WHOLE>(sums, first);
    let len = E::BLOCK * E::UNIT_TILES / (K_BLOCK / TILE_K);
    let units = a.len().div_ceil(E::UNIT_TILES);
    for unit in 0..=units {
        let at = unit * E::UNIT_TILES;
        if unit < units {
            let from = unit * len..(unit + 1) * len;
            let of = |strip: &[E::Bits]| from.start.min(strip.len())..from.end.min(strip.len());
            unpack::<E, S>(
                s,
                &stored[0][of(stored[0])],
                &mut b0[at..at + E::UNIT_TILES],
            );
            unpack::<E, S>(
                s,
                &stored[1][of(stored[1])],
                &mut b1[at..at + E::UNIT_TILES],
            );
        }
        if unit > 0 {
            let of_last = at - E::UNIT_TILES..at.min(a.len());
            let b = [&b0[of_last.clone()], &b1[of_last.clone()]];
            tiles.square_steps::<_, WHOLE>(&a[of_last], b, ahead);
        }
    }
    tiles.end_square::<WHOLE>(sums);
}
