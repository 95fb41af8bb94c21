//! What a Llama computes. This is its only statement; it follows Meta's `Transformer.forward` in
//! llama/model.py.

use crate::backend::{Backend, Weights};

/// Buffers that live as long as the model; the rows of one step pass through them.
pub struct Scratch<B: Backend> {
    /// Residual stream, `[max_rows, dim]`.
    pub x: B::Buf,
    /// Queries, `[max_rows, q_dim]`.
    pub q: B::Buf,
    /// Attention output, `[max_rows, q_dim]`.
    pub y: B::Buf,
    /// Feed-forward, `[max_rows, ffn_dim]`.
    pub h: B::Buf,
    /// `[max_wanted, vocab_size]`.
    pub logits: B::Buf,
}

/// Runs one step; afterwards `s.logits` holds the wanted rows.
pub fn forward<B: Backend>(b: &mut B, w: &Weights<B>, kv: &mut B::Kv, s: &mut Scratch<B>) {
    b.embed(&mut s.x, &w.embedding);
    for layer in &w.layers {
        b.qkv(&mut s.q, kv, &s.x, layer);
        b.attend(&mut s.y, &s.q, kv, layer);
        b.matmul_add(&mut s.x, &layer.wo, &s.y);
        b.ffn_up(&mut s.h, &s.x, layer);
        b.matmul_add(&mut s.x, &layer.w2, &s.h);
    }
    b.logits(
        &mut s.logits,
        &s.x,
        &w.norm,
        w.head.as_ref().unwrap_or(&w.embedding),
    );
}
