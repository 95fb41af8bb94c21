//! Writes quantised checkpoints: `llamabi-quantize`.
//!
//! | file | what it knows |
//! |---|---|
//! | `layout` | where each tensor lies in the file, and where its content comes from |
//! | `outputs` | which tensors are written, how the file begins, how tensors are written |
//! | `gguf` | the same for a GGUF file, which is the result if the source is one |
//! | `partial` | a directory that is being written, and how much of it is done |
//! | `beside` | what lies beside the weights: configuration, tokenizer, chat template |
//! | `calibrate` | the inputs of a layer's matrices when a text goes through the model |
//! | `gram` | sums of products of these inputs |
//! | `feedback` | 4-bit codes whose errors cancel each other in the products |
//!
//! The directory is written beside its final place, as `NAME.partial`, one unit after another: the
//! embedding, the head, each layer, the norms. A unit is on the disk before a file says that it is
//! done. A job that was cut off continues after its last unit, and gives the same bytes.

mod beside;
mod calibrate;
mod feedback;
mod gguf;
mod gram;
mod layout;
mod outputs;
mod partial;

use crate::backend::cpu::Cpu;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::weights::{LoadControl, Loader};
use crate::checkpoint::{self, Checkpoint, Files};
use crate::model::{Config, rope};
use crate::quant::Quant;
use crate::tokenizer::{self, Tokenizer};
use crate::{Dtype, Error, Result, Token};
use calibrate::Calibrator;
use layout::Layout;
use outputs::Form;
use partial::Partial;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A text of the project's own for [`Calibration::text`]: documentation, stories, dialogs, code.
pub const SAMPLE: &str = include_str!("sample.txt");

/// How many tokens of the text [`Calibration`] uses unless told otherwise.
pub const TOKENS: usize = 16_384;

/// A text that shows which errors of the weights matter.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Text like the text for which the model will be used.
    pub text: String,
    /// How many tokens of the text to use at most, in passages that are spread over it evenly.
    pub tokens: usize,
}

/// What is to be written.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// A checkpoint of floats, in Meta's or Hugging Face's form; or one in GGUF, of any types.
    pub from: &'a Path,
    /// A tokenizer file that is used, and copied, instead of the one in `from`.
    pub tokenizer: Option<&'a Path>,
    /// The directory that is made.
    pub to: &'a Path,
    /// The format of the layers' matrices.
    pub quant: Quant,
    /// `None` rounds every weight by itself. Only for [`Quant::Int4`] is there another way.
    pub calibration: Option<Calibration>,
}

/// Reads the checkpoint in `from` and writes it, quantised, to the new directory `to`:
/// [`Job::run`] without a calibration, in one go.
///
/// # Errors
/// Those of [`Job::run`].
pub fn write(from: &Path, to: &Path, quant: Quant) -> Result<()> {
    let job = Job {
        from,
        tokenizer: None,
        to,
        quant,
        calibration: None,
    };
    job.run(&mut |_, _| true)
}

/// Whether a checkpoint comes with a tokenizer. If not, whoever builds it has to name one.
pub fn has_tokenizer(checkpoint: &dyn Checkpoint) -> bool {
    let directory = checkpoint.tokenizer().directory();
    directory.is_none_or(tokenizer::is_in)
}

impl Job<'_> {
    /// Does the job, or the rest of it if `NAME.partial` has a part already.
    ///
    /// Without a calibration, loading the result gives bit for bit what loading `from` with that
    /// `weights_dtype` gives. Beside the weights, `to` gets the configuration with its
    /// `quantization_config`. It also gets the tokenizer, the chat template and
    /// `generation_config.json` of `from`, as far as they exist; a tokenizer that is named replaces
    /// that of `from`. One tensor is in memory at a time; with a calibration, as much as
    /// `calibrate` says.
    ///
    /// `progress` is called with the share that is done, and with what is being done. If it returns
    /// `false`, the job stops and may continue later.
    ///
    /// # Errors
    /// Those of [`crate::checkpoint::weights::load`]; [`Error::Io`] for what cannot be written, and
    /// if `to` exists; [`Error::InvalidArgument`] if `to` ends in no name, if `from` is already
    /// quantised and no GGUF file, for a tokenizer beside a GGUF file, for [`Quant::Fp8`], for a
    /// calibration of another format than int4 or with too short a text, and if what `NAME.partial`
    /// has is of another job; [`Error::Format`] for a tokenizer that does not fit;
    /// [`Error::Cancelled`].
    pub fn run(&self, progress: &mut dyn FnMut(f32, &str) -> bool) -> Result<()> {
        let to = self.check()?;
        let checkpoint = checkpoint::open(self.from)?;
        let form = Form::of(&*checkpoint)?;
        let (config, tokenizer) = self.config(&*checkpoint)?;
        let files = checkpoint.open(None)?;
        let dtype = Some(self.quant.dtype());
        let plan = Plan::new::<Cpu>(&*checkpoint, &files, &config, dtype, &[])?;
        let floats = Plan::new::<Cpu>(&*checkpoint, &files, &config, Some(Dtype::F32), &[])?;
        let layout = Layout::new(&form, &*checkpoint, &files, &config, &plan)?;
        let passages = match (&self.calibration, &tokenizer) {
            (Some(calibration), Some(tokenizer)) => calibration.passages(&**tokenizer)?,
            _ => Vec::new(),
        };
        let mark = self.mark(&config, &files, &plan, &passages)?;
        let mut partial = Partial::open(&to, form.file_name(), &layout, &mark)?;
        if let Form::Safetensors = form {
            beside::write(&partial, &*checkpoint, self.tokenizer, self.quant)?;
        }
        // This backend quantises on all cores, and computes nothing.
        let backend = Cpu::new(&config.shape, rope::table(&config, 1)?, 0, 1)?;
        let mut left = layout.units[partial.done()..].iter();
        let mut calibrator = match !passages.is_empty() && left.any(|unit| unit.layer.is_some()) {
            true => Some(Calibrator::new(&config, &floats, passages)?),
            false => None,
        };
        let mut read = |_: f32| true;
        let mut control = LoadControl {
            cancel: None,
            progress: &mut read,
        };
        let mut loader = Loader::new(&backend, &mut control, plan.read_bytes());
        for (n, unit) in layout.units.iter().enumerate() {
            let share = layout.share_before(n);
            if !progress(share, &unit.name) {
                return Err(Error::Cancelled);
            }
            let is_done = n < partial.done();
            match (&mut calibrator, unit.layer) {
                (Some(calibrator), Some(layer)) => {
                    let mut say = |what: &str| progress(share, &format!("{}: {what}", unit.name));
                    calibrator.layer(layer, is_done, &mut partial, unit, &mut say)?;
                }
                _ if is_done => {}
                _ => {
                    for output in &unit.outputs {
                        output.write(&mut loader, &mut partial, None)?;
                    }
                }
            }
            partial.finish(n + 1)?;
        }
        progress(1.0, "done");
        partial.publish(&to)
    }

    /// Where the directory is to be.
    fn check(&self) -> Result<PathBuf> {
        if !Quant::OURS.contains(&self.quant) {
            let dtype = self.quant.dtype();
            return Err(Error::invalid("format", "int8, int4 or nf4", dtype));
        }
        if self.calibration.is_some() && self.quant != Quant::Int4 {
            let dtype = self.quant.dtype();
            return Err(Error::invalid("format", "int4, with a calibration", dtype));
        }
        let Some(name) = self.to.file_name() else {
            let got = format!("{:?}", self.to);
            let expected = "a path that ends in a name";
            return Err(Error::invalid("the new directory", expected, got));
        };
        // The path without a slash at its end, which would follow a link.
        let to = self.to.with_file_name(name);
        match to.symlink_metadata() {
            Ok(_) => Err(Error::Io {
                path: to,
                detail: "exists already, and nothing is written over".into(),
            }),
            Err(_) => Ok(to),
        }
    }

    /// The configuration, and the tokenizer if there is one.
    fn config(&self, checkpoint: &dyn Checkpoint) -> Result<(Config, Option<Arc<dyn Tokenizer>>)> {
        let (found, missing) = match self.tokenizer(checkpoint) {
            Ok(found) => (Some(found), None),
            Err(error) if self.is_needless(checkpoint) => (None, Some(error)),
            Err(error) => return Err(error),
        };
        let vocab_size = found.as_ref().map_or(0, |(_, found)| found.vocab_size());
        let config = match (checkpoint.config(vocab_size), missing) {
            // The configuration takes the size of its vocabulary from the tokenizer.
            (Err(_), Some(missing)) if checkpoint.config(1).is_ok() => return Err(missing),
            (config, _) => config?,
        };
        let must_fit = self.calibration.is_some() || self.tokenizer.is_some();
        let tokenizer = match found {
            Some(found) if must_fit => Some(super::tokens::fitting(found, &config)?.0),
            found => found.map(|(_, tokenizer)| tokenizer),
        };
        Ok((config, tokenizer))
    }

    /// Whether there is no tokenizer, and the job does not need one.
    fn is_needless(&self, checkpoint: &dyn Checkpoint) -> bool {
        self.calibration.is_none() && self.tokenizer.is_none() && !has_tokenizer(checkpoint)
    }

    /// The tokenizer that is named, otherwise the checkpoint's own, and where it is.
    fn tokenizer(&self, checkpoint: &dyn Checkpoint) -> Result<(PathBuf, Arc<dyn Tokenizer>)> {
        if let (None, Some(path)) = (checkpoint.tokenizer().directory(), self.tokenizer) {
            let expected = "left out for a GGUF file, which has its own in it";
            return Err(Error::invalid("the tokenizer", expected, path.display()));
        }
        let found = super::tokens::tokenizer_of(checkpoint, self.tokenizer);
        found.map_err(|error| match error {
            Error::Io { path, detail }
                if !has_tokenizer(checkpoint) && self.tokenizer.is_none() =>
            {
                let detail = format!("{detail}; --tokenizer FILE names one that lies elsewhere");
                Error::Io { path, detail }
            }
            error => error,
        })
    }

    /// A line that is the same only for the same job on the same checkpoint.
    fn mark(
        &self,
        config: &Config,
        files: &Files,
        plan: &Plan<'_>,
        passages: &[Vec<Token>],
    ) -> Result<String> {
        let source = checkpoint::fingerprint(config, files, plan)?;
        let dtype = self.quant.dtype();
        let from = format!("{dtype} of checkpoint {source:016x}");
        if passages.is_empty() {
            return Ok(from);
        }
        let n: usize = passages.iter().map(Vec::len).sum();
        let hash = partial::hash(passages.iter().flatten().flat_map(|t| t.to_le_bytes()));
        Ok(format!("{from}, calibrated on {n} tokens {hash:016x}"))
    }
}

impl Calibration {
    /// The tokens of passages of one length, spread evenly over the text.
    fn passages(&self, tokenizer: &dyn Tokenizer) -> Result<Vec<Vec<Token>>> {
        let all = tokenizer.encode(&self.text)?;
        let begin = usize::from(tokenizer.adds_bos());
        let length = calibrate::ROWS - begin;
        let wanted = (self.tokens / calibrate::ROWS).max(1);
        let n = (all.len() / length).min(wanted);
        if n == 0 {
            let expected = format!("at least {length} tokens long");
            let got = format!("{} tokens long", all.len());
            return Err(Error::invalid("the text of the calibration", expected, got));
        }
        let passage = |i: usize| {
            let first = i * (all.len() - length) / n.saturating_sub(1).max(1);
            let bos = std::iter::repeat_n(tokenizer.bos_id(), begin);
            bos.chain(all[first..first + length].iter().copied())
                .collect()
        };
        Ok((0..n).map(passage).collect())
    }
}
