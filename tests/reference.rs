//! Every recorded output of Meta's and Hugging Face's implementations, through the C API.
//!
//! Tolerances (float32 throughout, different summation orders): logits |a-b| <= 2e-4 max|logit|,
//! log probabilities 1e-3, greedy tokens equal (the smallest recorded gap between the two most
//! likely logits is 0.004, twenty times the logit tolerance of these models).

mod common;

use common::*;
use llamabi::capi::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const MODELS: [&str; 3] = ["mha-f32", "gqa-bf16", "gqa-f16-mp2"];
const LOGPROB_TOLERANCE: f32 = 1e-3;

fn f32_options() -> llama_build_options {
    let mut options = build_options();
    options.weights_dtype = LLAMA_DTYPE_F32;
    options.max_seq_len = 64;
    options.max_batch_size = 4;
    options
}

/// Runs `check` on both checkpoint forms of every model, with its cases of one kind.
fn each_case(kind: &str, mut check: impl FnMut(&Model, &Value, &str)) {
    for name in MODELS {
        let cases = json(&reference(&format!("{name}/cases.json")));
        for form in ["meta", "hf"] {
            let model = Model::open(&reference(&format!("{name}/{form}")), None, &f32_options())
                .unwrap_or_else(|e| panic!("{name}/{form}: {e:?}"));
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

fn assert_close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
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
fn assert_logits(model: &Model, prompt: &[i32], logits: &[f32], what: &str) {
    let largest = logits.iter().fold(0f32, |m, l| m.max(l.abs()));
    assert_close(
        &distribution(model, prompt),
        &log_softmax(logits),
        4e-4 * largest,
        what,
    );
}

#[test]
fn logits() {
    each_case("logits", |model, case, what| {
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

#[test]
fn generate() {
    each_case("generate", |model, case, what| {
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

#[test]
fn text_completion() {
    each_case("text_completion", |model, case, what| {
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

fn dialog(value: &Value) -> Vec<(&str, &str)> {
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

#[test]
fn chat_completion() {
    each_case("chat_completion", |model, case, what| {
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
#[test]
fn nucleus() {
    const DRAWS: u64 = 600;
    each_case("nucleus", |model, case, what| {
        let prompt = tokens(&case["args"]["tokens"]);
        let mut options = generate_options();
        options.max_gen_len = 1;
        options.flags = LLAMA_GEN_IGNORE_EOS;
        options.temperature = case["args"]["temperature"].as_f64().unwrap() as f32;
        options.top_p = case["args"]["top_p"].as_f64().unwrap() as f32;
        let mut counts = BTreeMap::new();
        for seed in 1..=DRAWS {
            options.seed = seed;
            *counts
                .entry(model.one(&prompt, &options).tokens[0])
                .or_insert(0u64) += 1;
        }
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
            let (mean, deviation) = (p * DRAWS as f64, (p * (1.0 - p) * DRAWS as f64).sqrt());
            // Seeds are fixed, so this either always passes or never; five deviations leave room
            // for the most unlucky of some hundred counts.
            assert!(
                (*n as f64 - mean).abs() <= 5.0 * deviation + 1.0,
                "{what}: {token} came {n} times, expected {mean:.1}"
            );
        }
        for (token, p) in expected {
            assert!(
                p < 0.02 || counts.contains_key(&token),
                "{what}: {token} (p = {p}) never came"
            );
        }
    });
}

#[test]
fn variants() {
    let tokenizer = reference("mha-f32/hf/tokenizer.model");
    let mut options = f32_options();
    options.max_seq_len = 128;
    for case in json(&reference("variants/cases.json")).as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let model = Model::open(
            &reference("variants").join(name),
            Some(&tokenizer),
            &options,
        )
        .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let prompt = tokens(&case["tokens"]);
        assert_logits(&model, &prompt, &floats(&case["last_logits"]), name);
        assert_logits(&model, &prompt[..71], &floats(&case["logits_at_70"]), name);
        let want = tokens(&case["greedy"]);
        let result = model.one(&tokens(&case["greedy_prompt"]), &greedy(want.len() as u32));
        assert_eq!(result.tokens, want, "{name}");
    }
}

/// The beam cases of the same file wait for beam search.
#[test]
fn greedy_strategies() {
    let strategies = json(&reference("strategies.json"));
    let mut seen = 0;
    for case in strategies
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["strategy"] == "greedy")
    {
        let dir = format!("{}/hf", case["model"].as_str().unwrap());
        let model = Model::open(&reference(&dir), None, &f32_options()).unwrap();
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

/// 16-bit weights stay what they are; a 16-bit KV cache moves log probabilities by the amounts
/// measured when the tolerances were set (f16 0.004, bf16 0.03; here with room to spare). Where prompts
/// are multiplied with bfloat16 tiles, their activations are rounded too (0.1).
#[test]
fn as_stored() {
    for (name, tolerance) in [("mha-f32", 1e-3), ("gqa-f16-mp2", 0.02), ("gqa-bf16", 0.15)] {
        let cases = json(&reference(&format!("{name}/cases.json")));
        let mut options = f32_options();
        options.weights_dtype = LLAMA_DTYPE_AUTO;
        for form in ["meta", "hf"] {
            let model = Model::open(&reference(&format!("{name}/{form}")), None, &options).unwrap();
            let device = model.info().device_name.map(|c| c as u8);
            let tiles = device.windows(3).any(|word| word == b"AMX");
            let tolerance = match name {
                "gqa-f16-mp2" if tiles => 0.15,
                _ => tolerance,
            };
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

#[test]
fn llama_2_tokenizer_and_dialogs() {
    let dir = tempdir("llama2-vocabulary");
    blank_model(&dir, 32_000);
    let tokenizer = reference("llama2-tokenizer.model");
    let mut options = build_options();
    options.max_seq_len = 64;
    let model = Model::open(&dir, Some(&tokenizer), &options).unwrap();
    for case in json(&reference("tokenizer-cases.json")).as_array().unwrap() {
        let ids = tokens(&case["ids"]);
        assert_eq!(model.encode_text(case["text"].as_str().unwrap(), 0), ids);
        assert_eq!(model.decode(&ids), case["decoded"].as_str().unwrap());
    }
    for case in json(&reference("chat-cases.json")).as_array().unwrap() {
        let got = model.encode_dialog(&dialog(&case["dialog"])).unwrap();
        assert_eq!(got, tokens(&case["prompt_tokens"]));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn tempdir(name: &str) -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("llamabi-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// The smallest model that can carry a vocabulary: one layer, width 8, zeros for weights.
fn blank_model(dir: &Path, vocab_size: usize) {
    let shapes: Vec<(String, Vec<usize>)> = [
        ("model.embed_tokens.weight", vec![vocab_size, 8]),
        ("model.layers.0.input_layernorm.weight", vec![8]),
        ("model.layers.0.self_attn.q_proj.weight", vec![8, 8]),
        ("model.layers.0.self_attn.k_proj.weight", vec![8, 8]),
        ("model.layers.0.self_attn.v_proj.weight", vec![8, 8]),
        ("model.layers.0.self_attn.o_proj.weight", vec![8, 8]),
        ("model.layers.0.post_attention_layernorm.weight", vec![8]),
        ("model.layers.0.mlp.gate_proj.weight", vec![16, 8]),
        ("model.layers.0.mlp.up_proj.weight", vec![16, 8]),
        ("model.layers.0.mlp.down_proj.weight", vec![8, 16]),
        ("model.norm.weight", vec![8]),
    ]
    .map(|(name, shape)| (name.to_owned(), shape))
    .to_vec();
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in shapes {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(
            name,
            serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + end, 0);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "vocab_size": vocab_size, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}
