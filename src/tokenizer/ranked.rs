//! Merges for a vocabulary that only has an order (tiktoken). Any two tokens whose bytes together
//! are a token may be joined. The rank of the joined token is the rank of the merge.

use super::bpe::{self, Bpe, Merge, Merges, pair};
use super::vocabulary::{Index, Vocabulary};
use crate::{Error, Result, reserve};
use std::cmp::Ordering;
use std::ops::Range;
use std::path::Path;

const WHAT: &str = "a tokenizer's vocabulary";
/// The most tokens with a rank. Llama 3 has 128,000.
pub(super) const MAX_RANKS: usize = 1_000_000;
/// The most merges. Tokens that repeat one letter over and over would have half as many merges as
/// the square of their number. A run of spaces is usual, with up to some hundreds.
const MERGES_OF_A_TOKEN: usize = 16;
const MERGES_BESIDE: usize = 1 << 18;

/// Builds the merges of the tokens `ids`. The first id has rank 0. `path` is for messages.
///
/// [`Error::Format`] if two of them are the same token, or if a byte is not a token.
pub(super) fn bpe(path: &Path, vocabulary: &Vocabulary, ids: Range<u32>) -> Result<Bpe> {
    let format = |detail: String| Error::format(path, detail);
    let mut index = Index::new(ids.len())?;
    for id in ids.clone() {
        if let Some(first) = index.insert(vocabulary.bytes(id), id, |id| vocabulary.bytes(id)) {
            let [first, second] = [first, id].map(|id| id - ids.start);
            let detail = format!("ranks {first} and {second} are the same token");
            return Err(format(detail));
        }
    }
    let mut byte_ids = Box::new([None; 256]);
    for (byte, id) in (0..=u8::MAX).zip(byte_ids.iter_mut()) {
        *id = index.get(&[byte], |id| vocabulary.bytes(id));
        if id.is_none() {
            return Err(format(format!("no rank is the single byte {byte:#04x}")));
        }
    }
    let merges = merges(path, vocabulary, ids)?;
    Bpe::new(merges, byte_ids, index, true, vocabulary)
}

/// Finds every way to put a token together from two others.
///
/// Sorting all tokens shows which tokens a token begins with and ends with. This takes a fifth of
/// the time of looking up both sides of every split.
fn merges(path: &Path, vocabulary: &Vocabulary, ids: Range<u32>) -> Result<Merges> {
    let Range { start: first, end } = ids;
    let n = (end - first) as usize;
    let texts = Texts {
        vocabulary,
        first,
        n,
    };
    let (starts, ends) = (texts.within(Side::Start)?, texts.within(Side::End)?);
    let most = MERGES_OF_A_TOKEN * n + MERGES_BESIDE;
    let mut merges = reserve::room(WHAT, n * 9 / 4)?; // 2.2 for each token of Llama 3
    let len = |rank: u32| texts.text(rank).len();
    // The tokens that the current token ends with, by their length.
    let mut ending = reserve::room(WHAT, vocabulary.longest())?;
    ending.resize(vocabulary.longest(), NONE);
    for rank in 0..n as u32 {
        let all = len(rank);
        for end in chain(&ends, rank) {
            ending[len(end)] = end;
        }
        for start in chain(&starts, rank) {
            let end = ending[all - len(start)];
            if end != NONE {
                reserve::vec(WHAT, &mut merges, 1)?;
                let id = first + rank;
                merges.push((pair(first + start, first + end), Merge { rank, id }));
            }
        }
        for end in chain(&ends, rank) {
            ending[len(end)] = NONE;
        }
        if merges.len() > most {
            let detail =
                format!("its {n} ranks have more than {most} merges, the most for so many");
            return Err(Error::format(path, detail));
        }
    }
    bpe::table(&merges)
}

const NONE: u32 = u32::MAX;

/// The entry of `rank` in `within`, the entry of that entry, and so on.
fn chain(within: &[u32], rank: u32) -> impl Iterator<Item = u32> {
    let next = |&rank: &u32| Some(within[rank as usize]).filter(|&rank| rank != NONE);
    std::iter::successors(next(&rank), next)
}

/// A side of a text.
#[derive(Clone, Copy)]
enum Side {
    Start,
    End,
}

/// The texts of `n` ids from `first` on. All texts are different.
struct Texts<'a> {
    vocabulary: &'a Vocabulary,
    first: u32,
    n: usize,
}

impl Texts<'_> {
    fn text(&self, rank: u32) -> &[u8] {
        self.vocabulary.bytes(self.first + rank)
    }

    /// For each rank: the rank of the longest shorter text that its own text begins with (or ends
    /// with); [`NONE`] if there is none.
    fn within(&self, side: Side) -> Result<Vec<u32>> {
        let text = |rank: u32| self.text(rank);
        let mut sorted = reserve::room(WHAT, self.n)?;
        sorted.extend((0..self.n as u32).map(|id| (side.first(text(id)), id)));
        // A text comes before those that begin (or end) with it.
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
    /// The first eight bytes of a text from this side, as a number. Shorter texts are padded with
    /// zeros.
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

    /// Compares two texts from this side on.
    fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Side::Start => a.cmp(b),
            Side::End => a.iter().rev().cmp(b.iter().rev()),
        }
    }

    /// Whether `part` stands at this side of `text`.
    fn holds(self, text: &[u8], part: &[u8]) -> bool {
        match self {
            Side::Start => text.starts_with(part),
            Side::End => text.ends_with(part),
        }
    }
}

/// Decodes standard base64 with padding and appends the bytes. `false` if `text` is not base64.
pub(super) fn base64(text: &[u8], bytes: &mut Vec<u8>) -> bool {
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
