//! What is known about a tokenizer from outside its own file.

use super::added::AddedToken;
use super::vocabulary::{MAX_ID, MAX_TOKEN_BYTES};
use crate::{Error, Result, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What the files beside a tokenizer, or the GGUF around it, say about it.
#[derive(Debug, Default)]
pub(super) struct Extras {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub pad: Option<String>,
    /// Whether BOS goes in front of a text.
    pub add_bos: Option<bool>,
    /// Whether a SentencePiece model puts a space in front of a text. `None`: as the model says.
    pub add_prefix_space: Option<bool>,
    /// Whether a SentencePiece model puts a space in front of what follows an added token. `None`:
    /// yes.
    pub legacy: Option<bool>,
    /// Added tokens with this id or a higher one are left out.
    pub added_end: Option<u32>,
    /// Added tokens, for a model that cannot name them itself.
    pub added: BTreeMap<u32, AddedToken>,
    /// Added tokens as a tokenizer_config.json describes them. They are for a tokenizer.json, which
    /// names added tokens as well.
    pub described: Vec<AddedToken>,
    /// Ids without a text, from a GGUF.
    pub unused: BTreeSet<u32>,
    /// Ids that end a sequence besides the model's own, from a GGUF.
    pub stop_ids: Vec<Token>,
}

/// [`Error::Format`] if a token cannot have this id or this text.
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
    /// Adds a token, unless it is known already. [`Error::Format`] if the id has another text.
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
        // SentencePiece itself normalises what is left of a text.
        token.normalized = false;
        self.added.insert(id, token);
        Ok(())
    }
}
