//! Activations of prompt rows as the tiles of bfloat16 that [`super::product_amx`] multiplies.

use super::amx::{Half, SIDE, TILE, TILE_K};
use super::buf::Mem;
use super::detect::Tier;
use super::pool::{Grid, Pool, Rect};
use super::rows::{Norm, inverse_rms};
use super::simd::{Kernel, LANES, Simd};
use crate::{Result, reserve};
use std::ops::Range;

/// Tiles of k in a block.
pub(super) const BLOCK: usize = 16;
/// Columns k in a block.
pub(super) const BLOCK_K: usize = BLOCK * TILE_K;
/// Rows in a group: two tiles.
pub(super) const GROUP: usize = 2 * SIDE;

/// Number of 16-bit numbers in [`TilePanels`].
pub(super) fn panels_len(rows: usize, cols: usize) -> usize {
    let groups = rows.div_ceil(GROUP);
    cols.div_ceil(BLOCK_K)
        .saturating_mul(groups.saturating_mul(BLOCK * 2 * TILE))
}

/// Activations as tiles of bfloat16: `[k / 512][row / 32][k % 512 / 32][row % 32 / 16][16 rows][32
/// k]`. If all k of a row lay together, tiles that are used together would often be a power of two
/// apart, and would compete for the same lines of L2; that halves the speed. Columns are padded
/// with zeros. The padding of rows may hold anything.
#[derive(Debug)]
pub(super) struct TilePanels {
    data: Mem<u16>,
    pub rows: usize,
    pub cols: usize,
    /// Where blocks of k begin, counted in groups, for a product that fills the panels.
    cuts: Vec<usize>,
}

impl TilePanels {
    /// Room for `rows` rows of up to `cols` columns.
    pub fn new(rows: usize, cols: usize) -> Result<Self> {
        let data = Mem::zeroed("packed activations", panels_len(rows, cols))?;
        let mut cuts = Vec::new();
        let n = cols.div_ceil(BLOCK_K) + 1;
        reserve::vec("cuts of packed activations", &mut cuts, n)?;
        Ok(Self {
            data,
            rows: 0,
            cols: 0,
            cuts,
        })
    }

    /// Parts of `rows` rows of `cols` columns that a product fills: `[group]` rows of `tiles` tiles
    /// of k each, ascending in k. `tiles` divides [`BLOCK`]. The last part may lie beyond the end.
    pub fn parts(&mut self, rows: usize, cols: usize, tiles: usize) -> Grid<'_, u16> {
        debug_assert_eq!(BLOCK % tiles, 0);
        (self.rows, self.cols) = (rows, cols);
        let (groups, blocks) = (self.groups(), self.blocks());
        self.cuts.clear();
        self.cuts.extend((0..=blocks).map(|block| block * groups));
        let len = BLOCK * 2 * TILE;
        let all = &mut self.data[..blocks * groups * len];
        Grid::bands(all, len, tiles * 2 * TILE, &self.cuts)
    }

    /// Fills the panels with the rows `row(0) .. row(rows - 1)`, all of one length, which are
    /// normalised if `norm` is given.
    pub fn fill<'r>(
        &mut self,
        pool: &Pool,
        tier: Tier,
        rows: usize,
        row: impl Fn(usize) -> &'r [f32] + Sync,
        norm: Option<Norm<'_>>,
    ) {
        self.rows = rows;
        self.cols = if rows == 0 { 0 } else { row(0).len() };
        let groups = self.groups();
        let len = BLOCK * 2 * TILE;
        let all = &mut self.data[..self.cols.div_ceil(BLOCK_K) * groups * len];
        let small = rows * self.cols < 1 << 15;
        let parts = Grid::columns(all, groups * len, len);
        let work = |group: usize, _: usize, mut part: Rect<'_, u16>| {
            for i in group * GROUP..rows.min((group + 1) * GROUP) {
                tier.run_with_tiles(Fill {
                    from: row(i),
                    norm,
                    at: i % GROUP,
                    to: &mut part,
                });
            }
        };
        if small {
            pool.here(parts, work)
        } else {
            pool.run(parts, work)
        }
    }

    pub fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK_K)
    }

    /// Tiles of k in a block of k.
    #[inline(always)]
    pub fn tiles(&self, block: usize) -> usize {
        BLOCK.min((self.cols - block * BLOCK_K).div_ceil(TILE_K))
    }

    /// The tiles of some groups in a block of k. Each group has [`TilePanels::tiles`] tiles. They
    /// begin [`BLOCK`] tiles after the beginning of the previous group's tiles.
    #[inline(always)]
    pub fn block(&self, groups: Range<usize>, block: usize) -> &[[Half; 2]] {
        let n = (groups.len() - 1) * BLOCK + self.tiles(block);
        let at = (block * self.groups() + groups.start) * BLOCK * 2 * TILE;
        let tiles = self.data[at..][..n * 2 * TILE].as_chunks::<TILE>().0;
        tiles.as_chunks().0
    }
}

/// Puts one row into its tiles.
struct Fill<'a, 'r> {
    from: &'a [f32],
    norm: Option<Norm<'a>>,
    /// Index of the row in its group.
    at: usize,
    /// A block of k in each row.
    to: &'a mut Rect<'r, u16>,
}

impl Kernel for Fill<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { from, norm, at, to } = self;
        let at = at / SIDE * TILE + at % SIDE * TILE_K;
        let (scale, weight) = match norm {
            Some(norm) => (inverse_rms(s, from, norm.eps), norm.weight),
            None => (1.0, &[][..]),
        };
        let scale = s.splat(scale);
        for (block, from) in from.chunks(BLOCK_K).enumerate() {
            let to = &mut to.row(block)[at..];
            if norm.is_some() {
                fill_block::<S, true>(s, from, scale, &weight[block * BLOCK_K..], to);
            } else {
                fill_block::<S, false>(s, from, scale, &[], to);
            }
        }
    }
}

/// Puts a block of a row into tiles that are two tiles apart. (It has no closures, because the
/// compiler would not compile them for the instruction set.)
#[inline(always)]
fn fill_block<S: Simd, const NORM: bool>(
    s: S,
    from: &[f32],
    scale: S::F,
    weight: &[f32],
    to: &mut [u16],
) {
    for (t, from) in from.chunks(TILE_K).enumerate() {
        let to = to[t * 2 * TILE..].first_chunk_mut::<TILE_K>();
        let to = to.expect("whole tiles").as_chunks_mut::<LANES>().0;
        for (h, to) in to.iter_mut().enumerate() {
            let k = h * LANES;
            let from = &from[k.min(from.len())..];
            let mut x = s.load_partial(&from[..from.len().min(LANES)]);
            if NORM {
                let weight = &weight[(t * TILE_K + k).min(weight.len())..];
                let w = s.load_partial(&weight[..weight.len().min(LANES)]);
                x = s.mul(s.mul(x, scale), w);
            }
            s.tile_half(x, to);
        }
    }
}
