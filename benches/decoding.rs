//! What decoding strategies cost, and what speculation is worth: `cargo bench --bench decoding`.
//!
//! A model of random weights, made in memory, behind the whole engine. Whatever is compared is
//! measured in turns; medians count, and ratios are medians of the rounds' own. Behind each case
//! stands what other processes had of the machine meanwhile. With one thread, time is what the
//! process has had of a processor, which others cannot take from it.
//!
//! **Speculation.** Each case is generated with and without drafts, and their texts must be equal.
//! A random model repeats nothing of its own, so the text that repeats is one that is expected:
//! what it will say, with five changes. It says the same whatever is expected. The draft model has
//! the shape that is used with a model of 1.1B, and computes all of it, but what it would say comes
//! from a script that is right so often.
//!
//! **The rest** is in strategies.rs (beams beside a batch, samples of one prompt beside one),
//! steps.rs and masks.rs.
//!
//! | variable | |
//! |---|---|
//! | `BENCH_MODEL` (1b), `BENCH_DTYPE` (bf16) | as in benches/cpu.rs |
//! | `BENCH_DRAFT` (160m) | the shape of the draft model: `160m:1` is its first layer |
//! | `BENCH_TOKENS` | of each text, instead of 256 to 600 |
//! | `BENCH_ROUNDS` (5), `BENCH_THREADS` (all) | |
//! | `BENCH_ONLY` | cases whose name contains one of these words: `copy`, `nothing`, `full`, `first`, `draft`, `beams`, `samples`, `steps`, `masks` |
//! | `BENCH_TOKENIZER` | a tokenizer's file, for `masks`: one of 128,000 ids is in PyPI's llama-models (0.3.0), `llama3/tokenizer.model` |
//! | `BENCH_RECORD` | a file that gets the numbers as lines of JSON, too |

mod limits;
mod masks;
mod model;
mod record;
mod shapes;
mod steps;
mod strategies;

use llamabi::backend::Limits;
use llamabi::backend::cpu::{Cpu, Precision, usable_threads};
use llamabi::backend::{Answer, Backend, Choices, Pick, RowKind, Run, Shape, Span, Step};
use llamabi::checkpoint::Keep;
use llamabi::engine::{
    Engine, EngineOptions, Event, GenerateOptions, Next, Prompt, Request, Speculation,
};
use llamabi::log::Log;
use llamabi::tokenizer::{self, Bound, Encoded, Piece, Tokenizer};
use llamabi::{Dtype, Result, Token};
use model::Plan;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Instant;

const SLOTS: usize = 8;
const MAX_SEQ_LEN: usize = 1152;
const PROMPT: usize = 32;
const DRAFT: &str = "160m";
const PAGE: usize = <Cpu as Backend>::PAGE_SIZE;

/// Every token is a letter.
struct Letters(usize);

impl Tokenizer for Letters {
    fn vocab_size(&self) -> usize {
        self.0
    }
    fn bos_id(&self) -> Token {
        1
    }
    fn eos_id(&self) -> Token {
        2
    }
    fn pad_id(&self) -> Token {
        -1
    }
    fn encode_runs(
        &self,
        _: &str,
        _: &[tokenizer::Run],
        _: &mut Vec<Token>,
        _: Bound<'_>,
    ) -> Result<Encoded> {
        Ok(Encoded::Whole)
    }
    fn decode(&self, _: &[Token]) -> Result<String> {
        Ok(String::new())
    }
    fn piece(&self, _: Token) -> Piece<'_> {
        Piece::Text("a")
    }
    fn token_bytes_with_nul(&self, _: Token) -> &[u8] {
        b"a\0"
    }
    fn strips_leading_space(&self) -> bool {
        false
    }
}

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

/// What the draft model says, which the bench knows beforehand.
#[derive(Default)]
struct Script {
    text: Vec<Token>,
    prompt_len: usize,
    right: u64,
    /// What it has computed: rows of prompts, other rows, and the seconds that both took.
    computed: [f64; 3],
}

/// A model that takes its time, and answers from a script; of one sequence.
struct Scripted {
    run: Box<dyn Run>,
    threads: usize,
    script: Arc<Mutex<Script>>,
    picks: Vec<Pick>,
    next: Vec<usize>,
}

impl Run for Scripted {
    fn submit(&mut self, step: &Step, choices: &Choices) -> Result<()> {
        self.next.clear();
        for span in &step.spans {
            let rows = span.rows.clone().zip(span.position + 1..);
            let wanted = rows.filter(|(row, _)| step.wanted.contains(&(*row as u32)));
            self.next.extend(wanted.map(|(_, next)| next));
        }
        let start = clock(self.threads);
        self.run.submit(step, choices)?;
        self.run.collect()?;
        let computed = &mut self.script.lock().unwrap().computed;
        for span in &step.spans {
            computed[usize::from(span.kind == RowKind::Decode)] += span.rows.len() as f64;
        }
        computed[2] += clock(self.threads) - start;
        Ok(())
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        let script = self.script.lock().unwrap();
        self.picks.clear();
        for next in &self.next {
            let token = script.text.get(next - script.prompt_len).copied();
            let is_right = (*next as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let is_right = is_right % 10 < script.right;
            self.picks.push(Pick {
                token: token.map(|token| {
                    if is_right {
                        token
                    } else {
                        3 + (token + 1) % 31_000
                    }
                }),
                ..Pick::default()
            });
        }
        Ok(Answer::Picks {
            picks: &self.picks,
            top: &[],
            logits: &[],
        })
    }
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.run.copy_pages(pairs)
    }
    fn page_bytes(&self) -> usize {
        self.run.page_bytes()
    }
    fn save_pages(&mut self, pages: &[u32], to: &mut [u8]) -> Result<()> {
        self.run.save_pages(pages, to)
    }
    fn load_pages(&mut self, pages: &[u32], from: &[u8]) -> Result<()> {
        self.run.load_pages(pages, from)
    }
    fn limits(&self) -> Limits {
        self.run.limits()
    }
}

struct Case {
    name: String,
    batch: usize,
    tokens: usize,
    guesses: Guesses,
    /// Every call is the first of its handle.
    fresh: bool,
}

/// What is measured, and what of it is for a program to read.
struct Bench {
    model: String,
    weights: String,
    shape: Shape,
    dtype: Dtype,
    threads: usize,
    rounds: usize,
    busy: limits::Busy,
    lines: String,
}

impl Bench {
    /// An engine of the model with so many ids, and of a draft model, if there is one.
    fn engine(
        &self,
        draft: Option<Box<dyn Run>>,
        vocab_size: usize,
        tokenizer: Arc<dyn Tokenizer>,
    ) -> Engine {
        let shape = Shape {
            vocab_size,
            ..self.shape
        };
        let numbers = |shape: &Shape| shapes::matrix_numbers(shape) as f64;
        let draft_share = match &draft {
            Some(_) => numbers(&named("BENCH_DRAFT", DRAFT).1) / numbers(&shape),
            None => 0.0,
        };
        let run = runner(shape, self.dtype, self.threads);
        Self::engine_of(run, (draft, draft_share), tokenizer)
    }

    fn engine_of(
        run: Box<dyn Run>,
        (draft, draft_share): (Option<Box<dyn Run>>, f64),
        tokenizer: Arc<dyn Tokenizer>,
    ) -> Engine {
        let options = EngineOptions {
            max_batch_size: SLOTS,
            seed: 1,
            prefill_chunk: None,
            max_step_ms: 100,
            max_waiting: 8,
            max_stall_ms: 1000,
            max_unread_ms: u32::MAX,
            stall_memory_bytes: 0,
            draft_share,
            eos_ids: vec![tokenizer.eos_id()],
        };
        let log = Arc::new(Log::new(None));
        Engine::with_draft(run, draft, tokenizer, options, log).unwrap()
    }

    /// Says what a case gave, and what others had of the machine since the one before.
    fn say(&mut self, case: &str, said: &str, figures: &[(&str, f64)]) {
        let others = self.busy.others();
        println!("{case}: {said} (others {:.0} %)", 100.0 * others);
        let mut row = serde_json::json!({
            "bench": "decoding", "model": self.model, "threads": self.threads,
            "weights": self.weights, "case": case, "rounds": self.rounds, "others": others,
        });
        for (name, figure) in figures {
            row[*name] = (*figure).into();
        }
        self.lines += &format!("{row}\n");
        self.busy = limits::Busy::now();
    }
}

fn variable(name: &str, default: &str) -> String {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.unwrap_or(default.to_owned())
}

fn number(name: &str, default: usize) -> usize {
    let value = variable(name, &default.to_string());
    let number = value.parse();
    number.unwrap_or_else(|_| panic!("{name}={value}: not a whole number"))
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
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

/// Seconds since the first call, of the process's own where it computes with one thread.
fn clock(threads: usize) -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    match threads {
        1 => limits::processor_seconds(),
        _ => START.elapsed().as_secs_f64(),
    }
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

/// The shape that a variable names.
fn named(variable_name: &str, default: &str) -> (String, Shape) {
    let name = variable(variable_name, default);
    let shape = shapes::named(&name);
    let shape = shape.unwrap_or_else(|| panic!("{variable_name}={name}: no such shape"));
    (name, shape)
}

/// A model in memory.
fn runner(shape: Shape, dtype: Dtype, threads: usize) -> Box<dyn Run> {
    let limits = Limits {
        page_size: PAGE,
        n_pages: SLOTS * MAX_SEQ_LEN / PAGE,
        max_positions: MAX_SEQ_LEN,
        max_rows: 256 + SLOTS,
        max_wanted: 32,
        vocab_size: shape.vocab_size,
    };
    let plan = Plan {
        shape,
        keep: Keep {
            asked: Some(dtype),
            floats: Dtype::Bf16,
        },
        kv_dtype: Dtype::Bf16,
        limits,
        max_seq_len: MAX_SEQ_LEN,
        precision: Precision::Full,
    };
    let (mut runner, _) = plan.make(threads);
    // Pages are in memory before anything is measured.
    let warm = Step {
        tokens: vec![5],
        slots: vec![0],
        spans: vec![Span {
            rows: 0..1,
            kind: RowKind::Prefill,
            position: 0,
            pages: 0..1,
        }],
        pages: vec![0],
        wanted: vec![0],
        ..Step::default()
    };
    runner.run(&warm, Choices::NONE).unwrap();
    Box::new(runner)
}

/// A draft model that answers from the script.
fn draft_model(bench: &Bench, script: &Arc<Mutex<Script>>) -> Box<dyn Run> {
    let small = Shape {
        vocab_size: bench.shape.vocab_size,
        ..named("BENCH_DRAFT", DRAFT).1
    };
    Box::new(Scripted {
        run: runner(small, bench.dtype, bench.threads),
        threads: bench.threads,
        script: script.clone(),
        picks: Vec::new(),
        next: Vec::new(),
    })
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

fn main() {
    let (model, shape) = named("BENCH_MODEL", "1b");
    let weights = variable("BENCH_DTYPE", "bf16");
    let all = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Int8,
        Dtype::Int4,
    ];
    let dtype = all.into_iter().find(|dtype| dtype.name() == weights);
    let dtype = dtype.unwrap_or_else(|| panic!("BENCH_DTYPE={weights}: no such format"));
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
    let only = variable("BENCH_ONLY", "");
    let wanted = |name: &str| only.is_empty() || only.split(' ').any(|word| name.contains(word));
    cases.retain(|case| wanted(&case.name));
    for case in &mut cases {
        case.tokens = number("BENCH_TOKENS", case.tokens);
    }
    let mut bench = Bench {
        shape,
        dtype,
        threads: number("BENCH_THREADS", usable_threads()),
        rounds: number("BENCH_ROUNDS", 5).max(1),
        busy: limits::Busy::now(),
        lines: String::new(),
        model,
        weights,
    };
    println!(
        "{}, {} threads, {} weights, temperature 1, {} rounds",
        bench.model, bench.threads, bench.weights, bench.rounds
    );
    // Of a handle with a draft model, which only some of the cases ask.
    if !cases.is_empty() {
        let script = Arc::new(Mutex::new(Script::default()));
        let make = |bench: &Bench| {
            let (draft, n) = (draft_model(bench, &script), bench.shape.vocab_size);
            bench.engine(Some(draft), n, Arc::new(Letters(n)))
        };
        let mut engine = make(&bench);
        for case in &cases {
            speculate(&mut bench, &mut engine, make, &script, case);
        }
    }
    if wanted("beams") || wanted("samples") {
        let engine = strategies::plain_engine(&bench);
        if wanted("beams") {
            strategies::beams(&mut bench, &engine);
        }
        if wanted("samples") {
            strategies::samples(&mut bench, &engine);
        }
    }
    if wanted("steps") {
        steps::steps(&mut bench);
    }
    if wanted("masks") {
        masks::masks(&mut bench);
    }
    record::append(&bench.lines);
}
