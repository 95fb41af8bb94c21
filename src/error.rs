//! Everything that can go wrong.

use std::any::Any;
use std::path::PathBuf;

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One variant per kind of cause; each names the file, tensor or argument and both values.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is out of its range.
    #[error("{name} is {got}, must be {expected}")]
    InvalidArgument {
        /// The argument or option, as the C API spells it.
        name: String,
        /// What the range is.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The operating system refused, or a file is shorter than it said.
    #[error("{}: {detail}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words, or which bytes are missing.
        detail: String,
    },
    /// A readable file of the wrong kind or with contradictory contents.
    #[error("{}: {detail}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, with expected and found values.
        detail: String,
    },
    /// A key of a configuration file has a value that is not known or not possible.
    #[error("{}: `{key}` is {got}, expected {expected}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is accepted.
        expected: String,
        /// What the file says ("missing" where there is no such key).
        got: String,
    },
    /// A tensor is missing, misshapen, of an unknown dtype, or surplus.
    #[error("{}: tensor `{tensor}`: expected {expected}, found {got}", path.display())]
    Tensor {
        /// The file (the directory where no file holds the tensor).
        path: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// Expected shape or dtype.
        expected: String,
        /// Found shape or dtype.
        got: String,
    },
    /// Known, but not offered by this build or machine.
    #[error("{0}")]
    Unsupported(String),
    /// Memory that the machine or its cgroup cannot give.
    #[error("{what} needs {needed} bytes, {available} bytes are available")]
    NoMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes this process can still have.
        available: u64,
    },
    /// Memory that the system refused, without saying how much there is.
    #[error("{what} needs {needed} bytes, the system refuses them")]
    Refused {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
    },
    /// Memory that the device, or `gpu_memory_bytes`, does not have.
    #[error("{what} needs {needed} bytes of GPU memory, {available} bytes are available")]
    DeviceMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that this handle can have.
        available: u64,
    },
    /// A device failed.
    #[error("{0}")]
    Device(String),
    /// A prompt longer than the handle's `max_seq_len`.
    #[error("prompt {index} has {len} tokens, max_seq_len is {max}")]
    TooLong {
        /// Which prompt of the call.
        index: usize,
        /// Its tokens.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A text so long that not all of its tokens were counted.
    #[error(
        "prompt {index} has {bytes} bytes of text, so at least {least} tokens; max_seq_len is {max}"
    )]
    TextTooLong {
        /// Which prompt of the call.
        index: usize,
        /// Its bytes.
        bytes: usize,
        /// The fewest tokens it can have.
        least: usize,
        /// The limit.
        max: usize,
    },
    /// No prompts, or too many.
    #[error("the call has {n} prompts, must be 1 to {max}")]
    Batch {
        /// Prompts given.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// `NO_WAIT` was asked for and there are not enough free slots.
    #[error("{free} slots are free, the call needs {needed} and must not wait")]
    Busy {
        /// Slots the call needs.
        needed: usize,
        /// Slots that are free.
        free: usize,
    },
    /// As many calls wait as may.
    #[error("{waiting} calls wait for a slot, max_waiting is {max}")]
    Waiting {
        /// Calls of which nothing has begun.
        waiting: usize,
        /// The limit.
        max: usize,
    },
    /// Loading was cancelled. (A cancelled generation is not an error: it has a result.)
    #[error("cancelled")]
    Cancelled,
    /// An earlier panic or device failure has left the handle unusable.
    #[error("the handle is unusable since an earlier failure: {0}")]
    Poisoned(String),
    /// A bug in this library.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// An argument out of range: its name, the range, and what was given.
    pub fn invalid(
        name: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Self {
        Error::InvalidArgument {
            name: name.into(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    /// A system error on `path`.
    pub fn io(path: impl Into<PathBuf>, error: &std::io::Error) -> Self {
        Error::Io {
            path: path.into(),
            detail: error.to_string(),
        }
    }

    /// A malformed file.
    pub fn format(path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Error::Format {
            path: path.into(),
            detail: detail.into(),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
