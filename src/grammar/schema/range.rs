//! The bounds of numbers.

use super::conjunction::{FRACTION, INTEGER};
use super::{Made, Translation};
use crate::Result;
use serde_json::{Map, Number, Value};

pub(super) const KEYWORDS: [&str; 5] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// The largest bound that the parser can have: the last double below 2^63.
const LIMIT: f64 = 9_223_372_036_854_774_784.0;

/// The smallest number that is allowed above an exclusive bound of zero, in the cases where there
/// must be such a number. A smaller one would have hundreds of digits.
const NEXT_TO_ZERO: f64 = 1e-20;

#[derive(Clone, Copy)]
struct Bound {
    value: f64,
    is_exclusive: bool,
}

impl<'a> Translation<'a> {
    pub(super) fn range(
        &mut self,
        part: &'a Value,
        members: &'a Map<String, Value>,
        made: &mut Made,
    ) -> Result<()> {
        let is_number = |keyword| members.get(keyword).is_none_or(Value::is_number);
        let is_flag = |keyword| members.get(keyword).is_none_or(Value::is_boolean);
        // If this is not a valid schema, the parser refuses it.
        let is_sound = ["minimum", "maximum", "multipleOf"]
            .into_iter()
            .all(is_number)
            && ["exclusiveMinimum", "exclusiveMaximum"]
                .into_iter()
                .all(|keyword| is_number(keyword) || is_flag(keyword));
        if !is_sound {
            for keyword in KEYWORDS {
                if let Some(value) = members.get(keyword) {
                    made.own.insert(keyword.into(), value.clone());
                }
            }
            return Ok(());
        }
        let lower = self.bound(members, false);
        let upper = self.bound(members, true);
        if let Some(factor) = members.get("multipleOf") {
            super::numbers::kept(factor)?;
            made.own.insert("multipleOf".into(), factor.clone());
            let types = self.types(&[part]);
            let are_numbers = types & !(INTEGER | FRACTION) == 0;
            if let (Some(lower), Some(upper), Some(factor), true) =
                (lower, upper, factor.as_f64(), are_numbers)
            {
                let factor = factor.abs();
                made.is_impossible |= !has_multiple(lower, upper, factor, types == INTEGER);
            }
        }
        for (bound, is_upper) in [(lower, false), (upper, true)] {
            let Some(bound) = bound else { continue };
            let keyword = match (is_upper, bound.is_exclusive) {
                (false, false) => "minimum",
                (false, true) => "exclusiveMinimum",
                (true, false) => "maximum",
                (true, true) => "exclusiveMaximum",
            };
            let beyond = if is_upper {
                bound.value < -LIMIT
            } else {
                bound.value > LIMIT
            };
            if beyond {
                let why = format!(
                    "{keyword} is {:?}, further than numbers can have it",
                    bound.value
                );
                return Err(self.placed(part, super::refused(why)));
            }
            if let Some(number) = Number::from_f64(bound.value) {
                made.own.insert(keyword.into(), number.into());
            }
        }
        Ok(())
    }

    /// The bound of a part at one end, as a double. No number beyond the part's bound satisfies it.
    fn bound(&self, members: &Map<String, Value>, is_upper: bool) -> Option<Bound> {
        let (plain, exclusive) = match is_upper {
            false => ("minimum", "exclusiveMinimum"),
            true => ("maximum", "exclusiveMaximum"),
        };
        // With its sign changed, an upper bound is handled as a lower one.
        let sign = if is_upper { -1.0 } else { 1.0 };
        let lower = |keyword| match members.get(keyword) {
            Some(Value::Number(number)) => Some(sign * inward(number, is_upper)),
            _ => None,
        };
        let mut bound = lower(plain).map(|value| Bound {
            value,
            // The boolean form of draft 4 and of OpenAPI.
            is_exclusive: members.get(exclusive) == Some(&Value::Bool(true)),
        });
        if let Some(value) = lower(exclusive)
            && bound.is_none_or(|bound| value >= bound.value)
        {
            bound = Some(Bound {
                value,
                is_exclusive: true,
            });
        }
        let mut bound = bound?;
        bound.value = bound.value.max(-LIMIT);
        if bound.is_exclusive && self.is_cut(bound.value, sign) {
            bound.value = match bound.value {
                0.0 => NEXT_TO_ZERO,
                value => value.next_up(),
            };
            bound.is_exclusive = false;
        }
        // Adding 0.0 removes the sign of a zero.
        bound.value = sign * bound.value + 0.0;
        Some(bound)
    }

    /// Whether an exclusive bound at a whole number makes the parser exclude more than that number.
    /// It does if the other bound is less than one away. Any number of the document may be the
    /// other bound.
    fn is_cut(&self, lower: f64, sign: f64) -> bool {
        lower >= 0.0 && lower.fract() == 0.0 && {
            let (from, to) = match sign < 0.0 {
                true => (-lower - 1.0, -lower),
                false => (lower, lower + 1.0),
            };
            let behind = self.numbers.partition_point(|&number| number <= from);
            self.numbers.get(behind).is_some_and(|&number| number < to)
        }
    }
}

/// `number` as a double. If no double equals it, the next double inside the bound.
fn inward(number: &Number, is_upper: bool) -> f64 {
    let whole = match (number.as_i64(), number.as_u64()) {
        (Some(whole), _) => i128::from(whole),
        (_, Some(whole)) => whole.into(),
        // The double that the text means. Numbers with more digits were refused before.
        _ => return number.as_f64().unwrap_or_default(),
    };
    let double = whole as f64;
    match (double as i128).cmp(&whole) {
        std::cmp::Ordering::Greater if is_upper => double.next_down(),
        std::cmp::Ordering::Less if !is_upper => double.next_up(),
        _ => double,
    }
}

/// Whether a multiple of `factor` lies between two bounds. With `is_whole`: a multiple that is a
/// whole number. `true` if the numbers have too many digits to tell.
fn has_multiple(lower: Bound, upper: Bound, factor: f64, is_whole: bool) -> bool {
    const MAX_DIGITS: usize = 15;
    let texts = [lower.value, upper.value, factor].map(|number| number.to_string());
    let places = |text: &String| text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let most = texts.iter().map(places).max().unwrap_or_default();
    let whole = |text: &String| {
        let zeros = "0".repeat(most - places(text));
        format!("{}{zeros}", text.replace('.', ""))
            .parse::<i128>()
            .ok()
    };
    let numbers = texts.each_ref().map(whole);
    let [Some(lowest), Some(highest), Some(mut factor)] = numbers else {
        return true;
    };
    if most > MAX_DIGITS || factor == 0 {
        return true;
    }
    if is_whole {
        let one = 10i128.pow(most as u32);
        let (mut divisor, mut rest) = (factor, one);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let Some(both) = (one / divisor).checked_mul(factor) else {
            return true;
        };
        factor = both;
    }
    let lowest = lowest + i128::from(lower.is_exclusive);
    let highest = highest - i128::from(upper.is_exclusive);
    // Compares the first multiple that is not below `lowest`.
    lowest + (-lowest).rem_euclid(factor) <= highest
}

/// A number in a JSON value that is beyond the parser's integers.
pub(super) fn beyond(value: &Value) -> Option<f64> {
    let mut numbers = Vec::new();
    numbers_in(value, &mut numbers);
    numbers.into_iter().find(|number| number.abs() > LIMIT)
}

/// All numbers of a JSON value.
pub(super) fn numbers_in(value: &Value, into: &mut Vec<f64>) {
    match value {
        Value::Number(number) => into.extend(number.as_f64()),
        Value::Array(values) => values.iter().for_each(|value| numbers_in(value, into)),
        Value::Object(members) => members.values().for_each(|value| numbers_in(value, into)),
        _ => {}
    }
}
