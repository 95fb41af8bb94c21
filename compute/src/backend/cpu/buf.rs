//! Anonymous memory: aligned, and zeroed by the operating system when it is first touched. A lack
//! of memory is an error, not an abort.

#![allow(unsafe_code)]

use super::memory::available_bytes;
use crate::{Error, Result};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A number that may be all zero bits.
///
/// # Safety
/// Every bit pattern must be a value.
pub unsafe trait Number: Copy + Send + Sync + 'static {}
// SAFETY: a plain number, as are those below.
unsafe impl Number for f32 {}
// SAFETY: as above.
unsafe impl Number for u16 {}
// SAFETY: as above.
unsafe impl Number for i32 {}
// SAFETY: as above.
unsafe impl Number for i8 {}

/// Views the same memory as 16-bit numbers.
pub fn as_u16(x: &mut [f32]) -> &mut [u16] {
    // SAFETY: the same bytes, exclusively borrowed; u16 needs less alignment, and both types take
    // every bit pattern (`Number`).
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), 2 * x.len()) }
}

/// From this size on, huge pages are requested, so that packing a model causes fewer page faults.
const HUGE: usize = 2 << 20;

/// A fixed number of numbers, page-aligned, initially zero.
#[derive(Debug)]
pub struct Mem<T: Number> {
    at: NonNull<T>,
    len: usize,
}

// SAFETY: `Mem` owns its mapping, as a `Box<[T]>` would.
unsafe impl<T: Number> Send for Mem<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Number> Sync for Mem<T> {}

impl<T: Number> Mem<T> {
    /// No numbers.
    pub const fn none() -> Self {
        Self {
            at: NonNull::dangling(),
            len: 0,
        }
    }

    /// `len` zeros. `what` names them in [`Error::NoMemory`].
    pub fn zeroed(what: &str, len: usize) -> Result<Self> {
        if len == 0 {
            return Ok(Self::none());
        }
        let refused = |needed| Error::no_memory(what, needed, available_bytes());
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|&n| n <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| refused(u64::MAX))?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(refused(bytes as u64));
        }
        if bytes >= HUGE {
            // SAFETY: the mapping just made; the advice changes no contents, its failure nothing.
            unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
        }
        #[cfg(test)]
        tests::TAKEN.set(tests::TAKEN.get() + bytes as u64);
        // A mapping is never at address 0 (mmap_min_addr).
        let at = NonNull::new(at.cast()).ok_or_else(|| refused(bytes as u64))?;
        Ok(Self { at, len })
    }
}

impl<T: Number> Deref for Mem<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `at` is aligned, and valid for `len` numbers as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for Mem<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Number> Drop for Mem<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping made in `zeroed`, whose size this was; nothing borrows it now.
            unsafe { libc::munmap(self.at.as_ptr().cast(), self.len * size_of::<T>()) };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Bytes that this thread has got from [`Mem::zeroed`].
        pub static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn memory_is_zero_aligned_and_writable() {
        let mut m = Mem::<u16>::zeroed("test", 3 << 20).unwrap();
        assert_eq!(m.as_ptr() as usize % 64, 0);
        assert!(m.iter().all(|&x| x == 0));
        m[(3 << 20) - 1] = 7;
        assert_eq!(m.last(), Some(&7));
        assert!(Mem::<f32>::zeroed("test", 0).unwrap().is_empty());
    }

    #[test]
    fn too_much_is_an_error_that_says_for_what() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 46] {
            let error = Mem::<f32>::zeroed("the moon", len).unwrap_err();
            assert!(matches!(error, Error::NoMemory { .. }), "{error}");
            assert!(error.to_string().starts_with("the moon needs "), "{error}");
        }
    }
}
