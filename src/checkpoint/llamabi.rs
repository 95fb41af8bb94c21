//! Checkpoints with weights that we quantised, in Meta's or in Hugging Face's form: the names and
//! shapes of their tensors. [`crate::llama::quantise`] writes them.
//!
//! A matrix `NAME.weight`, `[rows, cols]`, of a float checkpoint is stored as
//!
//! | format | tensor | dtype | shape |
//! |---|---|---|---|
//! | int8 | `NAME.weight` | I8 | `[rows, cols]` |
//! | | `NAME.weight.scale` | F16 | `[rows, cols / 32, rounded up]` |
//! | int4 | `NAME.weight` | U8 | `[rows, cols / 2, rounded up]`, the first code in the upper half |
//! | | `NAME.weight.scale` | F16 | `[rows, cols / 32, rounded up]` |
//! | nf4 | `NAME.weight` | U8 | `[rows, cols / 2]`, the first code in the upper half |
//! | | `NAME.weight.absmax` | U8 | `[rows, cols / 64]`, codes of the dynamic 8-bit map |
//! | | `NAME.weight.nested_absmax` | F32 | `[rows * cols / 64 / 256, rounded up]` |
//! | | `NAME.weight.nested_offset` | F32 | `[1]` |
//!
//! [`crate::quant`] says what the codes mean. Names and the order of rows are those of the source
//! (Meta's or Hugging Face's), with shards merged. `params.json` or `config.json` has
//! `"quantization_config": {"quant_method": "llamabi", "format": "int8" | "int4" | "nf4"}`: the
//! format of the layers' matrices. The head is int8 ([`super::Keep`]); an embedding that is only
//! looked up, norms and biases are floats. All tensors lie in `model.safetensors`, also beside
//! Meta's `params.json`.

use super::files::{Files, Finder, Source};
use super::keys::Keys;
use super::stored::{
    ChatTemplate, Checkpoint, Coded, Keep, Rows, StoredPart, TokenizerSource, Wanted,
};
use super::{finite, hugging_face};
use crate::backend::{MatUse, RowOrder};
use crate::file::zeros;
use crate::format::Encoding;
use crate::model::Config;
use crate::model::matrices::{Norm, Part};
use crate::quant::Quant;
use crate::quant::nf4::{self, DoubleQuant};
use crate::{Cancel, Dtype, Error, Result, reserve};
use std::path::Path;

/// The key of a configuration that says how weights are quantised.
const CONFIG_KEY: &str = "quantization_config";

/// One of the tensors in which a quantised matrix is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The part of its name that follows `NAME.weight`.
    pub suffix: &'static str,
    /// The encoding of its bytes.
    pub encoding: Encoding,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// The tensors of a matrix, codes first.
pub fn tensors(quant: Quant, rows: usize, cols: usize) -> Vec<Tensor> {
    let tensor = |suffix, encoding, shape| Tensor {
        suffix,
        encoding,
        shape,
    };
    let codes = |encoding| tensor("", encoding, vec![rows, quant.code_bytes(cols)]);
    let scales = |suffix, encoding| tensor(suffix, encoding, vec![rows, quant.scales(cols)]);
    match quant {
        Quant::Int8 => vec![codes(Encoding::I8), scales(".scale", Encoding::F16)],
        Quant::Int4 => vec![codes(Encoding::U8), scales(".scale", Encoding::F16)],
        Quant::Nf4 => {
            let nested = (rows * quant.scales(cols)).div_ceil(nf4::NESTED);
            vec![
                codes(Encoding::U8),
                scales(".absmax", Encoding::U8),
                tensor(".nested_absmax", Encoding::F32, vec![nested]),
                tensor(".nested_offset", Encoding::F32, vec![1]),
            ]
        }
        _ => unreachable!("no checkpoint of ours has {quant:?}"),
    }
}

/// Whether a configuration has a `quantization_config`.
pub(super) fn is_named(keys: &Keys) -> bool {
    keys.get(CONFIG_KEY).is_some()
}

/// Reads `{"quant_method": "llamabi", "format": "int4"}`. Other methods are an error here.
pub(super) fn format(keys: &Keys) -> Result<Option<Quant>> {
    let Some(inner) = keys.object(CONFIG_KEY)? else {
        return Ok(None);
    };
    if inner.optional_name("quant_method", &["llamabi"])?.is_none() {
        return Err(inner.wrong("quant_method", "llamabi"));
    }
    // An unknown option is refused, because it might change the meaning of the codes.
    let known = ["quant_method", "format"];
    if let Some(key) = inner.names().find(|key| !known.contains(key)) {
        return Err(inner.wrong(key, format!("no such key beside {}", known.join(" and "))));
    }
    let names = Quant::OURS.map(|quant| quant.dtype().name());
    match inner.optional_name("format", &names)? {
        Some(name) => Ok(Quant::named(name)),
        None => Err(inner.wrong("format", format!("one of {}", names.join(", ")))),
    }
}

/// A checkpoint in the form of `F` whose layers are quantised.
#[derive(Debug)]
pub struct Llamabi<F> {
    floats: F,
    quant: Quant,
}

impl<F: Checkpoint> Llamabi<F> {
    /// The checkpoint `floats` with weights that we quantised. `floats` describes the same model
    /// with float weights.
    pub fn new(floats: F, quant: Quant) -> Self {
        Llamabi { floats, quant }
    }

    /// The format in which a part is stored; `None` for floats.
    fn quant_of(&self, part: Part, usage: MatUse) -> Option<Quant> {
        match (part, usage) {
            (Part::Embedding, MatUse::Lookup) => None,
            (Part::Embedding | Part::Head, _) => Some(Quant::Int8),
            _ => Some(self.quant),
        }
    }
}

impl<F: Checkpoint> Checkpoint for Llamabi<F> {
    fn form(&self) -> &'static str {
        self.floats.form()
    }

    fn quantised(&self) -> Option<&'static str> {
        Some(self.quant.dtype().name())
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

    fn tokenizer(&self) -> TokenizerSource<'_> {
        self.floats.tokenizer()
    }

    fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        self.floats.chat_template()
    }

    fn open(&self, cancel: Option<&Cancel>) -> Result<Files> {
        let dir = self.config_path().parent().unwrap_or(Path::new(""));
        hugging_face::open(dir, cancel)
    }

    /// A checkpoint that we quantised is kept as it is stored.
    fn keep(&self, config: &Config, files: &Files, asked: Option<Dtype>) -> Result<Keep> {
        let dtype = self.quant.dtype();
        if let Some(asked) = asked.filter(|&asked| asked != dtype) {
            return Err(Error::Unsupported(format!(
                "weights_dtype is {asked}, but the checkpoint is quantised as {dtype}: only that \
                 and AUTO are possible"
            )));
        }
        // The embedding decides the format of floats, because scales have a format of their own.
        let embedding = self.part(config, Part::Embedding, None).name + ".weight";
        let floats = match files.tensor(&embedding).map(|info| info.encoding) {
            Some(Encoding::F16) => Dtype::F16,
            _ => Dtype::Bf16,
        };
        Ok(Keep {
            asked: None,
            floats,
        })
    }

    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart {
        // Parts that share a tensor in the source have tensors of their own here.
        StoredPart {
            within: None,
            ..self.floats.part(config, part, layer)
        }
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
        let Some(quant) = self.quant_of(wanted.part, wanted.usage) else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for tensor in tensors(quant, wanted.rows, wanted.cols) {
            let name = format!("{}.weight{}", wanted.name, tensor.suffix);
            let source = finder.tensor(0, &name, &[&tensor.shape])?;
            if source.info.encoding != tensor.encoding {
                let expected = format!(
                    "dtype {}, as weights are {}",
                    tensor.encoding,
                    quant.dtype()
                );
                let got = format!("dtype {}", source.info.encoding);
                return Err(source.wrong(expected, got));
            }
            found.push(source);
        }
        Ok(Some(Box::new(Quantised {
            quant,
            cols: wanted.cols,
            tensors: found,
        })))
    }

    fn ignores(&self, name: &str) -> bool {
        self.floats.ignores(name)
    }
}

/// The tensors of a part, as [`tensors`] lists them.
struct Quantised<'a> {
    quant: Quant,
    cols: usize,
    tensors: Vec<Source<'a>>,
}

impl Coded for Quantised<'_> {
    fn source(&self) -> &Source<'_> {
        &self.tensors[0]
    }

    fn rows(&self) -> usize {
        self.tensors[0].info.shape[0]
    }

    fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.info.len).sum()
    }

    fn natives(&self) -> &[Quant] {
        std::slice::from_ref(&self.quant)
    }

    fn reader(&self) -> Result<Box<dyn Rows + '_>> {
        let scales = match self.quant {
            Quant::Nf4 => Some(self.expanded_scales()?),
            _ => None,
        };
        Ok(Box::new(Reader {
            stored: self,
            scales,
        }))
    }
}

impl Quantised<'_> {
    /// Decodes the scales of the whole tensor, which share a mean, to bits of f16.
    fn expanded_scales(&self) -> Result<Vec<u16>> {
        let mut codes = zeros("scales of a tensor", self.tensors[1].info.len)?;
        finite::read(&self.tensors[1], Dtype::F32, 0, &mut codes)?;
        let floats = |source: &Source| {
            let mut bytes = zeros("scales of a tensor's scales", source.info.len)?;
            finite::read(source, Dtype::F32, 0, &mut bytes)?;
            let floats = bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
            Ok::<Vec<f32>, Error>(floats.collect())
        };
        let double = DoubleQuant {
            codes,
            nested: floats(&self.tensors[2])?,
            offset: floats(&self.tensors[3])?[0],
        };
        let scales = double.scales()?;
        finite::check_halves(&self.tensors[0], 0, &scales)?;
        Ok(scales)
    }
}

struct Reader<'a, 'b> {
    stored: &'b Quantised<'a>,
    /// All scales of the tensor, if they cannot be read by rows.
    scales: Option<Vec<u16>>,
}

impl Reader<'_, '_> {
    fn scales(&self, row: usize, to: &mut [u16]) -> Result<()> {
        let first = row * self.stored.quant.scales(self.stored.cols);
        if let Some(scales) = &self.scales {
            to.copy_from_slice(&scales[first..first + to.len()]);
            return Ok(());
        }
        let mut bytes = zeros("scales of rows", 2 * to.len() as u64)?;
        let source = &self.stored.tensors[1];
        finite::read(source, Dtype::F32, 2 * first as u64, &mut bytes)?;
        for (scale, &bytes) in to.iter_mut().zip(bytes.as_chunks().0) {
            *scale = u16::from_le_bytes(bytes);
        }
        Ok(())
    }
}

impl Rows for Reader<'_, '_> {
    fn native(&self, _: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()> {
        let source = &self.stored.tensors[0];
        finite::read(source, Dtype::F32, (row * source.row_bytes()) as u64, codes)?;
        self.scales(row, scales)
    }

    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()> {
        let (quant, cols) = (self.stored.quant, self.stored.cols);
        let (width, n_scales) = (quant.code_bytes(cols), quant.scales(cols));
        let rows = to.len() / cols;
        let mut codes = zeros("codes of rows", (rows * width) as u64)?;
        let mut scales = Vec::new();
        reserve::vec("scales of rows", &mut scales, rows * n_scales)?;
        scales.resize(rows * n_scales, 0);
        self.native(quant, row, &mut codes, &mut scales)?;
        let stored = codes.chunks_exact(width).zip(scales.chunks_exact(n_scales));
        for ((codes, scales), to) in stored.zip(to.chunks_exact_mut(cols)) {
            quant.decode(codes, scales, to);
        }
        Ok(())
    }
}
