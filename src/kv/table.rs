//! The pages of a sequence.

use std::ops::Deref;

/// The pages that a sequence has, in order, and how many more it may take. [`Pool`](super::Pool)
/// says what that means, and changes it.
#[derive(Debug, Default)]
pub struct Table {
    pub(super) pages: Vec<u32>,
    pub(super) promised: usize,
}

impl Deref for Table {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        &self.pages
    }
}
