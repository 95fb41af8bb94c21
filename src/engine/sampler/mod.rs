//! Logits to a token: repetition penalty, edits (biases, other penalties, bans), mask, temperature,
//! top-k, top-p, min-p, typical, epsilon, eta, draw.
//!
//! Candidates are ordered by descending logit, and ties by ascending id. Nothing is sorted, because
//! the draw needs ascending ids anyway: top-k is a threshold, and a weighted quickselect finds the
//! last token of the nucleus. Probabilities are integers ([`crate::backend::choice`]), whose sums
//! are exact, so a device that selects and adds in another order chooses the same token.
//!
//! Logits that are not finite (NaN, the infinities) are impossible tokens.

mod contrast;
mod device;
mod filters;
mod passes;

pub use device::picked;
pub(super) use device::{alternatives_of, continuations_of};

use self::filters::{change, clean, filter_probabilities, keep_nucleus};
use self::passes::{at_least, best, exponentials, kth_largest, maximum, share_from, total_mass};
use super::event::Alternative;
use super::request::GenerateOptions;
use crate::backend::Choices;
use crate::backend::choice::{self, Changes, Choice, Filters, ONE, Scale, Strategy, mass, rank};
use crate::{Result, Token, reserve};
use rand::rngs::ChaCha8Rng;
use rand::{Rng, SeedableRng};

/// The options are in range: [`GenerateOptions::check`] has checked them.
impl From<&GenerateOptions> for Strategy {
    fn from(options: &GenerateOptions) -> Self {
        Strategy {
            penalty: options.repetition_penalty,
            scale: (options.temperature > 0.0).then(|| Scale::new(options.temperature)),
            top_k: options.top_k.max(0) as u32,
            top_p: match options.top_p < 1.0 {
                true => (f64::from(options.top_p) * 2f64.powi(32)) as u32,
                false => choice::ALL,
            },
            min_mass: ((f64::from(options.min_p) * ONE as f64).ceil() as u64).max(1),
            filters: Filters {
                typical: match options.typical_p < 1.0 {
                    true => options.typical_p,
                    false => 0.0,
                },
                epsilon: options.epsilon_cutoff,
                eta: options.eta_cutoff,
            },
        }
    }
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Its id.
    pub token: Token,
    /// Its probability times a constant: the most likely token has [`ONE`].
    pub mass: u64,
}

/// The uniform number for the token at absolute `position` of sequence `stream` of a call, over
/// 2^24: the upper 24 bits of the first word of block `position` of ChaCha8.
///
/// The 256-bit key is `rand_core`'s `seed_from_u64(seed)`: eight words of PCG32 (XSH-RR) over the
/// seed. The 64-bit nonce is `stream`. So each draw can be computed without the draws before it.
pub fn uniform(seed: u64, stream: u64, position: u64) -> u32 {
    let mut chacha = ChaCha8Rng::seed_from_u64(seed);
    chacha.set_stream(stream);
    chacha.set_word_pos(u128::from(position) * 16);
    chacha.next_u32() >> 8
}

/// The numbers that are reported with a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Score {
    /// Log probability of the token; 0 if it is not wanted.
    pub logprob: f32,
    /// As many alternatives as are wanted.
    pub top: Vec<Alternative>,
}

impl Score {
    /// A copy of the score. Fails if there is no memory for it.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self {
            logprob: self.logprob,
            top: reserve::copy(ALTERNATIVES, &self.top)?,
        })
    }
}

/// The name of the alternatives' memory in error messages.
const ALTERNATIVES: &str = "the alternatives of a token (top_logprobs)";

/// Chooses tokens for one row of logits at a time, and keeps its scratch memory between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Ids from here on are never sampled.
    n_tokens: usize,
    /// The loaded row, `[vocab_size]`. Numbers that are not finite have become -inf, and negative
    /// zeros have become zero.
    logits: Vec<f32>,
    /// The loaded row contrasted with another model's row, if [`Sampler::contrast`] was called.
    contrasted: Vec<f32>,
    /// In contrastive decoding: how much less likely than the likeliest token a token may be, as a
    /// logarithm.
    log_alpha: Option<f32>,
    /// The logits after penalty, edits and mask, `[n_tokens]`.
    changed: Vec<f32>,
    /// `exp((logit - max) / temperature)`, `[n_tokens]`.
    shares: Vec<f32>,
    kept: Vec<Kept>,
    order: Vec<(Place, u64)>,
    select: Vec<f32>,
    /// Scratch for typical sampling.
    distances: Vec<(f64, u64)>,
}

/// A number that orders candidates, the best first: [`rank`], then id.
type Place = u64;

fn place(value: f32, id: usize) -> Place {
    u64::from(rank(value)) << 32 | id as u64
}

fn id(place: Place) -> Token {
    (place & u64::from(u32::MAX)) as Token
}

/// A token that a beam may go on with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Continuation {
    /// Its id.
    pub token: Token,
    /// Its log probability under the raw logits.
    pub logprob: f32,
    /// The log probability after penalties, edits and mask. It is added to the beam's sum.
    pub changed: f32,
}

/// The loaded row, as the row behind a beam.
#[derive(Clone, Copy, Debug)]
pub struct Beam {
    /// Normaliser of the row.
    pub softmax: LogSoftmax,
    plain: bool,
}

impl Sampler {
    /// A sampler that never chooses an id of `n_tokens` or more. (The model's vocabulary may be
    /// larger than the tokenizer's.)
    pub fn new(n_tokens: usize) -> Self {
        Self {
            n_tokens,
            ..Self::default()
        }
    }

    /// Allocates all memory that rows of `vocab_size` logits will need. Later, on the engine's
    /// thread, there would be nobody to whom a failure could be reported.
    pub fn reserve(&mut self, vocab_size: usize) -> Result<()> {
        let what = "the sampler (the vocabulary)";
        for v in [
            &mut self.logits,
            &mut self.contrasted,
            &mut self.changed,
            &mut self.shares,
            &mut self.select,
        ] {
            reserve::vec(what, v, vocab_size)?;
        }
        reserve::vec(what, &mut self.kept, vocab_size)?;
        reserve::vec(what, &mut self.order, vocab_size)?;
        reserve::vec(what, &mut self.distances, vocab_size)
    }

    /// Loads a row of raw logits, `[vocab_size]`.
    pub fn load(&mut self, logits: &[f32]) {
        self.logits.clear();
        self.logits.extend(logits.iter().map(|l| clean(*l)));
        self.log_alpha = None;
    }

    /// Makes `choice`, one of `choices`, for the loaded row. Returns `None` if no token is
    /// possible. If there is no memory for the alternatives, it fails with
    /// [`Error::Refused`](crate::Error::Refused).
    pub fn choose(&mut self, choice: &Choice, choices: &Choices) -> Result<Option<(Token, Score)>> {
        let drawn = || self.draw(&choice.strategy, choices.changes(choice), choice.draw);
        match choice.given.or_else(drawn) {
            Some(token) => self.scored(choice, token),
            None => Ok(None),
        }
    }

    /// Returns `token` with the numbers about it that `choice` asks to be reported. Returns `None`
    /// if no token of the loaded row is possible. Fails as [`Sampler::choose`] does.
    pub fn scored(&mut self, choice: &Choice, token: Token) -> Result<Option<(Token, Score)>> {
        if !choice.scored() {
            return Ok(Some((token, Score::default())));
        }
        let Some(softmax) = self.log_softmax() else {
            return Ok(None);
        };
        let score = Score {
            logprob: match choice.logprob {
                true => self.logprob(&softmax, token),
                false => 0.0,
            },
            top: self.alternatives(&softmax, choice.top)?,
        };
        Ok(Some((token, score)))
    }

    /// The loaded row, `[vocab_size]`; -inf stands for numbers that are not finite.
    pub fn loaded(&self) -> &[f32] {
        &self.logits
    }

    /// The values from which a token of the loaded row is drawn, `[n_tokens]`.
    pub fn changed(&mut self, strategy: &Strategy, changes: Changes<'_>) -> &[f32] {
        self.change(strategy, changes);
        &self.changed
    }

    /// Whether the loaded row has a finite logit.
    pub fn has_possible(&self) -> bool {
        let n = self.logits.len().min(self.n_tokens);
        maximum(&self.logits[..n]) > f32::NEG_INFINITY
    }

    /// The token at a draw of `uniform` over 2^24; `None` if no token is possible.
    pub fn draw(
        &mut self,
        strategy: &Strategy,
        changes: Changes<'_>,
        uniform: u32,
    ) -> Option<Token> {
        let kept = self.distribution(strategy, changes);
        let total = kept.iter().map(|k| k.mass).sum();
        let target = choice::target(uniform, total);
        let mut below = 0;
        for k in kept {
            below += k.mass;
            if below > target {
                return Some(k.token);
            }
        }
        None
    }

    /// The tokens that may be drawn, by ascending id; empty if no token is possible.
    pub fn distribution(&mut self, strategy: &Strategy, changes: Changes<'_>) -> &[Kept] {
        let plain = strategy.penalty == 1.0
            && changes.edits.is_empty()
            && changes.mask.is_none()
            && self.log_alpha.is_none();
        if !plain {
            self.change(strategy, changes);
        }
        let Self {
            n_tokens,
            logits,
            changed,
            shares,
            kept,
            order,
            select,
            distances,
            ..
        } = self;
        kept.clear();
        let values = match plain {
            true => &logits[..logits.len().min(*n_tokens)],
            false => &changed[..],
        };
        let max = maximum(values);
        if max == f32::NEG_INFINITY {
            return kept;
        }
        let Some(scale) = strategy.scale else {
            let first = values.iter().position(|v| *v == max);
            kept.extend(first.map(|id| Kept {
                token: id as Token,
                mass: ONE,
            }));
            return kept;
        };

        let keep = |(id, mass): (usize, u64)| Kept {
            token: id as Token,
            mass,
        };
        let top_k = strategy.top_k as usize;
        let total = if (1..values.len()).contains(&top_k) {
            let floor = kth_largest(values, top_k, select);
            let masses = at_least(values, floor).map(|id| (id, mass(scale.share(values[id], max))));
            kept.extend(masses.map(keep).filter(|k| k.mass > 0));
            kept.iter().map(|k| k.mass).sum()
        } else {
            exponentials(shares, values, max, scale);
            let (mut total, mut least) = (0, f32::NEG_INFINITY);
            if strategy.top_p != choice::ALL {
                total = total_mass(shares);
                // If the tokens above some logit have more than top_p together, they contain the
                // nucleus. A few vectorised passes find such a logit, which saves most of the
                // selection. Float sums suffice here, with a margin far above their error; the
                // nucleus itself is computed exactly.
                let limit = strategy.nucleus(total) as f32 / ONE as f32 * 1.01;
                least = [3.0, 7.0, 10.0, 17.0]
                    .into_iter()
                    .map(|halvings| max - halvings / scale.halvings)
                    .find(|least| share_from(shares, values, *least) > limit)
                    .unwrap_or(least);
            }
            let masses = at_least(values, least).map(|id| (id, mass(shares[id])));
            kept.extend(masses.map(keep).filter(|k| k.mass > 0));
            total
        };
        if strategy.top_p != choice::ALL {
            keep_nucleus(kept, order, values, strategy.nucleus(total));
        }
        if strategy.min_mass > 1 {
            // The most likely token has the largest possible mass, so it is always kept.
            kept.retain(|k| k.mass >= strategy.min_mass);
        }
        if strategy.filters_probabilities() {
            filter_probabilities(kept, &strategy.filters, values, distances);
        }
        kept
    }

    /// Log probabilities under the loaded row's raw logits, over the whole vocabulary; `None` if no
    /// token is possible.
    pub fn log_softmax(&mut self) -> Option<LogSoftmax> {
        let max = maximum(&self.logits);
        if max == f32::NEG_INFINITY {
            return None;
        }
        exponentials(&mut self.shares, &self.logits, max, Scale::new(1.0));
        let total = total_mass(&self.shares);
        Some(LogSoftmax::new(max, total))
    }

    /// Log probability of a token; -inf for an impossible one.
    pub fn logprob(&self, softmax: &LogSoftmax, token: Token) -> f32 {
        softmax.logprob(self.logits[token as usize])
    }

    /// Appends the `n` best continuations of a beam under `choice`, one of `choices`, to `out`:
    /// best first, ties by lowest id, without impossible ones. Penalty, edits and mask, which
    /// elsewhere change logits, change log probabilities here. So the log probabilities stay those
    /// of the model if nothing changes them. Returns `None` if the loaded row has no possible
    /// token.
    pub fn continuations(
        &mut self,
        choice: &Choice,
        choices: &Choices,
        n: usize,
        out: &mut Vec<Continuation>,
    ) -> Option<Beam> {
        let softmax = self.log_softmax()?;
        let Self {
            n_tokens,
            logits,
            changed,
            shares,
            order,
            select,
            ..
        } = self;
        let logits = &logits[..logits.len().min(*n_tokens)];
        let (penalty, changes) = (choice.strategy.penalty, choices.changes(choice));
        let plain = penalty == 1.0 && changes.edits.is_empty() && changes.mask.is_none();
        let values = match plain {
            true => logits,
            false => {
                shares.clear();
                shares.extend(logits.iter().map(|logit| softmax.logprob(*logit)));
                change(changed, shares, penalty, changes);
                changed
            }
        };
        best(values, n, select, order);
        let beam = Beam { softmax, plain };
        let all = self.order.iter().map(|(place, _)| id(*place));
        let all = all.filter_map(|token| self.continuation(&beam, token));
        out.extend(all.take(n));
        Some(beam)
    }

    /// The numbers of a beam's continuation by `token`; `None` if it is impossible. `beam` must be
    /// of the loaded row.
    pub fn continuation(&self, beam: &Beam, token: Token) -> Option<Continuation> {
        let at = token as usize;
        let logprob = beam.softmax.logprob(*self.logits.get(at)?);
        let changed = match beam.plain {
            true => logprob,
            false => *self.changed.get(at)?,
        };
        let possible = at < self.n_tokens && changed > f32::NEG_INFINITY;
        possible.then_some(Continuation {
            token,
            logprob,
            changed,
        })
    }

    /// The `n` most likely tokens under the raw logits, best first, ties by ascending id. There are
    /// fewer only if the vocabulary is smaller.
    pub fn alternatives(&mut self, softmax: &LogSoftmax, n: usize) -> Result<Vec<Alternative>> {
        let Self {
            logits,
            select,
            order,
            ..
        } = self;
        let n = n.min(logits.len());
        let mut alternatives = reserve::room(ALTERNATIVES, n)?;
        if n == 0 {
            return Ok(alternatives);
        }
        best(logits, n, select, order);
        let alternative = |(place, _): &(Place, u64)| Alternative {
            token: id(*place),
            logprob: softmax.logprob(logits[id(*place) as usize]),
        };
        alternatives.extend(order.iter().take(n).map(alternative));
        Ok(alternatives)
    }
}

/// The normaliser of a row: log of the sum of exp(logit).
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    log_total: f64,
}

impl LogSoftmax {
    /// Computes it from the largest logit and the sum of masses at temperature 1.
    fn new(max: f32, total: u64) -> Self {
        Self {
            log_total: f64::from(max) + (total as f64 / ONE as f64).ln(),
        }
    }

    fn logprob(&self, logit: f32) -> f32 {
        // Rounding must not make a certain token more than certain.
        ((f64::from(logit) - self.log_total) as f32).min(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values from a separate ChaCha8 and PCG32, written down from their specifications.
    #[test]
    fn the_draws_of_a_seed_are_fixed_for_ever() {
        let draws = [
            uniform(1, 0, 0),
            uniform(1, 0, 1),
            uniform(1, 1, 0),
            uniform(2, 0, 0),
            uniform(1, 0, 4095),
        ];
        assert_eq!(draws, [9_217_037, 700_768, 14_939_565, 3_246_619, 809_112]);
    }
}
