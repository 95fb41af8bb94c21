//! `llamabi-quantize`: calibrated codes, jobs that were cut off, and what is refused.

mod beside;
mod program;

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::{Opened, TempDir, reference, sentence};
use llamabi::checkpoint::weights::LoadControl;
use llamabi::format::gguf::Gguf;
use llamabi::llama::quantise::{self, Calibration, Job, SAMPLE};
use llamabi::quant::Quant;
use llamabi::{BuildOptions, Dtype, Error, Llama};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn calibrated<'a>(from: &'a Path, to: &'a Path, tokens: usize) -> Job<'a> {
    let calibration = Calibration {
        text: SAMPLE.into(),
        tokens,
    };
    Job {
        from,
        tokenizer: None,
        to,
        quant: Quant::Int4,
        calibration: Some(calibration),
    }
}

/// All files of a directory.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let file = |e: std::fs::DirEntry| {
        let name = e.file_name().into_string().unwrap();
        (name, std::fs::read(e.path()).unwrap())
    };
    entries.map(file).collect()
}

/// Copies files to a new directory.
fn copied(files: &Path, to: PathBuf) -> PathBuf {
    std::fs::create_dir(&to).unwrap();
    for (name, bytes) in self::files(files) {
        std::fs::write(to.join(name), bytes).unwrap();
    }
    to
}

/// Runs a job until `progress` was called so often.
fn cut_off(job: &Job<'_>, calls: usize) {
    let mut n = 0;
    let outcome = job.run(&mut |_, _| {
        n += 1;
        n < calls
    });
    assert!(matches!(outcome, Err(Error::Cancelled)), "{outcome:?}");
}

#[test]
fn a_job_that_was_cut_off_gives_the_same_bytes() {
    for from in ["demo/hf", "demo/meta"].map(root) {
        let dir = TempDir::new();
        let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
        let mut calls = 0;
        let mut shares = Vec::new();
        let outcome = calibrated(&from, &whole, 512).run(&mut |share, _| {
            calls += 1;
            shares.push(share);
            true
        });
        outcome.unwrap();
        assert!(
            shares.is_sorted() && shares.last() == Some(&1.0),
            "{shares:?}"
        );
        // Within the embedding, within a layer, and behind one.
        for n in [1, calls / 2, calls / 2, calls / 2 + 2] {
            cut_off(&calibrated(&from, &parts, 512), n);
            assert!(!parts.exists());
        }
        calibrated(&from, &parts, 512)
            .run(&mut |_, _| true)
            .unwrap();
        assert!(files(&whole) == files(&parts));
        assert!(!dir.path().join("parts.partial").exists());
        let options = BuildOptions::default();
        let llama = Llama::build(&parts, None, &options, &mut |_| true).unwrap();
        assert_eq!(llama.info().weights_dtype, Dtype::Int4);
    }
}

/// A calibration decides codes of the layers, and nothing else.
#[test]
fn calibrated_layers_differ_from_plain_ones_and_the_rest_does_not() {
    let dir = TempDir::new();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let from = root("demo/hf");
    calibrated(&from, &a, 512).run(&mut |_, _| true).unwrap();
    quantise::write(&from, &b, Quant::Int4).unwrap();
    let mut go_on = |_: f32| true;
    let mut control = LoadControl {
        cancel: None,
        progress: &mut go_on,
    };
    let mut load = |dir: &Path| {
        let opened = Opened::new(dir, 0).unwrap();
        opened
            .load(&Collect::default(), None, &mut control)
            .unwrap()
    };
    let (a, b) = (load(&a), load(&b));
    let same = |a: &Mat, b: &Mat| a.codes == b.codes && a.scales == b.scales;
    assert_eq!(a.embedding.values, b.embedding.values);
    assert!(same(a.head.as_ref().unwrap(), b.head.as_ref().unwrap()));
    for (a, b) in a.layers.iter().zip(&b.layers) {
        assert_eq!(a.attention_norm, b.attention_norm);
        let pairs = [
            (&a.wqkv, &b.wqkv),
            (&a.wo, &b.wo),
            (&a.w13, &b.w13),
            (&a.w2, &b.w2),
        ];
        for (a, b) in pairs {
            assert!(a.dtypes == b.dtypes && !same(a, b));
        }
    }
}

/// Biases, tied embeddings, heads of another width, several shards.
#[test]
fn every_form_can_be_calibrated() {
    let dir = TempDir::new();
    let models = ["gqa-f16-mp2/meta", "variants/tied", "variants/attn-bias"];
    for (n, model) in models.into_iter().enumerate() {
        let [from, to] = ["from", "to"].map(|name| dir.path().join(format!("{name}-{n}")));
        std::fs::create_dir(&from).unwrap();
        // The variants come without a tokenizer; that of another model fits them.
        let tokenizer = std::fs::read(reference("mha-f32/hf/tokenizer.model")).unwrap();
        std::fs::write(from.join("tokenizer.model"), tokenizer).unwrap();
        for (name, bytes) in files(&reference(model)) {
            std::fs::write(from.join(name), bytes).unwrap();
        }
        calibrated(&from, &to, 256).run(&mut |_, _| true).unwrap();
        let options = BuildOptions::default();
        Llama::build(&to, None, &options, &mut |_| true).unwrap();
    }
}

/// A GGUF file becomes one that loads to what quantising while loading gives.
#[test]
fn a_gguf_file_becomes_one() {
    // The last is of three files.
    for name in [
        "q8_0",
        "mixed32-qwen2",
        "q4_0-llama3",
        "split-00001-of-00003",
    ] {
        let from = root(&format!("tests/data/gguf/{name}.gguf"));
        for quant in [Quant::Int8, Quant::Int4] {
            let dir = TempDir::new();
            let to = dir.path().join("new");
            quantise::write(&from, &to, quant).unwrap();
            let mut go_on = |_: f32| true;
            let mut control = LoadControl {
                cancel: None,
                progress: &mut go_on,
            };
            let mut load = |path: &Path, asked| {
                let opened = Opened::new(path, 0).unwrap();
                opened
                    .load(&Collect::default(), asked, &mut control)
                    .unwrap()
            };
            let (want, got) = (load(&from, Some(quant.dtype())), load(&to, None));
            for (want, got) in want.layers.iter().zip(&got.layers) {
                let pairs = [(&want.wqkv, &got.wqkv), (&want.w2, &got.w2)];
                for (want, got) in pairs {
                    assert_eq!(want.dtypes, got.dtypes, "{name}");
                    assert!(
                        want.codes == got.codes && want.scales == got.scales,
                        "{name}"
                    );
                    assert_eq!(want.bias, got.bias);
                }
                assert_eq!(want.ffn_norm, got.ffn_norm);
            }
            assert_eq!(want.norm, got.norm);
            let keys = |path: &Path| -> Vec<String> {
                let file = Gguf::open(path, None).unwrap();
                file.keys().map(str::to_owned).collect()
            };
            let mut want = keys(&from);
            want.retain(|key| !key.starts_with("split."));
            assert_eq!(keys(&to.join("model.gguf")), want);
        }
        let dir = TempDir::new();
        let error = quantise::write(&from, &dir.path().join("new"), Quant::Nf4).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("nf4") && !dir.path().join("new").exists(),
            "{error}"
        );
    }
}

#[test]
fn what_is_there_is_not_written_over() {
    let (dir, from) = (TempDir::new(), root("demo/hf"));
    let to = dir.path().join("new");
    let plain = |quant| quantise::write(&from, &to, quant);
    // A broken link is something, too.
    std::os::unix::fs::symlink("nowhere", &to).unwrap();
    let exists = "new: exists already, and nothing is written over";
    assert_eq!(sentence(plain(Quant::Int8), dir.path()), exists);
    std::fs::remove_file(&to).unwrap();

    // What another job has begun.
    cut_off(&calibrated(&from, &to, 256), 4);
    let partial = dir.path().join("new.partial");
    let before = files(&partial);
    let error = sentence(plain(Quant::Int4), dir.path());
    assert!(
        error.contains("new.partial is int4 of checkpoint "),
        "{error}"
    );
    let other = calibrated(&from, &to, 512).run(&mut |_, _| true);
    let error = sentence(other, dir.path());
    assert!(error.contains("calibrated on 256 tokens"), "{error}");
    assert!(files(&partial) == before);

    // States that nobody wrote.
    let state = partial.join("unfinished.json");
    let written = std::fs::read_to_string(&state).unwrap();
    let job = calibrated(&from, &to, 256);
    let too_many = written.replace("\"units\":", "\"units\":9");
    for (hostile, part) in [
        ("", "is not what this program writes"),
        ("[1, 2", "is not what this program writes"),
        (
            "{\"job\": 7, \"units\": -1}",
            "is not what this program writes",
        ),
        (too_many.as_str(), "units are done, there are 7"),
    ] {
        std::fs::write(&state, hostile).unwrap();
        let error = sentence(job.run(&mut |_, _| true), dir.path());
        assert!(error.contains(part), "{error}");
    }
    std::fs::write(&state, &written).unwrap();
    let weights = partial.join("model.safetensors");
    std::fs::write(&weights, b"short").unwrap();
    let error = sentence(job.run(&mut |_, _| true), dir.path());
    assert!(error.contains("has 5 bytes, expected "), "{error}");
    // A disk that is full, or a device in place of the file.
    std::fs::remove_file(&weights).unwrap();
    std::os::unix::fs::symlink("/dev/full", &weights).unwrap();
    let error = sentence(job.run(&mut |_, _| true), dir.path());
    assert!(error.contains("is a link"), "{error}");
    std::fs::remove_file(&state).unwrap();
    std::fs::write(partial.join("letter"), "dear").unwrap();
    let error = sentence(job.run(&mut |_, _| true), dir.path());
    assert!(
        error.contains("has files but no unfinished.json"),
        "{error}"
    );
}

/// What lies in `new.partial` without a state, and is not empty, is somebody else's, even under the
/// name that the result would have.
#[test]
fn files_of_others_are_not_written_over() {
    let dir = TempDir::new();
    let (to, partial) = (dir.path().join("new"), dir.path().join("new.partial"));
    std::fs::create_dir(&partial).unwrap();
    let there = partial.join("model.gguf");
    let plain = |from: &Path| sentence(quantise::write(from, &to, Quant::Int8), dir.path());
    let no_state = "has files but no unfinished.json";
    // The source itself.
    let from = root("tests/data/gguf/f32.gguf");
    let source = std::fs::read(&from).unwrap();
    std::fs::write(&there, &source).unwrap();
    for from in [&there, &from] {
        let error = plain(from);
        assert!(error.contains(no_state), "{error}");
        assert!(std::fs::read(&there).unwrap() == source);
    }
    // A link, as what is to be written, and as what says how far it is.
    let other = dir.path().join("other");
    std::fs::rename(&there, &other).unwrap();
    std::os::unix::fs::symlink(&other, &there).unwrap();
    let error = plain(&from);
    assert!(error.contains(no_state), "{error}");
    std::fs::remove_file(&there).unwrap();
    std::os::unix::fs::symlink(&other, partial.join("unfinished.next")).unwrap();
    quantise::write(&from, &to, Quant::Int8).unwrap();
    assert!(std::fs::read(&other).unwrap() == source);
}

/// Work that is done is not done again because its name was taken meanwhile.
#[test]
fn a_name_that_is_taken_meanwhile_can_be_given_later() {
    let (dir, from) = (TempDir::new(), root("demo/hf"));
    let (whole, to) = (dir.path().join("whole"), dir.path().join("new"));
    calibrated(&from, &whole, 256)
        .run(&mut |_, _| true)
        .unwrap();
    let job = calibrated(&from, &to, 256);
    let outcome = job.run(&mut |_, what| {
        if what == "done" {
            std::fs::create_dir(&to).unwrap();
            std::fs::write(to.join("letter"), "dear").unwrap();
        }
        true
    });
    let error = sentence(outcome, dir.path());
    assert!(error.starts_with("new: Directory not empty"), "{error}");
    assert_eq!(files(&to).len(), 1);
    std::fs::remove_dir_all(&to).unwrap();
    let mut said = Vec::new();
    let outcome = job.run(&mut |_, what| {
        said.push(what.to_owned());
        true
    });
    outcome.unwrap();
    assert!(files(&to) == files(&whole));
    // No passage went through a layer again.
    assert!(said.iter().all(|what| !what.contains(':')), "{said:?}");
}

/// What was cut off is no checkpoint, unless that was between its name and its last step.
#[test]
fn an_unfinished_checkpoint_is_not_loaded() {
    let options = BuildOptions::default();
    let build = |at: &Path| Llama::build(at, None, &options, &mut |_| true);
    for from in ["demo/hf", "demo/meta", "tests/data/gguf/q8_0.gguf"].map(root) {
        let dir = TempDir::new();
        let to = dir.path().join("new");
        let mut job = calibrated(&from, &to, 256);
        job.calibration = None;
        cut_off(&job, 4);
        let partial = dir.path().join("new.partial");
        let mut inside = vec![partial.clone()];
        let names = std::fs::read_dir(&partial).unwrap().map(Result::unwrap);
        inside.extend(
            names
                .map(|e| e.path())
                .filter(|p| p.extension() == Some("gguf".as_ref())),
        );
        for path in inside {
            let error = sentence(build(&path).map(drop), dir.path());
            let want = "new.partial/unfinished.json: says that weights are missing: ";
            assert!(error.starts_with(want), "{error}");
        }
        job.run(&mut |_, _| true).unwrap();
        assert!(!to.join("unfinished.json").exists());
        std::fs::write(to.join("unfinished.json"), "{\"whole\": true}").unwrap();
        build(&to).unwrap();
    }
}

/// Nor is what was cut off before it said so.
#[test]
fn a_header_comes_after_the_word_that_all_is_missing() {
    let (dir, from) = (TempDir::new(), root("tests/data/gguf/q8_0.gguf"));
    let to = dir.path().join("new");
    let mut job = calibrated(&from, &to, 256);
    job.calibration = None;
    // In the way of that word.
    let in_the_way = dir.path().join("new.partial/unfinished.next");
    std::fs::create_dir_all(&in_the_way).unwrap();
    job.run(&mut |_, _| true).unwrap_err();
    let weights = dir.path().join("new.partial/model.gguf");
    assert_eq!(std::fs::metadata(&weights).unwrap().len(), 0);
    // Where the header is missing behind it, the job begins.
    std::fs::remove_dir(&in_the_way).unwrap();
    cut_off(&job, 1);
    std::fs::write(&weights, "").unwrap();
    job.run(&mut |_, _| true).unwrap();
    Llama::build(&to, None, &BuildOptions::default(), &mut |_| true).unwrap();
}

#[test]
fn the_new_directory_has_a_name() {
    let (dir, from) = (TempDir::new(), root("demo/hf"));
    for name in ["a/", "b//", "c/."] {
        let to = dir.path().join(name);
        let mut job = calibrated(&from, &to, 256);
        job.calibration = None;
        cut_off(&job, 4);
        let partial = format!("{}.partial", &name[..1]);
        assert!(dir.path().join(partial).is_dir(), "{name}");
        job.run(&mut |_, _| true).unwrap();
        assert!(to.join("model.safetensors").is_file(), "{name}");
        let error = sentence(job.run(&mut |_, _| true), dir.path());
        assert!(error.contains("exists already"), "{error}");
    }
    // A slash does not make of a broken link what it leads to.
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    let to = dir.path().join("link/");
    let error = sentence(quantise::write(&from, &to, Quant::Int8), dir.path());
    assert!(error.starts_with("link: exists already"), "{error}");
    for nameless in ["", "/", ".."] {
        let error = quantise::write(&from, Path::new(nameless), Quant::Int8).unwrap_err();
        let want = format!("the new directory is {nameless:?}, must be a path that ends in a name");
        assert_eq!(error.to_string(), want);
    }
    assert!(!Path::new(".partial").exists());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4);
}

#[test]
fn a_calibration_that_cannot_be_is_refused() {
    let (dir, from) = (TempDir::new(), root("demo/hf"));
    let to = dir.path().join("new");
    let mut job = calibrated(&from, &to, 256);
    job.quant = Quant::Int8;
    let error = sentence(job.run(&mut |_, _| true), dir.path());
    assert_eq!(error, "format is int8, must be int4, with a calibration");
    let mut job = calibrated(&from, &to, 256);
    job.calibration.as_mut().unwrap().text = "Once upon a time".into();
    let error = sentence(job.run(&mut |_, _| true), dir.path());
    assert!(error.contains("the text of the calibration is "), "{error}");
    assert!(files(dir.path()).is_empty());
}
