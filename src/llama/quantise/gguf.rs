//! A GGUF file with the same keys, and with matrices in Q4_0 and Q8_0: int4 and int8 by other
//! names.

use super::layout::{Layout, Unit, vector};
use crate::checkpoint::files::Finder;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::{Checkpoint, Files};
use crate::format::Encoding;
use crate::format::gguf::Gguf;
use crate::model::Config;
use crate::quant::Quant;
use crate::quant::ggml::Type;
use crate::{Error, Result, reserve};
use half::f16;

/// The key of the most frequent type, and its values for Q4_0 and Q8_0 (`enum llama_ftype`).
const FILE_TYPE: &str = "general.file_type";
const MOSTLY: [(Type, u32); 2] = [(Type::Q4_0, 2), (Type::Q8_0, 7)];

/// The encoding whose blocks have `quant`'s codes.
pub(super) fn encoding(quant: Quant, cols: usize, name: &str) -> Result<Encoding> {
    let kind = match quant {
        Quant::Int4 => Type::Q4_0,
        Quant::Int8 => Type::Q8_0,
        _ => {
            let dtype = quant.dtype();
            return Err(Error::invalid(
                "format",
                "int8 or int4, for a GGUF file",
                dtype,
            ));
        }
    };
    match kind.row_bytes(cols) {
        Some(_) => Ok(kind.into()),
        None => Err(Error::Unsupported(format!(
            "tensor `{name}` has rows of {cols}; {kind} needs multiples of {}",
            kind.block()
        ))),
    }
}

/// Codes and scales as blocks: a scale in f16, then the codes of 32 weights.
pub(super) fn blocks(quant: Quant, codes: &[u8], scales: &[f32], to: &mut Vec<u8>) -> Result<()> {
    to.clear();
    reserve::vec("blocks of rows", to, codes.len() + 2 * scales.len())?;
    let width = codes.len() / scales.len();
    for (codes, &scale) in codes.chunks_exact(width).zip(scales) {
        to.extend(f16::from_f32(scale).to_le_bytes());
        if quant == Quant::Int8 {
            to.extend(codes);
            continue;
        }
        // In our codes, neighbours share a byte, and the first is in the upper half. In ggml's
        // codes, weights i and i + 16 share a byte, and the first is in the lower half.
        let code = |i: usize| codes[i / 2] >> (4 - 4 * (i % 2)) & 15;
        to.extend((0..16).map(|i| code(i) | code(i + 16) << 4));
    }
    Ok(())
}

/// Writes the header of the file, and finds a place for every tensor.
pub(super) fn place<'a>(
    layout: &mut Layout<'a>,
    file: &Gguf,
    checkpoint: &dyn Checkpoint,
    files: &'a Files,
    config: &Config,
    plan: &'a Plan<'a>,
) -> Result<()> {
    if config.family.fused {
        let family = config.family.model_type;
        return Err(Error::Unsupported(format!(
            "GGUF files of {family} are not quantised, whose tensors hold several matrices"
        )));
    }
    let mut copied = Vec::new();
    for (name, info) in files.files.iter().flat_map(|file| &file.tensors) {
        if checkpoint.ignores(name) && info.encoding.float().is_some() {
            copied.push(Finder::new(files).vector(name)?);
        }
    }
    let rest = Unit {
        name: "what the configuration has".into(),
        layer: None,
        outputs: copied.into_iter().map(vector).collect(),
    };
    layout.units.push(rest);
    let layer = &plan.layers[0].matrices[3].spec.parts[0];
    let kind = match layer.dtype.quant() {
        Some(Quant::Int8) => Type::Q8_0,
        _ => Type::Q4_0,
    };
    let number = MOSTLY
        .iter()
        .find(|entry| entry.0 == kind)
        .map_or(0, |e| e.1);
    let (n_keys, keys) = file.metadata(FILE_TYPE, number)?;
    let alignment = file.alignment()?;
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((layout.tensors().count() as u64).to_le_bytes());
    header.extend(n_keys.to_le_bytes());
    header.extend(keys);
    let mut end = 0u64;
    for tensor in layout.tensors() {
        tensor.at = end.next_multiple_of(alignment);
        end = tensor.at + tensor.len();
        header.extend((tensor.name.len() as u64).to_le_bytes());
        header.extend(tensor.name.as_bytes());
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        for &size in tensor.shape.iter().rev() {
            header.extend((size as u64).to_le_bytes());
        }
        header.extend(number_of(tensor.encoding).to_le_bytes());
        header.extend(tensor.at.to_le_bytes());
    }
    let start = (header.len() as u64).next_multiple_of(alignment);
    header.resize(start as usize, 0);
    layout.tensors().for_each(|tensor| tensor.at += start);
    layout.header = header;
    layout.len = start + end;
    Ok(())
}

/// The number of an encoding (`enum ggml_type`).
fn number_of(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Ggml(Type::Q4_0) => 2,
        Encoding::Ggml(Type::Q8_0) => 8,
        Encoding::F16 => 1,
        Encoding::Bf16 => 30,
        _ => 0,
    }
}
