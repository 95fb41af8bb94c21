//! A model in one GGUF file, or in several that `gguf-split` made: `NAME-00001-of-00003.gguf`.

use super::{Gguf, unsupported};
use crate::format::TensorInfo;
use crate::format::limits::{MAX_FILES, MAX_GGUF_TENSORS};
use crate::{Cancel, Error, Result, sentence};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The files of a model. The first has the metadata.
#[derive(Debug)]
pub struct Set {
    /// In order; no two have a tensor of the same name.
    pub files: Vec<Gguf>,
}

/// Whether a file is a GGUF file by its name.
pub fn is_gguf_name(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// `NAME`, 1 and 3 of `NAME-00001-of-00003.gguf`.
fn split_name(path: &Path) -> Option<(&str, usize, usize)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (name, count) = name.rsplit_once("-of-")?;
    let (name, number) = name.rsplit_once('-')?;
    let parsed = |digits: &str| {
        let all = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        all.then(|| digits.parse().ok())?
    };
    Some((name, parsed(number)?, parsed(count)?))
}

impl Set {
    /// The GGUF file of a directory, or the first file of its one split set. `None`: there is none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there are several models; [`Error::Io`].
    pub fn find(dir: &Path) -> Result<Option<PathBuf>> {
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
            let path = entry.map_err(|e| Error::io(dir, &e))?.path();
            if is_gguf_name(&path) {
                found.insert(path);
            }
        }
        let model = |path: &PathBuf| match split_name(path) {
            Some((name, _, count)) => (name.to_owned(), count),
            None => (path.to_string_lossy().into_owned(), 0),
        };
        let Some(first) = found.first() else {
            return Ok(None);
        };
        match found.iter().find(|path| model(path) != model(first)) {
            None => Ok(Some(first.clone())),
            Some(other) => {
                let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
                let names = [name(first), name(other)].map(Option::unwrap_or_default);
                let got = format!("{} with {} and {}", dir.display(), names[0], names[1]);
                Err(Error::invalid(
                    "ckpt_dir",
                    "one of several .gguf files by its path",
                    got,
                ))
            }
        }
    }

    /// Open a file and, where it is the first of several, the others beside it. `cancel` and
    /// errors: as in [`Gguf::open`]; besides, [`Error::InvalidArgument`] for a file that is not the
    /// first of its set, [`Error::Io`] where one is missing, [`Error::Format`] where they do not
    /// agree.
    pub fn open(path: &Path, cancel: Option<&Cancel>) -> Result<Set> {
        const COUNT: &str = "split.count";
        let first = Gguf::open(path, cancel)?;
        let count = first.u64(COUNT)?.unwrap_or(1).max(1);
        if count == 1 {
            return Ok(Set { files: vec![first] });
        }
        if count > MAX_FILES as u64 {
            return Err(first.wrong(COUNT, &format!("at most {MAX_FILES}"), count));
        }
        let count = count as usize;
        let Some((name, number, of)) = split_name(path) else {
            let detail = format!(
                "is one of {count} files, but its name does not end in -00001-of-{count:05}.gguf"
            );
            return Err(Error::format(path, detail));
        };
        let file = |n: usize| path.with_file_name(format!("{name}-{n:05}-of-{of:05}.gguf"));
        if number != 1 {
            let expected = format!("the first file of its set, {}", file(1).display());
            return Err(Error::invalid("ckpt_dir", expected, path.display()));
        }
        if of != count {
            let expected = format!("{of}, as its name says");
            return Err(first.wrong(COUNT, &expected, count));
        }
        let mut files = vec![first];
        for n in 2..=count {
            files.push(Gguf::open(&file(n), cancel)?);
        }
        let set = Set { files };
        set.check()?;
        Ok(set)
    }

    /// Whether the files agree with each other.
    fn check(&self) -> Result<()> {
        const TENSORS: &str = "split.tensors.count";
        for (i, file) in self.files.iter().enumerate() {
            for (key, expected) in [("split.count", self.files.len()), ("split.no", i)] {
                match file.u64(key)? {
                    Some(n) if n == expected as u64 => {}
                    Some(n) => return Err(file.wrong(key, &format!("{expected}, as file {i}"), n)),
                    None => return Err(file.wrong(key, &expected.to_string(), "missing")),
                }
            }
        }
        let mut names = BTreeSet::new();
        for (file, name, tensor) in self.tensors() {
            if !names.insert(name) {
                return Err(Error::Tensor {
                    path: file.table.path.clone(),
                    tensor: name.into(),
                    expected: "it in one file of the set".into(),
                    got: format!("it in two, here of shape {:?}", tensor.shape),
                });
            }
        }
        let (n, first) = (names.len() as u64, self.first());
        if n > MAX_GGUF_TENSORS {
            let detail = format!("the set has {n} tensors, at most {MAX_GGUF_TENSORS} are read");
            return Err(unsupported(&first.table.path, &detail));
        }
        match first.u64(TENSORS)? {
            Some(said) if said != n => {
                Err(first.wrong(TENSORS, &format!("{n}, as the files have"), said))
            }
            _ => Ok(()),
        }
    }

    /// The file with the metadata.
    pub fn first(&self) -> &Gguf {
        &self.files[0]
    }

    /// All tensors: their file, name, and what it says about them.
    pub fn tensors(&self) -> impl Iterator<Item = (&Gguf, &str, &TensorInfo)> {
        self.files.iter().flat_map(|file| {
            let tensors = file.table.tensors.iter();
            tensors.map(move |(name, tensor)| (file, name.as_str(), tensor))
        })
    }

    /// The tensor of this name and its file.
    pub fn tensor(&self, name: &str) -> Option<(&Gguf, &TensorInfo)> {
        let mut files = self.files.iter();
        files.find_map(|file| file.table.tensors.get(name).map(|tensor| (file, tensor)))
    }
}

impl std::fmt::Display for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&sentence::path(&self.first().table.path))
    }
}
