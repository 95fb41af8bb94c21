//! Going through the elements of values, generators and loops.

use super::evaluator::Evaluator;

use super::fault::{Result, evaluation};
use super::loops::Source;
use super::text::Text;
use super::value::{Value, View};
use std::rc::Rc;

impl Evaluator<'_, '_> {
    /// Python's `iter(value)`.
    pub(super) fn iterate(&mut self, value: &Value) -> Result<Source> {
        Ok(match value {
            Value::List(seq) | Value::Tuple(seq) => Source::Seq(seq.clone(), 0),
            Value::Dict(dict) => Source::Dict(dict.clone(), View::Keys, 0),
            Value::View(dict, view) => Source::Dict(dict.clone(), *view, 0),
            Value::Text(text) => Source::Chars(text.clone(), 0),
            Value::Range(range) => Source::Range(range.clone(), 0),
            Value::Generator(id) => Source::Generator(*id),
            Value::Undefined(_) => Source::Items(Vec::new().into_iter()),
            other => return evaluation(format!("{} has no elements", other.of_type())),
        })
    }

    /// Python's `len` of the elements that are still to come, if it has one that is known without
    /// counting: this is asked at each beginning of a loop.
    pub(super) fn known_length(&self, source: &Source) -> Option<usize> {
        Some(match source {
            Source::Seq(seq, at) => seq.items.len() - at,
            Source::Dict(dict, _, at) => dict.entries().len() - at,
            Source::Range(range, at) => (range.len - at) as usize,
            Source::Chars(..) | Source::Generator(_) => return None,
            Source::Items(items) => items.len(),
        })
    }

    /// The next element.
    pub(super) fn next(&mut self, source: &mut Source) -> Result<Option<Value>> {
        self.meter.step()?;
        Ok(match source {
            Source::Seq(seq, at) => {
                *at += 1;
                seq.items.get(*at - 1).cloned()
            }
            Source::Dict(dict, view, at) => {
                *at += 1;
                match (dict.entries().get(*at - 1), view) {
                    (None, _) => None,
                    (Some((key, _)), View::Keys) => Some(key.clone()),
                    (Some((_, value)), View::Values) => Some(value.clone()),
                    (Some((key, value)), View::Items) => {
                        let mut pair = self.meter.list(2)?;
                        pair.extend([key.clone(), value.clone()]);
                        Some(Value::tuple(pair)?)
                    }
                }
            }
            Source::Chars(text, at) => match text.as_str()[*at..].chars().next() {
                Some(c) => {
                    let from = *at;
                    *at += c.len_utf8();
                    self.meter.make(size_of::<Text>() + 64)?;
                    let c = text.slice(&mut self.meter, from, *at)?;
                    Some(Value::Text(c.marked(false)))
                }
                None => None,
            },
            Source::Range(range, at) => {
                *at += 1;
                (*at <= range.len).then(|| range.get(*at - 1))
            }
            Source::Generator(id) => {
                let empty = Source::Items(Vec::new().into_iter());
                let mut inner = std::mem::replace(&mut self.generators[*id], empty);
                let next = self.next(&mut inner);
                self.generators[*id] = inner;
                return next;
            }
            Source::Items(items) => items.next(),
        })
    }

    /// Python's `list(value)`.
    pub(super) fn elements(&mut self, value: &Value) -> Result<Vec<Value>> {
        let mut source = self.iterate(value)?;
        self.rest(&mut source)
    }

    fn rest(&mut self, source: &mut Source) -> Result<Vec<Value>> {
        let mut items = self
            .meter
            .list(self.known_length(source).unwrap_or(0).min(1 << 20))?;
        while let Some(item) = self.next(source)? {
            if items.len() == items.capacity() {
                self.meter.push(&mut items, item)?;
            } else {
                items.push(item);
            }
        }
        Ok(items)
    }

    /// A generator of these elements.
    pub(super) fn generator(&mut self, items: Vec<Value>) -> Result<Value> {
        let source = Source::Items(items.into_iter());
        self.meter.push(&mut self.generators, source)?;
        Ok(Value::Generator(self.generators.len() - 1))
    }

    /// The next element of a loop that passes its test.
    pub(super) fn advance(&mut self, id: usize) -> Result<Option<Value>> {
        let next = match self.loops[id].after.take() {
            Some(after) => Some(after),
            None => self.fetch(id)?,
        };
        if let Some(item) = &next {
            let state = &mut self.loops[id];
            state.taken += 1;
            state.before = state.current.replace(item.clone());
        }
        Ok(next)
    }

    fn fetch(&mut self, id: usize) -> Result<Option<Value>> {
        let empty = Source::Items(Vec::new().into_iter());
        let mut source = std::mem::replace(&mut self.loops[id].source, empty);
        let found = loop {
            match self.next(&mut source)? {
                Some(item) if !self.loops[id].tested && !self.passes(id, &item)? => {}
                found => break found,
            }
        };
        self.loops[id].source = source;
        Ok(found)
    }

    fn peek(&mut self, id: usize) -> Result<Option<Value>> {
        if self.loops[id].after.is_none() {
            self.loops[id].after = self.fetch(id)?;
        }
        Ok(self.loops[id].after.clone())
    }

    fn loop_length(&mut self, id: usize) -> Result<usize> {
        if let Some(length) = self.loops[id].length {
            return Ok(length);
        }
        let mut rest = Vec::new();
        while let Some(item) = self.fetch(id)? {
            self.meter.push(&mut rest, item)?;
        }
        let state = &mut self.loops[id];
        let length = rest.len() + state.taken + usize::from(state.after.is_some());
        state.length = Some(length);
        state.tested = true;
        state.source = Source::Items(rest.into_iter());
        Ok(length)
    }

    /// An attribute of `loop`.
    pub(super) fn loop_attr(&mut self, id: usize, name: &str) -> Result<Option<Value>> {
        let int = |n: usize| Some(Value::Int(n as i128));
        let (taken, depth) = (self.loops[id].taken, self.loops[id].depth);
        Ok(match name {
            "index" => int(taken),
            "index0" => Some(Value::Int(taken as i128 - 1)),
            "first" => Some(Value::Bool(taken == 1)),
            "last" => Some(Value::Bool(self.peek(id)?.is_none())),
            "length" => int(self.loop_length(id)?),
            "revindex" => Some(Value::Int(
                self.loop_length(id)? as i128 - taken as i128 + 1,
            )),
            "revindex0" => Some(Value::Int(self.loop_length(id)? as i128 - taken as i128)),
            "depth" => int(depth + 1),
            "depth0" => int(depth),
            "previtem" => Some(match &self.loops[id].before {
                Some(before) => before.clone(),
                None => Value::undefined("there is no previous item"),
            }),
            "nextitem" => Some(match self.peek(id)? {
                Some(next) => next,
                None => Value::undefined("there is no next item"),
            }),
            "cycle" => Some(Value::Method(Rc::new(Value::Loop(id)), "cycle")),
            "changed" => Some(Value::Method(Rc::new(Value::Loop(id)), "changed")),
            _ => None,
        })
    }

    /// `loop.cycle(...)`
    pub(super) fn loop_cycle(&mut self, id: usize, items: Vec<Value>) -> Result<Value> {
        if items.is_empty() {
            return evaluation("`loop.cycle` needs something to cycle through");
        }
        let at = self.loops[id].taken.wrapping_sub(1) % items.len();
        Ok(items[at].clone())
    }

    /// `loop.changed(...)`
    pub(super) fn loop_changed(&mut self, id: usize, values: Vec<Value>) -> Result<Value> {
        let values = Value::tuple(values)?;
        let same = match self.loops[id].changed.clone() {
            Some(last) => super::value::equal(&last, &values, &mut self.meter)?,
            None => false,
        };
        self.loops[id].changed = Some(values);
        Ok(Value::Bool(!same))
    }
}
