//! What several parts that hold of the same value say together. Such parts come by reference, by
//! `allOf`, and from the parts around.

use super::document::Address;
use super::{PART_STEPS, Translation, bytes};
use crate::Result;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write as _;

/// A set of types. A number that is whole has a type of its own.
pub(super) type Types = u8;

pub(super) const NULL: Types = 1;
pub(super) const BOOLEAN: Types = 2;
pub(super) const INTEGER: Types = 4;
pub(super) const FRACTION: Types = 8;
pub(super) const STRING: Types = 16;
pub(super) const ARRAY: Types = 32;
pub(super) const OBJECT: Types = 64;
pub(super) const ALL: Types = 127;

/// The most types that a part may name; JSON Schema has fewer. The limit matters because each part
/// is asked for its types often.
pub(super) const MAX_TYPES: usize = 16;

/// The types that a `type` keyword names. A list that is too long counts as all types; it is
/// refused elsewhere.
pub(super) fn said_types(said: &Value) -> Types {
    match said {
        Value::Array(types) if types.len() <= MAX_TYPES => {
            types.iter().map(named).fold(0, |a, b| a | b)
        }
        Value::Array(_) => ALL,
        one => named(one),
    }
}

fn named(name: &Value) -> Types {
    match name.as_str() {
        Some("null") => NULL,
        Some("boolean") => BOOLEAN,
        Some("integer") => INTEGER,
        Some("number") => INTEGER | FRACTION,
        Some("string") => STRING,
        Some("array") => ARRAY,
        Some("object") => OBJECT,
        // The parser refuses it.
        _ => ALL,
    }
}

/// The names of `types`. `None` if they have no name: JSON Schema has no type for exactly the
/// numbers that are not whole.
pub(super) fn names(types: Types) -> Option<Vec<&'static str>> {
    if types & (INTEGER | FRACTION) == FRACTION {
        return None;
    }
    let number = if types & FRACTION > 0 {
        "number"
    } else {
        "integer"
    };
    let all = [
        (NULL, "null"),
        (BOOLEAN, "boolean"),
        (INTEGER, number),
        (STRING, "string"),
        (ARRAY, "array"),
        (OBJECT, "object"),
    ];
    let all = all.into_iter().filter(|(one, _)| types & one > 0);
    Some(all.map(|(_, name)| name).collect())
}

pub(super) fn type_of(value: &Value) -> Types {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) => match number.as_f64() {
            Some(double) if double.fract() != 0.0 => FRACTION,
            _ => INTEGER,
        },
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// A text that two values share if JSON Schema takes them for equal. It takes 1 and 1.0 for equal.
pub(super) fn key(value: &Value) -> String {
    let mut key = String::new();
    write_key(value, &mut key);
    key
}

fn write_key(value: &Value, key: &mut String) {
    match value {
        // Adding 0.0 removes the sign of a zero.
        Value::Number(number) => _ = write!(key, "{:?}", number.as_f64().map(|n| n + 0.0)),
        Value::Array(values) => {
            key.push('[');
            for value in values {
                write_key(value, key);
                key.push(',');
            }
            key.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(name, _)| *name);
            key.push('{');
            for (name, value) in members {
                _ = write!(key, "{name:?}:");
                write_key(value, key);
                key.push(',');
            }
            key.push('}');
        }
        other => _ = write!(key, "{other}"),
    }
}

pub(super) fn keys<'b>(values: impl IntoIterator<Item = &'b Value>) -> HashSet<String> {
    values.into_iter().map(key).collect()
}

impl<'a> Translation<'a> {
    /// `parts`, and all parts that they bring in by reference and by `allOf`, each once. `None` if
    /// there is too much to look at.
    pub(super) fn all_of(&mut self, parts: &[&'a Value]) -> Result<Option<Vec<&'a Value>>> {
        let mut seen = HashSet::<Address>::new();
        let mut all = Vec::new();
        let mut waiting: Vec<&Value> = parts.iter().rev().copied().collect();
        while let Some(part) = waiting.pop() {
            if !seen.insert(part) {
                continue;
            }
            if !self.step(PART_STEPS) {
                return Ok(None);
            }
            all.push(part);
            if let Some(Value::Array(parts)) = part.get("allOf") {
                if !self.step(parts.len()) {
                    return Ok(None);
                }
                waiting.extend(parts.iter().rev());
            }
            waiting.extend(self.document.references(part)?);
        }
        Ok(Some(all))
    }

    /// The types that all of `parts` allow.
    pub(super) fn types(&self, parts: &[&Value]) -> Types {
        parts.iter().fold(ALL, |types, part| {
            let own = match part {
                Value::Bool(false) => 0,
                part => match part.get("type") {
                    Some(one @ Value::String(_)) if self.is_nullable(part) => named(one) | NULL,
                    Some(said) => said_types(said),
                    None => ALL,
                },
            };
            types & own
        })
    }

    /// Whether a part is nullable as in OpenAPI 3.0, which has no other way to allow `null`.
    /// OpenAPI's schemas name no draft.
    pub(super) fn is_nullable(&self, part: &Value) -> bool {
        part.get("nullable") == Some(&Value::Bool(true)) && !self.document.says_draft
    }

    /// The values that all of `parts` allow, if they list values and the lists are not long. Only
    /// lists and types are considered, so another keyword may still refuse a value. A value may
    /// appear twice. `None` also if there is too much to look at.
    pub(super) fn values(&mut self, parts: &[&'a Value]) -> Option<Vec<&'a Value>> {
        const MAX_LISTED: usize = 512;
        static BOOLEANS: [Value; 2] = [Value::Bool(true), Value::Bool(false)];
        static NULLS: [Value; 1] = [Value::Null];
        let types = self.types(parts);
        let mut left: Option<Vec<&Value>> = match types {
            0 => Some(Vec::new()),
            NULL => Some(NULLS.iter().collect()),
            BOOLEAN => Some(BOOLEANS.iter().collect()),
            _ => None,
        };
        for part in parts {
            for keyword in ["const", "enum"] {
                let own = match (keyword, part.get(keyword)) {
                    ("enum", Some(Value::Array(values))) => values,
                    ("const", Some(value)) if self.document.draft.has(keyword) => {
                        std::slice::from_ref(value)
                    }
                    _ => continue,
                };
                if own.len() > MAX_LISTED || !self.step(own.iter().map(steps).sum()) {
                    return None;
                }
                left = Some(match left {
                    Some(left) => {
                        let own = keys(own);
                        let is_own = |value: &&Value| own.contains(&key(value));
                        left.into_iter().filter(is_own).collect()
                    }
                    None => own.iter().collect(),
                });
            }
        }
        let mut left = left?;
        left.retain(|value| type_of(value) & types > 0);
        Some(left)
    }
}

/// The number of steps that comparing a value takes.
pub(super) fn steps(value: &Value) -> usize {
    const STEP_BYTES: usize = 32;
    bytes(value) / STEP_BYTES
}
