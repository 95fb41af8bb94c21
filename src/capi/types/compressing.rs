//! Prompt compression.

#![allow(non_camel_case_types)]

use super::results::llama_cancel_t;
use std::ffi::c_char;

// Section: Compression

/// `llama_segment.kind`: the segment stays as it is.
pub const LLAMA_SEGMENT_KEEP: i32 = 0;
/// The segment is shortened.
pub const LLAMA_SEGMENT_COMPRESS: i32 = 1;
/// The segment stays as it is. Segments that are shortened are ranked by how much each of them
/// helps the model to expect this one.
pub const LLAMA_SEGMENT_QUESTION: i32 = 2;

/// `llama_compress_options.flags`: keep tokens that contain a newline first, then the others.
pub const LLAMA_COMPRESS_KEEP_NEWLINES: u32 = 1;
/// Keep tokens that contain a digit (0 to 9) first, then the others.
pub const LLAMA_COMPRESS_KEEP_DIGITS: u32 = 2;

/// A part of a prompt, for `llama_compress`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_segment {
    /// UTF-8.
    pub text: *const c_char,
    /// Bytes of `text`. SIZE_MAX means that it is NUL-terminated.
    pub len: usize,
    /// A `LLAMA_SEGMENT_*`.
    pub kind: i32,
    /// Must be 0.
    pub reserved0: u32,
}

/// How much `llama_compress` leaves. Fill with `llama_compress_options_init`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct llama_compress_options {
    /// `sizeof(llama_compress_options)` of the header the caller was compiled with.
    pub struct_size: u32,
    /// `LLAMA_COMPRESS_*`.
    pub flags: u32,
    /// How many tokens all segments have together afterwards, including those that stay. 0: `rate`
    /// decides.
    pub target_tokens: u32,
    /// The share of all tokens that is left if `target_tokens` is 0, above 0 and at most 1. The
    /// number of tokens is rounded up. Default: 0.5.
    pub rate: f32,
    /// How many tokens of a segment form a window, at least 1. Each window is scored after the
    /// tokens kept so far; its least expected tokens are kept. Default: 100.
    pub window: u32,
    /// With several segments to shorten, a first pass selects segments until they hold `coarse`
    /// times the tokens that may be left. Finite, at least 1. Default: 2.
    pub coarse: f32,
    /// Stops the call. NULL: nothing does.
    pub cancel: *mut llama_cancel_t,
}
