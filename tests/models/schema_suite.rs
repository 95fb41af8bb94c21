//! JSON Schema's own tests, as `scripts/json-schema-suite` fetches them: which of their schemas are
//! taken, and of those that are, whether a text is of the language exactly where it is valid.
//!
//! A schema that is refused is no mistake; a text that is told wrongly is. All that are known stand
//! in `tests/data/decoding/schema-suite.txt`, file by file, so that any change of what is taken
//! shows. `LLAMABI_UPDATE_SCHEMA_SUITE=1` writes that file anew and prints why schemas are refused.
//!
//! A text has its object's members in some order, and a schema lets them come in its own only. So
//! each order is tried where the first is refused.

use crate::aloud::skipped;
use llamabi::Token;
use llamabi::grammar::{Cursor, Grammar, Grammars, Source};
use llamabi::tokenizer;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KNOWN: &str = "tests/data/decoding/schema-suite.txt";

/// Each draft's folder, and what `$schema` says for it.
const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    (
        "draft2019-09",
        "https://json-schema.org/draft/2019-09/schema",
    ),
    (
        "draft2020-12",
        "https://json-schema.org/draft/2020-12/schema",
    ),
];

/// No text of the suite has more orders than are tried.
const ORDERS: usize = 5040;

#[derive(Deserialize)]
struct Group {
    schema: Box<RawValue>,
    tests: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    data: Value,
    valid: bool,
}

/// What was found about one file, or about all of a draft.
#[derive(Default)]
struct Found {
    schemas: usize,
    refused: usize,
    right: usize,
    /// Of these, the valid texts that the schema takes in another order only.
    ordered: usize,
    /// Texts that are taken and are not valid: the group's number and the case's.
    accepts: Vec<(usize, usize)>,
    /// Valid texts that are not taken.
    rejects: Vec<(usize, usize)>,
}

impl Found {
    fn line(&self, name: &str) -> String {
        let Found {
            schemas,
            refused,
            right,
            ordered,
            ..
        } = self;
        let mut line = format!("{name}: {schemas} schemas, {refused} refused; {right} texts right");
        if *ordered > 0 {
            write!(line, " ({ordered} in another order)").unwrap();
        }
        for (what, cases) in [("taken", &self.accepts), ("not taken", &self.rejects)] {
            if cases.is_empty() {
                continue;
            }
            write!(line, "; wrongly {what}").unwrap();
            for (group, case) in cases {
                write!(line, " {group}.{case}").unwrap();
            }
        }
        line
    }

    fn add(&mut self, other: Found) {
        self.schemas += other.schemas;
        self.refused += other.refused;
        self.right += other.right;
        self.ordered += other.ordered;
        self.accepts.extend(other.accepts);
        self.rejects.extend(other.rejects);
    }
}

fn suite() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fetched = || root.join("build/json-schema-suite/tests");
    let path = std::env::var_os("LLAMABI_JSON_SCHEMA_SUITE");
    let path = path.map_or_else(fetched, PathBuf::from);
    if path.exists() {
        return Some(path);
    }
    skipped(
        "JSON Schema's own tests: scripts/json-schema-suite has not fetched them, and LLAMABI_JSON_SCHEMA_SUITE names none",
    );
    None
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, into),
            false => into.push(path),
        }
    }
}

/// Without `$schema` a schema is of the newest draft to the parser.
fn of_draft(schema: &str, draft: &str) -> String {
    match serde_json::from_str::<Value>(schema) {
        Ok(Value::Object(members)) if !members.contains_key("$schema") => {
            let rest = schema.trim_start().strip_prefix('{').unwrap();
            let comma = if members.is_empty() { "" } else { "," };
            format!("{{\"$schema\": \"{draft}\"{comma}{rest}")
        }
        _ => schema.into(),
    }
}

/// The text of a value with the members of each object in each order; the given one is the first.
fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(texts).collect();
            let joined = joined(&values.iter().collect::<Vec<_>>());
            joined.iter().map(|text| format!("[{text}]")).collect()
        }
        Value::Object(members) => {
            let member = |(name, value)| {
                let name = Value::from(name as &str);
                texts(value).iter().map(|v| format!("{name}:{v}")).collect()
            };
            let members: Vec<Vec<String>> = members.iter().map(member).collect();
            let mut orders = vec![];
            permute(&mut members.iter().collect(), 0, &mut orders);
            let joined = orders.iter().flat_map(|order| joined(order));
            joined.map(|text| format!("{{{text}}}")).collect()
        }
        value => vec![value.to_string()],
    }
}

/// One of each, in every combination.
fn joined(parts: &[&Vec<String>]) -> Vec<String> {
    let mut all = vec![String::new()];
    for (i, part) in parts.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let longer = |text: &String| -> Vec<String> {
            part.iter().map(|p| format!("{text}{comma}{p}")).collect()
        };
        all = all.iter().flat_map(longer).collect();
        assert!(all.len() <= ORDERS);
    }
    all
}

fn permute<'a, T>(values: &mut Vec<&'a T>, from: usize, into: &mut Vec<Vec<&'a T>>) {
    if from >= values.len() {
        assert!(into.len() < ORDERS);
        into.push(values.clone());
    }
    for i in from..values.len() {
        values[from..=i].rotate_right(1);
        permute(values, from + 1, into);
        values[from..=i].rotate_left(1);
    }
}

/// Whether the text is of the language. `Err` where the parser gives up.
fn takes(grammar: &Arc<Grammar>, tokens: &[Token]) -> llamabi::Result<bool> {
    let mut cursor = Cursor::new(grammar).unwrap();
    for &token in tokens {
        if !cursor.take(token)? {
            return Ok(false);
        }
    }
    cursor.accepts()
}

#[test]
fn json_schemas_own_tests_say_what_is_known() {
    let Some(suite) = suite() else { return };
    let update = std::env::var_os("LLAMABI_UPDATE_SCHEMA_SUITE").is_some();
    let tokenizer = tokenizer::open("tests/data/tokenizers/llama3.json".as_ref()).unwrap();
    let ends = vec![tokenizer.eos_id()];
    let grammars = Grammars::new(tokenizer.vocab_size(), ends);
    let mut lines = String::new();
    for (draft, uri) in DRAFTS {
        let folder = suite.join(draft);
        let (mut paths, mut all) = (Vec::new(), Found::default());
        let mut refusals = BTreeMap::<String, usize>::new();
        files(&folder, &mut paths);
        paths.sort();
        for path in paths {
            let name = path.strip_prefix(&folder).unwrap().with_extension("");
            let name = format!("{draft}/{}", name.display());
            let groups = std::fs::read(&path).unwrap();
            let groups: Vec<Group> = serde_json::from_slice(&groups).unwrap();
            let mut found = Found::default();
            for (i, group) in groups.iter().enumerate() {
                found.schemas += 1;
                let schema = of_draft(group.schema.get(), uri);
                let grammar = grammars.compile(&*tokenizer, Source::JsonSchema(&schema));
                let grammar = match grammar {
                    Ok(grammar) => Arc::new(grammar),
                    Err(error) => {
                        found.refused += 1;
                        *refusals.entry(error.to_string()).or_default() += 1;
                        continue;
                    }
                };
                for (j, case) in group.tests.iter().enumerate() {
                    let taken = texts(&case.data).iter().position(|text| {
                        let tokens = tokenizer.encode(text).unwrap();
                        takes(&grammar, &tokens).unwrap_or_else(|e| panic!("{name} {i}.{j}: {e}"))
                    });
                    match (taken, case.valid) {
                        (Some(order), true) => {
                            found.right += 1;
                            found.ordered += usize::from(order > 0);
                        }
                        (None, false) => found.right += 1,
                        (Some(_), false) => found.accepts.push((i, j)),
                        (None, true) => found.rejects.push((i, j)),
                    }
                }
            }
            writeln!(lines, "{}", found.line(&name)).unwrap();
            all.add(found);
        }
        if update {
            let Found {
                schemas,
                refused,
                right,
                ordered,
                accepts,
                rejects,
            } = all;
            println!(
                "{draft}: {schemas} schemas, {refused} refused; {right} texts right, {ordered} of them in another order; {} wrongly taken, {} wrongly not taken",
                accepts.len(),
                rejects.len()
            );
            for (sentence, times) in refusals {
                println!("  {times} {sentence}");
            }
        }
    }
    if update {
        std::fs::write(KNOWN, &lines).unwrap();
        return;
    }
    let known = std::fs::read_to_string(KNOWN).unwrap();
    for (found, known) in lines.lines().zip(known.lines()) {
        assert_eq!(found, known, "see {}", file!());
    }
    assert_eq!(lines.lines().count(), known.lines().count());
}
