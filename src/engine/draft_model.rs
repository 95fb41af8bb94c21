//! The draft model: a smaller model beside the model, with the same tokens. It guesses at the
//! tokens that come (`Scheduler::propose`), or its logits are what the model's are contrasted with
//! (`Scheduler::contrast`).
//!
//! Its pool has as many pages as the model's, with the same numbers, so a sequence has one page
//! table and one reservation for both, and a fork copies the same pages. What differs is how far
//! the pages are filled: [`Branch::drafted`](super::branch::Branch::drafted) says that of a
//! sequence, and [`Pool::is_drafted`](crate::kv::Pool::is_drafted) of a page that others find.

use super::draft::{Askers, Record};
use super::options::EngineOptions;
use super::pace::Pace;
use super::plan::Plan;
use crate::backend::{Answer, Limits, Run};
use crate::{Error, Result, reserve};
use std::time::Instant;

pub(super) struct DraftModel {
    pub run: Box<dyn Run>,
    pub limits: Limits,
    /// The step that it is to compute.
    pub plan: Plan,
    /// How long its steps take.
    pub pace: Pace,
    /// [`EngineOptions::draft_share`](super::EngineOptions::draft_share).
    pub share: f64,
    /// Who may ask it for drafts.
    pub askers: Askers,
    pub record: Record,
    /// How long its steps took since the model's next step is being planned.
    pub seconds: f64,
    /// Its logits for rows of the model's step, `[rows, vocab_size]`.
    logits: Vec<f32>,
    /// Which of the wanted rows of that step these are, ascending.
    rows: Vec<u32>,
}

impl DraftModel {
    /// `model` are the model's limits, and `n_tokens` the tokens that both have. Fails with
    /// [`Error::InvalidArgument`] if `run` has fewer, and with [`Error::Internal`] if another of
    /// its limits is not the model's.
    pub fn new(
        run: Box<dyn Run>,
        model: &Limits,
        n_tokens: usize,
        options: &EngineOptions,
    ) -> Result<Self> {
        let limits = run.limits();
        let alike = Limits {
            vocab_size: model.vocab_size,
            ..limits.clone()
        };
        if alike != *model {
            return Err(Error::Internal(format!(
                "the draft model has {limits:?}, the model {model:?}"
            )));
        }
        if limits.vocab_size < n_tokens {
            let expected = format!("at least {n_tokens}, the number of tokens");
            let name = "the draft model's vocab_size";
            return Err(Error::invalid(name, expected, limits.vocab_size));
        }
        Ok(Self {
            plan: Plan::new(&limits, options.max_batch_size)?,
            pace: Pace::new(
                options.prefill_chunk,
                run.least_prompt_rows(),
                options.max_step_ms,
                limits.max_rows,
            )?,
            run,
            share: options.draft_share,
            askers: Askers::NOBODY,
            record: Record::default(),
            seconds: 0.0,
            logits: Vec::new(),
            rows: reserve::room("the rows of the draft model", limits.max_wanted)?,
            limits,
        })
    }

    /// Whether the planned step has room for so many more rows.
    pub fn has_room(&self, rows: usize) -> bool {
        self.plan.step.tokens.len() + rows <= self.limits.max_rows
    }

    /// Another step of the model's is planned.
    pub fn clear(&mut self) {
        self.plan.clear();
        self.rows.clear();
        self.seconds = 0.0;
    }

    /// Computes the planned step, of whose rows `decodes` are rows of decode.
    pub fn compute(&mut self, decodes: usize) -> Result<(Answer<'_>, &Plan)> {
        let start = Instant::now();
        let Plan { step, choices, .. } = &self.plan;
        self.run.submit(step, choices)?;
        let answer = self.run.collect()?;
        let seconds = start.elapsed().as_secs_f64();
        self.pace
            .observe(step.tokens.len() - decodes, decodes, seconds);
        self.seconds += seconds;
        Ok((answer, &self.plan))
    }

    /// The model's wanted row `at` is to be contrasted with this row of the planned step.
    pub fn pair(&mut self, at: usize, row: usize) {
        self.rows.push(at as u32);
        self.plan.step.wanted.push(row as u32);
    }

    /// Takes room for the logits of a step. A call that needs it can still be refused.
    pub fn reserve_logits(&mut self) -> Result<()> {
        let n = self.limits.max_wanted * self.limits.vocab_size;
        reserve::vec("the logits of the draft model", &mut self.logits, n)
    }

    /// Computes the planned step and keeps its logits, for the rows of the model's step.
    pub fn compute_logits(&mut self, decodes: usize) -> Result<()> {
        let n = self.rows.len() * self.limits.vocab_size;
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        let (answer, _) = self.compute(decodes)?;
        logits.extend_from_slice(&answer.logits()[..n]);
        self.logits = logits;
        Ok(())
    }

    /// Its logits for a wanted row of the model's step, if they are to be contrasted.
    pub fn logits_of(&self, at: usize) -> Option<&[f32]> {
        let place = self.rows.binary_search(&(at as u32)).ok()?;
        let n = self.limits.vocab_size;
        self.logits.get(place * n..(place + 1) * n)
    }
}
