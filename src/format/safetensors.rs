//! Hugging Face's safetensors: a JSON header, then the bytes.
//!
//! The tensors' data must fill the rest of the file without overlaps and holes, as in the
//! safetensors crate. Data of any alignment is accepted.

use super::json::{self, ByTensor, Sizes};
use super::limits::{FREE_HEADER, MAX_HEADER};
use super::{Encoding, TensorFile, TensorInfo, byte_len};
use crate::file::{open_regular, read_at};
use crate::{Cancel, Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// What a header says about one tensor.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Sizes,
    /// In the data.
    data_offsets: (u64, u64),
}

/// Open a file and validate everything its header says; reads no tensor's data. `cancel` is looked
/// at every few kilobytes.
///
/// [`Error::Format`] and [`Error::Tensor`] for a header that is malformed, contradicts itself or
/// the file's length, or is beyond [`super::limits`]; [`Error::Refused`] where there is no memory
/// for it.
pub fn open(path: &Path, cancel: Option<&Cancel>) -> Result<TensorFile> {
    open_with_room(path, &mut { MAX_HEADER }, cancel)
}

/// As [`open`], for a file whose header may have `room` bytes, which are used up.
fn open_with_room(path: &Path, room: &mut u64, cancel: Option<&Cancel>) -> Result<TensorFile> {
    let (file, file_len) = open_regular(path)?;
    let header_len = header_len(path, &file, file_len, room)?;
    let start = 8 + header_len;
    let wrong = "the safetensors header is not valid";
    let header: ByTensor<Entry> = json::read(&file, path, 8..start, cancel, wrong)?;
    // One by one: `collect` would make a list of all in between.
    let mut tensors = BTreeMap::new();
    for (name, entry) in header.0 {
        let info = convert(path, &name, entry, start)?;
        tensors.insert(name, info);
    }
    check_layout(path, &tensors, start, file_len)?;
    Ok(TensorFile {
        path: path.into(),
        tensors,
        file,
    })
}

/// Bytes of the header, which are in proportion to the file and within `room`.
fn header_len(path: &Path, file: &File, file_len: u64, room: &mut u64) -> Result<u64> {
    let bad = |detail: String| Err(Error::format(path, detail));
    if file_len < 8 {
        return bad(format!(
            "has {file_len} bytes, a safetensors file has at least 8"
        ));
    }
    let mut head = [0; 8];
    read_at(file, path, 0, &mut head)?;
    let header_len = u64::from_le_bytes(head);
    let most = MAX_HEADER.min(file_len - 8);
    if header_len > most {
        let detail = format!("the safetensors header claims {header_len} bytes");
        return bad(format!(
            "{detail}, in a file of {file_len} it has at most {most}"
        ));
    }
    let data_len = file_len - 8 - header_len;
    if header_len > FREE_HEADER && header_len > data_len {
        return bad(format!(
            "the safetensors header claims {header_len} bytes for {data_len} bytes of data; beyond \
             {FREE_HEADER} it has at most as many as the data"
        ));
    }
    let before = MAX_HEADER - *room;
    *room = room.checked_sub(header_len).ok_or_else(|| {
        let together = before + header_len;
        let detail = format!("the safetensors headers up to this one have {together} bytes");
        Error::format(
            path,
            format!("{detail}, those of a checkpoint have at most {MAX_HEADER}"),
        )
    })?;
    Ok(header_len)
}

/// The tensors follow each other from `start` to the end of the file.
fn check_layout(
    path: &Path,
    tensors: &BTreeMap<String, TensorInfo>,
    start: u64,
    file_len: u64,
) -> Result<()> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, info)| (info.offset, info.len));
    let mut end = start;
    for (name, info) in in_order {
        if info.offset != end {
            return Err(Error::Tensor {
                path: path.into(),
                tensor: name.clone(),
                expected: format!(
                    "its data from byte {} on, after that before it",
                    end - start
                ),
                got: format!("data_offsets that begin at {}", info.offset - start),
            });
        }
        end += info.len;
    }
    let (data, held) = (end - start, file_len - start);
    if data != held {
        let detail = format!("the tensors have {data} bytes, the file holds {held} for them");
        return Err(Error::format(path, detail));
    }
    Ok(())
}

/// Our view of a tensor; where it lies is checked by [`check_layout`].
fn convert(path: &Path, name: &str, entry: Entry, start: u64) -> Result<TensorInfo> {
    let bad = |expected: String, got: String| {
        Err(Error::Tensor {
            path: path.into(),
            tensor: name.into(),
            expected,
            got,
        })
    };
    let encoding = match &entry.dtype[..] {
        "F32" => Encoding::F32,
        "F16" => Encoding::F16,
        "BF16" => Encoding::Bf16,
        "I8" => Encoding::I8,
        "U8" => Encoding::U8,
        "I32" => Encoding::I32,
        "I64" => Encoding::I64,
        "F8_E4M3" => Encoding::F8E4m3,
        other => {
            let other = other.chars().take(20).collect();
            return bad(
                "dtype F32, F16, BF16, F8_E4M3, I8, U8, I32 or I64".into(),
                other,
            );
        }
    };
    let (shape, (from, to)) = (entry.shape.0, entry.data_offsets);
    let (held, len) = (to.checked_sub(from), byte_len(&shape, encoding));
    match (held, len, start.checked_add(from)) {
        (Some(held), Some(len), Some(offset)) if held == len => Ok(TensorInfo {
            encoding,
            shape,
            offset,
            len,
        }),
        _ => bad(
            format!("as many bytes as shape {:?} of {encoding} takes", shape),
            format!("data_offsets [{from}, {to}]"),
        ),
    }
}

/// Open the shards that a `model.safetensors.index.json` names.
///
/// Every tensor of the index must be in its shard, and no tensor may be in two. `cancel` and
/// errors: as in [`open`].
pub fn open_sharded(index: &Path, cancel: Option<&Cancel>) -> Result<Vec<TensorFile>> {
    let mut room = MAX_HEADER;
    let mut open = |path: &Path| open_with_room(path, &mut room, cancel);
    super::index::open(
        index,
        ("a safetensors index", ".safetensors"),
        &mut open,
        cancel,
    )
}
