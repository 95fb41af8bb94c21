//! Finds every stored tensor and checks its name, shape and place before any data is read.

use super::adapter::{Adapter, Merging};
use super::cut::read_as_a_whole;
use super::files::{Files, Finder, Source};
use super::stored::{Checkpoint, Cut, Keep, Piece, Stored, StoredPart, Wanted};
use crate::backend::{Backend, MatSpec, MatUse, PartSpec, Rotation, RowOrder};
use crate::model::Config;
use crate::model::matrices::{self, Matrix, Norm, Part};
use crate::quant::Quant;
use crate::{Dtype, Result};
use std::ops::Range;

/// For every byte of the weights, where it comes from and where it goes.
pub struct Plan<'a> {
    pub(crate) embedding: MatPlan<'a>,
    pub(crate) layers: Vec<LayerPlan<'a>>,
    pub(crate) norm: NormPlan<'a>,
    pub(crate) head: Option<MatPlan<'a>>,
    /// The embedding and the head, if a tied model stores both. They must be equal.
    pub(crate) twins: Option<(Source<'a>, Source<'a>)>,
}

/// A layer: [`matrices::LAYER_NORMS`] and [`matrices::LAYER`].
pub(crate) struct LayerPlan<'a> {
    pub norms: [NormPlan<'a>; matrices::LAYER_NORMS.len()],
    /// The norms of the heads of q and k.
    pub head_norms: Option<[NormPlan<'a>; 2]>,
    pub matrices: [MatPlan<'a>; matrices::LAYER.len()],
    pub rotation: Rotation,
    pub window: Option<usize>,
}

/// The weight of an RMSNorm.
pub(crate) struct NormPlan<'a> {
    pub source: Source<'a>,
    /// How its stored numbers are put into our order.
    pub order: RowOrder,
    /// The factor by which they are multiplied.
    pub scale: f32,
}

/// A matrix of ours.
pub(crate) struct MatPlan<'a> {
    pub spec: MatSpec,
    /// The plans of the parts of `spec`.
    pub parts: Vec<PartPlan<'a>>,
}

pub(crate) struct PartPlan<'a> {
    /// The name that it would have as a tensor of its own.
    pub name: String,
    pub stored: Stored<'a>,
    /// How its stored rows are put into our order.
    pub order: RowOrder,
    /// The rows of the part that are kept: all, or those of a rank.
    pub rows: Range<usize>,
    /// What is kept of a part that a rank reads as a whole.
    pub uncut: Option<Uncut>,
    pub bias: Option<Source<'a>>,
    /// How the numbers of its bias are put into our order: an adapter may replace the rows alone.
    pub bias_order: RowOrder,
}

/// The part that a rank keeps of a tensor that it reads as a whole.
pub(crate) struct Uncut {
    /// Columns of the whole part.
    pub cols: usize,
    /// Rows of the whole part.
    pub rows: usize,
    /// Rows and columns that are kept.
    pub kept: [Range<usize>; 2],
}

impl<'a> Plan<'a> {
    /// Finds all tensors, for backend `B`. `asked` is the format in which weights are to be kept;
    /// `None` means as they are stored. `adapters` are merged in this order.
    ///
    /// # Errors
    /// [`crate::Error::Tensor`] for a tensor that is missing, misshapen or surplus;
    /// [`crate::Error::Unsupported`] if this checkpoint cannot be kept in the format that is asked
    /// for.
    pub fn new<B: Backend>(
        checkpoint: &dyn Checkpoint,
        files: &'a Files,
        config: &Config,
        asked: Option<Dtype>,
        adapters: &'a [Adapter],
    ) -> Result<Plan<'a>> {
        let mut planner = Planner {
            checkpoint,
            config,
            keep: checkpoint.keep(config, files, asked)?,
            keeps: B::keeps,
            settle: B::settle,
            finder: Finder::new(files),
            adapters: adapters.iter().map(Merging::new).collect(),
        };
        let usage = matrices::embedding_usage(config);
        let embedding = planner.matrix(&matrices::EMBEDDING, None, usage)?;
        let mut layers = Vec::new();
        for n in 0..config.shape.n_layers {
            layers.push(planner.layer(n)?);
        }
        let norm = planner.norm(Norm::Last, None)?;
        let (mut head, mut twins) = (None, None);
        if !config.tied_embeddings {
            head = Some(planner.matrix(&matrices::HEAD, None, MatUse::Product)?);
        } else if let Stored::Floats(pieces) = &embedding.parts[0].stored {
            twins = planner.twin_of(&pieces[0].source)?;
        }
        let ignored = |name: &str| checkpoint.ignores(name);
        planner.finder.refuse_surplus(ignored)?;
        for adapter in &planner.adapters {
            adapter.refuse_surplus()?;
        }
        Ok(Plan {
            embedding,
            layers,
            norm,
            head,
            twins,
        })
    }

    /// All matrices: the embedding, the head, then those of the layers in order.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MatPlan<'a>> {
        let layers = self.layers.iter().flat_map(|layer| &layer.matrices);
        std::iter::once(&self.embedding)
            .chain(&self.head)
            .chain(layers)
    }

    /// The tensors of all norms: those of the layers in order, then that of the last norm.
    pub(crate) fn norms(&self) -> impl Iterator<Item = &Source<'a>> {
        let layers = self.layers.iter().flat_map(|layer| {
            let heads = layer.head_norms.iter().flatten();
            layer.norms.iter().chain(heads)
        });
        layers.chain([&self.norm]).map(|norm| &norm.source)
    }

    /// Bytes that will be read.
    pub fn read_bytes(&self) -> u64 {
        let len = |source: &Source| source.info.len;
        let parts = self.matrices().flat_map(|matrix| &matrix.parts);
        let parts: u64 = parts
            .map(|part| part.stored.bytes() + part.bias.as_ref().map_or(0, len))
            .sum();
        let twins = self.twins.as_ref().map_or(0, |(a, b)| len(a) + len(b));
        parts + self.norms().map(len).sum::<u64>() + twins
    }

    /// Bytes that the packed weights will take on `B`, before anything is allocated.
    pub fn weight_bytes<B: Backend>(&self) -> u64 {
        let matrices = self.matrices().map(|matrix| B::mat_bytes(&matrix.spec));
        let norms = self.norms().map(|norm| 4 * norm.info.shape[0] as u64);
        matrices.chain(norms).fold(0, u64::saturating_add)
    }

    /// The largest number of bytes that reading one part takes, besides the slabs through which
    /// every part is read.
    pub fn held_bytes(&self) -> u64 {
        let parts = self.matrices().flat_map(|matrix| &matrix.parts);
        let held = |part: &PartPlan<'_>| match &part.stored {
            Stored::Codes(coded) => coded.held_bytes(),
            Stored::Floats(_) => 0,
        };
        parts.map(held).max().unwrap_or(0)
    }

    /// The formats in which the layers' weights are kept, the most frequent one first.
    pub fn layer_dtypes(&self) -> Vec<Dtype> {
        let mut kept: Vec<(Dtype, u64)> = Vec::new();
        let matrices = self.layers.iter().flat_map(|layer| &layer.matrices);
        for spec in matrices.map(|matrix| &matrix.spec) {
            for part in &spec.parts {
                let weights = part.rows as u64 * spec.cols as u64;
                match kept.iter_mut().find(|(dtype, _)| *dtype == part.dtype) {
                    Some((_, n)) => *n += weights,
                    None => kept.push((part.dtype, weights)),
                }
            }
        }
        kept.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        kept.into_iter().map(|(dtype, _)| dtype).collect()
    }
}

impl Plan<'_> {
    /// How many weights the rows of [`Part::O`] and of [`Part::Down`] store together, and how many
    /// rows of q, k or v have their codes in the same words: the most in any layer.
    /// [`crate::model::Cuts::new`] takes these numbers.
    pub fn blocks(&self) -> [usize; 3] {
        let [o, down] = [Part::O, Part::Down].map(|part| {
            let which = matrices::LAYER.iter().position(|m| m.parts == [part]);
            let layers = self.layers.iter();
            let parts = layers.filter_map(|layer| which.map(|i| &layer.matrices[i].spec.parts));
            let blocks = parts
                .flatten()
                .map(|part| part.dtype.quant().map_or(1, Quant::block));
            blocks.max().unwrap_or(1)
        });
        let qkv = self.layers.iter().map(|layer| &layer.matrices[0]);
        let words = qkv.flat_map(|matrix| {
            let parts = matrix.parts.iter().zip(&matrix.spec.parts);
            parts.map(|(plan, spec)| match &plan.stored {
                Stored::Codes(_) if read_as_a_whole(plan, spec.dtype.quant()) => 1,
                Stored::Codes(coded) => coded.rows_of_word(),
                Stored::Floats(_) => 1,
            })
        });
        [o, down, words.max().unwrap_or(1)]
    }
}

struct Planner<'a, 'c> {
    checkpoint: &'c dyn Checkpoint,
    config: &'c Config,
    keep: Keep,
    /// [`Backend::keeps`].
    keeps: fn(Quant) -> bool,
    /// [`Backend::settle`].
    settle: fn(&mut [PartSpec]),
    finder: Finder<'a>,
    adapters: Vec<Merging<'a>>,
}

impl<'a> Planner<'a, '_> {
    fn layer(&mut self, n: usize) -> Result<LayerPlan<'a>> {
        let [a, b] = matrices::LAYER_NORMS;
        let norms = [self.norm(a, Some(n))?, self.norm(b, Some(n))?];
        let head_norms = match self.config.family.head_norms {
            Some(_) => Some([self.norm(Norm::Q, Some(n))?, self.norm(Norm::K, Some(n))?]),
            None => None,
        };
        let mut layer = |matrix| self.matrix(matrix, Some(n), MatUse::Product);
        let [a, b, c, d] = &matrices::LAYER;
        let matrices = [layer(a)?, layer(b)?, layer(c)?, layer(d)?];
        Ok(LayerPlan {
            norms,
            head_norms,
            matrices,
            rotation: self.config.rotation(n),
            window: self.config.window(n),
        })
    }

    /// Finds a norm. Every shard has the norms; those of the first shard are read.
    fn norm(&mut self, norm: Norm, layer: Option<usize>) -> Result<NormPlan<'a>> {
        let name = self.checkpoint.norm(self.config, norm, layer);
        let width = match norm {
            Norm::Attention | Norm::Ffn | Norm::Last => self.config.shape.dim,
            Norm::Q | Norm::K => self.config.shape.head_dim,
        };
        for shard in 1..self.finder.shards() {
            self.finder.floats(shard, &name, &[&[width]])?;
        }
        Ok(NormPlan {
            source: self.finder.floats(0, &name, &[&[width]])?,
            order: self.checkpoint.norm_order(self.config, norm),
            scale: match norm {
                Norm::Last => self.config.logits_scale,
                _ => 1.0,
            },
        })
    }

    /// Finds the head of a tied model, if it is stored. Returns the embedding and the head.
    fn twin_of(&mut self, embedding: &Source<'a>) -> Result<Option<(Source<'a>, Source<'a>)>> {
        let head = self.checkpoint.part(self.config, Part::Head, None);
        let head = head.name + ".weight";
        if !self.finder.holds(&head) {
            return Ok(None);
        }
        let head = self.finder.floats(0, &head, &[&embedding.info.shape])?;
        Ok(Some((*embedding, head)))
    }

    fn matrix(
        &mut self,
        matrix: &Matrix,
        layer: Option<usize>,
        usage: MatUse,
    ) -> Result<MatPlan<'a>> {
        let shape = &self.config.shape;
        let cols = matrix.cols.of(shape);
        let mut spec = MatSpec {
            parts: Vec::new(),
            cols,
            bias: false,
            scale: matrix.parts[0].scale(self.config),
            usage,
            adapter_index: layer.and_then(|n| {
                let mut of_layer = matrices::LAYER.iter();
                let i = of_layer.position(|m| m.parts == matrix.parts)?;
                Some(n * matrices::LAYER.len() + i)
            }),
        };
        let mut parts = Vec::new();
        for &part in matrix.parts {
            let rows = part.rows().of(shape);
            let (plan, dtype) = self.part(part, layer, usage, [rows, cols])?;
            spec.parts.push(PartSpec { rows, dtype });
            spec.bias |= plan.bias.is_some();
            parts.push(plan);
        }
        (self.settle)(&mut spec.parts);
        Ok(MatPlan { spec, parts })
    }

    /// Plans a part, `[rows, cols]`, and decides the format in which it is kept.
    fn part(
        &mut self,
        part: Part,
        layer: Option<usize>,
        usage: MatUse,
        [rows, cols]: [usize; 2],
    ) -> Result<(PartPlan<'a>, Dtype)> {
        let stored = self.checkpoint.part(self.config, part, layer);
        let (name, mut order) = (&stored.name, stored.order);
        let bias = match part.has_bias(self.config) {
            true => Some(self.finder.floats(0, &format!("{name}.bias"), &[&[rows]])?),
            false => None,
        };
        let wanted = Wanted {
            part,
            usage,
            name,
            within: stored.within.as_ref(),
            rows,
            cols,
        };
        let coded = self.checkpoint.coded(&mut self.finder, &wanted)?;
        let mut found = match coded {
            Some(coded) => Stored::Codes(coded),
            None => Stored::Floats(self.pieces(&stored, [rows, cols])?),
        };
        for adapter in &mut self.adapters {
            let place = (part, layer);
            found = adapter.change(self.config, place, found, &mut order, [rows, cols])?;
        }
        let (natives, kept) = match &found {
            Stored::Codes(coded) => (coded.natives(), coded.kept(self.keeps)),
            Stored::Floats(_) => (&[][..], None),
        };
        let dtype = self.keep.dtype(part, usage, kept);
        // Codes that are kept as they are stored have the right shape already.
        let made = dtype.quant().filter(|quant| !natives.contains(quant));
        if let Some(quant) = made.filter(|quant| !quant.takes(cols)) {
            let divides = format!("rows that {} divides, for {dtype} weights", quant.group());
            return Err(found.source().wrong(divides, format!("rows of {cols}")));
        }
        let plan = PartPlan {
            name: format!("{name}.weight"),
            stored: found,
            order,
            rows: 0..rows,
            uncut: None,
            bias,
            bias_order: stored.order,
        };
        Ok((plan, dtype))
    }

    /// Finds the tensors of floats of which a part, `[rows, cols]`, consists.
    fn pieces(&mut self, part: &StoredPart, [rows, cols]: [usize; 2]) -> Result<Vec<Piece<'a>>> {
        let n = self.finder.shards();
        if let Some(within) = &part.within {
            let name = format!("{}.weight", within.name);
            return Ok(vec![Piece {
                source: self.finder.floats(0, &name, &[&[within.rows, cols]])?,
                rows: within.first..within.first + rows,
                cols: 0..cols,
                row: 0,
                col: 0,
            }]);
        }
        let name = format!("{}.weight", part.name);
        // If the number of shards does not divide the width, no shape is right. The error then
        // names the uncut shape.
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
        // If both cuts are possible, the shape of the first shard's tensor decides.
        let first = self.finder.floats(0, &name, shapes)?;
        let shape = first.info.shape.as_slice();
        let mut pieces = Vec::new();
        for shard in 0..n {
            let source = self.finder.floats(shard, &name, &[shape])?;
            let (row, col) = if shape == by_rows {
                (shard * shape[0], 0)
            } else {
                (0, shard * shape[1])
            };
            if row + shape[0] > rows || col + shape[1] > cols {
                let expected = format!("one of {n} equal shards of shape [{rows}, {cols}]");
                return Err(source.wrong(expected, format!("shape {shape:?}")));
            }
            let (rows, cols) = (0..shape[0], 0..shape[1]);
            pieces.push(Piece {
                source,
                rows,
                cols,
                row,
                col,
            });
        }
        Ok(pieces)
    }
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers = self.layers.len();
        write!(f, "Plan of {layers} layers, {} bytes", self.read_bytes())
    }
}
