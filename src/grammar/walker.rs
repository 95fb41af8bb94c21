//! Computes masks, and learns which tokens a state of the lexer decides on its own.
//!
//! Whether a token is allowed hangs first on the state of the lexer at its first byte. The lexer
//! takes all bytes within one lexeme: then the token is allowed, whatever the rules of the grammar
//! say. Or the lexer refuses one of them: then it is not. Or a lexeme ends within the token, and
//! only then the rules are asked. The same is true from any node of the tree of tokens on, in the
//! state that the lexer has there. So for a node and a state the first two are found once, and
//! where lexemes end: [`Learnt`].
//!
//! What the rules say to the end of a lexeme hangs on them, on which lexemes it may be, which the
//! state knows, and on the byte behind it, if that was needed to see the end. The bytes of the
//! lexeme do not count. So the rules are asked once for all tokens that come to such an end; and
//! where they allow it, the parser is behind all of these in the same place: [`End`].
//!
//! In a program, behind `total`, that is: 34,000 tokens are allowed that go on with the name; the
//! rules are asked about some 40 bytes behind names; behind a `(`, if they allow it, 30,000 tokens
//! are known that go on with a name again, and so on.
//!
//! A state that is met for the first time is left to llguidance, which has found out beforehand
//! which tokens can stand in a string: many states are met only once.

use super::lock;
use super::tree::{Node, Tree};
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie, TokenId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Nodes that llguidance walks for a mask of a state that need not be learnt: 20 us.
const FEW_NODES: usize = 1000;

/// Nodes below one that are walked rather than learnt.
const FEW_BELOW: u32 = 32;

/// Most bytes of what is learnt. Where there is more, it begins anew: what is of use now comes
/// back soon.
const MOST_BYTES: usize = if cfg!(test) { 100_000 } else { 4 << 20 };

/// A place that was met.
const PLACE_BYTES: usize = 64;

/// What makes the masks of all parsers that share a lexer. The states are numbered by that lexer.
pub(super) struct Walker {
    tree: Arc<Tree>,
    slicer: Arc<SlicedBiasComputer>,
    known: Mutex<Known>,
    bytes: AtomicUsize,
}

/// By the node from which on it is known, and the lexer's state there. `None` where both were met
/// once, and many nodes were walked.
type Known = HashMap<(Option<u32>, StateID), Option<Arc<Learnt>>>;

/// What the lexer does below a node with all tokens, from one of its states on.
struct Learnt {
    /// The tokens that it takes within a lexeme.
    inside: Tokens,
    ends: Vec<End>,
    /// The nodes at which a lexeme ends in a way that may hang on its bytes, and those above them.
    others: Vec<Other>,
}

/// The end of certain lexemes.
struct End {
    /// The bytes down to the first place where they end.
    way: Vec<u8>,
    /// By the bytes behind them; or, where they end with a byte that cannot be followed by another
    /// one of theirs, by one such byte.
    next: Vec<Next>,
}

struct Next {
    byte: u8,
    /// The tokens that end with it.
    tokens: Vec<TokenId>,
    /// Its nodes that have others below them.
    nodes: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Other {
    node: u32,
    ends: bool,
}

/// Which lexemes end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    /// This one alone.
    One(usize),
    /// Those that can end in this state of the lexer's.
    Of(StateID),
}

/// A set of tokens.
enum Tokens {
    Few(Vec<TokenId>),
    Many(SimpleVob),
}

impl Tokens {
    /// `n` are all that there are.
    fn new(mut tokens: Vec<TokenId>, n: usize) -> Self {
        if tokens.len() < n / 32 {
            tokens.shrink_to_fit();
            return Tokens::Few(tokens);
        }
        let mut many = SimpleVob::alloc(n);
        tokens.iter().for_each(|token| many.allow_token(*token));
        Tokens::Many(many)
    }

    fn allow_in(&self, mask: &mut SimpleVob) {
        match self {
            Tokens::Few(tokens) => tokens.iter().for_each(|token| mask.allow_token(*token)),
            Tokens::Many(tokens) => mask.or(tokens),
        }
    }
}

impl Learnt {
    fn bytes(&self) -> usize {
        let inside = match &self.inside {
            Tokens::Few(tokens) => size_of_val(&**tokens),
            Tokens::Many(tokens) => size_of_val(tokens.as_slice()),
        };
        let next =
            |next: &Next| size_of::<Next>() + 4 * (next.tokens.capacity() + next.nodes.capacity());
        let ends = self.ends.iter().map(|end| {
            size_of::<End>() + end.way.capacity() + end.next.iter().map(next).sum::<usize>()
        });
        size_of::<Self>() + inside + ends.sum::<usize>() + size_of_val(&*self.others)
    }
}

impl Walker {
    pub fn new(tree: Arc<Tree>, slicer: Arc<SlicedBiasComputer>) -> Self {
        Self {
            tree,
            slicer,
            known: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The same for a lexer of its own.
    pub fn apart(&self) -> Self {
        Self::new(self.tree.clone(), self.slicer.clone())
    }

    /// Bytes of what was learnt.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The mask where no bytes come before the tokens.
    fn mask(&self, recognizer: &mut ParserRecognizer<'_>) -> SimpleVob {
        let mut known = lock(&self.known);
        let place = (None, recognizer.lexer_state());
        let Some(learnt) = self.look_up(recognizer, &mut known, place) else {
            let before = recognizer.stats_mut().trie_nodes_walked;
            let mask = self.slicer.compute_bias(recognizer, &[]);
            if recognizer.stats_mut().trie_nodes_walked - before > FEW_NODES {
                self.keep(&mut known, place, None);
            }
            return mask;
        };
        let mut mask = self.trie().alloc_token_set();
        recognizer.trie_started("walker");
        self.walk(recognizer, &mut known, &learnt, &mut mask);
        recognizer.trie_finished();
        mask
    }

    /// What is known of a place, where it has been met before.
    fn look_up(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Known,
        place: (Option<u32>, StateID),
    ) -> Option<Arc<Learnt>> {
        if let Some(learnt) = known.get(&place)? {
            return Some(learnt.clone());
        }
        let learnt = Arc::new(self.learn(recognizer, place));
        self.keep(known, place, Some(learnt.clone()));
        Some(learnt)
    }

    /// Keeps what is known of a place, or that it was met.
    fn keep(&self, known: &mut Known, place: (Option<u32>, StateID), learnt: Option<Arc<Learnt>>) {
        let more = PLACE_BYTES + learnt.as_ref().map_or(0, |learnt| learnt.bytes());
        let mut bytes = self.bytes() + more;
        if bytes > MOST_BYTES {
            known.clear();
            bytes = more;
        }
        self.bytes.store(bytes, Relaxed);
        known.insert(place, learnt);
    }

    /// The nodes below one, and its depth.
    fn below(&self, node: Option<u32>) -> (usize, usize, usize) {
        let nodes = &self.tree.nodes;
        node.map_or((0, nodes.len(), 0), |at| {
            let (at, node) = (at as usize, nodes[at as usize]);
            (at + 1, at + node.size as usize, usize::from(node.depth))
        })
    }

    /// Sends all tokens below a node through the lexer alone.
    fn learn(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        (node, state): (Option<u32>, StateID),
    ) -> Learnt {
        let nodes = &self.tree.nodes;
        let lexer = recognizer.lexer_mut();
        let (mut at, last, base) = self.below(node);
        let (mut inside, mut ends, mut others) = (Vec::new(), Vec::<End>::new(), Vec::new());
        let mut places = HashMap::new();
        // The states behind the bytes of a path, and its nodes, of which so many are in `others`.
        let mut states = vec![state];
        let (mut path, mut in_others): (Vec<usize>, usize) = (Vec::new(), 0);
        while at < last {
            let node = nodes[at];
            let above = usize::from(node.depth) - 1 - base;
            states.truncate(above + 1);
            path.truncate(above);
            in_others = in_others.min(above);
            let from = states[above];
            let to = lexer.transition_start_state(from, Some(node.byte), &None);
            let ends_before = to.is_dead();
            if !ends_before && !to.has_lowest_match() {
                if node.token != Node::NONE {
                    inside.push(node.token);
                }
                states.push(to);
                path.push(at);
                at += 1;
                continue;
            }
            let here = at;
            at += node.size as usize;
            if lexer.advance(from, node.byte, false, &None).is_error() {
                continue;
            }
            let state = if ends_before { from } else { to };
            let bytes = || path.iter().map(|node| nodes[*node].byte);
            // An end that is seen some bytes later, and a token that is no text, but a number.
            if !ends_before
                && (lexer.possible_hidden_len(to) > 0
                    || bytes().any(|byte| byte == TokTrie::SPECIAL_TOKEN_MARKER))
            {
                let way = path[in_others..].iter().map(|node| (*node, false));
                others.extend(way.chain([(here, true)]).map(|(node, ends)| Other {
                    node: node as u32,
                    ends,
                }));
                in_others = above;
                continue;
            }
            let mut possible = lexer.possible_lexemes(state).iter();
            let which = match (possible.next(), possible.next()) {
                (Some(one), None) => Which::One(one.as_usize()),
                _ => Which::Of(state),
            };
            let next = ends_before.then_some(node.byte);
            let new = ends.len();
            let end = *places.entry((which, ends_before, None)).or_insert(new);
            if end == new {
                ends.push(End {
                    way: bytes().collect(),
                    next: Vec::new(),
                });
            }
            let End { next: all, .. } = &mut ends[end];
            let new = all.len();
            let at_next = *places
                .entry((which, ends_before, Some(next)))
                .or_insert(new);
            if at_next == new {
                all.push(Next {
                    byte: node.byte,
                    tokens: Vec::new(),
                    nodes: Vec::new(),
                });
            }
            if node.token != Node::NONE {
                all[at_next].tokens.push(node.token);
            }
            if node.size > 1 {
                all[at_next].nodes.push(here as u32);
            }
        }
        others.shrink_to_fit();
        Learnt {
            inside: Tokens::new(inside, self.trie().vocab_size()),
            ends,
            others,
        }
    }

    /// Asks the rules about what the lexer does not decide. The parser stands in the place of which
    /// that is known, and does afterwards.
    fn walk(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Known,
        learnt: &Learnt,
        mask: &mut SimpleVob,
    ) {
        learnt.inside.allow_in(mask);
        let mut walked = 0;
        for End { way, next } in &learnt.ends {
            let pushed = way
                .iter()
                .take_while(|byte| recognizer.try_push_byte(**byte));
            let pushed = pushed.count();
            walked += pushed;
            if pushed == way.len() {
                for Next {
                    byte,
                    tokens,
                    nodes,
                } in next
                {
                    walked += 1;
                    let rows = rows(recognizer);
                    if recognizer.try_push_byte(*byte) {
                        tokens.iter().for_each(|token| mask.allow_token(*token));
                        for node in nodes {
                            self.walk_below(recognizer, known, *node, mask);
                        }
                        recognizer.pop_bytes(1);
                    } else if rows == self::rows(recognizer) {
                        // None of the lexemes can stand here, whatever comes behind it.
                        break;
                    }
                }
            }
            recognizer.pop_bytes(pushed);
        }
        let nodes = &self.tree.nodes;
        let first = learnt
            .others
            .first()
            .map(|other| nodes[other.node as usize].depth);
        let base = usize::from(first.unwrap_or(1)) - 1;
        let mut depth = base;
        for Other { node: at, ends } in &learnt.others {
            let node = nodes[*at as usize];
            let above = usize::from(node.depth) - 1;
            recognizer.pop_bytes(depth - above);
            depth = above;
            walked += 1;
            if recognizer.try_push_byte(node.byte) {
                depth += 1;
                if *ends {
                    if node.token != Node::NONE {
                        mask.allow_token(node.token);
                    }
                    self.walk_below(recognizer, known, *at, mask);
                }
            }
        }
        recognizer.pop_bytes(depth - base);
        recognizer.save_stats(walked);
    }

    /// Does the same below a node, behind whose byte the parser stands.
    fn walk_below(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Known,
        node: u32,
        mask: &mut SimpleVob,
    ) {
        let nodes = &self.tree.nodes;
        if nodes[node as usize].size > FEW_BELOW {
            let place = (Some(node), recognizer.lexer_state());
            if let Some(learnt) = self.look_up(recognizer, known, place) {
                return self.walk(recognizer, known, &learnt, mask);
            }
            self.keep(known, place, None);
        }
        let (mut at, last, base) = self.below(Some(node));
        let (mut depth, mut walked) = (base, 0);
        while at < last {
            let node = nodes[at];
            let above = usize::from(node.depth) - 1;
            recognizer.pop_bytes(depth - above);
            depth = above;
            walked += 1;
            if recognizer.try_push_byte(node.byte) {
                depth += 1;
                if node.token != Node::NONE {
                    mask.allow_token(node.token);
                }
                at += 1;
            } else {
                at += node.size as usize;
            }
        }
        recognizer.pop_bytes(depth - base);
        recognizer.save_stats(walked);
    }
}

/// What grows where the rules allow a lexeme: rows that were made have items, and others were
/// there.
fn rows(recognizer: &mut ParserRecognizer<'_>) -> (usize, usize) {
    let stats = recognizer.stats_mut();
    (stats.all_items, stats.cached_rows)
}

impl BiasComputer for Walker {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut mask = match start.is_empty() {
            true => self.mask(recognizer),
            false => self.slicer.compute_bias(recognizer, start),
        };
        self.tree.allow_twins(&mut mask);
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.slicer.trie()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cursor, Grammars, Source};
    use super::*;
    use crate::Token;
    use crate::tokenizer;
    use std::path::Path;

    const LANGUAGES: [Source<'static>; 7] = [
        Source::Regex("([A-Za-z][a-z0-9_]{0,20}( [a-z]+)*[.!?]\n)+"),
        Source::JsonSchema(
            r#"{"type":"array","items":{"type":"object","properties":{
                "name":{"type":"string","maxLength":60},"id":{"type":"integer"}},
                "required":["name","id"],"additionalProperties":false}}"#,
        ),
        Source::Lark(
            "start: (name \"=\" sum \";\")+\nsum: value ((\"+\" | \"-\") value)*\n\
             value: name | /[0-9]+/ | \"(\" sum \")\" | name \"(\" sum \")\" | STRING\n\
             name: /[a-z_][a-z0-9_]*/ | \"return\"\nSTRING: /\"[^\"\\n]*\"/\n%ignore /[ \\n]+/",
        ),
        // Lexemes that are as short as they can be.
        Source::Lark(
            "start: (shortest \" \" longest \"\\n\")+\nshortest[lazy]: /[a-z ]+;/\nlongest: /[a-z]+;?/",
        ),
        Source::Lark("start: (name \": \" name \"\\n\")+\nname[max_tokens=3]: /[a-zA-Z ]+/"),
        // Which text a token is of, only the rules know.
        Source::Lark("start: \"(\" start \")\" start | /[a-z]+/ | \"\""),
        Source::Lark(
            "start: (/[A-Z][a-z]+/ object \"\\n\")+\nobject: %json {\"type\":\"object\",\
             \"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
        ),
    ];

    /// Texts of tokens that are drawn from the masks, in parsers that learn, against parsers that
    /// have just begun, and against what these take.
    #[test]
    fn what_is_learnt_changes_no_mask() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join("tests/data/tokenizer/tokenizer.model");
        let tokenizer = tokenizer::open(&path).unwrap();
        let n = tokenizer.vocab_size();
        let grammars = Grammars::new(n, vec![tokenizer.eos_id()]);
        let mut random = 1_u64;
        let (mut learnt, mut taken) = (0, [0, 0]);
        for source in LANGUAGES {
            let compile = || Arc::new(grammars.compile(&*tokenizer, source).unwrap());
            let grammar = compile();
            let (mut mask, mut want) = (vec![0; n.div_ceil(32)], vec![0; n.div_ceil(32)]);
            let _kept = Cursor::new(&grammar);
            for _ in 0..3 {
                let (mut cursor, mut text) = (Cursor::new(&grammar), Vec::new());
                for step in 0..24 {
                    cursor.mask(&mut mask).unwrap();
                    let mut fresh = Cursor::new(&compile());
                    for token in &text {
                        assert!(fresh.take(*token).unwrap());
                    }
                    fresh.mask(&mut want).unwrap();
                    let is_in = |mask: &[u32], t: Token| mask[t as usize / 32] >> (t % 32) & 1 == 1;
                    let ids = || 0..n as Token;
                    let differ = ids().find(|t| is_in(&mask, *t) != is_in(&want, *t));
                    assert_eq!(differ, None, "{source:?}: {text:?}");
                    for token in ids().skip(step % 11).step_by(11) {
                        if token != tokenizer.eos_id() {
                            let allowed = fresh.allowed(&[token]).unwrap() == 1;
                            assert_eq!(
                                allowed,
                                is_in(&mask, token),
                                "{source:?}: {text:?}, {token}"
                            );
                            taken[usize::from(allowed)] += 1;
                        }
                    }
                    let may: Vec<Token> = ids()
                        .filter(|t| *t != tokenizer.eos_id() && is_in(&mask, *t))
                        .collect();
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                    let Some(token) = may.get((random >> 33) as usize % may.len().max(1)) else {
                        break;
                    };
                    text.push(*token);
                    if !cursor.take(*token).unwrap() || cursor.is_complete().unwrap() {
                        break;
                    }
                }
            }
            learnt += grammar.learnt_bytes();
        }
        assert!(
            learnt > 10_000 && taken[0] > 10_000 && taken[1] > 10_000,
            "{learnt} {taken:?}"
        );
    }
}
