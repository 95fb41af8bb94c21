//! Parts that no value is of, since each value of theirs would have another one inside.
//!
//! The parser would lead a text into them, and it could never come to its end.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Most parts that are looked at. A part that was not looked at counts as one that has values.
const MAX_STEPS: usize = 1 << 20;

/// Makes references to definitions without a value `false`, in what the parser is given.
pub(super) fn prune(root: &mut Value, definitions: &mut Map<String, Value>) {
    let mut search = Search {
        filled: HashSet::new(),
        steps: 0,
    };
    // From no definition on, those that have a value by what is known so far. The last one first:
    // a definition is behind those that refer to it.
    loop {
        let before = search.filled.len();
        let all = definitions.iter().rev();
        let all = all.map(|(name, part)| (format!("#/$defs/{name}"), part));
        for (reference, part) in all.chain([("#".into(), &*root)]) {
            if !search.filled.contains(&reference) && search.may_have_a_value(part) {
                search.filled.insert(reference);
            }
        }
        if search.steps > MAX_STEPS {
            return;
        }
        if search.filled.len() == before {
            break;
        }
    }
    if search.filled.len() == definitions.len() + 1 {
        return;
    }
    definitions.retain(|name, _| search.filled.contains(&format!("#/$defs/{name}")));
    definitions.values_mut().for_each(|part| search.prune(part));
    match search.filled.contains("#") {
        true => search.prune(root),
        false => *root = false.into(),
    }
}

struct Search {
    /// References to parts that may have a value.
    filled: HashSet<String>,
    steps: usize,
}

impl Search {
    /// `false` only if no value is of `part`, as long as those that are not in `filled` have none.
    fn may_have_a_value(&mut self, part: &Value) -> bool {
        self.steps += 1;
        let members = match part {
            Value::Bool(all) => return *all,
            Value::Object(members) if self.steps <= MAX_STEPS => members,
            _ => return true,
        };
        members
            .iter()
            .all(|(keyword, value)| match (&**keyword, value) {
                ("$ref", Value::String(reference)) => self.filled.contains(reference),
                ("allOf", Value::Array(parts)) => parts.iter().all(|p| self.may_have_a_value(p)),
                ("anyOf", Value::Array(parts)) => parts.iter().any(|p| self.may_have_a_value(p)),
                ("type", Value::String(one)) if one == "array" => self.may_have_items(members),
                ("type", Value::String(one)) if one == "object" => {
                    self.may_have_properties(members)
                }
                _ => true,
            })
    }

    fn may_have_items(&mut self, members: &Map<String, Value>) -> bool {
        let least = members.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let first = members.get("prefixItems").and_then(Value::as_array);
        let first = first.map_or(&[][..], Vec::as_slice);
        let mut needed = first
            .iter()
            .take(usize::try_from(least).unwrap_or(usize::MAX));
        let rest = members.get("items").filter(|_| least > first.len() as u64);
        needed.all(|part| self.may_have_a_value(part))
            && rest.is_none_or(|part| self.may_have_a_value(part))
    }

    fn may_have_properties(&mut self, members: &Map<String, Value>) -> bool {
        let Some(Value::Array(required)) = members.get("required") else {
            return true;
        };
        let rest = match members.get("patternProperties") {
            Some(_) => None,
            None => members.get("additionalProperties"),
        };
        required.iter().filter_map(Value::as_str).all(|name| {
            let own = members.get("properties").and_then(|named| named.get(name));
            own.or(rest).is_none_or(|part| self.may_have_a_value(part))
        })
    }

    /// Makes what refers to a part without a value `false`.
    fn prune(&self, part: &mut Value) {
        match part {
            Value::Array(parts) => parts.iter_mut().for_each(|part| self.prune(part)),
            Value::Object(members) => {
                let is_empty = |reference: &str| !self.filled.contains(reference);
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
                            named.values_mut().for_each(|part| self.prune(part));
                        }
                        (_, value) => self.prune(value),
                    }
                }
            }
            _ => {}
        }
    }
}
