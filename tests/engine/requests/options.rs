//! The range of every option, but for those that are one number with a range of its own: C programs
//! ask for these (`tests/abi/ranges.def`).

use super::*;

#[test]
fn what_is_no_plain_number_has_its_range() {
    let d = GenerateOptions::default;
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let mut refused: Vec<(&str, GenerateOptions)> = Vec::new();
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
            max_time_ms: u32::MAX,
            ..d()
        },
    ] {
        options.check(&LIMITS).unwrap();
    }
}
