//! What a part is not, as far as a schema can say it.

use super::conjunction::{self, key, keys, names, steps};
use super::draft::asserts;
use super::exclusion::property;
use super::{Made, PART_BYTES, PART_STEPS, Translation, bytes, count};
use crate::Result;
use serde_json::{Value, json};

/// How deep parts are turned around.
const MAX_DEPTH: usize = 16;

impl<'a> Translation<'a> {
    pub(super) fn not(&mut self, value: &'a Value, part: &'a Value, made: &mut Made) -> Result<()> {
        match self.negated(value)? {
            Some(Value::Bool(true)) => {}
            Some(Value::Bool(false)) => made.is_impossible = true,
            Some(turned) => made.beside.push(turned),
            None => self.pass_over(part, "not cannot be followed here")?,
        }
        Ok(())
    }

    /// What is not `part` of all that holds around it. `None` where a schema cannot say it.
    pub(super) fn negated(&mut self, part: &'a Value) -> Result<Option<Value>> {
        let around = self.around.clone();
        let around = self.all_of(&around)?;
        self.turned(part, &around.unwrap_or_default(), MAX_DEPTH)
    }

    /// `around`: all that holds of the value.
    fn turned(
        &mut self,
        part: &'a Value,
        around: &[&'a Value],
        depth: usize,
    ) -> Result<Option<Value>> {
        let members = match part {
            Value::Bool(all) => return Ok(Some((!all).into())),
            Value::Object(members) => members,
            _ => return Ok(None),
        };
        if depth == 0 || !self.step(PART_STEPS * (1 + around.len())) {
            return Ok(None);
        }
        self.spend(PART_BYTES)?;
        // It is not the part if one of its keywords does not hold.
        let mut any = Vec::new();
        for (keyword, value) in members {
            if !self.document.draft.has(keyword) {
                continue;
            }
            match self.turned_keyword(keyword, value, part, around, depth)? {
                Some(turned) => any.extend(turned),
                None => return Ok(None),
            }
        }
        Ok(Some(match any.len() {
            0 => false.into(),
            1 => any.remove(0),
            _ => json!({"anyOf": any}),
        }))
    }

    /// Values for which a keyword does not hold, as alternatives.
    fn turned_keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        part: &'a Value,
        around: &[&'a Value],
        depth: usize,
    ) -> Result<Option<Vec<Value>>> {
        let mut any = Vec::new();
        let whole = count(value).as_u64();
        match (keyword, value) {
            ("type", _) => match names(conjunction::ALL & !self.types(&[part])) {
                Some(names) if names.is_empty() => {}
                Some(names) => any.push(json!({"type": names})),
                None => return Ok(None),
            },
            ("const", value) => return self.without(std::slice::from_ref(value), around),
            ("enum", Value::Array(values)) => return self.without(values, around),
            ("required", Value::Array(required)) => {
                for name in required.iter().filter_map(Value::as_str) {
                    self.spend(PART_BYTES + name.len())?;
                    any.push(json!({"type": "object", "properties": {name: false}}));
                }
            }
            ("properties", Value::Object(named)) => {
                for (name, schema) in named {
                    self.spend(2 * name.len())?;
                    let known = self.all_of(&property(around, name))?.unwrap_or_default();
                    // What holds of the object says nothing of the property's value, of which a
                    // `not` in there is written as it stands.
                    let outside = std::mem::replace(&mut self.around, known.clone());
                    let turned = self.turned(schema, &known, depth - 1)?;
                    self.around = outside;
                    match turned {
                        Some(Value::Bool(false)) => {}
                        Some(turned) => any.push(json!({
                            "type": "object",
                            "properties": {name: turned},
                            "required": [name],
                        })),
                        None => return Ok(None),
                    }
                }
            }
            ("minLength" | "minItems", _) => match whole {
                Some(0) => {}
                Some(least) => any.push(shorter(keyword, least - 1)),
                None => return Ok(None),
            },
            ("maxLength" | "maxItems", _) => match whole {
                Some(most) => any.push(longer(keyword, most.saturating_add(1))),
                None => return Ok(None),
            },
            ("not", value) => any.push(self.part(value)?),
            ("allOf", Value::Array(parts)) => {
                for part in parts {
                    match self.turned(part, around, depth - 1)? {
                        Some(turned) => any.push(turned),
                        None => return Ok(None),
                    }
                }
            }
            ("anyOf", Value::Array(parts)) => {
                let mut all = Vec::new();
                for part in parts {
                    match self.turned(part, around, depth - 1)? {
                        Some(turned) => all.push(turned),
                        None => return Ok(None),
                    }
                }
                any.push(json!({"allOf": all}));
            }
            ("$ref", _) => {
                for target in self.document.references(part)? {
                    match self.turned(target, around, depth - 1)? {
                        Some(turned) => any.push(turned),
                        None => return Ok(None),
                    }
                }
            }
            _ if asserts(keyword) => return Ok(None),
            _ => {}
        }
        Ok(Some(any))
    }

    /// What is none of `listed`, where there are only so many values: by a list around it, or
    /// because all of `listed` are of types that have few.
    fn without(&mut self, listed: &[Value], around: &[&'a Value]) -> Result<Option<Vec<Value>>> {
        let small = [Value::Null, Value::Bool(true), Value::Bool(false)];
        if !self.step(listed.iter().map(steps).sum()) {
            return Ok(None);
        }
        let keys = keys(listed);
        let is_listed = |value: &&Value| keys.contains(&key(value));
        if let Some(all) = self.values(around) {
            let left: Vec<&Value> = all.into_iter().filter(|value| !is_listed(value)).collect();
            self.spend(left.iter().map(|value| bytes(value)).sum())?;
            let any = (!left.is_empty()).then(|| json!({"enum": left}));
            return Ok(Some(any.into_iter().collect()));
        }
        if !listed.iter().all(|value| small.contains(value)) {
            return Ok(None);
        }
        let left: Vec<&Value> = small.iter().filter(|value| !is_listed(value)).collect();
        let others = names(conjunction::ALL & !conjunction::NULL & !conjunction::BOOLEAN);
        let mut any = vec![json!({"type": others})];
        if !left.is_empty() {
            any.push(json!({"enum": left}));
        }
        Ok(Some(any))
    }
}

fn shorter(keyword: &str, most: u64) -> Value {
    match keyword {
        "minLength" => json!({"type": "string", "maxLength": most}),
        _ => json!({"type": "array", "maxItems": most}),
    }
}

fn longer(keyword: &str, least: u64) -> Value {
    match keyword {
        "maxLength" => json!({"type": "string", "minLength": least}),
        _ => json!({"type": "array", "minItems": least}),
    }
}
