//! Kernels for many rows, which are bound by arithmetic.
//!
//! A block of k of a few strips is decoded once: to the words that activations are multiplied with,
//! and to scales in float32. The decoded block stays in L1 while all rows pass over it; between
//! blocks of k, partial sums wait in scratch. The integers are the same as for few rows, and their
//! sums are scaled and added in the same order. So the bits are equal.
//!
//! In the last panel, only half of the rows are multiplied if the other half is empty. Without
//! that, 25 rows (which were multiplied as 32) were a tenth slower, and 17 to 20 rows of int4 an
//! eighth slower.

use super::super::blocks::Blocks;
use super::super::detect::Tier;
use super::super::results::TaskSums;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::strips::{Coming, TASK_STRIPS};
use super::super::words::{MAX_SIDE, Task};
use super::integer::{DECODED, Decoded, Groups, Integers, K_GROUPS};

/// The number of rows that pass over a block of k before the next block. Their activations and sums
/// stay in L2.
pub const BAND: usize = 576;
/// With at most this many panels of rows, half of [`K_GROUPS`] are decoded at a time. With all of
/// them, 512 rows load and store their sums less often and are 5 % faster. But then each panel of
/// 32 rows has more lines to prefetch at once, and 32 rows are 3 % slower. (AVX-512, panels of
/// eight rows.)
const FEW_PANELS: usize = 8;

/// How many float32 of scratch memory a thread needs for steps of up to `max_rows` rows.
pub fn scratch_len(max_rows: usize) -> usize {
    DECODED + TASK_STRIPS * (max_rows.min(BAND) + MAX_SIDE) * LANES
}

/// How many rows lie side by side.
pub fn side(tier: Tier) -> usize {
    match tier.registers() {
        32 => 8,
        8 => 4,
        _ => 3,
    }
}

/// A [`Task`] with many rows.
pub struct Many<'a, A: Integers>(pub Task<'a, A::Q>);

impl<A: Integers> Kernel for Many<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // (rows side by side, strips side by side). More sums (6 x 4, 8 x 3 or 12 x 2 with AVX-512,
        // 6 x 1 with AVX2) are a tenth slower, because the compiler then keeps the float sums in
        // registers, too. Unrolling the loop over words is no faster. With AVX2, two rows take as
        // long as four, so its last panel is always whole.
        match S::REGISTERS {
            32 => self.many::<S, 8, 4, 2>(s),
            8 => self.many::<S, 4, 4, 1>(s),
            _ => self.many::<S, 3, 3, 1>(s),
        }
    }
}

impl<A: Integers> Many<'_, A> {
    /// If the last panel has at most HALF rows, HALF of its rows are multiplied.
    #[inline(always)]
    fn many<S: Simd, const SIDE: usize, const HALF: usize, const WIDE: usize>(self, s: S) {
        let Task {
            weights,
            x,
            scratch,
            mut write,
        } = self.0;
        assert_eq!(x.side(), SIDE, "rows side by side");
        let (decoded, sums) = scratch.split_at_mut(DECODED);
        let mut decoded = Decoded::<WIDE>::new(decoded);
        let sums = sums.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
        let mut strips: [&[u16]; TASK_STRIPS] = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = weights.get(i);
        }
        let strips = &strips.as_chunks::<WIDE>().0[..weights.total().div_ceil(WIDE)];
        // Whether the weights have a plane only changes how they are decoded.
        let planed = A::Q::HAS_PLANED && x.form().quant() != Some(A::Q::QUANT);
        let block = match planed {
            true => <A::Planed as Integers>::Q::LEN,
            false => A::Q::LEN,
        };
        let groups = strips[0][0].len() / block * A::Q::GROUPS;
        let rows = x.rows();
        let panels = rows.div_ceil(SIDE);
        // Bands of equal size.
        let band = panels.div_ceil((panels * SIDE).div_ceil(BAND));
        for first in (0..panels).step_by(band) {
            let count = band.min(panels - first);
            let sums = &mut sums[..strips.len() * count];
            sums.as_flattened_mut()
                .as_flattened_mut()
                .fill([0.0; LANES]);
            let most = match count > FEW_PANELS {
                true => K_GROUPS,
                false => K_GROUPS / 2,
            };
            // The parts have about equal sizes, because the last part prefetches no more than its
            // own size.
            let each = groups.div_ceil(groups.div_ceil(most));
            let each = each.next_multiple_of(A::Q::GROUPS.min(most));
            for group in (0..groups).step_by(each) {
                let n = each.min(groups - group);
                let words = block / A::Q::GROUPS;
                // The first groups of a block also need the end of the block, where the scales are.
                // So the prefetch is at least a block ahead.
                let far = n.max(A::Q::GROUPS);
                let ahead = weights.ahead(far * words * 2, group + far >= groups, false);
                for (strips, sums) in strips.iter().zip(sums.chunks_exact_mut(count)) {
                    let groups = group..group + n;
                    match planed {
                        true if A::Q::HAS_PLANED => {
                            decode::<A::Planed, S, WIDE>(s, strips, groups, &mut decoded);
                        }
                        _ => decode::<A, S, WIDE>(s, strips, groups, &mut decoded),
                    }
                    let part = strips.map(|strip| &strip[group * words..(group + n) * words]);
                    let mut coming = Coming::new(part, ahead, count);
                    for (panel, sums) in (first..).zip(sums) {
                        coming.prefetch(s);
                        let x = Groups {
                            x,
                            panel,
                            first: group,
                            count: n,
                        };
                        match HALF < SIDE && rows - panel * SIDE > HALF {
                            true => A::many::<S, SIDE, SIDE, WIDE>(s, &decoded, x, sums),
                            false => A::many::<S, HALF, SIDE, WIDE>(s, &decoded, x, sums),
                        }
                    }
                }
            }
            let rows = first * SIDE..((first + count) * SIDE).min(rows);
            write.rows(s, rows, TaskSums::new(sums, count));
        }
    }
}

/// Decodes `groups` of some strips.
#[inline(always)]
fn decode<A: Integers, S: Simd, const WIDE: usize>(
    s: S,
    strips: &[&[u16]; WIDE],
    groups: std::ops::Range<usize>,
    to: &mut Decoded<'_, WIDE>,
) {
    let codes = A::codes(s);
    // Decoded lines per stored line.
    let each = A::LINES / A::Q::LINES;
    for (i, at) in groups.enumerate() {
        let lines = &mut to.lines[i * A::LINES..][..A::LINES];
        let scales = &mut to.scales[i * A::Q::SPANS..][..A::Q::SPANS];
        for b in 0..WIDE {
            let (block, g) = (at / A::Q::GROUPS, at % A::Q::GROUPS);
            let block = &A::Q::blocks(strips[b])[block];
            for j in 0..A::Q::LINES {
                let line = A::Q::line(block, g * A::Q::LINES + j);
                let decoded = A::decode(s, codes, line);
                for (line, to) in decoded.into_iter().zip(&mut lines[j * each..][..each]) {
                    s.store_i16(line, &mut to[b]);
                }
            }
            let common = A::Q::common(s, block);
            for (span, scales) in scales.iter_mut().enumerate() {
                let span = g * A::Q::SPANS + span;
                let [scale, minimum] = A::Q::factors(s, A::Q::scale(s, block, common, span));
                s.store(scale, &mut scales[b]);
                if A::Q::MINIMA {
                    s.store(minimum, &mut to.minima[i][b]);
                }
            }
        }
    }
}
