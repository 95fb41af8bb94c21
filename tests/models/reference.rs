//! The recorded outputs of the reference implementations, on the CPU and through the C API.

use crate::common::*;
use crate::reference_cases::{Place, dialog, reference_cases};
use crate::tokenizers::all_cases;
use llamabi::capi::*;
use llamabi::{BuildOptions, Dtype};
use std::path::Path;

fn open(dir: &Path, tokenizer: Option<&Path>, options: &BuildOptions) -> Result<Model, Failure> {
    let mut c = build_options();
    c.device = LLAMA_DEVICE_CPU;
    c.max_seq_len = options.max_seq_len as u32;
    c.max_batch_size = options.max_batch_size as u32;
    c.weights_dtype = match options.weights_dtype {
        Some(Dtype::F32) => LLAMA_DTYPE_F32,
        dtype => {
            assert_eq!(dtype, None);
            LLAMA_DTYPE_AUTO
        }
    };
    Model::open(dir, tokenizer, &c)
}

/// 16-bit weights stay what they are; a 16-bit KV cache moves log probabilities by the amounts
/// measured when the tolerances were set (f16 0.004, bf16 0.03; here with room to spare). Where
/// prompts are multiplied as bfloat16, their activations are rounded too (0.1 with tiles; in one of
/// the families without them 0.2 for a token of a log probability of -7, 0.09 for what is likely).
fn tolerance(model: &Model, name: &str) -> f32 {
    let device = model.info().device_name.map(|c| c as u8);
    let has = |name: &[u8]| device.windows(name.len()).any(|word| word == name);
    let (tiles, pairs) = (has(b"AMX"), has(b"BF16"));
    match name {
        "mha-f32" => 1e-3,
        "gqa-f16-mp2" if !tiles => 0.02,
        "families" if tiles || pairs => 0.3,
        _ => 0.15,
    }
}

const CPU: Place = Place {
    open,
    draws: 640,
    pull: true,
    as_stored: tolerance,
    refused: &[],
};

reference_cases!(CPU);

#[test]
fn tokenizers_of_32000_pieces_and_dialogs() {
    let dir = tempdir("vocabulary-of-32000");
    blank_model(&dir, 32_000);
    let mut options = build_options();
    options.max_seq_len = 64;
    for cases in all_cases() {
        let model = Model::open(&dir, Some(&cases.tokenizer), &options).unwrap();
        for case in cases.texts() {
            let ids = tokens(&case["ids"]);
            assert_eq!(model.encode_text(case["text"].as_str().unwrap(), 0), ids);
            assert_eq!(model.decode(&ids), case["decoded"].as_str().unwrap());
        }
        for case in cases.dialogs() {
            let got = model.encode_dialog(&dialog(&case["dialog"])).unwrap();
            assert_eq!(got, tokens(&case["prompt_tokens"]));
        }
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
