//! The live objects: what an opaque pointer means, or that it means nothing.
//!
//! A pointer that callers hold is a number, counted upwards in a part of the address space that
//! processes cannot map, so it is never that of another library's object, never given out twice,
//! and never followed. Objects are looked up under a lock that is held for the look-up alone and
//! are kept alive by the calls that use them.
//!
//! After `fork` the lock may be held for ever by a thread that the child does not have. So the
//! table carries the process it belongs to, which is compared first; a child that makes objects of
//! its own gets a table of its own.

use super::guard::{Failure, Outcome};
use super::handle::Handle;
use super::result::ResultData;
use super::stream::StreamData;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Where object numbers begin: bit 47, so beyond what user space can map (x86-64 maps more only on
/// request), and below 2^53, so that hosts that keep pointers in doubles keep these too.
pub(super) const FIRST_ID: usize = 1 << 47;
/// Numbers look like aligned addresses: some hosts use the low bits.
pub(super) const ID_STRIDE: usize = 16;

/// An object behind an opaque pointer.
pub(super) enum Object {
    Handle(Arc<Handle>),
    Stream(Arc<StreamData>),
    Result(Arc<ResultData>),
}

/// A type of object.
pub(super) trait Kind: Sized {
    /// As the header calls it.
    const NAME: &'static str;
    fn wrap(this: Arc<Self>) -> Object;
    fn of(object: &Object) -> Option<&Arc<Self>>;
}

macro_rules! kind {
    ($type:ident, $variant:ident, $name:literal) => {
        impl Kind for $type {
            const NAME: &'static str = $name;
            fn wrap(this: Arc<Self>) -> Object {
                Object::$variant(this)
            }
            fn of(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$variant(this) => Some(this),
                    _ => None,
                }
            }
        }
    };
}
kind!(Handle, Handle, "llama_t");
kind!(StreamData, Stream, "llama_stream_t");
kind!(ResultData, Result, "llama_result_t");

/// What one process has.
pub(super) struct Live {
    objects: BTreeMap<usize, Object>,
    /// Cells of freed cancel flags, to be used again (see `cancel.rs`).
    pub free_cells: Vec<usize>,
}

struct Table {
    pid: u32,
    live: Mutex<Live>,
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
static NEXT_ID: AtomicUsize = AtomicUsize::new(FIRST_ID);

/// Why there is no table to look into.
enum NoTable {
    Empty,
    Forked,
}

fn table() -> Result<&'static Table, NoTable> {
    // SAFETY: only `lock` stores here, and what it stores is never freed.
    #[allow(unsafe_code)]
    let table = unsafe { TABLE.load(Ordering::Acquire).as_ref() }.ok_or(NoTable::Empty)?;
    if table.pid == std::process::id() {
        Ok(table)
    } else {
        Err(NoTable::Forked)
    }
}

fn lock_table(table: &'static Table) -> MutexGuard<'static, Live> {
    // Nothing is left half done by a panic while it is held.
    table.live.lock().unwrap_or_else(|e| e.into_inner())
}

/// Lock this process's table, making it if there is none. A table from before a fork stays behind:
/// its lock may be held, and its objects' threads are gone.
pub(super) fn lock() -> MutexGuard<'static, Live> {
    loop {
        let old = TABLE.load(Ordering::Acquire);
        if let Ok(table) = table() {
            return lock_table(table);
        }
        let live = Mutex::new(Live {
            objects: BTreeMap::new(),
            free_cells: Vec::new(),
        });
        let new = Box::into_raw(Box::new(Table {
            pid: std::process::id(),
            live,
        }));
        if TABLE
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread was faster, so nobody has seen `new`.
            #[allow(unsafe_code)]
            drop(unsafe { Box::from_raw(new) });
        }
    }
}

/// The same where there is something to lock.
pub(super) fn lock_existing() -> Option<MutexGuard<'static, Live>> {
    table().ok().map(lock_table)
}

/// Make an object live; gives its number.
pub(super) fn insert<T: Kind>(object: Arc<T>) -> usize {
    let id = NEXT_ID.fetch_add(ID_STRIDE, Ordering::Relaxed);
    lock().objects.insert(id, T::wrap(object));
    id
}

/// The live object with this number. `name` is the argument's.
pub(super) fn get<T: Kind>(name: &str, id: usize) -> Outcome<Arc<T>> {
    if id == 0 {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    match table() {
        Ok(table) => {
            if let Some(object) = lock_table(table).objects.get(&id).and_then(T::of) {
                return Ok(object.clone());
            }
        }
        Err(NoTable::Forked) => {
            return Err(Failure::invalid(format!(
                "{name} is from before a fork: a {} is not usable in a child after fork",
                T::NAME
            )));
        }
        Err(NoTable::Empty) => {}
    }
    Err(Failure::invalid(format!(
        "{name} is not a live {} (freed, or never was one)",
        T::NAME
    )))
}

/// Take an object out, if there is one of this type with this number. The lock is released before
/// the object can be dropped.
pub(super) fn remove<T: Kind>(id: usize) -> Option<Arc<T>> {
    let mut live = lock_existing()?;
    let object = live.objects.get(&id).and_then(T::of)?.clone();
    let entry = live.objects.remove(&id);
    drop(live);
    drop(entry);
    Some(object)
}
