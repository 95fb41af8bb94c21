//! One prompt on its way through the model, in three parts: its tokens and pages ([`Branch`]), what
//! chooses its tokens ([`Policy`]), and what its reader is told ([`Output`]).

mod asked;
mod beams;

use super::branch::Branch;
use super::call::Call;
use super::draft::Drafts;
use super::event::{Drafted, Finish, FinishReason, RequestStats};
use super::extent::Extent;
use super::group::Group;
use super::guide::Guide;
use super::inquiry::Inquiry;
use super::output::{Output, Sums};
use super::policy::Policy;
use super::sampler::Score;
use crate::backend::Adapter;
use crate::{Error, Result, Token};
use std::iter::once;
use std::sync::Arc;

/// A sequence that has begun: in prefill (no token generated yet), or decoding.
pub(super) struct Sequence {
    /// The sequence's number among all that were admitted.
    pub id: u64,
    pub branch: Branch,
    pub policy: Policy,
    pub output: Output,
    pub extent: Extent,
    /// The other branches and rules of a beam search, if the sequence is one.
    pub group: Option<Box<Group>>,
    /// The place of the text in its grammar, if the sequence has a grammar and is no beam search.
    /// It is absent while its mask is computed.
    pub guide: Option<Box<Guide>>,
    /// Its reader is asked about the logits of each of its tokens.
    pub inquiry: Option<Box<Inquiry>>,
    /// Its drafts, if it speculates.
    pub drafts: Option<Drafts>,
    /// The row of the last step that chose the last token, if it was a row of that step.
    pub last_row: Option<u32>,
    /// What its rows are computed with, beside the model.
    pub adapter: Option<Arc<Adapter>>,
    /// The sequence (by its id) that computes the prompt for this one too, until it has done so.
    pub first: Option<u64>,
    /// The number of prompt tokens that were not computed because their pages were found or shared.
    pub cached: usize,
    /// The sum of the log probabilities of the generated tokens, if it is wanted.
    sum_logprob: f64,
    /// Whether the sequence's reader is too far behind or has a question of it. The sequence then
    /// keeps its slot and takes no part in the step.
    pub sits_out: bool,
    /// Why the sequence has ended. It is set until the scheduler takes the sequence out.
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
            group: None,
            guide: None,
            inquiry: None,
            drafts: None,
            last_row: None,
            adapter: None,
            first: None,
            cached: 0,
            sum_logprob: 0.0,
            sits_out: false,
            end: None,
        };
        sequence.found();
        sequence
    }

    /// The call to which the sequence belongs.
    pub fn call(&self) -> &Arc<Call> {
        &self.output.call
    }

    /// Whether somebody waits for its next token.
    pub fn streams(&self) -> bool {
        self.call().options.streaming
    }

    /// Why the sequence must end now, if its reader or the clock wants it.
    pub fn ends(&self) -> Option<FinishReason> {
        self.call().ends(self.output.index)
    }

    /// Notes that everything computed by now was found in the cache.
    pub fn found(&mut self) {
        // The last token of a prompt is computed in any case.
        self.cached = self.branch.computed.min(self.branch.prompt_len - 1);
    }

    /// Whether it goes on after the row of decode that is under way, unless the token or a reader
    /// ends it, and all but that token is known of its next row. Of one that follows a grammar,
    /// that token's successors are not known either, and one whose reader is asked waits for that.
    pub fn goes_on(&self) -> bool {
        let more = self.branch.generated() + 1 < self.extent.max_new() && self.group.is_none();
        let options = &self.call().options;
        let known =
            options.grammar.is_none() && !self.policy.is_for_host() && !self.policy.hangs_on_last();
        let plain = self.drafts.as_ref().is_none_or(Drafts::rests_next);
        !self.branch.in_prefill() && more && known && plain
    }

    /// How many drafts the step has of it.
    pub fn n_drafts(&self) -> usize {
        self.drafts
            .as_ref()
            .map_or(0, |drafts| drafts.in_step().len())
    }

    /// Most tokens of it that the tokens of a step are chosen by, those of each counted.
    pub fn history_len(&self) -> usize {
        let rows = 1 + self.n_drafts();
        match self.policy.is_penalised() {
            true => self
                .branches()
                .map(|branch| rows * (branch.tokens.len() + rows - 1))
                .sum(),
            false => 0,
        }
    }

    /// The number of prompt tokens of its results that were not computed for them.
    pub fn all_cached(&self) -> usize {
        let others = self.group.as_ref().map_or(0, |group| group.n_others());
        self.cached + others * self.branch.prompt_len
    }

    /// The number of tokens generated so far, of all its beams.
    pub fn generated(&self) -> usize {
        let group = self.group.as_ref();
        group.map_or(self.branch.generated(), |group| group.generated)
    }

    /// Whether no row of its prompt is left to compute; in a sample the last row may be left.
    pub fn has_computed_prompt(&self) -> bool {
        self.branch.computed >= self.extent.prefill_len()
    }

    /// Whether the sequence consists of its prompt alone and every token of the prompt has its
    /// score.
    pub fn has_scored_all(&self) -> bool {
        let (branch, prefill_len) = (&self.branch, self.extent.prefill_len());
        branch.in_prefill() && prefill_len < branch.prompt_len && branch.computed == prefill_len
    }

    /// Tells the reader the prompt tokens before `end`, without scores.
    pub fn echo(&mut self, end: usize) -> Result<()> {
        let prompt = &self.branch.tokens[..self.branch.prompt_len];
        let others = Group::outputs(&mut self.group);
        once(&mut self.output)
            .chain(others)
            .try_for_each(|output| output.echo(prompt, end))
    }

    /// Takes what the row at `position` gave: the score of the next prompt token, or the next
    /// token, at which the step's guess was `draft`. Sets [`Sequence::end`] if that ends the
    /// sequence. Fails if there is no memory to tell it.
    pub fn take(
        &mut self,
        position: usize,
        got: Option<(Token, Score)>,
        draft: Option<Token>,
        eos_ids: &[Token],
    ) -> Result<()> {
        let (next, prompt_len) = (position + 1, self.branch.prompt_len);
        let echoed = next < prompt_len;
        self.echo(if echoed { 1 } else { prompt_len })?;
        match got {
            Some((_, score)) if echoed => {
                for output in Group::outputs(&mut self.group) {
                    output.echo_token(&self.branch.tokens, next, score.copy()?)?;
                }
                self.output.echo_token(&self.branch.tokens, next, score)?;
            }
            Some((token, score)) => {
                self.append(token, score, Drafted::of(draft, token), eos_ids)?
            }
            None => {
                self.end = Some(Ok(match self.may_end() {
                    true => FinishReason::Stop,
                    false => FinishReason::NotFinite,
                }));
            }
        }
        Ok(())
    }

    /// Whether the sequence follows a grammar that lets the text end here.
    pub fn may_end(&self) -> bool {
        self.guide.as_ref().is_some_and(|guide| guide.accepts())
    }

    fn append(
        &mut self,
        token: Token,
        score: Score,
        draft: Drafted,
        eos_ids: &[Token],
    ) -> Result<()> {
        self.sum_logprob += f64::from(score.logprob);
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
        if self.output.generated(token, score, draft)? {
            self.end = Some(Ok(FinishReason::StopString));
        } else if complete {
            self.end = Some(Ok(FinishReason::Stop));
        } else if self.branch.generated() == self.extent.max_new() {
            self.end = Some(Ok(FinishReason::Length));
        }
        Ok(())
    }

    /// Tells the reader that the sequence has ended, with the text that was held back. If there is
    /// no memory for that, it tells that the call has failed.
    pub fn finish(&mut self, reason: FinishReason) {
        if let Err(error) = self.try_finish(reason) {
            self.call().fail(error);
        }
    }

    fn try_finish(&mut self, reason: FinishReason) -> Result<()> {
        if self.group.is_some() {
            return self.finish_beams(reason);
        }
        if reason == FinishReason::Length {
            self.echo(self.branch.prompt_len)?;
        }
        let end = self.end_by(reason)?;
        self.call().finish(end);
        Ok(())
    }

    /// Tells the reader that the sequence has failed.
    pub fn fail(&mut self, error: Error) {
        if !Call::fails_in_order(&error) {
            return self.call().fail(error);
        }
        let end = match self.group {
            // The results of a search fail together, and none of them can be stopped alone.
            Some(_) => Ok(Finish::cancelled(self.output.index)),
            None => self.end_by(FinishReason::Caller),
        };
        match end {
            Ok(end) => self.call().fail_at(end, error),
            Err(error) => self.call().fail(error),
        }
    }

    fn end_by(&mut self, reason: FinishReason) -> Result<Finish> {
        let stats = RequestStats {
            prompt_tokens: self.branch.prompt_len as u32,
            cached_tokens: self.cached as u32,
            generated_tokens: self.branch.generated() as u32,
            drafted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.drafted),
            accepted_tokens: self.drafts.as_ref().map_or(0, |drafts| drafts.accepted),
            ..RequestStats::default()
        };
        let sums = Sums {
            logprob: self.sum_logprob,
            score: self.sum_logprob,
        };
        self.output.end(reason, sums, stats)
    }
}
