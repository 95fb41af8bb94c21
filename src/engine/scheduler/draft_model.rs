//! What the draft model computes beside a step of the model's: the prompts that it needs, its
//! guesses at the next tokens, and the logits that the model's are contrasted with.

use super::Scheduler;
use super::planning::{Rows, add_span, want_guess};
use crate::backend::{RowKind, Step};
use crate::engine::draft::{Askers, Guesser};
use crate::engine::draft_model::DraftModel;
use crate::engine::pace::Gain;
use crate::engine::plan::Plan;
use crate::engine::request::MAX_DRAFTS;
use crate::engine::sequence::Sequence;
use crate::kv::Pool;
use crate::{Result, Token};

/// So many tokens that the draft model has not seen are computed in the step of the first draft;
/// more of them get steps of their own.
const FEW: usize = MAX_DRAFTS;

/// At least so many of those are computed before a step of the model's, however few rows of prompts
/// it may have: more than a sequence gains in a step, so that the draft model comes to its end.
const LEAST_CAUGHT_UP: usize = 2 * FEW;

/// Adds what the draft model lacks of the sequence before `end` to its step. These are all prompt,
/// or all generated.
fn add_lacking(model: &mut DraftModel, sequence: &Sequence, end: usize, pool: &Pool) {
    let position = sequence.branch.drafted;
    let kind = match position < sequence.branch.prompt_len {
        true => RowKind::Prefill,
        false => RowKind::Decode,
    };
    let tokens = &sequence.branch.tokens[position..end];
    add(&mut model.plan, sequence, (kind, position), tokens, pool);
}

/// Adds rows of the sequence to the draft model's step.
fn add(
    plan: &mut Plan,
    sequence: &Sequence,
    (kind, position): (RowKind, usize),
    tokens: &[Token],
    pool: &Pool,
) {
    let branch = &sequence.branch;
    let rows = Rows {
        branch,
        at: 0,
        kind,
        position,
        tokens,
        written: branch.drafted,
    };
    add_span(plan, sequence, &rows, pool);
    // An adapter is the model's alone.
    plan.step.adapters.clear();
}

/// Whether the model's logits of this sequence are contrasted with the draft model's.
fn is_contrasted(sequence: &Sequence) -> bool {
    sequence.call().options.contrasts() && sequence.extent.max_new() > 0
}

/// Whether the draft model lacks some of what the model has computed of this sequence, which is
/// contrasted with it and could otherwise go on.
pub(super) fn lacks_contrast(sequence: &Sequence) -> bool {
    let branch = &sequence.branch;
    is_contrasted(sequence) && !sequence.sits_out && branch.drafted < branch.computed
}

/// The number of a step's rows of decode.
fn decodes(step: &Step) -> usize {
    let spans = step.spans.iter();
    let decoded = spans.filter(|span| span.kind == RowKind::Decode);
    decoded.map(|span| span.rows.len()).sum()
}

impl Scheduler {
    /// Does `work` with the draft model, if there is one.
    fn with_draft_model(
        &mut self,
        work: impl FnOnce(&mut Self, &mut DraftModel) -> Result<()>,
    ) -> Result<()> {
        let Some(mut model) = self.draft_model.take() else {
            return Ok(());
        };
        let done = work(self, &mut model);
        self.draft_model = Some(model);
        done
    }

    /// Before a step is planned: has the draft model compute a chunk of what it lacks of those that
    /// are contrasted with it, and of the prompts of those that ask it for drafts; no further than
    /// the model is. Who is contrasted and still lacks something sits the step out: to compute all
    /// of a prompt that was found in the model's half of the pages only held other streams up for
    /// as long as the whole prompt takes.
    pub(super) fn keep_up(&mut self) -> Result<()> {
        self.catches_up = false;
        self.with_draft_model(|this, model| {
            model.clear();
            for sequence in &mut this.running {
                sequence.branch.look_drafted(&this.pool);
            }
            let decodes = |s: &&Sequence| !s.branch.in_prefill() && !lacks_contrast(s);
            let decoding = || this.running.iter().filter(decodes);
            let (decodes, streaming) = (decoding().count(), decoding().any(Sequence::streams));
            let asks = |s: &Sequence, gain| {
                let drafts = s.drafts.as_ref();
                let asks = drafts.is_some_and(|drafts| drafts.asks(Guesser::Model, gain));
                asks && !s.sits_out && s.first.is_none()
            };
            // Those whose prompts are being computed will soon decode beside the others.
            let known = (model.share, model.record.right());
            let gain = this.pace.gain(&model.pace, known, this.running.len());
            model.askers = Askers::new(gain, || {
                // Where the draft model has least to catch up with, finding out costs least. Who
                // has come far without it would pay for all of that.
                let lacks = |s: &&Sequence| s.branch.tokens.len() - s.branch.drafted;
                let begins = |s: &Sequence| s.branch.drafted > 0 || s.branch.generated() <= FEW;
                let can = this.running.iter();
                let can = can.filter(|s| asks(s, Gain::Untried) && begins(s));
                can.min_by_key(lacks).map(|s| s.id)
            });
            let rows = model
                .pace
                .prompt_rows(decodes, streaming, model.limits.max_rows);
            let mut budget = rows;
            for sequence in &this.running {
                let branch = &sequence.branch;
                let lags = lacks_contrast(sequence);
                if !lags && !asks(sequence, model.askers.gain(sequence.id)) {
                    continue;
                }
                let there = match lags && branch.drafted >= branch.prompt_len {
                    true => branch.computed,
                    false => branch.computed.min(branch.prompt_len),
                };
                let rows = there.saturating_sub(branch.drafted).min(budget);
                // A page that another one fills in this step is found afterwards.
                let page = branch.pages.get(branch.drafted / this.pool.page_size());
                let is_being_filled = page.is_some_and(|page| model.plan.step.pages.contains(page));
                if rows > 0 && !is_being_filled {
                    add_lacking(model, sequence, branch.drafted + rows, &this.pool);
                    budget -= rows;
                }
            }
            this.compute(model)?;
            for sequence in this.running.iter_mut().filter(|s| lacks_contrast(s)) {
                sequence.sits_out = true;
                this.catches_up = true;
            }
            Ok(())
        })
    }

    /// Whether a sequence waits for what the draft model lacks of it, and not for its caller.
    pub fn catches_up(&self) -> bool {
        self.catches_up
    }

    /// Computes the draft model's step, if it has any rows, for its keys and values alone.
    fn compute(&mut self, model: &mut DraftModel) -> Result<()> {
        if !model.plan.is_empty() {
            model.compute(decodes(&model.plan.step))?;
            self.note_drafted(&model.plan);
        }
        Ok(())
    }

    /// The rows of the draft model's step are in its pages.
    fn note_drafted(&mut self, plan: &Plan) {
        for (span, id) in plan.step.spans.iter().zip(&plan.whose) {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == *id) {
                let end = span.position + span.rows.len();
                sequence.branch.set_drafted(end, &mut self.pool);
            }
        }
    }

    /// Has the draft model compute what it lacks of a sequence before `end`, but no more than
    /// `budget` rows. It lacks something where drafts came from elsewhere, where a prompt was found
    /// in the model's half of the pages only, and where the sequence had given up its slot. Returns
    /// what is left of the budget.
    fn catch_up(
        &mut self,
        model: &mut DraftModel,
        at: usize,
        end: usize,
        mut budget: usize,
    ) -> Result<usize> {
        loop {
            let branch = &mut self.running[at].branch;
            branch.look_drafted(&self.pool);
            let from = branch.drafted;
            if from >= end || budget == 0 {
                return Ok(budget);
            }
            let end = match from < branch.prompt_len {
                true => end.min(branch.prompt_len),
                false => end,
            };
            model.plan.clear();
            let end = end.min(from + model.limits.max_rows.min(budget));
            budget -= end - from;
            add_lacking(model, &self.running[at], end, &self.pool);
            self.compute(model)?;
        }
    }

    /// Asks the draft model for the drafts that sequences want of it. It chooses them token by
    /// token, as the model chooses: with the same penalties, filters and draws, so that its choices
    /// are the model's also at a high temperature, as far as the two agree. The step that is being
    /// planned has `decodes` rows of decode without drafts, and room for so many.
    ///
    /// What it lacks comes first, as much of it as prompts may have rows; who still lacks something
    /// then goes on without drafts. To compute all that a sequence had generated before it gave up
    /// its slot held every other stream up for as long as that takes.
    pub(super) fn propose(&mut self, decodes: usize, room: usize) -> Result<()> {
        self.with_draft_model(|this, model| {
            let most = this.settle_asked(Guesser::Model, &model.pace, decodes, room);
            let most_rows = model.limits.max_rows;
            let streaming = this.running.iter().any(Sequence::streams);
            let rows = model.pace.prompt_rows(decodes, streaming, most_rows);
            let mut budget = rows.max(LEAST_CAUGHT_UP);
            for at in 0..this.running.len() {
                let lacks = |sequence: &Sequence| {
                    let Sequence { branch, drafts, .. } = sequence;
                    let drafts = drafts.as_ref();
                    let is_asked = drafts.is_some_and(|drafts| drafts.lacks(Guesser::Model, 0));
                    // The step of the first draft must have room for the rest.
                    let few = FEW.min(most_rows / 2);
                    let last = branch.tokens.len() - 1;
                    (is_asked && branch.drafted + few < last).then_some(last)
                };
                if let Some(last) = lacks(&this.running[at]) {
                    budget = this.catch_up(model, at, last, budget)?;
                    if lacks(&this.running[at]).is_some()
                        && let Some(drafts) = &mut this.running[at].drafts
                    {
                        drafts.wait();
                    }
                }
            }
            for place in 0..most {
                this.propose_next(model, place)?;
            }
            this.forget_guesses(Guesser::Model);
            Ok(())
        })
    }

    /// One more draft of each sequence that still lacks some.
    fn propose_next(&mut self, model: &mut DraftModel, place: usize) -> Result<()> {
        model.plan.clear();
        if self.reserve_changes(&mut model.plan.choices).is_err() {
            // A draft is a hint: without room for what changes its choice there is none.
            return Ok(());
        }
        for sequence in &mut self.running {
            let Sequence { branch, drafts, .. } = sequence;
            let rows = branch.tokens.len() - branch.drafted;
            let lacks = drafts
                .as_ref()
                .is_some_and(|drafts| drafts.lacks(Guesser::Model, place));
            if !lacks || !model.has_room(rows) {
                continue;
            }
            branch.grow(branch.tokens.len(), &mut self.pool);
            let sequence = &*sequence;
            let branch = &sequence.branch;
            add_lacking(model, sequence, branch.tokens.len(), &self.pool);
            let (plan, editor) = (&mut model.plan, &mut self.editor);
            want_guess(plan, sequence, branch, rows - 1, editor);
        }
        if model.plan.is_empty() {
            return Ok(());
        }
        let n = model.limits.vocab_size;
        let (answer, plan) = model.compute(decodes(&model.plan.step))?;
        self.take_guesses(plan, answer, n)?;
        self.note_drafted(&model.plan);
        Ok(())
    }

    /// Has the draft model compute the rows of the step whose logits are contrasted with its own,
    /// and what comes before them.
    pub(super) fn contrast(&mut self, plan: &Plan) -> Result<()> {
        self.with_draft_model(|this, model| {
            for (span, id) in plan.step.spans.iter().zip(&plan.whose) {
                let at = this.running.iter().position(|s| s.id == *id);
                if let Some(at) = at.filter(|at| is_contrasted(&this.running[*at])) {
                    // The last row of a prompt that was found is computed, but not written, again.
                    let branch = &this.running[at].branch;
                    let found = branch.computed.min(branch.prompt_len);
                    this.catch_up(model, at, found.max(span.position), usize::MAX)?;
                }
            }
            model.plan.clear();
            let Plan {
                step,
                choices,
                whose,
                ..
            } = plan;
            for (span, id) in step.spans.iter().zip(whose) {
                let sequence = this.running.iter().find(|s| s.id == *id);
                let Some(sequence) = sequence.filter(|s| is_contrasted(s)) else {
                    continue;
                };
                let first = model.plan.step.tokens.len();
                let (tokens, place) = (&step.tokens[span.rows.clone()], (span.kind, span.position));
                add(&mut model.plan, sequence, place, tokens, &this.pool);
                for (at, (row, choice)) in step.wanted.iter().zip(&choices.rows).enumerate() {
                    let row = *row as usize;
                    if span.rows.contains(&row) && choice.given.is_none() {
                        model.pair(at, first + row - span.rows.start);
                    }
                }
            }
            if !model.plan.is_empty() {
                model.compute_logits(decodes(&model.plan.step))?;
                this.note_drafted(&model.plan);
            }
            Ok(())
        })
    }
}
