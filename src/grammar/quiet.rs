//! Panics of the parser are answers: they are caught and become errors, so the process's hook for
//! panics is not to print them.
//!
//! The hook is the host's where the host is a Rust program. Ours goes around it while somebody
//! works with a grammar, and hands on every panic that is not the parser's; the last one puts back
//! what was there. A hook that the host sets meanwhile stays.
//!
//! A forked child begins anew: ours, if it was in place, is to the child one that the host has set.
//! What may still be held in it is the standard library's own lock of the hook, and the parser's
//! when it is first used, each for a microsecond, where the first comes or the last goes.

use super::lock;
use crate::per_process::PerProcess;
use crate::process::Process;
use std::cell::Cell;
use std::panic::{PanicHookInfo, set_hook, take_hook};
use std::sync::{Arc, Mutex};
use std::thread::panicking;

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

thread_local! {
    /// How many calls deep this thread is in the parser.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// What [`Quiet`]s keep in place together.
#[derive(Default)]
struct Place {
    holders: usize,
    before: Option<Arc<Hook>>,
    /// Where our hook lies, by which it is known again.
    address: usize,
    /// Whether the parser has had its chance to install a hook.
    parsers_was_there: bool,
}

static PLACE: PerProcess<Mutex<Place>> = PerProcess::new();

fn address(hook: &Hook) -> usize {
    (&raw const **hook).cast::<()>() as usize
}

/// Keeps our hook in place, in the process that it was made in.
pub(super) struct Quiet(Process);

impl Quiet {
    pub fn new() -> Self {
        let mut place = lock(PLACE.get());
        place.holders += 1;
        // A thread that panics cannot change the hook.
        if place.before.is_none() && !panicking() {
            let before = Arc::new(take_hook());
            let theirs = before.clone();
            let ours: Hook = Box::new(move |info| {
                if DEPTH.get() == 0 {
                    theirs(info);
                }
            });
            place.address = address(&ours);
            place.before = Some(before);
            set_hook(ours);
        }
        Self(Process::current())
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if !self.0.is_current() {
            return;
        }
        let mut place = lock(PLACE.get());
        place.holders -= 1;
        // Ours stays behind where this thread panics, until the next one goes.
        if place.holders > 0 || panicking() {
            return;
        }
        let Some(before) = place.before.take() else {
            return;
        };
        let there = take_hook();
        if address(&there) != place.address {
            return set_hook(there);
        }
        drop(there);
        if let Some(before) = Arc::into_inner(before) {
            set_hook(before);
        }
    }
}

/// The parser installs a hook for panics when it first catches one. What was there before is put
/// back; the parser does not install it a second time.
pub(super) fn without_parsers_hook() {
    let mut place = lock(PLACE.get());
    if !std::mem::replace(&mut place.parsers_was_there, true) {
        let hook = take_hook();
        let _installs = llguidance::panic_utils::catch_unwind(|| Ok(()));
        set_hook(hook);
    }
}

/// Do `work` of the parser, of whose panics nobody is told but who catches them.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    struct Deeper;
    impl Drop for Deeper {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _deeper = Deeper;
    work()
}
