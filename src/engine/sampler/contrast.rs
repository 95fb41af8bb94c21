//! Contrastive decoding: tokens are drawn from the difference between two models.

use super::Sampler;
use super::filters::change;
use crate::backend::choice::{Changes, Strategy};
use crate::engine::request::Contrast;

impl Sampler {
    /// Contrasts the loaded row with `amateur`, another model's raw logits of the same row. Tokens
    /// are drawn from `(1 + beta) * logit - beta * amateur`, with each operation in float32. A
    /// result that overflows becomes the largest number. A token is impossible if both products
    /// overflow, or if one of its logits is not finite. The reported numbers stay those of the
    /// loaded row.
    pub fn contrast(&mut self, amateur: &[f32], contrast: &Contrast) {
        let Self {
            logits, contrasted, ..
        } = self;
        contrasted.clear();
        contrasted.extend(logits.iter().zip(amateur).map(|(expert, amateur)| {
            let value = (1.0 + contrast.beta) * expert - contrast.beta * amateur;
            match expert.is_finite() && amateur.is_finite() && !value.is_nan() {
                true => value.clamp(f32::MIN, f32::MAX) + 0.0,
                false => f32::NEG_INFINITY,
            }
        }));
        self.log_alpha = Some(contrast.log_alpha);
    }

    /// Fills `changed` with the values to draw from, after penalty, edits and mask. In contrastive
    /// decoding a token is then possible only if its logit is at least the largest logit plus
    /// `log_alpha`. The largest logit is taken over the tokens that edits and mask have left.
    /// Otherwise no token would be possible where edits or mask forbid the model's favourites.
    pub(super) fn change(&mut self, strategy: &Strategy, changes: Changes<'_>) {
        let Self {
            n_tokens,
            logits,
            contrasted,
            log_alpha,
            changed,
            ..
        } = self;
        let logits = &logits[..logits.len().min(*n_tokens)];
        let Some(log_alpha) = *log_alpha else {
            return change(changed, logits, strategy.penalty, changes);
        };
        change(
            changed,
            &contrasted[..logits.len()],
            strategy.penalty,
            changes,
        );
        let left = changed.iter().zip(logits);
        let left = left.filter(|(changed, _)| **changed > f32::NEG_INFINITY);
        let largest = left.fold(f32::NEG_INFINITY, |most, (_, logit)| most.max(*logit));
        let least = largest + log_alpha;
        for (changed, logit) in changed.iter_mut().zip(logits) {
            if *logit < least {
                *changed = f32::NEG_INFINITY;
            }
        }
    }
}
