//! The slow twin of every operation: straightforward loops in float64. Kernels are compared with
//! it, and it defines what they compute.

use crate::backend::{RopeTable, Rotation, Shape};
use crate::{Dtype, Token};
use half::{bf16, f16};

/// The value of `x` after it was stored as `dtype` (rounded to nearest even).
pub fn rounded(dtype: Dtype, x: f32) -> f32 {
    match dtype {
        Dtype::F32 => x,
        Dtype::F16 => f16::from_f32(x).to_f32(),
        Dtype::Bf16 => bf16::from_f32(x).to_f32(),
        _ => unreachable!("{dtype} rounds numbers together"),
    }
}

/// The values of one head's vector after it was stored in the cache.
pub fn stored(dtype: Dtype, x: &[f64]) -> Vec<f32> {
    if dtype != Dtype::Int8 {
        return x.iter().map(|&x| rounded(dtype, x as f32)).collect();
    }
    let unit = x.iter().fold(0.0f32, |m, &x| m.max((x as f32).abs())) / 127.0;
    let code = |x: f64| match unit > 1e-30 {
        true => (x as f32 / unit).round_ties_even(),
        false => 0.0,
    };
    x.iter().map(|&x| code(x) * unit).collect()
}

/// The number that an adapter adds to one output, `scale * b . (A x)`, and the same sum over
/// magnitudes. `a: [rank, x.len()]`, `b: [rank]`.
pub fn low_rank(x: &[f64], a: &[f32], b: &[f32], scale: f32) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    for (a, &b) in a.chunks_exact(x.len()).zip(b) {
        let b = f64::from(scale) * f64::from(b);
        let terms = a.iter().zip(x).map(|(&a, x)| f64::from(a) * x);
        sum += b * terms.clone().sum::<f64>();
        size += (b * terms.map(f64::abs).sum::<f64>()).abs();
    }
    (sum, size)
}

/// A matrix of weights, with the values that they have in storage.
#[derive(Clone)]
pub struct Dense {
    /// `[rows, cols]`.
    pub weights: Vec<f32>,
    pub cols: usize,
    /// One for each row, or empty.
    pub bias: Vec<f32>,
}

impl Dense {
    pub fn rows(&self) -> usize {
        self.weights.len() / self.cols
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.weights[i * self.cols..][..self.cols]
    }

    /// `W x + b`.
    pub fn product(&self, x: &[f64]) -> Vec<f64> {
        (0..self.rows())
            .map(|i| {
                let y: f64 = self
                    .row(i)
                    .iter()
                    .zip(x)
                    .map(|(&w, x)| f64::from(w) * x)
                    .sum();
                y + self.bias.get(i).map_or(0.0, |&b| f64::from(b))
            })
            .collect()
    }

    /// `|W| |x|`: rounding errors of the product are proportional to this.
    pub fn magnitude(&self, x: &[f64]) -> Vec<f64> {
        (0..self.rows())
            .map(|i| {
                self.row(i)
                    .iter()
                    .zip(x)
                    .map(|(&w, x)| (f64::from(w) * x).abs())
                    .sum()
            })
            .collect()
    }
}

/// One output of a product with bfloat16 tiles (`tdpbf16ps`, Intel SDM volume 2). Both inputs are
/// rounded to bfloat16. k goes in tiles of 32; the even and the odd k of a tile each are a chain of
/// fused multiply-adds from zero, and their sum is added to the output. Subnormals count as zero.
pub fn tile_product(w: &[f32], x: &[f32]) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0.0 } else { x };
    let half = |x: &f32| flush(rounded(Dtype::Bf16, *x));
    let mut sum = 0f32;
    for (w, x) in w.chunks(32).zip(x.chunks(32)) {
        let mut parts = [0f32; 2];
        for (k, (w, x)) in w.iter().zip(x).enumerate() {
            parts[k % 2] = flush(half(w).mul_add(half(x), parts[k % 2]));
        }
        sum = flush(sum + flush(parts[0] + parts[1]));
    }
    sum
}

pub fn rms_norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(x, &w)| x * scale * f64::from(w))
        .collect()
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Rotates the neighbouring pairs of one head.
pub fn rotate(x: &mut [f64], rope: &RopeTable, position: usize) {
    let half = x.len() / 2;
    for i in 0..half {
        let (c, s) = (rope.cos[position * half + i], rope.sin[position * half + i]);
        let (c, s) = (f64::from(c), f64::from(s));
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        (x[2 * i], x[2 * i + 1]) = (a * c - b * s, a * s + b * c);
    }
}

/// One query over keys and values, each `[positions][head_dim]`.
pub fn attention(q: &[f64], k: &[&[f32]], v: &[&[f32]]) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let dot = |k: &&[f32]| {
        q.iter()
            .zip(*k)
            .map(|(q, &k)| q * f64::from(k))
            .sum::<f64>()
            * scale
    };
    let scores: Vec<f64> = k.iter().map(dot).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let p: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = p.iter().sum();
    let mut y = vec![0.0; q.len()];
    for (p, v) in p.iter().zip(v) {
        for (y, &v) in y.iter_mut().zip(*v) {
            *y += p / sum * f64::from(v);
        }
    }
    y
}

/// One layer's weights.
#[derive(Clone)]
pub struct Layer {
    pub attention_norm: Vec<f32>,
    pub wqkv: Dense,
    /// The norms of the heads of q and of the heads of k.
    pub head_norms: Option<[Vec<f32>; 2]>,
    /// When the heads of q and of k are rotated.
    pub rotation: Rotation,
    /// The largest number of keys that a row sees.
    pub window: Option<usize>,
    pub wo: Dense,
    pub ffn_norm: Vec<f32>,
    pub w13: Dense,
    pub w2: Dense,
    /// The factor of the outputs of `wo` and `w2`.
    pub scale: f32,
}

/// A whole model.
#[derive(Clone)]
pub struct Model {
    pub shape: Shape,
    pub rope: RopeTable,
    pub embedding: Dense,
    pub layers: Vec<Layer>,
    pub norm: Vec<f32>,
    pub head: Option<Dense>,
}

impl Model {
    /// Logits of every position of one sequence; K and V are rounded to `kv` on their way.
    pub fn logits(&self, tokens: &[Token], kv: Dtype) -> Vec<Vec<f64>> {
        self.logits_rounding(tokens, kv, |_, x| x)
    }

    /// Logits where products take `round(head, x)` for activations `x`; `head` says whether it is
    /// the product of the head.
    pub fn logits_rounding(
        &self,
        tokens: &[Token],
        kv: Dtype,
        round: impl Fn(bool, Vec<f64>) -> Vec<f64>,
    ) -> Vec<Vec<f64>> {
        let Shape {
            n_heads,
            n_kv_heads,
            head_dim,
            ffn_dim,
            norm_eps,
            ..
        } = self.shape;
        let (q_dim, kv_dim) = (self.shape.q_dim(), self.shape.kv_dim());
        let store = |x: &[f64]| {
            x.chunks(head_dim)
                .flat_map(|x| stored(kv, x))
                .collect::<Vec<f32>>()
        };
        let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let mut x: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&t| widen(self.embedding.row(t as usize)))
            .collect();
        for layer in &self.layers {
            let mut queries = Vec::new();
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in x.iter().enumerate() {
                let normed = rms_norm(x, &layer.attention_norm, norm_eps);
                let y = layer.wqkv.product(&round(false, normed));
                let (q, rest) = y.split_at(q_dim);
                let (k, v) = rest.split_at(kv_dim);
                let (mut q, mut k) = (q.to_vec(), k.to_vec());
                for (i, heads) in [&mut q, &mut k].into_iter().enumerate() {
                    for head in heads.chunks_mut(head_dim) {
                        if layer.rotation == Rotation::BeforeNorms {
                            rotate(head, &self.rope, position);
                        }
                        if let Some(norms) = &layer.head_norms {
                            head.copy_from_slice(&rms_norm(head, &norms[i], norm_eps));
                        }
                        if layer.rotation == Rotation::AfterNorms {
                            rotate(head, &self.rope, position);
                        }
                    }
                }
                if let Some(&scale) = self.rope.q_scale.get(position) {
                    q.iter_mut().for_each(|x| *x *= f64::from(scale));
                }
                queries.push(q);
                keys.push(store(&k));
                values.push(store(v));
            }
            for (position, x) in x.iter_mut().enumerate() {
                let mut y = Vec::new();
                let window = layer.window.unwrap_or(usize::MAX);
                let seen = (position + 1).saturating_sub(window)..position + 1;
                for head in 0..n_heads {
                    let at = head / (n_heads / n_kv_heads) * head_dim;
                    let k: Vec<&[f32]> = keys[seen.clone()]
                        .iter()
                        .map(|r| &r[at..at + head_dim])
                        .collect();
                    let v: Vec<&[f32]> = values[seen.clone()]
                        .iter()
                        .map(|r| &r[at..at + head_dim])
                        .collect();
                    let q = &queries[position][head * head_dim..][..head_dim];
                    y.extend(attention(q, &k, &v));
                }
                let y = layer.wo.product(&round(false, y));
                add(x, &y, layer.scale);
                let normed = rms_norm(x, &layer.ffn_norm, norm_eps);
                let both = layer.w13.product(&round(false, normed));
                let (gate, up) = both.split_at(ffn_dim);
                let h: Vec<f64> = gate.iter().zip(up).map(|(&g, u)| silu(g) * u).collect();
                let y = layer.w2.product(&round(false, h));
                add(x, &y, layer.scale);
            }
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        x.iter()
            .map(|x| head.product(&round(true, rms_norm(x, &self.norm, norm_eps))))
            .collect()
    }
}

fn add(x: &mut [f64], y: &[f64], scale: f32) {
    let scale = f64::from(scale);
    x.iter_mut().zip(y).for_each(|(x, y)| *x += scale * y);
}
