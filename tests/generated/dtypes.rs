//! The header has the dtypes of [`Dtype::ALL`], and the bindings have those of the header.
//!
//! What the bindings have of them stands between a line with the words `Dtypes of llamabi.h` and
//! one with `End of dtypes`. `make header` rewrites it.

use super::header::{committed, updating};
use super::made;
use llamabi::Dtype;

/// The names of C, in the order of their numbers. The numbers have no gap.
fn of_header(header: &str) -> Vec<String> {
    let lines = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define LLAMA_DTYPE_"));
    let mut all: Vec<(i32, String)> = lines
        .map(|line| {
            let (name, number) = line.split_once(' ').expect("a number");
            (number.parse().expect("a number"), name.to_owned())
        })
        .collect();
    all.sort_unstable();
    let numbers = all.iter().map(|(number, _)| *number);
    assert!(numbers.eq(0..all.len() as i32), "{all:?}");
    all.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn the_header_has_every_dtype() {
    let names = of_header(&committed());
    let ours = Dtype::ALL.map(|dtype| (dtype.name().to_uppercase(), dtype.number()));
    let theirs: Vec<_> = names.into_iter().zip(0..).collect();
    assert_eq!(theirs[0].0, "AUTO");
    assert_eq!(theirs[1..], ours);
}

/// Whether `llama_build` takes the dtype of this name of C as an option.
fn is_asked_for(name: &str) -> bool {
    !Dtype::named(&name.to_lowercase()).is_some_and(Dtype::is_of_files)
}

/// Go writes abbreviations in capitals, and words like other words.
fn go(names: &[String]) -> String {
    let words = |name: &str| match name.contains("INT") || name == "AUTO" {
        true => name[..1].to_owned() + &name[1..].to_lowercase(),
        false => name.to_owned(),
    };
    let longest = |of: fn(&str) -> usize| names.iter().map(|name| of(name)).max().unwrap_or(0);
    let width = longest(str::len);
    // gofmt puts comments that follow each other into one column.
    let commented = names.iter().filter(|name| !is_asked_for(name));
    let value = commented.map(String::len).max().unwrap_or(0);
    let line = |name: &String| {
        let start = format!("\tDtype{:width$} Dtype = C.LLAMA_DTYPE_", words(name));
        match is_asked_for(name) {
            true => format!("{start}{name}\n"),
            false => format!("{start}{name:value$} // in Info only\n"),
        }
    };
    let lines: String = names.iter().map(line).collect();
    format!("const (\n{lines})\n\n")
}

fn quoted(names: &[String], quote: char) -> Vec<String> {
    let quoted = |name: &String| format!("{quote}{}{quote}", name.to_lowercase());
    names.iter().map(quoted).collect()
}

fn node_types(names: &[String]) -> String {
    let (asked, others) = names.iter().cloned().partition(|name| is_asked_for(name));
    let union = |names: Vec<String>| quoted(&names, '\'').join(" | ");
    format!(
        "export type Dtype = {};\n/** Of the weights of files that have them. */\nexport type DtypeOfFiles = {};\n",
        union(asked),
        union(others)
    )
}

fn node_names(names: &[String]) -> String {
    let lines = quoted(names, '"').join(",\n      ");
    format!("  static const char *const names[] = {{\n      {lines},\n  }};\n")
}

fn node_numbers(names: &[String]) -> String {
    let asked = names.iter().filter(|name| is_asked_for(name));
    let entry = |name: &String| {
        format!(
            "      {{\"{}\", LLAMA_DTYPE_{name}}},\n",
            name.to_lowercase()
        )
    };
    let entries: String = asked.map(entry).collect();
    format!("  return to_number(env, value, what, {{\n{entries}  }});\n")
}

type Maker = fn(&[String]) -> String;

const PLACES: [(&str, Maker); 4] = [
    ("bindings/go/options.go", go),
    ("bindings/node/index.d.ts", node_types),
    ("bindings/node/src/options.cc", node_numbers),
    ("bindings/node/src/to_js.cc", node_names),
];

#[test]
fn every_binding_has_the_dtypes_of_the_header() {
    let names = of_header(&committed());
    let marks = ["Dtypes of llamabi.h", "End of dtypes"];
    let places = PLACES.map(|(path, make)| (path, make(&names)));
    made::check(&places, marks, updating());
}
