//! The place of a text in its grammar, and the mask of the tokens that may come next there. A
//! thread of its own computes it, see `guides`.

use crate::backend::choice::mask_words;
use crate::error::panic_text;
use crate::grammar::{Cursor, Grammar};
use crate::{Error, Result, Token, reserve};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// How far a sequence has come in its grammar.
pub(super) struct Guide {
    cursor: Cursor,
    /// The tokens that may come next. The thread fills it.
    mask: Vec<u32>,
    /// Whether the sequence may end in the state of the mask.
    accepts: bool,
    /// Tokens that end the sequence beside EOS.
    stop_tokens: Vec<Token>,
    /// Whether the returned text begins with the generated text.
    begins_text: bool,
    error: Option<Error>,
    ms: f64,
}

impl Guide {
    /// A guide at the beginning of its grammar. `begins_text`: whether nothing precedes the
    /// generated text in the returned text.
    pub fn new(
        grammar: &Arc<Grammar>,
        n_tokens: usize,
        stop_tokens: &[Token],
        begins_text: bool,
    ) -> Result<Box<Self>> {
        let mut mine = reserve::copy("the stop tokens of a sequence", stop_tokens)?;
        mine.retain(|token| (*token as usize) < n_tokens);
        Ok(Box::new(Self {
            cursor: Cursor::new(grammar),
            mask: reserve::filled("a grammar's mask", mask_words(n_tokens), 0)?,
            accepts: false,
            stop_tokens: mine,
            begins_text,
            error: None,
            ms: 0.0,
        }))
    }

    /// The tokens that may come next, by the last mask.
    pub fn mask(&self) -> &[u32] {
        &self.mask
    }

    /// Whether the text may end in the state for which the last mask was computed.
    pub fn accepts(&self) -> bool {
        self.accepts
    }

    /// Advances by a token that the mask allowed. Returns whether nothing can follow it.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        match self.cursor.take(token)? {
            true => self.cursor.is_complete(),
            false => Err(Error::Grammar(format!(
                "its mask allowed token {token}, which it does not take"
            ))),
        }
    }

    /// The same place once more, for a sequence that goes on apart from here.
    pub fn fork(&self) -> Result<Box<Self>> {
        Ok(Box::new(Self {
            cursor: self.cursor.clone(),
            mask: reserve::copy("a grammar's mask", &self.mask)?,
            stop_tokens: reserve::copy("the stop tokens of a sequence", &self.stop_tokens)?,
            error: None,
            ..*self
        }))
    }

    /// Whether nothing can follow this token, which the mask allows.
    pub fn ends_with(&self, token: Token) -> Result<bool> {
        self.fork()?.take(token)
    }

    /// Why the last mask was not computed, if it was not.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// The milliseconds that the last mask took.
    pub fn ms(&self) -> f64 {
        self.ms
    }

    /// Computes the mask; runs on the thread.
    pub fn compute(&mut self) {
        let start = Instant::now();
        let Self {
            cursor,
            mask,
            stop_tokens,
            begins_text,
            ..
        } = self;
        let computed = catch_unwind(AssertUnwindSafe(|| {
            match *begins_text {
                true => cursor.mask_to_generate(mask)?,
                false => cursor.mask(mask)?,
            }
            let accepts = cursor.accepts()?;
            // A stop token is no part of the text, and the text is of the language where it ends.
            for token in &*stop_tokens {
                let (word, bit) = (*token as usize / 32, 1 << (*token % 32));
                match accepts {
                    true => mask[word] |= bit,
                    false => mask[word] &= !bit,
                }
            }
            Ok(accepts)
        }));
        match computed {
            Ok(Ok(accepts)) => self.accepts = accepts,
            Ok(Err(error)) => self.error = Some(error),
            Err(panic) => {
                let why = panic_text(&*panic);
                self.error = Some(Error::Grammar(format!("the parser failed: {why}")));
            }
        }
        self.ms = start.elapsed().as_secs_f64() * 1e3;
    }
}
