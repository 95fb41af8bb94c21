//! The cancel flag: one atomic operation from any thread or signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A flag that stops whatever was given a clone of it. Looked at per tensor while loading, per
/// prefill chunk and per decode step while generating. It cannot be reset.
///
/// Flags of C callers live in cells that serve one flag after another (`capi/cancel.rs`), so a
/// flag is a cell together with the value that says "this flag, not triggered yet": a cell that
/// has moved on neither triggers nor is triggered by a flag from before.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    cell: Arc<AtomicU64>,
    armed: u64,
}

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The flag whose cell holds `armed` until it is triggered and `armed + 1` afterwards.
    pub(crate) fn in_cell(cell: Arc<AtomicU64>, armed: u64) -> Self {
        Self { cell, armed }
    }

    /// Set the flag: async-signal-safe, never blocks, never allocates.
    pub fn trigger(&self) {
        trigger(&self.cell, self.armed);
    }

    /// Whether [`Cancel::trigger`] was called.
    pub fn is_triggered(&self) -> bool {
        self.cell.load(Relaxed) == self.armed + 1
    }
}

/// [`Cancel::trigger`] on a flag's parts.
pub(crate) fn trigger(cell: &AtomicU64, armed: u64) {
    let _ = cell.compare_exchange(armed, armed + 1, Relaxed, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_flag() {
        let (a, other) = (Cancel::new(), Cancel::new());
        let b = a.clone();
        assert!(!b.is_triggered());
        a.trigger();
        a.trigger();
        assert!(a.is_triggered() && b.is_triggered() && !other.is_triggered());
    }

    #[test]
    fn a_cell_that_has_moved_on_is_left_alone() {
        let cell = Arc::new(AtomicU64::new(8));
        let old = Cancel::in_cell(cell.clone(), 4);
        let new = Cancel::in_cell(cell, 8);
        old.trigger();
        assert!(!old.is_triggered() && !new.is_triggered());
        new.trigger();
        assert!(new.is_triggered() && !old.is_triggered());
    }
}
