//! The program `llamabi-quantize` itself: its arguments, what it says, how it ends.

use super::root;
use crate::checkpoints::{TempDir, reference};
use std::path::Path;
use std::process::{Command, Output};

fn run(args: &[&Path]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_llamabi-quantize"));
    program.args(args).output().unwrap()
}

#[test]
fn the_program_writes_says_and_refuses() {
    let dir = TempDir::new();
    let (from, to) = (root("demo/meta"), dir.path().join("new"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let output = run(&[&from, &to, "int8".as_ref()]);
    let said = text(&output.stderr);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{said}"
    );
    assert!(said.contains(" % layer 3\n"), "{said}");
    let output = run(&[&from, &to, "int8".as_ref()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("exists already"), "{said}");
    let output = run(&["--version".as_ref()]);
    let version = concat!("llamabi-quantize ", env!("CARGO_PKG_VERSION"), "\n");
    assert!(output.status.success() && text(&output.stdout) == version);
    for (option, sentence) in [
        ("--fast", "there is no option \"--fast\"\n"),
        ("--tokens=5", "there is no option \"--tokens=5\"\n"),
        ("--tokens", "--tokens has no value\n"),
        (
            "--quiet",
            "SOURCE, NEW and a format are 3 arguments, not 2\n",
        ),
    ] {
        let output = run(&[&from, &to, option.as_ref()]);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(
            said.starts_with(&format!("llamabi-quantize: {sentence}")),
            "{said}"
        );
    }
    for n in ["0", "-5", "many"] {
        let output = run(&["--tokens".as_ref(), n.as_ref(), &from, &to, "int4".as_ref()]);
        let said = text(&output.stderr);
        let sentence = format!("--tokens is {n:?}, must be a number above 0");
        assert!(output.status.code() == Some(2) && said.contains(&sentence));
    }
    for wrong in ["int3", "f32"] {
        let output = run(&[&from, &to, wrong.as_ref()]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
        let said = text(&output.stderr);
        assert!(said.contains("usage: "), "{said}");
        assert!(
            said.contains(&format!("the format is {wrong:?}, must be")),
            "{said}"
        );
    }
    // Nobody shall take what it writes for calibrated.
    let tokens: [&Path; 5] = [
        "--tokens".as_ref(),
        "512".as_ref(),
        &from,
        &dir.path().join("plain"),
        "int4".as_ref(),
    ];
    let output = run(&tokens);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("it needs --calibrate or --text"), "{said}");
    assert!(!tokens[3].exists());
    // Of a checkpoint without a tokenizer, and with one that is named.
    let (tied, named) = (reference("variants/tied"), dir.path().join("named"));
    let tokenizer = reference("mha-f32/hf/tokenizer.model");
    let output = run(&[&tied, &dir.path().join("bare"), "int8".as_ref()]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("bare has no tokenizer, as "), "{said}");
    let option: &Path = "--tokenizer".as_ref();
    let output = run(&[option, &tokenizer, &tied, &named, "int8".as_ref()]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("has no tokenizer"), "{said}");
    assert!(named.join("tokenizer.model").is_file());
    let none = dir.path().join("none");
    let output = run(&["--text".as_ref(), &none, &from, &to, "int4".as_ref()]);
    let said = text(&output.stderr);
    assert!(said.contains("/none: No such file"), "{said}");
    let output = run(&["--help".as_ref()]);
    assert!(output.status.success() && text(&output.stdout).starts_with("usage: "));
    // Progress that cannot be said stops nothing; help that cannot be is a failure.
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    let mut program = Command::new(env!("CARGO_BIN_EXE_llamabi-quantize"));
    let status = program.args([&from, &dir.path().join("b"), Path::new("int4")]);
    assert!(status.stderr(full()).status().unwrap().success());
    let mut program = Command::new(env!("CARGO_BIN_EXE_llamabi-quantize"));
    let status = program.arg("--help").stdout(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
}
