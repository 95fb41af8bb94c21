//! What lies beside the weights: files that are copied, tokenizers that are named.

use super::{calibrated, copied, cut_off, files, root};
use crate::checkpoints::{TempDir, reference, sentence};
use llamabi::llama::quantise::{self, Job};
use llamabi::quant::Quant;
use llamabi::{BuildOptions, Llama, checkpoint, tokenizer};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Whoever may read the source only may go on with what was cut off, too.
#[test]
fn what_is_copied_has_permissions_of_its_own() {
    let dir = TempDir::new();
    let from = copied(&root("demo/hf"), dir.path().join("from"));
    let tokenizer = from.join("tokenizer.model");
    std::fs::set_permissions(&tokenizer, Permissions::from_mode(0o444)).unwrap();
    let to = dir.path().join("new");
    let job = calibrated(&from, &to, 256);
    cut_off(&job, 4);
    let copy = dir.path().join("new.partial/tokenizer.model");
    let mode = copy.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o200, 0o200, "{mode:o}");
    // What is there is replaced, and not written through.
    let letter = dir.file("letter", "dear");
    std::fs::remove_file(&copy).unwrap();
    std::os::unix::fs::symlink(&letter, &copy).unwrap();
    job.run(&mut |_, _| true).unwrap();
    assert!(std::fs::read(&letter).unwrap() == b"dear");
    let [want, got] = [&tokenizer, &to.join("tokenizer.model")].map(|path| {
        assert!(path.symlink_metadata().unwrap().is_file());
        std::fs::read(path).unwrap()
    });
    assert!(want == got);
}

/// Of the files that lie in a folder of their own there is one.
#[test]
fn a_template_for_tools_is_copied() {
    let dir = TempDir::new();
    let from = copied(&reference("mha-f32/hf"), dir.path().join("from"));
    let folder = from.join("additional_chat_templates");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("tool_use.jinja"), "tools").unwrap();
    std::fs::write(from.join("chat_template.jinja"), "default").unwrap();
    std::fs::write(
        from.join("special_tokens_map.json"),
        r#"{"pad_token": "<unk>"}"#,
    )
    .unwrap();
    let to = dir.path().join("new");
    quantise::write(&from, &to, Quant::Int4).unwrap();
    let template = checkpoint::open(&to).unwrap().chat_template().unwrap();
    let template = template.unwrap();
    assert_eq!(template.default, "default");
    assert_eq!(template.tool_use.as_deref(), Some("tools"));
    assert_eq!(tokenizer::open_in(&to).unwrap().pad_id(), 0);
}

/// Meta's own layout: the size of the vocabulary is the tokenizer's, which lies one directory up.
#[test]
fn a_tokenizer_that_lies_elsewhere_is_named_and_copied() {
    let dir = TempDir::new();
    let from = copied(&root("demo/meta"), dir.path().join("from"));
    let tokenizer = dir.path().join("spiece.model");
    std::fs::rename(from.join("tokenizer.model"), &tokenizer).unwrap();
    let params = std::fs::read_to_string(from.join("params.json")).unwrap();
    let params = params.replace("1024", "-1");
    std::fs::write(from.join("params.json"), params).unwrap();

    let to = dir.path().join("new");
    let plain = |tokenizer| Job {
        from: &from,
        tokenizer,
        to: &to,
        quant: Quant::Int4,
        calibration: None,
    };
    let mut without = calibrated(&from, &to, 256);
    let missing = "from: no tokenizer.model, tokenizer.json or tekken.json; --tokenizer FILE names \
                   one that lies elsewhere";
    for job in [&plain(None), &without] {
        assert_eq!(sentence(job.run(&mut |_, _| true), dir.path()), missing);
    }
    let none = dir.path().join("none.model");
    let error = sentence(plain(Some(&none)).run(&mut |_, _| true), dir.path());
    assert!(error.starts_with("none.model: No such file"), "{error}");

    plain(Some(&tokenizer)).run(&mut |_, _| true).unwrap();
    let calibrated = dir.path().join("calibrated");
    (without.to, without.tokenizer) = (&calibrated, Some(&*tokenizer));
    without.run(&mut |_, _| true).unwrap();
    for to in [to, calibrated] {
        let names: Vec<String> = files(&to).into_keys().collect();
        assert_eq!(
            names,
            ["model.safetensors", "params.json", "tokenizer.model"]
        );
        let options = BuildOptions::default();
        Llama::build(&to, None, &options, &mut |_| true).unwrap();
    }
    // Another key that is wrong is not blamed on the tokenizer.
    std::fs::write(from.join("params.json"), "{\"vocab_size\": -1}").unwrap();
    let to = dir.path().join("other");
    let error = sentence(quantise::write(&from, &to, Quant::Int4), dir.path());
    assert!(error.contains("`vocab_size` is -1"), "{error}");
}

/// Of the checkpoint's own tokenizer nothing is left; its chat template is, which may be in a file
/// of the tokenizer.
#[test]
fn a_tokenizer_that_is_named_takes_the_place_of_another() {
    let dir = TempDir::new();
    let from = copied(&root("demo/hf"), dir.path().join("from"));
    let other = copied(&root("demo/hf"), dir.path().join("other"));
    std::fs::write(from.join("added_tokens.json"), "{}").unwrap();
    let config = "{\"chat_template\": \"own\", \"legacy\": true}";
    std::fs::write(from.join("tokenizer_config.json"), config).unwrap();
    let config = "{\"chat_template\": \"other\", \"add_bos_token\": false}";
    std::fs::write(other.join("tokenizer_config.json"), config).unwrap();
    let (to, tokenizer) = (dir.path().join("new"), other.join("tokenizer.model"));
    let mut job = calibrated(&from, &to, 256);
    job.calibration = None;
    cut_off(&job, 4);
    job.tokenizer = Some(&tokenizer);
    job.run(&mut |_, _| true).unwrap();
    let written = files(&to);
    assert!(!written.contains_key("added_tokens.json"));
    let config: serde_json::Value =
        serde_json::from_slice(&written["tokenizer_config.json"]).unwrap();
    let want = serde_json::json!({"chat_template": "own", "add_bos_token": false});
    assert_eq!(config, want);
    let template = checkpoint::open(&to).unwrap().chat_template().unwrap();
    assert_eq!(template.unwrap().default, "own");
    assert!(!tokenizer::open_in(&to).unwrap().adds_bos());
    // The checkpoint's template may lie where it is read last.
    std::fs::remove_file(from.join("tokenizer_config.json")).unwrap();
    let alone = "{\"chat_template\": \"alone\"}";
    std::fs::write(from.join("chat_template.json"), alone).unwrap();
    let to = dir.path().join("alone");
    let mut job = calibrated(&from, &to, 256);
    (job.calibration, job.tokenizer) = (None, Some(&*tokenizer));
    job.run(&mut |_, _| true).unwrap();
    let template = checkpoint::open(&to).unwrap().chat_template().unwrap();
    assert_eq!(template.unwrap().default, "alone");
    assert!(!tokenizer::open_in(&to).unwrap().adds_bos());

    // One that does not fit, and one for a file that has its own.
    let refused = |from: &Path| {
        let to = dir.path().join("refused");
        let mut job = calibrated(from, &to, 256);
        (job.calibration, job.tokenizer) = (None, Some(&*tokenizer));
        let error = sentence(job.run(&mut |_, _| true), dir.path());
        assert!(!to.exists());
        error
    };
    let error = refused(&reference("mha-f32/hf"));
    let want = "other/tokenizer.model: the tokenizer has 1024 pieces, the model's vocabulary only ";
    assert!(error.starts_with(want), "{error}");
    let error = refused(&root("tests/data/gguf/q8_0.gguf"));
    let want = "the tokenizer is other/tokenizer.model, must be left out for a GGUF file, which \
                has its own in it";
    assert_eq!(error, want);
}
