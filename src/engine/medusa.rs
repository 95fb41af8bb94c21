//! Medusa heads as the engine has them: they guess at the tokens behind a row of the last step
//! (`Scheduler::ask_heads`). Unlike a draft model they have no cache, and nothing to catch up with.

use super::draft::{Askers, Guesser, Record};
use super::pace::Pace;
use super::plan::Plan;
use crate::Result;
use crate::backend::{Answer, Limits, Run};
use std::time::Instant;

pub(super) struct Medusa {
    /// How many heads there are.
    pub n: usize,
    /// The rows that a head guesses from.
    pub plan: Plan,
    /// How long a head takes, by its rows.
    pub pace: Pace,
    /// Who may ask them for drafts.
    pub askers: Askers,
    pub record: Record,
    /// How long they took since a step of the model was absorbed.
    pub seconds: f64,
}

impl Medusa {
    /// The heads of `run`, if it has any.
    pub fn new(run: &dyn Run, limits: &Limits, max_batch_size: usize) -> Result<Option<Self>> {
        let n = run.medusa_heads();
        if n == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            n,
            plan: Plan::new(limits, max_batch_size)?,
            // It is asked for times alone, not for rows of prompts.
            pace: Pace::new(None, 0, 0, limits.max_wanted)?,
            askers: Askers::NOBODY,
            record: Record::default(),
            seconds: 0.0,
        }))
    }

    pub fn guesser(&self) -> Guesser {
        Guesser::Heads(self.n)
    }

    /// Has head `head` guess from the planned rows.
    pub fn guess<'a>(
        &'a mut self,
        run: &'a mut dyn Run,
        head: usize,
    ) -> Result<(Answer<'a>, &'a Plan)> {
        let start = Instant::now();
        let answer = run.guess(head, &self.plan.step, &self.plan.choices)?;
        let seconds = start.elapsed().as_secs_f64();
        self.pace.observe(0, self.plan.step.tokens.len(), seconds);
        self.seconds += seconds;
        Ok((answer, &self.plan))
    }
}
