//! Callers who decide: which token is the last, and what the logits are. What they do not change
//! stays as it is, to the bit.

mod logits;

use crate::support::*;
use llamabi::engine::request::Bias;
use llamabi::engine::{
    Decider, Deciders, Event, FinishReason, GenerateOptions, Next, Prompt, Question, Stream,
};
use llamabi::{Error, Token};
use std::cell::RefCell;

type Stops<'a> = dyn FnMut(u32, &[Token], usize) -> bool + 'a;
type Changes<'a> = dyn FnMut(&mut Question) -> bool + 'a;

/// All events of a call whose caller decides, per sequence, and whether it ended as cancelled.
fn decided<'a>(
    host: &Host,
    prompts: Vec<Prompt>,
    options: GenerateOptions,
    stops: Option<&'a mut Stops<'a>>,
    changes: Option<&'a mut Changes<'a>>,
) -> (Vec<Output>, bool) {
    let options = GenerateOptions {
        ask_logits: changes.is_some(),
        ..options
    };
    let deciders = Deciders {
        on_stop: stops,
        on_logits: changes,
    };
    decided_after(host, prompts, options, deciders, |_| {}).unwrap()
}

/// The same, read when `meanwhile` has returned; or why the call has failed.
fn decided_after(
    host: &Host,
    prompts: Vec<Prompt>,
    options: GenerateOptions,
    mut deciders: Deciders<'_>,
    meanwhile: impl Fn(&Host),
) -> Result<(Vec<Output>, bool), Error> {
    let n = prompts.len() * options.num_return_sequences;
    let mut decider = Decider::new(&prompts, &options, deciders.on_stop.is_some()).unwrap();
    let stream = host.submit(prompts, options).unwrap();
    meanwhile(host);
    let mut outputs = vec![Output::default(); n];
    loop {
        let wait = Some(PATIENCE);
        match decider.next(&stream, wait, &mut deciders)? {
            Next::Event(event) => add(&mut outputs, event),
            Next::Question(_) | Next::Timeout => panic!("nothing within {PATIENCE:?}"),
            end => {
                assert!(outputs.iter().all(|out| out.finish.is_some()));
                return Ok((outputs, end == Next::Cancelled));
            }
        }
    }
}

/// Options that differ in all that an outcome has.
pub fn various(case: usize) -> GenerateOptions {
    let of = |values: [usize; 2], bit: usize| values[case >> bit & 1];
    GenerateOptions {
        echo: of([0, 1], 0) == 1,
        logprobs: of([0, 1], 1) == 1,
        top_logprobs: of([0, 3], 2),
        temperature: of([0, 1], 3) as f32,
        repetition_penalty: 1.0 + of([0, 1], 4) as f32 * 0.2,
        frequency_penalty: of([0, 1], 4) as f32 * 0.1,
        top_p: 1.0,
        max_gen_len: Some(12),
        ignore_eos: true,
        seed: 77 + case as u64,
        stop: vec!["ab".into(), "\u{FFFD}".into(), "he the".into()],
        ..GenerateOptions::default()
    }
}

pub const CASES: usize = 32;

pub fn prompts() -> Vec<Prompt> {
    ["abcdef", "abc", "", "xyz the"].map(prompt).to_vec()
}

pub fn next(stream: &Stream) -> Next {
    stream.next(Some(PATIENCE)).unwrap()
}

pub fn question(stream: &Stream) -> Question {
    match next(stream) {
        Next::Question(question) => question,
        other => panic!("{other:?}"),
    }
}

pub fn asking(options: GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        ask_logits: true,
        ..options
    }
}

pub fn stalling() -> Setup {
    Setup {
        max_seq_len: 1024,
        n_pages: 1024,
        max_batch_size: 2,
        max_stall_ms: 20,
        max_unread_ms: u32::MAX,
        ..Setup::default()
    }
}

#[test]
fn a_stopped_sequence_is_what_a_shorter_one_is() {
    let mut cut = 0;
    for case in 0..CASES {
        for ahead in [false, true] {
            let (host, _) = Setup::default().start_ahead(ahead, hash_think);
            let options = various(case);
            let whole = host.run(prompts(), options.clone());
            for n in [1, 2, 5, 12, 40] {
                let shorter = GenerateOptions {
                    max_gen_len: Some(n.min(12)),
                    ..options.clone()
                };
                let want = host.run(prompts(), shorter);
                let asked = RefCell::new(vec![0; 4]);
                let (got, cancelled) = decided(
                    &host,
                    prompts(),
                    options.clone(),
                    Some(&mut |index, tokens, n_prompt| {
                        let asked = &mut asked.borrow_mut()[index as usize];
                        *asked += 1;
                        let Prompt::Tokens(prompt) = &prompts()[index as usize] else {
                            unreachable!()
                        };
                        assert_eq!((&tokens[..n_prompt], n_prompt), (&prompt[..], prompt.len()));
                        let told = &want[index as usize].tokens;
                        let told = &told[if options.echo { n_prompt } else { 0 }..];
                        assert_eq!(tokens[n_prompt..], told[..*asked]);
                        tokens.len() - n_prompt == n
                    }),
                    None,
                );
                assert!(!cancelled);
                for ((got, want), whole) in got.iter().zip(&want).zip(&whole) {
                    let generated = want.stats.generated_tokens as usize;
                    let stopped = generated == n;
                    assert_eq!(got.finish == Some(FinishReason::Caller), stopped);
                    let reason = match stopped {
                        true => got.finish,
                        false => want.finish,
                    };
                    let want = Output {
                        finish: reason,
                        ..want.clone()
                    };
                    assert_same(got, &want);
                    assert!(whole.tokens.starts_with(&got.tokens));
                    let (got, want) = (got.stats, want.stats);
                    assert_eq!(got.generated_tokens, want.generated_tokens);
                    assert_eq!(got.prompt_tokens, want.prompt_tokens);
                    assert!(got.first_token_ms > 0.0 && got.total_ms >= got.first_token_ms);
                    cut += usize::from(stopped);
                }
            }
            host.assert_empty();
        }
    }
    assert!(cut > 300, "{cut}");
}

/// They are checked when the call begins, which is later.
#[test]
fn no_room_is_taken_for_sequences_that_there_cannot_be() {
    let options = GenerateOptions {
        num_return_sequences: usize::MAX / 8,
        ..length(1)
    };
    assert!(Decider::new(&prompts(), &options, true).is_ok());
}

/// However far the engine is when the reader stops.
#[test]
fn what_the_engine_made_meanwhile_is_dropped() {
    let (host, _) = Setup::default().start(alphabet);
    let options = GenerateOptions {
        // The letters of it are held back.
        stop: vec!["bcdex".into()],
        logprobs: true,
        ..length(20)
    };
    let stream = host.submit(vec![prompt("a")], options).unwrap();
    until(&host, "all is made", |host| {
        host.engine.timings().running == 0
    });
    for _ in 0..3 {
        assert!(matches!(next(&stream), Next::Event(Event::Token(_))));
    }
    stream.stop(0).unwrap();
    stream.stop(0).unwrap();
    let Next::Event(Event::Finish(end)) = next(&stream) else {
        panic!()
    };
    assert_eq!((end.reason, &end.text[..]), (FinishReason::Caller, "bcd"));
    assert_eq!(end.stats.generated_tokens, 3);
    assert_eq!(next(&stream), Next::Done);
    stream.stop(0).unwrap();
    assert_eq!(next(&stream), Next::Done);
    let error = stream.stop(1).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    host.assert_empty();
}

/// A sequence that the reader ends has not failed behind that, however far the engine is; nor have
/// those behind it in the call.
#[test]
fn what_fails_behind_its_end_has_not_failed() {
    let options = GenerateOptions {
        logit_bias: vec![Bias {
            token: 5,
            bias: f32::NEG_INFINITY,
        }],
        ..length(20)
    };
    // How many tokens each of three sequences may have, and which of them has none left first.
    let cases = [
        ([3, 4, 5], None),
        ([1, 5, 2], None),
        ([3, 9, 3], Some(1)),
        ([9, 3, 9], Some(0)),
        ([3, 3, 9], Some(2)),
    ];
    for (lengths, fails) in cases {
        for (samples, ahead, late) in (0..8).map(|i| (1 + i % 2 * 2, i & 2 > 0, i & 4 > 0)) {
            // Of the sixth token that is generated only the banned one is possible.
            // The last of three prompts waits for a slot.
            let setup = Setup {
                max_batch_size: samples.max(2),
                ..Setup::default()
            };
            let (host, _) = setup.start_ahead(ahead, |history, logits| {
                let prompt = history.iter().filter(|(token, _)| *token < 5).count();
                logits.fill(f32::NAN);
                logits[if history.len() < prompt + 5 { 6 } else { 5 }] = 1.0;
            });
            let prompts = match samples {
                1 => vec![prompt("a"), prompt("ab"), prompt("aba")],
                _ => vec![prompt("ab")],
            };
            let options = GenerateOptions {
                num_return_sequences: samples,
                ..options.clone()
            };
            let mut stops = |index: u32, tokens: &[Token], n_prompt: usize| {
                tokens.len() - n_prompt >= lengths[index as usize]
            };
            let deciders = Deciders {
                on_stop: Some(&mut stops),
                on_logits: None,
            };
            let what = format!("{lengths:?}, {samples}, {ahead}, {late}");
            let got = decided_after(&host, prompts, options, deciders, |host| {
                if late {
                    until(host, "all is made", |host| {
                        host.engine.timings().running == 0
                    });
                }
            });
            match (fails, got) {
                (None, Ok((outputs, false))) => {
                    let ends = outputs.iter().map(|out| (out.tokens.len(), out.reason()));
                    let want = lengths.map(|n| (n, FinishReason::Caller));
                    assert_eq!(ends.collect::<Vec<_>>(), want, "{what}");
                }
                (Some(index), Err(error)) => {
                    let named = format!("sequence {index}, token position ");
                    assert!(error.to_string().starts_with(&named), "{what}: {error}");
                }
                (_, got) => panic!("{what}: {got:?}"),
            }
            host.assert_empty();
        }
    }
}

#[test]
fn sequences_are_stopped_wherever_they_are() {
    let setup = Setup {
        max_batch_size: 2,
        ..Setup::default()
    };
    for samples in [1, 2] {
        let (host, probe) = setup.start(alphabet);
        probe.hold();
        let options = GenerateOptions {
            num_return_sequences: samples,
            echo: true,
            ..length(3)
        };
        let stream = host.submit(vec![prompt("a"); 4], options).unwrap();
        probe.wait_for(1);
        let last = 4 * samples - 1;
        // It has begun, it waits, and it waits beside another that goes on.
        for at in [0, last] {
            stream.stop(at).unwrap();
        }
        // What waits ends at once.
        let Next::Event(Event::Finish(end)) = next(&stream) else {
            panic!()
        };
        assert_eq!(
            (end.index as usize, end.reason),
            (last, FinishReason::Caller)
        );
        let timings = host.engine.timings();
        assert_eq!(timings.waiting as usize, 4 * samples - 2 - (2 - samples));
        probe.release();
        let mut outputs = vec![Output::default(); 4 * samples];
        while let Next::Event(event) = next(&stream) {
            match event {
                Event::Token(e) => outputs[e.index as usize].tokens.push(e.token),
                Event::Finish(e) => outputs[e.index as usize].finish = Some(e.reason),
                Event::Beam(_) => unreachable!("without beams"),
            }
        }
        assert_eq!(
            (outputs[0].tokens.len(), outputs[0].reason()),
            (0, FinishReason::Caller)
        );
        for out in &outputs[1..last] {
            assert_eq!((out.tokens.len(), out.reason()), (5, FinishReason::Length));
        }
        assert_eq!(outputs[last].finish, None, "told before");
        host.assert_empty();
    }
}

/// A sequence that has given its slot up, and one whose reader has stopped all.
#[test]
fn a_parked_sequence_is_stopped() {
    let (host, _) = stalling().start(hash_think);
    let stream = host.submit(vec![prompt("ab"); 2], long(600)).unwrap();
    host.run(vec![prompt("k"); 5], length(3));
    until(&host, "both are parked", |host| {
        host.engine.timings().parked == 2
    });
    stream.stop(1).unwrap();
    until(&host, "one is gone", |host| {
        host.engine.timings().parked <= 1
    });
    let (outputs, cancelled) = collect(&stream, 2).unwrap();
    assert!(!cancelled);
    assert_eq!(
        (outputs[1].tokens.len(), outputs[1].reason()),
        (0, FinishReason::Caller)
    );
    assert_eq!(
        (outputs[0].tokens.len(), outputs[0].reason()),
        (600, FinishReason::Length)
    );
    host.assert_empty();
}

/// All of it: it tells what it has found.
#[test]
fn a_beam_search_is_stopped_and_tells_what_it_has() {
    let (host, probe) = Setup::default().start(hash_think);
    let searching = GenerateOptions {
        num_beams: 3,
        num_return_sequences: 2,
        ignore_eos: true,
        ..length(40)
    };
    probe.hold();
    // The second prompt waits for slots.
    let prompts = vec![prompt("ab"), prompt("k")];
    let stream = host.submit(prompts.clone(), searching.clone()).unwrap();
    probe.wait_for(1);
    probe.allow(4);
    probe.wait_for(5);
    // Any of its sequences stands for it.
    stream.stop(1).unwrap();
    stream.stop(3).unwrap();
    probe.release();
    let (outputs, cancelled) = collect(&stream, 4).unwrap();
    assert!(!cancelled);
    for out in &outputs[..2] {
        assert_eq!(out.reason(), FinishReason::Caller);
        assert!((1..40).contains(&out.tokens.len()), "{}", out.tokens.len());
    }
    for out in &outputs[2..] {
        assert_eq!((out.reason(), out.tokens.len()), (FinishReason::Caller, 0));
    }
    host.assert_empty();
    let asking = asking(searching.clone());
    let error = host.submit(prompts.clone(), asking).err().unwrap();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = Decider::new(&prompts, &searching, true).err().unwrap();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
