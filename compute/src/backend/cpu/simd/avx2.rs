//! AVX2, FMA and F16C: a vector is two ymm registers. AVX2 with AVX-VNNI has a type of its own, for
//! kernels that multiply integers.

#![allow(unsafe_code)]

use super::{Kernel, LANES, Lookahead, Simd};
use std::arch::asm;
use std::arch::x86_64::*;

/// The proof that this processor has AVX2, FMA and F16C. `LEVEL` 1 adds AVX-VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx2<const LEVEL: u8 = 0>(());

impl Avx2 {
    /// `Some` where the processor and the operating system have the instructions.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    /// `Some` if there is AVX-VNNI too.
    pub fn vnni(self) -> Option<Avx2<1>> {
        is_x86_feature_detected!("avxvnni").then_some(Avx2(()))
    }
}

impl Avx2<1> {
    /// Without AVX-VNNI.
    pub fn base(self) -> Avx2 {
        Avx2(())
    }

    /// For a test that does itself what the instructions do (compute/tests/vex_vnni.rs).
    ///
    /// # Safety
    /// Whoever executes an instruction that the processor lacks has to handle the signal.
    #[doc(hidden)]
    pub unsafe fn presumed() -> Self {
        Avx2(())
    }
}

/// Lanes 0-7 and 8-15.
#[derive(Clone, Copy)]
pub struct F2(__m256, __m256);

/// Lanes 0-7 and 8-15, or halves of a table.
#[derive(Clone, Copy)]
pub struct I2(__m256i, __m256i);

/// In every i16 lane, the entry for its four bits from bit `SHIFT` on.
///
/// # Safety
/// Needs AVX2: an [`Avx2`] exists.
#[inline(always)]
unsafe fn look_up<const SHIFT: u32>(a: __m256i, table: I2) -> __m256i {
    // SAFETY: the caller's contract. The immediate of a shift has another type here than with
    // AVX-512.
    unsafe {
        let by = _mm_cvtsi32_si128(SHIFT as i32);
        let low = _mm256_and_si256(_mm256_srl_epi16(a, by), _mm256_set1_epi16(15));
        // A byte with its top bit set looks up zero.
        let none = _mm256_set1_epi16(0x0080);
        let high = _mm256_or_si256(_mm256_slli_epi16::<8>(low), none);
        let low = _mm256_or_si256(low, _mm256_slli_epi16::<8>(none));
        _mm256_or_si256(
            _mm256_shuffle_epi8(table.0, low),
            _mm256_shuffle_epi8(table.1, high),
        )
    }
}

/// In every i32 lane, the entry for its four bits from bit `SHIFT` on.
///
/// # Safety
/// Needs AVX2: an [`Avx2`] exists.
#[inline(always)]
unsafe fn look_up_f32<const SHIFT: u32>(a: __m256i, table: F2) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let index = _mm256_srl_epi32(a, _mm_cvtsi32_si128(SHIFT as i32));
        let low = _mm256_permutevar8x32_ps(table.0, index);
        let high = _mm256_permutevar8x32_ps(table.1, index);
        // Moves bit 3 of the index to the sign bit.
        let which = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        _mm256_blendv_ps(low, high, which)
    }
}

/// f32 bits -> bfloat16 in the low half of each lane; to nearest even, NaN stays NaN.
///
/// # Safety
/// Needs AVX2: an [`Avx2`] exists.
#[inline(always)]
unsafe fn round_bf16(a: __m256) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = _mm256_castps_si256(a);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        _mm256_blendv_epi8(_mm256_srli_epi32::<16>(rounded), quiet, nan)
    }
}

/// `vpdpwssd`, as AVX-VNNI encodes it. In a chain, the compiler would split the intrinsic into a
/// multiplication and an addition, which saves latency; but here throughput counts.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot(mut acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the instruction exists, and it reads and writes these registers only.
    unsafe {
        asm!("{{vex}} vpdpwssd {0}, {1}, {2}", inout(ymm_reg) acc, in(ymm_reg) a, in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// `vpdpbusd`, for the same reason as [`dot`].
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn dot_bytes(mut acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: as in `dot`.
    unsafe {
        asm!("{{vex}} vpdpbusd {0}, {1}, {2}", inout(ymm_reg) acc, in(ymm_reg) a, in(ymm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// [`Simd::dot_nibbles_in_order`]. Both products come first: with one statement for each half, so
/// that a product was followed by its sum, many rows took 1.15 to 1.22 times as long on a Zen 3.
#[inline]
#[target_feature(enable = "avx2")]
fn dot_short(mut acc: I2, a: I2, b: I2) -> I2 {
    // SAFETY: as in `dot`.
    unsafe {
        asm!("vpmaddubsw {2}, {4}, {6}", "vpmaddubsw {3}, {5}, {7}",
            "vpaddw {0}, {0}, {2}", "vpaddw {1}, {1}, {3}",
            inout(ymm_reg) acc.0, inout(ymm_reg) acc.1, out(ymm_reg) _, out(ymm_reg) _,
            in(ymm_reg) a.0, in(ymm_reg) a.1, in(ymm_reg) b.0, in(ymm_reg) b.1,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// The upper half of each of eight words of memory, as f32: [`Simd::second_bf16`].
#[inline]
#[target_feature(enable = "avx2")]
fn upper_halves(words: &[u16; LANES]) -> __m256 {
    let upper: __m256i;
    // SAFETY: the instructions exist; they read `words` and write one register.
    unsafe {
        asm!("vpxor {0}, {0}, {0}", "vpblendw {0}, {0}, [{1}], 0xaa", out(ymm_reg) upper,
            in(reg) words, options(pure, readonly, nostack, preserves_flags));
    }
    _mm256_castsi256_ps(upper)
}

// SAFETY of every block below: `self` exists, so `Avx2::detect` found the instructions; loads and
// stores are unaligned ones that stay within references to arrays of the full width.
impl<const LEVEL: u8> Simd for Avx2<LEVEL> {
    type F = F2;
    const REGISTERS: usize = 8;
    const BYTES: bool = LEVEL >= 1;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        macro_rules! inner {
            ($name:ident, $features:literal) => {
                #[target_feature(enable = "avx2,fma,f16c")]
                #[target_feature(enable = $features)]
                #[inline(never)] // one kernel may call another
                fn $name<const LEVEL: u8, K: Kernel>(s: Avx2<LEVEL>, kernel: K) -> K::Output {
                    kernel.run(s)
                }
            };
        }
        inner!(base, "avx2");
        inner!(vnni, "avxvnni");
        // SAFETY: `self` is the proof.
        unsafe {
            match LEVEL {
                0 => base(self, kernel),
                _ => vnni(self, kernel),
            }
        }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> F2 {
        // SAFETY: see the impl.
        let v = unsafe { _mm256_set1_ps(x) };
        F2(v, v)
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            F2(
                _mm256_loadu_ps(from.as_ptr()),
                _mm256_loadu_ps(from.as_ptr().add(8)),
            )
        }
    }
    #[inline(always)]
    fn store(self, a: F2, to: &mut [f32; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), a.0);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), a.1);
        }
    }
    #[inline(always)]
    fn add(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn sub(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn mul(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn div(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn fma(self, a: F2, b: F2, c: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            F2(
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    fn max(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn min(self, a: F2, b: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }
    #[inline(always)]
    fn round(self, a: F2) -> F2 {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe {
            F2(
                _mm256_round_ps::<NEAREST>(a.0),
                _mm256_round_ps::<NEAREST>(a.1),
            )
        }
    }
    #[inline(always)]
    fn pow2(self, n: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvtps_epi32(n.0), bias);
            let high = _mm256_add_epi32(_mm256_cvtps_epi32(n.1), bias);
            F2(
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            )
        }
    }
    #[inline(always)]
    fn select_lt(self, a: F2, b: F2, yes: F2, no: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            F2(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn widen_bf16(self, from: &[u16; LANES]) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast()));
            F2(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }
    #[inline(always)]
    fn widen_f16(self, from: &[u16; LANES]) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            F2(
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast())),
            )
        }
    }
    #[inline(always)]
    fn widen_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [F2; 2] {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_loadu_si256(from.as_ptr().cast());
            let high = _mm256_loadu_si256(from.as_ptr().add(LANES).cast());
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                F2(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ),
                F2(
                    _mm256_castsi256_ps(_mm256_and_si256(low, upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(high, upper)),
                ),
            ]
        }
    }
    #[inline(always)]
    fn second_bf16(self, from: &[u16; 2 * LANES]) -> F2 {
        let [low, high] = from.as_chunks().0 else {
            unreachable!()
        };
        // SAFETY: see the impl.
        unsafe { F2(upper_halves(low), upper_halves(high)) }
    }
    #[inline(always)]
    fn narrow_bf16(self, a: F2, to: &mut [u16; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            // packus works within 128-bit lanes: put the four quarters back in order.
            let mixed = _mm256_packus_epi32(round_bf16(a.0), round_bf16(a.1));
            let v = _mm256_permute4x64_epi64::<0b11_01_10_00>(mixed);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), v);
        }
    }
    #[inline(always)]
    fn narrow_f16(self, a: F2, to: &mut [u16; LANES]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: see the impl.
        unsafe {
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_cvtps_ph::<NEAREST>(a.0));
            _mm_storeu_si128(
                to.as_mut_ptr().add(8).cast(),
                _mm256_cvtps_ph::<NEAREST>(a.1),
            );
        }
    }
    #[inline(always)]
    fn narrow_bf16_pairs(self, a: [F2; 2], to: &mut [u16; 2 * LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let [first, second] = a;
            let low = _mm256_or_si256(
                round_bf16(first.0),
                _mm256_slli_epi32::<16>(round_bf16(second.0)),
            );
            let high = _mm256_or_si256(
                round_bf16(first.1),
                _mm256_slli_epi32::<16>(round_bf16(second.1)),
            );
            _mm256_storeu_si256(to.as_mut_ptr().cast(), low);
            _mm256_storeu_si256(to.as_mut_ptr().add(LANES).cast(), high);
        }
    }

    type I = I2;
    /// Lower and upper bytes of the entries, in both halves of a register.
    type Words = I2;
    /// Entries 0-7 and 8-15.
    type Floats = F2;

    #[inline(always)]
    fn splat_i32(self, x: i32) -> I2 {
        // SAFETY: see the impl.
        let v = unsafe { _mm256_set1_epi32(x) };
        I2(v, v)
    }
    #[inline(always)]
    fn load_i16(self, from: &[u16; 2 * LANES]) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            I2(
                _mm256_loadu_si256(from.as_ptr().cast()),
                _mm256_loadu_si256(from.as_ptr().add(LANES).cast()),
            )
        }
    }
    #[inline(always)]
    fn store_i16(self, a: I2, to: &mut [u16; 2 * LANES]) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_si256(to.as_mut_ptr().cast(), a.0);
            _mm256_storeu_si256(to.as_mut_ptr().add(LANES).cast(), a.1);
        }
    }
    #[inline(always)]
    fn mul_i16(self, a: I2, b: I2) -> I2 {
        // SAFETY: see the impl.
        unsafe { I2(_mm256_madd_epi16(a.0, b.0), _mm256_madd_epi16(a.1, b.1)) }
    }
    #[inline(always)]
    fn dot_i16(self, acc: I2, a: I2, b: I2) -> I2 {
        // SAFETY: see the impl; the level is the proof of AVX-VNNI.
        unsafe {
            if LEVEL >= 1 {
                return I2(dot(acc.0, a.0, b.0), dot(acc.1, a.1, b.1));
            }
            let products = self.mul_i16(a, b);
            I2(
                _mm256_add_epi32(acc.0, products.0),
                _mm256_add_epi32(acc.1, products.1),
            )
        }
    }
    #[inline(always)]
    fn nibbles(self, a: I2) -> [I2; 2] {
        // SAFETY: see the impl.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let upper = |a| _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask);
            let lower = |a| _mm256_and_si256(a, mask);
            [I2(lower(a.0), lower(a.1)), I2(upper(a.0), upper(a.1))]
        }
    }
    /// Without VNNI, every i16 holds sums of two products: eight sums of at most 2 * 15 * 128 fit.
    #[inline(always)]
    fn dot_nibbles(self, acc: I2, a: I2, b: I2) -> I2 {
        if LEVEL >= 1 {
            return self.dot_bytes(acc, a, b);
        }
        // SAFETY: see the impl.
        unsafe {
            I2(
                _mm256_add_epi16(acc.0, _mm256_maddubs_epi16(a.0, b.0)),
                _mm256_add_epi16(acc.1, _mm256_maddubs_epi16(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn dot_nibbles_in_order(self, acc: I2, a: I2, b: I2) -> I2 {
        if LEVEL >= 1 {
            return self.dot_bytes(acc, a, b);
        }
        // SAFETY: see the impl.
        unsafe { dot_short(acc, a, b) }
    }
    #[inline(always)]
    fn sum_nibbles(self, high: I2, low: I2, offset: i32) -> I2 {
        if LEVEL >= 1 {
            return self.sum_bytes(high, low, offset);
        }
        // SAFETY: see the impl.
        unsafe {
            let one = _mm256_set1_epi16(1);
            let sum = |high, low| {
                let high = _mm256_slli_epi32::<8>(_mm256_madd_epi16(high, one));
                let low = _mm256_add_epi32(_mm256_madd_epi16(low, one), _mm256_set1_epi32(offset));
                _mm256_add_epi32(high, low)
            };
            I2(sum(high.0, low.0), sum(high.1, low.1))
        }
    }
    #[inline(always)]
    fn shift_right(self, a: I2, by: u32) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            let by = _mm256_set1_epi32(by as i32);
            I2(_mm256_srlv_epi32(a.0, by), _mm256_srlv_epi32(a.1, by))
        }
    }
    #[inline(always)]
    fn insert(self, codes: I2, bits: I2, by: u32, mask: u8) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            let (by, mask) = (_mm256_set1_epi32(by as i32), _mm256_set1_epi8(mask as i8));
            let insert = |codes, bits| {
                _mm256_or_si256(codes, _mm256_and_si256(_mm256_sllv_epi32(bits, by), mask))
            };
            I2(insert(codes.0, bits.0), insert(codes.1, bits.1))
        }
    }
    #[inline(always)]
    fn sub_bytes(self, a: I2, n: i8) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            let n = _mm256_set1_epi8(n);
            I2(_mm256_sub_epi8(a.0, n), _mm256_sub_epi8(a.1, n))
        }
    }
    #[inline(always)]
    fn unsigned_bytes(self, a: I2) -> I2 {
        self.sub_bytes(a, -128)
    }
    #[inline(always)]
    fn look_up_bytes(self, table: &[u8; 16], a: I2) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            I2(
                _mm256_shuffle_epi8(table, a.0),
                _mm256_shuffle_epi8(table, a.1),
            )
        }
    }
    #[inline(always)]
    fn dot_bytes(self, acc: I2, a: I2, b: I2) -> I2 {
        assert!(LEVEL >= 1, "products of bytes without VNNI");
        // SAFETY: see the impl; the level is the proof of AVX-VNNI.
        unsafe { I2(dot_bytes(acc.0, a.0, b.0), dot_bytes(acc.1, a.1, b.1)) }
    }
    /// Without VNNI, every i16 holds sums of four products: at most 4 * 63 * 128, which fits.
    #[inline(always)]
    fn dot_codes(self, acc: I2, a: [I2; 2], b: [I2; 2]) -> I2 {
        if LEVEL >= 1 {
            return self.dot_bytes(self.dot_bytes(acc, a[0], b[0]), a[1], b[1]);
        }
        let zero = self.splat_i32(0);
        let sums = self.dot_nibbles(self.dot_nibbles(zero, a[0], b[0]), a[1], b[1]);
        self.dot_i16(acc, sums, self.splat_i32(0x0001_0001))
    }
    #[inline(always)]
    fn sum_bytes(self, high: I2, low: I2, offset: i32) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            let offset = _mm256_set1_epi32(offset);
            let sum = |high, low| {
                _mm256_add_epi32(_mm256_slli_epi32::<8>(high), _mm256_add_epi32(low, offset))
            };
            I2(sum(high.0, low.0), sum(high.1, low.1))
        }
    }
    #[inline(always)]
    fn to_f32(self, a: I2) -> F2 {
        // SAFETY: see the impl.
        unsafe { F2(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
    }
    #[inline(always)]
    fn low_bytes(self, a: I2) -> I2 {
        // SAFETY: see the impl.
        unsafe {
            I2(
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a.0)),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a.1)),
            )
        }
    }
    #[inline(always)]
    fn high_bytes(self, a: I2) -> I2 {
        // SAFETY: see the impl.
        unsafe { I2(_mm256_srai_epi16::<8>(a.0), _mm256_srai_epi16::<8>(a.1)) }
    }
    #[inline(always)]
    fn byte_f32<const BYTE: usize>(self, a: I2) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            let by = _mm_cvtsi32_si128(24 - 8 * BYTE as i32);
            let low = _mm256_srai_epi32::<24>(_mm256_sll_epi32(a.0, by));
            let high = _mm256_srai_epi32::<24>(_mm256_sll_epi32(a.1, by));
            F2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn signed_byte(self, a: I2, byte: u32) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            let by = _mm256_set1_epi32(24 - 8 * byte as i32);
            let low = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(a.0, by));
            let high = _mm256_srai_epi32::<24>(_mm256_sllv_epi32(a.1, by));
            F2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn table_i16(self, table: &[i16; 16]) -> I2 {
        let (mut low, mut high) = ([0u8; 16], [0u8; 16]);
        for (i, x) in table.iter().enumerate() {
            [low[i], high[i]] = x.to_le_bytes();
        }
        // SAFETY: see the impl.
        unsafe {
            I2(
                _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast())),
            )
        }
    }
    #[inline(always)]
    fn look_up_i16<const SHIFT: u32>(self, a: I2, table: I2) -> I2 {
        // SAFETY: see the impl.
        unsafe { I2(look_up::<SHIFT>(a.0, table), look_up::<SHIFT>(a.1, table)) }
    }
    #[inline(always)]
    fn table_f32(self, table: &[f32; 16]) -> F2 {
        self.load(table)
    }
    #[inline(always)]
    fn look_up_f32<const SHIFT: u32>(self, a: I2, table: F2) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            F2(
                look_up_f32::<SHIFT>(a.0, table),
                look_up_f32::<SHIFT>(a.1, table),
            )
        }
    }
    #[inline(always)]
    fn widen_i8(self, from: &[i8; LANES]) -> F2 {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.as_ptr().add(8).cast()));
            F2(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }
    #[inline(always)]
    fn sum(self, a: F2) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_add_ps(a.0, a.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn greatest(self, a: F2) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let v = _mm256_max_ps(a.0, a.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    fn narrow_i8(self, a: F2, to: &mut [i8; LANES]) {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1));
            // packs works within 128-bit lanes: put the four quarters back in order.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
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
