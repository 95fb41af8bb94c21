//! Everything about a model that its weights do not show, whichever file said it.

use crate::Token;
use crate::backend::Shape;

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

/// Everything about a model that its weights do not show.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Sizes. `vocab_size` is the tokenizer's if the file leaves it open (-1).
    pub shape: Shape,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether q, k, v and o have biases.
    pub attention_bias: bool,
    /// Whether the embedding serves as the head.
    pub tied_embeddings: bool,
    /// Tokens that end a sequence, beyond the tokenizer's EOS (may be empty).
    pub eos_ids: Vec<Token>,
}
