//! `config.json` of transformers 4 and 5 -> [`Config`], by the table of [`crate::model::family`].
//!
//! Sizes must be given. The table lists the keys that may be absent, and what their absence means:
//!
//! | key | where absent |
//! |---|---|
//! | `num_key_value_heads`, `head_dim`, `sliding_window` | the family's default |
//! | `rope_theta`, `tie_word_embeddings`, `attention_bias` | the family's default |
//! | `rope_scaling`, `rope_parameters` | no stretching |
//! | `original_max_position_embeddings` | the family's default, or what is among the keys of RoPE |
//! | `attention_out_bias`, `mlp_bias`, `use_bias`, `use_sliding_window` | false |
//! | `no_rope_layers` | every fourth layer does not rotate, or as `no_rope_layer_interval` says |
//! | `embedding_multiplier`, `residual_multiplier`, `attention_multiplier`, `logits_scaling` | 1 |
//! | `hidden_act` | silu |
//!
//! If `num_key_value_heads` or `head_dim` is `null`, it follows from the other sizes. If
//! `sliding_window` is `null`, there is no window.

use super::hf_rope;
use super::keys::Keys;
use super::multipliers::Multipliers;
use super::sizes::*;
use crate::backend::Shape;
use crate::model::Config;
use crate::model::config::Biases;
use crate::model::family::{Bias, Family, Window};
use crate::{Result, Token, reserve};
use serde_json::Value;
use std::collections::HashSet;

/// Reads the configuration; the EOS ids of `generation` are added.
pub(super) fn config(keys: &Keys, generation: Option<&Keys>) -> Result<Config> {
    let family = keys.get("model_type").and_then(Value::as_str);
    let Some(family) = family.and_then(Family::named) else {
        return Err(keys.wrong("model_type", format!("one of {}", Family::names())));
    };
    if let Some(architectures) = keys.get("architectures")
        && *architectures != serde_json::json!([family.architecture])
    {
        let expected = format!("[\"{}\"]", family.architecture);
        return Err(keys.wrong("architectures", expected));
    }
    check_only_what_we_compute(keys)?;
    for key in ["dtype", "torch_dtype"] {
        keys.optional_name(key, &["float32", "float16", "bfloat16"])?;
    }
    let multipliers = multipliers(keys, family)?;
    let shape = shape(keys, family, &multipliers)?;
    let mut eos = Eos::default();
    for keys in [Some(keys), generation].into_iter().flatten() {
        eos.add(keys, shape.vocab_size)?;
    }
    let rope = hf_rope::read(keys, family, shape.head_dim)?;
    let unrotated = unrotated(keys, family, shape.n_layers)?;
    Ok(multipliers.put_into(Config {
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        rotary_dim: rope.rotary_dim,
        biases: biases(keys, family)?,
        windows: windows(keys, family, shape.n_layers, &unrotated)?,
        q_scale: rope.q_scale,
        unrotated,
        tied_embeddings: keys.flag_or("tie_word_embeddings", family.absent.tied)?,
        eos_ids: eos.ids,
        ..Config::plain(family, shape)
    }))
}

/// Refuses what transformers would compute in another way, whatever the family is.
fn check_only_what_we_compute(keys: &Keys) -> Result<()> {
    // Two names of one function.
    keys.optional_name("hidden_act", &["silu", "swish"])?;
    // The file that transformers reads before any other.
    keys.optional_name("transformers_weights", &["model.safetensors"])?;
    if !keys.flag_or("is_causal", true)? {
        return Err(keys.wrong("is_causal", "true: a token sees only those before it"));
    }
    let key = "per_layer_config";
    match keys.object(key)? {
        Some(layers) if layers.names().next().is_some() => {
            Err(keys.wrong(key, "no such key: all layers have the same sizes"))
        }
        _ => Ok(()),
    }
}

fn multipliers(keys: &Keys, family: &Family) -> Result<Multipliers> {
    if !family.multipliers {
        return Ok(Multipliers::NONE);
    }
    let number = |key| {
        let expected = "a number from 1e-6 to 1e6";
        let number = keys.optional_number(key, expected, |x| Multipliers::RANGE.contains(&x))?;
        Ok::<f64, crate::Error>(number.unwrap_or(1.0))
    };
    Ok(Multipliers {
        embedding: number("embedding_multiplier")?,
        residual: number("residual_multiplier")?,
        attention: Some(number("attention_multiplier")?),
        logits: number("logits_scaling")?,
    })
}

fn shape(keys: &Keys, family: &Family, multipliers: &Multipliers) -> Result<Shape> {
    let dim = keys.size("hidden_size", MAX_WIDTH)?;
    let n_heads = keys.size("num_attention_heads", MAX_WIDTH)?;
    let given = |key, default: Option<usize>| match keys.holds(key) {
        true => keys.optional_size(key, MAX_WIDTH),
        false => Ok(default),
    };
    let explicit = given("head_dim", family.absent.head_dim)?;
    let kv_heads = "num_key_value_heads";
    let n_kv_heads = given(kv_heads, family.absent.n_kv_heads)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n_kv_heads) {
        return Err(not_a_divisor(keys, kv_heads, n_heads));
    }
    let eps = "rms_norm_eps";
    let norm_eps = multipliers.norm_eps(norm_eps(keys, eps, None)?);
    if !norm_eps.is_normal() {
        let square = multipliers.embedding * multipliers.embedding;
        let expected = format!("a number that is one when it is divided by {square}");
        return Err(keys.wrong(eps, expected));
    }
    Ok(Shape {
        dim,
        n_layers: keys.size("num_hidden_layers", MAX_LAYERS)?,
        n_heads,
        n_kv_heads,
        head_dim: head_dim(keys, explicit, dim, ("num_attention_heads", n_heads))?,
        ffn_dim: keys.size("intermediate_size", MAX_WIDTH)?,
        vocab_size: keys.size("vocab_size", MAX_VOCAB)?,
        norm_eps,
    })
}

fn biases(keys: &Keys, family: &Family) -> Result<Biases> {
    let has = |bias| match bias {
        Bias::Never => Ok(false),
        Bias::Always => Ok(true),
        Bias::Key(key, absent) => keys.flag_or(key, absent),
    };
    let [qkv, o, mlp] = family.biases;
    Ok(Biases {
        qkv: has(qkv)?,
        o: has(o)?,
        mlp: has(mlp)?,
    })
}

/// [`Config::unrotated`].
fn unrotated(keys: &Keys, family: &Family, n_layers: usize) -> Result<Vec<bool>> {
    if !family.unrotated {
        return Ok(Vec::new());
    }
    let (key, interval) = ("no_rope_layers", "no_rope_layer_interval");
    let Some(listed) = keys.get(key) else {
        let interval = keys.optional_size(interval, MAX_LAYERS)?;
        return Ok(every(interval.unwrap_or(UNROTATED_INTERVAL), n_layers));
    };
    let rotates = |value: &Value| value.as_u64().filter(|&n| n < 2).map(|n| n == 0);
    let layers = listed.as_array().filter(|list| list.len() >= n_layers);
    let layers: Option<Vec<bool>> =
        layers.and_then(|list| list[..n_layers].iter().map(rotates).collect());
    layers.ok_or_else(|| keys.wrong(key, format!("a list of at least {n_layers} times 0 or 1")))
}

/// [`Config::windows`].
fn windows(
    keys: &Keys,
    family: &Family,
    n_layers: usize,
    unrotated: &[bool],
) -> Result<Vec<Option<usize>>> {
    let key = "sliding_window";
    if family.window == Window::None {
        return match keys.get(key) {
            Some(_) => Err(keys.wrong(key, "no such key: every token sees all before it")),
            None => Ok(Vec::new()),
        };
    }
    if family.window == Window::All {
        let window = window(keys, family)?;
        return Ok(window.map_or(Vec::new(), |window| vec![Some(window); n_layers]));
    }
    let (types, switch) = ("layer_types", "use_sliding_window");
    let listed = layer_types(keys, types, n_layers)?;
    let on = keys.flag(switch)?;
    let window = match on {
        true => window(keys, family)?,
        false => None,
    };
    let Some(window) = window else {
        let because = format!("as {types} has sliding_attention");
        return match listed {
            // Without a number transformers fails. Where the switch is off, it may compute with
            // the window all the same.
            Some(listed) if listed.contains(&true) && on => {
                Err(keys.wrong(key, format!("a number, {because}")))
            }
            Some(listed) if listed.contains(&true) => {
                Err(keys.wrong(switch, format!("true, {because}")))
            }
            _ => Ok(Vec::new()),
        };
    };
    let sees_window = match listed {
        Some(listed) => listed,
        None if family.window == Window::Unrotated => unrotated.to_vec(),
        None => {
            // 0 is a valid number of layers here.
            let first = match keys.get("max_window_layers").and_then(Value::as_u64) {
                Some(0) => 0,
                _ => keys
                    .optional_size("max_window_layers", u32::MAX as usize)?
                    .unwrap_or(family.absent.max_window_layers),
            };
            (0..n_layers).map(|n| n >= first).collect()
        }
    };
    let layer = |&windowed: &bool| windowed.then_some(window);
    Ok(sees_window.iter().map(layer).collect())
}

/// `sliding_window`; `None`: no window.
fn window(keys: &Keys, family: &Family) -> Result<Option<usize>> {
    let key = "sliding_window";
    match keys.holds(key) {
        true => keys.optional_size(key, u32::MAX as usize),
        false => Ok(family.absent.window),
    }
}

/// Whether each layer has a window, if the key says it.
fn layer_types(keys: &Keys, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>> {
    let Some(listed) = keys.get(key) else {
        return Ok(None);
    };
    let layer = |value: &Value| match value.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let layers = listed.as_array().filter(|list| list.len() == n_layers);
    let layers: Option<Vec<bool>> = layers.and_then(|list| list.iter().map(layer).collect());
    let expected = || format!("a list of {n_layers} times full_attention or sliding_attention");
    layers.map(Some).ok_or_else(|| keys.wrong(key, expected()))
}

/// The ids of `eos_token_id`, in the order of the files.
#[derive(Default)]
struct Eos {
    ids: Vec<Token>,
    known: HashSet<Token>,
}

impl Eos {
    /// Adds one id or a list of ids.
    fn add(&mut self, keys: &Keys, vocab_size: usize) -> Result<()> {
        let key = "eos_token_id";
        let list = match keys.get(key) {
            None => return Ok(()),
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        let (what, n) = ("end-of-sequence tokens", list.len());
        reserve::vec(what, &mut self.ids, n)?;
        let room = self.known.try_reserve(n);
        room.map_err(|_| reserve::refused::<Token>(what, self.known.len(), n))?;
        for value in list {
            let Some(id) = value.as_u64().filter(|&id| id < vocab_size as u64) else {
                let expected = format!("an id, or a list of ids, from 0 to {}", vocab_size - 1);
                return Err(keys.wrong(key, expected));
            };
            if self.known.insert(id as Token) {
                self.ids.push(id as Token);
            }
        }
        Ok(())
    }
}
