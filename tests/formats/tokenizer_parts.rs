//! Parts of a tokenizer.json around a small vocabulary. The ids are those of tokenizers 0.23.3.

use crate::tokenizer_ranks::special;
use llamabi::Token;
use llamabi::tokenizer::{self, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Of characters, without a token for what is unknown.
fn characters() -> Value {
    json!({
        "added_tokens": [],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never",
            "split": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "▁": 3}, "merges": ["a b"]},
    })
}

fn open(json: &Value) -> Arc<dyn Tokenizer> {
    tokenizer::from_bytes(Path::new("some.json"), json.to_string().as_bytes()).unwrap()
}

#[test]
fn what_vanishes_makes_neighbours_of_what_it_parts() {
    let ids = |json: &Value, text: &str| -> Vec<Token> { open(json).encode(text).unwrap() };
    let mut json = characters();
    assert_eq!(ids(&json, "a!b"), [2]);
    assert_eq!(ids(&json, "a!!b a"), [2, 3, 0]);
    json["model"]["vocab"]["<unk>"] = 4.into();
    json["model"]["unk_token"] = "<unk>".into();
    assert_eq!(ids(&json, "a!!b"), [0, 4, 4, 1]);
    json["model"]["fuse_unk"] = true.into();
    assert_eq!(ids(&json, "a!!b"), [0, 4, 1]);
}

#[test]
fn nothing_goes_in_front_of_nothing() {
    let mut json = characters();
    json["pre_tokenizer"]["prepend_scheme"] = "always".into();
    json["normalizer"] = json!({"type": "Replace", "pattern": {"String": "x"}, "content": ""});
    json["added_tokens"] =
        json!([{"id": 4, "content": "<e>", "special": true, "normalized": false}]);
    let tokenizer = open(&json);
    assert_eq!(special(&*tokenizer, "x<e>xx<e>ax"), [4, 4, 3, 0]);
    assert!(tokenizer.encode("x").unwrap().is_empty());
}
