//! Hugging Face's safetensors: a JSON header, then the bytes.
//!
//! The layout rules (no overlaps, no holes, sizes that match shapes) are the safetensors crate's
//! own `Metadata`. In front of it stand the checks that need the file's length, and the refusal of
//! names that come twice, which it would silently merge. Data of any alignment is accepted.

use super::{TensorFile, TensorInfo, byte_len};
use crate::file::{open_regular, read_at, read_small, read_vec};
use crate::{Dtype, Error, Result};
use ::safetensors::tensor::{self as st, Metadata};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;
use std::path::Path;

/// The safetensors crate's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// The index of a checkpoint of some thousand tensors has about 100 bytes for each.
const MAX_INDEX: u64 = 16 << 20;

/// Open a file and validate everything its header says; reads no tensor's data.
pub fn open(path: &Path) -> Result<TensorFile> {
    let (file, file_len) = open_regular(path)?;
    let bad = |detail: String| Error::format(path, detail);
    if file_len < 8 {
        return Err(bad(format!(
            "has {file_len} bytes, a safetensors file has at least 8"
        )));
    }
    let mut head = [0; 8];
    read_at(&file, path, 0, &mut head)?;
    let header_len = u64::from_le_bytes(head);
    let most = MAX_HEADER.min(file_len - 8);
    if header_len > most {
        let detail = format!("the safetensors header claims {header_len} bytes");
        return Err(bad(format!(
            "{detail}, in a file of {file_len} it has at most {most}"
        )));
    }
    let header = read_vec(&file, path, 8, header_len)?;
    let header: UniqueMap<st::TensorInfo> = serde_json::from_slice(&header)
        .map_err(|e| bad(format!("the safetensors header is not valid: {e}")))?;

    let start = 8 + header_len;
    let mut tensors = BTreeMap::new();
    for (name, info) in &header.0 {
        tensors.insert(name.clone(), convert(path, name, info, start)?);
    }
    let mut in_order = header.0;
    in_order.sort_by_key(|(_, info)| info.data_offsets);
    let layout = Metadata::new(None, in_order)
        .map_err(|e| bad(format!("the safetensors header is contradictory: {e}")))?;
    let (data, held) = (layout.data_len() as u64, file_len - start);
    if data != held {
        return Err(bad(format!(
            "the tensors have {data} bytes, the file holds {held} for them"
        )));
    }
    Ok(TensorFile {
        path: path.into(),
        tensors,
        file,
    })
}

/// Our view of a tensor. Sizes are checked here so that the message can name the tensor and both
/// values; where it lies is checked by [`Metadata`].
fn convert(path: &Path, name: &str, info: &st::TensorInfo, start: u64) -> Result<TensorInfo> {
    let bad = |expected: String, got: String| {
        Err(Error::Tensor {
            path: path.into(),
            tensor: name.into(),
            expected,
            got,
        })
    };
    let dtype = match info.dtype {
        st::Dtype::F32 => Dtype::F32,
        st::Dtype::F16 => Dtype::F16,
        st::Dtype::BF16 => Dtype::Bf16,
        st::Dtype::I8 => Dtype::Int8,
        st::Dtype::U8 => Dtype::U8,
        other => return bad("dtype F32, F16, BF16, I8 or U8".into(), other.to_string()),
    };
    let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
    let (held, len) = (to.checked_sub(from), byte_len(&info.shape, dtype));
    match (held, len, start.checked_add(from)) {
        (Some(held), Some(len), Some(offset)) if held == len => Ok(TensorInfo {
            dtype,
            shape: info.shape.clone(),
            offset,
            len,
        }),
        _ => bad(
            format!("as many bytes as shape {:?} of {dtype} takes", info.shape),
            format!("data_offsets [{from}, {to}]"),
        ),
    }
}

/// Open the shards that a `model.safetensors.index.json` names.
///
/// Every tensor of the index must be in its shard, and no tensor may be in two.
pub fn open_sharded(index: &Path) -> Result<Vec<TensorFile>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: UniqueMap<String>,
    }
    let bad = |detail: String| Error::format(index, detail);
    let json = read_small(index, "a safetensors index", MAX_INDEX)?;
    let parsed: Index =
        serde_json::from_slice(&json).map_err(|e| bad(format!("not a safetensors index: {e}")))?;
    let map = parsed.weight_map.0;
    let names: BTreeSet<&str> = map.iter().map(|(_, shard)| shard.as_str()).collect();
    if names.is_empty() {
        return Err(bad("the weight_map is empty".into()));
    }
    let dir = index.parent().unwrap_or(Path::new(""));
    let mut files = BTreeMap::new();
    let mut owner: HashMap<String, &str> = HashMap::new();
    for name in names {
        // A shard lies beside the index; nothing else of the file system is an index's business.
        if !name.ends_with(".safetensors") || name.contains(['/', '\\', '\0']) {
            let detail = format!("the weight_map names `{name}`");
            return Err(bad(format!(
                "{detail}, expected a .safetensors file beside it"
            )));
        }
        let file = open(&dir.join(name))?;
        for tensor in file.tensors.keys() {
            if let Some(other) = owner.insert(tensor.clone(), name) {
                let (path, tensor) = (file.path.clone(), tensor.clone());
                let (expected, got) = (format!("it in `{other}` only"), format!("it in `{name}`"));
                return Err(Error::Tensor {
                    path,
                    tensor,
                    expected,
                    got,
                });
            }
        }
        files.insert(name, file);
    }
    for (tensor, shard) in &map {
        let file = &files[shard.as_str()];
        if !file.tensors.contains_key(tensor) {
            let expected = "it here, as model.safetensors.index.json says".into();
            let (path, tensor) = (file.path.clone(), tensor.clone());
            return Err(Error::Tensor {
                path,
                tensor,
                expected,
                got: "no such tensor".into(),
            });
        }
    }
    Ok(files.into_values().collect())
}

/// A JSON object whose keys must differ, in file order; without `__metadata__`, which a safetensors
/// header may carry beside its tensors.
struct UniqueMap<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<UniqueMap<V>, A::Error> {
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}` comes twice")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value();
            let value = value.map_err(|e| A::Error::custom(format!("`{name}`: {e}")))?;
            entries.push((name, value));
        }
        Ok(UniqueMap(entries))
    }
}
