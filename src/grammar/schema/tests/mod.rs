//! Checks which language the parser's schema describes.

mod parts;
mod values;

use crate::grammar::{Cursor, Grammar, Grammars, Source};
use crate::tokenizer::{self, Tokenizer};
use std::path::Path;
use std::sync::Arc;

struct Kit {
    tokenizer: Arc<dyn Tokenizer>,
    grammars: Grammars,
}

impl Kit {
    fn new() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tokenizer = tokenizer::open_in(&root.join("demo/meta")).unwrap();
        let grammars = Grammars::new(tokenizer.vocab_size(), vec![tokenizer.eos_id()]);
        Self {
            tokenizer,
            grammars,
        }
    }

    fn grammar(&self, schema: &str) -> Arc<Grammar> {
        let source = Source::JsonSchema(schema);
        let grammar = self.grammars.compile(&*self.tokenizer, source);
        Arc::new(grammar.unwrap_or_else(|e| panic!("{schema}: {e}")))
    }

    /// Checks that the texts `taken` belong to a schema's language, and that `refused` do not.
    fn check(&self, schema: &str, taken: &[&str], refused: &[&str]) {
        let grammar = self.grammar(schema);
        let all = taken.iter().map(|text| (text, true));
        for (text, expected) in all.chain(refused.iter().map(|text| (text, false))) {
            let mut cursor = Cursor::new(&grammar).unwrap();
            let mut tokens = self.tokenizer.encode(text).unwrap().into_iter();
            let is_taken = tokens
                .all(|token| token == self.tokenizer.bos_id() || cursor.take(token).unwrap())
                && cursor.accepts().unwrap();
            assert_eq!(is_taken, expected, "{schema}: {text}");
        }
    }

    /// Checks that a schema is refused, with a message that contains `words`.
    fn refuse(&self, schema: &str, words: &str) {
        let source = Source::JsonSchema(schema);
        match self.grammars.compile(&*self.tokenizer, source) {
            Ok(_) => panic!("{schema} is taken"),
            Err(error) => assert!(error.to_string().contains(words), "{schema}: {error}"),
        }
    }
}
