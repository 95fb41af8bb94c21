//! The part that all products have in common: which strips of weights a task takes, and what it
//! prefetches.

use super::detect::prefetches_into_l1;
use super::element::Weights;
use super::mat::Run;
use super::pool::Grid;
use super::results::{Ending, Finish, WriteOut};
use super::simd::{LANES, Lookahead, Simd};
use super::{Workers, lock};
use std::ops::Range;

/// The place for results: row `i` goes into row `to[i]` of `out`.
pub(super) struct Target<'a> {
    pub to: &'a [u32],
    pub out: &'a mut [f32],
    /// Distance between rows of `out`.
    pub stride: usize,
    /// Columns of `out` that the strips of the product fill.
    pub columns: Range<usize>,
}

/// Strips of output that one task computes.
pub(super) const TASK_STRIPS: usize = 8;

/// Which strips of a matrix a task takes.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub first: usize,
    pub count: usize,
    /// First strip of the second part.
    pub second: Option<usize>,
    /// Distance from a strip to the strip of the task that this thread probably takes next; 0 in
    /// its last task.
    next: usize,
}

/// Runs `f` for every task of a product, with the task's strips, scratch memory, and the place for
/// its sums.
pub(super) fn tasks(
    workers: Workers<'_>,
    run: &Run,
    target: Target<'_>,
    ending: Ending<'_>,
    f: impl Fn(Cut, &mut [f32], WriteOut<'_>) + Sync,
) {
    let Workers { pool, scratch, .. } = workers;
    let Target {
        to,
        out,
        stride,
        columns,
    } = target;
    let strips = columns.len().div_ceil(LANES);
    let (each, second) = match ending.finish {
        Finish::SwiGlu => (TASK_STRIPS / 2, Some(run.parts[1].first)),
        _ => (TASK_STRIPS, None),
    };
    let threads = pool.n_threads();
    let grid = Grid::some_columns(out, stride, columns, each * LANES);
    pool.run(grid, |task, thread, out| {
        let first = task * each;
        let next = each * threads;
        let cut = Cut {
            first,
            count: each.min(strips - first),
            second,
            next: if first + next < strips { next } else { 0 },
        };
        let write = WriteOut {
            cut,
            bias: &run.bias,
            ending,
            to,
            out,
        };
        f(cut, &mut lock(scratch, thread), write);
    });
}

/// The strips of weights that a task multiplies with: `count` from `first` on and, in SwiGLU, as
/// many of the second part.
pub(super) struct Strips<'a, W: Weights> {
    bits: &'a [W::Bits],
    len: usize,
    first: usize,
    pub count: usize,
    /// First strip of the second part.
    pub second: Option<usize>,
    next: usize,
    into_l1: bool,
}

impl<'a, W: Weights> Strips<'a, W> {
    pub fn cut(run: &'a Run, cut: Cut) -> Self {
        Self {
            next: cut.next,
            ..Self::new(run, cut.first, cut.count, cut.second)
        }
    }

    pub fn new(run: &'a Run, first: usize, count: usize, second: Option<usize>) -> Self {
        Self {
            bits: W::array(&run.data),
            len: run.strip_len(),
            first,
            count,
            second,
            next: 0,
            into_l1: prefetches_into_l1(),
        }
    }

    /// What to prefetch from a place in a strip: what is needed `bytes` later. If `over` says that
    /// it lies beyond the end of the strip, it is in the next task's strip.
    ///
    /// Into L1 it goes only if the kernel multiplies one row (`alone`), which is what was measured,
    /// and if that of all strips of a task takes so little room there that it stays: with k4, L1
    /// was no faster than L2. Both are known when the kernel is compiled, so other kernels ask
    /// nothing for each line.
    #[inline(always)]
    pub fn ahead(&self, bytes: usize, over: bool, alone: bool) -> Lookahead {
        const ROOM: usize = 12 << 10;
        Lookahead {
            bytes: match over && self.next > 0 {
                true => bytes + (self.next - 1) * self.len * size_of::<W::Bits>(),
                false => bytes,
            },
            into_l1: alone && bytes * TASK_STRIPS <= ROOM && self.into_l1,
        }
    }

    pub fn total(&self) -> usize {
        if self.second.is_some() {
            2 * self.count
        } else {
            self.count
        }
    }

    /// Words of a strip.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Strip `i`. Beyond the end it is the last strip again, so that tiles are always whole.
    #[inline(always)]
    pub fn get(&self, i: usize) -> &'a [W::Bits] {
        let i = i.min(self.total() - 1);
        let strip = match self.second {
            Some(second) if i >= self.count => second + self.first + i - self.count,
            _ => self.first + i,
        };
        &self.bits[strip * self.len..][..self.len]
    }
}

/// The lines that lie ahead of a part of WIDE strips. Kernels that multiply this part with many
/// rows prefetch them a few at a time, between products. All at once, while the part was unpacked,
/// they were more than an Emerald Rapids has on their way: it waited for memory there, and memory
/// was idle during the products. 32 rows of int8 took 1.2 times as long, namely as long as reading
/// and then multiplying (benches/record/2026-11-29-many-rows-without-tiles.txt).
pub(super) struct Coming<'a, T, const WIDE: usize> {
    /// Where the part of each strip begins, unless it is empty.
    part: [Option<&'a T>; WIDE],
    ahead: Lookahead,
    /// Lines of a strip, and calls that ask for all of them.
    lines: usize,
    times: usize,
    /// Lines that are due, times `times`.
    due: usize,
}

impl<'a, T, const WIDE: usize> Coming<'a, T, WIDE> {
    /// `times` calls of [`Coming::prefetch`] ask for all lines.
    #[inline(always)]
    pub fn new(part: [&'a [T]; WIDE], ahead: Lookahead, times: usize) -> Self {
        Self {
            lines: size_of_val(part[0]).div_ceil(64),
            part: part.map(|strip| strip.first()),
            ahead,
            times: times.max(1),
            due: 0,
        }
    }

    /// Prefetches the next lines of all strips, about as many as any other call.
    #[inline(always)]
    pub fn prefetch<S: Simd>(&mut self, s: S) {
        self.due += self.lines;
        while self.due >= self.times {
            self.due -= self.times;
            for strip in self.part.into_iter().flatten() {
                s.prefetch_far(strip, self.ahead);
            }
            self.ahead.bytes += 64;
        }
    }
}
