//! The entries of a tokenizer.json: texts as the file spells them and as decoding shows them, and
//! merges.

use super::file::{AddedJson, File, Texts};
use super::parts::Decoder;
use crate::tokenizer::bpe::{self, Bpe, Merge, pair};
use crate::tokenizer::model_proto;
use crate::tokenizer::pairs::{Pairs, SPACE_SYMBOL};
use crate::tokenizer::vocabulary::{Index, Kind, MAX_BYTES, MAX_ID, MAX_TOKEN_BYTES, Vocabulary};
use crate::{Error, Result, reserve};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";

/// What happens to a text before it is cut.
pub(super) type Normalise<'n> = &'n dyn Fn(&str) -> Result<String>;

/// All entries, in the order of the file.
pub(super) struct Entries<'a> {
    /// The texts as the file spells them.
    texts: &'a Texts<'a>,
    file: &'a File<'a>,
    /// The texts as decoding shows them, one behind the other, and where each ends.
    shown: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    /// For each id its entry; [`NONE`] if there is none.
    by_id: Vec<u32>,
    /// Ids of texts that the byte alphabet does not spell, and of added tokens.
    others: HashMap<&'a str, u32>,
    byte_level: bool,
}

const NONE: u32 = u32::MAX;

impl<'a> Entries<'a> {
    /// `normalise` is applied to the texts of added tokens with `normalized` before they are
    /// decoded. Without it, no added token is decoded: each is shown as it is.
    pub fn new(
        path: &Path,
        file: &'a File<'a>,
        decoder: &Decoder,
        normalise: Option<Normalise<'_>>,
    ) -> Result<Entries<'a>> {
        let format = |detail: String| Err(Error::format(path, detail));
        let texts = &file.model.vocab;
        let added = &file.added_tokens;
        let all = texts.0.iter().map(|(text, id)| (&*text.0, *id));
        let all = all.chain(added.iter().map(|token| (&*token.content.0, token.id)));
        let n = texts.0.len() + added.len();
        let (mut last, mut bytes) = (0, 0);
        for (text, id) in all.clone() {
            if id >= MAX_ID || text.len() > 2 * MAX_TOKEN_BYTES {
                return format(format!(
                    "token {text:?} has id {id} and {} bytes, expected an id below {MAX_ID} and at most \
                     {MAX_TOKEN_BYTES} bytes",
                    text.len()
                ));
            }
            (last, bytes) = (last.max(id as usize + 1), bytes + text.len());
        }
        if bytes > MAX_BYTES {
            return format(format!(
                "tokens of {bytes} bytes, at most {MAX_BYTES} are supported"
            ));
        }
        let mut entries = Entries {
            texts,
            file,
            shown: reserve::room(WHAT, bytes)?,
            ends: reserve::room(WHAT, n)?,
            kinds: reserve::room(WHAT, n)?,
            by_id: reserve::room(WHAT, last)?,
            others: HashMap::new(),
            byte_level: matches!(decoder, Decoder::ByteLevel),
        };
        entries.by_id.resize(last, NONE);
        for (index, (text, id)) in (0..).zip(all) {
            let added = (index as usize)
                .checked_sub(texts.0.len())
                .map(|i| &added[i]);
            let same = |other: u32| entries.spelled(other as usize) == text;
            let repeats = entries.by_id[id as usize] != NONE;
            match entries.by_id[id as usize] {
                NONE => {}
                // An added token may repeat an entry.
                other if added.is_some() && same(other) => {}
                other => {
                    let other = entries.spelled(other as usize);
                    return format(format!("tokens {other:?} and {text:?} both have id {id}"));
                }
            }
            entries.by_id[id as usize] = index;
            match (added, normalise) {
                (None, _) => entries.push(text, Kind::Text, decoder),
                (Some(token), Some(normalise)) => {
                    // A token that merges produce keeps its text, because merging finds it by that
                    // text.
                    let normalized = token.normalized && !(repeats && entries.byte_level);
                    let normalise = normalized.then_some(normalise);
                    entries.push_added(token, normalise, decoder)?;
                }
                (Some(token), None) => {
                    let special = token.special;
                    let kind = [Kind::Literal, Kind::Special][usize::from(special)];
                    entries.push_shown(text, kind);
                }
            }
            let is_other = entries.kinds[index as usize] != Kind::Bytes;
            if (added.is_some() || entries.byte_level && is_other)
                && let Some(first) = entries.others.insert(text, id)
                && first != id
            {
                return format(format!("ids {first} and {id} are both {text:?}"));
            }
        }
        Ok(entries)
    }

    /// Entry `index` as the file spells it.
    fn spelled(&self, index: usize) -> &'a str {
        match self.texts.0.get(index) {
            Some((text, _)) => &text.0,
            None => &self.file.added_tokens[index - self.texts.0.len()].content.0,
        }
    }

    fn push(&mut self, text: &str, mut kind: Kind, decoder: &Decoder) {
        let start = self.shown.len();
        match (kind, decoder) {
            (Kind::Text, Decoder::ByteLevel) => {
                kind = Kind::Bytes;
                for c in text.chars() {
                    match byte_of_char(c) {
                        Some(byte) => self.shown.push(byte),
                        None => kind = Kind::Literal,
                    }
                }
                if kind == Kind::Literal {
                    self.shown.truncate(start);
                    self.shown.extend_from_slice(text.as_bytes());
                }
            }
            (
                Kind::Text,
                Decoder::Pieces {
                    spaces,
                    bytes,
                    strips_first,
                    ..
                },
            ) => {
                // U+2581 is stripped from the first token, but a plain space is not.
                if *strips_first && text.contains(' ') {
                    kind = Kind::Literal;
                }
                match model_proto::byte_of(text).filter(|_| *bytes) {
                    Some(byte) => {
                        kind = Kind::Byte;
                        self.shown.push(byte);
                    }
                    None => {
                        let mut utf8 = [0; 4];
                        for c in text.chars() {
                            let c = if *spaces && c == SPACE_SYMBOL { ' ' } else { c };
                            self.shown
                                .extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
                        }
                    }
                }
            }
            _ => self.shown.extend_from_slice(text.as_bytes()),
        }
        self.ends.push(self.shown.len() as u32);
        self.kinds.push(kind);
    }

    /// An entry that is shown as it is.
    fn push_shown(&mut self, text: &str, kind: Kind) {
        self.shown.extend_from_slice(text.as_bytes());
        self.ends.push(self.shown.len() as u32);
        self.kinds.push(kind);
    }

    /// Adds an added token as tokenizers decodes it: from its normalised text.
    fn push_added(
        &mut self,
        token: &AddedJson<'_>,
        normalise: Option<Normalise<'_>>,
        decoder: &Decoder,
    ) -> Result<()> {
        let text = match normalise {
            Some(normalise) => Cow::Owned(normalise(&token.content.0)?),
            None => Cow::Borrowed(&*token.content.0),
        };
        reserve::vec(WHAT, &mut self.shown, text.len())?;
        // Unlike in tokenizers, letters that would become half a character stay as they are.
        let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
        let spelled = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        match (decoder, spelled) {
            (Decoder::ByteLevel, _) if token.special => {
                self.push_shown(&token.content.0, Kind::Special);
            }
            (Decoder::ByteLevel, spelled) => {
                self.push_shown(spelled.as_deref().unwrap_or(&text), Kind::Literal);
            }
            (Decoder::Pieces { .. }, _) => {
                self.push(&text, Kind::Text, decoder);
                if let (true, Some(kind)) = (token.special, self.kinds.last_mut()) {
                    *kind = Kind::Special;
                }
            }
        }
        Ok(())
    }

    /// The texts by id: with `shown` as decoding shows them, else as the file spells them.
    pub fn vocabulary(&self, shown: bool) -> Result<Vocabulary> {
        Vocabulary::new(self.by_id.iter().map(|&index| match index {
            NONE => (&b""[..], Kind::Absent),
            index if shown => (self.shown(index as usize), self.kinds[index as usize]),
            index => (
                self.spelled(index as usize).as_bytes(),
                self.kinds[index as usize],
            ),
        }))
    }

    fn shown(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.shown[start as usize..self.ends[index] as usize]
    }

    /// The id of a text as the file spells it. A slow search, because few texts are asked for.
    pub fn id(&self, text: &str) -> Option<u32> {
        let known = || self.texts.0.iter().find(|(known, _)| known.0 == text);
        self.others.get(text).copied().or_else(|| Some(known()?.1))
    }

    /// The merges. Their tokens are found in `vocabulary`.
    pub fn bpe(&self, path: &Path, file: &File<'_>, vocabulary: &Vocabulary) -> Result<Bpe> {
        let model = &file.model;
        let mut index = Index::new(self.texts.0.len())?;
        for (i, (text, id)) in self.texts.0.iter().enumerate() {
            // An added token with the same id and text keeps its text as it is, so bytes do not
            // lead to it.
            let bytes = match self.byte_level {
                true if self.kinds[i] != Kind::Bytes || self.shown(i) != vocabulary.bytes(*id) => {
                    continue;
                }
                true => self.shown(i),
                false => text.0.as_bytes(),
            };
            if let Some(first) = index.insert(bytes, *id, |id| vocabulary.bytes(id)) {
                let detail = format!("ids {first} and {id} are both {:?}", text.0);
                return Err(Error::format(path, detail));
            }
        }
        let mut bytes = Box::new([None; 256]);
        for (byte, id) in (0..=u8::MAX).zip(bytes.iter_mut()) {
            let name = format!("<0x{byte:02X}>");
            let text = match self.byte_level {
                true => &[byte][..],
                false => name.as_bytes(),
            };
            if self.byte_level || model.byte_fallback {
                *id = index.get(text, |id| vocabulary.bytes(id));
            }
        }
        let merges = Merges {
            entries: self,
            vocabulary,
            index: &index,
        };
        let merges = merges.read(path, file)?;
        let mut bpe = Bpe::new(merges, bytes, index, model.ignore_merges, vocabulary)?;
        bpe.from_chars = !self.byte_level;
        bpe.fuse_unk = model.fuse_unk;
        if let Some(unk) = &model.unk_token {
            bpe.unk = self.id(&unk.0);
            if bpe.unk.is_none() {
                let detail = format!("`model.unk_token` is {:?}, which is no token", unk.0);
                return Err(Error::format(path, detail));
            }
        }
        Ok(bpe)
    }

    /// Where texts may be cut. `None` (nowhere) in three cases: bytes may be merged; pieces are
    /// looked up as a whole; or unknown text joins its neighbours, because it is left out or
    /// becomes one token with other unknown text beside it.
    pub fn pairs(&self, bpe: &Bpe) -> Option<Pairs> {
        let is_byte = |id: u64| bpe.bytes.contains(&Some(id as u32));
        let mut pairs = bpe.merges.keys();
        let from_bytes = pairs.any(|pair| is_byte(pair >> 32) || is_byte(pair & 0xffff_ffff));
        let texts = self.texts.0.iter().map(|(text, _)| text.0.as_bytes());
        let meets = bpe.bytes.contains(&None) && (bpe.unk.is_none() || bpe.fuse_unk);
        (!from_bytes && !bpe.ignore_merges && !meets).then(|| Pairs::new(texts))
    }
}

/// How many merges are looked up together.
const TOGETHER: usize = 16;

/// Looks up the parts of merges.
struct Merges<'a> {
    entries: &'a Entries<'a>,
    vocabulary: &'a Vocabulary,
    index: &'a Index,
}

impl Merges<'_> {
    fn read(&self, path: &Path, file: &File<'_>) -> Result<bpe::Merges> {
        let list = &file.model.merges.0;
        let mut merges = reserve::room(WHAT, list.len())?;
        let (mut bytes, mut ends) = (Vec::new(), [0; 2 * TOGETHER]);
        for (block, list) in list.chunks(TOGETHER).enumerate() {
            bytes.clear();
            let sides = list.iter().flat_map(|(left, right)| [left, right]);
            let mut spelled = [true; 2 * TOGETHER];
            for (i, side) in sides.enumerate() {
                spelled[i] = self.spell(&side.0, &mut bytes);
                ends[i] = bytes.len();
            }
            let found = self.index.get_each(
                std::array::from_fn::<_, { 3 * TOGETHER }, _>(|i| {
                    // For each merge: its left side, its right side, and both together.
                    let (i, what) = (i / 3 * 2, i % 3);
                    let start = i.checked_sub(1).map_or(0, |before| ends[before]);
                    match what {
                        _ if i / 2 >= list.len() => &[],
                        0 => &bytes[start..ends[i]],
                        1 => &bytes[ends[i]..ends[i + 1]],
                        _ => &bytes[start..ends[i + 1]],
                    }
                }),
                |id| self.vocabulary.bytes(id),
            );
            for (i, (left, right)) in list.iter().enumerate() {
                let rank = block * TOGETHER + i;
                let whole = spelled[2 * i] && spelled[2 * i + 1];
                let [Some(a), Some(b), Some(id)] =
                    [0, 1, 2].map(|what| found[3 * i + what].filter(|_| whole))
                else {
                    return Err(Error::format(
                        path,
                        format!(
                            "`model.merges[{rank}]` joins {:?} and {:?}: one of them, or the result, is not in \
                             the vocabulary",
                            left.0, right.0
                        ),
                    ));
                };
                let rank = rank as u32;
                merges.push((pair(a, b), Merge { rank, id }));
            }
        }
        bpe::table(&merges)
    }

    /// Appends the bytes that a text stands for. `false` if it stands for none.
    fn spell(&self, text: &str, bytes: &mut Vec<u8>) -> bool {
        if !self.entries.byte_level {
            bytes.extend_from_slice(text.as_bytes());
            return true;
        }
        text.chars().all(|c| match byte_of_char(c) {
            Some(byte) => {
                bytes.push(byte);
                true
            }
            None => false,
        })
    }
}

/// The byte that a character of GPT-2's byte alphabet stands for. Printable characters stand for
/// themselves. The other bytes are written as the characters from U+0100 on, in order.
fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}
