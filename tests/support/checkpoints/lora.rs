//! Adapters for any model in Hugging Face's form.

use super::{TempDir, write};
use serde_json::{Value, json};
use std::path::Path;

/// An adapter for the model in a directory, as peft writes it: of these modules, with numbers that
/// are made up.
pub fn adapter(model: &Path, rank: usize, seed: usize, modules: &[&str]) -> TempDir {
    let config = std::fs::read(model.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let size = |key: &str| config[key].as_u64().map(|n| n as usize);
    let [dim, ffn, heads, kv_heads] = [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
    ]
    .map(|key| size(key).unwrap());
    let head = size("head_dim").unwrap_or(dim / heads);
    let mut tensors = Vec::new();
    for layer in 0..size("num_hidden_layers").unwrap() {
        for (i, &module) in modules.iter().enumerate() {
            let (of, rows, cols) = match module {
                "q_proj" => ("self_attn", heads * head, dim),
                "k_proj" | "v_proj" => ("self_attn", kv_heads * head, dim),
                "o_proj" => ("self_attn", dim, heads * head),
                "qkv_proj" => ("self_attn", (heads + 2 * kv_heads) * head, dim),
                "gate_proj" | "up_proj" => ("mlp", ffn, dim),
                "gate_up_proj" => ("mlp", 2 * ffn, dim),
                _ => ("mlp", dim, ffn),
            };
            for (which, shape, scale) in [("A", [rank, cols], 0.3), ("B", [rows, rank], 0.6)] {
                let number = |at: usize| {
                    let seed = seed * 7 + layer * 31 + i * 3 + shape[0];
                    let x = (at * 7919 + at * at % 911 * 13 + seed * 389) % 1000;
                    (x as f32 / 500.0 - 1.0) * scale / (rank as f32).sqrt()
                };
                let numbers = (0..shape[0] * shape[1]).map(number);
                tensors.push(write::Tensor {
                    name: format!(
                        "base_model.model.model.layers.{layer}.{of}.{module}.lora_{which}.weight"
                    ),
                    dtype: "F32",
                    shape: shape.into(),
                    bytes: numbers.flat_map(f32::to_le_bytes).collect(),
                });
            }
        }
    }
    let dir = TempDir::new();
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank});
    dir.file("adapter_config.json", config.to_string());
    dir.file("adapter_model.safetensors", write::safetensors(&tensors, 0));
    dir
}

/// All modules that an adapter can change.
pub const ALL: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// Adapters of different ranks, two of which change only some of the matrices.
pub fn some(model: &Path) -> [TempDir; 4] {
    [
        adapter(model, 5, 1, &ALL),
        adapter(model, 16, 2, &ALL),
        adapter(model, 1, 3, &["v_proj", "up_proj"]),
        adapter(model, 40, 4, &["q_proj", "down_proj", "gate_proj"]),
    ]
}
