//! Turns tokens into a tree: jinja2's grammar with the extensions `loopcontrols` and `generation`.
//! Statements are in `parse_stmt`, expressions in `parse_expr`.

use super::ast::*;
use super::fault::{Fault, Kind, Result};
use super::lexer::{Tok, Token};
use super::limits::MAX_NESTING;
use super::names;
use std::collections::HashMap;

/// The tree of these tokens.
pub fn parse(tokens: &[Token<'_>]) -> Result<Tree> {
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
        lenient: false,
        loops: 0,
        in_for: 0,
        takes: Takes::default(),
        tree: Tree::default(),
        names: HashMap::new(),
        texts: HashMap::new(),
    };
    parser.tree.body = parser.statements(&[])?;
    Ok(parser.tree)
}

pub(super) struct Parser<'s> {
    tokens: &'s [Token<'s>],
    at: usize,
    depth: usize,
    /// Whether this is inside of a condition. An unknown filter there matters only when it is
    /// reached.
    pub(super) lenient: bool,
    /// The number of loops that a `break` could end.
    pub(super) loops: usize,
    /// The number of loops around this place, even those outside of a macro. `loop` cannot be
    /// assigned to in them.
    pub(super) in_for: usize,
    /// The special names that the macro that is being read uses.
    pub(super) takes: Takes,
    pub(super) tree: Tree,
    names: HashMap<&'s str, Name>,
    texts: HashMap<String, usize>,
}

impl<'s> Parser<'s> {
    pub(super) fn tok(&self) -> &'s Tok<'s> {
        &self.tokens[self.at].tok
    }

    pub(super) fn next_tok(&self) -> &'s Tok<'s> {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + 1).min(last)].tok
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    pub(super) fn skip(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    pub(super) fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Fault::at(self.line(), Kind::Syntax, message))
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.tok(), Tok::Op(found) if *found == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.tok(), Tok::Name(found) if *found == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.skip();
        }
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.skip();
        }
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<()> {
        match self.skip_op(op) {
            true => Ok(()),
            false => self.fail(format!("expected `{op}`, found {}", self.tok().describe())),
        }
    }

    pub(super) fn expect_name(&mut self) -> Result<&'s str> {
        match self.tok() {
            Tok::Name(name) => {
                self.skip();
                Ok(name)
            }
            other => self.fail(format!("expected a name, found {}", other.describe())),
        }
    }

    pub(super) fn expect(&mut self, tok: Tok<'static>) -> Result<()> {
        if *self.tok() == tok {
            self.skip();
            return Ok(());
        }
        let found = self.tok().describe();
        self.fail(format!("expected {}, found {found}", tok.describe()))
    }

    /// Runs `inside` one level deeper.
    pub(super) fn nested<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_NESTING {
            let message = format!("nested more than {MAX_NESTING} levels deep");
            return Err(Fault::at(self.line(), Kind::Limit, message));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    pub(super) fn name(&mut self, name: &'s str) -> Name {
        match name {
            "varargs" => self.takes.varargs = true,
            "kwargs" => self.takes.kwargs = true,
            "caller" => self.takes.caller = true,
            _ => {}
        }
        let names = &mut self.tree.names;
        *self.names.entry(name).or_insert_with(|| {
            names.push(name.to_owned());
            names.len() as Name - 1
        })
    }

    pub(super) fn text(&mut self, text: &str) -> usize {
        if let Some(&index) = self.texts.get(text) {
            return index;
        }
        self.tree.texts.push(text.to_owned());
        let index = self.tree.texts.len() - 1;
        self.texts.insert(text.to_owned(), index);
        index
    }

    pub(super) fn is_tuple_end(&self, ends: &[&str]) -> bool {
        match self.tok() {
            Tok::PrintEnd | Tok::BlockEnd | Tok::Op(")") => true,
            Tok::Name(name) => ends.contains(name),
            _ => false,
        }
    }

    /// Whether a filter (or a test) of that name must exist now.
    pub(super) fn check_known(&self, test: bool, name: &str) -> Result<()> {
        let (known, what) = match test {
            true => (names::is_test(name), "test"),
            false => (names::is_filter(name), "filter"),
        };
        match known || self.lenient {
            true => Ok(()),
            false => self.fail(format!("there is no {what} `{name}`")),
        }
    }
}
