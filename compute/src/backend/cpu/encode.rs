//! [`Quant::encode`] with vectors; it gives the same bits.

use super::simd::{Kernel, LANES, Simd};
use crate::quant::{Quant, int4, int8, nf4};

/// Rows of `cols` weights each, one after another.
pub(super) struct Encode<'a> {
    pub quant: Quant,
    pub cols: usize,
    pub values: &'a [f32],
    pub codes: &'a mut [u8],
    pub scales: &'a mut [f32],
}

impl Kernel for Encode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            quant,
            cols,
            values,
            codes,
            scales,
        } = self;
        let rows = values.chunks_exact(cols);
        let outs = codes.chunks_exact_mut(quant.code_bytes(cols));
        let scales = scales.chunks_exact_mut(quant.scales(cols));
        for ((row, codes), scales) in rows.zip(outs).zip(scales) {
            match quant {
                Quant::Int8 => int8_row(s, row, codes, scales),
                Quant::Int4 => int4_row(s, row, codes, scales),
                Quant::Nf4 => nf4_row(s, row, codes, scales),
                _ => quant.encode(cols, row, codes, scales),
            }
        }
    }
}

/// A group as vectors, padded with zeros.
#[inline(always)]
fn load<S: Simd, const N: usize>(s: S, x: &[f32]) -> [S::F; N] {
    let mut v = [s.splat(0.0); N];
    for (v, x) in v.iter_mut().zip(x.chunks(LANES)) {
        *v = s.load_partial(x);
    }
    v
}

/// The greatest magnitude; NaN if a number is not finite.
#[inline(always)]
fn greatest<S: Simd, const N: usize>(s: S, v: [S::F; N]) -> f32 {
    let zero = s.splat(0.0);
    let (mut max, mut odd) = (zero, zero);
    for v in v {
        max = s.max(s.max(v, s.sub(zero, v)), max);
        odd = s.add(odd, s.mul(v, zero));
    }
    s.greatest(max) + s.sum(odd)
}

/// `v * inverse`, clamped to `low ..= high`.
#[inline(always)]
fn scaled<S: Simd>(s: S, v: S::F, inverse: S::F, low: f32, high: f32) -> S::F {
    let v = s.max(s.mul(v, inverse), s.splat(low));
    s.min(v, s.splat(high))
}

#[inline(always)]
fn int8_row<S: Simd>(s: S, row: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let groups = row.chunks(32).zip(codes.chunks_mut(32));
    for ((x, codes), scale) in groups.zip(scales) {
        let v: [S::F; 2] = load(s, x);
        let max = greatest(s, v);
        *scale = match max.is_nan() {
            true => f32::NAN,
            false => int8::at_least(max / 127.0),
        };
        let inverse = match max.is_nan() {
            true => 0.0,
            false => int4::inverse(*scale),
        };
        let mut bytes = [0i8; 32];
        for (v, to) in v.into_iter().zip(bytes.as_chunks_mut::<LANES>().0) {
            // If `v` is not finite and `inverse` is 0, the product is NaN, and the bound replaces
            // NaN.
            let q = scaled(s, v, s.splat(inverse), -127.0, 127.0);
            s.narrow_i8(s.round(q), to);
        }
        let broken = if max.is_nan() { 0 } else { 0xff };
        for (byte, code) in bytes.iter().zip(codes) {
            *code = *byte as u8 & broken;
        }
    }
}

/// Two codes in a byte, the first in the upper half.
#[inline(always)]
fn join(bytes: &[i8], codes: &mut [u8]) {
    for (pair, code) in bytes.as_chunks::<2>().0.iter().zip(codes) {
        *code = (pair[0] as u8) << 4 | pair[1] as u8;
    }
}

/// Sixteen groups side by side, one in each lane, for the search.
#[inline(always)]
fn int4_row<S: Simd>(s: S, row: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let sixteen = row.chunks(LANES * 32).zip(codes.chunks_mut(LANES * 16));
    for ((x, codes), scales) in sixteen.zip(scales.chunks_mut(LANES)) {
        let mut groups = [[s.splat(0.0); 2]; LANES];
        for (group, x) in groups.iter_mut().zip(x.chunks(32)) {
            *group = load(s, x);
        }
        let first = s.transpose(groups.map(|g| g[0]));
        let second = s.transpose(groups.map(|g| g[1]));
        let mut columns = [s.splat(0.0); 32];
        columns[..LANES].copy_from_slice(&first);
        columns[LANES..].copy_from_slice(&second);
        let (max, found) = search(s, &columns);
        let outs = codes.chunks_mut(16).zip(scales);
        for (i, (codes, scale)) in outs.enumerate() {
            let (known, code) = match max[i] {
                max if max.is_nan() => (f32::NAN, 0),
                max if max < int4::RANGE[0] => (0.0, 8),
                _ => (int4::rounded(found[i]), 0),
            };
            *scale = known;
            let mut bytes = [code; 32];
            if max[i] >= int4::RANGE[0] {
                let inverse = s.splat(int4::inverse(known));
                for (v, to) in groups[i].into_iter().zip(bytes.as_chunks_mut::<LANES>().0) {
                    let q = s.round(scaled(s, v, inverse, -8.0, 7.0));
                    s.narrow_i8(s.add(q, s.splat(8.0)), to);
                }
            }
            join(&bytes, codes);
        }
    }
}

/// For the group in each lane, given column by column: the greatest magnitude (NaN if a number is
/// not finite), and the scale of the best candidate.
#[inline(always)]
fn search<S: Simd>(s: S, columns: &[S::F; 32]) -> ([f32; LANES], [f32; LANES]) {
    let zero = s.splat(0.0);
    let (mut max, mut top, mut odd) = (zero, zero, zero);
    for &x in columns {
        let a = s.max(x, s.sub(zero, x));
        top = s.select_lt(max, a, x, top);
        max = s.max(a, max);
        odd = s.add(odd, s.mul(x, zero));
    }
    let signed = s.min(max, s.splat(int4::RANGE[1]));
    let signed = s.select_lt(top, zero, s.sub(zero, signed), signed);
    let (mut best, mut scale) = (s.splat(-1.0), zero);
    for divisor in int4::DIVISORS {
        let inverse = s.div(s.splat(divisor), signed);
        let (mut product, mut square) = (zero, zero);
        for &x in columns {
            let q = s.round(scaled(s, x, inverse, -8.0, 7.0));
            product = s.add(product, s.mul(x, q));
            square = s.add(square, s.mul(q, q));
        }
        let gain = s.div(s.mul(product, product), square);
        scale = s.select_lt(best, gain, s.div(product, square), scale);
        best = s.select_lt(best, gain, gain, best);
    }
    let (mut all, mut found) = ([0.0; LANES], [0.0; LANES]);
    s.store(s.add(max, odd), &mut all);
    s.store(scale, &mut found);
    (all, found)
}

#[inline(always)]
fn nf4_row<S: Simd>(s: S, row: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let groups = row.chunks(64).zip(codes.chunks_mut(32));
    for ((x, codes), scale) in groups.zip(scales) {
        let v: [S::F; 4] = load(s, x);
        *scale = greatest(s, v);
        let inverse = s.splat(nf4::inverse(*scale));
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        let mut bytes = [0i8; 64];
        for (v, to) in v.into_iter().zip(bytes.as_chunks_mut::<LANES>().0) {
            let x = scaled(s, v, inverse, -1.0, 1.0);
            let mut code = zero;
            for middle in nf4::MIDDLES {
                code = s.add(code, s.select_lt(s.splat(middle), x, one, zero));
            }
            s.narrow_i8(code, to);
        }
        join(&bytes, codes);
    }
}
