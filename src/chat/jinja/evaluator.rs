//! The state of a rendering: scopes, variables and output. Other files implement more of
//! [`Evaluator`]: what templates can do.

use super::ast::{Name, Tree};
use super::clock::Moment;
use super::fault::{Fault, Kind, Result, evaluation};
use super::limits::{MAX_DEPTH, MAX_OUTPUT, Meter};
use super::loops::{LoopState, Source};
use super::text::{Builder, Text};
use super::value::{Missing, Value};
use super::{names, repr};
use std::rc::Rc;

/// One rendering. `'t` is the lifetime of the template's tree, `'c` that of the cancel flag.
pub struct Evaluator<'t, 'c> {
    pub(super) tree: &'t Tree,
    pub(super) meter: Meter<'c>,
    /// The line that is being evaluated.
    pub(super) line: u32,
    /// The time that `strftime_now` sees.
    pub(super) now: Moment,
    /// The literals that were used so far, as values.
    texts: Vec<Option<Text>>,
    /// Functions of the environment by name.
    functions: Vec<Option<&'static str>>,
    /// Open scopes, and closed ones that a macro can still see.
    scopes: Vec<Scope>,
    /// The innermost open scope.
    pub(super) scope: usize,
    /// Where output goes: the rendered text, then captures within captures.
    pub(super) outs: Vec<Builder>,
    depth: usize,
    /// How many macros and recursive loops are running.
    pub(super) calls: usize,
    /// The name `loop`, if the template uses it.
    pub(super) loop_name: Option<Name>,
    /// `caller`, `kwargs` and `varargs`, if the template uses them.
    pub(super) special_names: [Option<Name>; 3],
    // Everything that can change is in these tables, so that values have no cycles.
    pub(super) namespaces: Vec<Vec<(Text, Value)>>,
    pub(super) generators: Vec<Source>,
    pub(super) macros: Vec<Closure>,
    pub(super) loops: Vec<LoopState>,
    pub(super) cyclers: Vec<(Vec<Value>, usize)>,
    pub(super) joiners: Vec<(Value, bool)>,
}

/// A macro and the scope in which it was defined.
#[derive(Clone, Copy)]
pub(super) struct Closure {
    pub(super) body: usize,
    pub(super) scope: usize,
}

struct Scope {
    parent: Option<usize>,
    vars: Vec<(Name, Value)>,
    /// Whether a macro or a recursive loop was defined in this scope or in an inner one.
    kept: bool,
}

impl<'t, 'c> Evaluator<'t, 'c> {
    /// An evaluator for `tree` that sees the caller's `variables`.
    pub fn new(
        tree: &'t Tree,
        mut meter: Meter<'c>,
        now: Moment,
        variables: Vec<(&str, Value)>,
    ) -> Result<Self> {
        let name_of = |wanted: &str| tree.names.iter().position(|name| name == wanted);
        let mut vars = meter.list(variables.len())?;
        for (name, value) in variables {
            if let Some(name) = name_of(name) {
                vars.push((name as Name, value));
            }
        }
        let mut texts = meter.list(tree.texts.len())?;
        texts.resize(tree.texts.len(), None);
        let mut functions = meter.list(tree.names.len())?;
        functions.extend(tree.names.iter().map(|name| names::function(name)));
        Ok(Evaluator {
            tree,
            meter,
            line: 1,
            now,
            texts,
            functions,
            scopes: vec![Scope {
                parent: None,
                vars,
                kept: true,
            }],
            scope: 0,
            outs: vec![Builder::default()],
            depth: 0,
            calls: 0,
            loop_name: name_of("loop").map(|name| name as Name),
            special_names: ["caller", "kwargs", "varargs"]
                .map(|name| name_of(name).map(|name| name as Name)),
            namespaces: Vec::new(),
            generators: Vec::new(),
            macros: Vec::new(),
            loops: Vec::new(),
            cyclers: Vec::new(),
            joiners: Vec::new(),
        })
    }

    /// Runs `inside` one level deeper.
    pub(super) fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            let message = format!("evaluated more than {MAX_DEPTH} levels deep");
            return Err(Fault::at(0, Kind::Limit, message));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// A literal or an attribute's name as a text.
    pub(super) fn literal(&mut self, index: usize) -> Result<Text> {
        if let Some(text) = &self.texts[index] {
            return Ok(text.clone());
        }
        let text = Text::copy(&mut self.meter, &self.tree.texts[index], true)?;
        self.texts[index] = Some(text.clone());
        Ok(text)
    }

    /// The value of a name: a variable, a function of the environment, or undefined.
    pub(super) fn variable(&mut self, name: Name) -> Result<Value> {
        let mut scope = Some(self.scope);
        let mut passed = 0;
        while let Some(at) = scope {
            let Scope { parent, vars, .. } = &self.scopes[at];
            passed += 1 + vars.len();
            if let Some((_, value)) = vars.iter().find(|(other, _)| *other == name) {
                self.meter.look_through(passed)?;
                return Ok(value.clone());
            }
            scope = *parent;
        }
        self.meter.look_through(passed)?;
        Ok(match self.functions[name as usize] {
            Some(function) => Value::Function(function),
            None => {
                let name = self.tree.names[name as usize].clone();
                Value::Undefined(Rc::new(Missing::Name(name)))
            }
        })
    }

    pub(super) fn set(&mut self, name: Name, value: Value) -> Result<()> {
        let vars = &mut self.scopes[self.scope].vars;
        self.meter.look_through(vars.len())?;
        match vars.iter_mut().find(|(other, _)| *other == name) {
            Some((_, old)) => {
                *old = value;
                Ok(())
            }
            None => self.meter.push(vars, (name, value)),
        }
    }

    /// Opens a scope inside of `parent` and returns the scope that was the innermost.
    pub(super) fn open(&mut self, parent: usize) -> Result<usize> {
        let scope = Scope {
            parent: Some(parent),
            vars: Vec::new(),
            kept: false,
        };
        self.meter.push(&mut self.scopes, scope)?;
        Ok(std::mem::replace(&mut self.scope, self.scopes.len() - 1))
    }

    /// Closes the innermost scope. `outer` becomes the innermost one.
    pub(super) fn close(&mut self, outer: usize) {
        if self.scope == self.scopes.len() - 1 && !self.scopes[self.scope].kept {
            self.scopes.pop();
        }
        self.scope = outer;
    }

    /// Keeps the innermost scope, and those around it, for macros and loops that can be called
    /// later.
    pub(super) fn keep(&mut self) {
        let mut scope = Some(self.scope);
        while let Some(at) = scope
            && !self.scopes[at].kept
        {
            self.scopes[at].kept = true;
            scope = self.scopes[at].parent;
        }
    }

    /// Writes a value.
    pub(super) fn print(&mut self, value: &Value) -> Result<()> {
        let Some(out) = self.outs.last_mut() else {
            return Ok(());
        };
        repr::print(&mut self.meter, out, value)?;
        self.check_output()
    }

    /// Writes a value that must be a text already, as `call` and `filter` do.
    pub(super) fn print_text(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Text(_) => self.print(value),
            other => evaluation(format!("a block gives {}, not a text", other.of_type())),
        }
    }

    pub(super) fn check_output(&self) -> Result<()> {
        match self.outs.last() {
            Some(out) if out.len() > MAX_OUTPUT => {
                let message = format!("more than {MAX_OUTPUT} bytes are rendered");
                Err(Fault::at(0, Kind::Limit, message))
            }
            _ => Ok(()),
        }
    }

    /// The text that `inside` writes.
    pub(super) fn capture(&mut self, inside: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        self.outs.push(Builder::default());
        inside(self)?;
        Ok(self.outs.pop().unwrap_or_default().finish())
    }
}
