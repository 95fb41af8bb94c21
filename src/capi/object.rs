//! The object behind `llama_t`, and its log lines.
#![allow(unsafe_code)]

use super::args::with_nul;
use super::callback::InCallback;
use super::table::Kind;
use super::types::llama_log_fn;
use crate::Llama;
use crate::log::Log;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The object behind `llama_t`.
pub(super) struct Handle {
    pub llama: Llama,
    pub log: LogSink,
    /// Whether `llama_free` has been called. After that the host's log callback may be gone.
    pub freed: AtomicBool,
}

impl Kind for Handle {
    const NAME: &'static str = "llama_t";
}

/// The host's log callback.
#[derive(Clone)]
pub(super) struct LogSink {
    pub log: Arc<Log>,
    pub function: llama_log_fn,
    pub user_data: *mut c_void,
}

// SAFETY: `user_data` is only handed back to the host. Its callback is documented to run on any
// thread that is inside a call, and on several threads at once.
unsafe impl Send for LogSink {}
// SAFETY: as above.
unsafe impl Sync for LogSink {}

impl LogSink {
    pub fn deliver(&self) {
        let Some(function) = self.function else {
            return;
        };
        self.log.drain(|level, line| {
            let line = with_nul(line.to_owned());
            let _inside = InCallback::enter();
            // SAFETY: this calls the host's function with the host's data, and `line` is
            // NUL-terminated.
            unsafe {
                function(
                    self.user_data,
                    level as i32,
                    line.as_ptr().cast(),
                    line.len() - 1,
                );
            }
        });
    }
}

impl Handle {
    /// Gives queued log lines to the host. Nothing is given from inside a callback, because that
    /// could be the callback that takes log lines.
    pub fn deliver_log(&self) {
        if !InCallback::now() && !self.freed.load(Ordering::Acquire) {
            self.log.deliver();
        }
    }
}
