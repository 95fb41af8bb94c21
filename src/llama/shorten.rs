//! Which tokens of a prompt stay when it is compressed: the budget, and the two passes of LLMLingua
//! (Jiang et al. 2023, <https://arxiv.org/abs/2310.05736>) with exact numbers of tokens.

use crate::{Result, Token, reserve};

const WHAT: &str = "the tokens of a compressed prompt";

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// It stays as it is.
    Keep,
    /// It is shortened.
    Compress,
    /// It stays as it is. The segments that are shortened are ranked by how much they help the
    /// model to expect it.
    Question,
}

/// A segment as tokens.
pub(super) struct Part {
    /// All tokens of the segment.
    pub tokens: Vec<Token>,
    /// For each token: whether it stays before others do. Empty means that none does.
    pub forced: Vec<bool>,
    pub kind: SegmentKind,
}

/// What is left of a part.
#[derive(Default)]
pub(super) struct Left {
    pub tokens: Vec<Token>,
    /// The places of these tokens in the part, ascending. Empty if the whole part is left.
    pub places: Vec<usize>,
    /// The log probability by which each token stayed; 0 if nothing was decided.
    pub logprobs: Vec<f32>,
    /// The worth that the first pass has found; 0 if there was no first pass.
    pub worth: f32,
    /// Whether it is the whole segment.
    pub whole: bool,
}

/// A text to be scored, and its context, which precedes it.
pub(super) struct Stretch<'a> {
    pub context: &'a [Token],
    pub text: &'a [Token],
}

/// The log probability of each token of each text.
pub(super) type Scores = Vec<Vec<f32>>;

/// How much stays, in tokens.
pub(super) struct Budget {
    /// Of all segments together.
    pub target: usize,
    /// The number of tokens between two decisions.
    pub window: usize,
    /// The first pass leaves this many times the budget.
    pub coarse: f32,
}

/// Shorten the parts of kind [`SegmentKind::Compress`] to what `budget` leaves for them.
pub(super) fn shorten(
    parts: &[Part],
    budget: &Budget,
    score: &mut dyn FnMut(&[Stretch<'_>]) -> Result<Scores>,
) -> Result<Vec<Left>> {
    let compressed = |part: &Part| part.kind == SegmentKind::Compress;
    let all: usize = lens(parts).sum();
    let kept: usize = parts
        .iter()
        .filter(|p| !compressed(p))
        .map(|p| p.tokens.len())
        .sum();
    let rest = all - kept;
    let free = budget.target.saturating_sub(kept);
    let mut left = reserve::room(WHAT, parts.len())?;
    if free >= rest || free == 0 {
        for part in parts {
            let stays = free > 0 || !compressed(part);
            left.push(if stays { whole(part)? } else { nothing(part) });
        }
        return Ok(left);
    }
    let (cut, worths) = first_pass(parts, free, budget.coarse, score)?;
    let mut quotas = quotas(parts, &cut, free, budget.window)?.into_iter();
    let mut context = reserve::room(WHAT, budget.target)?;
    for ((part, cut), worth) in parts.iter().zip(&cut).zip(worths) {
        let mut own = match compressed(part) {
            true => Left {
                worth,
                ..nothing(part)
            },
            false => whole(part)?,
        };
        reserve::vec(WHAT, &mut context, own.tokens.len())?;
        context.extend(&own.tokens);
        let windows = if compressed(part) {
            &part.tokens[..*cut]
        } else {
            &[]
        };
        for (at, window) in windows.chunks(budget.window).enumerate() {
            let quota = quotas.next().unwrap_or(0);
            if quota == 0 {
                continue;
            }
            let stretch = [Stretch {
                context: &context,
                text: window,
            }];
            // If all tokens of a window stay, no scores are needed.
            let found = match quota < window.len() {
                true => score(&stretch)?.pop().unwrap_or_default(),
                false => reserve::filled(WHAT, quota, 0.0)?,
            };
            let begin = at * budget.window;
            let stay = least_likely(&found, |i| forced(part, begin + i), quota)?;
            reserve::vec(WHAT, &mut own.tokens, quota)?;
            reserve::vec(WHAT, &mut own.places, quota)?;
            reserve::vec(WHAT, &mut own.logprobs, quota)?;
            reserve::vec(WHAT, &mut context, quota)?;
            for i in stay {
                own.tokens.push(window[i]);
                own.places.push(begin + i);
                own.logprobs.push(found[i]);
                context.push(window[i]);
            }
        }
        own.whole = own.tokens.len() == part.tokens.len();
        left.push(own);
    }
    Ok(left)
}

fn lens(parts: &[Part]) -> impl Iterator<Item = usize> {
    parts.iter().map(|part| part.tokens.len())
}

fn whole(part: &Part) -> Result<Left> {
    Ok(Left {
        tokens: reserve::copy(WHAT, &part.tokens)?,
        places: Vec::new(),
        logprobs: reserve::filled(WHAT, part.tokens.len(), 0.0)?,
        worth: 0.0,
        whole: true,
    })
}

fn nothing(part: &Part) -> Left {
    Left {
        whole: part.tokens.is_empty(),
        ..Left::default()
    }
}

fn forced(part: &Part, at: usize) -> bool {
    part.forced.get(at).copied().unwrap_or(false)
}

/// How many tokens of each part go on to the second pass, and what each part is worth. With a
/// question, this is the mean log probability of the question's tokens after the part. Without one,
/// it is how little the part's own tokens were expected. The best parts go on until `coarse` times
/// the budget is reached. The part that exceeds it is cut at its end.
///
/// If there is a single part, there is nothing to choose from, so all of it goes on: if it were cut
/// at its end, the longer half of a document would be lost unread.
fn first_pass(
    parts: &[Part],
    free: usize,
    coarse: f32,
    score: &mut dyn FnMut(&[Stretch<'_>]) -> Result<Scores>,
) -> Result<(Vec<usize>, Vec<f32>)> {
    let mut cut = reserve::filled(WHAT, parts.len(), 0)?;
    let mut worths = reserve::filled(WHAT, parts.len(), 0.0)?;
    let mut ranked = reserve::room(WHAT, parts.len())?;
    let compressed = |part: &Part| part.kind == SegmentKind::Compress && !part.tokens.is_empty();
    ranked.extend((0..parts.len()).filter(|i| compressed(&parts[*i])));
    let rest: usize = ranked.iter().map(|i| parts[*i].tokens.len()).sum();
    // A float times a count of tokens. This is at least the budget, because coarse is 1 or more.
    let limit = (f64::from(coarse) * free as f64) as usize;
    if ranked.len() == 1 || rest <= limit {
        for i in ranked {
            cut[i] = parts[i].tokens.len();
        }
        return Ok((cut, worths));
    }
    let questions = parts
        .iter()
        .filter(|part| part.kind == SegmentKind::Question);
    let mut question = reserve::room(WHAT, questions.clone().map(|q| q.tokens.len()).sum())?;
    questions.for_each(|q| question.extend(&q.tokens));
    let mut stretches = reserve::room(WHAT, ranked.len())?;
    stretches.extend(ranked.iter().map(|i| match question.is_empty() {
        true => Stretch {
            context: &[],
            text: &parts[*i].tokens,
        },
        false => Stretch {
            context: &parts[*i].tokens,
            text: &question,
        },
    }));
    for (i, found) in ranked.iter().zip(score(&stretches)?) {
        let sum: f64 = found.iter().map(|logprob| f64::from(*logprob)).sum();
        let mean = (sum / found.len() as f64) as f32;
        worths[*i] = if question.is_empty() { -mean } else { mean };
    }
    ranked.sort_unstable_by(|a, b| worths[*b].total_cmp(&worths[*a]).then(a.cmp(b)));
    let mut room = limit;
    for i in ranked {
        cut[i] = parts[i].tokens.len().min(room);
        room -= cut[i];
    }
    Ok((cut, worths))
}

/// Tokens that are decided on together.
struct Window {
    tokens: usize,
    /// How many of them are to stay before others do.
    stay: usize,
}

/// How many tokens each window keeps: `free` together, in proportion to the windows' tokens. Shares
/// are rounded cumulatively: the windows up to any one keep together their exact share, rounded. So
/// rounding errors are spread over the text. (With the method of largest remainders, the first
/// windows of one size got all that rounding gave.) Tokens that are to stay do so if that is
/// possible, and only what they leave is shared out.
fn quotas(parts: &[Part], cut: &[usize], free: usize, window: usize) -> Result<Vec<usize>> {
    let mut windows: Vec<Window> =
        reserve::room(WHAT, cut.iter().map(|n| n.div_ceil(window)).sum())?;
    for (part, cut) in parts.iter().zip(cut) {
        for begin in (0..*cut).step_by(window) {
            let end = (begin + window).min(*cut);
            let stay = (begin..end).filter(|at| forced(part, *at)).count();
            windows.push(Window {
                tokens: end - begin,
                stay,
            });
        }
    }
    let staying: usize = windows.iter().map(|w| w.stay).sum();
    let (share, weigh): (_, fn(&Window) -> usize) = match staying <= free {
        true => (free - staying, |w| w.tokens - w.stay),
        false => (free, |w| w.stay),
    };
    let total = windows.iter().map(weigh).sum::<usize>().max(1) as u128;
    let mut given = reserve::room(WHAT, windows.len())?;
    let (mut weight, mut before) = (0, 0);
    for window in &windows {
        weight += weigh(window) as u128;
        let up_to = (2 * weight * share as u128 + total) / (2 * total);
        // This is no more than the window has, because no more is shared out than there is.
        given.push((up_to - before) as usize);
        before = up_to;
    }
    if staying <= free {
        for (window, given) in windows.iter().zip(&mut given) {
            *given += window.stay;
        }
    }
    Ok(given)
}

/// The places of the `n` tokens that stay, in order. Tokens that are to stay come first, then the
/// least likely; of equally likely tokens, the earlier.
fn least_likely(logprobs: &[f32], forced: impl Fn(usize) -> bool, n: usize) -> Result<Vec<usize>> {
    let mut order = reserve::room(WHAT, logprobs.len())?;
    order.extend(0..logprobs.len());
    order.sort_unstable_by(|a, b| {
        let first = forced(*b).cmp(&forced(*a));
        let likely = logprobs[*a].total_cmp(&logprobs[*b]);
        first.then(likely).then(a.cmp(b))
    });
    order.truncate(n);
    order.sort_unstable();
    Ok(order)
}

#[cfg(test)]
#[path = "shorten_tests.rs"]
mod tests;
