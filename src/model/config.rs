//! `params.json` (Meta) and `config.json` (Hugging Face, transformers 4 and 5) -> [`Config`].

use crate::Result;
use crate::backend::Shape;
use std::path::Path;

/// Which of the two checkpoint forms a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `params.json` and `consolidated.NN.pth`.
    Meta,
    /// `config.json` and safetensors.
    HuggingFace,
}

/// How RoPE frequencies are stretched for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

/// Everything about a model that its weights do not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which form the directory has.
    pub form: Form,
    /// Sizes. `vocab_size` is the tokenizer's where the file leaves it open (-1).
    pub shape: Shape,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether q, k, v and o have biases.
    pub attention_bias: bool,
    /// Whether the embedding serves as the head.
    pub tied_embeddings: bool,
    /// Tokens that end a sequence, beyond the tokenizer's EOS (Hugging Face only; may be empty).
    pub eos_ids: Vec<crate::Token>,
}

impl Config {
    /// Read `params.json` or `config.json` of `ckpt_dir` (`params.json` where there are both).
    /// `tokenizer_vocab` stands in where `params.json` says `"vocab_size": -1`.
    pub fn read(ckpt_dir: &Path, tokenizer_vocab: usize) -> Result<Config> {
        let _ = (ckpt_dir, tokenizer_vocab);
        todo!()
    }
}
