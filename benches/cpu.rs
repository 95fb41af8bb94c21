//! The CPU backend against this machine's own limits: `cargo bench --bench cpu`.
//!
//! A model of random weights, made in memory. Only the backend runs, without engine and sampler.
//! Weights are read once per decode step, and K and V once per sequence, so decode is counted in
//! bytes per second against the read bandwidth. Prefill is counted in multiply-adds against the
//! peak of bfloat16 tiles if the tier has them, otherwise of float32. Rounds are interleaved, and
//! every round measures the limits too. Medians count, and shares are shares of the limit's median;
//! the best round and the middle half of the rounds are printed beside them. Rounds in which other
//! programs had more than 5 % of the processors do not count, except the three quietest.
//!
//! | variable | |
//! |---|---|
//! | `BENCH_MODEL` (1b) | the shape: 160m, 1b, 3b, 7b, or 7b:8 for the first 8 layers of it |
//! | `BENCH_DTYPE` (bf16) | of weights: any but fp8 |
//! | `BENCH_KV` (bf16) | of the cache: f32, f16, bf16, int8 |
//! | `BENCH_PRECISION` (full) | full, as-prompts; auto or fast, of a handle for the largest batch |
//! | `BENCH_SECONDS` (60) | how long rounds go on; at least three do |
//! | `BENCH_THREADS` (all) | |
//! | `BENCH_BATCHES` (1 2 4 8 16), `BENCH_CONTEXTS` (0 512 2048) | the cases of decode |
//! | `BENCH_SHARED` (none) | also decode with so many first tokens, whole pages, that all have in common |
//! | `BENCH_PROMPTS` (32 128 512 2048) | the cases of prefill |
//! | `BENCH_ONLY` | cases whose name contains it: `batch 1,`, `context 0`, `prefill of 512` |
//! | `BENCH_RECORD` | a file that gets the numbers as lines of JSON, too |
//!
//! `LLAMABI_CPU_TIER` changes the instruction set. What does not fit into memory is left out, and
//! the output says so. `cargo bench --bench cpu -- limits` measures the limits once for every line
//! that it reads (benches/peers).

mod limits;
mod model;
mod record;
mod shapes;

use limits::median;
use llamabi::Dtype;
use llamabi::backend::cpu::{Cpu, Precision, available_bytes, usable_threads};
use llamabi::backend::*;
use llamabi::checkpoint::Keep;
use model::Plan;
use std::time::Instant;

const MAX_ROWS: usize = 512;
/// Rounds in which other programs had more of the processors do not count.
const MOST_OTHERS: f64 = 0.05;
const PAGE: usize = <Cpu as Backend>::PAGE_SIZE;
/// Number of layers of a model that does not fit into memory.
const FEWER_LAYERS: usize = 8;

struct Case {
    name: String,
    kind: RowKind,
    batch: usize,
    /// Tokens before the step.
    context: usize,
    /// New tokens of each sequence.
    rows: usize,
    /// Pages that all sequences have in common.
    shared: usize,
    seconds: Vec<f64>,
}

impl Case {
    fn new(kind: RowKind, batch: usize, context: usize, rows: usize) -> Case {
        let name = match kind {
            RowKind::Decode => format!("decode, batch {batch}, context {context}"),
            RowKind::Prefill => format!("prefill of {rows}"),
        };
        Case {
            name,
            kind,
            batch,
            context,
            rows,
            shared: 0,
            seconds: Vec::new(),
        }
    }

    /// The same with the first `tokens` in common.
    fn sharing(mut self, tokens: usize) -> Case {
        self.name = format!("{}, {tokens} shared", self.name);
        self.shared = tokens / PAGE;
        self
    }

    fn all() -> Vec<Case> {
        let mut cases = Vec::new();
        for batch in numbers("BENCH_BATCHES", "1 2 4 8 16") {
            for context in numbers("BENCH_CONTEXTS", "0 512 2048") {
                let case = || Case::new(RowKind::Decode, batch, context, 1);
                cases.push(case());
                let shared = numbers("BENCH_SHARED", "").into_iter();
                let some = shared.filter(|&n| batch > 1 && n <= context);
                cases.extend(some.map(|n| case().sharing(n)));
            }
        }
        for rows in numbers("BENCH_PROMPTS", "32 128 512 2048") {
            cases.push(Case::new(RowKind::Prefill, 1, 0, rows));
        }
        cases
    }

    fn pages_each(&self) -> usize {
        (self.context + self.rows).div_ceil(PAGE)
    }

    fn pages(&self) -> usize {
        self.shared + self.batch * (self.pages_each() - self.shared)
    }

    fn tokens(&self) -> usize {
        self.batch * self.rows
    }

    /// The steps of a case, one after the other; only the last wants logits.
    fn steps(&self) -> Vec<Step> {
        let end = self.context + self.rows;
        let firsts = (self.context..end).step_by(MAX_ROWS);
        let step = |first| self.step(first, MAX_ROWS.min(end - first), first + MAX_ROWS >= end);
        firsts.map(step).collect()
    }

    /// A step with `rows` new tokens of each sequence from `position` on.
    fn step(&self, position: usize, rows: usize, last: bool) -> Step {
        let own = self.pages_each() - self.shared;
        let mut step = Step::default();
        for sequence in 0..self.batch {
            let first = step.tokens.len();
            let pages: Vec<u32> = (0..self.shared)
                .chain(self.shared + sequence * own..self.shared + (sequence + 1) * own)
                .map(|page| page as u32)
                .collect();
            for position in position..position + rows {
                step.tokens
                    .push(((position * 7919 + sequence) % 32000) as i32);
                step.slots
                    .push(pages[position / PAGE] * PAGE as u32 + (position % PAGE) as u32);
            }
            let first_page = step.pages.len();
            step.pages.extend(pages);
            step.spans.push(Span {
                rows: first..step.tokens.len(),
                kind: self.kind,
                position,
                pages: first_page..step.pages.len(),
            });
            if last {
                step.wanted.push(step.tokens.len() as u32 - 1);
            }
        }
        step
    }

    /// Bytes that decode reads, or operations of prefill.
    fn work(&self, plan: &Plan) -> f64 {
        let s = &plan.shape;
        match self.kind {
            RowKind::Decode => {
                let position = Cpu::page_bytes(s, plan.kv_dtype) as f64 / PAGE as f64;
                let shared = self.shared * PAGE;
                let positions = shared + self.batch * (self.context + 1 - shared);
                plan.matrix_bytes() as f64 + positions as f64 * position
            }
            RowKind::Prefill => {
                let (rows, head) = (self.rows as f64, (s.vocab_size * s.dim) as f64);
                let matrices = (shapes::matrix_numbers(s) as f64 - head) * rows + head;
                let attention = rows * (rows + 1.0) * (s.q_dim() * s.n_layers) as f64;
                2.0 * (matrices + attention)
            }
        }
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// The value of an environment variable.
fn variable(name: &str, default: &str) -> String {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.unwrap_or(default.to_owned())
}

fn number(name: &str, default: f64) -> f64 {
    let value = variable(name, &default.to_string());
    let number = value.parse();
    number.unwrap_or_else(|_| panic!("{name}={value}: not a number"))
}

fn numbers(name: &str, default: &str) -> Vec<usize> {
    // An empty list is allowed.
    let value = std::env::var(name).unwrap_or(default.to_owned());
    let numbers: Result<_, _> = value.split_whitespace().map(str::parse).collect();
    numbers.unwrap_or_else(|_| panic!("{name}={value}: not whole numbers"))
}

fn dtype(name: &str) -> Dtype {
    let value = variable(name, "bf16");
    let found = Dtype::named(&value).filter(|&dtype| dtype != Dtype::Fp8);
    found.unwrap_or_else(|| panic!("{name}={value}: no such format"))
}

/// What fits into memory of the model and of the cases; prints what does not.
fn plan(name: &str, cases: &mut Vec<Case>) -> Plan {
    let shape = shapes::named(name).unwrap_or_else(|| panic!("BENCH_MODEL={name}: no such shape"));
    let kv_dtype = dtype("BENCH_KV");
    let limits = Limits {
        page_size: PAGE,
        n_pages: 0,
        max_positions: PAGE * cases.iter().map(Case::pages_each).max().unwrap_or(0).max(8),
        max_rows: MAX_ROWS,
        max_wanted: cases.iter().map(|case| case.batch).max().unwrap_or(1),
        vocab_size: shape.vocab_size,
    };
    let sequences = limits.max_wanted;
    let mut plan = Plan {
        keep: Keep {
            asked: Some(dtype("BENCH_DTYPE")),
            floats: Dtype::Bf16,
        },
        kv_dtype,
        limits,
        max_seq_len: PAGE * cases.iter().map(Case::pages_each).max().unwrap_or(0).max(8),
        precision: match &*variable("BENCH_PRECISION", "full") {
            "full" => Precision::Full,
            "as-prompts" => Precision::AsPrompts,
            "auto" => Precision::Auto(sequences),
            "fast" => Precision::Fast(sequences),
            other => panic!("BENCH_PRECISION={other}: not full, as-prompts, auto or fast"),
        },
        shape,
    };
    // A tenth is left to others; the rest is what quantising needs.
    let room = (available_bytes() / 10 * 9).saturating_sub(1 << 30);
    let layers = plan.shape.n_layers;
    if plan.bytes() > room && layers > FEWER_LAYERS {
        plan.shape.n_layers = FEWER_LAYERS;
        println!(
            "memory: {FEWER_LAYERS} of the {layers} layers; every figure below is of these alone"
        );
    }
    loop {
        plan.limits.n_pages = cases.iter().map(Case::pages).max().unwrap_or(0).max(8);
        if plan.bytes() <= room || cases.is_empty() {
            return plan;
        }
        let most = plan.limits.n_pages;
        cases.retain(|case| {
            let fits = case.pages() < most;
            if !fits {
                println!("memory: without {}", case.name);
            }
            fits
        });
    }
}

fn main() {
    let threads = number("BENCH_THREADS", usable_threads() as f64) as usize;
    let mut limits = limits::Limits::new(threads);
    if std::env::args().any(|argument| argument == "limits") {
        println!("ready");
        for _ in std::io::stdin().lines() {
            limits.measure();
            let (read, peak) = (limits.read.last(), limits.peak.last());
            println!("{}", serde_json::json!({"read": read, "peak": peak}));
        }
        return;
    }
    let model = variable("BENCH_MODEL", "1b");
    let mut cases = Case::all();
    let only = variable("BENCH_ONLY", "");
    cases.retain(|case| case.name.contains(&only));
    println!(
        "{model}, {threads} threads, {} weights, {} cache, {} precision",
        dtype("BENCH_DTYPE"),
        dtype("BENCH_KV"),
        variable("BENCH_PRECISION", "full")
    );
    let plan = plan(&model, &mut cases);
    let (mut runner, tier) = plan.make(threads);
    // Fills the whole cache with real numbers, so that attention behaves as it would.
    let first = Case::new(RowKind::Prefill, 1, 0, 8 * PAGE);
    runner.run(&first.steps()[0], Choices::NONE).unwrap();
    let pages = plan.limits.n_pages as u32;
    let pairs: Vec<(u32, u32)> = (8..pages).map(|page| (page % 8, page)).collect();
    runner.copy_pages(&pairs).unwrap();
    let resident = resident().saturating_sub(limits.bytes());
    println!(
        "planned {:.1} MB with cache and scratch, resident {:.1} MB",
        plan.bytes() as f64 / 1e6,
        resident as f64 / 1e6
    );
    let steps: Vec<Vec<Step>> = cases.iter().map(Case::steps).collect();
    let start = Instant::now();
    let seconds = number("BENCH_SECONDS", 60.0);
    let mut others = Vec::new();
    while others.len() < 3 || start.elapsed().as_secs_f64() < seconds {
        let busy = limits::Busy::now();
        limits.measure();
        // The first step after the limits is slower than those that follow: one stream of int8 had
        // 20 tokens/s in it, and 25 in the next.
        if let Some(first) = steps.first() {
            runner.run(&first[0], Choices::NONE).unwrap();
        }
        for (case, steps) in cases.iter_mut().zip(&steps) {
            let start = Instant::now();
            for step in steps {
                runner.run(step, Choices::NONE).unwrap();
            }
            case.seconds.push(start.elapsed().as_secs_f64());
        }
        others.push(busy.others());
    }
    let mut counted: Vec<usize> = (0..others.len()).collect();
    counted.sort_by(|&a, &b| others[a].total_cmp(&others[b]));
    let quiet = others.iter().filter(|&&share| share <= MOST_OTHERS);
    counted.truncate(quiet.count().max(3));
    let rounds = counted.len();
    let of_counted = |values: &[f64]| -> Vec<f64> { counted.iter().map(|&i| values[i]).collect() };
    let (read, peak) = (
        median(&of_counted(&limits.read)),
        median(&of_counted(&limits.peak)),
    );
    println!(
        "{rounds} of {} rounds count, others had {:.0} % of the processors at most; reading {:.1} GB/s, {} {:.2} TFLOP/s",
        others.len(),
        100.0 * of_counted(&others).into_iter().fold(0.0, f64::max),
        read / 1e9,
        limits.peak_name(),
        peak / 1e12
    );
    println!(
        "{:34} {:>9} {:>9} {:>17} {:>16} {:>7}",
        "", "tok/s", "(best)", "(middle half)", "rate", "share"
    );
    let mut lines = String::new();
    for case in &mut cases {
        case.seconds = of_counted(&case.seconds);
        case.seconds.sort_by(f64::total_cmp);
        let tokens = |q: usize| case.tokens() as f64 / case.seconds[(rounds - 1) * q / 4];
        let (limit, unit, scale) = match case.kind {
            RowKind::Decode => (read, "GB/s", 1e9),
            RowKind::Prefill => (peak, "TFLOP/s", 1e12),
        };
        let rate = case.work(&plan) / case.tokens() as f64 * tokens(2);
        println!(
            "{:34} {:9.1} {:9.1} {:8.1}-{:8.1} {:8.3} {:7} {:6.0}%",
            case.name,
            tokens(2),
            tokens(0),
            tokens(3),
            tokens(1),
            rate / scale,
            unit,
            100.0 * rate / limit
        );
        let row = serde_json::json!({
            "bench": "cpu", "model": model, "layers": plan.shape.n_layers, "threads": threads,
            "weights": dtype("BENCH_DTYPE").name(), "kv": plan.kv_dtype.name(), "tier": tier,
            "case": case.name, "batch": case.batch, "context": case.context, "rows": case.rows,
            "tokens_s": tokens(2), "best": tokens(0), "low": tokens(3), "high": tokens(1), "rounds": rounds, "read_bytes_s": read, "peak_flop_s": peak,
            "rate": rate, "share": rate / limit, "matrix_bytes": plan.matrix_bytes(), "resident_bytes": resident,
        });
        lines += &format!("{row}\n");
    }
    record::append(&lines);
}
