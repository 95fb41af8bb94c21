//! Hugging Face's checkpoints: `config.json` (transformers 4 and 5) and safetensors.
//!
//! Sizes must be given. This is what may be absent, and what it then means (LlamaConfig):
//!
//! | key | where absent |
//! |---|---|
//! | `num_key_value_heads` | as many as query heads |
//! | `head_dim` | width / heads |
//! | `rope_theta` | 10000 |
//! | `rope_scaling`, `rope_parameters` | no stretching |
//! | `attention_bias`, `mlp_bias`, `tie_word_embeddings` | false |
//! | `hidden_act` | silu |

use super::files::Files;
use super::keys::Keys;
use super::sizes::*;
use super::stored::{ChatTemplate, Checkpoint, Cut, StoredPart, TokenizerSource};
use crate::backend::{RowOrder, Shape};
use crate::file::read_small;
use crate::format::safetensors;
use crate::model::Config;
use crate::model::config::RopeScaling;
use crate::model::matrices::{Norm, Part};
use crate::{Cancel, Error, Result, Token};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The configuration's file.
pub const CONFIG: &str = "config.json";

/// Templates of real models have a few KiB.
const MAX_TEMPLATE: u64 = 1 << 20;

/// A checkpoint in Hugging Face's form.
#[derive(Debug)]
pub struct HuggingFace {
    dir: PathBuf,
    config_path: PathBuf,
    keys: Keys,
}

impl HuggingFace {
    pub(super) fn new(dir: &Path, keys: Keys) -> HuggingFace {
        HuggingFace {
            dir: dir.into(),
            config_path: dir.join(CONFIG),
            keys,
        }
    }

    /// The path of a file, if the directory has it.
    fn beside(&self, name: &str) -> Option<PathBuf> {
        let path = self.dir.join(name);
        path.symlink_metadata().is_ok().then_some(path)
    }
}

impl Checkpoint for HuggingFace {
    fn form(&self) -> &'static str {
        "HuggingFace"
    }

    fn config_path(&self) -> &Path {
        &self.config_path
    }

    /// `generation_config.json` adds its `eos_token_id`.
    fn config(&self, _: usize) -> Result<Config> {
        let generation = self.beside("generation_config.json");
        let generation = generation.map(|path| Keys::read(&path)).transpose()?;
        config(&self.keys, generation.as_ref())
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        TokenizerSource::Directory(&self.dir)
    }

    /// `chat_template.jinja`, else `chat_template` of `tokenizer_config.json` or of
    /// `chat_template.json`.
    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        if let Some(path) = self.beside("chat_template.jinja") {
            let text = read_small(&path, "a chat template", MAX_TEMPLATE)?;
            return match String::from_utf8(text) {
                Ok(default) => Ok(Some(ChatTemplate {
                    default,
                    tool_use: None,
                })),
                Err(_) => Err(Error::format(&path, "not UTF-8")),
            };
        }
        for name in ["tokenizer_config.json", "chat_template.json"] {
            let Some(path) = self.beside(name) else {
                continue;
            };
            if let Some(template) = template(&Keys::read(&path)?)? {
                return Ok(Some(template));
            }
        }
        Ok(None)
    }

    fn open(&self, cancel: Option<&Cancel>) -> Result<Files> {
        open(&self.dir, cancel)
    }

    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart {
        let name = match part {
            Part::Embedding => "model.embed_tokens",
            Part::Q => "self_attn.q_proj",
            Part::K => "self_attn.k_proj",
            Part::V => "self_attn.v_proj",
            Part::O => "self_attn.o_proj",
            Part::Gate => "mlp.gate_proj",
            Part::Up => "mlp.up_proj",
            Part::Down => "mlp.down_proj",
            Part::Head => "lm_head",
        };
        StoredPart {
            name: full_name(name, layer),
            order: match part.is_rotated() {
                true => RowOrder::HalvesToPairs {
                    head_dim: config.shape.head_dim,
                },
                false => RowOrder::AsStored,
            },
            // Files do not cut tensors here.
            cut: Cut::Rows,
        }
    }

    fn norm(&self, norm: Norm, layer: Option<usize>) -> String {
        let name = match norm {
            Norm::Attention => "input_layernorm",
            Norm::Ffn => "post_attention_layernorm",
            Norm::Last => "model.norm",
        };
        full_name(name, layer) + ".weight"
    }
}

fn full_name(name: &str, layer: Option<usize>) -> String {
    match layer {
        None => name.into(),
        Some(n) => format!("model.layers.{n}.{name}"),
    }
}

/// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names. Where there
/// are both, the single file, as in transformers.
pub fn open(dir: &Path, cancel: Option<&Cancel>) -> Result<Files> {
    let single = dir.join("model.safetensors");
    let index = dir.join("model.safetensors.index.json");
    let files = if single.symlink_metadata().is_ok() {
        vec![safetensors::open(&single, cancel)?]
    } else if index.symlink_metadata().is_ok() {
        safetensors::open_sharded(&index, cancel)?
    } else {
        let detail = "no such file, and no model.safetensors.index.json beside it".into();
        return Err(Error::Io {
            path: single,
            detail,
        });
    };
    Ok(Files {
        path: dir.into(),
        files,
        cut: false,
    })
}

/// `chat_template`: a string, or a list of `{name, template}` with `default` and `tool_use`.
fn template(keys: &Keys) -> Result<Option<ChatTemplate>> {
    let key = "chat_template";
    let expected = "a string, or a list of objects with a `name` and a `template`";
    let named = match keys.get(key) {
        None => return Ok(None),
        Some(Value::String(text)) => {
            return Ok(Some(ChatTemplate {
                default: text.clone(),
                tool_use: None,
            }));
        }
        Some(Value::Array(list)) => list,
        Some(_) => return Err(keys.wrong(key, expected)),
    };
    let (mut default, mut tool_use) = (None, None);
    for entry in named {
        let text = |key| entry.get(key).and_then(Value::as_str);
        match (text("name"), text("template")) {
            (Some("default"), Some(text)) => default = Some(text.to_owned()),
            (Some("tool_use"), Some(text)) => tool_use = Some(text.to_owned()),
            (Some(_), Some(_)) => {}
            _ => return Err(keys.wrong(key, expected)),
        }
    }
    match default {
        Some(default) => Ok(Some(ChatTemplate { default, tool_use })),
        None => Err(keys.wrong(key, "a template of the name `default` among them")),
    }
}

/// transformers' `LlamaConfig`.
fn config(keys: &Keys, generation: Option<&Keys>) -> Result<Config> {
    if keys.optional_name("model_type", &["llama"])?.is_none() {
        return Err(keys.wrong("model_type", "llama"));
    }
    if let Some(architectures) = keys.get("architectures")
        && *architectures != serde_json::json!(["LlamaForCausalLM"])
    {
        return Err(keys.wrong("architectures", "[\"LlamaForCausalLM\"]"));
    }
    if keys.get("compression_config").is_some() {
        let expected = "no such key: compressed checkpoints are not supported";
        return Err(keys.wrong("compression_config", expected));
    }
    if keys.get("sliding_window").is_some() {
        return Err(keys.wrong(
            "sliding_window",
            "no such key: every token sees all before it",
        ));
    }
    keys.optional_name("hidden_act", &["silu"])?;
    for key in ["dtype", "torch_dtype"] {
        keys.optional_name(key, &["float32", "float16", "bfloat16"])?;
    }
    if keys.flag("mlp_bias")? {
        return Err(keys.wrong("mlp_bias", "false"));
    }
    let dim = keys.size("hidden_size", MAX_WIDTH)?;
    let n_heads = keys.size("num_attention_heads", MAX_WIDTH)?;
    let explicit = keys.optional_size("head_dim", MAX_WIDTH)?;
    let shape = Shape {
        dim,
        n_layers: keys.size("num_hidden_layers", MAX_LAYERS)?,
        n_heads,
        n_kv_heads: n_kv_heads(keys, "num_key_value_heads", n_heads)?,
        head_dim: head_dim(keys, explicit, dim, ("num_attention_heads", n_heads))?,
        ffn_dim: keys.size("intermediate_size", MAX_WIDTH)?,
        vocab_size: keys.size("vocab_size", MAX_VOCAB)?,
        norm_eps: norm_eps(keys, "rms_norm_eps", None)?,
    };
    let mut eos_ids = Vec::new();
    for keys in [Some(keys), generation].into_iter().flatten() {
        add_eos(keys, shape.vocab_size, &mut eos_ids)?;
    }
    let (rope_theta, rope_scaling) = rope(keys)?;
    Ok(Config {
        shape,
        rope_theta,
        rope_scaling,
        attention_bias: keys.flag("attention_bias")?,
        tied_embeddings: keys.flag("tie_word_embeddings")?,
        eos_ids,
    })
}

/// transformers 5 has everything in `rope_parameters`; transformers 4 has `rope_theta` beside
/// `rope_scaling`.
fn rope(keys: &Keys) -> Result<(f64, RopeScaling)> {
    let outer = theta(keys)?;
    let (new, old) = (
        keys.object("rope_parameters")?,
        keys.object("rope_scaling")?,
    );
    if new.is_some() && old.is_some() && keys.get("rope_parameters") != keys.get("rope_scaling") {
        return Err(keys.wrong("rope_scaling", "no other value than rope_parameters"));
    }
    let Some(rope) = new.or(old) else {
        return Ok((outer.unwrap_or(DEFAULT_THETA), RopeScaling::None));
    };
    let inner = theta(&rope)?;
    if let (Some(outer), Some(inner)) = (outer, inner)
        && outer != inner
    {
        return Err(keys.wrong(
            "rope_theta",
            format!("{inner}, as among the rope parameters"),
        ));
    }
    for keys in [keys, &rope] {
        let whole = "1 (all of every head is rotated)";
        keys.optional_number("partial_rotary_factor", whole, |x| x == 1.0)?;
    }

    let known = ["default", "linear", "llama3"];
    let name = rope.optional_name("rope_type", &known)?;
    let older_name = rope.optional_name("type", &known)?;
    if name.is_some() && older_name.is_some() && name != older_name {
        return Err(rope.wrong("type", "no other value than rope_type"));
    }
    let required = |key| factor(&rope, key)?.ok_or_else(|| rope.wrong(key, "a number"));
    let scaling = match name.or(older_name) {
        Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear {
            factor: required("factor")?,
        },
        Some(_) => {
            let low = rope.number("low_freq_factor", "a number from 1e-30 to 1e29", |x| {
                (1e-30..=1e29).contains(&x)
            })?;
            let expected = format!("a number over low_freq_factor, {low}, up to 1e30");
            let key = "original_max_position_embeddings";
            RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor: low,
                high_freq_factor: rope
                    .number("high_freq_factor", &expected, |x| x > low && x <= 1e30)?,
                original_context: rope.size(key, u32::MAX as usize)? as f64,
            }
        }
        // Only if theta is the only key can the type be nothing but the default.
        None if rope.names().all(|key| key == "rope_theta") => RopeScaling::None,
        None => return Err(rope.wrong("rope_type", format!("one of {}", known.join(", ")))),
    };
    Ok((inner.or(outer).unwrap_or(DEFAULT_THETA), scaling))
}

/// One id or a list of them.
fn add_eos(keys: &Keys, vocab_size: usize, ids: &mut Vec<Token>) -> Result<()> {
    let key = "eos_token_id";
    let list = match keys.get(key) {
        None => return Ok(()),
        Some(Value::Array(list)) => list.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    for value in list {
        match value.as_u64().filter(|&id| id < vocab_size as u64) {
            Some(id) if ids.contains(&(id as Token)) => {}
            Some(id) => ids.push(id as Token),
            None => {
                let expected = format!("an id, or a list of ids, from 0 to {}", vocab_size - 1);
                return Err(keys.wrong(key, expected));
            }
        }
    }
    Ok(())
}
