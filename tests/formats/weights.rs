//! Loading whole checkpoints: every reference model in both forms, progress and cancelling.

use crate::checkpoints::collect::{Collect, Mat, to_f32};
use crate::checkpoints::{Opened, reference};
use llamabi::backend::Weights;
use llamabi::checkpoint::weights::LoadControl;
use llamabi::model::Config;
use llamabi::{Cancel, Dtype, Error, Result};
use std::path::Path;

/// The reference tokenizers have 512 pieces.
const VOCAB: usize = 512;

pub const FLOATS: Option<Dtype> = Some(Dtype::F32);

pub fn open(dir: &Path) -> Result<Opened> {
    Opened::new(dir, VOCAB)
}

pub fn load_dir(dir: &Path) -> Result<(Config, Weights<Collect>)> {
    let opened = open(dir)?;
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let weights = opened.load(&Collect::default(), FLOATS, &mut control)?;
    Ok((opened.config, weights))
}

pub fn matrices(w: &Weights<Collect>) -> Vec<&Mat> {
    let layers = w
        .layers
        .iter()
        .flat_map(|l| [&l.wqkv, &l.wo, &l.w13, &l.w2]);
    std::iter::once(&w.embedding)
        .chain(layers)
        .chain(&w.head)
        .collect()
}

pub fn norms(w: &Weights<Collect>) -> Vec<&Vec<f32>> {
    let layers = w
        .layers
        .iter()
        .flat_map(|l| [&l.attention_norm, &l.ffn_norm]);
    layers.chain([&w.norm]).collect()
}

/// Every number was packed, and none of the reference weights is NaN.
pub fn assert_complete(w: &Weights<Collect>) {
    for mat in matrices(w) {
        assert!(mat.values.iter().chain(&mat.bias).all(|x| !x.is_nan()));
    }
}

#[test]
fn both_forms_give_the_same_matrices() {
    for name in ["mha-f32", "gqa-bf16", "gqa-f16-mp2"] {
        let dir = reference(name);
        let (meta, a) = load_dir(&dir.join("meta")).unwrap();
        let (hf, b) = load_dir(&dir.join("hf")).unwrap();
        assert_eq!(meta.shape, hf.shape, "{name}");
        assert_eq!(
            (meta.rope_theta, meta.rope_scaling),
            (hf.rope_theta, hf.rope_scaling)
        );
        assert_complete(&a);
        assert_eq!(matrices(&a), matrices(&b), "{name}");
        assert_eq!(norms(&a), norms(&b), "{name}");
        assert_eq!(a.layers.len(), meta.shape.n_layers);
        assert!(
            a.layers
                .iter()
                .enumerate()
                .all(|(i, layer)| layer.index == i)
        );
    }
}

/// Against the files themselves, read without any of the code under test but the header's.
#[test]
fn hugging_face_rows_become_metas_pairs() {
    let dir = reference("variants/attn-bias");
    let (config, w) = load_dir(&dir).unwrap();
    let opened = open(&dir).unwrap();
    let file = &opened.files.files[0];
    let raw = std::fs::read(dir.join("model.safetensors")).unwrap();
    let stored = |name: &str| {
        let info = &file.tensors[name];
        to_f32(
            info.encoding.float().unwrap(),
            &raw[info.offset as usize..][..info.len as usize],
        )
    };
    let (dim, head) = (config.shape.dim, config.shape.head_dim);
    let wqkv = &w.layers[1].wqkv;
    let q = stored("model.layers.1.self_attn.q_proj.weight");
    let q_bias = stored("model.layers.1.self_attn.q_proj.bias");
    for h in 0..config.shape.n_heads {
        for j in 0..head / 2 {
            // transformers' permutation in convert_llama_weights_to_hf.py, undone.
            for b in 0..2 {
                let (ours, theirs) = (h * head + 2 * j + b, h * head + j + b * head / 2);
                assert_eq!(wqkv.part(0)[ours * dim..][..dim], q[theirs * dim..][..dim]);
                assert_eq!(wqkv.bias[ours], q_bias[theirs]);
            }
        }
    }
    let v = config.shape.q_dim() + config.shape.kv_dim();
    assert_eq!(
        wqkv.part(2),
        stored("model.layers.1.self_attn.v_proj.weight")
    );
    assert_eq!(
        wqkv.bias[v..],
        stored("model.layers.1.self_attn.v_proj.bias")
    );
    assert_eq!(
        w.layers[1].wo.bias,
        stored("model.layers.1.self_attn.o_proj.bias")
    );
    assert_eq!(
        w.layers[0].w13.part(1),
        stored("model.layers.0.mlp.up_proj.weight")
    );
    assert_eq!(w.norm, stored("model.norm.weight"));
}

#[test]
fn variants_load() {
    for name in [
        "tied",
        "rope-theta-500k",
        "llama3-rope",
        "linear-rope",
        "head-dim-32",
    ] {
        let (config, w) = load_dir(&reference(&format!("variants/{name}"))).unwrap();
        assert_complete(&w);
        assert_eq!(w.head.is_none(), name == "tied");
        assert_eq!(config.tied_embeddings, name == "tied");
        assert_eq!(
            w.layers[0].wqkv.parts,
            [
                config.shape.q_dim(),
                config.shape.kv_dim(),
                32 * config.shape.head_dim / 16
            ]
        );
        assert_eq!(w.layers[0].wo.cols, config.shape.q_dim());
    }
}

#[test]
fn the_plan_is_what_is_allocated() {
    for name in [
        "mha-f32/meta",
        "gqa-bf16/hf",
        "gqa-f16-mp2/meta",
        "variants/tied",
        "variants/attn-bias",
    ] {
        let (_, w) = load_dir(&reference(name)).unwrap();
        let numbers = |m: &Mat| m.values.len() + m.bias.len();
        let matrices: usize = matrices(&w).into_iter().map(numbers).sum();
        let norms: usize = norms(&w).into_iter().map(Vec::len).sum();
        assert_eq!(
            open(&reference(name))
                .unwrap()
                .plan(FLOATS)
                .unwrap()
                .weight_bytes::<Collect>(),
            4 * (matrices + norms) as u64
        );
    }
}

#[test]
fn stored_dtype_is_the_one_of_most_bytes() {
    for (name, dtype) in [
        ("mha-f32/meta", Dtype::F32),
        ("gqa-bf16/meta", Dtype::Bf16),
        ("gqa-bf16/hf", Dtype::Bf16),
        ("gqa-f16-mp2/meta", Dtype::F16),
    ] {
        assert_eq!(
            open(&reference(name)).unwrap().files.most_floats(),
            dtype,
            "{name}"
        );
    }
}

#[test]
fn progress_ascends_and_ends_with_one() {
    for name in ["mha-f32/hf", "gqa-f16-mp2/meta"] {
        let opened = open(&reference(name)).unwrap();
        let mut shares = Vec::new();
        let progress = &mut |share| {
            shares.push(share);
            true
        };
        let mut control = LoadControl {
            cancel: None,
            progress,
        };
        opened
            .load(&Collect::default(), FLOATS, &mut control)
            .unwrap();
        assert!(
            shares[0] > 0.0 && shares.is_sorted_by(|a, b| a < b),
            "{shares:?}"
        );
        assert_eq!(
            shares.iter().position(|&s| s == 1.0),
            Some(shares.len() - 1)
        );
        assert!(
            shares.len() > 20,
            "one per tensor at least: {}",
            shares.len()
        );
    }
}

#[test]
fn either_way_of_stopping_is_heeded_at_the_next_tensor() {
    let opened = open(&reference("mha-f32/hf")).unwrap();
    let run = |cancel: Option<&Cancel>, progress: &mut dyn FnMut(f32) -> bool| {
        let mut control = LoadControl { cancel, progress };
        opened
            .load(&Collect::default(), FLOATS, &mut control)
            .map(|_| ())
    };
    let triggered = Cancel::new();
    triggered.trigger();
    let mut calls = 0;
    let result = run(Some(&triggered), &mut |_| {
        calls += 1;
        true
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(calls, 0, "nothing was read");

    for stop_after in [1, 5] {
        let cancel = Cancel::new();
        let mut calls = 0;
        let result = run(Some(&cancel), &mut |_| {
            calls += 1;
            if calls == stop_after {
                cancel.trigger();
            }
            true
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(
            calls, stop_after,
            "the flag is looked at before every tensor"
        );

        let mut calls = 0;
        let result = run(None, &mut |_| {
            calls += 1;
            calls < stop_after
        });
        assert!(matches!(result, Err(Error::Cancelled)));
        assert_eq!(calls, stop_after);
    }
}
