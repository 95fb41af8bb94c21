//! The driver's side of the GPU backend, on a stand-in driver that runs the kernels on the CPU and
//! is as asynchronous as a driver may be (`kernels/emu/cuda`).
#![allow(unsafe_code)]

use crate::common::{json, reference, tokens};
use crate::emu::real;
use crate::emu::standin::{self, Standin};
use llamabi::backend::gpu::cuda::Cuda;
use llamabi::backend::gpu::device::{Device, Landing, Memory, Rows};
use llamabi::backend::gpu::kernels::KERNELS;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Dtype, Error, Llama, Token};
use std::sync::Arc;

fn options() -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 4,
        weights_dtype: Some(Dtype::F32),
        ..BuildOptions::default()
    }
}

fn build(cuda: Cuda, model: &str) -> llamabi::Result<Llama> {
    build_with(cuda, model, &options())
}

fn build_with(cuda: Cuda, model: &str, options: &BuildOptions) -> llamabi::Result<Llama> {
    let dir = reference(model);
    Llama::build_on(Arc::new(cuda), &dir, None, options, &mut |_| true)
}

/// Warnings that were logged.
fn warnings(log: &Log) -> Vec<String> {
    let mut lines = Vec::new();
    log.drain(|level, line| {
        if level == Level::Warn {
            lines.push(line.to_owned());
        }
    });
    lines
}

fn greedy(llama: &Llama, prompts: Vec<Vec<Token>>, n: usize) -> llamabi::Result<Vec<Vec<Token>>> {
    let options = GenerateOptions {
        temperature: 0.0,
        max_gen_len: Some(n),
        ..GenerateOptions::default()
    };
    let prompts = prompts.into_iter().map(Prompt::Tokens).collect();
    let completion = llama.generate(prompts, options, &mut |_| true)?;
    Ok(completion.sequences.into_iter().map(|s| s.tokens).collect())
}

/// Work runs as late as possible, and at random.
#[test]
fn reference_tokens_whenever_the_work_runs() {
    for (seed, model) in [(0, "mha-f32/meta"), (7, "mha-f32/hf"), (8, "gqa-bf16/hf")] {
        let standin = Standin::new(&format!("seed={seed}"));
        let llama = build(standin.open().unwrap(), model).unwrap();
        let (name, _) = model.split_once('/').unwrap();
        let all = json(&reference(&format!("{name}/cases.json")));
        let mut n = 0;
        for case in all["cases"].as_array().unwrap() {
            let args = &case["args"];
            if case["kind"] != "generate" || args["echo"] == true {
                continue;
            }
            let prompts = args["prompt_tokens"].as_array().unwrap();
            let prompts = prompts.iter().map(tokens).collect();
            let most = args["max_gen_len"].as_u64().unwrap() as usize;
            let got = greedy(&llama, prompts, most).unwrap();
            let want: Vec<_> = case["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(tokens)
                .collect();
            assert_eq!(got, want, "{model}, seed {seed}");
            n += 1;
        }
        assert!(n > 1, "{model}");
        drop(llama);
        assert!(standin.count("replays") > 20, "{model}");
        standin.assert_clean();
    }
}

/// Copies `n` floats of `memory` to the host.
fn fetched(cuda: &Arc<Cuda>, memory: &Memory<Cuda>, n: usize) -> Vec<f32> {
    let mut landing = Landing::new(cuda, n).unwrap();
    landing.fetch(memory, n).unwrap();
    landing.wait().unwrap().to_vec()
}

fn floats(n: usize, seed: usize) -> Vec<f32> {
    (0..n)
        .map(|i| ((i * 31 + seed * 7919) % 1_000_003) as f32)
        .collect()
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|f| f.to_le_bytes()).collect()
}

/// Covers everything that goes through the two page-locked buffers of 4 MiB: less than a buffer,
/// more, rows with gaps, rows longer than a buffer, and many small rows.
#[test]
fn copies_arrive_whatever_their_shape() {
    for seed in [0, 5] {
        let standin = Standin::new(&format!("seed={seed}"));
        copies_arrive(Arc::new(standin.open().unwrap()), &format!("seed {seed}"));
        standin.assert_clean();
    }
}

fn copies_arrive(cuda: Arc<Cuda>, what: &str) {
    const MIB: usize = 1 << 18; // number of floats
    for (width, pitch, rows) in [
        (1, 1, 1),
        (3, 7, 5),
        (MIB + 3, MIB + 3, 11),
        (1000, 1024, 5000),
        (4 * MIB, 4 * MIB + 8, 2),
        (4 * MIB + 1, 5 * MIB, 3),
    ] {
        let what = format!("{rows} rows of {width}, {pitch} apart, {what}");
        let n = (rows - 1) * pitch + width;
        let memory = Memory::zeroed(&cuda, "a test", 4 * n).unwrap();
        let from = floats(width * rows, rows);
        memory
            .write(0, 4 * width, 4 * pitch, &bytes(&from))
            .unwrap();
        let to = fetched(&cuda, &memory, n);
        for row in 0..rows {
            let (got, rest) = to[row * pitch..].split_at(width);
            assert!(got == &from[row * width..][..width], "{what}: row {row}");
            let gap = &rest[..(pitch - width).min(rest.len())];
            assert!(gap.iter().all(|&x| x == 0.0), "{what}: after row {row}");
        }
    }
    let memory = Memory::new(&cuda, "a test", 4 * 5000).unwrap();
    let from = floats(5000, 1);
    for (i, piece) in from.chunks(5).enumerate() {
        memory.write_floats(20 * i, piece).unwrap();
    }
    let to = fetched(&cuda, &memory, 5000);
    assert_eq!(to[..], from[..]);
}

/// Layers may lie farther apart than a 2D copy can reach.
#[test]
fn pages_are_copied_over_any_distance() {
    for limit in [1 << 20, 4096] {
        let standin = Standin::new(&format!("pitch={limit}"));
        let cuda = Arc::new(standin.open().unwrap());
        pages_are_copied(&cuda);
        let memory = Memory::zeroed(&cuda, "a test", 4 * 2048 * 4).unwrap();
        cuda.synchronize().unwrap();
        let before = standin.count("copies");
        memory.copy(512, 0, 256, 4 * 2048, 4).unwrap();
        cuda.synchronize().unwrap();
        // One copy, or one for each layer; the stand-in counts rows.
        assert_eq!(standin.count("copies") - before, 4);
        drop((memory, cuda));
        standin.assert_clean();
    }
}

fn pages_are_copied(cuda: &Arc<Cuda>) {
    let (width, pitch, layers) = (64, 2048, 4);
    let memory = Memory::zeroed(cuda, "a test", 4 * pitch * layers).unwrap();
    let from = floats(pitch * layers, 3);
    memory.write_floats(0, &from).unwrap();
    let (at, gap) = (4 * 128, 4 * pitch);
    memory.copy(at, 0, 4 * width, gap, layers).unwrap();
    let to = fetched(cuda, &memory, pitch * layers);
    for layer in 0..layers {
        let (got, want) = (&to[layer * pitch..], &from[layer * pitch..]);
        assert_eq!(got[128..128 + width], want[..width], "layer {layer}");
        assert_eq!(got[..128], want[..128], "layer {layer}");
        assert_eq!(got[128 + width..pitch], want[128 + width..pitch]);
    }
}

/// The part of this file that a real driver can run: `LLAMABI_TEST_DEVICE=cuda`.
#[test]
fn on_a_real_device() {
    match real::cuda() {
        None => println!("no real device is meant"),
        Some(cuda) => {
            copies_arrive(cuda.clone(), "a real device");
            pages_are_copied(&cuda);
        }
    }
}

/// Whatever call the driver refuses, and whenever: the error names the function, nothing is left
/// behind, and the next attempt works.
#[test]
fn any_call_may_fail() {
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let options = BuildOptions {
        log: log.clone(),
        ..options()
    };
    let once = |standin: &Standin| -> llamabi::Result<()> {
        let llama = build_with(standin.open()?, "mha-f32/meta", &options)?;
        greedy(&llama, vec![vec![1, 500, 243]], 3)?;
        Ok(())
    };
    let standin = Standin::new("");
    once(&standin).unwrap();
    standin.assert_clean();
    let calls = standin.count("calls");
    assert!(calls > 500, "{calls}");
    // Memory whose release fails is left behind.
    let giving_back = ["Free", "Destroy", "Unload", "Release", "Ctx", "Synchronize"];
    let (mut failures, mut unrecorded) = (0, 0);
    // All of the first calls, then one in every 13: a prime, so that it meets each kind of call.
    for n in (1..60).chain((60..calls).step_by(13)) {
        let standin = Standin::new(&format!("fail=*:{n}:12345"));
        let outcome = once(&standin);
        let (left, report) = standin.report();
        let (_, function) = report.rsplit_once(' ').unwrap();
        let forgiven = giving_back.iter().any(|part| function.contains(part));
        assert!(left == 0 || forgiven, "call {n}: {report}");
        let words = format!("{function}: an error without a name (12345)");
        let warned = warnings(&log).iter().any(|line| line.contains(&words));
        match outcome {
            // The call failed while launches were being recorded, so they are not recorded.
            Ok(()) if warned => unrecorded += 1,
            Ok(()) => assert!(forgiven, "call {n}: {function}"),
            Err(error) => {
                let text = error.to_string();
                // Without its context, nobody can tell the driver that a recording ends.
                let open = function == "cuCtxPushCurrent_v2" && text.contains("CAPTURE");
                assert!(
                    text.contains(&words) || open,
                    "call {n}, {function}: {text}"
                );
                failures += 1;
            }
        }
    }
    assert!(failures > 50, "{failures}");
    assert!(unrecorded > 0);
}

/// An error of the device itself, which a later call notices: the handle cannot be used any more,
/// the process can.
#[test]
fn a_device_that_fails_poisons_the_handle() {
    for work in [1, 10, 40] {
        let standin = Standin::new("");
        let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
        let prompt = vec![vec![1, 500, 243, 283, 146]];
        let want = greedy(&llama, prompt.clone(), 4).unwrap();
        standin.set(&format!("fail=work:{work}:700"));
        let error = greedy(&llama, prompt.clone(), 4).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Device(_)), "{text}");
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
        let error = greedy(&llama, prompt.clone(), 4).unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        drop(llama);
        // What lived in the broken context is gone with it; the next one is a new context.
        standin.assert_clean();
        let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
        assert_eq!(greedy(&llama, prompt, 4).unwrap(), want);
    }
}

#[test]
fn memory_that_the_driver_refuses() {
    let standin = Standin::new("memory=400000");
    let error = build(standin.open().unwrap(), "mha-f32/meta")
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(matches!(error, Error::DeviceMemory { .. }), "{text}");
    assert!(text.contains("400000 bytes are available"), "{text}");
    // The memory is there when it is planned, and gone when it is requested.
    standin.set("memory=100000000 fail=cuMemAlloc_v2:9:2");
    let error = build(standin.open().unwrap(), "mha-f32/meta")
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(matches!(error, Error::DeviceMemory { .. }), "{text}");
    assert!(
        text.contains("the weights ") && text.contains("the KV pool"),
        "{text}"
    );
    standin.assert_clean();
}

#[test]
fn images_that_do_not_load() {
    let standin = Standin::new("");
    for (code, text) in [
        (
            209,
            "Emulated GPU 0 has compute capability 9.0, this build has kernels for 8.0 and newer",
        ),
        (
            222,
            "the NVIDIA driver is too old: it offers CUDA 13.0, this build needs CUDA 13.0",
        ),
        (
            7,
            "loading the kernels of part0: cuModuleLoadDataEx: an error without a name (7)",
        ),
    ] {
        standin.set(&format!("fail=cuModuleLoadDataEx:1:{code}"));
        let error = standin.open().err().unwrap().to_string();
        assert!(error.ends_with(text), "{error}");
        standin.assert_clean();
    }
    let mut images = standin::images();
    images.fatbins[1].1.to_mut()[0] = 0;
    let error = standin.open_with(&images).err().unwrap().to_string();
    assert_eq!(
        error,
        "loading the kernels of part1: cuModuleLoadDataEx: CUDA_ERROR_INVALID_IMAGE (200): \
         device kernel image is invalid"
    );
    let mut images = standin::images();
    images.fatbins.remove(0);
    let error = standin.open_with(&images).err().unwrap().to_string();
    assert!(
        error.contains(&format!("they lack `{}`", KERNELS[0])),
        "{error}"
    );
    standin.assert_clean();
}

/// A copy beyond the end of memory is refused before the driver sees it.
#[test]
fn copies_stay_inside() {
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let memory = Memory::zeroed(&cuda, "a test", 64).unwrap();
    assert!(memory.write_floats(60, &[1.0, 2.0]).is_err());
    let mut to = Landing::new(&cuda, 17).unwrap();
    assert!(to.fetch(&memory, 17).is_err());
    let mut short = Landing::new(&cuda, 2).unwrap();
    assert!(short.fetch(&memory, 3).is_err());
    assert!(memory.copy(0, 32, 16, 32, 2).is_err());
    // And the driver refuses what it is asked for by mistake, without reporting a misuse.
    let rows = Rows {
        at: memory.at(),
        width: 68,
        pitch: 68,
    };
    // SAFETY: the driver refuses it before it touches memory: that is what is tested.
    let error = unsafe { cuda.write(rows, &[0; 68]) }.unwrap_err();
    assert!(
        error.to_string().contains("CUDA_ERROR_INVALID_VALUE (1)"),
        "{error}"
    );
    drop((memory, to, short, cuda));
    standin.assert_clean();
}

/// If the driver does not record, launches go one by one, with the same tokens and a warning.
#[test]
fn steps_run_where_they_cannot_be_recorded() {
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    let want = {
        let standin = Standin::new("");
        let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
        let want = greedy(&llama, prompt(), 6).unwrap();
        assert!(standin.count("replays") > 3);
        want
    };
    for failure in [
        "cuStreamBeginCapture_v2:1:801",
        "cuStreamEndCapture:1:901",
        "cuGraphInstantiateWithFlags:1:2",
        "cuGraphUpload:1:2",
        "cuLaunchKernelEx:0:1",
    ] {
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let standin = Standin::new("seed=3");
        let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
        // Counts the launches of the prompt alone. In the next call, the third launch after those
        // of the same prompt fails.
        greedy(&llama, prompt(), 1).unwrap();
        let launches = standin.count("launches");
        let failure = failure.replace(":0:", &format!(":{}:", launches + 3));
        standin.set(&format!("fail={failure}"));
        for round in 0..2 {
            assert_eq!(
                greedy(&llama, prompt(), 6).unwrap(),
                want,
                "{failure}, {round}"
            );
        }
        assert_eq!(standin.count("replays"), 0, "{failure}");
        let warnings = warnings(&log);
        let (function, _) = failure.split_once(':').unwrap();
        assert_eq!(warnings.len(), 1, "{failure}: {warnings:?}");
        assert!(warnings[0].contains(function), "{warnings:?}");
        drop(llama);
        standin.assert_clean();
    }
}

/// The stand-in driver reports what may not happen while launches are recorded; other threads are
/// not restricted.
#[test]
fn a_record_is_spoilt_by_its_own_thread() {
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let other = Arc::new(standin.open().unwrap());
    cuda.begin_capture().unwrap();
    std::thread::scope(|scope| {
        let free = scope.spawn(|| Memory::zeroed(&other, "a test", 64).map(drop));
        free.join().unwrap().unwrap();
    });
    drop(cuda.end_capture().unwrap());
    drop((cuda, other));
    standin.assert_clean();
    for (mistake, words) in [
        (0, "cuMemAlloc_v2 while a stream records"),
        (1, "waiting for a stream that records"),
        (2, "cuEventSynchronize while a stream records"),
    ] {
        let standin = Standin::new("");
        let cuda = Arc::new(standin.open().unwrap());
        let memory = Memory::new(&cuda, "a test", 64).unwrap();
        cuda.begin_capture().unwrap();
        let outcome = match mistake {
            0 => Memory::new(&cuda, "a test", 64).map(drop),
            1 => cuda.synchronize(),
            _ => memory.write_floats(0, &[1.0]),
        };
        assert!(outcome.is_err(), "{words}");
        let error = cuda.end_capture().err().unwrap().to_string();
        assert!(error.contains("CAPTURE_INVALIDATED (901)"), "{error}");
        let (n, text) = standin.report();
        assert!(n > 0 && text.contains(words), "{text}");
        // Afterwards everything runs again.
        memory.write_floats(0, &[1.0]).unwrap();
    }
}

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
        again_with("cuda::steps_are_launched_ahead", VARIABLE);
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
        again_with("cuda::kernels_for_one_architecture", SWITCH);
    }
}

type Asked<'a> = &'a dyn Fn(&Standin) -> String;

fn this(standin: &Standin) -> String {
    standin.path().to_owned()
}

fn of_prompts(log: &Arc<Log>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 560,
        weights_dtype: Some(Dtype::Bf16),
        log: log.clone(),
        ..options()
    }
}

/// Log probabilities of two tokens after each prompt. `calls` has the lengths of the prompts of
/// each call; those of one call run at the same time.
fn of_calls(llama: &Llama, calls: &[&[usize]]) -> Vec<f32> {
    let prompt =
        |&n: &usize| Prompt::Tokens((0..n).map(|i| 1 + ((i * 37 + n) % 500) as Token).collect());
    let mut logprobs = Vec::new();
    for call in calls {
        let options = GenerateOptions {
            temperature: 0.0,
            logprobs: true,
            ignore_eos: true,
            max_gen_len: Some(2),
            ..GenerateOptions::default()
        };
        let prompts = call.iter().map(prompt).collect();
        let done = llama.generate(prompts, options, &mut |_| true).unwrap();
        logprobs.extend(done.sequences.iter().flat_map(|s| s.logprobs.clone()));
    }
    logprobs
}

#[track_caller]
fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-2, "{what}: {got} {want}");
    }
}

/// cuBLASLt, if it is asked for, gives the same numbers within rounding, and is asked for an
/// algorithm once for each shape. If it is missing, too old, or fails at any time, our own kernels
/// do the work, and that is logged once.
#[test]
fn products_by_a_library() {
    let walk = |settings: &str,
                asked: Option<Asked<'_>>,
                calls: &[&[usize]],
                change: &dyn Fn(&mut BuildOptions)| {
        let standin = Standin::new(settings);
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let mut options = of_prompts(&log);
        change(&mut options);
        let mut cuda = standin.open().unwrap();
        if let Some(asked) = asked {
            cuda = cuda.with_blaslt(&asked(&standin)).unwrap();
        }
        let llama = build_with(cuda, "gqa-bf16/meta", &options).unwrap();
        let logprobs = of_calls(&llama, calls);
        drop(llama);
        standin.assert_clean();
        let counts = (standin.count("heuristics"), standin.count("products"));
        (logprobs, counts, warnings(&log))
    };
    let same = |_: &mut BuildOptions| ();
    // Two shapes by rows, the first of them twice; small prompts do not go to the library.
    let calls: [&[usize]; 4] = [&[100], &[130], &[90], &[20]];
    let (want, counts, words) = walk("", None, &calls, &same);
    assert_eq!((counts, words.len()), ((0, 0), 0));
    for settings in ["", "seed=5"] {
        let (got, counts, words) = walk(settings, Some(&this), &calls, &same);
        assert!(words.is_empty(), "{words:?}");
        // Two layers, four products, three prompts; of up to 128 and up to 256 rows.
        assert_eq!(counts, (4 * 2, 2 * 4 * 3));
        assert_close(&got, &want, settings);
        assert_eq!(got[6..], want[6..], "a small one");
    }
    let absent = |_: &Standin| "/nowhere/libcublasLt.so".to_owned();
    let reasons: [(&str, Asked<'_>, &str); 6] = [
        ("", &absent, "/nowhere/libcublasLt.so: it cannot be opened"),
        ("blaslt=110803", &this, "version 110803, needed is 120000"),
        ("fail=cublasLtCreate:1:1", &this, "cublasLtCreate: status 1"),
        (
            "fail=cublasLtMatmulAlgoGetHeuristic:2:15",
            &this,
            "AlgoGetHeuristic: status 15",
        ),
        (
            "fail=cublasLtMatrixLayoutCreate:2:3",
            &this,
            "LayoutCreate: status 3",
        ),
        (
            "fail=cublasLtMatmul:3:13",
            &this,
            "cublasLtMatmul: status 13",
        ),
    ];
    for (settings, asked, reason) in reasons {
        let (got, _, words) = walk(settings, Some(asked), &calls, &same);
        assert_eq!(words.len(), 1, "{words:?}");
        assert!(words[0].contains(reason), "{words:?}");
        assert_close(&got, &want, reason);
    }
    // More rows than the sums have room for, so two groups of 260. The library may fail between the
    // two.
    let calls: [&[usize]; 1] = [&[520]];
    let (want, ..) = walk("", None, &calls, &same);
    let (got, counts, words) = walk("", Some(&this), &calls, &same);
    assert_eq!((counts, words.len()), ((4, 2 * (2 + 2 * 2)), 0));
    assert_close(&got, &want, "groups");
    let (got, (_, products), words) = walk("fail=cublasLtMatmul:2:13", Some(&this), &calls, &same);
    assert_eq!((products, words.len()), (1, 1), "{words:?}");
    assert_close(&got, &want, "half a product");
    // Rows of a prompt after a decode row, and an 8-bit cache.
    let calls: [&[usize]; 1] = [&[5, 150]];
    let mixed = |options: &mut BuildOptions| {
        options.prefill_chunk = Some(80);
        options.kv_dtype = Some(Dtype::Int8);
    };
    let (want, ..) = walk("", None, &calls, &mixed);
    let (got, (_, products), _) = walk("", Some(&this), &calls, &mixed);
    assert_eq!(
        products,
        2 * 4 * 2,
        "a step of prompts alone, and one beside decode"
    );
    assert_close(&got, &want, "beside decode");
}

/// The library and its buffers count towards the limit, and are given up if the model would not fit
/// beside them.
#[test]
fn a_library_takes_what_is_left() {
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let built = |standin: &Standin, limit: u64, weights: Dtype| {
        let options = BuildOptions {
            gpu_memory_bytes: limit,
            weights_dtype: Some(weights),
            ..of_prompts(&log)
        };
        let cuda = standin.open().unwrap();
        let cuda = cuda.with_blaslt(&this(standin)).unwrap();
        build_with(cuda, "gqa-bf16/meta", &options)
    };
    let standin = Standin::new("");
    let Some(Error::DeviceMemory { needed, .. }) = built(&standin, 1, Dtype::Bf16).err() else {
        panic!("one byte is not enough");
    };
    // How much it takes beside the model, by the driver's count.
    let taken = |limit: u64, weights: Dtype| {
        let llama = built(&standin, limit, weights).unwrap();
        let before = standin.count("products");
        let logprobs = of_calls(&llama, &[&[100]]);
        let bytes = standin.count("bytes");
        assert!(limit == 0 || bytes <= limit, "{bytes} of {limit}");
        drop(llama);
        standin.assert_clean();
        (bytes, standin.count("products") > before, logprobs)
    };
    let (most, used, want) = taken(0, Dtype::Bf16);
    assert!(used && warnings(&log).is_empty());
    let (least, used, _) = taken(needed, Dtype::Bf16);
    assert!(!used && least <= needed, "{least} of {needed}");
    let words = warnings(&log);
    assert!(
        words.len() == 1 && words[0].ends_with("the model leaves 0"),
        "{words:?}"
    );
    // The sums of gate and up for 512 rows, and the workspace.
    assert_eq!(most - least, (32 << 20) + 512 * 672 * 4);
    assert!(taken(needed + (most - least), Dtype::Bf16).1);
    assert!(warnings(&log).is_empty());
    let (bytes, used, got) = taken(needed + (most - least) - 1, Dtype::Bf16);
    assert_eq!((bytes, used, warnings(&log).len()), (least, false, 1));
    assert_close(&got, &want, "by our own kernels");
    // It keeps no memory for a library that it would never ask.
    let (bytes, used, _) = taken(0, Dtype::Int8);
    assert!(!used && bytes < 32 << 20, "{bytes}");
    assert!(warnings(&log).is_empty());
    // This much is free when it is opened, and no more.
    standin.set(&format!("memory={}", needed + (32 << 20) + 1000));
    assert!(!taken(0, Dtype::Bf16).1);
    assert_eq!(warnings(&log).len(), 1);
    // The memory is there when it is counted and gone when it is requested. Of the first
    // allocations (after the workspace), one is not the model's.
    standin.set("memory=100000000");
    let mut without = 0;
    for n in 2..16 {
        standin.set(&format!("fail=cuMemAlloc_v2:{n}:2"));
        if built(&standin, 0, Dtype::Bf16).is_ok() {
            let words = warnings(&log);
            assert!(
                words.len() == 1 && words[0].contains("sums of products"),
                "{words:?}"
            );
            without += 1;
        }
        standin.assert_clean();
    }
    assert_eq!(without, 1);
}

/// The log says how much memory the driver takes for graphs. If there is not enough, steps run
/// without graphs.
#[test]
fn graphs_take_memory() {
    let log = Arc::new(Log::new(Some(Level::Debug)));
    let options = BuildOptions {
        log: log.clone(),
        ..options()
    };
    let standin = Standin::new("graph=3000000");
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    let want = greedy(&llama, prompt(), 6).unwrap();
    let mut said = Vec::new();
    log.drain(|level, line| {
        if line.contains("CUDA graph") {
            said.push((level, line.to_owned()));
        }
    });
    let (levels, lines): (Vec<_>, Vec<_>) = said.into_iter().unzip();
    assert_eq!(levels, [Level::Debug], "{lines:?}");
    assert!(lines[0].contains(" 3000000 bytes"), "{lines:?}");
    drop(llama);
    standin.assert_clean();
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    // As much as the model needs, and a little more.
    let replays = standin.count("replays");
    standin.set(&format!("memory={}", standin.count("bytes") + 2_999_999));
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    assert_eq!(standin.count("replays"), replays);
    let words = warnings(&log);
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(
        words[0].contains("cuGraphUpload: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        "{words:?}"
    );
    drop(llama);
    standin.assert_clean();
    // A graph that is refused does not affect existing ones.
    standin.set("memory=1000000000");
    let llama = build_with(standin.open().unwrap(), "mha-f32/meta", &options).unwrap();
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    standin.set(&format!("memory={}", standin.count("bytes") + 2_999_999));
    let two = [prompt(), prompt()].concat();
    assert_eq!(
        greedy(&llama, two, 6).unwrap(),
        [&want[..], &want[..]].concat()
    );
    assert_eq!(warnings(&log).len(), 1);
    let replays = standin.count("replays");
    assert_eq!(greedy(&llama, prompt(), 6).unwrap(), want);
    assert!(standin.count("replays") > replays);
    drop(llama);
    standin.assert_clean();
}

/// Launches that start before the previous one has ended: kernels see nothing of what it wrote
/// until they have waited for it, and compute the same, bit for bit. If the kernels or the driver
/// are older, no launch starts early.
#[test]
fn kernels_wait_for_the_launch_before() {
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
        assert!(some > 50, "{some}");
        assert_eq!(got, want, "{kv_dtype}");
    }
}
