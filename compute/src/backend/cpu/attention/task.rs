//! The task of some rows over some chunks, and the merging of chunks.

#[cfg(target_arch = "x86_64")]
use super::ahead::Ahead;
use super::cache::Cache;
use super::chunk::{Chunk, State};
use super::run::Rows;
use super::{CHUNK, RowBlock, first_key, rows_that_see};
use crate::backend::cpu::PAGE;
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::amx::Amx;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::pool::Rect;
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// The place for a task's results.
pub(super) enum Out<'a> {
    /// Results: `[rows, group * head_dim]`.
    Whole(Rect<'a, f32>),
    /// States after these chunks: `[rows, group * partial_len]`.
    Partial(Rect<'a, f32>),
}

#[cfg(target_arch = "x86_64")]
impl Out<'_> {
    /// The place for some of the rows.
    pub(super) fn part(&mut self, rows: Range<usize>) -> Out<'_> {
        match self {
            Out::Whole(y) => Out::Whole(y.part(rows)),
            Out::Partial(to) => Out::Partial(to.part(rows)),
        }
    }
}

pub(super) struct Task<'a, E: Element> {
    pub(super) cache: Cache<'a, E>,
    /// The queries of all rows of the step, from this KV head on.
    pub(super) q: &'a [f32],
    pub(super) q_dim: usize,
    pub(super) rows: Rows<'a>,
    pub(super) position: usize,
    pub(super) group: usize,
    pub(super) window: usize,
    pub(super) chunks: Range<usize>,
    /// States after the previous chunks: one row after another, `stride` apart. `None`: this task's
    /// chunks are the first.
    pub(super) before: Option<&'a [f32]>,
    pub(super) stride: usize,
    pub(super) scratch: &'a mut [f32],
    pub(super) out: Out<'a>,
}

impl<E: Element> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.compute(s, Exact);
    }
}

/// A task of generated rows in bfloat16 without tiles; compiled for processors with BF16.
#[cfg(target_arch = "x86_64")]
pub(super) struct InPairs<'a, E: Element>(pub(super) Task<'a, E>);

#[cfg(target_arch = "x86_64")]
impl<E: Element> Kernel for InPairs<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.compute(s, Pairs);
    }
}

/// A task of generated rows in two parts on tiles; compiled for processors with tiles.
#[cfg(target_arch = "x86_64")]
pub(super) struct InParts<'a, E: Element> {
    pub(super) task: Task<'a, E>,
    pub(super) parts: Parts<'a, E>,
}

#[cfg(target_arch = "x86_64")]
impl<E: Element> Kernel for InParts<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.task.compute(s, self.parts);
    }
}

/// The arithmetic of a task. It is a type rather than a field, so that each kernel contains its own
/// arithmetic only: as a field, every arithmetic was compiled for every instruction set.
trait Arithmetic<'a, E: Element> {
    /// The factor for q.
    fn scale(&self, head_dim: usize) -> f32;

    /// Computes the results of `queries` over a chunk. `is_last`: no other chunk of the task
    /// follows.
    #[allow(clippy::too_many_arguments)] // what attention is made of
    fn partial<S: Simd>(
        &self,
        s: S,
        chunk: &Chunk<'a, '_, E>,
        is_last: bool,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
    );
}

/// Float32.
struct Exact;

impl<'a, E: Element> Arithmetic<'a, E> for Exact {
    #[inline(always)]
    fn scale(&self, head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt()
    }

    #[inline(always)]
    fn partial<S: Simd>(
        &self,
        s: S,
        chunk: &Chunk<'a, '_, E>,
        _: bool,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
    ) {
        chunk.partial(s, queries, q, room, part);
    }
}

/// Pairs of bfloat16, with the bits of prompt rows.
#[cfg(target_arch = "x86_64")]
struct Pairs;

#[cfg(target_arch = "x86_64")]
impl<'a, E: Element> Arithmetic<'a, E> for Pairs {
    #[inline(always)]
    fn scale(&self, head_dim: usize) -> f32 {
        super::weights::scale(head_dim)
    }

    #[inline(always)]
    fn partial<S: Simd>(
        &self,
        s: S,
        chunk: &Chunk<'a, '_, E>,
        _: bool,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
    ) {
        chunk.partial_pairs(s, queries, q, room, part);
    }
}

/// Sums of two bfloat16, on tiles.
#[cfg(target_arch = "x86_64")]
pub(super) struct Parts<'a, E: Element> {
    pub(super) amx: Amx,
    /// The cache that the task's thread will probably need next, and the chunk.
    pub(super) then: Option<(Cache<'a, E>, usize)>,
}

#[cfg(target_arch = "x86_64")]
impl<'a, E: Element> Arithmetic<'a, E> for Parts<'a, E> {
    #[inline(always)]
    fn scale(&self, head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt() * std::f32::consts::LOG2_E
    }

    #[inline(always)]
    fn partial<S: Simd>(
        &self,
        s: S,
        chunk: &Chunk<'a, '_, E>,
        is_last: bool,
        queries: Range<usize>,
        q: &[f32],
        room: &mut [f32],
        part: &mut State<'_>,
    ) {
        let mut ahead = match (is_last, &self.then) {
            (false, _) => Ahead::new(Some(chunk.cache), chunk.start / CHUNK + 1),
            (true, Some((cache, chunk))) => Ahead::new(Some(cache), *chunk),
            (true, None) => Ahead::new(None, 0),
        };
        chunk.partial_split(s, self.amx, queries, q, room, part, &mut ahead);
    }
}

impl<'a, E: Element> Task<'a, E> {
    #[inline(always)]
    fn compute<S: Simd>(self, s: S, arithmetic: impl Arithmetic<'a, E>) {
        let Self {
            cache,
            q,
            q_dim,
            rows,
            position,
            group,
            window,
            chunks,
            before,
            stride,
            scratch,
            out,
        } = self;
        let head_dim = cache.head_dim;
        let padded = head_dim.next_multiple_of(LANES);
        let n = rows.len();
        let queries = n * group;
        let (queries_q, rest) = scratch.split_at_mut(queries * head_dim);
        let (mut total, rest) = State::new(rest, queries, padded);
        let (mut part, room) = State::new(rest, queries, padded);

        let scale = arithmetic.scale(head_dim);
        for row in 0..n {
            let from = &q[rows.get(row) * q_dim..][..group * head_dim];
            for (x, to) in from.iter().zip(&mut queries_q[row * group * head_dim..]) {
                *to = x * scale;
            }
        }
        if let Some(before) = before {
            for (row, before) in before.chunks(stride).take(n).enumerate() {
                for (i, from) in before.chunks_exact(padded + 2).take(group).enumerate() {
                    let (acc, rest) = from.split_at(padded);
                    total.merge(s, row * group + i, true, acc, rest[0], rest[1]);
                }
            }
        }
        let mut out = out;
        for chunk in chunks.clone() {
            // Rows before the chunk do not see any of its keys.
            let start = chunk * CHUNK;
            let first_row = start.saturating_sub(position).min(n);
            let last_row = rows_that_see(start, position, window).min(n);
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
            let is_last = chunk + 1 == chunks.end;
            arithmetic.partial(s, &view, is_last, first..last, queries_q, room, &mut part);
            for i in first..last {
                let acc = &part.acc[i * padded..][..padded];
                let first = first_key(position + i / group, window) / CHUNK;
                let first = before.is_none() && chunk == first.max(chunks.start);
                total.merge(s, i, first, acc, part.max[i], part.sum[i]);
            }
        }
        for i in 0..queries {
            match &mut out {
                Out::Whole(y) => {
                    let y = &mut y.row(i / group)[i % group * head_dim..][..head_dim];
                    total.write(s, i, y);
                }
                Out::Partial(to) => {
                    let to = &mut to.row(i / group)[i % group * (padded + 2)..][..padded + 2];
                    to[..padded].copy_from_slice(&total.acc[i * padded..][..padded]);
                    to[padded] = total.max[i];
                    to[padded + 1] = total.sum[i];
                }
            }
        }
    }
}

/// Merges the chunks of a block, in ascending order.
pub(super) struct Merge<'a> {
    pub(super) block: &'a RowBlock,
    /// The item cuts from the block's first item on.
    pub(super) item_cuts: &'a [usize],
    /// The partial results from the first item of the task's KV head on.
    pub(super) partial: &'a [f32],
    pub(super) stride: usize,
    pub(super) head_dim: usize,
    pub(super) window: usize,
    pub(super) state: &'a mut [f32],
    pub(super) y: Rect<'a, f32>,
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
