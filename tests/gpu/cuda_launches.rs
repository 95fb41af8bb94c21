//! How kernels are launched on the stand-in driver: ahead of the host, early, with what they need,
//! and those of one architecture.

use crate::cuda::{build, build_with, greedy, options};
use crate::emu::standin::{self, Standin};
use llamabi::backend::gpu::device::Device;
use llamabi::backend::gpu::kernels::Kernel;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Dtype, Llama, Token};
use std::sync::Arc;

/// The next step is already in the stream when a token is waited for, unless LLAMABI_CUDA_AHEAD=0.
#[test]
fn steps_are_launched_ahead() {
    const VARIABLE: &str = "LLAMABI_CUDA_AHEAD";
    let off = std::env::var(VARIABLE).is_ok_and(|value| value == "0");
    let standin = Standin::new("");
    let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    // Waits until the weights have arrived.
    greedy(&llama, prompt(), 1).unwrap();
    let before = standin.count("ahead");
    let tokens = greedy(&llama, prompt(), 12).unwrap();
    let ahead = standin.count("ahead") - before;
    assert_eq!(tokens[0].len(), 12, "no EOS among them");
    // The first token is the prompt's, and the next step waits for it; nothing follows the last
    // token. (Copies to the device also wait for earlier ones.)
    assert!(if off { ahead == 0 } else { ahead >= 10 }, "{ahead}");
    drop(llama);
    standin.assert_clean();
    if !off {
        again_with("cuda_launches::steps_are_launched_ahead", VARIABLE);
    }
}

/// Runs one test of this binary in a process of its own, in which the variable is "0".
fn again_with(test: &str, variable: &str) {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(variable, "0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // A name that fits no test would succeed, too.
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// The kernels for compute capability 9.0 are used if the GPU is one, has the shared memory that
/// they take, and nobody forbids it; the tokens are then the same.
#[test]
fn kernels_for_one_architecture() {
    const SWITCH: &str = "LLAMABI_CUDA_HOPPER";
    let off = std::env::var(SWITCH).is_ok();
    let mut options = options();
    let prompt = || vec![vec![1, 500, 243, 283, 146], vec![7]];
    let mut want = None;
    for (settings, weights, used) in [
        ("arch=80 shared=232448", Some(Dtype::Int8), false),
        ("arch=90 shared=232448", Some(Dtype::Int8), !off),
        ("arch=80 shared=232448", None, false),
        ("arch=90", None, false),
        ("arch=90 shared=232448", None, !off),
        ("arch=90 shared=232448 seed=5", None, !off),
    ] {
        if weights != options.weights_dtype {
            (options.weights_dtype, want) = (weights, None);
        }
        let standin = Standin::new(settings);
        let llama = build_with(standin.open().unwrap(), "gqa-bf16/meta", &options).unwrap();
        let got = greedy(&llama, prompt(), 4).unwrap();
        assert_eq!(got, *want.get_or_insert(got.clone()), "{settings}");
        drop(llama);
        standin.assert_clean();
        // Only these kernels need a tensor map.
        standin.set("fail=cuTensorMapEncodeTiled:3:12345");
        let outcome = build_with(standin.open().unwrap(), "gqa-bf16/meta", &options);
        let error = outcome.err().map(|error| error.to_string());
        let words = "cuTensorMapEncodeTiled: an error without a name (12345)";
        assert_eq!(error.as_deref(), used.then_some(words), "{settings}");
        standin.assert_clean();
    }
    // An image that was compiled for other architectures.
    let standin = Standin::new("shared=232448");
    let mut images = standin::images();
    for (_, image) in &mut images.fatbins {
        let text = String::from_utf8(image[16..].to_vec()).unwrap();
        let lines = text.lines().filter(|line| !line.contains("_hopper_"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        *image = standin::fatbin(text.as_bytes()).into();
    }
    let cuda = standin.open_with(&images).unwrap();
    let llama = build_with(cuda, "gqa-bf16/meta", &options).unwrap();
    assert_eq!(greedy(&llama, prompt(), 4).unwrap(), want.unwrap());
    drop(llama);
    standin.assert_clean();
    if !off {
        again_with("cuda_launches::kernels_for_one_architecture", SWITCH);
    }
}

/// Blocks with the same weights share their copies of them, with quantised weights blocks with the
/// same rows theirs, unless somebody forbids it; the tokens are the same.
#[test]
fn blocks_of_prompts_share_tiles() {
    const SWITCH: &str = "LLAMABI_CUDA_CLUSTERS";
    let off = std::env::var(SWITCH).is_ok();
    let prompt: Vec<Token> = (0..131).map(|i| 5 + i * 7 % 400).collect();
    let mut want = None;
    for (settings, weights, shares) in [
        ("arch=80 shared=232448", None, false),
        ("arch=90 shared=232448", None, !off),
        ("arch=90 shared=232448", Some(Dtype::Int8), !off),
    ] {
        let standin = Standin::new(settings);
        let options = BuildOptions {
            max_seq_len: 160,
            prefill_chunk: Some(140),
            weights_dtype: weights,
            ..options()
        };
        let llama = build_with(standin.open().unwrap(), "gqa-bf16/meta", &options).unwrap();
        let got = greedy(&llama, vec![prompt.clone()], 4).unwrap();
        if weights.is_none() {
            assert_eq!(got, *want.get_or_insert(got.clone()), "{settings}");
        }
        assert_eq!(standin.count("clustered") > 0, shares, "{settings}");
        drop(llama);
        standin.assert_clean();
    }
    if !off {
        again_with("cuda_launches::blocks_of_prompts_share_tiles", SWITCH);
    }
}

/// One line of the log says which of the ways to run kernels are in use.
#[test]
fn the_log_says_how_kernels_run() {
    for (settings, words) in [
        (
            "shared=232448",
            "PTX 9.0, launches that start early on, one carve-out on, graphs on, steps ahead on, kernels for 9.0 on, clusters of them on, tiles of a quarter on",
        ),
        (
            "shared=232448 carveout=0",
            "PTX 9.0, launches that start early on, one carve-out off, graphs on, steps ahead on, kernels for 9.0 on, clusters of them on, tiles of a quarter on",
        ),
        (
            "shared=232448 ptx=80",
            "PTX 8.0, launches that start early off, one carve-out on, graphs on, steps ahead on, kernels for 9.0 on, clusters of them on, tiles of a quarter on",
        ),
        (
            "arch=89",
            "PTX 9.0, launches that start early on, one carve-out on, graphs on, steps ahead on, kernels for 9.0 off, clusters of them off, tiles of a quarter off",
        ),
    ] {
        let log = Arc::new(Log::new(Some(Level::Info)));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let standin = Standin::new(settings);
        let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
        let mut said = Vec::new();
        log.drain(|level, line| {
            if line.starts_with("GPU: ") {
                said.push((level, line.to_owned()));
            }
        });
        assert_eq!(said, [(Level::Info, format!("GPU: kernels of {words}"))]);
        drop(llama);
        standin.assert_clean();
    }
}

/// How much `count` says more after more steps of decode: `steps` times what one of them adds.
fn by_decoding(llama: &Llama, steps: usize, count: impl Fn() -> u64) -> u64 {
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    let of = |n: usize| {
        let before = count();
        let tokens = greedy(llama, prompt(), n).unwrap();
        assert_eq!(tokens[0].len(), n, "no EOS among them");
        count() - before
    };
    // Both calls find the prompt in the cache.
    of(2);
    let few = of(3);
    of(3 + steps) - few
}

/// No kernel of decode asks for another carve-out than the launch before it, if the driver knows
/// such a thing at all.
#[test]
fn kernels_of_decode_share_a_carve_out() {
    const SWITCH: &str = "LLAMABI_CUDA_CARVEOUT";
    let off = std::env::var(SWITCH).is_ok();
    let mut want = None;
    // A driver that refuses it for the last of these kernels.
    let kernels = Kernel::all().filter(|kernel| !kernel.is_hopper()).count();
    let early = Kernel::all()
        .filter(|kernel| kernel.starts_early() && !kernel.is_hopper())
        .count();
    let refuses = format!("fail=cuFuncSetAttribute:{}:1", kernels + early);
    for settings in ["", "carveout=0", &refuses] {
        for weights in [Dtype::F32, Dtype::Int4] {
            let standin = Standin::new(settings);
            let options = BuildOptions {
                weights_dtype: Some(weights),
                kv_dtype: Some(Dtype::Int8),
                ..options()
            };
            let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
            let replays = standin.count("replays");
            assert_eq!(by_decoding(&llama, 6, || standin.count("recarved")), 0);
            assert!(standin.count("replays") > replays);
            // Kernels of prompts ask for nothing, so that those which start early behind one of
            // them show whether the kernels of decode do.
            let recarved = standin.count("recarved");
            assert_eq!(recarved > 0, settings.is_empty() && !off, "{recarved}");
            let got = greedy(&llama, vec![vec![7, 8, 9]], 4).unwrap();
            if weights == Dtype::F32 {
                assert_eq!(got, *want.get_or_insert(got.clone()), "{settings}");
            }
            drop(llama);
            standin.assert_clean();
        }
    }
    if !off {
        again_with("cuda_launches::kernels_of_decode_share_a_carve_out", SWITCH);
    }
}

/// A step of decode sends what it needs in one copy, however many rows a step may have.
#[test]
fn a_step_of_decode_sends_little() {
    let standin = Standin::new("");
    let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
    let steps = 8;
    // Position, slot, page table, row, wanted row: of one row, in 16 bytes each; the 80 of its
    // choice; a page or more. The tokens are on the device already.
    let sent = by_decoding(&llama, steps, || standin.count("sent"));
    assert_eq!(sent, steps as u64 * (5 * 16 + 80 + 16));
    // One copy to the device, and one of the answer.
    let copies = by_decoding(&llama, steps, || standin.count("copies"));
    assert_eq!(copies, 2 * steps as u64);
    drop(llama);
    standin.assert_clean();
}

/// A kernel's own shared memory is a part of what a block may have. If a driver keeps some for
/// itself, kernels get what they need; if too little is left, those for compute capability 9.0 are
/// not used.
#[test]
fn shared_memory_of_kernels_themselves() {
    let mut want = None;
    for (settings, hopper) in [
        ("shared=232448", true),
        ("shared=232448 fixed=1024", true),
        ("shared=232448 fixed=1024 kept=1024", true),
        ("shared=197823 fixed=1024", false),
        ("shared=197824 fixed=1024", true),
    ] {
        let standin = Standin::new(settings);
        let mut options = options();
        options.weights_dtype = None;
        let llama = build_with(standin.open().unwrap(), "gqa-bf16/meta", &options).unwrap();
        let got = greedy(&llama, vec![vec![1, 500, 243, 283, 146]], 3).unwrap();
        assert_eq!(got, *want.get_or_insert(got.clone()), "{settings}");
        drop(llama);
        standin.assert_clean();
        // Only kernels for 9.0 need a tensor map.
        standin.set("fail=cuTensorMapEncodeTiled:1:12345");
        let built = build_with(standin.open().unwrap(), "gqa-bf16/meta", &options);
        assert_eq!(built.is_err(), hopper, "{settings}");
    }
    // What a multiprocessor has is 1 KiB more than a block may have, and each block takes 1 KiB
    // beside its own.
    for (settings, shared, blocks) in [
        ("", 50_176, 2),
        ("", 50_177, 1),
        ("shared=232448", 50_177, 4),
        ("shared=232448", 233_473, 0),
        // A driver that keeps more than it says gives kernels what those of 8.6 have.
        ("shared=232448 kept=1024", 101_376, 2),
        ("shared=232448 kept=1024", 101_377, 0),
    ] {
        let cuda = Standin::new(settings).open().unwrap();
        assert_eq!(cuda.room().fits(shared), blocks, "{settings}: {shared}");
    }
    // Where even what a kernel needs is refused, the error says by which function.
    let standin = Standin::new("shared=101376 kept=1024");
    let error = standin.open().err().unwrap().to_string();
    assert!(error.contains("cuFuncSetAttribute"), "{error}");
    standin.assert_clean();
}

/// Launches that start before the previous one has ended: kernels see nothing of what it wrote
/// until they have waited for it, and compute the same, bit for bit. If the kernels or the driver
/// are older, no launch starts early.
#[test]
fn kernels_wait_for_the_launch_before() {
    const SWITCH: &str = "LLAMABI_CUDA_PDL";
    let off = std::env::var(SWITCH).is_ok();
    let walk = |settings: &str, kv_dtype: Dtype| -> (Vec<(Token, u32)>, u64) {
        let standin = Standin::new(settings);
        let options = BuildOptions {
            kv_dtype: Some(kv_dtype),
            ..options()
        };
        let mut images = standin::images();
        images.driver = 12_000;
        let cuda = standin.open_with(&images).unwrap();
        let llama = build_with(cuda, "mha-f32/meta", &options).unwrap();
        let options = GenerateOptions {
            temperature: 0.9,
            repetition_penalty: 1.2,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(4),
            ..GenerateOptions::default()
        };
        let prompts = [vec![1, 500, 243], vec![1, 7, 9, 12, 60, 31]];
        let prompts = prompts.map(Prompt::Tokens).to_vec();
        let completion = llama.generate(prompts, options, &mut |_| true).unwrap();
        let tokens = completion.sequences.iter();
        let tokens = tokens.flat_map(|s| s.tokens.iter().zip(&s.logprobs));
        let tokens = tokens.map(|(&token, logprob)| (token, logprob.to_bits()));
        let tokens = tokens.collect();
        drop(llama);
        standin.assert_clean();
        (tokens, standin.count("dependent"))
    };
    for kv_dtype in [Dtype::F32, Dtype::Int8] {
        let (want, none) = walk("ptx=80", kv_dtype);
        assert_eq!((want.len(), none), (8, 0));
        assert_eq!(walk("driver=12020", kv_dtype).1, 0);
        let (got, some) = walk("strict=1 seed=5", kv_dtype);
        assert!(if off { some == 0 } else { some > 50 }, "{some}");
        assert_eq!(got, want, "{kv_dtype}");
    }
    if !off {
        again_with("cuda_launches::kernels_wait_for_the_launch_before", SWITCH);
    }
}
