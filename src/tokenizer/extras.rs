//! What is said of a tokenizer outside of its own file.

use super::added::AddedToken;
use super::vocabulary::{MAX_ID, MAX_TOKEN_BYTES};
use crate::{Error, Result, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What the files beside a tokenizer, or a GGUF around it, say of it.
#[derive(Debug, Default)]
pub(super) struct Extras {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub pad: Option<String>,
    /// Whether BOS goes in front of a text.
    pub add_bos: Option<bool>,
    /// Whether a SentencePiece model puts a space in front of a text; as the model says where
    /// nothing is said here.
    pub add_prefix_space: Option<bool>,
    /// Whether a SentencePiece model puts a space in front of what follows an added token; so where
    /// nothing is said.
    pub legacy: Option<bool>,
    /// Added tokens from this id on are left out.
    pub added_end: Option<u32>,
    /// Added tokens, for a model that cannot name them itself.
    pub added: BTreeMap<u32, AddedToken>,
    /// Ids without a text, of a GGUF.
    pub unused: BTreeSet<u32>,
    /// Ids that end a sequence beside the model's own, of a GGUF.
    pub stop_ids: Vec<Token>,
}

impl Extras {
    /// One more token, unless it is known already.
    pub fn add(&mut self, path: &Path, mut token: AddedToken) -> Result<()> {
        let (id, text) = (token.id, &token.text);
        if id >= MAX_ID || text.is_empty() || text.len() > MAX_TOKEN_BYTES {
            return Err(Error::format(
                path,
                format!(
                    "added token {id} has {} bytes, expected an id below {MAX_ID} and 1 to \
                     {MAX_TOKEN_BYTES} bytes",
                    text.len()
                ),
            ));
        }
        match self.added.get(&id) {
            Some(other) if other.text == *text => return Ok(()),
            Some(other) => {
                let detail = format!("token {id} is {text:?}, another file says {:?}", other.text);
                return Err(Error::format(path, detail));
            }
            None => {}
        }
        // SentencePiece normalises what is left of a text by itself.
        token.normalized = false;
        self.added.insert(id, token);
        Ok(())
    }
}
