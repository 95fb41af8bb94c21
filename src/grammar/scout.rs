//! The texts that must come next because the grammar leaves no choice, as guesses at tokens.

use super::{Cursor, Grammar};
use crate::tokenizer::{Bound, Tokenizer};
use crate::{Result, Token, reserve};
use std::sync::Arc;

/// For each token that is asked for, this many bytes of the forced text are looked at.
const TOKEN_BYTES: usize = 16;

/// A text that tokens usually do not continue beyond; [`Scout::forced`] gives nothing if one does.
/// What follows the barrier is cut into tokens as in the middle of a text, where SentencePiece's
/// tokenizers add no space of their own.
const BARRIER: &str = "\n";

/// Follows a text beside its [`Cursor`], and runs ahead of it where the grammar allows only one
/// text.
///
/// Masks never come from here: a parser that has run ahead is in another state than one that has
/// not, and drafts must not change the result. For the same reason a failure here stays here.
pub struct Scout {
    cursor: Cursor,
    tokenizer: Arc<dyn Tokenizer>,
    /// The tokens of [`BARRIER`].
    barrier: Vec<Token>,
    /// The barrier with the forced text behind it, and the tokens of both.
    text: String,
    tokens: Vec<Token>,
}

impl Scout {
    /// A scout at the beginning of a text. [`crate::Error::Refused`] if there is no memory for it.
    pub fn new(grammar: &Arc<Grammar>, tokenizer: &Arc<dyn Tokenizer>) -> Result<Self> {
        Ok(Self {
            cursor: Cursor::new(grammar)?,
            barrier: tokenizer.encode(BARRIER)?,
            tokenizer: tokenizer.clone(),
            text: String::new(),
            tokens: Vec::new(),
        })
    }

    /// Appends a token that the grammar allows. Fails as [`Cursor::take`] does. `false` if this
    /// parser, unlike the cursor's, does not allow the token.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        self.cursor.take(token)
    }

    /// How many of `tokens`, counted from the first, the grammar allows one after the other.
    pub fn allowed(&mut self, tokens: &[Token]) -> Result<usize> {
        self.cursor.allowed(tokens)
    }

    /// Fills `room` with the tokens of the text that must come next, as the tokenizer cuts it, and
    /// returns how many they are. Other tokens may spell the same text. The last token is left out
    /// if it ends the whole text.
    pub fn forced(&mut self, room: &mut [Token]) -> Result<usize> {
        let (bytes, ends) = self.cursor.forced(room.len() * TOKEN_BYTES)?;
        // The bytes may end inside a character.
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
        // There may be a token that begins with the barrier and continues beyond it.
        let Some(tokens) = self.tokens.strip_prefix(&self.barrier[..]) else {
            return Ok(0);
        };
        let n = tokens.len().min(room.len());
        room[..n].copy_from_slice(&tokens[..n]);
        let is_last = ends && text.len() == bytes.len() && n == tokens.len();
        Ok(n - usize::from(is_last && n > 0))
    }
}
