//! Text to token ids and back, behind one trait that every kind of tokenizer joins.

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
    /// Whole text, spaces as spaces. A leading space is dropped at the start of a text where the
    /// tokenizer [strips leading spaces](Tokenizer::strips_leading_space).
    Text(&'a str),
    /// Whole text that stays as it is wherever it stands (the surface of `<unk>`).
    Literal(&'a str),
    /// One byte of a longer UTF-8 sequence.
    Byte(u8),
    /// Bytes that need not begin or end with a whole character.
    Bytes(&'a [u8]),
    /// Nothing: BOS, EOS and other special tokens, ids beyond the tokenizer's.
    Control,
}

/// What becomes of bytes that are no characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Each is U+FFFD. A [`Piece::Control`] ends a run of bytes: a character cannot continue behind
    /// it.
    SentencePiece,
    /// Each maximal part that cannot become a character is one U+FFFD, as in Rust, Python and
    /// tiktoken. A [`Piece::Control`] is as if it were not there.
    ByteLevel,
}

/// Where an encoding may end early. The default: nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bound<'a> {
    /// More tokens than this, those that were there before included, are of no use.
    pub max_tokens: Option<usize>,
    /// Looked at every few kilobytes.
    pub cancel: Option<&'a Cancel>,
}

/// How an encoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Encoded {
    /// Every token is there.
    Whole,
    /// There would be more than [`Bound::max_tokens`], namely at least this many.
    TooLong(usize),
}

/// Who wrote a stretch of a rendered chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes of the text; runs lie behind each other and end between two characters.
    pub len: usize,
    /// The template (its literals, the texts of tokens), or else data: messages, tools, variables.
    pub from_template: bool,
}

impl Run {
    /// The runs, or with `all` one that makes all of the text the template's.
    /// [`Error::InvalidArgument`] where they are not the text's.
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
    /// Id that stands for text without a token and is no special token, -1 where there is none.
    fn unk_id(&self) -> Token {
        -1
    }

    /// Ids beside [`eos_id`](Self::eos_id) that end a sequence: Llama 3's end of a turn.
    fn stop_ids(&self) -> &[Token] {
        &[]
    }

    /// Whether BOS goes in front of a text that is to be continued.
    fn adds_bos(&self) -> bool {
        true
    }

    /// Append the ids of `text`, without BOS or EOS, to `tokens`; none for an empty text. The texts
    /// of added tokens (`<|eot_id|>`) become these tokens within the `runs` that a template wrote,
    /// elsewhere they are words. There are no runs, or their lengths add up to the text's. Ends
    /// early where `bound` says so; what was appended until then is of no use.
    ///
    /// Fails with [`Error::InvalidArgument`] where the text is longer than the tokenizer can take
    /// (the implementation says how long that is), with [`Error::Refused`] where there is no memory
    /// for it, and with [`Error::Cancelled`].
    fn encode_runs(
        &self,
        text: &str,
        runs: &[Run],
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded>;

    /// The same of a text that no template wrote.
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

    /// Append the ids of a rendered chat to `tokens`, without a BOS that the text does not spell.
    ///
    /// The texts of added tokens become these tokens where the template wrote all of their bytes,
    /// and with `parse_all` everywhere. The lengths of `runs` add up to the text's. Ends early and
    /// fails as [`Tokenizer::encode_runs`], and with [`Error::InvalidArgument`] where the runs are
    /// not this text's.
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

    /// What a special token adds to a text in which these are shown.
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

    /// Whether it goes on doing so, with the leading space of each following piece, for as long as
    /// the text stays empty. Only looked at where
    /// [`strips_leading_space`](Self::strips_leading_space).
    fn strips_every_leading_space(&self) -> bool {
        false
    }

    /// Whether all spaces of the first piece go, if that is a [`Piece::Text`].
    fn strips_first_piece(&self) -> bool {
        false
    }

    /// The bytes that `token` adds in the middle of a text.
    fn token_bytes(&self, token: Token) -> &[u8] {
        self.token_bytes_with_nul(token)
            .split_last()
            .map_or(&[], |(_, bytes)| bytes)
    }

    /// Text of a whole sequence: what a [`Detokenizer`] gives piece by piece.
    ///
    /// Fails with [`Error::Refused`] where there is no memory for it.
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
