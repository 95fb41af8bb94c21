//! `tests/sanitizers` calls every function of the header with every field of every struct of
//! options: what is new there cannot be forgotten here.

use super::root;
use std::fs;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The fields of a struct in the header, but for its size and what is reserved.
fn fields<'a>(header: &'a str, name: &str) -> Vec<&'a str> {
    let (_, body) = header
        .split_once(&format!("typedef struct {name} {{\n"))
        .unwrap();
    let (body, _) = body.split_once(&format!("\n}} {name};")).unwrap();
    let declared = body.lines().map(str::trim).filter(|l| l.ends_with(';'));
    let names = declared.filter(|l| !l.starts_with("//")).map(|l| {
        let end = l.trim_end_matches(';').split('[').next().unwrap();
        end.rsplit([' ', '*']).next().unwrap()
    });
    names
        .filter(|name| *name != "struct_size" && !name.starts_with("reserved"))
        .collect()
}

/// Whether C code writes to a field of `variable`.
fn is_set(code: &str, variable: &str, field: &str) -> bool {
    [".", "->"].iter().any(|arrow| {
        let place = format!("{variable}{arrow}{field}");
        code.match_indices(&place).any(|(at, _)| {
            let part_of_word =
                code[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let behind = code[at + place.len()..].trim_start();
            let sets = behind.starts_with('=') && !behind.starts_with("==");
            !part_of_word && (sets || behind.starts_with("|="))
        })
    })
}

#[test]
fn the_random_caller_sets_every_option() {
    let header = read("include/llamabi.h");
    let code = read("tests/sanitizers/options.h");
    let ranges = read("tests/abi/ranges.def");
    let in_ranges = |field: &str| {
        let line = |word: &str| ranges.contains(&format!("\n{word}({field}, "));
        line("FLOAT") || line("INTEGER")
    };
    let structs = [
        ("llama_generate_options", "o", 30),
        ("llama_build_options", "b", 20),
        ("llama_chat_options", "c", 7),
        ("llama_compress_options", "p", 6),
    ];
    let mut forgotten = Vec::new();
    for (name, variable, at_least) in structs {
        let fields = fields(&header, name);
        assert!(fields.len() >= at_least, "{name}: {fields:?}");
        let unset = fields.iter().filter(|field| {
            let ranged = name == "llama_generate_options" && in_ranges(field);
            !ranged && !is_set(&code, variable, field)
        });
        forgotten.extend(unset.map(|field| format!("{name}.{field}")));
    }
    assert!(
        forgotten.is_empty(),
        "neither tests/sanitizers/options.h nor tests/abi/ranges.def sets {forgotten:?}"
    );
    // Structs of options that came later.
    let all = header
        .lines()
        .filter_map(|l| l.strip_prefix("typedef struct ")?.strip_suffix(" {"));
    let all: Vec<&str> = all.filter(|name| name.ends_with("_options")).collect();
    assert_eq!(all.len(), structs.len(), "{all:?}");
}

/// A run of 20,000 calls asks of each function in its list that it was called.
#[test]
fn the_random_caller_calls_every_function() {
    let list = read("tests/sanitizers/fuzz.h");
    let (_, list) = list.split_once("#define EXPORTS(X)").unwrap();
    let (list, _) = list.split_once("#define").unwrap();
    let called = list.split("X(").skip(1);
    let called = called.map(|part| format!("llama_{}", part.split_once(')').unwrap().0));
    let exported = read("tests/symbols.txt");
    assert_eq!(
        called.collect::<Vec<_>>(),
        exported.lines().collect::<Vec<_>>(),
        "called at random (left) and exported (right)"
    );
}
