//! Link settings of the shared library: SONAME, symbol binding, and where libstdc++.a lies.

use std::path::Path;
use std::process::Command;

/// Must equal `LLAMABI_ABI_VERSION` in `src/capi/types.rs`; a test compares them through `readelf`.
const ABI_VERSION: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for arg in [
        format!("-Wl,-soname,libllamabi.so.{ABI_VERSION}"),
        // Our own calls to our own exports never land in another library of the same process.
        "-Wl,-Bsymbolic-functions".into(),
        // dlclose would unmap code that Rust's thread-local destructors still point to.
        "-Wl,-z,nodelete".into(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    if let Some(dir) = libstdcxx_dir() {
        println!("cargo:rustc-link-search=native={dir}");
    }
}

/// Directory of the C++ compiler's static libstdc++ (.cargo/config.toml asks for it by name).
fn libstdcxx_dir() -> Option<String> {
    println!("cargo:rerun-if-env-changed=CXX");
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let out = Command::new(cxx)
        .arg("-print-file-name=libstdc++.a")
        .output()
        .ok()?;
    let file = String::from_utf8(out.stdout).ok()?;
    let dir = Path::new(file.trim()).parent()?.to_str()?.to_owned();
    (!dir.is_empty()).then_some(dir)
}
