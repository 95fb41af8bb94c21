//! Grammars on every kind of tokenizer: llguidance's own masks, and texts that are of the language.

mod dialects;
mod hostile;
mod languages;

use llamabi::grammar::{Cursor, Grammar, Grammars, MAX_SOURCE, Source};
use llamabi::tokenizer::{self, Tokenizer};
use llamabi::{Error, Token};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SMALL: &str = "tests/data/reference/mha-f32/hf/tokenizer.model";

/// Of each kind: SentencePiece files, `tokenizer.json`, tiktoken ranks.
const TOKENIZERS: [&str; 8] = [
    SMALL,
    "tests/data/tokenizer/tokenizer.model",
    "tests/data/tokenizers/llama3.model",
    "tests/data/tokenizers/llama3.json",
    "tests/data/tokenizers/qwen2.json",
    "tests/data/tokenizers/smollm.json",
    "tests/data/tokenizers/spm-metaspace.json",
    "tests/data/tokenizers/spm-prepend.json",
];

struct Kit {
    tokenizer: Arc<dyn Tokenizer>,
    grammars: Grammars,
}

impl Kit {
    /// A model's vocabulary is often larger than its tokenizer's: by `more` ids here.
    fn open(path: &str, more: usize) -> Self {
        let tokenizer = tokenizer::open(Path::new(path)).unwrap();
        let vocab_size = tokenizer.vocab_size() + more;
        let own = [tokenizer.eos_id()];
        let ends = own.iter().chain(tokenizer.stop_ids()).copied();
        Self {
            grammars: Grammars::new(vocab_size, ends.filter(|&id| id >= 0).collect()),
            tokenizer,
        }
    }

    fn compile(&self, source: Source<'_>) -> llamabi::Result<Arc<Grammar>> {
        let grammar = self.grammars.compile(&*self.tokenizer, source)?;
        Ok(Arc::new(grammar))
    }

    fn refusal(&self, source: Source<'_>) -> String {
        match self.compile(source) {
            Ok(_) => panic!("{source:?} is taken"),
            Err(error) => error.to_string(),
        }
    }
}

fn mask(grammar: &Arc<Grammar>, tokens: &[Token]) -> llamabi::Result<Vec<u32>> {
    let mut mask = vec![u32::MAX; grammar.mask_words()];
    grammar.mask(tokens, &mut mask)?;
    Ok(mask)
}

fn ids(mask: &[u32]) -> impl Iterator<Item = Token> {
    (0..mask.len() * 32)
        .filter(|t| mask[t / 32] >> (t % 32) & 1 == 1)
        .map(|t| t as Token)
}

/// A source as llguidance reads it: there may be any number of spaces in a value.
fn with_source<T>(case: &Value, then: impl FnOnce(Source<'_>) -> T) -> T {
    let mut source = case["source"].clone();
    if case["kind"] == "json" {
        source = json!({"type": "object"});
    }
    if case["kind"].as_str().unwrap().starts_with("json") && source["x-guidance"].is_null() {
        source["x-guidance"] = json!({"whitespace_flexible": true});
    }
    let json = source.to_string();
    let text = source.as_str().unwrap_or("");
    then(match case["kind"].as_str().unwrap() {
        "json_schema" | "json" => Source::JsonSchema(&json),
        "regex" => Source::Regex(text),
        "choice" => Source::Choice(&json),
        "lark" => Source::Lark(text),
        kind => panic!("{kind}"),
    })
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn masks_are_those_of_llguidance_itself() {
    let file = std::fs::read("tests/data/decoding/grammar-masks.json").unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let kit = Kit::open(SMALL, 0);
    let (mut rows, mut forced, mut refused, mut stopped) = (0, 0, 0, 0);
    for case in file["cases"].as_array().unwrap() {
        let grammar = with_source(case, |source| kit.compile(source)).unwrap();
        let tokens: Vec<Token> = case["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t.as_i64().unwrap() as Token)
            .collect();
        for (i, row) in case["rows"].as_array().unwrap().iter().enumerate() {
            let place = format!("{} {}, row {i}", case["kind"], case["text"]);
            let found = mask(&grammar, &tokens[..i]);
            if let Some(token) = row["refused"].as_i64() {
                let error = found.unwrap_err();
                assert!(
                    matches!(error, Error::InvalidArgument { .. }),
                    "{place}: {error}"
                );
                assert!(
                    error
                        .to_string()
                        .contains(&format!("tokens[{}] is {token}", i - 1)),
                    "{error}"
                );
                refused += 1;
                continue;
            }
            let found = found.unwrap();
            let expected: Vec<u32> = match row["mask"].as_str() {
                Some(hex) => (0..hex.len() / 8)
                    .map(|w| u32::from_str_radix(&hex[w * 8..][..8], 16).unwrap())
                    .collect(),
                // Nothing may follow but the end.
                None => {
                    stopped += 1;
                    let mut words = vec![0; found.len()];
                    words[0] = 1 << kit.tokenizer.eos_id();
                    words
                }
            };
            if found != expected {
                // Where the text is forced, llguidance's Python package leaves one way to cut it,
                // its tokenizer's: single bytes. Here every way to write the same text remains.
                let [one] = ids(&expected).collect::<Vec<_>>()[..] else {
                    panic!("{place}: {found:?}, expected {expected:?}")
                };
                let bytes = |t| kit.tokenizer.token_bytes(t);
                let same = |t| bytes(t).starts_with(bytes(one));
                assert!(
                    ids(&found).any(|t| t == one) && ids(&found).all(same),
                    "{place}"
                );
                forced += 1;
            }
            let ends = ids(&found).any(|t| t == kit.tokenizer.eos_id());
            assert_eq!(ends, row["accepting"].as_bool().unwrap(), "{place}");
            rows += 1;
        }
    }
    assert!(
        rows > 400 && forced < rows / 2 && refused > 5 && stopped > 5,
        "{rows} {forced} {refused} {stopped}"
    );
}

#[test]
fn what_is_no_grammar_is_refused_with_the_reason() {
    let kit = Kit::open(SMALL, 0);
    let long = format!("\"{}\"", "a".repeat(MAX_SOURCE));
    for (source, words) in [
        (Source::JsonSchema("{\"type\": "), "EOF while parsing"),
        (Source::JsonSchema("{\"type\": \"objekt\"}"), "objekt"),
        (Source::JsonSchema("false"), "the grammar: "),
        (Source::Regex("a)|(b"), "the grammar: "),
        (Source::Regex("(a"), "the grammar: "),
        (Source::Regex("(?=a)b"), "the grammar: "),
        (Source::Lark("start: nothing"), "nothing"),
        (Source::Lark("start: @body"), "body"),
        (Source::Lark(""), "the grammar: "),
        (Source::Choice("{}"), "it is no array"),
        (Source::Choice("[]"), "it has no elements"),
        (Source::Choice("[\"a\", 1]"), "element 1 is no string"),
        (Source::Choice("[\"\"]"), "element 0 is empty"),
        (
            Source::Choice("[\"a\", \"b\", \"a\"]"),
            "element 2 stands there twice",
        ),
        (
            Source::Choice(&long),
            "source is 1048578 bytes long, must be at most 1048576 bytes long",
        ),
    ] {
        let error = kit.refusal(source);
        assert!(error.contains(words), "{source:?}: {error}");
        assert!(
            !error.contains("backtrace") && !error.contains("non-verbose"),
            "{error}"
        );
    }
    // The handle is as good as before.
    assert!(kit.compile(Source::Regex("a|b")).is_ok());
}

#[test]
fn a_grammar_fits_only_where_it_was_made() {
    let (a, b) = (Kit::open(SMALL, 0), Kit::open(SMALL, 0));
    let grammar = a.compile(Source::Json).unwrap();
    assert!(a.grammars.made(&grammar) && !b.grammars.made(&grammar));
    b.compile(Source::Json).unwrap();
    assert!(!b.grammars.made(&grammar));
}

/// The panic hook is the process's: compiling leaves the one that was there.
#[test]
fn the_panic_hook_stays_the_hosts() {
    if !alone("the_panic_hook_stays_the_hosts") {
        return;
    }
    // A closure without captures has no address of its own: one with has.
    let canary = [0u8; 64];
    let hook: Box<dyn Fn(&std::panic::PanicHookInfo<'_>) + Send + Sync> = Box::new(move |_| {
        std::hint::black_box(&canary);
    });
    let address = (&raw const *hook).cast::<u8>();
    std::panic::set_hook(hook);
    let kit = Kit::open(SMALL, 0);
    let grammar = kit.compile(Source::Json).unwrap();
    mask(&grammar, &[]).unwrap();
    let cursors = [(); 2].map(|()| Cursor::new(&grammar).unwrap());
    drop(cursors.each_ref().map(|cursor| cursor.fork().unwrap()));
    drop(cursors);
    let after = std::panic::take_hook();
    assert_eq!((&raw const *after).cast::<u8>(), address);
}

/// A panic of the parser is its caller's error, and nobody else is told. Others are told of, while
/// somebody is in the middle of a grammar as well; a hook that the host sets then stays.
#[test]
fn a_panic_of_the_parser_does_not_reach_the_hosts_hook() {
    if !alone("a_panic_of_the_parser_does_not_reach_the_hosts_hook") {
        return;
    }
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    let told = || TOLD.load(Ordering::SeqCst);
    let panics = || {
        let panicked = std::thread::spawn(|| panic!("not the parser's")).join();
        assert!(panicked.is_err());
    };
    std::panic::set_hook(Box::new(|_| {
        TOLD.fetch_add(1, Ordering::SeqCst);
    }));
    let kit = Kit::open(SMALL, 0);
    let too_small = r#"{"type":"number","multipleOf":0.000000001}"#;
    let refused = || {
        let error = kit.refusal(Source::JsonSchema(too_small));
        assert!(error.contains("panic: attempt to multiply"), "{error}");
    };
    refused();
    assert_eq!(told(), 0);
    let grammar = kit.compile(Source::Json).unwrap();
    let cursor = Cursor::new(&grammar).unwrap();
    refused();
    assert_eq!(told(), 0);
    panics();
    assert_eq!(told(), 1);
    std::panic::set_hook(Box::new(|_| {
        TOLD.fetch_add(100, Ordering::SeqCst);
    }));
    drop(cursor);
    panics();
    assert_eq!(told(), 101);
    refused();
    panics();
    assert_eq!(told(), 201);
}

/// Whether this is the process of one test; where not, the test is run in one.
fn alone(test: &str) -> bool {
    const ALONE: &str = "LLAMABI_TEST_PANIC_HOOK";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&format!("grammar_masks::{test}"), "--exact"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
    false
}
