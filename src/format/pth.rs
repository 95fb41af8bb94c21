//! PyTorch's `.pth`: a stored zip whose `data.pkl` describes the tensors and whose `data/N` hold
//! them.
//!
//! The records of the archive: `torch/serialization.py`, `_save` and `_load`.

use super::limits::{MAX_PICKLE, MAX_VALUES};
use super::pickle::{self, Stored};
use super::zip::Archive;
use super::{Encoding, TensorFile, TensorInfo, byte_len};
use crate::file::{open_regular, read_at};
use crate::{Cancel, Error, Result, reserve, sentence};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Open a file and validate everything it says about its tensors; reads none of their data.
/// `cancel` is looked at between its parts and before each tensor.
///
/// [`Error::Format`] and [`Error::Tensor`] for a file that is malformed, contradicts itself or is
/// beyond [`super::limits`]; [`Error::Refused`] where there is no memory for its table of contents.
pub fn open(path: &Path, cancel: Option<&Cancel>) -> Result<TensorFile> {
    let (file, len) = open_regular(path)?;
    let tensors = read_table(path, &file, len, cancel)?;
    Ok(TensorFile {
        path: path.into(),
        tensors,
        file,
    })
}

/// Open the shards that a `pytorch_model.bin.index.json` names.
///
/// Every tensor of the index must be in its shard, and no tensor may be in two. `cancel` and
/// errors: as in [`open`].
pub fn open_sharded(index: &Path, cancel: Option<&Cancel>) -> Result<Vec<TensorFile>> {
    let mut open = |path: &Path| open(path, cancel);
    super::index::open(index, ("a PyTorch index", ".bin"), &mut open, cancel)
}

/// The tensors of an archive by name.
fn read_table(
    path: &Path,
    file: &File,
    len: u64,
    cancel: Option<&Cancel>,
) -> Result<BTreeMap<String, TensorInfo>> {
    let check_cancel = || match cancel {
        Some(cancel) if cancel.is_triggered() => Err(Error::Cancelled),
        _ => Ok(()),
    };
    let bad = |detail: String| Error::format(path, detail);
    let mut magic = [0; 4];
    let magic = &mut magic[..len.min(4) as usize];
    read_at(file, path, 0, magic)?;
    if magic.first() == Some(&0x80) {
        return Err(bad(
            "a .pth in the legacy form (bare pickle); only the zip form is read, which \
                        torch.save writes since PyTorch 1.6"
                .into(),
        ));
    }
    if magic != b"PK\x03\x04" {
        return Err(bad(
            "not a .pth in the zip form: no zip header at the start".into(),
        ));
    }
    check_cancel()?;
    let archive = Archive::open(path, file, len)?;
    check_cancel()?;

    // torch.save puts everything into one folder, named after the file.
    let mut roots = archive
        .names()
        .filter_map(|name| name.strip_suffix("/data.pkl"));
    let root = match (roots.next(), roots.next()) {
        (Some(root), None) => root,
        (None, _) => {
            return Err(bad(
                "the zip has no data.pkl, as torch.save writes one".into()
            ));
        }
        (Some(_), Some(_)) => return Err(bad("the zip has more than one data.pkl".into())),
    };
    // Files from before PyTorch 2.1 do not say; they were written by little-endian machines.
    if let Some(order) = archive.read(&format!("{root}/byteorder"), 16)?
        && order != b"little"
    {
        let order = String::from_utf8_lossy(&order);
        return Err(bad(format!("byteorder is `{order}`, expected `little`")));
    }
    let pickle = archive
        .read(&format!("{root}/data.pkl"), MAX_PICKLE)?
        .unwrap_or_default();
    let work = pickle.len().min(MAX_VALUES) * pickle::WORK_PER_VALUE;
    reserve::headroom(&format!("reading {}", sentence::path(path)), work)?;
    check_cancel()?;
    let stored = pickle::tensors(&pickle)
        .map_err(|e| bad(format!("{}/data.pkl: {e}", sentence::name(root))))?;
    stored
        .into_iter()
        .map(|(name, stored)| {
            // A read for each.
            check_cancel()?;
            let info = locate(path, &archive, root, name, &stored)?;
            Ok((name.to_owned(), info))
        })
        .collect()
}

/// Where in the file a tensor lies. Several may share a storage; each must lie inside it.
fn locate(
    path: &Path,
    archive: &Archive,
    root: &str,
    name: &str,
    stored: &Stored,
) -> Result<TensorInfo> {
    let bad = |expected: &str, got: String| {
        let (tensor, expected) = (name.into(), expected.into());
        Err(Error::Tensor {
            path: path.into(),
            tensor,
            expected,
            got,
        })
    };
    let encoding = match stored.class {
        "FloatStorage" => Encoding::F32,
        "HalfStorage" => Encoding::F16,
        "BFloat16Storage" => Encoding::Bf16,
        other => return bad("FloatStorage, HalfStorage or BFloat16Storage", other.into()),
    };
    if !stored.is_contiguous() {
        let got = format!("strides {:?} with shape {:?}", stored.strides, stored.shape);
        return bad("row-major contiguous elements", got);
    }
    let record = format!("{root}/data/{}", stored.key);
    let range = archive.data(&record)?;
    let record = sentence::name(&record);
    let Some(range) = range else {
        return bad(
            &format!("its data in zip entry `{record}`"),
            "no such entry".into(),
        );
    };
    let held = range.end - range.start;
    let size = encoding.size() as u64;
    if stored.numel.checked_mul(size) != Some(held) {
        let got = format!("{held} bytes in zip entry `{record}`");
        return bad(
            &format!("a storage of {} {encoding} elements", stored.numel),
            got,
        );
    }
    let len = byte_len(&stored.shape, encoding);
    let first = stored.offset.checked_mul(size);
    match (first, len) {
        (Some(first), Some(len)) if first.checked_add(len).is_some_and(|end| end <= held) => {
            let offset = range.start + first;
            Ok(TensorInfo {
                encoding,
                shape: stored.shape.clone(),
                offset,
                len,
            })
        }
        _ => bad(
            &format!("to lie inside its storage of {} elements", stored.numel),
            format!("shape {:?} from element {} on", stored.shape, stored.offset),
        ),
    }
}
