//! What the files beside a tokenizer say of it, and what of that a model can use.

use crate::checkpoints::{TempDir, reference, sentence};
use crate::tokenizer_ranks::{file, special};
use llamabi::llama::inspect::report;
use llamabi::log::{Level, Log};
use llamabi::tokenizer::model_proto::ModelProto;
use llamabi::tokenizer::{self, Piece, SpecialTokens};
use llamabi::{BuildOptions, Llama, Token};
use prost::Message;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

const SMALL: &str = "tests/data/small-tokenizer.model";

/// A model of 512 tokens with a tokenizer of as many, as a fine-tune that lists one token more.
fn padded() -> TempDir {
    let dir = TempDir::new();
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        let from = reference("mha-f32/hf").join(name);
        std::fs::copy(from, dir.path().join(name)).unwrap();
    }
    dir.file("added_tokens.json", json!({"<pad>": 512}).to_string());
    dir
}

#[test]
fn an_added_token_behind_the_vocabulary_is_left_out_with_a_warning() {
    let dir = padded();
    let whole = tokenizer::open_in(dir.path()).unwrap();
    assert_eq!(whole.vocab_size(), 513);
    assert_eq!(special(&*whole, "<pad>"), [512]);
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let options = BuildOptions {
        max_seq_len: 32,
        log: log.clone(),
        ..BuildOptions::default()
    };
    let llama = Llama::build(dir.path(), None, &options, &mut |_| true).unwrap();
    let mut lines = Vec::new();
    log.drain(|level, line| lines.push((level, line.to_owned())));
    let named = |line: &str| line.contains("512 tokens") && line.contains("(512 \"<pad>\")");
    let said = |(level, line): &&(Level, String)| *level == Level::Warn && named(line);
    assert_eq!(lines.iter().filter(said).count(), 1, "{lines:?}");
    let fitted = llama.tokenizer();
    assert_eq!(fitted.vocab_size(), 512);
    // A word as any other.
    let words = special(fitted, "a<pad>");
    assert!(
        words.len() > 2 && words.iter().all(|&id| id < 512),
        "{words:?}"
    );
    assert_eq!(words, whole.encode("a<pad>").unwrap());
    let mut text = String::new();
    report(dir.path(), None, &mut text).unwrap();
    assert!(
        text.lines()
            .any(|line| line.starts_with("warning") && named(line)),
        "{text}"
    );

    // A piece of the model behind it is something else.
    let other = TempDir::new();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(dir.path().join(name), other.path().join(name)).unwrap();
    }
    let wide = std::fs::read("demo/meta/tokenizer.model").unwrap();
    other.file("tokenizer.model", wide);
    other.file("added_tokens.json", json!({"<pad>": 1024}).to_string());
    let refused = Llama::build(other.path(), None, &options, &mut |_| true);
    let text = sentence(refused, other.path());
    let end = "the tokenizer has 1025 pieces, the model's vocabulary only 512";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn added_tokens_of_a_tokenizer_json_are_left_out_from_an_id_on() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    let whole = tokenizer::open(&path).unwrap();
    for path in [dir.path(), &path] {
        let below = tokenizer::open_below(path, 405).unwrap();
        assert_eq!((whole.vocab_size(), below.vocab_size()), (407, 405));
        let text = "<tool_call><think>";
        assert_eq!(special(&*whole, text), [403, 405]);
        let tokens = special(&*below, text);
        assert_eq!(tokens[0], 403);
        assert_eq!(tokens[1..], below.encode("<think>").unwrap());
    }
    // Those of the model itself stay.
    assert_eq!(tokenizer::open_below(&path, 7).unwrap().vocab_size(), 400);
}

/// A ChatML fine-tune of Llama 2: its tokenizer_config.json names another EOS than the model.
#[test]
fn tokenizer_config_names_tokens_of_a_sentencepiece_model() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", std::fs::read(SMALL).unwrap());
    let ids = || {
        let tokenizer = tokenizer::open(&path).unwrap();
        [tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()]
    };
    assert_eq!(ids(), [1, 2, -1]);
    let added = json!({"<|im_start|>": 512, "<|im_end|>": 513});
    dir.file("added_tokens.json", added.to_string());
    assert_eq!(ids(), [1, 2, -1]);
    for (config, want) in [
        (json!({"eos_token": "<|im_end|>"}), [1, 513, -1]),
        (
            json!({"bos_token": {"content": "<|im_start|>"}, "eos_token": {"content": "</s>"},
                "pad_token": "<unk>"}),
            [512, 2, 0],
        ),
        // A piece that is no added token.
        (json!({"pad_token": "<0x41>"}), [1, 2, byte_piece(b'A')]),
        (
            json!({"bos_token": null, "eos_token": "<|none|>"}),
            [1, 2, -1],
        ),
    ] {
        dir.file("tokenizer_config.json", config.to_string());
        assert_eq!(ids(), want, "{config}");
    }
}

/// As transformers 5.24 reads them: the map counts more, unless the added tokens are described.
#[test]
fn special_tokens_map_names_tokens() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", std::fs::read(SMALL).unwrap());
    let [a, b] = [b'A', b'B'].map(byte_piece);
    type Case = (Value, Value, [Token; 3]);
    let cases: [Case; 6] = [
        (json!({}), json!({"eos_token": "<0x41>"}), [1, a, -1]),
        (
            json!({"eos_token": "<0x41>", "bos_token": "<0x42>"}),
            json!({"eos_token": {"content": "<0x42>", "lstrip": false}}),
            [b, b, -1],
        ),
        (
            json!({"eos_token": "<0x41>", "added_tokens_decoder": {}}),
            json!({"eos_token": "<0x42>", "pad_token": "<0x42>"}),
            [1, a, -1],
        ),
        (
            json!({"eos_token": "<0x41>", "pad_token": "<0x41>"}),
            json!({"pad_token": "<0x42>"}),
            [1, a, b],
        ),
        // Said to be none: the model's own is left.
        (
            json!({"eos_token": "<0x41>"}),
            json!({"eos_token": null}),
            [1, 2, -1],
        ),
        (json!({}), json!({}), [1, 2, -1]),
    ];
    for (config, map, want) in cases {
        dir.file("tokenizer_config.json", config.to_string());
        dir.file("special_tokens_map.json", map.to_string());
        let tokenizer = tokenizer::open(&path).unwrap();
        let ids = [tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()];
        assert_eq!(ids, want, "{config} {map}");
    }
    // Of another kind of tokenizer, and without another file.
    let dir = TempDir::new();
    let path = dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    let map = json!({"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"});
    dir.file("special_tokens_map.json", map.to_string());
    let qwen = tokenizer::open(&path).unwrap();
    assert_eq!(qwen.special_text(qwen.eos_id()), Some("<|im_end|>"));
    assert_eq!(qwen.special_text(qwen.pad_id()), Some("<|endoftext|>"));
    dir.file("special_tokens_map.json", r#"{"eos_token": 5}"#);
    let error = tokenizer::open(&path).map(drop).unwrap_err().to_string();
    let want = "special_tokens_map.json: `eos_token` is 5, expected the text of a token";
    assert!(error.ends_with(want), "{error}");
}

/// As in transformers 5.24, which takes its word for what they are.
#[test]
fn tokenizer_config_describes_added_tokens_of_a_tokenizer_json() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.json", std::fs::read(file("qwen2.json")).unwrap());
    let plain = tokenizer::open(&path).unwrap();
    let token = |content: &str, flags: &[&str]| {
        let mut token = json!({"content": content, "special": false, "normalized": false,
            "lstrip": false, "rstrip": false, "single_word": false});
        flags.iter().for_each(|flag| token[flag] = true.into());
        token
    };
    let config = json!({"added_tokens_decoder": {
        "403": token("<tool_call>", &["special"]),
        "405": token("<think>", &["rstrip"]),
        "407": token("<new>", &["special"]),
        // These ids are others' there.
        "404": token("<other>", &[]),
        "64": token("<letter>", &[]),
        // One of the vocabulary.
        "65": token("b", &["single_word"]),
    }});
    dir.file("tokenizer_config.json", config.to_string());
    let tokenizer = tokenizer::open(&path).unwrap();
    assert_eq!((plain.vocab_size(), tokenizer.vocab_size()), (407, 408));
    let text = "a<tool_call><think>  b<new>";
    assert_eq!(special(&*tokenizer, text), [64, 403, 405, 65, 407]);
    assert_eq!(
        tokenizer.decode(&[403, 404, 405, 407]).unwrap(),
        "</tool_call><think>"
    );
    for other in ["<other>", "<letter>"] {
        assert_eq!(special(&*tokenizer, other), plain.encode(other).unwrap());
    }
    let below = tokenizer::open_below(&path, 407).unwrap();
    assert_eq!(below.vocab_size(), 407);
    assert_eq!(below.decode(&[403, 405]).unwrap(), "<think>");
}

#[test]
fn what_templates_see_of_special_tokens() {
    let dir = TempDir::new();
    let config = json!({"bos_token": "<a>", "eos_token": "<b>", "unk_token": null,
        "add_bos_token": true, "image_token": "<i>",
        "extra_special_tokens": {"boi_token": "<c>", "end": "<d>"}});
    let map = json!({"eos_token": {"content": "<e>"}, "unk_token": "<u>", "pad_token": null,
        "additional_special_tokens": ["<f>"]});
    dir.file("tokenizer_config.json", config.to_string());
    dir.file("special_tokens_map.json", map.to_string());
    let named = || {
        let tokens = SpecialTokens::read(dir.path()).unwrap().named.into_iter();
        let shown = tokens.map(|(name, text)| format!("{name}={}", text.unwrap_or("-".into())));
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        named(),
        "boi_token=<c> bos_token=<a> end=<d> eos_token=<e> image_token=<i> pad_token=- unk_token=<u>"
    );
    let mut described = config;
    described["added_tokens_decoder"] = json!({});
    dir.file("tokenizer_config.json", described.to_string());
    assert_eq!(
        named(),
        "boi_token=<c> bos_token=<a> end=<d> eos_token=<b> image_token=<i> unk_token=-"
    );
}

/// added_tokens.json does not say which tokens are special: those that another file names.
#[test]
fn added_tokens_that_are_named_are_special() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", std::fs::read(SMALL).unwrap());
    let added = json!({"<|im_end|>": 512, "<|im_start|>": 513, "<more>": 514});
    dir.file("added_tokens.json", added.to_string());
    let decoded = || {
        let tokenizer = tokenizer::open(&path).unwrap();
        tokenizer.decode(&[512, 513, 514]).unwrap()
    };
    assert_eq!(decoded(), "<|im_end|><|im_start|><more>");
    dir.file("tokenizer_config.json", r#"{"eos_token": "<|im_end|>"}"#);
    assert_eq!(decoded(), "<|im_start|><more>");
    let listed = r#"{"additional_special_tokens": ["<|im_start|>"]}"#;
    dir.file("special_tokens_map.json", listed);
    assert_eq!(decoded(), "<more>");
}

/// It would take minutes to compare each of the added tokens with each of the named ones.
#[test]
fn many_named_tokens_beside_many_added_ones() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", std::fs::read(SMALL).unwrap());
    let n = 200_000;
    let named = (0..n).map(|i| (format!("{i}_token"), Value::from(format!("<n{i}>"))));
    let named: Value = Value::Object(named.collect());
    dir.file("tokenizer_config.json", named.to_string());
    let added = (0..n).map(|i| (format!("<a{i}>"), Value::from(512 + i)));
    // Comes last, and no token may have this id.
    let added = added.chain([("~".into(), Value::from(1 << 24))]);
    dir.file(
        "added_tokens.json",
        Value::Object(added.collect()).to_string(),
    );
    let error = sentence(tokenizer::open(&path).map(|_| ()), dir.path());
    let want = "added_tokens.json: added token 16777216 has 1 bytes, expected an id below 16777216";
    assert!(error.contains(want), "{error}");
}

#[test]
fn a_sentencepiece_model_without_bos_and_eos() {
    let mut proto = ModelProto::decode(&*std::fs::read(SMALL).unwrap()).unwrap();
    for (id, text) in [(1, "<one>"), (2, "<two>")] {
        proto.pieces[id].piece = Some(text.into());
    }
    let trainer = proto.trainer_spec.get_or_insert_default();
    (trainer.bos_id, trainer.eos_id, trainer.pad_id) = (Some(-1), Some(-1), Some(-1));
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", proto.encode_to_vec());
    let tokenizer = tokenizer::open(&path).unwrap();
    let ids = [tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()];
    assert_eq!(ids, [-1, -1, -1]);
    assert!(!tokenizer.adds_bos());
    let small = tokenizer::open(Path::new(SMALL)).unwrap();
    assert_eq!(tokenizer.encode("ab").unwrap(), small.encode("ab").unwrap());
    assert_eq!(special(&*tokenizer, "<one><two>"), [1, 2]);
    // They may be named beside it.
    let config = json!({"bos_token": "<one>", "eos_token": "<two>"});
    dir.file("tokenizer_config.json", config.to_string());
    let tokenizer = tokenizer::open(&path).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_id()), (1, 2));
    assert!(tokenizer.adds_bos());
}

#[test]
fn legacy_where_nothing_is_said() {
    let dir = TempDir::new();
    let path = dir.file("tokenizer.model", std::fs::read(SMALL).unwrap());
    let ids = |config: &str| {
        dir.file("tokenizer_config.json", config);
        special(&*tokenizer::open(&path).unwrap(), "ab</s>ab")
    };
    let ([absent, yes, no], bare) = (
        ["{}", r#"{"legacy": true}"#, r#"{"legacy": false}"#].map(ids),
        special(&*tokenizer::open(Path::new(SMALL)).unwrap(), "ab</s>ab"),
    );
    assert_eq!((&absent, &bare), (&yes, &yes));
    assert_ne!(absent, no);
}

/// As `add_space_prefix` of a GGUF; what it says counts more than the model's `add_dummy_prefix`.
#[test]
fn add_prefix_space_of_tokenizer_config() {
    let bytes = std::fs::read(SMALL).unwrap();
    let mut proto = ModelProto::decode(&*bytes).unwrap();
    for (dummy, squeezes) in [(true, false), (false, false), (true, true), (false, true)] {
        let normalizer = proto.normalizer_spec.get_or_insert_default();
        normalizer.add_dummy_prefix = Some(dummy);
        normalizer.remove_extra_whitespaces = Some(squeezes);
        let dir = TempDir::new();
        let path = dir.file("tokenizer.model", proto.encode_to_vec());
        for (said, expected) in [
            (json!(null), dummy),
            (json!(false), false),
            (json!(true), true),
        ] {
            for legacy in [true, false] {
                let config = json!({"add_prefix_space": said, "legacy": legacy});
                dir.file("tokenizer_config.json", config.to_string());
                let tokenizer = tokenizer::open(&path).unwrap();
                let pieces = |text: &str| -> Vec<String> {
                    let ids = special(&*tokenizer, text);
                    let bytes = ids.iter().map(|&id| tokenizer.token_bytes_with_nul(id));
                    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().to_owned();
                    bytes.map(|bytes| text(&bytes[..bytes.len() - 1])).collect()
                };
                let what = format!("{dummy} {squeezes} {config}");
                let (front, behind) = (["", " "][usize::from(expected)], expected && legacy);
                let behind = ["", " "][usize::from(behind)];
                let want = format!("{front}ab{behind}x");
                assert_eq!(pieces("ab</s>x").concat(), want, "{what}");
                let ids = tokenizer.encode("ab").unwrap();
                assert_eq!(tokenizer.decode(&ids).unwrap(), "ab", "{what}");
                let want = if squeezes { "x" } else { " x" };
                let ids = tokenizer.encode(" x").unwrap();
                assert_eq!(tokenizer.decode(&ids).unwrap(), want, "{what}");
            }
        }
    }
}

/// The id of the small model's piece of a byte.
fn byte_piece(byte: u8) -> Token {
    let model = tokenizer::open(Path::new(SMALL)).unwrap();
    let mut ids = 0..model.vocab_size() as Token;
    ids.find(|&id| model.piece(id) == Piece::Byte(byte))
        .unwrap()
}

/// The files of a tokenizer make the same one in a directory of their own, under other names if
/// need be.
#[test]
fn the_files_of_a_tokenizer_are_those_that_it_is_made_of() {
    let dir = TempDir::new();
    let path = dir.path().join("small.model");
    std::fs::copy(SMALL, &path).unwrap();
    dir.file("tokenizer_config.json", "{\"add_bos_token\": false}");
    dir.file("special_tokens_map.json", "{}");
    dir.file("added_tokens.json", "{}");
    dir.file("letter", "dear");
    let named = |path: &Path| {
        let files = tokenizer::files(path).unwrap();
        files.into_iter().map(|(name, path)| {
            let path = path.strip_prefix(dir.path()).unwrap().to_owned();
            (name, path.to_str().unwrap().to_owned())
        })
    };
    let pairs = |pairs: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
        let own = |&(name, path): &(&'static str, &str)| (name, path.to_owned());
        pairs.iter().map(own).collect()
    };
    let beside = [
        ("tokenizer_config.json", "tokenizer_config.json"),
        ("special_tokens_map.json", "special_tokens_map.json"),
        ("added_tokens.json", "added_tokens.json"),
    ];
    let model = ("tokenizer.model", "small.model");
    let want = pairs(&[model, beside[0], beside[1], beside[2]]);
    assert!(named(&path).eq(want));
    let to = TempDir::new();
    for (name, from) in tokenizer::files(&path).unwrap() {
        std::fs::copy(from, to.path().join(name)).unwrap();
    }
    let [one, other] = [tokenizer::open(&path), tokenizer::open_in(to.path())].map(Result::unwrap);
    assert!(!one.adds_bos() && !other.adds_bos());
    assert_eq!(one.encode("once").unwrap(), other.encode("once").unwrap());

    // The other kinds read less of what is beside them.
    let json = dir.file("words.json", "{\"model\": {}}");
    assert!(named(&json).eq(pairs(&[
        ("tokenizer.json", "words.json"),
        beside[0],
        beside[1]
    ])));
    let ranks = dir.file("ranks", "YQ== 0\nYg== 1\n");
    assert!(named(&ranks).eq(pairs(&[("tokenizer.model", "ranks")])));
    assert!(!tokenizer::is_in(dir.path()) && tokenizer::is_in(to.path()));
}
