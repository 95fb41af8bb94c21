//! Functions of numbers, conversions, and moves between lanes.

use super::*;

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
    for i in 0..LANES {
        for j in 0..LANES {
            assert_eq!(a[i][j], before[j][i]);
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
