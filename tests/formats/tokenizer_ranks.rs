//! Tokenizers that merge by rank: what tokenizers and tiktoken make of texts.
//! `tests/data/tokenizers/make.py` wrote the cases.

use crate::peers;
use crate::rng::Rng;
use crate::tokenizer_gguf::gguf;
use llamabi::tokenizer::{self, Bound, Detokenizer, Encoded, GgufVocabulary, Run, Tokenizer};
use llamabi::{Cancel, Error, Result, Token};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FOLDER: &str = "tests/data/tokenizers";

pub fn file(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

pub fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(file(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<Token> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_i64().unwrap() as Token).collect()
}

/// All added tokens parsed, as transformers does.
pub fn special(tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
    rendered(tokenizer, &[(text, false)], true)
}

/// Of stretches, each with whether the template wrote it.
fn rendered(tokenizer: &dyn Tokenizer, parts: &[(&str, bool)], parse_all: bool) -> Vec<Token> {
    let text: String = parts.iter().map(|(text, _)| *text).collect();
    let run = |&(text, from_template): &(&str, bool)| Run {
        len: text.len(),
        from_template,
    };
    let runs: Vec<Run> = parts.iter().map(run).collect();
    let mut tokens = Vec::new();
    let bound = Bound::default();
    let whole = tokenizer.encode_rendered_onto(&text, &runs, parse_all, &mut tokens, bound);
    assert_eq!(whole.unwrap(), Encoded::Whole);
    tokens
}

/// What a stream's events say, one behind the other. Each must be whole characters, as a String is.
pub fn streamed(tokenizer: &Arc<dyn Tokenizer>, tokens: &[Token], special: bool) -> String {
    let mut detokenizer = match special {
        true => Detokenizer::with_special(tokenizer.clone()),
        false => Detokenizer::new(tokenizer.clone()),
    };
    let mut text = String::new();
    for &token in tokens {
        let mut event = String::new();
        detokenizer.push(token, &mut event);
        text.push_str(&event);
    }
    detokenizer.finish(&mut text);
    text
}

/// A tokenizer against the cases of `name`.
pub fn agree(tokenizer: &Arc<dyn Tokenizer>, name: &str) {
    let all = read("cases.json");
    let cases = &all[name];
    assert_eq!(
        tokenizer.vocab_size() as u64,
        cases["vocab_size"].as_u64().unwrap(),
        "{name}"
    );
    assert_eq!(
        tokenizer.adds_bos(),
        cases["bos"].as_bool().unwrap(),
        "{name}"
    );
    let list = cases["cases"].as_array().unwrap();
    assert!(list.len() > 70);
    for case in list {
        let text = case["text"].as_str().unwrap();
        let plain = ids(&case["plain"]);
        let spelled = case.get("special").map_or(plain.clone(), ids);
        let full = case.get("with_template").map_or(spelled.clone(), ids);
        assert_eq!(tokenizer.encode(text).unwrap(), plain, "{name}: {text:?}");
        assert_eq!(
            rendered(&**tokenizer, &[(text, false)], false),
            plain,
            "{name}: {text:?}"
        );
        assert_eq!(
            rendered(&**tokenizer, &[(text, true)], false),
            spelled,
            "{name}: {text:?}"
        );
        assert_eq!(special(&**tokenizer, text), spelled, "{name}: {text:?}");
        let bos = tokenizer.adds_bos().then_some(tokenizer.bos_id());
        let with_bos: Vec<Token> = bos.into_iter().chain(spelled.iter().copied()).collect();
        assert_eq!(with_bos, full, "{name}: {text:?}");
        let decoded = |key: &str| case.get(key).map_or(text, |v| v.as_str().unwrap());
        assert_eq!(
            tokenizer.decode(&spelled).unwrap(),
            decoded("decoded"),
            "{name}: {text:?}"
        );
        assert_eq!(
            streamed(tokenizer, &spelled, false),
            decoded("decoded"),
            "{name}: {text:?}"
        );
        let shown = streamed(tokenizer, &spelled, true);
        assert_eq!(shown, decoded("decoded_special"), "{name}: {text:?}");
    }
    for case in cases["decode"].as_array().unwrap() {
        let tokens = ids(&case["ids"]);
        let text = tokenizer.decode(&tokens).unwrap();
        assert_eq!(
            streamed(tokenizer, &tokens, false),
            text,
            "{name}: {tokens:?}"
        );
        // With byte fallback tokenizers makes every byte of a run U+FFFD where one is bad.
        if name.starts_with("spm") {
            continue;
        }
        assert_eq!(
            text,
            case["decoded"].as_str().unwrap(),
            "{name}: {tokens:?}"
        );
        let shown = streamed(tokenizer, &tokens, true);
        assert_eq!(
            shown,
            case["decoded_special"].as_str().unwrap(),
            "{name}: {tokens:?}"
        );
    }
}

const NAMES: [&str; 9] = [
    "llama3",
    "qwen2",
    "smollm",
    "gpt4o",
    "deepseek-coder",
    "hunyuan",
    "seed",
    "spm-prepend",
    "spm-metaspace",
];

#[test]
fn what_the_libraries_make_of_texts() {
    for name in NAMES {
        agree(
            &tokenizer::open(&file(&format!("{name}.json"))).unwrap(),
            name,
        );
    }
    agree(&tokenizer::open(&file("llama3.model")).unwrap(), "llama3");
}

#[test]
fn end_of_sequence_tokens() {
    let llama3 = tokenizer::open(&file("llama3.model")).unwrap();
    assert_eq!(
        llama3.special_text(llama3.bos_id()),
        Some("<|begin_of_text|>")
    );
    assert_eq!(
        llama3.special_text(llama3.eos_id()),
        Some("<|end_of_text|>")
    );
    assert_eq!(
        llama3.special_text(llama3.pad_id()),
        Some("<|finetune_right_pad_id|>")
    );
    let stops: Vec<_> = llama3
        .stop_ids()
        .iter()
        .map(|&id| llama3.special_text(id))
        .collect();
    assert_eq!(stops, [Some("<|eom_id|>"), Some("<|eot_id|>")]);
    let last = llama3.vocab_size() as Token - 1;
    assert_eq!(
        llama3.special_text(last),
        Some("<|reserved_special_token_245|>")
    );
    assert_eq!(llama3.added_id("<|start_header_id|>"), Some(last - 249));

    // By their texts, where a GGUF names one only; a word of the vocabulary is none.
    let mut qwen = gguf("qwen2", "qwen2");
    let id = |vocabulary: &GgufVocabulary, text: &str| {
        vocabulary
            .tokens
            .iter()
            .position(|token| token == text)
            .unwrap()
    };
    let (end, im_end) = (id(&qwen, "<|endoftext|>"), id(&qwen, "<|im_end|>"));
    qwen.eos_id = Some(end as u32);
    let path = Path::new("a.gguf");
    assert_eq!(qwen.tokenizer(path).unwrap().stop_ids(), [im_end as Token]);
    qwen.types[im_end] = 1;
    assert!(qwen.tokenizer(path).unwrap().stop_ids().is_empty());
    qwen.eot_id = Some(im_end as u32);
    assert_eq!(qwen.tokenizer(path).unwrap().stop_ids(), [im_end as Token]);
}

#[test]
fn only_the_template_makes_special_tokens() {
    for name in ["llama3.json", "llama3.model"] {
        let tokenizer = tokenizer::open(&file(name)).unwrap();
        let eot = tokenizer.added_id("<|eot_id|>").unwrap();
        let count = |parts: &[(&str, bool)]| {
            let tokens = rendered(&*tokenizer, parts, false);
            tokens.iter().filter(|&&id| id == eot).count()
        };
        assert_eq!(count(&[("<|eot_id|>", true)]), 1);
        assert_eq!(count(&[("<|eot_id|>", false)]), 0);
        // Runs of the template that lie side by side are one.
        assert_eq!(count(&[("<|eot", true), ("_id|>", true)]), 1);
        assert_eq!(count(&[("<|eot", true), ("_id|>", false)]), 0);
        assert_eq!(count(&[("<|eot", false), ("_id|>", true)]), 0);
        assert_eq!(
            count(&[
                ("a<|eot_id|><|eot_id|>", false),
                ("<|eot_id|>", true),
                ("b", false)
            ]),
            1
        );
    }
    let tokenizer = tokenizer::open(Path::new("tests/data/small-tokenizer.model")).unwrap();
    assert_eq!(
        rendered(&*tokenizer, &[("<s>", true), ("</s>", false)], false)[0],
        1
    );
    assert!(!rendered(&*tokenizer, &[("</s>", false)], false).contains(&2));
    let whole = rendered(
        &*tokenizer,
        &[("a", false), ("</s>", true), ("b", false)],
        false,
    );
    let (a, b) = (
        tokenizer.encode("a").unwrap(),
        tokenizer.encode("b").unwrap(),
    );
    assert_eq!(whole, [a, vec![2], b].concat());
    assert_eq!(tokenizer.special_text(1), Some("<s>"));
}

#[test]
fn runs_that_are_another_texts() {
    let tokenizer = tokenizer::open(&file("llama3.json")).unwrap();
    for lens in [&[][..], &[1], &[3, 1], &[usize::MAX, 2], &[1, 1, 1]] {
        let run = |&len: &usize| Run {
            len,
            from_template: true,
        };
        let runs: Vec<Run> = lens.iter().map(run).collect();
        let mut tokens = Vec::new();
        // Two bytes, one character.
        let result =
            tokenizer.encode_rendered_onto("é", &runs, false, &mut tokens, Bound::default());
        assert!(
            matches!(result, Err(Error::InvalidArgument { .. })),
            "{lens:?}: {result:?}"
        );
    }
}

/// llama3.json, changed.
pub fn changed(change: impl FnOnce(&mut Value)) -> Result<Arc<dyn Tokenizer>> {
    let mut json = read("llama3.json");
    change(&mut json);
    tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes())
}

pub fn token(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "special": false, "normalized": false})
}

#[test]
fn flags_of_added_tokens() {
    let with = |flags: &[&str]| {
        let mut token = token(700, "xyz");
        for flag in flags {
            token[flag] = true.into();
        }
        changed(|json| json["added_tokens"].as_array_mut().unwrap().push(token)).unwrap()
    };
    let decoded = |tokenizer: &Arc<dyn Tokenizer>, text: &str| {
        let pieces = special(&**tokenizer, text).into_iter().map(|id| match id {
            700 => "[]".into(),
            id => tokenizer.decode(&[id]).unwrap(),
        });
        pieces.collect::<String>()
    };
    // As tokenizers 0.23.3 answers.
    assert_eq!(decoded(&with(&[]), "a xyz b axyzb"), "a [] b a[]b");
    assert_eq!(decoded(&with(&["lstrip"]), "a \n xyz xyz b"), "a[][] b");
    assert_eq!(decoded(&with(&["rstrip"]), "a xyz xyz \n b"), "a [][]b");
    assert_eq!(decoded(&with(&["lstrip", "rstrip"]), " xyz  xyz "), "[][]");
    assert_eq!(
        decoded(&with(&["single_word"]), "a xyz axyz xyz_ (xyz)"),
        "a [] axyz xyz_ ([])"
    );
    // White space around it may be anybody's.
    let tokens = rendered(&*with(&["lstrip"]), &[("a ", false), ("xyz", true)], false);
    assert_eq!(tokens.len(), 2);
}

#[test]
fn longest_added_token_first() {
    let tokenizer = changed(|json| {
        let list = json["added_tokens"].as_array_mut().unwrap();
        list.extend([token(700, "<a"), token(701, "<a><b"), token(702, "b>")]);
    });
    let tokenizer = tokenizer.unwrap();
    assert_eq!(special(&*tokenizer, "<a><b>")[..1], [701]);
    // A match that would reach into a message neither counts nor hides a shorter one.
    let parts = [("<a>", true), ("<b>", false)];
    assert_eq!(rendered(&*tokenizer, &parts, false)[..1], [700]);
}

#[test]
fn a_bound_and_a_cancel_end_an_encoding() {
    for name in ["llama3.json", "spm-metaspace.json", "qwen2.json"] {
        let tokenizer = tokenizer::open(&file(name)).unwrap();
        for text in ["word ".repeat(100_000), "x\u{301}q".repeat(100_000)] {
            let n = tokenizer.encode(&text).unwrap().len();
            for max in [0, 1, 100, n - 1, n, n + 1] {
                let bound = Bound {
                    max_tokens: Some(max),
                    cancel: None,
                };
                let mut tokens = Vec::new();
                match tokenizer.encode_onto(&text, &mut tokens, bound).unwrap() {
                    Encoded::Whole => assert!(max >= n && tokens.len() == n, "{name} {max} {n}"),
                    Encoded::TooLong(least) => {
                        assert!(max < least && least <= n, "{name} {max} {n}")
                    }
                }
            }
            let cancel = Cancel::default();
            cancel.trigger();
            let bound = Bound {
                max_tokens: None,
                cancel: Some(&cancel),
            };
            let result = tokenizer.encode_onto(&text, &mut Vec::new(), bound);
            assert!(
                matches!(result, Err(Error::Cancelled)),
                "{name}: {result:?}"
            );
        }
    }
}

#[test]
fn events_joined_are_the_decoded_text() {
    let mut rng = Rng(1);
    for name in NAMES {
        let tokenizer = tokenizer::open(&file(&format!("{name}.json"))).unwrap();
        let n = tokenizer.vocab_size();
        for _ in 0..3000 {
            let id = |rng: &mut Rng| match rng.below(2) {
                0 => rng.below(n + 3) as Token - 1,
                _ => rng.below(256) as Token,
            };
            let tokens: Vec<Token> = (0..rng.below(20)).map(|_| id(&mut rng)).collect();
            let text = tokenizer.decode(&tokens).unwrap();
            assert_eq!(
                streamed(&tokenizer, &tokens, false),
                text,
                "{name} {tokens:?}"
            );
            if !name.starts_with("spm") {
                // What Rust, Python and tokenizers make of the bytes.
                let bytes = tokens
                    .iter()
                    .flat_map(|&id| tokenizer.token_bytes(id).to_vec());
                let bytes: Vec<u8> = bytes.collect();
                assert_eq!(text, String::from_utf8_lossy(&bytes), "{name} {tokens:?}");
            }
        }
    }
}

/// The libraries themselves on random texts. `LLAMABI_TOKENIZERS_TEXTS`: how many texts for each
/// file, 1,000 unless said. `LLAMABI_TOKENIZERS_FILES`: a folder of more files, for real ones.
#[test]
fn random_texts_as_the_libraries_encode_them() {
    let Some(python) = peers::python("random texts against tokenizers and tiktoken") else {
        return;
    };
    let texts = std::env::var("LLAMABI_TOKENIZERS_TEXTS").unwrap_or("1000".into());
    let mut files: Vec<PathBuf> = NAMES
        .iter()
        .map(|name| file(&format!("{name}.json")))
        .collect();
    files.push(file("llama3.model"));
    if let Some(folder) = std::env::var_os("LLAMABI_TOKENIZERS_FILES") {
        files.extend(
            std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path()),
        );
    }
    let mut total = 0;
    for path in files {
        let mut command = std::process::Command::new(&python);
        command
            .arg("tests/formats/tokenizer_peer.py")
            .args(["77", &texts])
            .arg(&path);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let tokenizer = tokenizer::open(&path).unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let (text, ids): (String, Vec<Token>) = serde_json::from_str(line).unwrap();
            assert_eq!(
                tokenizer.encode(&text).unwrap(),
                ids,
                "{}: {text:?}",
                path.display()
            );
            total += 1;
        }
    }
    println!("{total} texts");
}
