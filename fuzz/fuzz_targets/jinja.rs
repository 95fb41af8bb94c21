#![no_main]
//! A template and its variables, a NUL between them.
use llamabi::chat::jinja::{Meter, Moment, Template, Value, limits, read_json};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (template, json) = text.split_once('\0').unwrap_or((&text, "{}"));
    let now = Moment { year: 2026, month: 1, day: 15, hour: 12, minute: 34, second: 56, weekday: 4, yearday: 14 };
    let mut meter = Meter::new(json.len(), None);
    let Ok(Value::Dict(variables)) = read_json(&mut meter, json) else { return };
    let pairs = variables.entries().iter().filter_map(|(name, value)| match name {
        Value::Text(name) => Some((name.as_str(), value.clone())),
        _ => None,
    });
    if let Ok(done) = Template::read(template).and_then(|t| t.render(meter, now, pairs.collect())) {
        assert!(done.used.0 <= limits::MAX_STEPS && done.text.len() <= limits::MAX_OUTPUT);
        assert_eq!(done.runs.iter().map(|run| run.len).sum::<usize>(), done.text.len());
    }
});
