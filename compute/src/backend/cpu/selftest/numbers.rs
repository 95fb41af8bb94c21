//! Functions of numbers, conversions, and moves between lanes.

use super::*;
#[cfg(target_arch = "x86_64")]
use crate::backend::cpu::attention::weights::{self, OredBits, Weights};

pub fn exp_is_within_two_ulp(tier: Tier) {
    let mut x: Vec<f32> = vec![0.0, -0.0, 1.0, 88.7, 88.722_84, -86.899, f32::MIN_POSITIVE];
    let mut rng = Rng(5);
    x.extend((0..40_000).map(|_| rng.unit() * 86.8));
    x.extend((0..10_000).map(|_| rng.unit() * 0.5));
    let mut y = x.clone();
    tier.run(Map {
        x: &mut y,
        f: Function::Exp,
    });
    let mut worst = 0.0f64;
    for (&x, &y) in x.iter().zip(&y) {
        let want = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
        if y.is_infinite() {
            assert!(want > f64::from(f32::MAX), "exp({x})");
            continue;
        }
        worst = worst.max((f64::from(y) - want).abs() / ulp);
    }
    assert!(worst <= 2.0, "{worst} ulp");
    assert_eq!(y[0], 1.0);
    let mut edges = [
        f32::NEG_INFINITY,
        f32::INFINITY,
        f32::NAN,
        -87.0,
        -1e30,
        89.0,
        1e30,
    ];
    tier.run(Map {
        x: &mut edges,
        f: Function::Exp,
    });
    assert!(edges[2].is_nan());
    edges[2] = 7.0;
    assert_eq!(
        edges,
        [
            0.0,
            f32::INFINITY,
            7.0,
            0.0,
            0.0,
            f32::INFINITY,
            f32::INFINITY
        ]
    );
}

pub fn silu_is_right_at_both_ends(tier: Tier) {
    let x: Vec<f32> = (-1200..1200).map(|i| i as f32 / 10.0).collect();
    let mut y = x.clone();
    tier.run(Map {
        x: &mut y,
        f: Function::Silu,
    });
    for (&x, &y) in x.iter().zip(&y) {
        let want = scalar::silu(f64::from(x));
        assert!(
            (f64::from(y) - want).abs() <= 4e-7 * want.abs() + 1e-35,
            "silu({x}) = {y}, {want}"
        );
    }
    let mut edges = [f32::NAN, f32::INFINITY];
    tier.run(Map {
        x: &mut edges,
        f: Function::Silu,
    });
    assert!(edges[0].is_nan() && edges[1] == f32::INFINITY, "{edges:?}");
}

pub fn weights_of_a_softmax_are_right(tier: Tier) {
    let mut x: Vec<f32> = (0..200_000)
        .map(|i| -140.0 * i as f32 / 200_000.0)
        .collect();
    x.extend([f32::NEG_INFINITY, f32::NAN, -126.0, -126.000_01, -1e-30]);
    let want: Vec<f64> = x.iter().map(|&x| f64::from(x).exp2()).collect();
    let before = x.clone();
    tier.run(Map {
        x: &mut x,
        f: Function::Exp2Weight,
    });
    assert_eq!(x[0], 1.0);
    for ((x, y), want) in before.iter().zip(&x).zip(want) {
        if *x < -126.0 {
            assert_eq!(*y, 0.0, "{x}");
        } else {
            let error = (f64::from(*y) - want).abs() / want;
            assert!(error <= 8e-6 || x.is_nan() && y.is_nan(), "{x}: {y}");
        }
    }
}

/// Weights of a softmax as bfloat16 are what they should be, whatever the scores and their maximum
/// are, and have the same bits in pairs and in order.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused))]
pub fn weights_in_bfloat16_are_right(tier: Tier) {
    #[cfg(target_arch = "x86_64")]
    {
        // A tier of AVX-512 without VBMI has no such table.
        if matches!(tier, Tier::Avx512(_)) {
            return;
        }
        let of = |x: &[f32; 2 * LANES], max: f32| match tier.has_bf16() || tier.has_tiles() {
            true => tier.run_bf16(InBf16(x, max)),
            false => tier.run(InBf16(x, max)),
        };
        // In units of 1/128: a third of a unit apart, around maxima of all sizes.
        // The largest scores on both sides of what is usual are among them.
        let edges = [-3072.0, -3072.25, 5247.25, 5247.5];
        for max in [0.0, 0.3, -17.5, 5000.0, -2e6, 2e6]
            .into_iter()
            .chain(edges)
        {
            for first in (0..60_000).step_by(2 * LANES) {
                let x: [f32; 2 * LANES] = std::array::from_fn(|i| max - (first + i) as f32 / 3.0);
                let Weighed {
                    pairs,
                    in_order,
                    max: one,
                    sum,
                } = of(&x, max);
                let mut total = 0.0;
                for i in 0..2 * LANES {
                    let pair = pairs[i % LANES * 2 + i / LANES];
                    assert_eq!(pair, in_order[i], "{} of {max}", x[i]);
                    let y = f64::from(half::bf16::from_bits(pair));
                    let below = f64::from(x[i]) / 128.0 - f64::from(one) * std::f64::consts::LOG2_E;
                    let want = below.exp2();
                    let error = (y - want).abs() / want;
                    let far = below < -125.0;
                    assert!(error <= 0.0067 || far, "{} of {max}: {y} for {want}", x[i]);
                    assert!(!far || (0.0..1e-37).contains(&y), "{} of {max}: {y}", x[i]);
                    total += y;
                }
                let got: f64 = sum.iter().map(|&x| f64::from(x)).sum();
                assert!(
                    (got - total).abs() <= 1e-6 * total + 1e-35,
                    "{got} for {total}"
                );
            }
        }
        let mut x = [0.0; 2 * LANES];
        (x[1], x[2], x[3]) = (f32::NEG_INFINITY, f32::NAN, -3e38);
        let Weighed { in_order, sum, .. } = of(&x, 0.0);
        // 0 is so much below what usual weights are relative to.
        let small = half::bf16::from_f32(2f32.powi(-40)).to_bits();
        assert_eq!((in_order[0], in_order[1], in_order[3]), (small, 0, 0));
        assert!(sum[2].is_nan());
        // Too large for these units.
        for max in [f32::INFINITY, 2_097_152.0, -2_097_152.0, 1e30] {
            let Weighed { sum, .. } = of(&[max; 2 * LANES], max);
            assert!(sum.iter().all(|x| x.is_nan()), "{max}");
        }
    }
}

/// Weights of 32 scores below a maximum.
#[cfg(target_arch = "x86_64")]
struct InBf16<'a>(&'a [f32; 2 * LANES], f32);

#[cfg(target_arch = "x86_64")]
struct Weighed {
    /// Those of the first and the second sixteen scores side by side.
    pairs: [u16; 2 * LANES],
    in_order: [u16; 2 * LANES],
    /// The score that has the weight 1, to base e.
    max: f32,
    /// Sums of weights in order, two in each.
    sum: [f32; LANES],
}

#[cfg(target_arch = "x86_64")]
impl Kernel for InBf16<'_> {
    type Output = Weighed;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Weighed {
        let all = Weights::for_largest(s, s.splat(self.1));
        let x = self.0.as_chunks().0;
        let words = [all.word(s, s.load(&x[0])), all.word(s, s.load(&x[1]))];
        let mut ored = OredBits::new(s);
        ored.or(s, words);
        let mut out = Weighed {
            pairs: [0; 2 * LANES],
            in_order: [0; 2 * LANES],
            max: 0.0,
            sum: [0.0; LANES],
        };
        s.store_i16(weights::from_words(s, s.low_words(words)), &mut out.pairs);
        let in_order = weights::from_words(s, s.low_words_in_order(words));
        s.store_i16(in_order, &mut out.in_order);
        let sum = ored.checked(s, weights::add(s, s.splat(0.0), in_order));
        s.store(sum, &mut out.sum);
        let mut max = [0.0; LANES];
        s.store(all.one(s), &mut max);
        out.max = max[0];
        out
    }
}

pub fn every_half_number_survives(tier: Tier) {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for first in (0..=u16::MAX).step_by(LANES) {
            let from: [u16; LANES] = std::array::from_fn(|i| first + i as u16);
            let (wide, back) = tier.run(RoundTrip { from: &from, dtype });
            for i in 0..LANES {
                let want = match dtype {
                    Dtype::F16 => half::f16::from_bits(from[i]).to_f32(),
                    _ => half::bf16::from_bits(from[i]).to_f32(),
                };
                if want.is_nan() {
                    assert!(wide[i].is_nan(), "{dtype} {:x}", from[i]);
                    assert!(
                        rounded_bits_are_nan(dtype, back[i]),
                        "{dtype} {:x}",
                        from[i]
                    );
                } else {
                    assert_eq!(wide[i].to_bits(), want.to_bits(), "{dtype} {:x}", from[i]);
                    assert_eq!(back[i], from[i], "{dtype}");
                }
            }
        }
    }
}

fn rounded_bits_are_nan(dtype: Dtype, bits: u16) -> bool {
    match dtype {
        Dtype::F16 => half::f16::from_bits(bits).is_nan(),
        _ => half::bf16::from_bits(bits).is_nan(),
    }
}

pub fn narrowing_rounds_to_nearest_even(tier: Tier) {
    let mut rng = Rng(8);
    let mut numbers: Vec<f32> = (0..20_000)
        .map(|_| f32::from_bits(rng.next() as u32))
        .collect();
    for base in [
        0x3f80_0000u32,
        0x0080_0000,
        0x7f7f_0000,
        0x3880_0000,
        0x477f_e000,
        0,
    ] {
        for low in [
            0u32, 1, 0x7fff, 0x8000, 0x8001, 0xfff, 0x1000, 0x1001, 0x1_8000, 0x3000,
        ] {
            numbers.push(f32::from_bits(base + low));
            numbers.push(-f32::from_bits(base + low));
        }
    }
    numbers.extend([
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        65519.9,
        65520.0,
    ]);
    numbers.resize(numbers.len().next_multiple_of(LANES), 0.0);
    for x in numbers.as_chunks::<LANES>().0 {
        let [bf, hf, first, second] = tier.run(Narrow(x));
        for i in 0..LANES {
            if x[i].is_nan() {
                assert!(
                    rounded_bits_are_nan(Dtype::Bf16, bf[i]),
                    "{:x}",
                    x[i].to_bits()
                );
                assert!(rounded_bits_are_nan(Dtype::Bf16, first[i]));
                assert!(rounded_bits_are_nan(Dtype::Bf16, second[i]));
                assert!(rounded_bits_are_nan(Dtype::F16, hf[i]));
                continue;
            }
            let want = half::bf16::from_f32(x[i]).to_bits();
            assert_eq!(bf[i], want, "{:x}", x[i].to_bits());
            assert_eq!(first[i], want);
            assert_eq!(second[i], half::bf16::from_f32(0.0 - x[i]).to_bits());
            assert_eq!(
                hf[i],
                half::f16::from_f32(x[i]).to_bits(),
                "{:x}",
                x[i].to_bits()
            );
        }
    }
}

/// Bytes 0 to 3 of every word, times a scale, in two ways; and the pairs of bytes 0 and 1 in
/// bfloat16.
struct Decode<'a>(&'a [u16; 2 * LANES], f32);

impl Kernel for Decode<'_> {
    type Output = ([[[f32; LANES]; 4]; 2], [u16; 2 * LANES]);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (bytes, scale) = (s.load_i16(self.0), s.quiet(s.splat(self.1)));
        let scaled = [
            s.scaled_byte::<0>(bytes, scale),
            s.scaled_byte::<1>(bytes, scale),
            s.scaled_byte::<2>(bytes, scale),
            s.scaled_byte::<3>(bytes, scale),
        ];
        let whole = [
            s.mul(s.byte_f32::<0>(bytes), scale),
            s.mul(s.byte_f32::<1>(bytes), scale),
            s.mul(s.byte_f32::<2>(bytes), scale),
            s.mul(s.byte_f32::<3>(bytes), scale),
        ];
        let (mut out, mut pairs) = ([[[0.0; LANES]; 4]; 2], [0; 2 * LANES]);
        for i in 0..4 {
            s.store(scaled[i], &mut out[0][i]);
            s.store(whole[i], &mut out[1][i]);
        }
        s.weight_pairs([whole[0], whole[1]], &mut pairs);
        (out, pairs)
    }
}

/// All codes of eight bits with scales of every exponent; weights in bfloat16 are the nearest,
/// either of two.
pub fn weights_are_decoded_as_they_are(tier: Tier) {
    let scales = (0..=u16::MAX)
        .step_by(37)
        .chain([1, 0x7bff, 0xfbff, 0x7e00, u16::MAX]);
    for (i, bits) in scales.enumerate() {
        let scale = half::f16::from_bits(bits).to_f32();
        if scale.is_infinite() {
            continue;
        }
        let codes = std::array::from_fn(|lane| {
            let first = (64 * i + 2 * lane) as u8;
            u16::from_le_bytes([first, first.wrapping_add(1)])
        });
        let ([scaled, whole], pairs) = tier.run(Decode(&codes, scale));
        if scale.is_nan() {
            assert!(
                pairs.iter().all(|&x| rounded_bits_are_nan(Dtype::Bf16, x)),
                "{bits:x}"
            );
            continue;
        }
        assert!(scaled == whole, "scale {bits:x}");
        for lane in 0..LANES {
            for (byte, got) in pairs[2 * lane..][..2].iter().enumerate() {
                let x = whole[byte][lane];
                let even = half::bf16::from_f32(x).to_bits();
                let up = ((x.to_bits() + 0x8000) >> 16) as u16;
                let halfway = x.to_bits() & 0xffff == 0x8000;
                assert!(
                    *got == even || halfway && *got == up,
                    "{bits:x} {x}: {got:x}"
                );
            }
        }
    }
}

pub fn transposing_moves_every_lane(tier: Tier) {
    let mut a = [[0.0; LANES]; LANES];
    for (i, row) in a.iter_mut().enumerate() {
        for (j, x) in row.iter_mut().enumerate() {
            *x = (i * LANES + j) as f32;
        }
    }
    let before = a;
    tier.run(Transpose(&mut a));
    let mut words = before.map(|row| row.map(|x| x.to_bits()));
    tier.run(TransposeBits(&mut words));
    for i in 0..LANES {
        for j in 0..LANES {
            assert_eq!(a[i][j], before[j][i]);
            assert_eq!(words[i][j], before[j][i].to_bits());
        }
    }
}

/// Applies `f` to a slice, lane by lane.
struct Map<'a, F> {
    x: &'a mut [f32],
    f: F,
}

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Silu,
    Exp2Weight,
}

impl Kernel for Map<'_, Function> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let v = s.load_partial(x);
            let y = match self.f {
                Function::Exp => exp::exp(s, v),
                Function::Silu => exp::silu(s, v),
                Function::Exp2Weight => exp::exp2_weight(s, v),
            };
            s.store_partial(y, x);
        }
    }
}

/// Widens every u16 and narrows it again.
struct RoundTrip<'a> {
    from: &'a [u16; LANES],
    dtype: Dtype,
}

impl Kernel for RoundTrip<'_> {
    type Output = ([f32; LANES], [u16; LANES]);
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (mut wide, mut back) = ([0.0; LANES], [0; LANES]);
        if self.dtype == Dtype::F16 {
            s.store(s.widen_f16(self.from), &mut wide);
            s.narrow_f16(s.load(&wide), &mut back);
        } else {
            s.store(s.widen_bf16(self.from), &mut wide);
            s.narrow_bf16(s.load(&wide), &mut back);
        }
        (wide, back)
    }
}

/// f32 -> bf16, single and in pairs, and f16.
struct Narrow<'a>(&'a [f32; LANES]);

impl Kernel for Narrow<'_> {
    type Output = [[u16; LANES]; 4];
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [[0; LANES]; 4];
        let mut pairs = [0; 2 * LANES];
        let a = s.load(self.0);
        s.narrow_bf16(a, &mut out[0]);
        s.narrow_f16(a, &mut out[1]);
        s.narrow_bf16_pairs([a, s.sub(s.splat(0.0), a)], &mut pairs);
        for i in 0..LANES {
            out[2][i] = pairs[2 * i];
            out[3][i] = pairs[2 * i + 1];
        }
        out
    }
}

struct Transpose<'a>(&'a mut [[f32; LANES]; LANES]);

impl Kernel for Transpose<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut a = [s.splat(0.0); LANES];
        for (a, row) in a.iter_mut().zip(self.0.iter()) {
            *a = s.load(row);
        }
        for (a, row) in s.transpose(a).into_iter().zip(self.0) {
            s.store(a, row);
        }
    }
}

struct TransposeBits<'a>(&'a mut [[u32; LANES]; LANES]);

impl Kernel for TransposeBits<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut a = [s.splat_i32(0); LANES];
        for (a, row) in a.iter_mut().zip(self.0.iter()) {
            let words: [u16; 2 * LANES] =
                std::array::from_fn(|i| (row[i / 2] >> (i % 2 * 16)) as u16);
            *a = s.load_i16(&words);
        }
        for (a, row) in s.transpose_i32(a).into_iter().zip(self.0) {
            let mut words = [0; 2 * LANES];
            s.store_i16(a, &mut words);
            for (pair, x) in words.as_chunks::<2>().0.iter().zip(row) {
                *x = u32::from(pair[0]) | u32::from(pair[1]) << 16;
            }
        }
    }
}
