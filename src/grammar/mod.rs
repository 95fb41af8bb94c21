//! Grammars: which tokens may follow, so that the whole text is of a language.
//!
//! The parser is the crate llguidance. What is here is how it meets our tokenizers, our threads and
//! our errors:
//!
//! | file | what it knows |
//! |---|---|
//! | `source` | JSON Schema, regular expression, Lark, choices: as the parser takes them |
//! | `vocabulary` | the tokens of a handle, in the parser's form |
//! | `cursor` | how far one text has come |
//! | `scout` | the texts that a grammar leaves no choice about |
//! | `parser` | one parser, and the memory of all of them |
//! | `walker` | masks: of a state of the lexer's what hangs on that alone, the second time by heart |
//! | `tree` | the bytes of all tokens |
//! | `schema` | what a JSON Schema says, as the parser reads it |
//! | `quiet` | the hook for panics, which is not to print the parser's |
//!
//! What is matched is the text that is returned. A tokenizer of SentencePiece's kind drops the
//! space that a text begins with, so the language is compiled behind a space there: one that may be
//! missing, unless the language itself may begin with one.
//!
//! The parser recurses over what callers wrote, so all of its work is done on threads of ours with
//! room for it.

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

/// Most bytes of a grammar's source.
pub const MAX_SOURCE: usize = 1 << 20;

/// The stack of a thread that parses.
pub(crate) const STACK_BYTES: usize = 16 << 20;

/// What its stack has more of for each of [`source::levels`]: at most half of that was seen to be
/// used.
const LEVEL_BYTES: usize = 8 << 10;

/// Memory that must be there before a grammar is compiled: what the parser takes for one as large
/// as its limits let it be, roughly. It could not be told that there is none. As much must be there
/// now and then while a text goes on ([`Cursor`]). That is more than a step takes, but glibc maps
/// so much and unmaps it; less than 32 MiB would change from where it takes all that comes later.
const WORK_BYTES: usize = 64 << 20;

/// Most bytes that all grammars of a handle and all texts in them have together, beside
/// [`SHARE_BYTES`] for each text.
pub const MOST_BYTES: usize = 1 << 30;

/// Bytes that a text and its parser may have whatever the others have.
pub const SHARE_BYTES: usize = 16 << 20;

/// A compiled language. Immutable to those who have it.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// Never run, so that there is always a parser without an error to begin anew with.
    prototype: Mutex<Parser>,
    working: Mutex<Working>,
}

/// The parser that sequences clone: clones share what it has learnt of the vocabulary.
#[derive(Default)]
struct Working {
    /// Made where there is none when a sequence begins.
    parser: Option<Parser>,
    /// How often one was given up for its failure.
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
    /// For a model with ids below `vocab_size`, of which `eos_ids` end a sequence.
    pub fn new(vocab_size: usize, eos_ids: Vec<Token>) -> Self {
        Self {
            vocab_size,
            eos_ids,
            vocabulary: Mutex::new(None),
            account: Arc::new(Account::new(MOST_BYTES, SHARE_BYTES)),
        }
    }

    /// Compile a language.
    ///
    /// [`Error::Grammar`] with the parser's sentence where it refuses the source, or where the
    /// source is too much for it; [`Error::InvalidArgument`] where it is longer than
    /// [`MAX_SOURCE`]; [`Error::NoMemory`] where the grammars of the handle have too much together;
    /// [`Error::Refused`] and [`Error::Thread`] where the system gives no memory or no thread;
    /// [`Error::Unsupported`] where the parser cannot use the tokenizer.
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

    /// Whether a grammar was made here.
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
    /// `bytes`: of the source.
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
        // Compiled on its own in any case: what is wrong with it must not be hidden by a space.
        let mut parser = compile(Space::None)?;
        if vocabulary.drops_space {
            // The mask may be more than the parser's limits allow, which a sequence would notice.
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

    /// Bytes of what the parser that sequences clone knows by heart.
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

    /// The tokens that may follow `tokens`: bit `t % 32` of word `t / 32`. An id that ends a
    /// sequence may where the text is of the language. `mask` has a word for every 32 ids of the
    /// tokenizer, at least.
    ///
    /// [`Error::InvalidArgument`] where `tokens` is no beginning of a text of the language,
    /// [`Error::Grammar`] where the parser gives up; [`Error::NoMemory`], [`Error::Refused`],
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

    /// Words of a mask: one for every 32 ids of the model.
    pub fn mask_words(&self) -> usize {
        self.vocabulary.mask_words
    }
}

/// Do `work` on a thread with a stack of so many bytes, and wait for it. A panic is an error.
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

/// Nothing is left half done by a panic while it is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
