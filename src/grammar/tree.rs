//! The tokens of a vocabulary as a tree of their bytes.

use llguidance::toktrie::{SimpleVob, TokTrie, TokenId};

/// A byte behind those of the nodes above it.
#[derive(Clone, Copy)]
pub(super) struct Node {
    /// The token that ends here, or [`Node::NONE`].
    pub token: TokenId,
    /// So many nodes, from this one on, are this one and those below it.
    pub size: u32,
    /// Bytes down to this one.
    pub depth: u16,
    pub byte: u8,
}

impl Node {
    pub const NONE: TokenId = TokenId::MAX;
}

/// The nodes, each in front of those below it; and the tokens that have no node of their own,
/// because another one has the same bytes.
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    /// `(token, the one whose node it is)`.
    twins: Vec<(TokenId, TokenId)>,
}

impl Tree {
    /// Of the same tokens as `trie`, whose nodes cannot be reached one by one.
    pub fn new(trie: &TokTrie) -> Self {
        let (mut nodes, mut path): (Vec<Node>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut bytes: Vec<u8> = Vec::new();
        for (token, text) in trie.sorted_tokens() {
            let common = bytes.iter().zip(&text).take_while(|(a, b)| a == b).count();
            close(&mut nodes, &mut path, common);
            for (at, byte) in text.iter().enumerate().skip(common) {
                path.push(nodes.len());
                nodes.push(Node {
                    token: Node::NONE,
                    size: 0,
                    depth: at as u16 + 1,
                    byte: *byte,
                });
            }
            if let Some(last) = path.last() {
                nodes[*last].token = token;
            }
            bytes = text;
        }
        close(&mut nodes, &mut path, 0);
        let ids = 0..trie.vocab_size() as TokenId;
        let twins = ids.filter_map(|token| {
            let known = trie.token_id_at_bytes(trie.token(token))?;
            (known != token).then_some((token, known))
        });
        Self {
            twins: twins.collect(),
            nodes,
        }
    }

    /// Allows a token wherever one with the same bytes is. The parser allows all of them or one,
    /// by the way in which it came to its mask.
    pub fn allow_twins(&self, mask: &mut SimpleVob) {
        for to_node in [true, false] {
            for &(token, known) in &self.twins {
                let (from, to) = if to_node {
                    (token, known)
                } else {
                    (known, token)
                };
                if mask.is_allowed(from) {
                    mask.allow_token(to);
                }
            }
        }
    }
}

/// Nothing more comes below the nodes of the path that are deeper than `depth`.
fn close(nodes: &mut [Node], path: &mut Vec<usize>, depth: usize) {
    let end = nodes.len();
    for at in path.drain(depth..) {
        nodes[at].size = (end - at) as u32;
    }
}
