//! Reading files that anybody may have written, and may be writing to.

use crate::{Error, Result, reserve, sentence};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Open a regular file and say how long it is.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    // Without O_NONBLOCK, opening a FIFO waits for somebody to write into it.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = file.map_err(|e| Error::io(path, &e))?;
    let meta = file.metadata().map_err(|e| Error::io(path, &e))?;
    let kind = meta.file_type();
    if kind.is_file() {
        return Ok((file, meta.len()));
    }
    let kind = match () {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ => "a device or socket",
    };
    Err(Error::Io {
        path: path.into(),
        detail: format!("is {kind}, expected a regular file"),
    })
}

/// Fill `buf` from `offset` of `file`.
pub(crate) fn read_at(file: &File, path: &Path, offset: u64, buf: &mut [u8]) -> Result<()> {
    let mut got = 0;
    while got < buf.len() {
        match file.read_at(&mut buf[got..], offset + got as u64) {
            Ok(0) => {
                let wanted = buf.len();
                let detail = format!(
                    "at offset {offset}: wanted {wanted} bytes, got {got}; the file ends too soon"
                );
                return Err(Error::Io {
                    path: path.into(),
                    detail,
                });
            }
            Ok(n) => got += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(path, &e)),
        }
    }
    Ok(())
}

/// `len` bytes from `offset`. The caller has checked that the file is that long.
pub(crate) fn read_vec(file: &File, path: &Path, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut buf = zeros(&sentence::path(path), len)?;
    read_at(file, path, offset, &mut buf)?;
    Ok(buf)
}

/// A whole small file. `what` names its kind in the message where it is longer than `limit`.
pub(crate) fn read_small(path: &Path, what: &str, limit: u64) -> Result<Vec<u8>> {
    let (file, len) = open_regular(path)?;
    if len > limit {
        let detail = format!("has {len} bytes, {what} has at most {limit}");
        return Err(Error::format(path, detail));
    }
    read_vec(&file, path, 0, len)
}

/// `len` zeros, or an error where the allocator refuses.
pub(crate) fn zeros(what: &str, len: u64) -> Result<Vec<u8>> {
    let mut buf = Vec::new();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    reserve::vec(what, &mut buf, len)?;
    buf.resize(len, 0);
    Ok(buf)
}
