//! Random texts that are kept in a language.

use super::*;

/// A text that tokens chosen at random make, as it would be generated; `None` if it became long.
fn random_text(kit: &Kit, grammar: &Arc<Grammar>, rng: &mut Rng) -> Option<String> {
    let mut cursor = Cursor::new(grammar);
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
const LANGUAGES: [(Source<'static>, Member); 7] = [
    (Source::Regex("[0-9]{2,5}(-x)?"), |t| {
        matches("[0-9]{2,5}(-x)?", t)
    }),
    (Source::Regex(" ?[a-f ]{1,6}"), |t| {
        matches(" ?[a-f ]{1,6}", t)
    }),
    (Source::Regex("  (a|b) *c"), |t| matches("  (a|b) *c", t)),
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
