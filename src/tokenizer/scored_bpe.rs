//! Byte-pair encoding of one word by the scores of pieces. The result is that of SentencePiece's
//! `bpe::Model`, without its detours.
//!
//! Characters (or user-defined symbols) are joined pair by pair. The pair whose union has the
//! highest score comes first; of equal ones, the leftmost. SentencePiece does this to a whole text
//! with one queue, which takes a microsecond a byte. Here the caller has cut the text where no pair
//! can be joined, so the queue is only as long as a word. As in SentencePiece, a union is looked up
//! by its text: two characters that are no pieces may be a piece together.

use super::hash::Key;
use super::model_proto::{ModelProto, Type, byte_of};
use crate::{Result, Token, reserve};
use std::collections::{BinaryHeap, HashMap};

const WHAT: &str = "encoding a text";

/// The vocabulary, as far as merging needs it.
pub(super) struct ScoredBpe {
    pieces: HashMap<Box<[u8]>, Piece, Key>,
    /// Length of the longest piece in bytes.
    longest: usize,
    /// The lengths of the user-defined pieces in bytes, in descending order.
    symbol_lens: Vec<usize>,
    byte_ids: [Token; 256],
}

#[derive(Clone, Copy)]
struct Piece {
    id: Token,
    /// The place of its score among all scores. The highest score has the highest rank.
    rank: u32,
    user_defined: bool,
}

/// A part of the word while it is merged: the bytes `[start, start + len)`. `len` is 0 once it has
/// become part of the symbol before it.
struct Symbol {
    start: u32,
    len: u32,
    /// Indices of the neighbours; [`NONE`] at the ends.
    before: u32,
    after: u32,
    /// Whether it is user-defined, so that it is not joined with others.
    frozen: bool,
    /// Known only after it was joined.
    id: Option<Token>,
}

const NONE: u32 = u32::MAX;

/// Two neighbours whose union is a piece. The greatest pair is joined first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    /// High half: rank of the union. Low half: a number that is larger the further left the pair
    /// lies.
    order: u64,
    right: u32,
    /// Length of both symbols in bytes. If their lengths no longer add up to it, one of them has
    /// changed or is gone, and the pair is out of date.
    len: u32,
    id: Token,
}

/// Memory that is reused for the next word.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
}

impl ScoredBpe {
    /// `None` if there is a piece of a type that SentencePiece takes apart again after merging. The
    /// vocabulary must have a piece for every byte.
    pub fn new(proto: &ModelProto) -> Option<ScoredBpe> {
        let mut scores: Vec<f32> = proto.pieces.iter().map(|p| p.score()).collect();
        scores.sort_unstable_by(f32::total_cmp);
        // -0.0 and 0.0 are the same score.
        scores.dedup_by(|a, b| a == b);
        let rank = |score: f32| scores.partition_point(|s| *s < score) as u32;
        let mut bpe = ScoredBpe {
            pieces: HashMap::with_hasher(Key::random()),
            longest: 0,
            symbol_lens: Vec::new(),
            byte_ids: [0; 256],
        };
        for (id, piece) in (0..).zip(&proto.pieces) {
            let text = piece.piece();
            match piece.r#type() {
                Type::Unused => return None,
                Type::Control | Type::Unknown => continue,
                Type::Byte => {
                    let byte = std::str::from_utf8(text).ok().and_then(byte_of);
                    bpe.byte_ids[usize::from(byte?)] = id;
                    continue;
                }
                Type::UserDefined => bpe.symbol_lens.push(text.len()),
                Type::Normal => {}
            }
            bpe.longest = bpe.longest.max(text.len());
            let entry = Piece {
                id,
                rank: rank(piece.score()),
                user_defined: piece.r#type() == Type::UserDefined,
            };
            bpe.pieces.insert(text.into(), entry);
        }
        bpe.symbol_lens.sort_unstable_by(|a, b| b.cmp(a));
        bpe.symbol_lens.dedup();
        Some(bpe)
    }

    /// Appends the ids of `word`, which must be as SentencePiece's normalizer leaves it.
    pub fn encode(&self, word: &str, scratch: &mut Scratch, ids: &mut Vec<Token>) -> Result<()> {
        let Scratch { symbols, queue } = scratch;
        self.split(word, symbols)?;
        // Each merge takes one pair out before it queues two, and there are fewer merges than
        // symbols.
        let most = 2 * symbols.len();
        queue.clear();
        let room = queue.try_reserve(most);
        room.map_err(|_| reserve::refused::<Pair>(WHAT, 0, most))?;
        for right in 1..symbols.len() {
            self.consider(word, symbols, queue, right as u32 - 1, right as u32);
        }
        while let Some(pair) = queue.pop() {
            let (left, right) = (!(pair.order as u32), pair.right);
            let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
            if a.len == 0 || b.len == 0 || a.len + b.len != pair.len {
                continue;
            }
            let after = b.after;
            symbols[right as usize].len = 0;
            let joined = &mut symbols[left as usize];
            (joined.len, joined.after, joined.id) = (pair.len, after, Some(pair.id));
            let before = joined.before;
            if before != NONE {
                self.consider(word, symbols, queue, before, left);
            }
            if after != NONE {
                symbols[after as usize].before = left;
                self.consider(word, symbols, queue, left, after);
            }
        }
        // At most one token for each byte.
        reserve::vec("the tokens of a text", ids, word.len())?;
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            let text = text(word, symbol.start, symbol.len);
            match symbol.id.or_else(|| Some(self.pieces.get(text)?.id)) {
                Some(id) => ids.push(id),
                None => ids.extend(text.iter().map(|&byte| self.byte_ids[usize::from(byte)])),
            }
        }
        Ok(())
    }

    /// Splits `word` into symbols: at each place the longest user-defined symbol, else one
    /// character.
    fn split(&self, word: &str, symbols: &mut Vec<Symbol>) -> Result<()> {
        symbols.clear();
        reserve::vec(WHAT, symbols, word.len())?;
        let mut rest = word;
        while let Some(c) = rest.chars().next() {
            let is_symbol = |&len: &usize| {
                let start = rest.as_bytes().get(..len);
                let piece = start.and_then(|start| self.pieces.get(start));
                piece.is_some_and(|piece| piece.user_defined)
            };
            let found = self.symbol_lens.iter().copied().find(is_symbol);
            let len = found.unwrap_or(c.len_utf8());
            let index = symbols.len() as u32;
            symbols.push(Symbol {
                start: (word.len() - rest.len()) as u32,
                len: len as u32,
                before: index.checked_sub(1).unwrap_or(NONE),
                after: index + 1,
                frozen: found.is_some(),
                id: None,
            });
            rest = &rest[len..];
        }
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        Ok(())
    }

    /// Queues two neighbours if their union is a piece.
    fn consider(
        &self,
        word: &str,
        symbols: &[Symbol],
        queue: &mut BinaryHeap<Pair>,
        left: u32,
        right: u32,
    ) {
        let (a, b) = (&symbols[left as usize], &symbols[right as usize]);
        let len = a.len + b.len;
        if a.frozen || b.frozen || len as usize > self.longest {
            return;
        }
        if let Some(piece) = self.pieces.get(text(word, a.start, len)) {
            queue.push(Pair {
                order: u64::from(piece.rank) << 32 | u64::from(!left),
                right,
                len,
                id: piece.id,
            });
        }
    }
}

fn text(word: &str, start: u32, len: u32) -> &[u8] {
    &word.as_bytes()[start as usize..][..len as usize]
}
