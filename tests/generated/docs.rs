//! The files that the documentation sends contributors to are there.

use std::path::Path;

/// `a/{b,c}.rs, d.rs` as `a/b.rs`, `a/c.rs`.
fn expanded(text: &str) -> Vec<String> {
    let Some((before, rest)) = text.split_once('{') else {
        return vec![text.to_owned()];
    };
    let (choices, after) = rest.split_once('}').unwrap_or((rest, ""));
    // Braces do not nest.
    choices
        .split(',')
        .flat_map(|choice| expanded(&format!("{before}{}{after}", choice.trim())))
        .collect()
}

/// Texts in backquotes that can be paths below the root.
fn paths(markdown: &str) -> impl Iterator<Item = String> {
    let quoted = markdown.split('`').skip(1).step_by(2);
    let folders = [
        "src/",
        "compute/",
        "kernels/",
        "tests/",
        "bindings/",
        "examples/",
        "benches/",
        "docs/",
        "scripts/",
    ];
    quoted
        .filter(move |text| folders.iter().any(|folder| text.starts_with(folder)))
        .filter(|text| !text.contains(['<', '*', ' ', '\n']))
        .flat_map(expanded)
}

fn missing(root: &Path, markdown: &str) -> Vec<String> {
    paths(markdown)
        .filter(|path| !root.join(path).exists())
        .collect()
}

#[test]
fn files_that_contributors_are_sent_to_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in [
        "docs/ARCHITECTURE.md",
        "docs/glossary.md",
        "CONTRIBUTING.md",
    ] {
        let markdown = std::fs::read_to_string(root.join(page)).unwrap();
        let missing = missing(root, &markdown);
        assert!(missing.is_empty(), "{page} names {missing:?}");
    }
}

#[test]
fn a_file_that_is_gone_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let markdown = "`src/lib.rs` and `src/{lib,gone}.rs`, `src/<op>.rs`, `make build`, `gone.rs`";
    assert_eq!(missing(root, markdown), ["src/gone.rs"]);
}

/// Whoever is new reads all of it: what does not fit belongs into `docs/`.
#[test]
fn the_readme_has_at_most_900_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let words = readme.split_whitespace().count();
    assert!(words <= 900, "{words} words");
}
