//! Packed weights of floats, and products with them.

use super::*;

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
                    adapter_index: None,
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
        for (dtype, (kind, precision)) in DTYPES.iter().flat_map(|&d| KINDS.map(|k| (d, k))) {
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
            cpu.precision = precision;
            let mat = to_mat(&cpu, &dense, &[n], dtype, MatUse::Product);
            let many: &[usize] = match n {
                40 => &[513, 530, 600],
                97 => &[128, 129],
                _ => &[],
            };
            let few = [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 25, 31, 32, 33, 36, 37, 64,
            ];
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
                    let what = |i| {
                        format!(
                            "{n} x {k} {dtype} {kind:?} {precision:?}, {rows} rows: [{row}, {i}]"
                        )
                    };
                    let rounds = rounds(tier, arithmetic(kind, precision), dtype);
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
    for (dtype, (kind, precision)) in DTYPES.iter().flat_map(|&d| KINDS.map(|k| (d, k))) {
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
        cpu.precision = precision;
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
