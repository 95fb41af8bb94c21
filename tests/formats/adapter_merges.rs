//! Adapters that are merged while a model is loaded, against weights that were merged by hand.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::gguf::{self, File, f32, text, u32};
use crate::checkpoints::write::{Tensor, safetensors};
use crate::checkpoints::{Opened, TempDir, lora};
use llamabi::Dtype;
use llamabi::checkpoint::weights::{self, LoadControl};
use llamabi::checkpoint::{Adapter, Plan};
use llamabi::model::Cuts;
use safetensors::{Dtype as Stored, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn family(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/families")
        .join(name)
}

/// The tensors of a file: shape and numbers.
fn numbers(path: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let data = view.data();
        let numbers = match view.dtype() {
            Stored::BF16 => (data.chunks_exact(2))
                .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Stored::F32 => (data.chunks_exact(4))
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            other => panic!("{other:?}"),
        };
        (name, (view.shape().to_vec(), numbers))
    });
    tensors.collect()
}

/// A copy of a model in float32 with `scale * B A` in its weights, of `merged` of its modules.
fn by_hand(model: &Path, adapter: &Path, scale: f32, merged: usize) -> TempDir {
    let thin = numbers(&adapter.join("adapter_model.safetensors"));
    let (mut tensors, mut n) = (Vec::new(), 0);
    for (name, (shape, mut numbers)) in numbers(&model.join("model.safetensors")) {
        let module = name.strip_suffix(".weight").unwrap();
        let of = |which| thin.get(&format!("base_model.model.{module}.lora_{which}.weight"));
        if let (Some((a_shape, a)), Some((_, b))) = (of("A"), of("B")) {
            let (rank, cols) = (a_shape[0], shape[1]);
            for (row, numbers) in numbers.chunks_exact_mut(cols).enumerate() {
                for (col, number) in numbers.iter_mut().enumerate() {
                    let product = |j: usize| b[row * rank + j] * a[j * cols + col];
                    *number += scale * (0..rank).map(product).sum::<f32>();
                }
            }
            n += 1;
        }
        tensors.push(Tensor {
            name,
            dtype: "F32",
            shape,
            bytes: numbers.into_iter().flat_map(f32::to_le_bytes).collect(),
        });
    }
    assert_eq!(n, merged);
    let dir = TempDir::new();
    std::fs::copy(model.join("config.json"), dir.path().join("config.json")).unwrap();
    dir.file("model.safetensors", safetensors(&tensors, 0));
    dir
}

fn load(dir: &Path, adapters: &[Adapter]) -> Vec<Mat> {
    let opened = Opened::new(dir, 300).unwrap();
    let plan = Plan::new::<Collect>(
        &*opened.checkpoint,
        &opened.files,
        &opened.config,
        Some(Dtype::F32),
        adapters,
    );
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let loaded = weights::load(&Collect::default(), &plan.unwrap(), &mut control).unwrap();
    let layers = loaded.layers.into_iter();
    layers.flat_map(|l| [l.wqkv, l.wo, l.w13, l.w2]).collect()
}

fn check(name: &str, modules: &[&str]) {
    let model = family(name);
    let dir = lora::adapter(&model, 4, 1, modules);
    let adapter = Adapter::open(dir.path(), 0.5, None).unwrap();
    // `lora_alpha` is twice the rank.
    let want = by_hand(&model, dir.path(), 0.5 * 2.0, 2 * modules.len());
    let (got, want) = (load(&model, &[adapter]), load(want.path(), &[]));
    let plain = load(&model, &[]);
    assert!(want != plain, "{name}");
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.parts, want.parts, "{name}");
        for (at, (got, want)) in got.values.iter().zip(&want.values).enumerate() {
            assert!(
                (got - want).abs() <= 1e-5,
                "{name}, {at}: {got}, not {want}"
            );
        }
    }
}

/// RoPE rotates neighbours in some families and halves in others, in the adapter as in the weights.
#[test]
fn rows_of_q_and_k_have_the_order_of_their_family() {
    let modules = ["q_proj", "k_proj", "v_proj", "down_proj"];
    for name in ["ernie4_5", "qwen3"] {
        check(name, &modules);
    }
}

/// Parts of a fused module, with their rows.
type Parts = &'static [(&'static str, std::ops::Range<usize>)];

/// The modules of Phi-3 that an adapter can change, and those that an adapter for the same model
/// would have if it stored its parts apart: which rows of B each of them has.
const FUSED: [(&str, Parts); 2] = [
    (
        "qkv_proj",
        &[("q_proj", 0..32), ("k_proj", 32..48), ("v_proj", 48..64)],
    ),
    ("gate_up_proj", &[("gate_proj", 0..48), ("up_proj", 48..96)]),
];

#[test]
fn a_pair_of_a_fused_module_is_merged_into_all_its_parts() {
    check("phi3", &["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]);
    check("phi3", &["gate_up_proj"]);
}

/// What requests load of it: the parts share A.
#[test]
fn a_pair_of_a_fused_module_is_one_for_each_part() {
    let model = family("phi3");
    let fused = lora::adapter(&model, 4, 1, &["qkv_proj", "gate_up_proj"]);
    let file = "adapter_model.safetensors";
    let mut tensors = Vec::new();
    for (name, (shape, numbers)) in numbers(&fused.path().join(file)) {
        let of = |(module, _): &&(&str, &[_])| name.contains(&format!(".{module}."));
        let (module, parts) = FUSED.iter().find(of).unwrap();
        for (part, rows) in *parts {
            let is_b = name.contains("lora_B");
            let rows = if is_b { rows.clone() } else { 0..shape[0] };
            let part_numbers = &numbers[rows.start * shape[1]..rows.end * shape[1]];
            tensors.push(Tensor {
                name: name.replace(module, part),
                dtype: "F32",
                shape: vec![rows.len(), shape[1]],
                bytes: part_numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            });
        }
    }
    let apart = TempDir::new();
    let config = "adapter_config.json";
    std::fs::copy(fused.path().join(config), apart.path().join(config)).unwrap();
    apart.file(file, safetensors(&tensors, 0));
    let opened = Opened::new(&model, 300).unwrap();
    let cuts = Cuts::one(&opened.config.shape);
    let load = |dir: &TempDir| {
        let adapter = Adapter::open(dir.path(), 0.5, None).unwrap();
        let of_all = (&cuts, 0..1);
        let loaded = adapter.load(&opened.config, Dtype::F32, of_all, u64::MAX);
        loaded.unwrap().0.remove(0).matrices
    };
    let (fused, apart) = (load(&fused), load(&apart));
    assert_eq!(fused.iter().flatten().flatten().count(), 2 * 5);
    assert_eq!(fused, apart);
}

/// `modules_to_save` of a fused module.
#[test]
fn a_fused_module_that_is_replaced() {
    let model = family("phi3");
    let tensor = Tensor::f32(
        "base_model.model.model.layers.1.self_attn.qkv_proj.weight",
        &[64, 32],
        0,
    );
    let dir = TempDir::new();
    let config = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
    dir.file("adapter_config.json", config.to_string());
    dir.file("adapter_model.safetensors", safetensors(&[tensor], 0));
    let adapter = Adapter::open(dir.path(), 1.0, None).unwrap();
    let (got, plain) = (load(&model, &[adapter]), load(&model, &[]));
    let v: Vec<f32> = (48 * 32..64 * 32).map(|i| i as f32).collect();
    assert_eq!(got[4].part(2), v);
    let mut all = got[4].values.clone();
    all.sort_by(f32::total_cmp);
    assert_eq!(all, (0..64 * 32).map(|i| i as f32).collect::<Vec<_>>());
    for at in [0, 1, 2, 3, 5, 6, 7] {
        assert_eq!(got[at], plain[at], "{at}");
    }
}

/// A llama GGUF of one layer with rows of q and k in pairs, biases and, in float32, numbers that
/// differ.
fn gguf_with_biases(dir: &TempDir) -> PathBuf {
    let of = |name: &str| format!("llama.{name}");
    let mut file = File::default().key("general.architecture", text("llama"));
    for (name, n) in [
        ("block_count", 1),
        ("context_length", 128),
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("attention.head_count", 4),
        ("vocab_size", 64),
    ] {
        file = file.key(&of(name), u32(n));
    }
    file = file.key(&of("attention.layer_norm_rms_epsilon"), f32(1e-5));
    for (name, dims) in [
        ("token_embd.weight", &[32, 64][..]),
        ("output_norm.weight", &[32]),
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.ffn_norm.weight", &[32]),
        ("blk.0.attn_q.weight", &[32, 32]),
        ("blk.0.attn_k.weight", &[32, 32]),
        ("blk.0.attn_v.weight", &[32, 32]),
        ("blk.0.attn_q.bias", &[32]),
        ("blk.0.attn_k.bias", &[32]),
        ("blk.0.attn_v.bias", &[32]),
        ("blk.0.attn_output.weight", &[32, 32]),
        ("blk.0.ffn_gate.weight", &[32, 48]),
        ("blk.0.ffn_up.weight", &[32, 48]),
        ("blk.0.ffn_down.weight", &[48, 32]),
    ] {
        let n = dims.iter().product::<u64>();
        let bytes: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
        file = file.tensor(gguf::Tensor::new(name, dims, 0, &bytes));
    }
    dir.file("m.gguf", file.bytes())
}

/// Rows of the adapter lie in halves, those of the file and its biases in pairs.
#[test]
fn a_bias_keeps_its_order_where_its_matrix_is_replaced() {
    let dir = TempDir::new();
    let model = gguf_with_biases(&dir);
    let name = "base_model.model.model.layers.0.self_attn.q_proj.weight";
    let config = serde_json::json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
    dir.file("adapter_config.json", config.to_string());
    let tensor = Tensor::f32(name, &[32, 32], 0);
    dir.file("adapter_model.safetensors", safetensors(&[tensor], 0));
    let adapter = Adapter::open(dir.path(), 1.0, None).unwrap();
    let (got, plain) = (load(&model, &[adapter]), load(&model, &[]));
    assert_eq!(got[0].bias, plain[0].bias);
    assert_eq!(
        plain[0].bias[..32],
        (0..32).map(|i| i as f32).collect::<Vec<_>>()
    );
    // Of heads of eight rows, the fifth is the second in pairs.
    assert_eq!(got[0].values[32..64], plain[0].values[4 * 32..5 * 32]);
}
