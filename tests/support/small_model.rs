//! A model of three small layers, with weights that are made up, on any backend.

use llamabi::Dtype;
use llamabi::backend::*;
use llamabi::model::Runner;

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

fn matrix<B: Backend>(
    backend: &B,
    parts: &[usize],
    cols: usize,
    usage: MatUse,
    dtype: Dtype,
) -> B::Mat {
    let quant = dtype.quant().filter(|_| usage == MatUse::Product);
    let kept = match quant {
        Some(quant) => quant.dtype(),
        None if dtype.is_float() => dtype,
        None => Dtype::F16,
    };
    let spec = MatSpec {
        parts: PartSpec::all(parts, kept),
        cols,
        bias: false,
        scale: 1.0,
        usage,
    };
    let mut mat = backend.new_mat(&spec).unwrap();
    for (part, &rows) in parts.iter().enumerate() {
        let values = (0..rows * cols).map(|i| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * 0.2);
        if let Some(quant) = quant {
            let values: Vec<f32> = values.collect();
            let mut codes = vec![0; rows * quant.code_bytes(cols)];
            let mut scales = vec![0.0; rows * quant.scales(cols)];
            backend.quantise(quant, cols, &values, &mut codes, &mut scales);
            let scales: Vec<u16> = scales
                .iter()
                .map(|&s| half::f16::from_f32(s).to_bits())
                .collect();
            for data in [QuantData::Codes(&codes), QuantData::Scales(&scales)] {
                let (row, order) = (0, RowOrder::AsStored);
                backend.pack_quantised(
                    &mut mat,
                    &QuantBlock {
                        part,
                        row,
                        order,
                        data,
                    },
                );
            }
            continue;
        }
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let (order, dtype) = (RowOrder::AsStored, Dtype::F32);
        backend.pack(
            &mut mat,
            &Block {
                part,
                row: 0,
                col: 0,
                cols,
                order,
                dtype,
                bytes: &bytes,
            },
        );
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
    }
}

/// The model on a backend.
pub fn runner<B: Backend>(backend: B, dtype: Dtype, kv_dtype: Dtype) -> Runner<B> {
    let layers = [[dtype; 4]; SHAPE.n_layers];
    mixed(backend, &SHAPE, &layers, dtype, kv_dtype)
}

/// A model in which each layer has wqkv, wo, w13 and w2 of these dtypes.
pub fn mixed<B: Backend>(
    backend: B,
    shape: &Shape,
    layers: &[[Dtype; 4]],
    dtype: Dtype,
    kv_dtype: Dtype,
) -> Runner<B> {
    let b = &backend;
    let ones = vec![1.0; shape.dim];
    let (q, kv) = (shape.q_dim(), shape.kv_dim());
    let product = |parts: &[usize], cols, dtype| matrix(b, parts, cols, MatUse::Product, dtype);
    let layers = layers
        .iter()
        .enumerate()
        .map(|(index, &[wqkv, wo, w13, w2])| Layer {
            index,
            attention_norm: b.new_vector(&ones).unwrap(),
            wqkv: product(&[q, kv, kv], shape.dim, wqkv),
            head_norms: None,
            window: None,
            wo: product(&[shape.dim], q, wo),
            ffn_norm: b.new_vector(&ones).unwrap(),
            w13: product(&[shape.ffn_dim; 2], shape.dim, w13),
            w2: product(&[shape.dim], shape.ffn_dim, w2),
        });
    let weights = Weights {
        layers: layers.collect(),
        embedding: matrix(b, &[shape.vocab_size], shape.dim, MatUse::Lookup, dtype),
        norm: b.new_vector(&ones).unwrap(),
        head: Some(matrix(
            b,
            &[shape.vocab_size],
            shape.dim,
            MatUse::Product,
            // Heads of four bits there are none.
            if dtype == Dtype::Int4 {
                Dtype::Int8
            } else {
                dtype
            },
        )),
    };
    Runner::new(backend, weights, shape, kv_dtype, LIMITS).unwrap()
}
