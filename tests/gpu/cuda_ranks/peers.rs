//! Ranks on GPUs of the stand-in driver that reach each other's memory.

use super::failing::any_call_may_fail;
use super::models::wide;
use super::{By, bits, build_by, build_of};
use crate::cuda::{greedy, options};
use crate::emu::standin::Standin;
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Error, Llama, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn prompts() -> Vec<Vec<Token>> {
    vec![vec![1, 500, 243, 283, 146], vec![7, 8, 9]]
}

/// What the log says of how ranks exchange, without the order of the lines.
fn says(log: &Log) -> String {
    let mut lines = Vec::new();
    log.drain(|_, line| lines.push(line.to_owned()));
    lines.retain(|line| line.contains("rank"));
    lines.sort();
    lines.join("\n")
}

/// The bits of sums that kernels read from other GPUs are those of sums by the host. Steps are
/// recorded and run ahead. NCCL moves nothing but logits.
#[test]
fn sums_from_gpu_to_gpu() {
    for (settings, devices) in [
        ("devices=2 peers=1", &[0, 1][..]),
        ("devices=2 peers=1 seed=5", &[1, 0]),
        ("devices=4 peers=1 seed=6", &[0, 1, 2, 3]),
    ] {
        let standin = Standin::new(settings);
        let host = build_by(&standin, devices, By::Host, options()).unwrap();
        let want = (greedy(&host, prompts(), 12).unwrap(), bits(&host));
        drop(host);
        assert_eq!(standin.count("met"), 0);
        let llama = build_by(&standin, devices, By::Nccl, options()).unwrap();
        for _ in 0..2 {
            let got = (greedy(&llama, prompts(), 12).unwrap(), bits(&llama));
            assert_eq!(got, want, "{settings}");
        }
        drop(llama);
        for what in ["replays", "ahead", "met"] {
            let report = standin.report();
            assert!(standin.count(what) > 20, "{settings}: {report:?}");
        }
        standin.assert_clean();
    }
}

/// Sums of many rows go by NCCL, those of few before and after them do not.
#[test]
fn long_prompts_between_steps() {
    let dir = wide();
    let standin = Standin::new("devices=2 peers=1 seed=3");
    let log = Arc::new(Log::new(Some(Level::Info)));
    let build = |by| {
        let options = BuildOptions {
            log: log.clone(),
            rank_timeout_ms: 600_000,
            ..options()
        };
        build_of(dir.path(), &standin, &[0, 1], by, options).unwrap()
    };
    let long = || vec![(0..33).map(|i| (i * 31 + 3) % 500).collect()];
    let run = |llama: Llama| {
        [prompts(), long(), prompts()].map(|prompts| greedy(&llama, prompts, 2).unwrap())
    };
    let want = run(build(By::Host));
    log.drain(|_, _| {});
    let llama = build(By::Nccl);
    let says = says(&log);
    assert!(
        says.contains("sums of up to 32 rows from GPU to GPU"),
        "{says}"
    );
    let before = standin.count("exchanges");
    assert_eq!(run(llama), want);
    // Six steps gather logits; the long prompt has three sums besides. Two ranks count them.
    assert_eq!(standin.count("exchanges"), before + 2 * (6 + 3));
    standin.assert_clean();
}

/// Where GPUs do not reach each other, or only by PCIe, all sums go by NCCL.
#[test]
fn gpus_without_nvlink() {
    for (peers, why) in [
        (0, "GPU 0 does not reach GPU 1"),
        (2, "GPU 0 has no NVLink to GPU 1"),
    ] {
        let standin = Standin::new(&format!("devices=2 peers={peers}"));
        let log = Arc::new(Log::new(Some(Level::Info)));
        let options = BuildOptions {
            log: log.clone(),
            ..options()
        };
        let llama = build_by(&standin, &[0, 1], By::Nccl, options).unwrap();
        greedy(&llama, prompts(), 2).unwrap();
        let says = says(&log);
        assert!(
            says.contains(&format!("all sums of the ranks go by NCCL: {why}")),
            "{says}"
        );
        assert_eq!(standin.count("met"), 0);
        drop(llama);
        standin.assert_clean();
    }
}

/// The work of one GPU fails: kernels of the others do not wait for it.
#[test]
fn a_gpu_that_others_wait_for() {
    for work in [1, 12, 33, 60] {
        let standin = Standin::new("devices=2 peers=1");
        let build = || build_by(&standin, &[0, 1], By::Nccl, options());
        let llama = build().unwrap();
        let want = greedy(&llama, prompts(), 4).unwrap();
        standin.set(&format!("fail=work:{work}:700"));
        let start = Instant::now();
        let error = greedy(&llama, prompts(), 4).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{text}");
        drop(llama);
        assert!(start.elapsed() < Duration::from_secs(20));
        standin.assert_clean();
        let llama = build().unwrap();
        assert_eq!(greedy(&llama, prompts(), 4).unwrap(), want);
        drop(llama);
        standin.assert_clean();
    }
}

/// A rank whose GPU never does what it was told: the others say so in time.
#[test]
fn a_gpu_that_never_comes() {
    for what in ["hang=9", "hang=14", "stuck=9"] {
        let standin = Standin::new(&format!("devices=2 peers=1 {what}"));
        let options = BuildOptions {
            rank_timeout_ms: 1_500,
            ..options()
        };
        let start = Instant::now();
        let llama = build_by(&standin, &[0, 1], By::Nccl, options).unwrap();
        let error = greedy(&llama, prompts(), 9).unwrap_err();
        assert!(matches!(error, Error::Peer(_)), "{error}");
        drop(llama);
        assert!(start.elapsed() < Duration::from_secs(20));
        let (left, report) = standin.report();
        assert!(report.contains(" 0 misuses"), "{report}");
        assert_eq!(left > 0, what.starts_with("stuck"), "{report}");
    }
}

/// Whatever call the driver refuses: nothing waits, and nothing is left behind.
#[test]
fn any_call_may_fail_beside_peers() {
    any_call_may_fail(By::Nccl, "devices=2 peers=1", 499);
}
