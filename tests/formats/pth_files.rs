//! Files of torch.save: their archive, their pickle, and every lie that is refused.

use crate::checkpoints::write::{Pickled, Tensor, ZipEntry, pickle, pth_entries, zip};
use crate::checkpoints::{TempDir, collect::to_f32, reference, sentence};
use crate::files::{corpus, refused, values};
use llamabi::Dtype;
use llamabi::format::{Encoding, pickle as unpickle, pth as pth_file};
use std::io::{Cursor, Write as _};

// ---- .pth: the archive ----

#[test]
fn pth_files_in_every_protocol() {
    for name in ["protocol2", "protocol3", "protocol4", "protocol5"] {
        let file = pth_file::open(&corpus(&format!("pth/{name}.pth")), None).unwrap();
        assert_eq!(values(&file, "a"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{name}");
        assert_eq!(values(&file, "b"), [1.0, 2.0, 3.0, 4.0], "{name}");
        assert_eq!(file.tensors["a"].shape, [2, 3]);
        assert_eq!(file.tensors["b"].encoding, Encoding::Bf16);
    }
    // A module's state_dict: parameters, and attributes on the dict.
    let file = pth_file::open(&corpus("pth/state_dict.pth"), None).unwrap();
    assert_eq!(values(&file, "a"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(file.tensors["b"].shape, [2, 2]);
    let file = pth_file::open(&corpus("pth/shared.pth"), None).unwrap();
    assert_eq!(
        values(&file, "tail"),
        [2.0, 3.0, 4.0, 5.0],
        "from the middle of another's storage"
    );
}

/// The zip crate as an oracle: what it writes we read, with 32-bit and with 64-bit fields.
#[test]
fn our_directory_reader_agrees_with_the_zip_crate() {
    let tensors = [Tensor::f32("a", &[3, 5], 1), Tensor::f32("b", &[7], 2)];
    let pickled: Vec<_> = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| Pickled::new(t, i))
        .collect();
    for large in [false, true] {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .with_alignment(64)
            .large_file(large);
        let storages: Vec<_> = tensors.iter().map(|t| t.bytes.clone()).collect();
        for e in pth_entries(pickle(&pickled), &storages) {
            writer.start_file(e.name, options).unwrap();
            writer.write_all(&e.data).unwrap();
        }
        let bytes = writer.finish().unwrap().into_inner();
        let dir = TempDir::new();
        let file = pth_file::open(&dir.file("f", bytes), None).unwrap();
        for t in &tensors {
            assert_eq!(values(&file, &t.name), to_f32(Dtype::F32, &t.bytes));
        }
    }
    // And what torch.save wrote, it reads as we do.
    let path = reference("gqa-f16-mp2/meta/consolidated.01.pth");
    let file = pth_file::open(&path, None).unwrap();
    let mut archive = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
    let mut found = 0;
    for i in 0..archive.len() {
        let entry = archive.by_index_raw(i).unwrap();
        let (start, size) = (entry.data_start().unwrap(), entry.size());
        let here = file
            .tensors
            .values()
            .filter(|t| (t.offset, t.len) == (start, size));
        found += here.count();
    }
    assert_eq!(found, file.tensors.len());
    assert_eq!(found, 39);
}

/// The entries of a small file, ready to be spoilt. 0: pickle, 1: byteorder, 2: storage, 3:
/// version.
fn entries() -> Vec<ZipEntry> {
    let t = Tensor::f32("a", &[2, 2], 0);
    pth_entries(pickle(&[Pickled::new(&t, 0)]), &[t.bytes])
}

fn refused_entries(change: impl Fn(&mut Vec<ZipEntry>)) -> String {
    let mut entries = entries();
    change(&mut entries);
    refused(pth_file::open, &zip(&entries))
}

#[test]
fn archives_that_torch_does_not_write() {
    assert_eq!(
        refused_entries(|e| e[2].method = 8),
        "zip entry `archive/data/0` is compressed (method 8, 16 of 16 bytes), torch.save only stores"
    );
    assert_eq!(
        refused_entries(|e| e[2].flags = 1),
        "zip entry `archive/data/0` is encrypted"
    );
    assert_eq!(
        refused_entries(|e| e.push(e[2].clone())),
        "the zip directory names `archive/data/0` twice"
    );
    assert_eq!(
        refused_entries(|e| drop(e.remove(0))),
        "the zip has no data.pkl, as torch.save writes one"
    );
    assert_eq!(
        refused_entries(|e| e.push(ZipEntry::new("other/data.pkl", ""))),
        "the zip has more than one data.pkl"
    );
    assert_eq!(
        refused_entries(|e| e[1].data = b"big".to_vec()),
        "byteorder is `big`, expected `little`"
    );
    assert_eq!(
        refused_entries(|e| e[1].data = vec![b'x'; 17]),
        "zip entry `archive/byteorder` has 17 bytes, expected at most 16"
    );
    assert!(
        refused_entries(|e| e[2].size = Some(1 << 30)).contains("beyond the end of the entries")
    );
    assert_eq!(
        refused_entries(|e| e[2].header = Some(u32::MAX - 1)),
        "zip entry `archive/data/0` starts at 4294967294, outside the entries"
    );
    assert_eq!(
        refused_entries(|e| e[2].header = Some(1)),
        "zip entry `archive/data/0` has no header at 1"
    );
    // All ones without the 64-bit field that they refer to.
    assert_eq!(
        refused_entries(|e| e[2].header = Some(u32::MAX)),
        "zip entry `archive/data/0` starts at 4294967295, outside the entries"
    );
}

#[test]
fn archives_that_are_cut_or_patched() {
    let whole = zip(&entries());
    for len in (4..whole.len()).rev() {
        let sentence = refused(pth_file::open, &whole[..len]);
        assert!(sentence.contains("truncated"), "{len}: {sentence}");
    }
    assert_eq!(
        refused(pth_file::open, b""),
        "not a .pth in the zip form: no zip header at the start"
    );
    assert_eq!(
        refused(pth_file::open, &[&whole[..], b"x"].concat()),
        "no zip end record in the last 22 bytes: the file is truncated, or not a zip"
    );
    assert_eq!(
        refused(
            pth_file::open,
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
        ),
        "a .pth in the legacy form (bare pickle); only the zip form is read, which torch.save writes \
         since PyTorch 1.6"
    );
    // The end record, field by field: count of entries, size and offset of the directory.
    let end = whole.len() - 22;
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[end + at..end + at + bytes.len()].copy_from_slice(bytes);
        refused(pth_file::open, &file)
    };
    assert!(patched(8, &[0xff; 4]).ends_with("too few for 65535 entries"));
    assert!(patched(8, &[3, 0, 3, 0]).ends_with("bytes follow the zip directory's entries"));
    assert!(patched(8, &[5, 0, 5, 0]).starts_with("entry 4 of the zip directory is malformed"));
    assert!(patched(12, &[0xff; 4]).contains("the zip directory has 4294967295 bytes"));
    assert!(patched(16, &[0xff; 4]).contains("from 4294967295 on, expected to end at"));
    // Multi-disk archives and comments.
    assert!(patched(4, &[1]).contains("no zip end record"));
    assert!(patched(20, &[1]).contains("no zip end record"));
}

/// A 64-bit directory that claims to be larger than the file, or than any checkpoint's.
#[test]
fn directories_of_impossible_size() {
    let dir = TempDir::new();
    let big = 1u64 << 34;
    for (count, start, size, part) in [
        (u64::MAX, 4, big - 4, "expected 16777216 at most"),
        (1, u64::MAX - 2, big, "expected to end at 17179869184"),
        (
            1 << 40,
            big - 1000,
            1000,
            "too few for 1099511627776 entries",
        ),
        (
            21,
            big - 1000,
            1000,
            "entry 0 of the zip directory is malformed",
        ),
    ] {
        let mut end = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0".to_vec();
        for field in [count, count, size, start] {
            end.extend(u64::to_le_bytes(field));
        }
        end.extend(b"PK\x06\x07\0\0\0\0");
        end.extend(big.to_le_bytes());
        end.extend(1u32.to_le_bytes());
        end.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
        let path = dir.file("file", "PK\x03\x04");
        // Sparse: 16 GiB that take no room.
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &end, big).unwrap();
        let sentence = sentence(pth_file::open(&path, None), dir.path());
        assert!(sentence.contains(part), "{sentence}");
    }
}

// ---- .pth: tensors in their storages ----

#[test]
fn tensors_that_do_not_fit_their_storage() {
    let refused = |change: &dyn Fn(&mut Pickled)| {
        let t = Tensor::f32("a", &[2, 2], 0);
        let mut pickled = Pickled::new(&t, 0);
        change(&mut pickled);
        refused(
            pth_file::open,
            &zip(&pth_entries(pickle(&[pickled]), &[t.bytes])),
        )
    };
    assert_eq!(
        refused(&|p| p.class = "DoubleStorage"),
        "tensor `a`: expected FloatStorage, HalfStorage or BFloat16Storage, found DoubleStorage"
    );
    assert_eq!(
        refused(&|p| p.strides = vec![1, 2]),
        "tensor `a`: expected row-major contiguous elements, found strides [1, 2] with shape [2, 2]"
    );
    assert_eq!(
        refused(&|p| p.key = "1".into()),
        "tensor `a`: expected its data in zip entry `archive/data/1`, found no such entry"
    );
    assert_eq!(
        refused(&|p| p.key = "../../../etc/passwd".into()),
        "tensor `a`: expected its data in zip entry `archive/data/../../../etc/passwd`, found no such \
         entry"
    );
    assert_eq!(
        refused(&|p| p.numel = 1 << 30),
        "tensor `a`: expected a storage of 1073741824 f32 elements, found 16 bytes in zip entry \
         `archive/data/0`"
    );
    assert_eq!(
        refused(&|p| p.class = "HalfStorage"),
        "tensor `a`: expected a storage of 4 f16 elements, found 16 bytes in zip entry \
         `archive/data/0`"
    );
    for (offset, shape) in [(1, [2, 2]), (0, [2, 3]), (i32::MAX, [2, 2]), (4, [1, 1])] {
        assert_eq!(
            refused(&|p| {
                p.offset = offset;
                p.shape = shape.to_vec();
                p.strides = vec![shape[1], 1];
            }),
            format!(
                "tensor `a`: expected to lie inside its storage of 4 elements, found shape {shape:?} \
                 from element {offset} on"
            )
        );
    }
    assert!(refused(&|p| p.offset = -1).contains("impossible offset or strides"));
    assert!(refused(&|p| p.numel = -1).contains("storage `0` has -1 elements"));
    assert!(refused(&|p| p.shape = vec![1 << 31, 2]).contains("a size of -2147483648"));
    assert!(refused(&|p| p.strides = vec![1]).contains("impossible offset or strides"));
    assert!(refused(&|p| p.shape = vec![1; 9]).contains("a tensor of 9 dimensions"));
}

// ---- .pth: the pickle ----

#[test]
fn pickles_that_are_not_a_dict_of_tensors() {
    let refused = |pickle: &[u8]| unpickle::tensors(pickle).unwrap_err();
    // What a malicious checkpoint says: os.system("...").
    assert_eq!(
        refused(b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R."),
        "at byte 2: `posix.system` is not one of the functions a dict of tensors needs; nothing is run"
    );
    assert!(refused(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.").contains("`builtins.eval`"));
    // The older ways of making objects: INST, OBJ, NEWOBJ, EXT1, and persistent ids as text.
    for opcode in [b'i', b'o', 0x81, 0x92, 0x82, b'P', b'U', b'I', b']', b'G'] {
        let sentence = refused(&[0x80, 2, opcode, b'1', b'\n', b'.']);
        assert_eq!(
            sentence,
            format!(
                "at byte 2: opcode {opcode:#04x} is not one that torch.save writes for a dict of \
                 tensors"
            )
        );
    }
    assert_eq!(
        refused(b""),
        "at byte 0: opcode end of file lacks its argument or operand"
    );
    assert_eq!(
        refused(b"\x80\x09."),
        "at byte 0: pickle protocol 9, expected 2 to 5"
    );
    assert_eq!(
        refused(b"\x80\x02N."),
        "at byte 3: None, expected a dict of tensors"
    );
    assert_eq!(
        refused(b"\x80\x02."),
        "at byte 2: the pickle leaves more or less than one value"
    );
    assert_eq!(
        refused(b"}(."),
        "at byte 2: the pickle leaves more or less than one value"
    );
    assert_eq!(
        refused(b"}.x"),
        "at byte 1: 1 bytes follow the end of the pickle"
    );
    assert_eq!(
        refused(b"}X\x01\0\0\0aK\x01s."),
        "at byte 10: `a` is an int, expected a tensor"
    );
    assert_eq!(
        refused(b"}K\x01K\x01s."),
        "at byte 6: a key is an int, expected a str"
    );
    assert_eq!(
        refused(b"}(K\x01u."),
        "at byte 4: a dict key without a value"
    );
    assert_eq!(
        refused(b"NK\x01K\x01s."),
        "at byte 5: items are set in None"
    );
    assert_eq!(refused(b"h\x05."), "at byte 0: memo 5 was never set");
    assert_eq!(
        refused(b"X\xff\xff\xff\xffabc"),
        "at byte 0: opcode 0x58 lacks its argument or operand"
    );
    assert_eq!(
        refused(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc"),
        "at byte 0: opcode 0x8d lacks its argument or operand"
    );
    assert!(refused(b"X\x01\0\0\0\xff.").contains("a str that is not UTF-8"));
    assert_eq!(
        refused(b"K\x01Q."),
        "at byte 2: an int where a tuple is expected"
    );
    assert_eq!(
        refused(b"K\x01\x85Q."),
        "at byte 3: a persistent id that is not a storage"
    );
    assert_eq!(refused(b"K\x01)R."), "at byte 3: REDUCE of an int");
    assert!(
        refused(b"ctorch._utils\n_rebuild_tensor_v2\n)R.").contains("RebuildTensor with arguments")
    );
    assert_eq!(refused(b"}K\x01b."), "at byte 3: BUILD with an int");
    assert_eq!(
        refused(b"\x8a\x09123456789."),
        "at byte 0: an int of 9 bytes"
    );
    // Operands may not be taken from below a MARK.
    for pickle in [
        &b"NN(\x86."[..],
        b"}NN(s.",
        b"N(R.",
        b"N(b.",
        b"t.",
        b"u.",
        b"(s.",
    ] {
        assert!(
            refused(pickle).contains("lacks its argument or operand"),
            "{pickle:?}"
        );
    }

    let t = Tensor::f32("a", &[2], 0);
    let twice = pickle(&[Pickled::new(&t, 0), Pickled::new(&t, 0)]);
    assert!(refused(&twice).ends_with("tensor `a` comes twice"));
}

/// Deep nesting, growth by sharing, and sheer number: an error each, within moments.
#[test]
fn pickles_that_want_to_exhaust() {
    let refused = |pickle: &[u8]| unpickle::tensors(pickle).unwrap_err();
    let most = "makes more than 1048576 values";
    // Tuples in tuples: dropping them recursively would overflow the stack.
    let nested = [&b"\x80\x02)"[..], &vec![0x85; 1_000_000], b"."].concat();
    assert!(refused(&nested).ends_with("a tuple, expected a dict of tensors"));
    assert!(refused(&vec![b'('; 2_000_000]).ends_with(most));
    assert!(refused(&vec![b'N'; 2_000_000]).ends_with(most));
    assert!(refused(&vec![b'}'; 2_000_000]).ends_with(most));
    // Memoised triples of triples: 3^n values if they were copied.
    let laughs = [&b"N"[..], &b"q\x00h\x00h\x00\x87".repeat(300_000), b"."].concat();
    assert!(refused(&laughs).ends_with(most));
    // A memo index does not make a table of that size.
    let sparse = b"}r\xff\xff\xff\xff.";
    assert!(unpickle::tensors(sparse).unwrap().is_empty());
    // A dict that contains itself.
    assert!(refused(b"}q\x00X\x01\0\0\0ah\x00s.").ends_with("`a` is a dict, expected a tensor"));
}

#[test]
fn strides_mean_nothing_where_a_size_is_one() {
    let stored = |shape: &[usize], strides: &[usize]| unpickle::Stored {
        class: "FloatStorage",
        key: "0",
        numel: 4,
        offset: 0,
        shape: shape.into(),
        strides: strides.into(),
    };
    for (shape, strides, contiguous) in [
        (&[2, 3][..], &[3, 1][..], true),
        (&[2, 3], &[1, 2], false),
        (&[2, 3], &[4, 1], false),
        (&[1, 3], &[99, 1], true),
        (&[3, 1], &[1, 99], true),
        (&[3], &[2], false),
        (&[3], &[0], false),
        (&[0, 3], &[7, 7], true),
        (&[], &[], true),
    ] {
        assert_eq!(
            stored(shape, strides).is_contiguous(),
            contiguous,
            "{shape:?} {strides:?}"
        );
    }
}
