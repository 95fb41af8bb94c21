//! Files of tokenizers that merge by rank which are refused, and which of several files counts.

use crate::checkpoints::TempDir;
use crate::tokenizer_ranks::{changed, file, read, special, token};
use llamabi::{Error, Token, tokenizer};
use serde_json::{Value, json};
use std::path::Path;

#[test]
fn what_is_not_supported_is_named() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 16] = [
        ("`model.type` is Unigram", |j| {
            j["model"]["type"] = "Unigram".into()
        }),
        ("`model.dropout` is 0.1", |j| {
            j["model"]["dropout"] = 0.1.into()
        }),
        ("`model.end_of_word_suffix` is \"</w>\"", |j| {
            j["model"]["end_of_word_suffix"] = "</w>".into();
        }),
        ("`normalizer` is of type Lowercase", |j| {
            j["normalizer"] = json!({"type": "Lowercase"})
        }),
        ("`normalizer.normalizers[1]` is of type NFKD", |j| {
            j["normalizer"] =
                json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKD"}]});
        }),
        ("replaces a regular expression", |j| {
            j["normalizer"] =
                json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "});
        }),
        ("16 times as long", |j| {
            j["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(17)});
        }),
        ("`pre_tokenizer` is of type UnicodeScripts", |j| {
            j["pre_tokenizer"] = json!({"type": "UnicodeScripts"});
        }),
        ("`pre_tokenizer.pretokenizers[0]` has the expression", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a(?=b)".into();
        }),
        ("possessive", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a?+a".into();
        }),
        ("matches an empty text", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a*".into();
        }),
        ("behavior MergedWithNext", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext".into();
        }),
        (
            "`pre_tokenizer.pretokenizers[1]` has `add_prefix_space`",
            |j| {
                j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true.into();
            },
        ),
        ("`decoder` is of type WordPiece", |j| {
            j["decoder"] = json!({"type": "WordPiece"})
        }),
        ("`post_processor` is of type BertProcessing", |j| {
            j["post_processor"] = json!({"type": "BertProcessing"});
        }),
        ("unknown field `surprise`", |j| j["surprise"] = 1.into()),
    ];
    for (words, change) in cases {
        let error = changed(change).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{words}: {error}");
        let sentence = error.to_string();
        assert!(
            sentence.contains(words) && sentence.contains("some.json"),
            "{words}: {sentence}"
        );
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 9] = [
        ("both have id 7", |j| {
            j["model"]["vocab"]["a new one"] = 7.into()
        }),
        ("`model.merges[0]` joins", |j| {
            j["model"]["merges"][0] = json!(["zz", "q"])
        }),
        ("`model.merges[1]` joins", |j| {
            j["model"]["merges"][1] = json!(["!", "\""])
        }),
        ("one space between", |j| {
            j["model"]["merges"][0] = "a b c".into()
        }),
        ("not of two tokens", |j| {
            j["model"]["merges"][0] = json!(["a"])
        }),
        ("id below 16777216", |j| {
            j["model"]["vocab"]["a new one"] = (1 << 24).into()
        }),
        ("not a tokenizer.json", |j| {
            j["model"]["vocab"]["a new one"] = (-1).into()
        }),
        ("both \"<|eot_id|>\"", |j| {
            j["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(token(700, "<|eot_id|>"));
        }),
        ("both have id 5", |j| {
            j["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(token(5, "five"));
        }),
    ];
    for (words, change) in cases {
        let error = changed(change).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{words}: {error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    // An added token may repeat an entry.
    let space = changed(|j| {
        let id = j["model"]["vocab"]["a"].as_u64().unwrap() as u32;
        j["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(token(id, "a"));
    });
    assert_eq!(
        space
            .unwrap()
            .decode(&special(&*changed(|_| ()).unwrap(), "a"))
            .unwrap(),
        "a"
    );
}

#[test]
fn tiktoken_files_that_are_refused() {
    let good = std::fs::read_to_string(file("llama3.model")).unwrap();
    let parse = |text: &str| {
        let result = tokenizer::from_bytes(Path::new("some.model"), text.as_bytes());
        result.map(|_| ()).unwrap_err()
    };
    let swapped = good.replacen(" 300\n", " 301\n", 1);
    let twice = good.replacen("Ig== 1\n", "IQ== 1\n", 1);
    let cases = [
        (swapped, "line 301: expected the rank 300"),
        (twice, "ranks 0 and 1 are the same token"),
        ("IQ== 0\nIg== 1\n".into(), "no rank is the single byte 0x00"),
        ("IQ== 0\nIg== one\n".into(), "line 2: expected the rank 1"),
        ("IQ== 0\nIg=\n".into(), "line 2: no space"),
        (
            "IQ== 0\nI=== 1\n".into(),
            "line 2: the token is not in base64",
        ),
        (
            format!("IQ== 0\n{} 1\n", "QUFB".repeat(30_000)),
            "a token of 90000 bytes",
        ),
    ];
    for (text, words) in cases {
        let error = parse(&text);
        assert!(matches!(error, Error::Format { .. }), "{words}: {error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let llama4: String = (0..200_000_u32)
        .map(|rank| {
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            let digit = |shift: u32| char::from(digits[(rank >> shift) as usize & 63]);
            format!(
                "{}{}{}{} {rank}\n",
                digit(18),
                digit(12),
                digit(6),
                digit(0)
            )
        })
        .collect();
    let error = parse(&llama4);
    assert!(
        matches!(error, Error::Unsupported(_)) && error.to_string().contains("Llama 4"),
        "{error}"
    );
}

#[test]
fn which_file_is_a_directorys_tokenizer() {
    let dir = TempDir::new();
    let error = tokenizer::open_in(dir.path()).map(|_| ()).unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, Error::Io { .. }), "{sentence}");
    assert!(
        sentence.contains("no tokenizer.model, tokenizer.json or tekken.json"),
        "{sentence}"
    );
    dir.file("vocab.json", "{}");
    let sentence = tokenizer::open_in(dir.path())
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        sentence.contains("vocab.json and merges.txt are not supported"),
        "{sentence}"
    );

    // Llama 3's ranks give way to the tokenizer.json beside them, SentencePiece's model does not.
    dir.file(
        "tokenizer.model",
        std::fs::read(file("llama3.model")).unwrap(),
    );
    assert_eq!(tokenizer::open_in(dir.path()).unwrap().vocab_size(), 676);
    dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    assert_eq!(tokenizer::open_in(dir.path()).unwrap().vocab_size(), 407);
    let small = std::fs::read("tests/data/small-tokenizer.model").unwrap();
    dir.file("tokenizer.model", &small);
    let spm = read("spm-prepend.json");
    dir.file("tokenizer.json", spm.to_string());
    let model = tokenizer::open_in(dir.path()).unwrap();
    assert_eq!(model.vocab_size(), 512);

    // What a fine-tune appended.
    let config = json!({
        "legacy": false,
        "add_bos_token": false,
        "added_tokens_decoder": {"514": {"content": "<|im_end|>", "special": true}},
    });
    dir.file("tokenizer_config.json", config.to_string());
    dir.file(
        "added_tokens.json",
        json!({"<|im_start|>": 513}).to_string(),
    );
    let tuned = tokenizer::open_in(dir.path()).unwrap();
    assert_eq!(tuned.vocab_size(), 515);
    assert!(!tuned.adds_bos());
    let tokens = special(&*tuned, "<|im_start|>ab<|im_end|>");
    // Without the space that would stand for a text's start.
    let bare: Vec<Token> = model.encode("ab").unwrap();
    assert!(
        tokens[0] == 513 && tokens[tokens.len() - 1] == 514,
        "{tokens:?}"
    );
    assert_ne!(tokens[1..tokens.len() - 1], bare);
    assert_eq!(tuned.decode(&tokens[1..]).unwrap(), "ab");
    assert_eq!(tuned.decode(&[512, 513, 514]).unwrap(), "<|im_start|>");
    assert_eq!(
        tuned.encode("x<|im_end|>").unwrap(),
        model.encode("x<|im_end|>").unwrap()
    );

    // Two files that disagree about an id.
    dir.file("added_tokens.json", json!({"<|other|>": 514}).to_string());
    let error = tokenizer::open_in(dir.path()).map(|_| ()).unwrap_err();
    assert!(
        matches!(error, Error::Format { .. }) && error.to_string().contains("514"),
        "{error}"
    );
    dir.file("added_tokens.json", json!({"<|other|>": 300}).to_string());
    let error = tokenizer::open_in(dir.path()).map(|_| ()).unwrap_err();
    assert!(
        matches!(error, Error::Format { .. }) && error.to_string().contains("300"),
        "{error}"
    );
}

#[test]
fn what_tokenizer_config_names() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    let qwen = tokenizer::open(&path).unwrap();
    assert_eq!((qwen.bos_id(), qwen.eos_id(), qwen.pad_id()), (-1, -1, -1));
    let config = json!({
        "bos_token": null,
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
        "chat_template": "{{ x }}",
    });
    dir.file("tokenizer_config.json", config.to_string());
    let qwen = tokenizer::open(&path).unwrap();
    assert_eq!(qwen.bos_id(), -1);
    assert_eq!(qwen.special_text(qwen.eos_id()), Some("<|im_end|>"));
    assert_eq!(qwen.special_text(qwen.pad_id()), Some("<|endoftext|>"));
    assert!(!qwen.adds_bos());
    dir.file("tokenizer_config.json", "{");
    let error = tokenizer::open(&path).map(|_| ()).unwrap_err();
    assert!(
        error.to_string().contains("tokenizer_config.json"),
        "{error}"
    );
}
