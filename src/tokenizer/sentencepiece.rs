//! SentencePiece `.model` files, checked before the library sees them.
//!
//! Pieces are joined by [`super::detokenizer`], and texts are encoded by [`ScoredBpe`] where it can do that,
//! as with all of Llama's tokenizers; both are tested against the library. Where it cannot, the library
//! encodes. It gets the message that [`Checked`] vouches for, encoded again, rather than the file: so
//! it is no matter if its parser reads a crafted file differently than ours does.

use super::model_proto::{Checked, Type, byte_of};
use super::pairs::{Pairs, SPACE_SYMBOL};
use super::scored_bpe::{ScoredBpe, Scratch};
use super::{Bound, Encoded, Piece, Tokenizer};
use crate::{Cancel, Error, Result, Token, reserve};
use prost::Message;
use sentencepiece::SentencePieceProcessor;
use std::borrow::Cow;
use std::path::Path;

const DEFAULT_UNK_SURFACE: &str = " \u{2047} ";

/// Long texts are encoded in parts of about this many bytes: the cancel flag is looked at between two,
/// and little memory is needed at a time. (The library takes some hundred bytes for each byte of text.)
const PART_BYTES: usize = 8 << 10;
/// Most bytes of a part. A text has this many bytes without a place to cut it only if it was made to.
pub const MAX_PART_BYTES: usize = 1 << 20;
/// Most bytes of a text where characters without a piece become `<unk>`: the library's time grows
/// with the square of a run of them. Llama's tokenizers make bytes of them instead.
pub const MAX_UNK_PART_BYTES: usize = 64 << 10;

/// Bytes that the library takes to encode a part, and some to spare: so much for each byte of it,
/// and so much anyway. Its own way to say that there is no memory is an exception, which would end
/// the process, so it is only asked when there is.
const WORK_PER_BYTE: usize = 1024;
const WORK_BYTES: usize = 1 << 20;
/// The same for a tokenizer file that is read: Llama 2's half megabyte takes some ten megabytes.
const LOAD_PER_BYTE: usize = 32;
const LOAD_BYTES: usize = 2 << 20;

/// A SentencePiece BPE tokenizer.
pub struct SentencePiece {
    /// `None` where the text is cut into words for [`ScoredBpe`].
    processor: Option<SentencePieceProcessor>,
    entries: Vec<Entry>,
    /// The text of every piece, each followed by a NUL.
    texts: String,
    /// Bytes of the longest of them.
    longest: usize,
    bos_id: Token,
    eos_id: Token,
    pad_id: Token,
    strips: bool,
    strips_every: bool,
    parts: Parts,
}

#[derive(Clone, Copy)]
enum Entry {
    /// In `texts`, without the NUL.
    Text {
        start: u32,
        len: u32,
    },
    /// The same, as [`Piece::Literal`].
    Literal {
        start: u32,
        len: u32,
    },
    Byte(u8),
    Control,
}

/// How a text is handed to the library.
enum Parts {
    /// As a whole, of at most this many bytes.
    Whole(usize),
    /// Cut where no piece can reach across; the space that stands for the start (or, in some
    /// models, the end) of the text is added here, once.
    Cut {
        joined: Pairs,
        prefix: bool,
        suffix: bool,
        /// `None`: by the library.
        bpe: Option<Box<ScoredBpe>>,
        /// What a space is to the pieces.
        space: char,
    },
}

impl SentencePiece {
    /// The tokenizer that a file with these contents is; `path` is for the messages.
    ///
    /// [`Error::Format`] for anything that is not a byte-pair encoding as Llama's tokenizers are
    /// (see [`Checked::parse`]).
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let work = bytes.len().saturating_mul(LOAD_PER_BYTE);
        reserve::headroom("reading a tokenizer", work.saturating_add(LOAD_BYTES))?;
        let format = |detail: String| Error::format(path, detail);
        let Checked {
            mut proto,
            bos_id,
            eos_id,
            pad_id,
        } = Checked::parse(bytes).map_err(format)?;
        let trainer = proto.trainer_spec.get_or_insert_default();
        let byte_fallback = trainer.byte_fallback();
        let suffix = trainer.treat_whitespace_as_suffix();
        // The library takes it as a C string.
        let unk_surface = trainer
            .unk_surface
            .as_deref()
            .unwrap_or(DEFAULT_UNK_SURFACE);
        let unk_surface = unk_surface
            .split('\0')
            .next()
            .unwrap_or_default()
            .to_owned();
        let normalizer = proto.normalizer_spec.get_or_insert_default();
        let add_dummy_prefix = normalizer.add_dummy_prefix.unwrap_or(true);
        let remove_extra_whitespaces = normalizer.remove_extra_whitespaces.unwrap_or(true);
        let parts = if !byte_fallback {
            Parts::Whole(MAX_UNK_PART_BYTES)
        } else if remove_extra_whitespaces {
            Parts::Whole(MAX_PART_BYTES)
        } else {
            normalizer.add_dummy_prefix = Some(false);
            let space = match normalizer.escape_whitespaces.unwrap_or(true) {
                true => SPACE_SYMBOL,
                false => ' ',
            };
            let joined = Pairs::new(proto.pieces.iter().map(|p| p.piece()));
            Parts::Cut {
                joined,
                prefix: add_dummy_prefix && !suffix,
                suffix: add_dummy_prefix && suffix,
                bpe: ScoredBpe::new(&proto).map(Box::new),
                space,
            }
        };

        let mut entries = Vec::with_capacity(proto.pieces.len());
        let mut texts = String::new();
        let mut longest = 1; // a byte piece
        for piece in &proto.pieces {
            let text = std::str::from_utf8(piece.piece()).unwrap_or_default();
            let (literal, text) = match piece.r#type() {
                Type::Control => {
                    entries.push(Entry::Control);
                    continue;
                }
                Type::Byte => {
                    entries.push(byte_of(text).map_or(Entry::Control, Entry::Byte));
                    continue;
                }
                Type::Unknown => (true, Cow::Borrowed(unk_surface.as_str())),
                // Only the symbol is a leading space to the library, a space proper is not.
                Type::Normal | Type::UserDefined | Type::Unused => (
                    text.starts_with(' '),
                    Cow::Owned(text.replace(SPACE_SYMBOL, " ")),
                ),
            };
            // At most 64 MiB of file: fits.
            let (start, len) = (texts.len() as u32, text.len() as u32);
            entries.push(if literal {
                Entry::Literal { start, len }
            } else {
                Entry::Text { start, len }
            });
            longest = longest.max(text.len());
            texts.push_str(&text);
            texts.push('\0');
        }

        let by_library = !matches!(parts, Parts::Cut { bpe: Some(_), .. });
        let processor = || {
            SentencePieceProcessor::from_serialized_proto(&proto.encode_to_vec())
                .map_err(|e| format(format!("SentencePiece refuses it: {e}")))
        };
        Ok(Self {
            processor: by_library.then(processor).transpose()?,
            entries,
            texts,
            longest,
            bos_id,
            eos_id,
            pad_id,
            strips: add_dummy_prefix || remove_extra_whitespaces,
            strips_every: remove_extra_whitespaces,
            parts,
        })
    }

    fn entry(&self, token: Token) -> Entry {
        let index = usize::try_from(token).ok();
        index
            .and_then(|i| self.entries.get(i))
            .copied()
            .unwrap_or(Entry::Control)
    }

    fn check_part(&self, len: usize) -> Result<()> {
        let (max, where_) = match self.parts {
            Parts::Whole(max) => (max, "for this tokenizer"),
            Parts::Cut { .. } => (MAX_PART_BYTES, "without a certain token boundary"),
        };
        if len > max {
            return Err(Error::invalid(
                "text",
                format!("at most {max} bytes long {where_}"),
                format!("{len} bytes long or more"),
            ));
        }
        Ok(())
    }

    /// Encode `work.part`.
    fn encode_part(&self, work: &mut Work, ids: &mut Vec<Token>) -> Result<()> {
        let Some(processor) = &self.processor else {
            return self.encode_words(work, ids);
        };
        let part = &work.part;
        reserve::headroom("encoding a text", WORK_BYTES + WORK_PER_BYTE * part.len())?;
        let pieces = processor
            .encode(part)
            .map_err(|e| Error::Internal(format!("SentencePiece cannot encode a text: {e}")))?;
        reserve::vec("the tokens of a text", ids, pieces.len())?;
        ids.extend(pieces.iter().map(|p| p.id as Token));
        Ok(())
    }

    /// The same without the library, word by word.
    fn encode_words(&self, work: &mut Work, ids: &mut Vec<Token>) -> Result<()> {
        let Parts::Cut {
            joined,
            bpe: Some(bpe),
            space,
            ..
        } = &self.parts
        else {
            unreachable!("there is a processor otherwise");
        };
        let Work {
            part,
            normalized,
            scratch,
        } = work;
        normalized.clear();
        let most = part.len() * SPACE_SYMBOL.len_utf8();
        reserve::string("encoding a text", normalized, most)?;
        normalized.extend(part.chars().map(|c| if c == ' ' { *space } else { c }));
        let mut rest = &normalized[..];
        while !rest.is_empty() {
            let (word, tail) = rest.split_at(joined.first_word(rest));
            bpe.encode(word, scratch, ids)?;
            rest = tail;
        }
        Ok(())
    }

    /// Fewest tokens that a text of this many bytes can have.
    fn least_tokens(&self, bytes: usize) -> usize {
        match self.parts {
            // Spaces may be squeezed, unknown characters may share one token.
            Parts::Whole(_) => 0,
            Parts::Cut { .. } => bytes.div_ceil(self.longest),
        }
    }
}

/// Memory that one part after another is encoded in.
#[derive(Default)]
struct Work {
    part: String,
    /// As the library's normalizer makes it of the part.
    normalized: String,
    scratch: Scratch,
}

impl Tokenizer for SentencePiece {
    fn vocab_size(&self) -> usize {
        self.entries.len()
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

    /// A text may have any length as long as it can be cut into parts of at most
    /// [`MAX_PART_BYTES`] between characters that stand side by side in no piece, which is so in
    /// every natural text. Models that squeeze spaces, or have no byte pieces, take one part.
    fn encode_onto(
        &self,
        text: &str,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        // What lies behind `rest` counts as it is, what it will become as the least it can.
        let too_long = |tokens: &[Token], rest: &str| {
            let least = tokens.len() + self.least_tokens(rest.len());
            bound
                .max_tokens
                .is_some_and(|max| least > max)
                .then_some(Encoded::TooLong(least))
        };
        let (mut rest, mut work) = (text, Work::default());
        while !rest.is_empty() {
            if let Some(too_long) = too_long(tokens, rest) {
                return Ok(too_long);
            }
            if bound.cancel.is_some_and(Cancel::is_triggered) {
                return Err(Error::Cancelled);
            }
            let len = match &self.parts {
                Parts::Whole(_) => rest.len(),
                Parts::Cut { joined, .. } => joined.first_part(rest, PART_BYTES, MAX_PART_BYTES),
            };
            self.check_part(len)?;
            let (part, tail) = rest.split_at(len);
            let (prefix, suffix) = match self.parts {
                Parts::Whole(_) => (false, false),
                Parts::Cut { prefix, suffix, .. } => (prefix, suffix),
            };
            work.part.clear();
            reserve::string("encoding a text", &mut work.part, part.len() + 2)?;
            if prefix && rest.len() == text.len() {
                work.part.push(' ');
            }
            work.part.push_str(part);
            if suffix && tail.is_empty() {
                work.part.push(' ');
            }
            self.encode_part(&mut work, tokens)?;
            rest = tail;
        }
        Ok(too_long(tokens, rest).unwrap_or(Encoded::Whole))
    }

    fn piece(&self, token: Token) -> Piece<'_> {
        let text = |start, len| &self.texts[start as usize..][..len as usize];
        match self.entry(token) {
            Entry::Text { start, len } => Piece::Text(text(start, len)),
            Entry::Literal { start, len } => Piece::Literal(text(start, len)),
            Entry::Byte(byte) => Piece::Byte(byte),
            Entry::Control => Piece::Control,
        }
    }

    fn token_bytes_with_nul(&self, token: Token) -> &[u8] {
        match self.entry(token) {
            Entry::Text { start, len } | Entry::Literal { start, len } => {
                &self.texts.as_bytes()[start as usize..][..len as usize + 1]
            }
            Entry::Byte(byte) => &BYTES_WITH_NUL[usize::from(byte)],
            Entry::Control => &[0],
        }
    }

    fn strips_leading_space(&self) -> bool {
        self.strips
    }

    fn strips_every_leading_space(&self) -> bool {
        self.strips_every
    }
}

static BYTES_WITH_NUL: [[u8; 2]; 256] = {
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte][0] = byte as u8;
        byte += 1;
    }
    table
};
