//! Tokenizers that merge by rank: what tokenizers and tiktoken make of texts, and files that are
//! refused. `tests/data/tokenizers/make.py` wrote the cases.

use crate::checkpoints::TempDir;
use llamabi::tokenizer::model_proto::ModelProto;
use llamabi::tokenizer::{self, Bound, Detokenizer, Encoded, GgufVocabulary, Run, Tokenizer};
use llamabi::{Cancel, Error, Result, Token};
use prost::Message;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FOLDER: &str = "tests/data/tokenizers";

fn file(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(file(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<Token> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_i64().unwrap() as Token).collect()
}

/// All added tokens parsed, as transformers does.
fn special(tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
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
fn streamed(tokenizer: &Arc<dyn Tokenizer>, tokens: &[Token], special: bool) -> String {
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
fn agree(tokenizer: &Arc<dyn Tokenizer>, name: &str) {
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

const NAMES: [&str; 7] = [
    "llama3",
    "qwen2",
    "smollm",
    "gpt4o",
    "deepseek-coder",
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

/// The vocabulary of a tokenizer.json as a GGUF spells it.
fn gguf(name: &str, pre: &str) -> GgufVocabulary {
    let json = read(&format!("{name}.json"));
    let mut all: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        all.push((id.as_u64().unwrap(), text.clone(), 1));
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let kind = if token["special"].as_bool().unwrap() {
            3
        } else {
            4
        };
        let text = token["content"].as_str().unwrap().to_owned();
        all.push((token["id"].as_u64().unwrap(), text, kind));
    }
    all.sort();
    let bos = json["post_processor"]["processors"][1]["single"][0]["SpecialToken"]["id"].as_str();
    let bos_id = all
        .iter()
        .find(|(_, text, _)| Some(&text[..]) == bos)
        .map(|(id, ..)| *id as u32);
    let merge = |merge: &Value| match merge {
        Value::String(text) => text.clone(),
        pair => format!(
            "{} {}",
            pair[0].as_str().unwrap(),
            pair[1].as_str().unwrap()
        ),
    };
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        merges: json["model"]["merges"]
            .as_array()
            .unwrap()
            .iter()
            .map(merge)
            .collect(),
        types: all.iter().map(|(_, _, kind)| *kind).collect(),
        tokens: all.into_iter().map(|(_, text, _)| text).collect(),
        bos_id,
        add_bos: bos_id.map(|_| true),
        ..GgufVocabulary::default()
    }
}

#[test]
fn the_same_out_of_a_gguf() {
    for (name, pre) in [
        ("llama3", "llama-bpe"),
        ("qwen2", "qwen2"),
        ("smollm", "smollm"),
        ("gpt4o", "gpt-4o"),
        ("deepseek-coder", "deepseek-coder"),
    ] {
        agree(
            &gguf(name, pre).tokenizer(Path::new("a.gguf")).unwrap(),
            name,
        );
    }
}

/// A SentencePiece model's vocabulary as a GGUF spells it.
fn sentencepiece_gguf() -> GgufVocabulary {
    let bytes = std::fs::read("tests/data/small-tokenizer.model").unwrap();
    let proto = ModelProto::decode(&*bytes).unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    GgufVocabulary {
        model: "llama".into(),
        pre: Some("default".into()),
        tokens: proto
            .pieces
            .iter()
            .map(|piece| text(piece.piece()))
            .collect(),
        scores: proto.pieces.iter().map(|piece| piece.score()).collect(),
        types: proto
            .pieces
            .iter()
            .map(|piece| piece.r#type() as i32)
            .collect(),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        ..GgufVocabulary::default()
    }
}

#[test]
fn sentencepiece_out_of_a_gguf() {
    let model = tokenizer::open(Path::new("tests/data/small-tokenizer.model")).unwrap();
    let mut vocabulary = sentencepiece_gguf();
    for (text, kind) in [("<|im_end|>", 4), ("[PAD513]", 5)] {
        vocabulary.tokens.push(text.into());
        vocabulary.scores.push(0.0);
        vocabulary.types.push(kind);
    }
    let path = Path::new("a.gguf");
    let ours = vocabulary.tokenizer(path).unwrap();
    assert_eq!((ours.bos_id(), ours.eos_id(), ours.pad_id()), (1, 2, -1));
    assert_eq!(ours.stop_ids(), [512]);
    assert!(ours.adds_bos());
    for case in read("cases.json")["spm-prepend"]["cases"]
        .as_array()
        .unwrap()
    {
        let text = case["text"].as_str().unwrap();
        assert_eq!(
            ours.encode(text).unwrap(),
            model.encode(text).unwrap(),
            "{text:?}"
        );
    }
    assert!(
        !ours
            .encode("<|im_end|>[PAD513]")
            .unwrap()
            .iter()
            .any(|&id| id >= 512)
    );
    let parsed = special(&*ours, "<|im_end|>[PAD513]");
    assert!(parsed[0] == 512 && !parsed.contains(&513), "{parsed:?}");
    assert_eq!(ours.decode(&[512, 513]).unwrap(), "<|im_end|>");

    vocabulary.add_space_prefix = Some(false);
    let bare = vocabulary.tokenizer(path).unwrap();
    assert_eq!(bare.decode(&bare.encode("ab").unwrap()).unwrap(), "ab");
    assert_ne!(bare.encode("ab").unwrap(), ours.encode("ab").unwrap());
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
fn changed(change: impl FnOnce(&mut Value)) -> Result<Arc<dyn Tokenizer>> {
    let mut json = read("llama3.json");
    change(&mut json);
    tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes())
}

fn token(id: u32, content: &str) -> Value {
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
        ("`normalizer.normalizers[1]` is of type NFKC", |j| {
            j["normalizer"] =
                json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]});
        }),
        ("replaces a regular expression", |j| {
            j["normalizer"] =
                json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "});
        }),
        ("16 times as long", |j| {
            j["normalizer"] =
                json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(17)});
        }),
        ("`pre_tokenizer` is of type Whitespace", |j| {
            j["pre_tokenizer"] = json!({"type": "Whitespace"});
        }),
        ("`pre_tokenizer.pretokenizers[0]` has the expression", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a(?=b)".into();
        }),
        ("possessive", |j| {
            j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a?+b".into();
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
fn gguf_vocabularies_that_are_refused() {
    let refused = |change: &dyn Fn(&mut GgufVocabulary)| {
        let mut vocabulary = gguf("llama3", "llama-bpe");
        change(&mut vocabulary);
        vocabulary
            .tokenizer(Path::new("a.gguf"))
            .map(|_| ())
            .unwrap_err()
    };
    type Change = fn(&mut GgufVocabulary);
    let cases: [(bool, &str, Change); 9] = [
        (true, "`tokenizer.ggml.model` is \"bert\"", |v| {
            v.model = "bert".into()
        }),
        (true, "`tokenizer.ggml.pre` is missing", |v| v.pre = None),
        (true, "`tokenizer.ggml.pre` is default", |v| {
            v.pre = Some("default".into())
        }),
        (false, "token_type` has 3 entries, `tokens` 676", |v| {
            v.types.truncate(3)
        }),
        (false, "`tokenizer.ggml.token_type[0]` is 7", |v| {
            v.types[0] = 7
        }),
        (false, "`tokenizer.ggml.eot_token_id` is 676", |v| {
            v.eot_id = Some(676)
        }),
        (false, "`tokenizer.ggml.merges[2]` is \"abc\"", |v| {
            v.merges[2] = "abc".into()
        }),
        (false, "are both", |v| v.tokens[1] = v.tokens[0].clone()),
        (false, "`tokenizer.ggml.scores`", |v| {
            v.model = "llama".into()
        }),
    ];
    for (unsupported, words, change) in cases {
        let error = refused(&change);
        assert_eq!(
            matches!(error, Error::Unsupported(_)),
            unsupported,
            "{words}: {error}"
        );
        let sentence = error.to_string();
        assert!(
            sentence.contains(words) && sentence.contains("a.gguf"),
            "{words}: {sentence}"
        );
    }
}

#[test]
fn which_file_is_a_directorys_tokenizer() {
    let dir = TempDir::new();
    let error = tokenizer::open_in(dir.path()).map(|_| ()).unwrap_err();
    let sentence = error.to_string();
    assert!(matches!(error, Error::Io { .. }), "{sentence}");
    assert!(
        sentence.contains("tokenizer.model") && sentence.contains("tokenizer.json"),
        "{sentence}"
    );
    dir.file("tekken.json", "{}");
    let sentence = tokenizer::open_in(dir.path())
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        sentence.contains("tekken.json is not supported"),
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

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
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

/// The libraries themselves on random texts, where Python has them: `LLAMABI_TOKENIZERS_PYTHON`
/// names an interpreter with tokenizers and tiktoken of PyPI. `LLAMABI_TOKENIZERS_TEXTS`: how many
/// texts for each file, 1,000 unless said. `LLAMABI_TOKENIZERS_FILES`: a folder of more files, for
/// real ones.
#[test]
fn random_texts_as_the_libraries_encode_them() {
    let Some(python) = std::env::var_os("LLAMABI_TOKENIZERS_PYTHON") else {
        // Not `eprintln`, which the test runner keeps to itself.
        let words = "SKIPPED: random texts against tokenizers and tiktoken: LLAMABI_TOKENIZERS_PYTHON names no Python\n";
        std::io::Write::write_all(&mut std::io::stderr(), words.as_bytes()).unwrap();
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
