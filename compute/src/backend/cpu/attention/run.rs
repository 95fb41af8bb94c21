//! Attention of a loaded step: its tasks, on all threads.

use super::cache::Cache;
#[cfg(target_arch = "x86_64")]
use super::task::{InPairs, InParts, Parts};
use super::task::{Merge, Out, Task};
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{Cut, InBf16, Plan, RowBlock, partial_len};
use crate::backend::cpu::element::{Element, with_cache_element};
use crate::backend::cpu::kv::CpuKv;
use crate::backend::cpu::pool::{Grid, Rect};
use crate::backend::cpu::{Workers, lock};
use std::ops::Range;

/// Rows that read the same pages, with the query heads of one KV head, and some of their chunks.
#[derive(Clone)]
struct Work<'a> {
    rows: Rows<'a>,
    /// Position of the first row; the lowest of rows that share a prefix.
    position: usize,
    /// Range of [`crate::backend::Step::pages`].
    pages: Range<usize>,
    head: usize,
    chunks: Range<usize>,
    /// States of the rows after the previous chunks, with the layout of [`Plan::partial`].
    before: Option<&'a [f32]>,
    window: usize,
    tiles: bool,
    /// What the thread will probably work on next.
    then: Option<Next>,
}

/// Pages, a KV head, and a chunk.
type Next = (Range<usize>, usize, usize);

/// Rows of a step.
#[derive(Clone)]
pub(super) enum Rows<'a> {
    Consecutive(Range<usize>),
    Listed(&'a [usize]),
}

impl Rows<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Rows::Consecutive(rows) => rows.len(),
            Rows::Listed(rows) => rows.len(),
        }
    }

    pub(super) fn get(&self, i: usize) -> usize {
        match self {
            Rows::Consecutive(rows) => rows.start + i,
            Rows::Listed(rows) => rows[i],
        }
    }
}

impl RowBlock {
    /// All chunks of a block for one KV head.
    fn work(&self, head: usize, window: usize) -> Work<'_> {
        Work {
            rows: Rows::Consecutive(self.rows.clone()),
            position: self.position,
            pages: self.pages.clone(),
            head,
            chunks: 0..self.chunks(),
            before: None,
            window,
            tiles: self.tiles,
            then: None,
        }
    }

    /// The chunks that the block shares on a layer with this window.
    fn shared_chunks(&self, window: usize) -> usize {
        match self.beginning.keys <= window {
            true => self.beginning.chunks,
            false => 0,
        }
    }
}

impl Plan {
    /// Computes `y = softmax(q K^T / sqrt(head_dim)) V` for every row, causal, over at most
    /// `window` keys (at least 1); `y, q: [rows, q_dim]`. Chunks that lie before a row's window are
    /// skipped for this row; in its first chunk, the keys before the window are masked.
    #[allow(clippy::too_many_arguments)] // attention has this many inputs
    pub fn attend(
        &mut self,
        workers: Workers<'_>,
        in_bf16: InBf16,
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
        #[cfg(target_arch = "x86_64")]
        let pairs = in_bf16 == InBf16::All;
        let (heads, group, threads) = (self.heads, self.group, pool.n_threads());
        let head_dim = self.head_dim;
        let width = group * head_dim;
        let q_dim = heads * width;
        let size = partial_len(head_dim);
        let stride = heads * group * size;
        let partial = &mut self.partial;
        let Cut {
            blocks,
            cuts,
            items,
            item_cuts,
            prefixes,
        } = match in_bf16 != InBf16::Nothing && self.has_bf16 {
            true => &self.tiled,
            false => &self.plain,
        };
        // The task of some rows, whatever its arithmetic. (A closure would keep its arguments
        // borrowed.)
        macro_rules! plain {
            ($E:ty, $work:expr, $rows:expr, $chunks:expr, $scratch:expr, $out:expr) => {
                Task::<$E> {
                    cache: Cache::new(kv, layer, $work.head, &pages[$work.pages.clone()]),
                    q: &q[$work.head * width..],
                    q_dim,
                    rows: $rows,
                    position: $work.position,
                    group,
                    window: $work.window,
                    chunks: $chunks,
                    before: $work.before,
                    stride,
                    scratch: $scratch,
                    out: $out,
                }
            };
        }
        // Generated rows in two parts on tiles.
        #[cfg(target_arch = "x86_64")]
        let in_parts = in_bf16 == InBf16::Prompts
            && tier.has_tiles()
            && with_cache_element!(kv.dtype, E => E::IN_BF16);
        #[cfg(target_arch = "x86_64")]
        let compute_in_bf16 = |work: &Work<'_>, scratch: &mut [f32], mut out: Out<'_>| {
            with_cache_element!(kv.dtype, E => {
                let (rows, chunks) = (work.rows.clone(), work.chunks.clone());
                match &mut out {
                    Out::Whole(y) if work.tiles => tier.run_bf16(tiles::Task::<E> {
                        amx: tier.amx(),
                        cache: Cache::new(kv, layer, work.head, &pages[work.pages.clone()]),
                        q: &q[rows.get(0) * q_dim + work.head * width..],
                        q_dim,
                        rows: rows.len(),
                        position: work.position,
                        group,
                        window: work.window,
                        scratch,
                        y: y.part(0..rows.len()),
                    }),
                    _ if pairs => {
                        tier.run_bf16(InPairs(plain!(E, work, rows, chunks, scratch, out)))
                    }
                    _ => tier.run_with_tiles(InParts {
                        task: plain!(E, work, rows, chunks, scratch, out),
                        parts: Parts {
                            amx: tier.amx().expect("tiles"),
                            then: work.then.as_ref().map(|(of, head, chunk)| {
                                (Cache::new(kv, layer, *head, &pages[of.clone()]), *chunk)
                            }),
                        },
                    }),
                }
            })
        };
        // A result can be NaN or infinite although it should not be:
        //
        // - A tile's weights are zero where a row does not see a key, but zero times an infinite
        //   value is NaN.
        // - The sum of the weights is NaN if scores are too large for `weights`.
        // - A sum of V may overflow although its mean would not.
        //
        // Such a row is computed again alone in bfloat16, over its own keys, so that its bits do
        // not depend on other rows. If a result is still NaN or infinite, the row is computed in
        // float32. Both computations begin with the first chunk, whether other rows shared it or
        // not, and whether chunks were separate tasks or not.
        #[cfg(target_arch = "x86_64")]
        let repair = |work: &Work<'_>, scratch: &mut [f32], mut y: Rect<'_, f32>| {
            let Rows::Consecutive(rows) = work.rows.clone() else {
                return;
            };
            if !(work.tiles || pairs || in_parts) {
                return;
            }
            let n = rows.len();
            let is_lost = |y: &mut Rect<'_, f32>, i| y.row(i).iter().any(|y| !y.is_finite());
            for (i, row) in rows.enumerate() {
                if !is_lost(&mut y, i) {
                    continue;
                }
                let alone = Work {
                    rows: Rows::Consecutive(row..row + 1),
                    position: work.position + i,
                    chunks: 0..(work.position + i) / super::CHUNK + 1,
                    before: None,
                    then: None,
                    ..work.clone()
                };
                if n > 1 {
                    compute_in_bf16(&alone, scratch, Out::Whole(y.part(i..i + 1)));
                }
                if is_lost(&mut y, i) {
                    let (rows, chunks) = (alone.rows.clone(), alone.chunks.clone());
                    let out = Out::Whole(y.part(i..i + 1));
                    with_cache_element!(kv.dtype, E => {
                        tier.run(plain!(E, alone, rows, chunks, scratch, out))
                    });
                }
            }
        };
        let task = |work: Work<'_>, thread: usize, out: Out<'_>| {
            let mut scratch = lock(scratch, thread);
            #[cfg(target_arch = "x86_64")]
            if work.tiles || pairs || in_parts {
                let mut out = out;
                let rows = work.rows.len();
                compute_in_bf16(&work, &mut scratch, out.part(0..rows));
                // The states of a prefix or of a chunk are not results yet.
                if let Out::Whole(y) = out {
                    repair(&work, &mut scratch, y);
                }
                return;
            }
            let (rows, chunks) = (work.rows.clone(), work.chunks.clone());
            with_cache_element!(kv.dtype, E => {
                tier.run(plain!(E, work, rows, chunks, &mut scratch, out))
            });
        };
        if items.is_empty() {
            if !prefixes.is_empty() {
                let parts = Grid::bands(&mut partial[..], stride, group * size, prefixes.cuts());
                pool.run(parts, |i, thread, out| {
                    let Some(prefix) = prefixes.get(i / heads, blocks) else {
                        return;
                    };
                    let chunks = prefix.block.shared_chunks(window);
                    if chunks > 0 {
                        // The rows of the prefix see all of its shared chunks, so the window does
                        // not matter.
                        let work = Work {
                            rows: Rows::Listed(prefix.rows),
                            position: prefix.position,
                            chunks: 0..chunks,
                            window: usize::MAX,
                            ..prefix.block.work(i % heads, window)
                        };
                        task(work, thread, Out::Partial(out));
                    }
                });
            }
            let partial = &partial[..];
            pool.run(Grid::bands(y, q_dim, width, cuts), |i, thread, y| {
                let (block, head) = (&blocks[i / heads], i % heads);
                let next = i + threads;
                let then = blocks.get(next / heads);
                let mut work = block.work(head, window);
                work.then = then.map(|b| (b.pages.clone(), next % heads, b.shared_chunks(window)));
                work.chunks.start = block.shared_chunks(window);
                if work.chunks.start > 0 {
                    let first = block.beginning.first * stride + head * group * size;
                    work.before = Some(&partial[first..]);
                }
                task(work, thread, Out::Whole(y));
            });
            return;
        }
        let parts = Grid::bands(&mut partial[..], stride, group * size, item_cuts);
        pool.run(parts, |i, thread, out| {
            let (block, chunk) = items[i / heads];
            let next = i + threads;
            let then = items.get(next / heads);
            let work = Work {
                chunks: chunk..chunk + 1,
                then: then
                    .map(|&(block, chunk)| (blocks[block].pages.clone(), next % heads, chunk)),
                ..blocks[block].work(i % heads, window)
            };
            task(work, thread, Out::Partial(out));
        });
        let partial = &partial[..];
        let merge = |i: usize, thread: usize, mut y: Rect<'_, f32>| {
            let block = &blocks[i / heads];
            if block.tiles {
                return task(block.work(i % heads, window), thread, Out::Whole(y));
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
                y: y.part(0..block.rows.len()),
            });
            #[cfg(target_arch = "x86_64")]
            repair(&block.work(i % heads, window), &mut scratch, y);
        };
        let parts = Grid::bands(y, q_dim, width, cuts);
        if items.len() * heads * group < 1024 && !blocks.iter().any(|b| b.tiles) {
            pool.here(parts, merge)
        } else {
            pool.run(parts, merge)
        }
    }
}
