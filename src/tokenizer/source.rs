//! Finds which file is a checkpoint's tokenizer, and reads the files beside it.

use super::beside;
use super::extras::Extras;
use super::model_proto::{Checked, count_pieces};
use super::{SentencePiece, Tokenizer, hf_json, tekken, tiktoken};
use crate::file::read_small;
use crate::{Error, Result, reserve};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Size of the largest tokenizer file that is read. The largest in use have some thirty megabytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Memory that SentencePiece takes to read a file, in bytes. Llama 2's file of half a megabyte
/// takes some ten megabytes.
const PROTO_WORK_PER_BYTE: usize = 32;
const PROTO_WORK: usize = 2 << 20;
/// Opens the tokenizer of a checkpoint's directory: `tokenizer.model`, else `tokenizer.json`, else
/// `tekken.json`. But if the first is Llama 3's and the second exists as well, it opens the second:
/// only that file knows what a fine-tune renamed.
///
/// [`Error::Io`] if none of them exists; otherwise as [`open`].
pub fn open_in(dir: &Path) -> Result<Arc<dyn Tokenizer>> {
    in_directory(dir, None)
}

/// The names of the files of a directory's tokenizer. The first three are tokenizers.
pub const FILES: [&str; 6] = [
    "tokenizer.model",
    "tokenizer.json",
    "tekken.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];

/// Whether [`open_in`] finds something to open in `dir`.
pub fn is_in(dir: &Path) -> bool {
    let mut names = FILES[..3].iter();
    names.any(|name| dir.join(name).symlink_metadata().is_ok())
}

/// The files that [`open`] reads for this path: the file itself and files beside it. Each comes
/// with a name from [`FILES`]. If a directory has these files under these names, and no others of
/// [`FILES`], then [`open_in`] makes the same tokenizer of it.
///
/// [`Error::Io`] and [`Error::Format`] if `path` is not a file that can be read.
pub fn files(path: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let bytes = read_small(path, "a tokenizer", MAX_FILE_BYTES)?;
    let [model, json, tekken, config, map, added] = FILES;
    let (name, beside) = match () {
        _ if Checked::parse(&bytes).is_ok() => (model, &[json, config, map, added][..]),
        _ if tekken::is_tekken(&bytes) => (tekken, &[][..]),
        _ if hf_json::is_json(&bytes) => (json, &[config, map][..]),
        _ => (model, &[][..]),
    };
    let dir = path.parent().unwrap_or(Path::new(""));
    let beside = beside.iter().map(|&name| (name, dir.join(name)));
    let beside = beside.filter(|(_, path)| path.symlink_metadata().is_ok());
    Ok(std::iter::once((name, path.to_owned()))
        .chain(beside)
        .collect())
}

/// The tokenizer that [`open_in`] or [`open`] finds at `path`, without the added tokens whose id is
/// `end` or more. Other tokens stay, whatever their ids are.
pub fn open_below(path: &Path, end: u32) -> Result<Arc<dyn Tokenizer>> {
    match path.is_dir() {
        true => in_directory(path, Some(end)),
        false => in_file(path, Some(end)),
    }
}

fn in_directory(dir: &Path, end: Option<u32>) -> Result<Arc<dyn Tokenizer>> {
    let [model, json, tekken] = [FILES[0], FILES[1], FILES[2]].map(|name| dir.join(name));
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    match (is_there(&model), is_there(&json)) {
        (true, false) => in_file(&model, end),
        (false, true) => in_file(&json, end),
        (true, true) => {
            let bytes = read_small(&model, "a tokenizer", MAX_FILE_BYTES)?;
            match tiktoken::is_tiktoken(&bytes) {
                true => in_file(&json, end),
                false => with_extras(&model, &bytes, end),
            }
        }
        (false, false) if is_there(&tekken) => in_file(&tekken, end),
        (false, false) => {
            // The message names files that look like a tokenizer of another kind.
            let hint = match is_there(&dir.join("vocab.json")) {
                true => "; vocab.json and merges.txt are not supported",
                false => "",
            };
            Err(Error::Io {
                path: dir.into(),
                detail: format!("no tokenizer.model, tokenizer.json or tekken.json{hint}"),
            })
        }
    }
}

/// Opens a tokenizer file of any kind that we know, and the files beside it that say more about it.
///
/// [`Error::Io`] if there is no file that can be read, [`Error::Unsupported`] for a tokenizer of a
/// kind that is known but not supported, [`Error::Format`] for anything else that is not a
/// tokenizer.
pub fn open(path: &Path) -> Result<Arc<dyn Tokenizer>> {
    in_file(path, None)
}

fn in_file(path: &Path, end: Option<u32>) -> Result<Arc<dyn Tokenizer>> {
    let bytes = read_small(path, "a tokenizer", MAX_FILE_BYTES)?;
    with_extras(path, &bytes, end)
}

/// The tokenizer in a file with these contents, without files beside it. `path` is for messages.
pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Arc<dyn Tokenizer>> {
    of(path, bytes, |_| Ok(Extras::default()))
}

fn with_extras(path: &Path, bytes: &[u8], end: Option<u32>) -> Result<Arc<dyn Tokenizer>> {
    let dir = path.parent().unwrap_or(Path::new(""));
    of(path, bytes, |kind| {
        let mut extras = beside::extras(dir, kind == Kind::SentencePiece)?;
        if let Some(end) = end {
            extras.added.retain(|&id, _| id < end);
        }
        extras.added_end = end;
        Ok(extras)
    })
}

/// The kind of a tokenizer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SentencePiece,
    Json,
}

fn of(
    path: &Path,
    bytes: &[u8],
    extras: impl Fn(Kind) -> Result<Extras>,
) -> Result<Arc<dyn Tokenizer>> {
    // A ModelProto may begin with a brace, too. So other kinds are looked for only if this is no
    // ModelProto.
    if count_pieces(bytes).is_ok_and(|n| n > 0) {
        let work = bytes.len().saturating_mul(PROTO_WORK_PER_BYTE);
        reserve::headroom("reading a tokenizer", work.saturating_add(PROTO_WORK))?;
    }
    let error = match Checked::parse(bytes) {
        Ok(checked) => {
            let extras = extras(Kind::SentencePiece)?;
            let tokenizer = SentencePiece::from_checked(path, checked, &extras)?;
            return Ok(Arc::new(tokenizer));
        }
        Err(error) => error,
    };
    if hf_json::is_json(bytes) {
        // The common kind is tried first, because the other one is recognised only by reading the
        // whole file.
        let read = hf_json::from_bytes(path, bytes, &extras(Kind::Json)?);
        return match read {
            Err(_) if tekken::is_tekken(bytes) => Ok(Arc::new(tekken::from_bytes(path, bytes)?)),
            read => Ok(Arc::new(read?)),
        };
    }
    if tiktoken::is_tiktoken(bytes) {
        return Ok(Arc::new(tiktoken::from_bytes(path, bytes)?));
    }
    Err(Error::format(path, error))
}
