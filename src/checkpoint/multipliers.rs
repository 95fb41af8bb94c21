//! Granite's multipliers, from whichever kind of file.
//!
//! The model multiplies the embedding by a factor. We divide the residual stream by this factor
//! instead, so that the embedding is used as it is stored. A norm then has the same output if its
//! epsilon is divided by the square of the factor; what layers add to the stream is divided by the
//! factor too.

use crate::model::Config;

/// The factors by which numbers of the model are multiplied.
pub(super) struct Multipliers {
    pub embedding: f64,
    /// The factor of the outputs of attention and feed-forward.
    pub residual: f64,
    /// The factor of scores; `None` means 1 / sqrt(head_dim).
    pub attention: Option<f64>,
    /// The divisor of logits.
    pub logits: f64,
}

impl Multipliers {
    /// The multipliers of a model that has none.
    pub const NONE: Multipliers = Multipliers {
        embedding: 1.0,
        residual: 1.0,
        attention: None,
        logits: 1.0,
    };

    /// The values that are accepted.
    pub const RANGE: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

    /// The epsilon of norms in the stream that is divided by `embedding`. The caller refuses one
    /// that is not a normal number.
    pub fn norm_eps(&self, eps: f32) -> f32 {
        match self.embedding {
            1.0 => eps,
            embedding => (f64::from(eps) / (embedding * embedding)) as f32,
        }
    }

    /// Puts the multipliers into a configuration.
    pub fn put_into(&self, config: Config) -> Config {
        let head_dim = config.shape.head_dim as f64;
        Config {
            // The model's scores are `attention q k`; ours are `(scale q) (scale k) /
            // sqrt(head_dim)`.
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
