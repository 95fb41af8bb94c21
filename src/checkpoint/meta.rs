//! Meta's checkpoints: `params.json` and `consolidated.NN.pth`.
//!
//! Sizes must be given. The table lists the keys that may be absent, and what their absence means:
//!
//! | key | where absent | source |
//! |---|---|---|
//! | `n_kv_heads` | as many as query heads | ModelArgs |
//! | `vocab_size` | -1: the tokenizer's | ModelArgs |
//! | `multiple_of` | 256 | ModelArgs |
//! | `norm_eps` | 1e-5 | ModelArgs |
//! | `ffn_dim_multiplier` | none | ModelArgs |
//! | `rope_theta` | 10000 | llama/model.py (Llama 2) |
//! | `use_scaled_rope` | no stretching | ModelArgs |
//! | `rope_scaling_factor` | 8; 32 for Llama 3.2 of 1B and 3B | llama/model.py; their config.json |
//!
//! The fairscale layers of llama/model.py decide how the shards are cut: `ColumnParallelLinear`
//! cuts rows (outputs), `RowParallelLinear` columns (inputs), `ParallelEmbedding` (Llama 2)
//! columns, and `VocabParallelEmbedding` (Llama 3) rows. Norms are the same in every shard. The
//! rows of q and k have the order in which we keep them.

use super::files::Files;
use super::keys::Keys;
use super::sizes::*;
use super::stored::{ChatTemplate, Checkpoint, Cut, StoredPart, TokenizerSource};
use crate::backend::{RowOrder, Shape};
use crate::format::pth;
use crate::model::Config;
use crate::model::config::RopeScaling;
use crate::model::family::FAMILIES;
use crate::model::matrices::{Norm, Part};
use crate::{Cancel, Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The configuration's file.
pub const CONFIG: &str = "params.json";

/// The first shard of the weights.
pub const FIRST: &str = "consolidated.00.pth";

/// A checkpoint in Meta's form.
#[derive(Debug)]
pub struct Meta {
    dir: PathBuf,
    config_path: PathBuf,
    keys: Keys,
}

impl Meta {
    pub(super) fn new(dir: &Path, keys: Keys) -> Meta {
        Meta {
            dir: dir.into(),
            config_path: dir.join(CONFIG),
            keys,
        }
    }
}

impl Checkpoint for Meta {
    fn form(&self) -> &'static str {
        "Meta"
    }

    fn config_path(&self) -> &Path {
        &self.config_path
    }

    fn config(&self, tokenizer_vocab: usize) -> Result<Config> {
        config(&self.keys, tokenizer_vocab)
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        TokenizerSource::Directory(&self.dir)
    }

    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        Ok(None)
    }

    fn open(&self, cancel: Option<&Cancel>) -> Result<Files> {
        open(&self.dir, cancel)
    }

    fn part(&self, _: &Config, part: Part, layer: Option<usize>) -> StoredPart {
        let (name, cut) = match part {
            Part::Embedding => ("tok_embeddings", Cut::RowsOrColumns),
            Part::Q => ("attention.wq", Cut::Rows),
            Part::K => ("attention.wk", Cut::Rows),
            Part::V => ("attention.wv", Cut::Rows),
            Part::O => ("attention.wo", Cut::Columns),
            Part::Gate => ("feed_forward.w1", Cut::Rows),
            Part::Up => ("feed_forward.w3", Cut::Rows),
            Part::Down => ("feed_forward.w2", Cut::Columns),
            Part::Head => ("output", Cut::Rows),
        };
        StoredPart {
            name: full_name(name, layer),
            order: RowOrder::AsStored,
            cut,
            within: None,
        }
    }

    fn norm(&self, _: &Config, norm: Norm, layer: Option<usize>) -> String {
        let name = match norm {
            Norm::Attention => "attention_norm",
            Norm::Ffn => "ffn_norm",
            Norm::Last => "norm",
            Norm::Q | Norm::K => unreachable!("Llama has none"),
        };
        full_name(name, layer) + ".weight"
    }

    fn norm_order(&self, _: &Config, _: Norm) -> RowOrder {
        RowOrder::AsStored
    }
}

fn full_name(name: &str, layer: Option<usize>) -> String {
    match layer {
        None => name.into(),
        Some(n) => format!("layers.{n}.{name}"),
    }
}

/// Opens `consolidated.NN.pth`, numbered from 00 without a gap.
pub fn open(dir: &Path, cancel: Option<&Cancel>) -> Result<Files> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| unreadable(dir, &e))? {
        let name = entry.map_err(|e| Error::io(dir, &e))?.file_name();
        numbers.extend(name.to_str().and_then(shard_number));
    }
    numbers.sort_unstable();
    let shard = |n| dir.join(format!("consolidated.{n:02}.pth"));
    let gap = (0..).zip(&numbers).find(|&(i, &n)| i != n).map(|(i, _)| i);
    if let Some(missing) = gap.or(numbers.is_empty().then_some(0)) {
        let path = shard(missing);
        let detail = match numbers.last() {
            Some(&last) => format!("no such file, but there is a shard {last:02}"),
            None => "no such file".into(),
        };
        return Err(Error::Io { path, detail });
    }
    let files = numbers.iter().map(|&n| pth::open(&shard(n), cancel));
    Ok(Files {
        path: dir.into(),
        files: files.collect::<Result<_>>()?,
        cut: true,
    })
}

fn unreadable(dir: &Path, error: &std::io::Error) -> Error {
    /// The memory that glibc's opendir(3) allocates to list a directory.
    const LIST_BYTES: u64 = 32 << 10;
    match error.kind() {
        ErrorKind::OutOfMemory => Error::refused("the list of shards", LIST_BYTES),
        _ => Error::io(dir, error),
    }
}

/// `consolidated.NN.pth` -> NN.
fn shard_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("consolidated.")?.strip_suffix(".pth")?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// Reads the keys of Meta's `ModelArgs`.
fn config(keys: &Keys, tokenizer_vocab: usize) -> Result<Config> {
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
        rope_theta: theta(keys)?.unwrap_or(DEFAULT_THETA),
        rope_scaling: meta_scaling(keys, &shape)?,
        ..Config::plain(&FAMILIES[0], shape)
    })
}

/// The width of the feed-forward, computed as in `FeedForward.__init__` of llama/model.py.
fn ffn_dim(keys: &Keys, dim: usize) -> Result<usize> {
    let multiple_of = keys.optional_size("multiple_of", MAX_WIDTH)?.unwrap_or(256);
    let expected = "a positive number that gives a feed-forward layer of some width";
    let multiplier = keys.optional_number("ffn_dim_multiplier", expected, |x| x > 0.0)?;
    // Python's int() truncates, and so does `as`; the numbers are positive.
    let mut width = (2.0 * (4 * dim) as f64 / 3.0) as usize;
    if let Some(multiplier) = multiplier {
        width = (multiplier * width as f64) as usize;
    }
    if width == 0 || width > MAX_WIDTH {
        return Err(keys.wrong("ffn_dim_multiplier", expected));
    }
    Ok(multiple_of * width.div_ceil(multiple_of))
}

/// Models of Meta's whose files say that the frequencies are stretched, but not by how much, and
/// which were trained with 32: Llama 3.2 of 1B and 3B, by their width and layers
/// (meta-llama/llama-models, issue 166; transformers' conversion knows it, too).
const STRETCHED_BY_32: [(usize, usize); 2] = [(2048, 16), (3072, 28)];

/// Meta's code stretches the frequencies by constants; newer ModelArgs have keys for two of them.
fn meta_scaling(keys: &Keys, shape: &Shape) -> Result<RopeScaling> {
    if !keys.flag("use_scaled_rope")? {
        for key in ["rope_scaling_factor", "rope_high_freq_factor"] {
            if keys.get(key).is_some() {
                return Err(keys.wrong(key, "no such key, as use_scaled_rope is not true"));
            }
        }
        return Ok(RopeScaling::None);
    }
    let high = "a number over 1, up to 1e30";
    let usual = match STRETCHED_BY_32.contains(&(shape.dim, shape.n_layers)) {
        true => 32.0,
        false => 8.0,
    };
    Ok(RopeScaling::Llama3 {
        factor: factor(keys, "rope_scaling_factor")?.unwrap_or(usual),
        low_freq_factor: 1.0,
        high_freq_factor: keys
            .optional_number("rope_high_freq_factor", high, |x| x > 1.0 && x <= 1e30)?
            .unwrap_or(4.0),
        original_context: 8192.0,
    })
}
