//! Values of the evaluator: Python's, as far as templates see them.

use super::fault::{Result, evaluation};
use super::limits::{MAX_VALUE_DEPTH, Meter};
use super::text::Text;
use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;

/// A value. Lists and dicts are never changed; what can change lives in tables of the evaluator and
/// is an index here, so that values hold no cycles.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Value {
    /// Nothing there; with the sentence about it.
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
    /// What filters such as `map` return: goes through its elements once.
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
        Value::Int(self.start + i * self.step)
    }
}

/// A dict in the order of insertion.
#[derive(Debug)]
pub struct Dict {
    entries: Vec<(Value, Value)>,
    /// Hashes and entries in ascending order, where a search is worth it.
    index: Vec<(u64, u32)>,
    depth: u32,
}

/// Entries that are searched one by one.
const FEW: usize = 8;

thread_local! {
    // Keyed, so that nobody outside knows keys of equal hashes.
    static HASHER: RandomState = RandomState::new();
}

fn hash(key: &Value, meter: &mut Meter<'_>) -> Result<u64> {
    let hash_of = |bytes: &[u8], kind: u8| HASHER.with(|hasher| hasher.hash_one((kind, bytes)));
    Ok(match key {
        Value::Text(text) => {
            meter.look_at(text.as_str().len())?;
            hash_of(text.as_str().as_bytes(), 0)
        }
        Value::None => hash_of(&[], 1),
        Value::Bool(b) => hash_of(&i128::from(*b).to_le_bytes(), 2),
        Value::Int(i) => hash_of(&i.to_le_bytes(), 2),
        Value::Float(f) if f.fract() == 0.0 && f.abs() < 1e38 => {
            hash_of(&(*f as i128).to_le_bytes(), 2)
        }
        Value::Float(f) => hash_of(&f.to_bits().to_le_bytes(), 3),
        Value::Tuple(seq) => {
            let mut all: u64 = 4;
            for item in &seq.items {
                meter.step()?;
                let one = hash(item, meter)?;
                all = all.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ one;
            }
            all
        }
        Value::List(_) | Value::Dict(_) | Value::View(..) => {
            return evaluation(format!("{} cannot be a key", key.of_type()));
        }
        Value::Range(range) => hash_of(&range.len.to_le_bytes(), 5),
        Value::Undefined(_) => hash_of(&[], 6),
        Value::Method(_, name) | Value::Function(name) => hash_of(name.as_bytes(), 7),
        Value::Namespace(i)
        | Value::Generator(i)
        | Value::Macro(i)
        | Value::Loop(i)
        | Value::Cycler(i)
        | Value::Joiner(i) => hash_of(&i.to_le_bytes(), 8),
    })
}

impl Dict {
    /// A dict of pairs that have been charged: of equal keys the first's place and the last's
    /// value.
    pub fn new(meter: &mut Meter<'_>, mut entries: Vec<(Value, Value)>) -> Result<Dict> {
        let mut depth = 0;
        for (key, value) in &entries {
            depth = depth.max(key.depth()).max(value.depth());
        }
        let depth = one_deeper(depth)?;
        let mut index = Vec::new();
        if entries.len() <= FEW {
            let mut n = 0;
            for i in 0..entries.len() {
                hash(&entries[i].0, meter)?;
                let mut earlier = None;
                for j in 0..n {
                    if equal(&entries[j].0, &entries[i].0, meter)? {
                        earlier = Some(j);
                        break;
                    }
                }
                match earlier {
                    Some(j) => entries[j].1 = entries[i].1.clone(),
                    None => {
                        entries.swap(n, i);
                        n += 1;
                    }
                }
            }
            entries.truncate(n);
            return Ok(Dict {
                entries,
                index,
                depth,
            });
        }
        loop {
            index.clear();
            let mut new = meter.list(entries.len())?;
            for (i, (key, _)) in entries.iter().enumerate() {
                new.push((hash(key, meter)?, i as u32));
            }
            new.sort_unstable();
            index = new;
            let mut surplus = Vec::new();
            let mut group = 0;
            for at in 1..index.len() {
                if index[at].0 != index[group].0 {
                    group = at;
                    continue;
                }
                let (_, later) = index[at];
                for &(_, first) in &index[group..at] {
                    let (first, later) = (first as usize, later as usize);
                    if equal(&entries[first].0, &entries[later].0, meter)? {
                        entries[first].1 = entries[later].1.clone();
                        meter.push(&mut surplus, later)?;
                        break;
                    }
                }
            }
            if surplus.is_empty() {
                return Ok(Dict {
                    entries,
                    index,
                    depth,
                });
            }
            surplus.sort_unstable();
            let mut at = 0;
            entries.retain(|_| {
                at += 1;
                surplus.binary_search(&(at - 1)).is_err()
            });
        }
    }

    /// The pairs, in order.
    pub fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    /// The value of a key.
    pub fn get(&self, meter: &mut Meter<'_>, key: &Value) -> Result<Option<&Value>> {
        if self.index.is_empty() {
            if !matches!(key, Value::Text(_)) {
                hash(key, meter)?;
            }
            for (other, value) in &self.entries {
                if equal(other, key, meter)? {
                    return Ok(Some(value));
                }
            }
            return Ok(None);
        }
        let wanted = hash(key, meter)?;
        let from = self.index.partition_point(|&(hash, _)| hash < wanted);
        for &(_, i) in self.index[from..].iter().take_while(|e| e.0 == wanted) {
            let (other, value) = &self.entries[i as usize];
            if equal(other, key, meter)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The value of a key that is a text.
    pub fn get_text(&self, key: &str) -> Option<&Value> {
        let found = self.entries.iter().find(|(other, _)| match other {
            Value::Text(text) => text.as_str() == key,
            _ => false,
        });
        found.map(|(_, value)| value)
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

    /// The same with its article.
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
            Value::Dict(dict) | Value::View(dict, _) => !dict.entries.is_empty(),
            Value::Range(range) => range.len > 0,
            _ => true,
        }
    }

    /// As a number of Python's: bools are integers.
    pub fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(b) => Some(Number::Int(i128::from(*b))),
            Value::Int(i) => Some(Number::Int(*i)),
            Value::Float(f) => Some(Number::Float(*f)),
            _ => None,
        }
    }

    /// As an index: an integer or a bool.
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
    Ok(Seq { items, depth })
}

/// A number.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// As a float.
    pub fn float(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(f) => f,
        }
    }

    fn order(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
            (Number::Int(a), Number::Float(b)) => int_float(a, b),
            (Number::Float(a), Number::Int(b)) => int_float(b, a).map(Ordering::reverse),
        }
    }
}

/// An integer and a float, without rounding the integer.
fn int_float(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() || b.abs() >= 1.7e38 {
        return (a as f64).partial_cmp(&b);
    }
    let whole = b.trunc();
    Some(match a.cmp(&(whole as i128)) {
        Ordering::Equal => whole.partial_cmp(&b)?,
        other => other,
    })
}

/// Python's `==`.
pub fn equal(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Result<bool> {
    if let (Some(a), Some(b)) = (a.number(), b.number()) {
        return Ok(a.order(b) == Some(Ordering::Equal));
    }
    Ok(match (a, b) {
        (Value::None, Value::None) | (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::Text(a), Value::Text(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            if a.len() == b.len() && a.len() >= super::limits::STEP_BYTES {
                meter.look_at(a.len())?;
            }
            a == b
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                meter.step()?;
                if !equal(a, b, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                meter.step()?;
                match b.get(meter, key)? {
                    Some(other) if equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len == b.len
                && (a.len == 0 || (a.start == b.start && (a.len == 1 || a.step == b.step)))
        }
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Namespace(a), Value::Namespace(b))
        | (Value::Generator(a), Value::Generator(b))
        | (Value::Macro(a), Value::Macro(b))
        | (Value::Loop(a), Value::Loop(b))
        | (Value::Cycler(a), Value::Cycler(b))
        | (Value::Joiner(a), Value::Joiner(b)) => a == b,
        _ => false,
    })
}

/// Python's `<`, `==` or `>`; none where a NaN has no place.
pub fn order(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Result<Option<Ordering>> {
    if let (Some(a), Some(b)) = (a.number(), b.number()) {
        return Ok(a.order(b));
    }
    match (a, b) {
        (Value::Undefined(missing), _) | (_, Value::Undefined(missing)) => {
            evaluation(missing.sentence())
        }
        (Value::Text(a), Value::Text(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            meter.look_at(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                meter.step()?;
                if !equal(a, b, meter)? {
                    return order(a, b, meter);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            evaluation(format!("{a} and {b} have no order"))
        }
    }
}
