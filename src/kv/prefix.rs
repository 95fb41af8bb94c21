//! Full pages that prefill wrote, found again by everything before and in them.
//!
//! The pages form a trie: a node is one page's tokens after a parent node, and its id is never used
//! again. An id therefore stands for the whole text up to and including its page. A look-up hashes
//! (parent id, tokens of the page) and then compares them, so equal hashes never make a false hit.

use crate::Token;
use std::collections::HashMap;
use std::sync::Arc;

/// The text up to the end of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeId {
    /// The empty text. Every salt has a trie of its own, so calls with different salts share no
    /// page.
    Root {
        /// [`crate::engine::GenerateOptions::cache_salt`].
        salt: u64,
    },
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

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    parent: NodeId,
    tokens: Box<[Token]>,
}

/// Which pages are cached, and under which text.
#[derive(Debug)]
pub(super) struct Prefix {
    nodes: HashMap<Arc<Key>, Hit>,
    /// For every page of the pool, the key it is cached under.
    keys: Vec<Option<Arc<Key>>>,
    last_id: u64,
}

impl Prefix {
    pub fn new(n_pages: usize) -> Self {
        Self {
            nodes: HashMap::new(),
            keys: vec![None; n_pages],
            last_id: 0,
        }
    }

    pub fn find(&self, parent: NodeId, tokens: &[Token]) -> Option<Hit> {
        self.nodes
            .get(&Key {
                parent,
                tokens: tokens.into(),
            })
            .copied()
    }

    /// Make `page` findable. Where the same text is cached already, that stays and its node is
    /// given.
    pub fn insert(&mut self, parent: NodeId, tokens: &[Token], page: u32) -> NodeId {
        let key = Key {
            parent,
            tokens: tokens.into(),
        };
        if let Some(hit) = self.nodes.get(&key) {
            return hit.node;
        }
        self.last_id += 1;
        let node = NodeId::Text(self.last_id);
        let key = Arc::new(key);
        self.nodes.insert(key.clone(), Hit { node, page });
        self.keys[page as usize] = Some(key);
        node
    }

    pub fn holds(&self, page: u32) -> bool {
        self.keys[page as usize].is_some()
    }

    /// Forget a page. Pages cached under its text can no longer be found; they age and are
    /// reclaimed.
    pub fn remove(&mut self, page: u32) {
        if let Some(key) = self.keys[page as usize].take() {
            self.nodes.remove(&key);
        }
    }
}
