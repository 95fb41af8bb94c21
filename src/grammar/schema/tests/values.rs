//! What a schema says of numbers, strings, items and names.

use super::Kit;
use serde_json::{Value, json};

#[test]
fn bounds_are_met_and_kept() {
    let kit = Kit::new();
    kit.check(
        r#"{"type":"number","exclusiveMinimum":0,"maximum":0.5}"#,
        &["0.5", "0.001", "0.00000000001"],
        &["0", "0.0", "-0", "0.6"],
    );
    kit.check(
        r#"{"allOf":[{"exclusiveMinimum":1,"type":"number"},{"maximum":1.5}]}"#,
        &["1.5", "1.0000001"],
        &["1", "1.0"],
    );
    kit.check(
        r#"{"type":"number","minimum":-0.5,"exclusiveMaximum":0}"#,
        &["-0.5"],
        &["-0", "0"],
    );
    kit.check(
        r#"{"type":"integer","exclusiveMinimum":0,"maximum":1.5}"#,
        &["1"],
        &["0", "2"],
    );
    // The form of draft 4 and of OpenAPI 3.0.
    kit.check(
        r#"{"minimum":1,"allOf":[{"type":"number"}],"exclusiveMinimum":true,"maximum":1.5}"#,
        &["1.5"],
        &["1"],
    );
    // If no double equals a bound, the next double inside is the bound.
    kit.check(
        r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#,
        &["9223372036854774784", "-9223372036854774784", "0"],
        &["9223372036854775808"],
    );
    kit.check(
        r#"{"type":"number","minimum":-1.7976931348623157e308,"maximum":1.7976931348623157e308}"#,
        &["-1234567890123456789.5"],
        &["9999999999999999999"],
    );
    kit.refuse(
        r#"{"properties":{"a":{"minimum":1e300}}}"#,
        "at #/properties/a: minimum is 1e300, further than",
    );
    // The parser does not take such a constant for an integer.
    kit.check(
        r#"{"enum":[1e20]}"#,
        &["100000000000000000000"],
        &["9223372036854775807"],
    );
    for schema in [
        r#"{"enum":["a",1e20],"type":"integer"}"#,
        r##"{"type":["null","integer"],"$ref":"#/$defs/a","$defs":{"a":{"const":-9.3e18}}}"##,
        r#"{"const":{"a":[1e20]},"properties":{"a":{"items":{"type":"integer"}}}}"#,
    ] {
        kit.refuse(schema, "is beyond 2^63, where integers end");
    }
    kit.check(
        r#"{"type":["string","array"],"minLength":2.0,"maxItems":1.0}"#,
        &[r#""ab""#, "[1]"],
        &[r#""a""#, "[1,2]"],
    );
}

#[test]
fn names_of_properties_are_held() {
    let kit = Kit::new();
    let of = |names: &str| {
        format!(
            r#"{{"type":"object","propertyNames":{names},
        "additionalProperties":{{"type":"integer"}}}}"#
        )
    };
    kit.check(
        &of(r#"{"type":"string"}"#),
        &[r#"{"a b":1}"#],
        &[r#"{"a":"x"}"#],
    );
    let short = [r#"{"ab":1}"#, "{}"];
    for names in [
        r#"{"pattern":"^[a-z]+$"}"#,
        r#"{"maxLength":2}"#,
        r#"{"enum":["ab","c"]}"#,
    ] {
        kit.check(&of(names), &short, &[r#"{"ABC":1}"#, r#"{"ab":"x"}"#]);
    }
    kit.check(&of("false"), &["{}"], &[r#"{"a":1}"#]);
    let date = [r#"{"2024-02-29":1}"#];
    kit.check(&of(r#"{"format":"date"}"#), &date, &[r#"{"2023-02-29":1}"#]);
    let names = r##"{"$ref":"#/$defs/names"},"$defs":{"names":{"enum":["a","b"]}}"##;
    kit.check(&of(names), &[r#"{"a":1,"b":2}"#], &[r#"{"c":1}"#]);
    kit.refuse(
        &of(r#"{"pattern":"a","maxLength":3}"#),
        "at #: propertyNames",
    );
}

/// A key that a schema names, or that one of its patterns matches, is that key in all its
/// spellings.
#[test]
fn keys_have_one_spelling() {
    let kit = Kit::new();
    let text = r#""type":"object","additionalProperties":{"type":"string"}"#;
    for (schema, taken, refused) in [
        (
            r#""properties":{"a":{"type":"integer"}}"#,
            vec![r#"{"a":1,"b":"x"}"#, r#"{"b\\":"x"}"#, r#"{"\n":"é"}"#],
            vec![
                r#"{"\u0061":"x"}"#,
                r#"{"a":1,"\u0061":"x"}"#,
                r#"{"a":"x"}"#,
            ],
        ),
        (
            r#""patternProperties":{"c$":{"type":"integer"}}"#,
            vec![r#"{"bc":1}"#, r#"{"b":"x"}"#],
            vec![r#"{"b\u0063":"x"}"#, r#"{"bc":"x"}"#],
        ),
        (
            r#""required":["b"],"properties":{"a":false}"#,
            vec![r#"{"b":"x"}"#],
            vec![r#"{"b":"x","\u0061":"x"}"#, r#"{"\u0062":"x"}"#],
        ),
        (
            r#""properties":{"\n":{"type":"integer"}},"patternProperties":{"^[\\n]$":true}"#,
            vec![r#"{"\n":1}"#],
            vec![r#"{"\u000a":1}"#, r#"{"\u000A":"x"}"#, r#"{"\n":"x"}"#],
        ),
        (
            r#""not":{"required":["a"]}"#,
            vec![r#"{"b":"x"}"#],
            vec![r#"{"\u0061":"x"}"#],
        ),
    ] {
        kit.check(&format!("{{{text},{schema}}}"), &taken, &refused);
    }
    // This holds whatever options the schema sets for the parser.
    let asks = r#"{"type":"object","properties":{"a":{"type":"integer"}},"x-guidance":{
        "json_allowed_escapes":"nu\"","json_allow_general_unicode_escapes":true}}"#;
    kit.check(
        asks,
        &[r#"{"b":"\n"}"#],
        &[r#"{"\u0061":"x"}"#, r#"{"b":"\t"}"#],
    );
    // If no name can be meant by another spelling, control characters are still allowed.
    let closed = r#"{"properties":{"a":{"enum":["\u0001",2]}},"required":["a"],"#;
    let code = [r#"{"a":"\u0001"}"#];
    kit.check(
        &format!(r#"{closed}"additionalProperties":false}}"#),
        &code,
        &[],
    );
    let lone = r#"{"type":"string","pattern":"^\\x01$"}"#;
    kit.check(lone, &[r#""\u0001""#], &[]);
    for open in [
        &format!(r#"{closed}"minProperties":0}}"#),
        r#"{"type":"object","properties":{"a":{"pattern":"^[\\x01-\\x05]"}}}"#,
    ] {
        let words = r"at #/properties/a: it has a control character that only \u writes";
        kit.refuse(open, words);
    }
    kit.check(
        r#"{"type":"object","properties":{"a":{"pattern":"^[\\x01-\\x0a]$"}}}"#,
        &[r#"{"a":"\n"}"#],
        &[r#"{"a":"\u0001"}"#],
    );
}

#[test]
fn formats_that_no_draft_defines_say_nothing() {
    let kit = Kit::new();
    for format in ["binary", "phone", "int64", "password", ""] {
        let schema = format!(r#"{{"type":"string","format":"{format}"}}"#);
        kit.check(&schema, &[r#""any text""#], &["1"]);
    }
    kit.check(
        r#"{"format":"nanoid","pattern":"^[a-z]$"}"#,
        &[r#""a""#],
        &[r#""A""#],
    );
    kit.check(
        r#"{"format":"idn-email","pattern":"^[a-z]$"}"#,
        &[r#""a""#],
        &[r#""A""#],
    );
    kit.check(
        r#"{"type":"integer","format":"uri-reference"}"#,
        &["1"],
        &[r#""a""#],
    );
    let version = [r#""01234567-89ab-4def-8123-456789abcdef""#];
    let other = [r#""01234567-89ab-5def-8123-456789abcdef""#];
    kit.check(r#"{"type":"string","format":"uuid4"}"#, &version, &other);
    let all = [version[0], other[0]];
    kit.check(r#"{"type":"string","format":"uuid"}"#, &all, &[r#""0123""#]);
    kit.refuse(
        r#"{"properties":{"a/b":{"type":"string","format":"idn-email"}}}"#,
        r#"at #/properties/a~1b: the format "idn-email" cannot be followed; "x-guidance": {"lenient": true}"#,
    );
}

#[test]
fn items_are_unique_where_they_are_listed() {
    let kit = Kit::new();
    kit.check(
        r##"{"type":"array","items":{"$ref":"#/$defs/c"},"uniqueItems":true,"minItems":1,
            "$defs":{"c":{"type":"string","enum":["a","b"]}}}"##,
        &[r#"["a"]"#, r#"["b","a"]"#],
        &["[]", r#"["a","a"]"#, r#"["a","b","a"]"#, r#"["c"]"#],
    );
    kit.check(
        r#"{"items":{"enum":[1,1.0,2]},"uniqueItems":true}"#,
        &["[2,1]", "[]", "null"],
        &["[1,1]", "[1,2,1]"],
    );
    kit.check(
        r#"{"type":"array","uniqueItems":true,"maxItems":1}"#,
        &["[[]]"],
        &["[1,2]"],
    );
    kit.refuse(
        r#"{"properties":{"a":{"type":"array","items":{"type":"string"},"uniqueItems":true}}}"#,
        "at #/properties/a: uniqueItems cannot be followed",
    );
    let lenient = r#"{"type":"array","items":{"type":"string"},"uniqueItems":true,
        "x-guidance":{"lenient":true}}"#;
    kit.check(lenient, &[r#"["a","a"]"#], &["[1]"]);
}

#[test]
fn what_is_not_evaluated_is_additional() {
    let kit = Kit::new();
    kit.check(
        r##"{"type":"object","properties":{"a":{"type":"null"}},"unevaluatedProperties":false}"##,
        &[r#"{"a":null}"#],
        &[r#"{"b":1}"#],
    );
    kit.check(
        r##"{"allOf":[{"$ref":"#/$defs/base"}],"properties":{"b":{"type":"null"}},
            "unevaluatedProperties":false,"type":"object",
            "$defs":{"base":{"properties":{"a":{"type":"null"}}}}}"##,
        &[r#"{"a":null,"b":null}"#],
        &[r#"{"c":1}"#],
    );
    kit.check(
        r#"{"type":"array","prefixItems":[{"type":"null"}],"unevaluatedItems":false}"#,
        &["[null]", "[]"],
        &["[null,1]"],
    );
    // A keyword that the draft does not have is ignored: it neither hides the keywords that are
    // read with it nor evaluates anything.
    let of = |draft: &str, rest: &str| format!(r#"{{"$schema":"{draft}",{rest}}}"#);
    let (d7, d19) = (
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
    );
    kit.check(
        &of(d19, r#""prefixItems":[true],"unevaluatedItems":false"#),
        &["[]", "1"],
        &["[1]"],
    );
    let minimum = r#""type":"array","minContains":1,"items":{"type":"null"},"minItems":1"#;
    kit.check(&of(d7, minimum), &["[null]"], &["[]", "[1]"]);
    let closed = r#""unevaluatedProperties":false,"type":"object","properties":
        {"a":{"type":"null"}},"required":["a"],"additionalProperties":false"#;
    kit.check(&of(d7, closed), &[r#"{"a":null}"#], &["{}", r#"{"b":1}"#]);
    kit.refuse(
        r#"{"anyOf":[{"properties":{"a":{}}}],"unevaluatedProperties":false}"#,
        "unevaluatedProperties beside conditions",
    );
}

#[test]
fn patterns_are_those_of_ecma_262() {
    let kit = Kit::new();
    for (pattern, taken, refused) in [
        (r"^.$", vec!["a", "\u{85}"], vec!["\r", "\u{2028}", "\n"]),
        (
            r"^\s$",
            vec!["\u{feff}", "\u{a0}", "\t"],
            vec!["\u{85}", "a"],
        ),
        (r"^\S$", vec!["\u{85}", "a"], vec!["\u{feff}", " "]),
        (r"^[^a&&b]$", vec!["c"], vec!["a", "b", "&"]),
        (r"^[a[b]$", vec!["[", "b"], vec!["c"]),
        (r"^[a[b]]$", vec!["[]", "b]"], vec!["a", "]"]),
        (r"^[+--]$", vec!["+", ",", "-"], vec!["a"]),
        (r"^[a~~b]$", vec!["a", "~"], vec!["c"]),
        (r"^[^[\]]$", vec!["a"], vec!["[", "]"]),
        (r"^{a}$", vec!["{a}"], vec!["a"]),
        (r"^a{,3}$", vec!["a{,3}"], vec!["aa"]),
        (r"^[^]$", vec!["\n", "a"], vec![""]),
        (r"^[\w-.]\/\-$", vec!["-/-", "./-"], vec!["//-"]),
        (r"^(?<year>\d{2})\cI$", vec!["12\t"], vec!["12"]),
        (
            r"^\u{1F600}\uD83D\uDE00$",
            vec!["\u{1f600}\u{1f600}"],
            vec!["\u{1f600}"],
        ),
        // A character that a class excludes stays excluded if JSON escapes it.
        ("^[^\"]+$", vec!["a\\", "\n"], vec!["\"", "a\"b"]),
        (r"^[^\\]+$", vec!["a\"", "\n"], vec!["\\"]),
        (r"^[\x00-\x1f]$", vec!["\u{1}", "\n"], vec!["\"", "\\"]),
        (r"^\p{Cc}$", vec!["\u{1}"], vec!["\"", "\\"]),
        (r"^[^\p{P}]$", vec!["a"], vec!["\"", "\\"]),
        // A flag holds to the end of its group.
        (r"^(?s:a).$", vec!["ab"], vec!["a\n", "b\n"]),
        (r"^(?:(?s)a.).$", vec!["a\nb"], vec!["a\n\n"]),
        (r"^(?s).(?-s:.).$", vec!["\na\n"], vec!["\n\n\n"]),
    ] {
        let schema = json!({"type": "string", "pattern": pattern}).to_string();
        let text = |text: &&str| Value::from(*text).to_string();
        let (taken, refused): (Vec<_>, Vec<_>) = (
            taken.iter().map(text).collect(),
            refused.iter().map(text).collect(),
        );
        let taken: Vec<&str> = taken.iter().map(String::as_str).collect();
        let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
        kit.check(&schema, &taken, &refused);
    }
    for (pattern, words) in [
        (r"^(?!a)b", "has look-around"),
        (r"(?<=a)b", "has look-around"),
        (r"(a)\1", "has a back-reference"),
        (r"\bfoo", "has a word boundary"),
        (r"^[\uD83C-\uDBFF]$", "has half a character"),
        (r"a**", "is no regular expression of ECMA 262"),
        (r"[b-a]", "is no regular expression of ECMA 262"),
    ] {
        let schema = json!({"items": {"pattern": pattern}}).to_string();
        kit.refuse(&schema, "at #/items: the pattern ");
        kit.refuse(&schema, words);
    }
}
