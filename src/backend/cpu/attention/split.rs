//! Attention of generated rows on AMX, as exact as in float32: q, and the weights of the softmax, are
//! sums of two bfloat16 (sixteen bits and a sign), K and V are bfloat16 as the cache has them, or its
//! integers. Eight queries are a tile: eight rows of upper parts, eight of lower ones.
//!
//! A tile's sums are the same whatever lies in other rows ([`super::super::amx`] says in which order k is
//! summed), and keys behind a query's last add zero; so neither the queries that share a pass nor their
//! number changes a bit.
//!
//! Memory is the limit, and sixteen streams of it are twice as fast as one: while a chunk is computed, the
//! pages of the next are asked for, a line of each in turn.

use super::CHUNK;
use super::chunk::{Cache, Chunk, State};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Amx, Half, SIDE, Sums, TILE_K};
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::exp::exp2_weight;
use crate::backend::cpu::simd::{LANES, Simd};
use std::f32::consts::LN_2;
use std::ops::Range;

/// Queries in a tile.
const GROUP: usize = SIDE / 2;
/// Pages that become tiles together: more would leave the tile unit waiting, which then wakes up slowly.
const PAGES: usize = 4;
/// Tiles of keys in them, where they are summed over.
const KEY_TILES: usize = PAGES * PAGE / TILE_K;
/// Pages of a chunk.
const CHUNK_PAGES: usize = CHUNK / PAGE;
/// Tiles that are multiplied with at a time.
const WIDE: usize = 4;
/// Float32 numbers that take the room of a tile, of either kind.
const TILE: usize = SIDE * SIDE;

/// Tiles of the head's width, as columns.
fn columns(head_dim: usize) -> usize {
    head_dim.div_ceil(LANES).next_multiple_of(WIDE)
}

/// Numbers of scratch for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let (deep, wide) = (head_dim.div_ceil(TILE_K), columns(head_dim));
    let group = deep + CHUNK_PAGES + CHUNK / TILE_K + wide;
    (queries.div_ceil(GROUP) * group + PAGES * deep + wide * KEY_TILES) * TILE
}

/// The pages of a chunk, asked for a few lines at a time.
pub(super) struct Ahead<'a, E: Element> {
    pages: [&'a [[E::Bits; LANES]]; CHUNK_PAGES],
    next: usize,
}

impl<'a, E: Element> Ahead<'a, E> {
    /// Of `chunk`, if there is one.
    pub(super) fn new(cache: Option<&Cache<'a, E>>, chunk: usize) -> Self {
        let mut pages: [&[[E::Bits; LANES]]; CHUNK_PAGES] = [&[]; CHUNK_PAGES];
        if let Some(cache) = cache {
            let from = (chunk * CHUNK_PAGES).min(cache.pages.len());
            for (page, to) in (from..cache.pages.len()).zip(&mut pages) {
                *to = cache.tiles(page);
            }
        }
        Self { pages, next: 0 }
    }

    /// The next line of every page.
    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S) {
        for page in self.pages {
            if let Some(at) = page.get(self.next) {
                s.prefetch_far(at);
            }
        }
        self.next += 64 / size_of::<[E::Bits; LANES]>();
    }
}

/// A number as the sum of two bfloat16.
#[inline(always)]
fn split<S: Simd>(s: S, x: S::F, upper: &mut [u16; LANES], lower: &mut [u16; LANES]) {
    s.tile_half(x, upper);
    s.tile_half(s.sub(x, s.widen_bf16(upper)), lower);
}

impl<E: Element> Chunk<'_, '_, E> {
    /// As [`Chunk::partial`], with `q` scaled so that scores are to base 2.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what attention is made of
    pub(super) fn partial_split<S: Simd>(
        &self,
        s: S,
        amx: Amx,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
        ahead: &mut Ahead<'_, E>,
    ) {
        let head_dim = self.cache.head_dim;
        let (deep, wide) = (head_dim.div_ceil(TILE_K), columns(head_dim));
        let (first, last) = (queries.start / GROUP, queries.end.div_ceil(GROUP));
        let (tiles, room) = room.split_at_mut(last * deep * TILE);
        let (weights, room) = room.split_at_mut(last * (CHUNK / TILE_K) * TILE);
        let (scores, room) = room.split_at_mut(last * CHUNK_PAGES * TILE);
        let (out, room) = room.split_at_mut(last * wide * TILE);
        let tiles: &mut [Half] = as_u16(tiles).as_chunks_mut().0;
        let weights: &mut [Half] = as_u16(weights).as_chunks_mut().0;
        let scores: &mut [Sums] = scores.as_chunks_mut().0;
        let out: &mut [Sums] = out.as_chunks_mut().0;
        let room: &mut [Half] = as_u16(room).as_chunks_mut().0;
        let (k, v) = room.split_at_mut(PAGES * deep);

        for i in queries.clone() {
            let q = &q[i * head_dim..][..head_dim];
            let to = &mut tiles[i / GROUP * deep..][..deep];
            for (q, to) in q.chunks(TILE_K).zip(to) {
                let to = to.as_chunks_mut::<LANES>().0;
                for h in 0..2 {
                    let from = &q[q.len().min(h * LANES)..];
                    let x = s.load_partial(&from[..from.len().min(LANES)]);
                    let row = i % GROUP;
                    let (upper, lower) = to.split_at_mut(2 * GROUP);
                    split(s, x, &mut upper[2 * row + h], &mut lower[2 * row + h]);
                }
            }
        }
        // Of all queries together.
        let keys = self.keys(queries.end - 1);
        let pages = keys.div_ceil(PAGE);
        let amx = amx.tiles();
        for page in (0..pages).step_by(PAGES) {
            let n = PAGES.min(pages - page);
            self.k_tiles(s, page, n, k, deep, ahead);
            for group in first..last {
                let a = &tiles[group * deep..][..deep];
                let to = &mut scores[group * CHUNK_PAGES + page..][..PAGES];
                for (i, to) in to.as_chunks_mut::<WIDE>().0.iter_mut().enumerate() {
                    if i * WIDE < n {
                        let b = [0, 1, 2, 3].map(|j| &k[(i * WIDE + j).min(n - 1) * deep..]);
                        amx.wide(a, b, to, true);
                    }
                }
            }
        }
        for i in queries.clone() {
            ahead.fetch(s);
            let group = i / GROUP;
            let scores = &mut scores[group * CHUNK_PAGES..][..CHUNK_PAGES];
            let weights = &mut weights[group * (CHUNK / TILE_K)..][..keys.div_ceil(TILE_K)];
            (part.max[i], part.sum[i]) = self.split_weights(s, i, scores, weights);
        }
        for page in (0..pages).step_by(PAGES) {
            let n = PAGES.min(pages - page);
            self.v_tiles(s, page, n, keys, v, ahead);
            for group in first..last {
                let a = &weights[group * (CHUNK / TILE_K) + page / 2..][..n.div_ceil(2)];
                let to = out[group * wide..][..wide].as_chunks_mut::<WIDE>().0;
                for (i, to) in to.iter_mut().enumerate() {
                    let b = [0, 1, 2, 3].map(|j| &v[(i * WIDE + j) * KEY_TILES..]);
                    amx.wide(a, b, to, page == 0);
                }
            }
        }
        drop(amx);
        for i in queries {
            let (group, row) = (i / GROUP, i % GROUP);
            let acc = &mut part.acc[i * part.padded..][..part.padded];
            let from = &out[group * wide..];
            for (to, from) in acc.as_chunks_mut::<LANES>().0.iter_mut().zip(from) {
                let rows = from.as_chunks::<LANES>().0;
                let sum = s.add(s.load(&rows[row]), s.load(&rows[GROUP + row]));
                s.store(sum, to);
            }
        }
    }

    /// K of `n` pages of the chunk from `page` on: `[page][head_dim / 32]` tiles.
    #[inline(always)]
    fn k_tiles<S: Simd>(
        &self,
        s: S,
        page: usize,
        n: usize,
        to: &mut [Half],
        deep: usize,
        ahead: &mut Ahead<'_, E>,
    ) {
        for (p, to) in to.chunks_exact_mut(deep).take(n).enumerate() {
            let from = self.cache.k(self.first_page + page + p).as_chunks::<2>().0;
            for (from, to) in from.chunks(SIDE).zip(to) {
                ahead.fetch(s);
                let to = to.as_chunks_mut::<{ 2 * LANES }>().0;
                for ([a, b], to) in from.iter().zip(to.iter_mut()) {
                    E::bf16_pair(s, a, b, to);
                }
                to[from.len()..].as_flattened_mut().fill(0);
            }
        }
    }

    /// V of `n` pages of the chunk from `page` on: `[head_dim / 16][key / 32]` tiles. What lies behind
    /// the chunk's first `keys` keys is zero: it has the weight zero, but may be anything.
    #[inline(always)]
    fn v_tiles<S: Simd>(
        &self,
        s: S,
        page: usize,
        n: usize,
        keys: usize,
        to: &mut [Half],
        ahead: &mut Ahead<'_, E>,
    ) {
        let vectors = self.cache.head_dim.div_ceil(LANES);
        let nothing = [E::Bits::default(); LANES];
        for p in 0..n.next_multiple_of(2) {
            let left = keys.saturating_sub((page + p) * PAGE);
            let from = match left {
                0 => &[][..],
                _ => self.cache.v(self.first_page + page + p),
            };
            let row = p % 2 * (PAGE / 2);
            for d in 0..vectors {
                if d % 2 == 0 {
                    ahead.fetch(s);
                }
                let to = to[d * KEY_TILES + p / 2].as_chunks_mut::<{ 2 * LANES }>().0;
                let to = &mut to[row..][..PAGE / 2];
                if left >= PAGE {
                    let from = &from[d..(PAGE - 1) * vectors + d + 1];
                    for (j, to) in to.iter_mut().enumerate() {
                        let first = 2 * j * vectors;
                        E::bf16_pair(s, &from[first], &from[first + vectors], to);
                    }
                } else {
                    for (j, to) in to.iter_mut().enumerate() {
                        let get = |key: usize| match key < left {
                            true => &from[key * vectors + d],
                            false => &nothing,
                        };
                        E::bf16_pair(s, get(2 * j), get(2 * j + 1), to);
                    }
                }
            }
        }
    }

    /// The scores of query `i`, to base 2 and in two parts, become weights of V in two parts: 2^(score -
    /// max). Gives the maximum, to base e, and the sum. Positions that the query may not see are masked
    /// here, whatever lies in them.
    #[inline(always)]
    fn split_weights<S: Simd>(
        &self,
        s: S,
        i: usize,
        scores: &mut [Sums],
        weights: &mut [Half],
    ) -> (f32, f32) {
        let (row, keys) = (i % GROUP, self.keys(i));
        let (used, odd) = (keys.div_ceil(LANES), keys % LANES);
        let mut max = [s.splat(f32::NEG_INFINITY); 2];
        for (v, scores) in scores[..used].iter_mut().enumerate() {
            let rows = scores.as_chunks_mut::<LANES>().0;
            let mut x = s.add(s.load(&rows[row]), s.load(&rows[GROUP + row]));
            if E::SCALED {
                x = s.mul(x, self.cache.k_units(s, self.first_page + v));
            }
            s.store(x, &mut rows[row]);
            if v + 1 == used && odd > 0 {
                rows[row][odd..].fill(f32::NEG_INFINITY);
                x = s.load(&rows[row]);
            }
            max[v % 2] = s.max(x, max[v % 2]);
        }
        let max = s.greatest(s.max(max[0], max[1]));
        let most = s.splat(max);
        let mut sum = [s.splat(0.0); 2];
        for (j, to) in weights.iter_mut().enumerate() {
            let (upper, lower) = to.as_chunks_mut::<LANES>().0.split_at_mut(2 * GROUP);
            for h in 0..2 {
                let v = 2 * j + h;
                let (upper, lower) = (&mut upper[2 * row + h], &mut lower[2 * row + h]);
                if v >= used {
                    upper.fill(0);
                    lower.fill(0);
                    continue;
                }
                let x = s.load(&scores[v].as_chunks::<LANES>().0[row]);
                let mut p = exp2_weight(s, s.sub(x, most));
                sum[h] = s.add(sum[h], p);
                if E::SCALED {
                    p = s.mul(p, self.cache.v_units(s, self.first_page + v));
                }
                split(s, p, upper, lower);
                // A unit behind the last key may be anything.
                if E::SCALED && v + 1 == used && odd > 0 {
                    upper[odd..].fill(0);
                    lower[odd..].fill(0);
                }
            }
        }
        (max * LN_2, s.sum(s.add(sum[0], sum[1])))
    }
}
