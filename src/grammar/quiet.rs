//! Panics of the parser are caught and become errors, so the process's panic hook must not print
//! them.
//!
//! If the host is a Rust program, the hook belongs to the host. While somebody works with a
//! grammar, our hook is around the host's hook. It passes on every panic that is not the parser's.
//! When the last user ends, the host's hook is put back. If the host sets another hook meanwhile,
//! that hook stays.
//!
//! A forked child starts again: if our hook was in place, the child treats it as a hook that the
//! host has set. Two locks may still be held in the child: the standard library's own lock of the
//! hook, and the parser's lock, which it takes when it is first used. Each is held for a
//! microsecond, when the first user begins or the last one ends.

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

/// The state that all [`Quiet`]s share.
#[derive(Default)]
struct Place {
    holders: usize,
    before: Option<Arc<Hook>>,
    /// The address of our hook, by which we recognise it.
    address: usize,
    /// Whether the parser has had its chance to install a hook.
    parsers_was_there: bool,
}

static PLACE: PerProcess<Mutex<Place>> = PerProcess::new();

fn address(hook: &Hook) -> usize {
    (&raw const **hook).cast::<()>() as usize
}

/// Keeps our hook in place, in the process in which this value was made.
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
        // If this thread panics, our hook stays until the next `Quiet` is dropped.
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

/// Makes the parser install its panic hook now, and puts back the hook that was there before. The
/// parser installs its hook when it first catches a panic, and does not install it a second time.
pub(super) fn without_parsers_hook() {
    let mut place = lock(PLACE.get());
    if !std::mem::replace(&mut place.parsers_was_there, true) {
        let hook = take_hook();
        let _installs = llguidance::panic_utils::catch_unwind(|| Ok(()));
        set_hook(hook);
    }
}

/// Runs `work`, which calls the parser. Its panics are not printed; only the caller that catches
/// them knows of them.
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
