//! The whole GPU path: packing, page tables, launch geometry, bucket padding, memory, failures.
//!
//! Runs on the emulated device of `emu`; with `LLAMABI_TEST_DEVICE=cuda`, on a real one, without
//! the tests that only the emulated device can run. `EMU_SCHEDULES` says on how many schedules.

mod ahead;
mod memory;
mod ranks;
mod ranks_failing;

use crate::common::{Failure, Model, greedy, reference};
use crate::emu::real::real;
use crate::emu::{self, Emu};
use crate::reference_cases::{Place, reference_cases};
use llamabi::capi::*;
use llamabi::engine::request::Bias;
use llamabi::engine::{GenerateOptions, Prompt, Stream};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Device, Dtype, Error, Llama, Result, Token};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;

/// A model on the device, with the schedules of this seed.
fn build(dir: &Path, tokenizer: Option<&Path>, options: &BuildOptions, seed: u64) -> Result<Llama> {
    if real() {
        let options = BuildOptions {
            device: Device::Cuda,
            ..options.clone()
        };
        return Llama::build(dir, tokenizer, &options, &mut |_| true);
    }
    let device = Emu::new(GIB, seed);
    Llama::build_on(device, dir, tokenizer, options, &mut |_| true)
}

fn open(
    dir: &Path,
    tokenizer: Option<&Path>,
    options: &BuildOptions,
) -> std::result::Result<Model, Failure> {
    let llama = build(dir, tokenizer, options, 1).map_err(|e| (status_of(&e), e.to_string()))?;
    assert_eq!(llama.info().device, Device::Cuda);
    Ok(llama.into())
}

const GPU: Place = Place {
    open,
    draws: 32,
    pull: false,
    // A 16-bit cache, and prefill rounds activations to the weights' format.
    as_stored: |_, name| match name {
        "mha-f32" => 1e-3,
        "gqa-f16-mp2" => 0.05,
        // One has scores that are three times as large as the others' (an amplitude of 1.7): its
        // log probabilities were 0.154 off.
        "families" | "answers of families" => 0.2,
        _ => 0.15,
    },
    refused: &["ministral3"],
};

reference_cases!(GPU);

fn options(weights_dtype: Option<Dtype>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 4,
        weights_dtype,
        ..BuildOptions::default()
    }
}

fn on_device(dir: &str, options: &BuildOptions, seed: u64) -> Llama {
    build(&reference(dir), None, options, seed).unwrap_or_else(|e| panic!("{dir}: {e}"))
}

fn on_cpu(dir: &str, options: &BuildOptions) -> Llama {
    let options = BuildOptions {
        device: Device::Cpu,
        ..options.clone()
    };
    Llama::build(&reference(dir), None, &options, &mut |_| true).unwrap()
}

/// Greedy and with log probabilities; goes on past EOS.
fn going_on(n: usize) -> GenerateOptions {
    GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(n),
        ..GenerateOptions::default()
    }
}

fn start(llama: &Llama, prompt: &[Token], options: GenerateOptions) -> Stream {
    let prompt = Prompt::Tokens(prompt.to_vec());
    llama.stream(vec![prompt], options).unwrap()
}

type Tokens = Vec<(Token, f32)>;

fn finish(stream: &Stream) -> Tokens {
    use llamabi::engine::{Event, Next};
    let mut tokens = Vec::new();
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => tokens.push((e.token, e.logprob)),
            Next::Event(_) => {}
            Next::Done => return tokens,
            other => panic!("{other:?}"),
        }
    }
}

fn run(llama: &Llama, prompt: &[Token], options: GenerateOptions) -> Tokens {
    finish(&start(llama, prompt, options))
}

fn bits(tokens: &Tokens) -> Vec<(Token, u32)> {
    tokens.iter().map(|&(t, l)| (t, l.to_bits())).collect()
}

fn prompt(n: usize, seed: usize) -> Vec<Token> {
    (0..n)
        .map(|i| (1 + (i * i * 31 + i * 17 + seed * 57) % 500) as Token)
        .collect()
}

#[track_caller]
fn assert_near(got: &Tokens, want: &Tokens, tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.0, w.0, "{what}: token {i}");
        let far = (g.1 - w.1).abs();
        assert!(far <= tolerance, "{what}: token {i} is {far} off");
    }
}

/// Every schedule gives the same bits, and the CPU's numbers: prompts in chunks and beside other
/// sequences, pages that fill up and grow, decoding.
#[test]
fn any_schedule_gives_the_same_bits() {
    let schedules = std::env::var("EMU_SCHEDULES").map_or(5, |n| n.parse().unwrap());
    let mut options = options(Some(Dtype::F32));
    options.prefill_chunk = Some(24);
    // Only one schedule means that a sanitizer is watching, which takes time: fewer sequences, but
    // still several chunks, other sequences, and one page more.
    let lengths: &[usize] = if schedules > 1 {
        &[1, 16, 17, 40]
    } else {
        &[16, 40]
    };
    let prompts: Vec<_> = lengths.iter().map(|&n| prompt(n, n)).collect();
    let walk = |llama: &Llama| -> Vec<Tokens> {
        let streams = prompts.iter().map(|p| start(llama, p, going_on(3)));
        let streams: Vec<_> = streams.collect();
        streams.iter().map(finish).collect()
    };
    for model in ["mha-f32/meta", "gqa-bf16/meta"] {
        let want = walk(&on_cpu(model, &options));
        let mut first: Option<Vec<_>> = None;
        for seed in 1..=schedules {
            let got = walk(&on_device(model, &options, seed));
            for (got, want) in got.iter().zip(&want) {
                assert_near(got, want, 1e-3, model);
            }
            let got = got.iter().map(bits).collect();
            match &first {
                None => first = Some(got),
                Some(first) => assert_eq!(got, *first, "{model}, schedule {seed}"),
            }
        }
    }
}

/// The library to preload for kernels that were compiled with a sanitizer.
fn runtime(mode: &str) -> String {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/test.sh"))
        .args(["runtime", mode])
        .output()
        .expect("kernels/test.sh");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kernels/test.sh: {text}{errors}");
    text.trim().to_owned()
}

/// The same with a sanitizer that watches every access of every kernel. A planted bug shows that it
/// does watch.
#[test]
fn under_sanitizers() {
    if real() {
        return println!("only on the emulated device");
    }
    let _share = emu::build::Share::new();
    let this = std::env::current_exe().unwrap();
    for (mode, plant, report) in [
        ("asan", "SHARED_BOUNDS", "heap-buffer-overflow"),
        ("tsan", "NO_BARRIER", "data race"),
    ] {
        let preload = runtime(mode);
        let child = |library: PathBuf| {
            let output = Command::new(&this)
                .args(["--exact", "models::any_schedule_gives_the_same_bits"])
                .env("LLAMABI_EMU", library)
                .env("LD_PRELOAD", &preload)
                .env("EMU_SCHEDULES", "1")
                .env(
                    "ASAN_OPTIONS",
                    "detect_leaks=0:detect_stack_use_after_return=0",
                )
                // It cannot judge code that was not compiled with it, such as Rust's locks.
                .env(
                    "TSAN_OPTIONS",
                    "halt_on_error=1:ignore_noninstrumented_modules=1",
                )
                .output()
                .unwrap();
            let text = [output.stdout, output.stderr].concat();
            (
                output.status.success(),
                String::from_utf8_lossy(&text).into_owned(),
            )
        };
        let (passed, text) = child(emu::build::built(&[mode]));
        assert!(passed && text.contains("1 passed"), "{mode}: {text}");
        let (passed, text) = child(emu::build::built(&[mode, plant]));
        assert!(
            !passed && text.contains(report),
            "{mode} does not notice {plant}: {text}"
        );
    }
}

/// Alone or beside one to nine others, whole or in chunks, cold or from the prefix cache: the bits
/// are the same. The number of decode rows passes through the buckets 1, 2, 4, 8 and 16 with all
/// their padding.
#[test]
fn rows_do_not_see_each_other() {
    const LENGTHS: [usize; 9] = [1, 16, 17, 40, 5, 33, 2, 8, 48];
    let asked: Vec<_> = LENGTHS
        .iter()
        .enumerate()
        .map(|(i, &n)| {
            let mut options = going_on(3 + i);
            if i % 3 == 1 {
                // Only the host can choose for these rows, beside those of the device.
                options.top_logprobs = 129;
            }
            if i % 3 == 2 {
                options.logit_bias = vec![Bias {
                    token: 9,
                    bias: 0.5,
                }];
            }
            (prompt(n, i), options)
        })
        .collect();
    for (model, dtype) in [("gqa-bf16/meta", None), ("mha-f32/meta", None)] {
        let open = |chunk, seed| {
            let mut options = options(dtype);
            options.max_batch_size = LENGTHS.len();
            options.prefill_chunk = Some(chunk);
            on_device(model, &options, seed)
        };
        let llama = open(64, 1);
        let want: Vec<_> = asked
            .iter()
            .map(|(prompt, options)| bits(&run(&llama, prompt, options.clone())))
            .collect();
        for chunk in [3, 64] {
            let llama = open(chunk, 2 + chunk as u64);
            // Cold, then with what the prefix cache kept.
            for round in ["cold", "warm"] {
                let streams = asked.iter().map(|(p, o)| start(&llama, p, o.clone()));
                let streams: Vec<_> = streams.collect();
                let got: Vec<_> = streams.iter().map(|s| bits(&finish(s))).collect();
                assert_eq!(got, want, "{model}, {round}, chunks of {chunk}");
            }
        }
    }
}

/// Page tables that grow while decoding, past the 256 keys of one split, beside a short sequence.
#[test]
fn page_tables_grow() {
    let mut options = options(Some(Dtype::F32));
    options.max_seq_len = 288;
    let prompts = [prompt(244, 3), prompt(7, 4)];
    let both = |llama: &Llama| {
        let streams = prompts.each_ref().map(|p| start(llama, p, going_on(30)));
        streams.each_ref().map(finish)
    };
    for model in ["gqa-bf16/hf", "variants/head-dim-32"] {
        let open = |options: &BuildOptions, device: bool| {
            let tokenizer = reference("mha-f32/hf/tokenizer.model");
            let dir = reference(model);
            if device {
                return build(&dir, Some(&tokenizer), options, 7).unwrap();
            }
            let options = BuildOptions {
                device: Device::Cpu,
                ..options.clone()
            };
            Llama::build(&dir, Some(&tokenizer), &options, &mut |_| true).unwrap()
        };
        let want = both(&open(&options, false));
        let got = both(&open(&options, true));
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.len(), 30);
            assert_near(got, want, 1e-3, model);
        }
        // In the formats in which they are stored, forced along the same tokens.
        let echo = || GenerateOptions {
            echo: true,
            ..going_on(0)
        };
        let tokens: Vec<Token> = prompts[0]
            .iter()
            .copied()
            .chain(want[0].iter().map(|t| t.0))
            .collect();
        options.weights_dtype = None;
        let want = run(&open(&options, false), &tokens, echo());
        let got = run(&open(&options, true), &tokens, echo());
        assert_near(&got, &want, 0.15, model);
        options.weights_dtype = Some(Dtype::F32);
    }
}

/// The kernels for compute capability 9.0, in chunks, beside other sequences and from the prefix
/// cache, on the last rows of a step and on more rows than a tile has. Products of floats give the
/// same bits as the other kernels (the emulated tensor cores add in one order). Attention has other
/// tiles of keys and is for 16-bit caches; it gives the same bits for all chunks, close to those of
/// the other kernels. So do products with codes (tests/gpu/quantised.rs compares them with the
/// CPU's).
#[test]
fn kernels_for_one_architecture() {
    if real() {
        return println!("only on the emulated device; LLAMABI_CUDA_HOPPER=0 runs the others");
    }
    let prompts = [1, 17, 131].map(|n| prompt(n, n));
    for model in ["gqa-bf16/meta", "gqa-f16-mp2/meta"] {
        for kv_dtype in [Some(Dtype::F32), None] {
            let walk = |device: &Arc<Emu>, chunk| -> Vec<Tokens> {
                let mut options = options(None);
                (options.max_seq_len, options.prefill_chunk) = (160, Some(chunk));
                options.kv_dtype = kv_dtype;
                let dir = reference(model);
                let llama = Llama::build_on(device.clone(), &dir, None, &options, &mut |_| true);
                let llama = llama.unwrap_or_else(|e| panic!("{model}: {e}"));
                let echo = || GenerateOptions {
                    echo: true,
                    ..going_on(2)
                };
                let streams = prompts.each_ref().map(|p| start(&llama, p, echo()));
                streams.iter().map(finish).collect()
            };
            let all = |of: &[Tokens]| -> Vec<_> { of.iter().map(bits).collect() };
            let without = Emu::new(GIB, 1);
            let mut want = walk(&without, 150);
            assert_eq!(without.hoppers(), (0, 0));
            // With more multiprocessors, more tiles have 128 columns or fewer.
            for (chunk, units) in [(29, 132), (150, 2)] {
                let with = Emu::hopper(GIB, 2 + chunk as u64, units);
                let got = walk(&with, chunk);
                let ((products, attention), halves) = (with.hoppers(), with.halves());
                assert!(
                    halves > 0 && (halves == products) == (units == 132),
                    "{model}: {halves} of {products}"
                );
                assert_eq!(attention > 0, kv_dtype.is_none(), "{model}");
                if kv_dtype.is_none() && units == 132 {
                    for ((got, want), prompt) in got.iter().zip(&want).zip(&prompts) {
                        let (got, want) = [got, want].map(|t| t[..prompt.len()].to_vec()).into();
                        assert_near(&got, &want, 0.05, model);
                    }
                    want = got;
                } else {
                    assert_eq!(all(&got), all(&want), "{model}, chunks of {chunk}");
                }
            }
        }
    }
    let codes = |chunk, units: u32| {
        let device = Emu::hopper(GIB, units.into(), units);
        let mut options = options(Some(Dtype::Int4));
        (options.max_seq_len, options.prefill_chunk) = (160, Some(chunk));
        let dir = reference("gqa-bf16/meta");
        let llama = Llama::build_on(device.clone(), &dir, None, &options, &mut |_| true).unwrap();
        let streams = prompts.each_ref().map(|p| start(&llama, p, going_on(2)));
        let all = streams.iter().map(|stream| bits(&finish(stream)));
        let all: Vec<_> = all.collect();
        (all, device.hoppers().0, device.halves())
    };
    let ((small, products, halves), (large, others, fewer)) = (codes(70, 132), codes(150, 2));
    assert_eq!((small, halves), (large, products));
    assert!(fewer < others, "{fewer} of {others}");
    for (dtype, kv, used) in [
        (Dtype::F32, None, (false, false)),
        (Dtype::Int8, Some(Dtype::Int8), (true, false)),
        (Dtype::Fp8, Some(Dtype::F16), (true, true)),
    ] {
        let device = Emu::hopper(GIB, 9, 132);
        let mut options = options(Some(dtype));
        options.kv_dtype = kv;
        let dir = reference("gqa-bf16/meta");
        let llama = Llama::build_on(device.clone(), &dir, None, &options, &mut |_| true).unwrap();
        run(&llama, &prompt(9, 1), going_on(1));
        let (products, attention) = device.hoppers();
        assert_eq!((products > 0, attention > 0), used, "{dtype}, {kv:?}");
    }
}
