//! What fails, hangs or refuses on a rank.

use super::models::{deep, endless};
use super::{By, build_by, build_of};
use crate::cuda::{greedy, options, warnings};
use crate::emu::standin::Standin;
use llamabi::log::{Level, Log};
use llamabi::{BuildOptions, Cancel, Error, Llama, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// A build that fails when all is loaded: no GPU waits for the others to end with it.
#[test]
fn a_build_that_fails_at_the_end() {
    let standin = Standin::new("devices=4 fail=ncclCommFinalize:1:3");
    let dir = endless();
    let error = build_of(dir.path(), &standin, &[0, 1, 2, 3], By::Nccl, options()).err();
    let text = error.unwrap().to_string();
    assert!(text.contains("end-of-sequence tokens"), "{text}");
    let (left, report) = standin.report();
    assert!(
        left == 0 && !report.contains("ncclCommFinalize"),
        "{report}"
    );
}

/// A build that is cancelled while GPUs wait for one another.
#[test]
fn a_build_that_is_cancelled_in_an_exchange() {
    let standin = Standin::new("devices=2 hang=1");
    let cancel = Cancel::new();
    let options = BuildOptions {
        rank_timeout_ms: 40_000,
        cancel: Some(cancel.clone()),
        ..options()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The exchange is under way by then, mostly; if not, the build is cancelled before it.
            std::thread::sleep(Duration::from_secs(1));
            cancel.trigger();
        });
        let error = build_by(&standin, &[0, 1], By::Nccl, options).err();
        assert!(matches!(error, Some(Error::Cancelled)), "{error:?}");
    });
    standin.assert_clean();
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
            "fail=ncclCommInitRankConfig:2:6",
            "ncclCommInitRankConfig: remote process exited or there was a network error (6)",
        ),
        (
            "fail=ncclCommGetAsyncError:2:6",
            "ncclCommGetAsyncError: remote process exited or there was a network error (6)",
        ),
        // In a step.
        (
            "fail=ncclAllGather:9:6",
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
    let standin = Standin::new("devices=2");
    let host = build_by(&standin, &[0, 1], By::Host, options()).unwrap();
    let want = greedy(&host, prompt(), 20).unwrap();
    drop(host);
    standin.assert_clean();
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
    let once = |standin: &Standin, log: &Arc<Log>| -> llamabi::Result<(Llama, Vec<Vec<Token>>)> {
        let options = BuildOptions {
            rank_timeout_ms: 3_000,
            log: log.clone(),
            ..options()
        };
        let llama = build_by(standin, &[0, 1], by, options)?;
        let tokens = call(&llama)?;
        Ok((llama, tokens))
    };
    let standin = Standin::new(settings);
    let new_log = || Arc::new(Log::new(Some(Level::Warn)));
    let (llama, want) = once(&standin, &new_log()).unwrap();
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
        let log = new_log();
        let warned = |function: &str| {
            let words = format!("{function}: an error without a name (12345)");
            warnings(&log).iter().any(|line| line.contains(&words))
        };
        let outcome = once(&standin, &log).and_then(|(llama, tokens)| {
            assert_eq!(tokens, want, "call {n}");
            // Another rank may fail when rank 0 has all that it needs. The next call hears of it.
            match failed() {
                // A step that cannot be recorded is launched, and the log says so.
                (function, ..) if warned(&function) => Ok(()),
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
