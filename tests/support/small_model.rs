//! A model of three small layers, with weights that are made up, on any backend.

use half::{bf16, f16};
use llamabi::Dtype;
use llamabi::backend::*;
use llamabi::model::Runner;
use llamabi::quant::{Quant, k};

pub const SHAPE: Shape = Shape {
    dim: 96,
    n_layers: 3,
    n_heads: 8,
    n_kv_heads: 2,
    head_dim: 16,
    ffn_dim: 200,
    vocab_size: 300,
    norm_eps: 1e-5,
};

/// What a matrix is kept as, for which there are kernels: tables that are looked up are floats.
fn kept(usage: MatUse, dtype: Dtype) -> Dtype {
    match usage {
        MatUse::Lookup if !dtype.is_float() => Dtype::F16,
        _ => dtype,
    }
}

/// Codes, and scales as f16 bits. Formats that only files have cannot be made of values: their
/// codes and scales are made up.
fn quantised(quant: Quant, cols: usize, values: &[f32]) -> (Vec<u8>, Vec<u16>) {
    let rows = values.len() / cols;
    let mut codes = vec![0; rows * quant.code_bytes(cols)];
    if quant.is_of_files() {
        let some = |i: usize| (i * 7919 + i / 251 * 13) as u32;
        let codes = (0..codes.len()).map(|i| some(i) as u8).collect();
        let words = quant.scales(quant.block());
        let greatest = quant
            .codebook()
            .into_iter()
            .map(f32::abs)
            .fold(0.0, f32::max);
        // Half as large as the other formats' weights, and with a mean near zero.
        let large = match quant {
            Quant::Uint4 => [0.013, 7.5],
            _ if !quant.is_k() => [0.19 / greatest; 2],
            Quant::K4 => [1.5e-4, 1.1e-3],
            Quant::K5 => [7e-5, 1.1e-3],
            Quant::K6 => [6e-5; 2],
            _ => [1.5e-5; 2],
        };
        let small = k::words(quant).map_or(0, |_| k::GROUP_WORDS);
        let scale = |i: usize| match (i % words).checked_sub(small) {
            Some(which) => f16::from_f32(large[which]).to_bits(),
            None => some(i) as u16 & 0x7f7f,
        };
        return (codes, (0..rows * quant.scales(cols)).map(scale).collect());
    }
    let mut scales = vec![0.0; rows * quant.scales(cols)];
    quant.encode(cols, values, &mut codes, &mut scales);
    let half = |&scale: &f32| f16::from_f32(scale).to_bits();
    (codes, scales.iter().map(half).collect())
}

/// A matrix of parts with these rows and dtypes. `exact`: its weights are the same, in float32.
fn matrix<B: Backend>(
    backend: &B,
    parts: &[(usize, Dtype)],
    cols: usize,
    (usage, adapter_index): (MatUse, Option<usize>),
    exact: bool,
) -> B::Mat {
    let part = |&(rows, dtype)| PartSpec {
        rows,
        dtype: if exact {
            Dtype::F32
        } else {
            kept(usage, dtype)
        },
    };
    let spec = MatSpec {
        parts: parts.iter().map(part).collect(),
        cols,
        bias: false,
        scale: 1.0,
        usage,
        adapter_index,
    };
    let mut mat = backend.new_mat(&spec).unwrap();
    for (part, &(rows, dtype)) in parts.iter().enumerate() {
        let value = |i: usize| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * 0.2;
        let mut values: Vec<f32> = (0..rows * cols).map(value).collect();
        let (row, order) = (0, RowOrder::AsStored);
        let kept = kept(usage, dtype);
        if let Some(quant) = kept.quant() {
            let (codes, scales) = quantised(quant, cols, &values);
            if !exact {
                for data in [QuantData::Codes(&codes), QuantData::Scales(&scales)] {
                    let block = QuantBlock {
                        part,
                        row,
                        order,
                        data,
                    };
                    backend.pack_quantised(&mut mat, &block);
                }
                continue;
            }
            let codes = codes.chunks(quant.code_bytes(cols));
            let scales = scales.chunks(quant.scales(cols));
            let all = codes.zip(scales).zip(values.chunks_mut(cols));
            all.for_each(|((codes, scales), to)| quant.decode(codes, scales, to));
        }
        for value in &mut values {
            *value = match kept {
                Dtype::F16 => f16::from_f32(*value).to_f32(),
                Dtype::Bf16 => bf16::from_f32(*value).to_f32(),
                _ => *value,
            };
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let block = Block {
            part,
            row,
            col: 0,
            cols,
            order,
            dtype: Dtype::F32,
            bytes: &bytes,
        };
        backend.pack(&mut mat, &block);
    }
    mat
}

pub const LIMITS: Limits = Limits {
    page_size: 16,
    n_pages: 256,
    max_positions: 1024,
    max_rows: 128,
    max_wanted: 128,
    vocab_size: SHAPE.vocab_size,
};

pub fn rope() -> RopeTable {
    let positions = 1024;
    let angles = (0..positions * SHAPE.head_dim / 2).map(|i| (i % 97) as f32 / 97.0);
    RopeTable {
        cos: angles.clone().map(f32::cos).collect(),
        sin: angles.map(f32::sin).collect(),
        q_scale: Vec::new(),
    }
}

/// The dtypes of a layer's q, k, v, o, gate and up together, and down.
pub type LayerDtypes = [Dtype; 6];

/// The model on a backend.
pub fn runner<B: Backend>(backend: B, dtype: Dtype, kv_dtype: Dtype) -> Runner<B> {
    let layers = [[dtype; 6]; SHAPE.n_layers];
    mixed(backend, &SHAPE, &layers, dtype, kv_dtype, false)
}

/// A model with layers of these dtypes, and an embedding and a head of `dtype`. `exact`: with the
/// same weights, all of them in float32.
pub fn mixed<B: Backend>(
    backend: B,
    shape: &Shape,
    layers: &[LayerDtypes],
    dtype: Dtype,
    kv_dtype: Dtype,
    exact: bool,
) -> Runner<B> {
    let b = &backend;
    let ones = vec![1.0; shape.dim];
    let (q_dim, kv_dim, ffn_dim) = (shape.q_dim(), shape.kv_dim(), shape.ffn_dim);
    let product = |place, parts: &[(usize, Dtype)], cols| {
        matrix(b, parts, cols, (MatUse::Product, Some(place)), exact)
    };
    let layer = |(index, &[q, k, v, o, up, down]): (usize, &LayerDtypes)| Layer {
        index,
        attention_norm: b.new_vector(&ones).unwrap(),
        wqkv: product(
            4 * index,
            &[(q_dim, q), (kv_dim, k), (kv_dim, v)],
            shape.dim,
        ),
        wo: product(4 * index + 1, &[(shape.dim, o)], q_dim),
        head_norms: None,
        rotation: Rotation::default(),
        window: None,
        ffn_norm: b.new_vector(&ones).unwrap(),
        w13: product(4 * index + 2, &[(ffn_dim, up), (ffn_dim, up)], shape.dim),
        w2: product(4 * index + 3, &[(shape.dim, down)], ffn_dim),
    };
    // Heads that are made here are not of four bits.
    let head = match dtype {
        Dtype::Int4 => Dtype::Int8,
        _ => dtype,
    };
    let vocabulary = |dtype, usage| {
        let parts = [(shape.vocab_size, dtype)];
        matrix(b, &parts, shape.dim, (usage, None), exact)
    };
    let weights = Weights {
        layers: layers.iter().enumerate().map(layer).collect(),
        embedding: vocabulary(dtype, MatUse::Lookup),
        norm: b.new_vector(&ones).unwrap(),
        head: Some(vocabulary(head, MatUse::Product)),
    };
    Runner::new(backend, weights, shape, kv_dtype, LIMITS).unwrap()
}
