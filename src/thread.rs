//! Threads of ours: the host's signal handlers never run on them.
#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Run `spawn` with all signals blocked, so that the thread it starts inherits that and the host's
/// handlers never run on it. Signals that a faulting instruction raises stay as they are: blocking
/// those would only take the host's crash handler out of the way.
#[cfg(unix)]
pub(crate) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    const FAULTS: [i32; 6] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ];
    // SAFETY: a sigset_t is plain data that sigfillset initialises.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut before = all;
    // SAFETY: both sets are ours and live through the calls.
    let blocked = unsafe {
        libc::sigfillset(&mut all);
        for signal in FAULTS {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) == 0
    };
    let result = spawn();
    if blocked {
        // SAFETY: `before` was filled by the successful call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    result
}

#[cfg(not(unix))]
pub(crate) fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    spawn()
}

/// Starts a thread that no signals reach, and waits until it runs. By then it has allocated what
/// the system's libraries keep for each thread, which ends the process where there is no memory for
/// it: that may happen in the call that starts the thread, and not in one that comes later.
pub(crate) fn start<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // Both have a share of it, and the thread gives its own back first of all. (`get_mut` reads
    // that with an order that ThreadSanitizer understands, unlike the fences of `Arc::drop`.)
    let mut token = Arc::new(());
    let shared = token.clone();
    let thread = without_signals(|| {
        builder.spawn(move || {
            drop(shared);
            run()
        })
    })?;
    while Arc::get_mut(&mut token).is_none() {
        std::thread::yield_now();
    }
    Ok(thread)
}
