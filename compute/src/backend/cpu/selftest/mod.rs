//! The kernels against their scalar twins, with the same suite on every tier; and against
//! themselves: whatever must not change a result is compared with `==`.

use super::element::with_element;
use super::rows::Norm;
use super::simd::{Kernel, LANES, Simd};
use super::strips::Finish;
use super::*;
use crate::backend::{
    Backend, Block, Layer, MatSpec, MatUse, PartSpec, QuantBlock, RowKind, RowOrder, Scratch, Span,
    Step, Weights, forward,
};
use crate::{Dtype, Token};
use scalar::{Dense, rounded};

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
            _ => unreachable!("{dtype} is no float"),
        }
    }
    bytes
}

/// Every number of a packed matrix, `[rows of all parts, cols]`, read back one by one.
fn unpack(mat: &CpuMat) -> Vec<f32> {
    let mut out = Vec::new();
    let [mat] = &mat.runs[..] else {
        panic!("several runs")
    };
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

/// Whether this tier multiplies such rows as bfloat16.
fn rounds(tier: Tier, kind: RowKind, dtype: Dtype) -> bool {
    let tiles = tier.has_tiles() && dtype != Dtype::F32;
    kind == RowKind::Prefill && (tiles || tier.has_bf16() && dtype == Dtype::Bf16)
}

/// Rows of a kind, and whether the backend is [`Cpu::fast`].
const KINDS: [(RowKind, bool); 4] = [
    (RowKind::Decode, false),
    (RowKind::Prefill, false),
    (RowKind::Decode, true),
    (RowKind::Prefill, true),
];

/// Loads a step of `rows` rows of no particular sequence, for products only.
fn load_rows(cpu: &mut Cpu, rows: usize, kind: RowKind) {
    let spans = vec![Span {
        rows: 0..rows,
        kind,
        position: 0,
        pages: 0..0,
    }];
    cpu.step.load(&Step {
        tokens: vec![0; rows],
        spans,
        ..Step::default()
    });
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

/// A model with random weights for the oracle; already rounded to `dtype`.
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
            head_norms: None,
            window: None,
            wo: dense(dim, shape.q_dim(), bias),
            ffn_norm: Vec::new(),
            w13: dense(2 * ffn, dim, false),
            w2: dense(dim, ffn, false),
            scale: 1.0,
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

/// The same model with everything that some families have and Llama has not.
fn with_features(mut model: scalar::Model) -> scalar::Model {
    let mut rng = Rng(4321);
    let head_dim = model.shape.head_dim;
    // A window within a chunk of keys, and one that is longer than a chunk.
    for (layer, window) in model.layers.iter_mut().zip([40, 261]) {
        layer.window = Some(window);
        layer.scale = 0.7;
        layer.head_norms = Some([0, 1].map(|_| {
            let weight = |_| 1.0 + 0.3 * rng.unit();
            (0..head_dim).map(weight).collect()
        }));
        for dense in [&mut layer.w13, &mut layer.w2] {
            dense.bias = rng.vector(dense.rows(), 0.5);
        }
    }
    model
}

/// The format of the head beside layers of this one.
fn of_head(layers: Dtype) -> Dtype {
    match layers.is_float() {
        true => layers,
        false => Dtype::Int8,
    }
}

/// Packs `dense` in blocks of a few rows.
fn to_mat(cpu: &Cpu, dense: &Dense, parts: &[usize], dtype: Dtype, usage: MatUse) -> CpuMat {
    if let (Some(quant), MatUse::Product) = (dtype.quant(), usage) {
        return quantised::to_mat(cpu, dense, parts, quant);
    }
    let dtype = match dtype.is_float() {
        true => dtype,
        false => Dtype::Bf16,
    };
    let bias = !dense.bias.is_empty();
    let spec = MatSpec {
        parts: PartSpec::all(parts, dtype),
        cols: dense.cols,
        bias,
        scale: 1.0,
        usage,
        place: None,
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

/// A model on the CPU backend, whose pages are given out at random and full of NaN.
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
            head_norms: l
                .head_norms
                .as_ref()
                .map(|norms| norms.each_ref().map(|norm| cpu.new_vector(norm).unwrap())),
            window: l.window,
            wo: CpuMat {
                scale: l.scale,
                ..product(&l.wo, &[shape.dim])
            },
            ffn_norm: cpu.new_vector(&l.ffn_norm).unwrap(),
            w13: product(&l.w13, &[shape.ffn_dim; 2]),
            w2: CpuMat {
                scale: l.scale,
                ..product(&l.w2, &[shape.dim])
            },
        });
        let usage = if model.head.is_some() {
            MatUse::Lookup
        } else {
            MatUse::Product
        };
        let weights = Weights {
            layers: layers.collect(),
            embedding: to_mat(
                &cpu,
                &model.embedding,
                &[shape.vocab_size],
                match usage {
                    MatUse::Lookup => dtype,
                    MatUse::Product => of_head(dtype),
                },
                usage,
            ),
            norm: cpu.new_vector(&model.norm).unwrap(),
            head: model.head.as_ref().map(|h| {
                let dtype = of_head(dtype);
                to_mat(&cpu, h, &[shape.vocab_size], dtype, MatUse::Product)
            }),
        };
        let scratch = Scratch {
            x: cpu.new_buf(max_rows, shape.dim).unwrap(),
            q: cpu.new_buf(max_rows, shape.q_dim()).unwrap(),
            y: cpu.new_buf(max_rows, shape.q_dim()).unwrap(),
            h: cpu.new_buf(max_rows, shape.ffn_dim).unwrap(),
            logits: cpu.new_buf(max_rows, shape.vocab_size).unwrap(),
        };
        let mut pool = cpu.new_kv(n_pages, kv).unwrap();
        match &mut pool.data {
            // This is NaN for the bytes of a scale, too.
            element::Data::Byte(m) => m.fill(-1),
            _ => with_element!(kv, E => {
                let nan = <E as element::Element>::from_f32(f32::NAN);
                <E as element::Element>::bits_mut(&mut pool.data).fill(nan);
            }),
        }
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

    /// Runs one step over some sequences; returns the logits of all rows, row by row.
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
        let logits = self.cpu.read(&self.scratch.logits).unwrap().logits();
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

mod adapters;
mod attention;
mod ops;
mod parts;
mod quantised;
mod scalar;
mod sizes;

/// Calls a macro with what follows its name, a colon, and the names of all checks.
#[macro_export]
macro_rules! for_each_check {
    ($macro:ident $($first:tt)*) => {
        $macro! {
            $($first)*:
            exp_is_within_two_ulp
            silu_is_right_at_both_ends
            weights_of_a_softmax_are_right
            every_half_number_survives
            narrowing_rounds_to_nearest_even
            transposing_moves_every_lane
            packing_places_every_number
            products_match
            products_of_bad_numbers
            adapters_match
            parts_keep_their_own_formats
            gate_and_up_of_two_formats
            norms_match
            forward_matches
            long_sequences_match
            company_threads_and_chunks_change_nothing
            rows_without_slot_and_copied_pages
            wanted_rows_only
            quantised_strips_hold_what_the_format_says
            quantised_products_match
            quantised_products_of_bad_numbers
            quantised_forward_matches
            quantised_company_changes_nothing
            int8_cache_matches
            generated_rows_attend
            avx2_and_avx512_agree_in_every_bit
            a_cpu_says_what_it_is
            sizes_that_no_machine_has_are_errors
            bytes_said_are_bytes_taken
        }
    };
}

/// What one tier must do. It panics, and says what, if the tier does not.
pub type Check = fn(Tier);

macro_rules! table {
    (: $($check:ident)*) => {
        /// All checks by name.
        pub const CHECKS: &[(&str, Check)] = &[$((stringify!($check), ops::$check)),*];
    };
}

for_each_check!(table);

/// Runs checks on one tier. `told` hears the name of each and, where it failed, why.
pub fn run(checks: &[(&str, Check)], tier: Tier, told: &mut dyn FnMut(&str, Option<&str>)) {
    for (name, check) in checks {
        let failed = std::panic::catch_unwind(|| check(tier)).err();
        let why = failed
            .as_ref()
            .map(|payload| crate::error::panic_text(&**payload));
        told(name, why);
    }
}
