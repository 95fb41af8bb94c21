//! Callers who change the logits: what they see, what they may do, and that nobody else notices.

use super::{CASES, decided, prompts, various};
use crate::support::*;
use llamabi::engine::request::Bias;
use llamabi::engine::{FinishReason, GenerateOptions, Next, Prompt};
use llamabi::{Error, Token};

#[test]
fn logits_that_nobody_changes_are_none_that_anybody_saw() {
    for case in 0..CASES {
        for ahead in [false, true] {
            let options = GenerateOptions {
                logit_bias: vec![Bias {
                    token: 5,
                    bias: 1.5,
                }],
                min_gen_len: 2,
                no_repeat_ngram_size: 3,
                ..various(case)
            };
            let (host, _) = Setup::default().start_ahead(ahead, hash_think);
            let want = host.run(prompts(), options.clone());
            let mut questions = vec![0; 4];
            let (got, cancelled) = decided(
                &host,
                prompts(),
                options.clone(),
                None,
                Some(&mut |question| {
                    let index = question.index() as usize;
                    questions[index] += 1;
                    let (tokens, n) = (question.tokens(), question.n_prompt());
                    assert_eq!(Prompt::Tokens(tokens[..n].to_vec()), prompts()[index]);
                    assert_eq!(tokens.len() - n + 1, questions[index]);
                    assert_eq!(question.logits().len(), VOCAB);
                    // What the tokenizer has not, and what is banned: EOS at first.
                    let banned = |t: Token| question.logits()[t as usize] == f32::NEG_INFINITY;
                    assert!((IDS as Token..VOCAB as Token).all(banned));
                    assert!(!banned(EOS), "EOS is ignored, so it is not banned");
                    // What is written there is not believed.
                    question.logits_mut()[IDS..].fill(1e9);
                    true
                }),
            );
            assert!(!cancelled);
            for ((got, want), asked) in got.iter().zip(&want).zip(&questions) {
                assert_same(got, want);
                assert_eq!(*asked, got.stats.generated_tokens as usize);
            }
            let made: usize = questions.iter().sum();
            assert_eq!(host.engine.timings().generated_tokens as usize, 2 * made);
            host.assert_empty();
        }
    }
}

/// One sequence of a call at a time, and all of them; beside others who ask for nothing.
#[test]
fn asking_changes_nothing_for_others() {
    for ahead in [false, true] {
        let setup = Setup {
            max_batch_size: 6,
            n_pages: 128,
            max_wanted: 16,
            ..Setup::default()
        };
        let (host, _) = setup.start_ahead(ahead, hash_think);
        let options = various(0b11110);
        let alone: Vec<Output> = (0..4)
            .map(|at| host.one(prompts()[at].clone(), options.clone()))
            .collect();
        std::thread::scope(|scope| {
            let run = || host.run(prompts()[..1].to_vec(), options.clone());
            let others: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
            for (at, alone) in alone.iter().enumerate() {
                let (got, _) = decided(
                    &host,
                    prompts()[at..][..1].to_vec(),
                    options.clone(),
                    None,
                    Some(&mut |_| true),
                );
                assert_same(&got[0], alone);
            }
            for other in others {
                assert_same(&other.join().unwrap()[0], &alone[0]);
            }
        });
        host.assert_empty();
    }
}

#[test]
fn a_caller_bans_and_adds_as_a_bias_does() {
    for ahead in [false, true] {
        for case in [0, 0b1010, 0b11110] {
            let (host, _) = Setup::default().start_ahead(ahead, hash_think);
            let options = various(case);
            let whole = host.run(prompts(), options.clone());
            let banned: Vec<Token> = whole
                .iter()
                .filter_map(|out| out.tokens.last())
                .copied()
                .collect();
            let bias = |token: &Token| Bias {
                token: *token,
                bias: f32::NEG_INFINITY,
            };
            let mut logit_bias: Vec<Bias> = banned.iter().map(bias).collect();
            logit_bias.push(Bias {
                token: 4,
                bias: 2.5,
            });
            let biased = GenerateOptions {
                logit_bias,
                // An edit is one addition of penalties and bias, not two.
                frequency_penalty: 0.0,
                ..options.clone()
            };
            let want = host.run(prompts(), biased.clone());
            assert_ne!(want[0].tokens, whole[0].tokens);
            for nothing in [f32::NEG_INFINITY, f32::INFINITY, f32::NAN] {
                let (got, _) = decided(
                    &host,
                    prompts(),
                    GenerateOptions {
                        logit_bias: Vec::new(),
                        ..biased.clone()
                    },
                    None,
                    Some(&mut |question| {
                        question.logits_mut()[4] += 2.5;
                        for token in &banned {
                            question.logits_mut()[*token as usize] = nothing;
                        }
                        true
                    }),
                );
                for (got, want) in got.iter().zip(&want) {
                    assert_same(got, want);
                }
            }
        }
    }
}

#[test]
fn a_caller_who_leaves_no_token_ends_the_call_with_an_error() {
    let (host, _) = Setup::default().start(alphabet);
    let other = host.submit(vec![prompt("a")], length(20)).unwrap();
    let options = GenerateOptions {
        ask_logits: true,
        ..length(9)
    };
    let stream = host.submit(vec![prompt("a"); 2], options).unwrap();
    let mut asked = 0;
    let error = loop {
        match stream.next(Some(PATIENCE)) {
            Ok(Next::Question(mut question)) => {
                asked += 1;
                if question.index() == 1 && asked > 4 {
                    question.logits_mut().fill(f32::NAN);
                }
                question.answer();
            }
            Ok(Next::Event(_)) => {}
            Ok(end) => panic!("{end:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoToken { index: 1, .. }), "{error}");
    assert_eq!(collect(&other, 1).unwrap().0[0].tokens.len(), 20);
    drop(stream);
    host.assert_empty();
}

#[test]
fn a_row_without_a_finite_number_is_no_question() {
    let (host, _) = Setup::default().start(|_, logits| logits.fill(f32::NAN));
    let (got, cancelled) = decided(
        &host,
        vec![prompt("a")],
        length(3),
        None,
        Some(&mut |question| -> bool { panic!("{question:?} has no answer") }),
    );
    assert!(!cancelled);
    assert_eq!(got[0].reason(), FinishReason::NotFinite);
}
