//! Causal attention over the paged cache, with an online softmax (Milakov & Gimelshein 2018; Dao et
//! al. 2022) over chunks of 256 keys at absolute positions.
//!
//! A query's result is computed in two stages. First, every chunk gives the score that has the
//! weight 1 (the largest, or in bfloat16 a usual one), a sum of weights and a weighted sum of V,
//! each computed in an order that depends on the chunk's positions only. Then the chunks are merged
//! in ascending order. So the bits depend neither on which thread computes which chunk, nor on
//! which queries share a pass over K and V.
//!
//! A *block* is a few consecutive rows of one sequence with the query heads of one KV head. If
//! there are too few blocks for the threads (in decode), every chunk of a block is a task of its
//! own. If there are enough, those that begin with the same pages share the passes over these
//! (`prefix`).
//!
//! This file says how a step is cut into tasks; `run` has the tasks. Prompt rows in bfloat16 go
//! through `tiles`, `operands`, `group` and `weights`. All others go through `task`: in float32
//! (`chunk`), in two parts on tiles (`split`), or in pairs of bfloat16 (`pairs`).

#[cfg(target_arch = "x86_64")]
mod ahead;
mod cache;
mod chunk;
#[cfg(target_arch = "x86_64")]
mod group;
#[cfg(target_arch = "x86_64")]
mod operands;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod prefix;
mod run;
#[cfg(target_arch = "x86_64")]
mod split;
mod task;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
pub(super) mod weights;

use self::prefix::{Beginning, Prefixes};
use super::buf::Mem;
use super::simd::LANES;
use crate::Result;
use crate::backend::{RowKind, Shape, Span, Step};
use crate::reserve::room;
use std::ops::Range;

/// What an error says is short of memory if there is no room for a step's tasks.
const PLAN: &str = "the plan of a step";
/// Keys in a chunk.
const CHUNK: usize = 256;
/// The number of queries (rows times heads) that a block aims at.
const BLOCK_QUERIES: usize = 64;

/// The first key that a row at `position` sees if it sees at most `window` keys.
fn first_key(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window)
}

/// How many of a block's first rows see keys of the chunk at `start`. The windows of later rows
/// begin after the chunk.
fn rows_that_see(start: usize, position: usize, window: usize) -> usize {
    (start + CHUNK)
        .saturating_add(window - 1)
        .saturating_sub(position)
}

/// Which rows of a step attend in bfloat16.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum InBf16 {
    Nothing,
    /// Prompt rows. Where there are tiles, generated rows are computed with them in two parts
    /// (`split`) if the cache's numbers are exact in bfloat16: as exact as in float32.
    Prompts,
    /// All rows, on a tier that multiplies pairs of bfloat16 without tiles.
    All,
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
    /// Whether these are prompt rows that are computed in bfloat16.
    tiles: bool,
    /// The chunks that other blocks have too.
    beginning: Beginning,
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
    /// Blocks of prompt rows for attention in bfloat16; empty if the tier has none.
    tiled: Cut,
    has_bf16: bool,
    /// `[item rows][kv head][query of the group][head_dim padded + 2]`: weighted sum, score that
    /// has the weight 1, sum of weights. In a step whose blocks share prefixes there are no items;
    /// it then has the rows of the prefixes.
    partial: Mem<f32>,
    max_partial_rows: usize,
    max_shared_rows: usize,
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
    prefixes: Prefixes,
}

/// The length of one query's partial result.
fn partial_len(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + 2
}

/// The number of rows for which partial results are kept. It suffices for 8 sequences of full
/// length.
fn max_partial_rows(max_positions: usize) -> usize {
    (8 * max_positions.div_ceil(CHUNK)).max(64)
}

/// The number of rows that may share prefixes in a step.
fn max_shared_rows(max_rows: usize) -> usize {
    max_rows.min(256)
}

/// The length of [`Plan::partial`].
pub(super) fn partials_len(shape: &Shape, max_rows: usize, max_positions: usize) -> usize {
    max_partial_rows(max_positions)
        .max(max_shared_rows(max_rows))
        .saturating_mul(shape.n_heads)
        .saturating_mul(partial_len(shape.head_dim))
}

fn block_rows(group: usize, queries: usize) -> usize {
    (queries / group).max(1)
}

/// Rows of a block that is computed in bfloat16.
#[cfg(target_arch = "x86_64")]
fn tile_rows(group: usize) -> usize {
    block_rows(group, tiles::BLOCK_QUERIES)
}
#[cfg(not(target_arch = "x86_64"))]
fn tile_rows(group: usize) -> usize {
    block_rows(group, BLOCK_QUERIES)
}

/// The length of the scratch memory that a thread needs.
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
        let pairs = pairs::scratch_len(plain, shape.head_dim);
        len.max(split.max(pairs) + states).max(tiled)
    };
    len
}

impl Cut {
    fn new(max_rows: usize, max_items: usize) -> Result<Self> {
        Ok(Self {
            blocks: room(PLAN, max_rows)?,
            cuts: room(PLAN, max_rows + 1)?,
            items: room(PLAN, max_items)?,
            item_cuts: room(PLAN, max_items + 1)?,
            prefixes: Prefixes::new(max_rows)?,
        })
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.cuts.clear();
        self.items.clear();
        self.item_cuts.clear();
        self.prefixes.clear();
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
                beginning: Beginning::default(),
            });
            self.cuts.push(end);
            row = end;
        }
    }

    /// Finds prefixes, each for at most `most` rows, and for `max_rows` rows in all. Finds none if
    /// every chunk is a task of its own: then there are few rows for many threads.
    fn share(&mut self, pages: &[u32], most: usize, max_rows: usize) {
        if self.items.is_empty() {
            self.prefixes.find(&mut self.blocks, pages, most, max_rows);
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
        has_bf16: bool,
    ) -> Result<Plan> {
        let max_partial_rows = max_partial_rows(max_positions);
        Ok(Plan {
            group: shape.n_heads / shape.n_kv_heads,
            heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            threads,
            plain: Cut::new(max_rows, max_partial_rows)?,
            tiled: Cut::new(if has_bf16 { max_rows } else { 0 }, max_partial_rows)?,
            has_bf16,
            partial: Mem::zeroed(
                "partial attention",
                partials_len(shape, max_rows, max_positions),
            )?,
            max_partial_rows,
            max_shared_rows: max_shared_rows(max_rows),
        })
    }

    /// For tests: whether some blocks of the step share a prefix.
    pub fn shares(&self) -> bool {
        !self.plain.prefixes.is_empty()
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
        self.tiled.clear();
        // Rows of Medusa guesses attend to nothing and have no pages, but they have the positions
        // of long texts. When there were two such rows, looking for the pages that they share was a
        // panic.
        if step.pages.is_empty() {
            return;
        }
        for span in &step.spans {
            self.plain.add(span, rows, false);
        }
        self.plain.split(self.heads, tasks, self.max_partial_rows);
        // Two tasks for each thread, if there are as many rows.
        let spread = match self.threads > 1 {
            true => (step.tokens.len() * self.heads).div_ceil(2 * self.threads),
            false => rows,
        };
        let most = rows.min(spread.max(2));
        self.plain.share(&step.pages, most, self.max_shared_rows);
        if !self.has_bf16 {
            return;
        }
        for span in &step.spans {
            match span.kind {
                RowKind::Prefill => self.tiled.add(span, tile_rows(self.group), true),
                RowKind::Decode => self.tiled.add(span, rows, false),
            }
        }
        self.tiled.split(self.heads, tasks, self.max_partial_rows);
        self.tiled.share(&step.pages, most, self.max_shared_rows);
    }
}
