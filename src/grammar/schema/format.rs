//! What a `format` and a `pattern` say of strings.

use super::pattern::{self, Translated};
use super::{Made, Translation, refused};
use crate::Result;
use serde_json::{Map, Value, json};

pub(super) const KEYWORDS: [&str; 2] = ["pattern", "format"];

/// A date that exists. 29 February exists in leap years only, which the parser does not check.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);

/// A time of day without leap seconds. A leap second is valid only at 23:59 UTC, and whether it is
/// that time depends on the offset behind it.
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);

/// What a format says.
pub(super) enum Format {
    /// The parser knows it.
    Known,
    /// Our own pattern expresses it.
    Pattern(String),
    /// A draft defines it, but we have no pattern for it.
    Unfollowed,
    /// No draft defines it, so it is an annotation.
    Annotation,
}

pub(super) fn format(name: &str) -> Format {
    let hex = |n: usize| format!("[0-9a-fA-F]{{{n}}}");
    match name {
        "date" => Format::Pattern(format!("^{DATE}$")),
        "time" => Format::Pattern(format!("^{TIME}$")),
        "date-time" => Format::Pattern(format!("^{DATE}[tT]{TIME}$")),
        "uuid" => Format::Pattern(format!("^{}(?:-{}){{3}}-{}$", hex(8), hex(4), hex(12))),
        // RFC 6901.
        "json-pointer" => Format::Pattern("^(?:/(?:[^~/]|~[01])*)*$".into()),
        // A UUID of one version, by the name that pydantic uses.
        _ if name.len() == 5
            && name.starts_with("uuid")
            && matches!(name.as_bytes()[4], b'1'..=b'8') =>
        {
            let version = &name[4..];
            Format::Pattern(format!(
                "^{}-{}-{version}{}-[89abAB]{}-{}$",
                hex(8),
                hex(4),
                hex(3),
                hex(3),
                hex(12)
            ))
        }
        "duration" | "email" | "hostname" | "ipv4" | "ipv6" | "uri" => Format::Known,
        "idn-email"
        | "idn-hostname"
        | "iri"
        | "iri-reference"
        | "regex"
        | "relative-json-pointer"
        | "uri-reference"
        | "uri-template" => Format::Unfollowed,
        _ => Format::Annotation,
    }
}

impl<'a> Translation<'a> {
    pub(super) fn string(
        &mut self,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let (given, name) = (members.get("pattern"), members.get("format"));
        match given {
            Some(Value::String(given)) => {
                self.spend(given.len())?;
                let pattern = self.pattern(given, part)?;
                if pattern.asks_for_code {
                    self.ask_for_code(part);
                }
                made.own.insert("pattern".into(), pattern.text.into());
            }
            // The parser refuses it.
            Some(other) => {
                made.own.insert("pattern".into(), other.clone());
            }
            None => {}
        }
        let Some(name) = name else { return Ok(()) };
        let Value::String(text) = name else {
            made.own.insert("format".into(), name.clone());
            return Ok(());
        };
        match format(text) {
            Format::Known => {
                made.own.insert("format".into(), name.clone());
            }
            Format::Pattern(ours) if given.is_none() => {
                made.own.insert("pattern".into(), ours.into());
            }
            Format::Pattern(ours) => made.beside.push(json!({"pattern": ours})),
            // If there is a pattern beside the format, the pattern has said already what is
            // allowed.
            Format::Unfollowed if given.is_none() && may_be_string(members) => {
                self.pass_over(part, &format!("the format {text:?} cannot be followed"))?;
            }
            Format::Unfollowed | Format::Annotation => {}
        }
        Ok(())
    }

    /// Translates a pattern for the parser.
    pub(super) fn pattern(&self, pattern: &str, part: &Value) -> Result<Translated> {
        pattern::translated(pattern).map_err(|why| {
            let shown: String = pattern.chars().take(60).collect();
            self.placed(part, refused(format!("the pattern {shown:?} {why}")))
        })
    }
}

fn may_be_string(members: &Map<String, Value>) -> bool {
    match members.get("type") {
        Some(Value::String(only)) => only == "string",
        Some(Value::Array(types)) => types.iter().any(|one| one == "string"),
        _ => true,
    }
}
