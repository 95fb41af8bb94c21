//! What is newer than the first release says so: "Since 0.2." in its documentation.
//!
//! `released.txt` has the names of the first release's header, fields as `struct.field`. Before
//! that release it is empty and nothing in the header may say "Since".
//! `LLAMABI_RELEASE=1 cargo test --test generated since::` writes it, once.

use super::header::committed;
use super::sections;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Every name of a header's body, with its documentation: items, and the fields of structs.
fn documented(body: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for item in sections::items(body).filter(|i| i.starts_with("///")) {
        let owner = sections::name(item);
        let mut name = owner.to_owned();
        let mut docs = String::new();
        for line in item.lines().map(str::trim_start) {
            if let Some(text) = line.strip_prefix("///") {
                docs += text;
                continue;
            }
            let declared = line.split([';', '[']).next().unwrap_or("");
            let field = declared.rsplit([' ', '*']).next().unwrap_or("");
            if name.is_empty() {
                name = format!("{owner}.{field}");
            }
            if !docs.is_empty() {
                all.push((std::mem::take(&mut name), std::mem::take(&mut docs)));
            }
            name.clear();
        }
    }
    all
}

/// Sentences about the names that say "Since" and should not, or should and do not.
fn mistakes(body: &str, first: &HashSet<&str>) -> Vec<String> {
    let says = |docs: &str| {
        let since = docs.split_once("Since ").map(|(_, version)| version);
        since.is_some_and(|v| v.starts_with(|c: char| c.is_ascii_digit()))
    };
    let judged = |(name, docs): (String, String)| {
        let new = !first.is_empty() && !first.contains(name.as_str());
        match (new, says(&docs)) {
            (true, false) => Some(format!(
                "{name} is newer than the first release: say \"Since x.y.\""
            )),
            (false, true) => Some(format!(
                "{name} is of the first release, and says \"Since\""
            )),
            _ => None,
        }
    };
    documented(body).into_iter().filter_map(judged).collect()
}

#[test]
fn what_is_newer_than_the_first_release_says_since() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generated/released.txt");
    let header = committed();
    if std::env::var_os("LLAMABI_RELEASE").is_some() {
        let names = documented(&header).into_iter().map(|(name, _)| name + "\n");
        fs::write(&path, names.collect::<String>()).unwrap();
    }
    let released = fs::read_to_string(&path).unwrap();
    let mistakes = mistakes(&header, &released.lines().collect());
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn what_is_new_and_does_not_say_so_is_found() {
    let body = "/// Old.\n#define LLAMA_OLD 1\n\n\
                /// New.\n#define LLAMA_NEW 2\n\n\
                /// Newer.\n/// Since 0.2.\nvoid llama_newer(void);\n\n\
                /// Options.\ntypedef struct llama_o {\n  /// Old.\n  uint32_t size;\n  /// Since 0.2.\n\
                \x20 const char *text;\n  /// Room.\n  int32_t ids[16];\n} llama_o;\n";
    let first = HashSet::from(["LLAMA_OLD", "llama_o", "llama_o.size"]);
    let found = mistakes(body, &first);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("LLAMA_NEW is newer"));
    assert!(found[1].starts_with("llama_o.ids is newer"));
    let found = mistakes(body, &HashSet::new());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("llama_newer is of the first release"));
    assert!(found[1].starts_with("llama_o.text is of the first release"));
}
