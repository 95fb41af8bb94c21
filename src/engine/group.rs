//! A beam search as one sequence of the engine: it has a slot, a page table and tokens for each
//! beam, takes part in a step with a row of each, and ends as several results.
//!
//! Slots and beams are not the same: beams are numbered anew in every step, best first, and the
//! first heir of a beam goes on in its slot. For every other heir a slot without one is forked from
//! that ([`super::branch::Branch::fork`]), which needs no page beyond those that all slots were
//! given when the search began. So pages are never short, and a search that has narrowed, because
//! tokens were impossible, can widen again.

use super::beam::{Candidate, Rules, Search};
use super::branch::Branch;
use super::call::Call;
use super::event::{Alternative, BeamEvent, Event, FinishReason, RequestStats};
use super::guide::Guide;
use super::output::{Output, Sums};
use super::phrases::{Phrases, Progress};
use super::sampler::{self, Continuation, Sampler, Score};
use super::sequence::{Extent, Sequence};
use super::text::TextStream;
use crate::backend::{Choice, Pick, Step};
use crate::kv::{Hit, Pool, Root};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use std::cell::RefCell;
use std::iter::once;
use std::sync::Arc;

const WHAT: &str = "the beams of a search";

/// What the reader will be told of a beam.
pub(super) struct Told {
    tokens: Vec<Token>,
    logprobs: Vec<f32>,
    /// The alternatives of each token, if they are wanted.
    tops: Vec<Arc<Vec<Alternative>>>,
}

/// What a beam has beside its branch.
struct Slot {
    told: Told,
    /// For stop strings, if there are any.
    text: Option<TextStream>,
    guide: Option<Box<Guide>>,
    /// How far it has come with the phrases that it must write.
    progress: Progress,
}

/// The beams of one prompt.
pub(super) struct Group {
    search: Search<Told>,
    /// The slot of each running beam.
    beams: Vec<usize>,
    slots: Vec<Slot>,
    /// The branches of all slots but the first, whose branch is the sequence's own.
    others: Vec<Branch>,
    /// Of the results but the first.
    outputs: Vec<Output>,
    /// Tokens that end a sequence, ascending.
    ends: Vec<Token>,
    /// Continuations that a row gives.
    each: usize,
    n_top: usize,
    reports: bool,
    /// Tokens generated, of all beams.
    pub generated: usize,
    /// Of the step that is being absorbed: rows that came, whether any of them had a possible
    /// token, and the alternatives of each.
    rows: usize,
    possible: bool,
    tops: Vec<Option<Arc<Vec<Alternative>>>>,
    /// Only for a while; kept for their memory.
    continuations: Vec<Continuation>,
    trial: Option<TextStream>,
    progress: Progress,
    forced: Vec<Token>,
    next: Vec<usize>,
}

/// What the model says behind a beam.
pub(super) enum Row<'a> {
    /// The sampler has loaded its logits.
    Logits(&'a mut Sampler),
    /// Chosen by a device, with the list that its alternatives are a part of.
    Pick(&'a Pick, &'a [(Token, f32)]),
}

/// What a search is begun with.
pub(super) struct Begin<'a> {
    pub call: &'a Arc<Call>,
    /// The number of the first result.
    pub index: u32,
    pub prompt: &'a [Token],
    pub extent: &'a Extent,
    pub eos_ids: &'a [Token],
    /// Ids from here on are never generated.
    pub n_tokens: usize,
    pub tokenizer: &'a Arc<dyn Tokenizer>,
    pub guide: Option<Box<Guide>>,
}

impl Told {
    fn new(most: usize, tops: bool) -> Result<Self> {
        Ok(Self {
            tokens: reserve::room(WHAT, most)?,
            logprobs: reserve::room(WHAT, most)?,
            tops: reserve::room(WHAT, if tops { most } else { 0 })?,
        })
    }

    fn follow(&mut self, other: &Self) {
        self.tokens.clone_from(&other.tokens);
        self.logprobs.clone_from(&other.logprobs);
        self.tops.clone_from(&other.tops);
    }

    fn push(&mut self, candidate: &Candidate, top: Option<&Arc<Vec<Alternative>>>) {
        self.tokens.push(candidate.token);
        self.logprobs.push(candidate.logprob);
        self.tops.extend(top.cloned());
    }
}

impl Group {
    /// The results but the first.
    pub fn outputs(group: &mut Option<Box<Self>>) -> impl Iterator<Item = &mut Output> {
        group.iter_mut().flat_map(|group| &mut group.outputs)
    }

    /// How many these are.
    pub fn n_others(&self) -> usize {
        self.outputs.len()
    }

    /// Alternatives of a row that are enough for its continuations, if `n_more` ids are no tokens.
    pub fn alternatives(&self, n_more: usize) -> usize {
        self.each + n_more
    }

    /// A search that has not begun, without pages.
    pub fn new(begin: Begin<'_>) -> Result<Box<Self>> {
        let Begin {
            call,
            index,
            prompt,
            extent,
            eos_ids,
            n_tokens,
            tokenizer,
            guide,
        } = begin;
        let options = &call.options;
        let (width, most) = (options.num_beams, extent.max_new());
        let mut ends = reserve::room(WHAT, eos_ids.len() + options.stop_tokens.len())?;
        if !options.ignore_eos {
            ends.extend_from_slice(eos_ids);
        }
        ends.extend_from_slice(&options.stop_tokens);
        ends.sort_unstable();
        ends.dedup();
        let rules = Rules::new(options, ends.len(), most);
        let each = rules.considered.min(n_tokens);
        let has_tops = options.top_logprobs > 0;
        let text = || match options.stop.is_empty() {
            true => Ok(None),
            false => TextStream::new(tokenizer.clone(), &call.stops, options.special).map(Some),
        };
        let phrases = Phrases::new(&options.force_words);
        let mut texts = reserve::room(WHAT, width)?;
        let mut slots = reserve::room(WHAT, width)?;
        let mut others = reserve::room(WHAT, width)?;
        for slot in 0..width {
            texts.push(Told::new(most, has_tops)?);
            slots.push(Slot {
                told: Told::new(most, has_tops)?,
                text: text()?,
                guide: None,
                progress: Progress::new(phrases)?,
            });
            if slot > 0 {
                let mut tokens = reserve::room("the tokens of a sequence", prompt.len() + most)?;
                tokens.extend_from_slice(prompt);
                others.push(Branch::new(tokens, Vec::new(), options.root()));
            }
        }
        slots[0].guide = guide;
        let mut outputs = reserve::room(WHAT, options.num_return_sequences)?;
        for index in (index..).take(options.num_return_sequences).skip(1) {
            outputs.push(Output::new(call.clone(), index, tokenizer.clone())?);
        }
        let mut beams = reserve::room(WHAT, width)?;
        beams.push(0);
        Ok(Box::new(Self {
            search: Search::new(rules, each, phrases.most(), texts)?,
            beams,
            slots,
            others,
            outputs,
            ends,
            each,
            n_top: options.top_logprobs,
            reports: options.beam_events,
            generated: 0,
            rows: 0,
            possible: false,
            tops: reserve::filled(WHAT, width, None)?,
            continuations: reserve::room(WHAT, each)?,
            trial: text()?,
            progress: Progress::new(phrases)?,
            forced: reserve::room(WHAT, phrases.most())?,
            next: reserve::room(WHAT, width)?,
        }))
    }

    /// The continuations of the running beam `at`.
    fn take_row(
        &mut self,
        at: usize,
        choice: &Choice,
        step: &Step,
        row: Row<'_>,
        phrases: Phrases<'_>,
    ) -> Result<()> {
        let sum = self.search.running[at];
        let candidate = |c: Continuation| Candidate {
            sum: sum + f64::from(c.changed),
            beam: at,
            token: c.token,
            logprob: c.logprob,
        };
        let (n, out) = (self.each, &mut self.continuations);
        out.clear();
        let top = match row {
            Row::Logits(sampler) => {
                self.possible |= sampler.has_possible();
                let beam = sampler.continuations(choice, step, n, out);
                if let Some(beam) = &beam {
                    self.forced.clear();
                    let progress = &self.slots[self.beams[at]].progress;
                    progress.advancing(phrases, &mut self.forced);
                    let forced = self.forced.iter();
                    let forced = forced.filter_map(|token| sampler.continuation(beam, *token));
                    self.search.forced.extend(forced.map(candidate));
                }
                match beam {
                    Some(beam) if self.n_top > 0 => {
                        Some(sampler.alternatives(&beam.softmax, self.n_top)?)
                    }
                    _ => None,
                }
            }
            Row::Pick(..) if choice.needs_logits() => {
                let what = "the model gave alternatives of a row whose logits were wanted";
                return Err(Error::Internal(what.into()));
            }
            Row::Pick(pick, list) => match sampler::continuations_of(choice, pick, list, n, out) {
                Some(softmax) => {
                    self.possible = true;
                    let top = sampler::alternatives_of(pick, list, &softmax, self.n_top)?;
                    (self.n_top > 0).then_some(top)
                }
                None => None,
            },
        };
        self.tops[at] = None;
        if let Some(top) = top {
            reserve::headroom(WHAT, 64)?;
            self.tops[at] = Some(Arc::new(top));
        }
        let candidates = self.continuations.iter().copied().map(candidate);
        self.search.candidates.extend(candidates);
        self.rows += 1;
        Ok(())
    }

    /// All rows of a step have come: decide, and fork. Why the search is over, if it is.
    fn advance(
        &mut self,
        own: &mut Branch,
        output: &Output,
        pool: &mut Pool,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<Option<FinishReason>> {
        let before = self.search.length;
        if before == 0
            && let Some(text) = &mut self.slots[0].text
        {
            text.follow(output.text())?;
        }
        let is_last = before + 1 == self.search.rules.most;
        let phrases = Phrases::new(&output.call.options.force_words);
        let Self {
            search,
            slots,
            beams,
            trial,
            ends,
            progress,
            ..
        } = self;
        let stops = &output.call.stops;
        let mut why = |candidate: &Candidate| -> Result<Option<FinishReason>> {
            let (token, slot) = (candidate.token, &slots[beams[candidate.beam]]);
            if ends.binary_search(&token).is_ok() {
                return Ok(Some(FinishReason::Stop));
            }
            if let (Some(text), Some(trial)) = (&slot.text, &mut *trial) {
                trial.follow(text)?;
                if trial.push(token, stops)?.1 {
                    return Ok(Some(FinishReason::StopString));
                }
            }
            match &slot.guide {
                Some(guide) if guide.ends_with(token)? => Ok(Some(FinishReason::Stop)),
                _ => Ok(None),
            }
        };
        let is_end = |token: Token| ends.binary_search(&token).is_ok();
        let after = |candidate: &Candidate, progress: &mut Progress| {
            progress.follow(&slots[beams[candidate.beam]].progress);
            progress.take(phrases, candidate.token);
        };
        match phrases.is_empty() {
            true => search.judge(|candidate| {
                Ok(why(candidate)?.or(is_last.then_some(FinishReason::Length)))
            })?,
            false => {
                let progress = RefCell::new(progress);
                search.judge_phrases(
                    |candidate| {
                        let progress = &mut *progress.borrow_mut();
                        let reason = why(candidate)?;
                        // An end-of-sequence token is no part of the text.
                        match is_end(candidate.token) {
                            true => progress.follow(&slots[beams[candidate.beam]].progress),
                            false => after(candidate, progress),
                        }
                        Ok(reason.map(|reason| (reason, progress.has_met_all())))
                    },
                    |candidate| {
                        let progress = &mut *progress.borrow_mut();
                        after(candidate, progress);
                        progress.bank(phrases)
                    },
                )?;
            }
        }
        if search.heirs.is_empty() && search.ended.is_empty() {
            return self.nothing_follows(own.prompt_len, output.index);
        }
        let ended = std::mem::take(&mut search.ended);
        for (candidate, reason) in &ended {
            if let Some(told) = search.offer(candidate.sum, before + 1, *reason) {
                told.follow(&slots[beams[candidate.beam]].told);
                if ends.binary_search(&candidate.token).is_err() {
                    told.push(candidate, self.tops[candidate.beam].as_ref());
                }
            }
        }
        search.ended = ended;
        let is_over = search.settle();
        if is_over {
            search.heirs.clear();
        }
        let is_cut = is_last && !is_over;
        self.generated += search.heirs.len() + search.ended.len();
        if self.reports {
            self.report(output, is_cut);
        }
        if is_over {
            // Those that run have no part in the result.
            self.search.running.clear();
            return Ok(Some(FinishReason::Stop));
        }
        let n_copies = copies.len();
        self.go_on(own, output, pool, copies)?;
        if is_cut {
            // No step will read them.
            copies.truncate(n_copies);
            self.cut();
            return Ok(Some(FinishReason::Length));
        }
        Ok(None)
    }

    /// A search that must write phrases is at its greatest length: beams that have written them
    /// compete, and what is left of the others comes behind those that have finished.
    fn cut(&mut self) {
        let Self {
            search,
            beams,
            slots,
            ..
        } = self;
        let length = search.length;
        let mut at = 0;
        beams.retain(|slot| {
            let slot = &slots[*slot];
            let met = slot.progress.has_met_all();
            if met {
                let sum = search.running.remove(at);
                if let Some(told) = search.offer(sum, length, FinishReason::Length) {
                    told.follow(&slot.told);
                }
            } else {
                at += 1;
            }
            !met
        });
    }

    /// No running beam has a possible token: the search ends with what has finished, and where a
    /// grammar accepts what is there.
    fn nothing_follows(&mut self, prompt_len: usize, index: u32) -> Result<Option<FinishReason>> {
        let length = self.search.length;
        for (at, slot) in self.beams.iter().enumerate() {
            let slot = &self.slots[*slot];
            if slot.guide.as_ref().is_some_and(|guide| guide.accepts()) {
                let sum = self.search.running[at];
                if let Some(told) = self.search.offer(sum, length.max(1), FinishReason::Stop) {
                    told.follow(&slot.told);
                }
            }
        }
        match (self.search.finished().is_empty(), self.possible) {
            (false, _) => {
                self.search.running.clear();
                Ok(Some(FinishReason::Stop))
            }
            (true, true) => Err(Error::NoToken {
                index,
                position: prompt_len + length,
            }),
            (true, false) => Ok(Some(FinishReason::NotFinite)),
        }
    }

    /// Tell what has become of the beams.
    fn report(&self, output: &Output, is_cut: bool) {
        let Search {
            rules,
            length,
            heirs,
            ended,
            ..
        } = &self.search;
        let event = |beam: usize, candidate: &Candidate, reason| {
            output.call.push(Event::Beam(BeamEvent {
                index: output.index,
                beam: beam as u32,
                parent: candidate.beam as u32,
                token: candidate.token,
                sum_logprob: candidate.sum as f32,
                score: rules.score(candidate.sum, *length) as f32,
                reason,
            }));
        };
        let mut last = rules.width;
        let mut end = |candidate, reason| {
            event(last, candidate, Some(reason));
            last += 1;
        };
        for (candidate, reason) in ended.iter().filter(|_| is_cut) {
            end(candidate, *reason);
        }
        for (beam, heir) in heirs.iter().enumerate() {
            match is_cut {
                true => end(heir, FinishReason::Length),
                false => event(beam, heir, None),
            }
        }
        for (candidate, reason) in ended.iter().filter(|_| !is_cut) {
            end(candidate, *reason);
        }
    }

    /// Give every heir a slot.
    fn go_on(
        &mut self,
        own: &mut Branch,
        output: &Output,
        pool: &mut Pool,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<()> {
        let Self {
            search,
            beams,
            slots,
            others,
            next,
            ..
        } = self;
        let phrases = Phrases::new(&output.call.options.force_words);
        let heirs = &search.heirs;
        let is_first = |at: usize| {
            let parent = heirs[at].beam;
            heirs[..at].iter().all(|other| other.beam != parent)
        };
        let has_heir = |slot: &usize| heirs.iter().any(|heir| beams[heir.beam] == *slot);
        let mut free = (0..slots.len()).filter(|slot| !has_heir(slot));
        next.clear();
        for (at, heir) in heirs.iter().enumerate() {
            let from = beams[heir.beam];
            if is_first(at) {
                next.push(from);
                continue;
            }
            // There are no more heirs than slots.
            let Some(to) = free.next() else {
                break;
            };
            if let Some((parent, child)) = pair(own, others, from, to) {
                copies.extend(child.fork(parent, pool));
            }
            if let Ok([from, to]) = slots.get_disjoint_mut([from, to]) {
                to.told.follow(&from.told);
                to.progress.follow(&from.progress);
                if let (Some(from), Some(to)) = (&from.text, &mut to.text) {
                    to.follow(from)?;
                }
                to.guide = match &from.guide {
                    Some(guide) => Some(guide.fork()?),
                    None => None,
                };
            }
            next.push(to);
        }
        for (heir, slot) in heirs.iter().zip(&*next) {
            match slot.checked_sub(1) {
                None => own.tokens.push(heir.token),
                Some(other) => others[other].tokens.push(heir.token),
            }
            let slot = &mut slots[*slot];
            slot.told.push(heir, self.tops[heir.beam].as_ref());
            slot.progress.take(phrases, heir.token);
            if let Some(text) = &mut slot.text {
                text.push(heir.token, &output.call.stops)?;
            }
            if let Some(guide) = &mut slot.guide {
                guide.take(heir.token)?;
            }
        }
        std::mem::swap(beams, next);
        Ok(())
    }

    /// Tell the results. `reason`: why it is over; [`FinishReason::Stop`] where it came to its end.
    fn finish(
        &mut self,
        own: &Branch,
        output: &mut Output,
        cached: usize,
        reason: FinishReason,
    ) -> Result<()> {
        let Self {
            search,
            beams,
            slots,
            outputs,
            next,
            ..
        } = self;
        let (length, prompt_len) = (search.length, own.prompt_len as u32);
        let finished = search.finished().iter().map(|f| {
            let sums = Sums {
                logprob: f.sum,
                score: f.score,
            };
            (&f.text, f.reason, sums)
        });
        // Where phrases are to be written, those that run are not in the order of their sums.
        next.clear();
        next.extend(0..search.running.len());
        next.sort_unstable_by(|a, b| {
            let sums = search.running[*b].total_cmp(&search.running[*a]);
            sums.then(a.cmp(b))
        });
        let running = next.iter().map(|at| {
            let (sum, slot) = (&search.running[*at], &beams[*at]);
            let sums = Sums {
                logprob: *sum,
                score: search.rules.score(*sum, length.max(1)),
            };
            (&slots[*slot].told, reason, sums)
        });
        let mut results = finished.chain(running);
        if reason == FinishReason::Cancelled {
            // Perhaps nothing of what is told was.
            output.call.cut_short();
        }
        let mut cached = cached as u32;
        for output in once(output).chain(outputs) {
            if reason == FinishReason::Length {
                output.echo(&own.tokens[..own.prompt_len], own.prompt_len)?;
            }
            let stats = |generated: usize| RequestStats {
                prompt_tokens: prompt_len,
                cached_tokens: cached,
                generated_tokens: generated as u32,
                ..RequestStats::default()
            };
            match results.next() {
                Some((told, reason, sums)) => {
                    output.tell(told)?;
                    output.finish(reason, sums, stats(told.tokens.len()))?;
                }
                None => {
                    let (none, reason) = match (length, reason) {
                        (0, reason) => (0.0, reason),
                        // Others were cut at their greatest length.
                        (_, FinishReason::Length) => (f64::NEG_INFINITY, FinishReason::Stop),
                        (_, reason) => (f64::NEG_INFINITY, reason),
                    };
                    let sums = Sums {
                        logprob: none,
                        score: none,
                    };
                    output.finish(reason, sums, stats(0))?;
                }
            }
            cached = prompt_len;
        }
        Ok(())
    }
}

/// The branches of two slots.
fn pair<'a>(
    own: &'a mut Branch,
    others: &'a mut [Branch],
    from: usize,
    to: usize,
) -> Option<(&'a Branch, &'a mut Branch)> {
    match (from, to) {
        (0, to) => Some((own, others.get_mut(to.checked_sub(1)?)?)),
        (from, 0) => Some((others.get(from - 1)?, own)),
        (from, to) => {
            let [from, to] = others.get_disjoint_mut([from - 1, to - 1]).ok()?;
            Some((from, to))
        }
    }
}

impl Output {
    /// Tell all generated tokens at once.
    fn tell(&mut self, told: &Told) -> Result<()> {
        let logprobs = self.call.options.logprobs;
        for (at, (token, logprob)) in told.tokens.iter().zip(&told.logprobs).enumerate() {
            let top = match told.tops.get(at) {
                Some(top) => reserve::copy(WHAT, top)?,
                None => Vec::new(),
            };
            let logprob = if logprobs { *logprob } else { 0.0 };
            self.generated(*token, Score { logprob, top })?;
        }
        Ok(())
    }
}

/// What differs where a sequence is a beam search.
impl Sequence {
    /// Slots that it takes.
    pub fn width(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.slots.len())
    }

    /// What takes part in a step, a span each: the beams, best first; or the only branch.
    pub fn branches(&self) -> impl Iterator<Item = &Branch> {
        let slots = self.group.as_ref().map_or(&[0][..], |group| &group.beams);
        slots.iter().map(|slot| match (&self.group, slot) {
            (Some(group), 1..) => &group.others[slot - 1],
            _ => &self.branch,
        })
    }

    /// The one of these with this number.
    pub fn branch_mut(&mut self, at: usize) -> &mut Branch {
        match &mut self.group {
            Some(group) if group.beams[at] > 0 => &mut group.others[group.beams[at] - 1],
            _ => &mut self.branch,
        }
    }

    /// Where its text is in its grammar.
    pub fn guide_mut(&mut self, at: usize) -> &mut Option<Box<Guide>> {
        match &mut self.group {
            Some(group) => &mut group.slots[group.beams[at]].guide,
            None => &mut self.guide,
        }
    }

    /// Take the row behind the running beam `at`; with the last of a step the search goes on. Sets
    /// [`Sequence::end`] if it is over.
    pub fn take_beam(
        &mut self,
        at: usize,
        choice: &Choice,
        step: &Step,
        row: Row<'_>,
        pool: &mut Pool,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<()> {
        self.echo(self.branch.prompt_len)?;
        let (Some(group), branch, output) = (&mut self.group, &mut self.branch, &self.output)
        else {
            return Ok(());
        };
        let phrases = Phrases::new(&output.call.options.force_words);
        group.take_row(at, choice, step, row, phrases)?;
        if group.rows == group.beams.len() {
            let over = group.advance(branch, output, pool, copies)?;
            (group.rows, group.possible) = (0, false);
            self.end = over.map(Ok);
        }
        Ok(())
    }

    /// Tell the results of a search.
    pub fn finish_beams(&mut self, reason: FinishReason) -> Result<()> {
        match &mut self.group {
            Some(group) => group.finish(&self.branch, &mut self.output, self.cached, reason),
            None => Ok(()),
        }
    }

    /// Pages for the slots but the first.
    pub fn give_pages(&mut self, tables: impl Iterator<Item = Vec<u32>>) {
        let others = self.group.iter_mut().flat_map(|group| &mut group.others);
        for (branch, pages) in others.zip(tables) {
            branch.pages = pages;
        }
    }

    /// After its pages were copied out and back: a page table for each slot. See
    /// [`Branch::restore`].
    pub fn restore(&mut self, tables: Vec<Vec<u32>>, hits: &[Hit], root: Root, pool: &mut Pool) {
        let Self { branch, group, .. } = self;
        let (beams, others) = match group {
            Some(group) => (&group.beams[..], &mut group.others[..]),
            None => (&[0][..], &mut [][..]),
        };
        for ((slot, pages), branch) in tables
            .into_iter()
            .enumerate()
            .zip(once(branch).chain(others))
        {
            match beams.contains(&slot) {
                true => branch.restore(pages, hits, root, pool),
                false => branch.reset(pages, root),
            }
        }
    }

    /// Let all pages go.
    pub fn release(&mut self, pool: &mut Pool) {
        self.branch.release(pool);
        for branch in self.group.iter_mut().flat_map(|group| &mut group.others) {
            branch.release(pool);
        }
    }
}
