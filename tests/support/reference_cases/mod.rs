//! Every recorded output of Meta's and Hugging Face's implementations, on whatever runs the models.
//!
//! Tolerances (float32 throughout, different summation orders): logits |a-b| <= 2e-4 max|logit|,
//! log probabilities 1e-3, greedy tokens equal (the smallest recorded gap between the two most
//! likely logits is 0.004, twenty times the logit tolerance of these models).

mod families;
mod strategies;

use crate::common::*;
use llamabi::capi::*;
use llamabi::{BuildOptions, Dtype};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

pub use families::*;
pub use strategies::*;

const MODELS: [&str; 3] = ["mha-f32", "gqa-bf16", "gqa-f16-mp2"];
pub const LOGPROB_TOLERANCE: f32 = 1e-3;

/// What runs the models.
pub struct Place {
    /// A model of a directory, with the tokenizer of another file if one is named. Of the options
    /// only `max_seq_len`, `max_batch_size` and `weights_dtype` are set.
    pub open: fn(&Path, Option<&Path>, &BuildOptions) -> Result<Model, Failure>,
    /// Draws of a nucleus case.
    pub draws: usize,
    /// Generate a second time, pulling: another way through the engine, but not through a device.
    pub pull: bool,
    /// How far log probabilities of a model may be off with weights and cache as stored. Those of
    /// tests/data/families have two: of "families" for prompts, of "answers of families" for what
    /// is likely.
    pub as_stored: fn(&Model, &str) -> f32,
    /// Models of tests/data/families that are refused, because a kernel is lacking.
    pub refused: &'static [&'static str],
}

/// A test for each kind of case.
macro_rules! reference_cases {
    ($place:expr; $($kind:ident)*) => {$(
        #[test]
        fn $kind() {
            $crate::reference_cases::$kind(&$place);
        }
    )*};
    ($place:expr) => {
        reference_cases!($place; logits generate text_completion chat_completion nucleus variants
            greedy_strategies beam_strategies as_stored families);
    };
}
pub(crate) use reference_cases;

fn f32_options() -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 4,
        weights_dtype: Some(Dtype::F32),
        ..BuildOptions::default()
    }
}

impl Place {
    fn model(&self, dir: &str, tokenizer: Option<&Path>, options: &BuildOptions) -> Model {
        (self.open)(&reference(dir), tokenizer, options).unwrap_or_else(|e| panic!("{dir}: {e:?}"))
    }

    /// Runs `check` on both checkpoint forms of every model, with its cases of one kind.
    fn each_case(
        &self,
        kind: &str,
        options: &BuildOptions,
        mut check: impl FnMut(&Model, &Value, &str),
    ) {
        for name in MODELS {
            let cases = json(&reference(&format!("{name}/cases.json")));
            for form in ["meta", "hf"] {
                let model = self.model(&format!("{name}/{form}"), None, options);
                let cases: Vec<_> = cases["cases"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|case| case["kind"] == kind)
                    .collect();
                assert!(!cases.is_empty());
                for (i, case) in cases.iter().enumerate() {
                    check(&model, case, &format!("{name}/{form} {kind} case {i}"));
                }
            }
        }
    }
}

pub fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance,
            "{what}: value {i} is {g}, reference has {w}"
        );
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    logits
        .iter()
        .map(|&l| (f64::from(l - max) - sum.ln()) as f32)
        .collect()
}

/// Log probabilities of the whole vocabulary after `prompt`, in order of the ids.
fn distribution(model: &Model, prompt: &[i32]) -> Vec<f32> {
    let mut options = greedy(1);
    options.top_logprobs = model.info().vocab_size;
    options.flags |= LLAMA_GEN_IGNORE_EOS;
    let result = model.one(prompt, &options);
    let mut logprobs = vec![f32::NAN; options.top_logprobs as usize];
    for &(token, logprob) in &result.top[0] {
        logprobs[token as usize] = logprob;
    }
    logprobs
}

/// A shift common to all logits is invisible in log probabilities; twice the logit tolerance
/// covers an error in the logit and one in the normaliser.
pub fn assert_logits(model: &Model, prompt: &[i32], logits: &[f32], what: &str) {
    let largest = logits.iter().fold(0f32, |m, l| m.max(l.abs()));
    assert_close(
        &distribution(model, prompt),
        &log_softmax(logits),
        4e-4 * largest,
        what,
    );
}

pub fn logits(place: &Place) {
    place.each_case("logits", &f32_options(), |model, case, what| {
        let prompt = tokens(&case["args"]["tokens"]);
        assert_logits(model, &prompt, &floats(&case["last_logits"]), what);

        // The five most likely tokens after every row: echoed, position i + 1 shows row i's.
        let mut options = greedy(1);
        options.flags |= LLAMA_GEN_ECHO | LLAMA_GEN_IGNORE_EOS;
        options.top_logprobs = 5;
        let result = model.one(&prompt, &options);
        let rows = case["top5"].as_array().unwrap();
        assert_eq!(rows.len(), prompt.len());
        assert!(
            result.top[0].is_empty(),
            "{what}: nothing comes before the first token"
        );
        for (i, row) in rows.iter().enumerate() {
            let ids: Vec<i32> = result.top[i + 1].iter().map(|a| a.0).collect();
            assert_eq!(ids, tokens(row), "{what}: row {i}");
        }
    });
}

pub fn generate(place: &Place) {
    place.each_case("generate", &f32_options(), |model, case, what| {
        let prompts: Vec<Vec<i32>> = case["args"]["prompt_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(tokens)
            .collect();
        let mut options = greedy(case["args"]["max_gen_len"].as_u64().unwrap() as u32);
        if case["args"]["echo"] == true {
            options.flags |= LLAMA_GEN_ECHO;
        }
        let results = model.generate(&prompts, &options).unwrap();
        assert_eq!(results.len(), prompts.len());
        for (i, result) in results.iter().enumerate() {
            let what = format!("{what}, sequence {i}");
            assert_eq!(result.tokens, tokens(&case["tokens"][i]), "{what}");
            assert_close(
                &result.logprobs,
                &floats(&case["logprobs"][i]),
                LOGPROB_TOLERANCE,
                &what,
            );
            assert_eq!(result.text, model.decode(&result.tokens), "{what}");
        }
        if !place.pull {
            return;
        }
        // The same call, pulled: the same tokens and text.
        for (pulled, result) in pull(model, &prompts, &options).iter().zip(&results) {
            assert_eq!(
                (&pulled.0, &pulled.1),
                (&result.tokens, &result.text),
                "{what}"
            );
        }
    });
}

fn assert_completion(model: &Model, got: &Sequence, want: &Value, what: &str) {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let generation = &want["generation"];
    let content = generation.get("content").unwrap_or(generation);
    assert_eq!(got.text, text(content), "{what}");
    let pieces: Vec<String> = got.tokens.iter().map(|&t| model.decode(&[t])).collect();
    let want_pieces: Vec<String> = want["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(text)
        .collect();
    assert_eq!(pieces, want_pieces, "{what}");
    assert_close(
        &got.logprobs,
        &floats(&want["logprobs"]),
        LOGPROB_TOLERANCE,
        what,
    );
}

pub fn text_completion(place: &Place) {
    place.each_case("text_completion", &f32_options(), |model, case, what| {
        let prompts: Vec<&str> = case["args"]["prompts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_str().unwrap())
            .collect();
        let mut options = greedy(case["args"]["max_gen_len"].as_u64().unwrap() as u32);
        if case["args"]["echo"] == true {
            options.flags |= LLAMA_GEN_ECHO;
        }
        let results = model.text_completion(&prompts, &options).unwrap();
        for (i, result) in results.iter().enumerate() {
            let encoded = model.encode_text(prompts[i], LLAMA_ENC_BOS);
            assert_eq!(encoded, tokens(&case["prompt_tokens"][i]), "{what}");
            assert_completion(model, result, &case["result"][i], what);
        }
    });
}

/// `(role, content)` of each message.
pub fn dialog(value: &Value) -> Vec<(&str, &str)> {
    let part = |m: &'_ Value, key: &str| -> &'static str {
        // Test data lives as long as the process.
        Box::leak(m[key].as_str().unwrap().to_owned().into_boxed_str())
    };
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (part(m, "role"), part(m, "content")))
        .collect()
}

pub fn chat_completion(place: &Place) {
    place.each_case("chat_completion", &f32_options(), |model, case, what| {
        let dialogs: Vec<_> = case["args"]["dialogs"]
            .as_array()
            .unwrap()
            .iter()
            .map(dialog)
            .collect();
        let options = greedy(case["args"]["max_gen_len"].as_u64().unwrap() as u32);
        let results = model.chat_completion(&dialogs, &options).unwrap();
        for (result, want) in results.iter().zip(case["result"].as_array().unwrap()) {
            assert_completion(model, result, want, what);
        }
    });
}

/// Draws from the library must be from the recorded support, at the recorded frequencies.
pub fn nucleus(place: &Place) {
    // Sequences of a call draw apart from each other, whatever seed they share.
    const TOGETHER: usize = 16;
    let mut options = f32_options();
    options.max_batch_size = TOGETHER;
    place.each_case("nucleus", &options, |model, case, what| {
        let prompts = vec![tokens(&case["args"]["tokens"]); TOGETHER];
        let mut options = generate_options();
        options.max_gen_len = 1;
        options.flags = LLAMA_GEN_IGNORE_EOS;
        options.temperature = case["args"]["temperature"].as_f64().unwrap() as f32;
        options.top_p = case["args"]["top_p"].as_f64().unwrap() as f32;
        let mut counts = BTreeMap::new();
        for seed in 1..=place.draws.div_ceil(TOGETHER) {
            options.seed = seed as u64;
            for sequence in model.generate(&prompts, &options).unwrap() {
                *counts.entry(sequence.tokens[0]).or_insert(0u64) += 1;
            }
        }
        let draws = counts.values().sum::<u64>() as f64;
        let expected: BTreeMap<i32, f32> = tokens(&case["support"])
            .into_iter()
            .zip(floats(&case["probs"]))
            .collect();
        for (token, n) in &counts {
            let p = f64::from(
                *expected
                    .get(token)
                    .unwrap_or_else(|| panic!("{what}: {token} drawn")),
            );
            let (mean, deviation) = (p * draws, (p * (1.0 - p) * draws).sqrt());
            // Seeds are fixed, so this either always passes or never; five deviations leave room
            // for the most unlucky of some hundred counts.
            assert!(
                (*n as f64 - mean).abs() <= 5.0 * deviation + 1.0,
                "{what}: {token} came {n} times, expected {mean:.1}"
            );
        }
        for (token, p) in expected {
            assert!(
                f64::from(p) * draws < 12.0 || counts.contains_key(&token),
                "{what}: {token} (p = {p}) never came"
            );
        }
    });
}

pub fn variants(place: &Place) {
    let tokenizer = reference("mha-f32/hf/tokenizer.model");
    let mut options = f32_options();
    options.max_seq_len = 128;
    for case in json(&reference("variants/cases.json")).as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let model = place.model(&format!("variants/{name}"), Some(&tokenizer), &options);
        let prompt = tokens(&case["tokens"]);
        assert_logits(&model, &prompt, &floats(&case["last_logits"]), name);
        assert_logits(&model, &prompt[..71], &floats(&case["logits_at_70"]), name);
        let want = tokens(&case["greedy"]);
        let result = model.one(&tokens(&case["greedy_prompt"]), &greedy(want.len() as u32));
        assert_eq!(result.tokens, want, "{name}");
    }
}

/// Weights and cache as stored, forced along the reference's tokens.
pub fn as_stored(place: &Place) {
    let mut options = f32_options();
    options.weights_dtype = None;
    for name in MODELS {
        let cases = json(&reference(&format!("{name}/cases.json")));
        for form in ["meta", "hf"] {
            let model = place.model(&format!("{name}/{form}"), None, &options);
            let tolerance = (place.as_stored)(&model, name);
            for case in cases["cases"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|c| c["kind"] == "generate")
            {
                for (prompt, (want, logprobs)) in case["args"]["prompt_tokens"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .zip(
                        case["tokens"]
                            .as_array()
                            .unwrap()
                            .iter()
                            .zip(case["logprobs"].as_array().unwrap()),
                    )
                {
                    // The reference's tokens are forced by echoing them.
                    let echoed = case["args"]["echo"] == true;
                    let (prompt, want) = (tokens(prompt), tokens(want));
                    let forced = if echoed {
                        want
                    } else {
                        [prompt.clone(), want].concat()
                    };
                    let mut options = greedy(0);
                    options.flags |= LLAMA_GEN_ECHO;
                    let got = model.one(&forced, &options).logprobs;
                    let got = if echoed {
                        &got[..]
                    } else {
                        &got[prompt.len()..]
                    };
                    assert_close(got, &floats(logprobs), tolerance, &format!("{name}/{form}"));
                }
            }
        }
    }
}
