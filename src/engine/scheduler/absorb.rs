//! What a step's answer means for the sequences that took part in it, and a reader's answer for the
//! sequence that asked.

use super::Scheduler;
use super::choosing::Drawn;
use crate::Error;
use crate::backend::choice::Search;
use crate::backend::{Answer, RowAnswer, RowKind, Step};
use crate::engine::draft::{Guesser, draft_after};
use crate::engine::event::FinishReason;
use crate::engine::group::Row;
use crate::engine::lock::lock;
use crate::engine::plan::Plan;
use crate::engine::sampler::picked;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Takes the answer of a step, which took `seconds`.
    pub fn absorb(&mut self, plan: &Plan, answer: Answer<'_>, seconds: f64) {
        let Plan {
            step,
            choices,
            whose,
            branches,
        } = plan;
        for sequence in &mut self.running {
            sequence.last_row = None;
        }
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

        self.choosing
            .draw(plan, answer, &self.running, self.limits.vocab_size);
        let wanted_before = |row| step.wanted.partition_point(|w| (*w as usize) < row);
        for ((span, id), branch_at) in step.spans.iter().zip(whose).zip(branches) {
            let Some(at) = self.running.iter().position(|s| s.id == *id) else {
                continue;
            };
            let sequence = &mut self.running[at];
            let publishes = sequence.call().options.publishes;
            let branch = sequence.branch_mut(*branch_at);
            if span.kind == RowKind::Prefill {
                branch.computed = branch.computed.max(span.position + span.rows.len());
                if publishes {
                    branch.publish(&mut self.pool);
                }
                if !sequence.extent.scores_prompt()
                    && let Err(error) = sequence.echo(sequence.branch.computed)
                {
                    sequence.end = Some(Err(error));
                }
                self.fork_samples(at);
            }
            for row in wanted_before(span.rows.start)..wanted_before(span.rows.end) {
                let choice = &choices.rows[row];
                let position = span.position + step.wanted[row] as usize - span.rows.start;
                if span.kind == RowKind::Decode {
                    let (sequence, row) = (&mut self.running[at], step.wanted[row] as usize);
                    if position > span.position && !is_taken(step, row, position, sequence) {
                        break;
                    }
                    let branch = sequence.branch_mut(*branch_at);
                    branch.computed = branch.computed.max(position + 1);
                }
                let answer = answer.row(row, self.limits.vocab_size);
                let mut drawn = self.choosing.take(row);
                if let (RowAnswer::Logits(logits), None) = (answer, &drawn) {
                    self.sampler.load(logits);
                    let amateur = self.draft_model.as_ref().and_then(|m| m.logits_of(row));
                    if let Some(amateur) = amateur {
                        let contrast = self.running[at].call().options.contrast();
                        self.sampler.contrast(amateur, &contrast);
                    }
                }
                if choice.search != Search::Off {
                    let sequence = &mut self.running[at];
                    let row = match answer {
                        RowAnswer::Logits(_) => Row::Logits(&mut self.sampler),
                        RowAnswer::Pick(pick, top) => Row::Pick(pick, top),
                    };
                    let (pool, copies) = (&mut self.pool, &mut self.copies);
                    if sequence.end.is_none()
                        && let Err(error) =
                            sequence.take_beam(*branch_at, choice, choices, row, pool, copies)
                    {
                        sequence.end = Some(Err(error));
                    }
                    continue;
                }
                let draft = draft_after(step, span, step.wanted[row] as usize);
                for sequence in &mut self.running {
                    // All samples of a prompt are told the prompt's scores. The token after the
                    // prompt is drawn by each sample, from its own row.
                    let shares =
                        sequence.first == Some(*id) && position + 1 < sequence.branch.prompt_len;
                    if sequence.end.is_some() || !(sequence.id == *id || shares) {
                        continue;
                    }
                    match sequence.ask(position, choice, choices, &mut self.sampler) {
                        Ok(false) => {}
                        Ok(true) => continue,
                        Err(error) => {
                            sequence.end = Some(Err(error));
                            continue;
                        }
                    }
                    let (got, possible) = match (drawn.take(), answer) {
                        (Some(Drawn { got, possible }), _) => (got, possible),
                        (None, RowAnswer::Logits(_)) => {
                            let got = self.sampler.choose(choice, choices);
                            let possible = matches!(got, Ok(None)) && self.sampler.has_possible();
                            (got, possible)
                        }
                        (None, RowAnswer::Pick(pick, top)) => {
                            (picked(choice, pick, top), pick.possible)
                        }
                    };
                    let got = match got {
                        // No token that the model holds possible is left, and the grammar does not
                        // let the text end here.
                        Ok(None) if possible && !sequence.may_end() => Err(Error::NoToken {
                            index: sequence.output.index,
                            position: position + 1,
                        }),
                        got => got,
                    };
                    sequence.last_row = Some(step.wanted[row]);
                    let told =
                        got.and_then(|got| sequence.take(position, got, draft, &self.eos_ids));
                    if let Err(error) = told {
                        sequence.end = Some(Err(error));
                    }
                }
            }
            let Sequence { drafts, branch, .. } = &mut self.running[at];
            if span.kind == RowKind::Decode
                && let Some(drafts) = drafts
            {
                let right = drafts.learn(step, span, branch);
                let record = match drafts.guessed_by() {
                    Some(Guesser::Heads(_)) => self.medusa.as_mut().map(|heads| &mut heads.record),
                    Some(Guesser::Model) => {
                        self.draft_model.as_mut().map(|model| &mut model.record)
                    }
                    None => None,
                };
                if let Some(record) = record {
                    record.note(right > 0);
                }
                accepted += right;
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
            let drafting = [
                self.draft_model.as_mut().map(|model| &mut model.seconds),
                self.medusa.as_mut().map(|medusa| &mut medusa.seconds),
            ];
            let drafting: f64 = drafting.into_iter().flatten().map(std::mem::take).sum();
            let ms = (seconds + drafting) * 1e3;
            match prompt_rows {
                0 => totals.decode_ms += ms,
                _ => totals.prefill_ms += ms,
            }
        }
        self.retire();
    }

    /// Let the sequences go on whose readers have answered.
    pub(super) fn take_answers(&mut self) {
        let mut generated = 0;
        for sequence in self.running.iter_mut().filter(|s| s.end.is_none()) {
            let before = sequence.branch.generated();
            match sequence.take_answer(&mut self.sampler, &self.eos_ids) {
                Ok(true) => generated += (sequence.branch.generated() - before) as u64,
                Ok(false) => {}
                Err(error) => sequence.end = Some(Err(error)),
            }
        }
        if generated > 0 {
            lock(&self.shared.totals).generated_tokens += generated;
        }
    }
}

/// Whether the row at `position` has the token that its sequence has there. One behind a draft that
/// was not taken has another, or none is there: then nothing holds that it gives. Nor where its
/// mask could not be computed: then it is computed again, as the first row of a step.
fn is_taken(step: &Step, row: usize, position: usize, sequence: &Sequence) -> bool {
    // Of a step that follows another, the tokens were chosen on the device.
    let same = step.follows || sequence.branch.tokens.get(position) == Some(&step.tokens[row]);
    same && sequence.guide.as_ref().is_none_or(|guide| guide.has_mask())
}
