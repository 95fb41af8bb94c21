//! GGUF: a model in one file, or in a set of split ones, with its configuration, its tokenizer and
//! its chat template.
//!
//! Keys of a configuration begin with the architecture's name, `llama.block_count`. This is what may
//! be absent, and what it then means (llama.cpp's `llama-hparams`):
//!
//! | key | where absent |
//! |---|---|
//! | `attention.head_count_kv` | as many as query heads |
//! | `attention.key_length`, `attention.value_length` | width / heads |
//! | `rope.freq_base` | 10000 |
//! | `rope.scaling.type`, `rope.scale_linear`, tensor `rope_freqs` | no stretching |
//! | `vocab_size` | as many as the tokenizer has tokens |
//! | tensor `output` | the embedding is the head |
//!
//! Rows of q and k of the architecture `llama` lie as RoPE rotates them, in pairs of neighbours. Those
//! of the others lie in halves, as in Hugging Face's form.

use super::files::{Files, Finder, Source};
use super::finite;
use super::sizes::{MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
use super::stored::{
    ChatTemplate, Checkpoint, Coded, Cut, Keep, Rows, StoredPart, TokenizerSource, Wanted,
};
use crate::backend::{RowOrder, Shape};
use crate::file::zeros;
use crate::format::gguf::{Gguf, Set};
use crate::format::{Encoding, TensorInfo};
use crate::model::Config;
use crate::model::config::{Biases, RopeScaling};
use crate::model::family::Family;
use crate::model::matrices::{Norm, Part};
use crate::quant::{Quant, ggml};
use crate::tokenizer::GgufVocabulary;
use crate::{Cancel, Dtype, Error, Result, sentence};
use std::path::{Path, PathBuf};

/// The architectures that are read: each is the `model_type` of its family.
const ARCHITECTURES: [&str; 3] = [LLAMA, "qwen2", "qwen3"];
const LLAMA: &str = "llama";

/// Keys that mean another computation than ours unless they have this value.
const NEUTRAL: [(&str, f64); 6] = [
    ("expert_count", 0.0),
    ("attention.sliding_window", 0.0),
    ("embedding_scale", 1.0),
    ("residual_scale", 1.0),
    ("logit_scale", 1.0),
    ("rope.scaling.attn_factor", 1.0),
];

/// A checkpoint in GGUF.
#[derive(Debug)]
pub struct GgufCheckpoint {
    path: PathBuf,
    set: Set,
    architecture: String,
    family: &'static Family,
}

/// The model of a directory whose weights are in GGUF, and in no other form: repositories of GGUF
/// files carry a config.json for show.
///
/// # Errors
/// Those of [`Set::find`].
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
    /// Opens the file, or the set that it is the first of.
    ///
    /// # Errors
    /// Those of [`Set::open`], and [`Error::Unsupported`] for an architecture that is not read.
    pub fn open(path: &Path) -> Result<GgufCheckpoint> {
        const KEY: &str = "general.architecture";
        let set = Set::open(path, None)?;
        let first = set.first();
        let Some(architecture) = first.text(KEY)? else {
            return Err(first.wrong(KEY, &ARCHITECTURES.join(", "), "missing"));
        };
        let known = ARCHITECTURES.contains(&architecture.as_str());
        let Some(family) = Family::named(&architecture).filter(|_| known) else {
            let (path, name) = (sentence::path(path), sentence::name(&architecture));
            let known = ARCHITECTURES.join(", ");
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

    /// What the tokenizer is made of.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing or has a value of another type.
    pub fn vocabulary(&self) -> Result<GgufVocabulary> {
        let file = self.set.first();
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let required = |name: &str| file.wrong(&key(name), "a tokenizer", "missing");
        let id = |name: &str| {
            let (key, expected) = (key(name), "the id of a token, or -1");
            // Some converters write -1 where there is none.
            match file.i64(&key)? {
                None | Some(-1) => Ok(None),
                Some(id) => match u32::try_from(id) {
                    // As a 32-bit integer without a sign.
                    Ok(u32::MAX) => Ok(None),
                    Ok(id) => Ok(Some(id)),
                    Err(_) => Err(file.wrong(&key, expected, id)),
                },
            }
        };
        Ok(GgufVocabulary {
            model: file.text(&key("model"))?.ok_or_else(|| required("model"))?,
            pre: file.text(&key("pre"))?,
            tokens: file
                .texts(&key("tokens"))?
                .ok_or_else(|| required("tokens"))?,
            scores: file.f32s(&key("scores"))?.unwrap_or_default(),
            types: file.i32s(&key("token_type"))?.unwrap_or_default(),
            merges: file.texts(&key("merges"))?.unwrap_or_default(),
            bos_id: id("bos_token_id")?,
            eos_id: id("eos_token_id")?,
            eot_id: id("eot_token_id")?,
            eom_id: id("eom_token_id")?,
            pad_id: id("padding_token_id")?,
            unk_id: id("unknown_token_id")?,
            add_bos: file.bool(&key("add_bos_token"))?,
            add_space_prefix: file.bool(&key("add_space_prefix"))?,
        })
    }

    fn hyper(&self) -> Hyper<'_> {
        Hyper {
            file: self.set.first(),
            prefix: &self.architecture,
        }
    }

    /// How rows of q and k become ours. Those of `llama` are pairs of neighbours already.
    fn rotated_order(&self, config: &Config) -> RowOrder {
        match self.architecture.as_str() {
            LLAMA => RowOrder::AsStored,
            _ => RowOrder::HalvesToPairs {
                head_dim: config.shape.head_dim,
                rotated: config.rotary_dim,
            },
        }
    }

    /// How RoPE's frequencies are stretched.
    fn rope_scaling(&self, head_dim: usize) -> Result<RopeScaling> {
        let keys = self.hyper();
        let linear = || -> Result<Option<RopeScaling>> {
            let older = keys.number("rope.scale_linear")?.filter(|&x| x != 1.0);
            let factor = keys.number("rope.scaling.factor")?.or(older);
            let Some(factor) = factor else {
                return Ok(None);
            };
            if !(1.0..=1e30).contains(&factor) {
                return Err(keys.wrong("rope.scaling.factor", "a number from 1 to 1e30", factor));
            }
            Ok(Some(RopeScaling::Linear { factor }))
        };
        let key = "rope.scaling.type";
        let scaling = match keys.file.text(&keys.key(key))?.as_deref() {
            None => linear()?.unwrap_or(RopeScaling::None),
            Some("none") => RopeScaling::None,
            Some("linear") => match linear()? {
                Some(scaling) => scaling,
                None => return Err(keys.wrong("rope.scaling.factor", "a number", "missing")),
            },
            Some(other) => return Err(keys.wrong(key, "none or linear", other)),
        };
        const NAME: &str = "rope_freqs.weight";
        let Some((file, tensor)) = self.set.tensor(NAME) else {
            return Ok(scaling);
        };
        let bad = |expected: String, got: String| {
            let (path, tensor) = (file.table.path.clone(), NAME.into());
            Err(Error::Tensor {
                path,
                tensor,
                expected,
                got,
            })
        };
        let n = head_dim / 2;
        if (&tensor.shape[..], tensor.encoding) != (&[n], Encoding::F32) {
            let got = format!("shape {:?} of {}", tensor.shape, tensor.encoding);
            return bad(format!("shape [{n}] of f32"), got);
        }
        if scaling != RopeScaling::None {
            return bad(
                "no such tensor beside rope.scaling".into(),
                format!("{scaling:?}"),
            );
        }
        let mut bytes = zeros("the divisors of RoPE's frequencies", tensor.len)?;
        file.table.read(tensor, 0, &mut bytes)?;
        let divisors = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
        let divisors: Vec<f32> = divisors.collect();
        match divisors.iter().find(|x| !(1e-30..=1e30).contains(*x)) {
            Some(x) => bad("numbers from 1e-30 to 1e30".into(), x.to_string()),
            None => Ok(RopeScaling::Divided { by: divisors }),
        }
    }
}

/// The keys of an architecture.
struct Hyper<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Hyper<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn wrong(&self, name: &str, expected: &str, got: impl ToString) -> Error {
        self.file.wrong(&self.key(name), expected, got)
    }

    /// An integer from 1 to `most`, or a list of them that are all the same (one for each layer).
    fn size(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let Some(sizes) = self.file.u64s(&self.key(name))? else {
            return Ok(None);
        };
        let expected = format!("an integer from 1 to {most}");
        let Some(&first) = sizes.first() else {
            return Err(self.wrong(name, &expected, "an empty list"));
        };
        if let Some(other) = sizes.iter().find(|&&n| n != first) {
            let got = format!("{first} for one layer and {other} for another");
            return Err(self.wrong(name, "the same number for all layers", got));
        }
        match usize::try_from(first)
            .ok()
            .filter(|n| (1..=most).contains(n))
        {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(name, &expected, first)),
        }
    }

    fn required(&self, name: &str, most: usize) -> Result<usize> {
        let missing = || self.wrong(name, &format!("an integer from 1 to {most}"), "missing");
        self.size(name, most)?.ok_or_else(missing)
    }

    /// A finite number.
    fn number(&self, name: &str) -> Result<Option<f64>> {
        match self.file.f64(&self.key(name))? {
            Some(x) if !x.is_finite() => Err(self.wrong(name, "a finite number", x)),
            x => Ok(x),
        }
    }

    /// Whether a key that means something else is absent or has no effect.
    fn check_neutral(&self) -> Result<()> {
        for (name, neutral) in NEUTRAL {
            let key = self.key(name);
            let number = match self.file.u64(&key) {
                Ok(n) => n.map(|n| n as f64),
                Err(_) => self.number(name)?,
            };
            if let Some(got) = number.filter(|&x| x != neutral) {
                let expected = format!("{neutral}: another value is not supported");
                return Err(self.wrong(name, &expected, got));
            }
        }
        const SCALE: &str = "attention.scale";
        if let Some(scale) = self.number(SCALE)?.filter(|&scale| scale != 0.0) {
            return Err(self.wrong(SCALE, "0: another value is not supported", scale));
        }
        if self.file.bool(&self.key("attention.causal"))? == Some(false) {
            return Err(self.wrong("attention.causal", "true", "false"));
        }
        Ok(())
    }
}

impl Checkpoint for GgufCheckpoint {
    fn form(&self) -> &'static str {
        "GGUF"
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
        let keys = self.hyper();
        keys.check_neutral()?;
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
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(n) = keys.size(name, MAX_WIDTH)?.filter(|&n| n != head_dim) {
                return Err(keys.wrong(name, &format!("{head_dim}, as keys have"), n));
            }
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
        let rope_theta = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
        if !(1.0..=1e30).contains(&rope_theta) {
            return Err(keys.wrong("rope.freq_base", "a number from 1 to 1e30", rope_theta));
        }
        let has_bias = |name: &str| self.set.tensor(&format!("blk.0.{name}.bias")).is_some();
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
        Ok(Config {
            rope_theta,
            rope_scaling: self.rope_scaling(head_dim)?,
            biases: Biases {
                qkv: has_bias("attn_q"),
                o: has_bias("attn_output"),
                mlp: has_bias("ffn_down"),
            },
            tied_embeddings: self.set.tensor("output.weight").is_none(),
            // The tokenizer knows the EOS ids.
            ..Config::plain(self.family, shape)
        })
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        TokenizerSource::Gguf(self)
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

    /// Floats become the format that holds those of all matrices exactly.
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
        StoredPart {
            name: full_name(name, layer),
            order: match part.is_rotated() {
                true => self.rotated_order(config),
                false => RowOrder::AsStored,
            },
            cut: Cut::Rows,
            within: None,
        }
    }

    fn norm(&self, norm: Norm, layer: Option<usize>) -> String {
        let name = match norm {
            Norm::Attention => "attn_norm",
            Norm::Ffn => "ffn_norm",
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
        let name = format!("{}.weight", wanted.name);
        let source = finder.tensor(0, &name, &[&[wanted.rows, wanted.cols]])?;
        Ok(match source.info.encoding {
            Encoding::Ggml(kind) => Some(Box::new(Blocks { source, kind })),
            _ => None,
        })
    }

    fn ignores(&self, name: &str) -> bool {
        // The configuration has it.
        name == "rope_freqs.weight"
    }
}

fn full_name(name: &str, layer: Option<usize>) -> String {
    match layer {
        None => name.into(),
        Some(n) => format!("blk.{n}.{name}"),
    }
}

/// A matrix in blocks.
struct Blocks<'a> {
    source: Source<'a>,
    kind: ggml::Type,
}

impl Blocks<'_> {
    /// The stored bytes of rows.
    fn read(&self, row: usize, rows: usize) -> Result<Vec<u8>> {
        let width = self.source.row_bytes();
        let mut bytes = zeros("blocks of rows", (rows * width) as u64)?;
        let info: &TensorInfo = self.source.info;
        self.source
            .file
            .read(info, (row * width) as u64, &mut bytes)?;
        Ok(bytes)
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
        self.source.info.shape[0]
    }

    fn bytes(&self) -> u64 {
        self.source.info.len
    }

    fn native(&self) -> Option<Quant> {
        self.kind.kept()
    }

    fn kept(&self) -> Option<Quant> {
        self.native().or(Some(Quant::Int8))
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        Ok(Box::new(self))
    }
}

impl Rows for &Blocks<'_> {
    fn native(&self, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let of_row = self.cols() / 32;
        let bytes = self.read(row, scales.len() / of_row)?;
        self.kind.codes(&bytes, codes, scales);
        finite::check_halves(&self.source, row * of_row, scales)
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let bytes = self.read(row, to.len() / self.cols())?;
        self.kind.decode(&bytes, to);
        Ok(())
    }
}
