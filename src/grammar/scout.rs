//! What a grammar leaves no choice about: the texts that must come next, as guesses at tokens.

use super::{Cursor, Grammar};
use crate::tokenizer::{Bound, Tokenizer};
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// So many bytes of a text are looked at for each of its tokens.
const TOKEN_BYTES: usize = 16;

/// A text that no token of a tokenizer goes on beyond: what is cut behind it is cut as in the
/// middle of a text, where SentencePiece's tokenizers have no space of their own.
const BARRIER: &str = "\n";

/// Follows a text beside its [`Cursor`], ahead of it where the grammar allows one text only.
///
/// Masks never come from here. A parser that has run ahead is in another state than one that has
/// not, and drafts are to change nothing: what fails here, fails here alone.
pub struct Scout {
    cursor: Cursor,
    tokenizer: Arc<dyn Tokenizer>,
    /// The tokens of [`BARRIER`].
    barrier: Vec<Token>,
    /// What comes behind it, and the tokens of both.
    text: String,
    tokens: Vec<Token>,
}

impl Scout {
    /// At the beginning. [`crate::Error::Refused`] where there is no memory for it.
    pub fn new(grammar: &Arc<Grammar>, tokenizer: &Arc<dyn Tokenizer>) -> Result<Self> {
        Ok(Self {
            cursor: Cursor::new(grammar)?,
            barrier: tokenizer.encode(BARRIER)?,
            tokenizer: tokenizer.clone(),
            text: String::new(),
            tokens: Vec::new(),
        })
    }

    /// Goes on behind a token that the grammar allows. Fails as [`Cursor::take`], and with `false`
    /// where the parser sees that otherwise.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        self.cursor.take(token)
    }

    /// How many of these tokens, from the first on, the grammar allows one behind another.
    pub fn allowed(&mut self, tokens: &[Token]) -> Result<usize> {
        self.cursor.allowed(tokens)
    }

    /// Fills `room` with the tokens that spell what must come next, as the tokenizer cuts it, and
    /// says how many these are. Other tokens may spell the same. The last one is left out where it
    /// is the text's last.
    pub fn forced(&mut self, room: &mut [Token]) -> Result<usize> {
        let (bytes, ends) = self.cursor.forced(room.len() * TOKEN_BYTES)?;
        // A character may be forced in part.
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        if text.is_empty() {
            return Ok(0);
        }
        self.text.clear();
        self.tokens.clear();
        let what = "the text that a grammar forces";
        reserve::string(what, &mut self.text, BARRIER.len() + text.len())?;
        self.text.push_str(BARRIER);
        self.text.push_str(text);
        let bound = Bound::default();
        let _whole = self
            .tokenizer
            .encode_onto(&self.text, &mut self.tokens, bound)?;
        // There may be a token that begins with the barrier and goes on.
        let Some(tokens) = self.tokens.strip_prefix(&self.barrier[..]) else {
            return Ok(0);
        };
        let n = tokens.len().min(room.len());
        room[..n].copy_from_slice(&tokens[..n]);
        let is_last = ends && text.len() == bytes.len() && n == tokens.len();
        Ok(n - usize::from(is_last && n > 0))
    }
}
