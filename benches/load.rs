//! From a checkpoint to its first token: `cargo bench --bench load -- <directory> [rounds]`.
//!
//! Every round is a separate process. It builds a handle, prefills 128 tokens, and prints how long
//! both took, how much memory it has then, and how much it had at most. Medians over the rounds,
//! with the range. The first round may find the files on disk only; the others find them in the
//! page cache. `BENCH_DTYPE` (default: as stored) is the type that weights are converted to.
//! `BENCH_RECORD` names a file that also gets the numbers as a line of JSON.

mod record;

use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::{BuildOptions, Dtype, Llama};
use std::path::Path;
use std::time::Instant;

const PROMPT: usize = 128;
/// What a round prints before its numbers.
const MARK: &str = "round:";

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["round", dir] => round(Path::new(dir)),
        [dir] => rounds(dir, 7),
        [dir, n] => rounds(dir, n.parse().expect("a number of rounds")),
        _ => println!("usage: cargo bench --bench load -- <directory> [rounds]"),
    }
}

/// A line of `/proc/self/status`, in MiB.
fn status(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

fn dtype() -> Option<Dtype> {
    use Dtype::{Bf16, F16, F32, Int4, Int8, Nf4};
    let value = std::env::var("BENCH_DTYPE").ok()?;
    let found = [F32, F16, Bf16, Int8, Int4, Nf4]
        .into_iter()
        .find(|dtype| dtype.name() == value);
    assert!(found.is_some(), "BENCH_DTYPE={value}: no such format");
    found
}

fn round(dir: &Path) {
    let start = Instant::now();
    let options = BuildOptions {
        max_seq_len: 512,
        weights_dtype: dtype(),
        ..BuildOptions::default()
    };
    let llama = Llama::build(dir, None, &options, &mut |_| true).expect("a model");
    let built = start.elapsed().as_secs_f64();
    let peak = status("VmHWM:");
    let vocab = llama.info().config.shape.vocab_size as i32;
    let prompt = (0..PROMPT as i32).map(|i| 3 + i * 7919 % (vocab - 3));
    let options = GenerateOptions {
        max_gen_len: Some(1),
        temperature: 0.0,
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    llama
        .generate(vec![Prompt::Tokens(prompt.collect())], options, &mut |_| {
            true
        })
        .expect("a token");
    let first = start.elapsed().as_secs_f64();
    let (resident, info) = (status("VmRSS:"), llama.info());
    let packed = (info.weight_bytes + info.kv_bytes) as f64 / (1 << 20) as f64;
    println!("{}, {}", info.device_name, info.weights_dtype);
    println!("{MARK} {built} {first} {resident} {peak} {packed}");
}

fn rounds(dir: &str, n: usize) {
    let program = std::env::current_exe().expect("this program");
    let mut all: Vec<Vec<f64>> = Vec::new();
    for i in 0..=n {
        let mut command = std::process::Command::new(&program);
        let out = command.args(["round", dir]).output().expect("a round");
        let text = String::from_utf8_lossy(&out.stdout);
        let Some((device, numbers)) = text.split_once(MARK) else {
            panic!("{}", String::from_utf8_lossy(&out.stderr));
        };
        let numbers = numbers.split_whitespace().map(|x| x.parse().unwrap());
        // The first round only warms the page cache.
        match i {
            0 => println!("{}", device.trim()),
            _ => all.push(numbers.collect()),
        }
    }
    let mut numbers = serde_json::json!({"bench": "load", "model": dir, "rounds": n});
    numbers["weights"] = match dtype() {
        Some(dtype) => dtype.name(),
        None => "as stored",
    }
    .into();
    let rows = [
        ("load, page cache warm", "s"),
        ("load to first token, prompt of 128", "s"),
        ("resident then", "MiB"),
        ("resident at most while loading", "MiB"),
        ("packed weights and KV pool", "MiB"),
    ];
    for (row, (name, unit)) in rows.into_iter().enumerate() {
        let mut values: Vec<f64> = all.iter().map(|round| round[row]).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        let median = values[values.len() / 2];
        println!("{name:36} {median:9.2} {unit:4} ({least:.2}-{most:.2})");
        numbers[name] = serde_json::json!({"median": median, "low": least, "high": most});
    }
    record::append(&format!("{numbers}\n"));
}
