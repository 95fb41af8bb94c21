//! Pages and their reference counts.
//!
//! A page is *held* by one sequence or more, or *idle*: held by none but still findable by its
//! text, or *free*. Idle pages count as free: the least recently used are reclaimed when pages are
//! needed.

use super::prefix::{Hit, NodeId, Prefix};
use crate::Token;
use std::collections::BTreeMap;

/// All pages of a handle.
#[derive(Debug)]
pub struct Pool {
    page_size: usize,
    /// How many sequences hold each page.
    holders: Vec<u32>,
    free: Vec<u32>,
    /// Idle pages by the time they were let go, oldest first.
    idle: BTreeMap<u64, u32>,
    /// For every idle page, its key in `idle`.
    let_go: Vec<u64>,
    clock: u64,
    prefix: Prefix,
}

impl Pool {
    /// All pages free. A page id fits in `u32` because slot numbers do.
    pub fn new(n_pages: usize, page_size: usize) -> Self {
        Self {
            page_size,
            holders: vec![0; n_pages],
            free: (0..n_pages as u32).rev().collect(),
            idle: BTreeMap::new(),
            let_go: vec![0; n_pages],
            clock: 0,
            prefix: Prefix::new(n_pages),
        }
    }

    /// Positions of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// Pages that sequences hold.
    pub fn used(&self) -> usize {
        self.holders.len() - self.free.len() - self.idle.len()
    }

    /// The cached pages that hold the longest prefix of `tokens` in whole pages, among those that
    /// were published under `salt`.
    pub fn find_all(&self, salt: u64, tokens: &[Token]) -> Vec<Hit> {
        let mut parent = NodeId::Root { salt };
        let mut hits = Vec::new();
        for page in tokens.chunks_exact(self.page_size) {
            let Some(hit) = self.prefix.find(parent, page) else {
                break;
            };
            parent = hit.node;
            hits.push(hit);
        }
        hits
    }

    /// The cached page that holds `tokens`, one page of them, after the text of `parent`.
    pub fn find(&self, parent: NodeId, tokens: &[Token]) -> Option<Hit> {
        self.prefix.find(parent, tokens)
    }

    /// Hold the pages of `hits` and as many fresh ones as make `total`; `None`, and nothing
    /// changed, where there are not enough.
    pub fn reserve(&mut self, hits: &[Hit], total: usize) -> Option<Vec<u32>> {
        let fresh = total.checked_sub(hits.len())?;
        let idle_hits = hits
            .iter()
            .filter(|hit| self.holders[hit.page as usize] == 0)
            .count();
        if self.free.len() + self.idle.len() - idle_hits < fresh {
            return None;
        }
        let mut pages = Vec::with_capacity(total);
        for hit in hits {
            self.hold(hit.page);
            pages.push(hit.page);
        }
        for _ in 0..fresh {
            let page = self.free.pop().or_else(|| self.reclaim())?;
            self.holders[page as usize] = 1;
            pages.push(page);
        }
        Some(pages)
    }

    /// Hold a cached page once more.
    pub fn hold(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        if *holders == 0 {
            self.idle.remove(&self.let_go[page as usize]);
        }
        *holders += 1;
    }

    /// Let go of a page. Let the last page of a text go first: then it is reclaimed before those
    /// without which it cannot be found.
    pub fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        debug_assert!(
            *holders > 0,
            "page {page} is let go more often than it was held"
        );
        *holders -= 1;
        if *holders > 0 {
            return;
        }
        if self.prefix.holds(page) {
            self.clock += 1;
            self.idle.insert(self.clock, page);
            self.let_go[page as usize] = self.clock;
        } else {
            self.free.push(page);
        }
    }

    /// Make a held page findable: prefill has filled it with `tokens`, after the text of `parent`.
    /// Returns the text up to its end.
    pub fn publish(&mut self, parent: NodeId, tokens: &[Token], page: u32) -> NodeId {
        debug_assert_eq!(tokens.len(), self.page_size);
        self.prefix.insert(parent, tokens, page)
    }

    fn reclaim(&mut self) -> Option<u32> {
        let (_, page) = self.idle.pop_first()?;
        self.prefix.remove(page);
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hold fresh pages for `tokens`, fill and publish them without a salt.
    fn write(pool: &mut Pool, tokens: &[Token]) -> Vec<u32> {
        write_salted(pool, 0, tokens)
    }

    fn write_salted(pool: &mut Pool, salt: u64, tokens: &[Token]) -> Vec<u32> {
        let pages = pool.reserve(&[], tokens.len() / pool.page_size()).unwrap();
        let mut parent = NodeId::Root { salt };
        for (page, text) in pages.iter().zip(tokens.chunks_exact(pool.page_size())) {
            parent = pool.publish(parent, text, *page);
        }
        pages
    }

    fn release_all(pool: &mut Pool, pages: &[u32]) {
        pages.iter().rev().for_each(|page| pool.release(*page));
    }

    #[test]
    fn a_page_is_found_by_all_tokens_before_it_not_by_its_own_alone() {
        let mut pool = Pool::new(8, 2);
        let pages = write(&mut pool, &[1, 2, 3, 4, 5, 6]);
        let found = |tokens: &[Token]| {
            pool.find_all(0, tokens)
                .iter()
                .map(|hit| hit.page)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[1, 2, 3, 4, 5, 6, 7]), pages);
        assert_eq!(found(&[1, 2, 3, 4, 5]), pages[..2]);
        assert_eq!(found(&[1, 2, 9, 4, 5, 6]), pages[..1]);
        assert!(found(&[9, 2, 3, 4]).is_empty());
        assert!(found(&[3, 4]).is_empty());
        assert!(found(&[1]).is_empty());
    }

    #[test]
    fn idle_pages_are_found_again_and_the_oldest_end_of_a_text_is_reclaimed_first() {
        let mut pool = Pool::new(4, 2);
        let old = write(&mut pool, &[1, 2, 3, 4]);
        let new = write(&mut pool, &[5, 6]);
        release_all(&mut pool, &old);
        release_all(&mut pool, &new);
        assert_eq!(pool.used(), 0);

        // One page was never used; the second comes from the end of the older text.
        let taken = pool.reserve(&[], 2).unwrap();
        assert!(taken.contains(&old[1]));
        assert_eq!(pool.find_all(0, &[1, 2, 3, 4]).len(), 1);
        assert_eq!(pool.find_all(0, &[5, 6]).len(), 1);

        // What a sequence holds is never reclaimed, and holding counts as use.
        let hits = pool.find_all(0, &[1, 2]);
        assert_eq!(
            pool.reserve(&hits, 3),
            None,
            "one free page besides the hit"
        );
        assert_eq!(pool.used(), 2, "a refused reservation changes nothing");
        let held = pool.reserve(&hits, 2).unwrap();
        assert_eq!(held, [old[0], new[0]]);
        assert!(pool.find_all(0, &[5, 6]).is_empty());
        assert_eq!(pool.reserve(&[], 1), None);

        release_all(&mut pool, &held);
        release_all(&mut pool, &taken);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_shared_page_is_held_until_the_last_holder_lets_go() {
        let mut pool = Pool::new(2, 1);
        let pages = write(&mut pool, &[7]);
        let shared = pool.reserve(&pool.find_all(0, &[7]), 1).unwrap();
        assert_eq!(shared, pages);
        pool.release(pages[0]);
        assert_eq!(pool.used(), 1);
        pool.release(pages[0]);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.find_all(0, &[7]).len(), 1);
    }

    #[test]
    fn of_two_equal_pages_the_first_stays_findable_and_the_second_is_freed() {
        let mut pool = Pool::new(2, 1);
        let first = write(&mut pool, &[7]);
        let second = write(&mut pool, &[7]);
        release_all(&mut pool, &second);
        assert_eq!(pool.find_all(0, &[7])[0].page, first[0]);
        release_all(&mut pool, &first);
        assert_eq!(pool.reserve(&[], 1).unwrap(), second);
        assert_eq!(pool.find_all(0, &[7]).len(), 1);
    }

    #[test]
    fn a_page_is_found_only_with_the_salt_that_it_was_published_under() {
        let mut pool = Pool::new(8, 2);
        let plain = write(&mut pool, &[1, 2, 3, 4]);
        let salted = write_salted(&mut pool, 7, &[1, 2, 3, 4]);
        let found = |salt: u64| {
            let hits = pool.find_all(salt, &[1, 2, 3, 4]);
            hits.iter().map(|hit| hit.page).collect::<Vec<_>>()
        };
        assert_eq!(found(0), plain);
        assert_eq!(found(7), salted);
        assert!(found(8).is_empty());
    }
}
