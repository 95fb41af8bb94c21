//! Several sequences of one prompt: they are what as many prompts would be, and cost one prefill.

use crate::support::*;
use llamabi::backend::RowKind;
use llamabi::engine::{FinishReason, GenerateOptions, Prompt, Request};
use llamabi::{Cancel, Error};
use std::sync::Arc;

fn prompt_rows(probe: &Arc<Probe>) -> usize {
    let steps = probe.steps();
    let spans = steps.iter().flat_map(|step| &step.spans);
    spans
        .filter(|span| span.kind == RowKind::Prefill)
        .map(|span| span.rows.len())
        .sum()
}

/// Everything but the figures.
fn assert_equal(got: &[Output], want: &[Output]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert_same(got, want);
    }
}

#[test]
fn samples_are_what_as_many_prompts_are() {
    // Within a page of four, at its end, behind it, and a prompt of one token.
    let prompts = ["abcdef", "abc", "abcd", ""].map(prompt);
    let mut cases = 0;
    for (echo, logprobs) in [(false, false), (false, true), (true, false), (true, true)] {
        for max_gen_len in [Some(0), Some(1), Some(9), None] {
            for (temperature, repetition_penalty) in [(0.0, 1.0), (1.0, 1.0), (1.3, 1.5)] {
                for (ahead, prefill_chunk) in [(false, None), (true, None), (false, Some(2))] {
                    let setup = Setup {
                        prefill_chunk,
                        ..Setup::default()
                    };
                    let options = GenerateOptions {
                        echo,
                        logprobs,
                        top_logprobs: 2 * usize::from(logprobs),
                        max_gen_len,
                        temperature,
                        repetition_penalty,
                        seed: 5,
                        stop: vec!["ab".into(), "\u{FFFD}".into()],
                        ..greedy()
                    };
                    let (host, _) = setup.start_ahead(ahead, hash_think);
                    let each = |prompt: &Prompt| std::iter::repeat_n(prompt.clone(), 3);
                    let want = host.run(prompts.iter().flat_map(each).collect(), options.clone());
                    let (host, _) = setup.start_ahead(ahead, hash_think);
                    let got = host.run(
                        prompts.to_vec(),
                        GenerateOptions {
                            num_return_sequences: 3,
                            ..options
                        },
                    );
                    assert_equal(&got, &want);
                    host.assert_empty();
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 144);
}

#[test]
fn the_prompt_is_computed_once_and_its_last_page_copied() {
    for echo in [false, true] {
        let (host, probe) = Setup::default().start(hash_think);
        let options = GenerateOptions {
            num_return_sequences: 4,
            max_gen_len: Some(6),
            temperature: 1.0,
            ignore_eos: true,
            echo,
            logprobs: echo,
            ..GenerateOptions::default()
        };
        // Seven tokens: a page and three quarters.
        let got = host.run(vec![prompt("abcdef")], options);
        let cached: Vec<_> = got.iter().map(|out| out.stats.cached_tokens).collect();
        assert_eq!(cached, [0, 7, 7, 7]);
        assert_eq!(
            prompt_rows(&probe),
            7 + 3,
            "the others compute its last row"
        );
        assert_eq!(probe.copies(), 3);
        assert!(got.windows(2).any(|pair| pair[0].tokens != pair[1].tokens));
        let timings = host.engine.timings();
        assert_eq!((timings.prompt_tokens, timings.cached_tokens), (28, 21));
        host.assert_empty();
    }
    // At the end of a page there is nothing to copy.
    let (host, probe) = Setup::default().start(hash_think);
    let options = GenerateOptions {
        num_return_sequences: 2,
        max_gen_len: Some(3),
        ..greedy()
    };
    host.run(vec![prompt("abc")], options);
    assert_eq!((prompt_rows(&probe), probe.copies()), (4 + 1, 0));
}

#[test]
fn samples_live_on_when_the_first_ends_with_its_prompt() {
    let (host, _) = Setup::default().start(hash_think);
    let options = GenerateOptions {
        num_return_sequences: 4,
        max_gen_len: Some(1),
        temperature: 1.0,
        ..GenerateOptions::default()
    };
    let got = host.run(vec![prompt("abcdef"), prompt("abcdeg")], options);
    assert_eq!(got.len(), 8);
    for out in &got {
        assert_eq!(out.stats.prompt_tokens, 7);
        assert!(out.tokens.len() == 1 || out.reason() == FinishReason::Stop);
    }
    host.assert_empty();
}

#[test]
fn samples_wait_for_slots_for_all_of_them() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let options = |n| GenerateOptions {
        num_return_sequences: n,
        max_gen_len: Some(3),
        ..greedy()
    };
    let first = host.submit(vec![prompt("a")], options(2)).unwrap();
    probe.wait_for(1);
    let error = host.submit(
        vec![prompt("b")],
        GenerateOptions {
            no_wait: true,
            ..options(3)
        },
    );
    let error = error.err().unwrap();
    assert!(
        matches!(error, Error::Busy { needed: 3, free: 2 }),
        "{error}"
    );
    let second = host.submit(vec![prompt("b")], options(3)).unwrap();
    let third = host.submit(vec![prompt("c")], options(1)).unwrap();
    probe.allow(1);
    probe.wait_for(2);
    let timings = host.engine.timings();
    assert_eq!(
        (timings.running, timings.waiting),
        (2, 4),
        "in order of arrival"
    );
    probe.release();
    for (stream, n, text) in [(&first, 2, "bcd"), (&second, 3, "cde"), (&third, 1, "def")] {
        for out in collect(stream, n).unwrap().0 {
            assert_eq!(out.text, text);
        }
    }
    host.assert_empty();
}

#[test]
fn samples_that_are_cancelled_in_their_prompt_leave_nothing_behind() {
    let setup = Setup {
        prefill_chunk: Some(2),
        ..Setup::default()
    };
    let (host, probe) = setup.start(hash_think);
    probe.hold();
    let flag = Cancel::new();
    let options = GenerateOptions {
        num_return_sequences: 3,
        cancel: Some(flag.clone()),
        ..greedy()
    };
    let prompts = vec![prompt("abcdefghij"), Prompt::Refused("no"), prompt("x")];
    let stream = host.submit(prompts, options).unwrap();
    probe.wait_for(1);
    probe.allow(1);
    probe.wait_for(2);
    flag.trigger();
    probe.release();
    let (outputs, cancelled) = collect(&stream, 9).unwrap();
    assert!(cancelled);
    let reasons: Vec<_> = outputs.iter().map(Output::reason).collect();
    let (cancelled, refused) = (FinishReason::Cancelled, FinishReason::Unsafe);
    assert_eq!(reasons[..3], [cancelled; 3]);
    assert_eq!(reasons[3..6], [refused; 3]);
    assert_eq!(reasons[6..], [cancelled; 3]);
    host.assert_empty();
}

#[test]
fn numbers_of_samples_have_limits() {
    let (host, _) = Setup::default().start(hash_think);
    let refused = |prompts: usize, n| {
        let options = GenerateOptions {
            num_return_sequences: n,
            ..greedy()
        };
        let prompts = vec![prompt("a"); prompts];
        Request::new(prompts, options, &host.limits).unwrap_err()
    };
    assert!(matches!(refused(1, 5), Error::Samples { n: 5, max: 4 }));
    let error = refused(32_768, 3);
    assert!(
        matches!(
            error,
            Error::Batch {
                n: 98_304,
                max: 65_536
            }
        ),
        "{error}"
    );
    let error = refused(1, 0).to_string();
    assert!(error.contains("num_return_sequences"), "{error}");
    // Pages for all of them at the same time.
    let setup = Setup {
        n_pages: 33,
        ..Setup::default()
    };
    let (host, _) = setup.start(hash_think);
    assert_eq!(host.limits.max_samples, 2);
}
