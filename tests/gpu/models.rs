//! The whole GPU path: packing, page tables, launch geometry, bucket padding, memory, failures.
//!
//! Runs on the emulated device of `emu`; with `LLAMABI_TEST_DEVICE=cuda`, on a real one, without
//! the tests that only the emulated device can run. `EMU_SCHEDULES` says on how many schedules.

use crate::common::{Failure, Model, greedy, reference};
use crate::emu::real::real;
use crate::emu::{self, Emu};
use crate::reference_cases::{Place, reference_cases};
use llamabi::capi::*;
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
        "families" => 0.2,
        _ => 0.15,
    },
    refused: &[],
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
        .map(|(i, &n)| (prompt(n, i), going_on(3 + i)))
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

/// Steps that are recorded once and repeated give the same bits as single launches: with sequences
/// of all lengths that come and go, with draws, penalties, probabilities and alternatives.
#[test]
fn graphs_change_nothing() {
    if real() {
        return println!(
            "only on the emulated device; LLAMABI_CUDA_GRAPHS=0 runs the others without graphs"
        );
    }
    for (model, long) in [("gqa-bf16/meta", 508), ("mha-f32/meta", 250)] {
        let walk = |device: Arc<Emu>| {
            let mut options = options(None);
            (options.max_seq_len, options.max_batch_size) = (600, 6);
            let dir = reference(model);
            let llama = Llama::build_on(device, &dir, None, &options, &mut |_| true).unwrap();
            let mut streams = Vec::new();
            for (i, n) in [3, long, 17, 40, 5, 250, 2, 8, 48].into_iter().enumerate() {
                let options = GenerateOptions {
                    temperature: 0.8 * (i % 3) as f32,
                    top_k: 5 * (i as i32 % 2),
                    repetition_penalty: [1.0, 1.3][i % 2],
                    logprobs: i % 4 != 0,
                    top_logprobs: [0, 3][i / 4 % 2],
                    seed: i as u64,
                    ..going_on(4 + 3 * i)
                };
                streams.push(start(&llama, &prompt(n, i), options));
            }
            streams.iter().map(|s| bits(&finish(s))).collect::<Vec<_>>()
        };
        let (with, without) = (Emu::new(GIB, 3), Emu::without_graphs(GIB, 4));
        assert_eq!(walk(with.clone()), walk(without.clone()), "{model}");
        assert!(with.replays() > 20, "{}", with.replays());
        assert_eq!(without.replays(), 0);
    }
}

/// What a reader sees of a sequence, without figures of time and of the cache.
type Seen = (Vec<(Token, u32, String, Vec<(Token, u32)>)>, String);

/// The first events up to `cancel_at` tokens, then a cancellation, then the rest.
fn seen(stream: &Stream, cancel_at: usize) -> Seen {
    use llamabi::engine::{Event, Next};
    let (mut tokens, mut end) = (Vec::new(), String::new());
    loop {
        if tokens.len() == cancel_at {
            stream.cancel();
        }
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => {
                let top = e.top.iter().map(|a| (a.token, a.logprob.to_bits()));
                tokens.push((e.token, e.logprob.to_bits(), e.text, top.collect()));
            }
            Next::Event(Event::Finish(e)) => {
                assert_eq!(e.stats.generated_tokens as usize, tokens.len());
                end = format!("{:?} {:?}", e.reason, e.text);
            }
            Next::Done | Next::Cancelled => return (tokens, end),
            other => panic!("{other:?}"),
        }
    }
}

/// A step that begins before the tokens of the previous one are read changes nothing that a reader
/// sees: with sequences that come and go and are ended by their length, a stop string, a token or
/// their reader; with draws, penalties, probabilities and alternatives. Nor does it change what
/// later sequences find in the cache.
#[test]
fn steps_ahead_change_nothing() {
    const NEVER: usize = usize::MAX;
    if real() {
        return println!(
            "only on the emulated device; LLAMABI_CUDA_AHEAD=0 runs the others step by step"
        );
    }
    let options = |i: usize| GenerateOptions {
        temperature: [0.0, 0.8, 3.0][i % 3],
        top_k: [0, 40][i % 2],
        // Penalises tokens that the host has not seen yet.
        repetition_penalty: [1.0, 1.0, 1.0, 1.2][i % 4],
        ignore_eos: [true, false][i % 2],
        logprobs: [false, true, true][i % 3],
        top_logprobs: [0, 3][i / 3 % 2],
        stop: [vec![], vec!["e".into(), "t".into()]][i % 2].clone(),
        max_gen_len: Some([8, 3, 14, 1, 11][i % 5]),
        seed: 1 + i as u64,
        ..GenerateOptions::default()
    };
    let walk = |device: Arc<Emu>| -> (Vec<Seen>, String) {
        let mut build = self::options(None);
        build.max_batch_size = 3;
        let dir = reference("gqa-bf16/hf");
        let tokenizer = reference("mha-f32/hf/tokenizer.model");
        let llama = Llama::build_on(device.clone(), &dir, Some(&tokenizer), &build, &mut |_| {
            true
        })
        .unwrap();
        let alone = run(&llama, &prompt(5, 1), going_on(6));
        assert_eq!(alone.len(), 6);
        let order = device.order();
        let mut all = Vec::new();
        // They share beginnings. The second round includes pages of the first, which it reads
        // again.
        for _ in 0..2 {
            let streams: Vec<_> = (0..8)
                .map(|i| start(&llama, &prompt(3 + i * 17 % 40, i % 3), options(i)))
                .collect();
            all.extend(streams.iter().map(|stream| seen(stream, NEVER)));
            // Nobody can say how far it gets.
            let long = GenerateOptions {
                max_gen_len: Some(14),
                ignore_eos: true,
                ..options(4)
            };
            let whole = seen(&start(&llama, &prompt(4, 0), long.clone()), NEVER);
            let cut = seen(&start(&llama, &prompt(4, 0), long), 3);
            assert!(cut.0.len() >= 3 && whole.0.starts_with(&cut.0));
            all.push(whole);
        }
        (all, order)
    };
    let (ahead, fast) = walk(Emu::new(GIB, 1));
    let (plain, slow) = walk(Emu::step_by_step(GIB, 2));
    assert_eq!(slow, "<><><><><><>");
    assert_eq!(fast, "<><<><><><>>", "each step but the first two");
    for (i, (got, want)) in ahead.iter().zip(&plain).enumerate() {
        assert_eq!(got, want, "call {i}");
    }
    for end in ["StopString", "Length"] {
        let n = plain.iter().filter(|seen| seen.1.starts_with(end)).count();
        assert!(n > 1, "{n} ended by {end}");
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
            // With more multiprocessors, more tiles have 128 columns.
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

fn on(device: &Arc<Emu>, options: &BuildOptions) -> Result<Llama> {
    let dir = reference("gqa-bf16/meta");
    Llama::build_on(device.clone(), &dir, None, options, &mut |_| true)
}

/// Waits until the engine's thread has released everything.
#[track_caller]
fn assert_returned(device: &Emu) {
    let start = Instant::now();
    while device.allocated().0 > 0 {
        let left = device.allocated().0;
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "{left} bytes were never given back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_that_is_not_there_is_said_with_the_plan() {
    if real() {
        return println!("only on the emulated device");
    }
    for (memory, limit) in [(4096, 0), (GIB, 4096)] {
        let device = Emu::new(memory, 1);
        let mut options = options(None);
        options.gpu_memory_bytes = limit;
        let error = on(&device, &options)
            .err()
            .expect("4096 bytes are not enough");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE_MEMORY);
        let text = error.to_string();
        for part in [
            "the weights ",
            "the KV pool",
            "scratch buffers",
            "4096 bytes are available",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(device.allocated(), (0, 0), "planned, not tried");
    }
}

/// What the plan asks for is enough, a byte less is not, and never is more taken.
#[test]
fn the_limit_is_a_limit() {
    if real() {
        return println!("only on the emulated device");
    }
    let mut options = options(None);
    options.gpu_memory_bytes = 1;
    let Some(Error::DeviceMemory { needed, .. }) = on(&Emu::new(GIB, 1), &options).err() else {
        panic!("one byte is not enough");
    };
    options.gpu_memory_bytes = needed - 1;
    assert!(on(&Emu::new(GIB, 1), &options).is_err());
    options.gpu_memory_bytes = needed;
    let device = Emu::new(GIB, 1);
    let llama = on(&device, &options).unwrap();
    let built = device.allocated().1;
    assert!(built <= needed, "{built} bytes of {needed} allowed");
    // The number belongs to this model; it is not just any large number.
    assert!(
        built > needed - needed / 8,
        "{built} bytes of {needed} planned"
    );
    for n in [5, 60] {
        run(&llama, &prompt(n, 1), going_on(4));
    }
    assert_eq!(device.allocated(), (built, built), "nothing later");
    drop(llama);
    assert_returned(&device);
}

/// Other processes took memory after it was counted, or the device breaks: nothing is left behind.
#[test]
fn builds_that_fail_half_way_leave_nothing() {
    if real() {
        return println!("only on the emulated device");
    }
    let device = Emu::new(GIB, 1);
    drop(on(&device, &options(None)).unwrap());
    let whole = device.allocated().1;
    for eighth in 0..8 {
        let device = Emu::with_promise(whole * eighth / 8, GIB, 1);
        let error = on(&device, &options(None))
            .err()
            .expect("too little memory");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE_MEMORY);
        assert!(error.to_string().contains("the KV pool"), "{error}");
        assert_returned(&device);
    }
    for n in [0, 1, 7, 20] {
        let device = Emu::new(GIB, 1);
        device.break_after(n);
        let error = on(&device, &options(None)).err().expect("a broken device");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE, "{error}");
        assert_returned(&device);
    }
}

/// A failure of a copy or launch at any point of a step ends the handle and nothing else.
#[test]
fn a_device_error_poisons_the_handle() {
    if real() {
        return println!("only on the emulated device");
    }
    let healthy = Emu::new(GIB, 1);
    let other = on(&healthy, &options(None)).unwrap();
    let want = run(&other, &prompt(9, 1), going_on(3));
    for n in [0, 1, 2, 9, 17, 18, 40] {
        let device = Emu::new(GIB, 1);
        let model = Model::from(on(&device, &options(None)).unwrap());
        let call = || model.generate(&[prompt(5, 1), prompt(20, 2)], &greedy(30));
        device.break_after(n);
        let (status, text) = call().unwrap_err();
        assert_eq!(status, LLAMA_E_DEVICE, "{n}: {text}");
        assert!(text.contains("a planted failure"), "{text}");
        let (status, text) = call().unwrap_err();
        assert_eq!(status, LLAMA_E_POISONED, "{n}: {text}");
        assert!(text.contains("a planted failure"), "{text}");
        // The engine's thread ends, and frees all that was on the device, while the handle lives.
        assert_returned(&device);
        assert_eq!(model.timings().pages_used, 0);
        drop(model);
        assert_eq!(run(&other, &prompt(9, 1), going_on(3)), want);
    }
}

/// CUDA says why there is no GPU; AUTO says it too and uses the CPU.
#[test]
fn auto_takes_what_there_is() {
    let log = Arc::new(Log::new(Some(Level::Info)));
    let open = |device| {
        let options = BuildOptions {
            device,
            log: log.clone(),
            ..options(None)
        };
        Llama::build(&reference("mha-f32/meta"), None, &options, &mut |_| true)
    };
    let lines = || {
        let mut lines = Vec::new();
        log.drain(|_, line| lines.push(line.to_owned()));
        lines
    };
    match open(Device::Cuda) {
        Ok(_) => {
            lines();
            assert_eq!(open(Device::Auto).unwrap().info().device, Device::Cuda);
            assert!(!lines().iter().any(|line| line.starts_with("device AUTO")));
        }
        Err(error) => {
            assert!(!real(), "{error}");
            assert_eq!(status_of(&error), LLAMA_E_UNSUPPORTED);
            let text = error.to_string();
            let reason = text.strip_prefix("device is CUDA: ").expect(&text);
            lines();
            let llama = open(Device::Auto).unwrap();
            assert_eq!(llama.info().device, Device::Cpu);
            let said = format!("device AUTO: {reason}; running on the CPU");
            assert_eq!(lines().iter().filter(|line| **line == said).count(), 1);
            assert_eq!(run(&llama, &prompt(5, 1), going_on(3)).len(), 3);
        }
    }
}
