//! The texts of all ids, and the id of a text.

use super::Piece;
use super::hash::Key;
use crate::{Result, Token, reserve};
use std::hash::BuildHasher;

const WHAT: &str = "a tokenizer's vocabulary";

/// All ids are below this.
pub(super) const MAX_ID: u32 = 1 << 24;
/// The most bytes of a token.
pub(super) const MAX_TOKEN_BYTES: usize = 64 << 10;
/// The most bytes of all tokens together.
pub(super) const MAX_BYTES: usize = 64 << 20;

/// What kind of token an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// No entry has the id: it has no text.
    Absent,
    /// Bytes that need not be whole characters.
    Bytes,
    /// Text that a merge may produce. At the start of a text its leading space may be dropped.
    Text,
    /// Text that no merge produces.
    Literal,
    /// The one byte that its text, `<0xNN>`, names.
    Byte,
    /// An added token that is special: shown only where special tokens are asked for.
    Special,
}

/// The texts of all ids.
pub(super) struct Vocabulary {
    /// The texts by id, one behind the other, each followed by a NUL.
    texts: Vec<u8>,
    /// Where the text of each id begins in `texts`. The last entry is the end of the last text.
    starts: Vec<u32>,
    kinds: Vec<Kind>,
    longest: usize,
}

impl Vocabulary {
    /// A vocabulary of entries that the reader has checked against the limits above. Entry `i` is
    /// id `i`.
    pub fn new<'a>(
        entries: impl ExactSizeIterator<Item = (&'a [u8], Kind)> + Clone,
    ) -> Result<Vocabulary> {
        let bytes = entries.clone().map(|(text, _)| text.len() + 1).sum();
        let mut texts = reserve::room(WHAT, bytes)?;
        let mut starts = reserve::room(WHAT, entries.len() + 1)?;
        let mut kinds = reserve::room(WHAT, entries.len())?;
        let mut longest = 1;
        for (text, kind) in entries {
            starts.push(texts.len() as u32);
            texts.extend_from_slice(text);
            texts.push(0);
            kinds.push(kind);
            longest = longest.max(text.len());
        }
        starts.push(texts.len() as u32);
        Ok(Vocabulary {
            texts,
            starts,
            kinds,
            longest,
        })
    }

    /// Adds ids without a text, so that there are at least `n` ids.
    pub fn grow(&mut self, n: usize) -> Result<()> {
        let more = n.saturating_sub(self.len());
        reserve::vec(WHAT, &mut self.starts, more)?;
        reserve::vec(WHAT, &mut self.kinds, more)?;
        // Absent ids have no bytes: they begin where the next one begins.
        let end = self.texts.len() as u32;
        self.starts.resize(self.starts.len() + more, end);
        self.kinds.resize(self.kinds.len() + more, Kind::Absent);
        Ok(())
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of the longest text, at least 1.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// The text of an id below [`Vocabulary::len`].
    pub fn bytes(&self, id: u32) -> &[u8] {
        let with_nul = self.with_nul(id as usize);
        &with_nul[..with_nul.len() - 1]
    }

    fn with_nul(&self, id: usize) -> &[u8] {
        &self.texts[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    /// The kind of an id. [`Kind::Absent`] if the id does not exist.
    pub fn kind(&self, token: Token) -> Kind {
        let index = usize::try_from(token).ok();
        let kind = index.and_then(|i| self.kinds.get(i));
        kind.copied().unwrap_or(Kind::Absent)
    }

    /// What an id adds to a text.
    pub fn piece(&self, token: Token) -> Piece<'_> {
        match self.kind(token) {
            Kind::Absent | Kind::Special => Piece::Control,
            Kind::Bytes => Piece::Bytes(self.bytes(token as u32)),
            Kind::Text => Piece::Text(self.text(token)),
            Kind::Literal => Piece::Literal(self.text(token)),
            Kind::Byte => Piece::Byte(self.bytes(token as u32)[0]),
        }
    }

    /// The text of a special token.
    pub fn special(&self, token: Token) -> Option<&str> {
        (self.kind(token) == Kind::Special).then(|| self.text(token))
    }

    /// What [`super::Tokenizer::token_bytes_with_nul`] gives.
    pub fn shown_with_nul(&self, token: Token) -> &[u8] {
        match self.kind(token) {
            Kind::Absent | Kind::Special => &[0],
            _ => self.with_nul(token as usize),
        }
    }

    fn text(&self, token: Token) -> &str {
        std::str::from_utf8(self.bytes(token as u32)).unwrap_or_default()
    }
}

/// Finds the id of a text. This is an open-addressing table of ids; the texts themselves stay where
/// they are.
pub(super) struct Index {
    /// The high bits of a text's hash, and the text's id. The id is [`FREE`] if the slot is empty.
    slots: Vec<(u32, u32)>,
    key: Key,
}

const FREE: u32 = u32::MAX;

impl Index {
    /// Room for `n` texts.
    pub fn new(n: usize) -> Result<Index> {
        let len = (2 * n).next_power_of_two();
        let mut slots = reserve::room(WHAT, len)?;
        slots.resize(len, (0, FREE));
        let key = Key::random();
        Ok(Index { slots, key })
    }

    /// Adds a text. If an id has the same text already, returns that id.
    pub fn insert<'a>(
        &mut self,
        text: &[u8],
        id: u32,
        text_of: impl Fn(u32) -> &'a [u8],
    ) -> Option<u32> {
        let (tag, mut at) = self.place(text);
        loop {
            match self.slots[at] {
                (_, FREE) => {
                    self.slots[at] = (tag, id);
                    return None;
                }
                (t, other) if t == tag && text_of(other) == text => return Some(other),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// The id of a text.
    pub fn get<'a>(&self, text: &[u8], text_of: impl Fn(u32) -> &'a [u8]) -> Option<u32> {
        self.get_from(self.place(text), text, text_of)
    }

    /// The ids of several texts. A table of a hundred thousand texts is larger than a core's cache.
    /// Here the reads for one text do not wait for those for another.
    pub fn get_each<'a, const N: usize>(
        &self,
        texts: [&[u8]; N],
        text_of: impl Fn(u32) -> &'a [u8],
    ) -> [Option<u32>; N] {
        let places = texts.map(|text| self.place(text));
        let slots = places.map(|(_, at)| self.slots[at]);
        let known = slots.map(|(_, id)| match id {
            FREE => &[][..],
            id => text_of(id),
        });
        std::array::from_fn(|i| match slots[i] {
            (tag, id) if id != FREE && tag == places[i].0 && known[i] == texts[i] => Some(id),
            _ => self.get_from(places[i], texts[i], &text_of),
        })
    }

    fn get_from<'a>(
        &self,
        (tag, mut at): (u32, usize),
        text: &[u8],
        text_of: impl Fn(u32) -> &'a [u8],
    ) -> Option<u32> {
        loop {
            match self.slots[at] {
                (_, FREE) => return None,
                (t, id) if t == tag && text_of(id) == text => return Some(id),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn place(&self, text: &[u8]) -> (u32, usize) {
        let hash = self.key.hash_one(text);
        ((hash >> 32) as u32, hash as usize & (self.slots.len() - 1))
    }
}
