//! Sources that would cost too much.

use super::*;

#[test]
fn hostile_sources_cost_a_status_and_little_time() {
    let kit = Kit::open(SMALL, 0);
    let deep = |open: &str, inner: &str, close: &str, n: usize| {
        format!("{}{inner}{}", open.repeat(n), close.repeat(n))
    };
    let nested = deep(r#"{"type":"array","items":"#, "{}", "}", 100);
    let all_of = format!(
        r#"{{"allOf":[{}]}}"#,
        (0..2000)
            .map(|i| format!(r#"{{"properties":{{"p{i}":{{"type":"string"}}}}}}"#))
            .collect::<Vec<_>>()
            .join(",")
    );
    let any_of = deep(
        r#"{"anyOf":[{"type":"null"},{"type":"array","items":"#,
        "{}",
        "}]}",
        30,
    );
    let parentheses = deep("(", "a", ")", 20_000);
    let lark_parentheses = format!("start: {}", deep("(", "\"a\"", ")", 20_000));
    let lark_deep = format!("start: {}", deep("(\"b\"|", "\"a\"", ")", 3_000));
    let choices: Vec<String> = (0..40_000).map(|i| format!("\"choice {i}\"")).collect();
    let choices = format!("[{}]", choices.join(","));
    let sources = [
        Source::JsonSchema(&nested),
        Source::JsonSchema(&all_of),
        Source::JsonSchema(&any_of),
        Source::JsonSchema(r#"{"type":"string","minLength":1000000000}"#),
        Source::JsonSchema(r#"{"type":"string","maxLength":4294967295}"#),
        Source::JsonSchema(r#"{"type":"array","minItems":1000000,"items":{"type":"number"}}"#),
        Source::JsonSchema(r#"{"type":"integer","multipleOf":1e-300}"#),
        Source::JsonSchema(r#"{"type":"number","minimum":1e308,"maximum":1.7e308}"#),
        Source::JsonSchema(r#"{"type":"integer","minimum":-99999999999999999999999}"#),
        Source::JsonSchema(r##"{"$ref":"#"}"##),
        Source::JsonSchema(
            r##"{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}"##,
        ),
        Source::JsonSchema(
            r##"{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"type":"array","items":{"$ref":"#"}}]}"##,
        ),
        Source::JsonSchema(r#"{"type":"string","pattern":"^(([a-z]+)+)+((a?){500}){500}$"}"#),
        Source::JsonSchema(r#"{"type":"string","pattern":"(a|b|ab)*c{1,60000}(d{1,60000})*"}"#),
        Source::Regex(&parentheses),
        Source::Regex("((a{1,1000}){1,1000}){1,1000}"),
        Source::Regex("(.*a.*b.*c.*d.*e.*){50}"),
        Source::Regex("(a|aa|aaa)*(.?){5000}b"),
        Source::Regex("\\p{L}{10000}"),
        Source::Lark(&lark_parentheses),
        Source::Lark(&lark_deep),
        Source::Lark("start: a\na: b a | \nb: a b | "),
        Source::Lark("start: start start | \"a\" | \"aa\""),
        Source::Lark("start: a{1000000}\na: \"x\""),
        Source::Lark("start: X\nX: /a/ & ~/a/"),
        Source::Lark("start: t[max_tokens=2, stop=\"x\"]\nt: /(.|\\n)*/"),
        Source::Lark("%llguidance {\"no_forcing\": true}\nstart: <s> <[1-3]> /a*/"),
        Source::Choice(&choices),
    ];
    let mut rng = Rng(7);
    for source in sources {
        let name = format!("{source:?}");
        let name = &name[..name.floor_char_boundary(100)];
        let start = Instant::now();
        let outcome = kit.compile(source);
        let compiled = start.elapsed();
        // Far more than an idle machine needs.
        assert!(compiled < Duration::from_secs(60), "{name}: {compiled:?}");
        let Ok(grammar) = outcome else { continue };
        let mut mask = vec![0; grammar.mask_words()];
        let mut cursor = Cursor::new(&grammar).unwrap();
        let start = Instant::now();
        for _ in 0..100 {
            // What is too much for the parser is the grammar's error.
            match cursor.mask_to_generate(&mut mask) {
                Ok(()) => {}
                Err(Error::Grammar(_)) => break,
                Err(error) => panic!("{name}: {error}"),
            }
            let allowed: Vec<Token> = ids(&mask).collect();
            let token = allowed[rng.below(allowed.len())];
            if token == kit.tokenizer.eos_id() || !matches!(cursor.take(token), Ok(true)) {
                break;
            }
            if !matches!(cursor.is_complete(), Ok(false)) {
                break;
            }
        }
        let masks = start.elapsed();
        assert!(masks < Duration::from_secs(60), "{name}: {masks:?}");
    }
}

/// A grammar of which a mask is too much fails for that text, and others go on with it.
#[test]
fn a_parser_that_gives_up_does_so_for_one_text() {
    let kit = Kit::open(SMALL, 0);
    let grammar = kit
        .compile(Source::Lark(
            "start: \"b\" | s\ns: s s | \"a\" | \"aa\" | s \"a\" s",
        ))
        .unwrap();
    let a = kit.tokenizer.encode("a").unwrap();
    let a = *a.last().unwrap();
    let b = *kit.tokenizer.encode("b").unwrap().last().unwrap();
    let mut words = vec![0; grammar.mask_words()];
    let mut good = Cursor::new(&grammar).unwrap();
    let mut bad = Cursor::new(&grammar).unwrap();
    let mut gave_up = false;
    for _ in 0..3000 {
        if !matches!(bad.take(a), Ok(true)) || bad.mask(&mut words).is_err() {
            gave_up = true;
            break;
        }
    }
    assert!(gave_up, "the test's grammar is not hard enough");
    good.mask(&mut words).unwrap();
    assert!(good.take(b).unwrap() && good.is_complete().unwrap());
    assert!(mask(&grammar, &[a]).is_ok());
}

/// What would be more work than a compilation may cost is refused, by what the caller wrote.
#[test]
fn what_would_take_the_parser_too_long_is_refused() {
    let kit = Kit::open(SMALL, 0);
    let doubling: Vec<String> = (0..60).map(|i| format!("T{}: T{i} T{i}", i + 1)).collect();
    let doubling = format!("start: T60\nT0: \"a\"\n{}", doubling.join("\n"));
    let error = kit.refusal(Source::Lark(&doubling));
    assert!(
        error.contains("(limit for this grammar: 250000)"),
        "{error}"
    );
    for (schema, multiple) in [
        (r#"{"type":"integer","multipleOf":999983}"#, "999983"),
        (r#"{"items":{"multipleOf":3.2771}}"#, "32771"),
        (r#"{"multipleOf":1000000007}"#, "more than 429496729"),
        (
            r#"{"allOf":[{"multipleOf":509},{"multipleOf":1022}]}"#,
            "260099",
        ),
        (
            r#"{"multipleOf":509,"oneOf":[{},{"multipleOf":511}]}"#,
            "260099",
        ),
        (
            r#"{"properties":{"default":{"type":"integer","multipleOf":999983}}}"#,
            "999983",
        ),
        (
            r##"{"$defs":{"a":{"multipleOf":509},"b":{"multipleOf":511}},
                "allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}"##,
            "260099",
        ),
    ] {
        let error = kit.refusal(Source::JsonSchema(schema));
        let sentence = format!("multiples of {multiple}, apart from factors of 2 and 5");
        assert!(error.contains(&sentence), "{schema}: {error}");
    }
    for (inside, sentence) in [
        (r#"{"multipleOf":999983}"#, "multiples of 999983"),
        (
            r#"{"const":12345678901234567890}"#,
            "more digits than are kept",
        ),
    ] {
        let lark = format!("start: a b\na: %json {{}}\nb: %json {inside}\n");
        let error = kit.refusal(Source::Lark(&lark));
        assert!(error.contains(sentence), "{inside}: {error}");
    }
    for schema in [
        r#"{"type":"integer","multipleOf":1000000}"#,
        r#"{"type":"number","multipleOf":0.01}"#,
        r#"{"anyOf":[{"type":"integer","multipleOf":509},{"type":"integer","multipleOf":511}]}"#,
        r#"{"const":{"multipleOf":999983}}"#,
    ] {
        assert!(kit.compile(Source::JsonSchema(schema)).is_ok(), "{schema}");
    }
}

/// A number that a double has not would be another one in the text.
#[test]
fn numbers_of_schemas_are_kept_or_refused() {
    let kit = Kit::open(SMALL, 0);
    for number in [
        "12345678901234567890",
        "9007199254740993",
        "-0.12345678901234567891",
    ] {
        for schema in [
            format!(r#"{{"const":{number}}}"#),
            format!(r#"{{"enum":["a\"", {number}]}}"#),
            format!(r#"{{"properties":{{"a":{{"enum":[[{number}]]}}}}}}"#),
        ] {
            let error = kit.refusal(Source::JsonSchema(&schema));
            let number = number.trim_start_matches('-');
            let sentence = format!("the number {number} has more digits than are kept");
            assert!(error.contains(&sentence), "{schema}: {error}");
        }
    }
    let bound = r#"{"type":"number","minimum":-0.12345678901234567891}"#;
    let error = kit.refusal(Source::JsonSchema(bound));
    assert!(error.contains("more digits than are kept"), "{error}");
    let kept = r#"{"enum":["12345678901234567890 \\", 9007199254740992, 0.1, 1e3]}"#;
    assert!(kit.compile(Source::JsonSchema(kept)).is_ok());
    let grammar = kit.compile(Source::JsonSchema(r#"{"const":9007199254740991}"#));
    let grammar = grammar.unwrap();
    let mut cursor = Cursor::new(&grammar).unwrap();
    for token in kit.tokenizer.encode("9007199254740991").unwrap() {
        assert!(token == kit.tokenizer.bos_id() || cursor.take(token).unwrap());
    }
    assert!(cursor.accepts().unwrap());
}
