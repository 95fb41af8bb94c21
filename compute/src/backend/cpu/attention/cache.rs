//! K and V as attention reads them: one page of one head at a time, as stored or as pairs of
//! bfloat16.

use crate::backend::cpu::PAGE;
use crate::backend::cpu::element::Element;
use crate::backend::cpu::kv::{CpuKv, tile_len};
use crate::backend::cpu::simd::{LANES, Simd};

/// K and V of one head of one sequence.
pub(super) struct Cache<'a, E: Element> {
    /// The cache, from the given layer and head of its first page on.
    pub(super) bits: &'a [E::Bits],
    pub(super) page_len: usize,
    /// The length of one head's part of a page: K, V and scales.
    pub(super) tile_len: usize,
    pub(super) head_dim: usize,
    pub(super) pages: &'a [u32],
}

impl<'a, E: Element> Cache<'a, E> {
    pub(super) fn new(kv: &'a CpuKv, layer: usize, head: usize, pages: &'a [u32]) -> Self {
        let tile_len = tile_len(kv.dtype, kv.head_dim);
        let bits = &E::bits(&kv.data)[layer * kv.layer_len() + head * tile_len..];
        Self {
            bits,
            page_len: kv.page_len(),
            tile_len,
            head_dim: kv.head_dim,
            pages,
        }
    }

    #[inline(always)]
    pub(super) fn tiles(&self, page: usize) -> &'a [[E::Bits; 2 * LANES]] {
        let at = self.pages[page] as usize * self.page_len;
        self.bits[at..][..self.tile_len].as_chunks().0
    }

    /// `[head_dim / 2]` pairs of dimensions, each for sixteen positions.
    #[inline(always)]
    pub(super) fn k(&self, page: usize) -> &'a [[E::Bits; 2 * LANES]] {
        &self.tiles(page)[..self.head_dim / 2]
    }

    /// The scales of a page: the scales of K, then the scales of V.
    #[inline(always)]
    fn scales(&self, page: usize) -> &'a [E::Bits] {
        let at = self.pages[page] as usize * self.page_len;
        let tiles = PAGE * (self.head_dim + self.head_dim.next_multiple_of(LANES));
        &self.bits[at + tiles..at + self.tile_len]
    }

    /// The scales of the sixteen positions of a page of K.
    #[inline(always)]
    pub(super) fn k_units<S: Simd>(&self, s: S, page: usize) -> S::F {
        self.units(s, page, 0)
    }

    #[inline(always)]
    fn units<S: Simd>(&self, s: S, page: usize, first: usize) -> S::F {
        let scales = self.scales(page);
        let mut units = [0.0; LANES];
        for (slot, unit) in units.iter_mut().enumerate() {
            *unit = E::get_unit(scales, first + slot);
        }
        s.load(&units)
    }

    /// The scale of a position of V.
    #[inline(always)]
    pub(super) fn v_unit(&self, page: usize, slot: usize) -> f32 {
        E::get_unit(self.scales(page), PAGE + slot)
    }

    /// K of a page as pairs of bfloat16: `[head_dim / 2]`.
    #[inline(always)]
    pub(super) fn k_pairs<S: Simd>(&self, s: S, page: usize, to: &mut [[u16; 2 * LANES]]) {
        let units = self.k_units(s, page);
        for (from, to) in self.k(page).iter().zip(to) {
            if E::SCALED {
                let [a, b] = E::widen_pair(s, from);
                s.tile_pairs([s.mul(a, units), s.mul(b, units)], to);
            } else {
                E::pair(s, from, to);
            }
        }
    }

    /// Pair `j` of a page's V, for its vector `d`, as bfloat16. Only the first `left` positions
    /// count; the other positions may hold anything and become zeros.
    #[inline(always)]
    pub(super) fn v_pair<S: Simd>(
        &self,
        s: S,
        page: usize,
        j: usize,
        d: usize,
        left: usize,
        to: &mut [u16; 2 * LANES],
    ) {
        let vectors = self.head_dim.div_ceil(LANES);
        let from = first_of::<E>(&self.v(page)[j * vectors + d], left, j);
        if E::SCALED {
            let v = E::widen_pair(s, &from);
            // A scale after the last key may hold anything.
            let unit = |key: usize| match key < left {
                true => self.v_unit(page, key),
                false => 0.0,
            };
            let (a, b) = (s.splat(unit(2 * j)), s.splat(unit(2 * j + 1)));
            s.tile_pairs([s.mul(v[0], a), s.mul(v[1], b)], to);
        } else {
            E::pair(s, &from, to);
        }
    }

    /// The scales of the sixteen positions of a page of V.
    #[inline(always)]
    pub(super) fn v_units<S: Simd>(&self, s: S, page: usize) -> S::F {
        self.units(s, page, PAGE)
    }

    /// `[8][head_dim / 16]` pairs of positions, each for sixteen dimensions.
    #[inline(always)]
    pub(super) fn v(&self, page: usize) -> &'a [[E::Bits; 2 * LANES]] {
        let len = PAGE / 2 * self.head_dim.div_ceil(LANES);
        &self.tiles(page)[self.head_dim / 2..][..len]
    }
}

/// Pair `j` of a page's V. Only the first `left` positions count; the other positions may hold
/// anything and become zeros.
#[inline(always)]
pub(super) fn first_of<E: Element>(
    pair: &[E::Bits; 2 * LANES],
    left: usize,
    j: usize,
) -> [E::Bits; 2 * LANES] {
    let mut pair = *pair;
    for half in left.saturating_sub(2 * j).min(2)..2 {
        for lane in 0..LANES {
            pair[E::index(half, lane)] = E::Bits::default();
        }
    }
    pair
}
