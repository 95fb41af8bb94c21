//! Everything about a model that its weights do not show, whichever file said it.

use super::family::Family;
use crate::Token;
use crate::backend::{Needs, Rotation, Shape};

/// How RoPE frequencies are stretched for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths over `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context the model was first trained with.
        original_context: f64,
    },
    /// Every frequency divided by a number of its own.
    Divided {
        /// `[head_dim / 2]`.
        by: Vec<f32>,
    },
    /// YaRN (Peng et al. 2023): slow frequencies divided, fast ones kept, a ramp over the
    /// dimensions between.
    Yarn {
        /// Divisor of the slow frequencies.
        factor: f64,
        /// Turns over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which a frequency is divided by the whole factor.
        beta_slow: f64,
        /// The context the model was first trained with.
        original_context: f64,
        /// Whether the ramp begins and ends at whole dimensions.
        truncate: bool,
        /// What cosines and sines are multiplied with.
        amplitude: f64,
    },
    /// Dynamic NTK: a greater theta for contexts over those of the training. transformers changes
    /// theta as a sequence grows, under keys that are already rotated. Here the handle's longest
    /// sequence decides.
    Dynamic {
        /// How far the context is stretched.
        factor: f64,
        /// The context up to which nothing changes.
        original_context: f64,
    },
    /// LongRoPE (Ding et al. 2024): a divisor for each frequency. The handle's longest sequence
    /// decides which of the two lists counts.
    LongRope {
        /// Divisors for sequences up to the original context.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// The context the model was first trained with.
        original_context: f64,
        /// What cosines and sines are multiplied with.
        amplitude: f64,
    },
}

/// Which products have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// q, k and v.
    pub qkv: bool,
    /// The output of attention.
    pub o: bool,
    /// gate, up and down.
    pub mlp: bool,
}

/// How q grows with its position: it is multiplied with `1 + beta ln(1 + floor(position /
/// original_context))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QScale {
    /// How fast.
    pub beta: f64,
    /// The position from which on it does.
    pub original_context: f64,
}

/// Everything about a model that its weights do not show.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What its family has.
    pub family: &'static Family,
    /// Sizes. `vocab_size` is the tokenizer's if the file leaves it open (-1).
    pub shape: Shape,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// Dimensions of a head that RoPE rotates: the first ones; even.
    pub rotary_dim: usize,
    /// What q and k are multiplied with beside RoPE, so that scores are `q k / sqrt(head_dim)`.
    pub qk_scale: f64,
    /// What q is multiplied with by its position.
    pub q_scale: Option<QScale>,
    /// Whether each layer does not rotate q and k. Empty if all layers rotate them.
    pub unrotated: Vec<bool>,
    /// Which products have biases.
    pub biases: Biases,
    /// Keys that a row of each layer sees, its own included; `None`: all before it. Empty if no
    /// layer has a window.
    pub windows: Vec<Option<usize>>,
    /// What the outputs of attention and of the feed-forward are multiplied with before they are
    /// added to the residual stream.
    pub residual_scale: f32,
    /// What the weight of the last norm is multiplied with.
    pub logits_scale: f32,
    /// Whether the embedding serves as the head.
    pub tied_embeddings: bool,
    /// Tokens that end a sequence, beyond the tokenizer's EOS (may be empty).
    pub eos_ids: Vec<Token>,
}

impl Config {
    /// A model of these sizes that has nothing that the first Llama has not.
    pub fn plain(family: &'static Family, shape: Shape) -> Config {
        Config {
            family,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rotary_dim: shape.head_dim,
            qk_scale: 1.0,
            q_scale: None,
            unrotated: Vec::new(),
            biases: Biases::default(),
            windows: Vec::new(),
            residual_scale: 1.0,
            logits_scale: 1.0,
            tied_embeddings: false,
            eos_ids: Vec::new(),
            shape,
        }
    }

    /// What it needs of a backend with sequences of up to so many positions.
    pub fn needs(&self, max_seq_len: usize) -> Needs {
        let short = |window: &Option<usize>| window.is_some_and(|keys| keys < max_seq_len);
        Needs {
            head_norms: self.family.head_norms.is_some(),
            window: self.windows.iter().any(short),
            ffn_bias: self.biases.mlp,
            scale: self.residual_scale != 1.0,
            q_scale: self.q_grows(max_seq_len).is_some(),
        }
    }

    /// [`Config::q_scale`], if it is not 1 at all positions of such sequences.
    pub fn q_grows(&self, max_seq_len: usize) -> Option<QScale> {
        let longer = |scale: &QScale| max_seq_len as f64 > scale.original_context;
        self.q_scale.filter(longer)
    }

    /// When a layer rotates q and k.
    pub fn rotation(&self, layer: usize) -> Rotation {
        match self.unrotated.get(layer) {
            Some(true) => Rotation::Never,
            _ => self.family.rotation,
        }
    }

    /// Keys that a row of a layer sees, its own included; `None`: all before it.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}
