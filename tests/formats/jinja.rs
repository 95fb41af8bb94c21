//! Chat templates: what transformers renders, what jinja2 makes of random templates, and what
//! hostile ones may cost.

use crate::account::measure;
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

/// An interpreter that has jinja2, if there is one.
fn python() -> Option<String> {
    let python = std::env::var("LLAMABI_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python)
        .args(["-c", "import jinja2; assert jinja2.__version__ >= '3.1.6'"])
        .stderr(Stdio::null())
        .status();
    found.is_ok_and(|status| status.success()).then_some(python)
}

#[test]
fn random_templates_render_as_in_jinja2() {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with jinja2 3.1.6 (LLAMABI_PYTHON names one)");
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

/// Bytes that a rendering may hold: 256 for each byte of the template are asked for before it is
/// read, and buffers may be twice as large as what was made.
const BESIDE: usize = 5 * (64 << 20);

#[test]
fn hostile_templates_end_within_the_limits() {
    let cases = cases();
    let mut sources: Vec<(String, Option<Kind>)> = list(field(&cases, "hostile"))
        .iter()
        .map(|source| string(source).unwrap())
        .map(|source| match source.strip_prefix("@NEST") {
            Some(nest) => (nest.repeat(100_000), None),
            None => (source.to_owned(), None),
        })
        .collect();
    let nests = [
        "{{ ((((",
        "{{ [[[[",
        "{% if true %}",
        "{{ not not ",
        "{{ --",
        "{{ {1:{1:",
        "{{ a[a[",
    ];
    for nest in nests {
        let (open, body) = nest.split_once(' ').unwrap();
        let deep = match open {
            "{%" => nest.repeat(50_000),
            open => format!("{open} {}", body.repeat(100_000)),
        };
        sources.push((deep, None));
    }
    for (source, kind) in [
        // Grows by each way there is.
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | tojson %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ (ns.x | indent(8, true)) %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x='a') %}{% for i in range(99) %}{{ ns.x }}{% set ns.x = ns.x * 3 %}{% endfor %}",
            Kind::Limit,
        ),
        ("{{ 'a'.ljust(9000000000000000000) }}", Kind::Limit),
        ("{{ '1'.zfill(9000000000000000000) }}", Kind::Limit),
        ("{{ '%.*f' % (9000000000, 1.5) }}", Kind::Evaluation),
        ("{{ '%.9000000000d' % 1 }}", Kind::Limit),
        ("{{ '{:{}}'.format('a', 10 ** 12) }}", Kind::Limit),
        ("{{ '\t'.expandtabs(9000000000000) }}", Kind::Limit),
        ("{{ [1] | tojson(indent=9000000000000) }}", Kind::Limit),
        ("{{ [1] | batch(9000000000000, 0) | list }}", Kind::Limit),
        ("{{ [1] | slice(9000000000000) | list }}", Kind::Limit),
        ("{{ 2 ** 127 }}", Kind::Limit),
        ("{{ -(-(2 ** 126) * 2) }}", Kind::Limit),
        ("{{ ('ß' * 4999990) | upper }}", Kind::Limit),
        // Deep values, loops and calls.
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x={}) %}{% for i in range(100000) %}{% set ns.x = {1: ns.x} %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x=()) %}{% for i in range(40) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace(x=[]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x < ns.x }}",
            Kind::Limit,
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}",
            Kind::Limit,
        ),
        (
            "{% macro f(x) %}{{ x }}{{ caller() }}{% endmacro %}{% macro g(n) %}{% call f(n) %}{{ g(n + 1) }}{% endcall %}{% endmacro %}{{ g(0) }}",
            Kind::Limit,
        ),
        (
            "{% set ns = namespace() %}{% macro f() %}{{ ns.f() }}{% endmacro %}{% set ns.f = f %}{{ f() }}",
            Kind::Limit,
        ),
        (
            "{% for i in range(99999) %}{% macro f() %}{% endmacro %}{% for j in range(99) %}{{ f() }}{% endfor %}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set big = 'ab' * 1000000 %}{% for i in range(99999) %}{{ 'ba' * 9 in big }}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set big = 'é' * 1000000 %}{% for i in range(99999) %}{{ big[-1] }}{% endfor %}",
            Kind::Limit,
        ),
        (
            "{% set big = range(90000) | list %}{% for i in range(9999) %}{{ big | sort | first }}{% endfor %}",
            Kind::Limit,
        ),
    ] {
        sources.push((source.to_owned(), Some(kind)));
    }
    // Looks through many names: of variables, attributes, arguments and a dict's keys.
    let numbered = |n: usize, one: fn(usize) -> String| (0..n).map(one).collect::<String>();
    let again = "{% for i in range(99999) %}{% for j in range(50) %}{% if";
    let sets = numbered(50_000, |i| format!("{{% set a{i}=1%}}"));
    let end = "%}{% endif %}{% endfor %}{% endfor %}";
    sources.push((format!("{sets}{again} zz {end}"), Some(Kind::Limit)));
    let sets = numbered(40_000, |i| format!("{{% set n.a{i}=1%}}"));
    let source = format!("{{% set n=namespace() %}}{sets}{again} n.zz {end}");
    sources.push((source, Some(Kind::Limit)));
    let named = numbered(100_000, |i| format!("a{i}=1,"));
    sources.push((format!("{{{{ dict({named}) }}}}"), Some(Kind::Limit)));
    let pairs = numbered(1001, |i| format!("'a{i}':1,"));
    sources.push((format!("{{{{ dict(**{{{pairs}}}) }}}}"), Some(Kind::Limit)));
    let pairs = numbered(20_000, |i| format!("'a{i}':1,"));
    let keys = "%(a19999)s".repeat(70_000);
    sources.push((format!("{{{{ '{keys}' % {{{pairs}}} }}}}"), None));
    for (source, kind) in sources {
        let shown: String = source.chars().take(90).collect();
        let (result, used) = measure(usize::MAX, || render(&source, "{}"));
        assert!(
            used.most < BESIDE && used.largest < BESIDE,
            "{shown}: {} bytes",
            used.most
        );
        match (kind, result) {
            (Some(kind), result) => {
                let found = result.map(|r| r.text.len()).map_err(|e| e.0);
                assert_eq!(found, Err(kind), "{shown}");
            }
            (None, Ok(rendered)) => {
                // Nothing but text between tags.
                assert!(rendered.used.0 < limits::MAX_STEPS, "{shown}");
            }
            (None, Err((kind, _))) => {
                let ends = [Kind::Limit, Kind::Evaluation, Kind::Syntax];
                assert!(ends.contains(&kind), "{shown}: {kind:?}");
            }
        }
    }
}

#[test]
fn a_template_runs_on_a_small_stack() {
    let deep = format!(
        "{{% macro f(x) %}}{}f(x + 1){}{{% endmacro %}}{{{{ f(0) }}}}",
        "{{ [(", ")] }}"
    );
    let nested = format!("{{{{ {}1{} }}}}", "[".repeat(150), "]".repeat(150));
    let run = move || {
        assert_eq!(render(&deep, "{}").unwrap_err().0, Kind::Limit);
        assert!(render(&nested, "{}").unwrap().text.starts_with("[[["));
        let deepest = format!("{{{{ {}1{} }}}}", "(".repeat(300), ")".repeat(300));
        assert_eq!(render(&deepest, "{}").unwrap_err().0, Kind::Limit);
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(run);
    thread.unwrap().join().unwrap();
}

#[test]
fn a_cancel_flag_ends_a_template() {
    let cancel = Cancel::new();
    cancel.trigger();
    let loops = "{% for a in range(9999) %}{{ a }}{% endfor %}";
    let (kind, _) = render_until(loops, "{}", Some(&cancel)).unwrap_err();
    assert_eq!(kind, Kind::Cancelled);
    assert!(render_until(loops, "{}", Some(&Cancel::new())).is_ok());
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

const WORDS: [&str; 44] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "-",
    "+",
    "'",
    "\"",
    "\\",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "|",
    "~",
    "**",
    " if ",
    " else ",
    " for m in messages ",
    " endfor ",
    " endif ",
    " set x = ",
    " macro f(a) ",
    " endmacro ",
    " is ",
    " not ",
    " in ",
    " loop.",
    "9999999999999999999",
    "1e400",
    "0x",
    "messages",
    ".content",
    ".format(",
    " % ",
    ":",
    ",",
    "é",
    "\u{1f600}",
    "\0",
];

/// Broken templates and broken JSON: everything ends in a text or a sentence, nothing in a panic.
#[test]
fn mutated_templates_and_messages_do_no_harm() {
    let mut seeds: Vec<String> = std::fs::read_dir(data().join("templates"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    seeds.sort();
    let cases = cases();
    let language = list(field(&cases, "language"));
    seeds.extend(
        language
            .iter()
            .map(|case| string(field(case, "source")).unwrap().to_owned()),
    );
    let variables = r#"{"messages": [{"role": "user", "content": "a<|eot_id|>"}, {"role": "assistant",
        "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, 2.5]}}}]}],
        "tools": [{"function": {"name": "f"}}], "bos_token": "<s>", "add_generation_prompt": true}"#;
    let mut rng = Rng(1);
    let (mut rendered, mut failed) = (0, 0);
    for round in 0..6000 {
        let mut bytes = seeds[rng.below(seeds.len())].clone().into_bytes();
        let mut json = variables.as_bytes().to_vec();
        let target = if round % 4 == 0 {
            &mut json
        } else {
            &mut bytes
        };
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(target.len() + 1);
            let end = (at + rng.below(12)).min(target.len());
            match rng.below(4) {
                0 => drop(target.drain(at..end)),
                1 => {
                    let word = WORDS[rng.below(WORDS.len())].bytes();
                    drop(target.splice(at..at, word));
                }
                2 => {
                    let copy = target[at..end].to_vec();
                    let to = rng.below(target.len() + 1);
                    drop(target.splice(to..to, copy));
                }
                _ if at < target.len() => target[at] = rng.below(128) as u8,
                _ => {}
            }
        }
        let (template, json) = (
            String::from_utf8_lossy(&bytes),
            String::from_utf8_lossy(&json),
        );
        let run = || {
            let mut meter = Meter::new(json.len(), None);
            let read = read_json(&mut meter, &json);
            let pairs = match &read {
                Ok(Value::Dict(dict)) => dict.entries(),
                _ => &[],
            };
            let pairs = pairs.iter().filter_map(|(name, value)| match name {
                Value::Text(name) => Some((name.as_str(), value.clone())),
                _ => None,
            });
            Template::read(&template).and_then(|t| t.render(meter, NOW, pairs.collect()))
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        match outcome.unwrap_or_else(|_| panic!("a panic in\n{template}\nwith {json}")) {
            Ok(done) => {
                rendered += 1;
                assert!(done.used.0 <= limits::MAX_STEPS && done.text.len() <= limits::MAX_OUTPUT);
                let runs: usize = done.runs.iter().map(|run| run.len).sum();
                assert_eq!(runs, done.text.len());
            }
            Err(_) => failed += 1,
        }
    }
    eprintln!("{rendered} rendered, {failed} failed");
    assert!(rendered > 500 && failed > 500);
}
