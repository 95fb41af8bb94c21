//! The driver's side of the GPU backend, on a stand-in driver that runs the kernels on the CPU and
//! is as asynchronous as a driver may be (`kernels/emu/cuda`).
#![allow(unsafe_code)]

use crate::common::{json, reference, tokens};
use crate::emu::real;
use crate::emu::standin::{self, Standin};
use llamabi::backend::gpu::cuda::Cuda;
use llamabi::backend::gpu::device::{Device, Rows};
use llamabi::backend::gpu::kernels::KERNELS;
use llamabi::backend::gpu::memory::{Landing, Memory};
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Dtype, Error, Llama, Token};
use std::sync::Arc;

pub fn options() -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 4,
        weights_dtype: Some(Dtype::F32),
        ..BuildOptions::default()
    }
}

pub fn build(cuda: Cuda, model: &str) -> llamabi::Result<Llama> {
    build_with(cuda, model, &options())
}

pub fn build_with(cuda: Cuda, model: &str, options: &BuildOptions) -> llamabi::Result<Llama> {
    let dir = reference(model);
    Llama::build_on(Arc::new(cuda), &dir, None, options, &mut |_| true)
}

/// Warnings that were logged.
pub fn warnings(log: &Log) -> Vec<String> {
    let mut lines = Vec::new();
    log.drain(|level, line| {
        if level == Level::Warn {
            lines.push(line.to_owned());
        }
    });
    lines
}

pub fn greedy(
    llama: &Llama,
    prompts: Vec<Vec<Token>>,
    n: usize,
) -> llamabi::Result<Vec<Vec<Token>>> {
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

/// Covers everything that goes through the page-locked buffers of 2 MiB: less than a buffer,
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

/// As many copies as a step has wait for nothing, since the step before may be in front of them.
#[test]
fn the_copies_of_a_step_wait_for_nothing() {
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let memory = Memory::new(&cuda, "a test", 64).unwrap();
    for at in 0..4 {
        memory.write_floats(16 * at, &[at as f32; 4]).unwrap();
    }
    // Nothing runs in the stand-in before somebody waits for it.
    assert_eq!(standin.count("copies"), 0);
    let to = fetched(&cuda, &memory, 16);
    assert!(to.iter().enumerate().all(|(i, &x)| x == (i / 4) as f32));
    drop((memory, cuda));
    standin.assert_clean();
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
    // Memory whose release fails is left behind; so is the thread's mode.
    let giving_back = [
        "Free",
        "Destroy",
        "Unload",
        "Release",
        "Ctx",
        "Exchange",
        "Synchronize",
    ];
    let (mut failures, mut unrecorded) = (0, 0);
    // All of the first calls, then one in every 19: a prime, so that it meets each kind of call.
    for n in (1..60).chain((60..calls).step_by(19)) {
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
                let entered = ["cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"];
                let open = entered.contains(&function) && text.contains("CAPTURE");
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

/// The host records a stream of its own on another thread, as PyTorch does: nothing that a handle
/// does from its beginning to its end disturbs that.
#[test]
fn a_host_that_records_a_stream_is_not_disturbed() {
    let run = |settings: &str| {
        let standin = Standin::new(settings);
        let llama = build(standin.open().unwrap(), "mha-f32/meta").unwrap();
        let got = greedy(&llama, vec![vec![1, 500, 243, 283, 146], vec![7]], 4).unwrap();
        drop(llama);
        standin.assert_clean();
        got
    };
    assert_eq!(run("captures=1"), run(""));
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

/// What was launched may still use memory for whose end nobody could wait.
#[test]
fn memory_that_may_be_in_use_is_left_behind() {
    let standin = Standin::new("");
    let cuda = Arc::new(standin.open().unwrap());
    let [kept, freed] = [0; 2].map(|_| Memory::zeroed(&cuda, "a test", 4096).unwrap());
    let all = standin.count("bytes");
    cuda.begin_capture().unwrap();
    std::thread::scope(|scope| {
        let error = scope.spawn(|| kept.free()).join().unwrap().unwrap_err();
        assert!(error.to_string().contains("CAPTURE_UNSUPPORTED"), "{error}");
    });
    assert!(
        cuda.end_capture().is_err(),
        "the wait has spoilt the record"
    );
    assert_eq!(standin.count("bytes"), all);
    // One failure of a wait is none of the next one, which finds that nothing is under way.
    standin.set("fail=cuStreamSynchronize:1:12345");
    freed.free().unwrap();
    assert_eq!(standin.count("bytes"), all - 4096);
}
