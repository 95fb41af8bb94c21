//! Models of every family as GGUF: the weights and outputs of `tests/data/families`, written as
//! llama.cpp's convert_hf_to_gguf.py writes them.

use crate::checkpoints::TempDir;
use crate::checkpoints::gguf::{File, Tensor, f32, text, u32};
use crate::common::*;
use crate::reference_cases::{LOGPROB_TOLERANCE, assert_family_case, assert_family_greedy};
use half::bf16;
use llamabi::capi::*;
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::Path;

/// GGUF cannot say these: windows of some layers, dynamic NTK, ramps that are not truncated; nor
/// have llama.cpp's models of two families all biases, and its architecture of the last is not
/// read.
const NOT_IN_GGUF: [&str; 7] = [
    "qwen2-window",
    "llama-dynamic",
    "llama-yarn-mscale",
    "smollm3-window",
    "ernie4_5-bias",
    "seed_oss-bias",
    "ministral3",
];

const BF16: u32 = 30;
const F32: u32 = 0;
const Q8_0: u32 = 8;

/// `kind` says as which type a matrix is written: one of the three.
fn convert(config: &Value, weights: &SafeTensors<'_>, kind: impl Fn(&str) -> u32) -> File {
    let model_type = config["model_type"].as_str().unwrap();
    let arch = match model_type {
        "mistral" => "llama",
        "hunyuan_v1_dense" => "hunyuan-dense",
        other => other,
    };
    let mut file = keys(config, arch);
    for (name, view) in weights.tensors() {
        let name = gguf_name(&name, arch);
        let (shape, mut values) = (view.shape().to_vec(), Vec::new());
        let bytes = view.data().as_chunks().0.iter();
        values.extend(bytes.map(|&b| bf16::from_le_bytes(b).to_f32()));
        let heads = match name.split('.').nth(2) {
            Some("attn_q") => "num_attention_heads",
            Some("attn_k") => "num_key_value_heads",
            _ => "",
        };
        if ["llama", "granite", "smollm3"].contains(&arch) && !heads.is_empty() {
            values = halves_to_pairs(&values, shape[0], size(config, heads));
        }
        let kind = match shape.len() {
            1 => F32,
            _ => kind(&name),
        };
        let dims: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        file = file.tensor(Tensor::new(&name, &dims, kind, &encode(kind, &values)));
    }
    file
}

fn size(config: &Value, key: &str) -> usize {
    config[key].as_u64().unwrap() as usize
}

fn keys(config: &Value, arch: &str) -> File {
    let mut keys = vec![("general.architecture".to_owned(), text(arch))];
    let mut key = |name: &str, value| keys.push((format!("{arch}.{name}"), value));
    let number = |key: &str| u32(size(config, key) as u32);
    let float = |value: &Value| f32(value.as_f64().unwrap() as f32);
    key("block_count", number("num_hidden_layers"));
    key("context_length", number("max_position_embeddings"));
    key("embedding_length", number("hidden_size"));
    key("feed_forward_length", number("intermediate_size"));
    key("attention.head_count", number("num_attention_heads"));
    key("attention.head_count_kv", number("num_key_value_heads"));
    key(
        "attention.layer_norm_rms_epsilon",
        float(&config["rms_norm_eps"]),
    );
    key("vocab_size", number("vocab_size"));
    let wide = size(config, "hidden_size") / size(config, "num_attention_heads");
    let head_dim = config["head_dim"].as_u64().map_or(wide, |n| n as usize);
    if head_dim != wide {
        key("attention.key_length", u32(head_dim as u32));
        key("attention.value_length", u32(head_dim as u32));
    }
    if let Some(window) = config["sliding_window"]
        .as_u64()
        .filter(|_| arch != "qwen2")
    {
        key("attention.sliding_window", u32(window as u32));
    }
    for (name, of) in [
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        if config[of].is_number() {
            key(name, float(&config[of]));
        }
    }
    let rope = &config["rope_parameters"];
    let theta = rope["rope_theta"].as_f64().unwrap();
    let alpha = rope["alpha"].as_f64().unwrap_or(1.0);
    let theta = theta * alpha.powf(head_dim as f64 / (head_dim as f64 - 2.0));
    key("rope.freq_base", f32(theta as f32));
    let part = rope["partial_rotary_factor"].as_f64().unwrap_or(1.0);
    key("rope.dimension_count", u32((head_dim as f64 * part) as u32));
    let (longest, original) = (
        size(config, "max_position_embeddings") as f64,
        rope["original_max_position_embeddings"].as_f64(),
    );
    if let Some(original) = original {
        key("rope.scaling.original_context_length", u32(original as u32));
    }
    let mut divisors = Vec::new();
    match rope["rope_type"].as_str().unwrap() {
        "default" => {}
        "dynamic" if alpha != 1.0 => {
            key("rope.scaling.type", text("none"));
            key("rope.scaling.factor", f32(1.0));
        }
        "yarn" => {
            let factor = rope["factor"].as_f64().unwrap();
            key("rope.scaling.type", text("yarn"));
            key("rope.scaling.factor", f32(factor as f32));
            if let Some(given) = rope["attention_factor"].as_f64() {
                let more = given / (0.1 * factor.ln() + 1.0);
                key("rope.scaling.attn_factor", f32(more as f32));
            }
        }
        "longrope" => {
            let stretch = longest / original.unwrap();
            let amplitude = (1.0 + stretch.ln() / original.unwrap().ln()).sqrt();
            key("rope.scaling.attn_factor", f32(amplitude as f32));
            for (name, of) in [("long", "long_factor"), ("short", "short_factor")] {
                divisors.push((format!("rope_factors_{name}.weight"), floats(&rope[of])));
            }
        }
        other => panic!("{other}"),
    }
    let mut file = File {
        keys,
        ..File::default()
    };
    for (name, by) in divisors {
        let tensor = Tensor::new(&name, &[by.len() as u64], F32, &encode(F32, &by));
        file = file.tensor(tensor);
    }
    file
}

fn gguf_name(name: &str, arch: &str) -> String {
    let (base, kind) = name.rsplit_once('.').unwrap();
    let base = match base {
        "model.embed_tokens" => "token_embd".to_owned(),
        "model.norm" => "output_norm".to_owned(),
        "lm_head" => "output".to_owned(),
        _ => {
            let (layer, module) = base
                .strip_prefix("model.layers.")
                .unwrap()
                .split_once('.')
                .unwrap();
            let module = match module {
                "self_attn.q_proj" => "attn_q",
                "self_attn.k_proj" => "attn_k",
                "self_attn.v_proj" => "attn_v",
                "self_attn.qkv_proj" => "attn_qkv",
                "self_attn.o_proj" => "attn_output",
                "self_attn.q_norm" | "self_attn.query_layernorm" => "attn_q_norm",
                "self_attn.k_norm" | "self_attn.key_layernorm" => "attn_k_norm",
                "mlp.gate_proj" => "ffn_gate",
                "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
                "mlp.down_proj" => "ffn_down",
                "input_layernorm" => "attn_norm",
                "post_attention_layernorm" if arch == "seed_oss" => "post_attention_norm",
                "post_attention_layernorm" => "ffn_norm",
                other => panic!("{other}"),
            };
            format!("blk.{layer}.{module}")
        }
    };
    format!("{base}.{kind}")
}

/// Rows of heads: row i of the first half and of the second become neighbours.
fn halves_to_pairs(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (cols, half) = (values.len() / rows, rows / heads / 2);
    let row = |to: usize| (to / (2 * half)) * 2 * half + to % 2 * half + to % (2 * half) / 2;
    let rows = (0..rows).map(|to| &values[row(to) * cols..][..cols]);
    rows.flatten().copied().collect()
}

fn encode(kind: u32, values: &[f32]) -> Vec<u8> {
    match kind {
        F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        BF16 => values
            .iter()
            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        Q8_0 => values
            .chunks_exact(32)
            .flat_map(|block| {
                let (scale, codes) = q8_0(block);
                [&scale.to_le_bytes()[..], &codes.map(|code| code as u8)].concat()
            })
            .collect(),
        other => panic!("{other}"),
    }
}

/// A block of Q8_0: its scale and its codes.
fn q8_0(block: &[f32]) -> (half::f16, [i8; 32]) {
    let most = block.iter().fold(0f32, |most, x| most.max(x.abs()));
    let scale = half::f16::from_f32(most / 127.0);
    let code = |i: usize| (block[i] / scale.to_f32()).round() as i8;
    (scale, std::array::from_fn(code))
}

fn open(path: &Path, max_seq_len: u32, dtype: i32) -> Model {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families");
    let mut options = build_options();
    options.device = LLAMA_DEVICE_CPU;
    options.max_seq_len = max_seq_len;
    options.max_batch_size = 4;
    options.weights_dtype = dtype;
    let model = Model::open(path, Some(&root.join("tokenizer.model")), &options);
    model.unwrap_or_else(|e| panic!("{}: {e:?}", path.display()))
}

#[test]
fn families_in_gguf_are_what_transformers_computes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families");
    let (dir, mut seen) = (TempDir::new(), Vec::new());
    for (name, model) in json(&root.join("cases.json")).as_object().unwrap() {
        if NOT_IN_GGUF.contains(&&name[..]) || model["weights"].is_string() {
            continue;
        }
        let of = root.join(model["dir"].as_str().unwrap_or(name));
        let weights = std::fs::read(of.join("model.safetensors")).unwrap();
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let file = convert(&json(&of.join("config.json")), &weights, |_| BF16);
        let path = dir.file("model.gguf", file.bytes());
        let max_seq_len = model["max_seq_len"].as_u64().unwrap() as u32;
        let opened = open(&path, max_seq_len, LLAMA_DTYPE_F32);
        for case in model["cases"].as_array().unwrap() {
            assert_family_case(&opened, case, [LOGPROB_TOLERANCE; 2], name);
            assert_family_greedy(&opened, case, name);
        }
        seen.push(model["model_type"].as_str().unwrap().to_owned());
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
}

/// Parts of one tensor in blocks: each has its own rows, decoded and as they are kept.
#[test]
fn fused_tensors_in_blocks_are_read_by_parts() {
    let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/families/phi3");
    let config = json(&of.join("config.json"));
    let weights = std::fs::read(of.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&weights).unwrap();
    let fused = |name: &str| name.contains("attn_qkv") || name.contains("ffn_up");
    let blocks = convert(
        &config,
        &weights,
        |name| if fused(name) { Q8_0 } else { F32 },
    );
    let mut decoded = blocks.clone();
    for tensor in decoded
        .tensors
        .iter_mut()
        .filter(|tensor| tensor.kind == Q8_0)
    {
        let values = tensor.bytes.chunks_exact(34).flat_map(|block| {
            let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
            block[2..]
                .iter()
                .map(move |&code| scale * f32::from(code as i8))
        });
        tensor.bytes = encode(F32, &values.collect::<Vec<_>>());
        tensor.kind = F32;
    }
    let dir = TempDir::new();
    let blocks = dir.file("blocks.gguf", blocks.bytes());
    let decoded = dir.file("decoded.gguf", decoded.bytes());
    let prompt: Vec<i32> = (3..40).collect();
    let mut options = greedy(0);
    options.flags |= LLAMA_GEN_ECHO;
    let [exact, want, kept] = [
        open(&blocks, 64, LLAMA_DTYPE_F32),
        open(&decoded, 64, LLAMA_DTYPE_F32),
        open(&blocks, 64, LLAMA_DTYPE_AUTO),
    ]
    .map(|model| model.one(&prompt, &options).logprobs);
    assert_eq!(exact, want);
    for (kept, want) in kept.iter().zip(&want) {
        assert!((kept - want).abs() < 0.15, "{kept}, decoded {want}");
    }
}
