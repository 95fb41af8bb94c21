//! Grammars on every kind of tokenizer: llguidance's own masks, and texts that are of the language.

use llamabi::grammar::{Cursor, Grammar, Grammars, MAX_SOURCE, Source};
use llamabi::tokenizer::{self, Tokenizer};
use llamabi::{Error, Token};
use serde_json::Value;
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

fn with_source<T>(case: &Value, then: impl FnOnce(Source<'_>) -> T) -> T {
    let source = &case["source"];
    let json = source.to_string();
    let text = source.as_str().unwrap_or("");
    then(match case["kind"].as_str().unwrap() {
        "json_schema" => Source::JsonSchema(&json),
        "json" => Source::Json,
        "regex" => Source::Regex(text),
        "choice" => Source::Choice(&json),
        "lark" => Source::Lark(text),
        kind => panic!("{kind}"),
    })
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

/// A text that tokens chosen at random make, as it would be generated; `None` if it became long.
fn random_text(kit: &Kit, grammar: &Arc<Grammar>, rng: &mut Rng) -> Option<String> {
    let mut cursor = Cursor::new(grammar);
    let mut mask = vec![0; grammar.mask_words()];
    let mut tokens = Vec::new();
    for _ in 0..200 {
        cursor.mask_to_generate(&mut mask).unwrap();
        let allowed: Vec<Token> = ids(&mask).collect();
        assert!(!allowed.is_empty());
        let token = allowed[rng.below(allowed.len())];
        let ends = token == kit.tokenizer.eos_id() || kit.tokenizer.stop_ids().contains(&token);
        if !ends {
            tokens.push(token);
            assert!(cursor.take(token).unwrap());
        }
        if ends || cursor.is_complete().unwrap() {
            return Some(kit.tokenizer.decode(&tokens).unwrap());
        }
    }
    None
}

/// Languages that begin with a space, may, or do not; each with what says whether a text is of it.
type Member = fn(&str) -> bool;
const LANGUAGES: [(Source<'static>, Member); 7] = [
    (Source::Regex("[0-9]{2,5}(-x)?"), |t| {
        matches("[0-9]{2,5}(-x)?", t)
    }),
    (Source::Regex(" ?[a-f ]{1,6}"), |t| {
        matches(" ?[a-f ]{1,6}", t)
    }),
    (Source::Regex("  (a|b) *c"), |t| matches("  (a|b) *c", t)),
    (Source::Regex("([α-ω]|é|語){1,4}"), |t| {
        matches("([α-ω]|é|語){1,4}", t)
    }),
    (
        Source::Choice(r#"["yes", "no", " no", "a+b(c", "été"]"#),
        |t| ["yes", "no", " no", "a+b(c", "été"].contains(&t),
    ),
    (
        Source::JsonSchema(
            r#"{"type":"object","properties":{"n":{"type":"integer","minimum":-5,"maximum":120},
             "s":{"type":"string","maxLength":3},"l":{"type":"array","items":{"enum":[1,"a"]},"maxItems":2}},
             "required":["n","s"],"additionalProperties":false}"#,
        ),
        |t| {
            let Ok(Value::Object(o)) = serde_json::from_str(t) else {
                return false;
            };
            // "-0" is an integer, too.
            let n = o.get("n").and_then(Value::as_f64);
            let s = o
                .get("s")
                .and_then(Value::as_str)
                .map(|s| s.chars().count());
            let l = o.get("l").is_none_or(|l| {
                let l = l.as_array().unwrap();
                l.len() <= 2 && l.iter().all(|v| *v == 1 || *v == "a")
            });
            n.is_some_and(|n| n.fract() == 0.0 && (-5.0..=120.0).contains(&n))
                && s.is_some_and(|s| s <= 3)
                && l
        },
    ),
    (Source::Lark("start: \"(\" start \")\" | /[xy]/"), |t| {
        let inner = t.trim_start_matches('(').trim_end_matches(')');
        let n = t.find(inner).unwrap();
        (inner == "x" || inner == "y") && t == format!("{}{inner}{}", "(".repeat(n), ")".repeat(n))
    }),
];

fn matches(regex: &str, text: &str) -> bool {
    let regex = regex_automata::meta::Regex::new(&format!("^({regex})$")).unwrap();
    regex.is_match(text)
}

#[test]
fn every_text_is_of_its_language_whatever_the_tokenizer() {
    let mut rng = Rng(1);
    for path in TOKENIZERS {
        for more in [0, 40] {
            let kit = Kit::open(path, more);
            for (source, is_member) in LANGUAGES {
                let grammar = kit.compile(source).unwrap();
                assert_eq!(
                    grammar.mask_words(),
                    (kit.tokenizer.vocab_size() + more).div_ceil(32)
                );
                let mut ended = 0;
                for _ in 0..20 {
                    if let Some(text) = random_text(&kit, &grammar, &mut rng) {
                        assert!(is_member(&text), "{path}: {source:?}: {text:?}");
                        ended += 1;
                    }
                }
                assert!(ended >= 10, "{path}: {source:?}: {ended}");
            }
        }
    }
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

#[test]
fn hostile_sources_cost_a_status_and_little_time() {
    let kit = Kit::open(SMALL, 0);
    let deep = |open: &str, inner: &str, close: &str, n: usize| {
        format!("{}{inner}{}", open.repeat(n), close.repeat(n))
    };
    let nested = deep(r#"{"type":"array","items":"#, "{}", "}", 100);
    let all_of = format!(
        r#"{{"allOf":[{}]}}"#,
        (0..2000)
            .map(|i| format!(r#"{{"properties":{{"p{i}":{{"type":"string"}}}}}}"#))
            .collect::<Vec<_>>()
            .join(",")
    );
    let any_of = deep(
        r#"{"anyOf":[{"type":"null"},{"type":"array","items":"#,
        "{}",
        "}]}",
        30,
    );
    let parentheses = deep("(", "a", ")", 20_000);
    let lark_parentheses = format!("start: {}", deep("(", "\"a\"", ")", 20_000));
    let lark_deep = format!("start: {}", deep("(\"b\"|", "\"a\"", ")", 3_000));
    let choices: Vec<String> = (0..40_000).map(|i| format!("\"choice {i}\"")).collect();
    let choices = format!("[{}]", choices.join(","));
    let sources = [
        Source::JsonSchema(&nested),
        Source::JsonSchema(&all_of),
        Source::JsonSchema(&any_of),
        Source::JsonSchema(r#"{"type":"string","minLength":1000000000}"#),
        Source::JsonSchema(r#"{"type":"string","maxLength":4294967295}"#),
        Source::JsonSchema(r#"{"type":"array","minItems":1000000,"items":{"type":"number"}}"#),
        Source::JsonSchema(r#"{"type":"integer","multipleOf":1e-300}"#),
        Source::JsonSchema(r#"{"type":"number","minimum":1e308,"maximum":1.7e308}"#),
        Source::JsonSchema(r#"{"type":"integer","minimum":-99999999999999999999999}"#),
        Source::JsonSchema(r##"{"$ref":"#"}"##),
        Source::JsonSchema(
            r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##,
        ),
        Source::JsonSchema(
            r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"type":"array","items":{"$ref":"#"}}]}"##,
        ),
        Source::JsonSchema(r#"{"type":"string","pattern":"^(([a-z]+)+)+((a?){500}){500}$"}"#),
        Source::JsonSchema(r#"{"type":"string","pattern":"(a|b|ab)*c{1,60000}(d{1,60000})*"}"#),
        Source::Regex(&parentheses),
        Source::Regex("((a{1,1000}){1,1000}){1,1000}"),
        Source::Regex("(.*a.*b.*c.*d.*e.*){50}"),
        Source::Regex("(a|aa|aaa)*(.?){5000}b"),
        Source::Regex("\\p{L}{10000}"),
        Source::Lark(&lark_parentheses),
        Source::Lark(&lark_deep),
        Source::Lark("start: a\na: b a | \nb: a b | "),
        Source::Lark("start: start start | \"a\" | \"aa\""),
        Source::Lark("start: a{1000000}\na: \"x\""),
        Source::Lark("start: X\nX: /a/ & ~/a/"),
        Source::Lark("start: t[max_tokens=2, stop=\"x\"]\nt: /(.|\\n)*/"),
        Source::Lark("%llguidance {\"no_forcing\": true}\nstart: <s> <[1-3]> /a*/"),
        Source::Choice(&choices),
    ];
    let mut rng = Rng(7);
    for source in sources {
        let name = format!("{source:?}");
        let name = &name[..name.floor_char_boundary(100)];
        let start = Instant::now();
        let outcome = kit.compile(source);
        let compiled = start.elapsed();
        // Far more than an idle machine needs.
        assert!(compiled < Duration::from_secs(60), "{name}: {compiled:?}");
        let Ok(grammar) = outcome else { continue };
        let mut mask = vec![0; grammar.mask_words()];
        let mut cursor = Cursor::new(&grammar);
        let start = Instant::now();
        for _ in 0..100 {
            // What is too much for the parser is the grammar's error.
            match cursor.mask_to_generate(&mut mask) {
                Ok(()) => {}
                Err(Error::Grammar(_)) => break,
                Err(error) => panic!("{name}: {error}"),
            }
            let allowed: Vec<Token> = ids(&mask).collect();
            let token = allowed[rng.below(allowed.len())];
            if token == kit.tokenizer.eos_id() || !matches!(cursor.take(token), Ok(true)) {
                break;
            }
            if !matches!(cursor.is_complete(), Ok(false)) {
                break;
            }
        }
        let masks = start.elapsed();
        assert!(masks < Duration::from_secs(60), "{name}: {masks:?}");
    }
}

/// A grammar of which a mask is too much fails for that text, and others go on with it.
#[test]
fn a_parser_that_gives_up_does_so_for_one_text() {
    let kit = Kit::open(SMALL, 0);
    let grammar = kit
        .compile(Source::Lark(
            "start: \"b\" | s\ns: s s | \"a\" | \"aa\" | s \"a\" s",
        ))
        .unwrap();
    let a = kit.tokenizer.encode("a").unwrap();
    let a = *a.last().unwrap();
    let b = *kit.tokenizer.encode("b").unwrap().last().unwrap();
    let mut words = vec![0; grammar.mask_words()];
    let mut good = Cursor::new(&grammar);
    let mut bad = Cursor::new(&grammar);
    let mut gave_up = false;
    for _ in 0..3000 {
        if !matches!(bad.take(a), Ok(true)) || bad.mask(&mut words).is_err() {
            gave_up = true;
            break;
        }
    }
    assert!(gave_up, "the test's grammar is not hard enough");
    good.mask(&mut words).unwrap();
    assert!(good.take(b).unwrap() && good.is_complete().unwrap());
    assert!(mask(&grammar, &[a]).is_ok());
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
    let cursors = [Cursor::new(&grammar), Cursor::new(&grammar)];
    drop(cursors.clone());
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
    let cursor = Cursor::new(&grammar);
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

/// What would be more work than a compilation may cost is refused, by what the caller wrote.
#[test]
fn what_would_take_the_parser_too_long_is_refused() {
    let kit = Kit::open(SMALL, 0);
    let doubling: Vec<String> = (0..60).map(|i| format!("T{}: T{i} T{i}", i + 1)).collect();
    let doubling = format!("start: T60\nT0: \"a\"\n{}", doubling.join("\n"));
    let error = kit.refusal(Source::Lark(&doubling));
    assert!(
        error.contains("(limit for this grammar: 250000)"),
        "{error}"
    );
    for (schema, multiple) in [
        (r#"{"type":"integer","multipleOf":999983}"#, "999983"),
        (r#"{"items":{"multipleOf":3.2771}}"#, "32771"),
        (r#"{"multipleOf":1000000007}"#, "more than 429496729"),
        (
            r#"{"allOf":[{"multipleOf":509},{"multipleOf":1022}]}"#,
            "260099",
        ),
        (
            r#"{"multipleOf":509,"oneOf":[{},{"multipleOf":511}]}"#,
            "260099",
        ),
        (
            r#"{"properties":{"default":{"type":"integer","multipleOf":999983}}}"#,
            "999983",
        ),
        (
            r##"{"$defs":{"a":{"multipleOf":509},"b":{"multipleOf":511}},
                "allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}"##,
            "260099",
        ),
    ] {
        let error = kit.refusal(Source::JsonSchema(schema));
        let sentence = format!("multiples of {multiple}, apart from factors of 2 and 5");
        assert!(error.contains(&sentence), "{schema}: {error}");
    }
    for (inside, sentence) in [
        (r#"{"multipleOf":999983}"#, "multiples of 999983"),
        (
            r#"{"const":12345678901234567890}"#,
            "more digits than are kept",
        ),
    ] {
        let lark = format!("start: a b\na: %json {{}}\nb: %json {inside}\n");
        let error = kit.refusal(Source::Lark(&lark));
        assert!(error.contains(sentence), "{inside}: {error}");
    }
    for schema in [
        r#"{"type":"integer","multipleOf":1000000}"#,
        r#"{"type":"number","multipleOf":0.01}"#,
        r#"{"anyOf":[{"type":"integer","multipleOf":509},{"type":"integer","multipleOf":511}]}"#,
        r#"{"const":{"multipleOf":999983}}"#,
    ] {
        assert!(kit.compile(Source::JsonSchema(schema)).is_ok(), "{schema}");
    }
}

/// A number that a double has not would be another one in the text.
#[test]
fn numbers_of_schemas_are_kept_or_refused() {
    let kit = Kit::open(SMALL, 0);
    for number in [
        "12345678901234567890",
        "9007199254740993",
        "-0.12345678901234567891",
    ] {
        for schema in [
            format!(r#"{{"const":{number}}}"#),
            format!(r#"{{"enum":["a\"", {number}]}}"#),
            format!(r#"{{"type":"integer","minimum":{number}}}"#),
        ] {
            let error = kit.refusal(Source::JsonSchema(&schema));
            let number = number.trim_start_matches('-');
            let sentence = format!("the number {number} has more digits than are kept");
            assert!(error.contains(&sentence), "{schema}: {error}");
        }
    }
    let kept = r#"{"enum":["12345678901234567890 \\", 9007199254740992, 0.1, 1e3]}"#;
    assert!(kit.compile(Source::JsonSchema(kept)).is_ok());
    let grammar = kit.compile(Source::JsonSchema(r#"{"const":9007199254740991}"#));
    let grammar = grammar.unwrap();
    let mut cursor = Cursor::new(&grammar);
    for token in kit.tokenizer.encode("9007199254740991").unwrap() {
        assert!(token == kit.tokenizer.bos_id() || cursor.take(token).unwrap());
    }
    assert!(cursor.accepts().unwrap());
}
