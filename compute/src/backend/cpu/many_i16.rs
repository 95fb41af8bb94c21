//! The products of [`super::product_i16`] for many rows, where arithmetic binds.
//!
//! A block of k of a few strips is decoded once, to pairs of int16 and scales in float32. It stays
//! in L1 while all rows pass over it; between blocks of k, partial sums wait in scratch. The
//! integers are those of few rows, and their sums are scaled and added in the same order: the bits
//! are equal.

use super::blocks::{Blocks, LINE, WORDS};
use super::buf::as_u16;
use super::detect::Tier;
use super::element::Weights;
use super::product_i16::{MAX_SIDE, Panel, Task};
use super::simd::{Kernel, LANES, Simd};
use super::strips::TASK_STRIPS;

/// Groups of k that are decoded together: 8 KiB of two strips.
const K_GROUPS: usize = 4;
/// Rows that pass over a block of k before the next block: their activations and sums stay in L2.
const BAND: usize = 576;
/// Most strips side by side.
const MAX_WIDE: usize = 2;
/// Most scales of a group and strip.
const MAX_SPANS: usize = 2;

/// Numbers of scratch that decoded strips take: codes have half the size; scales, and minima.
const DECODED: usize = K_GROUPS * MAX_WIDE * (WORDS + MAX_SPANS + 1) * LANES;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(super) fn scratch_len(max_rows: usize) -> usize {
    DECODED + TASK_STRIPS * (max_rows.min(BAND) + MAX_SIDE) * LANES
}

/// How many rows lie side by side.
pub(super) fn side(tier: Tier) -> usize {
    match tier.registers() {
        32 => 8,
        8 => 4,
        _ => 3,
    }
}

/// A [`Task`] with many rows.
pub(super) struct Many<'a, Q: Weights>(pub Task<'a, Q>);

impl<Q: Blocks + Weights<Bits = u16>> Kernel for Many<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // (rows side by side, strips side by side). More sums (6 x 4, 8 x 3 or 12 x 2 with AVX-512,
        // 6 x 1 with AVX2) are a tenth slower, because the compiler keeps the float sums in
        // registers, too. A loop over words that is unrolled is no faster.
        match S::REGISTERS {
            32 => self.many::<S, 8, 2>(s),
            8 => self.many::<S, 4, 1>(s),
            _ => self.many::<S, 3, 1>(s),
        }
    }
}

/// A block of k of WIDE strips.
struct Decoded<'a, const WIDE: usize> {
    /// `[k / 2]`.
    words: &'a mut [[[u16; LINE]; WIDE]],
    /// `[k / 32][span]`.
    scales: &'a mut [[[f32; LANES]; WIDE]],
    /// `[k / 32]`.
    minima: &'a mut [[[f32; LANES]; WIDE]],
}

impl<'a, const WIDE: usize> Decoded<'a, WIDE> {
    fn new(scratch: &'a mut [f32]) -> Self {
        let (words, rest) = scratch.split_at_mut(K_GROUPS * WORDS * WIDE * LANES);
        let (scales, minima) = rest.split_at_mut(K_GROUPS * MAX_SPANS * WIDE * LANES);
        Self {
            words: as_u16(words).as_chunks_mut().0.as_chunks_mut().0,
            scales: scales.as_chunks_mut().0.as_chunks_mut().0,
            minima: minima.as_chunks_mut().0.as_chunks_mut().0,
        }
    }
}

impl<Q: Blocks + Weights<Bits = u16>> Many<'_, Q> {
    #[inline(always)]
    fn many<S: Simd, const SIDE: usize, const WIDE: usize>(self, s: S) {
        let Task {
            weights,
            x,
            scratch,
            mut write,
        } = self.0;
        assert_eq!(x.side(), SIDE, "rows side by side");
        let table = Q::table_of_pairs(s);
        let (decoded, sums) = scratch.split_at_mut(DECODED);
        let mut decoded = Decoded::<WIDE>::new(decoded);
        let sums = sums.as_chunks_mut::<LANES>().0;
        let sums = sums.as_chunks_mut::<SIDE>().0.as_chunks_mut::<WIDE>().0;
        let mut strips: [&[Q::Block]; TASK_STRIPS] = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = Q::blocks(weights.get(i));
        }
        let strips = &strips.as_chunks::<WIDE>().0[..weights.total().div_ceil(WIDE)];
        let groups = strips[0][0].len() * Q::GROUPS;
        let panels = x.rows().div_ceil(SIDE);
        // Bands of equal size.
        let band = panels.div_ceil((panels * SIDE).div_ceil(BAND));
        for first in (0..panels).step_by(band) {
            let count = band.min(panels - first);
            let sums = &mut sums[..strips.len() * count];
            sums.as_flattened_mut()
                .as_flattened_mut()
                .fill([0.0; LANES]);
            for group in (0..groups).step_by(K_GROUPS) {
                let n = K_GROUPS.min(groups - group);
                let bytes = K_GROUPS * size_of::<Q::Block>() / Q::GROUPS;
                let ahead = weights.ahead(bytes, group + K_GROUPS >= groups);
                for (strips, sums) in strips.iter().zip(sums.chunks_exact_mut(count)) {
                    decode::<Q, S, WIDE>(s, table, strips, group..group + n, ahead, &mut decoded);
                    for (panel, sums) in (first..).zip(sums) {
                        let x = x.panel::<SIDE>(panel, group, n);
                        multiply::<Q, S, SIDE, WIDE>(s, &decoded, x, sums);
                    }
                }
            }
            let sums = &*sums;
            for row in first * SIDE..((first + count) * SIDE).min(x.rows()) {
                let (panel, r) = (row / SIDE - first, row % SIDE);
                write.row(s, &weights, row, |i| {
                    &sums[i / WIDE * count + panel][i % WIDE][r]
                });
            }
        }
    }
}

/// Decodes `groups` of some strips. What lies `ahead` bytes behind them is prefetched.
#[inline(always)]
fn decode<Q: Blocks, S: Simd, const WIDE: usize>(
    s: S,
    table: Q::Pairs<S>,
    strips: &[&[Q::Block]; WIDE],
    groups: std::ops::Range<usize>,
    ahead: usize,
    to: &mut Decoded<'_, WIDE>,
) {
    // Pairs of a line.
    let each = WORDS / Q::LINES;
    for (i, at) in groups.enumerate() {
        let words = &mut to.words[i * WORDS..][..WORDS];
        let scales = &mut to.scales[i * Q::SPANS..][..Q::SPANS];
        for b in 0..WIDE {
            let (block, g) = (&strips[b][at / Q::GROUPS], at % Q::GROUPS);
            for j in 0..Q::LINES {
                let line = Q::line(block, g * Q::LINES + j);
                s.prefetch(line, ahead);
                let pairs = Q::int_pairs(s, table, line);
                for (pair, words) in pairs.into_iter().zip(&mut words[j * each..][..each]) {
                    s.store_i16(pair, &mut words[b]);
                }
            }
            for (span, scales) in scales.iter_mut().enumerate() {
                let span = g * Q::SPANS + span;
                Q::prefetch_scale(s, block, span, ahead);
                let [scale, minimum] = Q::factors(s, Q::scale(s, block, span));
                s.store(scale, &mut scales[b]);
                if Q::MINIMA {
                    s.store(minimum, &mut to.minima[i][b]);
                }
            }
        }
    }
}

/// `sums += w x`, for the groups of `x`.
#[inline(always)]
fn multiply<Q: Blocks, S: Simd, const SIDE: usize, const WIDE: usize>(
    s: S,
    w: &Decoded<'_, WIDE>,
    x: Panel<'_, SIDE>,
    sums: &mut [[[f32; LANES]; SIDE]; WIDE],
) {
    for (i, words) in x.words.iter().enumerate() {
        let (units, offsets) = (&x.scales[i], &x.offsets[i]);
        for span in 0..Q::SPANS {
            let each = WORDS / Q::SPANS;
            let lines = &w.words[i * WORDS + span * each..][..each];
            let mut dots = [[s.splat_i32(0); SIDE]; WIDE];
            let mut pairs = [s.splat_i32(0); WIDE];
            for b in 0..WIDE {
                pairs[b] = s.load_i16(&lines[0][b]);
            }
            for r in 0..SIDE {
                let x = s.splat_i32(words[r][span * each]);
                for b in 0..WIDE {
                    dots[b][r] = s.mul_i16(pairs[b], x);
                }
            }
            for j in 1..each {
                for b in 0..WIDE {
                    pairs[b] = s.load_i16(&lines[j][b]);
                }
                for r in 0..SIDE {
                    let x = s.splat_i32(words[r][span * each + j]);
                    for b in 0..WIDE {
                        dots[b][r] = s.dot_i16(dots[b][r], pairs[b], x);
                    }
                }
            }
            let scales = &w.scales[i * Q::SPANS + span];
            const { assert!(!Q::MINIMA || Q::SPANS == 1, "minima are added once") };
            for b in 0..WIDE {
                let scale = s.load(&scales[b]);
                for r in 0..SIDE {
                    let mut sum = s.load(&sums[b][r]);
                    let scale = s.mul(scale, s.splat(units[r]));
                    sum = s.fma(s.to_f32(dots[b][r]), scale, sum);
                    if Q::MINIMA {
                        let offset = s.splat(f32::from_bits(offsets[r] as u32));
                        sum = s.fma(s.load(&w.minima[i][b]), offset, sum);
                    }
                    s.store(sum, &mut sums[b][r]);
                }
            }
        }
    }
}
