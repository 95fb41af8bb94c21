//! JSON of a caller as values. Keys keep their order; of a repeated key, the last value counts.

use super::fault::{Fault, Kind, Result};
use super::limits::{Meter, room};
use super::ops::too_large;
use super::text::Text;
use super::value::Value;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::iter::Peekable;
use std::vec::IntoIter;

/// The value of `json`. All texts in it are data. Errors: [`Kind::Syntax`] with the line and column
/// if it is not JSON; [`Kind::Limit`] if an integer has more than 128 bits.
pub fn read_json(meter: &mut Meter<'_>, json: &str) -> Result<Value> {
    // serde_json builds a text with escapes in a buffer of its own.
    room(2 * json.len())?;
    let large = large_integers(meter, json)?;
    let state = State {
        meter: RefCell::new(meter),
        fault: RefCell::new(None),
        numbers: Cell::new(0),
        large: RefCell::new(large.into_iter().peekable()),
    };
    let mut reader = serde_json::Deserializer::from_str(json);
    let value = Seed(&state)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match (state.fault.into_inner(), value) {
        (Some(fault), _) => Err(fault),
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(Fault::at(0, Kind::Syntax, error.to_string())),
    }
}

/// The integers that serde_json would turn into floats: integers of more than 64 bits, and -0. Each
/// is returned with the count of numbers before it.
fn large_integers(meter: &mut Meter<'_>, json: &str) -> Result<Vec<(usize, i128)>> {
    let (mut found, mut numbers, mut rest) = (Vec::new(), 0, json);
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '-' | '0'..='9')) {
        rest = &rest[at..];
        if let Some(mut text) = rest.strip_prefix('"') {
            while let Some(at) = text.find(['"', '\\']) {
                let is_end = text[at..].starts_with('"');
                text = &text[at + 1..];
                if is_end {
                    break;
                }
                text = text.get(1..).unwrap_or(""); // the character after a backslash has one byte
            }
            rest = text;
            continue;
        }
        let part_of_one = |c: char| matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9');
        let end = rest.find(|c| !part_of_one(c)).unwrap_or(rest.len());
        let number = &rest[..end];
        let digits = number.strip_prefix('-').unwrap_or(number);
        let whole = digits.bytes().all(|b| b.is_ascii_digit());
        if number == "-0" || (whole && digits.len() > 18) {
            match number.parse() {
                Ok(number) => meter.push(&mut found, (numbers, number))?,
                Err(_) => return too_large(),
            }
        }
        numbers += 1;
        rest = &rest[end..];
    }
    Ok(found)
}

struct State<'m, 'c> {
    meter: RefCell<&'m mut Meter<'c>>,
    /// A fault that serde must not put into its own words.
    fault: RefCell<Option<Box<Fault>>>,
    /// How many numbers were read.
    numbers: Cell<usize>,
    /// The part of [`large_integers`] that is left.
    large: RefCell<Peekable<IntoIter<(usize, i128)>>>,
}

impl State<'_, '_> {
    /// The number that is read next. serde_json reads it as `usual`.
    fn number(&self, usual: Value) -> Value {
        let before = self.numbers.replace(self.numbers.get() + 1);
        let mut large = self.large.borrow_mut();
        match large.next_if(|(at, _)| *at == before) {
            Some((_, number)) => Value::Int(number),
            None => usual,
        }
    }

    fn charged<T, E: serde::de::Error>(
        &self,
        what: impl FnOnce(&mut Meter<'_>) -> Result<T>,
    ) -> std::result::Result<T, E> {
        what(&mut self.meter.borrow_mut()).map_err(|fault| {
            let error = E::custom(&fault.message);
            *self.fault.borrow_mut() = Some(fault);
            error
        })
    }
}

#[derive(Clone, Copy)]
struct Seed<'s, 'm, 'c>(&'s State<'m, 'c>);

impl<'de> DeserializeSeed<'de> for Seed<'_, '_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E>(self, b: bool) -> std::result::Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, i: i64) -> std::result::Result<Value, E> {
        Ok(self.0.number(Value::Int(i.into())))
    }

    fn visit_u64<E>(self, i: u64) -> std::result::Result<Value, E> {
        Ok(self.0.number(Value::Int(i.into())))
    }

    fn visit_f64<E: serde::de::Error>(self, f: f64) -> std::result::Result<Value, E> {
        Ok(self.0.number(Value::Float(f)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Value, E> {
        let text = self.0.charged(|meter| Text::copy(meter, text, false))?;
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            self.0.charged(|meter| meter.push(&mut items, item))?;
        }
        self.0.charged(|_| Value::list(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            if !matches!(key, Value::Text(_)) {
                return Err(A::Error::custom("a key must be a string"));
            }
            let value = map.next_value_seed(self)?;
            self.0
                .charged(|meter| meter.push(&mut entries, (key, value)))?;
        }
        self.0.charged(|meter| Value::dict(meter, entries))
    }
}
