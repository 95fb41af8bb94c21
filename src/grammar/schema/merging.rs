//! Refuses objects on which the parser would work for minutes.
//!
//! The parser merges all parts that hold of one value into one object, once for each of their
//! alternatives. It limits the number of parts. It does not limit the number of required names,
//! which it copies each time. Nor does it limit the number of patterns of names, and it compares
//! every pair of them.

use super::refused;
use crate::Result;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// The most names of properties that one object may have. The parser's work grows with the square
/// of their number. A Zen 4 took 6 seconds for 8,000 properties, and 22 seconds for 15,000, which
/// the parser then refused.
const MAX_NAMES: usize = 1 << 13;

/// The most required names, over all alternatives of all objects. They take two seconds and 350 MB.
const MAX_COPIES: usize = 1 << 22;

/// The most work on patterns of names. It takes two seconds, and is reached by 150 short patterns
/// of one object, or by 80 patterns that come one by one from different parts.
const MAX_PATTERN_WORK: usize = 1 << 23;

/// Size of the objects that the parser makes from one part.
#[derive(Clone, Copy, Default)]
struct Size {
    properties: usize,
    required: usize,
    patterns: usize,
    pattern_bytes: usize,
    /// Number of parts that have patterns.
    with_patterns: usize,
    /// Number of alternatives beyond the first.
    others: usize,
}

impl Size {
    fn alternatives(self) -> usize {
        self.others.saturating_add(1)
    }

    /// The size if `other` holds of the same value as well.
    fn with(self, other: Size) -> Size {
        let both = |a: usize, b: usize| a.saturating_add(b);
        let alternatives = self.alternatives().saturating_mul(other.alternatives());
        Size {
            properties: both(self.properties, other.properties),
            required: both(self.required, other.required),
            patterns: both(self.patterns, other.patterns),
            pattern_bytes: both(self.pattern_bytes, other.pattern_bytes),
            with_patterns: both(self.with_patterns, other.with_patterns),
            others: alternatives - 1,
        }
    }

    /// The size if either `self` or `other` holds: the larger count of the two, for all
    /// alternatives of both.
    fn or(self, other: Size) -> Size {
        Size {
            properties: self.properties.max(other.properties),
            required: self.required.max(other.required),
            patterns: self.patterns.max(other.patterns),
            pattern_bytes: self.pattern_bytes.max(other.pattern_bytes),
            with_patterns: self.with_patterns.max(other.with_patterns),
            others: self.others.saturating_add(other.alternatives()),
        }
    }

    fn copies(self) -> usize {
        let each = self.required.saturating_mul(1 + self.patterns);
        each.saturating_mul(self.alternatives())
    }

    fn pattern_work(self) -> usize {
        let pairs = self.patterns.saturating_mul(self.patterns);
        let each = self.patterns + self.pattern_bytes / 8;
        let times = self.alternatives().saturating_add(self.with_patterns / 8);
        pairs.saturating_mul(each).saturating_mul(times)
    }
}

/// Refuses a schema on which the parser would work for minutes.
pub(super) fn check(root: &Value, definitions: &Map<String, Value>) -> Result<()> {
    let mut search = Search {
        root,
        definitions,
        known: HashMap::new(),
        copies: 0,
        pattern_work: 0,
    };
    search.check(root)?;
    definitions.values().try_for_each(|part| search.check(part))
}

struct Search<'a> {
    root: &'a Value,
    definitions: &'a Map<String, Value>,
    /// Sizes of definitions. If a definition leads back to itself, it counts as empty at that
    /// place.
    known: HashMap<&'a str, Size>,
    copies: usize,
    pattern_work: usize,
}

impl<'a> Search<'a> {
    /// Checks a part that is merged with no part around it, and the parts inside it.
    fn check(&mut self, part: &'a Value) -> Result<()> {
        let size = self.size(part, false);
        let names = size.properties.max(size.required);
        if names > MAX_NAMES {
            return Err(refused(format!(
                "an object would have {names} names of properties, at most {MAX_NAMES} can be"
            )));
        }
        self.copies = self.copies.saturating_add(size.copies());
        if self.copies > MAX_COPIES {
            return Err(refused(format!(
                "more than {MAX_COPIES} names would be required, counted in each alternative"
            )));
        }
        self.pattern_work = self.pattern_work.saturating_add(size.pattern_work());
        if self.pattern_work > MAX_PATTERN_WORK {
            return Err(refused(format!(
                "telling {} patterns of names from each other would take too long",
                size.patterns
            )));
        }
        self.check_inside(part)
    }

    fn check_inside(&mut self, part: &'a Value) -> Result<()> {
        let Value::Object(members) = part else {
            return Ok(());
        };
        for (keyword, value) in members {
            match (&**keyword, value) {
                ("const" | "enum", _) => {}
                // They were counted with the whole part, so only what is inside them is checked.
                ("allOf" | "anyOf", Value::Array(parts)) => {
                    parts.iter().try_for_each(|part| self.check_inside(part))?;
                }
                ("properties" | "patternProperties", Value::Object(named)) => {
                    named.values().try_for_each(|part| self.check(part))?;
                }
                (_, Value::Array(parts)) => {
                    parts.iter().try_for_each(|part| self.check(part))?;
                }
                (_, part) => self.check(part)?,
            }
        }
        Ok(())
    }

    /// `is_merged`: the part is merged with others, so the parser also merges what it refers to. If
    /// a definition is only referred to, the parser makes it once for all references.
    fn size(&mut self, part: &'a Value, is_merged: bool) -> Size {
        let Value::Object(members) = part else {
            return Size::default();
        };
        let named = |keyword: &str| members.get(keyword).and_then(Value::as_object);
        let list = |keyword: &str| members.get(keyword).and_then(Value::as_array);
        let patterns = named("patternProperties");
        let mut size = Size {
            properties: named("properties").map_or(0, Map::len),
            required: list("required").map_or(0, Vec::len),
            patterns: patterns.map_or(0, Map::len),
            pattern_bytes: patterns.map_or(0, |named| named.keys().map(String::len).sum()),
            with_patterns: patterns.is_some().into(),
            others: 0,
        };
        let is_merged = is_merged || members.len() > 1;
        if let Some(parts) = list("allOf") {
            let is_merged = is_merged || parts.len() > 1;
            for part in parts {
                size = size.with(self.size(part, is_merged));
            }
        }
        let mut alternatives = list("anyOf").into_iter().flatten();
        if let Some(first) = alternatives.next() {
            let first = self.size(first, is_merged);
            let or = |all: Size, part| all.or(self.size(part, is_merged));
            size = size.with(alternatives.fold(first, or));
        }
        match members.get("$ref").and_then(Value::as_str) {
            Some(reference) if is_merged => size.with(self.definition(reference)),
            _ => size,
        }
    }

    fn definition(&mut self, reference: &'a str) -> Size {
        let part = match reference.strip_prefix("#/$defs/") {
            Some(name) => self.definitions.get(name),
            None => Some(self.root),
        };
        let Some(part) = part else {
            return Size::default();
        };
        if let Some(&size) = self.known.get(reference) {
            return size;
        }
        self.known.insert(reference, Size::default());
        let size = self.size(part, true);
        self.known.insert(reference, size);
        size
    }
}
