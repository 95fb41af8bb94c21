//! `llamabi-info` on every checkpoint of the tests, and on broken copies of them: it says what each
//! is, or why it would be refused.

use crate::checkpoints::{TempDir, reference};
use llamabi::llama::inspect::report;
use std::collections::HashMap;
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
            // Some have another's weights.
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
    assert_eq!(all.len(), 6 + 6 + 22 + 23 + 1 + 7, "{all:#?}");
    for (path, tokenizer) in all {
        let mut text = String::new();
        report(&path, tokenizer.as_deref(), &mut text).unwrap_or_else(|e| panic!("{e}"));
        for line in [
            "checkpoint ",
            "form ",
            "family ",
            "model ",
            "rope ",
            "window ",
            "trained for ",
            "tokenizer ",
            "ends with ",
            "chat ",
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

/// The lines of a report, by their names.
fn lines(path: &Path, tokenizer: Option<&Path>) -> HashMap<String, String> {
    let mut text = String::new();
    report(path, tokenizer, &mut text).unwrap();
    let line = |line: &str| {
        let (name, value) = line.split_at_checked(13)?;
        Some((name.trim_end().to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn what_a_model_is() {
    let of = |name: &str, tokenizer: &str| lines(&data(name), Some(&data(tokenizer)));
    let family = |name: &str| of(&format!("families/{name}"), "families/tokenizer.model");
    let gguf = |name: &str| lines(&data(&format!("gguf/{name}")), None);

    let llama2 = lines(&reference("mha-f32/meta"), None);
    assert_eq!(llama2["family"], "llama");
    assert_eq!(llama2["rope"], "theta 10000");
    assert_eq!(llama2["window"], "none");
    assert_eq!(llama2["trained for"], "not said");
    assert_eq!(llama2["ends with"], "2 \"</s>\"");
    assert_eq!(llama2["chat"], "Llama 2's format, which is built in");

    let mistral = family("mistral-window");
    assert_eq!(mistral["family"], "mistral");
    // Meta's format is of Llama 2, not of whatever has a tokenizer like its.
    assert_eq!(mistral["chat"], "no format: calls need a chat_template");
    assert_eq!(mistral["window"], "16 keys");
    assert_eq!(mistral["trained for"], "128 positions");
    assert_eq!(family("qwen2-window")["window"], "16 keys in 1 of 2 layers");
    let phi = family("phi3-partial");
    assert!(phi["rope"].ends_with(", 12 of 16"), "{}", phi["rope"]);
    for (name, words) in [
        ("llama-yarn", ", yarn by 4 beyond 32"),
        ("llama-dynamic", ", dynamic by "),
        ("phi3-longrope", ", longrope beyond "),
        ("smollm3", ", not in 1 of 4 layers"),
    ] {
        let rope = &family(name)["rope"];
        assert!(rope.contains(words), "{name}: {rope}");
    }
    let variant = |name: &str| {
        lines(
            &reference(name),
            Some(&reference("mha-f32/hf/tokenizer.model")),
        )
    };
    let rope = &variant("variants/llama3-rope")["rope"];
    assert_eq!(rope, "theta 500000, llama3 by 8 beyond 64");
    let rope = &variant("variants/linear-rope")["rope"];
    assert_eq!(rope, "theta 10000, linear by 4");

    let llama3 = gguf("q4_0-llama3.gguf");
    assert_eq!(llama3["chat"], "template of 231 bytes");
    assert_eq!(
        llama3["ends with"],
        r#"1101 "<|end_of_text|>", 1109 "<|eot_id|>", 1108 "<|eom_id|>""#
    );
    assert_eq!(llama3["rope"], "theta 500000, a divisor for each frequency");
    let qwen = gguf("mixed32-qwen2.gguf");
    assert_eq!(qwen["family"], "qwen2");
    assert_eq!(qwen["chat"], "no format: calls need a chat_template");
    // Its tokenizer is too large for this model, which is said behind all the lines.
    let (model, ranks) = (data("families/llama-yarn"), data("tokenizers/llama3.model"));
    let mut text = String::new();
    assert!(report(&model, Some(&ranks), &mut text).is_err());
    let built_in = "\nchat         Llama 3's format, which is built in\n";
    assert!(text.contains(built_in), "{text}");
}

/// A broken template fails the calls that need it, and nothing else.
#[test]
fn a_template_that_cannot_be_used_is_said() {
    let dir = TempDir::new();
    for name in ["config.json", "model.safetensors", "tokenizer.model"] {
        std::fs::copy(reference("mha-f32/hf").join(name), dir.path().join(name)).unwrap();
    }
    dir.file("chat_template.jinja", "{% for m in messages %}");
    let chat = &lines(dir.path(), None)["chat"];
    assert!(
        chat.starts_with("template of 23 bytes, which cannot be used: "),
        "{chat}"
    );
    dir.file("chat_template.jinja", [0xff]);
    let chat = &lines(dir.path(), None)["chat"];
    assert!(
        chat.starts_with("template, which cannot be used: "),
        "{chat}"
    );
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
