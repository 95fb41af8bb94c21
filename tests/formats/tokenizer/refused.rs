//! Files that are no tokenizer, and models that would do harm.

use super::*;

#[test]
fn dangerous_or_contradictory_models_are_refused() {
    fn trainer(proto: &mut ModelProto) -> &mut llamabi::tokenizer::model_proto::TrainerSpec {
        proto.trainer_spec.get_or_insert_default()
    }
    type Change = fn(&mut ModelProto);
    let changes: [(&str, Change); 34] = [
        ("model_type is 1", |p| trainer(p).model_type = None),
        ("model_type is 4 (char)", |p| {
            trainer(p).model_type = Some(4)
        }),
        ("model_type is -2147483648", |p| {
            trainer(p).model_type = Some(i32::MIN)
        }),
        ("model_type is 5", |p| trainer(p).model_type = Some(5)),
        ("precompiled_charsmap", |p| {
            p.normalizer_spec
                .get_or_insert_default()
                .precompiled_charsmap = Some(vec![0; 2000]);
        }),
        ("denormalizer_spec", |p| {
            p.denormalizer_spec = Some(vec![0x12, 0x01, 0x41])
        }),
        ("no pieces", |p| p.pieces.clear()),
        ("piece 300 is not valid UTF-8", |p| {
            p.pieces[300].piece = Some(vec![0xff])
        }),
        ("piece 300 has 0 bytes", |p| {
            p.pieces[300].piece = Some(vec![])
        }),
        ("piece 300 has 0 bytes", |p| p.pieces[300].piece = None),
        ("piece 300 has 513 bytes", |p| {
            p.pieces[300].piece = Some(vec![b'a'; 513])
        }),
        ("pieces 299 and 300 are both", |p| {
            p.pieces[300].piece = p.pieces[299].piece.clone()
        }),
        ("are both \"<s>\"", |p| {
            p.pieces[300].piece = Some("<s>".into())
        }),
        ("score of piece 300", |p| {
            p.pieces[300].score = Some(f32::NAN)
        }),
        ("score of piece 300", |p| {
            p.pieces[300].score = Some(f32::NEG_INFINITY)
        }),
        ("type of piece 300", |p| p.pieces[300].r#type = Some(0)),
        ("type of piece 300", |p| p.pieces[300].r#type = Some(-7)),
        ("have type UNKNOWN", |p| p.pieces[300].r#type = Some(2)),
        ("no piece has type UNKNOWN", |p| p.pieces[0].r#type = None),
        ("unk_id is 1", |p| trainer(p).unk_id = Some(1)),
        ("unk_id is -1", |p| trainer(p).unk_id = Some(-1)),
        ("bos_id is 512", |p| trainer(p).bos_id = Some(512)),
        ("bos_id is -2", |p| trainer(p).bos_id = Some(-2)),
        ("bos_id is 2", |p| trainer(p).bos_id = Some(2)),
        ("eos_id is -1", |p| trainer(p).eos_id = Some(-1)),
        ("pad_id is 9999", |p| trainer(p).pad_id = Some(9999)),
        ("no control piece \"<bos>\"", |p| {
            trainer(p).bos_piece = Some("<bos>".into());
            trainer(p).bos_id = None;
        }),
        ("eos_id is 2", |p| p.pieces[2].r#type = None),
        ("byte piece 300 is", |p| {
            p.pieces[300] = entry("<0x0a>", Type::Byte)
        }),
        ("byte piece 3 is", |p| {
            p.pieces[3] = entry("<0x100>", Type::Byte)
        }),
        ("255 byte pieces", |p| p.pieces[3].r#type = None),
        ("256 byte pieces", |p| trainer(p).byte_fallback = None),
        ("is a single character", |p| {
            p.pieces[300] = entry("世", Type::Control)
        }),
        ("contains a NUL", |p| {
            p.pieces[300] = entry("a\0b", Type::UserDefined)
        }),
    ];
    for (expected, change) in changes {
        let error = format_error(&small_with(change));
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
    let error = format_error(&small_with(|proto| {
        let symbol = |i| entry(&format!("{i:0>500}"), Type::UserDefined);
        proto.pieces.extend((0..132).map(symbol));
    }));
    assert!(
        error.contains("user-defined pieces have 66000 bytes"),
        "{error}"
    );
    // Two bytes of file per piece.
    let error = format_error(&[0x0a, 0].repeat(3 << 20));
    assert!(error.contains("3145728 pieces"), "{error}");
    // Something empty is there in files of newer trainers, and an absent default is no
    // contradiction.
    Both::new(&small_with(|proto| {
        proto.denormalizer_spec = Some(vec![]);
        trainer(proto).pad_id = None;
    }));
}

#[test]
fn the_corpus_is_refused() {
    let mut n = 0;
    for file in std::fs::read_dir("tests/corpus/tokenizer").unwrap() {
        let path = file.unwrap().path();
        let error = tokenizer::open(&path).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
        let expected = if path.to_str().unwrap().contains("unsupported") {
            -5
        } else {
            -4
        };
        assert_eq!(status_of(&error), expected, "{error}");
        n += 1;
    }
    assert!(n >= 8);
}

struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let dir = std::env::temp_dir().join(format!("llamabi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_are_no_tokenizer() {
    let dir = TempDir::new("tokenizer-files");
    let fifo = dir.0.join("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let link = dir.0.join("dangling");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for path in [
        &dir.0.join("missing"),
        &dir.0,
        &fifo,
        &link,
        Path::new("/dev/null"),
    ] {
        let error = tokenizer::open(path).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    let huge = dir.0.join("huge");
    std::fs::File::create(&huge)
        .unwrap()
        .set_len(MAX_FILE_BYTES + 1)
        .unwrap();
    let error = tokenizer::open(&huge).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");
    assert!(error.to_string().contains("67108865 bytes"), "{error}");
}
