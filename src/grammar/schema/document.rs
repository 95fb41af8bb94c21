//! A JSON Schema as it was given: its parts, and what their references refer to.

use super::draft::{Draft, asserts};
use super::refused;
use super::uri::{decoded, join};
use crate::Result;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

/// Identifies a part of the document by its address. The address stays the same as long as the
/// document is borrowed.
pub(super) type Address = *const Value;

pub(super) struct Document<'a> {
    pub root: &'a Value,
    pub draft: Draft,
    /// Whether the document names its draft. One that does not may be OpenAPI's.
    pub says_draft: bool,
    /// The URI that the references in each part are relative to.
    bases: HashMap<Address, Rc<str>>,
    resources: HashMap<Rc<str>, &'a Value>,
    /// The parts that have a name in a resource, by resource and name. The `bool` says whether the
    /// name is a dynamic anchor.
    anchors: HashMap<(Rc<str>, &'a str), (&'a Value, bool)>,
    /// How many dynamic anchors with each name there are.
    dynamic: HashMap<&'a str, usize>,
    /// The parts that contain a reference.
    referring: Vec<&'a Value>,
}

/// The keywords that refer to another part.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// What the value of a keyword contains.
enum Kind {
    Schema,
    Schemas,
    /// Schemas by names. A name may be the same as a keyword.
    Named,
    Values,
    Unknown,
}

fn kind(keyword: &str) -> Kind {
    match keyword {
        "additionalItems"
        | "additionalProperties"
        | "contains"
        | "else"
        | "if"
        | "not"
        | "propertyNames"
        | "then"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Kind::Schema,
        "allOf" | "anyOf" | "items" | "oneOf" | "prefixItems" => Kind::Schemas,
        "$defs" | "definitions" | "dependencies" | "dependentSchemas" | "patternProperties"
        | "properties" => Kind::Named,
        "const" | "default" | "enum" | "examples" => Kind::Values,
        _ => Kind::Unknown,
    }
}

/// `schema` without the keywords that have no effect because they stand beside a `$ref`. That is
/// the rule of drafts 4 to 7.
pub(super) fn without_siblings(schema: &Value) -> Result<Cow<'_, Value>> {
    match Draft::said_by(schema)? {
        Some(draft) if draft <= Draft::Seven => {
            let mut schema = schema.clone();
            drop_siblings(&mut schema);
            Ok(Cow::Owned(schema))
        }
        _ => Ok(Cow::Borrowed(schema)),
    }
}

fn drop_siblings(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(drop_siblings),
        Value::Object(members) => {
            // Definitions stay, because other parts refer to them.
            if members.get("$ref").is_some_and(Value::is_string) {
                members.retain(|keyword, _| keyword == "$ref" || !asserts(keyword));
            }
            for (keyword, value) in members {
                match (kind(keyword), value) {
                    (Kind::Values, _) => {}
                    (Kind::Named, Value::Object(named)) => {
                        named.values_mut().for_each(drop_siblings);
                    }
                    (_, value) => drop_siblings(value),
                }
            }
        }
        _ => {}
    }
}

impl<'a> Document<'a> {
    pub fn new(root: &'a Value) -> Result<Self> {
        let said = Draft::said_by(root)?;
        let mut document = Self {
            root,
            draft: said.unwrap_or(Draft::Of2020),
            says_draft: said.is_some(),
            bases: HashMap::new(),
            resources: HashMap::new(),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            referring: Vec::new(),
        };
        // The values of known keywords are read first. So an `$id` inside a member that no draft
        // knows counts only if no other part has that URI.
        let mut unknown = Vec::new();
        document.index(root, &"".into(), &mut unknown);
        let base = document.bases.get(&std::ptr::from_ref(root)).cloned();
        document
            .resources
            .entry(base.unwrap_or_default())
            .or_insert(root);
        while let Some((value, base)) = unknown.pop() {
            document.index(value, &base, &mut unknown);
        }
        Ok(document)
    }

    fn index(&mut self, value: &'a Value, base: &Rc<str>, unknown: &mut Vec<(&'a Value, Rc<str>)>) {
        let members = match value {
            Value::Object(members) => members,
            Value::Array(values) => {
                return values.iter().for_each(|v| self.index(v, base, unknown));
            }
            _ => return,
        };
        let base = &self.named(value, members, base);
        self.bases.insert(value, base.clone());
        if REFERENCES
            .iter()
            .any(|keyword| members.contains_key(*keyword))
        {
            self.referring.push(value);
        }
        for (keyword, value) in members {
            match (kind(keyword), value) {
                (Kind::Values, _) => {}
                (Kind::Schema | Kind::Schemas, value) => self.index(value, base, unknown),
                (Kind::Named, Value::Object(named)) => {
                    named.values().for_each(|v| self.index(v, base, unknown));
                }
                (Kind::Named | Kind::Unknown, value) => unknown.push((value, base.clone())),
            }
        }
    }

    /// Records the names of a part. Returns the URI that references in it are relative to.
    fn named(
        &mut self,
        value: &'a Value,
        members: &'a Map<String, Value>,
        base: &Rc<str>,
    ) -> Rc<str> {
        let mut base = base.clone();
        if let Some(id) = self.draft.id(members) {
            let (uri, fragment) = id.split_once('#').unwrap_or((id, ""));
            if !uri.is_empty() {
                base = join(&base, uri).into();
                self.resources.entry(base.clone()).or_insert(value);
            }
            if !fragment.is_empty() {
                let name = (base.clone(), fragment);
                self.anchors.entry(name).or_insert((value, false));
            }
        }
        for (keyword, is_dynamic) in [("$anchor", false), ("$dynamicAnchor", true)] {
            if let Some(name) = members.get(keyword).and_then(Value::as_str) {
                let entry = self.anchors.entry((base.clone(), name));
                entry.or_insert((value, is_dynamic));
                *self.dynamic.entry(name).or_default() += usize::from(is_dynamic);
            }
        }
        if members.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            *self.dynamic.entry("").or_default() += 1;
        }
        base
    }

    /// The parts of the document that are referred to, each with one of the references to it.
    pub fn targets(&self) -> HashMap<Address, &'a str> {
        let mut targets = HashMap::new();
        for part in &self.referring {
            let of = REFERENCES
                .iter()
                .filter_map(|keyword| part.get(*keyword)?.as_str());
            for (target, reference) in self
                .references(part)
                .unwrap_or_default()
                .into_iter()
                .zip(of)
            {
                targets
                    .entry(std::ptr::from_ref(target))
                    .or_insert(reference);
            }
        }
        targets
    }

    /// The parts that `part` itself refers to. They hold of the same value as `part`.
    pub fn references(&self, part: &'a Value) -> Result<Vec<&'a Value>> {
        let mut all = Vec::new();
        let Value::Object(members) = part else {
            return Ok(all);
        };
        for keyword in REFERENCES {
            let Some(reference) = members.get(keyword).filter(|_| self.draft.has(keyword)) else {
                continue;
            };
            let Value::String(reference) = reference else {
                return Err(refused(format!(
                    "{keyword} is {reference}, which is no string"
                )));
            };
            let (target, is_dynamic) = self
                .resolve(part, reference)
                .map_err(|why| refused(format!("{keyword} {reference:?} {why}")))?;
            // If there are several anchors, which one is meant depends on the parts through which a
            // text came here (the dynamic scope).
            let several = |name: &str| self.dynamic.get(name).is_some_and(|&n| n > 1);
            let depends = match keyword {
                "$ref" => false,
                "$dynamicRef" => is_dynamic && several(reference.rsplit('#').next().unwrap_or("")),
                _ => several(""),
            };
            if depends {
                return Err(refused(format!(
                    "{keyword} {reference:?} may refer to more than one part"
                )));
            }
            all.push(target);
        }
        Ok(all)
    }

    /// The part that a reference in `part` refers to, and whether by a dynamic anchor. The error
    /// says why the reference refers to nothing.
    fn resolve(
        &self,
        part: &Value,
        reference: &str,
    ) -> std::result::Result<(&'a Value, bool), &str> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let base = self.bases.get(&std::ptr::from_ref(part));
        let base = base.map_or("", |base| base);
        let uri = join(base, uri);
        let resource = self.resources.get(&*uri);
        let resource = *resource.ok_or("is none of the document's own parts")?;
        let fragment = decoded(fragment).ok_or("is no UTF-8")?;
        if fragment.is_empty() || fragment.starts_with('/') {
            let target = resource.pointer(&fragment);
            return Ok((target.ok_or("refers to a part that is not there")?, false));
        }
        let anchor = self.anchors.get(&(uri.into(), &fragment));
        anchor.copied().ok_or("refers to a name that no part has")
    }

    /// Where a part is, as a JSON pointer in a URI fragment. A long one is cut, because it is used
    /// in messages.
    pub fn pointer(&self, part: &Value) -> String {
        let mut pointer = String::from("#");
        if !point(self.root, part, &mut pointer) {
            return "#".into();
        }
        match pointer.char_indices().nth(160) {
            Some((end, _)) => format!("{}...", &pointer[..end]),
            None => pointer,
        }
    }
}

fn point(value: &Value, part: &Value, pointer: &mut String) -> bool {
    if std::ptr::eq(value, part) {
        return true;
    }
    let mut inside = |name: &str, value| {
        let before = pointer.len();
        pointer.push('/');
        *pointer += &name.replace('~', "~0").replace('/', "~1");
        let found = point(value, part, pointer);
        if !found {
            pointer.truncate(before);
        }
        found
    };
    match value {
        Value::Object(members) => members.iter().any(|(name, value)| inside(name, value)),
        Value::Array(values) => {
            let mut values = values.iter().enumerate();
            values.any(|(i, value)| inside(&i.to_string(), value))
        }
        _ => false,
    }
}
