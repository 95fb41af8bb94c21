//! Log lines of one handle, queued until a call on that handle delivers them.
//!
//! The engine thread must not call into the host, so it only writes here; whichever thread next
//! calls a function of the handle drains the queue to the host's callback.

use crate::process::Process;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Severity, numbered as `LLAMA_LOG_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something was chosen that the user may not expect.
    Warn = 2,
    /// What was loaded and chosen.
    Info = 3,
    /// Per-request detail.
    Debug = 4,
}

/// Lines kept while nobody drains them; the oldest go first.
const CAPACITY: usize = 1024;

/// The queue. A level of `None` is silent and costs nothing. So is one of before a fork: in the
/// child, its lock may be held for ever, and what it has is its parent's to tell.
#[derive(Debug)]
pub struct Log {
    level: Option<Level>,
    process: Process,
    lines: Mutex<VecDeque<(Level, String)>>,
}

impl Default for Log {
    /// A silent one.
    fn default() -> Self {
        Self::new(None)
    }
}

impl Log {
    /// A queue that keeps lines up to `level`.
    pub fn new(level: Option<Level>) -> Self {
        Self {
            level,
            process: Process::current(),
            lines: Mutex::default(),
        }
    }

    /// Queue a line; `line` is not called when the level is filtered out.
    pub fn write(&self, level: Level, line: impl FnOnce() -> String) {
        if self.level.is_some_and(|most| level <= most) && self.process.is_current() {
            let line = line();
            let mut lines = self.lines.lock().unwrap_or_else(|e| e.into_inner());
            if lines.len() == CAPACITY {
                lines.pop_front();
            }
            lines.push_back((level, line));
        }
    }

    /// Hand every queued line to `sink`, oldest first, without holding the lock meanwhile. Ends
    /// early in a child that `sink` has forked.
    pub fn drain(&self, mut sink: impl FnMut(Level, &str)) {
        if self.level.is_none() {
            return;
        }
        while self.process.is_current() {
            let next = self
                .lines
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .pop_front();
            let Some((level, line)) = next else { return };
            sink(level, &line);
        }
    }
}
