//! Attention of generated rows in bfloat16 without tiles, for handles whose generated rows use the
//! arithmetic of prompts. Pairs of bfloat16 are multiplied as in [`super::group`] without AMX. The
//! order of all additions is fixed:
//!
//! - Every score is one chain of additions over ascending pairs of dimensions.
//! - Every sum of V is one chain over ascending pairs of the chunk's keys.
//! - Weights are added in sixteen lanes: the pairs of keys of each 32 one after another, and then
//!   across
//!   the lanes.
//!
//! So the bits are the same as for prompt rows, whichever queries share a pass.
//!
//! A bfloat16 cache is multiplied in place; other formats are converted one page at a time.

use super::CHUNK;
use super::chunk::{Chunk, State};
use super::weights::{self, OredBits, Weights};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::{LANES, Simd};
use std::ops::Range;

/// Queries that share a pass over K and V.
const QUERIES: usize = 8;
/// Queries that share a pass when fewer than [`QUERIES`] are left.
const FEWER: usize = 4;
/// Pages of K, or vectors of V, that are multiplied together.
const WIDE: usize = 2;

/// Sixteen columns of two numbers each.
type Row = [u16; 2 * LANES];

/// The length of the scratch memory for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let rows = QUERIES * (CHUNK + CHUNK / 2);
    queries * head_dim.div_ceil(2) + rows + WIDE * (head_dim / 2).max(PAGE / 2) * LANES
}

/// `sums += x b` for Q rows of pairs and N columns of vectors. The rows of `b` are `stride` apart.
#[inline(always)]
fn multiply<S: Simd, const Q: usize, const N: usize>(
    s: S,
    sums: &mut [[S::F; N]; Q],
    x: [&[[u16; 2]]; Q],
    b: [&[Row]; N],
    stride: usize,
) {
    for k in 0..x[0].len() {
        let mut columns = [s.splat_i32(0); N];
        for n in 0..N {
            columns[n] = s.load_i16(&b[n][k * stride]);
        }
        for q in 0..Q {
            let [even, odd] = x[q][k].map(u32::from);
            let pair = s.splat_i32((even | odd << 16) as i32);
            for n in 0..N {
                sums[q][n] = s.dot_bf16(sums[q][n], columns[n], pair);
            }
        }
    }
}

impl<E: Element> Chunk<'_, '_, E> {
    /// Like [`Chunk::partial`], but with `q` scaled for the units of [`super::weights`].
    #[inline(always)]
    pub(super) fn partial_pairs<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
    ) {
        let head_dim = self.cache.head_dim;
        let (x, room) = room.split_at_mut(queries.len() * head_dim / 2);
        let x: &mut [u16] = as_u16(x);
        for (from, to) in q[queries.start * head_dim..queries.end * head_dim]
            .chunks(LANES)
            .zip(x.chunks_mut(LANES))
        {
            let mut half = [0; LANES];
            s.tile_half(s.load_partial(from), &mut half);
            to.copy_from_slice(&half[..to.len()]);
        }
        let x: &[[u16; 2]] = x.as_chunks().0;
        let mut i = queries.start;
        while i < queries.end {
            let x = &x[(i - queries.start) * head_dim / 2..];
            let is_first = i == queries.start;
            i += match queries.end - i {
                QUERIES.. => self.some::<S, QUERIES>(s, i, x, is_first, room, part),
                FEWER.. => self.some::<S, FEWER>(s, i, x, is_first, room, part),
                _ => self.some::<S, 1>(s, i, x, is_first, room, part),
            };
        }
    }

    /// Computes Q queries from `i` on. Returns Q.
    #[inline(always)]
    fn some<S: Simd, const Q: usize>(
        &self,
        s: S,
        i: usize,
        x: &[[u16; 2]],
        is_first: bool,
        room: &mut [f32],
        part: &mut State<'_>,
    ) -> usize {
        let half = self.cache.head_dim / 2;
        let mut q: [&[[u16; 2]]; Q] = [&[]; Q];
        for (at, q) in q.iter_mut().enumerate() {
            *q = &x[at * half..][..half];
        }
        let (scores, room) = room.split_at_mut(Q * CHUNK);
        let (weights, room) = room.split_at_mut(Q * CHUNK / 2);
        let scores = scores.as_chunks_mut::<CHUNK>().0;
        let weights = as_u16(weights).as_chunks_mut::<CHUNK>().0;
        let buffer: &mut [Row] = as_u16(room).as_chunks_mut().0;
        // The last query sees the most keys.
        let keys = self.keys(i + Q - 1);
        let pages = keys.div_ceil(PAGE);
        let mut page = 0;
        while page < pages {
            let n = WIDE.min(pages - page);
            if is_first {
                self.fetch(s, page..page + n, n);
            }
            match n {
                WIDE => self.score::<S, Q, WIDE>(s, q, page, buffer, scores),
                _ => self.score::<S, Q, 1>(s, q, page, buffer, scores),
            }
            page += n;
        }
        let mut pairs: [&[[u16; 2]]; Q] = [&[]; Q];
        for (at, (scores, weights)) in scores.iter_mut().zip(weights).enumerate() {
            let seen = self.before(i + at)..self.keys(i + at);
            let (max, sum) = soften(s, seen, scores, weights);
            (part.max[i + at], part.sum[i + at]) = (max, sum);
            weights[self.keys(i + at).next_multiple_of(2 * LANES)..].fill(0);
            pairs[at] = weights.as_chunks().0;
        }
        let vectors = part.padded / LANES;
        let mut d = 0;
        while d < vectors {
            let n = WIDE.min(vectors - d);
            let is_cold = is_first && d == 0;
            match n {
                WIDE => self.weigh_pairs::<S, Q, WIDE>(s, i, keys, d, is_cold, pairs, buffer, part),
                _ => self.weigh_pairs::<S, Q, 1>(s, i, keys, d, is_cold, pairs, buffer, part),
            }
            d += n;
        }
        Q
    }

    /// Computes scores with N pages.
    #[inline(always)]
    fn score<S: Simd, const Q: usize, const N: usize>(
        &self,
        s: S,
        q: [&[[u16; 2]]; Q],
        page: usize,
        buffer: &mut [Row],
        scores: &mut [[f32; CHUNK]],
    ) {
        let half = self.cache.head_dim / 2;
        let mut k: [&[Row]; N] = [&[]; N];
        for (n, (k, buffer)) in k.iter_mut().zip(buffer.chunks_exact_mut(half)).enumerate() {
            let page = self.first_page + page + n;
            *k = match E::bf16_pairs(self.cache.k(page)) {
                Some(k) => k,
                None => {
                    self.cache.k_pairs(s, page, buffer);
                    buffer
                }
            };
        }
        let mut sums = [[s.splat(0.0); N]; Q];
        multiply(s, &mut sums, q, k, 1);
        for (sums, scores) in sums.iter().zip(scores) {
            let to = &mut scores.as_chunks_mut::<LANES>().0[page..];
            for (sum, to) in sums.iter().zip(to) {
                s.store(*sum, to);
            }
        }
    }

    /// Computes weighted sums of V, for N of its vectors from `d` on.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what attention is made of
    fn weigh_pairs<S: Simd, const Q: usize, const N: usize>(
        &self,
        s: S,
        i: usize,
        keys: usize,
        d: usize,
        is_cold: bool,
        pairs: [&[[u16; 2]]; Q],
        buffer: &mut [Row],
        part: &mut State<'_>,
    ) {
        let vectors = part.padded / LANES;
        let mut sums = [[s.splat(0.0); N]; Q];
        for page in 0..keys.div_ceil(PAGE) {
            let left = (keys - page * PAGE).min(PAGE);
            let at = self.first_page + page;
            if is_cold && (page + 2) * PAGE < keys {
                self.fetch_v(s, at + 2);
            }
            let pairs = pairs.map(|pairs| &pairs[page * PAGE / 2..][..PAGE / 2]);
            let mut v: [&[Row]; N] = [&[]; N];
            let stride = match E::bf16_pairs(self.cache.v(at)).filter(|_| left == PAGE) {
                Some(all) => {
                    for (n, v) in v.iter_mut().enumerate() {
                        *v = &all[d + n..];
                    }
                    vectors
                }
                None => {
                    let buffers = buffer.chunks_exact_mut(PAGE / 2);
                    for (n, (v, buffer)) in v.iter_mut().zip(buffers).enumerate() {
                        for (j, to) in buffer.iter_mut().enumerate() {
                            self.cache.v_pair(s, at, j, d + n, left, to);
                        }
                        *v = buffer;
                    }
                    1
                }
            };
            multiply(s, &mut sums, pairs, v, stride);
        }
        for (q, sums) in sums.iter().enumerate() {
            let to = &mut part.acc[(i + q) * part.padded..][..part.padded];
            for (sum, to) in sums.iter().zip(&mut to.as_chunks_mut::<LANES>().0[d..]) {
                s.store(*sum, to);
            }
        }
    }
}

/// Turns the scores of a query into weights of V. Returns the score that has the weight 1, to base
/// e, and the sum of the weights. Keys that the query may not see are masked here, whatever lies in
/// them.
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    seen: Range<usize>,
    scores: &mut [f32; CHUNK],
    to: &mut [u16; CHUNK],
) -> (f32, f32) {
    let used = seen.end.next_multiple_of(2 * LANES);
    scores[seen.end..used].fill(f32::NEG_INFINITY);
    scores[..seen.start].fill(f32::NEG_INFINITY);
    let scores = scores[..used].as_chunks::<LANES>().0;
    let mut all = Weights::usual(s);
    let mut sum = weigh(s, all, scores, to);
    if sum < weights::ENOUGH || sum.is_nan() {
        let mut max = s.splat(f32::NEG_INFINITY);
        for x in scores {
            max = s.max(s.load(x), max);
        }
        all = Weights::for_largest(s, s.splat(s.greatest(max)));
        sum = weigh(s, all, scores, to);
    }
    let mut one = [0.0; LANES];
    s.store(all.one(s), &mut one);
    (one[0], sum)
}

/// Returns the sum of the weights.
#[inline(always)]
fn weigh<S: Simd>(s: S, all: Weights<S::F>, scores: &[[f32; LANES]], to: &mut [u16; CHUNK]) -> f32 {
    let (mut sum, mut ored) = (s.splat(0.0), OredBits::new(s));
    for (x, to) in scores.as_chunks::<2>().0.iter().zip(to.as_chunks_mut().0) {
        let words = [all.word(s, s.load(&x[0])), all.word(s, s.load(&x[1]))];
        ored.or(s, words);
        let pairs = weights::from_words(s, s.low_words_in_order(words));
        s.store_i16(pairs, to);
        sum = weights::add(s, sum, pairs);
    }
    s.sum(ored.checked(s, sum))
}
