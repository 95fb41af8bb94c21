//! A tokenizer in the form that the parser needs: a tree of the bytes of all tokens.

use super::quiet::without_parsers_hook;
use super::source::Space;
use super::tree::Tree;
use super::walker::Walker;
use crate::error::panic_text;
use crate::tokenizer::{Piece, Tokenizer};
use crate::{Error, Result, Token};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Tokens with more bytes than this are never allowed: the tree has no place for them.
const MAX_TOKEN_BYTES: usize = 1000;

/// The most states of a grammar's lexer, at about 2 kB each. The parser's default is five times as
/// many.
const MAX_LEXER_STATES: usize = 50_000;

/// The most work for the expressions of a grammar's lexer, in the parser's unit. The parser's
/// default is four times as much. If the work doubles from one terminal to the next, the grammar is
/// refused after a fifth of a second rather than after some seconds. This matters because a
/// compilation cannot be cancelled.
const MAX_LEXER_WORK: u64 = 250_000;

/// The tokens of one handle. Building this takes about a second for 128,000 tokens, so it is done
/// when the first grammar is made.
pub struct Vocabulary {
    pub(super) factory: ParserFactory,
    tree: Arc<Tree>,
    /// Number of ids of the tokenizer.
    pub(super) n_tokens: usize,
    /// Number of words of a mask over all ids of the model.
    pub(super) mask_words: usize,
    /// Whether the decoded text lacks a space that the tokens begin with.
    pub(super) drops_space: bool,
    /// Tokens that cannot begin a text, because the grammar and decoding would disagree on their
    /// spaces. Either decoding keeps a leading space that the grammar takes for the dropped one, or
    /// decoding drops spaces inside the token, which the grammar counts as text.
    pub(super) kept_spaces: Vec<Token>,
    /// Tokens whose leading space is dropped even if it follows another dropped space.
    pub(super) dropped_spaces: Vec<Token>,
}

struct Trie(TokTrie);

impl TokenizerEnv for Trie {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    /// No mask depends on this: see `tokenize_is_canonical`.
    fn tokenize_bytes(&self, s: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(s)
    }

    /// `false`: otherwise, where the grammar leaves only one text, the mask would leave only one
    /// way to cut that text into tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    /// `vocab_size` is the model's. The model may have ids that the tokenizer does not have.
    pub(super) fn new(
        tokenizer: &dyn Tokenizer,
        vocab_size: usize,
        eos_ids: &[Token],
    ) -> Result<Self> {
        without_parsers_hook();
        let built = catch_unwind(AssertUnwindSafe(|| build(tokenizer, vocab_size, eos_ids)));
        built.unwrap_or_else(|panic| {
            let why = panic_text(&*panic);
            let sentence = format!("this tokenizer cannot be used with grammars: {why}");
            Err(Error::Unsupported(sentence))
        })
    }

    /// A walker, which computes the masks of a parser and of the parsers that share its lexer.
    pub(super) fn walker(&self) -> Walker {
        Walker::new(self.tree.clone(), self.factory.slicer())
    }

    /// The space in front of a language that may or may not begin with a space itself. In any case
    /// the text without the space in front belongs to the language.
    pub(super) fn space(&self, may_begin_with_space: bool) -> Space {
        match (self.drops_space, may_begin_with_space) {
            (false, _) => Space::None,
            (true, false) => Space::May,
            (true, true) => Space::Must,
        }
    }

    /// Whether a mask allows a token that begins with a space.
    pub(super) fn has_space(&self, allowed: impl Fn(TokenId) -> bool) -> bool {
        let trie = self.factory.tok_env().tok_trie();
        (0..self.n_tokens as TokenId).any(|t| allowed(t) && trie.token(t).starts_with(b" "))
    }
}

fn build(tokenizer: &dyn Tokenizer, vocab_size: usize, eos_ids: &[Token]) -> Result<Vocabulary> {
    let n_tokens = tokenizer.vocab_size().min(vocab_size);
    let drops_first = tokenizer.strips_first_piece();
    let drops_space = drops_first || tokenizer.strips_leading_space();
    let (mut kept_spaces, mut dropped_spaces) = (Vec::new(), Vec::new());
    let mut word = |token: Token| {
        let piece = tokenizer.piece(token);
        let bytes = tokenizer.token_bytes(token);
        // Decoding drops this space at the beginning of a text, but for the grammar it is not the
        // dropped space.
        let inner = bytes.iter().skip(1).any(|&byte| byte == b' ');
        let goes = drops_first && matches!(piece, Piece::Text(_)) && inner;
        if goes {
            kept_spaces.push(token);
        } else if drops_space && bytes.starts_with(b" ") {
            match piece {
                Piece::Text(_) if tokenizer.strips_every_leading_space() => {
                    dropped_spaces.push(token);
                }
                Piece::Text(_) => {}
                _ => kept_spaces.push(token),
            }
        }
        match piece {
            // The token for unknown text cannot be part of a text.
            _ if token == tokenizer.unk_id() => special(tokenizer, token),
            Piece::Control => special(tokenizer, token),
            _ if bytes.len() > MAX_TOKEN_BYTES => Vec::new(),
            _ => bytes.to_vec(),
        }
    };
    let mut words: Vec<Vec<u8>> = (0..n_tokens as Token).map(&mut word).collect();
    // The parser needs an id that ends a sequence. If there is none, it gets an id behind all
    // others.
    let ends = eos_ids.iter().filter_map(|&id| TokenId::try_from(id).ok());
    let mut ends: Vec<TokenId> = ends.filter(|&id| (id as usize) < n_tokens).collect();
    if ends.is_empty() {
        ends.push(words.len() as TokenId);
        words.push(b"\xff<end>".to_vec());
    }
    let info = TokRxInfo::new(words.len() as u32, ends[0]);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    let tree = Arc::new(Tree::new(&trie));
    let slices = SlicedBiasComputer::general_slices();
    let caps = InferenceCapabilities::default();
    let factory = ParserFactory::new(&(Arc::new(Trie(trie)) as _), caps, &slices);
    let mut factory = factory.map_err(|e| Error::Unsupported(e.to_string()))?;
    factory.quiet();
    factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
    factory.limits_mut().initial_lexer_fuel = MAX_LEXER_WORK;
    factory.limits_mut().verbose_errors = false;
    Ok(Vocabulary {
        factory,
        tree,
        n_tokens,
        mask_words: vocab_size.div_ceil(32),
        drops_space,
        kept_spaces,
        dropped_spaces,
    })
}

/// The parser's name for a token that is not text.
fn special(tokenizer: &dyn Tokenizer, token: Token) -> Vec<u8> {
    let mut name = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    match tokenizer.special_text(token) {
        Some(text) if (1..MAX_TOKEN_BYTES).contains(&text.len()) => name.extend(text.bytes()),
        _ => name.extend(format!("<token {token}>").bytes()),
    }
    name
}
