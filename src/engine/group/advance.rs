//! From one step of a search to the next: which beams end, and which go on in which slots.

use super::Group;
use crate::engine::beam::{Candidate, Search};
use crate::engine::branch::Branch;
use crate::engine::event::{BeamEvent, Event, FinishReason};
use crate::engine::output::Output;
use crate::engine::phrases::Phrases;
use crate::kv::Pool;
use crate::{Error, Result, Token};

impl Group {
    /// All rows of a step have come: decide, and fork. Why the search is over, if it is.
    pub fn advance(
        &mut self,
        own: &mut Branch,
        output: &Output,
        pool: &mut Pool,
        copies: &mut Vec<(u32, u32)>,
    ) -> Result<Option<FinishReason>> {
        let over = self.decide(own, output, pool, copies)?;
        (self.rows, self.possible) = (0, false);
        Ok(over)
    }

    fn decide(
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
        let progress = |candidate: &Candidate| &slots[beams[candidate.beam]].progress;
        match phrases.is_empty() {
            true => search.judge(|candidate| {
                Ok(why(candidate)?.or(is_last.then_some(FinishReason::Length)))
            })?,
            false => search.judge_phrases(
                |candidate| {
                    let (reason, progress) = (why(candidate)?, progress(candidate));
                    // An end-of-sequence token is no part of the text.
                    let met_all = match is_end(candidate.token) {
                        true => progress.has_met_all(),
                        false => progress.with(phrases, candidate.token).1,
                    };
                    Ok(reason.map(|reason| (reason, met_all)))
                },
                |candidate| progress(candidate).with(phrases, candidate.token).0,
            )?,
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
                step: *length as u32,
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
