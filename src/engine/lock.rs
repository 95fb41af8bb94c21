//! A lock that a panic does not take with it.

use std::sync::{Mutex, MutexGuard};

/// Locks, even if a holder of the lock has panicked. The guarded state is only changed by single
/// assignments, so it is consistent; and the panic itself makes every call fail.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
