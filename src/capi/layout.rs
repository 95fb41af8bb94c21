//! `struct_size` says what is read of a caller's struct and what is written to it.
//!
//! A caller may have been compiled with an older header, so that its struct is shorter, or with a
//! newer header, so that its struct is longer. The fields that an older caller's struct has are
//! read over the defaults. Everything unknown in a newer caller's struct must be zero, because a
//! zero always means the old behaviour.
#![allow(unsafe_code)]

mod fields;

use super::failure::{Failure, Outcome};
use super::types::*;

/// A greater `struct_size` is taken for garbage, and nothing is read or written.
pub(super) const MAX_STRUCT_SIZE: usize = 4096;

/// The end of the field after `struct_size`. Every struct has had these two since its first
/// version.
const LEADING: usize = 8;

/// A struct that begins with `struct_size`.
///
/// # Safety
/// `#[repr(C)]`, the first field is `struct_size: u32`, every bit pattern is a value, and `ENDS`
/// are the ends of its fields in order.
pub(super) unsafe trait Layout: Copy {
    const NAME: &'static str;
    /// The offset at which each field ends. A field is not read if the caller's struct has only a
    /// part of it.
    const ENDS: &'static [usize];
    /// The `reserved*` fields, which must be 0 in a caller's struct.
    fn reserved(&mut self) -> Vec<(&'static str, &mut u32)>;
}

/// A struct of zeros and null pointers.
pub(super) fn zeros<T: Layout>() -> T {
    // SAFETY: by the contract of `Layout`, every bit pattern is a value.
    unsafe { std::mem::zeroed() }
}

/// Returns the `struct_size` of the caller's struct at `p`, if this library can work with it.
///
/// # Safety
/// `p` is NULL, or points to at least four readable bytes.
unsafe fn checked_size<T: Layout>(name: &str, p: *const T) -> Outcome<usize> {
    super::args::check_pointer(name, p)?;
    // SAFETY: the pointer is not NULL and aligned, as just checked. It is readable by this
    // function's contract.
    let size = unsafe { p.cast::<u32>().read() } as usize;
    if (LEADING..=MAX_STRUCT_SIZE).contains(&size) {
        return Ok(size);
    }
    Err(Failure::new(
        LLAMA_E_ABI,
        format!(
            "struct_size of {name} ({}) is {size}, must be {LEADING} to {MAX_STRUCT_SIZE} \
             (this library's is {})",
            T::NAME,
            size_of::<T>()
        ),
    ))
}

/// Reads a caller's struct over the defaults.
///
/// # Safety
/// `p` is NULL, or points to `struct_size` readable bytes.
pub(super) unsafe fn read<T: Layout>(name: &str, p: *const T, defaults: T) -> Outcome<T> {
    // SAFETY: by this function's contract.
    let size = unsafe { checked_size(name, p) }?;
    let known = size_of::<T>();
    if size > known {
        // SAFETY: the caller's struct has `size` bytes, by this function's contract.
        let tail = unsafe { std::slice::from_raw_parts(p.cast::<u8>().add(known), size - known) };
        if let Some(at) = tail.iter().position(|&b| b != 0) {
            return Err(Failure::new(
                LLAMA_E_ABI,
                format!(
                    "{name} ({}) has a field at byte {} that this library does not know and that \
                     is not 0",
                    T::NAME,
                    known + at
                ),
            ));
        }
    }
    let whole_fields = T::ENDS
        .iter()
        .copied()
        .filter(|&end| end <= size)
        .max()
        .unwrap_or(0);
    let mut value = defaults;
    // SAFETY: `whole_fields` is at most `size`, which the caller has, and at most size_of::<T>(),
    // which `value` has. T is plain data, so any bytes are a value.
    unsafe {
        let to = (&raw mut value).cast::<u8>();
        to.copy_from_nonoverlapping(p.cast(), whole_fields);
    }
    match value.reserved().into_iter().find(|(_, got)| **got != 0) {
        Some((field, got)) => Err(Failure::new(
            LLAMA_E_ABI,
            format!("{field} of {name} ({}) is {got}, must be 0", T::NAME),
        )),
        None => Ok(value),
    }
}

/// A caller's struct that will be written. It is checked before there is anything to write.
pub(super) struct Out<T: Layout> {
    p: *mut T,
    size: usize,
}

/// Checks a struct that is to be written.
///
/// # Safety
/// `p` is NULL, or points to `struct_size` bytes that stay writable until [`Out::write`].
pub(super) unsafe fn out<T: Layout>(name: &str, p: *mut T) -> Outcome<Out<T>> {
    // SAFETY: by this function's contract.
    let size = unsafe { checked_size(name, p.cast_const()) }?;
    Ok(Out { p, size })
}

impl<T: Layout> Out<T> {
    /// Writes at most the caller's `struct_size` bytes and keeps `struct_size` itself. The part of
    /// a newer caller's struct that this library does not know becomes 0.
    pub fn write(self, value: &T) {
        let known = self.size.min(size_of::<T>());
        let first = size_of::<u32>();
        // SAFETY: `out` has found the pointer usable, and by its contract there are `size` writable
        // bytes. `value` has at least `known` bytes.
        unsafe {
            let (from, to) = ((&raw const *value).cast::<u8>(), self.p.cast::<u8>());
            to.add(first)
                .copy_from_nonoverlapping(from.add(first), known - first);
            to.add(known).write_bytes(0, self.size - known);
        }
    }
}

/// Fills the caller's options with defaults. `defaults` holds `struct_size` already, and
/// `abi_version` if there is one.
///
/// # Safety
/// `p` is NULL, or points to `size` writable bytes.
pub(super) unsafe fn init<T: Layout>(p: *mut T, size: usize, defaults: &T) {
    if p.is_null() || !p.is_aligned() || size > MAX_STRUCT_SIZE {
        return;
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the pointer is not NULL, and by this function's contract `size` bytes are writable.
    // `defaults` has at least `known` bytes.
    unsafe {
        let to = p.cast::<u8>();
        to.copy_from_nonoverlapping((&raw const *defaults).cast(), known);
        to.add(known).write_bytes(0, size - known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::{handle, options};

    #[repr(C, align(8))]
    struct Bytes([u8; 8192]);

    fn defaults() -> llama_generate_options {
        options::default_options()
    }

    /// Returns the bytes of a struct in which every field differs from its default, followed by
    /// `fill`.
    fn changed(size: u32, fill: u8) -> Bytes {
        let mut bytes = Bytes([fill; 8192]);
        bytes.0[..size_of::<llama_generate_options>()].fill(1);
        // SAFETY: the bytes are aligned, there are enough, and any bytes are a value.
        let o = unsafe { &mut *bytes.0.as_mut_ptr().cast::<llama_generate_options>() };
        o.reserved().into_iter().for_each(|(_, field)| *field = 0);
        o.struct_size = size;
        bytes
    }

    fn read_options(bytes: &Bytes) -> Outcome<llama_generate_options> {
        // SAFETY: every struct_size that is accepted is less than these 8192 bytes.
        unsafe { read("o", bytes.0.as_ptr().cast(), defaults()) }
    }

    #[test]
    fn an_older_callers_fields_are_read_and_no_part_of_a_field() {
        for size in 8..=size_of::<llama_generate_options>() as u32 {
            let o = read_options(&changed(size, 0xff)).unwrap();
            let d = defaults();
            let given = |end: u32| size >= end;
            assert_eq!(o.flags, 0x01010101);
            assert_eq!(
                o.max_gen_len,
                if given(12) { 0x01010101 } else { d.max_gen_len },
                "{size}"
            );
            assert_eq!(
                o.top_k,
                if given(24) { 0x01010101 } else { d.top_k },
                "{size}"
            );
            assert_eq!(
                o.seed,
                if given(40) {
                    0x0101010101010101
                } else {
                    d.seed
                },
                "{size}"
            );
            assert_eq!(o.stop.is_null(), !given(48), "{size}");
            assert_eq!(o.on_event.is_none(), !given(72), "{size}");
            assert_eq!(
                o.top_logprobs,
                if given(84) { 0x01010101 } else { 0 },
                "{size}"
            );
            assert_eq!(
                o.cache_salt,
                if given(96) { 0x0101010101010101 } else { 0 },
                "{size}"
            );
            assert_eq!(
                o.num_return_sequences,
                if given(100) { 0x01010101 } else { 0 },
                "{size}"
            );
            assert_eq!(o.num_beams, if given(104) { 0x01010101 } else { 0 });
            assert_eq!(
                o.max_time_ms,
                if given(144) { 0x01010101 } else { 0 },
                "{size}"
            );
            assert_eq!(o.logit_bias.is_null(), !given(152), "{size}");
            assert_eq!(o.bad_word_lens.is_null(), !given(192), "{size}");
            assert_eq!(o.n_bad_words == 0, !given(200), "{size}");
            assert_eq!(o.adapter, if given(204) { 0x01010101 } else { 0 }, "{size}");
            assert_eq!(o.length_penalty == 1.0, !given(212), "{size}");
            assert_eq!(o.early_stopping == 0, !given(216), "{size}");
            assert_eq!(o.on_logits.is_none(), !given(224), "{size}");
            assert_eq!(o.on_stop.is_none(), !given(232), "{size}");
            assert_eq!(o.draft_len != 0, given(240), "{size}");
            assert_eq!(o.n_predicted != 0, given(256), "{size}");
            assert_eq!(o.force_words.is_null(), !given(264), "{size}");
            assert_eq!(o.n_force_groups == 0, !given(288), "{size}");
            assert_eq!(o.contrast_beta == 0.0, !given(292), "{size}");
            assert_eq!(o.contrast_alpha == 0.0, !given(296), "{size}");
        }
    }

    #[test]
    fn a_newer_callers_tail_must_be_zero() {
        let known = size_of::<llama_generate_options>() as u32;
        for size in [known + 1, known + 8, 4096] {
            let mut bytes = changed(size, 0);
            // The bytes beyond struct_size belong to nobody.
            bytes.0[size as usize..].fill(0xff);
            assert!(read_options(&bytes).is_ok(), "{size}");
            bytes.0[size as usize - 1] = 1;
            let failure = read_options(&bytes).err().expect("a tail that is not zero");
            assert_eq!(failure.status, LLAMA_E_ABI);
            assert!(
                failure.message.contains(&format!("byte {}", size - 1)),
                "{}",
                failure.message
            );
        }
    }

    #[test]
    fn absurd_sizes_and_reserved_fields_are_abi_errors() {
        for size in [0, 1, 4, 7, 4097, 1 << 31, u32::MAX] {
            let failure = read_options(&changed(size, 0)).err().expect("struct_size");
            assert_eq!(failure.status, LLAMA_E_ABI, "{size}");
            assert!(
                failure.message.contains(&format!("is {size}")),
                "{}",
                failure.message
            );
        }
        let mut bytes = changed(88, 0);
        bytes.0[87] = 1;
        let failure = read_options(&bytes).err().expect("reserved1");
        assert_eq!(failure.status, LLAMA_E_ABI);
        assert!(failure.message.contains("reserved1"), "{}", failure.message);
    }

    #[test]
    fn nothing_is_written_beyond_struct_size() {
        let value = llama_request_stats {
            struct_size: 48,
            prompt_tokens: 1,
            cached_tokens: 2,
            generated_tokens: 3,
            queue_ms: 4.0,
            first_token_ms: 5.0,
            total_ms: 6.0,
            drafted_tokens: 7,
            accepted_tokens: 8,
        };
        for size in 8..=64usize {
            let mut bytes = Bytes([0xaa; 8192]);
            bytes.0[..4].copy_from_slice(&(size as u32).to_ne_bytes());
            // SAFETY: there are 8192 writable bytes.
            unsafe { out::<llama_request_stats>("s", bytes.0.as_mut_ptr().cast()) }
                .unwrap()
                .write(&value);
            assert_eq!(
                bytes.0[..4],
                (size as u32).to_ne_bytes(),
                "struct_size is kept"
            );
            assert_eq!(bytes.0[4..8], 1u32.to_ne_bytes());
            assert!(bytes.0[size..].iter().all(|&b| b == 0xaa), "{size}");
            if size > 48 {
                assert!(bytes.0[48..size].iter().all(|&b| b == 0), "{size}");
            }
        }
    }

    #[test]
    fn init_fills_what_the_caller_has() {
        for size in [0, 4, 8, 50, 96, 100, 128, 4096] {
            let mut bytes = Bytes([0xaa; 8192]);
            // SAFETY: there are 8192 writable bytes.
            unsafe { handle::llama_build_options_init(bytes.0.as_mut_ptr().cast(), size, 0) };
            assert!(bytes.0[size..].iter().all(|&b| b == 0xaa), "{size}");
            if size >= 4 {
                assert_eq!(bytes.0[..4], (size as u32).to_ne_bytes());
            }
            if size > 96 {
                assert!(bytes.0[96..size].iter().all(|&b| b == 0), "{size}");
            }
        }
        let mut bytes = Bytes([0xaa; 8192]);
        // SAFETY: nothing may be written here.
        unsafe { handle::llama_build_options_init(bytes.0.as_mut_ptr().cast(), 4097, 0) };
        assert!(bytes.0.iter().all(|&b| b == 0xaa));
    }
}
