//! Whether this thread is inside one of the host's callbacks.

use super::failure::{Failure, Outcome};
use std::cell::Cell;

thread_local! {
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// Lives while one of the host's callbacks runs on this thread.
pub(super) struct InCallback(());

impl InCallback {
    pub fn enter() -> Self {
        CALLBACKS.with(|n| n.set(n.get() + 1));
        InCallback(())
    }

    /// Whether this thread is inside a callback.
    pub fn now() -> bool {
        CALLBACKS.with(|n| n.get() > 0)
    }

    /// Refuse a function that may wait: what it would wait for may be what the callback holds up.
    pub fn refuse(function: &str) -> Outcome<()> {
        if Self::now() {
            return Err(Failure::invalid(format!(
                "{function} was called from inside a callback, where only llama_cancel_trigger \
                 and functions that take a const llama_t * may be called"
            )));
        }
        Ok(())
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        CALLBACKS.with(|n| n.set(n.get() - 1));
    }
}
