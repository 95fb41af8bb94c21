//! Finds what an adapter has for each part of a model.

use super::merged::{Merged, Pair};
use super::{Adapter, PREFIX};
use crate::backend::RowOrder;
use crate::checkpoint::files::Finder;
use crate::checkpoint::hugging_face::{fused, part_name, part_order};
use crate::checkpoint::stored::{Piece, Stored, Within};
use crate::model::Config;
use crate::model::matrices::Part;
use crate::{Error, Result, sentence};

/// The modules that may have something for a part, and the place of the part in each: its own, and
/// the one that it shares with others.
fn places(
    config: &Config,
    (part, layer): (Part, Option<usize>),
) -> impl Iterator<Item = Within> + use<> {
    let own = Within {
        name: part_name(part, layer),
        first: 0,
        rows: part.rows().of(&config.shape),
    };
    std::iter::once(own).chain(fused(config, part, layer))
}

/// An adapter whose tensors are being found for a plan.
pub(in crate::checkpoint) struct Merging<'a> {
    adapter: &'a Adapter,
    finder: Finder<'a>,
}

impl<'a> Merging<'a> {
    pub fn new(adapter: &'a Adapter) -> Self {
        let finder = Finder::new(&adapter.files);
        Merging { adapter, finder }
    }

    /// Takes a stored part of `[rows, cols]`, and returns it with what the adapter adds to it or
    /// puts in its place. `order` is the order of the stored rows.
    pub fn change(
        &mut self,
        config: &Config,
        (part, layer): (Part, Option<usize>),
        stored: Stored<'a>,
        order: &mut RowOrder,
        [rows, cols]: [usize; 2],
    ) -> Result<Stored<'a>> {
        for place in places(config, (part, layer)) {
            let whole = format!("{PREFIX}{}.weight", place.name);
            if !self.finder.holds(&whole) {
                continue;
            }
            let source = self.finder.floats(0, &whole, &[&[place.rows, cols]])?;
            if config.tied_embeddings && part == Part::Embedding {
                let expected = "no such tensor: the embedding of this model is its head".into();
                return Err(source.wrong(expected, "one".into()));
            }
            *order = part_order(config, part);
            return Ok(Stored::Floats(vec![Piece {
                source,
                rows: place.first..place.first + rows,
                cols: 0..cols,
                row: 0,
                col: 0,
            }]));
        }
        if matches!(part, Part::Embedding | Part::Head) {
            return Ok(stored);
        }
        let Some(pair) = self.pair(config, (part, layer), cols)? else {
            return Ok(stored);
        };
        Ok(Stored::Codes(Box::new(Merged {
            stored,
            rows,
            cols,
            pair,
            // The rows of an adapter have the order of Hugging Face's form.
            paired: match (&order, part_order(config, part)) {
                (RowOrder::AsStored, order @ RowOrder::HalvesToPairs { .. }) => Some(order),
                _ => None,
            },
        })))
    }

    /// The adapter's two matrices for a part, if it has them.
    pub(super) fn pair(
        &mut self,
        config: &Config,
        (part, layer): (Part, Option<usize>),
        cols: usize,
    ) -> Result<Option<Pair<'a>>> {
        let rows = part.rows().of(&config.shape);
        for place in places(config, (part, layer)) {
            if let Some(pair) = self.pair_at(&place, rows, cols)? {
                return Ok(Some(pair));
            }
        }
        Ok(None)
    }

    /// The same, of the module at this place, for `rows` of its rows.
    fn pair_at(&mut self, place: &Within, rows: usize, cols: usize) -> Result<Option<Pair<'a>>> {
        let module = &place.name;
        let [a, b] = ["A", "B"].map(|which| format!("{PREFIX}{module}.lora_{which}.weight"));
        if !self.finder.holds(&a) {
            return Ok(None);
        }
        let adapter = self.adapter;
        let rank = adapter.of_module("r", &adapter.ranks, module)?;
        if rank < 1.0 || rank.fract() != 0.0 {
            return Err(adapter.keys.wrong("r", "an integer from 1 on"));
        }
        let rank = rank as usize;
        let alpha = adapter.of_module("lora_alpha", &adapter.alphas, module)?;
        let a = self.finder.floats(0, &a, &[&[rank, cols]])?;
        let b = self.finder.floats(0, &b, &[&[place.rows, rank]])?;
        let of_rank = match adapter.keys.flag("use_rslora")? {
            true => (rank as f64).sqrt(),
            false => rank as f64,
        };
        let scale = (f64::from(adapter.scale) * alpha / of_rank) as f32;
        if !scale.is_finite() {
            let of = adapter.scale;
            let expected =
                format!("less: with r {rank} and scale {of} the adapter's weight is {scale}");
            return Err(adapter.keys.wrong("lora_alpha", expected));
        }
        Ok(Some(Pair {
            a,
            b,
            rows: place.first..place.first + rows,
            rank,
            scale,
        }))
    }

    /// Returns an error if the adapter replaces the whole module.
    pub(super) fn refuse_whole(&self, config: &Config, part: (Part, Option<usize>)) -> Result<()> {
        let mut names = places(config, part).map(|place| format!("{PREFIX}{}.weight", place.name));
        let Some(name) = names.find(|name| self.finder.holds(name)) else {
            return Ok(());
        };
        let path = sentence::path(&self.adapter.files.path);
        Err(Error::Unsupported(format!(
            "{path}: tensor `{name}` takes the place of a matrix (modules_to_save): such an adapter \
             can only be merged while the model is loaded"
        )))
    }

    /// Returns an error if a tensor of the adapter belongs to no module of the model that an
    /// adapter can change.
    pub fn refuse_surplus(&self) -> Result<()> {
        for (part, what) in [
            (Part::Embedding, "the embedding"),
            (Part::Head, "the output matrix"),
        ] {
            let module = part_name(part, None);
            let ends = ["lora_A.weight", "lora_embedding_A"];
            let mut names = ends
                .map(|end| format!("{PREFIX}{module}.{end}"))
                .into_iter();
            if let Some(name) = names.find(|name| self.finder.holds(name)) {
                let path = sentence::path(&self.adapter.files.path);
                return Err(Error::Unsupported(format!(
                    "{path}: tensor `{name}` is LoRA on {what} of the model, which is not supported: \
                     of `{module}` an adapter can only have a whole matrix (modules_to_save)"
                )));
            }
        }
        self.finder.refuse_surplus(|_| false)
    }
}
