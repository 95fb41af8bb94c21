//! The open files of a checkpoint, and finding tensors in them by name.

use crate::format::{TensorFile, TensorInfo};
use crate::{Dtype, Error, Result};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// All files of a checkpoint's weights.
#[derive(Debug)]
pub struct Files {
    /// The directory, or the only file; for messages.
    pub path: PathBuf,
    /// The files, in order.
    pub files: Vec<TensorFile>,
    /// Whether tensors are cut, so that every file has a piece of each tensor (Meta's
    /// model-parallel shards). Otherwise each file has some whole tensors.
    pub cut: bool,
}

impl Files {
    /// How many pieces a tensor comes in.
    pub fn shards(&self) -> usize {
        if self.cut { self.files.len() } else { 1 }
    }

    /// The floating-point format of most of the weights' bytes. If two formats have equally many,
    /// the wider one.
    pub fn most_floats(&self) -> Dtype {
        let bytes = |dtype| -> u64 {
            let tensors = self.files.iter().flat_map(|file| file.tensors.values());
            // Saturates, because tensors of a .pth file may share bytes, so their lengths may add
            // up to more than the file has.
            tensors
                .filter(|t| t.encoding.float() == Some(dtype))
                .fold(0, |sum, t| sum.saturating_add(t.len))
        };
        [Dtype::F16, Dtype::Bf16, Dtype::F32]
            .into_iter()
            .max_by_key(|&d| bytes(d))
            .expect("three")
    }

    /// The first tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.files.iter().find_map(|file| file.tensors.get(name))
    }
}

/// A stored tensor, found and checked.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its file.
    pub file: &'a TensorFile,
    /// Its name.
    pub name: &'a str,
    /// What the file says about it.
    pub info: &'a TensorInfo,
}

impl Source<'_> {
    /// Makes an error about the tensor's contents.
    pub fn wrong(&self, expected: String, got: String) -> Error {
        Error::Tensor {
            path: self.file.path.clone(),
            tensor: self.name.into(),
            expected,
            got,
        }
    }

    /// Bytes of one row of the tensor. (There is at least one row, because no size of a model is
    /// 0.)
    pub fn row_bytes(&self) -> usize {
        (self.info.len / self.info.shape[0] as u64) as usize
    }
}

/// Finds tensors by name, and remembers which of them were used.
pub struct Finder<'a> {
    files: &'a Files,
    /// The file that holds each tensor. Empty if tensors are cut, because then every file has all
    /// of them.
    owner: HashMap<&'a str, usize>,
    used: HashSet<(usize, &'a str)>,
}

impl<'a> Finder<'a> {
    /// A finder for `files`; no tensor counts as used yet.
    pub fn new(files: &'a Files) -> Self {
        let all = files.files.iter().enumerate();
        let owner = all.flat_map(|(i, file)| file.tensors.keys().map(move |k| (k.as_str(), i)));
        Finder {
            files,
            owner: owner.collect(),
            used: HashSet::new(),
        }
    }

    /// Whether there is a tensor of this name.
    pub fn holds(&self, name: &str) -> bool {
        self.owner.contains_key(name)
    }

    /// Whether somebody has asked for the tensor of this name.
    pub fn is_used(&self, name: &str) -> bool {
        let owner = self.owner.get(name);
        owner.is_some_and(|&file| self.used.contains(&(file, name)))
    }

    /// How many pieces a tensor comes in.
    pub fn shards(&self) -> usize {
        self.files.shards()
    }

    /// Finds a tensor of one dimension, of any length and encoding.
    pub fn vector(&mut self, name: &str) -> Result<Source<'a>> {
        let info = self.files.tensor(name);
        let len = info.and_then(|info| info.shape.first()).copied();
        self.tensor(0, name, &[&[len.unwrap_or(0)]])
    }

    /// Finds a tensor of floats, which must have one of these shapes.
    pub fn floats(&mut self, shard: usize, name: &str, shapes: &[&[usize]]) -> Result<Source<'a>> {
        let source = self.tensor(shard, name, shapes)?;
        if source.info.encoding.float().is_some() {
            return Ok(source);
        }
        let expected = "dtype f32, f16 or bf16, as no quantization_config says otherwise";
        let got = format!("dtype {}", source.info.encoding);
        Err(source.wrong(expected.into(), got))
    }

    /// Finds a tensor of any encoding, which must have one of these shapes.
    pub fn tensor(&mut self, shard: usize, name: &str, shapes: &[&[usize]]) -> Result<Source<'a>> {
        let index = if self.files.cut {
            Some(shard)
        } else {
            self.owner.get(name).copied()
        };
        let expected = || {
            let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            format!("shape {}", shapes.join(" or "))
        };
        let file = index.map(|index| &self.files.files[index]);
        let held = file.and_then(|file| file.tensors.get_key_value(name));
        let (Some(file), Some((name, info))) = (file, held) else {
            return Err(Error::Tensor {
                path: file.map_or(&self.files.path, |file| &file.path).clone(),
                tensor: name.into(),
                expected: expected(),
                got: "no such tensor".into(),
            });
        };
        let source = Source { file, name, info };
        if !shapes.contains(&info.shape.as_slice()) {
            return Err(source.wrong(expected(), format!("shape {:?}", info.shape)));
        }
        self.used.insert((index.unwrap_or(0), name));
        Ok(source)
    }

    /// Returns an error if there is a tensor that nobody has asked for and that is not `ignored`.
    pub fn refuse_surplus(&self, ignored: impl Fn(&str) -> bool) -> Result<()> {
        for (index, file) in self.files.files.iter().enumerate() {
            for (name, info) in &file.tensors {
                if !self.used.contains(&(index, name.as_str())) && !ignored(name) {
                    let expected = "no such tensor in this model".into();
                    let got = format!("shape {:?} of {}", info.shape, info.encoding);
                    return Err(Source { file, name, info }.wrong(expected, got));
                }
            }
        }
        Ok(())
    }
}
