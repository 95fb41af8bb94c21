//! Quantised checkpoints: the names and shapes of their tensors, and how they are written.
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
//! format of the layers' matrices. The head is int8 ([`super::names::Dtypes`]); an embedding that
//! is only looked up, norms and biases are floats. All tensors lie in `model.safetensors`, also
//! beside Meta's `params.json`.

use super::config::{Config, Form};
use super::names::Dtypes;
use super::plan::{LayerPlan, Placed, Plan, Source};
use super::rope;
use super::weights::{LoadControl, Loader};
use crate::backend::cpu::Cpu;
use crate::file::read_small;
use crate::quant::{Quant, nf4};
use crate::tokenizer;
use crate::{Dtype, Error, Result};
use half::{bf16, f16};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// One of the tensors in which a quantised matrix is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// What follows `NAME.weight` in its name.
    pub suffix: &'static str,
    /// Its format.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// The tensors of a matrix, codes first.
pub fn stored(quant: Quant, rows: usize, cols: usize) -> Vec<Stored> {
    let tensor = |suffix, dtype, shape| Stored {
        suffix,
        dtype,
        shape,
    };
    let codes = |dtype| tensor("", dtype, vec![rows, quant.code_bytes(cols)]);
    let scales = |suffix, dtype| tensor(suffix, dtype, vec![rows, quant.scales(cols)]);
    match quant {
        Quant::Fp8 => unreachable!("no checkpoint has it"),
        Quant::Int8 => vec![codes(Dtype::Int8), scales(".scale", Dtype::F16)],
        Quant::Int4 => vec![codes(Dtype::U8), scales(".scale", Dtype::F16)],
        Quant::Nf4 => {
            let nested = (rows * quant.scales(cols)).div_ceil(nf4::NESTED);
            vec![
                codes(Dtype::U8),
                scales(".absmax", Dtype::U8),
                tensor(".nested_absmax", Dtype::F32, vec![nested]),
                tensor(".nested_offset", Dtype::F32, vec![1]),
            ]
        }
    }
}

/// Reads the checkpoint in `from` (floats, in either form) and writes it, quantised, to the new
/// directory `to`.
///
/// Loading the result gives bit for bit what loading `from` with that `weights_dtype` gives. Beside
/// the weights, `to` gets the configuration with its `quantization_config`, and
/// `generation_config.json` and `tokenizer.model` if `from` has them. One tensor is in memory at a
/// time.
///
/// # Errors
/// Those of [`super::weights::load`]; [`Error::Io`] for what cannot be written;
/// [`Error::InvalidArgument`] if `to` exists or `from` is already quantised, and for
/// [`Quant::Fp8`].
pub fn write(from: &Path, to: &Path, quant: Quant) -> Result<()> {
    if !Quant::ALL.contains(&quant) {
        let dtype = quant.dtype();
        return Err(Error::invalid("format", "int8, int4 or nf4", dtype));
    }
    let form = Form::of(from)?;
    let tokenizer = from.join("tokenizer.model");
    let vocab_size = match tokenizer.symlink_metadata() {
        Ok(_) => tokenizer::open(&tokenizer)?.vocab_size(),
        Err(_) => 0,
    };
    let config = Config::read(from, vocab_size)?;
    if let Some(quant) = config.quantised {
        let got = format!("{}, quantised as {} already", from.display(), quant.dtype());
        return Err(Error::invalid("the source", "a checkpoint of floats", got));
    }
    let checkpoint = config.open(from, None)?;
    let dtypes = Dtypes::choose(Some(quant.dtype()), &checkpoint, &config);
    let plan = Plan::new(&checkpoint, &config, dtypes)?;
    if let Err(e) = std::fs::create_dir(to) {
        return Err(Error::io(to, &e));
    }
    write_json(from, to, form, quant)?;
    for name in ["generation_config.json", "tokenizer.model"] {
        if from.join(name).symlink_metadata().is_ok() {
            let copied = std::fs::copy(from.join(name), to.join(name));
            copied.map_err(|e| Error::io(to.join(name), &e))?;
        }
    }
    // The backend only quantises, on all cores; it computes nothing.
    let rope = rope::table(&config, 1)?;
    let backend = Cpu::new(&config.shape, rope, 0, 1)?;
    write_weights(&backend, &plan, &to.join("model.safetensors"))
}

/// The configuration, with one more key.
fn write_json(from: &Path, to: &Path, form: Form, quant: Quant) -> Result<()> {
    let name = match form {
        Form::Meta => "params.json",
        Form::HuggingFace => "config.json",
    };
    let json = read_small(&from.join(name), "a configuration file", 1 << 20)?;
    let bad = |e: serde_json::Error| Error::format(from.join(name), format!("not valid JSON: {e}"));
    let mut keys: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(bad)?;
    keys.insert(
        "quantization_config".into(),
        serde_json::json!({"quant_method": "llamabi", "format": quant.dtype().name()}),
    );
    let json = serde_json::to_string_pretty(&keys).map_err(bad)? + "\n";
    std::fs::write(to.join(name), json).map_err(|e| Error::io(to.join(name), &e))
}

/// A tensor to write, and where its content comes from.
struct Output<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    source: Content<'a>,
}

enum Content<'a> {
    /// Codes of these pieces, which together are `[rows, cols]`; the tensors of their scales
    /// follow.
    Quantised(Quant, usize, &'a [Placed<'a>]),
    /// Scales of the preceding tensor.
    Scales,
    /// These pieces as they are, or converted to another float.
    Floats(&'a [Placed<'a>], usize),
    /// A vector as it is.
    Vector(&'a Source<'a>),
}

fn outputs<'a>(plan: &'a Plan<'a>) -> Vec<Output<'a>> {
    let mut out = Vec::new();
    let matrices = |l: &'a LayerPlan<'a>| [&l.wqkv, &l.wo, &l.w13, &l.w2];
    let ends = [Some(&plan.embedding), plan.head.as_ref()];
    let all = plan.layers.iter().flat_map(matrices);
    for mat in ends.into_iter().flatten().chain(all) {
        for pieces in mat.weights.chunk_by(|a, b| a.part == b.part) {
            let first = &pieces[0];
            let (rows, cols) = (mat.spec.parts[first.part], mat.spec.cols);
            let name = first.source.name.to_owned();
            let Some(quant) = mat.spec.dtype.quant() else {
                out.push(Output {
                    name,
                    dtype: mat.spec.dtype,
                    shape: vec![rows, cols],
                    source: Content::Floats(pieces, cols),
                });
                continue;
            };
            for (i, stored) in stored(quant, rows, cols).into_iter().enumerate() {
                out.push(Output {
                    name: name.clone() + stored.suffix,
                    dtype: stored.dtype,
                    shape: stored.shape,
                    source: match i {
                        0 => Content::Quantised(quant, cols, pieces),
                        _ => Content::Scales,
                    },
                });
            }
        }
        out.extend(mat.biases.iter().map(|bias| vector(&bias.source)));
    }
    for layer in &plan.layers {
        out.extend([&layer.attention_norm, &layer.ffn_norm].map(vector));
    }
    out.push(vector(&plan.norm));
    out
}

fn vector<'a>(source: &'a Source<'a>) -> Output<'a> {
    Output {
        name: source.name.to_owned(),
        dtype: source.info.dtype,
        shape: source.info.shape.clone(),
        source: Content::Vector(source),
    }
}

fn write_weights(backend: &Cpu, plan: &Plan, path: &Path) -> Result<()> {
    let outputs = outputs(plan);
    let failed = |e: std::io::Error| Error::io(path, &e);
    let file = File::create_new(path).map_err(failed)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&header(&outputs)).map_err(failed)?;
    let mut progress = |_: f32| true;
    let mut control = LoadControl {
        cancel: None,
        progress: &mut progress,
    };
    let mut loader = Loader::new(backend, &mut control, plan.bytes());
    // The scale tensors of the preceding tensor, one by one.
    let mut scales: std::vec::IntoIter<Vec<u8>> = Vec::new().into_iter();
    for output in &outputs {
        match &output.source {
            Content::Quantised(quant, cols, pieces) => {
                let mut found = Vec::new();
                loader.quantise_part(*quant, *cols, pieces, |_, codes, scales| {
                    found.extend_from_slice(scales);
                    file.write_all(codes).map_err(failed)
                })?;
                scales = scale_tensors(*quant, &found)?.into_iter();
            }
            Content::Scales => {
                let bytes = scales.next().expect("as many as there are tensors");
                file.write_all(&bytes).map_err(failed)?;
            }
            Content::Floats(pieces, cols) => {
                loader.float_rows(*cols, pieces, output.dtype, |rows| {
                    let bytes: Vec<u8> = match output.dtype {
                        Dtype::F16 => rows
                            .iter()
                            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                            .collect(),
                        _ => rows
                            .iter()
                            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                            .collect(),
                    };
                    file.write_all(&bytes).map_err(failed)
                })?;
            }
            Content::Vector(source) => {
                let write = |_, bytes: &[u8]| file.write_all(bytes).map_err(failed);
                loader.slabs(source, Dtype::F32, write)?;
            }
        }
    }
    file.flush().map_err(failed)
}

/// The tensors that follow the codes, as bytes.
fn scale_tensors(quant: Quant, scales: &[f32]) -> Result<Vec<Vec<u8>>> {
    Ok(match quant {
        Quant::Int8 | Quant::Int4 | Quant::Fp8 => {
            let bytes = scales.iter().flat_map(|&s| f16::from_f32(s).to_le_bytes());
            vec![bytes.collect()]
        }
        Quant::Nf4 => {
            let double = nf4::DoubleQuant::new(scales)?;
            let nested = double.nested.iter().flat_map(|s| s.to_le_bytes()).collect();
            let offset = double.offset.to_le_bytes().to_vec();
            vec![double.codes, nested, offset]
        }
    })
}

/// A safetensors header, preceded by its length.
fn header(outputs: &[Output]) -> Vec<u8> {
    let mut tensors = serde_json::Map::new();
    tensors.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
    let mut end = 0;
    for output in outputs {
        let start = end;
        end += output.shape.iter().product::<usize>() * output.dtype.size();
        let dtype = match output.dtype {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::Int8 => "I8",
            Dtype::U8 | Dtype::Int4 | Dtype::Nf4 | Dtype::Fp8 => "U8",
        };
        let info = serde_json::json!({
            "dtype": dtype, "shape": output.shape, "data_offsets": [start, end],
        });
        tensors.insert(output.name.clone(), info);
    }
    let mut header = serde_json::Value::Object(tensors).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes
}
