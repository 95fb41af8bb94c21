//! One prompt on its way through the model, in three parts: its tokens and pages ([`Branch`]), what
//! chooses ([`Policy`]), and what its reader is told ([`Output`]).

use super::branch::Branch;
use super::call::Call;
use super::guide::Guide;
use super::output::Output;
use super::policy::Policy;
use super::request::GenerateOptions;
use super::sampler::Score;
use super::stream::{FinishReason, RequestStats};
use crate::backend::Adapter;
use crate::{Result, Token};
use std::sync::Arc;

/// How far a prompt goes.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    prompt_len: usize,
    /// Most tokens to generate.
    max_new: usize,
    scores_prompt: bool,
}

impl Extent {
    pub fn new(options: &GenerateOptions, prompt_len: usize, max_seq_len: usize) -> Self {
        let room = max_seq_len.saturating_sub(prompt_len);
        Self {
            prompt_len,
            max_new: options.max_gen_len.map_or(room, |most| most.min(room)),
            scores_prompt: options.echo && (options.logprobs || options.top_logprobs > 0),
        }
    }

    /// Most tokens to generate.
    pub fn max_new(&self) -> usize {
        self.max_new
    }

    /// Whether the prompt's own tokens are scored. Cached rows have no logits, so such a sequence
    /// does not use the prefix cache.
    pub fn scores_prompt(&self) -> bool {
        self.scores_prompt
    }

    /// Prompt rows to compute: all of them, but the last one predicts the first generated token
    /// only.
    pub fn prefill_len(&self) -> usize {
        match (self.max_new > 0, self.scores_prompt) {
            (true, _) => self.prompt_len,
            (false, true) => self.prompt_len - 1,
            (false, false) => 0,
        }
    }

    /// Positions that will be computed at most. The last generated token is never fed back.
    pub fn most_positions(&self) -> usize {
        match self.max_new {
            0 => self.prefill_len(),
            n => self.prompt_len + n - 1,
        }
    }
}

/// A sequence that has begun: in prefill (no token generated yet), or decoding.
pub(super) struct Sequence {
    /// Its number among all that were admitted.
    pub id: u64,
    pub branch: Branch,
    pub policy: Policy,
    pub output: Output,
    pub extent: Extent,
    /// Where its text is in its grammar, if it has one. Away while its mask is computed.
    pub guide: Option<Box<Guide>>,
    /// What its rows are computed with, beside the model.
    pub adapter: Option<Arc<Adapter>>,
    /// The sequence, by its id, that computes the prompt for this one too, until it has done so.
    pub first: Option<u64>,
    /// Prompt tokens that were not computed because their pages were found or shared.
    pub cached: usize,
    /// Its reader is too far behind: it keeps its slot and takes no part in the step.
    pub sits_out: bool,
    /// Set when it has ended, until the scheduler takes it out.
    pub end: Option<Result<FinishReason>>,
}

impl Sequence {
    pub fn new(id: u64, branch: Branch, policy: Policy, output: Output, extent: Extent) -> Self {
        let mut sequence = Self {
            id,
            branch,
            policy,
            output,
            extent,
            guide: None,
            adapter: None,
            first: None,
            cached: 0,
            sits_out: false,
            end: None,
        };
        sequence.found();
        sequence
    }

    /// The call that it belongs to.
    pub fn call(&self) -> &Arc<Call> {
        &self.output.call
    }

    /// What is computed by now was found in the cache.
    pub fn found(&mut self) {
        // The last token of a prompt is computed in any case.
        self.cached = self.branch.computed.min(self.branch.prompt_len - 1);
    }

    /// Whether it goes on after the row of decode that is under way, unless the token or a reader
    /// ends it, and all but that token is known of its next row. Of one that follows a grammar,
    /// that token's successors are not known either.
    pub fn goes_on(&self) -> bool {
        let more = self.branch.generated() + 1 < self.extent.max_new;
        let known = self.call().options.grammar.is_none() && !self.policy.hangs_on_last();
        !self.branch.in_prefill() && more && known
    }

    /// Most tokens of it that its next token is chosen by.
    pub fn history_len(&self) -> usize {
        match self.policy.is_penalised() {
            true => self.branch.tokens.len(),
            false => 0,
        }
    }

    /// Whether no row of its prompt is left to compute but, in a sample, the last one.
    pub fn has_computed_prompt(&self) -> bool {
        self.branch.computed >= self.extent.prefill_len()
    }

    /// Whether the prompt is all there is to it, and every token of that has its score.
    pub fn has_scored_all(&self) -> bool {
        let (branch, prefill_len) = (&self.branch, self.extent.prefill_len());
        branch.in_prefill() && prefill_len < branch.prompt_len && branch.computed == prefill_len
    }

    /// Tell the reader about the prompt tokens before `end`, unscored.
    pub fn echo(&mut self, end: usize) -> Result<()> {
        let branch = &self.branch;
        self.output.echo(&branch.tokens[..branch.prompt_len], end)
    }

    /// Take what the row at `position` gave: the next prompt token's score or the next token. Sets
    /// [`Sequence::end`] if that ends the sequence. Fails where there is no memory to tell it.
    pub fn take(
        &mut self,
        position: usize,
        got: Option<(Token, Score)>,
        eos_ids: &[Token],
    ) -> Result<()> {
        let (next, prompt_len) = (position + 1, self.branch.prompt_len);
        let echoed = next < prompt_len;
        self.echo(if echoed { 1 } else { prompt_len })?;
        match got {
            Some((_, score)) if echoed => {
                self.output.echo_token(&self.branch.tokens, next, score)?;
            }
            Some((token, score)) => self.append(token, score, eos_ids)?,
            None => {
                self.end = Some(Ok(match self.may_end() {
                    true => FinishReason::Stop,
                    false => FinishReason::NotFinite,
                }));
            }
        }
        Ok(())
    }

    /// Whether it follows a grammar that a text may end at here.
    pub fn may_end(&self) -> bool {
        self.guide.as_ref().is_some_and(|guide| guide.accepts())
    }

    fn append(&mut self, token: Token, score: Score, eos_ids: &[Token]) -> Result<()> {
        let options = &self.call().options;
        let is_eos = eos_ids.contains(&token) && !options.ignore_eos;
        if is_eos || options.stop_tokens.contains(&token) {
            self.end = Some(Ok(FinishReason::Stop));
            return Ok(());
        }
        self.branch.tokens.push(token);
        let complete = match &mut self.guide {
            Some(guide) => guide.take(token)?,
            None => false,
        };
        if self.output.generated(token, score)? {
            self.end = Some(Ok(FinishReason::StopString));
        } else if complete {
            self.end = Some(Ok(FinishReason::Stop));
        } else if self.branch.generated() == self.extent.max_new {
            self.end = Some(Ok(FinishReason::Length));
        }
        Ok(())
    }

    /// Tell the reader that it is over, with the text that was held back; or that the call has
    /// failed, where there is no memory for that.
    pub fn finish(&mut self, reason: FinishReason) {
        if let Err(error) = self.try_finish(reason) {
            self.call().fail(error);
        }
    }

    fn try_finish(&mut self, reason: FinishReason) -> Result<()> {
        if reason == FinishReason::Length {
            self.echo(self.branch.prompt_len)?;
        }
        let stats = RequestStats {
            prompt_tokens: self.branch.prompt_len as u32,
            cached_tokens: self.cached as u32,
            generated_tokens: self.branch.generated() as u32,
            ..RequestStats::default()
        };
        self.output.finish(reason, stats)
    }
}
