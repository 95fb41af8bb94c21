//! Parts of files that are made here and stand between two lines with certain words.

use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Compares what is made with what stands in the files, or, if `updating`, writes it.
///
/// # Panics
/// If a file has something else, or no such lines.
pub fn check(places: &[(&str, String)], marks: [&str; 2], updating: bool) {
    let mut stale = String::new();
    for (path, made) in places {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let (whole, there) = between(&fs::read_to_string(&file).unwrap(), path, marks, made);
        if there == *made {
            continue;
        }
        if updating {
            fs::write(file, whole).unwrap();
        } else {
            writeln!(stale, "{path}: other {:?}", marks[0]).unwrap();
        }
    }
    assert!(stale.is_empty(), "{stale}`make header` rewrites them");
}

/// The text of a file with `made` between its two lines, and what was there.
fn between(text: &str, path: &str, [first, last]: [&str; 2], made: &str) -> (String, String) {
    let begins = text.find(first).map(|at| {
        let line = text[at..].find('\n').expect("more lines");
        at + line + 1
    });
    let ends = text
        .find(last)
        .map(|at| text[..at].rfind('\n').unwrap() + 1);
    let (Some(begins), Some(ends)) = (begins, ends) else {
        panic!("{path} has no lines {first:?} and {last:?}");
    };
    let whole = format!("{}{made}{}", &text[..begins], &text[ends..]);
    (whole, text[begins..ends].to_owned())
}

/// Lines of at most 100 columns, each behind `prefix`.
pub fn wrapped(text: &str, prefix: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().unwrap();
        if last.is_empty() {
            *last = word.to_owned();
        } else if prefix.len() + last.len() + 1 + word.len() <= 100 {
            *last += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.iter().map(|l| format!("{prefix}{l}\n")).collect()
}
