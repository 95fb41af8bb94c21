//! Questions about logits that wait for an answer, and all that callers decide at random.

use crate::deciding::{CASES, asking, next, prompts, question, stalling, various};
use crate::streams::readable;
use crate::support::*;
use llamabi::Cancel;
use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Prompt, Question, Stream};
use std::time::{Duration, Instant};

#[test]
fn others_go_on_while_a_question_waits() {
    for ahead in [false, true] {
        let (host, _) = Setup::default().start_ahead(ahead, alphabet);
        let stream = host
            .submit(vec![prompt("a"), prompt("k")], asking(length(4)))
            .unwrap();
        let fd = stream.fd().unwrap();
        let first = question(&stream);
        // The other sequence of the call, too.
        let second = question(&stream);
        assert!(!readable(fd), "both questions are out");
        assert_eq!(host.one(prompt("a"), length(30)).tokens.len(), 30);
        let index = second.index();
        second.answer();
        for step in 0..4 {
            let Next::Event(Event::Token(e)) = next(&stream) else {
                panic!()
            };
            assert_eq!(e.index, index);
            if step < 3 {
                let third = question(&stream);
                assert_eq!(third.index(), index);
                third.answer();
            }
        }
        let Next::Event(Event::Finish(e)) = next(&stream) else {
            panic!()
        };
        assert_eq!((e.index, e.reason), (index, FinishReason::Length));
        assert_eq!(
            stream.next(Some(Duration::from_millis(5))).unwrap(),
            Next::Timeout
        );
        first.answer();
        // Readable as soon as the token or a question is there.
        let start = Instant::now();
        while !readable(fd) {
            assert!(start.elapsed() < PATIENCE);
        }
        assert!(matches!(next(&stream), Next::Event(Event::Token(_))));
        drop(stream);
    }
}

/// With all slots taken by a call that nobody reads.
#[test]
fn an_unread_question_makes_room_and_its_sequence_goes_on_to_the_same_bits() {
    for ahead in [false, true] {
        let (host, _) = stalling().start_ahead(ahead, hash_think);
        let prompts = vec![prompt("abcdefgh"), prompt("x")];
        let want = host.run(prompts.clone(), long(40));
        let stream = host.submit(prompts, asking(long(40))).unwrap();
        // Some are answered, then nobody comes.
        for _ in 0..10 {
            while let Next::Question(question) = next(&stream) {
                question.answer();
            }
        }
        let held = loop {
            if let Next::Question(question) = next(&stream) {
                break question;
            }
        };
        assert_eq!(host.run(vec![prompt("k"); 5], length(3)).len(), 5);
        until(&host, "both are parked", |host| {
            host.engine.timings().parked == 2
        });
        let timings = host.engine.timings();
        assert_eq!(
            (timings.running, timings.waiting, timings.pages_used),
            (0, 0, 0)
        );
        held.answer();
        let mut outputs = [Vec::new(), Vec::new()];
        loop {
            match next(&stream) {
                Next::Question(question) => question.answer(),
                Next::Event(Event::Token(e)) => outputs[e.index as usize].push(e.token),
                Next::Event(Event::Finish(e)) => assert_eq!(e.reason, FinishReason::Length),
                Next::Done => break,
                other => panic!("{other:?}"),
            }
        }
        for (got, want) in outputs.iter().zip(&want) {
            assert!(want.tokens.ends_with(got));
        }
        host.assert_empty();
    }
}

#[test]
fn a_question_that_nobody_reads_ends_the_call_in_time() {
    let setup = Setup {
        max_unread_ms: 50,
        ..stalling()
    };
    let (host, _) = setup.start(hash_think);
    for taken in [false, true] {
        let stream = host.submit(vec![prompt("ab")], asking(long(9))).unwrap();
        // In the queue, or with somebody who does not answer.
        let held = taken.then(|| question(&stream));
        until(&host, "it runs", |host| {
            host.engine.timings().steps > u64::from(taken)
        });
        until(&host, "it ends", |host| host.engine.timings().running == 0);
        let Next::Event(Event::Finish(end)) = next(&stream) else {
            panic!()
        };
        assert_eq!(end.reason, FinishReason::Unread);
        if let Some(held) = held {
            held.answer();
        }
        assert_eq!(next(&stream), Next::Done);
        host.assert_empty();
    }
}

#[test]
fn time_passes_while_a_question_waits() {
    let (host, _) = stalling().start(hash_think);
    let options = GenerateOptions {
        max_time_ms: 30,
        ..asking(long(9))
    };
    let stream = host.submit(vec![prompt("ab")], options).unwrap();
    let held = question(&stream);
    let Next::Event(Event::Finish(end)) = next(&stream) else {
        panic!()
    };
    assert_eq!(end.reason, FinishReason::Time);
    held.answer();
    assert_eq!(next(&stream), Next::Done);
    host.assert_empty();
}

#[test]
fn a_call_is_cancelled_while_a_question_waits() {
    type Canceller = fn(&Host, &Stream, &Cancel);
    let ways: [(&str, Canceller); 4] = [
        ("flag", |_, _, flag| flag.trigger()),
        ("stream", |_, stream, _| stream.cancel()),
        ("question", |_, _, _| {}),
        ("shutdown", |host, _, _| host.engine.shutdown()),
    ];
    // One sequence after its first token, two before theirs: two that have begun may be a token
    // apart, so their events have no order.
    let cases = [(1, false), (1, true), (2, false), (2, true)];
    for (name, cancel) in ways {
        for (n, taken) in cases {
            if name == "question" && !taken {
                continue;
            }
            let (host, _) = Setup::default().start(alphabet);
            let flag = Cancel::new();
            let options = GenerateOptions {
                cancel: Some(flag.clone()),
                ..asking(length(5))
            };
            let stream = host.submit(vec![prompt("a"); n], options).unwrap();
            if n == 1 {
                question(&stream).answer();
                assert!(matches!(next(&stream), Next::Event(Event::Token(_))));
            }
            let held = taken.then(|| question(&stream));
            cancel(&host, &stream, &flag);
            if name == "question" {
                drop(held);
            } else if let Some(held) = held {
                held.answer();
            }
            let mut ends = 0;
            loop {
                match next(&stream) {
                    Next::Event(Event::Finish(e)) => {
                        assert_eq!(e.reason, FinishReason::Cancelled, "{name}");
                        ends += 1;
                    }
                    Next::Event(Event::Token(_)) => {}
                    // The engine may not have seen yet that it is shut down.
                    Next::Question(question) if name == "shutdown" => question.answer(),
                    Next::Cancelled => break,
                    other => panic!("{name}: {other:?}"),
                }
            }
            assert_eq!(ends, n, "{name}");
            until(&host, "it is gone", |host| {
                host.engine.timings().running == 0
            });
            host.assert_empty();
        }
    }
}

#[test]
fn a_question_outlives_its_stream_and_its_handle() {
    let (host, _) = Setup::default().start(alphabet);
    for answered in [false, true] {
        let stream = host.submit(vec![prompt("a")], asking(length(5))).unwrap();
        let mut held = question(&stream);
        drop(stream);
        held.logits_mut().fill(0.0);
        if answered {
            held.answer();
        }
        until(&host, "it is gone", |host| {
            host.engine.timings().running == 0
        });
        host.assert_empty();
    }
    let stream = host.submit(vec![prompt("a")], asking(length(5))).unwrap();
    let held = question(&stream);
    drop(host);
    held.answer();
    assert!(matches!(next(&stream), Next::Event(Event::Finish(_))));
    assert_eq!(next(&stream), Next::Cancelled);
}

/// The question is of no use any more, whether it has been read or not.
#[test]
fn a_sequence_is_stopped_while_a_question_of_it_waits() {
    let (host, _) = Setup::default().start(alphabet);
    for taken in [false, true] {
        let stream = host
            .submit(vec![prompt("a"), prompt("k")], asking(length(3)))
            .unwrap();
        let mut held = taken.then(|| question(&stream));
        let of = held.as_ref().map_or(0, Question::index);
        stream.stop(of as usize).unwrap();
        let mut tokens = [0; 2];
        loop {
            match next(&stream) {
                Next::Question(question) => {
                    assert_ne!(question.index(), of);
                    question.answer();
                }
                Next::Event(Event::Token(e)) => tokens[e.index as usize] += 1,
                Next::Event(Event::Finish(e)) => {
                    let want = match e.index == of {
                        true => FinishReason::Caller,
                        false => FinishReason::Length,
                    };
                    assert_eq!(e.reason, want);
                    if let Some(held) = held.take_if(|_| e.index == of) {
                        held.answer();
                    }
                }
                end => {
                    assert_eq!(end, Next::Done);
                    break;
                }
            }
        }
        assert_eq!((tokens[of as usize], tokens[1 - of as usize]), (0, 3));
        host.assert_empty();
    }
}

/// Calls that ask, stop, give up and wait, at random, one after another and beside each other: all
/// end, and nothing is left.
#[test]
fn whatever_callers_decide_nothing_is_left() {
    let setup = Setup {
        max_batch_size: 3,
        max_stall_ms: 1,
        ..Setup::default()
    };
    for (seed, ahead) in [(1u64, false), (2, true), (3, true)] {
        let (host, _) = setup.start_ahead(ahead, hash_think);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let host = &host;
                scope.spawn(move || {
                    let mut random = Random(seed * 1000 + thread);
                    for _ in 0..40 {
                        one_of_many(host, &mut random);
                    }
                });
            }
        });
        until(&host, "all end", |host| {
            let timings = host.engine.timings();
            (timings.running, timings.waiting, timings.parked) == (0, 0, 0)
        });
        host.assert_empty();
    }
}

fn one_of_many(host: &Host, random: &mut Random) {
    let samples = 1 + random.below(3);
    let n = 1 + random.below(3);
    let options = GenerateOptions {
        num_return_sequences: samples,
        ask_logits: random.below(3) > 0,
        max_time_ms: if random.below(8) == 0 { 3 } else { 0 },
        seed: 1 + random.below(5) as u64,
        temperature: random.below(2) as f32,
        ..various(random.below(CASES))
    };
    let prompts: Vec<Prompt> = (0..n).map(|_| prompts().remove(random.below(4))).collect();
    let stream = host.submit(prompts, options).unwrap();
    let mut ended = vec![false; n * samples];
    loop {
        match random.below(40) {
            0 => return,
            1 => stream.cancel(),
            2..5 => stream.stop(random.below(n * samples)).unwrap(),
            5 => std::thread::sleep(Duration::from_millis(3)),
            _ => {}
        }
        match next(&stream) {
            Next::Question(question) if random.below(60) == 0 => drop(question),
            Next::Question(mut question) => {
                let at = random.below(VOCAB);
                question.logits_mut()[at] = [0.0, 90.0, f32::NAN][random.below(3)];
                question.answer();
            }
            Next::Event(Event::Beam(_)) => unreachable!("without beams"),
            Next::Event(Event::Token(e)) => assert!(!ended[e.index as usize]),
            Next::Event(Event::Finish(e)) => {
                assert!(!std::mem::replace(&mut ended[e.index as usize], true));
            }
            Next::Timeout => panic!("it hangs"),
            Next::Done | Next::Cancelled => {
                assert!(ended.iter().all(|ended| *ended));
                return;
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
