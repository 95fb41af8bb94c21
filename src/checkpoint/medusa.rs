//! Medusa heads (Cai et al. 2024, <https://arxiv.org/abs/2401.10774>) as FasterDecoding/Medusa
//! writes them: `medusa_lm_head.safetensors` or `.pt`, and `config.json` beside it.
//!
//! Head `i` has `i.j.linear.weight` and `i.j.linear.bias` for each of its residual blocks `j`, and
//! `i.n.weight`, the vocabulary matrix, behind its `n` blocks. All names may begin with
//! `medusa_head.`, as those of a whole model do.

use super::files::{Files, Finder};
use super::keys::Keys;
use super::plan::{MatPlan, PartPlan, Plan};
use super::stored::{Piece, Stored};
use super::weights::{LoadControl, Loader};
use crate::backend::{Backend, MatSpec, MatUse, PartSpec, RowOrder};
use crate::format::{pth, safetensors};
use crate::model::Config;
use crate::model::medusa::Head;
use crate::{Cancel, Dtype, Error, Result};
use std::path::Path;

const CONFIG: &str = "config.json";
const FILE: &str = "medusa_lm_head.safetensors";
const TORCH: &str = "medusa_lm_head.pt";
const PREFIX: &str = "medusa_head.";

/// The most heads, and the most blocks of one. Beyond them is no model, but a file that is broken.
const MOST: usize = 64;

/// Medusa heads whose configuration and table of contents have been read.
#[derive(Debug)]
pub struct Medusa {
    /// `None`: there is no configuration, and the file has as many heads as there are.
    keys: Option<Keys>,
    files: Files,
}

impl Medusa {
    /// Opens a directory of heads. `cancel` is checked while the table of contents is read.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] for a configuration that cannot be understood; the errors
    /// of the files' readers.
    pub fn open(dir: &Path, cancel: Option<&Cancel>) -> Result<Medusa> {
        let holds = |name: &str| dir.join(name).symlink_metadata().is_ok();
        let keys = match holds(CONFIG) {
            true => Some(Keys::read(&dir.join(CONFIG))?),
            false => None,
        };
        let file = match holds(TORCH) && !holds(FILE) {
            true => pth::open(&dir.join(TORCH), cancel)?,
            false => safetensors::open(&dir.join(FILE), cancel)?,
        };
        let files = Files {
            path: dir.into(),
            files: vec![file],
            cut: false,
        };
        Ok(Medusa { keys, files })
    }

    /// Finds the tensors of the heads, at most `most` of them, for a model of which `plan` loads
    /// the weights on backend `B`. Their matrices are kept as the model's head is, or as int8 where
    /// the head has a format that only files have.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a tensor that is missing or misshapen; [`Error::Config`] for an
    /// impossible number of heads; [`Error::Unsupported`] for a model whose logits are scaled.
    pub(crate) fn plan<B: Backend>(
        &self,
        config: &Config,
        plan: &Plan<'_>,
        most: usize,
    ) -> Result<HeadsPlan<'_>> {
        if config.logits_scale != 1.0 {
            return Err(Error::Unsupported(format!(
                "medusa_dir: the model's logits are scaled by {}, with which Medusa heads are not \
                 known",
                config.logits_scale
            )));
        }
        let head = plan.head.as_ref().unwrap_or(&plan.embedding);
        let dtype = match head.spec.parts[0].dtype {
            dtype if dtype.is_of_files() => Dtype::Int8,
            dtype => dtype,
        };
        let mut finder = Finder::new(&self.files);
        let prefix = match finder.holds(&format!("{PREFIX}0.0.linear.weight")) {
            true => PREFIX,
            false => "",
        };
        let (n, blocks) = (
            self.size("medusa_num_heads")?,
            self.size("medusa_num_layers")?,
        );
        let count = |name: &dyn Fn(usize) -> String| {
            let is_there = |&i: &usize| finder.holds(&name(i));
            (0..MOST).take_while(is_there).count().max(1)
        };
        let blocks = blocks.unwrap_or_else(|| count(&|j| format!("{prefix}0.{j}.linear.weight")));
        let n = n.unwrap_or_else(|| count(&|i| format!("{prefix}{i}.{blocks}.weight")));
        let (dim, vocab_size) = (config.shape.dim, config.shape.vocab_size);
        let mut heads = Vec::new();
        for i in 0..n {
            let mut block = |j| {
                let name = format!("{prefix}{i}.{j}.linear");
                matrix::<B>(&mut finder, name, [dim, dim], dtype, true)
            };
            let blocks_of = (0..blocks).map(&mut block).collect::<Result<_>>()?;
            let name = format!("{prefix}{i}.{blocks}");
            heads.push(HeadPlan {
                blocks: blocks_of,
                vocabulary: matrix::<B>(&mut finder, name, [vocab_size, dim], dtype, false)?,
            });
        }
        heads.truncate(most);
        Ok(HeadsPlan { heads })
    }

    /// A size of the configuration, if there is one and it says it.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        match &self.keys {
            Some(keys) => keys.optional_size(key, MOST),
            None => Ok(None),
        }
    }
}

/// Finds `name.weight`, `[rows, cols]`, and with `bias` also `name.bias`.
fn matrix<'a, B: Backend>(
    finder: &mut Finder<'a>,
    name: String,
    [rows, cols]: [usize; 2],
    dtype: Dtype,
    bias: bool,
) -> Result<MatPlan<'a>> {
    let source = finder.floats(0, &format!("{name}.weight"), &[&[rows, cols]])?;
    let bias = match bias {
        true => Some(finder.floats(0, &format!("{name}.bias"), &[&[rows]])?),
        false => None,
    };
    if let Some(quant) = dtype.quant().filter(|quant| !quant.takes(cols)) {
        let divides = format!("rows that {} divides, for {dtype} weights", quant.group());
        return Err(source.wrong(divides, format!("rows of {cols}")));
    }
    let mut spec = MatSpec {
        parts: PartSpec::all(&[rows], dtype),
        cols,
        bias: bias.is_some(),
        scale: 1.0,
        usage: MatUse::Product,
        adapter_index: None,
    };
    B::settle(&mut spec.parts);
    let part = PartPlan {
        name: format!("{name}.weight"),
        stored: Stored::Floats(vec![Piece {
            source,
            rows: 0..rows,
            cols: 0..cols,
            row: 0,
            col: 0,
        }]),
        order: RowOrder::AsStored,
        rows: 0..rows,
        uncut: None,
        bias,
        bias_order: RowOrder::AsStored,
    };
    Ok(MatPlan {
        spec,
        parts: vec![part],
    })
}

/// Where the heads come from and where they go.
pub(crate) struct HeadsPlan<'a> {
    heads: Vec<HeadPlan<'a>>,
}

struct HeadPlan<'a> {
    blocks: Vec<MatPlan<'a>>,
    vocabulary: MatPlan<'a>,
}

impl<'a> HeadsPlan<'a> {
    fn matrices(&self) -> impl Iterator<Item = &MatPlan<'a>> {
        let heads = self.heads.iter();
        heads.flat_map(|head| head.blocks.iter().chain([&head.vocabulary]))
    }

    /// Bytes that the heads will take on `B`.
    pub fn weight_bytes<B: Backend>(&self) -> u64 {
        let bytes = self.matrices().map(|matrix| B::mat_bytes(&matrix.spec));
        bytes.fold(0, u64::saturating_add)
    }

    /// Reads the heads, as [`weights::load`](super::weights::load) reads a model.
    pub fn load<B: Backend>(
        &self,
        backend: &B,
        control: &mut LoadControl<'_>,
    ) -> Result<Vec<Head<B>>> {
        let parts = || self.matrices().flat_map(|matrix| &matrix.parts);
        let bias = |part: &PartPlan<'_>| part.bias.as_ref().map_or(0, |bias| bias.info.len);
        let bytes = parts().map(|part| part.stored.bytes() + bias(part)).sum();
        let mut loader = Loader::new(backend, control, bytes);
        let mut load = |head: &HeadPlan<'_>| {
            let blocks = head.blocks.iter().map(|block| loader.matrix(block));
            Ok(Head {
                blocks: blocks.collect::<Result<_>>()?,
                vocabulary: loader.matrix(&head.vocabulary)?,
            })
        };
        self.heads.iter().map(&mut load).collect()
    }
}
