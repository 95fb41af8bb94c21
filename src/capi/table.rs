//! The table of live objects. It says what an opaque pointer means, or that it means nothing.
//!
//! A pointer that a caller holds is a number. It lies in a part of the address space that processes
//! cannot map, so it is never the address of another library's object. It is never given out twice
//! and never followed. An object is looked up under a lock that is held for the look-up alone, and
//! the calls that use the object keep it alive.
//!
//! After `fork` a thread that the child does not have may hold the lock for ever. So the table
//! carries the process it belongs to, which is compared first. A child that makes objects gets a
//! table of its own.
//!
//! If a process has two copies of the library, each copy has its own table. A number is a count,
//! encoded with the table's own random key, so a number of one copy means nothing to the other
//! copy. For the same reason a parent's number means nothing to its child.

use super::cells::Cells;
use super::failure::{Failure, Outcome};
use crate::process::Process;
use crate::reserve;
use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Every number has this bit, so it is beyond what user space can map: x86-64 maps more than 47
/// bits only on request, and Arm never maps more than 52.
const NUMBER_BIT: usize = 1 << 52;
/// Every value that gets a number is below this, so that numbers are below 2^53. Hosts that keep
/// pointers in doubles can then keep these, too.
const VALUES: usize = 1 << 48;
/// Numbers look like aligned addresses, because some hosts use the low bits of pointers.
const STRIDE: usize = 16;
/// Values from here on are cancel flags (see `cancel.rs`). Smaller values are objects.
pub(super) const FIRST_FLAG: usize = VALUES / 2;

/// Makes numbers of values, and values of numbers. Another table's key gives other numbers.
pub(super) struct Key(usize);

impl Key {
    fn new() -> Self {
        // RandomState asks the system once per thread and then counts, and a child continues that
        // count. So the process id is hashed.
        let random = RandomState::new().hash_one(std::process::id());
        Key(random as usize % VALUES)
    }

    pub fn number(&self, value: usize) -> usize {
        debug_assert!(value < VALUES);
        NUMBER_BIT + (value ^ self.0) * STRIDE
    }

    /// Returns `None` for a number that no table gives out.
    pub fn value(&self, number: usize) -> Option<usize> {
        let offset = number.checked_sub(NUMBER_BIT)?;
        (offset.is_multiple_of(STRIDE) && offset / STRIDE < VALUES)
            .then_some((offset / STRIDE) ^ self.0)
    }
}

/// An object behind an opaque pointer.
type Object = Arc<dyn Any + Send + Sync>;

/// A type of object.
pub(super) trait Kind: Any + Send + Sync {
    /// The name of the type in the header.
    const NAME: &'static str;
}

/// What changes under the lock.
pub(super) struct Live {
    objects: HashMap<usize, Object>,
    /// The cells of freed cancel flags, which are used again (see `cancel.rs`).
    pub free_cells: Vec<usize>,
}

/// The table of one process.
pub(super) struct Table {
    process: Process,
    pub key: Key,
    pub cells: Cells,
    next: AtomicUsize,
    live: Mutex<Live>,
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Why there is no table in which to look.
pub(super) enum NoTable {
    Empty,
    Forked,
}

/// The latest table: of this process, or of a process that it was forked from. Reading it is safe
/// in a signal handler.
pub(super) fn any() -> Option<&'static Table> {
    // SAFETY: only `get_or_make` stores a table here, and a table that was stored is never freed.
    #[allow(unsafe_code)]
    unsafe {
        TABLE.load(Ordering::Acquire).as_ref()
    }
}

/// This process's table.
pub(super) fn existing() -> Result<&'static Table, NoTable> {
    let table = any().ok_or(NoTable::Empty)?;
    if table.process.is_current() {
        Ok(table)
    } else {
        Err(NoTable::Forked)
    }
}

impl Table {
    pub fn lock(&self) -> MutexGuard<'_, Live> {
        // A panic while the lock is held leaves nothing half done, so the lock is good after it.
        self.live.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Returns this process's table and makes it if there is none. A table from before a fork is left
/// behind: its lock may be held, and the threads of its objects do not exist here.
pub(super) fn get_or_make() -> &'static Table {
    loop {
        let old = TABLE.load(Ordering::Acquire);
        if let Ok(table) = existing() {
            return table;
        }
        let live = Mutex::new(Live {
            objects: HashMap::new(),
            free_cells: Vec::new(),
        });
        let new = Box::into_raw(Box::new(Table {
            process: Process::current(),
            key: Key::new(),
            cells: Cells::new(),
            next: AtomicUsize::new(0),
            live,
        }));
        if TABLE
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread was faster, so no other thread has seen `new`.
            #[allow(unsafe_code)]
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// Makes an object live and returns its number. Fails if there is no memory for it.
pub(super) fn insert<T: Kind>(object: T) -> Outcome<usize> {
    let table = get_or_make();
    let number = table.key.number(table.next.fetch_add(1, Ordering::Relaxed));
    reserve::headroom(T::NAME, size_of::<T>() + 2 * size_of::<usize>())?;
    let object: Object = Arc::new(object);
    let objects = &mut table.lock().objects;
    if objects.try_reserve(1).is_err() {
        return Err(reserve::refused::<Object>(T::NAME, objects.len(), 1).into());
    }
    objects.insert(number, object);
    Ok(number)
}

/// Returns the live object with this number. `name` is the name of the argument.
pub(super) fn get<T: Kind>(name: &str, number: usize) -> Outcome<Arc<T>> {
    if number == 0 {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    match existing() {
        Ok(table) => {
            let object = table.lock().objects.get(&number).cloned();
            let object = object.and_then(|object| object.downcast().ok());
            object.ok_or_else(|| not_live(name, T::NAME))
        }
        Err(why) => Err(no_table(why, name, T::NAME)),
    }
}

/// Returns the failure for a number that means nothing in this table.
pub(super) fn not_live(name: &str, kind: &str) -> Failure {
    Failure::invalid(format!(
        "{name} is not a live {kind} (freed, from before a fork, or never one of this copy of the \
         library)"
    ))
}

/// Returns the failure for a number where this process has no table to look into.
pub(super) fn no_table(why: NoTable, name: &str, kind: &str) -> Failure {
    match why {
        NoTable::Empty => not_live(name, kind),
        NoTable::Forked => Failure::invalid(format!(
            "{name} is from before a fork: a {kind} is not usable in a child after fork"
        )),
    }
}

/// Takes an object out, if there is an object of this type with this number. The lock is released
/// before the object can be dropped.
pub(super) fn remove<T: Kind>(number: usize) -> Option<Arc<T>> {
    let mut live = existing().ok()?.lock();
    if !live.objects.get(&number)?.is::<T>() {
        return None;
    }
    let object = live.objects.remove(&number)?;
    drop(live);
    object.downcast().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_one_key_alone() {
        let (ours, others) = (Key::new(), Key::new());
        assert_ne!(ours.0, others.0);
        for value in [0, 1, 2, 1000, FIRST_FLAG, FIRST_FLAG + 1, VALUES - 1] {
            let number = ours.number(value);
            assert_eq!(ours.value(number), Some(value));
            assert_ne!(others.value(number), Some(value));
            assert!(number.is_multiple_of(STRIDE) && (1 << 52..1 << 53).contains(&number));
            assert_eq!(ours.value(number + 8), None);
        }
        for foreign in [0, 8, 0x7fff_0000_1230, NUMBER_BIT - 16, 1 << 53, usize::MAX] {
            assert_eq!(ours.value(foreign), None);
        }
    }
}
