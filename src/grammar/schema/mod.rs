//! Translates a JSON Schema into a schema that the parser reads as it is meant.
//!
//! A schema is followed or refused. The parser reads a subset of the newest draft, ignores some
//! keywords silently, and takes every unknown member for a constraint beside its neighbours. So the
//! parser gets another schema, made from what the caller's schema says:
//!
//! - All parts that are referred to are in one `$defs`.
//! - Keywords that say nothing about a text are gone.
//! - Keywords that the parser lacks are expressed by keywords that it has.
//!
//! A *part* is a schema inside the document (in JSON Schema's words: a subschema).

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

/// The most steps for comparing parts, beyond one look at each part. They take a second or two.
/// Without a limit, references could make the work exponential. A step is one name, or one short
/// value of a list.
const MAX_STEPS: usize = 1 << 24;

/// Steps that are counted for one part, because its references are resolved.
const PART_STEPS: usize = 1 << 6;

/// The most bytes of the parser's schema, roughly. A limit is needed because parts that become
/// alternatives are copied.
const MAX_BYTES: usize = 16 << 20;

/// Bytes that are counted for one part, beside its values.
const PART_BYTES: usize = 64;

/// Translates `schema` for the parser. [`Error::Grammar`] if the schema cannot be followed.
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
        // If the options are not an object, the parser refuses them.
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

/// The member of the root schema that has options for the parser itself.
const OPTIONS: &str = "x-guidance";

struct Translation<'a> {
    document: Document<'a>,
    /// The parts that are referred to, each with one of the references to it. These parts become
    /// definitions, and a reference replaces them where they stand.
    targets: HashMap<Address, &'a str>,
    /// The references to the definitions that exist so far.
    references: HashMap<Address, String>,
    names: HashSet<String>,
    /// Definitions that are still to be translated, each with its name.
    waiting: Vec<(&'a Value, String)>,
    /// All numbers of the document, in ascending order.
    numbers: Vec<f64>,
    /// Whether a `type` somewhere in the document names integers.
    has_integers: bool,
    /// The parts that hold of the same value as the part that is being translated.
    around: Vec<&'a Value>,
    /// How many sets of alternatives of the same value were made from other keywords than `anyOf`.
    alternatives: usize,
    /// The negations that contain the part that is being translated.
    negations: usize,
    steps: usize,
    bytes: usize,
    /// The error for the first part that needs `\u`, because some character of it can only be
    /// written by its code. It is returned if texts must not have `\u`.
    asks_for_code: Option<Error>,
    is_lenient: bool,
    /// Whether `oneOf` is read as `anyOf`.
    coerces_one_of: bool,
}

/// A part, translated for the parser.
#[derive(Default)]
struct Made {
    own: Map<String, Value>,
    /// Schemas that hold as well, but cannot be merged into `own`.
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
                // The part's own keywords come first, because properties follow the order of the
                // schemas.
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
            negations: 0,
            steps: 0,
            bytes: 0,
            asks_for_code: None,
            is_lenient: asks("lenient"),
            coerces_one_of: asks("lenient") || asks("coerce_one_of"),
        })
    }

    /// Translates a part in its place: as a reference, if something else refers to the part.
    fn part(&mut self, part: &'a Value) -> Result<Value> {
        match part {
            Value::Object(_) if self.targets.contains_key(&std::ptr::from_ref(part)) => {
                Ok(json!({"$ref": self.reference_to(part)}))
            }
            _ => self.own(part),
        }
    }

    /// Translates a part that applies to another value than the part around it.
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
        // The parser's messages show the name. The parser does not read escapes in it.
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

    /// Translates what a part itself says.
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
        // Keywords that are read together are handled where the first of them stands. They must
        // stay together, because the parser reads the keywords between two applicators (such as
        // `allOf`) as a schema of their own. A keyword that the draft does not have is skipped, so
        // it does not count as the first.
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
                // `nullable` matters only beside a single type. A list of types has `null` in it if
                // the schema means to allow `null`.
                let types = match value {
                    Value::String(_) if self.is_nullable(part) => json!([value, "null"]),
                    types => types.clone(),
                };
                made.own.insert(keyword.into(), types);
            }
            "const" | "enum" => {
                numbers::kept(value)?;
                // An integer type may meet this number by a reference, and the parser would read
                // 2^63 - 1.
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
            // The keyword says nothing about a text, or was read together with others.
            _ => {}
        }
        Ok(())
    }

    /// Translates parts that hold of the same value as the part that contains them.
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

    /// Counts one more set of alternatives of the same value, and returns whether it may be made.
    /// There is a limit because the parser multiplies the sets.
    fn alternative(&mut self, part: &Value) -> Result<bool> {
        const MOST: usize = 6;
        self.alternatives += 1;
        if self.alternatives <= MOST {
            return Ok(true);
        }
        let why = format!("more than {MOST} conditions of one value cannot be followed");
        self.pass_over(part, &why).map(|()| false)
    }

    /// Counts steps of comparing parts. Returns whether more steps are allowed.
    fn step(&mut self, steps: usize) -> bool {
        self.steps = self.steps.saturating_add(steps);
        self.steps <= MAX_STEPS
    }

    /// Counts bytes of the parser's schema. [`Error::Grammar`] if there are too many.
    fn spend(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes <= MAX_BYTES {
            return Ok(());
        }
        Err(refused(format!(
            "it would be more than {MAX_BYTES} bytes with its conditions as alternatives"
        )))
    }

    /// Records that `part` has a character that can only be written by its code (`\u`).
    fn ask_for_code(&mut self, part: &Value) {
        if self.asks_for_code.is_none() {
            let why = "it has a control character that only \\u writes, which cannot be followed \
                       where an object may have properties beside those that are named \
                       (\"additionalProperties\": false lets it have none)";
            self.asks_for_code = Some(self.placed(part, refused(why.into())));
        }
    }

    /// Refuses what cannot be followed, unless the schema asks to pass over it.
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

/// Refuses an object that contains a schema but has no keyword itself: it would allow any value.
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

/// Writes a count as the parser reads it. To JSON Schema, 2.0 is the same number as 2.
fn count(value: &Value) -> Value {
    match value.as_f64() {
        Some(whole) if whole.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&whole) => {
            (whole as u64).into()
        }
        _ => value.clone(),
    }
}

/// The memory that a value takes, roughly, in bytes.
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
