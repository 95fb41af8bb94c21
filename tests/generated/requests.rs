//! The fields of HTTP requests that are one number, in both example services, as
//! `examples/requests.txt` has them.
//!
//! What is made stands between a line that says `Numbers of examples/requests.txt` and one that
//! says `End of numbers`. `make header` rewrites it.

use super::header::{committed, updating};
use super::made;
use super::numbers::{Number, go_name, numbers};
use std::fmt::Write;
use std::fs;
use std::path::Path;

struct Field<'a> {
    name: &'a str,
    option: &'a Number,
    missing: &'a str,
    least: &'a str,
    most: &'a str,
}

/// A line of the table: `min_tokens min_gen_len: 0 from 0 to max`.
fn field<'a>(line: &'a str, options: &'a [Number]) -> Option<Field<'a>> {
    let (names, rest) = line.split_once(": ")?;
    let (name, option) = names.split_once(' ').unwrap_or((names, names));
    let (missing, range) = rest.split_once(" from ")?;
    let (least, most) = range.split_once(" to ")?;
    let option = options.iter().find(|n| n.name == option)?;
    Some(Field {
        name,
        option,
        missing,
        least,
        most,
    })
}

impl Field<'_> {
    /// The function of both services that reads such a field, and its arguments.
    fn read(&self, quote: char, greatest: &str) -> (&'static str, String) {
        let (reader, most) = match self.most.strip_prefix("below ") {
            Some(most) => ("below", most),
            None if self.option.c_type == "float" => ("number", self.most),
            None => ("integer", self.most),
        };
        let (name, missing, least) = (self.name, self.missing, self.least);
        let most = most.replace("max", greatest);
        (
            reader,
            format!("{quote}{name}{quote}, {missing}, {least}, {most}"),
        )
    }

    /// Whether what is below 0 in a request is 0 in the option, as vLLM's `top_k` of -1.
    fn has_another_none(&self) -> bool {
        self.option.c_type != "float" && self.least.starts_with('-')
    }
}

fn go(fields: &[Field]) -> String {
    let mut made = String::from("var numbers = []string{\n");
    for f in fields {
        writeln!(made, "\t\"{}\",", f.name).unwrap();
    }
    made += "}\n\n// numbers reads them.\nfunc (f *fields) numbers() []llamabi.GenerateOption {\n\treturn []llamabi.GenerateOption{\n";
    for f in fields {
        let (reader, arguments) = f.read('"', "math.MaxInt32");
        let read = format!("f.{reader}({arguments})");
        let value = match f.option.c_type.as_str() {
            "float" => format!("float32({read})"),
            _ if f.has_another_none() => format!("max({read}, 0)"),
            _ => read,
        };
        writeln!(made, "\t\tllamabi.{}({value}),", go_name(f.option)).unwrap();
    }
    made + "\t}\n}\n\n"
}

fn node(fields: &[Field]) -> String {
    let mut made = String::from("const NUMBERS = [\n");
    for f in fields {
        writeln!(made, "  '{}',", f.name).unwrap();
    }
    made += "];\n\nconst numbersOf = (body) => ({\n";
    for f in fields {
        let (reader, arguments) = f.read('\'', "INT32");
        let read = format!("{reader}(body, {arguments})");
        let value = match f.has_another_none() {
            true => format!("Math.max({read}, 0)"),
            false => read,
        };
        writeln!(made, "  {}: {value},", f.option.camel()).unwrap();
    }
    made + "});\n"
}

#[test]
fn both_services_have_the_numbers_of_the_table() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let options = numbers(&committed(), &read("tests/bindings/fields.txt"));
    let table = read("examples/requests.txt");
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let fields: Vec<Field> = lines
        .map(|line| {
            field(line, &options).unwrap_or_else(|| panic!("examples/requests.txt: {line}"))
        })
        .collect();
    let places = [
        ("examples/go-server/request.go", go(&fields)),
        ("examples/node-server/request.mjs", node(&fields)),
    ];
    let marks = ["Numbers of examples/requests.txt", "End of numbers"];
    made::check(&places, marks, updating());
}
