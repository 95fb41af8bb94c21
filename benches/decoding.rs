//! What speculation is worth: `cargo bench --bench decoding`.
//!
//! A model of random weights, made in memory, behind the whole engine. Each case is generated with
//! and without drafts, in turns, and their texts must be equal. A random model repeats nothing of
//! its own, so the text that repeats is one that is expected: what it will say, with five changes.
//! It says the same whatever is expected. The draft model has the shape that is used with a model of
//! 1.1B, and computes all of it, but what it would say comes from a script that is right so often.
//! Medians of tokens per second count.
//!
//! | variable | |
//! |---|---|
//! | `BENCH_MODEL` (1b), `BENCH_DTYPE` (bf16) | as in benches/cpu.rs |
//! | `BENCH_ROUNDS` (5), `BENCH_THREADS` (all) | |
//! | `BENCH_ONLY` | cases whose name contains it: `copy`, `nothing`, `full`, `draft` |
//! | `BENCH_RECORD` | a file that gets the numbers as lines of JSON, too |

mod model;
mod record;
mod shapes;

use llamabi::backend::Limits;
use llamabi::backend::cpu::{Cpu, Precision, usable_threads};
use llamabi::backend::{Answer, Backend, Pick, RowKind, Run, Shape, Span, Step};
use llamabi::checkpoint::Keep;
use llamabi::engine::{
    Engine, EngineOptions, Event, GenerateOptions, Next, Prompt, Request, Speculation, Timings,
};
use llamabi::log::Log;
use llamabi::tokenizer::{Bound, Encoded, Piece, Tokenizer};
use llamabi::{Dtype, Result, Token};
use model::Plan;
use std::sync::{Arc, Mutex};
use std::time::Instant;

const SLOTS: usize = 8;
const MAX_SEQ_LEN: usize = 1024;
const PROMPT: usize = 32;
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
    fn encode_onto(&self, _: &str, _: &mut Vec<Token>, _: Bound<'_>) -> Result<Encoded> {
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
    /// The draft model, which is right so many times of ten.
    Draft(u64),
}

/// What the draft model says, which the bench knows beforehand.
#[derive(Default)]
struct Script {
    text: Vec<Token>,
    prompt_len: usize,
    right: u64,
}

/// A model that takes its time, and answers from a script; of one sequence.
struct Scripted {
    run: Box<dyn Run>,
    script: Arc<Mutex<Script>>,
    picks: Vec<Pick>,
    next: Vec<usize>,
}

impl Run for Scripted {
    fn submit(&mut self, step: &Step) -> Result<()> {
        self.next.clear();
        for span in &step.spans {
            let rows = span.rows.clone().zip(span.position + 1..);
            let wanted = rows.filter(|(row, _)| step.wanted.contains(&(*row as u32)));
            self.next.extend(wanted.map(|(_, next)| next));
        }
        self.run.submit(step)
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        self.run.collect()?;
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
                logit: 0.0,
                max: 0.0,
                total: 0,
                top: 0..0,
            });
        }
        Ok(Answer::Picks {
            picks: &self.picks,
            top: &[],
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
    /// Tokens per second without drafts, and with.
    rates: [Vec<f64>; 2],
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

/// The tokens of each sequence, and how many were generated per second.
fn run(engine: &Engine, case: &Case, options: &GenerateOptions) -> (Vec<Vec<Token>>, f64) {
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
                first.get_or_insert_with(Instant::now);
                tokens[event.index as usize].push(event.token);
            }
            Next::Event(_) => {}
            _ => break,
        }
    }
    let seconds = first.map_or(0.0, |first: Instant| first.elapsed().as_secs_f64());
    let n: usize = tokens.iter().map(Vec::len).sum();
    (tokens, (n - case.batch) as f64 / seconds)
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
    runner.run(&warm).unwrap();
    Box::new(runner)
}

/// A model, a draft model that answers from the script, and their engine.
fn engine(name: &str, dtype: Dtype, threads: usize, script: &Arc<Mutex<Script>>) -> Engine {
    let shape = shapes::named(name).unwrap_or_else(|| panic!("BENCH_MODEL={name}: no such shape"));
    let small = Shape {
        vocab_size: shape.vocab_size,
        ..shapes::llama_160m()
    };
    let n_tokens = shape.vocab_size;
    let draft = Box::new(Scripted {
        run: runner(small, dtype, threads),
        script: script.clone(),
        picks: Vec::new(),
        next: Vec::new(),
    });
    let options = EngineOptions {
        max_batch_size: SLOTS,
        seed: 1,
        prefill_chunk: None,
        max_step_ms: 100,
        max_waiting: 8,
        max_stall_ms: 1000,
        max_unread_ms: u32::MAX,
        stall_memory_bytes: 0,
        eos_ids: vec![2],
    };
    let log = Arc::new(Log::new(None));
    let (run, tokens) = (runner(shape, dtype, threads), Letters(n_tokens));
    Engine::with_draft(run, Some(draft), Arc::new(tokens), options, log).unwrap()
}

fn main() {
    let (model, weights) = (
        variable("BENCH_MODEL", "1b"),
        variable("BENCH_DTYPE", "bf16"),
    );
    let all = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Int8,
        Dtype::Int4,
    ];
    let dtype = all.into_iter().find(|dtype| dtype.name() == weights);
    let dtype = dtype.unwrap_or_else(|| panic!("BENCH_DTYPE={weights}: no such format"));
    let threads = number("BENCH_THREADS", usable_threads());
    let rounds = number("BENCH_ROUNDS", 5).max(1);
    let case = |name: &str, batch, tokens, guesses| Case {
        name: format!("{name}, batch {batch}"),
        batch,
        tokens,
        guesses,
        rates: [Vec::new(), Vec::new()],
    };
    let mut cases = vec![
        case("a copy with five changes", 1, 600, Guesses::Copy),
        case("a copy with five changes", 4, 600, Guesses::Copy),
        case("nothing repeats", 1, 512, Guesses::Own),
        case("nothing repeats", 4, 512, Guesses::Own),
        case("nothing repeats, full", SLOTS, 512, Guesses::Own),
        case("a draft model, 9 of 10 right", 1, 256, Guesses::Draft(9)),
        case("a draft model, 7 of 10 right", 1, 256, Guesses::Draft(7)),
        case("a draft model, 5 of 10 right", 1, 256, Guesses::Draft(5)),
        case("a draft model, never right", 1, 256, Guesses::Draft(0)),
    ];
    let only = variable("BENCH_ONLY", "");
    cases.retain(|case| case.name.contains(&only));
    println!("{model}, {threads} threads, {weights} weights, temperature 1");
    let script = Arc::new(Mutex::new(Script::default()));
    let engine = engine(&model, dtype, threads, &script);
    let mut lines = String::new();
    println!(
        "{:38} {:>9} {:>9} {:>7} {:>9} {:>9}",
        "", "tok/s", "drafts", "ratio", "drafted", "accepted"
    );
    for case in &mut cases {
        let plain = GenerateOptions {
            temperature: 1.0,
            top_p: 1.0,
            seed: 7,
            ignore_eos: true,
            max_gen_len: Some(case.tokens),
            ..GenerateOptions::default()
        };
        let (want, _) = run(&engine, case, &plain);
        let drafts = GenerateOptions {
            speculation: match case.guesses {
                Guesses::Draft(_) => Speculation::Draft,
                _ => Speculation::NGram,
            },
            predicted: match case.guesses {
                Guesses::Copy => want.iter().flat_map(|tokens| changed(tokens)).collect(),
                _ => Vec::new(),
            },
            ..plain.clone()
        };
        if let Guesses::Draft(right) = case.guesses {
            *script.lock().unwrap() = Script {
                text: want[0].clone(),
                prompt_len: PROMPT,
                right,
            };
        }
        let before = engine.timings();
        for _ in 0..rounds {
            for (at, options) in [&plain, &drafts].into_iter().enumerate() {
                let (got, rate) = run(&engine, case, options);
                assert!(got == want, "{}: another text", case.name);
                case.rates[at].push(rate);
            }
        }
        let Timings {
            drafted_tokens,
            accepted_tokens,
            ..
        } = engine.timings();
        let each = |now: u64, then: u64| (now - then) / rounds as u64;
        let drafted = each(drafted_tokens, before.drafted_tokens);
        let accepted = each(accepted_tokens, before.accepted_tokens);
        let [off, on] = [median(&case.rates[0]), median(&case.rates[1])];
        println!(
            "{:38} {off:9.1} {on:9.1} {:6.2}x {drafted:9} {accepted:9}",
            case.name,
            on / off
        );
        let row = serde_json::json!({
            "bench": "decoding", "model": model, "threads": threads, "weights": weights,
            "case": case.name, "batch": case.batch, "tokens": case.tokens, "rounds": rounds,
            "tokens_s": off, "with_drafts": on, "ratio": on / off,
            "drafted": drafted, "accepted": accepted,
        });
        lines += &format!("{row}\n");
    }
    record::append(&lines);
}
