//! Keywords that hold only under a condition.

use super::conjunction::OBJECT;
use super::{Made, Translation, bytes};
use crate::Result;
use serde_json::{Map, Value, json};
use std::collections::HashSet;

impl<'a> Translation<'a> {
    /// Translates `if`, `then` and `else` into two alternatives: the condition together with
    /// `then`, or the negated condition together with `else`.
    pub(super) fn condition(
        &mut self,
        condition: &'a Value,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let (then, otherwise) = (members.get("then"), members.get("else"));
        if then.is_none() && otherwise.is_none() {
            return Ok(());
        }
        let Some(negated) = self.negated(condition)? else {
            let why = "if with a condition that cannot be turned around cannot be followed";
            return self.pass_over(part, why);
        };
        let mut then = then.map(|then| self.part(then)).transpose()?;
        let mut otherwise = otherwise
            .map(|otherwise| self.part(otherwise))
            .transpose()?;
        match negated {
            Value::Bool(false) => made.beside.extend(then.take()),
            Value::Bool(true) => made.beside.extend(otherwise.take()),
            negated => {
                if !self.alternative(part)? {
                    return Ok(());
                }
                let condition = self.part(condition)?;
                let yes: Vec<_> = [condition].into_iter().chain(then).collect();
                let no: Vec<_> = [negated].into_iter().chain(otherwise).collect();
                made.beside
                    .push(json!({"anyOf": [{"allOf": yes}, {"allOf": no}]}));
            }
        }
        Ok(())
    }

    /// Translates what must hold if a property is present: other properties must be present, or a
    /// schema must hold for the whole object.
    pub(super) fn dependencies(
        &mut self,
        keyword: &str,
        value: &'a Value,
        part: &'a Value,
        made: &mut Made,
    ) -> Result<()> {
        let Value::Object(needs) = value else {
            return self.pass_over(part, &format!("{keyword} is no object"));
        };
        let around = self.around.clone();
        let around = self.all_of(&around)?.unwrap_or_default();
        let required = self.required(&around).unwrap_or_default();
        let required: HashSet<&str> = required.into_iter().collect();
        for (name, needed) in needs {
            let needed = match needed {
                Value::Array(names) if names.is_empty() => continue,
                Value::Bool(true) => continue,
                Value::Array(names) => {
                    self.spend(names.iter().map(bytes).sum())?;
                    json!({"required": names})
                }
                schema => self.part(schema)?,
            };
            if required.contains(&name.as_str()) {
                // It asks nothing of a value that is not an object.
                let others = json!({"type": ["null", "boolean", "number", "string", "array"]});
                let is_object = self.types(&around) & !OBJECT == 0;
                made.beside.push(match is_object {
                    true => needed,
                    false => json!({"anyOf": [others, {"allOf": [{"type": "object"}, needed]}]}),
                });
            } else if self.alternative(part)? {
                let absent = json!({"properties": {name: false}});
                let there = json!({"allOf": [{"required": [name]}, needed]});
                made.beside.push(json!({"anyOf": [absent, there]}));
            }
        }
        Ok(())
    }
}
