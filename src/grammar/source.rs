//! What a caller gives, in the form that the parser takes.

use super::{MAX_SOURCE, schema};
use crate::{Error, Result};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

/// A language of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// The JSON values that this JSON Schema describes.
    JsonSchema(&'a str),
    /// Every JSON object.
    Json,
    /// The texts that this regular expression matches as a whole.
    Regex(&'a str),
    /// The texts of a grammar in llguidance's dialect of Lark.
    Lark(&'a str),
    /// The strings of this JSON array.
    Choice(&'a str),
}

impl Source<'_> {
    /// Length of the source in bytes.
    pub(super) fn len(self) -> usize {
        match self {
            Source::JsonSchema(text)
            | Source::Regex(text)
            | Source::Lark(text)
            | Source::Choice(text) => text.len(),
            Source::Json => 0,
        }
    }
}

/// A space in front of the language that the tokenizer drops when it decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    None,
    May,
    Must,
    /// The empty text belongs to the language. It has no space in front, all others must have one.
    MustUnlessEmpty,
}

/// The most places of a schema at which the parser may recurse. The parser itself refuses a schema
/// with more objects.
pub const MAX_SCHEMA_LEVELS: usize = 1 << 14;

/// The most places of a Lark grammar at which the parser may recurse. With a chain of 8,190
/// terminals the parser worked for 41 s of processor time until it found the chain too complex; one
/// of 4,090 terminals took 0.2 s.
pub const MAX_LARK_LEVELS: usize = 1 << 12;

/// How deep the parser may recurse over a source: through brackets, and from one definition into
/// the next. The parser's own limit is on the brackets within one definition; it has no limit on
/// the number of definitions.
pub(super) fn levels(source: Source<'_>) -> usize {
    let count = |text: &str, at: &[u8]| text.bytes().filter(|byte| at.contains(byte)).count();
    match source {
        Source::JsonSchema(text) => count(text, b"{["),
        Source::Lark(text) => count(text, b"{[(:"),
        // The parser of regular expressions has its own limit.
        Source::Json | Source::Regex(_) | Source::Choice(_) => 0,
    }
}

fn most_levels(source: Source<'_>) -> usize {
    match source {
        Source::Lark(_) => MAX_LARK_LEVELS,
        _ => MAX_SCHEMA_LEVELS,
    }
}

/// A source that is well-formed on its own.
pub(super) enum Checked {
    Schema(Value),
    Regex(String),
    Lark(String),
}

/// Refuses a source that is too long, or over which the parser would recurse too deeply.
pub(super) fn check_size(source: Source<'_>) -> Result<()> {
    if source.len() > MAX_SOURCE {
        let expected = format!("at most {MAX_SOURCE} bytes long");
        let got = format!("{} bytes long", source.len());
        return Err(Error::invalid("source", expected, got));
    }
    let (levels, most) = (levels(source), most_levels(source));
    if levels > most {
        return Err(Error::Grammar(format!(
            "it has {levels} opening brackets and definitions, at most {most} can be"
        )));
    }
    Ok(())
}

impl Checked {
    /// Checks a source whose size was checked before. Recurses over schemas.
    pub fn new(source: Source<'_>) -> Result<Checked> {
        match source {
            Source::Json => {
                let mut schema = json!({"type": "object"});
                bound_spaces(&mut schema);
                Ok(Checked::Schema(schema))
            }
            Source::JsonSchema(text) => {
                let schema = parse(text, "a JSON Schema")?;
                Ok(Checked::Schema(readable(text, &schema)?))
            }
            Source::Regex(text) => Ok(Checked::Regex(text.into())),
            Source::Choice(text) => Ok(Checked::Regex(choice(text)?)),
            Source::Lark(text) => Ok(Checked::Lark(with_readable_schemas(text)?)),
        }
    }

    /// The parser's input for this language behind `space`.
    pub fn behind(&self, space: Space) -> TopLevelGrammar {
        let body = match self {
            Checked::Regex(regex) => GrammarWithLexer::from_regex(regex),
            Checked::Schema(schema) => GrammarWithLexer::from_json_schema(schema.clone()),
            Checked::Lark(lark) => GrammarWithLexer::from_lark(lark.clone()),
        };
        let rule = match space {
            Space::None => return TopLevelGrammar::from_grammar(body),
            Space::May => "SP? @body",
            Space::Must => "SP @body",
            Space::MustUnlessEmpty => "(SP @body)?",
        };
        // Two grammars instead of one text inside another, so that the parser's messages count the
        // caller's own lines.
        let around = format!("start: {rule}\nSP: \" \"\n");
        let named = |grammar, name: &str| GrammarWithLexer {
            name: Some(name.into()),
            ..grammar
        };
        TopLevelGrammar {
            grammars: vec![
                named(GrammarWithLexer::from_lark(around), "around"),
                named(body, "body"),
            ],
            max_tokens: None,
        }
    }
}

/// A schema that says what `schema` says, in terms that the parser reads. `text` is its source.
fn readable(text: &str, schema: &Value) -> Result<Value> {
    schema::numbers::check(text, schema)?;
    let mut readable = schema::prepare(schema)?;
    bound_spaces(&mut readable);
    Ok(readable)
}

/// Allows one space between the parts of a value, unless the schema itself says what may be there.
/// The parser's default is any number of spaces and line feeds, and a model that has begun to write
/// them may never end.
fn bound_spaces(schema: &mut Value) {
    if *schema == Value::Bool(true) {
        *schema = json!({});
    }
    let Value::Object(members) = schema else {
        return;
    };
    let options = members.entry("x-guidance").or_insert_with(|| json!({}));
    // If the options are not an object, the parser refuses them.
    if let Value::Object(options) = options
        && !["whitespace_flexible", "whitespace_pattern"]
            .iter()
            .any(|own| options.contains_key(*own))
    {
        options.insert("whitespace_pattern".into(), " ".into());
    }
}

/// The Lark grammar with each of its schemas in terms that the parser reads. If the text behind
/// `%json` is not JSON, the parser refuses it. A schema that needs no change stays as it is
/// written.
fn with_readable_schemas(lark: &str) -> Result<String> {
    let (mut rest, mut readable_lark) = (lark, String::new());
    while let Some(at) = schema_in(rest) {
        let (before, behind) = rest.split_at(at);
        readable_lark += before;
        rest = behind;
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(schema)) = values.next() {
            let (text, behind) = rest.split_at(values.byte_offset());
            let mended = readable(text, &schema)?;
            match mended == schema {
                true => readable_lark += text,
                // The new text has as many lines as the old one, because the parser's messages
                // count the caller's lines.
                false => {
                    let lines = "\n".repeat(text.matches('\n').count());
                    let mended = mended.to_string();
                    let (begin, end) = mended.split_at(1);
                    readable_lark += &format!(" {begin}{lines}{end}");
                }
            }
            rest = behind;
        }
    }
    Ok(readable_lark + rest)
}

/// Where the first schema of a Lark grammar begins: behind its `%json`. `%json` inside a literal,
/// an expression or a comment does not count.
fn schema_in(lark: &str) -> Option<usize> {
    const SCHEMA: &str = "%json";
    let text = lark.as_bytes();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let end = |n: Option<usize>| n.map_or(rest.len(), |n| n + 1);
        at += match rest[0] {
            _ if rest.starts_with(SCHEMA.as_bytes()) => return Some(at + SCHEMA.len()),
            b'#' => end(rest.iter().position(|&c| c == b'\n')),
            b'/' if rest.get(1) == Some(&b'/') => end(rest.iter().position(|&c| c == b'\n')),
            quote @ (b'"' | b'/') => {
                let mut is_escaped = false;
                let close = rest[1..].iter().position(|&c| {
                    let closes = c == quote && !is_escaped;
                    is_escaped = c == b'\\' && !is_escaped;
                    closes
                });
                1 + end(close).min(rest.len() - 1)
            }
            _ => 1,
        };
    }
    None
}

fn parse(text: &str, what: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::Grammar(format!("it is not {what}: {e}")))
}

/// A regular expression for the strings of a JSON array.
fn choice(text: &str) -> Result<String> {
    const EXPECTED: &str = "a JSON array of distinct strings, none of them empty";
    let not = |detail: String| Error::Grammar(format!("it is not {EXPECTED}: {detail}"));
    let Value::Array(values) = parse(text, EXPECTED)? else {
        return Err(not("it is no array".into()));
    };
    if values.is_empty() {
        return Err(not("it has no elements".into()));
    }
    let mut seen = std::collections::HashSet::new();
    let mut regex = String::new();
    for (i, value) in values.iter().enumerate() {
        let Value::String(string) = value else {
            return Err(not(format!("element {i} is no string")));
        };
        if string.is_empty() {
            return Err(not(format!("element {i} is empty")));
        }
        if !seen.insert(string) {
            return Err(not(format!("element {i} stands there twice")));
        }
        if i > 0 {
            regex.push('|');
        }
        regex.push('(');
        regex.push_str(&regex_syntax::escape(string));
        regex.push(')');
    }
    Ok(regex)
}
