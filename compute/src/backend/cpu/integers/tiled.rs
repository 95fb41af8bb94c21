//! Kernels for many rows of bytes on AMX.
//!
//! For sixteen rows, a product of tiles computes the sums of a group of a strip (or of a span, if a
//! group has two scales). These integer sums are stored. While the next sums are computed, they are
//! scaled and added to the float32 sums. The integers are those of the kernels without tiles, and
//! their sums are added in the same order. So the bits are equal.
//!
//! [`K_GROUPS`] groups of one strip after another are multiplied, with the sums of sixteen rows in
//! registers. Meanwhile the next part of all strips is prefetched, one line of each strip in turn.
//! (When it was prefetched in the order of use, one strip after another, 16 rows of int8 took 1.15
//! times as long.)
//!
//! Storing the sums takes about a third of the time of sixteen rows in L2, and hardly anything
//! overlaps with it. benches/record/2026-11-30-bytes-on-tiles.txt says what was tried.

use super::super::amx::{Amx, ByteTiles, IntSums, Rows, SIDE};
use super::super::blocks::{BYTE_WORDS, Bytes, GROUP_K, LINE, MAX_SPANS};
use super::super::buf::as_u16;
use super::super::element::Weights;
use super::super::results::TaskSums;
use super::super::simd::{Kernel, LANES, Simd};
use super::super::strips::{Coming, TASK_STRIPS};
use super::super::words::{Panel, Task};
use super::integer::{K_GROUPS, unrolled};
use super::many::BAND;
use std::sync::atomic::{Ordering, compiler_fence};

/// How many float32 of scratch memory a part of a strip takes.
const UNPACKED: usize = K_GROUPS * (BYTE_WORDS + MAX_SPANS + 1) * LANES;

/// How many float32 of scratch memory a thread needs for steps of up to `max_rows` rows.
pub fn scratch_len(max_rows: usize) -> usize {
    2 * UNPACKED + TASK_STRIPS * (max_rows.min(BAND) + SIDE) * LANES
}

/// A [`Task`] with many rows, sixteen side by side.
pub struct Tiled<'a, Q: Bytes + Weights<Bits = u16>> {
    pub amx: Amx,
    pub task: Task<'a, Q>,
}

impl<Q: Bytes + Weights<Bits = u16>> Kernel for Tiled<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match Q::SPANS {
            1 => self.tiles::<S, GROUP_K>(s),
            _ => self.tiles::<S, { GROUP_K / 2 }>(s),
        }
    }
}

impl<Q: Bytes + Weights<Bits = u16>> Tiled<'_, Q> {
    #[inline(always)]
    fn tiles<S: Simd, const K: usize>(self, s: S) {
        let Self { amx, task } = self;
        let Task {
            weights,
            x,
            scratch,
            mut write,
        } = task;
        assert_eq!(x.side(), SIDE, "rows side by side");
        let (unpacked, sums) = scratch.split_at_mut(2 * UNPACKED);
        let (now, next) = unpacked.split_at_mut(UNPACKED);
        let (mut now, mut next) = (Unpacked::new(now), Unpacked::new(next));
        let sums = sums.as_chunks_mut::<LANES>().0.as_chunks_mut::<SIDE>().0;
        let mut strips: [&[u16]; TASK_STRIPS] = [&[]; TASK_STRIPS];
        for (i, strip) in strips.iter_mut().enumerate() {
            *strip = weights.get(i);
        }
        let n_strips = weights.total();
        // Words per group.
        let words = Q::LEN / Q::GROUPS;
        let groups = strips[0].len() / words;
        let rows = x.rows();
        let panels = rows.div_ceil(SIDE);
        let mut whole = [IntSums::ZERO; 2];
        // Bands of equal size.
        let band = panels.div_ceil((panels * SIDE).div_ceil(BAND));
        for first in (0..panels).step_by(band) {
            let count = band.min(panels - first);
            let sums = &mut sums[..n_strips * count];
            sums.as_flattened_mut().fill([0.0; LANES]);
            let tiles = amx.byte_tiles::<K>();
            for group in (0..groups).step_by(K_GROUPS) {
                let n = K_GROUPS.min(groups - group);
                let part = strips.map(|strip| &strip[group * words..(group + n) * words]);
                let ahead = weights.ahead(n * words * 2, group + n >= groups, false);
                let mut coming = Coming::new(part, ahead, n_strips * count * n * Q::SPANS);
                let x = |panel: usize| x.panel::<SIDE, BYTE_WORDS>(first + panel, group, n);
                unpack::<Q, S>(s, part[0], &mut now);
                begin::<Q, K>(&tiles, &mut whole, (now.codes::<Q>(part[0]), x(0).words));
                for (i, sums) in sums.chunks_exact_mut(count).enumerate() {
                    let last = i + 1 == n_strips;
                    for (panel, sums) in sums.iter_mut().enumerate() {
                        // The operands that are multiplied next.
                        let then = match (panel + 1 < count, last) {
                            (true, _) => Some((now.codes::<Q>(part[i]), x(panel + 1).words)),
                            (_, false) => {
                                unpack::<Q, S>(s, part[i + 1], &mut next);
                                Some((next.codes::<Q>(part[i + 1]), x(0).words))
                            }
                            _ => None,
                        };
                        let square = Square {
                            codes: now.codes::<Q>(part[i]),
                            scales: now.scales,
                            minima: now.minima,
                            x: x(panel),
                            then,
                        };
                        macro_rules! multiply {
                            ($rows:expr) => {
                                square.multiply::<Q, S, K, { $rows }>(
                                    s,
                                    &tiles,
                                    &mut whole,
                                    sums,
                                    &mut coming,
                                )
                            };
                        }
                        match rows - (first + panel) * SIDE > SIDE / 2 {
                            true => multiply!(SIDE),
                            false => multiply!(SIDE / 2),
                        }
                    }
                    std::mem::swap(&mut now, &mut next);
                }
            }
            drop(tiles);
            let rows = first * SIDE..((first + count) * SIDE).min(rows);
            let sums = sums.as_chunks::<1>().0;
            write.rows(s, rows, TaskSums::new(sums, count));
        }
    }
}

/// Some unpacked groups of a strip.
struct Unpacked<'a> {
    /// `[k / 32][k % 32 / 4]` lines of signed bytes. Unused if the strip itself has signed bytes.
    lines: &'a mut [u16],
    /// `[k / 32][span]`.
    scales: &'a mut [[f32; LANES]],
    /// `[k / 32]`.
    minima: &'a mut [[f32; LANES]],
}

impl<'a> Unpacked<'a> {
    fn new(scratch: &'a mut [f32]) -> Self {
        let (lines, rest) = scratch.split_at_mut(K_GROUPS * BYTE_WORDS * LANES);
        let (scales, minima) = rest.split_at_mut(K_GROUPS * MAX_SPANS * LANES);
        Self {
            lines: as_u16(lines),
            scales: scales.as_chunks_mut().0,
            minima: minima.as_chunks_mut().0,
        }
    }

    /// The signed bytes: the lines here, or the strip that was unpacked.
    #[inline(always)]
    fn codes<'s, Q: Bytes>(&'s self, strip: &'s [u16]) -> &'s [u16] {
        match Q::SIGNED {
            true => strip,
            false => self.lines,
        }
    }
}

/// Unpacks whole blocks of a strip.
#[inline(always)]
fn unpack<Q: Bytes, S: Simd>(s: S, strip: &[u16], to: &mut Unpacked<'_>) {
    // Unpacked lines per stored line.
    let each = BYTE_WORDS / Q::LINES;
    let lines = to.lines.as_chunks_mut::<LINE>().0;
    for (b, block) in Q::blocks(strip).iter().enumerate() {
        let common = Q::common(s, block);
        for g in 0..Q::GROUPS {
            let i = b * Q::GROUPS + g;
            if !Q::SIGNED {
                for j in 0..Q::LINES {
                    let quads = Q::signed(s, Q::line(block, g * Q::LINES + j));
                    let to = &mut lines[i * BYTE_WORDS + j * each..][..each];
                    for (quads, to) in quads.into_iter().zip(to) {
                        s.store_i16(quads, to);
                    }
                }
            }
            for span in 0..Q::SPANS {
                let scale = Q::scale(s, block, common, g * Q::SPANS + span);
                let [scale, minimum] = Q::factors(s, scale);
                s.store(scale, &mut to.scales[i * Q::SPANS + span]);
                if Q::MINIMA {
                    s.store(minimum, &mut to.minima[i]);
                }
            }
        }
    }
}

/// The operands of a product: signed bytes of some groups of a strip, and of sixteen rows.
type Operands<'a> = (&'a [u16], &'a [Rows]);

/// Begins the product of span `i`, counted over the spans of all groups, in place `PLACE`.
#[inline(always)]
fn span<Q: Bytes, const K: usize, const PLACE: usize>(
    tiles: &ByteTiles<K>,
    (codes, words): Operands<'_>,
    i: usize,
) {
    let (group, span) = (i / Q::SPANS, i % Q::SPANS);
    let lines = BYTE_WORDS / Q::SPANS;
    let at = match Q::SIGNED {
        true => {
            let line = group % Q::GROUPS * BYTE_WORDS + span * lines;
            group / Q::GROUPS * Q::LEN + line * LINE
        }
        false => i * lines * LINE,
    };
    let codes = codes[at..][..lines * LINE].as_chunks().0;
    tiles.multiply::<PLACE>(&words[group], span * K, codes);
}

/// Begins the first two products. The first result is stored; the second product is under way.
#[inline(always)]
fn begin<Q: Bytes, const K: usize>(
    tiles: &ByteTiles<K>,
    [even, _]: &mut [IntSums; 2],
    operands: Operands<'_>,
) {
    span::<Q, K, 0>(tiles, operands, 0);
    tiles.store::<0>(even);
    span::<Q, K, 1>(tiles, operands, 1);
}

/// Some groups of a strip and of sixteen rows. Their first two products have begun already.
struct Square<'a> {
    codes: &'a [u16],
    scales: &'a [[f32; LANES]],
    minima: &'a [[f32; LANES]],
    x: Panel<'a, SIDE, BYTE_WORDS>,
    /// The next operands. Their first two products begin while these are finished.
    then: Option<Operands<'a>>,
}

impl Square<'_> {
    /// Adds the products of the first ROWS rows to `sums`.
    #[inline(always)]
    fn multiply<Q: Bytes, S: Simd, const K: usize, const ROWS: usize>(
        self,
        s: S,
        tiles: &ByteTiles<K>,
        [even, odd]: &mut [IntSums; 2],
        sums: &mut [[f32; LANES]; SIDE],
        coming: &mut Coming<'_, u16, TASK_STRIPS>,
    ) {
        let Self { x, then, .. } = self;
        let now = (self.codes, x.words);
        let mut acc = [s.splat(0.0); ROWS];
        macro_rules! of_rows {
            ($r:ident => $body:block) => {
                unrolled!(ROWS, $r => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
            };
        }
        macro_rules! add {
            ($whole:expr, $i:expr) => {
                let (i, group) = ($i, $i / Q::SPANS);
                let (units, offsets) = (&x.scales[group], &x.offsets[group]);
                let (scale, minimum) = (s.load(&self.scales[i]), s.load(&self.minima[group]));
                of_rows!(r => {
                    let whole = s.to_f32(s.load_i16(&$whole.0[r]));
                    acc[r] = s.fma(whole, s.mul(scale, s.splat(units[r])), acc[r]);
                    if Q::MINIMA {
                        let offset = s.splat(f32::from_bits(offsets[r][0] as u32));
                        acc[r] = s.fma(minimum, offset, acc[r]);
                    }
                    // Without the fence, the compiler loads the numbers of all rows first, and runs
                    // out of registers.
                    if r % 4 == 3 {
                        compiler_fence(Ordering::SeqCst);
                    }
                });
            };
        }
        of_rows!(r => { acc[r] = s.load(&sums[r]); });
        // Blocks of all formats have an even number of groups.
        let spans = x.words.len() * Q::SPANS;
        for i in (0..spans).step_by(2) {
            let next = match i + 2 < spans {
                true => Some((now, i + 2)),
                false => then.map(|then| (then, 0)),
            };
            tiles.store::<1>(odd);
            if let Some((operands, i)) = next {
                span::<Q, K, 0>(tiles, operands, i);
            }
            coming.prefetch(s);
            add!(even, i);
            if let Some((operands, i)) = next {
                tiles.store::<0>(even);
                span::<Q, K, 1>(tiles, operands, i + 1);
            }
            coming.prefetch(s);
            add!(odd, i + 1);
        }
        of_rows!(r => { s.store(acc[r], &mut sums[r]); });
    }
}
