//! Grammars of all kinds, compiled and walked through. (U)
#![allow(unsafe_code)]

use super::{fuzz_within, harness};
use std::path::Path;

/// Memory that one may cost on this thread: what is reserved before a compilation, which grows with
/// the brackets that there may be.
fn allowance(len: usize) -> usize {
    (96 << 20) + (8 << 10) * len
}

/// The address space that the grammars may take, one after the other: what compiling one needs at
/// least, [`llamabi::grammar`] reserves before, and a stack.
const GRAMMAR_BYTES: u64 = 512 << 20;

/// In a process of its own: parsers work on threads of theirs, so their memory is in no account of
/// this thread's, but the address space of a process has a limit.
#[test]
fn grammar() {
    const CHILD: &str = "LLAMABI_TEST_GRAMMARS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return grammars_with_little_memory();
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["fuzz::grammars::grammar", "--exact", "--nocapture"])
        .env(CHILD, "1")
        // Another arena would have address space of its own, reserved before there is a limit.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let (said, why) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    eprint!("{why}");
    let last = last_grammar();
    let last = last.display();
    assert!(
        out.status.success() && said.contains("1 passed"),
        "{:?}; the last input is in {last}: {said}",
        out.status
    );
}

/// Where the input is that is under way.
fn last_grammar() -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz-grammar-last.bin")
}

fn grammars_with_little_memory() {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let limit = libc::rlimit {
        rlim_cur: pages * 4096 + GRAMMAR_BYTES,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit is a valid one of this process.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let words: [&[u8]; 24] = [
        b"{\"$ref\":\"#\"}",
        b"\"anyOf\":[{},{\"type\":\"array\"}],",
        b"\"maxLength\":4294967295,",
        b"\"minItems\":100000,",
        b"\"multipleOf\":0.3,",
        b"\"pattern\":\"(a|aa)*$\",",
        b"\"additionalProperties\":",
        b"\"x-guidance\":{},",
        b"[[[[[[[[[[[[[[[[",
        b"((((((((",
        b"){9,999}",
        b"(.?){500}",
        b"\\p{L}",
        b"[^a]",
        b".*",
        b"|",
        b"\nstart: ",
        b" a a ",
        b" & ~/a/",
        b"%json {}",
        b"[max_tokens=3]",
        b"<[1-9]>",
        b"null",
        b"\xe6\x97",
    ];
    let target = |data: &[u8]| {
        std::fs::write(last_grammar(), data).unwrap();
        let result = harness::grammar(data);
        if let Err(error @ llamabi::Error::Refused { .. }) = &result {
            panic!("a grammar has left no memory: {error}");
        }
        result
    };
    fuzz_within(allowance, "grammar", &words, 1_000, 20, target);
}
