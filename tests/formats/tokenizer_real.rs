//! Tokenizers of real models, which are not ours to ship: what tiktoken, tokenizers and
//! SentencePiece make of 62 texts with them (`tests/data/tokenizers/real.json` says where each is
//! published).
//!
//! `LLAMABI_REAL_TOKENIZERS` names a folder with any of the files, under the names there.

use crate::aloud::skipped;
use llamabi::tokenizer;
use serde_json::Value;
use std::path::{Path, PathBuf};

#[test]
fn real_vocabularies_encode_as_their_own_libraries() {
    let Some(folder) = std::env::var_os("LLAMABI_REAL_TOKENIZERS").map(PathBuf::from) else {
        return skipped("tokenizers of real models: LLAMABI_REAL_TOKENIZERS names no folder");
    };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers/real.json");
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(cases).unwrap()).unwrap();
    let mut seen = 0;
    for (name, of_file) in cases.as_object().unwrap() {
        let path = folder.join(name);
        if !path.exists() {
            eprintln!("{name} is not there: {}", of_file["source"]);
            continue;
        }
        let tokenizer = tokenizer::open(&path).unwrap();
        for case in of_file["cases"].as_array().unwrap() {
            let (text, ids) = (case[0].as_str().unwrap(), &case[1]);
            let ids: Vec<i32> = serde_json::from_value(ids.clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            seen += 1;
        }
    }
    assert!(seen >= 62, "no file of them is in {}", folder.display());
    eprintln!("{seen} texts");
}
