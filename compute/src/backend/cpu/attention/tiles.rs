//! Attention of prompt rows in bfloat16. K, Q, V and the softmax weights are tiles; scores, their
//! maxima and sums are float32. Tiles are multiplied by AMX, or by vectors on processors with an
//! instruction that multiplies pairs of bfloat16 faster than float32.
//!
//! Everything is transposed. Scores are K times Q, with one key per row and one query per lane. So
//! sixteen queries go through the softmax together, and nothing is ever summed across lanes. Sums
//! of V are the transpose of V times the weights.
//!
//! The chunks are the same as in the float32 kernels. Within a chunk, a query's score with a key is
//! one product over the head's width, and its sum of V is one product over the chunk's keys. A
//! product of tiles adds in the order of [`super::super::amx`]. A product of vectors is one chain
//! over ascending pairs, from zero. Weights are added in the order of [`super::pairs`]. So the bits
//! depend neither on which queries share a pass nor on how many do.
//!
//! This file has the task of a block of rows. `operands` makes tiles of Q, and of K and V, one
//! chunk after another. `group` computes the results of 32 queries over a chunk, and merges them.

use super::ahead::Ahead;
use super::cache::Cache;
use super::group::{GROUP, Group, KEY_TILES, Lanes, PLACES, Row, Seen, Square, lanes};
use super::{CHUNK, first_key, rows_that_see};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Amx, Half, SIDE, TILE_K};
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::pool::Rect;
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// The number of queries (rows times heads) that a block aims at. With so many, converting K and V
/// to tiles costs little per query.
pub(super) const BLOCK_QUERIES: usize = 512;

/// Float32 numbers that take as much memory as a tile of either kind.
const TILE: usize = SIDE * SIDE;

/// The length of the scratch memory for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let deep = head_dim.div_ceil(TILE_K);
    let groups = queries.div_ceil(GROUP);
    let tiles = groups * 6 * deep + 4 * KEY_TILES * deep + 2 * KEY_TILES + deep + 4 * PLACES;
    tiles * TILE + groups * 2 * GROUP
}

/// All chunks of a block of prompt rows.
pub(super) struct Task<'a, E: Element> {
    /// `None`: vector instructions multiply.
    pub amx: Option<Amx>,
    pub cache: Cache<'a, E>,
    /// The first row's queries for this KV head.
    pub q: &'a [f32],
    pub q_dim: usize,
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    pub group: usize,
    /// The largest number of keys that a row sees; at least 1.
    pub window: usize,
    pub scratch: &'a mut [f32],
    /// `[rows, group * head_dim]`.
    pub y: Rect<'a, f32>,
}

/// Cuts `len` numbers off the scratch memory.
fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    scratch.split_off_mut(..len).expect("scratch_len")
}

fn tiles(room: &mut [f32]) -> &mut [Half] {
    as_u16(room).as_chunks_mut().0
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let deep = self.cache.head_dim.div_ceil(TILE_K);
        let queries = self.rows * self.group;
        let groups = queries.div_ceil(GROUP);
        let mut scratch = std::mem::take(&mut self.scratch);
        let q = tiles(cut(&mut scratch, groups * 2 * deep * TILE));
        let k = tiles(cut(&mut scratch, 2 * KEY_TILES * deep * TILE));
        let v = tiles(cut(&mut scratch, 2 * KEY_TILES * deep * TILE));
        let pairs: &mut [Row] = as_u16(cut(&mut scratch, deep * TILE)).as_chunks_mut().0;
        let weights = tiles(cut(&mut scratch, 2 * KEY_TILES * TILE));
        let mut squares = |n: usize| -> &mut [Square] {
            let sums = cut(&mut scratch, n * 4 * TILE).as_chunks_mut().0;
            sums.as_chunks_mut().0
        };
        let (sums, acc) = (squares(PLACES), squares(groups * deep));
        let max: &mut [Lanes] = cut(&mut scratch, groups * GROUP).as_chunks_mut().0;
        let sum: &mut [Lanes] = cut(&mut scratch, groups * GROUP).as_chunks_mut().0;

        acc.as_flattened_mut().as_flattened_mut().fill(0.0);
        max.fill([f32::NEG_INFINITY; LANES]);
        sum.fill([0.0; LANES]);
        self.pack_q(s, q, deep);
        let amx = self.amx.map(Amx::tiles);
        // Whether the previous group's largest scores were usual.
        let mut are_usual = true;
        for start in (0..self.position + self.rows).step_by(CHUNK) {
            // Rows before the chunk do not see any of its keys.
            let first = start.saturating_sub(self.position) * self.group;
            let last = rows_that_see(start, self.position, self.window).min(self.rows) * self.group;
            if last <= first {
                continue;
            }
            let keys = (self.position + self.rows - start).min(CHUNK);
            self.unpack_k(s, start / PAGE, keys, k, pairs, deep);
            self.unpack_v(s, start / PAGE, keys, v, deep);
            let (k, v) = (k.as_chunks::<2>().0, v.as_chunks::<2>().0);
            let groups = first / GROUP..last.div_ceil(GROUP);
            // Meanwhile, the next chunk is prefetched from memory.
            let next = (start + CHUNK < self.position + self.rows).then_some(&self.cache);
            let mut ahead = Ahead::new(next, start / CHUNK + 1);
            let times = ahead.times().div_ceil(groups.len());
            for group in groups {
                let mine = group * GROUP..queries.min((group + 1) * GROUP);
                ahead.fetch(s, times);
                s.vectorize(Group {
                    amx: &amx,
                    seen: &self.seen(start, mine.clone(), first, last),
                    // The last query sees the most keys.
                    n: self.keys(mine.end - 1, start).div_ceil(TILE_K),
                    q: [0, 1].map(|half| &q[(2 * group + half) * deep..][..deep]),
                    k,
                    v,
                    weights,
                    sums,
                    acc: &mut acc[group * deep..][..deep],
                    max: &mut max[group * 2..][..2],
                    sum: &mut sum[group * 2..][..2],
                    are_usual: &mut are_usual,
                });
            }
        }
        drop(amx);
        for (i, sum) in sum.iter().enumerate() {
            self.write(s, i, &acc[i / 2 * deep..][..deep], sum);
        }
    }
}

impl<E: Element> Task<'_, E> {
    /// The first key that query `i` sees.
    #[inline(always)]
    fn first_key(&self, i: usize) -> usize {
        first_key(self.position + i / self.group, self.window)
    }

    /// The number of keys of the chunk at `start` that query `i` may see; 0 if the query lies
    /// before the chunk. It ascends in `i`.
    #[inline(always)]
    fn keys(&self, i: usize, start: usize) -> usize {
        (self.position + i / self.group + 1)
            .saturating_sub(start)
            .min(CHUNK)
    }

    /// Which keys of the chunk at `start` the queries `mine`, a group, see. The queries from
    /// `first` to `last` are those that see any key of the chunk.
    #[inline(always)]
    fn seen(&self, start: usize, mine: Range<usize>, first: usize, last: usize) -> Seen {
        let before = |i| self.first_key(i).saturating_sub(start);
        let mut seen = Seen {
            from: [[0.0; LANES]; 2],
            to: [[CHUNK as f32; LANES]; 2],
            whole: 0..KEY_TILES,
        };
        let all = first <= mine.start && mine.end <= last;
        if all && before(mine.end - 1) == 0 && self.keys(mine.start, start) == CHUNK {
            return seen;
        }
        seen.to = [[0.0; LANES]; 2];
        let some = mine.start.max(first)..mine.end.min(last);
        seen.whole = before(some.end - 1).div_ceil(TILE_K)..self.keys(some.start, start) / TILE_K;
        for i in some {
            let (half, lane) = ((i - mine.start) / LANES, i % LANES);
            seen.from[half][lane] = before(i) as f32;
            seen.to[half][lane] = self.keys(i, start) as f32;
        }
        seen
    }

    /// Writes the weighted means of V of sixteen queries, the `i`th half of a group.
    #[inline(always)]
    fn write<S: Simd>(&mut self, s: S, i: usize, acc: &[Square], sum: &Lanes) {
        let head_dim = self.cache.head_dim;
        let scale = s.div(s.splat(1.0), s.load(sum));
        for d in 0..head_dim.div_ceil(LANES) {
            let mut columns = [scale; LANES];
            let from = lanes(&acc[d / 2][d % 2 * 2 + i % 2]);
            for (column, from) in columns.iter_mut().zip(from) {
                *column = s.mul(s.load(from), scale);
            }
            for (lane, row) in s.transpose(columns).into_iter().enumerate() {
                let query = i * LANES + lane;
                if query < self.rows * self.group {
                    let y = &mut self.y.row(query / self.group)[query % self.group * head_dim..];
                    let y = &mut y[d * LANES..head_dim.min((d + 1) * LANES)];
                    s.store_partial(row, y);
                }
            }
        }
    }
}
