//! Chat templates: the part of Jinja that they use. It has jinja2's meaning in the environment of
//! transformers' `apply_chat_template` (`trim_blocks`, `lstrip_blocks`, `loopcontrols`,
//! `generation`, `raise_exception`, `strftime_now`, its `tojson`, jinja2's sandbox).
//!
//! A template comes with a download and is a program. So two things differ from other evaluators:
//! - [`limits`]: steps, bytes made, nesting and output are bounded. Whatever a template can make
//!   large is charged before memory is allocated for it.
//! - [`Run`]s: rendered text says which of its bytes the template wrote, so that a message cannot
//!   spell a special token.
//!
//! Differences from jinja2:
//! - `include`, `import`, `extends`, `block` and `autoescape` do not exist.
//! - Integers have 128 bits.
//! - `map`, `select` and similar filters go through their elements at once.
//! - If an inner block uses a variable before it sets it, the variable has the caller's value until
//!   then.

mod arguments;
mod ast;
mod braces;
mod clock;
mod eval;
mod evaluator;
mod expr;
mod fault;
mod filters;
mod format;
mod functions;
mod json;
mod lexer;
pub mod limits;
mod lookup;
mod loops;
mod methods;
mod names;
mod ops;
mod parse_expr;
mod parse_stmt;
mod parser;
mod percent;
mod predicates;
mod repr;
mod sequences;
mod source;
mod strings;
mod text;
mod value;

pub use clock::Moment;
pub use fault::{Fault, Kind};
pub use json::read_json;
pub use limits::Meter;
pub use text::Text;
pub use value::{Dict, Value};

use crate::tokenizer::Run;
use ast::{ExprKind, Suffix, SuffixKind};
use fault::Result;

/// A template that was read and can be rendered any number of times.
#[derive(Debug)]
pub struct Template {
    tree: ast::Tree,
}

/// What was rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Who wrote which part. Together the runs are as long as the text.
    pub runs: Vec<Run>,
    /// Steps that were taken and bytes that were made.
    pub used: (u64, u64),
}

impl Template {
    /// Reads a template. [`Kind::Limit`] if it is larger than [`limits::MAX_TEMPLATE`].
    pub fn read(source: &str) -> Result<Template> {
        if source.len() > limits::MAX_TEMPLATE {
            let (len, most) = (source.len(), limits::MAX_TEMPLATE);
            let message = format!("the template has {len} bytes, at most {most} are read");
            return Err(Fault::at(1, Kind::Limit, message));
        }
        // A byte becomes at most one token and one node. Both lists cannot be told that memory is
        // short, so the memory is asked for beforehand.
        limits::room(source.len().saturating_mul(256))?;
        let source = lexer::normalised(source);
        let tokens = lexer::tokens(&source)?;
        let tree = parser::parse(&tokens)?;
        Ok(Template { tree })
    }

    /// Whether the template names this variable.
    pub fn names(&self, variable: &str) -> bool {
        self.tree.names.iter().any(|name| name == variable)
    }

    /// Whether a `for` goes through a variable or an attribute of this name, which may be filtered.
    pub fn goes_through(&self, name: &str) -> bool {
        self.tree.loops.iter().any(|node| {
            let (first, suffixes) = match &node.iter.kind {
                ExprKind::Postfix(first, suffixes) => (&**first, &suffixes[..]),
                _ => (&node.iter, &[][..]),
            };
            let passes = |suffix: &&Suffix| {
                !matches!(suffix.kind, SuffixKind::Filter(..) | SuffixKind::Slice(_))
            };
            let is_text = |index: usize| self.tree.texts[index] == name;
            match suffixes
                .iter()
                .rev()
                .find(passes)
                .map(|suffix| &suffix.kind)
            {
                Some(SuffixKind::Attr(index)) => is_text(*index),
                Some(SuffixKind::Item(key)) => {
                    matches!(&key.kind, ExprKind::Text(index) if is_text(*index))
                }
                Some(_) => false,
                None => matches!(
                    &first.kind,
                    ExprKind::Name(index) if self.tree.names[*index as usize] == name
                ),
            }
        })
    }

    /// Renders the template. `meter` has already counted what the variables took.
    pub fn render(
        &self,
        meter: Meter<'_>,
        now: Moment,
        variables: Vec<(&str, Value)>,
    ) -> Result<Rendered> {
        let mut evaluator = evaluator::Evaluator::new(&self.tree, meter, now, variables)?;
        match evaluator.render() {
            Ok(out) => {
                let (text, runs) = out.into_parts();
                let used = evaluator.meter.used();
                Ok(Rendered { text, runs, used })
            }
            Err(mut fault) => {
                if fault.line == 0 {
                    fault.line = evaluator.line;
                }
                Err(fault)
            }
        }
    }
}
