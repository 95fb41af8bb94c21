//! Arithmetic.

use super::ast::Op;
use super::evaluator::Evaluator;
use super::fault::{Fault, Kind, Result, evaluation};
use super::percent;
use super::strings::escaped;
use super::text::{Builder, Text};
use super::value::{Number, Value};

/// `a op b`
pub fn arithmetic(e: &mut Evaluator<'_, '_>, op: Op, a: &Value, b: &Value) -> Result<Value> {
    match (op, a, b) {
        (Op::Mod, Value::Text(text), _) => {
            return Ok(Value::Text(percent::percent(e, text, b)?));
        }
        (_, Value::Undefined(missing), _) | (_, _, Value::Undefined(missing)) => {
            return evaluation(missing.sentence());
        }
        (Op::Add, Value::Text(a), Value::Text(b)) => {
            let is_markup = a.is_markup() || b.is_markup();
            let (mut a, mut b) = (a.clone(), b.clone());
            if is_markup {
                a = escaped(&mut e.meter, &a)?;
                b = escaped(&mut e.meter, &b)?;
            }
            let mut sum = Builder::default();
            sum.push_text(&mut e.meter, &a)?;
            sum.push_text(&mut e.meter, &b)?;
            return Ok(Value::Text(sum.finish().marked(is_markup)));
        }
        (Op::Add, Value::List(a), Value::List(b)) => {
            return Value::list(joined(e, &a.items, &b.items)?);
        }
        (Op::Add, Value::Tuple(a), Value::Tuple(b)) => {
            return Value::tuple(joined(e, &a.items, &b.items)?);
        }
        (Op::Mul, Value::Text(text), n) | (Op::Mul, n, Value::Text(text)) => {
            if let Some(n) = n.index() {
                return Ok(Value::Text(repeat(e, text, n)?));
            }
        }
        (Op::Mul, Value::List(seq), n) | (Op::Mul, n, Value::List(seq)) => {
            if let Some(n) = n.index() {
                return Value::list(repeated(e, &seq.items, n)?);
            }
        }
        (Op::Mul, Value::Tuple(seq), n) | (Op::Mul, n, Value::Tuple(seq)) => {
            if let Some(n) = n.index() {
                return Value::tuple(repeated(e, &seq.items, n)?);
            }
        }
        _ => {}
    }
    match (a.number(), b.number()) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => integers(op, a, b),
        (Some(a), Some(b)) => floats(op, a.float(), b.float()),
        _ => {
            let sign = match op {
                Op::Add => "+",
                Op::Sub => "-",
                Op::Mul => "*",
                Op::Div => "/",
                Op::FloorDiv => "//",
                Op::Mod => "%",
                Op::Pow => "**",
            };
            let (a, b) = (a.type_name(), b.type_name());
            evaluation(format!("`{sign}` between a {a} and a {b}"))
        }
    }
}

fn joined(e: &mut Evaluator<'_, '_>, a: &[Value], b: &[Value]) -> Result<Vec<Value>> {
    let mut all = e.meter.list(a.len() + b.len())?;
    all.extend_from_slice(a);
    all.extend_from_slice(b);
    Ok(all)
}

/// `text * n`
pub fn repeat(e: &mut Evaluator<'_, '_>, text: &Text, n: i128) -> Result<Text> {
    let mut all = Builder::default();
    if text.as_str().is_empty() {
        return Ok(text.clone());
    }
    // Each round is charged, so the loop ends.
    let mut left = n;
    while left > 0 {
        e.meter.step()?;
        all.push_text(&mut e.meter, text)?;
        left -= 1;
    }
    Ok(all.finish().marked(text.is_markup()))
}

fn repeated(e: &mut Evaluator<'_, '_>, items: &[Value], n: i128) -> Result<Vec<Value>> {
    let n = super::arguments::count(n);
    let mut all = e.meter.list(items.len().saturating_mul(n))?;
    if !items.is_empty() {
        for _ in 0..n {
            all.extend_from_slice(items);
        }
    }
    Ok(all)
}

fn integers(op: Op, a: i128, b: i128) -> Result<Value> {
    let result = match op {
        Op::Add => a.checked_add(b),
        Op::Sub => a.checked_sub(b),
        Op::Mul => a.checked_mul(b),
        Op::Div if b != 0 => return floats(op, a as f64, b as f64),
        Op::Div | Op::FloorDiv | Op::Mod if b == 0 => return evaluation("division by zero"),
        Op::FloorDiv => a.checked_div_euclid(b).map(|_| {
            let quotient = a / b;
            quotient - i128::from(a % b != 0 && (a < 0) != (b < 0))
        }),
        Op::Mod => a
            .checked_rem(b)
            .map(|rest| match rest != 0 && (rest < 0) != (b < 0) {
                true => rest + b,
                false => rest,
            }),
        Op::Pow if b < 0 => return floats(op, a as f64, b as f64),
        _ => match (a, u32::try_from(b)) {
            (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(b)) => a.checked_pow(b),
            (_, Err(_)) => None,
        },
    };
    match result {
        Some(result) => Ok(Value::Int(result)),
        None => too_large(),
    }
}

/// The fault for an integer that Python can represent, but this evaluator cannot.
pub fn too_large<T>() -> Result<T> {
    let message = "an integer of more than 128 bits";
    Err(Fault::at(0, Kind::Limit, message))
}

fn floats(op: Op, a: f64, b: f64) -> Result<Value> {
    let by_zero = b == 0.0 && matches!(op, Op::Div | Op::FloorDiv | Op::Mod);
    if by_zero || (op == Op::Pow && a == 0.0 && b < 0.0) {
        return evaluation("division by zero");
    }
    // Python's float.__divmod__: the remainder has the divisor's sign.
    let rest = || {
        let rest = a % b;
        match rest != 0.0 && (rest < 0.0) != (b < 0.0) {
            true => rest + b,
            false if rest == 0.0 => 0.0f64.copysign(b),
            false => rest,
        }
    };
    Ok(Value::Float(match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
        Op::Mod => rest(),
        Op::FloorDiv => {
            let quotient = (a - rest()) / b;
            match quotient == 0.0 {
                true => 0.0f64.copysign(a / b),
                false if quotient - quotient.floor() > 0.5 => quotient.floor() + 1.0,
                false => quotient.floor(),
            }
        }
        Op::Pow => {
            let power = a.powf(b);
            if a < 0.0 && b.fract() != 0.0 && b.is_finite() {
                return evaluation("a power that is a complex number");
            }
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return evaluation("a power that is too large for a float");
            }
            power
        }
    }))
}

/// `-a`
pub fn negate(a: &Value) -> Result<Value> {
    match (a, a.number()) {
        (_, Some(Number::Int(i))) => integers(Op::Sub, 0, i),
        (_, Some(Number::Float(f))) => Ok(Value::Float(-f)),
        (Value::Undefined(missing), _) => evaluation(missing.sentence()),
        _ => evaluation(format!("`-` before {}", a.of_type())),
    }
}

/// `+a`
pub fn plus(a: &Value) -> Result<Value> {
    match (a, a.number()) {
        (_, Some(Number::Int(i))) => Ok(Value::Int(i)),
        (_, Some(Number::Float(f))) => Ok(Value::Float(f)),
        (Value::Undefined(missing), _) => evaluation(missing.sentence()),
        _ => evaluation(format!("`+` before {}", a.of_type())),
    }
}
