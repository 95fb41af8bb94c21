#![no_main]
//! A source of a grammar: its first byte says of which kind. What compiles is followed for some
//! tokens, chosen by the source itself.
use llamabi::Token;
use llamabi::grammar::{Cursor, Grammars, Source};
use llamabi::tokenizer::{self, Tokenizer};
use std::path::Path;
use std::sync::{Arc, LazyLock};

static KIT: LazyLock<(Arc<dyn Tokenizer>, Grammars)> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/meta/tokenizer.model");
    let tokenizer = tokenizer::open(&path).unwrap();
    let grammars = Grammars::new(tokenizer.vocab_size(), vec![tokenizer.eos_id()]);
    (tokenizer, grammars)
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((kind, source)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(source) else { return };
    let source = match kind % 4 {
        0 => Source::JsonSchema(text),
        1 => Source::Regex(text),
        2 => Source::Lark(text),
        _ => Source::Choice(text),
    };
    let (tokenizer, grammars) = &*KIT;
    let Ok(grammar) = grammars.compile(&**tokenizer, source) else { return };
    let grammar = Arc::new(grammar);
    let (mut cursor, mut mask) = (Cursor::new(&grammar), vec![0; grammar.mask_words()]);
    for byte in text.bytes().take(50) {
        if cursor.mask_to_generate(&mut mask).is_err() {
            return;
        }
        let is_allowed = |t: &Token| mask[*t as usize / 32] >> (t % 32) & 1 == 1;
        let allowed: Vec<Token> = (0..tokenizer.vocab_size() as Token).filter(is_allowed).collect();
        let Some(&token) = allowed.get(byte as usize % allowed.len().max(1)) else { return };
        if token == tokenizer.eos_id() || !matches!(cursor.take(token), Ok(true)) || !matches!(cursor.is_complete(), Ok(false)) {
            return;
        }
    }
});
