//! Attention of a loaded step: its tasks, and the merging of chunks.

use super::chunk::{Cache, Chunk, State};
#[cfg(target_arch = "x86_64")]
use super::split::Ahead;
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{CHUNK, Cut, Plan, RowBlock, first_key, partial_len, rows_that_see};
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::amx::Amx;
use crate::backend::cpu::element::{Element, with_cache_element};
use crate::backend::cpu::kv::CpuKv;
use crate::backend::cpu::pool::{Grid, Rect};
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use crate::backend::cpu::{PAGE, Workers, lock};
use std::ops::Range;

impl Plan {
    /// Computes `y = softmax(q K^T / sqrt(head_dim)) V` for every row, causal, over at most
    /// `window` keys (at least 1); `y, q: [rows, q_dim]`. Chunks that lie before a row's window are
    /// skipped for this row; in its first chunk, the keys before the window are masked. With
    /// `tiles`, on a processor that has them, prompt rows use bfloat16 tiles, and generated rows
    /// are computed in two parts ([`super::split`]) if the cache's numbers are exact in bfloat16.
    #[allow(clippy::too_many_arguments)] // attention has this many inputs
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
        // `then` is the thread's probable next task: a block, a head and a chunk.
        let task = |block: &RowBlock,
                    head,
                    chunks: Range<usize>,
                    then: Option<(&RowBlock, usize, usize)>,
                    thread: usize,
                    out: Out<'_>| {
            let mut scratch = lock(scratch, thread);
            with_cache_element!(kv.dtype, E => {
                let cache = || Cache::new(kv, layer, head, &pages[block.pages.clone()]);
                // The task of some rows without AMX. (A closure would hold on to its arguments.)
                macro_rules! plain {
                    ($rows:expr, $scratch:expr, $out:expr) => {
                        Task::<E> {
                            #[cfg(target_arch = "x86_64")]
                            amx: None,
                            then: None,
                            cache: cache(),
                            q: &q[(block.rows.start + $rows.start) * q_dim + head * width..],
                            q_dim,
                            rows: $rows.len(),
                            position: block.position + $rows.start,
                            group,
                            window,
                            chunks: chunks.clone(),
                            scratch: $scratch,
                            out: $out,
                        }
                    };
                }
                let rows = block.rows.len();
                #[cfg(target_arch = "x86_64")]
                if let Some(amx) = tier.amx()
                    && (block.tiles || tiles && E::IN_BF16)
                {
                    let mut out = out;
                    match (&mut out, block.tiles) {
                        (Out::Whole(y), true) => tier.run_with_tiles(tiles::Task::<E> {
                            amx,
                            cache: cache(),
                            q: &q[block.rows.start * q_dim + head * width..],
                            q_dim,
                            rows,
                            position: block.position,
                            group,
                            window,
                            scratch: &mut scratch,
                            y: y.part(0..rows),
                        }),
                        _ => tier.run_with_tiles(Task {
                            amx: Some(amx),
                            then: then.map(|(block, head, chunk)| {
                                let pages = &pages[block.pages.clone()];
                                (Cache::new(kv, layer, head, pages), chunk)
                            }),
                            ..plain!((0..rows), &mut scratch, out.part(0..rows))
                        }),
                    }
                    // A tile's weights are zero where a row does not see a key, but zero times an
                    // infinite value is NaN. Such rows are computed again, over their own keys.
                    for row in 0..rows {
                        if out.has_nan(row) {
                            tier.run(plain!((row..row + 1), &mut scratch, out.part(row..row + 1)));
                        }
                    }
                    return;
                }
                #[cfg(not(target_arch = "x86_64"))]
                let _ = then;
                tier.run(plain!((0..rows), &mut scratch, out))
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

/// The place for a task's results.
enum Out<'a> {
    /// All chunks merged: `[rows, group * head_dim]`.
    Whole(Rect<'a, f32>),
    /// One chunk: `[rows, group * partial_len]`.
    Partial(Rect<'a, f32>),
}

#[cfg(target_arch = "x86_64")]
impl Out<'_> {
    /// The place for some of the rows.
    fn part(&mut self, rows: Range<usize>) -> Out<'_> {
        match self {
            Out::Whole(y) => Out::Whole(y.part(rows)),
            Out::Partial(to) => Out::Partial(to.part(rows)),
        }
    }

    /// Whether a result of the row is NaN.
    fn has_nan(&mut self, row: usize) -> bool {
        let (Out::Whole(all) | Out::Partial(all)) = self;
        all.row(row).iter().any(|x| x.is_nan())
    }
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
    /// The item cuts from the block's first item on.
    item_cuts: &'a [usize],
    /// The partial results from the first item of the task's KV head on.
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
