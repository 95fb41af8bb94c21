//! A beam search as one sequence of the engine: it has a slot, a page table and tokens for each
//! beam, takes part in a step with a row of each, and ends as several results.
//!
//! Slots and beams are not the same: beams are numbered anew in every step, best first, and the
//! first heir of a beam goes on in its slot. For every other heir a slot without one is forked from
//! that ([`super::branch::Branch::fork`]), which needs no page beyond those that all slots were
//! promised when the search began. So pages are never short, and a search that has narrowed,
//! because tokens were impossible, can widen again.

mod advance;
mod results;

use super::beam::{Candidate, Rules, Search};
use super::branch::Branch;
use super::call::Call;
use super::event::Alternative;
use super::extent::Extent;
use super::guide::Guide;
use super::output::Output;
use super::phrases::{Phrases, Progress};
use super::sampler::{self, Continuation, Sampler};
use super::text::TextStream;
use crate::backend::{Choice, Choices, Pick};
use crate::kv::Table;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
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
                others.push(Branch::new(tokens, Table::default(), options.root()));
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
            next: reserve::room(WHAT, width)?,
        }))
    }

    /// Slots that it takes.
    pub fn width(&self) -> usize {
        self.slots.len()
    }

    /// The slot of each running beam, best first.
    pub fn beams(&self) -> &[usize] {
        &self.beams
    }

    /// The branches of all slots but the first.
    pub fn others(&self) -> &[Branch] {
        &self.others
    }

    /// [`Group::beams`], and [`Group::others`] to be changed.
    pub fn parts(&mut self) -> (&[usize], &mut [Branch]) {
        (&self.beams, &mut self.others)
    }

    /// Where the text of the running beam `at` is in its grammar.
    pub fn guide_mut(&mut self, at: usize) -> &mut Option<Box<Guide>> {
        &mut self.slots[self.beams[at]].guide
    }

    /// Whether every running beam has had its row of the step, so that the search can
    /// [advance](Group::advance).
    pub fn has_all_rows(&self) -> bool {
        self.rows == self.beams.len()
    }

    /// Takes the continuations of the running beam `at`. `output`: that of the first result.
    pub fn take_row(
        &mut self,
        at: usize,
        choice: &Choice,
        choices: &Choices,
        row: Row<'_>,
        output: &Output,
    ) -> Result<()> {
        let phrases = Phrases::new(&output.call.options.force_words);
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
                let beam = sampler.continuations(choice, choices, n, out);
                if let Some(beam) = &beam {
                    let progress = &mut self.slots[self.beams[at]].progress;
                    let forced = progress.look_ahead(phrases).iter();
                    let forced = forced.filter_map(|next| sampler.continuation(beam, next.token));
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
}
