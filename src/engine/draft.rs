//! Speculation: guesses at the next tokens of a sequence. The step computes them along with the
//! token that is certain.
//!
//! The rows of a step with drafts are decode rows like any other. Each row has its own choice: the
//! choice that the row at this place would have without drafts. `Scheduler::absorb` takes tokens up
//! to and including the first one that differs from its draft. So a sequence has the tokens that it
//! would have without drafts. A draft that was not taken leaves values in the cache. The row that
//! computes its position overwrites them before any row reads them, and other sequences cannot find
//! their page.
//!
//! A draft is a hint, never a condition. If there is no room for a draft, the step goes without.

use super::branch::Branch;
use super::call::Call;
use super::extent::Extent;
use super::ngram::{KINDS, Lookup};
use super::pace::Gain;
use super::request::MAX_DRAFTS;
use crate::Token;
use crate::backend::{RowKind, Span, Step};

/// The kind of drafts that come from a guesser. Lower numbers are kinds of looked-up drafts.
const GUESSED: usize = KINDS;

/// The kind of drafts that a grammar forces.
const FORCED: usize = KINDS + 1;

/// What guesses at a sequence's tokens, besides looking them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guesser {
    /// Medusa heads: this many.
    Heads(usize),
    /// The draft model.
    Model,
}

impl Guesser {
    /// The most drafts that the guesser can give for a step.
    fn most(self) -> usize {
        match self {
            Guesser::Heads(n) => n,
            Guesser::Model => MAX_DRAFTS,
        }
    }
}

/// The most drafts of a guesser that are tried in a step, to measure how long such a step takes.
/// One draft tells enough if there is one sequence, and too little beside 8 sequences.
const TRIED: usize = 3;

/// Which sequences may ask a guesser for drafts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Askers {
    /// What drafts could gain for the sequences.
    gain: Gain,
    /// The sequence that is to find out, if there is one.
    one: Option<u64>,
}

impl Askers {
    pub const NOBODY: Askers = Askers {
        gain: Gain::No,
        one: None,
    };

    /// `one` chooses the sequence that finds out, if a sequence can.
    pub fn new(gain: Gain, one: impl FnOnce() -> Option<u64>) -> Self {
        let one = match gain {
            Gain::Untried | Gain::Doubtful => one(),
            Gain::No | Gain::Yes => None,
        };
        Askers { gain, one }
    }

    /// What drafts could gain for the sequence with this id, if it may ask for them.
    pub fn gain(self, id: u64) -> Gain {
        match self.gain {
            Gain::Untried | Gain::Doubtful if self.one != Some(id) => Gain::No,
            gain => gain,
        }
    }
}

/// How often a guesser's first drafts were right, over all sequences. The latest drafts count most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    right: f64,
    compared: u32,
}

impl Record {
    /// The least weight of the latest draft.
    const LATEST: f64 = 0.05;

    /// The share of drafts that were right; 0 until one was compared.
    pub fn right(self) -> f64 {
        self.right
    }

    pub fn note(&mut self, is_right: bool) {
        self.compared = self.compared.saturating_add(1);
        let latest = Self::LATEST.max(1.0 / f64::from(self.compared));
        self.right += latest * (f64::from(u8::from(is_right)) - self.right);
    }
}

/// The most steps that a sequence goes without drafts because none are worth their time.
const LONGEST_REST: u32 = 64;

/// After a rest of this length the draft model is asked once more. If its drafts do not pay then,
/// that sequence does not ask it again. The draft model computes all tokens of the rest before it
/// can guess. With 64 instead, a draft model of one layer cost 8 sequences of 200 tokens 3 % of
/// their time, although it never gave a draft.
const LAST_REST: u32 = 32;

/// A score above 1, so above any probability: always draft this.
pub(super) const IN_ANY_CASE: f32 = 2.0;

/// The drafts of one sequence.
pub(super) struct Drafts {
    /// Looks drafts up in texts, if the call wants that.
    lookup: Option<Lookup>,
    /// What else is asked for drafts, if anything.
    guesser: Option<Guesser>,
    /// Whether the tokens that the grammar forces are drafted.
    forced: bool,
    /// How many of the guesser's drafts the step that is being planned could take. 0 if it wants
    /// none.
    wants: usize,
    /// How many drafts the guesser is asked for, and how many it has given.
    asked: usize,
    got: usize,
    /// The number of drafts of a step, wherever there are some. 0: as many as pay.
    fixed: usize,
    tokens: [Token; MAX_DRAFTS],
    /// How many drafts were found for the step that is being planned.
    found: usize,
    /// How many of the found drafts are in the step.
    n: usize,
    /// The kind of the found drafts.
    kind: usize,
    /// Whether the grammar refuses the draft behind those that were found.
    refused: bool,
    habits: [Habit; KINDS + 2],
    /// Plain steps until drafts are looked for again, and the length of the last rest.
    rest: u32,
    last_rest: u32,
    /// Whether drafts were looked for in the step that is being planned.
    looked: bool,
    /// This many drafts are tried whatever they are worth: one after a rest.
    tries: usize,
    pub drafted: u32,
    pub accepted: u32,
}

/// How often drafts of one kind are right, by their place among the drafts of a step.
#[derive(Clone, Copy)]
struct Habit {
    /// For each place: the share of compared drafts that were right. The latest drafts count most.
    right: [f32; MAX_DRAFTS],
    /// The number of places at which a draft has been compared.
    known: usize,
}

impl Habit {
    /// The share before anything is known.
    const FIRST: f32 = 0.5;
    /// The weight of the latest draft.
    const LATEST: f32 = 0.2;

    fn new() -> Self {
        Self {
            right: [Self::FIRST; MAX_DRAFTS],
            known: 0,
        }
    }

    /// The probability that the draft at `place` is taken. The drafts before it must be taken as
    /// well.
    fn taken(&self, place: usize) -> f32 {
        let last = self.right[self.known.saturating_sub(1)];
        let known = &self.right[..self.known.min(place + 1)];
        let beyond = (place + 1 - known.len()) as i32;
        known.iter().product::<f32>() * last.powi(beyond)
    }

    /// Records that the first `accepted` of `n` drafts were right, and the next one was not.
    fn learn(&mut self, accepted: usize, n: usize) {
        for place in 0..n.min(accepted + 1) {
            let is_right = f32::from(u8::from(place < accepted));
            if place >= self.known {
                self.right[place] = self.right[place.saturating_sub(1)];
                self.known = place + 1;
            }
            self.right[place] += Self::LATEST * (is_right - self.right[place]);
        }
    }
}

impl Drafts {
    /// The drafts of a sequence with a prompt of `prompt_len` tokens. `None` if the call does not
    /// ask for drafts, or if there is no memory for them: then the sequence goes without. The
    /// handle has `heads` Medusa heads, and perhaps a draft model. If it has both, the heads are
    /// asked, because they cost less.
    pub fn new(
        call: &Call,
        prompt_len: usize,
        extent: &Extent,
        (heads, has_model): (usize, bool),
    ) -> Option<Self> {
        let options = &call.options;
        if !options.searches_drafts() || extent.max_new() < 3 {
            return None;
        }
        let lookup = options
            .looks_drafts_up()
            .then(|| Lookup::new(prompt_len + extent.max_new()));
        Some(Self {
            lookup: lookup.transpose().ok()?,
            guesser: match heads {
                1.. if options.asks_heads() => Some(Guesser::Heads(heads)),
                _ if has_model && options.asks_draft_model() => Some(Guesser::Model),
                _ => None,
            },
            forced: options.drafts_forced_tokens(),
            wants: 0,
            asked: 0,
            got: 0,
            fixed: options.draft_len,
            tokens: [0; MAX_DRAFTS],
            found: 0,
            n: 0,
            kind: 0,
            refused: false,
            habits: [Habit::new(); KINDS + 2],
            rest: 0,
            last_rest: 0,
            looked: false,
            tries: 0,
            drafted: 0,
            accepted: 0,
        })
    }

    /// The drafts in the step that is being planned.
    pub fn in_step(&self) -> &[Token] {
        &self.tokens[..self.n]
    }

    /// Whether the step after the current one has no drafts, whatever the current step gives.
    pub fn rests_next(&self) -> bool {
        self.n == 0 && self.rest > 0
    }

    /// Called when a step is planned in which the sequence rests.
    pub fn rest(&mut self) {
        self.rest = self.rest.saturating_sub(1);
        if self.rest == 0 {
            self.tries = self.tries.max(1);
        }
    }

    /// Called when another step is planned.
    pub fn clear(&mut self) {
        (self.found, self.n, self.looked) = (0, 0, false);
        self.refused = false;
        (self.wants, self.asked, self.got) = (0, 0, 0);
    }

    /// The most drafts that a step of this sequence can have.
    fn most(&self, branch: &Branch, extent: &Extent) -> usize {
        // The row of the last draft chooses a token as well, so one token less may be drafted.
        let left = extent.max_new().saturating_sub(branch.generated());
        let most = match self.fixed {
            0 => MAX_DRAFTS,
            fixed => fixed,
        };
        most.min(left.saturating_sub(1))
    }

    /// Room for the tokens that the grammar forces. Empty if these are not drafted.
    pub fn wants_forced(&self, branch: &Branch, extent: &Extent) -> &[Token] {
        let most = if self.forced {
            self.most(branch, extent)
        } else {
            0
        };
        &self.tokens[..most]
    }

    /// Looks for drafts for the step that is being planned. A sequence that rests does not look,
    /// but still drafts what its grammar has `forced`. `decoding`: how many sequences decode.
    /// `can_guess`: whether the guesser could guess now, and what its drafts could gain.
    pub fn find(
        &mut self,
        call: &Call,
        branch: &Branch,
        forced: &[Token],
        (extent, decoding): (&Extent, usize),
        can_guess: impl Fn(Guesser) -> (bool, Gain),
    ) {
        let most = self.most(branch, extent);
        let room = &mut self.tokens[..most];
        if !forced.is_empty() {
            room[..forced.len()].copy_from_slice(forced);
            (self.kind, self.found) = (FORCED, forced.len());
            return;
        }
        if self.rest > 0 {
            self.rest();
            return;
        }
        self.looked = true;
        let predicted = (&call.predicted, &call.options.predicted[..]);
        if let Some(lookup) = &mut self.lookup
            && let Some((kind, n)) = lookup.find(&branch.tokens, predicted, room)
        {
            (self.kind, self.found) = (kind, n);
        }
        // Looking drafts up costs nothing. Each of a guesser's drafts costs a product with the
        // vocabulary, or a step. So a guesser is asked only if it is right more often.
        let likely = |kind: usize| self.habits[kind].taken(0);
        if let Some(guesser) = self.guesser
            && let (true, gain) = can_guess(guesser)
            && self.asks(guesser, gain)
            && (self.found == 0 || likely(GUESSED) > likely(self.kind))
        {
            self.wants = most.min(guesser.most());
            if gain == Gain::Untried {
                self.tries = decoding.min(TRIED);
            }
        }
    }

    /// The guesser whose drafts the last step had, if they were a guesser's.
    pub fn guessed_by(&self) -> Option<Guesser> {
        self.guesser.filter(|_| self.n > 0 && self.kind == GUESSED)
    }

    /// Whether `guesser` is asked for drafts that could gain `gain`.
    pub fn asks(&self, guesser: Guesser, gain: Gain) -> bool {
        self.guesser == Some(guesser) && (gain != Gain::No || self.fixed > 0)
    }

    /// How many drafts of `guesser` the step that is being planned could take.
    pub fn wants(&self, guesser: Guesser) -> usize {
        match self.guesser == Some(guesser) {
            true => self.wants,
            false => 0,
        }
    }

    /// Decides how many drafts the guesser is asked for. `best`: how many of each sequence's drafts
    /// pay. `most`: how many each sequence may have.
    pub fn ask(&mut self, best: usize, most: usize) -> usize {
        let in_any_case = match self.fixed {
            0 => self.tries,
            fixed => fixed,
        };
        self.asked = self.wants.min(best.max(in_any_case)).min(most);
        self.asked
    }

    /// Whether `guesser` is asked for the draft at `place`, and has given those before it.
    pub fn lacks(&self, guesser: Guesser, place: usize) -> bool {
        self.guesser == Some(guesser) && self.got == place && place < self.asked
    }

    /// How many drafts the guesser has given.
    pub fn got(&self) -> usize {
        self.got
    }

    /// Adds the guesser's next draft. The guesser's drafts replace those that were looked up.
    pub fn push(&mut self, token: Token) {
        self.tokens[self.got] = token;
        self.got += 1;
        (self.kind, self.found) = (GUESSED, self.got);
    }

    /// The probability that the guesser's draft at `place` is taken.
    pub fn guesser_is_right(&self, place: usize) -> f32 {
        self.habits[GUESSED].taken(place)
    }

    /// The drafts that were found. Empty if a grammar forces them.
    pub fn doubtful(&self) -> &[Token] {
        let n = if self.kind == FORCED { 0 } else { self.found };
        &self.tokens[..n]
    }

    /// Keeps the first `n` drafts, because the grammar allows only these.
    pub fn cut(&mut self, n: usize) {
        self.refused = n < self.found;
        self.found = n;
    }

    /// Takes all drafts out of the step that is being planned.
    pub fn take_none(&mut self) {
        self.n = 0;
    }

    /// Puts one more draft into the step: the one that [`Drafts::next`] has described.
    pub fn take_next(&mut self) {
        self.n += 1;
    }

    /// For the next draft: how many tokens it is worth, and its score. Drafts with a higher score
    /// come first. `None` if there is no further draft.
    pub fn next(&self) -> Option<(f32, f32)> {
        if self.n == self.found {
            return None;
        }
        let worth = self.habits[self.kind].taken(self.n);
        let in_any_case = self.fixed > 0 || self.n < self.tries;
        let first = match in_any_case {
            // Earlier places first, so that sequences share the room equally.
            true => IN_ANY_CASE + (MAX_DRAFTS - self.n) as f32,
            false => worth,
        };
        Some((worth, first))
    }

    /// Called if the guesser cannot guess yet. It is asked again in the next step.
    pub fn wait(&mut self) {
        (self.wants, self.asked, self.looked) = (0, 0, false);
    }

    /// Called when the step is planned; decides whether the sequence rests. `had_room`: whether
    /// there was room for drafts. `runs_ahead`: whether the model would take the next step before
    /// this one is over.
    pub fn settle(&mut self, had_room: bool, runs_ahead: bool) {
        if !self.looked {
            return;
        }
        self.tries = 0;
        let is_plain = self.fixed == 0 && self.n == 0;
        // If no step runs ahead, it costs nothing to look again.
        if is_plain && (runs_ahead || had_room && (self.found > 0 || self.wants > 0)) {
            // Before the draft model can guess again, it computes all tokens that it has not seen,
            // however many they are. So if its drafts do not pay, it is asked less soon than other
            // sources, and in the end not at all.
            let of_model = self.wants(Guesser::Model) > 0;
            if of_model && self.last_rest >= LAST_REST {
                self.guesser = None;
            }
            let longer = if of_model { 4 } else { 2 };
            self.last_rest = (longer * self.last_rest).clamp(2, LONGEST_REST);
            self.rest = self.last_rest;
        }
    }

    /// Called when the step is over and the sequence has taken its tokens. Returns how many drafts
    /// were taken.
    pub fn learn(&mut self, step: &Step, span: &Span, branch: &Branch) -> usize {
        let drafts = &step.tokens[span.rows.clone()][1..];
        let tokens = branch.tokens.get(span.position + 1..).unwrap_or_default();
        let same = drafts.iter().zip(tokens).take_while(|(a, b)| a == b);
        let accepted = same.count();
        if !drafts.is_empty() {
            // A draft that the grammar refuses was compared, too.
            let refused = self.refused && self.n == self.found;
            let compared = drafts.len() + usize::from(refused);
            self.habits[self.kind].learn(accepted, compared);
            self.drafted += drafts.len() as u32;
            self.accepted += accepted as u32;
            if accepted > 0 && self.kind != FORCED {
                self.last_rest = 0;
            }
        }
        if let Some(lookup) = &mut self.lookup {
            let looked_up = !drafts.is_empty() && self.kind < KINDS;
            lookup.taken(if looked_up { accepted } else { 0 });
        }
        accepted
    }
}

/// The step's draft of the token that row `row` of `span` chooses.
pub(super) fn draft_after(step: &Step, span: &Span, row: usize) -> Option<Token> {
    let has_next = span.kind == RowKind::Decode && row + 1 < span.rows.end;
    has_next.then(|| step.tokens[row + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_follow_what_happens() {
        let mut right = Habit::new();
        let mut wrong = Habit::new();
        let mut half = Habit::new();
        assert_eq!(right.taken(0), 0.5);
        assert_eq!(right.taken(2), 0.125);
        for i in 0..40 {
            right.learn(4, 4);
            wrong.learn(0, 4);
            // Two of four are always right.
            half.learn(2, 4);
            assert!(
                (0..4).all(|place| right.taken(place) >= wrong.taken(place)),
                "{i}"
            );
        }
        assert!(right.taken(3) > 0.99 && right.taken(15) > 0.9);
        assert!(wrong.taken(0) < 0.01);
        assert!(half.taken(1) > 0.99 && half.taken(2) < 0.01 && half.taken(15) < 0.01);
        // What was true once does not stay true for ever.
        for _ in 0..40 {
            right.learn(0, 4);
        }
        assert!(right.taken(0) < 0.01);
    }
}
