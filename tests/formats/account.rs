//! The memory and the time that a piece of code takes. The binary's allocator is the system's, with
//! an account for each thread. (U)
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

struct Accounting;

#[global_allocator]
static ALLOCATOR: Accounting = Accounting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    /// Blocks of this many bytes and more are not counted as held.
    static IGNORED: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// What [`measure`] saw.
pub struct Used {
    /// Bytes of the largest block that was asked for.
    pub largest: usize,
    /// The most bytes held at a time.
    pub most: usize,
    /// This thread's on a processor.
    pub time: Duration,
}

/// Runs something on this thread. Blocks of `ignored` bytes and more do not count in `most`.
pub fn measure<T>(ignored: usize, run: impl FnOnce() -> T) -> (T, Used) {
    IGNORED.set(ignored);
    let (before, start) = (HELD.get(), on_processor());
    MOST.set(before);
    LARGEST.set(0);
    let result = run();
    let used = Used {
        largest: LARGEST.get(),
        most: (MOST.get() - before) as usize,
        time: on_processor() - start,
    };
    IGNORED.set(usize::MAX);
    (result, used)
}

/// The processor's time that this thread has had.
fn on_processor() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes to `t`.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    assert_eq!(status, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn taken(bytes: usize) {
    // Threads allocate a little while they end; that needs no account.
    let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
    held(bytes, 1);
}

fn held(bytes: usize, sign: isize) {
    let _ = IGNORED.try_with(|ignored| {
        if bytes < ignored.get() {
            let now = HELD.get() + sign * bytes as isize;
            HELD.set(now);
            MOST.set(MOST.get().max(now));
        }
    });
}

// SAFETY: everything is handed on to `System` unchanged; the accounts neither allocate (their cells
// are initialised at compile time and need no destructor) nor panic.
unsafe impl GlobalAlloc for Accounting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        held(layout.size(), -1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The block moves where it must: both may be held for a moment, but the account says one.
        held(layout.size(), -1);
        taken(new_size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[test]
fn the_account_sees_what_is_taken() {
    let ((), used) = measure(usize::MAX, || {
        drop(std::hint::black_box(vec![0u8; 3 << 20]));
        drop(std::hint::black_box(Vec::<u8>::with_capacity(2 << 20)));
    });
    assert_eq!(used.largest, 3 << 20);
    assert!(
        (3 << 20..4 << 20).contains(&used.most),
        "one after the other: {}",
        used.most
    );
    let ((), used) = measure(2 << 20, || {
        drop(std::hint::black_box(vec![0u8; 3 << 20]));
        drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
    });
    assert!((1 << 20..2 << 20).contains(&used.most), "{}", used.most);
}
