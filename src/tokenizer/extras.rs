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
    /// Added tokens as a tokenizer_config.json describes them, for a tokenizer.json that has them,
    /// too.
    pub described: Vec<AddedToken>,
    /// Ids without a text, of a GGUF.
    pub unused: BTreeSet<u32>,
    /// Ids that end a sequence beside the model's own, of a GGUF.
    pub stop_ids: Vec<Token>,
}

/// [`Error::Format`] for an id or a text that no token has.
pub(super) fn check(path: &Path, token: &AddedToken) -> Result<()> {
    let (id, bytes) = (token.id, token.text.len());
    match id < MAX_ID && (1..=MAX_TOKEN_BYTES).contains(&bytes) {
        true => Ok(()),
        false => Err(Error::format(
            path,
            format!(
                "added token {id} has {bytes} bytes, expected an id below {MAX_ID} and 1 to \
                 {MAX_TOKEN_BYTES} bytes"
            ),
        )),
    }
}

impl Extras {
    /// One more token, unless it is known already.
    pub fn add(&mut self, path: &Path, mut token: AddedToken) -> Result<()> {
        check(path, &token)?;
        let (id, text) = (token.id, &token.text);
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
