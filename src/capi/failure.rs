//! Why a call fails: its status and its sentence.

use super::types::*;
use crate::Error;
use crate::error::Kind;

/// Why a call fails: the status that it returns and the sentence that explains the status.
#[derive(Debug)]
pub(super) struct Failure {
    pub status: llama_status,
    pub message: String,
}

/// What the body of an export returns: success, an outcome, or a failure.
pub(super) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(status: llama_status, message: impl Into<String>) -> Self {
        Failure {
            status,
            message: message.into(),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Failure::new(LLAMA_E_INVALID_ARGUMENT, message)
    }
}

/// The status that says this error to callers of the C API.
pub fn status_of(error: &Error) -> llama_status {
    match error.kind() {
        Kind::InvalidArgument => LLAMA_E_INVALID_ARGUMENT,
        Kind::Io => LLAMA_E_IO,
        Kind::Format => LLAMA_E_FORMAT,
        Kind::Unsupported => LLAMA_E_UNSUPPORTED,
        Kind::NoMemory => LLAMA_E_NO_MEMORY,
        Kind::Device => LLAMA_E_DEVICE,
        Kind::DeviceMemory => LLAMA_E_DEVICE_MEMORY,
        Kind::Peer => LLAMA_E_PEER,
        Kind::TooLong => LLAMA_E_TOO_LONG,
        Kind::Batch => LLAMA_E_BATCH,
        Kind::Busy => LLAMA_E_BUSY,
        Kind::Cancelled => LLAMA_CANCELLED,
        Kind::Poisoned => LLAMA_E_POISONED,
        Kind::Internal => LLAMA_E_INTERNAL,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure {
            status: status_of(&error),
            message: error.to_string(),
        }
    }
}

/// Returns the name and the meaning of a status.
pub(super) fn status_text(status: llama_status) -> &'static std::ffi::CStr {
    match status {
        LLAMA_OK => c"ok",
        LLAMA_DONE => c"the stream has ended",
        LLAMA_CANCELLED => c"cancelled",
        LLAMA_TIMEOUT => c"nothing happened within the time",
        LLAMA_E_INVALID_ARGUMENT => c"invalid argument",
        LLAMA_E_ABI => c"a struct is not of a layout this library knows",
        LLAMA_E_IO => c"input/output error",
        LLAMA_E_FORMAT => c"malformed file",
        LLAMA_E_UNSUPPORTED => c"not supported",
        LLAMA_E_NO_MEMORY => c"not enough memory",
        LLAMA_E_DEVICE => c"device failure",
        LLAMA_E_DEVICE_MEMORY => c"not enough device memory",
        LLAMA_E_TOO_LONG => c"the prompt is longer than max_seq_len",
        LLAMA_E_BATCH => c"no prompts, or too many sequences",
        LLAMA_E_UTF8 => c"text is not valid UTF-8",
        LLAMA_E_BUSY => c"no free slot",
        LLAMA_E_POISONED => c"the handle is unusable since an earlier failure",
        LLAMA_E_INTERNAL => c"internal error",
        LLAMA_E_PEER => c"another rank failed or was silent for too long",
        _ => c"unknown status",
    }
}
