//! Beam searches: what a plain search of one prompt finds, whatever pages, chunks and company do.

mod ends;
mod grammar;
mod phrases;

use crate::support::*;
use llamabi::backend::RowKind;
use llamabi::engine::request::{Bias, EarlyStopping, MAX_BEAM_TOP};
use llamabi::engine::sampler::Sampler;
use llamabi::engine::{Event, FinishReason, GenerateOptions, Next, Prompt, Request};
use llamabi::{Cancel, Error};
use std::sync::Arc;
use std::time::Duration;

fn tokens_of(prompt: &Prompt) -> Vec<i32> {
    match prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Refused(_) => Vec::new(),
    }
}

fn beams(n: usize) -> GenerateOptions {
    GenerateOptions {
        num_beams: n,
        num_return_sequences: n,
        max_gen_len: Some(12),
        logprobs: true,
        ..GenerateOptions::default()
    }
}

/// What one search is and what it finds.
fn check(host: &Host, prompts: &[Prompt], options: &GenerateOptions) {
    let got = host.run(prompts.to_vec(), options.clone());
    let n = options.num_return_sequences;
    for (prompt, got) in prompts.iter().zip(got.chunks(n)) {
        let tokens = tokens_of(prompt);
        let most = host.limits.max_seq_len;
        let want = simulate_beams(&mut hash_think, &tokens, options, most);
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            assert_same_beams(got, want);
            assert_eq!(got.stats.prompt_tokens as usize, tokens.len());
        }
    }
    host.assert_empty();
}

#[test]
fn beams_are_what_a_plain_search_finds() {
    // Within a page of four, at its end, behind it, and a prompt of one token.
    let prompts = ["abcdef", "abc", "abcd", ""].map(prompt);
    let bias = |token, bias| Bias { token, bias };
    let extras = [
        GenerateOptions::default(),
        GenerateOptions {
            repetition_penalty: 1.3,
            top_logprobs: 3,
            ..GenerateOptions::default()
        },
        GenerateOptions {
            min_gen_len: 4,
            stop_tokens: vec![5, 9, 5],
            no_repeat_ngram_size: 2,
            ..GenerateOptions::default()
        },
        GenerateOptions {
            stop: vec!["a".into(), "he".into(), "\u{FFFD}".into(), " b".into()],
            top_logprobs: 2,
            echo: true,
            ..GenerateOptions::default()
        },
        GenerateOptions {
            ignore_eos: true,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![bias(7, 1.5), bias(EOS, 2.0)],
            bad_words: vec![vec![8], vec![4, 5]],
            ..GenerateOptions::default()
        },
        GenerateOptions {
            stop_tokens: (3..30).collect(),
            ..GenerateOptions::default()
        },
    ];
    let mut cases = 0;
    for (width, length_penalty, early_stopping) in [
        (2, 1.0, EarlyStopping::False),
        (3, 0.0, EarlyStopping::True),
        (4, 2.0, EarlyStopping::Never),
        (4, -0.5, EarlyStopping::False),
        (2, 0.0, EarlyStopping::Never),
    ] {
        for extra in &extras {
            for max_gen_len in [Some(0), Some(1), Some(9), None] {
                for (ahead, prefill_chunk) in [(false, None), (true, Some(2))] {
                    let setup = Setup {
                        prefill_chunk,
                        max_seq_len: 24,
                        ..Setup::default()
                    };
                    let (host, _) = setup.start_ahead(ahead, hash_think);
                    let options = GenerateOptions {
                        num_beams: width,
                        num_return_sequences: 1 + cases % width,
                        length_penalty,
                        early_stopping,
                        max_gen_len,
                        min_gen_len: extra.min_gen_len.min(max_gen_len.unwrap_or(9)),
                        logprobs: cases % 3 > 0,
                        // Of no effect.
                        temperature: 1.3,
                        top_k: 1,
                        ..extra.clone()
                    };
                    check(&host, &prompts, &options);
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 240);
}

#[test]
fn a_prompt_is_computed_once_and_beams_share_its_pages() {
    let (host, probe) = Setup::default().start(hash_think);
    // Seven tokens: a page and three quarters.
    let got = host.run(vec![prompt("abcdef")], beams(4));
    let cached: Vec<_> = got.iter().map(|out| out.stats.cached_tokens).collect();
    assert_eq!(cached, [0, 7, 7, 7]);
    let steps = probe.steps();
    let rows = |kind| {
        let spans = steps.iter().flat_map(|step| &step.spans);
        let rows = spans.filter(|span| span.kind == kind);
        rows.map(|span| span.rows.len()).sum::<usize>()
    };
    assert_eq!(rows(RowKind::Prefill), 7);
    assert!(rows(RowKind::Decode) > 11, "{}", rows(RowKind::Decode));
    // The first page of all beams is one.
    let last = steps.last().unwrap();
    let first_pages = last.spans.iter().map(|span| last.pages[span.pages.start]);
    assert_eq!(
        first_pages.collect::<std::collections::HashSet<_>>().len(),
        1
    );
    assert!(probe.copies() > 0);
    let timings = host.engine.timings();
    assert_eq!((timings.prompt_tokens, timings.cached_tokens), (28, 21));
    host.assert_empty();
}

/// The events of a search, put together, are its results.
#[test]
fn events_tell_what_becomes_of_each_beam() {
    let (host, _) = Setup::default().start(hash_think);
    let options = GenerateOptions {
        beam_events: true,
        num_return_sequences: 2,
        ..beams(3)
    };
    let got = host.run(vec![prompt("abc"), prompt("hello")], options.clone());
    for of_prompt in got.chunks(2) {
        assert!(
            of_prompt[1].beams.is_empty(),
            "they are the first sequence's"
        );
        let mut running: Vec<(Vec<i32>, f32)> = vec![(Vec::new(), 0.0)];
        let mut next = Vec::new();
        let mut finished = Vec::new();
        for event in &of_prompt[0].beams {
            // The first event of a step is of beams that are longer by a token.
            let length = (event.sum_logprob / event.score).round() as usize;
            if length > running[0].0.len() + 1 {
                running = std::mem::take(&mut next);
            }
            assert_eq!(event.step as usize, length);
            let (mut tokens, before) = running[event.parent as usize].clone();
            assert!(event.sum_logprob < before, "a sum never grows");
            assert_eq!(tokens.len() + 1, length);
            let score = event.sum_logprob / length as f32;
            assert!((event.score - score).abs() < 1e-5);
            if event.token != EOS {
                tokens.push(event.token);
            }
            match event.reason {
                None => {
                    assert_eq!(event.beam as usize, next.len());
                    assert!(next.last().is_none_or(|(_, sum)| *sum >= event.sum_logprob));
                    next.push((tokens, event.sum_logprob));
                }
                Some(reason) => {
                    assert!(event.beam >= 3);
                    finished.push((event.score, tokens, reason));
                }
            }
        }
        finished.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (out, (score, tokens, reason)) in of_prompt.iter().zip(&finished) {
            assert_eq!((&out.tokens, out.score), (tokens, *score));
            assert_eq!(out.finish, Some(*reason));
        }
    }
    // They are not told unless they are asked for.
    let quiet = GenerateOptions {
        beam_events: false,
        ..options
    };
    assert!(host.one(prompt("abc"), quiet).beams.is_empty());
}

#[test]
fn a_search_begins_when_there_are_slots_for_all_its_beams() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let options = |n| GenerateOptions {
        max_gen_len: Some(3),
        num_return_sequences: 1,
        ..beams(n)
    };
    let first = host.submit(vec![prompt("a")], options(2)).unwrap();
    probe.wait_for(1);
    let no_wait = GenerateOptions {
        no_wait: true,
        ..options(3)
    };
    let error = host.submit(vec![prompt("b")], no_wait).err().unwrap();
    let busy = matches!(error, Error::Busy { needed: 3, free: 2 });
    assert!(busy, "{error}");
    let second = host.submit(vec![prompt("b")], options(3)).unwrap();
    let third = host.submit(vec![prompt("c")], length(3)).unwrap();
    probe.allow(1);
    probe.wait_for(2);
    let timings = host.engine.timings();
    assert_eq!((timings.running, timings.waiting), (2, 4), "in order");
    probe.release();
    for (stream, text) in [(&first, "bcd"), (&second, "cde"), (&third, "def")] {
        assert_eq!(collect(stream, 1).unwrap().0[0].text, text);
    }
    host.assert_empty();
}

/// Which beams go on is not known before the answer is read.
#[test]
fn no_step_follows_one_with_beams() {
    let (host, probe) = Setup::default().start_ahead(true, hash_think);
    host.run(vec![prompt("abc")], beams(3));
    assert!(!probe.order().contains("<<"), "{}", probe.order());
    let alone = GenerateOptions {
        ignore_eos: true,
        ..length(8)
    };
    host.one(prompt("abc"), alone);
    assert!(probe.order().contains("<<"), "{}", probe.order());
}

/// A reader who is behind holds the search, which gives all its slots up, and goes on to the same.
#[test]
fn a_search_whose_reader_is_behind_gives_all_its_slots_up_and_comes_back() {
    let setup = Setup {
        max_seq_len: 500,
        n_pages: 4 * 125,
        max_stall_ms: 1,
        ..Setup::default()
    };
    let (host, _) = setup.start(hash_think);
    let options = GenerateOptions {
        beam_events: true,
        ignore_eos: true,
        max_gen_len: Some(470),
        ..beams(4)
    };
    let want = host.run(vec![prompt("abcdef")], options.clone());
    let stream = host.submit(vec![prompt("abcdef")], options).unwrap();
    // It has more events than are queued for anybody.
    while host.engine.timings().running < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let others = host.run(vec![prompt("x"), prompt("y")], length(5));
    assert_eq!(others.len(), 2);
    let timings = host.engine.timings();
    assert_eq!((timings.parked, timings.running), (4, 0));
    assert_eq!(timings.pages_used, 0);
    let (got, cancelled) = collect(&stream, 4).unwrap();
    assert!(!cancelled);
    assert_eq!(got[0].beams, want[0].beams);
    for (got, want) in got.iter().zip(&want) {
        assert_same_beams(got, want);
    }
    host.assert_empty();
    assert_eq!(host.engine.timings().parked, 0);
}

#[test]
fn numbers_of_beams_have_limits() {
    let (host, _) = Setup::default().start(hash_think);
    let refused = |options| Request::new(vec![prompt("a")], options, &host.limits).unwrap_err();
    let error = refused(GenerateOptions {
        num_return_sequences: 1,
        ..beams(5)
    });
    assert!(matches!(error, Error::Beams { n: 5, max: 4 }), "{error}");
    let cases = [
        (
            "num_beams",
            GenerateOptions {
                num_beams: 0,
                ..greedy()
            },
        ),
        (
            "num_return_sequences",
            GenerateOptions {
                num_return_sequences: 3,
                ..beams(2)
            },
        ),
        (
            "length_penalty",
            GenerateOptions {
                length_penalty: f32::NAN,
                ..beams(2)
            },
        ),
        (
            "length_penalty",
            GenerateOptions {
                length_penalty: f32::INFINITY,
                ..greedy()
            },
        ),
        (
            "BEAM_EVENTS",
            GenerateOptions {
                beam_events: true,
                ..greedy()
            },
        ),
        (
            "top_logprobs",
            GenerateOptions {
                top_logprobs: MAX_BEAM_TOP + 1,
                ..beams(2)
            },
        ),
    ];
    for (name, options) in cases {
        let error = refused(options).to_string();
        assert!(error.contains(name), "{name}: {error}");
    }
    // Absurd penalties are only absurd.
    for length_penalty in [f32::MAX, f32::MIN, -1e-30] {
        let options = GenerateOptions {
            length_penalty,
            ..beams(3)
        };
        check(&host, &[prompt("abc")], &options);
    }
}

#[test]
fn without_beams_a_score_is_the_sum_of_log_probabilities() {
    let mut sure = say(&ids("abc"));
    let (host, _) = Setup::default().start(move |history: &History, logits: &mut [f32]| {
        sure(history, logits);
        logits.iter_mut().for_each(|logit| *logit *= 0.1);
    });
    let options = GenerateOptions {
        logprobs: true,
        ..greedy()
    };
    let out = host.one(prompt("x"), options);
    assert_eq!((&out.text[..], out.reason()), ("abc", FinishReason::Stop));
    let told: f64 = out.logprobs.iter().map(|l| f64::from(*l)).sum();
    // The EOS is no token of the result, and counts.
    assert!(
        f64::from(out.sum_logprob) < told,
        "{} {told}",
        out.sum_logprob
    );
    assert_eq!(out.score, out.sum_logprob);
    let out = host.one(prompt("x"), greedy());
    assert_eq!((out.score, out.sum_logprob), (0.0, 0.0));
}
