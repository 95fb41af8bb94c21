//! Causal attention over the paged cache, with an online softmax (Milakov & Gimelshein 2018; Dao et
//! al. 2022) over chunks of 256 keys at absolute positions.
//!
//! A query's result is: for every chunk a maximum, a sum and a weighted sum of V, each in an order
//! that the chunk's positions alone decide; then the chunks merged in ascending order. Who computes
//! which chunk, and which queries share a pass over K and V, changes no bit. A *block* is a few
//! consecutive rows of one sequence with the query heads of one KV head; where there are too few
//! blocks for the threads (decode), every chunk of a block is a task of its own.

use super::PAGE;
use super::element::{Element, with_element};
use super::exp::exp;
use super::kv::{CpuKv, tile_len};
use super::pool::{Grid, Pool, Rect};
use super::simd::{Kernel, LANES, Simd};
use super::{Tier, buf::Mem};
use crate::backend::{Shape, Step};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Mutex;

/// Keys in a chunk.
const CHUNK: usize = 256;
/// Queries (rows times heads) that a block aims at.
const BLOCK_QUERIES: usize = 64;

/// Consecutive rows of one sequence.
#[derive(Clone, Debug)]
struct RowBlock {
    rows: Range<usize>,
    /// Of the first row.
    position: usize,
    /// In [`Step::pages`].
    pages: Range<usize>,
    /// In [`Plan::items`].
    first_item: usize,
}

impl RowBlock {
    fn chunks(&self) -> usize {
        (self.position + self.rows.len()).div_ceil(CHUNK)
    }
}

/// How the rows of a step are cut into tasks; the same on every layer.
#[derive(Debug)]
pub(super) struct Plan {
    group: usize,
    heads: usize,
    head_dim: usize,
    /// Threads to keep busy.
    threads: usize,
    blocks: Vec<RowBlock>,
    /// Where the blocks begin, and the last ends.
    cuts: Vec<usize>,
    /// (block, chunk); empty where blocks are not cut into chunks.
    items: Vec<(usize, usize)>,
    /// Where the items begin in `partial`, and the last ends.
    item_cuts: Vec<usize>,
    /// `[item rows][kv head][query of the group][head_dim padded + 2]`: weighted sum, maximum, sum.
    partial: Mem<f32>,
    max_partial_rows: usize,
}

/// Numbers of one query's partial result.
fn partial_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + 2
}

/// Rows of partial results that are kept: enough for 8 sequences of full length.
fn max_partial_rows(max_positions: usize) -> usize {
    (8 * max_positions.div_ceil(CHUNK)).max(64)
}

/// Numbers of [`Plan::partial`].
pub(super) fn partials_len(shape: &Shape, max_positions: usize) -> usize {
    max_partial_rows(max_positions)
        .saturating_mul(shape.n_heads)
        .saturating_mul(partial_len(shape.head_dim))
}

fn block_rows(group: usize) -> usize {
    (BLOCK_QUERIES / group).max(1)
}

/// Numbers of scratch that a thread needs.
pub(super) fn scratch_len(shape: &Shape) -> usize {
    let group = shape.n_heads / shape.n_kv_heads;
    let padded = shape.head_dim.next_multiple_of(LANES);
    block_rows(group) * group * (shape.head_dim + CHUNK + 2 * padded + 4)
}

impl Plan {
    pub fn new(
        shape: &Shape,
        max_rows: usize,
        max_positions: usize,
        threads: usize,
    ) -> Result<Plan> {
        fn room<T>(n: usize) -> Result<Vec<T>> {
            let mut v = Vec::new();
            v.try_reserve_exact(n).map_err(|_| Error::NoMemory {
                what: "the plan of a step".into(),
                needed: (n as u64).saturating_mul(size_of::<T>() as u64),
                available: super::available_bytes(),
            })?;
            Ok(v)
        }
        let max_partial_rows = max_partial_rows(max_positions);
        Ok(Plan {
            group: shape.n_heads / shape.n_kv_heads,
            heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            threads,
            blocks: room(max_rows)?,
            cuts: room(max_rows + 1)?,
            items: room(max_partial_rows)?,
            item_cuts: room(max_partial_rows + 1)?,
            partial: Mem::zeroed("partial attention", partials_len(shape, max_positions))?,
            max_partial_rows,
        })
    }

    /// Cut the rows of `step`.
    pub fn load(&mut self, step: &Step) {
        self.blocks.clear();
        self.cuts.clear();
        self.items.clear();
        self.item_cuts.clear();
        self.cuts.push(0);
        for span in &step.spans {
            let mut row = span.rows.start;
            while row < span.rows.end {
                let end = (row + block_rows(self.group)).min(span.rows.end);
                self.blocks.push(RowBlock {
                    rows: row..end,
                    position: span.position + (row - span.rows.start),
                    pages: span.pages.clone(),
                    first_item: 0,
                });
                self.cuts.push(end);
                row = end;
            }
        }
        let partial_rows: usize = self.blocks.iter().map(|b| b.chunks() * b.rows.len()).sum();
        let split = self.blocks.len() * self.heads < 8 * self.threads
            && partial_rows <= self.max_partial_rows
            && self.blocks.iter().any(|b| b.chunks() > 1);
        if split && self.threads > 1 {
            let mut at = 0;
            self.item_cuts.push(at);
            for (i, block) in self.blocks.iter_mut().enumerate() {
                block.first_item = self.items.len();
                for chunk in 0..block.chunks() {
                    self.items.push((i, chunk));
                    at += block.rows.len();
                    self.item_cuts.push(at);
                }
            }
        }
    }

    /// `y = softmax(q K^T / sqrt(head_dim)) V` for every row, causal; `y, q: [rows, q_dim]`.
    pub fn attend(
        &mut self,
        pool: &Pool,
        tier: Tier,
        scratch: &[Mutex<Mem<f32>>],
        pages: &[u32],
        kv: &CpuKv,
        layer: usize,
        q: &[f32],
        y: &mut [f32],
    ) {
        let (heads, group) = (self.heads, self.group);
        let width = group * self.head_dim;
        let q_dim = heads * width;
        let Plan {
            blocks,
            cuts,
            items,
            item_cuts,
            partial,
            ..
        } = self;
        let (blocks, items, cuts, item_cuts) = (&blocks[..], &items[..], &cuts[..], &item_cuts[..]);
        let task = |block: &RowBlock, head, chunks, thread: usize, out: Out<'_>| {
            let mut scratch = scratch[thread].lock().unwrap_or_else(|e| e.into_inner());
            with_element!(kv.dtype, E => tier.run(Task::<E> {
                cache: Cache::new(kv, layer, head, &pages[block.pages.clone()]),
                q: &q[block.rows.start * q_dim + head * width..],
                q_dim,
                rows: block.rows.len(),
                position: block.position,
                group,
                chunks,
                scratch: &mut scratch,
                out,
            }));
        };
        if items.is_empty() {
            pool.run(Grid::bands(y, q_dim, width, cuts), |i, thread, y| {
                // The last blocks of a prompt have the most keys.
                let block = &blocks[i / heads];
                task(block, i % heads, 0..block.chunks(), thread, Out::Whole(y));
            });
            return;
        }
        let size = partial_len(self.head_dim);
        let stride = heads * group * size;
        let parts = Grid::bands(&mut partial[..], stride, group * size, item_cuts);
        pool.run(parts, |i, thread, out| {
            let (block, chunk) = items[i / heads];
            task(
                &blocks[block],
                i % heads,
                chunk..chunk + 1,
                thread,
                Out::Partial(out),
            );
        });
        let partial = &partial[..];
        let head_dim = self.head_dim;
        let merge = |i: usize, thread: usize, y: Rect<'_, f32>| {
            let mut scratch = scratch[thread].lock().unwrap_or_else(|e| e.into_inner());
            let block = &blocks[i / heads];
            tier.run(Merge {
                block,
                item_cuts: &item_cuts[block.first_item..],
                partial: &partial[i % heads * group * size..],
                stride,
                head_dim,
                state: &mut scratch,
                y,
            });
        };
        let parts = Grid::bands(y, q_dim, width, cuts);
        if items.len() * heads * group < 1024 {
            pool.here(parts, merge)
        } else {
            pool.run(parts, merge)
        }
    }
}

/// K and V of one head of one sequence.
struct Cache<'a, E: Element> {
    /// From this head of the layer's first page on.
    bits: &'a [E::Bits],
    page_len: usize,
    head_dim: usize,
    pages: &'a [u32],
}

impl<'a, E: Element> Cache<'a, E> {
    fn new(kv: &'a CpuKv, layer: usize, head: usize, pages: &'a [u32]) -> Self {
        let layer = &E::bits(&kv.data)[layer * kv.layer_len()..][..kv.layer_len()];
        let bits = &layer[head * tile_len(kv.head_dim)..];
        Self {
            bits,
            page_len: kv.page_len(),
            head_dim: kv.head_dim,
            pages,
        }
    }

    #[inline(always)]
    fn tiles(&self, page: usize) -> &'a [[E::Bits; LANES]] {
        let at = self.pages[page] as usize * self.page_len;
        self.bits[at..][..tile_len(self.head_dim)].as_chunks().0
    }

    /// `[head_dim][16 positions]`.
    #[inline(always)]
    fn k(&self, page: usize) -> &'a [[E::Bits; LANES]] {
        &self.tiles(page)[..self.head_dim]
    }

    /// `[16 positions][head_dim / 16]` vectors.
    #[inline(always)]
    fn v(&self, page: usize) -> &'a [[E::Bits; LANES]] {
        &self.tiles(page)[self.head_dim..]
    }
}

/// Where a task's results go.
enum Out<'a> {
    /// All chunks merged: `[rows, group * head_dim]`.
    Whole(Rect<'a, f32>),
    /// One chunk: `[rows, group * partial_len]`.
    Partial(Rect<'a, f32>),
}

struct Task<'a, E: Element> {
    cache: Cache<'a, E>,
    /// The first row's queries for this KV head.
    q: &'a [f32],
    q_dim: usize,
    rows: usize,
    position: usize,
    group: usize,
    chunks: Range<usize>,
    scratch: &'a mut [f32],
    out: Out<'a>,
}

/// Results of some queries over some keys, query by query.
struct State<'a> {
    /// `[queries, padded]`: sum of exp(score - max) * v.
    acc: &'a mut [f32],
    max: &'a mut [f32],
    /// Sum of exp(score - max).
    sum: &'a mut [f32],
    padded: usize,
}

impl<'a> State<'a> {
    fn new(scratch: &'a mut [f32], queries: usize, padded: usize) -> (Self, &'a mut [f32]) {
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

    /// Take in the next chunk of query `i`; the first chunk as it is.
    #[inline(always)]
    fn merge<S: Simd>(&mut self, s: S, i: usize, first: bool, acc: &[f32], max: f32, sum: f32) {
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

    /// Query `i`'s weighted mean of V.
    #[inline(always)]
    fn write<S: Simd>(&self, s: S, i: usize, to: &mut [f32]) {
        let acc = &self.acc[i * self.padded..][..self.padded];
        let scale = s.splat(1.0 / self.sum[i]);
        for (x, to) in acc.as_chunks::<LANES>().0.iter().zip(to.chunks_mut(LANES)) {
            s.store_partial(s.mul(s.load(x), scale), to);
        }
    }
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            cache,
            q,
            q_dim,
            rows,
            position,
            group,
            chunks,
            scratch,
            out,
        } = self;
        let head_dim = cache.head_dim;
        let padded = head_dim.next_multiple_of(LANES);
        let queries = rows * group;
        let (queries_q, rest) = scratch.split_at_mut(queries * head_dim);
        let (scores, rest) = rest.split_at_mut(queries * CHUNK);
        let (mut total, rest) = State::new(rest, queries, padded);
        let (mut part, _) = State::new(rest, queries, padded);

        let scale = 1.0 / (head_dim as f32).sqrt();
        for row in 0..rows {
            let from = &q[row * q_dim..][..group * head_dim];
            for (x, to) in from.iter().zip(&mut queries_q[row * group * head_dim..]) {
                *to = x * scale;
            }
        }
        let mut out = out;
        for chunk in chunks {
            // Rows before the chunk have no key in it.
            let start = chunk * CHUNK;
            let first_row = start.saturating_sub(position).min(rows);
            let first = first_row * group;
            let view = Chunk {
                cache: &cache,
                first_page: start / PAGE,
                position,
                start,
                group,
            };
            view.partial(s, first..queries, queries_q, scores, &mut part);
            for i in first..queries {
                let acc = &part.acc[i * padded..][..padded];
                match &mut out {
                    Out::Whole(_) => {
                        total.merge(s, i, chunk == 0, acc, part.max[i], part.sum[i]);
                    }
                    Out::Partial(to) => {
                        let to = &mut to.row(i / group)[i % group * (padded + 2)..][..padded + 2];
                        to[..padded].copy_from_slice(acc);
                        to[padded] = part.max[i];
                        to[padded + 1] = part.sum[i];
                    }
                }
            }
        }
        if let Out::Whole(y) = &mut out {
            for i in 0..queries {
                let y = &mut y.row(i / group)[i % group * head_dim..][..head_dim];
                total.write(s, i, y);
            }
        }
    }
}

/// Merges the chunks of a block, in ascending order.
struct Merge<'a> {
    block: &'a RowBlock,
    /// From the block's first item on.
    item_cuts: &'a [usize],
    /// From the task's KV head of the first item on.
    partial: &'a [f32],
    stride: usize,
    head_dim: usize,
    state: &'a mut [f32],
    y: Rect<'a, f32>,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            block,
            item_cuts,
            partial,
            stride,
            head_dim,
            state,
            mut y,
        } = self;
        let padded = head_dim.next_multiple_of(LANES);
        let group = y.cols() / head_dim;
        let (mut state, _) = State::new(state, group, padded);
        for row in 0..block.rows.len() {
            let chunks = (block.position + row) / CHUNK + 1;
            for chunk in 0..chunks {
                let from = &partial[(item_cuts[chunk] + row) * stride..];
                for (i, from) in from.chunks_exact(padded + 2).take(group).enumerate() {
                    let (acc, rest) = from.split_at(padded);
                    state.merge(s, i, chunk == 0, acc, rest[0], rest[1]);
                }
            }
            for (i, to) in y.row(row).chunks_exact_mut(head_dim).enumerate() {
                state.write(s, i, to);
            }
        }
    }
}

/// One chunk of keys for the queries of a block.
struct Chunk<'a, 'b, E: Element> {
    cache: &'b Cache<'a, E>,
    first_page: usize,
    /// Of the block's first row.
    position: usize,
    /// First key.
    start: usize,
    group: usize,
}

impl<E: Element> Chunk<'_, '_, E> {
    /// Keys of the chunk that query `i` may see; at least one, ascending in `i`.
    #[inline(always)]
    fn keys(&self, i: usize) -> usize {
        (self.position + i / self.group + 1 - self.start).min(CHUNK)
    }

    /// Scores, their softmax, and the weighted sum of V, of `queries`.
    #[inline(always)]
    fn partial<S: Simd>(
        &self,
        s: S,
        queries: Range<usize>,
        q: &[f32],
        scores: &mut [f32],
        part: &mut State<'_>,
    ) {
        // (queries, pages) and (queries, vectors of V) in a register tile, and what is left of each.
        match S::REGISTERS {
            32 => {
                self.scores::<S, 4, 4, 8>(s, queries.clone(), q, scores);
                self.soften(s, queries.clone(), scores, part);
                self.weigh::<S, 4, 4>(s, queries, scores, part);
            }
            8 => {
                self.scores::<S, 4, 1, 4>(s, queries.clone(), q, scores);
                self.soften(s, queries.clone(), scores, part);
                self.weigh::<S, 4, 1>(s, queries, scores, part);
            }
            _ => {
                self.scores::<S, 2, 1, 2>(s, queries.clone(), q, scores);
                self.soften(s, queries.clone(), scores, part);
                self.weigh::<S, 2, 1>(s, queries, scores, part);
            }
        }
    }

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
            let to = &mut scores[i * CHUNK..][..n * CHUNK];
            let mut page = 0;
            while page < pages {
                match (many, pages - page) {
                    (true, left) if left >= P => {
                        self.tile::<S, Q, P>(s, q, page, to);
                        page += P;
                    }
                    (true, _) => {
                        self.tile::<S, Q, 1>(s, q, page, to);
                        page += 1;
                    }
                    (false, left) if left >= ONE => {
                        self.tile::<S, 1, ONE>(s, q, page, to);
                        page += ONE;
                    }
                    (false, _) => {
                        self.tile::<S, 1, 1>(s, q, page, to);
                        page += 1;
                    }
                }
            }
            i += n;
        }
    }

    /// Scores of Q queries with P pages.
    #[inline(always)]
    fn tile<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        q: &[f32],
        page: usize,
        scores: &mut [f32],
    ) {
        let head_dim = self.cache.head_dim;
        let mut k: [&[[E::Bits; LANES]]; P] = [&[]; P];
        for p in 0..P {
            k[p] = &self.cache.k(self.first_page + page + p)[..head_dim];
        }
        let mut x: [&[f32]; Q] = [&[]; Q];
        for i in 0..Q {
            x[i] = &q[i * head_dim..][..head_dim];
        }
        let mut acc = [[s.splat(0.0); Q]; P];
        for d in 0..head_dim {
            for p in 0..P {
                let k = E::widen(s, &k[p][d]);
                for i in 0..Q {
                    acc[p][i] = s.fma(k, s.splat(x[i][d]), acc[p][i]);
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

    /// Scores -> exp(score - max), and both parts of the softmax. Positions that a query may not see
    /// are masked here, whatever lies in them.
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
            let scores = scores.as_chunks_mut::<LANES>().0;
            let mut max = s.splat(f32::NEG_INFINITY);
            for x in scores.iter() {
                max = s.max(s.load(x), max);
            }
            let max = s.greatest(max);
            let mut sum = s.splat(0.0);
            for x in scores {
                let p = exp(s, s.sub(s.load(x), s.splat(max)));
                sum = s.add(sum, p);
                s.store(p, x);
            }
            part.max[i] = max;
            part.sum[i] = s.sum(sum);
        }
    }

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
                // Keys that all Q see, then for each what it alone sees.
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
            for key in key..end {
                let row = &tile[key % PAGE * vectors + d..][..D];
                let mut v = [s.splat(0.0); D];
                for j in 0..D {
                    v[j] = E::widen(s, &row[j]);
                }
                for q in 0..Q {
                    let w = s.splat(weights[q][key % CHUNK]);
                    for j in 0..D {
                        acc[q][j] = s.fma(w, v[j], acc[q][j]);
                    }
                }
            }
            key = end;
        }
        for q in 0..Q {
            for j in 0..D {
                s.store(acc[q][j], &mut sums[q * vectors + d + j]);
            }
        }
    }
}
