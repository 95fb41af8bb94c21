//! Quantised weights and the int8 cache on an emulated device: the CPU backend's logits within what rounding
//! explains, and law four to the last bit. With `LLAMABI_TEST_DEVICE=cuda` on a real one.

mod common;
mod emu;

use common::reference;
use emu::Emu;
use emu::real;
use llamabi::backend::cpu::Cpu;
use llamabi::backend::cpu::detect::Tier;
use llamabi::backend::gpu::Gpu;
use llamabi::backend::{Backend, Limits, RopeTable, RowKind, Run, Shape, Span, Step};
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::Sequence;
use llamabi::model::names::Dtypes;
use llamabi::model::weights::{LoadControl, load};
use llamabi::model::{Config, Runner, quantised, rope};
use llamabi::quant::Quant;
use llamabi::{BuildOptions, Dtype, Llama, Token};
use std::path::Path;

const PAGE: usize = 16;
const POSITIONS: usize = 128;

fn prompt(n: i32, seed: i32) -> Vec<Token> {
    let token = |i: i32| 1 + (i * i * 31 + i * 17 + seed * 57) % 500;
    (0..n).map(token).collect()
}

/// A checkpoint on the backend that `open` makes.
fn runner<B: Backend + 'static>(
    dir: &str,
    weights: Dtype,
    kv: Dtype,
    open: impl FnOnce(&Shape, RopeTable, &Limits) -> B,
) -> Box<dyn Run> {
    let dir = reference(dir);
    let config = Config::read(&dir, 512).unwrap();
    let checkpoint = config.open(&dir).unwrap();
    let dtypes = Dtypes::choose(Some(weights), &checkpoint, &config);
    let limits = Limits {
        page_size: PAGE,
        n_pages: POSITIONS / PAGE,
        max_rows: POSITIONS,
        max_wanted: POSITIONS,
        vocab_size: config.shape.vocab_size,
    };
    let rope = rope::table(&config, POSITIONS).unwrap();
    let backend = open(&config.shape, rope, &limits);
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let weights = load(&backend, &checkpoint, &config, dtypes, &mut control).unwrap();
    let runner = Runner::new(backend, weights, &config.shape, kv, limits).unwrap();
    Box::new(runner)
}

/// In float32, with activations in 16 bits where rows are decoded.
fn on_cpu(dir: &str, weights: Dtype, kv: Dtype) -> Box<dyn Run> {
    runner(dir, weights, kv, |shape, rope, limits| {
        let tier = Tier::named("portable").unwrap();
        Cpu::with_tier(shape, rope, 1, limits.max_rows, tier).unwrap()
    })
}

fn on_gpu(dir: &str, weights: Dtype, kv: Dtype) -> Box<dyn Run> {
    match real::cuda() {
        Some(cuda) => runner(dir, weights, kv, |shape, rope, limits| {
            Gpu::new(cuda, shape, &rope, limits, weights, kv).unwrap()
        }),
        None => runner(dir, weights, kv, |shape, rope, limits| {
            Gpu::new(Emu::new(1 << 30, 1), shape, &rope, limits, weights, kv).unwrap()
        }),
    }
}

/// Logits of every row of one sequence, `cuts` saying how many rows of which kind each step has.
fn logits(runner: &mut dyn Run, tokens: &[Token], cuts: &[(usize, RowKind)]) -> Vec<f32> {
    let (mut all, mut position) = (Vec::new(), 0);
    // Not in order, as after some life.
    let pages: Vec<u32> = [3, 0, 7, 1, 6, 2, 5, 4].into();
    for &(n, kind) in cuts {
        let step = Step {
            tokens: tokens[position..position + n].to_vec(),
            slots: (position..position + n)
                .map(|p| pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32)
                .collect(),
            spans: vec![Span {
                rows: 0..n,
                kind,
                position,
                pages: 0..pages.len(),
            }],
            pages: pages.clone(),
            wanted: (0..n as u32).collect(),
            ..Step::default()
        };
        all.extend_from_slice(runner.run(&step).unwrap().logits());
        position += n;
    }
    all
}

/// The greatest distance, of the greatest logit.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let most = a.iter().fold(0f32, |m, x| m.max(x.abs()));
    let pairs = a.iter().zip(b);
    pairs.fold(0.0, |m: f32, (a, b)| {
        assert!(a.is_finite() && b.is_finite(), "{a} {b}");
        m.max((a - b).abs() / most)
    })
}

/// What rounding makes of logits, of the greatest: each product's input is off by at most 2^-11 of each number (f16),
/// and what four products a layer and the head add is independent, so that it grows with the root of their number.
/// (The CPU takes activations as 16-bit integers in decode, which is far less.)
fn rounding(dir: &str) -> f32 {
    let config = Config::read(&reference(dir), 512).unwrap();
    let products = 4 * config.shape.n_layers + 1;
    (products as f32).sqrt() / 2048.0
}

/// The greatest distances that steps of decoding, and a prompt before them, may have.
fn assert_close(dir: &str, weights: Dtype, kv: Dtype, decoded: f32, prefilled: f32) {
    let mut cpu = on_cpu(dir, weights, kv);
    let mut gpu = on_gpu(dir, weights, kv);
    let tokens = prompt(35, 1);
    let one = (1, RowKind::Decode);
    let cases = [
        (decoded, vec![one; 20]),
        (
            prefilled,
            [
                vec![(7, RowKind::Prefill), (25, RowKind::Prefill)],
                vec![one; 3],
            ]
            .concat(),
        ),
    ];
    for (tolerance, cuts) in cases {
        let want = logits(&mut *cpu, &tokens, &cuts);
        let apart = apart(&want, &logits(&mut *gpu, &tokens, &cuts));
        assert!(
            apart < tolerance,
            "{dir} {weights} {kv}: {apart}, not {tolerance}"
        );
    }
}

#[test]
fn logits_are_those_of_the_cpu() {
    for (dir, weights) in [
        ("gqa-f16-mp2/meta", Dtype::Int8),
        ("mha-f32/hf", Dtype::Int4),
        ("mha-f32/meta", Dtype::Nf4),
        // The embedding is the int8 head too.
        ("variants/tied", Dtype::Int4),
        ("variants/attn-bias", Dtype::Int8),
    ] {
        // The CPU has nf4's table as multiples of 1/1722 in decode: 1/3444 of the greatest weight, several times what f16
        // is off.
        let table = if weights == Dtype::Nf4 { 2e-3 } else { 0.0 };
        let decoded = rounding(dir);
        // Products of a prompt have their weights in f16, too.
        assert_close(dir, weights, Dtype::F32, decoded + table, 2.0 * decoded);
    }
}

/// A number on the edge between two codes may fall to either side, by a step of 1/127 of its vector's greatest: those
/// do that are nearer to the edge than they are off, so that a share of off / step of all numbers moves by a step, the
/// root of off * step on average. The greatest is some three times what a number usually is; twice for luck. In
/// float32 hardly any do.
#[test]
fn the_int8_cache_is_that_of_the_cpu() {
    for (dir, weights) in [
        ("gqa-bf16/meta", Dtype::F32),
        ("gqa-f16-mp2/meta", Dtype::F16),
        ("mha-f32/hf", Dtype::Int8),
    ] {
        let off = match weights {
            Dtype::F32 => 1e-6,
            _ => 1.0 / 2048.0,
        };
        let tolerance = 6.0 * (off / 127.0f32).sqrt();
        assert_close(dir, weights, Dtype::Int8, tolerance, tolerance);
    }
}

fn generate(llama: &Llama, prompts: &[Vec<Token>]) -> Vec<(Vec<Token>, Vec<u32>)> {
    let prompts = prompts.iter().cloned().map(Prompt::Tokens).collect();
    let options = GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(5),
        ..GenerateOptions::default()
    };
    let result = llama.generate(prompts, options, &mut |_| true).unwrap();
    let bits = |s: &Sequence| s.logprobs.iter().map(|l| l.to_bits()).collect();
    let sequences = result.sequences.iter();
    sequences.map(|s| (s.tokens.clone(), bits(s))).collect()
}

fn build(dir: &Path, weights: Option<Dtype>, kv: Dtype, chunk: usize, seed: u64) -> Llama {
    let options = BuildOptions {
        max_seq_len: POSITIONS,
        max_batch_size: 9,
        weights_dtype: weights,
        kv_dtype: Some(kv),
        prefill_chunk: Some(chunk),
        ..BuildOptions::default()
    };
    let tokenizer = reference("mha-f32/hf/tokenizer.model");
    let tokenizer = Some(&*tokenizer);
    match real::cuda() {
        Some(cuda) => Llama::build_on(cuda, dir, tokenizer, &options, &mut |_| true),
        None => Llama::build_on(
            Emu::new(1 << 30, seed),
            dir,
            tokenizer,
            &options,
            &mut |_| true,
        ),
    }
    .unwrap()
}

/// Alone or with eight others, whole or in chunks, on any schedule.
#[test]
fn company_changes_no_bit() {
    let prompts: Vec<_> = [1, 16, 17, 33, 2, 5, 9, 3, 4]
        .iter()
        .enumerate()
        .map(|(seed, &n)| prompt(n, seed as i32))
        .collect();
    for (dir, weights, kv) in [
        ("mha-f32/meta", Dtype::Nf4, Dtype::Bf16),
        ("gqa-bf16/meta", Dtype::Int4, Dtype::Int8),
    ] {
        let dir = reference(dir);
        let llama = build(&dir, Some(weights), kv, 64, 1);
        let alone = |p| generate(&llama, std::slice::from_ref(p)).remove(0);
        let want: Vec<_> = prompts.iter().map(alone).collect();
        let llama = build(&dir, Some(weights), kv, 5, 2);
        // Cold, then with what the prefix cache kept.
        for _ in 0..2 {
            assert_eq!(generate(&llama, &prompts), want, "{weights} {kv}");
        }
    }
}

#[test]
fn a_written_checkpoint_says_the_same_to_the_last_bit() {
    let from = reference("mha-f32/meta");
    for quant in Quant::ALL {
        let dir =
            std::env::temp_dir().join(format!("llamabi-gpu-{}-{quant:?}", std::process::id()));
        quantised::write(&from, &dir, quant).unwrap();
        let prompts = [prompt(20, 3)];
        let at_load = build(&from, Some(quant.dtype()), Dtype::Bf16, 64, 1);
        let want = generate(&at_load, &prompts);
        let written = build(&dir, None, Dtype::Bf16, 64, 2);
        assert_eq!(written.info().weights_dtype, quant.dtype());
        assert_eq!(written.info().weight_bytes, at_load.info().weight_bytes);
        let got = generate(&written, &prompts);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(got, want, "{quant:?}");
    }
}
