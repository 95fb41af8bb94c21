//! Disjoint parts of one array, for tasks that run at the same time.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// Something that falls into parts which can be written at the same time.
///
/// # Safety
/// Parts with different numbers must not overlap.
pub unsafe trait Split: Sync {
    /// What a task gets.
    type Part;
    /// How many parts there are.
    fn count(&self) -> usize;
    /// Part `i`.
    ///
    /// # Safety
    /// `i < count()`, and no part is taken twice.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

/// A row-major array cut into rectangles: bands of rows, and in each band blocks of `block` columns
/// (the last may be narrower). Part `i` is block `i % blocks` of band `i / blocks`.
pub struct Grid<'a, T> {
    at: *mut T,
    stride: usize,
    /// Columns from `at` on that are cut.
    width: usize,
    block: usize,
    blocks: usize,
    /// Where the bands begin, and where the last one ends.
    cuts: Cuts<'a>,
    _borrow: PhantomData<&'a mut [T]>,
}

enum Cuts<'a> {
    One(usize),
    Many(&'a [usize]),
}

// SAFETY: a grid only hands out disjoint parts of memory that it borrows exclusively.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T: Send> Grid<'a, T> {
    /// All rows of `data`, which are `stride` long, in blocks of `block` columns.
    pub fn columns(data: &'a mut [T], stride: usize, block: usize) -> Self {
        let rows = data.len().checked_div(stride).unwrap_or(0);
        Self::cut(data, stride, block, Cuts::One(rows))
    }

    /// Like [`Grid::columns`], for these columns only.
    pub fn some_columns(
        data: &'a mut [T],
        stride: usize,
        columns: Range<usize>,
        block: usize,
    ) -> Self {
        assert!(
            columns.start <= columns.end && columns.end <= stride,
            "columns outside the rows"
        );
        let mut grid = Self::columns(data, stride, block);
        if grid.count() > 0 {
            // SAFETY: there is a row, and the column is in it or right behind it.
            grid.at = unsafe { grid.at.add(columns.start) };
        }
        grid.width = columns.len();
        grid.blocks = grid.width.div_ceil(block);
        grid
    }

    /// With so many blocks, of which those beyond the last column are empty.
    pub fn with_blocks(mut self, blocks: usize) -> Self {
        assert!(blocks >= self.blocks, "blocks are left out");
        self.blocks = blocks;
        self
    }

    /// Consecutive pieces of `data`, each `len` long, the last perhaps shorter.
    pub fn pieces(data: &'a mut [T], len: usize) -> Self {
        let stride = data.len();
        Self::columns(data, stride, len)
    }

    /// Band `b` is the rows `cuts[b] .. cuts[b + 1]`.
    pub fn bands(data: &'a mut [T], stride: usize, block: usize, cuts: &'a [usize]) -> Self {
        assert!(cuts.is_sorted(), "bands overlap");
        Self::cut(data, stride, block, Cuts::Many(cuts))
    }

    fn cut(data: &'a mut [T], stride: usize, block: usize, cuts: Cuts<'a>) -> Self {
        assert!(block > 0, "an empty block");
        let rows = match cuts {
            Cuts::One(rows) => rows,
            Cuts::Many(cuts) => cuts.last().copied().unwrap_or(0),
        };
        assert!(
            rows.checked_mul(stride).is_some_and(|n| n <= data.len()),
            "rows outside the array"
        );
        let blocks = stride.div_ceil(block);
        Self {
            at: data.as_mut_ptr(),
            stride,
            width: stride,
            block,
            blocks,
            cuts,
            _borrow: PhantomData,
        }
    }
}

// SAFETY: bands are disjoint in rows (sorted cuts), blocks of a band in columns.
unsafe impl<'a, T: Send> Split for Grid<'a, T> {
    type Part = Rect<'a, T>;

    fn count(&self) -> usize {
        match self.cuts {
            Cuts::One(rows) => self.blocks * usize::from(rows > 0),
            Cuts::Many(cuts) => self.blocks * cuts.len().saturating_sub(1),
        }
    }

    unsafe fn part(&self, i: usize) -> Rect<'a, T> {
        let (band, block) = (i / self.blocks, i % self.blocks);
        let rows = match self.cuts {
            Cuts::One(rows) => 0..rows,
            Cuts::Many(cuts) => cuts[band]..cuts[band + 1],
        };
        let column = (block * self.block).min(self.width);
        Rect {
            // Within the array, by the assertions of `cut`; anywhere if there are no rows or no
            // columns.
            at: self.at.wrapping_add(rows.start * self.stride + column),
            rows: rows.len(),
            stride: self.stride,
            cols: self.block.min(self.width - column),
            _borrow: PhantomData,
        }
    }
}

/// A number of tasks that need no part of an array.
pub struct Tasks(pub usize);

// SAFETY: there is nothing that could overlap.
unsafe impl Split for Tasks {
    type Part = ();

    fn count(&self) -> usize {
        self.0
    }

    unsafe fn part(&self, _: usize) {}
}

// SAFETY: the parts of each are disjoint.
unsafe impl<A: Split, B: Split> Split for (A, B) {
    type Part = (A::Part, B::Part);

    fn count(&self) -> usize {
        assert_eq!(self.0.count(), self.1.count(), "parts to be paired");
        self.0.count()
    }

    unsafe fn part(&self, i: usize) -> Self::Part {
        // SAFETY: the caller's contract.
        unsafe { (self.0.part(i), self.1.part(i)) }
    }
}

/// A rectangle of a row-major array.
pub struct Rect<'a, T> {
    at: *mut T,
    rows: usize,
    stride: usize,
    cols: usize,
    _borrow: PhantomData<&'a mut [T]>,
}

impl<T> Rect<'_, T> {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Some rows of the rectangle.
    pub fn part(&mut self, rows: Range<usize>) -> Rect<'_, T> {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "rows {rows:?} of a rectangle of {}",
            self.rows
        );
        Rect {
            // In bounds (above, and `Grid::part`), or anywhere if there are no rows; while the part
            // lives, `self` is borrowed.
            at: self.at.wrapping_add(rows.start * self.stride),
            rows: rows.len(),
            ..*self
        }
    }

    /// Some columns of the rectangle.
    pub fn columns(&mut self, columns: Range<usize>) -> Rect<'_, T> {
        assert!(
            columns.start <= columns.end && columns.end <= self.cols,
            "columns {columns:?} of a rectangle of {}",
            self.cols
        );
        Rect {
            // In bounds (above, and `Grid::part`), or anywhere if there are no rows or columns;
            // while the part lives, `self` is borrowed.
            at: self.at.wrapping_add(columns.start),
            cols: columns.len(),
            ..*self
        }
    }

    /// Row `row` of the rectangle.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row outside the rectangle");
        // SAFETY: in bounds (above, and `Grid::part`); `&mut self` gives out one row at a time, and
        // no other rectangle has it.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(row * self.stride), self.cols) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the number of each part, plus one, to all of it, in whatever order.
    fn written(grid: Grid<'_, usize>) -> Vec<(usize, usize)> {
        let parts = (0..grid.count()).map(|i| {
            // SAFETY: each once.
            let mut part = unsafe { grid.part(i) };
            for r in 0..part.rows() {
                part.row(r).fill(i + 1);
            }
            (part.rows(), part.cols())
        });
        parts.collect()
    }

    #[test]
    fn blocks_beyond_the_last_column_are_empty() {
        let mut data = vec![0; 2 * 7];
        let grid = Grid::some_columns(&mut data, 7, 1..6, 2).with_blocks(5);
        assert_eq!(written(grid), [(2, 2), (2, 2), (2, 1), (2, 0), (2, 0)]);
        assert_eq!(data, [[0, 1, 1, 2, 2, 3, 0]; 2].as_flattened());

        let grid = Grid::some_columns(&mut data, 7, 7..7, 2).with_blocks(2);
        assert_eq!(written(grid), [(2, 0), (2, 0)]);
        let grid = Grid::some_columns(&mut [], 7, 1..6, 2).with_blocks(5);
        assert_eq!(written(grid), []);
    }

    #[test]
    #[should_panic(expected = "blocks are left out")]
    fn blocks_with_columns_are_not_left_out() {
        let mut data = [0; 7];
        let _ = Grid::columns(&mut data, 7, 2).with_blocks(3);
    }

    #[test]
    #[should_panic(expected = "columns outside the rows")]
    fn columns_are_within_the_rows() {
        let _ = Grid::some_columns(&mut [0; 7], 7, 6..8, 2);
    }

    #[test]
    fn a_rectangle_of_a_rectangle_is_where_its_rows_and_columns_are() {
        let mut data = vec![0; 4 * 5];
        let grid = Grid::columns(&mut data, 5, 5);
        // SAFETY: the only part.
        let mut all = unsafe { grid.part(0) };
        let mut inner = all.part(1..3);
        let mut inner = inner.columns(1..4);
        assert_eq!((inner.rows(), inner.cols()), (2, 3));
        inner.row(0).copy_from_slice(&[1, 2, 3]);
        inner.columns(2..3).row(1)[0] = 4;
        let mut none = inner.columns(3..3);
        assert!(none.row(1).is_empty());
        assert_eq!(all.part(4..4).rows(), 0);
        let mut want = [[0; 5]; 4];
        (want[1], want[2][3]) = ([0, 1, 2, 3, 0], 4);
        assert_eq!(data, want.as_flattened());
    }

    #[test]
    #[should_panic(expected = "columns 2..6 of a rectangle of 5")]
    fn columns_of_a_rectangle_are_within_it() {
        let mut data = [0; 5];
        let grid = Grid::columns(&mut data, 5, 5);
        // SAFETY: the only part.
        unsafe { grid.part(0) }.columns(2..6);
    }
}
