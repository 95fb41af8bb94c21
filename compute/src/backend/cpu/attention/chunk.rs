//! One chunk of keys: scores, softmax, and the weighted sum of V, for the queries of a block.

use super::cache::Cache;
use super::{CHUNK, first_key};
use crate::backend::cpu::PAGE;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::exp::exp;
use crate::backend::cpu::simd::{Kernel, LANES, Lookahead, Simd};
use std::ops::Range;

/// Results of some queries over some keys, one query after another.
pub(super) struct State<'a> {
    /// `[queries, padded]`: sum of exp(score - max) * v.
    pub(super) acc: &'a mut [f32],
    pub(super) max: &'a mut [f32],
    /// Sum of exp(score - max).
    pub(super) sum: &'a mut [f32],
    pub(super) padded: usize,
}

impl<'a> State<'a> {
    pub(super) fn new(
        scratch: &'a mut [f32],
        queries: usize,
        padded: usize,
    ) -> (Self, &'a mut [f32]) {
        let (acc, rest) = scratch.split_at_mut(queries * padded);
        let (max, rest) = rest.split_at_mut(queries);
        let (sum, rest) = rest.split_at_mut(queries);
        (
            Self {
                acc,
                max,
                sum,
                padded,
            },
            rest,
        )
    }

    /// Merges the next chunk of query `i`; the first chunk is taken as it is.
    #[inline(always)]
    pub(super) fn merge<S: Simd>(
        &mut self,
        s: S,
        i: usize,
        first: bool,
        acc: &[f32],
        max: f32,
        sum: f32,
    ) {
        let mine = &mut self.acc[i * self.padded..][..self.padded];
        if first {
            mine.copy_from_slice(acc);
            self.max[i] = max;
            self.sum[i] = sum;
            return;
        }
        let old = self.max[i];
        let new = if old > max { old } else { max };
        let (a, b) = (s.splat(old - new), s.splat(max - new));
        let (a, b) = (exp(s, a), exp(s, b));
        for (x, y) in mine
            .as_chunks_mut::<LANES>()
            .0
            .iter_mut()
            .zip(acc.as_chunks::<LANES>().0)
        {
            let scaled = s.mul(s.load(x), a);
            s.store(s.fma(s.load(y), b, scaled), x);
        }
        let total = s.fma(s.splat(sum), b, s.mul(s.splat(self.sum[i]), a));
        let mut lanes = [0.0; LANES];
        s.store(total, &mut lanes);
        self.sum[i] = lanes[0];
        self.max[i] = new;
    }

    /// Writes the weighted mean of V of query `i`.
    #[inline(always)]
    pub(super) fn write<S: Simd>(&self, s: S, i: usize, to: &mut [f32]) {
        let acc = &self.acc[i * self.padded..][..self.padded];
        let scale = s.splat(1.0 / self.sum[i]);
        for (x, to) in acc.as_chunks::<LANES>().0.iter().zip(to.chunks_mut(LANES)) {
            s.store_partial(s.mul(s.load(x), scale), to);
        }
    }
}

/// Prefetches all lines of a tile.
#[inline(always)]
fn fetch<S: Simd, E: Element>(s: S, tile: &[[E::Bits; 2 * LANES]]) {
    for line in tile.as_flattened().chunks(64 / size_of::<E::Bits>()) {
        s.prefetch_far(&line[0], Lookahead::HERE);
    }
}

/// One chunk of keys for the queries of a block.
pub(super) struct Chunk<'a, 'b, E: Element> {
    pub(super) cache: &'b Cache<'a, E>,
    pub(super) first_page: usize,
    /// Position of the block's first row.
    pub(super) position: usize,
    /// First key.
    pub(super) start: usize,
    pub(super) group: usize,
    /// The largest number of keys that a query sees; at least 1.
    pub(super) window: usize,
}

/// [`Chunk::scores`].
struct Scores<'x, 'a, 'b, E: Element, const Q: usize, const P: usize, const ONE: usize> {
    chunk: &'x Chunk<'a, 'b, E>,
    queries: Range<usize>,
    q: &'x [f32],
    scores: &'x mut [f32],
}

impl<E: Element, const Q: usize, const P: usize, const ONE: usize> Kernel
    for Scores<'_, '_, '_, E, Q, P, ONE>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.chunk
            .scores::<S, Q, P, ONE>(s, self.queries, self.q, self.scores);
    }
}

/// [`Chunk::weigh`].
struct Weigh<'x, 'y, 'a, 'b, E: Element, const Q: usize, const D: usize> {
    chunk: &'x Chunk<'a, 'b, E>,
    queries: Range<usize>,
    p: &'x [f32],
    part: &'x mut State<'y>,
}

impl<E: Element, const Q: usize, const D: usize> Kernel for Weigh<'_, '_, '_, '_, E, Q, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.chunk
            .weigh::<S, Q, D>(s, self.queries, self.p, self.part);
    }
}

impl<E: Element> Chunk<'_, '_, E> {
    /// The number of keys of the chunk that query `i` may see. It is at least one, and ascends in
    /// `i`.
    #[inline(always)]
    pub(super) fn keys(&self, i: usize) -> usize {
        (self.position + i / self.group + 1 - self.start).min(CHUNK)
    }

    /// Keys at the beginning of the chunk that lie before the window of query `i`; fewer than
    /// [`Chunk::keys`].
    #[inline(always)]
    pub(super) fn before(&self, i: usize) -> usize {
        first_key(self.position + i / self.group, self.window).saturating_sub(self.start)
    }

    /// Computes scores, their softmax, and the weighted sum of V, for `queries`.
    #[inline(always)]
    pub(super) fn partial<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        q: &[f32],
        scores: &mut [f32],
        part: &mut State<'_>,
    ) {
        // The shapes of the register tiles, (queries, pages) and (queries, vectors of V), and the
        // shapes for the queries that are left. Scores and sums are two separate kernels: as parts
        // of a task, they took much of the third of the compiler's time for the crate that tasks
        // took (benches/record/2026-12-01-attention-compiled.txt).
        macro_rules! in_tiles {
            ($Q:literal, $P:literal, $ONE:literal, $D:literal) => {{
                s.vectorize(Scores::<E, $Q, $P, $ONE> {
                    chunk: self,
                    queries: queries.clone(),
                    q,
                    scores,
                });
                self.soften(s, queries.clone(), scores, part);
                s.vectorize(Weigh::<E, $Q, $D> {
                    chunk: self,
                    queries,
                    p: scores,
                    part,
                });
            }};
        }
        match S::REGISTERS {
            32 if queries.len().is_multiple_of(8) => in_tiles!(8, 2, 8, 2),
            32 => in_tiles!(4, 4, 8, 4),
            8 => in_tiles!(4, 1, 4, 1),
            _ => in_tiles!(2, 1, 2, 1),
        }
    }

    /// Computes the scores of `queries` with all keys of the chunk that they see, and with some
    /// keys after these.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize, const P: usize, const ONE: usize>(
        &self,
        s: S,
        queries: Range<usize>,
        q: &[f32],
        scores: &mut [f32],
    ) {
        let mut i = queries.start;
        while i < queries.end {
            let many = i + Q <= queries.end;
            let n = if many { Q } else { 1 };
            let pages = self.keys(i + n - 1).div_ceil(PAGE);
            let q = &q[i * self.cache.head_dim..][..n * self.cache.head_dim];
            // The first queries prefetch K.
            let cold = i == queries.start;
            let to = &mut scores[i * CHUNK..][..n * CHUNK];
            let mut page = 0;
            while page < pages {
                match (many, pages - page) {
                    (true, left) if left >= P => {
                        self.tile::<S, Q, P>(s, q, page, cold, to);
                        page += P;
                    }
                    (true, _) => {
                        self.tile::<S, Q, 1>(s, q, page, cold, to);
                        page += 1;
                    }
                    (false, left) if left >= ONE => {
                        self.tile::<S, 1, ONE>(s, q, page, cold, to);
                        page += ONE;
                    }
                    (false, _) => {
                        self.tile::<S, 1, 1>(s, q, page, cold, to);
                        page += 1;
                    }
                }
            }
            i += n;
        }
    }

    /// Prefetches a page of V.
    #[inline(always)]
    pub(super) fn fetch_v<S: Simd>(&self, s: S, page: usize) {
        fetch::<S, E>(s, self.cache.v(page));
    }

    /// For each page of `pages`, prefetches the page of K that is `ahead` pages further on. Where
    /// the chunk ends before that page, it prefetches a page of V instead.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, s: S, pages: Range<usize>, ahead: usize) {
        for page in pages {
            let next = self.first_page + page + ahead;
            let tile = match page + ahead < CHUNK / PAGE && next < self.cache.pages.len() {
                true => self.cache.k(next),
                false => self.cache.v(self.first_page + page % ahead),
            };
            fetch::<S, E>(s, tile);
        }
    }

    /// Scores of Q queries with P pages.
    #[inline(always)]
    fn tile<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        q: &[f32],
        page: usize,
        cold: bool,
        scores: &mut [f32],
    ) {
        let head_dim = self.cache.head_dim;
        if cold {
            self.fetch(s, page..page + P, P);
        }
        let mut k: [&[[E::Bits; 2 * LANES]]; P] = [&[]; P];
        for (p, k) in k.iter_mut().enumerate() {
            *k = &self.cache.k(self.first_page + page + p)[..head_dim / 2];
        }
        let mut x: [&[f32]; Q] = [&[]; Q];
        for (i, x) in x.iter_mut().enumerate() {
            *x = &q[i * head_dim..][..head_dim];
        }
        let mut acc = [[s.splat(0.0); Q]; P];
        for pair in 0..head_dim / 2 {
            for p in 0..P {
                let k = E::widen_pair(s, &k[p][pair]);
                for i in 0..Q {
                    acc[p][i] = s.fma(k[0], s.splat(x[i][2 * pair]), acc[p][i]);
                    acc[p][i] = s.fma(k[1], s.splat(x[i][2 * pair + 1]), acc[p][i]);
                }
            }
        }
        if E::SCALED {
            for (p, acc) in acc.iter_mut().enumerate() {
                let units = self.cache.k_units(s, self.first_page + page + p);
                for acc in acc {
                    *acc = s.mul(*acc, units);
                }
            }
        }
        let scores = scores.as_chunks_mut::<LANES>().0;
        for i in 0..Q {
            for p in 0..P {
                s.store(acc[p][i], &mut scores[i * (CHUNK / LANES) + page + p]);
            }
        }
    }

    /// Turns scores into exp(score - max), and finds maximum and sum. Positions that a query may
    /// not see are masked here, whatever lies in them.
    #[inline(always)]
    fn soften<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        scores: &mut [f32],
        part: &mut State<'_>,
    ) {
        for i in queries {
            let keys = self.keys(i);
            let scores = &mut scores[i * CHUNK..][..keys.next_multiple_of(LANES)];
            scores[keys..].fill(f32::NEG_INFINITY);
            scores[..self.before(i)].fill(f32::NEG_INFINITY);
            let scores = scores.as_chunks_mut::<LANES>().0;
            let mut max = s.splat(f32::NEG_INFINITY);
            for x in scores.iter() {
                max = s.max(s.load(x), max);
            }
            let max = s.greatest(max);
            let mut sum = s.splat(0.0);
            for (page, x) in scores.iter_mut().enumerate() {
                let p = exp(s, s.sub(s.load(x), s.splat(max)));
                sum = s.add(sum, p);
                let p = match E::SCALED {
                    true => s.mul(p, self.cache.v_units(s, self.first_page + page)),
                    false => p,
                };
                s.store(p, x);
            }
            part.max[i] = max;
            part.sum[i] = s.sum(sum);
        }
    }

    /// The weighted sums of V of `queries`.
    #[inline(always)]
    fn weigh<S: Simd, const Q: usize, const D: usize>(
        &self,
        s: S,
        queries: Range<usize>,
        p: &[f32],
        part: &mut State<'_>,
    ) {
        part.acc[queries.start * part.padded..queries.end * part.padded].fill(0.0);
        let mut i = queries.start;
        while i < queries.end {
            if i + Q <= queries.end {
                // First come the keys that all Q queries see, then for each query the keys that
                // only it sees.
                let common = self.keys(i);
                self.weigh_all::<S, Q, D>(s, i, 0..common, p, part);
                for j in i + 1..i + Q {
                    let keys = self.keys(j);
                    if keys > common {
                        self.weigh_all::<S, 1, D>(s, j, common..keys, p, part);
                    }
                }
                i += Q;
            } else {
                self.weigh_all::<S, 1, D>(s, i, 0..self.keys(i), p, part);
                i += 1;
            }
        }
    }

    #[inline(always)]
    fn weigh_all<S: Simd, const Q: usize, const D: usize>(
        &self,
        s: S,
        i: usize,
        keys: Range<usize>,
        p: &[f32],
        part: &mut State<'_>,
    ) {
        let vectors = part.padded / LANES;
        let mut d = 0;
        while d < vectors {
            if d + D <= vectors {
                self.sum_tile::<S, Q, D>(s, i, keys.clone(), p, part, d);
                d += D;
            } else {
                self.sum_tile::<S, Q, 1>(s, i, keys.clone(), p, part, d);
                d += 1;
            }
        }
    }

    /// `acc += p v` over `keys`, for Q queries from `i` on and D vectors of V from `d` on.
    #[inline(always)]
    fn sum_tile<S: Simd, const Q: usize, const D: usize>(
        &self,
        s: S,
        i: usize,
        keys: Range<usize>,
        p: &[f32],
        part: &mut State<'_>,
        d: usize,
    ) {
        let vectors = part.padded / LANES;
        // The first pass over V prefetches it.
        let cold = d == 0 && i < Q;
        let sums = &mut part.acc.as_chunks_mut::<LANES>().0[i * vectors..][..Q * vectors];
        let mut weights: [&[f32; CHUNK]; Q] = [&[0.0; CHUNK]; Q];
        for (q, row) in p.as_chunks::<CHUNK>().0[i..][..Q].iter().enumerate() {
            weights[q] = row;
        }
        let mut acc = [[s.splat(0.0); D]; Q];
        for q in 0..Q {
            for j in 0..D {
                acc[q][j] = s.load(&sums[q * vectors + d + j]);
            }
        }
        let mut key = keys.start;
        while key < keys.end {
            let tile = self.cache.v(self.first_page + key / PAGE);
            let end = keys.end.min((key / PAGE + 1) * PAGE);
            if cold && end + PAGE < keys.end {
                self.fetch_v(s, self.first_page + key / PAGE + 2);
            }
            // (No closures: see `panels_amx::fill_block`.)
            macro_rules! add {
                ($key:expr, $($half:literal)+) => {{
                    let row = &tile[$key % PAGE / 2 * vectors + d..][..D];
                    let mut v = [[s.splat(0.0); 2]; D];
                    for j in 0..D {
                        v[j] = E::widen_pair(s, &row[j]);
                    }
                    for q in 0..Q {
                        $(let w = s.splat(weights[q][($key / 2 * 2 + $half) % CHUNK]);
                        for j in 0..D {
                            acc[q][j] = s.fma(w, v[j][$half], acc[q][j]);
                        })+
                    }
                }};
            }
            if key % 2 == 1 {
                add!(key, 1);
                key += 1;
            }
            while key + 1 < end {
                add!(key, 0 1);
                key += 2;
            }
            if key < end {
                add!(key, 0);
                key += 1;
            }
        }
        for q in 0..Q {
            for j in 0..D {
                s.store(acc[q][j], &mut sums[q * vectors + d + j]);
            }
        }
    }
}
