//! Attention of a group of 32 prompt queries over one chunk of keys, in bfloat16: scores, weights,
//! and weighted sums of V.
//!
//! 1. K is multiplied by Q, 32 keys at a time. While the products of the next 32 keys are computed,
//!    the previous scores become weights; scores of keys that a query may not see are masked first.
//! 2. Weights are relative to a number that is known beforehand, unless the chunk's largest score
//!    is an unusual one ([`super::weights`]). If it is unusual, K is multiplied again to find the
//!    largest scores, and once more for the weights. The next group then begins with finding the
//!    largest scores.
//! 3. V is multiplied by the weights, and the sums are merged with those of the previous chunks.
//!
//! Reason: a product of tiles leaves one of the two vector ports free, and scores are still in L1
//! when they are used. In a separate C program, a group took 5,200 cycles like this (256 keys of a
//! head of 64; the products alone take 2,048). It took 7,800 cycles with the scores of a whole
//! chunk in memory, where the maxima were found beside the products and the weights afterwards.
//! Other orders were slower there: 64 queries that share the cache lines of K and V, and 128 keys
//! at a time (benches/record/2026-12-01-weights-beside-products.txt).

use super::CHUNK;
use super::weights::{self, OredBits, Weights};
use crate::backend::cpu::amx::{Beside, Half, Prefetch, SIDE, Sums, TILE_K, Tiles};
use crate::backend::cpu::exp::exp;
use crate::backend::cpu::simd::{Kernel, LANES, Simd};
use std::ops::Range;

/// Queries whose scores are computed together: two halves, each with one query per lane.
pub(super) const GROUP: usize = 2 * LANES;
/// Tiles of 32 keys in a chunk.
pub(super) const KEY_TILES: usize = CHUNK / TILE_K;
/// Number of square buffers: one is filled while the other is consumed. With a buffer for every
/// square, scores would leave L1 before they are used.
pub(super) const PLACES: usize = 2;
/// Rows whose sums stay in registers when vectors multiply. Each row has two vectors of columns.
const SUMS: usize = 8;

/// One number for each of sixteen queries.
pub(super) type Lanes = [f32; LANES];
/// Sixteen columns of two numbers each.
pub(super) type Row = [u16; 2 * LANES];
/// 32 rows by a group: `[half of the rows][half of the group][row]`. In scores, the rows are keys,
/// and the even keys come before the odd keys. In sums of V, the rows are columns of V.
pub(super) type Square = [Sums; 4];

/// Which keys of a chunk the queries of a group see.
pub(super) struct Seen {
    /// For each half of the group: the first visible key, and one past the last. Equal values mean
    /// that no key is visible.
    pub from: [Lanes; 2],
    pub to: [Lanes; 2],
    /// The tiles of 32 keys that are fully visible to every query that sees any key of the chunk.
    pub whole: Range<usize>,
}

impl Seen {
    /// Sets the scores of keys that a query may not see to minus infinity, whatever these scores
    /// are. It does so for the given pairs (an even and an odd key) of this square.
    #[inline(always)]
    fn hide<S: Simd>(&self, s: S, square: usize, scores: &mut Square, pairs: Range<usize>) {
        if self.whole.contains(&square) {
            return;
        }
        let hidden = s.splat(f32::NEG_INFINITY);
        for (part, scores) in scores.iter_mut().enumerate() {
            let (odd, half) = (part / 2, part % 2);
            let (from, to) = (s.load(&self.from[half]), s.load(&self.to[half]));
            let scores = &mut scores.as_chunks_mut().0[pairs.clone()];
            for (pair, scores) in pairs.clone().zip(scores) {
                let key = s.splat((square * TILE_K + 2 * pair + odd) as f32);
                let x = s.select_lt(key, to, s.load(scores), hidden);
                s.store(s.select_lt(key, from, hidden, x), scores);
            }
        }
    }

    /// Whether `x` is more than `least` for every query of the group that sees any key.
    #[inline(always)]
    fn all_above<S: Simd>(&self, s: S, least: f32, x: [S::F; 2]) -> bool {
        let (yes, no) = (s.splat(0.0), s.splat(1.0));
        let mut all = yes;
        for (half, x) in x.into_iter().enumerate() {
            let (from, to) = (s.load(&self.from[half]), s.load(&self.to[half]));
            // NaN compares false, so it is not above anything.
            let is = s.select_lt(s.splat(least), x, yes, no);
            all = s.max(s.select_lt(from, to, is, yes), all);
        }
        s.greatest(all) == 0.0
    }
}

/// One group and one chunk. This is not compiled again for each format of the cache.
pub(super) struct Group<'a> {
    /// AMX tiles; `None`: vector instructions multiply.
    pub amx: &'a Option<Tiles>,
    pub seen: &'a Seen,
    /// The number of tiles of 32 keys of which any query sees a key.
    pub n: usize,
    /// `[half of the group][head_dim / 32]` tiles.
    pub q: [&'a [Half]; 2],
    /// `[key / 32][head_dim / 32][even keys, odd keys]` tiles.
    pub k: &'a [[Half; 2]],
    /// `[head_dim / 32][key / 32][half of the columns]` tiles.
    pub v: &'a [[Half; 2]],
    /// Buffer for weights: `[half of the group][key / 32]` tiles.
    pub weights: &'a mut [Half],
    /// Buffers for [`PLACES`] squares.
    pub sums: &'a mut [Square],
    /// Results of the previous chunks: weighted sums of V, `[head_dim / 32]`; and for each half of
    /// the group, the scores that have the weight 1, and the sums of weights.
    pub acc: &'a mut [Square],
    pub max: &'a mut [Lanes],
    pub sum: &'a mut [Lanes],
    /// Whether the previous group's largest scores were usual. If so, this group is assumed to be
    /// usual too.
    pub are_usual: &'a mut bool,
}

impl Kernel for Group<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            amx,
            seen,
            n,
            q,
            k,
            v,
            weights,
            sums,
            acc,
            max,
            sum,
            are_usual,
        } = self;
        let deep = acc.len();
        macro_rules! scores {
            ($beside:expr) => {{
                let mut beside = $beside;
                multiply(s, amx, k, deep, q, sums, n, &mut beside);
                beside.rows(n - 1, &mut sums[(n - 1) % PLACES], 0..GROUP);
                beside
            }};
        }
        let mut room = [[s.splat(0.0); SIDE]; 2];
        let mut of = [Weights::usual(s); 2];
        let mut sum_of;
        let mut find_largest = !*are_usual;
        loop {
            let mut usualness = [s.splat(0.0); 2];
            if find_largest {
                let maxima = scores!(Maxima::new(s, seen));
                of = [
                    Weights::for_largest(s, maxima.of(0)),
                    Weights::for_largest(s, maxima.of(1)),
                ];
                usualness = [of[0].usualness(s), of[1].usualness(s)];
            }
            let soften = scores!(Soften::new(s, seen, of, weights, &mut room));
            sum_of = [soften.sum(0), soften.sum(1)];
            *are_usual = seen.all_above(s, weights::NOT_USUAL, usualness)
                && seen.all_above(s, weights::ENOUGH, sum_of);
            if find_largest || *are_usual {
                break;
            }
            find_largest = true;
        }
        let b = [0, KEY_TILES].map(|first| &weights[first..][..n]);
        // The chunk is merged while the next products are computed.
        let new = [(of[0].one(s), sum_of[0]), (of[1].one(s), sum_of[1])];
        let mut merge = Merge::new(s, seen, new, acc, max, sum);
        multiply(s, amx, v, KEY_TILES, b, sums, deep, &mut merge);
        merge.rows(deep - 1, &mut sums[(deep - 1) % PLACES], 0..GROUP);
    }
}

/// `c = a b` for `n` squares that share `b`. Square `i` is stored in place `i % PLACES`. `a` has
/// `stride` pairs of tiles for each square; only as many of them are used as `b` has. `beside` gets
/// all squares except the last one.
#[allow(clippy::too_many_arguments)] // as `Tiles::squares`
#[inline(always)]
fn multiply<S: Simd, B: Beside>(
    s: S,
    amx: &Option<Tiles>,
    a: &[[Half; 2]],
    stride: usize,
    b: [&[Half]; 2],
    c: &mut [Square],
    n: usize,
    beside: &mut B,
) {
    if let Some(amx) = amx {
        return amx.squares::<1, B>(a, stride, b, c, 0..n, true, &mut Prefetch::none(), beside);
    }
    for (i, a) in a.chunks(stride).take(n).enumerate() {
        let c = &mut c[i % PLACES];
        for (side, c) in c.as_chunks_mut().0.iter_mut().enumerate() {
            for first in (0..SIDE).step_by(SUMS) {
                dot(s, &a[..b[0].len()], side, first, b, c);
            }
        }
        if i + 1 < n {
            beside.rows(i, c, 0..GROUP);
        }
    }
}

/// Computes [`SUMS`] rows of a square, from row `first` on.
#[inline(always)]
fn dot<S: Simd>(
    s: S,
    a: &[[Half; 2]],
    side: usize,
    first: usize,
    b: [&[Half]; 2],
    c: &mut [Sums; 2],
) {
    let (b0, b1) = (&b[0][..a.len()], &b[1][..a.len()]);
    let mut sums = [[s.splat(0.0); 2]; SUMS];
    for (i, a) in a.iter().enumerate() {
        let rows: &[[u16; TILE_K]; SUMS] =
            a[side].as_chunks().0[first..][..SUMS].try_into().unwrap();
        let columns = [&b0[i], &b1[i]].map(|b| b.as_chunks::<{ 2 * LANES }>().0);
        for k in 0..SIDE {
            let columns = [s.load_i16(&columns[0][k]), s.load_i16(&columns[1][k])];
            for (row, sums) in rows.iter().zip(&mut sums) {
                let pair = u32::from(row[2 * k]) | u32::from(row[2 * k + 1]) << 16;
                let pair = s.splat_i32(pair as i32);
                for (sum, columns) in sums.iter_mut().zip(columns) {
                    *sum = s.dot_bf16(*sum, columns, pair);
                }
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (sum, c) in sums.iter().zip(c.iter_mut()) {
            s.store(*sum, &mut c.as_chunks_mut().0[first + row]);
        }
    }
}

/// The largest scores of a group. For each half of the group there are two partial maxima.
struct Maxima<'a, S: Simd> {
    s: S,
    seen: &'a Seen,
    max: [[S::F; 2]; 2],
}

impl<'a, S: Simd> Maxima<'a, S> {
    #[inline(always)]
    fn new(s: S, seen: &'a Seen) -> Self {
        let max = [[s.splat(f32::NEG_INFINITY); 2]; 2];
        Self { s, seen, max }
    }

    /// The maxima of half of the group.
    #[inline(always)]
    fn of(&self, half: usize) -> S::F {
        self.s.max(self.max[half][0], self.max[half][1])
    }
}

impl<S: Simd> Beside for Maxima<'_, S> {
    const UNIT: usize = 2;

    #[inline(always)]
    fn rows(&mut self, square: usize, scores: &mut Square, rows: Range<usize>) {
        let s = self.s;
        let pairs = rows.start / 2..rows.end / 2;
        self.seen.hide(s, square, scores, pairs.clone());
        for pair in pairs {
            for (part, scores) in scores.iter().enumerate() {
                let x = s.load(&lanes(scores)[pair % SIDE]);
                let max = &mut self.max[part % 2][part / 2];
                // This order of the arguments ignores NaN. `OredBits` finds it.
                *max = s.max(x, *max);
            }
        }
    }
}

/// Turns the scores of a group into weights of V.
struct Soften<'a, S: Simd> {
    s: S,
    seen: &'a Seen,
    of: [Weights<S::F>; 2],
    /// Pairs of keys as rows of tiles: `[half of the group][key / 32]`.
    to: &'a mut [Half],
    /// For each half of the group: the sum of weights for each pair of a square's keys. This is a
    /// reference, so that the rest of this struct stays in registers.
    sums: &'a mut [[S::F; SIDE]; 2],
    ored: [OredBits<S::F>; 2],
}

impl<'a, S: Simd> Soften<'a, S> {
    #[inline(always)]
    fn new(
        s: S,
        seen: &'a Seen,
        of: [Weights<S::F>; 2],
        to: &'a mut [Half],
        sums: &'a mut [[S::F; SIDE]; 2],
    ) -> Self {
        *sums = [[s.splat(0.0); SIDE]; 2];
        Self {
            s,
            seen,
            of,
            to,
            sums,
            ored: [OredBits::new(s); 2],
        }
    }

    /// The sums of the weights of one half of the group; NaN if a weight is NaN or too large.
    #[inline(always)]
    fn sum(&self, half: usize) -> S::F {
        let sum = weights::sum(self.s, self.sums[half]);
        self.ored[half].checked(self.s, sum)
    }
}

impl<S: Simd> Beside for Soften<'_, S> {
    const UNIT: usize = 8;

    #[inline(always)]
    fn rows(&mut self, square: usize, scores: &mut Square, rows: Range<usize>) {
        let s = self.s;
        self.seen
            .hide(s, square, scores, rows.start / 2..rows.end / 2);
        let (first, second) = self.to.split_at_mut(KEY_TILES);
        let to = [&mut first[square], &mut second[square]];
        for row in rows.step_by(Self::UNIT) {
            let first = row / 2 % SIDE;
            // Four pairs are unrolled, so that constants and tables stay in registers.
            macro_rules! pair {
                ($i:literal) => {
                    for half in 0..2 {
                        let pair = (first + $i) % SIDE;
                        let even = s.load(&lanes(&scores[half])[pair]);
                        let odd = s.load(&lanes(&scores[2 + half])[pair]);
                        let words = [self.of[half].word(s, even), self.of[half].word(s, odd)];
                        self.ored[half].or(s, words);
                        let pairs = weights::from_words(s, s.low_words(words));
                        let rows: &mut [Row] = to[half].as_chunks_mut().0;
                        s.store_i16(pairs, &mut rows[pair]);
                        let sum = &mut self.sums[half][pair];
                        *sum = weights::add(s, *sum, pairs);
                    }
                };
            }
            pair!(0);
            pair!(1);
            pair!(2);
            pair!(3);
        }
    }
}

/// The rows of a tile of sums.
#[inline(always)]
pub(super) fn lanes(sums: &Sums) -> &[Lanes; SIDE] {
    sums.as_chunks().0.first_chunk().expect("a tile")
}

/// Merges a chunk's result into the accumulated result of each query that sees a key of it.
/// [`super::chunk::State::merge`] does the same for one query.
struct Merge<'a, S: Simd> {
    s: S,
    /// Sums of weight times V: `[head_dim / 32]`.
    acc: &'a mut [Square],
    /// For each half of the group: which keys the queries see, and the factors of the old and the
    /// new sums.
    seen: [[S::F; 2]; 2],
    scales: [[S::F; 2]; 2],
}

impl<'a, S: Simd> Merge<'a, S> {
    /// `new` has, for both halves, the scores that have the weight 1 and the sums of weights. They
    /// are merged with `max` and `sum` here.
    #[inline(always)]
    fn new(
        s: S,
        seen: &Seen,
        new: [(S::F, S::F); 2],
        acc: &'a mut [Square],
        max: &mut [Lanes],
        sum: &mut [Lanes],
    ) -> Self {
        let mut out = Self {
            s,
            acc,
            seen: [[s.splat(0.0); 2]; 2],
            scales: [[s.splat(0.0); 2]; 2],
        };
        for half in 0..2 {
            let (from, to) = (s.load(&seen.from[half]), s.load(&seen.to[half]));
            let (old, (new, more)) = (s.load(&max[half]), new[half]);
            let both = s.max(old, new);
            let (a, b) = (exp(s, s.sub(old, both)), exp(s, s.sub(new, both)));
            s.store(s.select_lt(from, to, both, old), &mut max[half]);
            let old = s.load(&sum[half]);
            let total = s.fma(more, b, s.mul(old, a));
            s.store(s.select_lt(from, to, total, old), &mut sum[half]);
            (out.seen[half], out.scales[half]) = ([from, to], [a, b]);
        }
        out
    }
}

impl<S: Simd> Beside for Merge<'_, S> {
    const UNIT: usize = 2;

    #[inline(always)]
    fn rows(&mut self, square: usize, sums: &mut Square, rows: Range<usize>) {
        let s = self.s;
        let acc = &mut self.acc[square];
        for row in rows.step_by(Self::UNIT) {
            let (side, row) = (row / SIDE % 2, row % SIDE);
            for half in 0..2 {
                let ([from, to], [a, b]) = (self.seen[half], self.scales[half]);
                let sums = &lanes(&sums[2 * side + half]).as_chunks::<2>().0[row / 2];
                let acc = acc[2 * side + half].as_chunks_mut::<LANES>().0;
                for (sum, at) in sums.iter().zip(&mut acc.as_chunks_mut::<2>().0[row / 2]) {
                    let old = s.load(at);
                    let total = s.fma(s.load(sum), b, s.mul(old, a));
                    s.store(s.select_lt(from, to, total, old), at);
                }
            }
        }
    }
}
