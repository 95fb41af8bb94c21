//! Refuses numbers of a JSON Schema that the parser would misread, or that would cost it minutes.

use super::refused;
use crate::{Error, Result};
use serde_json::Value;

/// The largest number that numbers may be asked to be multiples of, apart from factors of 2 and 5.
/// The parser's work grows with this number: half a second of processor time for 32,749, many
/// seconds and 400 MB for 999,983. None of the parser's limits covers it.
const MAX_MULTIPLE: u64 = 1 << 14;

/// The largest such number with its factors of 2 and 5: ten times as much does not fit into a
/// `u32`.
const MAX_COEFFICIENT: u64 = u32::MAX as u64 / 10;

/// Refuses a schema with such numbers. `text` is its source.
pub(in super::super) fn check(text: &str, schema: &Value) -> Result<()> {
    for number in numbers(text) {
        // A whole number keeps all its digits for now. [`kept`] checks it where its use is known.
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

/// Refuses whole numbers in `value` that no double equals, because the parser would misread them.
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

/// Whether a [`Value`] keeps a number digit by digit as it is written.
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

/// Whether a double keeps all digits of a number.
fn is_kept(number: &str) -> bool {
    let wanted = digits(number);
    // A double keeps this many digits in any case.
    if wanted.len() <= 15 {
        return true;
    }
    let double = number.parse::<f64>();
    double.is_ok_and(|double| digits(&format!("{double:e}")) == wanted)
}

/// The digits of a number without its point, its exponent, and zeros at either end.
fn digits(number: &str) -> String {
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').into()
}

/// The numbers that others must be multiples of, without factors of 2 and 5, which cost little.
struct Multiples {
    /// The least common multiple of all such numbers in the schema.
    total: u64,
    /// Whether parts of the schema refer to other parts. Then what is said at different places may
    /// hold at the same place.
    refers: bool,
}

impl Multiples {
    /// The multiple that `value` asks for, together with all that holds at the same place. Refused
    /// if it is too large, here or further inside. Each part is looked at once, because a schema
    /// may be thousands of levels deep.
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
                ("const" | "default" | "enum" | "examples", _) => {} // values, not schemas
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
                // Schemas by names. A name may be the same as a keyword.
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
        // The parser has its own message for zero.
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
