//! The spelling of the keys of objects.
//!
//! JSON has more than one spelling of a key: `"\u0061"` is `"a"`. The parser takes the two
//! spellings for two keys. So the second spelling would be none of the schema's properties and
//! would match none of its patterns. It could have any value that additional properties may have.
//! Where that could happen, the parser is asked for texts without `\u`. Then each character has one
//! spelling.

use serde_json::{Map, Value};

/// The characters that JSON, or the parser, can write only by `\u`.
pub(super) const SPELT_BY_CODE: [(u32, u32); 4] =
    [(0x00, 0x07), (0x0b, 0x0b), (0x0e, 0x1f), (0x7f, 0x7f)];

/// The parser's option for what may stand behind a backslash, and the option's default value, which
/// includes the `u` of `\u`.
const ESCAPES: (&str, &str) = ("json_allowed_escapes", "nrbtf\\\"u");

pub(super) fn is_spelt_by_code(c: char) -> bool {
    let is_in = |&(first, last): &(u32, u32)| (first..=last).contains(&c.into());
    SPELT_BY_CODE.iter().any(is_in)
}

/// Whether a string of `value` has such a character. The names of object members are written as
/// they stand.
pub(super) fn has_spelt_by_code(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(is_spelt_by_code),
        Value::Array(values) => values.iter().any(has_spelt_by_code),
        Value::Object(members) => members.values().any(has_spelt_by_code),
        _ => false,
    }
}

/// Whether `part` of the parser's schema contains an object that names properties or patterns of
/// names, and one of these keys can be written as if it were another key.
pub(super) fn are_ambiguous(part: &Value) -> bool {
    let members = match part {
        Value::Array(parts) => return parts.iter().any(are_ambiguous),
        Value::Object(members) => members,
        _ => return false,
    };
    let named = |keyword: &str| members.get(keyword).and_then(Value::as_object);
    let required = members.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    let names = named("properties").into_iter().flat_map(Map::keys);
    let mut names = names.map(String::as_str).chain(required).peekable();
    let is_open = members.get("additionalProperties") != Some(&Value::Bool(false));
    let has_names = names.peek().is_some() || named("patternProperties").is_some();
    // Control characters count because a pattern, perhaps of another part, allows each of their
    // spellings.
    if (is_open && has_names) || names.any(|name| name.contains(|c| c < ' ' || c == '\x7f')) {
        return true;
    }
    members
        .iter()
        .any(|(keyword, value)| match (&**keyword, value) {
            ("const" | "enum", _) => false,
            ("properties" | "patternProperties" | "$defs", Value::Object(named)) => {
                named.values().any(are_ambiguous)
            }
            (_, value) => are_ambiguous(value),
        })
}

/// Removes `\u` from the escapes that may be written.
pub(super) fn spell_once(options: &mut Map<String, Value>) {
    let (name, all) = ESCAPES;
    let allowed = options.entry(name).or_insert_with(|| all.into());
    // If the option is not a string, the parser refuses it.
    if let Value::String(allowed) = allowed {
        allowed.retain(|c| c != 'u');
    }
}
