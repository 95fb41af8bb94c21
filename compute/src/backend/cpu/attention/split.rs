//! Attention of generated rows on AMX, as exact as in float32. q and the weights of the softmax are
//! sums of two bfloat16 (sixteen bits and a sign). K and V are bfloat16 as in the cache, or the
//! cache's integers. Eight queries make a tile: eight rows of upper parts, eight of lower parts.
//!
//! The sums of a tile's row do not depend on the tile's other rows ([`super::super::amx`] says in
//! which order k is summed), and keys after a query's last key add zero. So the bits depend neither
//! on which queries share a pass nor on how many do.
//!
//! If the cache is bfloat16 and the width of a head is a whole number of tiles, the cache is
//! multiplied in place, a page at a time. Otherwise K and V are converted to tiles first. So the
//! choice depends on the cache and the head only.
//!
//! Memory bandwidth is the limit, and reading sixteen streams at once is twice as fast as reading
//! one. So while a chunk is computed, the pages of the next chunk are prefetched, one line of each
//! in turn.

use super::CHUNK;
use super::ahead::{Ahead, CHUNK_PAGES};
use super::cache::first_of;
use super::chunk::{Chunk, State};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Amx, Half, PageTiles, Pairs, SIDE, Sums, TILE_K, Tiles};
use crate::backend::cpu::buf::as_u16;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::exp::exp2_weight;
use crate::backend::cpu::simd::{LANES, Simd};
use std::f32::consts::LN_2;
use std::ops::Range;

/// Queries in a tile.
const GROUP: usize = SIDE / 2;
/// Pages that are converted to tiles together. With more, the tile unit would idle, and it then
/// wakes up slowly.
const PAGES: usize = 4;
/// Tiles of keys in these pages when sums run over keys.
const KEY_TILES: usize = PAGES * PAGE / TILE_K;
/// Column tiles that are multiplied at a time.
const WIDE: usize = 4;
/// Float32 numbers that take as much memory as a tile of either kind.
const TILE: usize = SIDE * SIDE;

/// The number of column tiles in the width of a head.
fn columns(head_dim: usize) -> usize {
    head_dim.div_ceil(LANES).next_multiple_of(WIDE)
}

/// The length of the scratch memory for `queries` queries.
pub(super) fn scratch_len(queries: usize, head_dim: usize) -> usize {
    let (deep, wide) = (head_dim.div_ceil(TILE_K), columns(head_dim));
    let group = deep + CHUNK_PAGES + CHUNK / TILE_K + wide;
    (queries.div_ceil(GROUP) * group + PAGES * deep + wide * KEY_TILES) * TILE
}

/// Splits a number into the sum of two bfloat16.
#[inline(always)]
fn split<S: Simd>(s: S, x: S::F, upper: &mut [u16; LANES], lower: &mut [u16; LANES]) {
    s.tile_half(x, upper);
    s.tile_half(s.sub(x, s.widen_bf16(upper)), lower);
}

impl<E: Element> Chunk<'_, '_, E> {
    /// Like [`Chunk::partial`], with `q` scaled so that scores are to base 2.
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
        // The keys that any of the queries sees.
        let keys = self.keys(queries.end - 1);
        let groups = first..last;
        let in_place = head_dim.is_multiple_of(TILE_K) && E::bf16_pairs(&[]).is_some();
        let whole = amx.tiles();
        self.split_scores(
            s,
            &whole,
            groups.clone(),
            keys,
            tiles,
            scores,
            k,
            in_place,
            ahead,
        );
        for i in queries.clone() {
            ahead.fetch(s, if in_place { deep } else { 1 });
            let group = i / GROUP;
            let scores = &mut scores[group * CHUNK_PAGES..][..CHUNK_PAGES];
            let weights = &mut weights[group * (CHUNK / TILE_K)..][..keys.div_ceil(TILE_K)];
            (part.max[i], part.sum[i]) = self.split_weights(s, i, scores, weights);
        }
        if in_place {
            let tiles = whole.for_pages(amx);
            self.sums_in_place(s, tiles, groups, keys, weights, out, v, ahead);
        } else {
            self.sums(s, whole, groups, keys, weights, out, v, ahead);
        }
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

    /// Computes the scores of the chunk's first `keys` keys, and of some keys after them, in two
    /// parts.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what attention is made of
    fn split_scores<S: Simd>(
        &self,
        s: S,
        amx: &Tiles,
        groups: Range<usize>,
        keys: usize,
        q: &[Half],
        scores: &mut [Sums],
        room: &mut [Half],
        in_place: bool,
        ahead: &mut Ahead<'_, E>,
    ) {
        let deep = self.cache.head_dim.div_ceil(TILE_K);
        let pages = keys.div_ceil(PAGE);
        for page in (0..pages).step_by(WIDE) {
            let n = WIDE.min(pages - page);
            if !in_place {
                self.k_tiles(s, page, n, room, deep, ahead);
            }
            let k = [0, 1, 2, 3].map(|i| {
                let i = i.min(n - 1);
                match E::bf16_pairs(self.cache.k(self.first_page + page + i)) {
                    Some(k) if in_place => k.as_flattened().as_chunks().0,
                    _ => &room[i * deep..][..deep],
                }
            });
            for group in groups.clone() {
                let to = &mut scores[group * CHUNK_PAGES + page..];
                let to = to.first_chunk_mut().expect("a chunk is whole");
                amx.wide(&q[group * deep..][..deep], k, to, true);
                if in_place {
                    ahead.fetch(s, 2 * deep);
                }
            }
        }
    }

    /// Computes weighted sums of V in place: all pages for four columns of tiles, then all pages
    /// for the next four.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what attention is made of
    fn sums_in_place<S: Simd>(
        &self,
        s: S,
        amx: PageTiles,
        groups: Range<usize>,
        keys: usize,
        weights: &[Half],
        out: &mut [Sums],
        room: &mut [Half],
        ahead: &mut Ahead<'_, E>,
    ) {
        let wide = columns(self.cache.head_dim);
        let pages = keys.div_ceil(PAGE);
        let mut v: [&[Pairs]; CHUNK_PAGES] = [&[]; CHUNK_PAGES];
        for (page, v) in v[..pages].iter_mut().enumerate() {
            let page = self.cache.v(self.first_page + page);
            *v = E::bf16_pairs(page).expect("pairs of bfloat16");
        }
        let left = keys % PAGE;
        if left > 0 {
            let from = self.cache.v(self.first_page + pages - 1);
            let vectors = from.len() / (PAGE / 2);
            let to = &mut room.as_flattened_mut().as_chunks_mut().0[..from.len()];
            for (i, (from, to)) in from.iter().zip(&mut *to).enumerate() {
                E::bf16_pair(s, &first_of::<E>(from, left, i / vectors), to);
            }
            v[pages - 1] = to;
        }
        for group in groups {
            let weights = &weights[group * (CHUNK / TILE_K)..];
            let to = out[group * wide..][..wide].as_chunks_mut::<WIDE>().0;
            for (i, to) in to.iter_mut().enumerate() {
                amx.wide(weights, &v[..pages], i * WIDE, to, || ahead.fetch(s, 2));
            }
        }
    }

    /// Computes weighted sums of V after converting V to tiles.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // what attention is made of
    fn sums<S: Simd>(
        &self,
        s: S,
        amx: Tiles,
        groups: Range<usize>,
        keys: usize,
        weights: &[Half],
        out: &mut [Sums],
        room: &mut [Half],
        ahead: &mut Ahead<'_, E>,
    ) {
        let wide = columns(self.cache.head_dim);
        let pages = keys.div_ceil(PAGE);
        for page in (0..pages).step_by(PAGES) {
            let n = PAGES.min(pages - page);
            self.v_tiles(s, page, n, keys, room, ahead);
            for group in groups.clone() {
                let a = &weights[group * (CHUNK / TILE_K) + page / 2..][..n.div_ceil(2)];
                let to = out[group * wide..][..wide].as_chunks_mut::<WIDE>().0;
                for (i, to) in to.iter_mut().enumerate() {
                    let b = [0, 1, 2, 3].map(|j| &room[(i * WIDE + j) * KEY_TILES..]);
                    amx.wide(a, b, to, page == 0);
                }
            }
        }
    }

    /// Converts K of `n` pages of the chunk from `page` on: `[page][head_dim / 32]` tiles.
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
            let from = self.cache.k(self.first_page + page + p);
            for (from, to) in from.chunks(SIDE).zip(to) {
                ahead.fetch(s, 1);
                let to = to.as_chunks_mut::<{ 2 * LANES }>().0;
                for (from, to) in from.iter().zip(to.iter_mut()) {
                    E::bf16_pair(s, from, to);
                }
                to[from.len()..].as_flattened_mut().fill(0);
            }
        }
    }

    /// Converts V of `n` pages of the chunk from `page` on: `[head_dim / 16][key / 32]` tiles. Pads
    /// with zeros after the chunk's first `keys` keys: those slots may hold garbage, and zero times
    /// NaN would be NaN.
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
        for p in 0..n.next_multiple_of(2) {
            let left = keys.saturating_sub((page + p) * PAGE);
            let from = match left {
                0 => &[][..],
                _ => self.cache.v(self.first_page + page + p),
            };
            let row = p % 2 * (PAGE / 2);
            for d in 0..vectors {
                if d % 2 == 0 {
                    ahead.fetch(s, 1);
                }
                let to = to[d * KEY_TILES + p / 2].as_chunks_mut::<{ 2 * LANES }>().0;
                let to = &mut to[row..][..PAGE / 2];
                if left == 0 {
                    to.as_flattened_mut().fill(0);
                    continue;
                }
                let from = &from[d..(PAGE / 2 - 1) * vectors + d + 1];
                for (j, to) in to.iter_mut().enumerate() {
                    let from = &from[j * vectors];
                    if left >= PAGE {
                        E::bf16_pair(s, from, to);
                    } else {
                        E::bf16_pair(s, &first_of::<E>(from, left, j), to);
                    }
                }
            }
        }
    }

    /// Turns the scores of query `i`, to base 2 and in two parts, into weights of V in two parts:
    /// 2^(score - max). Returns the maximum, to base e, and the sum. Positions that the query may
    /// not see are masked here, whatever lies in them.
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
        let before = self.before(i);
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
            if v * LANES < before {
                rows[row][..(before - v * LANES).min(LANES)].fill(f32::NEG_INFINITY);
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
                // A scale after the last key may hold anything.
                if E::SCALED && v + 1 == used && odd > 0 {
                    upper[odd..].fill(0);
                    lower[odd..].fill(0);
                }
            }
        }
        (max * LN_2, s.sum(s.add(sum[0], sum[1])))
    }
}
