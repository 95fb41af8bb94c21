//! The table of contents of a stored zip archive (APPNOTE 6.3.10, sections 4.3 and 4.5.3).
//!
//! Only what `torch.save` writes: nothing compressed or encrypted, no comment at the end, one disk.
//! This is our own because `zip::ZipArchive` sizes its tables by counts that it compares with
//! offsets only: a sparse file of a few KiB on disk makes it ask for hundreds of gigabytes, and
//! that takes the host down. Tests compare the two on well-formed archives.

use super::bytes::Bytes;
use super::limits::MAX_DIRECTORY;
use crate::file::{read_at, read_vec};
use crate::{Error, Result, reserve, sentence};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

const END: u32 = 0x0605_4b50;
const END_LEN: u64 = 22;
const LOCATOR: u32 = 0x0706_4b50;
const LOCATOR_LEN: u64 = 20;
const END64: u32 = 0x0606_4b50;
const END64_LEN: u64 = 56;
const ENTRY: u32 = 0x0201_4b50;
const ENTRY_LEN: u64 = 46;
const LOCAL: u32 = 0x0403_4b50;
const LOCAL_LEN: u64 = 30;

/// Most bytes of memory that a byte of the directory turns into: an entry has at least 46 bytes and
/// takes some 150 in a map. A map cannot be told that there is no memory, so it is asked for
/// beforehand.
const WORK_PER_BYTE: usize = 4;

/// What the directory says about one entry.
struct Entry {
    /// Offset of its local header.
    header: u64,
    /// Bytes of its data.
    size: u64,
}

/// The central directory of an open archive.
pub(super) struct Archive<'a> {
    path: &'a Path,
    file: &'a File,
    entries: BTreeMap<String, Entry>,
    /// Offset of the directory: all entries lie before it.
    start: u64,
}

impl<'a> Archive<'a> {
    /// Read the directory of the `len` bytes of `file`.
    pub fn open(path: &'a Path, file: &'a File, len: u64) -> Result<Self> {
        let bad = |detail: String| Error::format(path, detail);
        let (count, directory) = find_directory(path, file, len)?;
        let size = directory.end - directory.start;
        if size > MAX_DIRECTORY {
            let detail = format!("the zip directory has {size} bytes, expected {MAX_DIRECTORY}");
            return Err(bad(format!("{detail} at most")));
        }
        if count.saturating_mul(ENTRY_LEN) > size {
            let detail = format!("the zip directory has {size} bytes, too few for {count} entries");
            return Err(bad(detail));
        }
        let table = read_vec(file, path, directory.start, size)?;
        let work = table.len() * WORK_PER_BYTE;
        reserve::headroom(&format!("reading {}", path.display()), work)?;
        let mut table = Bytes::new(&table);
        let mut entries = BTreeMap::new();
        for i in 0..count {
            let (name, entry) = parse_entry(&mut table)
                .ok_or_else(|| bad(format!("entry {i} of the zip directory is malformed")))?
                .map_err(bad)?;
            if entries.insert(name.into(), entry).is_some() {
                let name = sentence::name(name);
                return Err(bad(format!("the zip directory names `{name}` twice")));
            }
        }
        if table.len() != 0 {
            return Err(bad(format!(
                "{} bytes follow the zip directory's entries",
                table.len()
            )));
        }
        Ok(Self {
            path,
            file,
            entries,
            start: directory.start,
        })
    }

    /// Names of the entries, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Where the data of an entry lies, `None` if there is none of that name.
    pub fn data(&self, name: &str) -> Result<Option<Range<u64>>> {
        let Some(entry) = self.entries.get(name) else {
            return Ok(None);
        };
        let bad = |detail| {
            let name = sentence::name(name);
            let detail = format!("zip entry `{name}` {detail}");
            Err(Error::format(self.path, detail))
        };
        if entry.header.saturating_add(LOCAL_LEN) > self.start {
            return bad(format!("starts at {}, outside the entries", entry.header));
        }
        let mut local = [0; LOCAL_LEN as usize];
        read_at(self.file, self.path, entry.header, &mut local)?;
        let mut fields = Bytes::new(&local);
        let signature = fields.u32();
        fields.take(22);
        let (Some(LOCAL), Some(name_len), Some(extra_len)) =
            (signature, fields.u16(), fields.u16())
        else {
            return bad(format!("has no header at {}", entry.header));
        };
        let start = entry.header + LOCAL_LEN + u64::from(name_len) + u64::from(extra_len);
        match start.checked_add(entry.size) {
            Some(end) if end <= self.start => Ok(Some(start..end)),
            _ => bad(format!(
                "has {} bytes from {start} on, beyond the end of the entries at {}",
                entry.size, self.start
            )),
        }
    }

    /// The data of a small entry.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(range) = self.data(name)? else {
            return Ok(None);
        };
        let len = range.end - range.start;
        if len > limit {
            let name = sentence::name(name);
            let detail = format!("zip entry `{name}` has {len} bytes, expected at most {limit}");
            return Err(Error::format(self.path, detail));
        }
        read_vec(self.file, self.path, range.start, len).map(Some)
    }
}

/// The number of entries, and where the directory lies. Both end records are checked against the
/// file's length, so what comes back is inside the file.
fn find_directory(path: &Path, file: &File, len: u64) -> Result<(u64, Range<u64>)> {
    let bad = |detail: &str| Err(Error::format(path, detail));
    let mut tail = [0; (END_LEN + LOCATOR_LEN + END64_LEN) as usize];
    let tail_len = len.min(tail.len() as u64);
    let tail = &mut tail[..tail_len as usize];
    read_at(file, path, len - tail_len, tail)?;
    let from_end = |n: u64| {
        tail_len
            .checked_sub(n)
            .map(|at| Bytes::new(&tail[at as usize..]))
    };

    let Some((mut count, mut start, mut size)) = from_end(END_LEN).and_then(parse_end) else {
        return bad("no zip end record in the last 22 bytes: the file is truncated, or not a zip");
    };
    let mut end = len - END_LEN;
    if let Some(mut locator) = from_end(END_LEN + LOCATOR_LEN)
        && locator.u32() == Some(LOCATOR)
    {
        let record = from_end(END_LEN + LOCATOR_LEN + END64_LEN).and_then(parse_end64);
        let Some(record) = record else {
            return bad("the zip64 end record is not where torch.save puts it");
        };
        (count, start, size) = record;
        end -= LOCATOR_LEN + END64_LEN;
    }
    if start.checked_add(size) != Some(end) {
        return Err(Error::format(
            path,
            format!("the zip directory has {size} bytes from {start} on, expected to end at {end}"),
        ));
    }
    Ok((count, start..end))
}

/// Entries, offset and size of the directory.
fn parse_end(mut b: Bytes) -> Option<(u64, u64, u64)> {
    let (signature, disks) = (b.u32()?, b.u32()?);
    let (here, count) = (b.u16()?, b.u16()?);
    let (size, start) = (b.u32()?, b.u32()?);
    let comment = b.u16()?;
    (signature == END && disks == 0 && here == count && comment == 0)
        .then(|| (count.into(), start.into(), size.into()))
}

/// As [`parse_end`].
fn parse_end64(mut b: Bytes) -> Option<(u64, u64, u64)> {
    let (signature, record_len) = (b.u32()?, b.u64()?);
    b.take(4)?; // versions
    let disks = b.u64()?;
    let (here, count) = (b.u64()?, b.u64()?);
    let (size, start) = (b.u64()?, b.u64()?);
    (signature == END64 && record_len == END64_LEN - 12 && disks == 0 && here == count)
        .then_some((count, start, size))
}

/// One entry of the directory. `None`: cut off; `Err`: not what `torch.save` writes.
fn parse_entry<'b>(b: &mut Bytes<'b>) -> Option<std::result::Result<(&'b str, Entry), String>> {
    if b.u32()? != ENTRY {
        return None;
    }
    b.take(4)?; // versions
    let (flags, method) = (b.u16()?, b.u16()?);
    b.take(8)?; // time, date, CRC-32
    let mut compressed = u64::from(b.u32()?);
    let mut size = u64::from(b.u32()?);
    let (name_len, extra_len, comment_len) = (b.u16()?, b.u16()?, b.u16()?);
    b.take(8)?; // disk, attributes
    let mut header = u64::from(b.u32()?);
    let name = b.text(name_len.into())?;
    let mut extra = Bytes::new(b.take(extra_len.into())?);
    b.take(comment_len.into())?;
    while extra.len() != 0 {
        let (id, len) = (extra.u16()?, extra.u16()?);
        let mut field = Bytes::new(extra.take(len.into())?);
        if id == 1 {
            // Zip64: those of the three that are all ones above, in this order.
            for value in [&mut size, &mut compressed, &mut header] {
                if *value == u64::from(u32::MAX) {
                    *value = field.u64()?;
                }
            }
        }
    }
    if flags & 1 != 0 {
        let name = sentence::name(name);
        return Some(Err(format!("zip entry `{name}` is encrypted")));
    }
    if method != 0 || compressed != size {
        return Some(Err(format!(
            "zip entry `{name}` is compressed (method {method}, {compressed} of {size} bytes), \
             torch.save only stores"
        )));
    }
    Some(Ok((name, Entry { header, size })))
}
