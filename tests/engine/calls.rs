//! Calls with more prompts than there are slots, and more calls than may wait.

use crate::support::*;
use llamabi::backend::{RowKind, Step};
use llamabi::capi::status_of;
use llamabi::engine::{FinishReason, GenerateOptions, Next, Prompt, Stream};
use llamabi::{Cancel, Error};
use std::time::{Duration, Instant};

fn slots(max_batch_size: usize) -> Setup {
    Setup {
        max_batch_size,
        n_pages: 16 * max_batch_size,
        max_rows: 64 + max_batch_size,
        max_wanted: max_batch_size,
        ..Setup::default()
    }
}

/// Twelve prompts of one to twelve letters, two of them equal.
fn twelve() -> Vec<Prompt> {
    let letters = "abcdefghijkl";
    let text = |n: usize| if n == 9 { "abcdefgh" } else { &letters[..n] };
    (1..=12).map(|n| prompt(text(n))).collect()
}

/// Prompts that began in these steps.
fn begun(steps: &[Step]) -> usize {
    let spans = steps.iter().flat_map(|step| &step.spans);
    let first =
        |span: &&llamabi::backend::Span| span.kind == RowKind::Prefill && span.position == 0;
    spans.filter(first).count()
}

// ---- more prompts than slots ----

#[test]
fn twelve_prompts_on_four_slots_say_what_they_say_on_sixteen() {
    let base = GenerateOptions {
        temperature: 1.0,
        seed: 7,
        max_gen_len: Some(20),
        ..GenerateOptions::default()
    };
    let all = [
        base.clone(),
        GenerateOptions {
            stop: vec!["e".into(), "the".into(), "ab".into()],
            ..base.clone()
        },
        GenerateOptions {
            echo: true,
            logprobs: true,
            top_logprobs: 3,
            repetition_penalty: 1.3,
            ..base.clone()
        },
        GenerateOptions {
            echo: true,
            max_gen_len: Some(0),
            ..base.clone()
        },
        GenerateOptions { seed: 0, ..base },
    ];
    for ahead in [false, true] {
        let (few, _) = slots(4).start_ahead(ahead, hash_think);
        let (many, _) = slots(16).start_ahead(ahead, hash_think);
        for options in &all {
            let outputs = |host: &Host| -> Vec<Output> {
                let mut prompts = twelve();
                prompts[5] = Prompt::Refused("no");
                let figures = |mut out: Output| {
                    out.stats = Default::default();
                    out
                };
                let outputs = host.run(prompts, options.clone());
                outputs.into_iter().map(figures).collect()
            };
            let (got, want) = (outputs(&few), outputs(&many));
            assert_eq!(got, want, "{options:?}");
            assert_eq!(got[5].reason(), FinishReason::Unsafe);
            if options.max_gen_len != Some(0) {
                assert_ne!(got[7].tokens, got[8].tokens, "the index selects the draws");
            }
        }
        few.assert_empty();
    }
}

#[test]
fn prompts_begin_in_order_as_slots_come_free() {
    let (host, probe) = slots(2).start(alphabet);
    probe.hold();
    let prompts = "abcde".chars().map(|c| prompt(&c.to_string())).collect();
    let stream = host.submit(prompts, length(3)).unwrap();
    probe.wait_for(1);
    let timings = host.engine.timings();
    assert_eq!((timings.running, timings.waiting), (2, 3));
    probe.release();
    let (outputs, cancelled) = collect(&stream, 5).unwrap();
    let texts: Vec<_> = outputs.iter().map(|out| &out.text[..]).collect();
    assert_eq!(
        (texts, cancelled),
        (vec!["bcd", "cde", "def", "efg", "fgh"], false)
    );
    // Two, two, and one, three steps each; the token behind BOS says who it is.
    let steps = probe.steps();
    let first_rows = steps.iter().step_by(3).map(|step| {
        let spans = step
            .spans
            .iter()
            .map(|span| step.tokens[span.rows.start + 1]);
        spans.collect::<Vec<_>>()
    });
    assert_eq!(
        first_rows.collect::<Vec<_>>(),
        [vec![3, 4], vec![5, 6], vec![7]]
    );
    for (at, out) in outputs.iter().enumerate() {
        assert_eq!(out.stats.prompt_tokens, 2);
        assert!(at < 2 || out.stats.queue_ms > outputs[at - 2].stats.queue_ms);
    }
    host.assert_empty();
}

/// A call begins as many prompts as there are slots, and then it is another's turn.
#[test]
fn a_long_call_does_not_keep_others_out() {
    let (host, probe) = slots(2).start(alphabet);
    probe.hold();
    let long = host.submit(vec![prompt("a"); 50], length(2)).unwrap();
    probe.wait_for(1);
    let second = host.submit(vec![prompt("k"); 5], length(2)).unwrap();
    let third = host.submit(vec![prompt("p")], length(2)).unwrap();
    probe.release();
    for (stream, n) in [(&third, 1), (&second, 5), (&long, 50)] {
        collect(stream, n).unwrap();
    }
    let steps = probe.steps();
    let first = |step: &Step| -> Vec<i32> {
        let prompts = step.spans.iter().filter(|span| span.position == 0);
        prompts
            .map(|span| step.tokens[span.rows.start + 1])
            .collect()
    };
    let order: Vec<i32> = steps.iter().flat_map(first).collect();
    assert_eq!(order[..16], ids("aaaakkpaakkaakaa")[..]);
    host.assert_empty();
}

#[test]
fn a_call_that_must_not_wait_has_a_slot_for_every_prompt() {
    let (host, probe) = slots(4).start(alphabet);
    let no_wait = || GenerateOptions {
        no_wait: true,
        ..length(2)
    };
    let error = host.submit(vec![prompt("a"); 5], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 5, free: 4 }),
        "{error}"
    );
    probe.hold();
    let long = host.submit(vec![prompt("a"); 9], length(2)).unwrap();
    let error = host.submit(vec![prompt("a")], no_wait()).err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 1, free: 0 }),
        "{error}"
    );
    probe.release();
    collect(&long, 9).unwrap();
    let stream = host.submit(vec![prompt("a"); 4], no_wait()).unwrap();
    collect(&stream, 4).unwrap();
}

#[test]
fn a_call_that_is_cancelled_midway_has_an_end_for_every_prompt() {
    type Canceller = fn(&Host, &Stream, &Cancel);
    let cancellers: [Canceller; 3] = [
        |_, _, flag| flag.trigger(),
        |_, stream, _| stream.cancel(),
        |host, _, _| host.engine.shutdown(),
    ];
    for cancel in cancellers {
        let (host, probe) = slots(4).start(alphabet);
        probe.hold();
        let flag = Cancel::new();
        let options = GenerateOptions {
            cancel: Some(flag.clone()),
            ..length(3)
        };
        let stream = host.submit(vec![prompt("a"); 1000], options).unwrap();
        probe.wait_for(1);
        probe.allow(4);
        // The second four have a token.
        probe.wait_for(5);
        cancel(&host, &stream, &flag);
        probe.release();
        let (outputs, cancelled) = collect(&stream, 1000).unwrap();
        assert!(cancelled);
        for (at, out) in outputs.iter().enumerate() {
            let (reason, text) = match at {
                0..4 => (FinishReason::Length, "bcd"),
                4..8 => (FinishReason::Cancelled, "b"),
                _ => (FinishReason::Cancelled, ""),
            };
            // What is under way when the flag is seen counts.
            let under_way = (4..8).contains(&at) && out.text == "bc";
            assert!(
                out.reason() == reason && (out.text == text || under_way),
                "{at}: {out:?}"
            );
            assert_eq!(out.stats.prompt_tokens, 2);
        }
        host.assert_empty();
    }
}

#[test]
fn a_long_call_that_is_dropped_frees_the_slots() {
    let (host, probe) = slots(2).start(alphabet);
    probe.hold();
    let long = host.submit(vec![prompt("a"); 60_000], length(30)).unwrap();
    probe.wait_for(1);
    drop(long);
    assert_eq!(host.engine.timings().waiting, 0);
    let next = host.submit(vec![prompt("k")], length(2)).unwrap();
    probe.release();
    assert_eq!(collect(&next, 1).unwrap().0[0].text, "lm");
    assert_eq!(begun(&probe.steps()), 3);
    host.assert_empty();
}

#[test]
fn the_most_prompts_there_can_be() {
    let (host, _) = slots(8).start(say(&[]));
    let outputs = host.run(vec![prompt("a"); 65_536], length(1));
    assert!(outputs.iter().all(|out| out.reason() == FinishReason::Stop));
    host.assert_empty();
}

/// Prompts of a call that nobody reads do not begin: the others have the slots.
#[test]
fn a_call_whose_reader_is_behind_begins_nothing_more() {
    let setup = Setup {
        max_seq_len: 256,
        n_pages: 256,
        ..slots(4)
    };
    let (host, probe) = setup.start(alphabet);
    let unread = host.submit(vec![prompt("a"); 1000], length(100)).unwrap();
    let start = Instant::now();
    while host.engine.timings().waiting > 0 {
        assert!(start.elapsed() < PATIENCE, "it stands in the line");
        std::thread::sleep(Duration::from_millis(1));
    }
    let settled = begun(&probe.steps());
    assert!((8..=16).contains(&settled), "{settled}");
    let timings = host.engine.timings();
    assert_eq!((timings.running, timings.parked), (4, 0));
    let (outputs, _) = collect(&unread, 1000).unwrap();
    assert!(outputs.iter().all(|out| out.tokens.len() == 100));
    host.assert_empty();
}

// ---- more calls than may wait ----

#[test]
fn calls_that_wait_are_counted_and_not_their_prompts() {
    let setup = Setup {
        max_waiting: 2,
        ..slots(2)
    };
    let (host, probe) = setup.start(alphabet);
    probe.hold();
    // It has begun, so it does not wait, however many prompts are left.
    let first = host.submit(vec![prompt("a"); 100], length(2)).unwrap();
    probe.wait_for(1);
    let second = host.submit(vec![prompt("a"); 100], length(2)).unwrap();
    let third = host.submit(vec![prompt("a")], length(2)).unwrap();
    let error = host.submit(vec![prompt("a")], length(2)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "2 calls wait for a slot, max_waiting is 2"
    );
    assert_eq!(status_of(&error), -12);
    // One that goes makes room, at once, for one.
    third.cancel();
    let fourth = host.submit(vec![prompt("a")], length(2)).unwrap();
    assert!(host.submit(vec![prompt("a")], length(2)).is_err());
    drop(second);
    let fifth = host.submit(vec![prompt("a")], length(2)).unwrap();
    assert!(host.submit(vec![prompt("a")], length(2)).is_err());
    probe.release();
    for (stream, n) in [(&first, 100), (&fourth, 1), (&fifth, 1)] {
        assert!(!collect(stream, n).unwrap().1);
    }
    // Nobody waits any more.
    probe.hold();
    let steps = probe.steps().len();
    let running = host.submit(vec![prompt("a"); 2], length(2)).unwrap();
    probe.wait_for(steps + 1);
    let waiting: Vec<_> = (0..2)
        .map(|_| host.submit(vec![prompt("a")], length(2)).unwrap())
        .collect();
    assert!(host.submit(vec![prompt("a")], length(2)).is_err());
    probe.release();
    for stream in waiting.iter().chain([&running]) {
        while let Next::Event(_) = stream.next(Some(PATIENCE)).unwrap() {}
    }
    host.assert_empty();
}

/// What a call costs to open, and a step to run, does not grow with the calls that wait.
#[test]
fn forty_thousand_wait_and_hold_nobody_up() {
    // Of the times that are compared, a busy machine can lengthen any.
    let mut slow = Vec::new();
    while let Err(found) = forty_thousand_wait() {
        slow.push(found);
        assert!(slow.len() < 5, "{slow:#?}");
    }
}

/// What takes too long, if anything does.
fn forty_thousand_wait() -> Result<(), String> {
    let setup = Setup {
        max_waiting: 50_000,
        max_seq_len: 4096,
        n_pages: 1024,
        ..slots(1)
    };
    let (host, probe) = setup.start(alphabet);
    let steps_take = |host: &Host| {
        let start = Instant::now();
        let stream = host.submit(vec![prompt("a")], length(3000)).unwrap();
        collect(&stream, 1).unwrap();
        start.elapsed()
    };
    let alone = steps_take(&host);
    probe.hold();
    let begun = probe.steps().len();
    let running = host.submit(vec![prompt("a")], length(3000)).unwrap();
    probe.wait_for(begun + 1);
    let mut waiting = Vec::new();
    let mut open = |n: usize| {
        let start = Instant::now();
        waiting.extend((0..n).map(|_| {
            let options = GenerateOptions {
                cancel: Some(Cancel::new()),
                ..length(1)
            };
            host.submit(vec![prompt("a")], options).unwrap()
        }));
        start.elapsed()
    };
    let (first, _, last) = (open(10_000), open(20_000), open(10_000));
    let slack = Duration::from_millis(500);
    let opened = last < 3 * first + slack;
    let start = Instant::now();
    probe.release();
    collect(&running, 1).unwrap();
    let beside = start.elapsed();
    let ran = beside < 3 * alone + slack;
    host.engine.shutdown();
    for stream in &waiting {
        while let Next::Event(_) = stream.next(Some(PATIENCE)).unwrap() {}
    }
    let all = format!("opening {first:?}, then {last:?}; {alone:?} alone, {beside:?} beside them");
    if opened && ran { Ok(()) } else { Err(all) }
}
