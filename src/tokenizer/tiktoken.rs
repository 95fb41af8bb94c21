//! Llama 3's `tokenizer.model`: lines of a token in base64 and its rank, as tiktoken writes them.
//!
//! A file has no merges: any two tokens whose bytes together are a token may be joined, and the
//! rank of the joined one is the merge's. Special tokens are not in the file; they are Meta's
//! (llama-models, `models/llama3/tokenizer.py`).

use super::Joining;
use super::added::{Added, AddedToken};
use super::bpe::{self, Bpe, Merge, Merges, pair};
use super::normalizer::Normalizer;
use super::pipeline::{Cut, Pipeline};
use super::split::{self, Expression};
use super::vocabulary::{Index, Kind, MAX_TOKEN_BYTES, Vocabulary};
use crate::{Error, Result, Token, reserve};
use std::cmp::Ordering;
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";
/// Most lines; Llama 3 has 128,000.
const MAX_RANKS: usize = 1_000_000;
/// Lines of Llama 4's file, which has other special tokens and splits otherwise.
const LLAMA4_RANKS: usize = 200_000;
/// Special tokens, behind the ranks.
const N_SPECIAL: usize = 256;
/// The first of them, in order; then reserved ones.
const SPECIAL: [&str; 12] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
];

/// Whether these bytes look like such a file.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
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

/// The tokenizer that a file with these contents is; `path` is for the messages.
pub(super) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Pipeline> {
    let format = |detail: String| Error::format(path, detail);
    let ranks = Ranks::parse(bytes, path)?;
    let n = ranks.ends.len();
    if n == LLAMA4_RANKS {
        return Err(Error::Unsupported(format!(
            "{}: {n} ranks are Llama 4's, whose models are not supported",
            path.display()
        )));
    }
    let special = special_tokens();
    let entries = (0..n + N_SPECIAL).map(|id| match id.checked_sub(n) {
        None => (ranks.token(id), Kind::Bytes),
        Some(i) => (special[i].as_bytes(), Kind::Special),
    });
    let vocabulary = Vocabulary::new(entries)?;
    let mut index = Index::new(n)?;
    for id in 0..n as u32 {
        if let Some(first) = index.insert(vocabulary.bytes(id), id, |id| vocabulary.bytes(id)) {
            return Err(format(format!("ranks {first} and {id} are the same token")));
        }
    }
    let mut byte_ids = Box::new([None; 256]);
    for (byte, id) in (0..=u8::MAX).zip(byte_ids.iter_mut()) {
        *id = index.get(&[byte], |id| vocabulary.bytes(id));
        if id.is_none() {
            return Err(format(format!("no rank is the single byte {byte:#04x}")));
        }
    }
    let merges = merges(&vocabulary, n)?;
    let added = special.iter().zip(n as u32..).map(|(text, id)| AddedToken {
        id,
        text: text.clone(),
        special: true,
        ..AddedToken::default()
    });
    let added = Added::new(added.collect(), |text| Ok(text.into())).map_err(format)?;
    let id = |text: &str| added.id(text).unwrap_or(-1);
    let (bos_id, eos_id) = (id(SPECIAL[0]), id(SPECIAL[1]));
    let stop_ids: Vec<Token> = vec![id("<|eom_id|>"), id("<|eot_id|>")];
    let pad_id = id("<|finetune_right_pad_id|>");
    let expression = Expression::new(split::LLAMA3).map_err(Error::Internal)?;
    Ok(Pipeline {
        bpe: Bpe::new(merges, byte_ids, index, true, &vocabulary)?,
        vocabulary,
        raw: None,
        added,
        normalizer: Normalizer::default(),
        cut: Cut::expressions(vec![expression]),
        bos_id,
        eos_id,
        pad_id,
        stop_ids,
        adds_bos: true,
        strips_leading_space: false,
        joining: Joining::ByteLevel,
        covers_bytes: true,
    })
}

fn special_tokens() -> Vec<String> {
    let reserved = 2..2 + N_SPECIAL - SPECIAL.len();
    let reserved = reserved.map(|i| format!("<|reserved_special_token_{i}|>"));
    SPECIAL
        .iter()
        .map(|text| text.to_string())
        .chain(reserved)
        .collect()
}

/// Every way to put a token together out of two others.
///
/// What a token begins with and what it ends with is found by sorting all of them, which takes a
/// fifth of the time of looking up both sides of every split.
fn merges(vocabulary: &Vocabulary, n: usize) -> Result<Merges> {
    let texts = Texts { vocabulary, n };
    let (starts, ends) = (texts.within(Side::Start)?, texts.within(Side::End)?);
    // Llama 3 has 2.2 for each token.
    let mut merges = reserve::room(WHAT, n * 9 / 4)?;
    let len = |id: u32| vocabulary.bytes(id).len();
    // The tokens that end the one at hand, by their length.
    let mut ending = reserve::room(WHAT, vocabulary.longest())?;
    ending.resize(vocabulary.longest(), NONE);
    for id in 0..n as u32 {
        let all = len(id);
        for end in chain(&ends, id) {
            ending[len(end)] = end;
        }
        for start in chain(&starts, id) {
            let end = ending[all - len(start)];
            if end != NONE {
                reserve::vec(WHAT, &mut merges, 1)?;
                merges.push((pair(start, end), Merge { rank: id, id }));
            }
        }
        for end in chain(&ends, id) {
            ending[len(end)] = NONE;
        }
    }
    bpe::table(&merges)
}

const NONE: u32 = u32::MAX;

/// What follows `id` in `within`, and so on.
fn chain(within: &[u32], id: u32) -> impl Iterator<Item = u32> {
    let next = |&id: &u32| Some(within[id as usize]).filter(|&id| id != NONE);
    std::iter::successors(next(&id), next)
}

/// A side of a text.
#[derive(Clone, Copy)]
enum Side {
    Start,
    End,
}

/// The texts of the ids below `n`, which are all different.
struct Texts<'a> {
    vocabulary: &'a Vocabulary,
    n: usize,
}

impl Texts<'_> {
    /// For each id the one with the longest text that its own begins with, or ends with, and is
    /// longer than; [`NONE`] if there is none.
    fn within(&self, side: Side) -> Result<Vec<u32>> {
        let text = |id: u32| self.vocabulary.bytes(id);
        let mut sorted = reserve::room(WHAT, self.n)?;
        sorted.extend((0..self.n as u32).map(|id| (side.first(text(id)), id)));
        // A text comes directly before those that it is a part of.
        sorted.sort_unstable_by(|(a, x), (b, y)| {
            a.cmp(b).then_with(|| side.compare(text(*x), text(*y)))
        });
        let mut within = reserve::room(WHAT, self.n)?;
        within.resize(self.n, NONE);
        let mut before = NONE;
        for (_, id) in sorted {
            while before != NONE && !side.holds(text(id), text(before)) {
                before = within[before as usize];
            }
            within[id as usize] = before;
            before = id;
        }
        Ok(within)
    }
}

impl Side {
    /// A number for the eight bytes of a text at this side; texts of less are as if zeros followed.
    fn first(self, text: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        let n = text.len().min(8);
        match self {
            Side::Start => {
                bytes[..n].copy_from_slice(&text[..n]);
                u64::from_be_bytes(bytes)
            }
            Side::End => {
                bytes[8 - n..].copy_from_slice(&text[text.len() - n..]);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// The order of texts from this side on.
    fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Side::Start => a.cmp(b),
            Side::End => a.iter().rev().cmp(b.iter().rev()),
        }
    }

    /// Whether `part` is at this side of `text`.
    fn holds(self, text: &[u8], part: &[u8]) -> bool {
        match self {
            Side::Start => text.starts_with(part),
            Side::End => text.ends_with(part),
        }
    }
}

/// The tokens of a file, by rank.
struct Ranks {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`.
    ends: Vec<u32>,
}

impl Ranks {
    fn parse(bytes: &[u8], path: &Path) -> Result<Ranks> {
        let lines = bytes
            .split(|&b| b == b'\n')
            .filter(|line| !line.trim_ascii().is_empty());
        let mut ranks = Ranks {
            bytes: reserve::room(WHAT, bytes.len() / 4 * 3)?,
            ends: Vec::new(),
        };
        for (i, line) in lines.enumerate() {
            let wrong = |what: &str| Err(Error::format(path, format!("line {}: {what}", i + 1)));
            if i == MAX_RANKS {
                return wrong("more lines than the most that are supported, a million");
            }
            let line = line.trim_ascii_end();
            let Some(space) = line.iter().position(|&b| b == b' ') else {
                return wrong("no space between a token and its rank");
            };
            let rank = std::str::from_utf8(&line[space + 1..]).ok();
            if rank.and_then(|rank| rank.parse().ok()) != Some(i) {
                return wrong(&format!("expected the rank {i}: they count up from 0"));
            }
            let start = ranks.bytes.len();
            if !base64(&line[..space], &mut ranks.bytes) {
                return wrong("the token is not in base64");
            }
            let len = ranks.bytes.len() - start;
            if !(1..=MAX_TOKEN_BYTES).contains(&len) {
                return wrong(&format!(
                    "a token of {len} bytes, expected 1 to {MAX_TOKEN_BYTES}"
                ));
            }
            reserve::vec(WHAT, &mut ranks.ends, 1)?;
            ranks.ends.push(ranks.bytes.len() as u32);
        }
        Ok(ranks)
    }

    fn token(&self, id: usize) -> &[u8] {
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[id] as usize]
    }
}

/// Append the bytes that standard base64 with padding stands for; `false` where it is none.
fn base64(text: &[u8], bytes: &mut Vec<u8>) -> bool {
    let (groups, []) = text.as_chunks::<4>() else {
        return false;
    };
    let value = |digit: u8| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    for (i, group) in groups.iter().enumerate() {
        let padding = group
            .iter()
            .rev()
            .take_while(|&&digit| digit == b'=')
            .count();
        if padding > 2 || padding > 0 && i + 1 < groups.len() {
            return false;
        }
        let mut bits = 0_u32;
        for &digit in &group[..4 - padding] {
            let Some(digit) = value(digit) else {
                return false;
            };
            bits = bits << 6 | u32::from(digit);
        }
        bits <<= 6 * padding;
        bytes.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    true
}
