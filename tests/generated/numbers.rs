//! The options of a generation that are one number each, in every binding, as the header has them.
//!
//! A line that says `Numbers of llamabi.h` and one that says `End of numbers` stand around what is
//! made here: a field, a function or a property with the header's documentation, and the value
//! that a test gives it (`tests/bindings/fields.txt`). `make header` rewrites these parts. Options
//! with a pointer or with names for their values are written by hand, in every binding.
//!
//! Of numbers with a range, `tests/abi/ranges.def` tells the C programs what they may be.

use super::header::{committed, updating};
use super::made;
use super::structs::{Field, structs};
use std::fs;
use std::path::Path;

/// What the documentation of these options calls by a name of C, and how Go and Node say it. Other
/// names of options Node has in camel case, and Go as they are.
const NAMES: [(&str, &str, &str); 4] = [
    (
        "`LLAMABI_MAX_GEN_LEN_DEFAULT`",
        "as many as there is room for",
        "as many as there is room for",
    ),
    ("`LLAMA_FINISH_TIME`", "[FinishTime]", "`'time'`"),
    ("`llama_adapter_add`", "[Model.AddAdapter]", "`addAdapter`"),
    ("`stop_tokens`", "[StopTokens]", "`stopTokens`"),
];

/// Written by hand in Go: an id has its type there, and two belong together in one function.
const NOT_IN_GO: [&str; 3] = ["adapter", "contrast_beta", "contrast_alpha"];

pub struct Number {
    /// `float` or an integer type of stdint.h.
    pub c_type: String,
    pub name: String,
    doc: String,
    /// What the bindings' tests set it to.
    value: String,
    /// The least and the greatest that it may be, if `fields.txt` says so: `from 0 to below 1`.
    range: Option<(String, String)>,
}

impl Number {
    /// `maxTimeMs` of `max_time_ms`.
    pub fn camel(&self) -> String {
        camel(&self.name)
    }
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or("").to_owned();
    words.fold(first, |name, word| name + &capital(word))
}

fn capital(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_uppercase() + rest
}

/// The numbers of `llama_generate_options`. A field whose documentation names a set of constants
/// (`LLAMA_SPEC_*`) has words for its values, and a count belongs to its pointer.
pub fn numbers(header: &str, values: &str) -> Vec<Number> {
    let options = structs(header)
        .into_iter()
        .find(|s| s.name == "llama_generate_options")
        .expect("llama_generate_options");
    let numbers = options.fields.into_iter().filter(|f| {
        let number = ["float", "int32_t", "uint32_t", "uint64_t"].contains(&f.c_type.as_str());
        let by_hand = f.name == "struct_size" || f.is_reserved() || f.doc.contains("_*`");
        number && !by_hand
    });
    let number = |f: Field| {
        let line = values
            .lines()
            .find_map(|l| l.strip_prefix(&format!("llama_generate_options {} ", f.name)))
            .unwrap_or_else(|| panic!("tests/bindings/fields.txt has no value for {}", f.name));
        let (value, range) = line.split_once(" from ").unzip();
        let range = range.map(|range: &str| range.split_once(" to ").expect("from ... to ..."));
        // Without a range no test asks whether NaN is refused. Any `contrast_beta` but 0 needs a
        // draft model, which the C programs that read the ranges do not have.
        assert!(
            f.c_type != "float" || range.is_some() || f.name == "contrast_beta",
            "tests/bindings/fields.txt does not say what {} may be: from ... to ...",
            f.name
        );
        Number {
            c_type: f.c_type,
            name: f.name,
            doc: f.doc,
            value: value.unwrap_or(line).to_owned(),
            range: range.map(|(least, most)| (least.to_owned(), most.to_owned())),
        }
    };
    numbers.map(number).collect()
}

/// Documentation in the words of Go (`go`) or of Node.
fn said(doc: &str, go: bool) -> String {
    let doc = NAMES.iter().fold(doc.to_owned(), |doc, (c, in_go, node)| {
        doc.replace(c, if go { in_go } else { node })
    });
    let lower = doc.to_lowercase();
    assert!(
        !lower.contains("llama_") && !lower.contains("llamabi_"),
        "tests/generated/numbers.rs has no name of Go and Node for what this says: {doc}"
    );
    if go {
        return doc.replace('`', "");
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = doc.split_inclusive(|c| !is_name(c));
    words
        .map(|w| {
            if w.starts_with(|c: char| c.is_ascii_lowercase()) {
                camel(w)
            } else {
                w.to_owned()
            }
        })
        .collect()
}

fn cpp_field(n: &Number) -> String {
    let std = if n.c_type == "float" { "" } else { "std::" };
    let (t, name) = (&n.c_type, &n.name);
    format!("  {std}{t} {name} = detail::generate_defaults().{name};\n")
}

fn cpp_argument(n: &Number) -> String {
    format!("    c_.{0} = o.{0};\n", n.name)
}

fn cpp_test(n: &Number) -> String {
    let suffix = if n.c_type == "float" { "F" } else { "" };
    format!("  g.{} = {}{suffix};\n", n.name, n.value)
}

/// The name of a Go option; of a time, which is a `time.Duration`, without its unit.
pub fn go_name(n: &Number) -> String {
    capital(&camel(n.name.strip_suffix("_ms").unwrap_or(&n.name)))
}

fn go_option(n: &Number) -> String {
    if NOT_IN_GO.contains(&n.name.as_str()) {
        return String::new();
    }
    let (t, name) = (&n.c_type, &n.name);
    let (given, value) = if name.ends_with("_ms") {
        let call = format!("milliseconds32(&o.err, \"{name}\", d)");
        ("d time.Duration", call)
    } else if t == "float" {
        ("x float32", "C.float(x)".to_owned())
    } else if t == "uint64_t" {
        ("n uint64", "C.uint64_t(n)".to_owned())
    } else {
        let most = if t == "int32_t" {
            "math.MaxInt32"
        } else {
            "math.MaxUint32"
        };
        let call = format!("number[C.{t}](&o.err, \"{name}\", n, 0, {most})");
        ("n int", call)
    };
    let doc = made::wrapped(
        &format!(
            "{} sets {name} of the C API. {}",
            go_name(n),
            said(&n.doc, true)
        ),
        "// ",
    );
    format!(
        "\n{doc}func {}({given}) GenerateOption {{\n\treturn func(o *generateOptions) {{\n\t\to.c.{name} = {value}\n\t}}\n}}\n",
        go_name(n)
    )
}

fn go_test(n: &Number) -> String {
    if NOT_IN_GO.contains(&n.name.as_str()) {
        return String::new();
    }
    let unit = if n.name.ends_with("_ms") {
        "*time.Millisecond"
    } else {
        ""
    };
    format!("\t\tllamabi.{}({}{unit}),\n", go_name(n), n.value)
}

fn node_property(n: &Number) -> String {
    let doc = said(&n.doc, false);
    let given = match n.c_type.as_str() {
        "uint64_t" => "number | bigint",
        _ => "number",
    };
    let doc = if doc.len() <= 90 {
        format!("  /** {doc} */\n")
    } else {
        format!("  /**\n{}   */\n", made::wrapped(&doc, "   * "))
    };
    format!("{doc}  {}?: {given};\n", n.camel())
}

fn node_argument(n: &Number) -> String {
    let name = n.camel();
    let read = match n.c_type.as_str() {
        "float" => "to_float",
        "int32_t" => "to_int",
        "uint32_t" => "to_uint",
        _ => "to_uint64",
    };
    format!(
        "  if (name == \"{name}\") {{\n    c.{} = {read}(env, v, \"{name}\");\n    return true;\n  }}\n",
        n.name
    )
}

fn node_test(n: &Number) -> String {
    let suffix = if n.c_type == "uint64_t" { "n" } else { "" };
    format!("        {}: {}{suffix},\n", n.camel(), n.value)
}

/// A bound of a float's range: the last number within it, and the first one outside.
fn float_bound(said: &str, is_least: bool) -> [f32; 2] {
    let outwards = if is_least {
        f32::next_down
    } else {
        f32::next_up
    };
    let number = |said: &str| said.parse().unwrap_or_else(|e| panic!("{said}: {e}"));
    match said.split_once(' ') {
        None if said == "max" => [f32::MAX, f32::INFINITY],
        None if said == "-max" => [f32::MIN, f32::NEG_INFINITY],
        None => [number(said), outwards(number(said))],
        Some(("above", said)) if is_least => [number(said).next_up(), number(said)],
        Some(("below", said)) if !is_least => [number(said).next_down(), number(said)],
        Some(_) => panic!("what bound is {said:?}?"),
    }
}

/// What C tests ask of a number with a range: see the head of the file.
fn c_range(n: &Number) -> String {
    let Some((least, most)) = &n.range else {
        return String::new();
    };
    let name = &n.name;
    let line = |word: &str, values: &str| format!("{word}({name}, {values})\n");
    if n.c_type == "float" {
        let c = |x: f32| match x.is_finite() {
            true => format!("{x:?}F"),
            false => format!("{x}").replace("inf", "INFINITY"),
        };
        let ([least, less], [most, more]) = (float_bound(least, true), float_bound(most, false));
        return line("FLOAT", &format!("{}, {}", c(least), c(most)))
            + &line("OUTSIDE", &c(less))
            + &line("OUTSIDE", &c(more))
            + &line("OUTSIDE", "NAN");
    }
    let of_type = n.c_type.trim_end_matches("_t").to_uppercase();
    let greatest = most.replace("max", &format!("{of_type}_MAX"));
    let mut lines = line("INTEGER", &format!("{least}, {greatest}"));
    let number = |said: &str| {
        said.parse::<i64>()
            .unwrap_or_else(|e| panic!("{said}: {e}"))
    };
    if n.c_type == "int32_t" || number(least) > 0 {
        lines += &line("OUTSIDE", &(number(least) - 1).to_string());
    }
    if most != "max" {
        lines += &line("OUTSIDE", &(number(most) + 1).to_string());
    }
    lines
}

type Maker = fn(&Number) -> String;

/// A file, what it has of each number, and what gofmt wants behind the last one.
const PLACES: [(&str, Maker, &str); 9] = [
    ("bindings/cpp/llamabi/options.hpp", cpp_field, ""),
    ("bindings/cpp/llamabi/arguments.hpp", cpp_argument, ""),
    ("bindings/cpp/test/fields.cc", cpp_test, ""),
    ("bindings/go/generate_options.go", go_option, "\n"),
    ("bindings/go/fields_test.go", go_test, ""),
    ("bindings/node/options.d.ts", node_property, ""),
    ("bindings/node/src/options.cc", node_argument, ""),
    ("bindings/node/test/library.test.js", node_test, ""),
    ("tests/abi/ranges.def", c_range, ""),
];

#[test]
fn every_binding_has_the_numbers_of_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let numbers = numbers(&committed(), &read("tests/bindings/fields.txt"));
    let places = PLACES.map(|(path, make, end)| {
        let made = numbers.iter().map(make).collect::<String>() + end;
        (path, made)
    });
    let marks = ["Numbers of llamabi.h", "End of numbers"];
    made::check(&places, marks, updating());
}

#[test]
fn what_is_no_number_is_left_to_hands() {
    let header = "typedef struct llama_generate_options {\n  /// Size.\n  uint32_t struct_size;\n  \
                  /// `LLAMA_GEN_*`, or-ed.\n  uint32_t flags;\n  /// Keep so\n  /// many. 0: off.\n  \
                  int32_t top_k;\n  /// Must be 0.\n  uint32_t reserved1;\n  /// Texts.\n  \
                  const char *const *stop;\n  /// Number.\n  size_t n_stop;\n} llama_generate_options;\n";
    let numbers = numbers(header, "llama_generate_options top_k 5 from 0 to max\n");
    let [top_k] = &numbers[..] else {
        panic!("{}", numbers.len());
    };
    assert_eq!(
        (top_k.doc.as_str(), top_k.value.as_str()),
        ("Keep so many. 0: off.", "5")
    );
    assert_eq!(cpp_test(top_k), "  g.top_k = 5;\n");
    assert_eq!(
        node_property(top_k),
        "  /** Keep so many. 0: off. */\n  topK?: number;\n"
    );
    assert!(go_option(top_k).contains("func TopK(n int) GenerateOption"));
    assert_eq!(
        c_range(top_k),
        "INTEGER(top_k, 0, INT32_MAX)\nOUTSIDE(top_k, -1)\n"
    );
    assert_eq!(float_bound("above 0", true), [f32::from_bits(1), 0.0]);
    assert_eq!(float_bound("1", false), [1.0, 1.0 + f32::EPSILON]);
}
