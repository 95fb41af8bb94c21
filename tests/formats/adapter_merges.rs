//! Adapters that are merged while a model is loaded, against weights that were merged by hand.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::write::{Tensor, safetensors};
use crate::checkpoints::{Opened, TempDir, lora};
use llamabi::Dtype;
use llamabi::checkpoint::weights::{self, LoadControl};
use llamabi::checkpoint::{Adapter, Plan};
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
    assert!(want[0].values != plain[0].values, "{name}");
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
