//! Attention of prompt rows in bfloat16: K, Q, V and the weights of the softmax as tiles; scores,
//! their maxima and sums in float32. Tiles are multiplied by AMX, or by vectors where an
//! instruction multiplies pairs of bfloat16 faster than float32.
//!
//! Everything lies on its side. Scores are K times Q, one key a row and one query a lane, so that
//! sixteen queries go through the softmax together, and nothing is ever summed across lanes. Sums
//! of V are V, on its side, times the weights.
//!
//! The chunks are the same as in the float32 kernels. Within a chunk, a query's score with a key is
//! one product over the head's width, and its sum of V is one product over the chunk's keys. A
//! product of tiles adds in the order of [`super::super::amx`]. A product of vectors is one chain
//! over ascending pairs, from zero. Weights are added in the order of [`super::pairs`]. So the bits
//! depend neither on which queries share a pass nor on how many do.
//!
//! `operands` makes tiles of Q, K and V; this is what becomes of them.

use super::cache::Cache;
use super::weights::{self, Weights};
use super::{CHUNK, first_key, rows_that_see};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Amx, Beside, Half, Prefetch, SIDE, Sums, TILE_K, Tiles};
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::exp::exp;
use crate::backend::cpu::pool::Rect;
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// The number of queries (rows times heads) that a block aims at. With so many, converting K and V
/// to tiles costs little for each.
pub(super) const BLOCK_QUERIES: usize = 512;
/// Queries whose scores are computed together: two halves, each one query a lane.
const GROUP: usize = 2 * LANES;
/// Rows whose sums vectors keep in registers, with two vectors of columns each.
const SUMS: usize = 8;
/// Tiles of 32 keys in a chunk.
pub(super) const KEY_TILES: usize = CHUNK / TILE_K;

/// Float32 numbers that take as much memory as a tile of either kind.
const TILE: usize = SIDE * SIDE;

/// Sixteen queries.
type Lanes = [f32; LANES];
/// Sixteen columns of two numbers each.
pub(super) type Row = [u16; 2 * LANES];
/// 32 rows by a group: `[half of the rows][half of the group][row]`. Of scores, the rows are keys,
/// the even ones before the odd ones; of sums of V, they are columns of V.
type Square = [Sums; 4];

/// The length of the scratch memory for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let deep = head_dim.div_ceil(TILE_K);
    let groups = queries.div_ceil(GROUP);
    let tiles = groups * 6 * deep + 4 * KEY_TILES * deep + 6 * KEY_TILES + 5 * deep;
    tiles * TILE + groups * 2 * GROUP
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

/// Cuts so many numbers off the scratch memory.
fn cut<'a>(scratch: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    scratch.split_off_mut(..len).expect("scratch_len")
}

fn tiles(room: &mut [f32]) -> &mut [Half] {
    as_u16(room).as_chunks_mut().0
}

/// What the queries of a group see of a chunk.
struct Seen {
    /// For each half of the group, the first key; and the one after the last. Nothing if both are
    /// the same.
    from: [Lanes; 2],
    to: [Lanes; 2],
    /// Tiles of 32 keys that every query sees as a whole, if it sees any.
    whole: Range<usize>,
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
        let (scores, out, acc) = (squares(KEY_TILES), squares(deep), squares(groups * deep));
        let max: &mut [Lanes] = cut(&mut scratch, groups * GROUP).as_chunks_mut().0;
        let sum: &mut [Lanes] = cut(&mut scratch, groups * GROUP).as_chunks_mut().0;

        acc.as_flattened_mut().as_flattened_mut().fill(0.0);
        max.fill([f32::NEG_INFINITY; LANES]);
        sum.fill([0.0; LANES]);
        self.pack_q(s, q, deep);
        let amx = self.amx.map(Amx::tiles);
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
            for group in first / GROUP..last.div_ceil(GROUP) {
                let mine = group * GROUP..queries.min((group + 1) * GROUP);
                let seen = self.seen(start, mine.clone(), first, last);
                // The last query sees the most keys.
                let n = self.keys(mine.end - 1, start).div_ceil(TILE_K);
                let b = [0, 1].map(|half| &q[(2 * group + half) * deep..][..deep]);
                let scores = &mut scores[..n];
                let mut maxima = Maxima::new(s);
                // Maxima are found beside the products unless some keys are hidden first.
                let all = seen.whole.start == 0 && seen.whole.end >= n;
                if all {
                    multiply(s, &amx, k, deep, b, scores, &mut maxima);
                    maxima.rows(n - 1, &scores[n - 1], 0..GROUP);
                } else {
                    multiply(s, &amx, k, deep, b, scores, &mut ());
                    for (i, square) in scores.iter_mut().enumerate() {
                        if !seen.whole.contains(&i) {
                            mask(s, i, &seen, square);
                        }
                        maxima.rows(i, square, 0..GROUP);
                    }
                }
                let halves = [
                    soften(s, 0, maxima.of(0), scores, weights),
                    soften(s, 1, maxima.of(1), scores, weights),
                ];
                let b = [0, KEY_TILES].map(|first| &weights[first..][..n]);
                // The chunk is merged beside the products, too.
                let acc = &mut acc[group * deep..][..deep];
                let (max, sum) = (&mut max[group * 2..][..2], &mut sum[group * 2..][..2]);
                let mut merge = Merge::new(s, &seen, halves, acc, max, sum);
                multiply(s, &amx, v, KEY_TILES, b, out, &mut merge);
                merge.rows(deep - 1, &out[deep - 1], 0..GROUP);
            }
        }
        drop(amx);
        for (i, sum) in sum.iter().enumerate() {
            self.write(s, i, &acc[i / 2 * deep..][..deep], sum);
        }
    }
}

/// `c = a b`, squares that have `b` in common. `a` has `stride` pairs of tiles for each square, of
/// which as many count as `b` has. `beside` gets all squares before the last one.
#[inline(always)]
fn multiply<S: Simd>(
    s: S,
    amx: &Option<Tiles>,
    a: &[[Half; 2]],
    stride: usize,
    b: [&[Half]; 2],
    c: &mut [Square],
    beside: &mut impl Beside,
) {
    if let Some(amx) = amx {
        return amx.squares::<1>(a, stride, b, c, 0, true, &mut Prefetch::none(), beside);
    }
    let n = c.len();
    for (i, (a, c)) in a.chunks(stride).zip(c).enumerate() {
        for (side, c) in c.as_chunks_mut().0.iter_mut().enumerate() {
            for first in (0..SIDE).step_by(SUMS) {
                dot(s, &a[..b[0].len()], side, first, b, c);
            }
        }
        if i + 1 < n {
            beside.rows(i, c, 0..GROUP);
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
            s.store(*sum, &mut c.as_chunks_mut().0[first + row]);
        }
    }
}

/// Hides keys of tile `i` from queries that may not see them, whatever their scores are.
#[inline(always)]
fn mask<S: Simd>(s: S, i: usize, seen: &Seen, scores: &mut Square) {
    let hidden = s.splat(f32::NEG_INFINITY);
    for (part, scores) in scores.iter_mut().enumerate() {
        let (odd, half) = (part / 2, part % 2);
        let (from, to) = (s.load(&seen.from[half]), s.load(&seen.to[half]));
        for (j, scores) in scores.as_chunks_mut().0.iter_mut().enumerate() {
            let key = s.splat((i * TILE_K + 2 * j + odd) as f32);
            let x = s.select_lt(key, to, s.load(scores), hidden);
            s.store(s.select_lt(key, from, hidden, x), scores);
        }
    }
}

/// The largest scores of a group: for each half of it, in two parts.
struct Maxima<S: Simd> {
    s: S,
    max: [[S::F; 2]; 2],
}

impl<S: Simd> Maxima<S> {
    #[inline(always)]
    fn new(s: S) -> Self {
        let max = [[s.splat(f32::NEG_INFINITY); 2]; 2];
        Self { s, max }
    }

    /// The maxima of half of the group.
    #[inline(always)]
    fn of(&self, half: usize) -> S::F {
        self.s.max(self.max[half][0], self.max[half][1])
    }
}

impl<S: Simd> Beside for Maxima<S> {
    #[inline(always)]
    fn rows(&mut self, _: usize, scores: &Square, rows: Range<usize>) {
        let s = self.s;
        for row in rows {
            for half in 0..2 {
                let x = s.load(&lanes(&scores[row / SIDE * 2 + half])[row % SIDE]);
                // This order of the arguments leaves NaN out. It reaches the weights.
                self.max[half][row % 2] = s.max(x, self.max[half][row % 2]);
            }
        }
    }
}

/// Turns the scores of half a group into weights of V, pairs of keys as rows of tiles: `[half of
/// the group][key / 32]`. Returns the scores that have the weight 1, to base e, and the sums of the
/// weights.
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    half: usize,
    max: S::F,
    scores: &[Square],
    to: &mut [Half],
) -> (S::F, S::F) {
    let all = Weights::new(s, max);
    let mut sums = [s.splat(0.0); SIDE];
    for (square, to) in scores.iter().zip(&mut to[half * KEY_TILES..]) {
        let (even, odd) = (lanes(&square[half]), lanes(&square[2 + half]));
        let to: &mut [Row; SIDE] = to.as_chunks_mut().0.first_chunk_mut().expect("a tile");
        for j in 0..SIDE {
            let words = [all.word(s, s.load(&even[j])), all.word(s, s.load(&odd[j]))];
            let pairs = weights::from_words(s, s.low_words(words));
            s.store_i16(pairs, &mut to[j]);
            sums[j] = weights::add(s, sums[j], pairs);
        }
    }
    let sum = weights::sum(s, sums);
    (all.max(s), all.checked(s, sum))
}

/// The rows of a tile of sums.
#[inline(always)]
fn lanes(sums: &Sums) -> &[Lanes; SIDE] {
    sums.as_chunks().0.first_chunk().expect("a tile")
}

/// Adds a chunk to what there is of a group's queries that see any of it; as
/// [`super::chunk::State::merge`] does it for one query.
struct Merge<'a, S: Simd> {
    s: S,
    /// Sums of weight times V: `[head_dim / 32]`.
    acc: &'a mut [Square],
    /// For each half of the group: what the queries see, and what old and new sums are multiplied
    /// by.
    seen: [[S::F; 2]; 2],
    scales: [[S::F; 2]; 2],
}

impl<'a, S: Simd> Merge<'a, S> {
    /// `new` are the scores that have the weight 1 and the sums of weights of both halves, which
    /// are merged with `max` and `sum` here.
    #[inline(always)]
    fn new(
        s: S,
        seen: &Seen,
        new: [(S::F, S::F); 2],
        acc: &'a mut [Square],
        max: &mut [Lanes],
        sum: &mut [Lanes],
    ) -> Self {
        let mut out = Self {
            s,
            acc,
            seen: [[s.splat(0.0); 2]; 2],
            scales: [[s.splat(0.0); 2]; 2],
        };
        for half in 0..2 {
            let (from, to) = (s.load(&seen.from[half]), s.load(&seen.to[half]));
            let (old, (new, more)) = (s.load(&max[half]), new[half]);
            let both = s.max(old, new);
            let (a, b) = (exp(s, s.sub(old, both)), exp(s, s.sub(new, both)));
            s.store(s.select_lt(from, to, both, old), &mut max[half]);
            let old = s.load(&sum[half]);
            let total = s.fma(more, b, s.mul(old, a));
            s.store(s.select_lt(from, to, total, old), &mut sum[half]);
            (out.seen[half], out.scales[half]) = ([from, to], [a, b]);
        }
        out
    }
}

impl<S: Simd> Beside for Merge<'_, S> {
    #[inline(always)]
    fn rows(&mut self, square: usize, sums: &Square, rows: Range<usize>) {
        let s = self.s;
        for row in rows {
            for half in 0..2 {
                let ([from, to], [a, b]) = (self.seen[half], self.scales[half]);
                let (tile, row) = (row / SIDE * 2 + half, row % SIDE);
                let at = &mut self.acc[square][tile].as_chunks_mut().0[row];
                let old = s.load(at);
                let total = s.fma(s.load(&lanes(&sums[tile])[row]), b, s.mul(old, a));
                s.store(s.select_lt(from, to, total, old), at);
            }
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

    /// What the queries `mine`, a group, see of the chunk at `start`, of whose keys the queries
    /// from `first` to `last` see some.
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
