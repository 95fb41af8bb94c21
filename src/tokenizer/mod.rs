//! Converts text to token ids and back. Every kind of tokenizer implements one trait.

mod added;
mod beside;
mod bpe;
pub mod detokenizer;
mod extras;
mod gguf;
mod hash;
mod hf_json;
pub mod model_proto;
mod normalizer;
mod oniguruma;
mod pairs;
mod pipeline;
mod possessive;
mod ranked;
mod scan;
mod scored_bpe;
pub mod sentencepiece;
mod source;
mod split;
mod tekken;
mod tiktoken;
mod vocabulary;

pub use beside::SpecialTokens;
pub use detokenizer::Detokenizer;
pub use gguf::GgufVocabulary;
pub use sentencepiece::SentencePiece;
pub use source::{FILES, MAX_FILE_BYTES, files, from_bytes, is_in, open, open_below, open_in};

use crate::{Cancel, Error, Result, Token, reserve};
use detokenizer::Joiner;
use std::borrow::Cow;

/// What the detokeniser does with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Whole text, with spaces as spaces. A leading space is dropped at the start of a text if the
    /// tokenizer [strips leading spaces](Tokenizer::strips_leading_space).
    Text(&'a str),
    /// Whole text that stays as it is wherever it stands (the surface of `<unk>`).
    Literal(&'a str),
    /// One byte of a longer UTF-8 sequence.
    Byte(u8),
    /// Bytes that need not begin or end with a whole character.
    Bytes(&'a [u8]),
    /// No text: BOS, EOS and other special tokens, and ids that the tokenizer does not have.
    Control,
}

/// What decoding makes of bytes that are no characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Each byte becomes one U+FFFD. A [`Piece::Control`] ends a run of bytes: a character cannot
    /// continue behind it.
    SentencePiece,
    /// Each maximal part that cannot become a character becomes one U+FFFD, as in Rust, Python and
    /// tiktoken. A [`Piece::Control`] is ignored.
    ByteLevel,
}

/// When an encoding may end early. The default: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound<'a> {
    /// The encoding may end once there are more tokens than this. Tokens that were in the list
    /// before count as well.
    pub max_tokens: Option<usize>,
    /// Checked every few kilobytes.
    pub cancel: Option<&'a Cancel>,
}

/// How an encoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Encoded {
    /// Every token is there.
    Whole,
    /// There would be more tokens than [`Bound::max_tokens`]: at least this many.
    TooLong(usize),
}

/// Who wrote a stretch of a rendered chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Length in bytes. The runs of a text follow one another, and each ends between two
    /// characters.
    pub len: usize,
    /// Whether the template wrote it (its literals, the texts of tokens). Otherwise it is data:
    /// messages, tools, variables.
    pub from_template: bool,
}

impl Run {
    /// The runs; with `all`, one run that makes all of the text the template's.
    /// [`Error::InvalidArgument`] if the runs do not fit the text.
    fn checked<'a>(runs: &'a [Run], text: &str, all: bool) -> Result<Cow<'a, [Run]>> {
        let mut end = 0_usize;
        for run in runs {
            end = end.saturating_add(run.len);
            if !text.is_char_boundary(end) {
                break;
            }
        }
        let len = text.len();
        if end != len {
            let expected = format!("whole characters, {len} bytes together");
            return Err(Error::invalid(
                "runs",
                expected,
                format!("{end} bytes or more"),
            ));
        }
        let from_template = true;
        Ok(match all {
            true => vec![Run { len, from_template }].into(),
            false => runs.into(),
        })
    }
}

/// A tokenizer. Ids are `0..vocab_size`; any other id is a [`Piece::Control`].
pub trait Tokenizer: Send + Sync {
    /// Number of ids.
    fn vocab_size(&self) -> usize;
    /// Begin-of-sequence id, -1 where there is none.
    fn bos_id(&self) -> Token;
    /// End-of-sequence id, -1 where there is none.
    fn eos_id(&self) -> Token;
    /// Padding id, -1 where there is none.
    fn pad_id(&self) -> Token;
    /// Id of the token for text that has no token, if it is not a special token; -1 if there is
    /// none.
    fn unk_id(&self) -> Token {
        -1
    }

    /// Ids that end a sequence besides [`eos_id`](Self::eos_id), such as Llama 3's end of a turn.
    fn stop_ids(&self) -> &[Token] {
        &[]
    }

    /// Whether BOS goes in front of a text that is to be continued.
    fn adds_bos(&self) -> bool {
        true
    }

    /// Appends the ids of `text`, without BOS or EOS, to `tokens`; none for an empty text.
    ///
    /// Within the `runs` that a template wrote, the texts of added tokens (`<|eot_id|>`) become
    /// these tokens. Elsewhere they are encoded as words. There are either no runs, or their
    /// lengths add up to the length of the text. The encoding ends early if `bound` says so; then
    /// the tokens that were appended are of no use.
    ///
    /// Fails with [`Error::InvalidArgument`] if the text is longer than the tokenizer can take (the
    /// implementation says how long that is), with [`Error::Refused`] if there is no memory for it,
    /// and with [`Error::Cancelled`].
    fn encode_runs(
        &self,
        text: &str,
        runs: &[Run],
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded>;

    /// As [`encode_runs`](Self::encode_runs), for a text that no template wrote.
    fn encode_onto(
        &self,
        text: &str,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        self.encode_runs(text, &[], tokens, bound)
    }

    /// Ids of `text`, without BOS or EOS.
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let _whole = self.encode_onto(text, &mut tokens, Bound::default())?;
        Ok(tokens)
    }

    /// Appends the ids of a rendered chat to `tokens`. There is a BOS only if the text spells it.
    ///
    /// The texts of added tokens become these tokens if the template wrote all of their bytes; with
    /// `parse_all` they do so everywhere. The lengths of `runs` add up to the length of the text.
    /// Ends early and fails as [`Tokenizer::encode_runs`], and fails with
    /// [`Error::InvalidArgument`] if the runs do not fit the text.
    fn encode_rendered_onto(
        &self,
        text: &str,
        runs: &[Run],
        parse_all: bool,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let runs = Run::checked(runs, text, parse_all)?;
        self.encode_runs(text, &runs, tokens, bound)
    }

    /// Id of the added token (control pieces included) with exactly this text: `<|eot_id|>`.
    fn added_id(&self, text: &str) -> Option<Token> {
        let _ = text;
        None
    }

    /// What `token` adds to a text.
    fn piece(&self, token: Token) -> Piece<'_>;

    /// The text of a special token, which [`Tokenizer::piece`] leaves out.
    fn special_text(&self, token: Token) -> Option<&str> {
        let _ = token;
        None
    }

    /// What a special token adds to a text that shows special tokens.
    fn special_piece(&self, token: Token) -> Option<Piece<'_>> {
        self.special_text(token).map(Piece::Literal)
    }

    /// How pieces become a text.
    fn joining(&self) -> Joining {
        Joining::SentencePiece
    }

    /// The bytes that `token` adds in the middle of a text, followed by one NUL that is not part of
    /// them (they may hold NULs of their own).
    fn token_bytes_with_nul(&self, token: Token) -> &[u8];

    /// Whether decoding drops one leading space while the text is still empty.
    fn strips_leading_space(&self) -> bool;

    /// Whether decoding also drops the leading space of each following piece, for as long as the
    /// text stays empty. Used only if [`strips_leading_space`](Self::strips_leading_space) is true.
    fn strips_every_leading_space(&self) -> bool {
        false
    }

    /// Whether decoding drops all spaces of the first piece, if it is a [`Piece::Text`].
    fn strips_first_piece(&self) -> bool {
        false
    }

    /// The bytes that `token` adds in the middle of a text.
    fn token_bytes(&self, token: Token) -> &[u8] {
        self.token_bytes_with_nul(token)
            .split_last()
            .map_or(&[], |(_, bytes)| bytes)
    }

    /// Text of a whole sequence: the texts that a [`Detokenizer`] gives piece by piece, joined.
    ///
    /// Fails with [`Error::Refused`] if there is no memory for it.
    fn decode(&self, tokens: &[Token]) -> Result<String> {
        let most = |token: &Token| match self.piece(*token) {
            Piece::Text(text) | Piece::Literal(text) => text.len(),
            Piece::Byte(_) => '\u{fffd}'.len_utf8(),
            Piece::Bytes(bytes) => bytes.len() * '\u{fffd}'.len_utf8(),
            Piece::Control => 0,
        };
        let mut text = String::new();
        reserve::string(
            "the text of the tokens",
            &mut text,
            tokens.iter().map(most).sum(),
        )?;
        let mut joiner = Joiner::new(self);
        for &token in tokens {
            joiner.push(self.piece(token), &mut text);
        }
        joiner.finish(&mut text);
        Ok(text)
    }
}
