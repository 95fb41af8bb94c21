//! Several ranks on the stand-in driver: on two of its GPUs, and on one of them.

use crate::checkpoints::TempDir;
use crate::common::reference;
use crate::cuda::{greedy, options, warnings};
use crate::emu::build as emulator;
use crate::emu::standin::{Standin, kernel_folder};
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Device, Error, Llama, Token};
use safetensors::tensor::TensorView;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What moves the ranks' numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Host,
    Nccl,
}

pub fn build_by(
    standin: &Standin,
    devices: &[usize],
    by: By,
    options: BuildOptions,
) -> llamabi::Result<Llama> {
    build_of(&reference("mha-f32/meta"), standin, devices, by, options)
}

pub fn build_of(
    dir: &Path,
    standin: &Standin,
    devices: &[usize],
    by: By,
    options: BuildOptions,
) -> llamabi::Result<Llama> {
    let options = BuildOptions {
        devices: devices.to_vec(),
        ..options
    };
    let open = |&index| {
        let cuda = standin.open_at(index)?;
        Ok(Arc::new(match by {
            By::Host => cuda,
            By::Nccl => cuda.with_nccl(standin.path()).unwrap(),
        }))
    };
    let opened = devices.iter().map(open).collect::<llamabi::Result<_>>()?;
    Llama::build_on_ranks(opened, dir, None, &options, &mut |_| true)
}

pub type Tensors = Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>;

/// The checkpoint `mha-f32/hf` with other tensors, and some words of its configuration replaced.
pub fn changed(tensors: impl FnOnce(Tensors) -> Tensors, words: &[[&str; 2]]) -> TempDir {
    let (dir, model) = (TempDir::new(), reference("mha-f32/hf"));
    let bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, TensorView<'_>)| {
        (
            name,
            view.dtype(),
            view.shape().to_vec(),
            view.data().to_vec(),
        )
    };
    let all = tensors(all.tensors().into_iter().map(tensor).collect());
    let views = all.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let file = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let mut config = std::fs::read_to_string(model.join("config.json")).unwrap();
    for [from, to] in words {
        assert!(config.contains(from), "{config}");
        config = config.replace(from, to);
    }
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let tokenizer = "tokenizer.model";
    std::fs::copy(model.join(tokenizer), dir.path().join(tokenizer)).unwrap();
    dir
}

/// With a vocabulary of 521 tokens, so that rows of logits are padded on a device.
fn odd_vocabulary() -> TempDir {
    let longer = |mut all: Tensors| {
        for (_, _, shape, data) in all.iter_mut().filter(|(_, _, shape, _)| shape[0] == 512) {
            data.extend_from_within(..9 * data.len() / 512);
            shape[0] = 521;
        }
        all
    };
    changed(longer, &[["\"vocab_size\": 512", "\"vocab_size\": 521"]])
}

/// With so many layers, all like the first.
fn deep(layers: usize) -> TempDir {
    let more = |all: Tensors| {
        let first = "model.layers.0.";
        let of_layer = |(name, ..): &&(String, _, _, _)| name.starts_with(first);
        let outside = all
            .iter()
            .filter(|(name, ..)| !name.starts_with("model.layers."));
        let mut more: Tensors = outside.cloned().collect();
        for layer in 0..layers {
            more.extend(all.iter().filter(of_layer).cloned().map(|mut tensor| {
                tensor.0 = tensor.0.replace(first, &format!("model.layers.{layer}."));
                tensor
            }));
        }
        more
    };
    let layers = format!("\"num_hidden_layers\": {layers}");
    changed(more, &[["\"num_hidden_layers\": 3", &layers]])
}

/// Steps of the same form, some of which the device chooses for and some the host: how rows of
/// logits lie is different, and is not recorded.
#[test]
fn who_chooses_is_not_recorded() {
    let dir = odd_vocabulary();
    let generate = |llama: &Llama, top: usize| {
        let options = GenerateOptions {
            temperature: 0.0,
            max_gen_len: Some(6),
            ignore_eos: true,
            logprobs: true,
            top_logprobs: top,
            ..GenerateOptions::default()
        };
        let prompts = [vec![1, 500, 243], vec![1, 7, 8]];
        let prompts = prompts.into_iter().map(Prompt::Tokens).collect();
        let done = llama.generate(prompts, options, &mut |_| true).unwrap();
        let of = |s: &llamabi::llama::Sequence| (s.tokens.clone(), s.logprobs.clone());
        done.sequences.iter().map(of).collect::<Vec<_>>()
    };
    let standin = Standin::new("devices=2");
    let host = build_of(dir.path(), &standin, &[0, 1], By::Host, options()).unwrap();
    let want = generate(&host, 0);
    drop(host);
    let llama = build_of(dir.path(), &standin, &[0, 1], By::Nccl, options()).unwrap();
    for top in [0, 0, 521, 521, 0] {
        assert_eq!(generate(&llama, top), want, "{top}");
    }
    drop(llama);
    assert!(standin.count("replays") > 20);
    standin.assert_clean();
}

fn build(standin: &Standin, devices: [usize; 2], log: &Arc<Log>) -> llamabi::Result<Llama> {
    let options = BuildOptions {
        log: log.clone(),
        ..options()
    };
    build_by(standin, &devices, By::Host, options)
}

/// NCCL moves the same bits as the host's memory does; steps are recorded and run ahead.
#[test]
fn nccl_on_two_and_four() {
    let prompts = || vec![vec![1, 500, 243, 283, 146], vec![7, 8, 9]];
    for (settings, devices) in [
        ("devices=2", &[0, 1][..]),
        ("devices=2 seed=5", &[1, 0]),
        ("devices=4 seed=6", &[0, 1, 2, 3]),
    ] {
        let standin = Standin::new(settings);
        let host = build_by(&standin, devices, By::Host, options()).unwrap();
        let want = greedy(&host, prompts(), 12).unwrap();
        drop(host);
        assert_eq!(standin.count("replays"), 0);
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let llama = build_by(&standin, devices, By::Nccl, options).unwrap();
        for _ in 0..2 {
            assert_eq!(greedy(&llama, prompts(), 12).unwrap(), want, "{settings}");
        }
        assert_eq!(warnings(&log), Vec::<String>::new());
        drop(llama);
        for what in ["replays", "ahead", "exchanges"] {
            assert!(
                standin.count(what) > 20,
                "{settings}: {:?}",
                standin.report()
            );
        }
        standin.assert_clean();
    }
}

/// Log-probabilities of a prompt of several rows and of what follows it.
pub fn bits(llama: &Llama) -> String {
    let options = GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        echo: true,
        max_gen_len: Some(9),
        ..GenerateOptions::default()
    };
    let prompt = (0..37).map(|i| (i * 31 + 3) % 500).collect();
    let done = llama.generate(vec![Prompt::Tokens(prompt)], options, &mut |_| true);
    let done = done.unwrap();
    let sequence = &done.sequences[0];
    let bits = sequence.logprobs.iter();
    bits.map(|logprob| format!("{:08x}", logprob.to_bits()))
        .collect()
}

/// The same tokens and the same bits wherever ranks are, and whenever work runs. A log line says
/// how they exchange numbers.
#[test]
fn ranks_on_one_gpu_and_on_two() {
    let prompts = || vec![vec![1, 500, 243, 283, 146], vec![7, 8, 9]];
    let mut want = None;
    for (settings, devices) in [
        ("devices=2", [0, 1]),
        ("devices=2 seed=5", [1, 0]),
        ("devices=2 seed=6", [1, 1]),
        ("", [0, 0]),
    ] {
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let standin = Standin::new(settings);
        let llama = build(&standin, devices, &log).unwrap();
        let got = greedy(&llama, prompts(), 8).unwrap();
        assert_eq!(got, *want.get_or_insert(got.clone()), "{settings}");
        assert_eq!(standin.count("replays"), 0);
        let warnings = warnings(&log);
        assert!(
            warnings.len() == 1 && warnings[0].contains("through the memory of the host"),
            "{warnings:?}"
        );
        drop(llama);
        standin.assert_clean();
    }
    // One GPU says the same; in float32, sums in another order do not change these tokens.
    let standin = Standin::new("");
    let llama = crate::cuda::build(standin.open().unwrap(), "mha-f32/meta").unwrap();
    assert_eq!(greedy(&llama, prompts(), 8).unwrap(), want.unwrap());
}

/// The work of one GPU fails: the others of the handle do not wait for it.
#[test]
fn work_that_fails_on_a_rank() {
    for (work, by) in [
        (1, By::Host),
        (10, By::Host),
        (41, By::Host),
        (1, By::Nccl),
        (44, By::Nccl),
        (103, By::Nccl),
    ] {
        let standin = Standin::new("devices=2");
        let build = || build_by(&standin, &[0, 1], by, options());
        let llama = build().unwrap();
        let prompt = || vec![vec![1, 500, 243, 283, 146]];
        let want = greedy(&llama, prompt(), 4).unwrap();
        standin.set(&format!("fail=work:{work}:700"));
        let error = greedy(&llama, prompt(), 4).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Device(_)), "{text}");
        assert!(text.contains("rank "), "{text}");
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
        let error = greedy(&llama, prompt(), 4).unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        drop(llama);
        standin.assert_clean();
        let llama = build().unwrap();
        assert_eq!(greedy(&llama, prompt(), 4).unwrap(), want);
        drop(llama);
        standin.assert_clean();
    }
}

/// An exchange that never ends, or that NCCL says has lost a rank: a status within the time, on
/// every rank, and the handle can be freed. The first exchanges are those of the build.
#[test]
fn exchanges_that_do_not_end() {
    for seed in ["", " seed=9"] {
        for n in [1, 3, 20, 70] {
            for what in ["hang", "lost"] {
                let standin = Standin::new(&format!("devices=2 {what}={n}{seed}"));
                let options = BuildOptions {
                    rank_timeout_ms: if what == "hang" { 300 } else { 9_000 },
                    ..options()
                };
                let start = Instant::now();
                let outcome = build_by(&standin, &[0, 1], By::Nccl, options).and_then(|llama| {
                    for _ in 0..2 {
                        greedy(&llama, vec![vec![1, 500, 243, 283, 146]], 9)?;
                    }
                    Ok(())
                });
                let text = outcome.unwrap_err().to_string();
                let says = match what {
                    "hang" => "of 2 has waited for its device",
                    _ => "remote process exited or there was a network error (6)",
                };
                assert!(text.contains(says), "{what} {n}: {text}");
                assert!(start.elapsed() < Duration::from_secs(20), "{what} {n}");
                standin.assert_clean();
            }
        }
    }
}

/// A GPU that never gets idle, whatever is done: its memory is left behind, and the handle can be
/// freed even so.
#[test]
fn a_gpu_that_does_not_end() {
    let standin = Standin::new("devices=2 stuck=20");
    let options = BuildOptions {
        rank_timeout_ms: 300,
        ..options()
    };
    let start = Instant::now();
    let llama = build_by(&standin, &[0, 1], By::Nccl, options).unwrap();
    let error = greedy(&llama, vec![vec![1, 500, 243, 283, 146]], 9).unwrap_err();
    assert!(matches!(error, Error::Peer(_)), "{error}");
    drop(llama);
    assert!(start.elapsed() < Duration::from_secs(20));
    let (left, report) = standin.report();
    assert!(left > 0 && report.contains(" 0 misuses"), "{report}");
}

/// The caller may name the group. The name is used, and no other is made.
#[test]
fn a_group_that_the_caller_names() {
    let standin = Standin::new("devices=2 fail=ncclGetUniqueId:1:2");
    let mut group = [0; 128];
    let path = std::env::temp_dir().join(format!("llamabi-group-{}", std::process::id()));
    let name = path.to_str().unwrap().as_bytes();
    group[..name.len()].copy_from_slice(name);
    let options = BuildOptions {
        group: Some(group),
        ..options()
    };
    let build = || build_by(&standin, &[0, 1], By::Nccl, options.clone());
    let llama = build().unwrap();
    greedy(&llama, vec![vec![1, 500, 243]], 4).unwrap();
    drop(llama);
    assert!(standin.count("exchanges") > 10);
    standin.assert_clean();
    // It names one communicator only.
    let text = build().err().unwrap().to_string();
    assert!(text.contains("ncclCommInitRankConfig"), "{text}");
}

/// The host does not run far ahead of exchanges: where one never ends, a full stream would keep it
/// in the driver, where nothing watches.
#[test]
fn the_host_keeps_pace() {
    let dir = deep(40);
    // Sums go by NCCL, or by kernels that wait for the other GPU.
    for settings in ["hang=10", "hang=3 peers=1"] {
        let standin = Standin::new(&format!("devices=2 full=300 {settings}"));
        let options = BuildOptions {
            rank_timeout_ms: 3_000,
            ..options()
        };
        let llama = build_of(dir.path(), &standin, &[0, 1], By::Nccl, options).unwrap();
        let error = greedy(&llama, vec![vec![1, 500, 243]], 2).unwrap_err();
        assert!(matches!(error, Error::Peer(_)), "{settings}: {error}");
        drop(llama);
        standin.assert_clean();
    }
}

/// What NCCL refuses: a sentence, or numbers that go through the host.
#[test]
fn nccl_that_refuses() {
    let once = |settings: &str| -> (llamabi::Result<Vec<Vec<Token>>>, Vec<String>) {
        let log = Arc::new(Log::new(Some(Level::Warn)));
        let standin = Standin::new(&format!("devices=2 {settings}"));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let llama = build_by(&standin, &[0, 1], By::Nccl, options);
        let tokens = llama.and_then(|llama| greedy(&llama, vec![vec![1, 500, 243]], 8));
        standin.assert_clean();
        (tokens, warnings(&log))
    };
    let (want, said) = once("");
    let want = want.unwrap();
    assert_eq!(said, Vec::<String>::new());
    let (tokens, said) = once("fail=ncclGetUniqueId:1:2");
    assert_eq!(tokens.unwrap(), want);
    assert!(
        said.len() == 1 && said[0].contains("NCCL is not used: NCCL: ncclGetUniqueId: an error"),
        "{said:?}"
    );
    for (settings, sentence) in [
        (
            "fail=ncclCommInitRankConfig:2:3",
            "ncclCommInitRankConfig: an error of the stand-in (3)",
        ),
        // The first of each rank tries it out.
        (
            "fail=ncclAllGather:2:3",
            "ncclAllGather: an error of the stand-in (3)",
        ),
        (
            "fail=ncclAllGather:3:3",
            "ncclAllGather: an error of the stand-in (3)",
        ),
        (
            "fail=ncclAllGather:3:6",
            "ncclAllGather: remote process exited or there was a network error (6)",
        ),
        (
            "fail=ncclCommGetAsyncError:2:1",
            "ncclCommGetAsyncError: an error of the stand-in (1)",
        ),
    ] {
        let (tokens, _) = once(settings);
        let error = tokens.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(sentence), "{settings}: {text}");
        let remote = settings.ends_with(":6");
        assert_eq!(
            matches!(error, Error::Peer(_)),
            remote,
            "{settings}: {text}"
        );
    }
    let standin = Standin::new("nccl=21805");
    let why = standin
        .open()
        .unwrap()
        .with_nccl(standin.path())
        .err()
        .unwrap();
    assert!(why.ends_with("version 21805, needed is 21900"), "{why}");
    let why = standin
        .open()
        .unwrap()
        .with_nccl("/no/libnccl.so")
        .err()
        .unwrap();
    assert_eq!(why, "/no/libnccl.so: it cannot be opened");
}

/// A rank that cannot record a step: then none does, and the tokens are the same.
#[test]
fn a_rank_that_records_nothing() {
    let prompt = || vec![vec![1, 500, 243, 283, 146]];
    for function in [
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphUpload",
    ] {
        for n in 1..=2 {
            let standin = Standin::new(&format!("devices=2 fail={function}:{n}:2"));
            let log = Arc::new(Log::new(Some(Level::Warn)));
            let options = BuildOptions {
                log: log.clone(),
                ..options()
            };
            let host = build_by(&standin, &[0, 1], By::Host, options.clone()).unwrap();
            let want = greedy(&host, prompt(), 20).unwrap();
            drop(host);
            log.drain(|_, _| {});
            let llama = build_by(&standin, &[0, 1], By::Nccl, options).unwrap();
            for _ in 0..2 {
                assert_eq!(greedy(&llama, prompt(), 20).unwrap(), want);
            }
            drop(llama);
            let said = warnings(&log).join("; ");
            assert!(
                said.contains("another rank recorded none"),
                "{function} {n}: {said}"
            );
            assert!(said.contains("(2)"), "{function} {n}: {said}");
            // What both had recorded before is used on both.
            assert_eq!(standin.count("replays") % 2, 0);
            standin.assert_clean();
        }
    }
}

/// Whatever call the driver refuses, on whichever rank: the build or the call ends with an error,
/// and nothing waits.
#[test]
fn any_call_may_fail_on_ranks() {
    any_call_may_fail(By::Host, "devices=2", 97);
    any_call_may_fail(By::Nccl, "devices=2", 181);
}

pub fn any_call_may_fail(by: By, settings: &str, every: usize) {
    let call = |llama: &Llama| greedy(llama, vec![vec![1, 500, 243]], 6);
    let once = |standin: &Standin| -> llamabi::Result<(Llama, Vec<Vec<Token>>)> {
        let options = BuildOptions {
            rank_timeout_ms: 3_000,
            ..options()
        };
        let llama = build_by(standin, &[0, 1], by, options)?;
        let tokens = call(&llama)?;
        Ok((llama, tokens))
    };
    let standin = Standin::new(settings);
    let (llama, want) = once(&standin).unwrap();
    drop(llama);
    standin.assert_clean();
    let calls = standin.count("calls");
    let giving_back = [
        "Free",
        "Destroy",
        "Unload",
        "Release",
        "Ctx",
        "Exchange",
        "Synchronize",
        "Query",
        "Finalize",
        "Abort",
        // A step that cannot be recorded is launched.
        "Capture",
        "Graph",
        "ncclAllGather",
        "ncclCommGetAsyncError",
        // Without a name for a group, numbers go through the host.
        "ncclGetUniqueId",
    ];
    let mut failures = 0;
    for n in (40..calls).step_by(every) {
        let standin = Standin::new(&format!("{settings} fail=*:{n}:12345"));
        let failed = || {
            let (left, report) = standin.report();
            let (_, function) = report.rsplit_once(' ').unwrap();
            // Waits ask as often as they have time for, so not every run has as many calls.
            let forgiven =
                function.is_empty() || giving_back.iter().any(|part| function.contains(part));
            (function.to_string(), forgiven, left, report)
        };
        let outcome = once(&standin).and_then(|(llama, tokens)| {
            assert_eq!(tokens, want, "call {n}");
            // Another rank may fail when rank 0 has all that it needs. The next call hears of it.
            match failed() {
                (function, false, ..) => {
                    call(&llama)?;
                    panic!("call {n}: nobody has heard of {function}");
                }
                _ => Ok(()),
            }
        });
        let (function, forgiven, left, report) = failed();
        assert!(left == 0 || forgiven, "call {n}: {report}");
        if let Err(error) = outcome {
            let text = error.to_string();
            assert!(text.contains(&function), "call {n}, {function}: {text}");
            failures += 1;
        }
    }
    assert!(failures > 10, "{failures}");
}

/// `devices` names GPUs: each once, unless LLAMABI_RANKS=staged. Runs this test again with the
/// stand-in as the system's driver, and as the NCCL that LLAMABI_NCCL names. The bits are the same
/// whatever moves numbers, in slices or whole.
#[test]
fn devices_are_gpus() {
    const CHILD: &str = "LLAMABI_TEST_CHILD";
    let log = Arc::new(Log::new(Some(Level::Warn)));
    let build = |devices: &[usize]| {
        let options = BuildOptions {
            device: Device::Cuda,
            devices: devices.to_vec(),
            log: log.clone(),
            ..options()
        };
        Llama::build(&reference("mha-f32/meta"), None, &options, &mut |_| true)
    };
    let text = |devices: &[usize]| build(devices).err().unwrap().to_string();
    let Ok(child) = std::env::var(CHILD) else {
        let kernels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ranks-kernels");
        kernel_folder(&kernels);
        let driver = emulator::driver();
        let _share = emulator::Share::new();
        let mut bits = None;
        for (child, ranks, nccl) in [
            ("plain", "", Path::new("")),
            ("staged", "staged", &driver),
            ("nccl", "", &driver),
            ("slices", "slices", &driver),
        ] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cuda_ranks::devices_are_gpus"])
                .env(CHILD, child)
                .env("LLAMABI_RANKS", ranks)
                .env("LLAMABI_KERNELS", &kernels)
                .env("LD_LIBRARY_PATH", driver.parent().unwrap())
                .env("LLAMABI_NCCL", nccl)
                .env("EMU_CUDA", "devices=4")
                .arg("--nocapture")
                .output()
                .unwrap();
            let out = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            let passed = output.status.success() && out.contains("1 passed");
            assert!(passed, "{child}: {out}{errors}");
            let got = out
                .lines()
                .find_map(|line| line.strip_prefix("BITS "))
                .unwrap();
            let got = got.to_owned();
            assert_eq!(got, *bits.get_or_insert(got.clone()), "{child}");
        }
        return;
    };
    let four = build(&[0, 3, 2, 1]).unwrap();
    let by_host = warnings(&log)
        .iter()
        .any(|line| line.contains("memory of the host"));
    assert_eq!(by_host, ["plain", "staged"].contains(&&*child));
    println!("\nBITS {}", bits(&four));
    drop(four);
    let two = build(&[0, 1]).unwrap();
    let names: Vec<_> = two
        .info()
        .ranks
        .iter()
        .map(|rank| &rank.device_name)
        .collect();
    assert!(
        names[0].starts_with("Emulated GPU 0") && names[1].starts_with("Emulated GPU 1"),
        "{names:?}"
    );
    let prompt = || vec![vec![1, 500, 243]];
    let want = greedy(&two, prompt(), 4).unwrap();
    assert_eq!(
        text(&[0, 4]),
        "devices[1] is 4, must be less than 4, the GPUs there are"
    );
    match child.as_str() {
        "staged" => {
            let both = build(&[1, 1]).unwrap();
            assert_eq!(greedy(&both, prompt(), 4).unwrap(), want);
        }
        _ => assert_eq!(
            text(&[1, 0, 1]),
            "devices[2] is 1, must be a GPU that has no rank yet"
        ),
    }
}
