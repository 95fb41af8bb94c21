//! The drafts of the step that is being planned: of which sequences, and how many pay.

use super::Scheduler;
use crate::backend::{Answer, RowAnswer, Run};
use crate::engine::draft::{Askers, Guesser, IN_ANY_CASE};
use crate::engine::guide::Work;
use crate::engine::pace::{Gain, Pace};
use crate::engine::plan::Plan;
use crate::engine::request::MAX_DRAFTS;
use crate::engine::sequence::Sequence;
use crate::{Error, Result};

impl Scheduler {
    /// Choose the drafts of the step that is being planned. They get what it has left of its rows
    /// when every sequence that decodes has its own and the prompts have theirs.
    pub(super) fn draft(&mut self, run: &mut dyn Run) -> Result<()> {
        let mut any = false;
        for sequence in &mut self.running {
            if let Some(drafts) = &mut sequence.drafts {
                drafts.clear();
                any = true;
            }
        }
        if !any {
            return Ok(());
        }
        self.look_ahead();
        let decoding = self.running.iter().filter(|s| !s.branch.in_prefill());
        let decoding = decoding.count();
        if let Some(medusa) = &mut self.medusa {
            let guesser = medusa.guesser();
            let can = |s: &&Sequence| {
                let drafts = s.drafts.as_ref().filter(|_| s.last_row.is_some());
                drafts.is_some_and(|drafts| drafts.asks(guesser, Gain::Untried))
            };
            let right = medusa.record.right();
            let gain = self.pace.gain(&medusa.pace, (0.0, right), decoding);
            let one = || self.running.iter().find(can).map(|s| s.id);
            medusa.askers = Askers::new(gain, one);
        }
        let nobody = Askers::NOBODY;
        let askers = [
            self.medusa.as_ref().map_or(nobody, |medusa| medusa.askers),
            self.draft_model
                .as_ref()
                .map_or(nobody, |model| model.askers),
        ];
        let (mut decodes, mut prompt_rows, mut prompts_want) = (0, 0, 0);
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            let (id, branch, extent) = (sequence.id, &sequence.branch, &sequence.extent);
            if branch.in_prefill() {
                let rows = extent.prefill_len().saturating_sub(branch.computed).max(1);
                prompt_rows += rows;
                prompts_want += match extent.scores_prompt() {
                    true => rows,
                    false => 1,
                };
                continue;
            }
            decodes += sequence.branches().count();
            if let Some(drafts) = &mut sequence.drafts {
                let forced = match (&sequence.guide, drafts.wants_forced(branch, extent)) {
                    (None, _) | (_, []) => &[],
                    (Some(guide), _) => guide.drafts(),
                };
                let can_guess = |guesser| match guesser {
                    Guesser::Heads(_) => (sequence.last_row.is_some(), askers[0].gain(id)),
                    Guesser::Model => (branch.drafted >= branch.prompt_len, askers[1].gain(id)),
                };
                let place = (extent, decoding);
                drafts.find(&sequence.output.call, branch, forced, place, can_guess);
            }
        }
        let chunk = self.prompt_rows(decodes);
        let rows = decodes + prompt_rows.min(chunk);
        let rows_left = self.limits.max_rows.saturating_sub(rows);
        let wanted_left = self
            .limits
            .max_wanted
            .saturating_sub(decodes + prompts_want);
        let room = rows_left.min(wanted_left);
        self.ask_heads(run, decodes, room)?;
        self.propose(decodes, room)?;
        self.cut();
        self.share(decodes, room);
        for sequence in &mut self.running {
            let may_follow = self.runs_ahead && sequence.guide.is_none();
            if let Some(drafts) = &mut sequence.drafts {
                drafts.settle(room > 0, may_follow);
            }
        }
        Ok(())
    }

    /// Settles how many drafts the guesser, whose steps take `pace`, is asked for of each sequence:
    /// as many as make most tokens a second, their own time included. The largest of these numbers.
    pub(super) fn settle_asked(
        &mut self,
        guesser: Guesser,
        pace: &Pace,
        decodes: usize,
        room: usize,
    ) -> usize {
        let all = || self.running.iter().filter_map(|s| s.drafts.as_ref());
        let wanting = || all().filter(|drafts| drafts.wants(guesser) > 0);
        let share = room.checked_div(wanting().count()).unwrap_or(0);
        let mut tokens = decodes as f64;
        let (mut rows, mut drafting) = (decodes, 0.0);
        let (mut best, mut best_rate) = (0, tokens / self.pace.decode_seconds(decodes));
        // Until both have been measured, the two have no common unit.
        let is_known = self.pace.knows_decodes() && pace.knows_decodes();
        for place in 0..share.min(MAX_DRAFTS) {
            let at_place = || wanting().filter(|drafts| drafts.wants(guesser) > place);
            let worth: f32 = at_place()
                .map(|drafts| drafts.guesser_is_right(place))
                .sum();
            let n = at_place().count();
            tokens += f64::from(worth);
            rows += n;
            if is_known {
                drafting += pace.decode_seconds(n);
            }
            let rate = tokens / (self.pace.decode_seconds(rows) + drafting);
            if n > 0 && rate > best_rate {
                (best, best_rate) = (place + 1, rate);
            }
        }
        let all = self.running.iter_mut().filter_map(|s| s.drafts.as_mut());
        let asked = all.filter(|drafts| drafts.wants(guesser) > 0);
        asked
            .map(|drafts| drafts.ask(best, share))
            .max()
            .unwrap_or(0)
    }

    /// Takes the tokens that a guesser's answer to `plan` has for its rows as drafts. They are
    /// chosen as the model chooses: with the same penalties, filters and draws, so that they are
    /// the model's also at a high temperature, as far as the two agree.
    pub(super) fn take_guesses(
        &mut self,
        plan: &Plan,
        answer: Answer<'_>,
        vocab_size: usize,
    ) -> Result<()> {
        let rows = plan.choices.rows.len();
        if let Err(words) = answer.complete(rows, vocab_size) {
            return Err(Error::Internal(format!("a guesser's answer: {words}")));
        }
        for (row, (id, choice)) in plan.whose.iter().zip(&plan.choices.rows).enumerate() {
            let token = match answer.row(row, vocab_size) {
                RowAnswer::Logits(logits) => {
                    self.sampler.load(logits);
                    let chosen = self.sampler.choose(choice, &plan.choices)?;
                    chosen.map(|(token, _)| token)
                }
                RowAnswer::Pick(pick, _) => pick.token,
            };
            // What would end the text is no draft.
            let token = token.filter(|token| !self.eos_ids.contains(token));
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == *id)
                && let (Some(drafts), Some(token)) = (&mut sequence.drafts, token)
            {
                drafts.push(token);
                sequence.branch.tokens.push(token);
            }
        }
        Ok(())
    }

    /// Takes the drafts of a guesser out of the sequences' tokens, where they stood while later
    /// ones were guessed.
    pub(super) fn forget_guesses(&mut self, guesser: Guesser) {
        for sequence in &mut self.running {
            let drafts = sequence.drafts.as_ref();
            if let Some(drafts) = drafts.filter(|drafts| drafts.wants(guesser) > 0) {
                let tokens = &mut sequence.branch.tokens;
                tokens.truncate(tokens.len() - drafts.got());
            }
        }
    }

    /// Has the grammars say what they leave no choice about, to those that draft it. In every step:
    /// a look takes 16 us. Resting after looks that gained nothing was tried. It made long strings
    /// of the demo model, whose steps take 150 us, 6 % faster, and forced texts 3 % slower
    /// (benches/record/2026-11-28-looking-ahead.txt).
    fn look_ahead(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            let Sequence {
                id,
                drafts,
                branch,
                extent,
                guide,
                ..
            } = sequence;
            if let Some(drafts) = drafts.as_ref().filter(|_| !branch.in_prefill())
                && let room @ [_, ..] = drafts.wants_forced(branch, extent)
            {
                self.guides.scout(*id, guide, Work::Forced, room);
            }
        }
        self.guides.collect_drafts(&mut self.running);
    }

    /// Leaves out the drafts that a grammar refuses.
    fn cut(&mut self) {
        for Sequence {
            id, drafts, guide, ..
        } in &mut self.running
        {
            if let Some(drafts) = drafts
                && let doubtful @ [_, ..] = drafts.doubtful()
            {
                self.guides.scout(*id, guide, Work::Allowed, doubtful);
            }
        }
        self.guides.collect_drafts(&mut self.running);
        for Sequence { drafts, guide, .. } in &mut self.running {
            if let (Some(drafts), Some(guide)) = (drafts, guide)
                && !drafts.doubtful().is_empty()
            {
                drafts.cut(guide.drafts().len());
            }
        }
    }

    /// Give the drafts that were found their rows, as many as make most tokens a second.
    fn share(&mut self, decodes: usize, room: usize) {
        let mut tokens = decodes as f64;
        let (mut best, mut best_rate) = (0, tokens / self.pace.decode_seconds(decodes));
        for n in 1..=room {
            let Some((worth, first)) = self.take_next() else {
                break;
            };
            tokens += f64::from(worth);
            let rate = tokens / self.pace.decode_seconds(decodes + n);
            if first >= IN_ANY_CASE || rate > best_rate {
                (best, best_rate) = (n, rate);
            }
        }
        for drafts in self.running.iter_mut().filter_map(|s| s.drafts.as_mut()) {
            drafts.take_none();
        }
        for _ in 0..best {
            self.take_next();
        }
    }

    /// Take one more draft into the step: that which comes first. What it is worth, and how much it
    /// came first.
    fn take_next(&mut self) -> Option<(f32, f32)> {
        let drafts = self.running.iter_mut().filter_map(|s| s.drafts.as_mut());
        let all = drafts.filter_map(|drafts| Some((drafts.next()?, drafts)));
        let (next, drafts) = all.max_by(|(a, _), (b, _)| a.1.total_cmp(&b.1))?;
        drafts.take_next();
        Some(next)
    }

    /// Plan the step without drafts after all.
    pub(super) fn drop_drafts(&mut self) {
        for drafts in self.running.iter_mut().filter_map(|s| s.drafts.as_mut()) {
            drafts.take_none();
        }
    }
}
