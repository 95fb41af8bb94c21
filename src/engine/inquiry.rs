//! Sequences whose reader changes their logits: after the row of a token was computed, it goes to
//! the reader as a question, and the sequence sits out until the answer is back.
//!
//! What the reader sees is what the token would be drawn from: after penalties, edits and mask. It
//! may write anything. Numbers that are not finite are impossible tokens, and so stays what the
//! grammar forbids and what the tokenizer has not.

use super::event::Row;
use crate::backend::choice::Choice;
use crate::{Result, reserve};
use std::time::Instant;

/// The engine's side of a sequence's questions.
pub(super) struct Inquiry {
    /// Unless it is with the reader.
    pub row: Option<Box<Row>>,
    /// The row as the model gave it, for what is reported of the token.
    pub raw: Vec<f32>,
    pub open: Option<Open>,
}

/// What was asked and is not answered.
pub(super) struct Open {
    pub choice: Choice,
    pub position: usize,
    pub since: Instant,
}

impl Inquiry {
    /// For a sequence of at most so many tokens.
    pub fn new(index: u32, n_prompt: usize, most: usize, vocab_size: usize) -> Result<Box<Self>> {
        let what = "the logits that a caller changes (on_logits)";
        reserve::headroom(what, size_of::<Self>() + size_of::<Row>())?;
        Ok(Box::new(Self {
            row: Some(Box::new(Row {
                index,
                tokens: reserve::room(what, most)?,
                n_prompt,
                logits: reserve::room(what, vocab_size)?,
            })),
            raw: reserve::room(what, vocab_size)?,
            open: None,
        }))
    }
}
