//! Templates, and the messages that go through them.

use super::{fuzz_within, harness, tokenizer_allowance};

/// Memory a template may cost: what it makes is charged, up to 64 MiB and 16 times the input.
fn template_allowance(len: usize) -> usize {
    (96 << 20) + 128 * len
}

#[test]
fn jinja() {
    let words: [&[u8]; 18] = [
        b"{% for a in range(99) %}",
        b"{% endfor %}",
        b"{% if x %}",
        b"{% else %}",
        b"{% endif %}",
        b"{% set a = a ~ a %}",
        b"{{ ",
        b" }}",
        b"{%- raw -%}",
        b" | tojson(indent=9)",
        b" | join(messages)",
        b" | indent(99)",
        b".replace('', 'ab')",
        b"[::-1]",
        b" ** 99",
        b" * 999999999",
        b"not loop.recurse(",
        b"\\u{",
    ];
    let (target, bound) = (harness::jinja, template_allowance);
    fuzz_within(bound, "jinja", &words, 6_000, 40, target);
}

#[test]
fn chat_json() {
    let words: [&[u8]; 9] = [
        b"\"role\": \"tool\", ",
        b"\"content\": null, ",
        b"\"arguments\": \"{\", ",
        b"\"type\": \"image_url\", ",
        b"\\ud800",
        b"1e999",
        b"[[[[[[[[[[[[[[[[",
        b"{}",
        b"null",
    ];
    let (target, bound) = (harness::chat_json, tokenizer_allowance);
    fuzz_within(bound, "chat_json", &words, 3_000, 12, target);
}
