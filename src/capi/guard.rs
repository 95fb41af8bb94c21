//! What surrounds every export: panics stop here, `llama_error` is written, and log lines are
//! delivered.
#![allow(unsafe_code)]

use super::failure::{Outcome, status_text};
use super::layout::MAX_STRUCT_SIZE;
use super::object::Handle;
use super::table;
use super::types::*;
use crate::Error;
use crate::error::panic_text;
use crate::process::Process;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Wraps the whole body of an export. A test checks that every export has a guard.
///
/// Functions that return a status write `guard!(err, |scope| { ... Ok(LLAMA_OK) })`. The others
/// write `guard!(else FALLBACK, { ... })` and return FALLBACK after a panic.
macro_rules! guard {
    (else $fallback:expr, $body:block) => {
        $crate::capi::guard::value($fallback, || $body)
    };
    ($err:expr, |$scope:ident| $body:block) => {
        $crate::capi::guard::status($err, |$scope| $body)
    };
    ($err:expr, clears $out:expr, |$scope:ident| $body:block) => {{
        // SAFETY: by the contract of the export, this is NULL or writable.
        unsafe { $crate::capi::guard::clear($out) };
        $crate::capi::guard::status($err, |$scope| $body)
    }};
}

/// What one call holds while it runs. A panic in the call poisons the handle that it works with.
pub(super) struct Scope {
    handle: Option<Arc<Handle>>,
    process: Process,
}

impl Scope {
    fn new() -> Self {
        Scope {
            handle: None,
            process: Process::current(),
        }
    }

    /// Fails if this is no longer the process that the call began in; to be asked after callbacks.
    /// The call must then end without an outcome, without a lock, and without waiting for a thread.
    pub fn check_process(&self) -> Outcome<()> {
        match self.process.is_current() {
            true => Ok(()),
            false => Err(Error::Forked { what: "this call" }.into()),
        }
    }

    /// Looks up the live handle behind `l` and keeps it alive until the call returns.
    pub fn handle(&mut self, l: *const llama_t) -> Outcome<&Arc<Handle>> {
        let handle = table::get::<Handle>("l", l.addr())?;
        Ok(self.handle.insert(handle))
    }

    /// Does the same for calls that reach the handle through another object.
    pub fn keep(&mut self, handle: Arc<Handle>) -> &Arc<Handle> {
        self.handle.insert(handle)
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// While this lives, a `pthread_cancel` of this thread waits. glibc cancels a thread by unwinding
/// its stack, which must not happen to Rust frames.
struct Uncancellable(c_int);

impl Uncancellable {
    pub fn enter() -> Self {
        const DISABLE: c_int = 1;
        let mut old = 0;
        // SAFETY: the state is a valid one, and `old` has room for the previous one.
        unsafe { pthread_setcancelstate(DISABLE, &mut old) };
        Uncancellable(old)
    }
}

impl Drop for Uncancellable {
    fn drop(&mut self) {
        let mut disabled = 0;
        // SAFETY: this is the state that was in force before.
        unsafe { pthread_setcancelstate(self.0, &mut disabled) };
    }
}

/// Sets a caller's pointer to NULL before the body runs: `err` may be wrong, and then no body runs.
///
/// # Safety
/// `out` is NULL or writable, if it is aligned.
pub(super) unsafe fn clear<T>(out: *mut *mut T) {
    if !out.is_null() && out.is_aligned() {
        // SAFETY: by this function's contract.
        unsafe { out.write(std::ptr::null_mut()) };
    }
}

/// Runs the body of an export that returns a status.
pub(super) fn status(
    err: *mut llama_error,
    body: impl FnOnce(&mut Scope) -> Outcome<llama_status>,
) -> llama_status {
    if let Err(status) = check_error_struct(err) {
        return status;
    }
    let _uncancellable = Uncancellable::enter();
    let mut scope = Scope::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut scope))).unwrap_or_else(|panic| {
        let reason = panic_text(&*panic).to_owned();
        if let Some(handle) = &scope.handle
            && scope.process.is_current()
        {
            // A second panic would tell the caller nothing new.
            let _ = catch_unwind(AssertUnwindSafe(|| handle.llama.poison(&reason)));
        }
        Err(Error::Internal(reason).into())
    });
    // Dropping the scope drops the model if llama_free was called in the meantime.
    let left = catch_unwind(AssertUnwindSafe(move || {
        if let Some(handle) = &scope.handle
            && scope.process.is_current()
        {
            handle.deliver_log();
        }
        // The callback that takes log lines may have forked, too.
        let forked = scope.check_process().err();
        match forked {
            None => drop(scope),
            // Dropping a model waits for its threads, which this process does not have.
            Some(_) => std::mem::forget(scope),
        }
        forked
    }));
    let outcome = match left {
        Ok(None) => outcome,
        Ok(Some(forked)) => Err(forked),
        Err(panic) => Err(Error::Internal(panic_text(&*panic).into()).into()),
    };
    let (status, message) = match &outcome {
        Ok(LLAMA_OK) => (LLAMA_OK, ""),
        Ok(status) => (*status, status_text(*status).to_str().unwrap_or("")),
        Err(failure) => (failure.status, &*failure.message),
    };
    write_error(err, status, message);
    status
}

/// Runs the body of an export that cannot say why it fails.
pub(super) fn value<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    // llama_cancel_trigger comes here too, and signal handlers call it. That is allowed because
    // entering is one atomic exchange in glibc.
    let _uncancellable = Uncancellable::enter();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

fn check_error_struct(err: *mut llama_error) -> Result<(), llama_status> {
    if err.is_null() {
        return Ok(());
    }
    if !err.is_aligned() {
        return Err(LLAMA_E_INVALID_ARGUMENT);
    }
    // SAFETY: the pointer is not NULL and aligned, as just checked. By contract it points to a
    // llama_error whose struct_size is set.
    let size = unsafe { (*err).struct_size } as usize;
    if size > MAX_STRUCT_SIZE {
        Err(LLAMA_E_ABI)
    } else {
        Ok(())
    }
}

/// Writes as much as the caller's `struct_size` has room for. The text is cut between code points.
fn write_error(err: *mut llama_error, status: llama_status, message: &str) {
    const MESSAGE: usize = std::mem::offset_of!(llama_error, message);
    if err.is_null() {
        return;
    }
    // SAFETY: check_error_struct has found the pointer not NULL and aligned. Its struct_size says
    // how many bytes are the caller's.
    let size = unsafe { (*err).struct_size } as usize;
    if size <= MESSAGE {
        return;
    }
    let known = size.min(size_of::<llama_error>());
    let text = &message[..message.floor_char_boundary(known - MESSAGE - 1)];
    // SAFETY: the first `known` bytes from `err` on are the caller's and lie inside llama_error.
    // The text and its NUL end within them. The tail up to `size` is the caller's too.
    unsafe {
        (&raw mut (*err).status).write(status);
        let bytes = err.cast::<u8>();
        bytes
            .add(MESSAGE)
            .copy_from_nonoverlapping(text.as_ptr(), text.len());
        bytes.add(MESSAGE + text.len()).write(0);
        bytes.add(known).write_bytes(0, size - known);
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
