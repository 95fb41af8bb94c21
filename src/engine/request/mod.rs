//! Turns raw options into a checked request. Code that holds a [`Request`] need not check again.
//!
//! - `options`: the options, with their defaults
//! - `checks`: what must be in range, and what does not go together

mod checks;
mod options;

pub use options::*;

use crate::backend::Adapter;
use crate::{Error, Result, Token, reserve};
use std::sync::Arc;

/// The most sequences of a call. They run as slots become free.
pub const MAX_SEQUENCES: usize = 65_536;

/// A prompt, which one or more sequences continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// The prompt's tokens; at least one.
    Tokens(Vec<Token>),
    /// A text with which the prompt is answered without the model, and
    /// [`super::FinishReason::Unsafe`].
    Refused(&'static str),
}

/// A request whose every number is in range, with the adapter that its options name.
#[derive(Debug)]
pub struct Request {
    /// The prompts. The index of a sequence in the call also selects its random stream.
    pub(super) prompts: Vec<Prompt>,
    /// The options, which are in range.
    pub(super) options: GenerateOptions,
    /// The adapter that [`GenerateOptions::adapter`] names.
    pub(super) adapter: Option<Arc<Adapter>>,
}

/// The limits against which a request is checked.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// The most tokens of a sequence.
    pub max_seq_len: usize,
    /// The most sequences of one prompt. All of them have slots and pages at the same time.
    pub max_samples: usize,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Whether there is a draft model.
    pub has_draft: bool,
    /// Whether there are Medusa heads.
    pub has_heads: bool,
}

impl RequestLimits {
    /// Whether a call may have so many prompts, each with so many sequences.
    pub fn check_sequences(&self, prompts: usize, samples: usize) -> Result<()> {
        let n = prompts.saturating_mul(samples.max(1));
        if !(1..=MAX_SEQUENCES).contains(&n) {
            let max = MAX_SEQUENCES;
            return Err(Error::Batch { n, max });
        }
        match samples <= self.max_samples {
            true => Ok(()),
            false => Err(Error::Samples {
                n: samples,
                max: self.max_samples,
            }),
        }
    }
}

impl Request {
    /// Checks a request without an adapter: first the lengths, then the tokens, then the options.
    pub fn new(
        prompts: Vec<Prompt>,
        options: GenerateOptions,
        limits: &RequestLimits,
    ) -> Result<Self> {
        Self::with_adapter(prompts, options, None, limits)
    }

    /// Checks a request that runs with `adapter`. This must be the adapter that the options name,
    /// because by its name the prefix cache tells the pages of this adapter from those of others.
    pub fn with_adapter(
        prompts: Vec<Prompt>,
        mut options: GenerateOptions,
        adapter: Option<Arc<Adapter>>,
        limits: &RequestLimits,
    ) -> Result<Self> {
        limits.check_sequences(prompts.len(), options.num_return_sequences)?;
        if options.num_beams > limits.max_samples {
            return Err(Error::Beams {
                n: options.num_beams,
                max: limits.max_samples,
            });
        }
        let token_prompts = || {
            prompts
                .iter()
                .enumerate()
                .filter_map(|(i, prompt)| match prompt {
                    Prompt::Tokens(tokens) => Some((i, tokens)),
                    Prompt::Refused(_) => None,
                })
        };
        for (index, tokens) in token_prompts() {
            if tokens.len() > limits.max_seq_len {
                return Err(Error::TooLong {
                    index,
                    len: tokens.len(),
                    max: limits.max_seq_len,
                });
            }
            if tokens.is_empty() {
                return Err(Error::invalid(format!("lens[{index}]"), "at least 1", 0));
            }
        }
        for (index, tokens) in token_prompts() {
            let known =
                |token: &Token| usize::try_from(*token).is_ok_and(|t| t < limits.vocab_size);
            if let Some(at) = tokens.iter().position(|token| !known(token)) {
                let name = format!("token {at} of prompt {index}");
                let expected = format!("0 to {}", limits.vocab_size.saturating_sub(1));
                return Err(Error::invalid(name, expected, tokens[at]));
            }
        }
        options.check(limits)?;
        let given = adapter.as_ref().map_or(0, |adapter| adapter.id);
        if options.adapter != given {
            let expected = format!("{given}, the adapter that the request was given");
            return Err(Error::invalid("adapter", expected, options.adapter));
        }
        for group in &mut options.force_words {
            group.sort_unstable();
        }
        sort_by_token(&mut options.logit_bias)?;
        let least = options.least_phrases();
        for (index, tokens) in token_prompts() {
            let room = limits.max_seq_len - tokens.len();
            let most = options.max_gen_len.map_or(room, |most| most.min(room));
            if least > most {
                let name = format!("the shortest of force_words, together, for prompt {index}");
                let expected = format!("at most {most} tokens, which there is room for");
                return Err(Error::invalid(name, expected, least));
            }
        }
        Ok(Self {
            prompts,
            options,
            adapter,
        })
    }
}

/// Sorts biases by token; those of the same token stay in their order, because sums saturate. Each
/// row's edits are sorted by token, which takes no time where they are.
fn sort_by_token(biases: &mut [Bias]) -> Result<()> {
    if biases.is_sorted_by_key(|bias| bias.token) {
        return Ok(());
    }
    let mut sorted = reserve::room("logit_bias", biases.len())?;
    sorted.extend(biases.iter().copied().enumerate());
    sorted.sort_unstable_by_key(|(at, bias): &(usize, Bias)| (bias.token, *at));
    for (to, (_, bias)) in biases.iter_mut().zip(sorted) {
        *to = bias;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_of_a_token_stay_in_order() {
        let all = |all: &[(Token, f32)]| -> Vec<Bias> {
            let bias = |&(token, bias): &(Token, f32)| Bias { token, bias };
            all.iter().map(bias).collect()
        };
        let mut biases = all(&[
            (7, 1e30),
            (3, 1.0),
            (7, -1e30),
            (3, -2.0),
            (7, 5.0),
            (1, 0.5),
        ]);
        sort_by_token(&mut biases).unwrap();
        let want = all(&[
            (1, 0.5),
            (3, 1.0),
            (3, -2.0),
            (7, 1e30),
            (7, -1e30),
            (7, 5.0),
        ]);
        assert_eq!(biases, want);
        sort_by_token(&mut biases).unwrap();
        assert_eq!(biases, want);
    }
}
