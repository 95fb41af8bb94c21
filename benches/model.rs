//! A model of random weights, made in memory through the backend's own interface.
#![allow(dead_code)] // each benchmark uses its part

use crate::shapes;
use llamabi::Dtype;
use llamabi::backend::cpu::{Cpu, Precision};
use llamabi::backend::*;
use llamabi::checkpoint::Keep;
use llamabi::model::Runner;
use llamabi::model::matrices::Part;
use llamabi::quant::{Quant, k, nf4::DoubleQuant};
use std::collections::HashMap;
use std::time::Instant;

/// Random bfloat16 of roughly the size that numbers of a trained matrix of `cols` columns have,
/// repeated.
fn random_bytes(cols: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let scale = 1.7 / (cols as f32).sqrt();
    let mut bytes = Vec::with_capacity(64 << 20);
    for _ in 0..(32 << 20) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let x = ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale;
        bytes.extend(((x.to_bits() >> 16) as u16).to_le_bytes());
    }
    bytes
}

/// Codes and scales of a part.
type Quantised = (Vec<u8>, Vec<u16>);

struct Maker<'a> {
    cpu: &'a Cpu,
    source: Vec<u8>,
    /// By format, rows and columns. They are the same for every layer, because quantising takes
    /// long.
    quantised: HashMap<(Dtype, usize, usize), Quantised>,
}

impl Maker<'_> {
    fn matrix(&mut self, spec: &MatSpec) -> <Cpu as Backend>::Mat {
        match spec.parts[0].dtype.quant() {
            None => self.floats(spec),
            Some(quant) => self.quantised(spec, quant),
        }
    }

    fn quantised(&mut self, spec: &MatSpec, quant: Quant) -> <Cpu as Backend>::Mat {
        let (cpu, cols) = (self.cpu, spec.cols);
        let mut mat = cpu.new_mat(spec).expect("memory for the weights");
        for (part, &PartSpec { rows, dtype }) in spec.parts.iter().enumerate() {
            let source = &self.source;
            let (codes, scales) = self
                .quantised
                .entry((dtype, rows, cols))
                .or_insert_with(|| quantise(cpu, source, rows, cols, quant));
            for data in [QuantData::Codes(codes), QuantData::Scales(scales)] {
                let (row, order) = (0, RowOrder::AsStored);
                cpu.pack_quantised(
                    &mut mat,
                    &QuantBlock {
                        part,
                        row,
                        order,
                        data,
                    },
                );
            }
        }
        mat
    }

    fn floats(&self, spec: &MatSpec) -> <Cpu as Backend>::Mat {
        let cols = spec.cols;
        let mut mat = self.cpu.new_mat(spec).expect("memory for the weights");
        for (part, &PartSpec { rows, .. }) in spec.parts.iter().enumerate() {
            let slab = self.source.len() / (2 * cols);
            for row in (0..rows).step_by(slab) {
                let n = slab.min(rows - row);
                self.cpu.pack(
                    &mut mat,
                    &Block {
                        part,
                        row,
                        col: 0,
                        cols,
                        order: RowOrder::AsStored,
                        dtype: Dtype::Bf16,
                        bytes: &self.source[..n * cols * 2],
                    },
                );
            }
        }
        mat
    }
}

fn quantise(cpu: &Cpu, source: &[u8], rows: usize, cols: usize, quant: Quant) -> Quantised {
    let values = source.as_chunks().0.iter().cycle().take(rows * cols);
    let values: Vec<f32> = values
        .map(|&b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
        .collect();
    let mut codes = vec![0; rows * quant.code_bytes(cols)];
    if quant.is_of_files() {
        // Nobody makes these. Their speed does not depend on the numbers.
        for (code, byte) in codes.iter_mut().zip(source.iter().cycle()) {
            *code = *byte;
        }
        let words = quant.scales(quant.block());
        let small = k::words(quant).map_or(0, |_| k::GROUP_WORDS);
        let word = |i: usize| match i % words < small {
            true => 0x1f1f,
            false => half::f16::from_f32(1e-4).to_bits(),
        };
        return (codes, (0..rows * quant.scales(cols)).map(word).collect());
    }
    let mut scales = vec![0.0; rows * quant.scales(cols)];
    cpu.quantise(quant, cols, &values, &mut codes, &mut scales);
    let f16 = |s: &f32| half::f16::from_f32(*s).to_bits();
    let scales = match quant {
        Quant::Nf4 => DoubleQuant::new(&scales).unwrap().scales().unwrap(),
        _ => scales.iter().map(f16).collect(),
    };
    (codes, scales)
}

/// The memory that a model of this shape needs, without making the model.
pub struct Plan {
    pub shape: Shape,
    pub keep: Keep,
    pub kv_dtype: Dtype,
    pub limits: Limits,
    pub max_seq_len: usize,
    pub precision: Precision,
}

impl Plan {
    fn spec(&self, parts: &[usize], cols: usize, dtype: Dtype, usage: MatUse) -> MatSpec {
        MatSpec {
            parts: PartSpec::all(parts, dtype),
            cols,
            bias: false,
            scale: 1.0,
            usage,
            adapter_index: None,
        }
    }

    fn dtype(&self, part: Part, usage: MatUse) -> Dtype {
        self.keep.dtype(part, usage, None)
    }

    /// wqkv, wo, w13 and w2 of a layer.
    fn layer(&self) -> [MatSpec; 4] {
        let s = &self.shape;
        let (q, kv) = (s.q_dim(), s.kv_dim());
        let dtype = self.dtype(Part::Q, MatUse::Product);
        let spec = |parts: &[usize], cols| self.spec(parts, cols, dtype, MatUse::Product);
        [
            spec(&[q, kv, kv], s.dim),
            spec(&[s.dim], q),
            spec(&[s.ffn_dim; 2], s.dim),
            spec(&[s.dim], s.ffn_dim),
        ]
    }

    fn head(&self) -> MatSpec {
        let (rows, dim) = (self.shape.vocab_size, self.shape.dim);
        self.spec(
            &[rows],
            dim,
            self.dtype(Part::Head, MatUse::Product),
            MatUse::Product,
        )
    }

    fn embedding(&self) -> MatSpec {
        let (rows, dim) = (self.shape.vocab_size, self.shape.dim);
        self.spec(
            &[rows],
            dim,
            self.dtype(Part::Embedding, MatUse::Lookup),
            MatUse::Lookup,
        )
    }

    /// Bytes of the matrices that every decoded token is multiplied with.
    pub fn matrix_bytes(&self) -> u64 {
        let layer: u64 = self.layer().iter().map(Cpu::mat_bytes).sum();
        layer * self.shape.n_layers as u64 + Cpu::mat_bytes(&self.head())
    }

    /// The same, plus embedding, cache and scratch.
    pub fn bytes(&self) -> u64 {
        self.matrix_bytes()
            + Cpu::mat_bytes(&self.embedding())
            + self.limits.n_pages as u64 * Cpu::page_bytes(&self.shape, self.kv_dtype)
            + Runner::<Cpu>::scratch_bytes(&self.shape, &self.limits, self.kv_dtype, 0)
    }

    /// Makes the model, and names the instruction set that it runs with.
    pub fn make(&self, threads: usize) -> (Runner<Cpu>, String) {
        let shape = &self.shape;
        let half = shape.head_dim / 2;
        let angle =
            |i: usize| (i / half) as f64 * 10000f64.powf(-((i % half) as f64) / half as f64);
        let angles = || (0..self.max_seq_len * half).map(angle);
        let rope = RopeTable {
            cos: angles().map(|a| a.cos() as f32).collect(),
            sin: angles().map(|a| a.sin() as f32).collect(),
            q_scale: Vec::new(),
        };
        let cpu = Cpu::new(shape, rope, threads, self.limits.max_rows).expect("a backend");
        let cpu = cpu.precision(self.precision);
        let mut maker = Maker {
            cpu: &cpu,
            source: random_bytes(shape.dim),
            quantised: HashMap::new(),
        };
        let start = Instant::now();
        let ones = vec![1.0f32; shape.dim];
        let norm = || cpu.new_vector(&ones).expect("memory");
        let layers = (0..shape.n_layers).map(|index| {
            let [wqkv, wo, w13, w2] = self.layer().map(|spec| maker.matrix(&spec));
            Layer {
                index,
                attention_norm: norm(),
                wqkv,
                head_norms: None,
                rotation: Rotation::default(),
                window: None,
                wo,
                ffn_norm: norm(),
                w13,
                w2,
            }
        });
        let weights = Weights {
            layers: layers.collect(),
            embedding: maker.matrix(&self.embedding()),
            norm: norm(),
            head: Some(maker.matrix(&self.head())),
        };
        let seconds = start.elapsed().as_secs_f64();
        let numbers = (shapes::matrix_numbers(shape) + shape.vocab_size * shape.dim) as f64;
        let description = cpu.description();
        println!(
            "{description}, packing from bf16: {seconds:.2} s, {:.1} GB/s",
            2.0 * numbers / seconds / 1e9
        );
        drop(maker);
        let runner = Runner::new(cpu, weights, shape, self.kv_dtype, self.limits.clone());
        (runner.expect("memory for the pool"), description)
    }
}
