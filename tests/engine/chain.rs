//! What ends a sequence beside its tokens' own doing: bans that leave nothing, stop tokens, time.

use crate::support::*;
use llamabi::capi::status_of;
use llamabi::engine::request::Bias;
use llamabi::engine::{FinishReason, GenerateOptions, Next, Speculation};
use std::time::{Duration, Instant};

/// All that the model thinks possible is banned: that is the call's mistake, and ends all of it and
/// nothing else. So it is where a device chooses.
#[test]
fn options_that_leave_no_token_end_their_call() {
    for ahead in [false, true] {
        no_token_is_left(ahead);
    }
}

fn no_token_is_left(ahead: bool) {
    let (host, _) = Setup::default().start_ahead(ahead, |history, logits| {
        logits.fill(f32::NAN);
        logits[if history.len() < 6 { 4 } else { 5 }] = 1.0;
    });
    let ban = |token| Bias {
        token,
        bias: f32::NEG_INFINITY,
    };
    let banned = GenerateOptions {
        logit_bias: vec![ban(5)],
        ..length(9)
    };
    let other = host.submit(vec![prompt("ab")], length(9)).unwrap();
    let stream = host.submit(vec![prompt("abcdefghi"), prompt("abc")], banned.clone());
    let error = collect(&stream.unwrap(), 2).unwrap_err();
    assert_eq!(status_of(&error), -1);
    let text = error.to_string();
    // Of the long prompt, the first token; but the short one may come to it in the same step.
    assert_eq!(
        text,
        "sequence 0, token position 10: the options leave no token possible"
    );
    assert_eq!(collect(&other, 1).unwrap().0[0].tokens.len(), 9);
    // Where the model thinks nothing possible, the options are not to blame.
    let (host, _) = Setup::default().start_ahead(ahead, |_, logits| logits.fill(f32::NAN));
    assert_eq!(
        host.one(prompt("ab"), banned).reason(),
        FinishReason::NotFinite
    );
}

/// Which of a call's sequences comes first to where no token is left hangs on drafts and on the
/// company. The error does not: it is that of the first in order, and those before it end as ever.
#[test]
fn the_first_sequence_without_a_token_is_named() {
    // A prompt of so many `a`s, and how many tokens it has when only the banned one is possible.
    type Prompt = (usize, usize);
    // The sequence that is named, and its position.
    let cases: [(&[Prompt], (u32, usize)); 6] = [
        (&[(1, 10), (2, 20)], (0, 10)),
        (&[(1, 20), (2, 10)], (0, 20)),
        (&[(1, 99), (2, 10), (3, 14)], (1, 10)),
        // The last ones wait for a slot.
        (&[(1, 99), (2, 24), (3, 9), (4, 5)], (1, 24)),
        (&[(1, 99), (2, 99), (3, 9)], (2, 9)),
        (&[(1, 6), (2, 99), (3, 9)], (0, 6)),
    ];
    let setup = Setup {
        max_batch_size: 2,
        max_wanted: 40,
        ..Setup::default()
    };
    for (sequences, (index, position)) in cases {
        let all = sequences.to_vec();
        let think = move |history: &History, logits: &mut [f32]| {
            let letters = history[1..].iter().take_while(|(token, _)| *token == 3);
            let n = letters.count();
            let (_, last) = all.iter().find(|(letters, _)| *letters == n).unwrap();
            logits.fill(f32::NAN);
            // The second prompt's text is the one that is expected.
            let next = match (history.len() < *last, n) {
                (false, _) => 5,
                (true, 2) => 6,
                (true, _) => 7 + (history.len() % 20) as i32,
            };
            logits[next as usize] = 1.0;
        };
        for (ahead, draft_len) in [false, true]
            .iter()
            .flat_map(|a| [0, 1, 16].map(|n| (*a, n)))
        {
            let options = GenerateOptions {
                logit_bias: vec![Bias {
                    token: 5,
                    bias: f32::NEG_INFINITY,
                }],
                speculation: match draft_len {
                    0 => Speculation::Off,
                    _ => Speculation::NGram,
                },
                predicted: vec![6; 40],
                draft_len,
                ..length(30)
            };
            let (host, _) = setup.start_ahead(ahead, think.clone());
            let prompts = sequences.iter().map(|(n, _)| prompt(&"a".repeat(*n)));
            let stream = host.submit(prompts.collect(), options).unwrap();
            let mut outputs = vec![Output::default(); sequences.len()];
            let error = loop {
                match stream.next(Some(PATIENCE)) {
                    Ok(Next::Event(event)) => add(&mut outputs, event),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(
                error.to_string(),
                format!(
                    "sequence {index}, token position {position}: the options leave no token \
                     possible"
                ),
                "{sequences:?}, {ahead}, {draft_len}"
            );
            let (before, failed) = outputs.split_at(index as usize);
            for out in before {
                let end = (out.tokens.len(), out.reason());
                assert_eq!(end, (30, FinishReason::Length));
            }
            assert_eq!(failed[0].finish, None);
            let again = stream.next(None).unwrap_err();
            assert_eq!(again.to_string(), error.to_string(), "the end is for ever");
            host.assert_empty();
        }
    }
}

/// A stop token is no part of the result, and ends a sequence also where EOS does not.
#[test]
fn stop_tokens_end_as_eos_does() {
    let (host, _) = Setup::default().start(|history, logits| {
        logits.fill(0.0);
        logits[3 + history.len() % 5] = 9.0;
        logits[EOS as usize] = 1.0;
    });
    for ignore_eos in [false, true] {
        let options = GenerateOptions {
            stop_tokens: vec![5],
            ignore_eos,
            ..length(12)
        };
        let got = host.one(prompt("ab"), options.clone());
        // After 3 tokens (BOS, a, b) comes 6, then 7, 3, 4, and 5.
        assert_eq!(
            (&got.tokens[..], got.reason()),
            (&[6, 7, 3, 4][..], FinishReason::Stop)
        );
        let least = GenerateOptions {
            min_gen_len: 6,
            ..options
        };
        // Where 5 would be, the next likely token is: EOS, unless that is banned as well.
        let got = host.one(prompt("ab"), least);
        let instead = if ignore_eos { EOS } else { 0 };
        assert_eq!(got.tokens[..6], [6, 7, 3, 4, instead, 6]);
    }
}

fn timed(max_time_ms: u32) -> GenerateOptions {
    GenerateOptions {
        max_time_ms,
        ..length(40)
    }
}

/// Time ends what runs, after its step, and what still waits; the call is fine.
#[test]
fn time_ends_what_runs_and_what_waits() {
    // On a busy machine the time may be over before the first step: then again with a longer one.
    assert!([30, 300, 3000, 30_000].into_iter().any(time_ends));
}

/// Whether a step had begun before the time was over.
fn time_ends(ms: u32) -> bool {
    let setup = Setup {
        max_batch_size: 1,
        ..Setup::default()
    };
    let (host, probe) = setup.start(|_, logits| {
        logits.fill(0.0);
        logits[4] = 1.0;
    });
    probe.hold();
    let timed = host.submit(vec![prompt("ab"); 2], timed(ms)).unwrap();
    let untimed = host.submit(vec![prompt("ab")], length(3)).unwrap();
    probe.wait_for(1);
    std::thread::sleep(Duration::from_millis((ms + 10).into()));
    probe.release();
    let (outputs, cancelled) = collect(&timed, 2).unwrap();
    assert!(!cancelled);
    assert_eq!(outputs[0].reason(), FinishReason::Time);
    let begun = !outputs[0].tokens.is_empty();
    assert!(outputs[0].tokens.len() <= 1, "the step that was under way");
    assert_eq!(outputs[1].reason(), FinishReason::Time);
    assert!(outputs[1].tokens.is_empty());
    assert_eq!(
        collect(&untimed, 1).unwrap().0[0].reason(),
        FinishReason::Length
    );
    host.assert_empty();
    begun
}

/// The time begins when the caller asks, before texts become tokens.
#[test]
fn time_begins_when_the_caller_asks() {
    let (host, _) = Setup::default().start(|_, logits| {
        logits.fill(0.0);
        logits[4] = 1.0;
    });
    // Linux counts below zero, so this is so, too, on a machine that began a minute ago.
    let asked_at = Instant::now() - Duration::from_secs(3600);
    let options = |max_time_ms| GenerateOptions {
        asked_at: Some(asked_at),
        ..timed(max_time_ms)
    };
    let over = host.one(prompt("ab"), options(3_600_000));
    assert_eq!(over.reason(), FinishReason::Time);
    assert!(over.tokens.is_empty() && over.stats.queue_ms >= 3_600_000.0);
    let in_time = host.one(prompt("ab"), options(7_200_000));
    assert_eq!(in_time.reason(), FinishReason::Length);
    assert!(in_time.stats.first_token_ms >= 3_600_000.0);
}

/// An engine that has nothing to do, since the only reader is behind, wakes for the time.
#[test]
fn time_ends_a_sequence_that_sits_out() {
    let setup = Setup {
        n_pages: 1024,
        max_seq_len: 4096,
        ..Setup::default()
    };
    let (host, _) = setup.start(|_, logits| {
        logits.fill(0.0);
        logits[4] = 1.0;
    });
    let options = GenerateOptions {
        max_gen_len: None,
        ..timed(600)
    };
    let start = Instant::now();
    let stream = host.submit(vec![prompt("ab")], options).unwrap();
    // Nobody reads: after 1,024 events it sits out.
    while host.engine.timings().running > 0 || host.engine.timings().steps == 0 {
        assert!(start.elapsed() < PATIENCE, "nobody wakes");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(start.elapsed() >= Duration::from_millis(600));
    let (outputs, _) = collect(&stream, 1).unwrap();
    assert_eq!(outputs[0].reason(), FinishReason::Time);
    assert_eq!(outputs[0].tokens.len(), 1025);
    assert_eq!(stream.next(None).unwrap(), Next::Done);
}
