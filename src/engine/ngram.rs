//! Drafts that are looked up: what followed the last tokens when they stood in the text before, or
//! where they stand in a text that the caller expects.
//!
//! A draft is a hint. So the tables below may forget: they are bounded, and nothing of what they
//! say is believed before the tokens were compared.

use crate::{Result, Token, reserve};

/// How many tokens are looked up: the longest first, for what followed them is likelier to follow
/// again.
const LENGTHS: [usize; 3] = [4, 3, 2];

/// So many kinds of drafts there are, by the number of tokens that were found and by where.
pub(super) const KINDS: usize = 2 * LENGTHS.len();

/// A run of tokens is in one of so many neighbouring places of its table. Texts that are made to
/// collide cost no more.
const PROBES: usize = 8;

fn hash(run: &[Token]) -> u64 {
    let mix = |hash: u64, token: &Token| (hash ^ *token as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = run.iter().fold(run.len() as u64, mix);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Where runs of tokens ended last in the tokens of a sequence.
struct Index {
    /// For each of [`LENGTHS`] a table of `mask + 1` places. In them the ends of runs, which are
    /// the positions of the tokens that followed; 0 is nothing.
    ends: Vec<u32>,
    mask: usize,
    /// The runs with ends before this one are in the tables.
    next: usize,
}

impl Index {
    /// For at most so many tokens.
    fn new(most: usize) -> Result<Self> {
        let size = most.saturating_mul(3).div_ceil(2).next_power_of_two();
        let places = size.saturating_mul(LENGTHS.len());
        Ok(Self {
            ends: reserve::filled("the index of a sequence's tokens", places, 0)?,
            mask: size - 1,
            next: 0,
        })
    }

    /// The place of a run in the table of its length, or the place that it may take, and the end
    /// that is there for it.
    fn place(&self, table: usize, run: &[Token], tokens: &[Token]) -> (usize, Option<usize>) {
        let (first, n) = (hash(run) as usize, run.len());
        let place = |probe| table * (self.mask + 1) + (first.wrapping_add(probe) & self.mask);
        for place in (0..PROBES).map(place) {
            let end = self.ends[place] as usize;
            if end == 0 {
                return (place, None);
            }
            if tokens.get(end.saturating_sub(n)..end) == Some(run) {
                return (place, Some(end));
            }
        }
        (place(0), None)
    }

    /// Take note of all runs that something has followed.
    fn note(&mut self, tokens: &[Token]) {
        for end in self.next..tokens.len() {
            for (table, n) in LENGTHS.into_iter().enumerate().filter(|(_, n)| *n <= end) {
                let (place, _) = self.place(table, &tokens[end - n..end], tokens);
                self.ends[place] = end as u32;
            }
        }
        self.next = self.next.max(tokens.len());
    }
}

/// A text that an output may repeat, ready to be searched. Its runs of tokens, as hashes with their
/// ends, in order; for each of [`LENGTHS`].
pub(super) struct Predicted([Vec<(u32, u32)>; LENGTHS.len()]);

impl Predicted {
    pub fn new(tokens: &[Token]) -> Result<Self> {
        let sorted = |n: usize| -> Result<Vec<(u32, u32)>> {
            let ends = n..tokens.len();
            let mut runs = reserve::room("the predicted text", ends.len())?;
            runs.extend(ends.map(|end| (hash(&tokens[end - n..end]) as u32, end as u32)));
            runs.sort_unstable();
            Ok(runs)
        };
        let [four, three, two] = LENGTHS;
        Ok(Self([sorted(four)?, sorted(three)?, sorted(two)?]))
    }

    /// The first end of this run of the length of `table` behind `used`. `tokens` are the text.
    fn find(&self, table: usize, run: &[Token], tokens: &[Token], used: usize) -> Option<usize> {
        let (runs, hash) = (&self.0[table], hash(run) as u32);
        let first = runs.partition_point(|at| *at <= (hash, used as u32));
        let same = runs[first..]
            .iter()
            .take(PROBES)
            .take_while(|at| at.0 == hash);
        let mut ends = same.map(|at| at.1 as usize);
        ends.find(|end| tokens.get(end - run.len()..*end) == Some(run))
    }
}

/// Looks drafts of one sequence up.
pub(super) struct Lookup {
    index: Index,
    /// Up to where the predicted text was used.
    used: usize,
    /// Where the draft that was found last begins in the predicted text, if it is from there.
    from: Option<usize>,
}

impl Lookup {
    /// For a sequence of at most so many tokens.
    pub fn new(most: usize) -> Result<Self> {
        Ok(Self {
            index: Index::new(most)?,
            used: 0,
            from: None,
        })
    }

    /// Find what may follow `tokens`, and fill `drafts` with it. The kind of what was found, and
    /// how many tokens; a draft that ends with the text of the sequence goes on as it has begun.
    pub fn find(
        &mut self,
        tokens: &[Token],
        predicted: (&Predicted, &[Token]),
        drafts: &mut [Token],
    ) -> Option<(usize, usize)> {
        self.from = None;
        self.index.note(tokens);
        let (predicted, text) = predicted;
        for (table, n) in LENGTHS.into_iter().enumerate() {
            let Some(first) = tokens.len().checked_sub(n) else {
                continue;
            };
            let run = &tokens[first..];
            if let Some(end) = predicted.find(table, run, text, self.used) {
                let n = drafts.len().min(text.len() - end);
                drafts[..n].copy_from_slice(&text[end..][..n]);
                self.from = Some(end);
                return Some((LENGTHS.len() + table, n));
            }
            if let (_, Some(end)) = self.index.place(table, run, tokens) {
                let mut n = drafts.len().min(tokens.len() - end);
                drafts[..n].copy_from_slice(&tokens[end..][..n]);
                while n < drafts.len() {
                    let more = n.min(drafts.len() - n);
                    drafts.copy_within(..more, n);
                    n += more;
                }
                return Some((table, drafts.len()));
            }
        }
        None
    }

    /// So many of the drafts that were found last have been taken.
    pub fn taken(&mut self, n: usize) {
        if let Some(from) = self.from.take()
            && n > 0
        {
            self.used = from + n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by its definition, without tables.
    fn by_definition(
        tokens: &[Token],
        predicted: &[Token],
        used: usize,
        n: usize,
    ) -> Option<(usize, Vec<Token>)> {
        for (table, length) in LENGTHS.into_iter().enumerate() {
            let Some(first) = tokens.len().checked_sub(length) else {
                continue;
            };
            let run = &tokens[first..];
            let mut ends = length.max(used + 1)..predicted.len();
            if let Some(end) = ends.find(|end| predicted[end - length..*end] == *run) {
                let draft = predicted[end..].iter().copied().take(n).collect();
                return Some((LENGTHS.len() + table, draft));
            }
            let mut ends = (length..tokens.len()).rev();
            if let Some(end) = ends.find(|end| tokens[end - length..*end] == *run) {
                let mut all = tokens.to_vec();
                (0..n).for_each(|at| all.push(all[end + at]));
                return Some((table, all[tokens.len()..].to_vec()));
            }
        }
        None
    }

    /// Texts of few different tokens, from a fixed seed.
    fn text(seed: u64, n: usize, kinds: u64) -> Vec<Token> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % kinds
        };
        (0..n).map(|_| next() as Token).collect()
    }

    #[test]
    fn drafts_are_what_followed_the_longest_run_last() {
        let (mut found, mut kinds) = (0, [0; KINDS]);
        for seed in 0..60 {
            let tokens = text(seed, 300, 2 + seed % 9);
            let predicted = match seed % 3 {
                0 => Vec::new(),
                _ => text(seed + 1000, 240, 2 + seed % 9),
            };
            let searched = Predicted::new(&predicted).unwrap();
            let mut lookup = Lookup::new(tokens.len()).unwrap();
            for end in 1..tokens.len() {
                // Now and then nothing is looked up, as by a sequence that rests.
                if seed % 4 == 0 && end % 3 > 0 {
                    continue;
                }
                let mut drafts = [-1; 7];
                let want = by_definition(&tokens[..end], &predicted, lookup.used, drafts.len());
                let got = lookup.find(&tokens[..end], (&searched, &predicted), &mut drafts);
                let got = got.map(|(kind, n)| (kind, drafts[..n].to_vec()));
                assert_eq!(got, want, "seed {seed}, {end} tokens");
                if let Some((kind, _)) = got {
                    found += 1;
                    kinds[kind] += 1;
                }
                let before = lookup.used;
                let behind = lookup.from;
                lookup.taken(end % 4);
                match behind {
                    Some(from) if end % 4 > 0 => assert_eq!(lookup.used, from + end % 4),
                    _ => assert_eq!(lookup.used, before),
                }
            }
        }
        assert!(found > 5000, "{found}");
        assert!(kinds.iter().all(|n| *n > 20), "{kinds:?}");
    }

    #[test]
    fn a_full_table_forgets_little() {
        // As many different runs as there is room for.
        let tokens = text(1, 4000, 200);
        let mut index = Index::new(tokens.len()).unwrap();
        index.note(&tokens);
        let known = |end: &usize| {
            let run = &tokens[end - 4..*end];
            index.place(0, run, &tokens).1.is_some()
        };
        let n = (4..tokens.len()).filter(known).count();
        assert!(n > 3900, "{n} of {} runs", tokens.len() - 4);
    }

    #[test]
    fn a_text_that_repeats_is_drafted_on_and_on() {
        let mut lookup = Lookup::new(64).unwrap();
        let nothing = Predicted::new(&[]).unwrap();
        let mut drafts = [0; 8];
        let got = lookup.find(&[7, 8, 9, 7, 8], (&nothing, &[]), &mut drafts);
        assert_eq!((got, drafts), (Some((2, 8)), [9, 7, 8, 9, 7, 8, 9, 7]));
    }
}
