//! What of a JSON Schema the parser would pass over, or would read as something else than it says.
//!
//! A schema is followed or refused. The parser refuses keywords that it knows and cannot follow;
//! what it has no eye for is refused here. Dates and times are mended.

use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// What `$schema` may say, without its scheme. The first is read as the newest.
const DIALECTS: [&str; 6] = [
    "json-schema.org/schema",
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft-06/schema",
    DRAFT_4,
];

/// Its `$id` is called `id`.
const DRAFT_4: &str = "json-schema.org/draft-04/schema";

/// A date that exists: 29 February is in leap years only, for which the parser has no eye.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);

/// A time of day without leap seconds. One is right only where it is 23:59 in UTC, which hangs on
/// the offset behind it.
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);

/// Refuses `schema`, or makes it such that the parser reads what it says.
pub(super) fn prepare(schema: &mut Value) -> Result<()> {
    let own = match schema.get("$schema") {
        None => DIALECTS[0],
        Some(value) => dialect(value)?,
    };
    Place {
        dialect: own,
        is_root: true,
        has_own_base: false,
    }
    .of(schema)
}

fn dialect(value: &Value) -> Result<&'static str> {
    let said = value.as_str().unwrap_or_default().trim_end_matches('#');
    let said = said
        .strip_prefix("https://")
        .or_else(|| said.strip_prefix("http://"))
        .unwrap_or_default();
    let known = DIALECTS.into_iter().find(|known| *known == said);
    known.ok_or_else(|| {
        refused(format!(
            "$schema is {value}, which is none of the drafts 4, 6, 7, 2019-09 and 2020-12"
        ))
    })
}

/// Where in a schema a part of it stands.
#[derive(Clone, Copy)]
struct Place {
    /// What the whole is written in.
    dialect: &'static str,
    is_root: bool,
    /// Whether a part around it, which is not the whole, has an `$id`. References in it are into
    /// that part; the parser looks all of them up in the whole.
    has_own_base: bool,
}

impl Place {
    fn of(mut self, value: &mut Value) -> Result<()> {
        let inside = |place: Place| Place {
            is_root: false,
            ..place
        };
        let members = match value {
            Value::Object(members) => members,
            Value::Array(values) => {
                let mut values = values.iter_mut();
                return values.try_for_each(|value| inside(self).of(value));
            }
            _ => return Ok(()),
        };
        if !self.is_root {
            self.check_inside(members)?;
        }
        check_reference(members, self.has_own_base)?;
        mend_format(members);
        // It says nothing, and the parser knows no `uniqueItems`.
        members.retain(|name, value| !(name == "uniqueItems" && *value == false));
        for (name, value) in members {
            match (&**name, value) {
                ("const" | "default" | "enum" | "examples", _) => {} // values, no schemas
                // Schemas by names, which may be those of keywords.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions"
                    | "dependentSchemas",
                    Value::Object(named),
                ) => {
                    for schema in named.values_mut() {
                        inside(self).of(schema)?;
                    }
                }
                (_, value) => inside(self).of(value)?,
            }
        }
        Ok(())
    }

    /// What only the whole may have.
    fn check_inside(&mut self, members: &Map<String, Value>) -> Result<()> {
        if let Some(value @ Value::String(_)) = members.get("$schema") {
            let newest = |dialect| match dialect {
                "json-schema.org/schema" => "json-schema.org/draft/2020-12/schema",
                other => other,
            };
            if newest(dialect(value)?) != newest(self.dialect) {
                return Err(refused(format!(
                    "$schema is {value} in a part of it and something else for the whole"
                )));
            }
        }
        let id = match self.dialect {
            DRAFT_4 => "id",
            _ => "$id",
        };
        // Behind `#` comes only a name.
        let id = members.get(id).and_then(Value::as_str);
        self.has_own_base |= id.is_some_and(|id| !id.starts_with('#'));
        Ok(())
    }
}

fn check_reference(members: &Map<String, Value>, has_own_base: bool) -> Result<()> {
    let Some(reference) = members.get("$ref").and_then(Value::as_str) else {
        return Ok(());
    };
    if has_own_base {
        return Err(refused(format!(
            "$ref {reference:?} is inside a part with an $id of its own"
        )));
    }
    // The parser would look for a member that is called like that.
    if reference.starts_with('#') && reference.contains(['~', '%']) {
        return Err(refused(format!(
            "$ref {reference:?} has characters that are written as others"
        )));
    }
    Ok(())
}

/// Says of a string with a date or a time in it what it is by a pattern of ours.
fn mend_format(members: &mut Map<String, Value>) {
    let ours = match members.get("format").and_then(Value::as_str) {
        Some("date") => format!("^{DATE}$"),
        Some("time") => format!("^{TIME}$"),
        Some("date-time") => format!("^{DATE}[tT]{TIME}$"),
        _ => return,
    };
    let has_pattern = members.contains_key("pattern");
    // In its place: where there are others, the order of keywords is that of an object's members.
    let all = std::mem::take(members).into_iter();
    *members = all
        .filter(|(name, _)| !(has_pattern && name == "format"))
        .map(|(name, value)| match &*name {
            "format" => ("pattern".into(), ours.clone().into()),
            _ => (name, value),
        })
        .collect();
    if has_pattern {
        let all = members.entry("allOf").or_insert(json!([]));
        // What is no array the parser refuses.
        if let Value::Array(all) = all {
            all.push(json!({"pattern": ours}));
        }
    }
}

fn refused(sentence: String) -> Error {
    Error::Grammar(sentence)
}
