//! What calls give back, messages, flags and streams.

#![allow(non_camel_case_types)]

use std::ffi::c_char;

// Section: Results

/// The outcome of one call.
pub struct llama_result {
    _opaque: [u8; 0],
}
/// The outcome of one call.
pub type llama_result_t = llama_result;

/// Figures of one sequence.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_request_stats {
    /// `sizeof(llama_request_stats)`, set by the caller.
    pub struct_size: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, taken from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated, those cut off by a stop string included, the EOS not.
    pub generated_tokens: u32,
    /// From the call to the first step.
    pub queue_ms: f64,
    /// From the call to the first generated token; 0: there was none.
    pub first_token_ms: f64,
    /// From the call to the end of the sequence.
    pub total_ms: f64,
    /// Guesses at its tokens that were computed (`speculation`).
    pub drafted_tokens: u32,
    /// Of those, right: tokens of it that needed no step of their own.
    pub accepted_tokens: u32,
}

// Section: Chat

/// One message of a dialog.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_message {
    /// "system", "user" or "assistant"; with a chat template any role that it takes.
    pub role: *const c_char,
    /// UTF-8.
    pub content: *const c_char,
    /// Bytes of `role`; SIZE_MAX: NUL-terminated.
    pub role_len: usize,
    /// Bytes of `content`; SIZE_MAX: NUL-terminated.
    pub content_len: usize,
}

// Section: Cancel flags

/// A cancel flag.
pub struct llama_cancel {
    _opaque: [u8; 0],
}
/// A cancel flag.
pub type llama_cancel_t = llama_cancel;

// Section: Streams

/// A call's events, which the caller pulls.
pub struct llama_stream {
    _opaque: [u8; 0],
}
/// A call's events, which the caller pulls.
pub type llama_stream_t = llama_stream;
