//! Logits to a token: repetition penalty, edits (biases, other penalties, bans), mask, temperature,
//! top-k, top-p, min-p, typical, epsilon, eta, draw.
//!
//! Candidates are ordered by descending logit, and ties by ascending id. Nothing is sorted, because
//! the draw needs ascending ids anyway: top-k is a threshold, and a weighted quickselect finds the
//! last token of the nucleus. Probabilities are integers ([`crate::backend::choice`]), whose sums
//! are exact, so a device that selects and adds in another order chooses the same token.
//!
//! Logits that are not finite (NaN, the infinities) are impossible tokens.

use super::event::Alternative;
use super::request::GenerateOptions;
use crate::backend::Step;
use crate::backend::choice::{
    self, Changes, Choice, Edit, ONE, Pick, Scale, Strategy, mass, mass_parts, rank,
};
use crate::{Result, Token, reserve};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

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
            typical: match options.typical_p < 1.0 {
                true => options.typical_p,
                false => 0.0,
            },
            epsilon: options.epsilon_cutoff,
            eta: options.eta_cutoff,
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
    /// The same once more.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self {
            logprob: self.logprob,
            top: reserve::copy(ALTERNATIVES, &self.top)?,
        })
    }
}

/// The name of the alternatives' memory in error messages.
const ALTERNATIVES: &str = "the alternatives of a token (top_logprobs)";

/// The number of elements that vectorised loops process together.
const LANES: usize = 16;

/// Chooses tokens for one row of logits at a time, and keeps its scratch memory between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Ids from here on are never sampled.
    n_tokens: usize,
    /// The loaded row, `[vocab_size]`: numbers that are not finite have become -inf, and negative
    /// zeros zero.
    logits: Vec<f32>,
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
    /// The same after penalties, edits and mask: what is added to the beam's sum.
    pub changed: f32,
}

/// The loaded row, as the end of a beam.
#[derive(Clone, Copy, Debug)]
pub struct Beam {
    /// Its normaliser.
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
    }

    /// Makes `choice`, one of the step's choices, for the loaded row. Returns `None` if no token is
    /// possible. If there is no memory for the alternatives, it fails with
    /// [`Error::Refused`](crate::Error::Refused).
    pub fn choose(&mut self, choice: &Choice, step: &Step) -> Result<Option<(Token, Score)>> {
        let drawn = || self.draw(&choice.strategy, step.changes(choice), choice.draw);
        match choice.given.or_else(drawn) {
            Some(token) => self.scored(choice, token),
            None => Ok(None),
        }
    }

    /// A token with what `choice` asks to be reported of it; `None` if the loaded row has no
    /// possible one. Fails as [`Sampler::choose`].
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

    /// The loaded row, `[vocab_size]`: -inf for what is not finite.
    pub fn loaded(&self) -> &[f32] {
        &self.logits
    }

    /// What of the loaded row a token is drawn from, `[n_tokens]`.
    pub fn changed(&mut self, strategy: &Strategy, changes: Changes<'_>) -> &[f32] {
        let n = self.logits.len().min(self.n_tokens);
        let logits = &self.logits[..n];
        change(&mut self.changed, logits, strategy.penalty, changes);
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
        let Self {
            n_tokens,
            logits,
            changed,
            shares,
            kept,
            order,
            select,
            distances,
        } = self;
        kept.clear();
        let logits = &logits[..logits.len().min(*n_tokens)];
        let plain = strategy.penalty == 1.0 && changes.edits.is_empty() && changes.mask.is_none();
        let values = match plain {
            true => logits,
            false => {
                change(changed, logits, strategy.penalty, changes);
                changed
            }
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
            let top = values
                .iter()
                .enumerate()
                .filter(|(_, value)| **value >= floor);
            kept.extend(
                top.map(|(id, value)| keep((id, mass(scale.share(*value, max)))))
                    .filter(|k| k.mass > 0),
            );
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
            let likely = values
                .iter()
                .zip(&*shares)
                .enumerate()
                .filter(|(_, (value, share))| **value >= least && **share > 0.0);
            kept.extend(
                likely
                    .map(|(id, (_, share))| keep((id, mass(*share))))
                    .filter(|k| k.mass > 0),
            );
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
            filter_probabilities(kept, strategy, values, distances);
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

    /// The `n` best continuations of a beam under `choice`, one of the step's, appended to `out`:
    /// best first, ties lowest id first, none that is impossible. What changes logits elsewhere
    /// changes log probabilities here, so that they stay those of the model where nothing does.
    /// `None` if the loaded row has no possible token.
    pub fn continuations(
        &mut self,
        choice: &Choice,
        step: &Step,
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
        let (penalty, changes) = (choice.strategy.penalty, step.changes(choice));
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

    /// What it means to go on with this token, unless that is impossible. `beam` is of the loaded
    /// row.
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

/// The same from the alternatives that a device gives for a row that nothing changes: as many more
/// than `n` as there are ids that are no tokens. `None` if no token is possible.
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
/// [`Pick::top`] is a range of the list `top`. Fails as [`Sampler::choose`] does.
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

/// Replaces a number that is not finite by -inf. Replaces negative zero by zero, because the two
/// are equal and must have the same [`rank`].
fn clean(logit: f32) -> f32 {
    if logit.is_finite() {
        logit + 0.0
    } else {
        f32::NEG_INFINITY
    }
}

/// Logits after the penalty, edits and mask. The penalty is computed from the raw value, so a
/// repeated token is penalised once.
fn change(out: &mut Vec<f32>, logits: &[f32], penalty: f32, changes: Changes<'_>) {
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

/// Typical sampling, then epsilon, then eta, each applied to the tokens that the previous filter
/// has kept. A token's probability is its mass divided by the mass of all kept tokens. Tokens are
/// in ascending order of ids, so entropies are always summed in the same order.
fn filter_probabilities(
    kept: &mut Vec<Kept>,
    strategy: &Strategy,
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
    if strategy.typical > 0.0 {
        let total = total(kept);
        let entropy = entropy(kept, total);
        let distance = |k: &Kept| (-(k.mass as f64 / total as f64).ln() - entropy).abs();
        distances.clear();
        distances.extend(kept.iter().map(|k| (distance(k), k.mass)));
        distances.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (most, mut before) = (f64::from(strategy.typical), 0u64);
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
    if strategy.epsilon > 0.0 {
        let total = total(kept);
        drop_below(kept, f64::from(strategy.epsilon), total);
    }
    if strategy.eta > 0.0 {
        let (total, eta) = (total(kept), f64::from(strategy.eta));
        let least = eta.min(eta.sqrt() * (-entropy(kept, total)).exp());
        drop_below(kept, least, total);
    }
}

/// The largest value; -inf for an empty slice. It uses lanes, because a chain of dependent maxima
/// would not vectorise.
fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = values.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *value);
        }
    }
    lanes
        .into_iter()
        .chain(rest.iter().copied())
        .fold(f32::NEG_INFINITY, larger)
}

/// The sum of all masses.
fn total_mass(shares: &[f32]) -> u64 {
    let part = |shares: &[f32]| -> u64 {
        let (mut highs, mut lows) = (0u32, 0i32);
        for share in shares {
            let (high, low) = mass_parts(*share);
            highs = highs.wrapping_add(high);
            lows = lows.wrapping_add(low);
        }
        (u64::from(highs) << 19).wrapping_add_signed(i64::from(lows))
    };
    // A part has so few shares that their sum fits into 32 bits. (With checks for overflow, the
    // loop would not be vectorised.)
    shares.chunks(2048).map(part).sum()
}

/// Roughly the sum of the shares of the values that are `least` or more.
fn share_from(shares: &[f32], values: &[f32], least: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let chunks = shares.chunks_exact(LANES).zip(values.chunks_exact(LANES));
    for (shares, values) in chunks {
        for ((lane, share), value) in lanes.iter_mut().zip(shares).zip(values) {
            *lane += if *value >= least { *share } else { 0.0 };
        }
    }
    let rest = shares.len() / LANES * LANES;
    let counted = shares[rest..].iter().zip(&values[rest..]);
    let counted = counted.filter(|(_, value)| **value >= least);
    lanes.iter().chain(counted.map(|(share, _)| share)).sum()
}

/// `out[i] = share(values[i])`. This is a loop over slices, because an iterator with a capturing
/// closure does not vectorise and takes twice as long.
fn exponentials(out: &mut Vec<f32>, values: &[f32], max: f32, scale: Scale) {
    out.resize(values.len(), 0.0);
    for (out, value) in out.iter_mut().zip(values) {
        *out = scale.share(*value, max);
    }
}

/// The `k`-th largest value, 1 <= k <= len.
///
/// The k-th largest of the maxima of blocks is a lower bound, because k values are at least as
/// large. One vectorised pass finds it and leaves few values from which to select. Without this
/// bound, selecting from 32,000 values takes longer than everything else together.
fn kth_largest(values: &[f32], k: usize, select: &mut Vec<f32>) -> f32 {
    const BLOCK: usize = 64;
    let descending = |a: &f32, b: &f32| b.total_cmp(a);
    select.clear();
    if k <= values.len() / BLOCK {
        select.extend(values.chunks(BLOCK).map(maximum));
        let bound = *select.select_nth_unstable_by(k - 1, descending).1;
        select.clear();
        select.extend(values.iter().copied().filter(|value| *value >= bound));
    } else {
        select.extend_from_slice(values);
    }
    *select.select_nth_unstable_by(k - 1, descending).1
}

/// The places of the `n` largest values and of those that are equal to the last of them, in order.
fn best(values: &[f32], n: usize, select: &mut Vec<f32>, order: &mut Vec<(Place, u64)>) {
    order.clear();
    let n = n.min(values.len());
    if n > 0 {
        let floor = kth_largest(values, n, select);
        let values = values.iter().enumerate();
        let top = values.filter(|(_, value)| **value >= floor);
        order.extend(top.map(|(id, value)| (place(*value, id), 0)));
        order.sort_unstable();
    }
}

/// Keeps a token while the mass of the tokens before it is at most `limit` (Meta's rule). So the
/// token that crosses the limit is kept, and at least one token remains. `kept` must contain all
/// tokens of the nucleus.
fn keep_nucleus(kept: &mut Vec<Kept>, order: &mut Vec<(Place, u64)>, values: &[f32], limit: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masses_add_up_to_what_each_has() {
        let scale = Scale::new(0.7);
        let values: Vec<f32> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 * (-30.0 / (1 << 24) as f32))
            .collect();
        let mut shares = Vec::new();
        exponentials(&mut shares, &values, 0.0, scale);
        let want: u64 = shares.iter().map(|share| mass(*share)).sum();
        assert_eq!(total_mass(&shares), want);
        for least in [f32::NEG_INFINITY, -20.0, -1.0, 1.0] {
            let counted = shares.iter().zip(&values).filter(|(_, v)| **v >= least);
            let want: f64 = counted.map(|(share, _)| f64::from(*share)).sum();
            let got = f64::from(share_from(&shares, &values, least));
            assert!((got - want).abs() <= 1e-4 * want, "{least}: {got} {want}");
        }
        // As much as the sums of a part can be.
        let equal = vec![1.0; 10_000];
        assert_eq!(total_mass(&equal), 10_000 * ONE);
    }

    #[test]
    fn the_kth_largest_is_what_sorting_gives() {
        let mut select = Vec::new();
        for n in [1, 2, 63, 64, 65, 128, 1000] {
            let mut values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 101) as f32 - 50.0).collect();
            values[0] = f32::NEG_INFINITY;
            let mut sorted = values.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for k in 1..=n {
                assert_eq!(
                    kth_largest(&values, k, &mut select),
                    sorted[k - 1],
                    "{k} of {n}"
                );
            }
        }
    }

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
