//! Several ranks on the stand-in driver: on two of its GPUs, and on one of them.

mod failing;
mod models;
mod peers;

use crate::common::reference;
use crate::cuda::{greedy, options, warnings};
use crate::emu::build as emulator;
use crate::emu::standin::{Standin, kernel_folder};
use llamabi::engine::{Event, GenerateOptions, Next, Prompt};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Device, Llama};
use models::odd_vocabulary;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

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

/// Steps of the same form, some of which the device chooses for and some the host: how rows of
/// logits lie is different, and is not recorded.
#[test]
fn who_chooses_is_not_recorded() {
    let dir = odd_vocabulary();
    let options_of = |top| GenerateOptions {
        temperature: 0.0,
        max_gen_len: Some(6),
        ignore_eos: true,
        logprobs: true,
        top_logprobs: top,
        ..GenerateOptions::default()
    };
    let prompts = || [vec![1, 500, 243], vec![1, 7, 8]].map(Prompt::Tokens);
    let generate = |llama: &Llama, top: usize| {
        let prompts = prompts().into_iter().collect();
        let done = llama
            .generate(prompts, options_of(top), &mut |_| true)
            .unwrap();
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
    // The host chooses for one row of a step, and the device for the other.
    for tops in [[0, 521], [521, 0]] {
        let asked = prompts().into_iter().zip(tops);
        let open = |(prompt, top)| llama.stream(vec![prompt], options_of(top)).unwrap();
        let streams: Vec<_> = asked.map(open).collect();
        for (stream, (tokens, _)) in streams.iter().zip(&want) {
            let mut got = Vec::new();
            while let Next::Event(event) = stream.next(None).unwrap() {
                if let Event::Token(event) = event {
                    got.push(event.token);
                }
            }
            assert_eq!(&got, tokens, "{tops:?}");
        }
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
