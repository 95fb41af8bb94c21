//! A real model end to end: SmolLM2-135M-Instruct as `scripts/smollm2` fetches it, in GGUF (Q4_1,
//! the embedding Q8_0), through the C API. What transformers and llama.cpp answer to ten dialogs is
//! recorded in `tests/data/smollm2`, with the script that asked them.
//!
//! `LLAMABI_SMOLLM2` names the file elsewhere. Where there is none, these tests say that they are
//! skipped.

use crate::aloud::skipped;
use crate::common::*;
use llamabi::capi::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn model_path() -> Option<PathBuf> {
    let fetched = || {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        root.join("build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    };
    let path = std::env::var_os("LLAMABI_SMOLLM2").map_or_else(fetched, PathBuf::from);
    if path.exists() {
        return Some(path);
    }
    skipped("the real model: scripts/smollm2 has not fetched it, and LLAMABI_SMOLLM2 names none");
    None
}

fn open(path: &Path, dtype: i32) -> Model {
    let mut options = build_options();
    options.device = LLAMA_DEVICE_CPU;
    options.max_seq_len = 512;
    options.max_batch_size = 10;
    options.weights_dtype = dtype;
    Model::open(path, None, &options).unwrap()
}

fn cases() -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match json(&root.join("tests/data/smollm2/cases.json")) {
        Value::Array(cases) => cases,
        other => panic!("{other}"),
    }
}

fn dialog(case: &Value) -> Vec<(&str, &str)> {
    let messages = case["messages"].as_array().unwrap().iter();
    let text = |message: &'_ Value, key| message[key].as_str().unwrap().to_owned().leak() as &str;
    messages
        .map(|m| (text(m, "role"), text(m, "content")))
        .collect()
}

/// How many tokens of the answer are clear: those before the first that another one comes near.
fn clear(case: &Value, near: f32) -> usize {
    let gaps = floats(&case["gaps"]);
    gaps.iter()
        .position(|&gap| gap < near)
        .unwrap_or(gaps.len())
}

/// Answers to all dialogs in one call, as long as the recorded ones.
fn answers(model: &Model, cases: &[Value]) -> Vec<Sequence> {
    let longest = cases.iter().map(|case| tokens(&case["transformers"]).len());
    let dialogs: Vec<_> = cases.iter().map(dialog).collect();
    let options = greedy(longest.max().unwrap() as u32);
    model.chat_completion(&dialogs, &options).unwrap()
}

/// Along transformers' answer, whatever the model would say itself: at each position, by how much
/// the logit of the answer's token is above the greatest of all others. Where it is below, the gap
/// is negative.
fn gaps(model: &Model, case: &Value) -> Vec<f32> {
    let (prompt, answer) = (tokens(&case["prompt"]), tokens(&case["transformers"]));
    let mut options = greedy(0);
    options.flags |= LLAMA_GEN_ECHO;
    options.top_logprobs = 2;
    let forced = model.one(&[&prompt[..], &answer].concat(), &options);
    let gap = |i: usize| {
        let mut top = forced.top[i].iter();
        let (_, other) = top.find(|(token, _)| *token != forced.tokens[i]).unwrap();
        forced.logprobs[i] - other
    };
    (prompt.len()..forced.tokens.len()).map(gap).collect()
}

/// How far gaps are from transformers' own, at every position of every answer: at most, and in the
/// mean. Differences of two logits that move by no more than so far move a gap by no more either,
/// whichever token is the next one.
fn assert_gaps(model: &Model, cases: &[Value], farthest: f32, mean: f32) {
    let mut off = Vec::new();
    for case in cases {
        let (got, want) = (gaps(model, case), floats(&case["gaps"]));
        assert_eq!(got.len(), want.len());
        off.extend(got.iter().zip(want).map(|(got, want)| (got - want).abs()));
    }
    let n = off.len() as f32;
    let got = (
        off.iter().copied().fold(0.0, f32::max),
        off.iter().sum::<f32>() / n,
    );
    eprintln!("{n} gaps, off by {} at most, {} in the mean", got.0, got.1);
    assert!(got.0 < farthest && got.1 < mean, "{got:?}");
}

#[track_caller]
fn assert_begins_alike(got: &[i32], want: &[i32], n: usize, what: &str) {
    let n = n.min(want.len());
    assert!(got.len() >= n, "{what}: {got:?}, expected {want:?}");
    assert_eq!(got[..n], want[..n], "{what}, the first {n} tokens");
}

/// The file's numbers in float32: what transformers computes, up to float32 rounding.
#[test]
fn greedy_answers_in_float32_are_those_of_transformers() {
    let Some(path) = model_path() else { return };
    let (model, cases) = (open(&path, LLAMA_DTYPE_F32), cases());
    assert_eq!(cases.len(), 10);
    for (case, got) in cases.iter().zip(answers(&model, &cases)) {
        let what = case["messages"].to_string();
        let prompt = model.encode_dialog(&dialog(case)).unwrap();
        assert_eq!(prompt, tokens(&case["prompt"]), "{what}");
        let (want, n) = (tokens(&case["transformers"]), clear(case, 2e-3));
        // A sequence that EOS ends does not have it.
        let eos = want.last().filter(|_| got.finish == LLAMA_FINISH_STOP);
        let with_eos: Vec<i32> = got.tokens.iter().chain(eos).copied().collect();
        assert_begins_alike(&with_eos, &want, n, &what);
        if n == want.len() {
            assert_eq!(got.text, case["text"].as_str().unwrap(), "{what}");
        }
    }
    assert_gaps(&model, &cases, 1e-3, 1e-4);
}

/// As it is kept by default (uint4, the head int8): both others' answers, up to the first token
/// that is nearly as likely as another. llama.cpp rounds activations to 8 bits: recorded answers
/// part at gaps of up to 0.11.
#[test]
fn greedy_answers_as_stored_are_those_of_llama_cpp_and_transformers() {
    const NEAR: f32 = 0.15;
    let Some(path) = model_path() else { return };
    let (model, cases) = (open(&path, LLAMA_DTYPE_AUTO), cases());
    let mut compared = 0;
    for (case, got) in cases.iter().zip(answers(&model, &cases)) {
        let (what, n) = (case["messages"].to_string(), clear(case, NEAR));
        for peer in ["transformers", "llama_cpp"] {
            let mut want = tokens(&case[peer]);
            want.retain(|&token| token != model.info().eos_ids[0]);
            assert_begins_alike(&got.tokens, &want, n, &format!("{what}, {peer}"));
            compared += n.min(want.len());
        }
    }
    assert!(compared >= 150, "only {compared} tokens were compared");
    // 0.094 and 0.015 with activations in 16 bits, 0.183 and 0.033 with those of tiles in bfloat16.
    // When Q4_1 was kept as int8 these were 0.42 and 0.079, and with the scales of one of the 210
    // matrices a tenth too great 0.54 and 0.108; and no answer was another one before its first
    // near tie.
    let name = model.info().device_name.map(|c| c as u8);
    let (farthest, mean) = match name.windows(3).any(|part| part == b"AMX") {
        true => (0.3, 0.05),
        false => (0.2, 0.03),
    };
    assert_gaps(&model, &cases, farthest, mean);
}

/// A conversation: a turn finds all pages of earlier prompts in the prefix cache, and its answer is
/// that of a model that has computed nothing before.
#[test]
fn a_conversation_computes_what_is_new() {
    let Some(path) = model_path() else { return };
    let model = open(&path, LLAMA_DTYPE_AUTO);
    let options = greedy(60);
    let answer = |model: &Model, turns: &[(&str, &str)]| {
        let answers = model.chat_completion(&[turns.to_vec()], &options);
        answers.unwrap().remove(0)
    };
    let mut turns = vec![("user", "Why is the sky blue?")];
    let first = answer(&model, &turns);
    turns.extend([("assistant", &first.text[..]), ("user", "And a sunset?")]);
    let of_second = model.encode_dialog(&turns).unwrap().len() as u32;
    let second = answer(&model, &turns);
    turns.extend([("assistant", &second.text[..]), ("user", "Thank you.")]);
    let warm = answer(&model, &turns);
    let cold = answer(&open(&path, LLAMA_DTYPE_AUTO), &turns);
    assert_eq!((warm.tokens, &warm.logprobs), (cold.tokens, &cold.logprobs));
    let cached = [first.cached_tokens, cold.cached_tokens, warm.cached_tokens];
    assert_eq!(cached, [0, 0, of_second / 32 * 32]);
    assert!(!warm.text.contains("<|im_end|>"), "{}", warm.text);
}
