//! How exactly the CPU computes: what a handle is built with, and what ranks must agree on.

use crate::backend::cpu;

/// How exactly the CPU multiplies activations with weights. Each is one arithmetic for all steps of
/// a handle: results do not depend on how many sequences run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// [`cpu::Precision::Auto`].
    #[default]
    Auto,
    /// [`cpu::Precision::Full`].
    Full,
    /// [`cpu::Precision::Fast`].
    Fast,
}

impl Precision {
    /// The backend's, in a handle that runs so many sequences.
    pub fn of_cpu(self, max_batch_size: usize) -> cpu::Precision {
        match self {
            Precision::Auto => cpu::Precision::Auto(max_batch_size),
            Precision::Full => cpu::Precision::Full,
            Precision::Fast => cpu::Precision::Fast(max_batch_size),
        }
    }
}
