//! The structs of the header, and what is made of their fields: the lists of `layout!`, and the
//! places that `tests/abi/layout.c` compiles.
//!
//! What is made stands between a line with the words `Fields of llamabi.h` and one with `End of
//! fields`. `make header` rewrites it, but never changes the place of a field that has one.

use super::header::{committed, updating};
use super::made;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A field of a struct of the header.
pub struct Field {
    /// As C has it, without the length of an array.
    pub c_type: String,
    pub name: String,
    /// Its documentation in one line.
    pub doc: String,
    /// Elements of an array; of all else 1.
    n: usize,
}

impl Field {
    pub fn is_reserved(&self) -> bool {
        self.name.starts_with("reserved")
    }

    /// Bytes of an element, which is its alignment.
    fn element(&self) -> usize {
        match self.c_type.as_str() {
            "char" => 1,
            "float" | "int32_t" | "uint32_t" | "llama_status" => 4,
            "double" | "int64_t" | "uint64_t" | "size_t" => 8,
            t if t.ends_with(['*', ')']) || t.ends_with("_fn") => 8,
            t => panic!("{}: how large is {t}?", self.name),
        }
    }
}

pub struct Struct {
    pub name: String,
    pub fields: Vec<Field>,
}

/// A declaration without its semicolon: `const char *const *stop`, `char host[64]` or
/// `int32_t (*go_on)(const void *context)`.
fn field(declared: &str, doc: String) -> Field {
    let of = |c_type: &str, name: &str, n| Field {
        c_type: c_type.trim_end().to_owned(),
        name: name.to_owned(),
        doc,
        n,
    };
    if let Some((_, pointer)) = declared.split_once("(*") {
        return of("(*)", pointer.split_once(')').expect("a name").0, 1);
    }
    let (declared, n) = match declared.split_once('[') {
        Some((declared, n)) => (declared, n.trim_end_matches(']').parse().expect("a length")),
        None => (declared, 1),
    };
    let (c_type, name) = declared.split_at(declared.rfind([' ', '*']).expect("a type") + 1);
    of(c_type, name, n)
}

/// Every struct that the header defines.
pub fn structs(header: &str) -> Vec<Struct> {
    let mut all = Vec::new();
    for item in header.split("typedef struct ").skip(1) {
        let Some((name, rest)) = item.split_once(" {\n") else {
            continue;
        };
        let Some((body, _)) = rest.split_once(&format!("\n}} {name};")) else {
            continue; // an opaque one, with another behind it
        };
        let (mut doc, mut declared) = (String::new(), String::new());
        let mut fields = Vec::new();
        for line in body.lines().map(str::trim) {
            let (text, part) = match line.strip_prefix("///") {
                Some(text) => (&mut doc, text.trim()),
                None => (&mut declared, line),
            };
            *text = format!("{text} {part}").trim().to_owned();
            if let Some(whole) = declared.strip_suffix(';') {
                fields.push(field(whole, std::mem::take(&mut doc)));
                declared.clear();
            }
        }
        let name = name.to_owned();
        all.push(Struct { name, fields });
    }
    all
}

/// `layout!` of every struct that is read or written by its `struct_size`. The message of an error
/// is written in parts, and a callback is given `llama_logits` as they are.
fn layouts(structs: &[Struct]) -> String {
    let mut made = String::new();
    let sized = structs.iter().filter(|s| s.fields[0].name == "struct_size");
    for s in sized.filter(|s| !["llama_error", "llama_logits"].contains(&s.name.as_str())) {
        writeln!(made, "layout! {{ {}:", s.name).unwrap();
        let names: Vec<&str> = s.fields.iter().map(|f| f.name.as_str()).collect();
        made += &made::wrapped(&names.join(", "), "    ");
        let reserved = s.fields.iter().filter(|f| f.is_reserved());
        let reserved: Vec<&str> = reserved.map(|f| f.name.as_str()).collect();
        if !reserved.is_empty() {
            writeln!(made, "    ; {}", reserved.join(", ")).unwrap();
        }
        made += "}\n";
    }
    made
}

/// The place of every field, as C lays structs out.
fn places(structs: &[Struct]) -> String {
    let mut made = String::new();
    for Struct { name, fields } in structs {
        let mut end = 0usize;
        for f in fields {
            let (at, size) = (end.next_multiple_of(f.element()), f.element() * f.n);
            writeln!(made, "FIELD({name}, {}, {at}, {size});", f.name).unwrap();
            end = at + size;
        }
        let aligned = fields.iter().map(Field::element).max().unwrap();
        let size = end.next_multiple_of(aligned);
        writeln!(made, "SIZE({name}, {size});\n").unwrap();
    }
    made
}

const LAYOUTS: &str = "src/capi/layout/fields.rs";
const PLACES: &str = "tests/abi/layout.c";

#[test]
fn layouts_have_every_field_of_the_header_and_no_field_moves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let structs = structs(&committed());
    let (layouts, places) = (layouts(&structs), places(&structs));
    let old = fs::read_to_string(root.join(PLACES)).unwrap();
    let moved = old
        .lines()
        .filter(|line| line.starts_with("FIELD(llama_") && !line.contains(", reserved"))
        .find(|line| !places.contains(line));
    assert!(
        moved.is_none(),
        "{PLACES}: fields are only ever appended, but the header has this otherwise: {moved:?}. \
         If that is meant, remove the line, then `make header`"
    );
    let marks = ["Fields of llamabi.h", "End of fields"];
    made::check(&[(LAYOUTS, layouts), (PLACES, places)], marks, updating());
}

#[test]
fn fields_of_every_kind_have_their_places() {
    let header = "typedef struct a_t {\n  /// So\n  /// many.\n  uint32_t n;\n  const char *const *texts;\n  \
                  int32_t (*go_on)(const void *context,\n                   int32_t n);\n  llama_event_fn on_event;\n  char name[6];\n  \
                  uint32_t reserved1;\n} a_t;\ntypedef struct opaque opaque_t;\n";
    let structs = structs(header);
    assert_eq!(structs.len(), 1);
    let fields = &structs[0].fields;
    assert_eq!(fields[0].doc, "So many.");
    assert_eq!(fields[1].c_type, "const char *const *");
    assert_eq!(
        places(&structs),
        "FIELD(a_t, n, 0, 4);\nFIELD(a_t, texts, 8, 8);\nFIELD(a_t, go_on, 16, 8);\n\
         FIELD(a_t, on_event, 24, 8);\nFIELD(a_t, name, 32, 6);\nFIELD(a_t, reserved1, 40, 4);\n\
         SIZE(a_t, 48);\n\n"
    );
}
