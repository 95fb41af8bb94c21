//! The types of the block formats with two levels of scales: the K types of GGUF files.

use super::super::simd::{Lookahead, Simd};
use super::parts::{
    byte_words, eight_bits, four_bits, in_lines, in_nibbles, in_pairs, minima, multiples,
    pairs_of_bytes, shaped, sum, times_scale, values_of_bytes,
};
use super::{
    Blocks, Bytes, GROUP_K, LINE, MAX_SPANS, Offsets, WORDS, block_len, codes_len, lines_len,
    pair_words,
};
use crate::quant::Quant;

/// [`Quant::K4`].
pub struct K4;
/// [`Quant::K5`].
pub struct K5;
/// [`Quant::K6`].
pub struct K6;
/// [`Quant::K8`].
pub struct K8;

/// Line `i` of the scales of a block.
#[inline(always)]
fn scale_line(scales: &[u16; SCALES], i: usize) -> &[u16; LINE] {
    &scales.as_chunks().0[i]
}

/// How many words the scales of a block take.
const SCALES: usize = block_len(Quant::K4) - codes_len(Quant::K4);

/// The scales of a block, which follow the codes.
macro_rules! scales {
    ($block:ident) => {
        $block[codes_len(Self::QUANT)..]
            .first_chunk()
            .expect("the rest of the block")
    };
}

/// Implements the scales of formats with minima.
macro_rules! scales_and_minima {
    () => {
        /// `d` and `dmin`, which all groups of a block share. They are converted once.
        type Common<S: Simd> = [S::F; 2];

        #[inline(always)]
        fn common<S: Simd>(s: S, block: &Self::Block) -> [S::F; 2] {
            let [d, dmin] = scale_line(scales!(block), 4).as_chunks().0 else {
                unreachable!()
            };
            [s.widen_f16(d), s.widen_f16(dmin)]
        }
        #[inline(always)]
        fn scale<S: Simd>(s: S, block: &Self::Block, [d, dmin]: [S::F; 2], i: usize) -> [S::F; 2] {
            let two = s.load_i16(scale_line(scales!(block), i / 2));
            let first = i as u32 % 2 * 2;
            [
                s.mul(d, s.signed_byte(two, first)),
                s.mul(dmin, s.signed_byte(two, first + 1)),
            ]
        }
        #[inline(always)]
        fn prefetch_scale<S: Simd>(s: S, block: &Self::Block, i: usize, ahead: Lookahead) {
            let scales = scales!(block);
            if i.is_multiple_of(2) {
                s.prefetch_far(scale_line(scales, i / 2), ahead);
            }
            if i == 0 {
                s.prefetch_far(scale_line(scales, 4), ahead);
            }
        }
    };
}

/// Implements the scales of formats with one scale for each 16 weights.
macro_rules! sixteens {
    () => {
        /// `d`.
        type Common<S: Simd> = S::F;
        type Scale<S: Simd> = S::F;

        #[inline(always)]
        fn common<S: Simd>(s: S, block: &Self::Block) -> S::F {
            let line = scale_line(scales!(block), 4);
            s.widen_f16(line.first_chunk().expect("half a line"))
        }
        #[inline(always)]
        fn scale<S: Simd>(s: S, block: &Self::Block, d: S::F, i: usize) -> S::F {
            let four = s.load_i16(scale_line(scales!(block), i / 4));
            s.mul(d, s.signed_byte(four, i as u32 % 4))
        }
        #[inline(always)]
        fn prefetch_scale<S: Simd>(s: S, block: &Self::Block, i: usize, ahead: Lookahead) {
            let scales = scales!(block);
            if i.is_multiple_of(4) {
                s.prefetch_far(scale_line(scales, i / 4), ahead);
            }
            if i == 0 {
                s.prefetch_far(scale_line(scales, 4), ahead);
            }
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
            let dot = s.to_f32(Self::total(s, dot, offset));
            s.fma(dot, s.mul(scale, s.splat(unit)), sum)
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

/// A line with the lower four bits of codes, and the line of the plane that has their other bits.
#[derive(Clone, Copy)]
pub struct Planed<'a> {
    codes: &'a [u16; LINE],
    plane: &'a [u16; LINE],
    /// The number of the line among the lines that share this line of the plane.
    at: u32,
}

impl Planed<'_> {
    /// The unsigned bytes of a line, four columns of every output at a time. `BITS` bits of each
    /// byte are in the plane.
    #[inline(always)]
    pub fn quads<const BITS: u32, S: Simd>(self, s: S) -> [S::I; 2] {
        let [a, b] = s.nibbles(s.load_i16(self.codes));
        let plane = s.shift_right(s.load_i16(self.plane), 2 * BITS * self.at);
        let mask = ((1 << BITS) - 1) << 4;
        [
            s.insert(a, plane, 4, mask),
            s.insert(b, plane, 4 - BITS, mask),
        ]
    }
}

/// Implements formats with a plane of `$bits` bits. As in formats with four bits, an activation is
/// two signed bytes. `$zero` is subtracted from the unsigned codes.
macro_rules! in_planes {
    ($bits:literal, $zero:literal) => {
        const UNIT: f32 = 1.0;
        /// As in formats with four bits: 127 * 256, because both bytes are signed.
        const TOP: f32 = 32512.0;
        const PARTS: usize = 2;
        type Planed = Self;
        type Table<S: Simd> = ();
        type Pairs<S: Simd> = ();
        type Values<S: Simd> = ();
        /// The sum of upper bytes and the sum of lower bytes.
        type Sum<S: Simd> = [S::I; 2];
        type Line<'a> = Planed<'a>;

        #[inline(always)]
        fn line(block: &Self::Block, i: usize) -> Planed<'_> {
            // How many lines share a line of the plane.
            const EACH: usize = 4 / $bits;
            let lines = block.as_chunks().0;
            Planed {
                codes: &lines[i],
                plane: &lines[lines_len(Self::QUANT) / LINE + i / EACH],
                at: (i % EACH) as u32,
            }
        }
        #[inline(always)]
        fn prefetch_line<S: Simd>(s: S, line: Planed<'_>, ahead: Lookahead) {
            s.prefetch_far(line.codes, ahead);
            if line.at == 0 {
                s.prefetch_far(line.plane, ahead);
            }
        }
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
            line: Planed<'_>,
            x: &[[i32; WORDS]; SIDE],
            first: usize,
            sums: &mut [[S::I; 2]; SIDE],
        ) {
            let quads = line.quads::<$bits, S>(s);
            for r in 0..SIDE {
                for part in 0..2 {
                    let [a, b] = [x[r][first + part], x[r][first + 2 + part]];
                    let x = [s.splat_i32(a), s.splat_i32(b)];
                    sums[r][part] = s.dot_codes(sums[r][part], quads, x);
                }
            }
        }
        #[inline(always)]
        fn total<S: Simd>(s: S, [high, low]: [S::I; 2], offset: i32) -> S::I {
            s.sum_bytes(high, low, offset)
        }
        #[inline(always)]
        fn table_of_pairs<S: Simd>(_: S) {}
        #[inline(always)]
        fn int_pairs<S: Simd>(s: S, (): (), line: Planed<'_>) -> [S::I; 4] {
            let [a, b] = line.quads::<$bits, S>(s);
            pairs_of_bytes(s, [s.sub_bytes(a, $zero), s.sub_bytes(b, $zero)])
        }
        #[inline(always)]
        fn table_of_values<S: Simd>(_: S) {}
        #[inline(always)]
        fn weights<S: Simd>(s: S, (): (), line: Planed<'_>, scale: Self::Scale<S>) -> [S::F; 8] {
            let [a, b] = line.quads::<$bits, S>(s);
            let quads = [s.sub_bytes(a, $zero), s.sub_bytes(b, $zero)];
            times_scale::<Self, S>(s, scale, values_of_bytes(s, quads))
        }
    };
}

impl Blocks for K4 {
    four_bits!(K4);
    in_nibbles!();
    minima!();
    scales_and_minima!();
    type Planed = K5;
    type ForMany = Self;
    const HAS_PLANED: bool = true;
}

impl Blocks for K5 {
    shaped!(Quant::K5);
    in_planes!(1, 0);
    type ForMany = K4;
    minima!();
    scales_and_minima!();
}

impl Bytes for K4 {
    const NIBBLES: bool = true;
    type PlanedBytes = K5;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        s.nibbles(s.load_i16(line))
    }
}

impl Bytes for K5 {
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        line.quads::<1, S>(s)
    }
}

/// Codes exceed the weights by 32. The offset of a span subtracts this excess.
impl Blocks for K6 {
    shaped!(Quant::K6);
    in_planes!(2, 32);
    type ForMany = K8;
    sixteens!();
    #[inline(always)]
    fn offsets(x: &[i32; GROUP_K], _: f32) -> Offsets {
        let (first, last) = x.split_at(GROUP_K / MAX_SPANS);
        [sum(first).wrapping_mul(-32), sum(last).wrapping_mul(-32)]
    }
}

/// A byte is 128 more than the weight, as in k8. The code is 32 more than the weight, so 96 is
/// added.
impl Bytes for K6 {
    type PlanedBytes = Self;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        let [a, b] = line.quads::<2, S>(s);
        [s.sub_bytes(a, -96), s.sub_bytes(b, -96)]
    }
}

impl Blocks for K8 {
    shaped!(Quant::K8);
    eight_bits!();
    sixteens!();
    /// ([`Simd::scaled_byte`] would not be exact, because the scale is a product of up to 18 bits.)
    #[inline(always)]
    fn weights<S: Simd>(s: S, (): (), line: &[u16; LINE], scale: S::F) -> [S::F; 8] {
        let v = s.load_i16(line);
        let all = [
            s.byte_f32::<0>(v),
            s.byte_f32::<1>(v),
            s.byte_f32::<2>(v),
            s.byte_f32::<3>(v),
        ];
        times_scale::<Self, S>(
            s,
            scale,
            [
                all[0], all[1], all[2], all[3], all[0], all[1], all[2], all[3],
            ],
        )
    }
    type Planed = K6;
    type ForMany = Self;
    const HAS_PLANED: bool = true;
}

impl Bytes for K8 {
    const SIGNED: bool = true;
    type PlanedBytes = K6;
    #[inline(always)]
    fn quads<S: Simd>(s: S, line: Self::Line<'_>) -> [S::I; 2] {
        super::Int8::quads(s, line)
    }
}
