//! Grammars: which tokens may follow, so that the whole text belongs to a language.
//!
//! The parser is the crate llguidance. This module adapts it to our tokenizers, threads and errors:
//!
//! | file | what it knows |
//! |---|---|
//! | `source` | JSON Schema, regular expression, Lark, choices: in the form that the parser takes |
//! | `vocabulary` | the tokens of a handle, in the parser's form |
//! | `cursor` | how far one text has come |
//! | `scout` | the texts that a grammar forces |
//! | `parser` | one parser, and the memory of all of them |
//! | `walker` | masks: learns what depends on a lexer state alone when it meets the state again |
//! | `tree` | the bytes of all tokens, as a tree |
//! | `schema` | translates what a JSON Schema says into a schema that the parser can read |
//! | `quiet` | a panic hook that does not print the parser's panics |
//!
//! The grammar matches the text that is returned. A tokenizer of SentencePiece's kind drops the
//! space at the beginning of a text. So for such a tokenizer the language is compiled behind a
//! space. This space may be missing, unless the language itself may begin with a space.
//!
//! The parser recurses over what callers wrote. So all of its work is done on our own threads,
//! which have a large enough stack.

mod cursor;
mod parser;
mod quiet;
mod schema;
mod scout;
mod source;
mod tree;
mod vocabulary;
mod walker;

pub use cursor::Cursor;
pub use scout::Scout;
pub use source::{MAX_LARK_LEVELS, MAX_SCHEMA_LEVELS, Source};
pub use vocabulary::Vocabulary;

use crate::error::panic_text;
use crate::thread::apart;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result, Token, reserve};
use cursor::sentence;
use parser::{Account, Parser};
use quiet::{Quiet, quietly};
use source::{Checked, Space, check_size, levels};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// The most bytes of a grammar's source.
pub const MAX_SOURCE: usize = 1 << 20;

/// Stack size of a thread that parses, in bytes.
pub(crate) const STACK_BYTES: usize = 16 << 20;

/// Stack that is added for each of [`source::levels`], in bytes. At most half of it was seen to be
/// used.
const LEVEL_BYTES: usize = 8 << 10;

/// Memory that must be available before a grammar is compiled, because the parser cannot report a
/// failed allocation. It is roughly what the parser takes for a grammar as large as its limits
/// allow. While a text goes on, we check now and then that as much is available ([`Cursor`]). A
/// step takes less. But glibc maps and unmaps an allocation of this size; one of less than 32 MiB
/// would change where glibc takes all later allocations from.
const WORK_BYTES: usize = 64 << 20;

/// The most bytes that all grammars of a handle and all texts in them have together.
/// [`SHARE_BYTES`] for each text come on top.
pub const MOST_BYTES: usize = 1 << 30;

/// Bytes that a text and its parser may have, whatever the others have.
pub const SHARE_BYTES: usize = 16 << 20;

/// A compiled language. It does not change for those who have it.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// A parser that is never run. So it has no error, and a text can always start again from it.
    prototype: Mutex<Parser>,
    working: Mutex<Working>,
}

/// The parser that sequences clone. The clones share what it has learnt of the vocabulary.
#[derive(Default)]
struct Working {
    /// If there is none, the next sequence that begins makes it.
    parser: Option<Parser>,
    /// How many times a parser was given up because it had failed.
    generation: u64,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grammar")
    }
}

/// Makes grammars for one tokenizer.
pub struct Grammars {
    vocab_size: usize,
    eos_ids: Vec<Token>,
    vocabulary: Mutex<Option<Arc<Vocabulary>>>,
    account: Arc<Account>,
}

impl Grammars {
    /// For a model whose ids are below `vocab_size`. `eos_ids` are those that end a sequence.
    pub fn new(vocab_size: usize, eos_ids: Vec<Token>) -> Self {
        Self {
            vocab_size,
            eos_ids,
            vocabulary: Mutex::new(None),
            account: Arc::new(Account::new(MOST_BYTES, SHARE_BYTES)),
        }
    }

    /// Compiles a language.
    ///
    /// Errors:
    /// - [`Error::Grammar`] with the parser's message if it refuses the source, or if the source is
    ///   too much for it.
    /// - [`Error::InvalidArgument`] if the source is longer than [`MAX_SOURCE`].
    /// - [`Error::NoMemory`] if the grammars of the handle need too much memory together.
    /// - [`Error::Refused`] if the system gives no memory, [`Error::Thread`] if it gives no thread.
    /// - [`Error::Unsupported`] if the parser cannot use the tokenizer.
    pub fn compile(&self, tokenizer: &dyn Tokenizer, source: Source<'_>) -> Result<Grammar> {
        check_size(source)?;
        let deep = levels(source) * LEVEL_BYTES;
        reserve::headroom("compiling a grammar", WORK_BYTES + deep)?;
        on_a_large_stack(STACK_BYTES + deep, || {
            let checked = Checked::new(source)?;
            let bytes = source.len();
            Grammar::new(self.vocabulary(tokenizer)?, &checked, bytes, &self.account)
        })
    }

    /// Whether `grammar` was made here.
    pub fn made(&self, grammar: &Grammar) -> bool {
        let vocabulary = lock(&self.vocabulary);
        let ours = vocabulary.as_ref();
        ours.is_some_and(|ours| Arc::ptr_eq(ours, &grammar.vocabulary))
    }

    fn vocabulary(&self, tokenizer: &dyn Tokenizer) -> Result<Arc<Vocabulary>> {
        let mut vocabulary = lock(&self.vocabulary);
        match &*vocabulary {
            Some(vocabulary) => Ok(vocabulary.clone()),
            None => {
                let new = Vocabulary::new(tokenizer, self.vocab_size, &self.eos_ids)?;
                Ok(vocabulary.insert(Arc::new(new)).clone())
            }
        }
    }
}

impl Grammar {
    /// `bytes`: length of the source.
    fn new(
        vocabulary: Arc<Vocabulary>,
        source: &Checked,
        bytes: usize,
        account: &Arc<Account>,
    ) -> Result<Self> {
        let compile = |space| -> Result<Parser> {
            let parser = vocabulary.factory.create_parser(source.behind(space));
            let parser = parser.map_err(|e| Error::Grammar(sentence(&e.to_string())))?;
            let walker = vocabulary.walker();
            let parser = Parser::new(parser, walker, bytes, account);
            parser.settle()?;
            Ok(parser)
        };
        // Compiled without a space in any case: a space in front could hide what is wrong with it.
        let mut parser = compile(Space::None)?;
        if vocabulary.drops_space {
            // This mask may need more than the parser's limits allow. That is an error here,
            // because a sequence would meet it as well.
            let mut begun = parser.apart();
            let wrong = |e: String| Error::Grammar(sentence(&e));
            let first = begun.mask().map_err(wrong)?;
            let space = match vocabulary.space(vocabulary.has_space(|t| first.is_allowed(t))) {
                Space::Must if begun.is_accepting().map_err(wrong)? => Space::MustUnlessEmpty,
                space => space,
            };
            parser = compile(space)?;
        }
        Ok(Self {
            vocabulary,
            working: Mutex::default(),
            prototype: Mutex::new(parser),
        })
    }

    /// Bytes of what the parser that sequences clone has learnt.
    #[cfg(test)]
    fn learnt_bytes(&self) -> usize {
        let working = lock(&self.working);
        working.parser.as_ref().map_or(0, Parser::learnt_bytes)
    }

    /// A parser that shares nothing with any other.
    fn fresh(&self) -> Result<Parser> {
        reserve::headroom("a grammar's parser", WORK_BYTES)?;
        Ok(lock(&self.prototype).apart())
    }

    /// Writes the tokens that may follow `tokens`: token `t` is bit `t % 32` of word `t / 32`. An
    /// id that ends a sequence may follow if the text belongs to the language. `mask` has at least
    /// one word for every 32 ids of the tokenizer.
    ///
    /// [`Error::InvalidArgument`] if no text of the language begins with `tokens`,
    /// [`Error::Grammar`] if the parser gives up; [`Error::NoMemory`], [`Error::Refused`],
    /// [`Error::Thread`].
    pub fn mask(self: &Arc<Self>, tokens: &[Token], mask: &mut [u32]) -> Result<()> {
        reserve::headroom("a grammar's mask", WORK_BYTES)?;
        on_a_large_stack(STACK_BYTES, || {
            let mut cursor = Cursor::new(self)?;
            for (i, &token) in tokens.iter().enumerate() {
                if !cursor.take(token)? {
                    let name = format!("tokens[{i}]");
                    let expected = "a token that the grammar allows there";
                    return Err(Error::invalid(name, expected, token));
                }
            }
            cursor.mask(mask)
        })
    }

    /// Number of words of a mask: one for every 32 ids of the model.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.mask_words
    }
}

/// Runs `work` on a thread with a stack of `stack_bytes`, and waits for it. A panic becomes an
/// error.
fn on_a_large_stack<T: Send>(
    stack_bytes: usize,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let _quiet = Quiet::new();
    let done = apart("llamabi-grammar", stack_bytes, || quietly(work))?;
    done.unwrap_or_else(|panic| {
        let why = panic_text(&*panic);
        Err(Error::Grammar(format!("the parser failed: {why}")))
    })
}

/// Locks `mutex`. A panic under one of these locks leaves nothing half done, so poison is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
