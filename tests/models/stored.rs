//! Checkpoints that other programs wrote: GGUF, GPTQ, AWQ, bitsandbytes, compressed-tensors, fp8.
//! Outputs of transformers on the dequantised weights in float32, as `tests/data/*/make.py` recorded
//! them, through the C API.

use crate::common::*;
use crate::reference_cases::{LOGPROB_TOLERANCE, assert_close, assert_logits};
use llamabi::capi::*;
use llamabi::{BuildOptions, Device, Dtype, Llama};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// With the checkpoint's own tokenizer where none is named.
fn open(path: &Path, tokenizer: Option<&Path>, dtype: i32, threads: u32) -> Model {
    let mut options = build_options();
    options.device = LLAMA_DEVICE_CPU;
    options.max_seq_len = 64;
    options.max_batch_size = 4;
    options.weights_dtype = dtype;
    options.n_threads = threads;
    let model = Model::open(path, tokenizer, &options);
    model.unwrap_or_else(|e| panic!("{}: {e:?}", path.display()))
}

fn ignoring_eos(n: usize) -> llama_generate_options {
    let mut options = greedy(n as u32);
    options.flags |= LLAMA_GEN_IGNORE_EOS;
    options
}

/// One model: as float32 it is the reference to rounding; as stored it is near it, and a sequence has
/// the same bits alone and in company.
fn check(path: &Path, tokenizer: Option<&Path>, cases: &Value) {
    let name = path.file_name().unwrap().to_string_lossy();
    let cases = cases["cases"].as_array().unwrap();
    let exact = open(path, tokenizer, LLAMA_DTYPE_F32, 1);
    let kept = open(path, tokenizer, LLAMA_DTYPE_AUTO, 2);
    let mut prompts = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let what = format!("{name}, case {i}");
        let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
        let logprobs = floats(&case["logprobs"]);
        if let Some(logits) = case.get("last_logits") {
            assert_logits(&exact, &prompt, &floats(logits), &what);
        }
        let got = exact.one(&prompt, &ignoring_eos(want.len()));
        assert_eq!(got.tokens, want, "{what}");
        assert_close(&got.logprobs, &logprobs, LOGPROB_TOLERANCE, &what);
        let mut echoed = ignoring_eos(1);
        echoed.flags |= LLAMA_GEN_ECHO;
        let got = exact.one(&prompt, &echoed).logprobs;
        let of_prompt = floats(&case["prompt_logprobs"]);
        assert_close(&got[..prompt.len()], &of_prompt, LOGPROB_TOLERANCE, &what);

        let got = kept.one(&prompt, &ignoring_eos(want.len()));
        if case["gap"].as_f64().unwrap() > 0.3 {
            assert_eq!(got.tokens, want, "{what}, as stored");
            assert_close(&got.logprobs, &logprobs, 0.15, &what);
        }
        let got = kept.one(&prompt, &echoed).logprobs;
        for (got, want) in got.iter().zip(&of_prompt) {
            // Rounded activations and keys move what is unlikely by more.
            let near = (got - want).abs() <= 0.15 + 0.02 * want.abs();
            assert!(near, "{what}, as stored: {got}, reference has {want}");
        }
        prompts.push(prompt);
    }
    let together = kept.generate(&prompts, &ignoring_eos(8)).unwrap();
    for (prompt, together) in prompts.iter().zip(together) {
        let alone = kept.one(prompt, &ignoring_eos(8));
        assert_eq!(alone.tokens, together.tokens, "{name}");
        assert_eq!(alone.logprobs, together.logprobs, "{name}");
    }
}

#[test]
fn gguf_files_are_what_transformers_computes() {
    let cases = json(&data("gguf/cases.json"));
    for name in [
        "q8_0.gguf",
        "q4_0-llama3.gguf",
        "mixed-k.gguf",
        "mixed32-qwen2.gguf",
        "split-00001-of-00003.gguf",
    ] {
        check(&data("gguf").join(name), None, &cases[name]);
    }
}

#[test]
fn quantised_checkpoints_are_what_transformers_computes() {
    let cases = json(&data("quantised/cases.json"));
    let cases = cases.as_object().unwrap();
    assert_eq!(cases.len(), 16);
    for (name, cases) in cases {
        let dir = data("quantised").join(name);
        check(&dir, Some(&data("quantised/tokenizer.model")), cases);
    }
}

/// A base with adapters merged into it.
fn with_adapters(base: &Path, cases: &Value, dtype: Option<Dtype>) -> llamabi::Result<Model> {
    let mut adapters = Vec::new();
    let names = cases["adapters"].as_array().unwrap();
    let scales = cases["scales"].as_array().into_iter().flatten();
    let scales = scales.map(|scale| scale.as_f64().unwrap() as f32);
    for (name, scale) in names.iter().zip(scales.chain(std::iter::repeat(1.0))) {
        adapters.push((data("adapters").join(name.as_str().unwrap()), scale));
    }
    let options = BuildOptions {
        max_seq_len: 64,
        max_batch_size: 2,
        device: Device::Cpu,
        weights_dtype: dtype,
        adapters,
        ..BuildOptions::default()
    };
    let tokenizer = data("adapters/base/tokenizer.model");
    Llama::build(base, Some(&tokenizer), &options, &mut |_| true).map(Model::from)
}

/// peft's own merges, also on a base that we quantised: then with its errors.
#[test]
fn adapters_are_merged_as_peft_merges_them() {
    let all = json(&data("adapters/cases.json"));
    let dir = std::env::temp_dir().join(format!("llamabi-adapters-{}", std::process::id()));
    let (base, int4) = (data("adapters/base"), dir.join("int4"));
    std::fs::create_dir_all(&dir).unwrap();
    llamabi::llama::quantise::write(&base, &int4, llamabi::quant::Quant::Int4).unwrap();
    for (name, cases) in all.as_object().unwrap() {
        let exact = with_adapters(&base, cases, Some(Dtype::F32)).unwrap();
        let quantised = with_adapters(&int4, cases, None).unwrap();
        let plain = with_adapters(&int4, &all["base"], None).unwrap();
        let (mut error, mut without) = (0f32, 0f32);
        for (i, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
            let what = format!("{name}, case {i}");
            let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
            if let Some(logits) = case.get("last_logits") {
                assert_logits(&exact, &prompt, &floats(logits), &what);
            }
            let got = exact.one(&prompt, &ignoring_eos(want.len()));
            assert_eq!(got.tokens, want, "{what}");
            assert_close(
                &got.logprobs,
                &floats(&case["logprobs"]),
                LOGPROB_TOLERANCE,
                &what,
            );
            let mut echoed = ignoring_eos(1);
            echoed.flags |= LLAMA_GEN_ECHO;
            let of_prompt = floats(&case["prompt_logprobs"]);
            let off = |model: &Model| -> f32 {
                let got = model.one(&prompt, &echoed).logprobs;
                got.iter().zip(&of_prompt).map(|(a, b)| (a - b).abs()).sum()
            };
            error += off(&quantised);
            without += off(&plain);
        }
        eprintln!("{name}: {error} on int4, {without} without the adapter");
        if !name.starts_with("base") {
            assert!(error < 0.5 * without, "{name}: {error} {without}");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Options and tensors of adapters that would mean something else.
#[test]
fn adapters_that_are_not_lora_are_refused() {
    let dir = std::env::temp_dir().join(format!("llamabi-not-lora-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let of = data("adapters/plain");
    std::fs::copy(
        of.join("adapter_model.safetensors"),
        dir.join("adapter_model.safetensors"),
    )
    .unwrap();
    let refused = |key: &str, value: Value| {
        let mut config = json(&of.join("adapter_config.json"));
        config[key] = value;
        std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
        let options = BuildOptions {
            adapters: vec![(dir.clone(), 1.0)],
            ..BuildOptions::default()
        };
        let (base, tokenizer) = (data("adapters/base"), data("adapters/base/tokenizer.model"));
        match Llama::build(&base, Some(&tokenizer), &options, &mut |_| true) {
            Ok(_) => panic!("{key} is taken"),
            Err(error) => error.to_string(),
        }
    };
    for (key, value, expected) in [
        (
            "peft_type",
            "IA3".into(),
            "`peft_type` is \"IA3\", expected \"LORA\"",
        ),
        (
            "use_dora",
            true.into(),
            "`use_dora` is true, expected no such option",
        ),
        ("bias", "all".into(), "`bias` is \"all\", expected \"none\""),
        (
            "init_lora_weights",
            "pissa".into(),
            "expected true, false or gaussian",
        ),
        ("r", 8.into(), "expected shape [8, 32], found shape [4, 32]"),
        ("r", 0.5.into(), "`r` is 0.5, expected an integer from 1 on"),
        (
            "rank_pattern",
            serde_json::json!({"^q.*": 2}),
            "expected the name of a module",
        ),
    ] {
        let sentence = refused(key, value);
        assert!(sentence.contains(expected), "{sentence}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
