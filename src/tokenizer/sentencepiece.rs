//! SentencePiece `.model` files, checked before the library sees them.
//!
//! Pieces are joined by [`super::detokenizer`], and texts are encoded by `ScoredBpe` where it can
//! do that, as with all of Llama's tokenizers; both are tested against the library. Where it
//! cannot, the library encodes. It gets the message that [`super::model_proto::Checked`] vouches
//! for, encoded again, rather than the file: so it is no matter if its parser reads a crafted file
//! differently than ours does. `build` makes a tokenizer of a checked file.

mod build;

use super::added::{Added, Pass};
use super::pairs::{Pairs, SPACE_SYMBOL};
use super::scored_bpe::{ScoredBpe, Scratch};
use super::{Bound, Encoded, Piece, Run, Tokenizer};
use crate::{Cancel, Error, Result, Token, reserve};
use sentencepiece::SentencePieceProcessor;

/// Long texts are encoded in parts of about this many bytes: the cancel flag is looked at between
/// two, and little memory is needed at a time. (The library takes some hundred bytes for each byte
/// of text.)
const PART_BYTES: usize = 8 << 10;
/// Most bytes of a part. A text has this many bytes without a place to cut it only if it was made
/// to.
pub const MAX_PART_BYTES: usize = 1 << 20;
/// Most bytes of a text where characters without a piece become `<unk>`: the library's time grows
/// with the square of a run of them. Llama's tokenizers make bytes of them instead.
pub const MAX_UNK_PART_BYTES: usize = 64 << 10;

/// Bytes that the library takes to encode a part, and some to spare: so much for each byte of it,
/// and so much anyway. Its own way to say that there is no memory is an exception, which would end
/// the process, so it is only asked when there is.
const WORK_PER_BYTE: usize = 1024;
const WORK_BYTES: usize = 1 << 20;

/// A SentencePiece BPE tokenizer.
pub struct SentencePiece {
    /// `None` where the text is cut into words for [`ScoredBpe`].
    processor: Option<SentencePieceProcessor>,
    /// The same without a space in front of a text, where what follows an added token gets none.
    bare_processor: Option<SentencePieceProcessor>,
    /// Control pieces, and what the files beside the model add.
    added: Added,
    /// Whether a space goes in front of what follows an added token.
    prefix_behind_added: bool,
    entries: Vec<Entry>,
    /// The text of every piece, each followed by a NUL.
    texts: String,
    /// Bytes of the longest of them.
    longest: usize,
    bos_id: Token,
    eos_id: Token,
    pad_id: Token,
    unk_id: Token,
    stop_ids: Vec<Token>,
    adds_bos: bool,
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
    /// Shown only where special tokens are asked for.
    Special {
        start: u32,
        len: u32,
    },
    /// No text.
    Absent,
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
    fn entry(&self, token: Token) -> Entry {
        let index = usize::try_from(token).ok();
        index
            .and_then(|i| self.entries.get(i))
            .copied()
            .unwrap_or(Entry::Absent)
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

    /// Encode `work.part`, with the library's space in front of it or without.
    fn encode_part(&self, prefix: bool, work: &mut Work, ids: &mut Vec<Token>) -> Result<()> {
        let bare = self.bare_processor.as_ref().filter(|_| !prefix);
        let Some(processor) = bare.or(self.processor.as_ref()) else {
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

    /// Fewest tokens that a stretch of `rest` bytes and a text of `behind` bytes after it can have.
    fn least_tokens(&self, rest: usize, behind: usize) -> usize {
        match (&self.parts, self.added.longest()) {
            (Parts::Cut { .. }, Some(longest)) => {
                rest.div_ceil(self.longest) + behind.div_ceil(self.longest.max(longest))
            }
            (Parts::Cut { .. }, None) => rest.div_ceil(self.longest),
            // Spaces may be squeezed, unknown characters may share one token.
            (Parts::Whole(_), _) => 0,
        }
    }

    /// What lies between two added tokens.
    ///
    /// A text may have any length as long as it can be cut into parts of at most [`MAX_PART_BYTES`]
    /// between characters that stand side by side in no piece, which is so in every natural text.
    /// Models that squeeze spaces, or have no byte pieces, take one part.
    fn encode_stretch(
        &self,
        stretch: Stretch<'_>,
        work: &mut Work,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let text = stretch.text;
        // What lies behind `rest` counts as it is, what it will become as the least it can.
        let too_long = |tokens: &[Token], rest: &str| {
            let least = tokens.len() + self.least_tokens(rest.len(), stretch.behind);
            bound
                .max_tokens
                .is_some_and(|max| least > max)
                .then_some(Encoded::TooLong(least))
        };
        let mut rest = text;
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
                Parts::Cut { prefix, suffix, .. } => (prefix && stretch.prefix, suffix),
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
            self.encode_part(stretch.prefix, work, tokens)?;
            rest = tail;
        }
        Ok(too_long(tokens, rest).unwrap_or(Encoded::Whole))
    }
}

/// A part of a text without added tokens.
struct Stretch<'a> {
    text: &'a str,
    /// Whether a space goes in front, where the model wants one.
    prefix: bool,
    /// Bytes of the text that lie behind it.
    behind: usize,
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
    fn unk_id(&self) -> Token {
        self.unk_id
    }

    fn encode_runs(
        &self,
        text: &str,
        runs: &[Run],
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let mut work = Work::default();
        for (id, range) in self.added.cut(Pass::Raw, text, runs)? {
            if let Some(id) = id {
                reserve::vec("the tokens of a text", tokens, 1)?;
                tokens.push(id);
                continue;
            }
            let behind = text.len() - range.end;
            let prefix = range.start == 0 || self.prefix_behind_added;
            let stretch = Stretch {
                text: &text[range],
                prefix,
                behind,
            };
            if let Encoded::TooLong(least) =
                self.encode_stretch(stretch, &mut work, tokens, bound)?
            {
                return Ok(Encoded::TooLong(least));
            }
        }
        Ok(
            match bound.max_tokens.is_some_and(|max| tokens.len() > max) {
                true => Encoded::TooLong(tokens.len()),
                false => Encoded::Whole,
            },
        )
    }

    fn stop_ids(&self) -> &[Token] {
        &self.stop_ids
    }

    fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    fn added_id(&self, text: &str) -> Option<Token> {
        self.added.id(text)
    }

    fn special_text(&self, token: Token) -> Option<&str> {
        match self.entry(token) {
            Entry::Special { start, len } => Some(&self.texts[start as usize..][..len as usize]),
            _ => None,
        }
    }

    fn piece(&self, token: Token) -> Piece<'_> {
        let text = |start, len| &self.texts[start as usize..][..len as usize];
        match self.entry(token) {
            Entry::Text { start, len } => Piece::Text(text(start, len)),
            Entry::Literal { start, len } => Piece::Literal(text(start, len)),
            Entry::Byte(byte) => Piece::Byte(byte),
            Entry::Special { .. } | Entry::Absent => Piece::Control,
        }
    }

    fn token_bytes_with_nul(&self, token: Token) -> &[u8] {
        match self.entry(token) {
            Entry::Text { start, len } | Entry::Literal { start, len } => {
                &self.texts.as_bytes()[start as usize..][..len as usize + 1]
            }
            Entry::Byte(byte) => &BYTES_WITH_NUL[usize::from(byte)],
            Entry::Special { .. } | Entry::Absent => &[0],
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
