//! Fused modules (Phi-3's `qkv_proj`, `gate_up_proj`) that other programs quantised: the weights
//! are those of the same modules apart.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::write::{Tensor, safetensors};
use crate::checkpoints::{Opened, TempDir, sentence};
use llamabi::Dtype;
use llamabi::checkpoint::weights::LoadControl;
use safetensors::tensor::TensorView;
use safetensors::{Dtype as Stored, SafeTensors};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The modules of a Llama that are one in a Phi-3.
const FUSED: [(&str, &[&str]); 2] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
];

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/quantised")
        .join(name)
}

fn dtype(view: &TensorView<'_>) -> &'static str {
    match view.dtype() {
        Stored::F32 => "F32",
        Stored::F16 => "F16",
        Stored::BF16 => "BF16",
        Stored::F8_E4M3 => "F8_E4M3",
        Stored::I64 => "I64",
        Stored::I32 => "I32",
        Stored::I8 => "I8",
        Stored::U8 => "U8",
        other => panic!("{other:?}"),
    }
}

/// Tensors one behind another along the dimension of their module's rows.
fn joined(views: &[TensorView<'_>], dim: usize) -> (Vec<usize>, Vec<u8>) {
    let mut shape = views[0].shape().to_vec();
    shape[dim] = views.iter().map(|view| view.shape()[dim]).sum();
    let mut bytes = Vec::new();
    let lines = if dim == 0 { 1 } else { shape[0] };
    for line in 0..lines {
        for view in views {
            let width = view.data().len() / lines;
            bytes.extend(&view.data()[line * width..][..width]);
        }
    }
    (shape, bytes)
}

/// What a fused module has instead of the tensors of this suffix.
fn fused(suffix: &str, views: &[TensorView<'_>]) -> (Vec<usize>, Vec<u8>) {
    let first = || (views[0].shape().to_vec(), views[0].data().to_vec());
    match suffix {
        "qweight" | "qzeros" | "scales" => joined(views, 1),
        "g_idx" | "weight.quant_map" | "weight_format" | "input_scale_ub" => {
            assert!(views.iter().all(|view| view.data() == views[0].data()));
            first()
        }
        "weight_shape" => {
            let size = |view: &TensorView<'_>, at: usize| {
                i64::from_le_bytes(view.data()[8 * at..][..8].try_into().unwrap())
            };
            let rows: i64 = views.iter().map(|view| size(view, 0)).sum();
            let sizes = [rows, size(&views[0], 1)];
            (
                vec![2],
                sizes.iter().flat_map(|n| n.to_le_bytes()).collect(),
            )
        }
        _ if suffix.starts_with("weight.quant_state") => {
            let states = views.iter().map(|view| serde_json::from_slice(view.data()));
            let states: Vec<Value> = states.collect::<Result<_, _>>().unwrap();
            let rows = states
                .iter()
                .map(|state| state["shape"][0].as_u64().unwrap());
            let rows: u64 = rows.sum();
            let mut state = states[0].clone();
            state["shape"][0] = rows.into();
            let bytes = state.to_string().into_bytes();
            (vec![bytes.len()], bytes)
        }
        _ => joined(views, 0),
    }
}

/// A scale of a block of 128 rows, of a module of fewer, as those of blocks of 32.
fn of_smaller_blocks(file: &SafeTensors<'_>, name: &str, view: &TensorView<'_>) -> Tensor {
    assert_eq!(view.shape(), [1, 1]);
    let weight = file.tensor(&name.replace("_scale_inv", "")).unwrap();
    let blocks = weight.shape()[0] / 32;
    Tensor {
        name: name.into(),
        dtype: dtype(view),
        shape: vec![blocks, 1],
        bytes: view.data().repeat(blocks),
    }
}

/// A case's model as a Phi-3.
fn phi3(name: &str) -> TempDir {
    let dir = TempDir::new();
    let config = std::fs::read(case(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["model_type"] = "phi3".into();
    config["architectures"] = json!(["Phi3ForCausalLM"]);
    let file = std::fs::read(case(name).join("model.safetensors")).unwrap();
    let smaller;
    let mut file = SafeTensors::deserialize(&file).unwrap();
    if name == "fp8-blocks" {
        config["quantization_config"]["weight_block_size"] = json!([32, 128]);
        let tensors =
            file.tensors()
                .into_iter()
                .map(|(name, view)| match name.ends_with("_scale_inv") {
                    true => of_smaller_blocks(&file, &name, &view),
                    false => Tensor {
                        dtype: dtype(&view),
                        shape: view.shape().to_vec(),
                        bytes: view.data().to_vec(),
                        name,
                    },
                });
        smaller = safetensors(&tensors.collect::<Vec<_>>(), 0);
        file = SafeTensors::deserialize(&smaller).unwrap();
    }
    dir.file("config.json", config.to_string());
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let of = |module: &str| name.contains(&format!(".{module}."));
        let group = FUSED.iter().find(|(_, apart)| apart.iter().any(|m| of(m)));
        let (name, shape, bytes) = match group {
            None => (name.clone(), view.shape().to_vec(), view.data().to_vec()),
            Some((_, apart)) if !of(apart[0]) => continue,
            Some((together, apart)) => {
                let other = |module: &&str| file.tensor(&name.replace(apart[0], module)).unwrap();
                let views: Vec<_> = apart.iter().map(other).collect();
                let (_, suffix) = name.split_once(&format!(".{}.", apart[0])).unwrap();
                let (shape, bytes) = fused(suffix, &views);
                (name.replace(apart[0], together), shape, bytes)
            }
        };
        tensors.push(Tensor {
            name,
            dtype: dtype(&view),
            shape,
            bytes,
        });
    }
    dir.file("model.safetensors", safetensors(&tensors, 0));
    dir
}

fn load(dir: &Path, asked: Option<Dtype>) -> llamabi::Result<Vec<Mat>> {
    let mut shares = Vec::new();
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |share| {
            shares.push(share);
            true
        },
    };
    let opened = Opened::new(dir, 300)?;
    let weights = opened.load(&Collect::default(), asked, &mut control)?;
    assert_eq!(shares.last(), Some(&1.0), "all that there is was read");
    let layers = weights.layers.into_iter();
    Ok(layers.flat_map(|l| [l.wqkv, l.wo, l.w13, l.w2]).collect())
}

#[test]
fn parts_of_fused_modules_are_those_of_modules_apart() {
    for name in [
        "gptq-sym-g32",
        "gptq-asym-g64",
        "gptq-v2",
        "gptq-3bit",
        "gptq-8bit-asym",
        "awq-g32",
        "bnb-fp4",
        "bnb-nf4-b128",
        "bnb-int8",
        "ct-pack-sym",
        "ct-pack-asym",
        "ct-int8",
        "ct-fp8",
        "fbgemm-fp8",
        "fp8-blocks",
    ] {
        let dir = phi3(name);
        let apart = load(&case(name), Some(Dtype::F32)).unwrap();
        let fused = load(dir.path(), Some(Dtype::F32)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(apart[0].values.iter().any(|&x| x != 0.0), "{name}");
        assert!(fused == apart, "{name}");
        // As stored: the same codes and scales.
        let (fused, apart) = (
            load(dir.path(), None).unwrap(),
            load(&case(name), None).unwrap(),
        );
        for (fused, apart) in fused.iter().zip(&apart) {
            assert_eq!(fused.dtypes, apart.dtypes, "{name}");
            assert!(fused.codes == apart.codes, "{name}");
            assert!(fused.scales == apart.scales, "{name}");
        }
    }
}

/// AWQ has eight rows in a word. Every real head has a multiple of these.
#[test]
fn parts_between_which_a_word_lies_are_refused() {
    let dir = TempDir::new();
    let config = json!({
        "model_type": "phi3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "vocab_size": 64, "max_position_embeddings": 128, "tie_word_embeddings": true,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
            "zero_point": true, "version": "gemm"},
    });
    dir.file("config.json", config.to_string());
    let tensor = |name: &str, dtype, shape: &[usize], size| Tensor {
        name: name.into(),
        dtype,
        shape: shape.into(),
        bytes: vec![0; size * shape.iter().product::<usize>()],
    };
    let module = "model.layers.0.self_attn.qkv_proj";
    let tensors = [
        tensor("model.embed_tokens.weight", "F16", &[64, 32], 2),
        tensor("model.layers.0.input_layernorm.weight", "F16", &[32], 2),
        tensor(
            "model.layers.0.post_attention_layernorm.weight",
            "F16",
            &[32],
            2,
        ),
        tensor(&format!("{module}.qweight"), "I32", &[32, 5], 4),
        tensor(&format!("{module}.qzeros"), "I32", &[1, 5], 4),
        tensor(&format!("{module}.scales"), "F16", &[1, 40], 2),
    ];
    dir.file("model.safetensors", safetensors(&tensors, 0));
    assert_eq!(
        sentence(load(dir.path(), None), dir.path()),
        format!(
            "model.safetensors: tensor `{module}.qweight`: expected parts that begin and end at a \
             multiple of 8 rows, found model.layers.0.self_attn.k_proj in rows 32 to 36"
        )
    );
}
