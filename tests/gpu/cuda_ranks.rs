//! Several ranks on the stand-in driver: on two of its GPUs, and on one of them.

use crate::common::reference;
use crate::cuda::{greedy, options, warnings};
use crate::emu::build as emulator;
use crate::emu::standin::{Standin, kernel_folder};
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Device, Error, Llama};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn build(standin: &Standin, devices: [usize; 2], log: &Arc<Log>) -> llamabi::Result<Llama> {
    let options = BuildOptions {
        devices: devices.to_vec(),
        log: log.clone(),
        ..options()
    };
    let open = |&index| standin.open_at(index).map(Arc::new);
    let opened = devices.iter().map(open).collect::<llamabi::Result<_>>()?;
    Llama::build_on_ranks(
        opened,
        &reference("mha-f32/meta"),
        None,
        &options,
        &mut |_| true,
    )
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
    for work in [1, 10, 41] {
        let standin = Standin::new("devices=2");
        let llama = build(&standin, [0, 1], &Arc::default()).unwrap();
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
        let llama = build(&standin, [0, 1], &Arc::default()).unwrap();
        assert_eq!(greedy(&llama, prompt(), 4).unwrap(), want);
        drop(llama);
        standin.assert_clean();
    }
}

/// Whatever call the driver refuses, on whichever rank: the build or the call ends with an error,
/// and nothing waits.
#[test]
fn any_call_may_fail_on_ranks() {
    let once = |standin: &Standin| -> llamabi::Result<()> {
        let llama = build(standin, [0, 1], &Arc::default())?;
        greedy(&llama, vec![vec![1, 500, 243]], 3).map(drop)
    };
    let standin = Standin::new("devices=2");
    once(&standin).unwrap();
    standin.assert_clean();
    let calls = standin.count("calls");
    let giving_back = ["Free", "Destroy", "Unload", "Release", "Ctx", "Synchronize"];
    let mut failures = 0;
    for n in (40..calls).step_by(97) {
        let standin = Standin::new(&format!("devices=2 fail=*:{n}:12345"));
        let outcome = once(&standin);
        let (left, report) = standin.report();
        let (_, function) = report.rsplit_once(' ').unwrap();
        let forgiven = giving_back.iter().any(|part| function.contains(part));
        assert!(left == 0 || forgiven, "call {n}: {report}");
        match outcome {
            Ok(()) => assert!(forgiven, "call {n}: {function}"),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(function), "call {n}, {function}: {text}");
                failures += 1;
            }
        }
    }
    assert!(failures > 10, "{failures}");
}

/// `devices` names GPUs: each once, unless LLAMABI_RANKS=staged. Runs this test again with the stand-in
/// as the system's driver.
#[test]
fn devices_are_gpus() {
    const CHILD: &str = "LLAMABI_TEST_CHILD";
    let build = |devices: &[usize]| {
        let options = BuildOptions {
            device: Device::Cuda,
            devices: devices.to_vec(),
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
        for (child, ranks) in [("plain", ""), ("staged", "staged")] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "cuda_ranks::devices_are_gpus"])
                .env(CHILD, child)
                .env("LLAMABI_RANKS", ranks)
                .env("LLAMABI_KERNELS", &kernels)
                .env("LD_LIBRARY_PATH", driver.parent().unwrap())
                .env("EMU_CUDA", "devices=2")
                .output()
                .unwrap();
            let out = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            let passed = output.status.success() && out.contains("1 passed");
            assert!(passed, "{child}: {out}{errors}");
        }
        return;
    };
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
        text(&[0, 2]),
        "devices[1] is 2, must be less than 2, the GPUs there are"
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
