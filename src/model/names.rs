//! Which stored tensors make up which matrix, in Meta's and in Hugging Face's names.
//!
//! One table for both forms; [`super::weights`] is the only reader. Meta's cuts are those of
//! fairscale's layers in llama/model.py: `ColumnParallelLinear` cuts its rows (the outputs),
//! `RowParallelLinear` its columns (the inputs), `ParallelEmbedding` (Llama 2) the columns and
//! `VocabParallelEmbedding` (Llama 3) the rows. Norms are the same in every shard.

use super::Config;
use super::config::Form;
use crate::Dtype;
use crate::backend::{MatSpec, MatUse, RowOrder, Shape};
use crate::format::{Checkpoint, TensorFile};
use crate::quant::Quant;

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

/// How Meta's model-parallel shards cut a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Each shard has some of the rows.
    Rows,
    /// Each shard has some of the columns of every row.
    Columns,
    /// Either; the shard's shape tells.
    RowsOrColumns,
}

/// A stored matrix that is one part of a matrix of ours.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Meta's name, without `layers.N.` and `.weight`.
    pub meta: &'static str,
    /// Hugging Face's name, without `model.layers.N.` and `.weight`.
    pub hugging_face: &'static str,
    /// Rows, uncut.
    pub rows: Width,
    /// How Meta cuts it.
    pub cut: Cut,
    /// Whether RoPE rotates its output: Hugging Face stores those rows in another order.
    pub rotated: bool,
}

/// A matrix of ours: `[sum of the parts' rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Stacked by rows.
    pub parts: &'static [Part],
    /// Columns, uncut.
    pub cols: Width,
    /// Whether `attention_bias` gives it biases.
    pub may_have_bias: bool,
}

/// A vector of `dim`, the weight of an RMSNorm.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// As [`Part::meta`].
    pub meta: &'static str,
    /// As [`Part::hugging_face`].
    pub hugging_face: &'static str,
}

const fn part(
    meta: &'static str,
    hugging_face: &'static str,
    rows: Width,
    cut: Cut,
    rotated: bool,
) -> Part {
    Part {
        meta,
        hugging_face,
        rows,
        cut,
        rotated,
    }
}

const fn matrix(parts: &'static [Part], cols: Width, may_have_bias: bool) -> Matrix {
    Matrix {
        parts,
        cols,
        may_have_bias,
    }
}

/// The embedding.
pub const EMBEDDING: Matrix = matrix(
    &[part(
        "tok_embeddings",
        "model.embed_tokens",
        Width::Vocab,
        Cut::RowsOrColumns,
        false,
    )],
    Width::Dim,
    false,
);
/// q | k | v.
pub const WQKV: Matrix = matrix(
    &[
        part(
            "attention.wq",
            "self_attn.q_proj",
            Width::Q,
            Cut::Rows,
            true,
        ),
        part(
            "attention.wk",
            "self_attn.k_proj",
            Width::Kv,
            Cut::Rows,
            true,
        ),
        part(
            "attention.wv",
            "self_attn.v_proj",
            Width::Kv,
            Cut::Rows,
            false,
        ),
    ],
    Width::Dim,
    true,
);
/// Output projection.
pub const WO: Matrix = matrix(
    &[part(
        "attention.wo",
        "self_attn.o_proj",
        Width::Dim,
        Cut::Columns,
        false,
    )],
    Width::Q,
    true,
);
/// gate | up.
pub const W13: Matrix = matrix(
    &[
        part(
            "feed_forward.w1",
            "mlp.gate_proj",
            Width::Ffn,
            Cut::Rows,
            false,
        ),
        part(
            "feed_forward.w3",
            "mlp.up_proj",
            Width::Ffn,
            Cut::Rows,
            false,
        ),
    ],
    Width::Dim,
    false,
);
/// Down.
pub const W2: Matrix = matrix(
    &[part(
        "feed_forward.w2",
        "mlp.down_proj",
        Width::Dim,
        Cut::Columns,
        false,
    )],
    Width::Ffn,
    false,
);
/// The head, where it is not the embedding.
pub const HEAD: Matrix = matrix(
    &[part("output", "lm_head", Width::Vocab, Cut::Rows, false)],
    Width::Dim,
    false,
);

/// Before attention.
pub const ATTENTION_NORM: Norm = Norm {
    meta: "attention_norm",
    hugging_face: "input_layernorm",
};
/// Before the feed-forward.
pub const FFN_NORM: Norm = Norm {
    meta: "ffn_norm",
    hugging_face: "post_attention_layernorm",
};
/// Before the head.
pub const NORM: Norm = Norm {
    meta: "norm",
    hugging_face: "model.norm",
};

/// Derived tensors that some checkpoints carry; we compute our own from the configuration.
pub fn is_ignored(name: &str) -> bool {
    name == "rope.freqs" || name.ends_with("rotary_emb.inv_freq")
}

/// The formats in which the matrices of a model are kept.
///
/// Only weights of the layers are kept in the quantised format. The head is then kept as int8, even
/// beside 4-bit layers: it is a small part of a model, and its errors go straight into the logits.
/// An embedding that is only looked up stays in 16 bits. An embedding that also serves as the head
/// is kept once, as int8, and looked up there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dtypes {
    /// q, k, v, o, gate, up, down.
    pub layers: Dtype,
    /// The head, and the embedding where it is the head.
    pub head: Dtype,
    /// The embedding where it is looked up only.
    pub embedding: Dtype,
}

impl Dtypes {
    /// Formats for weights of `dtype`; `stored` is the format of the checkpoint's floats.
    pub fn new(dtype: Dtype, stored: Dtype) -> Dtypes {
        match dtype.quant() {
            None => Dtypes {
                layers: dtype,
                head: dtype,
                embedding: dtype,
            },
            Some(_) => Dtypes {
                layers: dtype,
                head: Dtype::Int8,
                embedding: match stored {
                    Dtype::F16 => Dtype::F16,
                    _ => Dtype::Bf16,
                },
            },
        }
    }

    /// The formats for `dtype` if it is given, otherwise those of the checkpoint.
    pub fn choose(dtype: Option<Dtype>, checkpoint: &Checkpoint, config: &Config) -> Dtypes {
        let stored = match config.quantised {
            None => checkpoint.stored_dtype(),
            // Scales have a format of their own, so the embedding decides.
            Some(_) => {
                let name = EMBEDDING.parts[0].stored_name(config.form, None) + ".weight";
                let find = |file: &TensorFile| file.tensors.get(&name).map(|info| info.dtype);
                checkpoint
                    .files
                    .iter()
                    .find_map(find)
                    .unwrap_or(Dtype::Bf16)
            }
        };
        let as_stored = config.quantised.map_or(stored, Quant::dtype);
        Self::new(dtype.unwrap_or(as_stored), stored)
    }

    /// The format of the embedding, whatever it is used for.
    pub fn of_embedding(&self, config: &Config) -> Dtype {
        match embedding_usage(config) {
            MatUse::Lookup => self.embedding,
            MatUse::Product => self.head,
        }
    }
}

/// What the embedding is used for: it is multiplied with if it is also the head.
pub fn embedding_usage(config: &Config) -> MatUse {
    if config.tied_embeddings {
        MatUse::Product
    } else {
        MatUse::Lookup
    }
}

impl Matrix {
    /// The matrix that a backend is asked to make.
    pub fn spec(&self, config: &Config, dtype: Dtype, usage: MatUse) -> MatSpec {
        MatSpec {
            parts: self
                .parts
                .iter()
                .map(|part| part.rows.of(&config.shape))
                .collect(),
            cols: self.cols.of(&config.shape),
            dtype,
            bias: self.may_have_bias && config.attention_bias,
            usage,
        }
    }
}

impl Part {
    /// Its name in a file, without `.weight` or `.bias`.
    pub fn stored_name(&self, form: Form, layer: Option<usize>) -> String {
        full_name(form, layer, self.meta, self.hugging_face)
    }

    /// How its stored rows become ours.
    pub fn row_order(&self, config: &Config) -> RowOrder {
        match config.form {
            Form::HuggingFace if self.rotated => RowOrder::HalvesToPairs {
                head_dim: config.shape.head_dim,
            },
            _ => RowOrder::AsStored,
        }
    }
}

impl Norm {
    /// Its name in a file, without `.weight`.
    pub fn stored_name(&self, form: Form, layer: Option<usize>) -> String {
        full_name(form, layer, self.meta, self.hugging_face)
    }
}

fn full_name(form: Form, layer: Option<usize>, meta: &str, hugging_face: &str) -> String {
    match (form, layer) {
        (Form::Meta, None) => meta.into(),
        (Form::Meta, Some(n)) => format!("layers.{n}.{meta}"),
        (Form::HuggingFace, None) => hugging_face.into(),
        (Form::HuggingFace, Some(n)) => format!("model.layers.{n}.{hugging_face}"),
    }
}
