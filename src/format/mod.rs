//! Checkpoint files: named tensors that can be read piece by piece.
//!
//! Files are read with `pread`, never mapped: a file that is truncated while mapped would kill the
//! host with SIGBUS. A short read is an error that names the file.
//!
//! Whatever a file claims is checked against the file's real length before anything is allocated
//! or read for it.

mod bytes;
mod json;
pub mod limits;
pub mod pickle;
pub mod pth;
pub mod safetensors;
mod zip;

use crate::file::read_at;
use crate::{Cancel, Dtype, Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
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
    file: File,
}

impl TensorFile {
    /// Fill `buf` from byte `offset` of `tensor`'s data. Bounds are the caller's to keep.
    ///
    /// A file that has become shorter since it was opened is an [`Error::Io`] with the offset and
    /// both lengths.
    pub fn read(&self, tensor: &TensorInfo, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= tensor.len);
        read_at(&self.file, &self.path, tensor.offset + offset, buf)
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
    /// Open `consolidated.NN.pth`, numbered from 00 without a gap. `cancel` is looked at while their
    /// tables of contents are read.
    pub fn open_meta(dir: &Path, cancel: Option<&Cancel>) -> Result<Checkpoint> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
            let name = entry.map_err(|e| Error::io(dir, &e))?.file_name();
            numbers.extend(name.to_str().and_then(shard_number));
        }
        numbers.sort_unstable();
        let shard = |n| dir.join(format!("consolidated.{n:02}.pth"));
        let gap = (0..).zip(&numbers).find(|&(i, &n)| i != n).map(|(i, _)| i);
        if let Some(missing) = gap.or(numbers.is_empty().then_some(0)) {
            let path = shard(missing);
            let detail = match numbers.last() {
                Some(&last) => format!("no such file, but there is a shard {last:02}"),
                None => "no such file".into(),
            };
            return Err(Error::Io { path, detail });
        }
        let files = numbers.iter().map(|&n| pth::open(&shard(n), cancel));
        Ok(Checkpoint {
            dir: dir.into(),
            files: files.collect::<Result<_>>()?,
        })
    }

    /// Open `model.safetensors`, or the shards that `model.safetensors.index.json` names. Where
    /// there are both, the single file, as in transformers. `cancel`: as in [`Checkpoint::open_meta`].
    pub fn open_hugging_face(dir: &Path, cancel: Option<&Cancel>) -> Result<Checkpoint> {
        let single = dir.join("model.safetensors");
        let index = dir.join("model.safetensors.index.json");
        let files = if single.symlink_metadata().is_ok() {
            vec![safetensors::open(&single, cancel)?]
        } else if index.symlink_metadata().is_ok() {
            safetensors::open_sharded(&index, cancel)?
        } else {
            let detail = "no such file, and no model.safetensors.index.json beside it".into();
            return Err(Error::Io {
                path: single,
                detail,
            });
        };
        Ok(Checkpoint {
            dir: dir.into(),
            files,
        })
    }

    /// The floating-point format that most of the weights' bytes are stored in. The wider one wins a
    /// draw.
    pub fn stored_dtype(&self) -> Dtype {
        let bytes = |dtype| -> u64 {
            let tensors = self.files.iter().flat_map(|file| file.tensors.values());
            // Lengths are real bytes of real files, except that .pth tensors may share theirs.
            tensors
                .filter(|t| t.dtype == dtype)
                .fold(0, |sum, t| sum.saturating_add(t.len))
        };
        [Dtype::F16, Dtype::Bf16, Dtype::F32]
            .into_iter()
            .max_by_key(|&d| bytes(d))
            .expect("three")
    }
}

/// `consolidated.NN.pth` -> NN.
fn shard_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("consolidated.")?.strip_suffix(".pth")?;
    (digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// `product(shape) * dtype.size()` as far as it can be told.
fn byte_len(shape: &[usize], dtype: Dtype) -> Option<u64> {
    let size = dtype.size() as u64;
    shape.iter().try_fold(size, |product, &n| {
        product.checked_mul(u64::try_from(n).ok()?)
    })
}
