//! Finds parts that no value satisfies. There are two kinds:
//!
//! - Each value of the part would contain another value of the part. The parser would lead a text
//!   into the part, and the text could never end.
//! - The part contradicts itself. The parser leaves such a part out if a value can do without it.
//!   But if a definition is such a part, the parser refuses the whole schema.

use super::conjunction::{
    ALL, ARRAY, BOOLEAN, FRACTION, INTEGER, NULL, OBJECT, STRING, Types, key, keys, said_types,
    type_of,
};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The most looks at parts. A part that was not looked at counts as one that has values.
const MAX_STEPS: usize = 1 << 20;

/// Replaces references to definitions without a value by `false`, in the parser's schema.
pub(super) fn prune(root: &mut Value, definitions: &mut Map<String, Value>) {
    // If contradictions leave no value at all, the schema is left to the parser, which has a
    // message that names the contradiction.
    let told = filled(root, definitions, true).filter(|filled| filled.contains("#"));
    let Some(filled) = told.or_else(|| filled(root, definitions, false)) else {
        return;
    };
    if filled.len() == definitions.len() + 1 {
        return;
    }
    definitions.retain(|name, _| filled.contains(&reference_to(name)));
    for part in definitions.values_mut() {
        prune_references(&filled, part);
    }
    match filled.contains("#") {
        true => prune_references(&filled, root),
        false => *root = false.into(),
    }
}

fn reference_to(name: &str) -> String {
    format!("#/$defs/{name}")
}

/// References to the parts that have a value. `None` if it would take too long to tell.
fn filled(
    root: &Value,
    definitions: &Map<String, Value>,
    sees_contradictions: bool,
) -> Option<HashSet<String>> {
    let mut search = Search {
        root,
        definitions,
        sees_contradictions,
        filled: HashSet::new(),
        steps: 0,
    };
    // Starts without any definition, and adds those that have a value by what is known so far,
    // until no more are added. The last definition comes first, because a definition stands behind
    // those that refer to it.
    loop {
        let before = search.filled.len();
        let all = definitions.iter().rev();
        let all = all.map(|(name, part)| (reference_to(name), part));
        for (reference, part) in all.chain([("#".into(), root)]) {
            if !search.filled.contains(&reference) && search.may_have_a_value(part, true) {
                search.filled.insert(reference);
            }
        }
        if search.steps > MAX_STEPS {
            return None;
        }
        if search.filled.len() == before {
            return Some(search.filled);
        }
    }
}

struct Search<'a> {
    root: &'a Value,
    definitions: &'a Map<String, Value>,
    sees_contradictions: bool,
    /// References to parts that may have a value.
    filled: HashSet<String>,
    steps: usize,
}

/// A part that, together with others, holds of one value.
#[derive(Clone, Copy)]
struct Held<'a> {
    members: &'a Map<String, Value>,
    /// Whether the part stands inside the definition that is looked at. The contents of other
    /// definitions are looked at on their own, and may lead back here.
    is_own: bool,
}

impl<'a> Search<'a> {
    /// `false` only if no value satisfies `part`, provided that the parts that are not in `filled`
    /// have no value.
    fn may_have_a_value(&mut self, part: &'a Value, is_own: bool) -> bool {
        self.may_hold(Vec::new(), part, is_own)
    }

    /// Whether some value may satisfy `part` and all of `held`.
    fn may_hold(&mut self, mut held: Vec<Held<'a>>, part: &'a Value, is_own: bool) -> bool {
        let first_new = held.len();
        self.steps += 1 + first_new;
        if !self.hold(part, is_own, &mut held) {
            return false;
        }
        if self.steps > MAX_STEPS {
            return true;
        }
        let types = held.iter().fold(ALL, |types, one| {
            types & one.members.get("type").map_or(ALL, said_types)
        });
        let simple = types & !(ARRAY | OBJECT);
        let may_be_one = match types {
            0 => !self.sees_contradictions,
            _ if self.sees_contradictions && !self.may_be_listed(&held, types) => false,
            _ => {
                (simple > 0 && (!self.sees_contradictions || may_be_simple(&held, simple)))
                    || (types & ARRAY > 0 && self.may_have_items(&held))
                    || (types & OBJECT > 0 && self.may_have_properties(&held))
            }
        };
        may_be_one
            && (first_new..held.len()).all(|i| match held[i].members.get("anyOf") {
                Some(Value::Array(parts)) if held[i].is_own => {
                    let mut parts = parts.iter();
                    parts.any(|part| self.may_hold(held.clone(), part, true))
                }
                _ => true,
            })
    }

    /// Adds `part`, and what it says by `allOf` and by reference. `false` if one of these parts has
    /// no value.
    fn hold(&mut self, part: &'a Value, is_own: bool, held: &mut Vec<Held<'a>>) -> bool {
        let mut waiting = vec![(part, is_own)];
        let mut seen = HashSet::new();
        while let Some((part, is_here)) = waiting.pop() {
            self.steps += 1;
            let members = match part {
                Value::Bool(false) => return false,
                Value::Object(members) if self.steps <= MAX_STEPS => members,
                _ => continue,
            };
            held.push(Held {
                members,
                is_own: is_here,
            });
            if let Some(Value::Array(parts)) = members.get("allOf") {
                waiting.extend(parts.iter().map(|part| (part, is_here)));
            }
            if let Some(Value::String(reference)) = members.get("$ref") {
                if !self.filled.contains(reference) {
                    return false;
                }
                let target = match reference.strip_prefix("#/$defs/") {
                    Some(name) => self.definitions.get(name),
                    None => Some(self.root),
                };
                // If the part is only a reference, it is known already.
                let is_alone = held.len() == 1 && waiting.is_empty() && members.len() == 1;
                if is_own && !is_alone && seen.insert(reference) {
                    waiting.extend(target.map(|target| (target, false)));
                }
            }
        }
        true
    }

    /// Whether some value is in all lists of the parts.
    fn may_be_listed(&mut self, held: &[Held<'a>], types: Types) -> bool {
        let lists = held.iter().flat_map(|one| {
            let listed = one.members.get("enum").and_then(Value::as_array);
            let only = one.members.get("const").map(std::slice::from_ref);
            listed.map(Vec::as_slice).into_iter().chain(only)
        });
        let mut left: Option<Vec<&Value>> = None;
        for list in lists {
            self.steps += list.len();
            if self.steps > MAX_STEPS {
                return true;
            }
            left = Some(match left {
                None => list.iter().collect(),
                Some(left) => {
                    let own = keys(list);
                    let is_own = |value: &&Value| own.contains(&key(value));
                    left.into_iter().filter(is_own).collect()
                }
            });
        }
        left.is_none_or(|left| {
            let range = Range::of(held);
            left.into_iter().any(|value| {
                type_of(value) & types > 0 && value.as_f64().is_none_or(|number| range.has(number))
            })
        })
    }

    fn may_have_items(&mut self, held: &[Held<'a>]) -> bool {
        let least = most_of(held, "minItems").unwrap_or(0);
        if self.sees_contradictions && least_of(held, "maxItems").is_some_and(|most| most < least) {
            return false;
        }
        held.iter().all(|&Held { members, is_own }| {
            let first = members.get("prefixItems").and_then(Value::as_array);
            let first = first.map_or(&[][..], Vec::as_slice);
            let mut needed = first
                .iter()
                .take(usize::try_from(least).unwrap_or(usize::MAX));
            let rest = members.get("items").filter(|_| least > first.len() as u64);
            needed.all(|part| self.may_have_a_value(part, is_own))
                && rest.is_none_or(|part| self.may_have_a_value(part, is_own))
        })
    }

    fn may_have_properties(&mut self, held: &[Held<'a>]) -> bool {
        let lists = held.iter().filter_map(|one| one.members.get("required"));
        if self.sees_contradictions
            && let Some(most) = least_of(held, "maxProperties")
        {
            let names = lists.clone().filter_map(Value::as_array).flatten();
            let names: HashSet<_> = names.filter_map(Value::as_str).collect();
            self.steps += names.len();
            let least = most_of(held, "minProperties").unwrap_or(0);
            if most < least.max(names.len() as u64) {
                return false;
            }
        }
        let names = lists.filter_map(Value::as_array).flatten();
        names.filter_map(Value::as_str).all(|name| {
            self.steps += held.len();
            self.steps > MAX_STEPS
                || held.iter().all(|&Held { members, is_own }| {
                    let own = members.get("properties").and_then(|named| named.get(name));
                    let rest = match members.get("patternProperties") {
                        Some(_) => None,
                        None => members.get("additionalProperties"),
                    };
                    own.or(rest)
                        .is_none_or(|part| self.may_have_a_value(part, is_own))
                })
        })
    }
}

fn counts(held: &[Held<'_>], keyword: &str) -> impl Iterator<Item = u64> {
    let count = move |one: &Held<'_>| one.members.get(keyword).and_then(Value::as_u64);
    held.iter().filter_map(count)
}

fn most_of(held: &[Held<'_>], keyword: &str) -> Option<u64> {
    counts(held, keyword).max()
}

fn least_of(held: &[Held<'_>], keyword: &str) -> Option<u64> {
    counts(held, keyword).min()
}

/// Whether a value of `types` may exist. These are types whose values contain no other values.
fn may_be_simple(held: &[Held<'_>], types: Types) -> bool {
    let may_be_string = || {
        let least = most_of(held, "minLength").unwrap_or(0);
        least_of(held, "maxLength").is_none_or(|most| least <= most)
    };
    types & (NULL | BOOLEAN) > 0
        || (types & (INTEGER | FRACTION) > 0 && Range::of(held).has_room())
        || (types & STRING > 0 && may_be_string())
}

/// The bounds of numbers. The `bool` says whether the bound itself is included.
struct Range {
    lower: (f64, bool),
    upper: (f64, bool),
}

impl Range {
    fn of(held: &[Held<'_>]) -> Self {
        let mut range = Range {
            lower: (f64::NEG_INFINITY, true),
            upper: (f64::INFINITY, true),
        };
        let bound = |one: &Held<'_>, keyword| one.members.get(keyword).and_then(Value::as_f64);
        for one in held {
            for (keyword, is_in) in [("minimum", true), ("exclusiveMinimum", false)] {
                if let Some(lower) = bound(one, keyword)
                    && (lower > range.lower.0 || (lower == range.lower.0 && !is_in))
                {
                    range.lower = (lower, is_in);
                }
            }
            for (keyword, is_in) in [("maximum", true), ("exclusiveMaximum", false)] {
                if let Some(upper) = bound(one, keyword)
                    && (upper < range.upper.0 || (upper == range.upper.0 && !is_in))
                {
                    range.upper = (upper, is_in);
                }
            }
        }
        range
    }

    fn has(&self, number: f64) -> bool {
        let is_above = number > self.lower.0 || (number == self.lower.0 && self.lower.1);
        is_above && (number < self.upper.0 || (number == self.upper.0 && self.upper.1))
    }

    fn has_room(&self) -> bool {
        self.lower.0 < self.upper.0 || (self.has(self.lower.0) && self.has(self.upper.0))
    }
}

/// Replaces each part that refers to a part without a value by `false`.
fn prune_references(filled: &HashSet<String>, part: &mut Value) {
    match part {
        Value::Array(parts) => parts
            .iter_mut()
            .for_each(|part| prune_references(filled, part)),
        Value::Object(members) => {
            let is_empty = |reference: &str| !filled.contains(reference);
            if members
                .get("$ref")
                .and_then(Value::as_str)
                .is_some_and(is_empty)
            {
                *part = false.into();
                return;
            }
            for (keyword, value) in members {
                match (&**keyword, value) {
                    ("const" | "enum", _) => {}
                    ("properties" | "patternProperties", Value::Object(named)) => {
                        named
                            .values_mut()
                            .for_each(|part| prune_references(filled, part));
                    }
                    (_, value) => prune_references(filled, value),
                }
            }
        }
        _ => {}
    }
}
