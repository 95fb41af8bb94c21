//! `llama_cancel_*`: flags that signal handlers can set.
//!
//! A signal handler may interrupt the very thread that holds the table's lock, so flags are found
//! without a lock. They are cells in blocks that are never freed. A flag's number names the cell in
//! its process's table, and the generation: how many flags have had this cell before. The cell of a
//! freed flag is used again with the next generation, which a stale pointer does not match. So the
//! table keeps as many cells as there were ever flags at the same time.
#![allow(unsafe_code)]

use super::cells::{CELLS, Cell, Cells, INDEX_BITS};
use super::failure::Outcome;
use super::table::{self, FIRST_FLAG, Key};
use super::types::*;
use crate::Cancel;
use crate::cancel::trigger;
use std::ptr;
use std::sync::atomic::Ordering;

/// The value behind a flag's number is `FIRST_FLAG + (generation << INDEX_BITS | index)`.
const GENERATION_BITS: u32 = 22;

/// A cell's value is four times the generation, plus one of these.
const FREE: u64 = 0;
const ARMED: u64 = 1;
const TRIGGERED: u64 = 2;

/// A flag's number, decoded.
#[derive(Clone, Copy)]
struct FlagId {
    index: usize,
    generation: u64,
}

impl FlagId {
    fn of(key: &Key, c: *const llama_cancel_t) -> Option<Self> {
        let value = key.value(c.addr())?.checked_sub(FIRST_FLAG)?;
        let generation = (value >> INDEX_BITS) as u64;
        (generation < 1 << GENERATION_BITS).then_some(Self {
            index: value & (CELLS - 1),
            generation,
        })
    }

    fn pointer(self, key: &Key) -> *mut llama_cancel_t {
        let value = (self.generation as usize) << INDEX_BITS | self.index;
        ptr::without_provenance_mut(key.number(FIRST_FLAG + value))
    }

    fn armed(self) -> u64 {
        self.generation * 4 + ARMED
    }

    /// Returns the flag's cell if the flag is live.
    fn cell(self, cells: &'static Cells) -> Option<&'static Cell> {
        let cell = cells.cell(self.index)?;
        let value = cell.load(Ordering::Relaxed);
        (value == self.armed() || value == self.generation * 4 + TRIGGERED).then_some(cell)
    }
}

/// Returns the flag that options name. NULL means that there is no flag.
pub(super) fn flag(c: *const llama_cancel_t) -> Outcome<Option<Cancel>> {
    if c.is_null() {
        return Ok(None);
    }
    let (name, kind) = ("cancel", "llama_cancel_t");
    let table = table::existing().map_err(|why| table::no_table(why, name, kind))?;
    let live = FlagId::of(&table.key, c)
        .and_then(|id| Some(Cancel::in_cell(id.cell(&table.cells)?.clone(), id.armed())));
    live.map(Some).ok_or_else(|| table::not_live(name, kind))
}

// Section: Cancel flags

/// Make a flag that can stop calls of any handle. It is not triggered. Returns NULL if there are a
/// million flags already.
///
/// Free it with `llama_cancel_free`, after the calls and streams to which it was given.
#[unsafe(no_mangle)]
pub extern "C" fn llama_cancel_new() -> *mut llama_cancel_t {
    guard!(else ptr::null_mut(), {
        let table = table::get_or_make();
        let (key, cells) = (&table.key, &table.cells);
        let reused = table.lock().free_cells.pop();
        let Some(index) = reused.or_else(|| cells.new_cell()) else { return ptr::null_mut() };
        let Some(cell) = cells.cell(index) else { return ptr::null_mut() };
        // A free cell holds the generation of its next flag, and no other thread has this cell.
        let id = FlagId { index, generation: cell.load(Ordering::Relaxed) / 4 };
        cell.store(id.armed(), Ordering::Relaxed);
        id.pointer(key)
    })
}

/// Stop everything that was given this flag: a load stops within one tensor, a generation within
/// one step (`LLAMA_CANCELLED`, with what there is by then). The flag stays triggered.
///
/// This is one atomic operation. It may be called from any thread, from a signal handler and from
/// inside a callback, again and again. NULL, a freed flag and a foreign pointer are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_cancel_trigger(c: *mut llama_cancel_t) {
    guard!(else (), {
        // This may set a flag from before a fork. That does no harm, since nothing reads the flag.
        if let Some(table) = table::any()
            && let Some(id) = FlagId::of(&table.key, c)
            && let Some(cell) = table.cells.cell(id.index)
        {
            trigger(cell, id.armed());
        }
    })
}

/// Free a flag. NULL, a stale pointer and a pointer of another library are ignored. The flag can no
/// longer stop a call that still has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_cancel_free(c: *mut llama_cancel_t) {
    guard!(else (), {
        let Ok(table) = table::existing() else { return };
        let Some(id) = FlagId::of(&table.key, c) else { return };
        let mut live = table.lock();
        let Some(cell) = id.cell(&table.cells) else { return };
        let next = id.generation + 1;
        cell.store(next * 4 + FREE, Ordering::Relaxed);
        // A cell whose generations are used up is not used again.
        if next < 1 << GENERATION_BITS {
            live.free_cells.push(id.index);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_carries_index_and_generation() {
        let key = &table::get_or_make().key;
        let last = FlagId {
            index: CELLS - 1,
            generation: (1 << GENERATION_BITS) - 1,
        };
        let again = FlagId::of(key, last.pointer(key)).unwrap();
        assert_eq!(
            (again.index, again.generation),
            (last.index, last.generation)
        );
    }

    #[test]
    fn stale_flags_do_nothing() {
        // SAFETY: the functions accept any pointer.
        unsafe {
            let a = llama_cancel_new();
            assert!(!flag(a).unwrap().unwrap().is_triggered());
            let held = flag(a).unwrap().unwrap();
            llama_cancel_free(a);
            assert!(flag(a).is_err());
            // The new flag may have the same cell or another one.
            let b: Vec<_> = (0..100).map(|_| llama_cancel_new()).collect();
            assert!(b.iter().all(|&b| b != a));
            llama_cancel_trigger(a);
            llama_cancel_free(a);
            assert!(!held.is_triggered());
            for &b in &b {
                assert!(!flag(b).unwrap().unwrap().is_triggered());
                llama_cancel_trigger(b);
                assert!(flag(b).unwrap().unwrap().is_triggered());
            }
            b.iter().for_each(|&b| llama_cancel_free(b));
            let odd = llama_cancel_new().addr() + 8;
            for foreign in [0usize, 1, 8, 0x7fff_0000_1234, odd, usize::MAX] {
                let foreign = ptr::without_provenance_mut(foreign);
                llama_cancel_trigger(foreign);
                llama_cancel_free(foreign);
                assert!(foreign.is_null() || flag(foreign).is_err());
            }
        }
    }

    #[test]
    fn threads_get_different_flags() {
        let all: Vec<usize> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    s.spawn(|| {
                        (0..200)
                            .map(|_| llama_cancel_new().addr())
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|t| t.join().unwrap())
                .collect()
        });
        let unique: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(unique.len(), 1600);
        // SAFETY: each flag is freed once.
        all.iter()
            .for_each(|&c| unsafe { llama_cancel_free(ptr::without_provenance_mut(c)) });
    }
}
