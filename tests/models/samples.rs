//! `num_return_sequences` through the C API, on the CPU: to the bit what as many prompts give.

use crate::common::*;
use llamabi::capi::*;
use std::slice::from_ref;

fn model(dtype: i32) -> Model {
    let mut options = build_options();
    options.device = LLAMA_DEVICE_CPU;
    (options.weights_dtype, options.kv_dtype) = (dtype, dtype);
    (options.max_seq_len, options.max_batch_size) = (96, 4);
    Model::open(&reference("mha-f32/meta"), None, &options).unwrap()
}

/// A prompt within a page, one to the end of a page, and one token.
fn prompts() -> Vec<Vec<i32>> {
    let prompt = |len: i32| (0..len).map(|i| 3 + i * 37 % 200).collect();
    vec![prompt(41), prompt(48), prompt(1)]
}

#[test]
fn samples_have_the_bits_of_as_many_prompts() {
    for dtype in [LLAMA_DTYPE_F32, LLAMA_DTYPE_BF16] {
        for flags in [0, LLAMA_GEN_LOGPROBS, LLAMA_GEN_LOGPROBS | LLAMA_GEN_ECHO] {
            let mut options = generate_options();
            (options.max_gen_len, options.temperature) = (20, 0.9);
            (options.seed, options.repetition_penalty) = (11, 1.1);
            options.flags = flags | LLAMA_GEN_IGNORE_EOS;
            let repeated: Vec<Vec<i32>> = prompts()
                .iter()
                .flat_map(|prompt| std::iter::repeat_n(prompt.clone(), 4))
                .collect();
            let want = model(dtype).generate(&repeated, &options).unwrap();

            options.num_return_sequences = 4;
            let model = model(dtype);
            let got = model.generate(&prompts(), &options).unwrap();
            assert_eq!(got.len(), 12);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let bits =
                    |s: &Sequence| s.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(got.tokens, want.tokens, "{i}");
                assert_eq!(bits(got), bits(want), "{i}");
                assert_eq!((&got.text, got.finish), (&want.text, want.finish), "{i}");
                let all = prompts()[i / 4].len() as u32;
                assert!(
                    i % 4 == 0 || got.cached_tokens == all,
                    "{i}: {}",
                    got.cached_tokens
                );
            }
            let pulled = pull(&model, &prompts(), &options);
            let texts: Vec<_> = got.iter().map(|s| (&s.tokens[..], &s.text[..])).collect();
            assert!(
                pulled
                    .iter()
                    .map(|(tokens, text)| (&tokens[..], &text[..]))
                    .eq(texts)
            );
            assert_eq!(model.timings().pages_used, 0);
        }
    }
}

#[test]
fn more_samples_than_run_at_a_time_are_refused() {
    let model = model(LLAMA_DTYPE_F32);
    let mut options = greedy(2);
    options.num_return_sequences = 5;
    let (status, sentence) = model.generate(&prompts(), &options).unwrap_err();
    assert_eq!(status, LLAMA_E_BATCH);
    assert!(sentence.contains("num_return_sequences is 5"), "{sentence}");
    assert!(sentence.contains("max_batch_size, 4"), "{sentence}");
    // 0 is 1.
    options.num_return_sequences = 0;
    assert_eq!(
        model
            .generate(from_ref(&prompts()[0]), &options)
            .unwrap()
            .len(),
        1
    );
}
