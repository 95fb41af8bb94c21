//! The outputs of transformers' strategies of generation: greedy with a penalty, and beams.

use super::{LOGPROB_TOLERANCE, Place, assert_close, f32_options};
use crate::common::*;
use llamabi::capi::*;
use serde_json::Value;

pub fn greedy_strategies(place: &Place) {
    let strategies = json(&reference("strategies.json"));
    let mut seen = 0;
    for case in strategies
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["strategy"] == "greedy")
    {
        let dir = format!("{}/hf", case["model"].as_str().unwrap());
        let model = place.model(&dir, None, &f32_options());
        let mut options = greedy(case["max_gen_len"].as_u64().unwrap() as u32);
        if let Some(penalty) = case.get("repetition_penalty").and_then(Value::as_f64) {
            options.repetition_penalty = penalty as f32;
        }
        assert_eq!(
            model.one(&tokens(&case["prompt"]), &options).tokens,
            tokens(&case["tokens"])
        );
        seen += 1;
    }
    assert_eq!(seen, 8);
}

/// The tokens of a case's sequences.
pub fn sequences(case: &Value) -> Vec<Vec<i32>> {
    let all = case["sequences"].as_array().unwrap();
    all.iter().map(tokens).collect()
}

pub fn beam_strategies(place: &Place) {
    let strategies = json(&reference("strategies.json"));
    let mut seen = 0;
    for case in strategies.as_array().unwrap() {
        if case["strategy"] != "beam" {
            continue;
        }
        let dir = format!("{}/hf", case["model"].as_str().unwrap());
        let model = place.model(&dir, None, &f32_options());
        let mut options = greedy(case["max_gen_len"].as_u64().unwrap() as u32);
        options.num_beams = case["num_beams"].as_u64().unwrap() as u32;
        options.num_return_sequences = options.num_beams;
        options.length_penalty = case["length_penalty"].as_f64().unwrap() as f32;
        options.early_stopping = match case["early_stopping"].as_bool().unwrap() {
            true => LLAMA_EARLY_TRUE,
            false => LLAMA_EARLY_FALSE,
        };
        let got = model
            .generate(&[tokens(&case["prompt"])], &options)
            .unwrap();
        let scores: Vec<f32> = got.iter().map(|sequence| sequence.score).collect();
        let found: Vec<_> = got.into_iter().map(|sequence| sequence.tokens).collect();
        assert_eq!(found, sequences(case), "{case}");
        assert_close(
            &scores,
            &floats(&case["scores"]),
            LOGPROB_TOLERANCE,
            &case.to_string(),
        );
        seen += 1;
    }
    assert_eq!(seen, 16);
}
