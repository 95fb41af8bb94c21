//! What hostile and broken templates may cost.

use super::*;

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
        // Begins to go through a long text again and again.
        (
            "{% set s = 'é' * 4000 %}{% set s = s * 3000 %}{% for i in range(60000) %}{% for c in s %}{{ loop.length }}{% break %}{% endfor %}{% endfor %}",
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

/// What grows is asked for in ever larger blocks, but for no more than it could still become.
#[test]
fn nothing_gets_room_for_more_than_may_be_made() {
    for source in [
        "{{ '<|assistant|>' * 999999999 }}",
        "{{ ('a ' * 2000000).split(' ') }}",
        "{% for a in range(99999) %}{{ '<|assistant|>' * 99 }}{% endfor %}",
    ] {
        let (result, used) = measure(usize::MAX, || render(source, "{}"));
        assert_eq!(
            result.map(|_| ()).map_err(|e| e.0),
            Err(Kind::Limit),
            "{source}"
        );
        let largest = used.largest as u64;
        assert!(largest <= limits::MADE + (1 << 20), "{source}: {largest}");
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
