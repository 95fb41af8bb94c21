//! `THIRD-PARTY.md` names and quotes the licence of everything that ends up in `libllamabi.so`.
//!
//! It is generated from `cargo metadata` and the crates' own licence files, and compared here;
//! `LLAMABI_UPDATE=1 cargo test --test generated third_party::` writes it anew.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILE: &str = "THIRD-PARTY.md";

const INTRODUCTION: &str = "\
# Third-party software in libllamabi

`libllamabi.so` and `libllamabi.a` contain code from the packages below. llamabi itself is licensed under
MIT OR Apache-2.0. This file is generated (`tests/generated/third_party.rs`) and compared on every test run.

The C++ standard library (libstdc++ of GCC) is linked statically under the GCC Runtime Library
Exception 3.1, which permits it in works under any licence. The library that `make dist` packs has
LLVM's libc++ in its place (Apache License 2.0 with LLVM Exceptions).

In the repository, and in no library: `tests/data/llama2` and `tests/data/tokenizers/real.json` hold the
numbers that tokenizers of others give to our texts; `adapters`, `chat`, `decoding`, `families`, `gguf`,
`quant`, `quantised`, `reference` and `smollm2` in `tests/data` what programs of others compute, in all but the
last from models and texts of ours; `tests/data/decoding/schema-suite.txt` the names of cases of the JSON Schema test suite;
and `kernels/emu/cuda` the names and numbers of NVIDIA's interfaces (driver, cuBLASLt, NCCL) that the
stand-ins have to have. No tokenizer, template, weight or header of others is among them; tests fetch what
they need of these (`tests/*/requirements.txt`, `package-lock.json`, `go.sum`).

";

fn cargo(args: &[&str]) -> Vec<u8> {
    let out = Command::new(env!("CARGO"))
        .args(args)
        .output()
        .expect("cargo runs");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    out.stdout
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&cargo(args)).expect("cargo metadata writes JSON")
}

/// Packages of others that are reachable from llamabi through normal, non-macro dependencies.
fn linked_packages(metadata: &Value) -> BTreeSet<String> {
    let packages: BTreeMap<&str, &Value> = list(&metadata["packages"])
        .map(|p| (text(&p["id"]), p))
        .collect();
    let nodes: BTreeMap<&str, &Value> = list(&metadata["resolve"]["nodes"])
        .map(|n| (text(&n["id"]), n))
        .collect();
    let is_macro = |id: &str| {
        list(&packages[id]["targets"]).any(|t| list(&t["kind"]).any(|k| k == "proc-macro"))
    };
    let root = text(&metadata["resolve"]["root"]);
    let mut found = BTreeSet::new();
    let mut queue = vec![root];
    while let Some(id) = queue.pop() {
        for dependency in list(&nodes[id]["deps"]) {
            let id = text(&dependency["pkg"]);
            let normal = list(&dependency["dep_kinds"]).any(|k| k["kind"].is_null());
            if normal && !is_macro(id) && found.insert(id.to_owned()) {
                queue.push(id);
            }
        }
    }
    let of_ours = |p: &&Value| p["source"].is_null();
    for package in list(&metadata["packages"]).filter(of_ours) {
        found.remove(text(&package["id"]));
    }
    found
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Licence files of a package, and of the sources it vendors.
fn licence_files(dir: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"]
            .iter()
            .any(|start| name.starts_with(start));
        if path.is_file() && is_licence {
            found.push(path);
        } else if depth > 0 && path.is_dir() {
            licence_files(&path, depth - 1, found);
        }
    }
}

fn generate() -> String {
    let metadata = json(&[
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ]);
    let linked = linked_packages(&metadata);
    let mut out = String::from(INTRODUCTION);
    // Many crates ship the same text: quote each once, and say whose it is.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    out.push_str("| package | version | licence |\n|---|---|---|\n");
    for package in list(&metadata["packages"]).filter(|p| linked.contains(text(&p["id"]))) {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        writeln!(
            out,
            "| {name} | {version} | {} |",
            text(&package["license"])
        )
        .unwrap();
        let dir = Path::new(text(&package["manifest_path"])).parent().unwrap();
        let mut files = Vec::new();
        licence_files(dir, 3, &mut files);
        for file in files {
            let body = std::fs::read_to_string(&file).unwrap().replace('\r', "");
            let inside = file.strip_prefix(dir).unwrap().display();
            texts
                .entry(body.trim().to_owned())
                .or_default()
                .push(format!("{name}: {inside}"));
        }
    }
    let mut texts: Vec<_> = texts
        .into_iter()
        .map(|(body, owners)| (owners, body))
        .collect();
    texts.sort();
    for (owners, body) in texts {
        writeln!(out, "\n## {}\n\n```text\n{body}\n```", owners.join(", ")).unwrap();
    }
    out
}

#[test]
fn third_party_licences_are_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let fresh = generate();
    for expected in [
        "| sentencepiece-sys |",
        "third_party/darts_clone/LICENSE",
        "| rand |",
    ] {
        assert!(fresh.contains(expected), "the generator missed {expected}");
    }
    if std::env::var_os("LLAMABI_UPDATE").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == fresh,
        "{FILE} is out of date: LLAMABI_UPDATE=1 cargo test --test generated third_party::"
    );
}

/// The library that `cargo test` tests is the one that `cargo build` makes, down to the features of
/// what it depends on. Otherwise it would be compiled anew by each after the other, three times in
/// a `make test`.
#[test]
fn one_library_is_built_and_tested() {
    let packages = |edges: &str| -> BTreeSet<String> {
        let format = ["--prefix=none", "--format={p} {f}"];
        let tree = cargo(&[&["tree", "--locked", "--edges", edges], &format[..]].concat());
        let tree = String::from_utf8_lossy(&tree).into_owned();
        // A star marks what was listed before.
        let packages = tree.lines().map(|line| line.trim_end_matches(" (*)"));
        packages.map(|line| line.trim().to_owned()).collect()
    };
    let (built, tested) = (packages("no-dev"), packages("all"));
    assert!(built.iter().any(|line| line.starts_with("serde_json ")));
    let changed: Vec<_> = built.difference(&tested).collect();
    assert!(
        changed.is_empty(),
        "dev-dependencies change features of {changed:?}"
    );
}
