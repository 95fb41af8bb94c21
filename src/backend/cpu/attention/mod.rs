//! Causal attention over the paged cache, with an online softmax (Milakov & Gimelshein 2018; Dao et
//! al. 2022) over chunks of 256 keys at absolute positions.
//!
//! A query's result is computed in two stages. For every chunk: a maximum, a sum and a weighted sum
//! of V, each in an order that depends on the chunk's positions only. Then the chunks are merged in
//! ascending order. Which thread computes which chunk, and which queries share a pass over K and V,
//! changes no bit.
//!
//! A *block* is a few consecutive rows of one sequence with the query heads of one KV head. Where
//! there are too few blocks for the threads (decode), every chunk of a block is a separate task.

mod chunk;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
use split::Ahead;

use super::PAGE;
#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
use super::element::{Element, with_cache_element};
use super::kv::CpuKv;
use super::pool::{Grid, Rect};
use super::simd::{Kernel, LANES, Simd};
use super::{Workers, buf::Mem, lock};
use crate::backend::{RowKind, Shape, Span, Step};
use crate::{Error, Result};
use chunk::{Cache, Chunk, State};
use std::ops::Range;

/// Keys in a chunk.
const CHUNK: usize = 256;
/// Queries (rows times heads) that a block aims at.
const BLOCK_QUERIES: usize = 64;

/// The first key that a row at `position` sees if it sees at most `window` keys.
fn first_key(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window)
}

/// How many of the first rows of a block still see a key of the chunk at `start`. Rows behind them
/// have windows that begin later.
fn rows_that_see(start: usize, position: usize, window: usize) -> usize {
    (start + CHUNK)
        .saturating_add(window - 1)
        .saturating_sub(position)
}

/// Consecutive rows of one sequence.
#[derive(Clone, Debug)]
struct RowBlock {
    rows: Range<usize>,
    /// Position of the first row.
    position: usize,
    /// Range of [`Step::pages`].
    pages: Range<usize>,
    /// Index in [`Cut::items`].
    first_item: usize,
    /// Whether these are prompt rows that are computed with tiles.
    tiles: bool,
}

impl RowBlock {
    fn chunks(&self) -> usize {
        (self.position + self.rows.len()).div_ceil(CHUNK)
    }
}

/// How the rows of a step are cut into tasks; it is the same on every layer.
#[derive(Debug)]
pub(super) struct Plan {
    group: usize,
    heads: usize,
    head_dim: usize,
    /// Threads to keep busy.
    threads: usize,
    /// Blocks for attention in float32.
    plain: Cut,
    /// Blocks of prompt rows for attention with tiles; empty if there are no tiles.
    tiled: Cut,
    has_tiles: bool,
    /// `[item rows][kv head][query of the group][head_dim padded + 2]`: weighted sum, maximum, sum.
    partial: Mem<f32>,
    max_partial_rows: usize,
}

#[derive(Debug)]
struct Cut {
    blocks: Vec<RowBlock>,
    /// Where the blocks begin, and where the last one ends.
    cuts: Vec<usize>,
    /// (block, chunk); empty if blocks are not cut into chunks. Blocks with tiles never are.
    items: Vec<(usize, usize)>,
    /// Where the items begin in `partial`, and where the last one ends.
    item_cuts: Vec<usize>,
}

/// Numbers of one query's partial result.
fn partial_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + 2
}

/// How many rows of partial results are kept: enough for 8 sequences of full length.
fn max_partial_rows(max_positions: usize) -> usize {
    (8 * max_positions.div_ceil(CHUNK)).max(64)
}

/// Numbers of [`Plan::partial`].
pub(super) fn partials_len(shape: &Shape, max_positions: usize) -> usize {
    max_partial_rows(max_positions)
        .saturating_mul(shape.n_heads)
        .saturating_mul(partial_len(shape.head_dim))
}

fn block_rows(group: usize, queries: usize) -> usize {
    (queries / group).max(1)
}

/// Rows of a block that is computed with tiles.
#[cfg(target_arch = "x86_64")]
fn tile_rows(group: usize) -> usize {
    block_rows(group, tiles::BLOCK_QUERIES)
}
#[cfg(not(target_arch = "x86_64"))]
fn tile_rows(group: usize) -> usize {
    block_rows(group, BLOCK_QUERIES)
}

/// Numbers of scratch that a thread needs.
pub(super) fn scratch_len(shape: &Shape) -> usize {
    let group = shape.n_heads / shape.n_kv_heads;
    let padded = shape.head_dim.next_multiple_of(LANES);
    let plain = block_rows(group, BLOCK_QUERIES) * group;
    let len = plain * (shape.head_dim + CHUNK + 2 * padded + 4);
    #[cfg(target_arch = "x86_64")]
    let len = {
        let split = split::scratch_len(plain, shape.head_dim);
        let states = plain * (shape.head_dim + 2 * padded + 4);
        let tiled = tiles::scratch_len(tile_rows(group) * group, shape.head_dim);
        len.max(split + states).max(tiled)
    };
    len
}

impl Cut {
    fn new(max_rows: usize, max_items: usize) -> Result<Self> {
        fn room<T>(n: usize) -> Result<Vec<T>> {
            let mut v = Vec::new();
            let bytes = (n as u64).saturating_mul(size_of::<T>() as u64);
            let refused = |_| Error::refused("the plan of a step", bytes);
            v.try_reserve_exact(n).map_err(refused)?;
            Ok(v)
        }
        Ok(Self {
            blocks: room(max_rows)?,
            cuts: room(max_rows + 1)?,
            items: room(max_items)?,
            item_cuts: room(max_items + 1)?,
        })
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.cuts.clear();
        self.items.clear();
        self.item_cuts.clear();
        self.cuts.push(0);
    }

    fn add(&mut self, span: &Span, rows: usize, tiles: bool) {
        let mut row = span.rows.start;
        while row < span.rows.end {
            let end = (row + rows).min(span.rows.end);
            self.blocks.push(RowBlock {
                rows: row..end,
                position: span.position + (row - span.rows.start),
                pages: span.pages.clone(),
                first_item: 0,
                tiles,
            });
            self.cuts.push(end);
            row = end;
        }
    }

    /// Makes every chunk a separate item if there are too few blocks for `tasks` tasks.
    fn split(&mut self, heads: usize, tasks: usize, max_rows: usize) {
        let plain = || self.blocks.iter().filter(|b| !b.tiles);
        let rows: usize = plain().map(|b| b.chunks() * b.rows.len()).sum();
        let worth = plain().any(|b| b.chunks() > 1);
        if !worth || rows > max_rows || plain().count() * heads >= tasks {
            return;
        }
        let mut at = 0;
        self.item_cuts.push(at);
        for (i, block) in self.blocks.iter_mut().enumerate().filter(|(_, b)| !b.tiles) {
            block.first_item = self.items.len();
            for chunk in 0..block.chunks() {
                self.items.push((i, chunk));
                at += block.rows.len();
                self.item_cuts.push(at);
            }
        }
    }
}

impl Plan {
    pub fn new(
        shape: &Shape,
        max_rows: usize,
        max_positions: usize,
        threads: usize,
        has_tiles: bool,
    ) -> Result<Plan> {
        let max_partial_rows = max_partial_rows(max_positions);
        Ok(Plan {
            group: shape.n_heads / shape.n_kv_heads,
            heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            threads,
            plain: Cut::new(max_rows, max_partial_rows)?,
            tiled: Cut::new(if has_tiles { max_rows } else { 0 }, max_partial_rows)?,
            has_tiles,
            partial: Mem::zeroed("partial attention", partials_len(shape, max_positions))?,
            max_partial_rows,
        })
    }

    /// Cuts the rows of `step` into tasks.
    pub fn load(&mut self, step: &Step) {
        let tasks = if self.threads > 1 {
            8 * self.threads
        } else {
            0
        };
        let rows = block_rows(self.group, BLOCK_QUERIES);
        self.plain.clear();
        for span in &step.spans {
            self.plain.add(span, rows, false);
        }
        self.plain.split(self.heads, tasks, self.max_partial_rows);
        if !self.has_tiles {
            return;
        }
        self.tiled.clear();
        for span in &step.spans {
            match span.kind {
                RowKind::Prefill => self.tiled.add(span, tile_rows(self.group), true),
                RowKind::Decode => self.tiled.add(span, rows, false),
            }
        }
        self.tiled.split(self.heads, tasks, self.max_partial_rows);
    }

    /// Computes `y = softmax(q K^T / sqrt(head_dim)) V` for every row, causal, over at most
    /// `window` keys (at least 1); `y, q: [rows, q_dim]`. Chunks that lie before the window of a
    /// row do not count for it; keys before it in its first chunk are masked. With `tiles` and a
    /// processor that has them: prompt rows use bfloat16 tiles, and generated rows are computed in
    /// two parts ([`split`]) if the cache's numbers are exact in bfloat16.
    #[allow(clippy::too_many_arguments)] // what attention is made of
    pub fn attend(
        &mut self,
        workers: Workers<'_>,
        tiles: bool,
        pages: &[u32],
        kv: &CpuKv,
        layer: usize,
        window: usize,
        q: &[f32],
        y: &mut [f32],
    ) {
        let Workers {
            pool,
            tier,
            scratch,
        } = workers;
        let (heads, group, threads) = (self.heads, self.group, pool.n_threads());
        let width = group * self.head_dim;
        let q_dim = heads * width;
        let partial = &mut self.partial;
        let Cut {
            blocks,
            cuts,
            items,
            item_cuts,
        } = match tiles && self.has_tiles {
            true => &self.tiled,
            false => &self.plain,
        };
        // `then` is where the thread will probably go on: a block, a head and a chunk.
        let task = |block: &RowBlock,
                    head,
                    chunks,
                    then: Option<(&RowBlock, usize, usize)>,
                    thread: usize,
                    out: Out<'_>| {
            let mut scratch = lock(scratch, thread);
            #[cfg(target_arch = "x86_64")]
            if let (true, Some(amx), Out::Whole(_)) = (block.tiles, tier.amx(), &out) {
                let Out::Whole(y) = out else { unreachable!() };
                return with_cache_element!(kv.dtype, E => tier.run_conversions(tiles::Task::<E> {
                    amx,
                    cache: Cache::new(kv, layer, head, &pages[block.pages.clone()]),
                    q: &q[block.rows.start * q_dim + head * width..],
                    q_dim,
                    rows: block.rows.len(),
                    position: block.position,
                    group,
                    window,
                    scratch: &mut scratch,
                    y,
                }));
            }
            with_cache_element!(kv.dtype, E => {
                #[cfg(target_arch = "x86_64")]
                let amx = tier.amx().filter(|_| tiles && E::IN_BF16);
                let task = Task::<E> {
                    #[cfg(target_arch = "x86_64")]
                    amx,
                    then: then.map(|(block, head, chunk)| {
                        (Cache::new(kv, layer, head, &pages[block.pages.clone()]), chunk)
                    }),
                    cache: Cache::new(kv, layer, head, &pages[block.pages.clone()]),
                    q: &q[block.rows.start * q_dim + head * width..],
                    q_dim,
                    rows: block.rows.len(),
                    position: block.position,
                    group,
                    window,
                    chunks,
                    scratch: &mut scratch,
                    out,
                };
                #[cfg(target_arch = "x86_64")]
                if amx.is_some() {
                    return tier.run_conversions(task);
                }
                tier.run(task)
            });
        };
        if items.is_empty() {
            pool.run(Grid::bands(y, q_dim, width, cuts), |i, thread, y| {
                let block = &blocks[i / heads];
                let next = i + threads;
                let then = blocks.get(next / heads).map(|b| (b, next % heads, 0));
                task(
                    block,
                    i % heads,
                    0..block.chunks(),
                    then,
                    thread,
                    Out::Whole(y),
                );
            });
            return;
        }
        let size = partial_len(self.head_dim);
        let stride = heads * group * size;
        let parts = Grid::bands(&mut partial[..], stride, group * size, item_cuts);
        pool.run(parts, |i, thread, out| {
            let (block, chunk) = items[i / heads];
            let next = i + threads;
            let then = items.get(next / heads);
            task(
                &blocks[block],
                i % heads,
                chunk..chunk + 1,
                then.map(|&(block, chunk)| (&blocks[block], next % heads, chunk)),
                thread,
                Out::Partial(out),
            );
        });
        let partial = &partial[..];
        let head_dim = self.head_dim;
        let merge = |i: usize, thread: usize, y: Rect<'_, f32>| {
            let block = &blocks[i / heads];
            if block.tiles {
                return task(
                    block,
                    i % heads,
                    0..block.chunks(),
                    None,
                    thread,
                    Out::Whole(y),
                );
            }
            let mut scratch = lock(scratch, thread);
            tier.run(Merge {
                block,
                item_cuts: &item_cuts[block.first_item..],
                partial: &partial[i % heads * group * size..],
                stride,
                head_dim,
                window,
                state: &mut scratch,
                y,
            });
        };
        let parts = Grid::bands(y, q_dim, width, cuts);
        if items.len() * heads * group < 1024 && !blocks.iter().any(|b| b.tiles) {
            pool.here(parts, merge)
        } else {
            pool.run(parts, merge)
        }
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
    /// Set for rows that are computed with tiles, in two parts.
    #[cfg(target_arch = "x86_64")]
    amx: Option<Amx>,
    cache: Cache<'a, E>,
    /// The cache that its thread will probably need next, and the chunk.
    then: Option<(Cache<'a, E>, usize)>,
    /// The first row's queries for this KV head.
    q: &'a [f32],
    q_dim: usize,
    rows: usize,
    position: usize,
    group: usize,
    window: usize,
    chunks: Range<usize>,
    scratch: &'a mut [f32],
    out: Out<'a>,
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            #[cfg(target_arch = "x86_64")]
            amx,
            cache,
            then,
            q,
            q_dim,
            rows,
            position,
            group,
            window,
            chunks,
            scratch,
            out,
        } = self;
        let head_dim = cache.head_dim;
        let padded = head_dim.next_multiple_of(LANES);
        let queries = rows * group;
        let (queries_q, rest) = scratch.split_at_mut(queries * head_dim);
        let (mut total, rest) = State::new(rest, queries, padded);
        let (mut part, room) = State::new(rest, queries, padded);

        let scale = 1.0 / (head_dim as f32).sqrt();
        #[cfg(target_arch = "x86_64")]
        let scale = match amx {
            Some(_) => scale * std::f32::consts::LOG2_E,
            None => scale,
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = then;
        for row in 0..rows {
            let from = &q[row * q_dim..][..group * head_dim];
            for (x, to) in from.iter().zip(&mut queries_q[row * group * head_dim..]) {
                *to = x * scale;
            }
        }
        let mut out = out;
        for chunk in chunks.clone() {
            // Rows before the chunk do not see any of its keys.
            let start = chunk * CHUNK;
            let first_row = start.saturating_sub(position).min(rows);
            let last_row = rows_that_see(start, position, window).min(rows);
            if last_row <= first_row {
                continue;
            }
            let (first, last) = (first_row * group, last_row * group);
            let view = Chunk {
                cache: &cache,
                first_page: start / PAGE,
                position,
                start,
                group,
                window,
            };
            #[cfg(target_arch = "x86_64")]
            match amx {
                Some(amx) => {
                    let mut ahead = match (chunk + 1 < chunks.end, &then) {
                        (true, _) => Ahead::new(Some(&cache), chunk + 1),
                        (_, Some((cache, chunk))) => Ahead::new(Some(cache), *chunk),
                        _ => Ahead::new(None, 0),
                    };
                    let queries = first..last;
                    view.partial_split(s, amx, queries, queries_q, room, &mut part, &mut ahead);
                }
                None => view.partial(s, first..last, queries_q, room, &mut part),
            }
            #[cfg(not(target_arch = "x86_64"))]
            view.partial(s, first..last, queries_q, room, &mut part);
            for i in first..last {
                let acc = &part.acc[i * padded..][..padded];
                match &mut out {
                    Out::Whole(_) => {
                        let first = first_key(position + i / group, window) / CHUNK;
                        total.merge(s, i, chunk == first, acc, part.max[i], part.sum[i]);
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
    /// Begins at the block's first item.
    item_cuts: &'a [usize],
    /// Begins at the first item of the task's KV head.
    partial: &'a [f32],
    stride: usize,
    head_dim: usize,
    window: usize,
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
            window,
            state,
            mut y,
        } = self;
        let padded = head_dim.next_multiple_of(LANES);
        let group = y.cols() / head_dim;
        let (mut state, _) = State::new(state, group, padded);
        for row in 0..block.rows.len() {
            let position = block.position + row;
            let first = first_key(position, window) / CHUNK;
            for chunk in first..position / CHUNK + 1 {
                let from = &partial[(item_cuts[chunk] + row) * stride..];
                for (i, from) in from.chunks_exact(padded + 2).take(group).enumerate() {
                    let (acc, rest) = from.split_at(padded);
                    state.merge(s, i, chunk == first, acc, rest[0], rest[1]);
                }
            }
            for (i, to) in y.row(row).chunks_exact_mut(head_dim).enumerate() {
                state.write(s, i, to);
            }
        }
    }
}
