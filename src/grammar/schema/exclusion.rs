//! `oneOf`: exactly one of its parts holds.
//!
//! The parser has only `anyOf`, where one or more parts hold. Both mean the same if no two parts
//! hold of one value. They can be made to mean the same if each part can be negated.

use super::conjunction::{OBJECT, key, keys};
use super::document::Address;
use super::{Made, PART_STEPS, Translation, bytes, refused};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// How deep into properties and alternatives we look for what makes two parts exclude each other.
const MAX_DEPTH: usize = 12;

/// The most parts of a `oneOf` for which each part is combined with the negations of all others.
const MAX_TURNED: usize = 8;

impl<'a> Translation<'a> {
    pub(super) fn one_of(
        &mut self,
        value: &'a Value,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let Value::Array(parts) = value else {
            // The parser refuses it.
            made.own.insert("oneOf".into(), value.clone());
            return Ok(());
        };
        let any_of = if self.coerces_one_of || self.exclude_each_other(value, parts)? {
            self.parts(value)?
        } else if let Some(turned) = self.each_without_the_others(parts)?
            && self.alternative(part)?
        {
            turned
        } else {
            let why = "oneOf with parts that may hold together cannot be followed; \"x-guidance\": \
                       {\"coerce_one_of\": true} in the schema has it read as anyOf";
            return Err(self.placed(part, refused(why.into())));
        };
        match members.contains_key("anyOf") {
            true => made.beside.push(json!({"anyOf": any_of})),
            false => _ = made.own.insert("anyOf".into(), any_of),
        }
        Ok(())
    }

    fn exclude_each_other(&mut self, one_of: &'a Value, parts: &'a [Value]) -> Result<bool> {
        let mut flat = Vec::new();
        for part in parts {
            let mut with = self.around.clone();
            with.push(part);
            match self.all_of(&with)? {
                Some(all) => flat.push(all),
                None => return Ok(false),
            }
        }
        if parts.len() < 2 || self.differ_by_a_value(&flat)? {
            return Ok(true);
        }
        let mut open = vec![std::ptr::from_ref(one_of)];
        for (i, a) in flat.iter().enumerate() {
            for b in &flat[i + 1..] {
                if !self.exclude(a, b, &mut open, 0)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether each part lists its values, or all parts require a property whose values they list,
    /// and no two lists have a value in common. Most unions are told apart like this. It takes no
    /// comparison of every pair of parts.
    fn differ_by_a_value(&mut self, flat: &[Vec<&'a Value>]) -> Result<bool> {
        if are_distinct(flat.iter().map(|parts| self.values(parts))) {
            return Ok(true);
        }
        if flat.iter().any(|parts| self.types(parts) & !OBJECT > 0) {
            return Ok(false);
        }
        let mut lists: Vec<HashSet<&str>> = Vec::new();
        for parts in flat {
            let Some(names) = self.required(parts) else {
                return Ok(false);
            };
            lists.push(names.into_iter().collect());
        }
        let names = required(&flat[0]);
        for name in names.into_iter().take(64) {
            let mut listed = Vec::new();
            for (parts, required) in flat.iter().zip(&lists) {
                if !required.contains(name) {
                    break;
                }
                let parts = self.all_of(&property(parts, name))?;
                match parts.and_then(|parts| self.values(&parts)) {
                    Some(values) => listed.push(Some(values)),
                    None => break,
                }
            }
            if listed.len() == flat.len() && are_distinct(listed.into_iter()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether no value satisfies both `a` and `b`. Each of these is the complete list of parts
    /// that hold together. `open`: the alternatives that are being looked into already.
    fn exclude(
        &mut self,
        a: &[&'a Value],
        b: &[&'a Value],
        open: &mut Vec<Address>,
        depth: usize,
    ) -> Result<bool> {
        if depth == MAX_DEPTH || !self.step(PART_STEPS * (a.len() + b.len())) {
            return Ok(false);
        }
        let common = self.types(a) & self.types(b);
        if common == 0 {
            return Ok(true);
        }
        if let Some(mine) = self.values(a)
            && let Some(others) = self.values(b)
        {
            let others = keys(others);
            return Ok(!mine.iter().any(|value| others.contains(&key(value))));
        }
        if common == OBJECT {
            let (Some(mut names), Some(others)) = (self.required(a), self.required(b)) else {
                return Ok(false);
            };
            names.extend(others);
            names.sort_unstable();
            names.dedup();
            for name in names {
                if !self.step(PART_STEPS * (a.len() + b.len())) {
                    return Ok(false);
                }
                let (mine, others) = (property(a, name), property(b, name));
                let (Some(mine), Some(others)) = (self.all_of(&mine)?, self.all_of(&others)?)
                else {
                    return Ok(false);
                };
                if self.exclude(&mine, &others, open, depth + 1)? {
                    return Ok(true);
                }
            }
        }
        for (one, other) in [(a, b), (b, a)] {
            for part in one {
                for keyword in ["anyOf", "oneOf"] {
                    let Some(alternatives @ Value::Array(parts)) = part.get(keyword) else {
                        continue;
                    };
                    if open.contains(&std::ptr::from_ref(alternatives)) {
                        continue;
                    }
                    open.push(alternatives);
                    let mut exclude = true;
                    for part in parts {
                        if !self.step(one.len()) {
                            return Ok(false);
                        }
                        let mut with = one.to_vec();
                        with.push(part);
                        let with = self.all_of(&with)?;
                        exclude = match with {
                            Some(with) => self.exclude(&with, other, open, depth + 1)?,
                            None => false,
                        };
                        if !exclude {
                            break;
                        }
                    }
                    open.pop();
                    if exclude {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    /// [`required`], or `None` if there is too much to look at.
    pub(super) fn required(&mut self, parts: &[&'a Value]) -> Option<Vec<&'a str>> {
        let names = required(parts);
        self.step(2 * names.iter().map(|name| 1 + name.len() / 32).sum::<usize>())
            .then_some(names)
    }

    /// Each of `parts` combined with the negations of the others. `None` if a schema cannot say
    /// that.
    fn each_without_the_others(&mut self, parts: &'a [Value]) -> Result<Option<Value>> {
        if parts.len() > MAX_TURNED {
            return Ok(None);
        }
        let mut turned = Vec::new();
        for part in parts {
            match self.negated(part)? {
                Some(part) => turned.push(part),
                None => return Ok(None),
            }
        }
        let copied: usize = turned.iter().map(bytes).sum();
        self.spend(copied * parts.len())?;
        let mut each = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let others = turned.iter().enumerate().filter(|(j, _)| *j != i);
            let mut all = vec![self.part(part)?];
            all.extend(others.map(|(_, turned)| turned.clone()));
            each.push(json!({"allOf": all}));
        }
        Ok(Some(each.into()))
    }
}

/// Whether all lists exist and no two of them have a value in common. `false` if one look at each
/// list does not tell.
fn are_distinct<'a>(lists: impl Iterator<Item = Option<Vec<&'a Value>>>) -> bool {
    let mut seen = HashSet::new();
    for list in lists {
        let Some(list) = list else { return false };
        for value in list {
            if !seen.insert(key(value)) {
                return false;
            }
        }
    }
    true
}

/// The names of the properties that an object must have to satisfy all of `parts`.
fn required<'a>(parts: &[&'a Value]) -> Vec<&'a str> {
    let lists = parts
        .iter()
        .filter_map(|part| part.get("required")?.as_array());
    lists.flatten().filter_map(Value::as_str).collect()
}

/// What `parts` say of the property `name` of an object. Leaves out the `additionalProperties` of a
/// part with patterns, because a pattern may apply to the name instead.
pub(super) fn property<'a>(parts: &[&'a Value], name: &str) -> Vec<&'a Value> {
    let own = parts.iter().filter_map(|part| {
        let named = part.get("properties").and_then(|named| named.get(name));
        match part.get("patternProperties") {
            Some(_) => named,
            None => named.or_else(|| part.get("additionalProperties")),
        }
    });
    own.collect()
}
