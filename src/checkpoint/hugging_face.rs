//! Hugging Face's checkpoints: `config.json` (transformers 4 and 5) and safetensors.

use super::files::Files;
use super::hf_config;
use super::keys::Keys;
use super::stored::{ChatTemplate, Checkpoint, Cut, StoredPart, TokenizerSource, Within};
use crate::backend::RowOrder;
use crate::file::read_small;
use crate::format::{pth, safetensors};
use crate::model::Config;
use crate::model::matrices::{Norm, Part};
use crate::{Cancel, Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The configuration's file.
pub const CONFIG: &str = "config.json";

/// The largest size of a template; those of real models have a few KiB.
const MAX_TEMPLATE: u64 = 1 << 20;

/// Where a template for dialogs with tools may be, beside `chat_template.jinja`.
pub const TOOL_USE: &str = "additional_chat_templates/tool_use.jinja";

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

    /// The EOS ids of `generation_config.json` are added.
    fn config(&self, _: usize) -> Result<Config> {
        let generation = self.beside("generation_config.json");
        let generation = generation.map(|path| Keys::read(&path)).transpose()?;
        hf_config::config(&self.keys, generation.as_ref())
    }

    fn trained_context(&self) -> Option<u64> {
        self.keys.get("max_position_embeddings")?.as_u64()
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        TokenizerSource::Directory(&self.dir)
    }

    /// The template is `chat_template.jinja`, beside which there may be one for tools; if there is
    /// no such file, the key `chat_template` of `tokenizer_config.json` or of `chat_template.json`.
    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let read = |path: PathBuf| {
            let text = read_small(&path, "a chat template", MAX_TEMPLATE)?;
            String::from_utf8(text).map_err(|_| Error::format(&path, "not UTF-8"))
        };
        if let Some(path) = self.beside("chat_template.jinja") {
            let default = read(path)?;
            let tool_use = self.beside(TOOL_USE).map(read).transpose()?;
            return Ok(Some(ChatTemplate { default, tool_use }));
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
        StoredPart {
            name: part_name(part, layer),
            order: part_order(config, part),
            // This form does not cut tensors, so the value does not matter.
            cut: Cut::Rows,
            within: fused(config, part, layer),
        }
    }

    fn norm(&self, config: &Config, norm: Norm, layer: Option<usize>) -> String {
        let [q, k] = config.family.head_norms.unwrap_or_default();
        let name = match norm {
            Norm::Attention => "input_layernorm",
            Norm::Ffn => "post_attention_layernorm",
            Norm::Last => "model.norm",
            Norm::Q => q,
            Norm::K => k,
        };
        full_name(name, layer) + ".weight"
    }

    fn norm_order(&self, config: &Config, norm: Norm) -> RowOrder {
        match norm {
            Norm::Q | Norm::K => rotated_order(config),
            Norm::Attention | Norm::Ffn | Norm::Last => RowOrder::AsStored,
        }
    }
}

/// How a part's rows are put into our order.
pub(super) fn part_order(config: &Config, part: Part) -> RowOrder {
    match part.is_rotated() {
        true => rotated_order(config),
        false => RowOrder::AsStored,
    }
}

/// How the rows of q and k are put into our order.
fn rotated_order(config: &Config) -> RowOrder {
    match config.family.interleaved {
        true => RowOrder::AsStored,
        false => RowOrder::HalvesToPairs {
            head_dim: config.shape.head_dim,
            rotated: config.rotary_dim,
        },
    }
}

/// The place of a part in the module that holds several, if the family has such modules.
pub(super) fn fused(config: &Config, part: Part, layer: Option<usize>) -> Option<Within> {
    let (name, parts): (&str, &[Part]) = match part {
        _ if !config.family.fused => return None,
        Part::Q | Part::K | Part::V => ("self_attn.qkv_proj", &[Part::Q, Part::K, Part::V]),
        Part::Gate | Part::Up => ("mlp.gate_up_proj", &[Part::Gate, Part::Up]),
        _ => return None,
    };
    let name = full_name(name, layer);
    Some(Within::new(name, parts, part, &config.shape))
}

/// The name of a part's module.
pub(super) fn part_name(part: Part, layer: Option<usize>) -> String {
    full_name(module_name(part), layer)
}

/// The name of a part's module within its layer.
fn module_name(part: Part) -> &'static str {
    match part {
        Part::Embedding => "model.embed_tokens",
        Part::Q => "self_attn.q_proj",
        Part::K => "self_attn.k_proj",
        Part::V => "self_attn.v_proj",
        Part::O => "self_attn.o_proj",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::Head => "lm_head",
    }
}

fn full_name(name: &str, layer: Option<usize>) -> String {
    match layer {
        None => name.into(),
        Some(n) => format!("model.layers.{n}.{name}"),
    }
}

/// Opens the weights. It tries the same files in the same order as transformers:
/// `model.safetensors`, the shards that `model.safetensors.index.json` names, `pytorch_model.bin`,
/// the shards of its index.
pub fn open(dir: &Path, cancel: Option<&Cancel>) -> Result<Files> {
    let path = |name: &str| {
        let path = dir.join(name);
        path.symlink_metadata().is_ok().then_some(path)
    };
    let files = if let Some(single) = path("model.safetensors") {
        vec![safetensors::open(&single, cancel)?]
    } else if let Some(index) = path("model.safetensors.index.json") {
        safetensors::open_sharded(&index, cancel)?
    } else if let Some(single) = path("pytorch_model.bin") {
        vec![pth::open(&single, cancel)?]
    } else if let Some(index) = path("pytorch_model.bin.index.json") {
        pth::open_sharded(&index, cancel)?
    } else {
        let detail =
            "no such file, and no model.safetensors.index.json or pytorch_model.bin beside it";
        return Err(Error::Io {
            path: dir.join("model.safetensors"),
            detail: detail.into(),
        });
    };
    Ok(Files {
        path: dir.into(),
        files,
        cut: false,
    })
}

/// Reads `chat_template`: a string, or a list of `{name, template}` with `default` and `tool_use`.
fn template(keys: &Keys) -> Result<Option<ChatTemplate>> {
    let key = "chat_template";
    let expected = "a string, or a list of objects with a `name` and a `template`, or an object";
    let pair = |entry: &Value| {
        let text = |key| Some(entry.get(key)?.as_str()?.to_owned());
        Some((text("name")?, text("template")?))
    };
    let named: Option<Vec<(String, String)>> = match keys.get(key) {
        None => return Ok(None),
        Some(Value::String(text)) => {
            return Ok(Some(ChatTemplate {
                default: text.clone(),
                tool_use: None,
            }));
        }
        Some(Value::Array(list)) => list.iter().map(pair).collect(),
        Some(Value::Object(map)) => {
            let pair =
                |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.into()));
            map.iter().map(pair).collect()
        }
        Some(_) => None,
    };
    let Some(named) = named else {
        return Err(keys.wrong(key, expected));
    };
    let (mut default, mut tool_use) = (None, None);
    for (name, text) in named {
        match &*name {
            "default" => default = Some(text),
            "tool_use" => tool_use = Some(text),
            _ => {}
        }
    }
    match default {
        Some(default) => Ok(Some(ChatTemplate { default, tool_use })),
        None => Err(keys.wrong(key, "a template of the name `default` among them")),
    }
}
