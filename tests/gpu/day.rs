//! Runs the part of `tests/gpu/day.sh` that needs no PyTorch, on the stand-in driver: it works,
//! what it reports is true, and no failure passes for success.

use crate::emu::{build, standin};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo built for this test, or that in `LLAMABI_LIB_DIR`.
fn library() -> PathBuf {
    let dir = match std::env::var_os("LLAMABI_LIB_DIR") {
        Some(dir) => Path::new(env!("CARGO_MANIFEST_DIR")).join(dir),
        None => std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .to_owned(),
    };
    let path = dir.join("libllamabi.so");
    assert!(path.exists(), "{} is missing: cargo build", path.display());
    path
}

/// The command, which writes into `tmp`; `settings` are the stand-in driver's.
fn command(tmp: &Path, arguments: &[&str], settings: &str) -> Command {
    let kernels = tmp.join("kernels");
    standin::kernel_folder(&kernels);
    let driver = build::driver();
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gpu/day.sh"));
    command
        .args(arguments)
        .arg("--tiny")
        .arg(driver.parent().unwrap())
        .arg(tmp.join("out"))
        .env("LLAMABI_LIBRARY", library())
        .env("LLAMABI_KERNELS", &kernels)
        .env("EMU_CUDA", settings)
        // Cargo's value names its own folders.
        .env_remove("LD_LIBRARY_PATH");
    command
}

/// Whether it succeeded, and its record.
fn day(name: &str, arguments: &[&str], settings: &str) -> (bool, String) {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-day-{name}"));
    let _ = std::fs::remove_dir_all(&tmp);
    let _share = build::Share::new();
    let output = command(&tmp, arguments, settings).output().expect("bash");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let record = std::fs::read_to_string(tmp.join("out/record.txt"));
    let record = record.unwrap_or_else(|e| {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("record.txt: {e}; {words}{errors}")
    });
    (output.status.success(), record + &words)
}

/// The outcome in the row of a step.
fn outcome<'a>(record: &'a str, step: &str) -> &'a str {
    let row = record.lines().find(|line| line.starts_with(step));
    row.unwrap_or_else(|| panic!("no row for {step}: {record}"))[36..46].trim()
}

/// The predicted bytes and launches are those of the library and its driver.
#[test]
fn the_cost_model_counts_what_is_launched() {
    // With the shared memory that the kernels for compute capability 9.0 take.
    let (content, record) = day(
        "cost",
        &["--steps", "device,short,fp8,cost,soak,sanitizer"],
        "shared=232448",
    );
    assert!(content, "{record}");
    assert_eq!(outcome(&record, "device"), "ok", "{record}");
    assert_eq!(outcome(&record, "fp8"), "ok", "{record}");
    assert_eq!(outcome(&record, "cost"), "ok", "{record}");
    assert_eq!(outcome(&record, "short"), "ok", "{record}");
    assert_eq!(outcome(&record, "soak: two handles"), "ok", "{record}");
    assert_eq!(outcome(&record, "soak: beside torch"), "skipped");
    assert_eq!(outcome(&record, "sanitizer: memcheck"), "skipped");
    assert!(record.contains("5 passed, 0 failed, 5 skipped"), "{record}");
    assert!(
        record.contains("REHEARSAL on a stand-in driver"),
        "{record}"
    );
}

#[test]
fn a_device_that_is_not_usable_fails_every_step() {
    let (content, record) = day("none", &["--steps", "device,cost,speed"], "devices=0");
    assert!(!content, "{record}");
    for step in ["device", "cost", "speed"] {
        assert_eq!(outcome(&record, step), "FAILED", "{record}");
    }
    assert!(record.contains("0 passed, 3 failed, 0 skipped"), "{record}");
}

/// After an error in the middle of a step, that step has failed and the others still run.
#[test]
fn what_fails_leaves_the_rest() {
    let fails = "fail=work:2500:700";
    let (content, record) = day("middle", &["--steps", "device,cost,sanitizer"], fails);
    assert!(!content, "{record}");
    assert_eq!(outcome(&record, "device"), "ok", "{record}");
    assert_eq!(outcome(&record, "cost"), "FAILED", "{record}");
    assert_eq!(outcome(&record, "sanitizer: memcheck"), "skipped");
    // A short case under each switch says what to look at.
    for switch in ["CLUSTERS", "QUARTERS", "HOPPER", "PDL", "GRAPHS", "AHEAD"] {
        outcome(&record, &format!("short: LLAMABI_CUDA_{switch}=0"));
    }
}

/// What is known when it is killed is in the record, which is there before the first step ends.
#[test]
fn a_kill_leaves_a_record() {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-day-killed");
    let _ = std::fs::remove_dir_all(&tmp);
    let mut child = command(&tmp, &["--steps", "device,reference"], "")
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("bash");
    let path = tmp.join("out/record.txt");
    let began = std::time::Instant::now();
    let mut seen = String::new();
    while !seen.contains("1 passed") {
        assert!(began.elapsed().as_secs() < 100, "no record: {seen}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = std::fs::read_to_string(&path).unwrap_or_default();
        if seen.is_empty() && now.contains("passed") {
            assert!(now.contains("0 passed, 0 failed, 0 skipped"), "{now}");
        }
        seen = now;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let record = std::fs::read_to_string(path).unwrap();
    assert_eq!(outcome(&record, "device"), "ok", "{record}");
    assert!(record.contains("1 passed, 0 failed"), "{record}");
}

/// A fallback that the library only logs fails the step.
#[test]
fn a_warning_fails_its_step() {
    let fails = "fail=cuGraphInstantiateWithFlags:1:2";
    let (content, record) = day("warning", &["--steps", "device"], fails);
    assert!(!content, "{record}");
    assert_eq!(outcome(&record, "device"), "FAILED", "{record}");
}

#[test]
fn what_there_is_no_time_for_has_failed() {
    let (content, record) = day("late", &["--steps", "device,cost", "--seconds", "1"], "");
    assert!(!content, "{record}");
    assert_eq!(outcome(&record, "device"), "no time", "{record}");
    assert!(record.contains("0 passed, 2 failed, 0 skipped"), "{record}");
}
