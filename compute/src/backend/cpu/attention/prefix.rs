//! Prefixes that blocks of different sequences share: a system prompt, samples of one prompt,
//! beams. One pass over the pages of a prefix serves the queries of all its blocks.
//!
//! Only whole chunks that every row of a block sees are shared. Chunks are merged in ascending
//! order, and a query's result does not depend on the queries beside it, so the state after the
//! shared chunks has the bits that it has without sharing.

use super::{CHUNK, PLAN, RowBlock};
use crate::Result;
use crate::backend::cpu::PAGE;
use crate::reserve::room;
use std::ops::Range;

/// What a block shares; no chunks if it shares nothing. (With an `Option`, its numbers were
/// compared before it was known whether they are present, which valgrind reports.)
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Beginning {
    /// Chunks of the prefix.
    pub(super) chunks: usize,
    /// Where the states of the block's rows begin among the states of all prefixes.
    pub(super) first: usize,
    /// The largest number of keys that a row with the prefix sees. A layer with a shorter window
    /// does not share.
    pub(super) keys: usize,
}

/// The prefixes of a step.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// Indices of blocks, sorted by their pages. Blocks with the same prefix follow each other.
    order: Vec<usize>,
    /// Rows of the step, sorted by prefix.
    rows: Vec<usize>,
    /// Indices of `order`: the blocks of each prefix.
    members: Vec<Range<usize>>,
    /// Where the rows of each prefix begin in `rows`, and where the last ones end.
    cuts: Vec<usize>,
}

/// A prefix for the tasks of a layer.
pub(super) struct Prefix<'a> {
    /// One of its blocks.
    pub(super) block: &'a RowBlock,
    /// All rows of the prefix, by their numbers in the step.
    pub(super) rows: &'a [usize],
    /// The lowest position of a row.
    pub(super) position: usize,
}

/// Chunks that every row of the block sees as a whole.
fn whole(block: &RowBlock) -> usize {
    (block.position + 1) / CHUNK
}

/// How many of the first chunks of two blocks are the same.
fn common(a: &RowBlock, b: &RowBlock, pages: &[u32]) -> usize {
    const EACH: usize = CHUNK / PAGE;
    let chunks = |block: &RowBlock| {
        let pages = &pages[block.pages.clone()][..whole(block) * EACH];
        pages.as_chunks::<EACH>().0.iter()
    };
    chunks(a).zip(chunks(b)).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    /// # Errors
    /// [`crate::Error::Refused`].
    pub(super) fn new(max_rows: usize) -> Result<Self> {
        Ok(Self {
            order: room(PLAN, max_rows)?,
            rows: room(PLAN, max_rows)?,
            members: room(PLAN, max_rows / 2)?,
            cuts: room(PLAN, max_rows / 2 + 1)?,
        })
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.rows.clear();
        self.members.clear();
        self.cuts.clear();
        self.cuts.push(0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where the rows of each prefix begin among the states, and where the last ones end.
    pub(super) fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// Finds prefixes, each for at most `most` rows, and for `max_rows` rows in all, and tells the
    /// blocks.
    pub(super) fn find(
        &mut self,
        blocks: &mut [RowBlock],
        pages: &[u32],
        most: usize,
        max_rows: usize,
    ) {
        let worth = |block: &RowBlock| !block.tiles && whole(block) > 0;
        self.order
            .extend((0..blocks.len()).filter(|&i| worth(&blocks[i])));
        let of = |i: usize| &pages[blocks[i].pages.clone()][..whole(&blocks[i]) * (CHUNK / PAGE)];
        self.order
            .sort_unstable_by(|&a, &b| of(a).cmp(of(b)).then(a.cmp(&b)));
        let mut first = 0;
        while first < self.order.len() {
            let left = max_rows - self.rows.len();
            let (chunks, end) = self.longest(blocks, pages, first, most.min(left));
            if end - first > 1 {
                let members = || self.order[first..end].iter();
                let last = |&i: &usize| blocks[i].position + blocks[i].rows.len();
                let keys = members().map(last).max().unwrap_or(0);
                for &i in members() {
                    let block = &mut blocks[i];
                    block.beginning = Beginning {
                        chunks,
                        first: self.rows.len(),
                        keys,
                    };
                    self.rows.extend(block.rows.clone());
                }
                self.members.push(first..end);
                self.cuts.push(self.rows.len());
            }
            first = end;
        }
    }

    /// How many chunks the block at `first` in the order shares with the blocks after it, and where
    /// those blocks end. The next block joins if that does not reduce the number of saved passes.
    fn longest(
        &self,
        blocks: &[RowBlock],
        pages: &[u32],
        first: usize,
        most: usize,
    ) -> (usize, usize) {
        let at = |i: usize| &blocks[self.order[i]];
        let (mut chunks, mut rows) = (whole(at(first)), at(first).rows.len());
        let mut end = first + 1;
        while end < self.order.len() {
            let both = chunks.min(common(at(end - 1), at(end), pages));
            rows += at(end).rows.len();
            let n = end - first;
            if both == 0 || rows > most || both * n < chunks * (n - 1) {
                break;
            }
            chunks = both;
            end += 1;
        }
        (chunks, end)
    }

    /// Prefix `i`.
    pub(super) fn get<'a>(&'a self, i: usize, blocks: &'a [RowBlock]) -> Option<Prefix<'a>> {
        let members = &self.order[self.members[i].clone()];
        let block = &blocks[*members.first()?];
        let positions = members.iter().map(|&i| blocks[i].position);
        Some(Prefix {
            block,
            rows: &self.rows[self.cuts[i]..self.cuts[i + 1]],
            position: positions.min()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of a row each, from their chunks and the positions after these. The pages of a
    /// sequence are its chunks' names.
    fn blocks(of: &[(&str, usize)]) -> (Vec<RowBlock>, Vec<u32>) {
        let mut pages = Vec::new();
        let mut all = Vec::new();
        for (i, &(chunks, more)) in of.iter().enumerate() {
            let first = pages.len();
            let ids = chunks
                .bytes()
                .flat_map(|name| (0..16).map(move |j| u32::from(name) * 16 + j));
            pages.extend(ids);
            pages.extend([9000 + i as u32; 16]);
            all.push(RowBlock {
                rows: i..i + 1,
                position: chunks.len() * CHUNK + more,
                pages: first..pages.len(),
                first_item: 0,
                tiles: false,
                beginning: Beginning::default(),
            });
        }
        (all, pages)
    }

    /// The rows of each prefix, and its chunks.
    fn prefixes(of: &[(&str, usize)], most: usize, max_rows: usize) -> Vec<(Vec<usize>, usize)> {
        let (mut blocks, pages) = blocks(of);
        let mut found = Prefixes::new(blocks.len()).unwrap();
        found.clear();
        found.find(&mut blocks, &pages, most, max_rows);
        let shared = blocks.iter().filter(|b| b.beginning.chunks > 0).count();
        assert_eq!(shared, found.rows.len());
        let prefix = |i| {
            let prefix = found.get(i, &blocks).unwrap();
            let chunks = prefix.block.beginning.chunks;
            for (j, &row) in prefix.rows.iter().enumerate() {
                let beginning = blocks[row].beginning;
                assert_eq!(beginning.first, found.cuts[i] + j);
                assert_eq!(beginning.chunks, chunks);
                assert!(prefix.position <= blocks[row].position);
                assert!(blocks[row].position < beginning.keys);
            }
            (prefix.rows.to_vec(), chunks)
        };
        (0..found.members.len()).map(prefix).collect()
    }

    #[test]
    fn sequences_with_the_same_pages_share_a_prefix() {
        // No two sequences have the same pages, or no chunk is whole.
        assert_eq!(prefixes(&[], 8, 8), []);
        assert_eq!(prefixes(&[("a", 3), ("b", 3), ("", 7), ("", 7)], 8, 8), []);
        // In any order of the step, with others between them.
        let mixed = [("ab", 3), ("x", 1), ("a", 200), ("ay", 0), ("z", 5)];
        assert_eq!(prefixes(&mixed, 8, 8), [(vec![2, 0, 3], 1)]);
        // The two beams share more than the third sequence has; with it, fewer passes would be
        // saved.
        let beams = [("abcd", 3), ("abcd", 3), ("ax", 3)];
        assert_eq!(prefixes(&beams, 8, 8), [(vec![0, 1], 4)]);
        let two = [("abcd", 3), ("abcd", 3), ("axyz", 3), ("axyz", 9)];
        assert_eq!(prefixes(&two, 8, 8), [(vec![0, 1], 4), (vec![2, 3], 4)]);
        // More rows than a prefix may have, and than all prefixes together may have.
        let many = [("ab", 3); 7];
        let want = [(vec![0, 1, 2], 2), (vec![3, 4, 5], 2)];
        assert_eq!(prefixes(&many, 3, 8), want);
        assert_eq!(prefixes(&many, 3, 5), [(vec![0, 1, 2], 2), (vec![3, 4], 2)]);
    }

    #[test]
    fn a_chunk_is_shared_by_rows_that_see_it_whole() {
        let (mut blocks, pages) = blocks(&[("ab", 0), ("ab", 0)]);
        // The last key of chunk 1 is the second row's own, and lies after the first row's.
        blocks[0].position = 2 * CHUNK - 2;
        blocks[1].position = 2 * CHUNK - 1;
        let mut found = Prefixes::new(2).unwrap();
        found.clear();
        found.find(&mut blocks, &pages, 8, 8);
        assert_eq!(blocks[0].beginning.chunks, 1);
        blocks[0].position += 1;
        found.clear();
        found.find(&mut blocks, &pages, 8, 8);
        assert_eq!(blocks[0].beginning.chunks, 2);
    }
}
