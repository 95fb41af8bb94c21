//! The questions of a call about its logits, as its reader sees them.

use super::call::Call;
use super::event::Row;
use crate::Token;
use crate::process::Process;
use std::fmt;
use std::sync::Arc;

/// A row of logits that the reader of a call may change before the next token of a sequence is
/// drawn from it; the sequence waits for [`Question::answer`]. Dropping a question instead cancels
/// the call.
pub struct Question {
    row: Option<Box<Row>>,
    call: Arc<Call>,
    process: Process,
}

impl Question {
    pub(super) fn new(row: Box<Row>, call: Arc<Call>) -> Self {
        Self {
            row: Some(row),
            call,
            process: Process::current(),
        }
    }

    fn row(&self) -> &Row {
        // Taken only where the question itself goes.
        self.row.as_deref().expect("a question has its row")
    }

    /// Which sequence of the call.
    pub fn index(&self) -> u32 {
        self.row().index
    }

    /// Its prompt and its output so far.
    pub fn tokens(&self) -> &[Token] {
        &self.row().tokens
    }

    /// How many of them are the prompt's.
    pub fn n_prompt(&self) -> usize {
        self.row().n_prompt
    }

    /// For each token of the model's vocabulary its logit; -inf for impossible ones.
    pub fn logits(&self) -> &[f32] {
        &self.row().logits
    }

    /// The same, to be changed.
    pub fn logits_mut(&mut self) -> &mut [f32] {
        let row = self.row.as_deref_mut();
        &mut row.expect("a question has its row").logits
    }

    /// The next token is drawn from these logits.
    pub fn answer(mut self) {
        if let Some(row) = self.row.take()
            && self.process.is_current()
        {
            self.call.answer(row);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        // In a child after `fork` the call's lock may be held for ever.
        if self.row.is_some() && self.process.is_current() {
            self.call.cancel();
        }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, tokens) = (self.index(), self.tokens());
        write!(f, "Question {{ index: {index}, tokens: {tokens:?} }}")
    }
}

/// Two questions are never the same.
impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}
