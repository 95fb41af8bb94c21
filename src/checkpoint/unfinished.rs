//! What says of a directory that it is not a whole checkpoint yet: `llamabi-quantize` writes it
//! first and removes it last. Until then the weights that are missing are zeros.

use crate::file::read_small;
use crate::{Error, Result};
use std::path::Path;

/// The file's name.
pub const FILE: &str = "unfinished.json";

/// Its key that is true once nothing is missing any more. The file may stay behind if the program
/// ends between that and its last step.
pub const WHOLE: &str = "whole";

/// # Errors
/// [`Error::Format`] if the directory has such a file, and its weights are not all there.
pub(super) fn refuse(dir: &Path) -> Result<()> {
    let path = dir.join(FILE);
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let json = read_small(&path, "such a file", 1 << 16)?;
    let state: Option<serde_json::Value> = serde_json::from_slice(&json).ok();
    if state.is_some_and(|state| state[WHOLE] == true) {
        return Ok(());
    }
    let detail = "says that weights are missing: llamabi-quantize was cut off, and the same command \
                  goes on";
    Err(Error::format(&path, detail))
}
