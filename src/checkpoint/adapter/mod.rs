//! LoRA adapters as peft writes them, merged into the weights while they are loaded.
//!
//! An adapter is `adapter_config.json` and `adapter_model.safetensors` (or `.bin`). For some
//! modules it has two thin matrices: `W' = W + scale * alpha / r * B A` (Hu et al. 2021); with
//! `use_rslora`, `alpha / sqrt(r)` instead. The sum is computed in float32, before the result is
//! rounded or quantised. A module in `modules_to_save` is replaced.
//!
//! Where a family stores several parts in one module (Phi-3's `qkv_proj`), an adapter has one pair
//! for it: the parts share A, and each has its rows of B.
//!
//! A quantised matrix that an adapter changes is kept as int8, because rounding to 4 bits would
//! remove what the adapter adds.

mod merged;
mod merging;
mod patterns;

use self::merged::Pair;
pub(super) use self::merging::Merging;
use self::patterns::Patterns;
use super::columns::cut_rows;
use super::files::Files;
use super::fingerprint::Fnv;
use super::hugging_face::part_order;
use super::keys::Keys;
use crate::backend::adapter::{self, LowRank};
use crate::format::{pth, safetensors};
use crate::model::matrices::{self, Part};
use crate::model::{Config, Cuts};
use crate::{Cancel, Dtype, Error, Result, reserve, sentence};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;

/// The beginning of all names of an adapter's tensors.
const PREFIX: &str = "base_model.model.";

/// Options that matter only for training, and options that only name something.
const NO_EFFECT: [&str; 17] = [
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// An adapter whose configuration and table of contents have been read.
#[derive(Debug)]
pub struct Adapter {
    keys: Keys,
    /// `rank_pattern` and `alpha_pattern`.
    ranks: Patterns,
    alphas: Patterns,
    files: Files,
    /// The factor by which the adapter is weighted.
    scale: f32,
}

impl Adapter {
    /// Opens an adapter's directory. `cancel` is checked while the table of contents is read.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Config`] for an option that is unknown or has an impossible value;
    /// the errors of the files' readers.
    pub fn open(dir: &Path, scale: f32, cancel: Option<&Cancel>) -> Result<Adapter> {
        let keys = Keys::read(&dir.join("adapter_config.json"))?;
        check_options(&keys)?;
        let ranks = Patterns::read(&keys, "rank_pattern")?;
        let alphas = Patterns::read(&keys, "alpha_pattern")?;
        let safe = dir.join("adapter_model.safetensors");
        let bin = dir.join("adapter_model.bin");
        let file = match bin.symlink_metadata().is_ok() && safe.symlink_metadata().is_err() {
            true => pth::open(&bin, cancel)?,
            false => safetensors::open(&safe, cancel)?,
        };
        let files = Files {
            path: dir.into(),
            files: vec![file],
            cut: false,
        };
        Ok(Adapter {
            keys,
            ranks,
            alphas,
            files,
            scale,
        })
    }

    /// The model that the adapter says it was trained for. Nothing compares the name with the
    /// model's, because the two are often paths on other machines.
    pub fn base(&self) -> Option<&str> {
        let base = self.keys.get("base_model_name_or_path")?.as_str()?;
        Some(base).filter(|base| !base.is_empty())
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.files.path
    }

    /// Loads the adapter's matrices into memory, for requests that use the adapter: for each of
    /// `ranks` what this rank adds. Where the rank has some rows of a matrix, these are the rows of
    /// B, and A is whole. Where it has some columns, these are the columns of A, and B is whole:
    /// the sum of what the ranks add is what one rank would add. The numbers are kept as float32 if
    /// `dtype` is float32, otherwise as bfloat16. `available`: the bytes of free memory.
    ///
    /// Returns also a number that differs, as good as certainly, for another adapter; 0 if these
    /// are all ranks, which have then read the same one.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a tensor that is missing, misshapen or surplus; [`Error::Unsupported`]
    /// if the adapter replaces a module; [`Error::NoMemory`].
    pub fn load(
        &self,
        config: &Config,
        dtype: Dtype,
        (cuts, ranks): (&Cuts, Range<usize>),
        available: u64,
    ) -> Result<(Vec<adapter::Adapter>, u64)> {
        let mut merging = Merging::new(self);
        for part in [Part::Embedding, Part::Head] {
            merging.refuse_whole(config, (part, None))?;
        }
        let (mut found, mut needed) = (Vec::new(), 0u64);
        for place in 0..config.shape.n_layers * matrices::LAYER.len() {
            let (layer, i) = (place / matrices::LAYER.len(), place % matrices::LAYER.len());
            let matrix = &matrices::LAYER[i];
            let cols = matrix.cols.of(&config.shape);
            for (at, &part) in matrix.parts.iter().enumerate() {
                let of_layer = (part, Some(layer));
                merging.refuse_whole(config, of_layer)?;
                if let Some(pair) = merging.pair(config, of_layer, cols)? {
                    self.check_rank(&pair)?;
                    for rank in ranks.clone() {
                        let own = [cuts.rows(part, rank).len(), cuts.cols(matrix, rank).len()];
                        let sizes = [own[0], pair.rank, own[1]];
                        needed = needed.saturating_add(LowRank::bytes(dtype, sizes));
                    }
                    let found_there = (place, at, part, pair);
                    reserve::push("the parts of an adapter", &mut found, found_there)?;
                }
            }
        }
        merging.refuse_surplus()?;
        if needed > available {
            return Err(Error::no_memory("an adapter", needed, available));
        }
        let adapters = ranks
            .clone()
            .map(|rank| adapter::Adapter::new(&cuts.shape(rank)));
        let mut adapters = adapters.collect::<Result<Vec<_>>>()?;
        let kept = LowRank::kept(dtype);
        let mut hash = Fnv::default();
        for (place, at, part, pair) in found {
            let order = part_order(config, part);
            let (a, b) = (pair.a(kept)?, pair.ordered_b(order, kept)?);
            if ranks.len() < cuts.ranks() {
                hash.add_floats(&[place as f32, at as f32, pair.rank as f32, pair.scale]);
                hash.add_floats(&a);
                hash.add_floats(&b);
            }
            let matrix = &matrices::LAYER[place % matrices::LAYER.len()];
            for (rank, adapter) in ranks.clone().zip(&mut adapters) {
                let own = [cuts.rows(part, rank), cuts.cols(matrix, rank)];
                adapter.matrices[place][at] = Some(cut(dtype, &pair, &a, &b, own)?);
            }
        }
        Ok((adapters, hash.0))
    }

    /// An error if the rank is more than a request can run with. Asked before anything is read: a
    /// file may have far more bytes than it takes on its disk.
    fn check_rank(&self, pair: &Pair<'_>) -> Result<()> {
        let rank = pair.rank;
        if rank <= adapter::MAX_RANK {
            return Ok(());
        }
        let tensor = pair.a.name;
        let module = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let module = module.strip_suffix(".lora_A.weight").unwrap_or(module);
        let path = sentence::path(&self.files.path);
        Err(Error::Unsupported(format!(
            "{path}: `{module}` has rank {rank}: an adapter that requests choose has at most {}, one \
             that is merged while the model is loaded may have more",
            adapter::MAX_RANK
        )))
    }

    /// The number of `key` for a module: that of the first pattern that fits the module, otherwise
    /// the configuration's.
    fn of_module(&self, key: &str, patterns: &Patterns, module: &str) -> Result<f64> {
        let positive = |x: f64| x > 0.0 && x <= 1e9;
        let expected = "a number over 0, at most 1000000000";
        match (&patterns.keys, patterns.fitting(module)) {
            (Some(keys), Some(name)) => keys.number(name, expected, positive),
            _ => self.keys.number(key, expected, positive),
        }
    }
}

fn check_options(keys: &Keys) -> Result<()> {
    let only = [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("bias", json!("none")),
    ];
    for (key, value) in only {
        if keys.get(key).is_some_and(|got| *got != value) {
            return Err(keys.wrong(key, value.to_string()));
        }
    }
    if keys.get("peft_type").is_none() {
        return Err(keys.wrong("peft_type", "LORA"));
    }
    // Other ways of initialising an adapter also change the base model's weights.
    const INIT: &str = "init_lora_weights";
    match keys.get(INIT) {
        None | Some(Value::Bool(_)) => {}
        Some(Value::String(name)) if ["gaussian", "orthogonal"].contains(&name.as_str()) => {}
        Some(_) => return Err(keys.wrong(INIT, "true, false, gaussian or orthogonal")),
    }
    let read = [
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "peft_type",
        "bias",
        INIT,
    ];
    let empty = |value: &Value| match value {
        Value::Bool(flag) => !flag,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let known = |key: &str| read.contains(&key) || NO_EFFECT.contains(&key);
    match keys
        .names()
        .find(|key| !known(key) && !keys.get(key).is_some_and(empty))
    {
        Some(key) => Err(keys.wrong(key, "no such option: it means another adapter than LoRA")),
        None => Ok(()),
    }
}

/// What a rank with these rows and columns of a part adds to it. `a` and `b` are whole.
fn cut(
    dtype: Dtype,
    pair: &Pair<'_>,
    a: &[f32],
    b: &[f32],
    [rows, cols]: [Range<usize>; 2],
) -> Result<LowRank> {
    let Pair { rank, scale, .. } = *pair;
    let sizes = [rows.len(), rank, cols.len()];
    let b = &b[rows.start * rank..rows.end * rank];
    if a.len() == rank * cols.len() {
        return LowRank::new(dtype, sizes, scale, a, b);
    }
    let mut own = reserve::filled("a rank's columns of an adapter", rank * cols.len(), 0.0)?;
    cut_rows(a, rank, cols, &mut own);
    LowRank::new(dtype, sizes, scale, &own, b)
}
