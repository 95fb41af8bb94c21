//! The checkpoint of a draft model, which must have the model's tokens.

use super::build::{Build, Opened};
use super::tokens::{fitting, tokenizer_of};
use crate::checkpoint;
use crate::log::Level;
use crate::tokenizer::Tokenizer;
use crate::{Cancel, Error, Result, Token};
use std::path::Path;

impl Build<'_> {
    /// Opens the checkpoint of the draft model, if there is one.
    ///
    /// Fails with [`Error::Format`] if a token of its tokenizer is not the model's.
    pub(super) fn open_draft(&self, opened: &Opened) -> Result<Option<Opened>> {
        let Some(dir) = &self.options.draft_dir else {
            return Ok(None);
        };
        let cancel = self.options.cancel.as_ref();
        if cancel.is_some_and(Cancel::is_triggered) {
            return Err(Error::Cancelled);
        }
        let draft = self.open_at(dir, None)?;
        same_tokens(dir, &*draft.tokenizer, &*opened.tokenizer)?;
        Ok(Some(draft))
    }

    /// Opens a checkpoint and the tokenizer that belongs to it, or the one that is named instead.
    pub(super) fn open_at(&self, dir: &Path, tokenizer: Option<&Path>) -> Result<Opened> {
        // The checkpoint is opened before the tokenizer, so that the error for a directory of
        // something else says that.
        let checkpoint = checkpoint::open(dir)?;
        let tokenizer = tokenizer_of(&*checkpoint, tokenizer)?;
        let cancel = self.options.cancel.as_ref();
        if cancel.is_some_and(Cancel::is_triggered) {
            return Err(Error::Cancelled);
        }
        let config = checkpoint.config(tokenizer.1.vocab_size())?;
        let (tokenizer, warning) = fitting(tokenizer, &config)?;
        if let Some(warning) = warning {
            self.options.log.write(Level::Warn, || warning);
        }
        let files = checkpoint.open(cancel)?;
        Ok(Opened {
            dir: dir.to_owned(),
            checkpoint,
            tokenizer,
            config,
            files,
        })
    }
}

/// Checks that each token is the same in both.
fn same_tokens(dir: &Path, draft: &dyn Tokenizer, model: &dyn Tokenizer) -> Result<()> {
    let (ours, own) = (model.vocab_size(), draft.vocab_size());
    if ours != own {
        let detail = format!("a draft model of {own} tokens for a model of {ours}");
        return Err(Error::format(dir, detail));
    }
    let differs = |token: &Token| {
        let same = draft.piece(*token) == model.piece(*token)
            && draft.special_text(*token) == model.special_text(*token);
        !same
    };
    match (0..ours as Token).find(differs) {
        None => Ok(()),
        Some(token) => {
            let (own, ours) = (word(draft, token), word(model, token));
            let detail = format!("token {token} of the draft model is {own}, the model's {ours}");
            Err(Error::format(dir, detail))
        }
    }
}

fn word(tokenizer: &dyn Tokenizer, token: Token) -> String {
    match tokenizer.special_text(token) {
        Some(text) => format!("{text:?}"),
        None => format!("{:?}", tokenizer.piece(token)),
    }
}
