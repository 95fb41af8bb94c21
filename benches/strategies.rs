//! What beams, samples of one prompt and grammars cost: parts of benches/decoding.rs.

use super::{Bench, Letters, PROMPT, clock, median, variable};
use llamabi::engine::{Engine, Event, GenerateOptions, Next, Prompt, Request};
use llamabi::grammar::{Cursor, Grammar, Grammars, Source};
use llamabi::tokenizer;
use llamabi::{Result, Token};
use std::sync::Arc;
use std::time::Instant;

/// Steps of a beam search.
const STEPS: usize = 256;
const BEAMS: usize = 4;

/// Tokens of the prompt that is sampled from, and how many samples there are.
const LONG_PROMPT: usize = 1000;
const SAMPLES: usize = 8;

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

const LARK: &str = r#"
start: (statement "\n")+
statement: NAME " = " sum ";" | "return " sum ";"
sum: product ((" + " | " - ") product)*
product: value ((" * " | " / ") value)*
value: NAME | NUMBER | "(" sum ")" | NAME "(" sum (", " sum)* ")"
NAME: /[a-z][a-z0-9_]{0,15}/
NUMBER: /[0-9]{1,8}(\.[0-9]{1,4})?/
"#;

/// What one call gave.
struct Done {
    /// Seconds until each of its sequences had a token, and until all were over.
    first: f64,
    all: f64,
    tokens: Vec<Vec<Token>>,
}

fn generate(
    engine: &Engine,
    threads: usize,
    prompt: Vec<Token>,
    n: usize,
    options: &GenerateOptions,
) -> Done {
    let limits = engine.request_limits();
    let request = Request::new(vec![Prompt::Tokens(prompt)], options.clone(), &limits).unwrap();
    let start = clock(threads);
    let stream = engine.submit(request).unwrap();
    let (mut tokens, mut first) = (vec![Vec::new(); n], 0.0);
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(event)) => {
                let tokens = &mut tokens[event.index as usize];
                if tokens.is_empty() {
                    first = clock(threads) - start;
                }
                tokens.push(event.token);
            }
            Next::Event(_) => {}
            _ => break,
        }
    }
    let all = clock(threads) - start;
    Done { first, all, tokens }
}

fn prompt(n: usize, seed: usize) -> Vec<Token> {
    let token = |p: usize| 3 + ((p * 7919 + seed * 104_729) % 31_000) as Token;
    (0..n).map(token).collect()
}

/// Seconds of both, in turns, for so many rounds: their medians, and that of their ratios.
fn in_turns(rounds: usize, mut one: impl FnMut(bool, usize) -> f64) -> [f64; 3] {
    let (mut seconds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..rounds {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let other = (round + turn) % 2 == 1;
            pair[usize::from(other)] = one(other, round);
        }
        seconds[0].push(pair[0]);
        seconds[1].push(pair[1]);
        ratios.push(pair[1] / pair[0]);
    }
    [median(&seconds[0]), median(&seconds[1]), median(&ratios)]
}

/// 4 beams and a batch of 4 samples of the same prompt, by the time of a step.
pub fn beams(bench: &mut Bench, engine: &Engine) {
    let batch = GenerateOptions {
        temperature: 1.0,
        top_p: 1.0,
        seed: 7,
        ignore_eos: true,
        max_gen_len: Some(STEPS),
        num_return_sequences: BEAMS,
        ..GenerateOptions::default()
    };
    let beams = GenerateOptions {
        num_return_sequences: 1,
        num_beams: BEAMS,
        ..batch.clone()
    };
    let threads = bench.threads;
    let [plain, beams, ratio] = in_turns(bench.rounds, |is_search, round| {
        let (options, n) = match is_search {
            true => (&beams, 1),
            false => (&batch, BEAMS),
        };
        let done = generate(engine, threads, prompt(PROMPT, round), n, options);
        assert_eq!(done.tokens[0].len(), STEPS);
        done.all / STEPS as f64
    });
    let (plain, beams) = (plain * 1e3, beams * 1e3);
    let said = format!("a step takes {beams:.2} ms, a batch of 4 {plain:.2} ms: {ratio:.3}x");
    bench.say(
        "4 beams",
        &said,
        &[("batch_ms", plain), ("ms", beams), ("ratio", ratio)],
    );
}

/// The time to the first token of every one of 8 samples, and of one alone.
pub fn samples(bench: &mut Bench, engine: &Engine) {
    let one = GenerateOptions {
        temperature: 1.0,
        top_p: 1.0,
        seed: 7,
        ignore_eos: true,
        max_gen_len: Some(4),
        ..GenerateOptions::default()
    };
    let eight = GenerateOptions {
        num_return_sequences: SAMPLES,
        ..one.clone()
    };
    let threads = bench.threads;
    let [one, eight, ratio] = in_turns(bench.rounds, |are_many, round| {
        let (options, n) = match are_many {
            true => (&eight, SAMPLES),
            false => (&one, 1),
        };
        // One that no other call has left in the prefix cache.
        let prompt = prompt(LONG_PROMPT, 100 + 2 * round + usize::from(are_many));
        generate(engine, threads, prompt, n, options).first
    });
    let (one, eight) = (one * 1e3, eight * 1e3);
    let said =
        format!("all 8 have a token after {eight:.0} ms, one alone {one:.0} ms: {ratio:.3}x");
    bench.say(
        "8 samples of a prompt of 1000",
        &said,
        &[("one_ms", one), ("ms", eight), ("ratio", ratio)],
    );
}

/// Microseconds of each mask of a text.
fn mask_times(grammar: &Arc<Grammar>, tokens: &[Token]) -> Result<Vec<f64>> {
    let mut cursor = Cursor::new(grammar);
    let mut mask = vec![0; grammar.mask_words()];
    let mut times = Vec::new();
    for &token in tokens {
        let start = Instant::now();
        cursor.mask(&mut mask)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert!(cursor.take(token)?);
    }
    Ok(times)
}

/// Masks of three grammars over the tokenizer that `BENCH_TOKENIZER` names: what they take alone,
/// token by token of a text, and how long the engine waits for them while it makes that text.
pub fn masks(bench: &mut Bench) {
    let path = variable("BENCH_TOKENIZER", "");
    if path.is_empty() {
        println!("masks: not measured, since BENCH_TOKENIZER names no file of a tokenizer");
        return;
    }
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
    for (name, source) in [
        ("schema", Source::JsonSchema(SCHEMA)),
        ("regex", Source::Regex(REGEX)),
        ("Lark", Source::Lark(LARK)),
    ] {
        let start = Instant::now();
        let grammar = Arc::new(grammars.compile(&*tokenizer, source).unwrap());
        let compiled = start.elapsed().as_secs_f64() * 1e3;
        let options = GenerateOptions {
            grammar: Some(grammar.clone()),
            temperature: 1.0,
            top_p: 1.0,
            seed: 7,
            min_gen_len: CONSTRAINED,
            max_gen_len: Some(CONSTRAINED),
            ..GenerateOptions::default()
        };
        let mut text = Vec::new();
        // Somebody uses the grammar all the time: else it forgets what it has learnt, if that is
        // much.
        let _kept = Cursor::new(&grammar);
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
            assert_eq!(tokens, CONSTRAINED, "the text of the {name} has ended");
            let said = format!(
                "{run} run: mean {mask_us:.1} us, waited {:.2} % of {step:.1} ms a step",
                100.0 * waited
            );
            let figures = [("mask_us", mask_us), ("waited", waited), ("step_ms", step)];
            bench.say(&format!("masks of a {name}, {run} run"), &said, &figures);
            assert!(text.is_empty() || text == done.tokens[0]);
            text = done.tokens.into_iter().next().unwrap();
        }
        let anew = Arc::new(grammars.compile(&*tokenizer, source).unwrap());
        let _kept = Cursor::new(&anew);
        for run in ["first", "second"] {
            let mut times = mask_times(&anew, &text).unwrap();
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
            let (middle, late, last) = (at(0.5), at(0.99), at(1.0));
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let said = format!(
                "{run} pass: median {middle:.1} us, mean {mean:.1}, 99 of 100 {late:.0}, \
                 most {last:.0}; compiled in {compiled:.1} ms"
            );
            let figures = [("median_us", middle), ("mean_us", mean), ("p99_us", late)];
            bench.say(
                &format!("masks of a {name}, alone, {run} pass"),
                &said,
                &figures,
            );
        }
    }
}

/// An engine without a draft model, whose tokens are letters.
pub fn plain_engine(bench: &Bench) -> Engine {
    let n = bench.shape.vocab_size;
    bench.engine(None, n, Arc::new(Letters(n)))
}
