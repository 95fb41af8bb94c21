//! Text to token ids and back, behind one trait that every kind of tokenizer joins.

pub mod detokenizer;
mod gguf;
mod hash;
pub mod model_proto;
mod pairs;
mod scored_bpe;
pub mod sentencepiece;

pub use detokenizer::Detokenizer;
pub use gguf::GgufVocabulary;
pub use sentencepiece::SentencePiece;

use crate::file::read_small;
use crate::{Cancel, Error, Result, Token, reserve};
use detokenizer::Joiner;
use std::path::Path;
use std::sync::Arc;

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
    /// Nothing (BOS, EOS and other controls, ids beyond the tokenizer's). It still ends a run of
    /// bytes: a character cannot continue behind it.
    Control,
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

/// A tokenizer. Ids are `0..vocab_size`; any other id is a [`Piece::Control`].
pub trait Tokenizer: Send + Sync {
    /// Number of ids.
    fn vocab_size(&self) -> usize;
    /// Begin-of-sequence id.
    fn bos_id(&self) -> Token;
    /// End-of-sequence id.
    fn eos_id(&self) -> Token;
    /// Padding id, -1 where there is none.
    fn pad_id(&self) -> Token;

    /// Append the ids of `text`, without BOS or EOS, to `tokens`; none for an empty text. Ends early
    /// where `bound` says so; what was appended until then is of no use.
    ///
    /// Fails with [`Error::InvalidArgument`] where the text is longer than the tokenizer can take
    /// (the implementation says how long that is), with [`Error::Refused`] where there is no memory
    /// for it, and with [`Error::Cancelled`].
    fn encode_onto(&self, text: &str, tokens: &mut Vec<Token>, bound: Bound<'_>)
    -> Result<Encoded>;

    /// Ids of `text`, without BOS or EOS.
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let _whole = self.encode_onto(text, &mut tokens, Bound::default())?;
        Ok(tokens)
    }

    /// Append the ids of a rendered chat to `tokens`, without a BOS that the text does not spell.
    ///
    /// The texts of added tokens (`<|eot_id|>`) become these tokens where the template wrote all of
    /// their bytes, and with `parse_all` everywhere; elsewhere they are words. The lengths of `runs`
    /// add up to the text's. Ends early and fails as [`Tokenizer::encode_onto`], and with
    /// [`Error::InvalidArgument`] where the runs are not this text's.
    ///
    /// The default is for a tokenizer without added tokens.
    fn encode_rendered_onto(
        &self,
        text: &str,
        runs: &[Run],
        parse_all: bool,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let (_, _) = (runs, parse_all);
        self.encode_onto(text, tokens, bound)
    }

    /// Id of the added token (control pieces included) with exactly this text: `<|eot_id|>`.
    fn added_id(&self, text: &str) -> Option<Token> {
        let _ = text;
        None
    }

    /// What `token` adds to a text.
    fn piece(&self, token: Token) -> Piece<'_>;

    /// The bytes that `token` adds in the middle of a text, followed by one NUL that is not part of
    /// them (they may hold NULs of their own).
    fn token_bytes_with_nul(&self, token: Token) -> &[u8];

    /// Whether decoding drops one leading space while the text is still empty.
    fn strips_leading_space(&self) -> bool;

    /// Whether it goes on doing so, with the leading space of each following piece, for as long as
    /// the text stays empty. Only looked at where [`strips_leading_space`](Self::strips_leading_space).
    fn strips_every_leading_space(&self) -> bool {
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

/// Largest tokenizer file that is read. That of Llama 2 has half a megabyte, the largest in use have
/// four, and one of this size is read within a second.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// Open a tokenizer file of any kind we know; says which kinds are not supported yet.
///
/// [`Error::Io`] where there is no file that can be read, [`Error::Unsupported`] for Llama 3's
/// tokenizers, [`Error::Format`] for anything else that is not a tokenizer.
pub fn open(path: &Path) -> Result<Arc<dyn Tokenizer>> {
    let bytes = read_small(path, "a tokenizer", MAX_FILE_BYTES)?;
    from_bytes(path, &bytes)
}

/// The tokenizer that a file with these contents is; `path` is for the messages.
pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Arc<dyn Tokenizer>> {
    // Other kinds are looked for only in what is not a ModelProto: that may begin with a brace too.
    SentencePiece::from_bytes(path, bytes)
        .map(|t| Arc::new(t) as Arc<dyn Tokenizer>)
        .map_err(|e| {
            let kind = if is_json(bytes) {
                "a Hugging Face tokenizer.json"
            } else if is_tiktoken(bytes) {
                "a Llama 3 tokenizer (tiktoken ranks in base64)"
            } else {
                return e;
            };
            Error::Unsupported(format!(
                "{}: this looks like {kind}, which is not supported yet; SentencePiece's \
             tokenizer.model is",
                path.display()
            ))
        })
}

fn is_json(bytes: &[u8]) -> bool {
    let rest = bytes
        .trim_ascii_start()
        .strip_prefix(b"{")
        .map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|rest| rest.starts_with(b"\"") || rest.starts_with(b"}"))
}

/// Lines of a token in base64, a space, and its rank.
fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or(bytes);
    let Some(space) = line.iter().position(|&b| b == b' ') else {
        return false;
    };
    let (token, rank) = (&line[..space], line[space + 1..].trim_ascii_end());
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || b"+/=".contains(b);
    !token.is_empty()
        && token.iter().all(base64)
        && !rank.is_empty()
        && rank.iter().all(u8::is_ascii_digit)
}
