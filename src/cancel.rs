//! The cancel flag: one atomic store from any thread or signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A flag that stops whatever was given a clone of it. Looked at per tensor while loading, per
/// prefill chunk and per decode step while generating. It cannot be reset.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Set the flag: async-signal-safe, never blocks, never allocates.
    pub fn trigger(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether [`Cancel::trigger`] was called.
    pub fn is_triggered(&self) -> bool {
        self.0.load(Relaxed)
    }
}
