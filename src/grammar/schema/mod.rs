//! A JSON Schema as the parser reads what it says.
//!
//! A schema is followed or refused. The parser reads a part of the newest draft, passes over what
//! it has no eye for, and takes any member that it does not know for a constraint beside its
//! neighbours. So it is given a schema of its own, made of what the caller's one says: all that is
//! referred to is in one `$defs`, keywords that say nothing about a text are gone, and those that
//! it has not are said by those that it has.

mod class;
mod conditions;
mod conjunction;
mod document;
mod draft;
mod emptiness;
mod exclusion;
mod format;
mod items;
mod keys;
mod merging;
mod negation;
pub(super) mod numbers;
mod pattern;
mod properties;
mod range;
mod uri;

use crate::{Error, Result};
use conjunction::MAX_TYPES;
use document::{Address, Document};
use draft::Draft;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Most steps in which parts are compared, beyond the one look at each: a second or two. References
/// could make that exponential. A step is one name or one short value of a list.
const MAX_STEPS: usize = 1 << 24;

/// Steps of a part, whose references are resolved.
const PART_STEPS: usize = 1 << 6;

/// Most bytes of what the parser is given, roughly. Where parts are turned into alternatives, they
/// are there more than once.
const MAX_BYTES: usize = 16 << 20;

/// What a part takes, beside its values.
const PART_BYTES: usize = 64;

/// What `schema` says, as the parser reads it. [`Error::Grammar`] where it cannot be followed.
pub(super) fn prepare(schema: &Value) -> Result<Value> {
    refuse_wrapper(schema)?;
    let schema = &*document::without_siblings(schema)?;
    let mut translation = Translation::new(schema)?;
    let mut made = translation.own(schema)?;
    let mut definitions = Map::new();
    while let Some((part, name)) = translation.waiting.pop() {
        definitions.insert(name, translation.own(part)?);
    }
    emptiness::prune(&mut made, &mut definitions);
    merging::check(&made, &definitions)?;
    let mut options = schema.get(OPTIONS).cloned();
    if keys::are_ambiguous(&made) || definitions.values().any(keys::are_ambiguous) {
        if let Some(error) = translation.asks_for_code {
            return Err(error);
        }
        // What is no object the parser refuses.
        if let Value::Object(options) = options.get_or_insert_with(|| json!({})) {
            keys::spell_once(options);
        }
    }
    if let Value::Object(members) = &mut made {
        if !definitions.is_empty() {
            members.insert("$defs".into(), definitions.into());
        }
        if let Some(options) = options {
            members.insert(OPTIONS.into(), options);
        }
    }
    Ok(made)
}

/// What a schema asks of the parser itself, at its root.
const OPTIONS: &str = "x-guidance";

struct Translation<'a> {
    document: Document<'a>,
    /// Parts that are referred to, with a reference to each. They become definitions, where they
    /// stand as well.
    targets: HashMap<Address, &'a str>,
    /// References to the definitions that there are.
    references: HashMap<Address, String>,
    names: HashSet<String>,
    /// Parts that are definitions and have to be translated yet.
    waiting: Vec<(&'a Value, String)>,
    /// The document's numbers, in their order.
    numbers: Vec<f64>,
    /// Whether numbers are to be whole somewhere.
    has_integers: bool,
    /// What holds of the same value as the part that is translated now.
    around: Vec<&'a Value>,
    /// Alternatives of the same value that were made of something else than `anyOf`.
    alternatives: usize,
    steps: usize,
    bytes: usize,
    /// What is wrong with a part that nothing is of but by `\u`, where there may be none.
    asks_for_code: Option<Error>,
    is_lenient: bool,
    /// Whether `oneOf` is to be read as `anyOf`.
    coerces_one_of: bool,
}

/// A part as the parser reads it.
#[derive(Default)]
struct Made {
    own: Map<String, Value>,
    /// What holds as well, where it needs a schema of its own.
    beside: Vec<Value>,
    is_impossible: bool,
}

impl Made {
    fn schema(mut self) -> Value {
        match (self.is_impossible, self.own.is_empty(), self.beside.len()) {
            (true, ..) => false.into(),
            (_, _, 0) => self.own.into(),
            (_, true, 1) => self.beside.remove(0),
            _ => {
                // What stands there itself is first: properties come in the order of a schema.
                if !self.own.is_empty() {
                    self.beside.insert(0, self.own.into());
                }
                json!({"allOf": self.beside})
            }
        }
    }
}

impl<'a> Translation<'a> {
    fn new(schema: &'a Value) -> Result<Self> {
        let document = Document::new(schema)?;
        let asks =
            |option: &str| schema.get(OPTIONS).and_then(|o| o.get(option)) == Some(&true.into());
        let mut numbers = Vec::new();
        range::numbers_in(schema, &mut numbers);
        numbers.sort_unstable_by(f64::total_cmp);
        Ok(Self {
            targets: document.targets(),
            document,
            references: HashMap::new(),
            names: HashSet::new(),
            waiting: Vec::new(),
            numbers,
            has_integers: names_integers(schema),
            around: Vec::new(),
            alternatives: 0,
            steps: 0,
            bytes: 0,
            asks_for_code: None,
            is_lenient: asks("lenient"),
            coerces_one_of: asks("lenient") || asks("coerce_one_of"),
        })
    }

    /// A part of the document, where it stands.
    fn part(&mut self, part: &'a Value) -> Result<Value> {
        match part {
            Value::Object(_) if self.targets.contains_key(&std::ptr::from_ref(part)) => {
                Ok(json!({"$ref": self.reference_to(part)}))
            }
            _ => self.own(part),
        }
    }

    /// A part that stands at another value than the one around it.
    fn inside(&mut self, part: &'a Value) -> Result<Value> {
        let around = std::mem::take(&mut self.around);
        let made = self.part(part);
        self.around = around;
        made
    }

    fn reference_to(&mut self, part: &'a Value) -> String {
        if std::ptr::eq(part, self.document.root) {
            return "#".into();
        }
        if let Some(reference) = self.references.get(&std::ptr::from_ref(part)) {
            return reference.clone();
        }
        // The parser's sentences name it, and it takes no escapes.
        let said = self.targets.get(&std::ptr::from_ref(part)).copied();
        let last = said.unwrap_or_default().rsplit(['/', '#']).next();
        let last = last.unwrap_or_default().chars();
        let last = last.filter(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
        let last: String = last.take(64).collect();
        let mut name = last.clone();
        let mut count = 1;
        while !self.names.insert(name.clone()) {
            count += 1;
            name = format!("{last}.{count}");
        }
        let reference = format!("#/$defs/{name}");
        self.references.insert(part, reference.clone());
        self.waiting.push((part, name));
        reference
    }

    /// What a part says itself.
    fn own(&mut self, part: &'a Value) -> Result<Value> {
        let Value::Object(members) = part else {
            return Ok(part.clone());
        };
        self.spend(PART_BYTES)?;
        if let Some(said @ Value::String(_)) = members.get("$schema")
            && Draft::said_by(part)? != Some(self.document.draft)
        {
            let why = format!("$schema is {said} and something else for the whole");
            return Err(self.placed(part, refused(why)));
        }
        let (around, alternatives) = (self.around.len(), self.alternatives);
        if around == 0 {
            self.alternatives = 0;
        }
        self.around.push(part);
        let mut made = Made::default();
        for (keyword, value) in members {
            if self.document.draft.has(keyword) {
                self.keyword(keyword, value, part, members, &mut made)?;
            }
        }
        self.around.truncate(around);
        if around == 0 {
            self.alternatives = alternatives;
        }
        Ok(made.schema())
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &'a Value,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        // Keywords that are read together are where the first of them is: the parser reads what
        // stands between two of those that apply others on its own. One that the draft has not is
        // not looked at, so it cannot stand for the others.
        let draft = self.document.draft;
        let is_first = |of: &[&str]| {
            let mut known = members.keys().filter(|name| draft.has(name));
            let first = known.find(|name| of.contains(&name.as_str()));
            first.is_some_and(|first| first == keyword)
        };
        match keyword {
            "type"
                if value
                    .as_array()
                    .is_some_and(|types| types.len() > MAX_TYPES) =>
            {
                let why = format!("type has more than {MAX_TYPES} types");
                return Err(self.placed(part, refused(why)));
            }
            "type" => {
                // What has an array there has `null` in it, if it means to.
                let types = match value {
                    Value::String(_) if self.is_nullable(part) => json!([value, "null"]),
                    types => types.clone(),
                };
                made.own.insert(keyword.into(), types);
            }
            "const" | "enum" => {
                numbers::kept(value)?;
                // Which it may meet by a reference: the parser would take 2^63 - 1 for it.
                if let Some(number) = range::beyond(value).filter(|_| self.has_integers) {
                    let why = format!("the number {number:?} is beyond 2^63, where integers end");
                    return Err(self.placed(part, refused(why)));
                }
                self.spend(bytes(value))?;
                if keys::has_spelt_by_code(value) {
                    self.ask_for_code(part);
                }
                made.own.insert(keyword.into(), value.clone());
            }
            "required" => {
                self.spend(bytes(value))?;
                made.own.insert(keyword.into(), value.clone());
            }
            "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                made.own.insert(keyword.into(), count(value));
            }
            "allOf" | "anyOf" => {
                let parts = self.parts(value)?;
                made.own.insert(keyword.into(), parts);
            }
            "oneOf" => self.one_of(value, part, members, made)?,
            "$ref" => {
                if let Err(why) = self.refer(part, made) {
                    return Err(self.placed(part, why));
                }
            }
            "$dynamicRef" | "$recursiveRef" if !members.contains_key("$ref") => {
                match self.refer(part, made) {
                    Err(Error::Grammar(why)) => self.pass_over(part, &why)?,
                    done => done?,
                }
            }
            "not" => self.not(value, part, made)?,
            "if" => self.condition(value, part, members, made)?,
            "dependencies" | "dependentRequired" | "dependentSchemas" => {
                self.dependencies(keyword, value, part, made)?;
            }
            "propertyNames" => self.property_names(value, part, made)?,
            _ if is_first(&properties::KEYWORDS) => self.properties(part, members, made)?,
            _ if is_first(&items::KEYWORDS) => self.items(part, members, made)?,
            _ if is_first(&range::KEYWORDS) => self.range(part, members, made)?,
            _ if is_first(&format::KEYWORDS) => self.string(part, members, made)?,
            // It says nothing about a text, or it was read with others.
            _ => {}
        }
        Ok(())
    }

    /// Parts that hold of the same value as the part that has them.
    fn parts(&mut self, parts: &'a Value) -> Result<Value> {
        match parts {
            Value::Array(parts) => {
                let parts = parts.iter().map(|part| self.part(part));
                Ok(Value::Array(parts.collect::<Result<_>>()?))
            }
            // The parser refuses it.
            other => Ok(other.clone()),
        }
    }

    fn refer(&mut self, part: &'a Value, made: &mut Made) -> Result<()> {
        for target in self.document.references(part)? {
            match target {
                Value::Object(_) if !made.own.contains_key("$ref") => {
                    let reference = self.reference_to(target);
                    made.own.insert("$ref".into(), reference.into());
                }
                Value::Object(_) => {
                    let reference = self.reference_to(target);
                    made.beside.push(json!({"$ref": reference}));
                }
                Value::Bool(_) => made.beside.push(target.clone()),
                _ => return Err(refused("a reference is to a part that is no schema".into())),
            }
        }
        Ok(())
    }

    /// One more set of alternatives of the same value. The parser multiplies them.
    fn alternative(&mut self, part: &Value) -> Result<bool> {
        const MOST: usize = 6;
        self.alternatives += 1;
        if self.alternatives <= MOST {
            return Ok(true);
        }
        let why = format!("more than {MOST} conditions of one value cannot be followed");
        self.pass_over(part, &why).map(|()| false)
    }

    /// Counts steps in which parts are compared. Whether there may be more.
    fn step(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        self.steps <= MAX_STEPS
    }

    /// Counts what the parser is given.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        Err(refused(format!(
            "it would be more than {MAX_BYTES} bytes with its conditions as alternatives"
        )))
    }

    /// Keeps that `part` has a character that is written by its code alone.
    fn ask_for_code(&mut self, part: &Value) {
        if self.asks_for_code.is_none() {
            let why = "it has a control character that only \\u writes, which cannot be followed \
                       where an object may have properties beside those that are named \
                       (\"additionalProperties\": false lets it have none)";
            self.asks_for_code = Some(self.placed(part, refused(why.into())));
        }
    }

    /// Refuses what cannot be followed, unless the schema says to pass over it.
    fn pass_over(&self, part: &Value, why: &str) -> Result<()> {
        if self.is_lenient {
            return Ok(());
        }
        let way_out = r#""x-guidance": {"lenient": true} in the schema passes over it"#;
        Err(self.placed(part, refused(format!("{why}; {way_out}"))))
    }

    fn placed(&self, part: &Value, error: Error) -> Error {
        let Error::Grammar(why) = error else {
            return error;
        };
        refused(format!("at {}: {why}", self.document.pointer(part)))
    }
}

/// Refuses what has a schema somewhere inside and says nothing itself: it would be any value.
fn refuse_wrapper(schema: &Value) -> Result<()> {
    let Value::Object(members) = schema else {
        return Ok(());
    };
    let inside = ["schema", "json_schema", "parameters"];
    let inside = inside
        .into_iter()
        .find(|name| members.get(*name).is_some_and(Value::is_object));
    match inside {
        Some(name) if !members.keys().any(|keyword| draft::asserts(keyword)) => {
            Err(refused(format!(
                "it has no keyword of JSON Schema, but an object as {name:?}: that one alone may be \
                 the schema"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a `type` in `value` names integers.
fn names_integers(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.iter().any(|(keyword, value)| {
            let said = match value {
                Value::Array(types) => types,
                one => std::slice::from_ref(one),
            };
            (keyword == "type" && said.iter().any(|one| one == "integer")) || names_integers(value)
        }),
        Value::Array(values) => values.iter().any(names_integers),
        _ => false,
    }
}

/// A count as the parser reads it. JSON Schema has no other numbers: 2.0 is 2.
fn count(value: &Value) -> Value {
    match value.as_f64() {
        Some(whole) if whole.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&whole) => {
            (whole as u64).into()
        }
        _ => value.clone(),
    }
}

/// What a value takes, roughly.
fn bytes(value: &Value) -> usize {
    const EACH: usize = 32;
    match value {
        Value::String(text) => EACH + text.len(),
        Value::Array(values) => EACH + values.iter().map(bytes).sum::<usize>(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| name.len() + bytes(value));
            EACH + members.sum::<usize>()
        }
        _ => EACH,
    }
}

fn refused(sentence: String) -> Error {
    Error::Grammar(sentence)
}

#[cfg(test)]
mod tests;
