//! The state of loops, and of the elements that they go through.

use super::text::Text;
use super::value::{Dict, Range, Seq, Value, View};
use std::rc::Rc;

/// Elements that are still to come.
#[derive(Debug)]
pub enum Source {
    /// The elements of a list or a tuple, from an index on.
    Seq(Rc<Seq>, usize),
    /// The entries of a dict, from an entry on.
    Dict(Rc<Dict>, View, usize),
    /// Characters of a text, from a byte on.
    Chars(Text, usize),
    /// Numbers of a range, from a place on.
    Range(Rc<Range>, i128),
    /// The elements of a generator, which others may take too.
    Generator(usize),
    /// Values that nobody else has.
    Items(std::vec::IntoIter<Value>),
}

/// A loop that runs or ran.
pub struct LoopState {
    /// Its node.
    pub(super) node: usize,
    /// The scope around it.
    pub(super) parent: usize,
    pub(super) source: Source,
    pub(super) length: Option<usize>,
    /// Whether the elements that are left in `source` have passed the loop's test already.
    pub(super) tested: bool,
    /// How many recursive loops are around it.
    pub(super) depth: usize,
    /// The number of elements that were taken, including the current one.
    pub(super) taken: usize,
    pub(super) before: Option<Value>,
    pub(super) current: Option<Value>,
    /// The next element, if somebody has asked for it.
    pub(super) after: Option<Value>,
    pub(super) changed: Option<Value>,
}

impl LoopState {
    /// A loop before its first element. `length` is given if it is known without going through the
    /// elements.
    pub fn new(
        node: usize,
        parent: usize,
        source: Source,
        length: Option<usize>,
        depth: usize,
    ) -> Self {
        LoopState {
            node,
            parent,
            source,
            length,
            tested: false,
            depth,
            taken: 0,
            before: None,
            current: None,
            after: None,
            changed: None,
        }
    }
}
