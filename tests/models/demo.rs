//! The model that the project ships says what its training script wrote down, in both forms, and
//! behaves as a demo should.

use crate::common::*;
use llamabi::capi::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("demo")
        .join(name)
}

/// Greedy tokens agree up to the first near-tie of the two likeliest, and log probabilities with
/// them. The weights are bf16, the arithmetic float32; so are the recorded numbers.
fn assert_expected(got: &Sequence, want: &Value, what: &str) {
    let (tokens_wanted, logprobs) = (tokens(&want["tokens"]), floats(&want["logprobs"]));
    let near_tie = floats(&want["gaps"]).iter().position(|gap| *gap < 1e-2);
    let sure = near_tie
        .unwrap_or(tokens_wanted.len())
        .min(tokens_wanted.len());
    assert!(sure > 3, "{what}: hardly anything is compared");
    assert_eq!(got.tokens[..sure], tokens_wanted[..sure], "{what}");
    for (i, (got, want)) in got.logprobs.iter().zip(&logprobs).take(sure).enumerate() {
        assert!(
            (got - want).abs() < 2e-3,
            "{what}: logprob {i} is {got}, expected {want}"
        );
    }
    if near_tie.is_none() {
        assert_eq!(got.tokens, tokens_wanted, "{what}");
    }
}

#[test]
fn both_forms_say_what_the_training_script_recorded() {
    let expected = json(&demo("expected.json"));
    let mut options = build_options();
    options.weights_dtype = LLAMA_DTYPE_F32;
    for form in ["meta", "hf"] {
        let model = Model::open(&demo(form), None, &options).unwrap();
        for case in expected["text_completion"].as_array().unwrap() {
            let prompt = case["prompt"].as_str().unwrap();
            assert_eq!(
                model.encode_text(prompt, LLAMA_ENC_BOS),
                tokens(&case["prompt_ids"])
            );
            let got = model.text_completion(&[prompt], &greedy(64)).unwrap();
            assert_expected(&got[0], case, &format!("{form}: {prompt}"));
        }
        for case in expected["chat_completion"].as_array().unwrap() {
            let dialog: Vec<(&str, &str)> = case["dialog"]
                .as_array()
                .unwrap()
                .iter()
                .map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
                .collect();
            assert_eq!(
                model.encode_dialog(&dialog).unwrap(),
                tokens(&case["prompt_ids"])
            );
            let got = model
                .chat_completion(std::slice::from_ref(&dialog), &greedy(64))
                .unwrap();
            assert_expected(&got[0], case, &format!("{form}: {dialog:?}"));
        }
    }
}

#[test]
fn stories_end_and_questions_are_answered() {
    let model = Model::open(&demo("meta"), None, &build_options()).unwrap();
    let mut options = generate_options();
    for seed in 1..=10 {
        options.seed = seed;
        let story = model
            .text_completion(&["Once upon a time"], &options)
            .unwrap()
            .remove(0);
        assert_eq!(
            story.finish, LLAMA_FINISH_STOP,
            "seed {seed}: {}",
            story.text
        );
        assert!(
            story.text.trim_end().ends_with(['.', '"', '!', '?']),
            "seed {seed}: {}",
            story.text
        );
    }
    let ask = |dialog: &[(&str, &str)]| {
        let options = greedy(64);
        let answer = model
            .chat_completion(&[dialog.to_vec()], &options)
            .unwrap()
            .remove(0);
        answer.text.trim().to_owned()
    };
    assert_eq!(
        ask(&[("user", "What colour is the sky?")]),
        "The sky is blue."
    );
    let turns = [
        ("user", "My name is Tom."),
        ("assistant", "Nice to meet you, Tom!"),
        ("user", "What is my name?"),
    ];
    assert_eq!(ask(&turns), "Your name is Tom.");
}
