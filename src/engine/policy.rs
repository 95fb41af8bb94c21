//! The choice of a sequence's tokens.

use super::branch::Branch;
use super::edits;
use super::request::GenerateOptions;
use super::sampler::uniform;
use crate::Token;
use crate::backend::Choice;
use crate::backend::choice::{Search, Strategy};

/// How a sequence's tokens are chosen. A draw is a function of the seed, the sequence's number in
/// its call, and the position. So it does not depend on when it is made, or on the other sequences
/// of the step.
pub(super) struct Policy {
    strategy: Strategy,
    seed: u64,
    /// The sequence's number in its call.
    index: u32,
    /// Ids from here on are never drawn.
    n_tokens: usize,
    logprob: bool,
    top: usize,
    is_edited: bool,
    hangs_on_last: bool,
    /// If it is a beam search: how many alternatives of a row are enough for its continuations.
    search: Option<(usize, Search)>,
    is_for_host: bool,
}

impl Policy {
    /// `seed` is the seed of the call, and not 0.
    pub fn new(options: &GenerateOptions, seed: u64, index: u32, n_tokens: usize) -> Self {
        Self {
            strategy: options.into(),
            seed,
            index,
            n_tokens,
            logprob: options.logprobs,
            top: options.top_logprobs,
            is_edited: edits::any(options),
            hangs_on_last: edits::hang_on_last(options),
            search: None,
            is_for_host: options.ask_logits || options.contrasts(),
        }
    }

    /// The policy of a beam search, whose rows give so many alternatives, or their logits.
    pub fn searching(self, alternatives: usize, search: Search) -> Self {
        Self {
            search: Some((alternatives, search)),
            strategy: Strategy {
                penalty: self.strategy.penalty,
                ..Strategy::from(&GenerateOptions {
                    temperature: 0.0,
                    ..GenerateOptions::default()
                })
            },
            ..self
        }
    }

    /// Whether the repetition penalty makes the choice depend on earlier tokens.
    pub fn is_penalised(&self) -> bool {
        self.strategy.penalty != 1.0
    }

    /// Whether an [`edits::Editor`] has anything to do for the sequence.
    pub fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// Whether its tokens are drawn on the host, because the reader or another model changes the
    /// logits.
    pub fn is_for_host(&self) -> bool {
        self.is_for_host
    }

    /// Whether the edits of a row depend on the last token before it.
    pub fn hangs_on_last(&self) -> bool {
        self.hangs_on_last
    }

    /// The choice for the row at `position`: a score for the next prompt token, or the next token.
    /// Earlier tokens that the choice depends on are appended to `history`, if the token at
    /// `position` is known. The choice has no edits and no mask yet.
    pub fn choice(&self, branch: &Branch, position: usize, history: &mut Vec<Token>) -> Choice {
        let (next, first) = (position + 1, history.len());
        let given = (next < branch.prompt_len).then(|| branch.tokens[next]);
        if given.is_none() && self.is_penalised() && next <= branch.tokens.len() {
            history.extend_from_slice(&branch.tokens[..next]);
        }
        let search = self.search.filter(|_| given.is_none());
        Choice {
            given,
            strategy: self.strategy,
            draw: match (given, search) {
                (None, None) => uniform(self.seed, u64::from(self.index), next as u64),
                _ => 0,
            },
            n_tokens: self.n_tokens,
            history: first..history.len(),
            edits: 0..0,
            mask: None,
            to_host: self.is_for_host && given.is_none(),
            logprob: self.logprob,
            top: search.map_or(self.top, |(alternatives, _)| self.top.max(alternatives)),
            search: search.map_or(Search::Off, |(_, search)| search),
        }
    }
}
