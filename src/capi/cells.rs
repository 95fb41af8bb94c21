//! The cells behind cancel flags. They are found without a lock and never freed.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The number of bits of a cell's index.
pub(super) const INDEX_BITS: u32 = 20;
/// The greatest number of cells.
pub(super) const CELLS: usize = 1 << INDEX_BITS;

/// Block `b` holds `64 << b` cells; 14 of them hold more than `CELLS`.
const BLOCKS: usize = 15;
const FIRST_BLOCK: usize = 64;

/// One cell. `cancel.rs` decides what its value means.
pub(super) type Cell = Arc<AtomicU64>;

/// The cells of one table. Like the cells, the table is never freed.
pub(super) struct Cells {
    blocks: [AtomicPtr<Cell>; BLOCKS],
    used: AtomicUsize,
}

/// Returns the block that has cell `index`, and the cell's place in the block.
fn position(index: usize) -> (usize, usize) {
    let block = ((index + FIRST_BLOCK) / FIRST_BLOCK).ilog2() as usize;
    (block, index + FIRST_BLOCK - (FIRST_BLOCK << block))
}

impl Cells {
    pub const fn new() -> Self {
        Cells {
            blocks: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS],
            used: AtomicUsize::new(0),
        }
    }

    /// Returns cell `index` if its block exists. This is safe in a signal handler.
    pub fn cell(&'static self, index: usize) -> Option<&'static Cell> {
        let (block, place) = position(index);
        let cells = self.blocks.get(block)?.load(Ordering::Acquire);
        // SAFETY: a block that is not NULL holds `64 << block` cells and is never freed, and
        // `place` is below that number.
        (!cells.is_null()).then(|| unsafe { &*cells.add(place) })
    }

    /// Returns a cell that no flag has had yet.
    pub fn new_cell(&self) -> Option<usize> {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        if index >= CELLS {
            self.used.store(CELLS, Ordering::Relaxed);
            return None;
        }
        let (block, _) = position(index);
        let slot = &self.blocks[block];
        if slot.load(Ordering::Acquire).is_null() {
            let cells: Box<[Cell]> = (0..FIRST_BLOCK << block).map(|_| Cell::default()).collect();
            let new = Box::into_raw(cells);
            let old = slot.compare_exchange(
                ptr::null_mut(),
                new.cast(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if old.is_err() {
                // SAFETY: another thread was faster, so no other thread has seen `new`.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_consecutive_and_fit() {
        let mut expected = (0, 0);
        for index in 0..CELLS {
            assert_eq!(position(index), expected, "cell {index}");
            expected.1 += 1;
            if expected.1 == FIRST_BLOCK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(position(CELLS - 1).0 < BLOCKS);
    }
}
