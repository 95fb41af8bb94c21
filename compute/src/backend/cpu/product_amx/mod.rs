//! Matrix products on AMX, of prompt rows and, where the handle's precision says so, of generated
//! ones: activations and weights as bfloat16, sums in float32.
//!
//! Every output is one chain over ascending k from zero, one tile of 32 k at a time ([`super::amx`]
//! says in which order within a tile). So neither the number of rows, nor the way k, rows and
//! strips are cut, nor the number of threads changes a bit of it.
//!
//! A block of 512 k of all rows (512 KiB at 512 rows) stays in L2 while one pair of weight strips
//! after another passes over it. Between blocks of k, partial sums wait in scratch, also in L2.
//! In the last block the results of a square are written a row at a time between the products of
//! the next square ([`super::amx::Tiles::squares`]). A separate pass over all sums cost 15 % at
//! K = 2048, most of it waiting for the lines that it wrote to. Weights that are tiles already are
//! read from memory once for sixteen rows or fewer: all of k at once, [`super::amx::MAX_ROW`]
//! strips side by side. Others are unpacked while the first rows are multiplied, which takes longer
//! than to read them.
//!
//! What was tried since, with its cycles: benches/record/2026-11-29-squares-without-gaps.txt.
//! Before that, with 512 rows, N = 11264 and K = 2048 on two cores of a Sapphire Rapids, in
//! TFLOP/s:
//! - blocks of 256 k, sums written in a separate pass: 2.11
//! - the same, sums written at once: 2.53 (bypassing the caches is no better; prefetching the
//!   output gives 2.3)
//! - A tiles that do not displace B in L1 ([`super::amx`]), blocks of 512 k: 2.61 (blocks of 1024
//!   k: 2.3; blocks of 512 k without this way of loading A: 2.2)
//! - without prefetching weights: 2.4
//! - register tiles of 16 rows by 64 columns, or 32 by 48: no better than 32 by 32

mod task;

use super::amx::{Amx, Prefetch, SIDE, TILE_K};
use super::blocks::with_blocks;
use super::element::{Bf16, F16};
use super::mat::Run;
use super::panels_amx::TilePanels;
use super::pool::{Grid, Rect, Split};
use super::results::Finish;
use super::results_amx::{Out, Write};
use super::simd::LANES;
use super::strips::{Cut, Job, Strips, Target, second_part};
use super::{Workers, lock};
use crate::Dtype;
use task::{FEW_GROUPS, TASK_STRIPS, Task};

pub(super) use task::scratch_len;

/// Whether weights are tiles already, and so few rows that they are read once, all of k at once.
fn is_few(dtype: Dtype, rows: usize) -> bool {
    dtype == Dtype::Bf16 && rows <= SIDE
}

/// Whether prompt rows are multiplied here if the processor has AMX.
pub(super) fn takes(dtype: Dtype) -> bool {
    dtype != Dtype::F32
}

/// A task that multiplies rows of two arithmetics takes so many bytes of weights at most, so that
/// they are still in an L2 of 2 MiB for the second. (Beside hundreds of prompt rows they may not
/// be; there products take longer than reading.)
const SHARED_BYTES: usize = 5 << 18;
/// But at least so many strips, because each is a stream of memory.
const SHARED_STRIPS: usize = 4;

/// Rows that are multiplied as tiles.
pub(super) struct TiledRows<'a> {
    pub amx: Amx,
    pub panels: &'a TilePanels,
    /// Row `i` of the panels goes to row `to[i]` of the output.
    pub to: &'a [u32],
    /// Tiles for the next product, into which the results go instead: of SwiGLU without adapters.
    /// (Adapters are for rows, not for tiles.)
    pub hidden: Option<&'a mut TilePanels>,
}

/// Multiplies `weights` by rows as tiles, and by the rows of another arithmetic, if there are any.
/// A task does both, so that weights are read from memory once.
pub(super) fn product(
    workers: Workers<'_>,
    weights: &Run,
    target: Target<'_>,
    rows: TiledRows<'_>,
    other: Option<Job<'_>>,
) {
    let Workers {
        pool,
        tier,
        scratch,
    } = workers;
    let TiledRows {
        amx,
        panels,
        to,
        hidden,
    } = rows;
    let Target {
        out,
        stride,
        columns,
        ending,
    } = target;
    debug_assert_eq!(panels.cols, weights.cols);
    debug_assert_eq!(panels.rows, to.len());
    if hidden.is_some() {
        debug_assert!(ending.finish == Finish::SwiGlu && ending.low.is_none());
    }
    let cols = columns.len();
    let strips = cols.div_ceil(LANES);
    let second = second_part(weights, ending);
    // With few rows, all strips of a task are prefetched at the same time, except in `Task::few`,
    // which prefetches for itself.
    let most = match panels.groups() <= FEW_GROUPS && !is_few(weights.dtype, panels.rows) {
        true => 2 * Prefetch::PAIRS,
        false => TASK_STRIPS,
    };
    let most = match other {
        Some(_) => {
            // A power of two, because tasks divide the blocks of k of the next product.
            let fit = (SHARED_BYTES / weights.strip_bytes()).max(SHARED_STRIPS);
            most.min(1 << fit.ilog2())
        }
        None => most,
    };
    let most = match second {
        Some(_) => most / 2,
        None => most,
    };
    let n_threads = pool.n_threads();
    let run = |cut: Cut, scratch: &mut [f32], out: Out<'_>| {
        let first = cut.first;
        macro_rules! run {
            ($E:ty) => {{
                tier.run_with_tiles(Task::<$E> {
                    amx,
                    panels,
                    scratch,
                    write: Write {
                        ending,
                        bias: weights.bias.as_chunks().0,
                        first,
                        second,
                        cols: cols - first * LANES,
                        out,
                    },
                    weights: Strips::cut(weights, cut),
                    next: cut.after(strips).map(|next| Strips::cut(weights, next)),
                })
            }};
        }
        match weights.dtype {
            Dtype::Bf16 => run!(Bf16),
            Dtype::F16 => run!(F16),
            dtype => match dtype.quant() {
                Some(quant) => with_blocks!(quant, Q => run!(Q)),
                None => unreachable!("{dtype} weights as tiles"),
            },
        }
    };
    // The rows of the other arithmetic come first: their kernels read memory faster.
    let multiply_other = |cut: Cut, scratch: &mut [f32], out: &mut Rect<'_, f32>| {
        if let Some(job) = other {
            job.run(tier, scratch, weights, ending, cut, out);
        }
    };
    match hidden {
        None => {
            // Enough tasks that threads share them evenly. Each task has an even number of strips.
            let tasks = strips.div_ceil(most).next_multiple_of(n_threads);
            let each = strips.div_ceil(tasks).next_multiple_of(2);
            let grid = Grid::some_columns(out, stride, columns, each * LANES);
            pool.run(grid, |task, thread, mut out| {
                let cut = Cut::of_task(task, each, strips, second, n_threads);
                let mut scratch = lock(scratch, thread);
                multiply_other(cut, &mut scratch, &mut out);
                run(cut, &mut scratch, Out::Rows { out, to });
            });
        }
        Some(hidden) => {
            let mut tiles = most * LANES / TILE_K;
            while tiles > 1 && strips.div_ceil(2 * tiles) < 2 * n_threads {
                tiles /= 2;
            }
            let each = 2 * tiles;
            let parts = hidden.parts(panels.rows, cols, tiles);
            let grid = Grid::some_columns(out, stride, columns, each * LANES);
            let grid = grid.with_blocks(parts.count());
            pool.run((parts, grid), |task, thread, (part, mut out)| {
                if task * each < strips {
                    let cut = Cut::of_task(task, each, strips, second, n_threads);
                    let mut scratch = lock(scratch, thread);
                    multiply_other(cut, &mut scratch, &mut out);
                    run(cut, &mut scratch, Out::Panels(part));
                }
            });
        }
    }
}
