//! Granite's multipliers, whichever file said them.
//!
//! The residual stream is kept divided by that of the embedding, so that the embedding is used as it
//! is stored: every norm has the same output if its epsilon is divided by the square, and what is
//! added is divided too.

use crate::model::Config;

/// What numbers of the model are multiplied with.
pub(super) struct Multipliers {
    pub embedding: f64,
    /// Of the outputs of attention and feed-forward.
    pub residual: f64,
    /// Of scores; `None`: 1 / sqrt(head_dim).
    pub attention: Option<f64>,
    /// Logits are divided by it.
    pub logits: f64,
}

impl Multipliers {
    /// A model that has none.
    pub const NONE: Multipliers = Multipliers {
        embedding: 1.0,
        residual: 1.0,
        attention: None,
        logits: 1.0,
    };

    /// Which of them are read.
    pub const RANGE: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

    /// The epsilon of norms in the stream that is divided by `embedding`. Not normal: refuse it.
    pub fn norm_eps(&self, eps: f32) -> f32 {
        match self.embedding {
            1.0 => eps,
            embedding => (f64::from(eps) / (embedding * embedding)) as f32,
        }
    }

    /// The configuration with them in it.
    pub fn put_into(&self, config: Config) -> Config {
        let head_dim = config.shape.head_dim as f64;
        Config {
            // Scores are `attention q k`, and ours are `(scale q) (scale k) / sqrt(head_dim)`.
            qk_scale: match self.attention {
                Some(attention) => (attention * head_dim.sqrt()).sqrt(),
                None => 1.0,
            },
            residual_scale: (self.residual / self.embedding) as f32,
            logits_scale: (1.0 / self.logits) as f32,
            ..config
        }
    }
}
