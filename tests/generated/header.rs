//! `include/llamabi.h` is what the pinned cbindgen makes of `src/capi`.
//!
//! `LLAMABI_UPDATE_HEADER=1 cargo test --test generated header::` (or `make header`) rewrites it.

use std::fs;
use std::path::Path;

/// In the order in which they appear in the header.
const SOURCES: [&str; 9] = [
    "types", "handle", "generate", "chat", "stream", "result", "cancel", "tokens", "info",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What cbindgen cannot derive: version macros, from Cargo.toml, and the opaque types.
fn preamble() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (major, minor, patch) = (
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    );
    format!(
        "
/* Version of this header; llama_version() is the library's. */
#define LLAMABI_VERSION \"{version}\"
#define LLAMABI_VERSION_MAJOR {major}
#define LLAMABI_VERSION_MINOR {minor}
#define LLAMABI_VERSION_PATCH {patch}

typedef struct llama llama_t;               /* weights, tokenizer, KV cache, engine thread */
typedef struct llama_result llama_result_t; /* immutable outcome of one call */
typedef struct llama_stream llama_stream_t; /* events to be pulled */
typedef struct llama_cancel llama_cancel_t; /* thread-safe flag */"
    )
}

fn generate() -> String {
    let mut config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    config.after_includes = Some(preamble());
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root().join(format!("src/capi/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen").write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn header_is_up_to_date() {
    let path = root().join("include/llamabi.h");
    let generated = generate();
    if std::env::var_os("LLAMABI_UPDATE_HEADER").is_some() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if let Some((i, (got, expected))) = committed
        .lines()
        .zip(generated.lines())
        .enumerate()
        .find(|(_, (a, b))| a != b)
    {
        panic!(
            "include/llamabi.h, line {}: {got:?}, the source says {expected:?}; `make header`",
            i + 1
        );
    }
    assert!(
        committed == generated,
        "include/llamabi.h is cut off or too long; `make header`"
    );
}
