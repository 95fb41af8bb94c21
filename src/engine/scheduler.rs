//! Decides which rows go into the next step, who begins and who ends, and who has which pages.

use super::EngineOptions;
use super::branch::Branch;
use super::call::{Beginning, Call, Waiting};
use super::draft::{Drafts, is_taken};
use super::edits::Editor;
use super::event::FinishReason;
use super::group::{Begin, Group, Row};
use super::guide::{Guide, Guides};
use super::inquiry::Inquiry;
use super::line::{Line, Next};
use super::output::Output;
use super::pace::Pace;
use super::parked::{Bounds, Parked};
use super::policy::Policy;
use super::sampler::{Sampler, picked};
use super::sequence::{Extent, Sequence};
use super::shared::{Shared, lock};
use crate::backend::choice::{Search, mask_words};
use crate::backend::{Answer, Limits, RowKind, Run, Span, Step};
use crate::kv::{Hit, Pool};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use std::ops::Range;
use std::sync::Arc;

/// A step, and the sequences to which its rows belong.
#[derive(Default)]
pub(super) struct Plan {
    pub step: Step,
    /// [`Sequence::id`] of each span.
    whose: Vec<u64>,
    /// For each span, which branch of its sequence it belongs to.
    branches: Vec<usize>,
}

impl Plan {
    /// Makes an empty plan. It has room for any step, but not for the step's history and edits: for
    /// these [`Scheduler::plan`] takes room.
    fn new(limits: &Limits, max_batch_size: usize) -> Result<Self> {
        let what = "the plan of a step";
        let pages_each = limits.max_positions.div_ceil(limits.page_size);
        let mut plan = Self::default();
        let step = &mut plan.step;
        reserve::vec(what, &mut step.tokens, limits.max_rows)?;
        reserve::vec(what, &mut step.slots, limits.max_rows)?;
        reserve::vec(what, &mut step.spans, max_batch_size)?;
        reserve::vec(what, &mut step.adapters, max_batch_size)?;
        reserve::vec(
            what,
            &mut step.pages,
            max_batch_size.saturating_mul(pages_each),
        )?;
        reserve::vec(what, &mut step.wanted, limits.max_wanted)?;
        reserve::vec(what, &mut step.choices, limits.max_wanted)?;
        reserve::vec(what, &mut plan.whose, max_batch_size)?;
        reserve::vec(what, &mut plan.branches, max_batch_size)?;
        Ok(plan)
    }

    pub fn clear(&mut self) {
        self.step.clear();
        self.whose.clear();
        self.branches.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.whose.is_empty()
    }
}

/// All calls that were received and have not ended.
pub(super) struct Scheduler {
    pub(super) line: Line,
    /// The sequences that run, in the order of admission. Each holds a slot and all pages that it
    /// can ever need, so it gives them up only if its reader is behind.
    pub(super) running: Vec<Sequence>,
    /// Room for the sequences that [`Scheduler::retire`] takes out. It is empty between calls.
    ended: Vec<Sequence>,
    /// Pages to be copied, as (from, to). There is at most one for each slot.
    pub(super) copies: Vec<(u32, u32)>,
    guides: Guides,
    pub(super) parked: Parked,
    /// The number of sequences that were admitted so far.
    pub(super) admitted: u64,
    pub(super) pool: Pool,
    pub(super) pace: Pace,
    /// Whether the model has ever taken a step before the answer of the one before it.
    pub(super) runs_ahead: bool,
    pub(super) sampler: Sampler,
    editor: Editor,
    /// Ids from here on are never sampled.
    n_tokens: usize,
    pub(super) limits: Limits,
    tokenizer: Arc<dyn Tokenizer>,
    max_batch_size: usize,
    pub(super) eos_ids: Vec<Token>,
    pub(super) bounds: Bounds,
    pub(super) shared: Arc<Shared>,
}

impl Scheduler {
    pub fn new(
        limits: Limits,
        tokenizer: Arc<dyn Tokenizer>,
        options: &EngineOptions,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let n_tokens = tokenizer.vocab_size().min(limits.vocab_size);
        let mut sampler = Sampler::new(n_tokens);
        sampler.reserve(limits.vocab_size)?;
        let editor = Editor::new(n_tokens, limits.max_positions, &options.eos_ids)?;
        let slots = "the slots (max_batch_size)";
        Ok(Self {
            line: Line::new(options.max_batch_size),
            running: reserve::room(slots, options.max_batch_size)?,
            ended: reserve::room(slots, options.max_batch_size)?,
            copies: reserve::room(slots, options.max_batch_size)?,
            guides: Guides::new(options.max_batch_size)?,
            parked: Parked::new(options.stall_memory_bytes),
            admitted: 0,
            pool: Pool::new(limits.n_pages, limits.page_size)?,
            pace: Pace::new(options.prefill_chunk, limits.max_wanted)?,
            runs_ahead: false,
            sampler,
            editor,
            n_tokens,
            limits,
            tokenizer,
            max_batch_size: options.max_batch_size,
            eos_ids: options.eos_ids.clone(),
            bounds: Bounds::new(options),
            shared,
        })
    }

    /// Makes two empty plans: for a step that is computed, and for the step that follows it.
    pub fn plans(&self) -> Result<[Plan; 2]> {
        let plan = || Plan::new(&self.limits, self.max_batch_size);
        Ok([plan()?, plan()?])
    }

    /// Queues the calls that have come, ends calls that were cancelled or that nobody reads, and
    /// gives slots and pages to those that wait. If no slots are left, sequences whose readers are
    /// behind give up theirs.
    pub fn admit(&mut self, new: Vec<Arc<Call>>, run: &mut dyn Run) -> Result<()> {
        self.line.join(new);
        self.line.look();
        for sequence in self.parked.look(&mut self.line) {
            let reason = sequence.ends().unwrap_or(FinishReason::Cancelled);
            self.end_parked(sequence, reason);
        }
        for sequence in &mut self.running {
            if let Some(reason) = sequence.ends() {
                sequence.end = Some(Ok(reason));
            }
        }
        self.end_unread();
        // An answer may give a sequence its last token, also a sequence that has just come back.
        loop {
            self.take_answers();
            self.retire();
            let before = self.admitted;
            self.fill_slots(run)?;
            if self.admitted == before {
                break;
            }
        }
        self.report();
        Ok(())
    }

    /// Gives slots and pages to the calls that wait.
    fn fill_slots(&mut self, run: &mut dyn Run) -> Result<()> {
        while let Some(next) = self.line.first(&mut self.parked) {
            let went = match next {
                _ if self.slots() == self.max_batch_size => false,
                Next::Call(call) => self.begin(call),
                Next::Parked(id) => self.resume(id, run)?,
            };
            if !went && !self.park(run)? {
                break;
            }
        }
        Ok(())
    }

    /// The number of slots that are taken.
    pub(super) fn slots(&self) -> usize {
        self.running.iter().map(Sequence::width).sum()
    }

    /// Whether so many more slots can be taken.
    pub(super) fn has_slots(&self, n: usize) -> bool {
        self.slots() + n <= self.max_batch_size
    }

    /// Begins a prompt of the call whose turn it is. Returns whether there may be room for another
    /// prompt.
    fn begin(&mut self, call: Arc<Call>) -> bool {
        let width = call.width();
        if !self.has_slots(width) {
            return false;
        }
        let (options, pool) = (&call.options, &mut self.pool);
        // All beams of a prompt are one sequence.
        let n = if options.has_beams() { 1 } else { width };
        let max_seq_len = self.limits.max_positions;
        let beginning = call.begin(|Waiting { index, tokens }, seed, adapter| {
            let extent = Extent::new(options, tokens.len(), max_seq_len);
            let hits = match extent.scores_prompt() {
                true => Vec::new(),
                false => pool.find_all(options.root(), &tokens[..extent.prefill_len()])?,
            };
            if options.grammar.is_some() {
                self.guides.start()?;
            }
            let mut samples = reserve::room("the samples of a prompt", n)?;
            for index in (*index..).take(n) {
                let guide = options.grammar.as_ref().map(|grammar| {
                    Guide::new(grammar, self.n_tokens, &options.stop_tokens, !options.echo)
                });
                let mut guide = guide.transpose()?;
                let output = Output::new(call.clone(), index, self.tokenizer.clone())?;
                let most = tokens.len() + extent.max_new();
                let mut own = reserve::room("the tokens of a sequence", most)?;
                own.extend_from_slice(tokens);
                let inquiry = options
                    .ask_logits
                    .then(|| Inquiry::new(index, tokens.len(), most, self.limits.vocab_size));
                let group = match options.has_beams() {
                    true => Some(Group::new(Begin {
                        call: &call,
                        index,
                        prompt: tokens,
                        extent: &extent,
                        eos_ids: &self.eos_ids,
                        n_tokens: self.n_tokens,
                        tokenizer: &self.tokenizer,
                        guide: guide.take(),
                    })?),
                    false => None,
                };
                let drafts = Drafts::new(&call, tokens.len(), &extent);
                let asked = inquiry.transpose()?;
                samples.push((own, output, guide, group, asked, drafts));
            }
            let total = extent.most_positions().div_ceil(pool.page_size());
            let tables = pool.reserve_all(width, &hits, total)?;
            let begun = |tables| (seed, adapter, extent, hits, samples, tables);
            Ok(tables.map(begun))
        });
        let (seed, adapter, extent, hits, samples, tables) = match beginning {
            Ok(Beginning::Begun(reserved)) => reserved,
            Ok(Beginning::NothingLeft) => return true,
            Ok(Beginning::NoRoom) => return false,
            Err(error) => {
                call.fail(error);
                return true;
            }
        };
        self.line.has_begun();
        let (mut first, mut tables) = (None, tables.into_iter());
        let n_more = self.limits.vocab_size - self.n_tokens;
        for (tokens, output, guide, group, inquiry, drafts) in samples {
            let pages = tables.next().unwrap_or_default();
            self.admitted += 1;
            let mut branch = Branch::new(tokens, pages, options.root());
            for Hit { node, .. } in &hits {
                branch.adopt(*node, self.pool.page_size());
            }
            let mut policy = Policy::new(options, seed, output.index, self.n_tokens);
            if let Some(group) = &group {
                let search = match options.force_words.is_empty() {
                    true => Search::Alternatives,
                    false => Search::Logits,
                };
                policy = policy.searching(group.alternatives(n_more), search);
            }
            let mut sequence = Sequence::new(self.admitted, branch, policy, output, extent);
            sequence.group = group;
            sequence.give_pages(&mut tables);
            if extent.prefill_len() == 0 {
                // There is nothing to generate and nothing to score.
                sequence.finish(FinishReason::Length);
                continue;
            }
            (sequence.guide, sequence.inquiry) = (guide, inquiry);
            sequence.drafts = drafts;
            sequence.adapter.clone_from(&adapter);
            sequence.first = first;
            first = first.or(Some(sequence.id));
            self.running.push(sequence);
        }
        true
    }

    /// Fill `plan` with a row and drafts of each running stream and a chunk of the prompts; leave
    /// it empty if there is nothing to do.
    pub fn plan(&mut self, plan: &mut Plan) {
        plan.clear();
        for sequence in &mut self.running {
            sequence.sits_out = sequence.is_held();
        }
        self.draft();
        if self.reserve_changes(&mut plan.step).is_err() {
            self.drop_drafts();
        }
        if let Err(error) = self.reserve_changes(&mut plan.step) {
            let needs_room = |s: &&mut Sequence| s.history_len() > 0 || s.policy.is_edited();
            for sequence in self.running.iter_mut().filter(needs_room) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        let guided = |s: &Sequence| s.call().options.grammar.is_some();
        let rows = self.running.iter().filter(|s| guided(s));
        let rows: usize = rows.map(|s| s.branches().count()).sum();
        let words = rows * mask_words(self.n_tokens);
        if let Err(error) = reserve::vec("the masks of a step", &mut plan.step.masks, words) {
            for sequence in self.running.iter_mut().filter(|s| guided(s)) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        for sequence in &mut self.running {
            if sequence.sits_out || sequence.branch.in_prefill() {
                continue;
            }
            // Each row is that of a sequence that has the drafts before it.
            let (n, n_drafts) = (sequence.branch.tokens.len(), sequence.n_drafts());
            if let Some(drafts) = &sequence.drafts {
                sequence.branch.tokens.extend_from_slice(drafts.in_step());
            }
            for (at, branch) in sequence.branches().enumerate() {
                let (position, rows) = (branch.computed, 0..1 + n_drafts);
                let tokens = &branch.tokens[position..][rows.clone()];
                let (kind, pool) = (RowKind::Decode, &self.pool);
                add_span(plan, sequence, (at, branch), kind, position, tokens, pool);
                want(&mut plan.step, sequence, branch, rows, &mut self.editor);
            }
            sequence.branch.tokens.truncate(n);
        }
        let mut budget = self
            .pace
            .prompt_rows(plan.step.tokens.len(), self.limits.max_rows);
        for at in 0..self.running.len() {
            if self.waits_for_first(at) {
                continue;
            }
            let sequence = &mut self.running[at];
            if !sequence.sits_out && sequence.branch.in_prefill() {
                // These are pages that others have published since the sequence was admitted.
                if !sequence.extent.scores_prompt() && sequence.branch.adopt_found(&mut self.pool) {
                    sequence.found();
                }
                if !self.is_being_computed(at, plan) {
                    budget -= self.plan_prefill(at, budget, plan);
                }
            }
        }
        self.ask_for_masks(plan);
    }

    /// Has the masks computed for the rows whose sequences follow a grammar.
    /// [`Scheduler::collect_masks`] collects them. Until then no token can be chosen from these
    /// rows.
    fn ask_for_masks(&mut self, plan: &mut Plan) {
        let Plan {
            step,
            whose,
            branches,
        } = plan;
        let mut row = 0;
        for ((span, id), branch) in step.spans.iter().zip(whose).zip(branches) {
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == *id) else {
                continue;
            };
            for (choice, wanted) in step.choices.iter_mut().zip(&step.wanted) {
                let is_its = span.rows.contains(&(*wanted as usize));
                let guide = sequence.guide_mut(*branch);
                if is_its && choice.given.is_none() && guide.is_some() {
                    choice.mask = Some(row as u32);
                    self.guides.ask(sequence, *branch, row);
                    row += 1;
                }
            }
        }
        step.masks.resize(row * mask_words(self.n_tokens), 0);
    }

    /// Waits for the masks of a step that the model has computed.
    pub fn collect_masks(&mut self, plan: &mut Plan) {
        let times = self.guides.collect(&mut plan.step, &mut self.running);
        if times.masks > 0 {
            let mut totals = lock(&self.shared.totals);
            totals.masks += times.masks;
            totals.mask_ms += times.ms;
            totals.mask_wait_ms += times.wait_ms;
        }
    }

    /// Plans the step that follows `plan` while `plan` is under way, so that the device need not
    /// wait for the host between the two. `next` must be empty. It stays empty unless the same
    /// sequences are certain to decode again. Then the only things not known yet are the tokens,
    /// and which sequences end.
    ///
    /// Some sequences may end meanwhile. Their rows are computed in vain, and [`Scheduler::absorb`]
    /// ignores them. Such a row writes to the cache behind its sequence's last token. That does no
    /// harm: the page was never published, and its next holder writes after this row.
    /// no harm: the page was never published, and its next holder writes after this row.
    pub fn plan_ahead(&mut self, plan: &Plan, next: &mut Plan) {
        self.runs_ahead = true;
        let rows = || self.running.iter().filter(|s| !s.sits_out);
        // The next step has the same rows only if nobody comes or goes: no prompt begins, and no
        // reader falls behind, catches up or answers.
        if !rows().map(|s| s.id).eq(plan.whose.iter().copied())
            || !rows().all(Sequence::goes_on)
            || self.running.iter().any(|s| s.sits_out == s.could_go_on())
            || self.reserve_edits(&mut next.step).is_err()
        {
            return;
        }
        next.step.follows = true;
        for sequence in self.running.iter().filter(|s| !s.sits_out) {
            let branch = &sequence.branch;
            let (kind, pool, position) = (RowKind::Decode, &self.pool, branch.tokens.len());
            add_span(next, sequence, (0, branch), kind, position, &[0], pool);
            want(&mut next.step, sequence, branch, 0..1, &mut self.editor);
        }
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            if let Some(drafts) = &mut sequence.drafts {
                drafts.rest();
            }
        }
    }

    /// Room for what the tokens of a step are chosen by.
    fn reserve_changes(&self, step: &mut Step) -> Result<()> {
        let history = self.running.iter().map(Sequence::history_len).sum();
        reserve::vec("the tokens for penalties", &mut step.history, history)?;
        self.reserve_edits(step)
    }

    /// Room for the edits that the running sequences can have in a step.
    fn reserve_edits(&self, step: &mut Step) -> Result<()> {
        let edited = self.running.iter().filter(|s| s.policy.is_edited());
        let most = |s: &Sequence| -> usize {
            let (options, rows) = (&s.call().options, 1 + s.n_drafts());
            let most = |b: &Branch| rows * self.editor.most(options, b.tokens.len() + rows - 1);
            s.branches().map(most).sum()
        };
        let edits = edited.map(most).sum();
        reserve::vec("the edits of logits", &mut step.edits, edits)
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
                        s.branch.known.text == known.text
                            && s.branch.tokens[computed..computed + size] == *page
                    })
            })
    }

    /// Adds a chunk of a prompt. Returns how many rows of the budget it takes.
    fn plan_prefill(&mut self, at: usize, budget: usize, plan: &mut Plan) -> usize {
        let sequence = &self.running[at];
        let end = sequence.extent.prefill_len();
        // A fully cached prompt still computes its last token, but does not write it again.
        let branch = &sequence.branch;
        let position = branch.computed.min(end - 1);
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
        let tokens = &branch.tokens[position..][..rows];
        let (kind, pool) = (RowKind::Prefill, &self.pool);
        add_span(plan, sequence, (0, branch), kind, position, tokens, pool);
        let wanted_from = match sequence.extent.scores_prompt() {
            true => 0,
            false if position + rows == branch.prompt_len => rows - 1,
            false => rows,
        };
        let rows_wanted = wanted_from..rows;
        let editor = &mut self.editor;
        want(&mut plan.step, sequence, branch, rows_wanted, editor);
        rows
    }

    /// Takes the answer of a step, which took `seconds`.
    pub fn absorb(&mut self, plan: &Plan, answer: Answer<'_>, seconds: f64) {
        let Plan {
            step,
            whose,
            branches,
        } = plan;
        if !self.running.iter().any(|s| whose.contains(&s.id)) {
            // All its sequences have ended since it was planned.
            return;
        }
        let spans = step.spans.iter();
        let decoded = spans.filter(|span| span.kind == RowKind::Decode);
        let decodes = decoded.map(|span| span.rows.len()).sum();
        let prompt_rows = step.tokens.len() - decodes;
        self.pace.observe(prompt_rows, decodes, seconds);
        let generated = Sequence::generated;
        let before: usize = self.running.iter().map(generated).sum();
        let (mut drafted, mut accepted) = (0, 0);

        let wanted_before = |row| step.wanted.partition_point(|w| (*w as usize) < row);
        for ((span, id), branch_at) in step.spans.iter().zip(whose).zip(branches) {
            let Some(at) = self.running.iter().position(|s| s.id == *id) else {
                continue;
            };
            let sequence = &mut self.running[at];
            let branch = sequence.branch_mut(*branch_at);
            if span.kind == RowKind::Prefill {
                branch.computed = branch.computed.max(span.position + span.rows.len());
                branch.publish(&mut self.pool);
                if !sequence.extent.scores_prompt()
                    && let Err(error) = sequence.echo(sequence.branch.computed)
                {
                    sequence.end = Some(Err(error));
                }
                self.fork_samples(at);
            }
            for row in wanted_before(span.rows.start)..wanted_before(span.rows.end) {
                let choice = &step.choices[row];
                let position = span.position + step.wanted[row] as usize - span.rows.start;
                if span.kind == RowKind::Decode {
                    let branch = self.running[at].branch_mut(*branch_at);
                    if position > span.position
                        && !is_taken(step, step.wanted[row] as usize, position, branch)
                    {
                        break;
                    }
                    branch.computed = branch.computed.max(position + 1);
                }
                if let Answer::Logits(logits) = answer {
                    let n = self.limits.vocab_size;
                    self.sampler.load(&logits[row * n..][..n]);
                }
                if choice.search != Search::Off {
                    let sequence = &mut self.running[at];
                    let row = match answer {
                        Answer::Logits(_) => Row::Logits(&mut self.sampler),
                        Answer::Picks { picks, top } => Row::Pick(&picks[row], top),
                    };
                    let (pool, copies) = (&mut self.pool, &mut self.copies);
                    if sequence.end.is_none()
                        && let Err(error) =
                            sequence.take_beam(*branch_at, choice, step, row, pool, copies)
                    {
                        sequence.end = Some(Err(error));
                    }
                    continue;
                }
                for sequence in &mut self.running {
                    // All samples of a prompt are told the prompt's scores. The token after the
                    // prompt is drawn by each sample, from its own row.
                    let shares =
                        sequence.first == Some(*id) && position + 1 < sequence.branch.prompt_len;
                    if sequence.end.is_some() || !(sequence.id == *id || shares) {
                        continue;
                    }
                    match sequence.ask(position, choice, step, &mut self.sampler) {
                        Ok(false) => {}
                        Ok(true) => continue,
                        Err(error) => {
                            sequence.end = Some(Err(error));
                            continue;
                        }
                    }
                    let got = match answer {
                        Answer::Logits(_) => match self.sampler.choose(choice, step) {
                            // No token that the model holds possible is left, and the grammar does
                            // not let the text end here.
                            Ok(None) if self.sampler.has_possible() && !sequence.may_end() => {
                                Err(Error::NoToken {
                                    index: sequence.output.index,
                                    position: position + 1,
                                })
                            }
                            got => got,
                        },
                        Answer::Picks { picks, top } => picked(choice, &picks[row], top),
                    };
                    let told = got.and_then(|got| sequence.take(position, got, &self.eos_ids));
                    if let Err(error) = told {
                        sequence.end = Some(Err(error));
                    }
                }
            }
            let Sequence { drafts, branch, .. } = &mut self.running[at];
            if span.kind == RowKind::Decode
                && let Some(drafts) = drafts
            {
                accepted += drafts.learn(step, span, branch);
                drafted += span.rows.len() - 1;
            }
            for sequence in &mut self.running {
                if sequence.first == Some(*id) && sequence.has_computed_prompt() {
                    sequence.first = None;
                }
                if sequence.end.is_none() && sequence.has_scored_all() {
                    sequence.end = Some(Ok(FinishReason::Length));
                }
            }
        }

        let after: usize = self.running.iter().map(generated).sum();
        {
            let mut totals = lock(&self.shared.totals);
            totals.steps += 1;
            totals.generated_tokens += (after - before) as u64;
            totals.drafted_tokens += drafted as u64;
            totals.accepted_tokens += accepted as u64;
            match prompt_rows {
                0 => totals.decode_ms += seconds * 1e3,
                _ => totals.prefill_ms += seconds * 1e3,
            }
        }
        self.retire();
    }

    /// Takes out the sequences that have ended. Their slots and pages are free, and the totals say
    /// so, before any reader can see the end.
    pub(super) fn retire(&mut self) {
        self.end_failed_calls();
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(self.running.extract_if(.., |s| s.end.is_some()));
        for sequence in &mut ended {
            lock(&self.shared.totals).cached_tokens += sequence.all_cached() as u64;
            sequence.release(&mut self.pool);
        }
        if !ended.is_empty() {
            self.report();
        }
        for mut sequence in ended.drain(..) {
            match sequence.end.take() {
                Some(Ok(reason)) => sequence.finish(reason),
                Some(Err(error)) => sequence.call().fail(error),
                None => {}
            }
        }
        self.ended = ended;
    }

    /// The failure of one sequence ends its whole call.
    fn end_failed_calls(&mut self) {
        for at in 0..self.running.len() {
            let Sequence { end, output, .. } = &self.running[at];
            if let Some(Err(error)) = end {
                let (call, error) = (output.call.clone(), error.clone());
                let others = self
                    .running
                    .iter_mut()
                    .filter(|s| !matches!(s.end, Some(Err(_))));
                for other in others.filter(|s| Arc::ptr_eq(s.call(), &call)) {
                    other.end = Some(Err(error.clone()));
                }
            }
        }
    }

    /// Ends all calls, because the handle is freed.
    pub fn cancel_all(&mut self) {
        for sequence in &mut self.running {
            sequence.end = Some(Ok(FinishReason::Cancelled));
        }
        self.retire();
        for sequence in self.parked.take_all(|_| true) {
            self.end_parked(sequence, FinishReason::Cancelled);
        }
        self.line.cancel_all();
    }

    /// Brings the totals up to date.
    fn report(&self) {
        let mut totals = lock(&self.shared.totals);
        totals.running = self.slots() as u32;
        totals.parked = self.parked.sequences().map(Sequence::width).sum::<usize>() as u32;
        totals.pages_used = self.pool.used() as u64;
    }
}

/// Asks for the logits of some rows of the step's last span, which belongs to this branch of the
/// sequence.
fn want(
    step: &mut Step,
    sequence: &Sequence,
    branch: &Branch,
    rows: Range<usize>,
    editor: &mut Editor,
) {
    let Some(span) = step.spans.last() else {
        return;
    };
    for row in rows {
        let policy = &sequence.policy;
        let next = span.position + row + 1;
        let mut choice = policy.choice(branch, next - 1, &mut step.history);
        if choice.given.is_none() && policy.is_edited() {
            let (first, prompt_len) = (step.edits.len(), branch.prompt_len);
            // If this step follows another, its last token is not known yet.
            let tokens = &branch.tokens[..next.min(branch.tokens.len())];
            let (output, generated) = (&tokens[prompt_len..], next - prompt_len);
            let options = &sequence.call().options;
            editor.write(options, tokens, output, generated, &mut step.edits);
            choice.edits = first..step.edits.len();
        }
        step.wanted.push((span.rows.start + row) as u32);
        step.choices.push(choice);
    }
}

/// Appends a span for some tokens of a sequence's branch, from `position` on. Positions that are in
/// the cache already are not written again.
fn add_span(
    plan: &mut Plan,
    sequence: &Sequence,
    (at, branch): (usize, &Branch),
    kind: RowKind,
    position: usize,
    tokens: &[Token],
    pool: &Pool,
) {
    let Plan {
        step,
        whose,
        branches,
    } = plan;
    let Branch {
        pages, computed, ..
    } = branch;
    let size = pool.page_size();
    let positions = position..position + tokens.len();
    let (first_row, first_page) = (step.tokens.len(), step.pages.len());
    step.tokens.extend_from_slice(tokens);
    step.slots.extend(positions.clone().map(|at| {
        let slot = pages[at / size] * size as u32 + (at % size) as u32;
        if at < *computed { Step::NO_SLOT } else { slot }
    }));
    step.pages
        .extend_from_slice(&pages[..positions.end.div_ceil(size)]);
    step.spans.push(Span {
        rows: first_row..step.tokens.len(),
        kind,
        position,
        pages: first_page..step.pages.len(),
    });
    if let Some(adapter) = &sequence.adapter {
        step.adapters.resize(step.spans.len() - 1, None);
        step.adapters.push(Some(adapter.clone()));
    }
    whose.push(sequence.id);
    branches.push(at);
}
