//! The header in sections. cbindgen writes constants, then types, then functions; a reader wants
//! what belongs together in one place, and the simple before the advanced.
//!
//! A line `// Section: TITLE` in a file of `src/capi` says where the items below it belong, up to
//! the next such line. Within a section, cbindgen's order stays.

use std::collections::HashMap;

/// Titles in the order of the header, and what a reader finds there.
const SECTIONS: [(&str, &str); 14] = [
    ("First things", "versions, status and errors"),
    ("Models", "load one, free it"),
    ("Generating", "continue texts or tokens: options, events"),
    ("Results", "what a call that has ended gives"),
    ("Chat", "answer dialogs"),
    ("Cancel flags", "stop a call from elsewhere"),
    (
        "Streams",
        "pull a call's events instead of waiting for its end",
    ),
    ("Tokens", "encode and decode"),
    (
        "Chat templates",
        "messages and tools as JSON, and the text made of them",
    ),
    ("Grammars", "languages that generated text is kept in"),
    ("Compression", "prompts that become shorter"),
    ("Adapters", "LoRA adapters that calls choose"),
    ("Several ranks", "one model in several processes"),
    ("Figures", "what was loaded, and totals since then"),
];

/// How the line begins that defines an item of the header.
const ITEMS: [&str; 5] = [
    "pub const ",
    "pub type ",
    "pub struct ",
    "pub extern \"C\" fn ",
    "pub unsafe extern \"C\" fn ",
];

/// Contents, as lines of a C comment.
pub fn contents() -> String {
    let rows = SECTIONS.iter().enumerate();
    rows.map(|(i, (title, what))| format!(" * {:>4}. {:<16}{what}\n", i + 1, title))
        .collect()
}

/// The section of each item that a file's source defines, by the item's name.
pub fn of_source(file: &str, source: &str, sections: &mut HashMap<String, usize>) {
    let mut section = None;
    for line in source.lines() {
        if let Some(title) = line.strip_prefix("// Section: ") {
            let found = SECTIONS.iter().position(|(known, _)| *known == title);
            section = Some(found.unwrap_or_else(|| {
                panic!("src/capi/{file}.rs: the header has no section {title:?}; they are in tests/generated/sections.rs")
            }));
        }
        let name = ITEMS
            .iter()
            .find_map(|start| line.strip_prefix(start))
            .and_then(|rest| rest.split(|c| !is_name(c)).next());
        if let (Some(name), Some(section)) = (name, section) {
            sections.insert(name.to_owned(), section);
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The items of a header's body: each with its documentation, without blank lines around it.
pub fn items(body: &str) -> impl Iterator<Item = &str> {
    body.split("\n\n").map(str::trim).filter(|i| !i.is_empty())
}

/// What an item of the header declares.
pub fn name(item: &str) -> &str {
    let declaration = item.lines().find(|l| !l.starts_with("///")).unwrap_or("");
    for before in ["#define ", "typedef struct ", "(*"] {
        if let Some((_, rest)) = declaration.split_once(before) {
            return rest.split(|c| !is_name(c)).next().unwrap_or("");
        }
    }
    // A function's name is what stands before its parameters, a typedef's the last word.
    let end = declaration.find(['(', ';']).unwrap_or(declaration.len());
    let before = &declaration[..end];
    before.rsplit(|c| !is_name(c)).next().unwrap_or("")
}

/// The items of `body` under the headings of their sections.
pub fn sorted(body: &str, sections: &HashMap<String, usize>) -> String {
    let mut texts = [const { String::new() }; SECTIONS.len()];
    for item in items(body) {
        let name = name(item);
        let section = sections.get(name).unwrap_or_else(|| {
            panic!("{name} stands below no `// Section: ...` line in src/capi, so the header has no place for it")
        });
        texts[*section] += &format!("\n{item}\n");
    }
    let rows = SECTIONS.iter().zip(texts).enumerate();
    rows.map(|(i, ((title, what), text))| {
        format!("\n/* ==== {}. {title}: {what} ==== */\n{text}", i + 1)
    })
    .collect()
}

#[test]
fn items_have_the_names_that_c_gives_them() {
    let body = "/// A number.\n#define LLAMA_ONE 1\n\n\
                /// A type.\ntypedef int32_t llama_status;\n\n\
                /// Hears.\ntypedef void (*llama_log_fn)(void *data, int32_t level);\n\n\
                /// A struct.\ntypedef struct llama_error {\n  /// A field.\n  int32_t status;\n} llama_error;\n\n\
                /// Asks.\n///\n/// Twice.\nconst char *llama_version(void);\n\n\
                llama_status llama_build(const char *dir,\n                         llama_t **out);\n";
    let names: Vec<&str> = items(body).map(name).collect();
    let expected = [
        "LLAMA_ONE",
        "llama_status",
        "llama_log_fn",
        "llama_error",
        "llama_version",
        "llama_build",
    ];
    assert_eq!(names, expected);
}

#[test]
fn items_stand_in_the_order_of_the_sections() {
    let mut sections = HashMap::new();
    let source = "// Section: Models\npub const LAST: u32 = 1;\n// Section: First things\n\
                  pub unsafe extern \"C\" fn first(a: i32) {\n";
    of_source("made_up", source, &mut sections);
    let header = sorted(
        "/// Last.\n#define LAST 1\n\n/// First.\nvoid first(int32_t a);\n",
        &sections,
    );
    let [heading, first, next, last] = [
        "==== 1. First things",
        "void first",
        "==== 2. Models",
        "#define LAST",
    ]
    .map(|text| header.find(text).unwrap());
    assert!(heading < first && first < next && next < last, "{header}");
}
