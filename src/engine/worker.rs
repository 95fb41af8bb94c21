//! The engine thread: admit, plan, run, absorb.

use super::scheduler::Scheduler;
use super::shared::{Shared, lock};
use crate::backend::{Answer, Run, Step};
use crate::error::panic_text;
use crate::log::Level;
use crate::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Serve until the handle goes. A panic or an error of the model poisons the handle: what the model
/// and its cache hold afterwards is unknown.
pub(super) fn work(mut run: Box<dyn Run>, mut scheduler: Scheduler, shared: &Shared) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        serve(&mut *run, &mut scheduler, shared)
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
        (totals.running, totals.pages_used) = (0, 0);
    }
    // A model that panicked once may do so again when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        drop(shared.abandon());
        drop(scheduler);
        drop(run);
    }));
}

fn serve(run: &mut dyn Run, scheduler: &mut Scheduler, shared: &Shared) -> Result<()> {
    let vocab_size = run.limits().vocab_size;
    let mut step = Step::default();
    let mut idle = true;
    while let Some(new) = shared.receive(idle, !scheduler.is_empty()) {
        scheduler.admit(new);
        scheduler.plan(&mut step);
        idle = step.tokens.is_empty();
        if idle {
            continue;
        }
        let start = Instant::now();
        let answer = run.run(&step)?;
        let seconds = start.elapsed().as_secs_f64();
        let rows = step.wanted.len();
        let (got, what, want) = match answer {
            Answer::Logits(logits) => (logits.len(), "logits", rows * vocab_size),
            Answer::Picks { picks, .. } => (picks.len(), "tokens", rows),
        };
        if got != want {
            return Err(Error::Internal(format!(
                "the model gave {got} {what} for {rows} rows of {vocab_size}"
            )));
        }
        scheduler.absorb(&step, answer, seconds);
    }
    scheduler.cancel_all();
    Ok(())
}
