//! The range of every option.

use super::*;

#[test]
fn every_option_has_its_range_and_no_nan_is_in_any() {
    let d = GenerateOptions::default;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let mut refused: Vec<(&str, GenerateOptions)> = Vec::new();
    for value in [nan, inf, -inf, -0.1, -1e-45] {
        refused.push((
            "temperature",
            GenerateOptions {
                temperature: value,
                ..d()
            },
        ));
    }
    for value in [nan, inf, -0.1, 1.1, 1.0 + f32::EPSILON] {
        refused.push((
            "top_p",
            GenerateOptions {
                top_p: value,
                ..d()
            },
        ));
        refused.push((
            "min_p",
            GenerateOptions {
                min_p: value,
                ..d()
            },
        ));
    }
    for value in [nan, inf, 0.0, -0.0, -1.0] {
        refused.push((
            "repetition_penalty",
            GenerateOptions {
                repetition_penalty: value,
                ..d()
            },
        ));
    }
    refused.push(("top_k", GenerateOptions { top_k: -1, ..d() }));
    refused.push((
        "top_logprobs",
        GenerateOptions {
            top_logprobs: 301,
            ..d()
        },
    ));
    refused.push((
        "stop[1]",
        GenerateOptions {
            stop: vec!["a".into(), "".into()],
            ..d()
        },
    ));
    for value in [nan, inf, -0.1, 1.1] {
        refused.push((
            "typical_p",
            GenerateOptions {
                typical_p: value,
                ..d()
            },
        ));
    }
    for value in [nan, inf, -0.1, 1.0] {
        refused.push((
            "epsilon_cutoff",
            GenerateOptions {
                epsilon_cutoff: value,
                ..d()
            },
        ));
        refused.push((
            "eta_cutoff",
            GenerateOptions {
                eta_cutoff: value,
                ..d()
            },
        ));
    }
    for value in [nan, inf, -inf] {
        refused.push((
            "presence_penalty",
            GenerateOptions {
                presence_penalty: value,
                ..d()
            },
        ));
        refused.push((
            "frequency_penalty",
            GenerateOptions {
                frequency_penalty: value,
                ..d()
            },
        ));
    }
    let bias = |token, bias| GenerateOptions {
        logit_bias: vec![
            Bias {
                token: 1,
                bias: -inf,
            },
            Bias { token, bias },
        ],
        ..d()
    };
    for value in [nan, inf] {
        refused.push(("logit_bias[1].bias", bias(2, value)));
    }
    for token in [-1, 300, Token::MIN, Token::MAX] {
        refused.push(("logit_bias[1].token", bias(token, 1.0)));
        refused.push((
            "stop_tokens[1]",
            GenerateOptions {
                stop_tokens: vec![299, token],
                ..d()
            },
        ));
        refused.push((
            "a token of bad word 1",
            GenerateOptions {
                bad_words: vec![vec![299], vec![0, token]],
                ..d()
            },
        ));
    }
    refused.push((
        "bad_word_lens[1]",
        GenerateOptions {
            bad_words: vec![vec![1], vec![]],
            ..d()
        },
    ));
    let long = |n| GenerateOptions {
        logit_bias: vec![
            Bias {
                token: 1,
                bias: 0.5
            };
            n
        ],
        stop_tokens: vec![2; n],
        bad_words: vec![vec![3; n / 2], vec![4; n - n / 2]],
        ..d()
    };
    for (name, kept) in [
        ("n_logit_bias", 0),
        ("n_stop_tokens", 1),
        ("the length of bad_words", 2),
    ] {
        let mut options = long(65_537);
        if kept > 0 {
            options.logit_bias.clear();
        }
        if kept > 1 {
            options.stop_tokens.clear();
        }
        refused.push((name, options));
    }
    long(65_536).check(&LIMITS).unwrap();
    refused.push((
        "min_gen_len",
        GenerateOptions {
            min_gen_len: 5,
            max_gen_len: Some(4),
            ..d()
        },
    ));
    for (name, options) in refused {
        match options.check(&LIMITS) {
            Err(Error::InvalidArgument { name: got, .. }) => assert_eq!(got, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    for options in [
        d(),
        GenerateOptions {
            temperature: 0.0,
            top_p: 0.0,
            min_p: 1.0,
            ..d()
        },
        GenerateOptions {
            temperature: f32::MAX,
            top_p: 1.0,
            top_k: i32::MAX,
            ..d()
        },
        GenerateOptions {
            repetition_penalty: f32::from_bits(1),
            top_logprobs: 300,
            ..d()
        },
        GenerateOptions {
            max_gen_len: Some(usize::MAX),
            ..d()
        },
        GenerateOptions {
            min_gen_len: usize::MAX,
            no_repeat_ngram_size: usize::MAX,
            presence_penalty: f32::MAX,
            frequency_penalty: f32::MIN,
            typical_p: 1.0,
            epsilon_cutoff: 1.0 - f32::EPSILON,
            max_time_ms: u32::MAX,
            ..d()
        },
    ] {
        options.check(&LIMITS).unwrap();
    }
}
