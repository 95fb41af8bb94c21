//! Parts that the types of several block formats share.

use super::super::element::{Data, Pairs, Weights, half_bits};
use super::super::rows::K_BLOCK;
use super::super::simd::Simd;
use super::{Blocks, GROUP_K, LINE, WORDS, all_formats, block_k};
use crate::quant::Quant;

macro_rules! weights {
    ([$($type:ident)*]) => {$(
        impl Weights for super::$type {
            type Bits = u16;
            const BLOCK: usize = K_BLOCK / block_k(Self::QUANT) * <Self as Blocks>::LEN;
            const DIRECT: bool = false;
            #[inline(always)]
            fn array(data: &Data) -> &[u16] {
                half_bits(data)
            }
            fn pairs(_: &[u16]) -> &[[u16; LINE]] {
                unreachable!("a quantised strip has no pairs of columns")
            }
            fn widen<S: Simd>(_: S, _: &[u16; LINE], _: usize) -> S::F {
                unreachable!("a quantised strip has no pairs of columns")
            }
            #[inline(always)]
            fn unpack<S: Simd>(s: S, block: &[u16], to: impl Pairs<S>) {
                unpack::<Self, S>(s, block, to);
            }
        }
    )*};
}

all_formats! { {weights} }

/// Implements [`Weights::unpack`]: converts codes to f32, and multiplies them by their scale.
#[inline(always)]
fn unpack<Q: Blocks, S: Simd>(s: S, blocks: &[u16], mut to: impl Pairs<S>) {
    let table = Q::table_of_values(s);
    // Pairs of columns per line.
    let each = WORDS / Q::LINES;
    for (b, block) in Q::blocks(blocks).iter().enumerate() {
        // Lines per span.
        let lines = Q::LINES / Q::SPANS;
        let common = Q::common(s, block);
        for i in 0..Q::GROUPS * Q::SPANS {
            let scale = Q::quiet(s, Q::scale(s, block, common, i));
            for j in i * lines..(i + 1) * lines {
                let weights = Q::weights(s, table, Q::line(block, j), scale);
                let pairs = weights.as_chunks().0.iter();
                for (i, both) in pairs.take(each).enumerate() {
                    to.put((Q::GROUPS * Q::LINES * b + j) * each + i, *both);
                }
            }
        }
    }
}

/// Turns the values of codes into weights.
#[inline(always)]
pub(super) fn times_scale<Q: Blocks, S: Simd>(
    s: S,
    scale: Q::Scale<S>,
    mut values: [S::F; 8],
) -> [S::F; 8] {
    let [scale, minimum] = Q::factors(s, scale);
    for value in &mut values {
        *value = s.mul(scale, *value);
        if Q::MINIMA {
            *value = s.sub(*value, minimum);
        }
    }
    values
}

/// Converts signed bytes, four columns of every output at a time, to the pairs of
/// [`Blocks::int_pairs`].
#[inline(always)]
pub(super) fn pairs_of_bytes<S: Simd>(s: S, [a, b]: [S::I; 2]) -> [S::I; 4] {
    [
        s.low_bytes(a),
        s.high_bytes(a),
        s.low_bytes(b),
        s.high_bytes(b),
    ]
}

/// Converts signed bytes, as [`pairs_of_bytes`] gets them, to the values of [`Blocks::weights`].
#[inline(always)]
pub(super) fn values_of_bytes<S: Simd>(s: S, [a, b]: [S::I; 2]) -> [S::F; 8] {
    [
        s.byte_f32::<0>(a),
        s.byte_f32::<1>(a),
        s.byte_f32::<2>(a),
        s.byte_f32::<3>(a),
        s.byte_f32::<0>(b),
        s.byte_f32::<1>(b),
        s.byte_f32::<2>(b),
        s.byte_f32::<3>(b),
    ]
}

macro_rules! shaped {
    ($quant:expr) => {
        const QUANT: Quant = $quant;
        type Block = [u16; block_len($quant)];

        #[inline(always)]
        fn blocks(strip: &[u16]) -> &[Self::Block] {
            strip.as_chunks().0
        }
    };
}
pub(super) use shaped;

/// Implements the lines of formats without a plane.
macro_rules! in_lines {
    () => {
        type Line<'a> = &'a [u16; LINE];

        #[inline(always)]
        fn line(block: &Self::Block, i: usize) -> &[u16; LINE] {
            &block.as_chunks().0[i]
        }
        #[inline(always)]
        fn prefetch_line<S: Simd>(s: S, line: &[u16; LINE], ahead: Lookahead) {
            s.prefetch_far(line, ahead);
        }
    };
}
pub(super) use in_lines;

/// Implements the scales of formats that have an f16 for each group.
macro_rules! scaled {
    ($quant:expr) => {
        type Common<S: Simd> = ();
        type Scale<S: Simd> = S::F;

        #[inline(always)]
        fn common<S: Simd>(_: S, _: &Self::Block) {}
        #[inline(always)]
        fn scale<S: Simd>(s: S, block: &Self::Block, (): (), i: usize) -> S::F {
            let first = codes_len($quant) / LANES;
            s.widen_f16(&block.as_chunks().0[first + i * GROUP_K / $quant.group()])
        }
        #[inline(always)]
        fn prefetch_scale<S: Simd>(s: S, block: &Self::Block, i: usize, ahead: Lookahead) {
            let first = codes_len($quant) / LANES;
            let scales: &[[u16; LANES]] = block.as_chunks().0;
            s.prefetch_far(&scales[first + i * GROUP_K / $quant.group()], ahead);
        }
        #[inline(always)]
        fn accumulate<S: Simd>(
            s: S,
            scale: S::F,
            dot: Self::Sum<S>,
            offset: i32,
            unit: f32,
            sum: S::F,
        ) -> S::F {
            let scale = s.mul(scale, s.splat(unit));
            s.fma(s.to_f32(Self::total(s, dot, offset)), scale, sum)
        }
        #[inline(always)]
        fn factors<S: Simd>(s: S, scale: S::F) -> [S::F; 2] {
            [scale, s.splat(0.0)]
        }
        #[inline(always)]
        fn quiet<S: Simd>(s: S, scale: S::F) -> S::F {
            s.quiet(scale)
        }
    };
}

pub(super) use scaled;

/// Implements formats with minima. The offset is a float32 by which the group's minimum is
/// multiplied: the negated sum of the group's activations.
macro_rules! minima {
    () => {
        const MINIMA: bool = true;
        /// Scale and minimum.
        type Scale<S: Simd> = [S::F; 2];

        #[inline(always)]
        fn offsets(x: &[i32; GROUP_K], unit: f32) -> Offsets {
            [(-(unit * sum(x) as f32)).to_bits() as i32, 0]
        }
        #[inline(always)]
        fn accumulate<S: Simd>(
            s: S,
            [scale, minimum]: [S::F; 2],
            dot: Self::Sum<S>,
            offset: i32,
            unit: f32,
            sum: S::F,
        ) -> S::F {
            let dot = s.to_f32(Self::total(s, dot, 0));
            let sum = s.fma(dot, s.mul(scale, s.splat(unit)), sum);
            s.fma(minimum, s.splat(f32::from_bits(offset as u32)), sum)
        }
        #[inline(always)]
        fn factors<S: Simd>(_: S, factors: [S::F; 2]) -> [S::F; 2] {
            factors
        }
        #[inline(always)]
        fn quiet<S: Simd>(s: S, [scale, minimum]: [S::F; 2]) -> [S::F; 2] {
            [s.quiet(scale), s.quiet(minimum)]
        }
    };
}
pub(super) use minima;

/// Implements formats that are multiplied as int16 for few rows, too.
macro_rules! in_pairs {
    () => {
        type Table<S: Simd> = Self::Pairs<S>;
        type Sum<S: Simd> = S::I;

        #[inline(always)]
        fn words(x: &[i32; GROUP_K]) -> [i32; WORDS] {
            pair_words(x)
        }
        #[inline(always)]
        fn table<S: Simd>(s: S) -> Self::Pairs<S> {
            Self::table_of_pairs(s)
        }
        #[inline(always)]
        fn zero<S: Simd>(s: S) -> S::I {
            s.splat_i32(0)
        }
        #[inline(always)]
        fn add<S: Simd, const SIDE: usize>(
            s: S,
            table: Self::Pairs<S>,
            line: Self::Line<'_>,
            x: &[[i32; WORDS]; SIDE],
            first: usize,
            sums: &mut [S::I; SIDE],
        ) {
            let pairs = Self::int_pairs(s, table, line);
            for (i, pair) in pairs.into_iter().take(WORDS / Self::LINES).enumerate() {
                for r in 0..SIDE {
                    sums[r] = s.dot_i16(sums[r], pair, s.splat_i32(x[r][first + i]));
                }
            }
        }
        #[inline(always)]
        fn total<S: Simd>(_: S, sum: S::I, _: i32) -> S::I {
            sum
        }
    };
}
pub(super) use in_pairs;

/// Implements formats with eight bits.
macro_rules! eight_bits {
    () => {
        in_lines!();
        #[inline(always)]
        fn prefetch_near<S: Simd>(s: S, line: &[u16; LINE]) {
            s.prefetch(line, 3 * size_of_val(line));
        }
        const UNIT: f32 = 1.0;
        type Pairs<S: Simd> = ();
        type Values<S: Simd> = ();

        in_pairs!();
        #[inline(always)]
        fn table_of_pairs<S: Simd>(_: S) {}
        #[inline(always)]
        fn int_pairs<S: Simd>(s: S, (): (), line: &[u16; LINE]) -> [S::I; 4] {
            let line = s.load_i16(line);
            let (low, high) = (s.low_bytes(line), s.high_bytes(line));
            [low, high, low, high]
        }
        #[inline(always)]
        fn table_of_values<S: Simd>(_: S) {}
    };
}
pub(super) use eight_bits;

/// The codebook in multiples of [`Blocks::UNIT`].
pub(super) const fn multiples(quant: Quant, unit: f32) -> [i16; 16] {
    let (book, mut out) = (quant.codebook(), [0; 16]);
    let mut i = 0;
    while i < 16 {
        let x = book[i] / unit;
        out[i] = if x < 0.0 { x - 0.5 } else { x + 0.5 } as i16;
        i += 1;
    }
    out
}

macro_rules! four_bits {
    ($type:ident) => {
        shaped!(Quant::$type);
        in_lines!();
        type Pairs<S: Simd> = S::Words;
        type Values<S: Simd> = S::Floats;

        #[inline(always)]
        fn table_of_pairs<S: Simd>(s: S) -> S::Words {
            const TABLE: [i16; 16] = multiples(Quant::$type, $type::UNIT);
            s.table_i16(&TABLE)
        }
        #[inline(always)]
        fn int_pairs<S: Simd>(s: S, table: S::Words, line: &[u16; LINE]) -> [S::I; 4] {
            let line = s.load_i16(line);
            [
                s.look_up_i16::<0>(line, table),
                s.look_up_i16::<8>(line, table),
                s.look_up_i16::<4>(line, table),
                s.look_up_i16::<12>(line, table),
            ]
        }
        #[inline(always)]
        fn table_of_values<S: Simd>(s: S) -> S::Floats {
            const TABLE: [f32; 16] = Quant::$type.codebook();
            s.table_f32(&TABLE)
        }
        #[inline(always)]
        fn weights<S: Simd>(
            s: S,
            table: S::Floats,
            line: &[u16; LINE],
            scale: Self::Scale<S>,
        ) -> [S::F; 8] {
            let v = s.load_i16(line);
            let values = [
                s.look_up_f32::<0>(v, table),
                s.look_up_f32::<8>(v, table),
                s.look_up_f32::<16>(v, table),
                s.look_up_f32::<24>(v, table),
                s.look_up_f32::<4>(v, table),
                s.look_up_f32::<12>(v, table),
                s.look_up_f32::<20>(v, table),
                s.look_up_f32::<28>(v, table),
            ];
            times_scale::<Self, S>(s, scale, values)
        }
    };
}
pub(super) use four_bits;

/// Splits each activation into two signed bytes. The words are, in turn, the upper bytes and the
/// lower bytes of four columns.
#[inline(always)]
pub(super) fn byte_words(x: &[i32; GROUP_K]) -> [i32; WORDS] {
    let low = x.map(|x| x as u8);
    // If a number is not finite, `x` may hold anything; the scale is NaN then.
    let high = x.map(|x| (x.wrapping_add(128) >> 8) as u8);
    let [high, low] = [&high, &low].map(|bytes| bytes.as_chunks().0);
    let mut words = [0; WORDS];
    for (to, (high, low)) in words
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(high.iter().zip(low))
    {
        *to = [i32::from_le_bytes(*high), i32::from_le_bytes(*low)];
    }
    words
}

/// Implements formats with four bits. An activation is two signed bytes, so one instruction does 64
/// products, and nothing is looked up. The sums equal the sums of int16 products.
macro_rules! in_nibbles {
    () => {
        const UNIT: f32 = 1.0;
        /// 127 * 256, because both bytes are signed.
        const TOP: f32 = 32512.0;
        const PARTS: usize = 2;
        type Table<S: Simd> = ();
        /// The sum of upper bytes and the sum of lower bytes.
        type Sum<S: Simd> = [S::I; 2];

        #[inline(always)]
        fn words(x: &[i32; GROUP_K]) -> [i32; WORDS] {
            byte_words(x)
        }
        #[inline(always)]
        fn table<S: Simd>(_: S) {}
        #[inline(always)]
        fn zero<S: Simd>(s: S) -> [S::I; 2] {
            [s.splat_i32(0); 2]
        }
        #[inline(always)]
        fn add<S: Simd, const SIDE: usize>(
            s: S,
            (): (),
            line: &[u16; LINE],
            x: &[[i32; WORDS]; SIDE],
            first: usize,
            sums: &mut [[S::I; 2]; SIDE],
        ) {
            for (i, codes) in s.nibbles(s.load_i16(line)).into_iter().enumerate() {
                for r in 0..SIDE {
                    for part in 0..2 {
                        let x = s.splat_i32(x[r][first + 2 * i + part]);
                        let sum = &mut sums[r][part];
                        // AVX2 on a Zen 3: in order, one row is 1.04 to 1.1 times as fast and two
                        // rows are 1.1 to 1.3 times as fast, but four and eight rows are only 0.7
                        // to 1.0 times as fast. (This was measured when the sum of one half came
                        // before the product of the other half.)
                        *sum = match SIDE <= 2 {
                            true => s.dot_nibbles_in_order(*sum, codes, x),
                            false => s.dot_nibbles(*sum, codes, x),
                        };
                    }
                }
            }
        }
        #[inline(always)]
        fn total<S: Simd>(s: S, [high, low]: [S::I; 2], offset: i32) -> S::I {
            s.sum_nibbles(high, low, offset)
        }
    };
}
pub(super) use in_nibbles;

/// Computes the sum of activations. If numbers are not finite, the result has no meaning.
#[inline(always)]
pub(super) fn sum(x: &[i32]) -> i32 {
    x.iter().fold(0i32, |sum, &x| sum.wrapping_add(x))
}
