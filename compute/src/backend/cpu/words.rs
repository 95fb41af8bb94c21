//! Activations as words of 32 bits that hold two or four numbers each, which one instruction
//! multiplies and adds: what products of integers and of pairs of bfloat16 take.

use super::blocks::{
    BYTE_WORDS, Blocks, Bytes, GROUP_K, MAX_SPANS, Offsets, PADDED_K, WORDS, pair_words,
    with_blocks, with_bytes,
};
use super::buf::Mem;
use super::detect::Tier;
use super::element::Weights;
use super::pool::{Grid, Pool, Rect};
use super::results::WriteOut;
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use super::strips::Strips;
use crate::Result;
use crate::quant::Quant;

/// Most rows side by side, without tiles.
pub(super) const MAX_SIDE: usize = 8;
/// Rows side by side for tiles.
pub(super) const TILE_SIDE: usize = 16;
/// Groups of k that a task packs.
const FILL_GROUPS: usize = 32;

/// What the words of a group of activations hold, and for which weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// int16, as the format's kernel for few rows takes them: [`Blocks::words`].
    Own(Quant),
    /// Pairs of int16: [`pair_words`].
    Pairs(Quant),
    /// Four int8, for many rows or for few.
    Bytes(Quant, bool),
    /// Pairs of bfloat16, without scales.
    Bf16,
}

impl Form {
    /// The format of the weights, if they are quantised.
    pub fn quant(self) -> Option<Quant> {
        match self {
            Form::Own(quant) | Form::Pairs(quant) | Form::Bytes(quant, _) => Some(quant),
            Form::Bf16 => None,
        }
    }

    /// Words of a group.
    fn words(self) -> usize {
        match self {
            Form::Bytes(..) => BYTE_WORDS,
            _ => WORDS,
        }
    }
}

/// Groups of k, including padding.
fn groups(cols: usize) -> usize {
    cols.div_ceil(PADDED_K).saturating_mul(PADDED_K / GROUP_K)
}

/// Groups of [`Words`] of `rows` rows.
fn groups_of_rows(rows: usize, cols: usize) -> usize {
    // Up to `TILE_SIDE - 1` rows more, which fill the last panel.
    groups(cols).saturating_mul(rows.saturating_add(TILE_SIDE))
}

/// 32-bit numbers in [`Words`] of `rows` rows.
pub(super) fn rows_len(rows: usize, cols: usize) -> usize {
    groups_of_rows(rows, cols).saturating_mul(WORDS + MAX_SPANS + 1)
}

/// Rows of activations: `[row / side][k / 32][side]` of a group's words, and in the same order the
/// groups' scales and the formats' offsets, one for each span. k is padded to whole blocks with
/// zeros. The last rows are padded to `side` with whatever lies there.
#[derive(Debug)]
pub(super) struct Words {
    words: Mem<i32>,
    offsets: Mem<i32>,
    scales: Mem<f32>,
    form: Form,
    side: usize,
    rows: usize,
    /// Groups of k.
    groups: usize,
}

/// Some groups of one panel: words, scales and offsets of SIDE rows.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a, const SIDE: usize, const N: usize> {
    pub words: &'a [[[i32; N]; SIDE]],
    pub scales: &'a [[f32; SIDE]],
    pub offsets: &'a [[Offsets; SIDE]],
}

/// Some strips times all rows.
pub(super) struct Task<'a, W: Weights> {
    pub weights: Strips<'a, W>,
    pub x: &'a Words,
    pub scratch: &'a mut [f32],
    pub write: WriteOut<'a>,
}

impl Words {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let groups = groups_of_rows(rows, cols);
        let what = "packed activations";
        Ok(Self {
            words: Mem::zeroed(what, groups.saturating_mul(WORDS))?,
            offsets: Mem::zeroed(what, groups.saturating_mul(MAX_SPANS))?,
            scales: Mem::zeroed(what, groups)?,
            form: Form::Bf16,
            side: 1,
            rows: 0,
            groups: 0,
        })
    }

    /// Fills it with the rows `row(0) .. row(rows - 1)` (all equally long), normalised if `norm` is
    /// given, `side` of them side by side.
    pub fn fill<'r>(
        &mut self,
        pool: &Pool,
        tier: Tier,
        (form, side): (Form, usize),
        rows: usize,
        row: impl Fn(usize) -> &'r [f32] + Sync,
        norm: Option<Norm<'_>>,
    ) {
        let groups = groups(row(0).len());
        (self.form, self.side, self.rows, self.groups) = (form, side, rows, groups);
        let panels = rows.div_ceil(side);
        let len = groups * side;
        let each = FILL_GROUPS * side;
        let n = form.words();
        let words = &mut self.words[..panels * len * n];
        let offsets = &mut self.offsets[..panels * len * MAX_SPANS];
        let parts = (
            Grid::columns(words, len * n, each * n),
            (
                Grid::columns(offsets, len * MAX_SPANS, each * MAX_SPANS),
                Grid::columns(&mut self.scales[..panels * len], len, each),
            ),
        );
        type Parts<'a> = (Rect<'a, i32>, (Rect<'a, i32>, Rect<'a, f32>));
        let work = |task: usize, _: usize, parts: Parts<'_>| {
            let (mut words, (mut offsets, mut scales)) = parts;
            for i in 0..rows {
                tier.run(Fill {
                    from: row(i),
                    first: task * FILL_GROUPS,
                    norm,
                    form,
                    side,
                    at: i % side,
                    words: words.row(i / side),
                    offsets: offsets.row(i / side),
                    scales: scales.row(i / side),
                });
            }
        };
        if groups * rows < 4 * FILL_GROUPS {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }

    /// What its words hold.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of a panel.
    pub fn side(&self) -> usize {
        self.side
    }

    /// `count` groups of a panel from `first` on; `N` words each.
    #[inline(always)]
    pub fn panel<const SIDE: usize, const N: usize>(
        &self,
        panel: usize,
        first: usize,
        count: usize,
    ) -> Panel<'_, SIDE, N> {
        let (at, len) = ((panel * self.groups + first) * SIDE, count * SIDE);
        let words = self.words[at * N..][..len * N].as_chunks().0;
        let offsets = &self.offsets[at * MAX_SPANS..][..len * MAX_SPANS];
        Panel {
            words: words.as_chunks().0,
            scales: self.scales[at..][..len].as_chunks().0,
            offsets: offsets.as_chunks().0.as_chunks().0,
        }
    }
}

/// Puts some groups of one row into its lane of a panel.
struct Fill<'a> {
    from: &'a [f32],
    /// The first group.
    first: usize,
    norm: Option<Norm<'a>>,
    form: Form,
    side: usize,
    at: usize,
    words: &'a mut [i32],
    offsets: &'a mut [i32],
    scales: &'a mut [f32],
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.form {
            // The format is asked for in every group: a loop for each was 3 % of the crate's
            // machine code.
            Form::Own(quant) | Form::Pairs(quant) => {
                let own = self.form == Form::Own(quant);
                let (top, of_codes) = with_blocks!(quant, Q => (Q::TOP, Q::UNIT));
                self.each(s, |x, to: &mut [i32; WORDS]| {
                    let (whole, unit) = quantise(s, x, top);
                    let offsets = with_blocks!(quant, Q => {
                        *to = if own { Q::words(&whole) } else { pair_words(&whole) };
                        Q::offsets(&whole, unit)
                    });
                    (offsets, unit * of_codes)
                })
            }
            Form::Bytes(quant, _) => self.each(s, |x, to: &mut [i32; BYTE_WORDS]| {
                let (sums, unit) = bytes(s, x, to);
                (with_bytes!(quant, Q => Q::bytes_offsets(sums, unit)), unit)
            }),
            Form::Bf16 => self.each(s, |x, to: &mut [i32; WORDS]| {
                let mut bits = [0; 2 * LANES];
                for (x, to) in x.as_chunks().0.iter().zip(bits.as_chunks_mut().0) {
                    s.narrow_bf16(s.load(x), to);
                }
                for (pair, to) in bits.as_chunks().0.iter().zip(to) {
                    let [a, b]: [u16; 2] = *pair;
                    *to = (u32::from(a) | u32::from(b) << 16) as i32;
                }
                ([0; MAX_SPANS], 0.0)
            }),
        }
    }
}

impl Fill<'_> {
    /// Packs every group with `pack`, which returns the group's offsets and scale.
    #[inline(always)]
    fn each<S: Simd, const N: usize>(
        self,
        s: S,
        pack: impl Fn(&[f32; GROUP_K], &mut [i32; N]) -> (Offsets, f32),
    ) {
        let scale = self
            .norm
            .map_or(1.0, |norm| inverse_rms(s, self.from, norm.eps));
        let (side, at) = (self.side, self.at);
        let words = self.words.as_chunks_mut().0.chunks_exact_mut(side);
        let offsets = self.offsets.as_chunks_mut().0.chunks_exact_mut(side);
        let groups = words.zip(offsets).zip(self.scales.chunks_exact_mut(side));
        for (g, ((words, offsets), scales)) in (self.first..).zip(groups) {
            let mut x = group(self.from, g);
            if let Some(norm) = self.norm {
                let w = group(norm.weight, g);
                for i in 0..GROUP_K {
                    x[i] = x[i] * scale * w[i];
                }
            }
            (offsets[at], scales[at]) = pack(&x, &mut words[at]);
        }
    }
}

/// Group `g` of a row, filled up with zeros.
#[inline(always)]
fn group(row: &[f32], g: usize) -> [f32; GROUP_K] {
    let row = row.get(g * GROUP_K..).unwrap_or(&[]);
    match row.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut x = [0.0; GROUP_K];
            x[..row.len()].copy_from_slice(row);
            x
        }
    }
}

/// Both halves of a group, the factor that makes integers up to `top` of them, and the scale of
/// these integers, if all numbers are finite.
#[inline(always)]
fn scale<S: Simd>(s: S, x: &[f32; GROUP_K], top: f32) -> ([S::F; 2], f32, f32) {
    let mut halves = [s.splat(0.0); 2];
    for (half, x) in halves.iter_mut().zip(x.as_chunks::<LANES>().0) {
        *half = s.load(x);
    }
    let zero = s.splat(0.0);
    let [a, b] = halves;
    let magnitude = [s.max(a, s.sub(zero, a)), s.max(b, s.sub(zero, b))];
    let max = s.greatest(s.max(magnitude[0], magnitude[1]));
    // Groups with smaller numbers count as zero, because the reciprocal would overflow.
    let (inverse, unit) = match max > 1e-30 {
        true => (top / max, max / top),
        false => (0.0, 0.0),
    };
    (halves, inverse, unit)
}

/// A group of activations as integers up to `top` in magnitude, and their scale, which is NaN if a
/// number is not finite.
#[inline(always)]
fn quantise<S: Simd>(s: S, x: &[f32; GROUP_K], top: f32) -> ([i32; GROUP_K], f32) {
    let (halves, inverse, unit) = scale(s, x, top);
    let mut whole = [0; GROUP_K];
    // Adding 1.5 * 2^23 leaves no fraction, and the integer in the low bits.
    let magic = s.splat(12_582_912.0);
    for (v, to) in halves.into_iter().zip(whole.as_chunks_mut::<LANES>().0) {
        let mut bits = [0.0f32; LANES];
        s.store(s.add(s.mul(v, s.splat(inverse)), magic), &mut bits);
        for (x, to) in bits.iter().zip(to) {
            *to = x.to_bits().wrapping_sub(0x4b40_0000) as i32;
        }
    }
    let zero = s.splat(0.0);
    let odd = s.sum(s.fma(halves[0], zero, s.mul(halves[1], zero)));
    (whole, unit + odd)
}

/// A group of activations as bytes from -127 to 127; the sums of both halves, and their scale,
/// which is NaN if a number is not finite.
#[inline(always)]
fn bytes<S: Simd>(s: S, x: &[f32; GROUP_K], to: &mut [i32; BYTE_WORDS]) -> ([i32; 2], f32) {
    let (mut halves, inverse, unit) = scale(s, x, 127.0);
    for (whole, to) in halves.iter_mut().zip(to.as_chunks_mut::<{ LANES / 4 }>().0) {
        *whole = s.round(s.mul(*whole, s.splat(inverse)));
        let mut bytes = [0i8; LANES];
        s.narrow_i8(*whole, &mut bytes);
        for (b, to) in bytes.as_chunks::<4>().0.iter().zip(to) {
            *to = i32::from_le_bytes(b.map(|b| b as u8));
        }
    }
    // Both sums in one, of which the second counts 4096 times: each is at most 16 * 127 in
    // magnitude, so that nothing is rounded and both can be told apart. It is NaN if a number is
    // not finite. (A sum for each half, and one for what is not finite, took an eighth longer.)
    let sum = s.sum(s.fma(halves[1], s.splat(4096.0), halves[0]));
    let both = sum as i32;
    let second = (both + 2048) >> 12;
    ([both - (second << 12), second], unit + sum * 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::detect::TIERS;
    use super::*;

    struct Bytes<'a>(&'a [f32; GROUP_K]);

    impl Kernel for Bytes<'_> {
        type Output = ([i32; BYTE_WORDS], [i32; 2], f32);

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let mut words = [0; BYTE_WORDS];
            let (sums, unit) = bytes(s, self.0, &mut words);
            (words, sums, unit)
        }
    }

    /// Sums as large as they get, of either sign, and what is not finite in either half.
    #[test]
    fn sums_of_bytes_are_those_of_the_halves() {
        for tier in TIERS.iter().filter_map(|name| Tier::named(name).ok()) {
            for [a, b] in [
                [1.0, 1.0],
                [1.0, -1.0],
                [-1.0, 1.0],
                [-1.0, -1.0],
                [0.3, -1.0],
            ] {
                let x = std::array::from_fn(|i| if i < LANES { a } else { b });
                let (words, sums, unit) = tier.run(Bytes(&x));
                let bytes = words.map(|word| word.to_le_bytes().map(|b| i32::from(b as i8)));
                let (first, second) = bytes.as_flattened().split_at(LANES);
                assert_eq!(sums, [first, second].map(|half| half.iter().sum::<i32>()));
                assert_eq!(sums, [a, b].map(|x: f32| 16 * (127.0 * x).round() as i32));
                assert_eq!(unit, 1.0 / 127.0);
            }
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in 0..GROUP_K {
                    let mut x = [1.0; GROUP_K];
                    x[at] = odd;
                    let (_, _, unit) = tier.run(Bytes(&x));
                    assert!(unit.is_nan(), "{}: {odd} at {at}: {unit}", tier.name());
                }
            }
        }
    }
}
