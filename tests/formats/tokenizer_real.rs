//! Tokenizers of real models, which are not ours to ship: what tiktoken, tokenizers and
//! SentencePiece make of 62 texts with them (`tests/data/tokenizers/real.json` says where each is
//! published).
//!
//! `LLAMABI_REAL_TOKENIZERS` names a folder with any of the files, under the names there, or of the
//! vocabularies of llama.cpp's own tests, which are GGUF files without tensors: PyPI's sources of
//! llama_cpp_python 0.3.36 have them in `vendor/llama.cpp/models`, as `ggml-vocab-NAME.gguf` with
//! texts (`.inp`) and what transformers makes of them (`.out`).

use crate::aloud::skipped;
use llamabi::checkpoint::gguf::vocabulary;
use llamabi::format::gguf::Gguf;
use llamabi::{Token, tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use unicode_normalization::is_nfc;

/// Those of llama.cpp's vocabularies that have texts, and expressions that are known here.
const OF_LLAMA_CPP: [&str; 10] = [
    "deepseek-coder",
    "deepseek-llm",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

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
            let ids: Vec<Token> = serde_json::from_value(ids.clone()).unwrap();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
            seen += 1;
        }
    }
    for name in OF_LLAMA_CPP {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        match path.exists() {
            true => seen += of_llama_cpp(name, &path),
            false => eprintln!("{} is not there", path.display()),
        }
    }
    assert!(seen > 0, "no file of them is in {}", folder.display());
    eprintln!("{seen} texts");
}

/// How many texts the tokens of one vocabulary were compared of.
fn of_llama_cpp(name: &str, path: &Path) -> usize {
    let file = Gguf::open(path, None).unwrap();
    let tokenizer = vocabulary(&file).unwrap().tokenizer(path).unwrap();
    let read = |what: &str| std::fs::read_to_string(format!("{}.{what}", path.display()));
    let (texts, ids) = (read("inp").unwrap(), read("out").unwrap());
    let texts: Vec<&str> = texts.split_terminator("\n__ggml_vocab_test__\n").collect();
    assert_eq!(texts.len(), ids.lines().count(), "{name}");
    let mut seen = 0;
    for (text, ids) in texts.into_iter().zip(ids.lines()) {
        // Of this one llama.cpp has its own tokens, without the NFC that Qwen's models have.
        if name == "qwen35" && !is_nfc(text) {
            continue;
        }
        let ids = ids.split_whitespace().map(|id| id.parse().unwrap());
        let ids: Vec<Token> = ids.collect();
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{name}: {text:?}");
        seen += 1;
    }
    seen
}
