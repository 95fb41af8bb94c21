//! Searches within a grammar: what is best of all that the language has.

use super::*;

/// Every sequence of tokens that is a text of the call's language, with its score, the best first.
fn all_texts(prompt: &[i32], options: &GenerateOptions) -> Vec<(f32, f32, Vec<i32>)> {
    let mut sampler = Sampler::new(IDS);
    let mut found = Vec::new();
    let mut begun = vec![(0.0f64, Vec::new(), Reading::new(options).unwrap())];
    while let Some((sum, output, reading)) = begun.pop() {
        let kinds = [(prompt, RowKind::Prefill), (&output[..], RowKind::Decode)];
        let history = kinds.map(|(tokens, kind)| tokens.iter().map(move |token| (*token, kind)));
        let history: Vec<_> = history.into_iter().flatten().collect();
        let mut row = vec![0.0; VOCAB];
        hash_think(&history, &mut row);
        sampler.load(&row);
        let softmax = sampler.log_softmax().unwrap();
        for token in (0..IDS as i32).filter(|token| reading.allows(*token)) {
            let sum = sum + f64::from(sampler.logprob(&softmax, token));
            let (mut text, mut reading) = (output.clone(), reading.clone());
            let length = text.len() + 1;
            if token != EOS {
                text.push(token);
                reading.take(token);
            }
            match token == EOS || !reading.follows().more {
                true => {
                    let score = sum / (length as f64).powf(f64::from(options.length_penalty));
                    found.push((score as f32, sum as f32, text));
                }
                false => begun.push((sum, text, reading)),
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
}

/// With a beam for every text a search is exhaustive.
#[test]
fn a_search_in_a_small_language_finds_all_of_it_best_first() {
    let setup = Setup {
        max_batch_size: 20,
        max_rows: 100,
        max_wanted: 24,
        n_pages: 20 * 16,
        ..Setup::default()
    };
    for (ahead, length_penalty, early_stopping) in [
        (false, 1.0, EarlyStopping::False),
        (true, 0.0, EarlyStopping::Never),
        (true, 2.0, EarlyStopping::True),
        (false, -0.7, EarlyStopping::False),
    ] {
        let (host, _) = setup.start_ahead(ahead, hash_think);
        let options = GenerateOptions {
            length_penalty,
            early_stopping,
            grammar: Some(grammar(0)),
            ..beams(16)
        };
        // In the company of samples in another language, and of a text in none.
        let company = GenerateOptions {
            num_return_sequences: 3,
            grammar: Some(grammar(2)),
            ..GenerateOptions::default()
        };
        let company = host.submit(vec![prompt("xyz"); 4], company).unwrap();
        let plain = host.submit(vec![prompt("k")], length(40)).unwrap();
        for text in ["abc", "hello the", ""] {
            let want = all_texts(&tokens_of(&prompt(text)), &options);
            // Two texts, cut in seven ways, each of them with a space in front that is dropped.
            assert_eq!(want.len(), 14);
            let got = host.run(vec![prompt(text)], options.clone());
            let found = got
                .iter()
                .map(|out| (out.score, out.sum_logprob, out.tokens.clone()));
            assert_eq!(found.take(14).collect::<Vec<_>>(), want, "behind {text:?}");
            for out in &got[..14] {
                assert!(["ab", "c"].contains(&&out.text[..]), "{:?}", out.text);
                assert_eq!(out.reason(), FinishReason::Stop);
            }
            assert!(got[14..].iter().all(|out| out.score == f32::NEG_INFINITY));
        }
        collect(&company, 12).unwrap();
        collect(&plain, 1).unwrap();
        host.assert_empty();
    }
}

/// With fewer beams than there are texts: what a plain search of one prompt finds.
#[test]
fn a_narrow_search_in_a_language_is_what_a_plain_one_finds() {
    let mut ends = [0; 2];
    for language in 0..SHORT_LANGUAGES {
        for (width, length_penalty, early_stopping) in [
            (2, 1.0, EarlyStopping::False),
            (3, 0.0, EarlyStopping::True),
            (4, 1.8, EarlyStopping::Never),
        ] {
            let (host, _) = Setup::default().start_ahead(width == 3, hash_think);
            let options = GenerateOptions {
                length_penalty,
                early_stopping,
                grammar: Some(grammar(language)),
                repetition_penalty: 1.2,
                echo: width == 4,
                ..beams(width)
            };
            check(&host, &["abc", "", "he"].map(prompt), &options);
            for out in host.run(vec![prompt("ab")], options) {
                ends[usize::from(out.reason() == FinishReason::Length)] += 1;
            }
        }
    }
    assert!(ends[0] > 0 && ends[1] > 0, "{ends:?}");
}
