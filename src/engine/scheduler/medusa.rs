//! What Medusa heads guess before a step of the model's is planned.

use super::Scheduler;
use super::planning::want_guess;
use crate::backend::{RowKind, Run, Span, Step};
use crate::engine::medusa::Medusa;
use crate::engine::plan::Plan;
use crate::engine::sequence::Sequence;
use crate::{Result, Token};

impl Scheduler {
    /// Asks the heads for the drafts that sequences want of them, one head after another: each
    /// guesses from the row of the last step that chose the sequence's last token. The step that is
    /// being planned has `decodes` rows of decode without drafts, and room for so many.
    pub(super) fn ask_heads(
        &mut self,
        run: &mut dyn Run,
        decodes: usize,
        room: usize,
    ) -> Result<()> {
        let Some(mut medusa) = self.medusa.take() else {
            return Ok(());
        };
        let done = self.ask_each(&mut medusa, run, decodes, room);
        self.medusa = Some(medusa);
        done
    }

    fn ask_each(
        &mut self,
        medusa: &mut Medusa,
        run: &mut dyn Run,
        decodes: usize,
        room: usize,
    ) -> Result<()> {
        let guesser = medusa.guesser();
        for head in 0..self.settle_asked(guesser, &medusa.pace, decodes, room) {
            medusa.plan.clear();
            if self.reserve_changes(&mut medusa.plan.choices).is_err() {
                // A draft is a hint: without room for what changes its choice there is none.
                break;
            }
            for sequence in &self.running {
                let drafts = sequence.drafts.as_ref();
                let lacks = drafts.is_some_and(|drafts| drafts.lacks(guesser, head));
                if let Some(row) = sequence.last_row.filter(|_| lacks) {
                    add_row(&mut medusa.plan, sequence, row);
                    let (plan, branch) = (&mut medusa.plan, &sequence.branch);
                    want_guess(plan, sequence, branch, 0, &mut self.editor);
                }
            }
            if medusa.plan.is_empty() {
                break;
            }
            let (answer, plan) = medusa.guess(run, head)?;
            self.take_guesses(plan, answer, self.limits.vocab_size)?;
        }
        self.forget_guesses(guesser);
        Ok(())
    }
}

/// Adds the row of the last step from which the token behind those of the sequence is guessed.
fn add_row(plan: &mut Plan, sequence: &Sequence, row: u32) {
    let Plan {
        step,
        whose,
        branches,
        ..
    } = plan;
    let at = step.tokens.len();
    step.tokens.push(row as Token);
    step.slots.push(Step::NO_SLOT);
    step.spans.push(Span {
        rows: at..at + 1,
        kind: RowKind::Decode,
        position: sequence.branch.tokens.len() - 1,
        pages: 0..0,
    });
    whose.push(sequence.id);
    branches.push(0);
}
