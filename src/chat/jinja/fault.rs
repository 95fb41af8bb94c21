//! Errors that end the reading or the rendering of a template.

/// The kind of reason why there is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The text is not a template.
    Syntax,
    /// The template asks for something that this evaluator does not have.
    Unsupported,
    /// The template called `raise_exception`.
    Raised,
    /// An expression has no value for these messages, for example if it adds a list to a text.
    Evaluation,
    /// One of the [limits](super::limits) is exceeded.
    Limit,
    /// The system has no memory.
    Memory,
    /// The cancel flag is set.
    Cancelled,
}

/// Why there is no text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of reason.
    pub kind: Kind,
    /// The line of the template, from 1.
    pub line: u32,
    /// A sentence without the line. It may contain words of the template and of messages.
    pub message: String,
    /// For [`Kind::Memory`]: how many bytes were not available.
    pub bytes: u64,
}

/// `Result` of this module. Boxed, because every step of the evaluator returns one.
pub type Result<T> = std::result::Result<T, Box<Fault>>;

impl Fault {
    /// A fault at a line that the caller knows.
    pub fn at(line: u32, kind: Kind, message: impl Into<String>) -> Box<Fault> {
        Box::new(Fault {
            kind,
            line,
            message: message.into(),
            bytes: 0,
        })
    }
}

/// A fault of an expression; the evaluator adds the line.
pub fn evaluation<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::at(0, Kind::Evaluation, message))
}

/// A fault of an expression that Python can evaluate and this evaluator cannot.
pub fn unsupported<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::at(0, Kind::Unsupported, message))
}
