//! What the model has been given of a sequence, and where the cache has it: all that a fork copies.

use crate::Token;
use crate::kv::{Hit, NodeId, Pool, Root};

/// The tokens of a sequence and their pages.
pub(super) struct Branch {
    /// Prompt and output; room for all that there can be is taken when it is admitted.
    pub tokens: Vec<Token>,
    pub prompt_len: usize,
    /// Pages of all positions it can ever have; reserved when it is admitted.
    pub pages: Vec<u32>,
    /// Positions whose keys and values are in the pages.
    pub computed: usize,
    pub known: Known,
}

/// What the prefix cache knows of a sequence.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Known {
    /// Pages whose text it knows.
    pub pages: usize,
    /// That text.
    pub text: NodeId,
}

impl Branch {
    /// A prompt of which nothing is computed, and pages for all that it can become. The prefix
    /// cache finds its pages under `root` only.
    pub fn new(prompt: Vec<Token>, pages: Vec<u32>, root: Root) -> Self {
        Self {
            prompt_len: prompt.len(),
            tokens: prompt,
            pages,
            computed: 0,
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

    /// The next page's keys and values are in the cache already.
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

    /// Pages that another sequence has published since this one was admitted take the place of its
    /// own, which are still empty. Whether there were any.
    pub fn adopt_found(&mut self, pool: &mut Pool) -> bool {
        let before = self.computed;
        while let Some(text) = self.next_page(pool.page_size())
            && let Some(hit) = pool.find(self.known.text, text)
        {
            pool.hold(hit.page);
            let own = std::mem::replace(&mut self.pages[self.known.pages], hit.page);
            pool.release(own);
            self.adopt(hit.node, pool.page_size());
        }
        self.computed > before
    }

    /// After a step of prefill: make the pages that it has filled findable. Those that decode fills
    /// have another arithmetic and must never be.
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

    /// After its pages were copied out and back: these hold what it has computed, and those of
    /// `hits` are shared. Its other prompt pages can be found from now on.
    pub fn restore(&mut self, pages: Vec<u32>, hits: &[Hit], root: Root, pool: &mut Pool) {
        let before = self.known.pages;
        self.pages = pages;
        self.known = Known {
            pages: hits.len(),
            text: hits.last().map_or(NodeId::Root(root), |hit| hit.node),
        };
        self.publish_pages(before, pool);
    }

    /// Become what `parent` is, in pages of its own: share the full ones, and return which page is
    /// to be copied, (from, to). Both have the same prompt, and room for as many tokens.
    #[must_use = "the page that is being filled must be copied"]
    pub fn fork(&mut self, parent: &Branch, pool: &mut Pool) -> Option<(u32, u32)> {
        self.tokens.clear();
        self.tokens.extend_from_slice(&parent.tokens);
        (self.computed, self.known) = (parent.computed, parent.known);
        pool.fork(&parent.pages, &mut self.pages, parent.computed)
    }

    /// Let all pages go, the last one first ([`Pool::release`] says why).
    pub fn release(&mut self, pool: &mut Pool) {
        for page in self.pages.drain(..).rev() {
            pool.release(page);
        }
    }
}
