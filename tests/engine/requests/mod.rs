//! What one request gets: ranges, lengths, echo and its scores, seeds.

mod options;

use crate::support::*;
use llamabi::capi::status_of;
use llamabi::engine::request::{Bias, RequestLimits};
use llamabi::engine::{FinishReason, GenerateOptions, Prompt, Request};
use llamabi::{Error, Token};

// ---- ranges ----

const LIMITS: RequestLimits = RequestLimits {
    max_seq_len: 8,
    max_samples: 4,
    vocab_size: 300,
    has_draft: false,
    has_heads: false,
};

fn refused(prompts: Vec<Prompt>, options: GenerateOptions) -> Error {
    Request::new(prompts, options, &LIMITS).unwrap_err()
}

#[test]
fn lengths_are_checked_before_tokens_and_tokens_before_options() {
    let bad = || GenerateOptions {
        temperature: f32::NAN,
        ..greedy()
    };
    let long = || Prompt::Tokens(vec![-1; 9]);
    let wrong = |token| Prompt::Tokens(vec![3, token]);
    assert!(matches!(
        refused(vec![], bad()),
        Error::Batch { n: 0, max: 65_536 }
    ));
    assert!(matches!(
        refused(vec![long(); 65_537], bad()),
        Error::Batch {
            n: 65_537,
            max: 65_536
        }
    ));
    let error = refused(vec![wrong(-1), long()], bad());
    assert!(
        matches!(
            error,
            Error::TooLong {
                index: 1,
                len: 9,
                max: 8
            }
        ),
        "{error}"
    );
    let error = refused(vec![wrong(3), Prompt::Tokens(vec![])], bad());
    assert_eq!(error.to_string(), "lens[1] is 0, must be at least 1");
    for token in [-1, 300, Token::MIN, Token::MAX] {
        let error = refused(vec![wrong(299), wrong(token)], bad());
        let text = format!("token 1 of prompt 1 is {token}, must be 0 to 299");
        assert_eq!((error.to_string(), status_of(&error)), (text, -1));
    }
    let error = refused(vec![wrong(299)], bad());
    assert_eq!(
        error.to_string(),
        "temperature is NaN, must be finite and at least 0"
    );
    assert!(Request::new(vec![Prompt::Tokens(vec![0; 8])], greedy(), &LIMITS).is_ok());
    assert!(Request::new(vec![Prompt::Refused("no")], greedy(), &LIMITS).is_ok());
}

// ---- lengths and ends ----

#[test]
fn a_sequence_ends_at_eos_at_its_length_or_where_the_room_ends() {
    let (host, _) = Setup {
        max_seq_len: 8,
        ..Setup::default()
    }
    .start(say(&ids("abc")));
    let got = host.one(prompt("x"), greedy());
    assert_eq!((got.reason(), &got.text[..]), (FinishReason::Stop, "abc"));
    assert_eq!(got.tokens, ids("abc"), "the EOS is no token");
    assert_eq!(got.stats.generated_tokens, 3);

    let two = GenerateOptions {
        max_gen_len: Some(2),
        ..greedy()
    };
    let got = host.one(prompt("x"), two);
    assert_eq!((got.reason(), &got.text[..]), (FinishReason::Length, "ab"));
    // EOS as the next token makes no difference once the length is reached.
    let three = GenerateOptions {
        max_gen_len: Some(3),
        ..greedy()
    };
    assert_eq!(host.one(prompt("x"), three).reason(), FinishReason::Length);

    let got = host.one(prompt("xxxxx"), greedy());
    assert_eq!((got.reason(), &got.text[..]), (FinishReason::Length, "ab"));

    let on = GenerateOptions {
        ignore_eos: true,
        ..greedy()
    };
    let got = host.one(prompt("x"), on);
    assert_eq!(got.tokens, [ids("abc"), vec![EOS; 3]].concat());
    assert_eq!((got.reason(), &got.text[..]), (FinishReason::Length, "abc"));
    host.assert_empty();
}

#[test]
fn an_eos_inside_a_prompt_does_not_cut_it() {
    let (host, _) = Setup::default().start(hash_think);
    let tokens = vec![BOS, 5, EOS, 6];
    let options = GenerateOptions {
        echo: true,
        max_gen_len: Some(2),
        ..greedy()
    };
    let got = host.one(Prompt::Tokens(tokens.clone()), options.clone());
    assert_eq!(got.tokens[..4], tokens);
    assert_same(&got, &simulate(&mut hash_think, &tokens, 0, &options, 64));
}

#[test]
fn where_nothing_can_be_generated_the_model_runs_only_for_scores() {
    let (host, probe) = Setup {
        max_seq_len: 5,
        ..Setup::default()
    }
    .start(hash_think);
    let none = GenerateOptions {
        max_gen_len: Some(0),
        ..greedy()
    };
    let tokens = [BOS, 3, 4, 5, 6];
    for (len, options) in [(3, none.clone()), (5, greedy())] {
        let prompt = Prompt::Tokens(tokens[..len].to_vec());
        let got = host.one(prompt.clone(), options.clone());
        assert_eq!(
            (got.reason(), got.tokens.len(), &got.text[..]),
            (FinishReason::Length, 0, "")
        );
        let got = host.one(
            prompt,
            GenerateOptions {
                echo: true,
                ..options
            },
        );
        assert_eq!(
            (got.reason(), &got.tokens[..]),
            (FinishReason::Length, &tokens[..len])
        );
        assert_eq!(got.text, &"abcd"[..len - 1]);
    }
    assert_eq!(probe.steps().len(), 0);

    // The scores are aligned as everywhere: each token's is from the row before it.
    for (len, options) in [(3, none), (5, greedy())] {
        let scored = GenerateOptions {
            echo: true,
            logprobs: true,
            top_logprobs: 2,
            ..options
        };
        let got = host.one(Prompt::Tokens(tokens[..len].to_vec()), scored.clone());
        assert_same(
            &got,
            &simulate(&mut hash_think, &tokens[..len], 0, &scored, 5),
        );
        assert_eq!(
            (got.logprobs[0], got.top[0].len(), got.top[1].len()),
            (0.0, 0, 2)
        );
        assert!(got.logprobs[1..].iter().all(|l| *l < 0.0));
    }
    let rows: usize = probe.steps().iter().map(|step| step.tokens.len()).sum();
    assert_eq!(rows, 2 + 4, "the last token's row would score nothing");

    let scored = GenerateOptions {
        echo: true,
        logprobs: true,
        max_gen_len: Some(0),
        ..greedy()
    };
    let got = host.one(Prompt::Tokens(vec![BOS]), scored);
    assert_eq!((got.tokens, got.logprobs), (vec![BOS], vec![0.0]));
    host.assert_empty();
}

#[test]
fn scores_do_not_depend_on_chunks_nor_on_how_many_rows_may_be_wanted() {
    let tokens: Vec<Token> = (0..40).map(|i| 3 + i % 26).collect();
    let options = GenerateOptions {
        echo: true,
        logprobs: true,
        top_logprobs: 3,
        max_gen_len: Some(5),
        ..greedy()
    };
    let want = simulate(&mut hash_think, &tokens, 0, &options, 64);
    for (chunk, max_wanted) in [
        (None, 4),
        (None, 64),
        (Some(1), 4),
        (Some(7), 5),
        (Some(64), 64),
    ] {
        let setup = Setup {
            prefill_chunk: chunk,
            max_wanted,
            ..Setup::default()
        };
        let (host, _) = setup.start(hash_think);
        assert_same(
            &host.one(Prompt::Tokens(tokens.clone()), options.clone()),
            &want,
        );
    }
}

#[test]
fn a_refused_dialog_is_answered_without_the_model_and_without_a_slot() {
    let (host, probe) = Setup {
        max_batch_size: 2,
        ..Setup::default()
    }
    .start(say(&ids("ok")));
    probe.hold();
    let busy = host.submit(vec![prompt("x"); 2], greedy()).unwrap();
    let no_wait = GenerateOptions {
        no_wait: true,
        ..greedy()
    };
    let got = host.one(Prompt::Refused("forbidden"), no_wait);
    assert_eq!(
        (got.reason(), &got.text[..]),
        (FinishReason::Unsafe, "forbidden")
    );
    probe.release();
    collect(&busy, 2).unwrap();
    let got = host.run(vec![Prompt::Refused("forbidden"), prompt("x")], greedy());
    assert_eq!(
        (got[0].reason(), got[1].reason()),
        (FinishReason::Unsafe, FinishReason::Stop)
    );
    assert_eq!(got[1].text, "ok");
}

#[test]
fn ids_that_the_tokenizer_has_not_are_never_sampled() {
    let think = |_: &History, logits: &mut [f32]| {
        logits.fill(0.0);
        logits[4] = 10.0;
        logits[IDS + 1] = 20.0;
    };
    let (host, _) = Setup::default().start(think);
    let options = GenerateOptions {
        max_gen_len: Some(1),
        logprobs: true,
        top_logprobs: 1,
        ..greedy()
    };
    let got = host.one(prompt("x"), options);
    assert_eq!(got.tokens, [4]);
    assert!(
        (got.logprobs[0] + 10.0).abs() < 0.1,
        "the surplus ids count in the softmax"
    );
    assert_eq!(got.top[0][0].token as usize, IDS + 1);
    // In a prompt they are tokens without text.
    let options = GenerateOptions {
        echo: true,
        max_gen_len: Some(1),
        ..greedy()
    };
    assert_eq!(
        host.one(Prompt::Tokens(vec![3, 299, 4]), options).text,
        "abb"
    );
}

#[test]
fn without_logprobs_there_are_none() {
    let (host, _) = Setup::default().start(hash_think);
    let options = GenerateOptions {
        max_gen_len: Some(3),
        ignore_eos: true,
        ..greedy()
    };
    let got = host.one(
        prompt("x"),
        GenerateOptions {
            top_logprobs: 2,
            ..options.clone()
        },
    );
    assert_eq!(got.logprobs, [0.0; 3]);
    assert!(
        got.top
            .iter()
            .all(|top| top.len() == 2 && top[0].logprob >= top[1].logprob)
    );
    let got = host.one(
        prompt("x"),
        GenerateOptions {
            logprobs: true,
            ..options
        },
    );
    assert!(got.logprobs.iter().all(|l| *l < 0.0) && got.top.iter().all(Vec::is_empty));
}

// ---- seeds ----

#[test]
fn a_seed_gives_the_same_tokens_alone_and_in_company() {
    let (host, _) = Setup::default().start(hash_think);
    let options = |seed| GenerateOptions {
        seed,
        temperature: 1.2,
        ..GenerateOptions::default()
    };
    let alone = host.one(prompt("abc"), options(7));
    let streams: Vec<_> = (5..10)
        .map(|seed| {
            host.submit(vec![prompt("abc"), prompt("abcd")], options(seed))
                .unwrap()
        })
        .collect();
    let outputs: Vec<_> = streams.iter().map(|s| collect(s, 2).unwrap().0).collect();
    assert_eq!(outputs[2][0].tokens, alone.tokens);
    assert_ne!(outputs[1][0].tokens, alone.tokens);
}

#[test]
fn without_a_seed_calls_take_the_handles_draws_in_order() {
    let start = |seed| {
        Setup {
            seed,
            ..Setup::default()
        }
        .start(hash_think)
        .0
    };
    let options = |seed| GenerateOptions {
        seed,
        temperature: 1.2,
        ..GenerateOptions::default()
    };
    let run = |host: &Host, seed| host.one(prompt("abc"), options(seed)).tokens;
    let (a, b, c) = (start(1), start(1), start(2));
    let first = [run(&a, 0), run(&a, 0)];
    assert_ne!(first[0], first[1]);
    // A call with its own seed takes none; one call takes one, however many sequences it has.
    run(&b, 99);
    let pair = b.run(vec![prompt("abc"); 2], options(0));
    assert_eq!(pair[0].tokens, first[0]);
    assert_eq!(run(&b, 0), first[1]);
    assert_ne!(run(&c, 0), first[0]);
}
