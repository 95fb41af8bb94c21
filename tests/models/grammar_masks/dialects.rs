//! What of a JSON Schema is refused, since it would be read as something else, and what dates are.

use super::*;

fn takes(kit: &Kit, grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut cursor = Cursor::new(grammar).unwrap();
    let mut tokens = kit.tokenizer.encode(text).unwrap().into_iter();
    tokens.all(|token| token == kit.tokenizer.bos_id() || cursor.take(token).unwrap())
        && cursor.accepts().unwrap()
}

/// Each refused schema stands beside one that is nearly the same and is taken.
#[test]
fn what_would_be_read_as_something_else_is_refused() {
    let kit = Kit::open(SMALL, 0);
    for (refused, sentence, taken) in [
        (
            r#"{"$schema":"http://json-schema.org/draft-03/schema#","extends":{"type":"null"}}"#,
            r#"$schema is "http://json-schema.org/draft-03/schema#", which is none of the drafts"#,
            r#"{"$schema":"http://json-schema.org/draft-04/schema#","type":"null"}"#,
        ),
        (
            r#"{"$schema":7}"#,
            "$schema is 7, which is none",
            r#"{"$schema":"https://json-schema.org/schema"}"#,
        ),
        (
            r#"{"properties":{"a":{"$schema":"http://json-schema.org/draft-07/schema","type":"null"}}}"#,
            "and something else for the whole",
            r#"{"$schema":"https://json-schema.org/draft-07/schema#",
                "properties":{"a":{"$schema":"http://json-schema.org/draft-07/schema","type":"null"}}}"#,
        ),
        (
            r##"{"$defs":{"a":{"$id":"https://example.com/a","items":{"$ref":"#/$defs/b"}},
                "b":{}},"$ref":"#/$defs/a"}"##,
            r##"at #/$defs/a/items: $ref "#/$defs/b" refers to a part that is not there"##,
            r##"{"$defs":{"a":{"$id":"#a","items":{"$ref":"#/$defs/b"}},"b":{}},
                "$ref":"#/$defs/a"}"##,
        ),
        (
            r##"{"$schema":"http://json-schema.org/draft-04/schema","definitions":{"b":{}},
                "items":{"id":"https://example.com/a","items":{"$ref":"#/definitions/b"}}}"##,
            "refers to a part that is not there",
            r##"{"$defs":{"b":{}},"items":{"id":"https://example.com/a","items":{"$ref":"#/$defs/b"}}}"##,
        ),
        (
            r##"{"$defs":{"a~1b":{"type":"null"}},"$ref":"#/$defs/a~1b"}"##,
            "refers to a part that is not there",
            r##"{"$defs":{"a~1b":{"type":"null"}},"$ref":"#/$defs/a~01b"}"##,
        ),
        (
            r#"{"items":{"uniqueItems":true}}"#,
            "at #/items: uniqueItems cannot be followed",
            r#"{"items":{"uniqueItems":false}}"#,
        ),
    ] {
        let error = kit.refusal(Source::JsonSchema(refused));
        assert!(error.contains(sentence), "{refused}: {error}");
        let lark = format!("start: a\na: %json {refused}\n");
        let error = kit.refusal(Source::Lark(&lark));
        assert!(error.contains(sentence), "{lark}: {error}");
        let compiled = kit.compile(Source::JsonSchema(taken));
        assert!(compiled.is_ok(), "{taken}: {}", compiled.unwrap_err());
    }
    // Values and names are no keywords.
    for schema in [
        r#"{"const":{"$schema":"x","$ref":"~"}}"#,
        r#"{"enum":[{"$id":"x","a":{"$ref":"y"}}]}"#,
        r#"{"properties":{"$schema":{"type":"string"},"$ref":{"type":"string"},"format":{"const":"date"}}}"#,
    ] {
        let compiled = kit.compile(Source::JsonSchema(schema));
        assert!(compiled.is_ok(), "{schema}: {}", compiled.unwrap_err());
    }
}

#[test]
fn a_date_is_a_day_that_exists() {
    let kit = Kit::open(SMALL, 0);
    let compile = |schema: &str| kit.compile(Source::JsonSchema(schema)).unwrap();
    let date = compile(r#"{"type":"string","format":"date"}"#);
    for year in (0..10_000).step_by(7).chain(1800..2200).chain([0, 9999]) {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for (month, day, exists) in [(2, 28, true), (2, 29, leap), (2, 30, false)] {
            let text = format!("\"{year:04}-{month:02}-{day:02}\"");
            assert_eq!(takes(&kit, &date, &text), exists, "{text}");
        }
    }
    for month in 0..14 {
        let days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let days = days
            .get(usize::wrapping_sub(month, 1))
            .copied()
            .unwrap_or(0);
        for day in 0..33 {
            let text = format!("\"2023-{month:02}-{day:02}\"");
            assert_eq!(
                takes(&kit, &date, &text),
                (1..=days).contains(&day),
                "{text}"
            );
        }
    }
    let time = compile(r#"{"type":["string","null"],"format":"time"}"#);
    let both = compile(r#"{"format":"date-time","type":"string"}"#);
    for (text, is_time) in [
        ("00:00:00Z", true),
        ("23:59:59.25z", true),
        ("12:30:00+05:30", true),
        ("24:00:00Z", false),
        ("23:60:00Z", false),
        ("12:30:00+24:00", false),
        ("12:30:00", false),
        ("22:59:60Z", false),
    ] {
        assert_eq!(
            takes(&kit, &time, &format!("\"{text}\"")),
            is_time,
            "{text}"
        );
        for (day, exists) in [("2024-02-29", true), ("2023-02-29", false)] {
            let text = format!("\"{day}T{text}\"");
            assert_eq!(takes(&kit, &both, &text), exists && is_time, "{text}");
        }
    }
    // A schema inside of a Lark grammar is read alike.
    let lark = "start: \"x\" a \"y\"\na: %json {\"type\":\"string\",\"format\":\"date\",\"uniqueItems\":false}\n";
    let lark = kit.compile(Source::Lark(lark)).unwrap();
    for (text, exists) in [("x\"2024-02-29\"y", true), ("x\"2023-02-29\"y", false)] {
        assert_eq!(takes(&kit, &lark, text), exists, "{text}");
    }
    // Beside a pattern both hold.
    let march = compile(r#"{"pattern":"-03-","format":"date","allOf":[{"pattern":"^2"}]}"#);
    for (text, is_member) in [
        ("\"2023-03-31\"", true),
        ("\"2023-03-32\"", false),
        ("\"2023-05-31\"", false),
        ("\"1923-03-31\"", false),
        ("7", true),
    ] {
        assert_eq!(takes(&kit, &march, text), is_member, "{text}");
    }
}
