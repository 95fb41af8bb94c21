//! The CPU backend against this machine's own limits: `cargo bench --bench cpu`.
//!
//! A 1.1B shape with random weights, made in memory through the backend's own interface; `BENCH_DTYPE`
//! (bf16; f32, f16, int8, int4, nf4) is their format, `BENCH_KV` (bf16) the cache's.
//! Weights are read once per decode step and K and V once per sequence, so decode is counted in
//! bytes per second against the measured read bandwidth; prefill in multiply-adds against the
//! measured peak, of bfloat16 tiles where the tier has them, else of float32. Rounds are interleaved.
//! Medians count, and shares are shares of the limit's median; the best round and the middle half of
//! the rounds are printed beside them, because other work on the machine only ever makes a round
//! slower. `BENCH_SECONDS` (60), `BENCH_THREADS` (all) and `BENCH_ONLY` (cases whose name contains it)
//! change the run, `LLAMABI_CPU_TIER` the instructions.

mod limits;
mod shapes;

use llamabi::Dtype;
use llamabi::backend::cpu::detect::Tier;
use llamabi::backend::cpu::{Cpu, usable_threads};
use llamabi::backend::*;
use llamabi::model::Runner;
use llamabi::model::names::Dtypes;
use llamabi::quant::{Quant, nf4::DoubleQuant};
use std::cell::Cell;
use std::time::Instant;

const MAX_ROWS: usize = 512;
const MAX_SEQ_LEN: usize = 2304;
const MAX_BATCH: usize = 16;

/// Random bfloat16 of about the size that a trained matrix of `cols` columns has, repeated.
fn random_bytes(cols: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let scale = 1.7 / (cols as f32).sqrt();
    let mut bytes = Vec::with_capacity(64 << 20);
    for _ in 0..(32 << 20) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let x = ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale;
        bytes.extend(((x.to_bits() >> 16) as u16).to_le_bytes());
    }
    bytes
}

/// What is made: how, and how many bytes of it are multiplied with.
struct Maker<'a> {
    cpu: &'a Cpu,
    source: &'a [u8],
    dtypes: Dtypes,
    bytes: Cell<u64>,
}

impl Maker<'_> {
    fn matrix(&self, parts: &[usize], cols: usize, dtype: Dtype) -> <Cpu as Backend>::Mat {
        let (cpu, source) = (self.cpu, self.source);
        let spec = MatSpec {
            parts: parts.to_vec(),
            cols,
            dtype,
            bias: false,
            usage: MatUse::Product,
        };
        self.bytes.set(self.bytes.get() + Cpu::mat_bytes(&spec));
        match dtype.quant() {
            None => floats(cpu, source, &spec),
            Some(quant) => quantised(cpu, source, &spec, quant),
        }
    }

    fn layer(&self, parts: &[usize], cols: usize) -> <Cpu as Backend>::Mat {
        self.matrix(parts, cols, self.dtypes.layers)
    }
}

/// The same for every part.
fn quantised(cpu: &Cpu, source: &[u8], spec: &MatSpec, quant: Quant) -> <Cpu as Backend>::Mat {
    let cols = spec.cols;
    let mut mat = cpu.new_mat(spec).expect("memory for the weights");
    let rows = *spec.parts.iter().max().expect("a part");
    let values = source.as_chunks().0.iter().cycle().take(rows * cols);
    let values: Vec<f32> = values
        .map(|&b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
        .collect();
    let mut codes = vec![0; rows * quant.code_bytes(cols)];
    let mut scales = vec![0.0; rows * quant.scales(cols)];
    cpu.quantise(quant, cols, &values, &mut codes, &mut scales);
    let scales = match quant {
        Quant::Nf4 => DoubleQuant::new(&scales).unwrap().scales().unwrap(),
        _ => scales
            .iter()
            .map(|&s| half::f16::from_f32(s).to_bits())
            .collect(),
    };
    for (part, &rows) in spec.parts.iter().enumerate() {
        for data in [
            QuantData::Codes(&codes[..rows * quant.code_bytes(cols)]),
            QuantData::Scales(&scales[..rows * quant.scales(cols)]),
        ] {
            let (row, order) = (0, RowOrder::AsStored);
            cpu.pack_quantised(
                &mut mat,
                &QuantBlock {
                    part,
                    row,
                    order,
                    data,
                },
            );
        }
    }
    mat
}

fn floats(cpu: &Cpu, source: &[u8], spec: &MatSpec) -> <Cpu as Backend>::Mat {
    let cols = spec.cols;
    let mut mat = cpu.new_mat(spec).expect("memory for the weights");
    for (part, &rows) in spec.parts.iter().enumerate() {
        let slab = source.len() / (2 * cols);
        for row in (0..rows).step_by(slab) {
            let n = slab.min(rows - row);
            cpu.pack(
                &mut mat,
                &Block {
                    part,
                    row,
                    col: 0,
                    cols,
                    order: RowOrder::AsStored,
                    dtype: Dtype::Bf16,
                    bytes: &source[..n * cols * 2],
                },
            );
        }
    }
    mat
}

/// A model, and the bytes of its matrices that every token is multiplied with.
fn runner(shape: &Shape, threads: usize, dtypes: Dtypes, kv_dtype: Dtype) -> (Runner<Cpu>, u64) {
    let half = shape.head_dim / 2;
    let angle = |i: usize| (i / half) as f64 * 10000f64.powf(-((i % half) as f64) / half as f64);
    let rope = RopeTable {
        cos: (0..MAX_SEQ_LEN * half)
            .map(|i| angle(i).cos() as f32)
            .collect(),
        sin: (0..MAX_SEQ_LEN * half)
            .map(|i| angle(i).sin() as f32)
            .collect(),
    };
    let cpu = Cpu::new(shape, rope, threads, MAX_ROWS).expect("a backend");
    println!(
        "{}, {} weights, {kv_dtype} cache",
        cpu.description(),
        dtypes.layers
    );
    let source = random_bytes(shape.dim);
    let start = Instant::now();
    let ones = vec![1.0f32; shape.dim];
    let norm = || cpu.new_vector(&ones).expect("memory");
    let (q, kv) = (shape.q_dim(), shape.kv_dim());
    let maker = Maker {
        cpu: &cpu,
        source: &source,
        dtypes,
        bytes: Cell::new(0),
    };
    let layers = (0..shape.n_layers).map(|index| Layer {
        index,
        attention_norm: norm(),
        wqkv: maker.layer(&[q, kv, kv], shape.dim),
        wo: maker.layer(&[shape.dim], q),
        ffn_norm: norm(),
        w13: maker.layer(&[shape.ffn_dim; 2], shape.dim),
        w2: maker.layer(&[shape.dim], shape.ffn_dim),
    });
    let table = MatSpec {
        parts: vec![shape.vocab_size],
        cols: shape.dim,
        dtype: dtypes.embedding,
        bias: false,
        usage: MatUse::Lookup,
    };
    let weights = Weights {
        layers: layers.collect(),
        embedding: floats(&cpu, &source, &table),
        norm: norm(),
        head: Some(maker.matrix(&[shape.vocab_size], shape.dim, dtypes.head)),
    };
    let seconds = start.elapsed().as_secs_f64();
    let numbers = (shapes::matrix_numbers(shape) + shape.vocab_size * shape.dim) as f64;
    println!(
        "packing from bf16: {seconds:.2} s, {:.1} GB/s",
        2.0 * numbers / seconds / 1e9
    );
    let bytes = maker.bytes.get();
    drop(source);
    let page_size = <Cpu as Backend>::PAGE_SIZE;
    let limits = Limits {
        page_size,
        n_pages: MAX_BATCH * MAX_SEQ_LEN / page_size,
        max_rows: MAX_ROWS,
        max_wanted: MAX_BATCH,
        vocab_size: shape.vocab_size,
    };
    let planned = bytes
        + Cpu::mat_bytes(&table)
        + limits.n_pages as u64 * Cpu::page_bytes(shape, kv_dtype)
        + Runner::<Cpu>::scratch_bytes(shape, &limits);
    println!(
        "planned {:.1} MB with the pool and scratch",
        planned as f64 / 1e6
    );
    let runner = Runner::new(cpu, weights, shape, kv_dtype, limits).expect("memory for the pool");
    (runner, bytes)
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// `rows` new tokens of each of `batch` sequences at `context`.
fn step(kind: RowKind, batch: usize, context: usize, rows: usize) -> Step {
    let page_size = <Cpu as Backend>::PAGE_SIZE;
    let pages_each = MAX_SEQ_LEN / page_size;
    let mut step = Step::default();
    for sequence in 0..batch {
        let first = step.tokens.len();
        for position in context..context + rows {
            step.tokens
                .push(((position * 7919 + sequence) % 32000) as i32);
            step.slots
                .push((sequence * pages_each * page_size + position) as u32);
        }
        let pages = step.pages.len();
        step.pages
            .extend((sequence * pages_each) as u32..((sequence + 1) * pages_each) as u32);
        step.spans.push(Span {
            rows: first..step.tokens.len(),
            kind,
            position: context,
            pages: pages..step.pages.len(),
        });
        step.wanted.push(step.tokens.len() as u32 - 1);
    }
    step
}

struct Case {
    name: String,
    /// One after the other; only the last wants logits.
    steps: Vec<Step>,
    tokens: usize,
    /// Bytes read, or operations.
    work: f64,
    memory: bool,
    seconds: Vec<f64>,
}

/// A number from the environment.
fn number(name: &str, default: f64) -> f64 {
    std::env::var(name)
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(default)
}

/// A format from the environment.
fn dtype(name: &str) -> Dtype {
    let value = std::env::var(name).unwrap_or("bf16".into());
    let known = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::Int8,
        Dtype::Int4,
        Dtype::Nf4,
    ];
    let found = known.into_iter().find(|dtype| dtype.name() == value);
    found.unwrap_or_else(|| panic!("{name}={value}: no such format"))
}

fn main() {
    let budget = number("BENCH_SECONDS", 60.0);
    let threads = number("BENCH_THREADS", usable_threads() as f64) as usize;
    let bandwidth = limits::read_bandwidth(threads);
    let peak = limits::fma_peak(threads);
    println!(
        "read bandwidth {:.1} GB/s (median {:.1})",
        bandwidth.best / 1e9,
        bandwidth.median / 1e9
    );
    println!(
        "f32 peak {:.3} TFLOP/s (median {:.3})",
        peak.best / 1e12,
        peak.median / 1e12
    );
    let peak = match Tier::choose().expect("a tier").amx() {
        Some(amx) => {
            let peak = limits::tile_peak(threads, amx);
            println!(
                "bf16 tile peak {:.3} TFLOP/s (median {:.3})",
                peak.best / 1e12,
                peak.median / 1e12
            );
            peak
        }
        None => peak,
    };
    let shape = shapes::llama_1b();
    let dtypes = Dtypes::new(dtype("BENCH_DTYPE"), Dtype::Bf16);
    let kv_dtype = dtype("BENCH_KV");
    let (mut runner, weights) = runner(&shape, threads, dtypes, kv_dtype);
    // Some real contents for the whole cache, so that attention is what it would be.
    runner.run(&step(RowKind::Prefill, 1, 0, 128)).unwrap();
    let pages = (MAX_BATCH * MAX_SEQ_LEN / <Cpu as Backend>::PAGE_SIZE) as u32;
    let pairs: Vec<(u32, u32)> = (8..pages).map(|page| (page % 8, page)).collect();
    runner.copy_pages(&pairs).unwrap();
    println!("resident {:.1} MB", resident() as f64 / 1e6);
    let weights = weights as f64;
    let kv_position = Cpu::page_bytes(&shape, kv_dtype) as f64 / <Cpu as Backend>::PAGE_SIZE as f64;
    let mut cases = Vec::new();
    for batch in [1, 2, 4, 8, 16] {
        for context in [0, 512, 2048] {
            cases.push(Case {
                name: format!("decode, batch {batch}, context {context}"),
                steps: vec![step(RowKind::Decode, batch, context, 1)],
                tokens: batch,
                work: weights + (batch * (context + 1)) as f64 * kv_position,
                memory: true,
                seconds: Vec::new(),
            });
        }
    }
    for rows in [32, 128, 512, 2048] {
        let head = (shape.vocab_size * shape.dim) as f64;
        let matrices = (shapes::matrix_numbers(&shape) as f64 - head) * rows as f64 + head;
        let attention = (rows * (rows + 1) / 2 * 2 * shape.q_dim() * shape.n_layers) as f64;
        cases.push(Case {
            name: format!("prefill of {rows}"),
            steps: (0..rows)
                .step_by(MAX_ROWS)
                .map(|first| {
                    let mut step = step(RowKind::Prefill, 1, first, MAX_ROWS.min(rows - first));
                    if first + MAX_ROWS < rows {
                        step.wanted.clear();
                    }
                    step
                })
                .collect(),
            tokens: rows,
            work: 2.0 * (matrices + attention),
            memory: false,
            seconds: Vec::new(),
        });
    }
    if let Ok(only) = std::env::var("BENCH_ONLY") {
        cases.retain(|case| case.name.contains(&only));
    }
    let start = Instant::now();
    let mut round = 0;
    while round < 3 || start.elapsed().as_secs_f64() < budget {
        for case in &mut cases {
            let start = Instant::now();
            for step in &case.steps {
                runner.run(step).unwrap();
            }
            case.seconds.push(start.elapsed().as_secs_f64());
        }
        round += 1;
    }
    println!(
        "{:34} {:>9} {:>9} {:>17} {:>16} {:>7}",
        "", "tok/s", "(best)", "(middle half)", "rate", "share"
    );
    for case in &mut cases {
        case.seconds.sort_by(f64::total_cmp);
        let tokens = |q: usize| case.tokens as f64 / case.seconds[(case.seconds.len() - 1) * q / 4];
        let (limit, unit, scale) = if case.memory {
            (bandwidth.median, "GB/s", 1e9)
        } else {
            (peak.median, "TFLOP/s", 1e12)
        };
        let rate = case.work / case.tokens as f64 * tokens(2);
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
    }
    println!("{round} rounds");
}
