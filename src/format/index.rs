//! A model's tensors in several files: which one has which, in JSON.

use super::TensorFile;
use super::json::{self, ByTensor};
use super::limits::{MAX_FILES, MAX_INDEX, MAX_TENSORS};
use crate::file::open_regular;
use crate::{Cancel, Error, Result, sentence};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// Opens the files that an index names, whose names all have this ending. `kind` names the index in
/// messages; `open` opens one file.
///
/// Every tensor of the index must be in its file, and no tensor may be in two.
pub(super) fn open(
    index: &Path,
    (kind, ending): (&str, &str),
    open: &mut dyn FnMut(&Path) -> Result<TensorFile>,
    cancel: Option<&Cancel>,
) -> Result<Vec<TensorFile>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: ByTensor<String>,
    }
    let bad = |detail: String| Err(Error::format(index, detail));
    let (file, len) = open_regular(index)?;
    if len > MAX_INDEX {
        return bad(format!("has {len} bytes, {kind} has at most {MAX_INDEX}"));
    }
    let parsed: Index = json::read(&file, index, 0..len, cancel, &format!("not {kind}"))?;
    let map = parsed.weight_map.0;
    let names: BTreeSet<&str> = map.values().map(String::as_str).collect();
    if names.is_empty() {
        return bad("the weight_map is empty".into());
    }
    if names.len() > MAX_FILES {
        let n = names.len();
        return bad(format!(
            "the weight_map names {n} files, a checkpoint has at most {MAX_FILES}"
        ));
    }
    let dir = index.parent().unwrap_or(Path::new(""));
    let mut files = BTreeMap::new();
    let mut n_tensors = 0;
    for name in names {
        // A shard lies beside the index; nothing else of the file system is an index's business.
        if !name.ends_with(ending) || name.contains(['/', '\\', '\0']) {
            let detail = format!("the weight_map names `{}`", sentence::name(name));
            return bad(format!("{detail}, expected a {ending} file beside it"));
        }
        let file = open(&dir.join(name))?;
        n_tensors += file.tensors.len();
        if n_tensors > MAX_TENSORS {
            return bad(format!(
                "its files up to `{name}` have {n_tensors} tensors, a checkpoint has at most \
                 {MAX_TENSORS}"
            ));
        }
        files.insert(name, file);
    }
    let wrong = |file: &TensorFile, tensor: &str, expected: String, got: String| {
        Err(Error::Tensor {
            path: file.path.clone(),
            tensor: tensor.into(),
            expected,
            got,
        })
    };
    let mut owner: HashMap<&str, &str> = HashMap::new();
    for (name, file) in &files {
        for tensor in file.tensors.keys() {
            if let Some(other) = owner.insert(tensor, name) {
                let (expected, got) = (format!("it in `{other}` only"), format!("it in `{name}`"));
                return wrong(file, tensor, expected, got);
            }
        }
    }
    for (tensor, shard) in &map {
        let file = &files[shard.as_str()];
        if !file.tensors.contains_key(tensor) {
            let index = index.file_name().unwrap_or_default().to_string_lossy();
            let expected = format!("it here, as {index} says");
            return wrong(file, tensor, expected, "no such tensor".into());
        }
    }
    Ok(files.into_values().collect())
}
