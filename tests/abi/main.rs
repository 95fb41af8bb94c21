//! The binary interface, as C programs see it: `tests/abi/*.c` compiled with the system's compiler
//! and run against the shared library, plainly, under sanitizers and under valgrind; and what the
//! library exports, needs and is called.
//!
//! The library is the one cargo built for this test, or that in `LLAMABI_LIB_DIR` (`make test`
//! gives the release build).

mod cuda;
#[path = "../support/emu/mod.rs"]
mod emu;
mod pages;
mod random_caller;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// What a program linked to `libllamabi.a` needs beside it, as llamabi.pc tells it;
/// tests/bindings/packaging.sh compares that with what rustc says.
fn native_static_libs() -> impl Iterator<Item = &'static str> {
    let template = include_str!("../../packaging/llamabi.pc.in");
    let line = template
        .lines()
        .find_map(|l| l.strip_prefix("Libs.private: "));
    line.expect("llamabi.pc.in has Libs.private").split(' ')
}

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the library: beside this test's executable.
fn library(name: &str) -> PathBuf {
    let dir = match std::env::var_os("LLAMABI_LIB_DIR") {
        Some(dir) => root().join(dir),
        None => std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .to_owned(),
    };
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: cargo build", path.display());
    path
}

/// A directory with the library under the names a linker and a loader look for.
fn link_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi");
        fs::create_dir_all(&dir).unwrap();
        for name in ["libllamabi.so", "libllamabi.so.0"] {
            let _ = fs::remove_file(dir.join(name));
            symlink(library("libllamabi.so"), dir.join(name)).unwrap();
        }
        dir
    })
}

/// Run a tool; a missing one is a failure that says how to get it.
fn run(command: &mut Command) -> Output {
    // Cargo's points at its own folders, where an older build of the library may lie.
    command.env_remove("LD_LIBRARY_PATH");
    let tool = command.get_program().to_owned();
    command.output().unwrap_or_else(|e| {
        panic!(
            "{}: {e}; `scripts/setup --test` installs it",
            tool.to_string_lossy()
        )
    })
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}

fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let program = link_dir().join(name);
    let mut command = Command::new(compiler);
    command
        .args(["-g", "-D_GNU_SOURCE"])
        .args(WARNINGS)
        .args(flags);
    command
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("tests/abi").join(source));
    command.arg("-o").arg(&program).arg("-L").arg(link_dir());
    command.arg(format!("-Wl,-rpath,{}", link_dir().display()));
    succeed(command.args(["-lllamabi", "-ldl", "-lpthread"]));
    program
}

/// How a program is run.
#[derive(Clone, Copy)]
enum Under {
    Nothing,
    Sanitizers,
    Valgrind,
}

fn run_program(name: &str, under: Under) {
    let model = match (under, name) {
        // A small one, because valgrind would spend most of its time on the products of the other.
        // `text` counts on float32, and the prompt of `cancel` has to take a while.
        (Under::Valgrind, name) if !["text", "cancel"].contains(&name) => {
            "tests/data/adapters/base"
        }
        _ => "tests/data/reference/mha-f32/meta",
    };
    let model = root().join(model);
    assert!(model.is_dir(), "{} is missing", model.display());
    let source = format!("{name}.c");
    let mut command = Command::new("timeout");
    command.args(["-k", "10", "1800"]);
    match under {
        Under::Nothing => {
            command.arg(compile("cc", &source, name, &["-std=c11", "-O1"]));
        }
        Under::Sanitizers => {
            let flags = [
                "-std=c11",
                "-fsanitize=address,undefined",
                "-fno-sanitize-recover=all",
            ];
            let program = compile("cc", &source, &format!("{name}-asan"), &flags);
            let symbols = succeed(Command::new("nm").arg(&program));
            assert!(
                symbols.contains("__asan_init"),
                "AddressSanitizer is not on"
            );
            assert!(
                symbols.contains("__ubsan_handle"),
                "UndefinedBehaviorSanitizer is not on"
            );
            command.arg(program);
        }
        Under::Valgrind => {
            let program = compile(
                "cc",
                &source,
                &format!("{name}-valgrind"),
                &["-std=c11", "-O1"],
            );
            run(Command::new("valgrind").arg("--version"));
            command.args([
                "valgrind",
                "--quiet",
                "--error-exitcode=9",
                "--trace-children=no",
            ]);
            command.args([
                "--leak-check=full",
                "--errors-for-leak-kinds=definite,indirect",
            ]);
            command.args(["--show-leak-kinds=definite,indirect", "--fair-sched=yes"]);
            command.arg(program).env("LLAMABI_TEST_THREADS", "1");
        }
    }
    command
        .arg(&model)
        .env("LLAMABI_SO", link_dir().join("libllamabi.so"));
    let out = succeed(&mut command);
    assert!(out.contains("checks passed"), "{name} says {out:?}");
    print!("{out}");
}

macro_rules! programs {
    ($($under:ident = $mode:ident: $($name:ident)*;)*) => {
        $(mod $under {
            $(#[test] fn $name() { super::run_program(stringify!($name), super::Under::$mode) })*
        })*
    };
}
// AddressSanitizer's allocator may be left locked in the child of a fork, and valgrind follows the
// children for minutes; what `fork` tests is the table, which neither would see more of. Both need
// more address space than `memory`, `grammar_memory` and `quantise` leave them. Tests start in the
// order of their names: `memcheck::unread`, which takes a minute, is not to be the last one.
programs! {
    memcheck = Valgrind: null tails dl text stream unread cancel callback threads;
    plain = Nothing: null tails dl ranks copies text chat bounded compress grammar stream unread cancel callback decide threads fork fork_callback pcancel memory grammar_memory limits allocations quantise stack;
    sanitizers = Sanitizers: null tails dl text chat bounded compress grammar stream unread cancel callback decide threads;
}

#[test]
fn header_stands_alone_in_every_dialect() {
    let include = format!("-I{}", root().join("include").display());
    let dialects = [
        ("header.c", ["-std=c99", "-std=c11", "-std=c17"].as_slice()),
        (
            "header.cpp",
            ["-std=c++11", "-std=c++17", "-std=c++20"].as_slice(),
        ),
        ("layout.c", ["-std=c11", "-std=c17"].as_slice()),
    ];
    for compilers in [["gcc", "g++"], ["clang", "clang++"]] {
        for (source, standards) in dialects {
            for standard in standards {
                let compiler = compilers[usize::from(source.ends_with("cpp"))];
                let mut command = Command::new(compiler);
                command
                    .args(WARNINGS)
                    .args([standard, "-fsyntax-only", &include]);
                succeed(command.arg(root().join("tests/abi").join(source)));
            }
        }
    }
}

#[test]
fn versions_agree_and_cxx_links() {
    for (compiler, source, standard) in [
        ("cc", "header.c", "-std=c99"),
        ("c++", "header.cpp", "-std=c++17"),
    ] {
        let program = compile(compiler, source, &source.replace('.', "-"), &[standard]);
        let out = succeed(&mut Command::new(program));
        assert_eq!(
            out.trim(),
            format!("header: version {}, ABI 0", env!("CARGO_PKG_VERSION"))
        );
    }
}

#[test]
fn static_library_links() {
    let program = link_dir().join("null-static");
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-D_GNU_SOURCE", "-I"])
        .arg(root().join("include"));
    command
        .arg(root().join("tests/abi/null.c"))
        .arg("-o")
        .arg(&program);
    succeed(
        command
            .arg(library("libllamabi.a"))
            .args(native_static_libs()),
    );
    let out = succeed(&mut Command::new(&program));
    assert!(out.contains("checks passed"), "{out}");
    let needed = succeed(Command::new("readelf").arg("-d").arg(&program));
    assert!(!needed.contains("libllamabi"), "{needed}");
}

#[test]
fn exports_are_the_committed_list() {
    let out = succeed(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library("libllamabi.so")),
    );
    let mut exported: Vec<&str> = out
        .lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .collect();
    exported.sort_unstable();
    let committed = fs::read_to_string(root().join("tests/symbols.txt")).unwrap();
    let committed: Vec<&str> = committed.lines().collect();
    assert_eq!(
        exported, committed,
        "exported (left) and tests/symbols.txt (right) differ"
    );
    let header = fs::read_to_string(root().join("include/llamabi.h")).unwrap();
    for symbol in committed {
        assert!(
            header.contains(&format!("{symbol}(")),
            "{symbol} is not in the header"
        );
    }
}

/// Hosts must not care which C++ runtime or driver there is.
#[test]
fn needs_only_what_every_linux_has() {
    let out = succeed(
        Command::new("readelf")
            .arg("-d")
            .arg(library("libllamabi.so")),
    );
    let quoted = |tag: &str| -> Vec<String> {
        let lines = out.lines().filter(|l| l.contains(tag));
        lines
            .filter_map(|l| Some(l.split_once('[')?.1.split_once(']')?.0.to_owned()))
            .collect()
    };
    let allowed = [
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
    ];
    let needed = quoted("(NEEDED)");
    assert!(
        !needed.is_empty() && needed.iter().all(|n| allowed.contains(&&**n)),
        "{needed:?}"
    );
    assert_eq!(
        quoted("(SONAME)"),
        [format!("libllamabi.so.{}", abi_version())]
    );
    assert!(out.contains("NODELETE"), "{out}");
}

fn abi_version() -> u32 {
    llamabi::capi::LLAMABI_ABI_VERSION
}

/// Every export's body is one `guard!`, so no panic can cross into C.
#[test]
fn every_export_is_guarded() {
    let committed = fs::read_to_string(root().join("tests/symbols.txt")).unwrap();
    let mut exports = Vec::new();
    let mut paths = vec![root().join("src/capi")];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        for part in source.split("#[unsafe(no_mangle)]").skip(1) {
            let name = part
                .split("fn ")
                .nth(1)
                .unwrap()
                .split('(')
                .next()
                .unwrap()
                .to_owned();
            let body = part.split_once("{\n").unwrap().1;
            let code = body
                .lines()
                .map(str::trim)
                .find(|l| !l.starts_with("//"))
                .unwrap();
            assert!(
                code.starts_with("guard!("),
                "{}: {name} begins with {code:?}",
                path.display()
            );
            // The guard is the whole body: what follows it closes the function.
            let end = body.split_once("\n}\n").unwrap().0.trim_end();
            assert!(
                end.ends_with("})"),
                "{}: {name} goes on after its guard",
                path.display()
            );
            exports.push(name);
        }
    }
    exports.sort_unstable();
    assert_eq!(exports, committed.lines().collect::<Vec<_>>());
}
