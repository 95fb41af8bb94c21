//! The drafts of JSON Schema, and which keywords each of them has.

use super::refused;
use crate::Result;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    Six,
    Seven,
    Of2019,
    Of2020,
}

/// What `$schema` may say, without the URI's scheme. The first entry is read as the newest draft.
const DRAFTS: [(&str, Draft); 6] = [
    ("json-schema.org/schema", Draft::Of2020),
    ("json-schema.org/draft/2020-12/schema", Draft::Of2020),
    ("json-schema.org/draft/2019-09/schema", Draft::Of2019),
    ("json-schema.org/draft-07/schema", Draft::Seven),
    ("json-schema.org/draft-06/schema", Draft::Six),
    ("json-schema.org/draft-04/schema", Draft::Four),
];

impl Draft {
    /// The draft that a schema says it is written in, if it says so.
    pub fn said_by(schema: &Value) -> Result<Option<Draft>> {
        let Some(value) = schema.get("$schema") else {
            return Ok(None);
        };
        let said = value.as_str().unwrap_or_default().trim_end_matches('#');
        let said = said
            .strip_prefix("https://")
            .or_else(|| said.strip_prefix("http://"))
            .unwrap_or_default();
        let known = DRAFTS.into_iter().find(|(name, _)| *name == said);
        known.map(|(_, draft)| Some(draft)).ok_or_else(|| {
            refused(format!(
                "$schema is {value}, which is none of the drafts 4, 6, 7, 2019-09 and 2020-12"
            ))
        })
    }

    /// Whether `keyword` exists in this draft; it exists in at least one draft. A keyword that the
    /// draft does not have says nothing.
    ///
    /// `dependencies`, and lists as `items`, are followed in all drafts.
    pub fn has(self, keyword: &str) -> bool {
        let first = match keyword {
            "const" | "contains" | "propertyNames" => Draft::Six,
            "if" | "then" | "else" => Draft::Seven,
            "$recursiveRef" => return self == Draft::Of2019,
            "dependentRequired"
            | "dependentSchemas"
            | "maxContains"
            | "minContains"
            | "unevaluatedItems"
            | "unevaluatedProperties" => Draft::Of2019,
            "$dynamicRef" | "prefixItems" => Draft::Of2020,
            _ => Draft::Four,
        };
        self >= first
    }

    /// The URI that a schema gives itself. Up to draft 7 it has no effect beside a `$ref`.
    pub fn id(self, members: &Map<String, Value>) -> Option<&str> {
        let name = match self {
            Draft::Four => "id",
            _ => "$id",
        };
        let id = members.get(name)?.as_str()?;
        (self > Draft::Seven || !members.contains_key("$ref")).then_some(id)
    }
}

/// Whether `keyword`, which may be of any draft, says something about values.
pub(super) fn asserts(keyword: &str) -> bool {
    matches!(
        keyword,
        "$dynamicRef"
            | "$recursiveRef"
            | "$ref"
            | "additionalItems"
            | "additionalProperties"
            | "allOf"
            | "anyOf"
            | "const"
            | "contains"
            | "dependencies"
            | "dependentRequired"
            | "dependentSchemas"
            | "enum"
            | "exclusiveMaximum"
            | "exclusiveMinimum"
            | "format"
            | "if"
            | "items"
            | "maxItems"
            | "maxLength"
            | "maxProperties"
            | "maximum"
            | "minItems"
            | "minLength"
            | "minProperties"
            | "minimum"
            | "multipleOf"
            | "not"
            | "oneOf"
            | "pattern"
            | "patternProperties"
            | "prefixItems"
            | "properties"
            | "propertyNames"
            | "required"
            | "type"
            | "unevaluatedItems"
            | "unevaluatedProperties"
            | "uniqueItems"
    )
}
