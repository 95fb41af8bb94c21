//! The tokenizer that fits a model, and the tokens that end its sequences.

use crate::checkpoint::gguf::vocabulary;
use crate::checkpoint::{Checkpoint, TokenizerSource};
use crate::model::Config;
use crate::tokenizer::{self, Piece, Tokenizer};
use crate::{Error, Result, Token, sentence};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most tokens that end a sequence: as many as `llama_info.eos_ids` has room for.
const MAX_EOS: usize = 16;

/// Tokens that end a sequence: the configuration's, then the tokenizer's.
pub(super) fn eos_ids(
    ckpt_dir: &Path,
    config: &Config,
    tokenizer: &dyn Tokenizer,
) -> Result<Vec<Token>> {
    let mut ids = config.eos_ids.clone();
    let own = std::iter::once(tokenizer.eos_id()).chain(tokenizer.stop_ids().iter().copied());
    for id in own.filter(|&id| id >= 0) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    if ids.len() > MAX_EOS {
        let n = ids.len();
        let detail = format!("{n} end-of-sequence tokens, at most {MAX_EOS} are supported");
        return Err(Error::format(ckpt_dir, detail));
    }
    Ok(ids)
}

/// A tokenizer without tokens for which the model has no embedding: added tokens after the model's
/// vocabulary, which fine-tunes list (`<pad>`) and never use. Also returns a warning about these.
///
/// # Errors
/// [`Error::Format`] if other tokens are after the vocabulary, too.
pub(super) fn fitting(
    (path, tokenizer): (PathBuf, Arc<dyn Tokenizer>),
    config: &Config,
) -> Result<(Arc<dyn Tokenizer>, Option<String>)> {
    const NAMED: usize = 4;
    let (pieces, vocab_size) = (tokenizer.vocab_size(), config.shape.vocab_size);
    if pieces <= vocab_size {
        return Ok((tokenizer, None));
    }
    let fits = match tokenizer::open_below(&path, vocab_size as u32) {
        Ok(below) => Some(below).filter(|below| below.vocab_size() <= vocab_size),
        // The vocabulary of a GGUF is not a separate file.
        Err(Error::Format { .. }) => None,
        Err(error) => return Err(error),
    };
    let Some(below) = fits else {
        let detail =
            format!("the tokenizer has {pieces} pieces, the model's vocabulary only {vocab_size}");
        return Err(Error::format(path, detail));
    };
    let named = |id: Token| {
        let text = match tokenizer.piece(id) {
            Piece::Text(text) | Piece::Literal(text) => Some(text),
            _ => tokenizer.special_text(id),
        };
        text.map(|text| format!("{id} {text:?}"))
    };
    let left_out = (vocab_size as Token..pieces as Token).filter_map(named);
    let named: Vec<String> = left_out.take(NAMED).collect();
    let warning = format!(
        "{}: the model's vocabulary has {vocab_size} tokens, the tokenizer {pieces}: added tokens \
         behind it are left out ({})",
        sentence::path(&path),
        named.join(", ")
    );
    Ok((below, Some(warning)))
}

/// The tokenizer of a checkpoint, or of the file that is named instead, and its place.
pub(super) fn tokenizer_of(
    checkpoint: &dyn Checkpoint,
    path: Option<&Path>,
) -> Result<(PathBuf, Arc<dyn Tokenizer>)> {
    match (path, checkpoint.tokenizer()) {
        (Some(path), _) => Ok((path.to_owned(), tokenizer::open(path)?)),
        (None, TokenizerSource::Directory(dir)) => Ok((dir.to_owned(), tokenizer::open_in(dir)?)),
        (None, TokenizerSource::Gguf(gguf)) => {
            let path = checkpoint.config_path();
            Ok((path.to_owned(), vocabulary(gguf)?.tokenizer(path)?))
        }
    }
}
