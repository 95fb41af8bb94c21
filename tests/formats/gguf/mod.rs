//! GGUF files: what they hold, and every lie that is refused.

mod lies;

use crate::checkpoints::gguf::{self, File, Tensor, list, string, text, u16, u32, value};
use crate::checkpoints::{TempDir, sentence};
use llamabi::format::Encoding;
use llamabi::format::gguf::{Gguf, Set};
use llamabi::quant::ggml::Type;
use llamabi::{Cancel, Error};
use std::path::Path;

fn open(bytes: &[u8]) -> llamabi::Result<Gguf> {
    let dir = TempDir::new();
    // The open file outlives its name.
    Gguf::open(&dir.file("m.gguf", bytes), None)
}

#[track_caller]
fn refused(bytes: &[u8]) -> String {
    let dir = TempDir::new();
    let result = Gguf::open(&dir.file("m.gguf", bytes), None);
    assert!(
        matches!(
            result,
            Err(Error::Format { .. }
                | Error::Tensor { .. }
                | Error::Config { .. }
                | Error::Unsupported(_))
        ),
        "{result:?}"
    );
    let sentence = sentence(result, dir.path());
    sentence.strip_prefix("m.gguf: ").unwrap().into()
}

fn small() -> File {
    let block: Vec<u8> = (0..34).collect();
    File::default()
        .key("general.architecture", text("llama"))
        .key("n", u32(7))
        .key("x", gguf::f32(0.5))
        .key("words", gguf::texts(&["a", "", "ccc"]))
        .key(
            "scores",
            list(6, 2, &[1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat()),
        )
        .key(
            "types",
            list(5, 2, &[1i32.to_le_bytes(), (-6i32).to_le_bytes()].concat()),
        )
        .key(
            "heads",
            list(4, 2, &[8u32.to_le_bytes(), 8u32.to_le_bytes()].concat()),
        )
        .key("yes", gguf::bool(1))
        .key("minus", value(5, &(-1i32).to_le_bytes()))
        .tensor(Tensor::new(
            "w",
            &[32, 2],
            8,
            &[&block[..], &block].concat(),
        ))
        .tensor(Tensor::new("b", &[3], 0, &[0; 12]))
}

#[test]
fn keys_and_tensors_are_what_was_written() {
    for version in [2, 3] {
        let file = open(&File { version, ..small() }.bytes()).unwrap();
        assert_eq!(
            file.text("general.architecture").unwrap().as_deref(),
            Some("llama")
        );
        assert_eq!(file.u64("n").unwrap(), Some(7));
        assert_eq!(file.f64("x").unwrap(), Some(0.5));
        assert_eq!(file.texts("words").unwrap().unwrap(), ["a", "", "ccc"]);
        assert_eq!(file.f32s("scores").unwrap().unwrap(), [1.0, -2.0]);
        assert_eq!(file.i32s("types").unwrap().unwrap(), [1, -6]);
        assert_eq!(file.u64s("heads").unwrap().unwrap(), [8, 8]);
        assert_eq!(file.u64s("n").unwrap().unwrap(), [7]);
        assert_eq!(file.bool("yes").unwrap(), Some(true));
        assert_eq!(file.u64("none").unwrap(), None);
        assert_eq!(file.texts("none").unwrap(), None);
        assert_eq!(file.keys().count(), 9);
        let w = &file.table.tensors["w"];
        assert_eq!(
            (w.encoding, &w.shape[..], w.len),
            (Encoding::Ggml(Type::Q8_0), &[2, 32][..], 68)
        );
        let mut bytes = [0; 2];
        file.table.read(w, 34, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1]);
        assert_eq!(file.table.tensors["b"].offset, w.offset + 96);
    }
}

/// What says that a file is one of several is left out, wherever it stands.
#[test]
fn metadata_for_a_copy_is_of_no_set() {
    let set = |n: usize, mut file: File| {
        let entries = [
            ("split.no", u16(0)),
            ("split.count", u16(3)),
            ("split.tensors.count", value(5, &2i32.to_le_bytes())),
            ("split.names", gguf::texts(&["a", "bb"])),
        ];
        for (i, (name, value)) in entries.into_iter().enumerate() {
            file.keys.insert(n * i, (name.into(), value));
        }
        open(&file.bytes()).unwrap()
    };
    let mut want = small();
    want.keys[1].1 = u32(9);
    let bytes = want.bytes();
    // All before the others, and between them.
    for n in [0, 1, 2, 4] {
        let (count, keys) = set(n, small()).metadata("n", 9).unwrap();
        assert_eq!(count, 9);
        assert_eq!(keys, bytes[24..][..keys.len()], "{n}");
        let next = &bytes[24 + keys.len()..];
        assert!(next.starts_with(&string(b"w")), "all keys");
    }
}

#[test]
fn a_triggered_flag_ends_the_reading() {
    let dir = TempDir::new();
    let path = dir.file("m.gguf", small().bytes());
    let cancel = Cancel::new();
    assert!(Gguf::open(&path, Some(&cancel)).is_ok());
    cancel.trigger();
    assert!(matches!(
        Gguf::open(&path, Some(&cancel)),
        Err(Error::Cancelled)
    ));
}

/// Writes a model of three files with a tensor each.
fn split(dir: &TempDir, change: impl Fn(usize, File) -> File) -> std::path::PathBuf {
    for i in 0..3 {
        let file = File::default()
            .key("split.count", u16(3))
            .key("split.no", u16(i as u16))
            .key("split.tensors.count", value(5, &3i32.to_le_bytes()))
            .tensor(Tensor::new(&format!("t{i}"), &[4], 0, &[i as u8; 16]));
        let name = format!("m-{:05}-of-00003.gguf", i + 1);
        dir.file(&name, change(i, file).bytes());
    }
    dir.path().join("m-00001-of-00003.gguf")
}

#[test]
fn split_files_are_one_model() {
    let dir = TempDir::new();
    let first = split(&dir, |_, file| file);
    let set = Set::open(&first, None).unwrap();
    assert_eq!(set.files.len(), 3);
    let (file, tensor) = set.tensor("t2").unwrap();
    let mut bytes = [0; 4];
    file.table.read(tensor, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4]);
    assert_eq!(set.tensors().count(), 3);
    assert_eq!(Set::find(dir.path()).unwrap(), Some(first));

    let second = dir.path().join("m-00002-of-00003.gguf");
    let found = sentence(Set::open(&second, None), dir.path());
    assert_eq!(
        found,
        "ckpt_dir is m-00002-of-00003.gguf, must be the first file of its set, m-00001-of-00003.gguf"
    );
    std::fs::remove_file(&second).unwrap();
    let found = sentence(
        Set::open(&dir.path().join("m-00001-of-00003.gguf"), None),
        dir.path(),
    );
    assert!(
        found.starts_with("m-00002-of-00003.gguf: No such file"),
        "{found}"
    );
}

#[test]
fn split_files_must_agree() {
    let count = |n: u16| {
        move |i: usize, mut file: File| {
            if i == 1 {
                file.keys[0].1 = u16(n);
            }
            file
        }
    };
    type Change = Box<dyn Fn(usize, File) -> File>;
    let cases: [(&str, Change); 5] = [
        (
            "m-00002-of-00003.gguf: `split.count` is 2, expected 3, as file 1",
            Box::new(count(2)),
        ),
        (
            "m-00003-of-00003.gguf: `split.no` is 1, expected 2, as file 2",
            Box::new(|_, mut file| {
                if file.tensors[0].name == "t2" {
                    file.keys[1].1 = u16(1);
                }
                file
            }),
        ),
        (
            "m-00003-of-00003.gguf: tensor `t0`: expected it in one file of the set, found it in two, here of shape [4]",
            Box::new(|i, mut file| {
                if i == 2 {
                    file.tensors[0].name = "t0".into();
                }
                file
            }),
        ),
        (
            "m-00001-of-00003.gguf: `split.tensors.count` is 4, expected 3, as the files have",
            Box::new(|_, mut file| {
                file.keys[2].1 = value(5, &4i32.to_le_bytes());
                file
            }),
        ),
        (
            "m-00001-of-00003.gguf: `split.count` is 4, expected 3, as its name says",
            Box::new(|_, mut file| {
                file.keys[0].1 = u16(4);
                file
            }),
        ),
    ];
    for (expected, change) in cases {
        let dir = TempDir::new();
        let first = split(&dir, change);
        assert_eq!(sentence(Set::open(&first, None), dir.path()), expected);
    }
    let dir = TempDir::new();
    let path = dir.file("m.gguf", File::default().key("split.count", u16(3)).bytes());
    let found = sentence(Set::open(&path, None), dir.path());
    let expected = "m.gguf: is one of 3 files, but its name does not end in -00001-of-00003.gguf";
    assert_eq!(found, expected);
}

#[test]
fn a_directory_has_one_model() {
    let dir = TempDir::new();
    assert_eq!(Set::find(dir.path()).unwrap(), None);
    let one = dir.file("one.gguf", small().bytes());
    dir.file("README.md", "");
    assert_eq!(Set::find(dir.path()).unwrap(), Some(one));
    dir.file("two.gguf", small().bytes());
    let found = sentence(Set::find(dir.path()), dir.path());
    assert!(
        found.ends_with(
            "with one.gguf and two.gguf, must be one of several .gguf files by its path"
        ),
        "{found}"
    );
    assert!(Set::find(Path::new("/no such directory")).is_err());
}
