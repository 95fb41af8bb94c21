//! What chooses the tokens of a sequence.

use super::branch::Branch;
use super::edits;
use super::request::GenerateOptions;
use super::sampler::uniform;
use crate::Token;
use crate::backend::Choice;
use crate::backend::choice::Strategy;

/// How a sequence's tokens are chosen. A draw is a function of the seed, the sequence's number in
/// its call and the position, so it does not matter when it is made, nor beside whom.
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
}

impl Policy {
    /// `seed` is the call's: not 0.
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
        }
    }

    /// Whether a token is chosen by the tokens before it.
    pub fn is_penalised(&self) -> bool {
        self.strategy.penalty != 1.0
    }

    /// Whether an [`edits::Editor`] has anything to do for it.
    pub fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// Whether what it edits hangs on the last token.
    pub fn hangs_on_last(&self) -> bool {
        self.hangs_on_last
    }

    /// What is wanted of the row at `position`: a score for the next prompt token, or the next
    /// token. The tokens that it is chosen by go to `history`, if the one at `position` is known.
    /// It has no edits and no mask.
    pub fn choice(&self, branch: &Branch, position: usize, history: &mut Vec<Token>) -> Choice {
        let (next, first) = (position + 1, history.len());
        let given = (next < branch.prompt_len).then(|| branch.tokens[next]);
        if given.is_none() && self.is_penalised() && next <= branch.tokens.len() {
            history.extend_from_slice(&branch.tokens[..next]);
        }
        Choice {
            given,
            strategy: self.strategy,
            draw: match given {
                Some(_) => 0,
                None => uniform(self.seed, u64::from(self.index), next as u64),
            },
            n_tokens: self.n_tokens,
            history: first..history.len(),
            edits: 0..0,
            mask: None,
            logprob: self.logprob,
            top: self.top,
        }
    }
}
