//! What a step costs outside the backend: a part of benches/decoding.rs.

use super::{Bench, Letters, PAGE, SLOTS, median};
use crate::limits::processor_seconds;
use crate::strategies::{generate_from, prompt};
use llamabi::backend::{Answer, Choices, Limits, Pick, Run, Step};
use llamabi::engine::GenerateOptions;
use llamabi::{Result, Token};
use std::sync::Arc;

const LARGE: usize = 128_256;
const STEPS: usize = 4000;

/// A model that has its answer at once.
struct AtOnce {
    limits: Limits,
    /// Of every row.
    logits: Vec<f32>,
    picks: Vec<Pick>,
    /// Wanted rows of the step.
    n: usize,
}

impl AtOnce {
    fn new(slots: usize, gives_logits: bool) -> Self {
        let token: Token = 77;
        let mut row = vec![0.0; LARGE];
        row[token as usize] = 1.0;
        let pick = Pick {
            token: Some(token),
            logit: 1.0,
            max: 1.0,
            total: 1,
            ..Pick::default()
        };
        let positions = STEPS + 2 * PAGE;
        Self {
            limits: Limits {
                page_size: PAGE,
                n_pages: slots * positions.div_ceil(PAGE),
                max_positions: positions,
                max_rows: 256 + slots,
                max_wanted: slots + 1,
                vocab_size: LARGE,
            },
            logits: if gives_logits {
                row.repeat(slots + 1)
            } else {
                Vec::new()
            },
            picks: vec![pick; slots + 1],
            n: 0,
        }
    }
}

impl Run for AtOnce {
    fn submit(&mut self, step: &Step, _: &Choices) -> Result<()> {
        self.n = step.wanted.len();
        Ok(())
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        Ok(match self.logits.get(..self.n * LARGE) {
            Some(logits) => Answer::Logits(logits),
            None => Answer::Picks {
                picks: &self.picks[..self.n],
                top: &[],
                logits: &[],
            },
        })
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<()> {
        Ok(())
    }
    fn page_bytes(&self) -> usize {
        1
    }
    fn save_pages(&mut self, _: &[u32], _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn load_pages(&mut self, _: &[u32], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn limits(&self) -> Limits {
        self.limits.clone()
    }
}

/// Plain greedy decoding of a model that takes no time, by the time of a step, the reader's
/// included.
pub fn steps(bench: &mut Bench) {
    let options = GenerateOptions {
        temperature: 0.0,
        ignore_eos: true,
        max_gen_len: Some(STEPS),
        ..GenerateOptions::default()
    };
    for (gives_logits, from) in [(false, "tokens"), (true, "logits of 128,256 ids")] {
        for batch in [1, 8] {
            let run = Box::new(AtOnce::new(SLOTS, gives_logits));
            let engine = Bench::engine_of(run, (None, 0.0), Arc::new(Letters(LARGE)));
            let mut times = Vec::new();
            for _ in 0..bench.rounds {
                let before = processor_seconds();
                let prompts = vec![prompt(16, 1); batch];
                let done = generate_from(&engine, 1, prompts, batch, &options);
                assert!(done.tokens.iter().all(|tokens| tokens.len() == STEPS));
                times.push((processor_seconds() - before) * 1e6 / STEPS as f64);
            }
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let middle = median(&times);
            let case = format!("a step from {from}, batch {batch}");
            let said = format!("{middle:.2} us without the model, at least {least:.2}");
            let figures = [("us", middle), ("least_us", least)];
            bench.say(&case, &said, &figures);
        }
    }
}
