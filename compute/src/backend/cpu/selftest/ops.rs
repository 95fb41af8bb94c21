//! The operations on a tier, against their scalar twins.

pub use super::adapters::adapters_match;
pub use super::attention::generated_rows_attend;
pub use super::parts::{gate_and_up_of_two_formats, parts_keep_their_own_formats};
pub use super::quantised::{
    quantised_company_changes_nothing, quantised_forward_matches, quantised_products_match,
    quantised_products_of_bad_numbers, quantised_strips_hold_what_the_format_says,
};
pub use super::sizes::{
    a_cpu_says_what_it_is, avx2_and_avx512_agree_in_every_bit, bytes_said_are_bytes_taken,
    sizes_that_no_machine_has_are_errors,
};
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

/// Places blocks in any order of rows, any rectangle, any dtype, at odd addresses.
pub fn packing_places_every_number(tier: Tier) {
    let cpu = Cpu::with_tier(&shape(8, [2, 2], 4, 8, 8), rope(4, 16), 2, 4, tier).unwrap();
    let mut rng = Rng(17);
    for (parts, cols, head_dim) in [
        (vec![1], 1, 0),
        (vec![16], 2, 0),
        (vec![17, 15], 33, 0),
        (vec![48, 24, 24], 31, 12),
        (vec![64, 32, 32], 70, 32),
        (vec![24], 48, 6),
        (vec![160], 160, 80),
    ] {
        for usage in [MatUse::Product, MatUse::Lookup] {
            for (stored, kept) in DTYPES.iter().flat_map(|&a| DTYPES.map(|b| (a, b))) {
                let spec = MatSpec {
                    parts: PartSpec::all(&parts, kept),
                    cols,
                    bias: false,
                    scale: 1.0,
                    usage,
                    place: None,
                };
                let mut mat = cpu.new_mat(&spec).unwrap();
                let total: usize = parts.iter().sum();
                let mut want = vec![0.0; total * cols];
                let mut first = 0;
                for (part, &rows) in parts.iter().enumerate() {
                    let order = match head_dim {
                        0 => RowOrder::AsStored,
                        // Wide heads are rotated in part.
                        head_dim => RowOrder::HalvesToPairs {
                            head_dim,
                            rotated: head_dim.min(12),
                        },
                    };
                    let values = rng.vector(rows * cols, 3.0);
                    // A cross of four rectangles.
                    let (r, c) = (rng.below(rows + 1), rng.below(cols + 1));
                    for (rs, cs) in [
                        (0..r, 0..c),
                        (0..r, c..cols),
                        (r..rows, 0..c),
                        (r..rows, c..cols),
                    ] {
                        if cs.is_empty() {
                            continue;
                        }
                        let mut cut = Vec::new();
                        for row in rs.clone() {
                            cut.extend_from_slice(&values[row * cols..][cs.clone()]);
                            for k in cs.clone() {
                                let x = rounded(kept, rounded(stored, values[row * cols + k]));
                                want[(first + order.destination(row)) * cols + k] = x;
                            }
                        }
                        let mut bytes = vec![0u8];
                        bytes.extend(encode(stored, &cut));
                        let block = Block {
                            part,
                            row: rs.start,
                            col: cs.start,
                            cols: cs.len(),
                            order,
                            dtype: stored,
                            bytes: &bytes[1..],
                        };
                        cpu.pack(&mut mat, &block);
                    }
                    first += rows;
                }
                assert_eq!(
                    unpack(&mat),
                    want,
                    "{parts:?} x {cols} {stored} -> {kept} {usage:?}"
                );
            }
        }
    }
}

pub fn products_match(tier: Tier) {
    let mut rng = Rng(3);
    for (n, k) in [
        (1, 1),
        (15, 2),
        (16, 3),
        (17, 16),
        (40, 31),
        (130, 100),
        (33, 700),
        (200, 257),
        (97, 512),
    ] {
        for (dtype, (kind, fast)) in DTYPES.iter().flat_map(|&d| KINDS.map(|k| (d, k))) {
            let mut dense = Dense {
                weights: rng
                    .vector(n * k, 1.0)
                    .iter()
                    .map(|&x| rounded(dtype, x))
                    .collect(),
                cols: k,
                bias: rng.vector(n, 1.0),
            };
            dense.weights[n * k / 2] = 300.0;
            dense.weights[n * k / 3] = rounded(dtype, 1e-39);
            // Makes scratch wide enough for any k.
            let s = Shape {
                ffn_dim: k,
                ..shape(8, [2, 2], 4, k, n)
            };
            let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 600, tier).unwrap();
            cpu.fast = fast;
            // Whose arithmetic the rows have.
            let arithmetic = if fast { RowKind::Prefill } else { kind };
            let mat = to_mat(&cpu, &dense, &[n], dtype, MatUse::Product);
            let many: &[usize] = if n == 40 { &[513, 530, 600] } else { &[] };
            let few = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64];
            for &rows in few.iter().chain(many) {
                let mut x = cpu.new_buf(rows, k).unwrap();
                x.data.copy_from_slice(&rng.vector(rows * k, 1.0));
                x.data[rows * k / 3] = 100.0;
                x.data[rows * k / 2] = -3e-39;
                let mut y = cpu.new_buf(rows, n).unwrap();
                y.data.copy_from_slice(&rng.vector(rows * n, 1.0));
                let before = y.data.to_vec();
                load_rows(&mut cpu, rows, kind);
                cpu.matmul_add(&mut y, &mat, &x);
                for row in 0..rows {
                    let x = &x.data[row * k..][..k];
                    let what =
                        |i| format!("{n} x {k} {dtype} {kind:?} {fast}, {rows} rows: [{row}, {i}]");
                    let rounds = rounds(tier, arithmetic, dtype);
                    if rounds && tier.has_tiles() {
                        for i in 0..n {
                            let want = before[row * n + i]
                                + (scalar::tile_product(dense.row(i), x) + dense.bias[i]);
                            assert_eq!(y.data[row * n + i], want, "{}", what(i));
                        }
                        continue;
                    }
                    let rounded = |x| if rounds { rounded(dtype, x) } else { x };
                    let x: Vec<f64> = x.iter().map(|&x| rounded(x).into()).collect();
                    let (want, size) = (dense.product(&x), dense.magnitude(&x));
                    for i in 0..n {
                        let want = want[i] + f64::from(before[row * n + i]);
                        // k + 2 roundings, each within half an ulp of a partial sum.
                        let bound = (k + 4) as f64 * 2f64.powi(-24) * (size[i] + want.abs() + 2.0);
                        let got = f64::from(y.data[row * n + i]);
                        assert!((got - want).abs() <= bound, "{} {got} for {want}", what(i));
                    }
                }
            }
        }
    }
}

/// NaN and infinity stay in their row, and weights that are not finite in their column.
pub fn products_of_bad_numbers(tier: Tier) {
    let (n, k, rows) = (35, 70, 37);
    for (dtype, (kind, fast)) in DTYPES.iter().flat_map(|&d| KINDS.map(|k| (d, k))) {
        let mut rng = Rng(8);
        let mut dense = Dense {
            weights: rng.vector(n * k, 1.0),
            cols: k,
            bias: Vec::new(),
        };
        dense.weights[20 * k + 69] = f32::INFINITY;
        dense.weights[34 * k] = f32::NAN;
        let s = shape(8, [2, 2], 4, k, n);
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, rows, tier).unwrap();
        cpu.fast = fast;
        let mat = to_mat(&cpu, &dense, &[n], dtype, MatUse::Product);
        let mut x = cpu.new_buf(rows, k).unwrap();
        x.data.copy_from_slice(&rng.vector(rows * k, 1.0));
        x.data[3 * k + 5] = f32::NAN;
        x.data[36 * k + 69] = f32::NEG_INFINITY;
        let mut y = cpu.new_buf(rows, n).unwrap();
        load_rows(&mut cpu, rows, kind);
        cpu.matmul_add(&mut y, &mat, &x);
        for (i, y) in y.data.iter().enumerate() {
            let (row, i) = (i / n, i % n);
            let finite = row != 3 && row != 36 && i != 20 && i != 34;
            assert_eq!(y.is_finite(), finite, "{dtype} {kind:?} [{row}, {i}] {y}");
            let nan = row == 3 || i == 34;
            assert!(y.is_nan() || !nan, "{dtype} {kind:?} [{row}, {i}] {y}");
        }
    }
}

pub fn norms_match(tier: Tier) {
    let pool = Pool::new(2).unwrap();
    let mut rng = Rng(4);
    for width in [1, 2, 15, 16, 17, 63, 64, 65, 130, 1000] {
        let weight = rng.vector(width, 2.0);
        for rows in [1, 2, 8, 9, 20] {
            let mut x = rng.vector(rows * width, 1.0);
            x[width / 2] = 1000.0;
            for side in [1, 3, 6, 8] {
                let (all, wide) = (rows.next_multiple_of(side), width.next_multiple_of(2));
                let mut panels = Panels::new(all, wide).unwrap();
                let norm = Some(Norm {
                    weight: &weight,
                    eps: 1e-5,
                });
                // What was there before must not show in the padding.
                let nan = [f32::NAN; 1000];
                panels.fill(&pool, tier, side, all, |_| &nan[..wide], None);
                panels.fill(&pool, tier, side, rows, |i| &x[i * width..][..width], norm);
                for row in 0..rows.next_multiple_of(side) {
                    let at = |k: usize| {
                        let block = panels.block(row / side, k / rows::K_BLOCK);
                        block[k % rows::K_BLOCK * side + row % side]
                    };
                    if row >= rows {
                        assert!((0..panels.cols).all(|k| at(k) == 0.0));
                        continue;
                    }
                    let wide: Vec<f64> = x[row * width..][..width]
                        .iter()
                        .map(|&x| x.into())
                        .collect();
                    for (k, want) in scalar::rms_norm(&wide, &weight, 1e-5).iter().enumerate() {
                        let error = (f64::from(at(k)) - want).abs();
                        assert!(
                            error <= 1e-6 * want.abs() + 1e-9,
                            "{width} {row} {k}: {want}"
                        );
                    }
                    assert!((width..panels.cols).all(|k| at(k) == 0.0));
                }
            }
        }
    }
}

/// The whole transformer, every storage format, GQA 1, 4 and 8, odd sizes.
pub fn forward_matches(tier: Tier) {
    let shapes = [
        shape(24, [2, 2], 6, 20, 37),
        shape(40, [8, 2], 16, 50, 61),
        shape(64, [8, 1], 32, 90, 100),
        shape(50, [4, 4], 80, 33, 45),
    ];
    for (i, shape) in shapes.iter().enumerate() {
        for (dtype, kv) in DTYPES.iter().flat_map(|&a| DTYPES.map(|b| (a, b))) {
            let model = random_model(shape, dtype, i % 2 == 1, i == 2, 11 + i as u64);
            let mut machine = Machine::new(&model, tier, 2, dtype, kv);
            let tokens = random_tokens(45, shape.vocab_size, 3);
            let want = model.logits(&tokens, kv);
            let (mut sequence, mut got) = machine.prefill(&tokens[..40], 23);
            for t in 40..45 {
                let token = &tokens[t..t + 1];
                got.extend(machine.step(&mut [(&mut sequence, token, RowKind::Decode)]));
            }
            // With a 16-bit cache, a last-bit difference before rounding may become a difference of
            // 2^-9 or 2^-11 in one of the numbers of K or V.
            let tolerance = match kv {
                _ if rounds(tier, RowKind::Prefill, dtype) => 0.04,
                Dtype::F32 => 1e-5,
                Dtype::F16 => 2e-4,
                _ => 1e-3,
            };
            assert_close(&got, &want, tolerance, &format!("{shape:?} {dtype} {kv}"));
        }
    }
}

/// Long enough for several chunks of keys, with heads of the usual widths and of odd ones.
pub fn long_sequences_match(tier: Tier) {
    for (heads, head_dim, features) in [
        ([2, 2], 64, false),
        ([4, 1], 128, true),
        ([16, 2], 16, false),
        ([3, 3], 42, true),
        ([3, 3], 42, false),
    ] {
        let shape = shape(32, heads, head_dim, 32, 40);
        for dtype in DTYPES {
            let mut model = random_model(&shape, dtype, false, false, 31);
            if features {
                model = with_features(model);
            }
            let mut machine = Machine::new(&model, tier, 2, dtype, dtype);
            let tokens = random_tokens(530, 40, 9);
            let want = model.logits(&tokens, dtype);
            let (sequence, got) = machine.prefill(&tokens, 300);
            let tolerance = match dtype {
                _ if rounds(tier, RowKind::Prefill, dtype) => 0.03,
                Dtype::F32 => 2e-5,
                Dtype::F16 => 2e-4,
                _ => 2e-3,
            };
            let what = format!("{heads:?} {head_dim} {dtype}");
            assert_close(&got, &want, tolerance, &what);
            machine.release(sequence);
        }
    }
}

/// Law four: alone or among others, on one thread or three, in chunks or whole, by decode steps or
/// by prefill, the bits are the same.
pub fn company_threads_and_chunks_change_nothing(tier: Tier) {
    for (dtype, kv, heads, head_dim, features, fast) in [
        (Dtype::Bf16, Dtype::Bf16, [4, 2], 32, true, false),
        (Dtype::Bf16, Dtype::Bf16, [4, 2], 32, true, true),
        (Dtype::F32, Dtype::F32, [3, 3], 10, false, false),
        (Dtype::F16, Dtype::F16, [4, 1], 64, true, false),
        (Dtype::Bf16, Dtype::Int8, [3, 1], 16, true, false),
        (Dtype::Bf16, Dtype::Int8, [3, 1], 16, false, true),
    ] {
        let shape = shape(40, heads, head_dim, 60, 70);
        let mut model = random_model(&shape, dtype, true, false, 5);
        if features {
            model = with_features(model);
        }
        let tokens = random_tokens(272, 70, 21);
        let mut reference = Machine::new(&model, tier, 1, dtype, kv);
        reference.cpu.fast = fast;
        let (sequence, want) = reference.prefill(&tokens, tokens.len());
        reference.release(sequence);
        // Decodes from 250 on, alone.
        let (mut sequence, mut decoded) = reference.prefill(&tokens[..250], 250);
        for t in 250..262 {
            let token = &tokens[t..t + 1];
            decoded.extend(reference.step(&mut [(&mut sequence, token, RowKind::Decode)]));
        }
        assert!(decoded[..250] == want[..250]);
        // Tiles attend to keys in an order of their own.
        if !rounds(tier, RowKind::Prefill, dtype) || fast && !tier.has_tiles() {
            assert!(decoded == want[..262], "decode and prefill");
        }
        // Prefills up to 258 and then decodes, as the tests with other sequences do.
        let (mut sequence, _) = reference.prefill(&tokens[..258], 258);
        let late: Vec<Vec<f32>> = (258..260)
            .flat_map(|t| {
                let token = &tokens[t..t + 1];
                reference.step(&mut [(&mut sequence, token, RowKind::Decode)])
            })
            .collect();
        for threads in [1, 2, 3] {
            let mut machine = Machine::new(&model, tier, threads, dtype, kv);
            machine.cpu.fast = fast;
            for chunk in [7, 100, 272] {
                let (sequence, got) = machine.prefill(&tokens, chunk);
                assert!(got == want, "{threads} threads, chunks of {chunk}");
                machine.release(sequence);
            }
            // Decodes token by token past a boundary of chunks.
            let (mut sequence, _) = machine.prefill(&tokens[..250], 100);
            for t in 250..262 {
                let token = &tokens[t..t + 1];
                let got = machine.step(&mut [(&mut sequence, token, RowKind::Decode)]);
                assert!(got[0] == decoded[t], "{threads} threads, decode at {t}");
            }
            machine.release(sequence);
            // Among one to eight other sequences.
            let others: Vec<Vec<Token>> = (0..8)
                .map(|i| random_tokens(3 + 9 * i, 70, 70 + i as u64))
                .collect();
            let mut company: Vec<Sequence> = others
                .iter()
                .map(|tokens| machine.prefill(tokens, 100).0)
                .collect();
            for n in [1, 5, 8] {
                let (mut sequence, _) = machine.prefill(&tokens[..258], 258);
                let mut before = company[..n].to_vec();
                let mut work: Vec<(&mut Sequence, &[Token], RowKind)> = before
                    .iter_mut()
                    .map(|s| (s, &tokens[..1], RowKind::Decode))
                    .collect();
                work.insert(n / 2, (&mut sequence, &tokens[258..259], RowKind::Decode));
                let got = machine.step(&mut work);
                assert!(got[n / 2] == late[0], "{threads} threads, {n} others");
                for (i, s) in before.into_iter().enumerate() {
                    company[i].pages = s.pages;
                }
                // A prompt among decoding rows, in one step.
                let mut second = Sequence::default();
                let mut work: Vec<(&mut Sequence, &[Token], RowKind)> =
                    vec![(&mut second, &tokens[..40], RowKind::Prefill)];
                work.push((&mut sequence, &tokens[259..260], RowKind::Decode));
                let got = machine.step(&mut work);
                assert!(got[..40] == want[..40], "{threads} threads, mixed");
                assert!(got[40] == late[1], "{threads} threads, mixed");
                machine.release(second);
                machine.release(sequence);
            }
        }
    }
}

/// A row without a slot reads the cache and does not change it; copied pages give the same result.
pub fn rows_without_slot_and_copied_pages(tier: Tier) {
    let shape = shape(32, [4, 2], 16, 40, 50);
    let model = random_model(&shape, Dtype::Bf16, false, false, 77);
    let mut machine = Machine::new(&model, tier, 2, Dtype::Bf16, Dtype::F16);
    let tokens = random_tokens(50, 50, 1);
    let (sequence, want) = machine.prefill(&tokens, 50);
    let copies: Vec<u32> = sequence
        .pages
        .iter()
        .map(|_| machine.free.pop().unwrap())
        .collect();
    let pairs: Vec<(u32, u32)> = sequence
        .pages
        .iter()
        .copied()
        .zip(copies.iter().copied())
        .collect();
    machine.cpu.copy_pages(&mut machine.kv, &pairs).unwrap();
    let before = match &machine.kv.data {
        element::Data::Half(m) => m.to_vec(),
        _ => unreachable!(),
    };
    for pages in [sequence.pages, copies] {
        let step = Step {
            tokens: vec![tokens[49]],
            slots: vec![Step::NO_SLOT],
            spans: vec![Span {
                rows: 0..1,
                kind: RowKind::Prefill,
                position: 49,
                pages: 0..pages.len(),
            }],
            pages,
            wanted: vec![0],
            ..Step::default()
        };
        let got = machine.run(&step);
        assert!(got[0] == want[49]);
    }
    let element::Data::Half(after) = &machine.kv.data else {
        unreachable!()
    };
    assert!(before == **after, "the cache was written");
}

/// The int8 cache against its scalar twin; other sequences, threads, chunks and copied pages change
/// nothing.
pub fn int8_cache_matches(tier: Tier) {
    let kv = Dtype::Int8;
    for (heads, head_dim) in [([4, 2], 32), ([8, 1], 10), ([3, 3], 64)] {
        let shape = shape(40, heads, head_dim, 60, 70);
        let model = random_model(&shape, Dtype::F32, false, false, 15);
        let tokens = random_tokens(300, 70, 4);
        let want = model.logits(&tokens, kv);
        let mut alone = Machine::new(&model, tier, 1, Dtype::F32, kv);
        let (sequence, got) = alone.prefill(&tokens, 300);
        // A last-bit difference before rounding may change a number of K or V by 1/127 of its
        // vector's maximum.
        assert_close(&got, &want, 4e-3, &format!("{heads:?} {head_dim}"));
        let pairs: Vec<(u32, u32)> = sequence
            .pages
            .iter()
            .map(|&page| (page, alone.free.pop().unwrap()))
            .collect();
        alone.cpu.copy_pages(&mut alone.kv, &pairs).unwrap();
        let mut copy = Sequence {
            pages: pairs.iter().map(|p| p.1).collect(),
            len: 299,
        };
        let again = alone.step(&mut [(&mut copy, &tokens[299..], RowKind::Decode)]);
        assert!(again[0] == got[299], "a copy");
        let mut machine = Machine::new(&model, tier, 3, Dtype::F32, kv);
        let (mut sequence, chunks) = machine.prefill(&tokens[..290], 37);
        assert!(chunks == got[..290], "chunks");
        for t in 290..300 {
            let mut other = Sequence::default();
            let step = machine.step(&mut [
                (&mut other, &tokens[..9], RowKind::Prefill),
                (&mut sequence, &tokens[t..=t], RowKind::Decode),
            ]);
            assert!(step[9] == got[t], "in company");
            machine.release(other);
        }
    }
    // Zeros stay zeros, tiny vectors become zero, and numbers that are not finite show.
    for (x, want) in [
        ([0.0, 0.0], [0.0, 0.0]),
        ([1e-38, -1e-38], [0.0, 0.0]),
        ([1.0, -0.5], [1.0, -0.503_937]),
        ([3e38, -3e38], [3e38, -3e38]),
    ] {
        use element::{Element, I8};
        let unit = I8::unit(|take| x.iter().for_each(|&x| take(x)));
        let got = x.map(|x| I8::to_f32(I8::from_f32(x * I8::inverse(unit))) * unit);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{got} for {want}");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(I8::unit(|take| [x[0], bad, x[1]].iter().for_each(|&x| take(x))).is_nan());
        }
    }
}

/// Only the wanted rows have logits, in order; none is fine too.
pub fn wanted_rows_only(tier: Tier) {
    let shape = shape(32, [4, 2], 16, 40, 50);
    let model = random_model(&shape, Dtype::F32, false, true, 7);
    let mut machine = Machine::new(&model, tier, 2, Dtype::F32, Dtype::F32);
    let tokens = random_tokens(20, 50, 1);
    let (sequence, want) = machine.prefill(&tokens, 20);
    let mut step = Step {
        tokens: tokens.clone(),
        slots: vec![Step::NO_SLOT; 20],
        spans: vec![Span {
            rows: 0..20,
            kind: RowKind::Prefill,
            position: 0,
            pages: 0..sequence.pages.len(),
        }],
        pages: sequence.pages,
        wanted: vec![3, 4, 19],
        ..Step::default()
    };
    let got = machine.run(&step);
    assert!(got[0] == want[3] && got[1] == want[4] && got[2] == want[19]);
    step.wanted.clear();
    assert!(machine.run(&step).is_empty());
}
