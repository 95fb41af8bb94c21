//! How many prompt rows a step may have, so that streams that run are not held up.

/// How long a step with running streams should take at most: ten tokens a second read fluently.
const TARGET_SECONDS: f64 = 0.1;
/// Prefill always goes on, however slow the machine.
const LEAST_ROWS: usize = 16;
/// Before anything was measured.
const FIRST_ROWS: usize = 64;

/// Running averages of measured steps.
#[derive(Debug)]
pub(super) struct Pace {
    fixed: Option<usize>,
    seconds_per_decode: Option<f64>,
    seconds_per_prompt_row: Option<f64>,
}

impl Pace {
    /// `fixed` rows, or as measured.
    pub fn new(fixed: Option<usize>) -> Self {
        Self {
            fixed,
            seconds_per_decode: None,
            seconds_per_prompt_row: None,
        }
    }

    /// Prompt rows of the next step, where `decodes` of `max_rows` rows are taken.
    pub fn prompt_rows(&self, decodes: usize, max_rows: usize) -> usize {
        let room = max_rows.saturating_sub(decodes);
        if let Some(rows) = self.fixed {
            return rows.min(room);
        }
        if decodes == 0 {
            return room;
        }
        let left = TARGET_SECONDS - self.seconds_per_decode.unwrap_or(0.0);
        let rows = self
            .seconds_per_prompt_row
            .map_or(FIRST_ROWS, |row| (left / row) as usize);
        rows.clamp(LEAST_ROWS.min(room), room)
    }

    /// A step took so long.
    pub fn observe(&mut self, prompt_rows: usize, decodes: usize, seconds: f64) {
        if prompt_rows == 0 {
            mix(&mut self.seconds_per_decode, seconds);
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
}

fn mix(average: &mut Option<f64>, value: f64) {
    *average = Some(average.map_or(value, |old| old + 0.25 * (value - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_beside_running_streams_aims_at_the_target() {
        let mut pace = Pace::new(None);
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
    fn the_bounds_hold_on_any_machine() {
        let mut pace = Pace::new(None);
        pace.observe(0, 1, 10.0);
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(4, 264), 16);
        assert_eq!(pace.prompt_rows(4, 10), 6);
        let mut pace = Pace::new(None);
        pace.observe(1, 0, 0.0);
        assert_eq!(pace.prompt_rows(4, 264), 260);
    }

    #[test]
    fn a_fixed_chunk_is_only_bounded_by_the_room() {
        let mut pace = Pace::new(Some(7));
        pace.observe(1, 1, 100.0);
        assert_eq!(pace.prompt_rows(3, 100), 7);
        assert_eq!(pace.prompt_rows(3, 8), 5);
    }
}
