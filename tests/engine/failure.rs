//! What goes wrong fails a call or the handle, and never more than that.

use crate::support::*;
use llamabi::backend::{Answer, Choices, Limits, Run, Step};
use llamabi::capi::status_of;
use llamabi::engine::{Engine, Event, FinishReason, GenerateOptions, Next, Stream};
use llamabi::log::{Level, Log};
use llamabi::{Error, Result, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn token(stream: &Stream) -> Token {
    match stream.next(Some(PATIENCE)).unwrap() {
        Next::Event(Event::Token(e)) => e.token,
        other => panic!("{other:?}"),
    }
}

fn error(stream: &Stream) -> Error {
    loop {
        match stream.next(Some(PATIENCE)) {
            Ok(Next::Event(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
}

#[test]
fn without_a_finite_logit_the_sequence_ends_alone() {
    for ahead in [false, true] {
        let think = |history: &History, logits: &mut [f32]| {
            alphabet(history, logits);
            if history.last().unwrap().0 == 20 {
                logits[..IDS].fill(f32::NAN);
            }
        };
        let (host, _) = Setup::default().start_ahead(ahead, think);
        let good = host.submit(vec![prompt("a")], length(9)).unwrap();
        // 20 is r; the second sequence gets there with its third token.
        let both = host.run(vec![prompt("a"), prompt("o")], length(12));
        assert_eq!(both[0].text, "bcdefghijklm");
        assert_eq!(both[0].reason(), FinishReason::Length);
        assert_eq!(
            (&both[1].text[..], both[1].reason()),
            ("pqr", FinishReason::NotFinite)
        );
        assert_eq!(both[1].stats.generated_tokens, 3);
        assert_eq!(collect(&good, 1).unwrap().0[0].text, "bcdefghij");
        assert_eq!(host.one(prompt("a"), length(3)).text, "bcd");
        host.assert_empty();
    }

    // The same where only a score was wanted.
    let think = |_: &History, logits: &mut [f32]| logits.fill(f32::NEG_INFINITY);
    let (host, _) = Setup::default().start(think);
    let options = GenerateOptions {
        echo: true,
        logprobs: true,
        ..length(0)
    };
    let got = host.one(prompt("abc"), options);
    assert_eq!(
        (got.reason(), got.tokens.len()),
        (FinishReason::NotFinite, 1)
    );
    host.assert_empty();
}

/// One logit that is not finite makes its token impossible, and no probability NaN. (For a device's
/// own sampler: `tests/gpu/sampling.rs`.)
#[test]
fn a_logit_that_is_not_finite_is_an_impossible_token() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let think = move |history: &History, logits: &mut [f32]| {
            alphabet(history, logits);
            // The one that would come next.
            let next = logits.iter().position(|logit| *logit > 0.0).unwrap();
            logits[next] = bad;
        };
        let (host, _) = Setup::default().start(think);
        let options = GenerateOptions {
            logprobs: true,
            top_logprobs: VOCAB,
            ..length(5)
        };
        let got = host.one(prompt("a"), options);
        assert_eq!((got.reason(), got.tokens.len()), (FinishReason::Length, 5));
        assert!(got.logprobs.iter().all(|x| x.is_finite() && *x <= 0.0));
        for top in &got.top {
            assert!(top.iter().all(|a| a.logprob <= 0.0), "NaN is not");
            let impossible = top.iter().filter(|a| a.logprob == f32::NEG_INFINITY);
            assert_eq!(impossible.count(), 1);
        }
    }
}

/// One call runs, one waits; `break_it` breaks the engine. Returns what both calls get.
fn broken(
    think: impl FnMut(&History, &mut [f32]) + Send + 'static,
    break_it: impl FnOnce(&Host, &Probe),
) -> (Error, Error) {
    let (host, probe) = Setup {
        max_batch_size: 1,
        ..Setup::default()
    }
    .start(think);
    probe.hold();
    let running = host.submit(vec![prompt("a")], length(9)).unwrap();
    let waiting = host.submit(vec![prompt("a")], length(9)).unwrap();
    probe.wait_for(1);
    break_it(&host, &probe);
    probe.release();
    let errors = (error(&running), error(&waiting));
    assert_eq!(
        running.next(None).unwrap_err().to_string(),
        errors.0.to_string()
    );
    let later = host.submit(vec![prompt("a")], length(9)).err().unwrap();
    assert!(matches!(later, Error::Poisoned(_)), "{later}");
    assert_eq!(status_of(&later), -13);
    let text = later.to_string();
    assert!(
        text.contains("bad") || text.contains("device on fire"),
        "{text}"
    );
    // The thread ends after the step it is in.
    let start = Instant::now();
    while host.engine.timings().pages_used > 0 {
        assert!(start.elapsed() < PATIENCE);
    }
    host.assert_empty();
    // Neither shutdown nor another failure makes it usable or hangs.
    host.engine.shutdown();
    host.engine.poison("again");
    assert!(host.submit(vec![prompt("a")], length(9)).is_err());
    errors
}

#[test]
fn a_panic_in_the_model_poisons_the_handle() {
    let (running, waiting) = broken(|_, _| panic!("bad {}", "tensor"), |_, _| {});
    for error in [running, waiting] {
        assert!(
            matches!(&error, Error::Internal(text) if text.contains("bad tensor")),
            "{error}"
        );
    }
    let (running, _) = broken(|_, _| panic!("bad"), |_, _| {});
    assert!(
        matches!(&running, Error::Internal(text) if text.contains("bad")),
        "{running}"
    );
}

#[test]
fn an_error_of_the_model_poisons_the_handle() {
    let device = Error::Device("device on fire".into());
    let (running, waiting) = broken(alphabet, |_, probe| probe.fail(device));
    assert!(matches!(
        (running, waiting),
        (Error::Device(_), Error::Device(_))
    ));
    let other = Error::Unsupported("bad op".into());
    let (running, _) = broken(alphabet, |_, probe| probe.fail(other));
    assert!(matches!(running, Error::Unsupported(_)));
}

#[test]
fn poison_from_outside_takes_effect_at_once() {
    let (running, waiting) = broken(alphabet, |host, probe| {
        host.engine.poison("bad call");
        assert_eq!(probe.steps().len(), 1, "the step is still running");
        assert!(host.submit(vec![prompt("a")], length(9)).is_err());
    });
    for error in [running, waiting] {
        assert!(
            matches!(&error, Error::Internal(text) if text == "bad call"),
            "{error}"
        );
    }
}

#[test]
fn what_was_queued_before_a_failure_is_still_given() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let running = host.submit(vec![prompt("k")], length(9)).unwrap();
    probe.wait_for(1);
    let done = host.submit(vec![prompt("a")], length(1)).unwrap();
    probe.allow(2);
    probe.wait_for(3);
    host.engine.poison("bad");
    probe.release();
    assert_eq!(
        collect(&done, 1).unwrap().0[0].text,
        "b",
        "it had ended before"
    );
    assert_eq!([token(&running), token(&running)], ids("lm")[..]);
    assert!(running.next(None).is_err());
}

/// A model that does what a broken one might.
struct Broken {
    short: bool,
    dropped: Arc<AtomicBool>,
}

impl Run for Broken {
    fn submit(&mut self, _: &Step, _: &Choices) -> Result<()> {
        assert!(self.short, "bad state");
        Ok(())
    }
    fn collect(&mut self) -> Result<Answer<'_>> {
        Ok(Answer::Logits(&[0.0; 7]))
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<()> {
        Ok(())
    }
    fn page_bytes(&self) -> usize {
        0
    }
    fn save_pages(&mut self, _: &[u32], _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn load_pages(&mut self, _: &[u32], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn limits(&self) -> Limits {
        Setup::default().limits()
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
        panic!("bad drop");
    }
}

#[test]
fn a_broken_model_takes_nobody_down() {
    for (short, text) in [(true, "7 logits in place of 300"), (false, "bad state")] {
        let dropped = Arc::new(AtomicBool::new(false));
        let host = Setup::default().start_run(Box::new(Broken {
            short,
            dropped: dropped.clone(),
        }));
        let error = error(&host.submit(vec![prompt("a")], length(9)).unwrap());
        assert!(error.to_string().contains(text), "{error}");
        drop(host);
        assert!(dropped.load(Ordering::SeqCst));
    }
}

#[test]
fn a_failure_is_logged() {
    let log = Arc::new(Log::new(Some(Level::Error)));
    let setup = Setup::default();
    let model = Model::new(setup.limits(), |_, _| panic!("bad tensor"));
    let engine = Engine::new(Box::new(model), Arc::new(Toy), setup.options(), log.clone()).unwrap();
    let limits = llamabi::engine::request::RequestLimits {
        max_seq_len: 64,
        max_samples: 4,
        vocab_size: VOCAB,
        has_draft: false,
        has_heads: false,
    };
    let host = Host::new(engine, limits);
    error(&host.submit(vec![prompt("a")], length(9)).unwrap());
    drop(host);
    let mut lines = Vec::new();
    log.drain(|level, line| lines.push((level, line.to_string())));
    assert!(
        lines.len() == 1 && lines[0].1.contains("bad tensor"),
        "{lines:?}"
    );
}

#[test]
fn limits_that_cannot_work_are_refused() {
    let d = Setup::default;
    for (name, setup) in [
        (
            "page_size",
            Setup {
                page_size: 3,
                ..d()
            },
        ),
        (
            "page_size",
            Setup {
                page_size: 0,
                ..d()
            },
        ),
        (
            "page_size",
            Setup {
                page_size: 512,
                ..d()
            },
        ),
        (
            "max_seq_len",
            Setup {
                max_seq_len: 0,
                ..d()
            },
        ),
        (
            "max_batch_size",
            Setup {
                max_batch_size: 0,
                ..d()
            },
        ),
        (
            "prefill_chunk",
            Setup {
                prefill_chunk: Some(0),
                ..d()
            },
        ),
        ("n_pages", Setup { n_pages: 15, ..d() }),
        ("max_rows", Setup { max_rows: 4, ..d() }),
        (
            "max_wanted",
            Setup {
                max_wanted: 3,
                ..d()
            },
        ),
    ] {
        let model = Box::new(Model::new(setup.limits(), alphabet));
        let log = Arc::new(Log::new(None));
        match Engine::new(model, Arc::new(Toy), setup.options(), log).err() {
            Some(Error::InvalidArgument { name: got, .. }) => assert_eq!(got, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_engine_thread_has_a_name_and_no_signals() {
    fn signals_blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:"))
            .unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }
    let before = signals_blocked();
    let seen = Arc::new(std::sync::Mutex::new((String::new(), 0)));
    let in_thread = seen.clone();
    let (host, _) = Setup::default().start(move |history, logits| {
        let name = std::thread::current()
            .name()
            .unwrap_or_default()
            .to_string();
        *in_thread.lock().unwrap() = (name, signals_blocked());
        alphabet(history, logits);
    });
    host.one(prompt("a"), length(1));
    let (name, blocked) = seen.lock().unwrap().clone();
    assert_eq!(name, "llamabi-engine");
    let bit = |signal: i32| blocked >> (signal - 1) & 1 == 1;
    assert!(
        [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGCHLD,
            libc::SIGUSR1,
            libc::SIGALRM
        ]
        .into_iter()
        .all(bit)
    );
    assert!(
        !bit(libc::SIGSEGV),
        "a crash handler must still see a fault"
    );
    assert_eq!(
        signals_blocked(),
        before,
        "the caller's own mask is as it was"
    );
}
