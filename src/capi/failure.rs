//! Why a call fails: its status and its sentence.

use super::types::*;
use crate::Error;

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
    match error {
        Error::Cancelled => LLAMA_CANCELLED,
        Error::InvalidArgument { .. }
        | Error::Grammar(_)
        | Error::NoToken { .. }
        | Error::Forked { .. } => LLAMA_E_INVALID_ARGUMENT,
        Error::Io { .. } => LLAMA_E_IO,
        Error::Format { .. } | Error::Config { .. } | Error::Tensor { .. } => LLAMA_E_FORMAT,
        Error::Unsupported(_) => LLAMA_E_UNSUPPORTED,
        Error::NoMemory { .. } | Error::Refused { .. } | Error::Thread { .. } => LLAMA_E_NO_MEMORY,
        Error::Device(_) => LLAMA_E_DEVICE,
        Error::Peer(_) => LLAMA_E_PEER,
        Error::DeviceMemory { .. } => LLAMA_E_DEVICE_MEMORY,
        Error::TooLong { .. } | Error::TextTooLong { .. } => LLAMA_E_TOO_LONG,
        Error::Batch { .. } | Error::Samples { .. } | Error::Beams { .. } => LLAMA_E_BATCH,
        Error::Busy { .. } | Error::Waiting { .. } => LLAMA_E_BUSY,
        Error::Poisoned(_) => LLAMA_E_POISONED,
        Error::Internal(_) => LLAMA_E_INTERNAL,
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
