//! Cancellation at every phase, and what a stream promises its readers. (U)
#![allow(unsafe_code)]

use crate::support::*;
use llamabi::Cancel;
use llamabi::Token;
use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Prompt, Stream};
use std::time::{Duration, Instant};

/// The event that is there now.
fn now(stream: &Stream) -> Next {
    stream.next(Some(Duration::ZERO)).unwrap()
}

fn token(stream: &Stream) -> Token {
    match stream.next(Some(PATIENCE)).unwrap() {
        Next::Event(Event::Token(e)) => e.token,
        other => panic!("{other:?}"),
    }
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
    // 10 ms are promised, and a busy machine may need longer: once in so many times is enough.
    for at in 0..cancellers().len() {
        let soon = Duration::from_millis(100);
        assert!((0..20).any(|_| cancelled_after(at) < soon));
    }
}

/// How long a call that waits has yet to wait for its end when it is cancelled.
fn cancelled_after(at: usize) -> Duration {
    let (name, cancel) = cancellers().into_iter().nth(at).unwrap();
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
    let took = std::thread::scope(|scope| {
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
        assert_eq!(probe.steps().len(), 1, "the step is still running");
        assert_eq!(
            host.engine.timings().waiting,
            0,
            "{name}: it no longer counts"
        );
        end - start
    });
    probe.release();
    let (outputs, cancelled) = collect(&running, 1).unwrap();
    assert_eq!(cancelled, name == "shutdown");
    assert_eq!(outputs[0].text, if cancelled { "b" } else { "bcd" });
    host.assert_empty();
    took
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
        let waits = || {
            let start = Instant::now();
            assert_eq!(now(&stream), Next::Timeout);
            assert_eq!(
                stream.next(Some(Duration::from_millis(30))).unwrap(),
                Next::Timeout
            );
            start.elapsed()
        };
        assert!(waits() >= Duration::from_millis(30));
        // On a busy machine once in so many times.
        assert!((0..20).any(|_| waits() < Duration::from_millis(500)));
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
            while let Next::Event(_) = stream.next(Some(PATIENCE)).unwrap() {
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
pub fn readable(fd: i32) -> bool {
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
        assert!(start.elapsed() < PATIENCE);
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
    for ahead in [false, true] {
        sits_out(ahead);
    }
}

fn sits_out(ahead: bool) {
    let setup = Setup {
        max_seq_len: 4096,
        n_pages: 4096,
        ..Setup::default()
    };
    let (host, probe) = setup.start_ahead(ahead, alphabet);
    // 300 alternatives are 2.4 KB: 4 MiB are reached before 1,024 events for one of the two.
    let wide = GenerateOptions {
        top_logprobs: VOCAB,
        ..length(3000)
    };
    let wide = host.submit(vec![prompt("a"), prompt("b")], wide).unwrap();
    let narrow = host.submit(vec![prompt("c")], length(2000)).unwrap();
    let other = host.submit(vec![prompt("d")], length(3000)).unwrap();
    assert_eq!(collect(&other, 1).unwrap().0[0].tokens.len(), 3000);
    // All that are left sit out: no more steps, for longer and longer a time.
    let mut steps = probe.steps().len();
    for ms in [30, 60, 120, 240] {
        loop {
            std::thread::sleep(Duration::from_millis(ms));
            let before = std::mem::replace(&mut steps, probe.steps().len());
            if before == steps {
                break;
            }
        }
    }
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
        assert!(start.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    let mut left = 0;
    while let Next::Event(_) = narrow.next(Some(PATIENCE)).unwrap() {
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
        assert!(start.elapsed() < PATIENCE);
    }
    host.assert_empty();
}
