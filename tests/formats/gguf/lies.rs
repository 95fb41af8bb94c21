//! Files that lie, and what is said of them.

use super::*;

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
            "tensor `t`: expected its data within the 64 bytes of the file's, found 68 bytes from 0 on; is the file cut off?",
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
