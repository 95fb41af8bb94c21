//! Matrix products: `y = W x` for the rows of a step, fused with what happens to the sums.
//!
//! Every output is one chain of multiply-adds over ascending k from zero. So neither the number of
//! rows, nor the way k, rows and strips are cut, nor the number of threads changes a bit of it.
//!
//! Few rows (decode) are bound by memory. A thread reads the strips of a task in turn, a short
//! piece of each, so that each strip is a stream of its own: a single stream reaches only half of a
//! core's bandwidth. It prefetches one piece ahead and, at the end of the strips, the strips of the
//! task that it probably takes next. With a cold start in every task, the 4-bit kernels read a
//! tenth less.
//!
//! Many rows (prefill) are bound by arithmetic. A block of k of a few strips is converted to f32
//! once and stays in the near caches while all rows pass over it, and the next one is prefetched
//! meanwhile. Between blocks of k, partial sums wait in scratch.

use super::blocks::with_blocks;
use super::detect::Tier;
use super::element::{Pairs, Weights, with_element};
use super::mat::Run;
use super::results::{TaskSums, WriteOut};
use super::rows::{K_BLOCK, Panels};
use super::simd::{Kernel, LANES, Lookahead, Simd};
use super::strips::{Coming, Packed, Strips, TASK_STRIPS};

/// Pairs of k in a block when there are many rows.
const K_PAIRS: usize = K_BLOCK / 2;
/// Pairs of k in a piece. With few rows, so much is read of a strip before the next strip, and
/// prefetched. With many, a group of rows prefetches lines once for every piece that it multiplies.
const PIECE: usize = 16;
/// Most groups of rows for which weights are read straight from memory, by how many registers there
/// are. (As many rows, 32 take 60 instead of 67 ms on an Emerald Rapids, 25 take 60 instead of 58.
/// Tiers with fewer registers have not been measured again.)
const fn few_groups(registers: usize) -> usize {
    match registers {
        32 => 3,
        _ => 4,
    }
}
/// Up to so many groups of rows take half a block of k at a time. Half a block of three strips
/// stays in L1 with its activations, which makes 40 and 64 rows 1.1 times as fast. 512 rows, which
/// then load and store their sums twice as often, are 3 % slower.
const HALF_GROUPS: usize = 16;
/// Rows that pass over a block of k before the next block, so that their activations stay in L2.
const BAND_ROWS: usize = 512;
/// Most strips side by side in a register tile.
const MAX_WIDE: usize = 8;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    let rows = max_rows.min(BAND_ROWS) + super::rows::MAX_SIDE;
    let strips = 2 * TASK_STRIPS + MAX_WIDE;
    rows * strips * LANES + 2 * K_PAIRS * MAX_WIDE * LANES
}

/// How many rows lie side by side in the panels for a product of `rows` rows. Quantised weights
/// always go through [`Task::many`].
pub(super) fn side(tier: Tier, weights: &Run, rows: usize) -> usize {
    let most = match tier.registers() {
        32 => 8,
        8 => 6,
        _ => 3,
    };
    let groups = rows.div_ceil(most);
    if groups <= few_groups(tier.registers()) && weights.dtype.is_float() {
        rows.div_ceil(groups.max(1)).max(1)
    } else {
        most
    }
}

impl Packed for Panels {
    fn multiply(&self, tier: Tier, weights: &Run, scratch: &mut [f32], write: WriteOut<'_>) {
        debug_assert_eq!(self.cols, weights.cols.next_multiple_of(2));
        debug_assert_eq!(self.rows, write.to.len());
        macro_rules! run {
            ($W:ty) => {
                tier.run(Task::<$W> {
                    weights: Strips::cut(weights, write.cut),
                    panels: self,
                    scratch,
                    write,
                })
            };
        }
        match weights.dtype.quant() {
            None => with_element!(weights.dtype, E => run!(E)),
            Some(quant) => with_blocks!(quant, Q => run!(Q)),
        }
    }
}

struct Task<'a, W: Weights> {
    weights: Strips<'a, W>,
    panels: &'a Panels,
    scratch: &'a mut [f32],
    write: WriteOut<'a>,
}

impl<W: Weights> Kernel for Task<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let many = !W::DIRECT || self.panels.groups() > few_groups(S::REGISTERS);
        // (rows side by side, strips side by side): as many accumulators as registers allow beside
        // the columns that are widened. (With 6 x 4 there are too few: 12 rows took 1.4 times as
        // long as with 6 x 2.) Only an arm that a constant rules out is not compiled; hence the
        // first match is over nothing but constants.
        let side = self.panels.side;
        // Quantised weights are multiplied in float32 on the portable tier alone.
        match const {
            if W::DIRECT || S::REGISTERS == 4 {
                S::REGISTERS
            } else {
                0
            }
        } {
            0 => unreachable!("quantised weights in float32"),
            32 => match (side, many) {
                (8, true) => self.many::<S, 8, 3>(s),
                _ if W::DIRECT => match side {
                    1 => self.few::<S, 1, 8>(s),
                    2 => self.few::<S, 2, 8>(s),
                    3 => self.few::<S, 3, 4>(s),
                    4 => self.few::<S, 4, 4>(s),
                    5 => self.few::<S, 5, 4>(s),
                    6 => self.few::<S, 6, 2>(s),
                    7 => self.few::<S, 7, 2>(s),
                    8 => self.few::<S, 8, 2>(s),
                    _ => unreachable!("{side} rows"),
                },
                _ => unreachable!("{side} rows"),
            },
            8 => match (side, many) {
                (6, true) => self.many::<S, 6, 1>(s),
                _ if W::DIRECT => match side {
                    1 => self.few::<S, 1, 4>(s),
                    2 => self.few::<S, 2, 2>(s),
                    3 => self.few::<S, 3, 2>(s),
                    4 => self.few::<S, 4, 1>(s),
                    5 => self.few::<S, 5, 1>(s),
                    6 => self.few::<S, 6, 1>(s),
                    _ => unreachable!("{side} rows"),
                },
                _ => unreachable!("{side} rows"),
            },
            _ => match (side, many) {
                (3, true) => self.many::<S, 3, 1>(s),
                _ if W::DIRECT => match side {
                    1 => self.few::<S, 1, 2>(s),
                    2 => self.few::<S, 2, 1>(s),
                    3 => self.few::<S, 3, 1>(s),
                    _ => unreachable!("{side} rows"),
                },
                _ => unreachable!("{side} rows"),
            },
        }
    }
}

impl<W: Weights> Task<'_, W> {
    /// A few groups of rows, with weights straight from memory. It takes a piece of k of every
    /// strip in turn, so that all strips of the task are streams of memory, however few fit into a
    /// register tile.
    #[inline(always)]
    fn few<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let groups = self.panels.groups();
        let pairs = self.panels.cols / 2;
        let tiles = self.weights.total().div_ceil(WIDE);
        let sums = &mut self.scratch[2 * K_PAIRS * MAX_WIDE * LANES..];
        let sums = sums.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0;
        let sums = sums.as_chunks_mut::<WIDE>().0;
        for k in (0..pairs).step_by(PIECE) {
            let n = PIECE.min(pairs - k);
            let bytes = PIECE * size_of::<[W::Bits; 2 * LANES]>();
            let ahead = self.weights.ahead(bytes, k + PIECE >= pairs, SIDE == 1);
            // With many rows, activations come from L2 and would wait behind the weights.
            for group in 0..groups {
                let x = self.panels.block(group, k / K_PAIRS);
                for line in x[k % K_PAIRS * 2 * SIDE..].chunks(LANES).take(n * SIDE / 8) {
                    s.prefetch(&line[0], PIECE * 2 * SIDE * size_of::<f32>());
                }
            }
            for tile in 0..tiles {
                let mut w: [&[[W::Bits; 2 * LANES]]; WIDE] = [&[]; WIDE];
                for (b, w) in w.iter_mut().enumerate() {
                    *w = &W::pairs(self.weights.get(tile * WIDE + b))[k..k + n];
                }
                for group in 0..groups {
                    let x = self.panels.block(group, k / K_PAIRS);
                    let x = x.as_chunks::<SIDE>().0.as_chunks::<2>().0;
                    let x = &x[k % K_PAIRS..][..n];
                    let sums = &mut sums[tile * groups + group];
                    stream::<W, S, SIDE, WIDE>(s, w, ahead, x, sums, k == 0);
                }
            }
        }
        self.finish::<S, SIDE, WIDE>(s, 0, groups);
    }

    /// Many groups of rows, one block of k, or half of one, after another.
    #[inline(always)]
    fn many<S: Simd, const SIDE: usize, const WIDE: usize>(mut self, s: S) {
        let pairs = self.panels.cols / 2;
        let groups = self.panels.groups();
        let band = BAND_ROWS / SIDE;
        let strips = self.weights.total();
        for first in (0..groups).step_by(band) {
            let count = band.min(groups - first);
            let (block, sums) = self.scratch.split_at_mut(2 * K_PAIRS * MAX_WIDE * LANES);
            let block = block.as_chunks_mut::<LANES>().0.as_chunks_mut::<WIDE>().0;
            let sums = sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<SIDE>().0;
            let sums = &mut sums.as_chunks_mut::<WIDE>().0[..strips.div_ceil(WIDE) * count];
            // Blocks of quantised weights may be as long as a block of k.
            let parts = match W::DIRECT && WIDE > 1 && count <= HALF_GROUPS {
                true => 2,
                false => 1,
            };
            let (each, len) = (K_PAIRS / parts, W::BLOCK / parts);
            for k in (0..pairs).step_by(each) {
                let n = each.min(pairs - k);
                let block = &mut block.as_chunks_mut::<2>().0[..n];
                for (tile, sums) in sums.chunks_exact_mut(count).enumerate() {
                    let at = tile * WIDE;
                    // Three strips at a time, a task's eight would take as long as nine.
                    let two = WIDE > 2 && strips - at <= 2;
                    let mut part: [&[W::Bits]; WIDE] = [&[]; WIDE];
                    for (b, part) in part.iter_mut().enumerate().take(if two { 2 } else { WIDE }) {
                        let strip = self.weights.get(at + b);
                        *part = strip.chunks(len).nth(k / each).unwrap_or_default();
                        W::unpack(s, part, OfBlock { s, block, b });
                    }
                    let bytes = size_of_val(part[0]);
                    let ahead = self.weights.ahead(bytes, k + each >= pairs, false);
                    let mut coming = Coming::new(part, ahead, count * n.div_ceil(PIECE));
                    for (group, sums) in (first..).zip(sums) {
                        let x = self.panels.block(group, k / K_PAIRS);
                        let x = x[k % K_PAIRS * 2 * SIDE..].as_chunks::<SIDE>().0;
                        let (coming, first) = (&mut coming, k == 0);
                        if two {
                            multiply::<_, S, SIDE, WIDE, 2>(s, block, coming, x, sums, first);
                        } else {
                            multiply::<_, S, SIDE, WIDE, WIDE>(s, block, coming, x, sums, first);
                        }
                    }
                }
            }
            self.finish::<S, SIDE, WIDE>(s, first, count);
        }
    }

    /// Writes the sums, `[tile][group][wide][side][16]`, of the `count` groups from `first` on.
    #[inline(always)]
    fn finish<S: Simd, const SIDE: usize, const WIDE: usize>(
        &mut self,
        s: S,
        first: usize,
        count: usize,
    ) {
        let sums = &self.scratch[2 * K_PAIRS * MAX_WIDE * LANES..];
        let sums = sums.as_chunks::<LANES>().0.as_chunks::<SIDE>().0;
        let sums = TaskSums::new(sums.as_chunks::<WIDE>().0, count);
        let rows = first * SIDE..((first + count) * SIDE).min(self.panels.rows);
        self.write.rows(s, rows, sums);
    }
}

/// `sums += w x`, or `sums = w x` the first time: WIDE strips from memory times SIDE rows.
#[inline(always)]
fn stream<W: Weights, S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: [&[[W::Bits; 2 * LANES]]; WIDE],
    ahead: Lookahead,
    x: &[[[f32; SIDE]; 2]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
    first: bool,
) {
    let mut acc = load_sums(s, sums, first);
    let w = w.map(|w| &w[..x.len()]);
    for (k, x) in x.iter().enumerate() {
        for b in 0..WIDE {
            for line in w[b][k].chunks(64 / size_of::<W::Bits>()) {
                s.prefetch_far(&line[0], ahead);
            }
            for (half, x) in x.iter().enumerate() {
                let column = W::widen(s, &w[b][k], half);
                for r in 0..SIDE {
                    acc[b][r] = s.fma(column, s.splat(x[r]), acc[b][r]);
                }
            }
        }
    }
    store_sums(s, acc, sums);
}

/// Columns of a block of strips, of which strip `b` is unpacked.
struct OfBlock<'a, S, const WIDE: usize> {
    s: S,
    block: &'a mut [[[[f32; LANES]; WIDE]; 2]],
    b: usize,
}

impl<S: Simd, const WIDE: usize> Pairs<S> for OfBlock<'_, S, WIDE> {
    #[inline(always)]
    fn put(&mut self, pair: usize, [w0, w1]: [S::F; 2]) {
        // Quantised strips are padded to more columns.
        if let Some(to) = self.block.get_mut(pair) {
            self.s.store(w0, &mut to[0][self.b]);
            self.s.store(w1, &mut to[1][self.b]);
        }
    }
}

/// `sums += w x`, or `sums = w x` the first time: the first USED of WIDE unpacked strips times SIDE
/// rows. Some of what is `coming` is prefetched with every [`PIECE`].
#[inline(always)]
fn multiply<T, S: Simd, const SIDE: usize, const WIDE: usize, const USED: usize>(
    s: S,
    w: &[[[[f32; LANES]; WIDE]; 2]],
    coming: &mut Coming<'_, T, WIDE>,
    x: &[[f32; SIDE]],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
    first: bool,
) {
    let sums = sums.first_chunk_mut::<USED>().expect("USED <= WIDE");
    let mut acc = load_sums(s, sums, first);
    for (w, x) in w.chunks(PIECE).zip(x.chunks(2 * PIECE)) {
        coming.prefetch(s);
        for (w, x) in w.as_flattened().iter().zip(x) {
            let mut v = [s.splat(0.0); USED];
            for b in 0..USED {
                v[b] = s.load(&w[b]);
            }
            for r in 0..SIDE {
                let x = s.splat(x[r]);
                for b in 0..USED {
                    acc[b][r] = s.fma(v[b], x, acc[b][r]);
                }
            }
        }
    }
    store_sums(s, acc, sums);
}

/// A register tile of sums; zeros the first time.
#[inline(always)]
fn load_sums<S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    sums: &[[[f32; LANES]; SIDE]; WIDE],
    first: bool,
) -> [[S::F; SIDE]; WIDE] {
    let mut acc = [[s.splat(0.0); SIDE]; WIDE];
    if !first {
        for b in 0..WIDE {
            for r in 0..SIDE {
                acc[b][r] = s.load(&sums[b][r]);
            }
        }
    }
    acc
}

#[inline(always)]
fn store_sums<S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    acc: [[S::F; SIDE]; WIDE],
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
) {
    for b in 0..WIDE {
        for r in 0..SIDE {
            s.store(acc[b][r], &mut sums[b][r]);
        }
    }
}
