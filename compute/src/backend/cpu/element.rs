//! The storage formats of weights and of the KV cache, with a type for each [`Dtype`].

use super::buf::{Mem, Number};
use super::rows::K_BLOCK;
use super::simd::{LANES, Simd};
use crate::{Dtype, Result};
use half::{bf16, f16};

/// A storage format, as a type that kernels are generic over.
pub trait Element: 'static {
    /// The bits of one number.
    type Bits: Number + Default;
    /// Whether two weights of one output (columns k and k + 1) share a word, as pairs of bfloat16
    /// do in tiles. In the cache, two dimensions of a key, or two positions of a dimension of V,
    /// then share a word.
    const PAIRED: bool;

    /// One number.
    fn to_f32(bits: Self::Bits) -> f32;
    /// Rounds one number to nearest even.
    fn from_f32(x: f32) -> Self::Bits;
    /// Sixteen consecutive numbers.
    fn widen<S: Simd>(s: S, from: &[Self::Bits; LANES]) -> S::F;
    /// Rounds sixteen consecutive numbers to nearest even.
    fn narrow<S: Simd>(s: S, a: S::F, to: &mut [Self::Bits; LANES]);
    /// Two columns (k, k + 1) of a strip: sixteen outputs each.
    fn widen_pair<S: Simd>(s: S, from: &[Self::Bits; 2 * LANES]) -> [S::F; 2];
    /// One of them, for kernels that need one after the other.
    #[inline(always)]
    fn widen_one<S: Simd>(s: S, from: &[Self::Bits; 2 * LANES], which: usize) -> S::F {
        Self::widen_pair(s, from)[which]
    }
    /// The inverse of [`Element::widen_pair`], to nearest even.
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [Self::Bits; 2 * LANES]);
    /// Whether a head's vector in the cache has a scale.
    const SCALED: bool = false;
    /// Computes the scale of a vector, whose numbers `each` passes to its argument; 1 for formats
    /// without scales.
    #[inline(always)]
    fn unit(_: impl FnOnce(&mut dyn FnMut(f32))) -> f32 {
        1.0
    }
    /// The factor by which a number is multiplied before it is stored with this scale.
    #[inline(always)]
    fn inverse(_: f32) -> f32 {
        1.0
    }
    /// Writes scale `i` of a page.
    #[inline(always)]
    fn put_unit(_: &mut [Self::Bits], _: usize, _: f32) {}
    /// Reads scale `i` of a page.
    #[inline(always)]
    fn get_unit(_: &[Self::Bits], _: usize) -> f32 {
        1.0
    }

    /// Two columns of sixteen as pairs of bfloat16, rounded to nearest even.
    #[inline(always)]
    fn pair<S: Simd>(s: S, from: &[Self::Bits; 2 * LANES], to: &mut [u16; 2 * LANES]) {
        s.narrow_bf16_pairs(Self::widen_pair(s, from), to);
    }
    /// Whether its numbers, apart from scales, are exact in bfloat16.
    const IN_BF16: bool = false;
    /// Two columns of sixteen as pairs of bfloat16, apart from scales; only for formats with
    /// `IN_BF16`.
    #[inline(always)]
    fn bf16_pair<S: Simd>(s: S, from: &[Self::Bits; 2 * LANES], to: &mut [u16; 2 * LANES]) {
        s.tile_pairs(Self::widen_pair(s, from), to);
    }
    /// The memory itself, if it already is pairs of bfloat16.
    #[inline(always)]
    fn bf16_pairs(_: &[[Self::Bits; 2 * LANES]]) -> Option<&[[u16; 2 * LANES]]> {
        None
    }
    /// The numbers of `data`, which has this format.
    fn bits(data: &Data) -> &[Self::Bits];
    /// As [`Element::bits`].
    fn bits_mut(data: &mut Data) -> &mut [Self::Bits];

    /// The place of column `k` of output `lane` in a strip.
    #[inline(always)]
    fn index(k: usize, lane: usize) -> usize {
        if Self::PAIRED {
            k / 2 * (2 * LANES) + lane * 2 + k % 2
        } else {
            k * LANES + lane
        }
    }
}

/// Weights of sixteen outputs along k, in any form that a product reads: floats, and the block
/// formats of [`super::blocks`].
pub trait Weights: 'static {
    /// The element type of the array that holds them.
    type Bits: Number;
    /// The number of elements that [`K_BLOCK`] columns of a strip take.
    const BLOCK: usize;
    /// Whether [`Weights::pairs`] and [`Weights::widen`] work.
    const DIRECT: bool;
    /// The array.
    fn array(data: &Data) -> &[Self::Bits];
    /// Pairs of columns of a strip.
    fn pairs(strip: &[Self::Bits]) -> &[[Self::Bits; 2 * LANES]];
    /// Column `which`, 0 or 1, of a pair.
    fn widen<S: Simd>(s: S, pair: &[Self::Bits; 2 * LANES], which: usize) -> S::F;
    /// Hands each pair of a block of columns to `to`, with the pair's number and both columns.
    fn unpack<S: Simd>(s: S, block: &[Self::Bits], to: impl Pairs<S>);
}

/// What takes the pairs of columns that [`Weights::unpack`] makes.
///
/// This is not a closure, because a closure that is called from several places (an unrolled loop
/// is enough) may become a function of its own. Such a function lacks the instruction set of its
/// caller, so that each intrinsic in it is called through memory.
pub trait Pairs<S: Simd> {
    /// Must be `#[inline(always)]`.
    fn put(&mut self, pair: usize, both: [S::F; 2]);
}

impl<E: Element> Weights for E {
    type Bits = E::Bits;
    const BLOCK: usize = K_BLOCK * LANES;
    const DIRECT: bool = true;
    #[inline(always)]
    fn array(data: &Data) -> &[E::Bits] {
        E::bits(data)
    }
    #[inline(always)]
    fn pairs(strip: &[E::Bits]) -> &[[E::Bits; 2 * LANES]] {
        strip.as_chunks().0
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, pair: &[E::Bits; 2 * LANES], which: usize) -> S::F {
        E::widen_one(s, pair, which)
    }
    #[inline(always)]
    fn unpack<S: Simd>(s: S, block: &[E::Bits], mut to: impl Pairs<S>) {
        for (i, pair) in Self::pairs(block).iter().enumerate() {
            to.put(i, E::widen_pair(s, pair));
        }
    }
}

/// Memory with elements of 8, 16 or 32 bits.
#[derive(Debug)]
pub enum Data {
    /// i8.
    Byte(Mem<i8>),
    /// f32.
    Single(Mem<f32>),
    /// f16 or bf16, or blocks of a quantised format.
    Half(Mem<u16>),
}

impl Data {
    /// `len` zeros of `dtype`.
    pub fn zeroed(what: &str, dtype: Dtype, len: usize) -> Result<Data> {
        Ok(match dtype {
            Dtype::F32 => Data::Single(Mem::zeroed(what, len)?),
            Dtype::F16 | Dtype::Bf16 => Data::Half(Mem::zeroed(what, len)?),
            Dtype::Int8 => Data::Byte(Mem::zeroed(what, len)?),
            _ => unreachable!("no array of {dtype}"),
        })
    }
}

/// Two halves of an array.
#[inline(always)]
fn halves<T>(a: &[T; 2 * LANES]) -> (&[T; LANES], &[T; LANES]) {
    let [first, second] = a.as_chunks::<LANES>().0 else {
        unreachable!()
    };
    (first, second)
}

/// Two halves of an array.
#[inline(always)]
fn halves_mut<T>(a: &mut [T; 2 * LANES]) -> (&mut [T; LANES], &mut [T; LANES]) {
    let [first, second] = a.as_chunks_mut::<LANES>().0 else {
        unreachable!()
    };
    (first, second)
}

/// IEEE binary32.
pub struct F32;
/// IEEE binary16.
pub struct F16;
/// bfloat16.
pub struct Bf16;

impl Element for F32 {
    type Bits = f32;
    const PAIRED: bool = false;
    #[inline(always)]
    fn to_f32(bits: f32) -> f32 {
        bits
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[f32; LANES]) -> S::F {
        s.load(from)
    }
    #[inline(always)]
    fn narrow<S: Simd>(s: S, a: S::F, to: &mut [f32; LANES]) {
        s.store(a, to);
    }
    #[inline(always)]
    fn widen_pair<S: Simd>(s: S, from: &[f32; 2 * LANES]) -> [S::F; 2] {
        let (first, second) = halves(from);
        [s.load(first), s.load(second)]
    }
    #[inline(always)]
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [f32; 2 * LANES]) {
        let (first, second) = halves_mut(to);
        s.store(a[0], first);
        s.store(a[1], second);
    }
    fn bits(data: &Data) -> &[f32] {
        match data {
            Data::Single(m) => m,
            _ => panic!("other memory read as f32"),
        }
    }
    fn bits_mut(data: &mut Data) -> &mut [f32] {
        match data {
            Data::Single(m) => m,
            _ => panic!("other memory written as f32"),
        }
    }
}

/// 16-bit words.
pub(super) fn half_bits(data: &Data) -> &[u16] {
    match data {
        Data::Half(m) => m,
        _ => panic!("other memory read as 16-bit"),
    }
}

/// As [`half_bits`].
pub(super) fn half_bits_mut(data: &mut Data) -> &mut [u16] {
    match data {
        Data::Half(m) => m,
        _ => panic!("other memory written as 16-bit"),
    }
}

impl Element for F16 {
    type Bits = u16;
    const PAIRED: bool = false;
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u16 {
        f16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[u16; LANES]) -> S::F {
        s.widen_f16(from)
    }
    #[inline(always)]
    fn narrow<S: Simd>(s: S, a: S::F, to: &mut [u16; LANES]) {
        s.narrow_f16(a, to);
    }
    #[inline(always)]
    fn widen_pair<S: Simd>(s: S, from: &[u16; 2 * LANES]) -> [S::F; 2] {
        let (first, second) = halves(from);
        [s.widen_f16(first), s.widen_f16(second)]
    }
    #[inline(always)]
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [u16; 2 * LANES]) {
        let (first, second) = halves_mut(to);
        s.narrow_f16(a[0], first);
        s.narrow_f16(a[1], second);
    }
    fn bits(data: &Data) -> &[u16] {
        half_bits(data)
    }
    fn bits_mut(data: &mut Data) -> &mut [u16] {
        half_bits_mut(data)
    }
}

impl Element for Bf16 {
    type Bits = u16;
    const PAIRED: bool = true;
    #[inline(always)]
    fn to_f32(bits: u16) -> f32 {
        bf16::from_bits(bits).to_f32()
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u16 {
        bf16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[u16; LANES]) -> S::F {
        s.widen_bf16(from)
    }
    #[inline(always)]
    fn narrow<S: Simd>(s: S, a: S::F, to: &mut [u16; LANES]) {
        s.narrow_bf16(a, to);
    }
    #[inline(always)]
    fn widen_pair<S: Simd>(s: S, from: &[u16; 2 * LANES]) -> [S::F; 2] {
        s.widen_bf16_pairs(from)
    }
    #[inline(always)]
    fn widen_one<S: Simd>(s: S, from: &[u16; 2 * LANES], which: usize) -> S::F {
        match which {
            0 => s.widen_bf16_pairs(from)[0],
            _ => s.second_bf16(from),
        }
    }
    #[inline(always)]
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [u16; 2 * LANES]) {
        s.narrow_bf16_pairs(a, to);
    }
    #[inline(always)]
    fn pair<S: Simd>(_: S, from: &[u16; 2 * LANES], to: &mut [u16; 2 * LANES]) {
        *to = *from;
    }
    const IN_BF16: bool = true;
    #[inline(always)]
    fn bf16_pair<S: Simd>(_: S, from: &[u16; 2 * LANES], to: &mut [u16; 2 * LANES]) {
        *to = *from;
    }
    #[inline(always)]
    fn bf16_pairs(from: &[[u16; 2 * LANES]]) -> Option<&[[u16; 2 * LANES]]> {
        Some(from)
    }
    fn bits(data: &Data) -> &[u16] {
        half_bits(data)
    }
    fn bits_mut(data: &mut Data) -> &mut [u16] {
        half_bits_mut(data)
    }
}

/// Integers with a scale for each head's vector; for the cache only.
pub struct I8;

impl Element for I8 {
    type Bits = i8;
    const PAIRED: bool = false;
    const SCALED: bool = true;
    const IN_BF16: bool = true;
    #[inline(always)]
    fn to_f32(bits: i8) -> f32 {
        f32::from(bits)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> i8 {
        // Within half a step of -127 ..= 127, because of how scales are chosen. NaN shows in its
        // scale.
        x.round_ties_even() as i8
    }
    #[inline(always)]
    fn widen<S: Simd>(s: S, from: &[i8; LANES]) -> S::F {
        s.widen_i8(from)
    }
    fn narrow<S: Simd>(_: S, _: S::F, _: &mut [i8; LANES]) {
        unreachable!("no weights are kept like the cache")
    }
    #[inline(always)]
    fn widen_pair<S: Simd>(s: S, from: &[i8; 2 * LANES]) -> [S::F; 2] {
        let (first, second) = halves(from);
        [s.widen_i8(first), s.widen_i8(second)]
    }
    fn narrow_pair<S: Simd>(_: S, _: [S::F; 2], _: &mut [i8; 2 * LANES]) {
        unreachable!("no weights are kept like the cache")
    }
    /// The scale is NaN if a number is not finite.
    #[inline(always)]
    fn unit(each: impl FnOnce(&mut dyn FnMut(f32))) -> f32 {
        let (mut max, mut odd) = (0.0f32, 0.0f32);
        each(&mut |x| {
            max = max.max(x.abs());
            odd += x * 0.0;
        });
        max / 127.0 + odd
    }
    #[inline(always)]
    fn inverse(unit: f32) -> f32 {
        // The reciprocal of a smaller number would overflow.
        if unit > 1e-30 { 1.0 / unit } else { 0.0 }
    }
    #[inline(always)]
    fn put_unit(scales: &mut [i8], i: usize, unit: f32) {
        for (to, byte) in scales[4 * i..4 * i + 4].iter_mut().zip(unit.to_le_bytes()) {
            *to = byte as i8;
        }
    }
    #[inline(always)]
    fn get_unit(scales: &[i8], i: usize) -> f32 {
        let b = &scales[4 * i..4 * i + 4];
        f32::from_le_bytes([b[0] as u8, b[1] as u8, b[2] as u8, b[3] as u8])
    }
    fn bits(data: &Data) -> &[i8] {
        match data {
            Data::Byte(m) => m,
            _ => panic!("other memory read as bytes"),
        }
    }
    fn bits_mut(data: &mut Data) -> &mut [i8] {
        match data {
            Data::Byte(m) => m,
            _ => panic!("other memory written as bytes"),
        }
    }
}

/// Like [`with_element`], for a dtype of the cache.
macro_rules! with_cache_element {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            $crate::Dtype::Int8 => {
                type $E = $crate::backend::cpu::element::I8;
                $body
            }
            float => $crate::backend::cpu::element::with_element!(float, $E => $body),
        }
    };
}
pub(super) use with_cache_element;

/// `$body`, in which `$E` stands for the element type of `$dtype`, a float.
macro_rules! with_element {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            other if !other.is_float() => unreachable!("{other} is no float"),
            $crate::Dtype::F32 => {
                type $E = $crate::backend::cpu::element::F32;
                $body
            }
            $crate::Dtype::F16 => {
                type $E = $crate::backend::cpu::element::F16;
                $body
            }
            $crate::Dtype::Bf16 => {
                type $E = $crate::backend::cpu::element::Bf16;
                $body
            }
            _ => unreachable!(),
        }
    };
}
pub(super) use with_element;
