//! What a device has chosen, in the sampler's types.

use super::{ALTERNATIVES, Continuation, LogSoftmax, Score};
use crate::backend::{Choice, Pick};
use crate::engine::event::Alternative;
use crate::{Result, Token, reserve};

/// Appends the `n` best continuations of a beam to `out`. They come from the alternatives that a
/// device gives for a row whose logits nothing changes. There must be more alternatives than `n`:
/// one more for each id that is not a token. Returns the row's normaliser, or `None` if no token is
/// possible.
pub fn continuations_of(
    choice: &Choice,
    pick: &Pick,
    top: &[(Token, f32)],
    n: usize,
    out: &mut Vec<Continuation>,
) -> Option<LogSoftmax> {
    if pick.max == f32::NEG_INFINITY {
        return None;
    }
    let softmax = LogSoftmax::new(pick.max, pick.total);
    let tokens = top[pick.top.clone()].iter().map(|&(token, logit)| {
        let logprob = softmax.logprob(logit);
        Continuation {
            token,
            logprob,
            changed: logprob,
        }
    });
    let is_token = |c: &Continuation| (c.token as usize) < choice.n_tokens;
    let possible = tokens.filter(|c| is_token(c)).take(n);
    out.extend(possible.filter(|c| c.changed > f32::NEG_INFINITY));
    Some(softmax)
}

/// The alternatives that a device gives for a row: the first `n` of [`Pick::top`].
pub fn alternatives_of(
    pick: &Pick,
    top: &[(Token, f32)],
    softmax: &LogSoftmax,
    n: usize,
) -> Result<Vec<Alternative>> {
    let alternative = |&(token, logit): &(Token, f32)| Alternative {
        token,
        logprob: softmax.logprob(logit),
    };
    let n = n.min(pick.top.len());
    let mut alternatives = reserve::room(ALTERNATIVES, n)?;
    let given = top[pick.top.clone()].iter().map(alternative);
    alternatives.extend(given.take(n));
    Ok(alternatives)
}

/// Converts a device's pick to the sampler's types. Returns `None` if no token is possible.
/// [`Pick::top`] is a range of the list `top`. Fails as
/// [`Sampler::choose`](super::Sampler::choose) does.
pub fn picked(
    choice: &Choice,
    pick: &Pick,
    top: &[(Token, f32)],
) -> Result<Option<(Token, Score)>> {
    let Some(token) = pick.token else {
        return Ok(None);
    };
    if !choice.scored() {
        return Ok(Some((token, Score::default())));
    }
    let softmax = LogSoftmax::new(pick.max, pick.total);
    let alternatives = alternatives_of(pick, top, &softmax, pick.top.len())?;
    let score = Score {
        logprob: match choice.logprob {
            true => softmax.logprob(pick.logit),
            false => 0.0,
        },
        top: alternatives,
    };
    Ok(Some((token, score)))
}
