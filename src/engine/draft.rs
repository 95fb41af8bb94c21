//! Speculation: guesses at the next tokens of a sequence, which the step computes along with the
//! token that is certain.
//!
//! The rows of a step with drafts are rows of decode like any other, each with a choice of its own:
//! that of the row after so many tokens. `Scheduler::absorb` takes tokens up to and with the
//! first that differs from its draft, so a sequence has the tokens that it would have without
//! drafts. What a draft that was not taken has left in the cache is written over by the row that
//! computes its position, before any row reads it, and its page is not one that others can find.
//!
//! A draft is a hint, never a condition: where there is no room for one, the step goes without.

use super::branch::Branch;
use super::call::Call;
use super::extent::Extent;
use super::ngram::{KINDS, Lookup};
use super::pace::Gain;
use super::request::MAX_DRAFTS;
use crate::Token;
use crate::backend::{RowKind, Span, Step};

/// The kind of a guesser's drafts, beside those that are looked up.
const GUESSED: usize = KINDS;

/// The kind of those that a grammar forces.
const FORCED: usize = KINDS + 1;

/// What guesses at a sequence's tokens, beside what is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guesser {
    /// Medusa heads, so many.
    Heads(usize),
    /// The draft model.
    Model,
}

impl Guesser {
    /// Most drafts that a step can have of it.
    fn most(self) -> usize {
        match self {
            Guesser::Heads(n) => n,
            Guesser::Model => MAX_DRAFTS,
        }
    }
}

/// Most drafts of a guesser that are tried in a step, to see how long such a step takes. One tells
/// enough where there is one sequence, and too little beside 8.
const TRIED: usize = 3;

/// Who may ask a guesser for drafts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Askers {
    /// What they could gain.
    gain: Gain,
    /// The sequence that is to find out, where one is.
    one: Option<u64>,
}

impl Askers {
    pub const NOBODY: Askers = Askers {
        gain: Gain::No,
        one: None,
    };

    /// `one` chooses the sequence that finds out, if there is one that can.
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

/// How often a guesser's first drafts were right, in all sequences, the latest ones counting most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    right: f64,
    compared: u32,
}

impl Record {
    /// What the latest one counts, at least.
    const LATEST: f64 = 0.05;

    /// 0 until one was compared.
    pub fn right(self) -> f64 {
        self.right
    }

    pub fn note(&mut self, is_right: bool) {
        self.compared = self.compared.saturating_add(1);
        let latest = Self::LATEST.max(1.0 / f64::from(self.compared));
        self.right += latest * (f64::from(u8::from(is_right)) - self.right);
    }
}

/// A sequence for which no drafts are worth their time goes without for at most so many steps.
const LONGEST_REST: u32 = 64;

/// After so long a rest the draft model is asked once more, and then no more in that sequence. It
/// computes all tokens of the rest before it can guess. With 64, a draft model of a layer cost 8
/// sequences of 200 tokens 3 % of their time, though it never gave a draft.
const LAST_REST: u32 = 32;

/// Beyond any probability: what is drafted in any case.
pub(super) const IN_ANY_CASE: f32 = 2.0;

/// The drafts of one sequence.
pub(super) struct Drafts {
    /// What looks drafts up in texts, if the call wants that.
    lookup: Option<Lookup>,
    /// What else is asked, if anything is.
    guesser: Option<Guesser>,
    /// Whether what the grammar forces is drafted.
    forced: bool,
    /// How many drafts of the guesser's the step that is being planned could take, if it would like
    /// some.
    wants: usize,
    /// How many the guesser is asked for, and how many it has given.
    asked: usize,
    got: usize,
    /// So many drafts wherever there are some; 0: as many as pay.
    fixed: usize,
    tokens: [Token; MAX_DRAFTS],
    /// How many were found for the step that is being planned.
    found: usize,
    /// How many of them are in it.
    n: usize,
    /// What they were found by.
    kind: usize,
    /// Whether the grammar refuses the one behind them.
    refused: bool,
    habits: [Habit; KINDS + 2],
    /// Plain steps until the next ones are looked for, and how many that were last time.
    rest: u32,
    last_rest: u32,
    /// Whether they were looked for in the step that is being planned.
    looked: bool,
    /// So many drafts are tried whatever they are worth: one after a rest.
    tries: usize,
    pub drafted: u32,
    pub accepted: u32,
}

/// How often drafts of a kind are right, by their places.
#[derive(Clone, Copy)]
struct Habit {
    /// The share of those that came to be compared, the latest ones counting most.
    right: [f32; MAX_DRAFTS],
    /// How many places have been compared.
    known: usize,
}

impl Habit {
    /// Before anything is known.
    const FIRST: f32 = 0.5;
    /// What the latest one counts.
    const LATEST: f32 = 0.2;

    fn new() -> Self {
        Self {
            right: [Self::FIRST; MAX_DRAFTS],
            known: 0,
        }
    }

    /// The probability that the draft at `place` is taken, which those before it must be too.
    fn taken(&self, place: usize) -> f32 {
        let last = self.right[self.known.saturating_sub(1)];
        let known = &self.right[..self.known.min(place + 1)];
        let beyond = (place + 1 - known.len()) as i32;
        known.iter().product::<f32>() * last.powi(beyond)
    }

    /// Of `n` drafts, the first `accepted` were right, and the next was not.
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
    /// For a prompt of so many tokens, if the call asks for drafts. The handle may have so many
    /// Medusa heads and a draft model; heads are asked rather than the model, because they cost
    /// less. Without memory for drafts the sequence goes without them.
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

    /// What the step that is being planned has of it.
    pub fn in_step(&self) -> &[Token] {
        &self.tokens[..self.n]
    }

    /// Whether the step after the one that is under way goes without, whatever that gives.
    pub fn rests_next(&self) -> bool {
        self.n == 0 && self.rest > 0
    }

    /// A step was planned in which it rests.
    pub fn rest(&mut self) {
        self.rest = self.rest.saturating_sub(1);
        if self.rest == 0 {
            self.tries = self.tries.max(1);
        }
    }

    /// Another step is planned.
    pub fn clear(&mut self) {
        (self.found, self.n, self.looked) = (0, 0, false);
        self.refused = false;
        (self.wants, self.asked, self.got) = (0, 0, 0);
    }

    /// Most drafts that a step can have of it.
    fn most(&self, branch: &Branch, extent: &Extent) -> usize {
        // The row of the last draft still chooses a token.
        let left = extent.max_new().saturating_sub(branch.generated());
        let most = match self.fixed {
            0 => MAX_DRAFTS,
            fixed => fixed,
        };
        most.min(left.saturating_sub(1))
    }

    /// Room for what the grammar forces, if that is drafted.
    pub fn wants_forced(&self, branch: &Branch, extent: &Extent) -> &[Token] {
        let most = if self.forced {
            self.most(branch, extent)
        } else {
            0
        };
        &self.tokens[..most]
    }

    /// Look for what the step that is being planned could have of it; unless it rests, which it
    /// does from looking, not from what its grammar has `forced`. So many sequences are
    /// `decoding`. `can_guess`: whether the guesser could guess now, and what that could gain.
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
        // What is looked up costs nothing, and a guesser's drafts a product of a vocabulary or a
        // step each. So they must be right more often.
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

    /// Whose drafts the last step had, if they were a guesser's.
    pub fn guessed_by(&self) -> Option<Guesser> {
        self.guesser.filter(|_| self.n > 0 && self.kind == GUESSED)
    }

    /// Whether this one is asked for drafts, which could gain so much.
    pub fn asks(&self, guesser: Guesser, gain: Gain) -> bool {
        self.guesser == Some(guesser) && (gain != Gain::No || self.fixed > 0)
    }

    /// How many drafts of this one the step that is being planned could take.
    pub fn wants(&self, guesser: Guesser) -> usize {
        match self.guesser == Some(guesser) {
            true => self.wants,
            false => 0,
        }
    }

    /// Settles how many the guesser is asked for, where so many of each sequence's pay, and each
    /// may have at most so many.
    pub fn ask(&mut self, best: usize, most: usize) -> usize {
        let in_any_case = match self.fixed {
            0 => self.tries,
            fixed => fixed,
        };
        self.asked = self.wants.min(best.max(in_any_case)).min(most);
        self.asked
    }

    /// Whether this one is asked for the draft at `place`, and has given those before it.
    pub fn lacks(&self, guesser: Guesser, place: usize) -> bool {
        self.guesser == Some(guesser) && self.got == place && place < self.asked
    }

    /// How many drafts it has of the guesser.
    pub fn got(&self) -> usize {
        self.got
    }

    /// The guesser's next draft, instead of those that were looked up.
    pub fn push(&mut self, token: Token) {
        self.tokens[self.got] = token;
        self.got += 1;
        (self.kind, self.found) = (GUESSED, self.got);
    }

    /// The probability that the guesser's draft at `place` is taken.
    pub fn guesser_is_right(&self, place: usize) -> f32 {
        self.habits[GUESSED].taken(place)
    }

    /// What was found, unless a grammar forces it.
    pub fn doubtful(&self) -> &[Token] {
        let n = if self.kind == FORCED { 0 } else { self.found };
        &self.tokens[..n]
    }

    /// The grammar allows so many of them.
    pub fn cut(&mut self, n: usize) {
        self.refused = n < self.found;
        self.found = n;
    }

    /// The step that is being planned has none of it.
    pub fn take_none(&mut self) {
        self.n = 0;
    }

    /// It has one more, of which [`Drafts::next`] has told.
    pub fn take_next(&mut self) {
        self.n += 1;
    }

    /// What the next draft is worth in tokens, and how much it should come first.
    pub fn next(&self) -> Option<(f32, f32)> {
        if self.n == self.found {
            return None;
        }
        let worth = self.habits[self.kind].taken(self.n);
        let in_any_case = self.fixed > 0 || self.n < self.tries;
        let first = match in_any_case {
            // In equal shares.
            true => IN_ANY_CASE + (MAX_DRAFTS - self.n) as f32,
            false => worth,
        };
        Some((worth, first))
    }

    /// The guesser cannot guess yet, and is asked again in the next step.
    pub fn wait(&mut self) {
        (self.wants, self.asked, self.looked) = (0, 0, false);
    }

    /// The step is planned. `had_room`: for drafts; `runs_ahead`: the model would take the next
    /// step before this one is over.
    pub fn settle(&mut self, had_room: bool, runs_ahead: bool) {
        if !self.looked {
            return;
        }
        self.tries = 0;
        let is_plain = self.fixed == 0 && self.n == 0;
        // Where no step runs ahead, it costs nothing to look again.
        if is_plain && (runs_ahead || had_room && (self.found > 0 || self.wants > 0)) {
            // What the draft model has not seen it computes before it can guess again, however long
            // that is. So where its guesses do not pay it is asked less soon, and then no more.
            let of_model = self.wants(Guesser::Model) > 0;
            if of_model && self.last_rest >= LAST_REST {
                self.guesser = None;
            }
            let longer = if of_model { 4 } else { 2 };
            self.last_rest = (longer * self.last_rest).clamp(2, LONGEST_REST);
            self.rest = self.last_rest;
        }
    }

    /// The step is over, and its sequence has taken what it gave. How many of its drafts were
    /// taken.
    pub fn learn(&mut self, step: &Step, span: &Span, branch: &Branch) -> usize {
        let drafts = &step.tokens[span.rows.clone()][1..];
        let tokens = branch.tokens.get(span.position + 1..).unwrap_or_default();
        let same = drafts.iter().zip(tokens).take_while(|(a, b)| a == b);
        let accepted = same.count();
        if !drafts.is_empty() {
            // One that the grammar refuses was compared, too.
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

/// The step's guess at the token that its row `row`, one of `span`, chooses.
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
            // Always two of four.
            half.learn(2, 4);
            assert!(
                (0..4).all(|place| right.taken(place) >= wrong.taken(place)),
                "{i}"
            );
        }
        assert!(right.taken(3) > 0.99 && right.taken(15) > 0.9);
        assert!(wrong.taken(0) < 0.01);
        assert!(half.taken(1) > 0.99 && half.taken(2) < 0.01 && half.taken(15) < 0.01);
        // What was true once is not for ever.
        for _ in 0..40 {
            right.learn(0, 4);
        }
        assert!(right.taken(0) < 0.01);
    }
}
