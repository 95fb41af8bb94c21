//! Which rows go into the next step; who begins, who ends, and whose pages are whose.

use super::EngineOptions;
use super::branch::Branch;
use super::call::{Beginning, Call, Waiting};
use super::edits::Editor;
use super::guide::{Guide, Guides};
use super::line::{Line, Next};
use super::output::Output;
use super::pace::Pace;
use super::parked::{Bounds, Parked};
use super::policy::Policy;
use super::sampler::{Sampler, picked};
use super::sequence::{Extent, Sequence};
use super::shared::{Shared, lock};
use super::stream::FinishReason;
use crate::backend::choice::mask_words;
use crate::backend::{Answer, Limits, RowKind, Run, Span, Step};
use crate::kv::{Hit, Pool};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use std::ops::Range;
use std::sync::Arc;

/// A step, and whose rows it has.
#[derive(Default)]
pub(super) struct Plan {
    pub step: Step,
    /// [`Sequence::id`] of each span.
    whose: Vec<u64>,
}

impl Plan {
    /// An empty plan with room for any step but its history and its edits, whose room
    /// [`Scheduler::plan`] takes.
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
        Ok(plan)
    }

    pub fn clear(&mut self) {
        self.step.clear();
        self.whose.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.whose.is_empty()
    }
}

/// All calls that were received and have not ended.
pub(super) struct Scheduler {
    pub(super) line: Line,
    /// In the order of admission. Every one holds a slot and all pages it can ever need, so that
    /// only a reader who is behind makes it give them up.
    pub(super) running: Vec<Sequence>,
    /// Room for the sequences that [`Scheduler::retire`] takes out; empty between its runs.
    ended: Vec<Sequence>,
    /// Pages to be copied, (from, to); at most one for each slot.
    pub(super) copies: Vec<(u32, u32)>,
    guides: Guides,
    pub(super) parked: Parked,
    /// Sequences that were admitted so far.
    pub(super) admitted: u64,
    pub(super) pool: Pool,
    pace: Pace,
    sampler: Sampler,
    editor: Editor,
    /// Ids from here on are never sampled.
    n_tokens: usize,
    limits: Limits,
    tokenizer: Arc<dyn Tokenizer>,
    max_batch_size: usize,
    eos_ids: Vec<Token>,
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
        let editor = Editor::new(n_tokens, &options.eos_ids)?;
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
            pace: Pace::new(options.prefill_chunk),
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

    /// Empty plans for two steps: one that is computed, and one that follows it.
    pub fn plans(&self) -> Result<[Plan; 2]> {
        let plan = || Plan::new(&self.limits, self.max_batch_size);
        Ok([plan()?, plan()?])
    }

    /// Queue what has come, end what was cancelled or went unread, and give slots and pages to
    /// those who wait. Where none are left, sequences whose readers are behind give theirs up.
    pub fn admit(&mut self, new: Vec<Arc<Call>>, run: &mut dyn Run) -> Result<()> {
        self.line.join(new);
        self.line.look();
        for sequence in self.parked.look(&mut self.line) {
            self.end_parked(sequence, FinishReason::Cancelled);
        }
        for sequence in self.parked.take_all(|s| s.call().is_out_of_time()) {
            self.end_parked(sequence, FinishReason::Time);
        }
        for sequence in &mut self.running {
            let Output { call, index, .. } = &sequence.output;
            if call.is_cancelled() || call.has_ended(*index) {
                sequence.end = Some(Ok(FinishReason::Cancelled));
            } else if call.is_out_of_time() {
                sequence.end = Some(Ok(FinishReason::Time));
            }
        }
        self.end_unread();
        self.retire();
        loop {
            let Some(next) = self.line.first(&mut self.parked) else {
                break;
            };
            let went = match next {
                _ if self.running.len() == self.max_batch_size => false,
                Next::Call(call) => self.begin(call),
                Next::Parked(id) => self.resume(id, run)?,
            };
            if !went && !self.park(run)? {
                break;
            }
        }
        self.report();
        Ok(())
    }

    /// Begin a prompt of the call whose turn it is. Returns whether there may be room for another.
    fn begin(&mut self, call: Arc<Call>) -> bool {
        let (options, pool, width) = (&call.options, &mut self.pool, call.width());
        if self.running.len() + width > self.max_batch_size {
            return false;
        }
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
            let mut samples = reserve::room("the samples of a prompt", width)?;
            for index in (*index..).take(width) {
                let guide = options.grammar.as_ref();
                let guide = guide.map(|grammar| Guide::new(grammar, self.n_tokens, !options.echo));
                let output = Output::new(call.clone(), index, self.tokenizer.clone())?;
                let most = tokens.len() + extent.max_new();
                let mut own = reserve::room("the tokens of a sequence", most)?;
                own.extend_from_slice(tokens);
                samples.push((own, output, guide.transpose()?));
            }
            let total = extent.most_positions().div_ceil(pool.page_size());
            let tables = pool.reserve_all(width, &hits, total)?;
            let begun = |tables| (seed, adapter, extent, hits, samples.into_iter().zip(tables));
            Ok(tables.map(begun))
        });
        let (seed, adapter, extent, hits, samples) = match beginning {
            Ok(Beginning::Begun(reserved)) => reserved,
            Ok(Beginning::NothingLeft) => return true,
            Ok(Beginning::NoRoom) => return false,
            Err(error) => {
                call.fail(error);
                return true;
            }
        };
        self.line.has_begun();
        let mut first = None;
        for ((tokens, output, guide), pages) in samples {
            self.admitted += 1;
            let mut branch = Branch::new(tokens, pages, options.root());
            for Hit { node, .. } in &hits {
                branch.adopt(*node, self.pool.page_size());
            }
            let policy = Policy::new(options, seed, output.index, self.n_tokens);
            let mut sequence = Sequence::new(self.admitted, branch, policy, output, extent);
            if extent.prefill_len() == 0 {
                // Nothing to generate and nothing to score.
                sequence.finish(FinishReason::Length);
                continue;
            }
            sequence.guide = guide;
            sequence.adapter.clone_from(&adapter);
            sequence.first = first;
            first = first.or(Some(sequence.id));
            self.running.push(sequence);
        }
        true
    }

    /// Fill `plan` with one row per running stream and a chunk of the prompts; leave it empty if
    /// there is nothing to do.
    pub fn plan(&mut self, plan: &mut Plan) {
        plan.clear();
        let history = self.running.iter().map(Sequence::history_len).sum();
        let room = reserve::vec("the tokens for penalties", &mut plan.step.history, history);
        if let Err(error) = room.and_then(|()| self.reserve_edits(&mut plan.step)) {
            let needs_room = |s: &&mut Sequence| s.history_len() > 0 || s.policy.is_edited();
            for sequence in self.running.iter_mut().filter(needs_room) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        let guided = self.running.iter().filter(|s| s.guide.is_some()).count();
        let words = guided * mask_words(self.n_tokens);
        if let Err(error) = reserve::vec("the masks of a step", &mut plan.step.masks, words) {
            for sequence in self.running.iter_mut().filter(|s| s.guide.is_some()) {
                sequence.end = Some(Err(error.clone()));
            }
            self.retire();
        }
        for sequence in &mut self.running {
            sequence.sits_out = sequence.call().is_behind();
        }
        for sequence in &self.running {
            let branch = &sequence.branch;
            if !sequence.sits_out && !branch.in_prefill() {
                let position = branch.computed;
                let token = &branch.tokens[position..][..1];
                add_span(plan, sequence, RowKind::Decode, position, token, &self.pool);
                want(&mut plan.step, sequence, 0..1, &mut self.editor);
            }
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
                // Pages that others have published since it was admitted.
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

    /// Have the masks computed of the rows whose sequences follow a grammar. They come with
    /// [`Scheduler::collect_masks`]; until then no token can be chosen of these rows.
    fn ask_for_masks(&mut self, plan: &mut Plan) {
        let Plan { step, whose } = plan;
        let mut row = 0;
        for (span, id) in step.spans.iter().zip(whose) {
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == *id) else {
                continue;
            };
            for (choice, wanted) in step.choices.iter_mut().zip(&step.wanted) {
                let is_its = span.rows.contains(&(*wanted as usize));
                if is_its && choice.given.is_none() && sequence.guide.is_some() {
                    choice.mask = Some(row as u32);
                    self.guides.ask(sequence, row);
                    row += 1;
                }
            }
        }
        step.masks.resize(row * mask_words(self.n_tokens), 0);
    }

    /// Wait for the masks of a step that the model has computed.
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
    /// wait for the host between the two. `next` is empty before. It stays empty unless the same
    /// sequences are certain to decode again: then only the tokens, and which sequences end, are
    /// not known yet.
    ///
    /// Some sequences may end meanwhile. Their rows are computed in vain, and [`Scheduler::absorb`]
    /// passes over them. Such a row writes to the cache behind its sequence's last token. That does
    /// no harm: the page was never published, and its next holder writes after this row.
    pub fn plan_ahead(&mut self, plan: &Plan, next: &mut Plan) {
        let rows = || self.running.iter().filter(|s| !s.sits_out);
        // The next step has the same rows only if nobody comes or goes: no prompt begins, and no
        // reader falls behind or catches up.
        if !rows().map(|s| s.id).eq(plan.whose.iter().copied())
            || !rows().all(Sequence::goes_on)
            || self
                .running
                .iter()
                .any(|s| s.sits_out != s.call().is_behind())
            || self.reserve_edits(&mut next.step).is_err()
        {
            return;
        }
        next.step.follows = true;
        for sequence in self.running.iter().filter(|s| !s.sits_out) {
            let position = sequence.branch.tokens.len();
            add_span(next, sequence, RowKind::Decode, position, &[0], &self.pool);
            want(&mut next.step, sequence, 0..1, &mut self.editor);
        }
    }

    /// Room for the edits that the running sequences can have in a step.
    fn reserve_edits(&self, step: &mut Step) -> Result<()> {
        let edited = self.running.iter().filter(|s| s.policy.is_edited());
        let most = |s: &Sequence| self.editor.most(&s.call().options, s.branch.tokens.len());
        let edits = edited.map(most).sum();
        reserve::vec("the edits of logits", &mut step.edits, edits)
    }

    /// Whether an earlier span of this step computes the page that this sequence would begin with.
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

    /// Returns the rows taken from the budget.
    fn plan_prefill(&mut self, at: usize, budget: usize, plan: &mut Plan) -> usize {
        let sequence = &self.running[at];
        let end = sequence.extent.prefill_len();
        // A fully cached prompt still computes its last token, without writing it again.
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
        add_span(
            plan,
            sequence,
            RowKind::Prefill,
            position,
            tokens,
            &self.pool,
        );
        let wanted_from = match sequence.extent.scores_prompt() {
            true => 0,
            false if position + rows == branch.prompt_len => rows - 1,
            false => rows,
        };
        let rows_wanted = wanted_from..rows;
        want(&mut plan.step, sequence, rows_wanted, &mut self.editor);
        rows
    }

    /// Take the answer of a step, which took `seconds`.
    pub fn absorb(&mut self, plan: &Plan, answer: Answer<'_>, seconds: f64) {
        let Plan { step, whose } = plan;
        if !self.running.iter().any(|s| whose.contains(&s.id)) {
            // All its sequences have ended since it was planned.
            return;
        }
        let decodes = step
            .spans
            .iter()
            .filter(|span| span.kind == RowKind::Decode)
            .count();
        let prompt_rows = step.tokens.len() - decodes;
        self.pace.observe(prompt_rows, decodes, seconds);
        let generated = |s: &Sequence| s.branch.generated();
        let before: usize = self.running.iter().map(generated).sum();

        let wanted_before = |row| step.wanted.partition_point(|w| (*w as usize) < row);
        for (span, id) in step.spans.iter().zip(whose) {
            let Some(at) = self.running.iter().position(|s| s.id == *id) else {
                continue;
            };
            let sequence = &mut self.running[at];
            let branch = &mut sequence.branch;
            branch.computed = branch.computed.max(span.position + span.rows.len());
            if span.kind == RowKind::Prefill {
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
                if let Answer::Logits(logits) = answer {
                    let n = self.limits.vocab_size;
                    self.sampler.load(&logits[row * n..][..n]);
                }
                for sequence in &mut self.running {
                    // Samples of a prompt are all told its scores. What follows it, each draws
                    // from a row of its own.
                    let shares =
                        sequence.first == Some(*id) && position + 1 < sequence.branch.prompt_len;
                    if sequence.end.is_some() || !(sequence.id == *id || shares) {
                        continue;
                    }
                    let got = match answer {
                        Answer::Logits(_) => match self.sampler.choose(choice, step) {
                            // Nothing is left of what the model thinks possible, and no text of a
                            // grammar ends here.
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
            match prompt_rows {
                0 => totals.decode_ms += seconds * 1e3,
                _ => totals.prefill_ms += seconds * 1e3,
            }
        }
        self.retire();
    }

    /// Take out the sequences that have ended. Their slots and pages are free, and the totals say
    /// so, before any reader can see the end.
    pub(super) fn retire(&mut self) {
        self.end_failed_calls();
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(self.running.extract_if(.., |s| s.end.is_some()));
        for sequence in &mut ended {
            lock(&self.shared.totals).cached_tokens += sequence.cached as u64;
            sequence.branch.release(&mut self.pool);
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

    /// One failure ends its whole call.
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

    /// End everything: the handle goes.
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

    /// Bring the totals up to date.
    fn report(&self) {
        let mut totals = lock(&self.shared.totals);
        totals.running = self.running.len() as u32;
        totals.parked = self.parked.len() as u32;
        totals.pages_used = self.pool.used() as u64;
    }
}

/// Ask for the logits of some rows of the step's last span, which belongs to this sequence.
fn want(step: &mut Step, sequence: &Sequence, rows: Range<usize>, editor: &mut Editor) {
    let Some(span) = step.spans.last() else {
        return;
    };
    for row in rows {
        let Sequence { policy, branch, .. } = sequence;
        let next = span.position + row + 1;
        let mut choice = policy.choice(branch, next - 1, &mut step.history);
        if choice.given.is_none() && policy.is_edited() {
            let (first, prompt_len) = (step.edits.len(), branch.prompt_len);
            // Of a step that follows another, the last token is not known.
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

/// Append a span for some tokens of a sequence, from `position` on. Positions that are in the cache
/// are not written again.
fn add_span(
    plan: &mut Plan,
    sequence: &Sequence,
    kind: RowKind,
    position: usize,
    tokens: &[Token],
    pool: &Pool,
) {
    let Plan { step, whose } = plan;
    let Branch {
        pages, computed, ..
    } = &sequence.branch;
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
}
