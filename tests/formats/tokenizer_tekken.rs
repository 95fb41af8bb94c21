//! Mistral's tekken.json, made of the small ranks of Llama 3's kind.

use crate::checkpoints::TempDir;
use crate::tokenizer_ranks::{file, read, special};
use llamabi::tokenizer::{self, Piece, Tokenizer};
use llamabi::{Error, Result, Token};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// The tokens of llama3.model behind forty special ones, with its expression.
fn tekken() -> Value {
    let ranks = std::fs::read_to_string(file("llama3.model")).unwrap();
    let entry = |(rank, line): (usize, &str)| {
        let token = line.split(' ').next().unwrap();
        json!({"rank": rank, "token_bytes": token, "token_str": null})
    };
    let vocab: Vec<Value> = ranks.lines().enumerate().map(entry).collect();
    let split = &read("llama3.json")["pre_tokenizer"]["pretokenizers"][0];
    json!({
        "config": {
            "pattern": split["pattern"]["Regex"],
            "num_vocab_tokens": vocab.len(),
            "default_vocab_size": vocab.len() + 40,
            "default_num_special_tokens": 40,
            "version": "v3",
        },
        "vocab": vocab,
        "image": {"image_patch_size": 14},
    })
}

fn open(json: &Value) -> Result<Arc<dyn Tokenizer>> {
    tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes())
}

#[test]
fn ids_are_the_ranks_behind_the_special_tokens() {
    let model = tokenizer::open(&file("llama3.model")).unwrap();
    let json = tekken();
    let ours = open(&json).unwrap();
    assert_eq!(
        ours.vocab_size(),
        json["vocab"].as_array().unwrap().len() + 40
    );
    for case in read("cases.json")["llama3"]["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids = ours.encode(text).unwrap();
        let ranks: Vec<Token> = ids.iter().map(|id| id - 40).collect();
        assert_eq!(ranks, model.encode(text).unwrap(), "{text:?}");
        assert_eq!(ours.decode(&ids).unwrap(), text);
    }
}

#[test]
fn what_the_pattern_does_not_match_is_dropped() {
    let mut json = tekken();
    let all = open(&json).unwrap();
    json["config"]["pattern"] = r"\p{L}+|[0-9]".into();
    let ours = open(&json).unwrap();
    for (text, left) in [("ab, cd 12", "abcd12"), ("?!", ""), ("", "")] {
        let ids = ours.encode(text).unwrap();
        assert_eq!(ours.decode(&ids).unwrap(), left);
    }
    assert_eq!(all.decode(&all.encode("ab, ?").unwrap()).unwrap(), "ab, ?");
}

#[test]
fn special_tokens_are_those_of_the_file_or_of_its_version() {
    let mut json = tekken();
    let ours = open(&json).unwrap();
    assert_eq!((ours.bos_id(), ours.eos_id(), ours.pad_id()), (1, 2, 11));
    assert!(ours.adds_bos());
    let text = "<s>[INST]a[/SYSTEM_PROMPT]<SPECIAL_20><SPECIAL_39>";
    let ids = special(&*ours, text);
    assert_eq!(ids[..2], [1, 3]);
    assert_eq!(ids[3..], [18, 20, 39]);
    assert_eq!(ours.decode(&ids).unwrap(), "a");
    assert_eq!(ours.special_text(39), Some("<SPECIAL_39>"));
    assert!(ours.encode(text).unwrap().iter().all(|&id| id >= 40));

    // The list of tokens may be longer than the vocabulary.
    json["config"]["default_vocab_size"] = 330.into();
    json["config"]["version"] = "v13".into();
    json["special_tokens"] = json!([
        {"rank": 0, "token_str": "</s>", "is_control": true},
        {"rank": 1, "token_str": "[THINK]", "is_control": false},
    ]);
    let ours = open(&json).unwrap();
    assert_eq!(ours.vocab_size(), 330);
    assert_eq!((ours.bos_id(), ours.eos_id(), ours.pad_id()), (-1, 0, -1));
    assert!(!ours.adds_bos());
    assert_eq!(special(&*ours, "[THINK]<SPECIAL_2></s>"), [1, 2, 0]);
    assert_eq!(ours.piece(1), Piece::Control);
}

#[test]
fn tekken_files_that_are_refused() {
    type Change = fn(&mut Value);
    let cases: [(bool, &str, Change); 15] = [
        (
            true,
            "`config.version` is \"v99\", expected one of v1, ",
            |j| j["config"]["version"] = "v99".into(),
        ),
        (true, r"`config.pattern` is \w+: it has \w", |j| {
            j["config"]["pattern"] = r"\w+".into()
        }),
        (true, "`config.pattern` is a(?=b): look-around", |j| {
            j["config"]["pattern"] = "a(?=b)".into()
        }),
        (true, r"`config.pattern` is \s+$: it has \s+$", |j| {
            j["config"]["pattern"] = r"\s+$".into()
        }),
        (false, "its 1220 ranks have more than 281664 merges", |j| {
            let vocab = j["vocab"].as_array_mut().unwrap();
            for n in 1..=800 {
                let bytes = "////".repeat(n);
                vocab.push(json!({"rank": vocab.len(), "token_bytes": bytes}));
            }
            j["config"]["default_vocab_size"] = (vocab.len() + 40).into();
        }),
        (
            false,
            "no `special_tokens`, which files of version v11 with 40 of them",
            |j| j["config"]["version"] = "v11".into(),
        ),
        (
            false,
            "no `special_tokens`, which files of version v3 with 19 of them",
            |j| {
                j["config"]["default_num_special_tokens"] = 19.into();
            },
        ),
        (false, "`special_tokens[0]` has the rank 1", |j| {
            j["special_tokens"] = json!([{"rank": 1, "token_str": "<s>"}]);
        }),
        (
            false,
            "`special_tokens[0]` has the rank 0 and 0 bytes",
            |j| {
                j["special_tokens"] = json!([{"rank": 0, "token_str": ""}]);
            },
        ),
        (false, "\"<SPECIAL_1>\"", |j| {
            j["special_tokens"] = json!([{"rank": 0, "token_str": "<SPECIAL_1>"}]);
        }),
        (
            false,
            "`config.default_num_special_tokens` is 4097, at most 4096",
            |j| {
                j["config"]["default_num_special_tokens"] = 4097.into();
            },
        ),
        (
            false,
            "`config.default_vocab_size` is 461, there are 40 special tokens and 420",
            |j| {
                j["config"]["default_vocab_size"] = 461.into();
            },
        ),
        (false, "`vocab[300]` has the rank 301", |j| {
            j["vocab"][300]["rank"] = 301.into()
        }),
        (false, "`vocab[300]` is not in base64", |j| {
            j["vocab"][300]["token_bytes"] = "=".into()
        }),
        (false, "ranks 299 and 300 are the same token", |j| {
            j["vocab"][300]["token_bytes"] = j["vocab"][299]["token_bytes"].clone();
        }),
    ];
    for (unsupported, words, change) in cases {
        let mut json = tekken();
        change(&mut json);
        let error = open(&json).map(|_| ()).unwrap_err();
        let is_unsupported = matches!(error, Error::Unsupported(_));
        assert_eq!(is_unsupported, unsupported, "{words}: {error}");
        let sentence = error.to_string();
        assert!(
            sentence.contains(words) && sentence.contains("some.json"),
            "{words}: {sentence}"
        );
    }
}

#[test]
fn a_directory_with_nothing_else() {
    let dir = TempDir::new();
    let path = dir.file("tekken.json", tekken().to_string());
    assert!(tokenizer::is_in(dir.path()));
    let ours = tokenizer::open_in(dir.path()).unwrap();
    assert_eq!((ours.bos_id(), ours.vocab_size()), (1, 460));
    let other = dir.path().join("other");
    std::fs::rename(&path, &other).unwrap();
    let files = tokenizer::files(&other).unwrap();
    assert_eq!(files, [("tekken.json", other)]);
    dir.file("tekken.json", tekken().to_string());
    dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    assert_eq!(tokenizer::open_in(dir.path()).unwrap().vocab_size(), 407);
}
