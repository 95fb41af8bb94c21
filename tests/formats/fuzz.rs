//! Mutation fuzzing of everything that reads files, in every test run: some thousand inputs per
//! target, the same each time. Nothing may panic, and no input may make us ask for memory out of
//! proportion to its size. (U)
#![allow(unsafe_code)]

mod harness;
mod mutate;

use crate::account::measure;
use mutate::Mutator;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Memory an input of this length may cost. A parsed JSON number of two bytes takes 32, in a vector
/// that doubles; the rest is for paths, messages and the standard library's buffers.
fn allowance(len: usize) -> usize {
    (64 << 10) + 128 * len
}

/// The same for a tokenizer: expressions have tables and caches of some megabytes each, of which a
/// file may ask for 16.
fn tokenizer_allowance(len: usize) -> usize {
    (64 << 20) + 128 * len
}

/// The same for a template: what it makes is charged, up to 64 MiB and 16 times the input.
fn template_allowance(len: usize) -> usize {
    (96 << 20) + 128 * len
}

/// The same for a grammar on this thread: what is reserved before a compilation, which grows with
/// the brackets that there may be.
fn grammar_allowance(len: usize) -> usize {
    (96 << 20) + (8 << 10) * len
}

fn corpus(folder: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

/// Run `target` on the corpus, which it must accept, and on `n` mutations of it. They must fail in
/// at least `kinds` different ways, or the mutations do not get anywhere.
fn fuzz(
    folder: &str,
    words: &[&[u8]],
    n: usize,
    kinds: usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
) {
    fuzz_within(allowance, folder, words, n, kinds, target);
}

/// The same with another bound on memory.
fn fuzz_within(
    allowance: fn(usize) -> usize,
    folder: &str,
    words: &[&[u8]],
    n: usize,
    kinds: usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
) {
    let corpus = corpus(folder);
    for (i, data) in corpus.iter().enumerate() {
        target(data).unwrap_or_else(|e| panic!("corpus file {i} of {folder}: {e}"));
    }
    let (mut accepted, mut seen) = (0, BTreeSet::new());
    let mut mutator = Mutator::new(1, &corpus, words);
    for i in 0..n {
        let data = mutator.next();
        let run = || measure(usize::MAX, || target(&data));
        let keep = |what: &str| -> String {
            let name = format!("fuzz-{folder}-{i}.bin");
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            std::fs::write(&path, &data).unwrap();
            format!("{what}; the input is in {}", path.display())
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let Ok((result, used)) = outcome else {
            panic!("{}", keep("a panic"))
        };
        let limit = allowance(data.len());
        assert!(
            used.largest <= limit && used.most <= limit,
            "{}",
            keep(&format!("{}, {} bytes", used.largest, used.most))
        );
        match result {
            Ok(()) => accepted += 1,
            // One kind of failure: the sentence without what varies.
            Err(e) => drop(seen.insert(kind(&e.to_string()))),
        }
    }
    eprintln!(
        "{folder}: {accepted} of {n} accepted, {} kinds of failure",
        seen.len()
    );
    assert!(
        accepted > 0 && accepted < n,
        "{folder}: {accepted} of {n} were accepted"
    );
    assert!(
        seen.len() >= kinds,
        "{folder}: only {} kinds of failure: {seen:#?}",
        seen.len()
    );
}

fn kind(sentence: &str) -> String {
    let mut quoted = false;
    let letters = sentence.chars().filter(|&c| {
        quoted ^= c == '`';
        !quoted && (c.is_ascii_lowercase() || c == ' ')
    });
    letters.collect()
}

#[test]
fn rank_message() {
    let words: [&[u8]; 9] = [
        &[0; 8],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0xff; 4],
        &[3, 0, 0, 0],
        &[8, 0, 0, 0],
        &[19, 0, 0, 0],
        &[20, 0, 0, 0],
        &[17, 0, 0, 0],
        &[10, 0, 0, 0],
    ];
    fuzz("rank_message", &words, 20_000, 15, harness::rank_message);
}

#[test]
fn safetensors() {
    let words: [&[u8]; 12] = [
        b"\"shape\"",
        b"\"data_offsets\"",
        b"\"F16\"",
        b"\"I64\"",
        b"\"__metadata__\":",
        b"[0,0]",
        b"-1",
        b"1e999",
        b"null",
        b"{",
        b"],",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("safetensors", &words, 6_000, 15, harness::safetensors);
}

#[test]
fn gguf() {
    let words: [&[u8]; 6] = [
        b"GGUF\x03\0\0\0",
        b"\x08\0\0\0\x01\0\0\0\0\0\0\0x",
        b"\x09\0\0\0\x08\0\0\0",
        b"\x09\0\0\0\x09\0\0\0",
        b"general.alignment",
        b"\x02\0\0\0\0\x01\0\0\0\0\0\0",
    ];
    fuzz("gguf", &words, 10_000, 20, harness::gguf);
}

#[test]
fn gguf_model() {
    let words: [&[u8]; 9] = [
        b"\x04\0\0\0\0\0\0\0",
        b"\x04\0\0\0\xff\xff\xff\xff",
        b"\x06\0\0\0\0\0\xc0\x7f",
        b"rope.scaling.type",
        b"\x08\0\0\0\x04\0\0\0\0\0\0\0yarn",
        b"attention.key_length",
        b"attention.sliding_window",
        b"tokenizer.ggml.scores",
        b"rope_factors_long.weight",
    ];
    let (target, bound) = (harness::gguf_model, tokenizer_allowance);
    fuzz_within(bound, "gguf_model", &words, 2_000, 30, target);
}

#[test]
fn quant_config() {
    let words: [&[u8]; 12] = [
        b"\"bits\": 3, ",
        b"\"group_size\": -1",
        b"\"group_size\": 24",
        b"\"sym\": false",
        b"\"quant_method\": \"hqq\", ",
        b"\"dynamic\": {\"a\": 1}, ",
        b"\"I32\"",
        b"\"U8\"",
        b"[0,1]",
        b"null",
        b"4294967295",
        b"\xff\xff\xff\xff",
    ];
    fuzz("quant_config", &words, 4_000, 20, harness::quant_config);
}

/// Every count, length and offset of a GGUF file, and whatever else lies before its data, at the
/// edges of what it can say; and every length that the file can be cut off at.
#[test]
fn gguf_fields_at_their_edges() {
    let whole = corpus("gguf").remove(0);
    let check = |data: &[u8], at: usize| within(allowance, harness::gguf, data, at);
    assert!(check(&whole, 0));
    // The last tensor has 8 bytes, and 8 of padding that nobody reads.
    for len in 0..whole.len() - 8 {
        assert!(!check(&whole[..len], len), "cut off at {len}");
    }
    let mut refused = 0;
    for at in 0..whole.len() - 8 {
        for edge in EDGES {
            for width in [4, 8] {
                let data = at_edge(&whole, at, edge, width);
                refused += usize::from(!check(&data, at));
            }
        }
    }
    assert!(refused > 5_000, "{refused}");
}

/// The same of models, through configuration, tokenizer and plan. Sizes have 32 bits, lengths 64.
/// In a long file some places stand for all.
#[test]
fn gguf_models_at_their_edges() {
    let (mut refused, mut accepted) = (0, 0);
    for whole in corpus("gguf_model") {
        let check =
            |data: &[u8], at: usize| within(tokenizer_allowance, harness::gguf_model, data, at);
        assert!(check(&whole, 0));
        // Nobody reads the data behind the names of tensors.
        let last = b"output_norm.weight";
        let names = whole.windows(last.len()).position(|w| w == last).unwrap() + last.len();
        let step = 1 + whole.len() / 2048;
        for at in (0..names).step_by(step) {
            for (edge, width) in [(0, 4), (u32::MAX.into(), 4), (u64::MAX, 8)] {
                match check(&at_edge(&whole, at, edge, width), at) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
        }
    }
    eprintln!("gguf_model: {accepted} accepted, {refused} refused");
    assert!(refused > 1_500 && accepted > 50, "{refused}, {accepted}");
}

/// What counts, lengths and offsets can say at most and at least.
const EDGES: [u64; 8] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    (1 << 63) - 1,
    0xffff_ffff,
    0xffff_fffe,
];

/// A copy with another number at a place.
fn at_edge(whole: &[u8], at: usize, edge: u64, width: usize) -> Vec<u8> {
    let mut data = whole.to_vec();
    data[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
    data
}

/// Whether `target` takes the bytes, for which it may not need more memory than is allowed.
fn within(
    allowance: fn(usize) -> usize,
    target: fn(&[u8]) -> llamabi::Result<()>,
    data: &[u8],
    at: usize,
) -> bool {
    let (result, used) = measure(usize::MAX, || target(data));
    let most = used.largest.max(used.most);
    assert!(
        most <= allowance(data.len()),
        "{most} bytes; changed at {at}"
    );
    result.is_ok()
}

#[test]
fn pth() {
    let words: [&[u8]; 8] = [
        b"PK\x01\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PK\x06\x06",
        b"PK\x06\x07",
        b"archive/data.pkl",
        b"archive/data/0",
        b"big",
    ];
    fuzz("pth", &words, 6_000, 25, harness::pth);
}

#[test]
fn pickle() {
    let words: [&[u8]; 13] = [
        b"(",
        b"R",
        b"t",
        b"Q",
        b"b",
        b"u",
        b"q\x00",
        b"h\x00",
        b"\x85\x85\x85",
        b"ctorch\nLongStorage\n",
        b"cos\nsystem\n",
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"J\xff\xff\xff\xff",
    ];
    fuzz("pickle", &words, 20_000, 25, harness::pickle);
}

#[test]
fn index() {
    let words: [&[u8]; 8] = [
        b"\"weight_map\"",
        b"\"z\":\"a.safetensors\",",
        b"..",
        b"/",
        b"null",
        b"{",
        b"}",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("index", &words, 3_000, 8, harness::index);
}

#[test]
fn config() {
    let words: [&[u8]; 15] = [
        b"null",
        b"true",
        b"-1",
        b"0.5",
        b"1e300",
        b"1e-300",
        b"[2, 3]",
        b"\"linear\"",
        b"\"llama3\"",
        b"\"yarn\"",
        b"\"rope_scaling\"",
        b"\"type\": ",
        b"\"head_dim\": 6, ",
        b"\"quantization_config\": {}, ",
        b"[[[[[[[[[[[[[[[[",
    ];
    fuzz("config", &words, 6_000, 20, harness::config);
}

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

#[test]
fn adapter() {
    let words: [&[u8]; 10] = [
        b"\"r\": 3, ",
        b"\"use_rslora\": true, ",
        b"\"rank_pattern\": {\"q_proj\": 1}, ",
        b"\"alpha_pattern\": {\"q\": 1e30}, ",
        b"\"modules_to_save\": [\"lm_head\"], ",
        b"lora_A",
        b"\"F32\"",
        b"[0,1]",
        b"null",
        b"-1",
    ];
    fuzz("adapter", &words, 4_000, 12, harness::adapter);
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

/// The longest that one grammar may take: far more than an idle machine needs.
const LONGEST: Duration = Duration::from_secs(60);

/// The address space that the grammars may take, one after the other: what compiling one needs at
/// least, [`llamabi::grammar`] reserves before, and a stack.
const GRAMMAR_BYTES: u64 = 512 << 20;

/// In a process of its own: parsers work on threads of theirs, so their memory is in no account of
/// this thread's, but the address space of a process has a limit. `LLAMABI_TEST_GRAMMARS` asks for
/// so many inputs.
#[test]
fn grammar() {
    const CHILD: &str = "LLAMABI_TEST_GRAMMARS_CHILD";
    let n = std::env::var("LLAMABI_TEST_GRAMMARS").map_or(1_000, |n| n.parse().unwrap());
    if std::env::var_os(CHILD).is_some() {
        return grammars_with_little_memory(n);
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["fuzz::grammar", "--exact", "--nocapture"])
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

fn grammars_with_little_memory(n: usize) {
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
        let start = Instant::now();
        let result = harness::grammar(data);
        let took = start.elapsed();
        assert!(took < LONGEST, "a grammar has taken {took:?}");
        if let Err(error @ llamabi::Error::Refused { .. }) = &result {
            panic!("a grammar has left no memory: {error}");
        }
        result
    };
    fuzz_within(grammar_allowance, "grammar", &words, n, 20, target);
}
