//! Phrases that results must have.

use super::*;

/// Of each group one alternative, as tokens in a row.
fn has_phrases(tokens: &[i32], groups: &[Vec<Vec<i32>>]) -> bool {
    let has = |phrase: &Vec<i32>| tokens.windows(phrase.len()).any(|window| window == phrase);
    groups.iter().all(|group| group.iter().any(has))
}

#[test]
fn results_have_the_phrases_that_are_forced() {
    let groups = vec![
        vec![vec![40, 41, 42]],
        vec![vec![44], vec![45, 46]],
        vec![vec![41, 7], vec![41, 8]],
    ];
    let mut n_met = 0;
    for (width, ahead) in [(2, false), (3, true), (4, false), (4, true)] {
        let (host, _) = Setup::default().start_ahead(ahead, hash_think);
        let options = GenerateOptions {
            force_words: groups.clone(),
            beam_events: true,
            ..beams(width)
        };
        let got = host.run(vec![prompt("abc"), prompt("hello")], options.clone());
        for results in got.chunks(width) {
            let met = |out: &Output| has_phrases(&out.tokens, &groups);
            // An end counts with all phrases only. Where the length ends it, they come first.
            let ended = |out: &Output| out.reason() == FinishReason::Stop;
            let found = |out: &Output| out.score > f32::NEG_INFINITY;
            assert!(
                results
                    .iter()
                    .all(|out| met(out) || !ended(out) || !found(out))
            );
            assert!(results.is_sorted_by_key(|out| !met(out)), "{results:?}");
            n_met += results.iter().filter(|out| met(out)).count();
        }
        // Company, other chunks and a reader who is behind change nothing.
        let setup = Setup {
            prefill_chunk: Some(1),
            ..Setup::default()
        };
        let (other, _) = setup.start_ahead(!ahead, hash_think);
        let plain = other.submit(vec![prompt("x"); 3], length(20)).unwrap();
        let again = other.run(vec![prompt("abc"), prompt("hello")], options);
        for (got, again) in got.iter().zip(&again) {
            assert_same_beams(again, got);
            assert_eq!(again.beams, got.beams);
        }
        collect(&plain, 3).unwrap();
        host.assert_empty();
        other.assert_empty();
    }
    // They are far from what the model would say.
    assert!(n_met > 5, "{n_met}");
}

#[test]
fn nothing_runs_on_behind_an_end_that_a_phrase_has() {
    let word = tokens_of(&prompt("xyz"));
    let word = &word[word.len() - 3..];
    let forced = GenerateOptions {
        force_words: vec![vec![word.to_vec()]],
        ..beams(3)
    };
    let ends = [
        GenerateOptions {
            stop: vec!["xy".into()],
            ..forced.clone()
        },
        GenerateOptions {
            stop_tokens: vec![word[1]],
            ..forced
        },
    ];
    for options in ends {
        let (host, _) = Setup::default().start(hash_think);
        for out in host.run(vec![prompt("abc")], options) {
            let mut pairs = out.tokens.windows(2);
            assert!(!pairs.any(|pair| *pair == word[..2]), "{out:?}");
        }
        host.assert_empty();
    }
}

#[test]
fn phrases_have_to_be_possible() {
    let (host, _) = Setup::default().start(hash_think);
    let refused = |options: GenerateOptions| {
        let prompts = vec![prompt("a"), prompt("abcdefghij")];
        let error = Request::new(prompts, options, &host.limits).unwrap_err();
        error.to_string()
    };
    let forced = |force_words: &[&[&[i32]]]| GenerateOptions {
        force_words: force_words
            .iter()
            .map(|group| group.iter().map(|phrase| phrase.to_vec()).collect())
            .collect(),
        ..beams(2)
    };
    let cases = [
        ("force_group_lens[1] is 0", forced(&[&[&[3]], &[]])),
        ("an alternative of group 0 is 0", forced(&[&[&[3], &[]]])),
        ("a token of group 0", forced(&[&[&[3, -1]]])),
        ("a token of group 1", forced(&[&[&[3]], &[&[300]]])),
        (
            "group 0 of force_words",
            forced(&[&[&[3, 4, 5], &[9], &[3, 4]]]),
        ),
        ("group 0 of force_words", forced(&[&[&[3, 4], &[3, 4]]])),
        (
            "for prompt 0 is 4, must be at most 3",
            GenerateOptions {
                max_gen_len: Some(3),
                ..forced(&[&[&[3, 4], &[5, 6, 7]], &[&[8, 9]]])
            },
        ),
        (
            "for prompt 1 is 54",
            GenerateOptions {
                max_gen_len: None,
                ..forced(&[&[&[3; 54]]])
            },
        ),
        (
            "n_force_groups",
            GenerateOptions {
                num_beams: 1,
                num_return_sequences: 1,
                ..forced(&[&[&[3]]])
            },
        ),
    ];
    for (sentence, options) in cases {
        let error = refused(options);
        assert!(error.contains(sentence), "{sentence}: {error}");
    }
}
