//! Statuses and errors.

#![allow(non_camel_case_types)]

use std::ffi::c_char;

// Section: First things

/// Version of the binary interface: the number in `libllamabi.so.<N>`.
pub const LLAMABI_ABI_VERSION: u32 = 0;

/// What a function returns: 0 is success, a positive number is an outcome, a negative number is a
/// failure.
pub type llama_status = i32;

/// Success.
pub const LLAMA_OK: llama_status = 0;
/// `llama_stream_next`: the stream has ended, and no event was written.
pub const LLAMA_DONE: llama_status = 1;
/// A cancel flag, a callback or `llama_free` has stopped the call. This is no error: what was
/// generated so far is valid.
pub const LLAMA_CANCELLED: llama_status = 2;
/// `llama_stream_next`: nothing happened within `timeout_ms`.
pub const LLAMA_TIMEOUT: llama_status = 3;
/// An argument is NULL, misaligned, out of range, or no live object. The message names the
/// argument.
pub const LLAMA_E_INVALID_ARGUMENT: llama_status = -1;
/// This library does not know a `struct_size`, an `abi_version`, a reserved field, or something
/// behind the fields that it knows.
pub const LLAMA_E_ABI: llama_status = -2;
/// A path is missing or unreadable, or a file ended early.
pub const LLAMA_E_IO: llama_status = -3;
/// A file can be read, but it is of the wrong kind or contradicts itself.
pub const LLAMA_E_FORMAT: llama_status = -4;
/// This build or machine does not offer something that the library knows. The message says why.
pub const LLAMA_E_UNSUPPORTED: llama_status = -5;
/// The machine, its cgroup or a limit of this process (`RLIMIT_AS`, `RLIMIT_DATA`) does not give
/// the memory or the thread that is needed. The message has both numbers and names the limit.
pub const LLAMA_E_NO_MEMORY: llama_status = -6;
/// A device failed.
pub const LLAMA_E_DEVICE: llama_status = -7;
/// The device does not give the memory that is needed.
pub const LLAMA_E_DEVICE_MEMORY: llama_status = -8;
/// A prompt is longer than `max_seq_len`.
pub const LLAMA_E_TOO_LONG: llama_status = -9;
/// There are no prompts, more than 65,536 sequences, or more sequences or beams of a prompt than
/// `max_batch_size`.
pub const LLAMA_E_BATCH: llama_status = -10;
/// A text is not UTF-8. The message names the argument and the byte.
pub const LLAMA_E_UTF8: llama_status = -11;
/// Slots are missing for a call with `LLAMA_GEN_NO_WAIT`, or as many calls wait as `max_waiting`
/// allows. `llama_compress` has another reason. Try again later.
pub const LLAMA_E_BUSY: llama_status = -12;
/// An earlier panic or device failure has left the handle unusable. Free it.
pub const LLAMA_E_POISONED: llama_status = -13;
/// Another rank of the model failed, or was silent for longer than `rank_timeout_ms`.
pub const LLAMA_E_PEER: llama_status = -14;
/// A bug in this library, which was caught.
pub const LLAMA_E_INTERNAL: llama_status = -99;

/// The place where a function says what went wrong. It belongs to the caller, and there is nothing
/// to free.
///
/// Set `struct_size` before the first use. Every call that is given a `llama_error` writes `status`
/// and `message` (`LLAMA_OK` and "" on success). A smaller `struct_size` gets a shorter message; a
/// `struct_size` below 9 gets nothing at all.
#[repr(C)]
pub struct llama_error {
    /// `sizeof(llama_error)`, set by the caller.
    pub struct_size: u32,
    /// What the function returned.
    pub status: llama_status,
    /// A sentence, in NUL-terminated UTF-8. It names the file, tensor or argument, and both values.
    /// In names, control characters are escaped (`\n`, `\u{1b}`); a long name is shortened in its
    /// middle.
    pub message: [c_char; 1016],
}
