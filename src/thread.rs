//! Threads of ours, on which the host's signal handlers never run; stacks, the caller's and ours.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::panic::resume_unwind;
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

/// Does `work` on a thread with a stack of so many bytes, and waits for it. `Ok(Err(_))` is what it
/// panicked with.
///
/// # Errors
/// [`Error::Refused`] and the like if there is no thread to be had.
pub(crate) fn apart<T: Send>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> Result<std::thread::Result<T>> {
    std::thread::scope(|scope| {
        let builder = Builder::new().name(name.into()).stack_size(stack_bytes);
        let thread = without_signals(|| builder.spawn_scoped(scope, work));
        let thread = thread.map_err(|e| Error::thread("a thread with a stack of its own", &e))?;
        Ok(thread.join())
    })
}

/// Does `work` where so many bytes of stack are free: here, or else on a thread of its own.
///
/// A host's threads may have 64 KiB of stack, and coroutines less.
///
/// # Errors
/// As [`apart`].
pub(crate) fn with_stack<T: Send>(
    name: &str,
    stack_bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    if stack_left() >= stack_bytes {
        return Ok(work());
    }
    // The margin is for what the thread needs before it gets there.
    let done = apart(name, stack_bytes + (64 << 10), work)?;
    Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
}

/// How many bytes of this thread's stack lie below the caller's frame; 0 if that is on another
/// stack, as a coroutine's.
fn stack_left() -> usize {
    thread_local! {
        // For the first thread of a process, the system reads a file to tell it.
        static STACK: Cell<Option<Range<usize>>> = const { Cell::new(None) };
    }
    let stack = STACK.take().unwrap_or_else(own_stack);
    STACK.set(Some(stack.clone()));
    let here = (&raw const stack) as usize;
    if stack.contains(&here) {
        here - stack.start
    } else {
        0
    }
}

/// The addresses of this thread's stack, without the guard pages; none if the system does not tell.
#[cfg(unix)]
fn own_stack() -> Range<usize> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the call initialises the attributes if it returns 0.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) } != 0 {
        return 0..0;
    }
    let (mut lowest, mut size, mut guard) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: initialised by the successful call above, and destroyed once. The rest is ours.
    let failed = unsafe {
        let attributes = attributes.as_mut_ptr();
        let failed = libc::pthread_attr_getstack(attributes, &mut lowest, &mut size) != 0
            || libc::pthread_attr_getguardsize(attributes, &mut guard) != 0;
        libc::pthread_attr_destroy(attributes);
        failed
    };
    let lowest = lowest as usize;
    match failed {
        true => 0..0,
        false => lowest.saturating_add(guard)..lowest.saturating_add(size),
    }
}

#[cfg(not(unix))]
fn own_stack() -> Range<usize> {
    0..0
}
