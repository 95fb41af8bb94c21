//! What changes logits before a draw, and which candidates a draw leaves out.

use super::{Kept, Place, place};
use crate::backend::choice::{Changes, Edit, Filters, rank};

/// Replaces a number that is not finite by -inf. Replaces negative zero by zero, because the two
/// are equal and must have the same [`rank`].
pub(super) fn clean(logit: f32) -> f32 {
    if logit.is_finite() {
        logit + 0.0
    } else {
        f32::NEG_INFINITY
    }
}

/// Logits after the penalty, edits and mask. The penalty is computed from the raw value, so a
/// repeated token is penalised once.
pub(super) fn change(out: &mut Vec<f32>, logits: &[f32], penalty: f32, changes: Changes<'_>) {
    out.clear();
    out.extend_from_slice(logits);
    for token in changes.history {
        let at = *token as usize;
        if let Some(&logit) = logits.get(at).filter(|logit| logit.is_finite()) {
            let value = if logit > 0.0 {
                logit / penalty
            } else {
                logit * penalty
            };
            out[at] = clean(value.clamp(f32::MIN, f32::MAX));
        }
    }
    for Edit { token, add } in changes.edits {
        let value = out.get_mut(*token as usize);
        if let Some(value) = value.filter(|value| value.is_finite()) {
            *value = match *add == f32::NEG_INFINITY {
                true => f32::NEG_INFINITY,
                false => clean((*value + add).clamp(f32::MIN, f32::MAX)),
            };
        }
    }
    if let Some(mask) = changes.mask {
        for (at, values) in out.chunks_mut(32).enumerate() {
            let word = mask.get(at).copied().unwrap_or(0);
            for (bit, value) in values.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *value = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Keeps a token while the mass of the tokens before it is at most `limit` (Meta's rule). So the
/// token that crosses the limit is kept, and at least one token remains. `kept` must contain all
/// tokens of the nucleus.
pub(super) fn keep_nucleus(
    kept: &mut Vec<Kept>,
    order: &mut Vec<(Place, u64)>,
    values: &[f32],
    limit: u64,
) {
    let place = |k: &Kept| place(values[k.token as usize], k.token as usize);
    order.clear();
    order.extend(kept.iter().map(|k| (place(k), k.mass)));
    let mut rest = &mut order[..];
    let mut before = 0;
    // Invariant: the best token of `rest` is in the nucleus, `before` is the mass of all better
    // tokens, and the nucleus ends within `rest`.
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        let (better, _, _) = rest.select_nth_unstable(middle);
        let mass: u64 = better.iter().map(|(_, mass)| mass).sum();
        if before + mass <= limit {
            before += mass;
            rest = &mut rest[middle..];
        } else {
            rest = &mut rest[..middle];
        }
    }
    if let Some((last, _)) = rest.first().copied() {
        kept.retain(|k| place(k) <= last);
    }
}

/// Typical sampling, then epsilon, then eta, each applied to the tokens that the previous filter
/// has kept. A token's probability is its mass divided by the mass of all kept tokens. Tokens are
/// in ascending order of ids, so entropies are always summed in the same order.
pub(super) fn filter_probabilities(
    kept: &mut Vec<Kept>,
    filters: &Filters,
    values: &[f32],
    distances: &mut Vec<(f64, u64)>,
) {
    let total = |kept: &[Kept]| kept.iter().map(|k| k.mass).sum::<u64>();
    let entropy = |kept: &[Kept], total: u64| -> f64 {
        let terms = kept.iter().map(|k| {
            let p = k.mass as f64 / total as f64;
            -p * p.ln()
        });
        terms.sum()
    };
    if filters.typical > 0.0 {
        let total = total(kept);
        let entropy = entropy(kept, total);
        let distance = |k: &Kept| (-(k.mass as f64 / total as f64).ln() - entropy).abs();
        distances.clear();
        distances.extend(kept.iter().map(|k| (distance(k), k.mass)));
        distances.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (most, mut before) = (f64::from(filters.typical), 0u64);
        let mut last = 0.0;
        for (distance, mass) in &*distances {
            if before as f64 / total as f64 >= most {
                break;
            }
            (last, before) = (*distance, before + mass);
        }
        kept.retain(|k| distance(k) <= last);
    }
    // The most likely token is always kept. It is the first one with the largest logit.
    let best = |kept: &[Kept]| {
        let value = |k: &&Kept| rank(values[k.token as usize]);
        kept.iter().min_by_key(value).map(|k| k.token)
    };
    let drop_below = |kept: &mut Vec<Kept>, least: f64, total: u64| {
        let best = best(kept);
        kept.retain(|k| k.mass as f64 / total as f64 >= least || Some(k.token) == best);
    };
    if filters.epsilon > 0.0 {
        let total = total(kept);
        drop_below(kept, f64::from(filters.epsilon), total);
    }
    if filters.eta > 0.0 {
        let (total, eta) = (total(kept), f64::from(filters.eta));
        let least = eta.min(eta.sqrt() * (-entropy(kept, total)).exp());
        drop_below(kept, least, total);
    }
}
