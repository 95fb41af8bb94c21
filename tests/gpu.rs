//! The whole GPU path on an emulated device: packing, page tables, launch geometry, bucket padding.
//!
//! Tolerances as in tests/reference.rs.

mod common;
mod emu;

use common::{floats, json, reference, tokens};
use emu::Emu;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Dtype, Error, Llama, Token};
use serde_json::Value;

const GIB: u64 = 1 << 30;

fn options(weights_dtype: Option<Dtype>) -> BuildOptions {
    BuildOptions {
        max_seq_len: 64,
        max_batch_size: 4,
        weights_dtype,
        ..BuildOptions::default()
    }
}

fn open(dir: &str, tokenizer: Option<&str>, options: &BuildOptions, seed: u64) -> Llama {
    let tokenizer = tokenizer.map(reference);
    let device = Emu::new(GIB, seed);
    Llama::build_on(
        device,
        &reference(dir),
        tokenizer.as_deref(),
        options,
        &mut |_| true,
    )
    .unwrap_or_else(|e| panic!("{dir}: {e}"))
}

fn greedy(n: usize) -> GenerateOptions {
    GenerateOptions {
        temperature: 0.0,
        logprobs: true,
        max_gen_len: Some(n),
        ..GenerateOptions::default()
    }
}

fn generate(llama: &Llama, prompts: &[Vec<Token>], options: GenerateOptions) -> Vec<Sequence> {
    let prompts = prompts.iter().cloned().map(Prompt::Tokens).collect();
    llama
        .generate(prompts, options, &mut |_| true)
        .unwrap()
        .sequences
}

fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance,
            "{what}: value {i} is {g}, reference has {w}"
        );
    }
}

fn cases<'a>(all: &'a Value, kind: &str) -> Vec<&'a Value> {
    let cases = all["cases"].as_array().unwrap();
    cases.iter().filter(|case| case["kind"] == kind).collect()
}

fn prompts_of(case: &Value) -> Vec<Vec<Token>> {
    let prompts = case["args"]["prompt_tokens"].as_array().unwrap();
    prompts.iter().map(tokens).collect()
}

/// Log probabilities after `prompt` against those of the recorded logits, and against the five most
/// likely of every row where they are recorded.
fn assert_logits(llama: &Llama, prompt: &[Token], logits: &[f32], what: &str) {
    let n = logits.len();
    let options = GenerateOptions {
        top_logprobs: n,
        ignore_eos: true,
        ..greedy(1)
    };
    let result = generate(llama, &[prompt.to_vec()], options).remove(0);
    let mut got = vec![f32::NAN; n];
    for a in &result.top[0] {
        got[a.token as usize] = a.logprob;
    }
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let want: Vec<f32> = logits
        .iter()
        .map(|&l| (f64::from(l - max) - sum.ln()) as f32)
        .collect();
    let largest = logits.iter().fold(0f32, |m, l| m.max(l.abs()));
    assert_close(&got, &want, 4e-4 * largest, what);
}

#[test]
fn reference_cases_in_f32() {
    for (name, form) in [
        ("mha-f32", "meta"),
        ("mha-f32", "hf"),
        ("gqa-bf16", "meta"),
        ("gqa-bf16", "hf"),
        ("gqa-f16-mp2", "meta"),
        ("gqa-f16-mp2", "hf"),
    ] {
        let all = json(&reference(&format!("{name}/cases.json")));
        let llama = open(
            &format!("{name}/{form}"),
            None,
            &options(Some(Dtype::F32)),
            1,
        );
        for case in cases(&all, "logits") {
            let prompt = tokens(&case["args"]["tokens"]);
            assert_logits(&llama, &prompt, &floats(&case["last_logits"]), name);
        }
        for (i, case) in cases(&all, "generate").iter().enumerate() {
            let mut options = greedy(case["args"]["max_gen_len"].as_u64().unwrap() as usize);
            options.echo = case["args"]["echo"] == true;
            for (j, got) in generate(&llama, &prompts_of(case), options)
                .iter()
                .enumerate()
            {
                let what = format!("{name}/{form} case {i}, sequence {j}");
                assert_eq!(got.tokens, tokens(&case["tokens"][j]), "{what}");
                assert_close(&got.logprobs, &floats(&case["logprobs"][j]), 1e-3, &what);
            }
        }
    }
}

#[test]
fn variants_in_f32() {
    let mut options = options(Some(Dtype::F32));
    options.max_seq_len = 128;
    for case in json(&reference("variants/cases.json")).as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let tokenizer = Some("mha-f32/hf/tokenizer.model");
        let llama = open(&format!("variants/{name}"), tokenizer, &options, 1);
        let prompt = tokens(&case["tokens"]);
        assert_logits(&llama, &prompt, &floats(&case["last_logits"]), name);
        let want = tokens(&case["greedy"]);
        let got = generate(
            &llama,
            &[tokens(&case["greedy_prompt"])],
            greedy(want.len()),
        );
        assert_eq!(got[0].tokens, want, "{name}");
    }
}

/// 16-bit weights and cache; prefill rounds activations to the weights' format, so logits may be that far apart.
#[test]
fn as_stored() {
    for (name, tolerance) in [("gqa-f16-mp2", 0.05), ("gqa-bf16", 0.15)] {
        let all = json(&reference(&format!("{name}/cases.json")));
        let llama = open(&format!("{name}/meta"), None, &options(None), 1);
        for case in cases(&all, "generate") {
            let echoed = case["args"]["echo"] == true;
            for (j, prompt) in prompts_of(case).into_iter().enumerate() {
                let want = tokens(&case["tokens"][j]);
                let skip = if echoed { 0 } else { prompt.len() };
                let forced = if echoed {
                    want
                } else {
                    [prompt, want].concat()
                };
                let mut options = greedy(0);
                options.echo = true;
                let got = generate(&llama, &[forced], options).remove(0).logprobs;
                assert_close(&got[skip..], &floats(&case["logprobs"][j]), tolerance, name);
            }
        }
    }
}

/// Alone or in company, whole or in chunks, on any schedule: the same bits.
#[test]
fn rows_do_not_see_each_other() {
    let prompts: Vec<Vec<Token>> = [1, 16, 17, 40]
        .iter()
        .enumerate()
        .map(|(seed, &n)| {
            (0..n)
                .map(|i| 1 + (i * i * 31 + i * 17 + seed as i32 * 57) % 500)
                .collect()
        })
        .collect();
    let bits = |s: &Sequence| -> (Vec<Token>, Vec<u32>) {
        (
            s.tokens.clone(),
            s.logprobs.iter().map(|l| l.to_bits()).collect(),
        )
    };
    let ask = || GenerateOptions {
        ignore_eos: true,
        ..greedy(6)
    };
    for (model, dtype) in [("gqa-bf16/meta", None), ("mha-f32/meta", None)] {
        let mut first = options(dtype);
        first.prefill_chunk = Some(64);
        let llama = open(model, None, &first, 1);
        let want: Vec<_> = prompts
            .iter()
            .map(|p| bits(&generate(&llama, std::slice::from_ref(p), ask())[0]))
            .collect();
        for chunk in [3, 64] {
            let mut second = options(dtype);
            second.prefill_chunk = Some(chunk);
            let llama = open(model, None, &second, 2 + chunk as u64);
            // Cold, then with what the prefix cache kept.
            for _ in 0..2 {
                let got: Vec<_> = generate(&llama, &prompts, ask()).iter().map(bits).collect();
                assert_eq!(got, want, "{model}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn memory_that_is_not_there_is_said_with_the_plan() {
    let build = |memory: u64, limit: u64| {
        let mut options = options(None);
        options.gpu_memory_bytes = limit;
        let device = Emu::new(memory, 1);
        Llama::build_on(
            device,
            &reference("mha-f32/meta"),
            None,
            &options,
            &mut |_| true,
        )
        .err()
    };
    for (memory, limit) in [(4096, 0), (GIB, 4096)] {
        let error = build(memory, limit).expect("4096 bytes are not enough");
        assert_eq!(error.code(), llamabi::capi::LLAMA_E_DEVICE_MEMORY);
        let text = error.to_string();
        for part in [
            "the weights ",
            "the KV pool",
            "scratch buffers",
            "4096 bytes are available",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(matches!(error, Error::DeviceMemory { .. }));
    }
    assert!(build(GIB, GIB / 2).is_none());
}
