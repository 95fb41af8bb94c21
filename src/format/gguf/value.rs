//! Values of keys: where they lie, and reading them when they are asked for.

use super::{Gguf, PIECE, Reader};
use crate::format::limits::MAX_GGUF_STRING;
use crate::{Error, Result, reserve, sentence};
use std::ops::Range;

/// A type of values (`enum gguf_type`), without lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    U64,
    I64,
    F64,
}

/// Number in a file, type, name, bytes (of a text: of its length).
const SCALARS: [(u32, Scalar, &str, u64); 12] = [
    (0, Scalar::U8, "u8", 1),
    (1, Scalar::I8, "i8", 1),
    (2, Scalar::U16, "u16", 2),
    (3, Scalar::I16, "i16", 2),
    (4, Scalar::U32, "u32", 4),
    (5, Scalar::I32, "i32", 4),
    (6, Scalar::F32, "f32", 4),
    (7, Scalar::Bool, "bool", 1),
    (8, Scalar::Text, "text", 8),
    (10, Scalar::U64, "u64", 8),
    (11, Scalar::I64, "i64", 8),
    (12, Scalar::F64, "f64", 8),
];

/// The number of a list, which the type of its elements follows.
const LIST: u32 = 9;

impl Scalar {
    fn of_number(number: u32) -> Option<Scalar> {
        let entry = SCALARS.iter().find(|entry| entry.0 == number);
        entry.map(|entry| entry.1)
    }

    fn entry(self) -> &'static (u32, Scalar, &'static str, u64) {
        let entry = SCALARS.iter().find(|entry| entry.1 == self);
        entry.expect("the table has every type")
    }

    /// Name.
    fn name(self) -> &'static str {
        self.entry().2
    }

    /// Bytes in a file.
    fn bytes(self) -> u64 {
        self.entry().3
    }
}

/// A value, still in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value {
    scalar: Scalar,
    /// Elements, where it is a list.
    list: Option<u64>,
    /// Where its key begins.
    begin: u64,
    /// Where it lies: of a list, the first element.
    at: u64,
    end: u64,
}

impl Value {
    /// The value that follows `key`; the reader is left behind it.
    pub(super) fn find(reader: &mut Reader<'_>, key: &str) -> Result<Value> {
        let what = format!("the value of key `{}`", sentence::name(key));
        // A key follows its length, of 8 bytes.
        let begin = reader.at - key.len() as u64 - 8;
        let path = reader.path;
        let bad = |detail: String| Error::format(path, format!("{what} {detail}"));
        let scalar = |number, place: &str| {
            let found = Scalar::of_number(number);
            found.ok_or_else(|| bad(format!("has {place} of number {number}, which is unknown")))
        };
        let number = reader.u32(&what)?;
        let (scalar, list) = if number == LIST {
            let number = reader.u32(&what)?;
            if number == LIST {
                return Err(bad("is a list of lists, which is not read".into()));
            }
            (
                scalar(number, "elements of a type")?,
                Some(reader.u64(&what)?),
            )
        } else {
            (scalar(number, "a type")?, None)
        };
        let (at, n) = (reader.at, list.unwrap_or(1));
        if scalar == Scalar::Text {
            for _ in 0..n {
                let len = text_len(reader, &what)?;
                reader.pass(len, &what)?;
            }
        } else {
            reader.pass(n.saturating_mul(scalar.bytes()), &what)?;
        }
        let end = reader.at;
        Ok(Value {
            scalar,
            list,
            begin,
            at,
            end,
        })
    }

    /// Where it and its key lie.
    pub(super) fn entry(&self) -> Range<u64> {
        self.begin..self.end
    }

    /// Where it lies, if it is a number of 32 bits without a sign.
    pub(super) fn place_of_u32(&self) -> Option<u64> {
        let is_one = self.scalar == Scalar::U32 && self.list.is_none();
        is_one.then_some(self.at)
    }

    /// What it is, for messages.
    fn describe(&self) -> String {
        match self.list {
            None => format!("a value of type {}", self.scalar.name()),
            Some(n) => format!("a list of {n} of type {}", self.scalar.name()),
        }
    }
}

fn text_len(reader: &mut Reader<'_>, what: &str) -> Result<u64> {
    let len = reader.u64(what)?;
    if len > MAX_GGUF_STRING {
        let detail =
            format!("{what} has a text of {len} bytes, at most {MAX_GGUF_STRING} are read");
        return Err(Error::format(reader.path, detail));
    }
    Ok(len)
}

/// A number that a file holds.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
    Bool(u8),
}

impl Number {
    fn read(reader: &mut Reader<'_>, scalar: Scalar, what: &str) -> Result<Number> {
        Ok(match scalar {
            Scalar::U8 => Number::Integer(u8::from_le_bytes(reader.array(what)?).into()),
            Scalar::I8 => Number::Integer(i8::from_le_bytes(reader.array(what)?).into()),
            Scalar::U16 => Number::Integer(u16::from_le_bytes(reader.array(what)?).into()),
            Scalar::I16 => Number::Integer(i16::from_le_bytes(reader.array(what)?).into()),
            Scalar::U32 => Number::Integer(reader.u32(what)?.into()),
            Scalar::I32 => Number::Integer(i32::from_le_bytes(reader.array(what)?).into()),
            Scalar::U64 => Number::Integer(reader.u64(what)?.into()),
            Scalar::I64 => Number::Integer(i64::from_le_bytes(reader.array(what)?).into()),
            Scalar::F32 => Number::Float(f32::from_le_bytes(reader.array(what)?).into()),
            Scalar::F64 => Number::Float(f64::from_le_bytes(reader.array(what)?)),
            Scalar::Bool => Number::Bool(reader.array::<1>(what)?[0]),
            Scalar::Text => unreachable!("a text is no number"),
        })
    }

    fn u64(self) -> Option<u64> {
        match self {
            Number::Integer(n) => n.try_into().ok(),
            _ => None,
        }
    }

    fn i64(self) -> Option<i64> {
        match self {
            Number::Integer(n) => n.try_into().ok(),
            _ => None,
        }
    }

    fn i32(self) -> Option<i32> {
        match self {
            Number::Integer(n) => n.try_into().ok(),
            _ => None,
        }
    }

    fn f64(self) -> Option<f64> {
        match self {
            Number::Float(x) => Some(x),
            _ => None,
        }
    }

    fn bool(self) -> Option<bool> {
        match self {
            Number::Bool(b @ 0..=1) => Some(b == 1),
            _ => None,
        }
    }
}

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Number::Integer(n) => n.fmt(f),
            Number::Float(x) => x.fmt(f),
            Number::Bool(b) => b.fmt(f),
        }
    }
}

/// Keys by name: `None` where the file has none of that name, [`Error::Config`] where its value is
/// of another type or range.
impl Gguf {
    /// The names of all keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    /// An integer that is not negative.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.number(key, "an integer that is not negative", Number::u64)
    }

    /// An integer.
    pub fn i64(&self, key: &str) -> Result<Option<i64>> {
        self.number(key, "an integer", Number::i64)
    }

    /// A floating-point number, as the file has it: perhaps not finite.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.number(key, "a floating-point number", Number::f64)
    }

    /// True or false.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.number(key, "a boolean", Number::bool)
    }

    /// A text.
    pub fn text(&self, key: &str) -> Result<Option<String>> {
        let is_text = |value: &&Value| value.scalar == Scalar::Text && value.list.is_none();
        let Some(value) = self.value(key, "a text", is_text)? else {
            return Ok(None);
        };
        let bytes = self.text_bytes(&mut self.reader(value), key)?;
        let text = String::from_utf8(bytes);
        text.map(Some)
            .map_err(|_| self.wrong(key, "a text", "bytes that are not UTF-8"))
    }

    /// A list of integers that are not negative, or one alone.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.numbers(key, "integers that are not negative", Number::u64)
    }

    /// A list of 32-bit integers, or one alone.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.numbers(key, "32-bit integers", Number::i32)
    }

    /// A list of floating-point numbers, or one alone.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.numbers(key, "floating-point numbers", |n| n.f64().map(|x| x as f32))
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let are_texts = |value: &&Value| value.scalar == Scalar::Text && value.list.is_some();
        let Some(value) = self.value(key, "a list of texts", are_texts)? else {
            return Ok(None);
        };
        // The file holds that many lengths.
        let mut texts = reserve::room("a list of a file", value.list.unwrap_or(0) as usize)?;
        let mut reader = self.reader(value);
        for i in 0..value.list.unwrap_or(0) {
            let text = String::from_utf8(self.text_bytes(&mut reader, key)?);
            texts.push(text.map_err(|_| {
                let got = format!("bytes that are not UTF-8 at place {i}");
                self.wrong(key, "a list of texts", got)
            })?);
        }
        Ok(Some(texts))
    }

    /// The error for a key with a wrong value.
    pub fn wrong(&self, key: &str, expected: &str, got: impl ToString) -> Error {
        Error::Config {
            path: self.table.path.clone(),
            key: key.into(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    fn value(
        &self,
        key: &str,
        expected: &str,
        fits: impl Fn(&&Value) -> bool,
    ) -> Result<Option<&Value>> {
        let Some(value) = self.keys.get(key) else {
            return Ok(None);
        };
        match fits(&value) {
            true => Ok(Some(value)),
            false => Err(self.wrong(key, expected, value.describe())),
        }
    }

    fn reader(&self, value: &Value) -> Reader<'_> {
        Reader::new(
            &self.table.path,
            &self.table.file,
            value.at..value.end,
            None,
        )
    }

    fn number<T>(
        &self,
        key: &str,
        expected: &str,
        of: impl Fn(Number) -> Option<T>,
    ) -> Result<Option<T>> {
        let is_number = |value: &&Value| value.scalar != Scalar::Text && value.list.is_none();
        let Some(value) = self.value(key, expected, is_number)? else {
            return Ok(None);
        };
        let number = Number::read(&mut self.reader(value), value.scalar, key)?;
        let found = of(number);
        found.map(Some).ok_or_else(|| {
            let got = format!("{number} of type {}", value.scalar.name());
            self.wrong(key, expected, got)
        })
    }

    fn numbers<T>(
        &self,
        key: &str,
        expected: &str,
        of: impl Fn(Number) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let are_numbers = |value: &&Value| value.scalar != Scalar::Text;
        let Some(value) = self.value(key, expected, are_numbers)? else {
            return Ok(None);
        };
        let n = value.list.unwrap_or(1);
        let mut numbers = reserve::room("a list of a file", n as usize)?;
        let mut reader = self.reader(value);
        for i in 0..n {
            let number = Number::read(&mut reader, value.scalar, key)?;
            let Some(number) = of(number) else {
                let got = format!("{number} of type {} at place {i}", value.scalar.name());
                return Err(self.wrong(key, expected, got));
            };
            numbers.push(number);
        }
        Ok(Some(numbers))
    }

    /// The bytes of the text that comes next.
    fn text_bytes(&self, reader: &mut Reader<'_>, key: &str) -> Result<Vec<u8>> {
        let len = text_len(reader, key)?;
        reader.check(len, key)?;
        let mut bytes = reserve::room("a text of a file", len as usize)?;
        while bytes.len() < len as usize {
            let n = PIECE.min(len as usize - bytes.len());
            bytes.extend_from_slice(reader.take(n, key)?);
        }
        Ok(bytes)
    }
}
