//! Writes quantised checkpoints, in the form that [`crate::checkpoint::llamabi`] reads.

use crate::backend::cpu::Cpu;
use crate::checkpoint::files::Source;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::stored::Stored;
use crate::checkpoint::weights::{LoadControl, Loader};
use crate::checkpoint::{self, llamabi};
use crate::file::read_small;
use crate::format::Encoding;
use crate::model::rope;
use crate::quant::{Quant, nf4};
use crate::tokenizer;
use crate::{Dtype, Error, Result};
use half::{bf16, f16};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// What is copied as it is.
const COPIED: [&str; 7] = [
    "generation_config.json",
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Reads the checkpoint in `from` (floats, in either form) and writes it, quantised, to the new
/// directory `to`.
///
/// Loading the result gives bit for bit what loading `from` with that `weights_dtype` gives. Beside
/// the weights, `to` gets the configuration with its `quantization_config`, and
/// what else `from` has of a tokenizer, a chat template and `generation_config.json`. One tensor is
/// in memory at a time.
///
/// # Errors
/// Those of [`crate::checkpoint::weights::load`]; [`Error::Io`] for what cannot be written;
/// [`Error::InvalidArgument`] if `to` exists or `from` is already quantised, and for
/// [`Quant::Fp8`].
pub fn write(from: &Path, to: &Path, quant: Quant) -> Result<()> {
    if !Quant::ALL.contains(&quant) {
        let dtype = quant.dtype();
        return Err(Error::invalid("format", "int8, int4 or nf4", dtype));
    }
    let checkpoint = checkpoint::open(from)?;
    if let Some(stored) = checkpoint.quantised() {
        let got = format!("{}, quantised as {stored} already", from.display());
        return Err(Error::invalid("the source", "a checkpoint of floats", got));
    }
    let is_there = |name: &str| from.join(name).symlink_metadata().is_ok();
    let vocab_size = match is_there("tokenizer.model") || is_there("tokenizer.json") {
        true => tokenizer::open_in(from)?.vocab_size(),
        false => 0,
    };
    let config = checkpoint.config(vocab_size)?;
    let files = checkpoint.open(None)?;
    let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, Some(quant.dtype()), &[])?;
    if let Err(e) = std::fs::create_dir(to) {
        return Err(Error::io(to, &e));
    }
    write_json(checkpoint.config_path(), to, quant)?;
    for name in COPIED {
        if is_there(name) {
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
fn write_json(from: &Path, to: &Path, quant: Quant) -> Result<()> {
    let json = read_small(from, "a configuration file", 1 << 20)?;
    let bad = |e: serde_json::Error| Error::format(from, format!("not valid JSON: {e}"));
    let mut keys: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(bad)?;
    keys.insert(
        "quantization_config".into(),
        serde_json::json!({"quant_method": "llamabi", "format": quant.dtype().name()}),
    );
    let json = serde_json::to_string_pretty(&keys).map_err(bad)? + "\n";
    let to = to.join(from.file_name().unwrap_or_default());
    std::fs::write(&to, json).map_err(|e| Error::io(&to, &e))
}

/// A tensor to write, and where its content comes from.
struct Output<'a> {
    name: String,
    encoding: Encoding,
    shape: Vec<usize>,
    source: Content<'a>,
}

enum Content<'a> {
    /// Codes of this part, which has so many columns. The tensors of its scales follow.
    Quantised(Quant, usize, &'a Stored<'a>),
    /// Scales of the preceding tensor.
    Scales,
    /// This part, which has so many columns, as it is or converted to another float.
    Floats(&'a Stored<'a>, usize, Dtype),
    /// A vector as it is.
    Vector(&'a Source<'a>),
}

fn outputs<'a>(plan: &'a Plan<'a>) -> Vec<Output<'a>> {
    let mut out = Vec::new();
    for mat in plan.matrices() {
        for (part, spec) in mat.parts.iter().zip(&mat.spec.parts) {
            let (rows, cols) = (spec.rows, mat.spec.cols);
            let name = part.name.clone();
            let Some(quant) = spec.dtype.quant() else {
                out.push(Output {
                    name,
                    encoding: match spec.dtype {
                        Dtype::F16 => Encoding::F16,
                        _ => Encoding::Bf16,
                    },
                    shape: vec![rows, cols],
                    source: Content::Floats(&part.stored, cols, spec.dtype),
                });
                continue;
            };
            for (i, tensor) in llamabi::tensors(quant, rows, cols).into_iter().enumerate() {
                out.push(Output {
                    name: name.clone() + tensor.suffix,
                    encoding: tensor.encoding,
                    shape: tensor.shape,
                    source: match i {
                        0 => Content::Quantised(quant, cols, &part.stored),
                        _ => Content::Scales,
                    },
                });
            }
        }
        let biases = mat.parts.iter().flat_map(|part| &part.bias);
        out.extend(biases.map(vector));
    }
    out.extend(plan.norms().map(vector));
    out
}

fn vector<'a>(source: &'a Source<'a>) -> Output<'a> {
    Output {
        name: source.name.to_owned(),
        encoding: source.info.encoding,
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
    let mut loader = Loader::new(backend, &mut control, plan.read_bytes());
    // The scale tensors of the preceding tensor, one by one.
    let mut scales: std::vec::IntoIter<Vec<u8>> = Vec::new().into_iter();
    for output in &outputs {
        match &output.source {
            Content::Quantised(quant, cols, stored) => {
                let mut found = Vec::new();
                loader.quantise_part(*quant, *cols, stored, |_, codes, scales| {
                    found.extend_from_slice(scales);
                    file.write_all(codes).map_err(failed)
                })?;
                scales = scale_tensors(*quant, &found)?.into_iter();
            }
            Content::Scales => {
                let bytes = scales.next().expect("as many as there are tensors");
                file.write_all(&bytes).map_err(failed)?;
            }
            Content::Floats(stored, cols, dtype) => {
                loader.float_rows(*cols, stored, *dtype, |rows| {
                    let bytes: Vec<u8> = match dtype {
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
                loader.slabs(source, 0..source.info.shape[0], Dtype::F32, write)?;
            }
        }
    }
    file.flush().map_err(failed)
}

/// The tensors that follow the codes, as bytes.
fn scale_tensors(quant: Quant, scales: &[f32]) -> Result<Vec<Vec<u8>>> {
    Ok(match quant {
        Quant::Nf4 => {
            let double = nf4::DoubleQuant::new(scales)?;
            let nested = double.nested.iter().flat_map(|s| s.to_le_bytes()).collect();
            let offset = double.offset.to_le_bytes().to_vec();
            vec![double.codes, nested, offset]
        }
        _ => {
            let bytes = scales.iter().flat_map(|&s| f16::from_f32(s).to_le_bytes());
            vec![bytes.collect()]
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
        end += output.shape.iter().product::<usize>() * output.encoding.size();
        let dtype = output.encoding.name().to_ascii_uppercase();
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
