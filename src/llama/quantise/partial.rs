//! A directory that is written beside its final place, and how much of it is done.

use super::layout::Layout;
use crate::checkpoint::unfinished;
use crate::file::{open_regular, read_small};
use crate::{Error, Result, sentence};
use std::fs::{DirEntry, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file that says which job this is, and how many units are done. The result does not have it.
const STATE: &str = unfinished::FILE;
/// The file's name until it is complete.
const NEXT: &str = "unfinished.next";

/// `NAME.partial`, open for one job.
pub(super) struct Partial {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    mark: String,
    done: usize,
}

/// The 64-bit FNV-1a hash of some bytes.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Partial {
    /// Begins a directory for `to`, or continues one of the same job.
    pub fn open(to: &Path, file_name: &str, layout: &Layout<'_>, mark: &str) -> Result<Partial> {
        // The suffix does not go behind the whole path, which may end in a slash.
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let dir = to.with_file_name(name);
        let path = dir.join(file_name);
        match std::fs::create_dir(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(Error::io(&dir, &e)),
        }
        let done = state(&dir, file_name, mark, layout.units.len())?;
        if let Ok(there) = path.symlink_metadata() {
            if there.is_symlink() {
                let detail = "is a link: remove the directory to begin anew".into();
                return Err(Error::Io { path, detail });
            }
            // Nothing is written to a device, and no device is waited for.
            open_regular(&path)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(done == 0);
        let file = options.open(&path);
        let failed = |e: std::io::Error| Error::io(&path, &e);
        let file = file.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let detail = "is being written by another process".into();
                return Err(Error::Io { path, detail });
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        let mut partial = Partial {
            dir,
            path,
            file,
            mark: mark.into(),
            done,
        };
        match done {
            0 => partial.begin(layout)?,
            _ => partial.go_on(layout)?,
        }
        Ok(partial)
    }

    fn begin(&mut self, layout: &Layout<'_>) -> Result<()> {
        // The state is written before the file has a header: with a header, it could be taken for a
        // complete file.
        self.say(0, false)?;
        sync_names(&self.dir)?;
        let write = || {
            self.file.set_len(0)?;
            self.file.set_len(layout.len)?;
            self.file.write_all_at(&layout.header, 0)
        };
        write().map_err(|e| Error::io(&self.path, &e))
    }

    fn go_on(&self, layout: &Layout<'_>) -> Result<()> {
        let metadata = self.file.metadata();
        let len = metadata.map_err(|e| Error::io(&self.path, &e))?.len();
        match len == layout.len {
            true => Ok(()),
            false => {
                let detail = format!("has {len} bytes, expected {}", layout.len);
                Err(Error::format(&self.path, detail))
            }
        }
    }

    /// How many units are done.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Writes bytes of the file with the weights.
    pub fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|e| Error::io(&self.path, &e))
    }

    /// Reads bytes that were written.
    pub fn get(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        crate::file::read_at(&self.file, &self.path, at, bytes)
    }

    /// Writes a file beside the weights. When this returns, the file is on the disk.
    pub fn write_beside(&self, name: &str, mut content: impl Read) -> Result<()> {
        // An earlier run may have left a link here, so it is removed. The new file has the
        // permissions of new files, whatever those of its source are.
        self.leave_out(name)?;
        let path = self.dir.join(name);
        let folder = path.parent().filter(|folder| *folder != self.dir);
        let mut write = || {
            if let Some(folder) = folder
                && folder.symlink_metadata().is_err()
            {
                std::fs::create_dir(folder)?;
            }
            let mut file = File::create_new(&path)?;
            std::io::copy(&mut content, &mut file)?;
            file.sync_all()
        };
        write().map_err(|e| Error::io(&path, &e))?;
        folder.map_or(Ok(()), sync_names)
    }

    /// Removes a file beside the weights, if an earlier run has left one.
    pub fn leave_out(&self, name: &str) -> Result<()> {
        let path = self.dir.join(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io(&path, &e)),
            _ => Ok(()),
        }
    }

    /// When this returns, `done` units are on the disk.
    pub fn finish(&mut self, done: usize) -> Result<()> {
        match done > self.done {
            true => self.say(done, false),
            false => Ok(()),
        }
    }

    fn say(&mut self, done: usize, whole: bool) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|e| Error::io(&self.path, &e))?;
        let (next, state) = (self.dir.join(NEXT), self.dir.join(STATE));
        let mark = &self.mark;
        let json = serde_json::json!({"job": mark, "units": done, unfinished::WHOLE: whole});
        let write = || {
            // What is there may be a link.
            match std::fs::remove_file(&next) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let mut file = File::create_new(&next)?;
            file.write_all(json.to_string().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&next, &state)
        };
        write().map_err(|e| Error::io(&state, &e))?;
        self.done = done;
        Ok(())
    }

    /// Gives the directory its final name, once all its content is on the disk.
    pub fn publish(mut self, to: &Path) -> Result<()> {
        self.say(self.done, true)?;
        sync_names(&self.dir)?;
        std::fs::rename(&self.dir, to).map_err(|e| Error::io(to, &e))?;
        // The state is removed only now: if the directory cannot be renamed, the same command tries
        // that again.
        let state = to.join(STATE);
        std::fs::remove_file(&state).map_err(|e| Error::io(&state, &e))?;
        sync_names(to)?;
        match to.parent() {
            Some(parent) if parent.as_os_str().is_empty() => sync_names(Path::new(".")),
            Some(parent) => sync_names(parent),
            None => Ok(()),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Closing the file is not enough if the process forks at the same time: the child has the
        // file open as well until it runs another program.
        let _ = self.file.unlock();
    }
}

/// When this returns, the names in a directory are on the disk.
fn sync_names(dir: &Path) -> Result<()> {
    // A user who may write into a directory may still not be allowed to read it.
    let Ok(opened) = File::open(dir) else {
        return Ok(());
    };
    match opened.sync_all() {
        // Some file systems can sync only files.
        Err(e) if e.kind() != ErrorKind::InvalidInput => Err(Error::io(dir, &e)),
        _ => Ok(()),
    }
}

/// How many units of this job are done.
fn state(dir: &Path, file_name: &str, mark: &str, units: usize) -> Result<usize> {
    let path = dir.join(STATE);
    if path.symlink_metadata().is_err() {
        // A job that was cut off at its very beginning has at most these files, and has written
        // nothing to the first: it may be somebody else's otherwise, or the source itself.
        let is_ours = |entry: &DirEntry| {
            let name = entry.file_name();
            let is_empty = || {
                let there = entry.metadata();
                there.is_ok_and(|there| there.is_file() && there.len() == 0)
            };
            name == NEXT || name == file_name && is_empty()
        };
        for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, &e))? {
            let entry = entry.map_err(|e| Error::io(dir, &e))?;
            if !is_ours(&entry) {
                return Err(Error::Io {
                    path: dir.into(),
                    detail: format!("has files but no {STATE}: remove it to begin anew"),
                });
            }
        }
        return Ok(0);
    }
    let json = read_small(&path, "such a file", 1 << 16)?;
    let state: Option<serde_json::Value> = serde_json::from_slice(&json).ok();
    let job = state.as_ref().and_then(|s| s["job"].as_str());
    let done = state.as_ref().and_then(|s| s["units"].as_u64());
    let (Some(job), Some(done)) = (job, done) else {
        let detail = "is not what this program writes: remove the directory to begin anew";
        return Err(Error::format(&path, detail));
    };
    if job != mark {
        let expected = format!("one of this job ({mark}), or removed");
        return Err(Error::invalid(sentence::path(dir), expected, job));
    }
    if done > units as u64 {
        let detail = format!("says that {done} units are done, there are {units}");
        return Err(Error::format(&path, detail));
    }
    Ok(done as usize)
}
