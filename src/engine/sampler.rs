//! Logits to a token: repetition penalty, temperature, top-k, top-p, min-p, draw.
//!
//! Nothing is sorted. Top-k is a threshold on the logits. The nucleus is a weighted quickselect: the
//! last token it keeps is also a threshold, and the draw wants ascending ids anyway. Masses are
//! float64 and are added in a fixed order, so the outcome does not depend on the machine.
//!
//! Logits that are not finite (NaN, the infinities) are impossible tokens.

use super::request::GenerateOptions;
use super::stream::Alternative;
use crate::{Result, Token, reserve};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cmp::Ordering;

/// How a token is chosen. In range, as [`GenerateOptions::check`] sees to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// 0 is greedy.
    pub temperature: f32,
    /// Most likely tokens to keep, ties with the last of them too; 0 is off.
    pub top_k: usize,
    /// Keep a token while the mass before it is at most this; 1 is off.
    pub top_p: f32,
    /// Keep tokens with at least this share of the most likely token's probability; 0 is off.
    pub min_p: f32,
    /// Applied once per distinct earlier token; 1 is off.
    pub repetition_penalty: f32,
}

impl From<&GenerateOptions> for Params {
    fn from(options: &GenerateOptions) -> Self {
        Self {
            temperature: options.temperature,
            top_k: options.top_k.max(0) as usize,
            top_p: options.top_p,
            min_p: options.min_p,
            repetition_penalty: options.repetition_penalty,
        }
    }
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Its id.
    pub token: Token,
    /// Its probability times a constant: relative to the most likely token's, which has 1.
    pub mass: f64,
}

/// The uniform number for the token at absolute `position` of sequence `stream` of a call: the upper
/// 24 bits of the first word of block `position` of ChaCha8, over 2^24.
///
/// The 256-bit key is `rand_core`'s `seed_from_u64(seed)`: eight words of PCG32 (XSH-RR) over the
/// seed. The 64-bit nonce is `stream`. Any place of the sequence of draws can so be computed alone.
pub fn uniform(seed: u64, stream: u64, position: u64) -> f64 {
    let mut chacha = ChaCha8Rng::seed_from_u64(seed);
    chacha.set_stream(stream);
    chacha.set_word_pos(u128::from(position) * 16);
    f64::from(chacha.next_u32() >> 8) / f64::from(1u32 << 24)
}

/// Numbers that are worked on together where the compiler vectorises.
const LANES: usize = 16;

/// Works on one row of logits at a time and keeps its scratch memory between rows.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Ids from here on are never sampled.
    n_tokens: usize,
    /// The loaded row with -inf for what is not finite, `[vocab_size]`.
    logits: Vec<f32>,
    /// The same after the penalty, `[n_tokens]`.
    penalised: Vec<f32>,
    /// `exp((logit - max) / temperature)`, `[n_tokens]`.
    masses: Vec<f64>,
    kept: Vec<Kept>,
    order: Vec<Kept>,
    select: Vec<f32>,
}

impl Sampler {
    /// A sampler that never gives an id of `n_tokens` or more (ids that the model's vocabulary has
    /// and the tokenizer has not).
    pub fn new(n_tokens: usize) -> Self {
        Self {
            n_tokens,
            ..Self::default()
        }
    }

    /// Take now all the room that rows of `vocab_size` logits will need: later, on the engine's
    /// thread, there is nobody to be told that it cannot be had.
    pub fn reserve(&mut self, vocab_size: usize) -> Result<()> {
        let what = "the sampler (the vocabulary)";
        for v in [&mut self.logits, &mut self.penalised, &mut self.select] {
            reserve::vec(what, v, vocab_size)?;
        }
        reserve::vec(what, &mut self.masses, vocab_size)?;
        reserve::vec(what, &mut self.kept, vocab_size)?;
        reserve::vec(what, &mut self.order, vocab_size)
    }

    /// Take a row of raw logits, `[vocab_size]`.
    pub fn load(&mut self, logits: &[f32]) {
        self.logits.clear();
        let clean = |l: &f32| if l.is_finite() { *l } else { f32::NEG_INFINITY };
        self.logits.extend(logits.iter().map(clean));
    }

    /// The token at a draw of `uniform` in [0, 1); `None` if no token is possible. `previous` are the
    /// tokens before it, for the penalty; they may repeat.
    pub fn sample(&mut self, params: &Params, previous: &[Token], uniform: f64) -> Option<Token> {
        let kept = self.distribution(params, previous);
        let total: f64 = kept.iter().map(|k| k.mass).sum();
        let mut below = 0.0;
        for k in kept {
            below += k.mass;
            if below > uniform * total {
                return Some(k.token);
            }
        }
        None
    }

    /// What may be drawn, by ascending id; empty if no token is possible.
    pub fn distribution(&mut self, params: &Params, previous: &[Token]) -> &[Kept] {
        let Self {
            n_tokens,
            logits,
            penalised,
            masses,
            kept,
            order,
            select,
        } = self;
        kept.clear();
        let logits = &logits[..logits.len().min(*n_tokens)];
        let values = match params.repetition_penalty {
            1.0 => logits,
            penalty => {
                penalise(penalised, logits, previous, penalty);
                penalised
            }
        };
        let max = maximum(values);
        if max == f32::NEG_INFINITY {
            return kept;
        }
        if params.temperature == 0.0 {
            let first = values.iter().position(|v| *v == max);
            kept.extend(first.map(|id| Kept {
                token: id as Token,
                mass: 1.0,
            }));
            return kept;
        }

        // A product instead of a quotient: temperatures down to the smallest f32 have a finite inverse
        // in f64, and the most likely token's exponent stays exactly 0.
        let (max, scale) = (f64::from(max), 1.0 / f64::from(params.temperature));
        let mass = |value: f32| exp((f64::from(value) - max) * scale);
        let keep = |(id, mass): (usize, f64)| Kept {
            token: id as Token,
            mass,
        };
        let top_p = f64::from(params.top_p);
        if (1..values.len()).contains(&params.top_k) {
            let floor = kth_largest(values, params.top_k, select);
            let top = values
                .iter()
                .enumerate()
                .filter(|(_, value)| **value >= floor);
            kept.extend(
                top.map(|(id, value)| keep((id, mass(*value))))
                    .filter(|k| k.mass > 0.0),
            );
            if top_p < 1.0 {
                let total = kept.iter().map(|k| k.mass).sum();
                keep_nucleus(kept, order, top_p, total);
            }
        } else {
            exponentials(masses, values, max, scale);
            let total = sum_from(masses, 0.0);
            // Where tokens of some mass and more have over top_p together, the nucleus is among
            // them. Finding that out takes a few vectorised passes and spares most of the selection.
            let least = match top_p < 1.0 {
                true => [1e-1, 1e-2, 1e-3, 1e-5]
                    .into_iter()
                    .find(|least| sum_from(masses, *least) > top_p * total)
                    .unwrap_or(f64::MIN_POSITIVE),
                false => f64::MIN_POSITIVE,
            };
            let likely = masses
                .iter()
                .enumerate()
                .filter(|(_, mass)| **mass >= least);
            kept.extend(likely.map(|(id, mass)| keep((id, *mass))));
            if top_p < 1.0 {
                keep_nucleus(kept, order, top_p, total);
            }
        }
        if params.min_p > 0.0 {
            // The most likely token has mass 1 and is always among the kept.
            kept.retain(|k| k.mass >= f64::from(params.min_p));
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
        let max = f64::from(max);
        exponentials(&mut self.masses, &self.logits, max, 1.0);
        Some(LogSoftmax {
            log_total: max + sum_from(&self.masses, 0.0).ln(),
        })
    }

    /// Log probability of a token; -inf for an impossible one.
    pub fn logprob(&self, softmax: &LogSoftmax, token: Token) -> f32 {
        softmax.logprob(self.logits[token as usize])
    }

    /// The `n` most likely tokens under the raw logits, best first, ties lowest id first; fewer only
    /// where the vocabulary is smaller.
    pub fn alternatives(&mut self, softmax: &LogSoftmax, n: usize) -> Vec<Alternative> {
        let Self {
            logits,
            select,
            order,
            ..
        } = self;
        let n = n.min(logits.len());
        if n == 0 {
            return Vec::new();
        }
        let floor = kth_largest(logits, n, select);
        let top = logits
            .iter()
            .enumerate()
            .filter(|(_, logit)| **logit >= floor);
        order.clear();
        order.extend(top.map(|(id, l)| Kept {
            token: id as Token,
            mass: f64::from(*l),
        }));
        order.sort_unstable_by(best_first);
        let alternative = |k: &Kept| Alternative {
            token: k.token,
            logprob: softmax.logprob(logits[k.token as usize]),
        };
        order.iter().take(n).map(alternative).collect()
    }
}

/// The normaliser of a row: log of the sum of exp(logit).
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax {
    log_total: f64,
}

impl LogSoftmax {
    fn logprob(&self, logit: f32) -> f32 {
        // Rounding must not make a certain token more than certain.
        ((f64::from(logit) - self.log_total) as f32).min(0.0)
    }
}

/// Logits after the penalty. Computed from the raw value, so a repeated token is penalised once.
fn penalise(out: &mut Vec<f32>, logits: &[f32], previous: &[Token], penalty: f32) {
    out.clear();
    out.extend_from_slice(logits);
    for token in previous {
        let at = *token as usize;
        if let Some(&logit) = logits.get(at).filter(|logit| logit.is_finite()) {
            let value = if logit > 0.0 {
                logit / penalty
            } else {
                logit * penalty
            };
            out[at] = value.clamp(f32::MIN, f32::MAX);
        }
    }
}

/// -inf for an empty slice. Lanes, because a chain of dependent maxima would not vectorise.
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

/// The sum of the values that are `least` or more, in an order that depends on the length alone.
fn sum_from(values: &[f64], least: f64) -> f64 {
    let counted = |value: &f64| if *value >= least { *value } else { 0.0 };
    let mut lanes = [0.0; LANES];
    let chunks = values.chunks_exact(lanes.len());
    let rest: f64 = chunks.remainder().iter().map(counted).sum();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += counted(value);
        }
    }
    lanes.into_iter().sum::<f64>() + rest
}

/// `out[i] = exp((values[i] - max) * scale)`. A loop over slices, with the numbers by value: as an
/// iterator with a capturing closure it does not vectorise and takes twice as long.
fn exponentials(out: &mut Vec<f64>, values: &[f32], max: f64, scale: f64) {
    out.resize(values.len(), 0.0);
    for (out, value) in out.iter_mut().zip(values) {
        *out = exp((f64::from(*value) - max) * scale);
    }
}

/// e^x for x <= 0, relative error below 1e-11; 0 below -700. Branch-free so that it vectorises, and
/// ours rather than the C library's so that the same seed gives the same token on every machine.
#[inline(always)]
fn exp(x: f64) -> f64 {
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts; the first has so few bits that n times it is exact.
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let clamped = if x > -700.0 { x } else { -700.0 };
    let rounded = clamped * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    // Taylor to the ninth power: |r| <= ln 2 / 2, the tenth term is 7e-12.
    let mut p = 1.0 / 362_880.0;
    for c in [40_320.0, 5_040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        p = p * r + 1.0 / c;
    }
    let scaled = f64::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 52));
    if x > -700.0 { scaled } else { 0.0 }
}

/// The `k`-th largest value, 1 <= k <= len.
///
/// The k-th largest of the maxima of blocks is a lower bound, since k values are at least that; one
/// vectorised pass finds it and leaves few values to select from. Without it, selecting from 32,000
/// values takes longer than everything else together.
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

/// Most likely first, ties lowest id first.
fn best_first(a: &Kept, b: &Kept) -> Ordering {
    b.mass.total_cmp(&a.mass).then(a.token.cmp(&b.token))
}

/// Keep a token while the mass of those before it is at most `top_p` of `total` (Meta's rule), so the
/// one that crosses stays and one always remains. `kept` must hold at least all of those.
fn keep_nucleus(kept: &mut Vec<Kept>, order: &mut Vec<Kept>, top_p: f64, total: f64) {
    order.clear();
    order.extend_from_slice(kept);
    let mut rest = &mut order[..];
    let mut before = 0.0;
    // Invariant: the best of `rest` is in the nucleus, `before` is the mass of all better than it,
    // and the nucleus ends within `rest`.
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        let (better, _, _) = rest.select_nth_unstable_by(middle, best_first);
        let mass: f64 = better.iter().map(|k| k.mass).sum();
        if before + mass <= top_p * total {
            before += mass;
            rest = &mut rest[middle..];
        } else {
            rest = &mut rest[..middle];
        }
    }
    if let Some(last) = rest.first().copied() {
        kept.retain(|k| best_first(k, &last) != Ordering::Greater);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_eleven_digits_and_ends_at_zero() {
        for i in 0..700_000 {
            let x = -f64::from(i) / 1000.0;
            assert!(
                (exp(x) / x.exp() - 1.0).abs() < 1e-11,
                "exp({x}) = {}",
                exp(x)
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-700.0), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e300), 0.0);
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
        let bits = |seed, stream, position| (uniform(seed, stream, position) * 16_777_216.0) as u32;
        let draws = [
            bits(1, 0, 0),
            bits(1, 0, 1),
            bits(1, 1, 0),
            bits(2, 0, 0),
            bits(1, 0, 4095),
        ];
        assert_eq!(draws, [9_217_037, 700_768, 14_939_565, 3_246_619, 809_112]);
    }
}
