//! Numbers of a JSON Schema that the parser would take for others, or would work on for minutes.

use super::refused;
use crate::{Error, Result};
use serde_json::Value;

/// Most that numbers can be asked to be multiples of, apart from factors of 2 and 5. The parser's
/// work grows with it: half a second of a processor for 32,749, many seconds and 400 MB for
/// 999,983. None of its limits is of that.
const MAX_MULTIPLE: u64 = 1 << 14;

/// Most that it can be with these factors: ten times as much is no `u32` any more.
const MAX_COEFFICIENT: u64 = u32::MAX as u64 / 10;

/// `text` is that of `schema`.
pub(in super::super) fn check(text: &str, schema: &Value) -> Result<()> {
    for number in numbers(text) {
        // Whole numbers keep their digits until it is known what they are for.
        if !is_whole(number) && !is_kept(number) {
            return Err(too_long(number));
        }
    }
    let mut multiples = Multiples {
        total: 1,
        refers: false,
    };
    multiples.of(schema)?;
    if multiples.refers {
        bounded(multiples.total)?;
    }
    Ok(())
}

/// Refuses whole numbers in `value` that are no doubles: the parser would take others for them.
pub(super) fn kept(value: &Value) -> Result<()> {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            match is_whole(&text) && !is_kept(&text) {
                true => Err(too_long(text.trim_start_matches('-'))),
                false => Ok(()),
            }
        }
        Value::Array(values) => values.iter().try_for_each(kept),
        Value::Object(members) => members.values().try_for_each(kept),
        _ => Ok(()),
    }
}

fn too_long(number: &str) -> Error {
    let number: String = number.chars().take(40).collect();
    refused(format!(
        "the number {number} has more digits than are kept (those of a double)"
    ))
}

/// Whether a number is kept in a [`Value`] as it is written, digit by digit.
fn is_whole(number: &str) -> bool {
    number.parse::<u64>().is_ok() || number.parse::<i64>().is_ok()
}

/// The numbers of a JSON text, as they are written.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c == '"' || c.is_ascii_digit())?;
            rest = &rest[start..];
            if let Some(inside) = rest.strip_prefix('"') {
                rest = behind_string(inside);
                continue;
            }
            let part = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
            let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
            let (number, behind) = rest.split_at(end);
            rest = behind;
            return Some(number);
        }
    })
}

fn behind_string(inside: &str) -> &str {
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return &inside[at + 1..],
            _ => {}
        }
    }
    ""
}

/// Whether a double has the digits of a number.
fn is_kept(number: &str) -> bool {
    let wanted = digits(number);
    // So many survive in any case.
    if wanted.len() <= 15 {
        return true;
    }
    let double = number.parse::<f64>();
    double.is_ok_and(|double| digits(&format!("{double:e}")) == wanted)
}

/// The digits of a number without its point, its exponent, and zeros around them.
fn digits(number: &str) -> String {
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').into()
}

/// What numbers have to be multiples of, without factors of 2 and 5, which cost little.
struct Multiples {
    /// Of all that the schema says.
    total: u64,
    /// Whether parts of the schema name others, so that what is said at different places may hold
    /// at one.
    refers: bool,
}

impl Multiples {
    /// What `value` asks for, with all that holds at the same place; refused where that is too
    /// much, here or further inside. Each part is looked at once: a schema may be thousands of
    /// levels deep.
    fn of(&mut self, value: &Value) -> Result<u64> {
        let members = match value {
            Value::Object(members) => members,
            Value::Array(values) => {
                for value in values {
                    self.of(value)?;
                }
                return Ok(1);
            }
            _ => return Ok(1),
        };
        let own = members.get("multipleOf").and_then(Value::as_f64);
        let mut all = own.map_or(1, coefficient);
        self.total = common(self.total, all);
        let mut some = Vec::new();
        for (name, value) in members {
            match (&**name, value) {
                ("const" | "default" | "enum" | "examples", _) => {} // values, no schemas
                ("$ref" | "$dynamicRef" | "$recursiveRef", _) => self.refers = true,
                ("allOf", Value::Array(parts)) => {
                    for part in parts {
                        all = common(all, self.of(part)?);
                    }
                }
                ("anyOf" | "oneOf", Value::Array(parts)) => {
                    for part in parts {
                        some.push(self.of(part)?);
                    }
                }
                // Schemas by names, which may be those of keywords.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions"
                    | "dependentSchemas",
                    Value::Object(named),
                ) => {
                    for schema in named.values() {
                        self.of(schema)?;
                    }
                }
                _ => {
                    self.of(value)?;
                }
            }
        }
        let most = some
            .iter()
            .map(|&part| common(all, part))
            .fold(all, u64::max);
        bounded(most)
    }
}

fn bounded(multiple: u64) -> Result<u64> {
    if multiple <= MAX_MULTIPLE {
        return Ok(multiple);
    }
    Err(refused(format!(
        "numbers would have to be multiples of {}, apart from factors of 2 and 5 at most \
         {MAX_MULTIPLE} can be",
        match multiple {
            u64::MAX => format!("more than {MAX_COEFFICIENT}"),
            multiple => multiple.to_string(),
        }
    )))
}

fn coefficient(number: f64) -> u64 {
    let text = number.abs().to_string();
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').replace('.', ""),
        false => text,
    };
    let coefficient = text.parse::<u64>().unwrap_or(u64::MAX);
    match coefficient {
        // The parser has a sentence of its own for zero.
        0 => 1,
        1..=MAX_COEFFICIENT => without(without(coefficient, 2), 5),
        _ => u64::MAX,
    }
}

fn without(mut number: u64, factor: u64) -> u64 {
    while number.is_multiple_of(factor) {
        number /= factor;
    }
    number
}

/// The least common multiple.
fn common(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}
