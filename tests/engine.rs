//! The engine as a whole: batching, fairness, slots and pages, cancellation, failure, streams.

mod engine_support;

use engine_support::*;
use llamabi::backend::{Limits, RowKind, Run, Step};
use llamabi::engine::{Engine, Event, FinishReason, GenerateOptions, Next, Prompt, Stream};
use llamabi::log::{Level, Log};
use llamabi::{Cancel, Error, Result, Token};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn length(n: usize) -> GenerateOptions {
    GenerateOptions {
        max_gen_len: Some(n),
        ..greedy()
    }
}

fn rows(step: &Step, kind: RowKind) -> usize {
    step.spans
        .iter()
        .filter(|span| span.kind == kind)
        .map(|span| span.rows.len())
        .sum()
}

/// The event that is there now.
fn now(stream: &Stream) -> Next {
    stream.next(Some(Duration::ZERO)).unwrap()
}

fn token(stream: &Stream) -> Token {
    match stream.next(Some(Duration::from_secs(30))).unwrap() {
        Next::Event(Event::Token(e)) => e.token,
        other => panic!("{other:?}"),
    }
}

fn error(stream: &Stream) -> Error {
    loop {
        match stream.next(Some(Duration::from_secs(30))) {
            Ok(Next::Event(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
    }
}

// ---- batching ----

#[test]
fn a_request_joins_at_the_next_step_and_leaves_without_stopping_the_others() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("a")], length(6)).unwrap();
    probe.wait_for(1);
    let second = host.submit(vec![prompt("k")], length(2)).unwrap();
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (1, 1)
    );
    probe.allow(1);
    probe.wait_for(2);
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (2, 0)
    );
    probe.release();
    assert_eq!(collect(&second, 1).unwrap().0[0].text, "lm");
    assert_eq!(collect(&first, 1).unwrap().0[0].text, "bcdefg");
    let steps = probe.steps();
    let shape: Vec<_> = steps
        .iter()
        .map(|s| (rows(s, RowKind::Decode), rows(s, RowKind::Prefill)))
        .collect();
    // Prefill; join with prefill; one decode together; alone.
    assert_eq!(shape, [(0, 2), (1, 2), (2, 0), (1, 0), (1, 0), (1, 0)]);
    host.assert_empty();
}

#[test]
fn the_rest_wait_in_order_of_arrival() {
    let (host, probe) = Setup {
        max_batch_size: 2,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    let streams: Vec<Stream> = (0..5)
        .map(|_| host.submit(vec![prompt("a")], length(3)).unwrap())
        .collect();
    probe.wait_for(1);
    assert_eq!(
        (host.engine.timings().running, host.engine.timings().waiting),
        (2, 3)
    );
    for (ended, running) in [(2, 4), (4, 5)] {
        probe.allow(3);
        for stream in &streams[ended - 2..ended] {
            collect(stream, 1).unwrap();
        }
        probe.wait_for(ended / 2 * 3 + 1);
        for (at, stream) in streams.iter().enumerate().skip(ended) {
            assert_eq!(now(stream), Next::Timeout, "{at}");
        }
        assert_eq!(host.engine.timings().running as usize, running - ended);
    }
    probe.release();
    collect(&streams[4], 1).unwrap();
    host.assert_empty();
}

#[test]
fn a_long_prompt_and_running_streams_do_not_starve_each_other() {
    let setup = Setup {
        prefill_chunk: Some(4),
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    probe.hold();
    let short = host.submit(vec![prompt("a")], length(8)).unwrap();
    probe.wait_for(1);
    let long = host
        .submit(vec![prompt(&"x".repeat(39))], length(1))
        .unwrap();
    probe.release();
    collect(&long, 1).unwrap();
    collect(&short, 1).unwrap();
    let steps = probe.steps();
    for step in &steps[1..8] {
        assert_eq!(
            (rows(step, RowKind::Decode), rows(step, RowKind::Prefill)),
            (1, 4)
        );
    }
    assert_eq!(steps.len(), 11);
}

#[test]
fn several_prompts_share_a_chunk() {
    let setup = Setup {
        prefill_chunk: Some(10),
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    let prompts = vec![
        prompt("abc"),
        prompt("bcd"),
        prompt("cdefghijk"),
        prompt("x"),
    ];
    host.run(prompts, length(1));
    let shape: Vec<Vec<usize>> = probe
        .steps()
        .iter()
        .map(|s| s.spans.iter().map(|x| x.rows.len()).collect())
        .collect();
    assert_eq!(shape, [vec![4, 4, 2], vec![8, 2]]);
}

#[test]
fn chunks_adapt_to_a_slow_model_only_beside_running_streams() {
    let mut limits = Setup {
        max_seq_len: 1024,
        n_pages: 1024,
        ..Setup::default()
    };
    limits.max_rows = 516;
    let model = Model::new(limits.limits(), alphabet);
    let probe = model.probe.clone();
    // 2 ms for a prompt row: about 50 of them in 100 ms.
    let host = limits.start_run(Box::new(Slow(model, Duration::from_millis(2))));
    probe.hold();
    let short = host
        .submit(vec![prompt(&"a".repeat(99))], length(12))
        .unwrap();
    probe.wait_for(1);
    let long = host
        .submit(vec![prompt(&"x".repeat(399))], length(1))
        .unwrap();
    probe.release();
    collect(&long, 1).unwrap();
    short.cancel();
    let steps = probe.steps();
    assert_eq!(rows(&steps[0], RowKind::Prefill), 100, "alone: all of it");
    for step in &steps[1..5] {
        let rows = rows(step, RowKind::Prefill);
        // The clock of a busy machine may be slow, never fast.
        assert!((16..=50).contains(&rows), "{rows}");
    }
}

struct Slow(Model, Duration);

impl Run for Slow {
    fn run(&mut self, step: &Step) -> Result<&[f32]> {
        std::thread::sleep(self.1 * rows(step, RowKind::Prefill) as u32);
        self.0.run(step)
    }
    fn copy_pages(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        self.0.copy_pages(pairs)
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
}

#[test]
fn a_sequence_waits_for_pages_and_gives_them_back() {
    // Four pages: each sequence reserves three, for 3 + 8 positions.
    let setup = Setup {
        n_pages: 4,
        max_seq_len: 16,
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("xx")], length(9)).unwrap();
    let second = host.submit(vec![prompt("yy")], length(9)).unwrap();
    let third = host.submit(vec![prompt("z")], length(1)).unwrap();
    probe.wait_for(1);
    probe.allow(1);
    probe.wait_for(2);
    let timings = host.engine.timings();
    assert_eq!(
        (timings.running, timings.waiting),
        (1, 2),
        "in order, though the third would fit"
    );
    assert_eq!((timings.pages_used, timings.pages_total), (3, 4));
    probe.release();
    for stream in [&first, &second, &third] {
        collect(stream, 1).unwrap();
    }
    host.assert_empty();
}

#[test]
fn sixteen_threads_share_four_slots() {
    let (host, _) = Setup::default().start(hash_think);
    std::thread::scope(|scope| {
        for thread in 0..16u64 {
            let host = &host;
            scope.spawn(move || {
                for round in 0..8 {
                    let text = &"abcdefghijklmnop"[..1 + (thread as usize + round) % 16];
                    let options = GenerateOptions {
                        seed: thread + 1,
                        temperature: 1.0,
                        max_gen_len: Some(10),
                        ..GenerateOptions::default()
                    };
                    let got = host.one(Prompt::Tokens(ids(text)), options.clone());
                    assert_same(
                        &got,
                        &simulate(&mut hash_think, &ids(text), 0, &options, 64),
                    );
                }
            });
        }
    });
    host.assert_empty();
    let timings = host.engine.timings();
    assert!(timings.steps > 0 && timings.cached_tokens > 0 && timings.generated_tokens > 0);
    assert!(timings.prefill_ms > 0.0 && timings.decode_ms > 0.0);
}

#[test]
fn a_call_that_must_not_wait_starts_or_fails() {
    let (host, probe) = Setup {
        max_batch_size: 3,
        ..Setup::default()
    }
    .start(alphabet);
    let no_wait = || GenerateOptions {
        no_wait: true,
        ..length(2)
    };
    probe.hold();
    let first = host.submit(vec![prompt("a")], no_wait()).unwrap();
    probe.wait_for(1);
    let error = host.submit(vec![prompt("a"); 3], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 3, free: 2 }),
        "{error}"
    );
    let second = host.submit(vec![prompt("a"); 2], no_wait()).unwrap();
    let error = host.submit(vec![prompt("a")], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 1, free: 0 }),
        "{error}"
    );
    let waiting = host.submit(vec![prompt("a")], length(2)).unwrap();
    probe.release();
    for (stream, n) in [(&first, 1), (&second, 2), (&waiting, 1)] {
        collect(stream, n).unwrap();
    }
    // Whoever has seen the end finds the slots free.
    for _ in 0..50 {
        let stream = host.submit(vec![prompt("a"); 3], no_wait()).unwrap();
        collect(&stream, 3).unwrap();
    }
    host.assert_empty();
}

#[test]
fn figures_are_of_the_request() {
    let (host, probe) = Setup {
        max_batch_size: 1,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    let first = host.submit(vec![prompt("abcdefg")], length(2)).unwrap();
    let second = host.submit(vec![prompt("abcdefg")], length(2)).unwrap();
    probe.wait_for(1);
    std::thread::sleep(Duration::from_millis(20));
    probe.release();
    let first = collect(&first, 1).unwrap().0[0].stats;
    let second = collect(&second, 1).unwrap().0[0].stats;
    assert_eq!(
        (
            first.prompt_tokens,
            first.cached_tokens,
            first.generated_tokens
        ),
        (8, 0, 2)
    );
    assert_eq!(
        (
            second.prompt_tokens,
            second.cached_tokens,
            second.generated_tokens
        ),
        (8, 7, 2)
    );
    assert!(first.queue_ms < first.first_token_ms && first.first_token_ms >= 20.0);
    assert!(second.queue_ms >= 20.0 && second.first_token_ms >= second.queue_ms);
    assert!(second.total_ms >= second.first_token_ms);
    let timings = host.engine.timings();
    assert_eq!((timings.prompt_tokens, timings.cached_tokens), (16, 7));
    assert_eq!((timings.generated_tokens, timings.steps), (4, 4));
}

// ---- cancellation ----

type Canceller = fn(&Host, &Stream, &Cancel);

/// Every way to cancel a call.
fn cancellers() -> [(&'static str, Canceller); 3] {
    [
        ("flag", |_, _, flag| flag.trigger()),
        ("stream", |_, stream, _| stream.cancel()),
        ("shutdown", |host, _, _| host.engine.shutdown()),
    ]
}

fn with_flag(options: GenerateOptions) -> (GenerateOptions, Cancel) {
    let flag = Cancel::new();
    (
        GenerateOptions {
            cancel: Some(flag.clone()),
            ..options
        },
        flag,
    )
}

#[test]
fn a_waiting_call_is_cancelled_at_once_even_in_a_long_step() {
    for (name, cancel) in cancellers() {
        let (host, probe) = Setup {
            max_batch_size: 1,
            ..Setup::default()
        }
        .start(alphabet);
        probe.hold();
        let running = host.submit(vec![prompt("a")], length(3)).unwrap();
        probe.wait_for(1);
        let (options, flag) = with_flag(GenerateOptions {
            echo: true,
            ..length(3)
        });
        let waiting = host.submit(vec![prompt("a")], options).unwrap();
        assert_eq!(now(&waiting), Next::Timeout);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let outputs = collect(&waiting, 1).unwrap();
                (outputs, Instant::now())
            });
            std::thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            cancel(&host, &waiting, &flag);
            let ((outputs, cancelled), end) = reader.join().unwrap();
            assert!(
                cancelled && outputs[0].reason() == FinishReason::Cancelled,
                "{name}"
            );
            assert!(outputs[0].tokens.is_empty());
            // 10 ms are promised; the rest is for a busy machine. The step is still running.
            assert!(
                end - start < Duration::from_millis(100),
                "{name}: {:?}",
                end - start
            );
            assert_eq!(probe.steps().len(), 1);
            assert_eq!(
                host.engine.timings().waiting,
                0,
                "{name}: it no longer counts"
            );
        });
        probe.release();
        let (outputs, cancelled) = collect(&running, 1).unwrap();
        assert_eq!(cancelled, name == "shutdown");
        assert_eq!(outputs[0].text, if cancelled { "b" } else { "bcd" });
        host.assert_empty();
    }
}

#[test]
fn a_call_in_prefill_is_cancelled_after_its_chunk() {
    for (name, cancel) in cancellers() {
        let setup = Setup {
            prefill_chunk: Some(4),
            ..Setup::default()
        };
        let (host, probe) = setup.start(alphabet);
        probe.hold();
        let (options, flag) = with_flag(length(3));
        let stream = host.submit(vec![prompt(&"x".repeat(30))], options).unwrap();
        probe.wait_for(1);
        probe.allow(1);
        probe.wait_for(2);
        cancel(&host, &stream, &flag);
        probe.release();
        let (outputs, cancelled) = collect(&stream, 1).unwrap();
        assert!(
            cancelled && outputs[0].reason() == FinishReason::Cancelled,
            "{name}"
        );
        assert_eq!(probe.steps().len(), 2, "{name}");
        host.assert_empty();
    }
}

#[test]
fn a_call_in_decode_is_cancelled_after_its_step_and_keeps_what_it_has() {
    for (name, cancel) in cancellers() {
        let (host, probe) = Setup::default().start(alphabet);
        probe.hold();
        // The letter c may begin a stop string: it comes with the end.
        let options = GenerateOptions {
            stop: vec!["cx".into()],
            ..length(9)
        };
        let (options, flag) = with_flag(options);
        let stream = host
            .submit(vec![prompt("a"), prompt("a")], options)
            .unwrap();
        probe.wait_for(1);
        probe.allow(1);
        probe.wait_for(2);
        cancel(&host, &stream, &flag);
        probe.release();
        let (outputs, cancelled) = collect(&stream, 2).unwrap();
        assert!(cancelled, "{name}");
        for out in outputs {
            assert_eq!(
                (out.reason(), &out.text[..]),
                (FinishReason::Cancelled, "bc"),
                "{name}"
            );
        }
        assert_eq!(probe.steps().len(), 2, "{name}");
        host.assert_empty();
    }
}

#[test]
fn a_call_that_has_ended_cannot_be_cancelled() {
    for (name, cancel) in cancellers() {
        let (host, _) = Setup::default().start(alphabet);
        let (options, flag) = with_flag(length(2));
        let stream = host.submit(vec![prompt("a")], options).unwrap();
        while host.engine.timings().generated_tokens < 2 || host.engine.timings().running > 0 {
            std::thread::yield_now();
        }
        cancel(&host, &stream, &flag);
        let (outputs, cancelled) = collect(&stream, 1).unwrap();
        assert_eq!(
            (outputs[0].reason(), cancelled),
            (FinishReason::Length, false),
            "{name}"
        );
        cancel(&host, &stream, &flag);
        assert_eq!(now(&stream), Next::Done);
    }
}

#[test]
fn a_flag_that_is_set_already_starts_nothing() {
    let (host, probe) = Setup::default().start(alphabet);
    for max_gen_len in [0, 3] {
        let (options, flag) = with_flag(length(max_gen_len));
        flag.trigger();
        let prompts = vec![prompt("a"), Prompt::Refused("no")];
        let (outputs, cancelled) = collect(&host.submit(prompts, options).unwrap(), 2).unwrap();
        assert!(cancelled);
        assert_eq!(outputs[0].reason(), FinishReason::Cancelled);
        assert_eq!(outputs[1].reason(), FinishReason::Unsafe);
    }
    assert_eq!(probe.steps().len(), 0);
    host.assert_empty();
}

#[test]
fn dropping_a_stream_cancels_its_call() {
    let (host, probe) = Setup {
        max_batch_size: 1,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    let running = host.submit(vec![prompt("a")], length(50)).unwrap();
    let waiting = host.submit(vec![prompt("a")], length(50)).unwrap();
    let last = host.submit(vec![prompt("a")], length(2)).unwrap();
    probe.wait_for(1);
    drop(waiting);
    drop(running);
    probe.release();
    assert_eq!(collect(&last, 1).unwrap().0[0].text, "bc");
    assert_eq!(probe.steps().len(), 3);
    host.assert_empty();
}

#[test]
fn closing_a_stream_wakes_its_readers_at_once() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let stream = host.submit(vec![prompt("a")], length(50)).unwrap();
    probe.wait_for(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| stream.next(None).unwrap()))
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        stream.close();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Next::Cancelled);
        }
    });
    assert_eq!(stream.fd(), None);
    probe.release();
}

#[test]
fn a_stream_survives_its_engine_and_later_calls_are_cancelled() {
    let (host, probe) = Setup {
        max_batch_size: 1,
        ..Setup::default()
    }
    .start(alphabet);
    probe.hold();
    let running = host.submit(vec![prompt("a")], length(50)).unwrap();
    let waiting = host.submit(vec![prompt("a")], length(50)).unwrap();
    probe.wait_for(1);
    host.engine.shutdown();
    let late = host.submit(vec![prompt("a"); 1], length(50)).unwrap();
    assert_eq!(
        collect(&late, 1).unwrap().0[0].reason(),
        FinishReason::Cancelled
    );
    probe.release();
    drop(host);
    for stream in [running, waiting] {
        let (outputs, cancelled) = collect(&stream, 1).unwrap();
        assert!(cancelled && outputs[0].reason() == FinishReason::Cancelled);
    }
}

// ---- streams ----

#[test]
fn a_timeout_waits_that_long_and_no_longer() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let (options, _flag) = with_flag(length(2));
    for options in [options, length(2)] {
        let stream = host.submit(vec![prompt("a")], options).unwrap();
        let start = Instant::now();
        assert_eq!(now(&stream), Next::Timeout);
        assert_eq!(
            stream.next(Some(Duration::from_millis(30))).unwrap(),
            Next::Timeout
        );
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(start.elapsed() < Duration::from_millis(500));
    }
    probe.release();
    // As good as no timeout at all.
    let stream = host.submit(vec![prompt("a")], length(1)).unwrap();
    assert!(matches!(
        stream.next(Some(Duration::MAX)).unwrap(),
        Next::Event(_)
    ));
}

#[test]
fn several_threads_may_read_one_stream() {
    let (host, _) = Setup::default().start(alphabet);
    for _ in 0..20 {
        let stream = host.submit(vec![prompt("a"); 4], length(20)).unwrap();
        let read = || {
            let mut events = 0;
            while let Next::Event(_) = stream.next(Some(Duration::from_secs(30))).unwrap() {
                events += 1;
            }
            events
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(total, 4 * 20 + 4);
    }
}

#[cfg(target_os = "linux")]
fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, on this stack.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
#[cfg(target_os = "linux")]
fn the_descriptor_is_readable_exactly_while_something_is_ready() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let stream = host.submit(vec![prompt("a")], length(3)).unwrap();
    let fd = stream.fd().unwrap();
    assert_eq!(stream.fd(), Some(fd));
    // SAFETY: no pointers.
    let (flags, status) = unsafe {
        (
            libc::fcntl(fd, libc::F_GETFD),
            libc::fcntl(fd, libc::F_GETFL),
        )
    };
    assert!(flags & libc::FD_CLOEXEC != 0 && status & libc::O_NONBLOCK != 0);
    for step in 1..3 {
        probe.wait_for(step);
        assert!(!readable(fd));
        probe.allow(1);
        probe.wait_for(step + 1);
        assert!(readable(fd));
        token(&stream);
        assert!(!readable(fd));
    }
    probe.release();
    token(&stream);
    // The end of the sequence.
    let start = Instant::now();
    while !readable(fd) {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    assert!(matches!(
        stream.next(None).unwrap(),
        Next::Event(Event::Finish(_))
    ));
    for _ in 0..3 {
        assert!(readable(fd), "the end of the stream, for ever");
        assert_eq!(now(&stream), Next::Done);
    }
    // Asked for when all is over.
    let stream = host.submit(vec![prompt("a")], length(1)).unwrap();
    collect(&stream, 1).unwrap();
    assert!(readable(stream.fd().unwrap()));
    // A cancellation without a step, and an error.
    probe.hold();
    let steps = probe.steps().len();
    let blocker = host.submit(vec![prompt("a"); 4], length(1)).unwrap();
    probe.wait_for(steps + 1);
    let waiting = host.submit(vec![prompt("a")], length(1)).unwrap();
    assert!(!readable(waiting.fd().unwrap()));
    waiting.cancel();
    assert!(readable(waiting.fd().unwrap()));
    assert!(!readable(blocker.fd().unwrap()));
    host.engine.poison("enough");
    assert!(readable(blocker.fd().unwrap()));
    probe.release();
}

#[test]
fn a_slow_reader_sits_out_and_the_others_go_on() {
    let setup = Setup {
        max_seq_len: 4096,
        n_pages: 4096,
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    // 300 alternatives are 2.4 KB: 4 MiB are reached before 1,024 events for one of the two.
    let wide = GenerateOptions {
        top_logprobs: VOCAB,
        ..length(3000)
    };
    let wide = host.submit(vec![prompt("a"), prompt("b")], wide).unwrap();
    let narrow = host.submit(vec![prompt("c")], length(2000)).unwrap();
    let other = host.submit(vec![prompt("d")], length(3000)).unwrap();
    assert_eq!(collect(&other, 1).unwrap().0[0].tokens.len(), 3000);
    // All that are left sit out: no more steps.
    let settled = || {
        let before = probe.steps().len();
        std::thread::sleep(Duration::from_millis(30));
        (probe.steps().len() == before).then_some(before)
    };
    let steps = loop {
        if let Some(steps) = settled() {
            break steps;
        }
    };
    let timings = host.engine.timings();
    assert_eq!(
        (timings.running, timings.waiting),
        (3, 0),
        "they hold their slots"
    );
    let mut queued = 0;
    while let Next::Event(_) = now(&narrow) {
        queued += 1;
        if queued == 1000 {
            break;
        }
    }
    assert_eq!(queued, 1000);
    // The reader has caught up: its call goes on, until it is behind again.
    let start = Instant::now();
    while probe.steps().len() == steps {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::yield_now();
    }
    let mut left = 0;
    while let Next::Event(_) = narrow.next(Some(Duration::from_secs(30))).unwrap() {
        left += 1;
    }
    assert_eq!(queued + left, 2000 + 1);
    // One that never reads can be cancelled like any other.
    wide.cancel();
    let (outputs, cancelled) = collect(&wide, 2).unwrap();
    assert!(cancelled);
    for out in &outputs {
        let bytes = out.tokens.len() * VOCAB * 8;
        assert!(
            out.tokens.len() <= 1025 && bytes < 3 << 20,
            "{} tokens",
            out.tokens.len()
        );
    }
    let start = Instant::now();
    while host.engine.timings().running > 0 {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    host.assert_empty();
}

// ---- failure ----

#[test]
fn without_a_finite_logit_the_call_fails_and_the_handle_lives() {
    let think = |history: &History, logits: &mut [f32]| {
        alphabet(history, logits);
        if history.last().unwrap().0 == 20 {
            logits[..IDS].fill(f32::NAN);
        }
    };
    let (host, _) = Setup::default().start(think);
    let good = host.submit(vec![prompt("a")], length(9)).unwrap();
    // 20 is r; the second sequence gets there with its third token.
    let bad = host
        .submit(vec![prompt("a"), prompt("o")], length(40))
        .unwrap();
    let error = error(&bad);
    assert_eq!(error.code(), -99);
    assert!(
        error.to_string().contains("sequence 1, token position 5"),
        "{error}"
    );
    assert_eq!(
        bad.next(None).unwrap_err().to_string(),
        error.to_string(),
        "for ever"
    );
    assert_eq!(collect(&good, 1).unwrap().0[0].text, "bcdefghij");
    assert_eq!(host.one(prompt("a"), length(3)).text, "bcd");
    host.assert_empty();

    // The same where only a score was wanted.
    let think = |_: &History, logits: &mut [f32]| logits.fill(f32::NEG_INFINITY);
    let (host, _) = Setup::default().start(think);
    let options = GenerateOptions {
        echo: true,
        logprobs: true,
        ..length(0)
    };
    let stream = host.submit(vec![prompt("abc")], options).unwrap();
    let error = self::error(&stream);
    assert!(
        error.to_string().contains("sequence 0, token position 1"),
        "{error}"
    );
    host.assert_empty();
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
    assert_eq!(later.code(), -13);
    let text = later.to_string();
    assert!(
        text.contains("bad") || text.contains("device on fire"),
        "{text}"
    );
    // The thread ends after the step it is in.
    let start = Instant::now();
    while host.engine.timings().pages_used > 0 {
        assert!(start.elapsed() < Duration::from_secs(30));
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
    fn run(&mut self, _: &Step) -> Result<&[f32]> {
        assert!(self.short, "bad state");
        Ok(&[0.0; 7])
    }
    fn copy_pages(&mut self, _: &[(u32, u32)]) -> Result<()> {
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
    for (short, text) in [(true, "7 logits for 1 rows of 300"), (false, "bad state")] {
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
        max_batch_size: 4,
        vocab_size: VOCAB,
    };
    let host = Host { engine, limits };
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
