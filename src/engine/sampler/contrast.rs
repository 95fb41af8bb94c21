//! Contrastive decoding: what is drawn from is the difference between two models.

use super::Sampler;
use super::filters::clean;
use super::passes::maximum;
use crate::engine::request::Contrast;

impl Sampler {
    /// Contrasts the loaded row with `amateur`, another model's raw logits of the same row: what is
    /// drawn from is `(1 + beta) * logit - beta * amateur` for tokens whose logit is at least the
    /// largest of a token that can be drawn plus `log_alpha`, each operation in float32. What is
    /// reported stays that of the loaded row.
    pub fn contrast(&mut self, amateur: &[f32], contrast: &Contrast) {
        let Self {
            n_tokens,
            logits,
            contrasted,
            ..
        } = self;
        let drawn = &logits[..logits.len().min(*n_tokens)];
        let least = maximum(drawn) + contrast.log_alpha;
        contrasted.clear();
        contrasted.extend(logits.iter().zip(amateur).map(|(expert, amateur)| {
            let value = (1.0 + contrast.beta) * expert - contrast.beta * amateur;
            match *expert >= least {
                true => clean(value),
                false => f32::NEG_INFINITY,
            }
        }));
        self.is_contrasted = true;
    }

    /// What is drawn from before penalties, edits and mask change it.
    pub(super) fn drawn_from(&self) -> &[f32] {
        let row = match self.is_contrasted {
            true => &self.contrasted,
            false => &self.logits,
        };
        &row[..row.len().min(self.n_tokens)]
    }
}
