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
//! That is in speculation.rs and scripted.rs.
//!
//! **The rest** is in strategies.rs (beams beside a batch, samples of one prompt beside one),
//! steps.rs and masks.rs.
//!
//! | variable | |
//! |---|---|
//! | `BENCH_MODEL` (1b), `BENCH_DTYPE` (bf16) | as in benches/cpu.rs |
//! | `BENCH_DRAFT` (160m) | the shape of the draft model: `160m:1` is its first layer |
//! | `BENCH_TOKENS` | of each text, instead of 256 to 1,000 |
//! | `BENCH_ROUNDS` (5), `BENCH_THREADS` (all) | |
//! | `BENCH_ONLY` | cases whose name contains one of these words: `copy`, `nothing`, `full`, `first`, `draft`, `beams`, `samples`, `steps`, `masks` |
//! | `BENCH_TOKENIZER` | a tokenizer's file, for `masks`: `scripts/llama3-tokenizer` fetches one of 128,000 ids |
//! | `BENCH_RECORD` | a file that gets the numbers of each case as a line of JSON, too |

mod limits;
mod masks;
mod model;
mod record;
mod scripted;
mod shapes;
mod speculation;
mod steps;
mod strategies;

use llamabi::backend::cpu::{Cpu, Precision, usable_threads};
use llamabi::backend::{Backend, Choices, Limits, RowKind, Run, Shape, Span, Step};
use llamabi::checkpoint::Keep;
use llamabi::engine::{Engine, EngineOptions};
use llamabi::log::Log;
use llamabi::tokenizer::{self, Bound, Encoded, Piece, Tokenizer};
use llamabi::{Dtype, Result, Token};
use model::Plan;
use std::sync::{Arc, LazyLock};
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

/// What is measured.
struct Bench {
    model: String,
    weights: String,
    shape: Shape,
    dtype: Dtype,
    threads: usize,
    rounds: usize,
    busy: limits::Busy,
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

    /// Says what a case gave, and what others had of the machine since the one before. Of a bench
    /// that is stopped, the cases before that are recorded.
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
        record::append(&format!("{row}\n"));
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

/// Seconds since the first call, of the process's own where it computes with one thread.
fn clock(threads: usize) -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    match threads {
        1 => limits::processor_seconds(),
        _ => START.elapsed().as_secs_f64(),
    }
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

fn main() {
    let (model, shape) = named("BENCH_MODEL", "1b");
    let weights = variable("BENCH_DTYPE", "bf16");
    let dtype = Dtype::named(&weights);
    let dtype = dtype.unwrap_or_else(|| panic!("BENCH_DTYPE={weights}: no such format"));
    let only = variable("BENCH_ONLY", "");
    let wanted = |name: &str| only.is_empty() || only.split(' ').any(|word| name.contains(word));
    let mut bench = Bench {
        shape,
        dtype,
        threads: number("BENCH_THREADS", usable_threads()),
        rounds: number("BENCH_ROUNDS", 5).max(1),
        busy: limits::Busy::now(),
        model,
        weights,
    };
    println!(
        "{}, {} threads, {} weights, temperature 1, {} rounds",
        bench.model, bench.threads, bench.weights, bench.rounds
    );
    speculation::speculation(&mut bench, wanted);
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
}
