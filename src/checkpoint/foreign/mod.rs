//! Checkpoints in Hugging Face's form whose weights were quantised by another program.
//!
//! `quantization_config` in `config.json` says how they were quantised. Older files call it
//! `compression_config`; old GPTQ has a file `quantize_config.json` instead. Tensors show which
//! modules are quantised: a module has either a `weight` of floats or all tensors of the format.
//! The parts of a fused module are rows of the whole one.
//!
//! | file | `quant_method` |
//! |---|---|
//! | `gptq` | `gptq` |
//! | `awq` | `awq` |
//! | `bitsandbytes` | `bitsandbytes` |
//! | `compressed` | `compressed-tensors` |
//! | `fp8` | `fp8`, `fbgemm_fp8` |
//! | `options` | what of their options is read, what has no effect, and that others are refused |
//! | `affine`, `scaled`, `blocks4` | matrices as these programs store them |

mod affine;
mod awq;
mod bitsandbytes;
mod blocks4;
mod compressed;
mod fp8;
mod gptq;
mod options;
mod scaled;

use super::cut::rows_of;
use super::files::{Files, Finder, Source};
use super::finite;
use super::hugging_face::HuggingFace;
use super::keys::Keys;
use super::stored::{ChatTemplate, Checkpoint, Coded, Keep, StoredPart, TokenizerSource, Wanted};
use crate::backend::RowOrder;
use crate::file::zeros;
use crate::format::Encoding;
use crate::model::Config;
use crate::model::matrices::{Norm, Part};
use crate::{Cancel, Dtype, Error, Result, reserve, sentence};
use half::{bf16, f16};
use serde_json::Value;
use std::path::Path;

/// How a program stores quantised matrices.
trait Method: std::fmt::Debug {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Finds the tensors of a matrix, which is not [within](Wanted::within) another. Returns `None`
    /// if the matrix is stored as floats.
    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>>;
}

/// A checkpoint that another program quantised.
#[derive(Debug)]
pub struct Foreign {
    floats: HuggingFace,
    method: Box<dyn Method>,
    schemes: Schemes,
}

/// How names of tensors end that hold scales of activations.
const ACTIVATION_SCALES: [&str; 4] = [
    ".activation_scale",
    ".input_scale",
    ".input_scale_ub",
    ".output_scale",
];

/// How names of tensors end that hold scales of the KV cache.
const CACHE_SCALES: [&str; 2] = [".k_scale", ".v_scale"];

/// Of what else than weights the options say how it is quantised.
#[derive(Debug)]
struct Schemes {
    activations: bool,
    cache: bool,
}

impl Schemes {
    fn of(options: &Keys) -> Schemes {
        let groups = options.get("config_groups").and_then(Value::as_object);
        let of_inputs =
            |group: &Value| group.get("input_activations").is_some_and(Value::is_object);
        Schemes {
            activations: options.get("activation_scheme").is_some()
                || groups.is_some_and(|groups| groups.values().any(of_inputs)),
            cache: options.get("kv_cache_scheme").is_some(),
        }
    }
}

impl Foreign {
    /// Finds a matrix that has tensors of its own.
    fn whole<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        let coded = self.method.coded(finder, wanted)?;
        if coded.is_some() {
            drop_bias(finder, wanted)?;
        }
        Ok(coded)
    }

    /// The checkpoint `floats` with weights that the method `name` quantised, with these options.
    ///
    /// # Errors
    /// [`Error::Config`] for an option that is unknown or has an impossible value;
    /// [`Error::Unsupported`] for a method that this library does not read.
    pub(super) fn new(floats: HuggingFace, options: &Keys, name: &str) -> Result<Foreign> {
        Ok(Foreign {
            method: method(options, name)?,
            schemes: Schemes::of(options),
            floats,
        })
    }
}

/// The options and the method of a quantisation by another program; `None` if there is none.
pub(super) fn options(dir: &Path, keys: &Keys) -> Result<Option<(Keys, String)>> {
    const OLDER: &str = "compression_config";
    let old = dir.join("quantize_config.json");
    // Only `quantization_config` always names the method.
    let (options, method) = if let Some(options) = keys.object("quantization_config")? {
        if keys.get(OLDER).is_some() {
            return Err(keys.wrong(OLDER, "no such key beside quantization_config"));
        }
        (options, None)
    } else if let Some(options) = keys.object(OLDER)? {
        (options, Some("compressed-tensors"))
    } else if old.symlink_metadata().is_ok() {
        (Keys::read(&old)?, Some("gptq"))
    } else {
        return Ok(None);
    };
    const KEY: &str = "quant_method";
    match options.text(KEY)?.or(method) {
        Some("llamabi") => Ok(None),
        Some(method) => {
            let method = method.to_owned();
            Ok(Some((options, method)))
        }
        None => Err(options.wrong(KEY, "the name of a method")),
    }
}

fn method(options: &Keys, name: &str) -> Result<Box<dyn Method>> {
    Ok(match name {
        "gptq" => Box::new(gptq::Gptq::new(options)?),
        "awq" => Box::new(awq::Awq::new(options)?),
        "bitsandbytes" => Box::new(bitsandbytes::BitsAndBytes::new(options)?),
        "compressed-tensors" => Box::new(compressed::Compressed::new(options)?),
        "fp8" | "fbgemm_fp8" => Box::new(fp8::Fp8::new(options)?),
        other => {
            let (path, other) = (sentence::path(options.path()), sentence::name(other));
            return Err(Error::Unsupported(format!(
                "{path}: weights quantised by `{other}` are not supported, expected gptq, awq, \
                 bitsandbytes, compressed-tensors, fp8 or fbgemm_fp8"
            )));
        }
    })
}

impl Checkpoint for Foreign {
    fn form(&self) -> &'static str {
        self.floats.form()
    }

    fn quantised(&self) -> Option<&'static str> {
        Some(self.method.name())
    }

    fn config_path(&self) -> &Path {
        self.floats.config_path()
    }

    fn config(&self, tokenizer_vocab: usize) -> Result<Config> {
        self.floats.config(tokenizer_vocab)
    }

    fn trained_context(&self) -> Option<u64> {
        self.floats.trained_context()
    }

    fn left_out(&self, files: &Files) -> Vec<&'static str> {
        let has = |suffixes: &[&str]| {
            let mut names = files.files.iter().flat_map(|file| file.tensors.keys());
            names.any(|name| suffixes.iter().any(|suffix| name.ends_with(suffix)))
        };
        let activations = self.schemes.activations || has(&ACTIVATION_SCALES);
        let cache = self.schemes.cache || has(&CACHE_SCALES);
        let mut sentences = Vec::new();
        if activations {
            sentences.push(
                "its scheme and scales of activations are ignored: precision says how they are \
                 rounded",
            );
        }
        if cache {
            sentences.push(
                "its scheme and scales of the KV cache are ignored: kv_dtype says how the cache is \
                 kept",
            );
        }
        sentences
    }

    fn tokenizer(&self) -> TokenizerSource<'_> {
        self.floats.tokenizer()
    }

    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        self.floats.chat_template()
    }

    fn open(&self, cancel: Option<&Cancel>) -> Result<Files> {
        self.floats.open(cancel)
    }

    /// The embedding decides the format of floats, because scales have a format of their own.
    fn keep(&self, config: &Config, files: &Files, asked: Option<Dtype>) -> Result<Keep> {
        let embedding = self.part(config, Part::Embedding, None).name + ".weight";
        let floats = files
            .tensor(&embedding)
            .and_then(|info| info.encoding.float());
        Ok(Keep {
            asked,
            floats: floats.unwrap_or(Dtype::Bf16),
        })
    }

    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart {
        self.floats.part(config, part, layer)
    }

    fn norm(&self, config: &Config, norm: Norm, layer: Option<usize>) -> String {
        self.floats.norm(config, norm, layer)
    }

    fn norm_order(&self, config: &Config, norm: Norm) -> RowOrder {
        self.floats.norm_order(config, norm)
    }

    fn coded<'a>(
        &self,
        finder: &mut Finder<'a>,
        wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        let Some(within) = wanted.within else {
            return self.whole(finder, wanted);
        };
        let whole = Wanted {
            name: &within.name,
            within: None,
            rows: within.rows,
            ..*wanted
        };
        let Some(coded) = self.whole(finder, &whole)? else {
            return Ok(None);
        };
        let (rows, of_word) = (
            within.first..within.first + wanted.rows,
            coded.rows_of_word(),
        );
        if !rows.start.is_multiple_of(of_word) || !rows.end.is_multiple_of(of_word) {
            let expected = format!("parts that begin and end at a multiple of {of_word} rows");
            let got = format!("{} in rows {} to {}", wanted.name, rows.start, rows.end);
            return Err(coded.source().wrong(expected, got));
        }
        Ok(Some(rows_of(coded, rows, wanted.cols)))
    }

    fn ignores(&self, name: &str) -> bool {
        // Here, activations and the KV cache have formats of their own.
        let mut scales = ACTIVATION_SCALES.iter().chain(&CACHE_SCALES);
        scales.any(|scale| name.ends_with(scale)) || self.floats.ignores(name)
    }
}

/// Skips a bias that the model does not have: AutoGPTQ and optimum write a bias of zeros for every
/// module.
fn drop_bias(finder: &mut Finder<'_>, wanted: &Wanted<'_>) -> Result<()> {
    let name = format!("{}.bias", wanted.name);
    if !finder.holds(&name) || finder.is_used(&name) {
        return Ok(());
    }
    let bias = finder.floats(0, &name, &[&[wanted.rows]])?;
    match floats(&bias)?.iter().position(|&x| x != 0.0) {
        None => Ok(()),
        Some(at) => {
            let expected = "a bias of zeros, as this model has none".into();
            Err(bias.wrong(expected, format!("another number at index {at}")))
        }
    }
}

/// The tensor `wanted.name` + `suffix`, of one of these shapes and encodings.
fn tensor<'a>(
    finder: &mut Finder<'a>,
    wanted: &Wanted<'_>,
    suffix: &str,
    shapes: &[&[usize]],
    encodings: &[Encoding],
) -> Result<Source<'a>> {
    let source = finder.tensor(0, &format!("{}{suffix}", wanted.name), shapes)?;
    if encodings.contains(&source.info.encoding) {
        return Ok(source);
    }
    let names: Vec<&str> = encodings.iter().map(|encoding| encoding.name()).collect();
    let got = format!("dtype {}", source.info.encoding);
    Err(source.wrong(format!("dtype {}", names.join(", ")), got))
}

/// The formats in which scales are stored.
const FLOATS: [Encoding; 3] = [Encoding::F16, Encoding::Bf16, Encoding::F32];

/// Reads the bytes of a whole tensor.
fn bytes(source: &Source<'_>) -> Result<Vec<u8>> {
    let mut bytes = zeros("numbers of a tensor", source.info.len)?;
    source.file.read(source.info, 0, &mut bytes)?;
    Ok(bytes)
}

/// Reads a whole tensor of one of [`FLOATS`] as float32.
fn floats(source: &Source<'_>) -> Result<Vec<f32>> {
    let bytes = bytes(source)?;
    let mut to = reserve::room(
        "numbers of a tensor",
        bytes.len() / source.info.encoding.size(),
    )?;
    let halves = bytes.as_chunks().0.iter();
    match source.info.encoding {
        Encoding::F16 => to.extend(halves.map(|&b| f16::from_le_bytes(b).to_f32())),
        Encoding::Bf16 => to.extend(halves.map(|&b| bf16::from_le_bytes(b).to_f32())),
        _ => to.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
    }
    Ok(to)
}

/// Reads a whole tensor of [`Encoding::I32`].
fn words(source: &Source<'_>) -> Result<Vec<u32>> {
    const PIECE: usize = 1 << 20;
    let len = source.info.len as usize;
    let mut words = reserve::room("words of a tensor", len / 4)?;
    let mut bytes = zeros("words of a tensor", PIECE.min(len) as u64)?;
    for at in (0..len).step_by(PIECE) {
        let bytes = &mut bytes[..PIECE.min(len - at)];
        source.file.read(source.info, at as u64, bytes)?;
        words.extend(bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)));
    }
    Ok(words)
}

/// Fills `to` with little-endian words.
fn bytes_to_words(bytes: &[u8], to: &mut [u32]) {
    for (&bytes, to) in bytes.as_chunks().0.iter().zip(to) {
        *to = u32::from_le_bytes(bytes);
    }
}

/// Checks that all scales of a tensor are finite.
fn check_finite(source: &Source<'_>, scales: &[f32]) -> Result<()> {
    finite::check_decoded(source, Dtype::F32, 0, scales)
}
