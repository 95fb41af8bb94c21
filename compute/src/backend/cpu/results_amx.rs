//! What becomes of the sums of tiles ([`super::product_amx`]): rows of float32, or tiles for the
//! next product.

use super::amx::{Beside, SIDE, Sums, TILE, TILE_K};
use super::exp::silu;
use super::panels_amx::GROUP;
use super::pool::Rect;
use super::results::{Ending, Finish};
use super::simd::{LANES, Simd};
use std::ops::Range;

/// How sums become results, and where these go.
pub(super) struct Write<'a> {
    pub ending: Ending<'a>,
    pub bias: &'a [[f32; LANES]],
    /// First of the task's strips.
    pub first: usize,
    /// First strip of the second part.
    pub second: Option<usize>,
    /// Columns of the product, counted from the task's first.
    pub cols: usize,
    pub out: Out<'a>,
}

pub(super) enum Out<'a> {
    /// Row `i` into row `to[i]`.
    Rows { out: Rect<'a, f32>, to: &'a [u32] },
    /// Tiles for the next product: the results of SwiGLU without adapters. `[group][tiles]`, in the
    /// layout of [`super::panels_amx::TilePanels`].
    Panels(Rect<'a, u16>),
}

impl<'a> Write<'a> {
    /// What writes the results of a pair of strips of the task. The first square begins with row
    /// `row`.
    #[inline(always)]
    pub fn pair<S: Simd>(&mut self, s: S, pair: usize, row: usize) -> WritePair<'_, 'a, S> {
        let strips = match self.second {
            Some(second) => [self.first + pair, second + self.first + pair],
            None => [0, 1].map(|half| self.first + 2 * pair + half),
        };
        let [b0, b1] = strips.map(|strip| self.bias.get(strip));
        // Adding -0 changes no number, not even -0.
        let none = [-0.0; LANES];
        WritePair {
            s,
            bias: [s.load(b0.unwrap_or(&none)), s.load(b1.unwrap_or(&none))],
            write: self,
            strips,
            pair,
            row,
        }
    }
}

/// Writes the results of a pair of strips.
pub(super) struct WritePair<'w, 'a, S: Simd> {
    s: S,
    write: &'w mut Write<'a>,
    /// The pair's strips in the matrix, and what is added to their sums.
    strips: [usize; 2],
    bias: [S::F; 2],
    pair: usize,
    /// First row of the first square.
    row: usize,
}

impl<S: Simd> Beside for WritePair<'_, '_, S> {
    const UNIT: usize = 1;

    #[inline(always)]
    fn rows(&mut self, square: usize, sums: &mut [Sums; 4], rows: Range<usize>) {
        self.write(square, sums.as_chunks().0, rows);
    }
}

impl<S: Simd> WritePair<'_, '_, S> {
    /// As [`Beside::rows`]: `sums` are the sums of one or two halves of the rows.
    #[inline(always)]
    pub fn write(&mut self, square: usize, sums: &[[Sums; 2]], rows: Range<usize>) {
        let Self { s, bias, pair, .. } = *self;
        let first = self.row + square * GROUP;
        // (No closures: see `panels_amx::fill_block`.)
        macro_rules! sum {
            ($row:expr, $half:expr) => {{
                let sums: &[[f32; LANES]] = sums[$row / SIDE][$half].as_chunks().0;
                s.add(s.load(&sums[$row % SIDE]), bias[$half])
            }};
        }
        match &mut self.write.out {
            Out::Panels(out) => {
                let column = pair * LANES;
                let to = &mut out.row(first / GROUP)[column / TILE_K * 2 * TILE..];
                let to = to.first_chunk_mut::<{ 2 * TILE }>().expect("two tiles");
                let to = to.as_chunks_mut::<TILE_K>().0;
                let half = column % TILE_K / LANES;
                for row in rows.clone() {
                    let y = s.mul(silu(s, sum!(row, 0)), sum!(row, 1));
                    s.tile_half(y, &mut to[row].as_chunks_mut().0[half]);
                }
                // Columns after the last are multiplied with weights that are zero, so they must
                // hold numbers.
                let left = self.write.cols - column;
                let end = half * LANES + left.min(LANES);
                if left < LANES || half == 0 && left == LANES {
                    for to in &mut to[rows] {
                        to[end..].fill(0);
                    }
                }
            }
            Out::Rows { out, to } => {
                let Ending { finish, low } = self.write.ending;
                for row in rows {
                    let to = to[first + row];
                    let out = out.row(to as usize);
                    let low = match &low {
                        Some(low) => low.of_row(to),
                        None => None,
                    };
                    // A sum, with what the row's adapter adds.
                    macro_rules! complete {
                        ($half:expr) => {
                            match &low {
                                Some(low) => low.add(s, self.strips[$half], sum!(row, $half)),
                                None => sum!(row, $half),
                            }
                        };
                    }
                    if finish == Finish::SwiGlu {
                        finish.write(s, &mut out[pair * LANES..], complete!(0), complete!(1));
                        continue;
                    }
                    let out = &mut out[2 * pair * LANES..];
                    let (out, right) = out.split_at_mut(out.len().min(LANES));
                    finish.put(s, out, complete!(0));
                    if !right.is_empty() {
                        finish.put(s, right, complete!(1));
                    }
                }
            }
        }
    }
}
