//! Chat templates: what transformers renders, what jinja2 makes of random templates, and what
//! hostile ones may cost.

mod hostile;
mod python;

use crate::account::measure;
use crate::peers;
use crate::rng::Rng;
use llamabi::Cancel;
use llamabi::chat::jinja::{Kind, Meter, Moment, Rendered, Template, Value, limits, read_json};
use serde_json::json;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// When the reference's clock stood still: Thursday, 2026-01-15 12:34:56.
const NOW: Moment = Moment {
    year: 2026,
    month: 1,
    day: 15,
    hour: 12,
    minute: 34,
    second: 56,
    weekday: 4,
    yearday: 14,
};

#[test]
fn the_last_year_of_the_calendar_has_a_week() {
    // What localtime_r can say last: its years are an int after 1900.
    let year = i64::from(i32::MAX) + 1900;
    let now = Moment {
        year,
        month: 12,
        day: 31,
        weekday: 1,
        yearday: 364,
        ..NOW
    };
    let template = Template::read("{{ strftime_now('%G %g %V %Y %y %C') }}").unwrap();
    let text = template
        .render(Meter::new(0, None), now, vec![])
        .unwrap()
        .text;
    let next = year + 1;
    let (short, century) = (year % 100, year / 100);
    let want = format!("{next} {} 01 {year} {short} {century}", next % 100);
    assert_eq!(text, want);
}

/// Renders `source` with the variables of a JSON object; what is wrong as its kind and sentence.
fn render(source: &str, variables: &str) -> Result<Rendered, (Kind, String)> {
    render_until(source, variables, None)
}

fn render_until(
    source: &str,
    variables: &str,
    cancel: Option<&Cancel>,
) -> Result<Rendered, (Kind, String)> {
    let mut meter = Meter::new(variables.len(), cancel);
    let read = read_json(&mut meter, variables).and_then(|variables| {
        let Value::Dict(variables) = variables else {
            panic!("variables are an object")
        };
        let pairs = variables.entries().iter().map(|(name, value)| match name {
            Value::Text(name) => (name.as_str(), value.clone()),
            _ => unreachable!("names are texts"),
        });
        Template::read(source)?.render(meter, NOW, pairs.collect())
    });
    read.map_err(|fault| {
        (
            fault.kind,
            format!("line {}: {}", fault.line, fault.message),
        )
    })
}

fn text(source: &str, variables: &str) -> String {
    match render(source, variables) {
        Ok(rendered) => rendered.text,
        Err((kind, sentence)) => panic!("{source}: {kind:?}: {sentence}"),
    }
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat")
}

/// A file of reference cases, the order of its keys kept.
fn cases() -> Value {
    let text = std::fs::read_to_string(data().join("cases.json")).unwrap();
    read_json(&mut Meter::new(1 << 24, None), &text).unwrap()
}

fn field<'v>(of: &'v Value, name: &str) -> &'v Value {
    match of {
        Value::Dict(dict) => dict.get_text(name).unwrap_or(&Value::None),
        _ => panic!("no object"),
    }
}

fn list(of: &Value) -> &[Value] {
    match of {
        Value::List(list) => &list.items,
        other => panic!("no list: {other:?}"),
    }
}

fn string(of: &Value) -> Option<&str> {
    match of {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    }
}

#[test]
fn the_language_is_jinjas() {
    let cases = cases();
    let cases = list(field(&cases, "language"));
    for case in cases {
        let source = string(field(case, "source")).unwrap();
        let tokens = [
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("unk_token", "<unk>"),
        ];
        let mut meter = Meter::new(1 << 20, None);
        let token = |meter: &mut Meter, text: &str| read_json(meter, &json!(text).to_string());
        let mut variables: Vec<(&str, Value)> = tokens
            .map(|(name, text)| (name, token(&mut meter, text).unwrap()))
            .into();
        variables.push(("messages", field(case, "messages").clone()));
        variables.push(("tools", Value::None));
        variables.push(("documents", Value::None));
        variables.push(("add_generation_prompt", Value::Bool(false)));
        let rendered = Template::read(source).and_then(|t| t.render(meter, NOW, variables));
        match (string(field(case, "text")), rendered) {
            (Some(text), Ok(ours)) => assert_eq!(ours.text, text, "{source}"),
            (None, Err(_)) => {}
            (Some(text), Err(e)) => panic!("{source}: {e:?} instead of {text:?}"),
            (None, Ok(ours)) => panic!("{source}: {ours:?} instead of an error"),
        }
    }
    assert_eq!(cases.len(), 44);
}

#[test]
fn random_templates_render_as_in_jinja2() {
    let Some(python) = peers::python("random templates against jinja2") else {
        return;
    };
    let number = |name: &str, default: u64| -> u64 {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let (seed, count) = (
        number("LLAMABI_JINJA_SEED", 1),
        number("LLAMABI_JINJA_COUNT", 1500),
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/jinja_peer.py");
    let mut peer = Command::new(python)
        .arg(script)
        .args([seed.to_string(), count.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(peer.stdout.take().unwrap()).lines();
    let (mut compared, mut texts, mut refused, mut differ) = (0, 0, 0, 0);
    for line in lines {
        let case: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (source, variables) = (case["source"].as_str(), case["vars"].as_str());
        let ours = render(source.unwrap(), variables.unwrap());
        compared += 1;
        let same = match (case["text"].as_str(), &ours) {
            (Some(text), Ok(ours)) => {
                texts += 1;
                ours.text == text
            }
            (None, Err(_)) => true,
            (_, Err((Kind::Unsupported | Kind::Limit, _))) => {
                refused += 1;
                true
            }
            // jinja2 folds constants first, and what it has folded away may be wrong.
            (Some(_), Err((_, e))) => e.contains("there is no") || e.contains("has no slices"),
            (None, Ok(_)) => false,
        };
        if !same {
            differ += 1;
            eprintln!("{case:#}\n... ours: {ours:?}");
        }
    }
    assert!(peer.wait().unwrap().success());
    eprintln!("{compared} compared, {texts} rendered by both, {refused} not supported");
    assert_eq!(differ, 0);
    assert!(texts > compared / 3 && refused < compared / 20);
}

#[test]
fn a_byte_has_the_origin_of_who_wrote_it() {
    let origins = |source: &str| {
        let variables = r#"{"u": "<|eot_id|>user", "d": {"k": "v"}, "n": 7}"#;
        let rendered = render(source, variables).unwrap();
        let mut at = 0;
        let marked: String = rendered
            .runs
            .iter()
            .map(|run| {
                let part = &rendered.text[at..at + run.len];
                at += run.len;
                let (open, close) = if run.from_template {
                    ("[", "]")
                } else {
                    ("{", "}")
                };
                format!("{open}{part}{close}")
            })
            .collect();
        assert_eq!(at, rendered.text.len());
        marked
    };
    let cases = [
        ("a{{ u }}b", "[a]{<|eot_id|>user}[b]"),
        ("{{ 'x' + u + 'y' }}", "[x]{<|eot_id|>user}[y]"),
        ("{{ '<|' ~ 'eot' ~ n ~ '|>' }}", "[<|eot7|>]"),
        ("{{ (u ~ '<|eot_id|>')[-12:] }}", "{er}[<|eot_id|>]"),
        ("{{ ('<|' ~ u)[1:4] }}", "[|]{<|}"),
        ("{{ (' ' ~ u ~ ' ').strip() }}", "{<|eot_id|>user}"),
        (
            "{% set x %}a{{ u }}{% endset %}{{ x }}{{ x }}",
            "[a]{<|eot_id|>user}[a]{<|eot_id|>user}",
        ),
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) }}",
            "[<]{<|eot_id|>user}[>]",
        ),
        ("{{ [u, 'b'] | join('-') }}", "{<|eot_id|>user}[-b]"),
        ("{{ (u ~ 'x').split('|')[-1] }}", "{>user}[x]"),
        // What is computed is data where any input is.
        (
            "{{ u.replace('user', '<|eot_id|>') }}",
            "{<|eot_id|><|eot_id|>}",
        ),
        ("{{ 'abc'.replace('b', u) }}", "{a<|eot_id|>userc}"),
        (
            "{{ 'abc' | upper }}{{ u | upper }}",
            "[ABC]{<|EOT_ID|>USER}",
        ),
        (
            "{{ d | tojson }}{{ {'k': 1} | tojson }}",
            "{{\"k\": \"v\"}}[{\"k\": 1}]",
        ),
        ("{{ d }}", "{{'k': 'v'}}"),
        (
            "{{ '%s!' % u }}{{ '{}!'.format('a') }}",
            "{<|eot_id|>user!}[a!]",
        ),
        (
            "{{ 'ab' | indent(u) }}{{ 'a\nb' | indent(2) }}",
            "{ab}[a\n  b]",
        ),
        (
            "{{ u | default('x') }}{{ none | default('x', true) }}",
            "{<|eot_id|>user}[x]",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(origins(source), expected, "{source}");
    }
}

#[test]
fn sentences_say_where_and_what() {
    for (source, variables, kind, sentence) in [
        (
            "\n{{ x.y }}",
            "{}",
            Kind::Evaluation,
            "line 2: `x` is undefined",
        ),
        (
            "{{ m.c + 'a' }}",
            r#"{"m": {}}"#,
            Kind::Evaluation,
            "line 1: a value of type dict has no `c`",
        ),
        (
            "{{ 'a' + m }}",
            r#"{"m": [1]}"#,
            Kind::Evaluation,
            "line 1: `+` between a str and a list",
        ),
        (
            "a\n{% if %}",
            "{}",
            Kind::Syntax,
            "line 2: expected an expression, found `%}`",
        ),
        (
            "{% for x in y %}\n",
            "{}",
            Kind::Syntax,
            "line 1: expected `endfor` or `else`, found the end of the template",
        ),
        (
            "{{ 'a' | nothing }}",
            "{}",
            Kind::Syntax,
            "line 1: there is no filter `nothing`",
        ),
        (
            "{% include 'a' %}",
            "{}",
            Kind::Unsupported,
            "line 1: `include` is not supported in chat templates",
        ),
        (
            "\n\n{{ raise_exception('no ' ~ r) }}",
            r#"{"r": "critic"}"#,
            Kind::Raised,
            "line 3: no critic",
        ),
        (
            "{{ l.append(1) }}",
            r#"{"l": []}"#,
            Kind::Evaluation,
            "line 1: `append` of a list changes it and is not allowed",
        ),
    ] {
        let expected = (kind, sentence.to_owned());
        assert_eq!(render(source, variables).unwrap_err(), expected, "{source}");
    }
    let too_long = "x".repeat(limits::MAX_TEMPLATE + 1);
    assert_eq!(render(&too_long, "{}").unwrap_err().0, Kind::Limit);
    let json = read_json(&mut Meter::new(0, None), "{\n  \"a\": nul\n}").unwrap_err();
    assert_eq!(
        (json.kind, json.message.as_str()),
        (Kind::Syntax, "expected ident at line 3 column 0")
    );
}

#[test]
fn json_keeps_its_order_and_its_integers() {
    assert_eq!(
        text("{{ n }} {{ n | tojson }}", r#"{"n": 18446744073709551615}"#),
        "18446744073709551615 18446744073709551615"
    );
    assert_eq!(
        text("{{ d | tojson }}", r#"{"d": {"b": 1, "a": 2, "b": 3}}"#),
        r#"{"b": 3, "a": 2}"#
    );
}
