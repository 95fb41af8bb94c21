//! How far one text has come in its language.

use super::parser::Parser;
use super::quiet::{Quiet, quietly};
use super::{Grammar, WORK_BYTES, lock};
use crate::{Error, Result, Token, reserve};
use llguidance::api::StopReason;
use std::sync::Arc;

/// What a parser may grow by before [`WORK_BYTES`] are looked for again.
const GROWTH_BYTES: usize = 256 << 10;

/// What is looked for where it has not grown so much: room for a mask and the lists of one step.
/// From 128 KiB on the C library would ask the system for them.
const LITTLE_BYTES: usize = 32 << 10;

/// What a copy of a place takes for each token of the text, at most: its bytes, and the states of
/// the lexer behind each of them.
const TOKEN_BYTES: usize = 512;

const WHAT: &str = "a text in a grammar";

/// A place in the texts of a grammar, behind some tokens.
///
/// Clones of one parser share what its lexer has found out. An error of the lexer (it has too many
/// states, it was too slow, it panicked) therefore stays with all of them. Whoever meets such an
/// error begins anew with a parser that shares nothing: if that fails too, the failure is this
/// text's own.
pub struct Cursor {
    grammar: Arc<Grammar>,
    parser: Parser,
    /// [`super::Working::generation`] of the parser that this one was cloned from; `None` for one
    /// that shares nothing.
    generation: Option<u64>,
    tokens: Vec<Token>,
    /// Bytes of the parser from which on there is to be a look for more.
    room_up_to: usize,
    /// As long as there is something that may ask the parser.
    _quiet: Quiet,
}

impl Cursor {
    /// At the beginning. [`Error::Refused`] where there is no memory for it.
    pub fn new(grammar: &Arc<Grammar>) -> Result<Self> {
        let mut working = lock(&grammar.working);
        let generation = working.generation;
        let parser = match &mut working.parser {
            Some(parser) => parser,
            none => none.insert(grammar.fresh()?),
        };
        Self::behind(grammar, Some(generation), parser, &[])
    }

    /// The same place once more, for a text that goes on apart from here.
    pub fn fork(&self) -> Result<Self> {
        let (generation, tokens) = (self.generation, &self.tokens);
        let mut fork = Self::behind(&self.grammar, generation, &self.parser, tokens)?;
        fork.room_up_to = self.room_up_to;
        Ok(fork)
    }

    /// With a copy of this parser, which is behind these tokens.
    fn behind(
        grammar: &Arc<Grammar>,
        generation: Option<u64>,
        parser: &Parser,
        tokens: &[Token],
    ) -> Result<Self> {
        let bytes = LITTLE_BYTES + 2 * parser.items_bytes() + TOKEN_BYTES * tokens.len();
        reserve::headroom(WHAT, bytes)?;
        Ok(Self {
            grammar: grammar.clone(),
            parser: parser.clone(),
            generation,
            tokens: reserve::copy(WHAT, tokens)?,
            room_up_to: 0,
            _quiet: Quiet::new(),
        })
    }

    /// What the text is of.
    #[cfg(test)]
    pub(super) fn grammar(&self) -> Arc<Grammar> {
        self.grammar.clone()
    }

    /// Go on behind `token`. Whether the grammar allows it; where not, nothing has changed.
    ///
    /// [`Error::Grammar`] where the parser gives up, [`Error::NoMemory`] where it takes too much.
    pub fn take(&mut self, token: Token) -> Result<bool> {
        let Ok(id) = u32::try_from(token) else {
            return Ok(false);
        };
        if id as usize >= self.grammar.vocabulary.n_tokens || self.is_complete()? {
            return Ok(false);
        }
        reserve::vec(WHAT, &mut self.tokens, 1)?;
        let taken = self.with(|parser| parser.take(id))?;
        if taken {
            self.tokens.push(token);
        }
        Ok(taken)
    }

    /// The tokens that may follow; see [`Grammar::mask`].
    pub fn mask(&mut self, mask: &mut [u32]) -> Result<()> {
        let found = self.with(Parser::mask)?;
        let words = found.as_slice();
        let n = words.len().min(mask.len());
        mask[..n].copy_from_slice(&words[..n]);
        mask[n..].fill(0);
        // The parser may have an id of its own that ends a sequence.
        let n_tokens = self.grammar.vocabulary.n_tokens;
        if let Some(word) = mask.get_mut(n_tokens / 32) {
            *word &= (1 << (n_tokens % 32)) - 1;
        }
        Ok(())
    }

    /// The same for a sequence that begins here: without the tokens whose leading space the grammar
    /// counts otherwise than the decoded text has it. A space may be written in several ways, and
    /// not all of them are dropped at the beginning of a text.
    pub fn mask_to_generate(&mut self, mask: &mut [u32]) -> Result<()> {
        self.mask(mask)?;
        let vocabulary = &self.grammar.vocabulary;
        let banned = match *self.tokens {
            [] => &vocabulary.kept_spaces,
            [only] if self.grammar.is_one_space(only) => &vocabulary.dropped_spaces,
            _ => return Ok(()),
        };
        for &token in banned {
            mask[token as usize / 32] &= !(1 << (token % 32));
        }
        Ok(())
    }

    /// Whether the text is of the language and none that is begins with it.
    ///
    /// [`Error::Grammar`] where the parser has stopped for another reason: a limit of the grammar's
    /// own on the number of tokens, or of ours on the work.
    pub fn is_complete(&self) -> Result<bool> {
        match self.parser.stop_reason() {
            StopReason::NotStopped => Ok(false),
            StopReason::NoExtension | StopReason::EndOfSentence => Ok(true),
            reason => Err(Error::Grammar(match self.parser.error() {
                Some(error) => sentence(error),
                None => format!("the parser has stopped: {reason}"),
            })),
        }
    }

    /// Whether the text is of the language.
    ///
    /// [`Error::Grammar`] where the parser gives up.
    pub fn accepts(&mut self) -> Result<bool> {
        Ok(self.is_complete()? || self.with(Parser::is_accepting)?)
    }

    /// How many of these tokens, from the first on, the grammar allows one behind another.
    ///
    /// [`Error::Grammar`] where the parser gives up, [`Error::NoMemory`] where it takes too much.
    pub(super) fn allowed(&mut self, tokens: &[Token]) -> Result<usize> {
        let n_tokens = self.grammar.vocabulary.n_tokens;
        let known =
            |token: &&Token| u32::try_from(**token).is_ok_and(|id| (id as usize) < n_tokens);
        let known = tokens.iter().take_while(known).count();
        self.with(|parser| parser.allowed(&tokens[..known]))
    }

    /// The first bytes, at most `most`, of the only text that the grammar lets come next, and
    /// whether they are all of it and end the text. The parser is then in another state than one
    /// that has not been asked: see [`super::Scout`].
    ///
    /// [`Error::Grammar`] where the parser gives up, [`Error::NoMemory`] where it takes too much.
    pub(super) fn forced(&mut self, most: usize) -> Result<(Vec<u8>, bool)> {
        self.with(|parser| parser.forced(most))
    }

    /// Have the parser do something; see [`Cursor`] for what happens where it fails.
    fn with<T>(
        &mut self,
        work: impl Fn(&mut Parser) -> std::result::Result<T, String>,
    ) -> Result<T> {
        self.find_room()?;
        let done = quietly(|| self.with_parser(work))?;
        self.parser.settle()?;
        Ok(done)
    }

    /// Looks whether there is memory for what the parser does next: it cannot be told that there is
    /// none. To look for much is a system call, so that is done for a parser that is new here or
    /// has grown, which took longer, and otherwise some times in a second. A text that stays within
    /// what its lexer knows takes little.
    fn find_room(&mut self) -> Result<()> {
        let bytes = self.parser.bytes();
        if bytes < self.room_up_to && !self.parser.is_time_to_look() {
            return reserve::headroom(WHAT, LITTLE_BYTES);
        }
        reserve::headroom(WHAT, WORK_BYTES)?;
        self.parser.has_looked();
        self.room_up_to = bytes + GROWTH_BYTES;
        Ok(())
    }

    fn with_parser<T>(
        &mut self,
        work: impl Fn(&mut Parser) -> std::result::Result<T, String>,
    ) -> Result<T> {
        let first = work(&mut self.parser);
        let Some(generation) = self.generation.filter(|_| first.is_err()) else {
            return first.map_err(failure);
        };
        self.generation = None;
        {
            let mut working = lock(&self.grammar.working);
            if working.generation == generation {
                working.parser = None;
                working.generation += 1;
            }
        }
        self.parser = self.grammar.fresh()?;
        self.room_up_to = 0;
        for at in 0..self.tokens.len() {
            self.find_room()?;
            let token = self.tokens[at] as u32;
            self.parser.retake(token).map_err(failure)?;
            self.parser.settle()?;
        }
        self.find_room()?;
        work(&mut self.parser).map_err(failure)
    }
}

impl Drop for Cursor {
    /// What a lexer has learnt is kept for the next text, unless it is much.
    fn drop(&mut self) {
        let mut working = lock(&self.grammar.working);
        let parser = working.parser.as_ref();
        if parser.is_some_and(|parser| parser.is_large_and_only_shared_with(&self.parser)) {
            working.parser = None;
        }
    }
}

impl Grammar {
    fn is_one_space(&self, token: Token) -> bool {
        let env = self.vocabulary.factory.tok_env();
        env.tok_trie().token(token as u32) == b" "
    }
}

fn failure(error: String) -> Error {
    Error::Grammar(sentence(&error))
}

/// The parser's sentence without what it would have been followed by.
pub(super) fn sentence(error: &str) -> String {
    let error = error.split("\n<non-verbose/>").next().unwrap_or(error);
    // A panic brings its backtrace.
    let error = error.split("\n<backtrace>").next().unwrap_or(error);
    match error.trim() {
        "NoExtensionBias" => "no token can follow here, and the text may not end here".into(),
        error => error.into(),
    }
}
