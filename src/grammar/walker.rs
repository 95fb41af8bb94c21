//! Computes masks, and learns which tokens a lexer state decides on its own.
//!
//! The bytes of a token run through the lexer, starting in its current state. There are three
//! cases:
//!
//! 1. The lexer stays inside one lexeme for all bytes. The token is allowed, whatever the rules of
//!    the grammar say.
//! 2. The lexer rejects a byte. The token is not allowed.
//! 3. A lexeme ends inside the token. Only then the rules of the grammar are consulted.
//!
//! The same is true from any node of the token tree on, in the lexer state at that node. Cases 1
//! and 2, and the places where lexemes end, depend on the lexer state alone. So they are found once
//! per node and state: [`Learnt`].
//!
//! Whether the rules allow the end of a lexeme depends on three things: the place in the rules, the
//! set of lexemes that may have ended (the lexer state knows them), and the byte behind the lexeme,
//! if that byte was needed to see the end. The bytes of the lexeme do not matter. So the rules are
//! asked once for all tokens that come to such an end. If the rules allow it, the parser is in the
//! same place behind all of these tokens: [`End`]. The rules are asked behind one example of the
//! lexeme, and the byte must show the end behind this example too. That can fail: with
//! `[0-9]{1,5}`, a digit behind five digits shows the end, but behind two digits the same digit is
//! the third one of the lexeme.
//!
//! For example, in a program behind `total`: 34,000 tokens that continue the name are allowed
//! without asking the rules. The rules are asked about some 40 bytes that may stand behind a name.
//! If they allow a `(`, then 30,000 tokens that continue with a name behind it are known already,
//! and so on.
//!
//! A state that is met for the first time is left to llguidance, because many states are met only
//! once. llguidance has found out beforehand which tokens can stand in a string. It also handles
//! the states in which a lexeme can end in a way that depends on its bytes: [`Known::Plain`].

use super::lock;
use super::tree::{Node, Tree};
use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie, TokenId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// If llguidance walks no more nodes than this for a mask, the state is not learnt. Walking them
/// takes 20 us.
const FEW_NODES: usize = 1000;

/// The same limit if llguidance's slices have saved work; they save the most in strings. In a
/// string of limited length every byte leads to a state that does not come back soon. Learning each
/// of these states would throw away what is known of others.
const FEW_BESIDE_SLICES: usize = 8000;

/// If a node's subtree has no more nodes than this, it is walked rather than learnt.
const FEW_BELOW: u32 = 32;

/// The most bytes of what is learnt. Beyond that, everything is forgotten and learning begins
/// again: what is needed now comes back soon.
const MOST_BYTES: usize = if cfg!(test) { 100_000 } else { 4 << 20 };

/// Memory counted for one place that was met.
const PLACE_BYTES: usize = 64;

/// Computes the masks of all parsers that share a lexer. That lexer numbers the states.
pub(super) struct Walker {
    tree: Arc<Tree>,
    slicer: Arc<SlicedBiasComputer>,
    known: Mutex<Places>,
    bytes: AtomicUsize,
}

/// Where something is known from: a node of the tree (`None`: all tokens), and the lexer state
/// there.
type Place = (Option<u32>, StateID);

type Places = HashMap<Place, Known>;

enum Known {
    /// The place was met once, and many nodes were walked for it.
    Met,
    /// There is nothing to learn at this place, or too much.
    Plain,
    Learnt(Arc<Learnt>),
}

/// What the lexer does from one of its states on, for all tokens below a node.
struct Learnt {
    /// The tokens that stay inside a lexeme.
    inside: Tokens,
    ends: Vec<End>,
}

/// The end of certain lexemes, see [`Which`].
struct End {
    /// The bytes of the first path on which these lexemes end, without the last byte, which is in
    /// `next`. If that byte is not part of the lexeme, then no byte of `next` continues a lexeme
    /// behind `way`.
    way: Vec<u8>,
    /// If bytes behind the lexemes show their end: one entry for each such byte. If the lexemes end
    /// with a byte of their own that no further byte of theirs can follow: one entry, with one such
    /// byte.
    next: Vec<Next>,
}

struct Next {
    byte: u8,
    /// The tokens that end with this byte.
    tokens: Vec<TokenId>,
    /// The nodes of this byte that have nodes below them.
    nodes: Vec<u32>,
}

/// Which lexemes end.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    /// Only this lexeme.
    One(usize),
    /// All lexemes that can end in this lexer state.
    Of(StateID),
}

/// A set of tokens.
enum Tokens {
    Few(Vec<TokenId>),
    Many(SimpleVob),
}

impl Tokens {
    /// `n`: the number of all tokens.
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

    /// A walker of the same tokens for another lexer. It has learnt nothing yet.
    pub fn apart(&self) -> Self {
        Self::new(self.tree.clone(), self.slicer.clone())
    }

    /// Bytes of what was learnt.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The mask if no bytes are given that come before the tokens.
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

    /// What was learnt of a place, if the place has been met before.
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

    /// The nodes below `node` as a range `(first, end)`, and the depth of `node`. `None`: all
    /// nodes, and 0.
    fn below(&self, node: Option<u32>) -> (usize, usize, usize) {
        let nodes = &self.tree.nodes;
        node.map_or((0, nodes.len(), 0), |at| {
            let (at, node) = (at as usize, nodes[at as usize]);
            (at + 1, at + node.size as usize, usize::from(node.depth))
        })
    }

    /// Runs all tokens below a node through the lexer alone. Learns nothing (`None`) if what the
    /// rules say depends on bytes that are not known here: if a lexeme can end some bytes before
    /// its end is seen, or if a token is matched by its number rather than by its text.
    fn learn(&self, recognizer: &mut ParserRecognizer<'_>, (node, state): Place) -> Option<Learnt> {
        let nodes = &self.tree.nodes;
        let is_number = |node: usize| nodes[node].byte == TokTrie::SPECIAL_TOKEN_MARKER;
        if node.is_some_and(|node| is_number(node as usize)) {
            return None;
        }
        let lexer = recognizer.lexer_mut();
        let (mut at, last, base) = self.below(node);
        // Each end comes with the lexer state behind its `way`.
        let (mut inside, mut ends) = (Vec::new(), Vec::<(StateID, End)>::new());
        let mut places = HashMap::new();
        // The lexer states along the current path (the first is the start state), and the nodes of
        // the path.
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
            // With a lexeme of limited length, the byte that ends it here may continue it behind
            // the `way` of the end that was found before, if the lexeme is shorter there.
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

    /// Asks the rules about what the lexer does not decide, and adds the allowed tokens to `mask`.
    /// The parser stands at the place that `learnt` describes, before the call and after it.
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
                        // No new row was made: none of these lexemes can stand here, whatever byte
                        // follows.
                        break;
                    }
                }
            }
            recognizer.pop_bytes(pushed);
        }
        recognizer.save_stats(walked);
    }

    /// Does the same below `node`. The parser stands behind the byte of that node.
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

/// Counters that grow if the rules allow a lexeme. If a new row was made, it has items
/// (`all_items`). If the row existed already, `cached_rows` grows.
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
