//! One vector of sixteen f32, on every instruction set.
//!
//! A kernel is written once, over [`Simd`]; an instruction set is one small file of wrappers. A
//! value of a type that implements `Simd` is the proof that the processor has the instructions
//! (as in the pulp crate), so the methods are safe; only [`super::detect`] asks for such values.
//! All tiers cut the work into the same sixteen lanes, and AVX2 and AVX-512 fuse the same
//! multiplications and additions, so their results are bitwise equal.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod portable;

/// Lanes of a vector.
pub const LANES: usize = 16;

/// A computation that is compiled once per instruction set. `run`, and whatever it calls, must be
/// `#[inline(always)]`: only what is inlined into [`Simd::vectorize`] gets the instructions.
pub trait Kernel {
    /// What it returns.
    type Output;
    /// The computation.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// What to prefetch, and into which cache.
#[derive(Clone, Copy, Debug)]
pub struct Lookahead {
    /// From the place that is read now.
    pub bytes: usize,
    /// Into L1; otherwise into L2.
    pub into_l1: bool,
}

impl Lookahead {
    /// This line, into L2.
    pub const HERE: Lookahead = Lookahead {
        bytes: 0,
        into_l1: false,
    };
}

/// An instruction set, and the proof that this processor has it.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// How many `F` the register file holds: kernels choose their tiles by it.
    const REGISTERS: usize;
    /// Whether one instruction adds four products of bytes to every i32: VNNI.
    const BYTES: bool;

    /// Runs `kernel` with these instructions.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Lane `i` is `from[i]`.
    fn load(self, from: &[f32; LANES]) -> Self::F;
    /// `to[i]` is lane `i`.
    fn store(self, a: Self::F, to: &mut [f32; LANES]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; rounded once, except on the portable tier.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`, which is `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`, which is `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even; |a| < 2^22.
    fn round(self, a: Self::F) -> Self::F;
    /// `2^n` for integral `n` from -126 to 127.
    fn pow2(self, n: Self::F) -> Self::F;
    /// `a < b ? yes : no`, lane by lane; `no` if either is NaN.
    fn select_lt(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;

    /// bfloat16 -> f32.
    fn widen_bf16(self, from: &[u16; LANES]) -> Self::F;
    /// binary16 -> f32.
    fn widen_f16(self, from: &[u16; LANES]) -> Self::F;
    /// bfloat16 pairs -> the first of each, the second of each.
    fn widen_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [Self::F; 2];
    /// The second result of [`Simd::widen_bf16_pairs`], for kernels that are done with the first by
    /// then. The compiler must not keep what both are made of in registers meanwhile: it would
    /// spill the sums of six rows.
    #[inline(always)]
    fn second_bf16(self, from: &[u16; 2 * LANES]) -> Self::F {
        self.widen_bf16_pairs(from)[1]
    }
    /// f32 -> bfloat16, to nearest even.
    fn narrow_bf16(self, a: Self::F, to: &mut [u16; LANES]);
    /// f32 -> binary16, to nearest even.
    fn narrow_f16(self, a: Self::F, to: &mut [u16; LANES]);
    /// The inverse of [`Simd::widen_bf16_pairs`], to nearest even.
    fn narrow_bf16_pairs(self, a: [Self::F; 2], to: &mut [u16; 2 * LANES]);

    /// As [`Simd::narrow_bf16_pairs`], but subnormals may become zero.
    #[inline(always)]
    fn tile_pairs(self, a: [Self::F; 2], to: &mut [u16; 2 * LANES]) {
        self.narrow_bf16_pairs(a, to);
    }

    /// As [`Simd::tile_pairs`], for weights that are decoded: numbers halfway between two may be
    /// rounded either way, and NaN has to come from [`Simd::quiet`].
    #[inline(always)]
    fn weight_pairs(self, a: [Self::F; 2], to: &mut [u16; 2 * LANES]) {
        self.tile_pairs(a, to);
    }
    /// `a`, with the NaN that [`Simd::weight_pairs`] keeps instead of any; `a` itself where it
    /// keeps all.
    #[inline(always)]
    fn quiet(self, a: Self::F) -> Self::F {
        a
    }

    /// As [`Simd::narrow_bf16`], but subnormals may become zero.
    #[inline(always)]
    fn tile_half(self, a: Self::F, to: &mut [u16; LANES]) {
        self.narrow_bf16(a, to);
    }

    /// Sixteen i32, or 32 i16, or 64 bytes.
    type I: Copy;
    /// Sixteen i16 to be looked up.
    type Words: Copy;
    /// Sixteen f32 to be looked up.
    type Floats: Copy;

    /// All lanes `x`.
    fn splat_i32(self, x: i32) -> Self::I;
    /// 32 i16.
    fn load_i16(self, from: &[u16; 2 * LANES]) -> Self::I;
    /// The inverse of [`Simd::load_i16`].
    fn store_i16(self, a: Self::I, to: &mut [u16; 2 * LANES]);
    /// `a[0] b[0] + a[1] b[1]` in every i32 lane, of its two i16; wraps.
    fn mul_i16(self, a: Self::I, b: Self::I) -> Self::I;
    /// `acc + a[0] b[0] + a[1] b[1]` in every i32 lane, of its two i16; wraps.
    fn dot_i16(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// The lower and the upper four bits of every byte.
    fn nibbles(self, a: Self::I) -> [Self::I; 2];
    /// Adds the products of bytes to `acc`. Bytes of `a` are from 0 to 15; bytes of `b` are signed.
    /// `acc` is zero, or the result of up to seven such calls. Only [`Simd::sum_nibbles`] knows its
    /// layout.
    fn dot_nibbles(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// The same, where the compiler must not order the sums of a loop anew: it would do so row by
    /// row, and spill the weights that all rows need.
    #[inline(always)]
    fn dot_nibbles_in_order(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        self.dot_nibbles(acc, a, b)
    }
    /// `256 high + low + offset`, with each sum over four bytes.
    fn sum_nibbles(self, high: Self::I, low: Self::I, offset: i32) -> Self::I;
    /// Every i32 lane shifted by `by` bits to the right, as unsigned numbers; `by` is below 32.
    fn shift_right(self, a: Self::I, by: u32) -> Self::I;
    /// `codes | bits << by & mask`, where every i32 lane is shifted, and `mask` applies to every
    /// byte.
    fn insert(self, codes: Self::I, bits: Self::I, by: u32, mask: u8) -> Self::I;
    /// `a - n` in every byte; wraps.
    fn sub_bytes(self, a: Self::I, n: i8) -> Self::I;
    /// Adds the products of the bytes of both `a` with the bytes of both `b` to `acc`: eight
    /// products to every i32 lane. Bytes of `a` are from 0 to 63; bytes of `b` are signed.
    fn dot_codes(self, acc: Self::I, a: [Self::I; 2], b: [Self::I; 2]) -> Self::I;
    /// `256 high + low + offset` in every i32 lane; wraps.
    fn sum_bytes(self, high: Self::I, low: Self::I, offset: i32) -> Self::I;
    /// Every signed byte plus 128, as an unsigned byte.
    #[inline(always)]
    fn unsigned_bytes(self, a: Self::I) -> Self::I {
        let mut words = [0; 2 * LANES];
        self.store_i16(a, &mut words);
        self.load_i16(&words.map(|word| word ^ 0x8080))
    }
    /// The entry of the table for every byte, each of which is from 0 to 15.
    #[inline(always)]
    fn look_up_bytes(self, table: &[u8; 16], a: Self::I) -> Self::I {
        let mut words = [0; 2 * LANES];
        self.store_i16(a, &mut words);
        let entry = |byte: u8| table[usize::from(byte & 15)];
        self.load_i16(&words.map(|word| u16::from_le_bytes(word.to_le_bytes().map(entry))))
    }
    /// Adds four products of bytes to every i32 lane of `acc`; bytes of `a` are unsigned, bytes of
    /// `b` are signed. Kernels that use it are compiled for tiers with VNNI only. This is what
    /// VNNI's instruction means.
    #[inline(always)]
    fn dot_bytes(self, acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        let (mut x, mut y) = ([0; 2 * LANES], [0; 2 * LANES]);
        self.store_i16(a, &mut x);
        self.store_i16(b, &mut y);
        let unsigned = x.map(|word| [word & 255, word >> 8]);
        let signed = y.map(|word| [word as i8 as u16, (word as i16 >> 8) as u16]);
        let mut sum = acc;
        for byte in 0..2 {
            let a = self.load_i16(&unsigned.map(|word| word[byte]));
            let b = self.load_i16(&signed.map(|word| word[byte]));
            sum = self.dot_i16(sum, a, b);
        }
        sum
    }
    /// Adds two products of bfloat16 to every lane of `acc`, which an instruction set may round
    /// and flush in its own way. Kernels that use it are compiled for the tier with BF16 only.
    #[inline(always)]
    fn dot_bf16(self, acc: Self::F, a: Self::I, b: Self::I) -> Self::F {
        let (mut x, mut y) = ([0; 2 * LANES], [0; 2 * LANES]);
        self.store_i16(a, &mut x);
        self.store_i16(b, &mut y);
        let ([a0, a1], [b0, b1]) = (self.widen_bf16_pairs(&x), self.widen_bf16_pairs(&y));
        self.fma(a1, b1, self.fma(a0, b0, acc))
    }
    /// The lowest word of every lane: those of `a[0]` in the lower halves of the result's lanes,
    /// those of `a[1]` in the upper halves.
    #[inline(always)]
    fn low_words(self, a: [Self::F; 2]) -> Self::I {
        let [even, odd] = a.map(|a| low_words(self, a));
        let mut words = [0; 2 * LANES];
        for (i, pair) in words.as_chunks_mut().0.iter_mut().enumerate() {
            *pair = [even[i], odd[i]];
        }
        self.load_i16(&words)
    }
    /// The lowest word of every lane, those of `a[1]` after those of `a[0]`.
    #[inline(always)]
    fn low_words_in_order(self, a: [Self::F; 2]) -> Self::I {
        let mut words = [0; 2 * LANES];
        for (words, a) in words.as_chunks_mut().0.iter_mut().zip(a) {
            *words = low_words(self, a);
        }
        self.load_i16(&words)
    }
    /// The bits of all three, ored.
    #[inline(always)]
    fn or_bits(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut lanes = [[0.0; LANES]; 3];
        for (x, lanes) in [a, b, c].into_iter().zip(&mut lanes) {
            self.store(x, lanes);
        }
        let or = |i: usize| lanes.iter().fold(0, |all, x| all | x[i].to_bits());
        self.load(&std::array::from_fn(|i| f32::from_bits(or(i))))
    }
    /// Every word, with entry `i` of the table (at most 127) in place of its lower seven bits,
    /// which are `i`.
    #[inline(always)]
    fn look_up_low_bits(self, table: &[u8; 128], a: Self::I) -> Self::I {
        let mut words = [0; 2 * LANES];
        self.store_i16(a, &mut words);
        let look_up = |word: u16| word & 0xff80 | u16::from(table[usize::from(word & 127)]);
        self.load_i16(&words.map(look_up))
    }
    /// i32 -> f32, to nearest even.
    fn to_f32(self, a: Self::I) -> Self::F;
    /// The lower byte of every i16, sign-extended.
    fn low_bytes(self, a: Self::I) -> Self::I;
    /// The upper byte of every i16, sign-extended.
    fn high_bytes(self, a: Self::I) -> Self::I;
    /// Byte `BYTE` of every i32 lane, signed.
    fn byte_f32<const BYTE: usize>(self, a: Self::I) -> Self::F;
    /// The same for a byte that is not known before.
    fn signed_byte(self, a: Self::I, byte: u32) -> Self::F;
    /// [`Simd::byte_f32`] times a scale that was a finite binary16, exactly.
    #[inline(always)]
    fn scaled_byte<const BYTE: usize>(self, a: Self::I, scale: Self::F) -> Self::F {
        self.mul(self.byte_f32::<BYTE>(a), scale)
    }
    /// A table for [`Simd::look_up_i16`].
    fn table_i16(self, table: &[i16; 16]) -> Self::Words;
    /// In every i16 lane, the entry for its four bits from bit `SHIFT` (0, 4, 8, 12) on.
    fn look_up_i16<const SHIFT: u32>(self, a: Self::I, table: Self::Words) -> Self::I;
    /// A table for [`Simd::look_up_f32`].
    fn table_f32(self, table: &[f32; 16]) -> Self::Floats;
    /// In every i32 lane, the entry for its four bits from bit `SHIFT` (0, 4, .. 28) on.
    fn look_up_f32<const SHIFT: u32>(self, a: Self::I, table: Self::Floats) -> Self::F;
    /// Sixteen i8 -> f32.
    fn widen_i8(self, from: &[i8; LANES]) -> Self::F;

    /// Integral f32 from -128 to 127 -> i8.
    fn narrow_i8(self, a: Self::F, to: &mut [i8; LANES]);

    /// Prefetches the cache line `ahead.bytes` after `at`, into the cache that `ahead` names: a
    /// line of weights, which a step reads once, or of the KV cache.
    #[inline(always)]
    fn prefetch_far<T>(self, at: &T, ahead: Lookahead) {
        self.prefetch(at, ahead.bytes);
    }

    /// Prefetches the cache line `bytes` after `at`.
    fn prefetch<T>(self, at: &T, bytes: usize);

    /// Prefetches a cache line that will be written.
    #[inline(always)]
    fn prefetch_to_write<T>(self, _at: &mut T) {}

    /// Lane `j` of result `i` is lane `i` of argument `j`.
    #[inline(always)]
    fn transpose(self, a: [Self::F; LANES]) -> [Self::F; LANES] {
        let mut rows = [[0.0f32; LANES]; LANES];
        for i in 0..LANES {
            self.store(a[i], &mut rows[i]);
        }
        let mut out = a;
        for i in 0..LANES {
            let mut column = [0.0f32; LANES];
            for j in 0..LANES {
                column[j] = rows[j][i];
            }
            out[i] = self.load(&column);
        }
        out
    }

    /// [`Simd::transpose`] of lanes of 32 bits, whatever they are.
    #[inline(always)]
    fn transpose_i32(self, a: [Self::I; LANES]) -> [Self::I; LANES] {
        let mut rows = [[0u16; 2 * LANES]; LANES];
        for i in 0..LANES {
            self.store_i16(a[i], &mut rows[i]);
        }
        let mut out = a;
        for i in 0..LANES {
            let mut column = [0u16; 2 * LANES];
            for j in 0..LANES {
                column[2 * j..][..2].copy_from_slice(&rows[j][2 * i..][..2]);
            }
            out[i] = self.load_i16(&column);
        }
        out
    }

    /// Sum of the lanes, in one order on every tier: halves, quarters, eighths, sixteenths.
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        let mut v = [0.0f32; LANES];
        self.store(a, &mut v);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                v[i] += v[i + width];
            }
            width /= 2;
        }
        v[0]
    }

    /// The greatest lane, in one order on every tier.
    #[inline(always)]
    fn greatest(self, a: Self::F) -> f32 {
        let mut v = [0.0f32; LANES];
        self.store(a, &mut v);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                v[i] = if v[i] > v[i + width] {
                    v[i]
                } else {
                    v[i + width]
                };
            }
            width /= 2;
        }
        v[0]
    }

    /// Loads the first `from.len()` lanes; the others are zero.
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::F {
        match from.first_chunk() {
            Some(whole) => self.load(whole),
            None => {
                let mut v = [0.0f32; LANES];
                v[..from.len()].copy_from_slice(from);
                self.load(&v)
            }
        }
    }

    /// Stores the first `to.len()` lanes.
    #[inline(always)]
    fn store_partial(self, a: Self::F, to: &mut [f32]) {
        match to.first_chunk_mut() {
            Some(whole) => self.store(a, whole),
            None => {
                let mut v = [0.0f32; LANES];
                self.store(a, &mut v);
                let n = to.len();
                to.copy_from_slice(&v[..n]);
            }
        }
    }
}

#[inline(always)]
fn low_words<S: Simd>(s: S, a: S::F) -> [u16; LANES] {
    let mut lanes = [0.0f32; LANES];
    s.store(a, &mut lanes);
    lanes.map(|x| x.to_bits() as u16)
}
