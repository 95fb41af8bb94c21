//! The statements of a template.

use super::arguments::Arguments;
use super::ast::*;
use super::evaluator::{Closure, Evaluator};
use super::fault::{Fault, Kind, Result, evaluation};
use super::limits::MAX_NESTING;
use super::lookup;
use super::loops::LoopState;
use super::text::{Builder, Text};
use super::value::Value;

/// How execution goes on after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Evaluator<'t, '_> {
    /// Renders the template.
    pub fn render(&mut self) -> Result<Builder> {
        let tree = self.tree;
        self.body(&tree.body)?;
        Ok(self.outs.pop().unwrap_or_default())
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
                lookup::set_attr(self, index, attr, value)
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
        // As in jinja2, an element does not count if `break` or `continue` is reached in it.
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

    /// The text of a loop whose body may call `loop`.
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
        let mut specials = [const { None }; 3];
        if takes.caller {
            let given = keyword.iter().position(|(key, _)| key.as_str() == "caller");
            let caller = match given {
                Some(at) => keyword.remove(at).1,
                None => Value::undefined("no caller is defined"),
            };
            specials[0] = Some(caller);
        }
        if takes.kwargs {
            let mut entries = self.meter.list(keyword.len())?;
            let pairs = keyword.drain(..);
            entries.extend(pairs.map(|(key, value)| (Value::Text(key), value)));
            specials[1] = Some(Value::dict(&mut self.meter, entries)?);
        }
        if let Some((key, _)) = keyword.first() {
            let (name, key) = (name(), key.as_str());
            return evaluation(format!("the macro `{name}` has no argument `{key}`"));
        }
        if takes.varargs {
            specials[2] = Some(Value::tuple(surplus)?);
        }

        let outer = self.open(scope)?;
        for (name, value) in self.special_names.into_iter().zip(specials) {
            if let (Some(name), Some(value)) = (name, value) {
                self.set(name, value)?;
            }
        }
        // The arguments that were given are set first: a default also sees those after it.
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
