//! The next step: a row and drafts of each sequence that generates, and a chunk of the prompts.

use super::Scheduler;
use super::draft_model::lacks_contrast;
use crate::backend::choice::{Search, mask_words};
use crate::backend::{Choices, RowKind, Run, Span, Step};
use crate::engine::branch::Branch;
use crate::engine::edits::Editor;
use crate::engine::lock::lock;
use crate::engine::plan::Plan;
use crate::engine::sequence::Sequence;
use crate::kv::Pool;
use crate::{Result, Token, reserve};
use std::ops::Range;

impl Scheduler {
    /// `run` has collected all steps. Fill `plan` with a row and drafts of each running stream and
    /// a chunk of the prompts; leave it empty if there is nothing to do.
    pub fn plan(&mut self, plan: &mut Plan, run: &mut dyn Run) -> Result<()> {
        plan.clear();
        for sequence in &mut self.running {
            sequence.sits_out = sequence.is_held();
        }
        self.keep_up()?;
        self.draft(run)?;
        if self.reserve_choices(plan, run).is_err() {
            self.drop_drafts();
        }
        if let Err(error) = self.reserve_choices(plan, run) {
            let needs_room = |s: &&mut Sequence| s.history_len() > 0 || s.policy.is_edited();
            for sequence in self.running.iter_mut().filter(needs_room) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        let guided = |s: &Sequence| s.call().options.grammar.is_some();
        let rows = self.running.iter().filter(|s| guided(s));
        let rows: usize = rows.map(|s| s.branches().count() + s.n_drafts()).sum();
        let words = rows * mask_words(self.n_tokens);
        if let Err(error) = reserve::vec("the masks of a step", &mut plan.choices.masks, words) {
            for sequence in self.running.iter_mut().filter(|s| guided(s)) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        for sequence in &mut self.running {
            if sequence.sits_out || sequence.branch.in_prefill() {
                continue;
            }
            sequence.output.begins();
            // Each row is that of a sequence that has the drafts before it.
            let (n, n_drafts) = (sequence.branch.tokens.len(), sequence.n_drafts());
            sequence.grow(n_drafts, &mut self.pool);
            if let Some(drafts) = &sequence.drafts {
                sequence.branch.tokens.extend_from_slice(drafts.in_step());
            }
            for (at, branch) in sequence.branches().enumerate() {
                let (position, rows) = (branch.computed, 0..1 + n_drafts);
                let tokens = &branch.tokens[position..][rows.clone()];
                let (kind, pool) = (RowKind::Decode, &self.pool);
                let rows_of = Rows {
                    branch,
                    at,
                    kind,
                    position,
                    tokens,
                    written: branch.computed,
                };
                add_span(plan, sequence, &rows_of, pool);
                want(plan, sequence, branch, rows, &mut self.editor);
            }
            sequence.branch.tokens.truncate(n);
        }
        let mut budget = self.prompt_rows(plan.step.tokens.len());
        for at in 0..self.running.len() {
            if self.waits_for_first(at) {
                continue;
            }
            let sequence = &mut self.running[at];
            if !sequence.sits_out && sequence.branch.in_prefill() {
                // These are pages that others have published since the sequence was admitted.
                if !sequence.extent.scores_prompt() && sequence.branch.adopt_found(&mut self.pool) {
                    sequence.found();
                    if lacks_contrast(sequence) {
                        sequence.sits_out = true;
                        self.catches_up = true;
                        continue;
                    }
                }
                if !self.is_being_computed(at, plan) {
                    let rows = self.plan_prefill(at, budget, plan);
                    if rows > 0 {
                        self.running[at].output.begins();
                    }
                    budget -= rows;
                }
            }
        }
        self.ask_for_masks(plan);
        self.contrast(plan)
    }

    /// Plans the step that follows `plan` while `plan` is under way, so that the device need not
    /// wait for the host between the two. `next` must be empty. It stays empty unless the same
    /// sequences are certain to decode again. Then the only things not known yet are the tokens,
    /// and which sequences end.
    ///
    /// Some sequences may end meanwhile. Their rows are computed in vain, and [`Scheduler::absorb`]
    /// ignores them. Such a row writes to the cache behind its sequence's last token. That does no
    /// harm: the page was never published, and its next holder writes after this row.
    pub fn plan_ahead(&mut self, plan: &Plan, next: &mut Plan) {
        self.runs_ahead = true;
        let rows = || self.running.iter().filter(|s| !s.sits_out);
        // The next step has the same rows only if nobody comes or goes: no prompt begins, and no
        // reader falls behind, catches up or answers.
        if !rows().map(|s| s.id).eq(plan.whose.iter().copied())
            || !rows().all(Sequence::goes_on)
            || self.running.iter().any(|s| s.sits_out == s.could_go_on())
            || self.reserve_edits(&mut next.choices).is_err()
        {
            return;
        }
        next.step.follows = true;
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            let position = sequence.branch.tokens.len();
            sequence.branch.grow(position + 1, &mut self.pool);
            let sequence = &*sequence;
            let branch = &sequence.branch;
            let (kind, pool) = (RowKind::Decode, &self.pool);
            let tokens = &[0];
            let rows = Rows {
                branch,
                at: 0,
                kind,
                position,
                tokens,
                written: branch.computed,
            };
            add_span(next, sequence, &rows, pool);
            want(next, sequence, branch, 0..1, &mut self.editor);
        }
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            if let Some(drafts) = &mut sequence.drafts {
                drafts.rest();
            }
        }
    }

    /// Has the masks computed for the rows whose sequences follow a grammar.
    /// [`Scheduler::collect_masks`] collects them. Until then no token can be chosen from these
    /// rows, neither here nor by the model ([`Run::awaits_masks`]).
    fn ask_for_masks(&mut self, plan: &mut Plan) {
        let Plan {
            step,
            choices,
            whose,
            branches,
        } = plan;
        let mut row = 0;
        for ((span, id), branch) in step.spans.iter().zip(whose).zip(branches) {
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == *id) else {
                continue;
            };
            if sequence.guide_mut(*branch).is_none() {
                continue;
            }
            let first = row;
            for (choice, wanted) in choices.rows.iter_mut().zip(&step.wanted) {
                let is_its = span.rows.contains(&(*wanted as usize));
                if is_its && choice.given.is_none() {
                    choice.mask = Some(row as u32);
                    row += 1;
                }
            }
            if row > first {
                // Of a prompt one row has a mask. A step's drafts stand behind a token.
                let drafts = &step.tokens[span.rows.end + 1 + first - row..span.rows.end];
                self.guides.ask(sequence, *branch, first, drafts);
            }
        }
        choices.masks.resize(row * mask_words(self.n_tokens), 0);
    }

    /// Waits for the masks of a step, if they have not been collected yet.
    pub fn collect_masks(&mut self, plan: &mut Plan) {
        let times = self.guides.collect(&mut plan.choices, &mut self.running);
        if times.masks > 0 {
            let mut totals = lock(&self.shared.totals);
            totals.masks += times.masks;
            totals.mask_ms += times.ms;
            totals.mask_wait_ms += times.wait_ms;
        }
    }

    /// Room for what the tokens of a step are chosen by, here and where the model has copies of it.
    fn reserve_choices(&self, plan: &mut Plan, run: &mut dyn Run) -> Result<()> {
        self.reserve_changes(&mut plan.choices)?;
        run.reserve_history(self.history_len())
    }

    fn history_len(&self) -> usize {
        self.running.iter().map(Sequence::history_len).sum()
    }

    /// Room for what the tokens of a step are chosen by.
    pub(super) fn reserve_changes(&self, choices: &mut Choices) -> Result<()> {
        let history = self.history_len();
        reserve::vec("the tokens for penalties", &mut choices.history, history)?;
        self.reserve_edits(choices)
    }

    /// Room for the edits that the running sequences can have in a step.
    fn reserve_edits(&self, choices: &mut Choices) -> Result<()> {
        let edited = self.running.iter().filter(|s| s.policy.is_edited());
        let most = |s: &Sequence| -> usize {
            let (options, rows) = (&s.call().options, 1 + s.n_drafts());
            let most = |b: &Branch| rows * self.editor.most(options, b.tokens.len() + rows - 1);
            s.branches().map(most).sum()
        };
        let edits = edited.map(most).sum();
        reserve::vec("the edits of logits", &mut choices.edits, edits)
    }

    /// Whether an earlier span of this step computes the page with which this sequence would begin.
    /// The sequence then waits and finds the page after the step, so that several answers to one
    /// prompt cost one prefill.
    fn is_being_computed(&self, at: usize, plan: &Plan) -> bool {
        let (this, size) = (&self.running[at], self.pool.page_size());
        let Branch {
            computed, known, ..
        } = this.branch;
        let Some(page) = this.branch.next_page(size) else {
            return false;
        };
        !this.extent.scores_prompt()
            && plan.step.spans.iter().zip(&plan.whose).any(|(span, id)| {
                span.kind == RowKind::Prefill
                    && span.position == computed
                    && span.rows.len() >= size
                    && self.running.iter().find(|s| s.id == *id).is_some_and(|s| {
                        s.call().options.publishes
                            && s.branch.known.text == known.text
                            && s.branch.tokens[computed..computed + size] == *page
                    })
            })
    }

    /// Adds a chunk of a prompt. Returns how many rows of the budget it takes.
    fn plan_prefill(&mut self, at: usize, budget: usize, plan: &mut Plan) -> usize {
        let sequence = &mut self.running[at];
        let end = sequence.extent.prefill_len();
        // A fully cached prompt still computes its last token, but does not write it again.
        let position = sequence.branch.computed.min(end - 1);
        let mut rows = (end - position).min(budget);
        let room = self.limits.max_wanted - plan.step.wanted.len();
        if sequence.extent.scores_prompt() {
            rows = rows.min(room);
        } else if room == 0 && position + rows == end {
            rows -= rows.min(1);
        }
        if rows == 0 {
            return 0;
        }
        sequence.branch.grow(position + rows, &mut self.pool);
        let sequence = &self.running[at];
        let branch = &sequence.branch;
        let tokens = &branch.tokens[position..][..rows];
        let (kind, pool) = (RowKind::Prefill, &self.pool);
        let new = Rows {
            branch,
            at: 0,
            kind,
            position,
            tokens,
            written: branch.computed,
        };
        add_span(plan, sequence, &new, pool);
        let wanted_from = match sequence.extent.scores_prompt() {
            true => 0,
            false if position + rows == branch.prompt_len => rows - 1,
            false => rows,
        };
        let rows_wanted = wanted_from..rows;
        let editor = &mut self.editor;
        want(plan, sequence, branch, rows_wanted, editor);
        rows
    }
}

/// Asks for tokens behind some rows of the step's last span, which belongs to this branch of the
/// sequence.
pub(super) fn want(
    plan: &mut Plan,
    sequence: &Sequence,
    branch: &Branch,
    rows: Range<usize>,
    editor: &mut Editor,
) {
    let Plan { step, choices, .. } = plan;
    let Some(span) = step.spans.last() else {
        return;
    };
    for row in rows {
        let policy = &sequence.policy;
        let next = span.position + row + 1;
        let mut choice = policy.choice(branch, next - 1, &mut choices.history);
        if choice.given.is_none() && policy.is_edited() {
            let (first, prompt_len) = (choices.edits.len(), branch.prompt_len);
            // If this step follows another, its last token is not known yet.
            let tokens = &branch.tokens[..next.min(branch.tokens.len())];
            let (output, generated) = (&tokens[prompt_len..], next - prompt_len);
            let options = &sequence.call().options;
            editor.write(options, tokens, output, generated, &mut choices.edits);
            choice.edits = first..choices.edits.len();
        }
        step.wanted.push((span.rows.start + row) as u32);
        choices.rows.push(choice);
    }
}

/// Asks for a guess at the token behind row `row` of the step's last span. Nobody is told of it, so
/// nothing but the token is computed.
pub(super) fn want_guess(
    plan: &mut Plan,
    sequence: &Sequence,
    branch: &Branch,
    row: usize,
    editor: &mut Editor,
) {
    want(plan, sequence, branch, row..row + 1, editor);
    if let Some(choice) = plan.choices.rows.last_mut() {
        (choice.logprob, choice.top, choice.to_host) = (false, 0, false);
        choice.search = Search::Off;
    }
}

/// Rows of a sequence, to be put into a step.
pub(super) struct Rows<'a> {
    pub branch: &'a Branch,
    /// Which of the sequence's branches it is.
    pub at: usize,
    pub kind: RowKind,
    /// The position of the first of them.
    pub position: usize,
    pub tokens: &'a [Token],
    /// Positions before this one are in the cache already and are not written again.
    pub written: usize,
}

/// Appends a span of these rows.
pub(super) fn add_span(plan: &mut Plan, sequence: &Sequence, rows: &Rows<'_>, pool: &Pool) {
    let Plan {
        step,
        whose,
        branches,
        ..
    } = plan;
    let Rows {
        branch, position, ..
    } = *rows;
    let (pages, size) = (&branch.pages, pool.page_size());
    let positions = position..position + rows.tokens.len();
    let (first_row, first_page) = (step.tokens.len(), step.pages.len());
    step.tokens.extend_from_slice(rows.tokens);
    step.slots.extend(positions.clone().map(|at| {
        let slot = pages[at / size] * size as u32 + (at % size) as u32;
        if at < rows.written {
            Step::NO_SLOT
        } else {
            slot
        }
    }));
    step.pages
        .extend_from_slice(&pages[..positions.end.div_ceil(size)]);
    step.spans.push(Span {
        rows: first_row..step.tokens.len(),
        kind: rows.kind,
        position,
        pages: first_page..step.pages.len(),
    });
    if let Some(adapter) = &sequence.adapter {
        step.adapters.resize(step.spans.len() - 1, None);
        step.adapters.push(Some(adapter.clone()));
    }
    whose.push(sequence.id);
    branches.push(rows.at);
}
