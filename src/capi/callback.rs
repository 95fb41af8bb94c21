//! Whether this thread is inside one of the host's callbacks, and the callbacks that decide how a
//! call goes on.
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::types::*;
use crate::Token;
use crate::engine::Question;
use std::cell::Cell;
use std::ffi::c_void;

thread_local! {
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// This object lives while one of the host's callbacks runs on this thread.
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

    /// Refuses a function that may wait, because it might wait for something that the callback
    /// holds up.
    pub fn refuse(function: &str) -> Outcome<()> {
        if Self::now() {
            return Err(Failure::invalid(format!(
                "{function} was called from inside a callback, where only llama_cancel_trigger, \
                 llama_stream_stop and functions that take a const llama_t * may be called"
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

/// The host's functions that decide how a call goes on.
#[derive(Clone, Copy)]
pub(super) struct Callbacks {
    pub on_logits: llama_logits_fn,
    pub on_stop: llama_stop_fn,
    user_data: *mut c_void,
}

// SAFETY: `user_data` is only handed back to the host, whose functions are documented to run on the
// thread that is inside a call.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    pub fn new(o: &llama_generate_options) -> Self {
        Self {
            on_logits: o.on_logits,
            on_stop: o.on_stop,
            user_data: o.user_data,
        }
    }

    pub fn any(&self) -> bool {
        self.on_logits.is_some() || self.on_stop.is_some()
    }

    /// Whether the last of these tokens ends the sequence.
    pub fn stops(&self, index: u32, tokens: &[Token], n_prompt: usize) -> bool {
        let Some(function) = self.on_stop else {
            return false;
        };
        let _inside = InCallback::enter();
        // SAFETY: this calls the host's function with the host's data, and the tokens live until it
        // returns.
        unsafe {
            function(
                self.user_data,
                index,
                tokens.as_ptr(),
                tokens.len(),
                n_prompt,
            ) != 0
        }
    }

    /// Lets the host change the logits. False stops the call.
    pub fn changes(&self, question: &mut Question) -> bool {
        let Some(function) = self.on_logits else {
            return true;
        };
        let (index, n_prompt) = (question.index(), question.n_prompt());
        let (tokens, n_tokens) = (question.tokens().as_ptr(), question.tokens().len());
        let logits = question.logits_mut();
        let row = llama_logits {
            struct_size: size_of::<llama_logits>() as u32,
            index,
            tokens,
            n_tokens,
            n_prompt,
            logits: logits.as_mut_ptr(),
            n_logits: logits.len(),
        };
        let _inside = InCallback::enter();
        // SAFETY: this calls the host's function with the host's data. The question, and everything
        // that `row` points to in it, live until the function returns. Any bits are a valid float.
        unsafe { function(self.user_data, &row) != 0 }
    }
}
