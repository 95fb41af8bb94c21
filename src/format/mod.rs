//! Checkpoint files: named tensors that can be read piece by piece.
//!
//! Files are read with `pread`, never mapped: a file that is truncated while mapped would kill the
//! host with SIGBUS. A short read is an error that names the file.

pub mod pickle;
pub mod pth;
pub mod safetensors;

use crate::{Dtype, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a file says about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Element format.
    pub dtype: Dtype,
    /// Sizes, outermost first; row-major and contiguous.
    pub shape: Vec<usize>,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// How many there are: `product(shape) * dtype.size()`, checked.
    pub len: u64,
}

/// One open file of tensors: its validated table of contents, and the means to read from it.
#[derive(Debug)]
pub struct TensorFile {
    /// The file, for messages.
    pub path: PathBuf,
    /// Its tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
    file: std::fs::File,
}

impl TensorFile {
    /// Fill `buf` from byte `offset` of `tensor`'s data. Bounds are the caller's to keep.
    pub fn read(&self, tensor: &TensorInfo, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _ = (tensor, offset, buf, &self.file);
        todo!()
    }
}

/// All files of a checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory, for messages.
    pub dir: PathBuf,
    /// Meta: one file per model-parallel shard, in order, all with the same names. Hugging Face:
    /// files with different names that together make up one whole.
    pub files: Vec<TensorFile>,
}

impl Checkpoint {
    /// Open `consolidated.NN.pth`, numbered from 00 without a gap.
    pub fn open_meta(dir: &Path) -> Result<Checkpoint> {
        let _ = dir;
        todo!()
    }

    /// Open `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub fn open_hugging_face(dir: &Path) -> Result<Checkpoint> {
        let _ = dir;
        todo!()
    }

    /// The dtype that most of the weights' bytes are stored in.
    pub fn stored_dtype(&self) -> Dtype {
        todo!()
    }
}
