//! Makes slices and texts of pointers and lengths. A length is checked before memory is touched.
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::types::LLAMA_E_UTF8;
use std::ffi::{CStr, c_char};
use std::fmt::Display;

/// The longest text or array that a caller may give, in bytes or elements. No model has a context
/// for so much, and SentencePiece can still count it.
pub(super) const MAX_LEN: usize = i32::MAX as usize;

/// Checks that a pointer is not NULL and is aligned for `T`.
pub(super) fn check_pointer<T>(name: impl Display, p: *const T) -> Outcome<()> {
    if p.is_null() {
        return Err(Failure::invalid(format!("{name} is NULL")));
    }
    if !p.is_aligned() {
        return Err(Failure::invalid(format!(
            "{name} is at {:#x}, which is not a multiple of {}",
            p.addr(),
            align_of::<T>()
        )));
    }
    Ok(())
}

/// Makes a slice of a caller's array. The pointer may be NULL if `n` is 0.
///
/// # Safety
/// `p` is NULL or points to `n` elements that stay unchanged for `'a`.
pub(super) unsafe fn slice<'a, T>(name: impl Display, p: *const T, n: usize) -> Outcome<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    check_pointer(&name, p)?;
    let bytes = n.checked_mul(size_of::<T>()).filter(|_| n <= MAX_LEN);
    match bytes.and_then(|bytes| p.addr().checked_add(bytes)) {
        // SAFETY: the pointer is not NULL and aligned, and the size neither exceeds isize::MAX nor
        // wraps, as just checked. By this function's contract the elements are there.
        Some(_) => Ok(unsafe { std::slice::from_raw_parts(p, n) }),
        None => Err(too_long(name, n)),
    }
}

fn too_long(name: impl Display, n: usize) -> Failure {
    Failure::invalid(format!("{name} has {n} elements, at most {MAX_LEN} can be"))
}

/// Makes a text for the host.
pub(super) fn with_nul(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    bytes
}

/// Makes a slice of a caller's text, which has `len` bytes, or ends at its NUL if `len` is
/// SIZE_MAX.
///
/// # Safety
/// `p` is NULL or points to that many bytes, which stay unchanged for `'a`.
pub(super) unsafe fn text<'a>(
    name: impl Display,
    p: *const c_char,
    len: usize,
) -> Outcome<&'a str> {
    let bytes = if len == usize::MAX {
        check_pointer(&name, p)?;
        // SAFETY: the pointer is not NULL. By this function's contract the text is NUL-terminated.
        let bytes = unsafe { CStr::from_ptr(p) }.to_bytes();
        match bytes.len() {
            0..=MAX_LEN => bytes,
            n => return Err(too_long(name, n)),
        }
    } else {
        // SAFETY: by this function's contract.
        unsafe { slice(&name, p.cast::<u8>(), len) }?
    };
    std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        Failure::new(
            LLAMA_E_UTF8,
            format!("{name} is not valid UTF-8 at byte {at}"),
        )
    })
}

/// A place where one value will be written.
pub(super) struct Out<T>(*mut T);

/// Checks a pointer through which a value is to be written.
///
/// # Safety
/// `p` is NULL or stays writable until [`Out::set`].
pub(super) unsafe fn out<T>(name: &str, p: *mut T) -> Outcome<Out<T>> {
    check_pointer(name, p.cast_const())?;
    Ok(Out(p))
}

impl<T> Out<T> {
    pub fn set(self, value: T) {
        // SAFETY: `out` has found the pointer not NULL and aligned, and by its contract it is
        // writable.
        unsafe { self.0.write(value) }
    }
}

/// A caller's buffer for `cap` elements, and the place for their number.
pub(super) struct Buffer<T> {
    name: &'static str,
    p: *mut T,
    cap: usize,
    n: Out<usize>,
}

/// Checks a buffer. A caller that passes NULL with a `cap` of 0 asks for the size.
///
/// # Safety
/// `p` is NULL or has `cap` writable elements; `n` is NULL or writable; both until
/// [`Buffer::fill`].
pub(super) unsafe fn buffer<T>(
    name: &'static str,
    p: *mut T,
    cap: usize,
    n_name: &str,
    n: *mut usize,
) -> Outcome<Buffer<T>> {
    // SAFETY: by this function's contract.
    let n = unsafe { out(n_name, n) }?;
    if cap > 0 || !p.is_null() {
        check_pointer(name, p.cast_const())?;
    }
    Ok(Buffer { name, p, cap, n })
}

impl<T: Copy> Buffer<T> {
    /// Copies `values` and their number, or only their number if they do not fit. `end` is written
    /// behind them if there is still room.
    pub fn fill(self, values: &[T], end: Option<T>) -> Outcome<()> {
        self.n.set(values.len());
        if self.p.is_null() {
            return Ok(());
        }
        if values.len() > self.cap {
            return Err(Failure::invalid(format!(
                "{} has room for {}, {} are needed",
                self.name,
                self.cap,
                values.len()
            )));
        }
        // SAFETY: `buffer` has found the pointer usable, and by its contract there are `cap`
        // elements. `values` together with `end` are no more than that.
        unsafe {
            self.p
                .copy_from_nonoverlapping(values.as_ptr(), values.len());
            if let Some(end) = end.filter(|_| values.len() < self.cap) {
                self.p.add(values.len()).write(end);
            }
        }
        Ok(())
    }
}
