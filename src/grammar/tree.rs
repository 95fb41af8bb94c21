//! The tokens of a vocabulary as a tree of their bytes.

use llguidance::toktrie::{SimpleVob, TokTrie, TokenId};

/// One byte, which follows the bytes of the nodes above it.
#[derive(Clone, Copy)]
pub(super) struct Node {
    /// The token that ends here, or [`Node::NONE`].
    pub token: TokenId,
    /// Number of nodes in this subtree: this node and all below it. They lie one after the other.
    pub size: u32,
    /// Number of bytes down to this one, which is included.
    pub depth: u16,
    pub byte: u8,
}

impl Node {
    pub const NONE: TokenId = TokenId::MAX;
}

/// The nodes, each before those below it. Also the tokens that have no node of their own, because
/// another token has the same bytes.
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    /// `(token, the token that has the node)`.
    twins: Vec<(TokenId, TokenId)>,
}

impl Tree {
    /// Builds the tree for the tokens of `trie`, because the nodes of `trie` cannot be reached one
    /// by one.
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

    /// If one of several tokens with the same bytes is allowed, allows all of them. The parser
    /// allows all of them or only one, depending on how it computed its mask.
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

/// Ends the subtrees of the path's nodes that are deeper than `depth`: nothing more comes below
/// them.
fn close(nodes: &mut [Node], path: &mut Vec<usize>, depth: usize) {
    let end = nodes.len();
    for at in path.drain(depth..) {
        nodes[at].size = (end - at) as u32;
    }
}
