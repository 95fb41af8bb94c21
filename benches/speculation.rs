//! What speculation is worth: a part of benches/decoding.rs.

use super::{Bench, DRAFT, Letters, PROMPT, SLOTS, clock, median, named, number, runner};
use crate::scripted::{Script, Scripted};
use llamabi::Token;
use llamabi::backend::{Run, Shape};
use llamabi::engine::{Engine, Event, GenerateOptions, Next, Prompt, Request, Speculation};
use std::sync::{Arc, Mutex};

/// Where the guesses come from.
#[derive(Clone, Copy, PartialEq)]
enum Guesses {
    /// A text that is expected.
    Copy,
    /// What the model has said.
    Own,
    /// Whatever there is, of which the draft model says nothing, or what is never right.
    Auto { says: bool },
    /// The draft model, which is right so many times of ten.
    Draft(u64),
}

struct Case {
    name: String,
    batch: usize,
    tokens: usize,
    guesses: Guesses,
    /// Every call is the first of its handle.
    fresh: bool,
}

/// The cases whose names are wanted.
fn cases(wanted: impl Fn(&str) -> bool) -> Vec<Case> {
    let case = |name: &str, batch, tokens, guesses| Case {
        name: format!("{name}, batch {batch}"),
        batch,
        tokens,
        guesses,
        fresh: name.contains("first call"),
    };
    let silent = Guesses::Auto { says: false };
    let wrong = Guesses::Auto { says: true };
    let mut cases = vec![
        case("a copy with five changes", 1, 600, Guesses::Copy),
        case("a copy with five changes", 4, 600, Guesses::Copy),
        case("nothing repeats", 1, 512, Guesses::Own),
        case("nothing repeats", 4, 512, Guesses::Own),
        case("nothing repeats, full", SLOTS, 512, Guesses::Own),
        case("nothing repeats, AUTO", 1, 512, silent),
        case("nothing repeats, AUTO, full", SLOTS, 512, silent),
        case("nothing repeats, AUTO, wrong", 1, 512, wrong),
        case("nothing repeats, AUTO, wrong, full", SLOTS, 512, wrong),
        case("nothing repeats, AUTO, first call", 1, 512, wrong),
        case("nothing repeats, AUTO, first call, full", SLOTS, 512, wrong),
        case("a draft model, 9 of 10 right", 1, 256, Guesses::Draft(9)),
        case("a draft model, 7 of 10 right", 1, 256, Guesses::Draft(7)),
        case("a draft model, 5 of 10 right", 1, 256, Guesses::Draft(5)),
        case("a draft model, never right", 1, 256, Guesses::Draft(0)),
    ];
    cases.retain(|case| wanted(&case.name));
    for case in &mut cases {
        case.tokens = number("BENCH_TOKENS", case.tokens);
    }
    cases
}

/// The text with five changes: tokens replaced, left out, put in.
fn changed(tokens: &[Token]) -> Vec<Token> {
    let mut text = tokens.to_vec();
    let part = text.len() / 6;
    for place in (1..=5).rev() {
        let at = place * part;
        match place % 3 {
            0 => text[at] = (text[at] + 1) % 32000,
            1 => drop(text.drain(at..at + 4)),
            _ => drop(text.splice(at..at, [11, 12, 13])),
        }
    }
    text
}

/// The tokens of each sequence, and how many were generated per second.
fn run(
    engine: &Engine,
    threads: usize,
    case: &Case,
    options: &GenerateOptions,
) -> (Vec<Vec<Token>>, f64) {
    let prompt = |i: usize| {
        let token = |p: usize| 3 + ((p * 7919 + i * 104_729) % 31_000) as Token;
        Prompt::Tokens((0..PROMPT).map(token).collect())
    };
    let prompts = (0..case.batch).map(prompt).collect();
    let request = Request::new(prompts, options.clone(), &engine.request_limits()).unwrap();
    let stream = engine.submit(request).unwrap();
    let (mut tokens, mut first) = (vec![Vec::new(); case.batch], None);
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(event)) => {
                first.get_or_insert_with(|| clock(threads));
                tokens[event.index as usize].push(event.token);
            }
            Next::Event(_) => {}
            _ => break,
        }
    }
    let seconds = first.map_or(0.0, |first| clock(threads) - first);
    let n: usize = tokens.iter().map(Vec::len).sum();
    (tokens, (n - case.batch) as f64 / seconds)
}

/// A draft model that answers from the script.
fn draft_model(bench: &Bench, script: &Arc<Mutex<Script>>) -> Box<dyn Run> {
    let small = Shape {
        vocab_size: bench.shape.vocab_size,
        ..named("BENCH_DRAFT", DRAFT).1
    };
    let run = runner(small, bench.dtype, bench.threads);
    Box::new(Scripted::new(run, bench.threads, script.clone()))
}

/// Cases with drafts and without, of a handle with a draft model, which only some of them ask.
pub fn speculation(bench: &mut Bench, wanted: impl Fn(&str) -> bool) {
    let cases = cases(wanted);
    if cases.is_empty() {
        return;
    }
    let script = Arc::new(Mutex::new(Script::default()));
    let make = |bench: &Bench| {
        let (draft, n) = (draft_model(bench, &script), bench.shape.vocab_size);
        bench.engine(Some(draft), n, Arc::new(Letters(n)))
    };
    let mut engine = make(bench);
    for case in &cases {
        speculate(bench, &mut engine, make, &script, case);
    }
}

/// With drafts and without, in turns.
fn speculate(
    bench: &mut Bench,
    engine: &mut Engine,
    make: impl Fn(&Bench) -> Engine,
    script: &Arc<Mutex<Script>>,
    case: &Case,
) {
    let plain = GenerateOptions {
        temperature: 1.0,
        top_p: 1.0,
        seed: 7,
        ignore_eos: true,
        max_gen_len: Some(case.tokens),
        ..GenerateOptions::default()
    };
    let (want, _) = run(engine, bench.threads, case, &plain);
    let drafts = GenerateOptions {
        speculation: match case.guesses {
            Guesses::Draft(_) => Speculation::Draft,
            Guesses::Auto { .. } => Speculation::Auto,
            Guesses::Copy | Guesses::Own => Speculation::NGram,
        },
        predicted: match case.guesses {
            Guesses::Copy => want.iter().flat_map(|tokens| changed(tokens)).collect(),
            _ => Vec::new(),
        },
        ..plain.clone()
    };
    let right = match case.guesses {
        Guesses::Draft(right) => Some(right),
        Guesses::Auto { says: true } => Some(0),
        _ => None,
    };
    *script.lock().unwrap() = Script {
        text: right.map_or(Vec::new(), |_| want[0].clone()),
        prompt_len: PROMPT,
        right: right.unwrap_or(0),
        ..Script::default()
    };
    let computed = || script.lock().unwrap().computed;
    let computed_before = computed();
    // Tokens that were drafted, and accepted, by handles that are gone.
    let mut counts = [0; 2];
    let count = |engine: &Engine, counts: &mut [u64; 2]| {
        let timings = engine.timings();
        counts[0] += timings.drafted_tokens;
        counts[1] += timings.accepted_tokens;
    };
    let before = engine.timings();
    // Tokens per second without drafts, and with.
    let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..bench.rounds {
        for turn in 0..2 {
            let with = (round + turn) % 2;
            if case.fresh {
                count(engine, &mut counts);
                *engine = make(bench);
            }
            let (got, rate) = run(engine, bench.threads, case, [&plain, &drafts][with]);
            assert!(got == want, "{}: another text", case.name);
            rates[with].push(rate);
        }
        ratios.push(rates[1][round] / rates[0][round]);
    }
    count(engine, &mut counts);
    let each = |now: u64, then: u64| (now - then) / bench.rounds as u64;
    let drafted = each(counts[0], before.drafted_tokens);
    let accepted = each(counts[1], before.accepted_tokens);
    let (now, n) = (computed(), bench.rounds as f64);
    let [prompts, others, seconds] = [0, 1, 2].map(|i| (now[i] - computed_before[i]) / n);
    let [off, on] = [median(&rates[0]), median(&rates[1])];
    let ratio = median(&ratios);
    let rounded: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.3}")).collect();
    let said = format!(
        "{off:.1} tok/s, with drafts {on:.1}: {ratio:.3}x ({}); {drafted} drafted, {accepted} taken; \
         the draft model: {prompts:.0} rows of prompts and {others:.0} others, {seconds:.3} s",
        rounded.join(" ")
    );
    let figures = [
        ("batch", case.batch as f64),
        ("tokens", case.tokens as f64),
        ("tokens_s", off),
        ("with_drafts", on),
        ("ratio", ratio),
        ("drafted", drafted as f64),
        ("accepted", accepted as f64),
        ("draft_prompt_rows", prompts),
        ("draft_rows", others),
        ("draft_seconds", seconds),
    ];
    bench.say(&case.name, &said, &figures);
}
