//! Model shapes that benchmarks use.
#![allow(dead_code)] // each benchmark uses its part

use llamabi::backend::Shape;

/// TinyLlama 1.1B: small enough for any machine, large enough to be read from memory.
pub fn llama_1b() -> Shape {
    Shape {
        dim: 2048,
        n_layers: 22,
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 64,
        ffn_dim: 5632,
        vocab_size: 32000,
        norm_eps: 1e-5,
    }
}

/// Llama 160M, as it serves as a draft model.
pub fn llama_160m() -> Shape {
    Shape {
        dim: 768,
        n_layers: 12,
        n_heads: 12,
        n_kv_heads: 12,
        head_dim: 64,
        ffn_dim: 3072,
        vocab_size: 32000,
        norm_eps: 1e-6,
    }
}

/// Llama 3.2 3B, with a head of its own.
pub fn llama_3b() -> Shape {
    Shape {
        dim: 3072,
        n_layers: 28,
        n_heads: 24,
        n_kv_heads: 8,
        head_dim: 128,
        ffn_dim: 8192,
        vocab_size: 128256,
        norm_eps: 1e-5,
    }
}

/// Llama 2 7B.
pub fn llama_7b() -> Shape {
    Shape {
        dim: 4096,
        n_layers: 32,
        n_heads: 32,
        n_kv_heads: 32,
        head_dim: 128,
        ffn_dim: 11008,
        vocab_size: 32000,
        norm_eps: 1e-5,
    }
}

/// A shape by the name that command lines use; `7b:8` is the first 8 layers of the 7B one.
pub fn named(name: &str) -> Option<Shape> {
    let (name, layers) = match name.split_once(':') {
        Some((name, layers)) => (name, Some(layers.parse().ok()?)),
        None => (name, None),
    };
    let shape = match name {
        "160m" => llama_160m(),
        "1b" => llama_1b(),
        "3b" => llama_3b(),
        "7b" => llama_7b(),
        _ => return None,
    };
    let n_layers = layers.unwrap_or(shape.n_layers).min(shape.n_layers);
    Some(Shape { n_layers, ..shape })
}

/// Numbers in the matrices that every decoded token multiplies with.
pub fn matrix_numbers(s: &Shape) -> usize {
    let attention = s.dim * (s.q_dim() + 2 * s.kv_dim()) + s.q_dim() * s.dim;
    s.n_layers * (attention + 3 * s.dim * s.ffn_dim) + s.vocab_size * s.dim
}
