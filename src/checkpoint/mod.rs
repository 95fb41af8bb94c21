//! Checkpoints: reads what was downloaded, in whichever form, as the weights of one model.
//!
//! Every form has a file of its own, which implements [`Checkpoint`]. A new form needs a new file
//! here and a line in [`open`]. Other code asks the trait, never which form a checkpoint has.
//!
//! | file | what it knows |
//! |---|---|
//! | [`stored`] | [`Checkpoint`] and its types |
//! | [`meta`] | Meta's form: `params.json` and `consolidated.NN.pth` |
//! | [`hugging_face`] | Hugging Face's: `config.json` and safetensors |
//! | [`gguf`] | GGUF: one file, or a set of split ones |
//! | `hf_config`, `hf_rope` | what Hugging Face's configuration means, family by family |
//! | [`foreign`] | Hugging Face's form with weights that other programs quantised |
//! | [`llamabi`] | either form with weights that we quantised |
//! | [`adapter`] | LoRA adapters, which are merged into the weights |
//! | [`medusa`] | Medusa heads, which are trained for a checkpoint |
//! | `keys`, `sizes` | configurations: typed keys of JSON, bounds of the sizes |
//! | `multipliers` | Granite's multipliers |
//! | [`files`] | the open files, and finding tensors in them |
//! | [`plan`] | all tensors found and checked before any data is read |
//! | [`weights`] | tensors to a backend's matrices, slab by slab |
//! | `quantised` | those that are kept as codes |
//! | `cut` | the part of a plan that one rank of several holds |
//! | `columns` | some columns of whole rows |
//! | `slabs` | the slabs: how they are read |
//! | `finite` | refuses weights that are not finite |
//! | [`unfinished`] | refuses what `llamabi-quantize` has not finished |
//! | [`fingerprint()`] | whether two processes have opened the same checkpoint |

pub mod adapter;
mod columns;
mod cut;
pub mod files;
mod fingerprint;
mod finite;
pub mod foreign;
pub mod gguf;
mod hf_config;
mod hf_rope;
pub mod hugging_face;
mod keys;
pub mod llamabi;
pub mod medusa;
pub mod meta;
mod multipliers;
pub mod plan;
pub mod quantised;
mod sizes;
mod slabs;
pub mod stored;
pub mod unfinished;
pub mod weights;

pub use adapter::Adapter;
pub use files::Files;
pub use fingerprint::fingerprint;
pub use medusa::Medusa;
pub use plan::Plan;
pub use stored::{ChatTemplate, Checkpoint, Keep, TokenizerSource};

use crate::format::gguf::is_gguf_name;
use crate::{Error, Result, sentence};
use foreign::Foreign;
use gguf::GgufCheckpoint;
use hugging_face::HuggingFace;
use keys::Keys;
use llamabi::Llamabi;
use meta::Meta;
use std::io::ErrorKind;
use std::path::Path;

/// Tells the form of the checkpoint at `path` and reads its configuration file.
///
/// If a directory has both `params.json` and `config.json`, the weights decide, because Mistral's
/// repositories have another program's `params.json` beside Hugging Face's files. Meta's form has
/// `consolidated.00.pth`, or our own `quantization_config`.
///
/// # Errors
/// [`Error::Io`] if there is no checkpoint; [`Error::Format`] and [`Error::Config`] for a
/// configuration that cannot be understood.
pub fn open(path: &Path) -> Result<Box<dyn Checkpoint>> {
    let no_checkpoint = |path: &Path, detail: &str| {
        Err(Error::Io {
            path: path.into(),
            detail: detail.into(),
        })
    };
    if path.as_os_str().is_empty() {
        return no_checkpoint("ckpt_dir".as_ref(), "an empty path, must be a directory");
    }
    let kind = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?;
    if !kind.is_dir() && is_gguf_name(path) {
        unfinished::refuse(path.parent().unwrap_or(path))?;
        return Ok(Box::new(GgufCheckpoint::open(path)?));
    }
    if !kind.is_dir() {
        let detail = "a file that is no .gguf; ckpt_dir is the directory it lies in";
        return no_checkpoint(path, detail);
    }
    unfinished::refuse(path)?;
    if let Some(file) = gguf::alone(path)? {
        return Ok(Box::new(GgufCheckpoint::open(&file)?));
    }
    // This is not `exists()`, because a broken link should be reported as such. What may not be
    // looked at need not be absent.
    let holds = |name: &str| {
        let path = path.join(name);
        match path.symlink_metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io(&path, &e)),
            Ok(_) => Ok(true),
        }
    };
    let meta = match holds(meta::CONFIG)? {
        true => Some(Keys::read(&path.join(meta::CONFIG))?),
        false => None,
    };
    let is_hugging_face = holds(hugging_face::CONFIG)?;
    let has_meta_weights = holds(meta::FIRST)?;
    let is_meta = |keys: &Keys| !is_hugging_face || has_meta_weights || llamabi::is_named(keys);
    if let Some(keys) = meta.filter(is_meta) {
        let quant = llamabi::format(&keys)?;
        Ok(quantised(Meta::new(path, keys), quant))
    } else if is_hugging_face {
        let keys = Keys::read(&path.join(hugging_face::CONFIG))?;
        if let Some((options, method)) = foreign::options(path, &keys)? {
            let floats = HuggingFace::new(path, keys);
            return Ok(Box::new(Foreign::new(floats, &options, &method)?));
        }
        let quant = llamabi::format(&keys)?;
        Ok(quantised(HuggingFace::new(path, keys), quant))
    } else {
        let detail = "has neither params.json nor config.json nor a .gguf file";
        no_checkpoint(path, &format!("{detail}{}", in_subdirectories(path)))
    }
}

/// Where the configuration of a checkpoint lies one directory below, as in Meta's repositories on
/// Hugging Face: a hint for whoever named the directory above.
fn in_subdirectories(path: &Path) -> String {
    let entries = std::fs::read_dir(path).into_iter().flatten().take(1000);
    let has_config = |path: &Path| {
        let names = [meta::CONFIG, hugging_face::CONFIG];
        names.iter().any(|name| path.join(name).is_file())
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<_> = paths.filter(|path| has_config(path)).collect();
    found.sort();
    match &found[..] {
        [] => String::new(),
        [one] => format!("; {} has", sentence::path(one)),
        [first, ..] => format!("; {} and others have", sentence::path(first)),
    }
}

/// The format of most of a checkpoint's weights, in words: `bf16`, `GGUF Q4_K`, `gptq 4 bits`.
pub fn stored_format(checkpoint: &dyn Checkpoint, files: &Files) -> String {
    let format = match checkpoint.quantised() {
        Some(format) => format,
        None => files.most_floats().name(),
    };
    match checkpoint.has_own_formats() {
        true => format!("{} {format}", checkpoint.form()),
        false => format.to_owned(),
    }
}

/// Returns the checkpoint itself; or, if we quantised its weights, the same as [`llamabi`] reads
/// it.
fn quantised(
    floats: impl Checkpoint + 'static,
    quant: Option<crate::quant::Quant>,
) -> Box<dyn Checkpoint> {
    match quant {
        Some(quant) => Box::new(Llamabi::new(floats, quant)),
        None => Box::new(floats),
    }
}
