//! One parser of llguidance, and the memory that it takes.
//!
//! A parser consists of a lexer and of the rows of one text. All clones of a parser share the
//! lexer, whose states are found as texts need them. Both parts grow with a stranger's grammar and
//! with what the model writes. So both are counted in the [`Account`] of their handle.

use super::walker::Walker;
use crate::{Error, Result, Token};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{SimpleVob, TokenId};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Memory for one item of a row. Items that were made only to try a token count as well.
const ITEM_BYTES: usize = 8;

/// Memory for the rules of a grammar, per byte of its source. It was 60 for a large JSON Schema.
const RULE_BYTES: usize = 64;

/// Bytes of all parsers of one handle. They are estimates: between 0.8 and 1.6 times the growth
/// that the process was seen to have, with lexers of many states and with rows of many items.
pub(super) struct Account {
    bytes: AtomicUsize,
    /// The most bytes that all parsers may have together. The share of each comes on top.
    most: usize,
    /// Bytes that a parser may have, whatever the others have. If nobody uses a lexer and it is
    /// larger than this, it is dropped.
    share: usize,
    begin: Instant,
    /// When the process was last seen to have memory left, in milliseconds since `begin`.
    looked: AtomicU64,
}

/// How long we trust a check that the process has memory left.
const LOOK_MS: u64 = 10;

impl Account {
    pub fn new(most: usize, share: usize) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            most,
            share,
            begin: Instant::now(),
            looked: AtomicU64::new(0),
        }
    }

    fn ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }
}

/// A part of an account. It is given back when this value is dropped.
struct Held {
    account: Arc<Account>,
    bytes: AtomicUsize,
}

impl Held {
    fn new(account: &Arc<Account>) -> Self {
        Self {
            account: account.clone(),
            bytes: AtomicUsize::new(0),
        }
    }

    fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Relaxed);
        // Intentional wrap-around: if `bytes` has become less, this adds a negative difference.
        let more = bytes.wrapping_sub(before);
        self.account.bytes.fetch_add(more, Relaxed);
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A place in the texts of a grammar.
pub(super) struct Parser {
    /// The parser; or the error after which it can do nothing any more.
    state: std::result::Result<TokenParser, String>,
    /// Computes the masks, using the lexer's states.
    walker: Arc<Walker>,
    lexer: Arc<Held>,
    rows: Held,
    /// Items that the tokens of the text have made.
    items: usize,
}

impl Clone for Parser {
    /// A parser at the same place, with the same lexer.
    fn clone(&self) -> Self {
        let rows = Held::new(&self.rows.account);
        rows.set(self.rows.bytes());
        Self {
            state: self.state.clone(),
            walker: self.walker.clone(),
            lexer: self.lexer.clone(),
            rows,
            items: self.items,
        }
    }
}

impl Parser {
    /// A parser at the beginning of a text. `source_bytes`: length of the grammar's source.
    pub fn new(
        mut parser: TokenParser,
        walker: Walker,
        source_bytes: usize,
        account: &Arc<Account>,
    ) -> Self {
        let walker = Arc::new(walker);
        parser.bias_computer = walker.clone();
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let rows = Held::new(account);
        rows.set(source_bytes * RULE_BYTES);
        Self {
            state: Ok(parser),
            walker,
            lexer: Arc::new(Held::new(account)),
            rows,
            items: 0,
        }
    }

    /// A parser at the same place, with a lexer of its own.
    pub fn apart(&self) -> Self {
        let walker = Arc::new(self.walker.apart());
        let deep_clone = |parser: &TokenParser| {
            let mut own = parser.deep_clone();
            own.bias_computer = walker.clone();
            own
        };
        Self {
            state: self.state.as_ref().map(deep_clone).map_err(Clone::clone),
            walker,
            lexer: Arc::new(Held::new(&self.rows.account)),
            rows: Held::new(&self.rows.account),
            items: self.items,
        }
    }

    /// Appends `token` and returns whether the grammar allows it. If not, nothing has changed.
    pub fn take(&mut self, token: TokenId) -> std::result::Result<bool, String> {
        let (taken, items) = self.with(|parser| {
            let before = parser.parser.stats().all_items;
            let taken = parser.validate_token(token).map_err(text)?;
            if taken {
                consume(parser, token)?;
            }
            Ok((
                taken,
                parser.parser.stats().all_items.saturating_sub(before),
            ))
        })?;
        self.items += items;
        Ok(taken)
    }

    /// How many of `tokens`, counted from the first, the parser could take.
    pub fn allowed(&mut self, tokens: &[Token]) -> std::result::Result<usize, String> {
        let ids: Vec<TokenId> = tokens.iter().map(|&token| token as TokenId).collect();
        self.with(|parser| parser.validate_tokens_raw(&ids).map_err(text))
    }

    /// If only one text can come next: its first bytes, at most `most` of them. The `bool` says
    /// whether these are all of its bytes and nothing can follow them.
    pub fn forced(&mut self, most: usize) -> std::result::Result<(Vec<u8>, bool), String> {
        let (forced, items) = self.with(|parser| {
            let TokenParser { parser, .. } = parser;
            let before = parser.stats().all_items;
            let bytes = parser.force_bytes();
            let first = bytes[..bytes.len().min(most)].to_vec();
            let is_whole = first.len() == bytes.len();
            if let Some(error) = parser.get_error() {
                return Err(error.message());
            }
            let ends = is_whole && parser.is_accepting() && !parser.can_advance();
            let items = parser.stats().all_items.saturating_sub(before);
            Ok(((first, ends), items))
        })?;
        self.items += items;
        Ok(forced)
    }

    /// Appends a token that another parser of the grammar has taken.
    pub fn retake(&mut self, token: TokenId) -> std::result::Result<(), String> {
        self.items += self.with(|parser| {
            let before = parser.parser.stats().all_items;
            consume(parser, token)?;
            Ok(parser.parser.stats().all_items.saturating_sub(before))
        })?;
        Ok(())
    }

    /// The tokens that may follow. If nothing can follow: the tokens that end a text.
    pub fn mask(&mut self) -> std::result::Result<SimpleVob, String> {
        self.with(|parser| match parser.stop_reason() {
            StopReason::NotStopped => parser.compute_mask().map_err(text),
            _ => Ok(parser.token_env.tok_trie().eos_token_set()),
        })
    }

    /// Whether the text may end here.
    pub fn is_accepting(&mut self) -> std::result::Result<bool, String> {
        self.with(|parser| Ok(parser.is_accepting()))
    }

    /// Why nothing can follow, or why the parser has failed.
    pub fn stop_reason(&self) -> StopReason {
        match &self.state {
            Ok(parser) => parser.stop_reason(),
            Err(_) => StopReason::InternalError,
        }
    }

    /// Why the parser has failed, if it has.
    pub fn error(&self) -> Option<&str> {
        self.state.as_ref().err().map(String::as_str)
    }

    #[cfg(test)]
    pub fn learnt_bytes(&self) -> usize {
        self.walker.bytes()
    }

    /// Bytes of the parser and its lexer when they were last counted.
    pub fn bytes(&self) -> usize {
        self.lexer.bytes() + self.rows.bytes()
    }

    /// Whether the last check for memory by any parser of the handle is out of date ([`LOOK_MS`]).
    pub fn is_time_to_look(&self) -> bool {
        let account = &self.rows.account;
        account.ms().saturating_sub(account.looked.load(Relaxed)) >= LOOK_MS
    }

    /// Records that a check has just found memory.
    pub fn has_looked(&self) {
        let account = &self.rows.account;
        account.looked.store(account.ms(), Relaxed);
    }

    /// Bytes of the items of the text.
    pub fn items_bytes(&self) -> usize {
        self.items * ITEM_BYTES
    }

    /// Counts what the parser has by now.
    ///
    /// [`Error::NoMemory`] if that is more than its share, and all parsers of the handle together
    /// have more than they may.
    pub fn settle(&self) -> Result<()> {
        let Ok(parser) = &self.state else {
            return Ok(());
        };
        self.lexer
            .set(parser.parser.lexer_stats().num_bytes + self.walker.bytes());
        self.rows.set(self.rows.bytes().max(self.items_bytes()));
        let account = &self.rows.account;
        let mine = self.bytes();
        let all = account.bytes.load(Relaxed);
        if mine > account.share && all > account.most {
            let others = all.saturating_sub(mine);
            return Err(Error::NoMemory {
                what: "a grammar's parser, beside the other ones of its handle,".into(),
                needed: mine as u64,
                available: account.most.saturating_sub(others) as u64,
                limit: None,
            });
        }
        Ok(())
    }

    /// Whether `other` is the only other parser with this parser's lexer, and the lexer has become
    /// large.
    pub fn is_large_and_only_shared_with(&self, other: &Parser) -> bool {
        let shared = Arc::ptr_eq(&self.lexer, &other.lexer);
        shared
            && Arc::strong_count(&self.lexer) == 2
            && self.lexer.bytes() > self.lexer.account.share
    }

    /// Runs `work`. A panic becomes an error. After an error the parser does nothing any more.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut TokenParser) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        let parser = self.state.as_mut().map_err(|error| error.clone())?;
        let done = catch_unwind(AssertUnwindSafe(|| Ok(work(parser))));
        let error = match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(panic) => panic.to_string(),
        };
        let error = parser.augment_err(error);
        self.state = Err(error.clone());
        Err(error)
    }
}

fn consume(parser: &mut TokenParser, token: TokenId) -> std::result::Result<(), String> {
    let back = parser.consume_token(token).map_err(text)?;
    parser.check_stop().map_err(text)?;
    match back {
        0 => Ok(()),
        n => Err(format!("the parser goes back by {n} tokens")),
    }
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Cursor, Grammar, Grammars, Source};
    use super::*;
    use crate::tokenizer::{self, Tokenizer};
    use std::path::Path;

    /// The lexer of this language finds new states as long as the text goes on.
    const MANY_STATES: Source<'_> = Source::Regex("(.*[aeiou].{30}[xyz].*){3}");
    /// In this language each token makes 600 items, because its rules cannot be told apart yet.
    fn many_items() -> String {
        let names: Vec<_> = (0..200).map(|i| format!("r{i}")).collect();
        let mut source = format!("start: s* \"!\"\ns: {}\n", names.join(" | "));
        source.extend(
            names
                .iter()
                .map(|name| format!("{name}: \"a\" | \"b\" | \" \"\n")),
        );
        source
    }

    fn limited(most: usize, share: usize) -> (Arc<dyn Tokenizer>, Grammars) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tokenizer = tokenizer::open_in(&root.join("demo/meta")).unwrap();
        let mut grammars = Grammars::new(tokenizer.vocab_size(), vec![tokenizer.eos_id()]);
        grammars.account = Arc::new(Account::new(most, share));
        (tokenizer, grammars)
    }

    /// Follows a text. Fails when the parser needs too much memory.
    fn follow(cursor: &mut Cursor, tokens: &[i32], mask: &mut [u32]) -> Result<()> {
        for &token in tokens {
            assert!(cursor.take(token)?, "{token}");
            cursor.mask(mask)?;
        }
        Ok(())
    }

    #[test]
    fn all_texts_of_a_handle_have_a_bound_and_each_has_its_share() {
        let (most, share) = (8 << 20, 1 << 20);
        let (tokenizer, grammars) = limited(most, share);
        let items = many_items();
        let mut mask = vec![0; tokenizer.vocab_size().div_ceil(32)];
        let prose =
            "Once upon a time there was a fox, and it lived by the sea in a box. ".repeat(20);
        let bytes = || grammars.account.bytes.load(Relaxed);
        for (source, text) in [
            (MANY_STATES, prose),
            (Source::Lark(&items), "a b b a ab ba ".repeat(200)),
        ] {
            let tokens = tokenizer.encode(&text).unwrap();
            let mut refused = 0;
            let mut cursors: Vec<_> = (0..16)
                .map(|_| {
                    let grammar = Arc::new(grammars.compile(&*tokenizer, source).unwrap());
                    let mut cursor = Cursor::new(&grammar).unwrap();
                    if let Err(error) = follow(&mut cursor, &tokens, &mut mask) {
                        let text = error.to_string();
                        assert!(matches!(error, Error::NoMemory { .. }), "{text}");
                        assert!(
                            text.starts_with("a grammar's parser, beside the other"),
                            "{text}"
                        );
                        refused += 1;
                    }
                    cursor
                })
                .collect();
            assert!(refused > 0, "{} bytes", bytes());
            // Each grammar and each text has its share. A step adds to it before it is refused.
            let room = most + 2 * 16 * share + (4 << 20);
            assert!(bytes() < room, "{} bytes of {room}", bytes());

            // A parser that keeps to its share goes on, whatever the others have.
            let small = grammars.compile(&*tokenizer, Source::Regex("[a-z ]*"));
            let mut small = Cursor::new(&Arc::new(small.unwrap())).unwrap();
            let tokens = tokenizer.encode("it goes on").unwrap();
            follow(&mut small, &tokens, &mut mask).unwrap();

            // A grammar that no text follows any more has forgotten what it learnt.
            let kept: Vec<Arc<Grammar>> = cursors.iter().map(Cursor::grammar).collect();
            cursors.clear();
            assert!(bytes() < kept.len() * share + (1 << 20), "{}", bytes());
            let mut again = Cursor::new(&kept[15]).unwrap();
            again.mask(&mut mask).unwrap();
            drop(again);
            drop((kept, small));
            assert_eq!(bytes(), 0);
        }
    }
}
