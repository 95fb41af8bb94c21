//! Limits the number of prompt rows of a step, so that running streams are not held up, and knows
//! how long a step takes by its rows of decode, so that drafts are worth theirs.

use super::request::MAX_DRAFTS;
use crate::{Result, reserve};

/// Prompts get so much of the time that rows of decode take, even if these alone take longer than a
/// step should. With [`LEAST_ROWS`] alone, 32 streams would keep a prompt of 2,000 tokens waiting for
/// 125 steps.
const LEAST_SHARE: f64 = 0.5;
/// Prefill always goes on with at least this many rows, however slow the machine is.
const LEAST_ROWS: usize = 16;
/// The number of rows before anything has been measured.
const FIRST_ROWS: usize = 64;

/// What a row more costs where nothing is known of it, as a share of a step.
const ROW_SHARE: f64 = 0.02;
/// Drafts that are as good as [`LIKELY`] must make tokens this much faster, or none are asked for.
const WORTH_A_TRY: f64 = 1.1;
/// How often each draft of a good model is right, if those before it are. It was 1, and two models
/// of one size were tried against each other; presumably one step that something else held up made
/// that seem worth it. 0.8 is a choice: its effect on a full batch was not measured.
const LIKELY: f64 = 0.8;
/// What was measured so many steps ago is not known any more: sequences have become longer, and
/// the machine has other things to do.
const FORGOTTEN: u64 = 1000;

/// Running averages of measured steps.
#[derive(Debug)]
pub(super) struct Pace {
    fixed: Option<usize>,
    /// The longest time that a step with running streams should take.
    target_seconds: f64,
    seconds_per_decode: Option<f64>,
    seconds_per_prompt_row: Option<f64>,
    /// Steps without prompt rows, by their rows of decode.
    by_rows: Vec<Measured>,
    /// How many of them there were.
    steps: u64,
}

/// How long steps with so many rows of decode took.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    seconds: f64,
    /// How many there were, but for those that are forgotten.
    times: u32,
    /// [`Pace::steps`] at the last of them.
    last: u64,
}

impl Pace {
    /// Steps get `fixed` prompt rows, or so many that a step with running streams takes
    /// `max_step_ms` by measured times; and at most `most` rows of decode.
    pub fn new(fixed: Option<usize>, max_step_ms: u32, most: usize) -> Result<Self> {
        Ok(Self {
            fixed,
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

    /// The number of prompt rows of the next step, in which `decodes` of `max_rows` rows are taken.
    pub fn prompt_rows(&self, decodes: usize, max_rows: usize) -> usize {
        let room = max_rows.saturating_sub(decodes);
        if let Some(rows) = self.fixed {
            return rows.min(room);
        }
        if decodes == 0 {
            return room;
        }
        let decoding = self.seconds_per_decode.unwrap_or(0.0);
        let left = (self.target_seconds - decoding).max(LEAST_SHARE * decoding);
        let rows = self
            .seconds_per_prompt_row
            .map_or(FIRST_ROWS, |row| (left / row) as usize);
        rows.clamp(LEAST_ROWS.min(room), room)
    }

    /// Records the time that a step took. `decodes` are its rows of decode, drafts included.
    pub fn observe(&mut self, prompt_rows: usize, decodes: usize, seconds: f64) {
        if prompt_rows == 0 {
            mix(&mut self.seconds_per_decode, seconds);
            self.note(decodes, seconds);
        } else {
            // Decode rows read all weights. Beside prompt rows they add about the time of a step of
            // their own.
            let decode = if decodes > 0 {
                self.seconds_per_decode.unwrap_or(0.0)
            } else {
                0.0
            };
            let rest = (seconds - decode).max(0.0);
            mix(&mut self.seconds_per_prompt_row, rest / prompt_rows as f64);
        }
    }

    fn note(&mut self, rows: usize, seconds: f64) {
        self.steps += 1;
        let steps = self.steps;
        if let Some(at) = self.by_rows.get_mut(rows) {
            at.seconds = match at.times {
                _ if steps - at.last > FORGOTTEN => seconds,
                0 => seconds,
                // The first of its form may have had to be made ready.
                1 => at.seconds.min(seconds),
                // One that was held up says little.
                _ => at.seconds + 0.25 * (seconds.min(2.0 * at.seconds) - at.seconds),
            };
            at.times = match steps - at.last > FORGOTTEN {
                true => 1,
                false => at.times.saturating_add(1),
            };
            at.last = steps;
        }
    }

    /// Whether [`Pace::decode_seconds`] are seconds.
    pub fn knows_decodes(&self) -> bool {
        self.by_rows.iter().any(|at| at.times > 1)
    }

    /// Whether drafts of which each takes a step of `guesses` could pay for so many sequences, if
    /// they were those of a good model. Until both have been measured, they could: the two have no
    /// common unit before.
    pub fn could_gain(&self, guesses: &Pace, sequences: usize) -> bool {
        let n = sequences.max(1);
        let drafting = guesses.decode_seconds(n);
        let rate = |k: usize| {
            let seconds = self.decode_seconds(n * (k + 1)) + k as f64 * drafting;
            let tokens: f64 = (0..=k as i32).map(|place| LIKELY.powi(place)).sum();
            tokens / seconds
        };
        let is_known = self.knows_decodes() && guesses.knows_decodes();
        !is_known || (1..=MAX_DRAFTS).any(|k| rate(k) > WORTH_A_TRY * rate(0))
    }

    /// About how long a step with so many rows of decode takes: as measured, or else in line with
    /// the measured ones around it; in some unit that is the same for all.
    pub fn decode_seconds(&self, rows: usize) -> f64 {
        let known = |rows: &usize| {
            let at = self.by_rows.get(*rows)?;
            let is_known = at.times > 1 && self.steps - at.last <= FORGOTTEN;
            is_known.then_some((*rows as f64, at.seconds))
        };
        if let Some((_, seconds)) = known(&rows) {
            return seconds;
        }
        let mut less = (0..rows).rev().filter_map(|rows| known(&rows));
        let more = (rows + 1..self.by_rows.len()).find_map(|rows| known(&rows));
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
        let mut pace = Pace::new(None, 100, 32).unwrap();
        assert_eq!(pace.prompt_rows(1, 264), 64);
        pace.observe(0, 1, 0.050);
        pace.observe(100, 0, 0.100);
        assert_eq!(pace.prompt_rows(1, 264), 50);
        assert_eq!(
            pace.prompt_rows(0, 264),
            264,
            "alone there is nobody to hold up"
        );
    }

    #[test]
    fn a_caller_may_set_the_target() {
        for (max_step_ms, rows) in [(60, 25), (80, 30), (100, 50), (1000, 260), (1, 25)] {
            let mut pace = Pace::new(None, max_step_ms, 32).unwrap();
            pace.observe(0, 1, 0.050);
            pace.observe(100, 0, 0.100);
            assert_eq!(pace.prompt_rows(4, 264), rows, "{max_step_ms}");
        }
    }

    #[test]
    fn the_bounds_hold_on_any_machine() {
        let mut pace = Pace::new(None, 100, 32).unwrap();
        pace.observe(0, 1, 10.0);
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(4, 264), 16);
        assert_eq!(pace.prompt_rows(4, 10), 6);
        let mut pace = Pace::new(None, 100, 32).unwrap();
        pace.observe(1, 0, 0.0);
        assert_eq!(pace.prompt_rows(4, 264), 260);
    }

    #[test]
    fn a_draft_model_must_be_small_where_rows_cost() {
        let pace = |known: &[(usize, f64)]| {
            let mut pace = Pace::new(None, 100, 64).unwrap();
            for &(rows, seconds) in known.iter().chain(known) {
                pace.observe(0, rows, seconds);
            }
            pace
        };
        // A row more costs little beside one, and much beside 8.
        let model = pace(&[(1, 66.0), (4, 70.0), (8, 110.0), (16, 180.0)]);
        let small = pace(&[(1, 10.0), (8, 17.0)]);
        let as_large = pace(&[(1, 66.0), (8, 110.0)]);
        assert!(model.could_gain(&small, 1));
        assert!(!model.could_gain(&small, 8));
        assert!(!model.could_gain(&as_large, 1) && !model.could_gain(&as_large, 8));
        // Of which nothing is known.
        assert!(model.could_gain(&pace(&[]), 8));
        // Where the whole step is reading weights, it may pay for many.
        let reading = pace(&[(8, 100.0), (16, 102.0), (64, 110.0)]);
        assert!(reading.could_gain(&pace(&[(8, 5.0)]), 8));
    }

    #[test]
    fn a_fixed_chunk_is_only_bounded_by_the_room() {
        let mut pace = Pace::new(Some(7), 100, 32).unwrap();
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(3, 100), 7);
        assert_eq!(pace.prompt_rows(3, 8), 5);
    }

    #[test]
    fn steps_are_measured_by_their_rows() {
        let mut pace = Pace::new(None, 100, 16).unwrap();
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
        // The first of its kind does not count, nor one that was held up for long.
        pace.observe(0, 8, 9.0);
        near(pace.decode_seconds(8), 0.17);
        pace.observe(0, 8, 0.2);
        near(pace.decode_seconds(8), 0.2);
        pace.observe(0, 8, 100.0);
        near(pace.decode_seconds(8), 0.25);
        // Steps with prompts tell nothing.
        pace.observe(5, 1, 3.0);
        near(pace.decode_seconds(1), 0.1);
        // What was not seen for long is in line with what was.
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
