//! What a model consists of: its matrices and vectors, without the names that a file gives them.
//!
//! [`LAYER`] is the one list of a layer's matrices. Planning, counting, loading and writing all go
//! through it.

use super::Config;
use crate::backend::{MatUse, Shape};

/// A width of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// `dim`
    Dim,
    /// `n_heads * head_dim`
    Q,
    /// `n_kv_heads * head_dim`
    Kv,
    /// `ffn_dim`
    Ffn,
    /// `vocab_size`
    Vocab,
}

impl Width {
    /// In a model of this shape.
    pub fn of(self, shape: &Shape) -> usize {
        match self {
            Width::Dim => shape.dim,
            Width::Q => shape.q_dim(),
            Width::Kv => shape.kv_dim(),
            Width::Ffn => shape.ffn_dim,
            Width::Vocab => shape.vocab_size,
        }
    }
}

/// A matrix as the literature counts them. Ours are made of one or more, stacked by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The embedding.
    Embedding,
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// The output projection of attention.
    O,
    /// The gate of the feed-forward (Meta's w1).
    Gate,
    /// Its other input (w3).
    Up,
    /// Its output (w2).
    Down,
    /// The head, where it is not the embedding.
    Head,
}

impl Part {
    /// Its rows.
    pub fn rows(self) -> Width {
        match self {
            Part::Embedding | Part::Head => Width::Vocab,
            Part::Q => Width::Q,
            Part::K | Part::V => Width::Kv,
            Part::O | Part::Down => Width::Dim,
            Part::Gate | Part::Up => Width::Ffn,
        }
    }

    /// Whether RoPE rotates its output. Some checkpoints store those rows in another order.
    pub fn is_rotated(self) -> bool {
        matches!(self, Part::Q | Part::K)
    }
}

/// A matrix of ours: `[sum of the parts' rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Stacked by rows.
    pub parts: &'static [Part],
    /// Columns.
    pub cols: Width,
}

/// The embedding.
pub const EMBEDDING: Matrix = Matrix {
    parts: &[Part::Embedding],
    cols: Width::Dim,
};

/// The head, where it is not the embedding.
pub const HEAD: Matrix = Matrix {
    parts: &[Part::Head],
    cols: Width::Dim,
};

/// The matrices of a layer, in the order of [`crate::backend::Layer`]'s fields: `wqkv`, `wo`,
/// `w13`, `w2`.
pub const LAYER: [Matrix; 4] = [
    Matrix {
        parts: &[Part::Q, Part::K, Part::V],
        cols: Width::Dim,
    },
    Matrix {
        parts: &[Part::O],
        cols: Width::Q,
    },
    Matrix {
        parts: &[Part::Gate, Part::Up],
        cols: Width::Dim,
    },
    Matrix {
        parts: &[Part::Down],
        cols: Width::Ffn,
    },
];

/// The weight of an RMSNorm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Before attention, `[dim]`.
    Attention,
    /// Before the feed-forward, `[dim]`.
    Ffn,
    /// Before the head, `[dim]`.
    Last,
    /// Of each head of q, `[head_dim]`.
    Q,
    /// Of each head of k, `[head_dim]`.
    K,
}

/// The norms of a layer, in the order of [`crate::backend::Layer`]'s fields.
pub const LAYER_NORMS: [Norm; 2] = [Norm::Attention, Norm::Ffn];

/// What the embedding is used for: it is multiplied with if it is also the head.
pub fn embedding_usage(config: &Config) -> MatUse {
    if config.tied_embeddings {
        MatUse::Product
    } else {
        MatUse::Lookup
    }
}

impl Part {
    /// What its outputs are multiplied with.
    pub fn scale(self, config: &Config) -> f32 {
        match self {
            Part::O | Part::Down => config.residual_scale,
            _ => 1.0,
        }
    }

    /// Whether its rows have biases.
    pub fn has_bias(self, config: &Config) -> bool {
        match self {
            Part::Q | Part::K | Part::V => config.biases.qkv,
            Part::O => config.biases.o,
            Part::Gate | Part::Up | Part::Down => config.biases.mlp,
            Part::Embedding | Part::Head => false,
        }
    }
}
