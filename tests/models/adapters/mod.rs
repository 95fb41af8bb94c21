//! LoRA adapters: peft's own merges, as `tests/data/adapters/make.py` recorded them, through the C
//! API, over a base in each form.
#![allow(unsafe_code)]

mod ranks;
mod requests;

use crate::checkpoints::{TempDir, gguf, write};
use crate::common::*;
use crate::reference_cases::{LOGPROB_TOLERANCE, assert_close, assert_logits};
use llamabi::capi::*;
use llamabi::quant::Quant;
use serde_json::{Value, json};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/adapters")
        .join(path)
}

fn ignoring_eos(n: usize) -> llama_generate_options {
    let mut options = greedy(n as u32);
    options.flags |= LLAMA_GEN_IGNORE_EOS;
    options
}

/// With adapters merged into it; no scales: NULL.
fn merged(base: &Path, adapters: &[PathBuf], scales: &[f32], dtype: i32) -> Result<Model, Failure> {
    let paths = adapters.iter().map(|dir| dir.to_str().unwrap());
    let paths: Vec<_> = paths.map(|dir| CString::new(dir).unwrap()).collect();
    let pointers: Vec<_> = paths.iter().map(|path| path.as_ptr()).collect();
    let mut options = build_options();
    options.device = LLAMA_DEVICE_CPU;
    options.max_seq_len = 64;
    options.max_batch_size = 4;
    options.n_threads = 2;
    options.weights_dtype = dtype;
    options.adapters = pointers.as_ptr();
    options.n_adapters = pointers.len();
    if !scales.is_empty() {
        options.adapter_scales = scales.as_ptr();
    }
    Model::open(base, Some(&data("base/tokenizer.model")), &options)
}

/// The model of a reference case.
fn of_cases(base: &Path, cases: &Value, dtype: i32) -> Model {
    let names = cases["adapters"].as_array().unwrap();
    let dirs = names.iter().map(|name| data(name.as_str().unwrap()));
    let scales = cases.get("scales").map(floats).unwrap_or_default();
    merged(base, &dirs.collect::<Vec<_>>(), &scales, dtype).unwrap()
}

/// A tensor of the base: its name, shape, and bfloat16 numbers.
struct Stored {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn base_tensors() -> Vec<Stored> {
    let file = std::fs::read(data("base/model.safetensors")).unwrap();
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + n]).unwrap();
    let mut tensors = Vec::new();
    for (name, entry) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        assert_eq!(entry["dtype"], "BF16");
        let numbers = |key: &str| {
            let list = entry[key].as_array().unwrap().iter();
            list.map(|n| n.as_u64().unwrap() as usize)
                .collect::<Vec<_>>()
        };
        let (shape, at) = (numbers("shape"), numbers("data_offsets"));
        let mut bytes = file[8 + n + at[0]..8 + n + at[1]].to_vec();
        if name.contains("q_proj") || name.contains("k_proj") {
            bytes = in_pairs(&bytes, shape[1]);
        }
        let name = name.clone();
        tensors.push(Stored { name, shape, bytes });
    }
    tensors
}

/// Rows of heads of 8 that RoPE rotates by halves, in the order in which it rotates neighbours.
fn in_pairs(bytes: &[u8], cols: usize) -> Vec<u8> {
    let mut out = vec![0; bytes.len()];
    for (row, from) in bytes.chunks_exact(2 * cols).enumerate() {
        let (head, i) = (row / 8 * 8, row % 8);
        let to = head + i % 4 * 2 + i / 4;
        out[2 * cols * to..][..2 * cols].copy_from_slice(from);
    }
    out
}

/// The base's names in another form: for a name of Hugging Face's, the other's.
fn renamed(name: &str, names: &[(&str, &str)]) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let mut name = name.to_owned();
    for (from, to) in names {
        name = name.replace(from, to);
    }
    name
}

/// The base in Meta's form.
fn meta_base() -> TempDir {
    let dir = TempDir::new();
    let params = json!({"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 300,
        "multiple_of": 48, "ffn_dim_multiplier": 0.5, "norm_eps": 1e-5, "rope_theta": 10000.0});
    dir.file("params.json", params.to_string());
    let names = [
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attention.wq"),
        ("self_attn.k_proj", "attention.wk"),
        ("self_attn.v_proj", "attention.wv"),
        ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    ];
    let tensor = |t: Stored| write::Tensor {
        name: renamed(&t.name, &names),
        dtype: "BF16",
        shape: t.shape,
        bytes: t.bytes,
    };
    let tensors: Vec<_> = base_tensors().into_iter().map(tensor).collect();
    dir.file("consolidated.00.pth", write::pth(&tensors));
    dir
}

/// The base as a GGUF file.
fn gguf_base() -> TempDir {
    let dir = TempDir::new();
    let key = |name: &str| format!("llama.{name}");
    let mut file = gguf::File::default()
        .key("general.architecture", gguf::text("llama"))
        .key(&key("attention.layer_norm_rms_epsilon"), gguf::f32(1e-5));
    for (name, n) in [
        ("block_count", 2),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("vocab_size", 300),
    ] {
        file = file.key(&key(name), gguf::u32(n));
    }
    let names = [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    const BF16: u32 = 30;
    for t in base_tensors() {
        let name = match t.name.as_str() {
            "model.norm.weight" => "output_norm.weight".into(),
            name => renamed(name, &names),
        };
        let dims: Vec<u64> = t.shape.iter().rev().map(|&n| n as u64).collect();
        file = file.tensor(gguf::Tensor::new(&name, &dims, BF16, &t.bytes));
    }
    dir.file("base.gguf", file.bytes());
    dir
}

/// Every case of the reference, on a base whose float32 numbers are the reference's.
fn check_cases(base: &Path) {
    let all = json(&data("cases.json"));
    for (name, cases) in all.as_object().unwrap() {
        let model = of_cases(base, cases, LLAMA_DTYPE_F32);
        for (i, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
            let what = format!("{}: {name}, case {i}", base.display());
            let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
            if let Some(logits) = case.get("last_logits") {
                assert_logits(&model, &prompt, &floats(logits), &what);
            }
            let got = model.one(&prompt, &ignoring_eos(want.len()));
            assert_eq!(got.tokens, want, "{what}");
            let logprobs = floats(&case["logprobs"]);
            assert_close(&got.logprobs, &logprobs, LOGPROB_TOLERANCE, &what);
        }
    }
}

#[test]
fn adapters_are_merged_as_peft_merges_them() {
    check_cases(&data("base"));
}

/// Rows of q and k lie in another order there.
#[test]
fn adapters_are_merged_into_a_checkpoint_of_metas_form() {
    check_cases(meta_base().path());
}

#[test]
fn adapters_are_merged_into_a_gguf_file() {
    let dir = gguf_base();
    check_cases(dir.path());
    let model = of_cases(dir.path(), &json(&data("cases.json"))["plain*1.0"], 0);
    let info = model.info();
    assert_eq!(text(&info.model_type), "llama");
    assert_eq!(text(&info.stored_format), "GGUF bf16");
}

fn text(array: &[std::ffi::c_char]) -> &str {
    // SAFETY: the library ends it with a NUL.
    unsafe { CStr::from_ptr(array.as_ptr()) }.to_str().unwrap()
}

/// On a base that we quantised: then with its errors.
#[test]
fn adapters_are_merged_into_quantised_weights() {
    let all = json(&data("cases.json"));
    let dir = TempDir::new();
    let int4 = dir.path().join("int4");
    llamabi::llama::quantise::write(&data("base"), &int4, Quant::Int4).unwrap();
    let plain = of_cases(&int4, &all["base"], LLAMA_DTYPE_AUTO);
    assert_eq!(text(&plain.info().stored_format), "int4");
    for (name, cases) in all.as_object().unwrap() {
        let quantised = of_cases(&int4, cases, LLAMA_DTYPE_AUTO);
        let (mut error, mut without) = (0f32, 0f32);
        for case in cases["cases"].as_array().unwrap() {
            let mut echoed = ignoring_eos(1);
            echoed.flags |= LLAMA_GEN_ECHO;
            let of_prompt = floats(&case["prompt_logprobs"]);
            let off = |model: &Model| -> f32 {
                let got = model.one(&tokens(&case["prompt"]), &echoed).logprobs;
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
}

/// Options and tensors of adapters that would mean something else.
#[test]
fn adapters_that_are_not_lora_are_refused() {
    let dir = TempDir::new();
    let copied = std::fs::read(data("plain/adapter_model.safetensors")).unwrap();
    dir.file("adapter_model.safetensors", copied);
    let with = |key: &str, value: Value| {
        let mut config = json(&data("plain/adapter_config.json"));
        config[key] = value;
        dir.file("adapter_config.json", config.to_string());
        merged(&data("base"), &[dir.path().into()], &[1.0], 0)
    };
    let refused = |key: &str, value: Value| match with(key, value) {
        Ok(_) => panic!("{key} is taken"),
        Err((_, sentence)) => sentence,
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
            "expected true, false, gaussian or orthogonal",
        ),
        ("r", 8.into(), "expected shape [8, 32], found shape [4, 32]"),
        ("r", 0.5.into(), "`r` is 0.5, expected an integer from 1 on"),
        (
            "rank_pattern",
            json!({"q(?=_proj)": 2}),
            "`rank_pattern.q(?=_proj)` is 2, expected a module's name or regular expression \
             (error: look-around",
        ),
        (
            "alpha_pattern",
            json!({".*q_proj": 0}),
            "`alpha_pattern..*q_proj` is 0, expected a number over 0",
        ),
    ] {
        let sentence = refused(key, value);
        assert!(sentence.contains(expected), "{sentence}");
    }
    // Ways of initialising an adapter that leave the model's weights as they are.
    for name in ["gaussian", "orthogonal"] {
        if let Err(error) = with("init_lora_weights", name.into()) {
            panic!("{name}: {error:?}");
        }
    }
}

/// peft's patterns are expressions, of which the first that fits counts.
#[test]
fn patterns_of_modules_may_be_expressions() {
    let all = json(&data("cases.json"));
    let named = all.as_object().unwrap().iter();
    let mut named = named.filter(|(_, cases)| cases["adapters"] == json!(["rslora-patterns"]));
    let (_, cases) = named.next().expect("a case with patterns");
    let dir = TempDir::new();
    let weights = "adapter_model.safetensors";
    let copied = std::fs::read(data("rslora-patterns").join(weights)).unwrap();
    dir.file(weights, copied);
    let mut config = json(&data("rslora-patterns/adapter_config.json"));
    config["rank_pattern"] = json!({"^q_proj": 1, "(up|down)_proj": 2,
        r"layers\.[1-9]\.self_attn\.(q|k)_.*": 3, "q_pro": 7});
    config["alpha_pattern"] = json!({"v_.+": 12, ".*v_proj": 100});
    dir.file("adapter_config.json", config.to_string());
    let model = merged(&data("base"), &[dir.path().into()], &[], LLAMA_DTYPE_F32).unwrap();
    let plain = of_cases(&data("base"), cases, LLAMA_DTYPE_F32);
    let case = &cases["cases"][0];
    let mut echoed = ignoring_eos(1);
    echoed.flags |= LLAMA_GEN_ECHO;
    let prompt = tokens(&case["prompt"]);
    let logprobs = |model: &Model| model.one(&prompt, &echoed).logprobs;
    assert_eq!(logprobs(&model), logprobs(&plain));
}

/// LoRA on the first and the last matrix.
#[test]
fn modules_that_adapters_do_not_change_are_named() {
    let (a, b) = (vec![0u8; 2 * 32 * 4], vec![0u8; 300 * 2 * 4]);
    for (module, ends, what) in [
        (
            "lm_head",
            ["lora_A.weight", "lora_B.weight"],
            "the output matrix",
        ),
        (
            "model.embed_tokens",
            ["lora_embedding_A", "lora_embedding_B"],
            "the embedding",
        ),
    ] {
        let dir = TempDir::new();
        let mut config = json(&data("plain/adapter_config.json"));
        config["r"] = 2.into();
        dir.file("adapter_config.json", config.to_string());
        let names = ends.map(|end| format!("base_model.model.{module}.{end}"));
        let header = json!({
            &names[0]: {"dtype": "F32", "shape": [2, 32], "data_offsets": [0, a.len()]},
            &names[1]: {"dtype": "F32", "shape": [300, 2],
                "data_offsets": [a.len(), a.len() + b.len()]},
        });
        let header = header.to_string();
        let file = [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &a,
            &b,
        ]
        .concat();
        dir.file("adapter_model.safetensors", file);
        let refused = merged(&data("base"), &[dir.path().into()], &[1.0], 0)
            .err()
            .unwrap();
        let expected = format!(
            "tensor `{}` is LoRA on {what} of the model, which is not supported: of `{module}` an \
             adapter can only have a whole matrix (modules_to_save)",
            names[0]
        );
        assert_eq!(refused.0, LLAMA_E_UNSUPPORTED);
        assert!(refused.1.ends_with(&expected), "{}", refused.1);
    }
}

/// What C callers can get wrong.
#[test]
fn arguments_of_adapters_are_checked() {
    let one = [data("plain")];
    let refused = |change: &dyn Fn(&mut llama_build_options)| {
        let path = CString::new(data("plain").to_str().unwrap()).unwrap();
        let pointers = [path.as_ptr(), std::ptr::null()];
        let mut options = build_options();
        options.device = LLAMA_DEVICE_CPU;
        options.adapters = pointers.as_ptr();
        options.n_adapters = 1;
        change(&mut options);
        Model::open(&data("base"), Some(&data("base/tokenizer.model")), &options)
            .err()
            .unwrap()
    };
    let invalid = |sentence: &str| (LLAMA_E_INVALID_ARGUMENT, sentence.to_owned());
    assert_eq!(
        refused(&|o| o.adapters = std::ptr::null()),
        invalid("adapters is NULL")
    );
    assert_eq!(
        refused(&|o| o.n_adapters = 2),
        invalid("adapters[1] is NULL")
    );
    assert_eq!(
        refused(&|o| o.n_adapters = 257),
        invalid("n_adapters is 257, must be at most 256")
    );
    let (status, sentence) = merged(&data("base"), &one, &[f32::NAN], 0).err().unwrap();
    assert_eq!(
        (status, sentence.as_str()),
        (
            LLAMA_E_INVALID_ARGUMENT,
            "adapter_scales is NaN, must be finite numbers"
        )
    );
    let (status, _) = merged(&data("base"), &[data("none")], &[], 0)
        .err()
        .unwrap();
    assert_eq!(status, LLAMA_E_IO);
}
