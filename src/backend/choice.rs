//! How a token is chosen from a row's logits, and the arithmetic of probabilities. The host's
//! sampler (`src/engine/sampler/`) and a device's (`kernels/change.cu`, `kernels/sample.cu`) must
//! share both to the bit.
//!
//! A token's probability is an integer, its *mass*: `2^39 exp((logit - max) / temperature)`,
//! rounded. A sum of integers is the same in any order, so host and device agree by construction,
//! however each of them selects and sums. (Sums of floats would need the same order of additions
//! over a sorted list on both sides, and neither side wants to do that.) Rounding changes a token's
//! probability by 2^-40 of the most likely token's, far below the 2^-24 that a draw can tell apart.
//!
//! The exponential is float32 with every operation rounded on its own, none fused: the same bits
//! wherever IEEE 754 holds.

use crate::Token;
use std::ops::Range;

/// Mass of the most likely token. The largest vocabulary has 2^24 tokens, so sums stay within 2^63.
pub const ONE: u64 = 1 << 39;

/// [`Strategy::top_p`] if nothing is cut off.
pub const ALL: u32 = u32::MAX;

/// A temperature, ready for [`Scale::share`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// `log2(e) / temperature`: converts the distance of a logit from the largest into halvings.
    pub halvings: f32,
    /// One halving, `ln(2) temperature`, in two parts. This part has so few bits that 40 times it
    /// is exact.
    pub high: f32,
    /// The second part.
    pub low: f32,
    /// `1 / temperature`.
    pub inverse: f32,
}

impl Scale {
    /// For a temperature above 0. Temperatures beyond 2^-100 and 2^100 are clamped to these: there,
    /// the numbers of [`Scale`] would overflow, and every other token has no chance or an equal
    /// one.
    pub fn new(temperature: f32) -> Scale {
        let limit = 2f64.powi(100);
        let temperature = f64::from(temperature).clamp(1.0 / limit, limit);
        let halving = std::f64::consts::LN_2 * temperature;
        let high = f32::from_bits((halving as f32).to_bits() & !0xff);
        Scale {
            halvings: (std::f64::consts::LOG2_E / temperature) as f32,
            high,
            low: (halving - f64::from(high)) as f32,
            inverse: (1.0 / temperature) as f32,
        }
    }

    /// `exp((value - max) / temperature)` for `value <= max`, with a relative error below 3e-7.
    /// Returns 0 below 2^-40 and for an impossible token (-inf). `max` is finite.
    #[inline(always)]
    pub fn share(&self, value: f32, max: f32) -> f32 {
        // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let distance = value - max;
        let halvings = distance * self.halvings;
        // What rounding took from the distance (Knuth's TwoSum). It would matter after the division
        // by a small temperature.
        let back = distance - value;
        let lost = (value - (distance - back)) - (max + back);
        let rounded = halvings + ROUND;
        let n = rounded - ROUND;
        let r = (((distance - n * self.high) - n * self.low) + lost) * self.inverse;
        // Taylor series to the seventh power: |r| <= ln 2 / 2, so the eighth term is 5e-9.
        let mut p = 1.0 / 5040.0;
        p = p * r + 1.0 / 720.0;
        p = p * r + 1.0 / 120.0;
        p = p * r + 1.0 / 24.0;
        p = p * r + 1.0 / 6.0;
        p = p * r + 0.5;
        p = p * r + 1.0;
        p = p * r + 1.0;
        let scaled = f32::from_bits(p.to_bits().wrapping_add(rounded.to_bits() << 23));
        if halvings > -40.0 { scaled } else { 0.0 }
    }
}

/// The mass of a share of the most likely token's probability: the nearest integer, ties to even.
#[inline(always)]
pub fn mass(share: f32) -> u64 {
    let (high, low) = mass_parts(share);
    (u64::from(high) << 19).wrapping_add_signed(i64::from(low))
}

/// `high * 2^19 + low` is the mass; `high` is at most 2^20, `low` between -2^18 and 2^18.
#[inline(always)]
pub fn mass_parts(share: f32) -> (u32, i32) {
    // Adding a power of two whose last place is 1 rounds to an integer and leaves it in the low
    // bits. A conversion would not vectorise, and on a GPU it would be slow.
    const ROUND: f32 = 8_388_608.0;
    const ROUND_SIGNED: f32 = 12_582_912.0;
    let scaled = share * (1 << 20) as f32;
    let rounded = scaled + ROUND;
    let rest = (scaled - (rounded - ROUND)) * (1 << 19) as f32 + ROUND_SIGNED;
    (
        rounded.to_bits().wrapping_sub(ROUND.to_bits()),
        rest.to_bits().wrapping_sub(ROUND_SIGNED.to_bits()) as i32,
    )
}

/// Maps values to integers such that descending values have ascending ranks.
#[inline(always)]
pub fn rank(value: f32) -> u32 {
    let bits = value.to_bits();
    match bits >> 31 {
        0 => !bits ^ 0x8000_0000,
        _ => bits,
    }
}

/// How a token is chosen, as the numbers that the arithmetic uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Strategy {
    /// Applied once per distinct earlier token; 1 is off.
    pub penalty: f32,
    /// `None`: the token with the largest logit, the first of several.
    pub scale: Option<Scale>,
    /// How many tokens to keep, and also all that tie with the last of them; 0 is off.
    pub top_k: u32,
    /// Keep a token while the mass before it is at most `top_p / 2^32` of the total mass; [`ALL`]
    /// is off.
    pub top_p: u32,
    /// Keep tokens with at least this mass; at least 1.
    pub min_mass: u64,
    /// What else is dropped of the tokens that the fields above leave.
    pub filters: Filters,
}

/// Filters that ask for the entropy of what is kept, or for probabilities of it. The host applies
/// them: a device hands over the logits of a row that has one. All are 0 if they are off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Filters {
    /// Typical sampling: keep the tokens whose -ln p is nearest to the entropy, until they have
    /// this probability together.
    pub typical: f32,
    /// Drop tokens less probable than this.
    pub epsilon: f32,
    /// Drop tokens less probable than `min(eta, sqrt(eta) exp(-entropy))`.
    pub eta: f32,
}

impl Strategy {
    /// A token is in the nucleus if the mass before it is at most this.
    pub fn nucleus(&self, total: u64) -> u64 {
        ((u128::from(total) * u128::from(self.top_p)) >> 32) as u64
    }

    /// Whether one of [`Filters`] has an effect, so that the host makes the choice.
    pub fn filters_probabilities(&self) -> bool {
        self.scale.is_some() && self.filters != Filters::default()
    }
}

/// A change of one token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edit {
    /// The token.
    pub token: Token,
    /// The number to add to the logit after the repetition penalty. A sum that overflows becomes
    /// the largest finite number of its sign. -inf makes the token impossible.
    pub add: f32,
}

/// The changes of a row's logits before a token is chosen: first the repetition penalty, then the
/// edits, then the mask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes<'a> {
    /// Earlier tokens, which the repetition penalty applies to; they may repeat.
    pub history: &'a [Token],
    /// Each token at most once, ascending.
    pub edits: &'a [Edit],
    /// Token t is possible only if bit `t % 32` of word `t / 32` is set. A token that has no bit is
    /// impossible.
    pub mask: Option<&'a [u32]>,
}

impl<'a> Changes<'a> {
    /// Only the repetition penalty, for these tokens.
    pub fn after(history: &'a [Token]) -> Self {
        Changes {
            history,
            ..Changes::default()
        }
    }
}

/// The number of words in a row of [`Choices::masks`] for a vocabulary of `n_tokens` tokens.
pub fn mask_words(n_tokens: usize) -> usize {
    n_tokens.div_ceil(32)
}

/// Whether the most likely continuations of a row are wanted, for a beam search, instead of a
/// token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Search {
    /// A token is.
    #[default]
    Off,
    /// They are among the alternatives, unless the row is changed: penalties, edits and masks apply
    /// to log probabilities then, which is for the host.
    Alternatives,
    /// The log probabilities of tokens are wanted that need not be among them.
    Logits,
}

/// What a step asks for one wanted row.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// A token that is only scored; `None`: a token is drawn.
    pub given: Option<Token>,
    /// How it is drawn.
    pub strategy: Strategy,
    /// The uniform random number of the draw, in units of 2^-24.
    pub draw: u32,
    /// Ids from this one on are never drawn.
    pub n_tokens: usize,
    /// The earlier tokens, in [`Choices::history`], if there is a penalty; they may repeat.
    pub history: Range<usize>,
    /// The edits of the row's logits, as a range of [`Choices::edits`].
    pub edits: Range<usize>,
    /// The row of [`Choices::masks`] with the possible tokens; row `i` begins at word `i *
    /// mask_words(n_tokens)`. `None`: all tokens are possible.
    pub mask: Option<u32>,
    /// Whether the row's logits are wanted on the host, whatever the device can do.
    pub to_host: bool,
    /// Whether the token's log probability is wanted.
    pub logprob: bool,
    /// How many alternatives are wanted.
    pub top: usize,
    /// Whether a beam search goes on from here. Then no token need be chosen.
    pub search: Search,
}

impl Choice {
    /// Whether anything but the token is wanted.
    pub fn scored(&self) -> bool {
        self.logprob || self.top > 0
    }

    /// Whether only the host's sampler can make this choice. The backend then gives the row's
    /// logits. A backend that does not change logits leaves more to the host
    /// ([`Choice::is_edited`]).
    pub fn is_for_host(&self) -> bool {
        self.given.is_none() && (self.to_host || self.strategy.filters_probabilities())
            || self.needs_logits()
    }

    /// Whether a beam search goes on from here that alternatives are not enough for.
    pub fn needs_logits(&self) -> bool {
        match self.search {
            Search::Off => false,
            Search::Alternatives => self.is_edited() || self.strategy.penalty != 1.0,
            Search::Logits => true,
        }
    }

    /// Whether edits or a mask change the row's logits before a token is drawn.
    pub fn is_edited(&self) -> bool {
        !self.edits.is_empty() || self.mask.is_some()
    }
}

/// How tokens are chosen from the wanted rows of a [`super::Step`], in flat arrays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// One for each of [`super::Step::wanted`], or none at all if the logits themselves are wanted.
    pub rows: Vec<Choice>,
    /// Earlier tokens of the sequences whose [`Choice`] has a penalty, end to end. Empty if the
    /// step follows another: the device then knows these tokens, and the tokens that the other step
    /// chose.
    pub history: Vec<Token>,
    /// The edits of all rows; [`Choice::edits`] are ranges of this list. Within a range, tokens
    /// ascend, and each occurs at most once.
    pub edits: Vec<Edit>,
    /// The masks of all rows, end to end: a bit for each possible token. [`Choice::mask`] is the
    /// number of a row. Their numbers are not known yet when the step is submitted
    /// ([`super::Run::awaits_masks`]).
    pub masks: Vec<u32>,
}

impl Choices {
    /// None: the logits themselves are wanted.
    pub const NONE: &'static Choices = &Choices {
        rows: Vec::new(),
        history: Vec::new(),
        edits: Vec::new(),
        masks: Vec::new(),
    };

    /// Forgets the choices but keeps the memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.history.clear();
        self.edits.clear();
        self.masks.clear();
    }

    /// The changes that `choice`, one of [`Choices::rows`], makes to its row.
    pub fn changes(&self, choice: &Choice) -> Changes<'_> {
        let words = mask_words(choice.n_tokens);
        Changes {
            history: &self.history[choice.history.clone()],
            edits: &self.edits[choice.edits.clone()],
            mask: choice
                .mask
                .map(|row| &self.masks[row as usize * words..][..words]),
        }
    }
}

/// A draw of `draw / 2^24` picks the token at which the running sum of masses exceeds this.
pub fn target(draw: u32, total: u64) -> u64 {
    ((u128::from(total) * u128::from(draw)) >> 24) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exponentials() {
        for temperature in [1e-3f32, 0.1, 0.6, 1.0, 1.7, 40.0] {
            let scale = Scale::new(temperature);
            for max in [0.0, 1.0, 19.37, -7.25, 1e4] {
                assert_eq!(scale.share(max, max), 1.0);
                for i in 0..20_000 {
                    let value = max - temperature * i as f32 * (27.0 / 20_000.0);
                    let exact = (f64::from(value) - f64::from(max)) / f64::from(temperature);
                    let got = f64::from(scale.share(value, max));
                    assert!(
                        (got / exact.exp() - 1.0).abs() < 3e-7,
                        "exp({exact}) = {got} at {temperature}, {max}"
                    );
                }
            }
        }
    }

    #[test]
    fn shares_end_at_nothing() {
        for temperature in [f32::from_bits(1), 1e-30, 1.0, 1e30, f32::MAX] {
            let scale = Scale::new(temperature);
            for max in [f32::MIN, -1.0, 0.0, 1.0, f32::MAX] {
                assert_eq!(scale.share(max, max), 1.0, "{temperature}");
                assert_eq!(scale.share(f32::NEG_INFINITY, max), 0.0);
                let share = scale.share(f32::MIN, max);
                assert!((0.0..=1.0).contains(&share), "{share} at {temperature}");
            }
        }
        let scale = Scale::new(1.0);
        assert_eq!(scale.share(-27.8, 0.0), 0.0);
        assert!(mass(scale.share(-27.0, 0.0)) > 0);
    }

    #[test]
    fn masses_are_rounded() {
        assert_eq!(mass(0.0), 0);
        assert_eq!(mass(1.0), ONE);
        let unit = 1.0 / ONE as f32;
        for (units, want) in [(0.49, 0), (0.5, 0), (0.51, 1), (1.0, 1), (1.5, 2), (2.5, 2)] {
            assert_eq!(mass(units * unit), want, "{units}");
        }
        for bits in (0.0f32.to_bits()..=1.0f32.to_bits()).step_by(997) {
            let share = f32::from_bits(bits);
            let want = (f64::from(share) * ONE as f64).round_ties_even() as u64;
            assert_eq!(mass(share), want, "{share}");
        }
    }

    #[test]
    fn ranks_are_in_descending_order() {
        let values = [
            f32::MAX,
            2.0,
            1.0 + f32::EPSILON,
            1.0,
            1e-40,
            0.0,
            -1e-40,
            -1.0,
            f32::MIN,
            f32::NEG_INFINITY,
        ];
        assert!(values.is_sorted_by(|a, b| rank(*a) < rank(*b)));
    }
}
