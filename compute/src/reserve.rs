//! Room whose size a caller or a file chose. Rust's collections end the process where the allocator
//! refuses them; these give [`Error::Refused`].

use crate::{Error, Result};
use std::collections::VecDeque;

/// Room for `n` more elements; `what` names them in the message.
pub fn vec<T>(what: &str, v: &mut Vec<T>, n: usize) -> Result<()> {
    v.try_reserve(n).map_err(|_| refused::<T>(what, v.len(), n))
}

/// Append an element.
pub fn push<T>(what: &str, v: &mut Vec<T>, value: T) -> Result<()> {
    vec(what, v, 1)?;
    v.push(value);
    Ok(())
}

/// Room for `n` more elements of a queue.
pub fn queue<T>(what: &str, q: &mut VecDeque<T>, n: usize) -> Result<()> {
    q.try_reserve(n).map_err(|_| refused::<T>(what, q.len(), n))
}

/// A vector with room for `n` elements.
pub fn room<T>(what: &str, n: usize) -> Result<Vec<T>> {
    let mut v = Vec::new();
    vec(what, &mut v, n)?;
    Ok(v)
}

/// `n` elements, all of them `value`.
pub fn filled<T: Clone>(what: &str, n: usize, value: T) -> Result<Vec<T>> {
    let mut v = room(what, n)?;
    v.resize(n, value);
    Ok(v)
}

/// Room for `n` more bytes of text.
pub fn string(what: &str, s: &mut String, n: usize) -> Result<()> {
    s.try_reserve(n)
        .map_err(|_| refused::<u8>(what, s.len(), n))
}

/// A copy of `from`.
pub fn copy<T: Copy>(what: &str, from: &[T]) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(from.len())
        .map_err(|_| refused::<T>(what, 0, from.len()))?;
    v.extend_from_slice(from);
    Ok(v)
}

/// Whether `bytes` could be had at this moment, for code that cannot be told that they could not
/// (`Arc::new`; stable Rust has no other). What another thread takes in between is not seen.
pub fn headroom(what: &str, bytes: usize) -> Result<()> {
    Vec::<u8>::new()
        .try_reserve_exact(bytes)
        .map_err(|_| refused::<u8>(what, 0, bytes))
}

/// The error for room that could not be had.
pub fn refused<T>(what: &str, len: usize, more: usize) -> Error {
    let elements = (len as u64).saturating_add(more as u64);
    Error::refused(what, elements.saturating_mul(size_of::<T>() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused_in_words() {
        let mut v = vec![0u32; 2];
        let errors = [
            vec("a list", &mut v, usize::MAX / 8).unwrap_err(),
            string("a text", &mut String::from("ab"), usize::MAX / 2).unwrap_err(),
            headroom("the work", usize::MAX / 2).unwrap_err(),
        ];
        let half = u64::MAX / 2;
        let expected = [
            ("a list", half + 5),
            ("a text", half + 2),
            ("the work", half),
        ];
        for (error, (what, needed)) in errors.iter().zip(expected) {
            assert_eq!(
                error.to_string(),
                format!("{what} needs {needed} bytes, the system refuses them")
            );
        }
        assert_eq!(copy("it", &v).unwrap(), v);
        assert!(headroom("a little", 1 << 20).is_ok());
    }
}
