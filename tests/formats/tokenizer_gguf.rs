//! Tokenizers out of GGUF vocabularies: the same tokens as out of their own files, and vocabularies
//! that are refused.

use crate::checkpoints::TempDir;
use crate::checkpoints::gguf::{File, text, texts};
use crate::tokenizer_ranks::{agree, read, special};
use llamabi::Error;
use llamabi::checkpoint::gguf::vocabulary;
use llamabi::format::gguf::Gguf;
use llamabi::tokenizer::model_proto::{MAX_PIECES, ModelProto};
use llamabi::tokenizer::{self, GgufVocabulary};
use prost::Message;
use serde_json::Value;
use std::path::Path;

/// The vocabulary of a tokenizer.json as a GGUF spells it.
pub fn gguf(name: &str, pre: &str) -> GgufVocabulary {
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
        ("llama3", "midm-2.0"),
        ("qwen2", "qwen2"),
        ("smollm", "smollm"),
        ("smollm", "minerva-7b"),
        ("gpt4o", "gpt-4o"),
        ("deepseek-coder", "deepseek-coder"),
        ("hunyuan", "hunyuan-dense"),
        ("hunyuan", "deepseek-v3"),
        ("seed", "seed-coder"),
    ] {
        agree(
            &gguf(name, pre).tokenizer(Path::new("a.gguf")).unwrap(),
            name,
        );
    }
}

#[test]
fn names_of_the_same_split() {
    // Two digits together tell the splits apart.
    let named = |pre: &str| {
        let mut vocabulary = gguf("smollm", pre);
        vocabulary.tokens.push("12".into());
        vocabulary.types.push(1);
        vocabulary.merges.push("1 2".into());
        vocabulary.tokenizer(Path::new("a.gguf")).unwrap()
    };
    let texts = ["it's 12345 12", "a\n\n  b 12", "   ¾x²  "];
    let all = |pre: &str| texts.map(|text| named(pre).encode(text).unwrap());
    for (names, like) in [
        (["olmo", "mellum", "a.x-4.0", "trillion"], "gpt-2"),
        (["smollm", "starcoder", "refact", "minerva-7b"], "smollm"),
    ] {
        for name in names {
            assert_eq!(all(name), all(like), "{name}");
        }
    }
    assert_ne!(all("gpt-2"), all("smollm"));
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
    // The converter took it from tokenizer_config.json.
    let dir = TempDir::new();
    let small = std::fs::read("tests/data/small-tokenizer.model").unwrap();
    let path = dir.file("tokenizer.model", small);
    dir.file("tokenizer_config.json", r#"{"add_prefix_space": false}"#);
    let model = tokenizer::open(&path).unwrap();
    for text in ["ab", " ab", "</s>ab", "a </s> b\n</s>"] {
        let ids = special(&*bare, text);
        assert_eq!(ids, special(&*model, text), "{text:?}");
        assert_eq!(bare.decode(&ids).unwrap(), model.decode(&ids).unwrap());
    }
}

/// As in Phi-3's own tokenizer.json, white space behind a turn's tokens belongs to them.
#[test]
fn special_tokens_of_phi3_take_the_space_behind_them() {
    let mut vocabulary = sentencepiece_gguf();
    for (text, kind) in [("<|end|>", 3), ("<|user|>", 4), ("<|endoftext|>", 3)] {
        vocabulary.tokens.push(text.into());
        vocabulary.scores.push(0.0);
        vocabulary.types.push(kind);
    }
    let path = Path::new("a.gguf");
    let plain = vocabulary.tokenizer(path).unwrap();
    vocabulary.is_phi3 = true;
    let phi3 = vocabulary.tokenizer(path).unwrap();
    for (text, ids) in [
        ("<|end|>\n<|user|>", &[512, 513][..]),
        ("<|user|> \n\t<|end|>\n", &[513, 512]),
        ("</s>  <|end|>", &[2, 512]),
    ] {
        assert_eq!(special(&*phi3, text), ids, "{text:?}");
        assert!(special(&*plain, text).len() > ids.len(), "{text:?}");
    }
    for text in [
        "<s>\n<|end|>",
        "<unk> <|end|>",
        "<|endoftext|>\n<|end|>",
        "<|end|>a\n<|end|>",
    ] {
        assert_eq!(special(&*phi3, text), special(&*plain, text), "{text:?}");
    }
    assert_eq!(special(&*phi3, "<|end|>").len(), 1);
    // A text that no template wrote has no such tokens.
    let text = "<|end|>\n<|user|>";
    assert_eq!(phi3.encode(text).unwrap(), plain.encode(text).unwrap());
}

#[test]
fn the_architecture_of_a_file_is_phi3_or_another() {
    for (name, is_phi3) in [("phi3", true), ("llama", false)] {
        let dir = TempDir::new();
        let file = File::default()
            .key("general.architecture", text(name))
            .key("tokenizer.ggml.model", text("llama"))
            .key("tokenizer.ggml.tokens", texts(&["<unk>", "<s>"]));
        let path = dir.file("a.gguf", file.bytes());
        let file = Gguf::open(&path, None).unwrap();
        assert_eq!(vocabulary(&file).unwrap().is_phi3, is_phi3, "{name}");
    }
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

/// It would take minutes to compare each of these tokens, which end a turn, with each other one.
#[test]
fn many_tokens_that_end_a_turn_are_refused() {
    let refused = |n: usize| {
        let vocabulary = GgufVocabulary {
            model: "llama".into(),
            tokens: vec!["<|end|>".into(); n],
            scores: vec![0.0; n],
            types: vec![3; n],
            ..GgufVocabulary::default()
        };
        let refused = vocabulary.tokenizer(Path::new("a.gguf")).map(|_| ());
        refused.unwrap_err().to_string()
    };
    let text = refused(MAX_PIECES);
    assert!(
        text.ends_with("pieces 0 and 1 are both \"<|end|>\""),
        "{text}"
    );
    let text = refused(MAX_PIECES + 1);
    let end = "1048577 pieces, at most 1048576 are supported";
    assert!(text.ends_with(end), "{text}");
}
