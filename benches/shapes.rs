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

/// A shape by the name that command lines use.
pub fn named(name: &str) -> Option<Shape> {
    match name {
        "1b" => Some(llama_1b()),
        "7b" => Some(llama_7b()),
        _ => None,
    }
}

/// Numbers in the matrices that every decoded token multiplies with.
pub fn matrix_numbers(s: &Shape) -> usize {
    let attention = s.dim * (s.q_dim() + 2 * s.kv_dim()) + s.q_dim() * s.dim;
    s.n_layers * (attention + 3 * s.dim * s.ffn_dim) + s.vocab_size * s.dim
}
