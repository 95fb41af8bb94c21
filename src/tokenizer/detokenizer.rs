//! Decoding one token at a time without ever emitting half a code point.

use super::{Piece, Tokenizer};
use crate::Token;
use std::sync::Arc;

/// Incremental decoder: the pieces it returns, joined, equal [`Tokenizer::decode`] of all tokens.
pub struct Detokenizer {
    tokenizer: Arc<dyn Tokenizer>,
    /// Bytes that may still become one code point.
    held: Vec<u8>,
    /// Whether any text has come out, or a leading space has been dropped.
    begun: bool,
}

impl Detokenizer {
    /// Nothing decoded yet.
    pub fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        Self {
            tokenizer,
            held: Vec::new(),
            begun: false,
        }
    }

    /// Append to `out` what `token` makes certain; bytes that may still become a code point are held.
    pub fn push(&mut self, token: Token, out: &mut String) {
        match self.tokenizer.clone().piece(token) {
            Piece::Control => {}
            Piece::Text(text) => {
                self.finish(out);
                let strip = !self.begun && self.tokenizer.strips_leading_space();
                self.begun |= !text.is_empty();
                out.push_str(if strip {
                    text.strip_prefix(' ').unwrap_or(text)
                } else {
                    text
                });
            }
            Piece::Byte(byte) => {
                self.begun = true;
                self.held.push(byte);
                while let Err(error) = std::str::from_utf8(&self.held) {
                    if error.error_len().is_none() {
                        return;
                    }
                    self.held.remove(0);
                    out.push(char::REPLACEMENT_CHARACTER);
                }
                out.push_str(std::str::from_utf8(&self.held).unwrap_or_default());
                self.held.clear();
            }
        }
    }

    /// Append what is still held, each stray byte as U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        out.extend(self.held.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
    }
}
