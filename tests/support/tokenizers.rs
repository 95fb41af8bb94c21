//! Tokenizer files of 32,000 pieces, with what SentencePiece's own encoder makes of texts and
//! dialogs.

#![allow(dead_code)] // each test binary uses its part

use crate::aloud::skipped;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The project's own; `make.py` beside it trained it.
pub const WIDE: &str = "tests/data/tokenizer/tokenizer.model";

/// A tokenizer file and the folder of its cases.
pub struct Cases {
    pub tokenizer: PathBuf,
    folder: &'static str,
}

impl Cases {
    /// Each has `text`, `ids` and `decoded`.
    pub fn texts(&self) -> Vec<Value> {
        self.read("cases.json")
    }

    /// Each has `dialog` and `prompt_tokens`.
    pub fn dialogs(&self) -> Vec<Value> {
        self.read("dialogs.json")
    }

    fn read(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read(Path::new(self.folder).join(name)).unwrap();
        let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
        assert!(cases.len() >= 5);
        cases
    }
}

/// The project's tokenizer, and Llama 2's where LLAMABI_LLAMA2_TOKENIZER names that file. Meta's
/// licence keeps it out of this repository.
pub fn all_cases() -> Vec<Cases> {
    let mut all = vec![Cases {
        tokenizer: WIDE.into(),
        folder: "tests/data/tokenizer",
    }];
    match std::env::var_os("LLAMABI_LLAMA2_TOKENIZER") {
        Some(file) => all.push(Cases {
            tokenizer: file.into(),
            folder: "tests/data/llama2",
        }),
        None => skipped("the cases of Llama 2's tokenizer: LLAMABI_LLAMA2_TOKENIZER names no file"),
    }
    all
}
