//! Which tensors are written, how the file begins, and how tensors are written.

use super::gguf;
use super::layout::{Content, Layout, Output, Tensor, Unit, vector};
use super::partial::Partial;
use crate::backend::cpu::Cpu;
use crate::checkpoint::plan::{MatPlan, Plan};
use crate::checkpoint::quantised::Encoder;
use crate::checkpoint::stored::Stored;
use crate::checkpoint::weights::Loader;
use crate::checkpoint::{Checkpoint, Files, TokenizerSource, llamabi};
use crate::file::zeros;
use crate::format::Encoding;
use crate::format::gguf::Gguf;
use crate::model::Config;
use crate::quant::{Quant, nf4};
use crate::{Dtype, Error, Result, reserve};
use half::{bf16, f16};

/// The form of the result.
pub(super) enum Form<'a> {
    /// [`crate::checkpoint::llamabi`], for Meta's and Hugging Face's form.
    Safetensors,
    /// Q4_0 and Q8_0, for this file.
    Gguf(&'a Gguf),
}

impl<'a> Form<'a> {
    /// The form of the result for this checkpoint.
    pub fn of(checkpoint: &'a dyn Checkpoint) -> Result<Form<'a>> {
        match (checkpoint.tokenizer(), checkpoint.quantised()) {
            (TokenizerSource::Gguf(file), _) => Ok(Form::Gguf(file)),
            (_, None) => Ok(Form::Safetensors),
            (_, Some(stored)) => {
                let from = checkpoint.config_path().parent().unwrap_or("".as_ref());
                let got = format!("{}, quantised as {stored} already", from.display());
                Err(Error::invalid("the source", "a checkpoint of floats", got))
            }
        }
    }

    /// The name of the file with the weights.
    pub fn file_name(&self) -> &'static str {
        match self {
            Form::Safetensors => "model.safetensors",
            Form::Gguf(_) => "model.gguf",
        }
    }
}

impl<'a> Layout<'a> {
    /// Finds a place for every tensor of `plan`.
    pub fn new(
        form: &Form<'_>,
        checkpoint: &dyn Checkpoint,
        files: &'a Files,
        config: &Config,
        plan: &'a Plan<'a>,
    ) -> Result<Layout<'a>> {
        let unit = |name: &str, layer, outputs| Unit {
            name: name.into(),
            layer,
            outputs,
        };
        let blocks = matches!(form, Form::Gguf(_));
        let matrix = |mat: &'a MatPlan<'a>| matrix(mat, blocks);
        let mut units = vec![unit("embedding", None, matrix(&plan.embedding)?)];
        if let Some(head) = &plan.head {
            units.push(unit("head", None, matrix(head)?));
        }
        for (n, layer) in plan.layers.iter().enumerate() {
            let mut outputs = Vec::new();
            for mat in &layer.matrices {
                outputs.extend(matrix(mat)?);
            }
            units.push(unit(&format!("layer {n}"), Some(n), outputs));
        }
        units.push(unit(
            "norms",
            None,
            plan.norms().copied().map(vector).collect(),
        ));
        let mut layout = Layout {
            header: Vec::new(),
            units,
            len: 0,
        };
        match form {
            Form::Safetensors => layout.safetensors(),
            Form::Gguf(file) => gguf::place(&mut layout, file, checkpoint, files, config, plan)?,
        }
        Ok(layout)
    }

    /// A safetensors header, preceded by its length.
    fn safetensors(&mut self) {
        let mut all = serde_json::Map::new();
        all.insert("__metadata__".into(), serde_json::json!({"format": "pt"}));
        let mut end = 0;
        for tensor in self.tensors() {
            tensor.at = end;
            end += tensor.len();
            let dtype = tensor.encoding.name().to_ascii_uppercase();
            let info = serde_json::json!({
                "dtype": dtype, "shape": tensor.shape, "data_offsets": [tensor.at, end],
            });
            all.insert(tensor.name.clone(), info);
        }
        let mut header = serde_json::Value::Object(all).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        self.header = (header.len() as u64).to_le_bytes().to_vec();
        self.header.extend(header);
        let start = self.header.len() as u64;
        self.tensors().for_each(|tensor| tensor.at += start);
        self.len = start + end;
    }
}

fn matrix<'a>(mat: &'a MatPlan<'a>, blocks: bool) -> Result<Vec<Output<'a>>> {
    let mut out = Vec::new();
    for (part, spec) in mat.parts.iter().zip(&mat.spec.parts) {
        let (rows, cols) = (spec.rows, mat.spec.cols);
        let name = &part.name;
        let Some(quant) = spec.dtype.quant() else {
            let encoding = match spec.dtype {
                Dtype::F32 => Encoding::F32,
                Dtype::F16 => Encoding::F16,
                _ => Encoding::Bf16,
            };
            out.push(Output {
                tensors: vec![Tensor::new(name.clone(), encoding, vec![rows, cols])],
                content: Content::Floats(&part.stored, cols, spec.dtype),
            });
            continue;
        };
        let tensors = match blocks {
            true => {
                let encoding = gguf::encoding(quant, cols, name)?;
                vec![Tensor::new(name.clone(), encoding, vec![rows, cols])]
            }
            false => {
                let tensors = llamabi::tensors(quant, rows, cols).into_iter();
                let tensor =
                    |t: llamabi::Tensor| Tensor::new(name.clone() + t.suffix, t.encoding, t.shape);
                tensors.map(tensor).collect()
            }
        };
        out.push(Output {
            tensors,
            content: Content::Coded(quant, cols, &part.stored),
        });
    }
    out.extend(mat.parts.iter().flat_map(|part| part.bias).map(vector));
    Ok(out)
}

impl Output<'_> {
    /// Writes its tensors. `encoder` makes the codes; without it, [`Quant::encode`] does.
    pub fn write(
        &self,
        loader: &mut Loader<'_, '_, Cpu>,
        partial: &mut Partial,
        encoder: Option<&Encoder<'_>>,
    ) -> Result<()> {
        let first = self.tensors[0].at;
        match &self.content {
            Content::Coded(quant, cols, stored) => {
                self.write_codes(loader, partial, (*quant, *cols, stored), encoder)
            }
            Content::Floats(stored, cols, dtype) => {
                let mut at = first;
                loader.float_rows(*cols, stored, *dtype, |rows| {
                    let bytes: Vec<u8> = match dtype {
                        Dtype::F32 => rows.iter().flat_map(|x| x.to_le_bytes()).collect(),
                        Dtype::F16 => rows
                            .iter()
                            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                            .collect(),
                        _ => rows
                            .iter()
                            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
                            .collect(),
                    };
                    partial.put(at, &bytes)?;
                    at += bytes.len() as u64;
                    Ok(())
                })
            }
            Content::Vector(source) => {
                let mut at = first;
                let all = 0..source.info.shape[0];
                loader.slabs(source, all, Dtype::F32, |_, bytes| {
                    partial.put(at, bytes)?;
                    at += bytes.len() as u64;
                    Ok(())
                })
            }
        }
    }

    fn write_codes(
        &self,
        loader: &mut Loader<'_, '_, Cpu>,
        partial: &mut Partial,
        (quant, cols, stored): (Quant, usize, &Stored<'_>),
        encoder: Option<&Encoder<'_>>,
    ) -> Result<()> {
        let first = self.tensors[0].at;
        let width = quant.code_bytes(cols);
        let mut all_scales = Vec::new();
        let mut blocks = Vec::new();
        let mut take = |row: usize, codes: &[u8], scales: &[f32]| match self.tensors[0].encoding {
            Encoding::Ggml(kind) => {
                gguf::blocks(quant, codes, scales, &mut blocks)?;
                let row_bytes = cols / kind.block() * kind.block_bytes();
                partial.put(first + (row * row_bytes) as u64, &blocks)
            }
            _ => {
                reserve::vec("scales of a tensor", &mut all_scales, scales.len())?;
                all_scales.extend_from_slice(scales);
                partial.put(first + (row * width) as u64, codes)
            }
        };
        match (stored, encoder) {
            // Codes that are stored in this format already are not rounded again.
            (Stored::Codes(coded), None) if coded.natives().contains(&quant) => {
                let mut floats = Vec::new();
                loader.native_rows(&**coded, quant, cols, |row, codes, scales| {
                    floats.clear();
                    reserve::vec("scales of rows", &mut floats, scales.len())?;
                    floats.extend(scales.iter().map(|&s| f16::from_bits(s).to_f32()));
                    take(row, codes, &floats)
                })?;
            }
            (_, None) => loader.quantise_part(quant, cols, stored, take)?,
            (_, Some(encoder)) => loader.encode_part(quant, cols, stored, encoder, take)?,
        }
        if let Encoding::Ggml(_) = self.tensors[0].encoding {
            return Ok(());
        }
        for (tensor, bytes) in self.tensors[1..]
            .iter()
            .zip(scale_tensors(quant, &all_scales)?)
        {
            partial.put(tensor.at, &bytes)?;
        }
        Ok(())
    }

    /// Reads back rows of int4 that were written, from `row` on, as float32.
    pub fn decoded(&self, partial: &Partial, row: usize, to: &mut [f32]) -> Result<()> {
        let Content::Coded(quant, cols, _) = self.content else {
            unreachable!("a matrix in codes");
        };
        let rows = to.len() / cols;
        let (codes, first) = (&self.tensors[0], self.tensors[0].at);
        if let Encoding::Ggml(kind) = codes.encoding {
            let row_bytes = cols / kind.block() * kind.block_bytes();
            let mut bytes = zeros("blocks of rows", (rows * row_bytes) as u64)?;
            partial.get(first + (row * row_bytes) as u64, &mut bytes)?;
            kind.decode(&bytes, to);
            return Ok(());
        }
        let (width, n_scales) = (quant.code_bytes(cols), quant.scales(cols));
        let mut codes = zeros("codes of rows", (rows * width) as u64)?;
        partial.get(first + (row * width) as u64, &mut codes)?;
        let mut bytes = zeros("scales of rows", (2 * rows * n_scales) as u64)?;
        partial.get(self.tensors[1].at + (2 * row * n_scales) as u64, &mut bytes)?;
        let words = bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b));
        let scales: Vec<u16> = words.collect();
        let stored = codes.chunks_exact(width).zip(scales.chunks_exact(n_scales));
        for ((codes, scales), to) in stored.zip(to.chunks_exact_mut(cols)) {
            quant.decode(codes, scales, to);
        }
        Ok(())
    }
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
