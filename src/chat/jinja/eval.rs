//! The evaluator: its state, scopes and statements.

use super::arguments::Arguments;
use super::ast::*;
use super::clock::Moment;
use super::fault::{Fault, Kind, Result, evaluation};
use super::limits::{MAX_DEPTH, MAX_NESTING, MAX_OUTPUT, Meter};
use super::repr;
use super::source::{LoopState, Source};
use super::text::{Builder, Text};
use super::value::{Missing, Value};
use super::{functions, ops};
use std::rc::Rc;

/// One rendering. `'t` is the template's tree, `'c` the cancel flag.
pub struct Evaluator<'t, 'c> {
    pub(super) tree: &'t Tree,
    pub(super) meter: Meter<'c>,
    /// The line that is being evaluated.
    pub(super) line: u32,
    /// What `strftime_now` sees.
    pub(super) now: Moment,
    /// Literals that were used so far, as values.
    texts: Vec<Option<Text>>,
    /// Functions of the environment by name.
    functions: Vec<Option<&'static str>>,
    /// Open scopes, and closed ones that a macro can still see.
    scopes: Vec<Scope>,
    /// The innermost of them.
    scope: usize,
    /// What is written to: the rendered text, then captures inside of captures.
    outs: Vec<Builder>,
    depth: usize,
    /// Macros and recursive loops that run.
    calls: usize,
    /// The name `loop`, where the template has it.
    loop_name: Option<Name>,
    // What can change, so that values hold no cycles.
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
    scope: usize,
}

struct Scope {
    parent: Option<usize>,
    vars: Vec<(Name, Value)>,
    /// A macro or a recursive loop was defined here or further in.
    kept: bool,
}

/// What a statement leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
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
        functions.extend(tree.names.iter().map(|name| functions::find(name)));
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
            namespaces: Vec::new(),
            generators: Vec::new(),
            macros: Vec::new(),
            loops: Vec::new(),
            cyclers: Vec::new(),
            joiners: Vec::new(),
        })
    }

    /// Renders the template.
    pub fn render(&mut self) -> Result<Builder> {
        let tree = self.tree;
        self.body(&tree.body)?;
        Ok(self.outs.pop().unwrap_or_default())
    }

    /// One level deeper, for what `inside` does.
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

    /// A variable, a function of the environment, or undefined.
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

    fn set(&mut self, name: Name, value: Value) -> Result<()> {
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
    fn open(&mut self, parent: usize) -> Result<usize> {
        let scope = Scope {
            parent: Some(parent),
            vars: Vec::new(),
            kept: false,
        };
        self.meter.push(&mut self.scopes, scope)?;
        Ok(std::mem::replace(&mut self.scope, self.scopes.len() - 1))
    }

    /// Closes the innermost scope; `outer` becomes it.
    fn close(&mut self, outer: usize) {
        if self.scope == self.scopes.len() - 1 && !self.scopes[self.scope].kept {
            self.scopes.pop();
        }
        self.scope = outer;
    }

    /// Keeps the innermost scope and those around it, for what can be called later.
    fn keep(&mut self) {
        let mut scope = Some(self.scope);
        while let Some(at) = scope
            && !self.scopes[at].kept
        {
            self.scopes[at].kept = true;
            scope = self.scopes[at].parent;
        }
    }

    /// Writes a value.
    fn print(&mut self, value: &Value) -> Result<()> {
        let Some(out) = self.outs.last_mut() else {
            return Ok(());
        };
        repr::print(&mut self.meter, out, value)?;
        self.check_output()
    }

    /// Writes what must be a text already, as `call` and `filter` do.
    fn print_text(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Text(_) => self.print(value),
            other => evaluation(format!("a block gives a {}, not a text", other.type_name())),
        }
    }

    fn check_output(&self) -> Result<()> {
        match self.outs.last() {
            Some(out) if out.len() > MAX_OUTPUT => {
                let message = format!("more than {MAX_OUTPUT} bytes are rendered");
                Err(Fault::at(0, Kind::Limit, message))
            }
            _ => Ok(()),
        }
    }

    /// What `inside` writes, as a text.
    fn capture(&mut self, inside: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        self.outs.push(Builder::default());
        inside(self)?;
        Ok(self.outs.pop().unwrap_or_default().finish())
    }

    fn body(&mut self, body: &'t [Stmt]) -> Result<Flow> {
        for statement in body {
            self.meter.step()?;
            self.line = statement.line;
            let flow = match &statement.kind {
                StmtKind::Data(text) => {
                    if let Some(out) = self.outs.last_mut() {
                        out.push(&mut self.meter, text, true)?;
                    }
                    self.check_output()?;
                    Flow::Next
                }
                StmtKind::Print(expr) => {
                    let value = self.eval(expr)?;
                    self.print(&value)?;
                    Flow::Next
                }
                StmtKind::Break => Flow::Break,
                StmtKind::Continue => Flow::Continue,
                _ => self.deeper(|e| e.statement(&statement.kind))?,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, kind: &'t StmtKind) -> Result<Flow> {
        match kind {
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition)?.truth() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            StmtKind::For(index) => {
                let iter = self.eval(&self.tree.loops[*index].iter)?;
                match self.tree.loops[*index].recursive {
                    true => {
                        self.keep();
                        let text = self.recursive_loop(*index, iter, self.scope, 0)?;
                        self.print(&Value::Text(text))?;
                    }
                    false => self.for_loop(*index, iter, self.scope, 0)?,
                }
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let outer = self.open(self.scope)?;
                let text = self.capture(|e| e.body(body).map(drop))?;
                let value = self.suffixes(Value::Text(text), filters, None)?;
                self.close(outer);
                self.assign(target, value)?;
            }
            StmtKind::With(pairs, body) => {
                let mut values = self.meter.list(pairs.len())?;
                for (_, expr) in pairs {
                    values.push(self.eval(expr)?);
                }
                let outer = self.open(self.scope)?;
                for ((target, _), value) in pairs.iter().zip(values) {
                    self.assign(target, value)?;
                }
                let flow = self.body(body)?;
                self.close(outer);
                return Ok(flow);
            }
            StmtKind::Macro(index) => {
                let value = self.closure(*index)?;
                if let Some(name) = self.tree.macros[*index].name {
                    self.set(name, value)?;
                }
            }
            StmtKind::Call(call, index) => {
                let caller = self.closure(*index)?;
                let ExprKind::Postfix(first, suffixes) = &call.kind else {
                    return evaluation("`call` without a call");
                };
                let first = self.eval(first)?;
                let value = self.suffixes(first, suffixes, Some(caller))?;
                self.print_text(&value)?;
            }
            StmtKind::Filter(filters, body) => {
                let outer = self.open(self.scope)?;
                let text = self.capture(|e| e.body(body).map(drop))?;
                let value = self.suffixes(Value::Text(text), filters, None)?;
                self.close(outer);
                self.print_text(&value)?;
            }
            StmtKind::Generation(body) => {
                let outer = self.open(self.scope)?;
                let text = self.capture(|e| e.body(body).map(drop))?;
                self.close(outer);
                self.print(&Value::Text(text))?;
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    fn closure(&mut self, body: usize) -> Result<Value> {
        self.keep();
        let scope = self.scope;
        self.meter.push(&mut self.macros, Closure { body, scope })?;
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn assign(&mut self, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => self.set(*name, value),
            Target::Attr(name, attr) => {
                let Value::Namespace(index) = self.variable(*name)? else {
                    return evaluation("an attribute is set on what is no namespace");
                };
                let attr = self.literal(*attr)?;
                ops::set_attr(self, index, attr, value)
            }
            Target::Tuple(targets) => {
                let mut source = self.iterate(&value)?;
                let mut values = self.meter.list(targets.len())?;
                while let Some(value) = self.next(&mut source)? {
                    if values.len() == targets.len() {
                        return evaluation(format!("more than {} values to set", targets.len()));
                    }
                    values.push(value);
                }
                if values.len() < targets.len() {
                    let (wanted, given) = (targets.len(), values.len());
                    return evaluation(format!("{given} values to set where {wanted} are needed"));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.deeper(|e| e.assign(target, value))?;
                }
                Ok(())
            }
        }
    }

    fn for_loop(&mut self, node: usize, iter: Value, parent: usize, depth: usize) -> Result<()> {
        let source = self.iterate(&iter)?;
        let length = self.known_length(&source);
        let For {
            target,
            test,
            body,
            otherwise,
            ..
        } = &self.tree.loops[node];
        let length = length.filter(|_| test.is_none());
        let state = LoopState::new(node, parent, source, length, depth);
        self.meter.push(&mut self.loops, state)?;
        let id = self.loops.len() - 1;
        let before = self.scope;
        // As in jinja2, an element at which `break` or `continue` is reached does not count.
        let mut any = false;
        while let Some(item) = self.advance(id)? {
            self.open(parent)?;
            if let Some(name) = self.loop_name {
                self.set(name, Value::Loop(id))?;
            }
            self.assign(target, item)?;
            let flow = self.body(body)?;
            self.close(before);
            any |= flow == Flow::Next;
            if flow == Flow::Break {
                break;
            }
        }
        if !any && !otherwise.is_empty() {
            self.open(parent)?;
            self.body(otherwise)?;
            self.close(before);
        }
        Ok(())
    }

    /// A loop whose body may call `loop`, as a text.
    fn recursive_loop(
        &mut self,
        node: usize,
        iter: Value,
        parent: usize,
        depth: usize,
    ) -> Result<Text> {
        self.calling(|e| e.capture(|e| e.for_loop(node, iter, parent, depth)))
    }

    /// `loop(iterable)`
    pub(super) fn call_loop(&mut self, id: usize, iter: Value) -> Result<Value> {
        let LoopState {
            node,
            parent,
            depth,
            ..
        } = self.loops[id];
        if !self.tree.loops[node].recursive {
            return evaluation("`loop` is called in a loop without `recursive`");
        }
        let text = self.deeper(|e| e.recursive_loop(node, iter, parent, depth + 1))?;
        Ok(Value::Text(text))
    }

    /// Whether element `item` passes the loop's `if`.
    pub(super) fn passes(&mut self, id: usize, item: &Value) -> Result<bool> {
        let LoopState { node, parent, .. } = self.loops[id];
        let For { target, test, .. } = &self.tree.loops[node];
        let Some(test) = test else {
            return Ok(true);
        };
        let outer = self.open(parent)?;
        self.assign(target, item.clone())?;
        let passes = self.deeper(|e| e.eval(test))?.truth();
        self.close(outer);
        Ok(passes)
    }

    fn calling<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.calls == MAX_NESTING {
            let message = format!("macros call each other more than {MAX_NESTING} levels deep");
            return Err(Fault::at(0, Kind::Limit, message));
        }
        self.calls += 1;
        let result = inside(self);
        self.calls -= 1;
        result
    }

    /// The text that a macro renders.
    pub(super) fn call_macro(&mut self, id: usize, args: Arguments) -> Result<Value> {
        let text = self.calling(|e| e.deeper(|e| e.run_macro(id, args)))?;
        Ok(Value::Text(text))
    }

    fn run_macro(&mut self, id: usize, args: Arguments) -> Result<Text> {
        let Closure { body, scope } = self.macros[id];
        let Macro {
            params,
            body,
            takes,
            name,
        } = &self.tree.macros[body];
        let name = || name.map_or("caller", |name| &self.tree.names[name as usize]);
        let Arguments {
            mut positional,
            mut keyword,
        } = args;
        let surplus = match positional.len() > params.len() {
            true => positional.split_off(params.len()),
            false => Vec::new(),
        };
        if !surplus.is_empty() && !takes.varargs {
            let (name, n) = (name(), params.len());
            return evaluation(format!("the macro `{name}` takes at most {n} arguments"));
        }
        let mut values: Vec<Option<Value>> = self.meter.list(params.len())?;
        values.extend(positional.into_iter().map(Some));
        for (param, _) in &params[values.len()..] {
            let param = &self.tree.names[*param as usize];
            let given = keyword.iter().position(|(key, _)| key.as_str() == param);
            values.push(given.map(|at| keyword.remove(at).1));
        }
        let mut specials = Vec::new();
        if takes.caller {
            let given = keyword.iter().position(|(key, _)| key.as_str() == "caller");
            let caller = match given {
                Some(at) => keyword.remove(at).1,
                None => Value::undefined("no caller is defined"),
            };
            specials.push(("caller", caller));
        }
        if takes.kwargs {
            let mut entries = self.meter.list(keyword.len())?;
            let pairs = keyword.drain(..);
            entries.extend(pairs.map(|(key, value)| (Value::Text(key), value)));
            specials.push(("kwargs", Value::dict(&mut self.meter, entries)?));
        }
        if let Some((key, _)) = keyword.first() {
            let (name, key) = (name(), key.as_str());
            return evaluation(format!("the macro `{name}` has no argument `{key}`"));
        }
        if takes.varargs {
            specials.push(("varargs", Value::tuple(surplus)?));
        }

        let outer = self.open(scope)?;
        for (special, value) in specials {
            let known = self.tree.names.iter().position(|name| name == special);
            if let Some(name) = known {
                self.set(name as Name, value)?;
            }
        }
        // All that were given come first: a default sees those behind it, too.
        for ((param, _), value) in params.iter().zip(&values) {
            if let Some(value) = value {
                self.set(*param, value.clone())?;
            }
        }
        for ((param, default), value) in params.iter().zip(values) {
            if value.is_some() {
                continue;
            }
            let value = match default {
                Some(default) => self.eval(default)?,
                None => {
                    let name = &self.tree.names[*param as usize];
                    Value::undefined(format!("the parameter `{name}` was not provided"))
                }
            };
            self.set(*param, value)?;
        }
        let text = self.capture(|e| e.body(body).map(drop))?;
        self.close(outer);
        Ok(text)
    }
}
