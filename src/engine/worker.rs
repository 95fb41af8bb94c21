//! The engine thread: admit, plan, run, absorb.

use super::lock::lock;
use super::plan::Plan;
use super::scheduler::Scheduler;
use super::shared::Shared;
use crate::backend::Run;
use crate::error::panic_text;
use crate::log::Level;
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Serves until the handle is dropped. A panic or an error of the model poisons the handle, because
/// the state of the model and its cache is unknown afterwards.
pub(super) fn work(
    mut run: Box<dyn Run>,
    mut scheduler: Scheduler,
    plans: [Plan; 2],
    shared: &Shared,
) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        serve(&mut *run, &mut scheduler, plans, shared)
    }));
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(payload) => Some(Error::Internal(format!(
            "a panic: {}",
            panic_text(&*payload)
        ))),
    };
    if let Some(error) = failure {
        shared
            .log
            .write(Level::Error, || format!("the engine thread ends: {error}"));
        shared.poison(&error.to_string(), &error);
    }
    {
        let mut totals = lock(&shared.totals);
        (totals.running, totals.parked, totals.pages_used) = (0, 0, 0);
    }
    // A model that panicked once may do so again when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        drop(shared.abandon());
        drop(scheduler);
        drop(run);
    }));
}

fn serve(
    run: &mut dyn Run,
    scheduler: &mut Scheduler,
    [mut now, mut next]: [Plan; 2],
    shared: &Shared,
) -> Result<()> {
    let vocab_size = run.limits().vocab_size;
    let beats = run.beats();
    let mut idle = true;
    // The time when `now` was submitted, or when the step before it ended, whichever is later.
    let mut start = Instant::now();
    loop {
        let patience = match idle {
            true => sooner(scheduler.patience(), beats),
            false => Some(Duration::ZERO),
        };
        let Some(new) = shared.receive(patience) else {
            break;
        };
        if beats.is_some() {
            run.beat()?;
        }
        scheduler.admit(new, run)?;
        if now.is_empty() {
            scheduler.plan(&mut now, run)?;
            idle = now.is_empty() && !scheduler.catches_up();
            if now.is_empty() {
                continue;
            }
            start = Instant::now();
            run.submit(&now.step, &now.choices)?;
        }
        if run.can_follow() {
            scheduler.plan_ahead(&now, &mut next);
        }
        if !next.is_empty() {
            run.submit(&next.step, &next.choices)?;
        }
        if run.awaits_masks() {
            scheduler.collect_masks(&mut now);
            run.give_masks(&now.choices.masks);
        }
        let answer = run.collect()?;
        let end = Instant::now();
        let seconds = (end - std::mem::replace(&mut start, end)).as_secs_f64();
        let rows = now.step.wanted.len();
        if let Err(words) = answer.complete(rows, vocab_size) {
            return Err(Error::Internal(format!(
                "the model's answer for {rows} rows of {vocab_size} logits: {words}"
            )));
        }
        scheduler.collect_masks(&mut now);
        scheduler.absorb(&now, answer, seconds);
        scheduler.copy_pages(run)?;
        // If a step follows this one, it is under way.
        std::mem::swap(&mut now, &mut next);
        next.clear();
    }
    shared.verdict()?;
    scheduler.cancel_all();
    Ok(())
}

/// The shorter of two times; `None` is for ever.
fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
