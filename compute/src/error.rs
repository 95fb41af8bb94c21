//! Everything that can go wrong.

use crate::sentence;
use std::any::Any;
use std::path::PathBuf;

pub use crate::rlimit::Rlimit;

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// One variant per kind of cause; each names the file, tensor or argument and both values. Names
/// and values are as they are in the fields; in the sentence control characters are escaped, and
/// what is long is shortened in its middle.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An argument is out of its range.
    #[error("{name} is {}, must be {expected}", sentence::value(got))]
    InvalidArgument {
        /// The argument or option, as the C API spells it.
        name: String,
        /// What the range is.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The operating system refused, or a file is shorter than it said.
    #[error("{}: {}", sentence::path(path), sentence::text(detail))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words, or which bytes are missing.
        detail: String,
    },
    /// A readable file of the wrong kind or with contradictory contents.
    #[error("{}: {}", sentence::path(path), sentence::text(detail))]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, with expected and found values.
        detail: String,
    },
    /// A key of a configuration file has a value that is not known or not possible.
    #[error(
        "{}: `{}` is {}, expected {}",
        sentence::path(path),
        sentence::name(key),
        sentence::value(got),
        sentence::value(expected)
    )]
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
    #[error(
        "{}: tensor `{}`: expected {}, found {}",
        sentence::path(path),
        sentence::name(tensor),
        sentence::value(expected),
        sentence::value(got)
    )]
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
    #[error("{}", sentence::text(.0))]
    Unsupported(String),
    /// Memory that the machine or its cgroup cannot give.
    #[error(
        "{} needs {needed} bytes, {available} bytes are available{}",
        sentence::text(what),
        because(limit)
    )]
    NoMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes this process can still have.
        available: u64,
        /// The limit of the process that leaves no more, if it is one.
        limit: Option<Rlimit>,
    },
    /// Memory that the system refused, without saying how much there is.
    #[error(
        "{} needs {needed} bytes, the system refuses them{}",
        sentence::text(what),
        because(limit)
    )]
    Refused {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// The limit of the process that is behind it, if it is one.
        limit: Option<Rlimit>,
    },
    /// A thread that the system did not start.
    #[error("{what} cannot be started: {}", sentence::text(detail))]
    Thread {
        /// Which thread.
        what: String,
        /// The system's words, and the limits that are set.
        detail: String,
    },
    /// Memory that the device, or `gpu_memory_bytes`, does not have.
    #[error(
        "{} needs {needed} bytes of GPU memory, {available} bytes are available",
        sentence::text(what)
    )]
    DeviceMemory {
        /// What the memory was for.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that this handle can have.
        available: u64,
    },
    /// A device failed.
    #[error("{}", sentence::text(.0))]
    Device(String),
    /// Another rank of the model left, or was silent for too long.
    #[error("{}", sentence::text(.0))]
    Peer(String),
    /// What another process failed with, in its own words.
    #[error("{}", sentence::text(sentence))]
    Told {
        /// The kind of the error there.
        kind: Kind,
        /// Its sentence, and who said it.
        sentence: String,
    },
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
    /// A grammar that the parser refuses, or that is too much for it.
    #[error("the grammar: {}", sentence::text(.0))]
    Grammar(String),
    /// No prompts, or too many.
    #[error("the call has {n} sequences, must be 1 to {max}")]
    Batch {
        /// Prompts given, times the samples of each.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// More samples of one prompt than run at the same time.
    #[error("num_return_sequences is {n}, must be at most max_batch_size, {max}")]
    Samples {
        /// Samples asked for.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// More beams than run at the same time.
    #[error("num_beams is {n}, must be at most max_batch_size, {max}")]
    Beams {
        /// Beams asked for.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// The options of a call forbid every token that the model thinks possible.
    #[error("sequence {index}, token position {position}: the options leave no token possible")]
    NoToken {
        /// Which sequence of the call.
        index: u32,
        /// Where the token would have been, prompt included.
        position: usize,
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
    /// A child after `fork` uses what its parent made, or goes on with a call that its parent
    /// What the library itself has to read was not read in time, again and again.
    #[error("{what} could not be read in time: max_unread_ms or stall_memory_bytes is too small")]
    Unread {
        /// What it was.
        what: &'static str,
    },
    /// began.
    #[error("{what} is from before a fork, and a child does not have the threads that work for it")]
    Forked {
        /// What is used.
        what: &'static str,
    },
    /// Loading was cancelled. (A cancelled generation is not an error: it has a result.)
    #[error("cancelled")]
    Cancelled,
    /// An earlier panic or device failure has left the handle unusable.
    #[error("the handle is unusable since an earlier failure: {}", sentence::text(.0))]
    Poisoned(String),
    /// A bug in this library.
    #[error("internal error: {}", sentence::text(.0))]
    Internal(String),
}

/// What a caller can do about an error: errors of a kind are one status of the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Another argument.
    InvalidArgument,
    /// Look at the file system.
    Io,
    /// Look at the file.
    Format,
    /// Ask for something else.
    Unsupported,
    /// Give the host more memory.
    NoMemory,
    /// Look at the device.
    Device,
    /// Give the device more memory.
    DeviceMemory,
    /// Look at the other ranks.
    Peer,
    /// A shorter prompt.
    TooLong,
    /// Fewer sequences.
    Batch,
    /// Wait.
    Busy,
    /// Nothing: it was asked for.
    Cancelled,
    /// Build the handle again.
    Poisoned,
    /// Report it.
    Internal,
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> Kind {
        match self {
            Error::InvalidArgument { .. }
            | Error::Grammar(_)
            | Error::NoToken { .. }
            | Error::Forked { .. } => Kind::InvalidArgument,
            Error::Io { .. } => Kind::Io,
            Error::Format { .. } | Error::Config { .. } | Error::Tensor { .. } => Kind::Format,
            Error::Unsupported(_) => Kind::Unsupported,
            Error::NoMemory { .. } | Error::Refused { .. } | Error::Thread { .. } => Kind::NoMemory,
            Error::Device(_) => Kind::Device,
            Error::DeviceMemory { .. } => Kind::DeviceMemory,
            Error::Peer(_) => Kind::Peer,
            Error::Told { kind, .. } => *kind,
            Error::TooLong { .. } | Error::TextTooLong { .. } => Kind::TooLong,
            Error::Batch { .. } | Error::Samples { .. } | Error::Beams { .. } => Kind::Batch,
            Error::Busy { .. } | Error::Waiting { .. } | Error::Unread { .. } => Kind::Busy,
            Error::Cancelled => Kind::Cancelled,
            Error::Poisoned(_) => Kind::Poisoned,
            Error::Internal(_) => Kind::Internal,
        }
    }

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

    /// Memory that was planned for and is not there.
    pub fn no_memory(what: impl Into<String>, needed: u64, available: u64) -> Self {
        let limit = Rlimit::that_binds(needed).filter(|limit| limit.left() <= available);
        Error::NoMemory {
            limit,
            what: what.into(),
            needed,
            available,
        }
    }

    /// Memory that an allocator has refused.
    pub fn refused(what: impl Into<String>, needed: u64) -> Self {
        Error::Refused {
            limit: Rlimit::that_binds(needed),
            what: what.into(),
            needed,
        }
    }

    /// A thread that was not started.
    pub fn thread(what: impl Into<String>, error: &std::io::Error) -> Self {
        Error::Thread {
            what: what.into(),
            detail: crate::rlimit::thread_refusal(error),
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

fn because(limit: &Option<Rlimit>) -> String {
    limit.map_or_else(String::new, |limit| format!(": {limit}"))
}

/// What a panic said.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
