//! Panics, failures and `llama_error`s of any size.
#![allow(unsafe_code)]

use super::*;
use crate::capi::callback::InCallback;
use crate::capi::failure::Failure;
use crate::capi::*;
use std::ptr;

/// The first `size` bytes are "ours", the rest must stay 0xAA.
fn error_of_size(size: u32) -> Box<llama_error> {
    // SAFETY: every bit pattern is a llama_error.
    let mut error: Box<llama_error> = Box::new(unsafe { std::mem::zeroed() });
    error.status = -77;
    error.message.fill(0x55);
    error.struct_size = size;
    error
}

fn text(error: &llama_error) -> String {
    let bytes: Vec<u8> = error
        .message
        .iter()
        .map(|&c| c as u8)
        .take_while(|&c| c != 0)
        .collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_panic_becomes_a_status_with_its_words() {
    let mut error = error_of_size(1024);
    let status = guard!(&mut *error, |_scope| { panic!("ouch {}", 7) });
    assert_eq!(status, LLAMA_E_INTERNAL);
    assert_eq!(error.status, LLAMA_E_INTERNAL);
    assert_eq!(text(&error), "internal error: ouch 7");
    assert_eq!(
        guard!(else 5, { if error.status != 0 { panic!("again") } else { 6 } }),
        5
    );
}

#[test]
fn success_clears_the_message() {
    let mut error = error_of_size(1024);
    assert_eq!(guard!(&mut *error, |_scope| { Ok(LLAMA_OK) }), LLAMA_OK);
    assert_eq!((error.status, &*text(&error)), (LLAMA_OK, ""));
}

#[test]
fn short_error_structs_get_what_fits() {
    let fail = || Err(Failure::new(LLAMA_E_IO, "aé€x"));
    for (size, expected) in [
        (9, ""),
        (10, "a"),
        (11, "a"),
        (12, "aé"),
        (14, "aé"),
        (15, "aé€"),
        (16, "aé€x"),
        (17, "aé€x"),
    ] {
        let mut error = error_of_size(size);
        assert_eq!(guard!(&mut *error, |_scope| { fail() }), LLAMA_E_IO);
        assert_eq!(
            (error.status, &*text(&error)),
            (LLAMA_E_IO, expected),
            "struct_size {size}"
        );
        let beyond = &error.message[size as usize - 8..];
        assert!(beyond.iter().all(|&c| c == 0x55), "struct_size {size}");
    }
    for size in [0, 4, 8] {
        let mut error = error_of_size(size);
        assert_eq!(guard!(&mut *error, |_scope| { fail() }), LLAMA_E_IO);
        assert_eq!(error.status, -77, "struct_size {size} has no room");
    }
    let mut error = error_of_size(4097);
    assert_eq!(
        guard!(&mut *error, |_scope| { panic!("must not run") }),
        LLAMA_E_ABI
    );
    assert_eq!(error.status, -77);
}

#[test]
fn callbacks_are_noticed_on_their_own_thread_only() {
    assert!(InCallback::refuse("f").is_ok());
    let outer = InCallback::enter();
    drop(InCallback::enter());
    assert!(InCallback::refuse("f").is_err());
    assert!(
        std::thread::spawn(|| InCallback::refuse("f").is_ok())
            .join()
            .unwrap()
    );
    drop(outer);
    assert!(InCallback::refuse("f").is_ok());
}
/// A bug in one call must not let later ones compute with what it left behind.
#[test]
fn a_panic_poisons_the_handle_it_works_with() {
    let mut l = ptr::null_mut();
    let mut error = error_of_size(1024);
    let mut result = ptr::null_mut();
    let mut info = llama_info {
        struct_size: size_of::<llama_info>() as u32,
        // SAFETY: plain numbers.
        ..unsafe { std::mem::zeroed() }
    };
    let dir = c"tests/data/reference/mha-f32/meta";
    let (prompt, len) = ([1, 5, 6], 3);
    // SAFETY: the header's contract: live arrays, structs with their sizes.
    unsafe {
        let options = ptr::null();
        let status = llama_build(dir.as_ptr(), ptr::null(), options, &mut l, &mut *error);
        assert_eq!(status, LLAMA_OK, "{}", text(&error));
        let (prompt, len) = (prompt.as_ptr(), &raw const len);
        let mut generate = |error: &mut llama_error| {
            llama_generate(l, prompt, len, 1, ptr::null(), &mut result, error)
        };
        assert_eq!(generate(&mut error), LLAMA_OK);
        let status = guard!(&mut *error, |scope| {
            scope.handle(l)?;
            panic!("in the middle of something")
        });
        assert_eq!(status, LLAMA_E_INTERNAL);
        for _ in 0..2 {
            assert_eq!(generate(&mut error), LLAMA_E_POISONED);
            assert_eq!(
                text(&error),
                "the handle is unusable since an earlier failure: in the middle of something"
            );
        }
        // What was computed before, and what the model is, stays good.
        assert_eq!(llama_result_count(result), 1);
        assert_eq!(llama_get_info(l, &mut info, &mut *error), LLAMA_OK);
        llama_result_free(result);
        llama_free(l);
    }
}
