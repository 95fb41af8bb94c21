//! Finds every stored tensor and checks its name, shape and place before any data is read.

use super::Config;
use super::config::Form;
use super::names::{self, Cut, Dtypes, Matrix, Norm};
use super::quantised;
use crate::backend::{MatSpec, MatUse, RowOrder};
use crate::format::{Checkpoint, TensorFile, TensorInfo};
use crate::quant::Quant;
use crate::{Dtype, Error, Result};
use std::collections::{HashMap, HashSet};

/// A stored tensor, found and checked.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub file: &'a TensorFile,
    pub name: &'a str,
    pub info: &'a TensorInfo,
}

/// A stored matrix and where it goes.
pub(super) struct Placed<'a> {
    pub source: Source<'a>,
    pub part: usize,
    /// First row and column in the part.
    pub row: usize,
    pub col: usize,
    pub order: RowOrder,
}

pub(super) struct MatPlan<'a> {
    pub spec: MatSpec,
    /// Floats; in order of part, row and column.
    pub weights: Vec<Placed<'a>>,
    /// Or the tensors of each part ([`quantised::stored`]), where the checkpoint is quantised.
    pub quantised: Vec<Vec<Placed<'a>>>,
    /// At most one per part.
    pub biases: Vec<Placed<'a>>,
}

pub(super) struct LayerPlan<'a> {
    pub attention_norm: Source<'a>,
    pub wqkv: MatPlan<'a>,
    pub wo: MatPlan<'a>,
    pub ffn_norm: Source<'a>,
    pub w13: MatPlan<'a>,
    pub w2: MatPlan<'a>,
}

/// Where every byte comes from and where it goes.
pub(super) struct Plan<'a> {
    pub embedding: MatPlan<'a>,
    pub layers: Vec<LayerPlan<'a>>,
    pub norm: Source<'a>,
    pub head: Option<MatPlan<'a>>,
    /// The embedding and the head, which must be equal.
    pub twins: Option<(Source<'a>, Source<'a>)>,
}

impl<'a> Plan<'a> {
    pub fn new(checkpoint: &'a Checkpoint, config: &'a Config, dtypes: Dtypes) -> Result<Self> {
        let mut finder = Finder::new(checkpoint, config);
        let usage = names::embedding_usage(config);
        let embedding =
            finder.matrix(&names::EMBEDDING, None, usage, dtypes.of_embedding(config))?;
        let mut layers = Vec::new();
        for n in 0..config.shape.n_layers {
            let n = Some(n);
            let layer = |finder: &mut Finder<'a>, matrix| {
                finder.matrix(matrix, n, MatUse::Product, dtypes.layers)
            };
            layers.push(LayerPlan {
                attention_norm: finder.norm(&names::ATTENTION_NORM, n)?,
                wqkv: layer(&mut finder, &names::WQKV)?,
                wo: layer(&mut finder, &names::WO)?,
                ffn_norm: finder.norm(&names::FFN_NORM, n)?,
                w13: layer(&mut finder, &names::W13)?,
                w2: layer(&mut finder, &names::W2)?,
            });
        }
        let norm = finder.norm(&names::NORM, None)?;
        let (mut head, mut twins) = (None, None);
        let head_name = names::HEAD.parts[0].stored_name(config.form, None) + ".weight";
        if !config.tied_embeddings {
            head = Some(finder.matrix(&names::HEAD, None, MatUse::Product, dtypes.head)?);
        } else if config.quantised.is_some() {
            // Our quantised checkpoints never store a copy of the embedding as the head.
        } else if finder.holds(&head_name) {
            let stored = finder.matrix(&names::HEAD, None, MatUse::Product, dtypes.head)?;
            twins = Some((embedding.weights[0].source, stored.weights[0].source));
        }
        finder.refuse_surplus()?;
        Ok(Plan {
            embedding,
            layers,
            norm,
            head,
            twins,
        })
    }

    /// Bytes that will be read.
    pub fn bytes(&self) -> u64 {
        let matrix = |m: &MatPlan| -> u64 {
            m.weights
                .iter()
                .chain(&m.biases)
                .chain(m.quantised.iter().flatten())
                .map(|placed| placed.source.info.len)
                .sum()
        };
        let layer = |l: &LayerPlan| {
            let norms = l.attention_norm.info.len + l.ffn_norm.info.len;
            norms
                + [&l.wqkv, &l.wo, &l.w13, &l.w2]
                    .into_iter()
                    .map(matrix)
                    .sum::<u64>()
        };
        let ends = [Some(&self.embedding), self.head.as_ref()];
        let twins = self
            .twins
            .as_ref()
            .map_or(0, |(a, b)| a.info.len + b.info.len);
        self.layers.iter().map(layer).sum::<u64>()
            + ends.into_iter().flatten().map(matrix).sum::<u64>()
            + self.norm.info.len
            + twins
    }
}

/// Finds tensors by name and keeps account of which were used.
struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a Config,
    /// The file that holds a tensor. Not used for Meta's shards, which all hold every tensor.
    owner: HashMap<&'a str, usize>,
    used: HashSet<(usize, &'a str)>,
}

impl<'a> Finder<'a> {
    pub fn new(checkpoint: &'a Checkpoint, config: &'a Config) -> Self {
        let files = checkpoint.files.iter().enumerate();
        let owner = files.flat_map(|(i, file)| file.tensors.keys().map(move |k| (k.as_str(), i)));
        Finder {
            checkpoint,
            config,
            owner: owner.collect(),
            used: HashSet::new(),
        }
    }

    fn holds(&self, name: &str) -> bool {
        self.owner.contains_key(name)
    }

    /// Whether tensors are cut, so that every file has a piece of each.
    fn is_cut(&self) -> bool {
        self.config.form == Form::Meta && self.config.quantised.is_none()
    }

    /// How many pieces a tensor comes in.
    fn shards(&self) -> usize {
        if self.is_cut() {
            self.checkpoint.files.len()
        } else {
            1
        }
    }

    /// A tensor of floats that must have one of these shapes.
    fn tensor(&mut self, shard: usize, name: &str, shapes: &[&[usize]]) -> Result<Source<'a>> {
        let source = self.any_tensor(shard, name, shapes)?;
        if source.info.dtype.is_float() {
            return Ok(source);
        }
        let expected = match self.config.quantised {
            Some(_) => "dtype f32, f16 or bf16",
            None => "dtype f32, f16 or bf16, as the configuration has no quantization_config",
        };
        Err(wrong_dtype(&source, expected.into()))
    }

    /// A tensor of any dtype.
    fn any_tensor(&mut self, shard: usize, name: &str, shapes: &[&[usize]]) -> Result<Source<'a>> {
        let index = if self.is_cut() {
            Some(shard)
        } else {
            self.owner.get(name).copied()
        };
        let expected = || {
            let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            format!("shape {}", shapes.join(" or "))
        };
        let file = index.map(|index| &self.checkpoint.files[index]);
        let held = file.and_then(|file| file.tensors.get_key_value(name));
        let (Some(file), Some((name, info))) = (file, held) else {
            return Err(Error::Tensor {
                path: file.map_or(&self.checkpoint.dir, |file| &file.path).clone(),
                tensor: name.into(),
                expected: expected(),
                got: "no such tensor".into(),
            });
        };
        if !shapes.contains(&info.shape.as_slice()) {
            let got = format!("shape {:?}", info.shape);
            let (path, tensor) = (file.path.clone(), name.clone());
            return Err(Error::Tensor {
                path,
                tensor,
                expected: expected(),
                got,
            });
        }
        self.used.insert((index.unwrap_or(0), name));
        Ok(Source { file, name, info })
    }

    /// The weight of an RMSNorm. Every shard has it; the first one's is read.
    fn norm(&mut self, norm: &Norm, layer: Option<usize>) -> Result<Source<'a>> {
        let name = norm.stored_name(self.config.form, layer) + ".weight";
        let dim = [self.config.shape.dim];
        for shard in 1..self.shards() {
            self.tensor(shard, &name, &[&dim])?;
        }
        self.tensor(0, &name, &[&dim])
    }

    fn matrix(
        &mut self,
        matrix: &Matrix,
        layer: Option<usize>,
        usage: MatUse,
        dtype: Dtype,
    ) -> Result<MatPlan<'a>> {
        let (config, n) = (self.config, self.shards());
        let spec = matrix.spec(config, dtype, usage);
        let (mut weights, mut biases, mut quantised) = (Vec::new(), Vec::new(), Vec::new());
        for (index, part) in matrix.parts.iter().enumerate() {
            let name = part.stored_name(config.form, layer);
            let order = part.row_order(config);
            let (rows, cols) = (spec.parts[index], spec.cols);
            let weight = name.clone() + ".weight";
            // If the shards do not divide the width, no shape is right; the error then names the
            // uncut shape.
            let share = |width: usize| {
                if width.is_multiple_of(n) {
                    width / n
                } else {
                    width
                }
            };
            let by_rows = [share(rows), cols];
            let by_cols = [rows, share(cols)];
            let shapes: &[&[usize]] = match part.cut {
                Cut::Rows => &[&by_rows],
                Cut::Columns => &[&by_cols],
                Cut::RowsOrColumns => &[&by_rows, &by_cols],
            };
            if spec.bias {
                let source = self.tensor(0, &(name + ".bias"), &[&[rows]])?;
                biases.push(Placed {
                    source,
                    part: index,
                    row: 0,
                    col: 0,
                    order,
                });
            }
            if let (Some(quant), Some(_)) = (dtype.quant(), config.quantised) {
                let tensors = self.quantised(quant, &weight, rows, cols)?;
                let place = |source| Placed {
                    source,
                    part: index,
                    row: 0,
                    col: 0,
                    order,
                };
                quantised.push(tensors.into_iter().map(place).collect());
                continue;
            }
            // If either cut is possible, the first shard decides.
            let first = self.tensor(0, &weight, shapes)?;
            if let Some(quant) = dtype.quant().filter(|quant| !quant.takes(cols)) {
                return Err(Error::Tensor {
                    path: first.file.path.clone(),
                    tensor: weight,
                    expected: format!("rows that {} divides, for {dtype} weights", quant.group()),
                    got: format!("rows of {cols}"),
                });
            }
            let shape = first.info.shape.as_slice();
            for shard in 0..n {
                let source = self.tensor(shard, &weight, &[shape])?;
                let (row, col) = if shape == by_rows {
                    (shard * shape[0], 0)
                } else {
                    (0, shard * shape[1])
                };
                if row + shape[0] > rows || col + shape[1] > cols {
                    return Err(Error::Tensor {
                        path: source.file.path.clone(),
                        tensor: weight,
                        expected: format!("one of {n} equal shards of shape [{rows}, {cols}]"),
                        got: format!("shape {shape:?}"),
                    });
                }
                weights.push(Placed {
                    source,
                    part: index,
                    row,
                    col,
                    order,
                });
            }
        }
        Ok(MatPlan {
            spec,
            weights,
            quantised,
            biases,
        })
    }

    /// The tensors of a quantised matrix.
    fn quantised(
        &mut self,
        quant: Quant,
        weight: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Source<'a>>> {
        let mut found = Vec::new();
        for stored in quantised::stored(quant, rows, cols) {
            let name = weight.to_owned() + stored.suffix;
            let source = self.any_tensor(0, &name, &[&stored.shape])?;
            if source.info.dtype != stored.dtype {
                let expected = format!("dtype {}, as weights are {}", stored.dtype, quant.dtype());
                return Err(wrong_dtype(&source, expected));
            }
            found.push(source);
        }
        Ok(found)
    }

    fn refuse_surplus(&self) -> Result<()> {
        for (index, file) in self.checkpoint.files.iter().enumerate() {
            for (name, info) in &file.tensors {
                if !self.used.contains(&(index, name.as_str())) && !names::is_ignored(name) {
                    return Err(Error::Tensor {
                        path: file.path.clone(),
                        tensor: name.clone(),
                        expected: "no such tensor in this model".into(),
                        got: format!("shape {:?} of {}", info.shape, info.dtype),
                    });
                }
            }
        }
        Ok(())
    }
}

fn wrong_dtype(source: &Source<'_>, expected: String) -> Error {
    Error::Tensor {
        path: source.file.path.clone(),
        tensor: source.name.into(),
        expected,
        got: format!("dtype {}", source.info.dtype),
    }
}
