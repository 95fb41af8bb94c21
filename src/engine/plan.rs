//! The next step, how tokens are chosen from it, and the sequences to which its rows belong.

use crate::backend::{Choices, Limits, Step};
use crate::{Result, reserve};

/// A step, how tokens are chosen from it, and the sequences to which its rows belong.
#[derive(Default)]
pub(super) struct Plan {
    pub step: Step,
    pub choices: Choices,
    /// The id of the sequence of each span.
    pub whose: Vec<u64>,
    /// For each span, which branch of its sequence it belongs to.
    pub branches: Vec<usize>,
}

impl Plan {
    /// Makes an empty plan. It has room for any step, but not for history and edits of its choices:
    /// for these the scheduler takes room as it plans.
    pub fn new(limits: &Limits, max_batch_size: usize) -> Result<Self> {
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
        reserve::vec(what, &mut plan.choices.rows, limits.max_wanted)?;
        reserve::vec(what, &mut plan.whose, max_batch_size)?;
        reserve::vec(what, &mut plan.branches, max_batch_size)?;
        Ok(plan)
    }

    pub fn clear(&mut self) {
        self.step.clear();
        self.choices.clear();
        self.whose.clear();
        self.branches.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.whose.is_empty()
    }
}
