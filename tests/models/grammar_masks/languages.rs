//! Random texts that are kept in a language.

use super::*;

/// A text that tokens chosen at random make, as it would be generated; `None` if it became long.
fn random_text(kit: &Kit, grammar: &Arc<Grammar>, rng: &mut Rng) -> Option<String> {
    let mut cursor = Cursor::new(grammar).unwrap();
    let mut mask = vec![0; grammar.mask_words()];
    let mut tokens = Vec::new();
    for _ in 0..200 {
        cursor.mask_to_generate(&mut mask).unwrap();
        let allowed: Vec<Token> = ids(&mask).collect();
        assert!(!allowed.is_empty());
        let token = allowed[rng.below(allowed.len())];
        let ends = token == kit.tokenizer.eos_id() || kit.tokenizer.stop_ids().contains(&token);
        if !ends {
            tokens.push(token);
            assert!(cursor.take(token).unwrap());
        }
        if ends || cursor.is_complete().unwrap() {
            return Some(kit.tokenizer.decode(&tokens).unwrap());
        }
    }
    None
}

/// Languages that begin with a space, may, or do not; each with what says whether a text is of it.
type Member = fn(&str) -> bool;
const LANGUAGES: [(Source<'static>, Member); 10] = [
    (Source::Regex("[0-9]{2,5}(-x)?"), |t| {
        matches("[0-9]{2,5}(-x)?", t)
    }),
    (Source::Regex(" ?[a-f ]{1,6}"), |t| {
        matches(" ?[a-f ]{1,6}", t)
    }),
    (Source::Regex("  (a|b) *c"), |t| matches("  (a|b) *c", t)),
    // An anchor and a comment, which nothing may be put around, and texts that may be empty.
    (Source::Regex("^(ab|c){1,4}$"), |t| {
        matches("(ab|c){1,4}", t)
    }),
    (Source::Regex("(?x) a b? # c"), |t| matches("ab?", t)),
    (Source::Regex("( a|b){0,2}"), |t| matches("( a|b){0,2}", t)),
    (Source::Regex("([α-ω]|é|語){1,4}"), |t| {
        matches("([α-ω]|é|語){1,4}", t)
    }),
    (
        Source::Choice(r#"["yes", "no", " no", "a+b(c", "été"]"#),
        |t| ["yes", "no", " no", "a+b(c", "été"].contains(&t),
    ),
    (
        Source::JsonSchema(
            r#"{"type":"object","properties":{"n":{"type":"integer","minimum":-5,"maximum":120},
             "s":{"type":"string","maxLength":3},"l":{"type":"array","items":{"enum":[1,"a"]},"maxItems":2}},
             "required":["n","s"],"additionalProperties":false}"#,
        ),
        |t| {
            let Ok(Value::Object(o)) = serde_json::from_str(t) else {
                return false;
            };
            // "-0" is an integer, too.
            let n = o.get("n").and_then(Value::as_f64);
            let s = o
                .get("s")
                .and_then(Value::as_str)
                .map(|s| s.chars().count());
            let l = o.get("l").is_none_or(|l| {
                let l = l.as_array().unwrap();
                l.len() <= 2 && l.iter().all(|v| *v == 1 || *v == "a")
            });
            n.is_some_and(|n| n.fract() == 0.0 && (-5.0..=120.0).contains(&n))
                && s.is_some_and(|s| s <= 3)
                && l
        },
    ),
    (Source::Lark("start: \"(\" start \")\" | /[xy]/"), |t| {
        let inner = t.trim_start_matches('(').trim_end_matches(')');
        let n = t.find(inner).unwrap();
        (inner == "x" || inner == "y") && t == format!("{}{inner}{}", "(".repeat(n), ")".repeat(n))
    }),
];

fn matches(regex: &str, text: &str) -> bool {
    let regex = regex_automata::meta::Regex::new(&format!("^({regex})$")).unwrap();
    regex.is_match(text)
}

#[test]
fn every_text_is_of_its_language_whatever_the_tokenizer() {
    let mut rng = Rng(1);
    for path in TOKENIZERS {
        for more in [0, 40] {
            let kit = Kit::open(path, more);
            for (source, is_member) in LANGUAGES {
                let grammar = kit.compile(source).unwrap();
                assert_eq!(
                    grammar.mask_words(),
                    (kit.tokenizer.vocab_size() + more).div_ceil(32)
                );
                let mut ended = 0;
                for _ in 0..20 {
                    if let Some(text) = random_text(&kit, &grammar, &mut rng) {
                        assert!(is_member(&text), "{path}: {source:?}: {text:?}");
                        ended += 1;
                    }
                }
                assert!(ended >= 10, "{path}: {source:?}: {ended}");
            }
        }
    }
}

/// A model that has begun to write spaces may never come to an end: there is one at most, in every
/// kind of JSON, unless the schema says itself what there may be.
#[test]
fn between_the_parts_of_a_value_is_one_space_at_most() {
    let kit = Kit::open(SMALL, 0);
    let takes = |source: Source<'_>, text: &str| {
        let grammar = kit.compile(source).unwrap();
        mask(&grammar, &kit.tokenizer.encode(text).unwrap()).is_ok()
    };
    let of = |options: &str| format!(r#"{{"type":"object"{options}}}"#);
    let plain = of("");
    let lenient = of(r#","x-guidance":{"lenient":true}"#);
    let lark = format!("start: %json {{\n\n{}", &plain[1..]);
    let (compact, one, two, line) = (
        "{\"a\":[1,2]}",
        "{ \"a\": [1, 2] }",
        "{\"a\":  [1",
        "{\n\"a\"",
    );
    for source in [
        Source::Json,
        Source::JsonSchema(&plain),
        Source::JsonSchema(&lenient),
        Source::JsonSchema("{}"),
        Source::JsonSchema("true"),
        Source::Lark(&lark),
    ] {
        assert!(takes(source, compact) && takes(source, one), "{source:?}");
        assert!(!takes(source, two) && !takes(source, line), "{source:?}");
    }
    // In literals, expressions and comments the words are the caller's own.
    let words = "start: \"%json {}\" /%json true|\\/ \"/ %json {} // %json {}\n";
    let words = Source::Lark(words);
    assert!(takes(words, "%json {}%json true{ }"));
    assert!(takes(words, "%json {}/ \"{}"));
    assert!(!takes(words, "%json {\"x-"));
    let any = of(r#","x-guidance":{"whitespace_flexible":true}"#);
    let any = Source::JsonSchema(&any);
    assert!(
        [compact, one, two, line]
            .iter()
            .all(|text| takes(any, text))
    );
    let none = of(r#","x-guidance":{"whitespace_flexible":false}"#);
    let none = Source::JsonSchema(&none);
    assert!(takes(none, compact) && !takes(none, one));
    let own = of(r#","x-guidance":{"whitespace_pattern":"\\n"}"#);
    let own = Source::JsonSchema(&own);
    assert!(takes(own, line) && !takes(own, one));
    // The lines of a grammar are the caller's.
    let wrong = format!("{lark}\nb: \"x\" (");
    let error = kit.refusal(Source::Lark(&wrong));
    assert!(error.contains('4'), "{error}");
}

/// A model may answer nothing where that is of the language, whatever else begins with a space.
#[test]
fn a_text_may_end_before_it_begins_where_the_empty_text_is_of_the_language() {
    let mut seen = 0;
    for path in TOKENIZERS {
        let kit = Kit::open(path, 3);
        let (end, stops) = (kit.tokenizer.eos_id(), kit.tokenizer.stop_ids());
        if end < 0 && stops.is_empty() {
            continue; // its checkpoint's configuration says what ends a sequence
        }
        seen += 1;
        let may_end = |source: Source<'_>| {
            let mask = mask(&kit.compile(source).unwrap(), &[]).unwrap();
            ids(&mask).any(|id| id == end || stops.contains(&id))
        };
        for regex in ["(a)?", "( a)?", " *", "[ a]*", "^( ab)*$"] {
            assert!(may_end(Source::Regex(regex)), "{path}: {regex}");
        }
        assert!(may_end(Source::Lark("start: \" a\"?")), "{path}");
        for regex in ["a", " a", " +", "[ a]+", "^( ab)+$"] {
            assert!(!may_end(Source::Regex(regex)), "{path}: {regex}");
        }
    }
    assert!(seen > 2, "{seen}");
}
