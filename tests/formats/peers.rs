//! The Python libraries that random texts and templates are compared with.

use crate::aloud::skipped;
use std::path::{Path, PathBuf};

/// An interpreter that has them, as `scripts/test-peers` makes it; `what` is not tested where there
/// is none.
pub fn python(what: &str) -> Option<PathBuf> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("build/test-peers/bin/python");
    if made.exists() {
        return Some(made);
    }
    skipped(&format!(
        "{what}: scripts/test-peers has not fetched their libraries"
    ));
    None
}
