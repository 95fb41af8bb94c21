//! Attention of prompt rows in bfloat16: Q, K, the weights of the softmax and V as tiles; scores,
//! softmax and sums in float32. Tiles are multiplied by AMX, or by vectors where an instruction
//! multiplies pairs of bfloat16 faster than float32.
//!
//! The chunks are the same as in the float32 kernels. Within a chunk, a query's score with a key is
//! one product over the head's width, and its sum of V is one product over the chunk's keys. A
//! product of tiles adds in the order of [`super::super::amx`]. A product of vectors is one chain
//! over ascending pairs, from zero. So the bits depend neither on which queries share a pass nor on
//! how many do.

use super::cache::Cache;
use super::chunk::State;
use super::{CHUNK, first_key, rows_that_see};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Amx, Half, SIDE, Sums, TILE_K, Tiles};
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::exp::exp2_weight;
use crate::backend::cpu::pool::Rect;
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// The number of queries (rows times heads) that a block aims at. With so many, converting K and V
/// to tiles costs little for each.
pub(super) const BLOCK_QUERIES: usize = 256;
/// Queries that go through the softmax together.
const GROUP: usize = 2 * SIDE;
/// Queries whose sums vectors keep in registers, with two vectors of columns each.
const SUMS: usize = 8;
/// Tiles of keys in a chunk when sums run over keys.
const KEY_TILES: usize = CHUNK / TILE_K;

/// Float32 numbers that take as much memory as a tile of either kind.
const TILE: usize = SIDE * SIDE;

/// The length of the scratch memory for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let deep = head_dim.div_ceil(TILE_K);
    let groups = queries.div_ceil(GROUP);
    let tiles = groups * 2 * deep + 4 * KEY_TILES * deep + 4 * KEY_TILES + 2 * KEY_TILES + 4 * deep;
    tiles * TILE + queries * (head_dim.next_multiple_of(LANES) + 2) + 2 * deep * LANES
}

/// All chunks of a block of prompt rows.
pub(super) struct Task<'a, E: Element> {
    /// Without it vectors multiply.
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

fn tiles(room: &mut [f32]) -> &mut [Half] {
    as_u16(room).as_chunks_mut().0
}

fn sums(room: &mut [f32]) -> &mut [Sums] {
    room.as_chunks_mut().0
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let head_dim = self.cache.head_dim;
        let (deep, padded) = (head_dim.div_ceil(TILE_K), head_dim.next_multiple_of(LANES));
        let queries = self.rows * self.group;
        let groups = queries.div_ceil(GROUP);
        let scratch = std::mem::take(&mut self.scratch);
        let (q, scratch) = scratch.split_at_mut(groups * 2 * deep * TILE);
        let (k, scratch) = scratch.split_at_mut(2 * KEY_TILES * deep * TILE);
        let (v, scratch) = scratch.split_at_mut(2 * KEY_TILES * deep * TILE);
        let (scores, scratch) = scratch.split_at_mut(4 * KEY_TILES * TILE);
        let (weights, scratch) = scratch.split_at_mut(2 * KEY_TILES * TILE);
        let (out, scratch) = scratch.split_at_mut(4 * deep * TILE);
        let (row, scratch) = scratch.split_at_mut(2 * deep * LANES);
        let (mut total, _) = State::new(scratch, queries, padded);
        let (q, k, v) = (tiles(q), tiles(k), tiles(v));
        let (scores, weights) = (sums(scores), tiles(weights));
        let out = sums(out);

        self.pack_q(s, q, deep);
        let q = q.as_chunks::<2>().0;
        for start in (0..self.position + self.rows).step_by(CHUNK) {
            // Rows before the chunk do not see any of its keys.
            let first = start.saturating_sub(self.position) * self.group;
            let last = rows_that_see(start, self.position, self.window).min(self.rows) * self.group;
            if last <= first {
                continue;
            }
            let keys = (self.position + self.rows - start).min(CHUNK);
            self.unpack_k(s, start / PAGE, keys, k, deep);
            self.unpack_v(s, start / PAGE, keys, v, deep);
            for (group, q) in q.chunks_exact(deep).enumerate().skip(first / GROUP) {
                let mine = group * GROUP..queries.min((group + 1) * GROUP);
                if mine.start >= last {
                    break;
                }
                let half = mine.len() <= SIDE;
                // The keys that the last query of the group sees. The other queries see no more. At
                // least one.
                let keys = self.keys(mine.end - 1, start);
                let pairs = keys.div_ceil(TILE_K);
                let tiles = self.amx.map(Amx::tiles);
                let squares = scores.as_chunks_mut::<4>().0;
                for (i, c) in squares[..pairs].iter_mut().enumerate() {
                    let b = [&k[2 * i * deep..][..deep], &k[(2 * i + 1) * deep..][..deep]];
                    square(s, &tiles, q, b, c, half);
                }
                let weights = weights.as_chunks_mut::<2>().0;
                let (mut maxima, mut totals) = ([0.0; GROUP], [0.0; GROUP]);
                let see = mine.start.max(first)..mine.end.min(last);
                for i in see.clone() {
                    let at = i - mine.start;
                    let keys = self.first_key(i).saturating_sub(start)..self.keys(i, start);
                    (maxima[at], totals[at]) =
                        soften(s, at, keys, &mut squares[..pairs], &mut weights[..pairs]);
                }
                let weights = &weights[..pairs];
                for (i, c) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let b = [2 * i, 2 * i + 1].map(|d| &v[d * KEY_TILES..][..pairs]);
                    square(s, &tiles, weights, b, c, half);
                }
                drop(tiles);
                for i in see {
                    let at = i - mine.start;
                    // The first chunk is taken as it is.
                    let is_first = self.first_key(i) >= start;
                    let mine = match is_first {
                        true => &mut total.acc[i * padded..][..padded],
                        false => &mut row[..padded],
                    };
                    for (j, to) in mine.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        let from = &out[j / 2 * 4 + at / SIDE * 2 + j % 2];
                        s.store(s.load(&from.as_chunks::<LANES>().0[at % SIDE]), to);
                    }
                    if is_first {
                        (total.max[i], total.sum[i]) = (maxima[at], totals[at]);
                    } else {
                        total.merge(s, i, false, &row[..padded], maxima[at], totals[at]);
                    }
                }
            }
        }
        for i in 0..queries {
            let y = &mut self.y.row(i / self.group)[i % self.group * head_dim..][..head_dim];
            total.write(s, i, y);
        }
    }
}

/// `c = a b`: 32 rows, or the first 16, by 32 columns, with `c` as `[half of the rows][half of the
/// columns]`.
#[inline(always)]
fn square<S: Simd>(
    s: S,
    tiles: &Option<Tiles>,
    a: &[[Half; 2]],
    b: [&[Half]; 2],
    c: &mut [Sums; 4],
    half: bool,
) {
    match tiles {
        Some(tiles) if half => tiles.square::<false>(a, b, c),
        Some(tiles) => tiles.square::<true>(a, b, c),
        None => {
            let c = c.as_chunks_mut::<2>().0;
            for (side, c) in c.iter_mut().take(if half { 1 } else { 2 }).enumerate() {
                for first in (0..SIDE).step_by(SUMS) {
                    dot(s, a, side, first, b, c);
                }
            }
        }
    }
}

/// [`SUMS`] rows of a square, from `first` on.
#[inline(always)]
fn dot<S: Simd>(
    s: S,
    a: &[[Half; 2]],
    side: usize,
    first: usize,
    b: [&[Half]; 2],
    c: &mut [Sums; 2],
) {
    let (b0, b1) = (&b[0][..a.len()], &b[1][..a.len()]);
    let mut sums = [[s.splat(0.0); 2]; SUMS];
    for (i, a) in a.iter().enumerate() {
        let rows: &[[u16; TILE_K]; SUMS] =
            a[side].as_chunks().0[first..][..SUMS].try_into().unwrap();
        let columns = [&b0[i], &b1[i]].map(|b| b.as_chunks::<{ 2 * LANES }>().0);
        for k in 0..SIDE {
            let columns = [s.load_i16(&columns[0][k]), s.load_i16(&columns[1][k])];
            for (row, sums) in rows.iter().zip(&mut sums) {
                let pair = u32::from(row[2 * k]) | u32::from(row[2 * k + 1]) << 16;
                let pair = s.splat_i32(pair as i32);
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = s.dot_bf16(*sum, columns, pair);
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (sum, c) in sums.iter().zip(c.iter_mut()) {
            s.store(*sum, &mut c.as_chunks_mut::<LANES>().0[first + row]);
        }
    }
}

/// Turns the scores of query `at` of a group, to base 2, into weights of V: 2^(score - max).
/// Returns the maximum, to base e, and the sum. Positions that the query may not see are masked
/// here, whatever lies in them.
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    at: usize,
    keys: Range<usize>,
    scores: &mut [[Sums; 4]],
    weights: &mut [[Half; 2]],
) -> (f32, f32) {
    let (half, row) = (at / SIDE, at % SIDE);
    let used = keys.end.div_ceil(LANES);
    if !keys.end.is_multiple_of(LANES) {
        let v = used - 1;
        scores[v / 2][half * 2 + v % 2][row * SIDE + keys.end % LANES..(row + 1) * SIDE]
            .fill(f32::NEG_INFINITY);
    }
    for v in 0..keys.start.div_ceil(LANES) {
        let n = (keys.start - v * LANES).min(LANES);
        scores[v / 2][half * 2 + v % 2][row * SIDE..][..n].fill(f32::NEG_INFINITY);
    }
    // Loads the first or second sixteen keys of a square. (This is no closure, for the reason that
    // `product_amx` gives.)
    macro_rules! load {
        ($square:expr, $i:expr) => {
            s.load(&$square[half * 2 + $i].as_chunks::<LANES>().0[row])
        };
    }
    let mut max = [s.splat(f32::NEG_INFINITY); 2];
    for v in 0..used {
        max[v % 2] = s.max(load!(scores[v / 2], v % 2), max[v % 2]);
    }
    let max = s.greatest(s.max(max[0], max[1]));
    let most = s.splat(max);
    let mut sum = [s.splat(0.0); 2];
    for (j, (square, to)) in scores.iter().zip(weights).enumerate() {
        let to = &mut to[half].as_chunks_mut::<TILE_K>().0[row];
        for (i, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            if 2 * j + i < used {
                let p = exp2_weight(s, s.sub(load!(square, i), most));
                sum[i] = s.add(sum[i], p);
                s.tile_half(p, to);
            } else {
                to.fill(0);
            }
        }
    }
    (max * LN_2, s.sum(s.add(sum[0], sum[1])))
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

    /// Packs the queries, scaled so that scores are to base 2: `[query / 32][head_dim / 32][half of
    /// the queries]` tiles.
    #[inline(always)]
    fn pack_q<S: Simd>(&self, s: S, to: &mut [Half], deep: usize) {
        let head_dim = self.cache.head_dim;
        let scale = s.splat(LOG2_E / (head_dim as f32).sqrt());
        for i in 0..self.rows * self.group {
            let at = i / self.group * self.q_dim + i % self.group * head_dim;
            let from = &self.q[at..][..head_dim];
            let first = i / GROUP * deep * 2 + i % GROUP / SIDE;
            for t in 0..deep {
                let to = to[first + 2 * t].as_chunks_mut::<LANES>().0;
                for h in 0..2 {
                    let from = &from[head_dim.min(t * TILE_K + h * LANES)..];
                    let x = s.load_partial(&from[..from.len().min(LANES)]);
                    s.tile_half(s.mul(x, scale), &mut to[i % SIDE * 2 + h]);
                }
            }
        }
    }

    /// Converts `keys` keys from `page` on: `[key / 16][head_dim / 32]` tiles.
    #[inline(always)]
    fn unpack_k<S: Simd>(&self, s: S, page: usize, keys: usize, to: &mut [Half], deep: usize) {
        for (i, to) in to
            .chunks_exact_mut(deep)
            .take(keys.div_ceil(PAGE))
            .enumerate()
        {
            let rows = to.as_flattened_mut().as_chunks_mut::<{ 2 * LANES }>().0;
            self.cache.k_pairs(s, page + i, rows);
            rows[self.cache.head_dim / 2..].as_flattened_mut().fill(0);
        }
    }

    /// Converts `keys` values from `page` on: `[head_dim / 16][key / 32]` tiles. What lies after
    /// them becomes zero: its weight is zero, but it may hold anything.
    #[inline(always)]
    fn unpack_v<S: Simd>(&self, s: S, page: usize, keys: usize, to: &mut [Half], deep: usize) {
        let vectors = self.cache.head_dim.div_ceil(LANES);
        for d in 0..2 * deep {
            for (i, to) in to[d * KEY_TILES..][..keys.div_ceil(TILE_K)]
                .iter_mut()
                .enumerate()
            {
                let rows = to.as_chunks_mut::<{ 2 * LANES }>().0;
                for (h, rows) in rows
                    .as_chunks_mut::<{ PAGE / 2 }>()
                    .0
                    .iter_mut()
                    .enumerate()
                {
                    let left = keys.saturating_sub(i * TILE_K + h * PAGE).min(PAGE);
                    if left == 0 || d >= vectors {
                        rows.as_flattened_mut().fill(0);
                        continue;
                    }
                    for (j, to) in rows.iter_mut().enumerate() {
                        self.cache.v_pair(s, page + 2 * i + h, j, d, left, to);
                    }
                }
            }
        }
    }
}
