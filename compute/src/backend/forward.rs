//! What a Llama computes. This is its only statement; it follows Meta's `Transformer.forward` in
//! llama/model.py.

use crate::backend::{Backend, Exchange, Weights};

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
    /// The other ranks; `None` if there are none.
    pub exchange: Option<Box<dyn Exchange<B>>>,
}

/// Runs one step; afterwards `s.logits` holds the wanted rows.
pub fn forward<B: Backend>(b: &mut B, w: &Weights<B>, kv: &mut B::Kv, s: &mut Scratch<B>) {
    match &mut s.exchange {
        None => b.embed(&mut s.x, &w.embedding),
        Some(ranks) => ranks.embed(b, &mut s.x, &w.embedding),
    }
    for layer in &w.layers {
        b.qkv(&mut s.q, kv, &s.x, layer);
        b.attend(&mut s.y, &s.q, kv, layer);
        add_product(b, &mut s.exchange, &mut s.x, &layer.wo, &s.y);
        b.ffn_up(&mut s.h, &s.x, layer);
        add_product(b, &mut s.exchange, &mut s.x, &layer.w2, &s.h);
    }
    let head = w.head.as_ref().unwrap_or(&w.embedding);
    match &mut s.exchange {
        None => b.logits(&mut s.logits, &s.x, Some(&w.norm), head),
        Some(ranks) => ranks.logits(b, &mut s.logits, &s.x, &w.norm, head),
    }
}

fn add_product<B: Backend>(
    b: &mut B,
    exchange: &mut Option<Box<dyn Exchange<B>>>,
    x: &mut B::Buf,
    w: &B::Mat,
    y: &B::Buf,
) {
    match exchange {
        None => b.matmul_add(x, w, y),
        Some(ranks) => ranks.matmul_add(b, x, w, y),
    }
}
