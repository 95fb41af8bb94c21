//! The part that all products have in common: which strips of weights a task takes, with which rows
//! it multiplies them, and what it prefetches.

use super::detect::{Tier, prefetches_into_l1};
use super::element::Weights;
use super::mat::Run;
use super::pool::{Grid, Rect};
use super::results::{Ending, Finish, WriteOut};
use super::simd::{LANES, Lookahead, Simd};
use super::{Workers, lock};
use std::ops::Range;

/// The place for results, and what becomes of sums on the way.
pub(super) struct Target<'a> {
    pub out: &'a mut [f32],
    /// Distance between rows of `out`.
    pub stride: usize,
    /// Columns of `out` that the strips of the product fill.
    pub columns: Range<usize>,
    pub ending: Ending<'a>,
}

/// Most strips that are multiplied at a time, unless as tiles of bfloat16.
pub(super) const TASK_STRIPS: usize = 8;

/// Which strips of a matrix a task takes, or multiplies at a time.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    pub first: usize,
    pub count: usize,
    /// First strip of the second part.
    pub second: Option<usize>,
    /// Distance from a strip to the strip that this thread probably takes next, in this task or in
    /// its next one; 0 if there is none.
    next: usize,
}

impl Cut {
    /// Task `task` of a product of `strips` strips, of which each task takes `each`.
    pub fn of_task(
        task: usize,
        each: usize,
        strips: usize,
        second: Option<usize>,
        threads: usize,
    ) -> Self {
        let first = task * each;
        let next = each * threads;
        Self {
            first,
            count: each.min(strips - first),
            second,
            next: if first + next < strips { next } else { 0 },
        }
    }

    /// The task that this thread probably takes next, of a product of `strips` strips.
    pub fn after(self, strips: usize) -> Option<Self> {
        let first = self.first + self.next;
        (self.next > 0).then(|| Self {
            first,
            count: self.count.min(strips - first),
            next: 0,
            ..self
        })
    }

    /// `count` of its strips from strip `at` on. After the last part comes the next task, whose
    /// distance is counted from the task's first strip.
    fn part(self, at: usize, count: usize) -> Self {
        Self {
            first: self.first + at,
            count,
            next: match at + count < self.count {
                true => count,
                false => self.next.saturating_sub(at),
            },
            ..self
        }
    }
}

/// Most strips of a product that are multiplied at a time, not counting those of the second part.
fn most_strips(second: Option<usize>) -> usize {
    match second {
        Some(_) => TASK_STRIPS / 2,
        None => TASK_STRIPS,
    }
}

/// Activations that are packed for one arithmetic, other than that of tiles of bfloat16.
pub(super) trait Packed: Sync {
    /// Multiplies the strips that `write` says, at most [`TASK_STRIPS`], by all rows.
    fn multiply(&self, tier: Tier, weights: &Run, scratch: &mut [f32], write: WriteOut<'_>);
}

/// Rows of one arithmetic in a product.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub rows: &'a dyn Packed,
    /// Row `i` of them goes to row `to[i]` of the output.
    pub to: &'a [u32],
}

impl Job<'_> {
    /// Multiplies the strips of a task, whose columns are `out`.
    pub fn run(
        &self,
        tier: Tier,
        scratch: &mut [f32],
        weights: &Run,
        ending: Ending<'_>,
        cut: Cut,
        out: &mut Rect<'_, f32>,
    ) {
        let most = most_strips(cut.second);
        for at in (0..cut.count).step_by(most) {
            let cut = cut.part(at, most.min(cut.count - at));
            let end = out.cols().min((at + cut.count) * LANES);
            let write = WriteOut {
                cut,
                bias: &weights.bias,
                ending,
                to: self.to,
                out: out.columns(at * LANES..end),
            };
            self.rows.multiply(tier, weights, scratch, write);
        }
    }
}

/// Multiplies `weights` by the rows of all jobs. A task does one job after another, so that weights
/// are read from memory once.
pub(super) fn multiply(workers: Workers<'_>, weights: &Run, target: Target<'_>, jobs: &[Job<'_>]) {
    let Target {
        out,
        stride,
        columns,
        ending,
    } = target;
    let strips = columns.len().div_ceil(LANES);
    let second = second_part(weights, ending);
    let each = most_strips(second);
    let Workers {
        pool,
        tier,
        scratch,
    } = workers;
    let threads = pool.n_threads();
    let grid = Grid::some_columns(out, stride, columns, each * LANES);
    pool.run(grid, |task, thread, mut out| {
        let cut = Cut::of_task(task, each, strips, second, threads);
        let mut scratch = lock(scratch, thread);
        for job in jobs {
            job.run(tier, &mut scratch, weights, ending, cut, &mut out);
        }
    });
}

/// The first strip of the second part, if the product has two.
pub(super) fn second_part(weights: &Run, ending: Ending<'_>) -> Option<usize> {
    (ending.finish == Finish::SwiGlu).then(|| weights.parts[1].first)
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
        let Cut {
            first,
            count,
            second,
            next,
        } = cut;
        Self {
            bits: W::array(&run.data),
            len: run.strip_len(),
            first,
            count,
            second,
            next,
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
