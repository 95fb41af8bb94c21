//! `llamabi-info` on every checkpoint of the tests, and on broken copies of them: it says what each
//! is, or why it would be refused.

use crate::checkpoints::{TempDir, reference};
use llamabi::llama::inspect::report;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// The folders of checkpoints within a folder, and its GGUF files.
fn checkpoints(of: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(of).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = paths
        .filter(|path| {
            let has = |name: &str| path.join(name).exists();
            // One of them has another's weights.
            let weights = has("model.safetensors") || has("consolidated.00.pth");
            let first = !path.to_string_lossy().contains("-of-00003")
                || path.ends_with("split-00001-of-00003.gguf");
            weights || (path.extension().is_some_and(|e| e == "gguf") && first)
        })
        .collect();
    found.sort();
    found
}

/// Each with the tokenizer it needs, if it has none of its own.
fn all() -> Vec<(PathBuf, Option<PathBuf>)> {
    let mut all = Vec::new();
    let mut add = |folder: PathBuf, tokenizer: Option<PathBuf>| {
        let found = checkpoints(&folder).into_iter();
        all.extend(found.map(|path| (path, tokenizer.clone())));
    };
    for name in ["mha-f32", "gqa-bf16", "gqa-f16-mp2"] {
        add(reference(name), None);
    }
    add(
        reference("variants"),
        Some(reference("mha-f32/hf/tokenizer.model")),
    );
    add(data("families"), Some(data("families/tokenizer.model")));
    add(data("quantised"), Some(data("quantised/tokenizer.model")));
    add(
        data("adapters/base/.."),
        Some(data("adapters/base/tokenizer.model")),
    );
    add(data("gguf"), None);
    all
}

#[test]
fn every_checkpoint_is_described() {
    let all = all();
    assert_eq!(all.len(), 6 + 6 + 22 + 16 + 1 + 5, "{all:#?}");
    for (path, tokenizer) in all {
        let mut text = String::new();
        report(&path, tokenizer.as_deref(), &mut text).unwrap_or_else(|e| panic!("{e}"));
        for line in [
            "checkpoint ",
            "form ",
            "model ",
            "tokenizer ",
            "kept as ",
            "auto ",
        ] {
            assert!(
                text.contains(&format!("\n{line}")) || text.starts_with(line),
                "{text}"
            );
        }
        assert!(!text.contains("NaN"), "{text}");
    }
}

/// Of each file of a checkpoint: cut off, and with bytes of its beginning changed. Whatever is
/// wrong with it, the report ends, and a refusal names a file.
#[test]
fn broken_copies_are_refused_or_described() {
    let (mut refused, mut tried) = (0, 0);
    for (path, tokenizer) in all() {
        let dir = TempDir::new();
        let files: Vec<PathBuf> = match path.is_dir() {
            true => {
                let entries = std::fs::read_dir(&path).unwrap();
                entries.map(|entry| entry.unwrap().path()).collect()
            }
            false => vec![path.clone()],
        };
        let copy = |from: &Path| dir.path().join(from.file_name().unwrap());
        for from in &files {
            std::fs::copy(from, copy(from)).unwrap();
        }
        let target = match path.is_dir() {
            true => dir.path().to_path_buf(),
            false => copy(&path),
        };
        for from in &files {
            let whole = std::fs::read(from).unwrap();
            let cut = [
                0,
                1,
                7,
                8,
                9,
                100,
                whole.len() / 2,
                whole.len().saturating_sub(1),
            ];
            let broken = cut.map(|len| whole[..len.min(whole.len())].to_vec());
            let flips = [0, 4, 8, 12, 16, 24, 60, 200].map(|at: usize| {
                let mut changed = whole.clone();
                let at = at.min(whole.len() - 1);
                changed[at] ^= 0xff;
                changed
            });
            for broken in broken.into_iter().chain(flips) {
                std::fs::write(copy(from), broken).unwrap();
                tried += 1;
                let mut text = String::new();
                if let Err(error) = report(&target, tokenizer.as_deref(), &mut text) {
                    let (sentence, place) = (error.to_string(), dir.path().to_string_lossy());
                    assert!(sentence.contains(&*place), "{sentence}");
                    refused += 1;
                }
            }
            std::fs::write(copy(from), whole).unwrap();
        }
    }
    assert!(tried > 1_000 && refused > tried / 2, "{refused} of {tried}");
}

/// What it prints may have nowhere to go.
#[test]
fn a_report_that_cannot_be_written_is_a_failure_and_no_panic() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_llamabi-info"));
    program.arg(reference("mha-f32/hf")).stdout(full.unwrap());
    let output = program.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("standard output: No space left"), "{said}");
}

/// What building would refuse is refused here, too, and what the checkpoint is was said before.
#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/meta/tokenizer.model");
    let mut text = String::new();
    let error = report(&reference("mha-f32/hf"), Some(&tokenizer), &mut text).unwrap_err();
    let sentence = "the tokenizer has 1024 pieces, the model's vocabulary only 512";
    assert!(error.to_string().ends_with(sentence), "{error}");
    assert!(text.contains("\nmodel "), "{text}");
}

/// Meta's form has the size of the vocabulary from the tokenizer: a broken one is what is named.
#[test]
fn a_broken_tokenizer_is_what_is_wrong() {
    let dir = TempDir::new();
    for name in ["params.json", "consolidated.00.pth", "tokenizer.model"] {
        std::fs::copy(reference("mha-f32/meta").join(name), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("tokenizer.model"), [7]).unwrap();
    let error = report(dir.path(), None, &mut String::new()).unwrap_err();
    assert!(error.to_string().contains("/tokenizer.model: "), "{error}");
}

#[test]
fn the_program_says_how_it_is_used() {
    let run = |args: &[&str]| {
        let program = env!("CARGO_BIN_EXE_llamabi-info");
        let ran = std::process::Command::new(program).args(args).output();
        let ran = ran.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ran.status.code(), text(ran.stdout), text(ran.stderr))
    };
    for help in ["--help", "-h"] {
        let (code, out, err) = run(&[help]);
        assert!(
            code == Some(0) && out.starts_with("usage: ") && err.is_empty(),
            "{out}{err}"
        );
    }
    let (code, out, err) = run(&[]);
    assert!(
        code == Some(2) && out.is_empty() && err.starts_with("usage: "),
        "{out}{err}"
    );
}

/// A folder above checkpoints is refused with the name of one.
#[test]
fn the_folder_above_a_checkpoint_names_it() {
    let folder = TempDir::new();
    let refused = || {
        llamabi::checkpoint::open(folder.path())
            .err()
            .unwrap()
            .to_string()
    };
    let nothing = refused();
    assert!(nothing.ends_with("nor a .gguf file"), "{nothing}");
    for (inner, end) in [
        ("original", "original has"),
        ("meta", "meta and others have"),
    ] {
        let inner = folder.path().join(inner);
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("params.json"), "{}").unwrap();
        let named = refused();
        assert!(
            named.starts_with(&nothing) && named.ends_with(end),
            "{named}"
        );
    }
}
