//! The way of a text through a tokenizer that merges by rank: added tokens, normaliser, added
//! tokens again, the cut into pieces, merges. The modules that read files fill in a [`Pipeline`].

use super::added::{Added, Pass};
use super::bpe::{Bpe, Scratch};
use super::normalizer::Normalizer;
use super::pairs::{Pairs, SPACE_SYMBOL};
use super::split::{self, Expression};
use super::vocabulary::Vocabulary;
use super::{Bound, Encoded, Joining, Piece, Run, Tokenizer};
use crate::{Cancel, Error, Result, Token, reserve};
use std::borrow::Cow;
use std::ops::Range;

const WHAT: &str = "encoding a text";
/// Bytes of text between two checks of the bound.
const BYTES_PER_LOOK: usize = 4 << 10;

/// Writes spaces as a symbol, and may put one in front of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metaspace {
    /// U+2581, or a plain space.
    pub symbol: char,
    pub prepend: Prepend,
    /// Whether each symbol begins a piece.
    pub split: bool,
}

/// Which texts get a space in front. Texts that begin with a space get none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    Never,
    /// Only the start of the whole text, unless a normaliser removed that start (as in tokenizers).
    First,
    /// Also texts behind added tokens.
    Always,
}

/// How a text is cut into pieces.
pub(super) struct Cut {
    /// Comes first. It cuts as well, if its `split` is set.
    pub metaspace: Option<Metaspace>,
    pub by: By,
}

/// What else cuts a text.
pub(super) enum By {
    /// Expressions, one after the other. There are none if [`Metaspace`] cuts.
    Expressions(Vec<Expression>),
    /// Between two characters that no token spans. `None`: no cut.
    Pairs(Option<Pairs>),
}

impl Cut {
    /// A cut that only uses expressions.
    pub fn expressions(all: Vec<Expression>) -> Cut {
        Cut {
            metaspace: None,
            by: By::Expressions(all),
        }
    }
}

/// A tokenizer that merges by rank.
pub(super) struct Pipeline {
    /// The texts as decoding shows them.
    pub vocabulary: Vocabulary,
    /// The texts as merging needs them, if those are different: with spaces as U+2581.
    pub raw: Option<Vocabulary>,
    pub bpe: Bpe,
    pub added: Added,
    pub normalizer: Normalizer,
    pub cut: Cut,
    /// -1 if there is none. The same holds for the other ids.
    pub bos_id: Token,
    pub eos_id: Token,
    pub pad_id: Token,
    pub stop_ids: Vec<Token>,
    pub adds_bos: bool,
    pub strips_leading_space: bool,
    pub strips_first: bool,
    pub joining: Joining,
    /// Whether every byte of a text becomes part of a token.
    pub covers_bytes: bool,
}

/// The state of one encoding.
struct Encoding<'a> {
    pipeline: &'a Pipeline,
    bound: Bound<'a>,
    tokens: &'a mut Vec<Token>,
    scratch: Scratch,
    /// Bytes of the given text behind the current stretch.
    behind: usize,
    since_look: usize,
    /// If there would be too many tokens: the fewest that there would be.
    too_long: Option<usize>,
}

/// Ends an encoding early. The caller does not see this as an error.
fn enough() -> Error {
    Error::Cancelled
}

impl Encoding<'_> {
    /// Encodes a stretch of the text as it was given. It has no added tokens of the first pass.
    fn stretch(&mut self, text: &str, runs: &[Run], first: bool) -> Result<()> {
        let pipeline = self.pipeline;
        self.look(text.len())?;
        if runs.iter().all(|run| !run.from_template) {
            let normalized = pipeline.normalizer.apply(text)?;
            return self.pieces(&normalized.text, first && normalized.has_start);
        }
        let (normalized, runs) = pipeline.normalizer.apply_to_runs(text, runs)?;
        let (text, first) = (normalized.text, first && normalized.has_start);
        for (id, range) in pipeline.added.cut(Pass::Normalized, &text, &runs)? {
            let first = first && range.start == 0;
            match id {
                Some(id) => self.push(id)?,
                None => self.pieces(&text[range], first)?,
            }
        }
        Ok(())
    }

    fn push(&mut self, id: Token) -> Result<()> {
        reserve::vec(WHAT, self.tokens, 1)?;
        self.tokens.push(id);
        Ok(())
    }

    /// Encodes a normalised stretch without added tokens.
    fn pieces(&mut self, text: &str, first: bool) -> Result<()> {
        let Cut { metaspace, by } = &self.pipeline.cut;
        let text = match metaspace {
            Some(metaspace) => metaspace.apply(text, first)?,
            None => Cow::Borrowed(text),
        };
        match by {
            By::Expressions(expressions) => {
                let mut rest = text.len();
                split::split(expressions, &text, &mut |piece| {
                    let done = self.piece(piece, rest);
                    rest -= piece.len();
                    done
                })
            }
            By::Pairs(pairs) => {
                let mut rest = &text[..];
                while !rest.is_empty() {
                    let word = match metaspace.is_some_and(|m| m.split) {
                        true => up_to_space(rest),
                        false => rest,
                    };
                    let word = match pairs {
                        Some(pairs) => &word[..pairs.first_word(word)],
                        None => word,
                    };
                    self.piece(word, rest.len())?;
                    rest = &rest[word.len()..];
                }
                Ok(())
            }
        }
    }

    /// Encodes one piece. `rest`: bytes of its stretch from this piece on.
    fn piece(&mut self, piece: &str, rest: usize) -> Result<()> {
        self.since_look += piece.len();
        if self.since_look >= BYTES_PER_LOOK {
            self.since_look = 0;
            self.look(rest)?;
        }
        let pipeline = self.pipeline;
        let vocabulary = pipeline.raw.as_ref().unwrap_or(&pipeline.vocabulary);
        let cancel = self.bound.cancel;
        let scratch = &mut self.scratch;
        pipeline
            .bpe
            .encode(piece, vocabulary, scratch, self.tokens, cancel)
    }

    /// Checks the bound. `rest`: bytes of the current stretch that are not encoded yet.
    fn look(&mut self, rest: usize) -> Result<()> {
        if self.bound.cancel.is_some_and(Cancel::is_triggered) {
            return Err(Error::Cancelled);
        }
        let rest = rest.saturating_add(self.behind);
        let least = self.tokens.len() + self.pipeline.least_tokens(rest);
        match self.bound.max_tokens {
            Some(max) if least > max => {
                self.too_long = Some(least);
                Err(enough())
            }
            _ => Ok(()),
        }
    }
}

impl Metaspace {
    fn apply<'a>(self, text: &'a str, first: bool) -> Result<Cow<'a, str>> {
        if text.is_empty() {
            return Ok(Cow::Borrowed(text));
        }
        let begins = text.starts_with([' ', self.symbol]);
        let prepend = !begins
            && match self.prepend {
                Prepend::Never => false,
                Prepend::First => first,
                Prepend::Always => true,
            };
        let is_written = self.symbol == ' ' || !text.contains(' ');
        if !prepend && is_written {
            return Ok(Cow::Borrowed(text));
        }
        let width = self.symbol.len_utf8();
        let spaces = text.bytes().filter(|&byte| byte == b' ').count() + usize::from(prepend);
        let mut out = String::new();
        reserve::string(WHAT, &mut out, text.len() + spaces * width)?;
        if prepend {
            out.push(self.symbol);
        }
        out.extend(text.chars().map(|c| if c == ' ' { self.symbol } else { c }));
        Ok(Cow::Owned(out))
    }
}

/// The text up to the next space symbol. A symbol at its beginning does not count.
fn up_to_space(text: &str) -> &str {
    let mut symbols = text.match_indices(SPACE_SYMBOL).map(|(at, _)| at);
    let end = symbols.find(|&at| at > 0);
    &text[..end.unwrap_or(text.len())]
}

impl Pipeline {
    /// The fewest tokens that this many bytes can become, if they follow other text.
    fn least_tokens(&self, bytes: usize) -> usize {
        let longest = self.added.longest();
        match (longest, self.normalizer.most_shrinking()) {
            (Some(longest), Some(shrinking)) if self.covers_bytes => {
                let vocabulary = self.raw.as_ref().unwrap_or(&self.vocabulary);
                let longest = longest.max(vocabulary.longest());
                bytes.div_ceil(longest.saturating_mul(shrinking))
            }
            _ => 0,
        }
    }
}

impl Encoding<'_> {
    fn all(&mut self, text: &str, runs: &[Run]) -> Result<()> {
        let mut at = RunsOf {
            runs,
            next: 0,
            start: 0,
        };
        for (id, range) in self.pipeline.added.cut(Pass::Raw, text, runs)? {
            self.behind = text.len() - range.end;
            match id {
                Some(id) => {
                    self.push(id)?;
                    self.look(0)?;
                }
                None => {
                    let runs = at.within(range.clone())?;
                    self.stretch(&text[range.clone()], &runs, range.start == 0)?;
                }
            }
        }
        self.behind = 0;
        self.look(0)
    }
}

/// Cuts runs in the way that the text is cut.
struct RunsOf<'a> {
    runs: &'a [Run],
    /// Index of the current run, and where the run begins in the text.
    next: usize,
    start: usize,
}

impl RunsOf<'_> {
    /// The runs of a stretch that begins near the place where the last stretch ended.
    fn within(&mut self, range: Range<usize>) -> Result<Vec<Run>> {
        while self.start > range.start {
            self.next -= 1;
            self.start -= self.runs[self.next].len;
        }
        let mut inside: Vec<Run> = Vec::new();
        while let Some(run) = self.runs.get(self.next) {
            let end = self.start + run.len;
            let len = end
                .min(range.end)
                .saturating_sub(self.start.max(range.start));
            if len > 0 {
                reserve::vec(WHAT, &mut inside, 1)?;
                let from_template = run.from_template;
                inside.push(Run { len, from_template });
            }
            if end > range.end {
                break;
            }
            (self.start, self.next) = (end, self.next + 1);
        }
        Ok(inside)
    }
}

impl Tokenizer for Pipeline {
    fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    fn bos_id(&self) -> Token {
        self.bos_id
    }

    fn eos_id(&self) -> Token {
        self.eos_id
    }

    fn pad_id(&self) -> Token {
        self.pad_id
    }

    fn stop_ids(&self) -> &[Token] {
        &self.stop_ids
    }

    fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    fn encode_runs(
        &self,
        text: &str,
        runs: &[Run],
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let mut encoding = Encoding {
            pipeline: self,
            bound,
            tokens,
            scratch: Scratch::default(),
            behind: 0,
            since_look: 0,
            too_long: None,
        };
        let result = encoding.all(text, runs);
        match (encoding.too_long, result) {
            (Some(least), _) => Ok(Encoded::TooLong(least)),
            (None, result) => result.map(|()| Encoded::Whole),
        }
    }

    fn added_id(&self, text: &str) -> Option<Token> {
        self.added.id(text)
    }

    fn piece(&self, token: Token) -> Piece<'_> {
        self.vocabulary.piece(token)
    }

    fn special_text(&self, token: Token) -> Option<&str> {
        self.raw.as_ref().unwrap_or(&self.vocabulary).special(token)
    }

    fn special_piece(&self, token: Token) -> Option<Piece<'_>> {
        let text = self.vocabulary.special(token)?;
        let stays = |raw: &Vocabulary| self.strips_first && raw.special(token) == Some(text);
        Some(match &self.raw {
            Some(raw) if !stays(raw) => Piece::Text(text),
            _ => Piece::Literal(text),
        })
    }

    fn token_bytes_with_nul(&self, token: Token) -> &[u8] {
        self.vocabulary.shown_with_nul(token)
    }

    fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }

    fn strips_first_piece(&self) -> bool {
        self.strips_first
    }

    fn joining(&self) -> Joining {
        self.joining
    }
}
