//! `params.json` (Meta) and `config.json` (Hugging Face, transformers 4 and 5) -> [`Config`].
//!
//! Sizes must be given. This is what may be absent, and what it then means:
//!
//! | key | where absent | source |
//! |---|---|---|
//! | `n_kv_heads`, `num_key_value_heads` | as many as query heads | ModelArgs, LlamaConfig |
//! | `head_dim` | width / heads | LlamaConfig |
//! | `vocab_size` (Meta) | -1: the tokenizer's | ModelArgs |
//! | `multiple_of` | 256 | ModelArgs |
//! | `norm_eps` | 1e-5 | ModelArgs |
//! | `ffn_dim_multiplier` | none | ModelArgs |
//! | `rope_theta` | 10000 | llama/model.py (Llama 2), LlamaConfig |
//! | `use_scaled_rope`, `rope_scaling` | no stretching | ModelArgs, LlamaConfig |
//! | `attention_bias`, `mlp_bias`, `tie_word_embeddings` | false | LlamaConfig |
//! | `hidden_act` | silu | LlamaConfig |

use super::keys::Keys;
use crate::backend::Shape;
use crate::format::Checkpoint;
use crate::quant::Quant;
use crate::{Cancel, Error, Result, Token};
use serde_json::Value;
use std::path::Path;

/// Which of the two checkpoint forms a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `params.json` and `consolidated.NN.pth`.
    Meta,
    /// `config.json` and safetensors.
    HuggingFace,
}

impl Form {
    /// The form of the checkpoint in `ckpt_dir`; Meta's if it has both.
    pub fn of(ckpt_dir: &Path) -> Result<Form> {
        // Not `exists()`: a link that leads nowhere is an error by itself.
        let holds = |name: &str| ckpt_dir.join(name).symlink_metadata().is_ok();
        if holds("params.json") {
            Ok(Form::Meta)
        } else if holds("config.json") {
            Ok(Form::HuggingFace)
        } else {
            let detail = "has neither params.json nor config.json".into();
            Err(Error::Io {
                path: ckpt_dir.into(),
                detail,
            })
        }
    }
}

/// How RoPE frequencies are stretched for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by the factor.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths over `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths under `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context the model was first trained with.
        original_context: f64,
    },
}

/// Everything about a model that its weights do not show.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which form the directory has.
    pub form: Form,
    /// Sizes. `vocab_size` is the tokenizer's if the file leaves it open (-1).
    pub shape: Shape,
    /// Base of the RoPE frequencies.
    pub rope_theta: f64,
    /// Stretching of the RoPE frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether q, k, v and o have biases.
    pub attention_bias: bool,
    /// Whether the embedding serves as the head.
    pub tied_embeddings: bool,
    /// The format in which the checkpoint's weights are already quantised (`quantization_config`,
    /// as [`super::quantised`] writes it).
    pub quantised: Option<Quant>,
    /// Tokens that end a sequence, beyond the tokenizer's EOS (Hugging Face only; may be empty).
    pub eos_ids: Vec<Token>,
}

/// Widths: Llama 3.1 405B's widest is 53,248. With these limits no product of sizes overflows an
/// u64, whatever a file says.
const MAX_WIDTH: usize = 1 << 22;
/// Rows of the embedding; Llama 3 has 128,256.
const MAX_VOCAB: usize = 1 << 24;
/// Layers; Llama 3.1 405B has 126.
const MAX_LAYERS: usize = 1 << 12;

const DEFAULT_THETA: f64 = 10_000.0;

impl Config {
    /// Reads `params.json` or `config.json` of `ckpt_dir` (`params.json` if there are both).
    /// `tokenizer_vocab` is used if `params.json` says `"vocab_size": -1`.
    ///
    /// Unknown keys are ignored, except those that mean another computation than Llama's.
    /// `generation_config.json` adds its `eos_token_id`.
    pub fn read(ckpt_dir: &Path, tokenizer_vocab: usize) -> Result<Config> {
        match Form::of(ckpt_dir)? {
            Form::Meta => meta(&Keys::read(&ckpt_dir.join("params.json"))?, tokenizer_vocab),
            Form::HuggingFace => {
                let generation = ckpt_dir.join("generation_config.json");
                let generation = match generation.symlink_metadata() {
                    Ok(_) => Some(Keys::read(&generation)?),
                    Err(_) => None,
                };
                hugging_face(
                    &Keys::read(&ckpt_dir.join("config.json"))?,
                    generation.as_ref(),
                )
            }
        }
    }
}

impl Config {
    /// The weights' files in `ckpt_dir`. `cancel` is looked at while their tables of contents are read.
    pub fn open(&self, ckpt_dir: &Path, cancel: Option<&Cancel>) -> Result<Checkpoint> {
        match (self.form, self.quantised) {
            (Form::Meta, None) => Checkpoint::open_meta(ckpt_dir, cancel),
            // Quantised checkpoints are safetensors even beside Meta's params.json.
            (Form::Meta, Some(_)) | (Form::HuggingFace, _) => {
                Checkpoint::open_hugging_face(ckpt_dir, cancel)
            }
        }
    }
}

/// Meta's `ModelArgs`.
fn meta(keys: &Keys, tokenizer_vocab: usize) -> Result<Config> {
    for key in ["quantization_args", "lora_args", "moe_args", "vision_model"] {
        if keys.get(key).is_some() {
            return Err(keys.wrong(key, "no such key: only dense text models are supported"));
        }
    }
    for key in ["vision_chunk_size", "vision_num_cross_attention_layers"] {
        if keys
            .get(key)
            .is_some_and(|value| value.as_i64() != Some(-1))
        {
            return Err(keys.wrong(key, "-1 (no vision)"));
        }
    }
    let vocab_size = match keys.get("vocab_size") {
        Some(value) if value.as_i64() != Some(-1) => keys.size("vocab_size", MAX_VOCAB)?,
        _ if (1..=MAX_VOCAB).contains(&tokenizer_vocab) => tokenizer_vocab,
        _ => {
            let expected = format!("a size, as the tokenizer's is {tokenizer_vocab}");
            return Err(keys.wrong("vocab_size", expected));
        }
    };
    let dim = keys.size("dim", MAX_WIDTH)?;
    let n_heads = keys.size("n_heads", MAX_WIDTH)?;
    let head_dim = head_dim(keys, None, dim, ("n_heads", n_heads))?;
    let shape = Shape {
        dim,
        n_layers: keys.size("n_layers", MAX_LAYERS)?,
        n_heads,
        n_kv_heads: n_kv_heads(keys, "n_kv_heads", n_heads)?,
        head_dim,
        ffn_dim: ffn_dim(keys, dim)?,
        vocab_size,
        norm_eps: norm_eps(keys, "norm_eps", Some(1e-5))?,
    };
    Ok(Config {
        form: Form::Meta,
        shape,
        rope_theta: theta(keys)?.unwrap_or(DEFAULT_THETA),
        rope_scaling: meta_scaling(keys)?,
        attention_bias: false,
        tied_embeddings: false,
        quantised: quantised(keys)?,
        eos_ids: Vec::new(),
    })
}

/// `FeedForward.__init__` in llama/model.py.
fn ffn_dim(keys: &Keys, dim: usize) -> Result<usize> {
    let multiple_of = keys.optional_size("multiple_of", MAX_WIDTH)?.unwrap_or(256);
    let expected = "a positive number that gives a feed-forward layer of some width";
    let multiplier = keys.optional_number("ffn_dim_multiplier", expected, |x| x > 0.0)?;
    // Python's int() truncates, as `as` does; both are positive.
    let mut width = (2.0 * (4 * dim) as f64 / 3.0) as usize;
    if let Some(multiplier) = multiplier {
        width = (multiplier * width as f64) as usize;
    }
    if width == 0 || width > MAX_WIDTH {
        return Err(keys.wrong("ffn_dim_multiplier", expected));
    }
    Ok(multiple_of * width.div_ceil(multiple_of))
}

/// Meta's code stretches by constants; newer ModelArgs have keys for two of them.
fn meta_scaling(keys: &Keys) -> Result<RopeScaling> {
    if !keys.flag("use_scaled_rope")? {
        for key in ["rope_scaling_factor", "rope_high_freq_factor"] {
            if keys.get(key).is_some() {
                return Err(keys.wrong(key, "no such key, as use_scaled_rope is not true"));
            }
        }
        return Ok(RopeScaling::None);
    }
    let high = "a number over 1, up to 1e30";
    Ok(RopeScaling::Llama3 {
        factor: factor(keys, "rope_scaling_factor")?.unwrap_or(8.0),
        low_freq_factor: 1.0,
        high_freq_factor: keys
            .optional_number("rope_high_freq_factor", high, |x| x > 1.0 && x <= 1e30)?
            .unwrap_or(4.0),
        original_context: 8192.0,
    })
}

/// transformers' `LlamaConfig`.
fn hugging_face(keys: &Keys, generation: Option<&Keys>) -> Result<Config> {
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
    let (rope_theta, rope_scaling) = hugging_face_rope(keys)?;
    Ok(Config {
        form: Form::HuggingFace,
        shape,
        rope_theta,
        rope_scaling,
        attention_bias: keys.flag("attention_bias")?,
        tied_embeddings: keys.flag("tie_word_embeddings")?,
        quantised: quantised(keys)?,
        eos_ids,
    })
}

/// Reads `{"quant_method": "llamabi", "format": "int4"}`; what other programs write is not
/// supported.
fn quantised(keys: &Keys) -> Result<Option<Quant>> {
    let Some(inner) = keys.object("quantization_config")? else {
        return Ok(None);
    };
    if inner.optional_name("quant_method", &["llamabi"])?.is_none() {
        return Err(inner.wrong("quant_method", "llamabi"));
    }
    // An option of another library here would change what codes mean.
    let known = ["quant_method", "format"];
    if let Some(key) = inner.names().find(|key| !known.contains(key)) {
        return Err(inner.wrong(key, format!("no such key beside {}", known.join(" and "))));
    }
    let names = Quant::ALL.map(|quant| quant.dtype().name());
    match inner.optional_name("format", &names)? {
        Some(name) => Ok(Quant::named(name)),
        None => Err(inner.wrong("format", format!("one of {}", names.join(", ")))),
    }
}

/// transformers 5 has everything in `rope_parameters`; transformers 4 has `rope_theta` beside
/// `rope_scaling`.
fn hugging_face_rope(keys: &Keys) -> Result<(f64, RopeScaling)> {
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

fn head_dim(
    keys: &Keys,
    explicit: Option<usize>,
    dim: usize,
    (heads_key, n_heads): (&str, usize),
) -> Result<usize> {
    let (key, head_dim) = match explicit {
        Some(head_dim) => ("head_dim", head_dim),
        None if dim.is_multiple_of(n_heads) => (heads_key, dim / n_heads),
        None => return Err(keys.wrong(heads_key, format!("a divisor of the width, {dim}"))),
    };
    if head_dim % 2 != 0 {
        let expected = format!("heads of an even width (RoPE rotates pairs), not {head_dim}");
        return Err(keys.wrong(key, expected));
    }
    if n_heads * head_dim > MAX_WIDTH {
        let expected = format!("{n_heads} heads of together at most {MAX_WIDTH}");
        return Err(keys.wrong(key, expected));
    }
    Ok(head_dim)
}

fn n_kv_heads(keys: &Keys, key: &str, n_heads: usize) -> Result<usize> {
    let n = keys.optional_size(key, MAX_WIDTH)?.unwrap_or(n_heads);
    if !n_heads.is_multiple_of(n) {
        return Err(keys.wrong(key, format!("a divisor of the number of heads, {n_heads}")));
    }
    Ok(n)
}

fn norm_eps(keys: &Keys, key: &str, default: Option<f64>) -> Result<f32> {
    let expected = "a number over 0 and under 1";
    // Checked as a float32, because 1e-60 would become 0.
    let eps = keys.optional_number(key, expected, |x| x as f32 > 0.0 && x < 1.0)?;
    let eps = eps.or(default).ok_or_else(|| keys.wrong(key, expected))?;
    Ok(eps as f32)
}

fn theta(keys: &Keys) -> Result<Option<f64>> {
    keys.optional_number("rope_theta", "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })
}

/// transformers and Meta only stretch, they never shrink.
fn factor(keys: &Keys, key: &str) -> Result<Option<f64>> {
    keys.optional_number(key, "a number from 1 to 1e30", |x| {
        (1.0..=1e30).contains(&x)
    })
}
