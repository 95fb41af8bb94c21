//! GGUF: metadata as typed keys, then where tensors lie, then their data (`gguf.md` of ggml).
//!
//! Versions 2 and 3, little-endian. Opening reads the table of contents through a small buffer and
//! remembers of each key only where its value lies: a value is read when it is asked for, so what
//! nobody asks for is never allocated.

use super::limits::{MAX_GGUF_KEY, MAX_GGUF_KEYS, MAX_GGUF_METADATA, MAX_GGUF_TENSORS};
use super::{TensorFile, TensorInfo};
use crate::file::{open_regular, read_at, read_vec, zeros};
use crate::quant::ggml::Type;
use crate::{Cancel, Error, Result, reserve, sentence};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

mod set;
mod value;

pub use set::{Set, is_gguf_name};
use value::Value;

/// Bytes that are read at a time, and between two looks at the cancel flag.
const PIECE: usize = 64 << 10;

/// Bytes of memory that an entry of a map takes, without its name.
const WORK: usize = 256;

/// Where the keys begin: behind the magic number, the version, and the two counts.
const KEYS_AT: u64 = 24;

/// How the keys begin that say which part of a set a file is.
const SPLIT: &str = "split.";

/// Fewest bytes of a key with its value and of an entry of a tensor.
const KEY_BYTES: u64 = 13;
const TENSOR_BYTES: u64 = 32;

/// One open file: its validated table of contents, and the means to read from it.
#[derive(Debug)]
pub struct Gguf {
    /// Its tensors, and the means to read from them.
    pub table: TensorFile,
    keys: BTreeMap<String, Value>,
    /// Where the keys end.
    keys_end: u64,
}

impl Gguf {
    /// Open a file and validate everything it says about its keys and tensors; reads no values and
    /// no data. `cancel` is looked at every few kilobytes.
    ///
    /// # Errors
    /// [`Error::Format`], [`Error::Config`] and [`Error::Tensor`] for a file that is malformed,
    /// contradicts itself or its length, or is beyond [`super::limits`]; [`Error::Unsupported`] for
    /// version 1, big-endian files, and types of tensors that are not read; [`Error::Refused`]
    /// where there is no memory for the table of contents.
    pub fn open(path: &Path, cancel: Option<&Cancel>) -> Result<Gguf> {
        let (file, len) = open_regular(path)?;
        let mut reader = Reader::new(path, &file, 0..len, cancel);
        let (n_tensors, n_keys) = head(&mut reader)?;
        // Maps cannot be told that there is no memory, so it is asked for beforehand.
        let work = (n_tensors + n_keys) as usize * WORK;
        reserve::headroom(&format!("reading {}", path.display()), work)?;
        let keys = read_keys(&mut reader, n_keys)?;
        let keys_end = reader.at;
        let table = TensorFile {
            path: path.into(),
            tensors: BTreeMap::new(),
            file: file.try_clone().map_err(|e| Error::io(path, &e))?,
        };
        let mut gguf = Gguf {
            table,
            keys,
            keys_end,
        };
        let alignment = gguf.alignment()?;
        let tensors = read_tensors(&mut reader, n_tensors)?;
        let start = reader.at.next_multiple_of(alignment);
        gguf.table.tensors = place(path, tensors, start, alignment, len)?;
        Ok(gguf)
    }

    /// The number of keys, and the bytes of all of them with their values; where `key` is a number
    /// of 32 bits, it is `number` there. Without those that say how a set is split: what has all of
    /// its tensors is no part of it.
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no memory for them; [`Error::Io`].
    pub fn metadata(&self, key: &str, number: u32) -> Result<(u64, Vec<u8>)> {
        let (file, path) = (&self.table.file, &self.table.path);
        let mut bytes = read_vec(file, path, KEYS_AT, self.keys_end - KEYS_AT)?;
        if let Some(at) = self.keys.get(key).and_then(Value::place_of_u32) {
            let at = (at - KEYS_AT) as usize;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let of_set = self.keys.iter().filter(|(key, _)| key.starts_with(SPLIT));
        let mut left_out: Vec<_> = of_set.map(|(_, value)| value.entry()).collect();
        // From the last one on, so that the places of the others stay what they are.
        left_out.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.start));
        let n = self.keys.len() - left_out.len();
        for entry in left_out {
            bytes.drain((entry.start - KEYS_AT) as usize..(entry.end - KEYS_AT) as usize);
        }
        Ok((n as u64, bytes))
    }

    /// Where the data of the file begins at multiples of.
    pub(crate) fn alignment(&self) -> Result<u64> {
        const KEY: &str = "general.alignment";
        match self.u64(KEY)? {
            None => Ok(32),
            Some(n) if n.is_power_of_two() && (8..=65_536).contains(&n) => Ok(n),
            Some(n) => Err(self.wrong(KEY, "a power of two from 8 to 65536", n)),
        }
    }
}

/// The numbers of tensors and of keys.
fn head(reader: &mut Reader<'_>) -> Result<(u64, u64)> {
    let path = reader.path;
    let bad = |detail: String| Err(Error::format(path, detail));
    let magic: [u8; 4] = reader.array("the magic number")?;
    if magic != *b"GGUF" {
        return bad(format!(
            "not a GGUF file: it begins with bytes {magic:?}, expected `GGUF`"
        ));
    }
    let version = reader.u32("the version")?;
    match version {
        2 | 3 => {}
        1 => {
            let detail = "is GGUF of version 1, versions 2 and 3 are read".to_owned();
            return Err(unsupported(path, &detail));
        }
        v if v & 0xffff == 0 && v != 0 => {
            return Err(unsupported(
                path,
                "is a big-endian GGUF file, little-endian ones are read",
            ));
        }
        v => return bad(format!("is GGUF of version {v}, versions 2 and 3 are read")),
    }
    let n_tensors = reader.u64("the number of tensors")?;
    let n_keys = reader.u64("the number of keys")?;
    let left = reader.end - reader.at;
    let counts = [
        ("tensors", n_tensors, MAX_GGUF_TENSORS, TENSOR_BYTES),
        ("keys", n_keys, MAX_GGUF_KEYS, KEY_BYTES),
    ];
    for (what, n, most, bytes) in counts {
        let most = most.min(left / bytes);
        if n > most {
            return bad(format!(
                "claims {n} {what}, a GGUF file of its length has at most {most}"
            ));
        }
    }
    Ok((n_tensors, n_keys))
}

fn read_keys(reader: &mut Reader<'_>, n: u64) -> Result<BTreeMap<String, Value>> {
    let mut keys = BTreeMap::new();
    for i in 0..n {
        let key = reader.name(&format!("key {i}"))?;
        if keys.contains_key(&key) {
            let detail = format!("has key `{}` twice", sentence::name(&key));
            return Err(Error::format(reader.path, detail));
        }
        let value = Value::find(reader, &key)?;
        keys.insert(key, value);
    }
    Ok(keys)
}

/// Tensors by name; their offsets are still those in the data.
fn read_tensors(reader: &mut Reader<'_>, n: u64) -> Result<BTreeMap<String, TensorInfo>> {
    let mut tensors = BTreeMap::new();
    for i in 0..n {
        let name = reader.name(&format!("the name of tensor {i}"))?;
        let bad = |expected: String, got: String| {
            Err(Error::Tensor {
                path: reader.path.into(),
                tensor: name.clone(),
                expected,
                got,
            })
        };
        let of = |what: &str| format!("{what} of tensor `{name}`");
        let rank = reader.u32(&of("the dimensions"))?;
        if !(1..=4).contains(&rank) {
            return bad("1 to 4 dimensions".into(), rank.to_string());
        }
        // Written innermost first.
        let mut shape = Vec::new();
        let mut product = 1u64;
        for _ in 0..rank {
            let size = reader.u64(&of("the dimensions"))?;
            let Some(of_all) = product.checked_mul(size).filter(|_| size > 0) else {
                let got = format!("a size of {size} after {shape:?}");
                return bad(
                    "dimensions of at least 1 whose product is below 2^64".into(),
                    got,
                );
            };
            product = of_all;
            shape.insert(0, size as usize);
        }
        let number = reader.u32(&of("the type"))?;
        let kind = Type::of_number(number).map_err(|other| {
            let name = sentence::name(&name);
            unsupported(
                reader.path,
                &format!("tensor `{name}` is stored as {other}, which is not read"),
            )
        })?;
        let offset = reader.u64(&of("the offset"))?;
        let cols = *shape.last().expect("at least 1 dimension");
        let row = kind.row_bytes(cols);
        let Some(len) = row.and_then(|row| (product / cols as u64).checked_mul(row as u64)) else {
            let block = kind.block();
            return bad(
                format!("rows of a multiple of {block} for {kind}"),
                cols.to_string(),
            );
        };
        if tensors.contains_key(&name) {
            return bad("one tensor of this name".into(), "two".into());
        }
        let tensor = TensorInfo {
            encoding: kind.into(),
            shape,
            offset,
            len,
        };
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Tensors with offsets in the file, after a check that they are aligned, in it, and apart.
fn place(
    path: &Path,
    mut tensors: BTreeMap<String, TensorInfo>,
    start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<BTreeMap<String, TensorInfo>> {
    let bad = |name: &str, expected: String, got: String| {
        Err(Error::Tensor {
            path: path.into(),
            tensor: name.into(),
            expected,
            got,
        })
    };
    let data_len = file_len.saturating_sub(start);
    for (name, tensor) in &mut tensors {
        let (offset, len) = (tensor.offset, tensor.len);
        if !offset.is_multiple_of(alignment) {
            return bad(
                name,
                format!("an offset of a multiple of {alignment}"),
                offset.to_string(),
            );
        }
        if offset.checked_add(len).is_none_or(|end| end > data_len) {
            let got = format!("{len} bytes from {offset} on; is the file cut off?");
            return bad(
                name,
                format!("its data within the {data_len} bytes of the file's"),
                got,
            );
        }
        tensor.offset += start;
    }
    let mut in_order: Vec<_> = reserve::room("the order of tensors", tensors.len())?;
    in_order.extend(&tensors);
    in_order.sort_unstable_by_key(|(_, tensor)| tensor.offset);
    for pair in in_order.windows(2) {
        let [(before, first), (name, second)] = pair else {
            continue;
        };
        let end = first.offset + first.len;
        if end > second.offset {
            let expected = format!("its data from {} on, behind `{before}`", end - start);
            return bad(
                name,
                expected,
                format!("data from {} on", second.offset - start),
            );
        }
    }
    Ok(tensors)
}

fn unsupported(path: &Path, detail: &str) -> Error {
    Error::Unsupported(format!("{}: {detail}", sentence::path(path)))
}

/// A file from front to back, through a buffer.
struct Reader<'a> {
    path: &'a Path,
    file: &'a File,
    cancel: Option<&'a Cancel>,
    /// Where the next byte lies, and where there are no more.
    at: u64,
    end: u64,
    buf: Vec<u8>,
    /// What of `buf` is still to be taken; it ends where the next read begins.
    rest: Range<usize>,
}

impl<'a> Reader<'a> {
    fn new(path: &'a Path, file: &'a File, range: Range<u64>, cancel: Option<&'a Cancel>) -> Self {
        Reader {
            path,
            file,
            cancel,
            at: range.start,
            end: range.end,
            buf: Vec::new(),
            rest: 0..0,
        }
    }

    /// The next `n` bytes, at most [`PIECE`]; `what` names them where there are fewer.
    fn take(&mut self, n: usize, what: &str) -> Result<&[u8]> {
        self.check(n as u64, what)?;
        if self.rest.len() < n {
            if self.cancel.is_some_and(Cancel::is_triggered) {
                return Err(Error::Cancelled);
            }
            if self.buf.is_empty() {
                self.buf = zeros("the buffer that a file is read through", PIECE as u64)?;
            }
            let len = (self.end - self.at).min(PIECE as u64) as usize;
            read_at(self.file, self.path, self.at, &mut self.buf[..len])?;
            self.rest = 0..len;
        }
        let from = self.rest.start;
        self.rest.start += n;
        self.at += n as u64;
        Ok(&self.buf[from..from + n])
    }

    /// Whether `n` bytes are left.
    fn check(&self, n: u64, what: &str) -> Result<()> {
        let left = self.end - self.at;
        let detail = match () {
            _ if n > left => format!("takes {n} bytes, {left} are left"),
            _ if self.at + n > MAX_GGUF_METADATA => {
                format!(
                    "ends at {}, metadata has at most {MAX_GGUF_METADATA} bytes",
                    self.at + n
                )
            }
            _ => return Ok(()),
        };
        let detail = format!("{} at byte {} {detail}", sentence::name(what), self.at);
        Err(Error::format(self.path, detail))
    }

    /// Leaves out `n` bytes.
    fn pass(&mut self, n: u64, what: &str) -> Result<()> {
        self.check(n, what)?;
        self.at += n;
        let start = (self.rest.start as u64).saturating_add(n);
        self.rest.start = start.min(self.rest.end as u64) as usize;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(*self.take(N, what)?.first_chunk().expect("as many as taken"))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A key, or the name of a tensor.
    fn name(&mut self, what: &str) -> Result<String> {
        let path = self.path;
        let bad = |detail: String| Error::format(path, format!("{what} {detail}"));
        let len = self.u64(what)?;
        if len > MAX_GGUF_KEY {
            return Err(bad(format!(
                "has {len} bytes, at most {MAX_GGUF_KEY} are read"
            )));
        }
        let bytes = self.take(len as usize, what)?;
        let bytes = reserve::copy("a name", bytes)?;
        String::from_utf8(bytes).map_err(|_| bad("is not UTF-8".into()))
    }
}
