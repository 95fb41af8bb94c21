//! Speculation: whatever drafts there are, sequences are what they are without them.

use crate::support::*;
use llamabi::Token;
use llamabi::backend::RowKind;
use llamabi::engine::request::Bias;
use llamabi::engine::{
    Drafted, FinishReason, GenerateOptions, MAX_DRAFTS, Next, Prompt, Request, Speculation,
};

pub(crate) fn tokens(prompt: &Prompt) -> Vec<Token> {
    match prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Refused(_) => Vec::new(),
    }
}

/// Everything that a row's choice can hang on, one thing at a time and all together.
pub(crate) fn kinds() -> Vec<GenerateOptions> {
    let hot = GenerateOptions {
        temperature: 1.0,
        seed: 3,
        max_gen_len: Some(37),
        logprobs: true,
        top_logprobs: 3,
        ..GenerateOptions::default()
    };
    let edited = GenerateOptions {
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        min_gen_len: 9,
        no_repeat_ngram_size: 3,
        bad_words: vec![vec![5, 6], vec![29]],
        logit_bias: vec![Bias {
            token: 7,
            bias: 1.5,
        }],
        ..hot.clone()
    };
    vec![
        GenerateOptions {
            temperature: 0.0,
            ..hot.clone()
        },
        hot.clone(),
        GenerateOptions {
            repetition_penalty: 1.4,
            ..hot.clone()
        },
        GenerateOptions {
            echo: true,
            stop: vec!["ab".into(), "\u{FFFD}".into(), "zq".into()],
            ignore_eos: true,
            ..hot.clone()
        },
        GenerateOptions {
            stop_tokens: vec![33, 5],
            max_gen_len: None,
            top_k: 9,
            min_p: 0.01,
            typical_p: 0.8,
            ..hot.clone()
        },
        edited.clone(),
        GenerateOptions {
            repetition_penalty: 0.8,
            echo: true,
            stop: vec!["the".into()],
            ..edited
        },
        GenerateOptions {
            num_return_sequences: 2,
            ..hot
        },
    ]
}

#[test]
fn drafts_change_nothing_whatever_they_are_worth() {
    let setup = Setup {
        max_wanted: 40,
        ..Setup::default()
    };
    let prompts = ["abcdef", "", "thethethe"].map(prompt);
    let all: Vec<Vec<Token>> = prompts.iter().map(tokens).collect();
    let guesses = [
        Guess::Right,
        Guess::Wrong,
        Guess::Random(1),
        Guess::Random(2),
    ];
    let (mut drafted, mut accepted) = (0, 0);
    for options in kinds() {
        let n = options.num_return_sequences;
        let prompt_of = |index: usize| &all[index / n];
        let want: Vec<Output> = (0..all.len() * n)
            .map(|index| {
                let (tokens, most) = (prompt_of(index), setup.max_seq_len);
                simulate(&mut hash_think, tokens, index as u32, &options, most)
            })
            .collect();
        for (guess, draft_len) in guesses
            .iter()
            .flat_map(|g| [0, 1, 3, MAX_DRAFTS].map(|n| (g, n)))
        {
            let text = |(index, want): (usize, &Output)| {
                let prompt = prompt_of(index);
                let echoed = if options.echo { prompt.len() } else { 0 };
                let last = &prompt[prompt.len().saturating_sub(2)..];
                guess.text(last, &want.tokens[echoed..])
            };
            let options = GenerateOptions {
                speculation: Speculation::NGram,
                predicted: want.iter().enumerate().flat_map(text).collect(),
                draft_len,
                ..options.clone()
            };
            for ahead in [false, true] {
                let (host, _) = setup.start_ahead(ahead, hash_think);
                let together = host.run(prompts.to_vec(), options.clone());
                let alone = host.run(prompts[..1].to_vec(), options.clone());
                for (got, want) in together.iter().zip(&want).chain(alone.iter().zip(&want)) {
                    assert_same(got, want);
                    let stats = &got.stats;
                    assert!(stats.accepted_tokens <= stats.drafted_tokens);
                    assert!(stats.accepted_tokens <= stats.generated_tokens);
                    drafted += u64::from(stats.drafted_tokens);
                    accepted += u64::from(stats.accepted_tokens);
                }
                let timings = host.engine.timings();
                let sum = |of: fn(&Output) -> u32| {
                    let all = together.iter().chain(&alone);
                    all.map(of).map(u64::from).sum::<u64>()
                };
                assert_eq!(timings.drafted_tokens, sum(|out| out.stats.drafted_tokens));
                assert_eq!(
                    timings.accepted_tokens,
                    sum(|out| out.stats.accepted_tokens)
                );
                host.assert_empty();
            }
        }
    }
    assert!(drafted > 10_000 && accepted > 4_000, "{drafted} {accepted}");
}

/// What it says without drafts.
fn plainly(options: &GenerateOptions, setup: &Setup) -> Output {
    let plain = GenerateOptions {
        speculation: Speculation::Off,
        ..options.clone()
    };
    let (host, _) = setup.start(hash_think);
    host.one(prompt("abcdef"), plain)
}

#[test]
fn right_drafts_save_steps_and_wrong_ones_none() {
    let setup = Setup::default();
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 8,
        ignore_eos: true,
        max_gen_len: Some(41),
        ..GenerateOptions::default()
    };
    let all = [tokens(&prompt("abcdef"))];
    let run = |guess: Guess, draft_len: usize| {
        let most = setup.max_seq_len;
        let options = guess.of(&mut hash_think, &all, &options, most, draft_len);
        let (host, probe) = setup.start(hash_think);
        let got = host.one(prompt("abcdef"), options);
        (got, probe.take_steps())
    };
    let want = plainly(&options, &setup);

    let (got, steps) = run(Guess::Right, 3);
    assert_same(&got, &want);
    // The prompt gives one token, ten steps four each.
    assert_eq!(steps.len(), 11);
    assert!(steps[1..].iter().all(|step| step.tokens.len() == 4));
    assert_eq!(
        (got.stats.drafted_tokens, got.stats.accepted_tokens),
        (30, 30)
    );
    assert_eq!(got.stats.generated_tokens, 41);
    // Three guesses were right, and behind them nothing was guessed.
    let of_four = [
        Drafted::Accepted,
        Drafted::Accepted,
        Drafted::Accepted,
        Drafted::None,
    ];
    assert_eq!(got.drafts[0], Drafted::None);
    assert!(got.drafts[1..].chunks(4).all(|step| step == of_four));

    let (got, steps) = run(Guess::Wrong, 3);
    assert_same(&got, &want);
    assert_eq!(steps.len(), 41);
    assert_eq!(got.stats.accepted_tokens, 0);
    // All but the prompt's token and the last were guessed at.
    let rejected = |drafts: &[Drafted]| drafts.iter().all(|one| *one == Drafted::Rejected);
    assert!(rejected(&got.drafts[1..40]));
    assert_eq!(
        (got.drafts[0], got.drafts[40]),
        (Drafted::None, Drafted::None)
    );
    // All but the last, which has no room for any.
    let rows = |step: &llamabi::backend::Step| step.tokens.len();
    assert!(steps[1..38].iter().all(|step| rows(step) == 4));
    let last: Vec<usize> = steps[38..].iter().map(rows).collect();
    assert_eq!(last, [3, 2, 1], "no further than max_gen_len");

    // As many as pay. Of wrong ones their number follows from times, which nobody knows here.
    let (got, steps) = run(Guess::Right, 0);
    assert_same(&got, &want);
    assert!(steps.len() < 41, "{} steps", steps.len());
    let (got, steps) = run(Guess::Wrong, 0);
    assert_same(&got, &want);
    assert_eq!(steps.len(), 41);
}

#[test]
fn what_repeats_is_drafted_from_prompt_and_output() {
    for speculation in [Speculation::Auto, Speculation::NGram] {
        let (host, probe) = Setup::default().start(alphabet);
        let options = GenerateOptions {
            speculation,
            draft_len: 7,
            ..length(40)
        };
        // The alphabet begins anew behind z.
        let got = host.one(prompt("uvwxyzabcdefghi"), options);
        assert_eq!(got.text, "jklmnopqrstuvwxyzabcdefghijklmnopqrstuvw");
        let drafted = |step: &llamabi::backend::Step| step.tokens.len() > 1;
        assert!(probe.take_steps()[1..].iter().any(drafted));
        assert!(got.stats.accepted_tokens > 15, "{:?}", got.stats);
    }
}

#[test]
fn drafts_take_what_a_step_has_left_in_equal_shares() {
    let predicted: Vec<Token> = (0..90).map(|i| 3 + i % 26).collect();
    let options = |n| GenerateOptions {
        speculation: Speculation::NGram,
        draft_len: 16,
        predicted: predicted.clone(),
        ..length(n)
    };
    let shapes = |setup: Setup, prompts: usize| {
        let (host, probe) = setup.start(alphabet);
        let letters = ["ab", "fg", "kl", "pq"].map(prompt);
        let got = host.run(letters[..prompts].to_vec(), options(30));
        assert!(got.iter().all(|out| out.tokens.len() == 30));
        let decodes = |step: &llamabi::backend::Step| {
            let spans = step.spans.iter();
            let rows = spans.filter(|span| span.kind == RowKind::Decode);
            rows.map(|span| span.rows.len()).collect::<Vec<_>>()
        };
        let steps = probe.take_steps();
        steps.iter().map(decodes).collect::<Vec<_>>()
    };
    let base = Setup::default();
    // Eight rows may be wanted, and that many are computed.
    assert_eq!(shapes(base.clone(), 1)[1], [8]);
    assert_eq!(shapes(base.clone(), 4)[1], [2, 2, 2, 2]);
    let mut three = shapes(base.clone(), 3)[1].clone();
    three.sort_unstable();
    assert_eq!(three, [2, 3, 3]);
    // A full batch does not speculate.
    let full = Setup {
        max_wanted: 4,
        ..base.clone()
    };
    assert!(shapes(full, 4).iter().flatten().all(|rows| *rows == 1));
    // Rows are as scarce.
    let narrow = Setup {
        max_rows: 6,
        ..base
    };
    assert_eq!(shapes(narrow, 1)[1], [6]);
}

#[test]
fn a_prompt_comes_before_drafts() {
    let setup = Setup {
        prefill_chunk: Some(5),
        max_rows: 9,
        ..Setup::default()
    };
    let (host, probe) = setup.start(alphabet);
    let options = GenerateOptions {
        speculation: Speculation::NGram,
        draft_len: 16,
        ..length(33)
    };
    probe.hold();
    let first = host
        .submit(vec![prompt("abcdefghijklmnopqrstuvwxyzabcd")], options)
        .unwrap();
    probe.allow(8);
    probe.wait_for(9);
    let second = host
        .submit(vec![prompt("klmnopqrstuvwx")], length(3))
        .unwrap();
    probe.release();
    let text = "efghijklmnopqrstuvwxyzabcdefghijk";
    assert_eq!(collect(&first, 1).unwrap().0[0].text, text);
    assert_eq!(collect(&second, 1).unwrap().0[0].text, "yza");
    let steps = probe.take_steps();
    let mixed = steps.iter().filter(|step| step.spans.len() == 2);
    let mixed: Vec<_> = mixed
        .filter(|step| step.spans[1].kind == RowKind::Prefill)
        .map(|step| (step.spans[0].rows.len(), step.spans[1].rows.len()))
        .collect();
    assert_eq!(mixed, [(4, 5), (4, 5), (4, 5)]);
}

#[test]
fn steps_run_ahead_only_while_nothing_is_looked_for() {
    let run = |draft_len| {
        let (host, probe) = Setup::default().start_ahead(true, hash_think);
        let options = GenerateOptions {
            speculation: Speculation::NGram,
            draft_len,
            ignore_eos: true,
            ..length(57)
        };
        let got = host.one(prompt("abcdef"), options.clone());
        assert_same(&got, &plainly(&options, &Setup::default()));
        probe.order()
    };
    // Nothing is found, so it is looked for ever more rarely.
    let (mut waited, mut under_way) = (0, 0);
    let order = run(0);
    for step in order.chars() {
        waited += usize::from(step == '<' && under_way == 0);
        under_way += if step == '<' { 1 } else { -1 };
    }
    assert!((4..16).contains(&waited), "{waited} steps waited: {order}");
    // A fixed number is looked for at every step.
    assert!(!run(2).contains("<<"));
}

#[test]
fn a_stopped_sequence_counts_its_own_drafts() {
    let setup = Setup::default();
    let (host, _) = setup.start(alphabet);
    let options = GenerateOptions {
        speculation: Speculation::NGram,
        draft_len: 3,
        ..length(41)
    };
    let all = [tokens(&prompt("abcdef"))];
    let guessed = Guess::Right.of(&mut alphabet, &all, &options, setup.max_seq_len, 3);
    let stream = host.submit(vec![prompt("abcdef")], guessed).unwrap();
    until(&host, "all is made", |host| {
        host.engine.timings().running == 0
    });
    let mut outputs = vec![Output::default()];
    for _ in 0..10 {
        match stream.next(Some(PATIENCE)).unwrap() {
            Next::Event(event) => add(&mut outputs, event),
            end => panic!("{end:?}"),
        }
    }
    stream.stop(0).unwrap();
    while let Next::Event(event) = stream.next(Some(PATIENCE)).unwrap() {
        add(&mut outputs, event);
    }
    let stats = &outputs[0].stats;
    // The prompt's token, two steps of four tokens, and one token more.
    assert_eq!((stats.generated_tokens, stats.accepted_tokens), (10, 7));
    assert_eq!(outputs[0].reason(), FinishReason::Caller);
}

#[test]
fn a_call_that_is_cancelled_among_drafts_leaves_nothing_behind() {
    let (host, probe) = Setup::default().start(alphabet);
    probe.hold();
    let options = GenerateOptions {
        speculation: Speculation::NGram,
        draft_len: 5,
        ..length(30)
    };
    let text = "abcdefghijklmnopqrstuvwxyzabcd";
    let stream = host.submit(vec![prompt(text)], options).unwrap();
    probe.allow(2);
    probe.wait_for(3);
    stream.cancel();
    probe.release();
    let (outputs, cancelled) = collect(&stream, 1).unwrap();
    assert!(cancelled);
    assert_eq!(outputs[0].reason(), FinishReason::Cancelled);
    assert!("efghijklmnopqrstuvwxyzabcdefgh".starts_with(&outputs[0].text));
    host.assert_empty();
}

#[test]
fn numbers_of_drafts_and_their_texts_have_limits() {
    let (host, _) = Setup::default().start(hash_think);
    let refused = |options: GenerateOptions| {
        let error = Request::new(vec![prompt("a")], options, &host.limits).unwrap_err();
        error.to_string()
    };
    let error = refused(GenerateOptions {
        draft_len: 17,
        ..greedy()
    });
    assert_eq!(error, "draft_len is 17, must be at most 16");
    for token in [-1, VOCAB as Token] {
        let error = refused(GenerateOptions {
            predicted: vec![3, token],
            ..greedy()
        });
        assert_eq!(error, format!("predicted[1] is {token}, must be 0 to 299"));
    }
    let error = refused(GenerateOptions {
        predicted: vec![3; 65_537],
        ..greedy()
    });
    assert_eq!(error, "n_predicted is 65537, must be at most 65536");
}
