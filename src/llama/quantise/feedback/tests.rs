use super::super::gram::{Adder, Gram};
use super::*;
use crate::checkpoint::quantised::Encoder;
use half::f16;

/// Numbers in -1..1 that look like chance.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Inputs of a few directions. Some are much greater than others, as in models.
fn inputs(rows: usize, k: usize) -> Vec<f32> {
    let (few, hidden) = (12, numbers(rows * 12, 5));
    let (mix, noise) = (numbers(few * k, 6), numbers(rows * k, 7));
    let mut x = noise;
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        for (col, x) in x.iter_mut().enumerate() {
            *x *= 0.1;
            for i in 0..few {
                *x += hidden[row * few + i]
                    * mix[i * k + col]
                    * if col % 37 == 0 { 8.0 } else { 1.0 };
            }
        }
    }
    x
}

/// The square of the change that codes make in the products with `x`.
fn error(w: &[f32], codes: &[u8], scales: &[f32], x: &[f32], k: usize) -> f64 {
    let (width, n_scales) = (Quant::Int4.code_bytes(k), Quant::Int4.scales(k));
    let mut sum = 0.0;
    for (row, w) in w.chunks_exact(k).enumerate() {
        let mut q = vec![0.0; k];
        let scales = &scales[row * n_scales..][..n_scales];
        let halves: Vec<u16> = scales.iter().map(|&s| f16::from_f32(s).to_bits()).collect();
        Quant::Int4.decode(&codes[row * width..][..width], &halves, &mut q);
        for x in x.chunks_exact(k) {
            let terms = w.iter().zip(&q).zip(x);
            let product: f64 = terms.map(|((w, q), x)| f64::from((w - q) * x)).sum();
            sum += product * product;
        }
    }
    sum
}

fn gram(adder: &mut Adder, k: usize, x: &[f32], rows: usize) -> Vec<f32> {
    let mut gram = Gram::new(adder, k).unwrap();
    for x in x.chunks(rows * k) {
        gram.add(adder, x).unwrap();
    }
    gram.sums(adder).unwrap()
}

#[test]
fn sums_are_those_of_float64() {
    let (rows, k) = (32, 77);
    let mut adder = Adder::new(rows, k).unwrap();
    // The last step has fewer rows.
    let x = inputs(2 * rows + 5, k);
    let got = gram(&mut adder, k, &x, rows);
    for (i, got) in got.iter().enumerate() {
        let (a, b) = (i / k, i % k);
        let terms = || x.chunks_exact(k).map(|x| f64::from(x[a]) * f64::from(x[b]));
        let (want, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
        assert!(
            (f64::from(*got) - want).abs() <= 1e-5 * size,
            "{got} {want}"
        );
    }
}

#[test]
fn codes_of_a_calibration_change_products_less() {
    // Whole and partial groups; more and fewer rows than a task has; more columns than a block has.
    for (k, n) in [(96, 20), (77, 3), (200, 17), (32, 1)] {
        let mut adder = Adder::new(64, k).unwrap();
        let x = inputs(4 * k, k);
        let h = gram(&mut adder, k, &x, 64);
        let feedback = Feedback::new(&adder.cpu, k, h).unwrap();
        let w = numbers(n * k, 9);
        let made = |encode: &Encoder<'_>| {
            let mut codes = vec![0; n * Quant::Int4.code_bytes(k)];
            let mut scales = vec![0.0; n * Quant::Int4.scales(k)];
            encode(&w, &mut codes, &mut scales);
            (codes, scales)
        };
        let cpu = &adder.cpu;
        let (codes, scales) = made(&|w, codes, scales| feedback.encode(cpu, w, codes, scales));
        let other = inputs(300, k);
        let (plain_codes, plain_scales) = made(&|w, c, s| Quant::Int4.encode(k, w, c, s));
        for x in [&x, &other] {
            let got = error(&w, &codes, &scales, x, k);
            let plain = error(&w, &plain_codes, &plain_scales, x, k);
            assert!(got < 0.6 * plain, "{k} {n}: {got} {plain}");
        }
        // A row does not depend on other rows.
        let last = (n - 1) * k;
        let (width, n_scales) = (Quant::Int4.code_bytes(k), Quant::Int4.scales(k));
        let (mut code, mut scale) = (vec![0; width], vec![0.0; n_scales]);
        feedback.encode(cpu, &w[last..], &mut code, &mut scale);
        assert_eq!(code, codes[(n - 1) * width..]);
        assert_eq!(scale, scales[(n - 1) * n_scales..]);
    }
}

/// If all inputs are zero, or those of a column, the weights are rounded by themselves.
#[test]
fn columns_that_are_never_used_do_no_harm() {
    let k = 64;
    let adder = Adder::new(64, k).unwrap();
    let w = numbers(k, 3);
    let mut some = vec![0.0; k * k];
    some[0] = 4.0;
    for h in [vec![0.0; k * k], some] {
        let feedback = Feedback::new(&adder.cpu, k, h).unwrap();
        let (mut codes, mut scales) = (vec![0; k / 2], vec![0.0; 2]);
        feedback.encode(&adder.cpu, &w, &mut codes, &mut scales);
        let halves: Vec<u16> = scales.iter().map(|&s| f16::from_f32(s).to_bits()).collect();
        let mut q = vec![0.0; k];
        Quant::Int4.decode(&codes, &halves, &mut q);
        assert!(w.iter().zip(&q).all(|(w, q)| (w - q).abs() < 0.15), "{q:?}");
    }
    let h = vec![f32::NAN; k * k];
    assert!(Feedback::new(&adder.cpu, k, h).is_err());
}
