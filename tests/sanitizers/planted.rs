//! Mistakes for the sanitizers to find. Compiled into the library only with `--cfg
//! llamabi_planted`, as `tests/sanitizers/run.sh` does: so it is certain that they look at the
//! library's own code.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::hint::black_box;

struct Shared(UnsafeCell<u64>);
// SAFETY: it is not safe, which is the point.
unsafe impl Sync for Shared {}
static SHARED: Shared = Shared(UnsafeCell::new(0));

/// Two threads in here at once are a data race.
#[unsafe(no_mangle)]
pub extern "C" fn llamabi_planted_race() {
    // SAFETY: as above.
    unsafe { *SHARED.0.get() += black_box(1) };
}

/// Reads one byte behind `n`.
#[unsafe(no_mangle)]
pub extern "C" fn llamabi_planted_overflow(n: usize) -> i32 {
    let bytes = black_box(vec![0u8; n]);
    // SAFETY: as above.
    i32::from(unsafe { *bytes.as_ptr().add(black_box(n)) })
}
