//! `include/llamabi.h` is what the pinned cbindgen makes of `src/capi`.
//!
//! `LLAMABI_UPDATE_HEADER=1 cargo test --test generated header::` (or `make header`) rewrites it.

use super::sections;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// In the order in which their functions appear in a section of the header.
const SOURCES: [&str; 21] = [
    "types/status",
    "types/models",
    "types/ranks",
    "types/generating",
    "types/results",
    "types/texts",
    "types/compressing",
    "types/figures",
    "handle",
    "options",
    "generate",
    "chat",
    "compress",
    "stream",
    "result",
    "cancel",
    "tokens",
    "grammar",
    "info",
    "adapter",
    "ranks",
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
typedef struct llama_cancel llama_cancel_t; /* thread-safe flag */
typedef struct llama_grammar llama_grammar_t; /* a compiled language, immutable */

struct llama_comm; /* how ranks in several processes reach each other */
"
    )
}

/// Where the items that cbindgen writes begin and end.
const BEGIN: &str = "/* items begin */";
const END: &str = "\n#endif  /* LLAMABI_H */";

fn generate() -> String {
    let mut config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    config.after_includes = Some(preamble() + BEGIN);
    let header = config.header.take().expect("header in cbindgen.toml");
    config.header = Some(header.replace(" * @CONTENTS@\n", &sections::contents()));
    let mut builder = cbindgen::Builder::new().with_config(config);
    let mut places = HashMap::new();
    for source in SOURCES {
        let path = root().join(format!("src/capi/{source}.rs"));
        sections::of_source(source, &fs::read_to_string(&path).unwrap(), &mut places);
        builder = builder.with_src(path);
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen").write(&mut header);
    let header = String::from_utf8(header).unwrap();
    let (head, rest) = header.split_once(BEGIN).expect("where the items begin");
    let (items, end) = rest.split_once(END).expect("the include guard's end");
    // The options come long before the section that says what this is.
    let items = items.replace("const llama_comm *", "const struct llama_comm *");
    format!(
        "{head}{CPP_BEGIN}{}{CPP_END}{END}{end}",
        sections::sorted(&items, &places)
    )
}

const CPP_BEGIN: &str = "
#ifdef __cplusplus
extern \"C\" {
#endif
";
const CPP_END: &str = "
#ifdef __cplusplus
} /* extern \"C\" */
#endif
";

/// Whether what is made from other files shall be written rather than compared.
pub fn updating() -> bool {
    std::env::var_os("LLAMABI_UPDATE_HEADER").is_some()
}

/// The header as it lies in the repository.
pub fn committed() -> String {
    fs::read_to_string(root().join("include/llamabi.h")).unwrap_or_default()
}

#[test]
fn header_is_up_to_date() {
    let path = root().join("include/llamabi.h");
    let generated = generate();
    if updating() {
        fs::write(&path, &generated).unwrap();
    }
    let committed = committed();
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
