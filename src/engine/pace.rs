//! Limits the number of prompt rows of a step, so that running streams are not held up. Estimates
//! how long a step takes for a number of decode rows, so that drafts are made only if they are
//! worth their time.

use super::request::MAX_DRAFTS;
use crate::{Result, reserve};
use std::ops::Range;

/// Prompts get this share of the time that decode rows take, even if the decode rows alone take
/// longer than a step should. With only the least number of rows (16, or 32 with tiles), a prompt
/// of 2,000 tokens beside 32 streams would take 125 steps, or 63 with tiles.
const LEAST_SHARE: f64 = 0.5;
/// The number of prompt rows before anything has been measured.
const FIRST_ROWS: usize = 64;

/// The cost of one more row if nothing is known of it, as a share of a step.
const ROW_SHARE: f64 = 0.02;
/// Drafts are asked for only if drafts as good as [`LIKELY`] would make tokens this much faster.
const WORTH_A_TRY: f64 = 1.1;
/// How often each draft of a good model is right, if those before it are right. It was 1, and then
/// two models of one size were tried against each other. (Presumably one step was held up by
/// something else, which made that seem worth it.) 0.8 is a choice. With it, the first call of a
/// full batch keeps 0.98 of its speed beside a draft model that is always wrong
/// (benches/record/2026-11-26-auto-of-a-first-call.txt).
const LIKELY: f64 = 0.8;
/// A measurement that is this many steps old counts as unknown: sequences have become longer, and
/// the machine has other things to do.
const FORGOTTEN: u64 = 1000;

/// Whether drafts could make a number of sequences faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gain {
    /// They could not, or nothing is known of the model's steps yet.
    No,
    /// They might. One sequence is to try drafts until steps with drafts have been measured. In a
    /// first call of 8 sequences that all tried, drafts that did not pay took 10 % of the time.
    Untried,
    /// By measured times a good model's drafts would, but these drafts are right less often. One
    /// sequence may ask for them, in case they are right more often for its text.
    Doubtful,
    /// They would.
    Yes,
}

/// Running averages of measured steps.
#[derive(Debug)]
pub(super) struct Pace {
    fixed: Option<usize>,
    /// Prefill always goes on with at least this many rows, however slow the machine is.
    least: usize,
    /// The longest time that a step with running streams should take.
    target_seconds: f64,
    seconds_per_decode: Option<f64>,
    seconds_per_prompt_row: Option<f64>,
    /// Measurements of steps without prompt rows, by their number of decode rows.
    by_rows: Vec<Measured>,
    /// How many such steps there were.
    steps: u64,
}

/// How long steps with a certain number of decode rows took.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    seconds: f64,
    /// How many such steps there were. Steps that are forgotten do not count.
    times: u32,
    /// [`Pace::steps`] at the last such step.
    last: u64,
}

impl Pace {
    /// With `fixed`, steps get that many prompt rows. Without it, they get so many that a step with
    /// running streams takes `max_step_ms` by measured times, but at least `least`. A step has at
    /// most `most` decode rows.
    pub fn new(fixed: Option<usize>, least: usize, max_step_ms: u32, most: usize) -> Result<Self> {
        Ok(Self {
            fixed,
            least,
            target_seconds: f64::from(max_step_ms) / 1e3,
            seconds_per_decode: None,
            seconds_per_prompt_row: None,
            by_rows: reserve::filled(
                "the pace of steps",
                most.saturating_add(1),
                Measured::default(),
            )?,
            steps: 0,
        })
    }

    /// The number of prompt rows of the next step. `decodes` of its `max_rows` rows are decode
    /// rows. `streaming`: whether somebody waits for what the decode rows give.
    pub fn prompt_rows(&self, decodes: usize, streaming: bool, max_rows: usize) -> usize {
        let room = max_rows.saturating_sub(decodes);
        if let Some(rows) = self.fixed {
            return rows.min(room);
        }
        if !streaming {
            return room;
        }
        let decoding = self.decoding(decodes);
        let left = (self.target_seconds - decoding).max(LEAST_SHARE * decoding);
        let rows = self
            .seconds_per_prompt_row
            .map_or(FIRST_ROWS, |row| (left / row) as usize);
        rows.clamp(self.least.min(room), room)
    }

    /// Records the time that a step took. `decodes` is its number of decode rows, drafts included.
    pub fn observe(&mut self, prompt_rows: usize, decodes: usize, seconds: f64) {
        if prompt_rows == 0 {
            mix(&mut self.seconds_per_decode, seconds);
            self.note(decodes, seconds);
        } else {
            // Rows of both kinds share the time for reading the weights. That time counts as decode
            // time here, so prompt rows seem cheaper beside streams than alone.
            let rest = (seconds - self.decoding(decodes)).max(0.0);
            mix(&mut self.seconds_per_prompt_row, rest / prompt_rows as f64);
        }
    }

    /// Estimates how long the decode rows of a step take. While prompts keep coming, no step is
    /// without prompt rows. The average over steps without them is then of other numbers of
    /// streams, so it is used only if no number of rows has been measured.
    fn decoding(&self, decodes: usize) -> f64 {
        match (decodes, self.knows_decodes()) {
            (0, _) => 0.0,
            (_, true) => self.decode_seconds(decodes),
            (_, false) => self.seconds_per_decode.unwrap_or(0.0),
        }
    }

    fn note(&mut self, rows: usize, seconds: f64) {
        self.steps += 1;
        let steps = self.steps;
        if let Some(at) = self.by_rows.get_mut(rows) {
            at.seconds = match at.times {
                _ if steps - at.last > FORGOTTEN => seconds,
                0 => seconds,
                // The first step of its form may have taken longer, because something had to be
                // made ready.
                1 => at.seconds.min(seconds),
                // A step that was held up says little, so its time counts only up to twice the
                // average.
                _ => at.seconds + 0.25 * (seconds.min(2.0 * at.seconds) - at.seconds),
            };
            at.times = match steps - at.last > FORGOTTEN {
                true => 1,
                false => at.times.saturating_add(1),
            };
            at.last = steps;
        }
    }

    /// Whether [`Pace::decode_seconds`] returns seconds.
    pub fn knows_decodes(&self) -> bool {
        self.knows(0..self.by_rows.len())
    }

    /// Whether steps have been measured for one of these numbers of decode rows.
    fn knows(&self, mut rows: Range<usize>) -> bool {
        rows.any(|rows| self.measured(rows).is_some())
    }

    /// What drafts could gain for `sequences` sequences. Each draft takes a step of the guesser,
    /// whose pace is `guesses`. Each draft is right with the probability `right`, if those before
    /// it are right. While the pace `guesses` is not known, a step of the guesser counts as `share`
    /// of one of the model's steps. If more rows than without drafts were never measured,
    /// additional rows count as free.
    pub fn gain(&self, guesses: &Pace, (share, right): (f64, f64), sequences: usize) -> Gain {
        let n = sequences.max(1);
        if !self.knows(0..n + 1) {
            return Gain::No;
        }
        let knows_more = self.knows(n + 1..self.by_rows.len());
        let drafting = match guesses.knows_decodes() {
            true => guesses.decode_seconds(n),
            false => share * self.decode_seconds(n),
        };
        let pays = |right: f64| {
            let rate = |k: usize| {
                let rows = if knows_more { n * (k + 1) } else { n };
                let seconds = self.decode_seconds(rows) + k as f64 * drafting;
                let tokens: f64 = (0..=k as i32).map(|place| right.powi(place)).sum();
                tokens / seconds
            };
            (1..=MAX_DRAFTS).any(|k| rate(k) > WORTH_A_TRY * rate(0))
        };
        match knows_more && guesses.knows_decodes() {
            _ if !pays(LIKELY) => Gain::No,
            false => Gain::Untried,
            true if pays(right) => Gain::Yes,
            true => Gain::Doubtful,
        }
    }

    /// How long a step with this many decode rows takes, if that has been measured.
    fn measured(&self, rows: usize) -> Option<f64> {
        let at = self.by_rows.get(rows)?;
        let is_known = at.times > 1 && self.steps - at.last <= FORGOTTEN;
        is_known.then_some(at.seconds)
    }

    /// About how long a step with this many decode rows takes: the measured time, or else a time in
    /// line with the measured numbers of rows around it. If nothing has been measured, the unit is
    /// unknown, but it is the same for all numbers of rows.
    pub fn decode_seconds(&self, rows: usize) -> f64 {
        if let Some(seconds) = self.measured(rows) {
            return seconds;
        }
        let known = |rows: usize| Some((rows as f64, self.measured(rows)?));
        let mut less = (0..rows).rev().filter_map(known);
        let more = (rows + 1..self.by_rows.len()).find_map(known);
        let rows = rows as f64;
        match (less.next(), more) {
            (None, None) => 1.0 + ROW_SHARE * rows,
            (None, Some((_, seconds))) => seconds,
            (Some((n, seconds)), Some((more_n, more_seconds))) => {
                seconds + (more_seconds - seconds) * (rows - n) / (more_n - n)
            }
            (Some((n, seconds)), None) => {
                let slope = less.next().map_or(0.0, |(less_n, less_seconds)| {
                    (seconds - less_seconds) / (n - less_n)
                });
                seconds + (rows - n) * slope.max(ROW_SHARE * seconds)
            }
        }
    }
}

fn mix(average: &mut Option<f64>, value: f64) {
    *average = Some(average.map_or(value, |old| old + 0.25 * (value - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_beside_running_streams_aims_at_the_target() {
        let mut pace = Pace::new(None, 16, 100, 32).unwrap();
        assert_eq!(pace.prompt_rows(1, true, 264), 64);
        pace.observe(0, 1, 0.050);
        pace.observe(100, 0, 0.100);
        assert_eq!(pace.prompt_rows(1, true, 264), 50);
        assert_eq!(pace.prompt_rows(1, false, 264), 263, "nobody is held up");
    }

    #[test]
    fn what_streams_take_depends_on_how_many_there_are() {
        let mut pace = measured(&[(1, 0.05), (32, 0.15)]);
        pace.observe(100, 0, 0.100);
        assert_eq!(pace.prompt_rows(1, true, 264), 50);
        assert_eq!(
            pace.prompt_rows(32, true, 264),
            75,
            "half of what they take"
        );
        for _ in 0..20 {
            pace.observe(100, 32, 0.350);
        }
        assert_eq!(pace.prompt_rows(1, true, 264), 25, "twice as slow");
        assert_eq!(pace.prompt_rows(32, true, 264), 37);
    }

    #[test]
    fn a_caller_may_set_the_target() {
        for (max_step_ms, rows) in [(60, 25), (80, 30), (100, 50), (1000, 260), (1, 25)] {
            let mut pace = Pace::new(None, 16, max_step_ms, 32).unwrap();
            pace.observe(0, 1, 0.050);
            pace.observe(100, 0, 0.100);
            assert_eq!(pace.prompt_rows(4, true, 264), rows, "{max_step_ms}");
        }
    }

    #[test]
    fn the_bounds_hold_on_any_machine() {
        let mut pace = Pace::new(None, 16, 100, 32).unwrap();
        pace.observe(0, 1, 10.0);
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(4, true, 264), 16);
        assert_eq!(pace.prompt_rows(4, true, 10), 6);
        pace.least = 32;
        assert_eq!(pace.prompt_rows(4, true, 264), 32);
        let mut pace = Pace::new(None, 16, 100, 32).unwrap();
        pace.observe(1, 0, 0.0);
        assert_eq!(pace.prompt_rows(4, true, 264), 260);
    }

    /// A pace that has measured steps with these numbers of rows.
    fn measured(known: &[(usize, f64)]) -> Pace {
        let mut pace = Pace::new(None, 16, 100, 64).unwrap();
        for &(rows, seconds) in known.iter().chain(known) {
            pace.observe(0, rows, seconds);
        }
        pace
    }

    #[test]
    fn a_draft_model_must_be_small_where_rows_cost() {
        // One more row costs little beside one row, and much beside 8.
        let model = measured(&[(1, 66.0), (4, 70.0), (8, 110.0), (16, 180.0)]);
        let small = measured(&[(1, 10.0), (8, 17.0)]);
        let as_large = measured(&[(1, 66.0), (8, 110.0)]);
        assert_eq!(model.gain(&small, (0.0, 0.8), 1), Gain::Yes);
        assert_eq!(model.gain(&small, (0.0, 0.8), 8), Gain::No);
        for sequences in [1, 8] {
            assert_eq!(model.gain(&as_large, (0.0, 0.8), sequences), Gain::No);
        }
        // If reading the weights takes the whole step, drafts may pay for many sequences.
        let reading = measured(&[(8, 100.0), (16, 102.0), (64, 110.0)]);
        assert_eq!(
            reading.gain(&measured(&[(8, 5.0)]), (0.0, 0.8), 8),
            Gain::Yes
        );
    }

    #[test]
    fn what_is_seldom_right_is_for_one_sequence() {
        let model = measured(&[(1, 66.0), (4, 70.0), (8, 74.0), (32, 100.0)]);
        let small = measured(&[(1, 7.0), (8, 8.0)]);
        for sequences in [1, 8] {
            let gain = |right| model.gain(&small, (0.0, right), sequences);
            assert_eq!([0.9, 0.7].map(gain), [Gain::Yes; 2]);
            assert_eq!([0.1, 0.0].map(gain), [Gain::Doubtful; 2]);
        }
        let slow = measured(&[(1, 66.0)]);
        assert_eq!(model.gain(&slow, (0.0, 0.0), 8), Gain::No);
    }

    #[test]
    fn what_is_not_known_is_tried_unless_it_cannot_pay() {
        let (small, unknown) = (measured(&[(1, 10.0)]), measured(&[]));
        // No drafts are asked for before the model's own steps are known.
        assert_eq!(unknown.gain(&unknown, (0.0, 0.8), 8), Gain::No);
        assert_eq!(
            measured(&[(9, 110.0)]).gain(&small, (0.0, 0.8), 8),
            Gain::No
        );
        // One of the two is unknown: what a draft costs, or what one more row costs.
        let model = measured(&[(8, 110.0), (12, 114.0)]);
        assert_eq!(model.gain(&unknown, (0.1, 0.8), 8), Gain::Untried);
        assert_eq!(model.gain(&small, (0.1, 0.8), 8), Gain::Yes);
        // However steeply the time grew before, rows that were never measured may cost nothing.
        let steep = measured(&[(1, 66.0), (7, 60.0), (8, 110.0)]);
        assert_eq!(steep.gain(&small, (0.1, 0.8), 8), Gain::Untried);
        // Steps of one sequence say little about steps of 8.
        assert_eq!(
            measured(&[(1, 66.0), (5, 70.0)]).gain(&small, (0.1, 0.8), 8),
            Gain::Untried
        );
        // A model that is too large to pay is never tried.
        assert_eq!(
            measured(&[(8, 110.0)]).gain(&unknown, (0.7, 0.8), 8),
            Gain::No
        );
        assert_eq!(
            measured(&[(1, 66.0)]).gain(&unknown, (1.0, 0.8), 1),
            Gain::No
        );
        // The measured time counts, not the guess.
        assert_eq!(model.gain(&small, (1.0, 0.8), 8), Gain::Yes);
    }

    #[test]
    fn a_fixed_chunk_is_only_bounded_by_the_room() {
        let mut pace = Pace::new(Some(7), 16, 100, 32).unwrap();
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(3, true, 100), 7);
        assert_eq!(pace.prompt_rows(3, true, 8), 5);
    }

    #[test]
    fn steps_are_measured_by_their_rows() {
        let mut pace = Pace::new(None, 16, 100, 16).unwrap();
        assert!(pace.decode_seconds(4) < 1.1 * pace.decode_seconds(1));
        let mut twice = |rows, seconds| {
            pace.observe(0, rows, seconds);
            pace.observe(0, rows, seconds);
        };
        twice(1, 0.1);
        twice(4, 0.13);
        let near = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
        near(pace.decode_seconds(1), 0.1);
        near(pace.decode_seconds(3), 0.12);
        near(pace.decode_seconds(8), 0.17);
        // The first step of its kind does not count, nor does one that was held up for long.
        pace.observe(0, 8, 9.0);
        near(pace.decode_seconds(8), 0.17);
        pace.observe(0, 8, 0.2);
        near(pace.decode_seconds(8), 0.2);
        pace.observe(0, 8, 100.0);
        near(pace.decode_seconds(8), 0.25);
        // Steps with prompt rows say nothing.
        pace.observe(5, 1, 3.0);
        near(pace.decode_seconds(1), 0.1);
        // A number of rows that was not seen for long is estimated from those that were.
        for _ in 0..=FORGOTTEN {
            pace.observe(0, 1, 0.2);
        }
        near(pace.decode_seconds(1), 0.2);
        assert!(pace.decode_seconds(8) < 0.24);
        // More rows than there is a place for.
        pace.observe(0, 17, 1.0);
        assert!(pace.decode_seconds(17) > 0.2);
    }
}
