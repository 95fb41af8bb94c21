//! Products of weights in bfloat16 with activations that are rounded to bfloat16: twice as many
//! products in an instruction as in float32. For prompt rows, on the tier that does this fast
//! without tiles.
//!
//! Every output is one chain over ascending pairs of k from zero, whatever rows and strips are
//! beside it, so that the bits do not depend on them. Few rows are bound by memory and many by
//! arithmetic: as in [`super::product`].

use super::detect::Tier;
use super::element::{Bf16, Weights};
use super::mat::Run;
use super::results::{TaskSums, WriteOut};
use super::simd::{Kernel, LANES, Lookahead, Simd};
use super::strips::{Strips, TASK_STRIPS};
use super::words::{Form, MAX_SIDE, Task, Words};

/// Pairs of k of a group of activations.
const PAIRS: usize = super::blocks::WORDS;
/// Groups of k in a block when there are many rows: 8 KiB of a strip.
const K_GROUPS: usize = 8;
/// Groups of k in a block for few panels of rows. With one, loading and storing the sums of 8 rows
/// took 3 to 4 % of the time (benches/record/2026-11-28-jobs-of-streams.txt).
const FEW_GROUPS: usize = 4;
/// Most panels of rows for which weights are read straight from memory.
const FEW_PANELS: usize = 4;
/// Most rows that pass over a block of k before the next block.
const BAND: usize = 512;
/// Strips side by side of many rows.
const WIDE: usize = 2;
/// So many rows that are left of many, or fewer, are multiplied as so many.
const HALF: usize = MAX_SIDE / 2;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    (max_rows.min(BAND) + MAX_SIDE) * (TASK_STRIPS + WIDE) * LANES
}

/// The form of `rows` rows of activations, and how many lie side by side.
pub(super) fn form(rows: usize) -> (Form, usize) {
    let panels = rows.div_ceil(MAX_SIDE).max(1);
    let side = match panels <= FEW_PANELS {
        true => rows.div_ceil(panels).max(1),
        false => MAX_SIDE,
    };
    (Form::Bf16, side)
}

/// As [`super::strips::Packed::multiply`].
pub(super) fn product(
    tier: Tier,
    x: &Words,
    weights: &Run,
    scratch: &mut [f32],
    write: WriteOut<'_>,
) {
    tier.run_bf16(Product(Task {
        weights: Strips::cut(weights, write.cut),
        x,
        scratch,
        write,
    }));
}

struct Product<'a>(Task<'a, Bf16>);

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let side = self.0.x.side();
        if self.0.x.rows().div_ceil(side) > FEW_PANELS {
            return self.rows::<S, MAX_SIDE, HALF, WIDE, K_GROUPS>(s);
        }
        // (rows side by side, strips side by side): as many sums as registers allow.
        match side {
            1 => self.rows::<S, 1, 1, 8, 1>(s),
            2 => self.rows::<S, 2, 2, 8, 1>(s),
            3 => self.rows::<S, 3, 3, 4, 1>(s),
            4 => self.rows::<S, 4, 4, 4, 1>(s),
            5 => self.rows::<S, 5, 5, 4, FEW_GROUPS>(s),
            6 => self.rows::<S, 6, 6, 4, FEW_GROUPS>(s),
            7 => self.rows::<S, 7, 7, 2, FEW_GROUPS>(s),
            8 => self.rows::<S, 8, 8, 2, FEW_GROUPS>(s),
            _ => unreachable!("{side} rows"),
        }
    }
}

impl Product<'_> {
    /// Takes `GROUPS` groups of k of some strips in turn, over which all rows of a band pass. With
    /// few groups, all strips of the task are streams of memory; with many, they stay in the near
    /// caches for all rows. Up to HALF rows in the last panel are multiplied as HALF.
    #[inline(always)]
    fn rows<
        S: Simd,
        const SIDE: usize,
        const HALF: usize,
        const WIDE: usize,
        const GROUPS: usize,
    >(
        self,
        s: S,
    ) {
        let Task {
            weights,
            x,
            scratch,
            mut write,
        } = self.0;
        let sums = scratch.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
        let tiles = weights.total().div_ceil(WIDE);
        let groups = Bf16::pairs(weights.get(0)).len() / PAIRS;
        let rows = x.rows();
        let panels = rows.div_ceil(SIDE);
        for first in (0..panels).step_by(BAND / SIDE) {
            let count = (BAND / SIDE).min(panels - first);
            let sums = &mut sums[..tiles * count];
            for group in (0..groups).step_by(GROUPS) {
                let n = GROUPS.min(groups - group);
                let bytes = GROUPS * PAIRS * size_of::<[u16; 2 * LANES]>();
                let ahead = weights.ahead(bytes, group + GROUPS >= groups, SIDE == 1);
                if GROUPS < K_GROUPS {
                    // Activations of several rows come from L2 and would wait behind the weights.
                    for panel in first..first + count {
                        let words = x.panel::<SIDE, PAIRS>(panel, group, n).words;
                        for line in words.as_flattened() {
                            s.prefetch(line, size_of_val(words));
                        }
                    }
                }
                for (tile, sums) in sums.chunks_exact_mut(count).enumerate() {
                    let mut w: [&[[u16; 2 * LANES]]; WIDE] = [&[]; WIDE];
                    for (b, w) in w.iter_mut().enumerate() {
                        let strip = Bf16::pairs(weights.get(tile * WIDE + b));
                        *w = &strip[group * PAIRS..][..n * PAIRS];
                    }
                    for (panel, sums) in (first..).zip(sums) {
                        let words = x.panel::<SIDE, PAIRS>(panel, group, n).words;
                        // The first rows that pass ask for what is needed next.
                        let ahead = (panel == first).then_some(ahead);
                        match HALF < SIDE && rows - panel * SIDE > HALF {
                            true => multiply::<S, SIDE, SIDE, WIDE>(
                                s,
                                w,
                                ahead,
                                words,
                                sums,
                                group == 0,
                            ),
                            false => multiply::<S, HALF, SIDE, WIDE>(
                                s,
                                w,
                                ahead,
                                words,
                                sums,
                                group == 0,
                            ),
                        }
                    }
                }
            }
            let rows = first * SIDE..((first + count) * SIDE).min(rows);
            write.rows(s, rows, TaskSums::new(sums, count));
        }
    }
}

/// `sums += w x`, or `sums = w x` the first time: WIDE strips times the first ROWS of SIDE rows.
#[inline(always)]
fn multiply<S: Simd, const ROWS: usize, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: [&[[u16; 2 * LANES]]; WIDE],
    ahead: Option<Lookahead>,
    x: &[[[i32; PAIRS]; SIDE]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
    first: bool,
) {
    let mut acc = [[s.splat(0.0); ROWS]; WIDE];
    if !first {
        for b in 0..WIDE {
            for r in 0..ROWS {
                acc[b][r] = s.load(&sums[b][r]);
            }
        }
    }
    let w = w.map(|w| w.as_chunks::<PAIRS>().0);
    let w = w.map(|w| &w[..x.len()]);
    for (g, x) in x.iter().enumerate() {
        for k in 0..PAIRS {
            let mut columns = [s.splat_i32(0); WIDE];
            for b in 0..WIDE {
                if let Some(ahead) = ahead {
                    s.prefetch_far(&w[b][g][k], ahead);
                }
                columns[b] = s.load_i16(&w[b][g][k]);
            }
            for r in 0..ROWS {
                let x = s.splat_i32(x[r][k]);
                for b in 0..WIDE {
                    acc[b][r] = s.dot_bf16(acc[b][r], columns[b], x);
                }
            }
        }
    }
    for b in 0..WIDE {
        for r in 0..ROWS {
            s.store(acc[b][r], &mut sums[b][r]);
        }
    }
}
