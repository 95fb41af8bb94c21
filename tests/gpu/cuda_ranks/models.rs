//! Checkpoints of these tests.

use crate::checkpoints::TempDir;
use crate::common::reference;
use safetensors::tensor::TensorView;

type Tensors = Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)>;

/// The checkpoint `mha-f32/hf` with other tensors, and some words of its configuration replaced.
fn changed(tensors: impl FnOnce(Tensors) -> Tensors, words: &[[&str; 2]]) -> TempDir {
    let (dir, model) = (TempDir::new(), reference("mha-f32/hf"));
    let bytes = std::fs::read(model.join("model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, TensorView<'_>)| {
        (
            name,
            view.dtype(),
            view.shape().to_vec(),
            view.data().to_vec(),
        )
    };
    let all = tensors(all.tensors().into_iter().map(tensor).collect());
    let views = all.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let file = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let mut config = std::fs::read_to_string(model.join("config.json")).unwrap();
    for [from, to] in words {
        assert!(config.contains(from), "{config}");
        config = config.replace(from, to);
    }
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let tokenizer = "tokenizer.model";
    std::fs::copy(model.join(tokenizer), dir.path().join(tokenizer)).unwrap();
    dir
}

/// With a vocabulary of 521 tokens, so that rows of logits are padded on a device.
pub fn odd_vocabulary() -> TempDir {
    let longer = |mut all: Tensors| {
        for (_, _, shape, data) in all.iter_mut().filter(|(_, _, shape, _)| shape[0] == 512) {
            data.extend_from_within(..9 * data.len() / 512);
            shape[0] = 521;
        }
        all
    };
    changed(longer, &[["\"vocab_size\": 512", "\"vocab_size\": 521"]])
}

/// With more tokens that end a text than a handle takes, which is found when all is loaded.
pub fn endless() -> TempDir {
    let ids: Vec<String> = (2..40).map(|id| id.to_string()).collect();
    let many = format!("\"eos_token_id\": [{}]", ids.join(", "));
    changed(|all| all, &[["\"eos_token_id\": 2", &many]])
}

/// With so many layers, all like the first.
pub fn deep(layers: usize) -> TempDir {
    let more = |all: Tensors| {
        let first = "model.layers.0.";
        let of_layer = |(name, ..): &&(String, _, _, _)| name.starts_with(first);
        let outside = all
            .iter()
            .filter(|(name, ..)| !name.starts_with("model.layers."));
        let mut more: Tensors = outside.cloned().collect();
        for layer in 0..layers {
            more.extend(all.iter().filter(of_layer).cloned().map(|mut tensor| {
                tensor.0 = tensor.0.replace(first, &format!("model.layers.{layer}."));
                tensor
            }));
        }
        more
    };
    let layers = format!("\"num_hidden_layers\": {layers}");
    changed(more, &[["\"num_hidden_layers\": 3", &layers]])
}

/// The checkpoint `mha-f32/hf` with rows of 8,192 numbers, of which 32 are as many as go from GPU
/// to GPU. It has one layer, two heads and 32 hidden numbers, so that the emulator has little to
/// do.
pub fn wide() -> TempDir {
    const TIMES: usize = 128;
    let widen = |(name, dtype, shape, data): (String, _, Vec<usize>, Vec<u8>)| {
        let [rows, bytes] = [shape[0], data.len() / shape[0]];
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        let written = has(&["o_proj", "down_proj"]);
        let hidden = has(&["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]);
        let data: Vec<u8> = match (written, hidden) {
            (true, _) => data
                .chunks(bytes)
                .flat_map(|row| &row[..4 * 32])
                .copied()
                .collect(),
            (_, true) => data[..32 * bytes].to_vec(),
            _ => data,
        };
        let (shape, data) = match (written, shape.len()) {
            (true, _) => (vec![rows * TIMES, 32], data.repeat(TIMES)),
            (_, 1) => (vec![rows * TIMES], data.repeat(TIMES)),
            _ => {
                let rows = data.len() / bytes;
                let wide = data.chunks(bytes).flat_map(|row| row.repeat(TIMES));
                (vec![rows, 64 * TIMES], wide.collect())
            }
        };
        (name, dtype, shape, data)
    };
    let one_layer =
        |(name, ..): &(String, _, _, _)| !name.contains("layers.") || name.contains("layers.0.");
    let tensors = |all: Tensors| all.into_iter().filter(one_layer).map(widen).collect();
    let words = [
        [
            "\"hidden_size\": 64",
            "\"hidden_size\": 8192, \"head_dim\": 16",
        ],
        ["\"num_attention_heads\": 4", "\"num_attention_heads\": 2"],
        ["\"num_key_value_heads\": 4", "\"num_key_value_heads\": 2"],
        ["\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1"],
        ["\"intermediate_size\": 192", "\"intermediate_size\": 32"],
    ];
    changed(tensors, &words)
}
