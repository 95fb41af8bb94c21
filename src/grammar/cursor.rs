//! How far one text has come in its language.

use super::parser::Parser;
use super::quiet::{Quiet, quietly};
use super::{Grammar, WORK_BYTES, lock};
use crate::{Error, Result, Token, reserve};
use llguidance::api::StopReason;
use std::sync::Arc;

/// After a parser has grown by this much, we check again that [`WORK_BYTES`] of memory are
/// available.
const GROWTH_BYTES: usize = 256 << 10;

/// Memory to check for if the parser has grown less: enough for a mask and the lists of one step.
/// It is below 128 KiB, where the C library's malloc turns to mmap.
const LITTLE_BYTES: usize = 32 << 10;

/// The most that a copy of a cursor takes for each token of the text: the token's bytes, and the
/// lexer states behind each of them.
const TOKEN_BYTES: usize = 512;

const WHAT: &str = "a text in a grammar";

/// A place in the texts of a grammar: behind the tokens of a text so far.
///
/// Clones of one parser share what its lexer has found out. So an error of the lexer (too many
/// states, too slow, a panic) stays with all of them. A cursor that meets such an error starts
/// again with a parser that shares nothing. If that parser fails too, the cause is this text
/// itself.
pub struct Cursor {
    grammar: Arc<Grammar>,
    parser: Parser,
    /// [`super::Working::generation`] of the parser that this one was cloned from. `None` for a
    /// parser that shares nothing.
    generation: Option<u64>,
    tokens: Vec<Token>,
    /// When the parser reaches this size in bytes, we check for more memory.
    room_up_to: usize,
    /// Keeps the panic hook quiet while this cursor lives, because it may call the parser.
    _quiet: Quiet,
}

impl Cursor {
    /// A cursor at the beginning of a text. [`Error::Refused`] if there is no memory for it.
    pub fn new(grammar: &Arc<Grammar>) -> Result<Self> {
        let mut working = lock(&grammar.working);
        let generation = working.generation;
        let parser = match &mut working.parser {
            Some(parser) => parser,
            none => none.insert(grammar.fresh()?),
        };
        Self::behind(grammar, Some(generation), parser, &[])
    }

    /// A second cursor at the same place, for a text that continues independently.
    pub fn fork(&self) -> Result<Self> {
        let (generation, tokens) = (self.generation, &self.tokens);
        let mut fork = Self::behind(&self.grammar, generation, &self.parser, tokens)?;
        fork.room_up_to = self.room_up_to;
        Ok(fork)
    }

    /// A cursor with a copy of `parser`, which stands behind `tokens`.
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

    /// The grammar of this text.
    #[cfg(test)]
    pub(super) fn grammar(&self) -> Arc<Grammar> {
        self.grammar.clone()
    }

    /// Appends `token` and returns whether the grammar allows it. If not, the cursor is unchanged.
    ///
    /// [`Error::Grammar`] if the parser gives up, [`Error::NoMemory`] if it needs too much memory.
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

    /// Writes the tokens that may follow to `mask`; see [`Grammar::mask`].
    pub fn mask(&mut self, mask: &mut [u32]) -> Result<()> {
        let found = self.with(Parser::mask)?;
        let words = found.as_slice();
        let n = words.len().min(mask.len());
        mask[..n].copy_from_slice(&words[..n]);
        mask[n..].fill(0);
        // The parser may have an id of its own that ends a sequence, behind the tokenizer's ids.
        let n_tokens = self.grammar.vocabulary.n_tokens;
        if let Some(word) = mask.get_mut(n_tokens / 32) {
            *word &= (1 << (n_tokens % 32)) - 1;
        }
        Ok(())
    }

    /// As [`Self::mask`], for a sequence that begins here. Excludes tokens whose leading space the
    /// grammar and the decoder treat differently: one of them drops the space, the other counts it
    /// as text. A space can be written in several ways, and decoding does not drop all of them at
    /// the beginning of a text.
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

    /// Whether the text belongs to the language and cannot be extended to a longer text that does.
    ///
    /// [`Error::Grammar`] if the parser has stopped for another reason: the grammar's own limit on
    /// the number of tokens, or our limit on the work.
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

    /// Whether the text belongs to the language.
    ///
    /// [`Error::Grammar`] if the parser gives up.
    pub fn accepts(&mut self) -> Result<bool> {
        Ok(self.is_complete()? || self.with(Parser::is_accepting)?)
    }

    /// How many of `tokens`, counted from the first, the grammar allows one after the other.
    ///
    /// [`Error::Grammar`] if the parser gives up, [`Error::NoMemory`] if it needs too much memory.
    pub(super) fn allowed(&mut self, tokens: &[Token]) -> Result<usize> {
        let n_tokens = self.grammar.vocabulary.n_tokens;
        let known =
            |token: &&Token| u32::try_from(**token).is_ok_and(|id| (id as usize) < n_tokens);
        let known = tokens.iter().take_while(known).count();
        self.with(|parser| parser.allowed(&tokens[..known]))
    }

    /// If only one text can come next: its first bytes, at most `most` of them. The `bool` says
    /// whether these bytes are all of that text and also end the whole text. Afterwards the parser
    /// is in another state than a parser that was not asked: see [`super::Scout`].
    ///
    /// [`Error::Grammar`] if the parser gives up, [`Error::NoMemory`] if it needs too much memory.
    pub(super) fn forced(&mut self, most: usize) -> Result<(Vec<u8>, bool)> {
        self.with(|parser| parser.forced(most))
    }

    /// Runs `work` on the parser. [`Cursor`] says what happens if it fails.
    fn with<T>(
        &mut self,
        work: impl Fn(&mut Parser) -> std::result::Result<T, String>,
    ) -> Result<T> {
        self.find_room()?;
        let done = quietly(|| self.with_parser(work))?;
        self.parser.settle()?;
        Ok(done)
    }

    /// Checks that there is memory for the parser's next operation, because the parser cannot
    /// report a failed allocation. The full check is a system call. So it runs only for a parser
    /// that is new here or has grown (which took longer than the check), and otherwise some times a
    /// second. A text that stays within the states that its lexer knows takes little memory.
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
    /// What a lexer has learnt is kept for the next text, unless it takes much memory.
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

/// The first part of the parser's error message, without grammar dump and backtrace.
pub(super) fn sentence(error: &str) -> String {
    let error = error.split("\n<non-verbose/>").next().unwrap_or(error);
    // The message of a panic has a backtrace.
    let error = error.split("\n<backtrace>").next().unwrap_or(error);
    match error.trim() {
        "NoExtensionBias" => "no token can follow here, and the text may not end here".into(),
        error => error.into(),
    }
}
