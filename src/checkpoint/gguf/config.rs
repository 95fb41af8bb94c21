//! The metadata of a GGUF file -> [`Config`].
//!
//! Keys begin with the architecture's name, as in `llama.block_count`. The table lists the keys
//! that may be absent and what their absence means (llama.cpp's `llama-hparams`):
//!
//! | key | where absent |
//! |---|---|
//! | `attention.head_count_kv` | as many as query heads |
//! | `attention.key_length`, `attention.value_length` | width / heads |
//! | `attention.sliding_window` | none; 0 means none too |
//! | `attention.scale` | 1 / sqrt(head width); 0 means that too |
//! | `embedding_scale`, `residual_scale`, `logit_scale` | 1 |
//! | `rope.dimension_count` | all of a head |
//! | `rope.freq_base` | 10000 |
//! | `rope.scaling.type`, `rope.scale_linear`, tensors of divisors | no stretching |
//! | `vocab_size` | as many as the tokenizer has tokens |
//! | tensor `output` | the embedding is the head |
//! | tensors of biases | none, unless the family always has them |

use super::keys::Hyper;
use super::rope;
use crate::backend::Shape;
use crate::checkpoint::multipliers::Multipliers;
use crate::checkpoint::sizes::{MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, UNROTATED_INTERVAL, every};
use crate::format::gguf::Set;
use crate::model::Config;
use crate::model::config::Biases;
use crate::model::family::{Bias, Family, Window};
use crate::{Error, Result};

/// Reads the configuration. `tokenizer_vocab` is the vocabulary's size if the file does not say it.
pub(super) fn config(
    keys: &Hyper<'_>,
    set: &Set,
    family: &'static Family,
    tokenizer_vocab: usize,
) -> Result<Config> {
    keys.check_only_what_we_compute()?;
    let multipliers = multipliers(keys, family)?;
    let dim = keys.required("embedding_length", MAX_WIDTH)?;
    let n_heads = keys.required("attention.head_count", MAX_WIDTH)?;
    let n_kv_heads = keys
        .size("attention.head_count_kv", MAX_WIDTH)?
        .unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        let expected = format!("a divisor of the number of heads, {n_heads}");
        return Err(keys.wrong("attention.head_count_kv", &expected, n_kv_heads));
    }
    let head_dim = match keys.size("attention.key_length", MAX_WIDTH)? {
        Some(n) => n,
        None if dim.is_multiple_of(n_heads) => dim / n_heads,
        None => {
            let expected = format!("a divisor of the width, {dim}");
            return Err(keys.wrong("attention.head_count", &expected, n_heads));
        }
    };
    let values = "attention.value_length";
    if let Some(n) = keys.size(values, MAX_WIDTH)?.filter(|&n| n != head_dim) {
        return Err(keys.wrong(values, &format!("{head_dim}, as keys have"), n));
    }
    if !head_dim.is_multiple_of(2) || n_heads * head_dim > MAX_WIDTH {
        let expected = format!("an even width of together at most {MAX_WIDTH}");
        return Err(keys.wrong("attention.key_length", &expected, head_dim));
    }
    let vocab_size = match keys.size("vocab_size", MAX_VOCAB)? {
        Some(n) => n,
        None if tokenizer_vocab > 0 => tokenizer_vocab,
        None => return Err(keys.wrong("vocab_size", "a number, or a tokenizer", "missing")),
    };
    let eps = "attention.layer_norm_rms_epsilon";
    let norm_eps = keys.number(eps)?.map(|x| x as f32);
    let Some(norm_eps) = norm_eps.filter(|&x| x > 0.0 && x < 1.0) else {
        let got = norm_eps.map_or("missing".into(), |x| x.to_string());
        return Err(keys.wrong(eps, "a number over 0 and under 1", got));
    };
    let norm_eps = multipliers.norm_eps(norm_eps);
    if !norm_eps.is_normal() {
        let expected = "a number that is one when it is divided by the square of embedding_scale";
        return Err(keys.wrong(eps, expected, norm_eps));
    }
    let rotary_dim = rope::rotary_dim(keys, family, head_dim)?;
    let (rope_theta, rope_scaling) = rope::read(keys, set, rotary_dim)?;
    // A bias that the family always has is required later, as every tensor is.
    let has_bias = |name: &str, bias| {
        bias == Bias::Always || set.tensor(&format!("blk.0.{name}.bias")).is_some()
    };
    let [qkv, o, mlp] = family.biases;
    let shape = Shape {
        dim,
        n_layers: keys.required("block_count", MAX_LAYERS)?,
        n_heads,
        n_kv_heads,
        head_dim,
        ffn_dim: keys.required("feed_forward_length", MAX_WIDTH)?,
        vocab_size,
        norm_eps,
    };
    Ok(multipliers.put_into(Config {
        rope_theta,
        rope_scaling,
        rotary_dim,
        windows: windows(keys, family, shape.n_layers)?,
        // No key says it; llama.cpp knows the interval too.
        unrotated: match family.unrotated {
            true => every(UNROTATED_INTERVAL, shape.n_layers),
            false => Vec::new(),
        },
        biases: Biases {
            qkv: has_bias("attn_q", qkv),
            o: has_bias("attn_output", o),
            mlp: has_bias("ffn_down", mlp),
        },
        tied_embeddings: set.tensor("output.weight").is_none(),
        // The tokenizer knows the EOS ids.
        ..Config::plain(family, shape)
    }))
}

/// Granite's multipliers. In another family they would mean a computation that we do not have, so
/// they must be neutral there.
fn multipliers(keys: &Hyper<'_>, family: &Family) -> Result<Multipliers> {
    let number = |name| {
        let (expected, takes): (&str, fn(f64) -> bool) = match family.multipliers {
            true => ("a number from 1e-6 to 1e6", |x| {
                Multipliers::RANGE.contains(&x)
            }),
            false => ("1: another value is not supported", |x| x == 1.0),
        };
        Ok::<f64, Error>(keys.accepted(name, expected, takes)?.unwrap_or(1.0))
    };
    let scale = "attention.scale";
    let attention = match family.multipliers {
        true => keys.accepted(scale, "0, or a number from 1e-6 to 1e6", |x| {
            x == 0.0 || Multipliers::RANGE.contains(&x)
        })?,
        false => keys.accepted(scale, "0: another value is not supported", |x| x == 0.0)?,
    };
    Ok(Multipliers {
        embedding: number("embedding_scale")?,
        residual: number("residual_scale")?,
        attention: attention.filter(|&scale| scale != 0.0),
        logits: number("logit_scale")?,
    })
}

/// [`Config::windows`]. All layers have the same window; a family whose layers differ is refused,
/// because the file cannot say which of them have it.
fn windows(keys: &Hyper<'_>, family: &Family, n_layers: usize) -> Result<Vec<Option<usize>>> {
    let name = "attention.sliding_window";
    let Some(window) = keys.file.u64(&keys.key(name))?.filter(|&n| n != 0) else {
        return Ok(Vec::new());
    };
    if matches!(family.window, Window::Layers | Window::Unrotated) {
        let expected = "0: a window of some layers is not supported";
        return Err(keys.wrong(name, expected, window));
    }
    // A window that is longer than any sequence is no window.
    let window = u32::try_from(window).unwrap_or(u32::MAX) as usize;
    Ok(vec![Some(window); n_layers])
}
