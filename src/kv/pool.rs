//! Pages and their reference counts.
//!
//! A page is *held* by one sequence or more, or *idle*: held by none but still findable by its
//! text, or *free*. Idle pages count as free: the least recently used are reclaimed when pages are
//! needed.
//!
//! A sequence is *promised* all pages that it can come to need before it begins, so it never waits
//! for one. But a page gets its number only when there is something to write into it. So pages that
//! are written lie side by side, however many were promised: the system gives memory where it is
//! written to first, and gives 2 MiB there. With numbers from the beginning on, 64 sequences that
//! wrote 7.8 MiB took 499. And what is cached is reclaimed for what is written, not for what may
//! be.

use super::Table;
use super::prefix::{Hit, NodeId, Prefix, Root};
use crate::{Result, Token, reserve};

/// All pages of a handle. What it needs of the host's memory it takes when it is made.
#[derive(Debug)]
pub struct Pool {
    page_size: usize,
    /// How many sequences hold each page.
    holders: Vec<u32>,
    /// Which pages the draft model, too, has filled with its own keys and values of their text.
    drafted: Vec<bool>,
    free: Vec<u32>,
    idle: Idle,
    /// Of the free and idle pages, so many are promised.
    promised: usize,
    prefix: Prefix,
}

impl Pool {
    /// All pages free. A page id fits in `u32` because slot numbers do.
    pub fn new(n_pages: usize, page_size: usize) -> Result<Self> {
        let mut free = reserve::room("the list of free pages", n_pages)?;
        free.extend((0..n_pages as u32).rev());
        Ok(Self {
            page_size,
            holders: reserve::filled("the holders of pages", n_pages, 0)?,
            drafted: reserve::filled("the pages of the draft model", n_pages, false)?,
            free,
            idle: Idle::new(n_pages)?,
            promised: 0,
            prefix: Prefix::new(n_pages, page_size)?,
        })
    }

    /// Positions of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages that sequences hold or that are promised to them.
    pub fn used(&self) -> usize {
        self.holders.len() - self.room()
    }

    /// Pages that can still be promised.
    fn room(&self) -> usize {
        self.free.len() + self.idle.len - self.promised
    }

    /// The cached pages that hold the longest prefix of `tokens` in whole pages, among those that
    /// were published under `root`.
    pub fn find_all(&self, root: Root, tokens: &[Token]) -> Result<Vec<Hit>> {
        let mut parent = NodeId::Root(root);
        let mut hits = Vec::new();
        for page in tokens.chunks_exact(self.page_size) {
            let Some(hit) = self.prefix.find(parent, page) else {
                break;
            };
            parent = hit.node;
            reserve::push("the list of found pages", &mut hits, hit)?;
        }
        Ok(hits)
    }

    /// The cached page that holds `tokens`, one page of them, after the text of `parent`.
    pub fn find(&self, parent: NodeId, tokens: &[Token]) -> Option<Hit> {
        self.prefix.find(parent, tokens)
    }

    /// Hold the pages of `hits`, and promise as many more as make `total`, which is no less. `None`
    /// where there are not enough; nothing has changed then.
    pub fn reserve(&mut self, hits: &[Hit], total: usize) -> Result<Option<Table>> {
        let promised = total - hits.len();
        let idle_hits = hits
            .iter()
            .filter(|hit| self.holders[hit.page as usize] == 0)
            .count();
        if self.room() < promised + idle_hits {
            return Ok(None);
        }
        let mut pages = reserve::room("a page table", total)?;
        for hit in hits {
            self.hold(hit.page);
            pages.push(hit.page);
        }
        self.promised += promised;
        Ok(Some(Table { pages, promised }))
    }

    /// The same for `n` sequences that begin alike, each with a page table of its own.
    pub fn reserve_all(
        &mut self,
        n: usize,
        hits: &[Hit],
        total: usize,
    ) -> Result<Option<Vec<Table>>> {
        let mut tables: Vec<Table> = reserve::room("page tables", n)?;
        for _ in 0..n {
            let table = self.reserve(hits, total);
            if let Ok(Some(table)) = table {
                tables.push(table);
                continue;
            }
            for table in &mut tables {
                self.release(table);
            }
            return table.map(|_| None);
        }
        Ok(Some(tables))
    }

    /// Take promised pages, until there are `n`.
    pub fn grow(&mut self, table: &mut Table, n: usize) {
        while table.pages.len() < n && table.promised > 0 {
            let Some(page) = self.free.pop().or_else(|| self.reclaim()) else {
                break;
            };
            self.holders[page as usize] = 1;
            self.drafted[page as usize] = false;
            self.promised -= 1;
            table.promised -= 1;
            table.pages.push(page);
        }
        debug_assert!(table.pages.len() >= n, "a page that was not promised");
    }

    /// Hold a page that others have filled in the place `at` of a table, instead of what the table
    /// has or was promised there.
    pub fn adopt(&mut self, table: &mut Table, at: usize, page: u32) {
        self.hold(page);
        match table.pages.get_mut(at) {
            Some(own) => {
                let own = std::mem::replace(own, page);
                self.let_go(own);
            }
            None => {
                debug_assert_eq!(at, table.pages.len(), "a page is left out");
                table.pages.push(page);
                table.promised -= 1;
                self.promised -= 1;
            }
        }
    }

    /// Fork a sequence: `child`, which has and was promised as many pages as `parent` or more, gets
    /// the keys and values of `parent`'s first `positions` positions.
    ///
    /// Full pages are held by both from now on, and the child lets its own go. A page that is not
    /// full must not be shared, because both sequences go on writing into it: the child has its own
    /// page there, and the pair (from, to) is returned, which
    /// [`Run::copy_pages`](crate::backend::Run::copy_pages) must copy before the next step. A fork
    /// needs no page beyond those that the child was promised, so it cannot fail. A child never
    /// goes back: it has no more full pages than the parent, since those may be shared.
    #[must_use = "the page that is being filled must be copied"]
    pub fn fork(
        &mut self,
        parent: &Table,
        child: &mut Table,
        positions: usize,
    ) -> Option<(u32, u32)> {
        let full = positions / self.page_size;
        for (at, from) in parent.pages[..full].iter().enumerate() {
            self.adopt(child, at, *from);
        }
        if positions.is_multiple_of(self.page_size) {
            return None;
        }
        self.grow(child, full + 1);
        debug_assert_eq!(
            self.holders[child.pages[full] as usize], 1,
            "a shared page is written"
        );
        Some((parent.pages[full], child.pages[full]))
    }

    fn hold(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        if *holders == 0 {
            self.idle.remove(page);
        }
        *holders += 1;
    }

    fn let_go(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        debug_assert!(
            *holders > 0,
            "page {page} is let go more often than it was held"
        );
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        match self.prefix.holds(page) {
            true => self.idle.push(page),
            false => self.free.push(page),
        }
    }

    /// Let all pages of a table go, and those that it was promised. From the last to the first:
    /// pages are reclaimed in that order, and a page can only be found while all pages before it
    /// can.
    pub fn release(&mut self, table: &mut Table) {
        while let Some(page) = table.pages.pop() {
            self.let_go(page);
        }
        self.promised -= std::mem::take(&mut table.promised);
    }

    /// Make a held page findable: prefill has filled it with `tokens`, after the text of `parent`.
    /// Returns the text up to its end.
    pub fn publish(&mut self, parent: NodeId, tokens: &[Token], page: u32) -> NodeId {
        debug_assert_eq!(tokens.len(), self.page_size);
        self.prefix.insert(parent, tokens, page)
    }

    /// The draft model has filled a held page with the prompt that it is for.
    pub fn set_drafted(&mut self, page: u32) {
        self.drafted[page as usize] = true;
    }

    /// Whether the draft model has filled the page, since it was last reserved as an empty one.
    pub fn is_drafted(&self, page: u32) -> bool {
        self.drafted[page as usize]
    }

    fn reclaim(&mut self) -> Option<u32> {
        let page = self.idle.oldest()?;
        self.idle.remove(page);
        self.prefix.remove(page);
        Some(page)
    }
}

/// Idle pages in the order in which they were let go: a ring of links, so that a page is appended
/// and taken out of the middle without a search and without an allocation.
#[derive(Debug)]
struct Idle {
    /// For every idle page its neighbours, (older, newer). The last element belongs to no page: it
    /// is where the ring begins and ends.
    links: Vec<(u32, u32)>,
    len: usize,
}

impl Idle {
    fn new(n_pages: usize) -> Result<Self> {
        let end = n_pages as u32;
        let links = reserve::filled("the list of idle pages", n_pages + 1, (end, end))?;
        Ok(Self { links, len: 0 })
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn oldest(&self) -> Option<u32> {
        let (_, oldest) = self.links[self.end() as usize];
        (self.len > 0).then_some(oldest)
    }

    fn push(&mut self, page: u32) {
        let end = self.end();
        let (newest, _) = self.links[end as usize];
        self.links[page as usize] = (newest, end);
        self.links[newest as usize].1 = page;
        self.links[end as usize].0 = page;
        self.len += 1;
    }

    /// `page` is idle.
    fn remove(&mut self, page: u32) {
        let (older, newer) = self.links[page as usize];
        self.links[older as usize].1 = newer;
        self.links[newer as usize].0 = older;
        self.len -= 1;
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
