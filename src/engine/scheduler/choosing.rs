//! Tokens that are drawn side by side, by the threads that have computed the step. With 32 streams
//! of a vocabulary of 49,152, drawing one after the other took 13 of 54 ms, while these threads had
//! nothing to do (benches/record/2026-11-28-jobs-of-streams.txt).
//!
//! A row that may turn out to be in vain (behind a draft), or of which somebody is asked, or that
//! several sequences draw from, is left to [`Scheduler::absorb`](super::Scheduler::absorb).

use crate::backend::choice::{Choice, Search};
use crate::backend::{Answer, RowKind};
use crate::engine::lock::lock;
use crate::engine::plan::Plan;
use crate::engine::sampler::{Sampler, Score};
use crate::engine::sequence::Sequence;
use crate::{Result, Token, reserve};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most threads that draw. Each has a sampler, which takes 68 bytes for each token of the
/// vocabulary: 140 MB on 16 threads with the 128,256 tokens of Llama 3.
const MOST_THREADS: usize = 16;

/// What was drawn from a row.
#[derive(Debug)]
pub(super) struct Drawn {
    /// What [`Sampler::choose`] returned.
    pub got: Result<Option<(Token, Score)>>,
    /// Whether a token was possible before edits and mask. Valid only if none was drawn.
    pub possible: bool,
}

/// Draws the rows of a step side by side.
#[derive(Debug)]
pub(super) struct Choosing {
    /// One for each thread.
    samplers: Vec<Mutex<Sampler>>,
    /// The wanted rows of the step that are drawn so.
    rows: Vec<usize>,
    /// By wanted row.
    drawn: Vec<Mutex<Option<Drawn>>>,
}

impl Choosing {
    /// For steps of up to `max_wanted` wanted rows, `n_tokens` of whose `vocab_size` logits are
    /// tokens, on so many threads.
    pub fn new(
        n_threads: usize,
        max_wanted: usize,
        n_tokens: usize,
        vocab_size: usize,
    ) -> Result<Self> {
        let n = match n_threads.min(MOST_THREADS).min(max_wanted) {
            1 => 0,
            n => n,
        };
        let mut samplers = reserve::room("samplers", n)?;
        for _ in 0..n {
            let mut sampler = Sampler::new(n_tokens);
            sampler.reserve(vocab_size)?;
            samplers.push(Mutex::new(sampler));
        }
        let most = if n == 0 { 0 } else { max_wanted };
        let mut drawn = reserve::room("rows drawn side by side", most)?;
        drawn.resize_with(most, || Mutex::new(None));
        Ok(Self {
            samplers,
            rows: reserve::room("rows drawn side by side", most)?,
            drawn,
        })
    }

    /// Draws from the rows of `answer` that these sequences are certain to take.
    pub fn draw(
        &mut self,
        plan: &Plan,
        answer: Answer<'_>,
        running: &[Sequence],
        vocab_size: usize,
    ) {
        let Self {
            samplers,
            rows,
            drawn,
        } = self;
        // Nothing that was drawn outlives its step, whatever became of the sequence.
        for row in rows.drain(..) {
            drawn[row]
                .get_mut()
                .unwrap_or_else(|e| e.into_inner())
                .take();
        }
        let Answer::Beside { logits, threads } = answer else {
            return;
        };
        if samplers.is_empty() {
            return;
        }
        let Plan { step, choices, .. } = plan;
        let mut wanted = 0;
        for (span, id) in step.spans.iter().zip(&plan.whose) {
            let first = wanted;
            wanted += step.wanted[first..].partition_point(|row| (*row as usize) < span.rows.end);
            let of_span = match span.kind {
                RowKind::Prefill => first..wanted,
                RowKind::Decode => first..wanted.min(first + 1),
            };
            let Some(sequence) = running.iter().find(|s| s.id == *id) else {
                continue;
            };
            let is_alone = !running.iter().any(|s| s.first == Some(*id));
            if is_alone && sequence.end.is_none() && sequence.inquiry.is_none() {
                rows.extend(of_span.filter(|row| is_drawn(&choices.rows[*row])));
            }
        }
        if rows.len() < 2 {
            return rows.clear();
        }
        let (next, rows) = (AtomicUsize::new(0), &*rows);
        threads.each(samplers.len().min(rows.len()), &|task| {
            let mut sampler = lock(&samplers[task]);
            while let Some(&row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                sampler.load(&logits[row * vocab_size..][..vocab_size]);
                let got = sampler.choose(&choices.rows[row], choices);
                let possible = matches!(got, Ok(None)) && sampler.has_possible();
                *lock(&drawn[row]) = Some(Drawn { got, possible });
            }
        });
    }

    /// What was drawn from a row, once.
    pub fn take(&mut self, row: usize) -> Option<Drawn> {
        let drawn = self.drawn.get_mut(row)?;
        drawn.get_mut().unwrap_or_else(|e| e.into_inner()).take()
    }
}

/// Whether a row's own numbers are all that its token depends on, and whether there is anything to
/// compute.
fn is_drawn(choice: &Choice) -> bool {
    choice.search == Search::Off && !choice.to_host && (choice.given.is_none() || choice.scored())
}
