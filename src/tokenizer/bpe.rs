//! Byte-pair encoding by rank. Two neighbours that a merge joins become one token. The merge with
//! the lowest rank comes first; of equal ones, the leftmost (Sennrich, Haddow, Birch 2016; as in
//! tiktoken and tokenizers).

use super::hash::Key;
use super::vocabulary::{Index, Vocabulary};
use crate::{Cancel, Error, Result, Token, reserve};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const WHAT: &str = "encoding a text";

/// Up to this many symbols, the lowest rank is found by looking at all ranks; above, with a heap.
const SHORT: usize = 32;
/// Merges of a long piece between two checks of the cancel flag.
const MERGES_PER_LOOK: usize = 4 << 10;
const NONE: u32 = u32::MAX;

/// What two neighbours become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub rank: u32,
    pub id: u32,
}

/// Merges by the [`pair`] of ids that they join.
pub(super) type Merges = HashMap<u64, Merge, Key>;

/// A table of these merges. If two are for the same pair, the later one counts.
///
/// A table of Llama 3's size has 9 MB and places its entries by the low bits of their hashes. So
/// the entries are sorted by part of the table first, and each part fits into a core's cache while
/// it is filled. This only saves time.
pub(super) fn table(list: &[(u64, Merge)]) -> Result<Merges> {
    const WHAT: &str = "a tokenizer's merges";
    const PARTS: usize = 64;
    let mut merges = HashMap::with_hasher(Key::random());
    let refused = |_| reserve::refused::<Merge>(WHAT, 0, list.len());
    merges.try_reserve(list.len()).map_err(refused)?;
    let each = merges.capacity().next_power_of_two().div_ceil(PARTS);
    let hasher = *merges.hasher();
    let part = |&(pair, _): &(u64, Merge)| hasher.hash_one(pair) as usize / each % PARTS;
    let mut next = [0; PARTS];
    list.iter().for_each(|entry| next[part(entry)] += 1);
    let mut sum = 0;
    for n in &mut next {
        (*n, sum) = (sum, sum + *n);
    }
    let mut by_part = reserve::room(WHAT, list.len())?;
    by_part.resize(list.len(), (0, Merge { rank: 0, id: 0 }));
    for entry in list {
        let at = &mut next[part(entry)];
        by_part[*at] = *entry;
        *at += 1;
    }
    merges.extend(by_part);
    Ok(merges)
}

/// Two ids in one number, so that they are hashed in one step.
pub(super) fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A vocabulary and its merges.
pub(super) struct Bpe {
    pub merges: Merges,
    /// Whether merging starts from characters. Then a character without a token becomes the tokens
    /// `<0xNN>` of its bytes, if all of these exist. Otherwise merging starts from bytes.
    pub from_chars: bool,
    /// Ids of the bytes. With `from_chars`: ids of the tokens `<0xNN>`.
    pub bytes: Box<[Option<u32>; 256]>,
    /// Ids by the bytes that encode to them.
    pub index: Index,
    /// A piece that is itself a token becomes that token, whatever its merges say.
    pub ignore_merges: bool,
    /// The token for what has no token. If there is no such token, such text is left out, as in
    /// tokenizers.
    pub unk: Option<u32>,
    /// Several of these tokens in a row become one.
    pub fuse_unk: bool,
    /// For each id: whether merging the id's own text leads to the id. Found out when it is first
    /// met.
    pub reached: Box<[AtomicU8]>,
}

const UNTRIED: u8 = 0;
const REACHED: u8 = 1;
const MISSED: u8 = 2;

/// Memory that is reused for the next piece.
#[derive(Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    /// For each symbol: rank of the merge with the symbol behind it.
    ranks: Vec<u32>,
    before: Vec<u32>,
    after: Vec<u32>,
    queue: BinaryHeap<Reverse<u64>>,
}

impl Bpe {
    /// Merges from bytes, and has no token for unknown text.
    pub fn new(
        merges: Merges,
        bytes: Box<[Option<u32>; 256]>,
        index: Index,
        ignore_merges: bool,
        vocabulary: &Vocabulary,
    ) -> Result<Bpe> {
        let n = vocabulary.len();
        let mut reached = reserve::room("a tokenizer's vocabulary", n)?;
        reached.resize_with(n, || AtomicU8::new(UNTRIED));
        Ok(Bpe {
            merges,
            from_chars: false,
            bytes,
            index,
            ignore_merges,
            unk: None,
            fuse_unk: false,
            reached: reached.into(),
        })
    }

    /// Appends the ids of `piece`.
    pub fn encode(
        &self,
        piece: &str,
        vocabulary: &Vocabulary,
        scratch: &mut Scratch,
        ids: &mut Vec<Token>,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        let bytes = piece.as_bytes();
        let mut whole = None;
        if bytes.len() <= vocabulary.longest() {
            whole = self.index.get(bytes, |id| vocabulary.bytes(id));
        }
        if let Some(id) = whole {
            let reached = self.reached[id as usize].load(Relaxed);
            if self.ignore_merges || reached == REACHED {
                reserve::vec(WHAT, ids, 1)?;
                ids.push(id as Token);
                return Ok(());
            }
        }
        self.symbols(piece, vocabulary, &mut scratch.ids)?;
        if scratch.ids.len() <= SHORT {
            let mut few = [0; SHORT];
            let n = scratch.ids.len();
            few[..n].copy_from_slice(&scratch.ids);
            let n = self.merge_few(&mut few[..n]);
            scratch.ids.clear();
            scratch.ids.extend_from_slice(&few[..n]);
        } else {
            self.merge_many(scratch, cancel)?;
        }
        if let Some(id) = whole {
            let reached = match scratch.ids[..] == [id] {
                true => REACHED,
                false => MISSED,
            };
            self.reached[id as usize].store(reached, Relaxed);
        }
        reserve::vec(WHAT, ids, scratch.ids.len())?;
        ids.extend(scratch.ids.iter().map(|&id| id as Token));
        Ok(())
    }

    /// The symbols of `piece` before any merge.
    fn symbols(&self, piece: &str, vocabulary: &Vocabulary, ids: &mut Vec<u32>) -> Result<()> {
        ids.clear();
        reserve::vec(WHAT, ids, piece.len())?;
        if !self.from_chars {
            for byte in piece.bytes() {
                self.push(self.bytes[usize::from(byte)], ids);
            }
            return Ok(());
        }
        let mut utf8 = [0; 4];
        for c in piece.chars() {
            let c = c.encode_utf8(&mut utf8).as_bytes();
            let id = self.index.get(c, |id| vocabulary.bytes(id));
            let of = |byte: &u8| self.bytes[usize::from(*byte)];
            match id {
                None if c.iter().all(|byte| of(byte).is_some()) => {
                    ids.extend(c.iter().filter_map(of))
                }
                id => self.push(id, ids),
            }
        }
        Ok(())
    }

    fn push(&self, id: Option<u32>, ids: &mut Vec<u32>) {
        match id.or(self.unk) {
            Some(id) if self.fuse_unk && self.unk == Some(id) && ids.last() == Some(&id) => {}
            Some(id) => ids.push(id),
            None => {}
        }
    }

    fn merge(&self, left: u32, right: u32) -> Merge {
        let merge = self.merges.get(&pair(left, right)).copied();
        merge.unwrap_or(Merge { rank: NONE, id: 0 })
    }

    /// Merges at most [`SHORT`] symbols in place. Returns how many are left.
    fn merge_few(&self, ids: &mut [u32]) -> usize {
        let mut ranks = [NONE; SHORT];
        let mut joined = [0; SHORT];
        let mut n = ids.len();
        let renew = |ids: &[u32], ranks: &mut [u32], joined: &mut [u32], at: usize| {
            let merge = self.merge(ids[at], ids[at + 1]);
            (ranks[at], joined[at]) = (merge.rank, merge.id);
        };
        for at in 1..n {
            renew(ids, &mut ranks, &mut joined, at - 1);
        }
        while n > 1 {
            let lowest = ranks[..n - 1].iter().copied().fold(NONE, u32::min);
            if lowest == NONE {
                break;
            }
            let Some(at) = ranks[..n - 1].iter().position(|&rank| rank == lowest) else {
                break;
            };
            ids[at] = joined[at];
            ids.copy_within(at + 2..n, at + 1);
            ranks.copy_within(at + 2..n, at + 1);
            joined.copy_within(at + 2..n, at + 1);
            n -= 1;
            ranks[n - 1] = NONE;
            if at + 1 < n {
                renew(ids, &mut ranks, &mut joined, at);
            }
            if at > 0 {
                renew(ids, &mut ranks, &mut joined, at - 1);
            }
        }
        n
    }

    /// Merges any number of symbols, `scratch.ids`, in O(n log n).
    fn merge_many(&self, scratch: &mut Scratch, cancel: Option<&Cancel>) -> Result<()> {
        let Scratch {
            ids,
            ranks,
            before,
            after,
            queue,
        } = scratch;
        let n = ids.len();
        if n >= NONE as usize {
            let got = format!("{n} bytes");
            let expected = "below 4 GiB where nothing parts it into words";
            return Err(Error::invalid("text", expected, got));
        }
        for list in [&mut *ranks, before, after] {
            list.clear();
            reserve::vec(WHAT, list, n)?;
        }
        before.extend((0..n as u32).map(|i| i.wrapping_sub(1)));
        after.extend((1..n as u32).chain([NONE]));
        ranks.resize(n, NONE);
        // Each merge takes one pair out before it queues two, and there are fewer merges than
        // symbols.
        queue.clear();
        let most = 2 * n;
        let room = queue.try_reserve(most);
        room.map_err(|_| reserve::refused::<u64>(WHAT, 0, most))?;
        let look = |count: usize| match cancel {
            Some(cancel) if count.is_multiple_of(MERGES_PER_LOOK) && cancel.is_triggered() => {
                Err(Error::Cancelled)
            }
            _ => Ok(()),
        };
        let queued = |rank: u32, at: u32| Reverse(u64::from(rank) << 32 | u64::from(at));
        for at in 0..n - 1 {
            look(at)?;
            ranks[at] = self.merge(ids[at], ids[at + 1]).rank;
            if ranks[at] != NONE {
                queue.push(queued(ranks[at], at as u32));
            }
        }
        let mut count = 0;
        while let Some(Reverse(pair)) = queue.pop() {
            let (rank, at) = ((pair >> 32) as u32, pair as u32 as usize);
            // The symbol has been merged since, or has another neighbour now.
            if ranks[at] != rank {
                continue;
            }
            count += 1;
            look(count)?;
            let gone = after[at] as usize;
            ids[at] = self.merge(ids[at], ids[gone]).id;
            (ids[gone], ranks[gone]) = (NONE, NONE);
            let next = after[gone];
            after[at] = next;
            ranks[at] = NONE;
            if next != NONE {
                before[next as usize] = at as u32;
                ranks[at] = self.merge(ids[at], ids[next as usize]).rank;
                if ranks[at] != NONE {
                    queue.push(queued(ranks[at], at as u32));
                }
            }
            let left = before[at];
            if left != NONE {
                let left = left as usize;
                ranks[left] = self.merge(ids[left], ids[at]).rank;
                if ranks[left] != NONE {
                    queue.push(queued(ranks[left], left as u32));
                }
            }
        }
        ids.retain(|&id| id != NONE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::vocabulary::Kind;

    /// A vocabulary of the letters `a` to `d` and random tokens that are made of two earlier ones.
    fn random(seed: u64) -> (Vocabulary, Bpe, Vec<(u32, u32)>) {
        let mut state = seed;
        let mut below = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut texts: Vec<Vec<u8>> = b"abcd".iter().map(|&byte| vec![byte]).collect();
        let mut pairs = Vec::new();
        while texts.len() < 60 {
            let (left, right) = (below(texts.len()), below(texts.len()));
            let joined = [&texts[left][..], &texts[right]].concat();
            if joined.len() <= 12 && !texts.contains(&joined) {
                pairs.push((left as u32, right as u32));
                texts.push(joined);
            }
        }
        let vocabulary =
            Vocabulary::new(texts.iter().map(|text| (&text[..], Kind::Bytes))).unwrap();
        let mut index = Index::new(texts.len()).unwrap();
        let mut merges = HashMap::with_hasher(Key::random());
        for (id, text) in (0..).zip(&texts) {
            assert_eq!(index.insert(text, id, |id| vocabulary.bytes(id)), None);
        }
        // The order of the ranks is not the order of the ids.
        let n = pairs.len() as u32;
        for (i, &pair) in (0..).zip(&pairs) {
            let rank = (i * 7) % n;
            merges.insert(super::pair(pair.0, pair.1), Merge { rank, id: i + 4 });
        }
        let mut bytes = Box::new([None; 256]);
        for (byte, id) in (b'a'..=b'd').zip(0..) {
            bytes[usize::from(byte)] = Some(id);
        }
        let bpe = Bpe::new(merges, bytes, index, false, &vocabulary).unwrap();
        (vocabulary, bpe, pairs)
    }

    /// The definition: look at all pairs, join the leftmost pair of the lowest rank, start again.
    fn by_definition(bpe: &Bpe, text: &str) -> Vec<Token> {
        let mut ids: Vec<u32> = text
            .bytes()
            .filter_map(|b| bpe.bytes[usize::from(b)])
            .collect();
        loop {
            let ranks = ids.windows(2).map(|pair| bpe.merge(pair[0], pair[1]).rank);
            let Some((rank, at)) = ranks.zip(0..).min().filter(|&(rank, _)| rank != NONE) else {
                return ids.into_iter().map(|id| id as Token).collect();
            };
            let joined = bpe.merge(ids[at], ids[at + 1]);
            assert_eq!(joined.rank, rank);
            ids.splice(at..at + 2, [joined.id]);
        }
    }

    #[test]
    fn merges_are_those_of_the_definition() {
        let mut scratch = Scratch::default();
        let mut state = 5_u64;
        for seed in 0..40 {
            let (vocabulary, bpe, _) = random(seed);
            for len in (0..SHORT + 3).chain([SHORT * 2, 100, 400]) {
                let text: String = (0..len)
                    .map(|_| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(99);
                        // `e` has no token and is left out.
                        char::from(b"abcde"[(state >> 40) as usize % 5])
                    })
                    .collect();
                // Twice, because the second time uses what is known of whole pieces.
                for _ in 0..2 {
                    let mut ids = Vec::new();
                    bpe.encode(&text, &vocabulary, &mut scratch, &mut ids, None)
                        .unwrap();
                    assert_eq!(ids, by_definition(&bpe, &text), "{seed}: {text}");
                }
            }
        }
    }

    #[test]
    fn a_long_piece_is_cancelled_while_it_is_merged() {
        let (vocabulary, bpe, _) = random(1);
        let cancel = Cancel::default();
        cancel.trigger();
        let text = "ab".repeat(MERGES_PER_LOOK);
        let mut ids = Vec::new();
        let mut scratch = Scratch::default();
        let result = bpe.encode(&text, &vocabulary, &mut scratch, &mut ids, Some(&cancel));
        assert!(matches!(result, Err(Error::Cancelled)));
    }

    #[test]
    fn what_has_no_token() {
        let (vocabulary, mut bpe, _) = random(1);
        let encode = |bpe: &Bpe| {
            let mut ids = Vec::new();
            bpe.encode(
                "eeaee",
                &vocabulary,
                &mut Scratch::default(),
                &mut ids,
                None,
            )
            .unwrap();
            ids
        };
        assert_eq!(encode(&bpe), [0]);
        // The last token is part of no merge.
        bpe.unk = Some(59);
        assert_eq!(encode(&bpe), [59, 59, 0, 59, 59]);
        bpe.fuse_unk = true;
        assert_eq!(encode(&bpe), [59, 0, 59]);
    }
}
