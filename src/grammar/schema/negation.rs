//! The negation of a part, as far as a schema can express it.

use super::conjunction::{self, key, keys, names, steps};
use super::draft::asserts;
use super::exclusion::property;
use super::{Made, PART_BYTES, PART_STEPS, Translation, bytes, count};
use crate::Result;
use serde_json::{Value, json};

/// How many levels of parts are negated.
const MAX_DEPTH: usize = 16;

/// How many negations may contain each other. A `not` in a negated part is translated as it stands,
/// and may contain another: without a limit, a reference to a part around it would never end, and
/// each level takes stack.
const MAX_NESTED: usize = 8;

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

    /// A schema for the values that do not satisfy `part`, among those that satisfy all parts
    /// around it. `None` if a schema cannot say that.
    pub(super) fn negated(&mut self, part: &'a Value) -> Result<Option<Value>> {
        if self.negations == MAX_NESTED {
            return Ok(None);
        }
        let around = self.around.clone();
        let around = self.all_of(&around)?;
        self.negations += 1;
        let turned = self.turned(part, &around.unwrap_or_default(), MAX_DEPTH);
        self.negations -= 1;
        turned
    }

    /// `around`: all parts that hold of the value.
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
        // A value does not satisfy the part if one of the part's keywords does not hold.
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

    /// Alternatives for the values for which a keyword does not hold. `None` if a schema cannot say
    /// that.
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
                    // The parts that hold of the object do not hold of the property's value. A
                    // `not` inside the property's schema must not see them, because its part is
                    // translated as it stands.
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

    /// The values that are none of `listed`, if the possible values are few: because the parts
    /// around list them, or because all of `listed` have types with few values.
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
