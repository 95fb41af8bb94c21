//! Values of the evaluator: Python's, as far as templates see them.

mod compare;
mod dict;

pub use compare::{Number, equal, order};
pub use dict::Dict;

use super::fault::Result;
use super::limits::{MAX_VALUE_DEPTH, Meter};
use super::text::Text;
use std::rc::Rc;

/// A value. Lists and dicts are never changed. Whatever can change is in tables of the evaluator,
/// and the value has an index into them, so that values have no cycles.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Value {
    /// Nothing is there, with the sentence that says so.
    Undefined(Rc<Missing>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    /// `keys()`, `values()`, `items()`
    View(Rc<Dict>, View),
    Range(Rc<Range>),
    /// A method of a value.
    Method(Rc<Value>, &'static str),
    /// A function of the environment.
    Function(&'static str),
    Namespace(usize),
    /// The result of filters such as `map`. It goes through its elements once.
    Generator(usize),
    Macro(usize),
    Loop(usize),
    Cycler(usize),
    Joiner(usize),
}

/// Why something is undefined.
#[derive(Debug)]
pub enum Missing {
    /// There is no such variable.
    Name(String),
    /// A value of that type has no such attribute.
    Attr(&'static str, Text),
    /// A value of that type has no such element.
    Element(&'static str, String),
    /// Another sentence.
    Hint(String),
}

impl Missing {
    /// The sentence.
    pub fn sentence(&self) -> String {
        match self {
            Missing::Name(name) => format!("`{name}` is undefined"),
            Missing::Attr(of, name) => format!("a value of type {of} has no `{}`", name.as_str()),
            Missing::Element(of, name) => format!("a value of type {of} has no element {name}"),
            Missing::Hint(sentence) => sentence.clone(),
        }
    }
}

/// Which view of a dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum View {
    Keys,
    Values,
    Items,
}

/// Elements of a list or a tuple.
#[derive(Debug)]
pub struct Seq {
    /// In order.
    pub items: Vec<Value>,
    /// Whether this is one of the pairs that `groupby` gives. Their elements have the names
    /// `grouper` and `list`.
    pub is_group: bool,
    depth: u32,
}

/// `range(start, stop, step)` with `len` elements.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
    pub len: i128,
}

impl Range {
    /// Element `i`.
    pub fn get(&self, i: i128) -> Value {
        Value::Int(self.place(i))
    }

    /// The number at place `i` or, outside of the range, the number that would be there, as far as
    /// integers go.
    pub fn place(&self, i: i128) -> i128 {
        self.start.saturating_add(i.saturating_mul(self.step))
    }
}

fn one_deeper(depth: u32) -> Result<u32> {
    match depth < MAX_VALUE_DEPTH {
        true => Ok(depth + 1),
        false => Err(super::fault::Fault::at(
            0,
            super::fault::Kind::Limit,
            format!("a value has more than {MAX_VALUE_DEPTH} levels"),
        )),
    }
}

impl Value {
    /// A list of elements that have been charged.
    pub fn list(items: Vec<Value>) -> Result<Value> {
        Ok(Value::List(Rc::new(seq(items)?)))
    }

    /// A tuple of elements that have been charged.
    pub fn tuple(items: Vec<Value>) -> Result<Value> {
        Ok(Value::Tuple(Rc::new(seq(items)?)))
    }

    /// A pair of what the elements of a list have in common, and the list. It has been charged.
    pub fn group(pair: Vec<Value>) -> Result<Value> {
        let mut group = seq(pair)?;
        group.is_group = true;
        Ok(Value::Tuple(Rc::new(group)))
    }

    /// A dict of pairs that have been charged.
    pub fn dict(meter: &mut Meter<'_>, entries: Vec<(Value, Value)>) -> Result<Value> {
        Ok(Value::Dict(Rc::new(Dict::new(meter, entries)?)))
    }

    /// Undefined, with a sentence.
    pub fn undefined(hint: impl Into<String>) -> Value {
        Value::Undefined(Rc::new(Missing::Hint(hint.into())))
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(seq) | Value::Tuple(seq) => seq.depth,
            Value::Dict(dict) | Value::View(dict, _) => dict.depth,
            Value::Method(of, _) => of.depth(),
            _ => 0,
        }
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(_, View::Keys) => "dict_keys",
            Value::View(_, View::Values) => "dict_values",
            Value::View(_, View::Items) => "dict_items",
            Value::Range(_) => "range",
            Value::Method(..) => "method",
            Value::Function(_) => "function",
            Value::Namespace(_) => "Namespace",
            Value::Generator(_) => "generator",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// Python's name of the type with its article.
    pub fn of_type(&self) -> String {
        let name = self.type_name();
        let article = match name {
            "int" | "Undefined" => "an",
            _ => "a",
        };
        format!("{article} {name}")
    }

    /// Python's `bool(value)`.
    pub fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Text(text) => !text.as_str().is_empty(),
            Value::List(seq) | Value::Tuple(seq) => !seq.items.is_empty(),
            Value::Dict(dict) | Value::View(dict, _) => !dict.entries().is_empty(),
            Value::Range(range) => range.len > 0,
            _ => true,
        }
    }

    /// The value as Python's number: bools are integers.
    pub fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(b) => Some(Number::Int(i128::from(*b))),
            Value::Int(i) => Some(Number::Int(*i)),
            Value::Float(f) => Some(Number::Float(*f)),
            _ => None,
        }
    }

    /// The value as an index, if it is an integer or a bool.
    pub fn index(&self) -> Option<i128> {
        match self.number()? {
            Number::Int(i) => Some(i),
            Number::Float(_) => None,
        }
    }
}

fn seq(items: Vec<Value>) -> Result<Seq> {
    let depth = items.iter().map(Value::depth).max().unwrap_or(0);
    let depth = one_deeper(depth)?;
    Ok(Seq {
        items,
        is_group: false,
        depth,
    })
}
