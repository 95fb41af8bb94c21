//! The outputs of transformers for a tiny model of every family.

use super::{LOGPROB_TOLERANCE, Place, assert_close, assert_logits, f32_options};
use crate::common::*;
use llamabi::Dtype;
use llamabi::capi::*;
use serde_json::Value;

/// A tiny model of every family and RoPE type, against transformers (tests/data/families/make.py).
pub fn families(place: &Place) {
    let root = reference("../families");
    let tokenizer = root.join("tokenizer.model");
    let mut refused = Vec::new();
    for (name, model) in json(&root.join("cases.json")).as_object().unwrap() {
        let dir = root.join(model["dir"].as_str().unwrap_or(name));
        // Some have the weights of another, under another configuration.
        let copied = model["weights"].as_str().map(|weights| {
            let to = std::env::temp_dir().join(format!("llamabi-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&to).unwrap();
            std::fs::copy(dir.join("config.json"), to.join("config.json")).unwrap();
            let weights = root.join(weights).join("model.safetensors");
            std::fs::copy(weights, to.join("model.safetensors")).unwrap();
            to
        });
        let mut options = f32_options();
        options.max_seq_len = model["max_seq_len"].as_u64().unwrap() as usize;
        for weights_dtype in [Some(Dtype::F32), None] {
            options.weights_dtype = weights_dtype;
            let opened = (place.open)(copied.as_ref().unwrap_or(&dir), Some(&tokenizer), &options);
            let opened = match opened {
                Err((LLAMA_E_UNSUPPORTED, message)) if place.refused.contains(&&name[..]) => {
                    assert!(message.contains("kernels"), "{name}: {message}");
                    refused.push(name.clone());
                    continue;
                }
                opened => opened.unwrap_or_else(|e| panic!("{name}: {e:?}")),
            };
            for case in model["cases"].as_array().unwrap() {
                let tolerance = match weights_dtype {
                    Some(_) => [LOGPROB_TOLERANCE; 2],
                    None => ["families", "answers of families"]
                        .map(|what| (place.as_stored)(&opened, what)),
                };
                assert_family_case(&opened, case, tolerance, name);
                if weights_dtype.is_some() {
                    assert_family_greedy(&opened, case, name);
                }
            }
        }
        if let Some(dir) = copied {
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
    refused.sort();
    refused.dedup();
    assert_eq!(refused, place.refused, "refused");
}

/// With a tolerance for the log probabilities of the prompt, and one for those of the answer.
pub fn assert_family_case(model: &Model, case: &Value, tolerance: [f32; 2], name: &str) {
    let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
    let what = format!("{name}, {} tokens", prompt.len());
    // The reference's tokens, forced by echoing them: nothing comes before the first.
    let forced = [prompt.clone(), want.clone()].concat();
    let mut echo = greedy(0);
    echo.flags |= LLAMA_GEN_ECHO;
    let got = model.one(&forced, &echo).logprobs;
    let (of_prompt, of_answer) = got.split_at(prompt.len());
    let logprobs = floats(&case["prompt_logprobs"]);
    assert_close(&of_prompt[1..], &logprobs[1..], tolerance[0], &what);
    assert_close(of_answer, &floats(&case["logprobs"]), tolerance[1], &what);
}

pub fn assert_family_greedy(model: &Model, case: &Value, name: &str) {
    let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
    let what = format!("{name}, {} tokens", prompt.len());
    if case.get("last_logits").is_some() {
        assert_logits(model, &prompt, &floats(&case["last_logits"]), &what);
    }
    let mut options = greedy(want.len() as u32);
    options.flags |= LLAMA_GEN_IGNORE_EOS;
    assert_eq!(model.one(&prompt, &options).tokens, want, "{what}");
}
