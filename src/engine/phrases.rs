//! Phrases that a beam search must write: groups of alternatives, each of which one alternative
//! satisfies. How far a beam has come with them, and which of its tokens get on.
//!
//! One group is open at a time. A token that the open group does not go on with closes it: what was
//! matched of it is lost, and it waits behind the others. That token opens none; one that opens
//! several opens the first. These are the rules of transformers' `ConstraintListState`; but only
//! what is generated counts, not the prompt.

use crate::{Result, Token, reserve};

/// The alternatives of each group, sorted, none of which is the beginning of another.
#[derive(Clone, Copy)]
pub(super) struct Phrases<'a> {
    groups: &'a [Vec<Vec<Token>>],
    /// Tokens of the longest alternative.
    longest: usize,
}

/// How far a beam has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Groups that have not been satisfied and are not open, in the order in which they wait.
    pending: Vec<usize>,
    met: usize,
    open: Option<usize>,
    /// What was matched of the open group.
    seen: Vec<Token>,
    /// The tokens that get on, as [`Progress::look_ahead`] found them.
    next: Vec<Next>,
}

/// A token that gets on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub token: Token,
    /// The group that it opens or goes on with, and how many groups wait before it.
    group: u32,
    before: u32,
    /// Tokens of the longest alternative of that group.
    longest: u32,
}

impl<'a> Phrases<'a> {
    pub fn new(groups: &'a [Vec<Vec<Token>>]) -> Self {
        let lens = groups.iter().flatten().map(Vec::len);
        Self {
            groups,
            longest: lens.max().unwrap_or(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Most tokens that can get on.
    pub fn most(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// The alternatives of a group that go on from `seen`, and are not over with it.
    fn after(&self, group: usize, seen: &[Token]) -> &[Vec<Token>] {
        let all = &self.groups[group][..];
        let before = |a: &Vec<Token>| a[..a.len().min(seen.len())] < *seen;
        let first = all.partition_point(before);
        let rest = &all[first..];
        let of_it = rest.partition_point(|a| a.starts_with(seen));
        // A whole alternative is no beginning of another.
        match rest.first() {
            Some(only) if only.len() == seen.len() => &[],
            _ => &rest[..of_it],
        }
    }

    fn goes_on(&self, group: usize, seen: &[Token], token: Token) -> bool {
        let all = self.after(group, seen);
        all.binary_search_by(|a| a[seen.len()].cmp(&token)).is_ok()
    }

    /// Whether what was `seen` and this token are a whole alternative.
    fn is_met(&self, group: usize, seen: &[Token], token: Token) -> bool {
        let whole = |a: &Vec<Token>| {
            let (begin, end) = a.split_at(a.len().min(seen.len()));
            begin.cmp(seen).then_with(|| end.cmp(&[token]))
        };
        self.groups[group].binary_search_by(whole).is_ok()
    }
}

impl Progress {
    /// At the beginning.
    pub fn new(phrases: Phrases<'_>) -> Result<Self> {
        let what = "the phrases of a search";
        let mut pending = reserve::room(what, phrases.groups.len())?;
        pending.extend(0..phrases.groups.len());
        Ok(Self {
            pending,
            seen: reserve::room(what, phrases.longest)?,
            next: reserve::room(what, phrases.most())?,
            ..Self::default()
        })
    }

    /// Become what `other` is, in the memory that there is. What it found ahead is not taken over.
    pub fn follow(&mut self, other: &Self) {
        self.pending.clone_from(&other.pending);
        self.seen.clone_from(&other.seen);
        (self.met, self.open) = (other.met, other.open);
    }

    /// Whether every group is satisfied.
    pub fn has_met_all(&self) -> bool {
        self.pending.is_empty() && self.open.is_none()
    }

    /// Finds the tokens that get on, each once and ascending. A step asks for it once for each
    /// beam: to look for the group of every single continuation among all that are pending took a
    /// second a step where a caller had 3,700 groups.
    pub fn look_ahead(&mut self, phrases: Phrases<'_>) -> &[Next] {
        let Self {
            pending,
            open,
            seen,
            next,
            ..
        } = self;
        next.clear();
        let mut add = |before: usize, group: usize, seen: &[Token]| {
            let longest = longest(&phrases.groups[group]) as u32;
            let all = phrases.after(group, seen).iter();
            next.extend(all.map(|alternative| Next {
                token: alternative[seen.len()],
                group: group as u32,
                before: before as u32,
                longest,
            }));
        };
        match *open {
            Some(group) => add(0, group, seen),
            None => (pending.iter().enumerate()).for_each(|(at, group)| add(at, *group, &[])),
        }
        // Of several groups that a token opens, the first is opened.
        next.sort_unstable_by_key(|next| (next.token, next.before));
        next.dedup_by_key(|next| next.token);
        next
    }

    /// How far it would have come with this token, and whether every group would be satisfied.
    /// Needs what [`Progress::look_ahead`] found.
    pub fn with(&self, phrases: Phrases<'_>, token: Token) -> (usize, bool) {
        let longest = phrases.longest;
        let Ok(at) = self.next.binary_search_by_key(&token, |next| next.token) else {
            // An open group is broken off.
            return (self.met * longest, self.has_met_all());
        };
        let Next {
            group,
            longest: of_group,
            ..
        } = self.next[at];
        let seen = self.seen.len() + 1;
        match phrases.is_met(group as usize, &self.seen, token) {
            true => {
                let left = self.pending.len() - usize::from(self.open.is_none());
                ((self.met + 1) * longest, left == 0)
            }
            false => (
                self.met * longest + longest - (of_group as usize - seen),
                false,
            ),
        }
    }

    /// Go on with a token.
    pub fn take(&mut self, phrases: Phrases<'_>, token: Token) {
        if let Some(group) = self.open {
            match phrases.goes_on(group, &self.seen, token) {
                true => self.seen.push(token),
                false => {
                    self.pending.push(group);
                    self.open = None;
                    self.seen.clear();
                    return;
                }
            }
        } else {
            let opens = |group: &usize| phrases.goes_on(*group, &[], token);
            let Some(at) = self.pending.iter().position(opens) else {
                return;
            };
            self.open = Some(self.pending.remove(at));
            self.seen.push(token);
        }
        if let Some(group) = self.open
            && phrases.groups[group].binary_search(&self.seen).is_ok()
        {
            self.met += 1;
            self.open = None;
            self.seen.clear();
        }
    }
}

/// Tokens of the longest alternative of a group.
fn longest(group: &[Vec<Token>]) -> usize {
    group.iter().map(Vec::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Progress {
        /// How far it has come, as a number: beams compete with those that have come as far.
        fn bank(&self, phrases: Phrases<'_>) -> usize {
            let progress = self.open.map_or(0, |group| {
                phrases.longest - (longest(&phrases.groups[group]) - self.seen.len())
            });
            self.met * phrases.longest + progress
        }
    }

    fn after(groups: &[Vec<Vec<Token>>], tokens: &[Token]) -> (Vec<Token>, usize, bool) {
        let phrases = Phrases::new(groups);
        let mut progress = Progress::new(phrases).unwrap();
        for token in tokens {
            progress.look_ahead(phrases);
            let foreseen = progress.with(phrases, *token);
            progress.take(phrases, *token);
            let (bank, met_all) = (progress.bank(phrases), progress.has_met_all());
            assert_eq!(foreseen, (bank, met_all), "{tokens:?} with {token}");
        }
        let next = progress.look_ahead(phrases);
        let next = next.iter().map(|next| next.token).collect();
        (next, progress.bank(phrases), progress.has_met_all())
    }

    #[test]
    fn one_group_is_open_at_a_time() {
        let groups = [
            vec![vec![5, 6, 7]],
            vec![vec![6]],
            vec![vec![8, 9], vec![8, 10, 11]],
        ];
        assert_eq!(after(&groups, &[]), (vec![5, 6, 8], 0, false));
        assert_eq!(after(&groups, &[1, 2]), (vec![5, 6, 8], 0, false));
        // Two of three tokens are missing: 3 - 2.
        assert_eq!(after(&groups, &[5]), (vec![6], 1, false));
        // 6 goes on with the open group, it satisfies no other one.
        assert_eq!(after(&groups, &[5, 6]), (vec![7], 2, false));
        assert_eq!(after(&groups, &[5, 6, 7]), (vec![6, 8], 3, false));
        // Broken off by a token that opens nothing, though it could: the group waits behind.
        assert_eq!(after(&groups, &[5, 8]), (vec![5, 6, 8], 0, false));
        assert_eq!(after(&groups, &[5, 8, 8]), (vec![9, 10], 1, false));
        assert_eq!(after(&groups, &[8, 10]), (vec![11], 2, false));
        let all = [8, 10, 11, 6, 3, 5, 6, 7];
        assert_eq!(after(&groups, &all), (vec![], 9, true));
        assert_eq!(
            after(&groups, &[all.as_slice(), &[5, 8]].concat()),
            (vec![], 9, true)
        );
    }

    #[test]
    fn a_token_that_opens_several_opens_the_first() {
        let groups = [vec![vec![4, 5]], vec![vec![4]]];
        assert_eq!(after(&groups, &[4]), (vec![5], 1, false));
        // The first waits behind the second now.
        assert_eq!(after(&groups, &[4, 9, 4]), (vec![4], 2, false));
    }

    /// What a token leads to is foreseen as it then comes: all texts of up to six of four tokens.
    #[test]
    fn what_is_foreseen_comes() {
        let groups = [
            vec![vec![1, 2, 3], vec![1, 3]],
            vec![vec![2]],
            vec![vec![1, 2], vec![3, 3, 1]],
        ];
        for n in 0..4u32.pow(6) {
            let tokens: Vec<Token> = (0..6).map(|i| (n / 4u32.pow(i) % 4) as Token).collect();
            after(&groups, &tokens);
        }
    }
}
