//! Decoding one token at a time without ever emitting half a code point.

use super::Tokenizer;
use crate::Token;
use std::sync::Arc;

/// Incremental decoder: the pieces it returns, joined, equal [`Tokenizer::decode`] of all tokens.
pub struct Detokenizer {
    tokenizer: Arc<dyn Tokenizer>,
}

impl Detokenizer {
    /// Nothing decoded yet.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        Self { tokenizer }
    }

    /// Append to `out` what `token` makes certain; bytes that may still become a code point are held.
    pub fn push(&mut self, token: Token, out: &mut String) {
        let _ = (&self.tokenizer, token, out);
        todo!()
    }

    /// Append what is still held, each stray byte as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        let _ = out;
        todo!()
    }
}
