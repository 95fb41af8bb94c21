//! Tokenizers, but for SentencePiece's, whose mutations are its own.

use super::{fuzz_within, harness, tokenizer_allowance};

#[test]
fn tokenizer_json() {
    let words: [&[u8]; 27] = [
        b"\"NFKC\"",
        b"\"Whitespace\"",
        b"\"Removed\"",
        b"\"add_prefix_space\":true",
        b"++",
        b"\\\\w+",
        b"[[:alpha:]]",
        b"\"type\":\"Sequence\"",
        b"\"ByteLevel\"",
        b"\"Metaspace\"",
        b"\"Split\"",
        b"\"NFC\"",
        b"\"Prepend\"",
        b"\"Replace\"",
        b"\"Digits\"",
        b"\"normalized\":true",
        b"\"lstrip\":true",
        b"\"ignore_merges\":true",
        b"\"byte_fallback\":true",
        b"\"merges\":",
        b"|\\\\s+(?!\\\\S)|\\\\s+",
        b"{1,1000}",
        b"16777215",
        b"-1",
        b"null",
        b"[",
        b"}",
    ];
    let target = harness::tokenizer_json;
    fuzz_within(
        tokenizer_allowance,
        "tokenizer_json",
        &words,
        6_000,
        12,
        target,
    );
}

#[test]
fn tiktoken() {
    let words: [&[u8]; 6] = [b"IQ== 0\n", b"====", b" 4294967296", b" -1", b"\n\n", b" "];
    let target = harness::tiktoken;
    fuzz_within(tokenizer_allowance, "tiktoken", &words, 3_000, 4, target);
}
