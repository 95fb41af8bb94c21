//! The questions that every form of checkpoint answers: [`Checkpoint`].
//!
//! | question | answer |
//! |---|---|
//! | how large is the model, what does it compute? | [`Checkpoint::config`] (its EOS ids too) |
//! | which files hold the weights? | [`Checkpoint::open`] |
//! | where does a part of a matrix lie (name, order of rows, cut)? | [`Checkpoint::part`] |
//! | in which encoding, if it is not plain floats? | [`Checkpoint::coded`] |
//! | in which format is it kept? | [`Checkpoint::keep`] |
//! | where is the tokenizer? | [`Checkpoint::tokenizer`] |
//! | what is the chat template? | [`Checkpoint::chat_template`] |

use super::files::{Files, Finder, Source};
use super::gguf::GgufCheckpoint;
use crate::backend::{MatUse, RowOrder, Shape};
use crate::model::Config;
use crate::model::matrices::{Norm, Part};
use crate::quant::Quant;
use crate::{Cancel, Dtype, Result};
use std::ops::Range;
use std::path::Path;

/// A checkpoint of one of the forms that [`super::open`] knows.
pub trait Checkpoint: std::fmt::Debug {
    /// The form's name, for the log.
    fn form(&self) -> &'static str;

    /// What the weights are quantised as; `None` for floats.
    fn quantised(&self) -> Option<&'static str> {
        None
    }

    /// The JSON file with the configuration.
    fn config_path(&self) -> &Path;

    /// The configuration. `tokenizer_vocab` is used where it leaves the vocabulary's size open.
    ///
    /// Unknown keys are ignored, except those that mean another computation than ours.
    fn config(&self, tokenizer_vocab: usize) -> Result<Config>;

    /// Where its own tokenizer is.
    fn tokenizer(&self) -> TokenizerSource<'_>;

    /// The text of its chat template, if it has one.
    fn chat_template(&self) -> Result<Option<ChatTemplate>>;

    /// Opens the weights' files. `cancel` is looked at while their tables of contents are read.
    fn open(&self, cancel: Option<&Cancel>) -> Result<Files>;

    /// In which format matrices are kept if `asked` is the option; `None`: as they are stored.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] where the checkpoint cannot be kept as it is asked.
    fn keep(&self, _config: &Config, files: &Files, asked: Option<Dtype>) -> Result<Keep> {
        let floats = files.most_floats();
        Ok(Keep { asked, floats })
    }

    /// Where a part of a matrix is stored.
    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart;

    /// The name of a norm's tensor.
    fn norm(&self, norm: Norm, layer: Option<usize>) -> String;

    /// How its stored numbers become ours.
    fn norm_order(&self, _config: &Config, _norm: Norm) -> RowOrder {
        RowOrder::AsStored
    }

    /// A part that is not stored as one tensor of floats; `None` if it is.
    fn coded<'a>(
        &self,
        _finder: &mut Finder<'a>,
        _wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        Ok(None)
    }

    /// Whether a tensor that nobody asks for is no error.
    fn ignores(&self, name: &str) -> bool {
        // Derived tensors that some checkpoints carry. We compute our own from the configuration.
        name == "rope.freqs" || name.ends_with("rotary_emb.inv_freq")
    }
}

/// Where a checkpoint's own tokenizer is.
#[derive(Clone, Copy, Debug)]
pub enum TokenizerSource<'a> {
    /// In files of this directory. Which of them counts is the tokenizers' own business.
    Directory(&'a Path),
    /// In the metadata of a GGUF file: [`GgufCheckpoint::vocabulary`].
    Gguf(&'a GgufCheckpoint),
}

/// The Jinja source of a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// For every dialog without tools.
    pub default: String,
    /// For dialogs with tools, where that is another one.
    pub tool_use: Option<String>,
}

/// How files cut a tensor ([`Files::cut`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Each file has some of the rows.
    Rows,
    /// Each file has some of the columns of every row.
    Columns,
    /// Either; the shape of the first file's tensor tells.
    RowsOrColumns,
}

/// Where a part of a matrix is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPart {
    /// Its name, without `.weight` or `.bias`: that of its tensor, unless it is within another.
    pub name: String,
    /// How its rows become ours.
    pub order: RowOrder,
    /// How it is cut, where files cut tensors.
    pub cut: Cut,
    /// The tensor that holds it together with other parts.
    pub within: Option<Within>,
}

/// The place of a part in a tensor that holds several, one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Within {
    /// The tensor's name, without `.weight`.
    pub name: String,
    /// The part's first row.
    pub first: usize,
    /// Rows of the whole tensor.
    pub rows: usize,
}

impl Within {
    /// The place of `part` in the tensor `name`, which holds `parts` in this order.
    pub fn new(name: String, parts: &[Part], part: Part, shape: &Shape) -> Within {
        let rows = |part: &Part| part.rows().of(shape);
        Within {
            name,
            first: parts.iter().take_while(|&&p| p != part).map(rows).sum(),
            rows: parts.iter().map(rows).sum(),
        }
    }
}

/// A part for which a form is asked whether it has it in codes.
pub struct Wanted<'a> {
    /// Which one.
    pub part: Part,
    /// What it is used for.
    pub usage: MatUse,
    /// [`StoredPart::name`].
    pub name: &'a str,
    /// [`StoredPart::within`].
    pub within: Option<&'a Within>,
    /// Its rows.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
}

/// A part of a matrix that is stored in codes: its tensors, found and checked. This is all that the
/// rest of the library knows of an encoding.
pub trait Coded: Sync {
    /// The tensor that messages name.
    fn source(&self) -> &Source<'_>;

    /// Its rows.
    fn rows(&self) -> usize;

    /// Bytes of all its tensors.
    fn bytes(&self) -> u64;

    /// The block format that codes and scales have as they are stored, if kernels know it. A
    /// matrix that is kept in that format gets them unchanged.
    fn native(&self) -> Option<Quant>;

    /// The block format that it is kept in where none is asked for; `None`: floats. Where that is
    /// not the native one, its numbers are rounded a second time.
    fn kept(&self) -> Option<Quant> {
        self.native()
    }

    /// Reads whatever all rows need. What it holds is dropped after the part is read.
    fn reader(&self) -> Result<Box<dyn Rows + '_>>;

    /// The most bytes that its reader holds, beyond the slabs that every part is read through.
    fn held_bytes(&self) -> u64 {
        0
    }
}

/// Fills pieces of so many words with all threads; `fill` gets the number of its piece.
pub type OnThreads<'a> =
    dyn Fn(&mut [u32], usize, &(dyn Fn(usize, &mut [u32]) -> Result<()> + Sync)) -> Result<()> + 'a;

/// Reads whole rows of a [`Coded`] part, in stored order, from several threads at a time. Whatever
/// is not finite is refused.
pub trait Rows: Sync {
    /// How many rows must be [read together](Rows::prepare), where rows do not lie one after another
    /// in the file.
    fn together(&self) -> Option<usize> {
        None
    }

    /// Reads what these rows are made of: `together` rows from a multiple of it on, or what is left.
    /// Only they can be asked for afterwards.
    fn prepare(&mut self, _rows: Range<usize>, _on_threads: &OnThreads<'_>) -> Result<()> {
        Ok(())
    }

    /// Rows from `row` on in the [native](Coded::native) format: codes, [`Quant::code_bytes`] for
    /// each row, and scales, [`Quant::scales`] for each. Both have as many rows.
    fn native(&self, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()>;

    /// The numbers that they stand for.
    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()>;
}

/// How a part is stored.
pub(crate) enum Stored<'a> {
    /// As floats; in order of row and column.
    Floats(Vec<Piece<'a>>),
    /// As codes.
    Codes(Box<dyn Coded + 'a>),
}

/// Rows of a tensor of floats that are a rectangle of a part.
pub(crate) struct Piece<'a> {
    pub source: Source<'a>,
    /// Which rows of the tensor.
    pub rows: Range<usize>,
    /// Its first row and column in the part.
    pub row: usize,
    pub col: usize,
}

impl Stored<'_> {
    /// Bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        match self {
            Stored::Floats(pieces) => {
                let bytes = |p: &Piece| p.rows.len() as u64 * p.source.row_bytes() as u64;
                pieces.iter().map(bytes).sum()
            }
            Stored::Codes(coded) => coded.bytes(),
        }
    }

    /// The tensor that messages name.
    pub fn source(&self) -> &Source<'_> {
        match self {
            Stored::Floats(pieces) => &pieces[0].source,
            Stored::Codes(coded) => coded.source(),
        }
    }
}

/// In which format each part is kept.
///
/// Only weights of the layers are kept in a quantised format that was asked for. The head is then
/// kept as int8, even beside 4-bit layers: it is a small part of a model, and its errors go
/// straight into the logits. An embedding that is only looked up stays in 16 bits. An embedding
/// that also serves as the head is kept once, as int8, and looked up there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The format that was asked for.
    pub asked: Option<Dtype>,
    /// The format of floats where nothing else was asked for: one for the whole model, whatever
    /// single tensors have.
    pub floats: Dtype,
}

impl Keep {
    /// The format of a part; `kept` is its [`Coded::kept`].
    pub fn dtype(&self, part: Part, usage: MatUse, kept: Option<Quant>) -> Dtype {
        let Some(asked) = self.asked else {
            return kept.map_or(self.floats, Quant::dtype);
        };
        match (part, usage) {
            _ if asked.is_float() => asked,
            (Part::Embedding, MatUse::Lookup) if self.floats == Dtype::F16 => Dtype::F16,
            (Part::Embedding, MatUse::Lookup) => Dtype::Bf16,
            (Part::Embedding | Part::Head, _) => Dtype::Int8,
            _ => asked,
        }
    }
}
