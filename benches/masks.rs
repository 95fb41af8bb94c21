//! What masks of grammars cost: a part of benches/decoding.rs.

use super::{Bench, PROMPT, number, variable};
use crate::strategies::{generate, prompt};
use llamabi::engine::GenerateOptions;
use llamabi::grammar::{Cursor, Grammar, Grammars, Source};
use llamabi::tokenizer;
use llamabi::{Result, Token};
use std::sync::Arc;
use std::time::Instant;

/// Tokens of a text that follows a grammar.
const CONSTRAINED: usize = 1000;

const SCHEMA: &str = r#"{"type":"array","minItems":100,"items":{"type":"object","properties":{
    "name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,"maximum":150},
    "tags":{"type":"array","items":{"type":"string","maxLength":20},"maxItems":5},
    "kind":{"enum":["red","green","blue"]},"size":{"type":"number","minimum":0,"maximum":100},
    "born":{"type":"string","format":"date"}},
    "required":["name","age","tags","kind","size","born"],"additionalProperties":false},
    "x-guidance":{"whitespace_flexible":false}}"#;

const REGEX: &str = r"([A-Z][a-z]+( [a-z]+)*[.!?]\n)+";

const SUM: &str = include_str!("grammars/sum.lark");
const SQL: &str = include_str!("grammars/sql.lark");
const PROGRAM: &str = include_str!("grammars/program.lark");

/// Texts as people and models write them, in these languages.
const TEXTS: [(&str, &str, &str); 3] = [
    ("sums", SUM, include_str!("grammars/sum.txt")),
    ("SQL", SQL, include_str!("grammars/sql.txt")),
    ("a program", PROGRAM, include_str!("grammars/program.txt")),
];

/// Microseconds of each mask of a text.
fn mask_times(grammar: &Arc<Grammar>, tokens: &[Token]) -> Result<Vec<f64>> {
    let mut cursor = Cursor::new(grammar).unwrap();
    let mut mask = vec![0; grammar.mask_words()];
    let mut times = Vec::new();
    for &token in tokens {
        let start = Instant::now();
        cursor.mask(&mut mask)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert!(cursor.take(token)?, "token {}", times.len());
    }
    Ok(times)
}

/// Masks of grammars over the tokenizer that `BENCH_TOKENIZER` names: what they take alone, token
/// by token of a text, and how long the engine waits for them while it makes a text of tokens that
/// are drawn at random.
pub fn masks(bench: &mut Bench) {
    let path = variable("BENCH_TOKENIZER", "");
    if path.is_empty() {
        println!(
            "masks: NOT MEASURED, since BENCH_TOKENIZER names no file of a tokenizer; \
             scripts/llama3-tokenizer fetches one"
        );
        return;
    }
    let constrained = number("BENCH_TOKENS", CONSTRAINED);
    let tokenizer = tokenizer::open(path.as_ref()).unwrap_or_else(|e| panic!("{path}: {e}"));
    let n_ids = tokenizer.vocab_size();
    let engine = bench.engine(None, n_ids, tokenizer.clone());
    let grammars = Grammars::new(n_ids, vec![tokenizer.eos_id()]);
    let start = Instant::now();
    grammars.compile(&*tokenizer, Source::Json).unwrap();
    println!(
        "{n_ids} ids; the first grammar takes {:.0} ms",
        start.elapsed().as_secs_f64() * 1e3
    );
    for (name, source, text) in TEXTS {
        let mut tokens = tokenizer.encode(text).unwrap();
        tokens.retain(|token| *token != tokenizer.bos_id());
        let grammar = grammars.compile(&*tokenizer, Source::Lark(source));
        alone(bench, name, &Arc::new(grammar.unwrap()), &tokens);
    }
    for (name, source) in [
        ("a schema, at random", Source::JsonSchema(SCHEMA)),
        ("a regex, at random", Source::Regex(REGEX)),
        ("sums, at random", Source::Lark(SUM)),
        ("SQL, at random", Source::Lark(SQL)),
        ("a program, at random", Source::Lark(PROGRAM)),
    ] {
        let grammar = Arc::new(grammars.compile(&*tokenizer, source).unwrap());
        let options = GenerateOptions {
            grammar: Some(grammar.clone()),
            temperature: 1.0,
            top_p: 1.0,
            seed: 7,
            min_gen_len: constrained,
            max_gen_len: Some(constrained),
            ..GenerateOptions::default()
        };
        let mut text = Vec::new();
        // Somebody uses the grammar all the time: else it forgets what it has learnt, if that is
        // much.
        let _kept = Cursor::new(&grammar).unwrap();
        for run in ["first", "second"] {
            let before = engine.timings();
            let done = generate(&engine, bench.threads, prompt(PROMPT, 0), 1, &options);
            let now = engine.timings();
            let masks = (now.masks - before.masks) as f64;
            let mask_us = (now.mask_ms - before.mask_ms) * 1e3 / masks;
            let decode_ms = now.decode_ms - before.decode_ms;
            let waited = (now.mask_wait_ms - before.mask_wait_ms) / decode_ms;
            let tokens = done.tokens[0].len();
            let step = decode_ms / tokens as f64;
            assert_eq!(tokens, constrained, "the text of {name} has ended");
            let said = format!(
                "{run} run: mean {mask_us:.1} us, waited {:.2} % of {step:.1} ms a step",
                100.0 * waited
            );
            let figures = [("mask_us", mask_us), ("waited", waited), ("step_ms", step)];
            bench.say(&format!("masks of {name}, {run} run"), &said, &figures);
            assert!(text.is_empty() || text == done.tokens[0]);
            text = done.tokens.into_iter().next().unwrap();
        }
        let anew = Arc::new(grammars.compile(&*tokenizer, source).unwrap());
        alone(bench, name, &anew, &text);
    }
}

/// Three passes over a text, of which the first one finds nothing that was learnt.
fn alone(bench: &mut Bench, name: &str, grammar: &Arc<Grammar>, text: &[Token]) {
    let _kept = Cursor::new(grammar).unwrap();
    for pass in ["first", "second", "third"] {
        let mut times = mask_times(grammar, text).unwrap();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        let (middle, late, last) = (at(0.5), at(0.99), at(1.0));
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let said = format!(
            "{pass} pass over {} tokens: median {middle:.1} us, mean {mean:.1}, 99 of 100 \
             {late:.0}, most {last:.0}",
            text.len()
        );
        let figures = [("median_us", middle), ("mean_us", mean), ("p99_us", late)];
        bench.say(
            &format!("masks of {name}, alone, {pass} pass"),
            &said,
            &figures,
        );
    }
}
