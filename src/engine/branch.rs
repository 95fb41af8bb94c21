//! The tokens that the model has been given of a sequence, and their pages in the cache: everything
//! that a fork copies.

use crate::Token;
use crate::kv::{Hit, NodeId, Pool, Root, Table};

/// The tokens of a sequence and their pages.
pub(super) struct Branch {
    /// Prompt and output. Room for the largest number of tokens is allocated when the sequence is
    /// admitted.
    pub tokens: Vec<Token>,
    pub prompt_len: usize,
    /// The pages of its positions. Those of all positions that it can ever have are promised when
    /// it is admitted.
    pub pages: Table,
    /// Positions whose keys and values are in the pages.
    pub computed: usize,
    /// Positions whose keys and values of the draft model are in the pages, if there is such a
    /// model. It may be behind, and while there are drafts it is ahead.
    pub drafted: usize,
    pub known: Known,
}

/// What the prefix cache knows of a sequence.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Known {
    /// The number of pages whose text it knows.
    pub pages: usize,
    /// The node of that text.
    pub text: NodeId,
}

impl Branch {
    /// A prompt of which nothing is computed, with a page table for the longest sequence that it
    /// can become. The prefix cache finds its pages under `root` only.
    pub fn new(prompt: Vec<Token>, pages: Table, root: Root) -> Self {
        Self {
            prompt_len: prompt.len(),
            tokens: prompt,
            pages,
            computed: 0,
            drafted: 0,
            known: Known {
                pages: 0,
                text: NodeId::Root(root),
            },
        }
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub fn in_prefill(&self) -> bool {
        self.generated() == 0
    }

    /// Notes that the next page's keys and values are in the cache already.
    pub fn adopt(&mut self, node: NodeId, page_size: usize) {
        self.known.pages += 1;
        self.known.text = node;
        self.computed += page_size;
    }

    /// The next page's tokens, if its keys and values may still be found in the prefix cache.
    pub fn next_page(&self, page_size: usize) -> Option<&[Token]> {
        let page = self.computed..self.computed + page_size;
        let whole = page.start == self.known.pages * page_size && page.end <= self.prompt_len;
        whole.then(|| &self.tokens[page])
    }

    /// Takes the pages of all positions before `end`, which are to be written.
    pub fn grow(&mut self, end: usize, pool: &mut Pool) {
        pool.grow(&mut self.pages, end.div_ceil(pool.page_size()));
    }

    /// Looks for pages that another sequence has published since this one was admitted, and has
    /// them instead of its own, which would be empty. Returns whether there were any.
    pub fn adopt_found(&mut self, pool: &mut Pool) -> bool {
        let before = self.computed;
        while let Some(text) = self.next_page(pool.page_size())
            && let Some(hit) = pool.find(self.known.text, text)
        {
            pool.adopt(&mut self.pages, self.known.pages, hit.page);
            self.adopt(hit.node, pool.page_size());
        }
        self.computed > before
    }

    /// Notes what the draft model has in its half of the pages, now that the tokens are known: no
    /// drafts that were not taken, and what it has filled of the pages that were found.
    pub fn look_drafted(&mut self, pool: &Pool) {
        let known = self.prompt_len.max(self.tokens.len() - 1);
        self.drafted = self.drafted.min(known);
        let size = pool.page_size();
        let found = self.computed.min(self.prompt_len);
        // Another sequence may have filled the page that this one has begun.
        while let page = self.drafted / size
            && (page + 1) * size <= found
            && pool.is_drafted(self.pages[page])
        {
            self.drafted = (page + 1) * size;
        }
    }

    /// The draft model has filled the pages up to `end`. Those that hold prompt only are noted, for
    /// sequences that find them.
    pub fn set_drafted(&mut self, end: usize, pool: &mut Pool) {
        let size = pool.page_size();
        let whole = end.min(self.prompt_len) / size;
        for page in self.drafted / size..whole {
            pool.set_drafted(self.pages[page]);
        }
        self.drafted = self.drafted.max(end);
    }

    /// After a step of prefill, publishes the pages that it has filled. Pages that decode fills are
    /// never published, because their numbers come from another arithmetic.
    pub fn publish(&mut self, pool: &mut Pool) {
        self.publish_pages(self.computed / pool.page_size(), pool);
    }

    fn publish_pages(&mut self, n: usize, pool: &mut Pool) {
        let size = pool.page_size();
        for at in self.known.pages..n {
            let text = &self.tokens[at * size..][..size];
            self.known.text = pool.publish(self.known.text, text, self.pages[at]);
            self.known.pages += 1;
        }
    }

    /// Takes new pages before its own, which were copied out, are copied back. Those of `hits` are
    /// shared and have what it has computed. From now on, other sequences can find its other prompt
    /// pages.
    pub fn restore(&mut self, pages: Table, hits: &[Hit], root: Root, pool: &mut Pool) {
        let before = self.known.pages;
        self.pages = pages;
        self.grow(self.computed, pool);
        // The draft model's half of the pages was not kept: it computes the text again.
        self.drafted = 0;
        self.known = Known {
            pages: hits.len(),
            text: hits.last().map_or(NodeId::Root(root), |hit| hit.node),
        };
        self.publish_pages(before, pool);
    }

    /// Be nothing yet, in these pages; a fork makes it something.
    pub fn reset(&mut self, pages: Table, root: Root) {
        self.pages = pages;
        (self.computed, self.drafted) = (0, 0);
        self.known = Known {
            pages: 0,
            text: NodeId::Root(root),
        };
    }

    /// Becomes a copy of `parent`. Shares its full pages, and returns which page is to be copied,
    /// (from, to). Both must have the same prompt, and room for the same number of tokens.
    #[must_use = "the page that is being filled must be copied"]
    pub fn fork(&mut self, parent: &Branch, pool: &mut Pool) -> Option<(u32, u32)> {
        self.tokens.clear();
        self.tokens.extend_from_slice(&parent.tokens);
        (self.computed, self.known) = (parent.computed, parent.known);
        self.drafted = parent.drafted.min(parent.computed);
        pool.fork(&parent.pages, &mut self.pages, parent.computed)
    }

    /// Releases all pages.
    pub fn release(&mut self, pool: &mut Pool) {
        pool.release(&mut self.pages);
    }
}
