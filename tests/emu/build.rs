//! Compiles `kernels/emu`: the emulator, and the stand-in driver on top of it. Each file again only after
//! a change of it or of a header. (U)
#![allow(unsafe_code)]
#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// The emulator, a library with the functions of `kernels/emu/emu.h`.
pub fn emulator() -> PathBuf {
    build().0
}

/// The stand-in driver, called as the real one.
pub fn driver() -> PathBuf {
    build().1
}

/// `kernels/test.sh` adds this to its own time: the emulator's share of a test run.
fn tell_time_at_exit() {
    static START: OnceLock<Instant> = OnceLock::new();
    extern "C" fn tell() {
        let name = concat!("emulator-seconds-", env!("CARGO_CRATE_NAME"));
        if let Some(start) = START.get() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let _ = std::fs::write(path, format!("{}\n", start.elapsed().as_secs()));
        }
    }
    if START.set(Instant::now()).is_ok() {
        // SAFETY: a function of this executable, which needs nothing that is gone by then.
        unsafe { libc::atexit(tell) };
    }
}

/// The emulated device with a sanitizer, `asan` or `tsan`, and maybe a planted bug.
pub fn sanitized(what: &[&str]) -> PathBuf {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/test.sh"))
        .arg("library")
        .args(what)
        .output()
        .expect("kernels/test.sh");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "kernels/test.sh library {what:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    PathBuf::from(text.lines().last().expect("a path"))
}

fn build() -> (PathBuf, PathBuf) {
    tell_time_at_exit();
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emu");
    std::fs::create_dir_all(&dir).unwrap();
    let lock = std::fs::File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let (emu, cuda) = (kernels.join("emu"), kernels.join("emu/cuda"));
    let headers = [&kernels, &emu, &cuda].map(|dir| files(dir, "h")).concat();
    let fibers = emu.join("fibers.cpp"); // cuda/fibers.cpp includes it
    let included = headers.iter().chain([&fibers]);
    let newest = included.filter_map(|path| modified(path)).max();
    let object = |source: &PathBuf| {
        let parent = source.parent().unwrap().file_name().unwrap();
        let name = source.file_stem().unwrap().display();
        dir.join(format!("{}-{name}.o", parent.display()))
    };
    let emulator = [files(&kernels, "cu"), files(&emu, "cpp")].concat();
    let mut driver = [&emulator[..], &files(&cuda, "cpp")].concat();
    driver.retain(|source| *source != fibers);
    let mut stale: Vec<_> = [&emulator[..], &driver].concat();
    stale.sort();
    stale.dedup();
    let stale: Vec<_> = stale
        .into_iter()
        .map(|source| (object(&source), source))
        .filter(|(o, s)| modified(o) < newest || modified(o) < modified(s))
        .collect();
    // Two at a time.
    for pair in stale.chunks(2) {
        std::thread::scope(|scope| {
            for (object, source) in pair {
                scope.spawn(move || compile(source, object));
            }
        });
    }
    let objects = |sources: &[PathBuf]| sources.iter().map(object).collect::<Vec<_>>();
    let (emulator, driver) = (objects(&emulator), objects(&driver));
    let libraries = (dir.join("libemu.so"), dir.join("libcuda.so.1"));
    link(&libraries.0, &emulator);
    link(&libraries.1, &driver);
    libraries
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

fn compile(source: &Path, object: &Path) {
    let mut command = Command::new("c++");
    command.args([
        "-std=c++17",
        "-O2",
        "-march=native",
        "-fPIC",
        "-fno-strict-aliasing",
    ]);
    command.args(["-ffp-contract=off", "-Wno-unknown-pragmas"]);
    run(command
        .args(["-x", "c++", "-c"])
        .arg(source)
        .arg("-o")
        .arg(object));
}

fn link(library: &Path, objects: &[PathBuf]) {
    if objects.iter().all(|o| modified(o) < modified(library)) {
        return;
    }
    // A program that has the old one open keeps it.
    let _ = std::fs::remove_file(library);
    let mut command = Command::new("c++");
    command.args(["-shared", "-Wl,-Bsymbolic", "-o"]);
    run(command.arg(library).args(objects));
}

fn run(command: &mut Command) {
    let output = command.output().expect("a C++ compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}
