//! Full pages that prefill wrote, found again by everything before and in them.
//!
//! The pages form a trie: a node is one page's tokens after a parent node, and its id is never used
//! again. An id therefore stands for the whole text up to and including its page. A look-up hashes
//! (parent id, tokens of the page) and then compares them, so equal hashes never make a false hit.
//!
//! All memory is taken when the pool is made, because nobody could be told later that there is
//! none: for every page of the pool the tokens it is cached under, and a hash table whose chains
//! are links between pages.

use crate::{Result, Token, reserve};
use std::hash::{BuildHasher, RandomState};

/// Calls that share pages: those that differ in anything here share none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root {
    /// [`crate::engine::GenerateOptions::cache_salt`].
    pub salt: u64,
    /// The adapter that the keys and values were computed with; 0: none.
    pub adapter: u32,
}

/// The text up to the end of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeId {
    /// The empty text. Every root has a trie of its own.
    Root(Root),
    /// A text of one page or more.
    Text(u64),
}

/// A cached page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The text up to its end: the parent of what follows.
    pub node: NodeId,
    /// The page.
    pub page: u32,
}

/// What a page is cached under, beside its tokens.
#[derive(Clone, Copy, Debug)]
struct Entry {
    parent: NodeId,
    node: NodeId,
    /// The next page of the same chain, or [`END`].
    next: u32,
}

/// The end of a chain.
const END: u32 = u32::MAX;

/// Which pages are cached, and under which text.
#[derive(Debug)]
pub(super) struct Prefix {
    page_size: usize,
    /// For every page of the pool, `None` where it is not cached.
    entries: Vec<Option<Entry>>,
    /// The tokens of every cached page, `[n_pages, page_size]`.
    tokens: Vec<Token>,
    /// The first page of each chain. Their number is a power of two.
    chains: Vec<u32>,
    hasher: RandomState,
    last_id: u64,
}

impl Prefix {
    pub fn new(n_pages: usize, page_size: usize) -> Result<Self> {
        let n_chains = n_pages.next_power_of_two();
        Ok(Self {
            page_size,
            entries: reserve::filled("the prefix cache", n_pages, None)?,
            tokens: reserve::filled("the prefix cache", n_pages * page_size, 0)?,
            chains: reserve::filled("the prefix cache", n_chains, END)?,
            hasher: RandomState::new(),
            last_id: 0,
        })
    }

    pub fn find(&self, parent: NodeId, tokens: &[Token]) -> Option<Hit> {
        let mut page = self.chains[self.chain(parent, tokens)];
        while let Some(entry) = self.entries.get(page as usize).copied().flatten() {
            if entry.parent == parent && self.tokens(page) == tokens {
                let node = entry.node;
                return Some(Hit { node, page });
            }
            page = entry.next;
        }
        None
    }

    /// Make `page` findable. Where the same text is cached already, that stays and its node is
    /// given.
    pub fn insert(&mut self, parent: NodeId, tokens: &[Token], page: u32) -> NodeId {
        if let Some(hit) = self.find(parent, tokens) {
            return hit.node;
        }
        self.last_id += 1;
        let node = NodeId::Text(self.last_id);
        let first = page as usize * self.page_size;
        self.tokens[first..first + self.page_size].copy_from_slice(tokens);
        let chain = self.chain(parent, tokens);
        let next = std::mem::replace(&mut self.chains[chain], page);
        self.entries[page as usize] = Some(Entry { parent, node, next });
        node
    }

    pub fn holds(&self, page: u32) -> bool {
        self.entries[page as usize].is_some()
    }

    /// Forget a page. Pages cached under its text can no longer be found; they age and are
    /// reclaimed.
    pub fn remove(&mut self, page: u32) {
        let Some(removed) = self.entries[page as usize].take() else {
            return;
        };
        let chain = self.chain(removed.parent, self.tokens(page));
        if self.chains[chain] == page {
            self.chains[chain] = removed.next;
            return;
        }
        let mut before = self.chains[chain];
        while let Some(Some(entry)) = self.entries.get_mut(before as usize) {
            if entry.next == page {
                entry.next = removed.next;
                return;
            }
            before = entry.next;
        }
    }

    fn tokens(&self, page: u32) -> &[Token] {
        let first = page as usize * self.page_size;
        &self.tokens[first..first + self.page_size]
    }

    fn chain(&self, parent: NodeId, tokens: &[Token]) -> usize {
        let hash = self.hasher.hash_one((parent, tokens));
        hash as usize & (self.chains.len() - 1)
    }
}
