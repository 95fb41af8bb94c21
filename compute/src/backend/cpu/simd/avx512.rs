//! AVX-512 F, BW, VL and DQ: a vector is one zmm register. AVX-512 with VNNI, and AVX-512 with VNNI
//! and BF16, have types of their own, for kernels that gain from them.

#![allow(unsafe_code)]

use super::{Kernel, LANES, Lookahead, Simd};
use std::arch::asm;
use std::arch::x86_64::*;

/// The proof that this processor has AVX-512 F, BW, VL and DQ, and the older F16C, FMA and AVX2.
/// `LEVEL` 1 adds VNNI, 2 adds BF16 and VBMI. (Cooper Lake alone has BF16 without VBMI.)
#[derive(Clone, Copy, Debug)]
pub struct Avx512<const LEVEL: u8 = 0>(());

impl Avx512 {
    /// `Some` where the processor and the operating system have the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    /// `Some` if there is VNNI too.
    pub fn vnni(self) -> Option<Avx512<1>> {
        is_x86_feature_detected!("avx512vnni").then_some(Avx512(()))
    }

    /// `Some` if there are VNNI, BF16 and VBMI too.
    pub fn bf16(self) -> Option<Avx512<2>> {
        self.vnni()
            .filter(|_| is_x86_feature_detected!("avx512bf16"))
            .filter(|_| is_x86_feature_detected!("avx512vbmi"))
            .map(|_| Avx512(()))
    }
}

impl Avx512<2> {
    /// Without VNNI, BF16 and VBMI.
    pub fn base(self) -> Avx512 {
        Avx512(())
    }

    /// Without BF16 and VBMI.
    pub fn without_bf16(self) -> Avx512<1> {
        Avx512(())
    }
}

/// The permutation that interleaves the first and the second half of a vector of words in pairs.
static PAIRS: [u16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        (order[2 * i], order[2 * i + 1]) = (i as u16, (LANES + i) as u16);
        i += 1;
    }
    order
};

/// The lowest words of two vectors of i32, one after another, as [`_mm512_permutex2var_epi16`]
/// counts the words of both.
static LOW_WORDS: [u16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        order[i] = 2 * i as u16;
        i += 1;
    }
    order
};

/// f32 bits -> bfloat16 in the low half of each lane; to nearest even, NaN stays NaN.
///
/// # Safety
/// Needs AVX-512F: an [`Avx512`] exists.
#[inline(always)]
unsafe fn round_bf16(a: __m512) -> __m512i {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = _mm512_castps_si512(a);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
        let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
        _mm512_mask_mov_epi32(_mm512_srli_epi32::<16>(rounded), nan, quiet)
    }
}

/// `vpdpwssd`. In a chain, the compiler would split the intrinsic into a multiplication and an
/// addition, which saves latency; but here throughput counts.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot(mut acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction exists, and it reads and writes these registers only.
    unsafe {
        asm!("vpdpwssd {0}, {1}, {2}", inout(zmm_reg) acc, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// `vpdpbusd`, for the same reason as [`dot`].
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dot_bytes(mut acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: as in `dot`.
    unsafe {
        asm!("vpdpbusd {0}, {1}, {2}", inout(zmm_reg) acc, in(zmm_reg) a, in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

// SAFETY of every block below: `self` exists, so `Avx512::detect` found the instructions; loads and
// stores are unaligned ones on references to arrays of the full width.
impl<const LEVEL: u8> Simd for Avx512<LEVEL> {
    type F = __m512;
    const REGISTERS: usize = 32;
    const BYTES: bool = LEVEL >= 1;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        macro_rules! inner {
            ($name:ident, $features:literal) => {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
                #[target_feature(enable = $features)]
                #[inline(never)] // one kernel may call another
                fn $name<K: Kernel, const LEVEL: u8>(s: Avx512<LEVEL>, kernel: K) -> K::Output {
                    kernel.run(s)
                }
            };
        }
        inner!(base, "avx512f");
        inner!(vnni, "avx512vnni");
        inner!(bf16, "avx512vnni,avx512bf16,avx512vbmi");
        // SAFETY: `self` is the proof.
        unsafe {
            match LEVEL {
                0 => base(self, kernel),
                1 => vnni(self, kernel),
                _ => bf16(self, kernel),
            }
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, a: __m512, to: &mut [f32; LANES]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), a) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), yes) }
    }
    #[inline(always)]
    fn widen_bf16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v))
        }
    }
    #[inline(always)]
    fn widen_f16(self, from: &[u16; LANES]) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn widen_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [__m512; 2] {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_loadu_si512(from.as_ptr().cast());
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)),
                _mm512_castsi512_ps(_mm512_and_si512(v, upper)),
            ]
        }
    }
    #[inline(always)]
    fn narrow_bf16(self, a: __m512, to: &mut [u16; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_cvtepi32_epi16(round_bf16(a));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), v);
        }
    }
    #[inline(always)]
    fn narrow_f16(self, a: __m512, to: &mut [u16; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), v);
        }
    }
    #[inline(always)]
    fn narrow_bf16_pairs(self, a: [__m512; 2], to: &mut [u16; 2 * LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let second = _mm512_slli_epi32::<16>(round_bf16(a[1]));
            let both = _mm512_or_si512(round_bf16(a[0]), second);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), both);
        }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn greatest(self, a: __m512) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn narrow_i8(self, a: __m512, to: &mut [i8; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a));
            _mm_storeu_si128(to.as_mut_ptr().cast(), v);
        }
    }
    #[inline(always)]
    fn tile_half(self, a: __m512, to: &mut [u16; LANES]) {
        if LEVEL < 2 {
            return self.narrow_bf16(a, to);
        }
        // SAFETY: see the impl; the level is the proof of BF16. Both types are 32 bytes.
        unsafe {
            let half: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(a));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), half);
        }
    }
    /// Blocks of 2 x 2, then of 4 x 4, are transposed within quarters of registers; then the
    /// quarters.
    #[inline(always)]
    fn transpose(self, a: [__m512; LANES]) -> [__m512; LANES] {
        // SAFETY: see the impl.
        unsafe {
            let (mut x, mut y) = (a, a);
            for i in 0..8 {
                x[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                x[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            for i in 0..4 {
                for j in 0..2 {
                    let low = _mm512_castps_pd(x[4 * i + j]);
                    let high = _mm512_castps_pd(x[4 * i + 2 + j]);
                    y[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
                    y[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
                }
            }
            // Quarter q of y[4 i + j] is column 4 q + j of rows 4 i .. 4 i + 4.
            let mut out = a;
            for j in 0..4 {
                let (low, high) = (
                    [
                        _mm512_shuffle_f32x4::<0x88>(y[j], y[4 + j]),
                        _mm512_shuffle_f32x4::<0xdd>(y[j], y[4 + j]),
                    ],
                    [
                        _mm512_shuffle_f32x4::<0x88>(y[8 + j], y[12 + j]),
                        _mm512_shuffle_f32x4::<0xdd>(y[8 + j], y[12 + j]),
                    ],
                );
                // Quarters 0 and 2 of the columns, then 1 and 3.
                for odd in 0..2 {
                    out[4 * odd + j] = _mm512_shuffle_f32x4::<0x88>(low[odd], high[odd]);
                    out[4 * odd + 8 + j] = _mm512_shuffle_f32x4::<0xdd>(low[odd], high[odd]);
                }
            }
            out
        }
    }
    #[inline(always)]
    fn tile_pairs(self, a: [__m512; 2], to: &mut [u16; 2 * LANES]) {
        if LEVEL < 2 {
            return self.narrow_bf16_pairs(a, to);
        }
        // SAFETY: see the impl; the level is the proof of BF16. Both types are 64 bytes.
        unsafe {
            let apart: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(a[1], a[0]));
            let order = _mm512_loadu_si512(PAIRS.as_ptr().cast());
            let pairs = _mm512_permutexvar_epi16(order, apart);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
        }
    }
    /// Rounds by adding half of the last place, what lies halfway away from zero. With
    /// `vcvtne2ps2bf16` and the permutation that puts pairs in order, to decode 512 weights of int8
    /// takes 105 cycles instead of 84 (Emerald Rapids).
    #[inline(always)]
    fn weight_pairs(self, a: [__m512; 2], to: &mut [u16; 2 * LANES]) {
        // SAFETY: see the impl; `to` is 64 bytes.
        unsafe {
            let half = _mm512_set1_epi32(0x8000);
            let even = _mm512_add_epi32(_mm512_castps_si512(a[0]), half);
            let odd = _mm512_add_epi32(_mm512_castps_si512(a[1]), half);
            let top = _mm512_set1_epi32(0xffff_0000u32 as i32);
            // (odd & top) | even >> 16
            let pairs = _mm512_ternarylogic_epi32::<0xea>(odd, top, _mm512_srli_epi32::<16>(even));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
        }
    }
    #[inline(always)]
    fn quiet(self, a: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let odd = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            _mm512_mask_mov_ps(a, odd, _mm512_set1_ps(f32::NAN))
        }
    }

    type I = __m512i;
    /// The table twice, so that the fifth bit of an index does not matter.
    type Words = __m512i;
    type Floats = __m512;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    fn load_i16(self, from: &[u16; 2 * LANES]) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn store_i16(self, a: __m512i, to: &mut [u16; 2 * LANES]) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), a) }
    }
    #[inline(always)]
    fn mul_i16(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_madd_epi16(a, b) }
    }
    #[inline(always)]
    fn dot_i16(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl; the level is the proof of VNNI.
        unsafe {
            if LEVEL >= 1 {
                dot(acc, a, b)
            } else {
                _mm512_add_epi32(acc, self.mul_i16(a, b))
            }
        }
    }
    #[inline(always)]
    fn nibbles(self, a: __m512i) -> [__m512i; 2] {
        // SAFETY: see the impl.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let upper = _mm512_srli_epi16::<4>(a);
            [_mm512_and_si512(a, mask), _mm512_and_si512(upper, mask)]
        }
    }
    /// Without VNNI, every i16 holds sums of two products: eight sums of at most 2 * 15 * 128 fit.
    #[inline(always)]
    fn dot_nibbles(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl; the level is the proof of VNNI.
        unsafe {
            if LEVEL >= 1 {
                dot_bytes(acc, a, b)
            } else {
                _mm512_add_epi16(acc, _mm512_maddubs_epi16(a, b))
            }
        }
    }
    #[inline(always)]
    fn sum_nibbles(self, mut high: __m512i, mut low: __m512i, offset: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            if LEVEL == 0 {
                let one = _mm512_set1_epi16(1);
                (high, low) = (_mm512_madd_epi16(high, one), _mm512_madd_epi16(low, one));
            }
            let low = _mm512_add_epi32(low, _mm512_set1_epi32(offset));
            _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
        }
    }
    #[inline(always)]
    fn unsigned_bytes(self, a: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_xor_si512(a, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    fn look_up_bytes(self, table: &[u8; 16], a: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a)
        }
    }
    #[inline(always)]
    fn dot_bytes(self, acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        assert!(LEVEL >= 1, "products of bytes without VNNI");
        // SAFETY: see the impl; the level is the proof of VNNI.
        unsafe { dot_bytes(acc, a, b) }
    }
    #[inline(always)]
    fn dot_bf16(self, acc: __m512, a: __m512i, b: __m512i) -> __m512 {
        assert!(LEVEL >= 2, "products of bfloat16 without BF16");
        // SAFETY: see the impl; the level is the proof of BF16. All types are 64 bytes.
        unsafe {
            let a: __m512bh = std::mem::transmute(a);
            let b: __m512bh = std::mem::transmute(b);
            _mm512_dpbf16_ps(acc, a, b)
        }
    }
    #[inline(always)]
    fn low_words(self, a: [__m512; 2]) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let (even, odd) = (_mm512_castps_si512(a[0]), _mm512_castps_si512(a[1]));
            // (even & low) | odd << 16
            let (low, upper) = (_mm512_set1_epi32(0xffff), _mm512_slli_epi32::<16>(odd));
            _mm512_ternarylogic_epi32::<0xea>(even, low, upper)
        }
    }
    #[inline(always)]
    fn low_words_in_order(self, a: [__m512; 2]) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let (first, then) = (_mm512_castps_si512(a[0]), _mm512_castps_si512(a[1]));
            let order = _mm512_loadu_si512(LOW_WORDS.as_ptr().cast());
            _mm512_permutex2var_epi16(first, order, then)
        }
    }
    #[inline(always)]
    fn look_up_low_bits(self, table: &[u8; 128], a: __m512i) -> __m512i {
        assert!(LEVEL >= 2, "tables of 128 bytes without VBMI");
        // SAFETY: see the impl; the level is the proof of VBMI. Each half of the table is 64 bytes.
        unsafe {
            let table = table.as_ptr();
            let first = _mm512_loadu_si512(table.cast());
            let second = _mm512_loadu_si512(table.add(64).cast());
            // The eighth bit of an index does not count. The upper bytes are of no use.
            let found = _mm512_permutex2var_epi8(first, a, second);
            // (found & low) | (a & !low)
            _mm512_ternarylogic_epi32::<0xd8>(a, found, _mm512_set1_epi32(0x007f_007f))
        }
    }
    #[inline(always)]
    fn or_bits(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let [a, b, c] = [
                _mm512_castps_si512(a),
                _mm512_castps_si512(b),
                _mm512_castps_si512(c),
            ];
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xfe>(a, b, c))
        }
    }
    #[inline(always)]
    fn transpose_i32(self, a: [__m512i; LANES]) -> [__m512i; LANES] {
        // SAFETY: see the impl.
        unsafe {
            let (mut rows, mut out) = ([_mm512_setzero_ps(); LANES], a);
            for i in 0..LANES {
                rows[i] = _mm512_castsi512_ps(a[i]);
            }
            let rows = self.transpose(rows);
            for i in 0..LANES {
                out[i] = _mm512_castps_si512(rows[i]);
            }
            out
        }
    }
    #[inline(always)]
    fn shift_right(self, a: __m512i, by: u32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(by as i32)) }
    }
    #[inline(always)]
    fn insert(self, codes: __m512i, bits: __m512i, by: u32, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let bits = _mm512_sllv_epi32(bits, _mm512_set1_epi32(by as i32));
            _mm512_or_si512(codes, _mm512_and_si512(bits, _mm512_set1_epi8(mask as i8)))
        }
    }
    #[inline(always)]
    fn sub_bytes(self, a: __m512i, n: i8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_sub_epi8(a, _mm512_set1_epi8(n)) }
    }
    /// Without VNNI, every i16 holds sums of four products: at most 4 * 63 * 128, which fits.
    #[inline(always)]
    fn dot_codes(self, acc: __m512i, a: [__m512i; 2], b: [__m512i; 2]) -> __m512i {
        if LEVEL >= 1 {
            return self.dot_nibbles(self.dot_nibbles(acc, a[0], b[0]), a[1], b[1]);
        }
        let zero = self.splat_i32(0);
        let sums = self.dot_nibbles(self.dot_nibbles(zero, a[0], b[0]), a[1], b[1]);
        self.dot_i16(acc, sums, self.splat_i32(0x0001_0001))
    }
    #[inline(always)]
    fn sum_bytes(self, high: __m512i, low: __m512i, offset: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm512_add_epi32(low, _mm512_set1_epi32(offset));
            _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
        }
    }
    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn low_bytes(self, a: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a)) }
    }
    #[inline(always)]
    fn high_bytes(self, a: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_srai_epi16::<8>(a) }
    }
    #[inline(always)]
    fn byte_f32<const BYTE: usize>(self, a: __m512i) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let top = _mm512_sll_epi32(a, _mm_cvtsi32_si128(24 - 8 * BYTE as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
    }
    /// The byte, plus 128, becomes part of a float32, `1 + (byte + 128) / 2^15`. One multiply-add
    /// takes the rest away and scales. It rounds once, and nothing is lost: `less` has 20 bits and
    /// the result 19. To decode 512 weights takes 105 cycles instead of 130 (Emerald Rapids).
    #[inline(always)]
    fn scaled_byte<const BYTE: usize>(self, a: __m512i, scale: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let placed = match BYTE {
                0 => _mm512_slli_epi32::<8>(a),
                1 => a,
                2 => _mm512_srli_epi32::<8>(a),
                _ => _mm512_srli_epi32::<16>(a),
            };
            // (placed & 0xff00) ^ (1.0 with the byte's sign bit)
            let (mask, one) = (_mm512_set1_epi32(0xff00), _mm512_set1_epi32(0x3f80_8000));
            let x = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0x6a>(placed, mask, one));
            let times = _mm512_mul_ps(scale, _mm512_set1_ps(32768.0));
            let less = _mm512_mul_ps(scale, _mm512_set1_ps(-32768.0 - 128.0));
            _mm512_fmadd_ps(x, times, less)
        }
    }
    #[inline(always)]
    fn signed_byte(self, a: __m512i, byte: u32) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let top = _mm512_sllv_epi32(a, _mm512_set1_epi32(24 - 8 * byte as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(top))
        }
    }
    #[inline(always)]
    fn table_i16(self, table: &[i16; 16]) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(table.as_ptr().cast())) }
    }
    #[inline(always)]
    fn look_up_i16<const SHIFT: u32>(self, a: __m512i, table: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_permutexvar_epi16(_mm512_srli_epi16::<SHIFT>(a), table) }
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> __m512 {
        self.load(table)
    }
    #[inline(always)]
    fn look_up_f32<const SHIFT: u32>(self, a: __m512i, table: __m512) -> __m512 {
        // SAFETY: see the impl.
        unsafe { _mm512_permutexvar_ps(_mm512_srli_epi32::<SHIFT>(a), table) }
    }
    #[inline(always)]
    fn widen_i8(self, from: &[i8; LANES]) -> __m512 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            _mm512_cvtepi32_ps(v)
        }
    }
    #[inline(always)]
    fn prefetch_far<T>(self, at: &T, ahead: Lookahead) {
        if ahead.into_l1 {
            return self.prefetch(at, ahead.bytes);
        }
        // SAFETY: a prefetch of any address is allowed.
        unsafe {
            let p: *const T = at;
            _mm_prefetch::<_MM_HINT_T1>(p.cast::<i8>().wrapping_add(ahead.bytes));
        }
    }
    #[inline(always)]
    fn prefetch_to_write<T>(self, at: &mut T) {
        // SAFETY: a prefetch of any address is allowed and changes nothing. Processors without this
        // one take it for a NOP.
        unsafe {
            let p: *mut T = at;
            asm!("prefetchw [{}]", in(reg) p, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    fn prefetch<T>(self, at: &T, bytes: usize) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe {
            let p: *const T = at;
            _mm_prefetch::<_MM_HINT_T0>(p.cast::<i8>().wrapping_add(bytes));
        }
    }
}
