//! What a rank other than 0 does once the model is loaded: it does what rank 0 tells it, until rank
//! 0 says farewell.

use super::Shared;
use super::adapters::{Adapters, Load};
use super::message::{Kind, Message};
use crate::backend::{Choices, Run, Step};
use crate::{Error, Result, reserve};
use std::time::Duration;

/// How long a rank listens before it looks whether an adapter is loaded.
const LOOK: Duration = Duration::from_millis(2);

/// Computes this rank's share of every step, and loads adapters with `load`. `meanwhile` is called
/// now and then.
///
/// # Errors
/// [`Error::Peer`] if another rank failed or was silent for too long; a failure of this rank, of
/// which rank 0 was told; [`Error::Cancelled`].
pub fn serve(
    run: &mut dyn Run,
    shared: &Shared,
    load: &Load<'_>,
    meanwhile: &mut dyn FnMut(),
) -> Result<()> {
    // Leaving the scope waits for adapters that are still loading.
    std::thread::scope(|scope| listen(run, shared, Adapters::new(scope, load), meanwhile))
}

fn listen(
    run: &mut dyn Run,
    shared: &Shared,
    mut adapters: Adapters<'_, '_>,
    meanwhile: &mut dyn FnMut(),
) -> Result<()> {
    let mut step = Step::default();
    let mut page = reserve::filled("a page", run.page_bytes(), 0)?;
    loop {
        let message = {
            let mut link = shared.link();
            let patience = match adapters.are_loading() {
                true => LOOK,
                false => link.patience(),
            };
            link.hear(0, patience)?
        };
        meanwhile();
        // The host's `meanwhile` may have forked. The child does not have the threads that would
        // compute a step.
        shared.link().check()?;
        adapters.answer(shared)?;
        let Some(message) = message else {
            continue;
        };
        if message.kind == Kind::Bye {
            shared.link().close();
            return Ok(());
        }
        let done = perform(run, shared, &message, &mut adapters, &mut step, &mut page);
        // If another rank has failed, the link has ended already.
        done.inspect_err(|error| shared.link().fail(error))?;
    }
}

fn perform(
    run: &mut dyn Run,
    shared: &Shared,
    message: &Message,
    adapters: &mut Adapters<'_, '_>,
    step: &mut Step,
    page: &mut [u8],
) -> Result<()> {
    let limits = run.limits();
    let is_page = |n: u32| (n as usize) < limits.n_pages;
    let mut reader = message.reader();
    match message.kind {
        Kind::Step => {
            reader.step(&limits, &|id| adapters.get(id), step)?;
            run.submit(step, Choices::NONE)?;
            run.collect()?;
            // Drop the step's references, so that an adapter can be freed as soon as rank 0 says
            // so.
            step.adapters.clear();
            Ok(())
        }
        Kind::Adapt => adapters.begin(&mut reader),
        Kind::Forget => adapters.forget(&mut reader),
        Kind::Copy => {
            let from = reader.list("pages", limits.n_pages, &is_page)?;
            let to = reader.list("pages", limits.n_pages, &is_page)?;
            if from.len() != to.len() {
                let (from, to) = (from.len(), to.len());
                return Err(Error::Peer(format!("a copy of {from} pages to {to}")));
            }
            let mut pairs = reserve::room("pages to copy", from.len())?;
            pairs.extend(from.zip(to));
            run.copy_pages(&pairs)
        }
        Kind::Save => {
            for number in reader.list("pages", limits.n_pages, &is_page)? {
                run.save_pages(&[number], page)?;
                shared.link().tell(0, Kind::Page, |m| m.raw(page))?;
            }
            Ok(())
        }
        Kind::Load => {
            for number in reader.list("pages", limits.n_pages, &is_page)? {
                let from = shared.link().await_kind(0, Kind::Page, &mut |_| Ok(()))?;
                if from.body.len() != page.len() {
                    return Err(shared.link().unexpected(0, &from, Kind::Page));
                }
                run.load_pages(&[number], &from.body)?;
            }
            Ok(())
        }
        Kind::Ping => shared.link().pong(),
        _ => Err(shared.link().unexpected(0, message, Kind::Step)),
    }
}
