//! A checkpoint in Meta's form with Llama 3's kind of tokenizer, through the C API.

use crate::checkpoints::TempDir;
use crate::checkpoints::write::{Tensor, pth};
use crate::common::*;
use llamabi::capi::*;
use std::path::Path;

const VOCAB: usize = 676;
const DIM: usize = 32;

/// Weights that are made up: no two tokens have the same row.
fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let salt = name
        .bytes()
        .fold(1, |sum: usize, byte| sum * 31 % 10_007 + usize::from(byte));
    let value = |i: usize| (((i + salt) * 7919 % 1009) as f32 / 1009.0 - 0.5) * 0.3;
    let value = |i| match shape.len() {
        1 => 1.0,
        _ => value(i),
    };
    let bytes = (0..n).flat_map(|i| f32::to_le_bytes(value(i))).collect();
    Tensor {
        name: name.into(),
        dtype: "F32",
        shape: shape.into(),
        bytes,
    }
}

fn checkpoint() -> TempDir {
    let dir = TempDir::new();
    // multiple_of 32: 2/3 of 4 x 32, rounded up.
    let ffn = 96;
    let mut tensors = vec![
        tensor("tok_embeddings.weight", &[VOCAB, DIM]),
        tensor("norm.weight", &[DIM]),
        tensor("output.weight", &[VOCAB, DIM]),
    ];
    for (name, shape) in [
        ("attention.wq", vec![DIM, DIM]),
        ("attention.wk", vec![DIM, DIM]),
        ("attention.wv", vec![DIM, DIM]),
        ("attention.wo", vec![DIM, DIM]),
        ("feed_forward.w1", vec![ffn, DIM]),
        ("feed_forward.w2", vec![DIM, ffn]),
        ("feed_forward.w3", vec![ffn, DIM]),
        ("attention_norm", vec![DIM]),
        ("ffn_norm", vec![DIM]),
    ] {
        tensors.push(tensor(&format!("layers.0.{name}.weight"), &shape));
    }
    dir.file("consolidated.00.pth", pth(&tensors));
    let params = format!(
        r#"{{"dim": {DIM}, "n_layers": 1, "n_heads": 2, "multiple_of": 32, "norm_eps": 1e-5,
            "rope_theta": 500000.0, "vocab_size": {VOCAB}}}"#
    );
    dir.file("params.json", params);
    let tokenizer = Path::new("tests/data/tokenizers/llama3.model");
    dir.file("tokenizer.model", std::fs::read(tokenizer).unwrap());
    dir
}

#[test]
fn it_builds_and_generates() {
    let dir = checkpoint();
    let model = Model::open(dir.path(), None, &build_options()).unwrap();
    let info = model.info();
    assert_eq!((info.bos_id, info.eos_id, info.pad_id), (420, 421, 424));
    assert_eq!(info.n_eos, 3);
    assert_eq!(info.eos_ids[..4], [421, 428, 429, 0]);
    assert_eq!(info.chat_format, LLAMA_CHAT_LLAMA3);

    // A text's special tokens are words unless they are asked for.
    let text = "<|begin_of_text|>hi<|eot_id|>";
    let words = model.encode_text(text, 0);
    assert!(words.iter().all(|&id| id < 420), "{words:?}");
    let parsed = model.encode_text(text, LLAMA_ENC_SPECIAL);
    assert_eq!((parsed[0], parsed[parsed.len() - 1]), (420, 429));
    let both = LLAMA_ENC_SPECIAL | LLAMA_ENC_BOS | LLAMA_ENC_EOS;
    assert_eq!(
        model.encode_text(text, both),
        [&parsed[..], &[421]].concat()
    );
    assert_eq!(model.encode_text("hi", both)[0], 420);
    assert_eq!(model.decode(&parsed), "hi");

    // text_completion begins with BOS; tokens and texts fit each other.
    let mut options = greedy(24);
    options.flags |= LLAMA_GEN_ECHO | LLAMA_GEN_IGNORE_EOS;
    let one = &model.text_completion(&["hi"], &options).unwrap()[0];
    let prompt = model.encode_text("hi", LLAMA_ENC_BOS);
    assert_eq!(one.tokens[..prompt.len()], prompt);
    assert_eq!(one.tokens.len(), prompt.len() + 24);
    assert_eq!(one.text, model.decode(&one.tokens));
    assert!(one.text.starts_with("hi"), "{}", one.text);
    options.flags |= LLAMA_GEN_SPECIAL;
    let shown = &model.text_completion(&["hi"], &options).unwrap()[0];
    assert_eq!(shown.tokens, one.tokens);
    assert!(
        shown.text.starts_with("<|begin_of_text|>hi"),
        "{}",
        shown.text
    );
}

#[test]
fn any_of_the_eos_tokens_ends_a_sequence() {
    let dir = checkpoint();
    let model = Model::open(dir.path(), None, &build_options()).unwrap();
    let mut options = greedy(200);
    options.temperature = 2.0;
    options.top_p = 1.0;
    let mut met = std::collections::BTreeSet::new();
    for seed in 1..400 {
        options.seed = seed;
        options.flags = LLAMA_GEN_IGNORE_EOS;
        let whole = model.one(&[420, 5], &options);
        let Some(end) = whole
            .tokens
            .iter()
            .position(|id| [421, 428, 429].contains(id))
        else {
            continue;
        };
        options.flags = LLAMA_GEN_SPECIAL;
        let ended = model.one(&[420, 5], &options);
        assert_eq!(ended.tokens, whole.tokens[..end]);
        assert_eq!(ended.finish, LLAMA_FINISH_STOP);
        met.insert(whole.tokens[end]);
        if met.len() == 3 {
            return;
        }
    }
    panic!("only {met:?} came up");
}

#[test]
fn a_dialog_has_llama_3s_format() {
    let dir = checkpoint();
    let model = Model::open(dir.path(), None, &build_options()).unwrap();
    let tokens = model.encode_dialog(&[("user", "hi<|eot_id|>")]).unwrap();
    let written = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n";
    let written = model.encode_text(written, LLAMA_ENC_SPECIAL);
    assert_eq!(tokens[..written.len()], written);
    // The template's end of turn is one, the message's is words.
    assert_eq!(tokens.iter().filter(|&&id| id == 429).count(), 1);
}
