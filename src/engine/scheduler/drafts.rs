//! The drafts of the step that is being planned: of which sequences, and how many pay.

use super::Scheduler;
use crate::Result;
use crate::engine::draft::IN_ANY_CASE;
use crate::engine::guide::Work;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Choose the drafts of the step that is being planned. They get what it has left of its rows
    /// when every sequence that decodes has its own and the prompts have theirs.
    pub(super) fn draft(&mut self) -> Result<()> {
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
        let pays = self.draft_model.as_ref().is_some_and(|model| model.pays);
        let (mut decodes, mut prompt_rows, mut prompts_want) = (0, 0, 0);
        for sequence in self.running.iter_mut().filter(|s| !s.sits_out) {
            let (branch, extent) = (&sequence.branch, &sequence.extent);
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
                drafts.find(&sequence.output.call, branch, forced, extent, pays);
            }
        }
        let chunk = self.pace.prompt_rows(decodes, self.limits.max_rows);
        let rows = decodes + prompt_rows.min(chunk);
        let rows_left = self.limits.max_rows.saturating_sub(rows);
        let wanted_left = self
            .limits
            .max_wanted
            .saturating_sub(decodes + prompts_want);
        let room = rows_left.min(wanted_left);
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

    /// Has the grammars say what they leave no choice about, to those that draft it.
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
