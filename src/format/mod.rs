//! Files of tensors: named tensors that can be read piece by piece. Which files a checkpoint has,
//! and what their names mean, is [`mod@crate::checkpoint`]'s business.
//!
//! Files are read with `pread`, never mapped: a file that is truncated while mapped would kill the
//! host with SIGBUS. A short read is an error that names the file.
//!
//! Whatever a file claims is checked against the file's real length before anything is allocated
//! or read for it.

mod bytes;
mod encoding;
pub mod gguf;
mod index;
mod json;
pub mod limits;
pub mod pickle;
pub mod pth;
pub mod safetensors;
mod zip;

pub use encoding::Encoding;

use crate::Result;
use crate::file::read_at;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

/// What a file says about one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// What its bytes are.
    pub encoding: Encoding,
    /// Sizes, outermost first; row-major and contiguous.
    pub shape: Vec<usize>,
    /// Where its bytes start in the file.
    pub offset: u64,
    /// How many there are: `product(shape) * encoding.size()`, or of that many blocks; checked.
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
    /// A file that has become shorter since it was opened is an [`crate::Error::Io`] with the
    /// offset and both lengths.
    pub fn read(&self, tensor: &TensorInfo, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= tensor.len);
        read_at(&self.file, &self.path, tensor.offset + offset, buf)
    }
}

/// `product(shape) * encoding.size()` as far as it can be told.
fn byte_len(shape: &[usize], encoding: Encoding) -> Option<u64> {
    let size = encoding.size() as u64;
    shape.iter().try_fold(size, |product, &n| {
        product.checked_mul(u64::try_from(n).ok()?)
    })
}
