//! Use after `fork` noticed: a child has neither the threads that worked for its parent nor, for
//! certain, locks that anybody will release.

/// The process that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// This one.
    pub fn current() -> Self {
        Process(std::process::id())
    }

    /// False in a child of that process. One system call.
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}
