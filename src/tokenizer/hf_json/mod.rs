//! Hugging Face's `tokenizer.json`, as far as it merges by rank: what the parts in it mean, and a
//! sentence about each that is not supported.
//!
//! | file | what it reads |
//! |---|---|
//! | `mod` | the model and the added tokens, and puts all together |
//! | `file` | the JSON itself, with limits |
//! | `parts` | normalizer, pre-tokenizer, decoder, post-processor |

pub(super) mod file;
pub(super) mod parts;

use self::file::{File, Texts};
use self::parts::{Decoder, Node, PreTokenizer};
use super::added::{Added, AddedToken};
use super::bpe::{self, Bpe, Merge, pair};
use super::extras::Extras;
use super::normalizer::Normalizer;
use super::pairs::{Pairs, SPACE_SYMBOL};
use super::pipeline::{By, Cut, Pipeline};
use super::split::Expression;
use super::vocabulary::{Index, Kind, MAX_BYTES, MAX_ID, MAX_TOKEN_BYTES, Vocabulary};
use super::{Joining, model_proto};
use crate::{Error, Result, Token, reserve};
use std::collections::HashMap;
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";

/// Whether these bytes look like such a file.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    let rest = bytes
        .trim_ascii_start()
        .strip_prefix(b"{")
        .map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|rest| rest.starts_with(b"\"") || rest.starts_with(b"}"))
}

/// The tokenizer that a file with these contents is; `path` is for the messages, `extras` are what
/// the files beside it say.
pub(super) fn from_bytes(path: &Path, bytes: &[u8], extras: &Extras) -> Result<Pipeline> {
    let mut file = File::parse(path, bytes)?;
    if let Some(end) = extras.added_end {
        file.added_tokens.retain(|token| token.id < end);
    }
    let model = &file.model;
    model.check(path)?;
    let normalizer = Node::of(path, "normalizer", file.normalizer)?;
    let normalizer = normalizer
        .map(|n| n.normalizer())
        .transpose()?
        .unwrap_or_default();
    let pre = Node::of(path, "pre_tokenizer", file.pre_tokenizer)?;
    let pre = pre
        .map(|n| n.pre_tokenizer())
        .transpose()?
        .unwrap_or_default();
    let decoder = Node::of(path, "decoder", file.decoder)?;
    let Some(decoder) = decoder.map(|n| n.decoder()).transpose()? else {
        return Err(unsupported(
            path,
            "decoder",
            "none: the tokens' texts would have spaces between them",
        ));
    };
    let bos = Node::of(path, "post_processor", file.post_processor)?;
    let bos = bos.map(|n| n.bos()).transpose()?.flatten();
    let byte_level = matches!(decoder, Decoder::ByteLevel);
    if byte_level != pre.byte_level {
        let what = "of ByteLevel in only one of decoder and pre_tokenizer";
        return Err(unsupported(path, "decoder", what));
    }

    let parts = Parts {
        decoder,
        pre,
        normalizer,
        bos,
    };
    parts.tokenizer(path, &file, extras)
}

/// What is around a model.
pub(super) struct Parts {
    pub decoder: Decoder,
    pub pre: PreTokenizer,
    pub normalizer: Normalizer,
    /// What goes in front of a text.
    pub bos: Option<Token>,
}

impl Parts {
    /// All of it put together.
    pub fn tokenizer(self, path: &Path, file: &File<'_>, extras: &Extras) -> Result<Pipeline> {
        let Parts {
            decoder,
            pre,
            normalizer,
            bos,
        } = self;
        let format = |detail: String| Error::format(path, detail);
        let byte_level = matches!(decoder, Decoder::ByteLevel);
        let entries = Entries::new(path, file, &decoder)?;
        let raw = match byte_level {
            true => None,
            false => Some(entries.vocabulary(false)?),
        };
        let vocabulary = entries.vocabulary(true)?;
        let bpe = entries.bpe(path, file, raw.as_ref().unwrap_or(&vocabulary))?;
        let all_bytes = bpe.bytes.iter().all(Option::is_some);
        let keeps_all = pre.expressions.iter().all(Expression::keeps_all);
        let covers_bytes = keeps_all && (all_bytes || bpe.unk.is_some() && !bpe.fuse_unk);
        let cut = Cut {
            metaspace: pre.metaspace,
            by: match byte_level || !pre.expressions.is_empty() {
                true => By::Expressions(pre.expressions),
                false => By::Pairs(entries.pairs(&bpe)),
            },
        };
        let normalise = |text: &str| Ok(normalizer.apply(text)?.text.into_owned());
        let added = Added::new(added(path, file)?, normalise).map_err(format)?;
        let id_of = |text: &Option<String>| {
            let text = text.as_deref()?;
            let known = || entries.id(text).map(|id| id as Token);
            added.id(text).or_else(known)
        };
        if let Some(id) = bos.filter(|&id| id as usize >= vocabulary.len()) {
            let detail = format!("`post_processor` adds the token {id}, which is none");
            return Err(format(detail));
        }
        let bos_id = id_of(&extras.bos).or(bos).unwrap_or(-1);
        Ok(Pipeline {
            bos_id,
            eos_id: id_of(&extras.eos).unwrap_or(-1),
            pad_id: id_of(&extras.pad).unwrap_or(-1),
            stop_ids: Vec::new(),
            adds_bos: extras.add_bos.unwrap_or(bos.is_some()) && bos_id >= 0,
            strips_leading_space: matches!(decoder, Decoder::Pieces { strips: true, .. }),
            joining: match byte_level {
                true => Joining::ByteLevel,
                false => Joining::SentencePiece,
            },
            vocabulary,
            raw,
            bpe,
            added,
            normalizer,
            cut,
            covers_bytes,
        })
    }
}

/// The added tokens of a tokenizer.json, for a SentencePiece model beside it.
pub(super) fn added_tokens(path: &Path, bytes: &[u8]) -> Result<Vec<AddedToken>> {
    added(path, &File::parse(path, bytes)?)
}

fn added(path: &Path, file: &File<'_>) -> Result<Vec<AddedToken>> {
    let mut tokens = reserve::room("a tokenizer's added tokens", file.added_tokens.len())?;
    for token in &file.added_tokens {
        let bytes = token.content.0.len();
        if !(1..=MAX_TOKEN_BYTES).contains(&bytes) || token.id >= MAX_ID {
            return Err(Error::format(
                path,
                format!(
                    "added token {} has {bytes} bytes, expected an id below {MAX_ID} and 1 to \
                     {MAX_TOKEN_BYTES} bytes",
                    token.id
                ),
            ));
        }
        tokens.push(AddedToken {
            id: token.id,
            text: token.content.0.to_string(),
            special: token.special,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
            normalized: token.normalized,
        });
    }
    Ok(tokens)
}

fn unsupported(path: &Path, at: &str, what: &str) -> Error {
    Error::Unsupported(format!(
        "{}: `{at}` is {what}, which is not supported",
        path.display()
    ))
}

/// All entries, in the order of the file.
struct Entries<'a> {
    /// As the file spells them.
    texts: &'a Texts<'a>,
    file: &'a File<'a>,
    /// What decoding gives, one behind the other, and where each ends.
    shown: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    /// Which entry each id is, [`NONE`]: none.
    by_id: Vec<u32>,
    /// Texts that the byte alphabet does not spell, and added tokens.
    others: HashMap<&'a str, u32>,
    byte_level: bool,
}

const NONE: u32 = u32::MAX;

impl<'a> Entries<'a> {
    fn new(path: &Path, file: &'a File<'a>, decoder: &Decoder) -> Result<Entries<'a>> {
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
            let kind = match added {
                Some(token) if token.special => Kind::Special,
                Some(_) => Kind::Literal,
                None => Kind::Text,
            };
            entries.push(text, kind, decoder);
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
            (Kind::Text, Decoder::Pieces { spaces, bytes, .. }) => {
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

    /// Texts by id: as decoding shows them, or as the file spells them.
    fn vocabulary(&self, shown: bool) -> Result<Vocabulary> {
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

    /// The id of a text as the file spells it; few are asked for.
    fn id(&self, text: &str) -> Option<u32> {
        let known = || self.texts.0.iter().find(|(known, _)| known.0 == text);
        self.others.get(text).copied().or_else(|| Some(known()?.1))
    }

    /// The merges, over the vocabulary that they are found in.
    fn bpe(&self, path: &Path, file: &File<'_>, vocabulary: &Vocabulary) -> Result<Bpe> {
        let model = &file.model;
        let mut index = Index::new(self.texts.0.len())?;
        for (i, (text, id)) in self.texts.0.iter().enumerate() {
            // An added token of the same id and text has the text as it is.
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

    /// Where texts may be cut. Nowhere if bytes may be merged, if pieces are looked up as a whole,
    /// or if what is unknown makes neighbours of what it parts: it is left out, or one token with
    /// what is unknown beside it.
    fn pairs(&self, bpe: &Bpe) -> Option<Pairs> {
        let is_byte = |id: u64| bpe.bytes.contains(&Some(id as u32));
        let mut pairs = bpe.merges.keys();
        let from_bytes = pairs.any(|pair| is_byte(pair >> 32) || is_byte(pair & 0xffff_ffff));
        let texts = self.texts.0.iter().map(|(text, _)| text.0.as_bytes());
        let meets = bpe.bytes.contains(&None) && (bpe.unk.is_none() || bpe.fuse_unk);
        (!from_bytes && !bpe.ignore_merges && !meets).then(|| Pairs::new(texts))
    }
}

/// Merges that are looked up together.
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
                    // Left sides, right sides, both together.
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

    /// Appends the bytes that a text stands for; says whether it stands for any.
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

/// The byte that a character of GPT-2's byte alphabet stands for: printable ones for themselves,
/// the others in order from U+0100 on.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}
