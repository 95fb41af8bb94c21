//! 4-bit codes whose errors cancel each other in the products.
//!
//! Let `X` be the inputs of a matrix. A row of weights `w` that becomes `q` changes its products by
//! `(w - q) X^T`. The square of this is `e H e^T`, with `H = X^T X` and `e = w - q`. With
//! Cholesky's `H = L L^T` it is a sum of squares, `sum_j (sum_{i >= j} e_i L_ij)^2`. So codes are
//! chosen from the last column to the first: each code minimises its own square, given the errors
//! of the columns after it. That is GPTQ (Frantar et al. 2022, 2210.17323) in the form of LDLQ
//! (Chee et al. 2023, QuIP, 2307.13304), which needs no inverse of `H`. Columns keep their places,
//! so any kernel can read the result.
//!
//! The scale of a group is searched when its columns are reached. Every candidate gives codes, and
//! the codes give their least-squares scale. The candidate with the least error wins, where each
//! column counts by `L_jj^2`.
//!
//! Rows of `k` weights take `4 k^2` bytes, and `k^2` multiplications per row.

use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::quant::Quant;
use crate::quant::int4::{RANGE, inverse, rounded};
use crate::{Error, Result, reserve};
use std::sync::Mutex;

/// The share of the diagonal's mean that is added to the diagonal of `H`. It is GPTQ's.
const DAMPING: f32 = 0.01;

/// Columns that are factored together, and rows that get their codes together.
const BLOCK: usize = 64;
const ROWS: usize = 16;

/// Candidates for the code of the weight of greatest magnitude.
const DIVISORS: [f32; 16] = [
    -6.4, -6.8, -7.2, -7.6, -8.0, -8.4, -8.8, -9.6, 5.6, 6.0, 6.4, 6.8, 7.2, 7.6, 8.0, 8.8,
];

/// The factor `L` for matrices of one width.
pub(super) struct Feedback {
    k: usize,
    /// `[k, k]`; numbers above the diagonal have no meaning.
    l: Vec<f32>,
    /// One over the diagonal.
    inverse: Vec<f32>,
}

impl Feedback {
    /// Factors `h`, `[k, k]`, with the threads of `cpu`.
    ///
    /// # Errors
    /// [`Error::Internal`] if `h` has a number that is not finite.
    pub fn new(cpu: &Cpu, k: usize, mut h: Vec<f32>) -> Result<Feedback> {
        let mean = (0..k).map(|i| f64::from(h[i * k + i])).sum::<f64>() / k as f64;
        // Any input that is not finite makes a number of the diagonal not finite.
        if !mean.is_finite() {
            return Err(Error::Internal("inputs of a matrix are not finite".into()));
        }
        // If all inputs are zero, every weight is rounded by itself.
        let damping = (DAMPING * mean as f32).max(f32::MIN_POSITIVE);
        for i in 0..k {
            h[i * k + i] += damping;
        }
        cholesky(cpu, k, &mut h, damping);
        let mut inverse = reserve::room("a diagonal", k)?;
        inverse.extend((0..k).map(|i| 1.0 / h[i * k + i]));
        Ok(Feedback { k, l: h, inverse })
    }

    /// Computes the codes and scales of rows, in int4's form ([`Quant::encode`]). A row does not
    /// depend on other rows.
    pub fn encode(&self, cpu: &Cpu, values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        let (width, n_scales) = (Quant::Int4.code_bytes(self.k), Quant::Int4.scales(self.k));
        let values = values.chunks(ROWS * self.k);
        let codes = codes.chunks_mut(ROWS * width);
        let scales = scales.chunks_mut(ROWS * n_scales);
        let tasks: Vec<_> = values.zip(codes).zip(scales).map(Mutex::new).collect();
        cpu.each(tasks.len(), &|i| {
            let mut task = tasks[i].lock().unwrap_or_else(|e| e.into_inner());
            let ((values, codes), scales) = &mut *task;
            self.rows(values, codes, scales);
        });
    }

    fn rows(&self, values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
        let k = self.k;
        let (width, n_scales) = (Quant::Int4.code_bytes(k), Quant::Int4.scales(k));
        let n = values.len() / k;
        // For each column j: the sum of `e_i L_ij` over the columns i after it.
        let mut behind = vec![0.0f32; n * k];
        let (mut step, mut per_step) = ([0.0f32; ROWS], [0.0f32; ROWS]);
        for group in (0..n_scales).rev() {
            let cols = 32 * group..k.min(32 * group + 32);
            for row in 0..n {
                let (mut wanted, mut weight) = ([0.0; 32], [0.0; 32]);
                for (j, col) in cols.clone().enumerate() {
                    let at = row * k + col;
                    wanted[j] = values[at] + behind[at] * self.inverse[col];
                    weight[j] = self.l[col * k + col].powi(2);
                }
                let scale = scale(&wanted, &weight);
                (step[row], per_step[row]) = (scale, inverse(scale));
                scales[row * n_scales + group] = scale;
            }
            for col in cols.rev() {
                let line = &self.l[col * k..col * k + col];
                for row in 0..n {
                    let at = row * k + col;
                    let wanted = values[at] + behind[at] * self.inverse[col];
                    let code = (wanted * per_step[row]).clamp(-8.0, 7.0).round_ties_even();
                    let error = values[at] - code * step[row];
                    let shift = 4 - 4 * (col % 2);
                    codes[row * width + col / 2] |= ((code + 8.0) as u8) << shift;
                    let behind = &mut behind[row * k..row * k + col];
                    for (sum, l) in behind.iter_mut().zip(line) {
                        *sum += error * l;
                    }
                }
            }
        }
    }
}

/// The scale of a group, in which each number counts by its `weight`.
fn scale(x: &[f32; 32], weight: &[f32; 32]) -> f32 {
    let mut top = x[0];
    for &x in x {
        top = if x.abs() > top.abs() { x } else { top };
    }
    if top.is_nan() {
        return f32::NAN;
    }
    if top.abs() < RANGE[0] {
        return 0.0;
    }
    let max = top.clamp(-RANGE[1], RANGE[1]);
    let (mut best, mut scale) = (-1.0, 0.0);
    for divisor in DIVISORS {
        let inverse = divisor / max;
        let (mut product, mut square) = (0.0f32, f32::MIN_POSITIVE);
        for (&x, &weight) in x.iter().zip(weight) {
            let q = (x * inverse).clamp(-8.0, 7.0).round_ties_even();
            product += weight * x * q;
            square += weight * q * q;
        }
        let gain = product * (product / square);
        if gain > best {
            (best, scale) = (gain, product / square);
        }
    }
    rounded(scale)
}

/// Replaces the lower triangle of `a`, `[k, k]`, by its Cholesky factor. A pivot that rounding
/// leaves below `least` becomes `least`.
fn cholesky(cpu: &Cpu, k: usize, a: &mut [f32], least: f32) {
    for first in (0..k).step_by(BLOCK) {
        let end = k.min(first + BLOCK);
        for row in first..end {
            let (above, from) = a.split_at_mut(row * k);
            let line = &mut from[..k];
            for col in first..row {
                let pivot = &above[col * k..col * k + k];
                line[col] = (line[col] - dot(&line[..col], &pivot[..col])) / pivot[col];
            }
            let pivot = line[row] - dot(&line[..row], &line[..row]);
            line[row] = pivot.max(least).sqrt();
        }
        // The rows below do not depend on each other.
        let (above, below) = a.split_at_mut(end * k);
        let pieces = below.chunks_mut(ROWS * k).map(Mutex::new);
        let pieces: Vec<_> = pieces.collect();
        cpu.each(pieces.len(), &|i| {
            let mut piece = pieces[i].lock().unwrap_or_else(|e| e.into_inner());
            for line in piece.chunks_exact_mut(k) {
                for col in first..end {
                    let pivot = &above[col * k..col * k + k];
                    line[col] = (line[col] - dot(&line[..col], &pivot[..col])) / pivot[col];
                }
            }
        });
    }
}

/// The sum of products, computed as sixteen sums that the compiler keeps in vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests;
