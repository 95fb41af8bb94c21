//! How numbers are stored, in weights and in the KV cache: one type per [`Dtype`].

use super::buf::{Mem, Number};
use super::simd::{LANES, Simd};
use crate::{Dtype, Result};
use half::{bf16, f16};

/// A storage format, as a type that kernels are generic over.
pub trait Element: 'static {
    /// The bits of one number.
    type Bits: Number + Default;
    /// Columns (k) that two weights of one output share a word of: 2 for bfloat16 pairs, else 1.
    const PAIRED: bool;

    /// One number.
    fn to_f32(bits: Self::Bits) -> f32;
    /// One number, to nearest even.
    fn from_f32(x: f32) -> Self::Bits;
    /// Sixteen consecutive numbers.
    fn widen<S: Simd>(s: S, from: &[Self::Bits; LANES]) -> S::F;
    /// Sixteen consecutive numbers, to nearest even.
    fn narrow<S: Simd>(s: S, a: S::F, to: &mut [Self::Bits; LANES]);
    /// Two columns (k, k + 1) of a strip: sixteen outputs each.
    fn widen_pair<S: Simd>(s: S, from: &[Self::Bits; 2 * LANES]) -> [S::F; 2];
    /// The inverse of [`Element::widen_pair`], to nearest even.
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [Self::Bits; 2 * LANES]);
    /// Two rows of sixteen as pairs of bfloat16, to nearest even.
    #[inline(always)]
    fn pair<S: Simd>(
        s: S,
        first: &[Self::Bits; LANES],
        second: &[Self::Bits; LANES],
        to: &mut [u16; 2 * LANES],
    ) {
        s.narrow_bf16_pairs([Self::widen(s, first), Self::widen(s, second)], to);
    }
    /// The numbers of `data`, which has this format.
    fn bits(data: &Data) -> &[Self::Bits];
    /// As [`Element::bits`].
    fn bits_mut(data: &mut Data) -> &mut [Self::Bits];

    /// Where column `k` of output `lane` lies in a strip.
    #[inline(always)]
    fn index(k: usize, lane: usize) -> usize {
        if Self::PAIRED {
            k / 2 * (2 * LANES) + lane * 2 + k % 2
        } else {
            k * LANES + lane
        }
    }
}

/// Memory of either width.
#[derive(Debug)]
pub enum Data {
    /// f32.
    Single(Mem<f32>),
    /// f16 or bf16.
    Half(Mem<u16>),
}

impl Data {
    /// `len` zeros of `dtype`.
    pub fn zeroed(what: &str, dtype: Dtype, len: usize) -> Result<Data> {
        Ok(match dtype {
            Dtype::F32 => Data::Single(Mem::zeroed(what, len)?),
            Dtype::F16 | Dtype::Bf16 => Data::Half(Mem::zeroed(what, len)?),
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
            Data::Half(_) => panic!("16-bit memory read as f32"),
        }
    }
    fn bits_mut(data: &mut Data) -> &mut [f32] {
        match data {
            Data::Single(m) => m,
            Data::Half(_) => panic!("16-bit memory written as f32"),
        }
    }
}

fn half_bits(data: &Data) -> &[u16] {
    match data {
        Data::Half(m) => m,
        Data::Single(_) => panic!("f32 memory read as 16-bit"),
    }
}

fn half_bits_mut(data: &mut Data) -> &mut [u16] {
    match data {
        Data::Half(m) => m,
        Data::Single(_) => panic!("f32 memory written as 16-bit"),
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
    fn narrow_pair<S: Simd>(s: S, a: [S::F; 2], to: &mut [u16; 2 * LANES]) {
        s.narrow_bf16_pairs(a, to);
    }
    #[inline(always)]
    fn pair<S: Simd>(_: S, first: &[u16; LANES], second: &[u16; LANES], to: &mut [u16; 2 * LANES]) {
        for i in 0..LANES {
            to[2 * i] = first[i];
            to[2 * i + 1] = second[i];
        }
    }
    fn bits(data: &Data) -> &[u16] {
        half_bits(data)
    }
    fn bits_mut(data: &mut Data) -> &mut [u16] {
        half_bits_mut(data)
    }
}

/// `$body` with `$E` standing for the element type of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
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
        }
    };
}
pub(super) use with_element;
