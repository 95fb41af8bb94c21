//! The kernels against their scalar twins, the same suite on every tier, and against themselves:
//! whatever must not change a result is compared with `==`.

use super::scalar::{self, Dense, rounded};
use super::simd::{Kernel, LANES, Simd};
use super::*;
use crate::Token;
use crate::backend::{MatUse, RowKind, RowOrder, Span, Weights};
use crate::model::forward::{Scratch, forward};

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// xorshift64*: numbers for tests.
#[derive(Clone)]
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
    /// Uniform in (-1, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    fn vector(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &x in values {
        match dtype {
            Dtype::F32 => bytes.extend(x.to_le_bytes()),
            Dtype::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
            Dtype::Bf16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
        }
    }
    bytes
}

/// Every number of a packed matrix, `[rows of all parts, cols]`, read back one by one.
fn unpack(mat: &CpuMat) -> Vec<f32> {
    let mut out = Vec::new();
    for part in &mat.parts {
        for row in 0..part.rows {
            for k in 0..mat.cols {
                let at = match mat.usage {
                    MatUse::Lookup => (part.first + row) * mat.cols + k,
                    MatUse::Product => {
                        let strip = (part.first + row / LANES) * mat.strip_len();
                        strip
                            + with_element!(mat.dtype, E => <E as element::Element>::index(k, row % LANES))
                    }
                };
                out.push(with_element!(mat.dtype, E => {
                    <E as element::Element>::to_f32(<E as element::Element>::bits(&mat.data)[at])
                }));
            }
        }
    }
    out
}

/// The tier, or a word that this processor does not have it.
fn tier(name: &str) -> Option<Tier> {
    let tier = Tier::named(name);
    if let Err(e) = &tier {
        println!("skipped: {e}");
    }
    tier.ok()
}

fn shape(dim: usize, heads: [usize; 2], head_dim: usize, ffn_dim: usize, vocab: usize) -> Shape {
    Shape {
        dim,
        n_layers: 2,
        n_heads: heads[0],
        n_kv_heads: heads[1],
        head_dim,
        ffn_dim,
        vocab_size: vocab,
        norm_eps: 1e-5,
    }
}

fn rope(head_dim: usize, positions: usize) -> RopeTable {
    let half = head_dim / 2;
    let angle = |i: usize| {
        let frequency = 10000f64.powf(-((i % half) as f64) / half as f64);
        (i / half) as f64 * frequency
    };
    RopeTable {
        cos: (0..positions * half)
            .map(|i| angle(i).cos() as f32)
            .collect(),
        sin: (0..positions * half)
            .map(|i| angle(i).sin() as f32)
            .collect(),
    }
}

/// A model with random weights, as the oracle knows it; already rounded to `dtype`.
fn random_model(shape: &Shape, dtype: Dtype, bias: bool, tied: bool, seed: u64) -> scalar::Model {
    let mut rng = Rng(seed | 1);
    let mut dense = |rows: usize, cols: usize, bias: bool| Dense {
        weights: {
            let w = rng.vector(rows * cols, 2.0 / (cols as f32).sqrt());
            w.into_iter().map(|x| rounded(dtype, x)).collect()
        },
        cols,
        bias: if bias {
            rng.vector(rows, 0.5)
        } else {
            Vec::new()
        },
    };
    let (dim, ffn, vocab) = (shape.dim, shape.ffn_dim, shape.vocab_size);
    let mut layers = Vec::new();
    for _ in 0..shape.n_layers {
        layers.push(scalar::Layer {
            attention_norm: Vec::new(),
            wqkv: dense(shape.q_dim() + 2 * shape.kv_dim(), dim, bias),
            wo: dense(dim, shape.q_dim(), bias),
            ffn_norm: Vec::new(),
            w13: dense(2 * ffn, dim, false),
            w2: dense(dim, ffn, false),
        });
    }
    let embedding = dense(vocab, dim, false);
    let head = (!tied).then(|| dense(vocab, dim, false));
    let mut norm = || {
        (0..dim)
            .map(|_| 1.0 + 0.3 * rng.unit())
            .collect::<Vec<f32>>()
    };
    for layer in &mut layers {
        layer.attention_norm = norm();
        layer.ffn_norm = norm();
    }
    let norm = norm();
    scalar::Model {
        shape: shape.clone(),
        rope: rope(shape.head_dim, 1024),
        embedding,
        layers,
        norm,
        head,
    }
}

/// Pack `dense` in blocks of a few rows.
fn to_mat(cpu: &Cpu, dense: &Dense, parts: &[usize], dtype: Dtype, usage: MatUse) -> CpuMat {
    let bias = !dense.bias.is_empty();
    let spec = MatSpec {
        parts: parts.to_vec(),
        cols: dense.cols,
        dtype,
        bias,
        usage,
    };
    let mut mat = cpu.new_mat(&spec).unwrap();
    let mut first = 0;
    for (part, &rows) in parts.iter().enumerate() {
        for row in (0..rows).step_by(37) {
            let end = (row + 37).min(rows);
            let values = &dense.weights[(first + row) * dense.cols..(first + end) * dense.cols];
            let bytes = encode(dtype, values);
            let order = RowOrder::AsStored;
            cpu.pack(
                &mut mat,
                &Block {
                    part,
                    row,
                    col: 0,
                    cols: dense.cols,
                    order,
                    dtype,
                    bytes: &bytes,
                },
            );
        }
        if bias {
            cpu.set_bias(&mut mat, part, &dense.bias[first..first + rows]);
        }
        first += rows;
    }
    mat
}

/// A model on the CPU backend, with its pages given out at random and full of NaN.
struct Machine {
    cpu: Cpu,
    weights: Weights<Cpu>,
    kv: CpuKv,
    scratch: Scratch<Cpu>,
    free: Vec<u32>,
}

/// A sequence and its pages.
#[derive(Clone, Default)]
struct Sequence {
    pages: Vec<u32>,
    len: usize,
}

impl Machine {
    fn new(model: &scalar::Model, tier: Tier, threads: usize, dtype: Dtype, kv: Dtype) -> Machine {
        let shape = &model.shape;
        let (max_rows, n_pages) = (320, 200);
        let cpu = Cpu::with_tier(shape, model.rope.clone(), threads, max_rows, tier).unwrap();
        let product = |d: &Dense, parts: &[usize]| to_mat(&cpu, d, parts, dtype, MatUse::Product);
        let layers = model.layers.iter().enumerate().map(|(index, l)| Layer {
            index,
            attention_norm: cpu.new_vector(&l.attention_norm).unwrap(),
            wqkv: product(&l.wqkv, &[shape.q_dim(), shape.kv_dim(), shape.kv_dim()]),
            wo: product(&l.wo, &[shape.dim]),
            ffn_norm: cpu.new_vector(&l.ffn_norm).unwrap(),
            w13: product(&l.w13, &[shape.ffn_dim; 2]),
            w2: product(&l.w2, &[shape.dim]),
        });
        let usage = if model.head.is_some() {
            MatUse::Lookup
        } else {
            MatUse::Product
        };
        let weights = Weights {
            layers: layers.collect(),
            embedding: to_mat(&cpu, &model.embedding, &[shape.vocab_size], dtype, usage),
            norm: cpu.new_vector(&model.norm).unwrap(),
            head: model.head.as_ref().map(|h| product(h, &[shape.vocab_size])),
        };
        let scratch = Scratch {
            x: cpu.new_buf(max_rows, shape.dim).unwrap(),
            q: cpu.new_buf(max_rows, shape.q_dim()).unwrap(),
            y: cpu.new_buf(max_rows, shape.q_dim()).unwrap(),
            h: cpu.new_buf(max_rows, shape.ffn_dim).unwrap(),
            logits: cpu.new_buf(max_rows, shape.vocab_size).unwrap(),
        };
        let mut pool = cpu.new_kv(n_pages, kv).unwrap();
        with_element!(kv, E => {
            let nan = <E as element::Element>::from_f32(f32::NAN);
            <E as element::Element>::bits_mut(&mut pool.data).fill(nan);
        });
        let mut free: Vec<u32> = (0..n_pages as u32).collect();
        let mut rng = Rng(99);
        for i in (1..free.len()).rev() {
            free.swap(i, rng.below(i + 1));
        }
        Machine {
            cpu,
            weights,
            kv: pool,
            scratch,
            free,
        }
    }

    /// One step over some sequences; all rows' logits, row by row.
    fn step(&mut self, work: &mut [(&mut Sequence, &[Token], RowKind)]) -> Vec<Vec<f32>> {
        let mut step = Step::default();
        for (sequence, tokens, kind) in work {
            let start = step.tokens.len();
            step.tokens.extend_from_slice(tokens);
            let end = sequence.len + tokens.len();
            while sequence.pages.len() * PAGE < end {
                sequence.pages.push(self.free.pop().unwrap());
            }
            for position in sequence.len..end {
                step.slots
                    .push(sequence.pages[position / PAGE] * PAGE as u32 + (position % PAGE) as u32);
            }
            let pages = step.pages.len();
            step.pages.extend_from_slice(&sequence.pages);
            step.spans.push(Span {
                rows: start..step.tokens.len(),
                kind: *kind,
                position: sequence.len,
                pages: pages..step.pages.len(),
            });
            sequence.len = end;
        }
        step.wanted = (0..step.tokens.len() as u32).collect();
        self.run(&step)
    }

    fn run(&mut self, step: &Step) -> Vec<Vec<f32>> {
        self.cpu.load_step(step);
        forward(
            &mut self.cpu,
            &self.weights,
            &mut self.kv,
            &mut self.scratch,
        );
        let width = self.scratch.logits.width;
        let logits = self.cpu.read(&self.scratch.logits).unwrap();
        assert_eq!(logits.len(), step.wanted.len() * width);
        logits.chunks(width).map(<[f32]>::to_vec).collect()
    }

    /// The logits of a new sequence, prefilled in chunks.
    fn prefill(&mut self, tokens: &[Token], chunk: usize) -> (Sequence, Vec<Vec<f32>>) {
        let (mut sequence, mut out) = (Sequence::default(), Vec::new());
        for tokens in tokens.chunks(chunk) {
            out.extend(self.step(&mut [(&mut sequence, tokens, RowKind::Prefill)]));
        }
        (sequence, out)
    }

    fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages);
    }
}

fn random_tokens(n: usize, vocab: usize, seed: u64) -> Vec<Token> {
    let mut rng = Rng(seed | 1);
    (0..n).map(|_| rng.below(vocab) as Token).collect()
}

fn assert_close(got: &[Vec<f32>], want: &[Vec<f64>], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(g) - w).abs() / scale;
            assert!(
                error <= tolerance,
                "{what}: row {row}, logit {i}: {g} for {w}, {error:e}"
            );
        }
    }
}

/// `f` on a slice of lanes.
struct Map<'a, F> {
    x: &'a mut [f32],
    f: F,
}

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Silu,
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
            };
            s.store_partial(y, x);
        }
    }
}

/// Widen every u16, narrow back.
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
        for i in 0..LANES {
            a[i] = s.load(&self.0[i]);
        }
        let a = s.transpose(a);
        for i in 0..LANES {
            s.store(a[i], &mut self.0[i]);
        }
    }
}

/// The suite: each `fn` takes a tier.
mod suite {
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
            let ulp =
                f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
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

    /// Blocks in any order of rows, any rectangle, any dtype, at odd addresses.
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
                        parts: parts.clone(),
                        cols,
                        dtype: kept,
                        bias: false,
                        usage,
                    };
                    let mut mat = cpu.new_mat(&spec).unwrap();
                    let total: usize = parts.iter().sum();
                    let mut want = vec![0.0; total * cols];
                    let mut first = 0;
                    for (part, &rows) in parts.iter().enumerate() {
                        let order = match head_dim {
                            0 => RowOrder::AsStored,
                            head_dim => RowOrder::HalvesToPairs { head_dim },
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
        ] {
            for dtype in DTYPES {
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
                // Wide enough scratch for any k.
                let s = Shape {
                    ffn_dim: k,
                    ..shape(8, [2, 2], 4, k, n)
                };
                let mut cpu = Cpu::with_tier(&s, rope(4, 16), 2, 40, tier).unwrap();
                let mat = to_mat(&cpu, &dense, &[n], dtype, MatUse::Product);
                for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33] {
                    let mut x = cpu.new_buf(rows, k).unwrap();
                    x.data.copy_from_slice(&rng.vector(rows * k, 1.0));
                    x.data[rows * k / 3] = 100.0;
                    let mut y = cpu.new_buf(rows, n).unwrap();
                    y.data.copy_from_slice(&rng.vector(rows * n, 1.0));
                    let before = y.data.to_vec();
                    cpu.step.tokens.resize(rows, 0);
                    cpu.matmul_add(&mut y, &mat, &x);
                    for row in 0..rows {
                        let x: Vec<f64> =
                            x.data[row * k..][..k].iter().map(|&x| x.into()).collect();
                        let (want, size) = (dense.product(&x), dense.magnitude(&x));
                        for i in 0..n {
                            let want = want[i] + f64::from(before[row * n + i]);
                            // k + 2 roundings, each within half an ulp of a partial sum.
                            let bound =
                                (k + 4) as f64 * 2f64.powi(-24) * (size[i] + want.abs() + 2.0);
                            let got = f64::from(y.data[row * n + i]);
                            assert!(
                                (got - want).abs() <= bound,
                                "{n} x {k} {dtype}, {rows} rows: [{row}, {i}] {got} for {want}"
                            );
                        }
                    }
                }
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
                    let mut panels = Panels::new(rows, width).unwrap();
                    let norm = Some(Norm {
                        weight: &weight,
                        eps: 1e-5,
                    });
                    // What lay there before must not shine through the padding.
                    panels.fill(
                        &pool,
                        tier,
                        side,
                        rows,
                        |_| &[f32::NAN; 2000][..width],
                        None,
                    );
                    panels.fill(&pool, tier, side, rows, |i| &x[i * width..][..width], norm);
                    for row in 0..rows.next_multiple_of(side) {
                        let at = |k: usize| {
                            panels.data()[(row / side * panels.cols + k) * side + row % side]
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
                // With a 16-bit cache, a last-bit difference before rounding may become one of
                // 2^-9 or 2^-11 in one of the numbers of K or V.
                let tolerance = match kv {
                    Dtype::F32 => 1e-5,
                    Dtype::F16 => 2e-4,
                    Dtype::Bf16 => 1e-3,
                };
                assert_close(&got, &want, tolerance, &format!("{shape:?} {dtype} {kv}"));
            }
        }
    }

    /// Long enough for several chunks of keys, with heads of the usual widths.
    pub fn long_sequences_match(tier: Tier) {
        for (heads, head_dim) in [([2, 2], 64), ([4, 1], 128), ([16, 2], 16)] {
            let shape = shape(32, heads, head_dim, 32, 40);
            let model = random_model(&shape, Dtype::F32, false, false, 31);
            let mut machine = Machine::new(&model, tier, 2, Dtype::F32, Dtype::F32);
            let tokens = random_tokens(530, 40, 9);
            let want = model.logits(&tokens, Dtype::F32);
            let (sequence, got) = machine.prefill(&tokens, 300);
            assert_close(&got, &want, 2e-5, &format!("{heads:?} {head_dim}"));
            machine.release(sequence);
        }
    }

    /// Law four: alone or in company, on one thread or three, in chunks or whole, by decode steps
    /// or by prefill: the same bits.
    pub fn company_threads_and_chunks_change_nothing(tier: Tier) {
        for (dtype, kv, heads, head_dim) in [
            (Dtype::Bf16, Dtype::Bf16, [8, 2], 32),
            (Dtype::F32, Dtype::F32, [6, 6], 10),
            (Dtype::F16, Dtype::F16, [8, 1], 64),
        ] {
            let shape = shape(48, heads, head_dim, 100, 70);
            let model = random_model(&shape, dtype, true, false, 5);
            let tokens = random_tokens(300, 70, 21);
            let mut reference = Machine::new(&model, tier, 1, dtype, kv);
            let (sequence, want) = reference.prefill(&tokens, tokens.len());
            reference.release(sequence);
            for threads in [1, 2, 3] {
                let mut machine = Machine::new(&model, tier, threads, dtype, kv);
                for chunk in [7, 64, 300] {
                    let (sequence, got) = machine.prefill(&tokens, chunk);
                    assert!(got == want, "{threads} threads, chunks of {chunk}");
                    machine.release(sequence);
                }
                // Decode, token by token, past a boundary of chunks.
                let (mut sequence, _) = machine.prefill(&tokens[..250], 100);
                for t in 250..270 {
                    let token = &tokens[t..t + 1];
                    let got = machine.step(&mut [(&mut sequence, token, RowKind::Decode)]);
                    assert!(got[0] == want[t], "{threads} threads, decode at {t}");
                }
                machine.release(sequence);
                // In company of one to eight others.
                let others: Vec<Vec<Token>> = (0..8)
                    .map(|i| random_tokens(20 + 37 * i, 70, 70 + i as u64))
                    .collect();
                let mut company: Vec<Sequence> = others
                    .iter()
                    .map(|tokens| machine.prefill(tokens, 100).0)
                    .collect();
                for n in [1, 2, 5, 7, 8] {
                    let (mut sequence, _) = machine.prefill(&tokens[..258], 258);
                    let mut before = company[..n].to_vec();
                    let mut work: Vec<(&mut Sequence, &[Token], RowKind)> = before
                        .iter_mut()
                        .map(|s| (s, &tokens[..1], RowKind::Decode))
                        .collect();
                    work.insert(n / 2, (&mut sequence, &tokens[258..259], RowKind::Decode));
                    let got = machine.step(&mut work);
                    assert!(got[n / 2] == want[258], "{threads} threads, {n} others");
                    for (i, s) in before.into_iter().enumerate() {
                        company[i].pages = s.pages;
                    }
                    // A prompt in company of decoding rows, in one step.
                    let mut second = Sequence::default();
                    let mut work: Vec<(&mut Sequence, &[Token], RowKind)> =
                        vec![(&mut second, &tokens[..40], RowKind::Prefill)];
                    work.push((&mut sequence, &tokens[259..260], RowKind::Decode));
                    let got = machine.step(&mut work);
                    assert!(got[..40] == want[..40], "{threads} threads, mixed");
                    assert!(got[40] == want[259], "{threads} threads, mixed");
                    machine.release(second);
                    machine.release(sequence);
                }
            }
        }
    }

    /// A row without a slot reads the cache and leaves it alone; copied pages are as good.
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
            element::Data::Single(_) => unreachable!(),
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
            };
            let got = machine.run(&step);
            assert!(got[0] == want[49]);
        }
        let element::Data::Half(after) = &machine.kv.data else {
            unreachable!()
        };
        assert!(before == **after, "the cache was written");
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
        };
        let got = machine.run(&step);
        assert!(got[0] == want[3] && got[1] == want[4] && got[2] == want[19]);
        step.wanted.clear();
        assert!(machine.run(&step).is_empty());
    }
}

/// The suite on one tier.
macro_rules! ops_match_scalar {
    ($tier:ident: $($test:ident)*) => {
        mod $tier {
            $(
                #[test]
                fn $test() {
                    if let Some(tier) = super::tier(stringify!($tier)) {
                        super::suite::$test(tier);
                    }
                }
            )*
        }
    };
    ($($tier:ident)*) => {
        $(ops_match_scalar! { $tier:
            exp_is_within_two_ulp
            silu_is_right_at_both_ends
            every_half_number_survives
            narrowing_rounds_to_nearest_even
            transposing_moves_every_lane
            packing_places_every_number
            products_match
            norms_match
            forward_matches
            long_sequences_match
            company_threads_and_chunks_change_nothing
            rows_without_slot_and_copied_pages
            wanted_rows_only
        })*
    };
}

ops_match_scalar!(portable avx2 avx512);

#[test]
fn avx2_and_avx512_agree_in_every_bit() {
    let (Some(avx2), Some(avx512)) = (tier("avx2"), tier("avx512")) else {
        return;
    };
    for (dtype, kv) in DTYPES.iter().flat_map(|&a| DTYPES.map(|b| (a, b))) {
        let shape = shape(40, [8, 2], 24, 50, 61);
        let model = random_model(&shape, dtype, true, false, 3);
        let tokens = random_tokens(280, 61, 2);
        let run = |tier| {
            let mut machine = Machine::new(&model, tier, 2, dtype, kv);
            let (mut sequence, mut out) = machine.prefill(&tokens[..275], 100);
            for t in 275..280 {
                out.extend(machine.step(&mut [(&mut sequence, &tokens[t..=t], RowKind::Decode)]));
            }
            out
        };
        assert!(run(avx2) == run(avx512), "{dtype} weights, {kv} cache");
    }
}

#[test]
fn a_cpu_says_what_it_is() {
    let s = shape(8, [2, 2], 4, 8, 8);
    let make = |threads| {
        Cpu::with_tier(
            &s,
            rope(4, 16),
            threads,
            4,
            Tier::named("portable").unwrap(),
        )
    };
    assert_eq!(make(1).unwrap().description(), "portable, 1 thread");
    assert_eq!(make(3).unwrap().description(), "portable, 3 threads");
    let all = make(0).unwrap().description();
    assert!(
        all.starts_with(&format!("portable, {} ", usable_threads())),
        "{all}"
    );
}

#[test]
fn sizes_that_no_machine_has_are_errors() {
    let s = shape(8, [2, 2], 4, 8, 8);
    let cpu = Cpu::with_tier(&s, rope(4, 16), 1, 4, Tier::best()).unwrap();
    for parts in [
        vec![usize::MAX],
        vec![usize::MAX / 2, usize::MAX / 2],
        vec![1 << 40],
    ] {
        for usage in [MatUse::Product, MatUse::Lookup] {
            let spec = MatSpec {
                parts: parts.clone(),
                cols: 1 << 20,
                dtype: Dtype::F32,
                bias: false,
                usage,
            };
            assert!(matches!(cpu.new_mat(&spec), Err(Error::NoMemory { .. })));
            assert!(Cpu::mat_bytes(&spec) >= 1 << 60);
        }
    }
    assert!(matches!(
        cpu.new_kv(usize::MAX, Dtype::F32),
        Err(Error::NoMemory { .. })
    ));
    assert!(matches!(
        cpu.new_buf(usize::MAX, 2),
        Err(Error::NoMemory { .. })
    ));
    assert!(matches!(
        Cpu::new(&s, rope(4, 16), 1, usize::MAX),
        Err(Error::NoMemory { .. })
    ));
    let odd = Shape {
        head_dim: 3,
        ..s.clone()
    };
    assert!(matches!(
        Cpu::new(&odd, rope(4, 16), 1, 4),
        Err(Error::InvalidArgument { .. })
    ));
    let uneven = Shape { n_kv_heads: 3, ..s };
    assert!(matches!(
        Cpu::new(&uneven, rope(4, 16), 1, 4),
        Err(Error::InvalidArgument { .. })
    ));
}

#[test]
fn bytes_said_are_bytes_taken() {
    let s = shape(8, [2, 2], 4, 8, 8);
    let cpu = Cpu::with_tier(&s, rope(4, 16), 1, 4, Tier::best()).unwrap();
    let spec = MatSpec {
        parts: vec![17, 3],
        cols: 5,
        dtype: Dtype::Bf16,
        bias: true,
        usage: MatUse::Product,
    };
    let mat = cpu.new_mat(&spec).unwrap();
    let element::Data::Half(m) = &mat.data else {
        unreachable!()
    };
    assert_eq!(
        Cpu::mat_bytes(&spec),
        (2 * m.len() + 4 * mat.bias.len()) as u64
    );
    assert_eq!(Cpu::mat_bytes(&spec), 2 * 3 * 16 * 6 + 4 * 48);
    let kv = cpu.new_kv(3, Dtype::F32).unwrap();
    let element::Data::Single(m) = &kv.data else {
        unreachable!()
    };
    assert_eq!(3 * Cpu::page_bytes(&s, Dtype::F32), 4 * m.len() as u64);
}
