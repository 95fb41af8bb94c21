//! Any processor: arrays that the compiler vectorises with its baseline instructions. Rounds the
//! product of a multiply-add (without the instruction, `mul_add` is a function call per lane).

use super::{Kernel, LANES, Simd};
use half::{bf16, f16};

/// No instructions beyond the baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

/// Has no branches, so that it vectorises; the multiplication makes subnormals correct too.
#[inline(always)]
fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff);
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | u32::from(h & 0x8000) << 16)
}

impl Simd for Portable {
    type F = [f32; LANES];
    const REGISTERS: usize = 4;
    const BYTES: bool = false;

    // A function for each kernel, as on the other tiers: one kernel may call another.
    #[inline(never)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, a: Self::F, to: &mut [f32; LANES]) {
        *to = a;
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x + y)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x - y)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x * y)
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| x / y)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::F {
        // Adding 1.5 * 2^23 leaves no fraction bits.
        const MAGIC: f32 = 12_582_912.0;
        self.sub(self.add(a, [MAGIC; LANES]), [MAGIC; LANES])
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        let mut out = n;
        for x in &mut out {
            *x = f32::from_bits(((*x as i32).wrapping_add(127) as u32) << 23);
        }
        out
    }
    #[inline(always)]
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F {
        let mut out = no;
        for i in 0..LANES {
            out[i] = if a[i] < b[i] { yes[i] } else { no[i] };
        }
        out
    }
    #[inline(always)]
    fn widen_bf16(self, from: &[u16; LANES]) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f32::from_bits(u32::from(from[i]) << 16);
        }
        out
    }
    #[inline(always)]
    fn widen_f16(self, from: &[u16; LANES]) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f16_to_f32(from[i]);
        }
        out
    }
    #[inline(always)]
    fn widen_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [Self::F; 2] {
        let mut out = [[0.0; LANES]; 2];
        for i in 0..LANES {
            out[0][i] = f32::from_bits(u32::from(from[2 * i]) << 16);
            out[1][i] = f32::from_bits(u32::from(from[2 * i + 1]) << 16);
        }
        out
    }
    #[inline(always)]
    fn narrow_bf16(self, a: Self::F, to: &mut [u16; LANES]) {
        for i in 0..LANES {
            to[i] = bf16::from_f32(a[i]).to_bits();
        }
    }
    #[inline(always)]
    fn narrow_f16(self, a: Self::F, to: &mut [u16; LANES]) {
        for i in 0..LANES {
            to[i] = f16::from_f32(a[i]).to_bits();
        }
    }
    #[inline(always)]
    fn narrow_bf16_pairs(self, a: [Self::F; 2], to: &mut [u16; 2 * LANES]) {
        for i in 0..LANES {
            to[2 * i] = bf16::from_f32(a[0][i]).to_bits();
            to[2 * i + 1] = bf16::from_f32(a[1][i]).to_bits();
        }
    }

    type I = [i32; LANES];
    type Words = [i16; 16];
    type Floats = [f32; 16];

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn load_i16(self, from: &[u16; 2 * LANES]) -> Self::I {
        let mut out = [0; LANES];
        for i in 0..LANES {
            out[i] = i32::from(from[2 * i]) | i32::from(from[2 * i + 1]) << 16;
        }
        out
    }
    #[inline(always)]
    fn store_i16(self, a: Self::I, to: &mut [u16; 2 * LANES]) {
        for i in 0..LANES {
            to[2 * i] = a[i] as u16;
            to[2 * i + 1] = (a[i] >> 16) as u16;
        }
    }
    #[inline(always)]
    fn mul_i16(self, a: Self::I, b: Self::I) -> Self::I {
        let mut out = a;
        for i in 0..LANES {
            let low = (a[i] << 16 >> 16) * (b[i] << 16 >> 16);
            let high = (a[i] >> 16) * (b[i] >> 16);
            out[i] = low.wrapping_add(high);
        }
        out
    }
    #[inline(always)]
    fn dot_i16(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let mut out = self.mul_i16(a, b);
        for i in 0..LANES {
            out[i] = out[i].wrapping_add(acc[i]);
        }
        out
    }
    #[inline(always)]
    fn nibbles(self, a: Self::I) -> [Self::I; 2] {
        [a.map(|x| x & 0x0f0f_0f0f), a.map(|x| x >> 4 & 0x0f0f_0f0f)]
    }
    #[inline(always)]
    fn dot_nibbles(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let mut out = acc;
        for i in 0..LANES {
            for shift in [24, 16, 8, 0] {
                out[i] += (a[i] << shift >> 24) * (b[i] << shift >> 24);
            }
        }
        out
    }
    #[inline(always)]
    fn sum_nibbles(self, high: Self::I, low: Self::I, offset: i32) -> Self::I {
        let mut out = low;
        for i in 0..LANES {
            out[i] = out[i].wrapping_add((high[i] << 8).wrapping_add(offset));
        }
        out
    }
    #[inline(always)]
    fn shift_right(self, a: Self::I, by: u32) -> Self::I {
        a.map(|x| (x as u32 >> by) as i32)
    }
    #[inline(always)]
    fn insert(self, codes: Self::I, bits: Self::I, by: u32, mask: u8) -> Self::I {
        let mask = i32::from_le_bytes([mask; 4]);
        let mut out = codes;
        for i in 0..LANES {
            out[i] |= bits[i] << by & mask;
        }
        out
    }
    #[inline(always)]
    fn sub_bytes(self, a: Self::I, n: i8) -> Self::I {
        a.map(|x| i32::from_le_bytes(x.to_le_bytes().map(|b| b.wrapping_sub(n as u8))))
    }
    #[inline(always)]
    fn dot_codes(self, acc: Self::I, a: [Self::I; 2], b: [Self::I; 2]) -> Self::I {
        self.dot_nibbles(self.dot_nibbles(acc, a[0], b[0]), a[1], b[1])
    }
    #[inline(always)]
    fn sum_bytes(self, high: Self::I, low: Self::I, offset: i32) -> Self::I {
        self.sum_nibbles(high, low, offset)
    }
    #[inline(always)]
    fn to_f32(self, a: Self::I) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = a[i] as f32;
        }
        out
    }
    #[inline(always)]
    fn low_bytes(self, a: Self::I) -> Self::I {
        let mut out = a;
        for x in &mut out {
            *x = (*x << 24 >> 24 & 0xffff) | (*x << 8 >> 24 << 16);
        }
        out
    }
    #[inline(always)]
    fn high_bytes(self, a: Self::I) -> Self::I {
        let mut out = a;
        for x in &mut out {
            *x = (*x << 16 >> 24 & 0xffff) | (*x >> 24 << 16);
        }
        out
    }
    #[inline(always)]
    fn byte_f32<const BYTE: usize>(self, a: Self::I) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = (a[i] << (24 - 8 * BYTE) >> 24) as f32;
        }
        out
    }
    #[inline(always)]
    fn signed_byte(self, a: Self::I, byte: u32) -> Self::F {
        a.map(|x| (x << (24 - 8 * byte) >> 24) as f32)
    }
    #[inline(always)]
    fn table_i16(self, table: &[i16; 16]) -> Self::Words {
        *table
    }
    #[inline(always)]
    fn look_up_i16<const SHIFT: u32>(self, a: Self::I, table: Self::Words) -> Self::I {
        let mut out = a;
        for x in &mut out {
            let low = i32::from(table[(*x >> SHIFT & 15) as usize]);
            let high = i32::from(table[(*x >> (SHIFT + 16) & 15) as usize]);
            *x = (low & 0xffff) | high << 16;
        }
        out
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> Self::Floats {
        *table
    }
    #[inline(always)]
    fn look_up_f32<const SHIFT: u32>(self, a: Self::I, table: Self::Floats) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = table[(a[i] >> SHIFT & 15) as usize];
        }
        out
    }
    #[inline(always)]
    fn widen_i8(self, from: &[i8; LANES]) -> Self::F {
        let mut out = [0.0; LANES];
        for i in 0..LANES {
            out[i] = f32::from(from[i]);
        }
        out
    }
    #[inline(always)]
    fn narrow_i8(self, a: Self::F, to: &mut [i8; LANES]) {
        for i in 0..LANES {
            to[i] = a[i] as i8;
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, _: &T, _: usize) {}
}
