//! Prefetches the next chunk of K and V from memory while this chunk is computed.

use super::CHUNK;
use super::cache::Cache;
use crate::backend::cpu::PAGE;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::{LANES, Lookahead, Simd};

/// Pages of a chunk.
pub(super) const CHUNK_PAGES: usize = CHUNK / PAGE;

/// The pages of a chunk, prefetched a few lines at a time.
pub(super) struct Ahead<'a, E: Element> {
    pages: [&'a [[E::Bits; 2 * LANES]]; CHUNK_PAGES],
    next: usize,
}

impl<'a, E: Element> Ahead<'a, E> {
    /// Rows of a page that are prefetched at a time: as many as a cache line holds, or one row that
    /// takes two lines.
    const STEP: usize = match 64 / size_of::<[E::Bits; 2 * LANES]>() {
        0 => 1,
        rows => rows,
    };

    /// Prefetches `chunk`, if there is one.
    pub(super) fn new(cache: Option<&Cache<'a, E>>, chunk: usize) -> Self {
        let mut pages: [&[[E::Bits; 2 * LANES]]; CHUNK_PAGES] = [&[]; CHUNK_PAGES];
        if let Some(cache) = cache {
            let from = (chunk * CHUNK_PAGES).min(cache.pages.len());
            for (page, to) in (from..cache.pages.len()).zip(&mut pages) {
                *to = cache.tiles(page);
            }
        }
        Self { pages, next: 0 }
    }

    /// The number of calls that [`Ahead::fetch`] needs for all rows.
    pub(super) fn times(&self) -> usize {
        self.pages[0].len().div_ceil(Self::STEP)
    }

    /// Prefetches the next rows of every page, `times` times.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&mut self, s: S, times: usize) {
        for _ in 0..times {
            for page in self.pages {
                if let Some(at) = page.get(self.next) {
                    for bytes in (0..size_of::<[E::Bits; 2 * LANES]>()).step_by(64) {
                        let into_l1 = false;
                        s.prefetch_far(at, Lookahead { bytes, into_l1 });
                    }
                }
            }
            self.next += Self::STEP;
        }
    }
}
