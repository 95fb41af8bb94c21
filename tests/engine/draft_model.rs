//! A draft model: its guesses change nothing, and what the model is contrasted with is its every
//! row.

use crate::drafts::{kinds, tokens};
use crate::support::*;
use llamabi::Error;
use llamabi::backend::{RowKind, Step};
use llamabi::engine::{GenerateOptions, MAX_DRAFTS, Prompt, Request, Speculation};
use std::time::Duration;

fn rows_of(steps: &[Step], kind: RowKind) -> usize {
    let spans = steps.iter().flat_map(|step| &step.spans);
    let spans = spans.filter(|span| span.kind == kind);
    spans.map(|span| span.rows.len()).sum()
}

/// A draft model that thinks what the model thinks is right each time, at any temperature and with
/// all penalties, unless its keys and values are not those of the sequence.
#[test]
fn a_draft_model_that_agrees_is_always_right() {
    let setup = Setup {
        max_wanted: 40,
        ..Setup::default()
    };
    let prompts = ["abcdef", "", "thethethe"].map(prompt);
    let mut accepted = 0;
    for options in kinds() {
        let n = options.num_return_sequences;
        let all = prompts.iter().map(tokens);
        let want: Vec<Output> = all
            .flat_map(|tokens| std::iter::repeat_n(tokens, n))
            .zip(0..)
            .map(|(tokens, i)| simulate(&mut hash_think, &tokens, i, &options, setup.max_seq_len))
            .collect();
        for draft_len in [0, 1, 3, MAX_DRAFTS] {
            for ahead in [false, true] {
                let options = GenerateOptions {
                    speculation: Speculation::Draft,
                    draft_len,
                    ..options.clone()
                };
                let (host, _, _) = setup.start_drafting(ahead, hash_think, hash_think);
                let together = host.run(prompts.to_vec(), options.clone());
                let alone = host.run(prompts[..1].to_vec(), options.clone());
                for (got, want) in together.iter().zip(&want).chain(alone.iter().zip(&want)) {
                    assert_same(got, want);
                    // Drafts behind the end of a text have nothing to be compared with.
                    let (drafted, taken) = (got.stats.drafted_tokens, got.stats.accepted_tokens);
                    assert!(drafted - taken <= MAX_DRAFTS as u32, "{taken} of {drafted}");
                    let ended = got.tokens.len() < 37 + if options.echo { 10 } else { 0 };
                    if options.stop.is_empty() && !ended {
                        assert_eq!(taken, drafted);
                    }
                    accepted += taken;
                }
                host.assert_empty();
            }
        }
    }
    assert!(accepted > 3_000, "{accepted}");
}

#[test]
fn whatever_a_draft_model_says_texts_are_the_same() {
    let setup = Setup {
        max_wanted: 40,
        ..Setup::default()
    };
    let prompts = ["abcdef", "", "thethethe"].map(prompt);
    let (mut drafted, mut accepted) = (0, 0);
    for (options, agrees) in kinds()
        .into_iter()
        .zip([0, 4, 8, 12, 15].into_iter().cycle())
    {
        let n = options.num_return_sequences;
        for speculation in [Speculation::Draft, Speculation::Auto] {
            for draft_len in [0, 2, 7] {
                let options = GenerateOptions {
                    speculation,
                    draft_len,
                    ..options.clone()
                };
                let (host, _, _) = setup.start_drafting(false, hash_think, half_hash_think(agrees));
                let got = host.run(prompts.to_vec(), options.clone());
                for (i, got) in got.iter().enumerate() {
                    let prompt = tokens(&prompts[i / n]);
                    let most = setup.max_seq_len;
                    let want = simulate(&mut hash_think, &prompt, i as u32, &options, most);
                    assert_same(got, &want);
                    drafted += got.stats.drafted_tokens;
                    accepted += got.stats.accepted_tokens;
                }
                host.assert_empty();
            }
        }
    }
    assert!(
        accepted > 300 && accepted < drafted,
        "{accepted} of {drafted}"
    );
}

#[test]
fn right_drafts_save_steps_and_wrong_ones_cost_few() {
    let setup = Setup {
        max_seq_len: 256,
        ..Setup::default()
    };
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 8,
        ignore_eos: true,
        max_gen_len: Some(41),
        speculation: Speculation::Draft,
        ..GenerateOptions::default()
    };
    let run = |agrees: usize, draft_len: usize| {
        let options = GenerateOptions {
            draft_len,
            ..options.clone()
        };
        let draft = half_hash_think(agrees);
        let (host, steps, drafting) = setup.start_drafting(false, hash_think, draft);
        let got = host.one(prompt("abcdef"), options);
        (got, steps.take_steps(), drafting.take_steps())
    };
    let (got, steps, drafting) = run(16, 3);
    // The prompt gives one token, ten steps four each.
    assert_eq!(steps.len(), 11);
    assert_eq!(
        (got.stats.drafted_tokens, got.stats.accepted_tokens),
        (30, 30)
    );
    // The prompt, and three steps for each of the model's.
    assert_eq!(drafting.len(), 1 + 30);
    assert_eq!(rows_of(&drafting, RowKind::Prefill), 7);
    // The last draft that was taken is computed with the next first one.
    assert_eq!(rows_of(&drafting, RowKind::Decode), 30 + 9);

    let (_, steps, drafting) = run(0, 3);
    assert_eq!(steps.len(), 41);
    assert!(drafting.len() > 100);
    // As many as pay are soon none: what is wrong again and again is asked for after 2, 4, 8 steps.
    let (_, steps, drafting) = run(0, 0);
    assert_eq!(steps.len(), 41);
    assert!(drafting.len() < 20, "{} steps", drafting.len());
    // The last of these comes before 60 tokens: none of the later ones is computed.
    let options = GenerateOptions {
        max_gen_len: Some(200),
        ..options
    };
    let draft = half_hash_think(0);
    let (host, steps, drafting) = setup.start_drafting(false, hash_think, draft);
    steps.slow_down(Duration::from_millis(4));
    drafting.slow_down(Duration::from_millis(1));
    host.one(prompt("abcdef"), options);
    let rows = rows_of(&drafting.take_steps(), RowKind::Decode);
    assert!(rows < 80, "{rows} rows");
}

/// Of a handle's first call, one sequence tries a draft model of which nothing is known; none tries
/// one that is too large to pay.
#[test]
fn one_sequence_tries_what_is_not_known() {
    const SEQUENCES: usize = 8;
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 8,
        ignore_eos: true,
        max_gen_len: Some(24),
        speculation: Speculation::Draft,
        ..GenerateOptions::default()
    };
    let prompts = || (0..SEQUENCES as i32).map(|i| Prompt::Tokens(vec![1, 5 + i, 30 - i, 7, 9]));
    for (draft_share, tries) in [(0.0, true), (0.3, true), (0.7, false)] {
        let setup = Setup {
            max_batch_size: SEQUENCES,
            n_pages: 128,
            max_wanted: 40,
            draft_share,
            ..Setup::default()
        };
        let (host, steps, drafting) = setup.start_drafting(false, hash_think, half_hash_think(0));
        // So slow that it cannot pay, once that is known.
        steps.slow_down(Duration::from_millis(1));
        drafting.slow_down(Duration::from_millis(5));
        let got = host.run(prompts().collect(), options.clone());
        let prompts_of = rows_of(&drafting.take_steps(), RowKind::Prefill);
        assert_eq!(prompts_of, if tries { 5 } else { 0 });
        let drafts = got.iter().map(|out| out.stats.drafted_tokens);
        let asked = drafts.clone().filter(|n| *n > 0).count();
        assert_eq!(asked, usize::from(tries), "{draft_share}");
        // Twice as many as tell what a step with them takes.
        let drafted: u32 = drafts.sum();
        assert!(drafted <= 10, "{drafted} with {draft_share}");
        for (i, out) in got.iter().enumerate() {
            let Some(Prompt::Tokens(tokens)) = prompts().nth(i) else {
                continue;
            };
            let most = setup.max_seq_len;
            assert_same(
                out,
                &simulate(&mut hash_think, &tokens, i as u32, &options, most),
            );
        }
        // The second call knows.
        host.run(prompts().collect(), options.clone());
        assert!(drafting.take_steps().is_empty());
    }
}

/// Of a draft model whose steps would pay, all sequences of a batch take drafts if they were right
/// before, and one at a time does if they were not.
#[test]
fn all_sequences_take_what_is_right() {
    const SEQUENCES: usize = 8;
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 8,
        ignore_eos: true,
        max_gen_len: Some(8),
        speculation: Speculation::Draft,
        ..GenerateOptions::default()
    };
    let prompts = || (0..SEQUENCES as i32).map(|i| Prompt::Tokens(vec![1, 5 + i, 30 - i, 7, 9]));
    for (agrees, all) in [(16, true), (0, false)] {
        let setup = Setup {
            max_batch_size: SEQUENCES,
            n_pages: 128,
            max_wanted: 64,
            ..Setup::default()
        };
        let (host, steps, _) = setup.start_drafting(false, hash_think, half_hash_think(agrees));
        steps.slow_down(Duration::from_millis(4));
        // A busy machine may hold up the draft model's steps, which do not seem to pay then; or the
        // model's, and then even those seem to that are mostly wrong.
        let mut with_drafts = (0..50).map(|_| {
            let got = host.run(prompts().collect(), options.clone());
            got.iter()
                .filter(|out| out.stats.drafted_tokens > 0)
                .count()
        });
        match all {
            true => assert!(with_drafts.any(|n| n == SEQUENCES)),
            false => assert!(with_drafts.take(9).filter(|&n| n < SEQUENCES).count() > 4),
        }
    }
}

#[test]
fn pages_are_found_with_what_the_draft_model_has_of_them() {
    let (host, _, drafting) = Setup::default().start_drafting(false, hash_think, hash_think);
    let plain = length(6);
    let drafts = GenerateOptions {
        speculation: Speculation::Draft,
        draft_len: 2,
        ..plain.clone()
    };
    let text = || prompt("abcdefabcdefabcdef");
    // Nobody asks the draft model, so it has nothing of the pages that the model has.
    let want = host.one(text(), plain);
    assert!(drafting.take_steps().is_empty());
    let first = host.one(text(), drafts.clone());
    assert_eq!(first.stats.cached_tokens, 16);
    assert_eq!(rows_of(&drafting.take_steps(), RowKind::Prefill), 19);
    let second = host.one(text(), drafts.clone());
    assert_eq!(rows_of(&drafting.take_steps(), RowKind::Prefill), 3);
    for got in [first, second] {
        assert_eq!(got.tokens, want.tokens);
        assert_eq!(got.stats.accepted_tokens, got.stats.drafted_tokens);
    }
    // Two that come together fill the pages once.
    let longer = || prompt("fedcbafedcbafedcbafed");
    host.run(vec![longer(), longer()], drafts);
    assert_eq!(rows_of(&drafting.take_steps(), RowKind::Prefill), 22 + 2);
}

/// As [`hash_think`], of another mind.
fn amateur(history: &History, logits: &mut [f32]) {
    hash_think(history, logits);
    logits.rotate_left(7);
}

#[test]
fn contrast_is_with_the_draft_models_row_of_the_same_text() {
    let setup = Setup {
        max_wanted: 40,
        ..Setup::default()
    };
    let prompts = ["abcdef", "", "thethethe"].map(prompt);
    let mut differ = 0;
    for options in kinds() {
        let n = options.num_return_sequences;
        for (contrast_beta, contrast_alpha) in [(0.5, 0.1), (2.0, 0.0), (0.25, 1e-3), (0.5, 0.3)] {
            let options = GenerateOptions {
                contrast_beta,
                contrast_alpha,
                ..options.clone()
            };
            let want: Vec<Output> = (0..prompts.len() * n)
                .map(|i| {
                    let (tokens, most) = (tokens(&prompts[i / n]), setup.max_seq_len);
                    let other: &mut Think = &mut amateur;
                    simulate_contrast(
                        &mut hash_think,
                        Some(other),
                        &tokens,
                        i as u32,
                        &options,
                        most,
                    )
                })
                .collect();
            for speculation in [Speculation::Off, Speculation::Auto] {
                let options = GenerateOptions {
                    speculation,
                    predicted: want.iter().flat_map(|out| out.tokens.clone()).collect(),
                    ..options.clone()
                };
                for ahead in [false, true] {
                    let (host, _, _) = setup.start_drafting(ahead, hash_think, amateur);
                    let together = host.run(prompts.to_vec(), options.clone());
                    // The model's pages are found, and so are the draft model's.
                    let alone = host.run(prompts[..1].to_vec(), options.clone());
                    for (got, want) in together.iter().zip(&want).chain(alone.iter().zip(&want)) {
                        assert_same(got, want);
                    }
                    host.assert_empty();
                }
            }
            let plain = GenerateOptions {
                contrast_beta: 0.0,
                ..options.clone()
            };
            let plain = simulate(
                &mut hash_think,
                &tokens(&prompts[0]),
                0,
                &plain,
                setup.max_seq_len,
            );
            differ += usize::from(plain.tokens != want[0].tokens);
        }
    }
    assert!(differ > 20, "{differ} texts are others");
}

/// Whatever is forbidden, the likeliest that is left can be chosen.
#[test]
fn contrast_is_among_what_bans_leave() {
    let setup = Setup::default();
    let edits = [
        GenerateOptions {
            no_repeat_ngram_size: 1,
            ..length(20)
        },
        GenerateOptions {
            bad_words: (3..250).step_by(2).map(|token| vec![token]).collect(),
            ..length(20)
        },
        GenerateOptions {
            min_gen_len: 20,
            stop_tokens: (3..250).step_by(3).collect(),
            ..length(20)
        },
    ];
    for (options, temperature) in edits.iter().zip([0.0, 0.0, 1.0]) {
        for contrast_alpha in [1.0, 0.5, 0.1] {
            let options = GenerateOptions {
                contrast_beta: 0.5,
                contrast_alpha,
                temperature,
                seed: 3,
                ..options.clone()
            };
            let prompts = ["abcdef", "", "thethethe"].map(prompt);
            let (host, _, _) = setup.start_drafting(false, hash_think, amateur);
            let got = host.run(prompts.to_vec(), options.clone());
            for (i, (got, prompt)) in (0..).zip(got.iter().zip(&prompts)) {
                let (tokens, most) = (tokens(prompt), setup.max_seq_len);
                let other: &mut Think = &mut amateur;
                let want =
                    simulate_contrast(&mut hash_think, Some(other), &tokens, i, &options, most);
                assert_same(got, &want);
            }
            host.assert_empty();
        }
    }
}

/// A prompt that was found in the model's half of the pages only is computed by the draft model in
/// chunks, as prompts are, so that other streams go on.
#[test]
fn what_contrast_lacks_comes_in_chunks() {
    let setup = Setup {
        prefill_chunk: Some(4),
        n_pages: 128,
        ..Setup::default()
    };
    let (host, _, drafting) = setup.start_drafting(false, hash_think, amateur);
    let texts = ["abcdef".repeat(6), "fedcba".repeat(6)];
    let options = GenerateOptions {
        contrast_beta: 0.5,
        ..length(6)
    };
    let want = |text: &str, options: &GenerateOptions| {
        let (tokens, most) = (tokens(&prompt(text)), setup.max_seq_len);
        let other: &mut Think = &mut amateur;
        simulate_contrast(&mut hash_think, Some(other), &tokens, 0, options, most)
    };
    for (text, company) in texts.iter().zip([true, false]) {
        host.one(prompt(text), length(1));
        assert!(drafting.take_steps().is_empty());
        let other = company.then(|| host.submit(vec![prompt("b")], length(50)).unwrap());
        let got = host.one(prompt(text), options.clone());
        assert_eq!(got.stats.cached_tokens, 36);
        assert_same(&got, &want(text, &options));
        if let Some(other) = other {
            let plain = simulate(
                &mut hash_think,
                &tokens(&prompt("b")),
                0,
                &length(50),
                setup.max_seq_len,
            );
            assert_same(&collect(&other, 1).unwrap().0[0], &plain);
        }
        let steps = drafting.take_steps();
        let rows = steps
            .iter()
            .map(|step| rows_of(std::slice::from_ref(step), RowKind::Prefill));
        assert_eq!(rows.clone().max(), Some(4), "{company}");
        assert!(rows.sum::<usize>() >= 37);
    }
    host.assert_empty();
}

#[test]
fn what_needs_a_draft_model_says_so() {
    let (without, _) = Setup::default().start(hash_think);
    let (with, _, _) = Setup::default().start_drafting(false, hash_think, amateur);
    let draft = GenerateOptions {
        speculation: Speculation::Draft,
        ..length(4)
    };
    let contrast = |contrast_beta, contrast_alpha| GenerateOptions {
        contrast_beta,
        contrast_alpha,
        ..length(4)
    };
    let request = |host: &Host, options: &GenerateOptions| {
        Request::new(vec![prompt("a")], options.clone(), &host.limits).err()
    };
    for (options, name) in [
        (draft, "speculation"),
        (contrast(0.5, 0.1), "contrast_beta"),
    ] {
        match request(&without, &options) {
            Some(Error::InvalidArgument { name: got, .. }) => assert_eq!(got, name),
            other => panic!("{other:?}"),
        }
        assert!(request(&with, &options).is_none());
    }
    let beams = GenerateOptions {
        num_beams: 2,
        ..contrast(0.5, 0.1)
    };
    for (options, name) in [
        (contrast(-0.1, 0.1), "contrast_beta"),
        (contrast(f32::NAN, 0.1), "contrast_beta"),
        (contrast(f32::INFINITY, 0.1), "contrast_beta"),
        (contrast(0.5, 1.1), "contrast_alpha"),
        (contrast(0.0, -0.1), "contrast_alpha"),
        (contrast(0.5, f32::NAN), "contrast_alpha"),
        (beams, "contrast_beta"),
    ] {
        match request(&with, &options) {
            Some(Error::InvalidArgument { name: got, .. }) => assert_eq!(got, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}
