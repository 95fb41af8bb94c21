//! SentencePiece `.model` files, checked before the library sees them.
//!
//! [`super::detokenizer`] joins the pieces. `ScoredBpe` encodes texts where it can, as with all of
//! Llama's tokenizers. Both are tested against the library. Where `ScoredBpe` cannot, the library
//! encodes. The library does not get the file. It gets the message that
//! [`super::model_proto::Checked`] vouches for, encoded again. So it does not matter if the
//! library's parser reads a crafted file differently than ours does. `build` makes a tokenizer from
//! a checked file.

mod build;

use super::added::{Added, Pass};
use super::pairs::{Pairs, SPACE_SYMBOL};
use super::scored_bpe::{ScoredBpe, Scratch};
use super::{Bound, Encoded, Piece, Run, Tokenizer};
use crate::{Cancel, Error, Result, Token, reserve};
use sentencepiece::SentencePieceProcessor;

/// Long texts are encoded in parts of about this many bytes. So the cancel flag can be checked
/// between two parts, and little memory is needed at a time. (The library takes some hundred bytes
/// for each byte of text.)
const PART_BYTES: usize = 8 << 10;
/// The most bytes of a part. Only a text that was made for it has this many bytes without a place
/// to cut.
pub const MAX_PART_BYTES: usize = 1 << 20;
/// The most bytes of a text whose characters without a piece become `<unk>`. The library's time
/// grows with the square of the length of a run of them. Llama's tokenizers make bytes of such
/// characters instead.
pub const MAX_UNK_PART_BYTES: usize = 64 << 10;

/// Memory that the library takes to encode a part, with some to spare: a number of bytes for each
/// byte of the part, and a fixed number. If the library gets no memory, it throws an exception,
/// which would end the process. So it is called only if there is memory.
const WORK_PER_BYTE: usize = 1024;
const WORK_BYTES: usize = 1 << 20;

/// A SentencePiece BPE tokenizer.
pub struct SentencePiece {
    /// `None` if texts are cut into words for [`ScoredBpe`].
    processor: Option<SentencePieceProcessor>,
    /// The same processor without a space in front of a text. It exists if what follows an added
    /// token gets no space.
    bare_processor: Option<SentencePieceProcessor>,
    /// Control pieces, and what the files beside the model add.
    added: Added,
    /// Whether a space goes in front of what follows an added token.
    prefix_behind_added: bool,
    entries: Vec<Entry>,
    /// The text of every piece, each followed by a NUL.
    texts: String,
    /// Length of the longest text in bytes.
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
    /// A range of `texts`, without the NUL.
    Text {
        start: u32,
        len: u32,
    },
    /// A range of `texts`, shown as [`Piece::Literal`].
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

/// How a text is divided before it is encoded.
enum Parts {
    /// Not at all. A text has at most this many bytes.
    Whole(usize),
    /// Into parts that no piece spans. The space that stands for the start (in some models, the
    /// end) of the text is added here, once.
    Cut {
        joined: Pairs,
        prefix: bool,
        suffix: bool,
        /// `None`: the library encodes.
        bpe: Option<Box<ScoredBpe>>,
        /// The character that pieces have in place of a space.
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

    /// Encodes `work.part`. `prefix`: whether the library may put its space in front.
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

    /// Encodes `work.part` word by word, without the library.
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

    /// The fewest tokens that `rest` bytes of a stretch, and `behind` bytes of text after it, can
    /// have.
    fn least_tokens(&self, rest: usize, behind: usize) -> usize {
        match (&self.parts, self.added.longest()) {
            (Parts::Cut { .. }, Some(longest)) => {
                rest.div_ceil(self.longest) + behind.div_ceil(self.longest.max(longest))
            }
            (Parts::Cut { .. }, None) => rest.div_ceil(self.longest),
            // Spaces may be squeezed, and unknown characters may share one token.
            (Parts::Whole(_), _) => 0,
        }
    }

    /// Encodes what lies between two added tokens.
    ///
    /// A text may have any length if it can be cut into parts of at most [`MAX_PART_BYTES`]. It can
    /// be cut between two characters that stand side by side in no piece. That is so in every
    /// natural text. Models that squeeze spaces, or have no byte pieces, encode a text as one part.
    fn encode_stretch(
        &self,
        stretch: Stretch<'_>,
        work: &mut Work,
        tokens: &mut Vec<Token>,
        bound: Bound<'_>,
    ) -> Result<Encoded> {
        let text = stretch.text;
        // The tokens so far count as they are. The rest of the text counts with the fewest tokens
        // that it can become.
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
    /// Whether a space goes in front, if the model wants one.
    prefix: bool,
    /// Bytes of the text behind this stretch.
    behind: usize,
}

/// Memory in which one part after another is encoded.
#[derive(Default)]
struct Work {
    part: String,
    /// The part as the library's normalizer would make it.
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
