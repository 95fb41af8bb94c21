//! The names that templates can use: functions, filters, tests, and methods of values.

use super::value::Value;

/// The name that has this meaning unless the template gives it another one.
pub const SELF: &str = "self";

const FUNCTIONS: [&str; 9] = [
    "range",
    "dict",
    "namespace",
    "cycler",
    "joiner",
    "raise_exception",
    "strftime_now",
    "lipsum",
    // jinja2 finds the blocks of a template under this name. Here there are no blocks.
    SELF,
];

/// The function of the environment with this name.
pub fn function(name: &str) -> Option<&'static str> {
    FUNCTIONS.into_iter().find(|known| *known == name)
}

const FILTERS: [&str; 54] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Whether there is a filter of that name, here or in jinja2.
pub fn is_filter(name: &str) -> bool {
    FILTERS.contains(&name)
}

const TESTS: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];

/// Whether there is a test of that name.
pub fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}

const TEXT: [&str; 46] = [
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "replace",
    "upper",
    "lower",
    "title",
    "capitalize",
    "swapcase",
    "casefold",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "index",
    "rindex",
    "count",
    "join",
    "format",
    "zfill",
    "center",
    "ljust",
    "rjust",
    "isdigit",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "isnumeric",
    "isdecimal",
    "isascii",
    "removeprefix",
    "removesuffix",
    "partition",
    "rpartition",
    "expandtabs",
    "isprintable",
    "istitle",
    // The methods from here on are known, but not supported.
    "encode",
    "format_map",
    "isidentifier",
    "translate",
];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const LIST: [&str; 3] = ["index", "count", "copy"];

/// The method of `value` that has this name.
pub fn method(value: &Value, name: &str) -> Option<&'static str> {
    let methods: &[&'static str] = match value {
        Value::Text(_) => &TEXT,
        Value::Dict(_) => &DICT,
        Value::List(_) => &LIST,
        Value::Tuple(_) | Value::Range(_) => &LIST[..2],
        Value::Cycler(_) => &["next", "reset"],
        Value::Bool(_) | Value::Int(_) => &["bit_length", "bit_count", "conjugate"],
        Value::Float(_) => &["is_integer", "conjugate"],
        Value::Function("dict") => &["fromkeys"],
        _ => &[],
    };
    methods.iter().copied().find(|known| *known == name)
}

/// Whether Python has a method of that name that changes the value.
pub fn changes(value: &Value, name: &str) -> bool {
    match value {
        Value::Dict(_) => ["clear", "pop", "popitem", "setdefault", "update"].contains(&name),
        Value::List(_) => [
            "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove",
        ]
        .contains(&name),
        _ => false,
    }
}
