//! Files of tensors: what they hold, and every lie that is refused.

use crate::checkpoints::write::{Tensor, entry, pth, raw_safetensors, safetensors};
use crate::checkpoints::{TempDir, collect::to_f32, sentence};
use llamabi::checkpoint::{hugging_face, meta};
use llamabi::format::{Encoding, TensorFile, safetensors as st};
use llamabi::{Cancel, Dtype, Error, Result};
use std::path::Path;

pub fn corpus(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name)
}

pub fn values(file: &TensorFile, name: &str) -> Vec<f32> {
    let info = &file.tensors[name];
    let mut bytes = vec![0; info.len as usize];
    file.read(info, 0, &mut bytes).unwrap();
    to_f32(info.encoding.float().unwrap(), &bytes)
}

pub type Open = fn(&Path, Option<&Cancel>) -> Result<TensorFile>;

/// The sentence for a file that is refused as [`Error::Format`] or [`Error::Tensor`].
#[track_caller]
pub fn refused(open: Open, bytes: &[u8]) -> String {
    let dir = TempDir::new();
    let path = dir.file("file", bytes);
    let result = open(&path, None);
    assert!(
        matches!(result, Err(Error::Format { .. } | Error::Tensor { .. })),
        "{result:?}"
    );
    let sentence = sentence(result, dir.path());
    sentence.strip_prefix("file: ").unwrap().into()
}

// ---- safetensors ----

fn refused_header(header: &str, data: usize) -> String {
    refused(st::open, &raw_safetensors(header, &vec![0; data]))
}

fn header(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

#[test]
fn safetensors_hold_what_was_written() {
    let file = st::open(&corpus("safetensors/metadata.safetensors"), None).unwrap();
    assert_eq!(file.tensors.len(), 3);
    assert_eq!(values(&file, "x"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&file, "y"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(values(&file, "z"), [1.0, 2.0]);
    let x = &file.tensors["x"];
    assert_eq!(
        (x.encoding, &x.shape[..], x.len),
        (Encoding::F32, &[2, 3][..], 24)
    );
    let mut middle = [0; 8];
    file.read(x, 8, &mut middle).unwrap();
    assert_eq!(to_f32(Dtype::F32, &middle), [2.0, 3.0]);

    // A header need not be in the order of the data, and a tensor may be empty or a scalar.
    let entries = [
        entry("b", "F16", &[2], 4, 8),
        entry("empty", "F32", &[0, 7], 4, 4),
        entry("a", "F32", &[], 0, 4),
    ];
    let dir = TempDir::new();
    let path = dir.file(
        "f",
        raw_safetensors(&header(&entries), &[0, 0, 128, 63, 0, 60, 0, 64]),
    );
    let file = st::open(&path, None).unwrap();
    assert_eq!(
        (values(&file, "a"), values(&file, "b")),
        (vec![1.0], vec![1.0, 2.0])
    );
    assert_eq!(file.tensors["empty"].len, 0);
}

#[test]
fn safetensors_headers_that_lie_about_their_length() {
    for (claim, rest, most) in [
        (10_000_000_000, 92, 92),
        (u64::MAX, 92, 92),
        (93, 92, 92),
        (100_000_001, 92, 92),
        (1, 0, 0),
    ] {
        let bytes = [&u64::to_le_bytes(claim)[..], &vec![b' '; rest]].concat();
        assert_eq!(
            refused(st::open, &bytes),
            format!(
                "the safetensors header claims {claim} bytes, in a file of {} it has at most {most}",
                rest + 8
            )
        );
    }
    assert_eq!(
        refused(st::open, b"1234567"),
        "has 7 bytes, a safetensors file has at least 8"
    );
    assert_eq!(
        refused(st::open, b""),
        "has 0 bytes, a safetensors file has at least 8"
    );
}

#[test]
fn safetensors_of_another_size_than_their_tensors() {
    let whole = safetensors(&[Tensor::f32("a", &[4], 0)], 0);
    assert_eq!(
        refused(st::open, &whole[..whole.len() - 1]),
        "the tensors have 16 bytes, the file holds 15 for them"
    );
    assert_eq!(
        refused(st::open, &[&whole[..], &[0]].concat()),
        "the tensors have 16 bytes, the file holds 17 for them"
    );
}

#[test]
fn safetensors_layouts_that_contradict_themselves() {
    let f32 = |name, from, to: usize| entry(name, "F32", &[(to - from) / 4], from, to);
    let contradictory = |entries: &[String]| refused_header(&header(entries), 16);
    for entries in [
        [f32("a", 0, 8), f32("b", 4, 16)], // overlapping
        [f32("a", 0, 8), f32("b", 0, 8)],  // the same bytes twice
        [f32("a", 0, 4), f32("b", 8, 16)], // a hole
        [f32("a", 4, 8), f32("b", 8, 16)], // not from the start
    ] {
        let sentence = contradictory(&entries);
        let part = "expected its data from byte ";
        assert!(sentence.contains(part), "{sentence}");
    }
    assert_eq!(
        contradictory(&[entry("a", "F32", &[5], 0, 16)]),
        "tensor `a`: expected as many bytes as shape [5] of f32 takes, found data_offsets [0, 16]"
    );
    assert_eq!(
        contradictory(&[entry("a", "F32", &[4], 16, 0)]),
        "tensor `a`: expected as many bytes as shape [4] of f32 takes, found data_offsets [16, 0]"
    );
    for shape in [
        vec![usize::MAX, 2],
        vec![1 << 32, 1 << 32],
        vec![1 << 62],
        vec![0, usize::MAX, 4],
    ] {
        let sentence = contradictory(&[entry("a", "F32", &shape, 0, 16)]);
        assert!(
            sentence.starts_with("tensor `a`: expected as many bytes"),
            "{sentence}"
        );
    }
    let huge = u64::MAX;
    let text = format!(r#"{{"a":{{"dtype":"F32","shape":[0],"data_offsets":[{huge},{huge}]}}}}"#);
    assert!(refused_header(&text, 0).starts_with("tensor `a`: expected as many bytes"));
}

#[test]
fn safetensors_headers_of_another_kind() {
    assert_eq!(
        refused_header(&header(&[entry("a", "I16", &[8], 0, 16)]), 16),
        "tensor `a`: expected dtype F32, F16, BF16, F8_E4M3, I8, U8, I32 or I64, found I16"
    );
    let invalid = |header: &str, part: &str| {
        let sentence = refused_header(header, 16);
        assert!(
            sentence.starts_with("the safetensors header is not valid: "),
            "{sentence}"
        );
        assert!(sentence.contains(part), "{sentence}");
    };
    let a = entry("a", "F32", &[4], 0, 16);
    invalid(&header(&[a.clone(), a.clone()]), "`a` comes twice");
    assert_eq!(
        refused_header(&header(&[entry("a", "Q4_K", &[4], 0, 16)]), 16),
        "tensor `a`: expected dtype F32, F16, BF16, F8_E4M3, I8, U8, I32 or I64, found Q4_K"
    );
    invalid(&a, "expected an object");
    invalid("{}x", "trailing characters");
    invalid("", "EOF");
    invalid("[]", "expected an object");
    invalid(&"[".repeat(100_000), "expected an object");
    invalid(
        &format!("{{\"a\":{}", "[".repeat(100_000)),
        "`a`: invalid type: sequence, expected a string",
    );
    invalid(
        &format!("{{\"__metadata__\":{}", "[".repeat(100_000)),
        "EOF while parsing a list",
    );
    invalid(
        r#"{"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}}"#,
        "`a`: invalid value",
    );
    invalid(
        r#"{"a":{"dtype":"F32","shape":[4]}}"#,
        "`a`: missing field `data_offsets`",
    );
    invalid(
        r#"{"a":{"dtype":"F32","shape":[1e99],"data_offsets":[0,16]}}"#,
        "`a`: invalid type",
    );
    let sentence = refused(st::open, &[&4u64.to_le_bytes()[..], b"{\"\xff\"}"].concat());
    assert!(
        sentence.starts_with("the safetensors header is not valid"),
        "{sentence}"
    );
}

// ---- an index and its shards ----

#[test]
fn what_an_index_may_not_say() {
    let dir = TempDir::new();
    dir.file(
        "a.safetensors",
        safetensors(&[Tensor::f32("x", &[2], 0)], 0),
    );
    dir.file(
        "b.safetensors",
        safetensors(&[Tensor::f32("y", &[2], 0)], 0),
    );
    dir.file(
        "twin.safetensors",
        safetensors(&[Tensor::f32("x", &[2], 0)], 0),
    );
    let open = |index: &str| {
        dir.file("model.safetensors.index.json", index);
        sentence(hugging_face::open(dir.path(), None), dir.path())
            .replace("model.safetensors.index.json", "INDEX")
    };
    let map = |map: &str| open(&format!(r#"{{"weight_map":{map}}}"#));
    for name in [
        "../a.safetensors",
        "/etc/passwd",
        "sub/a.safetensors",
        "..",
        "",
        "a.bin",
        "a\\\\b.safetensors",
    ] {
        let shown = name.replace("\\\\", "\\");
        assert_eq!(
            map(&format!(r#"{{"x":"{name}"}}"#)),
            format!(
                "INDEX: the weight_map names `{shown}`, expected a .safetensors file beside it"
            )
        );
    }
    assert_eq!(
        map(r#"{"x":"a.safetensors","y":"a.safetensors"}"#),
        "a.safetensors: tensor `y`: expected it here, as INDEX says, found no such tensor"
    );
    assert_eq!(
        map(r#"{"x":"a.safetensors","y":"twin.safetensors"}"#),
        "twin.safetensors: tensor `x`: expected it in `a.safetensors` only, found it in \
         `twin.safetensors`"
    );
    assert!(map(r#"{"x":"c.safetensors"}"#).starts_with("c.safetensors: No such file"));
    assert_eq!(map("{}"), "INDEX: the weight_map is empty");
    assert!(map(r#"{"x":"a.safetensors","x":"b.safetensors"}"#).contains("`x` comes twice"));
    assert!(map("[]").starts_with("INDEX: not a safetensors index: "));
    assert!(open("{}").contains("missing field `weight_map`"));
    assert!(open(&"[".repeat(100_000)).starts_with("INDEX: not a safetensors index: "));

    // The good one, and the single file that goes before it.
    dir.file(
        "model.safetensors.index.json",
        r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#,
    );
    assert_eq!(hugging_face::open(dir.path(), None).unwrap().files.len(), 2);
    dir.file(
        "model.safetensors",
        safetensors(&[Tensor::f32("z", &[2], 0)], 0),
    );
    let checkpoint = hugging_face::open(dir.path(), None).unwrap();
    assert!(checkpoint.files[0].tensors.contains_key("z"));
}

// ---- which files there are ----

#[test]
fn metas_shards_are_numbered_without_a_gap() {
    let dir = TempDir::new();
    let open = || meta::open(dir.path(), None);
    assert_eq!(
        sentence(open(), dir.path()),
        "consolidated.00.pth: no such file"
    );
    let file = pth(&[Tensor::f32("a", &[2], 0)]);
    dir.file("consolidated.01.pth", &file);
    assert_eq!(
        sentence(open(), dir.path()),
        "consolidated.00.pth: no such file, but there is a shard 01"
    );
    dir.file("consolidated.00.pth", &file);
    // Not shards: other names, other digits.
    for name in [
        "consolidated.pth",
        "consolidated.3.pth",
        "consolidated.+4.pth",
        "checklist.chk",
    ] {
        dir.file(name, "");
    }
    assert_eq!(open().unwrap().files.len(), 2);
    dir.file("consolidated.03.pth", &file);
    assert_eq!(
        sentence(open(), dir.path()),
        "consolidated.02.pth: no such file, but there is a shard 03"
    );
    let nowhere = dir.path().join("nowhere");
    assert!(matches!(meta::open(&nowhere, None), Err(Error::Io { .. })));
    assert_eq!(
        sentence(hugging_face::open(dir.path(), None), dir.path()),
        "model.safetensors: no such file, and no model.safetensors.index.json or pytorch_model.bin beside it"
    );
}

/// Opening a FIFO that nobody writes to would wait for ever.
#[test]
fn only_regular_files_are_opened() {
    for name in ["model.safetensors", "consolidated.00.pth"] {
        let dir = TempDir::new();
        let path = dir.path().join(name);
        let open = || match name {
            "model.safetensors" => hugging_face::open(dir.path(), None),
            _ => meta::open(dir.path(), None),
        };
        let status = std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
        let expected = format!("{name}: is a FIFO, expected a regular file");
        assert_eq!(sentence(open(), dir.path()), expected);
        std::fs::remove_file(&path).unwrap();

        std::fs::create_dir(&path).unwrap();
        let expected = format!("{name}: is a directory, expected a regular file");
        assert_eq!(sentence(open(), dir.path()), expected);
        std::fs::remove_dir(&path).unwrap();

        for (target, part) in [
            (name, "Too many levels of symbolic links"),
            ("nowhere", "No such file or directory"),
        ] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            let result = open();
            assert!(matches!(result, Err(Error::Io { .. })));
            let sentence = sentence(result, dir.path());
            assert!(
                sentence.starts_with(name) && sentence.contains(part),
                "{sentence}"
            );
            std::fs::remove_file(&path).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let expected = format!("{name}: is a device or socket, expected a regular file");
        assert_eq!(sentence(open(), dir.path()), expected);
    }
}
