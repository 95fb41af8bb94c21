//! What a task of a product on tiles does: one block of k after another, pairs of strips by groups
//! of rows.

use super::super::amx::{Amx, Beside, Half, MAX_ROW, Prefetch, SIDE, Sums, TILE, TILE_K, Tiles};
use super::super::buf::as_u16;
use super::super::panels_amx::{BLOCK, BLOCK_K, GROUP, TilePanels};
use super::super::results_amx::Write;
use super::super::rows::K_BLOCK;
use super::super::simd::{Kernel, Simd};
use super::super::strips::Strips;
use super::super::weights_amx::{AsTiles, unpack};
use std::ops::Range;

/// Groups that pass over a block of k before the next block.
const BAND: usize = 16;
/// Most strips that a task computes, including the strips of SwiGLU's second part.
pub(super) const TASK_STRIPS: usize = 16;
/// Most groups with which a product waits for weights rather than for the tile unit.
pub(super) const FEW_GROUPS: usize = 4;
/// How many tiles ahead to prefetch when there are at most sixteen rows.
const AHEAD: usize = 2;

/// Float32 numbers that take as much memory as a block of k of two strips of bfloat16.
const UNPACKED: usize = BLOCK * TILE;

/// Numbers of scratch that a thread needs for steps of up to `max_rows` rows.
pub(in super::super) fn scratch_len(max_rows: usize) -> usize {
    let groups = max_rows.div_ceil(GROUP).clamp(1, BAND);
    UNPACKED + TASK_STRIPS / 2 * groups * 4 * SIDE * SIDE
}

/// Some strips, multiplied by all rows.
pub(super) struct Task<'a, E: AsTiles> {
    pub amx: Amx,
    pub weights: Strips<'a, E>,
    /// The strips of the task after this one.
    pub next: Option<Strips<'a, E>>,
    pub panels: &'a TilePanels,
    pub scratch: &'a mut [f32],
    pub write: Write<'a>,
}

impl<E: AsTiles> Kernel for Task<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if E::TILES && self.panels.rows <= SIDE {
            self.few(s);
        } else {
            self.many(s);
        }
    }
}

/// One of the two strips of a pair. The two strips are neighbours, or one of each part. Beyond the
/// end it is the last strip again.
#[inline(always)]
fn strip<'a, E: AsTiles>(weights: &Strips<'a, E>, pair: usize, half: usize) -> &'a [E::Bits] {
    match weights.second {
        Some(_) => weights.get(pair.min(weights.count - 1) + half * weights.count),
        None => weights.get(2 * pair + half),
    }
}

/// A block of k of both strips of a pair. It is shorter at the end of the strips, and empty beyond
/// the end.
#[inline(always)]
fn block<'a, E: AsTiles>(weights: &Strips<'a, E>, pair: usize, block: usize) -> [&'a [E::Bits]; 2] {
    let len = E::BLOCK * (BLOCK_K / K_BLOCK);
    [0, 1].map(|half| {
        let strip = strip(weights, pair, half);
        &strip[strip.len().min(block * len)..strip.len().min((block + 1) * len)]
    })
}

impl<E: AsTiles> Task<'_, E> {
    fn pairs(&self) -> usize {
        self.weights.total().div_ceil(2)
    }

    /// At most sixteen rows: all of k at once, with weights straight from memory.
    #[inline(always)]
    fn few<S: Simd>(mut self, s: S) {
        let pairs = self.pairs();
        let count = (2 * pairs).div_ceil(MAX_ROW);
        let tiles = self.amx.tiles();
        for i in 0..count {
            let mut strips: [&[Half]; MAX_ROW] = [&[]; MAX_ROW];
            for (j, to) in strips.iter_mut().enumerate() {
                let j = i * MAX_ROW + j;
                *to = E::tiles(strip(&self.weights, j / 2, j % 2));
            }
            let sums = self.scratch[UNPACKED..]
                .as_chunks_mut::<{ SIDE * SIDE }>()
                .0;
            let sums = &mut sums.as_chunks_mut::<MAX_ROW>().0[i];
            for block in 0..self.panels.blocks() {
                let a = self.panels.block(0..1, block);
                let b = strips.map(|strip| &strip[block * BLOCK..]);
                tiles.row::<AHEAD>(a, b, sums, block == 0);
            }
        }
        let sums = self.scratch[UNPACKED..].as_chunks().0;
        for (pair, sums) in sums.as_chunks::<2>().0[..pairs].iter().enumerate() {
            let mut write = self.write.pair(s, pair, 0);
            write.write(0, std::slice::from_ref(sums), 0..self.panels.rows);
        }
    }

    /// Many rows, one block of k after another.
    #[inline(always)]
    fn many<S: Simd>(mut self, s: S) {
        let groups = self.panels.groups();
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        // Pairs that are prefetched together.
        let wide = match groups <= FEW_GROUPS {
            true => Prefetch::PAIRS,
            false => 1,
        };
        let tiles = self.amx.tiles();
        for first in (0..groups).step_by(BAND) {
            let band = first..groups.min(first + BAND);
            for block in 0..blocks {
                for at in (0..pairs).step_by(wide) {
                    let mut ahead = self.ahead(band.clone(), block, at, wide);
                    for pair in at..pairs.min(at + wide) {
                        self.pair(s, &tiles, band.clone(), block, pair, &mut ahead);
                    }
                }
            }
        }
    }

    /// What follows after `wide` pairs from pair `at` on.
    #[inline(always)]
    fn ahead(&self, groups: Range<usize>, now: usize, at: usize, wide: usize) -> Prefetch {
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        let last_band = groups.end == self.panels.groups();
        let (weights, at, then) = match (at + wide < pairs, now + 1 < blocks, &self.next) {
            (true, _, _) => (&self.weights, at + wide, now),
            (_, true, _) => (&self.weights, 0, now + 1),
            (_, _, Some(next)) if last_band => (next, 0, 0),
            _ if last_band => return Prefetch::none(),
            _ => (&self.weights, 0, 0),
        };
        let steps = wide.min(pairs) * groups.len() * self.panels.tiles(now);
        let strips = block(weights, at, then);
        if wide > 1 {
            let pair = weights.len() * if weights.second.is_some() { 1 } else { 2 };
            let left = weights.total().div_ceil(2) - at;
            let together = wide.min(left.next_power_of_two());
            return Prefetch::new(strips, pair * size_of::<E::Bits>(), together, steps);
        }
        // With fewer steps, each has to fetch more. So both strips are cut into pieces, and a step
        // fetches lines of all pieces.
        let pieces = BAND.div_ceil(groups.len()).next_power_of_two();
        let pieces = pieces.min(Prefetch::PAIRS);
        let len = strips[0].len().div_ceil(pieces);
        let first = strips.map(|strip| &strip[..len.min(strip.len())]);
        Prefetch::new(first, len * size_of::<E::Bits>(), pieces, steps)
    }

    /// Multiplies a block of k of a pair of strips by `groups` of rows.
    #[inline(always)]
    fn pair<S: Simd>(
        &mut self,
        s: S,
        tiles: &Tiles,
        groups: Range<usize>,
        now: usize,
        pair: usize,
        ahead: &mut Prefetch,
    ) {
        let (pairs, blocks) = (self.pairs(), self.panels.blocks());
        let stored = block(&self.weights, pair, now);
        let (unpacked, sums) = self.scratch.split_at_mut(UNPACKED);
        let unpacked = as_u16(unpacked).as_chunks_mut::<TILE>().0;
        let [b0, b1] = unpacked.as_chunks_mut::<BLOCK>().0 else {
            unreachable!("two strips")
        };
        let sums = sums.as_chunks_mut::<{ SIDE * SIDE }>().0;
        let sums = &mut sums.as_chunks_mut::<4>().0[pair * groups.len()..][..groups.len()];
        let a = self.panels.block(groups.clone(), now);
        let steps = self.panels.tiles(now);
        if groups.len() > FEW_GROUPS && now + 1 < blocks {
            let next = self.panels.block(groups.clone(), now + 1);
            ahead.activations(next, BLOCK, [pair, pairs], steps);
        }
        let rows = self.panels.rows.min(groups.end * GROUP) - groups.start * GROUP;
        // The last group may have no second half.
        let whole = (rows + SIDE - 1) / GROUP;
        let (first, last) = (now == 0, now + 1 == blocks);
        let mut from = 0;
        if !E::TILES {
            let (a, sums) = (&a[..steps], &mut sums[0]);
            let unpacked = [&mut *b0, &mut *b1];
            ahead.begin(0);
            match whole > 0 {
                true => {
                    first_square::<E, S, true>(s, tiles, a, stored, unpacked, sums, first, ahead)
                }
                false => {
                    first_square::<E, S, false>(s, tiles, a, stored, unpacked, sums, first, ahead)
                }
            }
            from = 1;
        }
        let b = match E::TILES {
            true => stored.map(|strip| &E::tiles(strip)[..steps]),
            false => [&b0[..steps], &b1[..steps]],
        };
        let mut beside = self.write.pair(s, pair, groups.start * GROUP);
        let squares = &mut sums[..whole];
        macro_rules! squares {
            ($beside:expr) => {
                s.vectorize(Squares {
                    tiles,
                    a,
                    b,
                    sums: squares,
                    from,
                    first,
                    ahead,
                    beside: $beside,
                })
            };
        }
        match last {
            true => squares!(&mut beside),
            false => squares!(&mut ()),
        }
        if whole < groups.len() && from <= whole {
            let sums = &mut sums[whole];
            ahead.begin(whole);
            tiles.begin_square::<false>(sums, first);
            tiles.square_steps::<false>(&a[whole * BLOCK..][..steps], b, ahead);
            tiles.end_square::<false>(sums);
        }
        if last {
            // What was not written beside squares.
            for (group, sums) in sums.iter_mut().enumerate().skip(whole.saturating_sub(1)) {
                beside.rows(group, sums, 0..GROUP.min(rows - group * GROUP));
            }
        }
    }
}

/// [`Tiles::squares`], not compiled again for each format of weights.
struct Squares<'s, B> {
    tiles: &'s Tiles,
    a: &'s [[Half; 2]],
    b: [&'s [Half]; 2],
    sums: &'s mut [[Sums; 4]],
    from: usize,
    first: bool,
    ahead: &'s mut Prefetch,
    beside: &'s mut B,
}

impl<B: Beside> Kernel for Squares<'_, B> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self {
            tiles,
            a,
            b,
            sums,
            from,
            first,
            ahead,
            beside,
        } = self;
        let all = from..sums.len();
        match ahead.pairs() {
            1 => tiles.squares::<1, B>(a, BLOCK, b, sums, all, first, ahead, beside),
            2 => tiles.squares::<2, B>(a, BLOCK, b, sums, all, first, ahead, beside),
            _ => tiles
                .squares::<{ Prefetch::PAIRS }, B>(a, BLOCK, b, sums, all, first, ahead, beside),
        }
    }
}

/// Unpacks a block of k of both strips of a pair while they are multiplied by the first group: the
/// tiles of a unit are multiplied after the next unit has been unpacked. Where all were unpacked
/// first, nothing overlapped, and 16 rows of int8 took 1.4 times as long (Emerald Rapids, in L2).
/// Units of eight tiles, which the K types need, gain less than units of two.
#[allow(clippy::too_many_arguments)] // one caller has them all
#[inline(always)]
fn first_square<E: AsTiles, S: Simd, const WHOLE: bool>(
    s: S,
    tiles: &Tiles,
    a: &[[Half; 2]],
    stored: [&[E::Bits]; 2],
    [b0, b1]: [&mut [Half; BLOCK]; 2],
    sums: &mut [Sums; 4],
    first: bool,
    ahead: &mut Prefetch,
) {
    const { assert!(BLOCK.is_multiple_of(E::UNIT_TILES), "units of a block") };
    tiles.begin_square::<WHOLE>(sums, first);
    let len = E::BLOCK * E::UNIT_TILES / (K_BLOCK / TILE_K);
    let units = a.len().div_ceil(E::UNIT_TILES);
    for unit in 0..=units {
        let at = unit * E::UNIT_TILES;
        if unit < units {
            let from = unit * len..(unit + 1) * len;
            let of = |strip: &[E::Bits]| from.start.min(strip.len())..from.end.min(strip.len());
            unpack::<E, S>(
                s,
                &stored[0][of(stored[0])],
                &mut b0[at..at + E::UNIT_TILES],
            );
            unpack::<E, S>(
                s,
                &stored[1][of(stored[1])],
                &mut b1[at..at + E::UNIT_TILES],
            );
        }
        if unit > 0 {
            let of_last = at - E::UNIT_TILES..at.min(a.len());
            let b = [&b0[of_last.clone()], &b1[of_last.clone()]];
            tiles.square_steps::<WHOLE>(&a[of_last], b, ahead);
        }
    }
    tiles.end_square::<WHOLE>(sums);
}
