//! What ranks cost, or gain: `cargo bench --bench ranks -- <directory> [nodes] [rounds] [streams]`.
//!
//! Compares one rank that has all threads with a rank on each NUMA node (`0,0` by default: two
//! ranks on node 0, which gain nothing and show the cost). Both have the same number of threads in
//! all, and take turns in one process. Prints medians of prefill of 512 and of decode, in tokens/s.
//! `BENCH_DTYPE` (default: as stored) is the type that weights are converted to.

use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::{BuildOptions, Device, Dtype, Llama, Token};
use std::path::Path;
use std::time::Instant;

const PROMPT: usize = 512;
const GENERATED: usize = 48;

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let Some(dir) = arguments.first() else {
        return println!(
            "usage: cargo bench --bench ranks -- <directory> [nodes] [rounds] [streams]"
        );
    };
    let argument = |i: usize, default: &str| arguments.get(i).map_or(default, |a| a).to_owned();
    let nodes = argument(1, "0,0");
    let nodes: Vec<usize> = nodes
        .split(',')
        .map(|node| node.parse().expect("a list of nodes"))
        .collect();
    let rounds: usize = argument(2, "7").parse().expect("a number of rounds");
    let streams: usize = argument(3, "1").parse().expect("a number of streams");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = nodes.len();
    let build = |devices: Vec<usize>, n_threads: usize| {
        let asked = std::env::var("BENCH_DTYPE").unwrap_or_default();
        let weights_dtype = Dtype::named(&asked);
        assert!(
            asked.is_empty() || weights_dtype.is_some(),
            "BENCH_DTYPE={asked}: no such format"
        );
        let options = BuildOptions {
            device: Device::Cpu,
            max_seq_len: PROMPT + 64,
            max_batch_size: streams,
            n_threads,
            devices,
            weights_dtype,
            ..BuildOptions::default()
        };
        Llama::build(Path::new(dir), None, &options, &mut |_| true).unwrap()
    };
    let per_rank = (threads / ranks).max(1);
    let handles = [build(Vec::new(), per_rank * ranks), build(nodes, per_rank)];
    let mut figures = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
    for round in 0..rounds {
        for (handle, [prefill, decode]) in handles.iter().zip(&mut figures) {
            prefill.push(speed(handle, round, 1, PROMPT, 1));
            decode.push(speed(handle, round, streams, 4, GENERATED));
        }
    }
    let median = |speeds: &[f64]| {
        let mut speeds = speeds.to_vec();
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    };
    for (i, what) in ["prefill of 512", "decode"].into_iter().enumerate() {
        let [one, several] = [0, 1].map(|handle: usize| median(&figures[handle][i]));
        println!(
            "{what}: 1 rank x {} threads {one:.1}, {ranks} ranks x {per_rank} {several:.1} tokens/s: \
             {:.3}",
            per_rank * ranks,
            several / one
        );
    }
}

/// Tokens a second: of the prompts if one token is generated, else of what is generated. Prompts
/// differ in every round, so that no page is found in the prefix cache.
fn speed(handle: &Llama, round: usize, streams: usize, len: usize, generated: usize) -> f64 {
    let token = |i: usize| 3 + ((i * 7919 + round * 977) % 29_000) as Token;
    let prompt = |stream: usize| Prompt::Tokens((0..len).map(|i| token(i + 31 * stream)).collect());
    let options = GenerateOptions {
        temperature: 0.0,
        ignore_eos: true,
        max_gen_len: Some(generated),
        ..GenerateOptions::default()
    };
    let start = Instant::now();
    let prompts = (0..streams).map(prompt).collect();
    handle.generate(prompts, options, &mut |_| true).unwrap();
    let tokens = streams * if generated == 1 { len } else { generated };
    tokens as f64 / start.elapsed().as_secs_f64()
}
