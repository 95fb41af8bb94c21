//! Text to token ids and back, behind one trait that every kind of tokenizer joins.

pub mod detokenizer;
pub mod sentencepiece;

pub use detokenizer::Detokenizer;

use crate::{Result, Token};
use std::path::Path;
use std::sync::Arc;

/// What the detokeniser does with a token in the middle of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Whole text, spaces as spaces.
    Text(&'a str),
    /// One byte of a longer UTF-8 sequence.
    Byte(u8),
    /// Nothing (BOS, EOS and other controls, ids beyond the tokenizer's).
    Control,
}

/// A tokenizer. Ids are `0..vocab_size`.
pub trait Tokenizer: Send + Sync {
    /// Number of ids.
    fn vocab_size(&self) -> usize;
    /// Begin-of-sequence id.
    fn bos_id(&self) -> Token;
    /// End-of-sequence id.
    fn eos_id(&self) -> Token;
    /// Padding id, -1 where there is none.
    fn pad_id(&self) -> Token;
    /// Ids of `text`, without BOS or EOS.
    fn encode(&self, text: &str) -> Result<Vec<Token>>;
    /// The library's own decoding of a whole sequence. Ids must be in `0..vocab_size` or are skipped.
    fn decode(&self, tokens: &[Token]) -> String;
    /// What `token` adds in the middle of a text.
    fn piece(&self, token: Token) -> Piece<'_>;
    /// Whether decoding drops one leading space while the text is still empty.
    fn strips_leading_space(&self) -> bool;
}

/// Open a tokenizer file of any kind we know; says which kinds are not supported yet.
pub fn open(path: &Path) -> Result<Arc<dyn Tokenizer>> {
    let _ = path;
    todo!()
}
