//! The questions that every form of checkpoint answers: [`Checkpoint`].
//!
//! | question | answer |
//! |---|---|
//! | how large is the model, what does it compute? | [`Checkpoint::config`] (its EOS ids too) |
//! | how long was its training's context? | [`Checkpoint::trained_context`] |
//! | what is not read of it? | [`Checkpoint::left_out`] |
//! | which files hold the weights? | [`Checkpoint::open`] |
//! | where does a part of a matrix lie (name, order of rows, cut)? | [`Checkpoint::part`] |
//! | in which encoding, if it is not plain floats? | [`Checkpoint::coded`] |
//! | in which format is it kept? | [`Checkpoint::keep`] |
//! | where is the tokenizer? | [`Checkpoint::tokenizer`] |
//! | what is the chat template? | [`Checkpoint::chat_template`] |

use super::files::{Files, Finder, Source};
use crate::backend::{MatUse, RowOrder, Shape};
use crate::format::gguf::Gguf;
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

    /// Whether formats are told with the form's name, because their names are this form's alone.
    fn has_own_formats(&self) -> bool {
        false
    }

    /// The name of the format in which the weights are quantised; `None` for floats.
    fn quantised(&self) -> Option<&'static str> {
        None
    }

    /// The JSON file with the configuration.
    fn config_path(&self) -> &Path;

    /// Reads the configuration. `tokenizer_vocab` is the vocabulary's size if the configuration
    /// does not say it.
    ///
    /// Unknown keys are ignored, except those that mean a computation that we do not have.
    fn config(&self, tokenizer_vocab: usize) -> Result<Config>;

    /// The longest context that the model was trained for, if the configuration says it.
    fn trained_context(&self) -> Option<u64> {
        None
    }

    /// What the files say and this library leaves out, in sentences for the log.
    fn left_out(&self, _files: &Files) -> Vec<&'static str> {
        Vec::new()
    }

    /// Where the checkpoint's tokenizer is.
    fn tokenizer(&self) -> TokenizerSource<'_>;

    /// The text of the checkpoint's chat template, if it has one.
    fn chat_template(&self) -> Result<Option<ChatTemplate>>;

    /// Opens the weights' files. `cancel` is checked while their tables of contents are read.
    fn open(&self, cancel: Option<&Cancel>) -> Result<Files>;

    /// The format in which matrices are kept. `asked` is the user's option; `None` means as they
    /// are stored.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] if the checkpoint cannot be kept in the format that is asked
    /// for.
    fn keep(&self, _config: &Config, files: &Files, asked: Option<Dtype>) -> Result<Keep> {
        let floats = files.most_floats();
        Ok(Keep { asked, floats })
    }

    /// Where a part of a matrix is stored.
    fn part(&self, config: &Config, part: Part, layer: Option<usize>) -> StoredPart;

    /// The name of a norm's tensor.
    fn norm(&self, config: &Config, norm: Norm, layer: Option<usize>) -> String;

    /// How a norm's stored numbers are put into our order.
    fn norm_order(&self, config: &Config, norm: Norm) -> RowOrder;

    /// Finds a part that is stored in codes. Returns `None` if it is stored as floats.
    fn coded<'a>(
        &self,
        _finder: &mut Finder<'a>,
        _wanted: &Wanted<'_>,
    ) -> Result<Option<Box<dyn Coded + 'a>>> {
        Ok(None)
    }

    /// Whether a tensor is ignored although nobody asks for it.
    fn ignores(&self, name: &str) -> bool {
        // Some checkpoints contain these derived tensors. We compute them from the configuration.
        name == "rope.freqs" || name.ends_with("rotary_emb.inv_freq")
    }
}

/// Where a checkpoint's own tokenizer is.
#[derive(Clone, Copy, Debug)]
pub enum TokenizerSource<'a> {
    /// In files of this directory. The tokenizers decide which of the files to read.
    Directory(&'a Path),
    /// In the metadata of a GGUF file: [`super::gguf::vocabulary`].
    Gguf(&'a Gguf),
}

impl<'a> TokenizerSource<'a> {
    /// The directory with the tokenizer's files; `None` if the weights' own file has it.
    pub fn directory(self) -> Option<&'a Path> {
        match self {
            TokenizerSource::Directory(dir) => Some(dir),
            TokenizerSource::Gguf(_) => None,
        }
    }
}

/// The Jinja source of a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// For every dialog without tools.
    pub default: String,
    /// For dialogs with tools, if there is a separate template.
    pub tool_use: Option<String>,
}

/// How files cut a tensor ([`Files::cut`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Each file has some of the rows.
    Rows,
    /// Each file has some of the columns of every row.
    Columns,
    /// One of the two; the shape of the first file's tensor shows which.
    RowsOrColumns,
}

/// Where a part of a matrix is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPart {
    /// The part's name, without `.weight` or `.bias`. This is the name of its tensor, unless it
    /// lies `within` another.
    pub name: String,
    /// How its rows are put into our order.
    pub order: RowOrder,
    /// How it is cut, if the files cut tensors.
    pub cut: Cut,
    /// The tensor that contains it together with other parts, if there is one.
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

/// A part that [`Checkpoint::coded`] is asked for.
pub struct Wanted<'a> {
    /// The part.
    pub part: Part,
    /// The use of its matrix.
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

    /// How many rows have their codes in the same words. Rows are cut between these.
    fn rows_of_word(&self) -> usize {
        1
    }

    /// The block formats that hold the stored codes, the best first. A matrix that is kept in one
    /// of them gets the codes unchanged.
    fn natives(&self) -> &[Quant];

    /// The block format in which the part is kept if the backend keeps none of the native ones;
    /// `None` means floats. The numbers are rounded a second time then.
    fn otherwise(&self) -> Option<Quant> {
        Some(Quant::Int8)
    }

    /// The block format in which the part is kept if none is asked for, on a backend with this
    /// [`Backend::keeps`](crate::backend::Backend::keeps).
    fn kept(&self, keeps: fn(Quant) -> bool) -> Option<Quant> {
        let native = self.natives().iter().copied().find(|&quant| keeps(quant));
        native.or(self.otherwise())
    }

    /// Reads what all rows need, and returns a reader that holds it. The reader is dropped after
    /// the part has been read.
    fn reader(&self) -> Result<Box<dyn Rows + '_>>;

    /// The largest number of bytes that its reader holds, besides the slabs through which every
    /// part is read.
    fn held_bytes(&self) -> u64 {
        0
    }
}

/// A function that fills pieces of some words with all threads. Each call of `fill` gets the number
/// of its piece.
pub type OnThreads<'a> =
    dyn Fn(&mut [u32], usize, &(dyn Fn(usize, &mut [u32]) -> Result<()> + Sync)) -> Result<()> + 'a;

/// Reads whole rows of a [`Coded`] part, in stored order, from several threads at a time. Refuses
/// numbers that are not finite.
pub trait Rows: Sync {
    /// The number of rows that must be [read together](Rows::prepare); `None` if rows lie one after
    /// another in the file.
    fn together(&self) -> Option<usize> {
        None
    }

    /// Reads the data of these rows: `together` rows, the first of which is a multiple of
    /// `together`; or what is left. Afterwards only these rows can be asked for.
    fn prepare(&mut self, _rows: Range<usize>, _on_threads: &OnThreads<'_>) -> Result<()> {
        Ok(())
    }

    /// Reads rows from `row` on in `quant`, one of the [native](Coded::natives) formats:
    /// [`Quant::code_bytes`] bytes of codes and [`Quant::scales`] scales for each row. `codes` and
    /// `scales` are for the same number of rows.
    fn native(&self, quant: Quant, row: usize, codes: &mut [u8], scales: &mut [u16]) -> Result<()>;

    /// Reads rows from `row` on as the numbers that the codes stand for.
    fn floats(&self, row: usize, to: &mut [f32]) -> Result<()>;
}

/// How a part is stored.
pub(crate) enum Stored<'a> {
    /// As floats. Pieces are in the order of row and column.
    Floats(Vec<Piece<'a>>),
    /// As codes.
    Codes(Box<dyn Coded + 'a>),
}

/// Some rows and columns of a tensor of floats, which are a rectangle of a part.
pub(crate) struct Piece<'a> {
    pub source: Source<'a>,
    /// The rows of the tensor.
    pub rows: Range<usize>,
    /// The columns of the tensor.
    pub cols: Range<usize>,
    /// The row and the column of the part at which the piece begins.
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

/// The format in which each part is kept.
///
/// If a quantised format was asked for, the weights of the layers get it. The head then becomes
/// int8, even beside 4-bit layers: it is a small part of a model, and its errors go straight into
/// the logits. An embedding that is only looked up stays in 16 bits. An embedding that also serves
/// as the head is kept once, as int8, and tokens are looked up there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The format that was asked for.
    pub asked: Option<Dtype>,
    /// The format of floats if nothing else was asked for. It is one for the whole model, whatever
    /// the formats of single tensors are.
    pub floats: Dtype,
}

impl Keep {
    /// The format in which a part is kept. `kept` is its [`Coded::kept`].
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
