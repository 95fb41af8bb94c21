//! Link settings of the shared library: SONAME, symbol binding, and the directory of libstdc++.a.
//! Also compiles the GPU kernels if there is an nvcc, and takes their names and constants from
//! `kernels/params.h`.

use std::collections::HashMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Must equal `LLAMABI_ABI_VERSION` in `src/capi/types/status.rs`; a test compares them through
/// `readelf`.
const ABI_VERSION: u32 = 0;

/// Whether GPU kernels are compiled in: `auto` (where an nvcc is installed), `none`, or `required`.
/// The Makefile sets it to KERNELS.
const CHOICE: &str = "LLAMABI_BUILD_KERNELS";

/// Where `scripts/nvcc` puts the one that it fetches.
const FETCHED: &str = "build/nvcc/nvidia/cu13/bin/nvcc";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in [
        format!("-Wl,-soname,libllamabi.so.{ABI_VERSION}"),
        // Calls of ours to functions that we export never land in another library of the same
        // process.
        "-Wl,-Bsymbolic".into(),
        // What dependencies export for C (llguidance does) stays inside.
        "-Wl,--exclude-libs,ALL".into(),
        // dlclose would unmap code that Rust's thread-local destructors still point to.
        "-Wl,-z,nodelete".into(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    if let Some(dir) = libstdcxx_dir() {
        println!("cargo:rustc-link-search=native={dir}");
    }
    contract();
    kernels();
}

/// Writes what `src/backend/gpu` takes from `kernels/params.h`: the kernels with the threads of
/// their blocks, and the constants. A unit test compares both with what the C compiler makes of the
/// file.
fn contract() {
    let text = fs::read_to_string("kernels/params.h").expect("kernels/params.h");
    let text = text.replace("\\\n", " ");
    let lines = || {
        text.lines()
            .map(|line| line.split("//").next().unwrap_or(""))
    };
    let mut lists = HashMap::new();
    let mut constants = Vec::new();
    for line in lines() {
        if let Some(macro_) = line.strip_prefix("#define GPU_") {
            match macro_.split_once(") ") {
                Some((head, body)) => {
                    let (name, arguments) = head.split_once('(').expect("a macro's arguments");
                    lists.insert(format!("GPU_{name}"), (arguments, body));
                }
                None => constants.extend(macro_.split_once(' ')),
            }
        } else if let Some(entries) = line.strip_prefix("    GPU_") {
            constants.extend(entries.split_once(" = "));
        }
    }
    let mut kernels = Vec::new();
    expand(&lists, "GPU_KERNELS", "", &mut kernels);
    let (mut names, mut threads) = (String::new(), String::new());
    for (name, n) in kernels {
        let _ = write!(names, "{name:?}, ");
        let _ = write!(threads, "{n}, ");
    }
    let (mut consts, mut all) = (String::new(), String::new());
    for (name, value) in constants {
        let value = value.trim_end().trim_end_matches([',', 'u']);
        let kind = if value.starts_with('-') { "i32" } else { "u32" };
        let _ = writeln!(
            consts,
            "pub(in crate::backend::gpu) const GPU_{name}: {kind} = {value};"
        );
        let _ = write!(all, "(\"GPU_{name}\", {value}), ");
    }
    write(
        "kernel_list.rs",
        &format!(
            "/// Every kernel of `GPU_KERNELS` in `kernels/params.h`.\n\
         pub const KERNELS: &[&str] = &[{names}];\n\
         /// Threads of a block of each.\n\
         const THREADS: &[u32] = &[{threads}];\n"
        ),
    );
    write(
        "constants.rs",
        &format!("{consts}#[cfg(test)]\npub const CONSTANTS: &[(&str, i64)] = &[{all}];\n"),
    );
}

/// Adds the kernels of a list of `kernels/params.h`, whose last parameter stands for `dtype`.
fn expand<'a>(
    lists: &HashMap<String, (&'a str, &'a str)>,
    list: &str,
    dtype: &str,
    kernels: &mut Vec<(String, &'a str)>,
) {
    // The file is empty in a test of this script.
    let Some((parameters, body)) = lists.get(list) else {
        return;
    };
    let parameter = parameters.rsplit(", ").next().unwrap_or("");
    for call in body.split(')').filter(|call| !call.trim().is_empty()) {
        let (callee, arguments) = call.split_once('(').expect("a call");
        let arguments: Vec<&str> = arguments.split(", ").collect();
        match callee.trim() {
            "X" => {
                let name = arguments[0].replace(&format!("##{parameter}"), dtype);
                kernels.push((name.replace("##", ""), arguments[2]));
            }
            list => expand(lists, list, arguments[1], kernels),
        }
    }
}

/// Directory of the C++ compiler's static libstdc++ (.cargo/config.toml asks for that library by
/// name). `scripts/dist` asks for another one, which its compiler finds itself.
fn libstdcxx_dir() -> Option<String> {
    println!("cargo:rerun-if-env-changed=CXX");
    println!("cargo:rerun-if-env-changed=CXXSTDLIB");
    if env::var("CXXSTDLIB").is_ok_and(|library| !library.ends_with("stdc++")) {
        return None;
    }
    let cxx = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let out = Command::new(cxx)
        .arg("-print-file-name=libstdc++.a")
        .output()
        .ok()?;
    let file = String::from_utf8(out.stdout).ok()?;
    let dir = Path::new(file.trim()).parent()?.to_str()?.to_owned();
    (!dir.is_empty()).then_some(dir)
}

/// Compiles every `kernels/*.cu` and writes the table that `src/backend/gpu/images.rs` includes.
/// Without nvcc the table is empty.
fn kernels() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // The files are listed instead of the directory, because it holds the emulator and its tests
    // too. A new kernel changes params.h as well.
    let mut sources = files("kernels", "cu");
    let mut others = files("kernels", "h");
    others.push("kernels/nvcc.flags".into());
    for path in sources.iter().chain(&others) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    for name in [CHOICE, "LLAMABI_NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let nvcc = match choose() {
        Ok(nvcc) => nvcc,
        Err(reason) => {
            let built = format!("built without GPU kernels ({reason})");
            return write_table(&built, 0, &[]);
        }
    };
    assert!(!sources.is_empty(), "there is no kernels/*.cu");
    let (version, release) = version(&nvcc);
    let major = release.split('.').next().and_then(|n| n.parse().ok());
    let major: u32 = major.unwrap_or_else(|| panic!("{}: release {release}", nvcc.display()));
    let name = |path: &Path| {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let names: Vec<String> = sources.iter().map(|path| name(path)).collect();
    // Files that take longest come first, so that none runs alone at the end: those with the most
    // kernels.
    let count = |path: &PathBuf| {
        fs::read_to_string(path).map_or(0, |text| text.matches("\nKERNEL").count())
    };
    sources.sort_by_cached_key(|path| std::cmp::Reverse(count(path)));
    let queue = Mutex::new(sources.into_iter());
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok());
    std::thread::scope(|scope| {
        for _ in 0..jobs.unwrap_or(1usize).max(1) {
            scope.spawn(|| {
                loop {
                    let Some(source) = queue.lock().ok().and_then(|mut q| q.next()) else {
                        return;
                    };
                    let fatbin = out.join(name(&source)).with_extension("fatbin");
                    compile(&nvcc, &version, &source, &others, &fatbin);
                }
            });
        }
    });
    let built = format!("built with GPU kernels (nvcc {release})");
    // The driver interface that loads them: that of nvcc's major version.
    write_table(&built, 1000 * major, &names);
}

/// Files of a directory with this extension, in order.
fn files(dir: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}

/// The nvcc that the user's choice gives, or why there are to be no kernels.
fn choose() -> Result<PathBuf, &'static str> {
    let choice = env::var(CHOICE).unwrap_or_default();
    match choice.as_str() {
        "" | "auto" => installed().ok_or("no nvcc was found"),
        "none" => Err("KERNELS was none"),
        // The one that `make nvcc` fetched is for who insists: `make test` fetches it too, and what
        // `make build` makes must not depend on whether that has run.
        "required" => Ok(installed()
            .or_else(|| Some(PathBuf::from(FETCHED)).filter(|path| path.is_file()))
            .unwrap_or_else(|| {
                panic!(
                    "KERNELS is required and there is no nvcc: `make nvcc` fetches one, LLAMABI_NVCC names one"
                )
            })),
        _ => panic!("KERNELS ({CHOICE}) is {choice:?}, must be auto, none or required"),
    }
}

/// $LLAMABI_NVCC, that of the toolkit's usual places, or of Python's.
fn installed() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LLAMABI_NVCC").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "LLAMABI_NVCC: no file {}", path.display());
        return Some(path);
    }
    let mut dirs = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        dirs.extend(env::var_os(name).map(|home| Path::new(&home).join("bin")));
    }
    dirs.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    dirs.extend(children("/usr/local", "cuda").map(|home| home.join("bin")));
    let mut packages = Vec::new();
    let home = env::var("HOME").unwrap_or_default();
    let venv = env::var("VIRTUAL_ENV").unwrap_or_default();
    let roots = [
        format!("{home}/.local/lib"),
        "/usr/local/lib".into(),
        "/usr/lib".into(),
    ];
    for root in roots
        .into_iter()
        .chain((!venv.is_empty()).then(|| format!("{venv}/lib")))
    {
        for python in children(root, "python3") {
            packages.extend(["site-packages", "dist-packages"].map(|dir| python.join(dir)));
        }
    }
    dirs.extend(packages.into_iter().map(|dir| dir.join("nvidia/cu13/bin")));
    dirs.into_iter()
        .map(|dir| dir.join("nvcc"))
        .find(|path| path.is_file())
}

/// Entries of a directory whose names begin with `prefix`, the last one first.
fn children(dir: impl AsRef<Path>, prefix: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter().rev()
}

/// Compiles a kernel file unless nothing has changed since the last time: neither the source, nor
/// `others` (what a source may include, and the flags).
fn compile(nvcc: &Path, version: &str, source: &Path, others: &[PathBuf], to: &Path) {
    let mut command = Command::new(nvcc);
    // The flags ask for machine code for several GPUs, and for PTX, which the driver compiles for
    // all newer ones. 90a is Hopper with its own instructions, which nothing newer runs. 8.0 and
    // 8.6 get machine code from the same PTX: no kernel has code for one of them only.
    // kernels/ptxas.sh and pack.sh read the same file.
    let flags = fs::read_to_string("kernels/nvcc.flags").expect("kernels/nvcc.flags");
    command.args(flags.split_whitespace());
    command.arg("--fatbin");
    command.arg("-o").arg(to).arg(source);
    let asked = format!("{version}{command:?}");
    let record = to.with_extension("asked");
    let modified = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let done = modified(to).is_some_and(|done| {
        let from = others.iter().map(PathBuf::as_path).chain([source]);
        from.map(modified).all(|at| at.is_some_and(|at| at < done))
    });
    if done && fs::read_to_string(&record).is_ok_and(|last| last == asked) {
        return;
    }
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", nvcc.display()));
    assert!(
        output.status.success(),
        "{command:?} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // kernels/ptxas.sh fails if nvcc printed anything.
    let words = [output.stdout, output.stderr].concat();
    fs::write(to.with_extension("words"), words).expect("OUT_DIR can be written");
    fs::write(record, asked).expect("OUT_DIR can be written");
}

/// nvcc's version text, and its release, "13.0".
fn version(nvcc: &Path) -> (String, String) {
    let output = Command::new(nvcc).arg("--version").output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let text = text.unwrap_or_default();
    let release = text
        .split("release ")
        .nth(1)
        .and_then(|rest| rest.split(',').next())
        .unwrap_or_else(|| panic!("{}: no version in {text:?}", nvcc.display()));
    let release = release.trim().to_owned();
    (text, release)
}

fn write_table(built: &str, driver: u32, names: &[String]) {
    // scripts/built looks for the sentence in the library.
    let mut table = format!(
        "/// How this library was built.\npub(super) const BUILT: &str = {built:?};\n\
         /// The kernels of this build.\nconst EMBEDDED: (i32, &[(&str, &[u8])]) = ({driver}, &["
    );
    for name in names {
        let _ = write!(
            table,
            "({name:?}, include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}.fatbin\"))),"
        );
    }
    table.push_str("]);\n");
    write("images.rs", &table);
}

/// Writes a file that the crate includes.
fn write(name: &str, text: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join(name), text).expect("OUT_DIR can be written");
}
