//! Checkpoints that are made here: shards, and every way in which a checkpoint can fail to fit its
//! configuration.

use crate::checkpoints::collect::{Collect, to_f32};
use crate::checkpoints::write::{Tensor, pth, safetensors};
use crate::checkpoints::{TempDir, sentence};
use crate::weights::{FLOATS, assert_complete, load_dir, matrices, norms, open};
use llamabi::backend::RowOrder;
use llamabi::checkpoint::weights::LoadControl;
use llamabi::{Dtype, Error};

const DIM: usize = 8;
const FFN: usize = 12;
const KV: usize = 4;

/// A model of one layer with heads of 4 (2 query heads, 1 key head).
fn config_json(vocab: usize, extra: &str) -> String {
    format!(
        r#"{{"model_type":"llama","hidden_size":{DIM},"intermediate_size":{FFN},"num_hidden_layers":1,
        "num_attention_heads":2,"num_key_value_heads":1,"rms_norm_eps":1e-5,"vocab_size":{vocab}{extra}}}"#
    )
}

fn hf_tensors(vocab: usize) -> Vec<Tensor> {
    let layer = "model.layers.0.";
    [
        ("model.embed_tokens", vec![vocab, DIM]),
        (&format!("{layer}self_attn.q_proj"), vec![DIM, DIM]),
        (&format!("{layer}self_attn.k_proj"), vec![KV, DIM]),
        (&format!("{layer}self_attn.v_proj"), vec![KV, DIM]),
        (&format!("{layer}self_attn.o_proj"), vec![DIM, DIM]),
        (&format!("{layer}mlp.gate_proj"), vec![FFN, DIM]),
        (&format!("{layer}mlp.up_proj"), vec![FFN, DIM]),
        (&format!("{layer}mlp.down_proj"), vec![DIM, FFN]),
        (&format!("{layer}input_layernorm"), vec![DIM]),
        (&format!("{layer}post_attention_layernorm"), vec![DIM]),
        ("model.norm", vec![DIM]),
        ("lm_head", vec![vocab, DIM]),
    ]
    .iter()
    .enumerate()
    .map(|(i, (name, shape))| Tensor::f32(&format!("{name}.weight"), shape, i))
    .collect()
}

/// The same model in Meta's names. (Not the same numbers: q and k are not permuted.)
fn meta_tensors(vocab: usize) -> Vec<Tensor> {
    let mut tensors = hf_tensors(vocab);
    for t in &mut tensors {
        for (hf, meta) in [
            ("model.", ""),
            ("embed_tokens", "tok_embeddings"),
            ("self_attn.q_proj", "attention.wq"),
            ("self_attn.k_proj", "attention.wk"),
            ("self_attn.v_proj", "attention.wv"),
            ("self_attn.o_proj", "attention.wo"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("lm_head", "output"),
        ] {
            t.name = t.name.replace(hf, meta);
        }
    }
    tensors
}

/// 8/3 of the width, rounded down, is 21; half of that, rounded up to a multiple of 12, is FFN.
fn params_json(vocab: i64) -> String {
    format!(
        r#"{{"dim":{DIM},"n_layers":1,"n_heads":2,"n_kv_heads":1,"multiple_of":{FFN},
        "ffn_dim_multiplier":0.5,"norm_eps":1e-5,"vocab_size":{vocab}}}"#
    )
}

/// Rows `from..to` of a float32 matrix.
fn rows(t: &Tensor, from: usize, to: usize) -> Tensor {
    let width = 4 * t.shape[1];
    let bytes = t.bytes[from * width..to * width].to_vec();
    Tensor {
        shape: vec![to - from, t.shape[1]],
        bytes,
        ..t.clone()
    }
}

/// Columns `from..to` of a float32 matrix.
fn columns(t: &Tensor, from: usize, to: usize) -> Tensor {
    let rows = t.bytes.chunks_exact(4 * t.shape[1]);
    let bytes = rows
        .flat_map(|row| row[4 * from..4 * to].to_vec())
        .collect();
    Tensor {
        shape: vec![t.shape[0], to - from],
        bytes,
        ..t.clone()
    }
}

/// One shard of `n`; the embedding cut either way.
fn shard(tensors: &[Tensor], i: usize, n: usize, embedding_by_rows: bool) -> Vec<Tensor> {
    let cut = |t: &Tensor| {
        let by_columns = ["wo", "w2"]
            .iter()
            .any(|w| t.name.contains(&format!(".{w}.")))
            || (t.name.starts_with("tok_embeddings") && !embedding_by_rows);
        match t.shape[..] {
            [_] => t.clone(),
            [_, c] if by_columns => columns(t, i * c / n, (i + 1) * c / n),
            [r, _] => rows(t, i * r / n, (i + 1) * r / n),
            _ => unreachable!(),
        }
    };
    tensors.iter().map(cut).collect()
}

#[test]
fn shards_of_either_generation_merge() {
    let tensors = meta_tensors(20);
    let whole = TempDir::new();
    whole.file("params.json", params_json(20));
    whole.file("consolidated.00.pth", pth(&tensors));
    let (_, expected) = load_dir(whole.path()).unwrap();
    assert_complete(&expected);
    assert_eq!(
        expected.embedding.values,
        to_f32(Dtype::F32, &tensors[0].bytes)
    );
    // Llama 2 cuts the embedding by columns, Llama 3 by rows; 4 heads' worth of k rows cut four
    // ways would cut heads, which no real checkpoint does, but merging does not care.
    for n in [2, 4] {
        for embedding_by_rows in [false, true] {
            let dir = TempDir::new();
            dir.file("params.json", params_json(-1).replace("-1", "20"));
            for i in 0..n {
                let bytes = pth(&shard(&tensors, i, n, embedding_by_rows));
                dir.file(&format!("consolidated.{i:02}.pth"), bytes);
            }
            let (_, merged) = load_dir(dir.path()).unwrap();
            assert_eq!(matrices(&merged), matrices(&expected));
            assert_eq!(norms(&merged), norms(&expected));
        }
    }
}

#[test]
fn tensors_larger_than_a_slab_come_in_whole_rows() {
    // 5 MiB, and a last slab of one row.
    let vocab = 5 * (1 << 20) / (4 * DIM) + 1;
    let dir = TempDir::new();
    dir.file("config.json", config_json(vocab, ""));
    let tensors = hf_tensors(vocab);
    dir.file("model.safetensors", safetensors(&tensors, 0));
    let opened = open(dir.path()).unwrap();
    let backend = Collect::default();
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let w = opened.load(&backend, FLOATS, &mut control).unwrap();
    assert_complete(&w);
    assert_eq!(w.embedding.values, to_f32(Dtype::F32, &tensors[0].bytes));
    assert_eq!(
        w.head.unwrap().values,
        to_f32(Dtype::F32, &tensors[11].bytes)
    );
    assert!(
        backend.largest.get() <= 2 << 20,
        "{}",
        backend.largest.get()
    );
}

#[test]
fn data_of_any_alignment_is_read() {
    let mut all = Vec::new();
    for padding in 0..4 {
        let dir = TempDir::new();
        dir.file("config.json", config_json(20, ""));
        dir.file("model.safetensors", safetensors(&hf_tensors(20), padding));
        let opened = open(dir.path()).unwrap();
        let offset = opened.files.files[0].tensors["model.norm.weight"].offset;
        let (_, w) = load_dir(dir.path()).unwrap();
        all.push((
            offset % 4,
            matrices(&w).into_iter().cloned().collect::<Vec<_>>(),
        ));
    }
    assert!(all.iter().all(|(_, matrices)| *matrices == all[0].1));
    all.sort_by_key(|(alignment, _)| *alignment);
    assert_eq!(
        all.iter().map(|(a, _)| *a).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
}

#[test]
fn an_index_and_its_shards_make_one_checkpoint() {
    let tensors = hf_tensors(20);
    let single = TempDir::new();
    single.file("config.json", config_json(20, ""));
    single.file("model.safetensors", safetensors(&tensors, 0));
    let (_, expected) = load_dir(single.path()).unwrap();

    let dir = TempDir::new();
    dir.file("config.json", config_json(20, ""));
    let mut map = Vec::new();
    for (i, half) in tensors.chunks(6).enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", i + 1);
        map.extend(half.iter().map(|t| format!(r#""{}":"{name}""#, t.name)));
        dir.file(&name, safetensors(half, i));
    }
    let index = format!(
        r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#,
        map.join(",")
    );
    dir.file("model.safetensors.index.json", index);
    let (_, w) = load_dir(dir.path()).unwrap();
    assert_eq!(matrices(&w), matrices(&expected));
}

#[test]
fn tensors_we_compute_ourselves_are_ignored() {
    let dir = TempDir::new();
    dir.file("config.json", config_json(20, ""));
    let mut tensors = hf_tensors(20);
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tensors.push(Tensor::f32(name, &[2], 0));
    dir.file("model.safetensors", safetensors(&tensors, 0));
    load_dir(dir.path()).unwrap();

    let dir = TempDir::new();
    dir.file("params.json", params_json(20));
    let mut tensors = meta_tensors(20);
    tensors.push(Tensor::f32("rope.freqs", &[2], 0));
    dir.file("consolidated.00.pth", pth(&tensors));
    load_dir(dir.path()).unwrap();
}

#[test]
fn a_tied_model_may_store_its_head_if_it_is_the_embedding() {
    let tied = |head: Option<Tensor>| {
        let dir = TempDir::new();
        dir.file(
            "config.json",
            config_json(20, r#","tie_word_embeddings":true"#),
        );
        let mut tensors = hf_tensors(20);
        tensors.pop();
        tensors.extend(head);
        dir.file("model.safetensors", safetensors(&tensors, 0));
        let mut last = 0.0;
        let opened = open(dir.path()).unwrap();
        let progress = &mut |share| {
            last = share;
            true
        };
        let mut control = LoadControl {
            cancel: None,
            progress,
        };
        let result = opened.load(&Collect::default(), FLOATS, &mut control);
        if result.is_ok() {
            assert_eq!(last, 1.0);
        }
        match result {
            Ok(w) => Ok(w.head.is_none()),
            Err(e) => Err(sentence::<()>(Err(e), dir.path())),
        }
    };
    let embedding = Tensor {
        name: "lm_head.weight".into(),
        ..hf_tensors(20)[0].clone()
    };
    assert_eq!(tied(None), Ok(true));
    assert_eq!(tied(Some(embedding.clone())), Ok(true));
    let mut other = embedding;
    *other.bytes.last_mut().unwrap() ^= 1;
    assert_eq!(
        tied(Some(other)).unwrap_err(),
        "model.safetensors: tensor `lm_head.weight`: expected the same numbers as in \
         `model.embed_tokens.weight` (tie_word_embeddings), found others"
    );
    assert_eq!(
        tied(Some(Tensor::f32("lm_head.weight", &[19, DIM], 0))).unwrap_err(),
        "model.safetensors: tensor `lm_head.weight`: expected shape [20, 8], found shape [19, 8]"
    );
}

/// Nothing is read of a checkpoint whose table of contents does not fit.
fn refused(dir: &TempDir) -> String {
    let opened = open(dir.path()).unwrap();
    let progress = &mut |_| panic!("data was read");
    let mut control = LoadControl {
        cancel: None,
        progress,
    };
    let result = opened.load(&Collect::default(), FLOATS, &mut control);
    sentence(result, dir.path()).replace(&dir.path().display().to_string(), "DIR")
}

#[test]
fn hugging_face_tensors_must_fit_exactly() {
    let refused = |extra: &str, change: &dyn Fn(&mut Vec<Tensor>)| {
        let dir = TempDir::new();
        dir.file("config.json", config_json(20, extra));
        let mut tensors = hf_tensors(20);
        change(&mut tensors);
        dir.file("model.safetensors", safetensors(&tensors, 0));
        refused(&dir)
    };
    assert_eq!(
        refused("", &|t| drop(t.remove(7))),
        "DIR: tensor `model.layers.0.mlp.down_proj.weight`: expected shape [8, 12], found no such tensor"
    );
    assert_eq!(
        refused("", &|t| t[1] = Tensor::f32(&t[1].name, &[DIM, DIM, 1], 0)),
        "model.safetensors: tensor `model.layers.0.self_attn.q_proj.weight`: expected shape [8, 8], \
         found shape [8, 8, 1]"
    );
    assert_eq!(
        refused("", &|t| t[2] = Tensor::f32(&t[2].name, &[DIM, KV], 0)),
        "model.safetensors: tensor `model.layers.0.self_attn.k_proj.weight`: expected shape [4, 8], \
         found shape [8, 4]"
    );
    assert_eq!(
        refused("", &|t| t.push(Tensor::f32(
            "model.layers.1.input_layernorm.weight",
            &[DIM],
            0
        ))),
        "model.safetensors: tensor `model.layers.1.input_layernorm.weight`: expected no such tensor \
         in this model, found shape [8] of f32"
    );
    assert_eq!(
        refused("", &|t| t.push(Tensor::f32(
            "model.layers.0.self_attn.q_proj.bias",
            &[DIM],
            0
        ))),
        "model.safetensors: tensor `model.layers.0.self_attn.q_proj.bias`: expected no such tensor \
         in this model, found shape [8] of f32"
    );
    assert_eq!(
        refused(r#","attention_bias":true"#, &|_| ()),
        "DIR: tensor `model.layers.0.self_attn.q_proj.bias`: expected shape [8], found no such tensor"
    );
}

#[test]
fn metas_shards_must_fit_exactly() {
    let refused = |n: usize, change: &dyn Fn(usize, &mut Vec<Tensor>)| {
        let dir = TempDir::new();
        dir.file("params.json", params_json(20));
        for i in 0..n {
            let mut tensors = shard(&meta_tensors(20), i, n, false);
            change(i, &mut tensors);
            dir.file(&format!("consolidated.{i:02}.pth"), pth(&tensors));
        }
        refused(&dir)
    };
    assert_eq!(
        refused(2, &|i, t| if i == 1 {
            drop(t.remove(4))
        }),
        "consolidated.01.pth: tensor `layers.0.attention.wo.weight`: expected shape [8, 4], found no \
         such tensor"
    );
    assert_eq!(
        refused(2, &|i, t| if i == 1 {
            t.push(Tensor::f32("extra", &[1], 0))
        }),
        "consolidated.01.pth: tensor `extra`: expected no such tensor in this model, found shape [1] \
         of f32"
    );
    assert_eq!(
        refused(2, &|i, t| if i == 1 {
            t[0] = rows(&meta_tensors(20)[0], 0, 10)
        }),
        "consolidated.01.pth: tensor `tok_embeddings.weight`: expected shape [20, 4], found shape \
         [10, 8]"
    );
    assert_eq!(
        refused(2, &|_, t| t[0] = meta_tensors(20)[0].clone()),
        "consolidated.00.pth: tensor `tok_embeddings.weight`: expected shape [10, 8] or [20, 4], \
         found shape [20, 8]"
    );
    assert_eq!(
        refused(2, &|i, t| if i == 1 {
            t[10] = Tensor::f32("norm.weight", &[4], 0)
        }),
        "consolidated.01.pth: tensor `norm.weight`: expected shape [8], found shape [4]"
    );
    // Meta's own files always store the head, Llama 3.2's too.
    assert_eq!(
        refused(1, &|_, t| drop(t.pop())),
        "consolidated.00.pth: tensor `output.weight`: expected shape [20, 8], found no such tensor"
    );
    // 3 shards cannot cut 20 rows or 8 columns.
    assert_eq!(
        refused(3, &|_, t| *t = meta_tensors(20)),
        "consolidated.01.pth: tensor `tok_embeddings.weight`: expected one of 3 equal shards of \
         shape [20, 8], found shape [20, 8]"
    );
}

#[test]
fn a_file_cut_off_while_it_is_loaded_is_an_io_error() {
    for (form, name) in [("hf", "model.safetensors"), ("meta", "consolidated.00.pth")] {
        let dir = TempDir::new();
        if form == "hf" {
            dir.file("config.json", config_json(20, ""));
            dir.file(name, safetensors(&hf_tensors(20), 0));
        } else {
            dir.file("params.json", params_json(20));
            dir.file(name, pth(&meta_tensors(20)));
        }
        let opened = open(dir.path()).unwrap();
        let target = if form == "hf" {
            "lm_head.weight"
        } else {
            "output.weight"
        };
        let info = opened.files.files[0].tensors[target].clone();
        let path = dir.path().join(name);
        let mut calls = 0;
        let progress = &mut |_| {
            calls += 1;
            if calls == 3 {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(info.offset + 7).unwrap();
            }
            true
        };
        let mut control = LoadControl {
            cancel: None,
            progress,
        };
        let result = opened.load(&Collect::default(), FLOATS, &mut control);
        assert!(matches!(result, Err(Error::Io { .. })));
        assert_eq!(
            sentence(result, dir.path()),
            format!(
                "{name}: at offset {}: wanted 640 bytes, got 7; the file ends too soon",
                info.offset
            )
        );
    }
}

#[test]
fn a_file_replaced_while_it_is_loaded_does_not_matter() {
    let dir = TempDir::new();
    dir.file("config.json", config_json(20, ""));
    let path = dir.file("model.safetensors", safetensors(&hf_tensors(20), 0));
    let opened = open(dir.path()).unwrap();
    std::fs::rename(dir.file("other", "garbage"), path).unwrap();
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    let w = opened
        .load(&Collect::default(), FLOATS, &mut control)
        .unwrap();
    assert_complete(&w);
}

#[test]
fn the_row_orders_are_permutations() {
    for head_dim in [2, 4, 16, 128] {
        let order = RowOrder::HalvesToPairs {
            head_dim,
            rotated: head_dim,
        };
        let mut rows: Vec<_> = (0..3 * head_dim)
            .map(|row| order.destination(row))
            .collect();
        assert_eq!(rows[..2], [0, if head_dim == 2 { 1 } else { 2 }]);
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..3 * head_dim));
    }
}
