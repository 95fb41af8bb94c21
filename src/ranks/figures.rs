//! Figures about running ranks: how long their exchanges take, and how long they have been silent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The figures of all ranks, which their threads write and callers read.
#[derive(Debug)]
pub struct Figures(Vec<Figure>);

#[derive(Debug, Default)]
struct Figure {
    exchange_ns: AtomicU64,
    silent_ns: AtomicU64,
}

impl Figures {
    /// Figures for `ranks` ranks.
    pub fn new(ranks: usize) -> Figures {
        Figures((0..ranks).map(|_| Figure::default()).collect())
    }

    /// The time that a rank has spent in exchanges, including waiting for other ranks.
    pub fn exchange(&self, rank: usize) -> Duration {
        Duration::from_nanos(self.0[rank].exchange_ns.load(Relaxed))
    }

    /// The time since a rank gave a sign of life. It is counted only while somebody waits for the
    /// rank.
    pub fn silent(&self, rank: usize) -> Duration {
        Duration::from_nanos(self.0[rank].silent_ns.load(Relaxed))
    }

    /// Adds to [`Figures::exchange`].
    pub fn add_exchange(&self, rank: usize, time: Duration) {
        let ns = &self.0[rank].exchange_ns;
        ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Sets [`Figures::exchange`] to the time that a rank has reported.
    pub fn set_exchange(&self, rank: usize, time: Duration) {
        self.0[rank]
            .exchange_ns
            .store(time.as_nanos() as u64, Relaxed);
    }

    /// Sets [`Figures::silent`].
    pub fn set_silent(&self, rank: usize, time: Duration) {
        self.0[rank]
            .silent_ns
            .store(time.as_nanos() as u64, Relaxed);
    }
}
