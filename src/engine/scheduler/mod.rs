//! Decides which rows go into the next step, who begins and who ends, and who has which pages.

mod absorb;
mod choosing;
mod draft_model;
mod drafts;
mod medusa;
mod park;
mod patience;
mod planning;
mod samples;

use self::choosing::Choosing;
use self::patience::Bounds;
use super::branch::Branch;
use super::call::{Beginning, Call, Waiting};
use super::draft::Drafts;
use super::draft_model::DraftModel;
use super::edits::Editor;
use super::event::FinishReason;
use super::extent::Extent;
use super::group::{Begin, Group};
use super::guide::Guide;
use super::guides::Guides;
use super::inquiry::Inquiry;
use super::line::{Line, Next};
use super::lock::lock;
use super::medusa::Medusa;
use super::options::EngineOptions;
use super::output::Output;
use super::pace::Pace;
use super::parked::Parked;
use super::plan::Plan;
use super::policy::Policy;
use super::request::MAX_DRAFTS;
use super::sampler::Sampler;
use super::sequence::Sequence;
use super::shared::Shared;
use crate::backend::choice::Search;
use crate::backend::{Limits, Run};
use crate::kv::{Hit, Pool};
use crate::tokenizer::Tokenizer;
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// All calls that were received and have not ended.
pub(super) struct Scheduler {
    line: Line,
    /// The sequences that run, in the order of admission. Each holds a slot and was promised all
    /// pages that it can ever need, so it gives them up only if its reader is behind.
    running: Vec<Sequence>,
    /// Room for the sequences that [`Scheduler::retire`] takes out. It is empty between calls.
    ended: Vec<Sequence>,
    /// Pages to be copied, as (from, to). There is at most one for each slot.
    copies: Vec<(u32, u32)>,
    guides: Guides,
    parked: Parked,
    /// The number of sequences that were admitted so far.
    admitted: u64,
    pool: Pool,
    pace: Pace,
    /// Whether the model has ever taken a step before the answer of the one before it.
    runs_ahead: bool,
    /// Whether a sequence sits out until the draft model has caught up with it.
    catches_up: bool,
    draft_model: Option<Box<DraftModel>>,
    medusa: Option<Box<Medusa>>,
    sampler: Sampler,
    choosing: Choosing,
    editor: Editor,
    /// Ids from here on are never sampled.
    n_tokens: usize,
    limits: Limits,
    tokenizer: Arc<dyn Tokenizer>,
    max_batch_size: usize,
    eos_ids: Vec<Token>,
    bounds: Bounds,
    shared: Arc<Shared>,
}

impl Scheduler {
    /// For a model and its draft model.
    pub fn new(
        (run, draft): (&dyn Run, Option<Box<dyn Run>>),
        tokenizer: Arc<dyn Tokenizer>,
        options: &EngineOptions,
        shared: Arc<Shared>,
    ) -> Result<Self> {
        let limits = run.limits();
        let n_tokens = tokenizer.vocab_size().min(limits.vocab_size);
        let mut sampler = Sampler::new(n_tokens);
        sampler.reserve(limits.vocab_size)?;
        let draft_model = draft
            .map(|run| DraftModel::new(run, &limits, n_tokens, options))
            .transpose()?;
        let medusa = Medusa::new(run, &limits, options.max_batch_size)?;
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
            pace: Pace::new(
                options.prefill_chunk,
                run.least_prompt_rows(),
                options.max_step_ms,
                limits.max_wanted,
            )?,
            runs_ahead: false,
            catches_up: false,
            draft_model: draft_model.map(Box::new),
            medusa: medusa.map(Box::new),
            sampler,
            choosing: Choosing::new(
                run.n_threads(),
                limits.max_wanted,
                n_tokens,
                limits.vocab_size,
            )?,
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
        while let Some(next) = self.line.first(|id| self.parked.may_return(id)) {
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

    /// The number of prompt rows of a step that has so many rows of decode.
    fn prompt_rows(&self, decodes: usize) -> usize {
        let decoding = |s: &&Sequence| !s.sits_out && !s.branch.in_prefill();
        let streaming = self.running.iter().filter(decoding).any(Sequence::streams);
        self.pace
            .prompt_rows(decodes, streaming, self.limits.max_rows)
    }

    /// The number of slots that are taken.
    fn slots(&self) -> usize {
        self.running.iter().map(Sequence::width).sum()
    }

    /// Whether so many more slots can be taken.
    fn has_slots(&self, n: usize) -> bool {
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
        let heads = self.medusa.as_ref().map_or(0, |medusa| medusa.n);
        let guessers = (heads, self.draft_model.is_some());
        let draft_model = &mut self.draft_model;
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
            if let Some(model) = draft_model.as_mut().filter(|_| options.contrasts()) {
                model.reserve_logits()?;
            }
            let mut samples = reserve::room("the samples of a prompt", n)?;
            for index in (*index..).take(n) {
                let drafts = Drafts::new(&call, tokens.len(), &extent, guessers);
                let most_drafts = drafts.as_ref().map_or(0, |_| MAX_DRAFTS);
                let guide = options.grammar.as_ref().map(|grammar| {
                    let begins_text = !options.echo;
                    let (n, stops) = (self.n_tokens, &options.stop_tokens);
                    Guide::new(grammar, &self.tokenizer, n, stops, begins_text, most_drafts)
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

    /// Takes out the sequences that have ended. Their slots and pages are free, and the totals say
    /// so, before any reader can see the end.
    fn retire(&mut self) {
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
                Some(Err(error)) => sequence.fail(error),
                None => {}
            }
        }
        self.ended = ended;
    }

    /// The failure of one sequence ends all of its call, unless the reader has to come to it first.
    fn end_failed_calls(&mut self) {
        for at in 0..self.running.len() {
            let Sequence { end, output, .. } = &self.running[at];
            if let Some(Err(error)) = end
                && !Call::fails_in_order(error)
            {
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
