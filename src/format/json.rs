//! JSON out of a file that anybody may have written: read in pieces, with limits on what it holds.

use super::limits::{MAX_RANK, MAX_TENSORS};
use crate::file::read_at;
use crate::{Cancel, Error, Result, reserve};
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

/// Between two looks at the cancel flag.
const PIECE: u64 = 64 << 10;

/// Most bytes of memory that a byte of text turns into. An entry of a header has at least 50 bytes
/// and takes some 300 in a map; while one map is made of another there are two. Serde cannot be
/// told that there is no memory, so it is asked for beforehand.
const WORK_PER_BYTE: u64 = 12;

/// The value that these bytes of `file` are. `wrong` begins the sentence where they are none.
pub(super) fn read<T: DeserializeOwned>(
    file: &File,
    path: &Path,
    range: Range<u64>,
    cancel: Option<&Cancel>,
    wrong: &str,
) -> Result<T> {
    let len = range.end - range.start;
    let piece = len.clamp(1, PIECE) as usize;
    let work = len.saturating_mul(WORK_PER_BYTE);
    let work = usize::try_from(work).unwrap_or(usize::MAX);
    reserve::headroom(&format!("reading {}", path.display()), work)?;
    let mut section = Section {
        file,
        path,
        range,
        cancel,
        failure: None,
    };
    let mut json =
        serde_json::Deserializer::from_reader(BufReader::with_capacity(piece, &mut section));
    let value = T::deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    match section.failure {
        Some(error) => Err(error),
        None => value.map_err(|e| Error::format(path, format!("{wrong}: {e}"))),
    }
}

/// Bytes of a file, until the cancel flag is triggered.
struct Section<'a> {
    file: &'a File,
    path: &'a Path,
    range: Range<u64>,
    cancel: Option<&'a Cancel>,
    /// What the JSON parser is not to put into its own words.
    failure: Option<Error>,
}

impl Read for Section<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.range.end - self.range.start;
        let n = left.min(buf.len() as u64) as usize;
        let got = match self.cancel {
            Some(cancel) if cancel.is_triggered() => Err(Error::Cancelled),
            _ => read_at(self.file, self.path, self.range.start, &mut buf[..n]),
        };
        if let Err(error) = got {
            let text = error.to_string();
            self.failure = Some(error);
            return Err(io::Error::other(text));
        }
        self.range.start += n as u64;
        Ok(n)
    }
}

/// A JSON object whose keys are names of tensors: all different and at most [`MAX_TENSORS`].
/// Without `__metadata__`, which a safetensors header may have beside them.
pub(super) struct ByTensor<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ByTensor<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(ByTensorVisitor(PhantomData))
    }
}

struct ByTensorVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ByTensorVisitor<V> {
    type Value = ByTensor<V>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<ByTensor<V>, A::Error> {
        let mut entries = BTreeMap::new();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            let twice = match name == "__metadata__" {
                true => std::mem::replace(&mut has_metadata, true),
                false => entries.contains_key(&name),
            };
            if twice {
                return Err(A::Error::custom(format!("`{name}` comes twice")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if entries.len() == MAX_TENSORS {
                map.next_value::<IgnoredAny>()?;
                let mut n = MAX_TENSORS + 1;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    n += 1;
                }
                return Err(A::Error::custom(format!(
                    "{n} tensors, a checkpoint has at most {MAX_TENSORS}"
                )));
            }
            let value = map.next_value();
            let value = value.map_err(|e| A::Error::custom(format!("`{name}`: {e}")))?;
            entries.insert(name, value);
        }
        Ok(ByTensor(entries))
    }
}

/// The sizes of a tensor: at most [`MAX_RANK`].
pub(super) struct Sizes(pub Vec<usize>);

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_seq(SizesVisitor)
    }
}

struct SizesVisitor;

impl<'de> Visitor<'de> for SizesVisitor {
    type Value = Sizes;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an array of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Sizes, A::Error> {
        let mut sizes = Vec::new();
        while sizes.len() < MAX_RANK {
            match seq.next_element()? {
                Some(size) => sizes.push(size),
                None => return Ok(Sizes(sizes)),
            }
        }
        let mut n = MAX_RANK;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            n += 1;
        }
        match n {
            MAX_RANK => Ok(Sizes(sizes)),
            _ => Err(A::Error::custom(format!(
                "{n} dimensions, a tensor has at most {MAX_RANK}"
            ))),
        }
    }
}
