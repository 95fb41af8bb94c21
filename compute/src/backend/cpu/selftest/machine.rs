//! Small models with random weights, on the backend.

use super::*;

/// A model with random weights for the oracle; already rounded to `dtype`.
pub fn random_model(
    shape: &Shape,
    dtype: Dtype,
    bias: bool,
    tied: bool,
    seed: u64,
) -> scalar::Model {
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
            rotation: Rotation::default(),
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
pub fn with_features(mut model: scalar::Model) -> scalar::Model {
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

/// The same model with a layer that does not know positions and one that rotates its heads before
/// it normalises them, and with queries that grow with their position.
pub fn with_rotations(model: scalar::Model) -> scalar::Model {
    let mut model = with_features(model);
    let first = &mut model.layers[0];
    (first.head_norms, first.rotation) = (None, Rotation::Never);
    model.layers[1].rotation = Rotation::BeforeNorms;
    let positions = model.rope.cos.len() / (model.shape.head_dim / 2);
    let scale = |position| 1.0 + 0.1 * (1.0 + (position / 100) as f32).ln();
    model.rope.q_scale = (0..positions).map(scale).collect();
    model
}

/// The format of the head beside layers of this one.
pub fn of_head(layers: Dtype) -> Dtype {
    match layers.is_float() {
        true => layers,
        false => Dtype::Int8,
    }
}

/// Packs `dense` in blocks of a few rows.
pub fn to_mat(cpu: &Cpu, dense: &Dense, parts: &[usize], dtype: Dtype, usage: MatUse) -> CpuMat {
    if let (Some(quant), MatUse::Product) = (dtype.quant(), usage) {
        return encoded::to_mat(cpu, dense, parts, quant);
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
        adapter_index: None,
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
pub struct Machine {
    pub cpu: Cpu,
    pub weights: Weights<Cpu>,
    pub kv: CpuKv,
    pub scratch: Scratch<Cpu>,
    pub free: Vec<u32>,
}

/// A sequence and its pages.
#[derive(Clone, Default)]
pub struct Sequence {
    pub pages: Vec<u32>,
    pub len: usize,
}

impl Machine {
    pub fn new(
        model: &scalar::Model,
        tier: Tier,
        threads: usize,
        dtype: Dtype,
        kv: Dtype,
    ) -> Machine {
        let shape = &model.shape;
        let (max_rows, n_pages) = (560, 200);
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
            rotation: l.rotation,
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
            exchange: None,
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
    pub fn step(&mut self, work: &mut [(&mut Sequence, &[Token], RowKind)]) -> Vec<Vec<f32>> {
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

    pub fn run(&mut self, step: &Step) -> Vec<Vec<f32>> {
        self.cpu.load_step(step);
        forward(
            &mut self.cpu,
            &self.weights,
            &mut self.kv,
            &mut self.scratch,
        );
        let width = self.scratch.logits.width;
        let logits = self.cpu.read(&self.scratch.logits);
        assert_eq!(logits.len(), step.wanted.len() * width);
        logits.chunks(width).map(<[f32]>::to_vec).collect()
    }

    /// The logits of a new sequence, prefilled in chunks.
    pub fn prefill(&mut self, tokens: &[Token], chunk: usize) -> (Sequence, Vec<Vec<f32>>) {
        let (mut sequence, mut out) = (Sequence::default(), Vec::new());
        for tokens in tokens.chunks(chunk) {
            out.extend(self.step(&mut [(&mut sequence, tokens, RowKind::Prefill)]));
        }
        (sequence, out)
    }

    pub fn release(&mut self, sequence: Sequence) {
        self.free.extend(sequence.pages);
    }
}

pub fn random_tokens(n: usize, vocab: usize, seed: u64) -> Vec<Token> {
    let mut rng = Rng(seed | 1);
    (0..n).map(|_| rng.below(vocab) as Token).collect()
}

pub fn assert_close(got: &[Vec<f32>], want: &[Vec<f64>], tolerance: f64, what: &str) {
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
