//! What a schema says of an object's properties.

use super::format::{Format, format};
use super::{Made, PART_BYTES, Translation, bytes, pattern};
use crate::Result;
use serde_json::{Map, Value, json};

pub(super) const KEYWORDS: [&str; 4] = [
    "properties",
    "patternProperties",
    "additionalProperties",
    "unevaluatedProperties",
];

/// The properties that are evaluated by a part and by the parts that hold with it.
#[derive(Default)]
struct Evaluated {
    named: Map<String, Value>,
    patterns: Map<String, Value>,
    all: bool,
}

impl<'a> Translation<'a> {
    pub(super) fn properties(
        &mut self,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let mut properties = Map::new();
        match members.get("properties") {
            Some(Value::Object(named)) => {
                for (name, schema) in named {
                    self.spend(name.len())?;
                    properties.insert(name.clone(), self.inside(schema)?);
                }
            }
            // The parser refuses it.
            Some(other) => {
                made.own.insert("properties".into(), other.clone());
            }
            None => {}
        }
        let mut patterns = Map::new();
        match members.get("patternProperties") {
            Some(Value::Object(named)) => {
                for (pattern, schema) in named {
                    self.spend(pattern.len())?;
                    let schema = self.inside(schema)?;
                    // If a pattern matches only one name, it becomes a property of that name.
                    // Otherwise a name that is taken would seem to be free for the pattern.
                    match pattern::literal(pattern) {
                        Some(name) => both(&mut properties, name, schema),
                        None => both(&mut patterns, self.pattern(pattern, part)?.text, schema),
                    }
                }
            }
            Some(other) => {
                made.own.insert("patternProperties".into(), other.clone());
            }
            None => {}
        }
        for (keyword, named) in [("properties", properties), ("patternProperties", patterns)] {
            if !named.is_empty() {
                made.own.insert(keyword.into(), named.into());
            }
        }
        if let Some(additional) = members.get("additionalProperties") {
            let additional = self.inside(additional)?;
            made.own.insert("additionalProperties".into(), additional);
        }
        match members.get("unevaluatedProperties") {
            Some(rest) if self.document.draft.has("unevaluatedProperties") => {
                self.unevaluated_properties(rest, part, members, made)
            }
            _ => Ok(()),
        }
    }

    fn unevaluated_properties(
        &mut self,
        rest: &'a Value,
        part: &'a Value,
        members: &Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        if *rest == Value::Bool(true) || members.contains_key("additionalProperties") {
            return Ok(());
        }
        let Some(evaluated) = self.evaluated(part)? else {
            let why = "unevaluatedProperties beside conditions cannot be followed";
            return self.pass_over(part, why);
        };
        if evaluated.all {
            return Ok(());
        }
        let rest = self.inside(rest)?;
        made.beside.push(json!({
            "properties": evaluated.named,
            "patternProperties": evaluated.patterns,
            "additionalProperties": rest,
        }));
        Ok(())
    }

    /// The properties that `whole` and the parts that hold with it evaluate in any object. `None`
    /// if that depends on the object, or takes too long to tell.
    fn evaluated(&mut self, whole: &'a Value) -> Result<Option<Evaluated>> {
        const CONDITIONS: [&str; 5] = ["anyOf", "oneOf", "if", "dependentSchemas", "dependencies"];
        let Some(parts) = self.all_of(&[whole])? else {
            return Ok(None);
        };
        let mut evaluated = Evaluated::default();
        for part in parts {
            let has = |keyword: &str| part.get(keyword).is_some();
            if CONDITIONS.iter().any(|keyword| has(keyword)) {
                return Ok(None);
            }
            evaluated.all |= has("additionalProperties")
                || (has("unevaluatedProperties") && !std::ptr::eq(part, whole));
            for keyword in ["properties", "patternProperties"] {
                let names = part.get(keyword).and_then(Value::as_object);
                let names = names.into_iter().flat_map(Map::keys);
                self.spend(names.map(|name| PART_BYTES + name.len()).sum())?;
            }
            if let Some(Value::Object(named)) = part.get("properties") {
                let names = named.keys().map(|name| (name.clone(), true.into()));
                evaluated.named.extend(names);
            }
            if let Some(Value::Object(named)) = part.get("patternProperties") {
                for pattern in named.keys() {
                    let (into, name) = match pattern::literal(pattern) {
                        Some(name) => (&mut evaluated.named, name),
                        None => (&mut evaluated.patterns, self.pattern(pattern, part)?.text),
                    };
                    into.insert(name, true.into());
                }
            }
        }
        Ok(Some(evaluated))
    }

    /// Translates `propertyNames` into a list of properties, or a pattern for names, with no other
    /// names allowed.
    pub(super) fn property_names(
        &mut self,
        names: &'a Value,
        part: &'a Value,
        made: &mut Made,
    ) -> Result<()> {
        let Some(parts) = self.all_of(&[names])? else {
            return self.pass_over(part, "propertyNames has too many parts to be followed");
        };
        let has_only = |known: &[&str]| parts.iter().all(|part| says_only(part, known));
        if let Some(listed) = self.values(&parts)
            && has_only(&["const", "enum"])
        {
            self.spend(listed.iter().map(|name| bytes(name)).sum())?;
            let listed = listed.into_iter().filter_map(Value::as_str);
            let named: Map<_, _> = listed.map(|name| (name.into(), true.into())).collect();
            made.beside
                .push(json!({"properties": named, "additionalProperties": false}));
            return Ok(());
        }
        let mut patterns = Vec::new();
        let mut is_followed = has_only(&["pattern", "format", "minLength", "maxLength"]);
        for part in parts {
            let before = patterns.len();
            if let Some(given) = part.get("pattern").and_then(Value::as_str) {
                patterns.push(self.pattern(given, part)?.text);
            }
            let name = part.get("format").and_then(Value::as_str);
            match name.map(format) {
                Some(Format::Pattern(pattern)) => patterns.push(pattern),
                None | Some(Format::Annotation) => {}
                Some(Format::Unfollowed) if patterns.len() > before => {}
                Some(Format::Known | Format::Unfollowed) => is_followed = false,
            }
            let length = |keyword| part.get(keyword).and_then(Value::as_f64);
            let (least, most) = (length("minLength").unwrap_or(0.0), length("maxLength"));
            if least > 0.0 || most.is_some() {
                let most = most.map(|most| most.to_string()).unwrap_or_default();
                patterns.push(format!("^(?s:.){{{least},{most}}}$"));
            }
        }
        match patterns.pop() {
            _ if !is_followed || !patterns.is_empty() => {
                let why = "propertyNames that are more than one pattern, format, length or list \
                           of names cannot be followed";
                self.pass_over(part, why)
            }
            Some(pattern) => {
                let any = json!({pattern: true});
                let none_else = json!({"patternProperties": any, "additionalProperties": false});
                made.beside.push(none_else);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Whether the only keywords of a part that matter for strings are the `known` ones and those that
/// bring in other parts.
fn says_only(part: &Value, known: &[&str]) -> bool {
    let Value::Object(members) = part else {
        return *part == Value::Bool(true) || known.contains(&"const");
    };
    members.iter().all(|(keyword, value)| match &**keyword {
        "type" => includes(value, "string") || known.contains(&"const"),
        "const" | "enum" | "pattern" | "format" | "minLength" | "maxLength" | "anyOf" | "oneOf"
        | "not" | "if" => known.contains(&keyword.as_str()),
        _ => true,
    })
}

/// Whether `types`, the value of a `type` keyword, is or contains `one`.
pub(super) fn includes(types: &Value, one: &str) -> bool {
    match types {
        Value::Array(types) => types.iter().any(|t| t == one),
        types => types == one,
    }
}

/// Adds `schema` for `name`. If there is a schema for `name` already, both hold.
fn both(named: &mut Map<String, Value>, name: String, schema: Value) {
    match named.get_mut(&name) {
        Some(before) => *before = json!({"allOf": [before.take(), schema]}),
        None => _ = named.insert(name, schema),
    }
}
