//! What whoever runs the tests shall see.

use std::io::Write;

/// Says that something is not tested, and why. Not with `eprintln`, which the test runner keeps to
/// itself.
pub fn skipped(what: &str) {
    let words = format!("SKIPPED: {what}\n");
    std::io::stderr().write_all(words.as_bytes()).unwrap();
}
