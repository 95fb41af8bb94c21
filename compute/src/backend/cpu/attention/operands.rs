//! Q, K and V of a block of prompt rows as the tiles that [`super::group`] multiplies.

use super::group::{KEY_TILES, Row};
use super::tiles::Task;
use super::weights;
use crate::backend::cpu::PAGE;
use crate::backend::cpu::amx::{Half, SIDE, TILE_K};
use crate::backend::cpu::element::Element;
use crate::backend::cpu::simd::{LANES, Simd};

impl<E: Element> Task<'_, E> {
    /// Packs the scaled queries: `[query / 16][head_dim / 32]` tiles of pairs of dimensions.
    #[inline(always)]
    pub(super) fn pack_q<S: Simd>(&self, s: S, to: &mut [Half], deep: usize) {
        let head_dim = self.cache.head_dim;
        let scale = s.splat(weights::scale(head_dim));
        for (strip, to) in to.chunks_exact_mut(deep).enumerate() {
            for (t, to) in to.iter_mut().enumerate() {
                let mut rows = [[0; TILE_K]; SIDE];
                for (lane, row) in rows.iter_mut().enumerate() {
                    let i = strip * LANES + lane;
                    if i >= self.rows * self.group {
                        break;
                    }
                    let at = i / self.group * self.q_dim + i % self.group * head_dim;
                    let from = &self.q[at..][..head_dim];
                    for (h, to) in row.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        let from = &from[head_dim.min(t * TILE_K + h * LANES)..];
                        let x = s.load_partial(&from[..from.len().min(LANES)]);
                        s.tile_half(s.mul(x, scale), to);
                    }
                }
                let mut columns = [s.splat_i32(0); SIDE];
                for (row, column) in rows.iter().zip(&mut columns) {
                    *column = s.load_i16(row);
                }
                let rows = s.transpose_i32(columns);
                for (row, to) in rows.into_iter().zip(to.as_chunks_mut().0) {
                    s.store_i16(row, to);
                }
            }
        }
    }

    /// Converts `keys` keys from `page` on: `[key / 32][head_dim / 32][even keys, odd keys]` tiles.
    /// `pairs` is a buffer for one page.
    #[inline(always)]
    pub(super) fn unpack_k<S: Simd>(
        &self,
        s: S,
        page: usize,
        keys: usize,
        to: &mut [Half],
        pairs: &mut [Row],
        deep: usize,
    ) {
        let half = self.cache.head_dim / 2;
        for i in 0..keys.div_ceil(PAGE) {
            let pairs = match E::bf16_pairs(self.cache.k(page + i)) {
                Some(pairs) => pairs,
                None => {
                    self.cache.k_pairs(s, page + i, pairs);
                    &pairs[..half]
                }
            };
            let to = &mut to[i / 2 * 2 * deep..][..2 * deep];
            for (pairs, to) in pairs.chunks(SIDE).zip(to.as_chunks_mut::<2>().0) {
                let mut rows = [s.splat_i32(0); SIDE];
                for (pair, row) in pairs.iter().zip(&mut rows) {
                    *row = s.load_i16(pair);
                }
                let rows = s.transpose_i32(rows);
                for (key, row) in rows.into_iter().enumerate() {
                    let to = to[key % 2].as_chunks_mut().0;
                    s.store_i16(row, &mut to[i % 2 * (PAGE / 2) + key / 2]);
                }
            }
        }
    }

    /// Converts `keys` values from `page` on: `[head_dim / 32][key / 32][half of the columns]`
    /// tiles. Pads with zeros after the last key: those slots may hold garbage, and zero times NaN
    /// would be NaN.
    #[inline(always)]
    pub(super) fn unpack_v<S: Simd>(
        &self,
        s: S,
        page: usize,
        keys: usize,
        to: &mut [Half],
        deep: usize,
    ) {
        let vectors = self.cache.head_dim.div_ceil(LANES);
        for i in 0..keys.div_ceil(TILE_K) {
            for d in 0..2 * deep {
                let to = &mut to[(d / 2 * KEY_TILES + i) * 2 + d % 2];
                if d >= vectors {
                    to.fill(0);
                    continue;
                }
                let mut rows = [s.splat_i32(0); SIDE];
                for (at, row) in rows.iter_mut().enumerate() {
                    let (half, pair) = (at / (PAGE / 2), at % (PAGE / 2));
                    let left = keys.saturating_sub(i * TILE_K + half * PAGE).min(PAGE);
                    if left == 0 {
                        break;
                    }
                    let page = page + 2 * i + half;
                    let pairs = E::bf16_pairs(self.cache.v(page)).filter(|_| left == PAGE);
                    *row = match pairs {
                        Some(pairs) => s.load_i16(&pairs[pair * vectors + d]),
                        None => {
                            let mut from = [0; 2 * LANES];
                            self.cache.v_pair(s, page, pair, d, left, &mut from);
                            s.load_i16(&from)
                        }
                    };
                }
                let rows = s.transpose_i32(rows);
                for (row, to) in rows.into_iter().zip(to.as_chunks_mut().0) {
                    s.store_i16(row, to);
                }
            }
        }
    }
}
