//! What several parts say together, and references.

use super::super::prepare;
use super::Kit;
use crate::grammar::Cursor;
use serde_json::{Value, json};

#[test]
fn what_says_nothing_is_not_there_for_the_parser() {
    let kit = Kit::new();
    for annotation in [
        r#""deprecated":true"#,
        r#""x-order":1"#,
        r#""example":{"next":{}}"#,
        r#""discriminator":{"propertyName":"a"}"#,
        r#""xml":{"name":"n"}"#,
    ] {
        let schema = format!(
            r##"{{"$defs":{{"n":{{"type":"object","additionalProperties":false,"properties":
                {{"next":{{"$ref":"#/$defs/n",{annotation}}}}}}}}},"$ref":"#/$defs/n"}}"##
        );
        let texts = [r#"{"next":{"next":{}}}"#, "{}"];
        kit.check(&schema, &texts, &[r#"{"next":1}"#, r#"{"a":{}}"#]);
    }
    // A reference may lead into a member that no draft has.
    let schema = r##"{"$ref":"#/components/schemas/A","components":{"schemas":
        {"A":{"type":"array","items":{"$ref":"#/components/schemas/B"}},"B":{"type":"integer"}}}}"##;
    kit.check(schema, &["[1]"], &["1", r#"["a"]"#]);
    // In a chain of definitions, each definition is made once.
    let link = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1), "deprecated": true});
        let properties = json!({"type": "object", "properties": {"x": next, "y": next}});
        (format!("d{i}"), properties)
    };
    let mut links: serde_json::Map<String, Value> = (0..60).map(link).collect();
    links.insert("d60".into(), json!({"type": "null"}));
    let made = prepare(&json!({"$ref": "#/$defs/d0", "$defs": links})).unwrap();
    assert_eq!(made["$defs"].as_object().unwrap().len(), 61);
}

#[test]
fn one_of_parts_that_exclude_each_other_is_followed() {
    let kit = Kit::new();
    let pets = r##""$defs":{"cat":{"type":"object","properties":{"kind":{"const":"cat"},
        "n":{"type":"integer"}},"required":["kind"]},"dog":{"type":"object","properties":
        {"kind":{"enum":["dog","wolf"]},"n":{"$ref":"#/$defs/pet"}},"required":["kind"]},
        "pet":{"oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"}]}}"##;
    for one_of in [
        r##""$ref":"#/$defs/pet""##,
        r##""oneOf":[{"$ref":"#/$defs/cat"},{"$ref":"#/$defs/dog"},{"type":"null"}]"##,
        r##""discriminator":{"propertyName":"kind"},"anyOf":[{"$ref":"#/$defs/pet"}]"##,
    ] {
        let schema = format!("{{{one_of},{pets}}}");
        let texts = [
            r#"{"kind":"cat","n":1}"#,
            r#"{"kind":"wolf","n":{"kind":"cat"}}"#,
        ];
        kit.check(
            &schema,
            &texts,
            &[r#"{"kind":"dog","n":1}"#, r#"{"kind":"cow"}"#],
        );
    }
    kit.check(
        r#"{"oneOf":[{"const":1,"title":"low"},{"const":2}]}"#,
        &["1", "2"],
        &["3"],
    );
    kit.check(
        r#"{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},
            "oneOf":[{"required":["a"]},{"required":["b"]}],"additionalProperties":false}"#,
        &[r#"{"a":null}"#, r#"{"b":null}"#],
        &[r#"{"a":null,"b":null}"#, "{}"],
    );
    // Closed objects, each of which needs a property that the other one does not allow.
    let closed = |name: &str| {
        json!({"type": "object", "properties": {name: {"type": "null"}}, "required": [name],
            "additionalProperties": false})
    };
    let schema = json!({"oneOf": [closed("a"), closed("b"), {"type": "string", "enum": ["U"]}]});
    kit.check(
        &schema.to_string(),
        &[r#"{"a":null}"#, r#"{"b":null}"#, r#""U""#],
        &["{}"],
    );
    // OpenAPI 3.0's `nullable` makes two types of one. Draft 4 has no `const`.
    let nullable = r#"{"oneOf":[{"type":"string","nullable":true},{"type":"null"}]}"#;
    kit.check(nullable, &[r#""a""#], &["null"]);
    let draft = r#""$schema":"http://json-schema.org/draft-04/schema#""#;
    let constants = r#""oneOf":[{"const":1},{"const":2}]"#;
    kit.refuse(&format!("{{{draft},{constants}}}"), "nsatisfiable");
    let coerced = r#""x-guidance":{"coerce_one_of":true},"#;
    for (option, one_of) in [
        ("", r#""oneOf":[{"type":"integer"},{"type":"number"}]"#),
        ("", r#""oneOf":[{"const":0},{"const":-0.0},{"const":1}]"#),
        (
            "",
            r#""oneOf":[{"const":1},{"enum":[2,1.0]},{"pattern":"a"}]"#,
        ),
        (
            "",
            r##""$defs":{"a":{"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"},
            {"format":"email"}]}},"$ref":"#/$defs/a""##,
        ),
    ] {
        kit.refuse(
            &format!("{{{option}{one_of}}}"),
            "may hold together cannot be followed",
        );
    }
    let schema = format!(r#"{{{coerced}"oneOf":[{{"type":"integer"}},{{"type":"number"}}]}}"#);
    kit.check(&schema, &["1", "1.5"], &["null"]);
}

/// Comparing and negating parts ends even if the parts lead into each other in more ways than could
/// ever be looked at.
#[test]
fn comparing_parts_comes_to_an_end() {
    let lattice = |keyword: &str| {
        let level = |i: usize| {
            let next = json!([{"$ref": format!("#/$defs/a{}", i + 1)},
                {"$ref": format!("#/$defs/b{}", i + 1)}]);
            ["a", "b"].map(|name| (format!("{name}{i}"), json!({keyword: next})))
        };
        let mut parts: serde_json::Map<String, Value> = (0..50).flat_map(level).collect();
        parts.insert("a50".into(), json!({"type": "object", "required": ["a"]}));
        parts.insert("b50".into(), json!({"type": "object", "minProperties": 1}));
        parts
    };
    for keyword in ["oneOf", "anyOf", "allOf"] {
        let pair = json!([{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}]);
        for around in ["oneOf", "not", "propertyNames", "if"] {
            let mut schema = json!({"$defs": lattice(keyword), "then": false});
            schema[around] = match around {
                "oneOf" => pair.clone(),
                _ => json!({"$ref": "#/$defs/a0"}),
            };
            // It does not matter whether the schema is refused.
            _ = prepare(&schema);
        }
    }
}

#[test]
fn references_are_followed_as_they_are_written() {
    let kit = Kit::new();
    for (reference, rest) in [
        (
            "#/$defs/a~1b",
            r#""$defs":{"a/b":{"type":"integer"},"a~1b":{}}"#,
        ),
        ("#/$defs/a%20b", r#""$defs":{"a b":{"type":"integer"}}"#),
        (
            "#name",
            r#""$defs":{"a":{"$anchor":"name","type":"integer"}}"#,
        ),
        (
            "https://a.b/c",
            r#""$defs":{"a":{"$id":"https://a.b/c","type":"integer"}}"#,
        ),
        (
            "/c",
            r#""$id":"https://a.b/x","$defs":{"a":{"$id":"c","type":"integer"}}"#,
        ),
        (
            "https://a.b/x#/$defs/a",
            r#""$id":"https://a.b/x","$defs":{"a":{"type":"integer"}}"#,
        ),
        (
            "#/$defs/a/items/0",
            r#""$defs":{"a":{"items":[{"type":"integer"}]}}"#,
        ),
    ] {
        let schema = format!(r#"{{"$ref":"{reference}",{rest}}}"#);
        kit.check(&schema, &["1"], &[r#""a""#]);
    }
    // Inside a part with an `$id`, a reference is relative to that part.
    kit.check(
        r##"{"$ref":"#/$defs/a","$defs":{"b":{"type":"integer"},"a":{"$id":"https://a.b/c",
            "items":{"$ref":"#/$defs/b"},"$defs":{"b":{"type":"string"}}}}}"##,
        &[r#"["a"]"#],
        &["[1]"],
    );
    kit.check(
        r#"{"$id":"T","type":"array","items":{"$ref":"T"}}"#,
        &["[[],[[]]]"],
        &["[1]"],
    );
    kit.check(
        r##"{"type":"object","properties":{"a":{"type":"integer"},"b":{"$ref":"#/properties/a"}},
            "additionalProperties":false}"##,
        &[r#"{"a":1,"b":2}"#],
        &[r#"{"b":"x"}"#],
    );
    // In drafts 4 to 7 a keyword beside a reference has no effect. That is so where the keyword
    // would allow fewer values, and where it would allow more.
    for draft in ["04", "06", "07"] {
        let of = |rest: &str| {
            format!(
                r#"{{"$schema":"http://json-schema.org/draft-{draft}/schema#",
                "definitions":{{"any":{{}},"text":{{"type":"string"}}}},{rest}}}"#
            )
        };
        let wider = r##""oneOf":[{},{"$ref":"#/definitions/any","type":"integer"}]"##;
        kit.refuse(&of(wider), "schema is false");
        let texts = [r#""abcd""#, r#""a""#];
        let own = r##""$ref":"#/definitions/text","maxLength":3,"enum":[1]"##;
        kit.check(&of(own), &texts, &["1"]);
        let not = r##""not":{"$ref":"#/definitions/text","maxLength":3}"##;
        kit.check(&of(not), &["1"], &texts);
        // A property may have the name of a keyword.
        let named = r##""properties":{"$ref":{"type":"null"},"a":{"type":"null"}}"##;
        kit.check(&of(named), &[r#"{"a":null}"#], &[r#"{"a":1}"#]);
    }
    let newer = r##"{"$defs":{"text":{"type":"string"}},"$ref":"#/$defs/text","maxLength":3}"##;
    kit.check(newer, &[r#""a""#], &[r#""abcd""#]);
    kit.refuse(
        r##"{"items":{"$ref":"https://a.b/c"}}"##,
        r#"at #/items: $ref "https://a.b/c" is none of the document's own parts"#,
    );
    kit.refuse(
        r##"{"$ref":"#/$defs/a"}"##,
        "refers to a part that is not there",
    );
}

#[test]
fn conditions_become_alternatives() {
    let kit = Kit::new();
    let object = r#""type":"object","additionalProperties":false,"properties":{"a":{"enum":["x","y"]},
        "b":{"type":"null"},"c":{"type":"null"}}"#;
    let (both, a, b) = (r#"{"a":"x","b":null}"#, r#"{"a":"x"}"#, r#"{"b":null}"#);
    for (rest, taken, refused) in [
        (
            r#""dependentRequired":{"a":["b"]}"#,
            vec![both, b, "{}"],
            vec![a],
        ),
        (
            r#""dependencies":{"a":["b"]}"#,
            vec![both, b, "{}"],
            vec![a],
        ),
        (
            r#""dependentSchemas":{"a":{"required":["b"]}}"#,
            vec![both, b, "{}"],
            vec![a],
        ),
        (
            r#""if":{"properties":{"a":{"const":"x"}},"required":["a"]},"then":{"required":["b"]},
                "else":{"required":["c"]}"#,
            vec![both, r#"{"c":null}"#, r#"{"a":"y","c":null}"#],
            vec![a, b, "{}", r#"{"a":"y","b":null}"#],
        ),
        (
            r#""allOf":[{"if":{"properties":{"a":{"const":"x"}}},"then":{"required":["b"]}}]"#,
            vec![both, b, r#"{"a":"y"}"#],
            vec![a, "{}"],
        ),
        (r#""not":{"required":["a"]}"#, vec![b, "{}"], vec![a, both]),
        (
            r#""if":true,"then":{"required":["a"]},"else":false"#,
            vec![a, both],
            vec![b],
        ),
        (r#""then":false"#, vec![a, b, both, "{}"], vec![]),
    ] {
        kit.check(&format!("{{{object},{rest}}}"), &taken, &refused);
    }
    kit.check(
        r#"{"type":"object","properties":{"a":{"not":{}},"b":{"type":"null"}}}"#,
        &[b, r#"{"c":1}"#],
        &[r#"{"a":1}"#],
    );
    kit.check(
        r#"{"not":{"type":["object","array"]}}"#,
        &["1", "null"],
        &["[]", "{}"],
    );
    // What holds of an object must not make parts of its property exclude each other.
    kit.refuse(
        r#"{"type":"object","not":{"properties":{"a":{"not":{"oneOf":
            [{"type":"integer"},{"type":"number","minimum":3}]}}}}}"#,
        "may hold together cannot be followed",
    );
    kit.refuse(
        r#"{"items":{"type":"string","not":{"pattern":"a"}}}"#,
        r#"at #/items: not cannot be followed here; "x-guidance": {"lenient": true}"#,
    );
    let if_any =
        |i: usize| json!({"if": {"required": [format!("p{i}")]}, "then": {"required": ["z"]}});
    let many: Vec<Value> = (0..7).map(if_any).collect();
    kit.refuse(
        &json!({"allOf": many}).to_string(),
        "more than 6 conditions of one value",
    );
}

#[test]
fn what_is_openapis_is_told_from_what_is_not() {
    let kit = Kit::new();
    let nullable = r#"{"type":"string","nullable":true}"#;
    kit.check(nullable, &["null", r#""a""#], &["1"]);
    let says = r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"string",
        "nullable":true}"#;
    kit.check(says, &[r#""a""#], &["null"]);
    kit.refuse(
        r#"{"name":"x","strict":true,"schema":{"type":"object"}}"#,
        r#"an object as "schema": that one alone may be the schema"#,
    );
    kit.check(r#"{"type":"object","schema":{}}"#, &["{}"], &["1"]);
}

#[test]
fn no_text_is_led_to_where_it_cannot_end() {
    let kit = Kit::new();
    // A name that is taken is not free for another property.
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer","maximum":9}},
        "patternProperties":{"^a$":{"minimum":3}},"additionalProperties":false}"#;
    kit.check(schema, &[r#"{"a":5}"#], &[r#"{"a":5,"a":5}"#, r#"{"a":2}"#]);
    let made = prepare(&serde_json::from_str(schema).unwrap()).unwrap();
    assert!(made.get("patternProperties").is_none(), "{made}");
    let schema = r##"{"type":"object","properties":{"a":{"$ref":"#/$defs/loop"},"b":{"type":"null"}},
        "$defs":{"loop":{"type":"array","items":{"$ref":"#/$defs/loop"},"minItems":1}}}"##;
    kit.check(schema, &[r#"{"b":null}"#, "{}"], &[]);
    let made = prepare(&serde_json::from_str(schema).unwrap()).unwrap();
    assert_eq!(made["properties"]["a"], json!(false));
    for nothing in [
        r##"{"$ref":"#"}"##,
        r##"{"type":"array","items":{"$ref":"#"},"minItems":1}"##,
        // The same, where it is said in another way that there must be another value inside.
        r##"{"allOf":[{"type":"array","minItems":1},{"items":{"$ref":"#"}}]}"##,
        r##"{"type":"object","properties":{"a":{"$ref":"#"}},"allOf":[{"required":["a"]}]}"##,
        r##"{"type":["object"],"properties":{"a":{"$ref":"#"}},"required":["a"]}"##,
        r##"{"type":["object","array"],"properties":{"a":{"$ref":"#"}},"items":{"$ref":"#"},
            "required":["a"],"minItems":1}"##,
        r##"{"type":"object","anyOf":[{"required":["a"]},{"required":["b"]}],
            "additionalProperties":{"$ref":"#"}}"##,
        r##"{"allOf":[{"$ref":"#/$defs/a"},{"required":["a"]}],"type":"object",
            "$defs":{"a":{"properties":{"a":{"$ref":"#"}}}}}"##,
        r#"{"type":"integer","exclusiveMinimum":0.5,"maximum":1.99,"multipleOf":0.3}"#,
        r#"{"type":"number","exclusiveMinimum":3,"exclusiveMaximum":6,"multipleOf":3}"#,
    ] {
        kit.refuse(nothing, "schema is false");
    }
    // In these schemas there is a value that ends.
    kit.check(
        r##"{"type":["object","null"],"properties":{"a":{"$ref":"#"}},"required":["a"]}"##,
        &["null", r#"{"a":{"a":null}}"#],
        &["{}"],
    );
    kit.check(
        r##"{"type":"object","properties":{"a":{"$ref":"#"}},
            "anyOf":[{"required":["a"]},{"required":["b"]}]}"##,
        &[r#"{"a":{"b":1}}"#, r#"{"b":1}"#],
        &["{}"],
    );
    kit.check(
        r#"{"type":"integer","minimum":0.5,"maximum":3,"multipleOf":0.3}"#,
        &["3"],
        &["0.6"],
    );
}

#[test]
fn a_definition_that_contradicts_itself_is_left_out_where_a_value_may_do_without() {
    let kit = Kit::new();
    for nothing in [
        r#"{"type":"string","enum":[1]}"#,
        r#"{"enum":[1,2],"allOf":[{"enum":[2.5,3]}]}"#,
        r#"{"enum":[1,2],"minimum":5}"#,
        r##"{"type":"string","allOf":[{"$ref":"#/$defs/number"}]}"##,
        r#"{"type":"integer","minimum":3,"maximum":1}"#,
        r#"{"type":"number","exclusiveMinimum":1,"allOf":[{"maximum":1}]}"#,
        r#"{"type":"string","minLength":2,"maxLength":1}"#,
        r#"{"type":"array","minItems":2,"maxItems":1}"#,
        r#"{"type":"object","required":["a","b"],"maxProperties":1}"#,
        r##"{"type":"array","items":{"$ref":"#/$defs/x"},"minItems":1}"##,
        r##"{"type":"object","properties":{"a":{"type":"null","$ref":"#/$defs/number"}},
            "required":["a"]}"##,
    ] {
        let definitions = format!(r#""$defs":{{"x":{nothing},"number":{{"type":"number"}}}}"#);
        let object = format!(
            r##"{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/x"}},"b":{{"type":"null"}}}},
            "additionalProperties":false,{definitions}}}"##
        );
        kit.check(&object, &["{}", r#"{"b":null}"#], &[r#"{"a":1}"#]);
        let either =
            format!(r##"{{"anyOf":[{{"$ref":"#/$defs/x"}},{{"type":"null"}}],{definitions}}}"##);
        kit.check(&either, &["null"], &["1", "[]", "{}"]);
        // If no value can do without the definition, the message says what is wrong with it, if the
        // parser can tell.
        let alone = format!(r##"{{"$ref":"#/$defs/x",{definitions}}}"##);
        kit.refuse(&alone, "Unsatisfiable schema");
    }
    // These definitions have values.
    for something in [
        r#"{"type":["string","integer"],"minimum":3,"maximum":1}"#,
        r#"{"enum":[1,"a"],"type":"string"}"#,
        r#"{"type":["array","string"],"minItems":2,"maxItems":1}"#,
        r#"{"enum":["a",7],"maximum":5}"#,
    ] {
        let schema = format!(r##"{{"items":{{"$ref":"#/$defs/x"}},"$defs":{{"x":{something}}}}}"##);
        kit.check(&schema, &[r#"["a"]"#], &["[2]", "[[1,2]]"]);
    }
}

/// A schema that would cost the parser minutes is refused before the parser gets it.
#[test]
fn what_would_be_too_many_names_or_patterns_is_refused() {
    let kit = Kit::new();
    let names = |n: usize| -> Vec<String> { (0..n).map(|i| format!("n{i}")).collect() };
    let base = |n: usize| json!({"b": {"type": "object", "required": names(n)}});
    let with_base =
        |i: usize| json!({"allOf": [{"$ref": "#/$defs/b"}, {"required": [i.to_string()]}]});
    let times = |n: usize| (0..n).map(with_base).collect::<Vec<_>>();
    let patterns = |n: usize| -> serde_json::Map<String, Value> {
        (0..n).map(|i| (format!("^a{i:05}"), true.into())).collect()
    };
    let one_by_one = |n: usize| -> Vec<Value> {
        let pattern = |i: usize| json!({"patternProperties": {format!("^a{i:05}b"): true}});
        (0..n).map(pattern).collect()
    };
    for (schema, words) in [
        (
            json!({"type": "object", "required": names(9000)}),
            "9000 names of properties, at most 8192 can be",
        ),
        (
            json!({"prefixItems": times(600), "$defs": base(8000)}),
            "more than 4194304 names would be required",
        ),
        (
            json!({"$ref": "#/$defs/b", "anyOf": times(300), "$defs": base(8000)}),
            "16001 names of properties",
        ),
        (
            json!({"type": "object", "patternProperties": patterns(400)}),
            "telling 400 patterns of names from each other would take too long",
        ),
        (
            json!({"type": "object", "allOf": one_by_one(128)}),
            "telling 128 patterns of names from each other would take too long",
        ),
    ] {
        kit.refuse(&schema.to_string(), words);
    }
    let schema = json!({"type": "object", "patternProperties": patterns(64)});
    kit.check(&schema.to_string(), &[r#"{"a00063":1}"#], &["1"]);
    // Here the cost is in the lists by which each pair of parts is compared.
    let listed = |name: &str| -> Vec<String> { (0..510).map(|i| format!("{name}{i}")).collect() };
    let both = json!({"type": "string", "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
    let mut one_of = vec![both; 400];
    one_of.push(json!({"type": "number"}));
    let schema =
        json!({"oneOf": one_of, "$defs": {"a": {"enum": listed("a")}, "b": {"enum": listed("b")}}});
    kit.refuse(&schema.to_string(), "may hold together cannot be followed");
}

/// If a pattern does not spell a taken name letter by letter, a text can still reach a place where
/// nothing can follow. The message says so.
#[test]
fn where_nothing_can_follow_is_said() {
    let kit = Kit::new();
    let grammar = kit.grammar(
        r#"{"type":"object","properties":{"a":{"const":1}},"patternProperties":{"^a{1}$":true},
            "additionalProperties":false,"x-guidance":{"whitespace_flexible":false}}"#,
    );
    let mut cursor = Cursor::new(&grammar).unwrap();
    for token in kit.tokenizer.encode("{\"a\":1,").unwrap() {
        assert!(token == kit.tokenizer.bos_id() || cursor.take(token).unwrap());
    }
    let error = cursor.mask(&mut vec![0; grammar.mask_words()]).unwrap_err();
    let words = "no token can follow here, and the text may not end here";
    assert!(error.to_string().contains(words), "{error}");
}

/// A `not` in a negated part is translated as it stands, and may refer to a part around it.
#[test]
fn negations_that_contain_themselves_end() {
    let kit = Kit::new();
    let in_z = |z: &str| format!(r##"{{"not": {{"$ref": "#/$defs/Z"}}, "$defs": {{"Z": {z}}}}}"##);
    let reference = r##"{"$ref": "#/$defs/Z"}"##;
    let deep = (0..40).fold(format!(r#"{{"not": {reference}}}"#), |part, _| {
        format!(r#"{{"allOf": [{part}]}}"#)
    });
    for z in [
        format!(r#"{{"not": {{"not": {reference}}}}}"#),
        format!(r#"{{"not": {{"if": {reference}, "then": {{"type": "string"}}}}}}"#),
        format!(r#"{{"not": {{"oneOf": [{reference}, {{"minLength": 1}}]}}}}"#),
        format!(r#"{{"not": {deep}}}"#),
    ] {
        kit.refuse(&in_z(&z), "cannot be followed");
    }
    // Each second one is a negation of its own: eight of those are followed.
    let negated = |times| {
        (0..times).fold(r#"{"type": "string"}"#.to_owned(), |part, _| {
            format!(r#"{{"not": {part}}}"#)
        })
    };
    kit.check(&negated(16), &[r#""a""#], &["1"]);
    kit.refuse(&negated(17), "not cannot be followed here");
}
