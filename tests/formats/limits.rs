//! Tables of contents that are too long: refused with both values, in little time and memory, and
//! given up at once where the caller cancels. (U)
#![allow(unsafe_code)]

use crate::account::measure;
use crate::checkpoints::write::{Pickled, Tensor, ZipEntry, entry, pickle, raw_safetensors, zip};
use crate::checkpoints::{TempDir, sentence};
use llamabi::capi::status_of;
use llamabi::checkpoint::hugging_face;
use llamabi::format::limits::*;
use llamabi::format::{pickle as unpickle, pth, safetensors as st};
use llamabi::{Cancel, Error};
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

/// A safetensors file of this header, with so many bytes of data that take no room on the disk.
fn file(dir: &TempDir, name: &str, header: &str, data: u64) -> std::path::PathBuf {
    let path = dir.file(name, raw_safetensors(header, &[]));
    sparse(&path, 8 + header.len() as u64 + data);
    path
}

fn sparse(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

/// `n` tensors without an element, in as few bytes as there can be.
fn tensors(n: usize) -> String {
    let all = (0..n).map(|i| entry(&format!("{i:x}"), "F32", &[0], 0, 0));
    format!("{{{}}}", all.collect::<Vec<_>>().join(","))
}

/// A tensor of `n` dimensions.
fn dimensions(n: usize) -> String {
    let ones = "1,".repeat(n - 1);
    format!(r#"{{"a":{{"dtype":"F32","shape":[{ones}1],"data_offsets":[0,4]}}}}"#)
}

#[track_caller]
fn refused(path: &Path) -> String {
    let start = Instant::now();
    let error = st::open(path, None).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(60), "{error}");
    assert_eq!(status_of(&error), llamabi::capi::LLAMA_E_FORMAT, "{error}");
    let text = error.to_string();
    let (file, sentence) = text.split_once(": ").unwrap();
    assert_eq!(file, path.to_str().unwrap());
    sentence.into()
}

#[test]
fn headers_in_bulk_are_refused_with_both_values() {
    let dir = TempDir::new();
    let path = dir.path().join("huge");
    std::fs::write(&path, 98_000_000u64.to_le_bytes()).unwrap();
    sparse(&path, 1 << 30);
    assert_eq!(
        refused(&path),
        format!(
            "the safetensors header claims 98000000 bytes, in a file of {} it has at most {MAX_HEADER}",
            1 << 30
        )
    );

    let header = dimensions(1 << 20);
    let len = header.len();
    assert_eq!(
        refused(&file(&dir, "short", &header, 4)),
        format!(
            "the safetensors header claims {len} bytes for 4 bytes of data; beyond {FREE_HEADER} it has \
             at most as many as the data"
        )
    );

    let header = dimensions(15 << 20);
    let path = file(&dir, "dimensions", &header, header.len() as u64);
    assert!(
        refused(&path).starts_with(&format!(
            "the safetensors header is not valid: `a`: {} dimensions, a tensor has at most 8",
            15 << 20
        )),
        "{}",
        refused(&path)
    );

    let header = tensors(400_000);
    let path = file(&dir, "tensors", &header, header.len() as u64);
    assert!(
        refused(&path).starts_with(&format!(
            "the safetensors header is not valid: 400000 tensors, a checkpoint has at most {MAX_TENSORS}"
        )),
        "{}",
        refused(&path)
    );
}

#[test]
fn the_most_that_is_read_is_read() {
    let dir = TempDir::new();
    let ones = [1; MAX_RANK];
    let header = format!("{{{}}}", entry("a", "F32", &ones, 0, 4));
    let held = st::open(&file(&dir, "rank", &header, 4), None).unwrap();
    assert_eq!(held.tensors["a"].shape, ones);

    // Tensors without data take a header of more than 1 MiB, so one of them has some.
    let some = |n: usize, data: usize| {
        let mut header = tensors(n);
        header.pop();
        header + "," + &entry("data", "U8", &[data], 0, data) + "}"
    };
    let data = 16 << 20;
    let path = file(&dir, "tensors", &some(MAX_TENSORS - 1, data), data as u64);
    assert_eq!(st::open(&path, None).unwrap().tensors.len(), MAX_TENSORS);
    let path = file(&dir, "more", &some(MAX_TENSORS, data), data as u64);
    assert!(refused(&path).contains(&format!("{} tensors, a checkpoint has", MAX_TENSORS + 1)));
}

#[test]
fn what_the_files_of_a_checkpoint_have_together_is_limited() {
    let dir = TempDir::new();
    let open = |map: &str| {
        let index = format!(r#"{{"weight_map":{map}}}"#);
        dir.file("model.safetensors.index.json", index);
        sentence(hugging_face::open(dir.path(), None), dir.path())
    };
    let names = (0..=MAX_FILES).map(|i| format!(r#""{i}":"{i}.safetensors""#));
    assert_eq!(
        open(&format!("{{{}}}", names.collect::<Vec<_>>().join(","))),
        format!(
            "model.safetensors.index.json: the weight_map names {} files, a checkpoint has at most \
             {MAX_FILES}",
            MAX_FILES + 1
        )
    );

    let two = r#"{"x":"a.safetensors","y":"b.safetensors"}"#;
    let half = MAX_TENSORS / 2;
    for (name, first, n) in [("a", 0, half), ("b", half, half + 1)] {
        let all = (first..first + n).map(|i| entry(&i.to_string(), "F32", &[0], 0, 0));
        let data = entry(name, "U8", &[16 << 20], 0, 16 << 20);
        let header = format!("{{{},{data}}}", all.collect::<Vec<_>>().join(","));
        file(&dir, &format!("{name}.safetensors"), &header, 16 << 20);
    }
    assert_eq!(
        open(two),
        format!(
            "model.safetensors.index.json: its files up to `b.safetensors` have {} tensors, a checkpoint \
             has at most {MAX_TENSORS}",
            MAX_TENSORS + 3
        )
    );

    let long = " ".repeat(MAX_HEADER as usize / 2);
    for name in ["a", "b"] {
        let header = format!("{{{}}}{long}", entry(name, "U8", &[32 << 20], 0, 32 << 20));
        file(&dir, &format!("{name}.safetensors"), &header, 32 << 20);
    }
    let sentence = open(two);
    let start = "b.safetensors: the safetensors headers up to this one have ";
    let end = format!("bytes, those of a checkpoint have at most {MAX_HEADER}");
    assert!(
        sentence.starts_with(start) && sentence.ends_with(&end),
        "{sentence}"
    );
}

/// A pickle of `n` tensors that are made of memoised parts: five bytes for each.
fn tensors_of_memos(n: usize) -> Vec<u8> {
    let mut pickle = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\0".to_vec();
    let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ";
    let ones = |out: &mut Vec<u8>| {
        out.push(b'(');
        out.extend([b'K', 1].repeat(MAX_RANK));
        out.push(b't');
    };
    pickle.push(b'(');
    pickle.extend(storage);
    pickle.extend(b"K\0");
    ones(&mut pickle);
    ones(&mut pickle);
    pickle.extend(b"\x89}tq\x01");
    pickle.extend(b"h\0h\x01R".repeat(n));
    pickle.push(b'.');
    pickle
}

/// What is asked for beforehand, as the allocator of C++ and Rust's collections cannot be told no,
/// is at least what is used: the constants of `format` are repeated here.
#[test]
fn memory_is_in_proportion() {
    let dir = TempDir::new();
    let most = |large: usize, read: &mut dyn FnMut()| {
        let ((), used) = measure(large, read);
        used.most
    };
    // What is asked for beforehand is one block, of which nothing is used.
    let (few, large) = (100_000, 4 << 20);
    let long_names = (0..2000).map(|i| entry(&format!("{i:01000}"), "F32", &[0], 0, 0));
    let long_names = format!("{{{}}}", long_names.collect::<Vec<_>>().join(","));
    for header in [tensors(few), dimensions(1 << 20), long_names] {
        let path = file(&dir, "f", &header, header.len() as u64);
        let used = most(large, &mut || drop(st::open(&path, None)));
        assert!(used <= 12 * header.len(), "{used} for {}", header.len());
    }

    let names: Vec<String> = (0..few).map(|i| format!(r#""{i:x}":"a""#)).collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
    let path = dir.file("model.safetensors.index.json", &index);
    let used = most(large, &mut || drop(st::open_sharded(&path, None)));
    assert!(used <= 12 * index.len(), "{used} for {}", index.len());

    let values = 300_000;
    let memos: Vec<u8> = (0..values as u32)
        .flat_map(|i| [&b"r"[..], &i.to_le_bytes()].concat())
        .collect();
    let pairs = [&b"}("[..], &b"NN".repeat(values / 2), b"u."].concat();
    for pickle in [
        b"N".repeat(values),
        b"}".repeat(values),
        [&b"("[..], &b"N".repeat(values), b"t."].concat(),
        [&b"N"[..], &b"\x85".repeat(values), b"."].concat(),
        [&b"N"[..], &memos, b"."].concat(),
        pairs,
        tensors_of_memos(values / 3),
    ] {
        let used = most(usize::MAX, &mut || drop(unpickle::tensors(&pickle)));
        assert!(used <= 200 * values, "{used}");
    }

    let entries: Vec<ZipEntry> = (0..20_000)
        .map(|i| ZipEntry::new(format!("{i:x}"), Vec::new()))
        .collect();
    let bytes = zip(&entries);
    let path = dir.file("f.pth", &bytes);
    let used = most(large, &mut || drop(pth::open(&path, None)));
    let directory = 51 * entries.len();
    assert!(used <= 5 * directory, "{used} for {directory}");
}

#[test]
fn a_cancel_flag_ends_it() {
    let dir = TempDir::new();
    let header = dimensions(15 << 20);
    let path = file(&dir, "a.safetensors", &header, header.len() as u64);
    let index = dir.file(
        "model.safetensors.index.json",
        r#"{"weight_map":{"x":"a.safetensors"}}"#,
    );
    let t = Tensor::f32("a", &[2], 0);
    let entries = [
        ZipEntry::new("r/data.pkl", pickle(&[Pickled::new(&t, 0)])),
        ZipEntry::new("r/data/0", &t.bytes[..]),
    ];
    let archive = dir.file("f.pth", zip(&entries));
    let cancel = Cancel::new();
    assert!(pth::open(&archive, Some(&cancel)).is_ok());

    // While it is read: without the flag it takes a hundred times as long, and is refused. On a
    // busy machine the other thread may come too late: then again.
    let cancelled = |_| {
        let cancel = Cancel::new();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3));
                cancel.trigger();
            });
            st::open(&path, Some(&cancel)).unwrap_err()
        });
        matches!(error, Error::Cancelled)
    };
    assert!((0..20).any(cancelled));
    cancel.trigger();
    // Before.
    for result in [
        st::open(&path, Some(&cancel)).map(drop),
        st::open_sharded(&index, Some(&cancel)).map(drop),
        pth::open(&archive, Some(&cancel)).map(drop),
    ] {
        assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    }
}

/// Where the address space is limited, the answer is a status. In a process of its own, since the
/// limit is the process's and since this one has free memory from what it did before.
#[test]
fn without_memory_for_it_there_is_a_status() {
    const FILES: &str = "LLAMABI_TEST_FILES";
    if let Some(files) = std::env::var_os(FILES) {
        return read_with_little_memory(Path::new(&files));
    }
    let dir = TempDir::new();
    let header = tensors(MAX_TENSORS);
    file(&dir, "header", &header, header.len() as u64);
    let names: Vec<String> = (0..MAX_TENSORS)
        .map(|i| format!(r#""{i:x}":"a""#))
        .collect();
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
    dir.file("index", index);
    let pickle = b"}".repeat(MAX_VALUES);
    dir.file("f.pth", zip(&[ZipEntry::new("r/data.pkl", pickle)]));
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "limits::without_memory_for_it_there_is_a_status",
            "--exact",
            "--nocapture",
        ])
        .env(FILES, dir.path())
        // Another arena would have address space of its own, reserved before there is a limit.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
}

fn read_with_little_memory(files: &Path) {
    let mut refused = [0; 3];
    for room in [4, 16, 64, 1024].map(|mib: u64| mib << 20) {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
        let limit = libc::rlimit {
            rlim_cur: pages * 4096 + room,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: the limit is a valid one of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let results = [
            st::open(&files.join("header"), None).map(drop),
            st::open_sharded(&files.join("index"), None).map(drop),
            pth::open(&files.join("f.pth"), None).map(drop),
        ];
        for (result, refused) in results.into_iter().zip(&mut refused) {
            // With memory enough they are refused for what they say.
            let error = result.unwrap_err();
            let no_memory = matches!(error, Error::Refused { .. });
            let code = status_of(&error);
            assert!(
                no_memory || code == llamabi::capi::LLAMA_E_FORMAT,
                "{error}"
            );
            assert!(!no_memory || room < 1 << 30, "{error}");
            *refused += u32::from(no_memory);
        }
    }
    assert!(refused.iter().all(|&n| n > 0), "{refused:?}");
}

/// Whatever the crate takes, of files that have what we read, we take; and the same of it.
#[test]
fn the_safetensors_crate_reads_the_same() {
    let mut taken = 0;
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/safetensors");
    for entry in std::fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let ours = st::open(&path, None);
        let theirs = safetensors::SafeTensors::deserialize(&bytes);
        let (Ok(ours), Ok(theirs)) = (&ours, &theirs) else {
            // Duplicate names and other dtypes are what only we refuse.
            assert!(ours.is_err(), "{path:?}: {:?}", theirs.err());
            continue;
        };
        taken += 1;
        assert_eq!(ours.tensors.len(), theirs.len());
        for (name, info) in &ours.tensors {
            let view = theirs.tensor(name).unwrap();
            assert_eq!(view.shape(), info.shape);
            let mut data = vec![0; info.len as usize];
            ours.read(info, 0, &mut data).unwrap();
            assert_eq!(view.data(), data);
        }
    }
    assert!(taken > 1, "{taken}");
}
