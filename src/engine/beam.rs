//! Beam search: which continuations run on, which have finished, and when it is over. No pages and
//! no model; [`super::group`] has those.
//!
//! The semantics are those of transformers (4.50 and later) for one prompt. A step takes the best
//! continuations of all beams. Those that end there compete, if they are among the first of them,
//! for places among the finished ones by sum / length ^ length_penalty; the best of the others run
//! on.

use super::event::FinishReason;
use super::request::{EarlyStopping, GenerateOptions};
use crate::{Result, Token, reserve};

/// What does not change during a search.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Beams that run, and places for finished ones.
    pub width: usize,
    /// Continuations that a step considers, over all beams.
    pub considered: usize,
    pub length_penalty: f64,
    pub early_stopping: EarlyStopping,
    /// Most tokens to generate.
    pub most: usize,
}

impl Rules {
    /// `n_ends`: how many tokens end a sequence.
    pub fn new(options: &GenerateOptions, n_ends: usize, most: usize) -> Self {
        let width = options.num_beams;
        Self {
            width,
            // However many of them end: enough are left to run on.
            considered: n_ends.saturating_add(1).max(2).saturating_mul(width),
            length_penalty: options.length_penalty.into(),
            early_stopping: options.early_stopping,
            most,
        }
    }

    /// The score of a beam of so many tokens.
    pub fn score(&self, sum: f64, length: usize) -> f64 {
        match sum {
            // Whatever it is divided by.
            0.0 => 0.0,
            sum => sum / (length as f64).powf(self.length_penalty),
        }
    }
}

/// A beam with one more token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub sum: f64,
    /// Which running beam goes on.
    pub beam: usize,
    pub token: Token,
    /// The token's log probability under the raw logits.
    pub logprob: f32,
}

/// What is kept of a beam that has finished.
#[derive(Debug)]
pub(super) struct Finished<T> {
    pub sum: f64,
    pub score: f64,
    pub reason: FinishReason,
    /// Its text.
    pub text: T,
}

/// A candidate of a search that must write phrases.
#[derive(Clone, Copy, Debug)]
struct Banked {
    candidate: Candidate,
    /// How far it has come with the phrases.
    bank: usize,
    /// Whether it is known to run on.
    runs_on: bool,
    /// In the best of a bank: how many of the bank have been looked at.
    looked_at: usize,
}

/// A step asks at most this many candidates that get on with phrases whether they end; the others
/// do not run on. An answer takes up to 30 µs with many stop strings, and each of thousands of
/// phrases may have a candidate: asking all of them took 1.8 s a step.
const MOST_ASKED: usize = 1024;
/// Of a bank, at most this many before it is the next bank's turn.
const ASKED_IN_TURN: usize = 64;

/// A search, and texts of what has finished.
#[derive(Debug)]
pub(super) struct Search<T> {
    pub rules: Rules,
    /// The sums of the running beams, best first.
    pub running: Vec<f64>,
    /// Tokens of each running beam.
    pub length: usize,
    /// The continuations of the running beams, in any order; taken by [`Search::judge`].
    pub candidates: Vec<Candidate>,
    /// Further continuations, which get on with phrases.
    pub forced: Vec<Candidate>,
    banked: Vec<Banked>,
    /// The largest sum of a candidate of the step.
    best: f64,
    /// Those that run on, best first.
    pub heirs: Vec<Candidate>,
    /// Those that end here and compete.
    pub ended: Vec<(Candidate, FinishReason)>,
    /// Best first; as many as there are places.
    finished: Vec<Finished<T>>,
    /// Of those, so many are taken.
    n_finished: usize,
}

impl<T> Search<T> {
    /// One beam without tokens, and room for all that there can be. `texts`: one for each place.
    /// `forced_each`: most continuations of a beam that get on with phrases.
    pub fn new(
        rules: Rules,
        candidates_each: usize,
        forced_each: usize,
        texts: Vec<T>,
    ) -> Result<Self> {
        let what = "the beams of a search";
        let width = rules.width;
        let mut finished = reserve::room(what, width)?;
        finished.extend(texts.into_iter().take(width).map(|text| Finished {
            sum: f64::NEG_INFINITY,
            score: f64::NEG_INFINITY,
            reason: FinishReason::Stop,
            text,
        }));
        let mut running = reserve::room(what, width)?;
        running.push(0.0);
        let forced = forced_each.saturating_mul(width);
        let banked = match forced {
            0 => 0,
            n => n.saturating_add(width),
        };
        Ok(Self {
            running,
            length: 0,
            candidates: reserve::room(what, candidates_each.saturating_mul(width))?,
            forced: reserve::room(what, forced)?,
            banked: reserve::room(what, banked)?,
            best: f64::NEG_INFINITY,
            heirs: reserve::room(what, width)?,
            ended: reserve::room(what, width)?,
            finished,
            n_finished: 0,
            rules,
        })
    }

    /// Best first.
    pub fn finished(&self) -> &[Finished<T>] {
        &self.finished[..self.n_finished]
    }

    /// Choose among the candidates: which run on, and which end and compete. `ends` says why one
    /// ends, if it does.
    pub fn judge(
        &mut self,
        mut ends: impl FnMut(&Candidate) -> Result<Option<FinishReason>>,
    ) -> Result<()> {
        let Rules {
            width, considered, ..
        } = self.rules;
        self.candidates.sort_unstable_by(in_order);
        self.candidates.truncate(considered);
        self.heirs.clear();
        self.ended.clear();
        for (rank, candidate) in self.candidates.drain(..).enumerate() {
            if rank >= width && self.heirs.len() == width {
                break;
            }
            match ends(&candidate)? {
                Some(reason) if rank < width => self.ended.push((candidate, reason)),
                Some(_) => {}
                None if self.heirs.len() < width => self.heirs.push(candidate),
                None => {}
            }
        }
        Ok(())
    }

    /// The same in a search that must write phrases. `ends` also says whether an end counts, `bank`
    /// how far a continuation has come: the best of each bank run on, the furthest first, then the
    /// second of each, and so on.
    pub fn judge_phrases(
        &mut self,
        mut ends: impl FnMut(&Candidate) -> Result<Option<(FinishReason, bool)>>,
        mut bank: impl FnMut(&Candidate) -> usize,
    ) -> Result<()> {
        let Rules {
            width, considered, ..
        } = self.rules;
        self.candidates.sort_unstable_by(in_order);
        self.candidates.truncate(considered);
        self.best = (self.candidates.first()).map_or(f64::NEG_INFINITY, |best| best.sum);
        self.heirs.clear();
        self.ended.clear();
        self.banked.clear();
        let mut banked = |candidate: Candidate, runs_on| Banked {
            candidate,
            bank: bank(&candidate),
            runs_on,
            looked_at: 0,
        };
        for (rank, candidate) in self.candidates.drain(..).enumerate() {
            match ends(&candidate)? {
                Some((reason, true)) if rank < width => self.ended.push((candidate, reason)),
                Some(_) => {}
                None => self.banked.push(banked(candidate, true)),
            }
            if self.banked.len() == width {
                break;
            }
        }
        let picked = self.banked.len();
        for candidate in self.forced.drain(..) {
            let same = |b: &Banked| {
                (b.candidate.beam, b.candidate.token) == (candidate.beam, candidate.token)
            };
            if !self.banked[..picked].iter().any(same) {
                self.banked.push(banked(candidate, false));
            }
        }
        let by_bank = |a: &Banked, b: &Banked| {
            let banks = b.bank.cmp(&a.bank);
            banks.then(in_order(&a.candidate, &b.candidate))
        };
        self.banked.sort_unstable_by(by_bank);
        let mut may_ask = MOST_ASKED;
        let mut is_over = false;
        while !is_over {
            is_over = true;
            let mut rest = &mut self.banked[..];
            while let Some(first) = rest.first() {
                let bank = first.bank;
                let len = rest.partition_point(|banked| banked.bank == bank);
                let (of_bank, others) = rest.split_at_mut(len);
                rest = others;
                let mut in_turn = ASKED_IN_TURN;
                while let Some(next) = of_bank.get(of_bank[0].looked_at) {
                    let (candidate, mut runs_on) = (next.candidate, next.runs_on);
                    if !runs_on && may_ask > 0 {
                        if in_turn == 0 {
                            is_over = false;
                            break;
                        }
                        (may_ask, in_turn) = (may_ask - 1, in_turn - 1);
                        // Nothing runs on behind an end, whatever it gets on with.
                        runs_on = ends(&candidate)?.is_none();
                    }
                    of_bank[0].looked_at += 1;
                    if runs_on {
                        self.heirs.push(candidate);
                        if self.heirs.len() == width {
                            return Ok(());
                        }
                        is_over = false;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// A beam with this sum and of this length competes. Where it has a place, its text is to be
    /// written into what is returned.
    pub fn offer(&mut self, sum: f64, length: usize, reason: FinishReason) -> Option<&mut T> {
        let score = self.rules.score(sum, length);
        let taken = &self.finished[..self.n_finished];
        let place = taken.partition_point(|other| other.score >= score);
        if self.n_finished < self.finished.len() {
            self.n_finished += 1;
        }
        let behind = self.finished.get_mut(place..self.n_finished)?;
        // Whoever was last gives its text up.
        behind.rotate_right(usize::from(!behind.is_empty()));
        let new = behind.first_mut()?;
        (new.sum, new.score, new.reason) = (sum, score, reason);
        Some(&mut new.text)
    }

    /// The heirs run, after what ended was offered. Whether the search is over.
    pub fn settle(&mut self) -> bool {
        self.running.clear();
        self.running.extend(self.heirs.iter().map(|heir| heir.sum));
        self.length += 1;
        let Rules {
            early_stopping,
            length_penalty,
            most,
            ..
        } = self.rules;
        let is_full = self.n_finished == self.finished.len();
        let (Some(first), Some(worst)) = (self.running.first(), self.finished().last()) else {
            return self.running.is_empty();
        };
        // With phrases, those that run are not the best.
        let best = match self.forced.capacity() {
            0 => *first,
            _ => self.best,
        };
        let length = match early_stopping {
            EarlyStopping::Never if length_penalty > 0.0 => most,
            _ => self.length,
        };
        let is_beaten = self.rules.score(best, length) <= worst.score;
        is_full && (early_stopping == EarlyStopping::True || is_beaten)
    }
}

/// Best first; of equal ones the lower beam, then the lower id.
fn in_order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    let sums = b.sum.total_cmp(&a.sum);
    sums.then(a.beam.cmp(&b.beam)).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(width: usize, forced: usize) -> Search<()> {
        let rules = Rules {
            width,
            considered: 2 * width,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::False,
            most: 100,
        };
        Search::new(rules, 2 * width, forced, vec![(); width]).unwrap()
    }

    fn candidate(beam: usize, token: Token, sum: f64) -> Candidate {
        Candidate {
            beam,
            token,
            sum,
            logprob: 0.0,
        }
    }

    /// Without a limit: all that run on, the best of each bank first, then the second of each.
    fn in_turn(
        all: &[Candidate],
        width: usize,
        ends: impl Fn(&Candidate) -> bool,
        bank: impl Fn(&Candidate) -> usize,
    ) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = all.iter().copied().filter(|c| !ends(c)).collect();
        all.sort_by(|a, b| bank(b).cmp(&bank(a)).then(in_order(a, b)));
        let behind = |at: usize| {
            let same = |other: &&Candidate| bank(other) == bank(&all[at]);
            all[..at].iter().filter(same).count()
        };
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|at| (behind(*at), *at));
        order.into_iter().take(width).map(|at| all[at]).collect()
    }

    #[test]
    fn the_best_of_each_bank_run_on_in_turn() {
        for seed in 0..200_u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let width = 1 + random(8) as usize;
            let mut search = search(width, 60);
            let n = random(60);
            let forced: Vec<Candidate> = (0..n)
                .map(|i| candidate(random(8) as usize, i as Token, -(random(9) as f64)))
                .collect();
            let ends = |c: &Candidate| (c.token * 7 + seed as Token) % 5 < 3;
            let bank = |c: &Candidate| (c.token % 4) as usize;
            search.forced.extend(&forced);
            let end = |c: &Candidate| Ok(ends(c).then_some((FinishReason::Stop, false)));
            search.judge_phrases(end, bank).unwrap();
            assert_eq!(search.heirs, in_turn(&forced, width, ends, bank), "{seed}");
        }
    }

    #[test]
    fn a_step_asks_a_limited_number_of_candidates() {
        let n = 4 * MOST_ASKED;
        let mut search = search(4, n);
        // The better half has come further, and ends but for its last one.
        let half = n / 2;
        search
            .forced
            .extend((0..n).map(|i| candidate(0, i as Token, -(i as f64))));
        let mut asked = 0;
        let ends = |c: &Candidate| {
            asked += 1;
            Ok((c.token < half as Token - 1).then_some((FinishReason::Stop, false)))
        };
        search
            .judge_phrases(ends, |c| usize::from(c.token < half as Token))
            .unwrap();
        // The bank behind has its turn before the other has used all questions up.
        let heirs: Vec<Token> = search.heirs.iter().map(|heir| heir.token).collect();
        assert_eq!(heirs, [0, 1, 2, 3].map(|i| half as Token + i));
        assert!(asked <= MOST_ASKED, "{asked}");
    }
}
