//! Products of quantised weights, on every tier.

use super::encoded::{Encoded, Integers, Twin, to_mat, top};
use super::quantised::{cases, hard_weights};
use super::*;
use crate::quant::Quant;
use half::f16;

/// Rows that are multiplied as integers equal their scalar twin bit for bit, however many there
/// are. All rows are within derived bounds of the product of dequantised weights in float64.
pub fn quantised_products_match(tier: Tier) {
    let few = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 18, 19, 20, 21, 24, 25, 29, 33, 36, 64, 65, 75,
    ];
    products_of(tier, cases(), &few, &[576, 577, 1200]);
}

/// The same for one strip of weights and a few numbers of rows: for processors that take
/// microseconds for a product.
pub fn some_quantised_products_match(tier: Tier) {
    let narrow = |&(n, k, _): &(usize, usize, Quant)| (2..=LANES).contains(&n) && k <= 256;
    products_of(tier, cases().filter(narrow), &[1, 2, 8, 33], &[]);
}

/// Rows of one band and of several (`many`) in one shape of each kind alone.
fn products_of(
    tier: Tier,
    cases: impl Iterator<Item = (usize, usize, Quant)>,
    few: &[usize],
    many: &[usize],
) {
    let mut rng = Rng(3);
    for (n, k, quant) in cases {
        let dense = hard_weights(&mut rng, n, k);
        let s = Shape {
            ffn_dim: k,
            ..shape(8, [2, 2], 4, k, n)
        };
        let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 1200, tier).unwrap();
        let encoded = Encoded::new(&dense, &[n], quant);
        let mat = to_mat(&cpu, &dense, &[n], quant);
        let many = if n == 15 { many } else { &[] };
        let counts = || few.iter().chain(many).copied();
        // Eight more, so that even the most rows have several places to be taken from.
        let all = counts().max().unwrap_or(0) + 8;
        let mut wanted = Wanted::new(&encoded, &dense.bias, hard_rows(&mut rng, all, k));
        for rows in counts() {
            // Not from where the last number of rows was taken, so that what a kernel may have kept
            // of those is wrong. A row that has everything is always among them.
            let first = 7 * rows % (all - rows + 1);
            let mut x = cpu.new_buf(rows, k).unwrap();
            let given = &wanted.x[first * k..][..rows * k];
            x.data.copy_from_slice(given);
            let before = rng.vector(rows * n, 1.0);
            for (kind, precision) in KINDS {
                cpu.precision = precision;
                let mut y = cpu.new_buf(rows, n).unwrap();
                y.data.copy_from_slice(&before);
                load_rows(&mut cpu, rows, kind);
                cpu.matmul_add(&mut y, &mat, &x);
                let top = top(tier, kind, precision, quant);
                let what = |at: usize| {
                    let (row, i) = (at / n, at % n);
                    format!("{quant:?} {n} x {k}, {rows} {kind:?} {precision:?} rows: [{row}, {i}]")
                };
                if let Some(top) = top {
                    wanted.add_integers(top, tier);
                }
                let integers = top.and_then(|top| wanted.up_to(top));
                for (at, (&got, &start)) in y.data.iter().zip(&before).enumerate() {
                    let among_all = first * n + at;
                    let want = wanted.products[among_all] + f64::from(start);
                    let size = wanted.sizes[among_all];
                    let mut bound = (k + 8) as f64 * 2f64.powi(-24) * (size + want.abs() + 2.0);
                    if let Some(integers) = integers {
                        assert_eq!(got, start + integers.results[among_all], "{}", what(at));
                        bound += integers.slack[among_all];
                    } else if tier.amx().is_some() {
                        // Two factors, each within 2^-8 of its value; subnormals are lost.
                        bound += 1.01 * 2f64.powi(-7) * size + 1e-30;
                    }
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= bound,
                        "{} {got} for {want}: {error:e} {bound:e}",
                        what(at)
                    );
                }
            }
        }
    }
}

/// Random activations, among them rows with an outlier, a subnormal, or a group of zeros. Every
/// seventh row has all of them.
fn hard_rows(rng: &mut Rng, rows: usize, k: usize) -> Vec<f32> {
    let mut all = rng.vector(rows * k, 1.0);
    let zeros = if k > 64 { 33 } else { 0 };
    for (r, x) in all.chunks_mut(k).enumerate() {
        let everything = r % 7 == 0;
        let (first, others) = x.split_at_mut(zeros);
        let place = k / 3 + 5 * r;
        let beside = place + (k / 4).max(1);
        if everything || r % 3 == 0 {
            others[place % others.len()] = 100.0;
        }
        if everything || r % 4 == 1 {
            others[beside % others.len()] = 1e-39;
        }
        if everything || r % 5 == 2 {
            first.fill(0.0);
        }
    }
    all
}

/// What rows of activations should give with a matrix, row by row. It takes far longer than a
/// product on any tier, so it is computed once, for all numbers of rows and all kinds.
struct Wanted<'a> {
    of: &'a Encoded,
    exact: Dense,
    twin: Twin<'a>,
    x: Vec<f32>,
    /// In float64, with the bias.
    products: Vec<f64>,
    /// Against what sums are rounded.
    sizes: Vec<f64>,
    as_integers: Vec<WantedIntegers>,
}

/// The same of activations that are integers up to a greatest one.
struct WantedIntegers {
    top: f32,
    /// With the bias.
    results: Vec<f32>,
    /// How far this may be from the product in float64, beside rounding.
    slack: Vec<f64>,
}

impl<'a> Wanted<'a> {
    fn new(of: &'a Encoded, bias: &[f32], x: Vec<f32>) -> Self {
        let (exact, twin) = (of.decode(bias), of.twin());
        let (mut products, mut sizes) = (Vec::new(), Vec::new());
        for x in x.chunks(exact.cols) {
            let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            products.extend(exact.product(&wide));
            sizes.extend((0..exact.rows()).map(|i| twin.magnitude(i, &wide)));
        }
        Self {
            of,
            exact,
            twin,
            x,
            products,
            sizes,
            as_integers: Vec::new(),
        }
    }

    /// With integers up to this one, if they were added.
    fn up_to(&self, top: f32) -> Option<&WantedIntegers> {
        self.as_integers.iter().find(|of| of.top == top)
    }

    /// Computes them if they are not there yet.
    fn add_integers(&mut self, top: f32, tier: Tier) {
        if self.up_to(top).is_some() {
            return;
        }
        let (n, k) = (self.exact.rows(), self.exact.cols);
        let fused = !matches!(tier, Tier::Portable(_));
        // Sums of 32 magnitudes, as many as begin in a row, row by row.
        let groups = k.div_ceil(32);
        let sums: Vec<f64> = (0..n)
            .flat_map(|i| self.exact.row(i).chunks(32))
            .map(|w| w.iter().map(|w| f64::from(w.abs())).sum())
            .collect();
        let (mut results, mut slack) = (Vec::new(), Vec::new());
        for x in self.x.chunks(k) {
            let integers = Integers::new(x, top);
            // Half a step of the activations, for every weight of 32.
            let step = |x: &[f32]| {
                let max = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                f64::from(max) * 0.51 / f64::from(top) + 1e-30
            };
            let steps: Vec<f64> = x.chunks(32).map(step).collect();
            // And half a step of the table.
            let magnitude = |x: &[f32]| x.iter().map(|x| f64::from(x.abs())).sum::<f64>();
            let of_table: Vec<f64> = match self.of.quant {
                Quant::Nf4 => x.chunks(32).map(|x| 1.3e-4 * magnitude(x)).collect(),
                _ => Vec::new(),
            };
            for i in 0..n {
                results.push(self.twin.product(i, &integers, fused) + self.exact.bias[i]);
                let sums = &sums[i * groups..][..groups];
                let of_steps: f64 = steps.iter().zip(sums).map(|(step, sum)| step * sum).sum();
                let scale = |g: usize| f16::from_bits(self.of.scales(i)[g / 2]).to_f64().abs();
                let of_table = of_table.iter().enumerate().map(|(g, x)| scale(g) * x);
                slack.push(of_steps + of_table.sum::<f64>());
            }
        }
        self.as_integers.push(WantedIntegers {
            top,
            results,
            slack,
        });
    }
}
