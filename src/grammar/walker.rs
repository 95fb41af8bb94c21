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
//! where they allow it, the parser is behind all of these in the same place: [`End`]. That byte
//! must show the end in the place where the rules are asked, too: behind five digits of
//! `[0-9]{1,5}` a sixth one does, and behind two it is the third.
//!
//! In a program, behind `total`, that is: 34,000 tokens are allowed that go on with the name; the
//! rules are asked about some 40 bytes behind names; behind a `(`, if they allow it, 30,000 tokens
//! are known that go on with a name again, and so on.
//!
//! A state that is met for the first time is left to llguidance, which has found out beforehand
//! which tokens can stand in a string: many states are met only once. It also has those in which a
//! lexeme can end in a way that hangs on its bytes: [`Known::Plain`].

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

/// The same where slices have saved the most, as in strings. In a string of limited length every
/// byte leads to a state that does not come back soon; learning each of them would throw away what
/// is known of others.
const FEW_BESIDE_SLICES: usize = 8000;

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
    known: Mutex<Places>,
    bytes: AtomicUsize,
}

/// A node from which on something is known, or all tokens, and the lexer's state there.
type Place = (Option<u32>, StateID);

type Places = HashMap<Place, Known>;

enum Known {
    /// It was met once, and many nodes were walked.
    Met,
    /// There is nothing to learn there, or too much.
    Plain,
    Learnt(Arc<Learnt>),
}

/// What the lexer does below a node with all tokens, from one of its states on.
struct Learnt {
    /// The tokens that it takes within a lexeme.
    inside: Tokens,
    ends: Vec<End>,
}

/// The end of certain lexemes.
struct End {
    /// The bytes down to the first place where they end. Where they end with a byte that is not
    /// theirs, none of the bytes of `next` goes on with a lexeme there, either.
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
        size_of::<Self>() + inside + ends.sum::<usize>()
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
            let before = recognizer.stats_mut().clone();
            let mask = self.slicer.compute_bias(recognizer, &[]);
            let made = recognizer.stats_mut().delta(&before);
            let few = match made.slices_applied > 0 {
                true => FEW_BESIDE_SLICES,
                false => FEW_NODES,
            };
            if made.trie_nodes_walked > few {
                self.meet(&mut known, place);
            }
            return mask;
        };
        let mut mask = self.trie().alloc_token_set();
        recognizer.trie_started("walker");
        self.walk(recognizer, &mut known, &learnt, &mut mask);
        recognizer.trie_finished();
        mask
    }

    /// What was learnt of a place, where it has been met before.
    fn look_up(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Places,
        place: Place,
    ) -> Option<Arc<Learnt>> {
        match known.get(&place)? {
            Known::Plain => return None,
            Known::Learnt(learnt) => return Some(learnt.clone()),
            Known::Met => {}
        }
        let learnt = self.learn(recognizer, place);
        let learnt = learnt.filter(|learnt| learnt.bytes() < MOST_BYTES / 4);
        let learnt = learnt.map(Arc::new);
        let now = learnt.clone().map_or(Known::Plain, Known::Learnt);
        self.keep(known, place, now);
        learnt
    }

    /// Remembers a place that was met for the first time.
    fn meet(&self, known: &mut Places, place: Place) {
        if !known.contains_key(&place) {
            self.keep(known, place, Known::Met);
        }
    }

    fn keep(&self, known: &mut Places, place: Place, what: Known) {
        let more = match &what {
            Known::Learnt(learnt) => PLACE_BYTES + learnt.bytes(),
            _ => PLACE_BYTES,
        };
        let mut bytes = self.bytes() + more;
        if bytes > MOST_BYTES {
            known.clear();
            bytes = more;
        }
        self.bytes.store(bytes, Relaxed);
        known.insert(place, what);
    }

    /// The nodes below one, and its depth.
    fn below(&self, node: Option<u32>) -> (usize, usize, usize) {
        let nodes = &self.tree.nodes;
        node.map_or((0, nodes.len(), 0), |at| {
            let (at, node) = (at as usize, nodes[at as usize]);
            (at + 1, at + node.size as usize, usize::from(node.depth))
        })
    }

    /// Sends all tokens below a node through the lexer alone. Where a lexeme can end some bytes
    /// before that is seen, or a token is no text but a number, what the rules say hangs on bytes
    /// that are not known here: then nothing is learnt.
    fn learn(&self, recognizer: &mut ParserRecognizer<'_>, (node, state): Place) -> Option<Learnt> {
        let nodes = &self.tree.nodes;
        let is_number = |node: usize| nodes[node].byte == TokTrie::SPECIAL_TOKEN_MARKER;
        if node.is_some_and(|node| is_number(node as usize)) {
            return None;
        }
        let lexer = recognizer.lexer_mut();
        let (mut at, last, base) = self.below(node);
        // With the lexer's state behind the way of each end.
        let (mut inside, mut ends) = (Vec::new(), Vec::<(StateID, End)>::new());
        let mut places = HashMap::new();
        // The states behind the bytes of a path, and its nodes.
        let (mut states, mut path): (_, Vec<usize>) = (vec![state], Vec::new());
        while at < last {
            let node = nodes[at];
            let above = usize::from(node.depth) - 1 - base;
            states.truncate(above + 1);
            path.truncate(above);
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
            if !ends_before
                && (lexer.possible_hidden_len(to) > 0 || path.iter().any(|node| is_number(*node)))
            {
                return None;
            }
            let mut which = {
                let mut possible = lexer.possible_lexemes(state).iter();
                match (possible.next(), possible.next()) {
                    (Some(one), None) => Which::One(one.as_usize()),
                    _ => Which::Of(state),
                }
            };
            let next = ends_before.then_some(node.byte);
            let new = ends.len();
            let mut end = *places.entry((which, ends_before, None)).or_insert(new);
            // A byte that ends a lexeme of limited length may go on with it where it is shorter.
            let mut goes_on = |from| !lexer.transition_start_state(from, next, &None).is_dead();
            if ends_before && end != new && goes_on(ends[end].0) {
                which = Which::Of(from);
                end = *places.entry((which, ends_before, None)).or_insert(new);
            }
            if end == new {
                let way = path.iter().map(|node| nodes[*node].byte).collect();
                let next = Vec::new();
                ends.push((from, End { way, next }));
            }
            let (_, End { next: all, .. }) = &mut ends[end];
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
        let mut ends: Vec<End> = ends.into_iter().map(|(_, end)| end).collect();
        for End { next, .. } in &mut ends {
            next.shrink_to_fit();
            for Next { tokens, nodes, .. } in next {
                tokens.shrink_to_fit();
                nodes.shrink_to_fit();
            }
        }
        ends.shrink_to_fit();
        Some(Learnt {
            inside: Tokens::new(inside, self.trie().vocab_size()),
            ends,
        })
    }

    /// Asks the rules about what the lexer does not decide. The parser stands in the place of which
    /// that is known, and does afterwards.
    fn walk(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Places,
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
        recognizer.save_stats(walked);
    }

    /// Does the same below a node, behind whose byte the parser stands.
    fn walk_below(
        &self,
        recognizer: &mut ParserRecognizer<'_>,
        known: &mut Places,
        node: u32,
        mask: &mut SimpleVob,
    ) {
        let nodes = &self.tree.nodes;
        if nodes[node as usize].size > FEW_BELOW {
            let place = (Some(node), recognizer.lexer_state());
            if let Some(learnt) = self.look_up(recognizer, known, place) {
                return self.walk(recognizer, known, &learnt, mask);
            }
            self.meet(known, place);
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
#[path = "walker_tests.rs"]
mod tests;
