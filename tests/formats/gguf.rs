//! GGUF files: what they hold, and every lie that is refused.

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

#[test]
fn values_of_another_type_or_range_are_named() {
    let file = open(&small().bytes()).unwrap();
    for (result, expected) in [
        (
            file.u64("x").map(drop),
            "`x` is 0.5 of type f32, expected an integer that is not negative",
        ),
        (
            file.u64("minus").map(drop),
            "`minus` is -1 of type i32, expected an integer that is not",
        ),
        (
            file.u64("heads").map(drop),
            "`heads` is a list of 2 of type u32, expected an integer",
        ),
        (
            file.u64("general.architecture").map(drop),
            "is a value of type text, expected an integer",
        ),
        (
            file.u64s("types").map(drop),
            "`types` is -6 of type i32 at place 1, expected integers",
        ),
        (
            file.f64("n").map(drop),
            "`n` is 7 of type u32, expected a floating-point number",
        ),
        (
            file.text("words").map(drop),
            "`words` is a list of 3 of type text, expected a text",
        ),
        (
            file.texts("n").map(drop),
            "`n` is a value of type u32, expected a list of texts",
        ),
        (
            file.bool("n").map(drop),
            "`n` is 7 of type u32, expected a boolean",
        ),
    ] {
        let Err(error @ Error::Config { .. }) = result else {
            panic!("{expected}")
        };
        assert!(error.to_string().contains(expected), "{error}\n{expected}");
    }
    let odd = File::default()
        .key("b", gguf::bool(2))
        .key("t", value(8, &string(b"\xff")))
        .key("l", list(8, 2, &[string(b"a"), string(b"\xff")].concat()));
    let odd = open(&odd.bytes()).unwrap();
    assert!(
        odd.bool("b")
            .unwrap_err()
            .to_string()
            .contains("`b` is 2 of type bool")
    );
    assert!(odd.text("t").unwrap_err().to_string().contains("not UTF-8"));
    assert!(
        odd.texts("l")
            .unwrap_err()
            .to_string()
            .contains("not UTF-8 at place 1")
    );
}

#[test]
fn other_versions_and_kinds_are_named() {
    for (file, expected) in [
        (
            File {
                version: 1,
                ..small()
            },
            "is GGUF of version 1, versions 2 and 3 are read",
        ),
        (
            File {
                version: 4,
                ..small()
            },
            "is GGUF of version 4, versions 2 and 3 are read",
        ),
        (
            File {
                version: 3 << 24,
                ..small()
            },
            "is a big-endian GGUF file, little-endian ones are read",
        ),
        (
            File {
                magic: *b"GGML",
                ..small()
            },
            "not a GGUF file: it begins with bytes [71, 71, 77, 76]",
        ),
    ] {
        let found = refused(&file.bytes());
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
    let with = |kind| File::default().tensor(Tensor::new("t", &[32], kind, &[0; 64]));
    for (kind, name) in [
        (4, "Q4_2"),
        (31, "Q4_0_4_4"),
        (39, "MXFP4"),
        (99, "ggml's type 99"),
    ] {
        assert_eq!(
            refused(&with(kind).bytes()),
            format!("tensor `t` is stored as {name}, which is not read")
        );
    }
}

#[test]
fn lies_about_keys_are_refused() {
    let key = |value: Vec<u8>| File::default().key("k", value).bytes();
    let long = "k".repeat(70_000);
    for (bytes, expected) in [
        (
            b"GG".to_vec(),
            "the magic number at byte 0 takes 4 bytes, 2 are left",
        ),
        (
            small().bytes()[..20].to_vec(),
            "the number of keys at byte 16 takes 8 bytes, 4 are left",
        ),
        (
            File {
                counts: [None, Some(u64::MAX)],
                ..small()
            }
            .bytes(),
            "claims 18446744073709551615 keys, a GGUF file of its length has at most ",
        ),
        (
            File {
                counts: [Some(1 << 40), None],
                ..small()
            }
            .bytes(),
            "claims 1099511627776 tensors, a GGUF file of its length has at most ",
        ),
        (
            key(value(13, &[0; 8])),
            "the value of key `k` has a type of number 13, which is unknown",
        ),
        (
            key(list(9, 1, &[0; 16])),
            "the value of key `k` is a list of lists, which is not read",
        ),
        (
            key(list(13, 1, &[0; 8])),
            "the value of key `k` has elements of a type of number 13, which",
        ),
        (
            key(list(4, u64::MAX, &[0; 8])),
            "the value of key `k` at byte 49 takes 18446744073709551615 ",
        ),
        (
            key(list(10, 1 << 61, &[0; 8])),
            "the value of key `k` at byte 49 takes 18446744073709551615 ",
        ),
        (
            key(list(8, 9, &string(b"a"))),
            "the value of key `k` at byte 58 takes 8 bytes, 6 are left",
        ),
        (
            key(value(8, &u64::MAX.to_le_bytes())),
            "the value of key `k` has a text of 1844674407370955161",
        ),
        (
            key(value(8, &99u64.to_le_bytes())),
            "the value of key `k` at byte 45 takes 99 bytes, 19 are",
        ),
        (
            File::default().key(&long, u32(1)).bytes(),
            "key 0 has 70000 bytes, at most 65536 are read",
        ),
        (
            File::default().key("a", u32(1)).key("a", u32(2)).bytes(),
            "has key `a` twice",
        ),
        (
            File {
                counts: [None, Some(1)],
                ..File::default()
            }
            .bytes(),
            "claims 1 keys, a GGUF file of its length has at most 0",
        ),
    ] {
        let found = refused(&bytes);
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
    let mut not_text = File::default().key("kk", u32(1)).bytes();
    not_text[32] = 0xff;
    assert_eq!(refused(&not_text), "key 0 is not UTF-8");
}

#[test]
fn lies_about_tensors_are_refused() {
    let one = |tensor: Tensor| File::default().tensor(tensor).bytes();
    let tensor = |dims: &[u64], kind| Tensor::new("t", dims, kind, &[0; 64]);
    let at = |offset, t: Tensor| Tensor {
        offset: Some(offset),
        ..t
    };
    let two = |offset| {
        let file = File::default().tensor(Tensor::new("a", &[16], 0, &[0; 64]));
        file.tensor(at(offset, Tensor::new("b", &[16], 0, &[0; 64])))
            .bytes()
    };
    for (bytes, expected) in [
        (
            one(tensor(&[], 0)),
            "tensor `t`: expected 1 to 4 dimensions, found 0",
        ),
        (
            one(tensor(&[1; 5], 0)),
            "tensor `t`: expected 1 to 4 dimensions, found 5",
        ),
        (
            one(tensor(&[4, 0], 0)),
            "tensor `t`: expected dimensions of at least 1 whose product is below 2^64, found a size of 0 after [4]",
        ),
        (
            one(tensor(&[1 << 32, 1 << 32], 0)),
            "tensor `t`: expected dimensions of at least 1 whose product",
        ),
        (
            one(tensor(&[1 << 63], 0)),
            "tensor `t`: expected rows of a multiple of 1 for F32, found 92233720",
        ),
        (
            one(tensor(&[48], 8)),
            "tensor `t`: expected rows of a multiple of 32 for Q8_0, found 48",
        ),
        (
            one(tensor(&[4000], 14)),
            "tensor `t`: expected rows of a multiple of 256 for Q6_K, found 4000",
        ),
        (
            one(tensor(&[17], 0)),
            "tensor `t`: expected its data within the 64 bytes of the file's, found 68 bytes from 0 on",
        ),
        (
            one(at(32, tensor(&[16], 0))),
            "tensor `t`: expected its data within the 64 bytes of the file's, found 64 bytes from 32 on",
        ),
        (
            one(at(u64::MAX - 31, tensor(&[16], 0))),
            "tensor `t`: expected its data within the 64 bytes",
        ),
        (
            one(at(4, tensor(&[1], 0))),
            "tensor `t`: expected an offset of a multiple of 32, found 4",
        ),
        (
            two(0),
            "tensor `b`: expected its data from 64 on, behind `a`, found data from 0 on",
        ),
        (
            two(32),
            "tensor `b`: expected its data from 64 on, behind `a`, found data from 32 on",
        ),
        (
            File::default()
                .tensor(tensor(&[1], 0))
                .tensor(tensor(&[1], 0))
                .bytes(),
            "tensor `t`: expected one tensor of this name, found two",
        ),
    ] {
        let found = refused(&bytes);
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
    assert!(open(&two(64)).is_ok());
    for alignment in [0u32, 1, 4, 12, 1 << 17, u32::MAX] {
        let file = small().key("general.alignment", u32(alignment));
        let found = refused(&file.bytes());
        let expected = "`general.alignment` is ";
        assert!(
            found.starts_with(expected) && found.ends_with("a power of two from 8 to 65536"),
            "{found}"
        );
    }
    let file = File {
        alignment: 4096,
        ..small()
    }
    .key("general.alignment", u32(4096));
    assert_eq!(open(&file.bytes()).unwrap().table.tensors["w"].offset, 4096);
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
