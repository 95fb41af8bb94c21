//! GGUF: a model in one file, or in a set of split ones, with its configuration, its tokenizer and
//! its chat template.
//!
//! | file | what of it |
//! |---|---|
//! | `config` | the sizes, and everything else that keys say of the computation |
//! | `rope` | how RoPE's frequencies are stretched |
//! | `vocabulary` | the tokenizer's vocabulary |
//! | `keys` | typed access to the keys of an architecture |
//!
//! Rows of q and k of some architectures lie as RoPE rotates them, in pairs of neighbours. Those of
//! the others lie in halves, as in Hugging Face's form.

mod config;
mod keys;
mod rope;
mod vocabulary;

pub use vocabulary::vocabulary;

use super::files::{Files, Finder, Source};
use super::finite;
use super::stored::{
    ChatTemplate, Checkpoint, Coded, Cut, Keep, Rows, StoredPart, TokenizerSource, Wanted, Within,
};
use crate::backend::RowOrder;
use crate::file::zeros;
use crate::format::gguf::Set;
use crate::format::{Encoding, TensorInfo};
use crate::model::Config;
use crate::model::family::Family;
use crate::model::matrices::{Norm, Part};
use crate::quant::{Quant, ggml};
use crate::{Cancel, Dtype, Error, Result, sentence};
use keys::Hyper;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An architecture that this library reads.
#[derive(Debug)]
struct Architecture {
    name: &'static str,
    /// The family's `model_type`.
    family: &'static str,
    /// Whether the rows of q and k lie in pairs of neighbours.
    pairs: bool,
    /// The name of the norm before the feed-forward.
    ffn_norm: &'static str,
}

const fn architecture(name: &'static str, family: &'static str, pairs: bool) -> Architecture {
    Architecture {
        name,
        family,
        pairs,
        ffn_norm: "ffn_norm",
    }
}

static ARCHITECTURES: [Architecture; 9] = [
    architecture("llama", "llama", true),
    architecture("qwen2", "qwen2", false),
    architecture("qwen3", "qwen3", false),
    architecture("phi3", "phi3", false),
    architecture("granite", "granite", true),
    architecture("smollm3", "smollm3", true),
    architecture("ernie4_5", "ernie4_5", true),
    architecture("hunyuan-dense", "hunyuan_v1_dense", false),
    Architecture {
        ffn_norm: "post_attention_norm",
        ..architecture("seed_oss", "seed_oss", false)
    },
];

/// A checkpoint in GGUF.
#[derive(Debug)]
pub struct GgufCheckpoint {
    path: PathBuf,
    set: Set,
    architecture: &'static Architecture,
    family: &'static Family,
}

/// The GGUF file of a directory that has weights in GGUF and in no other form. (Repositories of
/// GGUF files may have a config.json that nothing needs.)
///
/// # Errors
/// The errors of [`Set::find`].
pub(super) fn alone(dir: &Path) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
        let name = entry.map_err(|e| Error::io(dir, &e))?.file_name();
        let name = name.to_string_lossy();
        let begins = ["consolidated.", "pytorch_model"];
        if name.ends_with(".safetensors") || begins.iter().any(|begin| name.starts_with(begin)) {
            return Ok(None);
        }
    }
    Set::find(dir)
}

impl GgufCheckpoint {
    /// Opens the file, or the set whose first file it is.
    ///
    /// # Errors
    /// The errors of [`Set::open`], and [`Error::Unsupported`] for other architectures.
    pub fn open(path: &Path) -> Result<GgufCheckpoint> {
        const KEY: &str = "general.architecture";
        let set = Set::open(path, None)?;
        let first = set.first();
        let known = || ARCHITECTURES.each_ref().map(|a| a.name).join(", ");
        let Some(name) = first.text(KEY)? else {
            return Err(first.wrong(KEY, &known(), "missing"));
        };
        let architecture = ARCHITECTURES.iter().find(|a| a.name == name);
        let family = architecture.and_then(|a| Some((a, Family::named(a.family)?)));
        let Some((architecture, family)) = family else {
            let (path, name, known) = (sentence::path(path), sentence::name(&name), known());
            return Err(Error::Unsupported(format!(
                "{path}: architecture `{name}` is not supported, expected {known}"
            )));
        };
        Ok(GgufCheckpoint {
            path: path.into(),
            set,
            architecture,
            family,
        })
    }

    fn hyper(&self) -> Hyper<'_> {
        Hyper {
            file: self.set.first(),
            prefix: self.architecture.name,
        }
    }

    /// How the rows of q and k are put into our order.
    fn rotated_order(&self, config: &Config) -> RowOrder {
        match self.architecture.pairs {
            true => RowOrder::AsStored,
            false => RowOrder::HalvesToPairs {
                head_dim: config.shape.head_dim,
                rotated: config.rotary_dim,
            },
        }
    }
}

impl Checkpoint for GgufCheckpoint {
    fn form(&self) -> &'static str {
        "GGUF"
    }

    fn has_own_formats(&self) -> bool {
        true
    }

    fn quantised(&self) -> Option<&'static str> {
        let bytes = |kind| -> u64 {
            let tensors = self.set.tensors().map(|(_, _, info)| info);
            let of = tensors.filter(|info| info.encoding == Encoding::Ggml(kind));
            of.map(|info| info.len).sum()
        };
        let most = ggml::Type::all().max_by_key(|&kind| bytes(kind));
        most.filter(|&kind| bytes(kind) > 0).map(ggml::Type::name)
    }

    fn config_path(&self) -> &Path {
        &self.path
    }

    fn config(&self, tokenizer_vocab: usize) -> Result<Config> {
        config::config(&self.hyper(), &self.set, self.family, tokenizer_vocab)
    }

    fn trained_context(&self) -> Option<u64> {
        let key = self.hyper().key("context_length");
        self.set.first().u64(&key).ok()?
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        TokenizerSource::Gguf(self.set.first())
    }

    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        let file = self.set.first();
        let Some(default) = file.text("tokenizer.chat_template")? else {
            return Ok(None);
        };
        let tool_use = file.text("tokenizer.chat_template.tool_use")?;
        Ok(Some(ChatTemplate { default, tool_use }))
    }

    fn open(&self, cancel: Option<&Cancel>) -> Result<Files> {
        let set = Set::open(&self.path, cancel)?;
        Ok(Files {
            path: self.path.clone(),
            files: set.files.into_iter().map(|file| file.table).collect(),
            cut: false,
        })
    }

    /// Floats are kept in a format that holds the floats of all matrices exactly.
    fn keep(&self, _: &Config, files: &Files, asked: Option<Dtype>) -> Result<Keep> {
        let tensors = files.files.iter().flat_map(|file| file.tensors.values());
        let matrices = tensors.filter(|info| info.shape.len() > 1);
        let mut floats: Vec<Dtype> = matrices.filter_map(|info| info.encoding.float()).collect();
        floats.dedup();
        let same = |dtype| floats.iter().all(|&float| float == dtype);
        let floats = [Dtype::Bf16, Dtype::F16]
            .into_iter()
            .find(|&dtype| same(dtype));
        Ok(Keep {
            asked,
            floats: floats.unwrap_or(Dtype::F32),
        })
    }

    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart {
        let name = match part {
            Part::Embedding => "token_embd",
            Part::Q => "attn_q",
            Part::K => "attn_k",
            Part::V => "attn_v",
            Part::O => "attn_output",
            Part::Gate => "ffn_gate",
            Part::Up => "ffn_up",
            Part::Down => "ffn_down",
            Part::Head => "output",
        };
        // phi3's `ffn_up` contains the gate as well.
        let fused: Option<(&str, &[Part])> = match part {
            _ if !config.family.fused => None,
            Part::Q | Part::K | Part::V => Some(("attn_qkv", &[Part::Q, Part::K, Part::V])),
            Part::Gate | Part::Up => Some(("ffn_up", &[Part::Gate, Part::Up])),
            _ => None,
        };
        StoredPart {
            name: full_name(name, layer),
            order: match part.is_rotated() {
                true => self.rotated_order(config),
                false => RowOrder::AsStored,
            },
            cut: Cut::Rows,
            within: fused.map(|(name, parts)| {
                Within::new(full_name(name, layer), parts, part, &config.shape)
            }),
        }
    }

    fn norm(&self, _: &Config, norm: Norm, layer: Option<usize>) -> String {
        let name = match norm {
            Norm::Attention => "attn_norm",
            Norm::Ffn => self.architecture.ffn_norm,
            Norm::Q => "attn_q_norm",
            Norm::K => "attn_k_norm",
            Norm::Last => "output_norm",
        };
        full_name(name, layer) + ".weight"
    }

    fn norm_order(&self, config: &Config, norm: Norm) -> RowOrder {
        match norm {
            Norm::Q | Norm::K => self.rotated_order(config),
            Norm::Attention | Norm::Ffn | Norm::Last => RowOrder::AsStored,
        }
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        let (name, first, all) = match wanted.within {
            Some(within) => (within.name.as_str(), within.first, within.rows),
            None => (wanted.name, 0, wanted.rows),
        };
        let source = finder.tensor(0, &format!("{name}.weight"), &[&[all, wanted.cols]])?;
        Ok(match source.info.encoding {
            Encoding::Ggml(kind) => Some(Box::new(Blocks {
                source,
                kind,
                first,
                rows: wanted.rows,
            })),
            _ => None,
        })
    }

    fn ignores(&self, name: &str) -> bool {
        rope::TENSORS.contains(&name)
    }
}

fn full_name(name: &str, layer: Option<usize>) -> String {
    match layer {
        None => name.into(),
        Some(n) => format!("blk.{n}.{name}"),
    }
}

/// Bytes that a thread reads before it unpacks them: they stay in its caches.
const READ: usize = 64 << 10;

/// A matrix in a block format: some rows of a tensor.
struct Blocks<'a> {
    source: Source<'a>,
    kind: ggml::Type,
    first: usize,
    rows: usize,
}

impl Blocks<'_> {
    /// Reads the stored bytes of rows, a few rows at a time. Calls `take` with the numbers of
    /// those, counted from `row`, and their bytes.
    fn read(
        &self,
        row: usize,
        rows: usize,
        mut take: impl FnMut(Range<usize>, &[u8]),
    ) -> Result<()> {
        let (width, info): (_, &TensorInfo) = (self.source.row_bytes(), self.source.info);
        let step = (READ / width).clamp(1, rows.max(1));
        let mut bytes = zeros("blocks of rows", (step * width) as u64)?;
        for first in (0..rows).step_by(step) {
            let n = step.min(rows - first);
            let bytes = &mut bytes[..n * width];
            let offset = (self.first + row + first) * width;
            self.source.file.read(info, offset as u64, bytes)?;
            take(first..first + n, bytes);
        }
        Ok(())
    }

    fn cols(&self) -> usize {
        self.source.info.shape[1]
    }
}

impl Coded for Blocks<'_> {
    fn source(&self) -> &Source<'_> {
        &self.source
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn bytes(&self) -> u64 {
        (self.rows * self.source.row_bytes()) as u64
    }

    fn natives(&self) -> &[Quant] {
        self.kind.kept()
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        Ok(Box::new(self))
    }
}

impl Rows for &Blocks<'_> {
    fn native(&self, quant: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let of_row = quant.scales(self.cols());
        let width = quant.code_bytes(self.cols());
        self.read(row, scales.len() / of_row, |rows, bytes| {
            let codes = &mut codes[rows.start * width..rows.end * width];
            let scales = &mut scales[rows.start * of_row..rows.end * of_row];
            self.kind.codes(quant, bytes, codes, scales);
        })?;
        let at = [self.first + row, self.cols()];
        finite::check_words(&self.source, quant, at, scales, None)
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let cols = self.cols();
        self.read(row, to.len() / cols, |rows, bytes| {
            self.kind
                .decode(bytes, &mut to[rows.start * cols..rows.end * cols]);
        })
    }
}
