//! The paged KV cache: how q and k are rotated, and where q, k and v are stored.
//!
//! The layout is `[page][layer][kv head]`, so that memory is written to, and taken, in the order in
//! which pages are. With all pages of a layer side by side, every layer began a huge page in the
//! same step, whose clearing took 120 ms (benches/record/2026-11-28-jobs-of-streams.txt). An entry
//! holds K and V of sixteen positions, in pairs of vectors of sixteen numbers. In K, the lanes of a
//! vector are positions, and the pairs go along the dimensions, so that sixteen scores are computed
//! at once without horizontal sums. In V, the lanes are dimensions, and the pairs go along the
//! positions: `[8][head_dim padded to 16, over 16]`. [`Element::index`] says where a number lies in
//! a pair; with bfloat16 this is the layout that tiles need.
//!
//! With int8, the vector of each head has its own scale: its greatest magnitude over 127. The
//! sixteen scales of K and the sixteen of V follow the tiles, as the bytes of f32.

use super::PAGE;
use super::detect::Tier;
use super::element::{Data, Element};
use super::pool::{Grid, Pool, Rect};
use super::rows::{Norm, Normalise};
use super::simd::{Kernel, LANES, Simd};
use crate::backend::{RopeTable, Shape, Step};
use crate::{Dtype, Error, Result, reserve};
use std::ops::Range;

/// The paged KV cache.
#[derive(Debug)]
pub struct CpuKv {
    pub(super) data: Data,
    pub(super) dtype: Dtype,
    n_layers: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
}

/// The length of the K and V tiles of one page and head.
pub(super) fn tile_len(dtype: Dtype, head_dim: usize) -> usize {
    let scales = match dtype {
        Dtype::Int8 => 2 * PAGE * size_of::<f32>(),
        _ => 0,
    };
    PAGE * (head_dim + head_dim.next_multiple_of(LANES)) + scales
}

/// Bytes of a page on all layers.
pub(super) fn page_bytes(shape: &Shape, dtype: Dtype) -> u64 {
    [shape.n_layers, shape.n_kv_heads, dtype.size()]
        .iter()
        .fold(tile_len(dtype, shape.head_dim) as u64, |n, &x| {
            n.saturating_mul(x as u64)
        })
}

impl CpuKv {
    pub(super) fn new(shape: &Shape, n_pages: usize, dtype: Dtype) -> Result<CpuKv> {
        if !dtype.is_float() && dtype != Dtype::Int8 {
            return Err(Error::Unsupported(format!(
                "kv_dtype is {dtype}: the CPU keeps the cache as f32, f16, bf16 or int8 only"
            )));
        }
        let len = [n_pages, shape.n_layers, shape.n_kv_heads]
            .iter()
            .fold(tile_len(dtype, shape.head_dim), |n, &x| n.saturating_mul(x));
        Ok(CpuKv {
            data: Data::zeroed("the KV pool", dtype, len)?,
            dtype,
            n_layers: shape.n_layers,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
        })
    }

    /// Numbers of one page on one layer.
    pub(super) fn layer_len(&self) -> usize {
        self.n_kv_heads * tile_len(self.dtype, self.head_dim)
    }

    /// Numbers of one page on all layers, which lie together.
    pub(super) fn page_len(&self) -> usize {
        self.n_layers * self.layer_len()
    }

    /// The numbers of a page.
    fn page(&self, page: u32) -> Range<usize> {
        let at = page as usize * self.page_len();
        at..at + self.page_len()
    }

    /// Copies whole pages, `(from, to)`, on every layer.
    pub(super) fn copy_pages(&mut self, pairs: &[(u32, u32)]) {
        for &(from, to) in pairs {
            let (from, to) = (self.page(from), self.page(to).start);
            match &mut self.data {
                Data::Byte(m) => m.copy_within(from, to),
                Data::Single(m) => m.copy_within(from, to),
                Data::Half(m) => m.copy_within(from, to),
            }
        }
    }

    /// Copies whole pages out. `to` has room for exactly these pages.
    pub(super) fn save_pages(&self, pages: &[u32], to: &mut [u8]) {
        fn save<T: Copy, const N: usize>(from: &[T], to: &mut [u8], bytes: fn(T) -> [u8; N]) {
            for (x, to) in from.iter().zip(to.as_chunks_mut::<N>().0) {
                *to = bytes(*x);
            }
        }
        let len = self.page_len() * self.dtype.size();
        for (page, to) in pages.iter().zip(to.chunks_exact_mut(len.max(1))) {
            let at = self.page(*page);
            match &self.data {
                Data::Byte(m) => save(&m[at], to, i8::to_ne_bytes),
                Data::Single(m) => save(&m[at], to, f32::to_ne_bytes),
                Data::Half(m) => save(&m[at], to, u16::to_ne_bytes),
            }
        }
    }

    /// Copies back what [`CpuKv::save_pages`] gave.
    pub(super) fn load_pages(&mut self, pages: &[u32], from: &[u8]) {
        fn load<T, const N: usize>(to: &mut [T], from: &[u8], number: fn([u8; N]) -> T) {
            for (to, bytes) in to.iter_mut().zip(from.as_chunks::<N>().0) {
                *to = number(*bytes);
            }
        }
        let len = self.page_len() * self.dtype.size();
        for (page, from) in pages.iter().zip(from.chunks_exact(len.max(1))) {
            let at = self.page(*page);
            match &mut self.data {
                Data::Byte(m) => load(&mut m[at], from, i8::from_ne_bytes),
                Data::Single(m) => load(&mut m[at], from, f32::from_ne_bytes),
                Data::Half(m) => load(&mut m[at], from, u16::from_ne_bytes),
            }
        }
    }
}

/// The heads of q or of k in the output of the q|k|v product.
pub(super) struct Heads<'a> {
    /// `[rows, stride]`.
    pub rows: &'a mut [f32],
    pub stride: usize,
    /// The columns of the heads in each row.
    pub columns: Range<usize>,
}

impl Heads<'_> {
    /// RMSNorm of each head; the weight is as wide as a head.
    pub fn normalise(&mut self, pool: &Pool, tier: Tier, norm: Norm<'_>) {
        self.each(pool, |_, heads| {
            tier.run(Normalise {
                vectors: heads,
                norm,
            })
        });
    }

    /// RoPE of each head, in its place.
    pub fn rotate(&mut self, pool: &Pool, tier: Tier, angles: Angles<'_>, positions: &[u32]) {
        self.each(pool, |row, heads| {
            let (cos, sin) = angles.at(positions[row]);
            tier.run(RotateHeads { heads, cos, sin });
        });
    }

    /// Calls `work` with the number of each row and its heads.
    fn each(&mut self, pool: &Pool, work: impl Fn(usize, &mut [f32]) + Sync) {
        let columns = self.columns.clone();
        let rows = self.rows.len() / self.stride;
        let work = |n: usize, _: usize, mut row: Rect<'_, f32>| {
            work(n, &mut row.row(0)[columns.clone()]);
        };
        let parts = Grid::pieces(self.rows, self.stride);
        if rows < 8 {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }
}

struct RotateHeads<'a> {
    heads: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for RotateHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for head in self.heads.chunks_exact_mut(2 * self.cos.len()) {
            let pairs = head.as_chunks_mut::<2>().0.iter_mut();
            for ((pair, cos), sin) in pairs.zip(self.cos).zip(self.sin) {
                let [x, y] = *pair;
                *pair = [x * cos - y * sin, x * sin + y * cos];
            }
        }
    }
}

/// Cosines and sines by position.
#[derive(Clone, Copy)]
pub(super) struct Angles<'a> {
    table: &'a RopeTable,
    /// Pairs of a head.
    half: usize,
    /// Whether every position has the angles of the first.
    still: bool,
}

impl<'a> Angles<'a> {
    /// The angles of the table.
    pub fn turning(table: &'a RopeTable, head_dim: usize) -> Self {
        let (half, still) = (head_dim / 2, false);
        Angles { table, half, still }
    }

    /// No rotation at any position. `table` is [`still`].
    pub fn none(table: &'a RopeTable, head_dim: usize) -> Self {
        let (half, still) = (head_dim / 2, true);
        Angles { table, half, still }
    }

    #[inline(always)]
    fn at(self, position: u32) -> (&'a [f32], &'a [f32]) {
        let row = if self.still { 0 } else { position as usize };
        let at = row * self.half;
        (
            &self.table.cos[at..][..self.half],
            &self.table.sin[at..][..self.half],
        )
    }
}

/// The angles of heads that are not rotated.
pub(super) fn still(head_dim: usize) -> Result<RopeTable> {
    let mut table = RopeTable {
        cos: Vec::new(),
        sin: Vec::new(),
        q_scale: Vec::new(),
    };
    for (values, value) in [(&mut table.cos, 1.0), (&mut table.sin, 0.0)] {
        reserve::vec("angles of heads", values, head_dim / 2)?;
        values.resize(head_dim / 2, value);
    }
    Ok(table)
}

/// The output of the q|k|v product, and the places for its rows.
pub(super) struct Placement<'a> {
    /// `[rows, stride]`; q, k and v begin at the columns `at`.
    pub qkv: &'a [f32],
    pub stride: usize,
    pub at: [usize; 3],
    pub positions: &'a [u32],
    pub slots: &'a [u32],
    pub angles: Angles<'a>,
    /// [`RopeTable::q_scale`].
    pub q_scale: &'a [f32],
}

impl Placement<'_> {
    /// Rotates q and k (neighbouring pairs, as Meta's `apply_rotary_emb`). q goes to `q: [rows,
    /// q_dim]`, k and v go to their slots of `layer`.
    pub fn place<E: Element>(
        &self,
        pool: &Pool,
        tier: Tier,
        q: &mut [f32],
        q_dim: usize,
        kv: &mut CpuKv,
        layer: usize,
    ) {
        let rows = self.positions.len();
        let (head_dim, heads) = (kv.head_dim, kv.n_kv_heads);
        let tile = tile_len(kv.dtype, head_dim);
        let (layer_len, page_len) = (kv.layer_len(), kv.page_len());
        let pages = E::bits_mut(&mut kv.data);
        let of_layer = layer * layer_len..(layer + 1) * layer_len;
        let group = q_dim / heads;
        let parts = (
            Grid::columns(&mut q[..rows * q_dim], q_dim, group),
            Grid::some_columns(pages, page_len, of_layer, tile),
        );
        let work = |head: usize, _: usize, (q, pages): (Rect<'_, f32>, Rect<'_, E::Bits>)| {
            tier.run(PlaceHead::<E> {
                placement: self,
                head,
                head_dim,
                q,
                pages,
            });
        };
        if rows < 8 {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }
}

/// One head of k and v, and the queries that go with it.
struct PlaceHead<'a, E: Element> {
    placement: &'a Placement<'a>,
    head: usize,
    head_dim: usize,
    q: Rect<'a, f32>,
    pages: Rect<'a, E::Bits>,
}

impl<E: Element> Kernel for PlaceHead<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            placement,
            head,
            head_dim,
            mut q,
            mut pages,
        } = self;
        let group = q.cols();
        let mut room = [0.0; ROOM];
        for (row, (&position, &slot)) in placement.positions.iter().zip(placement.slots).enumerate()
        {
            let from = &placement.qkv[row * placement.stride..][..placement.stride];
            let (cos, sin) = placement.angles.at(position);
            let at = placement.at.map(|at| &from[at..]);
            let heads = at[0][head * group..][..group].chunks_exact(head_dim);
            for (from, to) in heads.zip(q.row(row).chunks_exact_mut(head_dim)) {
                rotate_all(from, cos, sin, to);
                if let Some(scale) = placement.q_scale.get(position as usize) {
                    to.iter_mut().for_each(|x| *x *= scale);
                }
            }
            if slot == Step::NO_SLOT {
                continue;
            }
            let slot = slot as usize;
            let padded = head_dim.next_multiple_of(LANES);
            let (k, rest) = pages.row(slot / PAGE).split_at_mut(head_dim * PAGE);
            let (v, units) = rest.split_at_mut(padded * PAGE);
            let slot = slot % PAGE;
            let from_k = &at[1][head * head_dim..][..head_dim];
            let unit = E::unit(|take| rotate(from_k, cos, sin, |_, x| take(x)));
            E::put_unit(units, slot, unit);
            let inverse = E::inverse(unit);
            for (i, from) in from_k.chunks(ROOM).enumerate() {
                let to = &mut room[..from.len()];
                let first = i * ROOM;
                rotate_all(from, &cos[first / 2..], &sin[first / 2..], to);
                let k = k[first * PAGE..].chunks_mut(LANES * PAGE);
                for (from, k) in to.chunks(LANES).zip(k) {
                    let bits = narrow::<E, S>(s, from, inverse);
                    for (d, x) in bits[..from.len()].iter().enumerate() {
                        k[E::index(d, slot)] = *x;
                    }
                }
            }
            let from_v = &at[2][head * head_dim..][..head_dim];
            let unit = E::unit(|take| from_v.iter().for_each(|&x| take(x)));
            E::put_unit(units, PAGE + slot, unit);
            let inverse = E::inverse(unit);
            let to = v[slot / 2 * 2 * padded..]
                .as_chunks_mut::<{ 2 * LANES }>()
                .0;
            for (from, to) in from_v.chunks(LANES).zip(to) {
                let bits = narrow::<E, S>(s, from, inverse);
                for (d, x) in bits[..from.len()].iter().enumerate() {
                    to[E::index(slot % 2, d)] = *x;
                }
            }
        }
    }
}

/// Up to sixteen numbers in the format of the cache.
#[inline(always)]
fn narrow<E: Element, S: Simd>(s: S, from: &[f32], inverse: f32) -> [E::Bits; LANES] {
    let mut bits = [E::Bits::default(); LANES];
    if E::SCALED {
        for (x, to) in from.iter().zip(&mut bits) {
            *to = E::from_f32(x * inverse);
        }
    } else {
        E::narrow(s, s.load_partial(from), &mut bits);
    }
    bits
}

/// The number of dimensions of K that are rotated before they are scattered. A single loop for both
/// would not be vectorised.
const ROOM: usize = 128;

/// [`rotate`] from slice to slice, which the compiler turns into vectors.
#[inline(always)]
fn rotate_all(from: &[f32], cos: &[f32], sin: &[f32], to: &mut [f32]) {
    let (from, to) = (from.as_chunks::<2>().0, to.as_chunks_mut::<2>().0);
    let n = from.len();
    let (cos, sin, to) = (&cos[..n], &sin[..n], &mut to[..n]);
    for i in 0..n {
        let [x, y] = from[i];
        to[i] = [x * cos[i] - y * sin[i], x * sin[i] + y * cos[i]];
    }
}

#[inline(always)]
fn rotate(from: &[f32], cos: &[f32], sin: &[f32], mut to: impl FnMut(usize, f32)) {
    for (i, pair) in from.as_chunks::<2>().0.iter().enumerate() {
        let [x, y] = *pair;
        to(2 * i, x * cos[i] - y * sin[i]);
        to(2 * i + 1, x * sin[i] + y * cos[i]);
    }
}
